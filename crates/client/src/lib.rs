//! The Redis client under [redlatch](https://docs.rs/redlatch): synchronous, multiplexed, with
//! Sentinel, Cluster, push messages and TLS. It knows no lock.
//!
//! This is a part of redlatch, published because a package needs the packages that it is made of.
//! Its API makes no promise of its own yet: redlatch depends on exactly its own version of it.

// These pages are for people who change redlatch, and have the private items at hand.
#![allow(rustdoc::private_intra_doc_links)]

// The code needs Unix: it counts leases on `CLOCK_BOOTTIME` or `CLOCK_MONOTONIC`, and takes
// `WouldBlock` for a read's timeout.
#[cfg(not(unix))]
compile_error!("redlatch is for Unix systems: Linux, and macOS and FreeBSD, where it compiles");

mod cancel;
mod connection;
pub mod pubsub;
pub mod sync;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use cancel::{CancelToken, Registration};
#[cfg(models)]
pub use connection::LaneRest;
pub use connection::{
    AddressMap, Ask, Cause, Cluster, Command, ConnectError, Credentials, Dialer, Endpoint, Failure,
    HealthNews, IoDirection, Lane, Limit, Limited, Link, NO_CERTIFICATE, NO_MASTER, NO_SERVICE,
    Node, Outcome, Pieces, Posted, Provided, Provider, REFUSED_CERTIFICATE, ReplicaAcks, Replies,
    ReplyReceiver, RightsQuestion, Route, Script, ServerEvent, ServerInfo, Servers, Settings,
    Source, Transport, connection_name, decimal, error_reply, host_name, is_redirect, reply_code,
    slot_of, unfollowed, was_cut, was_cut_while_answering, write_decimal,
};
#[cfg(feature = "tls")]
pub use connection::{Identity, TlsSettings};
