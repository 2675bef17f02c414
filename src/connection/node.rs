//! One server, and the connections that threads share to it.

use std::fmt;
use std::sync::Arc;

use super::{Endpoint, Lane};

/// Opens nothing by itself.
pub(crate) struct Node {
    pub(crate) endpoint: Arc<Endpoint>,
    lanes: Vec<Arc<Lane>>,
}

impl Node {
    /// A server to which a lane leads already.
    pub(crate) fn new(lane: Arc<Lane>, lanes: usize) -> Self {
        let endpoint = Arc::clone(lane.endpoint());
        let mut all = vec![lane];
        all.resize_with(lanes.max(1), || Arc::new(Lane::new(Arc::clone(&endpoint))));
        Self { endpoint, lanes: all }
    }

    /// Counts the servers of a client.
    pub(crate) fn number(&self) -> usize {
        self.endpoint.number()
    }

    pub(crate) fn lanes(&self) -> &[Arc<Lane>] {
        &self.lanes
    }

    /// Any lane: for commands of no name.
    pub(crate) fn any_lane(&self) -> &Arc<Lane> {
        &self.lanes[0]
    }

    /// The lane of a name with this hash.
    pub(crate) fn lane(&self, hash: u64) -> &Arc<Lane> {
        &self.lanes[(hash % self.lanes.len() as u64) as usize]
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.endpoint.address())
    }
}
