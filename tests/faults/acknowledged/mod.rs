//! Locks that are granted only when replicas have the grant: `replica_acks`.

mod hand_off;
mod leases;
mod permits;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Commands, LONG_LEASE, MANY_THREADS, Running, TIME_UNIT, TIMEOUT, User, client, holder,
    once_within, pttl, server, spawn, wait_until,
};
use redis::Commands as _;
use redlatch::{
    Client, ClientBuilder, Error, ErrorKind, HoldState, Lock, LockGuard, LostReason, MultiLock,
};
use redlatch_testkit::{Action, Direction, Proxy, Server};

const WITHIN: Duration = Duration::from_millis(3 * TIME_UNIT.as_millis() as u64);

/// A server and its replica, which gets all commands through a network with a small delay.
struct Pair {
    replica: Server,
    network: Proxy,
    master: Server,
}

impl Pair {
    fn start(delay: Duration) -> Self {
        let master = server();
        let network = Proxy::before(&master);
        let replica = Server::builder().replica_behind(&network).start().unwrap();
        network.set_delay(delay);
        Self { replica, network, master }
    }

    /// Returns the builder of a client whose wait for the replica has no limit.
    fn patient(&self) -> ClientBuilder {
        Client::builder(&self.master.url()).watchdog_timeout(LONG_LEASE).replica_acks(1, LONG_LEASE)
    }

    /// Returns the builder of a client whose wait for the replica is short.
    fn impatient(&self) -> ClientBuilder {
        settings(&self.master.url())
    }

    /// Cuts the replica off, or connects it again. The master always counts it as a replica.
    fn cut_off(&self, cut: bool) {
        if cut { self.network.freeze() } else { self.network.thaw() }
    }

    fn is_free(&self, name: &str) -> bool {
        !self.master.connection().exists::<_, bool>(name).unwrap()
    }

    /// Returns the holder, if the master and the replica agree on it.
    fn agreed(&self, name: &str) -> Option<(String, String)> {
        let held = holder(&mut self.master.connection(), name);
        let known = holder(&mut self.replica.connection(), name);
        held.filter(|held| known.as_ref() == Some(held))
    }
}

fn settings(url: &str) -> ClientBuilder {
    let client = Client::builder(url).watchdog_timeout(LONG_LEASE).replica_acks(1, WITHIN);
    client.failover_timeout(Duration::ZERO)
}

const KINDS: [&str; 5] = ["reentrant", "fenced", "fair", "read", "write"];

/// Returns a lock of a kind, with this lease if there is one.
fn lock_of(client: &Client, kind: &str, name: &str, lease: Option<Duration>) -> Box<dyn Lock> {
    let name = format!("{name} {kind}");
    macro_rules! on_terms {
        ($lock:expr) => {
            match lease {
                None => Box::new($lock.clone()),
                Some(lease) => Box::new($lock.with_lease(lease)),
            }
        };
    }
    match kind {
        "reentrant" => on_terms!(client.reentrant_lock(&name)),
        "fenced" => on_terms!(client.fenced_lock(&name)),
        "fair" => on_terms!(client.fair_lock(&name)),
        "read" => on_terms!(client.read_write_lock(&name).reader()),
        _ => on_terms!(client.read_write_lock(&name).writer()),
    }
}

/// Each request takes the whole time for which it waits for replicas.
#[test]
fn a_wait_ends_though_each_request_takes_longer_than_the_failover_timeout() {
    let server = server();
    let client =
        Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).replica_acks(1, WITHIN);
    let client = client.failover_timeout(WITHIN / 2).connect().unwrap();
    for kind in KINDS {
        let error = lock_of(&client, kind, "slow", None).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooFewReplicas, "{kind}: {error}");
    }
    let error = client.expirable_semaphore("slow").with_permits(1).acquire().unwrap_err();
    assert!(error.kind().is_server_trouble(), "{error}");
}

#[test]
fn a_script_without_enough_replicas_has_run_and_says_so() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().connect().unwrap();
    let guard = taken(&client.reentrant_lock("scripts"));
    let add = || guard.command("INCR", &["number"], &[]);
    wait_until("the replica keeps up", TIMEOUT, || add().is_ok());
    let before: i64 = pair.master.connection().get("number").unwrap();
    pair.cut_off(true);
    let error = add().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooFewReplicas, "{error}");
    assert!(error.outcome_unknown() && error.to_string().contains("has run"), "{error}");
    assert_eq!(pair.master.connection().get::<_, i64>("number").unwrap(), before + 1);
    pair.cut_off(false);
}

/// Returns a hold that keeps other threads out of the lock of this kind and name.
fn barrier(client: &Client, kind: &str, name: &str) -> Box<dyn Lock> {
    match kind {
        "read" => Box::new(client.read_write_lock(&format!("{name} read")).writer().clone()),
        _ => lock_of(client, kind, name, None),
    }
}

