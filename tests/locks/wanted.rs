//! A holder is notified that others wait for its lock. It notices them by a message, by the replies
//! to its renewals and queries, and by threads of its own process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use redis::Commands as _;
use redlatch::{Client, Lock, LockGuard, OwnedLockGuard};
use redlatch_testkit::Server;

use crate::common::{
    Commands, HOUR, LONG_LEASE, SHORT_LEASE, TIME_UNIT, TIMEOUT, channel, has_own_process,
    own_channel, server, spawn, wait_in_line, wait_subscribed, wait_until, watched,
    without_room_for_threads,
};

/// How many times a callback was called.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    fn of<L: ?Sized, O>(guard: &LockGuard<L, O>) -> Self {
        let calls = Self::default();
        calls.count(guard);
        calls
    }

    fn count<L: ?Sized, O>(&self, guard: &LockGuard<L, O>) {
        let calls = self.clone();
        guard.on_wanted(move || {
            calls.0.fetch_add(1, Ordering::SeqCst);
        });
    }

    fn so_far(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn wait(&self, calls: usize) {
        wait_until("the holder hears", TIMEOUT, || self.so_far() >= calls);
        assert_eq!(self.so_far(), calls);
    }
}

/// Adds a waiting process to the queue without a message to the holder, as if the message were
/// lost.
fn wait_unsaid(server: &Server, queue: &str) {
    let waiter = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:1";
    let _: usize = server.connection().rpush(queue, waiter).unwrap();
}

/// Returns a client whose only query of a hold is the question whether others wait.
fn asking(server: &Server) -> Client {
    Client::builder(&server.url()).client_tracking(false).connect().unwrap()
}

/// Waits until the holder has asked whether others wait.
fn wait_asked(server: &Server, before: &Commands) {
    let asked = || Commands::so_far(server).of("hexists") - before.of("hexists");
    wait_until("the holder asks", TIMEOUT, || asked() > 0);
}

fn listens(server: &Server, guard: &LockGuard) {
    wait_subscribed(server, &own_channel(guard.owner().unwrap().as_str()));
}

/// Starts a thread that waits for the lock, and releases it as soon as it has the lock.
fn waits(lock: impl Lock + 'static) -> crate::common::Running<()> {
    spawn(move || drop(lock.lock().unwrap()))
}

/// Returns a guard of each kind, with a function that waits for the same lock with the other
/// client.
fn each_kind(holder: &Client, other: &Client) -> Vec<(LockGuard, Box<dyn FnOnce() + Send>)> {
    fn waiter(lock: impl Lock + 'static) -> Box<dyn FnOnce() + Send> {
        Box::new(move || drop(lock.lock().unwrap()))
    }
    let shared = other.read_write_lock("read");
    let alone = other.read_write_lock("written");
    vec![
        (
            holder.reentrant_lock("plain").with_wanted().lock().unwrap(),
            waiter(other.reentrant_lock("plain")),
        ),
        (
            holder.fenced_lock("fenced").with_wanted().lock().unwrap().into(),
            waiter(other.fenced_lock("fenced")),
        ),
        (holder.fair_lock("fair").with_wanted().lock().unwrap(), waiter(other.fair_lock("fair"))),
        (
            holder.read_write_lock("read").reader().with_wanted().lock().unwrap(),
            waiter(shared.writer().clone()),
        ),
        (
            holder.read_write_lock("written").writer().with_wanted().lock().unwrap(),
            waiter(alone.reader().clone()),
        ),
        (
            holder.reentrant_lock("{tagged}:1").with_wanted().lock().unwrap(),
            waiter(other.reentrant_lock("{tagged}:1")),
        ),
    ]
}

/// The lease is an hour, so no renewal informs the holder.
#[test]
fn a_holder_of_any_kind_hears_by_message() {
    let server = server();
    let (holder, other) = (watched(&server, HOUR), watched(&server, HOUR));
    for (guard, waiter) in each_kind(&holder, &other) {
        let calls = Calls::of(&guard);
        listens(&server, &guard);
        // The holder sends its first query after 100 ms.
        thread::sleep(TIME_UNIT * 3);
        assert!(!guard.is_wanted(), "{}", guard.name());
        assert_eq!(calls.so_far(), 0, "{}", guard.name());
        let waits = spawn(waiter);
        calls.wait(1);
        assert!(guard.is_wanted(), "{}", guard.name());
        guard.unlock().unwrap();
        waits.join();
        assert_eq!(calls.so_far(), 1);
    }
}

