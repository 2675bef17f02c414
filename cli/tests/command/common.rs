//! Runs the command on private servers.

#![allow(dead_code)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redlatch::Client;
use redlatch_testkit::Server;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use redlatch_testkit::wait_until;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The list of processes when no process is left.
pub(crate) const NOBODY: [i32; 0] = [];

pub(crate) fn server() -> Server {
    Server::start().expect("a server to test on")
}

pub(crate) fn client(server: &Server) -> Client {
    Client::connect(&server.url()).unwrap()
}

/// Returns the command with this URL of a server.
pub(crate) fn redlatch(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command.env("REDLATCH_URL", url).stdin(Stdio::null());
    command
}

/// Runs the command with these arguments, and returns its output.
pub(crate) fn output(url: &str, words: &[&str]) -> Output {
    redlatch(url).args(words).output().unwrap()
}

/// Runs the command with these arguments, and returns its status and its output.
pub(crate) fn ends(url: &str, words: &[&str]) -> (i32, String) {
    let output = output(url, words);
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), said)
}

/// A running `redlatch run` whose command has printed its process number.
pub(crate) struct Running {
    pub(crate) wrapper: Child,
    pub(crate) command: i32,
    lines: BufReader<ChildStdout>,
}

/// Starts `redlatch run` with a shell's script, which first prints `$$`.
pub(crate) fn start(url: &str, options: &[&str], name: &str, script: &str) -> Running {
    let mut run = redlatch(url);
    run.arg("run").args(options).args([name, "sh", "-c", &format!("echo $$; {script}")]);
    let mut wrapper = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(wrapper.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    Running { wrapper, command: line.trim().parse().unwrap(), lines }
}

impl Running {
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.wrapper), signal).unwrap();
    }

    /// Returns the status. The process must end by itself.
    pub(crate) fn ends(mut self) -> Option<i32> {
        let mut ended = None;
        wait_until("it ends", TIMEOUT, || {
            ended = self.wrapper.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap().code()
    }

    pub(crate) fn status(mut self) -> Option<i32> {
        self.wrapper.wait().unwrap().code()
    }
}

/// Returns the processes of a group that have not ended.
pub(crate) fn members(group: i32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(state, _, its)| its == group && state != "Z"))
        .collect()
}

/// Returns the processes of a group that can still run. A killed process runs no further
/// instruction, so it is not in the result. On a busy machine it may take a second to end.
pub(crate) fn alive(group: i32) -> Vec<i32> {
    members(group).into_iter().filter(|pid| !is_dying(*pid)).collect()
}

/// Whether every thread of a process has ended, or has received KILL.
pub(crate) fn is_dying(pid: i32) -> bool {
    const EXITS_OR_KILLED: u64 = 0x404;
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let read = |file| fs::read_to_string(thread.path().join(file)).ok();
        // The order of these reads matters: a thread that takes a pending KILL sets the flag.
        let (Some(status), Some(stat)) = (read("status"), read("stat")) else { return true };
        let pending = |line: &str| {
            let (name, mask) = line.split_once(":\t")?;
            let mask = ["SigPnd", "ShdPnd"].contains(&name).then_some(mask)?;
            u64::from_str_radix(mask, 16).ok()
        };
        let is_killed = status.lines().filter_map(pending).any(|mask| mask & (1 << 8) != 0);
        let mut fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let has_ended = ["Z", "X"].contains(&fields.next().unwrap());
        let flags: u64 = fields.nth(5).unwrap().parse().unwrap();
        is_killed || has_ended || flags & EXITS_OR_KILLED != 0
    })
}

/// Returns the state, the parent and the group of a process.
pub(crate) fn stat(pid: i32) -> Option<(String, i32, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may contain any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let (state, parent, group) = (fields.next()?, fields.next()?, fields.next()?);
    Some((state.to_owned(), parent.parse().ok()?, group.parse().ok()?))
}

/// Measures how long the machine lets a runnable thread wait.
pub(crate) struct Standstill {
    end: Sender<()>,
    watches: JoinHandle<Duration>,
}

impl Standstill {
    pub(crate) fn watch() -> Self {
        let (end, ends) = mpsc::channel();
        let watches = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            loop {
                let since = Instant::now();
                let ends = ends.recv_timeout(Duration::from_millis(5));
                longest = longest.max(since.elapsed());
                if ends != Err(RecvTimeoutError::Timeout) {
                    return longest;
                }
            }
        });
        Self { end, watches }
    }

    /// Returns the longest delay since [`watch`](Self::watch).
    pub(crate) fn longest(self) -> Duration {
        drop(self.end);
        self.watches.join().unwrap()
    }
}

/// Waits until `count` processes are in a lock's queue.
pub(crate) fn wait_in_line(client: &Client, name: &str, count: usize) {
    wait_until("they wait", TIMEOUT, || client.status(name).unwrap().queue.len() == count);
}

/// Whether this process and its children ignore a signal, as a shell's background job ignores INT
/// and QUIT.
pub(crate) fn ignores(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << (signal.as_raw() - 1)) != 0
}
