//! Slots that move.

use super::*;

#[test]
fn a_hold_outlives_the_move_of_its_slot() {
    let cluster = cluster();
    let lease = SHORT_LEASE;
    let client = Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap();
    let slot = cluster.slot("moved");
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let semaphore = client.expirable_semaphore("{moved}:permits");
    assert!(semaphore.try_set_permits(1).unwrap());
    let permit = semaphore.acquire().unwrap();
    // There are holds in many slots of each server, whose renewals fall due together.
    let others: Vec<_> = (0..30)
        .map(|number| client.reentrant_lock(&format!("another{number}")).lock().unwrap())
        .collect();
    let to = cluster.another(slot);
    cluster.move_slot(slot, to);
    // The time is longer than a lease, so each hold is renewed there.
    thread::sleep(lease * 3 / 2);
    assert_eq!(guard.state(), HoldState::Held);
    for other in others {
        other.unlock().unwrap();
    }
    assert!(permit.is_held());
    assert!(to.connection().exists::<_, bool>("moved").unwrap());
    guard.unlock().unwrap();
    permit.release().unwrap();
    assert!(!to.connection().exists::<_, bool>("moved").unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 1);
}

/// While the slot moves, its keys are on two servers. Scripts may use only the lock's own key.
#[test]
fn a_hold_is_renewed_while_its_slot_is_on_its_way() {
    let cluster = cluster();
    let lease = SHORT_LEASE;
    let client = Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap();
    let slot = cluster.slot("moved");
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let to = cluster.another(slot);
    cluster.begin_move(slot, to);
    thread::sleep(lease * 3 / 2);
    assert_eq!(guard.state(), HoldState::Held, "at the first server");
    cluster.move_key("moved", to);
    thread::sleep(lease * 3 / 2);
    assert_eq!(guard.state(), HoldState::Held, "at the second one, which is asked with ASKING");
    let waiter = client.reentrant_lock("other {moved}");
    let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
    waiting.wait_asleep();
    cluster.end_move(slot, to);
    waiting.join();
    guard.unlock().unwrap();
}

/// A reader's timeout is a separate key. If only the lock's key has moved, a renewal would create a
/// new timeout key, and the move would then replace the new key by the old key.
#[test]
fn a_readers_renewal_waits_until_its_keys_are_together_again() {
    let cluster = cluster();
    let lease = SHORT_LEASE * 2;
    let client = Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap();
    let slot = cluster.slot("moved");
    let guard = client.read_write_lock("moved").reader().lock().unwrap();
    let to = cluster.another(slot);
    cluster.begin_move(slot, to);
    cluster.move_key("moved", to);
    // A renewal falls due.
    thread::sleep(lease / 2);
    let there: Vec<String> = to.connection().keys("*moved*").unwrap();
    assert_eq!(there, ["moved"]);
    cluster.move_keys(slot, to);
    cluster.end_move(slot, to);
    thread::sleep(lease);
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(to.connection().keys::<_, Vec<String>>("*moved*").unwrap().len(), 2);
    guard.unlock().unwrap();
    assert_eq!(to.connection().keys::<_, Vec<String>>("*moved*").unwrap(), Vec::<String>::new());
}

#[test]
fn a_contended_locks_slot_moves_to_and_fro() {
    let cluster = cluster();
    for (sharded, fair) in [(true, false), (true, true), (false, false), (false, true)] {
        let clients = clients(&cluster, sharded);
        let name = format!("{{contended}}:{fair}");
        let slot = cluster.slot(&name);
        let contest = Contest::start(&clients, &name, fair, false);
        contest.go_on(20);
        for _ in 0..5 {
            cluster.move_slot(slot, cluster.another(slot));
            contest.go_on(20);
        }
        contest.end();
    }
}

#[test]
fn a_waiter_of_any_kind_is_woken_after_its_slot_has_moved() {
    let cluster = cluster();
    for sharded in [true, false] {
        let [one, other] = clients(&cluster, sharded);
        let slot = cluster.slot("{w}");
        let round = || {
            let name = |what: &str| format!("{{w}}{what}{sharded}");
            let guard = one.reentrant_lock(&name("lock")).lock().unwrap();
            let fair = one.fair_lock(&name("fair")).lock().unwrap();
            let semaphore = one.semaphore(&name("semaphore"));
            semaphore.try_set_permits(1).unwrap();
            let permit = semaphore.acquire().unwrap();
            let waiters = [
                spawn({
                    let lock = other.reentrant_lock(&name("lock"));
                    move || drop(lock.lock().unwrap())
                }),
                spawn({
                    let lock = other.fair_lock(&name("fair"));
                    move || drop(lock.lock().unwrap())
                }),
                spawn({
                    let semaphore = other.semaphore(&name("semaphore"));
                    move || drop(semaphore.acquire().unwrap())
                }),
            ];
            let (from, to) = (cluster.owner(slot), cluster.another(slot));
            let kind = if sharded { "SHARDCHANNELS" } else { "CHANNELS" };
            let heard = |server: &Server| -> Vec<String> {
                let channels =
                    redis::cmd("PUBSUB").arg(kind).arg("*{w}*").query(&mut server.connection());
                let mut channels: Vec<String> = channels.unwrap();
                channels.retain(|channel| channel.contains(&format!("{sharded}")));
                channels.sort();
                channels
            };
            let listens = |server| waiters.len() == heard(server).len();
            wait_until("each listens", TIMEOUT, || listens(from));
            cluster.move_slot(slot, to);
            // If the channels are not sharded, no server reports the slot's move, and the client
            // finds the new server at its next request.
            wait_until("each listens at the new server", TIMEOUT, || listens(to));
            let begun = Instant::now();
            // A waiter whose client has subscribed again has sent another request, or does so now.
            waiters.iter().for_each(crate::common::Running::wait_queued);
            guard.unlock().unwrap();
            fair.unlock().unwrap();
            drop(permit);
            waiters.into_iter().for_each(crate::common::Running::join);
            begun.elapsed()
        };
        once_within(if sharded { MIN_POLL_INTERVAL } else { TIMEOUT }, round);
    }
}

/// The client has not noticed the move when it ends.
#[test]
fn releases_at_the_end_of_a_client_reach_the_new_home_of_their_slot() {
    let cluster = cluster();
    let watching = client(&cluster);
    let (permits, permit_leases) = (
        watching.semaphore("{moved}:permits"),
        watching.expirable_semaphore("{moved}:permit_leases"),
    );
    permits.set_permits(2).unwrap();
    permit_leases.set_permits(1).unwrap();
    let slot = cluster.slot("moved");
    for shuts_down_first in [false, true] {
        let ends = client(&cluster);
        let guard = ends.reentrant_lock("moved").lock_owned().unwrap();
        let permit = ends.semaphore("{moved}:permits").acquire_many(2).unwrap();
        let permit_lease = ends.expirable_semaphore("{moved}:permit_leases").acquire().unwrap();
        if shuts_down_first {
            ends.shutdown();
        }
        let to = cluster.another(slot);
        cluster.move_slot(slot, to);
        drop((guard, permit, permit_lease, ends));
        assert!(!to.connection().exists::<_, bool>("moved").unwrap(), "{shuts_down_first}");
        assert_eq!(permits.available_permits().unwrap(), 2, "{shuts_down_first}");
        assert_eq!(permit_leases.available_permits().unwrap(), 1, "{shuts_down_first}");
    }
}
