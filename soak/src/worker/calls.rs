//! The calls, which are chosen at random and recorded.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use redlatch::{Attempt, Error};

use super::Worker;
use super::held::{About, Held, How, Kept, Terms, outcome};
use crate::clock::{nanos, now};
use crate::history::{Event, Grant, Kind, Outcome, Step};

impl Worker {
    pub(super) fn step(
        &self,
        step: Step,
        name: &str,
        call: u64,
        bound: u64,
        number: u64,
        outcome: Outcome,
    ) {
        let name = name.to_owned();
        self.shared.log.write(&Event::Stepped {
            step,
            name,
            call,
            at: now(),
            bound,
            number,
            outcome,
        });
    }

    pub(super) fn acquire<G: Held>(
        &mut self,
        about: About,
        how: How,
        stay: Duration,
        take: impl FnOnce(How) -> Result<Attempt<G>, Error>,
    ) -> Option<Kept<G>> {
        let take = |how| take(how).map(|guard| guard.into_option().map(|guard| (0, guard)));
        self.acquire_with(about, how, stay, take).map(|(kept, _)| kept)
    }

    /// Makes a call and records its outcome. The second result is the token.
    pub(super) fn acquire_with<G: Held>(
        &mut self,
        mut about: About,
        how: How,
        stay: Duration,
        take: impl FnOnce(How) -> Result<Option<(u64, G)>, Error>,
    ) -> Option<(Kept<G>, u64)> {
        // Registers callbacks for all holds that may be lost, and for some of the other holds.
        about.is_watched = about.kind != Kind::Semaphore
            && (stay > Duration::from_millis(1) || self.rng.random_ratio(1, 10));
        let call = now();
        if let Some(keeps) = about.keeps {
            for name in about.names.iter().cloned() {
                self.shared.log.write(&Event::Asks { name, call, keeps: nanos(keeps) });
            }
        }
        let taken = take(how);
        let at = now();
        let outcome = outcome(&taken.as_ref().map(Option::is_some));
        if let Ok(Some((token, guard))) = taken {
            let ids = self.granted(&about, call, at, guard.remaining(), token);
            if about.is_watched {
                let (shared, ids) = (Arc::clone(&self.shared), ids.clone());
                guard.on_lost(move |_| {
                    let at = now();
                    ids.into_iter().for_each(|id| shared.log.write(&Event::Lost { id, at }));
                });
            }
            return Some((Kept { guard, ids }, token));
        }
        if about.keeps.is_none() {
            about.names.truncate(1);
        }
        let (kind, bound) = (about.kind, how.bound());
        for name in about.names {
            self.shared.log.write(&Event::Missed { kind, name, call, at, bound, outcome });
        }
        if matches!(outcome, Outcome::Trouble) {
            // Pause after server trouble, as a real caller would.
            thread::sleep(Duration::from_millis(20));
        }
        None
    }

    pub(super) fn granted(
        &self,
        about: &About,
        call: u64,
        at: u64,
        remaining: Duration,
        token: u64,
    ) -> Vec<u64> {
        let until = at.saturating_add(nanos(remaining));
        let grant = |name: &String| {
            let grant = Grant {
                id: self.shared.id(),
                kind: about.kind,
                name: name.clone(),
                weight: about.weight,
                capacity: about.capacity,
                call,
                at,
                until,
                lease: about.lease,
                token,
                is_watched: about.is_watched,
            };
            let id = grant.id;
            self.shared.log.write(&Event::Granted(grant));
            id
        };
        about.names.iter().map(grant).collect()
    }

    pub(super) fn how(&mut self) -> How {
        match self.rng.random_range(0..20) {
            0..10 => How::Lock,
            10..14 => How::Try,
            14..17 => How::For(Duration::from_millis(self.rng.random_range(0..400))),
            17 => How::For(self.short()),
            _ => How::Cancelled(Duration::from_millis(self.rng.random_range(0..40))),
        }
    }

    /// Returns a limit that is shorter than the time of a reply on a busy machine.
    pub(super) fn short(&mut self) -> Duration {
        Duration::from_millis(self.rng.random_range(0..10))
    }

    pub(super) fn terms(&mut self) -> Terms {
        match self.rng.random_range(0..12) {
            0 => Terms::Fixed(Duration::from_millis(self.rng.random_range(300..1500))),
            1 => Terms::Watched(Duration::from_millis(self.rng.random_range(600..2000))),
            _ => Terms::Usual,
        }
    }

    pub(super) fn stay(&mut self) -> Duration {
        let micros = match self.rng.random_range(0..1000) {
            0..800 => self.rng.random_range(0..10),
            800..950 => self.rng.random_range(100..1500),
            950..998 => self.rng.random_range(2_000..20_000),
            _ => self.rng.random_range(100_000..700_000),
        };
        Duration::from_micros(micros)
    }
}
