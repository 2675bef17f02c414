//! The read-write lock: who may be inside with whom, in one process and in several, beside Redisson,
//! and whatever breaks.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::{Commands as _, Connection};
use redlatch::{Client, Error, ErrorKind, HoldState, Lock, LockGuard, LostReason, MultiLock};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The lock's hash.
fn fields(redis: &mut Connection, name: &str) -> HashMap<String, String> {
    redis.hgetall(name).unwrap()
}

fn owners(redis: &mut Connection, name: &str) -> Vec<String> {
    let mut owners: Vec<_> = fields(redis, name).into_keys().filter(|key| key != "mode").collect();
    owners.sort();
    owners
}

fn mode(redis: &mut Connection, name: &str) -> Option<String> {
    redis.hget(name, "mode").unwrap()
}

fn timeouts(redis: &mut Connection, name: &str) -> Vec<String> {
    redis.keys(format!("*{name}*:rwlock_timeout:*")).unwrap()
}

fn queue(redis: &mut Connection, name: &str) -> Vec<String> {
    redis.lrange(format!("redlatch_rwlock_queue:{{{name}}}"), 0, -1).unwrap()
}

/// Until so many stand in line and hear what they are told: who does not yet counts as dead.
fn wait_queue(server: &Server, name: &str, places: usize) {
    let mut redis = server.connection();
    wait_until(&format!("{places} stand in line"), SOON, || {
        let queue = queue(&mut redis, name);
        queue.len() == places && queue.iter().all(|place| listens(&mut redis, place))
    });
}

fn listens(redis: &mut Connection, owner: &str) -> bool {
    let channel = format!("redisson_lock__channel:{{redlatch:{}}}", &owner[..36]);
    let (_, listeners): (String, u64) =
        redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(redis).unwrap();
    listeners > 0
}

/// Nothing is left of it.
fn wait_left(server: &Server, name: &str) {
    wait_free(server, name, SOON);
    let mut redis = server.connection();
    wait_until("nobody stands in line", SOON, || queue(&mut redis, name).is_empty());
    wait_until(&format!("no timeouts of {name} are left"), SOON, || {
        timeouts(&mut redis, name).is_empty()
    });
}

/// A thread that takes a lock and keeps it until it is told to leave.
struct Guest {
    entered: Receiver<Instant>,
    leave: Sender<()>,
    thread: Running<Result<(), Error>>,
}

impl Guest {
    fn of(lock: &(impl Lock + Clone + 'static)) -> Self {
        let lock = lock.clone();
        let (tell, entered) = mpsc::channel();
        let (leave, told) = mpsc::channel();
        let thread = spawn(move || {
            let guard = lock.lock()?;
            tell.send(Instant::now()).unwrap();
            // Its own words when it is to leave, or its test has failed.
            let _ = told.recv();
            guard.unlock()
        });
        Self { entered, leave, thread }
    }

    fn is_in(&self) -> bool {
        self.entered.try_recv().is_ok()
    }

    fn wait_in(&self) -> Instant {
        self.entered.recv_timeout(SOON).expect("it is let in")
    }

    fn leaves(self) {
        drop(self.leave);
        self.thread.join().unwrap();
    }
}

#[test]
fn readers_of_a_process_share_one_hold_and_ask_for_it_once() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.read_write_lock("shared");
    let first = lock.read().lock().unwrap();
    let before = Commands::so_far(&server);
    let others: Vec<_> = (0..8).map(|_| Guest::of(lock.read())).collect();
    for other in &others {
        other.wait_in();
    }
    let scripts = Commands::so_far(&server).scripts() - before.scripts();
    // One for each turn that has ended meanwhile.
    assert!(scripts <= 8, "{scripts} scripts for 8 readers");
    let mut redis = server.connection();
    assert_eq!(owners(&mut redis, "shared").len(), 1);
    assert_eq!(mode(&mut redis, "shared").as_deref(), Some("read"));
    let owner = owners(&mut redis, "shared").remove(0);
    assert_eq!(fields(&mut redis, "shared")[&owner], "1");
    let timeout = format!("{{shared}}:{owner}:rwlock_timeout:1");
    assert_eq!(timeouts(&mut redis, "shared"), std::slice::from_ref(&timeout));
    let value: String = redis.get(&timeout).unwrap();
    assert_eq!(value, "1");
    // The lock first: time passes between the two.
    let (lasts, left) = (pttl(&mut redis, "shared"), pttl(&mut redis, &timeout));
    assert!(left > 50_000 && lasts >= left, "{left} of {lasts}");
    // The one that took it goes first.
    first.unlock().unwrap();
    assert_eq!(owners(&mut redis, "shared"), [owner]);
    others.into_iter().for_each(Guest::leaves);
    wait_left(&server, "shared");
}

#[test]
fn readers_of_several_processes_read_together_and_writers_alone() {
    let _bounded = bounded();
    let server = server();
    let [one, two, three] = [0, 1, 2].map(|_| client(&server).read_write_lock("several"));
    let reading = one.read().lock().unwrap();
    let also = two.read().try_lock().unwrap().expect("readers share it");
    let mut redis = server.connection();
    assert_eq!(owners(&mut redis, "several").len(), 2);
    assert!(three.write().try_lock().unwrap().is_none());
    assert!(elsewhere({
        let one = one.clone();
        move || one.write().try_lock().unwrap().is_none()
    }));
    assert!(three.read().is_locked().unwrap() && !three.write().is_locked().unwrap());
    reading.unlock().unwrap();
    assert_eq!(owners(&mut redis, "several").len(), 1);
    also.unlock().unwrap();
    wait_left(&server, "several");
    let writing = three.write().lock().unwrap();
    assert_eq!(mode(&mut redis, "several").as_deref(), Some("write"));
    assert!(owners(&mut redis, "several")[0].ends_with(":write"));
    assert!(one.read().try_lock().unwrap().is_none());
    assert!(one.write().try_lock_for(UNIT).unwrap().is_none());
    assert!(elsewhere({
        let three = three.clone();
        move || three.read().try_lock().unwrap().is_none()
    }));
    assert!(!three.read().is_locked().unwrap() && three.write().is_locked().unwrap());
    writing.unlock().unwrap();
    wait_left(&server, "several");
}

