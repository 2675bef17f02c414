//! Conditions: threads that hold a lock wait for each other, across clients and processes.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Condition, Error, ErrorKind, HoldState, Lock, LockGuard, LostReason, Wait,
};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The maximum delay of a notification if its receiver is paused: `ALIVE_FOR` in `waiters.lua`,
/// plus the time until the other waiters check, which is [`MIN_POLL_INTERVAL`] as for a lock's
/// waiters.
const PASSED_ON: Duration = Duration::from_millis(2_000 + 1_200);

/// The kind of lock in a test.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    make: fn(&Client, &str) -> Monitor,
}

/// A lock and one of its conditions.
#[derive(Clone)]
struct Monitor {
    lock: Arc<dyn Lock>,
    leased: fn(&Client, &str, Duration) -> Arc<dyn Lock>,
    condition: Condition,
}

macro_rules! kind {
    ($name:literal, $lock:expr) => {
        Kind {
            name: $name,
            make: |client, name| {
                let lock = $lock(client, name);
                let condition = lock.condition("changed");
                let leased = |client: &Client, name: &str, lease: Duration| {
                    Arc::new($lock(client, name).with_lease(lease)) as Arc<dyn Lock>
                };
                Monitor { lock: Arc::new(lock), leased, condition }
            },
        }
    };
}

const REENTRANT: Kind = kind!("reentrant", Client::reentrant_lock);
const FAIR: Kind = kind!("fair", Client::fair_lock);
const FENCED: Kind = kind!("fenced", Client::fenced_lock);
const WRITER: Kind = kind!("writer", |client: &Client, name: &str| {
    client.read_write_lock(name).writer().clone()
});
const ALL: [Kind; 4] = [REENTRANT, FAIR, FENCED, WRITER];

macro_rules! of_all_locks {
    ($($test:ident)*) => {
        of_all_locks! {
            @ ($($test)*)
            mod reentrant of REENTRANT; mod fair of FAIR; mod fenced of FENCED; mod writer of WRITER;
        }
    };
    (@ $tests:tt $(mod $name:ident of $kind:ident;)*) => {
        $(of_all_locks! { @@ $tests $name $kind })*
    };
    (@@ ($($test:ident)*) $name:ident $kind:ident) => {
        mod $name {
            $(#[test] fn $test() { super::$test(super::$kind) })*
        }
    };
}

mod deaths;
mod ending;
mod many;

of_all_locks! {
    a_wait_leaves_the_lock_and_comes_back_with_it
    all_levels_are_left_and_all_are_back
    the_longest_waiting_is_notified_first
    all_are_notified_once
    a_notification_without_a_waiter_is_not_remembered
    a_thread_without_the_lock_can_neither_wait_nor_notify
    guards_say_released_while_their_thread_waits
    callbacks_go_along_and_a_wait_is_no_loss
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
    wait_until(&format!("{count} wait for {name:?}"), TIMEOUT, || waiting(server, name) == count);
}

fn first_waiting(server: &Server, name: &str) -> String {
    server.connection().lindex(waiting_key(name), 0).unwrap()
}

/// Asserts that no thread waits, is notified, or holds the lock. (The token key of a fenced lock
/// remains.)
#[track_caller]
fn leaves_nothing(server: &Server, name: &str) {
    wait_until(&format!("nothing of {name:?} is left"), TIMEOUT, || {
        let keys: Vec<String> = server.connection().keys("*").unwrap();
        keys.iter().all(|key| key.starts_with("redisson_lock_token:"))
    });
}

/// A thread that takes the lock, waits on the condition, and reports the end of its wait.
struct Guest {
    back: Receiver<Instant>,
    leave: Option<Sender<()>>,
    thread: Running<Result<bool, Error>>,
}

impl Guest {
    /// Starts a guest. Returns when the guest waits.
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
            let notified = !condition.wait_within(&guard, wait)?.timed_out();
            // The receiver may have been dropped.
            let _ = tell.send(Instant::now());
            // Blocks until the test drops the sender.
            let _ = told.recv();
            guard.unlock()?;
            Ok(notified)
        });
        Self { back, leave: Some(leave), thread }
    }

    /// Makes the guest release the lock as soon as its wait has returned.
    fn passes(mut self) -> Self {
        self.leave = None;
        self
    }

    fn is_back(&self) -> bool {
        self.back.try_recv().is_ok()
    }

    #[track_caller]
    fn wait_back(&self) -> Instant {
        self.back.recv_timeout(TIMEOUT).expect("it comes back from its wait")
    }

    fn leaves(self) -> bool {
        drop(self.leave);
        self.thread.join().unwrap()
    }
}

