//! A seat: the threads of this process that have the hold of a name, and the levels of each thread.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Thread, clock};

use super::tenancy::Tenancy;
use super::terms::Terms;
use super::watch::Renewing;
use crate::lease::schedule::{RenewalProgress, RenewalState};
use crate::scripts::Mode;

/// The seat of a hold: its tenancies and their levels.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) tenancy: Arc<Tenancy>,
    pub(crate) levels: Levels,
    /// The other tenants, for a lock that threads share. (Boxed, because a seat is moved, and most
    /// seats have one tenant.)
    shared: Option<Box<SharedHold>>,
    /// The time at which the hold was granted, or was last passed.
    pub(crate) taken_at: u64,
    /// Whether other threads of this process may join the hold, because no process waited for the
    /// lock at the server's last reply.
    pub(crate) is_open: bool,
    pub(crate) progress: RenewalProgress,
    /// Values that live as long as the seat. (Boxed, because most seats have none.)
    pub(crate) pinned: Option<Box<Pinned>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LevelEnd {
    /// The tenancy has levels left.
    StillHeld,
    /// The tenancy is over, and other tenancies still share the hold.
    OthersStay,
}

/// Values that live as long as the seat, and are never dropped under the gate's mutex.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    /// The site, if a guard was [forgotten](crate::LockGuard::forget) and so no longer keeps the
    /// site alive.
    pub(crate) site: Option<Arc<dyn Any + Send + Sync>>,
    /// A value for a thread that has waited on a condition. The value is dropped when the thread
    /// leaves the lock again.
    pub(crate) until_left: Option<Box<dyn Any + Send>>,
}

#[derive(Debug, Default)]
struct SharedHold {
    others: OtherTenants,
    /// The time until which the tenants want the hold.
    ends: LevelEnds,
}

#[derive(Debug)]
struct Tenant {
    tenancy: Arc<Tenancy>,
    levels: Levels,
}

/// The tenants of a hold besides the tenant in `Seat::tenancy`. Each tenancy stores its index here,
/// so a leaving thread needs no search. A thread that takes another level must search for its
/// tenancy. There may be thousands of owned guards, and no thread takes another level of their
/// tenancies. So these tenancies have their own list, which no thread searches.
#[derive(Debug, Default)]
struct OtherTenants {
    threads: Vec<Tenant>,
    placeholders: Vec<Tenant>,
}

impl OtherTenants {
    fn of(&mut self, thread: &Thread) -> &mut Vec<Tenant> {
        if thread.is_placeholder() { &mut self.placeholders } else { &mut self.threads }
    }

    fn push(&mut self, tenant: Tenant) {
        let all = self.of(&tenant.tenancy.thread);
        tenant.tenancy.set_index(all.len());
        let thread = Arc::clone(&tenant.tenancy.thread);
        self.of(&thread).push(tenant);
    }

    fn get(&mut self, tenancy: &Arc<Tenancy>) -> Option<&mut Tenant> {
        let tenant = self.of(&tenancy.thread).get_mut(tenancy.index())?;
        Arc::ptr_eq(&tenant.tenancy, tenancy).then_some(tenant)
    }

    /// Removes a tenant that [`get`](Self::get) has found.
    fn remove(&mut self, tenancy: &Arc<Tenancy>) -> Tenant {
        let (all, index) = (self.of(&tenancy.thread), tenancy.index());
        let gone = all.swap_remove(index);
        if let Some(moved) = all.get(index) {
            moved.tenancy.set_index(index);
        }
        gone
    }

    fn pop(&mut self) -> Option<Tenant> {
        self.threads.pop().or_else(|| self.placeholders.pop())
    }

    fn iter(&self) -> impl Iterator<Item = &Tenant> {
        self.threads.iter().chain(&self.placeholders)
    }
}

/// The time until which the tenants that share a hold want it. A fixed lease limits how long a
/// thread that hangs keeps the hold. So if a tenant with a longer lease comes and leaves, the fixed
/// lease of another tenant must not become longer.
#[derive(Debug, Default)]
struct LevelEnds {
    /// The number of levels that the watchdog renews. A renewed level has no end of its own.
    endless: usize,
    /// The ends of the other levels, each with the number of levels that end at that time.
    ends: BTreeMap<u64, usize>,
}

impl LevelEnds {
    fn add(&mut self, level: HoldLevel) {
        if level.is_watched() {
            self.endless += 1;
        } else {
            *self.ends.entry(level.ends).or_default() += 1;
        }
    }

    fn remove(&mut self, level: HoldLevel) {
        if level.is_watched() {
            self.endless = self.endless.saturating_sub(1);
        } else if let Some(count) = self.ends.get_mut(&level.ends) {
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&level.ends);
            }
        }
    }

    /// Returns the latest end of all levels.
    fn until(&self) -> u64 {
        match self.ends.last_key_value() {
            Some((ends, _)) if self.endless == 0 => *ends,
            _ => NEVER,
        }
    }
}

