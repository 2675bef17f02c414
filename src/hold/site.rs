//! One name in one client: where the threads that want it, the hold, and its renewal meet.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Hold, LostReason, Tenancy, Terms, clock};
use crate::acquire::{Admitted, Gate, Left, Seat};
use crate::client::Core;
use crate::connection::{Command, Lane, Outcome, Receiver};
use crate::error::{Error, ErrorKind};
use crate::protocol::{LockKeys, Owner};
use crate::script::{self, Trouble};
use crate::sync::Mutex;
use crate::watchdog::{Alarm, Errand, Renewal};

/// A name's place in a client. All handles of one name share it, whatever kind of lock they are.
pub(crate) struct Site {
    pub(crate) core: Arc<Core>,
    pub(crate) name: Arc<str>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) gate: Gate,
    channel: OnceLock<Arc<str>>,
    /// The wheel's entry for the hold in the seat. Taken after the gate's mutex, never before.
    alarm: Mutex<Option<Alarm>>,
}

impl Site {
    /// The site of a name: one for all its handles.
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.sites.get(name, |name| Self::new(Arc::clone(core), name))
    }

    fn new(core: Arc<Core>, name: Arc<str>) -> Self {
        let lane = core.lane(&name);
        Self {
            name,
            lane,
            gate: Gate::new(core.round_trip),
            core,
            channel: OnceLock::new(),
            alarm: Mutex::new(None),
        }
    }

    /// Where the lock's releases are published.
    pub(crate) fn channel(&self) -> &Arc<str> {
        self.channel.get_or_init(|| LockKeys::channel(&self.name).into())
    }

    /// The server granted a hold to a thread: its tenancy begins, and the wheel watches it.
    /// `false`: the hold is not ours any more.
    ///
    /// # Blocking
    ///
    /// Not at all, but for a round trip if another hold has the seat.
    ///
    /// # Errors
    ///
    /// The server is in trouble, and so it is not known whose the seat is: the hold must be undone.
    pub(crate) fn admit(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
    ) -> Result<bool, Error> {
        let mut gone = None;
        loop {
            match self.gate.admit(tenancy, terms, gone.as_ref()) {
                Admitted::Seated(stale) => {
                    self.watch(tenancy);
                    if let Some(seat) = stale {
                        let hold = &seat.tenancy.hold;
                        hold.lose(LostReason::Revoked);
                        self.declare_lost(&seat.tenancy, LostReason::Revoked);
                        self.repeat(self.release_command(hold), hold.longest_lease());
                        self.undo_late_requests(hold);
                    }
                    return Ok(true);
                }
                // One of the two was taken away by force, and only the server knows which: grants
                // are not always read in the order in which they were made.
                Admitted::Taken(other) => {
                    let owner = &tenancy.hold.owner;
                    match script::lock::is_held_by(&self.lane, &self.name, owner) {
                        Ok(true) => gone = Some(other),
                        Ok(false) => return Ok(false),
                        Err(trouble) => {
                            let state = "nothing is held; what the server granted is released in \
                                         the background";
                            return Err(trouble.into_error().of(&self.name).now(state));
                        }
                    }
                }
                Admitted::NotOurs => return Ok(false),
            }
        }
    }

    /// A hold is passed to a thread: its tenancy begins. `false`: the hold is not ours any more, or
    /// another one has taken the seat.
    fn admit_passed(self: &Arc<Self>, tenancy: &Arc<Tenancy>, terms: Terms) -> bool {
        let seated = self.gate.admit_passed(tenancy, terms);
        if seated {
            self.watch(tenancy);
        }
        seated
    }

    /// A tenancy has begun: sets the alarm. A run of the server that was met meanwhile asked for all
    /// holds when this one was not to be seen.
    fn watch(self: &Arc<Self>, tenancy: &Tenancy) {
        self.arm();
        if self.core.incarnation() != tenancy.hold.asked.incarnation {
            self.core.watchdog.renew_now(self);
        }
    }

    /// Ends one level of a tenancy; the last one releases the hold or passes it on.
    pub(crate) fn leave(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        terms: Option<Terms>,
        how: Leaving,
    ) -> Result<(), Error> {
        let was_held = tenancy.is_held();
        match self.gate.leave(tenancy, terms) {
            Left::NotThere => Err(self.not_held(tenancy)),
            Left::StillHeld if was_held => Ok(()),
            Left::StillHeld => Err(self.lost(tenancy, LostReason::LeaseExpired)),
            Left::Passed { seat, next, second } => {
                next.now();
                second.now();
                let _unheard = seat.tenancy.release();
                // The alarm is the hold's, unless the new tenancy wants an earlier one.
                self.arm();
                Ok(())
            }
            Left::Release { seat, ends_turn } => {
                // Whatever happens from here on, the baton is handed on.
                let baton = Baton { site: self };
                if !was_held {
                    let reason = tenancy.hold.lost().unwrap_or(LostReason::LeaseExpired);
                    tenancy.hold.lose(reason);
                    self.declare_lost(tenancy, reason);
                    self.bury(&seat, reason);
                    return Err(self.lost(tenancy, reason));
                }
                // Dropped last: what the callbacks captured may take this very lock.
                let _unheard = seat.tenancy.release();
                let seat = &mut |next: &Arc<Tenancy>, terms| self.admit_passed(next, terms);
                let line = tenancy.hold.line.as_ref();
                if let Some(wake) = line.and_then(|line| line.pass(&tenancy.hold, seat)) {
                    baton.lay_down();
                    wake.now();
                    return Ok(());
                }
                if ends_turn && let Some(heard) = self.core.pubsub.listening(self.channel()) {
                    self.gate.with_turn(|turn| turn.released_at_version(heard.version()));
                }
                let done = self.release(&tenancy.hold, how);
                drop(baton);
                done
            }
        }
    }

    /// Sends the release of a hold whose tenancy has ended.
    pub(crate) fn release(self: &Arc<Self>, hold: &Arc<Hold>, how: Leaving) -> Result<(), Error> {
        let release = Release { site: Arc::clone(self), hold: Arc::clone(hold) };
        match how {
            Leaving::Posted => {
                let command = self.release_command(hold);
                self.core.post(&self.lane, command, Arc::new(release));
                Ok(())
            }
            Leaving::Awaited => {
                let outcome =
                    script::lock::release(&self.lane, &self.release_command(hold), || {
                        self.core.incarnation() == hold.asked.incarnation
                    });
                release.settle(outcome)
            }
        }
    }

    fn release_command(&self, hold: &Hold) -> Command {
        match &hold.line {
            None => script::lock::release_command(&self.name, &hold.owner, self.channel()),
            Some(line) => line.release_command(hold),
        }
    }

    /// A tenancy's hold is not ours any more, whoever has it by now.
    pub(crate) fn lose(self: &Arc<Self>, tenancy: &Arc<Tenancy>, reason: LostReason) {
        // The hold before the seat: whoever is let in must not meet a guard that says "held", and
        // nobody must pass it on meanwhile.
        tenancy.hold.lose(reason);
        self.declare_lost(tenancy, reason);
        let (seat, wake) = self.gate.vacate(&tenancy.hold);
        wake.now();
        if let Some(seat) = seat {
            self.declare_lost(&seat.tenancy, reason);
            self.bury(&seat, reason);
        }
    }

    /// The server may have made the lease of a hold longer that was lost meanwhile: gives it back.
    /// `false`: it was not lost.
    pub(crate) fn bury_extended(&self, hold: &Arc<Hold>) -> bool {
        let lost = hold.lost().is_some();
        if lost {
            self.repeat(self.release_command(hold), hold.longest_lease());
        }
        lost
    }

    /// Sees to what the server may still have of a lost hold.
    fn bury(&self, seat: &Seat, reason: LostReason) {
        let hold = &seat.tenancy.hold;
        self.undo_late_requests(hold);
        let renewed_late = reason == LostReason::LeaseExpired
            && (seat.may_outlive() || clock::now() < hold.deadline());
        // Those it was passed to stand in the server's line still.
        if renewed_late || hold.line.as_ref().is_some_and(|line| line.has_passed()) {
            self.repeat(self.release_command(hold), hold.longest_lease());
        }
    }

    /// A hold has ended; a request of its owner that was sent twice may yet take the lock, or a place
    /// in its queue.
    fn undo_late_requests(&self, hold: &Hold) {
        if hold.sent_twice {
            match &hold.line {
                None => self.repeat(self.release_command(hold), hold.longest_lease()),
                Some(line) => self.undo(line.give_up_command(hold), hold.longest_lease()),
            }
        }
    }

    fn declare_lost(&self, tenancy: &Arc<Tenancy>, reason: LostReason) {
        if let Some(callbacks) = tenancy.lose(reason) {
            let obituary = || tenancy.obituary(reason, self.core.config.max_hold);
            self.core.watchdog.tell_lost(&self.name, obituary);
            self.core.watchdog.call_back(&self.name, reason, callbacks);
        }
    }

    /// An acquire's outcome is not known: releases what it may have taken or may take yet.
    pub(crate) fn let_die(&self, owner: &Owner, terms: Terms) {
        let release = script::lock::release_command(&self.name, owner, self.channel());
        self.repeat(release, self.core.lease(terms));
    }

    /// Sends an owner-checked release in the background, again and again until one lease has
    /// passed: nobody knows whether the hold exists, or whether it is about to.
    pub(crate) fn repeat(&self, release: Command, lease: Duration) {
        self.core.watchdog.run_errand(Errand::repeat(&self.name, release, lease));
    }

    /// As [`repeat`](Self::repeat), for an owner who may get a place in a queue, too.
    pub(crate) fn undo(&self, give_up: Command, lease: Duration) {
        self.core.watchdog.run_errand(Errand::undo(&self.name, give_up, lease));
    }

    /// The error of a tenancy that was lost.
    pub(crate) fn lost(&self, tenancy: &Tenancy, reason: LostReason) -> Error {
        Error::lost(&self.name, &tenancy.obituary(reason, self.core.config.max_hold))
    }

    /// Why there is nothing to unlock.
    fn not_held(&self, tenancy: &Tenancy) -> Error {
        match tenancy.state() {
            super::HoldState::Lost(reason) => self.lost(tenancy, reason),
            _ => self.not_held_by_thread(),
        }
    }

    pub(crate) fn not_held_by_thread(&self) -> Error {
        let message = "the calling thread does not hold it; nothing was changed".to_owned();
        Error::new(ErrorKind::NotHeld, message).of(&self.name)
    }

    // What the wheel does.

    /// Sets the wheel's alarm to the next thing to do about the hold in the seat.
    pub(crate) fn arm(self: &Arc<Self>) {
        let due = self.gate.with_seat(|seat| {
            let seat = seat?;
            Some(self.due(seat, clock::now()).0)
        });
        if let Some(due) = due {
            self.arm_at(due);
        }
    }

    fn arm_at(self: &Arc<Self>, due: u64) {
        let mut alarm = self.alarm.lock();
        // An alarm that goes off too early sets the next one; only too late is wrong.
        if alarm.as_ref().is_none_or(|alarm| alarm.due() > due) {
            let new = self.core.watchdog.alarm(due, Arc::downgrade(self));
            if let Some(old) = alarm.replace(new) {
                self.core.watchdog.cancel(old);
            }
        }
    }

    /// When something is to be done about a seat, and whether it is a renewal.
    fn due(&self, seat: &Seat, now: u64) -> (u64, bool) {
        let deadline = seat.tenancy.hold.deadline();
        let config = &self.core.config;
        let outlived = config
            .max_hold
            .is_some_and(|longest| now.saturating_sub(seat.tenancy.since) >= clock::nanos(longest));
        if !seat.is_watched() || seat.renewing || outlived || seat.tenancy.thread.is_dead() {
            return (deadline, false);
        }
        let lease = clock::nanos(config.watchdog_timeout);
        // First at a third of the lease, so that short holds cost nothing; together with others
        // that are due at about that time.
        let third = deadline.saturating_sub(lease / 3 * 2);
        let grid = (lease / 64).max(1_000_000);
        let due = if seat.retries > 0 { seat.retry_at } else { third / grid * grid };
        (due.min(deadline), due < deadline)
    }

    /// The alarm went off. `Some`: a renewal to send.
    pub(crate) fn wake(self: &Arc<Self>) -> Option<Renewal> {
        *self.alarm.lock() = None;
        let now = clock::now();
        let (tenancy, renew) = self.gate.with_seat(|seat| {
            let seat = seat?;
            let (due, renewal) = self.due(seat, now);
            let renew = renewal && due <= now && self.begin_renewal(seat, now);
            Some((Arc::clone(&seat.tenancy), renew))
        })?;
        if now >= tenancy.hold.deadline() {
            self.lose(&tenancy, LostReason::LeaseExpired);
            return None;
        }
        self.arm();
        let hold = Arc::clone(&tenancy.hold);
        renew.then(|| Renewal { site: Arc::clone(self), hold, raises: true })
    }

    /// A renewal before its time; of a hold that is not to be renewed, or is being renewed, the
    /// question whether the server knows it.
    pub(crate) fn renew_now(self: &Arc<Self>) -> Option<Renewal> {
        let now = clock::now();
        let (hold, raises) = self.gate.with_seat(|seat| {
            let seat = seat?;
            let (_, renewal) = self.due(seat, now);
            let raises = renewal && self.begin_renewal(seat, now);
            Some((Arc::clone(&seat.tenancy.hold), raises))
        })?;
        Some(Renewal { site: Arc::clone(self), hold, raises })
    }

    /// `false`: it is too late.
    fn begin_renewal(&self, seat: &mut Seat, now: u64) -> bool {
        let hold = &seat.tenancy.hold;
        let in_time = now < hold.deadline();
        if in_time {
            seat.renewing = true;
            hold.ask(self.core.config.watchdog_timeout);
        }
        in_time
    }

    /// The server's answer to a renewal that was sent at `sent_at`.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        sent_at: u64,
        renewed: Result<bool, &Arc<str>>,
    ) {
        let now = clock::now();
        let tenancy = self.gate.with_seat(|seat| {
            // A reply for a hold that has ended is ignored.
            let seat = seat.filter(|seat| Arc::ptr_eq(&seat.tenancy.hold, hold))?;
            seat.renewing = false;
            match renewed {
                Ok(true) => {
                    hold.confirm(sent_at, self.core.config.watchdog_timeout);
                    seat.retries = 0;
                }
                Ok(false) => {}
                Err(cause) => {
                    // Not at the next third: at once, then with back-off until the deadline.
                    hold.renewal_failed(cause);
                    let lease = clock::nanos(self.core.config.watchdog_timeout);
                    let step = (lease / 200).max(1_000_000) << seat.retries.min(4);
                    seat.retries += 1;
                    seat.retry_at = now + step;
                }
            }
            Some(Arc::clone(&seat.tenancy))
        });
        match tenancy {
            Some(tenancy) if renewed == Ok(false) => self.lose(&tenancy, LostReason::Revoked),
            Some(_) => self.arm(),
            None => {}
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.get_mut().take()
            && !self.core.is_forked()
        {
            self.core.watchdog.cancel(alarm);
        }
        self.core.sites.forget(&self.name);
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whether who leaves waits for the server's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// `Drop`: written, not waited for.
    Posted,
    /// `unlock`.
    Awaited,
}

/// The right to talk to Redis about a name. Handed on when dropped, on every path.
#[derive(Debug)]
pub(crate) struct Baton<'a> {
    pub(crate) site: &'a Arc<Site>,
}

