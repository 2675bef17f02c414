//! How a command reaches Redis: encoded once, combined with other threads', answered or not.

mod cluster;
mod command;
mod endpoint;
mod greet;
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
mod slot;
#[cfg(not(all(test, shuttle)))]
mod socket;
#[cfg(not(all(test, shuttle)))]
mod stream;
#[cfg(not(all(test, shuttle)))]
mod tls;
mod trouble;
mod url;

pub(crate) use cluster::{Cluster, unfollowed};
pub(crate) use command::{Channels, Command, Replies, Script};
pub(crate) use endpoint::Endpoint;
pub(crate) use greet::{greet, may_wait};
pub(crate) use health::{Health, News};
pub(crate) use lane::{Lane, Posted};
pub(crate) use limit::{Limit, Limited, was_cut};
pub(crate) use link::{Cause, Failure, Link, Outcome, ReplyReceiver};
pub(crate) use login::connection_name;
pub(crate) use node::Node;
pub(crate) use reply::{is_redirect, reply_code};
pub(crate) use route::Route;
pub(crate) use servers::Servers;
pub(crate) use slot::{SLOTS, slot_of};
pub(crate) use trouble::{
    Rights, Trouble, error_reply, is_transient, refused, unacknowledged, unexpected,
};

#[cfg(all(test, shuttle))]
pub(crate) use model::{Closer, Connection};
#[cfg(not(all(test, shuttle)))]
pub(crate) use {socket::Closer, stream::Connection};
