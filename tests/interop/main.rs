//! Tests with the real Redisson, for machines with Java and Maven: see `interop/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod fair;
mod java;
mod kind;
mod lock;
mod multi_lock;
mod permits;
mod read_write;
mod soak;
mod wire;

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use java::{Jvm, Redisson, Version, beside_redisson, is_beside_redisson, quoted};
use kind::Kind;
use redlatch::{CancelToken, Client, ErrorKind, Lock, LockGuard, LostReason, OwnedLockGuard};
use redlatch_testkit::{Job, Server, Worker};

/// If a message wakes a Redisson waiter, the waiter gets the lock within this time. Without a
/// message the waiter sends its next request at the end of the lease that it has read, which is
/// [`SHORT_LEASE`]. A single slow round proves nothing: the message of a writer's release, `1`,
/// wakes only Redisson threads that already sleep, and misses a thread that is about to sleep.
const WAKE_WITHIN: Duration = Duration::from_millis(SHORT_LEASE.as_millis() as u64 / 2);

/// Returns the minimum time on this process's clock that a wait or a lease of this length takes.
/// Redisson and the server count whole milliseconds, and Redisson subtracts each of its pauses.
fn lasts(length: Duration) -> Duration {
    length.mul_f64(0.9)
}

/// Whether to run the soaks, and the tests in which processes die or are paused together with
/// Redisson's processes. In those tests Redisson 3.16.8 itself may leave a waiter asleep for
/// minutes. `.ci/long interop` runs the soaks and these tests.
fn is_long() -> bool {
    let is_long = env::var_os("REDLATCH_LONG").is_some();
    if !is_long {
        eprintln!("left out: it runs with REDLATCH_LONG=1");
    }
    is_long
}

/// The entry point of the processes that the tests start. Each process has a role.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "holder" => ends::holder_process(&job),
        "waiter" => fair::waiter_process(&job),
        "turns" => soak::turns_process(&job),
        role => panic!("no role {role}"),
    }
    job.done();
}
