//! How the client finds the master.

use super::*;

#[test]
fn a_client_finds_the_master_and_names_the_servers_that_know_none() {
    let sentinels = sentinels();
    let client = client_of(&sentinels);
    client.reentrant_lock("found").lock().unwrap().unlock().unwrap();
    assert!(Commands::so_far(sentinels.master()).scripts() > 0);

    let ports: Vec<_> = sentinels.sentinels().iter().map(Server::port).collect();
    // A Sentinel names the others. The client skips a server that is not a Sentinel.
    let plain = sentinels.master().port();
    builder(&sentinels.url_of(&[plain, ports[1]])).connect().unwrap();

    let url = sentinels.url_of(&ports).replace("/redlatch", "/nobody");
    let error = refused(&url);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(!error.is_transient(), "{error}");
    for port in &ports {
        let said = format!("127.0.0.1:{port} knows no master of this name");
        assert!(error.to_string().contains(&said), "{error}");
    }
    let error = refused(&sentinels.url_of(&[plain]));
    assert!(error.to_string().contains(&format!("{plain} is no Sentinel")), "{error}");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");

    let begun = Instant::now();
    let url = sentinels.url_of(&[1, 2]);
    let error = builder(&url).connect_timeout(LONG_LEASE).connect().map(drop).unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1 cannot be reached"), "{error}");
    assert!(error.to_string().contains("127.0.0.1:2 cannot be reached"), "{error}");
    assert!(error.is_transient() && error.kind() == ErrorKind::Unavailable, "{error}");
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());

    for url in ["redis-sentinel://:secret@127.0.0.1:1", "redis-sentinel://:secret@127.0.0.1/0"] {
        let error = refused(url);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(!format!("{error:#} {error:?}").contains("secret"), "{error}");
    }
}

/// The first call asks the Sentinels for the master.
#[test]
fn a_client_may_start_before_the_sentinels_answer() {
    let sentinels = sentinels();
    let pause = |on: bool| {
        let change = if on { Server::pause } else { Server::resume };
        sentinels.sentinels().iter().for_each(change);
    };
    pause(true);
    let client = builder(&sentinels.url()).connect_timeout(TIME_UNIT * 5).connect_lazy().unwrap();
    let lock = client.reentrant_lock("early");
    let error = lock.try_lock().map(drop).unwrap_err();
    assert!(error.is_transient() && !error.outcome_unknown(), "{error}");
    let waits = spawn(move || lock.lock().unwrap().unlock().unwrap());
    pause(false);
    waits.join();
    // This client gets grants by message and follows a new master, as any client does.
    let held = client_of(&sentinels).reentrant_lock("handed").lock().unwrap();
    let handed = client.reentrant_lock("handed");
    let waits = spawn(move || handed.lock().unwrap().unlock().unwrap());
    waits.wait_asleep();
    held.unlock().unwrap();
    waits.join();
    sentinels.fail_over();
    client.reentrant_lock("later").lock().unwrap().unlock().unwrap();

    let nobody = builder(&sentinels.url().replace("/redlatch", "/nobody")).connect_lazy().unwrap();
    for _ in 0..2 {
        let error = nobody.reentrant_lock("never").lock().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("knows no master of this name"), "{error}");
    }
}

#[test]
fn sentinels_and_servers_have_a_password_of_their_own() {
    bound();
    let builder = Sentinels::builder().server_password("master1").sentinel_password("watch2");
    let sentinels = started(builder);
    let url = sentinels.url();
    let works = |client: &Client| {
        client.reentrant_lock("guarded").lock().unwrap().unlock().unwrap();
    };
    works(&Client::connect(&url).unwrap());
    let bare = url.replace(":master1@", "").replace("?sentinelPassword=watch2", "");
    let client = Client::builder(&bare)
        .credentials("", "master1")
        .sentinel_credentials("default", "watch2")
        .connect()
        .unwrap();
    works(&client);
    for (url, word) in [
        (url.replace("watch2", "secret"), "sentinelPassword"),
        (url.replace("?sentinelPassword=watch2", ""), "sentinelPassword"),
        (url.replace("master1", "secret"), "refuses the user or password"),
        (url.replace(":master1@", ""), "wants a password"),
    ] {
        let error = refused(&url);
        assert!(error.to_string().contains(word), "{error}");
        assert!(!error.is_transient(), "{error}");
        let all = format!("{error:#} {error:?}");
        assert!(["secret", "master1", "watch2"].iter().all(|it| !all.contains(it)), "{all}");
    }
    // The next master requires the password, too.
    let held = client.reentrant_lock("held").lock().unwrap();
    wait_replicated(&sentinels, "held");
    sentinels.fail_over();
    wait_until("it works on the new one", TIMEOUT, || {
        client.reentrant_lock("more").try_lock().is_ok_and(|guard| guard.into_option().is_some())
            && Commands::so_far(sentinels.master()).scripts() > 0
    });
    held.unlock().unwrap();
}

#[test]
fn sentinels_that_are_gone_or_stand_still_are_passed() {
    let sentinels = sentinels();
    let [first, second, third] = sentinels.sentinels() else { panic!("three") };
    let master = sentinels.master();
    first.kill();
    second.pause();
    let begun = Instant::now();
    let client = client_of(&sentinels);
    client.reentrant_lock("found").lock().unwrap().unlock().unwrap();
    assert!(begun.elapsed() < TIMEOUT / 2, "{:?}", begun.elapsed());
    second.resume();
    drop(client);
    // The first client's URL names only a Sentinel that is gone, so that client must have learned
    // of the others.
    let client = builder(&sentinels.url_of(&[third.port()])).connect().unwrap();
    third.kill();
    kill_clients(master);
    client.reentrant_lock("learned").lock().unwrap().unlock().unwrap();
}

