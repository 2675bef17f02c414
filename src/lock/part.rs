//! A part: a lock of one name, of any kind.

use std::sync::Arc;

use super::{Handle, Lock, Variant};

/// A lock of one name, which can be in a [`MultiLock`](crate::MultiLock) or have a
/// [`Condition`](crate::Condition).
pub(crate) trait Part: Lock {
    /// The kind of lock. A `MultiLock` of two kinds of lock with the same name would wait for
    /// itself.
    fn kind(&self) -> &'static str;

    fn handle(&self) -> &Handle;

    /// Whether each waiting thread has its own entry in Redis's queue.
    fn is_fair(&self) -> bool;

    fn varied_part(&self, variant: Variant) -> Arc<dyn Part>;
}

/// A lock, or a pointer to a lock: `&FairLock`, `&dyn Lock`, `Box<dyn Lock>`, or `&Box<dyn Lock>`.
///
/// ([`Lock`] is not implemented for pointers, since `with_lease` would have to return a pointer.)
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
