//! Shows that the permits of killed processes return when their leases end, and not before. Live
//! processes keep their permits for as long as they work: `cargo run --example pool`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Commands, Connection};
use redlatch::{Client, ExpirableSemaphore, PermitId};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const POOL: u32 = 4;
const PROCESSES: usize = 4;
const THREADS: usize = 2;
/// The number of processes that are killed while they have a permit of the pool.
const KILLED: usize = 2;
/// The number of times that each thread uses the pool. The first use is longer than a lease.
const USES: usize = 5;
const FIRST_USE: Duration = Duration::from_millis(1_800);
const USE: Duration = Duration::from_millis(150);
/// The time for which a permit stays taken without a renewal.
const LEASE: Duration = Duration::from_millis(1_200);
/// The delay with which the program may notice the return of a permit on a busy machine.
const LATE: Duration = Duration::from_millis(700);
/// The time by which the check of a lease may be inexact.
const EARLY: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    stage::play("pool", show, process)
}

fn connect(url: &str, name: &str) -> Result<ExpirableSemaphore, Trouble> {
    let client = Client::builder(url).watchdog_timeout(LEASE).connect()?;
    Ok(client.expirable_semaphore(name))
}

/// Returns the key with the pool's users (process and permit ids), which the example counts itself.
fn users_key(name: &str) -> String {
    format!("{name}:users")
}

/// The work of each thread. Returns the largest number of users at a time that it saw.
fn work(pool: &ExpirableSemaphore, redis: &mut Connection) -> Result<u32, Trouble> {
    let users = users_key(pool.name());
    let mut most = 0;
    for round in 0..USES {
        let permit = pool.acquire()?;
        let user = format!("{} {}", std::process::id(), permit.id());
        redis.sadd::<_, _, ()>(&users, &user)?;
        most = most.max(redis.scard(&users)?);
        thread::sleep(if round == 0 { FIRST_USE } else { USE });
        redis.srem::<_, _, ()>(&users, &user)?;
        // The release fails if the permit was lost in the meantime.
        permit.release()?;
    }
    Ok(most)
}

/// The work of each process.
fn process(job: &Job) -> Result<(), Trouble> {
    let (url, name) = (job.arg(0), job.arg(1));
    let pool = connect(url, name)?;
    let redis = redis::Client::open(url)?;
    let mut connections = Vec::new();
    for _ in 0..THREADS {
        connections.push(redis.get_connection()?);
    }
    job.say("ready");
    let _begin = job.wait_line();
    let most = thread::scope(|scope| {
        let workers: Vec<_> = connections
            .iter_mut()
            .map(|connection| scope.spawn(|| work(&pool, connection)))
            .collect();
        let mut most = 0;
        for worker in workers {
            most = most.max(worker.join().map_err(|_| "a thread panicked")??);
        }
        Ok::<_, Trouble>(most)
    })?;
    job.say(&most.to_string());
    Ok(())
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let pool = connect(stage.url(), &stage.name)?;
    pool.try_set_permits(POOL)?;
    let mut redis = redis::Client::open(stage.url())?.get_connection()?;
    let users = users_key(&stage.name);
    stage.say(&format!(
        "{PROCESSES} processes of {THREADS} threads share {POOL} permits, whose leases are {} ms; \
         each thread's first use takes {} ms.\n",
        LEASE.as_millis(),
        FIRST_USE.as_millis(),
    ))?;
    let start = |_| Worker::spawn("process", &[stage.url(), &stage.name]);
    let mut processes: Vec<Worker> = (0..PROCESSES).map(start).collect();
    for process in &mut processes {
        stage.hear(process)?;
    }
    for process in &mut processes {
        process.send_line("begin");
    }

    // After this wait and the sleep, the first leases would have ended. So the watchdog has renewed
    // the permits.
    stage.wait_until("the pool is in use", || Ok(redis.scard::<_, u32>(&users)? == POOL))?;
    thread::sleep(LEASE + Duration::from_millis(100));
    let out = pool.acquired_permits()?;
    let renewed = out == i64::from(POOL);
    stage.say(&format!(
        "{out} permits are out after {} ms{}",
        LEASE.as_millis() + 100,
        if renewed { ", since they are renewed." } else { ": WRONG." },
    ))?;

    // Some processes that have permits are killed while they use them.
    let mut dead: Vec<Dead> = Vec::new();
    let mut living = Vec::new();
    let mut killed = 0;
    for mut process in processes {
        let own = format!("{} ", process.pid());
        let all: Vec<String> = redis.smembers(&users)?;
        let its: Vec<_> = all.into_iter().filter(|user| user.starts_with(&own)).collect();
        if its.is_empty() || killed == KILLED {
            living.push(process);
            continue;
        }
        process.sigkill();
        killed += 1;
        for user in its {
            let id: PermitId = user[own.len()..].parse()?;
            redis.srem::<_, _, ()>(&users, &user)?;
            let left = pool.remaining_lease(&id)?.unwrap_or_default();
            stage.say(&format!(
                "process {own}is killed; its permit has {} ms left, and nobody renews it",
                left.as_millis(),
            ))?;
            dead.push(Dead { id, left, since: Instant::now() });
        }
    }
    let mut kept = renewed && killed == KILLED;
    dead.sort_by_key(|dead| dead.left);
    for Dead { id, left, since } in dead {
        stage.wait_until("a dead one's permit is back", || {
            Ok(pool.remaining_lease(&id)?.is_none())
        })?;
        let took = since.elapsed();
        let in_time = took + EARLY >= left && took <= left + LATE;
        kept &= in_time;
        stage.say(&format!(
            "after {} ms it is back{}",
            took.as_millis(),
            if in_time { "" } else { ": WRONG" },
        ))?;
    }

    for process in &mut living {
        let most: u32 = stage.hear(process)?.parse()?;
        kept &= most <= POOL;
        stage.say(&format!(
            "process {}: all its uses are done, at most {most} permits were in use at once",
            process.pid(),
        ))?;
    }
    let (free, all) = (pool.available_permits()?, pool.permits()?);
    kept &= free == i64::from(POOL) && all == free;
    stage.say(&format!(
        "\n{free} of {POOL} permits are free at the end{}",
        if kept { ", though nobody gave the dead's back." } else { ": WRONG." },
    ))?;
    Ok(kept)
}

/// A permit whose process was killed.
struct Dead {
    id: PermitId,
    /// The remaining lease at the time of the kill.
    left: Duration,
    since: Instant,
}
