//! The library without a server: `cargo test --features in-memory --test in_memory`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod beside;
mod each_type;
mod faults;
mod speed;
mod time;
