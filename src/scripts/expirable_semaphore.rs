//! The scripts of the expirable semaphore.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Outcome, ReplicaAcks, Route, decimal};

use super::expiry::Expiry;
use super::once::Once;
use super::requests::{RequestId, Requests};
use super::semaphore::{known_listeners, parsed};
use super::{
    Replied, Rights, Trouble, accepted, answered, checking_rights, flag, granted, millis, number,
    query, time, unexpected,
};
use crate::scripts::{ExpirableKeys, PermitId, SemaphoreKeys};

static TRY_ACQUIRE: LazyLock<CachedScript> =
    script!(takes; LIST; PERMITS, "expirable_semaphore/try_acquire.lua");
static RELEASE: LazyLock<CachedScript> = script!(LIST; PERMITS, "expirable_semaphore/release.lua");
/// `scripts::renewal::renew_command` uses this script.
pub(super) static RENEW: LazyLock<CachedScript> =
    script!(LIST; PERMITS, "expirable_semaphore/renew.lua");
static REMAINING_LEASE: LazyLock<CachedScript> =
    script!(NUMBER; PERMITS, "expirable_semaphore/remaining_lease.lua");
static PERMITS: LazyLock<CachedScript> = script!(LIST; PERMITS, "expirable_semaphore/permits.lua");
static UPDATE_LEASE_TIME: LazyLock<CachedScript> =
    script!(COUNT, "expirable_semaphore/update_lease_time.lua");