impl Baton<'_> {
    /// The leader was granted a hold: the seat has it, nobody leads. `Err`: the hold is not ours
    /// any more.
    pub(crate) fn admit(
        self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
    ) -> Result<Result<(), Self>, Error> {
        if self.site.admit(tenancy, terms)? {
            self.lay_down();
            return Ok(Ok(()));
        }
        Ok(Err(self))
    }

    /// The seat is taken, and nobody leads any more.
    fn lay_down(self) {
        std::mem::forget(self);
    }
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        self.site.gate.hand_on();
    }
}

/// A release on its way.
struct Release {
    site: Arc<Site>,
    hold: Arc<Hold>,
}

impl Release {
    fn settle(&self, outcome: Result<script::lock::Released, Trouble>) -> Result<(), Error> {
        let name = &self.site.name;
        // Not before the release is answered: it would find nothing to release.
        self.site.undo_late_requests(&self.hold);
        match outcome {
            Ok(script::lock::Released::Free(heard)) => {
                self.site.gate.with_turn(|turn| turn.heard(heard, clock::now()));
                Ok(())
            }
            Ok(script::lock::Released::NotHeld) => Err(Error::lost(name, &LostReason::Revoked)),
            Ok(script::lock::Released::Unclear) => {
                let message = "the connection to the server broke, and when asked once more it no \
                               longer knew the hold: it was released, most likely just now, but it \
                               may have been lost before; the caller no longer holds it";
                Err(Error::new(ErrorKind::Redis, message.to_owned()).unknown(true).of(name))
            }
            Err(trouble) => {
                let site = &self.site;
                site.repeat(site.release_command(&self.hold), self.hold.longest_lease());
                let state = "the caller no longer holds it; its release is tried again in the \
                             background until the lease has passed, others get it then at the \
                             latest";
                Err(trouble.into_error().of(name).now(state))
            }
        }
    }
}

impl Receiver for Release {
    fn receive(&self, outcome: Outcome) {
        if let Err(error) = self.settle(script::lock::released(outcome)) {
            self.site.core.watchdog.tell(error);
        }
    }
}

/// The longest lease: 31,000 years, which no sum overflows.
const LONGEST_LEASE: Duration = Duration::from_millis(1_000_000_000_000_000);

/// Checks a lease before anything is sent.
pub(crate) fn check_lease(name: &Arc<str>, lease: Duration) -> Result<(), Error> {
    if lease < Duration::from_millis(1) || lease > LONGEST_LEASE {
        let message = format!(
            "a lease of {lease:?} is not usable: it must be from 1 ms to 10^15 ms; for a lock that \
             is kept until it is released, give no lease"
        );
        return Err(Error::new(ErrorKind::Config, message).of(name));
    }
    Ok(())
}
