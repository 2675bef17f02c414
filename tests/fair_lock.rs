//! What the fair lock means beyond what every lock does: the order, whatever happens to those who
//! stand in the queue. Its queue and its set of scores agree, and are empty at the end.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, Error, ErrorKind, FairLock, Lock};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// How long a dead waiter at the head may cost the others here.
const FAIR_WAIT: Duration = Duration::from_millis(10 * UNIT.as_millis() as u64);
/// For how long a lock is handed on.
const PROVISIONAL: Duration = Duration::from_secs(2);
/// Short enough to see its end.
const LEASE: Duration = Duration::from_millis(6 * UNIT.as_millis() as u64);

/// A client whose dead waiters cost little.
fn quick(server: &Server) -> Client {
    quick_at(&server.url())
}

/// A client whose dead waiters would keep others out for longer than a test waits.
fn slow(server: &Server) -> Client {
    let builder = Client::builder(&server.url()).watchdog_timeout(LONG);
    builder.fair_wait_timeout(LONG).connect().unwrap()
}

fn quick_at(url: &str) -> Client {
    Client::builder(url).watchdog_timeout(LONG).fair_wait_timeout(FAIR_WAIT).connect().unwrap()
}

fn queue_key(name: &str) -> String {
    format!("redisson_lock_queue:{{{name}}}")
}

fn timeouts_key(name: &str) -> String {
    format!("redisson_lock_timeout:{{{name}}}")
}

/// Who stands in the queue, in its order.
fn queue(server: &Server, name: &str) -> Vec<String> {
    server.connection().lrange(queue_key(name), 0, -1).unwrap()
}

/// Waits until so many stand in the queue, and sees that the set has the same.
#[track_caller]
fn wait_queue(server: &Server, name: &str, length: usize) -> Vec<String> {
    wait_until(&format!("{length} stand in the queue"), SOON, || {
        queue(server, name).len() == length
    });
    // Not in a transaction, which a server without memory refuses.
    let line = queue(server, name);
    let scored: Vec<String> = server.connection().zrange(timeouts_key(name), 0, -1).unwrap();
    let sorted = |mut all: Vec<String>| {
        all.sort();
        all
    };
    assert_eq!(sorted(line.clone()), sorted(scored), "queue and set differ");
    line
}

/// Waits until nothing of the lock is left.
#[track_caller]
fn leaves_nothing(server: &Server, name: &str) {
    let mut redis = server.connection();
    let keys = [name.to_owned(), queue_key(name), timeouts_key(name)];
    let until = Instant::now() + SOON;
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

/// Threads that take the lock one after the other, and write down who had it.
struct Line {
    server_url: String,
    served: Arc<Mutex<Vec<usize>>>,
    threads: Vec<Running<()>>,
}

impl Line {
    fn new(server: &Server) -> Self {
        Self { server_url: server.url(), served: Arc::default(), threads: Vec::new() }
    }

    /// One more, at the end of the queue.
    #[track_caller]
    fn add(&mut self, lock: &FairLock) {
        let mut redis = redis::Client::open(&*self.server_url).unwrap().get_connection().unwrap();
        let mut length = || redis.llen::<_, usize>(queue_key(lock.name())).unwrap();
        let before = length();
        let (served, lock, at) = (Arc::clone(&self.served), lock.clone(), self.threads.len());
        self.threads.push(spawn(move || {
            let guard = lock.lock().unwrap();
            served.lock().unwrap().push(at);
            // Not passed on by a thread that has not written down yet.
            guard.unlock().unwrap();
        }));
        wait_until("it stands in the queue", SOON, || length() > before);
    }

    fn join(self) -> Vec<usize> {
        self.threads.into_iter().for_each(Running::join);
        let served = self.served.lock().unwrap();
        served.clone()
    }
}

/// Where this executable's workers begin.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let mut builder = Client::builder(job.arg(0)).watchdog_timeout(LEASE);
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

/// A process that stands in the queue, behind those who do already.
fn process(role: &str, server: &Server, name: &str, at: usize) -> Worker {
    let before = queue(server, name).len();
    let mut worker = Worker::spawn_test("worker", role, &[&server.url(), name, &at.to_string()]);
    worker.expect_line("waits", SOON);
    if role == "holder" {
        worker.expect_line("got it", SOON);
    } else {
        wait_until("it stands in the queue", SOON, || queue(server, name).len() > before);
    }
    worker
}

fn served(server: &Server) -> Vec<usize> {
    server.connection().lrange("served", 0, -1).unwrap()
}

// The order.

#[test]
fn threads_and_clients_are_served_in_the_order_they_came() {
    let _bounded = bounded();
    let server = server();
    let clients: Vec<_> = (0..3).map(|_| client(&server)).collect();
    let mut random = Random::new();
    for name in ["order", "a{b}c", "glob*[x]?"] {
        let guard = clients[0].fair_lock(name).lock().unwrap();
        let mut redis = server.connection();
        let key = if name.contains('{') {
            format!("redisson_lock_queue:{name}")
        } else {
            queue_key(name)
        };
        let mut threads: Vec<Running<()>> = Vec::new();
        let served = Arc::new(Mutex::new(Vec::new()));
        for at in 0..24 {
            let lock = clients[usize::try_from(random.below(3)).unwrap()].fair_lock(name);
            let served = Arc::clone(&served);
            let thread = spawn(move || {
                let guard = lock.lock().unwrap();
                served.lock().unwrap().push(at);
                if at % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
            });
            threads.push(thread);
            wait_until("it stands in the queue", SOON, || {
                redis.llen::<_, usize>(&key).unwrap() == threads.len()
            });
        }
        guard.unlock().unwrap();
        threads.into_iter().for_each(Running::join);
        assert_eq!(*served.lock().unwrap(), (0..24).collect::<Vec<_>>(), "{name}");
    }
    leaves_nothing(&server, "order");
    let keys: Vec<String> = server.connection().keys("*").unwrap();
    assert!(keys.is_empty(), "left behind: {keys:?}");
}

#[test]
fn processes_are_served_in_the_order_they_came() {
    let _bounded = bounded();
    let server = server();
    let guard = client(&server).fair_lock("processes").lock().unwrap();
    let mut workers: Vec<_> =
        (0..5).map(|at| process("waiter", &server, "processes", at)).collect();
    wait_queue(&server, "processes", 5);
    guard.unlock().unwrap();
    workers.iter_mut().for_each(|worker| drop(worker.expect_line("released", SOON)));
    assert_eq!(served(&server), [0, 1, 2, 3, 4]);
    leaves_nothing(&server, "processes");
}

#[test]
fn a_try_does_not_pass_the_queue() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    // Free, with a waiter of Java's in the queue that is not gone yet.
    let foreign = format!("{FOREIGN}1");
    let until = 4_000_000_000_000_u64;
    let () = redis.rpush(queue_key("tried"), &foreign).unwrap();
    let () = redis.zadd(timeouts_key("tried"), &foreign, until).unwrap();
    for client in [&one, &other] {
        let lock = client.fair_lock("tried");
        assert!(lock.try_lock().unwrap().is_none());
        assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
        assert!(lock.try_lock_for(UNIT).unwrap().is_none());
        assert!(!lock.is_locked().unwrap());
    }
    assert_eq!(wait_queue(&server, "tried", 1), [foreign]);
    let () = redis.del(&[queue_key("tried"), timeouts_key("tried")]).unwrap();
    one.fair_lock("tried").try_lock().unwrap().unwrap().unlock().unwrap();
    let guard = one.fair_lock("tried").try_lock().unwrap().unwrap();
    assert!(other.fair_lock("tried").try_lock().unwrap().is_none());
    assert!(queue(&server, "tried").is_empty(), "a try does not queue");
    drop(guard);
    leaves_nothing(&server, "tried");
}

