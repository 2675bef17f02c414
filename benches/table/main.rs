//! Speed and cost of redlatch beside its peers, in tables: `cargo bench --bench table`, with `--
//! --help` for the options. A full run takes about five minutes.
//!
//! # How to read it
//!
//! - Peers are measured in turn within each round, in processes started for that, on a private
//!   server. A figure is the median of the rounds; a ratio the median of each round's ratio, with
//!   the lowest and the highest. Compare figures of one table only: another run has another
//!   machine, or another hour.
//! - **Where**: `one core` has clients and server on one core, `two cores` the clients on one and
//!   the server on another, `unpinned` leaves it to the system. `1 ms away` is unpinned, through
//!   a proxy that delivers everything half a millisecond later, each way.
//! - **Peers**: `raw pair` is redlatch's two scripts on a connection of each thread's own, encoded
//!   ahead: the least that two round trips cost. `plain` is Redisson's algorithm, done plainly:
//!   each thread tries, subscribes, tries, and sleeps until a message comes. `lock + unlock` and
//!   `lock + drop` are redlatch's.
//! - **A contended figure is three**: locks a second, switches of the lock to another thread a
//!   second, and the longest wait of any thread. A lock that one thread keeps taking is fast and
//!   useless. So each holder reads the last holder from a file that all share, works for 3 us, and
//!   looks whether it is still alone. A wait that lasts beyond the end counts in full.
//! - **threads**, **processes**: the parts that the least and the most favoured got, of an equal
//!   share. These are the extremes of all rounds; among the goals stands the median round, with the
//!   worst in brackets.
//! - **scripts**, **commands**: EVALSHA and EVAL for each lock taken, and all commands, those
//!   inside scripts included, as the server counts them.
//! - The goals at the end are goals. Nothing fails here; tests judge, benches tell.
//!
//! # To add something
//!
//! A way to take and give back is a `Peer`. How many processes and threads use it, and where, is a
//! `Setting`; `Lab::compare` measures peers under it. Work of another shape has a role of its own,
//! as `hand_over` has. `../family` is another program of these parts.

// An error in a bench ends it.
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
