//! The shared parts of the integration tests.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::iter;
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Commands as _, Connection};
use redlatch::{Attempt, Client, ClientBuilder, Credentials, Error, NotTaken};
use redlatch_testkit::{Action, Direction, Proxy, Server};
use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) use redlatch_testkit::wait_until;

/// The unit of every short lease and wait in the tests. Increase it for a slow machine.
pub(crate) const UNIT: Duration = Duration::from_millis(100);
/// The time limit for an event that should come at once.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// A lease whose end a test can wait for. The lease is renewed in time even on a machine that
/// stands still for nearly two seconds, because at least two thirds of it remain at any time.
pub(crate) const RENEWED: Duration = Duration::from_millis(30 * UNIT.as_millis() as u64);
/// A lease that does not end during a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A time that is shorter than the pause between two requests of a waiter. A waiter for a lock asks
/// again after 0.8 s at the earliest (`POLL` in `ask/entry.rs`), and any other waiter after 4 s. If
/// a waiter is granted the lock within this time after its last request, a message therefore woke
/// it.
pub(crate) const BEFORE_A_QUESTION: Duration = Duration::from_millis(700);
/// The time limit for a test. A test that takes longer counts as hanging.
const LIMIT: Duration = Duration::from_secs(90);

thread_local! {
    /// The sender is dropped when the test's thread ends, which is the end of the test.
    static RUNS: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
}

/// Sets a time limit for the calling test. If the test does not end in time, this prints a message
/// and ends the process, because a hang is a failure.
pub(crate) fn bound() {
    let test = thread::current().name().unwrap_or("?").to_owned();
    // On the process's first thread, other tests may have run before.
    if test != "main" && RUNS.with_borrow(Option::is_some) {
        return;
    }
    let (sender, ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            let mut threads = BTreeMap::<_, usize>::new();
            thread_names().into_iter().for_each(|name| *threads.entry(name).or_default() += 1);
            // The test harness would keep the output of `eprintln!` until the end of the test.
            let _ =
                writeln!(io::stderr(), "{test} hangs; the process ends. Its threads: {threads:?}");
            std::process::exit(101);
        }
    });
    RUNS.set(Some(sender));
}

