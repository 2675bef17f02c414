//! The script of several locks of one kind, on one server or in one slot.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Pieces};

use super::lock::{LockScripts, Tokens};
use super::{Owner, Replied, Trouble, checking_rights, granted, millis, number, unexpected};

static ACQUIRE: LazyLock<CachedScript> = script!(takes; NUMBER_OR_LIST; "multi/acquire.lua");

/// The outcome of a request for several locks together.
#[derive(Debug)]
pub(crate) enum AllTaken<T> {
    /// All locks are taken, each with this value.
    Taken(Vec<T>),
    /// No lock is taken, because an owner of another client has one of them.
    Held,
    /// No lock is taken for another reason, or the reply was read too late. The client then requests
    /// each lock alone, and the reply to one of these requests has the reason.
    OneByOne,
}

/// Takes all of these locks for these owners if all are free and have no waiters. If one of the
/// locks is taken or has waiters, takes none of them. The request goes over the connection of the
/// first lock. A taken lock has tokens if it is a fenced lock. There must be at least one lock.
pub(crate) fn acquire(
    locks: &[(LockScripts<'_>, Owner)],
    lease: Duration,
) -> Result<Replied<AllTaken<Option<Tokens>>>, Trouble> {
    let (first, _) = &locks[0];
    let owners: Vec<_> = locks.iter().map(|(_, owner)| owner.text()).collect();
    let mut digits = [0; 20];
    let mut arguments = Vec::with_capacity(1 + locks.len());
    arguments.push(Pieces::from(millis(lease, &mut digits)));
    arguments.extend(owners.iter().map(|owner| Pieces::from(&**owner)));
    // First the first key of each lock, then the second key of each lock, and so on. All locks have
    // the same number of keys.
    let each: Vec<_> = locks.iter().map(|(lock, _)| lock.keys.of_scripts()).collect();
    let of_each = each[0].1;
    let keys: Vec<_> =
        (0..of_each).flat_map(|at| each.iter().map(move |(keys, _)| keys[at])).collect();
    let command = Command::script(&ACQUIRE, &keys, &arguments).of_names(of_each);
    let command = checking_rights(command, first.rights());
    let (outcome, in_doubt) = first.route.call_twice(&command, || command.clone());
    granted(outcome, in_doubt, first.rights(), |reply| match reply {
        Value::Int(count) if usize::try_from(count) == Ok(locks.len()) => {
            Ok(AllTaken::Taken(vec![None; locks.len()]))
        }
        Value::Array(tokens) if tokens.len() == locks.len() => {
            let tokens =
                tokens.into_iter().map(|last| Ok(Tokens::up_to(number(last)?.unsigned_abs())));
            tokens.collect::<Result<_, _>>().map(AllTaken::Taken)
        }
        Value::Nil => Ok(AllTaken::Held),
        Value::Int(0) => Ok(AllTaken::OneByOne),
        other => Err(unexpected(&other)),
    })
}
