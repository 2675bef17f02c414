//! The work with locks of each kind.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use redlatch::{FencedLock, Lock, LockGuard, NotTaken, Taken, Wait};

use super::held::{About, How, Kept, Terms, cancelled, hold, leave};
use super::{READERS, SPAN, Worker};
use crate::clock::now;
use crate::history::Kind;

impl Worker {
    pub(super) fn reentrant(&mut self) {
        let (name, terms) = (self.one_of("reentrant", 2), self.terms());
        let lock = terms.of(self.client.reentrant_lock(&name));
        if self.rng.random_ratio(1, 3) {
            return self.burst(&lock, &name, terms);
        }
        for _ in 0..self.rng.random_range(1..30) {
            self.lock(&lock, About::lock(Kind::Reentrant, &name, terms));
        }
    }

    /// Makes many short acquisitions, which the threads of a process pass to each other.
    fn burst(&mut self, lock: &dyn Lock, name: &str, terms: Terms) {
        for _ in 0..self.rng.random_range(200..1200) {
            let about = About::lock(Kind::Reentrant, name, terms);
            let taken = self.acquire(about, How::Lock, Duration::ZERO, |_| lock.lock().map(Taken));
            let Some(kept) = taken else { return };
            hold(&self.shared, &kept, Duration::from_micros(3));
            leave(&self.shared, kept, self.rng.random_bool(0.5));
        }
    }