/// Whether the calling test has its own process. A test needs its own process if it counts threads
/// or sets a logger. If the test does not have its own process, the function runs the test in a new
/// process, and returns `false` when the test has passed there.
pub(crate) fn has_own_process() -> bool {
    const OWN: &str = "REDLATCH_TEST_OWN_PROCESS";
    let test = thread::current().name().unwrap_or("main").to_owned();
    // Tests that run one after the other on the first thread are alone in any case.
    if env::var_os(OWN).is_some() || test == "main" {
        return true;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args(["--exact", &test, "--nocapture"]).env(OWN, "").output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    println!("{}", said.concat());
    assert!(output.status.success() && said[0].contains("1 passed"), "{test}: {}", output.status);
    false
}

/// Runs `work` while the system cannot create a thread in this process. Only for a test that has
/// its own process.
pub(crate) fn without_room_for_threads<T>(work: impl FnOnce() -> T) -> T {
    // These threads use the stacks of ended threads, which new threads could otherwise use.
    let all = Arc::new(Barrier::new(33));
    let wait = |_| {
        let all = Arc::clone(&all);
        spawn(move || all.wait().is_leader())
    };
    let waiting: Vec<_> = (1..33).map(wait).collect();
    let before = getrlimit(Resource::As);
    // From here on there is no memory for a thread's stack, but enough for all other allocations.
    let size = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = size.split(' ').next().unwrap().parse().unwrap();
    let full = pages * page_size() as u64 + (1 << 20);
    setrlimit(Resource::As, Rlimit { current: Some(full), ..before }).unwrap();
    let done = work();
    setrlimit(Resource::As, before).unwrap();
    all.wait();
    for thread in waiting {
        let _leader = thread.join();
    }
    done
}

/// Starts a server for the calling test, and [sets a time limit](bound) for the test. If there is
/// no server program, the test kit ends the process with a message.
pub(crate) fn server() -> Server {
    bound();
    unbounded_server()
}

/// Does the same as [`server`], for a test whose length the user sets.
pub(crate) fn unbounded_server() -> Server {
    Server::start().expect("a server to test on")
}

/// Returns a client with leases that do not end during a test.
pub(crate) fn client(server: &Server) -> Client {
    Client::builder(&server.url()).watchdog_timeout(LONG).connect().unwrap()
}

/// Returns a client with this watchdog timeout.
pub(crate) fn watched(server: &Server, lease: Duration) -> Client {
    Client::builder(&server.url()).watchdog_timeout(lease).connect().unwrap()
}

/// An impatient client's wait for a reply or connection. This time is longer than a busy machine
/// stands still.
pub(crate) const IMPATIENT: Duration = Duration::from_millis(15 * UNIT.as_millis() as u64);

/// Returns the settings of a client that waits briefly for replies, and never waits for an
/// unreachable server.
pub(crate) fn impatient(url: &str) -> ClientBuilder {
    Client::builder(url)
        .watchdog_timeout(LONG)
        .response_timeout(IMPATIENT)
        .connect_timeout(IMPATIENT)
        .failover_timeout(Duration::ZERO)
}

/// A number of threads. If the threads waited for [`IMPATIENT`] one after the other, their waits
/// would take more than four times [`SOON`].
pub(crate) const CROWD: usize = 60;

/// Returns a client that connects through a proxy, with one open connection. The server has the
/// scripts that `warm_up` uses.
pub(crate) fn behind(proxy: &Proxy, warm_up: impl FnOnce(&Client)) -> Client {
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    warm_up(&client);
    client
}

/// A lease of an hour, which does not end during a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// After the next grant by message, applies `action` to the next `shots` requests with a lease of
/// about an hour.
pub(crate) fn after_a_grant(proxy: &Proxy, shots: usize, action: Action) {
    let granted = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&granted);
    // This rule only watches the replies, and never fires.
    proxy.on(Direction::Reply, 1, Action::LoseReply, move |bytes| {
        hears.fetch_or(contains(bytes, "grant "), Ordering::SeqCst);
        false
    });
    proxy.on(Direction::Request, shots, action, move |bytes| {
        let is_long = contains(bytes, "\r\n3600000\r\n") || contains(bytes, "\r\n359");
        is_long && granted.load(Ordering::SeqCst)
    });
}

/// Returns the result of a call whose limit is so short that a busy machine may not answer in time.
/// Repeats the call until there is an answer.
#[track_caller]
pub(crate) fn answered<T>(call: impl Fn() -> Result<T, Error>) -> T {
    let until = Instant::now() + SOON;
    loop {
        match call() {
            Err(error) if is_unanswered(&error) && Instant::now() < until => {}
            got => return got.unwrap(),
        }
    }
}

/// Returns the error of a call that must fail. Repeats the call until it fails with an answer.
#[track_caller]
pub(crate) fn refused<T>(call: impl Fn() -> Result<T, Error>) -> Error {
    let refused = || call().err().filter(|error| !is_unanswered(error));
    let mut error = None;
    wait_until("it is refused", SOON, || {
        error = refused();
        error.is_some()
    });
    error.expect("an error")
}

/// Returns the result of a call with a short limit, or `None` if there was no answer.
#[track_caller]
pub(crate) fn if_answered<T>(got: Result<Attempt<T>, Error>) -> Option<T> {
    got.or_else(unanswered).unwrap().into_option()
}

/// Returns `NotTaken` if the error says that the call's own time had passed.
pub(crate) fn unanswered<T>(error: Error) -> Result<Attempt<T>, Error> {
    if is_unanswered(&error) { Ok(NotTaken) } else { Err(error) }
}

fn is_unanswered(error: &Error) -> bool {
    error.to_string().contains("the call's own time was over")
}

/// Asserts that an error concerns the server, names `name`, and has `hint` in its text.
#[track_caller]
pub(crate) fn is_clear(error: &Error, name: &str, hint: &str) {
    assert!(error.kind().is_server_trouble(), "{error}");
    assert_eq!(error.name(), Some(name), "{error}");
    assert!(error.to_string().contains(hint), "no {hint:?} in: {error}");
}

/// Whether this is a server's error for a command that the user may not run, alone or in a script.
/// The texts are those since Redis 7.2, and for a script also the text of Redis 7.0.
pub(crate) fn forbids_a_command(error: &str) -> bool {
    ["no permissions to run", "can't run", "may not run"].iter().any(|said| error.contains(said))
}

