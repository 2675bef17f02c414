//! Shows two conditions of one lock. Bakers and guests in several processes share a counter with
//! room for four cakes, and some processes are killed at work: `cargo run --example bounded_buffer`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use redlatch::{Client, Condition, ReentrantLock};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

/// The number of cakes that fit on the counter.
const ROOM: u64 = 4;
/// The number of cakes to eat.
const CAKES: u64 = 200;
const BAKERS: usize = 3;
const GUESTS: usize = 3;
/// Each time the guests have eaten this many cakes, one process is killed.
const KILLED_EACH: u64 = 25;
/// The lock of a killed process is free after this time.
const LEASE: Duration = Duration::from_millis(500);
/// The time without a change after which a process sleeps although it should work.
const STILL: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    stage::play("bounded_buffer", show, process)
}

/// A bounded buffer that all processes share: a list in Redis.
struct Counter {
    lock: ReentrantLock,
    not_empty: Condition,
    not_full: Condition,
    redis: redis::Connection,
    name: String,
}

impl Counter {
    fn open(client: &Client, url: &str, name: &str) -> Result<Self, Trouble> {
        let lock = client.reentrant_lock(name);
        let [not_empty, not_full] = ["not_empty", "not_full"].map(|it| lock.condition(it));
        let redis = redis::Client::open(url)?.get_connection()?;
        Ok(Self { lock, not_empty, not_full, redis, name: name.to_owned() })
    }

    /// Puts a cake on the counter. Waits for room.
    fn put(&mut self) -> Result<(), Trouble> {
        let Self { lock, not_empty, not_full, redis, name } = self;
        let guard = lock.lock()?;
        not_full.try_wait_while(&guard, || Ok::<_, Trouble>(on_it(redis, name)? >= ROOM))?;
        // Notify before the change: if this process dies in between, it has woken another process
        // without a reason. In the other order, a process could sleep although there is a cake.
        not_empty.notify_one()?;
        dawdle();
        let keys = [format!("{name}:cakes"), format!("{name}:baked")];
        let () = redis::pipe().atomic().rpush(&keys[0], 1).incr(&keys[1], 1).query(redis)?;
        dawdle();
        guard.unlock()?;
        Ok(())
    }

    /// Takes a cake. Waits until there is a cake.
    fn take(&mut self) -> Result<(), Trouble> {
        let Self { lock, not_empty, not_full, redis, name } = self;
        let guard = lock.lock()?;
        not_empty.try_wait_while(&guard, || Ok::<_, Trouble>(on_it(redis, name)? == 0))?;
        not_full.notify_one()?;
        dawdle();
        let () = redis.rpoplpush(format!("{name}:cakes"), format!("{name}:eaten"))?;
        dawdle();
        guard.unlock()?;
        Ok(())
    }
}

fn on_it(redis: &mut redis::Connection, name: &str) -> redis::RedisResult<u64> {
    redis.llen(format!("{name}:cakes"))
}

/// Waits for a moment, so that some processes are killed at this point.
fn dawdle() {
    thread::sleep(Duration::from_micros(500));
}

/// The work of each process, which ends when the process is killed.
fn process(job: &Job) -> Result<(), Trouble> {
    let client = Client::builder(job.arg(0)).watchdog_timeout(LEASE).connect()?;
    let mut counter = Counter::open(&client, job.arg(0), job.arg(1))?;
    job.say("starts");
    loop {
        match job.role() {
            "baker" => counter.put()?,
            _ => counter.take()?,
        }
    }
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let start = |role: &str| Worker::spawn(role, &[stage.url(), &stage.name]);
    let roles = [["baker"].repeat(BAKERS), ["guest"].repeat(GUESTS)].concat();
    let mut workers: Vec<(&str, Worker)> =
        roles.into_iter().map(|role| (role, start(role))).collect();
    for (_, worker) in &mut workers {
        stage.hear(worker)?;
    }
    stage.say(&format!(
        "{BAKERS} bakers and {GUESTS} guests, each a process; on the counter there is room for \
         {ROOM} cakes.\nWho finds it full, or empty, waits until notified. Now and then one of them \
         is killed, wherever it is,\nand another one comes."
    ))?;

    let mut redis = redis::Client::open(stage.url())?.get_connection()?;
    let number = |redis: &mut redis::Connection, what: &str| -> Result<u64, Trouble> {
        let eaten = what == "eaten";
        let key = format!("{}:{what}", stage.name);
        Ok(if eaten { redis.llen(key)? } else { redis.get::<_, Option<u64>>(key)?.unwrap_or(0) })
    };
    let (mut most, mut killed, mut longest) = (0, 0, Duration::ZERO);
    let (mut last, mut since) = (0, Instant::now());
    while last < CAKES {
        if stage.token.is_cancelled() {
            return Err("interrupted".into());
        }
        most = most.max(on_it(&mut redis, &stage.name)?);
        let eaten = number(&mut redis, "eaten")?;
        if eaten > last {
            longest = longest.max(since.elapsed());
            (last, since) = (eaten, Instant::now());
        } else if since.elapsed() > STILL {
            stage.say(&format!("{eaten:>5} eaten, AND NOBODY MOVES ANY MORE."))?;
            return Ok(false);
        }
        if eaten / KILLED_EACH > killed {
            killed += 1;
            let at = rand::random_range(0..workers.len());
            let (role, worker) = &mut workers[at];
            worker.sigkill();
            stage.say(&format!("{eaten:>5} eaten; a {role} is killed"))?;
            *worker = start(role);
            stage.hear(worker)?;
        }
        thread::sleep(Duration::from_micros(200));
    }
    drop(workers);

    let [baked, eaten] = [number(&mut redis, "baked")?, number(&mut redis, "eaten")?];
    let left = on_it(&mut redis, &stage.name)?;
    stage.say(&format!(
        "{baked} baked, {eaten} eaten, {left} left; never more than {most} on the counter.\n{killed} \
         were killed; the longest that nobody ate was {:.1} s: a lock whose owner dies just when it is \
         handed to it\nis free after 2 s, and its notification goes to another one after a second or \
         so.",
        longest.as_secs_f64()
    ))?;
    let is_true = baked == eaten + left && most <= ROOM;
    if !is_true {
        stage.say("THE COUNTER WAS NOT GUARDED.")?;
    }
    Ok(is_true)
}
