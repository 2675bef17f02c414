//! The events that an observer gets from a client's locks.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redlatch::observe::{Event, Kind, Observer, Way};
use redlatch::status::Snapshot;
use redlatch::{CancelToken, Client, ClientBuilder, ErrorKind, LostReason, Taken};
use redlatch_testkit::{Action, Direction, Proxy, Server};

use crate::common::*;

/// An observer that records the events.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Line>>>);

#[derive(Clone, Debug)]
struct Line {
    /// The called method, and how the lock was taken or why it was not taken.
    what: String,
    name: String,
    kind: Kind,
    permits: u32,
    time: Duration,
}

impl Heard {
    fn hear<T: Debug>(&self, method: &str, event: &Event<'_, T>) {
        let what = format!("{method} {:?}", event.how).replace(" ()", "");
        let Event { name, kind, permits, time, .. } = event;
        let line =
            Line { what, name: (*name).to_owned(), kind: *kind, permits: *permits, time: *time };
        self.0.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap().clone()
    }

    /// Takes the events so far. The next call returns only later events.
    fn taken(&self) -> Vec<String> {
        self.0.lock().unwrap().drain(..).map(|line| line.what).collect()
    }

    fn wait_for(&self, what: &str) -> Line {
        wait_until(what, TIMEOUT, || self.lines().iter().any(|line| line.what.starts_with(what)));
        self.lines().into_iter().find(|line| line.what.starts_with(what)).unwrap()
    }
}

impl Observer for Heard {
    fn wait_started(&self, event: &Event<'_>) {
        self.hear("waits", event);
    }

    fn acquired(&self, event: &Event<'_, Way>) {
        self.hear("has", event);
    }

    fn gave_up(&self, event: &Event<'_, Option<ErrorKind>>) {
        self.hear("gave up", event);
    }

    fn released(&self, event: &Event<'_>) {
        self.hear("released", event);
    }

    fn lost(&self, event: &Event<'_, LostReason>) {
        self.hear("lost", event);
    }

    fn renewed(&self, event: &Event<'_>) {
        self.hear("renewed", event);
    }

    fn renewal_failed(&self, event: &Event<'_, &str>) {
        self.hear("not renewed", event);
    }

    fn reconnected(&self, event: &Event<'_>) {
        self.hear("reconnected", event);
    }
}

fn builder(server: &Server) -> ClientBuilder {
    // With tracking, the server might report a forced unlock first, as a revoked hold.
    Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).client_tracking(false)
}

fn observed(server: &Server) -> (Client, Heard) {
    let heard = Heard::default();
    (builder(server).observer(Arc::new(heard.clone())).connect().unwrap(), heard)
}

#[test]
fn a_wait_and_a_hold_are_reported_once_each_and_a_re_entry_is_not() {
    let server = server();
    let (client, heard) = observed(&server);
    let lock = client.reentrant_lock("orders");
    let guard = lock.lock().unwrap();
    let again = lock.try_lock().unwrap().into_option().unwrap();
    assert_eq!(heard.taken(), ["waits", "has Free"]);
    drop(again);
    assert!(heard.lines().is_empty(), "a level is left");
    std::thread::sleep(TIME_UNIT);
    guard.unlock().unwrap();
    let [line] = &heard.lines()[..] else { panic!("{:?}", heard.lines()) };
    assert_eq!((&*line.what, &*line.name, line.kind), ("released", "orders", Kind::ReentrantLock));
    assert!(line.time >= TIME_UNIT && line.time < TIMEOUT, "{line:?}");
}

/// The thread holds the lock all the time.
#[test]
fn a_re_entry_that_outlasts_an_outage_is_not_reported_either() {
    let server = server();
    let proxy = Proxy::before(&server);
    let heard = Heard::default();
    let client = Client::builder(&proxy.url()).connections(1).observer(heard.clone());
    let client = client.connect().unwrap();
    let lock = client.reentrant_lock("orders");
    let guard = lock.lock().unwrap();
    assert_eq!(heard.taken(), ["waits", "has Free"]);
    // The fault affects the request for the longer lease and its second copy.
    proxy
        .on(Direction::Request, 2, Action::LoseRequest, |bytes| contains(bytes, "\r\n7200000\r\n"));
    let again = lock.with_lease(Duration::from_secs(7_200)).lock().unwrap();
    assert_eq!(proxy.fired(), 2);
    drop(again);
    guard.unlock().unwrap();
    let told = heard.taken();
    assert_eq!(told.iter().filter(|line| !line.starts_with("reconnected")).count(), 1, "{told:?}");
    assert!(told.contains(&"released".to_owned()), "{told:?}");
    assert_eq!(client.snapshot().counts.acquired, 1);
}

