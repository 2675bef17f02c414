//! The thread that runs users' callbacks and writes log lines, while there are any.

#![expect(clippy::disallowed_macros, reason = "this is the thread for them")]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::name::Name;
use crossbeam_channel::Sender;
use log::Level;
use redlatch_client::sync::{Condvar, Mutex, MutexGuard, clock, own_thread};

/// The target of every line that this library logs.
const TARGET: &str = "redlatch";
/// The most lines that wait for a slow logger. Later ones are counted and left out.
const MOST_LINES: usize = 1_000;
/// The time for which holds that are lost for one reason are gathered in a line, by [`clock`]. The
/// line is written when no further hold was lost for this time, but at the latest this time after
/// the first loss.
const GATHERED: u64 = 300_000_000;
const GATHERED_AT_MOST: u64 = 2_000_000_000;
/// The most names in such a line.
const MOST_NAMES: usize = 10;

enum CallbackJob {
    /// A callback, which is never left out: each runs once.
    Call(Box<dyn FnOnce() + Send>),
    Line(Level, String),
}

/// The jobs that may block, take locks of the user's or use this library, and so run on no thread
/// that others depend on. A logger is the user's code, too.
pub(super) struct Callbacks {
    /// The client's id, at the end of each line: a process may have several.
    client: Arc<str>,
    state: Mutex<CallbackState>,
    changed: Condvar,
}

struct CallbackState {
    /// The sign that the thread has not ended. `None` once the client ends.
    alive: Option<Sender<()>>,
    queue: VecDeque<CallbackJob>,
    /// Losses that will become lines.
    lost: Vec<Lost>,
    /// The number of queued jobs and losses that are log lines, or will be.
    lines: usize,
    /// The number of lines that were left out since the last report of such lines.
    left_out: u64,
    /// Whether the thread runs. It ends when the queue is empty.
    running: bool,
}

/// Holds lost for one reason.
struct Lost {
    why: String,
    /// The names of the first holds.
    names: Vec<Name>,
    holds: usize,
    first: u64,
    last: u64,
}

impl Lost {
    fn due(&self) -> u64 {
        (self.last + GATHERED).min(self.first + GATHERED_AT_MOST)
    }

    fn line(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(", ");
        match (self.holds, self.holds - self.names.len()) {
            (1, _) => format!("the hold of {names} was lost: {}", self.why),
            (_, 0) => format!("the holds of {names} were lost: {}", self.why),
            (_, more) => format!("the holds of {names} and {more} more were lost: {}", self.why),
        }
    }
}

impl Callbacks {
    pub(super) fn new(client: &str, alive: Sender<()>) -> Self {
        let (queue, alive) = (VecDeque::new(), Some(alive));
        let lost = Vec::new();
        let state = CallbackState { alive, queue, lost, lines: 0, left_out: 0, running: false };
        Self { client: client.into(), state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn client(&self) -> Arc<str> {
        Arc::clone(&self.client)
    }

    /// Marks the client's end. The client waits for a thread that runs now, but for none that
    /// starts later.
    pub(super) fn close(&self) {
        self.state.lock().alive = None;
        self.changed.notify_one();
    }

    /// Runs `call` on the thread, after all earlier jobs.
    pub(super) fn run(self: &Arc<Self>, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.state.lock();
        state.queue.push_back(CallbackJob::Call(call));
        self.start(state);
    }

    /// Logs a line on the thread, after all earlier jobs.
    pub(super) fn log(self: &Arc<Self>, level: Level, line: impl FnOnce() -> String) {
        // If the logger refuses this level, this makes no line and starts no thread.
        if level > log::max_level() {
            return;
        }
        let line = line();
        let mut state = self.state.lock();
        if state.lines >= MOST_LINES {
            state.left_out += 1;
            return;
        }
        state.lines += 1;
        state.queue.push_back(CallbackJob::Line(level, line));
        self.start(state);
    }

    /// Logs the loss of a hold, in a line with others that are lost for the same reason at about
    /// that time.
    pub(super) fn log_lost(self: &Arc<Self>, name: &Name, why: impl FnOnce() -> String) {
        if Level::Warn > log::max_level() {
            return;
        }
        let (why, now) = (why(), clock::now());
        let mut state = self.state.lock();
        if let Some(lost) = state.lost.iter_mut().find(|lost| lost.why == why) {
            lost.holds += 1;
            lost.last = now;
            if lost.names.len() < MOST_NAMES {
                lost.names.push(name.clone());
            }
        } else if state.lines >= MOST_LINES {
            state.left_out += 1;
        } else {
            state.lines += 1;
            let names = vec![name.clone()];
            state.lost.push(Lost { why, names, holds: 1, first: now, last: now });
            self.start(state);
        }
    }

    /// Starts the thread if jobs wait for it, since the system may have given none when they came.
    pub(super) fn start_again(self: &Arc<Self>) {
        let state = self.state.lock();
        let is_idle = state.queue.is_empty() && state.lost.is_empty();
        if !is_idle && !state.running {
            self.start(state);
        }
    }

    fn start(self: &Arc<Self>, mut state: MutexGuard<'_, CallbackState>) {
        if std::mem::replace(&mut state.running, true) {
            self.changed.notify_one();
            return;
        }
        let alive = state.alive.clone();
        drop(state);
        let callbacks = Arc::clone(self);
        let started = own_thread("redlatch-calls", alive, move || callbacks.work());
        if started.is_err() {
            // The system gives no thread. The jobs stay queued, and the watchdog's thread tries
            // again.
            self.state.lock().running = false;
        }
    }

    fn work(&self) {
        while let Some((job, left_out)) = self.next() {
            // This catches the panics of a logger. A job catches those of the user's callbacks.
            let _ = catch_unwind(AssertUnwindSafe(|| match job {
                CallbackJob::Call(call) => call(),
                CallbackJob::Line(level, line) => {
                    log::log!(target: TARGET, level, "{line} [client {}]", self.client);
                }
            }));
            if left_out > 0 {
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    log::warn!(
                        target: TARGET,
                        "{left_out} log lines were dropped: the logger or an on_lost callback is \
                         too slow [client {}]",
                        self.client
                    );
                }));
            }
        }
    }

    /// The next job, and the number of lines that were left out without a report.
    fn next(&self) -> Option<(CallbackJob, u64)> {
        let mut state = self.state.lock();
        let job = loop {
            let now = clock::now();
            // At the client's end, no line is delayed.
            let ends = state.alive.is_none();
            if let Some(at) = state.lost.iter().position(|lost| ends || lost.due() <= now) {
                break Some(CallbackJob::Line(Level::Warn, state.lost.remove(at).line()));
            }
            if let Some(job) = state.queue.pop_front() {
                break Some(job);
            }
            let Some(due) = state.lost.iter().map(Lost::due).min() else { break None };
            let pause = Duration::from_nanos(due.saturating_sub(now));
            self.changed.wait_for(&mut state, pause);
        };
        match &job {
            None => state.running = false,
            Some(CallbackJob::Call(_)) => {}
            Some(CallbackJob::Line(..)) => state.lines -= 1,
        }
        job.map(|job| (job, std::mem::take(&mut state.left_out)))
    }
}

/// Runs a user's callback, and catches its panic.
pub(super) fn call(name: &Name, client: &str, callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        log::error!(target: TARGET, "an on_lost callback of {name:?} panicked [client {client}]");
    }
}
