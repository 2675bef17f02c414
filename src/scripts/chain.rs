//! The chain: for how long redlatch's processes have passed a lock among themselves. This file is
//! pure and imports nothing of the crate, since the random models of the scripts (`tests/models/`)
//! compile it, too.

/// The time since which redlatch's processes have had the lock without leaving it to Redisson's
/// clients, and the number of grants in that time, the present one included. (A chain is small,
/// since each hold and each name has one.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Chain {
    pub(crate) clock: ChainClock,
    pub(crate) start: u64,
    pub(crate) count: u32,
}

/// The clock of a chain's start. A process that was granted the lock by reply uses its own clock,
/// since a look at the server's clock would cost each uncontended lock a command.
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
/// A release does not send a chain younger than this: its two arguments would cost the server as
/// much as a command. So the next chain may begin up to 10 ms too late. It is AGE of
/// `lua/hand_off.lua`.
pub(super) const AGE: u64 = 10 * MS;

/// The start of a chain as a release sends it, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Since {
    Server(u64),
    Ago(u64),
}

impl Chain {
    pub(crate) fn received(start: u64, count: u64) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { clock: ChainClock::Servers, start, count }
    }

    /// A new chain, of a process that was granted the lock by the reply to a request of this time.
    pub(crate) const fn begun(asked_at: u64) -> Self {
        Self { clock: ChainClock::Ours, start: asked_at, count: 1 }
    }

    /// The start that a release at `now` sends. `None`: it sends no chain.
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
