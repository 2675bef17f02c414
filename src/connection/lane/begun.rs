//! A command whose reply is read later.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::Lane;
use crate::connection::Command;
use crate::connection::link::{Cause, Failure, Outcome, ReplyReceiver};
use crate::sync::Mutex;

/// A command on its way: see [`Lane::begin`].
#[must_use = "it was sent; what came of it must be heard"]
pub(crate) struct Begun {
    pub(super) lane: Arc<Lane>,
    pub(super) command: Command,
    pub(super) reply: Arc<ReplyCell>,
}

#[derive(Default)]
pub(super) struct ReplyCell(Mutex<Option<Outcome>>);

impl ReplyCell {
    pub(super) fn take(&self) -> Option<Outcome> {
        self.0.lock().take()
    }
}

impl Begun {
    /// Waits for the reply, until `until`. As [`Lane::call_twice`] it sends a copy after a reset.
    /// `true`: it did. What was not written, since whoever was to open the connection had little
    /// time for that, is sent again as it is.
    ///
    /// Whoever reads what a lane owes finds this reply, too. While another thread combines, the
    /// caller's own PING goes with the next packet: its reply comes after all that was written
    /// before.
    pub(crate) fn finish(self, until: Instant) -> (Outcome, bool) {
        let Self { lane, command, .. } = &self;
        let begun = Instant::now();
        let mut outcome = self.outcome(until);
        // A whole attempt to connect is not made twice.
        if matches!(outcome, Err(Failure::Unsent(_)))
            && begun.elapsed() < lane.endpoint.connect_timeout()
            && Instant::now() < until
        {
            outcome = lane.begin(command).outcome(until);
        }
        match outcome {
            // Also if somebody else who read the lane gave up on it: this one's time is not over.
            Err(Failure::Reset(_) | Failure::TimedOut(_)) if Instant::now() < until => {
                (lane.begin(command).outcome(until), true)
            }
            outcome => (outcome, false),
        }
    }

    fn outcome(&self, until: Instant) -> Outcome {
        let Self { lane, .. } = self;
        let is_here = || self.reply.0.lock().is_some();
        loop {
            if let Some(outcome) = self.reply.take() {
                return outcome;
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                // A process that was stopped finds the reply here, if there is one.
                lane.read_late(until, is_here);
                // What was not written must not be later: nobody would know of it.
                let is_withdrawn = lane.withdraw(&self.reply);
                return self.reply.take().unwrap_or_else(|| {
                    let late = io::Error::new(io::ErrorKind::TimedOut, "the server did not answer");
                    let late = Cause::new(late, lane.endpoint.health());
                    Err(if is_withdrawn { Failure::Unsent(late) } else { Failure::TimedOut(late) })
                });
            }
            let to_open = rest.min(lane.endpoint.connect_timeout());
            if !lane.look_until(until, to_open, is_here) && !is_here() {
                lane.await_combiner(until, is_here);
            }
        }
    }
}

impl ReplyReceiver for ReplyCell {
    fn receive(&self, outcome: Outcome) {
        *self.0.lock() = Some(outcome);
    }
}
