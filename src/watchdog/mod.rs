//! How a hold stays alive, and how its end is noticed: one timing wheel and its thread.
//!
//! A client has three threads, however many holds there are, `redlatch-watch`,
//! `redlatch-renew` and `redlatch-listen`; a fourth, `redlatch-calls`, while there is
//! something to be called or logged; with Sentinels also `redlatch-follow`. In a cluster a
//! renewer and a subscriber for each server that is used, and `redlatch-errand`, which gives the
//! renewers their work.
//!
//! The *watchdog* waits for the wheel and never does I/O, so that a lost hold is told at once even
//! while the server does not answer. The *renewer* (`core/renewer.rs`) sends what goes on in the
//! background: renewals, orphans (what is left to be done for nobody); and it reads replies that
//! nobody waits for. The *callbacks* thread runs `on_lost` and writes log lines. The *subscriber*
//! (`pubsub/`) hears messages.

mod callbacks;
mod orphan;
pub(crate) mod renewal;
mod wheel;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::Level;

use self::callbacks::Callbacks;
pub(crate) use self::orphan::{Debtor, Orphan};
use self::wheel::{Key, Wheel};
use crate::connection::{Command, Lane, News, Node, Outcome};
use crate::error::{Error, LostReason};
use crate::protocol::Owner;
use crate::script::renewal::{Held, Longer, RenewalKind};
use crate::sync::{Condvar, Mutex, clock};

/// One millisecond.
const TICK: u64 = 1_000_000;
const BUCKETS: usize = 1_024;
/// The wheel's thread sleeps at most this long: its timer stands still while the machine is
/// suspended, the leases do not.
const LONGEST_SLEEP: u64 = 1_000;
/// A reply that nobody waits for is read after this.
const LOOK_AFTER: u64 = 20_000_000;
/// A task that panicked is called again after this.
const AFTER_A_PANIC: u64 = 100_000_000;

/// Something that is to be done at a time. The watchdog knows when, and its task what.
pub(crate) trait Task: Send + Sync {
    /// Its time has come. No I/O here. `Some`: a renewal to send.
    fn due(self: Arc<Self>) -> Option<Renewal>;
}

/// A hold whose renewal is due.
pub(crate) struct Renewal {
    pub(crate) kind: RenewalKind,
    pub(crate) key: Arc<str>,
    pub(crate) owner: Owner,
    /// What its lease is to be raised to. `None`: the server is only asked whether it knows the
    /// hold.
    pub(crate) lease: Option<Duration>,
    /// What becomes of a lease that is longer.
    pub(crate) longer: Longer,
    /// It has less time than others.
    pub(crate) urgent: bool,
    /// Until when it is certainly held if this fails.
    pub(crate) until: u64,
    pub(crate) renewed: Box<OnRenewed>,
}

/// Hears the server's answer to a renewal that was sent at a time, and whether it was sent twice.
type OnRenewed = dyn Fn(u64, Result<Held, &Arc<str>>, bool) + Send + Sync;

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Renewal({:?}, {:?})", self.key, self.lease)
    }
}

/// What goes off when its time comes.
enum Item {
    /// Something is due about the hold of a name.
    Task(Weak<dyn Task>),
    /// Something is to be sent regularly.
    Chore(Weak<dyn Chore>),
    /// A lane may have replies to read.
    Lane(Arc<Lane>),
}

/// Work for the renewer.
#[derive(Debug)]
pub(crate) enum Job {
    Renew(Vec<Renewal>),
    /// Whatever is held: the server may not know of it any more.
    RenewAll,
    Adopt(Orphan),
    /// A connection was opened.
    Connected,
    Chores(Vec<Arc<dyn Chore>>),
    /// There is something for the subscriber of this server to look at.
    TellSubscriber(Arc<Node>),
    /// In a cluster: these slots, in their order, have another server.
    Moved(Vec<u16>),
    Look(Vec<Arc<Lane>>),
    /// An outage of this server may be over.
    LookAt(Arc<Node>),
    /// The client has ended; there is no job after this.
    End,
}

/// Something that is sent regularly, for as long as anybody needs it.
pub(crate) trait Chore: fmt::Debug + Send + Sync {
    /// What to send now. `None`: nothing any more, until it is scheduled again.
    fn command(&self) -> Option<Command>;

