//! A driver: a process whose threads take and release locks. The programs in `drivers/` are drivers
//! in other languages.
//!
//! A driver answers each line of its input with one line.
//!
//! - `prepare id=… key=value…` connects. The answer is `ready`, or `error` with a text. The keys
//!   are `url`, `peer`, `work`, `name`, `process` (the number of the process), `threads`, `lease`
//!   (in ms), and these:
//!   - `own`: 1 if each thread uses a name of its own
//!   - `inside`: how long a holder works, in ns; for a latch, the period
//!   - `spread`: how much longer some turns work, in ns: turn `n` by `n * 5 % 16` sixteenths
//!   - `rest`: how long a thread sleeps after a release, in ns
//! - `go id=… out=… start=… end=…` runs all threads from `start` to `end`. The answer is `done`
//!   with the number of failed calls. If there is a file `schedule`, each of its lines has the
//!   intended start of one call.
//! - `close` closes all connections. The answer is `closed`.
//!
//! Times are on `CLOCK_MONOTONIC`, in ns. For each grant the file `out` gets four little-endian
//! `u64`: the thread (bit 32 is set for a writer), and three times. The first time is that of the
//! thread's call, or the intended start of the call. The second is that of the grant (0: the thread
//! gave up at the end). The third is the beginning of the release. With `through=1` the driver
//! writes each grant at once. A driver repeats a call that fails, and counts the wait from the
//! first call.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write, stdout};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock;
use crate::works::is_ours;

mod asynchronous;
mod records;
mod redlatch;
mod rlock;

use asynchronous::Rslock;
use records::Records;

pub(crate) type Options = HashMap<String, String>;

/// Takes the lock, calls the function that does the holder's work, and releases the lock. Returns
/// `false` if a call failed. The first argument is the number of the turn.
pub(crate) type Turn = Box<dyn FnMut(u64, &mut dyn FnMut()) -> bool + Send>;

/// Whether this turn at a read-write lock writes. Every eighth turn writes.
pub(crate) fn is_writer(turn: u64) -> bool {
    turn % 8 == 7
}

pub(crate) fn number(options: &Options, key: &str) -> u64 {
    options.get(key).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key}"))
}

pub(crate) fn lease(options: &Options) -> Duration {
    Duration::from_millis(number(options, "lease"))
}

/// Returns the time for which the holder works in this turn.
pub(crate) fn inside(options: &Options, turn: u64) -> u64 {
    number(options, "inside") + number(options, "spread") / 16 * (turn * 5 % 16)
}

/// Returns the name of the lock that a thread uses.
pub(crate) fn name(options: &Options, thread: u64) -> String {
    match options["own"].as_str() {
        "1" => format!("{}-{}-{thread}", options["name"], options["process"]),
        _ => options["name"].clone(),
    }
}

/// A connected client.
pub(crate) trait Client {
    fn turn(&self, thread: u64) -> Turn;
    /// Runs one round of a latch. `waits` is true in the process that waits.
    fn latch(&self, _name: &str, _at: u64, _period: u64, _waits: bool) -> (u64, u64) {
        unreachable!("only redlatch and Redisson have latches")
    }
}

enum Session {
    Threads(Options, Arc<dyn Client + Send + Sync>),
    Tasks(Options, Rslock),
}

/// The arguments of the line `go`.
#[derive(Clone)]
struct Go {
    start: u64,
    end: u64,
    schedule: Option<Arc<Vec<u64>>>,
    through: bool,
}

pub(crate) fn main() {
    let mut sessions = HashMap::new();
    for line in io::stdin().lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default();
        let given: Options = words
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let answer = match verb {
            "prepare" => match prepare(&given) {
                Ok(session) => {
                    sessions.insert(given["id"].clone(), session);
                    "ready".to_owned()
                }
                Err(error) => format!("error {error}"),
            },
            "go" => format!("done {}", run(&sessions[&given["id"]], &given)),
            _ => {
                sessions.clear();
                "closed".to_owned()
            }
        };
        let mut out = stdout().lock();
        let _ = writeln!(out, "{answer}").and_then(|()| out.flush());
    }
}

fn prepare(given: &Options) -> Result<Session, String> {
    let options = given.clone();
    Ok(match given["peer"].as_str() {
        peer if is_ours(peer) => {
            Session::Threads(options, Arc::new(redlatch::Redlatch::connect(given)?))
        }
        "rlock" | "rlock-1ms" => Session::Threads(options, Arc::new(rlock::Rlock::connect(given)?)),
        _ => Session::Tasks(options, Rslock::connect(given)),
    })
}

/// Runs all threads, and returns how many calls failed.
fn run(session: &Session, given: &Options) -> u64 {
    let records = Records::create(&given["out"]);
    let schedule = given.get("schedule").map(|path| {
        let lines = fs::read_to_string(path).unwrap();
        Arc::new(lines.lines().map(|line| line.parse().unwrap()).collect::<Vec<u64>>())
    });
    let go = Go {
        start: number(given, "start"),
        end: number(given, "end"),
        schedule,
        through: given.contains_key("through"),
    };
    match session {
        Session::Tasks(options, rslock) => rslock.run(options, go, records),
        Session::Threads(options, client) if options["work"] == "latch" => {
            latches(options, &**client, &go, &records);
            0
        }
        Session::Threads(options, client) => {
            let threads: Vec<_> = (0..number(options, "threads"))
                .map(|thread| {
                    let (turn, go) = (client.turn(thread), go.clone());
                    let (options, records) = (options.clone(), records.clone());
                    thread::spawn(move || take(thread, turn, &options, &go, &records))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        }
    }
}

fn take(thread: u64, mut turn: Turn, options: &Options, go: &Go, records: &Records) -> u64 {
    let rest = number(options, "rest");
    let writers = options["work"] == "rw";
    let mut mine = records.of_thread();
    let mut failures = 0;
    clock::sleep_until(go.start);
    for number in 0.. {
        let mut asked = clock::now();
        if let Some(schedule) = &go.schedule {
            let Some(intended) = schedule.get(number as usize) else { break };
            asked = *intended;
            clock::sleep_until(asked);
        } else if asked >= go.end {
            break;
        }
        let inside = inside(options, number);
        let tag = thread | u64::from(writers && is_writer(number)) << 32;
        let mut granted = 0;
        loop {
            let done = turn(number, &mut || {
                granted = clock::now();
                if go.through {
                    records.write_now([tag, asked, granted, granted]);
                }
                clock::work_until(granted + inside);
                if !go.through {
                    mine.push([tag, asked, granted, clock::now()]);
                }
            });
            failures += u64::from(!done);
            if granted > 0 {
                break;
            }
            if clock::now() >= go.end {
                mine.push([tag, asked, 0, clock::now()]);
                return failures;
            }
        }
        if rest > 0 {
            clock::sleep_until(clock::now() + rest);
        }
    }
    failures
}

/// Process 0 sets the count and counts down, and process 1 waits.
fn latches(options: &Options, client: &dyn Client, go: &Go, records: &Records) {
    let (period, process) = (number(options, "inside"), number(options, "process"));
    let mut mine = records.of_thread();
    for turn in 0..(go.end - go.start) / period {
        let name = format!("{}-{}-{turn}", options["name"], go.start);
        let at = go.start + turn * period;
        let (asked, granted) = client.latch(&name, at, period, process == 1);
        mine.push([0, asked, granted, granted]);
    }
}
