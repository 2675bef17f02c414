//! `redlatch run --hold-at-least`: the server keeps the lock.

// These tests read `/proc`.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redlatch::{Client, Lock};
use redlatch_testkit::{Action, Direction, Proxy};
use rustix::process::{Pid, Signal, kill_process};

/// The beginning of a command that ends `redlatch run` by a signal.
const END_RUN: &str = "read -r pid name state run rest <\"/proc/$PPID/stat\"; kill -s";

/// The options for a kind of lock, and a function that returns the same lock for another client.
type Kind = (&'static [&'static str], fn(&Client, &str) -> Box<dyn Lock>);
const KINDS: [Kind; 5] = [
    (&[], |client, name| Box::new(client.reentrant_lock(name))),
    (&["--fair"], |client, name| Box::new(client.fair_lock(name))),
    (&["--fenced"], |client, name| Box::new(client.fenced_lock(name))),
    (&["-s"], |client, name| Box::new(client.read_write_lock(name).writer().clone())),
    (&["-x"], |client, name| Box::new(client.read_write_lock(name).writer().clone())),
];

#[test]
fn no_death_of_the_run_and_no_signal_frees_a_lock_before_its_time() {
    const LEAST: Duration = Duration::from_secs(12);
    let server = server();
    thread::scope(|scope| {
        for (number, (kind, theirs)) in KINDS.iter().enumerate() {
            for (signal, is_handed_on) in [("KILL", false), ("KILL", true), ("TERM", false)] {
                let server = &server;
                scope.spawn(move || {
                    let name = format!("{number} {signal} {is_handed_on}");
                    let client = client(server);
                    let theirs = theirs(&client, &name);
                    let before = is_handed_on.then(|| theirs.lock().unwrap());
                    let script = format!("{END_RUN} {signal} $run; exec sleep 60");
                    let mut run = redlatch(&server.url());
                    run.args(["run", "--hold-at-least", "12s", "--lease", "4"]).args(*kind);
                    run.args([&name, "sh", "-c", &script]);
                    let mut begun = Instant::now();
                    let mut run = run.spawn().unwrap();
                    if let Some(before) = before {
                        wait_in_line(&client, &name, 1);
                        begun = Instant::now();
                        before.unlock().unwrap();
                    }
                    run.wait().unwrap();
                    let guard = theirs.lock().unwrap();
                    let took = begun.elapsed();
                    assert!(took >= LEAST, "{kind:?} {name}: {took:?}");
                    guard.unlock().unwrap();
                });
            }
        }
    });
}

#[test]
fn the_run_ends_with_its_command_and_the_server_keeps_the_lock_for_no_longer_than_asked() {
    const LEAST: Duration = Duration::from_secs(3);
    let server = server();
    thread::scope(|scope| {
        for (number, (kind, theirs)) in KINDS.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let name = number.to_string();
                let theirs = theirs(&client(server), &name);
                let begun = Instant::now();
                // The lease is renewed for much longer than the minimum time.
                let options = ["run", "--hold-at-least", "3s", "--lease", "1h"];
                let words = [&options, *kind, &[&name, "sh", "-c", "exit 7"]].concat();
                assert_eq!(ends(&server.url(), &words), (7, String::new()), "{kind:?}");
                let is_taken = theirs.try_lock().unwrap().into_option().is_none();
                assert!(is_taken || begun.elapsed() >= LEAST, "{kind:?}");
                let guard = theirs.try_lock_for(TIMEOUT).unwrap().into_option().expect("no hour");
                let took = begun.elapsed();
                assert!(took >= LEAST, "{kind:?}: {took:?}");
                guard.unlock().unwrap();
            });
        }
    });
}

#[test]
fn a_command_that_takes_longer_keeps_the_lock_and_its_end_frees_it() {
    let server = server();
    let lock = client(&server).reentrant_lock("orders");
    let options = ["--hold-at-least", "1s", "--lease", "1h"];
    let mut running = start(&server.url(), &options, "orders", "sleep 2; echo on; read -r line");
    assert_eq!(running.line(), "on");
    assert_eq!(running.status(), Some(1));
    lock.try_lock().unwrap().into_option().expect("it was released").unlock().unwrap();
}

#[test]
fn a_command_that_the_system_cannot_run_keeps_nothing() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    let lock = client(&server).reentrant_lock("orders");
    for (interpreter, status) in [("/no/such/interpreter", 127), ("/etc/passwd", 126)] {
        fs::write(&script, format!("#!{interpreter}\n")).unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let script = script.to_str().unwrap();
        let words = ["run", "--hold-at-least", "1h", "orders", script];
        let (ended, said) = ends(&server.url(), &words);
        assert_eq!(ended, status, "{said}");
        assert!(said.starts_with(&format!("redlatch: {script}: ")) && said.lines().count() == 1);
        lock.try_lock().unwrap().into_option().expect("it is free").unlock().unwrap();
    }
}

#[test]
fn a_signal_before_the_server_has_said_that_it_keeps_the_lock_frees_it() {
    let server = server();
    let proxy = Proxy::before(&server);
    proxy.on(Direction::Request, 1, Action::HoldReply, is_raise);
    let mut run = redlatch(&proxy.url());
    run.args(["run", "--hold-at-least", "50s", "orders", "echo", "ran"]).stdout(Stdio::piped());
    let run = run.spawn().unwrap();
    wait_until("the raise is sent", TIMEOUT, || proxy.fired() == 1);
    let mut before = None;
    wait_until("it listens for signals", TIMEOUT, || {
        before = slept(run.id());
        before.is_some()
    });
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    wait_until("the signal is heard", TIMEOUT, || slept(run.id()) > before);
    proxy.release();
    let output = run.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(143), &b""[..]));
    client(&server)
        .reentrant_lock("orders")
        .try_lock()
        .unwrap()
        .into_option()
        .expect("free")
        .unlock()
        .unwrap();
}

/// The client sends the request for the lease of 50 s twice.
#[test]
fn a_command_begins_only_when_the_server_has_said_that_it_keeps_the_lock() {
    let server = server();
    for (action, shots, ends) in [
        (Action::LoseRequest, 1, (Some(0), "ran\n")),
        (Action::LoseReply, 1, (Some(0), "ran\n")),
        (Action::LoseRequest, 2, (Some(69), "")),
        (Action::LoseReply, 2, (Some(69), "")),
    ] {
        let name = format!("{action:?} {shots}");
        let proxy = Proxy::before(&server);
        proxy.on(Direction::Request, shots, action, is_raise);
        let words = ["run", "--hold-at-least", "50s", &name, "echo", "ran"];
        let output = output(&proxy.url(), &words);
        assert_eq!((output.status.code(), &*output.stdout), (ends.0, ends.1.as_bytes()), "{name}");
        assert_eq!(proxy.fired(), shots);
        let is_free =
            client(&server).reentrant_lock(&name).try_lock().unwrap().into_option().is_some();
        assert_eq!(is_free, ends.1.is_empty(), "{name}");
    }
}

/// Whether the bytes raise the lease to 50 s, which is 40,000 to 49,999 ms at this time.
fn is_raise(bytes: &[u8]) -> bool {
    bytes.windows(5).any(|it| it == b"$5\r\n4")
}

/// Returns how many times the signal thread of `redlatch run` has gone to sleep, if it sleeps now.
fn slept(run: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{run}/task")).unwrap().flatten();
    let read = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).ok();
    let status = threads.filter_map(read).find(|status| status.starts_with("Name:\tsignals\n"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let sleeps = field("State:\t")?.starts_with('S');
    field("voluntary_ctxt_switches:\t")?.parse().ok().filter(|_| sleeps)
}
