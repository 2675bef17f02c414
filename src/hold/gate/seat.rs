//! Who has the hold of a name in this process, and how often.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::{Tenancy, Terms, clock};
use crate::protocol::Mode;
use crate::sync::Thread;
use crate::watchdog::renewal::{Attempt, Facts};

/// The tenancy that the process has now.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) tenancy: Arc<Tenancy>,
    pub(super) levels: Levels,
    /// Of a lock that threads share. (Apart: a seat is moved, and most have none.)
    shared: Option<Box<Shared>>,
    /// When the hold was granted, or passed last.
    pub(super) since: u64,
    /// Nobody waited for it by the server's last word: others may join those who have it.
    pub(super) is_open: bool,
    pub(in crate::hold) attempt: Attempt,
    /// Keeps the site where a guard was forgotten. Never dropped under the gate's mutex.
    pub(super) kept: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Those who have the hold beside the one in the seat.
    beside: Beside,
    /// Until when all of them want it.
    wanted: Wanted,
}

/// One of several that share a hold.
#[derive(Debug)]
struct Tenant {
    tenancy: Arc<Tenancy>,
    levels: Levels,
}

/// Those who have a hold beside the one in the seat. Each knows its index here: whoever leaves is not
/// looked for. A thread that comes again is; what belongs to a guard never comes again, and there may be
/// many thousands of them.
#[derive(Debug, Default)]
struct Beside {
    threads: Vec<Tenant>,
    nobodys: Vec<Tenant>,
}

impl Beside {
    fn of(&mut self, thread: &Thread) -> &mut Vec<Tenant> {
        if thread.is_nobodys() { &mut self.nobodys } else { &mut self.threads }
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

    /// Only what [`get`](Self::get) finds.
    fn remove(&mut self, tenancy: &Arc<Tenancy>) -> Tenant {
        let (all, index) = (self.of(&tenancy.thread), tenancy.index());
        let gone = all.swap_remove(index);
        if let Some(moved) = all.get(index) {
            moved.tenancy.set_index(index);
        }
        gone
    }

    fn pop(&mut self) -> Option<Tenant> {
        self.threads.pop().or_else(|| self.nobodys.pop())
    }

    fn iter(&self) -> impl Iterator<Item = &Tenant> {
        self.threads.iter().chain(&self.nobodys)
    }
}

/// Until when those who share a hold want it. One that comes for long and goes again must not make
/// the fixed lease of another one longer, which bounds a thread that hangs.
#[derive(Debug, Default)]
struct Wanted {
    /// How many levels have no end of their own: the watchdog's.
    endless: usize,
    /// When the others end, and how many do then.
    ends: BTreeMap<u64, usize>,
}

impl Wanted {
    fn add(&mut self, level: Level) {
        if level.ends == NEVER {
            self.endless += 1;
        } else {
            *self.ends.entry(level.ends).or_default() += 1;
        }
    }

    fn remove(&mut self, level: Level) {
        if level.ends == NEVER {
            self.endless = self.endless.saturating_sub(1);
        } else if let Some(count) = self.ends.get_mut(&level.ends) {
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&level.ends);
            }
        }
    }

    /// The latest end of all.
    fn until(&self) -> u64 {
        match self.ends.last_key_value() {
            Some((ends, _)) if self.endless == 0 => *ends,
            _ => NEVER,
        }
    }
}

impl Seat {
    pub(super) fn new(tenancy: Arc<Tenancy>, terms: Terms) -> Self {
        let since = tenancy.since;
        let is_open = tenancy.hold.details.places == 0;
        let level = Level::since(terms, since);
        let is_shared = tenancy.hold.owner.mode() == Mode::Read;
        let mut seat = Self {
            tenancy,
            levels: Levels::of(level),
            shared: is_shared.then(Box::default),
            since,
            is_open,
            attempt: Attempt::Done,
            kept: None,
        };
        seat.want(level);
        seat
    }

    pub(super) fn is(&self, tenancy: &Arc<Tenancy>) -> bool {
        Arc::ptr_eq(&self.tenancy, tenancy)
    }

    /// Whether it is one of those who have the hold.
    pub(super) fn has(&mut self, tenancy: &Arc<Tenancy>) -> bool {
        self.is(tenancy) || self.beside(tenancy).is_some()
    }

    /// All who have the hold.
    pub(crate) fn tenancies(&self) -> impl Iterator<Item = &Arc<Tenancy>> {
        self.tenants().map(|(tenancy, _)| tenancy)
    }

