//! The world in which the models test the scripts of a lock that is handed from process to process.
//! The world has a real server with a simulated clock, redlatch processes, Redisson clients, and
//! all faults that can occur. A `Kind` has the properties of one kind of lock.

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
