//! Models of the library. The models run the library's scripts and the state machine of a waiting
//! process, which must always keep the rules. Bugs are planted in each model, and the model must
//! find them (`simulated/mutant.rs`).
//!
//! A failure prints its seed. `REDLATCH_SEED=17` runs only that history and prints every step.
//! `REDLATCH_SEEDS=5000` runs 5000 histories. A usual run takes seconds. A run with
//! `REDLATCH_FULL=1` (`.ci/run`) has more histories, all planted bugs and larger settings.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod explore;
mod fair;
mod lock;
mod multi;
mod read_write;
mod simulated;
mod ticket;

/// The module names under which the library's files import each other.
mod lease {
    pub(crate) use crate::simulated::library::deadline;
}

mod scripts {
    pub(crate) use crate::simulated::library::chain::{Chain, ChainClock};

    pub(crate) mod lock {
        pub(crate) use crate::simulated::wire::Again;
    }
}
