//! The script of several locks of one kind, on one server or in one slot.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Pieces};

use super::lock::{Acquired, LockScripts, acquired};
use super::{Owner, Replied, Trouble, checking_rights, granted, millis, unexpected};

static ACQUIRE: LazyLock<CachedScript> = script!(takes; NUMBER_OR_LIST; "multi/acquire.lua");
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