#[test]
fn a_wait_that_begins_in_an_outage_is_reported_during_it() {
    let server = server();
    let (proxy, heard) = (Proxy::before(&server), Heard::default());
    let client = Client::builder(&proxy.url())
        .failover_timeout(LONG_LEASE)
        .observer(Box::new(heard.clone()));
    let client = client.connect().unwrap();
    let semaphore = client.semaphore("tools");
    assert!(semaphore.try_set_permits(1).unwrap());
    proxy.refuse();
    proxy.cut_all();
    let waits = spawn(move || semaphore.acquire().map(drop));
    heard.wait_for("waits");
    proxy.accept();
    waits.join().unwrap();
}

#[test]
fn a_loss_that_unlock_finds_is_reported_as_a_loss() {
    let server = server();
    let (client, heard) = observed(&server);
    let guard = client.reentrant_lock("orders").lock().unwrap();
    let () = redis::cmd("DEL").arg("orders").query(&mut server.connection()).unwrap();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    heard.wait_for("lost");
    assert_eq!(heard.taken(), ["waits", "has Free", "lost Revoked"]);
    assert_eq!((client.snapshot().counts.lost, client.snapshot().counts.released), (1, 0));
}

#[test]
fn a_grant_is_reported_as_from_another_process_or_from_another_thread() {
    let server = server();
    let (other, (client, heard)) = (client(&server), observed(&server));
    // If the thread sent a request at the moment of the release, the test tries again.
    wait_until("the lock is handed on", TIMEOUT, || {
        let held = other.reentrant_lock("orders").lock().unwrap();
        let lock = client.reentrant_lock("orders");
        let waits = spawn(move || lock.lock().map(drop).unwrap());
        wait_in_line(&server, "orders", 1);
        std::thread::sleep(TIME_UNIT);
        held.unlock().unwrap();
        waits.join();
        let acquired = heard.lines()[1].clone();
        assert!(acquired.time >= TIME_UNIT, "{acquired:?}");
        heard.taken() == ["waits", "has HandedOn", "released"]
    });
    // Threads of a process pass the lock on only for some milliseconds.
    wait_until("the lock is passed", TIMEOUT, || {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let lock = client.reentrant_lock("here");
                spawn(move || (0..100).for_each(|_| lock.lock().map(drop).unwrap()))
            })
            .collect();
        threads.into_iter().for_each(Running::join);
        let mut said = heard.taken();
        let number = |what| said.iter().filter(|line| *line == what).count();
        assert_eq!([number("waits"), number("released")], [200; 2]);
        said.retain(|line| line.starts_with("has"));
        assert_eq!(said.len(), 200);
        said.contains(&"has Passed".to_owned())
    });
}

#[test]
fn a_wait_that_ends_without_the_lock_says_why() {
    let server = server();
    let (other, (client, heard)) = (client(&server), observed(&server));
    let held = other.reentrant_lock("orders").lock().unwrap();
    let lock = client.reentrant_lock("orders");
    assert!(lock.try_lock().unwrap().into_option().is_none());
    assert_eq!(heard.taken(), ["waits", "gave up None"]);
    // A call that got no reply ends for another reason.
    loop {
        match if_answered(lock.try_lock_for(TIME_UNIT).map(Taken)) {
            None => drop(heard.taken()),
            Some(got) => break assert!(got.into_option().is_none()),
        }
    }
    assert!(heard.lines()[1].time >= TIME_UNIT, "{:?}", heard.lines());
    assert_eq!(heard.taken(), ["waits", "gave up None"]);
    let token = CancelToken::new();
    let waits = spawn({
        let (lock, token) = (lock, token.clone());
        move || lock.lock_cancellable(&token).map(drop).unwrap_err().kind()
    });
    wait_in_line(&server, "orders", 1);
    token.cancel();
    assert_eq!(waits.join(), ErrorKind::Cancelled);
    assert_eq!(heard.taken(), ["waits", "gave up Some(Cancelled)"]);
    held.unlock().unwrap();
}

