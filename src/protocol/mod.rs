//! What all clients must agree on, byte for byte: keys, owner ids, messages. No I/O.

mod decimal;
mod keys;
mod owner;
mod permit_id;

pub(crate) use decimal::{decimal, write_decimal};
pub(crate) use keys::{
    ConditionKeys, ExpirableKeys, FairKeys, LatchKeys, LockKeys, Pieces, SemaphoreKeys,
    has_one_slot, requests,
};
pub(crate) use owner::{ClientId, Mode, Owner};
pub use permit_id::PermitId;
