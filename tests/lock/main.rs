//! The meaning of the re-entrant lock: to its threads, to other clients, and on the wire.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cancelling;
#[path = "../common/mod.rs"]
mod common;
mod others;
mod threads;
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Error, ErrorKind, HoldState, Lock, LockGuard, LostReason, ReentrantLock,
};
use redlatch_testkit::{Action, Direction, Proxy};
