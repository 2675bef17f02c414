//! `redlatch run`: its statuses, its signals, and its use of stdin and stdout.

// These tests read `/proc`.
#![cfg(target_os = "linux")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use rustix::process::Signal;

/// A URL at which there is no server.
const AWAY: &str = "redis://127.0.0.1:1";

#[test]
fn the_status_is_the_commands_or_128_and_its_signal() {
    let server = server();
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)] {
        let (ended, said) = ends(&server.url(), &["run", "orders", "sh", "-c", script]);
        assert_eq!((ended, &*said), (status, ""), "{script}");
        assert!(!client(&server).reentrant_lock("orders").is_locked().unwrap());
    }
}

#[test]
fn a_lock_that_is_not_had_is_status_75_or_the_one_given() {
    let server = server();
    let holder = client(&server);
    let guard = holder.reentrant_lock("orders").lock().unwrap();
    let url = server.url();
    let begun = Instant::now();
    assert_eq!(ends(&url, &["run", "-n", "orders", "true"]).0, 75);
    assert_eq!(ends(&url, &["run", "-n", "-E", "9", "orders", "true"]).0, 9);
    assert!(begun.elapsed() < Duration::from_secs(10), "they did not wait");
    let begun = Instant::now();
    assert_eq!(ends(&url, &["run", "-w", "0.3", "orders", "true"]).0, 75);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let (_, said) = ends(&url, &["run", "-n", "orders", "true"]);
    assert!(
        said.starts_with("redlatch: orders was not free") && said.lines().count() == 1,
        "{said}"
    );
    for words in [
        &["-q", "run", "-n", "orders", "true"][..],
        &["run", "-n", "--quiet", "--verbose", "orders", "true"],
        &["run", "-n", "-E", "0", "orders", "true"],
    ] {
        assert_eq!(ends(&url, words).1, "", "{words:?}");
    }
    let (status, said) = ends(&url, &["run", "-n", "--verbose", "orders", "true"]);
    assert!(status == 75 && said.contains("orders was not free"), "{said}");
    guard.unlock().unwrap();
    let (status, said) = ends(&url, &["run", "-n", "--verbose", "orders", "true"]);
    assert!(status == 0 && said.contains("orders taken after"), "{said}");
}

#[test]
fn the_command_is_looked_up_before_the_server_is_asked() {
    assert_eq!(ends(AWAY, &["run", "orders", "no-such-command"]).0, 127);
    assert_eq!(ends(AWAY, &["run", "orders", "./no/such/command"]).0, 127);
    assert_eq!(ends(AWAY, &["run", "orders", "/etc/passwd"]).0, 126);
    assert_eq!(ends(AWAY, &["run", "orders", "/tmp"]).0, 126);
}

#[test]
fn errors_of_the_command_itself_end_with_the_statuses_of_sysexits() {
    let server = server();
    let url = server.url();
    for words in [
        &["run", "orders"][..],
        &["run"],
        &["run", "--no-such-option", "orders", "true"],
        &["run", "-n", "-w", "1", "orders", "true"],
        &["run", "-k", "14", "orders", "true"],
        &["run", "--permits", "2", "--hold-at-least", "1s", "orders", "true"],
        &["run", "-w", "soon", "orders", "true"],
        &["run", "-w", "99999999999999999999d", "orders", "true"],
        &["run", "--lease", "0", "orders", "true"],
        &["run", "--lease", "1ms", "orders", "true"],
        &["run", "--lease", "366d", "orders", "true"],
        &["run", "--permits", "0", "orders", "true"],
        &["run", "--on-wanted", "SIGNOTHING", "orders", "true"],
        &["run", "--on-wanted", "", "orders", "true"],
        &["run", "--permits", "2", "--on-wanted", "USR1", "orders", "true"],
        &[],
    ] {
        assert_eq!(ends(&url, words).0, 64, "{words:?}");
    }
    assert_eq!(ends(&url, &["--help"]).0, 0);
    assert_eq!(ends(AWAY, &["run", "orders", "true"]).0, 69);
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap();
    thread::spawn(move || {
        for mut connection in stranger.incoming().flatten() {
            let _greeted = connection.write_all(b"220 mail.example ESMTP\r\n");
            let _read = connection.read(&mut [0; 1024]);
        }
    });
    assert_eq!(ends(&format!("redis://{address}"), &["run", "orders", "true"]).0, 76);
    let mut redis = server.connection();
    let rules = ["SETUSER", "reader", "on", ">word", "~*", "&*", "+@read", "+@connection"];
    redis::cmd("ACL").arg(&rules).exec(&mut redis).unwrap();
    let stranger = url.replace("redis://", "redis://reader:wrong@");
    let (status, said) = ends(&stranger, &["run", "orders", "true"]);
    assert!(status == 77 && !said.contains("wrong@"), "{status} {said}");
    let reader = url.replace("redis://", "redis://reader:word@");
    assert_eq!(ends(&reader, &["run", "orders", "true"]).0, 77);
    assert_eq!(ends("http://here", &["run", "orders", "true"]).0, 78);
    assert_eq!(
        redlatch("").env_remove("REDLATCH_URL").arg("ls").status().unwrap().code(),
        Some(78)
    );
    assert_eq!(ends(&url, &["run", "", "true"]).0, 78);
}

