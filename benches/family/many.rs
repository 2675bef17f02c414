//! The cost of many waiters for the server: the server's processor time in each second, by the
//! number of waiters, and the time of one release that affects many readers. The server has no
//! other clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Connection;
use redlatch::{CancelToken, Client, LockGuard, Wait};

use crate::cores::Cores;
use crate::lab::Lab;
use crate::raw;
use crate::report::{Goals, Spread, Table, count, digits, time};

const PROCESSES: [usize; 3] = [100, 300, 1_000];
const THREADS: [usize; 3] = [250, 500, 1_000];
const NAMES: [usize; 3] = [250, 1_000, 4_000];
/// The time in which each waiter sends about three requests.
const LONG_ENOUGH: Duration = Duration::from_secs(3);

pub(crate) fn fair_locks(lab: &Lab, goals: &mut Goals) {
    const WHAT: &str = "fair lock, processes that wait";
    table(lab, goals, WHAT, &PROCESSES, ["none set", "≤ 3 %", "≤ 10 %"], fair);
    for (what, bytes) in ["connection broke", "queue was lost"].into_iter().zip(back(lab, 1_000)) {
        let work = format!("fair lock, 1,000 threads of a process whose {what}: bytes sent");
        goals.add(work, count(bytes), "≤ 1,000,000");
    }
}

pub(crate) fn locks(lab: &Lab, goals: &mut Goals) {
    const WHAT: &str = "lock, names that a process waits for";
    table(lab, goals, WHAT, &NAMES, ["none set", "≤ 6 %", "≤ 15 %"], names);
}

pub(crate) fn conditions(lab: &Lab, goals: &mut Goals) {
    const WHAT: &str = "condition, N notified and N waiting";
    table(lab, goals, WHAT, &THREADS, ["none set", "≤ 5 %", "≤ 10 %"], condition);
}

fn table(
    lab: &Lab,
    goals: &mut Goals,
    what: &str,
    numbers: &[usize],
    aims: [&'static str; 3],
    measure: fn(&Lab, usize) -> Seen,
) {
    println!("The server's time while N wait, and what it reads:\n");
    let mut table = Table::new(&["what", "N", "of a server", "bytes/s"]);
    lab.put_server(Cores::Any);
    for (number, aim) in numbers.iter().zip(aims) {
        let seen = measure(lab, *number);
        let part = format!("{} %", digits(seen.busy * 100.0));
        table.row(&[&what, &count(*number as f64), &part, &count(seen.bytes)]);
        goals.add(format!("{what}, {number}: of a server"), part, aim);
    }
    println!("{table}");
}

/// The server's work in one second.
struct Seen {
    busy: f64,
    bytes: f64,
}

/// Returns the server's processor time in seconds, and the number of bytes that it has read.
fn used(redis: &mut Connection) -> (f64, f64) {
    let info: String = redis::cmd("INFO").query(redis).unwrap();
    let figure = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.parse().unwrap()
    };
    let time = figure("used_cpu_user:") + figure("used_cpu_sys:");
    (time, figure("total_net_input_bytes:"))
}

fn watch(redis: &mut Connection) -> Seen {
    let (begun, before) = (Instant::now(), used(redis));
    thread::sleep(LONG_ENOUGH);
    let (after, took) = (used(redis), begun.elapsed().as_secs_f64());
    Seen { busy: (after.0 - before.0) / took, bytes: (after.1 - before.1) / took }
}

fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        thread::sleep(Duration::from_millis(10));
    }
}

fn length(url: &str, list: &str) -> usize {
    redis::cmd("LLEN").arg(list).query(&mut raw::connect(url)).unwrap()
}

/// Connects another client, with its own connections and its own keep-alives.
fn connect(url: &str) -> Client {
    Client::builder(url).connections(1).connect().unwrap()
}

fn fair(lab: &Lab, processes: usize) -> Seen {
    let (url, name) = (lab.url(false), format!("bench {}", lab.next()));
    let holder = connect(&url);
    let guard = holder.fair_lock(&name).lock().unwrap();
    let clients: Vec<_> = (0..processes).map(|_| connect(&url)).collect();
    let token = CancelToken::new();
    let threads: Vec<_> = clients.iter().map(|client| waits(client, &name, &token)).collect();
    let queue = format!("redisson_lock_queue:{{{name}}}");
    wait_until(|| length(&url, &queue) == processes);
    thread::sleep(LONG_ENOUGH);
    let seen = watch(&mut raw::connect(&url));
    token.cancel();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(guard);
    seen
}

