//! The behaviour of the cyclic barrier: the contract of java.util.concurrent, case by case, and the
//! effects of dead processes, lost requests and servers that lose data. All parties of a generation
//! pass, or none passes.

mod contract;
mod faults;
mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, CyclicBarrier, Error, ErrorKind, Wait, Waited};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

fn barrier(client: &Client, name: &str, parties: u32) -> CyclicBarrier {
    let barrier = client.cyclic_barrier(name);
    assert!(barrier.try_set_parties(parties).unwrap());
    barrier
}

/// Starts a party. Returns when the server has the party's arrival, or when its wait has ended.
fn party(barrier: &CyclicBarrier) -> Running<Result<u32, Error>> {
    party_that(barrier, CyclicBarrier::wait)
}

fn party_that<T: Send + 'static>(
    barrier: &CyclicBarrier,
    waits: impl FnOnce(&CyclicBarrier) -> T + Send + 'static,
) -> Running<T> {
    let before = barrier.waiting().unwrap();
    let its = barrier.clone();
    let party = spawn(move || waits(&its));
    wait_until("it has arrived", TIMEOUT, || {
        party.is_finished() || barrier.waiting().unwrap() > before
    });
    party
}

#[track_caller]
fn is_broken<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    assert!(error.to_string().contains("reset it to begin anew"), "{error}");
}

/// Asserts that a party whose time is over has broken the barrier. If the server is busy, its reply
/// may come too late for the party.
#[track_caller]
fn left(barrier: &CyclicBarrier, outcome: Result<Waited<u32>, Error>) {
    match outcome {
        Ok(left) => assert_eq!(left, Waited::TimedOut),
        Err(error) => {
            assert!(error.to_string().contains("the call's own time was over"), "{error}");
        }
    }
    wait_until("it is broken", TIMEOUT, || barrier.is_broken().unwrap());
}

/// Asserts that the server has no keys of the barrier, except keys that expire.
fn leaves_nothing(server: &Server, name: &str) {
    let mut redis = server.connection();
    let mut keys: Vec<String> = redis.keys(format!("*{name}*")).unwrap();
    keys.retain(|key| pttl(&mut redis, key) == -1);
    assert!(keys.is_empty(), "{keys:?}");
}
