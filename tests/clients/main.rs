//! Clients: their connections, end, settings, limits, and reports about themselves.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api;
#[path = "../common/mod.rs"]
mod common;
mod connection;
mod end;
mod fork;
mod host_name;
mod limits;
mod log;
mod observer;
mod prefix;
mod status;
mod tracking;
mod trouble;
