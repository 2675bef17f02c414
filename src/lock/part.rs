//! A lock as one of several that are taken together.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Handle;
use crate::acquire::Wait;
use crate::error::Error;
use crate::hold::Tenancy;
use crate::sync::Thread;

/// What a [`MultiLock`](crate::MultiLock) wants of each of its locks.
pub(crate) trait Part: fmt::Debug + Send + Sync {
    /// Two kinds of one name are two locks that get in each other's way.
    fn kind(&self) -> &'static str;

    fn handle(&self) -> &Handle;

    fn with_lease(&self, lease: Duration) -> Arc<dyn Part>;

    fn with_watchdog(&self, timeout: Duration) -> Arc<dyn Part>;

    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error>;

    /// Takes the lock if that is possible now, in two steps, so that several are asked for at once:
    /// the request is sent before this returns.
    fn begin_try<'a>(&'a self, thread: &'a Arc<Thread>) -> Trying<'a>;
}

/// A request for a lock that is on its way: waits for the reply, until a time. It has to be called:
/// the lock may be had by then.
pub(crate) type Trying<'a> = Box<dyn FnOnce(Instant) -> Result<Option<Arc<Tenancy>>, Error> + 'a>;

/// A [`Part`] that nobody else can look into.
#[derive(Debug)]
pub struct LockPart(pub(crate) Arc<dyn Part>);
