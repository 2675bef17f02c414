//! Semaphores, latches, barriers and elections. The module `smoke` uses each synchronizer once.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod barrier;
#[path = "../common/mod.rs"]
mod common;
mod election;
mod expirable;
mod latch;
mod semaphore;
mod smoke;
