//! Connections: signals, idle connections, servers that change their role, and programs that are
//! not Redis servers.

mod idle;
mod lazy;
mod logins;
mod names;
mod pushes;
mod roles;
mod signals;
mod strangers;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{Client, Error, ErrorKind, HoldState, Lock, LockGuard, MultiLock};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

fn info(server: &Server, section: &str, field: &str) -> u64 {
    let text: String = redis::cmd("INFO").arg(section).query(&mut server.connection()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {text}")).trim().parse().unwrap()
}

fn opened(server: &Server) -> u64 {
    info(server, "stats", "total_connections_received")
}

fn refused(url: &str, within: Duration) -> Error {
    let builder = Client::builder(url).connect_timeout(within).response_timeout(within);
    builder.connect().map(drop).unwrap_err()
}

// The following tests are about connections that clients leave behind.

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let server = server();
    let visit = || {
        let client = client(&server);
        client.reentrant_lock("visited").lock().unwrap().unlock().unwrap();
    };
    let scripts = || info(&server, "memory", "number_of_cached_scripts");
    visit();
    let (before, keys) = (scripts(), server_keys(&server));
    for _ in 0..20 {
        visit();
    }
    assert_eq!((scripts(), server_keys(&server)), (before, keys));
}

fn server_keys(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.connection()).unwrap()
}

// The following tests have a user without rights, and a process that is stopped.

/// Without `INFO`, the client cannot find out whether a connection leads to another run of the
/// server.
#[test]
fn without_the_right_to_info_connections_come_to_an_end() {
    let server = server();
    let mut user = User::new(&server, "uninformed");
    user.set(&["-info"]);
    let client = user.client();
    let guard = client.reentrant_lock("held").lock().unwrap();
    // This opens lanes, each of which may lead to another server.
    for at in 0..40 {
        assert!(!client.reentrant_lock(&format!("other:{at}")).is_locked().unwrap());
    }
    let before = opened(&server);
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(TIME_UNIT * 10);
    let more = opened(&server) - before;
    assert!(more < 20, "{more} connections");
    assert!(guard.is_held());
}

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = impatient(job.arg(0)).connections(1).connect().unwrap();
    let lock = client.reentrant_lock("stopped");
    lock.lock().unwrap().unlock().unwrap();
    job.say("ready");
    assert_eq!(job.wait_line(), "go");
    job.say(&format!("outcome {:?}", lock.lock().map(drop)));
    job.done();
}

#[test]
fn a_process_that_is_stopped_while_it_waits_finds_the_reply() {
    let server = server();
    let proxy = Proxy::before(&server);
    // If the machine stood still during the wait, the test tries another process.
    wait_until("it was stopped in time", TIMEOUT, || {
        let mut worker = Worker::spawn_test("connection::worker", "waits", &[&proxy.url()]);
        worker.expect_line("ready", TIMEOUT);
        let fired = proxy.fired();
        proxy.on_request("stopped", Action::HoldReply);
        let begun = Instant::now();
        worker.send_line("go");
        proxy.wait_fired(fired + 1, TIMEOUT);
        worker.sigstop();
        let in_time = begun.elapsed() < SHORT_TIMEOUT;
        proxy.release();
        // A fixed time must pass here, because no event shows the end of the wait.
        thread::sleep(SHORT_TIMEOUT * 3);
        worker.sigcont();
        let outcome = worker.expect_line("outcome", TIMEOUT);
        assert!(!in_time || outcome == "Ok(())", "{outcome}");
        assert!(worker.wait_exit(TIMEOUT).success());
        in_time
    });
}

// In the following tests, another program runs in place of a server.

/// However many calls wait for one connection to a silent server, each call gets its error in time.
#[test]
fn a_call_that_waits_for_others_ends_in_time() {
    let server = server();
    let client = impatient(&server.url()).connections(1).connect().unwrap();
    client.reentrant_lock("hung").is_locked().unwrap();
    server.pause();
    let threads: Vec<_> = (0..MANY_THREADS)
        .map(|_| {
            let lock = client.reentrant_lock("hung");
            spawn(move || {
                let begun = Instant::now();
                for _ in 0..2 {
                    assert!(lock.is_locked().unwrap_err().kind().is_server_trouble());
                }
                begun.elapsed()
            })
        })
        .collect();
    let longest = threads.into_iter().map(Running::join).max().unwrap();
    server.resume();
    // Each thread makes two calls. Each call takes at most twice the two timeouts, however many
    // calls came before.
    assert!(longest < TIMEOUT, "{longest:?}");
}

/// Each connection is slow to open, and breaks at the reply to the first command.
#[test]
fn a_call_whose_connections_break_one_after_the_other_ends_in_time() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    proxy.on(Direction::Request, usize::MAX, Action::LoseReply, |bytes| contains(bytes, "broken"));
    // Each call uses at most two connections, and opens only the second one, which takes nine
    // tenths of three timeouts. If a call sent its request once more, it would open a third
    // connection.
    once_within(SHORT_TIMEOUT * 7 / 2, || {
        // Each round must begin with an open connection. Otherwise the round would have to open one
        // more connection.
        proxy.set_delay(Duration::ZERO);
        client.reentrant_lock("warm").lock().unwrap().unlock().unwrap();
        // The delays in both directions together are nine tenths of each timeout.
        proxy.set_delay(SHORT_TIMEOUT * 9 / 20);
        let threads: Vec<_> = (0..4)
            .map(|at| client.reentrant_lock(&format!("broken:{at}")))
            .map(|lock| {
                spawn(move || {
                    let begun = Instant::now();
                    assert!(lock.lock().is_err());
                    begun.elapsed()
                })
            })
            .collect();
        threads.into_iter().map(Running::join).max().unwrap()
    });
    proxy.clear_rules();
    proxy.set_delay(Duration::ZERO);
}