    fn tenants(&self) -> impl Iterator<Item = (&Arc<Tenancy>, &Levels)> {
        let beside = self.shared.iter().flat_map(|shared| shared.beside.iter());
        let beside = beside.map(|tenant| (&tenant.tenancy, &tenant.levels));
        std::iter::once((&self.tenancy, &self.levels)).chain(beside)
    }

    /// One of those who have the hold beside the one in the seat.
    fn beside(&mut self, tenancy: &Arc<Tenancy>) -> Option<&mut Tenant> {
        self.shared.as_mut()?.beside.get(tenancy)
    }

    /// A thread's tenancy and its levels.
    pub(super) fn tenant(&mut self, thread: &Thread) -> Option<(&Arc<Tenancy>, &mut Levels)> {
        if self.tenancy.thread.id() == thread.id() {
            return Some((&self.tenancy, &mut self.levels));
        }
        let shared = self.shared.as_mut().filter(|_| !thread.is_nobodys())?;
        let is_its = |tenant: &&mut Tenant| tenant.tenancy.thread.id() == thread.id();
        let tenant = shared.beside.threads.iter_mut().find(is_its)?;
        Some((&tenant.tenancy, &mut tenant.levels))
    }

    /// A thread that has the hold takes it once more.
    pub(super) fn deepen(&mut self, thread: &Thread, terms: Terms, now: u64) {
        let level = Level::since(terms, now);
        if let Some((_, levels)) = self.tenant(thread) {
            levels.inner.push(level);
            self.want(level);
        }
    }

    /// Another one has the hold beside those who have it.
    pub(super) fn join(&mut self, tenancy: Arc<Tenancy>, terms: Terms, now: u64) {
        let level = Level::since(terms, now);
        let tenant = Tenant { tenancy, levels: Levels::of(level) };
        self.shared.get_or_insert_default().beside.push(tenant);
        self.want(level);
    }

    /// Ends a level. `None`: it is the only one of all, or not there; else whether `tenancy` has levels
    /// left.
    #[inline]
    pub(super) fn step(&mut self, tenancy: &Arc<Tenancy>, which: Option<Level>) -> Option<bool> {
        let Some(shared) = &mut self.shared else {
            let ended = self.is(tenancy).then(|| self.levels.end(which));
            return ended.flatten().map(|_| true);
        };
        let (gone, left) = if Arc::ptr_eq(&self.tenancy, tenancy) {
            match self.levels.end(which) {
                Some(gone) => (gone, true),
                None => {
                    let next = shared.beside.pop()?;
                    self.tenancy = next.tenancy;
                    (std::mem::replace(&mut self.levels, next.levels).outer, false)
                }
            }
        } else {
            let beside = &mut shared.beside;
            match beside.get(tenancy)?.levels.end(which) {
                Some(gone) => (gone, true),
                None => (beside.remove(tenancy).levels.outer, false),
            }
        };
        shared.wanted.remove(gone);
        self.tenancy.hold.ends_by(shared.wanted.until());
        Some(left)
    }

    fn want(&mut self, level: Level) {
        if let Some(shared) = &mut self.shared {
            shared.wanted.add(level);
            self.tenancy.hold.ends_by(shared.wanted.until());
        }
    }

    /// When the level of `tenancy` that was taken last ends by itself.
    pub(super) fn last_end(&mut self, tenancy: &Arc<Tenancy>) -> Option<u64> {
        let shared = self.shared.as_mut()?;
        let levels = if Arc::ptr_eq(&self.tenancy, tenancy) {
            &self.levels
        } else {
            &shared.beside.get(tenancy)?.levels
        };
        Some(levels.inner.last().unwrap_or(&levels.outer).ends)
    }

    /// Whether the server may keep the hold past the deadline that is known here: a renewal or an
    /// extension may be on the way, or have an unknown outcome, or it was handed on for longer.
    pub(crate) fn may_outlive(&self) -> bool {
        let hold = &self.tenancy.hold;
        self.attempt.is_sent() || hold.is_unconfirmed() || hold.outlives_its_terms()
    }

    /// A renewal to this lease is about to be sent. `false`: it is too late.
    pub(in crate::hold) fn renews(&mut self, lease: Duration, now: u64) -> bool {
        let hold = &self.tenancy.hold;
        let in_time = now < hold.deadline();
        if in_time {
            self.attempt = self.attempt.sent();
            hold.ask(lease);
        }
        in_time
    }

