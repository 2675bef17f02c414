//! A waiter's entry on a condition. The thread makes its entry while it still has the lock. The
//! entry exists until the thread is notified or gives up. A notification exists until the notified
//! thread has taken the lock again and released it.
//!
//! ```text
//! listen (lock held) -> enqueue: one script (lock held) -> leave the lock -> sleep
//! woken by: the message      -> notified
//!           a new subscription, a poll -> ask the server: notified if the entry is gone
//!           the end of the wait        -> remove the entry: notified if it was already gone
//! notified -> take the lock again -> keep-alives until the lock is left -> done
//! ```
//!
//! If a waiter's entry is gone, the waiter is notified, even if it received no message. A message
//! only wakes the thread sooner. So no notification is lost if it comes between the release and the
//! sleep, or if the subscriber loses its connection.
//!
//! An unused notification is passed on to the next waiter. The server keeps a record of each
//! notified waiter until the waiter's thread has taken the lock again and released it. If the
//! thread never does this, the next waiter gets the notification: either the client asks the server
//! to pass it on (`done`), or the keep-alives of the record end.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redlatch_client::pubsub::Subscription;
use redlatch_client::sync::atomic::{AtomicBool, Ordering};
use redlatch_client::sync::{Mutex, Waker, clock, is_forked, jitter};
use redlatch_client::{Command, Outcome, ReplyReceiver, was_cut};

use crate::error::{Error, ErrorKind};
use crate::hold::Hold;
use crate::lease::{Cleanup, KeepAlive};
use crate::name::Name;
use crate::runtime::{Core, Member, Message, Recipient, Registered};
use crate::scripts::condition::{ConditionScripts, NotificationUse, WaiterState, done};
use crate::scripts::{ConditionKeys, Owner, Trouble};
use crate::site::Site;
use crate::waiting::{Endurance, Sleeper, Wait, await_confirmation};

/// The interval at which a waiter without a message asks the server. If a notified waiter dies, the
/// next waiter gets the notification within this interval.
const POLL: Duration = Duration::from_secs(1);
/// The interval at which the client sends a keep-alive for the notified waiters that have not yet
/// taken and released the lock again. Without keep-alives, a record is valid for three such
/// intervals (`ALIVE_FOR` in `waiters.lua`).
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Notified,
    Over,
    Cancelled,
}

/// A waiter's entry on a condition.
pub(super) struct ConditionEntry<'a> {
    site: &'a Arc<Site>,
    notice: Arc<Notice>,
    own: Subscription,
    /// The version of the channel `own` up to which the client has missed no message.
    seen: u64,
    enrolled: Enrolled,
    /// Whether the server may have the entry, or the record of the entry's notification.
    may_exist: bool,
}

impl<'a> ConditionEntry<'a> {
    pub(super) fn new(site: &'a Arc<Site>, keys: &Arc<ConditionKeys>) -> Self {
        let core = &site.core;
        let waiter = core.id.next_owner();
        let notice = Arc::new(Notice {
            database: core.database(),
            waiting: keys.waiting.as_str().into(),
            waker: Waker::current(),
            notified: AtomicBool::new(false),
        });
        // The waiter is registered in this process before Redis has its entry, so no message comes
        // too early.
        let registered = core.recipients.register(waiter.number(), Arc::clone(&notice));
        let enrolled = Enrolled {
            site: Arc::clone(site),
            keys: Arc::clone(keys),
            waiter,
            _registered: registered,
        };
        let own = core.pubsub.listen_to_own(&keys.waiting);
        Self { site, notice, own, seen: 0, enrolled, may_exist: false }
    }

    /// Waits until the server has confirmed this client's subscription. The caller must do this
    /// before `enqueue`, because a notification skips waiters whose client does not listen. Returns
    /// `false` if the wait ended before the confirmation.
    pub(super) fn listen(&mut self, wait: &Wait<'_>) -> Result<bool, Error> {
        let confirmed = await_confirmation(&self.own, &self.sleeper(wait))?;
        self.seen = self.own.version();
        Ok(confirmed)
    }

