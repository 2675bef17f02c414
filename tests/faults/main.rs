//! Faults of one server, of a server with replicas, with Sentinels, and in a cluster.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod acknowledged;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod one_server;
mod sentinel;
