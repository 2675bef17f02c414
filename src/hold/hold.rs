//! A hold: an owner to which Redis has granted a lock, with the deadline of its lease and the
//! reason of its loss.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redlatch_client::pubsub::Subscription;
use redlatch_client::sync::{Mutex, clock};

use super::cut::LeaseCut;
use super::line::Line;
use super::terms::Terms;
use crate::ask::Asked;
use crate::error::LostReason;
use crate::lease::schedule::{RENEW_AFTER, TRACK_AFTER, deadline};
use crate::observe::Kind;
use crate::runtime::{LiveOwner, Registered};
use crate::scripts::lock::Tokens;
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::scripts::renewal::{Longer, StillHeld};
use crate::scripts::{Chain, Mode, Owner};

/// The details of a grant: the number of other processes that wait, and the fencing tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct GrantDetails {
    /// The number of processes that wait behind the hold.
    pub(crate) places: u32,
    /// Whether a message reported the grant. After such a grant, other processes most likely wait
    /// when this hold is released.
    pub(crate) by_message: bool,
    pub(crate) chain: Chain,
    pub(crate) tokens: Option<Tokens>,
}

/// A hold: one owner id on one key.
///
/// If a hold is lost while its lease is extended, one of two threads must release it. A thread that
/// detects the loss sets `lost`, and then reads the deadline and `unconfirmed`. A thread that gets
/// the answer to an extension sets the deadline and `unconfirmed`, and then reads `lost` (all
/// `SeqCst`). So at least one of them sees what the other has set.
#[derive(Debug)]
pub(crate) struct Hold {
    /// The threads that may get the hold next. `None` if the lock is not a fair lock.
    pub(crate) line: Option<Box<Line>>,
    pub(crate) owner: Owner,
    pub(crate) terms: Terms,
    /// The time on [`clock`] until which the server certainly keeps the hold. This time never
    /// decreases.
    pub(super) deadline: AtomicU64,
    /// The latest time on [`clock`] until which any tenant that shares the hold wants it. The
    /// gate's mutex must be locked to write this field.
    pub(super) latest_end: AtomicU64,
    /// The longest lease that a request has asked for since the grant, in nanoseconds. Zero if
    /// there was no such request.
    longest_requested: AtomicU64,
    /// The longest lease that the server has confirmed, in nanoseconds.
    confirmed: AtomicU64,
    /// The cut of a lease that is too long at the server.
    pub(super) cut: LeaseCut,
    /// The lease that the server granted first, in nanoseconds.
    pub(super) granted_lease: u64,
    /// Whether the hold still has the short lease of a grant by message, and not the lease of its
    /// terms. (The lease is short because the process that gets such a grant may be stopped.) A
    /// renewal that raises or cuts the lease clears this mark.
    pub(super) provisional: AtomicBool,
    pub(crate) details: GrantDetails,
    /// How many of the grant's 1,024 fencing tokens are used: see [`may_pass`](Self::may_pass). A
    /// hold without tokens does not use this field.
    pub(super) tokens_used: AtomicU16,
    /// Keeps the owner registered as a recipient while messages may name it.
    pub(super) _registered: Option<Arc<Registered>>,
    /// Keeps the owner live until the hold is released. `None` for a permit.
    live: Option<KeepsLive>,
    /// The request for which the server granted the hold.
    pub(crate) asked: Asked,
    /// Whether a copy of one of this owner's requests may arrive after the release, because a
    /// request was sent twice or had an unknown outcome. The client must undo such a copy.
    pub(crate) in_doubt: bool,
    /// The number of users' [scripts](crate::Script) that may still run under this owner. The
    /// gate's mutex must be locked to increment it.
    scripts: AtomicU32,
    /// The reason of the loss, as the number of a [`LostReason`]. Zero if the hold was not lost. A
    /// thread sets this field before it vacates the seat, so that no thread passes a lost hold on.
    pub(super) lost: AtomicU8,
    /// Whether the last renewal failed.
    pub(super) unconfirmed: AtomicBool,
    /// The error text of the last renewal. (Boxed, because most holds have none.)
    trouble: Mutex<Option<Box<Arc<str>>>>,
    pub(super) tracked: AtomicBool,
    /// The time on [`clock`] before which no thread releases a kept hold: see `site/keep.rs`. Zero
    /// if the hold is not kept.
    pub(crate) kept_until: AtomicU64,
    /// The newest news of whether other processes wait for the lock: twice the time of the news on
    /// [`clock`], plus one if they wait.
    wanted: AtomicU64,
    /// The time on [`clock`] at which the hold must ask the server whether others wait, even if no
    /// renewal is due. [`NEVER`] if no thread wants to know whether others wait. With `NEVER`, the
    /// hold has no further cost.
    pub(super) look_at: AtomicU64,
    /// The subscription to the client's own channel, on which scripts send the message that others
    /// wait. Empty before the client subscribes, or if the owner does not [want](Owner::hears) such
    /// messages. (Boxed, because most holds have none.)
    own: OnceLock<Box<Subscription>>,
}

