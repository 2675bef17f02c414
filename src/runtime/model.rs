//! Clients for the model tests. These clients use a model's server, and have no threads that wait
//! for a time, because no time passes in a model.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use redlatch_client::sync::Mutex;
use redlatch_client::{Endpoint, Lane, Node, Servers};
use shuttle::thread::{self, JoinHandle};

use super::Core;
use super::session::{Session, Threads};
use crate::config::ClientBuilder;
use crate::lease::Job;
use crate::model::ModelServer;

const URL: &str = "redis://localhost";
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

impl Core {
    /// A client without threads.
    pub(crate) fn model(server: &ModelServer) -> Arc<Self> {
        Self::model_with_jobs(server).0
    }

    /// Returns a client as [`model`](Self::model) does, and the jobs that its renewer would get.
    pub(crate) fn model_with_jobs(server: &ModelServer) -> (Arc<Self>, Receiver<Job>) {
        let mut config = ClientBuilder::new(URL).config;
        config.slow_wait = Duration::MAX;
        config.connection.dialer = Some(server.dialer());
        // The timeouts are long, because each step of a model takes some time.
        config.connection.connect_timeout = HOUR;
        config.connection.response_timeout = HOUR;
        let endpoint = Endpoint::of(URL, &config.connection);
        let lane = Arc::new(Lane::new(Arc::new(endpoint.unwrap())));
        let servers = Servers::One(Arc::new(Node::new(lane, 1)));
        let alive = crossbeam_channel::bounded(0).0;
        let id = crate::scripts::ClientId::random().unwrap();
        let unclaimed = crate::client::unclaimed;
        let (core, jobs) = Self::new(id, servers, config, alive, unclaimed);
        core.measured_round_trip.set(Duration::ZERO).unwrap();
        (core, jobs)
    }

    /// Connects, and starts the subscriber.
    pub(crate) fn connect(&self) -> JoinHandle<()> {
        let node = self.servers.first();
        node.any_lane().connect().unwrap();
        let pubsub = Arc::clone(&self.pubsub);
        let subscriber = pubsub.subscriber(&node);
        thread::spawn(move || pubsub.run(&subscriber))
    }

    /// Reads the replies to commands for which no thread waits, as the background thread does. If
    /// too many replies are unread, further such commands are written only after this call.
    pub(crate) fn read_replies(&self) {
        let node = self.servers.first();
        while !node.any_lane().service(MINUTE, MINUTE) {
            thread::yield_now();
        }
    }

    /// Ends the subscriber, as the client's end does.
    pub(crate) fn end_subscriber(&self, subscriber: JoinHandle<()>) {
        self.pubsub.shut_down();
        subscriber.join().unwrap();
    }
}

impl Session {
    pub(crate) fn model(core: Arc<Core>) -> Self {
        // A model's session has no background threads, so the channel for their end is closed from
        // the start.
        let ended = crossbeam_channel::bounded(0).1;
        Self(Arc::new(Threads { core, ended, ending: Mutex::new(false) }))
    }
}
