//! A server inside this process: for the models of all interleavings, whose keys and scripts are
//! their own, and for users' tests, with Redis's keys and its Lua scripts.

mod machine;
mod network;
mod peers;
mod resp;

#[cfg(feature = "in-memory")]
mod commands;
#[cfg(feature = "in-memory")]
mod lua;
#[cfg(feature = "in-memory")]
mod store;

pub use machine::{Faults, Keys, Redis};
pub use network::Server;
pub use peers::Peers;
pub use resp::refusal;

#[cfg(feature = "in-memory")]
pub use lua::Scripts;
