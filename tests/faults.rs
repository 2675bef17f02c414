//! What breaks, and what is true then: each fault ends in a grant, a clear error or a lost guard,
//! none in a hang, two holders, or a hold of nobody's that stays.
//!
//! The leases are so long that no test sees their end, where nothing else is said: what is free
//! again was released.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{Client, ErrorKind, HoldState, Lock, LostReason};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// Short enough to see its end.
const LEASE: Duration = Duration::from_millis(6 * UNIT.as_millis() as u64);

/// Where this executable's workers begin.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let lease = Duration::from_millis(job.arg(2).parse().unwrap());
    let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
    let lock = client.reentrant_lock(job.arg(1));
    match job.role() {
        // Holds it until it is told to look at it.
        "holder" => {
            let guard = lock.lock().unwrap();
            let calls = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&calls);
            guard.on_lost(move |_| {
                told.fetch_add(1, Ordering::SeqCst);
            });
            job.say("held");
            let _ = job.wait_line();
            let state = guard.state();
            let check = guard.check(Duration::ZERO).map_err(|error| error.kind());
            let unlocked = guard.unlock().map_err(|error| error.kind());
            job.say(&format!("found {state:?} {check:?} {unlocked:?}"));
            let _ = job.wait_line();
            job.say(&format!("calls {}", calls.load(Ordering::SeqCst)));
        }
        // Takes it in turn with others.
        "waiter" => {
            job.say("waits");
            let guard = lock.lock().unwrap();
            job.say("got it");
            let _ = job.wait_line();
            guard.unlock().unwrap();
            job.say("released");
        }
        role => panic!("no role {role}"),
    }
    let _ = job.wait_line();
}

fn process(role: &str, server: &Server, name: &str, lease: Duration) -> Worker {
    let lease = lease.as_millis().to_string();
    Worker::spawn_test("worker", role, &[&server.url(), name, &lease])
}

macro_rules! lock_script {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../lua/lock/", $file))),+)
    };
}

/// Whether it calls one of these scripts.
fn calls(bytes: &[u8], scripts: &[&str]) -> bool {
    scripts
        .iter()
        .any(|code| contains(bytes, redis::Script::new(code).get_hash()) || contains(bytes, code))
}

/// Whether it takes a lock, or makes its lease longer.
fn takes(bytes: &[u8]) -> bool {
    let renew = include_str!("../lua/lock/renew.lua");
    calls(
        bytes,
        &[
            lock_script!("free.lua", "../hand_off.lua", "holder.lua", "acquire.lua"),
            lock_script!("free.lua", "../hand_off.lua", "holder.lua", "try.lua"),
            renew,
        ],
    )
}

fn gives_back(bytes: &[u8]) -> bool {
    calls(
        bytes,
        &[
            lock_script!("unwanted.lua", "../hand_off.lua", "holder.lua", "release.lua"),
            lock_script!("../hand_off.lua", "holder.lua", "give_up.lua"),
            lock_script!("../hand_off.lua", "holder.lua", "force_unlock.lua"),
        ],
    )
}

fn is_script(bytes: &[u8]) -> bool {
    contains(bytes, "EVAL")
}

/// Does this to the next requests that take the lock of this name.
fn on_acquire(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| takes(bytes) && contains(bytes, name));
}

/// Does this to the next requests that release the lock of this name.
fn on_release(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        gives_back(bytes) && contains(bytes, &channel(name))
    });
}

/// A client behind a network, which has its connection and knows its scripts.
fn behind(proxy: &Proxy) -> Client {
    common::behind(proxy, |client| {
        let lock = client.reentrant_lock("warm");
        let guards = (lock.lock().unwrap(), lock.with_lease(LONG * 2).lock().unwrap());
        guards.0.unlock().unwrap();
        guards.1.unlock().unwrap();
        assert!(!lock.force_unlock().unwrap());
    })
}

// Processes.

#[test]
fn a_killed_holders_lock_is_free_at_its_leases_end_and_not_before() {
    let _bounded = bounded();
    let server = server();
    let mut worker = process("holder", &server, "killed", LEASE);
    worker.expect_line("held", SOON);
    let lock = client(&server).reentrant_lock("killed");
    let waiter = spawn(move || {
        let guard = lock.lock().unwrap();
        let entered = Instant::now();
        guard.unlock().unwrap();
        entered
    });
    wait_in_line(&server, "killed", 1);
    // Time is the subject: it has been renewed.
    thread::sleep(LEASE);
    worker.sigkill();
    let killed = Instant::now();
    let left = pttl(&mut server.connection(), "killed");
    assert!(left > 0, "the lease is over already");
    let took = waiter.join().saturating_duration_since(killed);
    let left = Duration::from_millis(left.unsigned_abs());
    assert!(took + UNIT / 10 >= left, "{took:?} with {left:?} left");
}

#[test]
fn a_holder_that_was_stopped_past_its_lease_finds_it_lost() {
    let _bounded = bounded();
    let server = server();
    let mut worker = process("holder", &server, "stopped", LEASE);
    worker.expect_line("held", SOON);
    worker.sigstop();
    let lock = client(&server).reentrant_lock("stopped");
    let guard = lock.try_lock_for(SOON).unwrap().expect("the lease has ended");
    let held = holder(&mut server.connection(), "stopped");
    worker.send_line("look");
    worker.sigcont();
    let found = worker.expect_line("found", SOON);
    assert_eq!(found, "Lost(LeaseExpired) Err(LeaseLost) Err(LeaseLost)");
    // Time is the subject: its renewals and releases would have come.
    thread::sleep(LEASE);
    assert_eq!(holder(&mut server.connection(), "stopped"), held);
    assert!(guard.is_held());
    worker.send_line("count");
    assert_eq!(worker.expect_line("calls", SOON), "1");
    guard.unlock().unwrap();
}

#[test]
fn waiters_that_die_or_stop_hold_up_nobody() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "queue", LONG);
    let mut workers: Vec<_> = (0..5).map(|_| process("waiter", &server, "queue", LEASE)).collect();
    workers.iter_mut().for_each(|worker| drop(worker.expect_line("waits", SOON)));
    wait_in_line(&server, "queue", 5);
    // The first two listen for Redisson's release.
    wait_subscribed(&server, &channel("queue"));
    workers[0].sigkill();
    workers[1].sigstop();
    workers.swap(2, 4);
    let released = Instant::now();
    release_as_redisson(&mut redis, "queue", &channel("queue"));
    for _ in 0..3 {
        let lucky = loop {
            let got = |worker: &mut Worker| {
                worker.try_line(UNIT / 20).is_some_and(|line| line == "got it")
            };
            if let Some(at) = (2..workers.len()).find(|at| got(&mut workers[*at])) {
                break at;
            }
            assert!(released.elapsed() < SOON, "nobody gets it");
        };
        // Of the stopped one, which wants it no less than they.
        workers[lucky].send_line("release");
        workers[lucky].expect_line("released", SOON);
        workers.remove(lucky);
    }
    workers[1].sigcont();
    workers[1].expect_line("got it", SOON);
}

