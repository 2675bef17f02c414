//! The time from the release of a fair lock to the next grant, while the length of the queue stays
//! the same.
//!
//! The waiters come one by one, each after the queue has the previous waiter. Neighbours in the
//! queue belong to different processes. Each waiter takes the lock, holds it until the previous
//! holder is at the end of the queue again, and then releases it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use redis::Connection;
use redlatch_testkit::{Job, Worker, wait_until};

use crate::clock::{self, MICROSECOND};
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::peers::Peer;
use crate::raw;
use crate::report::{Goals, Table, count, digits, time};
use crate::round_trips::{Figures, numbers, text};

pub(crate) const ROLE: &str = "queue";

const WAITERS: [usize; 3] = [10, 100, 1_000];
const PROCESSES: usize = 5;
const HOLD: u64 = 500 * MICROSECOND;
/// A thread that had waited for this time before a release was asleep.
const ASLEEP: u64 = 500 * MICROSECOND;
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!(
        "Fair hand-over to the next of N waiters in {PROCESSES} processes, each holds {}:\n",
        time(HOLD as f64)
    );
    let heads = ["waiters", "number", "least", "median", "99th", "x with 10", "out of order"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    lab.put_server(Cores::Any);
    for peer in [Peer::PlainFair, Peer::Fair] {
        let mut all = WAITERS.map(|waiters| (waiters, Seen::default()));
        lab.rounds(|| {
            for (waiters, seen) in &mut all {
                seen.add(line(lab, peer, *waiters));
            }
        });
        let few = all[0].1.waits.at(0.5);
        for (waiters, mut seen) in all {
            let [least, median, late] = [0.0, 0.5, 0.99].map(|part| seen.waits.at(part));
            let ratio = digits(median / few);
            table.row(&[
                &Cores::Any,
                &peer.name(),
                &waiters,
                &seen.waits.0.len(),
                &time(least),
                &time(median),
                &time(late),
                &ratio,
                &seen.misplaced,
            ]);
            if peer == Peer::Fair {
                let work = format!("fair hand-over, {} waiters", count(waiters as f64));
                if waiters == WAITERS[2] {
                    let measured = format!("{ratio} ({})", time(median));
                    goals.add(format!("{work} against 10"), measured, "≤ 2");
                }
                goals.add(format!("{work}: granted out of order"), seen.misplaced, "0");
                goals.add(format!("{work}: times too many inside"), seen.broken, "0");
            }
        }
    }
    println!("{table}");
}

#[derive(Default)]
struct Seen {
    waits: Figures,
    /// The number of waiters whose first grant did not come in the order of arrival.
    misplaced: usize,
    broken: usize,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.waits.0.extend(other.waits.0);
        self.misplaced += other.misplaced;
        self.broken += other.broken;
    }
}

#[derive(Clone, Copy)]
struct Held {
    asked: u64,
    granted: u64,
    released: u64,
    /// The waiter's number in the order of arrival.
    waiter: usize,
}

fn line(lab: &Lab, peer: Peer, waiters: usize) -> Seen {
    let name = format!("bench {}", lab.next());
    let url = lab.url(false);
    let place = lab.machine.clients(Cores::Any).to_string();
    let args = [peer.name().to_owned(), url.clone(), name.clone(), place];
    let mut workers = [(); PROCESSES].map(|()| {
        let mut worker = Worker::spawn(ROLE, &args.each_ref().map(String::as_str));
        worker.expect_line("ready", TIMEOUT);
        worker
    });
    let mut server = raw::connect(&url);
    let connected = peer.connect(&url);
    let mut end = 0;
    connected(&name)(&mut || {
        for waiter in 0..waiters {
            workers[waiter % PROCESSES].send_line("next");
            let what = format!("{} waiters in the queue", waiter + 1);
            wait_until(&what, TIMEOUT, || length(&mut server, &name) > waiter);
        }
        end = clock::now() + lab.options.length.as_nanos() as u64;
        workers.iter_mut().for_each(|worker| worker.send_line(&end.to_string()));
    });
    let mut holds = Vec::new();
    for (process, worker) in workers.iter_mut().enumerate() {
        let line = worker.expect_line("held", TIMEOUT);
        holds.extend(numbers(&line).chunks_exact(4).map(|numbers| Held {
            asked: numbers[1],
            granted: numbers[2],
            released: numbers[3],
            waiter: numbers[0] as usize * PROCESSES + process,
        }));
    }
    holds.sort_by_key(|held| held.granted);
    let pairs = || holds.windows(2).map(|pair| (pair[0], pair[1]));
    // After the end no thread queues again, so the queue gets shorter. Leave out the holds after
    // the end.
    let waited = pairs().filter(|(before, next)| {
        before.waiter % PROCESSES != next.waiter % PROCESSES
            && next.asked + ASLEEP < before.released
            && next.granted < end
    });
    let waits = waited.map(|(before, next)| next.granted.saturating_sub(before.released) as f64);
    let mut first = vec![true; waiters];
    let firsts = holds.iter().filter(|held| std::mem::replace(&mut first[held.waiter], false));
    Seen {
        waits: Figures(waits.collect()),
        misplaced: firsts.enumerate().filter(|(at, held)| *at != held.waiter).count(),
        broken: pairs().filter(|(before, next)| next.granted < before.released).count(),
    }
}

/// Returns the length of the lock's queue.
fn length(server: &mut Connection, name: &str) -> usize {
    let queue = format!("redisson_lock_queue:{{{name}}}");
    redis::cmd("LLEN").arg(queue).query(server).unwrap()
}

/// Runs a process that has some of the waiters.
pub(crate) fn work(job: &Job) {
    job.arg(3).parse::<Place>().unwrap().take();
    let connected = Peer::named(job.arg(0)).connect(job.arg(1));
    job.say("ready");
    let end = Arc::new(AtomicU64::new(u64::MAX));
    let mut threads = Vec::new();
    let told = loop {
        let line = job.wait_line();
        if line != "next" {
            break line;
        }
        let (number, end) = (threads.len() as u64, Arc::clone(&end));
        let mut turn = connected(job.arg(2));
        threads.push(thread::spawn(move || {
            let mut times = Vec::new();
            loop {
                let asked = clock::now();
                if asked >= end.load(Ordering::Relaxed) {
                    break times;
                }
                turn(&mut || {
                    let granted = clock::now();
                    clock::sleep_until(granted + HOLD);
                    times.extend([number, asked, granted, clock::now()]);
                });
            }
        }));
    };
    end.store(told.parse().unwrap(), Ordering::Relaxed);
    let times: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    job.say(&format!("held {}", text(&times)));
    drop(connected);
    job.done()
}