#[test]
fn a_writer_in_front_lets_no_later_reader_in_and_those_behind_it_come_together() {
    let _bounded = bounded();
    let server = server();
    let [one, two, three] = [0, 1, 2].map(|_| client(&server).read_write_lock("front"));
    let reading = Guest::of(one.read());
    reading.wait_in();
    let writer = Guest::of(two.write());
    wait_queue(&server, "front", 1);
    // Of the process that reads, too: once its turn is over, and it has asked.
    thread::sleep(Duration::from_millis(20));
    let same = Guest::of(one.read());
    wait_queue(&server, "front", 2);
    let other = Guest::of(three.read());
    wait_queue(&server, "front", 3);
    assert!(three.read().try_lock().unwrap().is_none());
    assert!(one.read().try_lock().unwrap().is_none());
    // Who reads already is not kept out.
    assert!(!writer.is_in() && !same.is_in() && !other.is_in());
    reading.leaves();
    writer.wait_in();
    assert!(!same.is_in() && !other.is_in());
    writer.leaves();
    same.wait_in();
    other.wait_in();
    let mut redis = server.connection();
    assert_eq!(owners(&mut redis, "front").len(), 2);
    same.leaves();
    other.leaves();
    wait_left(&server, "front");
}

#[test]
fn in_a_process_a_writer_is_passed_by_no_later_reader_and_readers_enter_together() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("within");
    let reading = Guest::of(lock.read());
    reading.wait_in();
    let writer = Guest::of(lock.write());
    wait_queue(&server, "within", 1);
    let later: Vec<_> = (0..3).map(|_| Guest::of(lock.read())).collect();
    later.iter().for_each(|later| later.thread.wait_asleep());
    assert!(!writer.is_in() && later.iter().all(|later| !later.is_in()));
    reading.leaves();
    writer.wait_in();
    assert!(later.iter().all(|later| !later.is_in()));
    writer.leaves();
    for later in &later {
        later.wait_in();
    }
    later.into_iter().for_each(Guest::leaves);
    wait_left(&server, "within");
}

#[test]
fn within_a_turn_too_no_reader_passes_a_writer_of_its_process() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("turn");
    let mut redis = server.connection();
    // Most of these are quicker than a turn is long.
    for _ in 0..20 {
        let reading = lock.read().lock().unwrap();
        let writer = Guest::of(lock.write());
        while queue(&mut redis, "turn").is_empty() {}
        let reader = lock.read().clone();
        let passed = thread::spawn(move || reader.try_lock().unwrap().is_some());
        assert!(!passed.join().unwrap(), "past a writer that waits");
        reading.unlock().unwrap();
        writer.wait_in();
        writer.leaves();
    }
    wait_left(&server, "turn");
}

#[test]
fn a_thread_that_reads_reads_again_whoever_waits() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("again");
    let outer = lock.read().lock().unwrap();
    let writer = Guest::of(client(&server).read_write_lock("again").write());
    wait_queue(&server, "again", 1);
    thread::sleep(Duration::from_millis(20));
    let inner = lock.read().lock().unwrap();
    assert_eq!(lock.read().hold_count(), 2);
    inner.unlock().unwrap();
    assert_eq!(lock.read().hold_count(), 1);
    assert!(lock.read().is_held_by_current_thread() && !lock.write().is_held_by_current_thread());
    outer.unlock().unwrap();
    writer.wait_in();
    writer.leaves();
}

#[test]
fn who_writes_goes_down_to_reading_and_nobody_writes_between() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("down");
    let other = client(&server).read_write_lock("down");
    let writing = lock.write().lock().unwrap();
    let reading = lock.read().lock().unwrap();
    let mut redis = server.connection();
    assert_eq!(mode(&mut redis, "down").as_deref(), Some("write"));
    assert_eq!(owners(&mut redis, "down").len(), 2);
    let reader = Guest::of(other.read());
    wait_queue(&server, "down", 1);
    let same = Guest::of(lock.read());
    let writer = Guest::of(client(&server).read_write_lock("down").write());
    wait_queue(&server, "down", 2);
    assert!(!reader.is_in() && !same.is_in());
    writing.unlock().unwrap();
    // Readers in front come in, of both processes.
    reader.wait_in();
    assert_eq!(mode(&mut redis, "down").as_deref(), Some("read"));
    assert!(!writer.is_in());
    assert!(reading.is_held());
    reading.unlock().unwrap();
    reader.leaves();
    writer.wait_in();
    assert!(!same.is_in());
    writer.leaves();
    same.wait_in();
    same.leaves();
    wait_left(&server, "down");
}

