//! The world in which the scripts of a lock that processes hand to each other are tried: a real
//! server with a simulated clock, processes of ours and Redisson's clients, and all faults that can
//! occur. The peculiarities of one kind of lock are its `Kind`.

#![allow(dead_code)]

pub(crate) mod client;
pub(crate) mod direct;
pub(crate) mod kind;
pub(crate) mod library;
pub(crate) mod mutant;
pub(crate) mod plan;
pub(crate) mod random;
pub(crate) mod redisson;
pub(crate) mod rules;
pub(crate) mod scripts;
pub(crate) mod shortcuts;
pub(crate) mod simulation;
pub(crate) mod site;
pub(crate) mod specification;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod summary;
pub(crate) mod waits;
pub(crate) mod wire;