#[test]
fn passes_within_a_process_keep_the_order_and_leave_nothing() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = one.fair_lock("passed");
    let guard = lock.lock().unwrap();
    let mut line = Line::new(&server);
    // A stranger in the middle of threads that could pass it on among themselves.
    for client in [&one, &one, &one, &other, &one, &one] {
        line.add(&client.fair_lock("passed"));
    }
    drop(guard);
    assert_eq!(line.join(), [0, 1, 2, 3, 4, 5]);
    leaves_nothing(&server, "passed");
}

#[test]
fn a_hold_is_re_entered_and_its_count_in_redis_is_one() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.fair_lock("nested");
    let outer = lock.lock().unwrap();
    let mut line = Line::new(&server);
    line.add(&lock);
    // Though somebody waits.
    let inner = lock.lock().unwrap();
    let tried = lock.try_lock().unwrap().unwrap();
    assert_eq!(lock.hold_count(), 3);
    assert_eq!(holder(&mut server.connection(), "nested").unwrap().1, "1");
    drop((inner, tried));
    assert_eq!(wait_queue(&server, "nested", 1).len(), 1);
    outer.unlock().unwrap();
    assert_eq!(line.join(), [0]);
    leaves_nothing(&server, "nested");
}

// Who gives up.

/// The queues of the two know nothing of each other; the lock is one, and a thread's.
#[test]
fn a_fair_and_a_re_entrant_handle_of_a_name_are_one_lock() {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..8)
        .map(|at| {
            let (client, inside) = (&clients[at % 2], Arc::clone(&inside));
            let kinds: [Arc<dyn Lock>; 2] =
                [Arc::new(client.fair_lock("one")), Arc::new(client.reentrant_lock("one"))];
            spawn(move || {
                for round in 0..15 {
                    let [outer, inner] = [at / 2 % 2, 1 - at / 2 % 2].map(|kind| &kinds[kind]);
                    let guard = outer.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                    let again = inner.try_lock().unwrap().expect("its thread has it");
                    thread::sleep(Duration::from_micros(round * 40));
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    again.unlock().unwrap();
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    leaves_nothing(&server, "one");
    wait_until("nobody is left", SOON, || {
        !server.connection().exists::<_, bool>("redlatch_queue:{one}").unwrap()
    });
}

#[test]
fn who_gives_up_leaves_the_queue_at_once_and_the_others_their_order() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.fair_lock("given up").lock().unwrap();
    let token = CancelToken::new();
    let mut line = Line::new(&server);
    let mut quitters = Vec::new();
    // At the head, in the middle and at the end.
    for round in 0..3 {
        let (timed, cancelled) = (one.fair_lock("given up"), other.fair_lock("given up"));
        let cancel = token.clone();
        let length = queue(&server, "given up").len();
        let quitter = spawn(move || timed.try_lock_for(UNIT * 8).unwrap().is_none());
        wait_queue(&server, "given up", length + 1);
        quitters.push(quitter);
        let quitter = spawn(move || {
            cancelled.lock_cancellable(&cancel).unwrap_err().kind() == ErrorKind::Cancelled
        });
        wait_queue(&server, "given up", length + 2);
        quitters.push(quitter);
        if round < 2 {
            line.add(&[&one, &other][round].fair_lock("given up"));
            line.add(&[&other, &one][round].fair_lock("given up"));
        }
    }
    let before = queue(&server, "given up");
    token.cancel();
    assert!(quitters.into_iter().all(Running::join));
    let after = wait_queue(&server, "given up", 4);
    let stayed: Vec<_> = before.into_iter().filter(|owner| after.contains(owner)).collect();
    assert_eq!(stayed, after);
    drop(guard);
    assert_eq!(line.join(), [0, 1, 2, 3]);
    leaves_nothing(&server, "given up");
}

#[test]
fn a_head_that_gives_up_when_the_lock_is_free_tells_the_next() {
    let _bounded = bounded();
    let server = server();
    // Its sign of life would find out, too, but comes late.
    let (one, other) = (slow(&server), slow(&server));
    let mut redis = server.connection();
    for _ in 0..3 {
        at_once(|| {
            hold_as_redisson(&mut redis, "told", LONG);
            let (timed, next) = (one.fair_lock("told"), other.fair_lock("told"));
            let timed = spawn(move || timed.try_lock_for(UNIT * 3).unwrap().map(drop).is_some());
            timed.wait_asleep();
            let next = spawn(move || next.lock().unwrap().unlock().unwrap());
            wait_queue(&server, "told", 2);
            // Released by a Java re-entrant lock, which tells no fair waiter.
            release_as_redisson(&mut redis, "told", &channel("told"));
            timed.join();
            next.join();
        });
        leaves_nothing(&server, "told");
    }
}

#[test]
fn a_shutdown_takes_the_waiters_out_of_the_queue() {
    let _bounded = bounded();
    let server = server();
    let one = client(&server);
    for scripts_known in [true, false] {
        println!("scripts known: {scripts_known}");
        let other = client(&server);
        let guard = one.fair_lock("shut").lock().unwrap();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let lock = other.fair_lock("shut");
                let waiter = spawn(move || lock.lock().map(drop).unwrap_err().kind());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        let mut line = Line::new(&server);
        line.add(&one.fair_lock("shut"));
        if scripts_known {
            let lock = one.fair_lock("known");
            let _held = lock.lock().unwrap();
            let waits = lock.clone();
            assert!(elsewhere(move || waits.try_lock_for(UNIT / 10).unwrap().is_none()));
            wait_queue(&server, "known", 0);
        } else {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut server.connection()).unwrap();
        }
        other.shutdown();
        for waiter in waiters {
            assert_eq!(waiter.join(), ErrorKind::ShutDown);
        }
        wait_queue(&server, "shut", 1);
        drop(guard);
        assert_eq!(line.join(), [0]);
        leaves_nothing(&server, "shut");
    }
}

#[test]
fn a_panic_under_the_lock_lets_the_next_in() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).fair_lock("panic");
    let panics = lock.clone();
    let mut line = Line::new(&server);
    let guard = lock.lock().unwrap();
    let thread = spawn(move || {
        catch_unwind(AssertUnwindSafe(|| {
            let _guard = panics.lock().unwrap();
            panic!("as the test wants it");
        }))
        .is_err()
    });
    wait_queue(&server, "panic", 1);
    line.add(&lock);
    guard.unlock().unwrap();
    assert!(thread.join());
    assert_eq!(line.join(), [0]);
    leaves_nothing(&server, "panic");
}

// Who dies or loses it.

#[test]
fn a_lease_that_ends_lets_the_next_in() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.fair_lock("lapsed").with_lease(LEASE).lock().unwrap();
    let begun = Instant::now();
    let mut line = Line::new(&server);
    line.add(&other.fair_lock("lapsed"));
    line.add(&one.fair_lock("lapsed"));
    assert_eq!(line.join(), [0, 1]);
    let took = begun.elapsed();
    assert!(took + UNIT / 5 >= LEASE, "{took:?}");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    leaves_nothing(&server, "lapsed");
}

#[test]
fn a_passed_hold_whose_lease_ends_lets_the_next_in() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut passes = 0;
    for _ in 0..5 {
        let lock = one.fair_lock("passed on").with_lease(LEASE);
        let first = one.fair_lock("passed on").with_lease(LEASE);
        let guard = other.fair_lock("passed on").lock().unwrap();
        // The first of these passes it to the second, which keeps it past its end.
        let first = spawn(move || {
            drop(first.lock().unwrap());
        });
        wait_queue(&server, "passed on", 1);
        let kept = Arc::new(AtomicBool::new(false));
        let (has, done) = (Arc::new(AtomicBool::new(false)), Arc::clone(&kept));
        let mine = Arc::clone(&has);
        let second = spawn(move || {
            let guard = lock.lock().unwrap();
            mine.store(true, Ordering::SeqCst);
            wait_until("the test goes on", SOON, || done.load(Ordering::SeqCst));
            assert!(guard.unlock().is_err());
        });
        let mut line = Line::new(&server);
        wait_queue(&server, "passed on", 2);
        line.add(&other.fair_lock("passed on"));
        guard.unlock().unwrap();
        first.join();
        wait_until("the second has it", SOON, || has.load(Ordering::SeqCst));
        // A pass leaves who had it in the queue until the release.
        passes += usize::from(queue(&server, "passed on").len() == 2);
        assert_eq!(line.join(), [0]);
        kept.store(true, Ordering::SeqCst);
        second.join();
        leaves_nothing(&server, "passed on");
    }
    println!("{passes} passes");
}

