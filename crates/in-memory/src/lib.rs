//! A Redis server inside the process, for the tests of [redlatch](https://docs.rs/redlatch)'s
//! users. redlatch's models of all interleavings also use it, with their own keys and scripts.
//!
//! This package is published only because redlatch needs it. Its API is not stable: use redlatch's
//! feature `in-memory`.

mod commands;
#[cfg(all(test, models))]
mod lane_model_tests;
mod lua;
mod machine;
mod network;
mod peers;
mod resp;
mod store;

pub use lua::Scripts;
pub use machine::{Faults, Keys, Redis};
pub use network::Server;
pub use peers::Peers;
pub use resp::refusal;