    /// What its renewal depends on.
    pub(in crate::hold) fn facts(&self) -> Facts {
        // Of several the last to come: the others leave it to those who are not there for too long.
        let is_watched = self.shared.as_ref().is_none_or(|shared| shared.wanted.endless > 0);
        // And the longest of the leases that they want.
        let watching = self
            .tenants()
            .filter(|(tenancy, _)| !tenancy.thread.is_dead())
            .filter_map(|(tenancy, levels)| Some((tenancy.since, levels.watched()?)))
            .reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)));
        self.facts_of(if is_watched { watching } else { None })
    }

    /// The same, if the last to come of those who want it renewed came then, and this is the longest
    /// lease that they want. All are not looked at.
    pub(in crate::hold) fn facts_of(&self, watching: Option<(u64, Duration)>) -> Facts {
        let hold = &self.tenancy.hold;
        Facts {
            granted: self.since,
            since: watching.map_or(self.since, |(since, _)| since),
            deadline: hold.deadline(),
            is_provisional: hold.is_provisional(),
            watched: watching.map(|(_, lease)| hold.counts(lease)),
            fixed: hold.terms.fixed_lease(),
            attempt: self.attempt,
        }
    }
}

/// The end of a level that does not end by itself.
const NEVER: u64 = u64::MAX;

/// One time that the lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(super) terms: Terms,
    /// When its own lease ends, on [`clock`]; or [`NEVER`], also where a guard does not know.
    pub(super) ends: u64,
}

impl Level {
    /// What a guard ends.
    pub(crate) fn on(terms: Terms, ends: Option<u64>) -> Self {
        Self { terms, ends: ends.unwrap_or(NEVER) }
    }

    /// For how long it lasts, whoever else has the hold.
    pub(crate) fn remaining(self) -> Duration {
        if self.ends == NEVER {
            return Duration::MAX;
        }
        Duration::from_nanos(self.ends.saturating_sub(clock::now()))
    }

    fn since(terms: Terms, now: u64) -> Self {
        let ends = if terms.is_watched() { NEVER } else { now.saturating_add(terms.nanos()) };
        Self { terms, ends }
    }

    fn is(self, which: Self) -> bool {
        self.terms == which.terms && (which.ends == NEVER || self.ends == which.ends)
    }
}

impl From<Terms> for Level {
    fn from(terms: Terms) -> Self {
        Self::on(terms, None)
    }
}

/// How often the thread took the lock, and on what terms each time.
#[derive(Debug)]
pub(super) struct Levels {
    pub(super) outer: Level,
    pub(super) inner: Vec<Level>,
}

impl Levels {
    fn of(level: Level) -> Self {
        Self { outer: level, inner: Vec::new() }
    }

    fn all(&self) -> impl Iterator<Item = Level> {
        std::iter::once(self.outer).chain(self.inner.iter().copied())
    }

    /// The longest lease of a level that wants the watchdog.
    fn watched(&self) -> Option<Duration> {
        self.all().filter_map(|level| level.terms.watched_lease()).max()
    }

    pub(super) fn count(&self) -> usize {
        1 + self.inner.len()
    }

    /// Ends that level, or the last one: it. `None`: there is only one.
    fn end(&mut self, which: Option<Level>) -> Option<Level> {
        let last = self.inner.pop()?;
        match which {
            Some(which) if !last.is(which) => Some(self.end_further_out(which, last)),
            _ => Some(last),
        }
    }

    /// Guards may go in any order: one further out goes before the last one, which stays.
    #[cold]
    fn end_further_out(&mut self, which: Level, last: Level) -> Level {
        let gone = self.inner.iter_mut().rfind(|level| level.is(which));
        std::mem::replace(gone.unwrap_or(&mut self.outer), last)
    }
}

/// The levels of a thread that waits on a condition, which it comes back with.
#[derive(Debug)]
pub(crate) struct Folded {
    pub(super) levels: Levels,
    pub(super) kept: Option<Arc<dyn Any + Send + Sync>>,
}

impl Folded {
    /// The longest lease of a level that wants no watchdog.
    pub(crate) fn longest_fixed(&self) -> Option<Duration> {
        self.levels.all().filter_map(|level| level.terms.fixed_lease()).max()
    }

    /// What the lock is to be taken on again: the longest watched lease if some level wants the
    /// watchdog, else the longest lease.
    pub(crate) fn terms(&self) -> Terms {
        let outer = self.levels.outer.terms.lease();
        match self.levels.watched() {
            Some(lease) => Terms::watched(lease),
            None => Terms::fixed(self.longest_fixed().unwrap_or(outer)),
        }
    }
}
