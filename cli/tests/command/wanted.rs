//! `redlatch run --on-wanted`: the command gets a signal when another process waits for its lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redlatch::{CancelToken, Client, Lock, Wait};
use redlatch_testkit::Server;
use rustix::process::Signal;

/// A script that prints how often it got the signal.
const COUNTS: &str = "n=0; trap 'n=$((n+1)); echo wanted $n' USR1; trap 'echo end $n; exit 0' TERM; \
                      echo on; while :; do sleep 0.05; done";
/// The holder queries every three seconds whether others wait. The lease survives a machine that
/// stands still for four seconds.
const ASKS_OFTEN: [&str; 4] = ["--lease", "9", "--on-wanted", "USR1"];

/// The option for a kind of lock, and a lock that it excludes.
type Kind = (&'static [&'static str], fn(&Client) -> Box<dyn Lock>);
const KINDS: [Kind; 5] = [
    (&["--on-wanted", "USR1"], |client| Box::new(client.reentrant_lock("plain"))),
    (&["--on-wanted=SIGUSR1", "--fair"], |client| Box::new(client.fair_lock("fair"))),
    (&["--on-wanted=usr1", "--fenced"], |client| Box::new(client.fenced_lock("fenced"))),
    (&["--on-wanted=USR1", "-s"], |client| {
        Box::new(client.read_write_lock("read").writer().clone())
    }),
    (&["--on-wanted=USR1", "-x"], |client| {
        Box::new(client.read_write_lock("written").reader().clone())
    }),
];

/// Whether each process in the queue has subscribed to its own channel.
fn all_listen(server: &Server, watcher: &Client) -> bool {
    let mut redis = server.connection();
    watcher.status("orders").unwrap().queue.iter().all(|waiter| {
        let client = waiter.owner.as_str().split(':').next().unwrap();
        let channel = format!("redisson_lock__channel:{{redlatch:{client}}}");
        let (_, listeners): (String, u64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(&mut redis).unwrap();
        listeners > 0
    })
}

/// The lease is an hour, so only a message can notify the holder in time.
#[test]
fn a_command_whose_lock_is_wanted_can_end_early() {
    let server = server();
    for (options, theirs) in KINDS {
        let theirs = theirs(&client(&server));
        let options = [&["--lease", "1h"], options].concat();
        let script = "trap 'exit 5' USR1; echo on; while :; do sleep 0.05; done";
        let mut running = start(&server.url(), &options, theirs.name(), script);
        assert_eq!(running.line(), "on");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(theirs.lock().unwrap()));
            assert_eq!(running.ends(), Some(5), "{options:?}");
            waiter.join().unwrap();
        });
    }
}

#[test]
fn a_command_gets_no_signal_while_nobody_waits() {
    let server = server();
    let mut running = start(&server.url(), &ASKS_OFTEN, "orders", COUNTS);
    assert_eq!(running.line(), "on");
    thread::sleep(Duration::from_secs(4));
    running.signal(Signal::TERM);
    assert_eq!(running.line(), "end 0");
    assert_eq!(running.ends(), Some(0));
}

#[test]
fn all_that_wait_at_the_same_time_cause_one_signal() {
    let server = server();
    let mut running = start(&server.url(), &ASKS_OFTEN, "orders", COUNTS);
    assert_eq!(running.line(), "on");
    let gives_up = CancelToken::new();
    thread::scope(|scope| {
        let waits = || {
            let lock = client(&server).reentrant_lock("orders");
            let cancelled = lock.lock_within(Wait::FOREVER.cancelled_by(&gives_up));
            cancelled.map(drop).unwrap_err();
        };
        scope.spawn(waits);
        assert_eq!(running.line(), "wanted 1");
        scope.spawn(waits);
        wait_in_line(&client(&server), "orders", 2);
        thread::sleep(Duration::from_secs(4));
        gives_up.cancel();
    });
    running.signal(Signal::TERM);
    assert_eq!(running.line(), "end 1");
    assert_eq!(running.ends(), Some(0));
}

#[test]
fn a_command_gets_the_signal_again_when_others_come_to_wait_again() {
    let server = server();
    let mut running = start(&server.url(), &ASKS_OFTEN, "orders", COUNTS);
    assert_eq!(running.line(), "on");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let lock = client(&server).reentrant_lock("orders");
            while !is_done.load(Ordering::SeqCst) {
                drop(lock.try_lock_for(Duration::from_secs(4)).unwrap());
                // The holder notices that nobody waits.
                thread::sleep(Duration::from_secs(4));
            }
        });
        let lines = [running.line(), running.line()];
        is_done.store(true, Ordering::SeqCst);
        assert_eq!(lines, ["wanted 1", "wanted 2"]);
    });
    running.signal(Signal::TERM);
    assert_eq!(running.ends(), Some(0));
}

/// The signal would kill a shell that has not set its trap yet.
#[test]
fn a_command_whose_lock_is_wanted_from_the_start_has_a_second_to_set_its_trap() {
    let server = server();
    let (watcher, first) = (client(&server), client(&server).reentrant_lock("orders"));
    let guard = first.lock().unwrap();
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            let options = ["--lease", "1h", "--on-wanted", "USR1"];
            start(&server.url(), &options, "orders", &format!("sleep 0.3; {COUNTS}"))
        });
        wait_in_line(&watcher, "orders", 1);
        let waiter = scope.spawn(|| drop(client(&server).reentrant_lock("orders").lock().unwrap()));
        wait_in_line(&watcher, "orders", 2);
        // A release skips a waiter whose client has not subscribed yet.
        wait_until("they listen", TIMEOUT, || all_listen(&server, &watcher));
        let begun = Instant::now();
        guard.unlock().unwrap();
        let mut running = run.join().unwrap();
        assert_eq!([running.line(), running.line()], ["on", "wanted 1"]);
        assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
        running.signal(Signal::TERM);
        assert_eq!(running.line(), "end 1");
        assert_eq!(running.ends(), Some(0));
        waiter.join().unwrap();
    });
}