static SET_PERMITS: LazyLock<CachedScript> = script!(COUNT, "expirable_semaphore/set_permits.lua");
static DELETE: LazyLock<CachedScript> = script!(COUNT, "expirable_semaphore/delete.lua");
// Plain semaphores use these scripts, too, because both kinds store the number of free permits in
// the same way. Only the mark of a plain semaphore is missing.
static TRY_SET_PERMITS: LazyLock<CachedScript> = script!(MARKED, "semaphore/try_set_permits.lua");
static ADD_PERMITS: LazyLock<CachedScript> = script!(MARKED, "semaphore/add_permits.lua");

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpirableScripts<'a> {
    pub(crate) route: &'a Route,
    pub(crate) key: &'a str,
    pub(crate) timeouts: &'a str,
    pub(crate) channel: &'a str,
    pub(crate) requests: &'a Requests,
    /// The number of replicas that must have taken permits before the permits count.
    pub(crate) acks: Option<ReplicaAcks>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenPermit {
    /// This number of permits was taken. They have the first ids of the request.
    Taken(usize),
    /// There were too few permits for the first need. The lease that ends first ends after this
    /// time.
    Refused(Option<Duration>),
    /// There is no such semaphore.
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReturnedPermits {
    /// The number of permits that were given back before their leases ended.
    pub(crate) live: usize,
    /// The number of subscribers that got the message, or [`REFUSED`](super::semaphore::REFUSED).
    /// `None` if no permit is free, so that no message was sent.
    pub(crate) listeners: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitCounts {
    pub(crate) free: i64,
    pub(crate) taken: i64,
}

impl ExpirableScripts<'_> {
    /// Takes permits for these needs, in order, until a need cannot be satisfied. The first need is
    /// satisfied if enough permits are free. A later need is satisfied only if this need and the
    /// needs before it together fit into the share of one of `clients` clients. `ids` has an id for
    /// each permit. The taken permits get the first ids.
    pub(crate) fn try_acquire(
        self,
        lease: Duration,
        clients: u64,
        needs: &[u32],
        ids: &[PermitId],
    ) -> Result<Replied<TakenPermit>, Trouble> {
        let (mut lease_digits, mut clients_digits, mut threads) = ([0; 20], [0; 20], [0; 20]);
        let needs: Vec<String> = needs.iter().map(u32::to_string).collect();
        let arguments: Vec<&[u8]> = [
            millis(lease, &mut lease_digits),
            self.channel.as_bytes(),
            decimal(clients, &mut clients_digits),
            decimal(needs.len() as u64, &mut threads),
        ]
        .into_iter()
        .chain(needs.iter().map(|need| need.as_bytes()))
        .chain(ids.iter().map(|id| id.as_bytes().as_slice()))
        .collect();
        let command = Command::script(&TRY_ACQUIRE, &self.keys(), &arguments);
        let command = checking_rights(command, RIGHTS).acknowledged(self.acks);
        // A copy of the request finds the ids, and takes nothing.
        let (outcome, in_doubt) = self.route.call_twice(&command, || command.clone());
        granted(outcome, in_doubt, RIGHTS, acquired)
    }

    /// Returns the command that gives permits back. With `all`, the command gives back all of them
    /// or none. Otherwise it gives back the permits that are still taken.
    pub(crate) fn release_command(self, ids: &[PermitId], all: bool) -> Command {
        release_command(self.keys(), self.channel, ids, all)
    }

    /// Returns the command that queries whether permits are taken. The reply has the end of each
    /// lease, or nil for an unknown permit.
    pub(crate) fn are_held_command(self, ids: &[PermitId]) -> Command {
        let mut parts: Vec<&[u8]> = vec![b"ZMSCORE", self.timeouts.as_bytes()];
        parts.extend(ids.iter().map(|id| &id.as_bytes()[..]));
        Command::plain(&parts)
    }

    /// Sends a release and waits for the reply. If the connection breaks, sends it once more.
    pub(crate) fn release(self, command: &Command) -> Result<Replied<ReturnedPermits>, Trouble> {
        let (outcome, in_doubt) = self.route.call_twice(command, || command.clone());
        let reply = read_released(answered(outcome, in_doubt, RIGHTS)?)?;
        Ok(Replied::acknowledged(reply, in_doubt))
    }

    /// Returns the remaining lease of a permit, `None` if there is no such permit, or
    /// `Duration::MAX` if the permit has no lease.
    pub(crate) fn remaining_lease(self, id: &PermitId) -> Result<Option<Duration>, Trouble> {
        let keys = [self.timeouts.as_bytes()];
        let command = Command::script(&REMAINING_LEASE, &keys, &[id.as_bytes()]);
        query(self.route, &command, RIGHTS, |reply| match number(reply)? {
            -1 => Ok(Some(Duration::MAX)),
            left => Ok(time(left)),
        })
    }

    pub(crate) fn counts(self) -> Result<PermitCounts, Trouble> {
        let command = Command::script(&PERMITS, &self.keys(), &[]);
        query(self.route, &command, RIGHTS, |reply| match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [Value::BulkString(free), Value::Int(lapsed), Value::Int(taken)] => {
                    let free = parsed(free).ok_or_else(|| unexpected(&reply))?;
                    Ok(PermitCounts { free: free.saturating_add(*lapsed), taken: *taken })
                }
                _ => Err(unexpected(&reply)),
            },
            _ => Err(unexpected(&reply)),
        })
    }

    /// Gives a permit a new lease. Returns `false` if there is no such permit.
    pub(crate) fn update_lease_time(
        self,
        request_id: RequestId,
        id: &PermitId,
        lease: Duration,
    ) -> Result<bool, Trouble> {
        let mut digits = [0; 20];
        let channel = self.channel.as_bytes();
        let arguments: [&[u8]; 3] = [id.as_bytes(), millis(lease, &mut digits), channel];
        self.call(&UPDATE_LEASE_TIME, Some(self.timeouts), request_id, &arguments)
    }

    pub(crate) fn try_set_permits(
        self,
        request_id: RequestId,
        permits: u32,
        time_to_live: Option<Duration>,
    ) -> Result<bool, Trouble> {
        let (permits, mut digits) = (permits.to_string(), [0; 20]);
        let mut arguments: Vec<&[u8]> = vec![permits.as_bytes(), self.channel.as_bytes()];
        if let Some(time_to_live) = time_to_live {
            arguments.extend([b"px", millis(time_to_live, &mut digits)]);
        }
        self.call(&TRY_SET_PERMITS, None, request_id, &arguments)
    }

    pub(crate) fn set_permits(self, request_id: RequestId, permits: u32) -> Result<bool, Trouble> {
        self.change(&SET_PERMITS, Some(self.timeouts), request_id, permits.into())
    }

    pub(crate) fn add_permits(self, request_id: RequestId, permits: i64) -> Result<bool, Trouble> {
        self.change(&ADD_PERMITS, None, request_id, permits)
    }

    pub(crate) fn expiry(&self) -> Expiry<'_> {
        let Self { route, key, timeouts, requests, .. } = *self;
        let (rights, another) = (RIGHTS, Some(timeouts));
        Expiry { route, rights, key, another, is_either: true, requests }
    }

    pub(crate) fn delete(self, request_id: RequestId) -> Result<bool, Trouble> {
        self.call(&DELETE, Some(self.timeouts), request_id, &[])
    }

    fn keys(&self) -> [&[u8]; 2] {
        [self.key.as_bytes(), self.timeouts.as_bytes()]
    }

    fn call(
        self,
        script: &'static CachedScript,
        another: Option<&str>,
        request_id: RequestId,
        arguments: &[&[u8]],
    ) -> Result<bool, Trouble> {
        let Self { key, requests, .. } = self;
        let (rights, acks) = (RIGHTS, None);
        let once = Once { script, rights, key, another, requests, request_id, arguments, acks };
        flag(once.call(self.route)?)
    }

    fn change(
        self,
        script: &'static CachedScript,
        another: Option<&str>,
        request_id: RequestId,
        permits: i64,
    ) -> Result<bool, Trouble> {
        let permits = permits.to_string();
        self.call(script, another, request_id, &[permits.as_bytes(), self.channel.as_bytes()])
    }
}