/// Takes a lock or permit of each kind once, and checks the events.
#[test]
fn each_kind_is_reported_by_its_name_and_each_hold_ends_once() {
    let server = server();
    let (client, heard) = observed(&server);
    let has = |kind, permits, ends: &[&str]| {
        let all = ["waits", "has Free"].iter().chain(ends).map(|it| (*it).to_owned());
        let lines = heard.lines();
        assert!(lines.iter().all(|line| line.kind == kind), "{kind:?}: {lines:?}");
        assert!(lines[..2].iter().all(|line| line.permits == permits), "{kind:?}: {lines:?}");
        assert_eq!(heard.taken(), all.collect::<Vec<_>>(), "{kind:?}");
    };
    let one: &[&str] = &["released"];
    client.reentrant_lock("a").lock().unwrap().unlock().unwrap();
    has(Kind::ReentrantLock, 1, one);
    client.reentrant_lock("a").lock_owned().unwrap().unlock().unwrap();
    has(Kind::ReentrantLock, 1, one);
    client.fair_lock("b").lock().unwrap().unlock().unwrap();
    has(Kind::FairLock, 1, one);
    client.fair_lock("b").try_lock().unwrap().into_option().unwrap().unlock().unwrap();
    has(Kind::FairLock, 1, one);
    client.fenced_lock("c").lock().unwrap().unlock().unwrap();
    has(Kind::FencedLock, 1, one);
    let read_write = client.read_write_lock("d");
    read_write.reader().lock().unwrap().unlock().unwrap();
    has(Kind::ReadLock, 1, one);
    let writes = read_write.writer().lock().unwrap();
    let reads = read_write.reader().lock().unwrap();
    writes.unlock().unwrap();
    reads.unlock().unwrap();
    let kinds: Vec<_> = heard.lines().iter().map(|line| line.kind).collect();
    let (read, write) = (Kind::ReadLock, Kind::WriteLock);
    assert_eq!(kinds, [write, write, read, read, write, read]);
    let all = ["waits", "has Free", "waits", "has Passed", "released", "released"];
    assert_eq!(heard.taken(), all);
    client.semaphore("e").try_set_permits(5).unwrap();
    let mut permits = client.semaphore("e").acquire_many(3).unwrap();
    drop(permits.split(1));
    permits.release().unwrap();
    has(Kind::Semaphore, 3, &["released", "released"]);
    client.expirable_semaphore("f").try_set_permits(5).unwrap();
    client.expirable_semaphore("f").acquire_many(2).map(drop).unwrap();
    has(Kind::ExpirableSemaphore, 2, &["released", "released"]);
    client.count_down_latch("g").wait().unwrap();
    has(Kind::CountDownLatch, 1, &[]);
    client.cyclic_barrier("h").try_set_parties(1).unwrap();
    client.cyclic_barrier("h").wait().unwrap();
    has(Kind::CyclicBarrier, 1, &[]);
}

/// One call gets several permits, which end one by one.
#[test]
fn as_many_permits_end_as_were_acquired_in_what_is_heard_and_in_the_counts() {
    let server = server();
    let (client, heard) = observed(&server);
    let sums_are = |sums: (u64, u64, u64)| {
        let sum = |method: &str| {
            let lines = heard.lines().into_iter().filter(|line| line.what.starts_with(method));
            lines.map(|line| u64::from(line.permits)).sum()
        };
        assert_eq!((sum("has"), sum("released"), sum("lost")), sums, "{:?}", heard.lines());
        let counts = client.snapshot().counts;
        assert_eq!((counts.acquired, counts.released, counts.lost), sums);
    };
    let pool = client.expirable_semaphore("pool");
    pool.try_set_permits(5).unwrap();
    let mut permits = pool.acquire_many(3).unwrap();
    sums_are((3, 0, 0));
    drop(permits.pop());
    permits.pop().unwrap().release().unwrap();
    sums_are((3, 2, 0));
    pool.release(&permits[0].id()).unwrap();
    sums_are((3, 3, 0));
    let ends = pool.with_lease(TIME_UNIT).acquire_many(2).unwrap();
    wait_until("both are lost", TIMEOUT, || {
        heard.lines().iter().filter(|line| line.what.starts_with("lost")).count() == 2
    });
    drop(ends);
    sums_are((5, 3, 2));
    let counted = client.semaphore("counted");
    counted.try_set_permits(5).unwrap();
    let mut permit = counted.acquire_many(5).unwrap();
    let (some, one) = (permit.split(2).unwrap(), permit.split(1));
    permit.merge(some).unwrap();
    drop(one);
    sums_are((10, 4, 2));
    permit.release().unwrap();
    sums_are((10, 8, 2));
    counted.acquire().unwrap().forget();
    sums_are((11, 9, 2));
}

