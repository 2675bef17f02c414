//! Outages of a server: one line when the outage begins, and one line when it ends.

use super::*;

/// Returns the log's lines about outages.
fn outages() -> Vec<(Level, String)> {
    let mut lines = LOGGER.lines("the server at");
    lines.retain(|(_, line)| {
        line.contains("cannot be reached or does not answer") || line.contains("answers again")
    });
    lines
}

#[track_caller]
fn wait_outages(count: usize) {
    let since = Instant::now();
    while outages().len() < count {
        assert!(since.elapsed() < TIMEOUT, "{count} of these: {:?}", LOGGER.lines(""));
        thread::sleep(TIME_UNIT / 50);
    }
    assert_eq!(outages().len(), count, "{:?}", outages());
}

/// Returns a client with many connections, a subscription and a renewed hold.
fn busy_client(server: &Server, url: &str) -> Client {
    busy(server, impatient(url), SHORT_LEASE)
}

/// Like [`busy_client`], but the client waits for replies for longer than a busy machine delays
/// them. The wait for the reply to a renewal is a sixth of the lease.
fn patient_busy_client(server: &Server) -> Client {
    let patient = impatient(&server.url()).response_timeout(TIMEOUT).connect_timeout(TIMEOUT);
    busy(server, patient, SHORT_LEASE * 4)
}

fn busy(server: &Server, builder: ClientBuilder, lease: Duration) -> Client {
    let client = builder.watchdog_timeout(lease).connections(8).connect().unwrap();
    hold_as_redisson(&mut server.connection(), "foreign", LONG_LEASE);
    assert!(
        answered(|| client.reentrant_lock("foreign").try_lock_for(TIME_UNIT / 2))
            .into_option()
            .is_none()
    );
    client.reentrant_lock("kept").lock().unwrap().forget();
    client
}

#[test]
fn an_outage_is_one_warning_and_its_end_is_one_line() {
    let Some(server) = server_with_log() else { return };
    // The client connects to a unix socket, because another server may take this server's port
    // while this server is down.
    let client = busy_client(&server, &server.unix_url());
    for round in 1..=2 {
        server.kill();
        // Many threads notice the outage, on all connections.
        let threads: Vec<_> = (0..16)
            .map(|at| client.reentrant_lock(&format!("name:{at}")))
            .map(|lock| spawn(move || assert!(lock.lock().is_err())))
            .collect();
        threads.into_iter().for_each(Running::join);
        wait_outages(2 * round - 1);
        server.restart_empty();
        client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
        wait_outages(2 * round);
    }
    // Any further lines would come within this time.
    thread::sleep(TIME_UNIT * 3);
    let lines = outages();
    let levels: Vec<_> = lines.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::Warn, Level::Info, Level::Warn, Level::Info], "{lines:?}");
    assert!(lines[0].1.contains("refused") || lines[0].1.contains("reset"), "{lines:?}");
    assert!(lines[1].1.contains("answers again"), "{lines:?}");
    assert_eq!(LOGGER.lines("NOT AS DOCUMENTED"), []);
}

#[test]
fn a_server_that_does_not_answer_is_an_outage() {
    let Some(server) = server_with_log() else { return };
    let client = busy_client(&server, &server.url());
    server.pause();
    assert!(client.reentrant_lock("silent").lock().is_err());
    wait_outages(1);
    server.resume();
    client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
    wait_outages(2);
    let lines = outages();
    let address = format!("the server at 127.0.0.1:{}", server.port());
    assert!(lines.iter().all(|(_, line)| line.contains(&address)), "{lines:?}");
    assert_eq!((lines[0].0, lines[1].0), (Level::Warn, Level::Info), "{lines:?}");
}

/// The clients notice the outage, and its end, one after the other.
#[test]
fn an_outage_is_logged_once_for_all_clients_of_a_process() {
    let Some(server) = server_with_log() else { return };
    let clients = [(); 3].map(|()| impatient(&server.unix_url()).connect().unwrap());
    let fail = |client: &Client| assert!(client.reentrant_lock("name").lock().is_err());
    for round in 1..=2 {
        server.kill();
        clients.iter().for_each(fail);
        wait_outages(2 * round - 1);
        server.restart_empty();
        for client in &clients {
            client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
        }
        wait_outages(2 * round);
    }
    // The client that reported the outage ends first. Another client reports the end of the outage.
    server.kill();
    clients.iter().for_each(fail);
    let mut clients = clients.into_iter();
    clients.next().unwrap().shutdown();
    assert_eq!(LOGGER.lines("no longer asks the server"), []);
    clients.for_each(|client| client.shutdown());
    wait_until("the end is told", TIMEOUT, || {
        !LOGGER.lines("no longer asks the server").is_empty()
    });
    thread::sleep(TIME_UNIT * 3);
    wait_outages(5);
    let lines = LOGGER.lines("no longer asks the server");
    assert!(matches!(&lines[..], [(Level::Info, line)] if line.contains("client")), "{lines:?}");
}

