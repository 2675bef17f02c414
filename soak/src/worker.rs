//! A worker process: its threads do random operations and record the results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::{Client, ClientBuilder};
use redlatch_testkit::Job;

use crate::clock::{ms, now};
use crate::history::{Event, Log};
use crate::store::Store;

mod barrier;
mod calls;
mod election;
mod evals;
mod held;
mod kept;
mod locks;
mod semaphores;
mod several;
mod wanted;

/// The time for which a name is used if it may lose its count or its order (permits, latches).
const SPAN: u64 = ms(5000);
/// The lease of most holds, which the watchdog renews. A pause of 5 s is longer than this lease.
const WATCHDOG: Duration = Duration::from_millis(3000);
const RESPONSE: Duration = Duration::from_millis(1500);
/// The time before the end of its lease at which a leader steps down.
const GRACE: Duration = Duration::from_millis(400);
/// The time that a call without a limit may take in an outage: it connects, sends its request, and
/// sends it again.
const LONGEST_REQUEST: Duration = Duration::from_secs(8);
/// The capacity of a read-write lock. A writer takes the whole capacity.
const READERS: u64 = 1000;
const PERMITS: u64 = 3;
const COUNT: u64 = 4;
pub(crate) const PARTIES: u32 = 3;

/// A worker's arguments. The parent process writes them, and the worker reads them.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) url: String,
    pub(crate) store: String,
    pub(crate) log: String,
    /// The prefix of all names.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    /// The kinds of work to do, or empty for all kinds.
    pub(crate) only: String,
}

impl Task {
    pub(crate) fn args(&self) -> Vec<String> {
        let (seed, threads) = (self.seed.to_string(), self.threads.to_string());
        let all = [&self.url, &self.store, &self.log, &self.prefix, &seed, &threads, &self.only];
        all.into_iter().cloned().collect()
    }

    fn of(job: &Job) -> Self {
        let number = |at| job.arg(at).parse().unwrap_or_default();
        let text = |at| job.arg(at).to_owned();
        Self {
            url: text(0),
            store: text(1),
            log: text(2),
            prefix: text(3),
            seed: number(4),
            threads: usize::try_from(number(5)).unwrap_or(1),
            only: job.args().get(6).cloned().unwrap_or_default(),
        }
    }
}

/// The state that the threads of the process share.
#[derive(Debug)]
struct Shared {
    log: Log,
    ids: AtomicU64,
    is_ending: AtomicBool,
    /// The number of the last latch, and whether its count was certainly set.
    latch: Mutex<(u64, bool)>,
}

impl Shared {
    fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn odd(&self, text: String) {
        self.log.write(&Event::Odd { at: now(), text });
    }
}

/// Runs the worker's threads until the parent sends the next line, and then ends the process.
pub(crate) fn run(job: &Job) -> ! {
    let task = Task::of(job);
    let Ok(log) = Log::create(&task.log) else { panic!("{} cannot be written", task.log) };
    let latch = Mutex::new((0, false));
    let shared =
        Arc::new(Shared { log, ids: AtomicU64::new(1), is_ending: AtomicBool::new(false), latch });
    let client = connect(&task.url);
    let threads: Vec<_> = (0..task.threads)
        .map(|number| {
            let (client, shared, task) = (client.clone(), Arc::clone(&shared), task.clone());
            thread::spawn(move || Worker::new(client, shared, task, number).run())
        })
        .collect();
    job.say("ready");
    let _end = job.wait_line();
    shared.is_ending.store(true, Ordering::Relaxed);
    for thread in threads {
        if thread.join().is_err() {
            shared.odd("a thread panicked".to_owned());
        }
    }
    client.shutdown();
    job.say("done");
    let _end = job.wait_line();
    job.done()
}

/// Returns a builder with the settings of the soak's clients.
pub(crate) fn client(url: &str) -> ClientBuilder {
    Client::builder(url)
        .watchdog_timeout(WATCHDOG)
        .response_timeout(RESPONSE)
        .connect_timeout(Duration::from_millis(1500))
        .failover_timeout(Duration::from_secs(20))
}

/// Connects. The server may have a fault now, so the call tries again.
fn connect(url: &str) -> Client {
    loop {
        match client(url).connect() {
            Ok(client) => return client,
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

struct Worker {
    client: Client,
    shared: Arc<Shared>,
    task: Task,
    store: Store,
    rng: StdRng,
    /// The number of this thread in its process.
    number: usize,
    /// The last span in which this thread used a latch.
    latch: u64,
    /// The time within a span at which this thread uses the latch.
    turn: u64,
}

type Work = fn(&mut Worker);

/// The kinds of work, each with its name for `--only` and its weight in the random choice.
const WORK: [(&str, u32, Work); 22] = [
    ("reentrant", 150, Worker::reentrant),
    ("fair", 70, Worker::fair),
    ("readwrite", 80, Worker::read_write),
    ("fenced", 62, Worker::fenced),
    ("multi", 36, Worker::multi),
    ("several", 50, Worker::several),
    ("semaphore", 48, Worker::semaphore),
    ("expirable", 48, Worker::expirable),
    ("latch", 24, Worker::latch),
    ("condition", 24, Worker::condition),
    ("long", 3, Worker::long),
    ("lapse", 3, Worker::lapse),
    ("wanted", 8, Worker::wanted),
    ("late", 50, Worker::late),
    ("lateread", 12, Worker::late_read),
    ("short", 30, Worker::short_limits),
    ("least", 60, Worker::least),
    ("once", 36, Worker::once),
    ("left", 36, Worker::left),
    ("election", 24, Worker::election),
    ("barrier", 60, Worker::barrier),
    ("evals", 50, Worker::evals),
];

/// The names of all kinds of work.
pub(crate) fn kinds() -> [&'static str; WORK.len()] {
    WORK.map(|(kind, ..)| kind)
}

impl Worker {
    fn new(client: Client, shared: Arc<Shared>, task: Task, number: usize) -> Self {
        let store = Store::connect(&task.store).unwrap_or_else(|error| panic!("no store: {error}"));
        let seed = task.seed.wrapping_mul(1000).wrapping_add(number as u64);
        Self {
            client,
            shared,
            task,
            store,
            rng: StdRng::seed_from_u64(seed),
            number,
            latch: 0,
            turn: SPAN / 5,
        }
    }

    fn run(mut self) {
        let only = self.task.only.clone();
        let is_wanted = |kind| only.is_empty() || only.split(',').any(|it| it == kind);
        let work: Vec<_> = WORK.iter().filter(|(kind, ..)| is_wanted(*kind)).collect();
        while !self.shared.is_ending.load(Ordering::Relaxed) {
            let Ok((_, _, act)) = work.choose_weighted(&mut self.rng, |(_, share, _)| *share)
            else {
                return;
            };
            act(&mut self);
        }
    }

    fn one_of(&mut self, kind: &str, names: u32) -> String {
        format!("{}{kind}-{}", self.task.prefix, self.rng.random_range(0..names))
    }

    /// Returns a name that is used only in this span.
    fn of_now(&mut self, kind: &str, names: u32) -> String {
        format!("{}-{}", self.one_of(kind, names), now() / SPAN)
    }
}
