//! The work with several locks at once.

use std::time::Duration;

use rand::RngExt;
use rand::seq::index::sample;
use redlatch::{Lock, MultiLock, Taken};

use super::held::{About, How, Terms, cancelled, hold, leave};
use super::kept::{LONG, LOOKS};
use super::{READERS, SPAN, Worker};
use crate::clock::now;
use crate::history::Kind;

/// The number of names in each span.
const NAMES: usize = 12;
/// The most locks of a call.
const MOST: usize = 4;

impl Worker {
    /// Takes one or several locks of one kind and one slot, in any order, or checks a lock of an
    /// earlier span. If that lock is still held, a failed call has kept some of its locks.
    pub(super) fn several(&mut self) {
        let ago = if self.rng.random_bool(0.5) { 0 } else { self.rng.random_range(1..=LOOKS) };
        let span = (now() / SPAN).saturating_sub(ago);
        let writes = self.rng.random_ratio(1, 3);
        let count = if ago > 0 { 1 } else { self.rng.random_range(1..=MOST) };
        let terms = match self.rng.random_range(0..4) {
            0 => Terms::Watched(LONG),
            _ => Terms::Usual,
        };
        let name = |number| {
            let kind = if writes { "write" } else { "plain" };
            format!("{}{{several}}-{kind}-{number}-{span}", self.task.prefix)
        };
        let numbers = sample(&mut self.rng, NAMES, count);
        let names: Vec<_> = numbers.into_iter().map(name).collect();
        let lock = |name: &String| -> Box<dyn Lock> {
            if writes {
                Box::new(terms.of(self.client.read_write_lock(name).writer().clone()))
            } else {
                Box::new(terms.of(self.client.reentrant_lock(name)))
            }
        };
        let locks: Vec<_> = names.iter().map(lock).collect();
        let (kind, weight) = match writes {
            true => (Kind::ReadWrite, READERS),
            false => (Kind::Reentrant, 1),
        };
        let about = About::lock(kind, "", terms);
        let about = About { names, weight, capacity: weight, ..about };
        if ago > 0 {
            return self.lock_as(&*locks[0], about.keeping(Duration::ZERO), How::Try);
        }
        for _ in 0..self.rng.random_range(1..20) {
            let (about, how) = (about.keeping(Duration::ZERO), self.how_for_kept());
            match &locks[..] {
                [lock] => self.lock_as(&**lock, about, how),
                locks => self.all(locks, about, how),
            }
        }
    }

    /// Takes two of the re-entrant locks, in any order.
    pub(super) fn multi(&mut self) {
        let mut names = [0, 1].map(|it| format!("{}reentrant-{it}", self.task.prefix)).to_vec();
        if self.rng.random_bool(0.5) {
            names.reverse();
        }
        let locks = names
            .iter()
            .map(|name| -> Box<dyn Lock> { Box::new(self.client.reentrant_lock(name)) });
        let (locks, how): (Vec<_>, _) = (locks.collect(), self.how());
        self.all(&locks, About { names, ..About::lock(Kind::Reentrant, "", Terms::Usual) }, how);
    }

    fn all(&mut self, locks: &[Box<dyn Lock>], about: About, how: How) {
        let lock = match MultiLock::new(locks) {
            Ok(lock) => lock,
            Err(error) => return self.shared.odd(format!("no lock of several: {error}")),
        };
        let stay = self.stay();
        let kept = self.acquire(about, how, stay, |how| match how {
            How::Lock => lock.lock().map(Taken),
            How::Try => lock.try_lock(),
            How::For(wait) => lock.try_lock_for(wait),
            How::Cancelled(wait) => {
                cancelled(wait, |token| lock.lock_cancellable(token).map(Taken))
            }
        });
        let Some(kept) = kept else { return };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }
}