    /// What became of it, and after how long it is due again.
    fn done(&self, outcome: Outcome) -> Duration;
}

/// The wheel, and the way to the two other threads.
pub(crate) struct Watchdog {
    timer: Mutex<Timer>,
    changed: Condvar,
    jobs: Sender<Job>,
    callbacks: Arc<Callbacks>,
}

struct Timer {
    wheel: Wheel<Item>,
    /// The tick at which the thread wakes up by itself.
    wakes_at: u64,
    shut_down: bool,
}

/// An entry of the wheel.
#[derive(Debug)]
pub(crate) struct Alarm {
    key: Key,
    due: u64,
}

impl Alarm {
    /// When it goes off, by [`clock`].
    pub(crate) fn due(&self) -> u64 {
        self.due
    }
}

impl Watchdog {
    /// `alive` is kept by every thread that is started, until it ends.
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

    /// Calls a task at `due`, by [`clock`], or up to a tick later.
    pub(crate) fn alarm(&self, due: u64, task: Weak<dyn Task>) -> Alarm {
        Alarm { key: self.insert(due, Item::Task(task)), due }
    }

    pub(crate) fn cancel(&self, alarm: Alarm) {
        let cancelled = self.timer.lock().wheel.cancel(alarm.key);
        drop(cancelled);
    }

    /// Has a lane's replies read before long.
    pub(crate) fn look_after(&self, lane: &Arc<Lane>) {
        self.insert(clock::now() + LOOK_AFTER, Item::Lane(Arc::clone(lane)));
    }

