//! Shows a cyclic barrier. Four processes run a simulation in steps, and one of them is killed:
//! `cargo run --example barrier`

mod stage;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use redis::{Commands, Connection};
use redlatch::{Client, CyclicBarrier, ErrorKind, Waited};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

/// The number of processes. Each process has one cell of a ring.
const PROCESSES: usize = 4;
const STEPS: usize = 200;
const KILLED_IN: usize = 80;
/// If a process is killed while it waits, the others notice this after the lease. If a process is
/// killed before it waits, the others notice this at the end of their time limit.
const LEASE: Duration = Duration::from_millis(500);
const LONGEST_STEP: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    stage::play("barrier", show, process)
}

/// Returns the value of a cell after a step: the cell's own value plus its left neighbour's value,
/// both before the step.
fn sum(own: u64, left: u64) -> u64 {
    (own + left) % 1_000_000_007
}

fn process(job: &Job) -> Result<(), Trouble> {
    let (url, name, own) = (job.arg(0), job.arg(1), job.arg(2).parse::<usize>()?);
    let mut redis = connect(url)?;
    let counted = (url.to_owned(), format!("{name}:step"));
    // All processes have written their cells, and none has passed the barrier, so the step is
    // complete.
    let steps = barrier(&Client::connect(url)?, name).with_action(move || {
        let (url, step) = &counted;
        let counts = connect(url).and_then(|mut redis| Ok(redis.incr::<_, _, usize>(step, 1)?));
        // A panic breaks the barrier.
        counts.unwrap_or_else(|error| panic!("the step does not count: {error}"));
    });
    let mut step = present(&mut redis, name)?;
    while step < STEPS {
        let mut cell = |at: usize| redis.hget::<_, _, u64>(format!("{name}:ring:{step}"), at);
        let value = sum(cell(own)?, cell((own + PROCESSES - 1) % PROCESSES)?);
        let _: usize = redis.hset(format!("{name}:ring:{}", step + 1), own, value)?;
        match steps.wait_for(LONGEST_STEP) {
            Ok(Waited::InTime(_)) => step += 1,
            // No process has passed the barrier, so the result of the previous step is still valid.
            Ok(Waited::TimedOut) => step = begin_anew(job, &mut redis)?,
            Err(error) if error.kind() == ErrorKind::Broken => step = begin_anew(job, &mut redis)?,
            Err(error) => return Err(error.into()),
        }
    }
    job.say("is done");
    Ok(())
}

/// Waits until the coordinator sends the step from which to continue.
fn begin_anew(job: &Job, redis: &mut Connection) -> Result<usize, Trouble> {
    job.say("broken");
    let _ = job.wait_line();
    present(redis, job.arg(1))
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let mut redis = connect(stage.url())?;
    let steps = barrier(&Client::connect(stage.url())?, &stage.name);
    if !steps.try_set_parties(PROCESSES as u32)? {
        return Err("the barrier was there before".into());
    }
    let mut ring: Vec<u64> = (1..=PROCESSES as u64).collect();
    for (at, value) in ring.iter().enumerate() {
        let _: usize = redis.hset(format!("{}:ring:0", stage.name), at, value)?;
    }
    let start =
        |own: usize| Worker::spawn("process", &[stage.url(), &stage.name, &own.to_string()]);
    let mut processes: Vec<_> = (0..PROCESSES).map(start).collect();
    stage.say(&format!("{PROCESSES} processes compute {STEPS} steps of a ring together."))?;
    stage
        .wait_until("some steps are done", || Ok(present(&mut redis, &stage.name)? >= KILLED_IN))?;

    let killed = Instant::now();
    processes[2].sigkill();
    for at in [0, 1, 3] {
        let said = stage.hear(&mut processes[at])?;
        if said != "broken" {
            stage.say(&format!("PROCESS {at} {said}, THOUGH ANOTHER ONE WAS KILLED."))?;
            return Ok(false);
        }
    }
    let told = killed.elapsed();
    let step = present(&mut redis, &stage.name)?;
    stage.say(&format!(
        "Process 2 is killed in step {}. {told:.0?} later all others know.",
        step + 1
    ))?;
    if !steps.is_broken()? || !steps.reset()? {
        stage.say("THE BARRIER IS NOT BROKEN.")?;
        return Ok(false);
    }
    processes[2] = start(2);
    for at in [0, 1, 3] {
        processes[at].send_line("go on");
    }
    stage.say(&format!("The barrier is reset, and another process goes on from step {step}."))?;
    for process in &mut processes {
        let said = stage.hear(process)?;
        if said != "is done" {
            stage.say(&format!("A PROCESS {said}."))?;
            return Ok(false);
        }
    }

    for _ in 0..STEPS {
        ring = (0..PROCESSES)
            .map(|at| sum(ring[at], ring[(at + PROCESSES - 1) % PROCESSES]))
            .collect();
    }
    let mut computed = Vec::new();
    for at in 0..PROCESSES {
        computed.push(redis.hget::<_, _, u64>(format!("{}:ring:{STEPS}", stage.name), at)?);
    }
    steps.delete()?;
    if computed != ring || present(&mut redis, &stage.name)? != STEPS {
        stage.say(&format!("{computed:?} IS NOT WHAT ONE PROCESS COMPUTES: {ring:?}."))?;
        return Ok(false);
    }
    stage.say(&format!("After {STEPS} steps {computed:?}, as one process computes it."))?;
    Ok(true)
}

fn barrier(client: &Client, name: &str) -> CyclicBarrier {
    client.cyclic_barrier(name).with_watchdog(LEASE)
}

/// Returns how many steps all processes have finished.
fn present(redis: &mut Connection, name: &str) -> Result<usize, Trouble> {
    Ok(redis.get::<_, Option<usize>>(format!("{name}:step"))?.unwrap_or(0))
}

fn connect(url: &str) -> Result<Connection, Trouble> {
    Ok(redis::Client::open(url)?.get_connection()?)
}
