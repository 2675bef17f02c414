//! The time of a round trip to the server, and the distribution of many figures.

use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::clock;
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::raw;

pub(crate) const ROLE: &str = "round trip";

const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Figures(pub(crate) Vec<f64>);

impl Figures {
    /// Returns the value below which this part of the figures lies.
    pub(crate) fn at(&mut self, part: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        self.0[((self.0.len() - 1) as f64 * part) as usize]
    }
}

/// Measures the times of PINGs, with a pause before each PING.
pub(crate) fn measure(lab: &Lab, cores: Cores, pause: u64) -> Vec<f64> {
    let length = lab.options.length.as_nanos() / 4;
    let place = lab.machine.clients(cores).to_string();
    let args = [lab.url(false), length.to_string(), pause.to_string(), place];
    let mut worker = Worker::spawn(ROLE, &args.each_ref().map(String::as_str));
    numbers(&worker.expect_line("took", TIMEOUT)).into_iter().map(|ns| ns as f64).collect()
}

pub(crate) fn work(job: &Job) {
    job.arg(3).parse::<Place>().unwrap().take();
    let mut connection = raw::connect(job.arg(0));
    let end = clock::now() + job.arg(1).parse::<u64>().unwrap();
    let pause: u64 = job.arg(2).parse().unwrap();
    let ping = redis::cmd("PING");
    let mut took = Vec::new();
    while clock::now() < end {
        clock::sleep_until(clock::now() + pause);
        let sent = clock::now();
        ping.exec(&mut connection).unwrap();
        took.push(clock::now() - sent);
    }
    job.say(&format!("took {}", text(&took)));
    job.done()
}

pub(crate) fn text(numbers: &[u64]) -> String {
    numbers.iter().map(|number| format!("{number} ")).collect()
}

pub(crate) fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}