/// A holder that got its lock by message still has the mailbox of its wait. The message that others
/// wait must not stay there.
#[test]
fn a_holder_that_waited_before_hears_by_message() {
    let server = server();
    let [first, holder, other] = [(); 3].map(|()| watched(&server, HOUR));
    let locks = |client: &Client| -> [Box<dyn Lock>; 2] {
        [Box::new(client.reentrant_lock("plain")), Box::new(client.fair_lock("fair"))]
    };
    let hearing: [Box<dyn Lock>; 2] = [
        Box::new(holder.reentrant_lock("plain").with_wanted()),
        Box::new(holder.fair_lock("fair").with_wanted()),
    ];
    for ((first, other), lock) in locks(&first).into_iter().zip(locks(&other)).zip(hearing) {
        let before = first.lock().unwrap();
        let gets = spawn(move || lock.lock_owned().unwrap());
        gets.wait_queued();
        wait_subscribed(&server, &own_channel(&format!("{}:0", holder.id())));
        before.unlock().unwrap();
        let guard = gets.join();
        let calls = Calls::of(&guard);
        // The holder sends its first query after 100 ms.
        thread::sleep(TIME_UNIT * 3);
        assert!(!guard.is_wanted(), "{}", guard.name());
        let waits = spawn(move || drop(other.lock().unwrap()));
        calls.wait(1);
        guard.unlock().unwrap();
        waits.join();
    }
}

/// If a waiter comes soon after the grant, the holder's client has not subscribed to messages yet.
#[test]
fn a_holder_listens_first_and_then_looks() {
    let server = server();
    let (holder, other) = (watched(&server, HOUR), watched(&server, HOUR));
    for (guard, waiter) in each_kind(&holder, &other) {
        let waits = spawn(waiter);
        let calls = Calls::of(&guard);
        calls.wait(1);
        guard.unlock().unwrap();
        waits.join();
    }
}

#[test]
fn a_holder_whose_message_is_lost_hears_at_its_renewal() {
    let server = server();
    let client = watched(&server, SHORT_LEASE);
    // The first lock requests a message when others wait, and the second lock does not.
    for (name, lock) in [
        ("told", client.reentrant_lock("told").with_wanted()),
        ("untold", client.reentrant_lock("untold")),
    ] {
        let guard = lock.lock().unwrap();
        let calls = Calls::of(&guard);
        let queue = format!("redlatch_queue:{{{name}}}");
        for times in 1..=2 {
            wait_unsaid(&server, &queue);
            calls.wait(times);
            assert!(guard.is_wanted());
            // The waiter gives up.
            let _: usize = server.connection().del(&queue).unwrap();
            wait_until("it is wanted no longer", TIMEOUT, || !guard.is_wanted());
        }
        assert_eq!(calls.so_far(), 2);
        guard.unlock().unwrap();
    }
}

#[test]
fn a_hold_with_a_fixed_lease_looks_at_each_third_of_it() {
    for hears in [true, false] {
        let server = server();
        let lock = asking(&server).reentrant_lock("fixed").with_lease(SHORT_LEASE * 3);
        let lock = if hears { lock.with_wanted() } else { lock };
        let guard = lock.lock().unwrap();
        let before = Commands::so_far(&server);
        let calls = Calls::of(&guard);
        wait_asked(&server, &before);
        wait_unsaid(&server, "redlatch_queue:{fixed}");
        // The first two questions come before two thirds of the lease are over.
        wait_until("the holder hears", TIMEOUT, || {
            assert!(guard.is_held(), "it was not told in time");
            calls.so_far() == 1
        });
        let _: usize = server.connection().del("redlatch_queue:{fixed}").unwrap();
        guard.unlock().unwrap();
    }
}