#[test]
fn who_reads_and_asks_to_write_is_told_so_at_once_and_reads_on() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("up");
    let reading = lock.read().lock().unwrap();
    for refused in [
        lock.write().lock().map(drop).unwrap_err(),
        lock.write().try_lock().map(drop).unwrap_err(),
        lock.write().try_lock_for(SOON).map(drop).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::WouldDeadlock, "{refused}");
    }
    assert!(reading.is_held());
    reading.unlock().unwrap();
    lock.write().lock().unwrap().unlock().unwrap();
    // Who writes may do both, and write again.
    let writing = lock.write().lock().unwrap();
    let reading = lock.read().lock().unwrap();
    let again = lock.write().lock().unwrap();
    drop((again, reading, writing));
    wait_left(&server, "up");
}

#[test]
fn an_owned_guard_is_no_threads() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("owned");
    let owned = [lock.read().lock_owned().unwrap(), lock.read().lock_owned().unwrap()];
    assert_eq!(lock.read().hold_count(), 0);
    assert!(lock.write().try_lock().unwrap().is_none());
    elsewhere(move || drop(owned));
    let writing = lock.write().lock_owned().unwrap();
    assert!(lock.read().try_lock().unwrap().is_none());
    elsewhere(move || writing.unlock().unwrap());
    wait_left(&server, "owned");
}

#[test]
fn holds_of_both_kinds_are_renewed_while_they_last() {
    let _bounded = bounded();
    let server = server();
    let lease = RENEWED;
    let lock = watched(&server, lease).read_write_lock("renewed");
    let mut redis = server.connection();
    let reading = lock.read().lock().unwrap();
    thread::sleep(2 * lease);
    assert!(reading.is_held(), "{}", reading.unlock().unwrap_err());
    let timeout = timeouts(&mut redis, "renewed").remove(0);
    assert!(pttl(&mut redis, &timeout) > 0 && pttl(&mut redis, "renewed") > 0);
    reading.unlock().unwrap();
    let writing = lock.write().lock().unwrap();
    let reading = lock.read().lock().unwrap();
    thread::sleep(2 * lease);
    assert!(writing.is_held() && reading.is_held());
    writing.unlock().unwrap();
    thread::sleep(2 * lease);
    assert!(reading.is_held());
    reading.unlock().unwrap();
    wait_left(&server, "renewed");
}

#[test]
fn a_lost_hold_is_told_to_all_who_share_it() {
    let _bounded = bounded();
    let server = server();
    let lock = watched(&server, RENEWED).read_write_lock("lost");
    let (tell, told) = mpsc::channel();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (lock, tell) = (lock.clone(), tell.clone());
            spawn(move || {
                let guard = lock.read().lock().unwrap();
                let heard = tell.clone();
                guard.on_lost(move |why| heard.send(Some(why)).unwrap());
                tell.send(None).unwrap();
                wait_until("it is lost", SOON, || !guard.is_held());
                assert!(matches!(guard.state(), HoldState::Lost(_)));
                guard.unlock().unwrap_err().kind()
            })
        })
        .collect();
    (0..3).for_each(|_| assert_eq!(told.recv_timeout(SOON).unwrap(), None));
    let () = server.connection().del("lost").unwrap();
    (0..3).for_each(|_| assert_eq!(told.recv_timeout(SOON).unwrap(), Some(LostReason::Revoked)));
    for reader in readers {
        assert_eq!(reader.join(), ErrorKind::LeaseLost);
    }
    lock.write().lock().unwrap().unlock().unwrap();
}

#[test]
fn a_forced_unlock_ends_the_holds_of_one_kind() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("forced");
    let other = client(&server).read_write_lock("forced");
    let reading = lock.read().lock().unwrap();
    assert!(!other.write().force_unlock().unwrap());
    assert!(reading.is_held());
    let writer = Guest::of(other.write());
    wait_queue(&server, "forced", 1);
    assert!(lock.read().force_unlock().unwrap());
    assert!(!reading.is_held());
    writer.wait_in();
    assert!(!other.read().force_unlock().unwrap());
    assert!(other.write().force_unlock().unwrap());
    drop(writer.leave);
    assert_eq!(writer.thread.join().unwrap_err().kind(), ErrorKind::LeaseLost);
}

#[test]
fn a_shutdown_gives_everything_back_and_ends_every_wait() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.read_write_lock("ended");
    let reading = lock.read().lock().unwrap();
    let writer = Guest::of(lock.write());
    wait_queue(&server, "ended", 1);
    // Behind it: before it, it would be let in.
    let reader = Guest::of(lock.read());
    reader.thread.wait_queued();
    client.shutdown();
    assert!(!reading.is_held());
    for guest in [writer, reader] {
        assert_eq!(guest.thread.join().unwrap_err().kind(), ErrorKind::ShutDown);
    }
    wait_left(&server, "ended");
}

#[test]
fn a_forgotten_guard_is_unlocked_through_any_handle() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    client.read_write_lock("forgotten").read().lock().unwrap().forget();
    thread::sleep(12 * UNIT);
    let lock = client.read_write_lock("forgotten");
    assert_eq!(lock.read().hold_count(), 1);
    lock.read().unlock().unwrap();
    wait_left(&server, "forgotten");
    assert_eq!(lock.read().unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.write().unlock().unwrap_err().kind(), ErrorKind::NotHeld);
}

#[test]
fn a_reader_with_a_lease_of_its_own_has_it_for_that_at_least() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("leased");
    let short = lock.read().with_lease(4 * UNIT);
    let guard = short.lock().unwrap();
    assert!(guard.remaining() <= 4 * UNIT);
    wait_until("it ends", SOON, || !guard.is_held());
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    wait_left(&server, "leased");
    // Beside one that lasts longer it lasts longer.
    let watched = Guest::of(lock.read());
    watched.wait_in();
    let guard = short.lock().unwrap();
    assert!(guard.remaining() > 4 * UNIT);
    let mut redis = server.connection();
    assert_eq!(owners(&mut redis, "leased").len(), 1);
    watched.leaves();
    assert!(guard.is_held());
    guard.unlock().unwrap();
    wait_left(&server, "leased");
}

