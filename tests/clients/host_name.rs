//! A host name that later leads to another server, while the old server lives on.

use std::net::SocketAddr;
use std::time::Duration;

use redlatch::{Client, HoldState, LostReason};
use redlatch_testkit::{Proxy, Server, wait_until};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Makes the name lead to this port.
fn lead(name: &str, port: u16) {
    redlatch_client::testing::lead(name, &[SocketAddr::from(([127, 0, 0, 1], port))]);
}

fn client_of(name: &str) -> Client {
    let client = Client::builder(&format!("redis://{name}")).connections(2);
    client.watchdog_timeout(Duration::from_secs(60)).connect().unwrap()
}

/// The number of scripts that the server has run for clients.
fn scripts(server: &Server) -> u64 {
    let text: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let calls = |line: &str| -> Option<u64> {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        name.starts_with("eval").then(|| rest.split(',').next()?.parse().ok())?
    };
    text.lines().filter_map(calls).sum()
}

#[test]
fn a_client_goes_with_its_name_though_the_old_server_lives_on() {
    let name = "moves.test";
    let (old, new) = (Server::start().unwrap(), Server::start().unwrap());
    lead(name, old.port());
    let client = client_of(name);
    let held = client.reentrant_lock("held").lock().unwrap();
    // Another client of the old server has the lock there, and keeps it.
    let elsewhere = Client::connect(&old.url()).unwrap();
    let kept = elsewhere.reentrant_lock("waited for").lock_owned().unwrap();
    let waiting = client.reentrant_lock("waited for");
    let waiter = std::thread::spawn(move || waiting.lock().map(drop));
    wait_until("it waits", TIMEOUT, || {
        let places: u64 = redis::cmd("LLEN")
            .arg("redlatch_queue:{waited for}")
            .query(&mut old.connection())
            .unwrap();
        places > 0
    });
    lead(name, new.port());
    // The new server does not know either hold.
    wait_until("the loss is told", TIMEOUT, || held.state() != HoldState::Held);
    assert_eq!(held.state(), HoldState::Lost(LostReason::Revoked));
    wait_until("the waiter is in there", TIMEOUT, || waiter.is_finished());
    waiter.join().unwrap().unwrap();
    let before = scripts(&old);
    for at in 0..20 {
        client.reentrant_lock(&format!("lock {at}")).lock().unwrap().unlock().unwrap();
    }
    assert_eq!(scripts(&old), before, "the old one is asked still");
    assert!(scripts(&new) >= 20);
    kept.unlock().unwrap();
    // The name leads back to the old server.
    lead(name, old.port());
    wait_until("the old one is used again", TIMEOUT, || {
        let _told = client.reentrant_lock("back").lock().unwrap().unlock();
        scripts(&old) > before + 1
    });
}

#[test]
fn another_way_to_the_same_server_changes_nothing() {
    let name = "same.test";
    let server = Server::start().unwrap();
    let (one, other) = (Proxy::before(&server), Proxy::before(&server));
    lead(name, one.address().port());
    let client = client_of(name);
    let held = client.reentrant_lock("held").lock().unwrap();
    let before = one.connections();
    lead(name, other.address().port());
    // The client has sent its questions to the other server twice.
    let seen = other.commands();
    wait_until("it was met there", TIMEOUT, || other.commands() >= seen + 4);
    assert_eq!(one.connections(), before);
    assert_eq!(held.state(), HoldState::Held);
    held.unlock().unwrap();
}

#[test]
fn a_name_that_leads_to_a_replica_is_followed_once_that_is_a_master() {
    let name = "replica.test";
    let old = Server::start().unwrap();
    let new = Server::builder().replica_of(&old).start().unwrap();
    let network = Proxy::before(&new);
    lead(name, old.port());
    // All of the client's connections are open. A new connection would lead to the replica.
    let client = Client::builder(&format!("redis://{name}")).client_tracking(false).connections(1);
    let client = client.watchdog_timeout(Duration::from_secs(60)).connect().unwrap();
    let held = client.reentrant_lock("held").lock().unwrap();
    wait_until("the replica has it", TIMEOUT, || {
        redis::cmd("EXISTS").arg("held").query(&mut new.connection()).unwrap()
    });
    lead(name, network.address().port());
    let seen = network.commands();
    wait_until("it was met there", TIMEOUT, || network.commands() >= seen + 4);
    assert_eq!(scripts(&new), 0, "it was followed to a replica");
    let () = redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).query(&mut new.connection()).unwrap();
    wait_until("it is followed", TIMEOUT, || {
        let lock = client.reentrant_lock("other");
        lock.try_lock().is_ok_and(|guard| guard.into_option().is_some()) && scripts(&new) > 0
    });
    assert_eq!(held.state(), HoldState::Held);
    held.unlock().unwrap();
}
