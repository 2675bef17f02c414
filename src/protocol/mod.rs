//! What all clients must agree on, byte for byte: keys, owner ids, messages. No I/O.

mod keys;
mod owner;

pub(crate) use keys::{ConditionKeys, FairKeys, LatchKeys, LockKeys, SemaphoreKeys, requests};
pub(crate) use owner::{ClientId, Owner};
