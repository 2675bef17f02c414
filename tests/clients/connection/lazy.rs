//! A client that starts while its server is unreachable.

use super::strangers::{Stranger, greeting};
use super::*;

fn lazy(url: &str) -> Client {
    Client::builder(url).watchdog_timeout(LONG_LEASE).connect_lazy().unwrap()
}

/// Returns a server that was started and then stopped.
fn absent() -> Server {
    let server = server();
    server.kill();
    server
}

#[test]
fn a_bad_url_or_setting_is_an_error_at_once() {
    for url in ["", "http://127.0.0.1", "redis://127.0.0.1/no", "redis-cluster://"] {
        let error = Client::connect_lazy(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
    }
    let none = Client::builder("redis://127.0.0.1:1").connections(0).connect_lazy();
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Config);
}

#[test]
fn a_server_may_start_after_its_client() {
    let server = absent();
    let client = lazy(&server.url());
    let waits = spawn({
        let lock = client.reentrant_lock("waited for");
        move || lock.lock().unwrap().unlock().unwrap()
    });
    let error = client.reentrant_lock("asked for").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart_empty();
    waits.join();
    // The client releases holds and gets grants by message like any other client.
    let semaphore = client.semaphore("permits");
    assert!(semaphore.try_set_permits(1).unwrap());
    let permit = semaphore.acquire().unwrap();
    let other = self::client(&server);
    let next = spawn(move || drop(other.semaphore("permits").acquire().unwrap()));
    drop(permit);
    next.join();
}

/// The first connection leads to the first run of the server. If a release is sent twice and the
/// second copy gets the reply "not held", the first copy has released the lock. The client can
/// conclude this only if it knows that both copies went to the same run.
#[test]
fn the_first_hold_is_as_good_as_any_other() {
    let server = server();
    let proxy = Proxy::before(&server);
    let builder = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).client_tracking(false);
    let client = builder.connect_lazy().unwrap();
    let guard = client.reentrant_lock("first").lock().unwrap();
    proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| contains(bytes, "first"));
    guard.unlock().unwrap();
    assert_eq!(proxy.fired(), 1);
}

#[test]
fn a_call_keeps_its_limit_while_the_server_never_starts() {
    let server = absent();
    let patient = TIME_UNIT * 5;
    let client = Client::builder(&server.url()).failover_timeout(patient).connect_lazy().unwrap();
    let lock = client.reentrant_lock("never");
    let begun = Instant::now();
    let error = lock.lock().map(drop).unwrap_err();
    assert!(begun.elapsed() >= patient, "{:?}", begun.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_transient() && !error.outcome_unknown(), "{error}");
    assert!(error.to_string().contains("is the address right?"), "{error}");
    let begun = Instant::now();
    let error = lazy(&server.url()).reentrant_lock("never").try_lock_for(patient).unwrap_err();
    assert!((patient..TIMEOUT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let unreached = [ErrorKind::Unavailable, ErrorKind::ResponseTimeout];
    assert!(unreached.contains(&error.kind()), "{error}");
}

#[test]
fn what_connect_refuses_each_call_refuses() {
    bound();
    let stranger = |info: &'static str, script: &'static str| {
        Stranger::start(move |stream, stop| {
            let mut said = [0; 4096];
            while !stop.load(Ordering::SeqCst) {
                let reply = match stream.read(&mut said) {
                    Ok(0) => return,
                    Ok(length) if contains(&said[..length], "EVAL") => script,
                    Ok(_) => &greeting(info),
                    Err(_) => continue,
                };
                if stream.write_all(reply.as_bytes()).is_err() {
                    return;
                }
            }
        })
    };
    let old = stranger("6.2.14", "$-1\r\n");
    let garnet = stranger("7.4.3\r\ngarnet_version:1.0.84", "$8\r\nredlatch\r\n");
    let no_scripts = stranger("9.1.0", "-ERR Could not find scripting engine 'lua'\r\n");
    let guarded = Server::builder().password("word").start().unwrap();
    let url = |stranger: &Stranger| format!("redis://{}", stranger.address);
    let guarded_url = format!("redis://127.0.0.1:{}", guarded.port());
    for (url, kind, says) in [
        (url(&old), ErrorKind::Config, "upgrade it to Redis 7.0"),
        (url(&garnet), ErrorKind::Config, "Garnet 1.0.84"),
        (url(&no_scripts), ErrorKind::Denied, "redlatch needs Lua scripts"),
        (guarded_url, ErrorKind::LoginRefused, "wants a password"),
    ] {
        let client = lazy(&url);
        // A call that may wait also ends at once, because a wait would not help.
        let begun = Instant::now();
        for _ in 0..2 {
            let lock = client.reentrant_lock("refused");
            for error in [lock.lock().map(drop), lock.try_lock().map(drop)] {
                let error = error.unwrap_err();
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.to_string().contains(says), "{error}");
                assert_eq!(error.name(), Some("refused"));
            }
        }
        assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    }
}

#[test]
fn a_replica_is_waited_for_until_it_is_the_master() {
    let (master, replica) = (server(), server());
    let set = |args: &[&str]| {
        let () = redis::cmd("REPLICAOF").arg(args).query(&mut replica.connection()).unwrap();
    };
    set(&["127.0.0.1", &master.port().to_string()]);
    let client = lazy(&replica.url());
    let lock = client.reentrant_lock("promoted");
    let error = lock.try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("is a read-only replica"), "{error}");
    let waits = spawn(move || lock.lock().unwrap().unlock().unwrap());
    set(&["NO", "ONE"]);
    waits.join();
}