const NEVER: u64 = u64::MAX;

/// Keeps an owner [live](LiveOwner) from before its first request. The owner remains live until its
/// hold is released, or until no thread wants the lock under this owner.
///
/// At first this value belongs to the thread that asks for the lock, and then to the hold. If the
/// gate does not admit the hold, the thread asks again under the same owner. For this case, the
/// thread keeps a clone of the hold until a later hold replaces it.
#[derive(Debug)]
pub(crate) enum KeepsLive {
    Owner(LiveOwner),
    Hold(Arc<Hold>),
}

impl KeepsLive {
    fn end(&self) {
        match self {
            Self::Owner(owner) => owner.end(),
            Self::Hold(hold) => hold.ended(),
        }
    }
}

impl Hold {
    /// Returns a hold that was granted with the lease of its terms.
    pub(crate) fn new(owner: Owner, terms: Terms, asked: Asked, in_doubt: bool) -> Self {
        Self::granted(owner, terms, terms.lease(), asked, in_doubt)
    }

    /// Returns a hold without a line that the server granted with this lease. If this lease differs
    /// from the lease of the terms, a renewal later raises or cuts it.
    pub(crate) fn granted(
        owner: Owner,
        terms: Terms,
        lease: Duration,
        asked: Asked,
        in_doubt: bool,
    ) -> Self {
        let (granted, of_terms) = (clock::nanos(lease), terms.nanos());
        let first_look = TRACK_AFTER.min(of_terms / RENEW_AFTER);
        let look_at = if owner.hears() { asked.at.saturating_add(first_look) } else { NEVER };
        Self {
            line: None,
            owner,
            terms,
            // If the lease of the terms is the shorter one, it applies, because a renewal will cut
            // the hold to it.
            deadline: AtomicU64::new(deadline(asked.at, lease.min(terms.lease()))),
            latest_end: AtomicU64::new(u64::MAX),
            longest_requested: AtomicU64::new(0),
            confirmed: AtomicU64::new(granted),
            cut: LeaseCut::new(granted > of_terms),
            granted_lease: granted,
            provisional: AtomicBool::new(granted != of_terms),
            details: GrantDetails::default(),
            tokens_used: AtomicU16::new(0),
            _registered: None,
            live: None,
            asked,
            in_doubt,
            scripts: AtomicU32::new(0),
            lost: AtomicU8::new(0),
            unconfirmed: AtomicBool::new(false),
            trouble: Mutex::new(None),
            tracked: AtomicBool::new(false),
            kept_until: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            look_at: AtomicU64::new(look_at),
            own: OnceLock::new(),
        }
    }

    /// Makes a hold that keeps its owner live. A clone of the hold goes into the asking thread's
    /// `live`.
    pub(crate) fn of_live(self, live: &mut Option<KeepsLive>) -> Arc<Self> {
        // The gate did not admit the earlier hold in `live`, so usually no other thread refers to
        // it. Then its own `KeepsLive` is moved out of it. Otherwise each hold would keep the
        // previous hold alive, and the drop of a long series of holds would overflow the stack.
        let before = match live.take() {
            Some(KeepsLive::Hold(hold)) => Arc::try_unwrap(hold)
                .map_or_else(|hold| Some(KeepsLive::Hold(hold)), |hold| hold.live),
            before => before,
        };
        let hold = Arc::new(Self { live: before, ..self });
        *live = Some(KeepsLive::Hold(Arc::clone(&hold)));
        hold
    }