/// The hold has a fixed lease, so no renewal finds the waiter. The guard has no callback.
#[test]
fn a_holder_with_a_fixed_lease_whose_message_is_lost_looks_again() {
    let server = server();
    let lock = asking(&server).reentrant_lock("fixed").with_lease(SHORT_LEASE * 3).with_wanted();
    let guard = lock.lock().unwrap();
    let before = Commands::so_far(&server);
    wait_asked(&server, &before);
    wait_unsaid(&server, "redlatch_queue:{fixed}");
    wait_until("the holder looks", TIMEOUT, || guard.is_wanted());
    let _: usize = server.connection().del("redlatch_queue:{fixed}").unwrap();
    wait_until("it is wanted no longer", TIMEOUT, || !guard.is_wanted());
    assert!(guard.is_held());
}

#[test]
fn a_holder_finds_redissons_waiters_at_its_renewal() {
    let server = server();
    let guard =
        watched(&server, SHORT_LEASE).reentrant_lock("shared").with_wanted().lock().unwrap();
    let calls = Calls::of(&guard);
    let mut redisson = server.connection();
    redis::cmd("SUBSCRIBE").arg(channel("shared")).exec(&mut redisson).unwrap();
    calls.wait(1);
    assert!(guard.is_wanted());
    drop(redisson);
    wait_until("it is wanted no longer", TIMEOUT, || !guard.is_wanted());
}

#[test]
fn a_holder_asks_again_when_it_may_have_missed_a_message() {
    let server = server();
    // On a slow machine, the holder's first query may come after the waiter.
    wait_until("the holder looks before the waiter comes", TIMEOUT, || {
        let client = watched(&server, HOUR);
        let guard = client.reentrant_lock("missed").with_wanted().lock().unwrap();
        let quiet = client.reentrant_lock("quiet").lock().unwrap();
        let calls = Calls::of(&guard);
        listens(&server, &guard);
        thread::sleep(TIME_UNIT * 5);
        wait_unsaid(&server, "redlatch_queue:{missed}");
        thread::sleep(TIME_UNIT);
        let looked_before = calls.so_far() == 0;
        wait_until("both holds are tracked", TIMEOUT, || {
            let stats: String =
                redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
            stats.contains("tracking_total_keys:2\r")
        });
        let before = Commands::so_far(&server);
        let mut redis = server.connection();
        let _: usize =
            redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut redis).unwrap();
        calls.wait(1);
        let _: usize = redis.del("redlatch_queue:{missed}").unwrap();
        if looked_before {
            // The new connection queries both tracked keys.
            let queries = || Commands::so_far(&server).of("hexists") - before.of("hexists");
            wait_until("the holder and the subscriber ask", TIMEOUT, || queries() >= 3);
            let renewals = Commands::so_far(&server).of("pexpire") - before.of("pexpire");
            assert_eq!(renewals, 0, "the holder asks, and does not renew its hold");
            assert_eq!(queries(), 3, "the quiet hold asks nothing");
        }
        quiet.unlock().unwrap();
        looked_before
    });
}

/// For a waiting thread of the same process, the holder is notified without a request.
#[test]
fn a_thread_of_the_same_process_wants_the_lock_each_time_that_it_comes() {
    fn comes(lock: impl Lock + Clone + 'static) {
        let guard = lock.lock().unwrap();
        let calls = Calls::of(&guard);
        for times in 1..=3 {
            let (waiter, wait) = (lock.clone(), TIME_UNIT * 20);
            let waits = spawn(move || waiter.try_lock_for(wait).unwrap().into_option().is_some());
            calls.wait(times);
            assert!(guard.is_wanted());
            // A second waiter changes nothing.
            let second = lock.clone();
            let more =
                spawn(move || second.try_lock_for(TIME_UNIT).unwrap().into_option().is_some());
            assert!(!more.join() && !waits.join());
            assert!(!guard.is_wanted());
        }
        assert_eq!(calls.so_far(), 3);
        guard.unlock().unwrap();
    }
    let server = server();
    let client = watched(&server, HOUR);
    comes(client.reentrant_lock("own").with_wanted());
    comes(client.reentrant_lock("own"));
    comes(client.fair_lock("fair"));
}

