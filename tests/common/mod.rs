//! The shared parts of the integration tests.

#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod channels;
mod commands;
mod keys;
mod random;
mod test_process;
mod threads;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::{Action, Direction, Proxy, Server};

pub(crate) use answers::*;
pub(crate) use channels::*;
pub(crate) use commands::*;
pub(crate) use keys::*;
pub(crate) use random::*;
pub(crate) use redlatch_testkit::wait_until;
pub(crate) use test_process::*;
pub(crate) use threads::*;
pub(crate) use users::*;

/// The unit of every short lease and wait in the tests. Increase it for a slow machine.
pub(crate) const TIME_UNIT: Duration = Duration::from_millis(100);
/// The time limit for an event that should come at once.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// A lease whose end a test can wait for. At least two thirds of it (2.4 s) remain at any time, so
/// it is renewed in time even on a machine that stands still for two seconds.
pub(crate) const SHORT_LEASE: Duration = Duration::from_millis(36 * TIME_UNIT.as_millis() as u64);
/// A lease that does not end during a test.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(60);
/// A time that is shorter than the pause between two requests of a waiter. A waiter for a lock
/// sends its next request after 0.8 s at the earliest (`POLL` in `ask/entry.rs`), and any other
/// waiter after 4 s. So if a waiter gets its grant within this time after its last request, a
/// message woke it.
pub(crate) const MIN_POLL_INTERVAL: Duration = Duration::from_millis(700);

/// Starts a server for the calling test, and [sets a time limit](bound) for the test. If there is
/// no server program, the test kit ends the process with a message.
pub(crate) fn server() -> Server {
    bound();
    unbounded_server()
}

/// Like [`server`], for a test whose length the user sets.
pub(crate) fn unbounded_server() -> Server {
    Server::start().expect("a server to test on")
}

/// Returns a client with leases that do not end during a test.
pub(crate) fn client(server: &Server) -> Client {
    Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).connect().unwrap()
}

/// Returns a client with this watchdog timeout.
pub(crate) fn watched(server: &Server, lease: Duration) -> Client {
    Client::builder(&server.url()).watchdog_timeout(lease).connect().unwrap()
}

/// An impatient client's wait for a reply or connection. This time is longer than a busy machine
/// stands still.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_millis(15 * TIME_UNIT.as_millis() as u64);

/// Returns the settings of a client that waits briefly for replies, and never waits for an
/// unreachable server.
pub(crate) fn impatient(url: &str) -> ClientBuilder {
    Client::builder(url)
        .watchdog_timeout(LONG_LEASE)
        .response_timeout(SHORT_TIMEOUT)
        .connect_timeout(SHORT_TIMEOUT)
        .failover_timeout(Duration::ZERO)
}

/// A number of threads that is large enough: if they waited for [`SHORT_TIMEOUT`] one after the
/// other, they would take more than four times [`TIMEOUT`].
pub(crate) const MANY_THREADS: usize = 60;

/// Returns a client that connects through a proxy, with one open connection. The server has the
/// scripts that `warm_up` uses.
pub(crate) fn behind(proxy: &Proxy, warm_up: impl FnOnce(&Client)) -> Client {
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    warm_up(&client);
    client
}

/// A lease of an hour, which does not end during a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// After the next grant by message, applies `action` to the next `shots` requests with a lease of
/// about an hour.
pub(crate) fn after_a_grant(proxy: &Proxy, shots: usize, action: Action) {
    let granted = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&granted);
    // This rule only reads the replies, and changes none.
    proxy.on(Direction::Reply, 1, Action::LoseReply, move |bytes| {
        hears.fetch_or(contains(bytes, "grant "), Ordering::SeqCst);
        false
    });
    proxy.on(Direction::Request, shots, action, move |bytes| {
        let is_long = contains(bytes, "\r\n360000") || contains(bytes, "\r\n359");
        is_long && granted.load(Ordering::SeqCst)
    });
}

pub(crate) fn contains(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

/// Asserts that in these rounds a message wakes the waiter before its next request. Each round must
/// be shorter than the pause before the waiter's next request.
#[track_caller]
pub(crate) fn woken_by_message(mut round: impl FnMut()) {
    once_within(MIN_POLL_INTERVAL, || {
        let begun = Instant::now();
        round();
        begun.elapsed()
    });
}

/// Asserts that at least one of these rounds takes less than `bound`. Wrong code takes longer in
/// each round, while a busy machine delays only some rounds.
#[track_caller]
pub(crate) fn once_within(bound: Duration, mut round: impl FnMut() -> Duration) {
    let (since, mut took) = (Instant::now(), Vec::new());
    while since.elapsed() < TIMEOUT {
        took.push(round());
        if took.last() < Some(&bound) {
            return;
        }
    }
    panic!("no round took less than {bound:?}: {took:?}");
}
