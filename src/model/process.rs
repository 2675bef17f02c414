//! A client of a model, with the thread of its subscriber.

use std::sync::Arc;

use shuttle::thread::{self, JoinHandle};

use super::ModelServer;
use crate::runtime::{Core, Session};

pub(crate) struct Process {
    pub(crate) session: Session,
    pub(crate) core: Arc<Core>,
    subscriber: JoinHandle<()>,
}

impl Process {
    pub(crate) fn start(server: &ModelServer) -> Self {
        Self::of(Core::model(server))
    }

    pub(crate) fn of(core: Arc<Core>) -> Self {
        let subscriber = core.connect();
        Self { session: Session::model(Arc::clone(&core)), core, subscriber }
    }

    /// Runs `work` in a thread. The thread then reads the replies for which other threads may wait.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        let core = Arc::clone(&self.core);
        thread::spawn(move || {
            work();
            core.read_replies();
        })
    }

    /// Drops the client. No handle of the client may be left.
    pub(crate) fn end(self) {
        drop(self.session);
        self.subscriber.join().unwrap();
    }
}
