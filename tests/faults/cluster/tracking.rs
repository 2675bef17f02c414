//! Each server of a cluster tracks the keys of its own slots.

use super::*;

/// Returns a client whose renewals are too rare to detect a loss during a test, so that only
/// tracking reports it.
fn tracking(cluster: &Cluster) -> Client {
    let lease = Duration::from_secs(3_600);
    Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap()
}

#[test]
fn each_server_tells_of_the_holds_taken_away_there() {
    let cluster = cluster();
    let client = tracking(&cluster);
    let names = names(&cluster);
    let held: Vec<_> =
        names.iter().map(|name| client.reentrant_lock(name).lock().unwrap()).collect();
    let semaphore = client.expirable_semaphore("permits");
    assert!(semaphore.try_set_permits(1).unwrap());
    let permit = semaphore.acquire().unwrap();
    wait_until("each key is tracked by its server", TIMEOUT, || {
        let tracked: Vec<_> = cluster.servers().iter().map(tracked).collect();
        tracked.iter().sum::<u64>() == 4 && tracked.iter().all(|keys| *keys > 0)
    });
    for (at, (name, guard)) in names.iter().zip(&held).enumerate() {
        let _: i64 = cluster.home(name).connection().del(name).unwrap();
        wait_until("the loss is told", TIMEOUT, || guard.state() != HoldState::Held);
        assert!(held[at + 1..].iter().all(|other| other.state() == HoldState::Held));
    }
    assert!(permit.is_held());
    let key = "{permits}:timeout";
    let _: i64 = cluster.home(key).connection().del(key).unwrap();
    wait_until("the loss is told", TIMEOUT, || !permit.is_held());
}

#[test]
fn the_tracking_of_a_hold_moves_with_its_slot() {
    let cluster = cluster();
    let client = tracking(&cluster);
    let (slot, name) = (cluster.slot("moved"), "moved");
    let guard = client.reentrant_lock(name).lock().unwrap();
    let from = cluster.home(name);
    wait_until("it is tracked", TIMEOUT, || tracked(from) == 1);
    // The slot moves to another server and back, so the first server must track the key again.
    for to in [cluster.another(slot), from] {
        cluster.move_slot(slot, to);
        wait_until("it is tracked where it is", TIMEOUT, || tracked(to) == 1);
        assert_eq!(guard.state(), HoldState::Held);
    }
    let _: i64 = from.connection().del(name).unwrap();
    wait_until("the loss is told", TIMEOUT, || guard.state() != HoldState::Held);
}

#[test]
fn a_hold_is_tracked_by_the_replica_that_takes_over() {
    let cluster = with_replicas();
    let client = tracking(&cluster);
    let (slot, name) = (cluster.slot("taken over"), "taken over");
    let guard = client.reentrant_lock(name).lock().unwrap();
    wait_until("it is tracked", TIMEOUT, || tracked(cluster.home(name)) == 1);
    wait_until("the replica has it", TIMEOUT, || {
        let mut redis = cluster.home(name).connection();
        let _: () = redis.set("{taken over}:later", 1).unwrap();
        let waited: i64 = redis::cmd("WAIT").arg(1).arg(100).query(&mut redis).unwrap();
        waited == 1
    });
    cluster.fail_over(slot);
    let new = cluster.home(name);
    wait_until("it is tracked by the new master", TIMEOUT, || tracked(new) == 1);
    assert_eq!(guard.state(), HoldState::Held);
    let _: i64 = new.connection().del(name).unwrap();
    wait_until("the loss is told", TIMEOUT, || guard.state() != HoldState::Held);
}
