//! The work with elections.

use std::time::Duration;

use rand::RngExt;
use redlatch::Taken;

use super::held::{About, How, Terms, cancelled, hold, leave, outcome};
use super::{GRACE, LONGEST_REQUEST, WATCHDOG, Worker};
use crate::clock::{nanos, now};
use crate::history::{Kind, Outcome, Step};

impl Worker {
    pub(super) fn election(&mut self) {
        let name = self.one_of("election", 2);
        let lease = if self.rng.random_bool(0.5) { WATCHDOG } else { WATCHDOG / 2 };
        let election = self.client.leader_election(&name).with_watchdog(lease).with_grace(GRACE);
        for _ in 0..self.rng.random_range(1..6) {
            let how = match self.how() {
                // Other processes may lead for seconds, so the wait is limited.
                How::Lock if self.rng.random_bool(0.9) => How::For(Duration::from_millis(300)),
                other => other,
            };
            let stay = if self.rng.random_ratio(1, 100) {
                Duration::from_millis(self.rng.random_range(1000..4000))
            } else {
                self.stay()
            };
            let about = About::lock(Kind::Fenced, &name, Terms::Watched(lease));
            let taken = self.acquire_with(about, how, stay, |how| {
                let led = match how {
                    How::Lock => election.campaign().map(Taken),
                    How::Try => election.try_campaign(),
                    How::For(wait) => election.try_campaign_for(wait),
                    How::Cancelled(wait) => {
                        cancelled(wait, |token| election.campaign_cancellable(token).map(Taken))
                    }
                };
                led.map(|led| led.into_option().map(|led| (led.token().get(), led)))
            });
            let Some((kept, token)) = taken else { continue };
            let call = now();
            let found = election.leader();
            let outcome = outcome(&found.as_ref().map(|_| kept.guard.is_leader()));
            // While this process leads, the record must name it as the leader.
            let on_record = found.ok().flatten().map_or(0, |leader| leader.token.get());
            let is_another = outcome == Outcome::Done && on_record != token;
            let bound = nanos(LONGEST_REQUEST);
            self.step(Step::Look, &name, call, bound, u64::from(is_another), outcome);
            hold(&self.shared, &kept, stay);
            leave(&self.shared, kept, self.rng.random_ratio(1, 3));
        }
    }
}
