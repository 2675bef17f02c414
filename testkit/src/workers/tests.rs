use std::panic::{self, AssertUnwindSafe};

use super::*;
use crate::signal::is_alive;

const ENTRY: &str = "workers::tests::worker_entry";
const TIMEOUT: Duration = Duration::from_secs(10);

/// The test at which this executable's workers begin.
#[test]
fn worker_entry() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "echo" => {
            job.say(&format!("args {:?}", job.args()));
            loop {
                let line = job.wait_line();
                if line == "end" {
                    job.done();
                }
                job.say(&format!("heard {line}"));
            }
        }
        "parent" => {
            let child = Worker::spawn_test(ENTRY, "echo", &[]);
            let mut stopped = Worker::spawn_test(ENTRY, "echo", &[]);
            stopped.sigstop();
            job.say(&format!("children {} {}", child.pid(), stopped.pid()));
            let _ = job.wait_line();
        }
        "server" => {
            let server = crate::Server::start().unwrap();
            if job.arg(0) == "paused" {
                server.pause();
            }
            job.say(&format!("server {}", server.pid()));
            let _ = job.wait_line();
        }
        role => panic!("no role {role}"),
    }
}

#[test]
fn lines_go_both_ways() {
    let mut worker = Worker::spawn_test(ENTRY, "echo", &["a b", "", "c"]);
    assert_eq!(worker.expect_line("args ", TIMEOUT), r#"["a b", "", "c"]"#);
    worker.send_line("one");
    worker.send_line("two");
    assert_eq!(worker.expect_line("heard t", TIMEOUT), "wo");
    assert_eq!(worker.try_line(Duration::from_millis(1)), None);
    worker.send_line("end");
    assert!(worker.wait_exit(TIMEOUT).success());
}

#[test]
fn a_missing_line_fails_with_the_lines_that_came() {
    let mut worker = Worker::spawn_test(ENTRY, "echo", &["x"]);
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        worker.expect_line("nothing", Duration::from_millis(300))
    }));
    let message = *failed.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("nothing") && message.contains("args"), "{message}");
}

#[test]
fn a_stopped_worker_is_silent_until_it_goes_on() {
    let mut worker = Worker::spawn_test(ENTRY, "echo", &[]);
    worker.expect_line("args", TIMEOUT);
    worker.sigstop();
    worker.send_line("one");
    assert_eq!(worker.try_line(Duration::from_millis(50)), None);
    worker.sigcont();
    worker.expect_line("heard one", TIMEOUT);
    let pid = worker.pid();
    worker.sigstop();
    drop(worker);
    assert!(!is_alive(pid));
}

#[test]
fn workers_end_with_a_killed_parent_even_if_stopped() {
    let mut parent = Worker::spawn_test(ENTRY, "parent", &[]);
    let pids = parent.expect_line("children ", TIMEOUT);
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    parent.sigkill();
    wait_until("the workers are gone", TIMEOUT, || !pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn servers_end_with_a_killed_parent_even_if_paused() {
    for state in ["running", "paused"] {
        let mut parent = Worker::spawn_test(ENTRY, "server", &[state]);
        let pid: u32 = parent.expect_line("server ", TIMEOUT).parse().unwrap();
        assert!(is_alive(pid));
        parent.sigkill();
        wait_until("the server is gone", TIMEOUT, || !is_alive(pid));
    }
}

#[test]
#[should_panic(expected = "pigs fly")]
fn waiting_in_vain_says_for_what() {
    wait_until("pigs fly", Duration::from_millis(5), || false);
}

#[test]
fn the_time_of_a_check_counts_in_full() {
    let mut checks = 0;
    let check = || {
        checks += 1;
        thread::sleep(Duration::from_millis(1500));
        false
    };
    let waited = panic::catch_unwind(AssertUnwindSafe(|| {
        wait_until("a slow check is true", Duration::from_millis(1400), check);
    }));
    assert!(waited.is_err());
    assert_eq!(checks, 1);
}
