//! The works that the bench measures.

use crate::clock::{MICROSECOND, MILLISECOND};
use crate::cores::Cores;
use crate::program::Program;
use crate::stores::Store;

/// A library, with its default settings or with tuned settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) key: &'static str,
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    pub(crate) store: Store,
}

const fn peer(key: &'static str, name: &'static str, program: Program) -> Peer {
    Peer { key, name, program, store: Store::Redis }
}

const fn kept_in(store: Store, peer: Peer) -> Peer {
    Peer { store, ..peer }
}

/// The peer with which all other peers are compared.
pub(crate) const OURS: Peer = peer("redlatch", "redlatch", Program::Rust);
const DROP: Peer = peer("redlatch-drop", "redlatch, `drop`", Program::Rust);
const BUSY: Peer = peer("redlatch-busy", "redlatch, `busy_poll`", Program::Rust);
const BUSY_DROP: Peer = peer("redlatch-busy-drop", "redlatch, `busy_poll`, `drop`", Program::Rust);
const REDISSON: Peer = peer("redisson", "Redisson", Program::Java);
const REDISLOCK: Peer = peer("redislock", "redislock, retry 100 ms", Program::Go);
const REDISLOCK_1: Peer = peer("redislock-1ms", "redislock, retry 1 ms", Program::Go);
const REDSYNC: Peer = peer("redsync", "redsync", Program::Go);
const REDSYNC_1: Peer = peer("redsync-1ms", "redsync, retry 1 ms", Program::Go);
const RUEIDIS: Peer = peer("rueidislock", "rueidislock", Program::Go);
const RUEIDIS_1: Peer = peer("rueidislock-one", "rueidislock, `KeyMajority` 1", Program::Go);
const POSTGRES: Peer =
    kept_in(Store::Postgres, peer("postgres", "Postgres advisory lock", Program::Go));
const POSTGRES_1: Peer =
    kept_in(Store::Postgres, peer("postgres-1ms", "Postgres, try every 1 ms", Program::Go));
const ETCD: Peer = kept_in(Store::Etcd, peer("etcd", "etcd mutex", Program::Go));
const PYTHON: Peer = peer("python-redis-lock", "python-redis-lock", Program::Python);
const NODE: Peer = peer("redlock", "node-redlock", Program::Node);
const NODE_1: Peer = peer("redlock-1ms", "node-redlock, retry 1 ms", Program::Node);
const RLOCK: Peer = peer("rlock", "rlock", Program::Rust);
const RLOCK_1: Peer = peer("rlock-1ms", "rlock, retry 1 ms", Program::Rust);
const RSLOCK: Peer = peer("rslock", "rslock", Program::Rust);
const RSLOCK_1: Peer = peer("rslock-1ms", "rslock, retry 1 ms", Program::Rust);

const DEFAULTS: &[Peer] = &[
    OURS, DROP, REDISSON, REDISLOCK, REDSYNC, RUEIDIS, RUEIDIS_1, PYTHON, NODE, RLOCK, RSLOCK,
    POSTGRES, ETCD,
];
/// The peers for works with polling. A polling thread keeps the server waiting if both share a
/// core.
const POLLED: &[Peer] = &[
    OURS, BUSY, DROP, BUSY_DROP, REDISSON, REDISLOCK, REDSYNC, RUEIDIS, RUEIDIS_1, PYTHON, NODE,
    RLOCK, RSLOCK, POSTGRES, ETCD,
];
const ALL: &[Peer] = &[
    OURS,
    DROP,
    REDISSON,
    REDISLOCK,
    REDISLOCK_1,
    REDSYNC,
    REDSYNC_1,
    RUEIDIS,
    RUEIDIS_1,
    PYTHON,
    NODE,
    NODE_1,
    RLOCK,
    RLOCK_1,
    RSLOCK,
    RSLOCK_1,
    POSTGRES,
    POSTGRES_1,
    ETCD,
];
/// The machine does not have enough memory for 64 Java virtual machines.
const MANY: &[Peer] = &[
    OURS,
    DROP,
    REDISLOCK_1,
    REDSYNC_1,
    RUEIDIS,
    RUEIDIS_1,
    PYTHON,
    NODE_1,
    RLOCK,
    RLOCK_1,
    RSLOCK_1,
    POSTGRES,
    POSTGRES_1,
    ETCD,
];
const WAITING: &[Peer] = &[
    OURS,
    REDISSON,
    REDISLOCK,
    REDISLOCK_1,
    REDSYNC,
    RUEIDIS,
    PYTHON,
    NODE,
    RLOCK,
    RLOCK_1,
    RSLOCK_1,
    POSTGRES,
    ETCD,
];
const KILLED: &[Peer] =
    &[OURS, REDISSON, REDISLOCK_1, REDSYNC, RUEIDIS, PYTHON, NODE, RLOCK_1, POSTGRES, ETCD];
const FAR: &[Peer] = &[OURS, REDISSON, REDISLOCK, REDISLOCK_1, REDSYNC_1, PYTHON, RLOCK_1];

/// Returns whether this peer is redlatch, with any settings.
pub(crate) fn is_ours(peer: &str) -> bool {
    peer.starts_with(OURS.key)
}

