//! Locks that count only when replicas have them: `replica_acks`.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Commands, LONG, Running, SOON, UNIT, User, bounded, client, holder, pttl, real_server, spawn,
    wait_until,
};
use redis::Commands as _;
use redlatch::{
    Client, ClientBuilder, Error, ErrorKind, HoldState, Lock, LockGuard, LostReason, MultiLock,
};
use redlatch_testkit::{Action, Direction, Proxy, Server};

const WITHIN: Duration = Duration::from_millis(3 * UNIT.as_millis() as u64);
/// The server looks at its clock so often.
const TICK: Duration = Duration::from_millis(100);

/// A server with a replica that hears everything a little later.
struct Pair {
    replica: Server,
    network: Proxy,
    master: Server,
}

impl Pair {
    /// `None`: there is only a stand-in for a server.
    fn start(delay: Duration) -> Option<Self> {
        let master = real_server()?;
        let network = Proxy::before(&master);
        let replica = Server::builder().replica_behind(&network).start().unwrap();
        network.set_delay(delay);
        Some(Self { replica, network, master })
    }

    /// Of a client that waits for the replica for as long as that takes.
    fn patient(&self) -> ClientBuilder {
        Client::builder(&self.master.url()).watchdog_timeout(LONG).replica_acks(1, LONG)
    }

    /// Of one that does not wait for it for long.
    fn impatient(&self) -> ClientBuilder {
        settings(&self.master.url())
    }

    /// The replica hears nothing more, or again; the master still counts on it.
    fn cut_off(&self, cut: bool) {
        if cut { self.network.freeze() } else { self.network.thaw() }
    }

    fn is_free(&self, name: &str) -> bool {
        !self.master.connection().exists::<_, bool>(name).unwrap()
    }

    /// The holder, if master and replica agree.
    fn agreed(&self, name: &str) -> Option<(String, String)> {
        let held = holder(&mut self.master.connection(), name);
        let known = holder(&mut self.replica.connection(), name);
        held.filter(|held| known.as_ref() == Some(held))
    }
}

fn settings(url: &str) -> ClientBuilder {
    Client::builder(url).watchdog_timeout(LONG).replica_acks(1, WITHIN)
}

const KINDS: [&str; 5] = ["reentrant", "fenced", "fair", "read", "write"];

/// A lock of a kind, with this lease if there is one.
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
        "read" => on_terms!(client.read_write_lock(&name).read()),
        _ => on_terms!(client.read_write_lock(&name).write()),
    }
}

/// What keeps a lock of this kind and name from others.
fn barrier(client: &Client, kind: &str, name: &str) -> Box<dyn Lock> {
    match kind {
        "read" => Box::new(client.read_write_lock(&format!("{name} read")).write().clone()),
        _ => lock_of(client, kind, name, None),
    }
}

