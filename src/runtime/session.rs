//! The start and the end of a client's threads, which run as long as the client has handles.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use log::Level;
#[cfg(feature = "tls")]
use redlatch_client::TlsSettings;
use redlatch_client::sync::{Mutex, is_forked, may_connect, on_own_thread};
use redlatch_client::{
    Cluster, Command, Credentials, Endpoint, Failure, Lane, Node, Outcome, Posted, Provided,
    Provider, ServerEvent, Servers, Settings, Source, connection_name, reply_code,
};

use super::dispatcher::Dispatcher;
use super::greet::{Greeting, greet};
use super::renewer::Renewer;
use super::{ASSUMED_ROUND_TRIP, Core, Count, Unclaimed};
use crate::config::Config;
use crate::error::{Error, ErrorKind};
use crate::lease::Job;
use crate::observe::{Event, Kind};
use crate::scripts::{ClientId, not_connected, unfit, unreachable};

/// The lifetime of a client. Each handle and guard keeps a clone. The drop of the last clone ends
/// the client, as [`shut_down`](Self::shut_down) does.
#[derive(Clone)]
pub(crate) struct Session(pub(super) Arc<Threads>);

impl Session {
    /// Connects. The function `unclaimed` gets the messages for which no owner of this client
    /// waits. It runs on the subscriber thread and must not block.
    pub(crate) fn open(url: &str, config: Config, unclaimed: Unclaimed) -> Result<Self, Error> {
        Self::start(url, config, unclaimed, |url, config| {
            Self::find(url, config).map(|(servers, greeting)| (servers, Some(greeting)))
        })
    }

    /// Like [`open`](Self::open), but does not connect: the first thread that needs the server
    /// connects.
    pub(crate) fn open_lazily(
        url: &str,
        config: Config,
        unclaimed: Unclaimed,
    ) -> Result<Self, Error> {
        Self::start(url, config, unclaimed, |url, config| Ok((Self::unmet(url, config)?, None)))
    }

    fn start(
        url: &str,
        config: Config,
        unclaimed: Unclaimed,
        find: impl FnOnce(&str, &Config) -> Result<(Servers, Option<Greeting>), Error>,
    ) -> Result<Self, Error> {
        // Check this before taking a mutex, which a thread of the parent may have left locked.
        let may_connect = may_connect().map_err(|source| {
            let message = "the system does not report forks of the process".to_owned();
            Error::new(ErrorKind::Config, message).caused_by(source)
        })?;
        if !may_connect {
            return Err(Error::forked_after_connect());
        }
        let id = ClientId::random().map_err(|source| {
            let message = "the system gives no random number for the client's id".to_owned();
            Error::new(ErrorKind::Config, message).caused_by(source)
        })?;
        let name = connection_name(config.name.as_deref(), id.as_str());
        let connection = Settings {
            name,
            credential_source: source(config.credentials_with.as_ref())?,
            #[cfg(feature = "tls")]
            tls: TlsSettings {
                identity_source: source(config.tls_client_certificate_with.as_ref())?,
                ..config.connection.tls
            },
            ..config.connection
        };
        let config = Config { connection, ..config };
        let (servers, greeting) = find(url, &config)?;
        let (alive, ended) = crossbeam_channel::bounded(0);
        let (core, jobs) = Core::new(id, servers, config, alive.clone(), unclaimed);
        if let Some(greeting) = greeting {
            core.record_greeting(greeting);
        }
        core.watch_servers();
        #[cfg(feature = "in-memory")]
        core.age_with_others();
        // After this line, an error drops the session, which ends the threads that have started.
        let session = Self(Arc::new(Threads { core, ended, ending: Mutex::new(false) }));
        session.0.start(jobs, alive).map_err(|source| {
            let message = "the client's background threads cannot be started".to_owned();
            Error::new(ErrorKind::Config, message).caused_by(source)
        })?;
        Ok(session)
    }

    /// Connects to the server, or to one server of the cluster.
    fn find(url: &str, config: &Config) -> Result<(Servers, Greeting), Error> {
        let lanes = |round_trip| config.connections.unwrap_or_else(|| lanes_for(round_trip));
        if let Some(cluster) = Cluster::connect(url, &config.connection).map_err(not_connected)? {
            let mut refusal = None;
            for node in cluster.nodes() {
                match Self::greet(node.any_lane(), config, true) {
                    Ok(greeting) => {
                        cluster.set_lanes(lanes(greeting.round_trip));
                        return Ok((Servers::Cluster(cluster), greeting));
                    }
                    // This server may be in an outage, so greet the next server.
                    Err(error) if error.is_transient() => refusal = Some(error),
                    Err(error) => return Err(error),
                }
            }
            let nobody =
                || Error::new(ErrorKind::Unavailable, "the cluster has no server".to_owned());
            return Err(refusal.unwrap_or_else(nobody));
        }
        let endpoint = Endpoint::of(url, &config.connection).map_err(not_connected)?;
        let lane = Arc::new(Lane::new(Arc::new(endpoint)));
        let greeting = Self::greet(&lane, config, false)?;
        let node = Node::new(lane, lanes(greeting.round_trip));
        Ok((Servers::One(Arc::new(node)), greeting))
    }

