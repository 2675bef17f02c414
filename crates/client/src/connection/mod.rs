//! Connections to Redis that threads share, with commands and their replies.

mod address_map;
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
mod name;
mod node;
mod outage;
mod outcome;
mod reply;
mod resp;
mod sentinel;
mod server;
mod servers;
mod settings;
mod slot;
mod socket;
mod source;
mod stream;
mod tls;
mod transport;
mod url;

pub use address_map::AddressMap;
pub use cluster::{Cluster, unfollowed};
pub(crate) use command::Channels;
pub use command::{CachedScript, Command, Pieces, Replies, RightsQuery};
pub use connect_error::ConnectError;
pub use credentials::Credentials;
pub use decimal::{decimal, leading_number, numbers, write_decimal};
pub use endpoint::{Ask, Endpoint};
pub(crate) use health::ServerHealth;
pub use health::{HealthReport, ServerEvent};
#[cfg(models)]
pub use lane::LaneWork;
pub use lane::{Lane, LaneCheck, Posted};
pub use limit::{Limit, Limited, was_cut, was_cut_while_answering};
pub use link::Link;
pub use login::{connection_name, host_name};
pub use node::Node;
pub use outcome::{Cause, Failure, Outcome, ReplyReceiver};
pub use reply::{
    NO_CERTIFICATE, NO_MASTER, NO_SERVICE, REFUSED_CERTIFICATE, error_reply, is_redirect,
    reply_code,
};
pub use server::InfoReply;
pub use servers::{Route, Servers};
#[cfg(feature = "tls")]
pub use settings::{Identity, TlsSettings};
pub use settings::{ReplicaAcks, Settings};
pub(crate) use slot::SLOTS;
pub use slot::{hash_tag, slot_of};
pub use source::{Provided, Provider, Source};
pub use transport::{Dialer, IoDirection, Transport};

pub(crate) use {socket::Closer, stream::Connection};