fn waits(client: &Client, name: &str, token: &CancelToken) -> JoinHandle<()> {
    let (lock, token) = (client.fair_lock(name), token.clone());
    thread::spawn(move || assert!(lock.lock_cancellable(&token).is_err()))
}

/// Makes each thread of one client wait for one of `number` locks, which another client holds.
fn names(lab: &Lab, number: usize) -> Seen {
    const LEASE: Duration = Duration::from_secs(300);
    let url = lab.url(false);
    let [holder, client] = [(); 2].map(|()| connect(&url));
    let names: Vec<_> = (0..number).map(|_| format!("bench {}", lab.next())).collect();
    let lock = |name| holder.reentrant_lock(name).with_lease(LEASE).lock_owned().unwrap();
    let guards: Vec<_> = names.iter().map(|name| lock(name)).collect();
    let token = CancelToken::new();
    let threads: Vec<_> = names
        .iter()
        .map(|name| {
            let (lock, token) = (client.reentrant_lock(name), token.clone());
            let wait = move || assert!(lock.lock_cancellable(&token).is_err());
            thread::Builder::new().stack_size(64 * 1024).spawn(wait).unwrap()
        })
        .collect();
    wait_until(|| client.snapshot().waiting.len() == number);
    thread::sleep(LONG_ENOUGH);
    let seen = watch(&mut raw::connect(&url));
    token.cancel();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(guards);
    seen
}

/// Returns the server's input from a second before until a second after all waiters are back.
fn back(lab: &Lab, threads: usize) -> [f64; 2] {
    let (url, name) = (lab.url(false), format!("bench {}", lab.next()));
    let [holder, client] = [(); 2].map(|()| connect(&url));
    let guard = holder.fair_lock(&name).lock().unwrap();
    let token = CancelToken::new();
    let waiting: Vec<_> = (0..threads).map(|_| waits(&client, &name, &token)).collect();
    let [queue, scores] = ["queue", "timeout"].map(|key| format!("redisson_lock_{key}:{{{name}}}"));
    wait_until(|| length(&url, &queue) == threads);
    let mut redis = raw::connect(&url);
    let bytes = [false, true].map(|loses_queue| {
        thread::sleep(Duration::from_secs(2));
        let before = used(&mut redis).1;
        if loses_queue {
            redis::cmd("DEL").arg(&[&queue, &scores]).exec(&mut redis).unwrap();
        } else {
            redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec(&mut redis).unwrap();
        }
        thread::sleep(Duration::from_millis(2_500));
        wait_until(|| length(&url, &queue) == threads);
        used(&mut redis).1 - before
    });
    token.cancel();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    drop(guard);
    bytes
}

/// Half of the threads were notified one by one, and wait for the lock. The other half of the
/// threads wait for a notification.
fn condition(lab: &Lab, threads: usize) -> Seen {
    let (url, name) = (lab.url(false), format!("bench {}", lab.next()));
    let clients: [_; 4] = std::array::from_fn(|_| connect(&url));
    let holder = connect(&url);
    let end = Arc::new(AtomicBool::new(false));
    let token = CancelToken::new();
    let wait = |at: usize| {
        let lock = clients[at % clients.len()].reentrant_lock(&name);
        let (token, end) = (token.clone(), Arc::clone(&end));
        thread::spawn(move || {
            let Ok(guard) = lock.lock_cancellable(&token) else { return };
            let condition = lock.condition("bench");
            while !end.load(Ordering::SeqCst) {
                if condition.wait_within(&guard, Wait::from(&token)).is_err() {
                    return;
                }
            }
        })
    };
    let waiting: Vec<_> = (0..2 * threads).map(wait).collect();
    let list = format!("redlatch_condition:{{{name}}}:bench:5");
    wait_until(|| length(&url, &list) == 2 * threads);
    let lock = holder.reentrant_lock(&name);
    let guard = lock.lock().unwrap();
    let condition = lock.condition("bench");
    for _ in 0..threads {
        // On a slow machine, some of these waiters may not have been notified.
        let _ = condition.notify_one().unwrap();
    }
    thread::sleep(LONG_ENOUGH);
    let seen = watch(&mut raw::connect(&url));
    end.store(true, Ordering::SeqCst);
    token.cancel();
    condition.notify_all().unwrap();
    guard.unlock().unwrap();
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    seen
}

const READERS: [usize; 3] = [500, 1_000, 4_000];
/// The number of readers in one process.
const OWNED: usize = 65_536;

