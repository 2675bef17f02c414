//! The process between `redlatch run` and the command: the command's parent, outside of its group.
//!
//! It knows until when the lock is certain, and the command's group is dead by then, also if
//! `redlatch run` was killed or stopped. As the parent it knows the command before any other
//! process could end it, and the number of the group is not used anew as long as the command is
//! not reaped. So it is the only one that signals the group. (If it is stopped itself, `redlatch
//! run` kills the group in its place.)
//!
//! Its stdin is a socket. `redlatch run` sends the command's stdin, and lines:
//!
//! ```text
//! until T      the lock is certain until T, in ns on `clock`
//! signal N     for the command
//! stop T       the command is to be told to end at T
//! kill         the lock is lost
//! ```
//!
//! It answers `started PID` or `failed STATUS WHY`. `PID` has not become the command then, but
//! waits for its stdin, which it gets when the lock is certain and this process has left its
//! group. When the command has ended and its group is killed, it says `ended STATUS LOST FAILED`.
//! Then it reaps them, and ends when all of them are dead.

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

/// The argument that makes this program a guardian.
pub(crate) const ARGUMENT: &str = "guard-of-redlatch-run";
/// How often it looks at the clock at least, which goes on while the machine sleeps.
const LOOK: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(100);
/// The niceness of this process, and of what it has killed, if it has the right to it: with 30 busy
/// processes for each core, both were a second late.
const URGENT: i32 = -20;

/// In ns; goes on while the machine sleeps, as the leases do.
pub(crate) fn clock() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos.unwrap_or(0))
}

/// The signals that end a program, but for those that are ignored here, as by nohup: the command is
/// to ignore them, too.
pub(crate) fn signals() -> impl Iterator<Item = i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let all = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];
    all.into_iter().filter(move |signal| mask & (1 << (signal - 1)) == 0)
}

/// Waits for a child's end. Returns its status, as a shell has it. `None`: there is no such child.
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

/// Reaps the command and its group, which are killed. Returns the command's status, if it was not
/// reaped before.
pub(crate) fn reap(command: Pid, in_terminal: bool) -> Option<u8> {
    let status = wait(WaitId::Pid(command), WaitIdOptions::empty());
    // In a terminal nobody has killed the others of a group that the command has made.
    let group = WaitId::Pgid(Some(command));
    while !in_terminal && wait(group.clone(), WaitIdOptions::empty()).is_some() {}
    status
}

struct Guardian {
    pid: Pid,
    /// In a terminal's group: only the command itself is signalled, since the group may have others.
    in_terminal: bool,
    /// Has also those that have left the group.
    cgroup: Option<Cgroup>,
    /// What `redlatch run` says, until it is gone.
    lines: Option<BufReader<UnixStream>>,
    /// The part of a line that has come.
    line: String,
    /// The command gets its stdin through it. If it cannot begin, a byte comes.
    start: UnixStream,
    /// The command has not begun.
    stdin: Option<OwnedFd>,
    grace: u64,
    /// So much before the deadline the group is killed: a killed process needs a moment to die.
    margin: u64,
    /// When the lock may be another's.
    until: u64,
    /// The end by `stop`: when the command is killed, the grace time after it is told to end.
    stops: u64,
    asked_to_end: bool,
    /// The command was told to end, or killed, since the lock ends.
    lost: bool,
}

/// `words`: the grace time and the margin in ns, the terminal's group or 0, the client whose number
/// names the cgroup or nothing, the program's path, and the command.
pub(crate) fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    guard(words).map_or_else(|| SOFTWARE.into(), |()| ExitCode::SUCCESS)
}