// Whatever breaks.

#[test]
fn a_reply_that_is_lost_leaves_nothing_behind_and_lets_nobody_in() {
    let _bounded = bounded();
    let server = server();
    for step in 0..6 {
        let proxy = Proxy::before(&server);
        let client = impatient(&proxy.url()).connections(1).connect().unwrap();
        let lock = client.read_write_lock("replies");
        lock.read().lock().unwrap().unlock().unwrap();
        // The reply to one of the next scripts is lost, with the connection.
        let asked = AtomicU64::new(0);
        proxy.on(Direction::Request, 1, Action::LoseReply, move |bytes| {
            let runs = bytes.windows(7).any(|part| part.eq_ignore_ascii_case(b"EVALSHA"));
            runs && asked.fetch_add(1, Ordering::SeqCst) == step
        });
        let outcome: Result<(), Error> = (|| {
            let reading = lock.read().lock()?;
            reading.unlock()?;
            let writing = lock.write().lock()?;
            let reading = lock.read().lock()?;
            writing.unlock()?;
            reading.unlock()
        })();
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
        }
        let other = common::client(&server).read_write_lock("replies");
        let writing = other.write().try_lock_for(SOON).unwrap().expect("nothing is left");
        writing.unlock().unwrap();
        client.shutdown();
        wait_left(&server, "replies");
    }
}

/// What each command that a lock needs does where it is forbidden: an error or a slower wait, and
/// nothing that stays.
#[test]
fn a_right_that_is_missing_leaves_nothing_half_done() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    for (at, command) in [
        "time", "exists", "hexists", "hget", "hgetall", "hkeys", "hset", "hdel", "del", "pexpire",
        "pttl", "set", "lrange", "lpos", "rpush", "lpush", "lpop", "lrem", "llen", "lindex",
        "pubsub", "publish",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("rights-{command}");
        let mut user = User::new(&server, &format!("user{at}"));
        let client = user.client();
        let lock = client.read_write_lock(&name);
        user.set(&[&format!("-{command}")]);
        let other = common::client(&server).read_write_lock(&name);
        for lock in [lock.read() as &dyn Lock, lock.write()] {
            match lock.try_lock() {
                Ok(Some(guard)) => drop(guard.unlock()),
                Ok(None) => {}
                Err(error) => {
                    let text = format!("{error:#}").to_lowercase();
                    assert!(text.contains("a read-write lock needs"), "{command}: {error:#}");
                }
            }
            let left = pttl(&mut redis, &name);
            assert_ne!(left, -1, "{command}: a lock without an end");
            for timeout in timeouts(&mut redis, &name) {
                assert_ne!(pttl(&mut redis, &timeout), -1, "{command}: a timeout without an end");
            }
        }
        // What was taken before the right was taken away: its end is seen to.
        user.set(&["+@all"]);
        let guards = [lock.read().try_lock_for(SOON).unwrap()];
        user.set(&[&format!("-{command}")]);
        drop(guards);
        user.set(&["+@all"]);
        let guard = other.write().try_lock_for(SOON).unwrap();
        assert!(guard.is_some(), "{command}: it stays");
        guard.unwrap().unlock().unwrap();
        client.shutdown();
        wait_free(&server, &name, SOON);
        for timeout in timeouts(&mut redis, &name) {
            // Without DEL it stays, for as long as its lease.
            assert!(command == "del" && pttl(&mut redis, &timeout) != -1, "{command}");
        }
    }
}

#[test]
fn a_right_that_the_end_of_a_release_needs_is_missed_before_its_beginning() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let mut user = User::new(&server, "downward");
    let client = user.client();
    let lock = client.read_write_lock("down");
    let (writing, reading) = (lock.write().lock().unwrap(), lock.read().lock().unwrap());
    let before = fields(&mut redis, "down");
    user.set(&["-hset"]);
    let error = writing.unlock().unwrap_err();
    is_clear(&error, "down", "a read-write lock needs");
    assert_eq!(fields(&mut redis, "down"), before);
    user.set(&["+@all"]);
    wait_until("it reads only", SOON, || mode(&mut redis, "down").as_deref() == Some("read"));
    reading.unlock().unwrap();
    wait_left(&server, "down");
}

/// Or it would wait for ever for a lock that is free; and who leaves it has left it.
#[test]
fn who_may_take_nobody_off_the_queue_is_told_and_a_release_without_it_is_one() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    for (at, right) in ["lpop", "lindex", "pexpire", "exists"].into_iter().enumerate() {
        let mut user = User::new(&server, &format!("stuck{at}"));
        let (one, other) = (user.client(), user.client());
        let guard = one.read_write_lock("stuck").write().lock().unwrap();
        let guest = Guest::of(other.read_write_lock("stuck").read());
        wait_queue(&server, "stuck", 1);
        user.set(&[&format!("-{right}")]);
        guard.unlock().unwrap();
        drop(guest.leave);
        let error = guest.thread.join().unwrap_err();
        is_clear(&error, "stuck", "a read-write lock needs");
        user.set(&["+@all"]);
        wait_left(&server, "stuck");
    }
}