#[test]
fn a_thread_to_which_the_lock_was_passed_hears_too() {
    let server = server();
    let (client, other) = (watched(&server, HOUR), watched(&server, HOUR));
    let lock = client.reentrant_lock("passed").with_wanted();
    let guard = lock.lock().unwrap();
    let next = lock.clone();
    let other = other.reentrant_lock("passed");
    let (has, had) = mpsc::channel();
    let passed = spawn(move || {
        let guard = next.lock().unwrap();
        has.send(()).unwrap();
        let calls = Calls::of(&guard);
        calls.wait(1);
        guard.unlock().unwrap();
    });
    passed.wait_queued();
    guard.unlock().unwrap();
    had.recv().unwrap();
    waits(other).join();
    passed.join();
}

#[test]
fn a_callback_that_comes_when_others_wait_already_is_called() {
    let server = server();
    let (holder, other, third) =
        (watched(&server, HOUR), watched(&server, HOUR), watched(&server, HOUR));
    let first = holder.reentrant_lock("granted").lock().unwrap();
    let channels = [&other, &third].map(|client| own_channel(&format!("{}:0", client.id())));
    let lock = other.reentrant_lock("granted");
    let second = spawn(move || {
        let guard = lock.lock().unwrap();
        assert!(guard.is_wanted(), "the grant says how many wait");
        let calls = [Calls::of(&guard), Calls::of(&guard)];
        calls.iter().for_each(|calls| calls.wait(1));
    });
    wait_in_line(&server, "granted", 1);
    let third = waits(third.reentrant_lock("granted"));
    wait_in_line(&server, "granted", 2);
    // A release skips a waiter whose client has not subscribed yet.
    channels.iter().for_each(|channel| wait_subscribed(&server, channel));
    drop(first);
    second.join();
    third.join();
}

/// The callbacks' thread already runs, so a callback comes as fast as a thread can be woken.
#[test]
fn a_callback_needs_no_new_thread() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let lock = watched(&server, HOUR).reentrant_lock("ready");
    let guard = lock.lock_owned().unwrap();
    let calls = Calls::of(&guard);
    without_room_for_threads(|| {
        assert!(lock.try_lock_for(TIME_UNIT).unwrap().into_option().is_none());
        calls.wait(1);
    });
    guard.unlock().unwrap();
}

#[test]
fn a_callback_may_unlock_and_panic() {
    let server = server();
    let (holder, other) = (watched(&server, HOUR), watched(&server, HOUR));
    let guard = holder.reentrant_lock("left").with_wanted().lock_owned().unwrap();
    let kept: Arc<Mutex<Option<OwnedLockGuard>>> = Arc::default();
    let leaves = Arc::clone(&kept);
    guard.on_wanted(|| panic!("planted"));
    guard.on_wanted(move || {
        let guard = leaves.lock().unwrap().take();
        guard.unwrap().unlock().unwrap();
    });
    *kept.lock().unwrap() = Some(guard);
    waits(other.reentrant_lock("left")).join();
    assert!(kept.lock().unwrap().is_none());
}

/// A newer version of a program asks the old leader to resign.
#[test]
fn a_leader_hears_that_others_campaign() {
    let server = server();
    let (holder, other) = (watched(&server, HOUR), watched(&server, HOUR));
    let leadership = holder.leader_election("boss").with_wanted().campaign().unwrap();
    let calls = Calls::default();
    let counts = calls.clone();
    leadership.on_wanted(move || {
        counts.0.fetch_add(1, Ordering::SeqCst);
    });
    assert!(!leadership.is_wanted());
    let campaigns = spawn(move || {
        other.leader_election("boss").campaign().unwrap().resign().unwrap();
    });
    calls.wait(1);
    assert!(leadership.is_wanted());
    assert_eq!(holder.snapshot().counts.wanted, 1);
    leadership.resign().unwrap();
    campaigns.join();
}

#[test]
fn a_guard_that_has_left_is_called_no_more() {
    let server = server();
    let (holder, other) = (watched(&server, HOUR), watched(&server, HOUR));
    let lock = holder.reentrant_lock("over").with_wanted();
    let guard = lock.lock().unwrap();
    let calls = Calls::of(&guard);
    guard.unlock().unwrap();
    let again = lock.lock().unwrap();
    let heard = Calls::of(&again);
    let waits = waits(other.reentrant_lock("over"));
    heard.wait(1);
    drop(again);
    waits.join();
    assert_eq!(calls.so_far(), 0);
}