// The server.

#[test]
fn waiters_get_it_when_the_servers_data_is_gone() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for way in ["FLUSHALL", "restart"] {
        let guard = one.reentrant_lock("emptied").lock().unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|at| {
                let lock = [&one, &other][at % 2].reentrant_lock("emptied");
                spawn(move || {
                    lock.try_lock_for(SOON).unwrap().expect("it is free").unlock().unwrap();
                })
            })
            .collect();
        waiters.iter().for_each(Running::wait_asleep);
        wait_in_line(&server, "emptied", 1);
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        // The other client's are in at the next poll. Those behind the guard when it ends.
        wait_until("the other client's waiters are in", SOON, || {
            waiters.iter().skip(1).step_by(2).all(Running::is_finished)
        });
        // Whether it says so is another test's matter.
        let _ = guard.unlock();
        waiters.into_iter().for_each(Running::join);
    }
}

#[test]
fn a_restart_without_data_is_told_before_the_next_renewal() {
    let _bounded = bounded();
    let server = server();
    // The first renewal is due long after the test.
    let client = watched(&server, 10 * LONG);
    let (lock, fair) = (client.reentrant_lock("forgotten"), client.fair_lock("forgotten, fair"));
    // Never renewed.
    let fixed = client.reentrant_lock("forgotten, fixed").with_lease(10 * LONG);
    for by in ["the subscriber", "a command"] {
        let guards = [lock.lock().unwrap(), fair.lock().unwrap(), fixed.lock().unwrap()];
        let (tell, told) = mpsc::channel();
        for guard in &guards {
            let tell = tell.clone();
            guard.on_lost(move |reason| tell.send(reason).unwrap());
        }
        let other = client.reentrant_lock("other");
        let waiter = (by == "the subscriber").then(|| {
            let elsewhere = self::client(&server);
            let held = elsewhere.reentrant_lock("other").lock().unwrap();
            // It may meet a server that is away just now.
            let waiter = spawn(move || drop(other.try_lock_for(SOON)));
            wait_in_line(&server, "other", 1);
            (waiter, held)
        });
        server.restart_empty();
        if waiter.is_none() {
            assert!(!client.reentrant_lock("other").is_locked().unwrap());
        }
        for _ in &guards {
            assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Revoked), "told by {by}");
        }
        assert!(!guards.iter().any(|guard| guard.is_held()));
        if let Some((waiter, held)) = waiter {
            let _ = held.unlock();
            waiter.join();
        }
    }
}

#[test]
fn after_a_restart_the_server_is_asked_until_it_answers() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let guard = client.reentrant_lock("asked for").with_lease(LONG).lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |reason| tell.send(reason).unwrap());
    // The first question gets lost on a connection that stays open.
    on_acquire(&proxy, "asked for", 1, Action::Silence);
    server.restart_empty();
    wait_until("it is found again", SOON, || client.reentrant_lock("other").is_locked().is_ok());
    proxy.wait_fired(1, SOON);
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Revoked));
    assert!(!guard.is_held());
}

#[test]
fn the_question_whether_a_hold_is_known_changes_nothing() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    // Each connection may lead to another run of the server, as far as this user can see.
    let client = user(&server, &["-info"]);
    let held = ["endless", "deleted"].map(|name| {
        let lock = client.reentrant_lock(name).with_lease(LONG);
        lock.lock().unwrap()
    });
    let (tell, told) = mpsc::channel();
    held[1].on_lost(move |reason| tell.send(reason).unwrap());
    let mut redis = server.connection();
    let () = redis.persist("endless").unwrap();
    let () = redis.del("deleted").unwrap();
    kill_clients(&mut redis, "normal");
    assert!(client.reentrant_lock("endless").is_locked().unwrap());
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Revoked));
    assert!(held[0].is_held());
    assert_eq!(pttl(&mut redis, "endless"), -1);
}

#[test]
fn a_server_that_has_lost_a_hold_is_found_out_though_it_was_met_while_loading() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    drop(server);
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let Ok(server) = Server::with_args(&slow) else {
        eprintln!("left out: this server cannot load slowly");
        return;
    };
    let mut redis = server.connection();
    let mut fill = redis::pipe();
    for at in 0..1_000 {
        fill.set(format!("filling:{at}"), "some bytes more or less").ignore();
    }
    let () = fill.query(&mut redis).unwrap();
    let () = redis::cmd("SAVE").query(&mut redis).unwrap();
    let client = watched(&server, 10 * LONG);
    // After it was saved: it comes back without them.
    let guards =
        [client.reentrant_lock("unsaved"), client.reentrant_lock("fixed").with_lease(LONG)]
            .map(|lock| lock.lock().unwrap());
    let (tell, told) = mpsc::channel();
    for guard in &guards {
        let tell = tell.clone();
        guard.on_lost(move |reason| tell.send(reason).unwrap());
    }
    let met = thread::scope(|scope| {
        let restarted = scope.spawn(|| server.restart_empty());
        let lock = client.reentrant_lock("other");
        let mut met = false;
        wait_until("it has loaded", SOON, || match lock.is_locked() {
            Err(error) => {
                met |= error.to_string().contains("loading");
                false
            }
            Ok(_) => restarted.is_finished(),
        });
        met
    });
    if !met {
        eprintln!("left out: it has never said LOADING");
        return;
    }
    // A connection that was opened while it loaded is not kept: the next request has another one.
    assert!(!client.reentrant_lock("other").is_locked().unwrap());
    for _ in &guards {
        assert_eq!(told.recv_timeout(SOON), Ok(LostReason::Revoked));
    }
}

#[test]
fn an_unlock_after_a_restart_without_data_is_no_success() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("restarted");
    for others in [false, true] {
        let guard = lock.lock().unwrap();
        server.restart_empty();
        if others {
            // On the new connection already.
            assert!(!client.reentrant_lock("other").is_locked().unwrap());
        }
        // Anybody may have had it meanwhile.
        let error = guard.unlock().expect_err("the server knows nothing of this hold");
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    }
}