/// One of each kind, under this name.
fn locks(client: &Client, name: &str) -> [(&'static str, Box<dyn Lock>); 5] {
    KINDS.map(|kind| (kind, lock_of(client, kind, name, None)))
}

/// Takes a lock as soon as the replica keeps up: after it was away that may take a moment.
#[track_caller]
fn taken(lock: &dyn Lock) -> LockGuard {
    let mut guard = None;
    wait_until("the replica keeps up", SOON, || match lock.lock() {
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

/// Waits until so many stand in the lock's queue, this thread as the last one.
fn wait_behind<T>(pair: &Pair, kind: &str, name: &str, places: u64, waiter: &Running<T>) {
    let queue = match kind {
        "fair" => "redisson_lock_queue",
        "read" | "write" => "redlatch_rwlock_queue",
        _ => "redlatch_queue",
    };
    let mut connection = pair.master.connection();
    wait_until(&format!("{places} stand in line for {name:?}"), SOON, || {
        connection.llen::<_, u64>(format!("{queue}:{{{name}}}")).unwrap() >= places
    });
    waiter.wait_queued();
}

#[track_caller]
fn too_few(error: &Error) {
    let said = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Redis, "{said}");
    assert!(error.is_transient() && !error.outcome_unknown(), "{said}");
    assert!(said.contains("only 0 of 1 replicas acknowledged it within 300ms"), "{said}");
    assert!(said.contains("nothing is held"), "{said}");
}

#[test]
fn whoever_has_a_lock_has_it_on_the_replica_too() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(UNIT / 10) else { return };
    let client = pair.patient().connect().unwrap();
    // Each twice: the first time the server does not know the script.
    for round in 0..2 {
        for (kind, lock) in locks(&client, &format!("round {round}")) {
            let name = lock.name();
            let guard = lock.lock().unwrap();
            assert!(pair.agreed(name).is_some(), "{kind}: lock");
            guard.unlock().unwrap();
            let guard = lock.try_lock().unwrap().unwrap();
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
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let client = pair.impatient().connect().unwrap();
    for (kind, lock) in locks(&client, "stopped") {
        taken(&*lock).unlock().unwrap();
        pair.replica.pause();
        let begun = Instant::now();
        let error = lock.lock().unwrap_err();
        let took = begun.elapsed();
        too_few(&error);
        assert!(took >= WITHIN && took < WITHIN + TICK + SOON / 10, "{kind}: {took:?}");
        assert!(pair.is_free(lock.name()), "{kind}: it stays on the master");
        assert_eq!(lock.hold_count(), 0, "{kind}");
        too_few(&lock.try_lock().unwrap_err());
        assert!(pair.is_free(lock.name()), "{kind}: it stays on the master");
        too_few(&lock.try_lock_for(LONG).unwrap_err());
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
    wait_until("the replica keeps up", SOON, || several.lock().is_ok());
}

#[test]
fn a_server_without_replicas_has_none_that_acknowledge() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let lock = settings(&server.url()).connect().unwrap().reentrant_lock("alone");
    too_few(&lock.lock().unwrap_err());
    // More than there are.
    let replica = Server::builder().replica_of(&server).start().unwrap();
    taken(&lock).unlock().unwrap();
    let both = Client::builder(&server.url()).replica_acks(2, WITHIN).connect().unwrap();
    let said = both.reentrant_lock("alone").lock().unwrap_err().to_string();
    assert!(said.contains("only 1 of 2 replicas"), "{said}");
    drop(replica);
}

#[test]
fn those_of_a_process_who_wait_together_hear_of_it_together() {
    const THREADS: u32 = 8;
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
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
    // The turn is over: the lock goes back to the server.
    let begun = Instant::now();
    guard.unlock().unwrap();
    waiters.into_iter().for_each(|waiter| too_few(&waiter.join()));
    let took = begun.elapsed();
    assert!(took < WITHIN * (THREADS - 1), "one after the other: {took:?}");
    assert!(pair.is_free("together"));
    pair.replica.resume();
    taken(&lock).unlock().unwrap();
}

/// A refusal proves nothing that a replica must have.
#[test]
fn who_is_refused_waits_for_no_replica() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let (holder, patient) = (client(&pair.master), pair.patient().connect().unwrap());
    // (A fair lock's word for that is a number, which others' grants are, too.)
    for kind in KINDS.into_iter().filter(|kind| *kind != "fair") {
        let (lock, barrier) =
            (lock_of(&patient, kind, "refused", None), barrier(&holder, kind, "refused"));
        // Its script is known then.
        lock.try_lock().unwrap().unwrap().unlock().unwrap();
        pair.cut_off(true);
        let guard = barrier.lock().unwrap();
        let begun = Instant::now();
        assert!(lock.try_lock().unwrap().is_none());
        assert!(begun.elapsed() < SOON, "{kind}: {:?}", begun.elapsed());
        guard.unlock().unwrap();
        pair.cut_off(false);
        // What the server still waits for is no other's answer.
        lock.try_lock().unwrap().unwrap().unlock().unwrap();
    }
}

/// Processes hand each other the lock: the grant was written over another's connection.
#[test]
fn a_lock_that_is_handed_on_is_on_the_replica_before_it_counts() {
    const CLIENTS: usize = 3;
    const TIMES: usize = 12;
    let _bounded = bounded();
    let Some(pair) = Pair::start(UNIT / 20) else { return };
    let pair = Arc::new(pair);
    // (Readers have it together: see below.)
    for kind in KINDS.into_iter().filter(|kind| *kind != "read") {
        let inside = Arc::new(AtomicBool::new(false));
        let client = || pair.patient().connect().unwrap();
        let clients: Vec<_> = (0..CLIENTS).map(|_| client()).collect();
        // Two threads of each process.
        let threads: Vec<_> = clients
            .iter()
            .chain(&clients)
            .map(|client| {
                let (pair, inside) = (Arc::clone(&pair), Arc::clone(&inside));
                let lock = lock_of(client, kind, "handed", None);
                spawn(move || {
                    for _ in 0..TIMES {
                        let guard = lock.lock().unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        assert!(pair.agreed(lock.name()).is_some(), "{kind}");
                        assert!(guard.is_held());
                        inside.store(false, Ordering::SeqCst);
                        guard.unlock().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(Running::join);
    }
}

/// A grant to one reader is one to all behind it, of which each asks for itself.
#[test]
fn readers_that_are_let_in_together_are_all_on_the_replica() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(UNIT / 20) else { return };
    let pair = Arc::new(pair);
    let client = || pair.patient().connect().unwrap();
    let writer = client();
    for _ in 0..3 {
        let guard = writer.read_write_lock("prices").write().lock().unwrap();
        let readers: Vec<_> = (1..=3)
            .map(|place| {
                let (at, client) = (Arc::clone(&pair), client());
                let reader = spawn(move || {
                    let guard = client.read_write_lock("prices").read().lock().unwrap();
                    let fields = |server: &Server| -> Vec<(String, String)> {
                        server.connection().hgetall("prices").unwrap()
                    };
                    let known = fields(&at.replica);
                    let own = |(field, _): &(String, String)| {
                        let timeout = format!("{{prices}}:{field}:rwlock_timeout:1");
                        field != "mode" && at.replica.connection().exists(timeout).unwrap()
                    };
                    assert!(known.contains(&("mode".to_owned(), "read".to_owned())), "{known:?}");
                    assert!(known.iter().any(own), "{known:?}");
                    assert!(guard.is_held());
                    guard.unlock().unwrap();
                });
                wait_behind(&pair, "read", "prices", place, &reader);
                reader
            })
            .collect();
        guard.unlock().unwrap();
        readers.into_iter().for_each(Running::join);
    }
}

#[test]
fn a_grant_by_message_that_no_replica_has_is_none() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let client = || pair.impatient().connect().unwrap();
    let (ours, theirs) = (client(), client());
    for kind in KINDS {
        let (first, second) =
            (barrier(&ours, kind, "by message"), lock_of(&theirs, kind, "by message", None));
        let name = first.name().to_owned();
        let guard = taken(&*first);
        let waiter = spawn(move || second.lock().map(drop).unwrap_err());
        wait_behind(&pair, kind, &name, 1, &waiter);
        pair.replica.pause();
        guard.unlock().unwrap();
        too_few(&waiter.join());
        wait_until("nobody has it", SOON, || pair.is_free(&name));
        pair.replica.resume();
        taken(&*first).unlock().unwrap();
    }
}

/// Whoever asks in vain gives it back to those behind, at once and not with its lease.
#[test]
fn a_waiter_behind_one_that_replicas_failed_gets_the_lock() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let holder = client(&pair.master);
    let impatient = pair.impatient().connect().unwrap();
    let patient = pair.patient().connect().unwrap();
    for kind in KINDS {
        let guard = barrier(&holder, kind, "behind").lock().unwrap();
        let name = guard.name().to_owned();
        let first = lock_of(&impatient, kind, "behind", None);
        let first = spawn(move || first.lock().map(drop).unwrap_err());
        wait_behind(&pair, kind, &name, 1, &first);
        // (A writer behind a reader: readers would be let in with it.)
        let second = barrier(&patient, kind, "behind");
        let second = spawn(move || second.lock().unwrap().unlock().unwrap());
        wait_behind(&pair, kind, &name, 2, &second);
        pair.cut_off(true);
        guard.unlock().unwrap();
        too_few(&first.join());
        assert!(!second.is_finished(), "{kind}: no replica has it");
        pair.cut_off(false);
        second.join();
        assert!(pair.is_free(&name), "{kind}");
    }
}

/// A reader enters beside others of its process by a question, when their turn is over; and the one
/// who writes reads as well by another.
#[test]
fn who_reads_beside_a_hold_waits_for_the_replica_too() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let client = pair.impatient().connect().unwrap();
    let lock = client.read_write_lock("beside");
    let first = taken(lock.read());
    pair.cut_off(true);
    thread::sleep(UNIT);
    let beside = lock.clone();
    let error = spawn(move || beside.read().lock().map(drop).unwrap_err()).join();
    too_few(&error);
    assert!(first.is_held(), "{:?}", first.state());
    pair.cut_off(false);
    let beside = lock.clone();
    spawn(move || taken(beside.read()).unlock().unwrap()).join();
    first.unlock().unwrap();
    assert!(pair.is_free("beside"));

    let writes = taken(lock.write());
    pair.cut_off(true);
    let error = lock.read().lock().map(drop).unwrap_err();
    too_few(&error);
    assert_eq!((lock.read().hold_count(), lock.write().hold_count()), (0, 1));
    pair.cut_off(false);
    let reads = taken(lock.read());
    reads.unlock().unwrap();
    writes.unlock().unwrap();
    assert!(pair.is_free("beside"));
}

/// The second copy goes over a connection that has written nothing, and finds the lock its own.
#[test]
fn a_request_that_was_sent_twice_counts_for_the_connection_it_was_answered_on() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let way = Proxy::before(&pair.master);
    let client = settings(&way.url()).connections(1).connect().unwrap();
    for (kind, lock) in locks(&client, "twice") {
        taken(&*lock).unlock().unwrap();
        // Its script is known then, too.
        lock.try_lock().ok().flatten().map(LockGuard::unlock);
        pair.cut_off(true);
        for tries in [false, true] {
            let name = lock.name().to_owned();
            let asks =
                move |bytes: &[u8]| bytes.windows(name.len()).any(|part| part == name.as_bytes());
            let fired = way.fired();
            way.on(Direction::Request, 1, Action::LoseReply, asks);
            let outcome = if tries { lock.try_lock() } else { lock.lock().map(Some) };
            let error = outcome.unwrap_err();
            assert_eq!(way.fired(), fired + 1);
            assert!(error.to_string().contains("0 of 1 replicas"), "{kind}: {error}");
            wait_until("nobody has it", SOON, || pair.is_free(lock.name()));
        }
        pair.cut_off(false);
        taken(&*lock).unlock().unwrap();
    }
}

/// Redis up to 7.0 counts what a connection has seen for its own. What is promised is its writes alone.
#[test]
fn a_hold_that_is_found_is_written_anew() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let client = || pair.patient().connect().unwrap();
    let (ours, theirs) = (client(), client());
    // Shorter than what it is handed on for: there is nothing to make longer.
    let lease = UNIT * 15;
    for kind in KINDS {
        let first = barrier(&ours, kind, "anew");
        let second = lock_of(&theirs, kind, "anew", Some(lease));
        let name = first.name().to_owned();
        let guard = first.lock().unwrap();
        let waiter = spawn(move || second.lock().unwrap().unlock().unwrap());
        wait_behind(&pair, kind, &name, 1, &waiter);
        let before = Commands::so_far(&pair.master).of("pexpire");
        guard.unlock().unwrap();
        waiter.join();
        let written = Commands::so_far(&pair.master).of("pexpire") - before;
        assert!(written >= 2, "{kind}: handed on, and found: {written}");
    }
}

#[test]
fn a_script_that_the_server_forgot_counts_when_it_has_run() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
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
fn a_renewal_that_no_replica_has_makes_nothing_longer() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    // A renewal waits for a twenty-fourth of it, which a busy machine needs.
    let lease = UNIT * 60;
    let client = pair.impatient().watchdog_timeout(lease).connect().unwrap();
    let lock = client.reentrant_lock("renewed");

    let guard = taken(&lock);
    pair.replica.pause();
    wait_until("a renewal has failed", SOON, || guard.state() == HoldState::Unconfirmed);
    pair.replica.resume();
    wait_until("it was renewed", SOON, || guard.state() == HoldState::Held);
    thread::sleep(lease);
    assert!(guard.is_held(), "{:?}", guard.state());

    pair.replica.pause();
    let begun = Instant::now();
    wait_until("it is lost", SOON, || !guard.is_held());
    let took = begun.elapsed();
    assert!(took <= lease + UNIT * 10, "{took:?}");
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(error.to_string().contains("0 of 1 replicas acknowledged"), "{error}");
    wait_until("the master has it no more", SOON, || pair.is_free("renewed"));
    pair.replica.resume();
}

#[test]
fn a_loss_is_told_though_no_replica_acknowledges() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let client = pair.patient().watchdog_timeout(UNIT * 30).connect().unwrap();
    let guard = client.reentrant_lock("revoked").lock().unwrap();
    pair.replica.pause();
    let () = pair.master.connection().del("revoked").unwrap();
    wait_until("it is lost", UNIT * 20, || !guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost(LostReason::Revoked));
    pair.replica.resume();
}

