//! The time from the last count-down until the last of many waiters in another process is awake,
//! and the number of requests of that process in this time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::clock;
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::latches::Kind;
use crate::report::{Goals, Spread, Table, count as separated, digits, time};
use crate::round_trips::{numbers, text};

pub(crate) const COUNTER_ROLE: &str = "counter of many";
pub(crate) const ROLE: &str = "many waiters";

const WAITERS: [usize; 3] = [1, 100, 1_000];
/// The number of count-downs in each round.
const TIMES: usize = 4;
/// If the server gets no request for this time, all threads sleep.
const QUIET: Duration = Duration::from_millis(60);
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!(
        "From the last count-down to the last of N waiters of another process awake; commands"
    );
    println!("are those of that process meanwhile:\n");
    let heads = ["waiters", "number", "first", "last", "worst", "commands", "most"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    lab.put_server(Cores::Any);
    for waiters in WAITERS {
        let mut seen = Kind::ALL.map(|kind| (kind, Vec::new()));
        lab.rounds(|| {
            for (kind, seen) in &mut seen {
                seen.extend(openings(lab, *kind, waiters));
            }
        });
        for (kind, seen) in seen {
            let spread = |of: fn(&Seen) -> f64| Spread::of(seen.iter().map(of));
            let (first, last) = (spread(|it| it.first), spread(|it| it.last));
            let commands = spread(|it| it.commands);
            let most = separated(commands.high);
            table.row(&[
                &Cores::Any,
                &kind.name(),
                &waiters,
                &seen.len(),
                &time(first.median),
                &time(last.median),
                &time(last.high),
                &digits(commands.median),
                &most,
            ]);
            if kind == Kind::Ours {
                let work = format!("latch, last of {} local waiters", separated(waiters as f64));
                let measured = format!("{} (worst {})", time(last.median), time(last.high));
                let goal = if waiters == WAITERS[2] { "≤ 10 ms" } else { "none set" };
                goals.add(format!("{work} awake"), measured, goal);
                goals.add(format!("{work}: commands, at most"), most, "≤ 1");
            }
        }
    }
    println!("{table}");
}

/// Times in nanoseconds after the count-down.
struct Seen {
    first: f64,
    last: f64,
    commands: f64,
}

fn openings(lab: &Lab, kind: Kind, waiters: usize) -> Vec<Seen> {
    let place = lab.machine.clients(Cores::Any).to_string();
    let args = [kind.name().to_owned(), lab.url(false), place, waiters.to_string()];
    let mut process = |role| {
        let mut worker = Worker::spawn(role, &args.each_ref().map(String::as_str));
        worker.expect_line("ready", TIMEOUT);
        worker
    };
    let [mut counter, mut crowd] = [COUNTER_ROLE, ROLE].map(&mut process);
    // The first count-down loads the scripts. The second count-down has no waiters.
    let mut without = 0;
    for _ in 0..2 {
        let name = format!("bench {}", lab.next());
        close(&mut counter, &name);
        let before = lab.calls().commands;
        open(&mut counter);
        without = lab.calls().commands - before;
    }
    let opening = |_| {
        let name = format!("bench {}", lab.next());
        close(&mut counter, &name);
        crowd.send_line(&name);
        crowd.expect_line("waiting", TIMEOUT);
        let before = when_quiet(lab);
        let opened = open(&mut counter);
        let awake = numbers(&crowd.expect_line("awake", TIMEOUT));
        let commands = lab.calls().commands - before;
        let after = |at: Option<&u64>| at.unwrap().saturating_sub(opened) as f64;
        Seen {
            first: after(awake.iter().min()),
            last: after(awake.iter().max()),
            commands: commands as f64 - without as f64,
        }
    };
    let seen = (0..TIMES).map(opening).collect();
    counter.send_line("end");
    crowd.send_line("end");
    seen
}

fn close(counter: &mut Worker, name: &str) {
    counter.send_line(&format!("close {name}"));
    counter.expect_line("closed", TIMEOUT);
}

/// Opens the latch. Returns the time just before the count-down.
fn open(counter: &mut Worker) -> u64 {
    counter.send_line("open");
    counter.expect_line("at", TIMEOUT).parse().unwrap()
}

/// Waits until no command except this query has come for a while. Returns the number of all
/// commands so far.
fn when_quiet(lab: &Lab) -> u64 {
    let mut before = lab.calls().commands;
    loop {
        thread::sleep(QUIET);
        let now = lab.calls().commands;
        if now == before + 1 {
            return now;
        }
        before = now;
    }
}

/// Runs the process that counts down.
pub(crate) fn count(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let connected = Kind::named(job.arg(0)).connect(job.arg(1));
    job.say("ready");
    loop {
        let line = job.wait_line();
        let Some(name) = line.strip_prefix("close ") else { break };
        let mut latch = connected.latch(name);
        latch.close();
        job.say("closed");
        let _ = job.wait_line();
        let now = clock::now();
        latch.count_down();
        job.say(&format!("at {now}"));
    }
    drop(connected);
    job.done()
}

/// Runs the process that waits.
pub(crate) fn wait(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let connected = Kind::named(job.arg(0)).connect(job.arg(1));
    let waiters: usize = job.arg(3).parse().unwrap();
    job.say("ready");
    loop {
        let name = job.wait_line();
        if name == "end" {
            break;
        }
        let crowd = Arc::new(Crowd {
            asleep: AtomicUsize::new(waiters),
            leave: AtomicBool::new(false),
            main: thread::current(),
        });
        let wait = |_| {
            let (mut latch, crowd) = (connected.latch(&name), Arc::clone(&crowd));
            thread::spawn(move || {
                latch.wait();
                let awake = clock::now();
                crowd.stay();
                awake
            })
        };
        let threads: Vec<_> = (0..waiters).map(wait).collect();
        job.say("waiting");
        while crowd.asleep.load(Ordering::SeqCst) > 0 {
            thread::park();
        }
        crowd.leave.store(true, Ordering::SeqCst);
        threads.iter().for_each(|thread| thread.thread().unpark());
        let times: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        job.say(&format!("awake {}", text(&times)));
    }
    drop(connected);
    job.done()
}

/// The waiters. A woken thread does not end before all threads are awake, because the end of a
/// thread takes time and would delay the last waiter.
struct Crowd {
    asleep: AtomicUsize,
    leave: AtomicBool,
    main: Thread,
}

impl Crowd {
    fn stay(&self) {
        if self.asleep.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.main.unpark();
        }
        while !self.leave.load(Ordering::SeqCst) {
            thread::park();
        }
    }
}
