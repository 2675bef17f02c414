//! The time from the last arrival at a barrier until the last party in any process is awake.
//!
//! The measured time covers the arrival, and the message that ends the generation. As for other
//! hand-overs, the goal compares the measured time with PINGs that follow an equally long silence.

use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::clock::{self, MILLISECOND};
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::raw;
use crate::report::{Goals, Table, digits, time};
use crate::round_trips::{Figures, numbers, text};

pub(crate) const ROLE: &str = "party";

const PROCESSES: usize = 8;
/// The time from one step to the next. A PING comes in the middle, while the other parties sleep.
const PACE: u64 = 8 * MILLISECOND;
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!(
        "From the last arrival at a barrier of {PROCESSES} processes to the last one awake, against \
         a PING:\n"
    );
    let heads = ["number", "least", "median", "99th", "x PING"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    for (delayed, goal) in [(false, "≤ 3"), (true, "≤ 2.2")] {
        let (mut pings, mut waits) = (Figures::default(), Figures::default());
        lab.put_server(Cores::Any);
        lab.rounds(|| {
            let (pinged, waited) = steps(lab, delayed);
            pings.0.extend(pinged);
            waits.0.extend(waited);
        });
        let place = if delayed { "1 ms away".to_owned() } else { Cores::Any.to_string() };
        let ping = pings.at(0.5);
        let ratio = digits(waits.at(0.5) / ping);
        for (what, figures, ratio) in
            [("PING", &mut pings, &String::new()), ("barrier", &mut waits, &ratio)]
        {
            let [least, median, late] = [0.0, 0.5, 0.99].map(|part| time(figures.at(part)));
            table.row(&[&place, &what, &figures.0.len(), &least, &median, &late, ratio]);
        }
        let work = format!("last arrival of {PROCESSES} processes to the last awake, {place}");
        goals.add(format!("{work}: median, in round trips"), ratio, goal);
    }
    println!("{table}");
}

/// Returns the times of PINGs, and the times of the steps.
fn steps(lab: &Lab, delayed: bool) -> (Vec<f64>, Vec<f64>) {
    let name = format!("bench {}", lab.next());
    let count = (lab.options.length.as_nanos() as u64 / PACE).max(10).to_string();
    let place = lab.machine.clients(Cores::Any).to_string();
    let mut workers: Vec<Worker> = (0..PROCESSES)
        .map(|at| {
            let args = [lab.url(delayed), name.clone(), place.clone(), count.clone()];
            let last = (at == 0).to_string();
            let args: Vec<&str> = args.iter().map(String::as_str).chain([&*last]).collect();
            let mut worker = Worker::spawn(ROLE, &args);
            worker.expect_line("ready", TIMEOUT);
            worker
        })
        .collect();
    workers.iter_mut().for_each(|worker| worker.send_line("go"));
    let mut lines = workers.iter_mut().map(|worker| numbers(&worker.expect_line("at", TIMEOUT)));
    let last = lines.next().unwrap();
    let (pings, arrived) = last.chunks_exact(3).map(|it| (it[0] as f64, it[1])).unzip();
    let mut awake: Vec<u64> = last.chunks_exact(3).map(|it| it[2]).collect();
    for others in lines {
        awake.iter_mut().zip(others).for_each(|(awake, other)| *awake = other.max(*awake));
    }
    let arrived: Vec<u64> = arrived;
    (pings, awake.iter().zip(arrived).map(|(awake, at)| (awake - at) as f64).collect())
}

/// Runs one party. In each step, one party arrives last and measures PINGs.
pub(crate) fn work(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let client = redlatch::Client::connect(job.arg(0)).unwrap();
    let barrier = client.cyclic_barrier(job.arg(1));
    let _ = barrier.try_set_parties(PROCESSES as u32).unwrap();
    let (count, is_last): (usize, bool) = (job.arg(3).parse().unwrap(), job.arg(4) == "true");
    let mut redis = raw::connect(job.arg(0));
    job.say("ready");
    let _go = job.wait_line();
    let mut times = Vec::new();
    for _ in 0..count {
        if is_last {
            clock::sleep_until(clock::now() + PACE / 2);
            let asked = clock::now();
            redis::cmd("PING").exec(&mut redis).unwrap();
            let ping = clock::now() - asked;
            clock::sleep_until(clock::now() + PACE / 2);
            times.extend([ping, clock::now()]);
        }
        let _index = barrier.wait().unwrap();
        times.push(clock::now());
    }
    job.say(&format!("at {}", text(&times)));
    job.done()
}
