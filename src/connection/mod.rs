//! How a command reaches Redis: encoded once, combined with other threads', answered or not.

mod command;
mod endpoint;
mod lane;
mod link;
#[cfg(test)]
#[cfg(shuttle)]
pub(crate) mod model;

pub(crate) use command::{Command, Script, decimal};
pub(crate) use endpoint::Endpoint;
pub(crate) use lane::{Lane, Posted};
pub(crate) use link::{Failure, Link, Outcome, Receiver};

#[cfg(all(test, shuttle))]
pub(crate) use model::Connection;
#[cfg(not(all(test, shuttle)))]
pub(crate) use redis::Connection;
