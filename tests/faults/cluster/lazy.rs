//! A client that starts before it has a connection to any server of the cluster.

use super::*;

fn lazy(url: &str) -> Client {
    let builder =
        Client::builder(url).watchdog_timeout(LONG_LEASE).response_timeout(TIME_UNIT * 10);
    builder.connect_lazy().unwrap()
}

fn url(servers: &[&Server]) -> String {
    let hosts: Vec<_> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redis-cluster://{}", hosts.join(","))
}

/// Takes and releases a lock at each server, and gets a lock that another client hands over.
fn works(client: &Client, cluster: &Cluster) {
    let other = self::client(cluster);
    for name in names(cluster) {
        let held = other.reentrant_lock(&name).lock().unwrap();
        let lock = client.reentrant_lock(&name);
        let waiting = spawn(move || lock.lock().unwrap().unlock().unwrap());
        waiting.wait_asleep();
        held.unlock().unwrap();
        waiting.join();
        client.fair_lock(&format!("{{{name}}}:fair")).lock().unwrap().unlock().unwrap();
        let semaphore = client.semaphore(&format!("{{{name}}}:semaphore"));
        assert!(semaphore.try_set_permits(1).unwrap());
        drop(semaphore.acquire().unwrap());
        wait_until("it is given back", TIMEOUT, || semaphore.available_permits().unwrap() == 1);
        assert!(semaphore.delete().unwrap());
    }
}

#[test]
fn the_first_calls_find_the_servers() {
    let cluster = with_replicas();
    let [first, .., last] = cluster.servers() else { panic!("no servers") };
    for url in [
        cluster.url(),
        // The last server is a replica, which only names the masters.
        url(&[last]),
        // A name in place of an address.
        url(&[first]).replace("127.0.0.1", "localhost"),
    ] {
        // Many threads may open the first connections at the same time.
        let client = lazy(&url);
        let names = names(&cluster);
        thread::scope(|threads| {
            for name in names.iter().cycle().take(24) {
                let lock = client.reentrant_lock(&format!("{{{name}}}:many"));
                threads.spawn(move || lock.lock().unwrap().unlock().unwrap());
            }
        });
        works(&client, &cluster);
        works(&lazy(&url), &cluster);
    }
}

/// The hold of a lazy client's first call is renewed and handed on like any other hold.
#[test]
fn a_hold_of_the_first_call_is_renewed_and_handed_on() {
    let cluster = cluster();
    let name = &names(&cluster)[1];
    let client =
        Client::builder(&cluster.url()).watchdog_timeout(SHORT_LEASE).connect_lazy().unwrap();
    let guard = client.reentrant_lock(name).lock().unwrap();
    // Time must pass here, because the test measures leases.
    thread::sleep(SHORT_LEASE * 3 / 2);
    assert_eq!(guard.state(), HoldState::Held);
    let waiter = self::client(&cluster).reentrant_lock(name);
    let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
    waiting.wait_asleep();
    guard.unlock().unwrap();
    waiting.join();
    let counts = client.snapshot().counts;
    assert_eq!((counts.acquired, counts.released, counts.lost), (1, 1, 0), "{counts:?}");
}

#[test]
fn the_first_server_of_the_url_may_be_away() {
    let cluster = with_replicas();
    let gone = server();
    gone.kill();
    works(&lazy(&url(&[&gone, &cluster.servers()[1]])), &cluster);
}

/// A wait continues until the cluster has its slots. A call that does not wait fails until the
/// cluster has its slots.
#[test]
fn a_cluster_may_be_created_after_its_client() {
    bound();
    let server = Server::with_args(&["--cluster-enabled", "yes"]).unwrap();
    let client = lazy(&url(&[&server]));
    let lock = client.reentrant_lock("early");
    let error = lock.try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("has a slot yet") && error.is_transient(), "{error}");
    let waits = spawn(move || lock.lock().unwrap().unlock().unwrap());
    let add = ["ADDSLOTSRANGE", "0", "16383"];
    let () = redis::cmd("CLUSTER").arg(&add).query(&mut server.connection()).unwrap();
    waits.join();
}

#[test]
fn a_lone_server_behind_a_clusters_url_gets_no_command() {
    let lone = server();
    let client = lazy(&url(&[&lone]));
    for _ in 0..2 {
        let lock = client.reentrant_lock("lone");
        for error in [lock.try_lock().map(drop), lock.lock().map(drop)] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains("none of a cluster: use redis://"), "{error}");
            assert_eq!(error.name(), Some("lone"));
        }
    }
    let keys: Vec<String> = lone.connection().keys("*").unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}
