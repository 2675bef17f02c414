//! The thread that runs users' callbacks and writes log lines, while there are any.

#![expect(clippy::disallowed_macros, reason = "this is the thread for them")]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::Sender;
use log::Level;

use crate::sync::{Mutex, MutexGuard, own_thread};

/// The target of every line that this library logs.
const TARGET: &str = "redlatch";
/// So many lines wait for a slow logger. Later ones are counted and left out.
const MOST_LINES: usize = 1_000;

enum Job {
    /// Never left out: each callback runs once.
    Call(Box<dyn FnOnce() + Send>),
    Line(Level, String),
}

/// Jobs that may block, take locks of the user's or use this library: never on a thread that
/// anything depends on. A logger is the user's, too.
pub(super) struct Callbacks {
    /// The client's id, which each line ends with: a process may have several.
    client: Arc<str>,
    state: Mutex<State>,
}

struct State {
    /// What shows that the thread has not ended; gone once the client ends.
    alive: Option<Sender<()>>,
    queue: VecDeque<Job>,
    /// How many of the jobs are lines.
    lines: usize,
    /// How many lines were left out since that was said.
    left_out: u64,
    /// Whether the thread runs. It ends when the queue is empty.
    running: bool,
}

impl Callbacks {
    pub(super) fn new(client: &str, alive: Sender<()>) -> Self {
        let (queue, alive) = (VecDeque::new(), Some(alive));
        let state = State { alive, queue, lines: 0, left_out: 0, running: false };
        Self { client: client.into(), state: Mutex::new(state) }
    }

    pub(super) fn client(&self) -> Arc<str> {
        Arc::clone(&self.client)
    }

    /// The client ends: it waits for a thread that runs now, for none that starts later.
    pub(super) fn close(&self) {
        self.state.lock().alive = None;
    }

    /// Runs `call` on the thread, behind what came before.
    pub(super) fn run(self: &Arc<Self>, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.state.lock();
        state.queue.push_back(Job::Call(call));
        self.start(state);
    }

    /// Has a line logged on the thread, behind what came before.
    pub(super) fn log(self: &Arc<Self>, level: Level, line: impl FnOnce() -> String) {
        // Nobody wants it: it is not made, and no thread started.
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
        state.queue.push_back(Job::Line(level, line));
        self.start(state);
    }

    fn start(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        let alive = state.alive.clone();
        drop(state);
        let callbacks = Arc::clone(self);
        let started = own_thread("redlatch-calls", alive, move || callbacks.work());
        if started.is_err() {
            // No thread to be had. The jobs stay queued for the next one that starts.
            self.state.lock().running = false;
        }
    }

    fn work(&self) {
        while let Some((job, left_out)) = self.next() {
            // A job catches the panics of what the user gave it; this is for a logger's.
            let _ = catch_unwind(AssertUnwindSafe(|| match job {
                Job::Call(call) => call(),
                Job::Line(level, line) => {
                    log::log!(target: TARGET, level, "{line} [client {}]", self.client);
                }
            }));
            if left_out > 0 {
                let _ = catch_unwind(|| {
                    log::warn!(
                        target: TARGET,
                        "{left_out} log lines were left out: the logger or an on_lost callback \
                         keeps them waiting [client {}]",
                        self.client
                    );
                });
            }
        }
    }

    /// The next job, and how many lines were left out that nobody was told of.
    fn next(&self) -> Option<(Job, u64)> {
        let mut state = self.state.lock();
        let job = state.queue.pop_front();
        match &job {
            None => state.running = false,
            Some(Job::Call(_)) => {}
            Some(Job::Line(..)) => state.lines -= 1,
        }
        job.map(|job| (job, std::mem::take(&mut state.left_out)))
    }
}

/// Runs a user's callback, whose panic is its own affair.
pub(super) fn call(name: &str, client: &str, callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        log::error!(target: TARGET, "an on_lost callback of {name:?} panicked [client {client}]");
    }
}
