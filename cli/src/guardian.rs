//! The guardian: the process between `redlatch run` and the command. The guardian is the command's
//! parent, and is not in the command's process group.
//!
//! The guardian knows the time until which the lock is certainly held. The guardian kills the
//! command's group before that time, even if `redlatch run` was killed or paused. As the parent,
//! the guardian gets the command's pid before any process can end the command. The group's number
//! is not reused before the guardian reaps the command. So only the guardian can signal the group
//! safely. If the guardian is paused, `redlatch run` kills the group in its place.
//!
//! The guardian's stdin is a socket. Over this socket, `redlatch run` sends the command's stdin and
//! these lines:
//!
//! ```text
//! until T      the lock is certainly held until T, in ns on `clock`
//! signal N     a signal for the command
//! wanted N     a signal for the command, after its first second
//! stop T       ask the command to end at T
//! kill         the lock is lost
//! ```
//!
//! The guardian answers `started PID` or `failed STATUS WHY`. After `started`, the process `PID`
//! waits for its stdin, and becomes the command when it gets it. The guardian sends the stdin when
//! the lock is certainly held and the guardian has left the group of `PID`. When the command has
//! ended and its group is killed, the guardian answers `ended STATUS LOST FAILED`. Then the
//! guardian reaps the processes of the group, and ends when all of them are dead.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Result, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpgid, kill_process, kill_process_group,
    setpgid, setpriority_pgrp, setpriority_process, setsid, waitid, waitpid,
};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::cgroup::Cgroup;
use crate::start::{self, receive_stdin};
use crate::trouble::{CONFIG, SOFTWARE};

/// The argument that starts this program as a guardian.
pub(crate) const ARGUMENT: &str = "guard-of-redlatch-run";
/// The maximum time between two checks of the clock. The clock goes on while the machine sleeps.
const LOOK: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(100);
/// The time after the command's beginning in which the command gets no signal of `--on-wanted`.
/// Others may already wait when the command begins, and most signals would end a command that has
/// not set up its handler yet.
const SET_UP: u64 = 1_000_000_000;
/// The niceness of this process and of the processes that it has killed, if the system allows it.
/// With 30 busy processes for each core and the usual niceness, the guardian and the end of the
/// killed processes were a second late.
const URGENT: i32 = -20;

/// Returns the time in ns. The clock goes on while the machine sleeps, and so do the leases.
pub(crate) fn clock() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0))
}

/// Returns the signals that end a program, except those that this process ignores, as under nohup.
/// The command must ignore the same signals as this process.
pub(crate) fn signals() -> impl Iterator<Item = i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let all = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];
    all.into_iter().filter(move |signal| mask & (1 << (signal - 1)) == 0)
}

/// Waits until a child ends, and returns its status as a shell shows it. Returns `None` if there is
/// no such child.
pub(crate) fn wait(child: WaitId<'_>, options: WaitIdOptions) -> Option<u8> {
    let ended = loop {
        match waitid(child.clone(), options | WaitIdOptions::EXITED) {
            Err(Errno::INTR) => {}
            ended => break ended.ok()??,
        }
    };
    let code = ended.exit_status().or_else(|| Some(128 + ended.terminating_signal()?));
    Some(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(SOFTWARE))
}

/// Reaps the killed command and its group. Returns the command's status if the command was not
/// reaped before.
pub(crate) fn reap(command: Pid, in_terminal: bool) -> Option<u8> {
    let status = wait(WaitId::Pid(command), WaitIdOptions::empty());
    // In a terminal, no process has killed the rest of a group that the command has made.
    let group = WaitId::Pgid(Some(command));
    while !in_terminal && wait(group.clone(), WaitIdOptions::empty()).is_some() {}
    status
}

struct Guardian {
    pid: Pid,
    /// Whether the command is in a terminal's group. If so, only the command is signalled, because
    /// the group may have other processes.
    in_terminal: bool,
    /// The command's cgroup. It also contains the processes that have left the command's group.
    cgroup: Option<Cgroup>,
    /// The lines from `redlatch run`. `None` after `redlatch run` has ended.
    lines: Option<BufReader<UnixStream>>,
    /// The part of a line that has already arrived.
    line: String,
    /// The socket for the command's stdin. If the command cannot begin, a byte comes back.
    start: UnixStream,
    /// The command's stdin. `None` after the command has begun.
    stdin: Option<OwnedFd>,
    /// The time at which the command began.
    begun: u64,
    /// The signal of `--on-wanted` that the command has not got yet.
    wanted: Option<Signal>,
    grace: u64,
    /// The time before the deadline at which the group is killed. A killed process takes some time
    /// to die.
    margin: u64,
    /// The deadline, after which another process may have the lock.
    until: u64,
    /// The time at which the group is killed after a `stop`. It comes a grace time after the TERM.
    stops: u64,
    asked_to_end: bool,
    /// Whether the command was asked to end, or was killed, because the lock ends.
    lost: bool,
}

