//! Conditions: threads with a lock in hand wait for each other, across clients and processes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Condition, Error, ErrorKind, HoldState, Lock, LostReason, Wait,
};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// A waiter looks after 0.8 s at the earliest. Whoever is awake before this heard a message.
const BEFORE_A_LOOK: Duration = Duration::from_millis(700);
/// What a notification costs at most whose receiver stands still: `PATIENCE` in `waiters.lua`, and a
/// look of those who wait.
const PASSED_ON: Duration = Duration::from_millis(2_000 + 1_200);

/// Which kind of lock a test plays with.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    make: fn(&Client, &str) -> Monitor,
}

/// A lock and a condition of it.
#[derive(Clone)]
struct Monitor {
    lock: Arc<dyn Lock>,
    leased: fn(&Client, &str, Duration) -> Arc<dyn Lock>,
    condition: Condition,
}

const REENTRANT: Kind = Kind {
    name: "reentrant",
    make: |client, name| {
        let lock = client.reentrant_lock(name);
        let condition = lock.new_condition("changed");
        let leased = |client: &Client, name: &str, lease: Duration| {
            Arc::new(client.reentrant_lock(name).with_lease(lease)) as Arc<dyn Lock>
        };
        Monitor { lock: Arc::new(lock), leased, condition }
    },
};

const FAIR: Kind = Kind {
    name: "fair",
    make: |client, name| {
        let lock = client.fair_lock(name);
        let condition = lock.new_condition("changed");
        let leased = |client: &Client, name: &str, lease: Duration| {
            Arc::new(client.fair_lock(name).with_lease(lease)) as Arc<dyn Lock>
        };
        Monitor { lock: Arc::new(lock), leased, condition }
    },
};

