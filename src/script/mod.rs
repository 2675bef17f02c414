//! One typed function for each script; what the server answers becomes enums here.

pub(crate) mod fair;
pub(crate) mod latch;
pub(crate) mod lock;
mod once;
pub(crate) mod semaphore;

use std::time::Duration;

use redis::{RedisError, ServerErrorKind, Value};

use crate::connection::{Command, Failure, Lane, decimal};
use crate::error::{Error, ErrorKind};

pub(crate) use once::{Requests, ServerClock, Ticket, WINDOW};

/// Why a script has no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server refused it: nothing was changed.
    Refused(Error),
    /// It was never sent: nothing was changed.
    Unsent(Error),
    /// It may have run, and may run yet.
    Unknown(Error),
    /// It may have run. It will not any more, and nobody will ever know.
    Forgotten(Error),
}

impl Trouble {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused(error)
            | Self::Unsent(error)
            | Self::Unknown(error)
            | Self::Forgotten(error) => error,
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        let source = failure.source().clone();
        let what = match &failure {
            Failure::Unsent(source) => return Self::Unsent(unreachable(source)),
            Failure::Reset(_) => "the connection to the server broke",
            Failure::TimedOut(_) => {
                "the server did not answer in time (raise response_timeout if it is only slow)"
            }
        };
        let error = Error::new(ErrorKind::Redis, what.to_owned()).caused_by_shared(source);
        Self::Unknown(error)
    }
}

/// Sends a command and waits for its reply. After a reset it is sent once more, on a new
/// connection: every command of this library may be sent twice.
fn call(lane: &Lane, command: &Command, rights: Rights) -> Result<Value, Trouble> {
    call_again(lane, command, rights, || command.clone()).map(|(reply, _)| reply)
}

/// As [`call`], where what is sent again may be another form of the command. Says, too, whether it
/// was: then the first one may run yet, whatever the second one was answered.
fn call_again(
    lane: &Lane,
    command: &Command,
    rights: Rights,
    copy: impl FnOnce() -> Command,
) -> Result<(Value, bool), Trouble> {
    match lane.call_once(command) {
        // Whatever keeps the second one from running, the first one may have run.
        Err(Failure::Reset(_)) => accepted(lane.call_once(&copy()), rights)
            .map(|reply| (reply, true))
            .map_err(|trouble| Trouble::Unknown(trouble.into_error())),
        outcome => accepted(outcome, rights).map(|reply| (reply, false)),
    }
}

/// A reply, and whether its request was sent twice: then the first one may run yet, and has to be
/// undone unless it was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replied<T> {
    pub(crate) reply: T,
    pub(crate) twice: bool,
}

/// The server's reply, unless it is an error.
fn accepted(outcome: Result<Value, Failure>, rights: Rights) -> Result<Value, Trouble> {
    match outcome? {
        Value::ServerError(error) => Err(Trouble::Refused(refused(error.into(), rights))),
        value => Ok(value),
    }
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

/// Durations become milliseconds here, and only here.
fn millis(duration: Duration, digits: &mut [u8; 20]) -> &[u8] {
    decimal(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), digits)
}

fn unexpected(value: &Value) -> Trouble {
    let message = format!(
        "the server answered {value:?}, which does not fit: the key holds something else, or it is no \
         Redis"
    );
    Trouble::Unknown(Error::new(ErrorKind::Protocol, message))
}

/// Why no connection can be had.
pub(crate) fn unreachable(source: &std::sync::Arc<RedisError>) -> Error {
    use redis::ErrorKind as Cause;
    let (kind, what) = match source.kind() {
        Cause::AuthenticationFailed => {
            (ErrorKind::Redis, "the server refuses the user or password of the URL")
        }
        Cause::Parse => (ErrorKind::Protocol, "what answers there is no Redis server"),
        Cause::InvalidClientConfig => (ErrorKind::Config, "the URL does not fit"),
        Cause::Server(_) | Cause::Extension => {
            (ErrorKind::Redis, "the server refuses the connection")
        }
        _ if source.is_timeout() => (
            ErrorKind::Redis,
            "no connection to the server within connect_timeout; is the address right?",
        ),
        _ => (ErrorKind::Redis, "no connection to the server; does it run, is the address right?"),
    };
    Error::new(kind, what.to_owned()).caused_by_shared(source.clone())
}

/// What the user of the URL must be allowed to do, by what it does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rights {
    Connect,
    Locks,
    FairLocks,
    Semaphores,
    Latches,
    Subscriptions,
}

impl Rights {
    fn advice(self) -> &'static str {
        match self {
            Self::Connect => "a client needs PING, EVALSHA, EVAL, PUBLISH and SUBSCRIBE",
            Self::Locks => {
                "a lock needs EVALSHA, EVAL, EXISTS, HEXISTS, HSET, DEL, PEXPIRE, PTTL, PUBLISH and \
                 SUBSCRIBE on its key and its channel"
            }
            Self::FairLocks => "a fair lock needs two more keys than a lock, and more commands",
            Self::Semaphores => {
                "a semaphore needs EVALSHA, EVAL, TIME, EXISTS, GET, SET, DEL, INCRBY, DECRBY, \
                 PUBLISH and SUBSCRIBE on its key, on redlatch_request:* and on its channel"
            }
            Self::Latches => {
                "a latch needs EVALSHA, EVAL, TIME, GET, SET, DECR, INCRBY, DEL, PUBLISH and SUBSCRIBE on \
                 its key, on redlatch_request:* and on its channels"
            }
            Self::Subscriptions => {
                "waiting needs SUBSCRIBE on the channel, a fair lock's PSUBSCRIBE"
            }
        }
    }
}

/// What an error reply means to a user, who needs these rights.
pub(crate) fn refused(error: RedisError, rights: Rights) -> Error {
    if is_denied(&error) {
        let advice = rights.advice();
        let hint = format!(
            "the server's access rights (ACL) forbid it: {advice} (all: lua/README.md, Rights)"
        );
        return Error::new(ErrorKind::Redis, hint).caused_by(error);
    }
    let hint = match error.code().unwrap_or_default() {
        "NOAUTH" => "the server wants a password: put it into the URL",
        "WRONGTYPE" => "the key holds something else: use another name",
        "ERR" if error.detail().is_some_and(|what| what.contains("not an integer")) => {
            "the key holds something else: use another name"
        }
        "OOM" => "the server has no memory left (maxmemory)",
        "READONLY" => "this server is a read-only replica: connect to the master",
        "MISCONF" => "the server refuses writes since it cannot save its data",
        "LOADING" => "the server is still loading its data: try again in a moment",
        "BUSY" => "a script keeps the server busy (SCRIPT KILL ends it)",
        "CROSSSLOT" => "the name's braces put key and channel into different slots",
        _ => "the server refuses it",
    };
    Error::new(ErrorKind::Redis, hint.to_owned()).caused_by(error)
}

/// Whether access rights forbid it. What a script may not do has no code of its own up to Redis 7.0.
fn is_denied(error: &RedisError) -> bool {
    let in_script = |what: &str| what.starts_with("The user executing the script can't");
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm)
        || error.code() == Some("NOPERM")
        || error.detail().is_some_and(in_script)
}