#[test]
fn a_flush_of_the_scripts_is_not_noticed() {
    let _bounded = bounded();
    let server = server();
    let clients = [watched(&server, RENEWED), watched(&server, RENEWED)];
    let held = clients[0].reentrant_lock("held").lock().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|at| {
            let lock = clients[at % 2].reentrant_lock("flushed");
            let (stop, inside) = (Arc::clone(&stop), Arc::clone(&inside));
            spawn(move || {
                let mut rounds = 0;
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if rounds % 2 == 0 {
                        drop(guard);
                    } else {
                        guard.unlock().unwrap();
                    }
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    let mut redis = server.connection();
    let until = Instant::now() + RENEWED * 3 / 2;
    while Instant::now() < until {
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
        thread::yield_now();
    }
    assert!(held.is_held(), "it was renewed");
    stop.store(true, Ordering::SeqCst);
    let rounds: Vec<u64> = threads.into_iter().map(Running::join).collect();
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    wait_free(&server, "flushed", SOON);
    held.unlock().unwrap();
}

#[test]
fn without_memory_nothing_is_taken_and_all_is_released() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = watched(&server, RENEWED);
    let mut redis = server.connection();
    let guards: Vec<_> = ["unlocked", "dropped", "renewed"]
        .map(|name| client.reentrant_lock(name).lock().unwrap())
        .into_iter()
        .collect();
    let mut limit = |bytes: &str| {
        let () =
            redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).query(&mut redis).unwrap();
    };
    limit("1");
    let lock = client.reentrant_lock("more");
    is_clear(&lock.lock().map(drop).unwrap_err(), "more", "maxmemory");
    is_clear(&lock.try_lock().map(drop).unwrap_err(), "more", "maxmemory");
    is_clear(&lock.try_lock_for(UNIT).map(drop).unwrap_err(), "more", "maxmemory");
    assert!(!lock.is_locked().unwrap());
    let mut guards = guards.into_iter();
    guards.next().unwrap().unlock().unwrap();
    drop(guards.next());
    wait_free(&server, "unlocked", SOON);
    wait_free(&server, "dropped", SOON);
    // Time is the subject.
    thread::sleep(RENEWED * 3 / 2);
    let renewed = guards.next().unwrap();
    assert!(renewed.is_held());
    limit("0");
    lock.lock().unwrap().unlock().unwrap();
    renewed.unlock().unwrap();
}

#[test]
fn a_read_only_server_refuses_clearly_and_what_was_held_is_free_afterwards() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = client(&server);
    let replica_of = |of: [&str; 2]| {
        let () = redis::cmd("REPLICAOF").arg(&of).query(&mut server.connection()).unwrap();
    };
    let unlocked = client.reentrant_lock("unlocked").lock().unwrap();
    let dropped = client.reentrant_lock("dropped").lock().unwrap();
    replica_of(["127.0.0.1", "1"]);
    let error = client.reentrant_lock("more").lock().map(drop).unwrap_err();
    is_clear(&error, "more", "replica");
    is_clear(&unlocked.unlock().unwrap_err(), "unlocked", "replica");
    drop(dropped);
    replica_of(["NO", "ONE"]);
    // Long before their leases end.
    wait_free(&server, "unlocked", SOON);
    wait_free(&server, "dropped", SOON);
    client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_that_cannot_save_refuses_clearly() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = client(&server);
    let guard = client.reentrant_lock("held").lock().unwrap();
    let mut redis = server.connection();
    let config = |name: &str, value: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", name, value])
            .query(&mut server.connection())
            .unwrap();
    };
    let (_, folder): (String, String) =
        redis::cmd("CONFIG").arg(&["GET", "dir"]).query(&mut redis).unwrap();
    // A folder stands where its file should be.
    fs::create_dir(format!("{folder}/dump.rdb")).unwrap();
    config("save", "3600 1");
    let _: Result<(), _> = redis::cmd("BGSAVE").query(&mut redis);
    wait_until("saving has failed", SOON, || {
        let info: String = redis::cmd("INFO").arg("persistence").query(&mut redis).unwrap();
        info.contains("rdb_last_bgsave_status:err")
    });
    let lock = client.reentrant_lock("more");
    is_clear(&lock.lock().map(drop).unwrap_err(), "more", "cannot save");
    is_clear(&guard.unlock().unwrap_err(), "held", "cannot save");
    config("save", "");
    lock.lock().unwrap().unlock().unwrap();
    wait_free(&server, "held", SOON);
}

#[test]
fn a_key_that_is_no_lock_is_left_as_it_is() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.set("string", "precious").unwrap();
    let lock = client.reentrant_lock("string");
    is_clear(&lock.lock().map(drop).unwrap_err(), "string", "something else");
    is_clear(&lock.try_lock().map(drop).unwrap_err(), "string", "something else");
    is_clear(&lock.try_lock_for(UNIT).map(drop).unwrap_err(), "string", "something else");
    assert!(lock.is_locked().unwrap());
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(redis.get::<_, String>("string").unwrap(), "precious");

    // Written over while it is held: the release leaves it alone.
    let guard = client.reentrant_lock("over").lock().unwrap();
    let () = redis.set("over", "precious").unwrap();
    assert!(guard.unlock().is_err());
    assert_eq!(redis.get::<_, String>("over").unwrap(), "precious");
}

#[test]
fn a_busy_server_refuses_clearly_and_a_hold_survives_it() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = watched(&server, LEASE * 3);
    let guard = client.reentrant_lock("held").lock().unwrap();
    let mut redis = server.connection();
    let () = redis::cmd("CONFIG").arg(&["SET", "lua-time-limit", "5"]).query(&mut redis).unwrap();
    let mut hog = server.connection();
    let busy = spawn(move || {
        let looped: Result<(), _> =
            redis::cmd("EVAL").arg("while true do end").arg(0).query(&mut hog);
        assert!(looped.is_err());
    });
    wait_until("the server is busy", SOON, || {
        let pong: Result<String, _> = redis::cmd("PING").query(&mut redis);
        pong.is_err_and(|error| error.code() == Some("BUSY"))
    });
    let lock = client.reentrant_lock("more");
    is_clear(&lock.lock().map(drop).unwrap_err(), "more", "busy");
    wait_until("a renewal has failed", SOON, || guard.state() == HoldState::Unconfirmed);
    let () = redis::cmd("SCRIPT").arg("KILL").query(&mut redis).unwrap();
    busy.join();
    wait_until("a renewal has succeeded", SOON, || guard.state() == HoldState::Held);
    lock.lock().unwrap().unlock().unwrap();
    guard.unlock().unwrap();
}