#[test]
fn a_passed_hold_that_is_taken_away_lets_the_next_in() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for forces in [&one, &other] {
        at_once(|| {
            let guard = other.fair_lock("forced").lock().unwrap();
            let first = one.fair_lock("forced");
            let first = spawn(move || drop(first.lock().unwrap()));
            wait_queue(&server, "forced", 1);
            let (has, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (mine, kept) = (Arc::clone(&has), Arc::clone(&done));
            let lock = one.fair_lock("forced");
            let second = spawn(move || {
                let guard = lock.lock().unwrap();
                mine.store(true, Ordering::SeqCst);
                wait_until("the test goes on", SOON, || kept.load(Ordering::SeqCst));
                assert!(guard.unlock().is_err());
            });
            wait_queue(&server, "forced", 2);
            let mut line = Line::new(&server);
            line.add(&other.fair_lock("forced"));
            guard.unlock().unwrap();
            first.join();
            wait_until("the second has it", SOON, || has.load(Ordering::SeqCst));
            assert!(forces.fair_lock("forced").force_unlock().unwrap());
            assert_eq!(line.join(), [0]);
            done.store(true, Ordering::SeqCst);
            second.join();
        });
        leaves_nothing(&server, "forced");
    }
}

#[test]
fn forced_unlocks_at_any_moment_leave_no_hold_that_nobody_has() {
    let _bounded = bounded();
    let server = server();
    let (ours, theirs) = (client(&server), client(&server));
    let end = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let (lock, end) = (ours.fair_lock("taken away"), Arc::clone(&end));
            spawn(move || {
                let mut grants = 0;
                while !end.load(Ordering::SeqCst) {
                    // Grants are read in another order than they were made in: whoever comes late
                    // must not take the seat from a newer hold.
                    let guard = lock.try_lock_for(SOON).unwrap().expect("nobody keeps it");
                    assert!(lock.hold_count() <= 1, "nobody was asked");
                    grants += 1;
                    let _ = guard.unlock();
                    assert!(!lock.is_held_by_current_thread(), "held without a guard");
                }
                grants
            })
        })
        .collect();
    let lock = theirs.fair_lock("taken away");
    let mut random = Random::new();
    // Time is the subject: the more moments, the better.
    let until = Instant::now() + UNIT * 30;
    while Instant::now() < until {
        lock.force_unlock().unwrap();
        thread::sleep(Duration::from_micros(random.below(300)));
    }
    end.store(true, Ordering::SeqCst);
    let grants: u64 = threads.into_iter().map(Running::join).sum();
    assert!(grants > 100, "{grants}");
    leaves_nothing(&server, "taken away");
}

#[test]
fn a_killed_holders_lock_goes_to_the_first_in_line() {
    let _bounded = bounded();
    let server = server();
    let mut holder = process("holder", &server, "killed", 9);
    let (one, other) = (client(&server), client(&server));
    let mut line = Line::new(&server);
    for client in [&one, &other, &one] {
        line.add(&client.fair_lock("killed"));
    }
    holder.sigkill();
    assert_eq!(line.join(), [0, 1, 2]);
    leaves_nothing(&server, "killed");
}

#[test]
fn a_killed_waiter_costs_the_others_nothing() {
    let _bounded = bounded();
    let server = server();
    for (round, dead) in [0, 2, 4].into_iter().enumerate() {
        let name = format!("dead {dead}");
        let clients = [client(&server), client(&server)];
        let guard = clients[0].fair_lock(&name).lock().unwrap();
        let mut line = Line::new(&server);
        let (mut victim, mut owner) = (None, String::new());
        for at in 0..5 {
            if at == dead {
                victim = Some(process("slow", &server, &name, round));
                owner = queue(&server, &name).remove(at);
            } else {
                line.add(&clients[at % 2].fair_lock(&name));
            }
        }
        let mut victim = victim.unwrap();
        wait_subscribed(&server, &own_channel(&owner));
        victim.sigkill();
        // The server hears of it a moment later, and maybe behind the release.
        wait_deaf(&server, &own_channel(&owner));
        let begun = Instant::now();
        guard.unlock().unwrap();
        assert_eq!(line.join(), [0, 1, 2, 3]);
        let took = begun.elapsed();
        assert!(took < PROVISIONAL - UNIT * 5, "{dead}: {took:?}");
        leaves_nothing(&server, &name);
    }
    assert!(served(&server).is_empty());
}

#[test]
fn a_dead_head_makes_nobody_send_more_than_a_little() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let guard = client.fair_lock("rate").lock().unwrap();
    let mut victim = process("slow", &server, "rate", 0);
    let mut line = Line::new(&server);
    for _ in 0..4 {
        line.add(&client.fair_lock("rate"));
    }
    victim.sigkill();
    let before = Commands::so_far(&server).scripts();
    let begun = Instant::now();
    guard.unlock().unwrap();
    assert_eq!(line.join(), [0, 1, 2, 3]);
    let took = begun.elapsed();
    let sent = Commands::so_far(&server).scripts() - before;
    println!("{took:?}, {sent} scripts");
    // Two for each of the others at most, and a sign of life.
    assert!(sent <= 4 * 2 + 2, "{sent} scripts in {took:?}");
    leaves_nothing(&server, "rate");
}

#[test]
fn a_stopped_head_costs_the_others_its_provisional_lease() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.fair_lock("stalls").lock().unwrap();
    let mut worker = process("waiter", &server, "stalls", 0);
    let mut line = Line::new(&server);
    line.add(&other.fair_lock("stalls"));
    // Who does not listen yet counts as dead.
    wait_subscribed(&server, &own_channel(&queue(&server, "stalls")[0]));
    worker.sigstop();
    let begun = Instant::now();
    guard.unlock().unwrap();
    assert_eq!(line.join(), [0]);
    let took = begun.elapsed();
    assert!((PROVISIONAL..PROVISIONAL + UNIT * 15).contains(&took), "{took:?}");
    // It reads of its grant now, and does not enter, since that is over: it has its place anew.
    let guard = one.fair_lock("stalls").lock().unwrap();
    worker.sigcont();
    wait_queue(&server, "stalls", 1);
    assert!(guard.is_held());
    assert!(served(&server).is_empty());
    guard.unlock().unwrap();
    worker.expect_line("released", SOON);
    leaves_nothing(&server, "stalls");
}

#[test]
fn a_hold_that_was_granted_by_message_lasts() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for lease in [None, Some(PROVISIONAL * 2)] {
        let guard = one.fair_lock("lasts").lock().unwrap();
        let lock = other.fair_lock("lasts");
        let lock = lease.map_or_else(|| lock.clone(), |lease| lock.with_lease(lease));
        let waiter = spawn(move || {
            let guard = lock.lock().unwrap();
            thread::sleep(PROVISIONAL + UNIT * 3);
            (guard.is_held(), guard.unlock())
        });
        wait_queue(&server, "lasts", 1);
        guard.unlock().unwrap();
        let mut redis = server.connection();
        let raised = lease.unwrap_or(LONG) - UNIT * 10;
        wait_until("it has its lease", SOON, || {
            let left: i64 = redis.pttl("lasts").unwrap();
            left > i64::try_from(raised.as_millis()).unwrap()
        });
        let (held, unlocked) = waiter.join();
        assert!(held, "{lease:?}");
        unlocked.unwrap();
        leaves_nothing(&server, "lasts");
    }
}

