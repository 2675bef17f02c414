//! Masters that fail, and the servers whose view the client then accepts.

use redlatch::NotTaken;

use super::*;

/// The removed server reports that no server has any slot, and would report this for ever.
#[test]
fn a_server_that_was_removed_from_its_cluster_is_not_believed() {
    let cluster = cluster();
    let slot = cluster.slot("left");
    let left = cluster.owner(slot);
    for server in cluster.servers() {
        let args = ["SET", "cluster-require-full-coverage", "no"];
        redis::cmd("CONFIG").arg(&args).exec(&mut server.connection()).unwrap();
    }
    // The client first queries the server that answered last.
    let url = |port| format!("redis-cluster://127.0.0.1:{port}");
    let connect = |url: &str| Client::builder(url).watchdog_timeout(LONG_LEASE).connect();
    let client = connect(&url(left.port())).unwrap();
    let to = cluster.another(slot);
    cluster.move_slot(slot, to);
    let reset = || redis::cmd("CLUSTER").arg(&["RESET", "HARD"]).exec(&mut left.connection());
    reset().unwrap();
    client.reentrant_lock("left").lock().unwrap().unlock().unwrap();
    // A new client does not believe the removed server either.
    let error = connect(&url(left.port())).map(drop).unwrap_err();
    assert!(error.to_string().contains("has a slot yet"), "{error}");
    let both = format!("{},127.0.0.1:{}", url(left.port()), to.port());
    connect(&both).unwrap().reentrant_lock("left").lock().unwrap().unlock().unwrap();
}

/// The server still reports that it has its former slots.
#[test]
fn a_server_that_is_cut_off_from_its_cluster_is_not_believed() {
    let cluster = with_replicas();
    let slot = cluster.slot("cut off");
    let old = cluster.owner(slot);
    // The client first queries the server that answered last.
    let url = format!("redis-cluster://127.0.0.1:{}", old.port());
    let client = Client::builder(&url).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let lock = client.reentrant_lock("cut off");
    lock.lock().unwrap().unlock().unwrap();
    cluster.cut_off(old);
    let new = cluster.take_over(slot);
    wait_until("it finds that it is alone", TIMEOUT, || {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut old.connection()).unwrap();
        info.contains("cluster_state:fail")
    });
    let guard = lock.lock().unwrap();
    assert!(new.connection().exists::<_, bool>("cut off").unwrap());
    guard.unlock().unwrap();
}

#[test]
fn a_master_dies_and_its_replica_takes_over() {
    let cluster = with_replicas();
    let clients = clients(&cluster, true);
    let name = "failed over";
    let slot = cluster.slot(name);
    let contest = Contest::start(&clients, name, false, true);
    contest.go_on(20);
    let old = cluster.owner(slot);
    // Only the old master knows this lock.
    let guard = clients[0].reentrant_lock(&format!("{{{name}}}:lost")).lock().unwrap();
    wait_until("the replica has it", TIMEOUT, || {
        // WAIT waits only for the last write of its own connection.
        let mut redis = old.connection();
        let _: () = redis.set(format!("{{{name}}}:later"), 1).unwrap();
        let waited: i64 = redis::cmd("WAIT").arg(1).arg(100).query(&mut redis).unwrap();
        waited == 1
    });
    let begun = Instant::now();
    old.kill();
    let taken_over = cluster.wait_taken_over(slot, old);
    contest.go_on(20);
    eprintln!("taken over after {:?}, in use {:?} later", taken_over - begun, taken_over.elapsed());
    assert_eq!(guard.state(), HoldState::Held, "the replica had it");
    let gone: i64 = cluster.owner(slot).connection().del(format!("{{{name}}}:lost")).unwrap();
    assert_eq!(gone, 1);
    assert!(guard.unlock().is_err());
    contest.end();
}