#[test]
fn who_may_tell_nobody_leaves_the_next_one_its_place_and_no_hold() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let mut user = User::new(&server, "mute");
    let client = user.client();
    let holding = client.read_write_lock("mute").write().lock().unwrap();
    let next = Guest::of(common::client(&server).read_write_lock("mute").write());
    wait_queue(&server, "mute", 1);
    let place = queue(&mut redis, "mute");
    user.set(&["-publish"]);
    let _told = holding.unlock();
    let (owners, places) = (owners(&mut redis, "mute"), queue(&mut redis, "mute"));
    // (It may have asked by itself meanwhile.)
    let is_in = next.is_in();
    assert!(is_in || owners.is_empty() && places == place, "{owners:?}, {places:?}");
    user.set(&["+@all"]);
    if !is_in {
        next.wait_in();
    }
    next.leaves();
    wait_left(&server, "mute");
}

// What a process must not believe.

/// A hold that was deleted is held by a guard still. Whoever is granted another one beside it must not
/// be let into that.
#[test]
fn who_is_let_in_beside_a_hold_that_the_server_has_lost_has_one_of_its_own() {
    let _bounded = bounded();
    let server = server();
    // The server does not tell it of its loss.
    let untold = Client::builder(&server.url()).watchdog_timeout(LONG).client_tracking(false);
    let lock = untold.connect().unwrap().read_write_lock("stale");
    let other = client(&server).read_write_lock("stale");
    let mut redis = server.connection();
    let stale = lock.read().lock().unwrap();
    let writer = Guest::of(other.write());
    wait_queue(&server, "stale", 1);
    // Until the turn is over, in which it would be let in without a question.
    thread::sleep(Duration::from_millis(20));
    let reader = Guest::of(lock.read());
    wait_queue(&server, "stale", 2);
    // Nobody is told; the writer finds out when it asks next.
    let () = redis.del("stale").unwrap();
    writer.wait_in();
    assert!(stale.is_held(), "it has not asked since");
    writer.leaves();
    reader.wait_in();
    assert_eq!(mode(&mut redis, "stale").as_deref(), Some("read"));
    assert!(other.write().try_lock().unwrap().is_none(), "past a reader");
    assert!(!stale.is_held());
    assert_eq!(stale.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    reader.leaves();
    // (The timeouts of a lock that was deleted end by themselves.)
    wait_free(&server, "stale", SOON);
}

#[test]
fn who_is_let_in_to_write_is_alone_in_its_process_too() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("alone");
    let mut redis = server.connection();
    let stale = lock.read().lock().unwrap();
    let () = redis.del("alone").unwrap();
    let writer = Guest::of(lock.write());
    writer.wait_in();
    assert!(!stale.is_held());
    writer.leaves();
    wait_free(&server, "alone", SOON);
}

#[test]
fn a_forced_unlock_of_who_writes_ends_what_it_reads_too() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("both");
    let writing = lock.write().lock().unwrap();
    let reading = lock.read().lock().unwrap();
    let (tell, told) = mpsc::channel();
    reading.on_lost(move |why| tell.send(why).unwrap());
    assert!(lock.write().force_unlock().unwrap());
    assert!(!writing.is_held() && !reading.is_held());
    assert_eq!(told.recv_timeout(SOON).unwrap(), LostReason::ForceUnlocked);
    assert_eq!(reading.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(writing.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    let writing = lock.write().lock().unwrap();
    assert!(!lock.read().force_unlock().unwrap());
    assert!(writing.is_held());
    writing.unlock().unwrap();
    wait_free(&server, "both", SOON);
}

/// What is granted to read may be over when the reply comes. That says nothing of the other hold.
#[test]
fn who_writes_and_is_told_too_late_that_it_reads_writes_on() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG).connect().unwrap();
    let lock = client.read_write_lock("too-late");
    let (begin, begun) = mpsc::channel();
    let (go_on, told) = mpsc::channel();
    let writer = spawn(move || {
        let writing = lock.write().lock().unwrap();
        begin.send(()).unwrap();
        told.recv().unwrap();
        let late = lock.read().with_lease(UNIT).lock().map(drop).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Redis, "{late}");
        assert!(late.is_transient() && writing.is_held(), "{late}; {writing:?}");
        writing.unlock().unwrap();
    });
    begun.recv_timeout(SOON).unwrap();
    proxy.on_reply("", Action::HoldReply);
    go_on.send(()).unwrap();
    wait_until("the reply is there", SOON, || proxy.fired() > 0);
    thread::sleep(2 * UNIT);
    proxy.release();
    writer.join();
    wait_left(&server, "too-late");
}

/// The hash stays for who reads: so the hold that writes does not end with its lease alone.
#[test]
fn who_wrote_for_too_long_and_reads_on_keeps_no_reader_out() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).read_write_lock("lapsed");
    let other = client(&server).read_write_lock("lapsed");
    let writing = lock.write().with_lease(4 * UNIT).lock().unwrap();
    let reading = lock.read().lock().unwrap();
    let reader = Guest::of(other.read());
    wait_queue(&server, "lapsed", 1);
    wait_until("it is lost", SOON, || !writing.is_held());
    assert_eq!(writing.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    reader.wait_in();
    assert!(reading.is_held());
    let mut redis = server.connection();
    assert_eq!(mode(&mut redis, "lapsed").as_deref(), Some("read"));
    reading.unlock().unwrap();
    reader.leaves();
    wait_left(&server, "lapsed");
}

