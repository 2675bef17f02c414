//! The guardian (the process between `redlatch run` and the command): its work before the command
//! begins, and the processes and files that it leaves.

// These tests read `/proc`.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::*;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn children(parent: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    children.unwrap_or_default().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The shell runs `exec redlatch run` after it has started a child, which becomes a child of
/// `redlatch run`.
#[test]
fn a_guardian_that_is_killed_early_takes_no_stranger_with_it_and_lets_no_command_begin() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let (redlatch, mark_name) = (env!("CARGO_BIN_EXE_redlatch"), mark.to_str().unwrap());
    let script = format!(
        "sleep 60 >/dev/null 2>&1 & echo $!; exec {redlatch} run orders sh -c \
         'echo $$ >{mark_name}; exec sleep 60' >/dev/null"
    );
    for round in 0..20 {
        let mut run = Command::new("sh");
        run.args(["-c", &script]).env("REDLATCH_URL", server.url()).stdin(Stdio::null());
        let mut run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let stranger: i32 = line.trim().parse().unwrap();
        let guardian = || children(run.id().cast_signed()).into_iter().find(|it| *it != stranger);
        wait_until("there is a guardian", TIMEOUT, || guardian().is_some());
        thread::sleep(Duration::from_micros(round * 200));
        kill(guardian().unwrap(), Signal::KILL);
        assert_eq!(run.wait().unwrap().code(), Some(70));
        assert!(stat(stranger).is_some_and(|(state, _, _)| state != "Z"), "it lives: {round}");
        kill(stranger, Signal::KILL);
        if let Ok(pid) = fs::read_to_string(&mark) {
            // If there is no number, the command was killed before it had written one.
            if let Ok(command) = pid.trim().parse() {
                assert_eq!(alive(command), NOBODY, "{round}");
            }
            fs::remove_file(&mark).unwrap();
        }
    }
}

/// The guardian may be killed just after it has sent the stdin, and `redlatch run` is killed, too.
/// If both are dead, no process would end the command.
#[test]
fn no_command_begins_whose_guardian_is_gone() {
    for (guardian, said) in [(std::process::id(), &b"ran\n"[..]), (1, b"")] {
        let (ours, its) = UnixStream::pair().unwrap();
        let stdin = File::open("/dev/null").unwrap();
        let sent = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&sent));
        sendmsg(&ours, &[IoSlice::new(b"stdin\n")], &mut control, SendFlags::empty()).unwrap();
        let mut start = redlatch("");
        start.args(["command-of-redlatch-run", &guardian.to_string(), "/bin/echo", "echo", "ran"]);
        let output = start.stdin(OwnedFd::from(its)).output().unwrap();
        assert_eq!(output.stdout, said, "{output:?}");
    }
}

/// If the guardian stayed in the group, a signal of the command to its own group would reach the
/// guardian.
#[test]
fn the_guardian_has_left_the_commands_group_before_the_command_begins() {
    let server = server();
    let script = "read -r stat <\"/proc/$PPID/stat\"; echo \"$PPID $stat\"";
    for _ in 0..20 {
        let said = output(&server.url(), &["run", "orders", "sh", "-c", script]).stdout;
        let said = String::from_utf8(said).unwrap();
        let parent = said.split_whitespace().next().unwrap();
        // After the program's name, the fields are the state, the parent, the group and the
        // session.
        let fields: Vec<_> = said.rsplit_once(')').unwrap().1.split_whitespace().collect();
        assert_eq!(fields[2..4], [parent, parent], "{said}");
    }
}

/// Orphans that stay would fill the list of processes while the command runs.
#[test]
fn orphans_of_the_command_that_have_ended_are_gone() {
    let server = server();
    let orphan = "(sh -c 'echo $$; exec sleep 0.1' &); ";
    let script = format!("{}while :; do sleep 0.05; done", orphan.repeat(3));
    // With a short lease, `redlatch run` sends a line at least twice a second.
    let mut running = start(&server.url(), &["--lease", "1500ms"], "orders", &script);
    for _ in 0..3 {
        let orphan = running.line().parse().unwrap();
        wait_until("it is gone", TIMEOUT, || stat(orphan).is_none());
    }
    running.signal(Signal::TERM);
    running.status();
}

/// The test limits processes as `ulimit -u` does. Root has no such limit.
#[test]
fn without_threads_or_processes_nothing_panics_and_no_command_runs_without_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("redlatch");
    fs::copy(env!("CARGO_BIN_EXE_redlatch"), &program).unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let run = |words: &[&str]| {
        let mut run = Command::new("setpriv");
        run.args(["--reuid=54321", "--regid=54321", "--clear-groups"]).args(words);
        run.stdin(Stdio::null()).output()
    };
    if !run(&["prlimit", "--nproc=1", "true"]).is_ok_and(|it| it.status.success()) {
        eprintln!("left out: it is for root, and needs setpriv and prlimit");
        return;
    }
    let server = server();
    let (url, program) = (server.url(), program.to_str().unwrap());
    for processes in 1..=16 {
        let limit = format!("--nproc={processes}");
        let words = ["prlimit", &limit, program, "run", "--url", &url, "-w", "1", "orders"];
        let output = run(&[&words[..], &["echo", "ran"]].concat()).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let had = client(&server).reentrant_lock("orders").try_lock().unwrap();
        assert!(had.into_option().is_some(), "it is released: {processes} {said}");
        assert!(!said.contains("panicked"), "{processes} {said}");
        let status = output.status.code().unwrap();
        assert!([0, 69, 70, 78].contains(&status), "{processes} {status} {said}");
        assert_eq!(output.stdout == b"ran\n", status == 0, "{processes} {said}");
    }
}

