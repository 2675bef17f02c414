//! The work of holders that are notified of waiters.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use redlatch::{Lock, LockGuard};

use super::held::{About, How, Kept, Terms, hold, leave};
use super::{READERS, WATCHDOG, Worker};
use crate::clock::now;
use crate::history::{Event, Kind};

/// The time between two checks whether a holder's guard reports waiters.
const LOOKS: Duration = Duration::from_millis(60);

impl Worker {
    pub(super) fn wanted(&mut self) {
        if self.rng.random_bool(0.5) { self.wanted_at_once() } else { self.wanted_in_time() }
    }

    /// Keeps a hold until another thread wants the lock. The next renewal comes too late, so only a
    /// message can notify the holder. There are many names, so that most holders have the lock
    /// before the first waiter comes.
    fn wanted_at_once(&mut self) {
        let name = self.one_of("wanted", 8);
        let terms = Terms::Watched(Duration::from_secs(15));
        let lock = terms.of(self.client.reentrant_lock(&name)).with_wanted();
        let (wait, stay) = (Duration::from_secs(6), Duration::from_secs(3));
        let about = About::lock(Kind::Reentrant, &name, terms);
        let taken = self.take(&lock, about, How::For(wait), stay);
        let Some(kept) = taken else { return };
        let (news, wanted) = mpsc::channel();
        kept.guard.on_wanted(move || {
            let _ = news.send(());
        });
        let _heard = wanted.recv_timeout(stay);
        leave(&self.shared, kept, false);
    }

    /// Takes a hold. The holder leaves when its callback runs, or stays and records the guard's
    /// reports. Renewals come soon, so they report the waiters if a message is lost. Many waiters
    /// give up early, and there are many names, so that often nobody waits.
    fn wanted_in_time(&mut self) {
        let number = self.rng.random_range(0..12);
        let name = format!("{}heard-{number}", self.task.prefix);
        let is_fixed = self.rng.random_ratio(1, 4);
        let terms = if is_fixed { Terms::Fixed(WATCHDOG) } else { Terms::Usual };
        let (lock, kind, weight): (Box<dyn Lock>, _, _) = match number % 3 {
            0 => {
                let lock = terms.of(self.client.reentrant_lock(&name)).with_wanted();
                (Box::new(lock), Kind::Reentrant, 1)
            }
            1 => {
                let lock = terms.of(self.client.fair_lock(&name)).with_wanted();
                (Box::new(lock), Kind::Fair, 1)
            }
            _ => {
                let both = self.client.read_write_lock(&name);
                let lock = terms.of(both.writer().clone()).with_wanted();
                (Box::new(lock), Kind::ReadWrite, READERS)
            }
        };
        let wait = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(2500..4500),
            _ => self.rng.random_range(10..500),
        };
        let about = About { weight, capacity: weight, ..About::lock(kind, &name, terms) };
        let stay = Duration::from_millis(match self.rng.random_range(0..3) {
            0 if !is_fixed => self.rng.random_range(2000..6000),
            0 => 2200,
            _ => self.rng.random_range(0..1000),
        });
        match self.take(&*lock, about, How::For(Duration::from_millis(wait)), stay) {
            Some(kept) => self.listen(kept, stay),
            None => thread::sleep(Duration::from_millis(self.rng.random_range(0..1000))),
        }
    }

    fn listen(&mut self, kept: Kept<LockGuard>, stay: Duration) {
        let (news, wanted) = mpsc::channel();
        let (shared, id) = (Arc::clone(&self.shared), kept.ids[0]);
        let heard = move |is_wanted| {
            shared.log.write(&Event::Heard { id, at: now(), is_wanted });
        };
        kept.guard.on_wanted({
            let heard = heard.clone();
            move || {
                heard(true);
                let _ = news.send(());
            }
        });
        let (stays, end) = (self.rng.random_bool(0.5), Instant::now() + stay);
        let mut said = false;
        while Instant::now() < end && kept.guard.is_held() {
            hold(&self.shared, &kept, LOOKS.min(stay));
            let is_wanted = kept.guard.is_wanted();
            if stays && is_wanted != said {
                heard(is_wanted);
                said = is_wanted;
            }
            if !stays && wanted.try_recv().is_ok() {
                break;
            }
        }
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }
}
