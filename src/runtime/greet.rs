//! The first words with a server: whether it is one that this library can work with, and how far
//! away it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use redlatch_client::{Cause, Command, Endpoint, Failure, Lane, ReplicaAcks, Server};

use crate::error::{Error, ErrorKind};
use crate::scripts::{Rights, Trouble, refused, unreachable};

/// The same for every client, so that nothing on the server grows with their number. Scripts ask
/// before their first write whether the writes behind it are allowed: a server before Redis 7.0
/// cannot say.
const SCRIPT: &str = "return redis.acl_check_cmd and ARGV[1]";
const WORD: &[u8] = b"redlatch";

/// Connects, and finds out whether the server runs scripts. Returns the shortest round trip.
pub(crate) fn greet(lane: &Arc<Lane>, endpoint: &Endpoint) -> Result<Duration, Error> {
    lane.connect().map_err(|failure| unreachable(failure.cause()))?;
    let located = |error: Error| error.now(&format!("it is at {}", endpoint.address()));
    look_at(&endpoint.server().unwrap_or_default()).map_err(located)?;
    let hash = redis::Script::new(SCRIPT).get_hash().to_owned();
    let by_text = Command::plain(&[b"EVAL", SCRIPT.as_bytes(), b"0", WORD]);
    let by_hash = Command::plain(&[b"EVALSHA", hash.as_bytes(), b"0", WORD]);
    let mut shortest = Duration::MAX;
    for command in [&by_text, &by_hash, &by_hash] {
        let begun = Instant::now();
        let outcome = lane.call_once(command);
        shortest = shortest.min(begun.elapsed());
        match outcome {
            Err(Failure::Refused(cause)) => would_run(&cause).map_err(located)?,
            outcome => understand(&outcome.map_err(unanswered)?).map_err(located)?,
        }
    }
    if is_replica(lane) {
        let message = "the server is a read-only replica: connect to the master";
        return Err(located(Error::new(ErrorKind::Redis, message.to_owned()).transient(true)));
    }
    Ok(shortest)
}

/// Whether the server lets the client wait for replicas. Does not ask for their number: they come
/// and go.
pub(crate) fn may_wait(lane: &Arc<Lane>) -> Result<(), Error> {
    let none = ReplicaAcks { count: 0, within: Duration::ZERO };
    match lane.call_once(&Command::wait(none)) {
        Err(Failure::Refused(cause)) => Err(refused(&cause, Rights::ReplicaAcks)),
        outcome => outcome.map(drop).map_err(unanswered),
    }
}

/// There was a connection, and no answer to a question.
fn unanswered(failure: Failure) -> Error {
    match failure {
        Failure::TimedOut(_) | Failure::Unacknowledged(..) => {
            Trouble::from(failure).into_error().unknown(false)
        }
        Failure::Unsent(cause) | Failure::Reset(cause) | Failure::Refused(cause) => {
            unreachable(&cause)
        }
    }
}

/// A server that does not say counts as a master: the first write tells.
fn is_replica(lane: &Arc<Lane>) -> bool {
    let info = lane.call_once(&Command::plain(&[b"INFO", b"replication"]));
    let says = |line: &str| match &info {
        Ok(Value::BulkString(text)) => {
            String::from_utf8_lossy(text).lines().any(|found| found.trim() == line)
        }
        _ => false,
    };
    says("role:slave") && says("slave_read_only:1")
}

/// Whether this library can work with the server.
fn look_at(server: &Server) -> Result<(), Error> {
    if server.is_sentinel {
        return unusable(
            "this is a Sentinel and not the server itself: use a URL such as \
             redis-sentinel://host:port/name, with the Sentinels' name of the master",
        );
    }
    Ok(())
}

/// Whether the answer is the script's.
fn understand(reply: &Value) -> Result<(), Error> {
    match reply {
        Value::BulkString(word) if word == WORD => Ok(()),
        Value::Nil => unusable(
            "the server is too old: its scripts cannot ask what the user may do \
             (redis.acl_check_cmd); upgrade it to Redis 7.0, Valkey 7.2 or later",
        ),
        _ => {
            let message = "the program there is not a Redis server: it does not run a script";
            Err(Error::new(ErrorKind::Protocol, message.to_owned()))
        }
    }
}

/// Whether a server that refused a script runs some.
fn would_run(Cause { error, .. }: &Cause) -> Result<(), Error> {
    let why = match error.code().unwrap_or_default() {
        "NOPERM" => "the server's access rights (ACL) forbid it: allow EVAL and EVALSHA",
        _ if error.detail().is_some_and(|text| text.contains("unknown command")) => {
            "the server knows no such command: EVAL and EVALSHA are renamed, or it was built without \
             scripts"
        }
        "ERR" => "the server runs none",
        // The server cannot run a script now (it is loading, or busy with another), but it would.
        _ => return Ok(()),
    };
    Err(lacks_scripts(why).caused_by_shared(error.clone()))
}

fn lacks_scripts(why: &str) -> Error {
    Error::new(ErrorKind::Redis, format!("redlatch needs Lua scripts, and {why}"))
}

fn unusable(why: &str) -> Result<(), Error> {
    Err(Error::new(ErrorKind::Config, why.to_owned()))
}
