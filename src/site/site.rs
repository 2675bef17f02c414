//! A site: one name in one client, with the threads that want the lock, the hold and its renewal.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use redlatch_client::Route;
use redlatch_client::pubsub::Tracked;
use redlatch_client::sync::{Mutex, Thread, clock, is_forked};

use super::gate::Gate;
use crate::ask::Asked;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{Hold, Leaseholder, Renewing, Seat, Tenancy};
use crate::lease::{Alarm, Cleanup, Renewal};
use crate::name::Name;
use crate::runtime::{Core, Member};
use crate::scripts::lock::LockScripts;
use crate::scripts::renewal::RenewalKind;
use crate::scripts::{self, Chain, LockKeys, Mode, Trouble};
use crate::snapshot::Held;
use crate::waiting::QueueSite;

/// One name in one client. All handles of the name's re-entrant and fair locks share one site. The
/// name's fenced lock has another site, and its read-write lock has two sites: one for readers, and
/// one for the writer.
pub(crate) struct Site {
    pub(crate) core: Arc<Core>,
    pub(crate) name: Name,
    pub(crate) route: Route,
    pub(crate) gate: Gate,
    /// Whether the site's holds have fencing tokens.
    pub(crate) is_fenced: bool,
    pub(crate) mode: Mode,
    /// The entry of the timing wheel for the hold in the seat.
    alarm: Mutex<Option<Alarm>>,
    /// Whether a guard has ever had an `on_wanted` callback.
    pub(super) has_calls: AtomicBool,
}

const FENCED: &str = "fenced";

impl Asked {
    pub(crate) fn now(site: &Site) -> Self {
        let (forced_unlocks, incarnation) = (site.gate.forced_unlocks(), site.route.incarnation());
        Self { forced_unlocks, incarnation, at: clock::now() }
    }
}

impl Site {
    /// Returns the site of a name, which all handles of its re-entrant and fair locks share.
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        let gate = || Gate::new(Mode::Lock);
        let make = |key| Self::new(Arc::clone(core), core.name(key), gate(), false);
        core.members.of::<Self>().get(&core.key(name), make)
    }

    /// Returns the site of the name's fenced lock. The fenced lock's site is not the site of
    /// [`of`](Self::of), because its holds have tokens.
    pub(crate) fn fenced(core: &Arc<Core>, name: &str) -> Arc<Self> {
        let members = core.members.of_kind::<Self>(FENCED);
        let gate = || Gate::new(Mode::Lock);
        let make = |key| Self::new(Arc::clone(core), core.name(key), gate(), true);
        members.get(&core.key(name), make)
    }

    /// Returns a site behind this gate: one side of a read-write lock's pair of sites. The client
    /// registers the pair as its member, and the pair ends the site.
    pub(crate) fn behind(core: &Arc<Core>, name: &Name, gate: Gate) -> Self {
        Self::new(Arc::clone(core), name.clone(), gate, false)
    }

    fn new(core: Arc<Core>, name: Name, gate: Gate, is_fenced: bool) -> Self {
        let (route, mode) = (core.route(&name), gate.mode());
        let (alarm, has_calls) = (Mutex::new(None), AtomicBool::new(false));
        Self { is_fenced, name, route, gate, mode, core, alarm, has_calls }
    }

    pub(super) fn keys(&self) -> LockKeys<'_> {
        LockKeys::new(&self.name, self.mode, self.is_fenced)
    }

    pub(crate) fn scripts(&self) -> LockScripts<'_> {
        let (database, acks) = (self.core.database(), self.core.config.replica_acks);
        LockScripts { route: &self.route, keys: self.keys(), client: &self.core.id, database, acks }
    }

    /// Returns the error of a failed request for the lock. If the server is in trouble, also fails
    /// the waiters that queued before the request.
    pub(crate) fn not_taken(self: &Arc<Self>, trouble: Trouble, arrivals: u64) -> Error {
        let concerns_it_alone = matches!(trouble, Trouble::Refused(_));
        let state = match trouble {
            Trouble::Unknown(_) | Trouble::Forgotten(_) => {
                "nothing is held; if the server granted the lock all the same, it is released in \
                 the background, or ends with its lease"
            }
            Trouble::Refused(_) | Trouble::Unsent(_) => "the lock was not taken",
        };
        let error = trouble.into_error().of(&self.name).now(state);
        if !concerns_it_alone {
            // Give the error to the waiters, too. Otherwise they would find out one by one that the
            // server is down.
            self.fail_before(arrivals, &error);
        }
        error
    }

    /// Sends a forced unlock. If the server answers `true`, the hold in the seat is marked as lost.
    pub(crate) fn force(
        self: &Arc<Self>,
        send: impl FnOnce() -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble> {
        let before = self.gate.hold();
        let outcome = send();
        // The count of forced unlocks is raised before the seat is read. Suppose that the server
        // has granted a hold in the meantime. Then either this hold is already in the seat, or
        // `admit` finds the raised count and the hold's thread asks the server.
        self.gate.note_forced_unlock();
        let known = outcome.is_ok();
        if let Some(now) = self.gate.hold().filter(|_| !matches!(outcome, Ok(false))) {
            // In the meantime, a thread may have passed the hold on, or the server may have granted
            // a new hold before or after it deleted the lock. So only the server knows whether it
            // has deleted the hold that is now in the seat.
            let same = before.is_some_and(|before| Arc::ptr_eq(&before, &now));
            match scripts::lock::is_held_by(&self.route, &self.name, &now.owner) {
                _ if same && known => self.lose_hold(&now, LostReason::ForceUnlocked),
                Ok(false) => self.lose_hold(&now, LostReason::ForceUnlocked),
                Ok(true) => {}
                Err(_) => now.unconfirm(),
            }
        }
        outcome
    }

    pub(super) fn declare_all_lost(&self, seat: &Seat, reason: LostReason) {
        for tenancy in seat.tenancies() {
            tenancy.declare_lost(&self.core, &self.name, reason);
        }
    }

    pub(crate) fn observed(&self, tenancy: &Tenancy) {
        tenancy.observed(&self.core, &self.name);
    }

    pub(crate) fn lost_error(&self, tenancy: &Tenancy, reason: LostReason) -> Error {
        Error::lost(&self.name, &tenancy.loss_message(reason, self.core.config.max_hold))
    }

    pub(crate) fn not_held_by_thread(&self) -> Error {
        let message = "the calling thread does not hold it; nothing was changed".to_owned();
        Error::new(ErrorKind::NotHeld, message).of(&self.name)
    }
}