/// The kinds of figures of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figures {
    /// The figures of locks that no other thread wants.
    Pairs,
    /// The figures of one name that all threads want.
    Contended,
    /// The times from a release to the next grant, or from a count-down to the end of the wait.
    Events,
    /// The waits from the intended starts.
    Waits,
    /// The times of recovery from a kill.
    Kills,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    /// The name of the work in the drivers.
    pub(crate) kind: &'static str,
    pub(crate) figures: Figures,
    pub(crate) peers: &'static [Peer],
    pub(crate) processes: usize,
    pub(crate) threads: u64,
    pub(crate) own: bool,
    pub(crate) cores: Cores,
    /// Whether the round trip to the server takes 1 ms.
    pub(crate) far: bool,
    pub(crate) inside: u64,
    /// The longest time by which a turn exceeds `inside`.
    pub(crate) spread: u64,
    pub(crate) rest: u64,
    /// The length of a round, as a multiple of the usual length.
    pub(crate) length: f64,
    /// The number of threads that may hold the lock at a time. Zero stands for many readers or one
    /// writer.
    pub(crate) places: usize,
}

const LOCK: Work = Work {
    key: "",
    title: "",
    kind: "lock",
    figures: Figures::Contended,
    peers: ALL,
    processes: 1,
    threads: 1,
    own: false,
    cores: Cores::Any,
    far: false,
    inside: 3 * MICROSECOND,
    spread: 0,
    rest: 0,
    length: 1.0,
    places: 1,
};
const PAIR: Work =
    Work { figures: Figures::Pairs, peers: DEFAULTS, own: true, inside: 0, length: 0.7, ..LOCK };
const BESIDE_REDISSON: Work = Work { peers: &[OURS, REDISSON], ..LOCK };

pub(crate) const WORKS: &[Work] = &[
    Work {
        key: "pair-one",
        title: "One thread, own name, client and server on one core",
        cores: Cores::One,
        ..PAIR
    },
    Work {
        key: "pair-two",
        title: "One thread, own name, client and server on two cores",
        cores: Cores::Two,
        peers: POLLED,
        ..PAIR
    },
    Work { key: "own-32", title: "32 threads, own names", threads: 32, peers: POLLED, ..PAIR },
    Work { key: "1x8", title: "One process of 8 threads, one name", threads: 8, ..LOCK },
    Work {
        key: "4x8",
        title: "4 processes of 8 threads, one name",
        processes: 4,
        threads: 8,
        ..LOCK
    },
    Work {
        key: "2x1",
        title: "2 processes of one thread, one name, client and server on one core",
        processes: 2,
        cores: Cores::One,
        ..LOCK
    },
    Work { key: "16x1", title: "16 processes of one thread, one name", processes: 16, ..LOCK },
    Work {
        key: "64x1",
        title: "64 processes of one thread, one name",
        peers: MANY,
        processes: 64,
        ..LOCK
    },
    Work {
        key: "hand-over",
        title: "Hand-over between two processes, each holds 1.5 to 2.5 ms",
        figures: Figures::Events,
        processes: 2,
        // The holds differ in length: equal holds would all end at the same point of a polling
        // peer's sleep.
        inside: 3 * MILLISECOND / 2,
        spread: MILLISECOND,
        rest: MILLISECOND,
        length: 2.0,
        ..LOCK
    },
    Work {
        key: "4x8-far",
        title: "4 processes of 8 threads, one name, 1 ms away",
        peers: FAR,
        processes: 4,
        threads: 8,
        far: true,
        ..LOCK
    },
    Work {
        key: "16x1-far",
        title: "16 processes of one thread, one name, 1 ms away",
        peers: FAR,
        processes: 16,
        far: true,
        ..LOCK
    },
    Work {
        key: "fair-1x8",
        title: "Fair lock, one process of 8 threads",
        kind: "fair",
        threads: 8,
        ..BESIDE_REDISSON
    },
    Work {
        key: "fair-4x8",
        title: "Fair lock, 4 processes of 8 threads",
        kind: "fair",
        processes: 4,
        threads: 8,
        ..BESIDE_REDISSON
    },
    Work {
        key: "read-write",
        title: "Read-write lock, 4 processes of 4 threads, every eighth turn writes",
        kind: "rw",
        peers: &[OURS, REDISSON, RLOCK, RLOCK_1],
        processes: 4,
        threads: 4,
        places: 0,
        ..LOCK
    },
    Work {
        key: "semaphore",
        title: "Semaphore of 3, one process of 16 threads",
        kind: "semaphore",
        threads: 16,
        places: 3,
        ..BESIDE_REDISSON
    },
    Work {
        key: "latch",
        title: "Latch, from the last count-down to a waiter in another process",
        kind: "latch",
        figures: Figures::Events,
        processes: 2,
        inside: 10 * MILLISECOND,
        length: 4.0,
        ..BESIDE_REDISSON
    },
    Work {
        key: "waits",
        title: "16 processes come at random, 10 times a second each, and hold 2 ms",
        figures: Figures::Waits,
        peers: WAITING,
        processes: 16,
        inside: 2 * MILLISECOND,
        length: 5.0,
        ..LOCK
    },
    Work {
        key: "kills",
        title: "4 processes hold 5 ms and rest 10 ms; a holder, then a waiter, is killed; leases of 5 s",
        figures: Figures::Kills,
        peers: KILLED,
        processes: 4,
        inside: 5 * MILLISECOND,
        rest: 10 * MILLISECOND,
        ..LOCK
    },
];
