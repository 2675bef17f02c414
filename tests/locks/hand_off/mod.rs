//! The hand-off of a lock from one process to another. No process is skipped, and no process keeps
//! the lock for too long. Lost messages and replies cost little time and no hold.
//!
//! `models/lock/` tests the scripts alone. The tests here run the scripts through the library.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::{Commands as _, Connection};
use redlatch::{
    CancelToken, Client, Error, ErrorKind, HoldState, LockGuard, LostReason, ReentrantLock,
};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The lease of a grant by message, as in `lua/hand_off.lua`.
const PROVISIONAL: Duration = Duration::from_secs(2);

/// The entry point of the worker processes, which run this executable with only this test. A worker
/// keeps a lock until the test ends the hold.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0)).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let guard = client.reentrant_lock(job.arg(1)).lock().unwrap();
    job.say("in");
    let _ = job.wait_line();
    guard.unlock().unwrap();
    job.say("out");
    let _ = job.wait_line();
}

fn process(server: &Server, name: &str) -> Worker {
    Worker::spawn_test("hand_off::worker", "guest", &[&server.url(), name])
}

/// A thread that takes a lock and keeps it until the test makes it leave.
struct Guest {
    entered: Receiver<Instant>,
    leave: Sender<()>,
    thread: Running<Result<(), Error>>,
}

impl Guest {
    fn of(lock: &ReentrantLock) -> Self {
        let lock = lock.clone();
        let (tell, entered) = mpsc::channel();
        let (leave, told) = mpsc::channel();
        let thread = spawn(move || {
            let guard = lock.lock()?;
            tell.send(Instant::now()).unwrap();
            // Blocks until the test makes the guest leave, or until a failed test ends.
            let _ = told.recv();
            guard.unlock()
        });
        Self { entered, leave, thread }
    }

    /// Starts a guest that waits as the last of `places` waiters in the queue.
    fn in_line(server: &Server, client: &Client, name: &str, places: u64) -> Self {
        let guest = Self::of(&client.reentrant_lock(name));
        wait_in_line(server, name, places);
        guest
    }

    fn is_in(&self) -> bool {
        self.entered.try_recv().is_ok()
    }

    fn wait_in(&self) -> Instant {
        self.entered.recv_timeout(TIMEOUT).expect("it is let in")
    }

    fn leaves(self) {
        self.ends().unwrap();
    }

    fn ends(self) -> Result<(), Error> {
        drop(self.leave);
        self.thread.join()
    }
}

fn queue_key(name: &str) -> String {
    match name.contains('{') {
        true => format!("redlatch_queue_tagged:{name}"),
        false => format!("redlatch_queue:{{{name}}}"),
    }
}

fn queue(redis: &mut Connection, name: &str) -> Vec<String> {
    redis.lrange(queue_key(name), 0, -1).unwrap()
}

fn owner(redis: &mut Connection, name: &str) -> Option<String> {
    holder(redis, name).map(|(owner, _)| owner)
}

fn wait_owner(redis: &mut Connection, name: &str, expected: &str) {
    wait_until("the lock has this owner", TIMEOUT, || {
        owner(redis, name).is_some_and(|owner| owner == expected)
    });
}

/// Waits until the lock has no owner and no waiter.
fn wait_left(server: &Server, name: &str) {
    wait_free(server, name, TIMEOUT);
    let mut redis = server.connection();
    wait_until("nobody stands in line", TIMEOUT, || queue(&mut redis, name).is_empty());
}

macro_rules! lock_script {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../../../lua/lock/", $file))),+)
    };
}

const RENEW: &[&str] = &[lock_script!("cut.lua", "renew.lua")];
/// The texts of the script that acquires. The second text is for a lock that is probably held.
const ACQUIRE: &[&str] = &[
    lock_script!(
        "free.lua",
        "queue_up.lua",
        "../prelude.lua",
        "../hand_off.lua",
        "holder.lua",
        "owner.lua",
        "acquire.lua"
    ),
    lock_script!(
        "queue_up.lua",
        "free.lua",
        "../prelude.lua",
        "../hand_off.lua",
        "holder.lua",
        "owner.lua",
        "acquire.lua"
    ),
];
const RELEASE: &[&str] = &[lock_script!(
    "hand_over.lua",
    "../prelude.lua",
    "../hand_off.lua",
    "holder.lua",
    "release.lua"
)];

mod coming;
mod handed;
mod lease;
mod leaving;
mod messages;
mod missing;
mod redisson;
mod silent;

/// The texts of one script.
type Codes = &'static [&'static str];

/// Whether the request runs this script for this lock.
fn runs(bytes: &[u8], codes: Codes, name: &str) -> bool {
    let is_run =
        |code: &&str| contains(bytes, redis::Script::new(code).get_hash()) || contains(bytes, code);
    contains(bytes, name) && codes.iter().any(is_run)
}

/// Applies the action to the next requests that run this script for this lock.
fn on_script(proxy: &Proxy, codes: Codes, name: &'static str, shots: usize, action: Action) {
    proxy.on(Direction::Request, shots, action, move |bytes| runs(bytes, codes, name));
}