pub(crate) fn contains(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

/// Asserts that in these rounds a message wakes the waiter before its next request. Each round must
/// be shorter than the pause before the waiter's next request.
#[track_caller]
pub(crate) fn at_once(mut round: impl FnMut()) {
    once_within(BEFORE_A_QUESTION, || {
        let begun = Instant::now();
        round();
        begun.elapsed()
    });
}

/// Asserts that at least one of these rounds takes less than `bound`. Wrong code takes longer in
/// each round, while a busy machine delays only some rounds.
#[track_caller]
pub(crate) fn once_within(bound: Duration, mut round: impl FnMut() -> Duration) {
    let (since, mut took) = (Instant::now(), Vec::new());
    while since.elapsed() < SOON {
        took.push(round());
        if took.last() < Some(&bound) {
            return;
        }
    }
    panic!("no round took less than {bound:?}: {took:?}");
}

/// A thread of a test. `join` passes its panic on to the test.
pub(crate) struct Running<T> {
    id: u64,
    handle: JoinHandle<T>,
}

/// Starts a thread. Returns when the thread runs.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let (sender, started) = mpsc::channel();
    let handle = thread::spawn(move || {
        sender.send(thread_number()).unwrap();
        work()
    });
    Running { id: started.recv().unwrap(), handle }
}

impl<T> Running<T> {
    /// Waits until the thread has slept for a few milliseconds. The thread then waits for
    /// something, perhaps for the reply to a request.
    pub(crate) fn wait_asleep(&self) {
        self.wait_still(sleeps, || self.is_finished());
    }

    /// Waits until the thread has slept for a few milliseconds, but not for a reply. The thread is
    /// then in a queue. (While its first request is in flight, a later thread may still be granted
    /// the lock before it.)
    pub(crate) fn wait_queued(&self) {
        self.wait_still(sleeps_in_line, || self.is_finished());
    }

    /// Does the same as [`wait_queued`](Self::wait_queued), for a thread that has done its work,
    /// while the destructor of a thread-local waits.
    pub(crate) fn wait_queued_at_its_end(&self) {
        self.wait_still(sleeps_in_line, || false);
    }

    fn wait_still(&self, sleeps: impl Fn(u64) -> Option<u64>, has_ended: impl Fn() -> bool) {
        let mut since = Instant::now();
        let mut last = None;
        wait_until("the thread sleeps", SOON, || {
            assert!(!has_ended(), "the thread has ended and does not wait");
            let seen = sleeps(self.id);
            if seen.is_none() || seen != last {
                last = seen;
                since = Instant::now();
            }
            since.elapsed() > UNIT / 10
        });
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    pub(crate) fn join(self) -> T {
        wait_until("the thread ends", SOON, || self.handle.is_finished());
        self.handle.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Runs `work` on a new thread and waits for its end.
pub(crate) fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn(work).join()
}

/// Waits until this process's threads of this name (its first 15 characters) have nothing to do:
/// they sleep, and not for a reply. Only for a test that has its own process.
pub(crate) fn wait_idle(name: &str) {
    wait_until(&format!("{name} has nothing to do"), SOON, || {
        let mut named = tasks().filter(|(_, thread)| thread == name).map(|(id, _)| id);
        named.all(|id| sleeps_in_line(id).is_some())
    });
}

#[cfg(target_os = "linux")]
fn thread_number() -> u64 {
    let path = fs::read_link("/proc/thread-self").unwrap();
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Returns how many times the thread has fallen asleep, or `None` if it does not sleep now.
#[cfg(target_os = "linux")]
fn sleeps(thread: u64) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let field = |name| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    field("State:")?.starts_with('S').then_some(())?;
    field("voluntary_ctxt_switches:")?.parse().ok()
}

/// Does the same as [`sleeps`], but also returns `None` if the thread sleeps for a reply.
fn sleeps_in_line(thread: u64) -> Option<u64> {
    sleeps(thread).filter(|_| is_parked(thread))
}

/// Whether the thread sleeps in the system call of mutexes and condition variables.
#[cfg(target_os = "linux")]
fn is_parked(thread: u64) -> bool {
    let futex = match env::consts::ARCH {
        "x86_64" => "202",
        "aarch64" => "98",
        // The number of the system call is unknown on this system, so any sleep counts.
        _ => return true,
    };
    let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
    call.map_or(true, |call| call.split(' ').next() == Some(futex))
}

#[cfg(not(target_os = "linux"))]
fn thread_number() -> u64 {
    0
}

/// This system does not show whether a thread sleeps, so a pause must be enough.
#[cfg(not(target_os = "linux"))]
fn sleeps(_thread: u64) -> Option<u64> {
    thread::sleep(UNIT);
    Some(0)
}

#[cfg(not(target_os = "linux"))]
fn is_parked(_thread: u64) -> bool {
    true
}

/// Returns the names of this process's threads (their first 15 characters).
pub(crate) fn thread_names() -> Vec<String> {
    tasks().map(|(_, name)| name).collect()
}

/// Returns the ids and names of this process's threads, or nothing if the system does not show
/// them.
fn tasks() -> impl Iterator<Item = (u64, String)> {
    fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(|task| {
        let task = task.ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, name.trim().to_owned()))
    })
}

