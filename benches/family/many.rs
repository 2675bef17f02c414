//! What many who only wait cost the server: its time for each second, by how many there are. Nobody
//! else is served meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Connection;
use redlatch::{CancelToken, Client, Wait};

use crate::cores::Cores;
use crate::lab::Lab;
use crate::raw;
use crate::report::{Goals, Table, count, digits};

const PROCESSES: [usize; 3] = [100, 300, 1_000];
const THREADS: [usize; 3] = [250, 500, 1_000];
/// Each of them asks about once a second.
const LONG_ENOUGH: Duration = Duration::from_secs(3);

pub(crate) fn fair_locks(lab: &Lab, goals: &mut Goals) {
    const WHAT: &str = "fair lock, processes that wait";
    table(lab, goals, WHAT, &PROCESSES, ["none set", "≤ 3 %", "≤ 10 %"], fair);
    for (what, bytes) in ["connection broke", "queue was lost"].into_iter().zip(back(lab, 1_000)) {
        let work = format!("fair lock, 1,000 threads of a process whose {what}: bytes sent");
        goals.add(work, count(bytes), "≤ 1,000,000");
    }
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

/// In a second.
struct Seen {
    busy: f64,
    bytes: f64,
}

/// The server's own time in seconds, and the bytes that it has read.
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

/// A client each: its own connections, and its own signs of life.
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

/// What the server reads, from a second before all are back to a second after.
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

/// So many were notified, one by one, and wait for the lock; as many wait to be notified.
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
            let condition = lock.new_condition("bench");
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
    let condition = lock.new_condition("bench");
    for _ in 0..threads {
        // (On a slow machine those who wait may have been told instead of others by now.)
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
