//! A chain: how long redlatch's processes have passed a lock to each other. This file is pure and
//! imports nothing from the crate, because the models of the scripts (`tests/models/`) compile it,
//! too.

/// The time at which redlatch's processes began to pass the lock to each other, and the number of
/// grants since then, including the present grant. In a window, only Redisson's clients take the
/// lock; a window ends the chain. A chain must be small, because each hold and each name has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Chain {
    pub(crate) clock: ChainClock,
    pub(crate) start: u64,
    pub(crate) count: u32,
}

/// The clock of a chain's start. A process that got the lock in a reply uses its own clock. To read
/// the server's clock would cost one more command for each uncontended lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ChainClock {
    /// The start is unknown.
    #[default]
    Unknown,
    /// The server's clock, in ms, from the message of a grant.
    Server,
    /// In nanoseconds.
    Process,
}

const MS: u64 = 1_000_000;
/// The same time as `MIN_CHAIN_AGE` in `lua/hand_off.lua`. A release does not send a younger chain,
/// because the two additional arguments would cost the server as much as a command. So the next
/// chain may begin up to 10 ms too late.
pub(super) const MIN_CHAIN_AGE: u64 = 10 * MS;

/// The start of a chain as a release sends it, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ChainStart {
    At(u64),
    Age(u64),
}

impl Chain {
    pub(crate) fn received(start: u64, count: u64) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { clock: ChainClock::Server, start, count }
    }

    /// Returns a new chain for a process that sent its request at `asked_at` and got the lock in
    /// the reply.
    pub(crate) const fn begun(asked_at: u64) -> Self {
        Self { clock: ChainClock::Process, start: asked_at, count: 1 }
    }

    /// Returns the start that a release at `now` sends, or `None` if the release sends no chain.
    #[inline]
    pub(crate) fn start_to_send(self, now: impl FnOnce() -> u64) -> Option<ChainStart> {
        match self.clock {
            ChainClock::Unknown => None,
            ChainClock::Server => Some(ChainStart::At(self.start)),
            ChainClock::Process => {
                let age = now().saturating_sub(self.start);
                (age >= MIN_CHAIN_AGE).then_some(ChainStart::Age(age / MS))
            }
        }
    }
}
