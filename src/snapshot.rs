//! The state of a client at a moment.

use std::time::Duration;

#[cfg(doc)]
use crate::client::Client;
use crate::observe::Kind;

/// The state of a client at a moment. [`Client::snapshot`] returns a `Snapshot`.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let snapshot = client.snapshot();
/// for held in &snapshot.held {
///     println!("{} ({:?}): held for {:?}, {:?} left", held.name, held.kind, held.held, held.left);
/// }
/// println!("{} holds were lost so far", snapshot.counts.lost);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// How often each event has happened since the client connected.
    pub counts: Counts,
    /// The locks and leased permits that the client has. If several threads share a lock, each
    /// thread has an entry. (Permits without a lease are not listed.)
    pub held: Vec<Held>,
    /// The waits that have lasted for 100 ms or more.
    pub waiting: Vec<Waiting>,
    /// The servers that the client has used.
    pub servers: Vec<ServerState>,
}

/// How often each event has happened; see [`Observer`](crate::observe::Observer) for the events.
/// The counts never decrease. If several permits are acquired, released or lost together, they
/// count as several events. So, apart from waits for latches and barriers, `acquired` is the sum of
/// `released`, `lost` and the number of present holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
    pub wanted: u64,
    /// How many of these events were not reported to the observer, because too many events were
    /// waiting.
    pub left_out: u64,
}

/// A lock or a permit that a client has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Held {
    /// The name.
    pub name: String,
    /// The kind of synchronizer.
    pub kind: Kind,
    /// How long the thread has had the lock or permit.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "held_ms", serialize_with = "crate::json::millis")
    )]
    pub held: Duration,
    /// For how long the client certainly has the lock or permit, if no renewal succeeds.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "left_ms", serialize_with = "crate::json::millis")
    )]
    pub left: Duration,
    /// The name of the thread, or `None` if the thread has no name or an owned guard has the lock.
    pub thread: Option<String>,
    /// How many times the thread has taken the lock, its re-entries included.
    pub levels: usize,
}

/// A wait of one of a client's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiting {
    /// The name.
    pub name: String,
    /// The kind of synchronizer.
    pub kind: Kind,
    /// How long the thread has waited so far.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "waited_ms", serialize_with = "crate::json::millis")
    )]
    pub waited: Duration,
    /// The name of the thread, or `None` if the thread has no name or waits for an owned guard.
    pub thread: Option<String>,
    /// How many of the listed waits for the name come before this wait in the client's queue. For a
    /// fair lock, how many began before this wait. Only the server knows the client's position
    /// among other clients: see [`Client::status`]. (A latch and a barrier release all threads at
    /// once.)
    pub place: usize,
}

/// A server that a client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ServerState {
    /// The server's host and port.
    pub address: String,
    /// How many connections to the server the client may have for commands. (The client has two
    /// more connections, for messages and for renewals.)
    pub connections: usize,
    /// How many of these connections are open.
    pub open: usize,
    /// Whether the client has noticed an outage of the server.
    pub is_out: bool,
}