#[test]
fn a_loading_server_refuses_clearly() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    drop(server);
    let options =
        ["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"];
    let Ok(server) = Server::with_args(&options) else {
        eprintln!("left out: this server has no DEBUG");
        return;
    };
    let client = client(&server);
    let lock = client.reentrant_lock("loading");
    lock.lock().unwrap().unlock().unwrap();
    let mut redis = server.connection();
    let mut fill = redis::pipe();
    for at in 0..2_000 {
        fill.set(format!("filling:{at}"), "some bytes more or less").ignore();
    }
    let () = fill.query(&mut redis).unwrap();
    let slow = redis::cmd("CONFIG").arg(&["SET", "key-load-delay", "500"]).exec(&mut redis);
    if slow.is_err() {
        eprintln!("left out: this server cannot load slowly");
        return;
    }
    let mut loader = server.connection();
    let loading = spawn(move || redis::cmd("DEBUG").arg("RELOAD").exec(&mut loader).unwrap());
    let error = loop {
        if let Err(error) = lock.lock().and_then(|guard| guard.unlock()) {
            break error;
        }
        assert!(!loading.is_finished(), "it has never said LOADING");
    };
    is_clear(&error, "loading", "loading");
    loading.join();
    // Be it the acquire or the release that was refused.
    wait_free(&server, "loading", SOON);
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_frozen_server_is_an_error_in_time_and_found_out_once_for_all_waiters() {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let timeout = IMPATIENT;
    let held = client.reentrant_lock("held").lock().unwrap();
    server.pause();
    let begun = Instant::now();
    let threads: Vec<_> = (0..12)
        .map(|_| {
            let lock = client.reentrant_lock("frozen");
            spawn(move || lock.lock().map(drop).unwrap_err())
        })
        .collect();
    for thread in threads {
        // The first found no answer, those who came later no connection.
        is_clear(&thread.join(), "frozen", "the server");
    }
    // A few timeouts and not twelve.
    let took = begun.elapsed();
    assert!(took >= timeout && took < timeout * 6, "{took:?}");
    let error = client.reentrant_lock("short").try_lock_for(UNIT / 10).map(drop).unwrap_err();
    is_clear(&error, "short", "the server");
    is_clear(&held.unlock().unwrap_err(), "held", "no longer holds it");
    server.resume();
    // What the frozen server takes and releases when it goes on is free long before the lease.
    for name in ["frozen", "held", "short"] {
        client.reentrant_lock(name).try_lock_for(SOON).unwrap().expect("free").unlock().unwrap();
        wait_free(&server, name, SOON);
    }
    // Nothing of the old requests comes later.
    thread::sleep(UNIT * 5);
    for name in ["frozen", "held", "short"] {
        assert!(!client.reentrant_lock(name).is_locked().unwrap(), "{name}");
    }
}

#[test]
fn a_paused_server_is_waited_for() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = client(&server);
    let lock = client.reentrant_lock("paused");
    lock.lock().unwrap().unlock().unwrap();
    let pause = UNIT * 5;
    let () = redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(u64::try_from(pause.as_millis()).unwrap())
        .query(&mut server.connection())
        .unwrap();
    let begun = Instant::now();
    let guard = lock.lock().unwrap();
    assert!(begun.elapsed() > pause / 2);
    assert!(guard.remaining() < LONG - pause / 2, "counted from the reply: {guard:?}");
    guard.unlock().unwrap();
}

#[test]
fn a_server_that_is_gone_fails_calls_and_waits_and_is_found_again() {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    hold_as_redisson(&mut server.connection(), "gone", LONG);
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = client.reentrant_lock("gone");
            spawn(move || lock.lock().map(drop).unwrap_err())
        })
        .collect();
    wait_subscribed(&server, &channel("gone"));
    waiters.iter().for_each(Running::wait_asleep);
    server.kill();
    let other = client.reentrant_lock("other");
    let error = other.lock().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    assert_eq!(other.is_locked().unwrap_err().kind(), ErrorKind::Redis);
    // At the slow poll at the latest.
    for waiter in waiters {
        let error = waiter.join();
        assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    }
    server.restart_empty();
    other.lock().unwrap().unlock().unwrap();
    client.reentrant_lock("gone").lock().unwrap().unlock().unwrap();
}

// Access rights.

/// A client whose user has these rights.
fn user(server: &Server, rights: &[&str]) -> Client {
    let mut user = new_user(server);
    user.set(rights);
    user.client()
}

/// A client whose user had all rights when it connected, and has these now.
fn restricted(server: &Server, rights: &[&str]) -> Client {
    let mut user = new_user(server);
    let client = user.client();
    user.set(rights);
    client
}

fn new_user(server: &Server) -> User {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    User::new(server, &format!("user{}", NUMBER.fetch_add(1, Ordering::SeqCst)))
}

#[test]
fn without_the_right_to_run_scripts_nothing_is_taken() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    for rights in [
        &["-evalsha"] as &[_],
        &["-evalsha", "-eval"],
        &["-@all", "+ping"],
        &["resetkeys", "~other:*"],
    ] {
        let client = restricted(&server, rights);
        for _ in 0..2 {
            let error = client.reentrant_lock("forbidden").lock().map(drop).unwrap_err();
            is_clear(&error, "forbidden", "ACL");
        }
        let error = client.reentrant_lock("forbidden").try_lock().map(drop).unwrap_err();
        is_clear(&error, "forbidden", "ACL");
    }
    assert_eq!(holder(&mut server.connection(), "forbidden"), None);
}

#[test]
fn without_the_right_to_set_an_end_no_lock_stays() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = user(&server, &["-pexpire"]);
    let error = client.reentrant_lock("endless").lock().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    assert_eq!(pttl(&mut server.connection(), "endless"), -2, "a key has stayed");
}

#[test]
fn without_the_right_to_publish_locks_are_taken_and_released() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = user(&server, &["-publish"]);
    let lock = client.reentrant_lock("mute");
    lock.lock().unwrap().unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
    drop(lock.lock().unwrap());
    wait_free(&server, "mute", SOON);
    lock.lock().unwrap().forget();
    assert!(lock.force_unlock().unwrap());
}