/// The number of calls of each command on this server, by clients and scripts.
pub(crate) struct Commands(HashMap<String, u64>);

impl Commands {
    pub(crate) fn so_far(server: &Server) -> Self {
        let text: String =
            redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        Self(text.lines().filter_map(calls).collect())
    }

    pub(crate) fn of(&self, command: &str) -> u64 {
        self.0.get(command).copied().unwrap_or(0)
    }

    /// The number of commands that a lock can send: scripts, and reads of keys.
    pub(crate) fn of_locks(&self) -> u64 {
        ["evalsha", "eval", "exists", "pttl"].iter().map(|name| self.of(name)).sum()
    }

    pub(crate) fn scripts(&self) -> u64 {
        self.of("evalsha") + self.of("eval")
    }
}

/// Returns the owner in the lock's hash, with its count. There must be only one owner.
pub(crate) fn holder(connection: &mut Connection, name: &str) -> Option<(String, String)> {
    let mut fields: Vec<(String, String)> = connection.hgetall(name).unwrap();
    // This field is a read-write lock's mode, and not an owner.
    fields.retain(|(field, _)| field != "mode");
    assert!(fields.len() <= 1, "more than one holder of {name:?}: {fields:?}");
    fields.into_iter().next()
}

/// Returns the key's time to live in ms: -1 if it does not expire, -2 if there is no key.
pub(crate) fn pttl(connection: &mut Connection, name: &str) -> i64 {
    connection.pttl(name).unwrap()
}

/// Waits until the lease of the hold under this name has been extended.
#[track_caller]
pub(crate) fn wait_renewed(server: &Server, name: &str) {
    let mut redis = server.connection();
    let mut left = pttl(&mut redis, name);
    wait_until(&format!("{name:?} is renewed"), SOON, || {
        let before = std::mem::replace(&mut left, pttl(&mut redis, name));
        assert!(left > 0, "{name:?} is gone");
        left > before
    });
}

/// Does the same as [`wait_renewed`], for the holds under all these names on their servers.
#[track_caller]
pub(crate) fn wait_all_renewed<'a>(held: impl IntoIterator<Item = (&'a Server, String)>) {
    let last = |(server, name): (&'a Server, String)| {
        let mut redis = server.connection();
        let left = pttl(&mut redis, &name);
        (redis, name, left)
    };
    let mut waited_for: Vec<_> = held.into_iter().map(last).collect();
    wait_until("all are renewed", SOON, || {
        waited_for.retain_mut(|(redis, name, left)| {
            let before = std::mem::replace(left, pttl(redis, name));
            assert!(*left > 0, "{name:?} is gone");
            *left <= before
        });
        waited_for.is_empty()
    });
}

/// Waits until the lock is free on the server.
#[track_caller]
pub(crate) fn wait_free(server: &Server, name: &str, timeout: Duration) {
    let mut connection = server.connection();
    wait_until(&format!("{name:?} is free"), timeout, || {
        !connection.exists::<_, bool>(name).unwrap()
    });
}

/// An owner in the form that a Java service uses.
pub(crate) const FOREIGN: &str = "7a1c3f5e-0b2d-4c6e-8f01-23456789abcd:53";

/// Takes the lock as a Java service would.
pub(crate) fn hold_as_redisson(connection: &mut Connection, name: &str, lease: Duration) {
    hold_as(connection, name, FOREIGN, lease);
}

