//! The test kit of the tests, the benches and the examples.
//!
//! - [`Server`]: a private Redis server, which ends when its parent dies. If the machine has no
//!   server program, the kit downloads one.
//! - [`Cluster`]: a cluster of such servers, whose slots can be moved.
//! - [`Sentinels`]: a master, its replicas and the Sentinels that watch them.
//! - [`Proxy`]: a proxy in front of a server. A test can make it slow or make it fail.
//! - [`Worker`] and [`Job`]: further processes, for tests that need several processes.
//! - [`signal`] and [`Guard`]: for pausing a process that is not a worker.
//! - [`PlainClient`]: direct ports of Redisson's algorithms, as a baseline for the benches.
//! - [`wait_until`]: a wait for a condition that no event announces.

#![forbid(unsafe_code)]

mod baseline;
mod cluster;
mod proxy;
mod sentinels;
mod server;
pub mod signal;
mod workers;

pub use baseline::{
    PlainClient, PlainExpirableSemaphore, PlainExpirableSemaphoreHandle, PlainFairLock,
    PlainFairLockHandle, PlainLatch, PlainLatchHandle, PlainLock, PlainLockHandle,
    PlainReadWriteLock, PlainSemaphore, PlainSemaphoreHandle,
};
pub use cluster::Cluster;
pub use proxy::{Action, Direction, Proxy};
pub use sentinels::{Sentinels, SentinelsBuilder};
pub use server::{Provided, Server, ServerBuilder, ServerError};
pub use workers::{Guard, Job, Worker, wait_until};
