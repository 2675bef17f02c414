//! Shows that many threads in 3 processes read a price list at the same time, and that no thread
//! ever sees half a change: `cargo run --example read_write`

mod stage;

use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Commands, Connection};
use redlatch::{Client, ReadWriteLock};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const PROCESSES: usize = 3;
const READERS: usize = 4;
const CHANGES: i64 = 40;
/// The time from the first half of a change to its second half, and the length of a read.
const STEP: Duration = Duration::from_millis(3);

fn main() -> ExitCode {
    stage::play("read_write", show, process)
}

/// Returns whether the list's two prices are equal. The two prices differ in the middle of a
/// change.
fn is_whole(redis: &mut Connection, name: &str) -> Result<bool, Trouble> {
    let first: i64 = redis.get(format!("{name}:first"))?;
    thread::sleep(STEP);
    let second: i64 = redis.get(format!("{name}:second"))?;
    Ok(first == second)
}

fn change(redis: &mut Connection, name: &str, price: i64) -> Result<(), Trouble> {
    redis.set::<_, _, ()>(format!("{name}:first"), price)?;
    thread::sleep(STEP);
    redis.set::<_, _, ()>(format!("{name}:second"), price)?;
    Ok(())
}

/// The results of a list's readers.
#[derive(Default)]
struct Seen {
    reads: AtomicU64,
    halves: AtomicU64,
    inside: AtomicI64,
    together: AtomicI64,
}

impl Seen {
    fn read(&self, redis: &mut Connection, name: &str) -> Result<(), Trouble> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.together.fetch_max(inside, Ordering::SeqCst);
        let whole = is_whole(redis, name)?;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.halves.fetch_add(u64::from(!whole), Ordering::SeqCst);
        Ok(())
    }
}

/// Reads until the last change.
fn read(lock: Option<&ReadWriteLock>, url: &str, name: &str, seen: &Seen) -> Result<(), Trouble> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    while redis.get::<_, i64>(format!("{name}:second"))? < CHANGES {
        let Some(lock) = lock else {
            seen.read(&mut redis, name)?;
            continue;
        };
        let reading = lock.reader().lock()?;
        seen.read(&mut redis, name)?;
        reading.unlock()?;
    }
    Ok(())
}

/// The work of each process.
fn process(job: &Job) -> Result<(), Trouble> {
    let (url, name, locked) = (job.arg(0), job.arg(1), job.arg(2) == "locked");
    let client = Client::connect(url)?;
    let lock = client.read_write_lock(name);
    let seen = Seen::default();
    job.say("ready");
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| scope.spawn(|| read(locked.then_some(&lock), url, name, &seen)))
            .collect();
        for reader in readers {
            reader.join().map_err(|_| "a thread panicked")??;
        }
        Ok::<_, Trouble>(())
    })?;
    let [reads, halves] = [&seen.reads, &seen.halves].map(|it| it.load(Ordering::SeqCst));
    job.say(&format!("{reads} {halves} {}", seen.together.load(Ordering::SeqCst)));
    Ok(())
}

/// Returns the number of reads that saw half a change, and the number of threads of a process that
/// read at a time.
fn act(stage: &Stage, locked: bool) -> Result<(u64, i64), Trouble> {
    let how = if locked { "locked" } else { "unlocked" };
    let name = format!("{}:{how}", stage.name);
    let mut redis = redis::Client::open(stage.url())?.get_connection()?;
    change(&mut redis, &name, 0)?;
    let start = || Worker::spawn("process", &[stage.url(), &name, how]);
    let mut processes: Vec<Worker> = (0..PROCESSES).map(|_| start()).collect();
    for process in &mut processes {
        stage.hear(process)?;
    }
    let lock = Client::connect(stage.url())?.read_write_lock(&name);
    let (mut longest, mut kept) = (Duration::ZERO, true);
    for price in 1..=CHANGES {
        if !locked {
            change(&mut redis, &name, price)?;
            thread::sleep(STEP);
            continue;
        }
        let asked = Instant::now();
        let writing = lock.writer().lock()?;
        longest = longest.max(asked.elapsed());
        change(&mut redis, &name, price)?;
        // The writer keeps a read lock. Other threads may now read, and no thread has written in
        // between.
        let reading = lock.reader().lock()?;
        writing.unlock()?;
        kept &= redis.get::<_, i64>(format!("{name}:first"))? == price;
        reading.unlock()?;
        thread::sleep(STEP);
    }
    let (mut reads, mut halves, mut together) = (0, 0, 0);
    for process in &mut processes {
        let said = stage.hear(process)?;
        let said: Vec<i64> = said.split(' ').filter_map(|it| it.parse().ok()).collect();
        let [read, half, most] = said[..] else { return Err("a process mumbles".into()) };
        reads += read;
        halves += half;
        together = together.max(most);
    }
    stage.say(&format!(
        "{how}: {CHANGES} changes, {reads} reads, {halves} of half a change; up to {together} of \
         {READERS} threads of a process read at once{}",
        if locked {
            format!("; the writer waited for {} ms at most", longest.as_millis())
        } else {
            String::new()
        },
    ))?;
    if !kept {
        return Err("somebody wrote while the writer went down to reading".into());
    }
    Ok((u64::try_from(halves)?, together))
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    stage.say(&format!(
        "{PROCESSES} processes of {READERS} threads read a list of prices while one changes it, which \
         takes {} ms each time.\n",
        STEP.as_millis()
    ))?;
    let (without, _) = act(stage, false)?;
    let (with, together) = act(stage, true)?;
    let kept = without > 0 && with == 0 && together > 1;
    stage.say(if kept {
        "\nWithout the lock readers saw halves; with it none did, and they read together."
    } else {
        "\nWRONG: that is not what a read-write lock is for."
    })?;
    Ok(kept)
}
