//! One name in one client: where the threads that want it, the hold, and its renewal meet.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::{
    Admitted, Gate, Hold, Left, Place, Seat, Tenancy, Terms, clock, renewal_due, retry_step,
};
use crate::connection::{Command, Lane, Outcome, Receiver};
use crate::error::{Error, ErrorKind, LostReason};
use crate::node::{Core, Member};
use crate::protocol::{LockKeys, Owner};
use crate::pubsub::Grant;
use crate::script::lock::{Chain, LockScripts, Renewals};
use crate::script::{self, Trouble};
use crate::sync::Mutex;
use crate::watchdog::{Alarm, Errand, Renewable, Renewal, Task};

/// A name's place in a client. All handles of one name share it, whatever kind of lock they are.
pub(crate) struct Site {
    pub(crate) core: Arc<Core>,
    pub(crate) name: Arc<str>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) gate: Gate,
    keys: OnceLock<LockKeys>,
    /// See [`LockScripts::alone`].
    alone: AtomicBool,
    /// The wheel's entry for the hold in the seat. Taken after the gate's mutex, never before.
    alarm: Mutex<Option<Alarm>>,
}

impl Site {
    /// The site of a name: one for all its handles.
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.members.of::<Self>().get(name, |name| Self::new(Arc::clone(core), name))
    }

    fn new(core: Arc<Core>, name: Arc<str>) -> Self {
        let lane = core.lane(&name);
        Self {
            name,
            lane,
            gate: Gate::new(),
            core,
            keys: OnceLock::new(),
            alone: AtomicBool::new(false),
            alarm: Mutex::new(None),
        }
    }

    pub(super) fn keys(&self) -> &LockKeys {
        self.keys.get_or_init(|| LockKeys::new(&self.name))
    }

    pub(crate) fn scripts(&self) -> LockScripts<'_> {
        LockScripts {
            lane: &self.lane,
            name: &self.name,
            keys: self.keys(),
            database: self.core.database(),
            alone: &self.alone,
        }
    }

    /// The server gives this process no place in the queue, for this reason: it waits in public.
    pub(super) fn no_place(&self, refusal: Option<&str>) {
        if !self.core.says_no_place.swap(true, Ordering::Relaxed) {
            // Of a key that was not sent the server says nothing that helps.
            let refusal = refusal.filter(|_| !self.alone.load(Ordering::Relaxed));
            let why = refusal.unwrap_or(
                "the access rights do not allow the keys redlatch_queue:* and redlatch_window:*",
            );
            self.core.watchdog.log(log::Level::Warn, || {
                format!(
                    "{:?}: no place in the lock's queue ({why}): this process waits for public \
                     releases, as Redisson does, and others wait longer for it (lua/README.md, Rights)",
                    self.name
                )
            });
        }
    }

    /// A request for the lock has failed, and so has the wait of those who queued before it if the
    /// server cannot be reached.
    pub(crate) fn not_taken(&self, trouble: Trouble, arrivals: u64) -> Error {
        let alone = matches!(trouble, Trouble::Refused(_));
        let state = match trouble {
            Trouble::Unknown(_) | Trouble::Forgotten(_) => {
                "nothing is held; if the server took the lock nevertheless, it is released in the \
                 background, or ends with its lease"
            }
            Trouble::Refused(_) | Trouble::Unsent(_) => "the lock was not taken",
        };
        let error = trouble.into_error().of(&self.name).now(state);
        if !alone {
            // A dead server is not found out one waiter at a time.
            self.gate.fail_before(arrivals, &error);
        }
        error
    }

    /// Leaves the queue, or the lock if that was granted at this moment.
    pub(super) fn give_up(self: &Arc<Self>, place: &Place) {
        // While the server is away, each call's would be sent for minutes.
        if !place.is_known {
            return;
        }
        let chain = place.unread_chain();
        let command = self.scripts().give_up_command(place.owner.as_bytes(), chain);
        if place.in_doubt {
            self.repeat(command.clone(), self.core.config.watchdog_timeout);
        }
        let leaving = GiveUp { site: Arc::clone(self), command: command.clone() };
        self.core.post(&self.lane, command, Arc::new(leaving));
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
            self.core.watchdog.renew_now(Member::renew_now(Arc::clone(self)));
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
            Left::Release { seat } => {
                // Whatever happens from here on, the baton is handed on.
                let baton = Baton::new(self, None);
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
            None => self.scripts().release_command(&hold.owner, hold.share.chain),
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
        let outlives = reason == LostReason::LeaseExpired
            && (seat.may_outlive() || clock::now() < hold.deadline());
        // Those it was passed to stand in the server's line still.
        if outlives || hold.line.as_ref().is_some_and(|line| line.has_passed()) {
            self.repeat(self.release_command(hold), hold.longest_lease());
        }
    }

    /// A hold has ended; a request of its owner that was sent twice may yet take the lock, or a place
    /// in its queue.
    fn undo_late_requests(&self, hold: &Hold) {
        if hold.sent_twice {
            match &hold.line {
                // A place, too: that of a copy.
                None => self.repeat(self.give_up_command(&hold.owner), hold.longest_lease()),
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

    /// Undoes whatever a late request of an owner may do, where nothing is known of its hold.
    pub(crate) fn give_up_command(&self, owner: &Owner) -> Command {
        self.scripts().give_up_command(owner.as_bytes(), Chain::default())
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
            Some(self.next_due(seat, clock::now()).at)
        });
        if let Some(due) = due {
            self.arm_at(due);
        }
    }

    fn arm_at(self: &Arc<Self>, due: u64) {
        let mut alarm = self.alarm.lock();
        // An alarm that goes off too early sets the next one; only too late is wrong.
        if alarm.as_ref().is_none_or(|alarm| alarm.due() > due) {
            let task: Weak<dyn Task> = Arc::<Self>::downgrade(self);
            let new = self.core.watchdog.alarm(due, task);
            if let Some(old) = alarm.replace(new) {
                self.core.watchdog.cancel(old);
            }
        }
    }

    fn renewal(self: &Arc<Self>, hold: Arc<Hold>, lease: Option<Duration>) -> Renewal {
        let urgent = hold.is_provisional();
        Renewal { hold: Arc::new(Renewing { site: Arc::clone(self), hold }), lease, urgent }
    }

    /// When something is to be done about a seat, and which lease to ask for then.
    fn next_due(&self, seat: &Seat, now: u64) -> Due {
        let (hold, since) = (&seat.tenancy.hold, seat.tenancy.since);
        let deadline = hold.deadline();
        let config = &self.core.config;
        let outlived = config
            .max_hold
            .is_some_and(|longest| now.saturating_sub(since) >= clock::nanos(longest));
        let watched = seat.is_watched() && !outlived && !seat.tenancy.thread.is_dead();
        // A fixed lease lasts as long as it was wanted, whoever lives.
        let is_fixed = matches!(hold.terms, Terms::Fixed(_));
        let raise = hold.is_provisional() && (watched || is_fixed);
        if !(watched || raise) || seat.renewing {
            return Due { at: deadline, lease: None };
        }
        if raise {
            let mut lease = if watched { config.watchdog_timeout } else { Duration::ZERO };
            if let Terms::Fixed(fixed) = hold.terms {
                // Once, and counted from the grant.
                let spent = Duration::from_nanos(now.saturating_sub(since));
                lease = lease.max(fixed.saturating_sub(spent));
            }
            let at = if seat.retries > 0 { seat.retry_at } else { since + RAISE };
            return Due { at: at.min(deadline), lease: (at < deadline).then_some(lease) };
        }
        let lease = config.watchdog_timeout;
        let due = if seat.retries > 0 { seat.retry_at } else { renewal_due(deadline, lease) };
        let lease = (due < deadline).then_some(lease);
        Due { at: due.min(deadline), lease }
    }

    /// `false`: it is too late.
    fn begin_renewal(&self, seat: &mut Seat, lease: Duration, now: u64) -> bool {
        let hold = &seat.tenancy.hold;
        let in_time = now < hold.deadline();
        if in_time {
            seat.renewing = true;
            hold.ask(lease);
        }
        in_time
    }

    /// Raises a hold that was granted by message to its lease now, if that makes it certain for
    /// `slack` more. Before its time, since somebody wants to know.
    ///
    /// # Blocking
    ///
    /// One round trip, and none for a hold that has its lease.
    pub(crate) fn raise(self: &Arc<Self>, tenancy: &Arc<Tenancy>, slack: Duration) -> bool {
        let hold = &tenancy.hold;
        if !hold.is_provisional() {
            return false;
        }
        let sent_at = clock::now();
        let lease = self.gate.with_seat(|seat| {
            let seat = seat.filter(|seat| Arc::ptr_eq(&seat.tenancy, tenancy))?;
            // The watchdog's own may be on its way, and its reply far off.
            let renewing = std::mem::take(&mut seat.renewing);
            let lease = self.next_due(seat, sent_at).lease;
            seat.renewing = renewing;
            lease
        });
        // It is not to be raised.
        let Some(lease) = lease.filter(|lease| *lease >= slack) else { return false };
        hold.ask(lease);
        match script::lock::extend(Renewals::Locks, &self.lane, &self.name, &hold.owner, lease) {
            Ok(held) => self.renewed(hold, sent_at, lease, Ok(held)),
            // The renewer tries again.
            Err(trouble) => {
                let cause = format!("{:#}", trouble.into_error()).into();
                self.renewed(hold, sent_at, lease, Err(&cause));
            }
        }
        self.bury_extended(hold);
        tenancy.remaining() >= slack
    }

    /// The server's answer to a renewal that was sent at `sent_at`, for this lease.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        sent_at: u64,
        lease: Duration,
        renewed: Result<bool, &Arc<str>>,
    ) {
        let now = clock::now();
        let tenancy = self.gate.with_seat(|seat| {
            // A reply for a hold that has ended is ignored.
            let seat = seat.filter(|seat| Arc::ptr_eq(&seat.tenancy.hold, hold))?;
            seat.renewing = false;
            match renewed {
                Ok(true) => {
                    hold.confirm(sent_at, lease);
                    hold.raised();
                    seat.retries = 0;
                }
                Ok(false) => {}
                Err(cause) => {
                    // Not at the next third: at once, then with back-off until the deadline.
                    hold.renewal_failed(cause);
                    let step = if hold.is_provisional() {
                        RAISE_AGAIN
                    } else {
                        retry_step(self.core.config.watchdog_timeout, seat.retries)
                    };
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

impl Task for Site {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        *self.alarm.lock() = None;
        let now = clock::now();
        let (tenancy, renew) = self.gate.with_seat(|seat| {
            let seat = seat?;
            let due = self.next_due(seat, now);
            let lease = due.lease.filter(|_| due.at <= now);
            let renew = lease.filter(|lease| self.begin_renewal(seat, *lease, now));
            Some((Arc::clone(&seat.tenancy), renew))
        })?;
        if now >= tenancy.hold.deadline() {
            self.lose(&tenancy, LostReason::LeaseExpired);
            return None;
        }
        self.arm();
        let hold = Arc::clone(&tenancy.hold);
        renew.map(|lease| self.renewal(hold, Some(lease)))
    }
}

impl Member for Site {
    fn end(self: Arc<Self>) {
        self.gate.nudge();
        if let Some((tenancy, _)) = self.gate.tenant() {
            self.lose(&tenancy, LostReason::ShutDown);
            // An error was logged, and the lease ends by itself.
            let _ = self.release(&tenancy.hold, Leaving::Posted);
        }
    }

    /// A renewal before its time; of a hold that is not to be renewed, or is being renewed, the
    /// question whether the server knows it.
    fn renew_now(self: Arc<Self>) -> Vec<Renewal> {
        let now = clock::now();
        let held = self.gate.with_seat(|seat| {
            let seat = seat?;
            let due = self.next_due(seat, now);
            let lease = due.lease.filter(|lease| self.begin_renewal(seat, *lease, now));
            Some((Arc::clone(&seat.tenancy.hold), lease))
        });
        held.into_iter().map(|(hold, lease)| self.renewal(hold, lease)).collect()
    }
}

/// A hold of this name, on its way to be renewed.
struct Renewing {
    site: Arc<Site>,
    hold: Arc<Hold>,
}

impl Renewable for Renewing {
    fn kind(&self) -> Renewals {
        Renewals::Locks
    }

    fn key(&self) -> &str {
        &self.site.name
    }

    fn owner(&self) -> &Owner {
        &self.hold.owner
    }

    fn renewed(&self, sent_at: u64, lease: Duration, renewed: Result<bool, &Arc<str>>) {
        self.site.renewed(&self.hold, sent_at, lease, renewed);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.get_mut().take()
            && !self.core.is_forked()
        {
            self.core.watchdog.cancel(alarm);
        }
        self.core.members.of::<Self>().forget(&self.name);
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What is next about a hold.
struct Due {
    at: u64,
    /// The lease to ask for then. `None`: its end.
    lease: Option<Duration>,
}

/// When a grant by message is raised to its lease, and when again after a failure: shorter holds cost
/// no further command, and three attempts fit into what it has.
const RAISE: u64 = 50_000_000;
const RAISE_AGAIN: u64 = 400_000_000;

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
    site: &'a Arc<Site>,
    /// The process's place in the lock's queue, which goes with it.
    pub(crate) place: Option<Box<Place>>,
    is_laid_down: bool,
}

impl<'a> Baton<'a> {
    pub(crate) fn new(site: &'a Arc<Site>, place: Option<Box<Place>>) -> Self {
        Self { site, place, is_laid_down: false }
    }

    /// The leader was granted a hold: the seat has it, nobody leads. `false`: the hold is not ours
    /// any more.
    pub(crate) fn admit(&mut self, tenancy: &Arc<Tenancy>, terms: Terms) -> Result<bool, Error> {
        let admitted = self.site.admit(tenancy, terms)?;
        if admitted {
            self.place = None;
            self.is_laid_down = true;
        }
        Ok(admitted)
    }

    /// The seat is taken, and nobody leads any more.
    fn lay_down(mut self) {
        self.is_laid_down = true;
    }
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        if self.is_laid_down {
            return;
        }
        if let Some(place) = self.site.gate.hand_on(self.place.take()) {
            self.site.give_up(&place);
        }
    }
}

/// A place that is given up.
struct GiveUp {
    site: Arc<Site>,
    command: Command,
}

impl Receiver for GiveUp {
    fn receive(&self, outcome: Outcome) {
        if script::lock::released(outcome).is_err() {
            let lease = self.site.core.config.watchdog_timeout;
            self.site.repeat(self.command.clone(), lease);
        }
    }
}

/// A grant for an owner of this client that does not wait. Nobody has it: a request came late, or its
/// thread had left.
pub(crate) fn give_back(core: &Core, owner: u64, grant: &Grant<'_>) {
    let Some(share) = super::place::share(grant.details) else { return };
    if grant.database != core.database() || core.is_shut_down() {
        return;
    }
    let name: Arc<str> = grant.lock.into();
    let owner = format!("{}:{owner}", core.id.as_str());
    let (keys, alone) = (LockKeys::new(&name), AtomicBool::new(false));
    let lane = core.lane(&name);
    let scripts = LockScripts {
        lane: &lane,
        name: &name,
        keys: &keys,
        database: grant.database,
        alone: &alone,
    };
    let command = scripts.give_up_command(owner.as_bytes(), share.chain);
    core.watchdog.run_errand(Errand::brief(&name, command));
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
            Ok(script::lock::Released::HandedOn) => {
                if let Some(line) = &self.hold.line {
                    line.handed_on();
                }
                Ok(())
            }
            Ok(script::lock::Released::Done) => Ok(()),
            Ok(script::lock::Released::LeftToOthers) => {
                self.site.gate.left_to_others();
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
