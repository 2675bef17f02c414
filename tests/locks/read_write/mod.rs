//! The read-write lock: which threads may be inside together. The tests use one process, several
//! processes, Redisson's clients, and faults.

mod beliefs;
mod contention;
mod faults;
mod redisson;

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
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

/// Waits until `places` owners are in the queue and their clients have subscribed. Scripts treat a
/// waiter without a subscription as dead.
fn wait_queue(server: &Server, name: &str, places: usize) {
    let mut redis = server.connection();
    wait_until(&format!("{places} stand in line"), TIMEOUT, || {
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

/// Waits until the server has no key of the lock.
fn wait_left(server: &Server, name: &str) {
    wait_free(server, name, TIMEOUT);
    let mut redis = server.connection();
    wait_until("nobody stands in line", TIMEOUT, || queue(&mut redis, name).is_empty());
    wait_until(&format!("no timeouts of {name} are left"), TIMEOUT, || {
        timeouts(&mut redis, name).is_empty()
    });
}

/// A thread that takes a lock and keeps it until the test makes it leave.
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
            // Blocks until the test makes the guest leave, or until a failed test ends.
            let _ = told.recv();
            guard.unlock()
        });
        Self { entered, leave, thread }
    }

    fn is_in(&self) -> bool {
        self.entered.try_recv().is_ok()
    }

    fn wait_in(&self) -> Instant {
        self.entered.recv_timeout(TIMEOUT).expect("it is let in")
    }

    fn leaves(self) {
        drop(self.leave);
        self.thread.join().unwrap();
    }
}

#[test]
fn readers_of_a_process_share_one_hold_and_ask_for_it_once() {
    let server = server();
    let client = client(&server);
    let lock = client.read_write_lock("shared");
    let first = lock.reader().lock().unwrap();
    let before = Commands::so_far(&server);
    let others: Vec<_> = (0..8).map(|_| Guest::of(lock.reader())).collect();
    for other in &others {
        other.wait_in();
    }
    let scripts = Commands::so_far(&server).scripts() - before.scripts();
    // Each turn of the process that ended in the meantime needs one script.
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
    // The lock's time is read first, and some time passes before the second read.
    let (lasts, left) = (pttl(&mut redis, "shared"), pttl(&mut redis, &timeout));
    assert!(left > 50_000 && lasts >= left, "{left} of {lasts}");
    // The thread that took the lock leaves first.
    first.unlock().unwrap();
    assert_eq!(owners(&mut redis, "shared"), [owner]);
    others.into_iter().for_each(Guest::leaves);
    wait_left(&server, "shared");
}

#[test]
fn readers_of_several_processes_read_together_and_writers_alone() {
    let server = server();
    let [one, two, three] = [0, 1, 2].map(|_| client(&server).read_write_lock("several"));
    let reading = one.reader().lock().unwrap();
    let also = two.reader().try_lock().unwrap().into_option().expect("readers share it");
    let mut redis = server.connection();
    assert_eq!(owners(&mut redis, "several").len(), 2);
    assert!(three.writer().try_lock().unwrap().into_option().is_none());
    assert!(elsewhere({
        let one = one.clone();
        move || one.writer().try_lock().unwrap().into_option().is_none()
    }));
    assert!(three.reader().is_locked().unwrap() && !three.writer().is_locked().unwrap());
    reading.unlock().unwrap();
    assert_eq!(owners(&mut redis, "several").len(), 1);
    also.unlock().unwrap();
    wait_left(&server, "several");
    let writing = three.writer().lock().unwrap();
    assert_eq!(mode(&mut redis, "several").as_deref(), Some("write"));
    assert!(owners(&mut redis, "several")[0].ends_with(":write"));
    assert!(one.reader().try_lock().unwrap().into_option().is_none());
    assert!(answered(|| one.writer().try_lock_for(TIME_UNIT)).into_option().is_none());
    assert!(elsewhere({
        let three = three.clone();
        move || three.reader().try_lock().unwrap().into_option().is_none()
    }));
    assert!(!three.reader().is_locked().unwrap() && three.writer().is_locked().unwrap());
    writing.unlock().unwrap();
    wait_left(&server, "several");
}

