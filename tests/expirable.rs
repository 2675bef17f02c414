//! What the expirable semaphore means: to its threads, to other processes and their ends, to
//! Redisson's clients, and when things break.
//!
//! Whatever breaks, the free permits and those that are out are together what was set.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::*;
use redis::{Commands as _, ConnectionLike as _, Script};
use redlatch::{
    CancelToken, Client, Error, ErrorKind, ExpirablePermit, ExpirableSemaphore, HoldState,
    LostReason, PermitId, Wait,
};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// A lease that a test sees the end of.
const LEASE: Duration = Duration::from_millis(5 * UNIT.as_millis() as u64);

/// The channel of a name without braces.
fn channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

fn timeouts(name: &str) -> String {
    format!("{{{name}}}:timeout")
}

fn semaphore(client: &Client, name: &str, permits: u32) -> ExpirableSemaphore {
    let semaphore = client.expirable_semaphore(name);
    assert!(semaphore.try_set_permits(permits).unwrap());
    semaphore
}

/// What is free and what is out, as the keys have it.
fn stored(server: &Server, name: &str) -> (i64, i64) {
    let mut redis = server.connection();
    let mut both = redis::pipe();
    both.atomic().get(name).zcard(timeouts(name));
    let (free, out): (Option<i64>, i64) = both.query(&mut redis).unwrap();
    (free.unwrap_or(0), out)
}

/// Waits until so many are free and so many out; a while later it is still so.
#[track_caller]
fn stays(server: &Server, name: &str, free: i64, out: i64) {
    wait_until(&format!("{free} are free of {name:?}, {out} out"), SOON, || {
        stored(server, name) == (free, out)
    });
    // Time is the subject: what is given or taken twice comes late.
    thread::sleep(UNIT * 2);
    assert_eq!(stored(server, name), (free, out), "{name:?}, later");
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// When the guard is lost, and why.
fn on_lost(permit: &ExpirablePermit) -> mpsc::Receiver<LostReason> {
    let (sender, lost) = mpsc::channel();
    permit.on_lost(move |why| sender.send(why).unwrap());
    lost
}

// What it means.

#[test]
fn permits_are_set_counted_added_and_removed() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).expirable_semaphore("numbers");
    let counts = || {
        let free = semaphore.available_permits().unwrap();
        let (out, all) = (semaphore.acquired_permits().unwrap(), semaphore.permits().unwrap());
        (free, out, all)
    };
    assert_eq!(semaphore.name(), "numbers");
    assert_eq!(counts(), (0, 0, 0));
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert!(semaphore.try_set_permits(3).unwrap());
    assert!(!semaphore.try_set_permits(7).unwrap());
    let two = semaphore.acquire_many(2).unwrap();
    assert_eq!(counts(), (1, 2, 3));
    semaphore.add_permits(4).unwrap();
    assert_eq!(counts(), (5, 2, 7));
    semaphore.set_permits(1).unwrap();
    assert_eq!(counts(), (-1, 2, 1), "what is out stays with who has it");
    assert!(two.iter().all(ExpirablePermit::is_held));
    assert!(semaphore.try_acquire().unwrap().is_none());
    drop(two);
    assert_eq!(counts(), (1, 0, 1));
    semaphore.add_permits(-3).unwrap();
    assert_eq!(counts(), (-2, 0, -2));
    semaphore.set_permits(2).unwrap();
    let permit = semaphore.acquire().unwrap();
    assert!(semaphore.delete().unwrap());
    assert!(!semaphore.delete().unwrap());
    assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(!server.connection().exists::<_, bool>("numbers").unwrap(), "it made it anew");
}

#[test]
fn as_many_permits_as_redis_counts_are_counted() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).expirable_semaphore("many");
    semaphore.add_permits(i64::MAX - 2).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), i64::MAX - 2);
    let two = semaphore.acquire_many(2).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), i64::MAX - 4);
    assert_eq!(semaphore.permits().unwrap(), i64::MAX - 2);
    let error = semaphore.add_permits(5).unwrap_err();
    assert!(error.to_string().contains("more permits than Redis can count"), "{error}");
    semaphore.set_permits(5).unwrap();
    assert_eq!((semaphore.available_permits().unwrap(), semaphore.permits().unwrap()), (3, 5));
    drop(two);
}

#[test]
fn a_lease_that_cannot_be_is_said_to_be_one_of_whatever_has_it() {
    let _bounded = bounded();
    let server = server();
    let semaphore = semaphore(&client(&server), "lease", 1);
    let error = semaphore.with_lease(Duration::ZERO).try_acquire().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!error.to_string().contains("lock"), "{error}");
}

#[test]
fn what_was_taken_comes_back_by_release_and_by_drop() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "taken", 5);
    let one = semaphore.acquire().unwrap();
    assert!(one.is_held() && one.state() == HoldState::Held);
    let mut three = semaphore.try_acquire_many(3).unwrap().unwrap();
    assert_eq!(stored(&server, "taken"), (1, 4));
    assert!(semaphore.try_acquire_many(2).unwrap().is_none());
    assert_eq!(stored(&server, "taken"), (1, 4), "none is taken before all are there");
    one.release().unwrap();
    // Permits belong to no thread, and each is given back by itself.
    let last = three.pop().unwrap();
    elsewhere(move || drop(last));
    stays(&server, "taken", 3, 2);
    drop(three);
    assert_eq!(semaphore.available_permits().unwrap(), 5);
    assert!(semaphore.acquire_many(0).unwrap().is_empty());
    let error = semaphore.acquire_many(1_025).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("1024"), "{error}");
    semaphore.add_permits(1_024).unwrap();
    assert_eq!(semaphore.acquire_many(1_024).unwrap().len(), 1_024);
    stays(&server, "taken", 1_029, 0);
}

#[test]
fn a_bounded_or_cancelled_wait_ends_and_takes_nothing() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "bounded", 1);
    let held = semaphore.try_acquire_for(SOON).unwrap().unwrap();
    let begun = Instant::now();
    assert!(semaphore.try_acquire_for(UNIT).unwrap().is_none());
    assert!(semaphore.try_acquire_until(begun + UNIT * 2).unwrap().is_none());
    assert!(semaphore.try_acquire_many_for(1, UNIT).unwrap().is_none());
    assert!(semaphore.try_acquire_many_until(1, Instant::now()).unwrap().is_none());
    assert!(semaphore.acquire_within(1, Wait::NONE).unwrap().is_none());
    let took = begun.elapsed();
    assert!(took >= UNIT * 3 && took < BEFORE_A_POLL, "{took:?}");
    let tokens: Vec<_> = (0..3).map(|_| CancelToken::new()).collect();
    let waiters: Vec<_> = tokens
        .iter()
        .map(|token| {
            let (semaphore, token) = (semaphore.clone(), token.clone());
            let waiter = spawn(move || semaphore.acquire_cancellable(&token).map(drop));
            waiter.wait_asleep();
            waiter
        })
        .collect();
    for at in [1, 0, 2] {
        tokens[at].cancel();
        wait_until("it ends", SOON, || waiters[at].is_finished());
    }
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    let wait = Wait::at_most(SOON).cancelled_by(&tokens[0]);
    let error = semaphore.acquire_within(1, wait).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    held.release().unwrap();
    assert_eq!(semaphore.acquire_within(1, Wait::at_most(SOON)).unwrap().unwrap().len(), 1);
    stays(&server, "bounded", 1, 0);
}