#[test]
fn a_reader_that_shares_a_hold_is_reported_as_a_holder_of_its_own() {
    let server = server();
    let (client, heard) = observed(&server);
    let lock = client.read_write_lock("orders");
    let first = lock.reader().lock().unwrap();
    elsewhere({
        let lock = lock.clone();
        move || lock.reader().lock().unwrap().unlock().unwrap()
    });
    first.unlock().unwrap();
    let all = ["waits", "has Free", "waits", "has Passed", "released", "released"];
    assert_eq!(heard.taken(), all);
}

#[test]
fn a_thread_that_waits_on_a_condition_has_left_the_lock() {
    let server = server();
    let (client, heard) = observed(&server);
    let lock = client.reentrant_lock("orders");
    let guard = lock.lock().unwrap();
    // The wait is so long that the thread first releases the lock.
    assert!(lock.condition("arrived").wait_for(&guard, TIME_UNIT * 10).unwrap().timed_out());
    guard.unlock().unwrap();
    assert_eq!(heard.taken(), ["waits", "has Free", "released", "waits", "has Free", "released"]);
}

#[test]
fn a_loss_is_reported_with_its_reason_and_is_no_release() {
    let server = server();
    let (client, heard) = observed(&server);
    let lock = client.reentrant_lock("orders");
    let guard = lock.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    heard.wait_for("lost");
    assert!(guard.unlock().is_err());
    assert_eq!(heard.taken(), ["waits", "has Free", "lost ForceUnlocked"]);
    let ends = client.fair_lock("short").with_lease(TIME_UNIT).lock().unwrap();
    let lost = heard.wait_for("lost");
    assert!(lost.time < TIMEOUT && lost.kind == Kind::FairLock && lost.name == "short", "{lost:?}");
    drop(ends);
    let kept = client.reentrant_lock("kept").lock().unwrap();
    client.shutdown();
    drop(kept);
    let all = ["waits", "has Free", "lost LeaseExpired", "waits", "has Free", "lost ShutDown"];
    assert_eq!(heard.taken(), all);
}

#[test]
fn renewals_are_reported_with_the_time_left_and_so_are_an_outage_and_its_end() {
    let server = server();
    let (proxy, heard) = (Proxy::before(&server), Heard::default());
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(SHORT_LEASE)
        .response_timeout(SHORT_TIMEOUT)
        .connect_timeout(SHORT_TIMEOUT)
        .observer(heard.clone())
        .connect()
        .unwrap();
    let guard = client.reentrant_lock("orders").lock().unwrap();
    let renewed = heard.wait_for("renewed");
    assert!(renewed.time > Duration::ZERO && renewed.time < SHORT_LEASE, "{renewed:?}");
    assert_eq!((renewed.kind, &*renewed.name), (Kind::ReentrantLock, "orders"));
    proxy.refuse();
    proxy.cut_all();
    let failed = heard.wait_for("not renewed");
    assert!(failed.name == "orders" && failed.time < SHORT_LEASE, "{failed:?}");
    proxy.accept();
    let back = heard.wait_for("reconnected");
    assert_eq!((back.kind, back.name), (Kind::Server, proxy.address().to_string()));
    drop(guard);
}

#[test]
fn a_panic_of_an_observer_harms_no_caller_and_no_other_observer() {
    struct Panics;

    impl Observer for Panics {
        fn acquired(&self, _: &Event<'_, Way>) {
            panic!("on purpose");
        }

        fn lost(&self, _: &Event<'_, LostReason>) {
            panic!("on purpose");
        }
    }

    let server = server();
    let heard = Heard::default();
    let client = builder(&server).observer(Panics).observer(heard.clone()).connect().unwrap();
    let lock = client.reentrant_lock("orders");
    for _ in 0..3 {
        let guard = lock.lock().unwrap();
        let (sender, lost) = std::sync::mpsc::channel();
        guard.on_lost(move |reason| sender.send(reason).unwrap());
        assert!(lock.force_unlock().unwrap());
        assert_eq!(lost.recv_timeout(TIMEOUT), Ok(LostReason::ForceUnlocked));
        heard.wait_for("lost");
        assert_eq!(heard.taken(), ["waits", "has Free", "lost ForceUnlocked"]);
    }
    lock.lock().unwrap().unlock().unwrap();
}