#[test]
fn without_the_right_to_subscribe_waiting_is_an_error() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = user(&server, &["-subscribe"]);
    let lock = client.reentrant_lock("deaf");
    lock.lock().unwrap().unlock().unwrap();
    hold_as_redisson(&mut server.connection(), "deaf", LONG);
    assert!(lock.try_lock().unwrap().is_none());
    for _ in 0..2 {
        let error = lock.lock().map(drop).unwrap_err();
        is_clear(&error, "deaf", "SUBSCRIBE");
        let error = lock.try_lock_for(SOON).map(drop).unwrap_err();
        is_clear(&error, "deaf", "SUBSCRIBE");
    }
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = restricted(&server, &["-@all", "+ping"]);
    let error = client.reentrant_lock("rights").lock().map(drop).unwrap_err().to_string();
    let all =
        "EVALSHA EVAL EXISTS HEXISTS HKEYS HLEN HSET DEL PEXPIRE PTTL TIME LPOS RPUSH LPUSH LPOP LREM \
         LLEN LINDEX SET PUBSUB PUBLISH SUBSCRIBE"
            .split(' ');
    let mut rights = vec!["-@all".to_owned()];
    for right in all {
        assert!(error.contains(right), "no {right} in: {error}");
        rights.push(format!("+{}", right.to_lowercase()));
    }
    let rights: Vec<_> = rights.iter().map(String::as_str).collect();
    let client = user(&server, &rights);
    let lock = client.reentrant_lock("rights");
    let waiting = user(&server, &rights).reentrant_lock("rights");
    at_once(|| {
        let guard = lock.with_lease(LEASE).lock().unwrap();
        let longer = lock.with_lease(LONG).lock().unwrap();
        let waiting = waiting.clone();
        let waiter = spawn(move || waiting.lock().unwrap().unlock().unwrap());
        wait_in_line(&server, "rights", 1);
        waiter.wait_asleep();
        drop(longer);
        guard.unlock().unwrap();
        waiter.join();
    });
    drop(lock.lock().unwrap());
    assert!(lock.remaining_lease().unwrap().is_none() && !lock.is_locked().unwrap());
    assert!(!lock.force_unlock().unwrap());
}

#[test]
fn a_right_withdrawn_while_it_is_held_is_told_and_the_lock_is_freed_later() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = new_user(&server);
    let client = user.client();
    let mut set = |right: &str| user.set(&[right]);
    let unlocked = client.reentrant_lock("unlocked").lock().unwrap();
    let dropped = client.reentrant_lock("dropped").lock().unwrap();
    set("-evalsha");
    is_clear(&unlocked.unlock().unwrap_err(), "unlocked", "ACL");
    drop(dropped);
    set("+evalsha");
    wait_free(&server, "unlocked", SOON);
    wait_free(&server, "dropped", SOON);
}

// Connections.

/// Ends all connections of this kind, as an administrator would.
fn kill_clients(connection: &mut redis::Connection, kind: &str) {
    let _: u64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", kind, "SKIPME", "yes"])
        .query(connection)
        .unwrap();
}

#[test]
fn an_acquire_and_a_release_survive_a_killed_connection() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = client(&server);
    let lock = client.reentrant_lock("killed");
    let mut redis = server.connection();
    for _ in 0..20 {
        kill_clients(&mut redis, "normal");
        let guard = lock.lock().unwrap();
        assert_eq!(holder(&mut redis, "killed").unwrap().1, "1");
        kill_clients(&mut redis, "normal");
        guard.unlock().unwrap();
        assert_eq!(holder(&mut redis, "killed"), None);
        // A drop's release is written into a connection that is dead.
        let guard = lock.lock().unwrap();
        kill_clients(&mut redis, "normal");
        drop(guard);
        wait_free(&server, "killed", SOON);
    }
}

#[test]
fn after_the_command_connections_were_killed_new_channels_are_listened_to_at_once() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    // The subscriber is up, and sleeps in its read.
    let held = other.reentrant_lock("first").lock().unwrap();
    assert!(one.reentrant_lock("first").try_lock_for(UNIT).unwrap().is_none());
    drop(held);
    // One name each, so that the lanes of some are not used by anybody else.
    let mut names = (0..).map(|at| format!("later:{at}"));
    for _ in 0..4 {
        at_once(|| {
            let _killed: u64 =
                redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut redis).unwrap();
            let name = names.next().unwrap();
            let held = other.reentrant_lock(&name).lock().unwrap();
            let lock = one.reentrant_lock(&name);
            let waiter = spawn(move || lock.lock().map(drop));
            wait_in_line(&server, &name, 1);
            held.unlock().unwrap();
            waiter.join().unwrap();
        });
    }
}

#[test]
fn killed_connections_in_the_middle_of_contention_cost_no_grant() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let clients = [client(&server), client(&server)];
    let inside = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let rounds: Vec<_> = (0..6).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let threads: Vec<_> = (0..6)
        .map(|at| {
            let lock = clients[at % 2].reentrant_lock("contended");
            let (round, inside, stop) =
                (Arc::clone(&rounds[at]), Arc::clone(&inside), Arc::clone(&stop));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if at < 3 {
                        drop(guard);
                    } else if let Err(error) = guard.unlock() {
                        // Its reply was lost.
                        assert!(error.outcome_unknown(), "{error}");
                    }
                    round.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut random = Random::new();
    let mut redis = server.connection();
    for round in 0..60 {
        // All are let in after each, and no call sees two of them: what was killed is found out first,
        // since a lock may be passed on in a process for a while without a command.
        for client in &clients {
            client.reentrant_lock("contended").is_locked().unwrap();
        }
        let done = || rounds.iter().map(|round| round.load(Ordering::SeqCst));
        let before: Vec<_> = done().collect();
        wait_until("all are let in", SOON, || {
            done().zip(&before).all(|(now, then)| now > then + 1)
        });
        let until = Instant::now() + Duration::from_micros(random.below(2_000));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        kill_clients(&mut redis, if round % 3 == 0 { "pubsub" } else { "normal" });
    }
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    wait_free(&server, "contended", SOON);
}

#[test]
fn a_waiter_whose_subscription_is_cut_around_the_release_is_woken() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let mut redis = server.connection();
    let mut random = Random::new();
    for round in 0..25 {
        at_once(|| {
            hold_as_redisson(&mut redis, "cut", LONG);
            let lock = client.reentrant_lock("cut");
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            wait_subscribed(&server, &channel("cut"));
            if round % 2 == 0 {
                waiter.wait_asleep();
            }
            let mut wait = || {
                let until = Instant::now() + Duration::from_micros(random.below(1_000));
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            };
            if round % 3 == 0 {
                release_as_redisson(&mut redis, "cut", &channel("cut"));
                wait();
                proxy.cut_matching("SUBSCRIBE");
            } else {
                proxy.cut_matching("SUBSCRIBE");
                wait();
                release_as_redisson(&mut redis, "cut", &channel("cut"));
            }
            waiter.join();
        });
    }
}

#[test]
fn a_message_that_comes_while_the_last_try_is_under_way_is_heard() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    // Another try, if the machine kept somebody from running.
    let heard = (0..5).any(|_| {
        let proxy = Proxy::before(&server);
        let client = behind(&proxy);
        hold_as_redisson(&mut redis, "between", LONG);
        // The second try is the one after the subscription. Its answer, "busy", is on its way when
        // the message comes.
        let tries = AtomicU64::new(0);
        proxy.on(Direction::Request, 1, Action::HoldReply, move |bytes| {
            let acquire = takes(bytes) && contains(bytes, "between");
            acquire && tries.fetch_add(1, Ordering::SeqCst) == 1
        });
        let before = Commands::so_far(&server).scripts();
        let lock = client.reentrant_lock("between");
        let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
        proxy.wait_fired(1, SOON);
        wait_until("it is answered", SOON, || Commands::so_far(&server).scripts() == before + 2);
        wait_subscribed(&server, &channel("between"));
        proxy.on_reply("message", Action::DelayReply(Duration::ZERO));
        release_as_redisson(&mut redis, "between", &channel("between"));
        proxy.wait_fired(2, SOON);
        // It is read by then. If not, this run shows less.
        thread::sleep(UNIT);
        let answered = Instant::now();
        proxy.release();
        waiter.join();
        answered.elapsed() < BEFORE_A_QUESTION
    });
    assert!(heard, "it asked later, and did not hear");
}

