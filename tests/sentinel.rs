//! Behind Sentinels: which server is the master, and what becomes of locks when another one is.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::env;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::*;
use redis::Commands as _;
use redlatch::{Client, ClientBuilder, Error, ErrorKind, Lock, LockGuard, LostReason, MultiLock};
use redlatch_testkit::{Job, Sentinels, SentinelsBuilder, Server, Worker};

/// What may pass between the Sentinels' decision and the time when all go on. The goal is a second, the
/// machine is busy.
const GOES_ON: Duration = Duration::from_secs(5);

/// `None`, with a word, where the server's program knows no Sentinels.
fn sentinels() -> Option<Sentinels> {
    started(Sentinels::builder())
}

fn started(builder: SentinelsBuilder) -> Option<Sentinels> {
    let _server = real_server()?;
    Some(builder.start().unwrap())
}

fn client_of(sentinels: &Sentinels) -> Client {
    builder(&sentinels.url()).connect().unwrap()
}

fn builder(url: &str) -> ClientBuilder {
    Client::builder(url).watchdog_timeout(LONG)
}

fn refused(url: &str) -> Error {
    builder(url).connect_timeout(UNIT * 20).connect().map(drop).unwrap_err()
}

/// Hears of a guard's loss.
fn losses(guard: &LockGuard) -> Receiver<LostReason> {
    let (sender, lost) = mpsc::channel();
    guard.on_lost(move |why| sender.send(why).unwrap());
    lost
}

/// The replicas have not got this key: as if the master had failed before they heard of it.
fn keep_from_replicas(sentinels: &Sentinels, key: &str) {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        wait_until("it is replicated", SOON, || redis.exists(key).unwrap());
        let set = |redis: &mut redis::Connection, value: &str| {
            let args = ["SET", "replica-read-only", value];
            redis::cmd("CONFIG").arg(&args).exec(redis).unwrap();
        };
        set(&mut redis, "no");
        let () = redis.del(key).unwrap();
        set(&mut redis, "yes");
    }
}

/// The replicas have again what `keys` were then: as if they had heard nothing since.
fn put_back_on_replicas(sentinels: &Sentinels, keys: &[(String, Vec<u8>)]) {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        let set = |redis: &mut redis::Connection, value: &str| {
            let args = ["SET", "replica-read-only", value];
            redis::cmd("CONFIG").arg(&args).exec(redis).unwrap();
        };
        set(&mut redis, "no");
        for (key, then) in keys {
            wait_until("it has heard of the end", SOON, || !redis.exists::<_, bool>(key).unwrap());
            let ttl = LONG.as_millis() as u64;
            redis::cmd("RESTORE").arg(key).arg(ttl).arg(then).exec(&mut redis).unwrap();
        }
        set(&mut redis, "yes");
    }
}

/// One of each kind.
fn locks(client: &Client, name: &str) -> [Box<dyn Lock>; 5] {
    let of = |kind: &str| format!("{name} {kind}");
    [
        Box::new(client.reentrant_lock(&of("reentrant"))),
        Box::new(client.fenced_lock(&of("fenced"))),
        Box::new(client.fair_lock(&of("fair"))),
        Box::new(client.read_write_lock(&of("read")).read().clone()),
        Box::new(client.read_write_lock(&of("write")).write().clone()),
    ]
}

fn wait_replicated(sentinels: &Sentinels, key: &str) {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        wait_until("it is replicated", SOON, || redis.exists(key).unwrap());
    }
}

// Who is the master.

#[test]
fn a_client_finds_the_master_and_says_who_knows_none() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let client = client_of(&sentinels);
    client.reentrant_lock("found").lock().unwrap().unlock().unwrap();
    assert!(Commands::so_far(sentinels.master()).scripts() > 0);

    let ports: Vec<_> = sentinels.sentinels().iter().map(Server::port).collect();
    // A Sentinel tells of the others, and one that is none is passed.
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
    let error = refused(&sentinels.url_of(&[1, 2]));
    assert!(error.to_string().contains("127.0.0.1:1 cannot be reached"), "{error}");
    assert!(error.to_string().contains("127.0.0.1:2 cannot be reached"), "{error}");
    assert!(error.is_transient() && error.kind() == ErrorKind::Redis, "{error}");
    assert!(begun.elapsed() < UNIT * 20, "{:?}", begun.elapsed());

    for url in ["redis-sentinel://:secret@127.0.0.1:1", "redis-sentinel://:secret@127.0.0.1/0"] {
        let error = refused(url);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(!format!("{error:#} {error:?}").contains("secret"), "{error}");
    }
}

