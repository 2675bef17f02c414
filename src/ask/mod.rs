//! The requests and replies of one owner, as state machines without I/O. The state machines decide
//! when the owner sends a request, and until when a grant is valid.

mod entry;
#[cfg(test)]
#[path = "entry/tests.rs"]
mod entry_tests;
mod exchanges;
#[cfg(test)]
#[path = "exchanges/tests.rs"]
mod exchanges_tests;

pub(crate) use entry::{
    AfterReply, By, Collector, EntryMachine, EntryReply, Listens, Messages, POLL, ReceivedGrant,
    Then, Undo, ValidGrant,
};
pub(crate) use exchanges::Asked;
