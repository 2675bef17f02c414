//! The scripts of the count-down latch.

use std::sync::LazyLock;

use redlatch_client::{Command, Route, Script};

use super::once::{Once, RequestId, Requests};
use super::semaphore::stored_number;
use super::{Rights, Trouble, flag};

static COUNT_DOWN: LazyLock<Script> = script!("number.lua", "once.lua", "latch/count_down.lua");
static TRY_SET_COUNT: LazyLock<Script> =
    script!("number.lua", "once.lua", "latch/try_set_count.lua");
static DELETE: LazyLock<Script> = script!("number.lua", "once.lua", "latch/delete.lua");

/// One latch as the scripts see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatchScripts<'a> {
    pub(crate) route: &'a Route,
    pub(crate) key: &'a str,
    pub(crate) channel: &'a str,
    pub(crate) requests: &'a Requests,
}

impl LatchScripts<'_> {
    /// `false`: it was open.
    pub(crate) fn count_down(self, request_id: RequestId) -> Result<bool, Trouble> {
        let arguments = [self.channel.as_bytes()];
        flag(self.once(&COUNT_DOWN, request_id, &arguments).call(self.route)?)
    }

    /// A count-down to be sent again, as long as its outcome is not known.
    pub(crate) fn count_down_copy(self, request_id: RequestId) -> Command {
        let arguments = [self.channel.as_bytes()];
        self.once(&COUNT_DOWN, request_id, &arguments).command(true)
    }

    pub(crate) fn try_set_count(self, request_id: RequestId, count: u64) -> Result<bool, Trouble> {
        let count = count.to_string();
        let arguments: [&[u8]; 2] = [count.as_bytes(), self.channel.as_bytes()];
        flag(self.once(&TRY_SET_COUNT, request_id, &arguments).call(self.route)?)
    }

    pub(crate) fn count(self) -> Result<i64, Trouble> {
        stored_number(self.route, self.key, Rights::Latches)
    }

    pub(crate) fn delete(self, request_id: RequestId) -> Result<bool, Trouble> {
        let arguments = [self.channel.as_bytes()];
        flag(self.once(&DELETE, request_id, &arguments).call(self.route)?)
    }

    fn once<'a>(
        &'a self,
        script: &'static Script,
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
