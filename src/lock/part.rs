//! A part: a lock of one name, of any kind.

use std::sync::Arc;

use super::{Handle, Lock, Variant};

/// A lock of one name: one of several in a [`MultiLock`](crate::MultiLock), or that of a
/// [`Condition`](crate::Condition).
pub(crate) trait Part: Lock {
    /// The kind of lock. Two kinds of one name are two locks that get in each other's way.
    fn kind(&self) -> &'static str;

    fn handle(&self) -> &Handle;

    /// Whether each of its threads stands in Redis's queue for itself.
    fn is_fair(&self) -> bool;

    /// The same lock with this difference.
    fn varied_part(&self, variant: Variant) -> Arc<dyn Part>;
}

/// A lock, or a pointer to one: `&FairLock`, `&dyn Lock`, `Box<dyn Lock>`, and `&Box<dyn Lock>`, as a
/// list has them.
///
/// ([`Lock`] is not implemented for pointers, so that `with_lease` and the others need not make one.)
pub trait AsLock {
    fn as_lock(&self) -> &dyn Lock;
}

impl AsLock for dyn Lock + '_ {
    fn as_lock(&self) -> &dyn Lock {
        self
    }
}

macro_rules! as_lock {
    ($($pointer:ty),+) => {
        $(impl<L: AsLock + ?Sized> AsLock for $pointer {
            fn as_lock(&self) -> &dyn Lock {
                (**self).as_lock()
            }
        })+
    };
}

as_lock!(&L, Box<L>, Arc<L>);

/// The parts of a [`Lock`], opaque to other crates.
#[derive(Debug)]
pub struct Parts(pub(crate) Vec<Arc<dyn Part>>);
