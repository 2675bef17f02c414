//! Tests that need a feature of the library: `cargo test --all-features --test features`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../common/mod.rs"]
mod common;
mod in_memory;
mod metrics;
mod serde;
mod tls;
