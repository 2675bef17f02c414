//! The watch over a hold: its alarm on the timing wheel, its renewals, and the detection of its
//! end. `lease/schedule.rs` decides when the alarm goes off and when a renewal is due.
//!
//! A [`Leaseholder`] knows which threads want its hold, and handles its loss. This file has the
//! code that locks and permits share.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redlatch_client::pubsub::Tracked;
use redlatch_client::sync::{Mutex, clock};

use super::hold::Hold;
use crate::config::Config;
use crate::error::LostReason;
use crate::lease::schedule::{RAISE_AFTER, RenewalProgress, RenewalState, TRACK_AFTER};
use crate::lease::{Alarm, Renewal, RenewalOutcome, Task};
use crate::name::Name;
use crate::observe::Event;
use crate::runtime::{Core, Count};
use crate::scripts::renewal::{Longer, RenewalKind, StillHeld};

/// An object whose hold the watchdog watches: a lock's site, with the hold in its seat, or a permit
/// lease.
pub(crate) trait Leaseholder: Send + Sync + Sized + 'static {
    const KIND: RenewalKind;

    fn core(&self) -> &Core;

    /// Returns the key of the hold. Renewals name this key, and the server tracks it.
    fn key(&self) -> &Arc<str>;

    fn name(&self) -> &Name;

    /// Returns the entry of the timing wheel for the hold. A thread that has this mutex must not
    /// lock the leaseholder's own mutex.
    fn alarm(&self) -> &Mutex<Option<Alarm>>;

    /// Calls `f` with the hold, under the leaseholder's own mutex. Returns `None` if there is no
    /// hold.
    fn with_hold<R>(&self, f: impl FnOnce(Renewing<'_>) -> R) -> Option<R>;

    /// Whether another process may have asked for a longer lease of the hold. If so, no renewal may
    /// cut the hold's lease.
    fn may_be_longer(&self) -> bool {
        false
    }

    /// Whether a message will probably grant the next hold soon.
    fn expects_hold(&self, _now: u64) -> bool {
        false
    }

    /// Returns the object that asks the server about the hold after a change of the tracked key.
    fn query_on_change(self: &Arc<Self>) -> Weak<dyn Tracked>;

    /// Handles the loss of the hold, and reports the loss to the threads that have the hold.
    fn lose_hold(self: &Arc<Self>, hold: &Arc<Hold>, reason: LostReason);

    /// Sets the alarm for the next action on the hold.
    fn arm(self: &Arc<Self>) {
        if let Some(at) = self.with_hold(|renewing| renewing.next(&**self)) {
            self.arm_at(at);
        }
    }

    /// Sets the alarm to `at`, unless it is set to an earlier time. Only a late alarm does harm,
    /// because an alarm that goes off too early sets the next alarm.
    fn arm_at(self: &Arc<Self>, at: u64) {
        let mut alarm = self.alarm().lock();
        if alarm.as_ref().is_none_or(|alarm| alarm.due() > at) {
            let task: Weak<dyn Task> = Arc::<Self>::downgrade(self);
            let watchdog = &self.core().watchdog;
            if let Some(old) = alarm.replace(watchdog.alarm(at, task)) {
                watchdog.cancel(old);
            }
        }
    }

    /// Makes the server track the hold's key, if the hold has lasted for long enough.
    fn track(self: &Arc<Self>, now: u64) {
        let begins = self.with_hold(|renewing| {
            renewing.tracked_from(&**self) <= now
                && !renewing.hold.tracked.swap(true, Ordering::Relaxed)
        });
        if begins == Some(true) {
            self.core().pubsub.track(self.key(), self.query_on_change());
        }
    }

    /// Makes the lease older by this number of nanoseconds. Returns the renewal that is then due.
    #[cfg(feature = "in-memory")]
    fn age(self: &Arc<Self>, by: u64) -> Option<Renewal> {
        self.with_hold(|renewing| renewing.hold.age(by))?;
        Task::due(Arc::clone(self))
    }

    /// Returns a renewal before it is due. If the hold needs no renewal, or one is on its way, the
    /// returned renewal only asks whether the server has the hold.
    fn early_renewal(self: &Arc<Self>) -> Option<Renewal> {
        let now = clock::now();
        let (hold, lease) = self.with_hold(|renewing| {
            let lease = renewing.state.next(&self.core().config, now).lease;
            (Arc::clone(&renewing.hold), renewing.record_sent(lease, now))
        })?;
        Some(self.renewal(hold, lease))
    }

    fn renewal(self: &Arc<Self>, hold: Arc<Hold>, lease: Option<Duration>) -> Renewal {
        let (kind, key, owner) = (Self::KIND, Arc::clone(self.key()), hold.owner);
        let (is_raise, deadline) = (hold.is_to_be_raised(), hold.deadline());
        // `certain` is computed before `longer`, because `longer` may make this renewal a cut.
        let certain = lease.map_or(Duration::ZERO, |lease| hold.certain_part(lease));
        let keeps_longer = lease.is_none() || self.may_be_longer();
        let longer = if keeps_longer { Longer::Kept } else { hold.next_cut() };
        let (itself, pubsub, number) = (Arc::clone(self), &self.core().pubsub, owner.number());
        let asks_if_wanted =
            hold.looks(|| pubsub.hear_own(self.key(), number, self.query_on_change()));
        let renewed = Box::new(move |sent_at, renewed: RenewalOutcome<'_>, resent| {
            if asks_if_wanted && let Ok((_, is_wanted)) = renewed {
                itself.core().members.told_wanted(itself.key(), number, is_wanted, sent_at);
            }
            let renewed = renewed.map(|(held, _)| held);
            // A renewal without a lease only asks whether the server still has the hold. Only the
            // answer "no" matters, and the renewer repeats the question if it failed.
            if lease.is_none() && renewed != Ok(StillHeld::No) {
                return;
            }
            hold.cut_answered(longer, renewed.map_err(drop), resent);
            itself.renewed(&hold, sent_at, certain, renewed);
        });
        Renewal { kind, key, owner, lease, longer, is_raise, deadline, renewed, asks_if_wanted }
    }

    /// Handles the server's answer to a renewal that was sent at `sent_at`. `certain` is the part
    /// of the renewal's lease that no late command can take away.
    fn renewed(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        sent_at: u64,
        certain: Duration,
        renewed: Result<StillHeld, &Arc<str>>,
    ) {
        let (now, left) = (clock::now(), hold.deadline());
        let is_there = self.with_hold(|renewing| {
            // Ignore the reply if its hold has ended.
            if !Arc::ptr_eq(&renewing.hold, hold) {
                return false;
            }
            *renewing.progress = match renewed {
                Ok(held @ (StillHeld::Yes | StillHeld::TooLong)) => {
                    hold.renewed(sent_at, certain);
                    // If the lease is too long, the next renewal comes at once and cuts it.
                    if held == StillHeld::TooLong {
                        RenewalProgress::renew_again(now)
                    } else {
                        RenewalProgress::Done
                    }
                }
                Ok(StillHeld::No) => RenewalProgress::Done,
                Err(cause) => {
                    hold.renewal_failed(cause);
                    renewing.progress.after_failure(hold.is_to_be_raised(), certain, now)
                }
            };
            true
        });
        match is_there {
            Some(true) if renewed == Ok(StillHeld::No) => self.lose_hold(hold, hold.why_gone()),
            Some(true) => {
                self.arm();
                // If `certain` is zero, the renewal only asked whether the server has the hold.
                if !certain.is_zero() {
                    let count = if renewed.is_ok() { Count::Renewed } else { Count::RenewalFailed };
                    self.core().observe_soon(count, || {
                        let (name, what) = (self.name().clone(), (hold.kind(), 1));
                        let left = Duration::from_nanos(left.saturating_sub(now));
                        let cause = renewed.err().cloned();
                        move |it| match &cause {
                            None => it.renewed(&Event::of(&name, what, left, ())),
                            Some(cause) => it.renewal_failed(&Event::of(&name, what, left, cause)),
                        }
                    });
                }
            }
            Some(false) | None => {}
        }
    }
}