/// Returns the client's holds, each as `name kind levels thread`, and its waits.
fn now(client: &Client) -> (Vec<String>, Vec<String>) {
    let Snapshot { held, waiting, .. } = client.snapshot();
    let held = held.iter().map(|it| {
        let thread = it.thread.as_deref().unwrap_or("-");
        format!("{} {:?} {} {thread}", it.name, it.kind, it.levels)
    });
    let waiting = waiting.iter().map(|it| {
        assert!(it.waited >= TIME_UNIT && it.waited < TIMEOUT * 2, "{it:?}");
        format!("{} {:?} {}", it.name, it.kind, it.thread.as_deref().unwrap_or("-"))
    });
    let (mut held, mut waiting): (Vec<_>, Vec<_>) = (held.collect(), waiting.collect());
    held.sort();
    waiting.sort();
    (held, waiting)
}

#[test]
fn a_snapshot_has_what_is_held_and_waited_for_and_counts_what_was() {
    let server = server();
    let (other, client) = (client(&server), builder(&server).connect().unwrap());
    let busy = other.reentrant_lock("busy").lock().unwrap();
    let (client_there, token) = (client.clone(), CancelToken::new());
    let (sender, holds) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let worker = std::thread::Builder::new().name("worker".to_owned());
    let worker = worker.spawn({
        let token = token.clone();
        move || {
            let client = client_there;
            let lock = client.reentrant_lock("orders");
            let guards = [lock.lock().unwrap(), lock.lock().unwrap()];
            let read_write = client.read_write_lock("page");
            let read = read_write.reader().lock().unwrap();
            let owned = client.fair_lock("owned").lock_owned().unwrap();
            client.expirable_semaphore("permits").try_set_permits(2).unwrap();
            let permits = client.expirable_semaphore("permits").acquire_many(2).unwrap();
            sender.send(()).unwrap();
            let busy = client.reentrant_lock("busy");
            assert!(busy.lock_cancellable(&token).is_err());
            released.recv().unwrap();
            drop((guards, read, owned, permits));
        }
    });
    holds.recv_timeout(TIMEOUT).unwrap();
    let all = [
        "orders ReentrantLock 2 worker",
        "owned FairLock 1 -",
        "page ReadLock 1 worker",
        "permits ExpirableSemaphore 1 -",
        "permits ExpirableSemaphore 1 -",
    ];
    assert_eq!(now(&client).0, all);
    wait_until("the wait is listed", TIMEOUT, || now(&client).1 == ["busy ReentrantLock worker"]);
    let Snapshot { counts, held, servers, .. } = client.snapshot();
    assert!(
        held.iter()
            .all(|it| it.left > LONG_LEASE / 2 && it.left <= LONG_LEASE && it.held < TIMEOUT)
    );
    assert_eq!((counts.acquired, counts.gave_up, counts.released), (5, 0, 0), "{counts:?}");
    let [server_state] = &servers[..] else { panic!("{servers:?}") };
    assert_eq!(server_state.address, format!("127.0.0.1:{}", server.port()));
    assert!(server_state.open >= 1 && server_state.open <= server_state.connections);
    assert!(!server_state.is_out);
    token.cancel();
    release.send(()).unwrap();
    worker.unwrap().join().unwrap();
    assert_eq!(now(&client), (Vec::new(), Vec::new()));
    let counts = client.snapshot().counts;
    assert_eq!((counts.acquired, counts.gave_up, counts.released), (5, 1, 5), "{counts:?}");
    assert!(client.reentrant_lock("orders").force_unlock().is_ok());
    let lost = client.reentrant_lock("orders").lock().unwrap();
    assert!(client.reentrant_lock("orders").force_unlock().unwrap());
    wait_until("the loss is counted", TIMEOUT, || client.snapshot().counts.lost == 1);
    assert!(lost.unlock().is_err());
    assert_eq!(client.snapshot().counts.released, 5);
    drop(busy);
    client.shutdown();
}

/// Returns the positions of the waits in the queue, with the names of their threads.
fn places(client: &Client) -> Vec<(String, usize)> {
    let waiting = client.snapshot().waiting.into_iter();
    let mut places: Vec<_> = waiting.map(|it| (it.thread.unwrap(), it.place)).collect();
    places.sort();
    places
}

