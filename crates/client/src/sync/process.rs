//! The detection of a forked process. A forked child has its parent's memory and sockets, but only
//! the thread that forked. A mutex that another thread had locked remains locked in the child for
//! ever.

use std::error::Error;
use std::sync::OnceLock;

use forkguard::Guard;

/// The process in which the first client connected: this process or an ancestor.
static FIRST: OnceLock<Guard> = OnceLock::new();

/// Returns `false` if an ancestor of this process has connected a client: then this process may not
/// connect a client. parking_lot keeps the sleeping threads of a process in one table. A forked
/// child's copy of the table has entries of the parent's threads, and the child's own threads may
/// get the stacks of those threads. When forked children were allowed to connect, one client of ten
/// hung or crashed. Returns an error if the system allows no handler of `fork`.
pub fn may_connect() -> Result<bool, impl Error + Send + Sync + 'static> {
    Guard::try_new().map(|this| {
        FIRST.get_or_init(|| this);
        !is_forked()
    })
}

/// Whether this process was forked from a process with clients. A forked child must not lock, write
/// or release anything of its parent's clients. The check reads a counter that a handler of `fork`
/// increments. A call of `getpid` would take as long as a re-entry.
#[inline]
pub fn is_forked() -> bool {
    FIRST.get().is_some_and(|first| first.clone().detected_fork())
}
