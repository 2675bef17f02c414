//! The scripts of one kind of lock.

use std::sync::LazyLock;

use redlatch_client::Script;

/// The scripts of one kind of lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptSet {
    pub(super) acquire: &'static LazyLock<Script>,
    /// The same for a lock that most likely is held: it does not look first whether it is free.
    pub(super) acquire_held: &'static LazyLock<Script>,
    pub(super) try_acquire: &'static LazyLock<Script>,
    pub(super) release: &'static LazyLock<Script>,
    pub(super) give_up: &'static LazyLock<Script>,
    pub(super) force_unlock: &'static LazyLock<Script>,
}