/// Each reader stands for a process, and has a connection with a subscription and an entry in the
/// queue. The timed scripts are the releases of a writer and of a reader.
pub(crate) fn readers(lab: &Lab, goals: &mut Goals) {
    println!("The server's time for one release of a read-write lock, others being readers:\n");
    let mut table = Table::new(&["readers", "a writer lets them in", "one of them leaves"]);
    lab.put_server(Cores::Any);
    let aims = [("≤ 6 ms", "none set"), ("≤ 12 ms", "≤ 0.3 ms"), ("≤ 60 ms", "≤ 0.5 ms")];
    for (number, (let_in, leaves)) in READERS.into_iter().zip(aims) {
        let (mut writers, mut readers) = (Vec::new(), Vec::new());
        lab.rounds(|| {
            let [writer, reader] = let_in_and_leave(lab, number);
            writers.push(writer);
            readers.push(reader);
        });
        let number = count(number as f64);
        let [writer, reader] = [writers, readers].map(|times| time(Spread::of(times).median));
        table.row(&[&number, &writer, &reader]);
        goals.add(format!("{number} readers are let in: the server's time"), writer, let_in);
        goals.add(format!("one of {number} readers leaves: the server's time"), reader, leaves);
    }
    println!("{table}");
    let mut times = Vec::new();
    lab.rounds(|| times.push(owned(lab)));
    let took = time(Spread::of(times).median);
    goals.add(
        format!("{} readers of one process by owned guards", count(OWNED as f64)),
        took,
        "≤ 1 s",
    );
}

/// Returns the server's time in scripts, in ns.
fn in_scripts(redis: &mut Connection) -> f64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query(redis).unwrap();
    let of = |command: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(command));
        let time = line.and_then(|line| line.split(',').find_map(|it| it.strip_prefix("usec=")));
        time.map_or(0.0, |usec| usec.parse().unwrap())
    };
    (of("cmdstat_evalsha:") + of("cmdstat_eval:")) * 1_000.0
}

fn timed(redis: &mut Connection, guard: LockGuard) -> f64 {
    let before = in_scripts(redis);
    guard.unlock().unwrap();
    in_scripts(redis) - before
}

fn let_in_and_leave(lab: &Lab, readers: usize) -> [f64; 2] {
    let (url, name) = (lab.url(false), format!("bench {}", lab.next()));
    let [writer, reader] = [(); 2].map(|()| connect(&url));
    let guard = writer.read_write_lock(&name).writer().lock().unwrap();
    let owners: Vec<_> =
        (0..readers).map(|at| format!("{at:08x}-1111-8111-8111-111111111111:{at}")).collect();
    let subscribe = |owner: &String| {
        let mut connection = raw::connect(&url);
        let channel = format!("redisson_lock__channel:{{redlatch:{}}}", &owner[..36]);
        redis::cmd("SUBSCRIBE").arg(channel).exec(&mut connection).unwrap();
        connection
    };
    let _listening: Vec<_> = owners.iter().map(subscribe).collect();
    let mut redis = raw::connect(&url);
    let queue = format!("redlatch_rwlock_queue:{{{name}}}");
    redis::cmd("RPUSH").arg(queue).arg(&owners).exec(&mut redis).unwrap();
    let let_in = timed(&mut redis, guard);
    let holders: usize = redis::cmd("HLEN").arg(&name).query(&mut redis).unwrap();
    assert_eq!(holders, readers + 1, "some were not let in");
    // Each awake reader sends the same commands.
    let mut raise = redis::pipe();
    for owner in &owners {
        let timeout = format!("{{{name}}}:{owner}:rwlock_timeout:1");
        raise.cmd("PEXPIRE").arg(timeout).arg(60_000).ignore();
    }
    raise.cmd("PEXPIRE").arg(&name).arg(60_000).ignore().exec(&mut redis).unwrap();
    let guard = reader.read_write_lock(&name).reader().lock().unwrap();
    [let_in, timed(&mut redis, guard)]
}

/// Returns the time in ns in which all readers of one process get the lock and release it.
fn owned(lab: &Lab) -> f64 {
    let client = connect(&lab.url(false));
    let lock = client.read_write_lock(&format!("bench {}", lab.next()));
    let begun = Instant::now();
    let guards: Vec<_> = (0..OWNED).map(|_| lock.reader().lock_owned().unwrap()).collect();
    drop(guards);
    begun.elapsed().as_nanos() as f64
}