#[test]
fn sentinels_and_servers_have_a_password_of_their_own() {
    let _bounded = bounded();
    let builder = Sentinels::builder().server_password("master1").sentinel_password("watch2");
    let Some(sentinels) = started(builder) else { return };
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
    // Another master wants it, too.
    let held = client.reentrant_lock("held").lock().unwrap();
    wait_replicated(&sentinels, "held");
    sentinels.fail_over();
    wait_until("it works on the new one", SOON, || {
        client.reentrant_lock("more").try_lock().is_ok_and(|guard| guard.is_some())
            && Commands::so_far(sentinels.master()).scripts() > 0
    });
    held.unlock().unwrap();
}

#[test]
fn sentinels_that_are_gone_or_stand_still_are_passed() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let [first, second, third] = sentinels.sentinels() else { panic!("three") };
    let master = sentinels.master();
    first.kill();
    second.pause();
    let begun = Instant::now();
    let client = client_of(&sentinels);
    client.reentrant_lock("found").lock().unwrap().unlock().unwrap();
    assert!(begun.elapsed() < SOON / 2, "{:?}", begun.elapsed());
    second.resume();
    drop(client);
    // It knew of none but the one that is gone by now: it has learned of the others.
    let client = builder(&sentinels.url_of(&[third.port()])).connect().unwrap();
    third.kill();
    kill_clients(master);
    client.reentrant_lock("learned").lock().unwrap().unlock().unwrap();
}

/// Whoever is connected has to connect anew.
fn kill_clients(server: &Server) {
    for kind in ["normal", "pubsub"] {
        let args = ["KILL", "TYPE", kind, "SKIPME", "yes"];
        redis::cmd("CLIENT").arg(&args).exec(&mut server.connection()).unwrap();
    }
}

#[test]
fn without_any_sentinel_the_master_that_lives_is_used_on() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
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

/// It was started anew, as its file has it, and has not heard of the others yet: it names the old
/// master, which says that it is one still.
#[test]
fn a_sentinel_that_knows_less_leads_nobody_back() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let [stale, others @ ..] = sentinels.sentinels() else { panic!("three") };
    let client = client_of(&sentinels);
    let old = sentinels.master();
    stale.kill();
    old.pause();
    sentinels.wait_switched(old);
    let new = sentinels.master();
    let lock = client.reentrant_lock("moved");
    lock.lock().unwrap().unlock().unwrap();
    // From here on nobody tells the old one, nor the Sentinel that knows only it.
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

// What becomes of locks.

/// How a master goes.
#[derive(Clone, Copy, Debug)]
enum End {
    Killed,
    Stopped,
    Replaced,
}

impl End {
    /// Returns when it began, and when the Sentinels have chosen another one.
    fn of(self, sentinels: &Sentinels) -> (Instant, Instant) {
        let old = sentinels.master();
        let begun = Instant::now();
        match self {
            Self::Killed => old.kill(),
            Self::Stopped => old.pause(),
            Self::Replaced => sentinels.fail_over(),
        }
        (begun, sentinels.wait_switched(old))
    }
}

