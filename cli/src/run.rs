//! `redlatch run`: a command that runs while a lock is held.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use redlatch::{CancelToken, ErrorKind, Wait};
use rustix::fs::{Access, access};
use rustix::net::{SendFlags, send};
use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::args::{Args, Run};
use crate::cgroup::Cgroup;
use crate::guardian::{self, clock};
use crate::held::Held;
use crate::process::Process;
use crate::start;
use crate::trouble::{CANNOT_RUN, LOST, NOT_FOUND, SOFTWARE, TOO_LONG, Trouble, USAGE, say};

/// The limits of a lease that the watchdog renews.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// The default grace time, for a lease that is long enough.
const GRACE: Duration = Duration::from_secs(5);
/// The time before the end of the lease at which the command is killed, for a lease that is long
/// enough. On a busy machine, the killer may wake up late, and the killed process may take some
/// time to end.
const MARGIN: Duration = Duration::from_secs(2);
/// If the guardian is paused, the group is killed again after this time.
const AGAIN: Duration = Duration::from_millis(5);
/// If the guardian is late by more than this time, `redlatch run` assumes that it is paused, and
/// kills it.
const LATE: Duration = Duration::from_secs(1);

/// Takes the lock, runs the command, and returns the status.
pub(crate) fn run(args: &Args, run: &Run) -> Result<u8, Trouble> {
    let job = Job::of(run)?;
    if run.lease < SHORTEST || run.lease > LONGEST {
        return Err(Trouble::new(USAGE, "--lease must be from 10 ms to 365 days"));
    }
    // A renewal must arrive before the time at which the command is asked to end.
    if grace(run).saturating_add(margin(run)) > run.lease / 2 {
        let longest = (run.lease / 2).saturating_sub(margin(run));
        let message = format!("--kill-grace is too long for the lease: at most {longest:.1?}");
        return Err(Trouble::new(USAGE, message));
    }
    let signals = Heard::start()?;
    let client = args.client()?.watchdog_timeout(run.lease).connect()?;
    let token = signals.cancels();
    let wait = run.wait.map_or(Wait::FOREVER, Wait::at_most);
    let wait = if run.nonblock { Wait::NONE } else { wait };
    let begun = Instant::now();
    let mut held = match Held::take(&client, &job.name, run, wait.cancelled_by(&token)) {
        Ok(Some(held)) => held,
        // Print nothing, because a cron job with status 0 must not cause a mail.
        Ok(None) if run.conflict_exit_code == 0 && !run.verbose => return Ok(0),
        Ok(None) => {
            let free = if run.permits.is_some() { "had no free permit" } else { "was not free" };
            let message = format!("{} {free} within {:.1?}", job.name, begun.elapsed());
            return Err(Trouble::expected(run.conflict_exit_code, message));
        }
        Err(error) if error.kind() == ErrorKind::Cancelled => return Ok(signals.status()),
        Err(error) => return Err(error.into()),
    };
    let had = clock();
    let least = || {
        let passed = Duration::from_nanos(clock().saturating_sub(had));
        let left = run.hold_at_least?.saturating_sub(passed);
        // The server counts whole milliseconds.
        (left >= Duration::from_millis(1)).then_some(left)
    };
    if run.verbose {
        say(format_args!("{} taken after {:.1?}", job.name, begun.elapsed()));
    }
    let (events, told) = channel();
    // If another process handed over the lock, the lease is only 2 s at first.
    held.check(run.lease / 2)?;
    let lost = events.clone();
    held.on_lost(move |_| drop(lost.send(Event::Lost)));
    if run.on_wanted.is_some() {
        let wanted = events.clone();
        held.on_wanted(move || drop(wanted.send(Event::Wanted)));
    }
    let mut work = Work::start(&job, run, &held, client.id(), events.clone())?;
    // Call `raise` as late as possible: if this process is killed after `raise`, the lock stays
    // taken. But call it before the guardian gets the deadline, because the command may begin then.
    if let Some(least) = least() {
        held.raise(least)?;
    }
    // Call `go_to` as late as possible. If a signal comes before `go_to`, the command never begins,
    // and the lock does not stay taken for the minimum time.
    if !signals.go_to(&events) {
        return Ok(signals.status());
    }
    work.begin(run, &held)?;
    let ended = work.see_through(run, &held, &told);
    if work.lost {
        say(format_args!("{} was lost, so the command was stopped", job.name));
        // There is nothing to release, and the client's drop could wait for an unreachable server.
        std::process::exit(LOST.into());
    }
    signals.ends();
    let freed = match least().filter(|_| work.has_begun()) {
        Some(least) => held.leave(least),
        None => held.release(),
    };
    match (ended, freed) {
        // The lock was lost while the command ran.
        (Ok(_), Err(error)) if error.kind() == ErrorKind::LeaseLost => Err(error.into()),
        (ended, freed) => {
            let _said = freed.inspect_err(|error| say(format_args!("{error:#}")));
            if work.stopped && ended.is_ok() {
                let message = format!("{}: the command was stopped after --max-hold", job.name);
                return Err(Trouble::expected(TOO_LONG, message));
            }
            ended
        }
    }
}