const RIGHTS: Rights = Rights::ExpirableSemaphores;

/// Returns the command that gives back these permits. Permits that do not exist are ignored.
pub(crate) fn release_again_command(name: &str, ids: &[PermitId]) -> Command {
    let (timeouts, channel) = (ExpirableKeys::timeouts(name), SemaphoreKeys::channel(name));
    release_command([name.as_bytes(), timeouts.as_bytes()], &channel, ids, false)
}

fn release_command(keys: [&[u8]; 2], channel: &str, ids: &[PermitId], all: bool) -> Command {
    let all: &[u8] = if all { b"1" } else { b"0" };
    let arguments: Vec<&[u8]> = [channel.as_bytes(), all]
        .into_iter()
        .chain(ids.iter().map(|id| id.as_bytes().as_slice()))
        .collect();
    Command::script(&RELEASE, &keys, &arguments)
}

/// Reads the reply to a release that was sent once.
pub(crate) fn released(outcome: Outcome) -> Result<ReturnedPermits, Trouble> {
    read_released(accepted(outcome, RIGHTS)?)
}

fn read_released(reply: Value) -> Result<ReturnedPermits, Trouble> {
    let Some((live, listeners)) = pair(&reply) else { return Err(unexpected(&reply)) };
    Ok(ReturnedPermits {
        live: usize::try_from(live).unwrap_or(0),
        listeners: known_listeners(listeners),
    })
}

fn acquired(reply: Value) -> Result<TakenPermit, Trouble> {
    let Value::Array(parts) = &reply else { return Err(unexpected(&reply)) };
    match parts.as_slice() {
        [Value::Int(0), Value::Int(left)] => Ok(TakenPermit::Refused(time(*left))),
        [Value::Int(-1), Value::Int(_)] => Ok(TakenPermit::Missing),
        [Value::Int(taken @ 1..)] => Ok(TakenPermit::Taken(usize::try_from(*taken).unwrap_or(0))),
        _ => Err(unexpected(&reply)),
    }
}

fn pair(reply: &Value) -> Option<(i64, i64)> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(one), Value::Int(other)] => Some((*one, *other)),
            _ => None,
        },
        _ => None,
    }
}
