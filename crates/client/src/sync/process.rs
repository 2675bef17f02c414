//! Which process this is. A forked child has its parent's memory, but none of its other threads:
//! mutexes that they had locked stay locked there for ever, and its sockets are the parent's.

use std::error::Error;

use forkguard::Guard;

/// The process that made a value.
#[derive(Clone, Debug)]
pub struct Process(Guard);

impl Process {
    /// This process. An error: the system allows no handler of `fork`.
    pub fn current() -> Result<Self, impl Error + Send + Sync + 'static> {
        Guard::try_new().map(Self)
    }

    /// Whether this is a child that was forked from it. Costs a look at a counter, which a handler
    /// of `fork` raises: `getpid` is a call of the system, and as long as a re-entry.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.0.clone().detected_fork()
    }
}