/// What is held and known to the new master is kept, and renewed there; what it does not know is told
/// as lost; who waits goes on.
fn outlasts(end: End) {
    let Some(sentinels) = sentinels() else { return };
    // Its third is later than anything here.
    let (client, other) = (client_of(&sentinels), client_of(&sentinels));
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let unknown = client.reentrant_lock("unknown").lock().unwrap();
    let fixed = client.reentrant_lock("fixed").with_lease(LONG).lock().unwrap();
    let (kept_lost, unknown_lost, fixed_lost) = (losses(&kept), losses(&unknown), losses(&fixed));
    let wait = |name: &str| {
        let lock = other.reentrant_lock(name);
        let waiter = spawn(move || {
            lock.lock().unwrap().unlock().unwrap();
            Instant::now()
        });
        wait_in_line(sentinels.master(), name, 1);
        waiter
    };
    let (for_kept, for_unknown) = (wait("kept"), wait("unknown"));
    wait_until("some of the lease has gone", SOON, || kept.remaining() < LONG - UNIT * 5);
    wait_replicated(&sentinels, "kept");
    keep_from_replicas(&sentinels, "unknown");
    keep_from_replicas(&sentinels, "fixed");

    let (_, switched) = end.of(&sentinels);
    for lost in [unknown_lost, fixed_lost] {
        assert_eq!(lost.recv_timeout(SOON).unwrap(), LostReason::Revoked, "{end:?}");
    }
    assert!(switched.elapsed() < GOES_ON, "{end:?}: {:?}", switched.elapsed());
    assert!(!unknown.is_held() && !fixed.is_held());
    // Its waiter has it.
    let had = for_unknown.join();
    assert!(had.saturating_duration_since(switched) < GOES_ON, "{end:?}");
    assert_eq!(unknown.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    // Renewed on the new one.
    let new = sentinels.master();
    wait_until("it is renewed", SOON, || kept.remaining() > LONG - GOES_ON);
    assert!(kept.is_held() && kept_lost.try_recv().is_err());
    assert!(holder(&mut new.connection(), "kept").is_some());
    kept.unlock().unwrap();
    for_kept.join();
    wait_free(new, "kept", SOON);
}

#[test]
fn locks_outlast_a_master_that_is_killed() {
    let _bounded = bounded();
    outlasts(End::Killed);
}

#[test]
fn locks_outlast_a_master_that_stands_still() {
    let _bounded = bounded();
    outlasts(End::Stopped);
}

#[test]
fn locks_outlast_a_master_that_is_replaced_on_command() {
    let _bounded = bounded();
    outlasts(End::Replaced);
}

/// The old master lives and takes writes: nobody can make a replica of it, or cuts its clients off.
#[test]
fn once_another_master_is_known_the_old_one_grants_nothing() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let client = client_of(&sentinels);
    let old = sentinels.master();
    // Lanes, the renewer's connection and the subscriber's are all open.
    let guard = client.reentrant_lock("held").lock().unwrap();
    let waiting = client.clone();
    let waiter = spawn(move || drop(waiting.reentrant_lock("waited").lock().unwrap()));
    waiter.join();
    wait_replicated(&sentinels, "held");
    let rules = ["SETUSER", "default", "-replicaof", "-slaveof", "-client"];
    redis::cmd("ACL").arg(&rules).exec(&mut old.connection()).unwrap();
    sentinels.fail_over();
    let new = sentinels.master();
    wait_until("the new one is used", SOON, || {
        // One that the old one granted just now may be lost, and is told so.
        let _told = client.reentrant_lock("new").lock().unwrap().unlock();
        Commands::so_far(new).scripts() > 0
    });
    let before = Commands::so_far(old).of_locks();
    for at in 0..50 {
        client.reentrant_lock(&format!("lock {at}")).lock().unwrap().unlock().unwrap();
    }
    assert_eq!(Commands::so_far(old).of_locks(), before);
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut old.connection()).unwrap();
    assert_eq!(role[0], redis::Value::BulkString(b"master".to_vec()), "the test shows nothing");
    guard.unlock().unwrap();
}