/// `words` are the grace time in ns, the margin in ns, the terminal's group or 0, the client's id
/// for the cgroup's name or nothing, the program's path, and the command.
pub(crate) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    guard(words).map_or_else(|| SOFTWARE.into(), |()| ExitCode::SUCCESS)
}

fn guard(mut words: impl Iterator<Item = OsString>) -> Option<()> {
    // The guardian ignores these signals, because it must not end before the command.
    for signal in signals() {
        signal_hook::flag::register(signal, Arc::default()).ok()?;
    }
    // The orphans of the group become children of this process, so it notices their deaths.
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok()?;
    let mut number = || words.next()?.to_str()?.parse::<u64>().ok();
    let (grace, margin, terminal) = (number()?, number()?, number()?);
    let client = words.next()?;
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    let stdin = receive_stdin(&socket)?;
    let failed = |status, error| tell(&socket, format!("failed {status} {error}\n"));
    let (start, its) = UnixStream::pair().ok()?;
    let mut command = start::this_program();
    command.arg(start::ARGUMENT).arg(std::process::id().to_string()).args(words);
    command.process_group(i32::try_from(terminal).ok()?);
    let child = match command.stdin(OwnedFd::from(its)).spawn() {
        Ok(child) => child,
        Err(error) => return failed(SOFTWARE, format!("cannot start the command: {error}")),
    };
    // After this drop, only the command has its end of the socket.
    drop(command);
    let pid = Pid::from_raw(i32::try_from(child.id()).ok()?)?;
    hurry(pid);
    // The command enters the cgroup before it begins, so all its children are in the cgroup.
    let cgroup = client.to_str().filter(|client| !client.is_empty()).map(|client| {
        let cgroup = Cgroup::of(client)?;
        cgroup.take(child.id()).map(|()| cgroup)
    });
    let cgroup = match cgroup.transpose() {
        Ok(cgroup) => cgroup,
        Err(error) => return failed(CONFIG, format!("cannot make a cgroup: {error}")),
    };
    tell(&socket, format!("started {}\n", child.id()));
    // Writes do not need to block, because `redlatch run` reads these few lines soon.
    let lines = socket.set_nonblocking(true).and_then(|()| socket.try_clone());
    let (lines, ended) = match lines.and_then(|lines| Ok((lines, watch(pid)?))) {
        Ok((lines, ended)) => (Some(BufReader::new(lines)), ended),
        Err(error) => return failed(SOFTWARE, format!("cannot guard the command: {error}")),
    };
    let mut guardian = Guardian {
        pid,
        in_terminal: terminal > 0,
        cgroup,
        lines,
        line: String::new(),
        start,
        stdin: Some(stdin),
        begun: u64::MAX,
        wanted: None,
        grace,
        margin,
        until: u64::MAX,
        stops: u64::MAX,
        asked_to_end: false,
        lost: false,
    };
    guardian.guard(&ended);
    let (status, lost, failed) = guardian.ended();
    tell(&socket, format!("ended {status} {lost} {failed}\n"));
    guardian.cgroup.inspect(|cgroup| cgroup.end());
    reap(pid, terminal > 0);
    Some(())
}

/// Raises the priority of this process, and of the threads that it starts later.
///
/// Linux first divides a core among sessions. In a busy session, a process of any niceness was 0.7
/// s late, but a process in its own session was only 25 ms late.
fn hurry(command: Pid) {
    // The leader of a group cannot begin a session. So this process joins the command's group for a
    // moment, before the command begins.
    let joined = getpgid(Some(command)).and_then(|group| setpgid(None, Some(group)));
    if joined.and_then(|()| setsid()).is_ok() {
        let _refused = fs::write("/proc/self/autogroup", URGENT.to_string());
    } else {
        let _own = setpgid(None, None);
    }
    let _refused = setpriority_process(None, URGENT);
}

/// Sends a line in one piece, because each piece wakes `redlatch run`.
fn tell(mut socket: &UnixStream, line: String) -> Option<()> {
    socket.write_all(line.as_bytes()).ok()
}

/// Returns a socket that is closed when the command has ended. The command is not reaped.
fn watch(pid: Pid) -> Result<UnixStream> {
    let (ended, its) = UnixStream::pair()?;
    let watch = move || {
        wait(WaitId::Pid(pid), WaitIdOptions::NOWAIT);
        drop(its);
    };
    thread::Builder::new().name("watch".to_owned()).spawn(watch).map(|_| ended)
}

