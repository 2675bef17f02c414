//! The time from `notify_one` in one process until the waiter in another process returns from its
//! wait, with the lock.
//!
//! The measured time covers the notification with its reply, the release, and the message that
//! grants the waiter the lock. The waiter's request for the lock runs at the same time. As for
//! other hand-overs, the goal compares the measured time with PINGs that follow an equally long
//! silence.

use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::clock::{self, MICROSECOND, MILLISECOND};
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::raw;
use crate::report::{Goals, Table, digits, time};
use crate::round_trips::{Figures, numbers, text};

pub(crate) const NOTIFIER_ROLE: &str = "notifier";
pub(crate) const WAITER_ROLE: &str = "notified";

/// The time from one notification to the next. A PING comes in the middle.
const PACE: u64 = 8 * MILLISECOND;
/// A thread that has waited for this time is asleep.
const ASLEEP: u64 = 500 * MICROSECOND;
/// The time without a notification after which no further notification comes.
const QUIET_TIME: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!(
        "From notify_one to a waiter of another process back with its lock, against a PING:\n"
    );
    let heads = ["number", "least", "median", "99th", "x PING"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    for delayed in [false, true] {
        let (mut pings, mut waits) = (Figures::default(), Figures::default());
        lab.put_server(Cores::Any);
        lab.rounds(|| {
            let (pinged, waited) = notifications(lab, &lab.url(delayed), delayed);
            pings.0.extend(pinged);
            waits.0.extend(waited);
        });
        let place = if delayed { "1 ms away".to_owned() } else { Cores::Any.to_string() };
        let ping = pings.at(0.5);
        let late = time(pings.at(0.99));
        table.row(&[&place, &"PING", &pings.0.len(), &"", &time(ping), &late, &""]);
        let [least, median, late] = [0.0, 0.5, 0.99].map(|part| waits.at(part));
        let ratio = digits(median / ping);
        table.row(&[
            &place,
            &"condition",
            &waits.0.len(),
            &time(least),
            &time(median),
            &time(late),
            &ratio,
        ]);
        let work = format!("notify_one to a waiter back in its lock, {place}: median");
        goals.add(format!("{work}, in round trips"), ratio, "≤ 3");
    }
    println!("{table}");
}

/// Returns the times of PINGs, and the times from a notification until the waiter is back.
pub(crate) fn notifications(lab: &Lab, url: &str, delayed: bool) -> (Vec<f64>, Vec<f64>) {
    let name = format!("bench {}", lab.next());
    let place = lab.machine.clients(Cores::Any).to_string();
    let args = [url.to_owned(), name, place, lab.url(delayed)];
    let mut workers = [WAITER_ROLE, NOTIFIER_ROLE].map(|role| {
        let mut worker = Worker::spawn(role, &args.each_ref().map(String::as_str));
        worker.expect_line("ready", TIMEOUT);
        worker
    });
    let end = (clock::now() + lab.options.length.as_nanos() as u64).to_string();
    workers.iter_mut().for_each(|worker| worker.send_line(&end));
    let [waited, notified] = workers.each_mut().map(|it| numbers(&it.expect_line("at", TIMEOUT)));
    let pings = notified.chunks_exact(2).map(|it| it[0] as f64).collect();
    let waits = waited.chunks_exact(2).filter_map(|times| {
        let (asked, back) = (times[0], times[1]);
        let told = notified.chunks_exact(2).map(|it| it[1]).find(|told| *told > asked)?;
        (asked + ASLEEP < told && told < back).then(|| (back - told) as f64)
    });
    (pings, waits.collect())
}

/// Runs the process that notifies and measures PINGs.
pub(crate) fn notify(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let client = redlatch::Client::connect(job.arg(0)).unwrap();
    let lock = client.reentrant_lock(job.arg(1));
    let condition = lock.condition("bench");
    let mut redis = raw::connect(job.arg(3));
    job.say("ready");
    let end: u64 = job.wait_line().parse().unwrap();
    let mut times = Vec::new();
    loop {
        clock::sleep_until(clock::now() + PACE / 2);
        let asked = clock::now();
        redis::cmd("PING").exec(&mut redis).unwrap();
        let ping = clock::now() - asked;
        clock::sleep_until(clock::now() + PACE / 2);
        let guard = lock.lock().unwrap();
        let told = clock::now();
        // The waiter may not wait yet, or may no longer wait.
        if condition.notify_one().unwrap() {
            times.extend([ping, told]);
        }
        drop(guard);
        if told >= end {
            break;
        }
    }
    job.say(&format!("at {}", text(&times)));
    drop(client);
    job.done()
}

/// Runs the process that waits.
pub(crate) fn wait(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let client = redlatch::Client::connect(job.arg(0)).unwrap();
    let lock = client.reentrant_lock(job.arg(1));
    let condition = lock.condition("bench");
    job.say("ready");
    let end: u64 = job.wait_line().parse().unwrap();
    let mut times = Vec::new();
    let guard = lock.lock().unwrap();
    loop {
        let asked = clock::now();
        if !condition.wait_for(&guard, QUIET_TIME).unwrap().timed_out() {
            times.extend([asked, clock::now()]);
        }
        if clock::now() >= end {
            break;
        }
    }
    job.say(&format!("at {}", text(&times)));
    drop(guard);
    job.done()
}
