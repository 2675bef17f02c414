//! The cost of locks that are granted only when a replica has the grant.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::Server;

use crate::clock::{self, MILLISECOND};
use crate::lab::Lab;
use crate::report::{Goals, Spread, Table, count};

const THREADS: [usize; 3] = [1, 8, 32];
const WITHIN: Duration = Duration::from_secs(5);
/// The time in which scripts are loaded and connections are opened.
const WARM_UP: u64 = 100 * MILLISECOND;

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!("Threads with a name each, lock and drop; a replica on the same machine:\n");
    let heads = ["none waited for", "one must have it", "x none"];
    let mut table = Table::new(&[&["where", "threads"], heads.as_slice()].concat());
    let master = Server::start().unwrap();
    let _replica = Server::builder().replica_of(&master).start().unwrap();
    let builder = || Client::builder(&master.url());
    for threads in THREADS {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        lab.rounds(|| {
            without.push(rate(lab, builder(), threads));
            with.push(rate(lab, builder().replica_acks(1, WITHIN), threads));
        });
        let ratio = Spread::of(with.iter().zip(&without).map(|(with, without)| with / without));
        let [without, with] = [without, with].map(|rates| count(Spread::of(rates).median));
        table.row(&[&"any cores", &threads, &without, &with, &ratio]);
        let goal = if threads == 32 { "≥ 0.5" } else { "none set" };
        let work = format!("a lock that a replica has, {threads} threads with a name each, x none");
        goals.add(work, ratio, goal);
    }
    println!("{table}");
}

/// Returns how many times the threads take the lock in a second.
fn rate(lab: &Lab, builder: ClientBuilder, threads: usize) -> f64 {
    let (client, number) = (builder.connect().unwrap(), lab.next());
    let (go, length) = (Barrier::new(threads), lab.options.length.as_nanos() as u64);
    let locks: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|at| {
                let lock = client.reentrant_lock(&format!("bench acknowledged {number} {at}"));
                let go = &go;
                scope.spawn(move || {
                    go.wait();
                    let from = clock::now() + WARM_UP;
                    let end = from + length;
                    let mut locks = 0;
                    loop {
                        drop(lock.lock().unwrap());
                        let now = clock::now();
                        if now >= end {
                            return locks;
                        }
                        locks += u64::from(now >= from);
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    locks as f64 / lab.options.length.as_secs_f64()
}