    /// Adds the entry to the condition's waiters. Returns `false` if the owner no longer has the
    /// lock.
    pub(super) fn enqueue(&mut self, owner: &Owner) -> Result<bool, Trouble> {
        let Site { route, name, .. } = &**self.site;
        let enqueued = self.enrolled.scripts().wait(route, name, owner, &self.enrolled.waiter);
        self.may_exist = match &enqueued {
            Ok(is_enqueued) => *is_enqueued,
            // If the server has added the entry, `drop` removes the entry. If the server adds and
            // notifies the entry later, `pass_on` passes the notification on.
            Err(trouble) => matches!(trouble, Trouble::Unknown(_) | Trouble::Forgotten(_)),
        };
        enqueued
    }

    /// Sleeps until a notification or the end of the wait.
    pub(super) fn sleep(&mut self, wait: &Wait<'_>) -> Result<Ended, Error> {
        let (core, name) = (&self.site.core, &self.site.name);
        let mut poll_at = clock::now().saturating_add(Self::poll_interval());
        let mut endurance = Endurance::new([&core.config]);
        loop {
            if self.notice.notified.load(Ordering::Acquire) {
                return Ok(Ended::Notified);
            }
            let ended = match wait.check(core, name) {
                Ok(()) => wait.is_over().then_some(Ended::Over),
                Err(error) if error.kind() == ErrorKind::Cancelled => Some(Ended::Cancelled),
                Err(error) => return Err(error),
            };
            if let Some(ended) = ended {
                match self.look(true) {
                    // From here on, no thread can notify this waiter.
                    Ok(WaiterState::Waits) => {
                        self.may_exist = false;
                        return Ok(ended);
                    }
                    // Another thread has just notified this waiter, so the wait did not time out.
                    Ok(WaiterState::Notified) => return Ok(Ended::Notified),
                    // The caller must get the lock back, even if its time limit has passed or it
                    // was cancelled. During an outage, the client repeats this request, as it
                    // repeats the request for the lock.
                    Err(error) => {
                        let limit = core.config.failover_timeout;
                        let pause = endurance.failed(&error, limit).ok_or(error)?;
                        let until = Wait::FOREVER.end_of_sleep(pause);
                        let notified = || self.notice.notified.load(Ordering::Acquire);
                        self.sleeper(&Wait::FOREVER).sleep_until(until, notified)?;
                        continue;
                    }
                }
            }
            let version = self.own.version();
            let version_changed = self.seen != version && self.own.is_confirmed();
            if version_changed || clock::now() >= poll_at {
                self.seen = version;
                let limited = wait.limits(core);
                let (looked, was_cut) = (self.look(false), was_cut());
                drop(limited);
                match looked {
                    Ok(WaiterState::Notified) => {
                        if !self.notice.notified.load(Ordering::Acquire) {
                            // The message about the notification is on its way, or was lost.
                            core.pubsub.suspect(&self.enrolled.keys.waiting);
                        }
                        return Ok(Ended::Notified);
                    }
                    Ok(WaiterState::Waits) => {
                        endurance.answered(Instant::now());
                        poll_at = clock::now().saturating_add(Self::poll_interval());
                    }
                    // The wait has ended. The next pass of the loop finds the reason.
                    Err(_) if was_cut => continue,
                    // The reply to the next request shows whether the entry still exists.
                    Err(error) => {
                        let limit = core.config.failover_timeout;
                        let pause = endurance.failed(&error, limit).ok_or(error)?;
                        poll_at = clock::now().saturating_add(clock::nanos(pause));
                    }
                }
            }
            let rest = Duration::from_nanos(poll_at.saturating_sub(clock::now()));
            let sleeper = self.sleeper(wait);
            let _waking = sleeper.woken_by(&self.own);
            // If the wait has ended, the next pass of the loop finds the reason.
            let _ended = sleeper.sleep_until(wait.end_of_sleep(rest), || {
                self.notice.notified.load(Ordering::Acquire)
                    || self.own.has_news_since(Some(version))
            });
        }
    }

