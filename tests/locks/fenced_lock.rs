//! The tokens that a fenced lock has in addition to a re-entrant lock. They increase with each
//! grant, whatever kind of client the holder is.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::common::*;
use redis::{Commands as _, Connection};
use redlatch::{Client, ErrorKind, FencedLock, FencedLockGuard, Lock, LockGuard, Wait};
use redlatch_testkit::{Action, Job, Proxy, Server, Worker};

/// How many times each contending thread takes the lock.
const TURNS: u64 = 150;

fn token_key(name: &str) -> String {
    match name.contains('{') {
        true => format!("redisson_lock_token:{name}"),
        false => format!("redisson_lock_token:{{{name}}}"),
    }
}

/// The protected resource, which keeps the highest token so far, and panics if the next token is
/// not higher.
fn see(redis: &mut Connection, name: &str, guard: &FencedLockGuard) -> u64 {
    let (token, seen) = (guard.token().get(), format!("seen:{name}"));
    let before: Option<u64> = redis.get(&seen).unwrap();
    assert!(before.is_none_or(|before| before < token), "{token} after {before:?}");
    let () = redis.set(&seen, token).unwrap();
    token
}

/// The entry point of the worker processes, whose threads contend for a lock.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0)).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let (name, threads) = (job.arg(1).to_owned(), job.arg(2).parse::<usize>().unwrap());
    let redis = redis::Client::open(job.arg(0)).unwrap();
    job.say("ready");
    let _ = job.wait_line();
    let working: Vec<_> = (0..threads)
        .map(|_| {
            let (client, name) = (client.clone(), name.clone());
            let mut redis = redis.get_connection().unwrap();
            spawn(move || {
                for _ in 0..TURNS {
                    let guard = client.fenced_lock(&name).lock().unwrap();
                    see(&mut redis, &name, &guard);
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    working.into_iter().for_each(Running::join);
    job.say("done");
    let _ = job.wait_line();
}

#[test]
fn tokens_grow_with_every_turn_of_threads_and_processes() {
    let server = server();
    let processes = [1, 4, 4].map(|threads: usize| {
        let args = [&*server.url(), "growing", &threads.to_string()];
        let mut process = Worker::spawn_test("fenced_lock::worker", "turns", &args);
        process.expect_line("ready", TIMEOUT);
        process
    });
    let mut processes = Vec::from(processes);
    processes.iter_mut().for_each(|process| process.send_line("go"));
    for process in &mut processes {
        process.expect_line("done", TIMEOUT);
    }
    let redis = &mut server.connection();
    let (seen, last): (u64, u64) =
        (redis.get("seen:growing").unwrap(), redis.get(token_key("growing")).unwrap());
    assert!(seen >= 9 * TURNS && seen <= last, "{seen} of {last}");
    assert_eq!(redis.ttl::<_, i64>(token_key("growing")).unwrap(), -1, "they outlive the lock");
}

#[test]
fn threads_of_one_process_have_tokens_of_their_own() {
    let server = server();
    let lock = client(&server).fenced_lock("passed");
    let first = lock.lock().unwrap();
    let (mut redis, next) = (server.connection(), lock);
    let token = see(&mut redis, "passed", &first);
    let next = spawn(move || {
        let guard = next.lock().unwrap();
        (see(&mut redis, "passed", &guard), guard.unlock().unwrap())
    });
    next.wait_asleep();
    first.unlock().unwrap();
    let (passed, ()) = next.join();
    assert!(passed > token);
}

#[test]
fn re_entry_keeps_the_token() {
    let server = server();
    let lock = client(&server).fenced_lock("nested");
    let outer = lock.lock().unwrap();
    let inner = lock.try_lock().unwrap().into_option().expect("it is its own");
    assert_eq!(inner.token(), outer.token());
    assert_eq!(lock.hold_count(), 2);
    outer.unlock().unwrap();
    assert!(inner.is_held());
    inner.unlock().unwrap();
    let later = lock.lock_owned().unwrap();
    assert!(lock.try_lock().unwrap().into_option().is_none());
    let token = later.token();
    later.unlock().unwrap();
    let last = lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("it is free");
    assert!(last.token() > token);
}

#[test]
fn every_verb_gives_a_token_or_the_plain_guard() {
    let server = server();
    let lock = client(&server).fenced_lock("verbs");
    let mut seen = Vec::new();
    seen.push(lock.lock_within(Wait::at_most(TIMEOUT)).unwrap().into_option().unwrap().token());
    seen.push(lock.with(|guard| Ok::<_, redlatch::Error>(guard.token())).unwrap());
    let fixed = lock.with_lease(Duration::from_secs(5));
    seen.push(fixed.lock().unwrap().token());
    seen.push(fixed.try_lock_owned().unwrap().into_option().unwrap().token());
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
    // The code of a user that works with any kind of lock.
    fn plain(lock: &dyn Lock) -> LockGuard {
        lock.lock().unwrap()
    }
    let guard = plain(&lock);
    assert!(guard.is_held() && lock.is_held_by_current_thread());
    guard.unlock().unwrap();
    let guard: LockGuard = lock.lock().unwrap().into();
    assert_eq!(guard.name(), "verbs");
}

/// Redisson's script, as 4.x sends it.
const REDISSON: &str = "
if (redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1) then
    local token = redis.call('incr', KEYS[2]);
    redis.call('hincrby', KEYS[1], ARGV[2], 1);
    redis.call('pexpire', KEYS[1], ARGV[1]);
    return {-1, token};
end;
return {redis.call('pttl', KEYS[1]), -1};";

fn lock_as_redisson(redis: &mut Connection, name: &str) -> (i64, i64) {
    let mut script = redis::cmd("EVAL");
    script.arg(REDISSON).arg(2).arg(name).arg(token_key(name)).arg(30_000).arg(FOREIGN);
    script.query(redis).unwrap()
}

#[test]
fn redisson_and_we_count_on_from_each_other() {
    let server = server();
    let redis = &mut server.connection();
    for name in ["shared", "a{b}c"] {
        let lock = client(&server).fenced_lock(name);
        let mut last = 0;
        for _ in 0..3 {
            let guard = lock.lock().unwrap();
            let token = i64::from(guard.token());
            assert!(token > last, "{token} after {last}");
            assert!(lock_as_redisson(redis, name).0 > 0, "it is held");
            guard.unlock().unwrap();
            let (free, next) = lock_as_redisson(redis, name);
            assert!(free == -1 && next > token, "{next} after {token}");
            last = next;
            release_as_redisson(redis, name, &channel(name));
        }
    }
}

/// A release by a re-entrant lock grants the lock to the first waiter in the queue, but makes no
/// token.
#[test]
fn a_waiter_handed_the_lock_without_a_token_asks_for_one() {
    let server = server();
    let (plain, fenced) = (client(&server), client(&server).fenced_lock("mixed"));
    let other = client(&server);
    let first = fenced.lock().unwrap().token();
    let guard = plain.reentrant_lock("mixed").lock().unwrap();
    let waiter = spawn(move || other.fenced_lock("mixed").lock().unwrap().token());
    wait_in_line(&server, "mixed", 1);
    guard.unlock().unwrap();
    assert!(waiter.join() > first);
}

#[test]
fn a_reply_that_is_lost_makes_no_token_twice() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lock = impatient(&proxy.url()).connect().unwrap().fenced_lock("lost");
    let other = client(&server).fenced_lock("lost");
    // The first call also checks the rights, with another text of the script. So the server knows
    // the script only after the second call.
    drop((other.lock().unwrap(), other.lock().unwrap()));
    drop(other.lock().unwrap());
    drop(lock.lock().unwrap());
    let mut last = other.lock().unwrap().token();
    for _ in 0..3 {
        proxy.on_request("EVALSHA", Action::LoseReply);
        let guard = lock.lock().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        guard.unlock().unwrap();
        last = last.max(other.lock().unwrap().token());
    }
}

#[test]
fn a_token_key_without_a_usable_number_is_an_error_and_nothing_is_held() {
    let server = server();
    let redis = &mut server.connection();
    for (name, value) in [("word", "seven"), ("full", "9007199254740991")] {
        let () = redis.set(token_key(name), value).unwrap();
        let lock = client(&server).fenced_lock(name);
        let error = lock.try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert!(error.to_string().contains("fencing token"), "{error}");
        assert!(!error.to_string().contains(value), "{error}");
        assert!(lock.lock().is_err());
        assert!(!lock.is_locked().unwrap());
    }
}

/// The server refuses each request, even that of a waiter, and the number does not change.
#[test]
fn a_negative_number_is_nothing_to_count_tokens_on_from() {
    let server = server();
    let mut redis = server.connection();
    let client = client(&server);
    for value in ["-1", "-1024", "-5000"] {
        let () = redis.set(token_key("negative"), value).unwrap();
        let lock = client.fenced_lock("negative");
        for _ in 0..3 {
            for error in
                [lock.lock().map(drop).unwrap_err(), lock.try_lock().map(drop).unwrap_err()]
            {
                assert!(error.to_string().contains("no number from 0 to 2^53"), "{error}");
            }
        }
        assert_eq!(redis.get::<_, String>(token_key("negative")).unwrap(), value);
        assert!(!lock.is_locked().unwrap());
    }
    let () = redis.set(token_key("negative"), 0).unwrap();
    client.fenced_lock("negative").lock().unwrap().unlock().unwrap();
}

#[test]
fn without_the_right_to_the_tokens_nothing_is_taken() {
    let server = server();
    let mut user = User::new(&server, "poor");
    let without = ["resetkeys", "~denied", "~redlatch_queue:*", "~redlatch_window:*"];
    for rules in [&without[..], &["~*", "-incrby"]] {
        user.set(&["reset", "on", ">word", "~*", "&*", "+@all"]);
        user.set(rules);
        let lock = user.client().fenced_lock("denied");
        for error in [lock.lock().unwrap_err(), lock.try_lock().unwrap_err()] {
            assert!(error.to_string().contains("redisson_lock_token"), "{error}");
        }
        assert!(!client(&server).fenced_lock("denied").is_locked().unwrap());
    }
}

/// Each thread to which the lock is passed takes one token. The tokens of the next process are
/// higher.
#[test]
fn many_threads_use_up_no_tokens_of_others() {
    let server = server();
    let lock: FencedLock = client(&server).fenced_lock("many");
    let begin = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (lock, begin) = (lock.clone(), Arc::clone(&begin));
            spawn(move || {
                begin.wait();
                (0..1_000).map(|_| lock.lock().unwrap().token()).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut all: Vec<_> = threads.into_iter().flat_map(Running::join).collect();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "no two have the same");
    let last: u64 = server.connection().get(token_key("many")).unwrap();
    assert!(all.iter().all(|token| (1..=last).contains(&token.get())));
}

#[test]
fn a_server_without_tokens_begins_anew() {
    let server: Server = server();
    let lock = client(&server).fenced_lock("flushed");
    let first = lock.lock().unwrap().token();
    assert!(lock.lock().unwrap().token() > first);
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    assert_eq!(lock.lock().unwrap().token(), first, "the guide says so");
}