#[test]
fn a_lease_shorter_than_a_hand_overs_ends_in_time() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.fair_lock("short").lock().unwrap();
    let lock = other.fair_lock("short").with_lease(UNIT * 3);
    let (ended, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (mine, kept) = (Arc::clone(&ended), Arc::clone(&done));
    let holder = spawn(move || {
        let guard = lock.lock().unwrap();
        mine.store(true, Ordering::SeqCst);
        wait_until("the test goes on", SOON, || kept.load(Ordering::SeqCst));
        guard.is_held()
    });
    wait_queue(&server, "short", 1);
    let mut line = Line::new(&server);
    line.add(&one.fair_lock("short"));
    guard.unlock().unwrap();
    wait_until("it has the lock", SOON, || ended.load(Ordering::SeqCst));
    let begun = Instant::now();
    assert_eq!(line.join(), [0]);
    assert!(begun.elapsed() < PROVISIONAL - UNIT * 5, "{:?}", begun.elapsed());
    done.store(true, Ordering::SeqCst);
    assert!(!holder.join());
    leaves_nothing(&server, "short");
}

#[test]
fn a_hand_over_costs_a_request_and_a_release() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    // The server knows the scripts, and it listens.
    one.fair_lock("requests").lock().unwrap().unlock().unwrap();
    let guard = one.fair_lock("requests").lock().unwrap();
    let waits = other.fair_lock("requests");
    assert!(elsewhere(move || waits.try_lock_for(UNIT).unwrap().is_none()));
    wait_queue(&server, "requests", 0);
    let before = Commands::so_far(&server).scripts();
    let mut line = Line::new(&server);
    line.add(&other.fair_lock("requests"));
    guard.unlock().unwrap();
    line.join();
    assert_eq!(Commands::so_far(&server).scripts() - before, 3);
    leaves_nothing(&server, "requests");
}

#[test]
fn a_process_that_was_stopped_gets_its_place_back() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (quick(&server), quick(&server));
    for place in [0, 1] {
        let name = format!("stopped {place}");
        let () = server.connection().del("served").unwrap();
        let guard = one.fair_lock(&name).lock().unwrap();
        let before = (place == 1).then(|| {
            let lock = other.fair_lock(&name);
            let before = spawn(move || lock.lock().unwrap().unlock().unwrap());
            wait_queue(&server, &name, 1);
            before
        });
        let mut worker = process("waiter", &server, &name, 7);
        let lock = other.fair_lock(&name);
        let (has, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (mine, kept) = (Arc::clone(&has), Arc::clone(&done));
        let behind = spawn(move || {
            let guard = lock.lock().unwrap();
            mine.store(true, Ordering::SeqCst);
            wait_until("the test goes on", SOON, || kept.load(Ordering::SeqCst));
            guard.unlock().unwrap();
        });
        wait_queue(&server, &name, 2 + place);
        let mut line = Line::new(&server);
        line.add(&one.fair_lock(&name));
        let last = queue(&server, &name).pop();
        worker.sigstop();
        thread::sleep(FAIR_WAIT * 2);
        // While the lock is held a stopped one costs nothing, and is not dropped.
        assert_eq!(queue(&server, &name).len(), 3 + place);
        guard.unlock().unwrap();
        if let Some(before) = before {
            before.join();
        }
        wait_until("the one behind it has it", SOON, || has.load(Ordering::SeqCst));
        worker.sigcont();
        // It finds out by its own sign of life, and stands before the last one.
        wait_until("it is back", SOON, || queue(&server, &name).len() == 2);
        assert_eq!(queue(&server, &name).pop(), last, "it came earlier");
        assert!(line.served.lock().unwrap().is_empty());
        done.store(true, Ordering::SeqCst);
        behind.join();
        worker.expect_line("released", SOON);
        assert_eq!(line.join(), [0]);
        assert_eq!(served(&server), [7]);
        leaves_nothing(&server, &name);
    }
}

#[test]
fn a_waiter_is_kept_however_long_it_waits() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (quick(&server), quick(&server));
    let guard = one.fair_lock("patient").lock().unwrap();
    let mut line = Line::new(&server);
    for client in [&one, &other, &one, &other] {
        line.add(&client.fair_lock("patient"));
    }
    let before = queue(&server, "patient");
    let scripts = Commands::so_far(&server).scripts();
    let waits = FAIR_WAIT * 5;
    thread::sleep(waits);
    let sent = Commands::so_far(&server).scripts() - scripts;
    // Each of the two says it every third of the time.
    assert!(sent <= 2 * 5 * 3 + 4, "{sent} scripts");
    assert_eq!(wait_queue(&server, "patient", 4), before);
    let scores: Vec<(String, f64)> =
        server.connection().zrange_withscores(timeouts_key("patient"), 0, -1).unwrap();
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
    let now = (seconds * 1_000 + micros / 1_000) as f64;
    let wait = FAIR_WAIT.as_millis() as f64;
    assert!(scores.iter().all(|(_, score)| *score > now && *score <= now + wait), "{scores:?}");
    drop(guard);
    assert_eq!(line.join(), [0, 1, 2, 3]);
    leaves_nothing(&server, "patient");
}

// Races.

#[test]
fn timeouts_and_cancels_that_race_with_grants_leave_nothing() {
    let _bounded = bounded();
    let server = server();
    let mut random = Random::new();
    let clients = [client(&server), client(&server)];
    let inside = Arc::new(AtomicU64::new(0));
    let rounds = 1_700;
    let ended = Arc::new(AtomicU64::new(0));
    let token = Arc::new(Mutex::new(CancelToken::new()));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let lock = clients[at % 2].fair_lock("races");
            let (inside, ended) = (Arc::clone(&inside), Arc::clone(&ended));
            let token = Arc::clone(&token);
            let mut random = Random::of(random.next());
            spawn(move || {
                let mut granted = 0;
                for _ in 0..rounds {
                    let guard = if at < 4 {
                        let wait = Duration::from_micros(random.below(1_500));
                        lock.try_lock_for(wait).unwrap()
                    } else {
                        let mine = token.lock().unwrap().clone();
                        match lock.lock_cancellable(&mine) {
                            Ok(guard) => Some(guard),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                                let mut token = token.lock().unwrap();
                                if token.is_cancelled() {
                                    *token = CancelToken::new();
                                }
                                None
                            }
                        }
                    };
                    if let Some(guard) = guard {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        granted += 1;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if random.below(2) == 0 { drop(guard) } else { guard.unlock().unwrap() }
                    }
                }
                ended.fetch_add(1, Ordering::SeqCst);
                granted
            })
        })
        .collect();
    while ended.load(Ordering::SeqCst) < 6 {
        token.lock().unwrap().clone().cancel();
        thread::sleep(Duration::from_micros(random.below(1_500)));
    }
    let granted: Vec<u64> = threads.into_iter().map(Running::join).collect();
    println!("{granted:?} of {rounds} each");
    leaves_nothing(&server, "races");
}

/// Threads of two clients contend, while `trouble` is made.
fn contend(urls: [String; 2], server: &Server, trouble: impl FnOnce(&mut Random)) -> (u64, u64) {
    let mut random = Random::new();
    let clients = urls.map(|url| {
        impatient(&url).watchdog_timeout(LONG).fair_wait_timeout(FAIR_WAIT).connect().unwrap()
    });
    let stop = Arc::new(AtomicBool::new(false));
    let errors = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let lock = clients[at % 2].fair_lock("contended");
            let (stop, errors) = (Arc::clone(&stop), Arc::clone(&errors));
            let mut redis = server.connection();
            let mut random = Random::of(random.next());
            spawn(move || {
                let mut grants = 0_u64;
                while !stop.load(Ordering::SeqCst) {
                    let guard = match random.below(4) {
                        0 => lock.try_lock_for(Duration::from_micros(random.below(5_000))),
                        _ => lock.lock().map(Some),
                    };
                    let released = guard.and_then(|guard| {
                        let Some(guard) = guard else { return Ok(()) };
                        grants += 1;
                        assert_eq!(redis.incr::<_, _, i64>("inside", 1).unwrap(), 1);
                        let () = redis.decr("inside", 1).unwrap();
                        assert!(guard.is_held());
                        if random.below(2) == 0 {
                            drop(guard);
                            return Ok(());
                        }
                        guard.unlock()
                    });
                    if let Err(error) = released {
                        assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
                        errors.fetch_add(1, Ordering::SeqCst);
                    }
                }
                grants
            })
        })
        .collect();
    trouble(&mut random);
    stop.store(true, Ordering::SeqCst);
    let grants = threads.into_iter().map(Running::join).sum();
    (grants, errors.load(Ordering::SeqCst))
}