/// A thread that comes back from a wait on a condition has another hold.
#[test]
fn a_guard_is_called_again_after_a_wait_on_a_condition() {
    let server = server();
    let (holder, other) = (watched(&server, SHORT_LEASE), watched(&server, SHORT_LEASE));
    for (name, lock) in [
        ("hears", holder.reentrant_lock("hears").with_wanted()),
        ("asks", holder.reentrant_lock("asks")),
        ("fixed", holder.reentrant_lock("fixed").with_lease(TIMEOUT / 2)),
    ] {
        let (condition, guard) = (lock.condition("changed"), lock.lock().unwrap());
        let calls = Calls::of(&guard);
        let (other, (go, goes)) = (other.reentrant_lock(name), mpsc::channel());
        let waits = spawn(move || {
            let guard = other.lock().unwrap();
            other.condition("changed").notify_all().unwrap();
            guard.unlock().unwrap();
            goes.recv().unwrap();
            drop(other.lock().unwrap());
        });
        calls.wait(1);
        condition.wait(&guard).unwrap();
        assert!(!guard.is_wanted());
        // The holder has sent its first query.
        thread::sleep(TIME_UNIT * 5);
        assert_eq!(calls.so_far(), 1);
        go.send(()).unwrap();
        calls.wait(2);
        assert!(guard.is_wanted());
        guard.unlock().unwrap();
        waits.join();
    }
}

#[test]
fn several_locks_are_wanted_if_one_is() {
    let server = server();
    let (holder, other) = (watched(&server, HOUR), watched(&server, HOUR));
    let both = holder.multi_lock(["one", "two"]).unwrap().with_wanted().lock().unwrap();
    let calls = Calls::of(&both);
    assert!(!both.is_wanted());
    let waits = waits(other.reentrant_lock("two"));
    calls.wait(1);
    assert!(both.is_wanted());
    both.unlock().unwrap();
    waits.join();
}

#[test]
fn a_writer_may_come_while_the_same_process_reads() {
    let server = server();
    let client = watched(&server, HOUR);
    let lock = client.read_write_lock("both");
    let guard = lock.reader().with_wanted().lock().unwrap();
    let calls = Calls::of(&guard);
    let waits = waits(lock.writer().clone());
    calls.wait(1);
    guard.unlock().unwrap();
    waits.join();
}

/// Waiting readers that get the lock share the hold, and wait no longer.
#[test]
fn readers_that_wait_behind_a_writer_want_the_lock_each_time_that_they_come() {
    let server = server();
    let lock = watched(&server, HOUR).read_write_lock("shared");
    let guard = lock.reader().lock().unwrap();
    let calls = Calls::of(&guard);
    for times in 1..=3 {
        let (writer, wait) = (lock.writer().clone(), TIME_UNIT * 20);
        let writes = spawn(move || writer.try_lock_for(wait).unwrap().into_option().is_some());
        writes.wait_queued();
        let reads = [(); 2].map(|()| waits(lock.reader().clone()));
        reads.iter().for_each(|reads| reads.wait_queued());
        calls.wait(times);
        assert!(!writes.join());
        reads.into_iter().for_each(|reads| reads.join());
        assert!(!guard.is_wanted());
    }
    guard.unlock().unwrap();
}

/// A hold whose guards do not want to be notified causes no additional requests.
#[test]
fn a_holder_that_does_not_want_to_hear_is_told_nothing() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let (holder, other) = (watched(&server, LONG_LEASE), watched(&server, LONG_LEASE));
    let mut messages = server.connection();
    redis::cmd("PSUBSCRIBE").arg("*{redlatch:*").exec(&mut messages).unwrap();
    let guard = holder.reentrant_lock("quiet").lock().unwrap();
    let waits = waits(other.reentrant_lock("quiet"));
    wait_in_line(&server, "quiet", 1);
    guard.unlock().unwrap();
    waits.join();
    // This message comes after all other messages.
    let _: usize = server.connection().publish("{redlatch:}", "the end").unwrap();
    loop {
        let message = format!("{:?}", messages.recv_response().unwrap());
        assert!(!message.contains("want "), "{message}");
        if message.contains("the end") {
            return;
        }
    }
}