/// Those who wanted the renewal may have left the hold before somebody comes who wants it, too.
#[test]
fn who_enters_late_and_wants_its_hold_renewed_has_that() {
    let _bounded = bounded();
    let server = server();
    let lease = RENEWED;
    let lock = watched(&server, lease).read_write_lock("late");
    let first = Guest::of(lock.read());
    first.wait_in();
    let fixed = Guest::of(&lock.read().with_lease(UNIT));
    fixed.wait_in();
    first.leaves();
    // The alarm of the first one has gone off, and there was nobody to renew it for.
    thread::sleep(lease / 2);
    // (Who is let in by the server's word makes the lease longer by that. A level deeper does not.)
    let outer = lock.read().with_lease(UNIT).lock().unwrap();
    let watched = lock.read().lock().unwrap();
    thread::sleep(2 * lease);
    assert!(watched.is_held());
    watched.unlock().unwrap();
    outer.unlock().unwrap();
    fixed.leaves();
    wait_left(&server, "late");
}

#[test]
fn several_that_are_taken_together_are_asked_for_at_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG).connect().unwrap();
    let locks = ["one", "two", "three"].map(|name| client.read_write_lock(name));
    let all = MultiLock::new(&[locks[0].read(), locks[1].write(), locks[2].read()]).unwrap();
    // Connections are open, and the server knows the scripts.
    for _ in 0..2 {
        all.lock().unwrap().unlock().unwrap();
    }
    proxy.on_reply("", Action::HoldReply);
    let taker = spawn({
        let all = all.clone();
        move || all.lock().unwrap().unlock().unwrap()
    });
    let mut redis = server.connection();
    wait_until("all were asked for", SOON, || {
        locks.iter().all(|lock| redis.exists(lock.name()).unwrap())
    });
    proxy.clear_rules();
    proxy.release();
    taker.join();
    // One that is not to be had leaves nothing of the others.
    let other = common::client(&server);
    let writer = Guest::of(other.read_write_lock("three").write());
    writer.wait_in();
    assert!(all.try_lock().unwrap().is_none());
    wait_left(&server, "one");
    wait_left(&server, "two");
    writer.leaves();
    // Beside others of the process that read already.
    let reading = [Guest::of(locks[0].read()), Guest::of(locks[2].read())];
    for guest in &reading {
        guest.wait_in();
    }
    thread::sleep(Duration::from_millis(20));
    let guard = all.try_lock().unwrap().expect("readers share it");
    // (Its own is given back without waiting for the answer.)
    wait_until("they have one hold", SOON, || owners(&mut redis, "one").len() == 1);
    reading.into_iter().for_each(Guest::leaves);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    ["one", "two", "three"].iter().for_each(|name| wait_left(&server, name));
}

// Beside Redisson.

const JAVA: &str = "7a1c3f5e-0b2d-4c6e-8f01-23456789abcd";

/// One of Redisson's, 4.7 or 3.16.8: its scripts, as it sends them.
struct Java {
    redis: Connection,
    name: String,
    thread: u64,
    is_new: bool,
}

impl Java {
    fn new(server: &Server, name: &str, thread: u64, is_new: bool) -> Self {
        Self { redis: server.connection(), name: name.to_owned(), thread, is_new }
    }

    fn owner(&self) -> String {
        format!("{JAVA}:{}", self.thread)
    }

    fn eval(&mut self, code: &str, keys: &[String], args: &[String]) -> Option<i64> {
        redis::cmd("EVAL")
            .arg(code)
            .arg(keys.len())
            .arg(keys)
            .arg(args)
            .query(&mut self.redis)
            .unwrap()
    }

    fn timeouts(&self) -> String {
        format!("{{{}}}:{}:rwlock_timeout", self.name, self.owner())
    }

    /// `true`: it has it.
    fn reads(&mut self) -> bool {
        let keys = [self.name.clone(), self.timeouts()];
        let args = ["60000".to_owned(), self.owner(), format!("{}:write", self.owner())];
        self.eval(include_str!("read_write_model/redisson/read_acquire.lua"), &keys, &args)
            .is_none()
    }

    fn writes(&mut self) -> bool {
        let args = ["60000".to_owned(), format!("{}:write", self.owner())];
        let keys = [self.name.clone()];
        self.eval(include_str!("read_write_model/redisson/write_acquire.lua"), &keys, &args)
            .is_none()
    }

    fn leave(&mut self, code: &str, mut keys: Vec<String>, mut args: Vec<String>) -> Option<i64> {
        if self.is_new {
            keys.push(format!("redisson_unlock_latch:{{{}}}:{}", self.name, self.thread));
            args.extend(["publish".to_owned(), "1000".to_owned()]);
        }
        let left = self.eval(code, &keys, &args);
        let latch = keys.last().unwrap().clone();
        if self.is_new {
            let () = self.redis.del(latch).unwrap();
        }
        left
    }

    fn reads_no_more(&mut self) -> Option<i64> {
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        let prefix = format!("{{{}}}", self.name);
        let keys = vec![self.name.clone(), channel, self.timeouts(), prefix];
        let args = vec!["0".to_owned(), self.owner()];
        self.leave(include_str!("read_write_model/redisson/read_unlock.lua"), keys, args)
    }

    fn writes_no_more(&mut self) -> Option<i64> {
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        let keys = vec![self.name.clone(), channel];
        let args = vec!["1".to_owned(), "60000".to_owned(), format!("{}:write", self.owner())];
        self.leave(include_str!("read_write_model/redisson/write_unlock.lua"), keys, args)
    }
}

