//! Which process this is. A forked child has its parent's memory, but none of its other threads:
//! mutexes that they had locked stay locked there for ever, and its sockets are the parent's.

use std::error::Error;
use std::sync::OnceLock;

use forkguard::Guard;

/// The process in which the first client connected: this one, or one that it was forked from.
static FIRST: OnceLock<Guard> = OnceLock::new();

/// Whether this process may connect a client: no process that it was forked from has connected one.
/// parking_lot keeps the sleeping threads of a process in one table. A child has the entries of its
/// parent's threads there, and its own threads may get their stacks: one client of ten hung or
/// crashed. An error: the system allows no handler of `fork`.
pub fn may_connect() -> Result<bool, impl Error + Send + Sync + 'static> {
    Guard::try_new().map(|this| {
        FIRST.get_or_init(|| this);
        !is_forked()
    })
}

/// Whether this is a child that was forked from the process with the clients. Such a child must not
/// lock, write or release anything of theirs. Costs a look at a counter, which a handler of `fork`
/// raises: `getpid` is a call of the system, and as long as a re-entry.
#[inline]
pub fn is_forked() -> bool {
    FIRST.get().is_some_and(|first| first.clone().detected_fork())
}
