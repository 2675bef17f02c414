//! The members of a client: its state for each name of each kind of synchronizer.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

use redlatch_client::slot_of;
use redlatch_client::sync::{Mutex, Registry, Thread, is_forked};

use crate::lease::Renewal;
use crate::name::Name;
use crate::snapshot::Held;

/// The state of one name in one client, which all handles of the name share.
pub(crate) trait Member: Send + Sync + 'static {
    fn name(&self) -> &Name;

    /// Called at the end of the client: wakes all waiters and releases all holds.
    fn end(self: Arc<Self>);

    /// Returns, for each hold, a renewal (even if none is due) or a query whether the hold exists.
    fn renew_now(self: Arc<Self>) -> Vec<Renewal> {
        Vec::new()
    }

    /// Handles the news whether other processes wait for the lock that this owner has. The news
    /// came, or were asked for, at the time `_at`. Does no I/O.
    fn told_wanted(&self, _owner: u64, _is_wanted: bool, _at: u64) {}

    /// Makes the leases older by this number of nanoseconds. Returns the renewals that are due
    /// then.
    #[cfg(feature = "in-memory")]
    fn age(self: Arc<Self>, _by: u64) -> Vec<Renewal> {
        Vec::new()
    }

    /// Returns the holds of this process's threads.
    fn held(&self) -> Vec<Held> {
        Vec::new()
    }

    /// Whether this thread holds the lock.
    fn is_held_by(&self, _thread: &Thread) -> bool {
        false
    }

    /// Whether this is a lock or a read-write lock, whose holders and waiters are owners.
    fn has_owners(&self) -> bool {
        false
    }

    /// Whether this is a semaphore without leases, whose taken permits the client does not know.
    fn counts_permits(&self) -> bool {
        false
    }

    /// Releases the hold of an owner that no thread uses, and removes the owner from the queue.
    fn give_up_owner(&self, _owner: &str) {}
}

/// The members of a client, by kind and name.
#[derive(Default)]
pub(crate) struct Members {
    kinds: Mutex<Kinds>,
}

#[derive(Default)]
struct Kinds {
    known: Vec<(KindId, Arc<dyn MembersOfKind>)>,
    closed: bool,
}

/// A type, and a kind of that type.
type KindId = (TypeId, &'static str);

trait MembersOfKind: Send + Sync + fmt::Debug {
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    fn all(&self) -> Vec<Arc<dyn Member>>;
    fn told_wanted(&self, name: &str, owner: u64, is_wanted: bool, at: u64);
    fn sweep(&self);
    fn close(&self);
}

impl<T: Member> MembersOfKind for Registry<T> {
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn all(&self) -> Vec<Arc<dyn Member>> {
        Self::all(self).into_iter().map(|one| one as Arc<dyn Member>).collect()
    }

    fn told_wanted(&self, name: &str, owner: u64, is_wanted: bool, at: u64) {
        self.known(name).inspect(|member| member.told_wanted(owner, is_wanted, at));
    }

    fn sweep(&self) {
        Self::sweep(self);
    }

    fn close(&self) {
        Self::close(self);
    }
}

impl Members {
    /// The members of one kind.
    pub(crate) fn of<T: Member>(&self) -> Arc<Registry<T>> {
        self.of_kind::<T>("")
    }

    /// The members of one kind, for a type that has several kinds.
    pub(crate) fn of_kind<T: Member>(&self, kind: &'static str) -> Arc<Registry<T>> {
        // In a forked child, a thread of the parent may have left the mutex locked.
        if is_forked() {
            return Arc::default();
        }
        let mut kinds = self.kinds.lock();
        let id = (TypeId::of::<T>(), kind);
        let known = kinds.known.iter().find(|(known, _)| *known == id);
        if let Some(known) = known.and_then(|(_, kind)| Arc::clone(kind).as_any().downcast().ok()) {
            return known;
        }
        let new = Arc::<Registry<T>>::default();
        if kinds.closed {
            Registry::close(&new);
        }
        kinds.known.push((id, Arc::clone(&new) as Arc<dyn MembersOfKind>));
        new
    }

    pub(crate) fn all(&self) -> Vec<Arc<dyn Member>> {
        self.kinds().iter().flat_map(|kind| kind.all()).collect()
    }

    /// Passes the [news](Member::told_wanted) to the members of this name, of each kind. One of
    /// them may have the owner.
    pub(crate) fn told_wanted(&self, name: &str, owner: u64, is_wanted: bool, at: u64) {
        self.kinds().iter().for_each(|kind| kind.told_wanted(name, owner, is_wanted, at));
    }

    /// The names of the locks that a thread holds.
    pub(crate) fn held_by(&self, thread: &Thread) -> Vec<Name> {
        let mut held = self.all();
        held.retain(|it| it.is_held_by(thread));
        held.iter().map(|it| it.name().clone()).collect()
    }

    /// The members with names in these slots of a cluster. `slots` is sorted.
    pub(super) fn in_slots(&self, slots: &[u16]) -> Vec<Arc<dyn Member>> {
        let mut members = self.all();
        members.retain(|it| slots.binary_search(&slot_of(it.name().as_bytes())).is_ok());
        members
    }

    /// Drops the state of names that have not been used for a while.
    pub(super) fn sweep(&self) {
        self.kinds().iter().for_each(|kind| kind.sweep());
    }

    /// After this call, the state of a name is dropped together with the name's last handle.
    pub(super) fn close(&self) {
        self.kinds.lock().closed = true;
        self.kinds().iter().for_each(|kind| kind.close());
    }

    fn kinds(&self) -> Vec<Arc<dyn MembersOfKind>> {
        self.kinds.lock().known.iter().map(|(_, kind)| Arc::clone(kind)).collect()
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}