    /// Records that the server has released the hold or does not have it. From now on the owner is
    /// not live.
    pub(crate) fn ended(&self) {
        self.live.as_ref().inspect(|live| live.end());
    }

    /// Returns the hold with the details of its grant. `registered` keeps the owner registered for
    /// messages.
    pub(crate) fn with_details(
        self,
        details: GrantDetails,
        registered: Option<Arc<Registered>>,
    ) -> Self {
        let wanted = AtomicU64::new(u64::from(details.places > 0));
        Self { details, _registered: registered, wanted, ..self }
    }

    /// Returns the hold with a fair lock's line.
    pub(crate) fn in_line(self, line: Line) -> Self {
        Self { line: Some(Box::new(line)), ..self }
    }

    /// Whether the server tracks the hold's key, or has tracked it.
    pub(crate) fn is_tracked(&self) -> bool {
        self.tracked.load(Ordering::Relaxed)
    }

    pub(crate) fn is_provisional(&self) -> bool {
        self.provisional.load(Ordering::Relaxed)
    }

    /// Whether the hold is [provisional](Self::is_provisional), and the lease of its terms is
    /// longer.
    pub(crate) fn is_to_be_raised(&self) -> bool {
        self.is_provisional() && !self.was_granted_longer()
    }

    /// Whether the server granted the hold with a lease longer than that of its terms.
    pub(crate) fn was_granted_longer(&self) -> bool {
        self.granted_lease > self.terms.nanos()
    }

    /// Makes the hold ask the server whether others wait, at the latest at this time on [`clock`].
    /// The caller then sets the alarm.
    pub(crate) fn look_by(&self, at: u64) {
        self.look_at.fetch_min(at, Ordering::SeqCst);
    }

    /// Returns the time of the next look after a renewal or a look that is sent now. (If the hold
    /// is renewed, the next renewal comes first.)
    pub(super) fn next_look(&self) -> u64 {
        clock::now().saturating_add(self.terms.nanos() / RENEW_AFTER)
    }