macro_rules! of_both_locks {
    ($($test:ident)*) => {
        mod reentrant {
            $(#[test] fn $test() { super::$test(super::REENTRANT) })*
        }
        mod fair {
            $(#[test] fn $test() { super::$test(super::FAIR) })*
        }
    };
}

of_both_locks! {
    a_wait_leaves_the_lock_and_comes_back_with_it
    all_levels_are_left_and_all_are_back
    the_longest_waiting_is_notified_first
    all_are_notified_once
    a_notification_that_finds_nobody_is_nothing
    who_does_not_hold_the_lock_can_neither_wait_nor_notify
    a_wait_that_nobody_notifies_ends_in_time_and_leaves_nothing
    a_cancel_ends_a_wait_with_the_lock_in_hand
    a_shutdown_ends_a_wait_with_nothing_in_hand
    nobody_is_forgotten_and_nobody_told_twice
}

impl Kind {
    fn make(self, client: &Client, name: &str) -> Monitor {
        (self.make)(client, name)
    }
}

fn waiting_key(name: &str) -> String {
    format!("redlatch_condition:{{{name}}}:changed:7")
}

fn notified_key(name: &str) -> String {
    format!("redlatch_notified:{{{name}}}:changed:7")
}

fn waiting(server: &Server, name: &str) -> usize {
    server.connection().llen(waiting_key(name)).unwrap()
}

fn records(server: &Server, name: &str) -> usize {
    server.connection().hlen(notified_key(name)).unwrap()
}

#[track_caller]
fn wait_waiting(server: &Server, name: &str, count: usize) {
    wait_until(&format!("{count} wait for {name:?}"), SOON, || waiting(server, name) == count);
}

fn first_waiting(server: &Server, name: &str) -> String {
    server.connection().lindex(waiting_key(name), 0).unwrap()
}

/// Nobody waits, nobody was notified, nobody holds the lock.
#[track_caller]
fn leaves_nothing(server: &Server, name: &str) {
    wait_until(&format!("nothing of {name:?} is left"), SOON, || {
        let keys: Vec<String> = server.connection().keys("*").unwrap();
        keys.is_empty()
    });
}

/// A thread that takes the lock, waits, and says when it is back.
struct Guest {
    back: Receiver<Instant>,
    leave: Option<Sender<()>>,
    thread: Running<Result<bool, Error>>,
}

impl Guest {
    /// Returns when it stands there.
    fn of(server: &Server, name: &str, monitor: &Monitor, wait: Wait<'static>) -> Self {
        let before = waiting(server, name);
        let guest = Self::begin(monitor, wait);
        wait_waiting(server, name, before + 1);
        guest
    }

    fn begin(monitor: &Monitor, wait: Wait<'static>) -> Self {
        let Monitor { lock, condition, .. } = monitor.clone();
        let (tell, back) = mpsc::channel();
        let (leave, told) = mpsc::channel();
        let thread = spawn(move || {
            let guard = lock.lock()?;
            let notified = condition.wait_within(&guard, wait)?;
            // Nobody may want to know.
            let _ = tell.send(Instant::now());
            // The end of its channel.
            let _ = told.recv();
            guard.unlock()?;
            Ok(notified)
        });
        Self { back, leave: Some(leave), thread }
    }

    /// It leaves the lock as soon as it is back.
    fn passes(mut self) -> Self {
        self.leave = None;
        self
    }

    fn is_back(&self) -> bool {
        self.back.try_recv().is_ok()
    }

    #[track_caller]
    fn wait_back(&self) -> Instant {
        self.back.recv_timeout(SOON).expect("it comes back from its wait")
    }

    fn leaves(self) -> bool {
        drop(self.leave);
        self.thread.join().unwrap()
    }
}

/// All of them, in whatever order they are back: whether each was notified.
fn leave_all(guests: impl IntoIterator<Item = Guest>) -> Vec<bool> {
    let threads: Vec<_> = guests.into_iter().map(|guest| guest.thread).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn notify(monitor: &Monitor) -> bool {
    let guard = monitor.lock.lock().unwrap();
    let told = monitor.condition.notify_one().unwrap();
    guard.unlock().unwrap();
    told
}

// The contract.

fn a_wait_leaves_the_lock_and_comes_back_with_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let guest = Guest::of(&server, "m", &here, Wait::FOREVER);
    let guard = there.lock.lock_within(Wait::at_most(SOON)).unwrap().expect("the lock was left");
    let told = Instant::now();
    assert!(there.condition.notify_one().unwrap());
    guest.thread.wait_asleep();
    assert!(!guest.is_back(), "the notifier has the lock");
    guard.unlock().unwrap();
    let back = guest.wait_back();
    assert!(back - told < BEFORE_A_LOOK, "it heard of it");
    assert!(there.lock.try_lock().unwrap().is_none(), "it has the lock again");
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

fn all_levels_are_left_and_all_are_back(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let Monitor { lock, condition, .. } = here;
    let waiter = spawn(move || {
        let outer = lock.lock().unwrap();
        let middle = lock.lock().unwrap();
        lock.lock().unwrap().forget();
        let inner = lock.lock().unwrap();
        // With an outer one: all the same.
        for guard in [&inner, &outer] {
            condition.wait(guard).unwrap();
            assert_eq!(lock.hold_count(), 4);
            for guard in [&outer, &middle, &inner] {
                assert_eq!(guard.state(), HoldState::Held);
                guard.check(Duration::from_millis(1)).unwrap();
            }
        }
        let last = lock.lock().unwrap();
        assert_eq!(lock.hold_count(), 5);
        condition.wait(&middle).unwrap();
        assert_eq!(lock.hold_count(), 5);
        outer.unlock().unwrap();
        last.unlock().unwrap();
        inner.unlock().unwrap();
        lock.unlock().unwrap();
        assert_eq!((lock.hold_count(), middle.is_held()), (1, true));
        middle.unlock().unwrap();
        assert_eq!(lock.hold_count(), 0);
    });
    for _ in 0..3 {
        wait_waiting(&server, "m", 1);
        assert!(notify(&there));
    }
    waiter.join();
    leaves_nothing(&server, "m");
}

#[test]
fn guards_say_released_while_their_thread_waits() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let monitor = REENTRANT.make(&client, "m");
    let guard = monitor.lock.lock().unwrap();
    let notifier = monitor.clone();
    thread::scope(|scope| {
        let (guard, server) = (&guard, &server);
        let looker = scope.spawn(move || {
            wait_waiting(server, "m", 1);
            wait_until("it is left", SOON, || !guard.is_held());
            assert_eq!((guard.state(), guard.remaining()), (HoldState::Released, Duration::ZERO));
            assert_eq!(guard.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::NotHeld);
            assert!(notify(&notifier));
        });
        monitor.condition.wait(guard).unwrap();
        assert_eq!(guard.state(), HoldState::Held);
        looker.join().unwrap();
    });
    guard.unlock().unwrap();
}

#[test]
fn leases_are_back_with_their_levels() {
    let _bounded = bounded();
    let server = server();
    let (here, other) = (client(&server), client(&server));
    let monitor = REENTRANT.make(&here, "m");
    let there = REENTRANT.make(&other, "m");
    let (short, long) = (UNIT * 100, UNIT * 200);
    let [short_lock, long_lock] = [short, long].map(|lease| (monitor.leased)(&here, "m", lease));
    let condition = monitor.condition.clone();
    let waiter = spawn(move || {
        let outer = short_lock.lock().unwrap();
        let inner = long_lock.lock().unwrap();
        condition.wait(&inner).unwrap();
        outer.check(short + UNIT).unwrap();
        assert!(outer.remaining() <= long);
        inner.unlock().unwrap();
        outer.unlock().unwrap();
    });
    wait_waiting(&server, "m", 1);
    assert!(notify(&there));
    waiter.join();

    // The watchdog keeps what some level wants it to keep. (Long enough for a busy machine: what is
    // renewed too late is lost, and rightly.)
    let lease = UNIT * 20;
    let client = watched(&server, lease);
    let monitor = REENTRANT.make(&client, "w");
    let fixed = (monitor.leased)(&client, "w", lease);
    let watched_lock = Arc::clone(&monitor.lock);
    let condition = monitor.condition.clone();
    let waiter = spawn(move || {
        let outer = fixed.lock().unwrap();
        let inner = watched_lock.lock().unwrap();
        condition.wait(&outer).unwrap();
        thread::sleep(lease * 2);
        assert!(outer.is_held() && inner.is_held());
        inner.unlock().unwrap();
        outer.unlock().unwrap();
    });
    wait_waiting(&server, "w", 1);
    assert!(notify(&REENTRANT.make(&other, "w")));
    waiter.join();
}

/// An outer level that wants a long lease has it when the inner one, which was renewed, has gone.
#[test]
fn a_fixed_lease_is_back_where_an_inner_level_was_renewed() {
    let _bounded = bounded();
    let server = server();
    let lease = RENEWED;
    let client = watched(&server, lease);
    let lock = client.reentrant_lock("mixed");
    let outer = lock.with_lease(UNIT * 300).lock().unwrap();
    let inner = lock.lock().unwrap();
    assert!(!lock.new_condition("never").wait_for(&inner, UNIT).unwrap());
    inner.unlock().unwrap();
    outer.check(lease * 4).unwrap();
    // Time is the subject.
    thread::sleep(lease * 2);
    assert!(outer.is_held());
    outer.unlock().unwrap();
}

#[test]
fn callbacks_go_along_and_a_wait_is_no_loss() {
    let _bounded = bounded();
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let (tell, told) = mpsc::channel();
    let Monitor { lock, condition, .. } = here;
    let waiter = spawn(move || {
        let outer = lock.lock().unwrap();
        let guard = lock.lock().unwrap();
        guard.on_lost(move |why| tell.send(why).unwrap());
        for _ in 0..2 {
            condition.wait(&guard).unwrap();
        }
        assert!(lock.force_unlock().unwrap());
        let lost = guard.unlock().unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::LeaseLost);
        assert_eq!(outer.state(), HoldState::Lost(LostReason::ForceUnlocked));
    });
    for _ in 0..2 {
        wait_waiting(&server, "m", 1);
        assert!(told.try_recv().is_err());
        assert!(notify(&there));
    }
    assert_eq!(told.recv_timeout(SOON), Ok(LostReason::ForceUnlocked));
    waiter.join();
    assert!(told.recv().is_err(), "once");
}

fn the_longest_waiting_is_notified_first(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let guests: Vec<_> = (0..6)
        .map(|at| Guest::of(&server, "m", &kind.make(&clients[at % 2], "m"), Wait::FOREVER))
        .collect();
    let notifier = kind.make(&client(&server), "m");
    for guest in guests {
        assert!(notify(&notifier));
        guest.wait_back();
        assert!(guest.leaves());
    }
    assert!(!notify(&notifier));
    leaves_nothing(&server, "m");
}

fn all_are_notified_once(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let guests: Vec<_> = (0..6)
        .map(|at| Guest::of(&server, "m", &kind.make(&clients[at % 2], "m"), Wait::FOREVER))
        .collect();
    let notifier = kind.make(&clients[0], "m");
    let guard = notifier.lock.lock().unwrap();
    assert_eq!(notifier.condition.notify_all().unwrap(), 6);
    assert_eq!(notifier.condition.notify_all().unwrap(), 0);
    guard.unlock().unwrap();
    assert_eq!(leave_all(guests), [true; 6]);
    leaves_nothing(&server, "m");
}

fn a_notification_that_finds_nobody_is_nothing(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let monitor = kind.make(&client(&server), "m");
    assert!(!notify(&monitor));
    let guard = monitor.lock.lock().unwrap();
    assert_eq!(monitor.condition.notify_all().unwrap(), 0);
    assert!(!monitor.condition.wait_for(&guard, UNIT).unwrap(), "it is not remembered");
    guard.unlock().unwrap();
    leaves_nothing(&server, "m");
}

fn who_does_not_hold_the_lock_can_neither_wait_nor_notify(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let guest = Guest::of(&server, "m", &there, Wait::FOREVER);
    let not_held = |result: Result<u64, Error>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotHeld);
    };
    not_held(here.condition.notify_one().map(u64::from));
    not_held(here.condition.notify_all());

    // Another thread's guard, and another lock's.
    let guard = here.lock.lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| not_held(here.condition.wait(&guard).map(|()| 0)));
    });
    let other = kind.make(&client(&server), "other");
    let others = other.lock.lock().unwrap();
    not_held(here.condition.wait(&others).map(|()| 0));
    assert!(guard.is_held() && others.is_held());
    assert_eq!((here.lock.hold_count(), waiting(&server, "m")), (1, 1));

    // Lost, and known or not.
    let () = server.connection().del("m").unwrap();
    let lost = here.condition.notify_one().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    assert!(!guard.is_held());
    let lost = here.condition.wait(&guard).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    let guard = here.lock.lock().unwrap();
    let () = server.connection().del("m").unwrap();
    let lost = here.condition.wait(&guard).unwrap_err();
    assert_eq!((lost.kind(), guard.is_held()), (ErrorKind::LeaseLost, false));
    assert_eq!(waiting(&server, "m"), 1, "nobody was notified, and nobody came");
    drop(guard);
    assert!(notify(&here));
    assert!(guest.leaves());
}