#[test]
fn a_shutdown_ends_all_waits_and_gives_everything_back() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "shut", 3);
    let held = semaphore.acquire_many(3).unwrap();
    let lost: Vec<_> = held.iter().map(on_lost).collect();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let semaphore = semaphore.clone();
            let waiter = spawn(move || semaphore.acquire().map(drop));
            waiter.wait_asleep();
            waiter
        })
        .collect();
    client.shutdown();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::ShutDown);
    }
    for lost in lost {
        assert_eq!(lost.recv_timeout(SOON).unwrap(), LostReason::ShutDown);
    }
    assert_eq!(stored(&server, "shut"), (3, 0));
    assert_eq!(held[0].state(), HoldState::Lost(LostReason::ShutDown));
    assert_eq!(semaphore.permits().unwrap_err().kind(), ErrorKind::ShutDown);
    drop(held);
    stays(&server, "shut", 3, 0);
}

#[test]
fn threads_of_one_process_are_served_in_the_order_they_came() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = client.expirable_semaphore("order");
    let served = Arc::new(Mutex::new(Vec::new()));
    let (sender, kept) = mpsc::channel();
    let waiters: Vec<_> = [3, 1, 1, 2]
        .into_iter()
        .enumerate()
        .map(|(at, need)| {
            let (semaphore, served, sender) =
                (semaphore.clone(), Arc::clone(&served), sender.clone());
            let waiter = spawn(move || {
                let permits = semaphore.acquire_many(need).unwrap();
                served.lock().unwrap().push(at);
                sender.send(permits).unwrap();
            });
            waiter.wait_queued();
            waiter
        })
        .collect();
    // Enough for those behind, not for the first: nobody passes it.
    semaphore.add_permits(2).unwrap();
    assert!(semaphore.try_acquire().unwrap().is_none(), "nor does one that does not wait");
    thread::sleep(UNIT);
    assert!(served.lock().unwrap().is_empty());
    for expected in [1, 2, 3, 3, 4] {
        semaphore.add_permits(1).unwrap();
        wait_until("the next are served", SOON, || served.lock().unwrap().len() == expected);
    }
    waiters.into_iter().for_each(Running::join);
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
    drop(kept);
    stays(&server, "order", 7, 0);
}

#[test]
fn a_release_wakes_a_waiter_of_another_client_at_once() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "awake", 1);
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let permit = semaphore.acquire().unwrap();
        let waiting = other.expirable_semaphore("awake");
        let waiter = spawn(move || {
            let permit = waiting.acquire().unwrap();
            let entered = Instant::now();
            permit.release().unwrap();
            entered
        });
        wait_subscribed(&server, &channel("awake"));
        waiter.wait_asleep();
        let released = Instant::now();
        drop(permit);
        fastest = fastest.min(waiter.join().saturating_duration_since(released));
    }
    assert!(fastest < UNIT, "{fastest:?}");
}

#[test]
fn a_permit_is_passed_within_the_process_unless_its_id_was_read() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "passed", 1);
    let ids = || -> Vec<Vec<u8>> { server.connection().zrange(timeouts("passed"), 0, -1).unwrap() };
    for is_read in [false, true] {
        // Another try, if the machine kept this thread from within a turn.
        let passed = (0..20).any(|_| {
            let permit = semaphore.acquire().unwrap();
            let first = ids();
            let waiting = semaphore.clone();
            let waiter = spawn(move || waiting.acquire().unwrap());
            waiter.wait_asleep();
            drop(permit);
            let permit = waiter.join();
            // The turn begins with a grant by the server.
            let waiting = semaphore.clone();
            let next = spawn(move || waiting.acquire().unwrap());
            thread::sleep(Duration::from_micros(500));
            let second = ids();
            if is_read {
                assert_eq!(permit.id().as_bytes().as_slice(), second[0]);
            }
            drop(permit);
            let permit = next.join();
            let third = ids();
            assert_eq!((first.len(), second.len(), third.len()), (1, 1, 1));
            drop(permit);
            second == third
        });
        assert_eq!(passed, !is_read, "id read: {is_read}");
    }
    stays(&server, "passed", 1, 0);
}

// Leases.

#[test]
fn a_fixed_lease_ends_and_lets_the_waiter_in_without_a_message() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "fixed", 1);
    let taken = Instant::now();
    let permit = semaphore.with_lease(LEASE).acquire().unwrap();
    let lost = on_lost(&permit);
    assert!(permit.remaining() <= LEASE && permit.remaining() > LEASE / 2);
    permit.check(LEASE / 10).unwrap();
    let error = permit.check(LEASE * 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EndsTooSoon, "{error}");
    assert!(error.to_string().contains("take a longer lease"), "{error}");
    let waiting = other.expirable_semaphore("fixed");
    let waiter = spawn(move || (waiting.acquire().unwrap(), Instant::now()));
    let (next, entered) = waiter.join();
    let after = entered - taken;
    assert!(after >= LEASE, "{after:?}: before the lease's end");
    // A poll would come after 4 s.
    assert!(after < LEASE + UNIT * 20, "{after:?}: it slept past the lease's end");
    assert_eq!(lost.recv_timeout(SOON).unwrap(), LostReason::LeaseExpired);
    assert!(!permit.is_held() && permit.remaining().is_zero());
    assert_eq!(permit.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::LeaseLost);
    let error = permit.release().unwrap_err();
    assert!(error.kind() == ErrorKind::LeaseLost && error.to_string().contains("fixed"), "{error}");
    assert!(next.is_held());
    assert_eq!(stored(&server, "fixed"), (0, 1), "a late release gave back what is another's");
    for lease in [Duration::ZERO, Duration::from_micros(900), Duration::MAX] {
        let error = semaphore.with_lease(lease).try_acquire().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
}

#[test]
fn the_watchdog_keeps_a_permit_beyond_its_lease_until_it_is_given_back() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, RENEWED);
    let semaphore = semaphore(&client, "watched", 2);
    let permits = semaphore.acquire_many(2).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < RENEWED * 3 {
        assert!(permits.iter().all(|permit| permit.is_held() && !permit.remaining().is_zero()));
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        thread::sleep(UNIT / 4);
    }
    drop(permits);
    stays(&server, "watched", 2, 0);
    // None is renewed that was given back.
    let before = Commands::so_far(&server).of("zadd");
    thread::sleep(RENEWED);
    assert_eq!(Commands::so_far(&server).of("zadd"), before);
}

#[test]
fn permits_that_are_due_together_are_renewed_together() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, UNIT * 20);
    let (one, other) = (semaphore(&client, "one", 60), semaphore(&client, "other", 60));
    let lock = client.reentrant_lock("a lock too");
    let _lock = lock.lock().unwrap();
    let permits = (one.acquire_many(60).unwrap(), other.acquire_many(60).unwrap());
    let before = Commands::so_far(&server);
    let (mut renewed, mut scripts) = (0, 0);
    wait_until("each was renewed four times", SOON, || {
        let now = Commands::so_far(&server);
        renewed = now.of("zadd") - before.of("zadd");
        scripts = now.scripts() - before.scripts();
        renewed >= 4 * 120
    });
    assert!(permits.0.iter().chain(&permits.1).all(ExpirablePermit::is_held));
    assert!(scripts <= 24, "{scripts} scripts for {renewed} renewals of 120 permits and a lock");
}

