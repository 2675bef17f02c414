//! The time to live of a semaphore or latch.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use redlatch_client::{Command, Route, Script};

use super::{Rights, Trouble, ask, millis, unexpected};

pub(super) static EXPIRE: LazyLock<Script> = script!("number.lua", "once.lua", "expire.lua");

/// The argument of [`EXPIRE`].
pub(super) fn argument(time_to_live: Option<Duration>, digits: &mut [u8; 20]) -> &[u8] {
    millis(time_to_live.unwrap_or(Duration::ZERO), digits)
}

/// How long a key lives: `None` if there is none, [`Duration::MAX`] if it has no end.
pub(super) fn time_to_live(
    route: &Route,
    key: &str,
    rights: Rights,
) -> Result<Option<Duration>, Trouble> {
    ask(route, &Command::plain(&[b"PTTL", key.as_bytes()]), rights, |reply| match reply {
        Value::Int(-2) => Ok(None),
        Value::Int(-1) => Ok(Some(Duration::MAX)),
        Value::Int(left) => Ok(Some(Duration::from_millis(u64::try_from(left).unwrap_or(0)))),
        other => Err(unexpected(&other)),
    })
}