#[test]
fn a_name_is_needed_and_every_other_one_works() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("m");
    let nameless = lock.new_condition("");
    let guard = lock.lock().unwrap();
    assert_eq!(nameless.wait(&guard).unwrap_err().kind(), ErrorKind::Config);
    assert_eq!(nameless.notify_one().unwrap_err().kind(), ErrorKind::Config);
    guard.unlock().unwrap();
    // Each is a condition of its own, and a notification finds its own lock's and name's alone.
    let names = ["a", " a", "{a}", "a b", "x:1", "\0", "ä}:", &"long".repeat(10_000)];
    let locks = ["x", "{x}", "x y", "x}:b", "x{"];
    let mut guests = Vec::new();
    for lock in locks {
        for name in names {
            let lock = client.reentrant_lock(lock);
            let condition = lock.new_condition(name);
            let leased = REENTRANT.make(&client, "any").leased;
            let monitor = Monitor { lock: Arc::new(lock), leased, condition };
            guests.push((Guest::begin(&monitor, Wait::FOREVER), monitor));
        }
    }
    let all = locks.len() * names.len();
    wait_until("all wait", SOON, || {
        let keys: Vec<String> = server.connection().keys("redlatch_condition*").unwrap();
        keys.len() == all
    });
    for (guest, monitor) in guests {
        assert!(notify(&monitor), "{:?}", monitor.condition);
        guest.wait_back();
        assert!(guest.leaves());
    }
    let keys: Vec<String> = server.connection().keys("redlatch_condition*").unwrap();
    assert_eq!(keys, [""; 0]);
}

// How a wait ends.