#[test]
fn max_hold_bounds_a_renewed_permit() {
    let _bounded = bounded();
    let server = server();
    let client = Client::builder(&server.url()).watchdog_timeout(LEASE).max_hold(LEASE);
    let client = client.connect().unwrap();
    let semaphore = semaphore(&client, "longest", 1);
    let permit = semaphore.acquire().unwrap();
    let lost = on_lost(&permit);
    assert_eq!(lost.recv_timeout(SOON).unwrap(), LostReason::LeaseExpired);
    let error = permit.release().unwrap_err().to_string();
    assert!(error.contains("max_hold"), "{error}");
    // The guard counts from before the request: the server's lease ends a little later.
    wait_until("it is back", SOON, || semaphore.available_permits().unwrap() == 1);
}

#[test]
fn a_lease_is_asked_for_and_made_longer_by_id() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "leases", 3);
    let id = semaphore.with_lease(LEASE).acquire().unwrap().into_id();
    let left = semaphore.remaining_lease(&id).unwrap().unwrap();
    assert!(left <= LEASE && left > LEASE / 2, "{left:?}");
    assert!(semaphore.update_lease_time(&id, LONG).unwrap());
    assert!(semaphore.remaining_lease(&id).unwrap().unwrap() > LONG / 2);
    assert!(semaphore.update_lease_time(&id, LEASE).unwrap());
    assert!(semaphore.remaining_lease(&id).unwrap().unwrap() <= LEASE);
    wait_until("it ends", SOON, || semaphore.remaining_lease(&id).unwrap().is_none());
    assert!(!semaphore.update_lease_time(&id, LONG).unwrap(), "what has ended is not revived");
    assert!(!semaphore.try_release(&id).unwrap());
    // One that a guard has is only made longer, and the guard knows.
    let permit = semaphore.with_lease(LEASE).acquire().unwrap();
    assert!(semaphore.update_lease_time(&permit.id(), LONG).unwrap());
    permit.check(LONG / 2).unwrap();
    assert!(semaphore.update_lease_time(&permit.id(), UNIT).unwrap());
    assert!(semaphore.remaining_lease(&permit.id()).unwrap().unwrap() > LONG / 2);
    let error = semaphore.update_lease_time(&id, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    permit.release().unwrap();
    // Nor is one revived whose guard does not know yet.
    let permit = semaphore.acquire().unwrap();
    let id = permit.id();
    let () = server.connection().zadd(timeouts("leases"), id.as_bytes(), 1_000).unwrap();
    assert!(!semaphore.update_lease_time(&id, LONG).unwrap());
    assert_eq!(permit.state(), HoldState::Lost(LostReason::Revoked));
    drop(permit);
    drop(semaphore.acquire_many(3).unwrap());
    stays(&server, "leases", 3, 0);
}

#[test]
fn permits_are_given_back_by_their_ids() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "ids", 6);
    let theirs = other.expirable_semaphore("ids");
    let ids: Vec<PermitId> =
        semaphore.acquire_many(4).unwrap().into_iter().map(ExpirablePermit::into_id).collect();
    assert_eq!(stored(&server, "ids"), (2, 4));
    let read: PermitId = ids[0].to_string().parse().unwrap();
    theirs.release(&read).unwrap();
    assert_eq!(stored(&server, "ids"), (3, 3));
    let error = theirs.release(&ids[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    assert!(!theirs.try_release(&ids[0]).unwrap());
    // All or none.
    let error = theirs.release_many(&[ids[1], ids[0]]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    assert_eq!(theirs.release_many(&[ids[1], ids[1]]).unwrap_err().kind(), ErrorKind::Config);
    assert_eq!(stored(&server, "ids"), (3, 3));
    theirs.release_many(&ids[1..]).unwrap();
    theirs.release_many(&[]).unwrap();
    assert_eq!(stored(&server, "ids"), (6, 0));
    // A guard of the same client says so, and gives nothing back twice.
    let permit = semaphore.acquire().unwrap();
    let lost = on_lost(&permit);
    assert!(semaphore.try_release(&permit.id()).unwrap());
    assert_eq!(permit.state(), HoldState::Released);
    assert_eq!(permit.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(lost.recv_timeout(SOON).is_err(), "released is not lost");
    stays(&server, "ids", 6, 0);
}

#[test]
fn a_permit_that_others_give_back_is_lost_at_the_next_renewal() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (watched(&server, RENEWED), client(&server));
    let semaphore = semaphore(&one, "others", 2);
    let (permit, second) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let lost = on_lost(&permit);
    other.expirable_semaphore("others").release(&permit.id()).unwrap();
    assert_eq!(lost.recv_timeout(SOON).unwrap(), LostReason::Revoked);
    assert!(!permit.is_held() && second.is_held());
    let late = on_lost(&permit);
    assert_eq!(late.recv_timeout(SOON).unwrap(), LostReason::Revoked);
    assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    drop(second);
    stays(&server, "others", 2, 0);
}

// Processes.

/// Where this executable's workers begin.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "holder" => hold(&job),
        _ => contend(&job),
    }
}

/// Takes permits and keeps them: url, name, how many, lease of its watchdog in ms.
fn hold(job: &Job) {
    let lease = Duration::from_millis(job.arg(3).parse().unwrap());
    let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
    let permits =
        client.expirable_semaphore(job.arg(1)).acquire_many(job.arg(2).parse().unwrap()).unwrap();
    let lost: Vec<_> = permits.iter().map(on_lost).collect();
    let ids: Vec<_> = permits.iter().map(|permit| permit.id().to_string()).collect();
    job.say(&format!("has {}", ids.join(" ")));
    let _ = job.wait_line();
    let why = lost[0].recv_timeout(SOON);
    job.say(&format!("lost {why:?} held {}", permits[0].is_held()));
    let _ = job.wait_line();
}

/// Takes and gives back until told to stop; who is inside is counted apart.
fn contend(job: &Job) {
    const PERMITS: u32 = 3;
    let client = Client::builder(job.arg(0)).watchdog_timeout(RENEWED).connect().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..3)
        .map(|at| {
            let semaphore = client.expirable_semaphore("most");
            let mut redis = redis::Client::open(job.arg(0)).unwrap().get_connection().unwrap();
            let mut random = Random::of(job.arg(1).parse::<u64>().unwrap() * 31 + at);
            let stop = Arc::clone(&stop);
            spawn(move || {
                let mut grants = 0_u64;
                while !stop.load(Ordering::SeqCst) {
                    let need = 1 + u32::try_from(random.below(PERMITS.into())).unwrap();
                    let wait = Duration::from_micros(random.below(3_000));
                    let taken = match random.below(6) {
                        0 => semaphore.try_acquire_many(need).unwrap(),
                        1 => semaphore.try_acquire_many_for(need, wait).unwrap(),
                        2 => semaphore.with_lease(LONG).try_acquire_many(need).unwrap(),
                        _ => Some(semaphore.acquire_many(need).unwrap()),
                    };
                    let Some(permits) = taken else { continue };
                    let inside: i64 = redis.incr("inside", need).unwrap();
                    assert!(inside <= PERMITS.into(), "{inside} are inside");
                    let () = redis.decr("inside", need).unwrap();
                    grants += 1;
                    for permit in permits {
                        match random.below(3) {
                            0 => permit.release().unwrap(),
                            1 => semaphore.release(&permit.into_id()).unwrap(),
                            _ => drop(permit),
                        }
                    }
                }
                grants
            })
        })
        .collect();
    job.say("starts");
    let _ = job.wait_line();
    stop.store(true, Ordering::SeqCst);
    let grants: Vec<_> = threads.into_iter().map(Running::join).collect();
    job.say(&format!("grants {grants:?}"));
    drop(client);
    job.say("ended");
    let _ = job.wait_line();
}