#[test]
fn connections_cut_at_any_moment_leave_one_holder_and_nothing_behind() {
    let _bounded = bounded();
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let urls = [proxies[0].url(), proxies[1].url()];
    let (grants, errors) = contend(urls, &server, |random| {
        let until = Instant::now() + UNIT * 30;
        while Instant::now() < until {
            proxies[usize::try_from(random.below(2)).unwrap()].cut_all();
            thread::sleep(Duration::from_micros(random.below(30_000)));
        }
    });
    println!("{grants} grants, {errors} errors");
    assert!(grants > 20);
    leaves_nothing(&server, "contended");
}

#[test]
fn a_flush_of_the_scripts_is_not_noticed() {
    let _bounded = bounded();
    let server = server();
    let (grants, errors) = contend([server.url(), server.url()], &server, |_| {
        let mut redis = server.connection();
        let until = Instant::now() + UNIT * 10;
        while Instant::now() < until {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
            thread::yield_now();
        }
    });
    assert!(grants > 20 && errors == 0, "{grants} {errors}");
    leaves_nothing(&server, "contended");
}

// Lost messages and replies.

/// A client behind a network, which has its connection and knows its scripts.
fn behind(proxy: &Proxy) -> Client {
    let client =
        impatient(&proxy.url()).connections(1).fair_wait_timeout(FAIR_WAIT).connect().unwrap();
    let lock = client.fair_lock("warm");
    let guard = lock.lock().unwrap();
    let waits = client.fair_lock("warm");
    assert!(elsewhere(move || waits.try_lock_for(UNIT / 10).unwrap().is_none()));
    guard.unlock().unwrap();
    client
}

/// Does this to the next scripts of this name.
fn on_script(proxy: &Proxy, name: &str, times: usize, action: Action) {
    let name = name.to_owned();
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, &name)
    });
}

/// A connection that is dead and open costs a part of the provisional lease at each grant, unless
/// somebody finds out.
#[test]
fn a_subscriber_that_hears_nothing_is_renewed() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (client(&server), behind(&proxy));
    proxy.on_reply("grant ", Action::Silence);
    let mut unheard = 0;
    loop {
        let guard = one.fair_lock("half open").lock().unwrap();
        let mut line = Line::new(&server);
        line.add(&other.fair_lock("half open"));
        let before = Commands::so_far(&server).scripts();
        guard.unlock().unwrap();
        line.join();
        let sent = Commands::so_far(&server).scripts() - before;
        leaves_nothing(&server, "half open");
        // Two releases: it has not asked.
        if sent == 2 {
            break;
        }
        unheard += 1;
        assert!(unheard < 5, "it never hears anything");
    }
    assert!(unheard >= 1, "the message was heard all the same");
}

#[test]
fn lost_replies_of_acquire_and_release_are_no_matter() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    for action in [Action::LoseReply, Action::LoseRequest] {
        // A network each: what was dropped last is tried again for a while.
        let proxy = Proxy::before(&server);
        let lock = behind(&proxy).fair_lock("lost");
        on_script(&proxy, "lost", 1, action);
        let guard = lock.lock().unwrap();
        assert_eq!(holder(&mut redis, "lost").unwrap().1, "1");
        on_script(&proxy, "lost", 1, action);
        // A copy that finds no hold does not know whether it was lost before.
        let unclear = guard.unlock().is_err_and(|error| error.outcome_unknown());
        assert_eq!(unclear, action == Action::LoseReply);
        assert_eq!(holder(&mut redis, "lost"), None);
        on_script(&proxy, "lost", 1, action);
        let guard = lock.try_lock().unwrap().unwrap();
        on_script(&proxy, "lost", 1, action);
        drop(guard);
        leaves_nothing(&server, "lost");
        proxy.wait_fired(4, SOON);
    }
}

/// A client whose requests may take their time. It listens already: the server drops who does not
/// from the head of a free lock's queue, and a waiter begins to when its first request is answered.
fn patient(server: &Server, proxy: &Proxy) -> Client {
    let client = Client::builder(&proxy.url()).connections(1).response_timeout(SOON);
    let client = client.connect().unwrap();
    let guard = client.fair_lock("warm").lock().unwrap();
    let (waiting, cancel) = waits(&client.fair_lock("warm"));
    let owner = wait_queue(server, "warm", 1).remove(0);
    wait_subscribed(server, &own_channel(&owner));
    cancel.cancel();
    assert_eq!(waiting.join().unwrap_err().kind(), ErrorKind::Cancelled);
    guard.unlock().unwrap();
    client
}

/// A thread that waits for the lock until it is cancelled.
fn waits(lock: &FairLock) -> (Running<Result<(), Error>>, CancelToken) {
    let (lock, token) = (lock.clone(), CancelToken::new());
    let cancel = token.clone();
    (spawn(move || lock.lock_cancellable(&token)?.unlock()), cancel)
}

#[test]
fn who_waits_for_anothers_request_can_give_up_before_that_is_answered() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let lock = patient(&server, &proxy).fair_lock("slow");
    let guard = client(&server).fair_lock("slow").lock().unwrap();
    on_script(&proxy, "slow", 2, Action::HoldReply);
    let (first, _) = waits(&lock);
    proxy.wait_fired(1, SOON);

    // Whose request has not been sent.
    let timed = lock.clone();
    assert!(elsewhere(move || timed.try_lock_for(UNIT / 10).unwrap().is_none()));
    let (waiting, cancel) = waits(&lock);
    waiting.wait_asleep();
    cancel.cancel();
    assert_eq!(waiting.join().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(!first.is_finished(), "they waited for its reply");

    // Who was asked for by another.
    let (second, _) = waits(&lock);
    second.wait_asleep();
    let (third, cancel) = waits(&lock);
    third.wait_asleep();
    proxy.release();
    proxy.wait_fired(2, SOON);
    wait_queue(&server, "slow", 3);
    cancel.cancel();
    assert_eq!(third.join().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(queue(&server, "slow").len(), 3, "it waited for the reply");
    proxy.release();
    wait_queue(&server, "slow", 2);
    guard.unlock().unwrap();
    first.join().unwrap();
    second.join().unwrap();
    leaves_nothing(&server, "slow");
}

#[test]
fn who_is_granted_it_between_two_copies_of_its_leaders_request_has_it_at_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let lock = patient(&server, &proxy).fair_lock("copies");
    let other = client(&server).fair_lock("copies");
    let guard = other.lock().unwrap();
    on_script(&proxy, "copies", 1, Action::HoldReply);
    let (first, cancel) = waits(&lock);
    proxy.wait_fired(1, SOON);
    let ahead = wait_queue(&server, "copies", 1);
    let (leader, _) = waits(&lock);
    leader.wait_asleep();
    let (behind, _) = waits(&lock);
    behind.wait_asleep();
    cancel.cancel();
    // What the first one gives up may come before that, or is told to be nobody's.
    let acquires = |bytes: &[u8]| {
        contains(bytes, "EVAL") && contains(bytes, "copies") && contains(bytes, "\n30000\r")
    };
    proxy.on(Direction::Request, 1, Action::Silence, acquires);
    proxy.release();
    assert_eq!(first.join().unwrap_err().kind(), ErrorKind::Cancelled);
    proxy.wait_fired(2, SOON);
    let mut line = Vec::new();
    wait_until("two more stand in the queue", SOON, || {
        line = queue(&server, "copies");
        line.retain(|owner| *owner != ahead[0]);
        line.len() == 2
    });

    guard.unlock().unwrap();
    let mut redis = server.connection();
    let mut has = |owner: &String| {
        wait_until("it is handed on", SOON, || {
            holder(&mut redis, "copies").is_some_and(|(holder, _)| holder == *owner)
        });
    };
    has(&line[0]);
    assert!(other.force_unlock().unwrap());
    has(&line[1]);
    // By the server's clock in ms.
    thread::sleep(Duration::from_millis(5));
    proxy.on(Direction::Request, 1, Action::HoldReply, acquires);
    assert!(proxy.cut_matching("EVAL") > 0);
    proxy.wait_fired(3, SOON);
    let begun = Instant::now();
    proxy.release();
    behind.join().unwrap();
    assert!(begun.elapsed() < PROVISIONAL - UNIT * 5, "{:?}", begun.elapsed());
    leader.join().unwrap();
    leaves_nothing(&server, "copies");
}