impl Seat {
    pub(crate) fn new(tenancy: Arc<Tenancy>) -> Self {
        let since = tenancy.began();
        let is_open = tenancy.hold().details.places == 0;
        let level = HoldLevel::since(tenancy.hold().terms, since);
        let is_shared = tenancy.hold().owner.mode() == Mode::Read;
        let mut seat = Self {
            tenancy,
            levels: Levels::of(level),
            shared: is_shared.then(Box::default),
            taken_at: since,
            is_open,
            progress: RenewalProgress::Done,
            pinned: None,
        };
        seat.note_level(level);
        seat
    }

    /// Returns the seat of the next thread, to which the hold is passed. If a renewal is on its
    /// way, the new seat awaits its reply. Otherwise the new seat has no failures and no retry, so
    /// the next renewal comes at the usual time, even if a cut was due at once.
    pub(crate) fn passed_to(&self, next: &Arc<Tenancy>) -> Self {
        let progress = if self.progress.is_sent() {
            RenewalProgress::Sent { failed: 0 }
        } else {
            RenewalProgress::Done
        };
        Self { progress, ..Self::new(Arc::clone(next)) }
    }

    pub(crate) fn is(&self, tenancy: &Arc<Tenancy>) -> bool {
        Arc::ptr_eq(&self.tenancy, tenancy)
    }

    pub(crate) fn has(&mut self, tenancy: &Arc<Tenancy>) -> bool {
        self.is(tenancy) || self.other(tenancy).is_some()
    }

    pub(crate) fn tenancies(&self) -> impl Iterator<Item = &Arc<Tenancy>> {
        self.tenants().map(|(tenancy, _)| tenancy)
    }

    pub(crate) fn tenants(&self) -> impl Iterator<Item = (&Arc<Tenancy>, &Levels)> {
        let others = self.shared.iter().flat_map(|shared| shared.others.iter());
        let others = others.map(|tenant| (&tenant.tenancy, &tenant.levels));
        std::iter::once((&self.tenancy, &self.levels)).chain(others)
    }

    /// Returns the tenant with this tenancy, if it is in `OtherTenants`.
    fn other(&mut self, tenancy: &Arc<Tenancy>) -> Option<&mut Tenant> {
        self.shared.as_mut()?.others.get(tenancy)
    }

    pub(crate) fn tenant(&mut self, thread: &Thread) -> Option<(&Arc<Tenancy>, &mut Levels)> {
        if self.tenancy.thread.id() == thread.id() {
            return Some((&self.tenancy, &mut self.levels));
        }
        let shared = self.shared.as_mut().filter(|_| !thread.is_placeholder())?;
        let is_its = |tenant: &&mut Tenant| tenant.tenancy.thread.id() == thread.id();
        let tenant = shared.others.threads.iter_mut().find(is_its)?;
        Some((&tenant.tenancy, &mut tenant.levels))
    }

    pub(crate) fn levels_of(&mut self, tenancy: &Arc<Tenancy>) -> Option<&mut Levels> {
        if self.is(tenancy) {
            return Some(&mut self.levels);
        }
        self.other(tenancy).map(|tenant| &mut tenant.levels)
    }

    pub(crate) fn join(&mut self, tenancy: Arc<Tenancy>, terms: Terms, now: u64) {
        let level = HoldLevel::since(terms, now);
        let tenant = Tenant { tenancy, levels: Levels::of(level) };
        self.shared.get_or_insert_default().others.push(tenant);
        self.note_level(level);
    }

    /// Ends a level. Returns `None` and changes nothing if the level is the only level of the whole
    /// seat or is not in the seat.
    #[inline]
    pub(crate) fn end_level(
        &mut self,
        tenancy: &Arc<Tenancy>,
        which: Option<HoldLevel>,
    ) -> Option<LevelEnd> {
        let Some(shared) = &mut self.shared else {
            let ended = self.is(tenancy).then(|| self.levels.end(which));
            return ended.flatten().map(|_| LevelEnd::StillHeld);
        };
        let (gone, end) = if Arc::ptr_eq(&self.tenancy, tenancy) {
            match self.levels.end(which) {
                Some(gone) => (gone, LevelEnd::StillHeld),
                None => {
                    let next = shared.others.pop()?;
                    self.tenancy = next.tenancy;
                    (std::mem::replace(&mut self.levels, next.levels).outer, LevelEnd::OthersStay)
                }
            }
        } else {
            let others = &mut shared.others;
            match others.get(tenancy)?.levels.end(which) {
                Some(gone) => (gone, LevelEnd::StillHeld),
                None => (others.remove(tenancy).levels.outer, LevelEnd::OthersStay),
            }
        };
        shared.ends.remove(gone);
        self.tenancy.hold().set_latest_end(shared.ends.until());
        Some(end)
    }

