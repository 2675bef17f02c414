//! The Redis client of [redlatch](https://docs.rs/redlatch): synchronous, multiplexed, with
//! Sentinel, Cluster, push messages and TLS. The package has no code for locks.
//!
//! This package is published only because redlatch needs it. Its API is not stable: redlatch
//! requires exactly the same version of this package.

// This documentation is for people who change redlatch. They can see the private items.
#![allow(rustdoc::private_intra_doc_links)]

// The code needs Unix: it measures leases with `CLOCK_BOOTTIME` or `CLOCK_MONOTONIC`, and assumes
// that a read that times out fails with `WouldBlock`.
#[cfg(not(unix))]
compile_error!("redlatch is for Unix systems: Linux, and macOS and FreeBSD, where it compiles");

mod cancel;
mod connection;
pub mod pubsub;
pub mod sync;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use cancel::{CancelToken, Linked, Registration};
#[cfg(models)]
pub use connection::LaneWork;
pub use connection::{
    AddressMap, Ask, CachedScript, Cause, Cluster, Command, ConnectError, Credentials, Dialer,
    Endpoint, Failure, HealthReport, InfoReply, IoDirection, Lane, LaneCheck, Limit, Limited, Link,
    NO_CERTIFICATE, NO_MASTER, NO_SERVICE, Node, Outcome, Pieces, Posted, Provided, Provider,
    REFUSED_CERTIFICATE, ReplicaAcks, Replies, ReplyReceiver, RightsQuery, Route, ServerEvent,
    Servers, Settings, Source, Transport, connection_name, decimal, error_reply, hash_tag,
    host_name, is_redirect, leading_number, numbers, reply_code, slot_of, unfollowed, was_cut,
    was_cut_while_answering, write_decimal,
};
#[cfg(feature = "tls")]
pub use connection::{Identity, TlsSettings};
