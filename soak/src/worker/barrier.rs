//! The work with barriers.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use redlatch::Waited;

use super::held::{cancelled, outcome};
use super::{PARTIES, Worker};
use crate::clock::{nanos, now};
use crate::history::{Event, Outcome, Step};

/// The maximum wait of a party. Other parties may be killed or paused.
const LONGEST: Duration = Duration::from_secs(6);

impl Worker {
    pub(super) fn barrier(&mut self) {
        let acts = self.rng.random_bool(0.5);
        let name = self.of_now(if acts { "barrier-acts" } else { "barrier" }, 1);
        let mut barrier = self.client.cyclic_barrier(&name);
        if acts {
            let (shared, name) = (Arc::clone(&self.shared), name.clone());
            barrier = barrier.with_action(move || {
                let call = now();
                thread::sleep(Duration::from_millis(2));
                let (name, at) = (name.clone(), now());
                let (step, outcome) = (Step::Act, Outcome::Done);
                let done = Event::Stepped { step, name, call, at, bound: 0, number: 0, outcome };
                shared.log.write(&done);
            });
        }
        if barrier.try_set_parties(PARTIES).is_err() {
            return;
        }
        for _ in 0..self.rng.random_range(1..8) {
            let (wait, is_cancelled) = match self.rng.random_range(0..20) {
                0 => (self.short(), false),
                1 => (Duration::from_millis(self.rng.random_range(0..40)), true),
                2..5 => (LONGEST, true),
                _ => (Duration::from_millis(self.rng.random_range(20..3000)), false),
            };
            let call = now();
            let passed = if is_cancelled {
                cancelled(wait, |token| barrier.wait_cancellable(token).map(Waited::InTime))
            } else {
                barrier.wait_for(wait)
            };
            let index = if let Ok(Waited::InTime(index)) = passed { index } else { 0 };
            let outcome = match &passed {
                Err(error) if error.outcome_unknown() && !error.kind().is_server_trouble() => {
                    Outcome::Unsure
                }
                _ => outcome(&passed.as_ref().map(|waited| !waited.timed_out())),
            };
            let bound = if wait.is_zero() { LONGEST } else { wait };
            self.step(Step::Arrive, &name, call, nanos(bound), index.into(), outcome);
            match outcome {
                Outcome::Done => {}
                Outcome::Trouble => return thread::sleep(Duration::from_millis(20)),
                _ if self.rng.random_bool(0.5) => drop(barrier.reset()),
                _ => return,
            }
        }
    }
}
