//! Why a client has no connection.

use super::Cause;

/// Why a client cannot connect.
#[derive(Clone, Debug)]
pub enum ConnectError {
    /// A setting or the URL is not usable, for this reason.
    Unusable(String),
    /// The cluster serves no keys yet.
    NotReady(String),
    /// No connection could be opened.
    Unreachable(Cause),
}

impl ConnectError {
    pub(super) fn unusable(why: impl Into<String>) -> Self {
        Self::Unusable(why.into())
    }
}
