//! One server as a client sees it: its connections, its subscriber, its renewer, and what the client
//! has there.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use redis::Value;

mod members;
#[cfg(test)]
#[cfg(shuttle)]
mod model;
mod renewer;
mod session;
mod todo;

pub(crate) use members::{Member, Members};
pub(crate) use session::Session;

use crate::config::Config;
use crate::connection::{
    self, Command, Endpoint, Lane, Outcome, Posted, Receiver as Replied, Rights,
};
use crate::error::{Error, ErrorKind};
use crate::protocol::{self, ClientId};
use crate::pubsub::{HEARTBEAT, News, PubSub, Subscription, Tracked};
use crate::script::{Requests, ServerClock};
use crate::sync::{Process, Registry, clock};
use crate::watchdog::{Job, Orphan, Watchdog};

/// What a client's handles and background threads work with.
pub(crate) struct Core {
    pub(crate) config: Config,
    /// To the server and back, as measured at connect.
    pub(crate) round_trip: Duration,
    pub(crate) id: ClientId,
    pub(crate) pubsub: Arc<PubSub>,
    pub(crate) watchdog: Watchdog,
    endpoint: Arc<Endpoint>,
    lanes: Vec<Arc<Lane>>,
    hasher: RandomState,
    /// What there is of each name.
    pub(crate) members: Members,
    /// Kept by whoever has a request open, so that a name's numbers outlive its handles.
    pub(crate) requests: Registry<Requests>,
    pub(crate) server_clock: Arc<ServerClock>,
    last_heartbeat: AtomicU64,
    /// Whether it was said that a lock's queue had no place. Once: names come and go.
    pub(crate) says_no_place: AtomicBool,
    /// Which connected.
    process: Process,
    itself: Weak<Self>,
    shut_down: AtomicBool,
    /// Nobody reads replies any more that nobody waits for.
    closed: AtomicBool,
}

