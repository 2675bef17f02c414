//! The scripts of several locks of one kind, on one server or in one slot.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Outcome, Pieces, Route, decimal};

use super::chain::Chain;
use super::lock::{
    Acquired, LockScripts, Released, acquired, chain_start_argument, next_count, release_reply,
};
use super::{
    Mode, Owner, Replied, Rights, Trouble, accepted, checking_rights, granted, millis, unexpected,
};

static ACQUIRE: LazyLock<CachedScript> = script!(takes; NUMBER_OR_LIST; "multi/acquire.lua");
static RELEASE: LazyLock<CachedScript> = script!(NUMBER_OR_LIST;
    "multi/release_uncontended.lua",
    ["lock/hand_over.lua", LOCK, "lock/release.lua"],
    "multi/release.lua"
);
static WRITE_RELEASE: LazyLock<CachedScript> = script!(NUMBER_OR_LIST;
    "multi/release_uncontended.lua",
    ["read_write/release_uncontended.lua", READ_WRITE, "lock/release.lua"],
    "multi/release.lua"
);

#[derive(Debug)]
pub(crate) enum AllAcquired {
    /// All locks are taken, each with this reply.
    Granted(Vec<Acquired>),
    /// No lock is taken, because an owner of another client has one of them.
    Taken,
    /// No lock is taken for another reason. The client then requests each lock alone, and the reply
    /// to one of these requests has the reason.
    NotGranted,
}

/// Takes all of these locks for these owners if all are free and have no waiters. If one of the
/// locks is taken or has waiters, takes none of them. The request goes over the connection of the
/// first lock.
pub(crate) fn acquire(
    locks: &[(LockScripts<'_>, Owner)],
    lease: Duration,
) -> Result<Replied<AllAcquired>, Trouble> {
    let Some((first, _)) = locks.first() else {
        return Ok(Replied::acknowledged(AllAcquired::NotGranted, false));
    };
    let owners: Vec<_> = locks.iter().map(|(_, owner)| owner.text()).collect();
    let mut digits = [0; 20];
    let mut arguments = Vec::with_capacity(1 + locks.len());
    arguments.push(Pieces::from(millis(lease, &mut digits)));
    arguments.extend(owners.iter().map(|owner| Pieces::from(&**owner)));
    let command = command(&ACQUIRE, locks.iter().map(|(lock, _)| *lock), &arguments);
    let command = checking_rights(command, first.rights());
    let (outcome, in_doubt) = first.route.call_twice(&command, || command.clone());
    let alone = Acquired::Granted { already: false, places: 0, tokens: None };
    granted(outcome, in_doubt, first.rights(), |reply| match reply {
        Value::Int(count) if usize::try_from(count) == Ok(locks.len()) => {
            Ok(AllAcquired::Granted(vec![alone; locks.len()]))
        }
        Value::Array(parts) if parts.len() == locks.len() => {
            let parts: Result<_, _> = parts.into_iter().map(acquired).collect();
            parts.map(AllAcquired::Granted)
        }
        Value::Nil => Ok(AllAcquired::Taken),
        Value::Int(0) => Ok(AllAcquired::NotGranted),
        other => Err(unexpected(&other)),
    })
}

/// Releases these locks, each as [`LockScripts::release_command`] does. A lock's result is `None`
/// if its release failed. A second release of this lock alone will return the reason. The `bool`
/// says whether the request was sent twice.
pub(crate) fn release(
    route: &Route,
    locks: &[(LockScripts<'_>, Owner, Chain)],
) -> Result<(Vec<Option<Released>>, bool), Trouble> {
    let command = release_command(locks);
    let (outcome, in_doubt) = route.call_twice(&command, || command.clone());
    match all_released(outcome, locks.len()) {
        Ok(released) => Ok((released, in_doubt)),
        Err(trouble) if in_doubt => Err(Trouble::Unknown(trouble.into_error())),
        Err(trouble) => Err(trouble),
    }
}

/// Returns the command that [`release`] sends.
pub(crate) fn release_command(locks: &[(LockScripts<'_>, Owner, Chain)]) -> Command {
    let first = locks.first().map(|(lock, ..)| lock);
    let (mode, database) = first.map_or((Mode::Lock, 0), |it| (it.keys.mode, it.database));
    let script = if mode == Mode::Lock { &RELEASE } else { &WRITE_RELEASE };
    let owners: Vec<_> = locks.iter().map(|(_, owner, _)| owner.text()).collect();
    let mut digits = [[0; 20]; 2];
    let [all, number] = &mut digits;
    let mut arguments = Vec::with_capacity(2 + 4 * locks.len());
    arguments.push(Pieces::from(decimal(locks.len() as u64, all)));
    arguments.push(decimal(database.unsigned_abs(), number).into());
    arguments.extend(owners.iter().map(|owner| Pieces::from(&**owner)));
    arguments.extend(locks.iter().map(|(lock, ..)| lock.keys.public()));
    let chains: Vec<_> = locks.iter().map(|(.., chain)| chain_arguments(*chain)).collect();
    let (since, counts): (Vec<_>, Vec<_>) = if chains.iter().any(Option::is_some) {
        let nothing = || (b"0".to_vec(), b"1".to_vec());
        chains.into_iter().map(|chain| chain.unwrap_or_else(nothing)).unzip()
    } else {
        (Vec::new(), Vec::new())
    };
    arguments.extend(since.iter().chain(&counts).map(|text| Pieces::from(&**text)));
    command(script, locks.iter().map(|(lock, ..)| *lock), &arguments)
}

/// Returns the two arguments of a chain, or `None` if no chain is sent.
fn chain_arguments(chain: Chain) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut start, mut count) = ([0; 20], [0; 20]);
    let start = chain_start_argument(chain, &mut start)?;
    Some((start.to_vec(), decimal(next_count(chain), &mut count).to_vec()))
}

/// Reads the reply to a release of this number of locks.
pub(crate) fn all_released(
    outcome: Outcome,
    count: usize,
) -> Result<Vec<Option<Released>>, Trouble> {
    let read = |reply| match reply {
        Value::Int(-1) => Ok(None),
        reply => release_reply(Ok(reply), Rights::Locks).map(Some),
    };
    match accepted(outcome, Rights::Locks)? {
        Value::Int(0) => Ok(vec![Some(Released::Done); count]),
        Value::Array(parts) if parts.len() == count => parts.into_iter().map(read).collect(),
        other => Err(unexpected(&other)),
    }
}

/// Makes the command with the keys of all locks: the first key of each lock, then the second key of
/// each lock, and so on. All locks have the same number of keys.
fn command<'a>(
    script: &'static LazyLock<CachedScript>,
    locks: impl Iterator<Item = LockScripts<'a>>,
    arguments: &[Pieces<'a>],
) -> Command {
    let each: Vec<_> = locks.map(|lock| lock.keys.of_scripts()).collect();
    let of_each = each.first().map_or(0, |(_, count)| *count);
    let keys: Vec<_> =
        (0..of_each).flat_map(|at| each.iter().map(move |(keys, _)| keys[at])).collect();
    Command::script(script, &keys, arguments).of_names(of_each)
}
