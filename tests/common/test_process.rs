//! The process of a test: its time limit, and tests that need a process of their own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{spawn, thread_names};

/// The time limit for a test. A test that takes longer counts as hanging.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);

thread_local! {
    /// The sender is dropped when the test's thread ends, which is the end of the test.
    static RUNS: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
}

/// Sets a time limit for the calling test. If the test does not end in time, this prints a message
/// and ends the process, because a hang is a failure.
pub(crate) fn bound() {
    let test = thread::current().name().unwrap_or("?").to_owned();
    // On the process's first thread, an earlier test may have set a limit.
    if test != "main" && RUNS.with_borrow(Option::is_some) {
        return;
    }
    let (sender, ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            let mut threads = BTreeMap::<_, usize>::new();
            thread_names().into_iter().for_each(|name| *threads.entry(name).or_default() += 1);
            // The test harness would keep the output of `eprintln!` until the end of the test.
            let _ =
                writeln!(io::stderr(), "{test} hangs; the process ends. Its threads: {threads:?}");
            std::process::exit(101);
        }
    });
    RUNS.set(Some(sender));
}

/// Whether the calling test has its own process. A test needs its own process if it counts threads
/// or sets a logger. If the test does not have its own process, the function runs the test in a new
/// process, and returns `false` when the test has passed there.
pub(crate) fn has_own_process() -> bool {
    const OWN: &str = "REDLATCH_TEST_OWN_PROCESS";
    let test = thread::current().name().unwrap_or("main").to_owned();
    // Tests that run one after the other on the first thread are alone in any case.
    if env::var_os(OWN).is_some() || test == "main" {
        return true;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args(["--exact", &test, "--nocapture"]).env(OWN, "").output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    println!("{}", said.concat());
    assert!(output.status.success() && said[0].contains("1 passed"), "{test}: {}", output.status);
    false
}

/// Runs `work` while the system cannot create a thread in this process. Only for a test that has
/// its own process.
pub(crate) fn without_room_for_threads<T>(work: impl FnOnce() -> T) -> T {
    // These threads use the stacks of ended threads, which new threads could otherwise use.
    let all = Arc::new(Barrier::new(33));
    let wait = |_| {
        let all = Arc::clone(&all);
        spawn(move || all.wait().is_leader())
    };
    let waiting: Vec<_> = (1..33).map(wait).collect();
    let before = getrlimit(Resource::As);
    // From now on there is no memory for a thread's stack, but enough memory for all other
    // allocations.
    let size = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = size.split(' ').next().unwrap().parse().unwrap();
    let full = pages * page_size() as u64 + (1 << 20);
    setrlimit(Resource::As, Rlimit { current: Some(full), ..before }).unwrap();
    let done = work();
    setrlimit(Resource::As, before).unwrap();
    all.wait();
    for thread in waiting {
        let _leader = thread.join();
    }
    done
}