#[test]
fn a_waiter_whose_subscription_is_dead_and_open_finds_out_by_asking() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "half open", LONG);
    let lock = client.reentrant_lock("half open");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    wait_subscribed(&server, &channel("half open"));
    waiter.wait_asleep();
    // The message and all after it go nowhere.
    proxy.on_reply("message", Action::Silence);
    let released = Instant::now();
    release_as_redisson(&mut redis, "half open", &channel("half open"));
    waiter.join();
    // The slow poll.
    assert!(released.elapsed() < LONG / 4, "{:?}", released.elapsed());
}

#[test]
fn replies_that_come_byte_by_byte_are_whole() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let (slow, quick) = (behind(&proxy), client(&server));
    proxy.trickle(true);
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = [slow.clone(), slow, quick]
        .into_iter()
        .map(|client| {
            let lock = client.reentrant_lock("bytes");
            let inside = Arc::clone(&inside);
            spawn(move || {
                for round in 0..30 {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if round % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    wait_free(&server, "bytes", SOON);
}

#[test]
fn a_far_server_costs_no_connection_for_each_drop() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    // A round trip to another continent.
    proxy.set_delay(UNIT * 9 / 10);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("far");
    let mut redis = server.connection();
    let mut connections = || {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut redis).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = connections();
    for _ in 0..5 {
        drop(lock.lock().unwrap());
        // Time is the subject: the reply is on its way, and somebody waits for it.
        thread::sleep(UNIT * 3);
    }
    let opened = connections() - before;
    assert!(opened <= 1, "{opened} connections for 5 drops");
}

// Lost replies.

#[test]
fn a_lost_reply_of_an_acquire_is_a_grant_all_the_same() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("acquired");
    let mut redis = server.connection();
    for (round, action) in [Action::LoseReply, Action::LoseRequest].into_iter().enumerate() {
        on_acquire(&proxy, "acquired", 1, action);
        let guard = lock.lock().unwrap();
        assert_eq!(proxy.fired(), round + 1);
        assert!(guard.is_held());
        assert_eq!(holder(&mut redis, "acquired").unwrap().1, "1");
        guard.unlock().unwrap();
        assert_eq!(holder(&mut redis, "acquired"), None);
    }
}

#[test]
fn a_lost_reply_of_a_waiters_acquire_is_a_grant_all_the_same() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "waited", LONG);
    let lock = client.reentrant_lock("waited");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    wait_subscribed(&server, &channel("waited"));
    waiter.wait_asleep();
    on_acquire(&proxy, "waited", 1, Action::LoseReply);
    release_as_redisson(&mut redis, "waited", &channel("waited"));
    waiter.join();
    assert_eq!(proxy.fired(), 1);
    assert_eq!(holder(&mut redis, "waited"), None);
}

#[test]
fn an_acquire_whose_replies_are_all_lost_is_an_error_and_leaves_no_hold() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    on_acquire(&proxy, "unknown", 2, Action::LoseReply);
    let error = client.reentrant_lock("unknown").lock().map(drop).unwrap_err();
    assert_eq!(proxy.fired(), 2);
    is_clear(&error, "unknown", "released in the background");
    wait_free(&server, "unknown", SOON);
}

#[test]
fn an_acquire_whose_reply_is_lost_before_the_way_is_closed_leaves_no_hold() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    on_acquire(&proxy, "closed", 1, Action::LoseReply);
    // It cannot be sent again, but it has been carried out.
    proxy.refuse();
    let error = client.reentrant_lock("closed").lock().map(drop).unwrap_err();
    assert_eq!(proxy.fired(), 1);
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    assert!(holder(&mut server.connection(), "closed").is_some(), "the test shows nothing");
    proxy.accept();
    wait_free(&server, "closed", SOON);
}

/// More than go out in one packet.
#[test]
fn however_many_holds_are_dropped_in_an_outage_all_of_them_are_released() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let guards: Vec<_> = (0..300)
        .map(|at| client.reentrant_lock(&format!("dropped:{at}")).lock().unwrap())
        .collect();
    proxy.refuse();
    proxy.cut_all();
    drop(guards);
    // Tried in vain meanwhile.
    thread::sleep(UNIT * 5);
    proxy.accept();
    let mut redis = server.connection();
    wait_until("all holds are released", SOON, || {
        let left: Vec<String> = redis.keys("dropped:*").unwrap();
        left.is_empty()
    });
}

#[test]
fn an_acquire_whose_reply_is_lost_before_the_server_refuses_leaves_no_hold() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    // Between the two, the server has turned into a replica.
    let mut redis = server.connection();
    let turned = Arc::new(AtomicBool::new(false));
    let turn = Arc::clone(&turned);
    let seen = AtomicBool::new(false);
    let url = server.url();
    proxy.on(Direction::Request, 2, Action::LoseReply, move |bytes| {
        let acquire = takes(bytes) && contains(bytes, "refused");
        if acquire && seen.swap(true, Ordering::SeqCst) {
            // The second one: it passes, to a server that refuses it. (With nothing to raise it
            // would be granted without a write.)
            let mut redis = redis::Client::open(&*url).unwrap().get_connection().unwrap();
            let () = redis.pexpire("refused", 30_000).unwrap();
            let () = redis::cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).query(&mut redis).unwrap();
            turn.store(true, Ordering::SeqCst);
            return false;
        }
        acquire
    });
    let error = client.reentrant_lock("refused").lock().map(drop).unwrap_err();
    is_clear(&error, "refused", "replica");
    assert!(turned.load(Ordering::SeqCst));
    assert!(holder(&mut redis, "refused").is_some(), "the test shows nothing");
    let () = redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).query(&mut redis).unwrap();
    wait_free(&server, "refused", SOON);
}

