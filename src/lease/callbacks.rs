//! The thread that runs users' callbacks and writes log lines. The thread starts with the first
//! callback or line, and runs until the client's end. So a later callback does not wait for the
//! start of a thread.

#![expect(clippy::disallowed_macros, reason = "this is the thread for them")]

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::name::Name;
use crossbeam_channel::Sender;
use log::Level;
use redlatch_client::sync::{Condvar, Mutex, MutexGuard, clock, is_forked, own_thread};

const TARGET: &str = "redlatch";
/// The maximum number of log lines in the queue. Further lines are dropped and counted.
const MAX_LINES: usize = 1_000;
/// Losses for the same reason share a log line. The line is written this long after the last loss,
/// or [`MAX_GATHER`] after the first loss. Both times are in nanoseconds.
const GATHER_FOR: u64 = 300_000_000;
const MAX_GATHER: u64 = 2_000_000_000;
/// The maximum number of names in a log line about losses.
const MAX_NAMES: usize = 10;

enum CallbackJob {
    /// A user's callback, which runs once. Unlike a log line, a callback is never dropped.
    Call(Box<dyn FnOnce() + Send>),
    Line(Level, String),
}

/// The jobs that run users' code: callbacks and the logger. A job may block, take the user's locks
/// or use this library, so jobs run on a thread on which no other work depends.
pub(super) struct Callbacks {
    /// The client's id, which stands at the end of each log line, because a process may have
    /// several clients.
    client: Arc<str>,
    state: Mutex<CallbackState>,
    changed: Condvar,
}

struct CallbackState {
    /// The callbacks' thread keeps a clone of this sender until the thread ends. `None` after the
    /// client has ended.
    alive: Option<Sender<()>>,
    queue: VecDeque<CallbackJob>,
    /// Losses that are not in a log line yet.
    lost: Vec<Lost>,
    /// The number of log lines in the queue, plus the number of losses in `lost`.
    lines: usize,
    /// The number of log lines that were dropped since the last warning about dropped lines.
    left_out: u64,
    thread: CallbacksThread,
}

#[derive(PartialEq, Eq)]
enum CallbacksThread {
    NotNeeded,
    /// The system refused to start the thread. The watchdog's thread tries again later.
    Refused,
    Runs,
}

/// Lost holds that share a log line, because they were lost for the same reason.
struct Lost {
    why: String,
    names: Vec<Name>,
    holds: usize,
    first: u64,
    last: u64,
}

impl Lost {
    fn due(&self) -> u64 {
        (self.last + GATHER_FOR).min(self.first + MAX_GATHER)
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
        let (lost, thread) = (Vec::new(), CallbacksThread::NotNeeded);
        let state = CallbackState { alive, queue, lost, lines: 0, left_out: 0, thread };
        Self { client: client.into(), state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn client(&self) -> Arc<str> {
        Arc::clone(&self.client)
    }

    /// Records that the client ends. The callbacks' thread then ends when all jobs are done. If
    /// that thread runs now, the client's end waits for it. If it starts later, the client's end
    /// does not.
    pub(super) fn close(&self) {
        self.state.lock().alive = None;
        self.changed.notify_one();
    }

    /// Runs `call` on the callbacks' thread, after all earlier jobs.
    pub(super) fn run(self: &Arc<Self>, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.state.lock();
        state.queue.push_back(CallbackJob::Call(call));
        self.start(state);
    }

    /// Logs a line on the callbacks' thread, after all earlier jobs.
    pub(super) fn log(self: &Arc<Self>, level: Level, line: impl FnOnce() -> String) {
        // If the logger refuses this level, do not make the line or start the thread.
        if level > log::max_level() {
            return;
        }
        let line = line();
        let mut state = self.state.lock();
        if state.lines >= MAX_LINES {
            state.left_out += 1;
            return;
        }
        state.lines += 1;
        state.queue.push_back(CallbackJob::Line(level, line));
        self.start(state);
    }

    /// Logs the loss of a hold. Losses for the same reason at about the same time share a line.
    pub(super) fn log_lost(self: &Arc<Self>, name: &Name, why: impl FnOnce() -> String) {
        if Level::Warn > log::max_level() {
            return;
        }
        let (why, now) = (why(), clock::now());
        let mut state = self.state.lock();
        if let Some(lost) = state.lost.iter_mut().find(|lost| lost.why == why) {
            lost.holds += 1;
            lost.last = now;
            if lost.names.len() < MAX_NAMES {
                lost.names.push(name.clone());
            }
        } else if state.lines >= MAX_LINES {
            state.left_out += 1;
        } else {
            state.lines += 1;
            let names = vec![name.clone()];
            state.lost.push(Lost { why, names, holds: 1, first: now, last: now });
            self.start(state);
        }
    }

    /// Starts the callbacks' thread, if the system has refused to start it before.
    pub(super) fn start_if_refused(self: &Arc<Self>) {
        let state = self.state.lock();
        if state.thread == CallbacksThread::Refused {
            self.start(state);
        }
    }

    fn start(self: &Arc<Self>, mut state: MutexGuard<'_, CallbackState>) {
        let before = std::mem::replace(&mut state.thread, CallbacksThread::Runs);
        if before == CallbacksThread::Runs {
            // The woken thread locks the mutex, so this thread unlocks it first.
            drop(state);
            self.changed.notify_one();
            return;
        }
        let alive = state.alive.clone();
        drop(state);
        let callbacks = Arc::clone(self);
        let started = own_thread("redlatch-calls", alive, move || callbacks.work());
        if started.is_err() {
            self.state.lock().thread = CallbacksThread::Refused;
        }
    }

    fn work(&self) {
        // If a callback forks, the child's only thread returns from the callback to this loop. It
        // must not wait here, because the child has no thread that would wake it.
        while !is_forked()
            && let Some((job, left_out)) = self.next()
        {
            // Catches a panic of the logger. The job itself catches the panics of users' callbacks.
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

    /// Waits for the next job, and returns it with the number of log lines that were dropped since
    /// the last call. Returns `None` if the client has ended and no job is left.
    fn next(&self) -> Option<(CallbackJob, u64)> {
        let mut state = self.state.lock();
        let job = loop {
            let now = clock::now();
            // When the client ends, gathered losses are logged without delay.
            let ends = state.alive.is_none();
            if let Some(at) = state.lost.iter().position(|lost| ends || lost.due() <= now) {
                break Some(CallbackJob::Line(Level::Warn, state.lost.remove(at).line()));
            }
            if let Some(job) = state.queue.pop_front() {
                break Some(job);
            }
            match state.lost.iter().map(Lost::due).min() {
                Some(due) => {
                    let pause = Duration::from_nanos(due.saturating_sub(now));
                    self.changed.wait_for(&mut state, pause);
                }
                None if ends => break None,
                None => self.changed.wait(&mut state),
            }
        };
        match &job {
            None => state.thread = CallbacksThread::NotNeeded,
            Some(CallbackJob::Call(_)) => {}
            Some(CallbackJob::Line(..)) => state.lines -= 1,
        }
        job.map(|job| (job, std::mem::take(&mut state.left_out)))
    }
}

/// Runs a user's callback, and catches its panic.
pub(super) fn call(name: &Name, client: &str, callback: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(callback)).is_err() {
        log::error!(target: TARGET, "a callback of {name:?} panicked [client {client}]");
    }
}