    fn sleeper<'s>(&'s self, wait: &'s Wait<'s>) -> Sleeper<'s> {
        let Site { core, name, .. } = &**self.site;
        Sleeper::new((core, name), self.notice.waker.clone(), wait)
    }

    /// Replaces the entry by its notification, which the thread keeps while it takes the lock
    /// again.
    pub(super) fn into_notified(mut self) -> Notified {
        self.may_exist = false;
        let enrolled = self.enrolled.clone();
        let keep_alives = KeepAlives::of(&enrolled);
        let hold = keep_alives.add(enrolled.waiter);
        Notified { enrolled, keep_alives, hold }
    }

    fn look(&self, leaves: bool) -> Result<WaiterState, Error> {
        let looked =
            self.enrolled.scripts().waiter_state(&self.site.route, &self.enrolled.waiter, leaves);
        looked.map_err(|trouble| trouble.into_error().of(&self.site.name))
    }

    fn poll_interval() -> u64 {
        clock::nanos(POLL.mul_f64(0.8 + 0.4 * jitter(clock::now())))
    }
}

impl Drop for ConditionEntry<'_> {
    fn drop(&mut self) {
        if self.may_exist && !is_forked() {
            self.enrolled.done(NotificationUse::PassedOn);
        }
    }
}

/// The identity of a waiter: its condition, and its owner at the server.
#[derive(Clone)]
struct Enrolled {
    site: Arc<Site>,
    keys: Arc<ConditionKeys>,
    waiter: Owner,
    /// Keeps the waiter registered until its notification is used. Otherwise a late message would
    /// find no recipient, and `pass_on` would pass the notification on.
    _registered: Arc<Registered>,
}

impl Enrolled {
    fn scripts(&self) -> ConditionScripts<'_> {
        ConditionScripts { keys: &self.keys, database: self.site.core.database() }
    }

    fn done_command(&self, usage: NotificationUse) -> Command {
        self.scripts().done_command(&self.waiter.text(), usage)
    }

    /// Posts the request that ends the notification, without a wait for the reply.
    fn done(&self, usage: NotificationUse) {
        let command = self.done_command(usage);
        let done = Done { site: Arc::clone(&self.site), command: command.clone() };
        self.site.core.post(&self.site.route, command, Arc::new(done));
    }
}

/// The recipient of the messages to a waiter's owner.
struct Notice {
    database: i64,
    waiting: Box<str>,
    waker: Waker,
    notified: AtomicBool,
}

impl Recipient for Arc<Notice> {
    fn receive(&self, message: &Message<'_>) -> bool {
        let Message::Notified { database, waiting } = message else { return true };
        if (*database, *waiting) == (self.database, &*self.waiting) {
            self.notified.store(true, Ordering::Release);
            self.waker.wake();
        }
        true
    }
}

/// A notification, which exists until the notified thread has taken the lock again and released it.
/// If a notification is dropped before the thread has the lock, or after the lock was lost, the
/// next waiter gets the notification.
pub(super) struct Notified {
    enrolled: Enrolled,
    keep_alives: Arc<KeepAlives>,
    hold: HoldAfterWait,
}

/// The hold under which a notified waiter has the lock again. Empty until the waiter has the lock.
type HoldAfterWait = Arc<OnceLock<Arc<Hold>>>;

impl Notified {
    /// Records that the thread has the lock again, with this hold.
    pub(super) fn set_hold(&self, hold: &Arc<Hold>) {
        let _ = self.hold.set(Arc::clone(hold));
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let Self { enrolled, keep_alives, hold } = self;
        if is_forked() {
            return;
        }
        keep_alives.remove(enrolled.waiter);
        match hold.get() {
            // The request is sent in the background, because this drop may run on the watchdog's
            // thread, which must do no I/O.
            Some(hold) if hold.lost().is_some() => {
                let command = enrolled.done_command(NotificationUse::PassedOn);
                let Site { core, name, .. } = &*enrolled.site;
                core.watchdog.clean_up(Cleanup::unclaimed(name, command));
            }
            Some(_) => enrolled.done(NotificationUse::Used),
            None => enrolled.done(NotificationUse::PassedOn),
        }
    }
}

/// The keep-alives of this process's notified waiters on one condition. One request sends all of
/// them.
struct KeepAlives {
    site: Arc<Site>,
    keys: Arc<ConditionKeys>,
    name: Name,
    notifications: Mutex<Notifications>,
}