    /// Keeps a hold for longer than its lease, because the lease is renewed.
    pub(super) fn long(&mut self) {
        let name = self.one_of("long", 2);
        let terms = match self.terms() {
            Terms::Fixed(_) => Terms::Usual,
            renewed => renewed,
        };
        let lock = terms.of(self.client.reentrant_lock(&name));
        let stay = Duration::from_millis(self.rng.random_range(1000..6000));
        let about = About::lock(Kind::Reentrant, &name, terms);
        let how = How::For(Duration::from_millis(200));
        let taken =
            self.acquire(about, how, stay, |_| lock.try_lock_for(Duration::from_millis(200)));
        let Some(kept) = taken else { return };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, false);
    }

    /// Keeps a hold beyond the end of its lease, while other threads wait for this end.
    pub(super) fn lapse(&mut self) {
        let name = self.one_of("lapse", 3);
        let terms = Terms::Fixed(Duration::from_millis(400));
        let lock = terms.of(self.client.reentrant_lock(&name));
        let about = About::lock(Kind::Reentrant, &name, terms);
        let wait = Duration::from_millis(1000);
        let stay = Duration::from_millis(self.rng.random_range(300..800));
        let taken = self.acquire(about, How::For(wait), stay, |_| lock.try_lock_for(wait));
        let Some(kept) = taken else { return };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, false);
    }

    pub(super) fn fair(&mut self) {
        let (name, terms) = (self.one_of("fair", 1), self.terms());
        let lock = terms.of(self.client.fair_lock(&name));
        for _ in 0..self.rng.random_range(1..10) {
            self.lock(&lock, About::lock(Kind::Fair, &name, terms));
        }
    }

    pub(super) fn read_write(&mut self) {
        let (name, terms) = (self.one_of("readwrite", 2), self.terms());
        let both = self.client.read_write_lock(&name);
        for _ in 0..self.rng.random_range(1..20) {
            let about = About::lock(Kind::ReadWrite, &name, terms);
            if self.rng.random_ratio(3, 4) {
                let lock = terms.of(both.reader().clone());
                self.lock(&lock, About { capacity: READERS, ..about });
            } else {
                let lock = terms.of(both.writer().clone());
                self.lock(&lock, About { weight: READERS, capacity: READERS, ..about });
            }
        }
    }

    /// Makes one acquisition of a lock of any kind.
    fn lock(&mut self, lock: &dyn Lock, about: About) {
        let how = self.how();
        self.lock_as(lock, about, how);
    }

    pub(super) fn lock_as(&mut self, lock: &dyn Lock, about: About, how: How) {
        let (stay, is_kept) = (self.stay(), about.keeps.is_some());
        if self.rng.random_ratio(1, 10) {
            let Some(kept) = self.acquire(about, how, stay, |how| match how {
                How::Lock => lock.lock_owned().map(Taken),
                How::Try => lock.try_lock_owned(),
                How::For(wait) => lock.lock_owned_within(Wait::at_most(wait)),
                How::Cancelled(wait) => cancelled(wait, |token| {
                    lock.lock_owned_within(Wait::FOREVER.cancelled_by(token))
                }),
            }) else {
                return;
            };
            // Sends the guard to another thread.
            let posts = self.rng.random_ratio(1, 3);
            let shared = &self.shared;
            thread::scope(|scope| {
                let _there = scope.spawn(move || {
                    hold(shared, &kept, stay);
                    leave(shared, kept, posts);
                });
            });
            return;
        }
        let Some(kept) = self.take(lock, about, how, stay) else { return };
        hold(&self.shared, &kept, stay);
        // A re-entry would begin a new minimum time.
        if !is_kept && self.rng.random_ratio(1, 10) {
            self.enter_again(lock, &kept);
        }
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }

    pub(super) fn take(
        &mut self,
        lock: &dyn Lock,
        about: About,
        how: How,
        stay: Duration,
    ) -> Option<Kept<LockGuard>> {
        self.acquire(about, how, stay, |how| match how {
            How::Lock => lock.lock().map(Taken),
            How::Try => lock.try_lock(),
            How::For(wait) => lock.try_lock_for(wait),
            How::Cancelled(wait) => {
                cancelled(wait, |token| lock.lock_cancellable(token).map(Taken))
            }
        })
    }

    /// Re-enters a lock that this thread holds, without waiting.
    fn enter_again(&self, lock: &dyn Lock, kept: &Kept<LockGuard>) {
        let begun = now();
        match lock.try_lock() {
            Ok(Taken(inner)) => {
                let levels = lock.hold_count();
                if levels != 2 && kept.guard.is_held() {
                    self.shared.odd(format!("two levels of {} count as {levels}", lock.name()));
                }
                drop(inner);
            }
            // The lock was lost, perhaps just now.
            Ok(NotTaken) if kept.guard.is_held() => {
                self.shared.odd(format!("{} was not entered again since {begun}", lock.name()));
            }
            Ok(NotTaken) | Err(_) => {}
        }
    }

    /// Readers stay for longer than their leases, while other readers of their process have other
    /// leases.
    pub(super) fn late_read(&mut self) {
        let name = self.one_of("readwrite-late", 2);
        let both = self.client.read_write_lock(&name);
        let how = How::For(Duration::from_millis(300));
        if self.rng.random_ratio(1, 3) {
            let about = About::lock(Kind::ReadWrite, &name, Terms::Usual);
            let about = About { weight: READERS, capacity: READERS, ..about };
            return self.lock_as(both.writer(), about, how);
        }
        let lease = Duration::from_millis(self.rng.random_range(200..1500));
        let terms = Terms::Fixed(lease);
        let about = About { capacity: READERS, ..About::lock(Kind::ReadWrite, &name, terms) };
        let stay = lease.mul_f64(self.rng.random_range(0.1..2.0));
        let Some(kept) = self.take(&terms.of(both.reader().clone()), about, how, stay) else {
            return;
        };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }

    /// Makes calls with limits that end before the reply on a busy machine, for a lock that no
    /// other thread wants.
    pub(super) fn short_limits(&mut self) {
        let name = format!("{}short-{}-{}", self.task.prefix, self.task.seed, self.number);
        let lock = self.client.reentrant_lock(&name);
        for _ in 0..self.rng.random_range(1..20) {
            let how = How::For(self.short());
            let about = About::lock(Kind::Reentrant, &name, Terms::Usual);
            let Some(kept) = self.take(&lock, about, how, Duration::ZERO) else { continue };
            leave(&self.shared, kept, self.rng.random_ratio(1, 3));
        }
    }

    pub(super) fn fenced(&mut self) {
        let (name, terms) = (self.of_now("fenced", 2), self.terms());
        let lock = terms.of(self.client.fenced_lock(&name));
        for _ in 0..self.rng.random_range(1..10) {
            let (how, stay) = (self.how(), self.stay());
            self.add(&lock, &name, terms, how, stay);
        }
    }

    /// Makes slow writes. A pause may then hit a holder between its read and its write, while other
    /// processes wait for the lock. The name is used for longer than a pause.
    pub(super) fn late(&mut self) {
        let name = format!("{}-{}", self.one_of("fenced-late", 2), now() / (2 * SPAN));
        let lock = self.client.fenced_lock(&name);
        for _ in 0..3 {
            let stay = Duration::from_millis(self.rng.random_range(50..200));
            self.add(&lock, &name, Terms::Usual, How::Lock, stay);
        }
    }

    /// Adds one to the values in the store while the thread holds their lock.
    fn add(&mut self, lock: &FencedLock, name: &str, terms: Terms, how: How, stay: Duration) {
        let about = About::lock(Kind::Fenced, name, terms);
        let Some((kept, token)) = self.acquire_with(about, how, stay, |how| {
            let guard = match how {
                How::Lock => lock.lock().map(Taken),
                How::Try => lock.try_lock(),
                How::For(wait) => lock.try_lock_for(wait),
                How::Cancelled(wait) => {
                    cancelled(wait, |token| lock.lock_cancellable(token).map(Taken))
                }
            };
            guard.map(|guard| {
                guard.into_option().map(|guard| (guard.token().get(), <LockGuard>::from(guard)))
            })
        }) else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        if let Err(error) = self.store.add(name, token, || hold(&shared, &kept, stay)) {
            self.shared.odd(format!("the store: {error}"));
        }
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }
}
