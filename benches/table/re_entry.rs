//! The cost of a re-entry into a lock that the thread already holds.

use std::time::Duration;

use redlatch::{Client, LockGuard};
use redlatch_testkit::{Job, Worker};

use crate::clock;
use crate::cores::Cores;
use crate::lab::Lab;
use crate::report::{Goals, Spread, Table, time};

pub(crate) const ROLE: &str = "re-entry";

/// The number of batches. With so many batches, the median batch was not interrupted.
const BATCHES: usize = 200;
const BATCH: u32 = 1_000;

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    let (mut unlock, mut drop, mut calls) = (Vec::new(), Vec::new(), 0);
    lab.put_server(Cores::Any);
    lab.rounds(|| {
        let mut worker = Worker::spawn(ROLE, &[&lab.url(false), &format!("bench {}", lab.next())]);
        let patience = Duration::from_secs(60);
        worker.expect_line("holds", patience);
        let before = lab.calls().scripts;
        worker.send_line("go");
        let took = worker.expect_line("took", patience);
        calls += lab.calls().scripts - before;
        worker.send_line("end");
        let (by_unlock, by_drop) = took.split_once(' ').unwrap();
        unlock.push(by_unlock.parse::<f64>().unwrap());
        drop.push(by_drop.parse::<f64>().unwrap());
    });
    println!("A thread takes a lock that it holds:\n");
    let mut table = Table::new(&["where", "what", "time", "fastest", "slowest", "script calls"]);
    for (what, times) in [("lock + unlock", unlock), ("lock + drop", drop)] {
        let times = Spread::of(times);
        let [low, median, high] = [times.low, times.median, times.high].map(time);
        table.row(&[&"unpinned", &what, &median, &low, &high, &calls]);
        goals.add(format!("re-entry, {what}"), time(times.median), "< 200 ns");
    }
    goals.add("re-entry: script calls", calls, "0");
    println!("{table}");
}

pub(crate) fn work(job: &Job) {
    let client = Client::connect(job.arg(0)).unwrap();
    let lock = client.reentrant_lock(job.arg(1));
    let outer = lock.lock().unwrap();
    job.say("holds");
    let _ = job.wait_line();
    let took = |give_back: fn(LockGuard)| {
        let batch = || {
            let start = clock::now();
            for _ in 0..BATCH {
                give_back(lock.lock().unwrap());
            }
            (clock::now() - start) as f64 / f64::from(BATCH)
        };
        Spread::of(std::iter::repeat_with(batch).take(BATCHES)).median
    };
    let by_unlock = took(|guard| guard.unlock().unwrap());
    let by_drop = took(drop);
    job.say(&format!("took {by_unlock} {by_drop}"));
    let _ = job.wait_line();
    drop((outer, client));
    job.done()
}
