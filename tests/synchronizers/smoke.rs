//! Uses each synchronizer once, between two clients, on the server that is first on `PATH`.
//! `.ci/servers` runs this test on many servers.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::*;
use redlatch::{Client, ErrorKind, HoldState, Lock, LostReason, MultiLock, Waited};
use redlatch_testkit::Server;

/// A lease or a time limit whose end a test waits for.
const SHORT: Duration = Duration::from_millis(10 * TIME_UNIT.as_millis() as u64);

/// Returns two clients whose leases are longer than a machine stands still (five seconds). With
/// many servers a machine may stand still for this long.
fn two(server: &Server) -> [Client; 2] {
    [(); 2].map(|()| watched(server, SHORT_LEASE * 3))
}

/// The version of Redis with which the server is compatible.
fn redis_version(server: &Server) -> (u32, u32) {
    let info: String = redis::cmd("INFO").arg("server").query(&mut server.connection()).unwrap();
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap();
    let mut numbers = version.split('.').map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn a_server_is_refused_if_and_only_if_its_version_is_too_old() {
    let server = server();
    let connected = Client::connect(&server.url());
    if redis_version(&server) >= (7, 0) {
        connected.unwrap();
    } else {
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("upgrade it to Redis 7.0, Valkey 7.2"), "{error}");
    }
}

/// Asserts the common behaviour of all locks with one holder. `lease` makes a lock with a fixed
/// lease.
fn excludes<L: Lock + Clone + Send + 'static>(
    server: &Server,
    [one, other]: [L; 2],
    lease: impl Fn(&L, Duration) -> L,
) {
    let name = one.name().to_owned();
    let guard = one.lock().unwrap();
    let again = one.lock().unwrap();
    assert!(other.try_lock().unwrap().into_option().is_none());
    let gives_up = other.clone();
    assert!(
        spawn(move || answered(|| gives_up.try_lock_for(SHORT)).into_option().is_none()).join()
    );
    let waiting = other.clone();
    let waits = spawn(move || waiting.lock().unwrap().unlock().unwrap());
    waits.wait_queued();
    wait_renewed(server, &name);
    again.unlock().unwrap();
    assert!(guard.is_held() && !waits.is_finished());
    guard.unlock().unwrap();
    waits.join();

    // A message grants the lock to the other client, in both directions.
    woken_by_message(|| {
        for (from, to) in [(&one, &other), (&other, &one)] {
            let guard = from.lock().unwrap();
            let to = to.clone();
            let waits = spawn(move || to.lock().unwrap().unlock().unwrap());
            waits.wait_queued();
            guard.unlock().unwrap();
            waits.join();
        }
    });

    // A lease ends while another client waits.
    lease(&one, SHORT).lock().unwrap().forget();
    other.lock().unwrap().unlock().unwrap();

    // A message grants the lock with a fixed lease. It then stays held until the end of that lease.
    let guard = one.lock().unwrap();
    let leased = lease(&other, LONG_LEASE);
    let waits = spawn(move || leased.lock_owned().unwrap());
    waits.wait_queued();
    guard.unlock().unwrap();
    let guard = waits.join();
    wait_until("it has all of its lease", TIMEOUT, || guard.remaining() > LONG_LEASE / 2);
    guard.unlock().unwrap();
    lease(&one, LONG_LEASE).lock().unwrap().leave_to_expire().unwrap();
    assert!(other.try_lock().unwrap().into_option().is_none());
    assert!(other.force_unlock().unwrap());

    // The holder notices a loss.
    let guard = one.lock().unwrap();
    let (sender, lost) = mpsc::channel();
    guard.on_lost(move |reason| sender.send(reason).unwrap());
    assert!(other.force_unlock().unwrap());
    assert_eq!(lost.recv_timeout(TIMEOUT), Ok(LostReason::Revoked));
    assert!(guard.unlock().is_err());
    assert!(!one.is_locked().unwrap());
}

#[test]
fn a_reentrant_lock_works() {
    let server = server();
    let locks = two(&server).map(|client| client.reentrant_lock("smoke"));
    excludes(&server, locks, |lock, lease| lock.with_lease(lease));
}

#[test]
fn a_fair_lock_works() {
    let server = server();
    let locks = two(&server).map(|client| client.fair_lock("smoke"));
    excludes(&server, locks, |lock, lease| lock.with_lease(lease));
}

#[test]
fn a_fenced_lock_works() {
    let server = server();
    let locks = two(&server).map(|client| client.fenced_lock("smoke"));
    excludes(&server, locks.clone(), |lock, lease| lock.with_lease(lease));
    let guard = locks[0].lock().unwrap();
    let first = guard.token();
    guard.unlock().unwrap();
    assert!(locks[1].lock().unwrap().token() > first);
}

