//! The detection of a forked process. A forked child has its parent's memory, but only the thread
//! that forked. Mutexes that the other threads had locked stay locked in the child for ever, and it
//! shares the parent's sockets.

use std::error::Error;
use std::sync::OnceLock;

use forkguard::Guard;

/// The process in which the first client connected: this one or an ancestor.
static FIRST: OnceLock<Guard> = OnceLock::new();

/// Whether this process may connect a client, which is so if no ancestor has connected one.
/// parking_lot keeps the sleeping threads of a process in one table. A child's copy has the entries
/// of its parent's threads, whose stacks the child's own threads may get: one client of ten hung or
/// crashed. An error means that the system allows no handler of `fork`.
pub fn may_connect() -> Result<bool, impl Error + Send + Sync + 'static> {
    Guard::try_new().map(|this| {
        FIRST.get_or_init(|| this);
        !is_forked()
    })
}

/// Whether this process was forked from the one with the clients. Such a child must not lock, write
/// or release anything of theirs. The check reads a counter, which a handler of `fork` raises.
/// `getpid` would be a system call, and take as long as a re-entry.
#[inline]
pub fn is_forked() -> bool {
    FIRST.get().is_some_and(|first| first.clone().detected_fork())
}
