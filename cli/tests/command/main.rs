//! The command `redlatch`, as a shell runs it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod acl;
mod at_least;
mod common;
mod doctor;
mod guardian;
mod kills;
mod loss;
mod run;
mod wanted;
mod who;