fn a_wait_that_nobody_notifies_ends_in_time_and_leaves_nothing(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let monitor = kind.make(&client(&server), "m");
    let guard = monitor.lock.lock().unwrap();
    let begun = Instant::now();
    assert!(!monitor.condition.wait_for(&guard, UNIT).unwrap());
    assert!(begun.elapsed() >= UNIT);
    assert!(!monitor.condition.wait_until(&guard, Instant::now() + UNIT).unwrap());
    assert!(guard.is_held());
    let before = Commands::so_far(&server).scripts();
    for wait in [Duration::ZERO.into(), Instant::now().into(), Wait::NONE] {
        assert!(!monitor.condition.wait_within(&guard, wait).unwrap());
    }
    assert_eq!(Commands::so_far(&server).scripts(), before, "the lock was not left");
    let limit = Wait::at_most(UNIT);
    assert!(!monitor.condition.wait_while_within(&guard, limit, || Ok::<_, Error>(true)).unwrap());
    guard.unlock().unwrap();
    leaves_nothing(&server, "m");
}

fn a_cancel_ends_a_wait_with_the_lock_in_hand(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let token = CancelToken::new();
    let Monitor { lock, condition, .. } = here;
    let cancelled = token.clone();
    let waiter = spawn(move || {
        let outer = lock.lock().unwrap();
        let guard = lock.lock().unwrap();
        let error = condition.wait_cancellable(&guard, &cancelled).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(guard.is_held() && outer.is_held());
        // And at once.
        let error = condition.wait_cancellable(&guard, &cancelled).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(guard.is_held() && outer.is_held());
    });
    wait_waiting(&server, "m", 1);
    let guard = there.lock.lock().unwrap();
    token.cancel();
    wait_waiting(&server, "m", 0);
    assert!(!there.condition.notify_one().unwrap());
    guard.unlock().unwrap();
    waiter.join();
    leaves_nothing(&server, "m");
}

fn a_shutdown_ends_a_wait_with_nothing_in_hand(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (here, other) = (client(&server), client(&server));
    let first = Guest::of(&server, "m", &kind.make(&here, "m"), Wait::FOREVER);
    let second = Guest::of(&server, "m", &kind.make(&other, "m"), Wait::FOREVER);
    here.shutdown();
    let error = first.thread.join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown);
    assert!(notify(&kind.make(&client(&server), "m")));
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_shutdown_of_who_was_notified_passes_it_on() {
    let _bounded = bounded();
    let server = server();
    let (here, other) = (client(&server), client(&server));
    let first = Guest::of(&server, "m", &REENTRANT.make(&here, "m"), Wait::FOREVER);
    let second = Guest::of(&server, "m", &REENTRANT.make(&other, "m"), Wait::FOREVER);
    let there = REENTRANT.make(&client(&server), "m");
    let guard = there.lock.lock().unwrap();
    assert!(there.condition.notify_one().unwrap());
    first.thread.wait_asleep();
    here.shutdown();
    assert_eq!(first.thread.join().unwrap_err().kind(), ErrorKind::ShutDown);
    guard.unlock().unwrap();
    second.wait_back();
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_notification_and_the_end_of_the_time_meet_and_nobody_is_forgotten() {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let there = REENTRANT.make(&client(&server), "m");
    let mut random = Random::new();
    for round in 0..200 {
        let time = Duration::from_micros(2_000 + random.below(4_000));
        let first =
            Guest::of(&server, "m", &REENTRANT.make(&clients[round % 2], "m"), Wait::FOREVER);
        let first = first.passes();
        let timed = Guest::begin(&there, Wait::at_most(time)).passes();
        thread::sleep(Duration::from_micros(random.below(6_000)));
        // The first for certain; the second one or nobody.
        let guard = there.lock.lock().unwrap();
        assert!(there.condition.notify_one().unwrap());
        let told = there.condition.notify_one().unwrap();
        guard.unlock().unwrap();
        assert_eq!(leave_all([first, timed]), [true, told], "they say what became of them");
    }
    leaves_nothing(&server, "m");
}

// Deaths, and what gets lost on the way.

/// Where this executable's workers begin.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "guest" => guest(&job),
        "buffer" => buffer_worker(&job),
        role => panic!("no such role: {role}"),
    }
}

fn kind_named(name: &str) -> Kind {
    if name == FAIR.name { FAIR } else { REENTRANT }
}

fn guest(job: &Job) {
    let lease = Duration::from_millis(job.arg(3).parse().unwrap());
    let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
    let Monitor { lock, condition, .. } = kind_named(job.arg(1)).make(&client, job.arg(2));
    let guard = lock.lock().unwrap();
    job.say("in");
    condition.wait(&guard).unwrap();
    job.say("back");
    let _ = job.wait_line();
    guard.unlock().unwrap();
    job.say("out");
    let _ = job.wait_line();
}

fn process(server: &Server, kind: Kind, name: &str, lease: Duration) -> Worker {
    let before = waiting(server, name);
    let lease = lease.as_millis().to_string();
    let worker = Worker::spawn_test("worker", "guest", &[&server.url(), kind.name, name, &lease]);
    wait_waiting(server, name, before + 1);
    worker
}