/// The old master answered the release, and the new one has not heard of it.
#[test]
fn what_was_given_back_to_the_old_master_alone_is_given_back_to_the_new_one() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let (client, other) = (client_of(&sentinels), client_of(&sentinels));
    let given_back = locks(&client, "given back");
    let mut master = sentinels.master().connection();
    let mut then: Vec<(String, Vec<u8>)> = Vec::new();
    for lock in &given_back {
        let guard = lock.lock().unwrap();
        // With the timeout of who reads.
        let keys: Vec<String> = master.keys(format!("*{}*", lock.name())).unwrap();
        for key in keys.into_iter().filter(|key| !key.contains("token")) {
            let value = redis::cmd("DUMP").arg(&key).query(&mut master).unwrap();
            then.push((key, value));
        }
        guard.unlock().unwrap();
    }
    assert_eq!(then.len(), 6, "{then:?}");
    // What somebody has stays, in whatever way it was taken.
    let kept = [locks(&client, "locked"), locks(&client, "tried")].map(|locks| {
        locks.map(|lock| {
            let tried = lock.name().starts_with("tried");
            let guard = if tried { lock.try_lock().unwrap() } else { Some(lock.lock().unwrap()) };
            wait_replicated(&sentinels, lock.name());
            (lock, guard.unwrap())
        })
    });
    put_back_on_replicas(&sentinels, &then);
    sentinels.fail_over();
    let takers = locks(&other, "given back").map(|lock| {
        // (A reader may have it beside others.)
        let lock: Box<dyn Lock> = match lock.name() {
            name @ "given back read" => Box::new(other.read_write_lock(name).write().clone()),
            _ => lock,
        };
        spawn(move || {
            let guard = lock.try_lock_for(GOES_ON).unwrap();
            guard.map(drop).ok_or_else(|| lock.name().to_owned())
        })
    });
    for taker in takers {
        taker.join().unwrap();
    }
    for (lock, guard) in kept.into_iter().flatten() {
        assert!(guard.is_held(), "{}: {:?}", lock.name(), guard.state());
        guard.unlock().unwrap();
    }
}

/// Longer than any call waits for a connection or a reply.
#[test]
fn a_wait_outlasts_a_failover_that_is_slower_than_a_call() {
    let _bounded = bounded();
    let Some(sentinels) = started(Sentinels::builder().down_after(UNIT * 25)) else { return };
    let patient = || impatient(&sentinels.url());
    let hasty = patient().failover_timeout(Duration::ZERO).connect().unwrap();
    let client = patient().connect().unwrap();
    let master = sentinels.master();
    let held = client.reentrant_lock("held").with_lease(UNIT * 40).lock_owned().unwrap();
    let permits = client.semaphore("permits");
    assert!(permits.try_set_permits(0).unwrap());
    let wait = |client: &Client, name: &str| {
        let lock = client.reentrant_lock(name);
        spawn(move || lock.lock().map(drop))
    };
    let other = patient().connect().unwrap();
    let waiters = [wait(&other, "held"), wait(&other, "held")];
    let acquirer = spawn(move || permits.acquire().map(drop));
    let together = ["first", "second", "third"].map(|name| client.reentrant_lock(name));
    let fails = wait(&hasty, "held");
    wait_in_line(master, "held", 2);
    wait_replicated(&sentinels, "held");
    std::mem::forget(held);
    let begun = Instant::now();
    master.kill();
    let error = fails.join().unwrap_err();
    assert!(error.is_transient(), "{error}");
    // A call that does not wait has its own limit.
    let error = client.reentrant_lock("now").try_lock().map(drop).unwrap_err();
    assert!(error.is_transient(), "{error}");
    // Who waits until a time has the trouble that ended it.
    let error = client.reentrant_lock("soon").try_lock_for(UNIT).map(drop).unwrap_err();
    assert!(error.is_transient(), "{error}");
    let taker = spawn(move || {
        let [first, second, third] = &together;
        MultiLock::new(&[first, second, third]).unwrap().lock().map(drop)
    });
    sentinels.wait_switched(master);
    assert!(begun.elapsed() > IMPATIENT * 2, "the test shows nothing");
    for waiter in waiters {
        waiter.join().unwrap();
    }
    wait_until("permits can be given", SOON, || client.semaphore("permits").add_permits(1).is_ok());
    acquirer.join().unwrap();
    taker.join().unwrap();
}

#[test]
fn a_wait_on_a_condition_outlasts_a_failover() {
    let _bounded = bounded();
    let Some(sentinels) = started(Sentinels::builder().down_after(UNIT * 20)) else { return };
    let client = impatient(&sentinels.url()).connect().unwrap();
    let lock = client.reentrant_lock("lock");
    let changed = lock.new_condition("changed");
    let (lock_again, changed_again) = (lock.clone(), changed.clone());
    let waiter = spawn(move || {
        let guard = lock_again.lock().unwrap();
        changed_again.wait(&guard).map(|_| guard.is_held())
    });
    let mut redis = sentinels.master().connection();
    wait_until("it waits", SOON, || {
        redis.exists("redlatch_condition:{lock}:changed:7").unwrap() && !lock.is_locked().unwrap()
    });
    wait_replicated(&sentinels, "redlatch_condition:{lock}:changed:7");
    let begun = Instant::now();
    End::Killed.of(&sentinels);
    assert!(begun.elapsed() > IMPATIENT * 2, "the test shows nothing");
    assert!(!waiter.is_finished());
    let guard = lock.lock().unwrap();
    changed.notify_all().unwrap();
    guard.unlock().unwrap();
    assert!(waiter.join().unwrap());
}