    fn greet(lane: &Arc<Lane>, config: &Config, is_cluster: bool) -> Result<Greeting, Error> {
        lane.connect().map_err(|failure| unreachable(failure.cause()))?;
        let (endpoint, mut ask) = (lane.endpoint(), |command: &Command| lane.call_once(command));
        greet(endpoint, &endpoint.server().unwrap_or_default(), &mut ask, config, is_cluster)
    }

    /// Returns the server, or the master of Sentinels, without a connection.
    fn unmet(url: &str, config: &Config) -> Result<Servers, Error> {
        let lanes = config.connections.unwrap_or_else(|| lanes_for(ASSUMED_ROUND_TRIP));
        if let Some(cluster) = Cluster::unmet(url, &config.connection).map_err(not_connected)? {
            cluster.set_lanes(lanes);
            return Ok(Servers::Cluster(cluster));
        }
        let endpoint = Arc::new(Endpoint::of(url, &config.connection).map_err(not_connected)?);
        Ok(Servers::One(Arc::new(Node::new(Arc::new(Lane::new(endpoint)), lanes))))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Ends the client now, and waits for its threads.
    pub(crate) fn shut_down(&self) {
        let begun = Instant::now();
        if !is_forked() && !self.0.end() {
            self.0.await_threads(begun);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a forked child, the last drop must not end the parent's client. The child must not
        // release holds, close connections (which may write), or wait for threads (which do not
        // exist in the child).
        if is_forked() {
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("core", self.core()).finish_non_exhaustive()
    }
}

impl Core {
    /// Makes the thread that opens the first connection check whether this library can work with
    /// the server. If the library cannot work with the server, the connection is closed, and each
    /// call returns the reason.
    fn greet_at_first_contact(&self, node: &Node) {
        let core = Weak::clone(&self.itself);
        node.endpoint.on_first_contact(move |endpoint, server, ask| {
            // After the client's end, no check is needed.
            let Some(core) = core.upgrade() else { return Ok(()) };
            if let Some(cluster) = core.servers.cluster() {
                cluster.meet(endpoint, ask).map_err(not_connected).map_err(unfit)?;
                // A replica needs no check: the client reads only the addresses of the cluster's
                // masters from it.
                if core.is_met() || server.is_replica() {
                    return Ok(());
                }
            }
            let greeting = greet(endpoint, server, ask, &core.config, core.is_cluster());
            core.record_greeting(greeting.map_err(unfit)?);
            Ok(())
        });
    }

    /// Registers the core for changes of its servers and credentials.
    fn watch_servers(self: &Arc<Self>) {
        if let Some(source) = &self.config.connection.credential_source {
            let core = Arc::downgrade(self);
            source.on_renewed(move |renewed| {
                let Some(core) = core.upgrade() else { return };
                match renewed {
                    Ok(credentials) => core.log_in_again(credentials),
                    Err(why) => core.watchdog.log(Level::Warn, || {
                        format!(
                            "credentials_with gave no new credentials, and those of open \
                             connections expire soon ({why}): the client asks again"
                        )
                    }),
                }
            });
        }
        let core = Arc::downgrade(self);
        let watch = move |node: &Arc<Node>| {
            let Some(core) = core.upgrade() else { return };
            if !core.is_met() {
                core.greet_at_first_contact(node);
            }
            let (renew, pubsub) = (core.watchdog.on_data_lost(), Arc::downgrade(&core.pubsub));
            let server = node.number();
            node.endpoint.on_new_run(move || {
                renew();
                pubsub.upgrade().inspect(|pubsub| pubsub.close_after_new_run(server));
            });
            node.endpoint.on_moved(core.watchdog.on_data_lost());
            let (log, weak_core) = (core.watchdog.log_health(), Weak::clone(&core.itself));
            node.endpoint.health().on_report(move |report| {
                if let (ServerEvent::Back(after), Some(core)) = (&report.event, weak_core.upgrade())
                {
                    core.observe_soon(Count::Reconnected, || {
                        let (address, after) = (Arc::clone(&report.address), *after);
                        move |it| {
                            it.reconnected(&Event::named(&address, (Kind::Server, 1), after, ()));
                        }
                    });
                }
                log(report);
            });
            node.endpoint.on_opened(core.watchdog.on_connected());
        };
        match &self.servers {
            Servers::One(node) => watch(node),
            Servers::Cluster(cluster) => {
                cluster.on_node(watch);
                let (core, renew) = (Arc::downgrade(self), self.watchdog.on_slots_moved());
                cluster.on_moved(move |slots| {
                    core.upgrade().inspect(|core| core.pubsub.move_channels(slots));
                    renew(slots);
                });
            }
        }
    }
}

impl Core {
    /// Sends new credentials over open lanes. Each renewer opens a new connection instead.
    fn log_in_again(&self, credentials: &Credentials) {
        let command = Command::auth(credentials);
        for node in self.servers.all() {
            // Skip a lane without a connection: it gets the new credentials when it connects.
            for lane in node.lanes().iter().filter(|lane| lane.is_open()) {
                // If the server refuses the new credentials, this connection keeps the old login,
                // and the next connection asks for credentials again.
                let core = Weak::clone(&self.itself);
                let receiver = move |outcome: Outcome| {
                    if let Err(Failure::Refused(cause)) = outcome
                        && let Some(core) = core.upgrade()
                    {
                        core.watchdog.log(Level::Warn, || {
                            let code = reply_code(&cause.error);
                            format!(
                                "the server at {} refuses new credentials ({code})",
                                cause.address
                            )
                        });
                    }
                };
                if lane.post(command.clone(), Arc::new(receiver)) == Posted::NeedsService {
                    self.watchdog.service(lane);
                }
            }
            self.pubsub.reconnect(node.number());
        }
    }
}

/// Starts the thread that calls the user's provider, if there is one.
fn source<T: Provided>(provider: Option<&Provider<T>>) -> Result<Option<Arc<Source<T>>>, Error> {
    let started = provider.map(Source::start).transpose().map_err(|source| {
        let message = format!("the thread that calls {} cannot be started", T::SETTING);
        Error::new(ErrorKind::Config, message).caused_by(source)
    })?;
    Ok(started.map(Arc::new))
}

/// Returns the number of lanes for this round trip. A lane is a connection that threads share. A
/// near server gets four lanes, so that the server has work while threads write and read. With more
/// lanes, each write would carry fewer commands and cost more time. A distant server gets so many
/// lanes that a thread rarely waits for the replies of other threads.
fn lanes_for(round_trip: Duration) -> usize {
    match round_trip.as_micros() {
        0..500 => 4,
        500..1_000 => 8,
        _ => 16,
    }
}

/// The state that handles and guards share. The background threads have only the [`Core`].
pub(super) struct Threads {
    pub(super) core: Arc<Core>,
    /// A channel that is disconnected once the last background thread has ended.
    pub(super) ended: Receiver<()>,
    pub(super) ending: Mutex<bool>,
}

impl Threads {
    fn start(&self, jobs: Receiver<Job>, alive: Sender<()>) -> io::Result<()> {
        let core = Arc::clone(&self.core);
        self.core.spawn("redlatch-watch", move || core.watchdog.run())?;
        let core = Arc::clone(&self.core);
        match &self.core.servers {
            Servers::One(node) => {
                let mut renewer = Renewer::new(core, node);
                if self.core.is_met() {
                    renewer = renewer.connect();
                }
                self.core.spawn("redlatch-renew", move || renewer.run(&jobs))?;
                let pubsub = Arc::clone(&self.core.pubsub);
                let subscriber = pubsub.subscriber(node);
                if let Some(follow) = node.endpoint.follower() {
                    self.core.spawn("redlatch-follow", follow)?;
                }
                self.core.spawn("redlatch-listen", move || pubsub.run(&subscriber))
            }
            // The other threads start when they are needed.
            Servers::Cluster(cluster) => {
                let dispatcher = Dispatcher::new(core, Arc::clone(cluster), alive);
                self.core.spawn("redlatch-jobs", move || dispatcher.run(&jobs))
            }
        }
    }

    /// Ends the client. Returns `false` if another thread has already begun to end it.
    fn end(&self) -> bool {
        if std::mem::replace(&mut *self.ending.lock(), true) {
            return false;
        }
        let core = &self.core;
        core.shut_down.store(true, Ordering::SeqCst);
        if let Servers::Cluster(cluster) = &core.servers {
            cluster.end();
        }
        core.members.all().into_iter().for_each(|member| member.end());
        core.pubsub.shut_down();
        // Before the wheel stops, every release must be answered or become a cleanup. After this
        // line, a thread that sends a release waits for the reply itself.
        core.closed.store(true, Ordering::SeqCst);
        let patience = core.config.connection.response_timeout;
        let begun = Instant::now();
        let nodes = core.servers.all();
        for lane in nodes.iter().flat_map(|node| node.lanes()) {
            if begun.elapsed() < patience {
                lane.drain(begun + patience);
            }
            // A command without a reply becomes a cleanup or is logged.
            lane.close();
        }
        for node in nodes {
            node.endpoint.end();
            node.endpoint.health().end();
        }
        core.config.connection.credential_source.as_ref().inspect(|source| source.end());
        #[cfg(feature = "tls")]
        core.config.connection.tls.identity_source.as_ref().inspect(|source| source.end());
        core.watchdog.shut_down();
        core.alive.lock().take();
        self.await_threads(begun);
        core.members.close();
        true
    }

    /// Waits for the background threads, which began to end at `begun`. If a thread is in a write
    /// or a read on a dead network, it ends when the write or read times out.
    fn await_threads(&self, begun: Instant) {
        if !on_own_thread() {
            let patience = self.core.config.connection.response_timeout.saturating_mul(2);
            let _ = self.ended.recv_timeout(patience.saturating_sub(begun.elapsed()));
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}
