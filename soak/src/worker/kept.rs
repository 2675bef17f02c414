//! The work with locks that stay taken after their holders have gone.

use std::time::Duration;

use rand::RngExt;
use redlatch::Lock;

use super::held::{About, How, Terms, hold, leave, leave_to_expire};
use super::{READERS, SPAN, Worker};
use crate::clock::now;
use crate::history::Kind;

/// A lease that is longer than a round. If a failed call leaves the lock taken for this time, the
/// check at the end of the round finds it.
pub(super) const LONG: Duration = Duration::from_secs(20);
/// A name is still checked for this many spans after its own span.
pub(super) const LOOKS: u64 = 4;

/// The work with a lock of any kind.
trait Does {
    fn with(self, worker: &mut Worker, lock: impl Lock + Clone, about: About);
}

struct Least;
struct Left;

impl Does for Least {
    fn with(self, worker: &mut Worker, lock: impl Lock + Clone, about: About) {
        for _ in 0..worker.rng.random_range(1..6) {
            let least = match worker.rng.random_range(0..150) {
                0 => LONG,
                1..40 => Duration::from_millis(worker.rng.random_range(10..400)),
                _ => Duration::ZERO,
            };
            let lock = if least.is_zero() { lock.clone() } else { lock.with_hold_at_least(least) };
            let how = worker.how_for_kept();
            worker.lock_as(&lock, about.keeping(least), how);
        }
    }
}

impl Does for Left {
    fn with(self, worker: &mut Worker, lock: impl Lock + Clone, about: About) {
        for _ in 0..worker.rng.random_range(1..4) {
            let terms = match worker.rng.random_range(0..100) {
                // Only an exclusive hold gets a fixed lease, because readers share a hold and its
                // lease.
                0 if about.weight == about.capacity => Terms::Fixed(LONG),
                _ => worker.terms(),
            };
            let (how, stay) = (worker.how_for_kept(), worker.stay());
            let about = About { lease: terms.lease(), ..about.keeping(Duration::ZERO) };
            let Some(kept) = worker.take(&terms.of(lock.clone()), about, how, stay) else {
                continue;
            };
            hold(&worker.shared, &kept, stay);
            if worker.rng.random_ratio(1, 3) {
                leave_to_expire(&worker.shared, kept);
            } else {
                leave(&worker.shared, kept, worker.rng.random_ratio(1, 3));
            }
        }
    }
}

impl About {
    pub(super) fn keeping(&self, keeps: Duration) -> Self {
        Self { names: self.names.clone(), keeps: Some(keeps), ..*self }
    }
}

impl Worker {
    /// Takes a lock that stays taken for a minimum time, even if its holder dies.
    pub(super) fn least(&mut self) {
        self.with_any("least", Least);
    }

    /// Takes a lock that its holder leaves to expire.
    pub(super) fn left(&mut self) {
        self.with_any("left", Left);
    }

    /// Takes a lock that can be taken once in an interval, by all machines together.
    pub(super) fn once(&mut self) {
        let at = self.rng.random_range(0..3);
        let interval = Duration::from_millis([300, 1200, 4000][at]);
        let name = format!("{}once-{at}", self.task.prefix);
        let lock = self.client.reentrant_lock(&name);
        let stay = self.stay();
        let about = About::lock(Kind::Reentrant, &name, Terms::Usual).keeping(interval);
        let taken = self.acquire(about, How::Try, stay, |_| lock.try_once_per(interval));
        let Some(kept) = taken else { return };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }

    /// Uses a name of this span, or checks a name of an earlier span, which nobody holds.
    fn with_any(&mut self, what: &str, does: impl Does) {
        let ago = if self.rng.random_bool(0.5) { 0 } else { self.rng.random_range(1..=LOOKS) };
        let span = (now() / SPAN).saturating_sub(ago);
        let kind = self.rng.random_range(0..3);
        let name = format!("{}{what}-{kind}-{span}", self.task.prefix);
        match kind {
            0 => {
                let lock = self.client.reentrant_lock(&name);
                self.with_one(lock, About::lock(Kind::Reentrant, &name, Terms::Usual), ago, does);
            }
            1 => {
                let lock = self.client.fair_lock(&name);
                self.with_one(lock, About::lock(Kind::Fair, &name, Terms::Usual), ago, does);
            }
            _ => {
                let both = self.client.read_write_lock(&name);
                let about = About::lock(Kind::ReadWrite, &name, Terms::Usual);
                let about = About { capacity: READERS, ..about };
                if ago == 0 && self.rng.random_bool(0.5) {
                    self.with_one(both.reader().clone(), about, ago, does);
                } else {
                    let about = About { weight: READERS, ..about };
                    self.with_one(both.writer().clone(), about, ago, does);
                }
            }
        }
    }

    fn with_one(&mut self, lock: impl Lock + Clone, about: About, ago: u64, does: impl Does) {
        if ago == 0 {
            return does.with(self, lock, about);
        }
        let about = about.keeping(Duration::ZERO);
        if let Some(kept) = self.take(&lock, about, How::Try, Duration::ZERO) {
            leave(&self.shared, kept, false);
        }
    }

    /// Returns a call with a limited wait, because the lock may stay taken for long.
    pub(super) fn how_for_kept(&mut self) -> How {
        match self.how() {
            How::Lock => How::For(Duration::from_millis(500)),
            other => other,
        }
    }
}