#[test]
fn redissons_readers_and_writers_and_ours_exclude_each_other() {
    let _bounded = bounded();
    let server = server();
    for is_new in [true, false] {
        let lock = client(&server).read_write_lock("java");
        let mut java = Java::new(&server, "java", 7, is_new);
        let mut second = Java::new(&server, "java", 8, is_new);
        // Readers together; whoever goes first leaves the other's hold.
        let reading = lock.read().lock().unwrap();
        assert!(java.reads() && java.reads());
        assert!(!second.writes() && lock.write().is_locked().is_ok_and(|written| !written));
        assert!(elsewhere({
            let lock = lock.clone();
            move || lock.write().try_lock().unwrap().is_none()
        }));
        reading.unlock().unwrap();
        assert!(!second.writes(), "its reader is there");
        let reading = lock.read().lock().unwrap();
        assert_eq!(java.reads_no_more(), Some(0));
        assert_eq!(java.reads_no_more(), Some(0), "ours reads on");
        assert!(reading.is_held() && !second.writes());
        reading.unlock().unwrap();
        // Writers alone.
        assert!(java.writes() && java.writes());
        assert!(lock.read().try_lock().unwrap().is_none());
        assert!(lock.write().try_lock().unwrap().is_none());
        assert_eq!(java.writes_no_more(), Some(0));
        assert!(lock.read().try_lock().unwrap().is_none());
        assert_eq!(java.writes_no_more(), Some(1));
        let writing = lock.write().lock().unwrap();
        assert!(!java.reads() && !java.writes());
        let reading = lock.read().lock().unwrap();
        assert!(!java.reads() && !java.writes());
        writing.unlock().unwrap();
        assert!(java.reads() && !second.writes());
        reading.unlock().unwrap();
        assert_eq!(java.reads_no_more(), Some(1));
        wait_left(&server, "java");
    }
}

/// How long it takes until somebody is let in by a release that comes right behind its question.
fn let_in(server: &Server, guest: &Guest, release: impl FnOnce()) -> Duration {
    guest.thread.wait_queued();
    let asked = Commands::so_far(server).scripts();
    wait_until("it asks again", SOON, || Commands::so_far(server).scripts() > asked);
    let released = Instant::now();
    release();
    guest.wait_in() - released
}

#[test]
fn who_waits_for_redissons_is_let_in_by_its_release() {
    let _bounded = bounded();
    let server = server();
    for is_new in [true, false] {
        let lock = client(&server).read_write_lock("woken");
        let mut java = Java::new(&server, "woken", 7, is_new);
        // Another try, if the machine kept somebody from running.
        let heard = (0..5).any(|_| {
            assert!(java.reads());
            let writer = Guest::of(lock.write());
            wait_queue(&server, "woken", 1);
            wait_subscribed(&server, "redisson_rwlock:{woken}");
            let to_write = let_in(&server, &writer, || assert_eq!(java.reads_no_more(), Some(1)));
            writer.leaves();
            assert!(java.writes());
            let reader = Guest::of(lock.read());
            wait_queue(&server, "woken", 1);
            wait_subscribed(&server, "redisson_rwlock:{woken}");
            let to_read = let_in(&server, &reader, || assert_eq!(java.writes_no_more(), Some(1)));
            reader.leaves();
            wait_left(&server, "woken");
            to_write.max(to_read) < BEFORE_A_QUESTION
        });
        assert!(heard, "it asked, and did not hear");
    }
}

// Contention.

/// Where this executable's workers begin: a process whose threads read and write, and say so.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let [url, path, seed] = [0, 1, 2].map(|at| job.arg(at).to_owned());
    let client = Client::builder(&url).watchdog_timeout(8 * UNIT).connect().unwrap();
    let diary = Arc::new(OpenOptions::new().append(true).create(true).open(path).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    job.say("starts");
    let threads: Vec<_> = (0..3)
        .map(|at: u64| {
            let (lock, diary, stop) =
                (client.read_write_lock("contended"), Arc::clone(&diary), Arc::clone(&stop));
            let mut random = Random::of(seed.parse::<u64>().unwrap() * 31 + at * 17);
            spawn(move || {
                let mut turns = 0;
                while !stop.load(Ordering::SeqCst) {
                    let writes = random.below(4) == 0;
                    let side: &dyn Lock = if writes { lock.write() } else { lock.read() };
                    let guard = match random.below(6) {
                        0 => side.try_lock().unwrap(),
                        1 => side.try_lock_for(Duration::from_millis(random.below(20))).unwrap(),
                        _ => Some(side.lock().unwrap()),
                    };
                    let Some(guard) = guard else { continue };
                    turns += 1;
                    let id = format!("{}:{at}:{turns}", std::process::id());
                    stay(&diary, &guard, writes, &id, &mut random);
                    // Sometimes down to reading.
                    let down = writes && random.below(3) == 0;
                    let reading = down.then(|| lock.read().lock()).and_then(Result::ok);
                    drop(guard);
                    if let Some(reading) = reading {
                        stay(&diary, &reading, false, &format!("{id}d"), &mut random);
                    }
                }
                turns
            })
        })
        .collect();
    let _ = job.wait_line();
    stop.store(true, Ordering::SeqCst);
    let turns: Vec<u64> = threads.into_iter().map(Running::join).collect();
    job.say(&format!("turns {turns:?}"));
    let _ = job.wait_line();
}

/// Nanoseconds on the clock of leases, which is the same one for all processes.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Each line at once, so that it survives the process.
fn stay(mut diary: &fs::File, guard: &LockGuard, writes: bool, id: &str, random: &mut Random) {
    let begin = now();
    let deadline = begin + u64::try_from(guard.remaining().as_nanos()).unwrap();
    diary.write_all(format!("begin {id} {begin} {deadline} {writes}\n").as_bytes()).unwrap();
    if random.below(16) == 0 {
        thread::sleep(Duration::from_millis(random.below(8)));
    }
    let end = now();
    let held = guard.is_held();
    diary.write_all(format!("end {id} {end} {held}\n").as_bytes()).unwrap();
}