#[test]
fn a_waiter_that_was_killed_is_passed_over() {
    let _bounded = bounded();
    let server = server();
    let mut dead = process(&server, REENTRANT, "m", LONG);
    let first = first_waiting(&server, "m");
    let guest = Guest::of(&server, "m", &REENTRANT.make(&client(&server), "m"), Wait::FOREVER);
    dead.sigkill();
    let there = REENTRANT.make(&client(&server), "m");
    wait_deaf(&server, &own_channel(&first));
    let told = Instant::now();
    assert!(notify(&there));
    assert!(guest.wait_back() - told < BEFORE_A_LOOK);
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn who_is_killed_between_its_notification_and_the_lock_leaves_it_to_the_next() {
    let _bounded = bounded();
    let server = server();
    for kind in [REENTRANT, FAIR] {
        let mut dead = process(&server, kind, kind.name, LONG);
        let guest =
            Guest::of(&server, kind.name, &kind.make(&client(&server), kind.name), Wait::FOREVER);
        let there = kind.make(&client(&server), kind.name);
        let guard = there.lock.lock().unwrap();
        assert!(there.condition.notify_one().unwrap());
        assert_eq!(records(&server, kind.name), 1);
        dead.sigkill();
        guard.unlock().unwrap();
        guest.wait_back();
        assert!(guest.leaves());
    }
    leaves_nothing(&server, "m");
}

#[test]
fn who_is_killed_with_the_lock_in_its_hands_leaves_its_notification_to_the_next() {
    let _bounded = bounded();
    let server = server();
    let mut dead = process(&server, REENTRANT, "m", RENEWED * 2);
    let guest = Guest::of(&server, "m", &REENTRANT.make(&client(&server), "m"), Wait::FOREVER);
    assert!(notify(&REENTRANT.make(&client(&server), "m")));
    dead.expect_line("back", SOON);
    // However long it works there.
    thread::sleep(PASSED_ON + UNIT);
    assert_eq!(waiting(&server, "m"), 1, "it lives, and the notification is its own");
    dead.sigkill();
    guest.wait_back();
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn who_was_notified_and_waits_long_for_the_lock_keeps_its_notification() {
    let _bounded = bounded();
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let first = Guest::of(&server, "m", &here, Wait::FOREVER);
    let second = Guest::of(&server, "m", &here, Wait::FOREVER);
    let guard = there.lock.lock().unwrap();
    assert!(there.condition.notify_one().unwrap());
    thread::sleep(PASSED_ON + UNIT);
    assert_eq!(waiting(&server, "m"), 1);
    guard.unlock().unwrap();
    first.wait_back();
    assert!(first.leaves());
    assert!(!second.is_back());
    assert!(notify(&there));
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn who_stands_still_when_it_is_notified_leaves_it_to_the_next() {
    let _bounded = bounded();
    let server = server();
    let mut stopped = process(&server, REENTRANT, "m", LONG);
    let guest = Guest::of(&server, "m", &REENTRANT.make(&client(&server), "m"), Wait::FOREVER);
    let there = REENTRANT.make(&client(&server), "m");
    stopped.sigstop();
    let told = Instant::now();
    assert!(notify(&there));
    let back = guest.wait_back();
    assert!(back - told < PASSED_ON + UNIT * 10, "{:?}", back - told);
    assert!(guest.leaves());
    // And comes back itself: a wake-up in vain, and no harm.
    stopped.sigcont();
    stopped.expect_line("back", SOON);
    stopped.send_line("leave");
    stopped.expect_line("out", SOON);
    leaves_nothing(&server, "m");
}

#[test]
fn who_loses_the_lock_that_it_came_back_with_leaves_its_notification_to_the_next() {
    let _bounded = bounded();
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let first = Guest::of(&server, "m", &here, Wait::FOREVER);
    let second = Guest::of(&server, "m", &here, Wait::FOREVER);
    assert!(notify(&there));
    first.wait_back();
    // By its own client, which tells it.
    assert!(here.lock.force_unlock().unwrap());
    drop(first.leave);
    assert_eq!(first.thread.join().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_notification_of_nobody_is_passed_on_at_once() {
    let _bounded = bounded();
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    // As a request leaves it that came late, of a thread that has given up.
    let guard = here.lock.lock().unwrap();
    let (owner, _) = holder(&mut server.connection(), "m").unwrap();
    let (uuid, _) = owner.split_once(':').unwrap();
    let nobody = format!("{uuid}:{}", u64::MAX);
    let () = server.connection().rpush(waiting_key("m"), &nobody).unwrap();
    guard.unlock().unwrap();
    let guest = Guest::of(&server, "m", &here, Wait::FOREVER);
    let told = Instant::now();
    assert!(notify(&there));
    assert!(guest.wait_back() - told < BEFORE_A_LOOK);
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_message_that_was_lost_costs_a_look() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let here = Client::builder(&proxy.url()).watchdog_timeout(LONG).connect().unwrap();
    let there = REENTRANT.make(&client(&server), "m");
    let guest = Guest::of(&server, "m", &REENTRANT.make(&here, "m"), Wait::FOREVER);
    // The message is lost with its connection, and the next one tells nothing.
    proxy.on_reply("notify ", Action::LoseReply);
    assert!(notify(&there));
    proxy.wait_fired(1, SOON);
    guest.wait_back();
    assert!(guest.leaves());

    // Nobody can hear, and a notification passes it: it finds out by itself.
    let guest = Guest::of(&server, "m", &REENTRANT.make(&here, "m"), Wait::FOREVER);
    let first = first_waiting(&server, "m");
    proxy.refuse();
    assert_eq!(proxy.cut_matching("SUBSCRIBE"), 1);
    wait_deaf(&server, &own_channel(&first));
    assert!(!notify(&there));
    guest.wait_back();
    proxy.accept();
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_request_that_is_sent_twice_changes_things_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let here = Client::builder(&proxy.url()).watchdog_timeout(LONG).connect().unwrap();
    let here = REENTRANT.make(&here, "m");
    let key = waiting_key("m");
    // The server knows the scripts, so a request is one command.
    let guest = Guest::of(&server, "m", &here, Wait::FOREVER).passes();
    assert!(notify(&here));
    assert!(guest.leaves());
    for way in [Action::LoseReply, Action::LoseRequest] {
        // The entry.
        let fired = proxy.fired();
        proxy.on_request(&key, way);
        let first = Guest::of(&server, "m", &here, Wait::FOREVER);
        proxy.wait_fired(fired + 1, SOON);
        let first = first.passes();
        let second = Guest::of(&server, "m", &here, Wait::FOREVER).passes();
        let third = Guest::of(&server, "m", &here, Wait::FOREVER).passes();
        // The notification: of one, and then of the others.
        for (left, all) in [(2, false), (0, true)] {
            let guard = here.lock.lock().unwrap();
            let fired = proxy.fired();
            proxy.on_request(&key, way);
            if all {
                here.condition.notify_all().unwrap();
            } else {
                assert!(here.condition.notify_one().unwrap());
            }
            assert_eq!((proxy.fired(), waiting(&server, "m")), (fired + 1, left));
            guard.unlock().unwrap();
        }
        assert_eq!(leave_all([first, second, third]), [true; 3]);
        leaves_nothing(&server, "m");
    }
}

#[test]
fn keys_that_are_lost_end_the_waits() {
    let _bounded = bounded();
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let guests = [&here, &there].map(|monitor| Guest::of(&server, "m", monitor, Wait::FOREVER));
    let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
    assert_eq!(leave_all(guests), [true; 2], "as if they had been notified");
    leaves_nothing(&server, "m");
}

#[test]
fn an_outage_ends_a_wait_with_nothing_in_hand_and_everything_goes_on_after_it() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let here = impatient(&proxy.url()).connect().unwrap();
    let monitor = REENTRANT.make(&here, "m");
    let (tell, told) = mpsc::channel();
    let Monitor { lock, condition, .. } = monitor;
    let waiter = spawn(move || {
        let outer = lock.lock().unwrap();
        let guard = lock.lock().unwrap();
        let error = condition.wait(&guard).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redis);
        assert!(error.to_string().contains("nothing is held"), "{error}");
        for guard in [&outer, &guard] {
            assert_eq!(guard.state(), HoldState::Released);
        }
        assert_eq!(lock.hold_count(), 0);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
        drop(outer);
        tell.send(()).unwrap();
    });
    // It has left the lock, and heard so.
    wait_waiting(&server, "m", 1);
    wait_free(&server, "m", SOON);
    waiter.wait_queued();
    proxy.freeze();
    told.recv_timeout(SOON).unwrap();
    waiter.join();
    proxy.thaw();
    // What it left behind is passed over, or passed on.
    let there = REENTRANT.make(&client(&server), "m");
    let guest = Guest::begin(&there, Wait::FOREVER).passes();
    wait_until("it is notified", SOON, || {
        let guard = there.lock.lock().unwrap();
        let _ = there.condition.notify_one().unwrap();
        guard.unlock().unwrap();
        guest.is_back()
    });
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn each_right_that_is_missing_is_an_error_or_costs_time_and_loses_nobody() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "poor");
    let poor = user.client();
    let here = REENTRANT.make(&poor, "m");
    let there = REENTRANT.make(&client(&server), "m");
    // What a wait, a notification and their ends need beyond the lock's own rights; and the keys.
    let commands = "HGET HDEL HGETALL HVALS LRANGE PUBSUB PUBLISH RPUSH LPOP LREM LINDEX HSET TIME";
    let mut rights: Vec<_> = commands.split(' ').map(|name| format!("-{name}")).collect();
    rights.push("resetkeys ~m ~redlatch_queue:* ~redlatch_window:*".to_owned());
    for right in rights {
        // It may not wait: then it has the lock as before. Or it may, and is notified.
        user.set(&["~*", "+@all"]);
        let guard = here.lock.lock().unwrap();
        user.set(&right.split(' ').collect::<Vec<_>>());
        let waited = here.condition.wait_for(&guard, UNIT);
        user.set(&["~*", "+@all"]);
        match waited {
            Ok(notified) => assert!(!notified && guard.is_held(), "{right}"),
            Err(error) if guard.is_held() => {
                let said = error.to_string();
                assert!(said.contains("held as before") && said.contains("ACL"), "{right}: {said}");
            }
            Err(error) => {
                assert!(error.to_string().contains("nothing is held"), "{right}: {error}");
            }
        }
        drop(guard);
        // What it could not take back is taken back behind it.
        wait_waiting(&server, "m", 0);
        // It may not notify: nobody was. Or it may, and somebody was.
        let guest = Guest::of(&server, "m", &there, Wait::FOREVER);
        let guard = here.lock.lock().unwrap();
        user.set(&right.split(' ').collect::<Vec<_>>());
        let told = here.condition.notify_one();
        user.set(&["~*", "+@all"]);
        match told {
            Ok(told) => assert!(told, "{right}"),
            Err(error) => {
                assert!(error.to_string().contains("nobody was notified"), "{right}: {error}");
                assert_eq!((waiting(&server, "m"), records(&server, "m")), (1, 0), "{right}");
                assert!(here.condition.notify_one().unwrap());
            }
        }
        guard.unlock().unwrap();
        assert!(guest.leaves());
    }
    // What was left behind is passed over.
    wait_until("nothing is left", SOON, || {
        assert!(here.lock.lock().is_ok_and(|guard| {
            here.condition.notify_all().unwrap();
            guard.unlock().is_ok()
        }));
        let keys: Vec<String> = server.connection().keys("redlatch_*:{m}:*").unwrap();
        keys.is_empty()
    });
}

/// Behind the notification its record could not be taken away, and at each look it would be passed on
/// again.
#[test]
fn who_may_not_take_a_record_away_passes_nothing_on() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let (dead, alive) =
        ("cccccccc-cccc-8ccc-cccc-cccccccccccc:3", "bbbbbbbb-bbbb-8bbb-bbbb-bbbbbbbbbbbb:2");
    let mut listening = server.connection();
    let mut listening = listening.as_pubsub();
    listening.subscribe(format!("redisson_lock__channel:{{redlatch:{}}}", &alive[..36])).unwrap();
    let () = redis.rpush(waiting_key("m"), alive).unwrap();
    let () = redis.hset(notified_key("m"), dead, format!("1 {dead}")).unwrap();
    let mut user = User::new(&server, "keeper");
    let Monitor { lock, condition, .. } = REENTRANT.make(&user.client(), "m");
    let guard = lock.lock().unwrap();
    user.set(&["-hdel"]);
    let error = condition.wait_for(&guard, SOON).unwrap_err();
    assert!(error.to_string().contains("ACL"), "{error}");
    let line: Vec<String> = redis.lrange(waiting_key("m"), 0, -1).unwrap();
    assert!(line.iter().any(|waiter| waiter == alive), "{line:?}");
    assert_eq!(records(&server, "m"), 1);
}

#[test]
fn who_may_not_subscribe_keeps_the_lock_and_does_not_wait() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "deaf");
    user.set(&["-subscribe"]);
    let Monitor { lock, condition, .. } = REENTRANT.make(&user.client(), "m");
    let guard = lock.lock().unwrap();
    let error = condition.wait_for(&guard, UNIT * 20).unwrap_err();
    assert!(error.to_string().contains("held as before"), "{error}");
    assert!(guard.is_held());
    assert_eq!(waiting(&server, "m"), 0);
}

