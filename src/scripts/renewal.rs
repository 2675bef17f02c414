//! Renewals. Renewals that are due at the same time share a script call.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redlatch_client::{Cause, Command, Outcome, ReplicaAcks, Route};

use super::{
    Replied, Rights, Trouble, error_reply, expirable_semaphore, granted, lock, millis, refused,
    unexpected,
};
use crate::error::Error;
use crate::scripts::{LockKeys, Mode, Owner};

#[derive(Debug)]
pub(crate) enum Renewed {
    /// The second value says whether others wait for the lock. It is `false` if the renewal did not
    /// query this.
    Done(StillHeld, bool),
    /// The hold was not renewed because of this error. A retry may succeed.
    Failed(Error),
    /// The hold was renewed, but too few replicas have the renewal.
    Unacknowledged(Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StillHeld {
    No,
    Yes,
    /// The hold exists, with a longer lease than each lease that a thread requested. See
    /// [`Longer`].
    TooLong,
}

/// How a renewal treats a lease that is longer than each lease that a thread requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Longer {
    /// The lease does not change.
    Kept,
    /// The lease does not change, and the reply says whether it is longer than this time. No thread
    /// has requested a longer lease, so a longer lease shows that the server's clock was set back.
    Reported(Duration),
    /// The lease is shortened to this time.
    Cut(Duration),
}

/// A kind of renewals. One script call renews several holds of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RenewalKind {
    Locks,
    /// The renewals of expirable semaphores.
    Permits,
}

impl RenewalKind {
    #[cfg(feature = "in-memory")]
    pub(crate) fn scripts() -> [String; 2] {
        [lock::RENEW.hash(), expirable_semaphore::RENEW.hash()]
    }

    fn rights(self) -> Rights {
        match self {
            Self::Locks => Rights::Locks,
            Self::Permits => Rights::ExpirableSemaphores,
        }
    }
}

/// Returns the command that renews these holds. Each hold has its key, its owner, and a flag that
/// makes the renewal query whether others wait for the lock.
pub(crate) fn renew_command<'a>(
    kind: RenewalKind,
    holds: impl Iterator<Item = (&'a str, &'a Owner, bool)> + Clone,
    lease: Duration,
    longer: Longer,
    acks: Option<ReplicaAcks>,
) -> Command {
    let mut keys: Vec<&[u8]> = holds.clone().map(|(key, ..)| key.as_bytes()).collect();
    let reads = holds.clone().filter(|(_, owner, _)| owner.mode() == Mode::Read);
    let timeouts: Vec<_> =
        reads.map(|(key, owner, _)| LockKeys::read_timeout(key, &owner.to_string())).collect();
    let mut digits = [0; 20];
    let mut arguments: Vec<&[u8]> = Vec::with_capacity(2 + keys.len());
    keys.extend(timeouts.iter().map(String::as_bytes));
    arguments.push(millis(lease, &mut digits));
    let longest = match longer {
        Longer::Kept => "0".to_owned(),
        Longer::Reported(longest) => longest.as_millis().to_string(),
        Longer::Cut(longest) => format!("-{}", longest.as_millis()),
    };
    arguments.push(longest.as_bytes());
    let owners: Vec<_> = holds
        .map(|(_, owner, asks)| {
            let asks = if asks { "want " } else { "" };
            let reads = if owner.mode() == Mode::Read { "read " } else { "" };
            [asks.as_bytes(), reads.as_bytes(), &*owner.text()].concat()
        })
        .collect();
    arguments.extend(owners.iter().map(Vec::as_slice));
    let script = match kind {
        RenewalKind::Locks => &lock::RENEW,
        RenewalKind::Permits => &expirable_semaphore::RENEW,
    };
    // If replicas must acknowledge grants, they must also acknowledge renewals. If a replica
    // without the renewal became the master, it would grant the lock to the next owner at the old
    // end of the lease.
    Command::script(script, &keys, &arguments).acknowledged(acks)
}