/// The client has no holds and no waiters.
#[test]
fn the_end_of_an_outage_is_logged_though_no_call_is_made() {
    let Some(server) = server_with_log() else { return };
    let client = impatient(&server.url()).connect().unwrap();
    server.pause();
    assert!(client.reentrant_lock("silent").lock().is_err());
    wait_outages(1);
    server.resume();
    wait_outages(2);
    assert!(outages()[1].1.contains("answers again"));

    let mut redis = server.connection();
    let mut tell = |command: &[&str]| {
        redis::cmd(command[0]).arg(&command[1..]).exec(&mut redis).unwrap();
    };
    tell(&["CONFIG", "SET", "maxclients", "1"]);
    tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(client.reentrant_lock("refused").lock().is_err());
    wait_until("it is said", TIMEOUT, || !LOGGER.lines("accepts no more connections").is_empty());
    tell(&["CONFIG", "SET", "maxclients", "1000"]);
    wait_until("its end is said", TIMEOUT, || {
        !LOGGER.lines("accepts connections again").is_empty()
    });
    wait_outages(2);
}

/// Afterwards the master's replica has the slots.
#[test]
fn the_outage_of_a_master_that_never_comes_back_ends_with_one_line() {
    if !has_own_log() {
        return;
    }
    bound();
    let Ok(cluster) = Cluster::start() else {
        eprintln!("left out: no cluster can be had");
        return;
    };
    let connect =
        || Client::builder(&cluster.url()).response_timeout(TIME_UNIT * 5).connect().unwrap();
    let clients = [connect(), connect()];
    let slot = cluster.slot("moved");
    let old = cluster.owner(slot);
    let lock = |client: &Client| client.reentrant_lock("moved").lock().unwrap().unlock().unwrap();
    clients.iter().for_each(lock);
    old.kill();
    for client in &clients {
        // This call sends a request while the old master is down and the replica is not the master
        // yet.
        let _late = client.reentrant_lock("moved").try_lock();
    }
    cluster.wait_taken_over(slot, old);
    clients.iter().for_each(lock);
    let lines = || LOGGER.lines("no longer asks the server");
    wait_until("the end is told", TIMEOUT, || !lines().is_empty());
    // The client sends no further request to the old server, and the log gets no further line about
    // it.
    thread::sleep(TIME_UNIT * 40);
    wait_outages(1);
    let lines = lines();
    let address = format!("the server at 127.0.0.1:{}", old.port());
    assert!(
        matches!(&lines[..], [(Level::Info, line)] if line.contains(&address) && line.contains("slot")),
        "{lines:?}"
    );
}

#[test]
fn a_connection_that_breaks_alone_is_no_outage() {
    let Some(server) = server_with_log() else { return };
    let client = patient_busy_client(&server);
    let mut redis = server.connection();
    for kind in ["normal", "pubsub"] {
        let mut kill = redis::cmd("CLIENT");
        let _: u64 = kill.arg("KILL").arg("TYPE").arg(kind).query(&mut redis).unwrap();
    }
    for at in 0..16 {
        client.reentrant_lock(&format!("name:{at}")).lock().unwrap().unlock().unwrap();
    }
    wait_renewed(&server, "kept");
    client.shutdown();
    assert_eq!(outages(), []);
}

/// The client's other connections work.
#[test]
fn a_server_that_lets_no_further_connection_in_is_no_outage() {
    let Some(server) = server_with_log() else { return };
    let mut redis = server.connection();
    let client = patient_busy_client(&server);
    let lock = client.reentrant_lock("name");
    lock.lock().unwrap().unlock().unwrap();
    let foreign = client.reentrant_lock("foreign");
    let waiting =
        spawn(move || foreign.try_lock_for(LONG_LEASE).map(|guard| guard.into_option().is_some()));
    waiting.wait_asleep();
    let set = |redis: &mut redis::Connection, most: &str| {
        let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", most]).query(redis).unwrap();
    };
    set(&mut redis, "1");
    // The subscriber tries to connect again and again.
    let _: i64 = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut redis).unwrap();
    wait_until("it is said", TIMEOUT, || !LOGGER.lines("accepts no more connections").is_empty());
    let since = Instant::now();
    while since.elapsed() < TIME_UNIT * 30 {
        lock.lock().unwrap().unlock().unwrap();
        thread::sleep(TIME_UNIT / 10);
    }
    set(&mut redis, "1000");
    let _: i64 = redis.del("foreign").unwrap();
    assert!(waiting.join().unwrap());
    wait_until("its end is said", TIMEOUT, || {
        !LOGGER.lines("accepts connections again").is_empty()
    });
    assert_eq!(outages(), []);
    let refusals = LOGGER.lines("accepts no more connections");
    assert!(
        matches!(&refusals[..], [(Level::Warn, line)] if line.contains("max number of clients"))
    );
    assert_eq!(LOGGER.lines("accepts connections again").len(), 1);
    client.shutdown();
}
