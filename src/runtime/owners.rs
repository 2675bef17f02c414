//! The live owners: the owners for which this process requests or holds locks.
//!
//! If a release reached only the old master, the new master may have a hold of an owner that is not
//! live. The client can release this hold, because the number of an owner is never used again.
//!
//! An owner that adopts a ticket has the ticket's number, and a program may adopt a ticket twice. A
//! command that cleans up after the first adoption must not end the second adoption. So the
//! ticket's number remains live until the server has certainly ended the hold.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::{Mutex, is_forked};

use super::Core;
use crate::scripts::{Mode, Owner};

/// The numbers of the live owners. With hash sets, each lock would cost more.
#[derive(Default)]
pub(super) struct Owners {
    live: Mutex<BTreeSet<u64>>,
    /// The live numbers of adoptions with an unknown outcome. These adoptions may be repeated.
    undecided: Mutex<BTreeSet<u64>>,
}

/// Keeps an owner live while this value exists: from before the owner's first request until the
/// owner's hold ends or no thread needs the owner.
pub(crate) struct LiveOwner {
    core: Arc<Core>,
    number: u64,
}

impl Core {
    /// Makes a new owner, which is live while the returned `LiveOwner` exists. For `hears`, see
    /// [`ClientId::next_owner_to`](crate::scripts::ClientId::next_owner_to).
    pub(crate) fn next_owner_to(self: &Arc<Self>, mode: Mode, hears: bool) -> (Owner, LiveOwner) {
        let owner = self.id.next_owner_to(mode, hears);
        self.owners.live.lock().insert(owner.number());
        (owner, LiveOwner { core: Arc::clone(self), number: owner.number() })
    }

    /// Makes the owner with the number of a ticket live, before a call adopts the ticket. The
    /// `bool` says whether the call repeats an adoption with an unknown outcome. Returns `None` if
    /// another call of this client is adopting or has adopted the ticket.
    pub(crate) fn adopt(self: &Arc<Self>, number: u64) -> Option<(LiveOwner, bool)> {
        let is_repeated = self.owners.undecided.lock().remove(&number);
        let is_new = self.owners.live.lock().insert(number);
        (is_new || is_repeated).then(|| (LiveOwner { core: Arc::clone(self), number }, is_repeated))
    }

    /// Whether this is an owner of this client that no thread uses.
    pub(super) fn is_left_over(&self, owner: &str) -> bool {
        let number = owner.strip_prefix(self.id.as_str()).and_then(|rest| rest.strip_prefix(':'));
        let number = number.and_then(|rest| rest.split(':').next()?.parse().ok());
        number.is_some_and(|number| !self.owners.live.lock().contains(&number))
    }
}

impl LiveOwner {
    /// Notes that the owner's hold was released, so the owner is no longer live.
    pub(crate) fn end(&self) {
        self.core.owners.live.lock().remove(&self.number);
    }
}

impl LiveOwner {
    /// Notes that the outcome of this adoption is unknown, so that another call may repeat the
    /// adoption.
    pub(crate) fn keep_undecided(self) {
        self.core.owners.undecided.lock().insert(self.number);
    }
}

impl Drop for LiveOwner {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may have left the mutex locked.
        if !is_forked() && !Owner::is_ticket_number(self.number) {
            self.end();
        }
    }
}

impl fmt::Debug for LiveOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveOwner({})", self.number)
    }
}
