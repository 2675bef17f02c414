//! One typed function for each script. Each function converts the server's reply to an enum.

/// The text of a file of `lua/`, or of the files that are prepended to several scripts.
macro_rules! lua {
    (HAND_OFF) => {
        concat!(lua!("prelude.lua"), lua!("hand_off.lua"))
    };
    (LOCK) => {
        concat!(lua!(HAND_OFF), lua!("lock/holder.lua"))
    };
    (LOCK_OWNER) => {
        concat!(lua!(LOCK), lua!("lock/owner.lua"))
    };
    (READ_WRITE) => {
        concat!(lua!(HAND_OFF), lua!("read_write/holders.lua"))
    };
    (FAIR) => {
        concat!(lua!("prelude.lua"), lua!("fair/queue.lua"))
    };
    (FAIR_OWNER) => {
        concat!(lua!(FAIR), lua!("lock/owner.lua"))
    };
    (CONDITION) => {
        concat!(lua!("prelude.lua"), lua!("condition/waiters.lua"))
    };
    (COUNT) => {
        concat!(lua!("number.lua"), lua!("once.lua"))
    };
    (MARKED) => {
        concat!(lua!(COUNT), lua!("semaphore/mark.lua"))
    };
    (PERMITS) => {
        concat!(lua!("number.lua"), lua!("expirable_semaphore/expired.lua"))
    };
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $file))
    };
}

#[cfg(all(test, models))]
pub(crate) use lua;

/// Makes a script of these parts, one after the other. Two optional arguments may come before the
/// parts: the word `takes`, and then the kinds of the script's replies. A script
/// [takes](CachedScript::takes) if it acquires something, such as a lock or permits, for its
/// caller: if the caller no longer waits, the client need not send the script.
macro_rules! script {
    (takes; $replies:ident; $($part:tt),+) => {
        LazyLock::new(|| {
            let code = code!($($part),+);
            CachedScript::new(code).answers(redlatch_client::Replies::$replies).takes()
        })
    };
    (takes; $($part:tt),+) => {
        LazyLock::new(|| CachedScript::new(code!($($part),+)).takes())
    };
    ($replies:ident; $($part:tt),+) => {
        LazyLock::new(|| {
            let code = code!($($part),+);
            CachedScript::new(code).answers(redlatch_client::Replies::$replies)
        })
    };
    ($($part:tt),+) => {
        LazyLock::new(|| CachedScript::new(code!($($part),+)))
    };
}

macro_rules! code {
    ($($part:tt),+) => {{
        let code = concat!($(lua!($part)),+);
        #[cfg(soak_mutants)]
        let code = $crate::scripts::mutants::script(code);
        code
    }};
}

pub(crate) mod barrier;
mod chain;
mod changes;
pub(crate) mod condition;
pub(crate) mod election;
pub(crate) mod eval;
pub(crate) mod expirable_semaphore;
mod expiry;
pub(crate) mod fair;
mod fencing_token;
mod keys;
pub(crate) mod latch;
pub(crate) mod lock;
pub(crate) mod multi;
#[cfg(soak_mutants)]
pub(crate) mod mutants;
mod once;
mod owner;
mod permit_id;
mod read_write;
pub(crate) mod renewal;
mod requests;
mod rights;
mod script_set;
pub(crate) mod semaphore;
pub(crate) mod status;
mod ticket;
mod trouble;

use std::time::Duration;

use redis::{FromRedisValue, Value};
use redlatch_client::{Command, Failure, Outcome, Route, decimal, error_reply};

use crate::error::Error;

pub use rights::Rights;
pub(crate) use trouble::{
    Trouble, failed_script, is_transient, not_connected, refused, unfit, unreachable,
};
use trouble::{unacknowledged, unexpected};

pub(crate) use chain::{Chain, ChainClock};
pub(crate) use changes::Mark;
pub use fencing_token::FencingToken;
pub(crate) use keys::{
    BarrierKeys, ConditionKeys, ElectionKeys, ExpirableKeys, FairKeys, KeyOf, LatchKeys, LockKeys,
    SemaphoreKeys, has_one_slot, name_of, patterns, requests, slow_wait,
};
pub(crate) use owner::{ClientId, Mode, Owner};
pub use permit_id::PermitId;
pub(crate) use requests::{ChangedNames, Cursor, RequestId, Requests, ServerClock, VALID_FOR};