#[test]
fn never_are_more_out_than_there_are_and_none_is_lost() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "most", 3);
    let mut random = Random::new();
    let mut workers: Vec<_> = (0..3)
        .map(|_| {
            let seed = (random.next() >> 16).to_string();
            Worker::spawn_test("worker", "contender", &[&server.url(), &seed])
        })
        .collect();
    for worker in &mut workers {
        worker.expect_line("starts", SOON);
    }
    thread::sleep(UNIT * 20);
    for worker in &mut workers {
        worker.send_line("stop");
    }
    for worker in &mut workers {
        let grants = worker.expect_line("grants", SOON);
        println!("{grants}");
        assert!(!grants.contains("[0,") && !grants.contains(" 0"), "somebody starved: {grants}");
        worker.expect_line("ended", SOON);
    }
    stays(&server, "most", 3, 0);
    assert_eq!(semaphore.permits().unwrap(), 3);
}

fn holder(server: &Server, name: &str, permits: u32, lease: Duration) -> (Worker, Vec<PermitId>) {
    let [permits, lease] = [permits.to_string(), lease.as_millis().to_string()];
    let mut worker =
        Worker::spawn_test("worker", "holder", &[&server.url(), name, &permits, &lease]);
    let ids = worker.expect_line("has", SOON);
    (worker, ids.split(' ').map(|id| id.parse().unwrap()).collect())
}

#[test]
fn the_permits_of_a_killed_process_come_back_when_their_leases_end_and_not_before() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "killed", 3);
    let lease = UNIT * 15;
    let (mut dead, ids) = holder(&server, "killed", 2, lease);
    let (_alive, living) = holder(&server, "killed", 1, lease);
    // Beyond the first leases: both were renewed.
    thread::sleep(lease + UNIT * 2);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    dead.sigkill();
    let killed = Instant::now();
    let left = semaphore.remaining_lease(&ids[0]).unwrap().unwrap();
    let waiting = semaphore.clone();
    let waiter = spawn(move || (waiting.acquire_many(2).unwrap(), Instant::now()));
    let (permits, entered) = waiter.join();
    let after = entered - killed;
    assert!(after + UNIT / 2 >= left, "after {after:?} of {left:?}");
    assert!(after < left + UNIT * 20, "after {after:?} of {left:?}");
    assert!(semaphore.remaining_lease(&living[0]).unwrap().is_some(), "who lives keeps its own");
    assert!(permits.iter().all(ExpirablePermit::is_held));
    drop(permits);
    stays(&server, "killed", 2, 1);
}

#[test]
fn another_process_gives_back_by_id_what_a_process_has() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "handed", 1);
    let (mut worker, ids) = holder(&server, "handed", 1, LEASE);
    let waiting = semaphore.clone();
    let waiter = spawn(move || waiting.acquire().unwrap());
    wait_subscribed(&server, &channel("handed"));
    semaphore.release(&ids[0]).unwrap();
    assert!(waiter.join().is_held());
    worker.send_line("look");
    assert_eq!(worker.expect_line("lost", SOON), "Ok(Revoked) held false");
}

#[test]
fn a_stopped_process_learns_that_its_permit_is_anothers() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "stopped", 1);
    let (mut worker, _) = holder(&server, "stopped", 1, LEASE);
    worker.sigstop();
    let permit = semaphore.acquire().unwrap();
    worker.sigcont();
    worker.send_line("look");
    assert_eq!(worker.expect_line("lost", SOON), "Ok(LeaseExpired) held false");
    assert!(permit.is_held());
    permit.release().unwrap();
    stays(&server, "stopped", 1, 0);
}

// The wire, and Redisson.

#[test]
fn the_keys_and_the_messages_are_redissons() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, timeouts, channel) in [
        ("wire", "{wire}:timeout", "redisson_sc:{wire}"),
        ("a{b}c", "a{b}c:timeout", "redisson_sc:a{b}c"),
        ("größe \u{1F512}", "{größe \u{1F512}}:timeout", "redisson_sc:{größe \u{1F512}}"),
    ] {
        let mut connection = server.connection();
        let mut subscriber = connection.as_pubsub();
        subscriber.subscribe(channel).unwrap();
        let mut heard = || subscriber.get_message().unwrap().get_payload::<String>().unwrap();
        let semaphore = client.expirable_semaphore(name);
        assert!(semaphore.try_set_permits(2).unwrap());
        assert_eq!(heard(), "2");
        let before = now();
        let permit = semaphore.acquire().unwrap();
        assert_eq!(redis.get::<_, String>(name).unwrap(), "1");
        let out: Vec<(Vec<u8>, u64)> = redis.zrange_withscores(timeouts, 0, -1).unwrap();
        let id = permit.id();
        assert_eq!(out[0].0, id.as_bytes());
        let ends = before + u64::try_from(LONG.as_millis()).unwrap();
        assert!((ends..ends + 10_000).contains(&out[0].1), "{} {ends}", out[0].1);
        assert_eq!((pttl(&mut redis, name), pttl(&mut redis, timeouts)), (-1, -1));
        permit.release().unwrap();
        assert_eq!(heard(), "2");
        semaphore.add_permits(3).unwrap();
        assert_eq!(heard(), "5");
        // A time to live that somebody gives it is that of all.
        let () = redis.pexpire(name, 100_000).unwrap();
        let permit = semaphore.acquire().unwrap();
        assert!(pttl(&mut redis, timeouts) > 50_000);
        drop(permit);
    }
}

/// One client of Redisson's, which has a clock of its own.
struct Redisson {
    redis: redis::Connection,
    name: &'static str,
    /// How many ms its clock is ahead.
    ahead: i64,
}

impl Redisson {
    fn new(server: &Server, name: &'static str) -> Self {
        Self { redis: server.connection(), name, ahead: 0 }
    }

    fn now(&self) -> i64 {
        i64::try_from(now()).unwrap() + self.ahead
    }

    fn ends(&self, lease: Option<Duration>) -> i64 {
        let ends = |lease: Duration| self.now() + i64::try_from(lease.as_millis()).unwrap();
        lease.map_or(922_337_203_685_477, ends)
    }

    fn tried(&self, reply: Option<String>) -> Result<(), Option<i64>> {
        match reply.as_deref() {
            Some("OK") => Ok(()),
            Some(next) => Err(Some(next.strip_prefix(':').unwrap().parse().unwrap())),
            None => Err(None),
        }
    }