/// Makes all connected clients connect again.
fn kill_clients(server: &Server) {
    for kind in ["normal", "pubsub"] {
        let args = ["KILL", "TYPE", kind, "SKIPME", "yes"];
        redis::cmd("CLIENT").arg(&args).exec(&mut server.connection()).unwrap();
    }
}

#[test]
fn without_any_sentinel_the_master_that_lives_is_used_on() {
    let sentinels = sentinels();
    let client = client_of(&sentinels);
    let guard = client.reentrant_lock("held").lock().unwrap();
    let lost = losses(&guard);
    let master = sentinels.master();
    sentinels.sentinels().iter().for_each(Server::kill);
    for _ in 0..2 {
        client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
        kill_clients(master);
    }
    assert!(lost.try_recv().is_err());
    guard.unlock().unwrap();
    assert!(builder(&sentinels.url()).connect().is_err(), "a new one knows of no master");
}

/// A restarted Sentinel knows only its configuration file, and not yet the other Sentinels. The
/// restarted Sentinel names the old master, which still reports that it is a master.
#[test]
fn a_sentinel_that_knows_less_leads_no_client_back() {
    let sentinels = sentinels();
    let [stale, others @ ..] = sentinels.sentinels() else { panic!("three") };
    let client = client_of(&sentinels);
    let old = sentinels.master();
    stale.kill();
    old.pause();
    sentinels.wait_switched(old);
    let new = sentinels.master();
    let lock = client.reentrant_lock("moved");
    lock.lock().unwrap().unlock().unwrap();
    // After this, no server tells the old master about the new master, and no server tells the
    // Sentinel that knows only the old master.
    others.iter().for_each(Server::pause);
    old.resume();
    stale.restart_empty();
    assert!(client_of_one(&sentinels, stale).is_ok(), "it names a master that is one");
    let before = Commands::so_far(old).of_locks();
    for _ in 0..3 {
        kill_clients(new);
        lock.lock().unwrap().unlock().unwrap();
    }
    assert_eq!(Commands::so_far(old).of_locks(), before, "the old master was asked");
    others.iter().for_each(Server::resume);
}

fn client_of_one(sentinels: &Sentinels, sentinel: &Server) -> Result<Client, Error> {
    builder(&sentinels.url_of(&[sentinel.port()])).connect()
}

/// After a failover the master has another address, but the order of the locks must stay the same.
#[test]
fn locks_of_one_name_are_ordered_by_the_service_name_of_their_sentinels() {
    let sentinels = sentinels();
    let other = server();
    let by_name = builder(&other.url().replace("127.0.0.1", "localhost")).connect().unwrap();
    let _taken = client(&other).reentrant_lock("same").lock().unwrap();
    let lock = client_of(&sentinels).reentrant_lock("same");
    let both = MultiLock::new(&[&lock, &by_name.reentrant_lock("same")]).unwrap();
    let waiter = spawn(move || drop(answered(|| both.try_lock_for(TIME_UNIT * 5))));
    wait_in_line(&other, "same", 1);
    // "localhost" comes before "redlatch".
    assert!(!lock.is_locked().unwrap());
    waiter.join();
}

/// Both the master and its successor refuse a client with the old password.
#[test]
fn holds_outlast_new_passwords_and_a_failover() {
    let sentinels = sentinels();
    let servers = sentinels.servers();
    let vault = Vault::new(None);
    vault.add(servers, "first");
    let client = vault.asked_by(builder(&sentinels.url())).watchdog_timeout(SHORT_LEASE * 3);
    let client = client.connect().unwrap();
    let names = || (0..10).map(|at| format!("hold {at}"));
    let guards: Vec<_> = names().map(|name| client.reentrant_lock(&name).lock().unwrap()).collect();
    let renewed = || wait_all_renewed(names().map(|name| (sentinels.master(), name)));

    vault.add(servers, "second");
    Vault::remove(servers, "first");
    Vault::hang_up(servers);
    renewed();
    client.reentrant_lock("more").lock().unwrap().unlock().unwrap();

    names().for_each(|name| wait_replicated(&sentinels, &name));
    vault.add(servers, "third");
    Vault::remove(servers, "second");
    let (old, before) = (sentinels.master(), vault.asked());
    sentinels.fail_over();
    sentinels.wait_switched(old);
    renewed();
    assert!(vault.asked() > before);
    for guard in guards {
        guard.unlock().unwrap();
    }
}

/// The Sentinels name the master until they stand still. The last search for the master gets no
/// answer, but the error must still name the master.
#[test]
fn a_master_that_cannot_be_reached_is_named_and_no_sentinel() {
    let sentinels = sentinels();
    for sentinel in sentinels.sentinels() {
        let args = ["SET", "redlatch", "down-after-milliseconds", "600000"];
        redis::cmd("SENTINEL").arg(&args).exec(&mut sentinel.connection()).unwrap();
    }
    let master = sentinels.master();
    master.kill();
    let connect_timeout = TIME_UNIT * 20;
    let builder = builder(&sentinels.url()).connect_timeout(connect_timeout);
    let connecting = spawn(move || builder.connect().map(drop).unwrap_err());
    thread::sleep(connect_timeout / 2);
    sentinels.sentinels().iter().for_each(|sentinel| sentinel.pause());
    let error = connecting.join();
    sentinels.sentinels().iter().for_each(|sentinel| sentinel.resume());
    let is_about_it = format!("no connection to the server at 127.0.0.1:{}", master.port());
    assert!(error.to_string().contains(&is_about_it), "{error}");
}
