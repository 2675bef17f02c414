//! For how long redlatch's processes have had a lock among themselves. This file is pure, and
//! imports nothing of the crate: the random models of the scripts (`tests/models/`) compile it, too.

/// Since when redlatch's processes have had the lock without leaving it to Redisson's, and how many
/// of them, the holder included. (Small: each hold and each name has one.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Chain {
    /// By this clock.
    pub(crate) clock: ChainClock,
    pub(crate) start: u64,
    pub(crate) count: u32,
}

/// The clock by which a chain's start is known. A process granted the lock by reply counts by its
/// own: the server's would cost each uncontended lock a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ChainClock {
    /// The start is not known.
    #[default]
    Nobodys,
    /// In ms, from a grant by message.
    Servers,
    /// In nanoseconds.
    Ours,
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

impl Chain {
    /// The chain that a grant by message names.
    pub(crate) fn told(start: u64, count: u64) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { clock: ChainClock::Servers, start, count }
    }

    /// The chain of this process alone, granted the lock by reply to a request of this time.
    pub(crate) const fn begun(asked_at: u64) -> Self {
        Self { clock: ChainClock::Ours, start: asked_at, count: 1 }
    }

    /// What a release says at `now` about its start. `None`: nothing.
    #[inline]
    pub(crate) fn since(self, now: impl FnOnce() -> u64) -> Option<Since> {
        match self.clock {
            ChainClock::Nobodys => None,
            ChainClock::Servers => Some(Since::Server(self.start)),
            ChainClock::Ours => {
                let age = now().saturating_sub(self.start);
                (age >= AGE).then_some(Since::Ago(age / MS))
            }
        }
    }
}