#[test]
fn a_write_lock_works() {
    let server = server();
    let locks = two(&server).map(|client| client.read_write_lock("smoke").writer().clone());
    excludes(&server, locks, |lock, lease| lock.with_lease(lease));
}

#[test]
fn a_read_write_lock_works() {
    let server = server();
    let [one, other] = two(&server).map(|client| client.read_write_lock("smoke"));
    let reads = one.reader().lock().unwrap();
    let also_reads = other.reader().lock().unwrap();
    assert_eq!(other.writer().lock().unwrap_err().kind(), ErrorKind::WouldDeadlock);
    let writer = other.writer().clone();
    let writes = spawn(move || writer.lock().unwrap().unlock().unwrap());
    writes.wait_queued();
    wait_renewed(&server, "smoke");
    assert!(reads.is_held() && also_reads.is_held() && !writes.is_finished());
    reads.unlock().unwrap();
    also_reads.unlock().unwrap();
    writes.join();
    // A writer becomes a reader, and another client's reader joins it.
    let writes = one.writer().lock().unwrap();
    let reader = other.reader().clone();
    let waits = spawn(move || reader.lock().unwrap().unlock().unwrap());
    waits.wait_queued();
    let reads = one.reader().lock().unwrap();
    writes.unlock().unwrap();
    waits.join();
    assert!(other.writer().try_lock().unwrap().into_option().is_none());
    reads.unlock().unwrap();
    assert!(!other.reader().is_locked().unwrap());
}

#[test]
fn several_locks_work() {
    let server = server();
    let names = ["smoke 1", "smoke 2", "smoke 3"];
    let [one, other] = two(&server).map(|client| names.map(|name| client.reentrant_lock(name)));
    let all = |[a, b, c]: &[_; 3]| MultiLock::new(&[a, b, c]).unwrap();
    let (one, other) = (all(&one), all(&other));
    let guard = one.lock().unwrap();
    assert!(other.try_lock().unwrap().into_option().is_none());
    let waits = spawn(move || other.lock().unwrap().unlock().unwrap());
    waits.wait_queued();
    wait_all_renewed(names.map(|name| (&server, name.to_owned())));
    assert!(guard.is_held() && !waits.is_finished());
    guard.unlock().unwrap();
    waits.join();
}

#[test]
fn a_semaphore_works() {
    let server = server();
    let [one, other] = two(&server).map(|client| client.semaphore("smoke"));
    assert!(one.try_set_permits(2).unwrap());
    let permits = one.acquire_many(2).unwrap();
    assert!(other.try_acquire().unwrap().into_option().is_none());
    assert!(answered(|| other.try_acquire_for(SHORT)).into_option().is_none());
    let waiting = other.clone();
    let waits = spawn(move || drop(waiting.acquire().unwrap()));
    waits.wait_queued();
    drop(permits);
    waits.join();
    wait_until("both are there", TIMEOUT, || other.available_permits().unwrap() == 2);
    other.add_permits(1).unwrap();
    assert_eq!(one.drain_permits().unwrap(), 3);
    assert!(one.release_forgotten_if_exists(1).unwrap());
    one.set_permits(5).unwrap();
    other.release_forgotten(1).unwrap();
    assert_eq!(one.available_permits().unwrap(), 6);
    assert!(one.expire(SHORT).unwrap());
    assert!(one.time_to_live().unwrap() <= Some(SHORT));
    wait_until("it has expired", TIMEOUT, || other.available_permits().unwrap() == 0);
    assert!(one.try_set_permits_for(1, LONG_LEASE).unwrap());
    assert!(other.expire(Duration::MAX).unwrap());
    assert!(other.delete().unwrap());
}

#[test]
fn an_expirable_semaphore_works() {
    let server = server();
    let [one, other] = two(&server).map(|client| client.expirable_semaphore("smoke"));
    assert!(one.try_set_permits(1).unwrap());
    let permit = one.acquire().unwrap();
    let left = || other.remaining_lease(&permit.id()).unwrap().unwrap();
    let mut before = left();
    wait_until("it is renewed", TIMEOUT, || std::mem::replace(&mut before, left()) < before);
    assert!(other.try_acquire().unwrap().into_option().is_none());
    let waiting = other.with_lease(SHORT);
    let waits = spawn(move || waiting.acquire().unwrap().into_id());
    waits.wait_queued();
    permit.release().unwrap();
    let id = waits.join();
    // The permit's lease ends.
    let next = one.acquire().unwrap();
    assert!(!other.try_release(&id).unwrap());
    other.update_lease_time(&next.id(), LONG_LEASE).unwrap();
    assert_eq!((other.permits().unwrap(), other.acquired_permits().unwrap()), (1, 1));
    next.release().unwrap();
    other.add_permits(1).unwrap();
    assert_eq!(one.available_permits().unwrap(), 2);
    let ids = [(); 2].map(|()| one.with_lease(LONG_LEASE).acquire().unwrap().into_id());
    other.release_many(&ids).unwrap();
    other.set_permits(3).unwrap();
    assert!(other.expire(LONG_LEASE).unwrap() && one.time_to_live().unwrap().is_some());
    assert!(other.expire(Duration::MAX).unwrap() && other.delete().unwrap());
}

