//! Whatever happens to `redlatch run`, the server or the network, no process of a command's group
//! is alive when another client has the lock.

// These tests read `/proc`.
#![cfg(target_os = "linux")]

use std::env;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::*;
use redlatch_testkit::Proxy;
use rustix::process::{Pid, Signal, getpgrp, kill_process, setpgid};

/// The command, its child and its grandchild ignore TERM.
const STUBBORN: &str = "trap '' TERM; (trap '' TERM; (trap '' TERM; echo deep; sleep 60) & sleep \
                        60) & while :; do sleep 0.05; done";
const GROUP: &str = "REDLATCH_TEST_GROUP";
/// This lease survives a machine that stands still for a second and a half.
const OPTIONS: [&str; 4] = ["--lease", "3000ms", "-k", "300ms"];

/// Returns the result of a round. Repeats a failed round if the machine stood still: then no
/// renewal comes in time, and the guardian and the next client wake up at the same time.
fn unless_still<T>(round: impl Fn() -> Result<T, String>) -> T {
    for _ in 0..20 {
        let still = Standstill::watch();
        match round() {
            Ok(result) => return result,
            Err(wrong) => {
                let still = still.longest();
                assert!(still > Duration::from_millis(100), "{wrong}; still for {still:?}");
            }
        }
    }
    panic!("the machine stands still in every round");
}

/// Runs the stubborn command, calls `fault`, and checks its group when another client gets the
/// lock. Returns the status of `redlatch run`, if it has one.
fn after(name: &str, fault: impl Fn(&Running, &Proxy)) -> Option<i32> {
    let server = server();
    unless_still(|| {
        let proxy = Proxy::before(&server);
        let mut running = start(&proxy.url(), &OPTIONS, name, STUBBORN);
        assert_eq!(running.line(), "deep");
        let command = running.command;
        assert!(alive(command).len() >= 3, "{:?}", alive(command));
        let lock = client(&server).reentrant_lock(name);
        let other = thread::spawn(move || {
            let guard = lock.lock().unwrap();
            let alive = alive(command);
            drop(guard);
            alive
        });
        fault(&running, &proxy);
        let alive = other.join().unwrap();
        let _goes_on = kill_process(Pid::from_child(&running.wrapper), Signal::CONT);
        let status = running.status();
        if alive.is_empty() { Ok(status) } else { Err(format!("{name}: {alive:?} live")) }
    })
}

#[test]
fn no_command_outlives_the_lock_after_a_kill_of_the_wrapper() {
    assert_eq!(after("killed", |it, _| it.signal(Signal::KILL)), None);
}

#[test]
fn no_command_outlives_the_lock_after_a_stop_of_the_wrapper() {
    assert_eq!(after("stopped", |it, _| it.signal(Signal::STOP)), Some(74));
}

#[test]
fn no_command_outlives_the_lock_after_the_network_is_cut() {
    assert_eq!(after("cut off", |_, proxy| proxy.freeze()), Some(74));
}

fn signal_guardian(running: &Running, signal: Signal) {
    let (_, guardian, _) = stat(running.command).unwrap();
    kill_process(Pid::from_raw(guardian).unwrap(), signal).unwrap();
}

/// No other client may get the lock before the guardian and its command are dead.
#[test]
fn no_command_outlives_the_lock_after_a_kill_of_the_guardian() {
    assert_eq!(after("unguarded", |it, _| signal_guardian(it, Signal::KILL)), Some(70));
}

#[test]
fn no_command_outlives_the_lock_after_a_stop_of_the_guardian_and_a_cut_network() {
    let status = after("both", |it, proxy| {
        signal_guardian(it, Signal::STOP);
        proxy.freeze();
    });
    assert_eq!(status, Some(74));
}

/// No process is left that could kill the group, and the command must die before the lease ends.
#[test]
fn after_a_kill_of_the_wrapper_and_the_guardian_the_command_is_killed_at_once() {
    let server = server();
    let running = start(&server.url(), &["--lease", "1h"], "alone", "exec sleep 60");
    let (_, guardian, _) = stat(running.command).unwrap();
    running.signal(Signal::KILL);
    kill_process(Pid::from_raw(guardian).unwrap(), Signal::KILL).unwrap();
    wait_until("it is killed", TIMEOUT, || is_dying(running.command));
    assert_eq!(running.status(), None);
}

