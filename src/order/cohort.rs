//! Lock cohorting: how long the threads of one process keep a lock among themselves.
//!
//! If one thread of a process passes the lock to another, no request is needed. Without a time
//! limit, the threads of one process could keep the lock, and other processes would starve. So each
//! process has the lock for a limited time, its *turn*, and then hands the lock to the next
//! process. If more processes wait, a turn is shorter: even the last of sixteen waiting processes
//! gets the lock in less than a second.
//!
//! Like `ask/entry.rs`, this file has no clock, no mutex and no I/O.

use crate::scripts::{Chain, ChainClock};

/// The time in which each waiting process should get one turn.
const ROUND: u64 = 20_000_000;
const SHORTEST_TURN: u64 = 1_000_000;
/// The maximum length of a turn. When this time has passed since the server's grant, no thread
/// passes the lock on.
const LONGEST_TURN: u64 = 10_000_000;
/// For this time after the grant, threads may join a shared hold without a request.
const JOINED: u64 = 3_000_000;
/// A chain is a series of grants to redlatch's processes, without a turn for Redisson's clients. If
/// a process takes the lock again within this time, the chain of its last hold continues.
const SAME_CHAIN: u64 = 10_000_000;

/// One process's turn with one name. Times are nanoseconds on the process's own clock.
#[derive(Debug, Default)]
pub(crate) struct Cohort {
    turn: Option<Turn>,
    /// The time at which the last hold was released, and the chain of that hold.
    last: Option<(u64, Chain)>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    /// The time of the grant of the turn's hold. For a grant by reply, the time of the request.
    began: u64,
    /// The number of other processes that waited at the time of the grant.
    places: u32,
}

impl Turn {
    fn length(self) -> u64 {
        (ROUND / (u64::from(self.places) + 1)).clamp(SHORTEST_TURN, LONGEST_TURN)
    }
}

impl Cohort {
    /// Begins a turn with a hold that the server granted at `at`.
    pub(crate) fn begin_turn(&mut self, at: u64, places: u32) {
        self.turn = Some(Turn { began: at, places });
    }

    /// Whether the process is still in its turn, so that a thread may pass the hold to another
    /// thread.
    pub(super) fn may_pass(&self, now: u64) -> bool {
        self.turn.is_some_and(|turn| now.saturating_sub(turn.began) <= turn.length())
    }

    /// Whether a thread may join a shared hold without a request. Threads may join only in the
    /// first part of a turn. A writer in another process has to wait for this part and for the last
    /// reader.
    pub(super) fn may_join(&self, now: u64) -> bool {
        self.turn.is_some_and(|turn| now.saturating_sub(turn.began) <= JOINED)
    }

    pub(crate) fn note_release(&mut self, now: u64, chain: Chain) {
        self.turn = None;
        self.last = Some((now, chain));
    }

    /// Whether this process has just released a hold that another process handed to it. If so,
    /// another process most likely has the lock now.
    pub(crate) fn has_just_relayed(&self, now: u64) -> bool {
        self.last.is_some_and(|(end, chain)| {
            chain.clock == ChainClock::Server && now.saturating_sub(end) < SAME_CHAIN
        })
    }

    /// Records that the release ended the chain: a window is open, or no Redisson client waits.
    pub(crate) fn end_chain(&mut self) {
        self.last = None;
    }

    /// Returns the chain of a hold that the server granted in the reply to a request of `asked_at`.
    /// The chain of the last hold continues if the lock was free for less than [`SAME_CHAIN`],
    /// because Redisson's clients had no turn in so short a time.
    ///
    /// A release does not send a chain that is younger than `SAME_CHAIN`, so the next process
    /// begins a new chain. If two processes began new chains again and again, Redisson's clients
    /// would never get a turn. So a young chain continues if the lock was free for less than twice
    /// [`SAME_CHAIN`].
    pub(crate) fn chain(&self, asked_at: u64) -> Chain {
        let anew = Chain::begun(asked_at);
        let Some((end, chain)) = self.last else { return anew };
        let is_young = end.saturating_sub(chain.start) < SAME_CHAIN;
        let same = match chain.clock {
            ChainClock::Unknown => return anew,
            ChainClock::Process if is_young => 2 * SAME_CHAIN,
            ChainClock::Process | ChainClock::Server => SAME_CHAIN,
        };
        if asked_at.saturating_sub(end) >= same {
            return anew;
        }
        Chain { count: chain.count.saturating_add(1), ..chain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_ten_milliseconds_at_most() {
        let mut cohort = Cohort::default();
        assert!(!cohort.may_pass(0), "nobody was granted anything");
        cohort.begin_turn(5, 0);
        assert!(cohort.may_pass(5 + LONGEST_TURN));
        assert!(!cohort.may_pass(5 + LONGEST_TURN + 1));
        cohort.note_release(6, Chain::default());
        assert!(!cohort.may_pass(6));
    }

    #[test]
    fn the_more_wait_the_shorter_is_a_turn() {
        let mut cohort = Cohort::default();
        for (places, length) in [(3, ROUND / 4), (15, ROUND / 16), (1_000, SHORTEST_TURN)] {
            cohort.begin_turn(0, places);
            assert!(cohort.may_pass(length));
            assert!(!cohort.may_pass(length + 1));
        }
    }

    #[test]
    fn a_chain_goes_on_until_another_client_is_let_in() {
        let mut cohort = Cohort::default();
        let first = Chain::begun(7);
        assert_eq!(cohort.chain(7), first);
        let old = 7 + SAME_CHAIN;
        for (chain, end) in [(first, old), (Chain::received(3, 1), 10)] {
            cohort.note_release(end, chain);
            let late = end + SAME_CHAIN;
            assert_eq!(cohort.chain(late - 1), Chain { count: 2, ..chain });
            assert_eq!(cohort.chain(late), Chain::begun(late));
        }
        cohort.end_chain();
        assert_eq!(cohort.chain(11), Chain::begun(11));
    }

    #[test]
    fn a_process_takes_turns_while_others_hand_it_the_lock() {
        let mut cohort = Cohort::default();
        assert!(!cohort.has_just_relayed(0), "nobody had it");
        cohort.note_release(5, Chain::begun(1));
        assert!(!cohort.has_just_relayed(6), "granted by reply: the lock was free");
        cohort.note_release(5, Chain::received(1, 1));
        assert!(
            cohort.has_just_relayed(4 + SAME_CHAIN) && !cohort.has_just_relayed(5 + SAME_CHAIN)
        );
        cohort.end_chain();
        assert!(!cohort.has_just_relayed(6));
    }

    /// Two processes take turns with the lock, and each turn is too short for the release to send
    /// the chain.
    #[test]
    fn a_chain_that_no_release_named_goes_on_for_twice_as_long() {
        let mut cohort = Cohort::default();
        let (first, end) = (Chain::begun(7), 6 + SAME_CHAIN);
        cohort.note_release(end, first);
        let late = end + 2 * SAME_CHAIN;
        assert_eq!(cohort.chain(late - 1), Chain { count: 2, ..first });
        assert_eq!(cohort.chain(late), Chain::begun(late));
    }
}