#[test]
fn a_quorum_begins_with_a_majority() {
    let (one, two, late) = (server(), server(), absent());
    let clients = [&one, &two, &late].map(|server| lazy(&server.url()));
    let locks = clients.each_ref().map(|client| client.reentrant_lock("voted"));
    let quorum = MultiLock::quorum(&locks.each_ref().map(|lock| lock as &dyn Lock)).unwrap();
    quorum.lock().unwrap().unlock().unwrap();
    two.kill();
    let error = quorum.try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    late.restart_empty();
    wait_until("the third one votes", TIMEOUT, || {
        quorum.try_lock().is_ok_and(|it| it.into_option().is_some())
    });
}

/// Before the clients connect, they can recognize the same server only by its addresses.
#[test]
fn two_names_of_one_server_do_not_vote_twice() {
    let server = server();
    let at = |host: &str, database| lazy(&format!("redis://{host}:{}/{database}", server.port()));
    let clients = [at("127.0.0.1", 0), at("localhost", 1)];
    let locks = clients.each_ref().map(|client| client.reentrant_lock("voted"));
    let quorum = MultiLock::quorum(&locks.each_ref().map(|lock| lock as &dyn Lock)).unwrap();
    let error = quorum.lock().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("vote would count twice"), "{error}");
    wait_until("nothing is held", TIMEOUT, || locks.iter().all(|it| !it.is_locked().unwrap()));
}

#[test]
fn threads_may_make_the_first_call_together() {
    let server = server();
    for _ in 0..20 {
        let client = lazy(&server.url());
        let all = Arc::new(Barrier::new(4));
        let threads: Vec<_> = (0..4)
            .map(|at| {
                let (client, all) = (client.clone(), Arc::clone(&all));
                spawn(move || {
                    all.wait();
                    let shared = client.reentrant_lock("shared").lock().unwrap();
                    client.reentrant_lock(&at.to_string()).lock().unwrap().unlock().unwrap();
                    shared.unlock().unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(Running::join);
    }
}

/// Of the waiting threads, only one (the leader) sends requests and gets errors.
#[test]
fn an_absent_server_is_not_hammered() {
    bound();
    let count = Arc::new(AtomicU64::new(0));
    let stranger = Stranger::start({
        let count = Arc::clone(&count);
        move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let client = lazy(&format!("redis://{}", stranger.address));
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(TIME_UNIT * 5);
    assert_eq!(count.load(Ordering::SeqCst), 0, "no call has needed the server");
    let limit = TIME_UNIT * 20;
    let waits: Vec<_> = (0..8)
        .map(|_| {
            let lock = client.reentrant_lock("waited for");
            spawn(move || {
                let taken = lock.try_lock_for(limit);
                assert!(taken.map_or(true, |it| it.into_option().is_none()));
            })
        })
        .collect();
    waits.into_iter().for_each(Running::join);
    // The leader sends ten requests a second. For each request it opens a connection, and a second
    // connection when the first is cut off. The client's background threads connect less and less
    // often.
    let count = count.load(Ordering::SeqCst);
    assert!((2..150).contains(&count), "{count}");
}

#[test]
fn a_client_that_never_connected_ends_at_once() {
    let (server, gone) = (server(), absent());
    let proxy = Proxy::before(&server);
    proxy.freeze();
    let begun = Instant::now();
    let client = lazy(&proxy.url());
    client.shutdown();
    assert_eq!(client.reentrant_lock("x").lock().unwrap_err().kind(), ErrorKind::ShutDown);
    drop(client);
    assert_eq!(proxy.connections(), 0);
    let client = lazy(&gone.url());
    assert!(client.reentrant_lock("x").try_lock().is_err());
    drop(client);
    assert!(begun.elapsed() < SHORT_TIMEOUT, "{:?}", begun.elapsed());
}