#[test]
fn a_master_stands_still_and_its_replica_takes_over() {
    let cluster = with_replicas();
    let clients = ["2", "3"].map(|protocol| {
        let url = format!("{}?protocol={protocol}", cluster.url());
        Client::builder(&url)
            .watchdog_timeout(LONG_LEASE)
            .response_timeout(crate::common::SHORT_TIMEOUT)
            .connect()
            .unwrap()
    });
    let name = "stands still";
    let slot = cluster.slot(name);
    let contest = Contest::start(&clients, name, false, true);
    contest.go_on(20);
    let old = cluster.owner(slot);
    old.pause();
    wait_until("another server has taken over", TIMEOUT, || {
        let others = cluster.servers().iter().filter(|server| server.port() != old.port());
        let says = |server: &Server| {
            let slots: String =
                redis::cmd("CLUSTER").arg("NODES").query(&mut server.connection()).unwrap();
            let own = slots.lines().find(|line| line.contains("myself")).unwrap_or_default();
            own.contains("master") && own.split(' ').count() > 8
        };
        others.filter(|server| says(server)).count() == 3
    });
    contest.go_on(20);
    old.resume();
    contest.go_on(100);
    contest.end();
}

#[test]
fn a_loss_at_a_failover_is_reported() {
    let cluster = with_replicas();
    // Without tracking, only a renewal can report the loss.
    let builder = Client::builder(&cluster.url()).watchdog_timeout(3 * LONG_LEASE);
    let client = builder.client_tracking(false).connect().unwrap();
    let slot = cluster.slot("lost");
    let old = cluster.owner(slot);
    let guard = client.reentrant_lock("lost").lock().unwrap();
    old.kill();
    cluster.wait_taken_over(slot, old);
    // The key is removed, as if the replica had not received it before the failover.
    let _: i64 = cluster.owner(slot).connection().del("lost").unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    // A thread uses the slot and notices the new server, so the client checks its holds.
    client.reentrant_lock("{lost}:other").lock().unwrap().unlock().unwrap();
    wait_until("the loss is told", TIMEOUT, || guard.state() != HoldState::Held);
}

#[test]
fn without_a_server_for_its_slot_a_call_ends_in_time() {
    let cluster = cluster();
    let client = crate::common::impatient(&cluster.url()).connect().unwrap();
    let lock = client.reentrant_lock("down");
    drop(lock.lock().unwrap());
    let slot = cluster.slot("down");
    cluster.owner(slot).kill();
    let begun = Instant::now();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_transient(), "{error}");
    // The call takes two timeouts. A call that waits would try for a minute.
    assert!(begun.elapsed() < TIMEOUT, "{:?}: {error:#}", begun.elapsed());
}

