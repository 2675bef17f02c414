//! Under which owners this process asks for locks, or has some.
//!
//! A server that becomes the master may have an owner of ours that nobody here is any more: its
//! release went to the master before and came no further. Numbers are never used again, so one that
//! is not live will never be, and whatever it has can be given back.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::Core;
use crate::protocol::{Mode, Owner};
use crate::sync::Mutex;

/// The numbers of those that are live.
#[derive(Default)]
pub(super) struct Owners {
    live: Mutex<HashSet<u64>>,
}

/// An owner that is live: from before its first request on, until its hold was given back, or
/// nobody has it.
pub(crate) struct LiveOwner {
    core: Arc<Core>,
    number: u64,
}

impl Core {
    /// A fresh owner. It is live as long as the second.
    pub(crate) fn next_owner_to(self: &Arc<Self>, mode: Mode) -> (Owner, Arc<LiveOwner>) {
        let owner = self.id.next_owner_to(mode);
        self.owners.live.lock().insert(owner.number());
        (owner, Arc::new(LiveOwner { core: Arc::clone(self), number: owner.number() }))
    }

    /// Whether this is an owner of this client, and nobody has it any more.
    pub(super) fn is_left_over(&self, owner: &str) -> bool {
        let number = owner.strip_prefix(self.id.as_str()).and_then(|rest| rest.strip_prefix(':'));
        let number = number.and_then(|rest| rest.split(':').next()?.parse().ok());
        number.is_some_and(|number| !self.owners.live.lock().contains(&number))
    }
}

impl LiveOwner {
    /// Nobody has it from here on: its hold was given back.
    pub(crate) fn end(&self) {
        self.core.owners.live.lock().remove(&self.number);
    }
}

impl Drop for LiveOwner {
    fn drop(&mut self) {
        // In a forked child the mutex may be locked by a thread that is not there.
        if !self.core.is_forked() {
            self.end();
        }
    }
}

impl fmt::Debug for LiveOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveOwner({})", self.number)
    }
}
