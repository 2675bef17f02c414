//! One server, and the connections that threads share to it.

use std::fmt;
use std::sync::Arc;

use super::{Endpoint, Lane};

/// One server with its lanes. A `Node` itself opens no connection.
pub struct Node {
    /// How connections to the server are opened.
    pub endpoint: Arc<Endpoint>,
    lanes: Vec<Arc<Lane>>,
}

impl Node {
    /// Returns the node of the server to which `lane` leads.
    pub fn new(lane: Arc<Lane>, lanes: usize) -> Self {
        let endpoint = Arc::clone(lane.endpoint());
        let mut all = vec![lane];
        all.resize_with(lanes.max(1), || Arc::new(Lane::new(Arc::clone(&endpoint))));
        Self { endpoint, lanes: all }
    }

    /// The server's number among the servers of its client.
    #[inline]
    pub fn number(&self) -> usize {
        self.endpoint.number()
    }

    /// The connections that threads share.
    #[inline]
    pub fn lanes(&self) -> &[Arc<Lane>] {
        &self.lanes
    }

    /// Returns any lane, for commands that belong to no name.
    #[inline]
    pub fn any_lane(&self) -> &Arc<Lane> {
        &self.lanes[0]
    }

    /// Returns the lane of a name with this hash.
    pub(crate) fn lane(&self, hash: u32) -> &Arc<Lane> {
        &self.lanes[hash as usize % self.lanes.len()]
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.endpoint.address())
    }
}
