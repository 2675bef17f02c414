//! Speed and cost of the fair, fenced and read-write lock, the semaphores, the count-down latch,
//! the barrier, several locks, conditions, holders that are notified of waiters, and locks that
//! replicas acknowledge. The bench compares them with plain implementations of Redisson's
//! algorithms. Run it with `cargo bench --bench family`, and add `-- --help` for the options. A
//! full run takes about three minutes.
//!
//! `../table/main.rs`, whose modules this program uses, says how the figures are measured and how
//! to read the tables. All figures are unpinned, unless a table says otherwise.
//!
//! - **Too many inside**: each holder of a lock checks whether it is still alone. There is one file
//!   for each permit, and each holder of a permit takes one of these files. The strictest check
//!   comes before the measurement, when all threads sleep inside for a while.
//! - **Order**: the waiters come one by one, each after the server has the previous waiter in its
//!   queue. So the first grants of all waiters must come in the order of the waiters.
//! - **Round trips**: compare a latch with the round trips of `two cores`. Without pinning, the
//!   system often puts the two ends of a PING on one core. A latch has three ends.

// An error ends the bench.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;

// This program uses only some items of these modules.
#[allow(dead_code)]
#[path = "../table/calls.rs"]
mod calls;
#[allow(dead_code)]
#[path = "../table/cell.rs"]
mod cell;
#[allow(dead_code)]
#[path = "../table/clock.rs"]
mod clock;
#[path = "../table/contest.rs"]
mod contest;
#[path = "../table/cores.rs"]
mod cores;
#[allow(dead_code)]
#[path = "../table/lab.rs"]
mod lab;
#[allow(dead_code)]
#[path = "../table/options.rs"]
mod options;
#[path = "../table/peers.rs"]
mod peers;
#[path = "../table/program.rs"]
mod program;
#[path = "../table/raw.rs"]
mod raw;
#[path = "../table/report.rs"]
mod report;
#[path = "../table/round_trips.rs"]
mod round_trips;
#[path = "../table/witness.rs"]
mod witness;

mod acknowledged;
mod cluster;
mod evals;
mod fenced;
mod held;
mod latches;
mod limits;
mod lost;
mod many;
mod notified;
mod opening;
mod permits;
mod queue;
mod readers;
mod rivals;
mod several;
mod steps;
mod waiters;
mod wanted;

use program::Program;

fn main() -> ExitCode {
    let program = Program {
        name: "family",
        help: HELP,
        sections: &[
            ("fair", rivals::fair),
            ("fenced", fenced::section),
            ("evals", evals::section),
            ("queue", queue::section),
            ("semaphore", rivals::semaphore),
            ("expirable", rivals::expirable),
            ("permits", permits::section),
            ("held", held::section),
            ("opening", opening::section),
            ("waiters", waiters::section),
            ("several", several::section),
            ("notified", notified::section),
            ("wanted", wanted::section),
            ("steps", steps::section),
            ("lost", lost::section),
            ("limits", limits::section),
            ("many-fair", many::fair_locks),
            ("many-locks", many::locks),
            ("many-conditions", many::conditions),
            ("many-readers", many::readers),
            ("readers", readers::section),
            ("acknowledged", acknowledged::section),
            ("cluster", cluster::section),
        ],
        roles: &[
            (cell::ROLE, cell::work),
            (round_trips::ROLE, round_trips::work),
            (queue::ROLE, queue::work),
            (permits::ROLE, permits::work),
            (held::ROLE, held::work),
            (opening::COUNTER_ROLE, opening::count),
            (opening::WAITER_ROLE, opening::wait),
            (waiters::COUNTER_ROLE, waiters::count),
            (waiters::ROLE, waiters::wait),
            (several::ROLE, several::work),
            (notified::NOTIFIER_ROLE, notified::notify),
            (notified::WAITER_ROLE, notified::wait),
            (wanted::HOLDER_ROLE, wanted::hold),
            (wanted::WAITER_ROLE, wanted::wait),
            (steps::ROLE, steps::work),
            (readers::ROLE, readers::work),
            (evals::ROLE, evals::work),
        ],
    };
    program.run()
}

const HELP: &str = "\
cargo bench --bench family -- [options] [section…]

  --quick        everything once and short, in less than a minute: does it still run?
  --rounds N     so many rounds of each comparison (5)
  --seconds S    so long each measurement (1)
  --busy         beside a loop on each core
  --help

Sections: fair, fenced, evals, queue, semaphore, expirable, permits, held, opening, waiters, several,
notified, wanted, steps, lost, limits, many-fair, many-locks, many-conditions, many-readers,
readers, acknowledged, cluster. None named: all.
";