#[test]
fn a_snapshot_has_the_place_of_each_thread_among_those_of_its_process() {
    let server = server();
    let (other, client) = (client(&server), builder(&server).connect().unwrap());
    let busy = ["orders", "fair"].map(|name| other.reentrant_lock(name).lock().unwrap());
    for name in ["orders", "fair"] {
        let tokens = [(); 3].map(|()| CancelToken::new());
        let mut waits: Vec<_> = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let (own, token) = (client.clone(), token.clone());
            let thread = std::thread::Builder::new().name(at.to_string());
            let waiting = move || match name {
                "fair" => own.fair_lock(name).lock_cancellable(&token).is_err(),
                _ => own.reentrant_lock(name).lock_cancellable(&token).is_err(),
            };
            waits.push(thread.spawn(waiting).unwrap());
            wait_until("it is listed", TIMEOUT, || places(&client).len() == at + 1);
        }
        let expected = |threads: &[&str]| {
            let threads = threads.iter().map(|it| (*it).to_owned()).zip(0..);
            threads.collect::<Vec<_>>()
        };
        assert_eq!(places(&client), expected(&["0", "1", "2"]), "{name}");
        // The second thread becomes the first in the queue, and each thread behind it moves up.
        tokens[0].cancel();
        wait_until("it has gone", TIMEOUT, || places(&client) == expected(&["1", "2"]));
        tokens.iter().for_each(CancelToken::cancel);
        waits.into_iter().for_each(|wait| assert!(wait.join().unwrap()));
        assert!(places(&client).is_empty());
    }
    drop(busy);
}

#[test]
fn a_leader_is_listed_during_an_outage_too() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .response_timeout(SHORT_TIMEOUT)
        .connect_timeout(SHORT_TIMEOUT)
        .connect()
        .unwrap();
    proxy.refuse();
    proxy.cut_all();
    let token = CancelToken::new();
    let waits = spawn({
        let (lock, token) = (client.reentrant_lock("orders"), token.clone());
        move || lock.lock_cancellable(&token).map(drop).unwrap_err().kind()
    });
    wait_until("it is listed", TIMEOUT, || !client.snapshot().waiting.is_empty());
    token.cancel();
    assert_eq!(waits.join(), ErrorKind::Cancelled);
}

/// The number of calls of each of the observer's methods, in their order.
#[derive(Default)]
struct Tally([AtomicU32; 10]);

impl Tally {
    fn count(&self, method: usize) {
        self.0[method].fetch_add(1, Ordering::Relaxed);
    }
}

impl Observer for Tally {
    fn wait_started(&self, _: &Event<'_>) {
        self.count(0);
    }

    fn acquired(&self, _: &Event<'_, Way>) {
        self.count(1);
    }

    fn gave_up(&self, _: &Event<'_, Option<ErrorKind>>) {
        self.count(2);
    }

    fn released(&self, _: &Event<'_>) {
        self.count(3);
    }

    fn lost(&self, _: &Event<'_, LostReason>) {
        self.count(4);
    }

    fn renewed(&self, _: &Event<'_>) {
        self.count(5);
    }

    fn renewal_failed(&self, _: &Event<'_, &str>) {
        self.count(6);
    }

    fn reconnected(&self, _: &Event<'_>) {
        self.count(7);
    }

    fn forgot(&self, _: &Event<'_>) {
        self.count(8);
    }

    fn wanted(&self, _: &Event<'_>) {
        self.count(9);
    }
}

#[test]
fn an_observer_behind_a_pointer_hears_each_kind_of_event() {
    let tally = Arc::new(Tally::default());
    let tell = |observer: &dyn Observer| {
        let kind = Kind::ReentrantLock;
        observer.wait_started(&Event::new("l", kind, ()));
        observer.acquired(&Event::new("l", kind, Way::HandedOn));
        observer.gave_up(&Event::new("l", kind, None));
        observer.released(&Event::new("l", kind, ()));
        observer.lost(&Event::new("l", kind, LostReason::Revoked));
        observer.renewed(&Event::new("l", kind, ()));
        observer.renewal_failed(&Event::new("l", kind, "why"));
        observer.reconnected(&Event::new("l", kind, ()));
        observer.forgot(&Event::new("l", kind, ()));
        observer.wanted(&Event::new("l", kind, ()));
    };
    tell(&Arc::clone(&tally));
    tell(&Box::new(Arc::clone(&tally)));
    assert!(tally.0.iter().all(|heard| heard.load(Ordering::Relaxed) == 2));
}