#[test]
fn max_hold_stops_the_command_and_a_command_that_ignores_term_too() {
    let server = server();
    for trap in ["", "trap '' TERM; "] {
        let script = format!("{trap}while :; do sleep 0.05; done");
        let options = ["run", "--max-hold", "0.3", "-k", "0.3", "orders", "sh", "-c", &script];
        let said = "redlatch: orders: the command was stopped after --max-hold\n";
        assert_eq!(ends(&server.url(), &options), (124, said.to_owned()), "{script}");
        let (status, said) = ends(&server.url(), &[&["-q"], &options[..]].concat());
        assert_eq!((status, &*said), (124, ""), "{script}");
    }
}

#[test]
fn a_deleted_lock_is_status_74_and_the_command_is_killed_at_once() {
    let server = server();
    let mut running = start(&server.url(), &[], "orders", "trap '' TERM; echo on; sleep 60 & wait");
    running.line();
    let begun = Instant::now();
    // The server reports a change of the key only after the lock was held for 100 ms.
    thread::sleep(Duration::from_millis(300));
    redis::cmd("DEL").arg("orders").exec(&mut server.connection()).unwrap();
    let command = running.command;
    assert_eq!(running.status(), Some(74));
    assert!(begun.elapsed() < Duration::from_secs(15), "and not at the lease's end");
    assert_eq!(members(command), NOBODY);
}

#[test]
fn the_environment_and_the_streams_are_the_commands() {
    let server = server();
    let script = "cat; echo $REDLATCH_NAME $REDLATCH_OWNER $REDLATCH_DEADLINE $REDLATCH_TOKEN; \
                  tr '\\0' ' ' </proc/$PPID/cmdline >&2";
    let mut run = redlatch(&server.url());
    run.args(["run", "--fenced", "orders", "-c", script]).env("SHELL", "/bin/sh");
    let mut child =
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"for the command\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let (said, other) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    let (first, words) = said.split_once('\n').unwrap();
    assert_eq!(first, "for the command");
    let words: Vec<_> = words.split_whitespace().collect();
    assert_eq!((words.len(), words[0], words[1].len()), (4, "orders", 36), "{said}");
    assert!(words[2].parse::<u64>().unwrap() > 1_700_000_000_000, "{said}");
    assert!(words[3].parse::<u64>().unwrap() > 0, "{said}");
    let other = String::from_utf8(other).unwrap();
    assert!(!other.contains("redis://"), "{other}");
}

#[test]
fn options_behind_the_name_are_the_commands() {
    let server = server();
    let output = output(&server.url(), &["run", "orders", "echo", "-n", "--", "-w", "x"]);
    assert_eq!(output.stdout, b"-- -w x");
}

#[test]
fn a_wait_ends_at_once_with_a_signal_and_leaves_the_queue() {
    let server = server();
    let holder = client(&server);
    let guard = holder.reentrant_lock("orders").lock().unwrap();
    for (signal, status) in
        [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)]
    {
        if ignores(signal) {
            continue;
        }
        let mut waiting = redlatch(&server.url()).args(["run", "orders", "true"]).spawn().unwrap();
        wait_in_line(&holder, "orders", 1);
        let begun = Instant::now();
        rustix::process::kill_process(rustix::process::Pid::from_child(&waiting), signal).unwrap();
        assert_eq!(waiting.wait().unwrap().code(), Some(status));
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert_eq!(holder.status("orders").unwrap().queue, [], "{status}");
    }
    guard.unlock().unwrap();
}

#[test]
fn signals_are_the_commands() {
    let server = server();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        if ignores(signal) {
            continue;
        }
        let script = format!("trap 'exit 5' {name}; echo on; while :; do sleep 0.05; done");
        let mut running = start(&server.url(), &[], "orders", &script);
        assert_eq!(running.line(), "on");
        let (_, _, group) = stat(running.command).unwrap();
        assert_eq!(group, running.command, "a group of its own");
        running.signal(signal);
        assert_eq!(running.status(), Some(5), "{name}");
    }
    // A signal that is ignored at the start, as under nohup, stays ignored.
    let script = format!(
        "trap '' HUP; exec {} run orders sh -c 'kill -HUP $$; exit 6'",
        env!("CARGO_BIN_EXE_redlatch")
    );
    let status = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("REDLATCH_URL", server.url())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(6));
}

#[test]
fn what_a_command_leaves_in_its_group_is_dead_before_the_lock_is_free() {
    let server = server();
    let script = "(trap '' TERM HUP; sleep 60 >/dev/null) & exit 3";
    let running = start(&server.url(), &[], "orders", script);
    let command = running.command;
    let guard = client(&server).reentrant_lock("orders").lock().unwrap();
    assert_eq!(members(command), NOBODY);
    guard.unlock().unwrap();
    assert_eq!(running.status(), Some(3));
}

#[test]
fn each_kind_of_lock_excludes_what_it_should() {
    let server = server();
    let url = server.url();
    for (options, other, had) in [
        (&[][..], &[][..], false),
        (&["--fair"], &["--fair"], false),
        (&["--fenced"], &["--fenced"], false),
        (&["-s"], &["-s"], true),
        (&["-s"], &["-x"], false),
        (&["-x"], &["-s"], false),
        (&["--permits", "2"], &["--permits", "2"], true),
        (&["--permits", "1"], &["--permits", "1"], false),
    ] {
        let name = format!("{options:?} {other:?}");
        let mut running = start(&url, options, &name, "echo on; while :; do sleep 0.05; done");
        running.line();
        let words = [&["run", "-n"], other, &[&name, "true"]].concat();
        assert_eq!(ends(&url, &words).0, if had { 0 } else { 75 }, "{name}");
        running.signal(Signal::TERM);
        assert_eq!(running.status(), Some(143), "{name}");
    }
}
