//! Models of the library: its scripts, and the state machine of a waiting process, against rules that
//! hold at all times. Each finds the bugs that are planted in it.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod explore;
mod fair;
mod lock;
mod read_write;
mod simulated;
