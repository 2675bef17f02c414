//! What can go wrong, and what the state of the lock is then.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::hold::LostReason;

/// What kind of trouble an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The calling thread does not hold what it tried to unlock. Nothing was changed.
    NotHeld,
    /// The hold ended before it was released: its lease ran out, or the lock was deleted or taken
    /// over. Work done since then was not protected.
    LeaseLost,
    /// The [`CancelToken`](crate::CancelToken) of the call was cancelled. Nothing is held.
    Cancelled,
    /// The client was shut down. Nothing is held.
    ShutDown,
    /// The server refused, broke the connection, or did not answer in time.
    Redis,
    /// The server answered something that no Redis server answers.
    Protocol,
    /// A setting, a name, a lease or a URL is not usable.
    Config,
}

/// Trouble with a lock or with the server behind it.
///
/// The message names the lock, says what its state is now and what to do. The cause, where there
/// is one, is its [`source`](StdError::source).
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    name: Option<Arc<str>>,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The lock or synchronizer it happened to, if it was one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self(Box::new(Inner { kind, name: None, message, source: None }))
    }

    pub(crate) fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn caused_by_shared(mut self, source: Arc<dyn StdError + Send + Sync>) -> Self {
        self.0.source = Some(source);
        self
    }

    pub(crate) fn of(mut self, name: &Arc<str>) -> Self {
        self.0.name = Some(Arc::clone(name));
        self
    }

    /// What is true of the lock now, said after what went wrong.
    pub(crate) fn now(mut self, state: &str) -> Self {
        self.0.message.push_str("; ");
        self.0.message.push_str(state);
        self
    }

    pub(crate) fn lost(name: &Arc<str>, reason: LostReason) -> Self {
        let message = format!(
            "the hold was lost: {reason}; another owner may have it now, and what was done since \
             was not protected"
        );
        Self::new(ErrorKind::LeaseLost, message).of(name)
    }

    pub(crate) fn cancelled(name: &Arc<str>) -> Self {
        let message = "waiting was cancelled; nothing is held".to_owned();
        Self::new(ErrorKind::Cancelled, message).of(name)
    }

    pub(crate) fn shut_down(name: &Arc<str>) -> Self {
        let message = "the client was shut down; nothing is held, connect a new one".to_owned();
        Self::new(ErrorKind::ShutDown, message).of(name)
    }
}

/// Names are shown whole up to this many characters.
const LONGEST_SHOWN: usize = 80;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            match name.char_indices().nth(LONGEST_SHOWN) {
                None => write!(f, "{name:?}: ")?,
                Some((end, _)) => write!(f, "{:?}… ({} bytes): ", &name[..end], name.len())?,
            }
        }
        f.write_str(&self.0.message)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}, {self})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
