//! The scripts of the fair lock.

use std::collections::{HashSet, VecDeque};
use std::iter;
use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Outcome, ReplicaAcks, Route, numbers};

use super::{
    Replied, Rights, Trouble, accepted, checking_rights, flag, granted, millis, unexpected,
};
use crate::scripts::{FairKeys, Owner};

static ACQUIRE: LazyLock<CachedScript> = script!(takes; LIST; FAIR_OWNER, "fair/acquire.lua");
static TRY: LazyLock<CachedScript> = script!(takes; NUMBER; FAIR_OWNER, "fair/try.lua");
static GIVE_UP: LazyLock<CachedScript> = script!(NUMBER; FAIR, "fair/give_up.lua");
static RELEASE: LazyLock<CachedScript> = script!(NUMBER; FAIR, "fair/release.lua");
static KEEP: LazyLock<CachedScript> = script!(NUMBER; FAIR, "fair/keep.lua");
static FORCE_UNLOCK: LazyLock<CachedScript> = script!(NUMBER; FAIR_OWNER, "fair/force_unlock.lua");
static KEEP_ALIVE: LazyLock<CachedScript> = script!(LIST; FAIR, "fair/keep_alive.lua");

#[derive(Clone, Copy, Debug)]
pub(crate) struct FairScripts<'a> {
    pub(crate) key: &'a str,
    pub(crate) keys: &'a FairKeys,
    /// Two times: for the first, a waiter of redlatch counts as alive without a keep-alive. For the
    /// second, a waiter of Redisson keeps its entry.
    pub(crate) waits: [Duration; 2],
    /// The number of the client's database.
    pub(crate) database: i64,
    /// The number of replicas that must have a grant before it counts.
    pub(crate) acks: Option<ReplicaAcks>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FairAcquired {
    Granted {
        /// Whether the owner already had the lock before this request. The message of the grant is
        /// then on its way, or was lost.
        already: bool,
        followers: Followers,
        /// The server's time of the reply in ms, if the request named other owners.
        now: u64,
    },
    Queued {
        /// The server's time of the reply in ms.
        now: u64,
        /// The time after which to send the next request if no message arrives, or `None` to wait
        /// for a message.
        ask_after: Option<Duration>,
        /// Whether the message may come from one of Redisson's clients, on the channel of this
        /// owner.
        by_redisson: bool,
        /// Whether the owner had lost its queue entry, and this request added a new entry.
        was_requeued: bool,
    },
    /// The owner has lost its entry.
    Missing {
        /// The server's time of the reply in ms.
        now: u64,
    },
}

/// The other owners of the same client that a request names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Others<'a> {
    /// This is the owner's first request. The request also names these owners, which get the
    /// entries behind the owner's entry.
    Companions {
        owners: &'a [Owner],
        /// Whether the client has no subscription yet and no other waiter in the queue. If so, each
        /// of `owners` sends another request when the client has subscribed.
        is_not_listening: bool,
    },
    /// The owner was queued before, and its request names no other owners.
    Omitted,
    /// The owner was queued before and has lost its entry. The named owners were queued, too. The
    /// named owners that have lost their entries also return to the queue.
    Requeued(&'a [Owner]),
}

/// The numbers of the owners directly behind a new holder in the queue that belong to the holder's
/// client, in the order of the queue.
pub(crate) type Followers = VecDeque<u64>;

/// Parses the numbers of followers in a script's text.
pub(crate) fn followers(word: &[u8]) -> Option<Followers> {
    if word == b"-" { Some(Followers::new()) } else { numbers(word, b',').collect() }
}

#[derive(Debug)]
pub(crate) struct KeepAliveReply {
    /// The time after which the next keep-alive is due, if that is sooner than usual.
    pub(crate) again: Option<Duration>,
    /// The first waiter of a free lock, if this waiter should request the lock now.
    pub(crate) first: Option<u64>,
    /// The owners that have lost their entries.
    pub(crate) missing: HashSet<u64>,
}

