//! Requests without an owner. Each request has a number, and the server applies each number once.

use redis::Value;
use redlatch_client::{CachedScript, Command, ReplicaAcks, Route, decimal, write_decimal};

use super::requests::{RequestId, Requests, VALID_FOR};
use super::{
    Replied, Rights, Trouble, answered, call, checking_rights, granted, millis, unexpected,
};
use crate::error::{Error, ErrorKind};

/// The maximum number of times that one call repeats earlier changes at a server that lacks them.
const MOST_BEHIND: u32 = 3;

/// A request that the server applies only once, even if it is sent several times.
#[derive(Debug)]
pub(crate) struct Once<'a> {
    pub(crate) script: &'static CachedScript,
    pub(crate) rights: Rights,
    pub(crate) key: &'a str,
    /// Another key of the same synchronizer, which comes after the record's key.
    pub(crate) another: Option<&'a str>,
    pub(crate) requests: &'a Requests,
    pub(crate) request_id: RequestId,
    pub(crate) arguments: &'a [&'a [u8]],
    /// The number of replicas that must have taken permits before the permits count.
    pub(crate) acks: Option<ReplicaAcks>,
}

impl Once<'_> {
    /// Returns the request's command. `copy` says whether the request was sent before.
    pub(crate) fn command(&self, copy: bool) -> Command {
        let (RequestId { number, sequence }, requests) = (self.request_id, self.requests);
        let [latest, before] = requests.validity_of(self.request_id);
        let mut digits = [[0; 20]; 4];
        let [first, second, third, fourth] = &mut digits;
        let mut signed = [b'-'; 21];
        let mut arguments: Vec<&[u8]> = Vec::with_capacity(4 + self.arguments.len());
        arguments.push(decimal(number, first));
        arguments.push(decimal(latest, second));
        arguments.push(millis(requests.record_ttl, third));
        let at = write_decimal(before, &mut signed[1..]);
        arguments.push(&signed[if copy { at } else { at + 1 }..]);
        arguments.extend_from_slice(self.arguments);
        let sequence = sequence as u64;
        let sequence = [requests.key.as_bytes(), b":", decimal(sequence, fourth)].concat();
        let keys = [self.key.as_bytes(), &*sequence, self.another.unwrap_or("").as_bytes()];
        let keys = if self.another.is_some() { &keys[..] } else { &keys[..2] };
        Command::script(self.script, keys, &arguments).acknowledged(self.acks)
    }

    /// Sends the request and waits for its reply. If the connection breaks, sends a copy.
    pub(crate) fn call(&self, route: &Route) -> Result<Value, Trouble> {
        self.call_again(route, false)
    }

    /// Like [`call`](Self::call), for a request that this thread may have sent before, in an
    /// earlier call.
    pub(crate) fn call_again(&self, route: &Route, sent_before: bool) -> Result<Value, Trouble> {
        let as_sent = |command| checking_rights(command, self.rights);
        self.send(route, sent_before, as_sent).map(|replied| replied.reply)
    }

    /// Like [`call`](Self::call), for a request that may take permits.
    pub(crate) fn take(&self, route: &Route) -> Result<Replied<Value>, Trouble> {
        self.send(route, false, |command| checking_rights(command, self.rights))
    }

    /// Like [`call`](Self::call), for a request that gives permits back. The server does not check
    /// all rights first, because even a user who may not publish must be able to give permits back.
    pub(crate) fn give(&self, route: &Route) -> Result<Replied<Value>, Trouble> {
        self.send(route, false, |command| command)
    }

    fn send(
        &self,
        route: &Route,
        mut sent_before: bool,
        as_sent: impl Fn(Command) -> Command,
    ) -> Result<Replied<Value>, Trouble> {
        if !self.requests.server.is_set() {
            // If this query fails, the request was not sent.
            self.learn(route).map_err(|trouble| match trouble {
                Trouble::Unknown(error) => Trouble::Unsent(error),
                trouble => trouble,
            })?;
        }
        let (mut again, mut behind) = (false, 0);
        loop {
            let copy = || as_sent(self.command(true));
            let first = as_sent(self.command(sent_before));
            let (outcome, in_doubt) = route.call_twice(&first, copy);
            let in_doubt = in_doubt || sent_before;
            let replied = granted(outcome, in_doubt, self.rights, Ok)?;
            if Requests::is_behind(&replied.reply) {
                sent_before = in_doubt;
                behind += 1;
                if behind > MOST_BEHIND {
                    self.requests.with_log(|log| log.forget_sequence(self.request_id.sequence));
                }
                if !self.requests.must_be_mended(self.request_id, route.incarnation()) {
                    continue;
                }
                for (_, mend) in self.requests.mend_commands(Some(self.request_id.sequence)) {
                    let (outcome, _) = route.call_twice(&mend, || mend.clone());
                    answered(outcome, in_doubt, self.rights)?;
                }
                continue;
            }
            if !self.requests.check_late(&replied.reply) {
                return Ok(replied);
            } else if in_doubt {
                // The server may have applied an earlier copy so long ago that the record has
                // expired.
                return Err(Trouble::Forgotten(forgotten()));
            } else if again {
                return Err(Trouble::Unsent(late()));
            }
            // The request was sent once and arrived too late, because this thread was suspended or
            // a clock jumped. Send the request again with a later time.
            self.requests.prolong(self.request_id);
            again = true;
        }
    }

    /// Asks the server for its time, from which the client computes the server's time later.
    fn learn(&self, route: &Route) -> Result<(), Trouble> {
        let reply = call(route, &Command::plain(&[b"TIME"]), self.rights)?;
        let number = |part: &Value| match part {
            Value::BulkString(text) => str::from_utf8(text).ok()?.parse::<i64>().ok(),
            _ => None,
        };
        let now = match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [seconds, micros] => number(seconds).zip(number(micros)),
                _ => None,
            },
            _ => None,
        };
        let Some((seconds, micros)) = now else { return Err(unexpected(&reply)) };
        self.requests.server.set(seconds.saturating_mul(1_000).saturating_add(micros / 1_000));
        self.requests.prolong(self.request_id);
        Ok(())
    }
}

/// Returns the error of a request that was sent once and arrived too late.
pub(crate) fn late() -> Error {
    let message = "the request reached the server too late, or one of the two clocks jumped";
    Error::new(ErrorKind::Refused, message.to_owned())
}

/// Returns the error of a request that was refused because the server lacks an earlier change.
pub(crate) fn behind() -> Error {
    let message = "the server does not know an earlier change by this client; it may have just \
                   become the master";
    Error::new(ErrorKind::Refused, message.to_owned())
}

/// Returns the error of a request that was sent more than once and arrived too late.
fn forgotten() -> Error {
    let message = format!(
        "the request was sent again after more than {VALID_FOR:?}, when the server may have forgotten it"
    );
    Error::new(ErrorKind::Refused, message)
}

#[cfg(all(test, testkit))]
mod tests;
