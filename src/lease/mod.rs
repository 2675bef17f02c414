//! Renews holds and notices their ends, with one timing wheel and its thread.
//!
//! A client has three threads for any number of holds: `redlatch-watch`, `redlatch-renew` and
//! `redlatch-listen`. A fourth thread, `redlatch-calls`, starts with the first callback or log
//! line, or when a guard first gets an `on_wanted` callback. With Sentinels there is also
//! `redlatch-follow`. In a cluster each used server has a renewer and a subscriber, and
//! `redlatch-jobs` gives the renewers their jobs.
//!
//! The *watchdog* waits for the wheel and never does I/O, so it reports a lost hold at once even
//! while the server does not answer. The *renewer* (`runtime/renewer.rs`) sends renewals and
//! cleanups, and reads replies for which no caller waits. The *callbacks* thread runs `on_lost` and
//! writes log lines. The *subscriber* (`pubsub/`) receives messages.

mod callbacks;
mod cleanup;
pub(crate) mod deadline;
pub(crate) mod schedule;
mod wheel;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::Level;
use redlatch_client::sync::{Condvar, Mutex, clock};
use redlatch_client::{HealthReport, Lane, LaneCheck, Node};

use self::callbacks::Callbacks;
pub(crate) use self::cleanup::{Cleanup, Debtor, KeepAlive};
use self::wheel::{Wheel, WheelKey};
use crate::error::{Error, LostReason};
use crate::name::Name;
use crate::scripts::renewal::{Longer, RenewalKind, StillHeld};
use crate::scripts::{Mark, Owner, RequestId, Requests};

/// One millisecond.
const TICK: u64 = 1_000_000;
const BUCKETS: usize = 1_024;
/// The maximum sleep of the wheel's thread, in ticks. While the machine is suspended, the timer of
/// a sleep stops, but leases do not.
const LONGEST_SLEEP: u64 = 1_000;
/// The renewer reads a reply for which no caller waits after this time. While threads drop guards,
/// the wheel's thread wakes once in this time. (With 20 ms, 64 processes on one core lost 3 to 6 %
/// of their grants.)
const READ_REPLIES_AFTER: Duration = Duration::from_millis(50);
/// The time after which a task that panicked is called again.
const RETRY_AFTER_PANIC: u64 = 100_000_000;

/// An action at a given time. The watchdog stores the time, and the task does the action.
pub(crate) trait Task: Send + Sync {
    /// Called when the task is due. Does no I/O. Returns the renewal that the task wants to send,
    /// if any.
    fn due(self: Arc<Self>) -> Option<Renewal>;
}

pub(crate) struct Renewal {
    pub(crate) kind: RenewalKind,
    pub(crate) key: Arc<str>,
    pub(crate) owner: Owner,
    /// The new lease of the hold. `None`: the renewal only asks whether the server still has the
    /// hold.
    pub(crate) lease: Option<Duration>,
    /// What the script does if the lease at the server is longer than each lease that a thread
    /// requested.
    pub(crate) longer: Longer,
    /// Whether the wait for the reply is shorter than usual.
    pub(crate) is_raise: bool,
    /// The deadline of the hold if this renewal fails.
    pub(crate) deadline: u64,
    /// Whether the renewal also queries whether others wait for the lock.
    pub(crate) asks_if_wanted: bool,
    pub(crate) renewed: Box<OnRenewed>,
}

/// The outcome of a renewal: the server's answer, and whether others wait for the lock (`false` if
/// the renewal did not ask), or the reason of the failure.
pub(crate) type RenewalOutcome<'a> = Result<(StillHeld, bool), &'a Arc<str>>;

/// Receives the time at which the renewal was sent, its outcome, and whether the renewal was sent
/// twice.
type OnRenewed = dyn Fn(u64, RenewalOutcome<'_>, bool) + Send + Sync;

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Renewal({:?}, {:?})", self.key, self.lease)
    }
}

