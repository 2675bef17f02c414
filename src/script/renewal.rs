//! Renewals: what falls due together goes together, many names by one script.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::{
    Replied, Rights, Trouble, error_reply, expirable_semaphore, granted, lock, millis, refused,
    unexpected,
};
use crate::config::ReplicaAcks;
use crate::connection::{Cause, Command, Outcome, Route};
use crate::protocol::{LockKeys, Mode, Owner};

/// What became of one hold's renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Done,
    NotHeld,
    /// Not renewed for another reason; worth another try.
    Failed(String),
    /// Renewed, but too few replicas have that.
    Unacknowledged(String),
}

/// What is renewed, many by one call: a name's key, and who or what is renewed under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RenewalKind {
    Locks,
    /// Of expirable semaphores.
    Permits,
}

impl RenewalKind {
    fn rights(self) -> Rights {
        match self {
            Self::Locks => Rights::Locks,
            Self::Permits => Rights::ExpirableSemaphores,
        }
    }
}

pub(crate) fn renew_command<'a>(
    renewals: RenewalKind,
    holds: impl Iterator<Item = (&'a str, &'a Owner)> + Clone,
    lease: Duration,
    acks: Option<ReplicaAcks>,
) -> Command {
    let mut keys: Vec<&[u8]> = holds.clone().map(|(key, _)| key.as_bytes()).collect();
    let reads = holds.clone().filter(|(_, owner)| owner.mode() == Mode::Read);
    let timeouts: Vec<_> =
        reads.map(|(key, owner)| LockKeys::read_timeout(key, &owner.to_string())).collect();
    let mut digits = [0; 20];
    let mut arguments: Vec<&[u8]> = Vec::with_capacity(1 + keys.len());
    keys.extend(timeouts.iter().map(String::as_bytes));
    arguments.push(millis(lease, &mut digits));
    let owners: Vec<_> = holds
        .map(|(_, owner)| match owner.mode() {
            Mode::Read => [b"read ", &*owner.text()].concat(),
            Mode::Lock | Mode::Write => owner.text().to_vec(),
        })
        .collect();
    arguments.extend(owners.iter().map(Vec::as_slice));
    let script = match renewals {
        RenewalKind::Locks => &lock::RENEW,
        RenewalKind::Permits => &expirable_semaphore::RENEW,
    };
    Command::script(script, &keys, &arguments).acknowledged(acks)
}

/// What became of each of the holds of a [`renew_command`].
pub(crate) fn renewed(renewals: RenewalKind, outcome: Outcome) -> Result<Vec<Renewed>, Trouble> {
    let replied = granted(outcome, false, renewals.rights(), each_renewed)?;
    let Some(void) = replied.void else { return Ok(replied.reply) };
    // What is not held any more is so, whoever knows of it.
    let unless_known = |renewed| match renewed {
        Renewed::Done => Renewed::Unacknowledged(format!("{void:#}")),
        renewed => renewed,
    };
    Ok(replied.reply.into_iter().map(unless_known).collect())
}

fn each_renewed(reply: Value) -> Result<Vec<Renewed>, Trouble> {
    let Value::Array(replies) = reply else { return Err(unexpected(&reply)) };
    let renewed = |reply| match reply {
        Value::Int(1) => Renewed::Done,
        Value::Int(0) => Renewed::NotHeld,
        Value::BulkString(refusal) => {
            Renewed::Failed(String::from_utf8_lossy(&refusal).into_owned())
        }
        other => Renewed::Failed(unexpected(&other).into_error().to_string()),
    };
    Ok(replies.into_iter().map(renewed).collect())
}

/// Raises one hold's lease now. `false`: it is not this owner's any more.
pub(crate) fn extend(
    renewals: RenewalKind,
    route: &Route,
    key: &str,
    owner: &Owner,
    lease: Duration,
    acks: Option<ReplicaAcks>,
) -> Result<bool, Trouble> {
    let rights = renewals.rights();
    let command = renew_command(renewals, std::iter::once((key, owner)), lease, acks);
    let (outcome, in_doubt) = route.call_twice(&command, || command.clone());
    let Replied { mut reply, void, .. } = granted(outcome, in_doubt, rights, each_renewed)?;
    match reply.pop() {
        Some(Renewed::Done) => void.map_or(Ok(true), |void| Err(Trouble::Unknown(void))),
        Some(Renewed::NotHeld) => Ok(false),
        Some(Renewed::Unacknowledged(_)) => Err(unexpected(&Value::Nil)),
        Some(Renewed::Failed(refusal)) => {
            let address = route.lane().endpoint().health().address();
            let cause = Cause { error: Arc::new(error_reply(&refusal)), address };
            Err(Trouble::Refused(refused(&cause, rights)))
        }
        None => Err(unexpected(&Value::Nil)),
    }
}
