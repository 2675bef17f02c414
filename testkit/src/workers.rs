//! Processes that a test starts, and a function that waits for a condition without an event.

use std::collections::VecDeque;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio, exit};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::signal;

const ROLE: &str = "REDLATCH_TESTKIT_ROLE";
const ARGS: &str = "REDLATCH_TESTKIT_ARGS";
/// The separator of arguments. No argument of a test contains it.
const SEPARATOR: char = '\u{1f}';
/// The beginning of each line of a worker. The test harness also writes to the worker's output.
const MARK: &str = ">> ";

/// A process that runs this executable in a role.
///
/// The executable gets its role from [`Job::from_env`]. The worker is killed when this value is
/// dropped. The worker also ends when this process ends in any way, even if the worker is paused
/// then.
#[derive(Debug)]
pub struct Worker {
    role: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    last: VecDeque<String>,
    guard: Option<Guard>,
}

impl Worker {
    /// Starts this executable in a role. The function is for benches and examples with their own
    /// `main`, which must begin with `if let Some(job) = Job::from_env() { .. }`.
    ///
    /// # Panics
    ///
    /// The executable cannot be started again.
    #[must_use]
    pub fn spawn(role: &str, args: &[&str]) -> Self {
        Self::spawn_with(&this_executable(), role, args, &[])
    }

    /// Starts another build of this executable in a role.
    ///
    /// # Panics
    ///
    /// The build cannot be started.
    #[must_use]
    pub fn spawn_build(exe: &Path, role: &str, args: &[&str]) -> Self {
        Self::spawn_with(exe, role, args, &[])
    }

    /// Starts this test executable in a role. `test` is the full name of the `#[test]` in which the
    /// worker runs. In a process without a job ([`Job::from_env`] returns `None`), this test must
    /// return at once.
    ///
    /// # Panics
    ///
    /// The executable cannot be started again.
    #[must_use]
    pub fn spawn_test(test: &str, role: &str, args: &[&str]) -> Self {
        let harness = ["--exact", test, "--nocapture", "--include-ignored"];
        Self::spawn_with(&this_executable(), role, args, &harness)
    }

    fn spawn_with(exe: &Path, role: &str, args: &[&str], harness: &[&str]) -> Self {
        let separator = SEPARATOR.to_string();
        let mut child = Command::new(exe)
            .args(harness)
            .env(ROLE, role)
            .env(ARGS, args.join(&separator))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The worker has its own process group. Ctrl-C does not reach the worker, but the
            // worker notices the end of its input.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", exe.display()));
        let stdin = child.stdin.take();
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                for line in lines {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Self { role: role.to_owned(), child, stdin, lines, last: VecDeque::new(), guard: None }
    }

    /// The worker's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the worker a line, which its [`Job::next_line`] returns.
    ///
    /// # Panics
    ///
    /// The worker has ended.
    pub fn send_line(&mut self, line: &str) {
        let sent = self.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        if !matches!(sent, Some(Ok(()))) {
            self.fail(&format!("cannot be told {line:?}: it has ended"));
        }
    }

    /// Waits for a line that begins with `prefix`, and skips other lines. Returns the line without
    /// the prefix.
    ///
    /// # Panics
    ///
    /// No such line comes within the timeout. The message contains the last lines that came.
    pub fn expect_line(&mut self, prefix: &str, timeout: Duration) -> String {
        let until = Instant::now() + timeout;
        loop {
            match self.next(until) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return rest.trim().to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.fail(&format!("has not said {prefix:?} in {timeout:?}"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.fail(&format!("has ended without saying {prefix:?}"));
                }
            }
        }
    }

    /// Returns the worker's next line, if one comes within the timeout.
    pub fn try_line(&mut self, timeout: Duration) -> Option<String> {
        self.next(Instant::now() + timeout).ok()
    }

    fn next(&mut self, until: Instant) -> Result<String, RecvTimeoutError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left)?;
            if self.last.len() == 20 {
                self.last.pop_front();
            }
            self.last.push_back(line.clone());
            if let Some(line) = line.strip_prefix(MARK) {
                return Ok(line.to_owned());
            }
        }
    }

    /// Pauses the worker (SIGSTOP).
    ///
    /// # Panics
    ///
    /// The shell that would kill the worker cannot be started.
    pub fn sigstop(&mut self) {
        // Start the guard first, because this process may be killed at any moment.
        if self.guard.is_none() {
            self.guard = Some(Guard::of(self.pid()));
        }
        signal::stop(self.pid());
    }

    /// Resumes a paused worker.
    pub fn sigcont(&self) {
        signal::go_on(self.pid());
    }

    /// Kills the worker and waits until it is gone.
    pub fn sigkill(&mut self) {
        let _ = self.child.kill();
        // End the guard before the wait, because another process may get the process id after the
        // wait.
        self.guard = None;
        let _ = self.child.wait();
    }

    /// Waits until the worker has ended by itself.
    ///
    /// # Panics
    ///
    /// The worker does not end within the timeout.
    pub fn wait_exit(&mut self, timeout: Duration) -> ExitStatus {
        let until = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                Ok(None) => self.fail(&format!("has not ended in {timeout:?}")),
                Err(error) => self.fail(&format!("cannot be waited for: {error}")),
            }
        }
    }

    fn fail(&self, what: &str) -> ! {
        let last = self.last.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        panic!("worker {:?} {what}; look at its stderr above; its last lines:\n{last}", self.role);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.sigkill();
    }
}

