//! Semaphores, latches, barriers and elections. Also uses each synchronizer once.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod barrier;
#[path = "../common/mod.rs"]
mod common;
mod election;
mod expirable;
mod latch;
mod semaphore;
mod smoke;
