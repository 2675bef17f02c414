//! A server inside this process: for the models of all interleavings, whose keys and scripts are
//! their own, and for users' tests, with Redis's keys and its Lua scripts.

mod network;

#[cfg(feature = "in-memory")]
mod commands;
#[cfg(feature = "in-memory")]
mod lua;
#[cfg(feature = "in-memory")]
mod store;

pub use network::{Faults, Keys, Peers, Redis, Server, refusal};

#[cfg(feature = "in-memory")]
pub use lua::Scripts;
