//! Speed and cost of redlatch compared with its peers, in tables. Run it with `cargo bench --bench
//! table`, and add `-- --help` for the options. A full run takes about five minutes.
//!
//! # How to read it
//!
//! - In each round the peers are measured one after the other, on a private server, in new
//!   processes. A figure is the median of the rounds. A ratio is the median of the ratios of all
//!   rounds, with the lowest and the highest ratio. Compare only figures of one table, because the
//!   conditions of the machine change between runs.
//! - **Where**: `one core` has clients and server on one core, and `two cores` has the clients on
//!   one core and the server on another. `unpinned` leaves the choice to the system. `1 ms away` is
//!   unpinned, through a proxy that delays everything by half a millisecond in each direction.
//! - **Peers**: `raw pair` runs redlatch's two scripts, with a connection for each thread. The
//!   commands of `raw pair` are encoded in advance, so it shows the minimum cost of two round
//!   trips. `plain` is a plain implementation of Redisson's algorithm: each thread tries,
//!   subscribes, tries again, and sleeps until a message comes. `lock + unlock` and `lock + drop`
//!   are redlatch's calls.
//! - **A contended figure has three parts**: locks in a second, switches of the lock to another
//!   thread in a second, and the longest wait of any thread. A lock that one thread takes again and
//!   again is fast and useless. So each holder in this table reads the last holder from a file that
//!   all processes share, works for 3 us, and checks whether it is still alone. Waits that go on
//!   after the end are counted in full.
//! - **threads**, **processes**: the smallest and the largest part of an equal share that a thread
//!   or process got. The table has the extremes of all rounds. The goals have the median round and
//!   the worst round.
//! - **scripts**, **commands**: the calls of EVALSHA and EVAL for each lock taken, and all commands
//!   for each lock taken. The server counts them, including commands inside scripts.
//! - A missed goal at the end is not a failure: only tests fail, and benches report.
//!
//! # To add something
//!
//! A way to take and release is a `Peer`. A `Setting` says how many processes and threads use the
//! peer, and where. `Lab::compare` measures peers with a setting. Other kinds of work have their
//! own role, as in `hand_over`. `../family` is another program that uses these modules.

// An error ends the bench.
#![allow(clippy::unwrap_used)]

use std::process::ExitCode;

mod calls;
mod cell;
mod clock;
mod cluster;
mod contended;
mod contest;
mod cores;
mod hand_over;
mod holds;
mod lab;
mod options;
mod peers;
mod program;
mod raw;
mod re_entry;
mod report;
mod round_trips;
mod uncontended;
mod witness;

use program::Program;

fn main() -> ExitCode {
    let program = Program {
        name: "table",
        help: HELP,
        sections: &[
            ("single", uncontended::single),
            ("own", uncontended::own),
            ("polled", uncontended::polled),
            ("process", contended::process),
            ("processes", contended::processes),
            ("many", contended::many),
            ("hand-over", hand_over::section),
            ("re-entry", re_entry::section),
            ("holds", holds::section),
            ("cluster", cluster::section),
        ],
        roles: &[
            (cell::ROLE, cell::work),
            (hand_over::ROLE, hand_over::work),
            (round_trips::ROLE, round_trips::work),
            (re_entry::ROLE, re_entry::work),
            (holds::ROLE, holds::work),
        ],
    };
    program.run()
}

const HELP: &str = "\
cargo bench --bench table -- [options] [section…]

  --quick        everything once and short, in less than a minute: does it still run?
  --rounds N     so many rounds of each comparison (5)
  --seconds S    so long each measurement (1)
  --busy         beside a loop on each core
  --holds N      so many watched holds (100000)
  --help

Sections: single, own, polled, process, processes, many, hand-over, re-entry, holds, cluster. None
named: all.
";
