//! The subscriber to one server: its channels, and the state of its connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use redis::{RedisError, Value};

use super::entry::{ChannelEntry, Confirmation};
use super::tracking::{NO_TRACKING, Tracking, TrackingAnswer, TrackingStep, TrackingSteps};
use crate::connection::{Cause, Closer, Node};
use crate::sync::{Condvar, Mutex};

/// The subscriber to one server.
pub struct Subscriber {
    pub(super) node: Arc<Node>,
    /// The client's own channel. The thread subscribes to it whenever it connects.
    pub(super) own: Arc<ChannelEntry>,
    /// In a cluster, the channel of all clients that use the same kind of channels (sharded or
    /// not). Clients of the other kind count its listeners.
    pub(super) common: Option<Arc<ChannelEntry>>,
    /// Wakes the thread while it has no connection.
    pub(super) work: Condvar,
    /// Whether the server tracks keys, as far as this client knows.
    pub(super) tracks: AtomicBool,
    /// Closes the thread's connection, which ends the thread's read.
    pub(super) closer: Mutex<Option<Closer>>,
    /// The number of messages and replies that the server has sent.
    pub(super) received: AtomicU64,
    /// The value of `received` when a thread last missed a message, and the time at which this
    /// happened.
    pub(super) suspected: Mutex<Option<(u64, Instant)>>,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscriber({:?})", self.node)
    }
}

impl Subscriber {
    pub(super) fn tracks(&self) -> bool {
        self.tracks.load(Ordering::Relaxed)
    }

    /// Closes the connection. The thread then opens a new connection.
    pub(super) fn end_connection(&self) {
        if let Some(closer) = &*self.closer.lock() {
            closer.close();
        }
    }

    pub(super) fn record_no_tracking(&self) {
        self.tracks.store(false, Ordering::Relaxed);
        self.node.endpoint.health().report_missing_option(NO_TRACKING);
    }

    /// Handles the reply to a step towards tracking. Returns the next steps.
    pub(super) fn handle_step(
        &self,
        tracking: &mut Tracking,
        step: TrackingStep,
        reply: Result<&Value, &RedisError>,
    ) -> TrackingSteps {
        let Some((answer, steps)) = tracking.handle_reply(step, reply) else {
            return TrackingSteps::default();
        };
        match answer {
            TrackingAnswer::Tracks => self.tracks.store(true, Ordering::Relaxed),
            TrackingAnswer::Refuses => self.record_no_tracking(),
        }
        steps
    }

    pub(super) fn refused(&self, error: &RedisError) -> Confirmation {
        let address = self.node.endpoint.health().address();
        Confirmation::Refused(Cause::said(Arc::new(error.clone()), address))
    }
}
