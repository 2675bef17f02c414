//! Shows a semaphore with 3 permits. Of 20 threads in 3 processes, at most 3 threads use a pool at
//! the same time: `cargo run --example semaphore`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Commands, Connection};
use redlatch::{Client, Semaphore};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const POOL: u32 = 3;
/// The number of threads of each process.
const THREADS: [usize; 3] = [7, 7, 6];
/// The number of times that each thread uses the pool, and the length of each use.
const USES: usize = 5;
const USE: Duration = Duration::from_millis(40);

fn main() -> ExitCode {
    stage::play("semaphore", show, process)
}

/// The work of each thread. Returns the largest number of users that it saw, and its longest wait.
fn work(pool: &Semaphore, redis: &mut Connection) -> Result<(u32, Duration), Trouble> {
    let in_use = format!("{}:in_use", pool.name());
    let (mut most, mut longest) = (0, Duration::ZERO);
    for _ in 0..USES {
        let asked = Instant::now();
        let permit = pool.acquire()?;
        longest = longest.max(asked.elapsed());
        // The users are counted without the semaphore.
        most = most.max(redis.incr(&in_use, 1)?);
        thread::sleep(USE);
        redis.decr::<_, _, ()>(&in_use, 1)?;
        // A drop would also give the permit back, but would not wait for the server.
        permit.release()?;
    }
    Ok((most, longest))
}

/// The work of each process.
fn process(job: &Job) -> Result<(), Trouble> {
    let (url, name, threads) = (job.arg(0), job.arg(1), job.arg(2).parse()?);
    let pool = Client::connect(url)?.semaphore(name);
    let redis = redis::Client::open(url)?;
    let mut connections = Vec::new();
    for _ in 0..threads {
        connections.push(redis.get_connection()?);
    }
    job.say("ready");
    let _begin = job.wait_line();

    let (most, longest) = thread::scope(|scope| {
        let workers: Vec<_> = connections
            .iter_mut()
            .map(|connection| scope.spawn(|| work(&pool, connection)))
            .collect();
        let mut all = (0, Duration::ZERO);
        for worker in workers {
            let (most, longest) = worker.join().map_err(|_| "a thread panicked")??;
            all = (all.0.max(most), all.1.max(longest));
        }
        Ok::<_, Trouble>(all)
    })?;
    job.say(&format!("{most} {}", longest.as_millis()));
    Ok(())
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let pool = Client::connect(stage.url())?.semaphore(&stage.name);
    pool.try_set_permits(POOL)?;
    stage.say(&format!(
        "{} threads in {} processes share {POOL} permits; each takes one {USES} times, for {} ms.\n",
        THREADS.iter().sum::<usize>(),
        THREADS.len(),
        USE.as_millis(),
    ))?;

    let start = |threads: usize| {
        Worker::spawn("process", &[stage.url(), &stage.name, &threads.to_string()])
    };
    let mut processes: Vec<Worker> = THREADS.into_iter().map(start).collect();
    for process in &mut processes {
        stage.hear(process)?;
    }
    let began = Instant::now();
    for process in &mut processes {
        process.send_line("begin");
    }
    let mut most_of_all = 0;
    for (process, threads) in processes.iter_mut().zip(THREADS) {
        let result = stage.hear(process)?;
        let (most, longest) = result.split_once(' ').ok_or("a process mumbles")?;
        most_of_all = most_of_all.max(most.parse()?);
        stage.say(&format!(
            "process {}: {threads} threads, {} uses, at most {most} in use at once, longest wait \
             {longest} ms",
            process.pid(),
            threads * USES,
        ))?;
    }
    let took = began.elapsed();

    let free = pool.available_permits()?;
    let kept = most_of_all <= POOL && free == i64::from(POOL);
    stage.say(&format!(
        "\n{:.2} s in all. At most {most_of_all} were in use at once, and {free} permits are free \
         at the end{}",
        took.as_secs_f64(),
        if kept { "." } else { ": WRONG." },
    ))?;
    Ok(kept)
}