#[test]
fn a_longer_lease_by_re_entry_counts_when_the_replica_has_it() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(UNIT / 10) else { return };
    let client = pair.impatient().connect().unwrap();
    let lock = client.reentrant_lock("deeper");
    let outer = taken(&lock.with_lease(LONG));
    let inner = taken(&lock.with_lease(LONG * 2));
    assert!(pttl(&mut pair.replica.connection(), "deeper") > LONG.as_millis() as i64);
    pair.cut_off(true);
    let error = lock.with_lease(LONG * 3).lock().map(drop).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("0 of 1 replicas") && said.contains("still holds it"), "{said}");
    assert_eq!(lock.hold_count(), 2);
    assert!(outer.is_held() && outer.remaining() <= LONG * 2, "{:?}", outer.remaining());
    pair.cut_off(false);
    inner.unlock().unwrap();
    outer.unlock().unwrap();
}

#[test]
fn one_question_is_for_all_who_ask_together() {
    const THREADS: usize = 16;
    const TIMES: usize = 20;
    let _bounded = bounded();
    let Some(pair) = Pair::start(UNIT / 50) else { return };
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

/// Each server has its own time, which is not counted twice where replicas are waited for.
#[test]
fn a_server_of_a_quorum_that_is_silent_costs_what_replicas_may_take_once() {
    const WITHIN: Duration = Duration::from_millis(20 * UNIT.as_millis() as u64);
    let _bounded = bounded();
    let Some(pairs) = [(); 2].map(|()| Pair::start(Duration::ZERO)).into_iter().collect() else {
        return;
    };
    let pairs: Vec<Pair> = pairs;
    let silent = Server::start().unwrap();
    let servers = pairs.iter().map(|pair| &pair.master).chain([&silent]);
    let clients: Vec<_> = servers
        .map(|server| settings(&server.url()).watchdog_timeout(UNIT * 50).replica_acks(1, WITHIN))
        .map(|builder| builder.response_timeout(LONG).connect().unwrap())
        .collect();
    let locks: Vec<_> = clients.iter().map(|client| client.reentrant_lock("quorum")).collect();
    let locks: Vec<_> = locks.iter().map(|lock| lock as &dyn Lock).collect();
    for lock in &locks[..pairs.len()] {
        let works = || lock.lock().is_ok_and(|guard| guard.unlock().is_ok());
        wait_until("the replica keeps up", SOON, works);
    }
    let quorum = MultiLock::quorum(&locks).unwrap();
    silent.pause();
    let begun = Instant::now();
    let guard = quorum.try_lock().unwrap().unwrap();
    let took = begun.elapsed();
    assert!(took >= WITHIN, "the test shows nothing: {took:?}");
    assert!(took < WITHIN + WITHIN / 2, "{took:?}");
    silent.resume();
    guard.unlock().unwrap();
}

#[test]
fn what_is_not_usable_is_an_error_of_connect() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
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
    // And later on it is said by the call, which holds nothing.
    user.set(&["+wait"]);
    let client = settings(user.url()).connect().unwrap();
    user.set(&["-wait"]);
    let error = client.reentrant_lock("refused").lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("replica_acks needs WAIT"), "{error}");
    assert!(error.to_string().contains("nothing is held"), "{error}");
    assert!(!error.is_transient() && !error.outcome_unknown(), "{error}");
    assert!(!server.connection().exists::<_, bool>("refused").unwrap());
}

