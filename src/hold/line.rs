//! The line of a fair hold: the threads to which it may go from its owner without a request to the
//! server.
//!
//! A fair lock has no turns, since Redis has its order. A grant names the threads that stand
//! directly behind its owner, and each of them may have the hold next without a round trip. They
//! stay in Redis's queue until the release of the hold removes them all.

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::Command;
use redlatch_client::sync::Mutex;

use crate::runtime::Core;
use crate::scripts::fair::{FairScripts, Followers};
use crate::scripts::{FairKeys, Owner};

/// The threads that may have a fair hold after its owner.
pub(crate) struct Line {
    keys: Arc<FairKeys>,
    /// The state. Its mutex is taken after the gate's.
    pub(crate) state: Mutex<LineState>,
}

pub(crate) struct LineState {
    pub(crate) followers: Followers,
    /// The owners that have had the hold. They leave the queue when it is released.
    pub(crate) passed: Vec<Owner>,
}

impl Line {
    pub(crate) fn new(keys: &Arc<FairKeys>, followers: Followers) -> Self {
        let state = LineState { followers, passed: Vec::new() };
        Self { keys: Arc::clone(keys), state: Mutex::new(state) }
    }

    /// Whether other threads have had the hold after its owner, and still stand in Redis's queue.
    pub(crate) fn has_passed(&self) -> bool {
        !self.state.lock().passed.is_empty()
    }

    /// The command that releases the owner's hold and lets the next owner in.
    pub(crate) fn release_command(&self, core: &Core, lock: &str, owner: &Owner) -> Command {
        scripts(core, lock, &self.keys).release_command(owner, &self.state.lock().passed)
    }

    /// The command that undoes whatever a late request of the owner may do. It also takes the
    /// threads that have had the owner's hold off the queue.
    pub(crate) fn give_up_command(&self, core: &Core, lock: &str, owner: &Owner) -> Command {
        let leaving: Vec<_> = iter::once(*owner).chain(self.state.lock().passed.clone()).collect();
        scripts(core, lock, &self.keys).release_command(owner, &leaving)
    }

    /// The command that shortens the owner's kept hold to this time, and removes the threads that
    /// have had it after the owner from the queue.
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
