//! Shows a job that runs once an hour on a fleet, although machines die while they run it. Here an
//! hour is a second: `cargo run --example hourly`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use redlatch::{Client, Taken};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const HOUR: Duration = Duration::from_secs(1);
const MACHINES: usize = 4;
/// The number of hours. In the third hour, the machine that runs the job is killed.
const HOURS: usize = 5;
const KILLED: usize = 3;

fn main() -> ExitCode {
    stage::play("hourly", show, machine)
}

/// Each machine tries all the time, as a cron job with a wrong clock may.
fn machine(job: &Job) -> Result<(), Trouble> {
    let client = Client::connect(job.arg(0))?;
    let lock = client.reentrant_lock(&format!("{}:report", job.arg(1))).with_watchdog(HOUR / 2);
    let mut redis = redis::Client::open(job.arg(0))?.get_connection()?;
    let runs = format!("{}:runs", job.arg(1));
    job.say("is up");
    loop {
        if let Taken(_run) = lock.try_once_per(HOUR)? {
            let _: usize = redis.rpush(&runs, job.arg(2))?;
            thread::sleep(HOUR / 5); // the report
            let _: usize = redis.incr(format!("{}:done", job.arg(1)), 1)?;
        }
        thread::sleep(HOUR / 50);
    }
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let mut redis = redis::Client::open(stage.url())?.get_connection()?;
    let (runs, done) = (format!("{}:runs", stage.name), format!("{}:done", stage.name));
    let start =
        |number: usize| Worker::spawn("machine", &[stage.url(), &stage.name, &number.to_string()]);
    let mut machines: Vec<_> = (0..MACHINES).map(start).collect();
    for machine in &mut machines {
        stage.hear(machine)?;
    }
    stage.say(&format!("{MACHINES} machines try to write the hourly report, all the time."))?;
    let mut last: Option<Instant> = None;
    for hour in 1..=HOURS {
        let mut so_far: Vec<usize> = Vec::new();
        stage.wait_until("a machine runs the job", || {
            so_far = redis.lrange(&runs, 0, -1)?;
            Ok(so_far.len() >= hour)
        })?;
        let pause = last.replace(Instant::now()).map(|last| last.elapsed());
        // The coordinator checks only every few milliseconds.
        let is_early = pause.is_some_and(|pause| pause + HOUR / 10 < HOUR);
        if so_far.len() > hour || is_early {
            stage.say("IT RAN TWICE WITHIN AN HOUR.")?;
            return Ok(false);
        }
        let machine = so_far[hour - 1];
        if hour == KILLED {
            machines[machine].sigkill();
            stage.say(&format!("hour {hour}: machine {machine} runs it, and is killed in it"))?;
        } else {
            stage.say(&format!("hour {hour}: machine {machine} runs it"))?;
        }
    }
    stage.wait_until("the last one is done", || Ok(redis.get::<_, usize>(&done)? >= HOURS - 1))?;
    let finished: usize = redis.get(&done)?;
    stage.say(&format!("{HOURS} hours, {HOURS} runs, {finished} of them to their end."))?;
    Ok(finished == HOURS - 1)
}