/// Who does not ask for it waits for nobody.
#[test]
fn without_the_setting_nobody_waits_for_replicas() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    pair.cut_off(true);
    let client = client(&pair.master);
    let guard: LockGuard = client.reentrant_lock("alone").lock().unwrap();
    guard.unlock().unwrap();
    assert_eq!(Commands::so_far(&pair.master).of("wait"), 0);
    pair.cut_off(false);
}

/// Permits: some are free, whoever takes some has them only when the replica knows.
#[test]
fn permits_count_when_the_replica_has_them() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let client = pair.impatient().connect().unwrap();
    let semaphore = client.semaphore("permits");
    semaphore.set_permits(3).unwrap();
    let free = |server: &Server| server.connection().get::<_, i64>("permits").unwrap();
    let permit = |permits| {
        let mut taken = None;
        wait_until("the replica keeps up", SOON, || {
            taken = semaphore.acquire_many(permits).inspect_err(too_few).ok();
            taken.is_some()
        });
        taken.unwrap()
    };
    let first = permit(1);
    assert_eq!((free(&pair.master), free(&pair.replica)), (2, 2));

    pair.cut_off(true);
    too_few(&semaphore.acquire().unwrap_err());
    too_few(&semaphore.try_acquire().unwrap_err());
    too_few(&semaphore.drain_permits().unwrap_err());
    assert_eq!(free(&pair.master), 2, "given back");
    // Nothing was taken: there is nothing to acknowledge.
    assert!(semaphore.try_acquire_many(3).unwrap().is_none());
    pair.cut_off(false);
    drop(permit(2));
    drop(first);
    wait_until("all are back", SOON, || free(&pair.master) == 3);
}