fn locks(client: &Client, name: &str) -> [(&'static str, Box<dyn Lock>); 5] {
    KINDS.map(|kind| (kind, lock_of(client, kind, name, None)))
}

/// Takes a lock when the replica has all data. After an absence, the replica may need a moment.
#[track_caller]
fn taken(lock: &dyn Lock) -> LockGuard {
    let mut guard = None;
    wait_until("the replica keeps up", TIMEOUT, || match lock.lock() {
        Ok(taken) => {
            guard = Some(taken);
            true
        }
        Err(error) => {
            too_few(&error);
            false
        }
    });
    guard.unwrap()
}

/// Waits until the lock's queue has this many entries, the last of which is this thread's entry.
fn wait_behind<T>(pair: &Pair, kind: &str, name: &str, places: u64, waiter: &Running<T>) {
    let queue = match kind {
        "fair" => "redisson_lock_queue",
        "read" | "write" => "redlatch_rwlock_queue",
        _ => "redlatch_queue",
    };
    let mut connection = pair.master.connection();
    wait_until(&format!("{places} stand in line for {name:?}"), TIMEOUT, || {
        connection.llen::<_, u64>(format!("{queue}:{{{name}}}")).unwrap() >= places
    });
    waiter.wait_queued();
}

#[track_caller]
fn too_few(error: &Error) {
    let said = error.to_string();
    assert_eq!(error.kind(), ErrorKind::TooFewReplicas, "{said}");
    assert!(error.is_transient() && !error.outcome_unknown(), "{said}");
    assert!(said.contains("only 0 of 1 replicas acknowledged it within 300ms"), "{said}");
    assert!(said.contains("nothing is held"), "{said}");
}

#[test]
fn a_granted_lock_is_on_the_replica_too() {
    let pair = Pair::start(TIME_UNIT / 10);
    let client = pair.patient().connect().unwrap();
    // Each call is made twice. The first time, the server does not know the script.
    for round in 0..2 {
        for (kind, lock) in locks(&client, &format!("round {round}")) {
            let name = lock.name();
            let guard = lock.lock().unwrap();
            assert!(pair.agreed(name).is_some(), "{kind}: lock");
            guard.unlock().unwrap();
            let guard = lock.try_lock().unwrap().into_option().unwrap();
            assert!(pair.agreed(name).is_some(), "{kind}: try_lock");
            guard.unlock().unwrap();
            let guard = lock.lock_owned().unwrap();
            assert!(pair.agreed(name).is_some(), "{kind}: lock_owned");
            guard.unlock().unwrap();
        }
        let several = locks(&client, "several");
        let several: Vec<&dyn Lock> = several.iter().map(|(_, lock)| &**lock).collect();
        let several = MultiLock::new(&several).unwrap();
        let guard = several.lock().unwrap();
        for name in several.names() {
            assert!(pair.agreed(name).is_some(), "one of several: {name}");
        }
        guard.unlock().unwrap();
    }
}

#[test]
fn too_few_replicas_are_an_error_and_nothing_is_held() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().connect().unwrap();
    for (kind, lock) in locks(&client, "stopped") {
        taken(&*lock).unlock().unwrap();
        pair.replica.pause();
        let begun = Instant::now();
        let error = lock.lock().unwrap_err();
        let took = begun.elapsed();
        too_few(&error);
        assert!(took >= WITHIN, "{kind}: {took:?}");
        assert!(pair.is_free(lock.name()), "{kind}: it stays on the master");
        assert_eq!(lock.hold_count(), 0, "{kind}");
        too_few(&lock.try_lock().unwrap_err());
        assert!(pair.is_free(lock.name()), "{kind}: it stays on the master");
        too_few(&lock.try_lock_for(LONG_LEASE).unwrap_err());
        assert!(pair.is_free(lock.name()), "{kind}: it stays on the master");

        pair.replica.resume();
        let guard = taken(&*lock);
        assert!(pair.agreed(lock.name()).is_some(), "{kind}");
        guard.unlock().unwrap();
    }
    pair.replica.pause();
    let several = locks(&client, "several");
    let several: Vec<&dyn Lock> = several.iter().map(|(_, lock)| &**lock).collect();
    let several = MultiLock::new(&several).unwrap();
    let error = several.lock().unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    for name in several.names() {
        assert!(pair.is_free(name), "one of several: {name}");
    }
    pair.replica.resume();
    wait_until("the replica keeps up", TIMEOUT, || several.lock().is_ok());
}