/// Makes all guests release the lock, in the order in which their waits returned. Returns whether
/// each guest was notified.
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
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    woken_by_message(|| {
        let guest = Guest::of(&server, "m", &here, Wait::FOREVER);
        let wait = Wait::at_most(TIMEOUT);
        let guard = there.lock.lock_within(wait).unwrap().into_option().expect("the lock was left");
        assert!(there.condition.notify_one().unwrap());
        guest.thread.wait_asleep();
        assert!(!guest.is_back(), "the notifier has the lock");
        guard.unlock().unwrap();
        guest.wait_back();
        assert!(there.lock.try_lock().unwrap().into_option().is_none(), "it has the lock again");
        assert!(guest.leaves());
        leaves_nothing(&server, "m");
    });
}

fn all_levels_are_left_and_all_are_back(kind: Kind) {
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let Monitor { lock, condition, .. } = here;
    let waiter = spawn(move || {
        let outer = lock.lock().unwrap();
        let middle = lock.lock().unwrap();
        lock.lock().unwrap().forget();
        let inner = lock.lock().unwrap();
        // A wait with the inner guard and a wait with the outer guard have the same effect.
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

fn guards_say_released_while_their_thread_waits(kind: Kind) {
    let server = server();
    let client = client(&server);
    let monitor = kind.make(&client, "m");
    let guard = monitor.lock.lock().unwrap();
    let notifier = monitor.clone();
    thread::scope(|scope| {
        let (guard, server) = (&guard, &server);
        let looker = scope.spawn(move || {
            wait_waiting(server, "m", 1);
            wait_until("it is left", TIMEOUT, || !guard.is_held());
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
fn after_a_wait_on_a_condition_each_level_has_its_lease_again() {
    let server = server();
    let (here, other) = (client(&server), client(&server));
    let monitor = REENTRANT.make(&here, "m");
    let there = REENTRANT.make(&other, "m");
    let (short, long) = (TIME_UNIT * 100, TIME_UNIT * 200);
    let [short_lock, long_lock] = [short, long].map(|lease| (monitor.leased)(&here, "m", lease));
    let condition = monitor.condition.clone();
    let waiter = spawn(move || {
        let outer = short_lock.lock().unwrap();
        let inner = long_lock.lock().unwrap();
        condition.wait(&inner).unwrap();
        outer.check(short + TIME_UNIT).unwrap();
        assert!(outer.remaining() <= long);
        inner.unlock().unwrap();
        outer.unlock().unwrap();
    });
    wait_waiting(&server, "m", 1);
    assert!(notify(&there));
    waiter.join();

    // The watchdog renews the lease as long as one of the two guards needs a renewed lease.
    let lease = SHORT_LEASE;
    let client = watched(&server, lease);
    let monitor = REENTRANT.make(&client, "w");
    let fixed = (monitor.leased)(&client, "w", lease);
    let watched_lock = Arc::clone(&monitor.lock);
    let condition = monitor.condition.clone();
    let waiter = spawn(move || {
        let outer = fixed.lock().unwrap();
        let inner = watched_lock.lock().unwrap();
        condition.wait(&outer).unwrap();
        thread::sleep(lease * 3 / 2);
        assert!(outer.is_held() && inner.is_held());
        inner.unlock().unwrap();
        outer.unlock().unwrap();
    });
    wait_waiting(&server, "w", 1);
    assert!(notify(&REENTRANT.make(&other, "w")));
    waiter.join();
}

/// The inner guard has a renewed lease, and the outer guard has a longer, fixed lease. After the
/// drop of the inner guard, the outer guard has its full lease again.
#[test]
fn after_a_wait_on_a_condition_an_outer_fixed_lease_is_whole_again() {
    let server = server();
    let lease = SHORT_LEASE;
    let client = watched(&server, lease);
    let lock = client.reentrant_lock("mixed");
    let outer = lock.with_lease(TIME_UNIT * 300).lock().unwrap();
    let inner = lock.lock().unwrap();
    assert!(lock.condition("never").wait_for(&inner, TIME_UNIT).unwrap().timed_out());
    inner.unlock().unwrap();
    outer.check(lease * 4).unwrap();
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(lease * 3 / 2);
    assert!(outer.is_held());
    outer.unlock().unwrap();
}

/// After its wait, the thread requests the lease of the outer guard, and this request may arrive
/// too late.
#[test]
fn a_wait_on_a_condition_that_ends_with_the_lock_lost_says_so() {
    let server = server();
    let proxy = Proxy::before(&server);
    // The client gets no other sign of the loss, because the next renewal comes much later.
    let client = Client::builder(&proxy.url()).client_tracking(false).connect().unwrap();
    let lock = client.reentrant_lock("gone");
    let outer = lock.with_lease(Duration::from_secs(7_200)).lock().unwrap();
    let inner = lock.lock().unwrap();
    let redis = Mutex::new(server.connection());
    proxy.on(Direction::Request, 1, Action::DelayReply(Duration::ZERO), move |bytes| {
        let asks = bytes.windows(7).any(|part| part == b"7200000");
        if asks {
            let () = redis.lock().unwrap().del("gone").unwrap();
        }
        asks
    });
    // The wait is long enough to release the lock first.
    let lost = lock.condition("never").wait_for(&inner, TIME_UNIT * 10).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    assert!(lost.to_string().contains("nothing is held any more"), "{lost}");
    for guard in [&inner, &outer] {
        assert_eq!(guard.state(), HoldState::Lost(LostReason::Revoked));
    }
    assert_eq!(inner.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(outer.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
}

/// The lease ends before the request arrives. The server's reply would be the same if another
/// client had taken the lock away, but the error must not say this.
#[test]
fn a_request_that_comes_after_the_lease_says_that_it_ran_out() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).response_timeout(TIMEOUT).connections(1);
    let client = client.connect().unwrap();
    let lease = TIME_UNIT * 10;
    let lock = client.reentrant_lock("late");
    let lock = lock.with_lease(lease);
    let condition = lock.condition("changed");
    type Uses = fn(&Condition, LockGuard<dyn Lock>) -> Error;
    let uses: [Uses; 3] = [
        |condition, guard| condition.wait(&guard).unwrap_err(),
        |condition, _guard| condition.notify_one().unwrap_err(),
        |_, guard| guard.unlock().unwrap_err(),
    ];
    for uses in uses {
        let guard = lock.lock().unwrap();
        proxy.on(Direction::Request, 1, Action::DelayReply(Duration::ZERO), move |bytes| {
            let is_it = contains(bytes, "EVAL") && contains(bytes, "late");
            if is_it {
                // A server ends a lease up to a millisecond late.
                thread::sleep(lease + TIME_UNIT / 10);
            }
            is_it
        });
        let error = uses(&condition, guard);
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
        assert!(error.to_string().contains("its lease ran out"), "{error}");
    }
    assert_eq!(proxy.fired(), 3);
}

fn callbacks_go_along_and_a_wait_is_no_loss(kind: Kind) {
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
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
    assert_eq!(told.recv_timeout(TIMEOUT), Ok(LostReason::ForceUnlocked));
    waiter.join();
    assert!(told.recv().is_err(), "once");
}

/// Another thread has the lock during the wait. After a store has received the token of that
/// thread, it refuses the token from before the wait, and accepts the token from after it.
#[test]
fn a_fenced_guard_has_the_token_of_its_new_hold_after_a_wait() {
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| client.fenced_lock("m"));
    let [changed, change] = [&here, &there].map(|lock| lock.condition("changed"));
    let waiter = spawn(move || {
        let outer = here.lock().unwrap();
        let inner = here.lock().unwrap();
        let mut tokens = vec![inner.token()];
        for _ in 0..2 {
            changed.wait(&inner).unwrap();
            assert_eq!(inner.token(), outer.token());
            assert_eq!(here.lock().unwrap().token(), outer.token());
            tokens.push(inner.token());
        }
        inner.unlock().unwrap();
        outer.unlock().unwrap();
        tokens
    });
    let mut between = Vec::new();
    for _ in 0..2 {
        wait_waiting(&server, "m", 1);
        let guard = there.lock().unwrap();
        between.push(guard.token());
        assert!(change.notify_one().unwrap());
        guard.unlock().unwrap();
    }
    let own = waiter.join();
    let in_order = [own[0], between[0], own[1], between[1], own[2]];
    assert!(in_order.is_sorted_by(|earlier, later| earlier < later), "{in_order:?}");
    leaves_nothing(&server, "m");
}

/// If the writer released its write lock for the wait, it could not take the write lock again,
/// because its own read hold would exclude it.
#[test]
fn a_writer_that_reads_as_well_does_not_leave_the_lock_to_wait() {
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| client.read_write_lock("m"));
    let (writer, changed) = (here.writer(), here.writer().condition("changed"));
    let writes = writer.lock().unwrap();
    let reads = here.reader().lock().unwrap();
    let refused = changed.wait(&writes).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldDeadlock, "{refused}");
    assert!(writes.is_held() && reads.is_held());
    // A reader's guard is not a writer's guard: a reader can neither wait nor notify.
    assert_eq!(changed.wait(&reads).unwrap_err().kind(), ErrorKind::NotHeld);
    reads.unlock().unwrap();
    let reader = spawn(move || {
        let guard = there.reader().lock().unwrap();
        let change = there.writer().condition("changed");
        assert_eq!(change.notify_one().unwrap_err().kind(), ErrorKind::NotHeld);
        guard.unlock().unwrap();
    });
    // The thread has released the lock during the wait, so other threads read.
    assert!(changed.wait_for(&writes, TIME_UNIT).unwrap().timed_out());
    assert!(writes.is_held());
    writes.unlock().unwrap();
    reader.join();
    leaves_nothing(&server, "m");
}

fn the_longest_waiting_is_notified_first(kind: Kind) {
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

fn a_notification_without_a_waiter_is_not_remembered(kind: Kind) {
    let server = server();
    let monitor = kind.make(&client(&server), "m");
    assert!(!notify(&monitor));
    let guard = monitor.lock.lock().unwrap();
    assert_eq!(monitor.condition.notify_all().unwrap(), 0);
    assert!(
        monitor.condition.wait_for(&guard, TIME_UNIT).unwrap().timed_out(),
        "it is not remembered"
    );
    guard.unlock().unwrap();
    leaves_nothing(&server, "m");
}

fn a_thread_without_the_lock_can_neither_wait_nor_notify(kind: Kind) {
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let guest = Guest::of(&server, "m", &there, Wait::FOREVER);
    let not_held = |result: Result<u64, Error>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NotHeld);
    };
    not_held(here.condition.notify_one().map(u64::from));
    not_held(here.condition.notify_all());

    // The guard must belong to this thread and to this lock.
    let guard = here.lock.lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| not_held(here.condition.wait(&guard).map(|()| 0)));
    });
    let other = kind.make(&client(&server), "other");
    let others = other.lock.lock().unwrap();
    not_held(here.condition.wait(&others).map(|()| 0));
    assert!(guard.is_held() && others.is_held());
    assert_eq!((here.lock.hold_count(), waiting(&server, "m")), (1, 1));

    // The hold is lost. In one case the client knows this, in the other it does not.
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
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("m");
    let nameless = lock.condition("");
    let guard = lock.lock().unwrap();
    assert_eq!(nameless.wait(&guard).unwrap_err().kind(), ErrorKind::Config);
    assert_eq!(nameless.notify_one().unwrap_err().kind(), ErrorKind::Config);
    guard.unlock().unwrap();
    // Each name is a separate condition: a notification finds only its own waiters.
    let names = ["a", " a", "{a}", "a b", "x:1", "\0", "ä}:", &"long".repeat(10_000)];
    let locks = ["x", "{x}", "x y", "x}:b", "x{"];
    let mut guests = Vec::new();
    for lock in locks {
        for name in names {
            let lock = client.reentrant_lock(lock);
            let condition = lock.condition(name);
            let leased = REENTRANT.make(&client, "any").leased;
            let monitor = Monitor { lock: Arc::new(lock), leased, condition };
            guests.push((Guest::begin(&monitor, Wait::FOREVER), monitor));
        }
    }
    let all = locks.len() * names.len();
    wait_until("all wait", TIMEOUT, || {
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
