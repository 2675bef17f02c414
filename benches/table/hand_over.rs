//! The time from the release in one process to the grant in another process that waits.
//!
//! A hand-over is compared with two round trips: the release goes to the server and becomes a
//! message to the waiter, and the waiter sends a request and gets a reply. A hand-over follows a
//! silence, after which all threads have to wake up. A round trip that directly follows another
//! round trip is faster than a round trip after a silence. So the goal compares a hand-over with
//! PINGs that follow an equally long silence. The table also has the times of PINGs that directly
//! follow each other.

use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::clock::{self, MICROSECOND, MILLISECOND};
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::peers::Peer;
use crate::report::{Goals, Table, digits, time};
use crate::round_trips::{self, Figures, numbers, text};

pub(crate) const ROLE: &str = "hand-over";

/// The lengths of the holds. Each is long enough for the waiter to fall asleep.
const HOLDS: [u64; 2] = [2 * MILLISECOND, 7 * MILLISECOND];
/// The time for which a thread rests after a release. At the end of the rest, the other thread has
/// the lock.
const REST: u64 = MILLISECOND;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two processes pass the lock to each other again and again.
pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    HOLDS.into_iter().for_each(|hold| compare_all(lab, hold, goals));
}

fn compare_all(lab: &Lab, length: u64, goals: &mut Goals) {
    let hold = time(length as f64);
    println!("From release to grant between two processes, each holds {hold}, against two PINGs");
    println!("after as long a silence, and against two back to back:\n");
    let heads = ["number", "least", "median", "99th", "x two PINGs", "99th", "x back to back"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    let all = [Cores::Two, Cores::One, Cores::Any];
    for cores in all.into_iter().filter(|cores| lab.machine.can(*cores)) {
        compare(lab, cores, length, &mut table, goals);
    }
    println!("{table}");
}

fn compare(lab: &Lab, cores: Cores, hold: u64, table: &mut Table, goals: &mut Goals) {
    let (mut rested, mut hurried) = (Figures::default(), Figures::default());
    let mut waits = [Peer::Plain, Peer::Unlock, Peer::Drop].map(|peer| (peer, Figures::default()));
    lab.put_server(cores);
    lab.rounds(|| {
        rested.0.extend(round_trips::measure(lab, cores, hold));
        hurried.0.extend(round_trips::measure(lab, cores, 0));
        for (peer, waits) in &mut waits {
            waits.0.extend(hand_overs(lab, cores, hold, *peer));
        }
    });
    let [rested, hurried] = [rested, hurried].map(|mut trips| 2.0 * trips.at(0.5));
    table.row(&[&cores, &"two PINGs", &"", &"", &time(rested), &"", &"", &"", &""]);
    table.row(&[&cores, &"two PINGs back to back", &"", &"", &time(hurried), &"", &"", &"", &""]);
    for (peer, mut waits) in waits {
        let [least, median, late] = [0.0, 0.5, 0.99].map(|part| waits.at(part));
        let [x_median, x_late] = [median, late].map(|wait| digits(wait / rested));
        let x_hurried = digits(median / hurried);
        table.row(&[
            &cores,
            &peer.name(),
            &waits.0.len(),
            &time(least),
            &time(median),
            &time(late),
            &x_median,
            &x_late,
            &x_hurried,
        ]);
        if peer != Peer::Plain && cores != Cores::One {
            let (peer, hold) = (peer.name(), time(hold as f64));
            let work = format!("hand-over, {peer}, holds of {hold}, {cores}, in two round trips");
            goals.add(
                format!("{work}: median"),
                format!("{x_median} (back to back: {x_hurried})"),
                "≤ 1.5",
            );
            goals.add(format!("{work}: 99th percentile"), x_late, "≤ 5");
        }
    }
}

#[derive(Clone, Copy)]
struct Held {
    asked: u64,
    granted: u64,
    released: u64,
    process: usize,
}

fn hand_overs(lab: &Lab, cores: Cores, hold: u64, peer: Peer) -> Vec<f64> {
    let name = format!("bench {}", lab.next());
    let length = lab.options.length.as_nanos().to_string();
    let place = lab.machine.clients(cores).to_string();
    let args = [peer.name().to_owned(), lab.url(false), name, length, place, hold.to_string()];
    let mut workers = [(); 2].map(|()| Worker::spawn(ROLE, &args.each_ref().map(String::as_str)));
    for worker in &mut workers {
        worker.expect_line("ready", TIMEOUT);
    }
    for worker in &mut workers {
        worker.send_line("go");
    }
    let mut holds = Vec::new();
    for (process, worker) in workers.iter_mut().enumerate() {
        let line = worker.expect_line("held", TIMEOUT);
        holds.extend(numbers(&line).chunks_exact(3).map(|times| Held {
            asked: times[0],
            granted: times[1],
            released: times[2],
            process,
        }));
    }
    holds.sort_by_key(|held| held.granted);
    // Count a grant only if its thread was asleep when the other thread released the lock.
    let waited = holds.windows(2).filter(|pair| {
        pair[0].process != pair[1].process && pair[1].asked + 500 * MICROSECOND < pair[0].released
    });
    waited.map(|pair| pair[1].granted as f64 - pair[0].released as f64).collect()
}

pub(crate) fn work(job: &Job) {
    job.arg(4).parse::<Place>().unwrap().take();
    let connected = Peer::named(job.arg(0)).connect(job.arg(1));
    let mut turn = connected(job.arg(2));
    turn(&mut || {});
    job.say("ready");
    let _ = job.wait_line();
    let end = clock::now() + job.arg(3).parse::<u64>().unwrap();
    let hold: u64 = job.arg(5).parse().unwrap();
    let mut times = Vec::new();
    loop {
        let asked = clock::now();
        if asked >= end {
            break;
        }
        turn(&mut || {
            let granted = clock::now();
            clock::sleep_until(granted + hold);
            times.extend([asked, granted, clock::now()]);
        });
        clock::sleep_until(clock::now() + REST);
    }
    job.say(&format!("held {}", text(&times)));
    drop((turn, connected));
    job.done()
}
