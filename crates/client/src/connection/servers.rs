//! The servers of a client: one, or a cluster's.

use std::sync::Arc;

use super::cluster::{Cluster, Slot};
use super::{Channels, Node, Route};

/// See the module.
#[derive(Clone, Debug)]
pub enum Servers {
    /// One server, or the master that Sentinels name.
    One(Arc<Node>),
    /// The servers of a cluster.
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// How the commands of a name with this hash reach its server.
    pub fn route(&self, name: &str, hash: u32) -> Route {
        match self {
            Self::One(node) => Route::Server(Arc::clone(node.lane(hash))),
            Self::Cluster(cluster) => Route::Slot(Slot::of(cluster, name.as_bytes(), hash)),
        }
    }

    /// The server that has a key or channel now.
    pub fn home(&self, key: &[u8]) -> Arc<Node> {
        match self {
            Self::One(node) => Arc::clone(node),
            Self::Cluster(cluster) => cluster.node(super::slot_of(key)),
        }
    }

    /// Any one.
    pub fn first(&self) -> Arc<Node> {
        match self {
            Self::One(node) => Arc::clone(node),
            Self::Cluster(cluster) => cluster.numbered(0),
        }
    }

    /// All servers that were met.
    pub fn all(&self) -> Vec<Arc<Node>> {
        match self {
            Self::One(node) => vec![Arc::clone(node)],
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// The cluster, if it is one.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster),
        }
    }

    /// The servers' addresses, for people.
    pub fn address(&self) -> String {
        let address = self.first().endpoint.address();
        match self {
            Self::One(_) => address,
            Self::Cluster(_) => format!("{address} and others of its cluster"),
        }
    }

    /// The number of the database: a cluster has one. (No mutex: a forked child asks.)
    pub fn database(&self) -> i64 {
        match self {
            Self::One(node) => node.endpoint.database(),
            Self::Cluster(_) => 0,
        }
    }

    /// How clients publish on channels there.
    pub(crate) fn channels(&self) -> Channels {
        self.first().endpoint.channels()
    }

    /// Whether one of another client's servers is one of these.
    pub fn overlaps(&self, other: &Self) -> bool {
        let others = other.all();
        let is_one = |one: &Arc<Node>| {
            others.iter().any(|other| one.endpoint.is_same_server_as(&other.endpoint))
        };
        self.all().iter().any(is_one)
    }
}
