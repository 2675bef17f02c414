//! The participants: redlatch clients and Redisson clients, with their waiters and holds.

use std::collections::{HashMap, VecDeque};

use crate::simulated::wire::named;

/// The time after which a silent redlatch waiter counts as dead.
pub(crate) const FAIR_WAIT: i64 = 10_000;
/// The time between two keep-alives of a redlatch process for its waiters. A provisional lease is
/// longer than this time.
pub(crate) const PERIOD: i64 = 1_000;
/// By how much a keep-alive may be late.
pub(crate) const JITTER: i64 = 200;
/// The time that a Redisson waiter without a limit adds to the score of the previous waiter.
pub(crate) const REDISSON_WAIT: i64 = 300_000;
/// The maximum error of a Redisson client's clock. This error is less than `FAIR_WAIT - PERIOD -
/// JITTER`.
pub(crate) const CLOCK_OFFSET: i64 = 6_000;
/// If a waiter has sent nothing for this time while other waiters got replies, the scripts treat it
/// as silent. The scripts have the same value.
pub(crate) const SILENT: i64 = 2_000;
/// The lease of a client with a watchdog.
pub(crate) const WATCHDOG: i64 = 30_000;
/// The time for which the threads of a redlatch process pass a hold to each other without a
/// request.
pub(crate) const TURN: i64 = 200;
/// The provisional lease of a grant by message. The scripts have the same value.
pub(crate) const PROVISIONAL: i64 = 2_000;
/// The age at which a hold is raised to its lease. A failed raise is repeated after `RAISE_AGAIN`.
pub(crate) const RAISE: i64 = 50;
pub(crate) const RAISE_AGAIN: i64 = 400;
/// The time by which the deadline of a grant by message is earlier than the end of its lease.
pub(crate) const DRIFT: i64 = 2;

/// A redlatch process or a Redisson client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) is_ours: bool,
    /// Whether the client is Redisson 3.16.8.
    pub(crate) is_old: bool,
    uuid: String,
    /// The difference between the client's clock and the server's clock.
    pub(crate) clock_offset: i64,
    pub(crate) state: Run,
    /// The time since which the client has run without a pause and has sent keep-alives.
    pub(crate) well_since: Option<i64>,
    last_number: u64,
    pub(crate) keeps_alive: bool,
    /// The time of the client's last keep-alive for its waiters.
    pub(crate) last_sign: i64,
    pub(crate) deaf: bool,
    /// Whether a redlatch client has subscribed to its own channel.
    pub(crate) listens: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Going,
    StoppedUntil(i64),
    Dead,
}

impl Client {
    pub(crate) fn new(name: &str, is_ours: bool, clock_offset: i64) -> Self {
        let version = if is_ours { 8 } else { 4 };
        Self {
            is_ours,
            is_old: false,
            uuid: format!("{name:0>8}-0000-{version}000-8000-000000000000"),
            clock_offset,
            state: Run::Going,
            well_since: Some(0),
            last_number: 0,
            keeps_alive: false,
            last_sign: 0,
            deaf: false,
            listens: false,
        }
    }

    pub(crate) fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Whether the server has a subscriber of the client's channel.
    pub(crate) fn is_heard(&self) -> bool {
        self.listens && !self.deaf
    }

    /// Returns an owner whose number is higher than the numbers of all earlier owners.
    pub(crate) fn next_owner(&mut self) -> String {
        self.last_number += 1;
        let number = self.last_number;
        format!("{}:{}", self.uuid, if self.is_ours { named(number + 1) } else { number })
    }
}

/// A call of `lock`, `try_lock_for` or a similar method.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) owner: String,
    pub(crate) client: usize,
    pub(crate) phase: Phase,
    /// Whether this is a thread of a Redisson client that was interrupted. An interrupted thread
    /// does not remove its entries.
    pub(crate) interrupted: bool,
    /// The time that a Redisson waiter adds to scores and later subtracts.
    pub(crate) wait: i64,
    pub(crate) deadline: Option<i64>,
    pub(crate) lease: i64,
    pub(crate) watched: bool,
    /// How long the waiter keeps the lock.
    pub(crate) work: i64,
    /// For a redlatch waiter: the time of the first reply that it is in the queue.
    pub(crate) registered: Option<i64>,
    /// For a redlatch waiter: whether it tries once and does not wait.
    pub(crate) tries: bool,
    /// For a redlatch waiter: the waiters that came with it in the same request.
    pub(crate) company: Vec<usize>,
    /// Whether the waiter came in another waiter's request.
    pub(crate) is_company: bool,
    /// For a redlatch waiter: whether its first request is in flight. Until the reply, the waiter
    /// does nothing else.
    pub(crate) is_asking: bool,
    pub(crate) asked: u64,
    /// For a Redisson waiter: whether it sleeps without a time limit.
    pub(crate) sleeps: bool,
    /// For a redlatch waiter: whether a reply said that a Redisson client may wake it. If so, the
    /// waiter subscribes to its own channel.
    pub(crate) by_redisson: bool,
    pub(crate) listens: bool,
    /// For a redlatch waiter: the server's time of its last refusal. A grant from before this time
    /// has ended.
    pub(crate) refused: i64,
    /// For a redlatch waiter: whether it will soon send another request, even without a message.
    pub(crate) asks_soon: bool,

    // The following fields are for the rules about the waiter.
    /// The waiter's rank in the order of the first requests that the server received.
    pub(crate) rank: Option<u64>,
    /// Whether the waiter was granted the lock, or has left.
    pub(crate) served: bool,
    /// Whether the waiter was rightly dropped and has not come back.
    pub(crate) dropped: bool,
    pub(crate) came_back: bool,
    /// Whether the entry was lost because keys were deleted.
    pub(crate) place_lost: bool,
    /// For a Redisson waiter: the time at which its own wait begins.
    pub(crate) base: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Coming,
    Waiting,
    /// The waiter has the hold with this number.
    Holding(usize),
    Gone,
}

impl Waiter {
    pub(crate) fn number(&self) -> Option<u64> {
        self.owner.split_once(':')?.1.parse().ok()
    }
}

/// A hold of one owner in Redis. Threads of the process may pass the hold to each other.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) owner: String,
    pub(crate) begun: i64,
    pub(crate) ends: i64,
    /// Whether the hold was granted by a message and has not been raised to its lease.
    pub(crate) is_provisional: bool,
    pub(crate) followers: VecDeque<usize>,
    pub(crate) passed: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) clients: Vec<Client>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) by_owner: HashMap<String, usize>,
    pub(crate) holds: Vec<Hold>,
    /// The times at which Redisson waiters left the queue.
    pub(crate) redissons_left: Vec<i64>,
}

impl World {
    pub(crate) fn client_of(&self, waiter: usize) -> &Client {
        &self.clients[self.waiters[waiter].client]
    }

    pub(crate) fn is_ours(&self, waiter: usize) -> bool {
        self.client_of(waiter).is_ours
    }

    pub(crate) fn is_dead(&self, waiter: &Waiter) -> bool {
        waiter.interrupted || self.clients[waiter.client].state == Run::Dead
    }

    pub(crate) fn waiter(&self, owner: &str) -> &Waiter {
        &self.waiters[self.by_owner[owner]]
    }

    pub(crate) fn waiting_of(&self, client: usize) -> Vec<usize> {
        (0..self.waiters.len())
            .filter(|w| {
                self.waiters[*w].client == client && self.waiters[*w].phase == Phase::Waiting
            })
            .collect()
    }
}