    /// Whether the renewal that is about to be sent must ask whether others wait. The hold listens
    /// before it asks, so that it does not miss a waiter that comes between these steps.
    pub(super) fn looks(&self, listen: impl FnOnce() -> Subscription) -> bool {
        if self.owner.hears() {
            self.own.get_or_init(|| Box::new(listen()));
        }
        let next = |at: u64| (at != NEVER).then(|| self.next_look());
        self.look_at.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) & 1 != 0
    }

    /// Takes the message that others wait, which came at `sent_at`, or the server's answer whether
    /// others wait, to a question that was sent at `sent_at`. Only newer news undoes it. (A message
    /// that came after a question was sent is newer than the answer.)
    pub(crate) fn told_wanted(&self, is_wanted: bool, sent_at: u64) {
        #[cfg(soak_mutants)]
        if !is_wanted && mutants::is("a holder that does not hear that waiters have left") {
            return;
        }
        self.wanted.fetch_max((sent_at << 1) | u64::from(is_wanted), Ordering::SeqCst);
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.owner {
            Owner::Permit(_) => Kind::ExpirableSemaphore,
            Owner::Lock { mode: Mode::Read, .. } => Kind::ReadLock,
            Owner::Lock { mode: Mode::Write, .. } => Kind::WriteLock,
            Owner::Lock { .. } if self.line.is_some() => Kind::FairLock,
            Owner::Lock { .. } if self.details.tokens.is_some() => Kind::FencedLock,
            Owner::Lock { .. } => Kind::ReentrantLock,
        }
    }

    /// Returns the time on [`clock`] until which this process has the hold.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::SeqCst).min(self.needed_until())
    }

    /// Returns the time until which the tenants, or a thread that keeps the hold, want it.
    fn needed_until(&self) -> u64 {
        self.latest_end.load(Ordering::SeqCst).max(self.kept_until.load(Ordering::SeqCst))
    }

    /// Sets the time until which the tenants that share the hold want it. (If the server keeps the
    /// hold longer, the client releases the hold at this time.)
    pub(crate) fn set_latest_end(&self, until: u64) {
        self.latest_end.store(until, Ordering::SeqCst);
    }

    /// Whether the tenants want the hold for less time than the server keeps it.
    pub(super) fn ends_before_lease(&self) -> bool {
        self.needed_until() < self.deadline.load(Ordering::SeqCst)
    }

    /// Records that the server has confirmed the hold for `lease`, counted from the sending of the
    /// request.
    pub(crate) fn confirm(&self, sent_at: u64, lease: Duration) {
        self.deadline.fetch_max(deadline(sent_at, lease), Ordering::SeqCst);
        self.confirmed.fetch_max(clock::nanos(lease), Ordering::SeqCst);
        self.unconfirmed.store(false, Ordering::SeqCst);
        *self.trouble.lock() = None;
    }

    /// Records that the server has renewed the hold to the lease of its terms. `certain` is the
    /// part of this lease that no late command can take away. Zero: the renewal only asked whether
    /// the server has the hold. (After a failover the client may ask this for a provisional hold.
    /// The answer must not mark such a hold as raised, because then no renewal would raise it.)
    pub(crate) fn renewed(&self, sent_at: u64, certain: Duration) {
        self.confirm(sent_at, certain);
        if !certain.is_zero() {
            self.provisional.store(false, Ordering::Relaxed);
        }
    }

    /// Records that the caller is about to ask for a lease. The caller records this before the
    /// request, because the outcome of the request may stay unknown. Returns the [certain
    /// part](Self::certain_part) of the lease.
    pub(crate) fn note_lease_request(&self, lease: Duration) -> Duration {
        self.longest_requested.fetch_max(clock::nanos(lease), Ordering::SeqCst);
        self.certain_part(lease)
    }

    /// Returns the longest lease that one of the hold's threads has asked for, in nanoseconds. (A
    /// grant by message may have a longer lease.)
    fn longest_asked(&self) -> u64 {
        self.longest_requested.load(Ordering::SeqCst).max(self.terms.nanos())
    }

    /// Makes the lease older by this number of nanoseconds: moves all its times into the past.
    #[cfg(feature = "in-memory")]
    pub(super) fn age(&self, by: u64) {
        for time in [&self.deadline, &self.latest_end, &self.kept_until] {
            let earlier = |time: u64| match time {
                // Zero and `u64::MAX` are not times.
                0 | u64::MAX => None,
                time => Some(time.saturating_sub(by).max(1)),
            };
            let _unset = time.fetch_update(Ordering::SeqCst, Ordering::SeqCst, earlier);
        }
    }

    /// Returns the certain part of a lease: the part that no late command can take away. It is less
    /// than the lease if a [`LeaseCut`] may come later.
    pub(crate) fn certain_part(&self, lease: Duration) -> Duration {
        self.cut.certain_part(lease)
    }

    /// Returns what the next renewal does with a lease that is [too long](LeaseCut::next_cut).
    pub(crate) fn next_cut(&self) -> Longer {
        self.cut.next_cut(|| self.longest_asked())
    }

    /// Handles the server's [answer](LeaseCut::record_answer) to a renewal that was sent with
    /// `longer`.
    pub(crate) fn cut_answered(&self, longer: Longer, held: Result<StillHeld, ()>, resent: bool) {
        self.cut.record_answer(longer, held, resent);
    }

    /// Whether the server may keep the hold past the deadline that this process knows. This is
    /// possible if the outcome of an extension is unknown, if a lease that is too long is not cut
    /// yet, or if a cut [may come](Self::certain_part). (After an extension with an unknown
    /// outcome, only the confirmation of an equal or longer lease makes the outcome known.)
    pub(crate) fn may_outlast_deadline(&self) -> bool {
        let longest = self.longest_requested.load(Ordering::SeqCst);
        self.is_unconfirmed()
            || longest > self.confirmed.load(Ordering::SeqCst)
            || self.cut.is_pending()
    }

    /// Returns the longest time for which the server may keep the hold from now on.
    pub(crate) fn longest_lease(&self) -> Duration {
        Duration::from_nanos(self.longest_requested.load(Ordering::SeqCst).max(self.granted_lease))
    }

    /// Marks the hold as lost. Returns the reason with which the hold was first marked.
    pub(crate) fn lose(&self, reason: LostReason) -> LostReason {
        let lost =
            self.lost.compare_exchange(0, reason.number(), Ordering::SeqCst, Ordering::SeqCst);
        lost.err().and_then(LostReason::from_number).unwrap_or(reason)
    }

    /// Returns the reason why the server no longer has the hold: the reason that the client has
    /// recorded, if there is one. Otherwise, if the deadline has passed, the reason is the end of
    /// the lease, even if the watchdog has not noticed it yet.
    pub(crate) fn why_gone(&self) -> LostReason {
        let is_over = clock::now() >= self.deadline();
        let reason = if is_over { LostReason::LeaseExpired } else { LostReason::Revoked };
        self.lost().unwrap_or(reason)
    }

    /// Whether this process has the hold, as far as it knows: the hold is not lost, and its
    /// deadline has not passed.
    pub(crate) fn is_held_at(&self, now: u64) -> bool {
        self.lost().is_none() && now < self.deadline()
    }

    pub(crate) fn lost(&self) -> Option<LostReason> {
        LostReason::from_number(self.lost.load(Ordering::SeqCst))
    }

    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.unconfirmed.load(Ordering::SeqCst)
    }

    /// Whether a thread may pass the hold to a thread with these terms. The terms must be equal,
    /// and the next thread must get at least nine tenths of a fixed lease. If the lease was
    /// extended since the grant, the hold is never passed: if the next thread died, others would
    /// wait for the longer lease. A hold is also never passed to a thread that will leave it to
    /// expire, because that thread needs the full lease.
    pub(crate) fn may_pass(&self, terms: Terms, now: u64) -> bool {
        let left = self.deadline().saturating_sub(now);
        self.terms == terms
            && !terms.leaves_to_expire()
            && self.details.tokens.is_none_or(|_| self.token_after(self.tokens_used()).is_some())
            && self.lost().is_none()
            && !self.may_run_scripts()
            && !self.is_kept_at(now)
            && !self.is_unconfirmed()
            && self.longest_requested.load(Ordering::SeqCst) <= self.granted_lease
            && if terms.is_watched() {
                left > 0
            } else {
                // A renewal raises a provisional hold for the next thread, so nine tenths of the
                // provisional lease are enough.
                left >= self.granted_lease.min(terms.nanos()) / 10 * 9
            }
    }

    /// Records that a user's script is about to be sent under this owner. The caller has the gate's
    /// mutex, and the sender's tenancy is in the seat. Until the call of
    /// [`script_ended`](Self::script_ended), no thread passes the hold on.
    pub(crate) fn script_begins(&self) {
        self.scripts.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that a script of [`script_begins`](Self::script_begins) has run, or will never run.
    pub(crate) fn script_ended(&self) {
        self.scripts.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the server may still run a user's script under this owner. If so, the hold is
    /// released and not passed on. Otherwise the script could run while another thread has the hold
    /// under this owner.
    fn may_run_scripts(&self) -> bool {
        #[cfg(soak_mutants)]
        if mutants::is("a hold that is passed on before its scripts") {
            return false;
        }
        self.scripts.load(Ordering::SeqCst) > 0
    }

    /// Keeps the hold (`site/keep.rs`) at least until `until`. The caller has the gate's mutex, and
    /// its thread is leaving a level. A later call never shortens this time.
    pub(crate) fn keep_until(&self, until: u64) {
        self.kept_until.fetch_max(until, Ordering::SeqCst);
    }

    pub(crate) fn is_kept(&self) -> bool {
        // Most holds are never kept. For such a hold this function reads no clock.
        self.kept_until.load(Ordering::SeqCst) != 0 && self.is_kept_at(clock::now())
    }

    pub(crate) fn is_kept_at(&self, now: u64) -> bool {
        now < self.kept_until.load(Ordering::SeqCst)
    }

    pub(super) fn tokens_used(&self) -> u16 {
        self.tokens_used.load(Ordering::Relaxed)
    }

    pub(super) fn token_after(&self, used: u16) -> Option<NonZero<u64>> {
        self.details.tokens?.after(used)
    }

    pub(crate) fn renewal_failed(&self, cause: &Arc<str>) {
        *self.trouble.lock() = Some(Box::new(Arc::clone(cause)));
        self.unconfirm();
    }

    pub(super) fn trouble(&self) -> Option<Arc<str>> {
        self.trouble.lock().as_deref().cloned()
    }

    pub(crate) fn unconfirm(&self) {
        self.unconfirmed.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{iter, thread};

    use super::*;
    use crate::scripts::ClientId;

    const LEASE: Duration = Duration::from_secs(3);
    const LONGER: Duration = Duration::from_secs(30);
    const MESSAGES: u64 = 1_000_000;

    /// Returns a hold whose lease is too long at the server, so that the next renewal cuts it.
    fn to_be_cut() -> Hold {
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: clock::now() };
        let owner = ClientId::random().unwrap().next_owner();
        let hold = Hold::new(owner, Terms::watched(LEASE), asked, false);
        hold.cut_answered(hold.next_cut(), Ok(StillHeld::TooLong), false);
        assert_eq!(hold.certain_part(LONGER), LONGER);
        hold
    }

    #[test]
    fn a_longer_lease_counts_only_as_far_as_a_late_cut_would_leave_it() {
        for (answer, resent, is_lost) in [
            (Ok(StillHeld::Yes), false, false),
            (Ok(StillHeld::Yes), true, true),
            (Ok(StillHeld::No), true, true),
            (Err(()), false, true),
            (Err(()), true, true),
        ] {
            let hold = to_be_cut();
            let cut = hold.next_cut();
            assert_eq!(cut, Longer::Cut(LEASE));
            assert_eq!(hold.note_lease_request(LONGER), LEASE, "it is on its way");
            hold.cut_answered(cut, answer, resent);
            let certain = if is_lost { LEASE } else { LONGER };
            assert_eq!(hold.certain_part(LONGER), certain, "{answer:?}, {resent}");
            // The answer to a later cut does not show what became of the first cut.
            hold.cut_answered(Longer::Kept, Ok(StillHeld::TooLong), false);
            let cut = hold.next_cut();
            assert_eq!(cut, Longer::Cut(LONGER));
            hold.cut_answered(cut, Ok(StillHeld::Yes), false);
            assert_eq!(hold.certain_part(LONGER), certain, "{answer:?}, {resent}, and another one");
        }
    }

    /// If a cut and a request for a longer lease overlap, the cut is dropped.
    #[test]
    fn a_longer_lease_requested_before_a_cut_is_not_cut() {
        let hold = to_be_cut();
        assert_eq!(hold.note_lease_request(LONGER), LONGER);
        assert_eq!(hold.next_cut(), Longer::Cut(LONGER));
        assert_eq!(hold.certain_part(LONGER), LONGER);
    }

    /// If the client took the cut as done, it would not release the hold after its own deadline.
    /// Others would then wait for the end of the longer lease.
    #[test]
    fn a_hold_whose_lease_was_not_cut_for_certain_may_outlive_its_deadline() {
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: clock::now() };
        let owner = ClientId::random().unwrap().next_owner();
        let hold = Hold::new(owner, Terms::watched(LEASE), asked, false);
        assert!(!hold.may_outlast_deadline());
        let handed = Hold::granted(owner, Terms::watched(LEASE), LONGER, asked, false);
        for hold in [to_be_cut(), handed] {
            assert!(hold.may_outlast_deadline(), "nothing has cut it");
            let cut = hold.next_cut();
            assert!(hold.may_outlast_deadline(), "the cut is on its way");
            hold.cut_answered(cut, Ok(StillHeld::Yes), false);
            assert!(!hold.may_outlast_deadline());
            hold.cut_answered(hold.next_cut(), Ok(StillHeld::TooLong), false);
            hold.cut_answered(hold.next_cut(), Err(()), false);
            hold.cut_answered(hold.next_cut(), Ok(StillHeld::Yes), false);
            // The server has extended the lease, but only a part of the lease is certain, because a
            // cut without a reply may still run.
            hold.confirm(clock::now(), hold.note_lease_request(LONGER));
            assert!(hold.may_outlast_deadline(), "a cut was lost");
        }
    }

    /// If the answer marked the hold as raised, `leave_to_expire` would return `Ok` and leave the
    /// hold with the 2 s of the message.
    #[test]
    fn an_answer_to_a_question_does_not_raise_a_hold_that_a_message_granted() {
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: clock::now() };
        let owner = ClientId::random().unwrap().next_owner();
        let hold = Hold::granted(owner, Terms::fixed(LONGER), LEASE, asked, false);
        hold.renewed(clock::now(), Duration::ZERO);
        assert!(hold.is_to_be_raised());
        hold.renewed(clock::now(), hold.note_lease_request(LONGER));
        assert!(!hold.is_to_be_raised());
    }

    /// If the old answer undid the message, the holder would not notice the waiter until its next
    /// renewal.
    #[test]
    fn an_answer_that_is_older_than_a_message_does_not_undo_it() {
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: clock::now() };
        let owner = ClientId::random().unwrap().next_owner();
        let hold = Hold::new(owner, Terms::watched(LEASE), asked, false);
        let before = clock::now();
        hold.told_wanted(true, clock::now());
        hold.told_wanted(false, before);
        assert!(hold.is_wanted());
        hold.told_wanted(false, later(clock::now()));
        assert!(!hold.is_wanted());
        let last_question = AtomicU64::new(0);
        thread::scope(|scope| {
            let hears = scope.spawn(|| {
                for _ in 0..MESSAGES {
                    let before = clock::now();
                    hold.told_wanted(true, clock::now());
                    let is_undone = !hold.is_wanted();
                    let question = last_question.load(Ordering::SeqCst);
                    assert!(!is_undone || question > before, "an older answer undid it");
                }
            });
            while !hears.is_finished() {
                let question = clock::now();
                last_question.store(question, Ordering::SeqCst);
                hold.told_wanted(false, question);
            }
        });
    }

    /// Waits until the clock has passed this time.
    fn later(time: u64) -> u64 {
        iter::repeat_with(clock::now).find(|now| *now > time).unwrap()
    }

    /// Suppose that an inner level asked for a lease of an hour and got no answer. If the hold
    /// forgot this request, the server could keep the hold for the hour after the end of the outer
    /// level's lease.
    #[test]
    fn a_hold_may_outlive_its_deadline_until_its_longest_requested_lease_is_confirmed() {
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: clock::now() };
        let owner = ClientId::random().unwrap().next_owner();
        let hold = Hold::new(owner, Terms::watched(LEASE), asked, false);
        hold.note_lease_request(LONGER);
        hold.unconfirm();
        hold.confirm(clock::now(), hold.note_lease_request(LEASE));
        assert!(!hold.is_unconfirmed() && hold.may_outlast_deadline());
        hold.confirm(clock::now(), hold.note_lease_request(LONGER));
        assert!(!hold.may_outlast_deadline());
    }

    #[test]
    fn a_hold_that_is_gone_at_the_server_has_expired_if_its_deadline_is_past() {
        let why = |at| {
            let asked = Asked { forced_unlocks: 0, incarnation: 0, at };
            let owner = ClientId::random().unwrap().next_owner();
            Hold::new(owner, Terms::watched(LEASE), asked, false).why_gone()
        };
        let now = clock::now();
        assert_eq!(why(now), LostReason::Revoked);
        assert_eq!(why(now - clock::nanos(LEASE)), LostReason::LeaseExpired);
    }
}