/// Counts the requests that run this script for this lock, from now on.
fn count_script(proxy: &Proxy, codes: Codes, name: &str) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let (seen, name) = (Arc::clone(&count), name.to_owned());
    proxy.on(Direction::Request, 1, Action::Silence, move |bytes| {
        if runs(bytes, codes, &name) {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        false
    });
    count
}

/// Makes a client behind the proxy wait, and grants it the lock by a message. Runs `work` with that
/// hold and the time of the grant. If a reply to a request of the client comes before the message,
/// tries again.
fn handed<T: Send + 'static>(
    server: &Server,
    proxy: &Proxy,
    lock: &ReentrantLock,
    work: impl FnOnce(LockGuard, Instant) -> T + Send + 'static,
) -> Running<T> {
    let name = lock.name().to_owned();
    let asked = count_script(proxy, ACQUIRE, &name);
    let giving = client(server).reentrant_lock(&name);
    let mut giver = giving.lock().unwrap();
    let (tell, told) = mpsc::channel();
    let (say, said) = mpsc::channel();
    let (lock, count) = (lock.clone(), Arc::clone(&asked));
    let taker = spawn(move || {
        loop {
            let guard = lock.lock().unwrap();
            let (entered, questions) = (Instant::now(), count.load(Ordering::SeqCst));
            let by_message = questions == told.recv().unwrap();
            say.send(by_message).unwrap();
            if by_message {
                return work(guard, entered);
            }
            guard.unlock().unwrap();
            // The test has taken the lock again, so the next round can wait.
            let _: u64 = told.recv().unwrap();
        }
    });
    let begun = Instant::now();
    loop {
        wait_in_line(server, &name, 1);
        // Once the waiter sleeps in the queue, all its requests so far have replies.
        let questions = asked.load(Ordering::SeqCst);
        taker.wait_queued();
        tell.send(questions).unwrap();
        giver.unlock().unwrap();
        if said.recv().unwrap() {
            return taker;
        }
        assert!(begun.elapsed() < TIMEOUT, "no message ever granted it");
        giver = giving.lock().unwrap();
        tell.send(0).unwrap();
    }
}

/// Returns a client that connects through a proxy. The client's connections are open, and the
/// server has its scripts. The client waits for replies for as long as a test holds them back.
fn behind(server: &Server, proxy: &Proxy) -> Client {
    behind_by(server, proxy, 1)
}

/// Like [`behind`], with this number of connections.
fn behind_by(server: &Server, proxy: &Proxy, connections: usize) -> Client {
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG_LEASE)
        .response_timeout(TIMEOUT)
        .connections(connections)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("warm");
    let guards = (lock.lock().unwrap(), lock.with_lease(LONG_LEASE * 2).lock().unwrap());
    guards.0.unlock().unwrap();
    guards.1.unlock().unwrap();
    warm_up(server, &client);
    client
}

/// Makes the client subscribe to its own channel. A client subscribes when it first waits. Until
/// the subscription is confirmed, scripts treat the client as dead, and the waiter sends another
/// request after the confirmation.
fn warm_up(server: &Server, client: &Client) {
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "warm", LONG_LEASE);
    let guest = Guest::in_line(server, client, "warm", 1);
    let place = queue(&mut redis, "warm").remove(0);
    wait_subscribed(server, &own_channel(&place));
    // Only an arriving message shows that the subscription is confirmed, so send a release.
    wait_subscribed(server, &channel("warm"));
    release_as_redisson(&mut redis, "warm", &channel("warm"));
    guest.wait_in();
    guest.leaves();
}

/// Returns a client that has subscribed to its own channel.
fn warm(server: &Server) -> Client {
    let client = client(server);
    warm_up(server, &client);
    client
}

/// Counts the keys that expire from now on, except the keys that record when an owner sent a
/// request. Those keys always expire.
struct Lapses {
    sender: Connection,
    listener: Connection,
    seen: Vec<String>,
}

impl Lapses {
    fn of(server: &Server) -> Self {
        let (mut sender, mut listener) = (server.connection(), server.connection());
        let events = ["SET", "notify-keyspace-events", "Ex"];
        redis::cmd("CONFIG").arg(&events).exec(&mut sender).unwrap();
        let channels = ["__keyevent@0__:expired", "end"];
        listener
            .send_packed_command(&redis::cmd("SUBSCRIBE").arg(&channels).get_packed_command())
            .unwrap();
        Self { sender, listener, seen: Vec::new() }
    }

    /// The number of keys that have expired.
    fn so_far(&mut self) -> usize {
        let () = self.sender.publish("end", "").unwrap();
        loop {
            let Some(message) = redis::Msg::from_value(&self.listener.recv_response().unwrap())
            else {
                continue;
            };
            if message.get_channel_name() == "end" {
                return self.seen.len();
            }
            let key: String = message.get_payload().unwrap();
            if !key.starts_with("redlatch_asked") {
                self.seen.push(key);
            }
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}
