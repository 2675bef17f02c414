//! The behaviour of the fair lock, in addition to that of every lock: the order, and all events in
//! the queue. The queue and the set of the waiters' scores agree, and are empty at the end.

mod giving_up;
mod losing;
mod messages;
mod order;
mod places;
mod races;
mod redisson;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, Error, ErrorKind, FairLock, Lock};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The time that a dead waiter at the head may cost the other waiters in these tests. A waiter
/// sends a keep-alive every third of this time, so it keeps its place on a machine that stands
/// still for a second and a half.
const FAIR_WAIT: Duration = Duration::from_millis(25 * TIME_UNIT.as_millis() as u64);
/// The lease of a grant by message.
const PROVISIONAL: Duration = Duration::from_secs(2);
/// A lease that is short enough for a test to wait for its end.
const LEASE: Duration = Duration::from_millis(6 * TIME_UNIT.as_millis() as u64);

/// Returns a client for which dead waiters cost little time.
fn quick(server: &Server) -> Client {
    quick_at(&server.url())
}

/// Returns a client for which dead waiters cost more time than a test waits.
fn slow(server: &Server) -> Client {
    let builder = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE);
    builder.fair_wait_timeout(LONG_LEASE).connect().unwrap()
}

fn quick_at(url: &str) -> Client {
    Client::builder(url)
        .watchdog_timeout(LONG_LEASE)
        .fair_wait_timeout(FAIR_WAIT)
        .connect()
        .unwrap()
}

fn queue_key(name: &str) -> String {
    format!("redisson_lock_queue:{{{name}}}")
}

fn timeouts_key(name: &str) -> String {
    format!("redisson_lock_timeout:{{{name}}}")
}

/// Returns the owners in the queue, in their order.
fn queue(server: &Server, name: &str) -> Vec<String> {
    server.connection().lrange(queue_key(name), 0, -1).unwrap()
}

/// Waits until `length` owners are in the queue, and checks that the set has the same owners.
#[track_caller]
fn wait_queue(server: &Server, name: &str, length: usize) -> Vec<String> {
    wait_until(&format!("{length} stand in the queue"), TIMEOUT, || {
        queue(server, name).len() == length
    });
    // The commands are no transaction, because a server without memory refuses transactions.
    let line = queue(server, name);
    let scored: Vec<String> = server.connection().zrange(timeouts_key(name), 0, -1).unwrap();
    let sorted = |mut all: Vec<String>| {
        all.sort();
        all
    };
    assert_eq!(sorted(line.clone()), sorted(scored), "queue and set differ");
    line
}

/// Waits until the server has no key of the lock.
#[track_caller]
fn leaves_nothing(server: &Server, name: &str) {
    let mut redis = server.connection();
    let keys = [name.to_owned(), queue_key(name), timeouts_key(name)];
    let until = Instant::now() + TIMEOUT;
    loop {
        let left: Vec<_> =
            keys.iter().filter(|key| redis.exists::<_, bool>(*key).unwrap()).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left behind: {left:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Threads that take the lock one after the other. Each thread records its number.
struct Line {
    server_url: String,
    served: Arc<Mutex<Vec<usize>>>,
    threads: Vec<Running<()>>,
}

impl Line {
    fn new(server: &Server) -> Self {
        Self { server_url: server.url(), served: Arc::default(), threads: Vec::new() }
    }

    /// Adds a thread at the end of the queue.
    #[track_caller]
    fn add(&mut self, lock: &FairLock) {
        let mut redis = redis::Client::open(&*self.server_url).unwrap().get_connection().unwrap();
        let mut length = || redis.llen::<_, usize>(queue_key(lock.name())).unwrap();
        let before = length();
        let (served, lock, at) = (Arc::clone(&self.served), lock.clone(), self.threads.len());
        self.threads.push(spawn(move || {
            let guard = lock.lock().unwrap();
            served.lock().unwrap().push(at);
            // A thread must record its number before it passes the lock on.
            guard.unlock().unwrap();
        }));
        wait_until("it stands in the queue", TIMEOUT, || length() > before);
    }

    fn join(self) -> Vec<usize> {
        self.threads.into_iter().for_each(Running::join);
        let served = self.served.lock().unwrap();
        served.clone()
    }
}

/// The number of bytes that the server has read.
fn received(redis: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query(redis).unwrap();
    let bytes = stats.lines().find_map(|line| line.strip_prefix("total_net_input_bytes:"));
    bytes.unwrap().parse().unwrap()
}

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let mut builder = Client::builder(job.arg(0)).watchdog_timeout(SHORT_LEASE);
    if job.role() != "slow" {
        builder = builder.fair_wait_timeout(FAIR_WAIT);
    }
    let client = builder.connect().unwrap();
    let lock = client.fair_lock(job.arg(1));
    job.say("waits");
    let guard = lock.lock().unwrap();
    let mut redis = redis::Client::open(job.arg(0)).unwrap().get_connection().unwrap();
    let () = redis.rpush("served", job.arg(2)).unwrap();
    job.say("got it");
    if job.role() == "holder" {
        let _ = job.wait_line();
    }
    guard.unlock().unwrap();
    job.say("released");
    let _ = job.wait_line();
}

/// Starts a process that is in the queue, behind the earlier waiters.
fn process(role: &str, server: &Server, name: &str, at: usize) -> Worker {
    let before = queue(server, name).len();
    let mut worker =
        Worker::spawn_test("fair_lock::worker", role, &[&server.url(), name, &at.to_string()]);
    worker.expect_line("waits", TIMEOUT);
    if role == "holder" {
        worker.expect_line("got it", TIMEOUT);
    } else {
        wait_until("it stands in the queue", TIMEOUT, || queue(server, name).len() > before);
    }
    worker
}

fn served(server: &Server) -> Vec<usize> {
    server.connection().lrange("served", 0, -1).unwrap()
}

/// Returns a client that connects through a proxy. The client's connection is open, and the server
/// has its scripts.
fn behind(proxy: &Proxy) -> Client {
    let client =
        impatient(&proxy.url()).connections(1).fair_wait_timeout(FAIR_WAIT).connect().unwrap();
    let lock = client.fair_lock("warm");
    let guard = lock.lock().unwrap();
    let waits = client.fair_lock("warm");
    assert!(elsewhere(move || answered(|| waits.try_lock_for(TIME_UNIT / 10))
        .into_option()
        .is_none()));
    guard.unlock().unwrap();
    client
}

/// Applies the action to the next scripts of this name.
fn on_script(proxy: &Proxy, name: &str, times: usize, action: Action) {
    let name = name.to_owned();
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, &name)
    });
}

/// Starts a thread that waits for the lock until it is cancelled.
fn waits(lock: &FairLock) -> (Running<Result<(), Error>>, CancelToken) {
    let (lock, token) = (lock.clone(), CancelToken::new());
    let cancel = token.clone();
    (spawn(move || lock.lock_cancellable(&token)?.unlock()), cancel)
}
