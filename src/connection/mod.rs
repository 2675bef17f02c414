//! How a command reaches Redis: encoded once, combined with other threads', answered or not.

mod cluster;
mod command;
mod connect_error;
mod credentials;
mod decimal;
mod endpoint;
mod health;
mod host_port;
mod lane;
mod limit;
mod link;
mod login;
#[cfg(test)]
#[cfg(shuttle)]
pub(crate) mod model;
#[cfg(not(all(test, shuttle)))]
mod name;
mod node;
mod outage;
mod reply;
#[cfg(not(all(test, shuttle)))]
mod resp;
mod route;
#[cfg(not(all(test, shuttle)))]
mod sentinel;
mod server;
mod servers;
mod settings;
mod slot;
#[cfg(not(all(test, shuttle)))]
mod socket;
#[cfg(not(all(test, shuttle)))]
mod stream;
#[cfg(not(all(test, shuttle)))]
mod tls;
mod url;

pub(crate) use cluster::{Cluster, unfollowed};
pub(crate) use command::{Channels, Command, Pieces, Replies, Script};
pub(crate) use connect_error::ConnectError;
pub use credentials::Credentials;
pub(crate) use credentials::{CredentialSource, Provider};
pub(crate) use decimal::{decimal, write_decimal};
pub(crate) use endpoint::Endpoint;
pub(crate) use health::{Health, News};
pub(crate) use lane::{Lane, Posted};
pub(crate) use limit::{Limit, Limited, was_cut};
pub(crate) use link::{Cause, Failure, Link, Outcome, ReplyReceiver};
pub(crate) use login::connection_name;
pub(crate) use node::Node;
pub(crate) use reply::{
    NO_CERTIFICATE, NO_MASTER, NO_SERVICE, REFUSED_CERTIFICATE, error_reply, is_redirect,
    is_transient, reply_code,
};
pub(crate) use route::Route;
pub(crate) use server::Server;
pub(crate) use servers::Servers;
#[cfg(feature = "tls")]
pub(crate) use settings::TlsSettings;
pub(crate) use settings::{ReplicaAcks, Settings};
pub(crate) use slot::{SLOTS, slot_of};

#[cfg(all(test, shuttle))]
pub(crate) use model::{Closer, Connection};
#[cfg(not(all(test, shuttle)))]
pub(crate) use {socket::Closer, stream::Connection};
