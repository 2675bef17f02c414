//! The scripts of one kind of lock.

use std::sync::LazyLock;

use redlatch_client::CachedScript;

#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptSet {
    pub(super) acquire: &'static LazyLock<CachedScript>,
    /// Like `acquire`, for a lock that is probably held: the script does not check first whether
    /// the lock is free.
    pub(super) acquire_held: &'static LazyLock<CachedScript>,
    pub(super) try_acquire: &'static LazyLock<CachedScript>,
    pub(super) release: &'static LazyLock<CachedScript>,
    pub(super) give_up: &'static LazyLock<CachedScript>,
    pub(super) force_unlock: &'static LazyLock<CachedScript>,
}
