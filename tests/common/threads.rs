//! The threads of a test, and whether they sleep.

use std::env;
use std::fs;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::{TIME_UNIT, TIMEOUT, wait_until};

/// A thread of a test. `join` passes its panic on to the test.
pub(crate) struct Running<T> {
    id: u64,
    handle: JoinHandle<T>,
}

/// Starts a thread. Returns when the thread runs.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let (sender, started) = mpsc::channel();
    let handle = thread::spawn(move || {
        sender.send(thread_number()).unwrap();
        work()
    });
    Running { id: started.recv().unwrap(), handle }
}

impl<T> Running<T> {
    /// Waits until the thread has slept for a few milliseconds. The thread may then sleep in a
    /// queue, or wait for the reply to a request.
    pub(crate) fn wait_asleep(&self) {
        self.wait_still(sleeps, || self.is_finished());
    }

    /// Waits until the thread has slept for a few milliseconds, but not for a reply. The thread is
    /// then in a queue. While its first request is in flight, a later thread may still get the lock
    /// before it.
    pub(crate) fn wait_queued(&self) {
        self.wait_still(sleeps_in_line, || self.is_finished());
    }

    /// Like [`wait_queued`](Self::wait_queued), for a thread that has done its work and whose
    /// thread-local has a destructor that waits.
    pub(crate) fn wait_queued_at_its_end(&self) {
        self.wait_still(sleeps_in_line, || false);
    }

    fn wait_still(&self, sleeps: impl Fn(u64) -> Option<u64>, has_ended: impl Fn() -> bool) {
        let mut since = Instant::now();
        let mut last = None;
        wait_until("the thread sleeps", TIMEOUT, || {
            assert!(!has_ended(), "the thread has ended and does not wait");
            let seen = sleeps(self.id);
            if seen.is_none() || seen != last {
                last = seen;
                since = Instant::now();
            }
            since.elapsed() > TIME_UNIT / 10
        });
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    pub(crate) fn join(self) -> T {
        wait_until("the thread ends", TIMEOUT, || self.handle.is_finished());
        self.handle.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Runs `work` on a new thread and waits for its end.
pub(crate) fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn(work).join()
}

/// Waits until this process's threads of this name (its first 15 characters) have nothing to do:
/// they sleep, and not for a reply. Only for a test that has its own process.
pub(crate) fn wait_idle(name: &str) {
    wait_until(&format!("{name} has nothing to do"), TIMEOUT, || {
        let mut named = tasks().filter(|(_, thread)| thread == name).map(|(id, _)| id);
        named.all(|id| sleeps_in_line(id).is_some())
    });
}

#[cfg(target_os = "linux")]
fn thread_number() -> u64 {
    let path = fs::read_link("/proc/thread-self").unwrap();
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Returns how many times the thread has fallen asleep, or `None` if it does not sleep now.
#[cfg(target_os = "linux")]
fn sleeps(thread: u64) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let field = |name| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    field("State:")?.starts_with('S').then_some(())?;
    field("voluntary_ctxt_switches:")?.parse().ok()
}

/// Like [`sleeps`], but also returns `None` if the thread waits for a reply.
fn sleeps_in_line(thread: u64) -> Option<u64> {
    sleeps(thread).filter(|_| is_parked(thread))
}

/// Whether the thread sleeps in the system call of mutexes and condition variables.
#[cfg(target_os = "linux")]
fn is_parked(thread: u64) -> bool {
    let futex = match env::consts::ARCH {
        "x86_64" => "202",
        "aarch64" => "98",
        // The number of the system call is unknown on this system, so any sleep counts.
        _ => return true,
    };
    let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
    call.map_or(true, |call| call.split(' ').next() == Some(futex))
}

#[cfg(not(target_os = "linux"))]
fn thread_number() -> u64 {
    0
}

/// This system does not show whether a thread sleeps, so a pause must be enough.
#[cfg(not(target_os = "linux"))]
fn sleeps(_thread: u64) -> Option<u64> {
    thread::sleep(TIME_UNIT);
    Some(0)
}

#[cfg(not(target_os = "linux"))]
fn is_parked(_thread: u64) -> bool {
    true
}

/// Returns the names of this process's threads (their first 15 characters).
pub(crate) fn thread_names() -> Vec<String> {
    tasks().map(|(_, name)| name).collect()
}

/// Returns the ids and names of this process's threads, or nothing if the system does not show
/// them.
fn tasks() -> impl Iterator<Item = (u64, String)> {
    fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(|task| {
        let task = task.ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, name.trim().to_owned()))
    })
}
