//! The replies for which a link waits until enough replicas have the writes of their commands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, Value};

use crate::connection::ReplicaAcks;
use crate::connection::limit::deadline_in;
use crate::connection::outcome::{Cause, Failure, ReplyReceiver};

/// How late the reply to a WAIT for absent replicas may be. The server checks the time limit of a
/// WAIT only when it wakes up: ten times a second (`hz`), or for a client's command. (Each
/// reply has a deadline of its own, so several WAITs count as late only once.)
const LATE_WAIT: Duration = Duration::from_millis(100);

/// Replies that have been read, but that must wait for the reply to a later WAIT. That reply says
/// whether enough replicas have the writes of their commands.
pub(super) struct Acknowledgements {
    replies: VecDeque<Unacknowledged>,
    /// The number of WAITs without a reply, and the latest time of the reply to the last of them.
    waits: u32,
    waits_until: Instant,
}

struct Unacknowledged {
    receiver: Arc<dyn ReplyReceiver>,
    reply: Value,
    awaited: bool,
}

impl Acknowledgements {
    pub(super) fn new(now: Instant) -> Self {
        Self { replies: VecDeque::new(), waits: 0, waits_until: now }
    }

    /// Returns the longest time until the server has replied to all WAITs.
    pub(super) fn wait_left(&self) -> Duration {
        match self.waits {
            0 => Duration::ZERO,
            _ => self.waits_until.saturating_duration_since(Instant::now()),
        }
    }

    /// Returns how late the next reply may be, in addition to [`wait_left`](Self::wait_left).
    pub(super) fn lateness(&self) -> Duration {
        if self.waits == 0 { Duration::ZERO } else { LATE_WAIT }
    }

    /// Notes that a WAIT is about to be written.
    pub(super) fn wait(&mut self, acks: ReplicaAcks) {
        // The server begins this WAIT when the previous one is over.
        self.waits_until = deadline_in(self.wait_left().saturating_add(acks.within));
        self.waits += 1;
    }

    pub(super) fn push(&mut self, receiver: Arc<dyn ReplyReceiver>, reply: Value, awaited: bool) {
        self.replies.push_back(Unacknowledged { receiver, reply, awaited });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Returns the receivers whose threads sleep.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Arc<dyn ReplyReceiver>> {
        self.replies.iter().filter(|it| it.awaited).map(|it| &it.receiver)
    }

    /// Handles the reply to a WAIT. The WAIT was written over the same connection, after the
    /// commands of all replies.
    pub(super) fn answered(&mut self, answer: &Value, acks: ReplicaAcks, address: &Arc<str>) {
        self.waits = self.waits.saturating_sub(1);
        // The next WAIT begins now or has already begun.
        let rest = deadline_in(acks.within.saturating_mul(self.waits));
        self.waits_until = self.waits_until.min(rest);
        let too_few = match answer {
            Value::Int(had) if *had >= i64::from(acks.count) => None,
            Value::Int(had) => Some(too_few(*had, acks)),
            Value::ServerError(error) => Some(error.clone().into()),
            _ => Some((ErrorKind::Parse, "WAIT was not answered with a number").into()),
        };
        let cause = too_few.map(|error| Cause::said(Arc::new(error), Arc::clone(address)));
        // Take the receivers one by one: if one panics, the drop of the link fails the others.
        while let Some(Unacknowledged { receiver, reply, .. }) = self.replies.pop_front() {
            receiver.receive(match &cause {
                None => Ok(reply),
                Some(cause) => Err(Failure::Unacknowledged(reply, cause.clone())),
            });
        }
    }

    /// Gives the failure to every receiver.
    pub(super) fn fail(&mut self, failure: &Failure) {
        // Take the receivers one by one: if one panics, the drop of the link fails the others.
        while let Some(Unacknowledged { receiver, .. }) = self.replies.pop_front() {
            receiver.receive(Err(failure.clone()));
        }
    }
}

fn too_few(had: i64, ReplicaAcks { count, within }: ReplicaAcks) -> RedisError {
    let said = format!("{had} of {count} replicas acknowledged it within {within:?}");
    (ErrorKind::Client, "too few replicas", said).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server ends a WAIT at one of its ticks, up to 100 ms late. If the background thread
    /// closed the link before this tick, threads would get failures although their commands have
    /// run. If each WAIT counted as late, a link would notice a dead server seconds later.
    #[test]
    fn a_reply_to_a_wait_may_be_late_by_one_tick_of_the_server() {
        const TICK: Duration = Duration::from_millis(100);
        const ACKS: ReplicaAcks = ReplicaAcks { count: 1, within: Duration::from_millis(500) };
        let mut acknowledgements = Acknowledgements::new(Instant::now());
        assert_eq!(acknowledgements.lateness(), Duration::ZERO);
        for waits in 1..=100 {
            acknowledgements.wait(ACKS);
            assert_eq!(acknowledgements.lateness(), TICK);
            assert!(acknowledgements.wait_left() <= ACKS.within * waits);
        }
    }
}
