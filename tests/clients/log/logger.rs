//! The logger of the tests. It keeps the lines, and a test can make it block or panic.

use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// The logger of this process. A test can make it block.
pub(super) static LOGGER: Logger =
    Logger { state: Mutex::new(State::NEW), changed: Condvar::new() };

pub(super) struct Logger {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    lines: Vec<(Level, String)>,
    blocks: bool,
    panics: bool,
}

impl State {
    const NEW: Self = Self { lines: Vec::new(), blocks: false, panics: false };
}

impl Logger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, blocks: bool, panics: bool) {
        let mut state = self.state();
        (state.blocks, state.panics) = (blocks, panics);
        self.changed.notify_all();
    }

    pub(super) fn lines(&self, about: &str) -> Vec<(Level, String)> {
        self.state().lines.iter().filter(|(_, line)| line.contains(about)).cloned().collect()
    }

    /// Installs the logger if necessary, and removes the lines of earlier tests.
    pub(super) fn install(&'static self) {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            log::set_logger(self).unwrap();
            log::set_max_level(LevelFilter::Trace);
        });
        *self.state() = State::NEW;
    }
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let own = record.target().split("::").next() == Some("redlatch");
        if !own {
            return;
        }
        let mut line = record.args().to_string();
        if record.target() != "redlatch" || thread::current().name() != Some("redlatch-calls") {
            line = format!("NOT AS DOCUMENTED: {} {line}", record.target());
        }
        let mut state = self.state();
        while state.blocks {
            state = self.changed.wait(state).unwrap();
        }
        state.lines.push((record.level(), line));
        let panics = state.panics;
        drop(state);
        assert!(!panics, "as println! does on an output that was closed");
    }

    fn flush(&self) {}
}
