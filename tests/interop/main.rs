//! Beside the real Redisson, where Java and Maven are: see `interop/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod java;
mod lock;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use java::Java;
use redlatch::LostReason;
use redlatch_testkit::Server;
