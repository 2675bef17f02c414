//! The live owners: those under which this process requests or holds locks.
//!
//! If a release reached only the old master, a new master may have a hold of an owner that no
//! thread of this client uses. Numbers are never used again, so an owner that is not live never
//! becomes live again. All holds of such owners can be released.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::{Mutex, is_forked};

use super::Core;
use crate::scripts::{Mode, Owner};

/// The numbers of the live owners. (Hash sets would cost each lock more than these trees.)
#[derive(Default)]
pub(super) struct Owners {
    live: Mutex<BTreeSet<u64>>,
}

/// Keeps an owner live, from before its first request until its hold ends or no thread needs it.
pub(crate) struct LiveOwner {
    core: Arc<Core>,
    number: u64,
}

impl Core {
    /// Makes a new owner, which is live as long as the returned `LiveOwner`. `hears`: see
    /// [`ClientId::next_owner_to`](crate::scripts::ClientId::next_owner_to).
    pub(crate) fn next_owner_to(self: &Arc<Self>, mode: Mode, hears: bool) -> (Owner, LiveOwner) {
        let owner = self.id.next_owner_to(mode, hears);
        self.owners.live.lock().insert(owner.number());
        (owner, LiveOwner { core: Arc::clone(self), number: owner.number() })
    }

    /// Whether this is an owner of this client that no thread uses.
    pub(super) fn is_left_over(&self, owner: &str) -> bool {
        let number = owner.strip_prefix(self.id.as_str()).and_then(|rest| rest.strip_prefix(':'));
        let number = number.and_then(|rest| rest.split(':').next()?.parse().ok());
        number.is_some_and(|number| !self.owners.live.lock().contains(&number))
    }
}

impl LiveOwner {
    /// Notes that the owner's hold was released, so that the owner is unused from here on.
    pub(crate) fn end(&self) {
        self.core.owners.live.lock().remove(&self.number);
    }
}

impl Drop for LiveOwner {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may have left the mutex locked.
        if !is_forked() {
            self.end();
        }
    }
}

impl fmt::Debug for LiveOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveOwner({})", self.number)
    }
}