fn grace(run: &Run) -> Duration {
    run.kill_grace.unwrap_or_else(|| GRACE.min(run.lease / 4))
}

fn margin(run: &Run) -> Duration {
    MARGIN.min(run.lease / 10)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The command to run, and its lock.
struct Job {
    name: String,
    program: PathBuf,
    words: Vec<OsString>,
}

impl Job {
    fn of(run: &Run) -> Result<Self, Trouble> {
        let mut words = run.words.clone();
        let name = words.remove(0).into_string();
        let name = name.map_err(|_| Trouble::new(USAGE, "the lock's name is not UTF-8"))?;
        let is_shell = |word: &OsString| word == "-c" || word == "--command";
        // As in flock(1), -c may also come after the name.
        let script = match (&run.command, &words[..]) {
            (Some(script), []) => Some(script.clone()),
            (None, [option, script]) if is_shell(option) => Some(script.clone()),
            (Some(_), _) => {
                return Err(Trouble::new(
                    USAGE,
                    "there is a command after the name, and another one after -c",
                ));
            }
            (None, _) => None,
        };
        if let Some(script) = script {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            words = vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), script];
        }
        let Some(command) = words.first() else {
            return Err(Trouble::new(USAGE, "there is no command after the lock's name"));
        };
        Ok(Self { name, program: find(command)?, words })
    }
}

/// Finds the program of a command. The look-up comes before the lock is taken.
fn find(command: &OsStr) -> Result<PathBuf, Trouble> {
    let shown = command.to_string_lossy();
    let found: Vec<_> = if shown.contains('/') {
        vec![PathBuf::from(command)]
    } else if shown.is_empty() {
        Vec::new()
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        std::env::split_paths(&folders).map(|folder| folder.join(command)).collect()
    };
    let runs = |path: &&PathBuf| is_file(path) && access(*path, Access::EXEC_OK).is_ok();
    if let Some(path) = found.iter().find(runs) {
        return Ok(path.clone());
    }
    let exists = found.iter().any(|path| is_file(path)) || shown.contains('/') && found[0].exists();
    Err(if exists {
        Trouble::new(CANNOT_RUN, format!("{shown}: not an executable file"))
    } else {
        Trouble::new(NOT_FOUND, format!("{shown}: no such command"))
    })
}

fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file())
}

enum Event {
    Signal(i32),
    Lost,
    /// Another process waits for the lock.
    Wanted,
    /// A line from the guardian. An empty line means that the guardian has ended.
    Said(String),
}

/// The effect of a signal on this process.
enum Hears {
    /// The signal ends this process, because there is nothing to undo.
    Nothing,
    Waiting(CancelToken),
    Cancelled(i32),
    Running(Sender<Event>),
}

/// The handler of the signals that this process gets.
#[derive(Clone)]
struct Heard(Arc<Mutex<Hears>>);

