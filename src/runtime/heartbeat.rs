//! The work that a client does every few seconds.

use std::sync::atomic::Ordering;

use redlatch_client::Posted;
use redlatch_client::pubsub::HEARTBEAT;
use redlatch_client::sync::clock;

use super::Core;

/// The number of names whose changes of semaphores each heartbeat checks.
const NAMES_PER_TICK: usize = 2_000;

impl Core {
    /// Sends a control message to each subscriber, and does the other regular work. Returns `false`
    /// if the heartbeat is not due.
    pub(super) fn heartbeat(&self) -> bool {
        let (now, last) = (clock::now(), self.last_heartbeat.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(last) >= clock::nanos(HEARTBEAT);
        if is_due {
            self.last_heartbeat.store(now, Ordering::Relaxed);
            self.members.sweep();
            self.released_permits.sweep();
            self.changes.sweep(NAMES_PER_TICK);
            self.report_forgotten();
            for node in self.pubsub.heartbeats() {
                self.wake_subscriber(&node);
                self.compare_channels(&node);
            }
            self.service_unwritten();
            // Skip the servers without slots, because such a server may never come back.
            let mut nodes =
                self.servers.cluster().map_or_else(|| self.servers.all(), |it| it.masters());
            nodes.retain(|node| node.endpoint.health().needs_check());
            nodes.into_iter().for_each(|node| self.watchdog.reconnect(node));
        }
        is_due
    }

    /// Makes the renewer write the unwritten commands of lanes. A command remains unwritten if the
    /// server accepts no bytes until the call's time limit. The next call, which would write the
    /// command, may come much later.
    fn service_unwritten(&self) {
        for node in self.servers.all() {
            for lane in node.lanes().iter().filter(|lane| lane.has_unwritten()) {
                if lane.request_service() == Posted::NeedsService {
                    self.watchdog.service(lane);
                }
            }
        }
    }
}
