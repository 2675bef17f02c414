//! The result of a command: a reply, or the reason why there is none.

use std::sync::Arc;

use redis::{RedisError, Value};

use super::Health;

/// The result of a command: the server's reply, or a failure.
pub type Outcome = Result<Value, Failure>;

/// Why there is no reply, or only an error reply. Each variant says whether the command ran.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The command was never written, so it has not run.
    Unsent(Cause),
    /// The connection broke. The command may have run.
    Reset(Cause),
    /// No reply came in time. The command may have run, or may still run.
    TimedOut(Cause),
    /// The server answered with this error. The connection stays usable.
    Refused(Cause),
    /// The command has run and was answered with this reply, but too few replicas have
    /// [acknowledged](super::Command::acknowledged) it. The connection stays usable.
    Unacknowledged(Value, Cause),
}

/// An error, and the server that it concerns.
#[derive(Clone, Debug)]
pub struct Cause {
    /// The error.
    pub error: Arc<RedisError>,
    /// The server's address, for people.
    pub address: Arc<str>,
    /// Whether there was ever a connection to the server. If so, the address is right.
    pub met: bool,
    /// The command that the server refused, if that is known.
    pub command: Option<Box<str>>,
    /// The type of the value under the command's key, if that is why the server refused.
    pub holds: Option<&'static str>,
}

impl Cause {
    /// An error that this process met when it used the server.
    pub fn new(error: impl Into<RedisError>, health: &Health) -> Self {
        let error = Arc::new(error.into());
        Self { error, address: health.address(), met: health.was_met(), command: None, holds: None }
    }

    /// An error that a server sent.
    pub fn said(error: Arc<RedisError>, address: Arc<str>) -> Self {
        Self { error, address, met: true, command: None, holds: None }
    }
}

impl Failure {
    /// The error, and its server.
    pub fn cause(&self) -> &Cause {
        match self {
            Self::Unsent(cause)
            | Self::Reset(cause)
            | Self::TimedOut(cause)
            | Self::Refused(cause)
            | Self::Unacknowledged(_, cause) => cause,
        }
    }

    /// Whether the connection is useless after this failure.
    pub fn is_the_links(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Unacknowledged(..))
    }
}