#[test]
fn an_acquire_of_unknown_outcome_leaves_neither_a_hold_nor_a_place() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let other = quick(&server);
    let mut fired = 0;
    for held in [false, true] {
        for (action, times) in [
            (Action::LoseReply, 2),
            (Action::LoseRequest, 2),
            (Action::HoldReply, 1),
            (Action::Silence, 1),
            (Action::LoseReply, 2),
            (Action::HoldReply, 1),
        ] {
            // A name each: what gives up one is sent for a lease.
            let name = format!("unknown {fired}");
            let guard = held.then(|| other.fair_lock(&name).lock().unwrap());
            on_script(&proxy, &name, times, action);
            let lock = client.fair_lock(&name);
            let tried = if fired % 2 == 0 { lock.lock().map(Some) } else { lock.try_lock() };
            let error = tried.map(drop).unwrap_err();
            is_clear(&error, &name, "given up in the background");
            fired += times;
            proxy.wait_fired(fired, SOON);
            proxy.release();
            wait_queue(&server, &name, 0);
            drop(guard);
            leaves_nothing(&server, &name);
        }
    }
}

#[test]
fn an_acquire_that_a_stalled_server_runs_late_leaves_nothing() {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let names: Vec<_> = (0..6).map(|at| format!("stalled {at}")).collect();
    for round in 0..3 {
        server.pause();
        let threads: Vec<_> = names
            .iter()
            .map(|name| {
                let lock = client.fair_lock(name);
                spawn(move || {
                    let tried = if round == 1 { lock.try_lock() } else { lock.lock().map(Some) };
                    tried.map(drop).unwrap_err()
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().kind(), ErrorKind::Redis);
        }
        server.resume();
        // Redis may read the new connection's commands before the old one's.
        thread::sleep(UNIT * 2);
        for name in &names {
            leaves_nothing(&server, name);
        }
    }
}

#[test]
fn calls_that_never_reached_the_server_leave_nothing_to_give_up() {
    let _bounded = bounded();
    let server = server();
    let client = quick(&server);
    let lock = client.fair_lock("away");
    lock.lock().unwrap().unlock().unwrap();
    server.kill();
    for _ in 0..200 {
        assert_eq!(lock.lock().map(drop).unwrap_err().kind(), ErrorKind::Redis);
    }
    server.restart_empty();
    wait_until("it is back", SOON, || lock.lock().is_ok());
    // What would be sent in the background comes with the first connection that works.
    thread::sleep(UNIT * 5);
    let scripts = Commands::so_far(&server).scripts();
    assert!(scripts < 50, "{scripts} scripts");
    leaves_nothing(&server, "away");
}

#[test]
fn a_lost_give_up_is_given_up_again() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let other = quick(&server);
    let guard = other.fair_lock("left").lock().unwrap();
    for action in [Action::LoseReply, Action::LoseRequest, Action::Silence] {
        let lock = client.fair_lock("left");
        let token = CancelToken::new();
        let cancel = token.clone();
        let waiter = spawn(move || lock.lock_cancellable(&cancel).map(drop).unwrap_err().kind());
        wait_queue(&server, "left", 1);
        waiter.wait_asleep();
        let fired = proxy.fired();
        let times = if action == Action::Silence { 1 } else { 3 };
        on_script(&proxy, "left", times, action);
        token.cancel();
        assert_eq!(waiter.join(), ErrorKind::Cancelled);
        proxy.wait_fired(fired + 1, SOON);
        wait_queue(&server, "left", 0);
        proxy.clear_rules();
    }
    guard.unlock().unwrap();
    leaves_nothing(&server, "left");
}

#[test]
fn a_release_in_the_subscribers_absence_reaches_the_waiter() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut kill = || {
        let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut redis).unwrap();
    };
    for round in 0..6 {
        at_once(|| {
            let guard = one.fair_lock("absence").lock().unwrap();
            let mut line = Line::new(&server);
            line.add(&other.fair_lock("absence"));
            line.add(&other.fair_lock("absence"));
            if round % 2 == 0 {
                kill();
                guard.unlock().unwrap();
            } else {
                guard.unlock().unwrap();
                kill();
            }
            assert_eq!(line.join(), [0, 1]);
        });
    }
    leaves_nothing(&server, "absence");
}

#[test]
fn waiters_get_it_when_the_servers_data_is_gone() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (quick(&server), quick(&server));
    for way in ["FLUSHALL", "restart"] {
        let guard = one.fair_lock("emptied").lock().unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|at| {
                let lock = [&one, &other][at % 2].fair_lock("emptied");
                let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
                wait_queue(&server, "emptied", at + 1);
                waiter
            })
            .collect();
        let begun = Instant::now();
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        waiters.into_iter().for_each(Running::join);
        assert!(begun.elapsed() < SOON / 2, "{way}: {:?}", begun.elapsed());
        let _ = guard.unlock();
        leaves_nothing(&server, "emptied");
    }
}

#[test]
fn something_else_under_a_key_is_an_error_and_is_left_as_it_is() {
    let _bounded = bounded();
    let server = server();
    let client = quick(&server);
    let mut redis = server.connection();
    let keys = ["typed".to_owned(), queue_key("typed"), timeouts_key("typed")];
    for key in &keys {
        let () = redis.set(key, "precious").unwrap();
        let lock = client.fair_lock("typed");
        let mut took = 0;
        for attempt in [lock.lock().map(Some), lock.try_lock_for(UNIT), lock.try_lock()] {
            match attempt {
                // Nothing had to be asked of this key.
                Ok(Some(guard)) => {
                    took += 1;
                    guard.unlock().unwrap();
                }
                Ok(None) => panic!("trouble is no `None`"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Redis, "{error}"),
            }
        }
        println!("{key}: took it {took} times");
        assert_eq!(redis.get::<_, String>(key).unwrap(), "precious");
        for other in keys.iter().filter(|other| *other != key) {
            assert!(!redis.exists::<_, bool>(other).unwrap(), "{other} with {key} foreign");
        }
        let () = redis.del(key).unwrap();
        lock.lock().unwrap().unlock().unwrap();
        // Under a holder, and one who wants to wait.
        let guard = lock.lock().unwrap();
        if key != &keys[0] {
            let () = redis.set(key, "precious").unwrap();
            let waits = lock.clone();
            let error = elsewhere(move || waits.lock().map(drop).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
            guard.unlock().unwrap();
            assert_eq!(redis.get::<_, String>(key).unwrap(), "precious");
            let () = redis.del(key).unwrap();
        } else {
            drop(guard);
        }
        leaves_nothing(&server, "typed");
    }
}

#[test]
fn without_memory_nothing_is_taken_and_all_is_released() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let (one, other) = (quick(&server), quick(&server));
    let limit = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    let guard = one.fair_lock("memory").lock().unwrap();
    let token = CancelToken::new();
    let (lock, cancel) = (other.fair_lock("memory"), token.clone());
    let waiter = spawn(move || lock.lock_cancellable(&cancel).map(drop));
    wait_queue(&server, "memory", 1);
    limit("1");
    let error = one.fair_lock("more").lock().map(drop).unwrap_err();
    is_clear(&error, "more", "maxmemory");
    is_clear(&one.fair_lock("more").try_lock().map(drop).unwrap_err(), "more", "maxmemory");
    token.cancel();
    // Cancelled, or told that there is no memory when it asked.
    assert!(waiter.join().is_err());
    wait_queue(&server, "memory", 0);
    guard.unlock().unwrap();
    leaves_nothing(&server, "memory");
    limit("0");
    one.fair_lock("more").lock().unwrap().unlock().unwrap();
    leaves_nothing(&server, "more");
}

