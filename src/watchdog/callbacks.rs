//! The thread that runs users' callbacks and writes log lines, while there are any.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::client::own_thread;
use crate::sync::Mutex;

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that may block, take locks of the user's or use this library: never on a thread that
/// anything depends on.
pub(super) struct Callbacks {
    state: Mutex<State>,
}

struct State {
    /// What shows that the thread has not ended; gone once the client ends.
    alive: Option<Sender<()>>,
    queue: VecDeque<Job>,
    /// Whether the thread runs. It ends when the queue is empty.
    running: bool,
}

impl Callbacks {
    pub(super) fn new(alive: Sender<()>) -> Self {
        let state = State { alive: Some(alive), queue: VecDeque::new(), running: false };
        Self { state: Mutex::new(state) }
    }

    /// The client ends: it waits for a thread that runs now, for none that starts later.
    pub(super) fn close(&self) {
        self.state.lock().alive = None;
    }

    /// Runs `job` on the thread, behind those that came before.
    pub(super) fn run(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock();
        state.queue.push_back(job);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        let alive = state.alive.clone();
        drop(state);
        let callbacks = Arc::clone(self);
        let started = own_thread("redlatch-callbacks", alive, move || callbacks.work());
        if started.is_err() {
            // No thread to be had. The jobs stay queued for the next one that starts.
            self.state.lock().running = false;
        }
    }

    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            let Some(job) = state.queue.pop_front() else {
                state.running = false;
                return;
            };
            drop(state);
            // A job catches the panics of what the user gave it; this is for its own.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}

/// Runs a user's callback, whose panic is its own affair.
pub(super) fn call(name: &str, callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        log::error!("an on_lost callback of {name:?} panicked");
    }
}
