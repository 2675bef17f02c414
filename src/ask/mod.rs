//! What one owner and the server say to each other, as state machines without I/O: when the owner
//! asks, and until when a grant is its own.

mod entry;
#[cfg(test)]
#[path = "entry/tests.rs"]
mod entry_tests;
mod exchanges;
#[cfg(test)]
#[path = "exchanges/tests.rs"]
mod exchanges_tests;

pub(crate) use entry::{
    Action, Actions, By, EntryEvent, EntryMachine, EntryReply, Granted, Inbox, Listens, POLL,
    Received,
};
pub(crate) use exchanges::{Asked, Collector, ReceivedGrant, Undo};
