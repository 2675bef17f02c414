//! The settings to explore, and the known bugs that the exploration must find.

use super::process::Flaw;
use super::server::{Bug, Kind};
use super::world::{ALL, Fault, Setting};

const LOCK: Setting = Setting {
    kind: Kind::Lock,
    processes: &[true, true],
    acquisitions: 1,
    listen: true,
    faults: 1,
    allowed: ALL,
    tick: 1_001,
    lease: 3_000,
    gives_up: false,
    java: false,
    bug: None,
    flaw: None,
};
const THREE: Setting = Setting { processes: &[true; 3], ..LOCK };
const FENCED: Setting = Setting { kind: Kind::Fenced, ..LOCK };
/// Two readers and a writer.
const SHARED: Setting = Setting { kind: Kind::ReadWrite, processes: &[false, false, true], ..LOCK };

/// The settings that a usual run explores completely.
pub(crate) const SMALL: &[(&str, Setting)] = &[
    ("lock: 2 processes, 1 acquisition each, 1 fault", LOCK),
    (
        "fenced lock: 2 processes, 2 acquisitions each, no fault",
        Setting { acquisitions: 2, faults: 0, ..FENCED },
    ),
    ("lock: 3 processes, 1 acquisition each, no fault", Setting { faults: 0, ..THREE }),
];

/// More settings. A run with `REDLATCH_LONG` explores them completely or up to a bound.
pub(crate) const LARGE: &[(&str, Setting)] = &[
    (
        "read-write lock: 2 readers and a writer, 1 acquisition each, no fault",
        Setting { faults: 0, ..SHARED },
    ),
    (
        "lock: 2 processes that subscribe and may give up, 1 acquisition each, 1 fault",
        Setting { gives_up: true, ..SUBSCRIBES },
    ),
    (
        "lock: 2 processes and a client of Redisson's, 1 acquisition each, 1 fault",
        Setting { java: true, ..LOCK },
    ),
    ("lock: 2 processes, 2 acquisitions each, 1 fault", Setting { acquisitions: 2, ..LOCK }),
    ("lock: 2 processes, 1 acquisition each, 2 faults", Setting { faults: 2, ..LOCK }),
    (
        "fenced lock: 2 processes that may give up, 3 acquisitions each, 2 faults",
        Setting { acquisitions: 3, faults: 2, gives_up: true, ..FENCED },
    ),
    (
        "lock: 3 processes, 3 acquisitions each, 2 faults",
        Setting { acquisitions: 3, faults: 2, ..THREE },
    ),
    (
        "read-write lock: 2 readers and a writer, 3 acquisitions each, 2 faults",
        Setting { acquisitions: 3, faults: 2, ..SHARED },
    ),
    (
        "lock: 2 processes, 1 acquisition each, 1 fault, in steps of half a second",
        Setting { tick: 501, ..LOCK },
    ),
];

/// A known bug, and a setting in which an exploration finds it.
pub(crate) struct Mutant {
    pub(crate) what: &'static str,
    pub(crate) setting: Setting,
}

const fn server(what: &'static str, bug: Bug, setting: Setting) -> Mutant {
    Mutant { what, setting: Setting { bug: Some(bug), ..setting } }
}

const fn client(what: &'static str, flaw: Flaw, setting: Setting) -> Mutant {
    Mutant { what, setting: Setting { flaw: Some(flaw), ..setting } }
}

const SUBSCRIBES: Setting = Setting { listen: false, ..LOCK };
const GIVES_UP: Setting = Setting { gives_up: true, ..LOCK };
const KILL: Setting = Setting { allowed: &[Fault::Kill], ..THREE };
const CLOCK: Setting = Setting { allowed: &[Fault::ClockForward], ..LOCK };
const SLOW: Setting = Setting { faults: 2, allowed: &[Fault::SlowReply, Fault::Stop], ..LOCK };
/// A reader is paused, its own lease ends, and another reader keeps the lock.
const HOLE: Setting = Setting { allowed: &[Fault::Stop], ..SHARED };

pub(crate) const MUTANTS: &[Mutant] = &[
    server("a release without a look at the owner", Bug::ReleaseOfAnother, LOCK),
    server("a lock taken though it is held", Bug::TakenThoughHeld, LOCK),
    server("a grant without its message", Bug::GrantWithoutMessage, LOCK),
    server("a second place", Bug::SecondPlace, LOCK),
    server("a release grants nobody", Bug::ReleaseGrantsNobody, LOCK),
    server("an owner that asks drops those before it", Bug::AskerGrantsNobody, KILL),
    server("an owner that gives up stays in the queue", Bug::PlaceAfterGivingUp, GIVES_UP),
    server("an owner that gives up keeps the lock", Bug::KeptAfterGivingUp, GIVES_UP),
    server("a grant to the dead", Bug::GrantToTheDead, SUBSCRIBES),
    server("tokens that the server does not count", Bug::TokensNotCounted, FENCED),
    server("a copy that comes late cuts the lease", Bug::LeaseCutByCopy, LOCK),
    server("a renewal of what is not held", Bug::RenewedThoughNotHeld, CLOCK),
    server("a renewal that does not raise the lease", Bug::RenewedInWords, LOCK),
    server("a writer beside readers", Bug::WriterBesideReaders, SHARED),
    server("a reader beside a writer", Bug::ReaderBesideWriter, SHARED),
    server("the first reader that leaves frees the lock", Bug::FirstReaderFrees, SHARED),
    server("a reader's lapsed timeout is not made anew", Bug::LapsedTimeoutStays, HOLE),
    client("a deadline counted from the receipt", Flaw::CountsFromReceipt, LOCK),
    client("a deadline counted from the reply", Flaw::CountsFromReply, SLOW),
    client("a deadline past the lease", Flaw::PastTheLease, LOCK),
    client("the messages are read before the reply", Flaw::ReadsTooEarly, LOCK),
    client("a wait that ends leaves its place", Flaw::LeavesPlace, GIVES_UP),
    client("a copy that comes late is not undone", Flaw::NothingLater, GIVES_UP),
    client("a loss that is not told", Flaw::TellsNoLoss, LOCK),
    client("nobody asks but after a message", Flaw::NeverPolls, LOCK),
];

/// The bugs that show in a single request. The comparison with the real server must find them.
pub(crate) const DIFFERENCES: &[(Kind, Bug)] = &[
    (Kind::Lock, Bug::ReleaseOfAnother),
    (Kind::Lock, Bug::NobodyIsSilent),
    (Kind::Lock, Bug::AllAreSilent),
    (Kind::Lock, Bug::TakenInWindow),
    (Kind::Lock, Bug::NobodyToldOfWindow),
    (Kind::Fenced, Bug::TokensNotCounted),
    (Kind::ReadWrite, Bug::LapsedTimeoutStays),
    (Kind::ReadWrite, Bug::ReaderPassesWriter),
    (Kind::ReadWrite, Bug::OnlyFirstReader),
];
