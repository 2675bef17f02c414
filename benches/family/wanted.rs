//! The time from a call that waits for a lock until the holder in another process is notified, and
//! the time from the release to the grant.
//!
//! Both times cover a request to the server and a message to the other process, so the goal
//! compares them. A hand-over after a silence takes longer than a hand-over that follows another
//! event at once, because the threads of both processes and of the server have to wake up. A
//! notification always follows a silence. So in every second step the holder releases the lock only
//! after an equally long silence, and the goal compares with these hand-overs. In the other steps
//! the holder releases the lock as soon as it is notified.

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

/// The silence before a call, and before a release that does not follow at once. After this time, a
/// hold is also subscribed: a client subscribes for a hold that has lasted for 100 ms.
const SILENCE: Duration = Duration::from_millis(150);
/// The mean time of a step.
const PACE: u64 = 235 * MILLISECOND;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!(
        "From a call that waits to on_wanted in another process, and the hand-over after it:\n"
    );
    let heads = ["number", "least", "median", "99th", "on_wanted is"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    for delayed in [false, true] {
        let [mut heard, mut rested, mut hurried] = [(); 3].map(|()| Figures::default());
        lab.put_server(Cores::Any);
        lab.rounds(|| {
            for (step, [asked, hears, released, grant]) in (0..).zip(steps(lab, delayed)) {
                heard.0.push(hears.saturating_sub(asked) as f64);
                let granted = if rests(step) { &mut rested } else { &mut hurried };
                granted.0.push(grant.saturating_sub(released) as f64);
            }
        });
        let place = if delayed { "1 ms away".to_owned() } else { Cores::Any.to_string() };
        let median = heard.at(0.5);
        for (what, figures) in [
            ("on_wanted", &mut heard),
            ("hand-over after a silence", &mut rested),
            ("hand-over at once", &mut hurried),
        ] {
            let ratio = digits(median / figures.at(0.5));
            let [least, median, late] = [0.0, 0.5, 0.99].map(|part| time(figures.at(part)));
            table.row(&[&place, &what, &figures.0.len(), &least, &median, &late, &ratio]);
        }
        let ratios = [rested, hurried].map(|mut figures| digits(median / figures.at(0.5)));
        let [ratio, at_once] = ratios;
        let value = format!("{ratio} (hand-over at once: {at_once})");
        goals.add(format!("on_wanted, {place}: median, in hand-overs"), value, "≤ 1");
    }
    println!("{table}");
}

/// Whether the holder releases the lock only after a silence.
fn rests(step: u64) -> bool {
    step % 2 == 1
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
    let mut step = |step| {
        holder.send_line(if rests(step) { "hold and rest" } else { "hold" });
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
    // The first steps load the scripts.
    for at in 0..2 {
        let _ = step(at);
    }
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
    loop {
        let order = job.wait_line();
        if order == "end" {
            break;
        }
        let guard = lock.lock().unwrap();
        let (sender, wanted) = mpsc::channel();
        guard.on_wanted(move || {
            let _ = sender.send(clock::now());
        });
        thread::sleep(SILENCE);
        job.say("held");
        let heard = wanted.recv().unwrap();
        if order != "hold" {
            thread::sleep(SILENCE);
        }
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