/// The call ends when its own time is over, and not after the two timeouts of one request.
#[test]
fn a_limited_wait_outlasts_an_outage_that_is_longer_than_a_request() {
    let cluster = with_replicas();
    let slot = cluster.slot("outlasted");
    let old = cluster.owner(slot);
    let others = cluster.servers().iter().filter(|server| server.port() != old.port());
    let others: Vec<_> = others.collect();
    let stay_replicas = |yes_or_no: &str| {
        for server in &others {
            let args = ["SET", "cluster-replica-no-failover", yes_or_no];
            redis::cmd("CONFIG").arg(&args).exec(&mut server.connection()).unwrap();
        }
    };
    stay_replicas("yes");
    let client = crate::common::impatient(&cluster.url())
        .failover_timeout(LONG_LEASE)
        .client_tracking(false)
        .connect()
        .unwrap();
    let names = ["for", "until", "token", "ended for", "ended until", "ended token"];
    let locks = names.map(|name| client.reentrant_lock(&format!("{{outlasted}}:{name}")));
    locks[0].lock().unwrap().unlock().unwrap();
    old.kill();
    let begun = Instant::now();
    let token = CancelToken::new();
    let short = 4 * crate::common::SHORT_TIMEOUT;
    let waiters = locks.each_ref().map(|lock| {
        let (lock, token) = (lock.clone(), token.clone());
        let ends = lock.name().contains("ended");
        let end = if ends { short } else { LONG_LEASE };
        spawn(move || {
            let got = match lock.name().rsplit([':', ' ']).next() {
                Some("for") => lock.try_lock_for(end),
                Some("until") => lock.lock_within(Wait::until(begun + end)),
                _ if ends => lock.lock_within(Wait::FOREVER.cancelled_by(&token)),
                _ => lock.lock_within(Wait::FOREVER.cancelled_by(&CancelToken::new())),
            };
            (
                got.map(|guard| guard.into_option().map(|guard| guard.unlock().unwrap())),
                begun.elapsed(),
            )
        })
    });
    thread::sleep(short.saturating_sub(begun.elapsed()));
    token.cancel();
    let mut waiters = waiters.into_iter();
    let going_on: Vec<_> = waiters.by_ref().take(3).collect();
    for (name, waiter) in names[3..].iter().zip(waiters) {
        let (got, ended) = waiter.join();
        let error = got.unwrap_err();
        // The call tries for its whole time, and does not sleep beyond its end.
        assert!(
            ended >= 3 * crate::common::SHORT_TIMEOUT,
            "{name} ended after {ended:?}: {error:#}"
        );
        if *name == "ended token" {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{name}: {error:#}");
        } else {
            assert!(error.is_transient(), "{name}: {error:#}");
        }
    }
    stay_replicas("no");
    cluster.wait_taken_over(slot, old);
    for (name, waiter) in names.iter().zip(going_on) {
        assert!(waiter.join().0.unwrap().is_some(), "{name}");
    }
}

/// The call must report the end of the client, and not the end of its own time.
#[test]
fn a_limited_wait_of_a_client_that_is_shut_down_says_so() {
    let cluster = cluster();
    // One request may take longer than the wait.
    let builder = Client::builder(&cluster.url()).watchdog_timeout(LONG_LEASE);
    let client = builder.response_timeout(TIMEOUT).connect_timeout(TIMEOUT).connect().unwrap();
    let lock = client.reentrant_lock("down");
    lock.lock().unwrap().unlock().unwrap();
    cluster.owner(cluster.slot("down")).kill();
    let waiter = spawn(move || lock.try_lock_for(TIMEOUT / 2).map(drop).unwrap_err());
    waiter.wait_asleep();
    client.shutdown();
    let error = waiter.join();
    assert_eq!(error.kind(), ErrorKind::ShutDown, "{error:#}");
}

#[test]
fn a_hold_is_renewed_once_the_system_can_start_threads_again() {
    if !has_own_process() {
        return;
    }
    let cluster = cluster();
    let lease = SHORT_LEASE * 2;
    let builder = Client::builder(&cluster.url()).client_tracking(false);
    let client = builder.watchdog_timeout(lease).connect().unwrap();
    let lock = client.reentrant_lock("held");
    let guard = without_room_for_threads(|| {
        let guard = lock.lock().unwrap();
        // Time must pass here, so that the first renewal is due. Its thread cannot be started.
        thread::sleep(lease / 2);
        guard
    });
    wait_until("it is renewed", TIMEOUT, || guard.remaining() > lease / 3 * 2);
    guard.unlock().unwrap();
}

#[test]
fn a_client_listens_once_the_system_can_start_threads_again() {
    if !has_own_process() {
        return;
    }
    let cluster = cluster();
    let builder =
        Client::builder(&cluster.url()).watchdog_timeout(LONG_LEASE).client_tracking(false);
    let (client, other) = (builder.clone().connect().unwrap(), builder.connect().unwrap());
    let held = other.reentrant_lock("held").lock().unwrap();
    let lock = client.reentrant_lock("held");
    assert!(lock.is_locked().unwrap(), "it has a connection");
    let waited =
        without_room_for_threads(|| crate::common::answered(|| lock.try_lock_for(TIME_UNIT * 5)));
    assert!(matches!(waited, NotTaken), "{waited:?}");
    let mut redis = cluster.home("held").connection();
    wait_until("it listens", TIMEOUT, || {
        let channels: Vec<String> =
            redis::cmd("PUBSUB").arg("CHANNELS").arg("*").query(&mut redis).unwrap();
        channels.iter().any(|channel| channel.contains(client.id()))
    });
    held.unlock().unwrap();
}
