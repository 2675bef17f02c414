//! How threads wait for permits: who of this process is next, and for how long it keeps them.

mod gate;
mod turn;

pub(crate) use gate::{PermitEntered, PermitGate, PermitWaiter, first_unmet};
pub(crate) use turn::Before;