impl Core {
    /// `alive` is kept by every thread that is started, until it ends.
    fn new(
        endpoint: &Arc<Endpoint>,
        config: Config,
        round_trip: Duration,
        lanes: Vec<Arc<Lane>>,
        alive: Sender<()>,
        stray: fn(&Arc<Self>, u64, &News<'_>),
    ) -> Result<(Arc<Self>, Receiver<Job>), Error> {
        let unusable = |message: &str| Error::new(ErrorKind::Config, message.to_owned());
        let id = ClientId::random().map_err(|source| {
            unusable("the system gives no random number for the client's id").caused_by(source)
        })?;
        let process = Process::current().map_err(|source| {
            unusable("the system does not tell when the process is forked").caused_by(source)
        })?;
        let (watchdog, jobs) = Watchdog::new(alive);
        let core = Arc::new_cyclic(|itself: &Weak<Self>| Self {
            itself: Weak::clone(itself),
            pubsub: {
                let core = Weak::clone(itself);
                let stray = move |owner, news: &News<'_>| {
                    if let Some(core) = core.upgrade() {
                        stray(&core, owner, news);
                    }
                };
                let tracks = config.client_tracking;
                Arc::new(PubSub::new(Arc::clone(endpoint), id.as_str(), tracks, stray))
            },
            id,
            config,
            round_trip,
            endpoint: Arc::clone(endpoint),
            lanes,
            hasher: RandomState::new(),
            watchdog,
            members: Members::new(&process),
            requests: Registry::new(&process),
            process,
            server_clock: Arc::default(),
            last_heartbeat: AtomicU64::new(0),
            says_no_place: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        Ok((core, jobs))
    }

    /// A name's lane: the same for all its commands, so that they run in the order they were
    /// written.
    pub(crate) fn lane(&self, name: &str) -> Arc<Lane> {
        let at = self.hasher.hash_one(name) % self.lanes.len() as u64;
        Arc::clone(&self.lanes[at as usize])
    }

    /// The numbered requests of a name. Two names may share them, as `x` and `{x}` do: then they share
    /// the numbers as well.
    pub(crate) fn requests_of(&self, name: &str) -> Arc<Requests> {
        let key = protocol::requests(name, self.id.as_str());
        self.requests.find(&key, |key| Requests::new(&key, &self.server_clock))
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.config.response_timeout
    }

    /// When a call over this lane that begins now should be over.
    pub(crate) fn deadline(&self, lane: &Lane) -> Instant {
        let deadline = lane.deadline();
        // No time of the settings is longer than a year.
        deadline.checked_add(self.acknowledged_within()).unwrap_or(deadline)
    }

    /// How much longer a reply may take, since replicas are waited for.
    pub(crate) fn acknowledged_within(&self) -> Duration {
        self.config.replica_acks.map_or(Duration::ZERO, |acks| acks.within)
    }

    /// The number of the database that the URL names.
    pub(crate) fn database(&self) -> i64 {
        self.endpoint.database()
    }

    /// Where the server is, for people.
    pub(crate) fn address(&self) -> String {
        self.endpoint.address()
    }

    /// Whether another client's server is the same one.
    pub(crate) fn is_at_same_server_as(&self, other: &Self) -> bool {
        self.endpoint.is_same_server_as(&other.endpoint)
    }

    /// Which run of the server was met last.
    pub(crate) fn incarnation(&self) -> u64 {
        self.endpoint.incarnation()
    }

    /// Whether this is trouble of an outage that Sentinels end by choosing another master, which was
    /// there at some time after `since`.
    pub(crate) fn is_taken_over(&self, error: &Error, since: Instant) -> bool {
        error.is_transient() && self.endpoint.is_taken_over(since, self.config.failover_timeout)
    }

    fn end_following(&self) {
        self.endpoint.end();
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    /// Whether this is a child that was forked from the process that connected. Then nothing of the
    /// client's may be locked, written or released.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Fails if nothing can be had of the client any more, or not in this process. Before a mutex of
    /// the client's is taken.
    pub(crate) fn check(&self, name: &Arc<str>) -> Result<(), Error> {
        self.check_process(name)?;
        if self.is_shut_down() { Err(Error::shut_down(name)) } else { Ok(()) }
    }

    pub(crate) fn check_process(&self, name: &Arc<str>) -> Result<(), Error> {
        if self.is_forked() { Err(Error::forked(name)) } else { Ok(()) }
    }

    /// Listens to a channel; its messages count once it is confirmed.
    pub(crate) fn listen(&self, channel: &Arc<str>) -> Subscription {
        let (subscription, tell) = self.pubsub.listen(channel);
        if tell {
            self.tell_subscriber();
        }
        subscription
    }

    /// As [`listen`](Self::listen), to a channel that nobody else will listen to.
    pub(crate) fn listen_once(&self, channel: &Arc<str>) -> Subscription {
        let (subscription, tell) = self.pubsub.listen_once(channel);
        if tell {
            self.tell_subscriber();
        }
        subscription
    }

    /// Sends a command whose reply nobody waits for; after the end of the client, when nobody would
    /// read the reply, waits for it.
    pub(crate) fn post(&self, lane: &Arc<Lane>, command: Command, receiver: Arc<dyn Replied>) {
        if self.closed.load(Ordering::SeqCst) {
            receiver.receive(lane.call_unless_out(&command));
            return;
        }
        let posted = lane.post(command, receiver);
        if self.closed.load(Ordering::SeqCst) {
            // The client ended between the look at it and the writing.
            lane.settle(self.deadline(lane));
        } else if posted == Posted::LookAfter {
            self.watchdog.look_after(lane);
        }
    }

    /// Has the server tell when `key` changes, under which `who` holds something. No I/O.
    pub(crate) fn track(&self, key: &Arc<str>, who: Weak<dyn Tracked>) {
        if self.pubsub.track(key, who) {
            self.watchdog.tell_subscriber();
        }
    }

    /// Wakes the subscriber from its read.
    pub(crate) fn tell_subscriber(&self) {
        self.last_heartbeat.store(clock::now(), Ordering::Relaxed);
        // Any lane: this is no name's command.
        let lane = &self.lanes[0];
        let core = Weak::clone(&self.itself);
        let receiver = move |outcome: Outcome| {
            core.upgrade().inspect(|core| core.told_subscriber(&outcome));
        };
        self.post(lane, self.pubsub.control_message(), Arc::new(receiver));
    }

    /// The reply to a control message: that the message arrives is what counts.
    fn told_subscriber(&self, outcome: &Outcome) {
        match outcome {
            Ok(Value::ServerError(error)) => {
                // It is sent again every few seconds.
                if !self.pubsub.is_muted(true) {
                    let state = "waiting may fail: the client's control message was refused; allow \
                                 PUBLISH on the channels redisson_lock__channel:*";
                    let refused = connection::refused(error.clone().into(), Rights::Connect);
                    self.watchdog.tell(refused.now(state));
                }
            }
            Ok(_) => drop(self.pubsub.is_muted(false)),
            // Until it arrives, the channels that it tells of are not asked for.
            Err(_) if !self.is_shut_down() => {
                let name = Arc::from("the subscriber");
                self.watchdog.adopt(Orphan::unheard(&name, self.pubsub.control_message()));
            }
            Err(_) => {}
        }
    }

    pub(crate) fn heartbeat_due(&self) -> bool {
        let last = self.last_heartbeat.load(Ordering::Relaxed);
        clock::now().saturating_sub(last) >= clock::nanos(HEARTBEAT)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("id", &self.id).finish_non_exhaustive()
    }
}
