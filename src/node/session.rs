//! How a client's threads begin and end: with its handles.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::Core;
use super::renewer::Renewer;
use crate::config::Config;
use crate::connection::{Endpoint, Lane, greet, may_wait};
use crate::error::{Error, ErrorKind};
use crate::pubsub::News;
use crate::script;
use crate::sync::{Mutex, on_own_thread, own_thread, spin};
use crate::watchdog::Job;

/// What each handle and guard keeps: the last one to go ends the client, as
/// [`shut_down`](Self::shut_down) does.
#[derive(Clone)]
pub(crate) struct Session(pub(super) Arc<Threads>);

impl Session {
    /// Connects. `stray` hears of messages to owners of this client that do not wait. It is called
    /// on the subscriber's thread and must not block.
    pub(crate) fn open(
        url: &str,
        config: Config,
        stray: fn(&Arc<Core>, u64, &News<'_>),
    ) -> Result<Self, Error> {
        script::prepare();
        spin::prepare();
        let endpoint = Endpoint::of(url, &config)?;
        let endpoint = Arc::new(endpoint);
        let lane = Arc::new(Lane::new(Arc::clone(&endpoint)));
        let round_trip = greet(&lane, &endpoint)?;
        if config.replica_acks.is_some() {
            may_wait(&lane, &endpoint)?;
        }
        let count = config.connections.unwrap_or_else(|| lanes_for(round_trip));
        let mut lanes = vec![lane];
        lanes.resize_with(count, || Arc::new(Lane::new(Arc::clone(&endpoint))));

        let (alive, ended) = crossbeam_channel::bounded(0);
        let (core, jobs) = Core::new(&endpoint, config, round_trip, lanes, alive.clone(), stray)?;
        endpoint.on_new_run(core.watchdog.renew_all());
        endpoint.on_moved(core.watchdog.renew_all());
        endpoint.health().on_news(core.watchdog.log_news());
        endpoint.on_opened(core.watchdog.connected());
        // From here on a failure drops this, which ends the threads that did start.
        let session = Self(Arc::new(Threads { core, ended, ending: Mutex::new(false) }));
        session.0.start(&endpoint, jobs, alive).map_err(|source| {
            let message = "the client's background threads cannot be started".to_owned();
            Error::new(ErrorKind::Config, message).caused_by(source)
        })?;
        Ok(session)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Ends the client now, and waits for its threads.
    pub(crate) fn shut_down(&self) {
        let begun = Instant::now();
        if !self.0.end() {
            self.0.await_threads(begun);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The last one in a forked child does not end what is the parent's: neither its holds nor its
        // connections, which may write when they are closed, nor threads that are not there.
        if self.core().is_forked() {
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("core", self.core()).finish_non_exhaustive()
    }
}

/// Four connections nearby, so that the server has work while threads write and read (more, and
/// each packet costs more than it brings); over a network as many as keep threads from waiting for
/// others' replies.
fn lanes_for(round_trip: Duration) -> usize {
    match round_trip.as_micros() {
        0..500 => 4,
        500..1_000 => 8,
        _ => 16,
    }
}

/// What handles and guards share. The background threads have only the [`Core`], so that the last
/// drop is never theirs.
pub(super) struct Threads {
    pub(super) core: Arc<Core>,
    /// Disconnected once the last background thread has ended.
    pub(super) ended: Receiver<()>,
    pub(super) ending: Mutex<bool>,
}

impl Threads {
    fn start(&self, endpoint: &Endpoint, jobs: Receiver<Job>, alive: Sender<()>) -> io::Result<()> {
        let alive = Some(alive);
        let core = Arc::clone(&self.core);
        own_thread("redlatch-watchdog", alive.clone(), move || core.watchdog.run())?;
        let renewer = Renewer::new(Arc::clone(&self.core), endpoint);
        own_thread("redlatch-renewer", alive.clone(), move || renewer.run(&jobs))?;
        if let Some(follow) = endpoint.follower() {
            own_thread("redlatch-sentinel", alive.clone(), follow)?;
        }
        let pubsub = Arc::clone(&self.core.pubsub);
        own_thread("redlatch-subscriber", alive, move || pubsub.run())
    }

    /// `false`: somebody else has begun to end it, or it is the parent's.
    fn end(&self) -> bool {
        if self.core.is_forked() || std::mem::replace(&mut *self.ending.lock(), true) {
            return false;
        }
        let core = &self.core;
        core.shut_down.store(true, Ordering::SeqCst);
        core.members.all().into_iter().for_each(|member| member.end());
        core.pubsub.shut_down();
        // Every release is answered, or has become an orphan, before the wheel stops. What is posted
        // after this is waited for by who posts it.
        core.closed.store(true, Ordering::SeqCst);
        let patience = core.config.response_timeout;
        let begun = Instant::now();
        for lane in &core.lanes {
            if begun.elapsed() < patience {
                lane.settle(begun + patience);
            }
            // What is queued or owed there becomes an orphan, or is logged.
            lane.close();
        }
        core.end_following();
        core.watchdog.shut_down();
        self.await_threads(begun);
        core.members.close();
        true
    }

    /// Waits for the background threads, which `begun` to end then. One that a dead network keeps in
    /// a write or a read ends when that times out.
    fn await_threads(&self, begun: Instant) {
        if !on_own_thread() && !self.core.is_forked() {
            let patience = self.core.config.response_timeout.saturating_mul(2);
            let _ = self.ended.recv_timeout(patience.saturating_sub(begun.elapsed()));
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}