enum WheelItem {
    /// A hold's task is due.
    Task(Weak<dyn Task>),
    /// A lane may have replies to read.
    Lane(Arc<Lane>),
}

/// Called once, if the hold is lost.
pub(crate) type LossCallback = Box<dyn FnOnce(LostReason) + Send>;
/// Called each time that others begin to wait for the lock.
pub(crate) type WantedCallback = Arc<dyn Fn() + Send + Sync>;

#[derive(Debug)]
pub(crate) enum Job {
    Renew(Vec<Renewal>),
    /// Renew all holds, because the server may have lost them.
    RenewAll,
    CleanUp(Cleanup),
    /// Repeat a change of a semaphore at a new server. The reply to this change came only after the
    /// earlier changes had been repeated at the new server.
    Mend(Arc<str>, Arc<Requests>, RequestId),
    /// A connection was opened.
    Connected,
    /// Wake the subscriber of this server from its read.
    WakeSubscriber(Arc<Node>),
    /// In a cluster, these slots (sorted) have moved to another server.
    Moved(Vec<u16>),
    Service(Vec<Arc<Lane>>),
    /// Open a connection to this server, which may be up again.
    Reconnect(Arc<Node>),
    /// The client has ended. No job comes after this one.
    End,
}

/// The wheel, and the channels to the renewer and to the callbacks' thread.
pub(crate) struct Watchdog {
    timer: Mutex<Timer>,
    changed: Condvar,
    jobs: Sender<Job>,
    callbacks: Arc<Callbacks>,
}

struct Timer {
    wheel: Wheel<WheelItem>,
    /// The tick at which the watchdog's thread wakes up without a notification.
    wakes_at: u64,
    shut_down: bool,
}

/// An entry of the wheel.
#[derive(Debug)]
pub(crate) struct Alarm {
    key: WheelKey,
    due: u64,
}

impl Alarm {
    pub(crate) fn due(&self) -> u64 {
        self.due
    }
}

impl Watchdog {
    /// `alive`: each thread of the client keeps a clone of this sender until the thread ends.
    pub(crate) fn new(client: &str, alive: Sender<()>) -> (Self, Receiver<Job>) {
        let (jobs, work) = crossbeam_channel::unbounded();
        let now = clock::now() / TICK;
        let timer = Timer { wheel: Wheel::new(now, BUCKETS), wakes_at: 0, shut_down: false };
        let watchdog = Self {
            timer: Mutex::new(timer),
            changed: Condvar::new(),
            jobs,
            callbacks: Arc::new(Callbacks::new(client, alive)),
        };
        (watchdog, work)
    }

    /// Sets an alarm that calls the task when [`clock`] reaches `due`, or up to a tick later.
    pub(crate) fn alarm(&self, due: u64, task: Weak<dyn Task>) -> Alarm {
        Alarm { key: self.insert(due, WheelItem::Task(task)), due }
    }

    pub(crate) fn cancel(&self, alarm: Alarm) {
        let cancelled = self.timer.lock().wheel.cancel(alarm.key);
        drop(cancelled);
    }

    /// Makes the renewer read a lane's replies after [`READ_REPLIES_AFTER`] if no caller has read
    /// them by then.
    pub(crate) fn service(&self, lane: &Arc<Lane>) {
        let due = clock::now() + clock::nanos(READ_REPLIES_AFTER);
        self.insert(due, WheelItem::Lane(Arc::clone(lane)));
    }

