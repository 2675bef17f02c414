//! Beside the real Redisson, where Java and Maven are: see `interop/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod java;
mod kind;
mod lock;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use java::{Jvm, Redisson, Version, beside_redisson, quoted};
use kind::Kind;
use redlatch::{Client, ErrorKind, Lock, LockGuard, LostReason, OwnedLockGuard};
use redlatch_testkit::{Job, Server, Worker};

/// The processes that the tests start, in their roles.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "holder" => ends::holder_process(&job),
        role => panic!("no role {role}"),
    }
    job.done();
}
