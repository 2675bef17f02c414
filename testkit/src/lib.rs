//! The kit that the tests, the benches and the examples share.
//!
//! - [`Server`]: a private Redis server that dies with its parent, downloaded if the machine has
//!   none.
//! - [`Cluster`]: a cluster of such servers, whose slots can be moved.
//! - [`Sentinels`]: a master, its replicas and the Sentinels that watch them.
//! - [`Proxy`]: a network in front of a server. A test can make it slow or make it fail.
//! - [`Worker`] and [`Job`]: more processes, for tests that need several.
//! - [`signal`] and [`Guard`]: to stop a process that is not a worker.
//! - [`PlainClient`]: plain ports of Redisson's algorithms, with which the benches compare.
//! - [`wait_until`]: waits for conditions that no event announces.

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