    /// What to call when the server may have lost its data: renews or asks for all holds now, so
    /// that those that are gone are told.
    pub(crate) fn renew_all(&self) -> impl Fn() + Send + Sync + 'static {
        let jobs = self.jobs.clone();
        // After the end nobody takes it, and nothing is held.
        move || drop(jobs.send(Job::RenewAll))
    }

    /// As what [`renew_all`](Self::renew_all) calls, for these alone.
    pub(crate) fn renew_now(&self, renewals: Vec<Renewal>) {
        // The other end goes away at the end of the client only.
        let _ = self.jobs.send(Job::Renew(renewals));
    }

    /// What to call when slots of a cluster have another server: what is held there is asked for.
    pub(crate) fn moved(&self) -> impl Fn(&[u16]) + Send + Sync + 'static {
        let jobs = self.jobs.clone();
        move |slots| drop(jobs.send(Job::Moved(slots.to_vec())))
    }

    /// What to call when a connection was opened: what waits to be sent again is sent now.
    pub(crate) fn connected(&self) -> impl Fn() + Send + Sync + 'static {
        let jobs = self.jobs.clone();
        move || drop(jobs.send(Job::Connected))
    }

    /// Does a chore after a pause, and from then on whenever it wants.
    pub(crate) fn schedule(&self, chore: &Arc<dyn Chore>, pause: Duration) {
        let due = clock::now().saturating_add(clock::nanos(pause));
        self.insert(due, Item::Chore(Arc::downgrade(chore)));
    }

    /// Has the subscriber of a server woken from its read.
    pub(crate) fn tell_subscriber(&self, node: Arc<Node>) {
        // The other end goes away at the end of the client only.
        let _ = self.jobs.send(Job::TellSubscriber(node));
    }

    /// Has a connection opened to a server: its outage may be over.
    pub(crate) fn look_at(&self, node: Arc<Node>) {
        // The other end goes away at the end of the client only.
        let _ = self.jobs.send(Job::LookAt(node));
    }

    /// Sends an orphan now, and again with back-off until it is done.
    pub(crate) fn adopt(&self, orphan: Orphan) {
        // One look and one job, or it would come behind the last one and be lost without a word.
        let timer = self.timer.lock();
        if timer.shut_down {
            drop(timer);
            orphan.give_up(self);
            return;
        }
        // It does not block, and the other end goes away after the end only.
        let _ = self.jobs.send(Job::Adopt(orphan));
    }

    /// Logs that a hold was lost.
    pub(crate) fn tell_lost(&self, name: &Arc<str>, obituary: impl FnOnce() -> String) {
        self.callbacks.log_lost(name, obituary);
    }

    /// Calls who wants to know that a hold was lost. Does not wait for them.
    pub(crate) fn call_back(
        &self,
        name: &Arc<str>,
        reason: LostReason,
        callbacks: Vec<Box<dyn FnOnce(LostReason) + Send>>,
    ) {
        for callback in callbacks {
            let (name, client) = (Arc::clone(name), self.callbacks.client());
            let call = move || callbacks::call(&name, &client, || callback(reason));
            self.callbacks.run(Box::new(call));
        }
    }

    /// Logs an error that has no caller to go to. What passes is tried again, and an outage is told
    /// by itself: a line for each thing that was dropped meanwhile says no more.
    pub(crate) fn tell(&self, error: Error) {
        let level = if error.is_transient() { Level::Debug } else { Level::Warn };
        self.log(level, || format!("{error:#}"));
    }

    /// Logs that something of our own panicked, which ends none of the threads.
    pub(crate) fn tell_panic(&self) {
        self.log(Level::Error, || "a background job panicked; please report it".to_owned());
    }

    /// What to call when the server's health has news.
    pub(crate) fn log_news(&self) -> impl Fn(News) + Send + Sync + 'static {
        let callbacks = Arc::clone(&self.callbacks);
        move |news| callbacks.log(news.level(), || news.to_string())
    }

    /// Logs a line, not on the caller's thread: a logger may block, panic or use this library.
    pub(crate) fn log(&self, level: Level, line: impl FnOnce() -> String) {
        self.callbacks.log(level, line);
    }

    /// The watchdog thread's whole life.
    pub(crate) fn run(&self) {
        let mut fired = Vec::new();
        while self.wait(&mut fired) {
            let mut renewals = Vec::new();
            let mut chores = Vec::new();
            let mut lanes = Vec::new();
            for item in fired.drain(..) {
                match item {
                    Item::Task(task) => {
                        let due = || task.upgrade().and_then(Task::due);
                        match catch_unwind(AssertUnwindSafe(due)) {
                            Ok(renewal) => renewals.extend(renewal),
                            Err(_) => {
                                // Nobody else would renew what it is about, or tell its loss.
                                self.tell_panic();
                                self.insert(clock::now() + AFTER_A_PANIC, Item::Task(task));
                            }
                        }
                    }
                    Item::Chore(chore) => chores.extend(chore.upgrade()),
                    Item::Lane(lane) => lanes.push(lane),
                }
            }
            // The other end goes away after this thread only.
            if !renewals.is_empty() {
                let _ = self.jobs.send(Job::Renew(renewals));
            }
            if !chores.is_empty() {
                let _ = self.jobs.send(Job::Chores(chores));
            }
            if !lanes.is_empty() {
                let _ = self.jobs.send(Job::Look(lanes));
            }
        }
        // By this thread, behind all it has sent. Orphans come before the end that it has seen.
        let _ = self.jobs.send(Job::End);
    }

    /// Sleeps until something goes off. `false`: shut down.
    fn wait(&self, fired: &mut Vec<Item>) -> bool {
        let mut timer = self.timer.lock();
        loop {
            if timer.shut_down {
                return false;
            }
            let now = clock::now() / TICK;
            timer.wheel.advance(now, fired);
            if !fired.is_empty() {
                timer.wakes_at = 0;
                return true;
            }
            let latest = now + LONGEST_SLEEP;
            let next = timer.wheel.next_due(latest).unwrap_or(latest);
            timer.wakes_at = next;
            let sleep = Duration::from_nanos((next * TICK).saturating_sub(clock::now()));
            (timer, _) = self.changed.wait_for(timer, sleep);
        }
    }

    fn insert(&self, due: u64, item: Item) -> Key {
        let mut timer = self.timer.lock();
        // Up, so that what goes off is really due.
        let due = due.div_ceil(TICK);
        let key = timer.wheel.insert(due, item);
        let early = due < timer.wakes_at;
        drop(timer);
        if early {
            self.changed.notify_one();
        }
        key
    }

    /// Ends the watchdog's thread, and then the renewer's, which sends once more what is left.
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
