//! The time from a call that waits for a lock until the holder in another process is notified, and
//! the time from the release that follows to the grant.
//!
//! Both times cover a request to the server and a message to the other process, so the goal
//! compares them. Each step gives one of each: the holder releases the lock as soon as it is
//! notified.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::clock::{self, MILLISECOND};
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::report::{Goals, Table, digits, time};
use crate::round_trips::{Figures, numbers, text};

pub(crate) const HOLDER_ROLE: &str = "hearing holder";
pub(crate) const WAITER_ROLE: &str = "waiter that is heard";

/// The time after which a hold is subscribed. A client subscribes for a hold that has lasted for
/// 100 ms.
const LISTENS: Duration = Duration::from_millis(150);
/// The time of a step.
const PACE: u64 = 160 * MILLISECOND;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!(
        "From a call that waits to on_wanted in another process, and the hand-over after it:\n"
    );
    let heads = ["number", "least", "median", "99th", "x hand-over"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    for delayed in [false, true] {
        let (mut heard, mut granted) = (Figures::default(), Figures::default());
        lab.put_server(Cores::Any);
        lab.rounds(|| {
            for [asked, hears, released, grant] in steps(lab, delayed) {
                heard.0.push(hears.saturating_sub(asked) as f64);
                granted.0.push(grant.saturating_sub(released) as f64);
            }
        });
        let place = if delayed { "1 ms away".to_owned() } else { Cores::Any.to_string() };
        let ratio = digits(heard.at(0.5) / granted.at(0.5));
        for (what, figures, ratio) in
            [("on_wanted", &mut heard, &ratio), ("hand-over", &mut granted, &String::new())]
        {
            let [least, median, late] = [0.0, 0.5, 0.99].map(|part| time(figures.at(part)));
            table.row(&[&place, &what, &figures.0.len(), &least, &median, &late, ratio]);
        }
        goals.add(format!("on_wanted, {place}: median, in hand-overs"), ratio, "none set");
    }
    println!("{table}");
}

/// Returns the times of each step: the call, `on_wanted`, the release, the grant.
fn steps(lab: &Lab, delayed: bool) -> Vec<[u64; 4]> {
    let place = lab.machine.clients(Cores::Any).to_string();
    let args = [lab.url(delayed), format!("bench {}", lab.next()), place];
    let [mut holder, mut waiter] = [HOLDER_ROLE, WAITER_ROLE].map(|role| {
        let mut worker = Worker::spawn(role, &args.each_ref().map(String::as_str));
        worker.expect_line("ready", TIMEOUT);
        worker
    });
    let count = (lab.options.length.as_nanos() as u64 / PACE).max(10);
    let mut step = |_| {
        holder.send_line("hold");
        holder.expect_line("held", TIMEOUT);
        waiter.send_line("ask");
        let [asked, granted] = numbers(&waiter.expect_line("at", TIMEOUT))[..] else {
            panic!("two times");
        };
        let [heard, released] = numbers(&holder.expect_line("at", TIMEOUT))[..] else {
            panic!("two times");
        };
        [asked, heard, released, granted]
    };
    // The first step loads the scripts.
    let _ = step(0);
    let steps = (0..count).map(step).collect();
    holder.send_line("end");
    waiter.send_line("end");
    steps
}

/// Runs the process that holds the lock until others wait for it.
pub(crate) fn hold(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let client = redlatch::Client::connect(job.arg(0)).unwrap();
    let lock = client.reentrant_lock(job.arg(1)).with_wanted();
    job.say("ready");
    while job.wait_line() == "hold" {
        let guard = lock.lock().unwrap();
        let (sender, wanted) = mpsc::channel();
        guard.on_wanted(move || {
            let _ = sender.send(clock::now());
        });
        thread::sleep(LISTENS);
        job.say("held");
        let heard = wanted.recv().unwrap();
        let released = clock::now();
        guard.unlock().unwrap();
        job.say(&format!("at {}", text(&[heard, released])));
    }
    drop(client);
    job.done()
}

/// Runs the process that waits.
pub(crate) fn wait(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let client = redlatch::Client::connect(job.arg(0)).unwrap();
    let lock = client.reentrant_lock(job.arg(1));
    job.say("ready");
    while job.wait_line() == "ask" {
        let asked = clock::now();
        let guard = lock.lock().unwrap();
        let granted = clock::now();
        guard.unlock().unwrap();
        job.say(&format!("at {}", text(&[asked, granted])));
    }
    drop(client);
    job.done()
}