/// What was sent to a server that is a replica by now goes to the master in the same call.
#[test]
fn a_call_that_a_replica_refuses_asks_for_the_master_anew() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let client = client_of(&sentinels);
    let lock = client.reentrant_lock("moved");
    lock.lock().unwrap().unlock().unwrap();
    let old = sentinels.master();
    // Nothing is heard: no Sentinel says anything while the roles change, by hand.
    sentinels.sentinels().iter().for_each(Server::pause);
    let new = sentinels.servers().iter().find(|it| it.port() != old.port()).unwrap();
    let replica_of = |server: &Server, of: &[&str]| {
        redis::cmd("REPLICAOF").arg(of).exec(&mut server.connection()).unwrap();
    };
    replica_of(new, &["NO", "ONE"]);
    replica_of(old, &["127.0.0.1", &new.port().to_string()]);
    let call = spawn(move || lock.lock().map(drop));
    wait_until("the replica refuses it", SOON, || {
        let stats: String =
            redis::cmd("INFO").arg("errorstats").query(&mut old.connection()).unwrap();
        stats.contains("errorstat_READONLY")
    });
    sentinels.sentinels().iter().for_each(Server::resume);
    // Whichever of the two the Sentinels make the master again, or keep.
    call.join().unwrap();
}

#[test]
fn nothing_is_left_of_a_client_of_sentinels() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let client = client_of(&sentinels);
    assert!(thread_names().iter().any(|name| name == "redlatch-sentin"), "{:?}", thread_names());
    // Also while there is no master, nor a Sentinel that answers.
    let master = sentinels.master();
    sentinels.sentinels().iter().for_each(Server::pause);
    master.pause();
    let lock = client.reentrant_lock("held");
    let waiter = spawn(move || lock.lock().map(drop).unwrap_err());
    waiter.wait_asleep();
    let begun = Instant::now();
    client.shutdown();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    waiter.join();
}

/// Only the Sentinels' words are missing: what they know is asked for.
#[test]
fn a_failover_is_found_out_where_it_may_not_be_heard_of() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    for sentinel in sentinels.sentinels() {
        let rules = ["SETUSER", "default", "-subscribe"];
        redis::cmd("ACL").arg(&rules).exec(&mut sentinel.connection()).unwrap();
    }
    let client = client_of(&sentinels);
    let lock = client.reentrant_lock("held");
    let guard = lock.lock().unwrap();
    let lost = losses(&guard);
    wait_replicated(&sentinels, "held");
    keep_from_replicas(&sentinels, "held");
    // The old one lives on, and nothing is asked of it.
    sentinels.fail_over();
    assert_eq!(lost.recv_timeout(GOES_ON).unwrap(), LostReason::Revoked);
}

