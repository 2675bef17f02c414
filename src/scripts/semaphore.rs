//! The scripts of the semaphore.

use std::iter;
use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Outcome, ReplicaAcks, Route};

use super::changes::Mark;
use super::expiry::Expiry;
use super::once::{Once, behind, late};
use super::requests::{RequestId, Requests};
use super::{
    Replied, Rights, Trouble, accepted, call_again, flag, millis, number, query, unexpected,
};
use crate::error::{Error, ErrorKind};

static TRY_ACQUIRE: LazyLock<CachedScript> = script!(takes; MARKED, "semaphore/try_acquire.lua");
static ABANDON: LazyLock<CachedScript> = script!(NUMBER_OR_LIST; MARKED, "semaphore/abandon.lua");
static RELEASE: LazyLock<CachedScript> = script!(MARKED, "semaphore/release.lua");
static ADD_PERMITS: LazyLock<CachedScript> = script!(MARKED, "semaphore/add_permits.lua");
static DRAIN_PERMITS: LazyLock<CachedScript> = script!(MARKED, "semaphore/drain_permits.lua");
static SET_PERMITS: LazyLock<CachedScript> = script!(MARKED, "semaphore/set_permits.lua");
static TRY_SET_PERMITS: LazyLock<CachedScript> = script!(MARKED, "semaphore/try_set_permits.lua");
static DELETE: LazyLock<CachedScript> = script!(COUNT, "semaphore/delete.lua");

#[derive(Clone, Copy, Debug)]
pub(crate) struct SemaphoreScripts<'a> {
    pub(crate) route: &'a Route,
    pub(crate) key: &'a str,
    pub(crate) channel: &'a str,
    pub(crate) mark: &'a str,
    pub(crate) requests: &'a Requests,
    /// The number of replicas that must have taken permits before the permits count.
    pub(crate) acks: Option<ReplicaAcks>,
}

impl SemaphoreScripts<'_> {
    /// Takes permits for these needs, in order, until a need cannot be satisfied. The first need is
    /// satisfied if enough permits are free. A later need is satisfied only if this need and the
    /// needs before it together fit into the share of one of `clients` clients. Returns the number
    /// of taken permits, which is zero if too few were free for the first need, or `None` if there
    /// is no such semaphore.
    pub(crate) fn try_acquire(
        self,
        request_id: RequestId,
        clients: u64,
        needs: &[u32],
    ) -> Result<Replied<Marked<Option<u32>>>, Trouble> {
        let needs = needs.iter().map(u32::to_string);
        let arguments: Vec<String> = iter::once(clients.to_string()).chain(needs).collect();
        let arguments: Vec<&[u8]> = arguments.iter().map(|it| it.as_bytes()).collect();
        self.take(&TRY_ACQUIRE, request_id, &arguments, |reply| {
            let taken = number(reply)?;
            if taken == -1 {
                return Ok(None);
            }
            u32::try_from(taken).map(Some).map_err(|_| unexpected(&Value::Int(taken)))
        })
    }

    /// Undoes a request for permits, and waits for the reply. Returns `false` if the server has
    /// forgotten the request, so that nothing was changed.
    pub(crate) fn take_back(self, request_id: RequestId) -> Result<Replied<bool>, Trouble> {
        let abandon = self.abandon(request_id);
        let (reply, in_doubt) =
            call_again(self.route, &abandon, Rights::Semaphores, || abandon.clone())?;
        if Requests::is_behind(&reply) {
            return Err(Trouble::Unknown(behind()));
        }
        Ok(Replied::acknowledged(!self.requests.check_late(&reply), in_doubt))
    }

    /// Returns the command that undoes a request for permits, if the outcome is unknown or too few
    /// replicas have the permits.
    pub(crate) fn abandon(self, request_id: RequestId) -> Command {
        self.once(&ABANDON, request_id, &[self.channel.as_bytes()]).command(true)
    }

    /// Gives permits back, and waits for as many replicas as a request for permits does. Returns
    /// the number of subscribers that got the message, if it is known (see [`REFUSED`]), or `None`
    /// if there is no such semaphore.
    pub(crate) fn release(
        self,
        request_id: RequestId,
        permits: u32,
        if_exists: bool,
    ) -> Result<Replied<Marked<Option<i64>>>, Trouble> {
        let permits = permits.to_string();
        let arguments = self.release_arguments(&permits, if_exists);
        let release = Once { acks: self.acks, ..self.once(&RELEASE, request_id, &arguments) };
        let Replied { reply, in_doubt, unacknowledged } = release.give(self.route)?;
        let reply = marked(reply, |reply| number(reply).map(known_listeners))?;
        Ok(Replied { reply, in_doubt, unacknowledged })
    }

    /// Returns the command of a release. `copy`: whether the request was sent before.
    pub(crate) fn release_command(
        self,
        request_id: RequestId,
        permits: u64,
        copy: bool,
    ) -> Command {
        let permits = permits.to_string();
        let arguments = self.release_arguments(&permits, false);
        self.once(&RELEASE, request_id, &arguments).command(copy)
    }

    /// Changes the number of permits. Returns the semaphore's mark.
    pub(crate) fn add_permits(
        self,
        request_id: RequestId,
        permits: i64,
    ) -> Result<Option<Mark>, Trouble> {
        self.change(&ADD_PERMITS, request_id, permits).map(|(_, mark)| mark)
    }

    /// Returns the command of [`add_permits`](Self::add_permits), which is sent until it is
    /// applied.
    pub(crate) fn add_permits_command(self, request_id: RequestId, permits: i64) -> Command {
        let permits = permits.to_string();
        let arguments = [permits.as_bytes(), self.channel.as_bytes()];
        self.once(&ADD_PERMITS, request_id, &arguments).command(true)
    }

    pub(crate) fn drain_permits(self, request_id: RequestId) -> Result<Replied<i64>, Trouble> {
        let replied = self.take(&DRAIN_PERMITS, request_id, &[], |reply| match reply {
            // If the number is too large for Lua, the script returns it as a string.
            Value::BulkString(text) => {
                parsed(&text).ok_or_else(|| unexpected(&Value::BulkString(text)))
            }
            reply => number(reply),
        })?;
        let Replied { reply: (permits, _), in_doubt, unacknowledged } = replied;
        Ok(Replied { reply: permits, in_doubt, unacknowledged })
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
        marked(self.once(&TRY_SET_PERMITS, request_id, &arguments).call(self.route)?, flag)
            .map(|(made, _)| made)
    }

    pub(crate) fn expiry(&self) -> Expiry<'_> {
        let Self { route, key, mark, requests, .. } = *self;
        let (rights, another) = (Rights::Semaphores, Some(mark));
        Expiry { route, rights, key, another, is_either: false, requests }
    }

    pub(crate) fn set_permits(self, request_id: RequestId, permits: u32) -> Result<bool, Trouble> {
        self.change(&SET_PERMITS, request_id, permits.into()).map(|(set, _)| set)
    }

    pub(crate) fn delete(self, request_id: RequestId) -> Result<bool, Trouble> {
        flag(self.once(&DELETE, request_id, &[]).call(self.route)?)
    }

    fn change(
        self,
        script: &'static CachedScript,
        request_id: RequestId,
        permits: i64,
    ) -> Result<Marked<bool>, Trouble> {
        let permits = permits.to_string();
        let arguments = [permits.as_bytes(), self.channel.as_bytes()];
        marked(self.once(script, request_id, &arguments).call(self.route)?, flag)
    }

    /// Returns the number of free permits, or `None` if there is no such semaphore.
    pub(crate) fn available_permits(self) -> Result<Option<i64>, Trouble> {
        stored_number(self.route, self.key, Rights::Semaphores)
    }

    fn release_arguments<'a>(&'a self, permits: &'a str, if_exists: bool) -> [&'a [u8]; 3] {
        [permits.as_bytes(), self.channel.as_bytes(), if if_exists { b"1" } else { b"0" }]
    }

    fn once<'a>(
        &'a self,
        script: &'static CachedScript,
        request_id: RequestId,
        arguments: &'a [&'a [u8]],
    ) -> Once<'a> {
        Once {
            script,
            rights: Rights::Semaphores,
            key: self.key,
            another: Some(self.mark),
            requests: self.requests,
            request_id,
            arguments,
            acks: None,
        }
    }

    fn take<T>(
        self,
        script: &'static CachedScript,
        request_id: RequestId,
        arguments: &[&[u8]],
        read: impl FnOnce(Value) -> Result<T, Trouble>,
    ) -> Result<Replied<Marked<T>>, Trouble> {
        let once = Once { acks: self.acks, ..self.once(script, request_id, arguments) };
        let Replied { reply, in_doubt, unacknowledged } = once.take(self.route)?;
        Ok(Replied { reply: marked(reply, read)?, in_doubt, unacknowledged })
    }
}

