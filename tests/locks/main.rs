//! Locks: the behaviour of all kinds, the additions of each kind, renewals, and the hand-off to the
//! next waiter.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod all_kinds;
#[path = "../common/mod.rs"]
mod common;
mod condition;
mod eval;
mod exclusion;
mod fair_lock;
mod fenced_lock;
mod hand_off;
mod multi_lock;
mod read_write;
mod reentrant_lock;
mod ticket;
mod wanted;
mod watchdog;