fn hold_as(connection: &mut Connection, name: &str, owner: &str, lease: Duration) {
    let () = redis::pipe()
        .atomic()
        .hset(name, owner, 1)
        .pexpire(name, i64::try_from(lease.as_millis()).unwrap())
        .query(connection)
        .unwrap();
}

/// Releases the lock as a Java service would, with a message on this channel.
pub(crate) fn release_as_redisson(connection: &mut Connection, name: &str, channel: &str) {
    let () = redis::pipe().atomic().del(name).publish(channel, "0").query(connection).unwrap();
}

/// Waits until a client listens to the lock's channel.
#[track_caller]
pub(crate) fn wait_subscribed(server: &Server, channel: &str) {
    let mut connection = server.connection();
    wait_until(&format!("somebody listens to {channel:?}"), SOON, || {
        let (_, listeners): (String, u64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(&mut connection).unwrap();
        listeners > 0
    });
}

/// Waits until the server counts no listener on a channel. The server notices the death of a
/// process a moment late.
#[track_caller]
pub(crate) fn wait_deaf(server: &Server, channel: &str) {
    let mut connection = server.connection();
    wait_until(&format!("nobody listens to {channel:?}"), SOON, || {
        let (_, listeners): (String, u64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(&mut connection).unwrap();
        listeners == 0
    });
}

/// Returns the channel on which scripts send messages to the client of this owner.
pub(crate) fn own_channel(owner: &str) -> String {
    format!("redisson_lock__channel:{{redlatch:{}}}", owner.split(':').next().unwrap())
}

/// Waits until this number of clients listen to their own channels.
#[track_caller]
pub(crate) fn wait_hearing(server: &Server, clients: usize) {
    let mut redis = server.connection();
    wait_until("they hear", SOON, || {
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("redisson_lock__channel:{redlatch:*")
            .query(&mut redis)
            .unwrap();
        channels.len() >= clients
    });
}

/// Waits until this number of processes have an entry in the lock's queue.
pub(crate) fn wait_in_line(server: &Server, name: &str, places: u64) {
    let key = if name.contains('{') {
        format!("redlatch_queue_tagged:{name}")
    } else {
        format!("redlatch_queue:{{{name}}}")
    };
    let mut connection = server.connection();
    wait_until(&format!("{places} stand in line for {name:?}"), SOON, || {
        let length: u64 = redis::cmd("LLEN").arg(&key).query(&mut connection).unwrap();
        length >= places
    });
}

/// Waits until the client of `owner` has read all earlier messages. For this, it sends grants for
/// unknown owners after these messages, and the client gives such grants back. The function sends
/// several grants, because a thread may wait for a reply on one of the client's two connections,
/// and commands on that connection wait, too.
pub(crate) fn wait_read(server: &Server, owner: &str, release: impl FnOnce()) {
    static READ: AtomicU64 = AtomicU64::new(0);
    let number = READ.fetch_add(1, Ordering::Relaxed);
    let mut redis = server.connection();
    let stray = format!("{}:777777", owner.split_once(':').unwrap().0);
    let names: Vec<_> = (0..32).map(|at| format!("stray {number} {at}")).collect();
    for name in &names {
        hold_as(&mut redis, name, &stray, LONG);
        let message = format!("grant 777777 0 2000 lock,0,0,0 0 {name}");
        let heard: u64 = redis.publish(own_channel(&stray), message).unwrap();
        assert_eq!(heard, 1);
    }
    release();
    wait_until("it is read", SOON, || redis.exists::<_, usize>(&names).unwrap() < names.len());
}

/// Returns how many times the lock of this name expires during `work`. If the lock never expires,
/// the waiter was granted it by a message, and not after the end of a lease. (Other keys do not
/// count, because they may expire in the meantime.)
pub(crate) fn lapses(server: &Server, name: &str, work: impl FnOnce()) -> usize {
    let (mut redis, mut listener) = (server.connection(), server.connection());
    let set = ["SET", "notify-keyspace-events", "Ex"];
    redis::cmd("CONFIG").arg(&set).exec(&mut redis).unwrap();
    let mut listener = listener.as_pubsub();
    let over = "the work is over";
    listener.subscribe(&["__keyevent@0__:expired", over]).unwrap();
    work();
    let () = redis.publish(over, "").unwrap();
    let messages = iter::repeat_with(|| listener.get_message().unwrap());
    let until_then = messages.take_while(|message| message.get_channel_name() != over);
    until_then.filter(|message| message.get_payload_bytes() == name.as_bytes()).count()
}

/// Returns the channel of a name without braces.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// A small random number generator. A failing test shows its seed.
pub(crate) struct Random(u64);

impl Random {
    /// Returns a generator whose seed comes from `REDLATCH_SEED` or the clock. The function prints
    /// the seed, so that a failed run can be repeated.
    pub(crate) fn new() -> Self {
        let fixed = env::var("REDLATCH_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = fixed.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap()
        });
        println!("REDLATCH_SEED={seed}");
        Self::of(seed)
    }

    pub(crate) fn of(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A user of the server. At first the user has all rights.
pub(crate) struct User {
    name: String,
    redis: Connection,
    url: String,
}

impl User {
    pub(crate) fn new(server: &Server, name: &str) -> Self {
        let url = server.url().replace("redis://", &format!("redis://{name}:word@"));
        let mut user = Self { name: name.to_owned(), redis: server.connection(), url };
        user.set(&["on", ">word", "~*", "&*", "+@all"]);
        user
    }

    pub(crate) fn set(&mut self, rules: &[&str]) {
        let set = redis::cmd("ACL").arg("SETUSER").arg(&self.name).arg(rules).exec(&mut self.redis);
        set.unwrap();
    }

    /// Gives the user the rights that an error lists for `who` (such as "a latch"), on a name's
    /// keys.
    pub(crate) fn set_as_said(&mut self, error: &str, who: &str, name: &str) {
        let named = error.split(&format!("{who} needs ")).nth(1).unwrap();
        let named = named.split(" on its key").next().unwrap();
        let ours = ["request:", "mark:"].map(|what| format!("~redlatch_{what}{{{name}}}*"));
        self.set(&["resetkeys", &format!("~{name}"), &ours[0], &ours[1]]);
        for right in named.replace(" and", ",").replace(",,", ",").split(", ") {
            self.set(&[&format!("+{}", right.to_lowercase())]);
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn client(&self) -> Client {
        impatient(&self.url).connect().unwrap()
    }

    pub(crate) fn client_behind(&self, proxy: &Proxy) -> Client {
        let url = proxy.url().replace("redis://", &format!("redis://{}:word@", self.name));
        impatient(&url).connections(1).connect().unwrap()
    }
}

/// A user whose password changes, with the user's present credentials. A client asks for the
/// present credentials.
#[derive(Clone)]
pub(crate) struct Vault {
    password: Arc<Mutex<String>>,
    valid_for: Option<Duration>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    const USER: &str = "tokens";

    pub(crate) fn new(valid_for: Option<Duration>) -> Self {
        Self { password: Arc::default(), valid_for, asked: Arc::default() }
    }

    /// Adds this password to the user at these servers.
    pub(crate) fn add(&self, servers: &[Server], password: &str) {
        for server in servers {
            let args = ["SETUSER", Self::USER, "on", &format!(">{password}"), "~*", "&*", "+@all"];
            redis::cmd("ACL").arg(&args).exec(&mut server.connection()).unwrap();
        }
        *self.password.lock().unwrap() = password.to_owned();
    }

    pub(crate) fn remove(servers: &[Server], password: &str) {
        for server in servers {
            let args = ["SETUSER", Self::USER, &format!("<{password}")];
            redis::cmd("ACL").arg(&args).exec(&mut server.connection()).unwrap();
        }
    }

    /// Closes all connections of the user.
    pub(crate) fn hang_up(servers: &[Server]) {
        for server in servers {
            let args = ["KILL", "USER", Self::USER];
            redis::cmd("CLIENT").arg(&args).exec(&mut server.connection()).unwrap();
        }
    }

    pub(crate) fn asked_by(&self, client: ClientBuilder) -> ClientBuilder {
        let vault = self.clone();
        client.credentials_with(move || {
            vault.asked.fetch_add(1, Ordering::SeqCst);
            let credentials = Credentials::new(Self::USER, &vault.password.lock().unwrap());
            let valid_for = vault.valid_for;
            Ok(valid_for.into_iter().fold(credentials, Credentials::valid_for))
        })
    }

    /// Returns how many times the client has asked for credentials.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}