#[test]
fn a_latch_works() {
    let server = server();
    let [one, other] = two(&server).map(|client| client.count_down_latch("smoke"));
    assert!(one.try_set_count(2).unwrap());
    let waiting = other.clone();
    let waits = spawn(move || waiting.wait().unwrap());
    one.count_down().unwrap();
    assert!(answered(|| other.wait_for(SHORT)).timed_out());
    assert_eq!(other.count().unwrap(), 1);
    assert!(!waits.is_finished());
    other.count_down().unwrap();
    waits.join();
    assert!(other.try_set_count_for(3, LONG_LEASE).unwrap());
    assert!(one.expire(Duration::MAX).unwrap());
    assert_eq!(other.time_to_live().unwrap(), Some(Duration::MAX));
    assert!(one.delete().unwrap());
}

#[test]
fn a_condition_works() {
    let server = server();
    let [one, other] = two(&server).map(|client| client.reentrant_lock("smoke"));
    let condition = one.condition("changed");
    let wait = |lock: &redlatch::ReentrantLock| {
        let lock = lock.clone();
        let waits = spawn(move || {
            let guard = lock.lock().unwrap();
            lock.condition("changed").wait(&guard).unwrap();
            assert!(guard.is_held());
            guard.unlock().unwrap();
        });
        waits.wait_queued();
        wait_until("it has left the lock", TIMEOUT, || !one.is_locked().unwrap());
        waits
    };
    let waits = wait(&other);
    let guard = one.lock().unwrap();
    assert!(condition.wait_for(&guard, SHORT).unwrap().timed_out());
    assert!(condition.notify_one().unwrap());
    guard.unlock().unwrap();
    waits.join();
    let all = [wait(&one), wait(&other)];
    let guard = one.lock().unwrap();
    assert_eq!(condition.notify_all().unwrap(), 2);
    guard.unlock().unwrap();
    all.into_iter().for_each(Running::join);
}

#[test]
fn a_barrier_works() {
    let server = server();
    let [one, other] = two(&server).map(|client| client.cyclic_barrier("smoke"));
    assert!(one.try_set_parties(2).unwrap());
    let party = other.clone();
    let waits = spawn(move || (0..5).map(|_| party.wait().unwrap()).sum::<u32>());
    let arrivals: u32 = (0..5).map(|_| one.wait().unwrap()).sum();
    assert_eq!(arrivals + waits.join(), 5);
    assert_eq!(one.wait_for(SHORT).unwrap(), Waited::TimedOut);
    assert!(other.is_broken().unwrap() && other.reset().unwrap());
    assert_eq!((other.parties().unwrap(), other.waiting().unwrap()), (2, 0));
    assert!(other.delete().unwrap());
}

#[test]
fn an_election_works() {
    let server = server();
    let [one, other] = two(&server).map(|client| client.leader_election("smoke"));
    let leads = one.campaign().unwrap();
    assert!(answered(|| other.try_campaign_for(SHORT)).into_option().is_none());
    assert_eq!(other.leader().unwrap().unwrap().token, leads.token());
    let waits = spawn(move || other.campaign().unwrap());
    waits.wait_queued();
    let first = leads.token();
    leads.resign().unwrap();
    let leads = waits.join();
    assert!(leads.token() > first && leads.is_leader());
    leads.resign().unwrap();
    assert!(one.leader().unwrap().is_none());
}

#[test]
fn a_status_shows_a_holder_and_a_waiter() {
    let server = server();
    let [one, other] = two(&server);
    let guard = one.reentrant_lock("smoke").lock_owned().unwrap();
    let lock = other.reentrant_lock("smoke");
    let waits = spawn(move || lock.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "smoke", 1);
    waits.wait_queued();
    let status = other.status("smoke").unwrap();
    assert_eq!((status.holders.len(), status.queue.len()), (1, 1));
    assert!(status.holders[0].process.is_some());
    assert!(other.statuses("smo*").unwrap().iter().any(|status| status.name == "smoke"));
    assert!(matches!(guard.state(), HoldState::Held));
    guard.unlock().unwrap();
    waits.join();
}