/// Reads the reply to a release that was sent once.
pub(crate) fn released(
    outcome: Outcome,
    requests: &Requests,
) -> Result<Marked<Option<i64>>, Trouble> {
    let reply = accepted(outcome, Rights::Semaphores)?;
    if Requests::is_behind(&reply) {
        Err(Trouble::Unsent(behind()))
    } else if requests.check_late(&reply) {
        Err(Trouble::Unsent(late()))
    } else {
        marked(reply, |reply| number(reply).map(known_listeners))
    }
}

/// A script's result, and the mark in its reply if the script changed the semaphore.
pub(crate) type Marked<T> = (T, Option<Mark>);

pub(super) fn marked<T>(
    reply: Value,
    read: impl FnOnce(Value) -> Result<T, Trouble>,
) -> Result<Marked<T>, Trouble> {
    let mark = Mark::of(&reply);
    let result = match (&mark, reply) {
        (Some(_), Value::Array(parts)) => parts.into_iter().next().unwrap_or(Value::Nil),
        (_, reply) => reply,
    };
    Ok((read(result)?, mark))
}

/// The number of subscribers if the server refused the message. Other processes may wait.
pub(crate) const REFUSED: i64 = -1;

/// Converts the reply of a release to the number of subscribers that got the message, or to `None`
/// if no permit is free, so that no message was sent. [`REFUSED`] remains [`REFUSED`]. Any other
/// negative number means that the number of subscribers is unknown.
pub(super) fn known_listeners(reply: i64) -> Option<i64> {
    match reply {
        0 => None,
        told => Some(if told > 0 { told - 1 } else { told }),
    }
}

pub(super) fn stored_number(
    route: &Route,
    key: &str,
    rights: Rights,
) -> Result<Option<i64>, Trouble> {
    query(route, &Command::plain(&[b"GET", key.as_bytes()]), rights, |reply| match reply {
        Value::Nil => Ok(None),
        // Any other value may be the user's data, and must not appear in an error.
        Value::BulkString(text) => {
            parsed(&text).map(Some).ok_or_else(|| Trouble::Refused(foreign()))
        }
        _ => Err(Trouble::Refused(foreign())),
    })
}

/// Parses a number as Redis does, which refuses `+7` and `007`.
pub(super) fn parsed(text: &[u8]) -> Option<i64> {
    let text = str::from_utf8(text).ok()?;
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

fn foreign() -> Error {
    let message = "the key holds other data than a number: use another name";
    Error::new(ErrorKind::WrongType, message.to_owned())
}