    fn acquire_3(&mut self, id: &str, lease: Option<Duration>) -> Result<(), Option<i64>> {
        let reply = Script::new(include_str!("expirable/acquire_3.lua"))
            .key(&[self.name, &timeouts(self.name), &channel(self.name)])
            .arg(1)
            .arg(self.ends(lease))
            .arg(id)
            .arg(self.now())
            .arg(922_337_203_685_477_i64)
            .invoke(&mut self.redis);
        self.tried(reply.unwrap())
    }

    fn release_3(&mut self, id: &[u8]) -> bool {
        Script::new(include_str!("expirable/release_3.lua"))
            .key(&[self.name, &channel(self.name), &timeouts(self.name)])
            .arg(id)
            .arg(1)
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn acquire_4(&mut self, ids: &[PermitId], lease: Option<Duration>) -> Result<(), Option<i64>> {
        let script = Script::new(include_str!("expirable/acquire_4.lua"));
        let mut call = script.prepare_invoke();
        call.key(&[self.name, &timeouts(self.name), &channel(self.name)]).arg(ids.len());
        call.arg(self.ends(lease)).arg(self.now()).arg(922_337_203_685_477_i64).arg("PUBLISH");
        for id in ids {
            call.arg(id.as_bytes());
        }
        let reply = call.invoke(&mut self.redis);
        self.tried(reply.unwrap())
    }

    fn release_4(&mut self, id: &PermitId) -> bool {
        Script::new(include_str!("expirable/release_4.lua"))
            .key(&[self.name, &channel(self.name), &timeouts(self.name)])
            .arg(id.as_bytes())
            .arg(1)
            .arg(self.now())
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn available_4(&mut self) -> i64 {
        Script::new(include_str!("expirable/available_4.lua"))
            .key(&[self.name, &timeouts(self.name), &channel(self.name)])
            .arg(self.now())
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn update_lease_time_4(&mut self, id: &PermitId, lease: Duration) -> bool {
        Script::new(include_str!("expirable/update_lease_time_4.lua"))
            .key(&[self.name, &timeouts(self.name), &channel(self.name)])
            .arg(id.as_bytes())
            .arg(self.ends(Some(lease)))
            .arg(self.now())
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn set_permits_4(&mut self, permits: u32) {
        let () = Script::new(include_str!("expirable/set_permits_4.lua"))
            .key(&[self.name, &channel(self.name), &timeouts(self.name)])
            .arg(permits)
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap();
    }
}

const TEXT_ID: &str = "00112233445566778899aabbccddeeff";

#[test]
fn redisson_4_and_we_share_permits_and_give_back_each_others() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = client.expirable_semaphore("java");
    let mut java = Redisson::new(&server, "java");
    java.set_permits_4(3);
    let [a, b] = [1, 2].map(|it| PermitId::from_bytes([it; 16]));
    java.acquire_4(&[a, b], Some(LONG)).unwrap();
    let ours = semaphore.acquire().unwrap();
    // Nobody gets more than there are; it is told when the first lease ends.
    let next = java.acquire_4(&[PermitId::from_bytes([9; 16])], None).unwrap_err().unwrap();
    assert!((next - java.now()).abs() <= 61_000, "{next}");
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert_eq!((java.available_4(), semaphore.acquired_permits().unwrap()), (0, 3));
    // Each gives back the other's.
    semaphore.release(&a).unwrap();
    assert!(java.release_4(&ours.id()));
    assert!(!java.release_4(&ours.id()));
    assert_eq!(ours.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(semaphore.remaining_lease(&b).unwrap().unwrap() > LONG / 2);
    assert!(semaphore.update_lease_time(&b, LEASE).unwrap());
    assert!(java.update_lease_time_4(&b, LONG));
    assert!(semaphore.remaining_lease(&b).unwrap().unwrap() > LONG / 2);
    assert!(java.release_4(&b));
    // One without a lease is out for ever.
    java.acquire_4(&[a], None).unwrap();
    assert_eq!(semaphore.remaining_lease(&a).unwrap(), Some(Duration::MAX));
    assert!(semaphore.update_lease_time(&a, LEASE).unwrap());
    // Its lease ends: whoever comes first has the permit, and a late release takes it from nobody.
    let all = semaphore.try_acquire_many_for(3, SOON).unwrap().unwrap();
    assert!(!java.release_4(&a) && java.available_4() == 0);
    drop(all);
    semaphore.set_permits(2).unwrap();
    assert_eq!(java.available_4(), 2);
    java.set_permits_4(5);
    assert_eq!(semaphore.permits().unwrap(), 5);
    stays(&server, "java", 5, 0);
}

#[test]
fn redisson_3_and_we_share_permits_and_their_leases_end_for_both() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "java", 2);
    let mut java = Redisson::new(&server, "java");
    java.acquire_3(TEXT_ID, Some(LONG)).unwrap();
    let ours = semaphore.acquire().unwrap();
    assert!(java.acquire_3("another", None).unwrap_err().is_some());
    assert!(semaphore.try_acquire().unwrap().is_none());
    // Its ids are others: neither gives back the other's.
    assert!(!semaphore.try_release(&TEXT_ID.parse().unwrap()).unwrap());
    assert!(!java.release_3(ours.id().to_string().as_bytes()));
    assert_eq!(stored(&server, "java"), (0, 2));
    assert!(java.release_3(TEXT_ID.as_bytes()));
    drop(ours);
    stays(&server, "java", 2, 0);
    // They come back by themselves, to either.
    java.acquire_3(TEXT_ID, Some(LEASE)).unwrap();
    drop(semaphore.try_acquire_many_for(2, SOON).unwrap().unwrap());
    stays(&server, "java", 2, 0);
    let short = semaphore.with_lease(LEASE).acquire_many(2).unwrap();
    wait_until("it gets one", SOON, || java.acquire_3(TEXT_ID, Some(LONG)).is_ok());
    wait_until("the guards know", SOON, || !short.iter().any(ExpirablePermit::is_held));
    assert!(java.release_3(TEXT_ID.as_bytes()));
    drop(short);
    // It has taken back no more than it needed.
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    drop(semaphore.try_acquire_many(2).unwrap().unwrap());
    stays(&server, "java", 2, 0);
}

#[test]
fn a_java_services_release_wakes_a_waiter_and_ours_is_told_to_it() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "java", 1);
    let mut java = Redisson::new(&server, "java");
    for version in [3, 4] {
        let id: PermitId = TEXT_ID.parse().unwrap();
        if version == 3 {
            java.acquire_3(TEXT_ID, None).unwrap();
        } else {
            java.acquire_4(&[id], None).unwrap();
        }
        let waiting = semaphore.clone();
        let waiter = spawn(move || waiting.acquire().unwrap());
        wait_subscribed(&server, &channel("java"));
        waiter.wait_asleep();
        let released = Instant::now();
        assert!(if version == 3 {
            java.release_3(TEXT_ID.as_bytes())
        } else {
            java.release_4(&id)
        });
        let permit = waiter.join();
        assert!(released.elapsed() < BEFORE_A_POLL);
        let mut connection = server.connection();
        let mut subscriber = connection.as_pubsub();
        subscriber.subscribe(channel("java")).unwrap();
        drop(permit);
        assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 1);
    }
}