/// `redlatch run` has sent later deadlines to the guardian while it was paused.
#[test]
fn a_guardian_that_goes_on_after_the_deadline_it_knew_kills_no_command_whose_lock_is_kept() {
    let server = server();
    unless_still(|| {
        let script = "trap 'exit 9' TERM; while :; do sleep 0.05; done";
        let running = start(&server.url(), &OPTIONS, "resumed", script);
        signal_guardian(&running, Signal::STOP);
        thread::sleep(Duration::from_secs(5));
        signal_guardian(&running, Signal::CONT);
        thread::sleep(Duration::from_millis(200));
        let lives = !is_dying(running.command);
        running.signal(Signal::TERM);
        let status = running.status();
        (lives && status == Some(9)).then_some(()).ok_or_else(|| format!("{lives} {status:?}"))
    });
}

/// A guardian that does not read must not make `redlatch run` wait.
#[test]
fn no_command_outlives_the_lock_after_a_stop_of_the_guardian_and_many_signals() {
    let status = after("full", |it, proxy| {
        signal_guardian(it, Signal::STOP);
        for _ in 0..2_000 {
            it.signal(Signal::TERM);
            thread::sleep(Duration::from_micros(200));
        }
        proxy.freeze();
    });
    assert_eq!(status, Some(74));
}

/// This is not a test, but a command that leaves its group for the group of the test.
#[test]
fn a_command_that_leaves_its_group() {
    let Ok(group) = env::var(GROUP) else { return };
    setpgid(None, Pid::from_raw(group.parse().unwrap())).unwrap();
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::default()).unwrap();
    println!("\nleft");
    thread::sleep(TIMEOUT);
}

#[test]
fn after_the_network_is_cut_a_command_that_has_left_its_group_is_dead() {
    let server = server();
    let proxy = Proxy::before(&server);
    let test = env::current_exe().unwrap();
    let script = format!(
        "{GROUP}={} exec {} --exact loss::a_command_that_leaves_its_group --nocapture",
        getpgrp().as_raw_nonzero(),
        test.to_str().unwrap()
    );
    let mut running = start(&proxy.url(), &OPTIONS, "leader", &script);
    while running.line() != "left" {}
    proxy.freeze();
    let guard = client(&server).reentrant_lock("leader").lock().unwrap();
    assert!(is_dying(running.command));
    guard.unlock().unwrap();
    assert_eq!(running.status(), Some(74));
}

#[test]
fn before_the_end_of_the_lease_the_command_is_asked_to_end() {
    let server = server();
    let script = "trap 'echo asked; exit 0' TERM; echo on; while :; do sleep 0.05; done";
    unless_still(|| {
        let proxy = Proxy::before(&server);
        let mut running = start(&proxy.url(), &OPTIONS, "asked", script);
        assert_eq!(running.line(), "on");
        proxy.freeze();
        let asked = running.line();
        let is_ours = client(&server).reentrant_lock("asked").is_locked().unwrap();
        assert_eq!(running.status(), Some(74));
        let as_said = asked == "asked" && is_ours;
        as_said.then_some(()).ok_or_else(|| format!("{asked:?}, and ours: {is_ours}"))
    });
}

#[test]
fn a_lock_that_is_renewed_outlasts_its_lease() {
    let server = server();
    let script = "trap 'exit 9' TERM; sleep 6; echo done; while :; do sleep 0.05; done";
    // With a renewal every 1.3 s, the lock survives a machine that stands still for 1.9 s.
    let mut running = start(&server.url(), &["--lease", "4", "-k", "0.3"], "kept", script);
    assert_eq!(running.line(), "done");
    assert!(client(&server).reentrant_lock("kept").is_locked().unwrap());
    running.signal(Signal::TERM);
    assert_eq!(running.status(), Some(9));
}