// Redisson in the same queue.

#[test]
fn a_java_waiter_in_the_queue_has_its_turn_and_its_message() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    at_once(|| {
        let guard = one.fair_lock("java").lock().unwrap();
        let mut line = Line::new(&server);
        line.add(&one.fair_lock("java"));
        let foreign = format!("{FOREIGN}7");
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
        let () = redis.rpush(queue_key("java"), &foreign).unwrap();
        let () = redis.zadd(timeouts_key("java"), &foreign, (seconds + 300) * 1_000).unwrap();
        let mut connection = server.connection();
        let mut subscriber = connection.as_pubsub();
        subscriber.subscribe(format!("{}:{foreign}", channel("java"))).unwrap();
        line.add(&other.fair_lock("java"));
        guard.unlock().unwrap();
        wait_until("it has its turn", SOON, || queue(&server, "java").first() == Some(&foreign));
        let message = subscriber.get_message().unwrap();
        assert_eq!(message.get_payload::<String>().unwrap(), "0");
        thread::sleep(UNIT * 2);
        assert_eq!(*line.served.lock().unwrap(), [0], "nobody passes it");
        // It takes the lock, and gives it back, as Redisson does.
        let () = redis::pipe()
            .atomic()
            .lpop(queue_key("java"), None)
            .zrem(timeouts_key("java"), &foreign)
            .query(&mut redis)
            .unwrap();
        hold_as_redisson(&mut redis, "java", LONG);
        let next = queue(&server, "java").remove(0);
        release_as_redisson(&mut redis, "java", &format!("{}:{next}", channel("java")));
        assert_eq!(line.join(), [0, 1]);
        leaves_nothing(&server, "java");
    });
}

/// The channel on which Redisson tells one of ours.
fn channel_of(name: &str, owner: &str) -> String {
    format!("{}:{owner}", channel(name))
}

#[test]
fn a_java_holders_release_is_heard_by_whoever_is_first() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    for _ in 0..3 {
        at_once(|| {
            hold_as_redisson(&mut redis, "java holds", LONG);
            let token = CancelToken::new();
            let (lock, cancel) = (one.fair_lock("java holds"), token.clone());
            let quitter = spawn(move || lock.lock_cancellable(&cancel).map(drop).is_err());
            wait_queue(&server, "java holds", 1);
            let mut line = Line::new(&server);
            line.add(&other.fair_lock("java holds"));
            line.add(&one.fair_lock("java holds"));
            let waiting = wait_queue(&server, "java holds", 3);
            for owner in &waiting {
                wait_subscribed(&server, &channel_of("java holds", owner));
            }
            // They have asked once more by then, and hear everything.
            token.cancel();
            assert!(quitter.join());
            let first = wait_queue(&server, "java holds", 2).remove(0);
            release_as_redisson(&mut redis, "java holds", &channel_of("java holds", &first));
            assert_eq!(line.join(), [0, 1]);
        });
        leaves_nothing(&server, "java holds");
    }
}

#[test]
fn a_java_release_before_the_waiter_listens_is_made_up_for() {
    let _bounded = bounded();
    for _ in 0..3 {
        at_once(|| {
            let server = server();
            let mut redis = server.connection();
            let proxy = Proxy::before(&server);
            let client = behind(&proxy);
            // Its subscriber is to have its connection, which stays.
            let other = common::client(&server).fair_lock("before");
            let guard = other.lock().unwrap();
            let (hears, cancel) = waits(&client.fair_lock("before"));
            wait_hearing(&server, 1);
            cancel.cancel();
            assert_eq!(hears.join().unwrap_err().kind(), ErrorKind::Cancelled);
            guard.unlock().unwrap();
            hold_as_redisson(&mut redis, "unheard", LONG);
            // Its subscription never arrives, and what is sent on that channel meanwhile is lost.
            proxy.on(Direction::Request, 1, Action::LoseRequest, |bytes| {
                contains(bytes, "SUBSCRIBE") && contains(bytes, "{unheard}")
            });
            proxy.refuse();
            let lock = client.fair_lock("unheard");
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            let owner = wait_queue(&server, "unheard", 1).remove(0);
            proxy.wait_fired(1, SOON);
            release_as_redisson(&mut redis, "unheard", &channel_of("unheard", &owner));
            proxy.accept();
            waiter.join();
            leaves_nothing(&server, "unheard");
        });
    }
}

#[test]
fn only_who_waits_behind_java_listens_to_a_channel_of_its_own() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut numbers = |what: &[&str]| -> (u64, u64) {
        let channels: Vec<String> =
            redis::cmd("PUBSUB").arg(&["CHANNELS", what[0]]).query(&mut redis).unwrap();
        let patterns = redis::cmd("PUBSUB").arg("NUMPAT").query(&mut redis).unwrap();
        (channels.len() as u64, patterns)
    };
    let guard = one.fair_lock("channels").lock().unwrap();
    let mut line = Line::new(&server);
    for at in 0..6 {
        line.add(&[&one, &other][at % 2].fair_lock("channels"));
    }
    wait_until("both clients listen", SOON, || numbers(&["*"]) == (2, 0));
    // What is not to come would be there soon.
    thread::sleep(UNIT);
    assert_eq!(numbers(&["*{channels}*"]), (0, 0));
    assert_eq!(numbers(&["*"]), (2, 0), "one a client");
    guard.unlock().unwrap();
    line.join();
    leaves_nothing(&server, "channels");
}

#[test]
fn the_rights_that_the_documents_name_suffice() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let document = include_str!("../lua/README.md");
    let from = |start: &str, end: &str| {
        let (_, rest) = document.split_once(start).unwrap();
        rest.split_once(end).unwrap().0
    };
    let clients = from("for each client", "locks ");
    let locks = from("\nlocks ", "\nfenced locks");
    let fair = from("\nfair locks ", "\nconditions");
    let rights = [clients, locks, fair].join(" ");
    let rights: Vec<_> = rights.split_whitespace().collect();
    let user = [&["SETUSER", "plain", "reset", "on", ">secret"], &rights[..]].concat();
    redis::cmd("ACL").arg(&user).exec(&mut server.connection()).unwrap();
    let url = format!("redis://plain:secret@127.0.0.1:{}/", server.port());
    let (restricted, other) = (quick_at(&url), quick(&server));
    let name = "shop:till";
    for round in 0..3 {
        let guard = other.fair_lock(name).lock().unwrap();
        let mut line = Line::new(&server);
        for client in [&restricted, &other, &restricted, &restricted] {
            line.add(&client.fair_lock(name));
        }
        assert!(restricted.fair_lock(name).try_lock_for(UNIT).unwrap().is_none());
        // Long enough for signs of life.
        thread::sleep(if round == 0 { FAIR_WAIT } else { UNIT });
        guard.unlock().unwrap();
        assert_eq!(line.join(), [0, 1, 2, 3]);
    }
    // Behind Java, and by force.
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, name, LONG);
    let lock = restricted.fair_lock(name);
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    let owner = wait_queue(&server, name, 1).remove(0);
    wait_subscribed(&server, &channel_of(name, &owner));
    assert!(restricted.fair_lock(name).force_unlock().unwrap());
    waiter.join();
    restricted.fair_lock(name).try_lock().unwrap().unwrap().unlock().unwrap();
    leaves_nothing(&server, name);
}

