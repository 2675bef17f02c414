//! Clients for the model tests: of a model's server, and without the threads that wait for time to
//! pass, which it does not.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;
use shuttle::thread::{self, JoinHandle};

use super::Core;
use super::session::{Session, Threads};
use crate::config::ClientBuilder;
use crate::connection::{Endpoint, Lane};
use crate::sync::Mutex;
use crate::watchdog::Job;

const URL: &str = "redis://localhost";

impl Core {
    /// Of a client that has no threads.
    pub(crate) fn model() -> Arc<Self> {
        Self::model_with_jobs().0
    }

    /// The same, with what its renewer would have to do.
    pub(crate) fn model_with_jobs() -> (Arc<Self>, Receiver<Job>) {
        let config = ClientBuilder::new(URL).config;
        let endpoint = Endpoint::new(URL, config.connect_timeout, config.response_timeout);
        let endpoint = Arc::new(endpoint.unwrap());
        let lanes = vec![Arc::new(Lane::new(Arc::clone(&endpoint)))];
        let alive = crossbeam_channel::bounded(0).0;
        Self::new(&endpoint, config, Duration::ZERO, lanes, alive, crate::client::stray).unwrap()
    }

    /// Connects, and starts the subscriber.
    pub(crate) fn connect(&self) -> JoinHandle<()> {
        self.lanes[0].connect().unwrap();
        let pubsub = Arc::clone(&self.pubsub);
        thread::spawn(move || pubsub.run())
    }

    /// Ends the subscriber, as the client's end does.
    pub(crate) fn end_subscriber(&self, subscriber: JoinHandle<()>) {
        self.pubsub.shut_down();
        subscriber.join().unwrap();
    }
}

impl Session {
    pub(crate) fn model(core: Arc<Core>) -> Self {
        // Nobody is to be waited for.
        let ended = crossbeam_channel::bounded(0).1;
        Self(Arc::new(Threads { core, ended, ending: Mutex::new(false) }))
    }
}
