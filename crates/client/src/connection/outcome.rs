//! The result of a command: a reply, or the reason why there is none. The receiver of the result.

use std::sync::Arc;

use redis::{RedisError, Value};

use super::ServerHealth;
use crate::sync::Waker;

/// The result of a command: the server's reply, or a failure.
pub type Outcome = Result<Value, Failure>;

/// Why there is no reply, or only an error reply. Each variant says whether the command ran.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The command was never written, so it has not run.
    Unsent(Cause),
    /// The connection broke. The command may have run.
    Reset(Cause),
    /// No reply arrived in time. The command may have run, or may still run.
    TimedOut(Cause),
    /// The server replied with this error. The connection is still usable.
    Refused(Cause),
    /// The command has run with this reply, but too few replicas have
    /// [acknowledged](super::Command::acknowledged) it. The connection is still usable.
    Unacknowledged(Value, Cause),
}

/// An error, and the server that caused it.
#[derive(Clone, Debug)]
pub struct Cause {
    /// The error.
    pub error: Arc<RedisError>,
    /// The server's address for errors and the log.
    pub address: Arc<str>,
    /// Whether the client has ever connected to the server. If so, the address is right.
    pub met: bool,
    /// The command that the server refused, if that is known.
    pub command: Option<Box<str>>,
    /// The type of the value under the command's key, if the server refused the command because of
    /// this type.
    pub holds: Option<&'static str>,
}

impl Cause {
    /// Returns the cause for an error that this process noticed.
    pub fn new(error: impl Into<RedisError>, health: &ServerHealth) -> Self {
        let error = Arc::new(error.into());
        Self {
            error,
            address: health.address(),
            met: health.was_ever_opened(),
            command: None,
            holds: None,
        }
    }

    /// Returns the cause for an error that a server sent.
    pub fn said(error: Arc<RedisError>, address: Arc<str>) -> Self {
        Self { error, address, met: true, command: None, holds: None }
    }
}

impl Failure {
    /// Returns the error and its server.
    pub fn cause(&self) -> &Cause {
        match self {
            Self::Unsent(cause)
            | Self::Reset(cause)
            | Self::TimedOut(cause)
            | Self::Refused(cause)
            | Self::Unacknowledged(_, cause) => cause,
        }
    }

    /// Whether the connection must not be used after this failure.
    pub fn is_the_links(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Unacknowledged(..))
    }
}

/// The receiver of a reply. The thread that reads the reply calls the receiver with no mutex held.
/// The receiver must not block, and must not send a command.
pub trait ReplyReceiver: Send + Sync {
    /// Receives the reply, or the reason why there is no reply. Called once for each command.
    fn receive(&self, outcome: Outcome);

    /// Whether a thread waited for the reply and has left. If so, the command must not be sent
    /// again: it would run after the command that undoes it.
    fn has_left(&self) -> bool {
        false
    }

    /// Makes the thread that waits for this reply the reader, because the present reader leaves.
    /// Returns the waker of that thread. Called under the lane's mutex.
    fn take_over(&self) -> Option<Waker> {
        None
    }
}

impl<F: Fn(Outcome) + Send + Sync> ReplyReceiver for F {
    fn receive(&self, outcome: Outcome) {
        self(outcome);
    }
}
