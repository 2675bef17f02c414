//! The scripts of a lock that keeps no queue of its own in Redis.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use super::{
    Replied, Rights, Trouble, accepted, ask, call, call_again, error_reply, flag, millis, refused,
    unexpected,
};
use crate::connection::{Command, Lane, Outcome, Script};
use crate::protocol::{Owner, UNLOCKED};

static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock/acquire.lua")));
static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock/release.lua")));
static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock/renew.lua")));
static FORCE_UNLOCK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock/force_unlock.lua")));

/// See [`super::prepare`].
pub(super) fn prepare() {
    for script in [&ACQUIRE, &RELEASE, &RENEW, &FORCE_UNLOCK] {
        LazyLock::force(script);
    }
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Granted,
    /// Another owner has it, for so long if nobody renews it.
    Busy(Duration),
}

pub(crate) fn acquire(
    lane: &Lane,
    key: &str,
    owner: &Owner,
    lease: Duration,
) -> Result<Replied<Acquired>, Trouble> {
    let mut digits = [0; 20];
    let arguments = [millis(lease, &mut digits), owner.as_bytes()];
    let command = Command::script(&ACQUIRE, &[key.as_bytes()], &arguments);
    let (reply, twice) = call_again(lane, &command, Rights::Locks, || command.clone())?;
    let reply = match reply {
        Value::Nil => Acquired::Granted,
        Value::Int(left) => Acquired::Busy(time_left(left)),
        other => return Err(unexpected(&other)),
    };
    Ok(Replied { reply, twice })
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Free now; so many subscribers heard of it.
    Free(i64),
    NotHeld,
    /// Not held when it was asked for once more: released by the first copy, whose reply was lost,
    /// or lost before.
    Unclear,
}

/// Sends a release, of whatever kind of lock, and waits for the reply. Sent once more after a
/// reset; then "not held" most likely means that the first one did it, unless the server was
/// started anew meanwhile and knows nothing of the hold.
pub(crate) fn release(
    lane: &Lane,
    command: &Command,
    same_server: impl FnOnce() -> bool,
) -> Result<Released, Trouble> {
    let (outcome, twice) = lane.call_twice(command, || command.clone());
    match released(outcome) {
        Ok(Released::NotHeld) if twice && same_server() => Ok(Released::Unclear),
        Err(trouble) if twice => Err(Trouble::Unknown(trouble.into_error())),
        released => released,
    }
}

pub(crate) fn release_command(key: &str, owner: &Owner, channel: &str) -> Command {
    Command::script(&RELEASE, &[key.as_bytes()], &[owner.as_bytes(), channel.as_bytes(), UNLOCKED])
}

pub(crate) fn released(outcome: Outcome) -> Result<Released, Trouble> {
    match accepted(outcome, Rights::Locks)? {
        Value::Nil => Ok(Released::NotHeld),
        Value::Int(heard) => Ok(Released::Free(heard)),
        other => Err(unexpected(&other)),
    }
}

/// What became of one hold's renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    Done,
    NotHeld,
    /// Not renewed for another reason; worth another try.
    Failed(String),
}

pub(crate) fn renew_command<'a>(
    holds: impl Iterator<Item = (&'a str, &'a Owner)> + Clone,
    lease: Duration,
) -> Command {
    let keys: Vec<&[u8]> = holds.clone().map(|(key, _)| key.as_bytes()).collect();
    let mut digits = [0; 20];
    let mut arguments: Vec<&[u8]> = Vec::with_capacity(1 + keys.len());
    arguments.push(millis(lease, &mut digits));
    arguments.extend(holds.map(|(_, owner)| owner.as_bytes()));
    Command::script(&RENEW, &keys, &arguments)
}

/// What became of each of the holds of a [`renew_command`].
pub(crate) fn renewed(outcome: Outcome) -> Result<Vec<Renewed>, Trouble> {
    renewals(accepted(outcome, Rights::Locks)?)
}

fn renewals(reply: Value) -> Result<Vec<Renewed>, Trouble> {
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
    lane: &Lane,
    key: &str,
    owner: &Owner,
    lease: Duration,
) -> Result<bool, Trouble> {
    let reply = call(lane, &renew_command(std::iter::once((key, owner)), lease), Rights::Locks)?;
    match renewals(reply)?.pop() {
        Some(Renewed::Done) => Ok(true),
        Some(Renewed::NotHeld) => Ok(false),
        Some(Renewed::Failed(refusal)) => {
            Err(Trouble::Refused(refused(error_reply(&refusal), Rights::Locks)))
        }
        None => Err(unexpected(&Value::Nil)),
    }
}

/// Sends a forced unlock, of whatever kind of lock, and never twice: the second one would take the
/// lock from the next holder. `false`: there was nothing to unlock.
pub(crate) fn force_unlock(lane: &Lane, key: &str, command: &Command) -> Result<bool, Trouble> {
    // A connection that has been dead for a while is found out by a question.
    is_locked(lane, key)?;
    flag(accepted(lane.call_once(command), Rights::Locks)?)
}

pub(crate) fn force_unlock_command(key: &str, channel: &str) -> Command {
    let arguments: [&[u8]; 2] = [channel.as_bytes(), UNLOCKED];
    Command::script(&FORCE_UNLOCK, &[key.as_bytes()], &arguments)
}

pub(crate) fn is_locked(lane: &Lane, key: &str) -> Result<bool, Trouble> {
    ask(lane, &Command::plain(&[b"EXISTS", key.as_bytes()]), Rights::Locks, flag)
}

pub(crate) fn is_held_by(lane: &Lane, key: &str, owner: &Owner) -> Result<bool, Trouble> {
    let command = Command::plain(&[b"HEXISTS", key.as_bytes(), owner.as_bytes()]);
    ask(lane, &command, Rights::Locks, flag)
}

/// How long the lock lasts if nobody renews it; `None`: it is free. A lock without an end lasts
/// `Duration::MAX`.
pub(crate) fn remaining_lease(lane: &Lane, key: &str) -> Result<Option<Duration>, Trouble> {
    ask(lane, &Command::plain(&[b"PTTL", key.as_bytes()]), Rights::Locks, |reply| match reply {
        Value::Int(-2) => Ok(None),
        Value::Int(-1) => Ok(Some(Duration::MAX)),
        Value::Int(left) => Ok(Some(time_left(left))),
        other => Err(unexpected(&other)),
    })
}

/// A PTTL as a time. Zero if it has run out just now: a waiter asks again soon in any case.
fn time_left(left: i64) -> Duration {
    Duration::from_millis(u64::try_from(left).unwrap_or(0))
}