#[test]
fn a_writer_in_front_lets_no_later_reader_in_and_those_behind_it_come_together() {
    let server = server();
    let [one, two, three] = [0, 1, 2].map(|_| client(&server).read_write_lock("front"));
    let reading = Guest::of(one.reader());
    reading.wait_in();
    let writer = Guest::of(two.writer());
    wait_queue(&server, "front", 1);
    // Other readers of the same process also wait behind the writer, once the process's turn is
    // over.
    thread::sleep(Duration::from_millis(20));
    let same = Guest::of(one.reader());
    wait_queue(&server, "front", 2);
    let other = Guest::of(three.reader());
    wait_queue(&server, "front", 3);
    assert!(three.reader().try_lock().unwrap().into_option().is_none());
    assert!(one.reader().try_lock().unwrap().into_option().is_none());
    // A thread that already reads can re-enter.
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
fn a_thread_that_may_not_join_makes_no_lease_longer() {
    let server = server();
    let lock = client(&server).read_write_lock("join");
    let lease = Duration::from_secs(60);
    let reading = lock.reader().with_lease(lease).lock().unwrap();
    let writer = Guest::of(client(&server).read_write_lock("join").writer());
    wait_queue(&server, "join", 1);
    // The turn of the reader's process is over, so the process sends a request before other threads
    // may join.
    thread::sleep(Duration::from_millis(20));
    let longer = lock.reader().with_lease(60 * lease);
    let joined = thread::spawn(move || longer.try_lock().unwrap().into_option().is_some());
    assert!(!joined.join().unwrap(), "past a writer that waits");
    let left: u64 = redis::cmd("PTTL").arg("join").query(&mut server.connection()).unwrap();
    assert!(left <= 60_000, "the writer may have to wait for {left} ms");
    assert!(reading.remaining() <= lease);
    reading.unlock().unwrap();
    writer.wait_in();
    writer.leaves();
    wait_left(&server, "join");
}

#[test]
fn in_a_process_a_writer_is_passed_by_no_later_reader_and_readers_enter_together() {
    let server = server();
    let lock = client(&server).read_write_lock("within");
    let reading = Guest::of(lock.reader());
    reading.wait_in();
    let writer = Guest::of(lock.writer());
    wait_queue(&server, "within", 1);
    let later: Vec<_> = (0..3).map(|_| Guest::of(lock.reader())).collect();
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
    let server = server();
    let lock = client(&server).read_write_lock("turn");
    let mut redis = server.connection();
    // Most of these rounds take less time than a turn of the process.
    for _ in 0..20 {
        let reading = lock.reader().lock().unwrap();
        let writer = Guest::of(lock.writer());
        while queue(&mut redis, "turn").is_empty() {}
        let reader = lock.reader().clone();
        let passed = thread::spawn(move || reader.try_lock().unwrap().into_option().is_some());
        assert!(!passed.join().unwrap(), "past a writer that waits");
        reading.unlock().unwrap();
        writer.wait_in();
        writer.leaves();
    }
    wait_left(&server, "turn");
}

#[test]
fn a_thread_that_reads_reads_again_though_a_writer_waits() {
    let server = server();
    let lock = client(&server).read_write_lock("again");
    let outer = lock.reader().lock().unwrap();
    let writer = Guest::of(client(&server).read_write_lock("again").writer());
    wait_queue(&server, "again", 1);
    thread::sleep(Duration::from_millis(20));
    let inner = lock.reader().lock().unwrap();
    assert_eq!(lock.reader().hold_count(), 2);
    inner.unlock().unwrap();
    assert_eq!(lock.reader().hold_count(), 1);
    assert!(
        lock.reader().is_held_by_current_thread() && !lock.writer().is_held_by_current_thread()
    );
    outer.unlock().unwrap();
    writer.wait_in();
    writer.leaves();
}

#[test]
fn a_writer_goes_down_to_reading_and_no_other_writes_between() {
    let server = server();
    let lock = client(&server).read_write_lock("down");
    let other = client(&server).read_write_lock("down");
    let writing = lock.writer().lock().unwrap();
    let reading = lock.reader().lock().unwrap();
    let mut redis = server.connection();
    assert_eq!(mode(&mut redis, "down").as_deref(), Some("write"));
    assert_eq!(owners(&mut redis, "down").len(), 2);
    let reader = Guest::of(other.reader());
    wait_queue(&server, "down", 1);
    let same = Guest::of(lock.reader());
    let writer = Guest::of(client(&server).read_write_lock("down").writer());
    wait_queue(&server, "down", 2);
    assert!(!reader.is_in() && !same.is_in());
    writing.unlock().unwrap();
    // The readers at the head are granted the lock, in both processes.
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
fn a_reader_that_asks_to_write_is_refused_at_once_and_reads_on() {
    let server = server();
    let lock = client(&server).read_write_lock("up");
    let reading = lock.reader().lock().unwrap();
    for refused in [
        lock.writer().lock().map(drop).unwrap_err(),
        lock.writer().try_lock().map(drop).unwrap_err(),
        lock.writer().try_lock_for(TIMEOUT).map(drop).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::WouldDeadlock, "{refused}");
    }
    assert!(reading.is_held());
    reading.unlock().unwrap();
    lock.writer().lock().unwrap().unlock().unwrap();
    // A writer may also read, and write again.
    let writing = lock.writer().lock().unwrap();
    let reading = lock.reader().lock().unwrap();
    let again = lock.writer().lock().unwrap();
    drop((again, reading, writing));
    wait_left(&server, "up");
}

#[test]
fn an_owned_guard_belongs_to_no_thread() {
    let server = server();
    let lock = client(&server).read_write_lock("owned");
    let owned = [lock.reader().lock_owned().unwrap(), lock.reader().lock_owned().unwrap()];
    assert_eq!(lock.reader().hold_count(), 0);
    assert!(lock.writer().try_lock().unwrap().into_option().is_none());
    elsewhere(move || drop(owned));
    let writing = lock.writer().lock_owned().unwrap();
    assert!(lock.reader().try_lock().unwrap().into_option().is_none());
    elsewhere(move || writing.unlock().unwrap());
    wait_left(&server, "owned");
}

#[test]
fn a_readers_hold_is_renewed_while_it_lasts() {
    let server = server();
    let lock = watched(&server, SHORT_LEASE).read_write_lock("renewed");
    let mut redis = server.connection();
    let reading = lock.reader().lock().unwrap();
    thread::sleep(SHORT_LEASE * 3 / 2);
    assert!(reading.is_held(), "{}", reading.unlock().unwrap_err());
    let timeout = timeouts(&mut redis, "renewed").remove(0);
    assert!(pttl(&mut redis, &timeout) > 0 && pttl(&mut redis, "renewed") > 0);
    reading.unlock().unwrap();
    wait_left(&server, "renewed");
}

#[test]
fn the_holds_of_a_writer_that_reads_are_renewed_while_they_last() {
    let server = server();
    let lock = watched(&server, SHORT_LEASE).read_write_lock("renewed");
    let writing = lock.writer().lock().unwrap();
    let reading = lock.reader().lock().unwrap();
    thread::sleep(SHORT_LEASE * 3 / 2);
    assert!(writing.is_held() && reading.is_held());
    writing.unlock().unwrap();
    thread::sleep(SHORT_LEASE * 3 / 2);
    assert!(reading.is_held());
    reading.unlock().unwrap();
    wait_left(&server, "renewed");
}

#[test]
fn a_lost_hold_is_reported_to_all_readers_that_share_it() {
    let server = server();
    let lock = watched(&server, SHORT_LEASE).read_write_lock("lost");
    let (tell, told) = mpsc::channel();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (lock, tell) = (lock.clone(), tell.clone());
            spawn(move || {
                let guard = lock.reader().lock().unwrap();
                let heard = tell.clone();
                guard.on_lost(move |why| heard.send(Some(why)).unwrap());
                tell.send(None).unwrap();
                wait_until("it is lost", TIMEOUT, || !guard.is_held());
                assert!(matches!(guard.state(), HoldState::Lost(_)));
                guard.unlock().unwrap_err().kind()
            })
        })
        .collect();
    (0..3).for_each(|_| assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), None));
    let () = server.connection().del("lost").unwrap();
    (0..3).for_each(|_| assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), Some(LostReason::Revoked)));
    for reader in readers {
        assert_eq!(reader.join(), ErrorKind::LeaseLost);
    }
    lock.writer().lock().unwrap().unlock().unwrap();
}

