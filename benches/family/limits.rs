//! The delay with which a time limit ends a call while the server hangs. The server's process is
//! paused, and its connections stay open.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Taken};
use redlatch_testkit::Server;

use crate::lab::Lab;
use crate::report::{Goals, Table, time};
use crate::round_trips::Figures;

/// The numbers of threads of one client.
const THREADS: [usize; 2] = [4, 32];
const LIMIT: Duration = Duration::from_millis(100);
/// The number of calls of all threads together in one round.
const CALLS: usize = 256;
/// The length of a full round. In a shorter round, each thread makes one call.
const FULL: Duration = Duration::from_secs(1);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!("How late try_lock_for(100 ms) ends at a server that hangs:\n");
    let mut table =
        Table::new(&["what", "names", "threads", "number", "median", "90 %", "99 %", "most"]);
    for threads in THREADS {
        // The sleep shows the delay of the machine alone.
        for (what, names) in [("sleep", 0), ("try_lock_for", 1), ("try_lock_for", threads)] {
            let mut late = Figures::default();
            let calls = if lab.options.length < FULL { 1 } else { CALLS / threads };
            lab.rounds(|| late.0.extend(lateness(threads, names, calls)));
            let number = late.0.len();
            let [median, most_of, nearly_all, most] =
                [0.5, 0.9, 0.99, 1.0].map(|part| time(late.at(part)));
            if names > 0 {
                goals.add(
                    format!("limit at a hung server, {threads} threads, names {names}: late, 99 %"),
                    &nearly_all,
                    "≤ 20 ms",
                );
            }
            table.row(&[&what, &names, &threads, &number, &median, &most_of, &nearly_all, &most]);
        }
    }
    println!("{table}");
}

/// Returns the lateness of each call in nanoseconds. If there are no names, each call is a sleep.
fn lateness(threads: usize, names: usize, calls: usize) -> Vec<f64> {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    // After these calls, the server has the scripts, and the connections are open.
    let locks = (0..names).map(|at| client.reentrant_lock(&format!("bench {at}")));
    let locks: Vec<_> = locks.inspect(|lock| drop(lock.lock().unwrap())).collect();
    server.pause();
    let barrier = Arc::new(Barrier::new(threads));
    let threads: Vec<_> = (0..threads)
        .map(|at| {
            let barrier = Arc::clone(&barrier);
            let lock = locks.get(at % names.max(1)).cloned();
            thread::spawn(move || {
                barrier.wait();
                let late = || {
                    let begun = Instant::now();
                    match &lock {
                        Some(lock) => assert!(!matches!(lock.try_lock_for(LIMIT), Ok(Taken(_)))),
                        None => thread::sleep(LIMIT),
                    }
                    begun.elapsed().saturating_sub(LIMIT).as_nanos() as f64
                };
                (0..calls).map(|_| late()).collect::<Vec<_>>()
            })
        })
        .collect();
    let late = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    server.resume();
    late
}
