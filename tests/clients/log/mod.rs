//! The lines of the log. A logger that blocks must not stop other threads.

mod cluster;
mod holds;
mod logger;
mod outages;
mod permits;
mod rights;
mod slow_waits;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use log::Level;
use logger::LOGGER;
use redis::Commands as _;
use redlatch::{CancelToken, Client, ClientBuilder, ErrorKind, Lock};
use redlatch_testkit::{Action, Cluster, Direction, Proxy, Server};

/// Whether the calling test has its own process, as in [`has_own_process`]. If so, [`LOGGER`] keeps
/// the lines of this process.
fn has_own_log() -> bool {
    let has_own_process = has_own_process();
    if has_own_process {
        LOGGER.install();
    }
    has_own_process
}

/// Starts a server for a test that [has its own log](has_own_log). Returns `None` if the test has
/// passed in a process of its own.
fn server_with_log() -> Option<Server> {
    has_own_log().then(server)
}

/// Takes locks and loses each of them for a different reason. Each loss is a line of the log.
fn lose(client: &Client, prefix: &str, locks: usize) {
    let lease = |at: usize| TIME_UNIT + Duration::from_micros(at as u64);
    let lock = |at| client.reentrant_lock(&format!("{prefix}:{at}")).with_lease(lease(at));
    let guards: Vec<_> = (0..locks).map(|at| lock(at).lock().unwrap()).collect();
    for guard in guards {
        wait_until("the lease ends", TIMEOUT, || !guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    }
}

#[test]
fn a_logger_that_blocks_or_panics_stops_no_call_and_no_renewal() {
    let Some(server) = server_with_log() else { return };
    let client = client(&server);
    let watched = watched(&server, SHORT_LEASE);
    let kept = watched.reentrant_lock("kept").lock().unwrap();
    LOGGER.set(true, false);
    // There are more lines than the queue can keep.
    lose(&client, "blocked", 1_500);
    lose(&watched, "behind", 1);
    client.reentrant_lock("free").lock().unwrap().unlock().unwrap();
    LOGGER.set(false, false);
    wait_until("the lines left out are counted", TIMEOUT, || {
        !LOGGER.lines("log lines were dropped").is_empty()
    });
    LOGGER.set(false, true);
    lose(&client, "panicked", 5);
    wait_until("the logger panics", TIMEOUT, || !LOGGER.lines("panicked:").is_empty());
    LOGGER.set(false, false);
    lose(&client, "again", 1);
    wait_until("the log goes on", TIMEOUT, || !LOGGER.lines("again:").is_empty());
    assert!(kept.is_held());
    kept.unlock().unwrap();
}

/// A process may have several clients.
#[test]
fn each_log_line_names_its_client() {
    let Some(server) = server_with_log() else { return };
    let clients = [(); 2].map(|()| client(&server));
    for (client, name) in clients.iter().zip(["one", "other"]) {
        let guard = client.reentrant_lock(name).with_lease(TIME_UNIT).lock().unwrap();
        guard.on_lost(|_| panic!("as the test wants it"));
        let (id, of) = (format!("[client {}]", client.id()), format!("{name:?}"));
        wait_until("both lines are written", TIMEOUT, || LOGGER.lines(&of).len() == 2);
        let lines = LOGGER.lines(&of);
        assert!(lines.iter().all(|(_, line)| line.ends_with(&id)), "{lines:?}");
    }
}
