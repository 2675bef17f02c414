//! The work with semaphores, latches and conditions.

use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use redlatch::Taken;

use super::held::{About, How, Kept, Terms, cancelled, hold, leave, leaving, left, outcome};
use super::{COUNT, LONGEST_REQUEST, PERMITS, SPAN, Worker};
use crate::clock::{nanos, now};
use crate::history::{Kind, Outcome, Step};

impl Worker {
    pub(super) fn semaphore(&mut self) {
        let name = self.of_now("semaphore", 1);
        let semaphore = self.client.semaphore(&name);
        // The first thread sets the number of permits.
        let _made = semaphore.try_set_permits(u32::try_from(PERMITS).unwrap_or(1));
        for _ in 0..self.rng.random_range(1..10) {
            let (how, stay) = (self.how(), self.stay());
            let permits = if self.rng.random_ratio(1, 4) { 2 } else { 1 };
            let about = About {
                weight: permits.into(),
                capacity: PERMITS,
                lease: 0,
                ..About::lock(Kind::Semaphore, &name, Terms::Usual)
            };
            // The permits of a dead process are lost, so the wait is limited.
            let how =
                if matches!(how, How::Lock) { How::For(Duration::from_millis(500)) } else { how };
            let kept = self.acquire(about, how, stay, |how| match how {
                How::Lock => semaphore.acquire_many(permits).map(Taken),
                How::Try => semaphore.try_acquire_many(permits),
                How::For(wait) => semaphore.try_acquire_many_for(permits, wait),
                How::Cancelled(wait) => cancelled(wait, |token| {
                    semaphore.acquire_many_cancellable(permits, token).map(Taken)
                }),
            });
            let Some(kept) = kept else { continue };
            hold(&self.shared, &kept, stay);
            leave(&self.shared, kept, self.rng.random_ratio(1, 3));
        }
    }

    pub(super) fn expirable(&mut self) {
        let (name, terms) = (self.of_now("expirable", 1), self.terms());
        let plain = self.client.expirable_semaphore(&name);
        let _made = plain.try_set_permits(u32::try_from(PERMITS).unwrap_or(1));
        let semaphore = match terms {
            Terms::Usual => plain,
            Terms::Fixed(lease) => plain.with_lease(lease),
            Terms::Watched(lease) => plain.with_watchdog(lease),
        };
        for _ in 0..self.rng.random_range(1..10) {
            let (how, stay) = (self.how(), self.stay());
            let about = About { capacity: PERMITS, ..About::lock(Kind::Expirable, &name, terms) };
            // If the data is lost, nobody sets the number of permits until the next call of this
            // work.
            let how =
                if matches!(how, How::Lock) { How::For(Duration::from_millis(500)) } else { how };
            let kept = self.acquire(about, how, stay, |how| match how {
                How::Lock => semaphore.acquire().map(Taken),
                How::Try => semaphore.try_acquire(),
                How::For(wait) => semaphore.try_acquire_for(wait),
                How::Cancelled(wait) => {
                    cancelled(wait, |token| semaphore.acquire_cancellable(token).map(Taken))
                }
            });
            let Some(kept) = kept else { continue };
            hold(&self.shared, &kept, stay);
            leave(&self.shared, kept, self.rng.random_ratio(1, 3));
        }
    }

    /// Uses one latch for each span. A thread sets its count in the first part of the span, and
    /// then threads count down and wait.
    pub(super) fn latch(&mut self) {
        let (span, part) = (now() / SPAN, now() % SPAN);
        let name = format!("{}latch-{span}", self.task.prefix);
        let latch = self.client.count_down_latch(&name);
        if part < SPAN / 8 {
            if self.known_latch() != (span, true) {
                let call = now();
                let set = latch.try_set_count(COUNT);
                let (is_set, outcome) = (set.is_ok(), outcome(&set));
                self.step(Step::Set, &name, call, nanos(LONGEST_REQUEST), COUNT, outcome);
                *self.shared.latch.lock().unwrap_or_else(PoisonError::into_inner) = (span, is_set);
            }
        } else if self.latch != span
            && part > self.turn
            && part < SPAN / 2
            && self.known_latch() == (span, true)
        {
            self.latch = span;
            // The threads use the latch one after the other.
            self.turn = self.rng.random_range(SPAN / 5..SPAN * 2 / 5);
            let call = now();
            if self.rng.random_bool(0.5) {
                let outcome = outcome(&latch.count_down().map(|()| true));
                self.step(Step::CountDown, &name, call, nanos(LONGEST_REQUEST), COUNT, outcome);
            } else {
                let wait = Duration::from_millis(3500);
                let outcome = outcome(&latch.wait_for(wait).map(|waited| !waited.timed_out()));
                self.step(Step::Wait, &name, call, nanos(wait), COUNT, outcome);
            }
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn known_latch(&self) -> (u64, bool) {
        *self.shared.latch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn condition(&mut self) {
        let name = self.of_now("condition", 1);
        let lock = self.client.reentrant_lock(&name);
        let condition = lock.condition("changed");
        let about = || About::lock(Kind::Reentrant, &name, Terms::Usual);
        let Some(kept) =
            self.acquire(about(), How::Lock, Duration::ZERO, |_| lock.lock().map(Taken))
        else {
            return;
        };
        if self.rng.random_ratio(1, 3) {
            let wait = Duration::from_millis(self.rng.random_range(100..1500));
            leaving(&self.shared, &kept);
            let call = now();
            let woken = condition.wait_for(&kept.guard, wait);
            // The guard now belongs to a new hold. After an error, it belongs to no hold.
            left(&self.shared, &kept.ids, Outcome::Posted);
            let outcome = outcome(&woken.as_ref().map(|woken| !woken.timed_out()));
            self.step(Step::Sleep, &name, call, 0, u64::from(outcome == Outcome::Done), outcome);
            if woken.is_err() {
                return;
            }
            let at = now();
            let ids = self.granted(&about(), call, at, kept.guard.remaining(), 0);
            leave(&self.shared, Kept { guard: kept.guard, ids }, false);
        } else {
            let call = now();
            let notified = if self.rng.random_ratio(1, 4) {
                condition.notify_all()
            } else {
                condition.notify_one().map(u64::from)
            };
            let number = *notified.as_ref().unwrap_or(&0);
            let outcome = outcome(&notified.map(|_| true));
            self.step(Step::Notify, &name, call, nanos(LONGEST_REQUEST), number, outcome);
            leave(&self.shared, kept, false);
        }
    }
}