fn this_executable() -> PathBuf {
    env::current_exe().unwrap_or_else(|error| panic!("this executable's path is unknown: {error}"))
}

/// Kills a process when this process dies, because a paused process does not notice the end of its
/// input. Make the guard before you pause the process, and drop the guard before you wait for the
/// process.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Returns a guard for the process with this id, which this process has started.
    ///
    /// # Panics
    ///
    /// No shell can be started.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let shell = Command::new("sh")
            .args(["-c", "trap '' INT QUIT TERM HUP; read -r line || kill -9 \"$0\""])
            .arg(pid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("no shell to guard a worker ({error}): install sh"));
        Self { shell }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.shell.stdin.take() {
            let _ = stdin.write_all(b"end\n");
        }
        let _ = self.shell.wait();
    }
}

/// The role of a process that a [`Worker`] has started.
///
/// The process ends (with status 0) as soon as its parent closes the pipe or dies.
#[derive(Debug)]
pub struct Job {
    role: String,
    args: Vec<String>,
    lines: Mutex<Receiver<String>>,
}

impl Job {
    /// Returns the job that the parent's [`Worker`] gave to this process, or `None` if this process
    /// is not a worker. Call this function once.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        let role = env::var(ROLE).ok()?;
        let args = env::var(ARGS).unwrap_or_default();
        let args = match args.as_str() {
            "" => Vec::new(),
            args => args.split(SEPARATOR).map(str::to_owned).collect(),
        };
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
            // The parent is gone, or has closed the pipe to end this process.
            exit(0);
        });
        Some(Self { role, args, lines: Mutex::new(lines) })
    }

    /// The role of this process.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The arguments from the parent.
    #[must_use]
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// The argument at this index.
    ///
    /// # Panics
    ///
    /// The parent gave fewer arguments.
    #[must_use]
    pub fn arg(&self, index: usize) -> &str {
        match self.args.get(index) {
            Some(arg) => arg,
            None => panic!("role {:?} needs argument {index}: give it to spawn()", self.role),
        }
    }

    /// Sends a line to the parent.
    pub fn say(&self, line: &str) {
        // The test harness may have written an incomplete line.
        let text = format!("\n{MARK}{line}\n");
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    }

    /// Returns the parent's next line, if one comes within the timeout.
    #[must_use]
    pub fn next_line(&self, timeout: Duration) -> Option<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.recv_timeout(timeout).ok()
    }

    /// Waits for the parent's next line. If the parent has ended, the process ends.
    #[must_use]
    pub fn wait_line(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // The parent has closed the pipe, so this process is about to end.
        lines.recv().unwrap_or_else(|_| exit(0))
    }

    /// Ends the process at once, so that the test harness writes nothing more.
    pub fn done(&self) -> ! {
        exit(0)
    }
}

/// Waits for a condition that no event announces. Checks the condition every millisecond at first,
/// and less often later.
///
/// If the machine stands still, the threads that should make the condition true stand still, too.
/// So a pause between two checks counts as at most a second. The time of a check counts in full.
///
/// # Panics
///
/// The condition is not true within the timeout. The message contains `what`.
#[track_caller]
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let (mut waited, mut longest) = (Duration::ZERO, Duration::ZERO);
    loop {
        let checked = Instant::now();
        if condition() {
            return;
        }
        waited += checked.elapsed();
        assert!(
            waited < timeout,
            "waited {timeout:?} in vain until {what} (longest pause between two checks: \
             {longest:?})"
        );
        // Check less often over time: hundreds of threads that check each millisecond would
        // overload a small machine.
        let slept = Instant::now();
        thread::sleep((waited / 8).clamp(Duration::from_millis(1), Duration::from_millis(20)));
        let pause = slept.elapsed();
        (waited, longest) = (waited + pause.min(Duration::from_secs(1)), longest.max(pause));
    }
}

#[cfg(test)]
mod tests;
