//! The behaviour of the re-entrant lock for its threads, for other clients, and on the wire.

mod cancelling;
mod others;
mod threads;
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Error, ErrorKind, HoldState, Lock, LockGuard, LostReason, ReentrantLock,
};
use redlatch_testkit::{Action, Direction, Proxy};
