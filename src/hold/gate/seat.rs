//! Who has the hold of a name in this process, and how often.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::{Tenancy, Terms};
use crate::sync::Thread;
use crate::watchdog::renewal::{Attempt, Facts};

/// The tenancy that the process has now.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) tenancy: Arc<Tenancy>,
    pub(super) levels: Levels,
    /// Those who have the hold beside it, of a lock that threads share.
    pub(super) beside: Vec<Tenant>,
    /// When the hold was granted, or passed last.
    pub(super) since: u64,
    /// Nobody waited for it by the server's last word: others may join those who have it.
    pub(super) is_open: bool,
    pub(in crate::hold) attempt: Attempt,
    /// Keeps the site where a guard was forgotten. Never dropped under the gate's mutex.
    pub(super) kept: Option<Arc<dyn Any + Send + Sync>>,
}

/// One of several that share a hold.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) tenancy: Arc<Tenancy>,
    pub(super) levels: Levels,
}

impl Seat {
    pub(super) fn new(tenancy: Arc<Tenancy>, terms: Terms) -> Self {
        let since = tenancy.since;
        let is_open = tenancy.hold.details.places == 0;
        let levels = Levels::of(terms);
        Self {
            tenancy,
            levels,
            beside: Vec::new(),
            since,
            is_open,
            attempt: Attempt::Done,
            kept: None,
        }
    }

    pub(super) fn is(&self, tenancy: &Arc<Tenancy>) -> bool {
        Arc::ptr_eq(&self.tenancy, tenancy)
    }

    /// All who have the hold.
    pub(crate) fn tenancies(&self) -> impl Iterator<Item = &Arc<Tenancy>> {
        self.tenants().map(|(tenancy, _)| tenancy)
    }

    pub(super) fn tenants(&self) -> impl Iterator<Item = (&Arc<Tenancy>, &Levels)> {
        let beside = self.beside.iter().map(|tenant| (&tenant.tenancy, &tenant.levels));
        std::iter::once((&self.tenancy, &self.levels)).chain(beside)
    }

    /// A thread's tenancy and its levels.
    pub(super) fn tenant(&mut self, thread: &Thread) -> Option<(&Arc<Tenancy>, &mut Levels)> {
        let beside = self.beside.iter_mut().map(|tenant| (&tenant.tenancy, &mut tenant.levels));
        std::iter::once((&self.tenancy, &mut self.levels))
            .chain(beside)
            .find(|(tenancy, _)| tenancy.thread.id() == thread.id())
    }

    /// Ends a level of one of several. `None`: it is the only one; else whether levels are left.
    pub(super) fn step(&mut self, tenancy: &Arc<Tenancy>, terms: Option<Terms>) -> Option<bool> {
        if self.beside.is_empty() {
            return None;
        }
        if self.is(tenancy) {
            if self.levels.end(terms) {
                return Some(true);
            }
            let next = self.beside.pop()?;
            (self.tenancy, self.levels) = (next.tenancy, next.levels);
            return Some(false);
        }
        let at = self.beside.iter().position(|it| Arc::ptr_eq(&it.tenancy, tenancy))?;
        let left = self.beside[at].levels.end(terms);
        if !left {
            self.beside.swap_remove(at);
        }
        Some(left)
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
        let hold = &self.tenancy.hold;
        // Of several the last to come: the others leave it to those who are not there for too long.
        let watching = self
            .tenants()
            .filter(|(tenancy, levels)| levels.are_watched() && !tenancy.thread.is_dead())
            .map(|(tenancy, _)| tenancy.since)
            .max();
        Facts {
            granted: self.since,
            since: watching.unwrap_or(self.since),
            deadline: hold.deadline(),
            is_provisional: hold.is_provisional(),
            is_watched: watching.is_some(),
            fixed: match hold.terms {
                Terms::Watched => None,
                Terms::Fixed(lease) => Some(lease),
            },
            attempt: self.attempt,
        }
    }
}

/// How often the thread took the lock, and on what terms each time.
#[derive(Debug)]
pub(super) struct Levels {
    pub(super) outer: Terms,
    pub(super) inner: Vec<Terms>,
}

impl Levels {
    pub(super) fn of(terms: Terms) -> Self {
        Self { outer: terms, inner: Vec::new() }
    }

    /// Whether some level wants the watchdog.
    pub(super) fn are_watched(&self) -> bool {
        self.outer == Terms::Watched || self.inner.contains(&Terms::Watched)
    }

    pub(super) fn count(&self) -> usize {
        1 + self.inner.len()
    }

    /// Ends the last level on these terms, or whichever is last. `false`: it was the only one.
    pub(super) fn end(&mut self, terms: Option<Terms>) -> bool {
        let Some(last) = self.inner.pop() else { return false };
        let Some(terms) = terms.filter(|terms| *terms != last) else { return true };
        // Guards may go in any order: one further out went first.
        let gone = self.inner.iter_mut().rfind(|level| **level == terms);
        *gone.unwrap_or(&mut self.outer) = last;
        true
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
        let levels = std::iter::once(&self.levels.outer).chain(&self.levels.inner);
        let fixed = |terms: &Terms| match terms {
            Terms::Fixed(lease) => Some(*lease),
            Terms::Watched => None,
        };
        levels.filter_map(fixed).max()
    }

    /// What the lock is to be taken on again: the watchdog if some level wants it, else the longest
    /// lease.
    pub(crate) fn terms(&self) -> Terms {
        let Levels { outer, inner } = &self.levels;
        inner.iter().fold(*outer, |longest, terms| match (longest, *terms) {
            (Terms::Fixed(one), Terms::Fixed(other)) => Terms::Fixed(one.max(other)),
            _ => Terms::Watched,
        })
    }
}