#[test]
fn a_forced_unlock_ends_the_holds_of_one_kind() {
    let server = server();
    let lock = client(&server).read_write_lock("forced");
    let other = client(&server).read_write_lock("forced");
    let reading = lock.reader().lock().unwrap();
    assert!(!other.writer().force_unlock().unwrap());
    assert!(reading.is_held());
    let writer = Guest::of(other.writer());
    wait_queue(&server, "forced", 1);
    assert!(lock.reader().force_unlock().unwrap());
    assert!(!reading.is_held());
    writer.wait_in();
    assert!(!other.reader().force_unlock().unwrap());
    assert!(other.writer().force_unlock().unwrap());
    drop(writer.leave);
    assert_eq!(writer.thread.join().unwrap_err().kind(), ErrorKind::LeaseLost);
}

#[test]
fn a_shutdown_gives_everything_back_and_ends_every_wait() {
    let server = server();
    let client = client(&server);
    let lock = client.read_write_lock("ended");
    let reading = lock.reader().lock().unwrap();
    let writer = Guest::of(lock.writer());
    wait_queue(&server, "ended", 1);
    // The reader must be queued behind the writer: before it, the reader would be granted the lock.
    let reader = Guest::of(lock.reader());
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
    let server = server();
    let client = client(&server);
    client.read_write_lock("forgotten").reader().lock().unwrap().forget();
    thread::sleep(12 * TIME_UNIT);
    let lock = client.read_write_lock("forgotten");
    assert_eq!(lock.reader().hold_count(), 1);
    lock.reader().unlock().unwrap();
    wait_left(&server, "forgotten");
    assert_eq!(lock.reader().unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(lock.writer().unlock().unwrap_err().kind(), ErrorKind::NotHeld);
}

#[test]
fn a_reader_with_a_lease_of_its_own_reads_for_at_least_that_long() {
    let server = server();
    let lock = client(&server).read_write_lock("leased");
    let short = lock.reader().with_lease(4 * TIME_UNIT);
    let guard = short.lock().unwrap();
    assert!(guard.remaining() <= 4 * TIME_UNIT);
    wait_until("it ends", TIMEOUT, || !guard.is_held());
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    wait_left(&server, "leased");
    // Another reader with a longer lease keeps the lock for longer. But that reader may leave, so
    // the guard does not rely on the longer lease.
    let watched = Guest::of(lock.reader());
    watched.wait_in();
    let guard = short.lock().unwrap();
    let several = MultiLock::new(&[&short]).unwrap().lock().unwrap();
    assert!(guard.remaining() <= 4 * TIME_UNIT && several.remaining() <= 4 * TIME_UNIT);
    let mut redis = server.connection();
    assert_eq!(owners(&mut redis, "leased").len(), 1);
    wait_until("its own lease is over", TIMEOUT, || {
        guard.remaining().is_zero() && several.remaining().is_zero()
    });
    for slack in [Duration::ZERO, TIME_UNIT] {
        assert_eq!(guard.check(slack).is_ok(), slack.is_zero());
        assert_eq!(several.check(slack).is_ok(), slack.is_zero());
    }
    assert!(guard.is_held() && several.is_held());
    several.unlock().unwrap();
    guard.unlock().unwrap();
    watched.leaves();
    wait_left(&server, "leased");
}

/// The lease limits a thread that hangs, also on the server. A second thread with a longer lease
/// must not lengthen the lease of the thread that hangs.
#[test]
fn a_reader_that_comes_and_goes_leaves_anothers_lease_as_it_is() {
    let server = server();
    let lock = client(&server).read_write_lock("visited");
    let other = client(&server).read_write_lock("visited");
    let lease = 20 * TIME_UNIT;
    let watched = lock.reader().clone();
    for visitor in [watched.clone(), watched.with_lease(100 * TIMEOUT)] {
        let guard = watched.with_lease(lease).lock().unwrap();
        let visit = Guest::of(&visitor);
        visit.wait_in();
        let mut redis = server.connection();
        wait_until("the longer lease counts", TIMEOUT, || {
            u128::try_from(pttl(&mut redis, "visited")).unwrap() > lease.as_millis()
        });
        // The guard does not rely on the other holder's longer lease, because that holder may
        // leave.
        assert!(guard.check(2 * lease).is_err());
        assert!(guard.remaining() <= lease, "{:?}", guard.remaining());
        visit.leaves();
        assert!(guard.remaining() <= lease, "{:?}", guard.remaining());
        // The writer is granted the lock long before the lease of the reader that left ends.
        let writing = other
            .writer()
            .try_lock_for(TIMEOUT)
            .unwrap()
            .into_option()
            .expect("the lease has ended");
        assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
        writing.unlock().unwrap();
        wait_left(&server, "visited");
    }
}

#[test]
fn of_several_levels_of_a_reader_each_lasts_for_its_own_lease() {
    let server = server();
    let lock = client(&server).read_write_lock("levels");
    let (first, second) = (100 * TIMEOUT, 200 * TIMEOUT);
    for lease in [first, second] {
        for outer_goes_first in [false, true] {
            let outer = lock.reader().with_lease(first).lock().unwrap();
            // The lease counts from before the request.
            let begun = Instant::now();
            thread::sleep(TIME_UNIT);
            let later = Instant::now();
            let inner = lock.reader().with_lease(lease).lock().unwrap();
            let stays = if outer_goes_first {
                outer.unlock().unwrap();
                let until = later + lease;
                assert!(Instant::now() + inner.remaining() + lease / 100 > until, "it was cut");
                inner
            } else {
                inner.unlock().unwrap();
                assert!(Instant::now() + outer.remaining() < begun + first + TIME_UNIT / 2);
                outer
            };
            stays.unlock().unwrap();
            wait_left(&server, "levels");
        }
    }
}

#[test]
fn of_many_that_share_a_hold_each_leaves_alone_in_any_order() {
    let server = server();
    let lock = client(&server).read_write_lock("many");
    let mut random = Random::new();
    let mine = lock.reader().lock().unwrap();
    let mut guards: Vec<_> = (0..200).map(|_| lock.reader().lock_owned().unwrap()).collect();
    while !guards.is_empty() {
        let gone = guards.swap_remove(random.below(guards.len() as u64) as usize);
        gone.unlock().unwrap();
        assert!(guards.iter().all(|guard| guard.is_held()) && mine.is_held());
    }
    assert_eq!(lock.reader().hold_count(), 1);
    mine.unlock().unwrap();
    wait_left(&server, "many");
}
