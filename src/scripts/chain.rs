//! For how long redlatch's processes have had a lock among themselves. This file is pure, and
//! imports nothing of the crate: the random models of the scripts (`tests/model/`) compile it, too.

/// Since when redlatch's processes have had the lock without leaving it to Redisson's, and how many
/// of them, the holder included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Chain {
    pub(crate) start: Start,
    pub(crate) count: u64,
}

/// When a chain began. A process granted the lock by reply counts by its own clock: the server's
/// would cost each uncontended lock a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Start {
    #[default]
    Unknown,
    /// By the server's clock, in ms, from a grant by message.
    Server(u64),
    /// By the process's own clock, in nanoseconds.
    Here(u64),
}

const MS: u64 = 1_000_000;
/// A younger chain is of no interest yet. As AGE of `lua/hand_off.lua`. The release does not tell
/// of it: the two arguments cost the server as much as a command. So a chain may count from up to
/// 10 ms too late.
pub(super) const AGE: u64 = 10 * MS;

/// When a chain began, as a release says it, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Since {
    Server(u64),
    Ago(u64),
}

impl Start {
    /// What a release says at `now`. `None`: nothing.
    #[inline]
    pub(crate) fn since(self, now: impl FnOnce() -> u64) -> Option<Since> {
        match self {
            Self::Unknown => None,
            Self::Server(at) => Some(Since::Server(at)),
            Self::Here(at) => {
                let age = now().saturating_sub(at);
                (age >= AGE).then_some(Since::Ago(age / MS))
            }
        }
    }
}
