//! The time from the last count-down in one process until the waiter in another process is awake.
//!
//! As for a lock's hand-over, the measured time follows a silence. So the goal compares it with
//! PINGs that follow an equally long silence.

use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::clock::{self, MICROSECOND, MILLISECOND};
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::latches::Kind;
use crate::report::{Goals, Table, digits, time};
use crate::round_trips::{self, Figures, numbers, text};

pub(crate) const COUNTER_ROLE: &str = "counter";
pub(crate) const WAITER_ROLE: &str = "waiter";

/// The time from one count-down to the next.
const PACE: u64 = 4 * MILLISECOND;
/// The time for which the latch stays open after a count-down.
const OPEN: u64 = MILLISECOND;
/// The time for which a woken waiter does not use the latch. It is longer than `OPEN`.
const REST: u64 = 3 * MILLISECOND / 2;
/// A thread that has waited for this time is asleep.
const ASLEEP: u64 = 500 * MICROSECOND;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!("From the last count-down to a waiter of another process awake, against a PING after");
    println!("as long a silence:\n");
    let heads = ["number", "least", "median", "99th", "x PING"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    let all = [Cores::Two, Cores::One, Cores::Any];
    for cores in all.into_iter().filter(|cores| lab.machine.can(*cores)) {
        compare(lab, cores, &mut table, goals);
    }
    println!("{table}");
}

fn compare(lab: &Lab, cores: Cores, table: &mut Table, goals: &mut Goals) {
    let mut pings = Figures::default();
    let mut waits = Kind::ALL.map(|kind| (kind, Figures::default()));
    lab.put_server(cores);
    lab.rounds(|| {
        pings.0.extend(round_trips::measure(lab, cores, PACE - OPEN));
        for (kind, waits) in &mut waits {
            waits.0.extend(openings(lab, &lab.url(false), cores, *kind));
        }
    });
    let ping = pings.at(0.5);
    table.row(&[&cores, &"PING", &pings.0.len(), &"", &time(ping), &time(pings.at(0.99)), &""]);
    for (kind, mut waits) in waits {
        let [least, median, late] = [0.0, 0.5, 0.99].map(|part| waits.at(part));
        let ratio = digits(median / ping);
        table.row(&[
            &cores,
            &kind.name(),
            &waits.0.len(),
            &time(least),
            &time(median),
            &time(late),
            &ratio,
        ]);
        if kind == Kind::Ours && cores != Cores::One {
            let work = format!("latch to a waiter of another process, {cores}");
            goals.add(format!("{work}: median, in round trips"), ratio, "≤ 2.5");
            goals.add(format!("{work}: 99th percentile"), time(late), "≤ 1 ms");
        }
    }
}

/// Returns the times from a count-down until the waiter is awake.
pub(crate) fn openings(lab: &Lab, url: &str, cores: Cores, kind: Kind) -> Vec<f64> {
    let name = format!("bench {}", lab.next());
    let place = lab.machine.clients(cores).to_string();
    let args = [kind.name().to_owned(), url.to_owned(), name, place];
    let mut workers = [COUNTER_ROLE, WAITER_ROLE].map(|role| {
        let mut worker = Worker::spawn(role, &args.each_ref().map(String::as_str));
        worker.expect_line("ready", TIMEOUT);
        worker
    });
    let end = (clock::now() + lab.options.length.as_nanos() as u64).to_string();
    workers.iter_mut().for_each(|worker| worker.send_line(&end));
    let [counted, waited] = workers.each_mut().map(|it| numbers(&it.expect_line("at", TIMEOUT)));
    let waits = waited.chunks_exact(2).filter_map(|times| {
        let (asked, awake) = (times[0], times[1]);
        let opened = *counted.iter().find(|opened| **opened > asked)?;
        (asked + ASLEEP < opened && opened < awake).then(|| (awake - opened) as f64)
    });
    waits.collect()
}

/// Runs the process that counts down.
pub(crate) fn count(job: &Job) {
    let (connected, end) = prepare(job);
    let mut latch = connected.latch(job.arg(2));
    let mut times = Vec::new();
    loop {
        latch.close();
        clock::sleep_until(times.last().map_or_else(clock::now, |last| *last) + PACE);
        let now = clock::now();
        times.push(now);
        latch.count_down();
        // Leave the latch open, so that the last wait ends.
        if now >= end {
            break;
        }
        clock::sleep_until(now + OPEN);
    }
    job.say(&format!("at {}", text(&times)));
    drop((latch, connected));
    job.done()
}

/// Runs the process that waits.
pub(crate) fn wait(job: &Job) {
    let (connected, end) = prepare(job);
    let mut latch = connected.latch(job.arg(2));
    let mut times = Vec::new();
    loop {
        let asked = clock::now();
        if asked >= end {
            break;
        }
        latch.wait();
        let awake = clock::now();
        times.extend([asked, awake]);
        clock::sleep_until(awake + REST);
    }
    job.say(&format!("at {}", text(&times)));
    drop((latch, connected));
    job.done()
}

/// Connects, and returns the time at which the measurement ends.
fn prepare(job: &Job) -> (crate::latches::Connected, u64) {
    job.arg(3).parse::<Place>().unwrap().take();
    let connected = Kind::named(job.arg(0)).connect(job.arg(1));
    job.say("ready");
    let end = job.wait_line().parse().unwrap();
    (connected, end)
}