#[test]
fn an_acquire_that_is_not_answered_in_time_is_an_error_and_leaves_no_hold() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("unanswered");
    for (round, action) in [Action::HoldReply, Action::Silence].into_iter().enumerate() {
        on_acquire(&proxy, "unanswered", 1, action);
        let begun = Instant::now();
        let error = lock.lock().map(drop).unwrap_err();
        assert_eq!(proxy.fired(), round + 1);
        is_clear(&error, "unanswered", "did not answer in time");
        assert!(begun.elapsed() >= IMPATIENT);
        wait_free(&server, "unanswered", SOON);
        proxy.release();
        // The half-open connection is of the past.
        lock.lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn an_acquire_that_a_stalled_server_runs_late_leaves_no_hold() {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let names: Vec<_> = (0..6).map(|at| format!("stalled:{at}")).collect();
    for _ in 0..3 {
        server.pause();
        let threads: Vec<_> = names
            .iter()
            .map(|name| {
                let lock = client.reentrant_lock(name);
                spawn(move || lock.lock().map(drop).unwrap_err())
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().kind(), ErrorKind::Redis);
        }
        server.resume();
        // Redis may read the new connection's release before the old one's acquire.
        thread::sleep(UNIT * 2);
        for name in &names {
            wait_free(&server, name, SOON);
        }
    }
}

/// Loses the next request that takes the lock of this name, and gives it back for
/// [`deliver`].
fn keep_acquire(proxy: &Proxy, name: &'static str) -> Arc<Mutex<Vec<u8>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&kept);
    proxy.on(Direction::Request, 1, Action::LoseRequest, move |bytes| {
        let acquire = is_script(bytes) && contains(bytes, name);
        if acquire {
            *to.lock().unwrap() = bytes.to_vec();
        }
        acquire
    });
    kept
}

/// The server reads now what a network has kept.
fn deliver(server: &Server, request: &Mutex<Vec<u8>>) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    socket.write_all(&request.lock().unwrap()).unwrap();
    let mut reply = [0; 100];
    let read = socket.read(&mut reply).unwrap();
    reply[..read].to_vec()
}

#[test]
fn an_acquire_that_arrives_after_its_copys_release_leaves_no_hold() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let locks: [(&'static str, Box<dyn Lock>); 2] = [
        ("overtaken", Box::new(client.reentrant_lock("overtaken"))),
        ("overtaken, fair", Box::new(client.fair_lock("overtaken, fair"))),
    ];
    for (name, lock) in &locks {
        lock.lock().unwrap().unlock().unwrap();
        for dropped in [false, true] {
            let first = keep_acquire(&proxy, name);
            let guard = lock.lock().unwrap();
            match dropped {
                true => drop(guard),
                false => guard.unlock().unwrap(),
            }
            wait_free(&server, name, SOON);
            let reply = deliver(&server, &first);
            let granted = [":0\r\n", "*3\r\n:1\r\n"];
            let granted = granted.iter().any(|granted| reply.starts_with(granted.as_bytes()));
            assert!(granted, "it is not granted");
            wait_free(&server, name, SOON);
        }
    }
    assert_eq!(proxy.fired(), 4);
}

#[test]
fn an_acquire_that_arrives_late_cuts_no_longer_lease() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let (plain, fair) = (client.reentrant_lock("longer"), client.fair_lock("longer, fair"));
    let longer = (plain.with_lease(LONG * 2), fair.with_lease(LONG * 2));
    let locks: [(&'static str, &dyn Lock, &dyn Lock); 2] =
        [("longer", &plain, &longer.0), ("longer, fair", &fair, &longer.1)];
    for (name, lock, longer) in locks {
        lock.lock().unwrap().unlock().unwrap();
        for tries in [false, true] {
            let first = keep_acquire(&proxy, name);
            let guard =
                if tries { lock.try_lock().unwrap().unwrap() } else { lock.lock().unwrap() };
            let inner = longer.lock().unwrap();
            let _granted = deliver(&server, &first);
            assert!(lock.remaining_lease().unwrap().unwrap() > LONG, "{name}");
            drop((inner, guard));
            wait_free(&server, name, SOON);
        }
    }
    assert_eq!(proxy.fired(), 4);
}

#[test]
fn a_forced_unlock_whose_reply_is_lost_is_an_error_and_takes_one_holders_lock() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("forced");
    let guard = lock.with_lease(LONG).lock().unwrap();
    let next = self::client(&server).reentrant_lock("forced");
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let waiter = spawn(move || {
        let guard = next.lock().unwrap();
        tell.send(()).unwrap();
        ended.recv().unwrap();
        guard.unlock().unwrap();
    });
    wait_in_line(&server, "forced", 1);
    waiter.wait_asleep();
    on_release(&proxy, "forced", 1, Action::LoseReply);
    let error = lock.force_unlock().unwrap_err();
    assert_eq!(proxy.fired(), 1);
    is_clear(&error, "forced", "not known");
    // Who asks the server is not told anything wrong.
    assert!(!guard.is_held());
    told.recv_timeout(SOON).unwrap();
    // A second forced unlock would take the lock from it.
    end.send(()).unwrap();
    waiter.join();
    // A connection that has been dead for a while is no matter.
    let guard = lock.lock().unwrap();
    proxy.cut_all();
    assert!(lock.force_unlock().unwrap());
    assert!(!guard.is_held());
}

#[test]
fn a_connection_that_cannot_be_had_is_waited_for_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let patience = IMPATIENT * 3;
    let client = impatient(&proxy.url()).connections(1).response_timeout(patience);
    let client = client.connect().unwrap();
    let guards =
        ["cut", "gone", "behind it"].map(|name| client.reentrant_lock(name).lock().unwrap());
    proxy.freeze();
    proxy.cut_all();
    // The second release finds that the connection is gone, the third one waits for another.
    for guard in guards {
        drop(guard);
        thread::sleep(UNIT / 20);
    }
    let begun = Instant::now();
    let error = client.reentrant_lock("cut").try_lock().map(drop).unwrap_err();
    is_clear(&error, "cut", "no connection");
    assert!(begun.elapsed() < patience * 2 - UNIT, "{:?}", begun.elapsed());
    proxy.thaw();
}

#[test]
fn a_lost_reply_of_an_unlock_is_not_taken_for_a_release() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("unlocked");
    let guard = lock.lock().unwrap();
    on_release(&proxy, "unlocked", 1, Action::LoseRequest);
    guard.unlock().unwrap();
    assert_eq!(holder(&mut server.connection(), "unlocked"), None);
    // The second copy finds no hold. It was released by the first, or had been lost before that:
    // the server does not know.
    for lost in [false, true] {
        let guard = lock.lock().unwrap();
        if lost {
            let () = server.connection().del("unlocked").unwrap();
        }
        on_release(&proxy, "unlocked", 1, Action::LoseReply);
        let error = guard.unlock().unwrap_err();
        is_clear(&error, "unlocked", "may have been lost before");
        assert!(error.outcome_unknown() && !error.is_transient());
        assert_eq!(holder(&mut server.connection(), "unlocked"), None);
        assert_eq!(lock.hold_count(), 0);
    }
    assert_eq!(proxy.fired(), 3);
}