/// Behind a grant that too few replicas had, the wait goes on if there was an outage meanwhile.
#[test]
fn a_fair_waiter_whom_replicas_failed_stands_in_line_once_and_is_told() {
    let _bounded = bounded();
    let Some(sentinels) = started(Sentinels::builder().down_after(LONG)) else { return };
    let (client, other) = (client_of(&sentinels), client_of(&sentinels));
    let failed = impatient(&sentinels.url()).replica_acks(1, UNIT * 5).connect().unwrap();
    let master = sentinels.master();
    let probe = || failed.reentrant_lock("probe").try_lock();
    let in_line = || -> Vec<String> {
        master.connection().lrange("redisson_lock_queue:{fair}", 0, -1).unwrap()
    };
    let wait_in_line = |places| wait_until("so many wait", SOON, || in_line().len() == places);
    let held = client.fair_lock("fair").lock_owned().unwrap();
    let lock = failed.fair_lock("fair");
    let (had, go_on) = (mpsc::channel(), mpsc::channel::<()>());
    let waiter = spawn(move || lock.lock().map(|guard| had.0.send(guard.is_held()).unwrap()));
    wait_in_line(1);
    // It sleeps over the outage: what it asked in it would be another wait, begun too late.
    waiter.wait_queued();
    let behind = other.fair_lock("fair");
    let behind = spawn(move || {
        let guard = behind.lock().unwrap();
        go_on.1.recv().unwrap();
        guard.unlock().unwrap();
    });
    wait_in_line(2);
    master.pause();
    assert!(probe().is_err());
    master.resume();
    wait_until("it is over", SOON, || probe().is_ok());

    sentinels.replicas().iter().for_each(|replica| replica.pause());
    held.unlock().unwrap();
    // The one behind has it, and this one stands behind that.
    wait_until("it was given back", SOON, || in_line().len() == 1 && !behind.is_finished());
    let first = in_line();
    wait_until("it stands anew", SOON, || {
        let now = in_line();
        assert!(now.len() <= 1, "twice: {now:?}");
        assert!(!waiter.is_finished(), "its wait has ended");
        now.len() == 1 && now != first
    });
    sentinels.replicas().iter().for_each(|replica| replica.resume());
    wait_until("replicas keep up", SOON, || probe().is_ok());
    go_on.0.send(()).unwrap();
    assert_eq!(had.1.recv_timeout(SOON), Ok(true));
    waiter.join().unwrap();
    behind.join();
    wait_until("nobody has it, or waits", SOON, || {
        in_line().is_empty() && holder(&mut master.connection(), "fair").is_none()
    });
}

/// As a service has it that lets nobody look into it.
#[test]
fn a_failover_is_followed_without_the_right_to_look_into_the_servers() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let rules = ["SETUSER", "app", "on", ">word", "~*", "&*", "+@all", "-info", "-role", "-client"];
    for server in sentinels.servers() {
        redis::cmd("ACL").arg(&rules).arg("-config").exec(&mut server.connection()).unwrap();
    }
    let client = builder(&sentinels.url()).credentials("app", "word").connect().unwrap();
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let unknown = client.reentrant_lock("unknown").lock().unwrap();
    let lost = losses(&unknown);
    wait_replicated(&sentinels, "kept");
    keep_from_replicas(&sentinels, "unknown");
    End::Killed.of(&sentinels);
    assert_eq!(lost.recv_timeout(GOES_ON).unwrap(), LostReason::Revoked);
    client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
    kept.unlock().unwrap();
}

// Several processes.

