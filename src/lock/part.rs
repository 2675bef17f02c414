//! A lock as one of several that are taken together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

use super::Handle;
use crate::error::Error;
use crate::local::Tenancy;
use crate::waiting::Wait;

/// A lock as a [`MultiLock`](crate::MultiLock) uses it.
pub(crate) trait Part: fmt::Debug + Send + Sync {
    /// Two kinds of one name are two locks that get in each other's way.
    fn kind(&self) -> &'static str;

    fn handle(&self) -> &Handle;

    fn with_lease(&self, lease: Duration) -> Arc<dyn Part>;

    fn with_watchdog(&self, timeout: Duration) -> Arc<dyn Part>;

    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error>;
}

/// A [`Part`], opaque to other crates.
#[derive(Debug)]
pub struct LockPart(pub(crate) Arc<dyn Part>);