#[test]
fn a_server_without_replicas_has_none_that_acknowledge() {
    let server = server();
    let lock = settings(&server.url()).connect().unwrap().reentrant_lock("alone");
    too_few(&lock.lock().unwrap_err());
    // With one replica, a client that requires one acknowledgement gets the lock, and a client that
    // requires two gets an error.
    let replica = Server::builder().replica_of(&server).start().unwrap();
    taken(&lock).unlock().unwrap();
    let both = settings(&server.url()).replica_acks(2, WITHIN).connect().unwrap();
    let said = both.reentrant_lock("alone").lock().unwrap_err().to_string();
    assert!(said.contains("only 1 of 2 replicas"), "{said}");
    drop(replica);
}

/// Locks and permits of each kind are requested while no replica answers for a moment.
#[test]
fn waits_go_on_while_replicas_are_away_and_no_longer_than_they_may() {
    let pair = Pair::start(Duration::ZERO);
    let enduring = |limit| pair.impatient().failover_timeout(limit).connect().unwrap();
    let (client, limit) = (enduring(LONG_LEASE), TIME_UNIT * 15);
    assert!(client.semaphore("permits").try_set_permits(1).unwrap());
    let away = |redis: &mut redis::Connection, away: bool| {
        let least = if away { "2" } else { "0" };
        redis::cmd("CONFIG").arg(&["SET", "min-replicas-to-write", least]).exec(redis).unwrap();
    };
    let mut redis = pair.master.connection();
    for refused in [false, true] {
        let lose = |redis: &mut _| if refused { away(redis, true) } else { pair.cut_off(true) };
        let find = |redis: &mut _| if refused { away(redis, false) } else { pair.cut_off(false) };
        lose(&mut redis);
        let mut waiters: Vec<_> = locks(&client, "away")
            .into_iter()
            // Each call has its own thread. One thread would wait for one lock after the other.
            .map(|(kind, lock)| (kind, spawn(move || lock.lock().map(drop))))
            .collect();
        let permits = client.semaphore("permits");
        waiters.push(("permits", spawn(move || permits.acquire().map(drop))));
        // Time must pass here, so that each wait notices the outage.
        thread::sleep(WITHIN * 3);
        if let Some(ended) = waiters.iter().position(|(_, waiter)| waiter.is_finished()) {
            let (kind, waiter) = waiters.swap_remove(ended);
            panic!("{kind}, refused: {refused}: {:?}", waiter.join());
        }
        find(&mut redis);
        for (kind, waiter) in waiters {
            waiter.join().unwrap_or_else(|error| panic!("{kind}, refused: {refused}: {error:#}"));
        }

        let lock = enduring(limit).reentrant_lock("gone");
        lose(&mut redis);
        let begun = Instant::now();
        let error = lock.lock().unwrap_err();
        assert!(begun.elapsed() >= limit, "{:?}: {error}", begun.elapsed());
        let said = if refused { "refuses EVALSHA: " } else { "only 0 of 1 replicas" };
        assert!(format!("{error:#}").contains(said), "{error:#}");
        assert!(error.is_transient(), "{error}");
        find(&mut redis);
    }
}

#[test]
fn waiters_of_one_process_hear_of_a_silent_replica_together() {
    const THREADS: usize = MANY_THREADS * 2;
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().connect().unwrap();
    let lock = client.reentrant_lock("together");
    let guard = taken(&lock);
    let waiters: Vec<_> = (0..THREADS)
        .map(|_| {
            let lock = lock.clone();
            spawn(move || lock.lock().map(drop).unwrap_err())
        })
        .collect();
    waiters.iter().for_each(Running::wait_asleep);
    pair.replica.pause();
    // The turn of the process is over, so the process gives the lock back to the server.
    let begun = Instant::now();
    guard.unlock().unwrap();
    waiters.into_iter().for_each(|waiter| too_few(&waiter.join()));
    let took = begun.elapsed();
    assert!(took < TIMEOUT, "one after the other: {took:?}");
    assert!(pair.is_free("together"));
    pair.replica.resume();
    taken(&lock).unlock().unwrap();
}

/// A refusal changes nothing, so no replica needs to have it.
#[test]
fn a_refused_request_waits_for_no_replica() {
    let pair = Pair::start(Duration::ZERO);
    let (holder, patient) = (client(&pair.master), pair.patient().connect().unwrap());
    // A fair lock is left out: its refusal is a number, and its script may also grant the lock to
    // others.
    for kind in KINDS.into_iter().filter(|kind| *kind != "fair") {
        let (lock, barrier) =
            (lock_of(&patient, kind, "refused", None), barrier(&holder, kind, "refused"));
        // The first call checks the rights. After the second call, the server knows the script.
        lock.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
        lock.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
        pair.cut_off(true);
        let guard = barrier.lock().unwrap();
        let begun = Instant::now();
        assert!(lock.try_lock().unwrap().into_option().is_none());
        // With a wait for a replica, the call would take a minute.
        assert!(begun.elapsed() < TIMEOUT, "{kind}: {:?}", begun.elapsed());
        guard.unlock().unwrap();
        pair.cut_off(false);
        // If the client had sent a WAIT, its late reply must not be taken for the reply to this
        // call.
        lock.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_script_that_the_server_forgot_counts_when_it_has_run() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().connect().unwrap();
    for (kind, lock) in locks(&client, "forgotten") {
        taken(&*lock).unlock().unwrap();
        pair.cut_off(true);
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut pair.master.connection()).unwrap();
        let error = lock.lock().map(drop).expect_err(kind);
        too_few(&error);
        pair.cut_off(false);
        taken(&*lock).unlock().unwrap();
    }
}

