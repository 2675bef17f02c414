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

/// The parts of a [`Lock`], opaque to other crates.
#[derive(Debug)]
pub struct Parts(pub(crate) Vec<Arc<dyn Part>>);