#[test]
fn leases_of_permits_are_what_the_replica_has() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let lease = UNIT * 30;
    let client = pair.impatient().watchdog_timeout(lease).connect().unwrap();
    let semaphore = client.expirable_semaphore("leases");
    semaphore.try_set_permits(2).unwrap();
    let out = |server: &Server| server.connection().zcard::<_, u64>("{leases}:timeout").unwrap();
    let mut taken = None;
    wait_until("the replica keeps up", SOON, || {
        taken = semaphore.acquire().inspect_err(too_few).ok();
        taken.is_some()
    });
    let permit = taken.unwrap();
    assert_eq!((out(&pair.master), out(&pair.replica)), (1, 1));

    pair.cut_off(true);
    too_few(&semaphore.acquire().map(drop).unwrap_err());
    too_few(&semaphore.try_acquire().map(drop).unwrap_err());
    assert_eq!(out(&pair.master), 1, "given back");
    wait_until("a renewal has failed", SOON, || permit.state() == HoldState::Unconfirmed);
    wait_until("it is lost", SOON, || !permit.is_held());
    assert_eq!(permit.state(), HoldState::Lost(LostReason::LeaseExpired));
    pair.cut_off(false);
}

/// The second copy finds what the first one took.
#[test]
fn permits_that_were_asked_for_twice_count_for_the_second_connection() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let way = Proxy::before(&pair.master);
    let client = settings(&way.url()).connections(1).connect().unwrap();
    let numbers = client.semaphore("numbers");
    numbers.set_permits(2).unwrap();
    let leases = client.expirable_semaphore("leases");
    leases.try_set_permits(2).unwrap();
    // Their scripts are known from here on.
    wait_until("the replica keeps up", SOON, || {
        numbers.acquire().is_ok_and(|it| it.release().is_ok())
    });
    wait_until("the replica keeps up", SOON, || {
        leases.acquire().is_ok_and(|it| it.release().is_ok())
    });
    pair.cut_off(true);
    let lose = |name: &'static str| {
        let asks = move |bytes: &[u8]| bytes.windows(name.len()).any(|it| it == name.as_bytes());
        way.on(Direction::Request, 1, Action::LoseReply, asks);
    };
    let fired = way.fired();
    let before = Commands::so_far(&pair.master);
    lose("numbers");
    let error = numbers.acquire().map(drop).unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    lose("leases");
    let error = leases.acquire().map(drop).unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(way.fired(), fired + 2);
    // (See above: Redis 7.0 would count what this connection has not written.)
    let written = |name| Commands::so_far(&pair.master).of(name) - before.of(name);
    assert!(written("set") >= 3, "taken, found, and given back: {}", written("set"));
    assert!(written("decrby") >= 3, "taken by both, and found: {}", written("decrby"));
    let free = |name| pair.master.connection().get::<_, i64>(name).unwrap();
    wait_until("all are back", SOON, || (free("numbers"), free("leases")) == (2, 2));
    pair.cut_off(false);
}

#[test]
fn a_lease_of_a_permit_that_is_long_enough_is_written_anew() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let client = pair.patient().connect().unwrap();
    let semaphore = client.expirable_semaphore("leases");
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    for lease in [LONG * 2, LONG] {
        let before = Commands::so_far(&pair.master).of("zadd");
        assert!(semaphore.update_lease_time(&permit.id(), lease).unwrap());
        let written = Commands::so_far(&pair.master).of("zadd") - before;
        assert!(written >= 1, "{lease:?}: {written}");
    }
    assert!(permit.remaining() > LONG);
    permit.release().unwrap();
}