    /// Records that a tenant has taken this level.
    #[inline]
    pub(crate) fn note_level(&mut self, level: HoldLevel) {
        if let Some(shared) = &mut self.shared {
            shared.ends.add(level);
            self.tenancy.hold().set_latest_end(shared.ends.until());
        }
    }

    /// Moves the end of a level of `tenancy` to `until`, if this is later. Returns `None` if the
    /// level is not in the seat, or ends with the hold.
    pub(crate) fn lengthen(
        &mut self,
        tenancy: &Arc<Tenancy>,
        which: HoldLevel,
        until: u64,
    ) -> Option<HoldLevel> {
        self.shared.as_ref()?;
        let levels = self.levels_of(tenancy)?;
        let inner = levels.inner.iter_mut().rfind(|level| level.is(which));
        let level = inner.unwrap_or(&mut levels.outer);
        let (ended, longer) = (*level, HoldLevel { ends: level.ends.max(until), ..*level });
        *level = longer;
        self.shared.as_mut()?.ends.remove(ended);
        self.note_level(longer);
        Some(longer)
    }

    /// Returns the time at which the lease of the last level of `tenancy` ends.
    pub(crate) fn last_end(&mut self, tenancy: &Arc<Tenancy>) -> Option<u64> {
        self.shared.as_ref()?;
        let levels = self.levels_of(tenancy)?;
        Some(levels.inner.last().unwrap_or(&levels.outer).ends)
    }

    /// Gives a thread its first tenancy and its levels back after a wait on a condition. `left` is
    /// the seat that the thread left for the wait. No other tenant shares this seat.
    pub(crate) fn exchange(&mut self, left: &mut Self) {
        std::mem::swap(&mut self.tenancy, &mut left.tenancy);
        std::mem::swap(&mut self.levels, &mut left.levels);
        std::mem::swap(&mut self.pinned, &mut left.pinned);
    }

    /// Returns the terms for a thread that left this seat to wait on a condition, and now takes the
    /// lock again. If the watchdog renews some of the thread's levels, the terms have the longest
    /// of their leases. Otherwise, the terms have the longest fixed lease.
    pub(crate) fn terms(&self) -> Terms {
        let fixed = || Terms::fixed(self.longest_fixed().unwrap_or(Duration::ZERO));
        let terms = self.levels.watched().map_or_else(fixed, Terms::watched);
        terms.hearing(self.tenancy.hold().terms.hears)
    }

    /// Returns the longest lease of the levels that the watchdog does not renew.
    pub(crate) fn longest_fixed(&self) -> Option<Duration> {
        self.levels.all().filter(|level| !level.is_watched()).map(HoldLevel::lease).max()
    }

    /// Whether a renewal is on its way, or the server [may keep](Hold::may_outlast_deadline) the
    /// hold past the deadline that this process knows.
    pub(crate) fn may_outlast_deadline(&self) -> bool {
        self.progress.is_sent() || self.tenancy.hold().may_outlast_deadline()
    }

    /// Returns the hold with this state, for its renewal.
    pub(crate) fn renewing(&mut self, state: RenewalState) -> Renewing<'_> {
        Renewing { hold: self.tenancy.hold(), state, progress: &mut self.progress }
    }

    /// Returns the state on which the hold's renewal depends.
    pub(crate) fn renewal_state(&self) -> RenewalState {
        let watching = |tenancy: &Tenancy, levels: &Levels| {
            let is_alive = !tenancy.thread.is_dead();
            is_alive.then(|| levels.watched()).flatten().map(|lease| (tenancy.began(), lease))
        };
        let all = match &self.shared {
            None => watching(&self.tenancy, &self.levels),
            Some(shared) if shared.ends.endless == 0 => None,
            // If several tenants share the hold, `max_hold` counts from the arrival of the last
            // tenant, and the lease is the longest lease of all tenants.
            Some(_) => self
                .tenants()
                .filter_map(|(tenancy, levels)| watching(tenancy, levels))
                .reduce(|one, other| (one.0.max(other.0), one.1.max(other.1))),
        };
        self.renewal_state_of(all)
    }

    /// Returns the same as [`renewal_state`](Self::renewal_state), but reads no list of tenants.
    /// `watching` has two values of the tenants that want renewals: the arrival of the last one,
    /// and their longest lease.
    pub(crate) fn renewal_state_of(&self, watching: Option<(u64, Duration)>) -> RenewalState {
        let hold = &self.tenancy.hold();
        RenewalState {
            taken_at: self.taken_at,
            watched_since: watching.map_or(self.taken_at, |(since, _)| since),
            deadline: hold.deadline(),
            is_provisional: hold.is_provisional(),
            watched: watching.map(|(_, lease)| hold.certain_part(lease)),
            fixed: hold.terms.fixed_lease(),
            progress: self.progress,
        }
    }
}

