//! The line of a fair hold: the threads to which this process may pass the hold without a request
//! to the server.
//!
//! Redis keeps the order of a fair lock, so its processes take no turns. A grant names the threads
//! of the same process whose queue entries are directly behind its owner's entry. The hold may be
//! passed to these threads in the order of the line. Their entries stay in Redis's queue until the
//! release of the hold removes them.

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::Command;
use redlatch_client::sync::Mutex;

use crate::runtime::Core;
use crate::scripts::fair::{FairScripts, Followers};
use crate::scripts::{FairKeys, Owner};

/// The threads to which a fair hold may be passed after its owner.
pub(crate) struct Line {
    keys: Arc<FairKeys>,
    /// The state of the line. The line's mutex is taken after the gate's mutex.
    pub(crate) state: Mutex<LineState>,
}

pub(crate) struct LineState {
    pub(crate) followers: Followers,
    /// The owners to which the hold was passed. The release removes their entries from the queue.
    pub(crate) passed: Vec<Owner>,
}

impl Line {
    pub(crate) fn new(keys: &Arc<FairKeys>, followers: Followers) -> Self {
        let state = LineState { followers, passed: Vec::new() };
        Self { keys: Arc::clone(keys), state: Mutex::new(state) }
    }

    /// Whether the hold was passed to other threads, whose entries are still in Redis's queue.
    pub(crate) fn has_passed(&self) -> bool {
        !self.state.lock().passed.is_empty()
    }

    /// Returns the command that releases the owner's hold and grants the lock to the next owner in
    /// the queue.
    pub(crate) fn release_command(&self, core: &Core, lock: &str, owner: &Owner) -> Command {
        scripts(core, lock, &self.keys).release_command(owner, &self.state.lock().passed)
    }

    /// Returns the command that undoes the effects of a late request of the owner. It also removes
    /// from the queue the threads to which the hold was passed.
    pub(crate) fn give_up_command(&self, core: &Core, lock: &str, owner: &Owner) -> Command {
        let leaving: Vec<_> = iter::once(*owner).chain(self.state.lock().passed.clone()).collect();
        scripts(core, lock, &self.keys).release_command(owner, &leaving)
    }

    /// Returns the command that shortens the owner's kept hold so that it ends after `rest`. It
    /// also removes from the queue the threads to which the hold was passed.
    pub(crate) fn keep_command(
        &self,
        core: &Core,
        lock: &str,
        owner: &Owner,
        rest: Duration,
    ) -> Command {
        let scripts = scripts(core, lock, &self.keys);
        scripts.keep_command(owner, rest, &self.state.lock().passed)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

pub(crate) fn scripts<'a>(core: &Core, key: &'a str, keys: &'a FairKeys) -> FairScripts<'a> {
    let (waits, database) = (core.config.fair_waits(), core.database());
    FairScripts { key, keys, waits, database, acks: core.config.replica_acks }
}