/// Takes the lock again and again, and says when it had it, in microseconds.
#[test]
fn process() {
    let Some(job) = Job::from_env() else { return };
    let client = builder(job.arg(0)).connect().unwrap();
    let lock = client.reentrant_lock("contended");
    job.say("ready");
    let _go = job.wait_line();
    loop {
        let outcome = lock.lock().map(|guard| {
            let since = now();
            thread::sleep(Duration::from_millis(2));
            let until = now();
            (since, until, guard.unlock())
        });
        match outcome {
            Ok((since, until, Ok(()))) => job.say(&format!("had {since} {until} kept")),
            Ok((since, until, Err(error))) => {
                job.say(&format!("had {since} {until} lost {error:#}"));
            }
            Err(error) => job.say(&format!("failed {error:#}")),
        }
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// A time in which a process had the lock.
#[derive(Debug)]
struct Had {
    since: u128,
    until: u128,
    kept: bool,
}

/// What processes say.
struct Processes {
    workers: Vec<Worker>,
    had: Vec<Had>,
    failed: Vec<String>,
}

impl Processes {
    const COUNT: usize = 3;

    fn start(sentinels: &Sentinels) -> Self {
        let url = sentinels.url();
        let spawn = |_| Worker::spawn_test("process", "process", &[&url]);
        let mut workers: Vec<_> = (0..Self::COUNT).map(spawn).collect();
        for worker in &mut workers {
            worker.expect_line("ready", SOON);
        }
        workers.iter_mut().for_each(|worker| worker.send_line("go"));
        Self { workers, had: Vec::new(), failed: Vec::new() }
    }

    /// Reads until each process has had the lock after that time; when that was.
    fn wait_all_since(&mut self, time: u128) -> u128 {
        let mut first = [None; Self::COUNT];
        let until = Instant::now() + SOON * 2;
        while first.contains(&None) {
            assert!(Instant::now() < until, "{first:?} went on, and said {:?}", self.failed);
            for (worker, first) in self.workers.iter_mut().zip(&mut first) {
                while let Some(line) = worker.try_line(UNIT / 100) {
                    let words: Vec<_> = line.splitn(5, ' ').collect();
                    match words[..] {
                        ["had", since, till, how, ..] => {
                            let (since, till) = (since.parse().unwrap(), till.parse().unwrap());
                            if since > time {
                                first.get_or_insert(since);
                            }
                            let kept = how == "kept";
                            self.had.push(Had { since, until: till, kept });
                        }
                        _ => self.failed.push(line),
                    }
                    if first.is_some() {
                        break;
                    }
                }
            }
        }
        first.into_iter().flatten().max().unwrap()
    }

    /// Those who were told that they had it to the end had it alone.
    fn check(&mut self) {
        self.had.sort_by_key(|had| had.since);
        let kept: Vec<_> = self.had.iter().filter(|had| had.kept).collect();
        for pair in kept.windows(2) {
            assert!(pair[0].until <= pair[1].since, "two had it: {pair:?}");
        }
        assert_eq!(self.failed, Vec::<String>::new(), "a wait failed");
    }
}

/// One failover: the Sentinels' part of it, and how much later all processes had gone on.
fn fail_over(sentinels: &Sentinels, processes: &mut Processes, end: End) -> [Duration; 2] {
    processes.wait_all_since(now());
    let old = sentinels.master();
    let began = now();
    let (begun, switched) = end.of(sentinels);
    let theirs = switched - begun;
    // What was had before the switch was had of the old one.
    let from = if matches!(end, End::Replaced) { began + theirs.as_micros() } else { began };
    let all = processes.wait_all_since(from);
    let ours = Duration::from_micros(u64::try_from(all.saturating_sub(began)).unwrap());
    if matches!(end, End::Stopped) {
        old.resume();
    }
    [theirs, ours.saturating_sub(theirs)]
}

#[test]
fn waiting_processes_go_on_and_no_two_keep_the_lock() {
    let _bounded = bounded();
    let Some(sentinels) = sentinels() else { return };
    let mut processes = Processes::start(&sentinels);
    for end in [End::Killed, End::Replaced] {
        let old = sentinels.master().port();
        let [theirs, later] = fail_over(&sentinels, &mut processes, end);
        println!("{end:?}: the Sentinels took {theirs:?}, all went on {later:?} later");
        assert!(later < GOES_ON, "{end:?}: {later:?}");
        let old = sentinels.servers().iter().find(|server| server.port() == old).unwrap();
        sentinels.revive(old);
    }
    processes.check();
}

/// `REDLATCH_SOAK=600 cargo test --test sentinel failovers`: so many seconds of them.
#[test]
fn failovers_again_and_again() {
    let Some(seconds) = env::var("REDLATCH_SOAK").ok().and_then(|it| it.parse().ok()) else {
        return;
    };
    let Some(sentinels) = sentinels() else { return };
    let mut processes = Processes::start(&sentinels);
    let begun = Instant::now();
    let mut later = Vec::new();
    for end in [End::Killed, End::Stopped, End::Replaced].into_iter().cycle() {
        let old = sentinels.master().port();
        let [theirs, ours] = fail_over(&sentinels, &mut processes, end);
        println!("{end:?}: the Sentinels took {theirs:?}, all went on {ours:?} later");
        later.push(ours);
        let old = sentinels.servers().iter().find(|server| server.port() == old).unwrap();
        sentinels.revive(old);
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
    later.sort();
    println!(
        "{} failovers: median {:?}, longest {:?}; lost {}, {} waits failed: {:?}",
        later.len(),
        later[later.len() / 2],
        later[later.len() - 1],
        processes.had.iter().filter(|had| !had.kept).count(),
        processes.failed.len(),
        processes.failed
    );
    processes.check();
}