#[test]
fn a_lease_that_ends_is_told_to_those_who_wait_by_whoever_finds_it() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "found", 3);
    let ids: Vec<_> = semaphore.with_lease(LEASE).acquire_many(2).unwrap();
    let ids: Vec<_> = ids.into_iter().map(ExpirablePermit::into_id).collect();
    let mut connection = server.connection();
    let mut subscriber = connection.as_pubsub();
    subscriber.subscribe(channel("found")).unwrap();
    wait_until("it ends", SOON, || semaphore.remaining_lease(&ids[0]).unwrap().is_none());
    assert_eq!(stored(&server, "found"), (1, 2), "a question changes nothing");
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    let permit = semaphore.try_acquire().unwrap().unwrap();
    // Two came back, one of the three is taken.
    assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 2);
    assert_eq!(stored(&server, "found"), (2, 1));
    permit.release().unwrap();
    assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 3);
    // And by a release: of one that lapsed and nobody had found, too.
    let lapsed = semaphore.with_lease(UNIT).acquire().unwrap().into_id();
    wait_until("it ends", SOON, || semaphore.remaining_lease(&lapsed).unwrap().is_none());
    assert!(!semaphore.try_release(&lapsed).unwrap());
    assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 3);
    stays(&server, "found", 3, 0);
}

#[test]
fn a_java_service_with_a_wrong_clock_takes_nothing_from_who_is_renewed() {
    let _bounded = bounded();
    let server = server();
    // Two thirds of it, 4 s, are left at the least.
    let client = watched(&server, UNIT * 60);
    let semaphore = semaphore(&client, "skewed", 2);
    let permit = semaphore.acquire().unwrap();
    let mut java = Redisson::new(&server, "skewed");
    java.ahead = 2_000;
    let begun = Instant::now();
    while begun.elapsed() < UNIT * 30 {
        assert_eq!(java.available_4(), 1);
        thread::sleep(UNIT);
    }
    permit.check(Duration::from_secs(2)).unwrap();
    // Further ahead it takes it away, and the guard is told.
    let lost = on_lost(&permit);
    java.ahead = 10_000;
    assert_eq!(java.available_4(), 2);
    assert_eq!(lost.recv_timeout(SOON).unwrap(), LostReason::Revoked);
    // One that is behind: what it takes is over by the server's clock, and free again.
    java.ahead = -10_000;
    java.acquire_4(&[TEXT_ID.parse().unwrap()], Some(Duration::from_secs(5))).unwrap();
    drop(permit);
    drop(semaphore.try_acquire_many(2).unwrap().unwrap());
    stays(&server, "skewed", 2, 0);
}

// What breaks.

/// Whether it takes permits for the lease that [`impatient`] clients have.
fn acquires(bytes: &[u8], name: &str) -> bool {
    contains(bytes, "EVAL") && contains(bytes, &channel(name)) && contains(bytes, "\r\n60000\r\n")
}

fn releases(bytes: &[u8], name: &str) -> bool {
    contains(bytes, "EVAL")
        && contains(bytes, &channel(name))
        && !contains(bytes, "\r\n60000\r\n")
        && !contains(bytes, "redlatch_request")
}

fn on_acquire(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| acquires(bytes, name));
}

fn on_release(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| releases(bytes, name));
}

/// A client behind a network, which has its connection and knows its scripts.
fn behind(proxy: &Proxy) -> Client {
    common::behind(proxy, |client| drop(semaphore(client, "warm", 1).acquire().unwrap()))
}

#[test]
fn a_lost_reply_or_request_takes_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "acquired", 5);
    for (round, action) in [Action::LoseReply, Action::LoseRequest].into_iter().enumerate() {
        on_acquire(&proxy, "acquired", 1, action);
        let permits = semaphore.acquire_many(2).unwrap();
        assert_eq!(proxy.fired(), round + 1);
        stays(&server, "acquired", 3, 2);
        assert!(permits.iter().all(ExpirablePermit::is_held));
        permits.into_iter().for_each(|permit| permit.release().unwrap());
        stays(&server, "acquired", 5, 0);
    }
    on_acquire(&proxy, "acquired", 1, Action::LoseReply);
    assert!(semaphore.try_acquire_many(6).unwrap().is_none());
    semaphore.add_permits(5).unwrap();
    stays(&server, "acquired", 10, 0);
}

#[test]
fn an_acquire_of_unknown_outcome_is_an_error_and_the_permits_come_back() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "unknown", 5);
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 2),
        (Action::LoseRequest, 2),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        on_acquire(&proxy, "unknown", times, action);
        let error = semaphore.acquire_many(3).map(drop).unwrap_err();
        fired += times;
        assert_eq!(proxy.fired(), fired);
        is_clear(&error, "unknown", "given back in the background");
        assert!(error.outcome_unknown());
        proxy.release();
        stays(&server, "unknown", 5, 0);
    }
    // What gives it back is lost as well, again and again.
    on_acquire(&proxy, "unknown", 2, Action::LoseReply);
    on_release(&proxy, "unknown", 3, Action::LoseReply);
    on_release(&proxy, "unknown", 2, Action::LoseRequest);
    assert!(semaphore.acquire_many(3).is_err());
    proxy.wait_fired(fired + 7, SOON);
    stays(&server, "unknown", 5, 0);
}

#[test]
fn a_copy_that_arrives_late_takes_nothing_that_stays() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "late", 5);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&seen);
    proxy.on(Direction::Request, 1, Action::LoseRequest, move |bytes| {
        let is = acquires(bytes, "late");
        if is {
            *copy.lock().unwrap() = bytes.to_vec();
        }
        is
    });
    let mut permits = semaphore.acquire_many(3).unwrap();
    let request = seen.lock().unwrap().clone();
    let mut redis = server.connection();
    let mut arrives = || drop(redis.req_packed_command(&request).unwrap());
    // While all are there, when some are, and when none is.
    arrives();
    assert_eq!(stored(&server, "late"), (2, 3));
    permits.pop().unwrap().release().unwrap();
    arrives();
    assert_eq!(stored(&server, "late"), (3, 2), "one was counted twice");
    drop(permits);
    wait_until("they are back", SOON, || stored(&server, "late") == (5, 0));
    arrives();
    // It was sent twice, so it is undone for as long as a copy may come.
    stays(&server, "late", 5, 0);
    // One that was refused, and comes when there is enough.
    let copy = Arc::clone(&seen);
    proxy.on(Direction::Request, 1, Action::LoseRequest, move |bytes| {
        let is = acquires(bytes, "late");
        if is {
            *copy.lock().unwrap() = bytes.to_vec();
        }
        is
    });
    assert!(semaphore.try_acquire_many(7).unwrap().is_none());
    let request = seen.lock().unwrap().clone();
    semaphore.add_permits(2).unwrap();
    drop(redis.req_packed_command(&request).unwrap());
    stays(&server, "late", 7, 0);
}

