//! A cluster: moved slots, and clients with another kind of channels.

use super::*;

#[test]
fn the_move_of_a_held_locks_slot_is_logged_as_one_warning() {
    if !has_own_log() {
        return;
    }
    bound();
    let Ok(cluster) = Cluster::without_replicas() else {
        eprintln!("left out: no cluster can be had");
        return;
    };
    let client = Client::builder(&cluster.url()).watchdog_timeout(SHORT_LEASE).connect().unwrap();
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let slot = cluster.slot("moved");
    let to = cluster.another(slot);
    cluster.move_slot(slot, to);
    let lines = || LOGGER.lines("the slot of \"moved\"");
    wait_until("the move is logged", TIMEOUT, || !lines().is_empty());
    let lines = lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].0 == Level::Warn && lines[0].1.contains(&to.port().to_string()), "{lines:?}");
    guard.unlock().unwrap();
}

/// One client uses sharded channels and the other does not. No command fails, but no message of one
/// client wakes the other.
#[test]
fn clients_of_a_cluster_with_other_channels_are_one_warning() {
    if !has_own_log() {
        return;
    }
    bound();
    let Ok(cluster) = Cluster::without_replicas() else {
        eprintln!("left out: no cluster can be had");
        return;
    };
    let connect =
        |sharded| Client::builder(&cluster.url()).sharded_channels(sharded).connect().unwrap();
    let lines = |client: &Client| {
        let id = client.id().to_owned();
        let mut lines = LOGGER.lines("sharded_channels");
        lines.retain(|(_, line)| line.contains(&id));
        lines
    };
    let wait = |client: &Client, name: &str, token: &CancelToken| {
        let (semaphore, token) = (client.semaphore(name), token.clone());
        spawn(move || semaphore.acquire_cancellable(&token).map(drop).unwrap_err().kind())
    };
    let beside_another_kind = |sharded, name: &str| {
        // A name has a plain and a sharded channel. Redisson subscribes to the channel that the
        // client does not use.
        let (client, token) = (connect(sharded), CancelToken::new());
        let waiting = wait(&client, name, &token);
        waiting.wait_asleep();
        // Time must pass here, because the waiter sends a request only every few seconds.
        thread::sleep(TIME_UNIT * 40);
        assert_eq!(lines(&client), []);
        let mut redis = cluster.home(name).connection();
        let subscribe = if sharded { "SUBSCRIBE" } else { "SSUBSCRIBE" };
        redis::cmd(subscribe).arg(format!("redisson_sc:{{{name}}}")).exec(&mut redis).unwrap();
        wait_until("it is said", TIMEOUT, || !lines(&client).is_empty());
        token.cancel();
        assert_eq!(waiting.join(), ErrorKind::Cancelled);
        client.shutdown();
        assert!(matches!(&lines(&client)[..], [(Level::Warn, _)]), "{:?}", lines(&client));
    };
    thread::scope(|scope| {
        scope.spawn(|| beside_another_kind(true, "foreign"));
        scope.spawn(|| beside_another_kind(false, "strange"));
    });

    let name = "locks";
    let token = CancelToken::new();
    let clients = [connect(true), connect(false)];
    let held = clients[0].reentrant_lock(name).lock().unwrap();
    let waiting = clients.each_ref().map(|client| {
        let (lock, token) = (client.reentrant_lock(name), token.clone());
        spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err().kind())
    });
    for client in &clients {
        wait_until("each says so", TIMEOUT, || lines(client).len() == 1);
    }
    token.cancel();
    for thread in waiting {
        assert_eq!(thread.join(), ErrorKind::Cancelled);
    }
    held.unlock().unwrap();
}
