//! The scripts of several locks of one kind, on one server or in one slot.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{Command, Outcome, Pieces, Route, Script, decimal};

use super::chain::Chain;
use super::lock::{Acquired, LockScripts, Released, acquired, released, since};
use super::{
    Mode, Owner, Replied, Rights, Trouble, accepted, granted, millis, needing, unexpected,
};

static ACQUIRE: LazyLock<Script> =
    script!(takes; NUMBER_OR_LIST; ["lock/free.lua"], "multi/acquire.lua");
static WRITE_ACQUIRE: LazyLock<Script> =
    script!(takes; NUMBER_OR_LIST; ["read_write/free.lua"], "multi/acquire.lua");
static RELEASE: LazyLock<Script> = script!(LIST;
    ["lock/hand_over.lua", LOCK, "lock/release.lua"],
    "multi/release.lua"
);
static WRITE_RELEASE: LazyLock<Script> = script!(LIST;
    ["read_write/unwanted.lua", READ_WRITE, "lock/release.lua"],
    "multi/release.lua"
);

#[derive(Debug)]
pub(crate) enum AllAcquired {
    /// All locks are taken, each with this reply.
    Granted(Vec<Acquired>),
    /// No lock is taken, and an owner of another client has one of them.
    Taken,
    /// No lock is taken. A request for one lock alone takes it, or returns the reason why not.
    Refused,
}

/// Takes all of these locks for these owners if all are free and have no waiters. If one of the
/// locks is taken or has waiters, takes none of them. The request goes over the connection of the
/// first lock.
pub(crate) fn acquire(
    locks: &[(LockScripts<'_>, Owner)],
    lease: Duration,
) -> Result<Replied<AllAcquired>, Trouble> {
    let Some((first, _)) = locks.first() else {
        return Ok(Replied::counts(AllAcquired::Refused, false));
    };
    let script = if first.keys.mode == Mode::Lock { &ACQUIRE } else { &WRITE_ACQUIRE };
    let owners: Vec<_> = locks.iter().map(|(_, owner)| owner.text()).collect();
    let mut digits = [0; 20];
    let mut arguments = vec![Pieces::from(millis(lease, &mut digits))];
    arguments.extend(owners.iter().map(|owner| Pieces::from(&**owner)));
    let command = command(script, locks.iter().map(|(lock, _)| *lock), &arguments);
    let command = needing(command, first.rights());
    let (outcome, in_doubt) = first.route.call_twice(&command, || command.clone());
    granted(outcome, in_doubt, first.rights(), |reply| match reply {
        Value::Array(parts) if parts.len() == locks.len() => {
            let parts: Result<_, _> = parts.into_iter().map(acquired).collect();
            parts.map(AllAcquired::Granted)
        }
        Value::Nil => Ok(AllAcquired::Taken),
        Value::Int(0) => Ok(AllAcquired::Refused),
        other => Err(unexpected(&other)),
    })
}

/// Releases these locks, each as [`LockScripts::release_command`] does. A lock's result is `None`
/// if its release failed: a release of this lock alone will return the reason. The `bool` says
/// whether the request was sent twice.
pub(crate) fn release(
    route: &Route,
    locks: &[(LockScripts<'_>, Owner, Chain)],
) -> Result<(Vec<Option<Released>>, bool), Trouble> {
    let mode = locks.first().map_or(Mode::Lock, |(lock, ..)| lock.keys.mode);
    let script = if mode == Mode::Lock { &RELEASE } else { &WRITE_RELEASE };
    let mut texts: Vec<Vec<u8>> = Vec::with_capacity(5 * locks.len());
    for (lock, owner, chain) in locks {
        let (mut start, mut count) = ([0; 20], [0; 20]);
        // Two zeros are sent if there is no chain.
        let [start, count] = match since(*chain, &mut start) {
            Some(start) => [start, decimal(chain.count.into(), &mut count)],
            None => [&b"0"[..]; 2],
        };
        let (public, database) = (lock.keys.public().to_string(), lock.database.to_string());
        let all = [&*owner.text(), public.as_bytes(), start, count, database.as_bytes()];
        texts.extend(all.map(<[u8]>::to_vec));
    }
    let arguments: Vec<_> = texts.iter().map(|text| Pieces::from(&**text)).collect();
    let command = command(script, locks.iter().map(|(lock, ..)| *lock), &arguments);
    let (outcome, in_doubt) = route.call_twice(&command, || command.clone());
    match all_released(outcome, locks.len()) {
        Ok(released) => Ok((released, in_doubt)),
        Err(trouble) if in_doubt => Err(Trouble::Unknown(trouble.into_error())),
        Err(trouble) => Err(trouble),
    }
}

fn all_released(outcome: Outcome, count: usize) -> Result<Vec<Option<Released>>, Trouble> {
    let read = |reply| match reply {
        Value::Int(-1) => Ok(None),
        reply => released(Ok(reply), Rights::Locks).map(Some),
    };
    match accepted(outcome, Rights::Locks)? {
        Value::Array(parts) if parts.len() == count => parts.into_iter().map(read).collect(),
        other => Err(unexpected(&other)),
    }
}

/// Makes the command with the keys of all locks, one lock after the other. All locks have the same
/// number of keys.
fn command<'a>(
    script: &'static LazyLock<Script>,
    locks: impl Iterator<Item = LockScripts<'a>>,
    arguments: &[Pieces<'a>],
) -> Command {
    let (mut keys, mut count) = (Vec::new(), 0);
    for lock in locks {
        let (all, of_each) = lock.keys.of_scripts();
        keys.extend_from_slice(&all[..of_each]);
        count = of_each;
    }
    Command::script(script, &keys, arguments).of_names(count)
}