/// The maximum number of levels of one thread.
const DEEPEST: usize = 1 << 20;
/// The end of a level that the watchdog renews.
const NEVER: u64 = u64::MAX;
/// An end that the guard does not know. The guard of a level with a fixed lease knows the level's
/// end only if threads share the hold.
const UNKNOWN: u64 = 0;

/// A level: one acquisition of the lock by a thread. A thread that holds the lock may take more
/// levels. (The type is small, because each acquisition moves a level often.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldLevel {
    /// The lease that the thread wants, in nanoseconds.
    lease: u64,
    /// The time on [`clock`] at which the level's own lease ends, or [`NEVER`] or [`UNKNOWN`].
    ends: u64,
}

impl HoldLevel {
    /// Returns the level of a guard, with the level's own end if the guard knows it.
    pub(crate) fn on(terms: Terms, ends: Option<u64>) -> Self {
        let unknown = if terms.is_watched() { NEVER } else { UNKNOWN };
        Self { lease: terms.nanos(), ends: ends.unwrap_or(unknown) }
    }

    /// Returns the time until the level's own lease ends.
    pub(crate) fn remaining(self) -> Duration {
        match self.ends() {
            NEVER => Duration::MAX,
            ends => Duration::from_nanos(ends.saturating_sub(clock::now())),
        }
    }

    /// Returns the time on [`clock`] at which the level's own lease ends, or [`NEVER`] if the level
    /// ends with the hold.
    pub(crate) fn ends(self) -> u64 {
        if self.ends == UNKNOWN { NEVER } else { self.ends }
    }

    /// Returns the level with its end [moved](Seat::lengthen) to `until`. If `until` is zero, the
    /// end stays the same.
    pub(crate) fn moved(self, until: u64) -> Self {
        if until == 0 { self } else { Self { ends: until, ..self } }
    }

    /// Returns a level that a thread takes now.
    #[inline]
    pub(crate) fn since(terms: Terms, now: u64) -> Self {
        let lease = terms.nanos();
        Self { lease, ends: if terms.is_watched() { NEVER } else { now.saturating_add(lease) } }
    }

    #[inline]
    fn is_watched(self) -> bool {
        self.ends == NEVER
    }

    fn lease(self) -> Duration {
        Duration::from_nanos(self.lease)
    }

    /// Whether this level is `which`, the level that a guard is about to end.
    #[inline]
    fn is(self, which: Self) -> bool {
        self == which || which.ends == UNKNOWN && self.lease == which.lease && !self.is_watched()
    }
}

impl From<Terms> for HoldLevel {
    fn from(terms: Terms) -> Self {
        Self::on(terms, None)
    }
}

/// The levels of a thread: one for each acquisition that the thread has not released.
#[derive(Debug)]
pub(crate) struct Levels {
    pub(crate) outer: HoldLevel,
    pub(crate) inner: Vec<HoldLevel>,
}

impl Levels {
    fn of(level: HoldLevel) -> Self {
        Self { outer: level, inner: Vec::new() }
    }

    fn all(&self) -> impl Iterator<Item = HoldLevel> {
        std::iter::once(self.outer).chain(self.inner.iter().copied())
    }

    /// Returns the longest lease of the levels that the watchdog renews.
    fn watched(&self) -> Option<Duration> {
        self.all().filter(|level| level.is_watched()).map(HoldLevel::lease).max()
    }

    pub(crate) fn count(&self) -> usize {
        1 + self.inner.len()
    }

    /// Adds a level. Returns `None` if there are too many levels.
    #[inline]
    pub(crate) fn add_level(&mut self, terms: Terms, now: u64) -> Option<HoldLevel> {
        let level = HoldLevel::since(terms, now);
        (self.count() < DEEPEST).then(|| self.inner.push(level)).map(|()| level)
    }

    /// Ends and returns the level `which`, or the last level if `which` is `None`. Returns `None`
    /// if there is only one level.
    fn end(&mut self, which: Option<HoldLevel>) -> Option<HoldLevel> {
        let last = self.inner.pop()?;
        match which {
            Some(which) if !last.is(which) => Some(self.end_further_out(which, last)),
            _ => Some(last),
        }
    }

    /// Ends a level that is not the last, because guards may be dropped in any order. The last
    /// level takes the index of the ended level.
    #[cold]
    fn end_further_out(&mut self, which: HoldLevel, last: HoldLevel) -> HoldLevel {
        let gone = self.inner.iter_mut().rfind(|level| level.is(which));
        std::mem::replace(gone.unwrap_or(&mut self.outer), last)
    }
}
