//! A Redis server inside the process, for the tests of [redlatch](https://docs.rs/redlatch)'s users.
//! For the models of all interleavings, whose keys and scripts are their own, too.
//!
//! This is a part of redlatch, published because a package needs the packages that it is made of.
//! Its API makes no promise of its own: use redlatch's feature `in-memory`.

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