/// The server does not say which channel it refuses.
#[test]
fn a_refused_unsubscription_is_no_other_channels_refusal() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let user = ["SETUSER", "stays", "on", ">secret", "~*", "&*", "+@all", "-unsubscribe"];
    redis::cmd("ACL").arg(&user).exec(&mut server.connection()).unwrap();
    let url = format!("redis://stays:secret@127.0.0.1:{}/", server.port());
    let (restricted, other) = (Client::connect(&url).unwrap(), client(&server));
    let mut redis = server.connection();
    for round in 0..5 {
        at_once(|| {
            let guard = other.fair_lock("fair").lock().unwrap();
            let mut line = Line::new(&server);
            line.add(&restricted.fair_lock("fair"));
            // One whose own channel is given up, while another listens to a new one.
            hold_as_redisson(&mut redis, "java", LONG);
            let lock = restricted.fair_lock("java");
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            let owner = wait_queue(&server, "java", 1).remove(0);
            wait_subscribed(&server, &channel_of("java", &owner));
            release_as_redisson(&mut redis, "java", &channel_of("java", &owner));
            waiter.join();
            let names: Vec<_> = (0..4).map(|at| format!("{round} {at}")).collect();
            let held: Vec<_> =
                names.iter().map(|name| other.reentrant_lock(name).lock().unwrap()).collect();
            let waiters: Vec<_> = names
                .iter()
                .map(|name| {
                    let lock = restricted.reentrant_lock(name);
                    spawn(move || lock.lock().unwrap().unlock().unwrap())
                })
                .collect();
            for name in &names {
                wait_in_line(&server, name, 1);
            }
            drop(held);
            guard.unlock().unwrap();
            waiters.into_iter().for_each(Running::join);
            assert_eq!(line.join(), [0]);
        });
    }
}

// Places that are nobody's.

/// What a waiter of this owner has asked for arrives once more.
fn ask_late(server: &Server, name: &str, owner: &str, lease: Duration) {
    let script =
        concat!(include_str!("../lua/fair/line.lua"), include_str!("../lua/fair/acquire.lua"));
    let lease = lease.as_millis().to_string();
    let prefix = format!("{}:", channel(name));
    let args = ["10000", &prefix, "0", &lease, owner, "0"];
    let keys = [name.to_owned(), queue_key(name), timeouts_key(name)];
    redis::cmd("EVAL")
        .arg(script)
        .arg(3)
        .arg(&keys)
        .arg(&args)
        .exec(&mut server.connection())
        .unwrap();
}

/// Waits for the lock, gives up, and is gone. Who it was.
fn gone(server: &Server, client: &Client, name: &str) -> String {
    let token = CancelToken::new();
    let (lock, cancel) = (client.fair_lock(name), token.clone());
    let waiter = spawn(move || lock.lock_cancellable(&cancel).map(drop).is_err());
    let owner = wait_queue(server, name, 1).remove(0);
    token.cancel();
    assert!(waiter.join());
    wait_queue(server, name, 0);
    owner
}

#[test]
fn a_place_that_a_late_request_takes_keeps_nobody_out() {
    let _bounded = bounded();
    let server = server();
    // Whoever is behind a head that does not come pokes it.
    let (one, other) = (slow(&server), slow(&server));
    let mut redis = server.connection();
    for released in [true, false] {
        for behind in [true, false] {
            let name = format!("late {released} {behind}");
            let guard = other.fair_lock(&name).lock().unwrap();
            let owner = gone(&server, &one, &name);
            ask_late(&server, &name, &owner, UNIT);
            assert_eq!(wait_queue(&server, &name, 1), [&*owner]);
            let next = || {
                let lock = other.fair_lock(&name);
                spawn(move || lock.lock().unwrap().unlock().unwrap())
            };
            let mut waiter = behind.then(next);
            wait_queue(&server, &name, 1 + usize::from(behind));
            if released {
                guard.unlock().unwrap();
            } else {
                // Nobody is told.
                let () = redis.del(&name).unwrap();
            }
            waiter.take().unwrap_or_else(next).join();
            leaves_nothing(&server, &name);
        }
    }
}

#[test]
fn a_late_request_with_a_short_lease_leaves_no_place_though_nobody_comes() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let (client, other) = (behind(&proxy), client(&server));
    let guard = other.fair_lock("short").lock().unwrap();
    let earlier = gone(&server, &client, "short");
    let (uuid, number) = earlier.split_once(':').unwrap();
    let owner = format!("{uuid}:{}", number.parse::<u64>().unwrap() + 1);
    on_script(&proxy, "short", 2, Action::LoseReply);
    let lock = client.fair_lock("short").with_lease(UNIT / 10);
    is_clear(&lock.lock().map(drop).unwrap_err(), "short", "given up in the background");
    wait_queue(&server, "short", 0);
    // Many leases later.
    thread::sleep(UNIT * 3);
    ask_late(&server, "short", &owner, UNIT / 10);
    assert_eq!(wait_queue(&server, "short", 1), [owner]);
    wait_queue(&server, "short", 0);
    guard.unlock().unwrap();
    leaves_nothing(&server, "short");
}

#[test]
fn a_message_for_a_holder_takes_nothing_from_it() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let guard = client.fair_lock("told late").lock().unwrap();
    // So that it listens.
    let waits = client.fair_lock("told late");
    assert!(elsewhere(move || waits.try_lock_for(UNIT).unwrap().is_none()));
    let mut redis = server.connection();
    let owner = holder(&mut redis, "told late").unwrap().0;
    wait_queue(&server, "told late", 0);
    let left = Commands::so_far(&server).of("lrem");
    let number = owner.split_once(':').unwrap().1;
    for message in [format!("ask {number} told late"), format!("ask {number}0 told late")] {
        let heard: i64 = redis.publish(own_channel(&owner), message).unwrap();
        assert_eq!(heard, 1);
    }
    wait_until("its client has seen to it", SOON, || Commands::so_far(&server).of("lrem") > left);
    assert_eq!(holder(&mut redis, "told late").unwrap().0, owner);
    for message in ["", "ask", "ask 1", "grant 1 x", "fence x y", "\u{0}"] {
        let _: i64 = redis.publish(own_channel(&owner), message).unwrap();
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
    leaves_nothing(&server, "told late");
}

// Names and databases whose keys or channels are the same.

#[test]
fn databases_and_names_that_share_keys_strand_nobody() {
    let _bounded = bounded();
    let server = server();
    let url = |database: u8| format!("{}/{database}", server.url().trim_end_matches('/'));
    let clients = [quick_at(&url(0)), quick_at(&url(1))];
    for _ in 0..5 {
        let guards: Vec<_> =
            clients.iter().map(|client| client.fair_lock("same").lock().unwrap()).collect();
        let waiters: Vec<_> = clients
            .iter()
            .map(|client| {
                let lock = client.fair_lock("same");
                let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        for guard in guards {
            guard.unlock().unwrap();
        }
        waiters.into_iter().for_each(Running::join);
    }
    // These two stand in one queue, and each tells the other's waiters.
    let [client, _] = &clients;
    let guards: Vec<_> =
        ["x", "{x}"].iter().map(|name| client.fair_lock(name).lock().unwrap()).collect();
    let waiters: Vec<_> = ["x", "{x}", "{x}", "x"]
        .iter()
        .map(|name| {
            let lock = client.fair_lock(name);
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            waiter.wait_asleep();
            waiter
        })
        .collect();
    for guard in guards.into_iter().rev() {
        guard.unlock().unwrap();
    }
    waiters.into_iter().for_each(Running::join);
    leaves_nothing(&server, "x");
    leaves_nothing(&server, "{x}");
}
