//! The scripts of one kind of lock.

use std::sync::LazyLock;

use redlatch_client::Script;

#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptSet {
    pub(super) acquire: &'static LazyLock<Script>,
    /// Like `acquire`, for a lock that is probably held: the script does not check first whether
    /// the lock is free.
    pub(super) acquire_held: &'static LazyLock<Script>,
    pub(super) try_acquire: &'static LazyLock<Script>,
    pub(super) release: &'static LazyLock<Script>,
    pub(super) give_up: &'static LazyLock<Script>,
    pub(super) force_unlock: &'static LazyLock<Script>,
}