#[test]
fn a_release_is_made_once_whatever_is_lost() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "released", 5);
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 1),
        (Action::LoseRequest, 1),
        (Action::LoseReply, 4),
        (Action::LoseRequest, 4),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        for way in ["drop", "release", "by id"] {
            let permit = semaphore.acquire().or_else(|error| {
                // The first call on a connection that went silent under a drop.
                is_clear(&error, "released", "did not answer in time");
                wait_until("it is back", SOON, || stored(&server, "released") == (5, 0));
                semaphore.acquire()
            });
            let permit = permit.unwrap();
            wait_until("it is out", SOON, || stored(&server, "released") == (4, 1));
            on_release(&proxy, "released", times, action);
            let released = match way {
                "drop" => {
                    drop(permit);
                    Ok(())
                }
                "release" => permit.release(),
                _ => semaphore.release(&permit.into_id()),
            };
            // Or a release of an earlier round was lost, which is sent again in the background.
            if let Err(error) = released {
                assert!(error.outcome_unknown(), "{way} {action:?}: {error}");
            }
            fired += times;
            proxy.wait_fired(fired, SOON);
            proxy.release();
            stays(&server, "released", 5, 0);
        }
    }
}

#[test]
fn each_change_of_the_number_is_made_once_though_its_reply_is_lost() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "changed", 5);
    let id = semaphore.acquire().unwrap().into_id();
    let on_request = || {
        proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| {
            contains(bytes, "redlatch_request:{changed}")
        });
    };
    on_request();
    semaphore.add_permits(2).unwrap();
    assert_eq!(stored(&server, "changed"), (6, 1));
    on_request();
    semaphore.set_permits(3).unwrap();
    assert_eq!(stored(&server, "changed"), (2, 1));
    on_request();
    assert!(semaphore.update_lease_time(&id, LONG).unwrap());
    on_request();
    assert!(!semaphore.try_set_permits(9).unwrap());
    on_request();
    assert!(semaphore.delete().unwrap());
    on_request();
    assert!(semaphore.try_set_permits(9).unwrap());
    assert_eq!(proxy.fired(), 6);
    stays(&server, "changed", 9, 0);
}

#[test]
fn a_permit_that_ends_while_its_release_is_on_its_way_comes_back_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let other = common::client(&server).expirable_semaphore("ending");
    let semaphore = semaphore(&client, "ending", 1);
    for found in [false, true] {
        let permit = semaphore.with_lease(LEASE).acquire().unwrap();
        let ends = Instant::now() + LEASE;
        proxy.freeze();
        let release = spawn(move || permit.release().unwrap_err());
        release.wait_asleep();
        wait_until("the lease ends", SOON, || Instant::now() > ends);
        let next = found.then(|| other.try_acquire_for(SOON).unwrap().unwrap());
        proxy.thaw();
        let error = release.join();
        assert!(
            error.kind() == ErrorKind::LeaseLost || error.outcome_unknown(),
            "{found}: {error}"
        );
        assert!(next.iter().all(ExpirablePermit::is_held));
        assert_eq!(stored(&server, "ending").1, i64::from(found));
        drop(next);
        stays(&server, "ending", 1, 0);
    }
}

#[test]
fn replies_lost_at_any_moment_lose_no_permit_and_make_none() {
    let _bounded = bounded();
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let clients = [0, 1].map(|at: usize| impatient(&proxies[at].url()).connect().unwrap());
    let _kept = semaphore(&clients[0], "most", 3);
    let stop = Arc::new(AtomicBool::new(false));
    let errors = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let semaphore = clients[at % 2].expirable_semaphore("most");
            let (stop, errors) = (Arc::clone(&stop), Arc::clone(&errors));
            let mut redis = server.connection();
            spawn(move || {
                let mut grants = 0_u64;
                while !stop.load(Ordering::SeqCst) {
                    let need = 1 + u32::try_from(at % 3).unwrap();
                    match semaphore.acquire_many(need) {
                        Ok(permits) => {
                            let inside: i64 = redis.incr("inside", need).unwrap();
                            assert!(inside <= 3, "{inside} are inside");
                            let () = redis.decr("inside", need).unwrap();
                            grants += 1;
                            drop(permits);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
                            errors.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
                grants
            })
        })
        .collect();
    let salt = Random::new().next();
    let seen = Arc::new(AtomicU64::new(1));
    for proxy in &proxies {
        for action in [Action::LoseReply, Action::LoseRequest] {
            let seen = Arc::clone(&seen);
            proxy.on(Direction::Request, usize::MAX, action, move |bytes| {
                let at = seen.fetch_add(1, Ordering::SeqCst) ^ salt;
                contains(bytes, "EVAL") && at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59 == 0
            });
        }
    }
    thread::sleep(UNIT * 30);
    proxies.iter().for_each(Proxy::clear_rules);
    stop.store(true, Ordering::SeqCst);
    let grants: u64 = threads.into_iter().map(Running::join).sum();
    let fired: usize = proxies.iter().map(Proxy::fired).sum();
    println!("{grants} grants, {errors:?} errors, {fired} lost");
    assert!(grants > 20 && fired > 20, "{grants} {fired}");
    stays(&server, "most", 3, 0);
}

#[test]
fn guards_are_lost_and_waiters_go_on_when_the_servers_data_is_gone() {
    let _bounded = bounded();
    let server = server();
    // The one finds out at its next renewal, the other since it met another run of the server.
    for (round, client) in [("flush", watched(&server, UNIT * 20)), ("restart", client(&server))] {
        let semaphore = semaphore(&client, "gone", 1);
        let permit = semaphore.acquire().unwrap();
        let lost = on_lost(&permit);
        let waiting = semaphore.clone();
        let waiter = spawn(move || {
            loop {
                match waiting.acquire() {
                    Err(error) if error.is_transient() => thread::sleep(UNIT / 10),
                    permit => return permit.unwrap(),
                }
            }
        });
        waiter.wait_asleep();
        if round == "flush" {
            let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
        } else {
            server.kill();
            server.restart_empty();
        }
        // Long before a third of the longer lease.
        assert_eq!(lost.recv_timeout(SOON / 2).unwrap(), LostReason::Revoked, "{round}");
        assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::LeaseLost, "{round}");
        wait_until("it answers", SOON, || semaphore.set_permits(1).is_ok());
        let permit = waiter.join();
        assert!(permit.is_held(), "{round}");
        permit.release().unwrap();
        stays(&server, "gone", 1, 0);
        assert!(semaphore.delete().unwrap());
    }
}

