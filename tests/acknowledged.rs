//! Locks that count only when replicas have them: `replica_acks`.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Commands, LONG, SOON, UNIT, User, bounded, client, holder, pttl, real_server, spawn,
    wait_in_line, wait_until,
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

    fn builder(&self) -> ClientBuilder {
        settings(&self.master.url())
    }

    fn client(&self) -> Client {
        self.builder().connect().unwrap()
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

/// One of each kind, under this name.
fn locks(client: &Client, name: &str) -> [(&'static str, Box<dyn Lock>); 3] {
    [
        ("reentrant", Box::new(client.reentrant_lock(&format!("{name} reentrant")))),
        ("fenced", Box::new(client.fenced_lock(&format!("{name} fenced")))),
        ("fair", Box::new(client.fair_lock(&format!("{name} fair")))),
    ]
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
    let client = pair.client();
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
    let client = pair.client();
    for (kind, lock) in locks(&client, "stopped") {
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
        let guard = lock.lock().unwrap();
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
    several.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_without_replicas_has_none_that_acknowledge() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let lock = settings(&server.url()).connect().unwrap().reentrant_lock("alone");
    too_few(&lock.lock().unwrap_err());
    // More than there are.
    let replica = Server::builder().replica_of(&server).start().unwrap();
    lock.lock().unwrap().unlock().unwrap();
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
    let client = pair.client();
    let lock = client.reentrant_lock("together");
    let guard = lock.lock().unwrap();
    let waiters: Vec<_> = (0..THREADS)
        .map(|_| {
            let lock = lock.clone();
            spawn(move || lock.lock().map(drop).unwrap_err())
        })
        .collect();
    waiters.iter().for_each(common::Running::wait_asleep);
    pair.replica.pause();
    // The turn is over: the lock goes back to the server.
    let begun = Instant::now();
    guard.unlock().unwrap();
    waiters.into_iter().for_each(|waiter| too_few(&waiter.join()));
    let took = begun.elapsed();
    assert!(took < WITHIN * (THREADS - 1), "one after the other: {took:?}");
    assert!(pair.is_free("together"));
    pair.replica.resume();
    lock.lock().unwrap().unlock().unwrap();
}

/// Processes hand each other the lock: the grant was written over another's connection.
#[test]
fn a_lock_that_is_handed_on_is_on_the_replica_before_it_counts() {
    const CLIENTS: usize = 3;
    const TIMES: usize = 12;
    let _bounded = bounded();
    let Some(pair) = Pair::start(UNIT / 20) else { return };
    let pair = Arc::new(pair);
    for kind in 0..3 {
        let inside = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..CLIENTS * 2)
            .map(|at| {
                let (pair, inside) = (Arc::clone(&pair), Arc::clone(&inside));
                let client =
                    if at < CLIENTS { pair.client() } else { pair.builder().connect().unwrap() };
                spawn(move || {
                    let [reentrant, fenced, fair] = locks(&client, "handed");
                    let (_, lock) = [reentrant, fenced, fair].into_iter().nth(kind).unwrap();
                    for _ in 0..TIMES {
                        let guard = lock.lock().unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        assert!(pair.agreed(lock.name()).is_some(), "{}", lock.name());
                        assert!(guard.is_held());
                        inside.store(false, Ordering::SeqCst);
                        guard.unlock().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(common::Running::join);
    }
}

#[test]
fn a_grant_by_message_that_no_replica_has_is_none() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let (ours, theirs) = (pair.client(), pair.client());
    for ((kind, first), (_, second)) in
        locks(&ours, "by message").into_iter().zip(locks(&theirs, "by message"))
    {
        let name = first.name().to_owned();
        let guard = first.lock().unwrap();
        let waiter = spawn(move || second.lock().map(drop).unwrap_err());
        if kind != "fair" {
            wait_in_line(&pair.master, &name, 1);
        }
        waiter.wait_asleep();
        pair.replica.pause();
        guard.unlock().unwrap();
        too_few(&waiter.join());
        wait_until("nobody has it", SOON, || pair.is_free(&name));
        pair.replica.resume();
        first.lock().unwrap().unlock().unwrap();
    }
}

/// The second copy goes over a connection that has written nothing, and finds the lock its own.
#[test]
fn a_request_that_was_sent_twice_counts_for_the_connection_it_was_answered_on() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let way = Proxy::before(&pair.master);
    let client = settings(&way.url()).connections(1).connect().unwrap();
    for (kind, lock) in locks(&client, "twice") {
        lock.lock().unwrap().unlock().unwrap();
        lock.try_lock().unwrap().unwrap().unlock().unwrap();
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
        lock.lock().unwrap().unlock().unwrap();
    }
}

/// Redis up to 7.0 counts what a connection has seen for its own. What is promised is its writes alone.
#[test]
fn a_hold_that_is_found_is_written_anew() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let (ours, theirs) = (pair.client(), pair.client());
    // Shorter than what it is handed on for: there is nothing to make longer.
    let lease = UNIT * 15;
    for kind in ["reentrant", "fair"] {
        let name = format!("anew {kind}");
        let (first, second): (Box<dyn Lock>, Box<dyn Lock>) = match kind {
            "fair" => (
                Box::new(ours.fair_lock(&name)),
                Box::new(theirs.fair_lock(&name).with_lease(lease)),
            ),
            _ => (
                Box::new(ours.reentrant_lock(&name)),
                Box::new(theirs.reentrant_lock(&name).with_lease(lease)),
            ),
        };
        let guard = first.lock().unwrap();
        let waiter = spawn(move || second.lock().unwrap().unlock().unwrap());
        if kind != "fair" {
            wait_in_line(&pair.master, &name, 1);
        }
        waiter.wait_asleep();
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
    let client = pair.client();
    for (kind, lock) in locks(&client, "forgotten") {
        lock.lock().unwrap().unlock().unwrap();
        pair.cut_off(true);
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut pair.master.connection()).unwrap();
        let error = lock.lock().map(drop).expect_err(kind);
        too_few(&error);
        pair.cut_off(false);
        lock.lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_renewal_that_no_replica_has_makes_nothing_longer() {
    let _bounded = bounded();
    let Some(pair) = Pair::start(Duration::ZERO) else { return };
    let lease = UNIT * 12;
    let client = pair.builder().watchdog_timeout(lease).connect().unwrap();
    let lock = client.reentrant_lock("renewed");

    let guard = lock.lock().unwrap();
    pair.replica.pause();
    wait_until("a renewal has failed", SOON, || guard.state() == HoldState::Unconfirmed);
    pair.replica.resume();
    wait_until("it was renewed", SOON, || guard.state() == HoldState::Held);
    thread::sleep(lease * 2);
    assert!(guard.is_held(), "{:?}", guard.state());

    pair.replica.pause();
    let begun = Instant::now();
    wait_until("it is lost", SOON, || !guard.is_held());
    let took = begun.elapsed();
    assert!(took <= lease + UNIT, "{took:?}");
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
    let client = pair.builder().watchdog_timeout(UNIT * 30).connect().unwrap();
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
    let client = pair.client();
    let lock = client.reentrant_lock("deeper");
    let outer = lock.with_lease(LONG).lock().unwrap();
    let inner = lock.with_lease(LONG * 2).lock().unwrap();
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
    let client = pair.builder().connections(1).connect().unwrap();
    client.reentrant_lock("warm").lock().unwrap().unlock().unwrap();
    let before = Commands::so_far(&pair.master);
    let threads: Vec<_> = (0..THREADS)
        .map(|at| {
            let lock = client.reentrant_lock(&format!("own {at}"));
            spawn(move || (0..TIMES).for_each(|_| drop(lock.lock().unwrap())))
        })
        .collect();
    threads.into_iter().for_each(common::Running::join);
    let waits = Commands::so_far(&pair.master).of("wait") - before.of("wait");
    assert!(waits > 0);
    assert!(waits as usize <= THREADS * TIMES / 4, "{waits} for {} locks", THREADS * TIMES);
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
