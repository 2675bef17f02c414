//! The scripts of the count-down latch.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{CachedScript, Command, Route};

use super::expiry::Expiry;
use super::once::Once;
use super::requests::{RequestId, Requests};
use super::semaphore::stored_number;
use super::{Rights, Trouble, flag, millis, query, time, unexpected};

static COUNT_DOWN: LazyLock<CachedScript> = script!(COUNT, "latch/count_down.lua");
static TRY_SET_COUNT: LazyLock<CachedScript> = script!(COUNT, "latch/try_set_count.lua");
static STATE: LazyLock<CachedScript> = script!(LIST; "number.lua", "latch/state.lua");
static DELETE: LazyLock<CachedScript> = script!(COUNT, "latch/delete.lua");

#[derive(Clone, Copy, Debug)]
pub(crate) struct LatchScripts<'a> {
    pub(crate) route: &'a Route,
    pub(crate) key: &'a str,
    pub(crate) channel: &'a str,
    pub(crate) requests: &'a Requests,
}

/// Whether a latch is open. For a closed latch, also the time until its key expires, if the key has
/// a time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LatchState {
    Open,
    Closed(Option<Duration>),
}

impl LatchScripts<'_> {
    /// Lowers the count by one. Returns `false` if the latch was already open.
    pub(crate) fn count_down(self, request_id: RequestId) -> Result<bool, Trouble> {
        let arguments = [self.channel.as_bytes()];
        flag(self.once(&COUNT_DOWN, request_id, &arguments).call(self.route)?)
    }

    /// Returns a copy of a count-down, which is sent as long as the outcome is unknown.
    pub(crate) fn count_down_copy(self, request_id: RequestId) -> Command {
        let arguments = [self.channel.as_bytes()];
        self.once(&COUNT_DOWN, request_id, &arguments).command(true)
    }

    pub(crate) fn try_set_count(
        self,
        request_id: RequestId,
        count: u64,
        time_to_live: Option<Duration>,
    ) -> Result<bool, Trouble> {
        let (count, mut digits) = (count.to_string(), [0; 20]);
        let mut arguments: Vec<&[u8]> = vec![count.as_bytes(), self.channel.as_bytes()];
        if let Some(time_to_live) = time_to_live {
            arguments.extend([b"px", millis(time_to_live, &mut digits)]);
        }
        flag(self.once(&TRY_SET_COUNT, request_id, &arguments).call(self.route)?)
    }

    pub(crate) fn state(self) -> Result<LatchState, Trouble> {
        let command = Command::script(&STATE, &[self.key.as_bytes()], &[]);
        query(self.route, &command, Rights::Latches, |reply| {
            let Value::Array(parts) = &reply else { return Err(unexpected(&reply)) };
            match parts.as_slice() {
                [Value::Int(0), _] => Ok(LatchState::Open),
                [Value::Int(1), Value::Int(left)] => Ok(LatchState::Closed(time(*left))),
                _ => Err(unexpected(&reply)),
            }
        })
    }

    pub(crate) fn expiry(&self) -> Expiry<'_> {
        let Self { route, key, requests, .. } = *self;
        Expiry { route, rights: Rights::Latches, key, another: None, is_either: false, requests }
    }

    pub(crate) fn count(self) -> Result<i64, Trouble> {
        Ok(stored_number(self.route, self.key, Rights::Latches)?.unwrap_or(0))
    }

    pub(crate) fn delete(self, request_id: RequestId) -> Result<bool, Trouble> {
        let arguments = [self.channel.as_bytes()];
        flag(self.once(&DELETE, request_id, &arguments).call(self.route)?)
    }

    fn once<'a>(
        &'a self,
        script: &'static CachedScript,
        request_id: RequestId,
        arguments: &'a [&'a [u8]],
    ) -> Once<'a> {
        Once {
            script,
            rights: Rights::Latches,
            key: self.key,
            another: None,
            requests: self.requests,
            request_id,
            arguments,
            acks: None,
        }
    }
}