#[derive(Debug)]
struct Stay {
    /// Of whom, when the test fails.
    #[allow(dead_code)]
    id: String,
    begin: u64,
    end: u64,
    writes: bool,
}

/// What they say they did; who was killed was inside until then, or until its deadline.
fn stays(diary: &str, killed: &HashMap<u32, u64>) -> Vec<Stay> {
    let mut open: HashMap<&str, (u64, u64, bool)> = HashMap::new();
    let mut stays = Vec::new();
    for line in diary.lines() {
        match *line.split(' ').collect::<Vec<_>>() {
            ["begin", id, begin, deadline, writes] => {
                let stay = (begin.parse().unwrap(), deadline.parse().unwrap(), writes == "true");
                open.insert(id, stay);
            }
            ["end", id, end, held] => {
                let (begin, deadline, writes) = open.remove(id).expect("an end has a beginning");
                let end: u64 = end.parse().unwrap();
                let end = if held == "true" { end } else { end.min(deadline) };
                stays.push(Stay { id: id.to_owned(), begin, end, writes });
            }
            _ => {}
        }
    }
    for (id, (begin, deadline, writes)) in open {
        let process: u32 = id.split(':').next().unwrap().parse().unwrap();
        let killed = killed.get(&process).copied().unwrap_or(u64::MAX);
        let end = begin.max(deadline.min(killed));
        stays.push(Stay { id: id.to_owned(), begin, end, writes });
    }
    stays.sort_by_key(|stay| stay.begin);
    stays
}

/// A writer is alone.
fn check_stays(stays: &[Stay]) {
    let (mut last, mut writer): (Option<&Stay>, Option<&Stay>) = (None, None);
    for stay in stays {
        let before = if stay.writes { last } else { writer };
        if let Some(before) = before.filter(|before| before.end > stay.begin) {
            panic!("two are inside: {before:?} and {stay:?}");
        }
        if last.is_none_or(|last| stay.end > last.end) {
            last = Some(stay);
        }
        if stay.writes && writer.is_none_or(|writer| stay.end > writer.end) {
            writer = Some(stay);
        }
    }
}

#[test]
fn a_writer_is_alone_whoever_is_killed_or_stopped() {
    let _bounded = bounded();
    let server = server();
    let diary = std::env::current_exe().unwrap().with_file_name(format!(
        "read-write-{}-{}",
        std::process::id(),
        now()
    ));
    let mut random = Random::new();
    let start = |seed: u64| {
        let args = [server.url(), diary.display().to_string(), seed.to_string()];
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut worker = Worker::spawn_test("worker", "contender", &args);
        worker.expect_line("starts", SOON);
        worker
    };
    let mut killed = HashMap::new();
    let mut workers: Vec<_> = (0..4).map(|_| start(random.next() >> 16)).collect();
    for round in 0..8 {
        thread::sleep(4 * UNIT);
        let mut worker = workers.remove(0);
        if round % 2 == 0 {
            let id = worker.pid();
            worker.sigkill();
            killed.insert(id, now());
            workers.push(start(random.next() >> 16));
        } else {
            worker.sigstop();
            thread::sleep(if round == 1 { 25 * UNIT } else { UNIT });
            worker.sigcont();
            workers.push(worker);
        }
    }
    let mut all = 0;
    for mut worker in workers {
        worker.send_line("");
        let said = worker.expect_line("turns", SOON);
        all += said
            .split(|it: char| !it.is_ascii_digit())
            .filter_map(|it| it.parse::<u64>().ok())
            .sum::<u64>();
        worker.send_line("");
        worker.wait_exit(SOON);
    }
    assert!(all > 200, "{all} turns");
    let said = fs::read_to_string(&diary).unwrap();
    fs::remove_file(&diary).unwrap();
    let stays = stays(&said, &killed);
    assert!(stays.iter().any(|stay| stay.writes) && stays.iter().any(|stay| !stay.writes));
    check_stays(&stays);
    // What the killed had ends.
    wait_left(&server, "contended");
}

#[test]
fn a_writer_among_many_readers_gets_its_turns() {
    let _bounded = bounded();
    let server = server();
    let stop = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicI64::new(0));
    let inside = Arc::new(AtomicI64::new(0));
    let readers: Vec<_> = (0..3)
        .flat_map(|_| {
            let lock = client(&server).read_write_lock("starved");
            (0..3).map(move |_| lock.clone())
        })
        .map(|lock| {
            let (stop, reads, inside) =
                (Arc::clone(&stop), Arc::clone(&reads), Arc::clone(&inside));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.read().lock().unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "beside a writer");
                    reads.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_micros(200));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    let lock = client(&server).read_write_lock("starved");
    for _ in 0..30 {
        let before = reads.load(Ordering::SeqCst);
        wait_until("others read", SOON, || reads.load(Ordering::SeqCst) > before + 5);
        let guard = lock.write().try_lock_for(SOON).unwrap().expect("it gets its turn");
        assert_eq!(inside.fetch_sub(1_000, Ordering::SeqCst), 0, "beside readers");
        thread::sleep(Duration::from_micros(200));
        inside.fetch_add(1_000, Ordering::SeqCst);
        guard.unlock().unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join());
    wait_left(&server, "starved");
}
