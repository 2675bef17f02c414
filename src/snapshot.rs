//! What a client has and does at a moment.

use std::time::Duration;

#[cfg(doc)]
use crate::client::Client;
use crate::observe::Kind;

/// What a client has and does at a moment. Made by [`Client::snapshot`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// What has happened since the client connected.
    pub counts: Counts,
    /// The locks and leased permits that it has, one for each thread that has one. (A semaphore's
    /// permits without a lease are not known.)
    pub held: Vec<Held>,
    /// The waits that have lasted for 100 ms or more.
    pub waiting: Vec<Waiting>,
    /// The servers that it has used.
    pub servers: Vec<ServerState>,
}

/// How often each has happened; none ever falls. See [`Observer`](crate::observe::Observer) for each.
/// Several permits count as many times when they are acquired, released or lost, as locks do once:
/// so `acquired` is `released`, `lost` and what is held, if no latch or barrier was waited for. A
/// loss counts as soon as the acquisition does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of the observer's methods")]
pub struct Counts {
    pub acquired: u64,
    pub gave_up: u64,
    pub released: u64,
    pub lost: u64,
    pub renewed: u64,
    pub renewal_failed: u64,
    pub reconnected: u64,
    pub forgotten: u64,
    /// How many of these the observer was not told, because too many waited for it.
    pub left_out: u64,
}

/// A lock or a permit that a client has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Held {
    /// The name.
    pub name: String,
    /// What has that name.
    pub kind: Kind,
    /// How long the thread has had it.
    pub held: Duration,
    /// For how long it is certain; a renewal makes that longer.
    pub left: Duration,
    /// The name of the thread that has it, if it has one. `None` too if an owned guard has it.
    pub thread: Option<String>,
    /// How many times the thread has it.
    pub levels: usize,
}

/// A wait of one of a client's threads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The name.
    pub name: String,
    /// What has that name.
    pub kind: Kind,
    /// How long it has waited so far.
    pub waited: Duration,
    /// The name of the thread, if it has one. `None` too if it waits for an owned guard.
    pub thread: Option<String>,
    /// How many of this client's listed waits for the name come before this one in the client's own
    /// queue; of a fair lock, how many began before it. The client's place among other clients is
    /// the server's to say: see [`Client::status`]. (A latch and a barrier let all go at once.)
    pub place: usize,
}

/// A server that a client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerState {
    /// Its host and port.
    pub address: String,
    /// How many connections for commands the client may have to it. (It has two more, for messages
    /// and for renewals.)
    pub connections: usize,
    /// How many of these are open.
    pub open: usize,
    /// Whether it does not answer, as far as the client has noticed.
    pub is_out: bool,
}
