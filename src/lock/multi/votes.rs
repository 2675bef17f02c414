//! Votes: requests to several servers at the same time.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redlatch_client::Limit;

use crate::error::{Error, ErrorKind};
use crate::lock::{Handle, HeldLock, Part};
use crate::site::Leaving;

/// The call waits for a server for the lease divided by `WAIT_DIVISOR`, but at least for `MIN_WAIT`
/// and for `ROUND_TRIPS` round trips, because it may have to open a connection.
const WAIT_DIVISOR: u32 = 50;
const MIN_WAIT: Duration = Duration::from_millis(50);
const ROUND_TRIPS: u32 = 8;

/// Asks all parts at the same time, and waits for each part for a short time.
pub(super) fn ask<T: Send>(
    parts: &[Arc<dyn Part>],
    ask: impl Fn(&Arc<dyn Part>) -> Result<T, Error> + Sync,
) -> Vec<Result<T, Error>> {
    in_parallel(parts, |part| {
        let _limited = Limit::set(Limit::new(Some(deadline(part.handle())), None));
        ask(part)
    })
}

/// Releases all locks at the same time, so that a dead server does not delay the other servers.
pub(super) fn unlock(held: impl Iterator<Item = HeldLock>) -> Vec<Result<(), Error>> {
    in_parallel(held, |held| {
        let _limited = Limit::set(Limit::new(Some(deadline(&held.handle)), None));
        held.leave(Leaving::Awaited)
    })
}

/// Asks the servers of all held locks at the same time.
pub(super) fn ask_for_held(
    held: &[HeldLock],
    ask: impl Fn(&HeldLock) -> Result<(), Error> + Sync,
) -> Vec<Result<(), Error>> {
    in_parallel(held, |held| {
        let _limited = Limit::set(Limit::new(Some(deadline(&held.handle)), None));
        ask(held)
    })
}

/// Runs `work` on all items at the same time, each item on its own thread.
pub(super) fn in_parallel<T: Send, R: Send>(
    all: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<R, Error> + Sync,
) -> Vec<Result<R, Error>> {
    let work = &work;
    thread::scope(|scope| {
        let start = |one| {
            let thread = thread::Builder::new().name("redlatch-votes".to_owned());
            thread.spawn_scoped(scope, move || work(one))
        };
        let threads: Vec<_> = all.into_iter().map(start).collect();
        let ends = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(error) => {
                let message = "the system gives no thread that could ask the server".to_owned();
                Err(Error::new(ErrorKind::Unavailable, message).caused_by(error).transient(true))
            }
        });
        ends.collect()
    })
}

/// Returns the deadline of the wait for a server.
pub(super) fn deadline(handle: &Handle) -> Instant {
    let core = &handle.site.core;
    let lease = handle.terms().lease();
    let wait =
        (lease / WAIT_DIVISOR).max(MIN_WAIT).max(core.round_trip().saturating_mul(ROUND_TRIPS));
    let now = Instant::now();
    let wait = wait.min(core.response_timeout()).saturating_add(core.replica_wait());
    now.checked_add(wait).unwrap_or(now)
}