impl Heard {
    fn start() -> Result<Self, Trouble> {
        let failed = |error| Trouble::new(SOFTWARE, format!("cannot receive signals: {error}"));
        let mut signals = Signals::new(guardian::signals()).map_err(failed)?;
        let hears = Self(Arc::new(Mutex::new(Hears::Nothing)));
        let heard = hears.clone();
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || signals.forever().for_each(|signal| heard.hear(signal)))
            .map_err(failed)?;
        Ok(hears)
    }

    fn hear(&self, signal: i32) {
        let mut hears = self.lock();
        match &*hears {
            Hears::Nothing | Hears::Cancelled(_) => std::process::exit(128 + signal),
            Hears::Waiting(token) => {
                token.cancel();
                *hears = Hears::Cancelled(signal);
            }
            Hears::Running(events) => drop(events.send(Event::Signal(signal))),
        }
    }

    /// From now on, a signal cancels the returned token.
    fn cancels(&self) -> CancelToken {
        let token = CancelToken::new();
        *self.lock() = Hears::Waiting(token.clone());
        token
    }

    /// From now on, signals become events. Returns `false` if a signal came before.
    fn go_to(&self, events: &Sender<Event>) -> bool {
        let mut hears = self.lock();
        let is_cancelled = matches!(*hears, Hears::Cancelled(_));
        if !is_cancelled {
            *hears = Hears::Running(events.clone());
        }
        !is_cancelled
    }

    /// From now on, a signal ends the process, because a shutdown may wait for an unreachable
    /// server.
    fn ends(&self) {
        *self.lock() = Hears::Nothing;
    }

    /// Returns the status after a signal.
    fn status(&self) -> u8 {
        let signal = if let Hears::Cancelled(signal) = *self.lock() { signal } else { 0 };
        u8::try_from(128 + signal).unwrap_or(SOFTWARE)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Hears> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts the guardian's lines to events.
fn listen(socket: &UnixStream, events: Sender<Event>) -> std::io::Result<()> {
    let lines = BufReader::new(socket.try_clone()?).lines().map_while(Result::ok);
    let lines = lines.chain([String::new()]).map(Event::Said);
    let listen = move || lines.for_each(|line| drop(events.send(line)));
    thread::Builder::new().name("lines".to_owned()).spawn(listen).map(drop)
}

/// The command and its guardian.
struct Work {
    guardian: Child,
    socket: UnixStream,
    in_terminal: bool,
    cgroup: Option<Cgroup>,
    /// The process that becomes the command. The guardian reaps it only after the line `ended`.
    command: Option<Process>,
    /// The guardian's last message: the command's status, or the reason why there is no status.
    said: Option<Result<u8, Trouble>>,
    /// The time until which the lock is held, as the guardian knows it.
    until: u64,
    /// The time at which `--max-hold` ends the command.
    stops: Option<u64>,
    lost: bool,
    /// Whether `--max-hold` ended the command.
    stopped: bool,
    /// Whether the command could not begin.
    failed: bool,
}

fn no_guardian(error: std::io::Error) -> Trouble {
    Trouble::new(SOFTWARE, format!("cannot start the guardian: {error}"))
}

impl Work {
    /// Starts the guardian, which waits for the command's stdin.
    fn start(
        job: &Job,
        run: &Run,
        held: &Held,
        client: &str,
        events: Sender<Event>,
    ) -> Result<Self, Trouble> {
        let (socket, its) = UnixStream::pair().map_err(no_guardian)?;
        let in_terminal = std::io::stdin().is_terminal();
        let group = if in_terminal { getpgrp().as_raw_nonzero().get() } else { 0 };
        let mut command = start::this_program();
        command.arg(guardian::ARGUMENT);
        command.arg(grace(run).as_nanos().to_string()).arg(margin(run).as_nanos().to_string());
        command.arg(group.to_string()).arg(if run.cgroup { client } else { "" });
        command.arg(&job.program).args(&job.words);
        command.env("REDLATCH_NAME", &job.name).env("REDLATCH_OWNER", client);
        command.env_remove("REDLATCH_TOKEN");
        if let Some(token) = held.token() {
            command.env("REDLATCH_TOKEN", token.to_string());
        }
        let ends = SystemTime::now() + run.max_hold.unwrap_or(Duration::MAX).min(held.remaining());
        let ends = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        command.env("REDLATCH_DEADLINE", ends.as_millis().to_string());
        // The guardian has its own group, so it does not get signals to the command's group or to
        // the group of this process.
        command.process_group(0).stdin(Stdio::from(OwnedFd::from(its)));
        // If the guardian is killed, its children become children of this process.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| no_guardian(error.into()))?;
        let guardian = command.spawn().map_err(no_guardian)?;
        // After this drop, only the guardian has its end of the socket, which closes when the
        // guardian ends.
        drop(command);
        let cgroup = run.cgroup.then(|| Cgroup::of(client).ok()).flatten();
        listen(&socket, events).map_err(no_guardian)?;
        Ok(Self {
            guardian,
            socket,
            in_terminal,
            cgroup,
            command: None,
            said: None,
            until: 0,
            stops: None,
            lost: false,
            stopped: false,
            failed: false,
        })
    }

    /// Sends the guardian the command's stdin and the deadline. After this call, the command may
    /// begin.
    fn begin(&mut self, run: &Run, held: &Held) -> Result<(), Trouble> {
        start::send_stdin(&self.socket, std::io::stdin()).map_err(no_guardian)?;
        if let Some(longest) = run.max_hold {
            let at = clock().saturating_add(nanos(longest));
            self.stops = Some(at);
            // Send the line now, because this process may be killed or paused later.
            self.tell(&format!("stop {at}\n"));
        }
        self.tell_deadline(held);
        Ok(())
    }

    fn tell(&self, line: &str) {
        // If the guardian has ended, the thread that reads its lines notices this. If the guardian
        // is paused, this process must not wait for it, but must kill the group in its place.
        let _sent = send(&self.socket, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Sends the guardian the time until which the lock is certainly held, if this time has
    /// changed.
    fn tell_deadline(&mut self, held: &Held) {
        // Read the clock first: if this process is paused between the two reads, the deadline is
        // too early, which is safe.
        let now = clock();
        let left = nanos(held.remaining());
        let until = now.saturating_add(left);
        // Each computation of the same deadline differs a little, because it reads a clock.
        if left > 0 && until.abs_diff(self.until) > 1_000_000 {
            self.until = until;
            self.tell(&format!("until {until}\n"));
        }
    }

    /// Waits until the command has ended and its group is dead. Returns the status.
    fn see_through(
        &mut self,
        run: &Run,
        held: &Held,
        told: &Receiver<Event>,
    ) -> Result<u8, Trouble> {
        let tick = (run.lease / 20).clamp(Duration::from_millis(5), Duration::from_millis(500));
        // This process kills the group later than the guardian would.
        let margin = margin(run) / 2;
        let (mut stops, mut is_stopped) = (self.stops, false);
        // The time at which the guardian must have ended, and whether this process has given up
        // waiting for it.
        let (mut late, mut given_up) = (u64::MAX, false);
        loop {
            let next = stops.unwrap_or(u64::MAX);
            let wait = Duration::from_nanos(next.saturating_sub(clock()));
            let left = held.remaining().saturating_sub(margin);
            match told.recv_timeout(wait.min(tick).min(left).max(AGAIN)) {
                Ok(Event::Said(line)) if line.is_empty() => {
                    let status = self.take_over(given_up);
                    self.stopped = is_stopped && (given_up || status.is_ok());
                    return if self.stopped { Ok(TOO_LONG) } else { status };
                }
                Ok(Event::Said(line)) => self.hear(line.trim_end()),
                // In a terminal, the command receives all other signals from the terminal.
                Ok(Event::Signal(signal)) if !self.in_terminal || signal == SIGTERM => {
                    self.tell(&format!("signal {signal}\n"));
                }
                Ok(Event::Wanted) => {
                    if let Some(signal) = run.on_wanted {
                        self.tell(&format!("wanted {signal}\n"));
                    }
                }
                Ok(Event::Lost) => {
                    self.lost = true;
                    self.tell("kill\n");
                }
                Ok(Event::Signal(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(tick),
            }
            let now = clock();
            // Check the time before `has_ended`, because the guardian may have ended the command at
            // that time.
            if stops.is_some_and(|at| now >= at) {
                // A guardian that is not paused ends the command within the grace time.
                given_up |= std::mem::replace(&mut is_stopped, true);
                stops = Some(now.saturating_add(nanos(grace(run) + LATE)));
            }
            if self.has_ended() {
                stops = None;
                late = late.min(now.saturating_add(nanos(LATE)));
                given_up |= now >= late;
            }
            if held.remaining() <= margin {
                // If the command has begun, a guardian that is not paused would have killed the
                // group by now.
                given_up |= std::mem::replace(&mut self.lost, true);
                self.tell("kill\n");
                self.kill();
            } else {
                self.tell_deadline(held);
            }
            if given_up {
                // When the guardian is dead, its children become children of this process.
                let _ends = self.guardian.kill();
            }
        }
    }

    /// Returns whether the command has ended, even if the guardian is paused and cannot report it.
    fn has_ended(&self) -> bool {
        self.said.is_some() || self.command.as_ref().is_some_and(Process::has_ended)
    }

    /// Whether the command has begun. The result is also true if the guardian was paused and may
    /// not have reported the beginning.
    fn has_begun(&self) -> bool {
        self.command.is_some() && !self.failed
    }

    /// Takes the place of the guardian, which has died. The guardian's children are now children of
    /// this process, which ends them. If `command` is `None`, no command has begun, and none will
    /// begin.
    fn take_over(&mut self, given_up: bool) -> Result<u8, Trouble> {
        let has_reaped = self.guardian.wait().is_ok_and(|status| status.success());
        let mut status = None;
        if !has_reaped || !matches!(self.said, Some(Ok(_))) {
            self.kill();
            self.cgroup.as_ref().inspect(|cgroup| cgroup.end());
            let reap = |command: &Process| guardian::reap(command.pid, self.in_terminal);
            status = self.command.as_ref().and_then(reap);
        }
        match (self.said.take(), status) {
            (Some(said), _) => said,
            // The command ended by itself or by the kill above. The guardian's death also kills the
            // command.
            (None, Some(status)) if given_up => Ok(status),
            (None, _) => Err(Trouble::new(
                SOFTWARE,
                "the guardian was killed, so the command was killed, too",
            )),
        }
    }

    /// Handles a line from the guardian.
    fn hear(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (what, number, rest) = (words.next(), words.next(), words.next().unwrap_or_default());
        let number = number.and_then(|number| number.parse::<i32>().ok()).unwrap_or(0);
        let status = u8::try_from(number).unwrap_or(SOFTWARE);
        match what {
            // If the guardian has reaped the command since then, its next line reports this.
            Some("started") => self.command = Pid::from_raw(number).map(Process::of),
            Some("failed") => {
                self.failed = true;
                self.said = Some(Err(Trouble::new(status, rest)));
            }
            Some("ended") => {
                self.lost |= rest.starts_with("true");
                self.failed = rest.ends_with(" true");
                self.said = Some(Ok(status));
            }
            _ => {}
        }
    }

    fn kill(&self) {
        self.cgroup.as_ref().inspect(|cgroup| cgroup.kill());
        // After the guardian has reaped the command, another process may get the command's number.
        // Before the guardian reaps the command, it kills the command's group.
        let Some(Process { pid, .. }) = self.command else { return };
        if matches!(self.said, Some(Ok(_))) {
            return;
        }
        // The command may have left its group, so the command is killed, too.
        let _sent = kill_process(pid, Signal::KILL);
        if !self.in_terminal {
            let _sent = kill_process_group(pid, Signal::KILL);
        }
    }
}