#[derive(Default)]
struct Notifications {
    waiters: BTreeMap<u64, (Owner, HoldAfterWait)>,
    /// Whether the next keep-alive is scheduled.
    is_due: bool,
}

impl KeepAlives {
    fn of(Enrolled { site, keys, .. }: &Enrolled) -> Arc<Self> {
        site.core.members.of::<Self>().find(&keys.notified, |name| Self {
            site: Arc::clone(site),
            keys: Arc::clone(keys),
            name: name.into(),
            notifications: Mutex::default(),
        })
    }

    fn add(self: &Arc<Self>, waiter: Owner) -> HoldAfterWait {
        let hold = HoldAfterWait::default();
        let mut notifications = self.notifications.lock();
        notifications.waiters.insert(waiter.number(), (waiter, Arc::clone(&hold)));
        let is_first = !std::mem::replace(&mut notifications.is_due, true);
        drop(notifications);
        if is_first {
            let keep_alive: Arc<dyn KeepAlive> = Arc::clone(self) as _;
            self.site.core.watchdog.schedule(&self.name, &keep_alive, KEEP_ALIVE_INTERVAL);
        }
        hold
    }

    fn remove(&self, waiter: Owner) {
        let ended = self.notifications.lock().waiters.remove(&waiter.number());
        drop(ended);
    }
}

impl KeepAlive for KeepAlives {
    fn command(&self) -> Option<Command> {
        let mut waiters: Vec<_> = self.notifications.lock().waiters.values().cloned().collect();
        // If a thread ends while it holds the lock, its keep-alives continue until its hold ends.
        waiters.retain(|(waiter, after_wait)| {
            let lives = after_wait.get().is_none_or(|hold| hold.is_held_at(clock::now()));
            if !lives {
                self.remove(*waiter);
            }
            lives
        });
        let mut notifications = self.notifications.lock();
        // Waiters that were notified during the request are in the next request.
        notifications.is_due = !notifications.waiters.is_empty();
        if !notifications.is_due {
            return None;
        }
        drop(notifications);
        let waiters: Vec<_> = waiters.iter().map(|(waiter, _)| *waiter).collect();
        let scripts = ConditionScripts { keys: &self.keys, database: self.site.core.database() };
        Some(scripts.keep_alive_command(&waiters))
    }

    fn handle_outcome(&self, _outcome: Outcome) -> Duration {
        KEEP_ALIVE_INTERVAL
    }
}

impl Member for KeepAlives {
    fn name(&self) -> &Name {
        &self.name
    }

    /// Does nothing: each waiter notices the end of the client by itself.
    fn end(self: Arc<Self>) {}
}

impl Drop for KeepAlives {
    fn drop(&mut self) {
        self.site.core.members.of::<Self>().forget(&self.name);
    }
}

/// Receives the reply to the request that ends a notification.
struct Done {
    site: Arc<Site>,
    command: Command,
}

impl ReplyReceiver for Done {
    fn receive(&self, outcome: Outcome) {
        if done(outcome).is_err() {
            // If the cleanup fails, too, the server drops a record when its keep-alives end. The
            // entry of a waiter that no longer waits stays until a notification names it. Then
            // `pass_on` removes the entry.
            let done = Cleanup::unclaimed(&self.site.name, self.command.clone());
            self.site.core.watchdog.clean_up(done);
        }
    }
}

/// Passes a notification on to the next waiter, because the notified owner of this client no longer
/// waits: its thread has stopped waiting, or the server ran the owner's request late.
pub(crate) fn pass_on(core: &Core, owner: u64, database: i64, waiting: &str) {
    let Some(keys) = ConditionKeys::of(waiting) else { return };
    if database != core.database() || core.is_shut_down() {
        return;
    }
    let waiter = format!("{}:{owner}", core.id.as_str());
    let scripts = ConditionScripts { keys: &keys, database };
    let command = scripts.done_command(waiter.as_bytes(), NotificationUse::PassedOn);
    core.watchdog.clean_up(Cleanup::unclaimed(&waiting.into(), command));
}
