//! The time to live of a semaphore or latch.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Route};

use super::once::Once;
use super::requests::{RequestId, Requests};
use super::{Rights, Trouble, flag, millis, query, unexpected};

static EXPIRE: LazyLock<CachedScript> = script!(COUNT, "expire.lua");

/// A semaphore or latch, with the functions for its time to live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiry<'a> {
    pub(super) route: &'a Route,
    pub(super) rights: Rights,
    pub(super) key: &'a str,
    /// The other key of the same semaphore or latch.
    pub(super) another: Option<&'a str>,
    /// Whether the semaphore exists even if it has only the other key.
    pub(super) is_either: bool,
    pub(super) requests: &'a Requests,
}

impl Expiry<'_> {
    /// Sets the time to live, or removes it if `after` is [`Duration::MAX`]. Returns `false` if
    /// there is no key.
    pub(crate) fn set(
        self,
        request_id: RequestId,
        time_to_live: Duration,
    ) -> Result<bool, Trouble> {
        let mut digits = [0; 20];
        let has_end = time_to_live < Duration::MAX;
        let time_to_live = if has_end { millis(time_to_live, &mut digits) } else { b"0" };
        let Self { route, rights, key, another, is_either, requests } = self;
        let arguments: &[&[u8]] = &[time_to_live, if is_either { b"1" } else { b"0" }];
        let (script, acks) = (&*EXPIRE, None);
        let once = Once { script, rights, key, another, requests, request_id, arguments, acks };
        flag(once.call(route)?)
    }

    /// Returns the time to live, `None` if there is no key, or [`Duration::MAX`] if the key never
    /// expires.
    pub(crate) fn get(self) -> Result<Option<Duration>, Trouble> {
        let command = Command::plain(&[b"PTTL", self.key.as_bytes()]);
        query(self.route, &command, self.rights, |reply| match reply {
            Value::Int(-2) => Ok(None),
            Value::Int(-1) => Ok(Some(Duration::MAX)),
            Value::Int(left) => Ok(Some(Duration::from_millis(u64::try_from(left).unwrap_or(0)))),
            other => Err(unexpected(&other)),
        })
    }
}
