//! Shows two latches. Threads of several processes report that they are ready, and then start at
//! the same time: `cargo run --example latch`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redlatch::{Client, CountDownLatch};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const PROCESSES: u64 = 4;
/// The number of runners in each process.
const RUNNERS: u64 = 5;

fn main() -> ExitCode {
    stage::play("latch", show, process)
}

/// The work of each thread. Returns the time at which the thread started.
fn run(number: u64, ready: &CountDownLatch, go: &CountDownLatch) -> Result<Duration, Trouble> {
    // Each runner needs a different time to tie its shoes.
    thread::sleep(Duration::from_millis(37 * (number * 7 % 20)));
    ready.count_down()?;
    go.wait()?;
    now()
}

/// The work of each process.
fn process(job: &Job) -> Result<(), Trouble> {
    let client = Client::connect(job.arg(0))?;
    let [ready, go] = latches(&client, job.arg(1));
    let first: u64 = job.arg(2).parse()?;
    thread::scope(|scope| {
        let start = |number| {
            let (ready, go) = (&ready, &go);
            scope.spawn(move || run(number, ready, go))
        };
        let runners: Vec<_> = (first..first + RUNNERS).map(start).collect();
        for runner in runners {
            let started = runner.join().map_err(|_| "a thread panicked")??;
            job.say(&started.as_micros().to_string());
        }
        Ok(())
    })
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let client = Client::connect(stage.url())?;
    let [ready, go] = latches(&client, &stage.name);
    // Set the count before any thread waits, because a latch without a count is open.
    ready.try_set_count(PROCESSES * RUNNERS)?;
    go.try_set_count(1)?;

    let start = |place: u64| {
        let first = (place * RUNNERS).to_string();
        Worker::spawn("process", &[stage.url(), &stage.name, &first])
    };
    let mut processes: Vec<Worker> = (0..PROCESSES).map(start).collect();
    stage.say(&format!("{PROCESSES} processes of {RUNNERS} runners each come to the start."))?;
    // `ready.wait()` would be enough, but this also prints how many runners are ready.
    stage.wait_until("all are ready", || {
        let waited = ready.wait_for(Duration::from_millis(150))?;
        stage.say(&format!("{:>4} are not ready yet", ready.count()?))?;
        Ok(!waited.timed_out())
    })?;
    stage.say("All are ready, and none has started.")?;
    thread::sleep(Duration::from_millis(250));

    let told = now()?;
    go.count_down()?;
    let mut starts = Vec::new();
    for process in &mut processes {
        for _ in 0..RUNNERS {
            starts.push(Duration::from_micros(stage.hear(process)?.parse()?));
        }
    }
    starts.sort();
    let (first, last) = (starts[0], starts[starts.len() - 1]);
    if first < told {
        stage.say("ONE STARTED TOO EARLY.")?;
        return Ok(false);
    }
    stage.say(&format!(
        "Go! From the last count-down to the first start: {:.2} ms, to the last: {:.2} ms.",
        1e3 * (first - told).as_secs_f64(),
        1e3 * (last - told).as_secs_f64(),
    ))?;
    Ok(true)
}

/// Returns both latches. The runners count down the first latch, and the coordinator counts down
/// the second latch.
fn latches(client: &Client, name: &str) -> [CountDownLatch; 2] {
    ["ready", "go"].map(|latch| client.count_down_latch(&format!("{name}:{latch}")))
}

/// Returns the time. All processes are on one machine, so they share its clock.
fn now() -> Result<Duration, Trouble> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    // The processes report their times in microseconds.
    Ok(Duration::from_micros(now.as_micros() as u64))
}