fn guard(mut words: impl Iterator<Item = OsString>) -> Option<()> {
    // It ends with the command, and not before.
    for signal in signals() {
        signal_hook::flag::register(signal, Arc::default()).ok()?;
    }
    // Then the orphans of the group are its children, and it sees that they are dead.
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
        Err(error) => return failed(SOFTWARE, format!("no command: {error}")),
    };
    // Its end of the socket is the command's alone.
    drop(command);
    let pid = Pid::from_raw(i32::try_from(child.id()).ok()?)?;
    hurry(pid);
    // Before it begins: moved there later, it might have started others meanwhile.
    let cgroup = client.to_str().filter(|client| !client.is_empty()).map(|client| {
        let cgroup = Cgroup::of(client)?;
        cgroup.take(child.id()).map(|()| cgroup)
    });
    let cgroup = match cgroup.transpose() {
        Ok(cgroup) => cgroup,
        Err(error) => return failed(CONFIG, format!("no cgroup: {error}")),
    };
    tell(&socket, format!("started {}\n", child.id()));
    // From here on `redlatch run` reads the few lines soon: no write waits, either.
    let lines = socket.set_nonblocking(true).and_then(|()| socket.try_clone());
    let (lines, ended) = match lines.and_then(|lines| Ok((lines, watch(pid)?))) {
        Ok((lines, ended)) => (Some(BufReader::new(lines)), ended),
        Err(error) => return failed(SOFTWARE, format!("no guardian: {error}")),
    };
    let mut guardian = Guardian {
        pid,
        in_terminal: terminal > 0,
        cgroup,
        lines,
        line: String::new(),
        start,
        stdin: Some(stdin),
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

/// Lets this process, and the threads that it starts from here on, not wait for their turn.
///
/// Linux shares a core among sessions first: in a busy session a process of any niceness was 0.7 s
/// late, and 25 ms in one of its own.
fn hurry(command: Pid) {
    // A group's leader can have no session of its own: for a moment it is of the command's group,
    // which has not begun.
    let joined = getpgid(Some(command)).and_then(|group| setpgid(None, Some(group)));
    if joined.and_then(|()| setsid()).is_ok() {
        let _refused = fs::write("/proc/self/autogroup", URGENT.to_string());
    } else {
        let _own = setpgid(None, None);
    }
    let _refused = setpriority_process(None, URGENT);
}

/// A line in one piece: each wakes `redlatch run`. If that is gone, nobody reads it.
fn tell(mut socket: &UnixStream, line: String) -> Option<()> {
    socket.write_all(line.as_bytes()).ok()
}

/// Is closed when the command has ended, and is not reaped.
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
                LOOK.min(Duration::from_nanos(end.saturating_sub(now)))
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

    /// Kills the rest of the group. Returns the status of the command, whether it was stopped since
    /// the lock ends, and whether it could not begin.
    fn ended(&mut self) -> (u8, bool, bool) {
        // The lock is about to be free. The number is still the group's: the command is not reaped.
        if !self.in_terminal {
            self.kill_group();
        }
        let status = wait(WaitId::Pid(self.pid), WaitIdOptions::NOWAIT).unwrap_or(SOFTWARE);
        // The other end is closed: a command does not inherit it.
        let failed = self.stdin.is_some() || matches!(self.start.read(&mut [0]), Ok(1..));
        (status, self.lost, failed)
    }

    /// Orphans of the command's are children of this process, and no other one would reap them.
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

    /// Obeys all lines that have come. This process may have been stopped meanwhile: it reads them
    /// before it looks at its deadline.
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
            // A lock that is kept after all does not undo that the command was told to end.
            "until" if !self.lost => {
                let until = number.parse().unwrap_or(self.until);
                // On a busy machine the first deadline may have passed before the command begins.
                if clock() < until.saturating_sub(self.margin)
                    && let Some(stdin) = self.stdin.take()
                {
                    let _gone = start::send_stdin(&self.start, stdin);
                }
                if self.stdin.is_none() {
                    self.until = until;
                }
            }
            "signal" => {
                let signal = number.parse().ok().and_then(Signal::from_named_raw);
                signal.inspect(|signal| self.signal(*signal));
            }
            "stop" => {
                self.stops = number.parse().unwrap_or(u64::MAX).saturating_add(self.grace);
            }
            // Whatever was said behind it.
            "kill" => (self.until, self.lost) = (0, true),
            // The end: the lock is not renewed any more, and ends as it would have.
            "" if self.stdin.is_some() => self.until = 0,
            _ => {}
        }
    }

    /// Asks the command to end. A stopped one would not hear it.
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
        // It may have left its group.
        let _sent = kill_process(self.pid, Signal::KILL);
        // A killed process is gone when it has had its turn.
        let _refused = if self.in_terminal {
            setpriority_process(Some(self.pid), URGENT)
        } else {
            setpriority_pgrp(Some(self.pid), URGENT)
        };
    }

    fn signal(&self, signal: Signal) {
        // A group that is gone needs none.
        let _sent = if self.in_terminal {
            kill_process(self.pid, signal)
        } else {
            kill_process_group(self.pid, signal)
        };
    }
}