/// Sends a command and waits for its reply. If the connection breaks, sends the command once more
/// over a new connection, so the command must be safe to send twice. If the second command must
/// differ, use [`call_again`]. To send a command only once, use [`Route::call_once`].
fn call(route: &Route, command: &Command, rights: Rights) -> Result<Value, Trouble> {
    call_again(route, command, rights, || command.clone()).map(|(reply, _)| reply)
}

/// Makes the command fail if its user lacks one of these rights. The server checks the rights once
/// for each connection.
fn checking_rights(command: Command, rights: Rights) -> Command {
    match rights.rights_query() {
        Some(query) => command.checks_rights(query),
        None => command,
    }
}

/// Sends a command that changes nothing, and reads its reply.
fn query<T>(
    route: &Route,
    command: &Command,
    rights: Rights,
    read: impl FnOnce(Value) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    call(route, command, rights).and_then(read).map_err(Trouble::of_query)
}

/// Like [`call`], but the copy may differ from the first command. Also returns whether the copy was
/// sent. If so, the first command may still run, even after the reply to the copy.
fn call_again(
    route: &Route,
    command: &Command,
    rights: Rights,
    copy: impl FnOnce() -> Command,
) -> Result<(Value, bool), Trouble> {
    let (outcome, in_doubt) = route.call_twice(command, copy);
    answered(outcome, in_doubt, rights).map(|reply| (reply, in_doubt))
}

/// Reads the reply to a request. `in_doubt` says whether the request was sent twice.
fn answered(outcome: Outcome, in_doubt: bool, rights: Rights) -> Result<Value, Trouble> {
    accepted(outcome, rights).map_err(|trouble| match trouble {
        // The first command may have run, even if the copy did not.
        trouble if in_doubt => Trouble::Unknown(trouble.into_error().after(SENT_TWICE)),
        trouble => trouble,
    })
}

const SENT_TWICE: &str = "the connection broke after the request was sent; then: ";

/// A reply, and whether its request was sent twice. If the request was sent twice, the first copy
/// may still run. So the client must undo the first copy if the request was not granted.
#[derive(Clone, Debug)]
pub(crate) struct Replied<T> {
    pub(crate) reply: T,
    pub(crate) in_doubt: bool,
    /// The reason why a grant does not count: too few replicas have it.
    pub(crate) unacknowledged: Option<Error>,
}

impl<T> Replied<T> {
    /// Returns a reply whose grant is valid: it needs no replicas, or enough replicas have it.
    pub(crate) fn acknowledged(reply: T, in_doubt: bool) -> Self {
        Self { reply, in_doubt, unacknowledged: None }
    }
}

/// Reads the reply to a request that may grant something. If too few replicas have the grant,
/// returns the reply together with an error.
fn granted<T>(
    outcome: Outcome,
    in_doubt: bool,
    rights: Rights,
    read: impl FnOnce(Value) -> Result<T, Trouble>,
) -> Result<Replied<T>, Trouble> {
    let (outcome, unacknowledged) = match outcome {
        Err(Failure::Unacknowledged(reply, cause)) => (Ok(reply), Some(unacknowledged(&cause))),
        outcome => (outcome, None),
    };
    let reply = read(answered(outcome, in_doubt, rights)?)?;
    Ok(Replied { reply, in_doubt, unacknowledged })
}

/// Returns the server's reply, or a `Trouble` if the reply is an error.
fn accepted(outcome: Outcome, rights: Rights) -> Result<Value, Trouble> {
    outcome.map_err(|failure| match failure {
        Failure::Refused(cause) => Trouble::Refused(refused(&cause, rights)),
        failure => failure.into(),
    })
}

fn flag(value: Value) -> Result<bool, Trouble> {
    number(value).map(|flag| flag != 0)
}

fn number(value: Value) -> Result<i64, Trouble> {
    match value {
        Value::Int(number) => Ok(number),
        other => Err(unexpected(&other)),
    }
}

fn read<T: FromRedisValue>(reply: &Value) -> Result<T, Trouble> {
    T::from_redis_value_ref(reply).map_err(|_| unexpected(reply))
}

/// Converts milliseconds to a time. A negative number is an unknown time or no end.
pub(crate) fn time(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Writes a duration in milliseconds. Only this function converts durations for the server.
fn millis(duration: Duration, digits: &mut [u8; 20]) -> &[u8] {
    decimal(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), digits)
}