#[test]
fn one_question_serves_all_threads_that_ask_together() {
    const THREADS: usize = 16;
    const TIMES: usize = 4;
    // The network is slow, so that all other threads send their requests while one request is in
    // flight, even on a busy machine.
    let pair = Pair::start(TIME_UNIT);
    let client = pair.patient().connections(1).connect().unwrap();
    client.reentrant_lock("warm").lock().unwrap().unlock().unwrap();
    let before = Commands::so_far(&pair.master);
    let threads: Vec<_> = (0..THREADS)
        .map(|at| {
            let lock = client.reentrant_lock(&format!("own {at}"));
            spawn(move || (0..TIMES).for_each(|_| drop(lock.lock().unwrap())))
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    let waits = Commands::so_far(&pair.master).of("wait") - before.of("wait");
    assert!(waits > 0);
    assert!(waits as usize <= THREADS * TIMES / 4, "{waits} for {} locks", THREADS * TIMES);
}

/// Each server of a quorum has its own time limit, which must include the wait for the server's
/// replicas only once.
#[test]
fn a_silent_server_of_a_quorum_costs_the_time_for_replicas_once() {
    const WITHIN: Duration = Duration::from_millis(20 * TIME_UNIT.as_millis() as u64);
    let pairs = [(); 2].map(|()| Pair::start(Duration::ZERO));
    let silent = Server::start().unwrap();
    let servers = pairs.iter().map(|pair| &pair.master).chain([&silent]);
    let clients: Vec<_> = servers
        .map(|server| {
            settings(&server.url()).watchdog_timeout(TIME_UNIT * 50).replica_acks(1, WITHIN)
        })
        .map(|builder| builder.response_timeout(LONG_LEASE).connect().unwrap())
        .collect();
    let locks: Vec<_> = clients.iter().map(|client| client.reentrant_lock("quorum")).collect();
    let locks: Vec<_> = locks.iter().map(|lock| lock as &dyn Lock).collect();
    for lock in &locks[..pairs.len()] {
        let works = || lock.lock().is_ok_and(|guard| guard.unlock().is_ok());
        wait_until("the replica keeps up", TIMEOUT, works);
    }
    let quorum = MultiLock::quorum(&locks).unwrap();
    once_within(WITHIN * 2, || {
        silent.pause();
        let begun = Instant::now();
        let guard = quorum.try_lock().unwrap().into_option().unwrap();
        let took = begun.elapsed();
        assert!(took >= WITHIN, "the test shows nothing: {took:?}");
        silent.resume();
        guard.unlock().unwrap();
        took
    });
}

#[test]
fn an_unusable_setting_is_an_error_of_connect() {
    let server = server();
    for (count, within, word) in [(0, WITHIN, "replica_acks is 0"), (1, Duration::ZERO, "1 ms")] {
        let builder = Client::builder(&server.url()).replica_acks(count, within);
        let error = builder.connect().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(word), "{error}");
    }
    let mut user = User::new(&server, "patient");
    user.set(&["-wait"]);
    let error = settings(user.url()).connect().map(drop).unwrap_err();
    assert!(error.to_string().contains("replica_acks needs WAIT"), "{error}");
    assert!(!error.is_transient() && !error.outcome_unknown(), "{error}");
    // If the user loses the right later, the call's error says so, and the client holds nothing.
    user.set(&["+wait"]);
    let client = settings(user.url()).connect().unwrap();
    user.set(&["-wait"]);
    let error = client.reentrant_lock("refused").lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("replica_acks needs WAIT"), "{error}");
    assert!(error.to_string().contains("nothing is held"), "{error}");
    assert!(!error.is_transient() && !error.outcome_unknown(), "{error}");
    assert!(!server.connection().exists::<_, bool>("refused").unwrap());
}

/// A client without the setting waits for no replica.
#[test]
fn a_client_without_the_setting_waits_for_no_replica() {
    let pair = Pair::start(Duration::ZERO);
    pair.cut_off(true);
    let client = client(&pair.master);
    let guard: LockGuard = client.reentrant_lock("alone").lock().unwrap();
    guard.unlock().unwrap();
    assert_eq!(Commands::so_far(&pair.master).of("wait"), 0);
    pair.cut_off(false);
}
