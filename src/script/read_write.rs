//! The scripts of a read-write lock. Their replies are those of a lock: `lock.rs` has the functions.

use std::sync::LazyLock;

use super::lock::Scripts;
use crate::connection::Script;

macro_rules! script {
    ($file:literal $(, behind $shortcut:literal)?) => {
        LazyLock::new(|| {
            Script::new(concat!(
                $(include_str!(concat!("../../lua/read_write/", $shortcut)),)?
                include_str!("../../lua/hand_off.lua"),
                include_str!("../../lua/read_write/holders.lua"),
                include_str!(concat!("../../lua/read_write/", $file)),
            ))
        })
    };
}

static ACQUIRE: LazyLock<Script> = script!("acquire.lua", behind "free.lua");
static TRY: LazyLock<Script> = script!("try.lua", behind "free.lua");
static RELEASE: LazyLock<Script> = script!("release.lua", behind "unwanted.lua");
static GIVE_UP: LazyLock<Script> = script!("give_up.lua");
static FORCE_UNLOCK: LazyLock<Script> = script!("force_unlock.lua");
pub(super) static STAY: LazyLock<Script> = script!("stay.lua");

pub(super) static SCRIPTS: Scripts = Scripts {
    acquire: &ACQUIRE,
    try_acquire: &TRY,
    release: &RELEASE,
    give_up: &GIVE_UP,
    force_unlock: &FORCE_UNLOCK,
};

/// See [`super::prepare`].
pub(super) fn prepare() {
    for script in [&ACQUIRE, &TRY, &RELEASE, &GIVE_UP, &FORCE_UNLOCK, &STAY] {
        LazyLock::force(script);
    }
}
