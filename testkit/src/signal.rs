//! Signals to processes that tests have started.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Pauses a process (SIGSTOP). Returns when none of its threads runs.
///
/// # Panics
///
/// `pid` is not a process id.
pub fn stop(pid: u32) {
    send(pid, Signal::STOP);
    // The signal reaches the threads one after the other.
    let until = Instant::now() + Duration::from_secs(1);
    while runs(pid) && Instant::now() < until {
        thread::sleep(Duration::from_micros(100));
    }
}

/// Whether a thread of the process still runs: it is not stopped and not a zombie.
fn runs(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        // The process is gone, or the system has no `/proc`. Without `/proc`, a short pause must be
        // enough.
        thread::sleep(Duration::from_millis(10));
        return false;
    };
    threads.flatten().any(|thread| state(&thread.path()).is_some_and(|it| !"TtZX".contains(it)))
}

/// Returns the letter for the state of a process or thread in `/proc`.
fn state(folder: &Path) -> Option<char> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // The program's name before the letter is in parentheses, and may itself contain parentheses.
    stat.rsplit(')').next()?.trim().chars().next()
}

/// Resumes a paused process.
///
/// # Panics
///
/// `pid` is not a process id.
pub fn go_on(pid: u32) {
    send(pid, Signal::CONT);
}

fn send(pid: u32, signal: Signal) {
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(target) = target else {
        panic!("{pid} is no process id; was the process started?");
    };
    // The process may already be gone.
    let _ = kill_process(target, signal);
}

#[cfg(test)]
pub(crate) fn is_alive(pid: u32) -> bool {
    let proc = Path::new("/proc");
    if proc.join("self/stat").exists() {
        // A zombie has ended, and only waits for its parent to read its status.
        return state(&proc.join(pid.to_string())).is_some_and(|it| it != 'Z' && it != 'X');
    }
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::test_kill_process(pid).is_ok()
}