impl Guardian {
    /// Returns when the command has ended.
    fn guard(&mut self, ended: &UnixStream) {
        loop {
            self.hear();
            let now = clock();
            if now >= self.wanted_at()
                && let Some(signal) = self.wanted.take()
            {
                self.signal(signal);
            }
            let dead_by = self.until.saturating_sub(self.margin);
            let ask = now.saturating_add(self.grace);
            let wait = if now >= dead_by.min(self.stops) {
                self.lost |= now >= dead_by;
                self.kill();
                AGAIN
            } else if ask >= dead_by && !self.lost || ask >= self.stops && !self.asked_to_end {
                self.lost |= ask >= dead_by;
                self.end();
                continue;
            } else {
                let asks =
                    |end: u64, asked| if asked { end } else { end.saturating_sub(self.grace) };
                let end = asks(dead_by, self.lost).min(asks(self.stops, self.asked_to_end));
                LOOK.min(Duration::from_nanos(end.min(self.wanted_at()).saturating_sub(now)))
            };
            let mut polled = vec![PollFd::new(ended, PollFlags::IN)];
            polled.extend(self.lines.as_ref().map(|it| PollFd::new(it.get_ref(), PollFlags::IN)));
            let _interrupted = poll(&mut polled, wait.try_into().ok().as_ref());
            if !polled[0].revents().is_empty() {
                return;
            }
            self.reap_orphans();
        }
    }

    /// Returns the time of the next signal of `--on-wanted`, or `u64::MAX`.
    fn wanted_at(&self) -> u64 {
        self.wanted.map_or(u64::MAX, |_| self.begun.saturating_add(SET_UP))
    }

    /// Kills the remaining processes of the group. Returns the status of the command, whether the
    /// command was stopped because the lock ends, and whether the command could not begin.
    fn ended(&mut self) -> (u8, bool, bool) {
        // The lock will be free soon, so kill the group now. The unreaped command keeps the group's
        // number.
        if !self.in_terminal {
            self.kill_group();
        }
        let status = wait(WaitId::Pid(self.pid), WaitIdOptions::NOWAIT).unwrap_or(SOFTWARE);
        // A command does not inherit the other end of `start`. So that end is closed when the
        // command begins.
        let failed = self.stdin.is_some() || matches!(self.start.read(&mut [0]), Ok(1..));
        (status, self.lost, failed)
    }

    /// Reaps orphans of the command, which have become children of this process.
    fn reap_orphans(&self) {
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let pids = children.split(' ').filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
            for orphan in pids.filter(|pid| *pid != self.pid) {
                let _lives = waitpid(Some(orphan), WaitOptions::NOHANG);
            }
        }
    }

    /// Handles all lines that have arrived. The caller does this before each check of the deadline,
    /// because this process may have been paused, and the lines may have a new deadline.
    fn hear(&mut self) {
        while let Some(lines) = &mut self.lines
            && let Ok(length) = lines.read_line(&mut self.line)
        {
            let _end = self.lines.take_if(|_| length == 0);
            let line = std::mem::take(&mut self.line);
            self.obey(line.trim_end());
        }
    }

    fn obey(&mut self, line: &str) {
        let (order, number) = line.split_once(' ').unwrap_or((line, ""));
        match order {
            // After the command was asked to end, a later deadline changes nothing.
            "until" if !self.lost => {
                let until = number.parse().unwrap_or(self.until);
                // On a busy machine the first deadline may have passed before the command begins.
                if clock() < until.saturating_sub(self.margin)
                    && let Some(stdin) = self.stdin.take()
                {
                    let _gone = start::send_stdin(&self.start, stdin);
                    self.begun = clock();
                }
                if self.stdin.is_none() {
                    self.until = until;
                }
            }
            "signal" => {
                let signal = number.parse().ok().and_then(Signal::from_named_raw);
                signal.inspect(|signal| self.signal(*signal));
            }
            "wanted" => self.wanted = number.parse().ok().and_then(Signal::from_named_raw),
            "stop" => {
                self.stops = number.parse().unwrap_or(u64::MAX).saturating_add(self.grace);
            }
            // A later line does not undo a `kill`.
            "kill" => (self.until, self.lost) = (0, true),
            // `redlatch run` has ended. If the command has not begun, it never begins.
            "" if self.stdin.is_some() => self.until = 0,
            _ => {}
        }
    }

    /// Asks the command to end. A stopped command does not receive the TERM, so a CONT follows.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.asked_to_end, true) {
            self.signal(Signal::TERM);
            self.signal(Signal::CONT);
        }
    }

    fn kill(&self) {
        self.kill_group();
        self.cgroup.as_ref().inspect(|cgroup| cgroup.kill());
    }

    fn kill_group(&self) {
        self.signal(Signal::KILL);
        // The command may have left its group, so the command is killed, too.
        let _sent = kill_process(self.pid, Signal::KILL);
        // A killed process ends only when it runs again, so it gets a high priority.
        let _refused = if self.in_terminal {
            setpriority_process(Some(self.pid), URGENT)
        } else {
            setpriority_pgrp(Some(self.pid), URGENT)
        };
    }

    fn signal(&self, signal: Signal) {
        // An error means that the group no longer exists.
        let _sent = if self.in_terminal {
            kill_process(self.pid, signal)
        } else {
            kill_process_group(self.pid, signal)
        };
    }
}
