//! Writes by scripts of a guard to the Redis that has the lock. Beside each, the worker makes a
//! plain write to the store.

use std::time::Duration;

use rand::RngExt;
use redlatch::{ErrorKind, Lock, Wait};

use super::Worker;
use super::held::{About, hold, leave};
use crate::history::Kind;
use crate::store::{LATE, late_keys};

impl Worker {
    pub(super) fn evals(&mut self) {
        let terms = self.terms();
        let (lock, name, kind): (Box<dyn Lock>, _, _) = match self.rng.random_range(0..3) {
            0 => {
                let name = self.of_now("evals", 2);
                (Box::new(terms.of(self.client.reentrant_lock(&name))), name, Kind::Reentrant)
            }
            1 => {
                let name = self.of_now("evals-fair", 1);
                (Box::new(terms.of(self.client.fair_lock(&name))), name, Kind::Fair)
            }
            _ => {
                let name = self.of_now("evals-write", 1);
                let both = self.client.read_write_lock(&name);
                (Box::new(terms.of(both.writer().clone())), name, Kind::ReadWrite)
            }
        };
        for _ in 0..self.rng.random_range(1..20) {
            self.write_under(&*lock, About::lock(kind, &name, terms));
        }
    }

    fn write_under(&mut self, lock: &dyn Lock, about: About) {
        let (how, stay) = (self.how(), self.stay());
        let Some(kept) = self.take(lock, about, how, stay) else { return };
        let name = lock.name().to_owned();
        // The owner alone does not identify the writer, because threads pass their holds on.
        let writer = format!(
            "{} {}",
            kept.guard.owner().map_or(String::new(), |owner| owner.to_string()),
            kept.ids[0]
        );
        let script = redlatch::Script::new(LATE);
        let keys = late_keys(&name);
        let keys = keys.each_ref().map(String::as_str);
        for _ in 0..self.rng.random_range(1..4) {
            let wait = match self.rng.random_ratio(1, 4) {
                true => Wait::at_most(Duration::from_micros(self.rng.random_range(1..3_000))),
                false => Wait::FOREVER,
            };
            match kept.guard.eval_within(wait, &script, &keys, &[writer.as_bytes()]) {
                Ok(late) if late.as_int() == Some(0) => {}
                Ok(late) => self.shared.odd(format!("{late:?} late scripts have run under {name}")),
                Err(error) if error.kind().is_server_trouble() => {}
                Err(error) if error.kind() == ErrorKind::LeaseLost => break,
                Err(error) => self.shared.odd(format!("a script under {name}: {error}")),
            }
            hold(&self.shared, &kept, stay);
            if let Err(error) = self.store.write_late(&name, &writer) {
                self.shared.odd(format!("the store: {error}"));
            }
        }
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }
}