impl FairScripts<'_> {
    /// Takes the lock or adds an entry to the queue. If the owner already has an entry, reads the
    /// entry's state.
    pub(crate) fn acquire(
        self,
        route: &Route,
        owner: &Owner,
        lease: Duration,
        others: Others<'_>,
    ) -> Result<Replied<FairAcquired>, Trouble> {
        let (mut digits, owner) = ([0; 20], owner.text());
        let (was_queued, others) = match others {
            Others::Companions { owners, is_not_listening: false } => (b"0", owners),
            Others::Companions { owners, is_not_listening: true } => (b"3", owners),
            Others::Requeued(others) => (b"1", others),
            Others::Omitted => (b"2", &[][..]),
        };
        let others: Vec<_> = others.iter().map(Owner::text).collect();
        let mut arguments = vec![millis(lease, &mut digits), &owner, was_queued];
        arguments.extend(others.iter().map(|owner| &owner[..]));
        let command = checking_rights(self.command(&ACQUIRE, &arguments), Rights::FairLocks);
        let command = command.acknowledged(self.acks);
        let (outcome, in_doubt) = route.call_twice(&command, || command.clone());
        granted(outcome, in_doubt, Rights::FairLocks, acquired)
    }

    /// Takes the lock if it is free and has no waiters.
    pub(crate) fn try_acquire(
        self,
        route: &Route,
        owner: &Owner,
        lease: Duration,
    ) -> Result<Replied<bool>, Trouble> {
        let mut digits = [0; 20];
        let command = self.command(&TRY, &[millis(lease, &mut digits), &owner.text()]);
        let command = checking_rights(command, Rights::FairLocks).acknowledged(self.acks);
        let (outcome, in_doubt) = route.call_twice(&command, || command.clone());
        granted(outcome, in_doubt, Rights::FairLocks, flag)
    }

    /// Returns the command that removes the owner from the queue, or releases its lock.
    pub(crate) fn give_up_command(self, owner: &[u8]) -> Command {
        self.command(&GIVE_UP, &[owner, b"0"])
    }

    /// Returns the command that removes the owner from the queue, but does not release its lock.
    pub(crate) fn leave_command(self, owner: &[u8]) -> Command {
        self.command(&GIVE_UP, &[owner, b"1"])
    }

    /// Returns the command that releases a hold, and removes from the queue the owners to which the
    /// hold was passed.
    pub(crate) fn release_command(self, owner: &Owner, leaving: &[Owner]) -> Command {
        let owners: Vec<_> = iter::once(owner).chain(leaving).map(Owner::text).collect();
        let arguments: Vec<_> = owners.iter().map(|owner| &owner[..]).collect();
        self.command(&RELEASE, &arguments)
    }

    /// Returns the command that shortens the lease of a hold to `rest`. No thread has the hold now.
    pub(crate) fn keep_command(self, owner: &Owner, rest: Duration, passed: &[Owner]) -> Command {
        let (owner, mut digits) = (owner.text(), [0; 20]);
        let passed: Vec<_> = passed.iter().map(Owner::text).collect();
        let mut arguments = vec![&owner[..], millis(rest, &mut digits)];
        arguments.extend(passed.iter().map(|owner| &owner[..]));
        self.command(&KEEP, &arguments)
    }

    pub(crate) fn force_unlock_command(self) -> Command {
        self.command(&FORCE_UNLOCK, &[])
    }

    /// Returns the command that sends a keep-alive of these owners. `steady` says whether the
    /// server has answered this client for a while. If so, owners that sent nothing in that time
    /// count as silent.
    pub(crate) fn keep_alive_command(self, owners: &[Owner], steady: bool) -> Command {
        let steady: &[u8] = if steady { b"1" } else { b"0" };
        let owners: Vec<_> = owners.iter().map(Owner::text).collect();
        let owners = owners.iter().map(|owner| &owner[..]);
        let arguments: Vec<_> = iter::once(steady).chain(owners).collect();
        let FairKeys { queue, timeouts, only_ours, .. } = self.keys;
        self.command_of(&KEEP_ALIVE, &[self.key, queue, timeouts, only_ours], &arguments)
    }

    fn command(self, script: &'static LazyLock<CachedScript>, arguments: &[&[u8]]) -> Command {
        let FairKeys { queue, timeouts, .. } = self.keys;
        self.command_of(script, &[self.key, queue, timeouts], arguments)
    }

    fn command_of(
        self,
        script: &'static LazyLock<CachedScript>,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Command {
        let [fair, redisson] = self.waits.map(|wait| wait.as_millis());
        let (waits, database) = (format!("{fair},{redisson}"), self.database.to_string());
        let common = [waits.as_bytes(), self.keys.channel_prefix.as_bytes(), database.as_bytes()];
        let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        Command::script(script, &keys, &[&common, arguments].concat())
    }
}

fn acquired(reply: Value) -> Result<FairAcquired, Trouble> {
    let Value::Array(reply) = reply else { return Err(unexpected(&reply)) };
    let number = |number: i64| u64::try_from(number).unwrap_or_default();
    Ok(match reply.as_slice() {
        [Value::Int(taken @ (1 | 2)), Value::BulkString(behind), Value::Int(now)] => {
            let followers = followers(behind).unwrap_or_default();
            FairAcquired::Granted { already: *taken == 2, followers, now: number(*now) }
        }
        [
            Value::Int(0),
            Value::Int(now),
            Value::Int(ask_after),
            Value::Int(by_redisson),
            Value::Int(was_requeued),
        ] => FairAcquired::Queued {
            now: number(*now),
            ask_after: ends_after(*ask_after),
            by_redisson: *by_redisson != 0,
            was_requeued: *was_requeued != 0,
        },
        [Value::Int(3), Value::Int(now)] => FairAcquired::Missing { now: number(*now) },
        _ => return Err(unexpected(&Value::Array(reply))),
    })
}

/// Returns the time after which a lease with `left` ms remaining has certainly ended, or `None` if
/// `left` is negative. A script rounds a time down to whole milliseconds, and a lease lasts until
/// the end of its last millisecond. So the lock may still be held after exactly `left` ms.
fn ends_after(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(|left| over(Duration::from_millis(left)))
}

/// Returns the time after which a lease that begins now has certainly ended, as [`ends_after`]
/// does.
pub(crate) fn over(lease: Duration) -> Duration {
    lease.saturating_add(Duration::from_millis(1))
}

/// Reads the reply to a [`FairScripts::keep_alive_command`].
pub(crate) fn read_keep_alive(outcome: Outcome) -> Result<KeepAliveReply, Trouble> {
    match accepted(outcome, Rights::FairLocks)? {
        Value::Array(reply) => match reply.as_slice() {
            [Value::Int(again), first, missing @ ..] => Ok(KeepAliveReply {
                again: ends_after(*again),
                first: number_of(first),
                missing: missing.iter().filter_map(number_of).collect(),
            }),
            _ => Err(unexpected(&Value::Array(reply))),
        },
        other => Err(unexpected(&other)),
    }
}

fn number_of(owner: &Value) -> Option<u64> {
    let Value::BulkString(text) = owner else { return None };
    let (_, number) = str::from_utf8(text).ok()?.split_once(':')?;
    number.parse().ok()
}
