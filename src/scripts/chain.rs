//! The time for which redlatch's processes have had a lock among themselves. This file is pure, and
//! imports nothing of the crate: the random models of the scripts (`tests/models/`) compile it,
//! too.

/// The time since which redlatch's processes have had the lock without leaving it to Redisson's,
/// and the number of them, the holder included. (A chain is small, since each hold and each name
/// has one.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Chain {
    /// The clock of the start.
    pub(crate) clock: ChainClock,
    pub(crate) start: u64,
    pub(crate) count: u32,
}

/// The clock by which a chain's start is known. A process that was granted the lock by reply uses
/// its own clock: the server's would cost each uncontended lock a command.
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
/// The age up to which a chain is of no interest. It is AGE of `lua/hand_off.lua`. A release does
/// not send a younger chain: its two arguments cost the server as much as a command. So a chain may
/// count from up to 10 ms too late.
pub(super) const AGE: u64 = 10 * MS;

/// The start of a chain as a release sends it, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Since {
    Server(u64),
    Ago(u64),
}

impl Chain {
    /// The chain of a grant by message.
    pub(crate) fn received(start: u64, count: u64) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { clock: ChainClock::Servers, start, count }
    }

    /// The chain of this process alone, which was granted the lock by reply to a request of this
    /// time.
    pub(crate) const fn begun(asked_at: u64) -> Self {
        Self { clock: ChainClock::Ours, start: asked_at, count: 1 }
    }

    /// The start that a release at `now` sends. `None`: nothing.
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
