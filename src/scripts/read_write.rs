//! The scripts of a read-write lock. These scripts have the same replies as the scripts of a plain
//! lock, so `lock.rs` has the functions.

use std::sync::LazyLock;

use redlatch_client::CachedScript;

use super::script_set::ScriptSet;

static ACQUIRE: LazyLock<CachedScript> = script!(takes; NUMBER_OR_LIST;
    "read_write/free.lua",
    READ_WRITE,
    "read_write/acquire.lua"
);
static TRY: LazyLock<CachedScript> =
    script!(takes; NUMBER_OR_LIST; "read_write/free.lua", READ_WRITE, "read_write/try.lua");
static RELEASE: LazyLock<CachedScript> = script!(NUMBER;
    "read_write/release_uncontended.lua",
    READ_WRITE,
    "lock/release.lua"
);
static GIVE_UP: LazyLock<CachedScript> = script!(NUMBER; READ_WRITE, "lock/give_up.lua");
static FORCE_UNLOCK: LazyLock<CachedScript> =
    script!(NUMBER; READ_WRITE, "read_write/force_unlock.lua");
pub(super) static STATE: LazyLock<CachedScript> =
    script!(NUMBER_OR_LIST; READ_WRITE, "read_write/state.lua");
pub(super) static READ_ON: LazyLock<CachedScript> =
    script!(NUMBER_OR_LIST; READ_WRITE, "read_write/read_on.lua");

pub(super) static SCRIPTS: ScriptSet = ScriptSet {
    acquire: &ACQUIRE,
    acquire_held: &ACQUIRE,
    try_acquire: &TRY,
    release: &RELEASE,
    give_up: &GIVE_UP,
    force_unlock: &FORCE_UNLOCK,
};