    /// Returns a function for the case that the server may have lost its data. That function renews
    /// or queries all holds at once, so that losses are reported.
    pub(crate) fn on_data_lost(&self) -> impl Fn() + Send + Sync + 'static {
        let jobs = self.jobs.clone();
        // After the client's end no thread receives the job, but by then the client has no holds.
        move || drop(jobs.send(Job::RenewAll))
    }

    /// Renews these holds at once.
    pub(crate) fn renew_now(&self, renewals: Vec<Renewal>) {
        let _ = self.jobs.send(Job::Renew(renewals));
    }

    /// Returns a function for the case that slots of a cluster have moved to another server. The
    /// function queries the holds in these slots.
    pub(crate) fn on_slots_moved(&self) -> impl Fn(&[u16]) + Send + Sync + 'static {
        let jobs = self.jobs.clone();
        move |slots| drop(jobs.send(Job::Moved(slots.to_vec())))
    }

    /// Returns a function for the case that a connection was opened. The function makes the renewer
    /// send delayed cleanups sooner.
    pub(crate) fn on_connected(&self) -> impl Fn() + Send + Sync + 'static {
        let jobs = self.jobs.clone();
        move || drop(jobs.send(Job::Connected))
    }

    /// Makes the renewer wake the subscriber of a server from its read.
    pub(crate) fn wake_subscriber(&self, node: Arc<Node>) {
        let _ = self.jobs.send(Job::WakeSubscriber(node));
    }

    /// Makes the renewer open a connection to a server, which may be up again.
    pub(crate) fn reconnect(&self, node: Arc<Node>) {
        // The receiver exists until the client ends.
        let _ = self.jobs.send(Job::Reconnect(node));
    }

    /// Sends a cleanup now, and again with back-off until it is done.
    pub(crate) fn clean_up(&self, cleanup: Cleanup) {
        // The check and the send are under one mutex. Without the mutex, the job might come after
        // the last job, `Job::End`, and be lost silently.
        let timer = self.timer.lock();
        if timer.shut_down {
            drop(timer);
            cleanup.give_up(self);
            return;
        }
        // The send does not block, and the receiver exists until the client has ended.
        let _ = self.jobs.send(Job::CleanUp(cleanup));
    }

    /// Sends a keep-alive of this name after `pause`, and then at the intervals that
    /// [`KeepAlive::handle_outcome`] returns.
    pub(crate) fn schedule(&self, name: &Name, keep_alive: &Arc<dyn KeepAlive>, pause: Duration) {
        self.clean_up(Cleanup::keep_alive(name, keep_alive, pause));
    }

    /// Records the server's answer to a request that changed a semaphore's free permits by
    /// `permits`. `mark` is the semaphore's mark in the answer. If [`Requests::record_applied`]
    /// asks for a repetition, the renewer repeats the change.
    pub(crate) fn record_applied(
        &self,
        semaphore: &Arc<str>,
        requests: &Arc<Requests>,
        request_id: RequestId,
        permits: i64,
        mark: Option<Mark>,
    ) {
        if requests.record_applied(request_id, semaphore, permits, mark) {
            let job = Job::Mend(Arc::clone(semaphore), Arc::clone(requests), request_id);
            let _ = self.jobs.send(job);
        }
    }

    pub(crate) fn log_lost(&self, name: &Name, loss_message: impl FnOnce() -> String) {
        self.callbacks.log_lost(name, loss_message);
    }

    /// Queues the `on_lost` callbacks of a hold. The call does not wait for the callbacks.
    pub(crate) fn queue_loss_callbacks(
        &self,
        name: &Name,
        reason: LostReason,
        callbacks: Vec<LossCallback>,
    ) {
        for callback in callbacks {
            self.queue_callback(name, move || callback(reason));
        }
    }

    /// Queues a user's callback of this name. The call does not wait for the callback.
    pub(crate) fn queue_callback(&self, name: &Name, callback: impl FnOnce() + Send + 'static) {
        let (name, client) = (name.clone(), self.callbacks.client());
        self.callbacks.run(Box::new(move || callbacks::call(&name, &client, callback)));
    }

    /// Runs a user's code on the callbacks' thread. The call does not wait for the user's code.
    pub(crate) fn queue_call(&self, call: impl FnOnce() + Send + 'static) {
        self.callbacks.run(Box::new(call));
    }

    /// Logs an error that no caller gets. A transient error is logged only at debug level: the
    /// client tries again, and reports an outage in one line.
    pub(crate) fn log_error(&self, error: Error) {
        let level = if error.is_transient() { Level::Debug } else { Level::Warn };
        self.log(level, || format!("{error:#}"));
    }

    /// Logs a panic in this library's code. The panic ends no thread.
    pub(crate) fn log_panic(&self) {
        self.log(Level::Error, || "a background job panicked; please report it".to_owned());
    }

    /// Returns a function to call when the server's health changes.
    pub(crate) fn log_health(&self) -> impl Fn(HealthReport) + Send + Sync + 'static {
        let callbacks = Arc::clone(&self.callbacks);
        move |report| callbacks.log(report.level(), || report.to_string())
    }

    /// Logs a line on the callbacks' thread, because a logger may block, panic or use this library.
    pub(crate) fn log(&self, level: Level, line: impl FnOnce() -> String) {
        self.callbacks.log(level, line);
    }

    pub(crate) fn run(&self) {
        let mut fired = Vec::new();
        while self.wait(&mut fired) {
            let mut renewals = Vec::new();
            let mut lanes = Vec::new();
            for item in fired.drain(..) {
                match item {
                    WheelItem::Task(task) => {
                        let due = || task.upgrade().and_then(Task::due);
                        match catch_unwind(AssertUnwindSafe(due)) {
                            Ok(renewal) => renewals.extend(renewal),
                            Err(_) => {
                                // Call the task again later. If the task were dropped, no thread
                                // would renew its hold or report the hold's loss.
                                self.log_panic();
                                self.insert(
                                    clock::now() + RETRY_AFTER_PANIC,
                                    WheelItem::Task(task),
                                );
                            }
                        }
                    }
                    WheelItem::Lane(lane) => match lane.check(READ_REPLIES_AFTER) {
                        LaneCheck::Service => lanes.push(lane),
                        LaneCheck::Again => self.service(&lane),
                        LaneCheck::Done => {}
                    },
                }
            }
            self.callbacks.start_if_refused();
            if !renewals.is_empty() {
                let _ = self.jobs.send(Job::Renew(renewals));
            }
            if !lanes.is_empty() {
                let _ = self.jobs.send(Job::Service(lanes));
            }
        }
        // No job comes after this one. All earlier cleanups are already in the queue.
        let _ = self.jobs.send(Job::End);
    }

    /// Sleeps until an entry is due, or for [`LONGEST_SLEEP`]. Returns `false` if the client ends.
    fn wait(&self, fired: &mut Vec<WheelItem>) -> bool {
        let mut timer = self.timer.lock();
        if timer.shut_down {
            return false;
        }
        let now = clock::now() / TICK;
        timer.wheel.advance(now, fired);
        if fired.is_empty() {
            let latest = now + LONGEST_SLEEP;
            let next = timer.wheel.next_due(latest).unwrap_or(latest);
            timer.wakes_at = next;
            let sleep = Duration::from_nanos((next * TICK).saturating_sub(clock::now()));
            self.changed.wait_for(&mut timer, sleep);
            timer.wheel.advance(clock::now() / TICK, fired);
        }
        timer.wakes_at = 0;
        !timer.shut_down
    }

    fn insert(&self, due: u64, item: WheelItem) -> WheelKey {
        let mut timer = self.timer.lock();
        // The tick is rounded up, so that no entry fires before its time.
        let due = due.div_ceil(TICK);
        let key = timer.wheel.insert(due, item);
        let early = due < timer.wakes_at;
        drop(timer);
        if early {
            self.changed.notify_one();
        }
        key
    }

    /// Ends the watchdog's thread and then the renewer's thread. The renewer first sends the
    /// remaining cleanups once more.
    pub(crate) fn shut_down(&self) {
        self.timer.lock().shut_down = true;
        self.changed.notify_one();
        self.callbacks.close();
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("alarms", &self.timer.lock().wheel.len()).finish()
    }
}