#[test]
fn without_memory_nobody_new_waits_and_who_waits_is_notified() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let here = client(&server);
    let there = REENTRANT.make(&here, "m");
    let guest = Guest::of(&server, "m", &there, Wait::FOREVER).passes();
    let other = here.reentrant_lock("m").new_condition("other");
    let guard = there.lock.lock().unwrap();
    let set = |bytes: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxmemory").arg(bytes).exec(&mut server.connection()).unwrap();
    };
    set("1");
    let error = other.wait_for(&guard, UNIT).unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    assert!(guard.is_held());
    assert!(there.condition.notify_one().unwrap());
    set("0");
    guard.unlock().unwrap();
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

// Many at once.

fn nobody_is_forgotten_and_nobody_told_twice(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let clients: Vec<_> = (0..2).map(|_| client(&server)).collect();
    let (turns, back) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let end = Arc::new(AtomicBool::new(false));
    let waiters: Vec<_> = (0..6)
        .map(|at| {
            let Monitor { lock, condition, .. } = kind.make(&clients[at % 2], "m");
            let (back, end) = (Arc::clone(&back), Arc::clone(&end));
            spawn(move || {
                let guard = lock.lock().unwrap();
                while !end.load(Ordering::SeqCst) {
                    condition.wait(&guard).unwrap();
                    back.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let notifier = kind.make(&client(&server), "m");
    for _ in 0..300 {
        let guard = notifier.lock.lock().unwrap();
        if notifier.condition.notify_one().unwrap() {
            turns.fetch_add(1, Ordering::SeqCst);
        }
        guard.unlock().unwrap();
    }
    wait_until("all are back who were told", SOON, || {
        back.load(Ordering::SeqCst) == turns.load(Ordering::SeqCst)
    });
    let guard = notifier.lock.lock().unwrap();
    end.store(true, Ordering::SeqCst);
    assert_eq!(notifier.condition.notify_all().unwrap(), 6);
    guard.unlock().unwrap();
    waiters.into_iter().for_each(Running::join);
    assert_eq!(back.load(Ordering::SeqCst), turns.load(Ordering::SeqCst) + 6);
    leaves_nothing(&server, "m");
}

/// As many as the buffer holds.
const ROOM: usize = 3;

/// A bounded buffer in Redis. What is put in and taken out is one command each, so that whoever dies
/// has done it or not.
struct Buffer {
    lock: Arc<dyn Lock>,
    not_empty: Condition,
    not_full: Condition,
    redis: redis::Connection,
}

impl Buffer {
    fn new(client: &Client, kind: &str, redis: redis::Connection) -> Self {
        let names = ["not_empty", "not_full"];
        let (lock, [not_empty, not_full]): (Arc<dyn Lock>, _) = if kind == FAIR.name {
            let lock = client.fair_lock("buffer");
            let conditions = names.map(|name| lock.new_condition(name));
            (Arc::new(lock), conditions)
        } else {
            let lock = client.reentrant_lock("buffer");
            let conditions = names.map(|name| lock.new_condition(name));
            (Arc::new(lock), conditions)
        };
        Self { lock, not_empty, not_full, redis }
    }

    fn put(&mut self, goal: usize) -> Result<bool, Error> {
        let Self { lock, not_empty, not_full, redis } = self;
        let guard = lock.lock()?;
        not_full.wait_while(&guard, || Ok::<_, Error>(length(redis) >= ROOM))?;
        if redis.get::<_, Option<usize>>("made").unwrap().unwrap_or(0) >= goal {
            // Nobody puts anything in any more: on to the next who waits to do so.
            not_full.notify_one()?;
            guard.unlock()?;
            return Ok(false);
        }
        not_empty.notify_one()?;
        let () = redis::pipe().atomic().rpush("items", 1).incr("made", 1).query(redis).unwrap();
        guard.unlock()?;
        Ok(true)
    }

    fn take(&mut self) -> Result<(), Error> {
        let Self { lock, not_empty, not_full, redis } = self;
        let guard = lock.lock()?;
        not_empty.wait_while(&guard, || Ok::<_, Error>(length(redis) == 0))?;
        not_full.notify_one()?;
        let _: Option<u64> = redis.rpoplpush("items", "taken").unwrap();
        guard.unlock()
    }

    /// What it did last may not have been protected, or not told.
    fn make_up(&self) -> Result<(), Error> {
        let guard = self.lock.lock()?;
        self.not_empty.notify_all()?;
        self.not_full.notify_all()?;
        guard.unlock()
    }
}

fn length(redis: &mut redis::Connection) -> usize {
    redis.llen("items").unwrap()
}

fn buffer_worker(job: &Job) {
    let [url, data, kind, what] = [0, 1, 2, 3].map(|at| job.arg(at).to_owned());
    let goal: usize = job.arg(4).parse().unwrap();
    let lease = UNIT * 10;
    let client = Client::builder(&url)
        .watchdog_timeout(lease)
        .response_timeout(IMPATIENT)
        .connect_timeout(IMPATIENT)
        .connect()
        .unwrap();
    let client = &client;
    thread::scope(|scope| {
        for _ in 0..2 {
            let redis = redis::Client::open(data.as_str()).unwrap().get_connection().unwrap();
            let mut buffer = Buffer::new(client, &kind, redis);
            let makes = what == "make";
            scope.spawn(move || {
                loop {
                    let done = if makes { buffer.put(goal) } else { buffer.take().map(|()| true) };
                    match done {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(_) => while buffer.make_up().is_err() {},
                    }
                }
            });
        }
        job.say("starts");
    });
    let _ = job.wait_line();
}

/// Plays makers and takers until `goal` have been made and taken, with `trouble` beside them.
fn play(kind: Kind, goal: usize, mut trouble: impl FnMut(&Server, &mut Cast<'_>, &mut Random)) {
    let server = server();
    let proxy = Proxy::before(&server);
    let mut random = Random::new();
    let mut cast = Cast { server: &server, proxy, kind, goal, workers: Vec::new() };
    for what in ["make", "take", "make", "take"] {
        let worker = cast.enter(what);
        cast.workers.push((what, worker));
    }
    let mut redis = server.connection();
    let begun = Instant::now();
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let taken: usize = redis.llen("taken").unwrap();
        if taken >= goal {
            break;
        }
        if taken != last {
            (last, since) = (taken, Instant::now());
        }
        if since.elapsed() > SOON / 2 {
            let keys: Vec<String> = redis.keys("*").unwrap();
            let dump: Vec<_> = keys
                .iter()
                .filter(|key| *key != "taken")
                .map(|key| {
                    let kind: String = redis::cmd("TYPE").arg(key).query(&mut redis).unwrap();
                    let read: redis::Value = match kind.as_str() {
                        "list" => redis.lrange(key, 0, -1).unwrap(),
                        "hash" => redis.hgetall(key).unwrap(),
                        "string" => redis.get(key).unwrap(),
                        _ => redis::Value::Nil,
                    };
                    format!("{key} {read:?}")
                })
                .collect();
            panic!("nobody moves with {taken} of {goal} taken: {dump:#?}");
        }
        if begun.elapsed() < UNIT * 60 {
            trouble(&server, &mut cast, &mut random);
        }
        thread::sleep(UNIT / 10);
    }
    let (made, taken): (usize, usize) = (redis.get("made").unwrap(), redis.llen("taken").unwrap());
    assert!(made <= goal + cast.workers.len() && made == taken + length(&mut redis));
}

struct Cast<'a> {
    server: &'a Server,
    proxy: Proxy,
    kind: Kind,
    goal: usize,
    workers: Vec<(&'static str, Worker)>,
}

impl Cast<'_> {
    fn enter(&self, what: &str) -> Worker {
        let goal = self.goal.to_string();
        let args = [&self.proxy.url(), &self.server.url(), self.kind.name, what, &goal];
        let mut worker = Worker::spawn_test("worker", "buffer", &args);
        worker.expect_line("starts", SOON);
        worker
    }
}

#[test]
fn what_is_made_is_taken_by_many_processes() {
    let _bounded = bounded();
    for kind in [REENTRANT, FAIR] {
        play(kind, 1_500, |_, _, _| {});
    }
}

#[test]
fn what_is_made_is_taken_while_processes_are_killed() {
    let _bounded = bounded();
    for kind in [REENTRANT, FAIR] {
        play(kind, 300, |_, cast, random| {
            if random.below(20) == 0 {
                let at = usize::try_from(random.below(4)).unwrap();
                let what = cast.workers[at].0;
                cast.workers[at].1.sigkill();
                cast.workers[at].1 = cast.enter(what);
            }
        });
    }
}

#[test]
fn what_is_made_is_taken_while_processes_stand_still() {
    let _bounded = bounded();
    for kind in [REENTRANT, FAIR] {
        let mut stopped = None;
        play(kind, 300, |_, cast, random| {
            if random.below(30) != 0 {
                return;
            }
            if let Some(at) = stopped.take() {
                let (_, worker): &(_, Worker) = &cast.workers[at];
                worker.sigcont();
            } else {
                let at = usize::try_from(random.below(4)).unwrap();
                cast.workers[at].1.sigstop();
                stopped = Some(at);
            }
        });
    }
}

#[test]
fn what_is_made_is_taken_over_a_bad_network() {
    let _bounded = bounded();
    for kind in [REENTRANT, FAIR] {
        play(kind, 300, |_, cast, random| {
            let proxy = &cast.proxy;
            match random.below(40) {
                0 => drop(proxy.cut_all()),
                1 => drop(proxy.cut_matching("SUBSCRIBE")),
                2 => proxy.on_reply("notify ", Action::LoseReply),
                3 => proxy.on_request("redlatch_condition", Action::LoseReply),
                4 => proxy.on_request("redlatch_condition", Action::LoseRequest),
                5 => proxy.on(Direction::Reply, 1, Action::DelayReply(UNIT), |_| true),
                6 => proxy.clear_rules(),
                _ => {}
            }
        });
    }
}