/// Reads the reply of the server at `address` to a [`renew_command`]: a result for each hold.
pub(crate) fn renewed(
    kind: RenewalKind,
    outcome: Outcome,
    address: &Arc<str>,
) -> Result<Vec<Renewed>, Trouble> {
    let rights = kind.rights();
    let Replied { reply, unacknowledged, .. } = granted(outcome, false, rights, replies_of_each)?;
    let renewed = |reply| match read_renewed(reply, rights, || Arc::clone(address)) {
        // The hold is lost, even if too few replicas have the renewal.
        Ok((StillHeld::No, _)) => Renewed::Done(StillHeld::No, false),
        Ok((held, is_wanted)) => {
            unacknowledged.clone().map_or(Renewed::Done(held, is_wanted), Renewed::Unacknowledged)
        }
        Err(refusal) => Renewed::Failed(refusal),
    };
    Ok(reply.into_iter().map(renewed).collect())
}

fn replies_of_each(reply: Value) -> Result<Vec<Value>, Trouble> {
    match reply {
        Value::Array(replies) => Ok(replies),
        other => Err(unexpected(&other)),
    }
}

/// Whether one hold was renewed, and whether others wait for the lock.
fn read_renewed(
    reply: Value,
    rights: Rights,
    address: impl FnOnce() -> Arc<str>,
) -> Result<(StillHeld, bool), Error> {
    match reply {
        Value::Int(0) => Ok((StillHeld::No, false)),
        Value::Int(1) => Ok((StillHeld::Yes, false)),
        Value::Int(2) => Ok((StillHeld::TooLong, false)),
        Value::Int(3) => Ok((StillHeld::Yes, true)),
        Value::Int(4) => Ok((StillHeld::TooLong, true)),
        Value::BulkString(refusal) => {
            let error = Arc::new(error_reply(&String::from_utf8_lossy(&refusal)));
            Err(refused(&Cause::said(error, address()), rights))
        }
        other => Err(unexpected(&other).into_error()),
    }
}

/// Raises one hold's lease now. Returns `false` if the owner has lost the hold.
pub(crate) fn extend(
    kind: RenewalKind,
    route: &Route,
    key: &str,
    owner: &Owner,
    lease: Duration,
    acks: Option<ReplicaAcks>,
) -> Result<bool, Trouble> {
    let rights = kind.rights();
    let hold = std::iter::once((key, owner, false));
    let command = renew_command(kind, hold, lease, Longer::Kept, acks);
    let (outcome, in_doubt) = route.call_twice(&command, || command.clone());
    let Replied { mut reply, unacknowledged, .. } =
        granted(outcome, in_doubt, rights, replies_of_each)?;
    let Some(reply) = reply.pop() else { return Err(unexpected(&Value::Nil)) };
    let address = || route.lane().endpoint().health().address();
    if read_renewed(reply, rights, address).map_err(Trouble::Refused)?.0 == StillHeld::No {
        return Ok(false);
    }
    unacknowledged.map_or(Ok(true), |unacknowledged| Err(Trouble::Unknown(unacknowledged)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_one_of_several_servers_names_it() {
        let refusal = b"READONLY You can't write against a read only replica.".to_vec();
        let reply = Value::Array(vec![Value::Int(3), Value::Int(0), Value::BulkString(refusal)]);
        let renewed = renewed(RenewalKind::Locks, Ok(reply), &"there:1".into()).unwrap();
        let [
            Renewed::Done(StillHeld::Yes, true),
            Renewed::Done(StillHeld::No, false),
            Renewed::Failed(error),
        ] = &renewed[..]
        else {
            panic!("{renewed:?}")
        };
        assert!(error.to_string().contains("the server at there:1 refuses it"), "{error}");
        assert!(format!("{error:#}").contains("You can't write against"), "{error:#}");
    }
}