impl<T: Leaseholder> Task for T {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        let now = clock::now();
        // An alarm that another thread has replaced may still go off. So this call removes the
        // present alarm only if it is due. If this call removed an alarm that is not due, that
        // alarm would still go off, in addition to the next alarm. Each of these two alarms would
        // then set another alarm, for as long as the leaseholder lives.
        self.alarm().lock().take_if(|alarm| alarm.due() <= now);
        self.track(now);
        let renewing = self.with_hold(|renewing| {
            let hold = Arc::clone(&renewing.hold);
            (hold, renewing.record_due(&self.core().config, now))
        });
        let Some((hold, lease)) = renewing else {
            // Set an alarm for the next hold now. Then the thread that gets the next hold does not
            // have to wake the watchdog for a new alarm.
            if self.expects_hold(now) {
                self.arm_at(now + RAISE_AFTER);
            }
            return None;
        };
        if now >= hold.deadline() {
            self.lose_hold(&hold, LostReason::LeaseExpired);
            return None;
        }
        let looks = hold.look_at.load(Ordering::SeqCst) <= now;
        let renewal = (looks || lease.is_some()).then(|| self.renewal(hold, lease));
        self.arm();
        renewal
    }
}

/// A hold under its leaseholder's mutex, with the state on which its renewal depends.
pub(crate) struct Renewing<'a> {
    pub(crate) hold: Cow<'a, Arc<Hold>>,
    pub(crate) state: RenewalState,
    pub(crate) progress: &'a mut RenewalProgress,
}

impl Renewing<'_> {
    /// Returns the time of the next action: tracking, renewal or the end of the hold.
    pub(crate) fn next(&self, holder: &impl Leaseholder) -> u64 {
        let due = self.state.next(&holder.core().config, clock::now());
        due.at.min(self.tracked_from(holder)).min(self.hold.look_at.load(Ordering::SeqCst))
    }

    /// Returns the time from which the server should track the hold's key. Returns `u64::MAX` if
    /// the server already tracks the key, or cannot track it.
    fn tracked_from(&self, holder: &impl Leaseholder) -> u64 {
        if self.hold.is_tracked() || !holder.core().pubsub.tracks(holder.key()) {
            return u64::MAX;
        }
        self.state.taken_at.saturating_add(TRACK_AFTER)
    }

    /// If a renewal is due, [marks it as sent](Self::record_sent), and returns its lease.
    fn record_due(self, config: &Config, now: u64) -> Option<Duration> {
        let due = self.state.next(config, now);
        self.record_sent(due.lease.filter(|_| due.at <= now), now)
    }

    /// Marks a renewal as sent, and returns its lease, which the caller must send. Returns `None`
    /// if no renewal is needed, or if the hold's deadline has passed.
    pub(crate) fn record_sent(self, lease: Option<Duration>, now: u64) -> Option<Duration> {
        let lease = lease.filter(|_| now < self.hold.deadline())?;
        *self.progress = self.progress.after_sending();
        self.hold.note_lease_request(lease);
        Some(lease)
    }
}