#[test]
fn a_lost_release_is_sent_again_until_it_is_done() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("released");
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 1),
        (Action::LoseRequest, 1),
        (Action::LoseRequest, 5),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        for dropped in [true, false] {
            let guard = lock.lock().unwrap_or_else(|error| {
                // The first call on a connection that went silent under a drop.
                is_clear(&error, "released", "did not answer in time");
                lock.lock().unwrap()
            });
            on_release(&proxy, "released", times, action);
            if dropped {
                drop(guard);
            } else if let Err(error) = guard.unlock() {
                is_clear(&error, "released", "no longer holds it");
            }
            fired += times;
            proxy.wait_fired(fired, SOON);
            proxy.release();
            wait_free(&server, "released", SOON);
        }
    }
}

#[test]
fn a_release_that_comes_late_touches_no_later_hold() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let (client, other) = (behind(&proxy), client(&server));
    let lock = client.reentrant_lock("later");
    let guard = lock.lock().unwrap();
    // It is released by a retry, whose like come for a whole lease.
    on_release(&proxy, "later", 3, Action::LoseRequest);
    assert!(guard.unlock().is_err());
    let theirs = other.reentrant_lock("later").try_lock_for(SOON).unwrap().expect("it is free");
    let held = holder(&mut server.connection(), "later");
    let before = Commands::so_far(&server).scripts();
    wait_until("another release has come", SOON, || Commands::so_far(&server).scripts() > before);
    assert_eq!(holder(&mut server.connection(), "later"), held);
    theirs.unlock().unwrap();
    // The same client's next hold, too.
    let guard = lock.lock().unwrap();
    let held = holder(&mut server.connection(), "later");
    let before = Commands::so_far(&server).scripts();
    wait_until("another release has come", SOON, || Commands::so_far(&server).scripts() > before);
    assert_eq!(holder(&mut server.connection(), "later"), held);
    guard.unlock().unwrap();
}

#[test]
fn a_lost_reply_of_a_renewal_is_no_loss() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = LEASE * 3;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connect().unwrap();
    let guard = client.reentrant_lock("renewed").lock().unwrap();
    for (round, action) in
        [Action::LoseReply, Action::LoseRequest, Action::Silence, Action::HoldReply]
            .into_iter()
            .enumerate()
    {
        // The only script of this name that is sent while it is held.
        on_acquire(&proxy, "renewed", 1, action);
        proxy.wait_fired(round + 1, SOON);
        let renewed = Commands::so_far(&server).of("pexpire");
        wait_until("it is renewed again", SOON, || {
            Commands::so_far(&server).of("pexpire") > renewed
        });
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn a_hold_behind_a_dead_network_is_lost_at_its_deadline() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LEASE)
        .response_timeout(UNIT * 5)
        .connect()
        .unwrap();
    let guard = client.reentrant_lock("cut off").lock().unwrap();
    proxy.freeze();
    wait_until("it is lost", SOON, || !guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    // Another one is let in, also when the old packets arrive at last.
    let theirs = common::client(&server).reentrant_lock("cut off").try_lock_for(SOON);
    let theirs = theirs.unwrap().expect("the lease has ended");
    let held = holder(&mut server.connection(), "cut off");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    proxy.thaw();
    // Time is the subject.
    thread::sleep(LEASE);
    assert_eq!(holder(&mut server.connection(), "cut off"), held);
    theirs.unlock().unwrap();
}

#[test]
fn an_extended_hold_whose_release_is_lost_does_not_stay_for_its_extended_lease() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("extended");
    let outer = lock.with_lease(LEASE).lock().unwrap();
    let inner = lock.with_lease(LONG).lock().unwrap();
    inner.unlock().unwrap();
    // No way to the server for longer than the first lease.
    on_release(&proxy, "extended", 1, Action::LoseRequest);
    proxy.refuse();
    is_clear(&outer.unlock().unwrap_err(), "extended", "no longer holds it");
    // Time is the subject.
    thread::sleep(LEASE * 3 / 2);
    proxy.accept();
    wait_free(&server, "extended", SOON);
}

#[test]
fn an_extension_that_is_answered_after_the_holds_end_leaves_no_orphan() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG).connect().unwrap();
    let lock = client.reentrant_lock("straddled");
    // The server knows the scripts.
    let (one, two) =
        (lock.with_lease(UNIT * 9).lock().unwrap(), lock.with_lease(LONG).lock().unwrap());
    drop(one);
    two.unlock().unwrap();
    let outer = lock.with_lease(UNIT * 4).lock().unwrap();
    proxy.on_request("straddled", Action::DelayReply(UNIT * 6));
    // By now the outer hold is lost; what comes of this is a hold of its own, or nothing.
    let inner = lock.with_lease(LONG * 60).lock();
    assert!(!outer.is_held());
    drop((inner, outer));
    wait_free(&server, "straddled", SOON);
}

#[test]
fn an_extension_of_unknown_outcome_does_not_keep_the_lock_for_nobody() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("unsure");
    let outer = lock.with_lease(LEASE).lock().unwrap();
    // Both times it is carried out, and no reply comes.
    on_acquire(&proxy, "unsure", 2, Action::LoseReply);
    let error = lock.with_lease(LONG).lock().map(drop).unwrap_err();
    is_clear(&error, "unsure", "still holds it as before");
    assert_eq!(proxy.fired(), 2);
    assert_eq!(lock.hold_count(), 1);
    let left = pttl(&mut server.connection(), "unsure");
    assert!(left > i64::try_from((LONG / 2).as_millis()).unwrap(), "the test shows nothing");
    // The holder goes by what it knows, and that is over at some time.
    wait_until("the first lease ends", SOON, || !outer.is_held());
    assert!(outer.unlock().is_err());
    wait_free(&server, "unsure", SOON);
}

#[test]
fn owners_are_never_used_again_whatever_breaks() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("owner");
    let mut redis = server.connection();
    let mut owners = HashSet::new();
    for round in 0..12 {
        match round % 4 {
            0 => on_acquire(&proxy, "owner", 2, Action::LoseReply),
            1 => on_acquire(&proxy, "owner", 1, Action::LoseReply),
            2 => on_release(&proxy, "owner", 1, Action::LoseReply),
            _ => {}
        }
        if let Ok(guard) = lock.lock() {
            let (owner, _) = holder(&mut redis, "owner").unwrap();
            assert!(owners.insert(owner.clone()), "{owner} again");
            drop(guard);
        }
        wait_free(&server, "owner", SOON);
        proxy.clear_rules();
    }
}