/// How a thread leaves a hold: whether it ends the hold, and whether it awaits the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Sends the release, and does not wait for the answer. A guard's `drop` leaves in this way.
    Posted,
    /// Sends the release, and waits for the answer. `unlock` leaves in this way.
    Awaited,
    /// Leaves the hold to expire. Before `until`, a time on [`clock`], this process does not
    /// release the hold or pass it on, provided that the lease at the server lasts until then. The
    /// hold stays even if an outer level ends, another thread that shares the hold leaves, or the
    /// client ends. After the last tenant has left, no renewal extends the hold. If the hold is
    /// already lost, the thread gets the error that a release would return.
    ToExpire { until: u64 },
}

impl Member for Site {
    fn name(&self) -> &Name {
        &self.name
    }

    fn end(self: Arc<Self>) {
        self.nudge();
        if let Some(hold) = self.gate.hold() {
            self.lose_hold(&hold, LostReason::ShutDown);
            // An error is only logged. The lease then ends by itself.
            let _ = self.release(&hold, Leaving::Posted);
        }
    }

    fn renew_now(self: Arc<Self>) -> Vec<Renewal> {
        self.early_renewal().into_iter().collect()
    }

    fn told_wanted(&self, owner: u64, is_wanted: bool, at: u64) {
        if let Some(hold) = self.gate.hold().filter(|hold| hold.owner.number() == owner) {
            hold.told_wanted(is_wanted, at);
            self.update_wanted();
        }
    }

    #[cfg(feature = "in-memory")]
    fn age(self: Arc<Self>, by: u64) -> Vec<Renewal> {
        Leaseholder::age(&self, by).into_iter().collect()
    }

    fn held(&self) -> Vec<Held> {
        let tenants = self.gate.tenants().into_iter();
        tenants.filter_map(|(tenancy, levels)| tenancy.snapshot(&self.name, levels)).collect()
    }

    fn is_held_by(&self, thread: &Thread) -> bool {
        self.gate.with_seat(|seat| {
            seat.is_some_and(|seat| {
                seat.tenancies().any(|it| it.thread.id() == thread.id() && it.is_held())
            })
        })
    }

    fn has_owners(&self) -> bool {
        true
    }

    fn give_up_owner(&self, owner: &str) {
        let give_up = self.scripts().give_up_command(owner.as_bytes(), Chain::default());
        self.core.watchdog.clean_up(Cleanup::unclaimed(&self.name, give_up));
    }
}

impl Leaseholder for Site {
    const KIND: RenewalKind = RenewalKind::Locks;

    fn core(&self) -> &Core {
        &self.core
    }

    fn key(&self) -> &Arc<str> {
        &self.name
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn alarm(&self) -> &Mutex<Option<Alarm>> {
        &self.alarm
    }

    fn with_hold<R>(&self, act: impl FnOnce(Renewing<'_>) -> R) -> Option<R> {
        self.gate.with_seat(|seat| {
            let seat = seat?;
            let state = seat.renewal_state();
            Some(act(seat.renewing(state)))
        })
    }

    fn expects_hold(&self, now: u64) -> bool {
        self.gate.has_just_relayed(now)
    }

    fn query_on_change(self: &Arc<Self>) -> Weak<dyn Tracked> {
        Arc::<Self>::downgrade(self)
    }

    /// The loss is reported only by the thread that takes the tenancies out of the seat. If a
    /// tenancy's thread has left the seat before, for example to wait on a condition, the tenancy
    /// gets no report.
    fn lose_hold(self: &Arc<Self>, hold: &Arc<Hold>, reason: LostReason) {
        // The hold is marked as lost before the seat is vacated. Because of the mark, no thread
        // passes the hold on in the meantime, and the guards of this hold do not report "held" when
        // another thread gets the lock after the seat is vacated.
        let reason = hold.lose(reason);
        let (seat, wake) = self.gate.vacate(hold);
        wake.now();
        let Some(seat) = seat else { return };
        self.declare_all_lost(&seat, reason);
        if reason != LostReason::ShutDown {
            // At shutdown the client releases the hold instead.
            self.clean_up_lost(&seat, reason);
        }
        if reason == LostReason::Revoked {
            // Most likely somebody deleted the key, so no script of redlatch has granted the lock
            // to the first owner in the queue. The script of this release does so, although there
            // is nothing to release.
            let release = self.release_command(hold);
            self.core.watchdog.clean_up(Cleanup::unclaimed(&self.name, release));
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.get_mut().take()
            && !is_forked()
        {
            self.core.watchdog.cancel(alarm);
        }
        let kind = if self.is_fenced { FENCED } else { "" };
        self.core.members.of_kind::<Self>(kind).forget(&self.name);
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(all(test, testkit))]
mod tests;