fn guardian(running: &Running) -> i32 {
    stat(running.command).unwrap().1
}

/// Stops the guardian, and calls `end`. Returns the status of `redlatch run`. The command's group
/// must be dead when another client gets the lock.
fn with_a_stopped_guardian(options: &[&str], script: &str, end: impl Fn(&Running)) -> Option<i32> {
    let server = server();
    let url = server.url();
    if options.contains(&"--cgroup") && ends(&url, &["run", "--cgroup", "orders", "true"]).0 != 0 {
        eprintln!("no cgroup can be made here");
        return with_a_stopped_guardian(&[], script, end);
    }
    let script = format!("(trap '' TERM; echo on; exec sleep 60) & {script}");
    let mut running = start(&url, options, "orders", &script);
    assert_eq!(running.line(), "on");
    let (command, lock) = (running.command, client(&server).reentrant_lock("orders"));
    let other = thread::spawn(move || lock.lock().map(|_guard| alive(command)).unwrap());
    wait_in_line(&client(&server), "orders", 1);
    kill(guardian(&running), Signal::STOP);
    end(&running);
    let status = running.ends();
    assert_eq!(other.join().unwrap(), NOBODY);
    assert_eq!(members(command), NOBODY, "{options:?}");
    status
}

#[test]
fn with_a_stopped_guardian_the_run_ends_with_its_command_and_with_its_status() {
    let options: [&[&str]; 4] = [&[], &["--max-hold", "1h"], &["--cgroup"], &["--lease", "1h"]];
    for options in options {
        let script = "trap 'exit 7' TERM; while :; do sleep 0.05; done";
        let end = |it: &Running| kill(it.command, Signal::TERM);
        assert_eq!(with_a_stopped_guardian(options, script, end), Some(7), "{options:?}");
    }
}

#[test]
fn with_a_stopped_guardian_max_hold_ends_a_command_that_goes_on() {
    let options = ["--max-hold", "2", "-k", "0.3"];
    assert_eq!(with_a_stopped_guardian(&options, "exec sleep 60", |_| ()), Some(124));
}

#[test]
fn max_hold_ends_the_command_of_a_run_that_is_killed_or_stopped() {
    let server = server();
    for signal in [Signal::KILL, Signal::STOP] {
        let options = ["--lease", "1h", "--max-hold", "1", "-k", "0.3"];
        let running = start(&server.url(), &options, &format!("{signal:?}"), "exec sleep 60");
        running.signal(signal);
        wait_until("it is dead", TIMEOUT, || alive(running.command).is_empty());
        let status = (signal == Signal::STOP).then_some(124);
        let _gone = kill_process(Pid::from_child(&running.wrapper), Signal::CONT);
        assert_eq!(running.ends(), status);
    }
}

/// Returns the folder of the cgroup (version 2) of a running command.
fn cgroup(running: &Running) -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).unwrap();
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", running.command)).unwrap();
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    PathBuf::from(mount.split(' ').nth(1).unwrap()).join(path)
}

#[test]
fn a_cgroup_is_of_one_run_alone_and_is_gone_at_its_end() {
    let server = server();
    let url = server.url();
    if ends(&url, &["run", "--cgroup", "orders", "true"]).0 != 0 {
        eprintln!("left out: no cgroup can be made here");
        return;
    }
    type Ending<'a> = (&'a str, &'a dyn Fn(&Running), Option<i32>);
    let endings: [Ending<'_>; 6] = [
        ("the command ends", &|it| kill(it.command, Signal::TERM), Some(143)),
        ("the run is killed", &|it| it.signal(Signal::KILL), None),
        ("the guardian is killed", &|it| kill(guardian(it), Signal::KILL), Some(70)),
        (
            "both are stopped, and go on too late",
            &|it| {
                let both = [guardian(it), it.wrapper.id().cast_signed()];
                both.iter().for_each(|pid| kill(*pid, Signal::STOP));
                thread::sleep(Duration::from_secs(5));
                both.iter().for_each(|pid| kill(*pid, Signal::CONT));
            },
            Some(74),
        ),
        (
            "the lock is deleted",
            &|_| {
                thread::sleep(Duration::from_millis(300));
                redis::cmd("DEL").arg("orders").exec(&mut server.connection()).unwrap();
            },
            Some(74),
        ),
        (
            "it makes one of its own",
            &|it| {
                let inner = cgroup(it).join("inner");
                fs::create_dir(&inner).unwrap();
                fs::write(inner.join("cgroup.procs"), it.command.to_string()).unwrap();
                it.signal(Signal::TERM);
            },
            Some(143),
        ),
    ];
    for (ending, end, status) in endings {
        let options = ["--cgroup", "--lease", "4", "-k", "0.3"];
        let script = "echo $REDLATCH_OWNER; while :; do sleep 0.05; done";
        let mut running = start(&url, &options, "orders", script);
        let owner = running.line();
        let folder = cgroup(&running);
        // Each run has its own folder, so the folder of a killed run is not in the way.
        assert!(folder.ends_with(format!("redlatch-{owner}")), "{folder:?}");
        end(&running);
        assert_eq!(running.status(), status, "{ending}");
        wait_until(ending, TIMEOUT, || !folder.exists());
    }
}