#[test]
fn a_key_that_is_no_semaphore_is_left_as_it_is() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.hset("hash", "field", "precious").unwrap();
    let () = redis.set("text", "precious").unwrap();
    let () = redis.set("set", 3).unwrap();
    let () = redis.sadd(timeouts("set"), "precious").unwrap();
    let id: PermitId = TEXT_ID.parse().unwrap();
    for name in ["hash", "text", "set"] {
        let semaphore = client.expirable_semaphore(name);
        let errors = [
            semaphore.delete().map(drop),
            semaphore.set_permits(1),
            semaphore.acquire().map(drop),
            semaphore.try_acquire().map(drop),
            semaphore.try_acquire_for(UNIT).map(drop),
            semaphore.permits().map(drop),
        ];
        for error in errors {
            let error = error.unwrap_err();
            is_clear(&error, name, "use another name");
            assert!(!error.to_string().contains("precious"), "{error}");
        }
        if name == "set" {
            is_clear(&semaphore.release(&id).unwrap_err(), name, "use another name");
            is_clear(&semaphore.update_lease_time(&id, LONG).unwrap_err(), name, "another name");
            is_clear(&semaphore.remaining_lease(&id).unwrap_err(), name, "another name");
        } else {
            is_clear(&semaphore.add_permits(1).unwrap_err(), name, "use another name");
            assert_eq!(semaphore.release(&id).unwrap_err().kind(), ErrorKind::NotHeld);
        }
    }
    assert_eq!(redis.hget::<_, _, String>("hash", "field").unwrap(), "precious");
    assert_eq!(redis.get::<_, String>("text").unwrap(), "precious");
    assert_eq!(redis.get::<_, i64>("set").unwrap(), 3);
    assert!(redis.sismember::<_, _, bool>(timeouts("set"), "precious").unwrap());
    let error = client.expirable_semaphore("").acquire().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    // Written over while it is held: lost.
    let short = watched(&server, LEASE);
    let permit = semaphore(&short, "over", 1).acquire().unwrap();
    let lost = on_lost(&permit);
    let () = redis.set(timeouts("over"), "precious").unwrap();
    assert_eq!(lost.recv_timeout(SOON).unwrap(), LostReason::Revoked);
    drop(permit);
}

#[test]
fn without_memory_nothing_is_taken_what_is_held_stays_and_what_is_given_back_comes_back() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = watched(&server, RENEWED);
    let semaphore = semaphore(&client, "memory", 5);
    let (kept, back) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let limit = |bytes: &str| {
        let mut redis = server.connection();
        let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).query(&mut redis).unwrap();
    };
    limit("1");
    is_clear(&semaphore.acquire().map(drop).unwrap_err(), "memory", "no permit was taken");
    let begun = Instant::now();
    while begun.elapsed() < RENEWED * 2 {
        assert!(kept.is_held(), "{:?}", kept.state());
        thread::sleep(UNIT / 4);
    }
    back.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 4);
    limit("0");
    kept.release().unwrap();
    stays(&server, "memory", 5, 0);
}

/// All rights, and what each round takes away.
const ALL_RIGHTS: [&str; 3] = ["+@all", "~*", "&*"];
const DENIED: [&str; 18] = [
    "-time",
    "-get",
    "-set",
    "-del",
    "-incrby",
    "-decrby",
    "-pttl",
    "-pexpire",
    "-zadd",
    "-zcard",
    "-zcount",
    "-zmscore",
    "-zrange",
    "-zrem",
    "-zremrangebyscore",
    "-zscore",
    "-publish",
    "-evalsha",
];

#[test]
fn without_a_right_either_all_of_a_change_is_made_or_nothing() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    let pool = client.expirable_semaphore("pool");
    let mut redis = server.connection();
    let live: PermitId = TEXT_ID.parse().unwrap();
    let lapsed = PermitId::from_bytes([7; 16]);
    // Learns the server's clock and its scripts.
    drop(pool.try_acquire().unwrap());
    pool.set_permits(1).unwrap();
    type Ask = fn(&ExpirableSemaphore, &PermitId) -> Result<(), Error>;
    // What each makes of 3 free permits, one that is out, and one whose lease has ended.
    let changes: [(Ask, (i64, i64)); 6] = [
        (
            |pool, _| {
                pool.try_acquire_many(4).map(|got| {
                    got.unwrap().into_iter().for_each(|it| {
                        let _ = it.into_id();
                    });
                })
            },
            (0, 5),
        ),
        (|pool, _| pool.try_acquire_many(5).map(|got| assert!(got.is_none())), (4, 1)),
        (|pool, id| pool.release(id), (5, 0)),
        (|pool, id| pool.update_lease_time(id, LONG).map(|done| assert!(done)), (3, 2)),
        (|pool, _| pool.set_permits(9), (7, 2)),
        (|pool, _| pool.delete().map(drop), (0, 0)),
    ];
    let mut refused = 0;
    for denied in DENIED {
        for (at, (ask, after)) in changes.iter().enumerate() {
            let () = redis.del(&["pool", &timeouts("pool")]).unwrap();
            let () = redis.set("pool", 3).unwrap();
            let () = redis.zadd(timeouts("pool"), lapsed.as_bytes(), 1_000).unwrap();
            let ends = now() + 60_000;
            let () = redis.zadd(timeouts("pool"), live.as_bytes(), ends).unwrap();
            user.set(&[denied]);
            let outcome = ask(&pool, &live);
            user.set(&ALL_RIGHTS);
            let (free, out) = stored(&server, "pool");
            match outcome {
                Ok(()) => assert_eq!((free, out), *after, "{denied}, change {at}"),
                Err(error) => {
                    is_clear(&error, "pool", "access rights (ACL)");
                    assert!(error.to_string().contains("an expirable semaphore needs"), "{error}");
                    // What had lapsed may be back: a whole change by itself.
                    assert_eq!(free + out, 5, "{denied}, change {at}: {error}");
                    assert!(out == 2 || (free, out) == (4, 1), "{denied}, change {at}: {out}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 25, "{refused}");
}

#[test]
fn what_is_given_back_without_a_right_comes_back_once_when_it_is_there_again() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    let semaphore = semaphore(&client, "pool", 9);
    for denied in ["-incrby", "-zrem", "-zmscore", "-evalsha"] {
        let (dropped, released) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
        user.set(&[denied]);
        drop(dropped);
        is_clear(&released.release().unwrap_err(), "pool", "in the background");
        // Tried again and again meanwhile.
        thread::sleep(UNIT);
        assert_eq!(stored(&server, "pool"), (7, 2), "{denied}");
        user.set(&ALL_RIGHTS);
        wait_until("they are back", SOON, || stored(&server, "pool") == (9, 0));
    }
    stays(&server, "pool", 9, 0);
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    user.set(&["-@all"]);
    let error = client.expirable_semaphore("rights").acquire().map(drop).unwrap_err().to_string();
    user.set_as_said(&error, "an expirable semaphore", "rights");
    user.set(&[&format!("~{}", timeouts("rights"))]);
    let client = watched_by(&user, RENEWED);
    let semaphore = semaphore(&client, "rights", 2);
    let all = semaphore.acquire_many(2).unwrap();
    thread::sleep(RENEWED * 3 / 2);
    assert!(all.iter().all(ExpirablePermit::is_held));
    let waiting = user.client().expirable_semaphore("rights");
    let waiter = spawn(move || waiting.acquire().unwrap().release().unwrap());
    wait_subscribed(&server, &channel("rights"));
    waiter.wait_asleep();
    drop(all);
    waiter.join();
    semaphore.add_permits(1).unwrap();
    semaphore.set_permits(1).unwrap();
    let id = semaphore.with_lease(LEASE).acquire().unwrap().into_id();
    assert!(semaphore.update_lease_time(&id, UNIT).unwrap());
    assert!(semaphore.try_acquire_for(SOON).unwrap().is_some());
    assert!(semaphore.remaining_lease(&id).unwrap().is_none());
    assert_eq!(semaphore.permits().unwrap(), 1);
    assert!(semaphore.delete().unwrap());
}

fn watched_by(user: &User, lease: Duration) -> Client {
    Client::builder(user.url()).watchdog_timeout(lease).connect().unwrap()
}
