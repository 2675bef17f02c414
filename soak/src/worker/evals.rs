//! Writes by scripts of a guard to the Redis that has the lock. Beside each such write, the worker
//! makes a plain write to the store.
//! Each write also adds one to a count that its thread read before.

use std::time::Duration;

use rand::RngExt;
use redlatch::{Error, ErrorKind, Lock, Value, Wait};

use super::Worker;
use super::held::{About, cancelled, hold, leave};
use crate::history::Kind;
use crate::store::{LATE, late_keys};

impl Worker {
    pub(super) fn evals(&mut self) {
        let terms = self.terms();
        let (lock, name, kind): (Box<dyn Lock>, _, _) = match self.rng.random_range(0..3) {
            0 => {
                let name = self.of_now("evals", 1);
                (Box::new(terms.of(self.client.reentrant_lock(&name))), name, Kind::Reentrant)
            }
            1 => {
                // The queue of a fair lock has no time to live: the next caller removes an entry of
                // a process that was killed, so the name is used for the whole round.
                let name = self.one_of("evals-fair", 1);
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
        let read = kept.guard.command("GET", &keys[3..4], &[]);
        // `None` after a failed write, which may still reach the server later.
        let mut count = read.ok().map(|count| count.as_int().unwrap_or(0));
        let mut twin = self.store.count(&name).unwrap_or_else(|error| {
            self.shared.odd(format!("the store: {error}"));
            0
        });
        for _ in 0..self.rng.random_range(1..4) {
            hold(&self.shared, &kept, stay);
            let new = count.map(|count| count + 1);
            twin += 1;
            let text = new.map(|count| count.to_string());
            let args: Vec<_> = [Some(&writer), text.as_ref()].into_iter().flatten().collect();
            let args: Vec<_> = args.into_iter().map(String::as_bytes).collect();
            let eval = |wait: Wait<'_>| kept.guard.eval_within(wait, &script, &keys, &args);
            let limit = Duration::from_micros(self.rng.random_range(1..3_000));
            let written = match self.rng.random_range(0..8) {
                0 => eval(Wait::at_most(limit)),
                1 => cancelled(limit, |token| eval(token.into())),
                _ => eval(Wait::FOREVER),
            };
            match written {
                Ok(Value::List(both)) if both == [Value::Int(0), Value::Int(0)] => count = new,
                Ok(both) => {
                    self.shared.odd(format!("late scripts and lost counts under {name}: {both:?}"));
                }
                // The next script writes the same count. So if this script has run, or runs later,
                // the check finds a lost count.
                Err(error) if is_not_run(&error) => {}
                Err(error) if may_have_run(error.kind()) => count = None,
                Err(error) if error.kind() == ErrorKind::LeaseLost => break,
                Err(error) => self.shared.odd(format!("a script under {name}: {error}")),
            }
            if let Err(error) = self.store.write_late(&name, &writer, twin) {
                self.shared.odd(format!("the store: {error}"));
            }
            // A thread that leaves at once lets the next thread of its process begin before a late
            // script runs.
            if count.is_none() && self.rng.random() {
                break;
            }
        }
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }
}

/// Whether the library says that the script has not run and will never run.
fn is_not_run(error: &Error) -> bool {
    !error.outcome_unknown() && error.to_string().contains("the script has not run")
}

/// Whether the script may have run as a whole or in part, or may still run.
fn may_have_run(kind: ErrorKind) -> bool {
    kind.is_server_trouble() || kind == ErrorKind::Cancelled
}
