//! A client, and the servers as it sees them: its connections, subscribers, renewers, and what the
//! client has there.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use log::Level;

mod errands;
mod left_out;
mod members;
#[cfg(test)]
#[cfg(shuttle)]
mod model;
mod owners;
mod renewer;
mod returned;
mod session;
mod todo;

use left_out::LeftOut;
pub(crate) use members::{Member, Members};
pub(crate) use owners::LiveOwner;
use owners::Owners;
use returned::Returned;
pub(crate) use session::Session;

use crate::config::{self, Config};
use crate::connection::{
    self, Command, Failure, Lane, Limit, Node, Outcome, Posted, ReplyReceiver, Rights, Route,
    Servers, slot_of, unfollowed,
};
use crate::error::{Error, ErrorKind};
use crate::protocol::{self, ClientId};
use crate::pubsub::{Host, News, PubSub, Subscriber};
use crate::script::{Changes, Requests, ServerClock};
use crate::sync::{Mutex, Process, Registry, clock, own_thread};
use crate::watchdog::{Job, Orphan, Watchdog, renewal};

/// What a client's handles and background threads work with.
pub(crate) struct Core {
    pub(crate) config: Config,
    /// To the server and back, as measured at connect.
    pub(crate) round_trip: Duration,
    pub(crate) id: ClientId,
    pub(crate) pubsub: Arc<PubSub>,
    pub(crate) watchdog: Watchdog,
    servers: Servers,
    hasher: RandomState,
    /// What there is of each name.
    pub(crate) members: Members,
    owners: Owners,
    left_out: LeftOut,
    pub(crate) returned: Returned,
    /// Kept by whoever has a request open, so that a name's numbers outlive its handles.
    pub(crate) requests: Registry<Requests>,
    pub(crate) server_clock: Arc<ServerClock>,
    changes: Arc<Changes>,
    last_heartbeat: AtomicU64,
    /// Whether it was said that a lock's queue had no place. Once: names come and go.
    pub(crate) says_no_place: AtomicBool,
    /// The shortest watched lease that a handle was made for, in nanoseconds.
    shortest_watched: AtomicU64,
    /// Which connected.
    process: Process,
    /// Kept by every thread that is started, until it ends. Gone at the end of the client.
    alive: Mutex<Option<Sender<()>>>,
    itself: Weak<Self>,
    shut_down: AtomicBool,
    /// Nobody reads replies any more that nobody waits for.
    closed: AtomicBool,
}

impl Core {
    /// `alive` is kept by every thread that is started, until it ends.
    fn new(
        id: ClientId,
        servers: Servers,
        config: Config,
        round_trip: Duration,
        alive: Sender<()>,
        stray: Stray,
    ) -> Result<(Arc<Self>, Receiver<Job>), Error> {
        let unusable = |message: &str| Error::new(ErrorKind::Config, message.to_owned());
        let process = Process::current().map_err(|source| {
            unusable("the system does not tell when the process is forked").caused_by(source)
        })?;
        let (watchdog, jobs) = Watchdog::new(id.as_str(), alive.clone());
        let watched = clock::nanos(config.watchdog_timeout);
        let core = Arc::new_cyclic(|itself: &Weak<Self>| Self {
            itself: Weak::clone(itself),
            pubsub: Arc::new(PubSub::new(
                servers.clone(),
                id.as_str(),
                config.client_tracking,
                Hosted { core: Weak::clone(itself), stray },
            )),
            id,
            config,
            round_trip,
            servers,
            alive: Mutex::new(Some(alive)),
            hasher: RandomState::new(),
            watchdog,
            members: Members::new(&process),
            owners: Owners::default(),
            left_out: LeftOut::default(),
            returned: Returned::default(),
            requests: Registry::new(&process),
            process,
            server_clock: Arc::default(),
            changes: Arc::default(),
            last_heartbeat: AtomicU64::new(0),
            says_no_place: AtomicBool::new(false),
            shortest_watched: AtomicU64::new(watched),
            shut_down: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        Ok((core, jobs))
    }

    /// How a name's commands reach its server.
    pub(crate) fn route(&self, name: &str) -> Route {
        self.servers.route(name, self.hasher.hash_one(name))
    }

    /// The numbered requests of a name. Two names may share them, as `x` and `{x}` do: then they
    /// share the numbers as well.
    pub(crate) fn requests_of(&self, name: &str) -> Arc<Requests> {
        let key = protocol::requests(name, self.id.as_str());
        self.requests
            .find(&key, |key| Requests::new(&key, &self.server_clock).told_again(&self.changes))
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.config.response_timeout
    }

    /// A handle is made for this watched lease: from here on no renewal is waited for for longer
    /// than that allows. It stays so: a lock may be taken on a handle at any time.
    pub(crate) fn watches_for(&self, lease: Duration) {
        // Another one is refused when the lock is taken.
        if config::check_watchdog("", lease).is_ok() {
            self.shortest_watched.fetch_min(clock::nanos(lease), Ordering::Relaxed);
        }
    }

    /// How long a renewal of the shortest lease waits for its reply.
    fn shortest_patience(&self) -> Duration {
        let shortest = self.shortest_watched.load(Ordering::Relaxed);
        renewal::patience(Duration::from_nanos(shortest))
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
        self.servers.database()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.servers.cluster().is_some()
    }

    /// Where the server is, for people.
    pub(crate) fn address(&self) -> String {
        self.servers.address()
    }

    /// The same for as long as the client lives: a failover does not change it.
    pub(crate) fn lasting_address(&self) -> String {
        self.servers.first().endpoint.lasting_address()
    }

    /// Whether another client's server is the same one, or one of the same.
    pub(crate) fn is_at_same_server_as(&self, other: &Self) -> bool {
        self.servers.overlaps(&other.servers)
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    /// Whether this is a child that was forked from the process that connected. Then nothing of the
    /// client's may be locked, written or released.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Fails if nothing can be had of the client any more, or not in this process. Before a mutex
    /// of the client's is taken.
    pub(crate) fn check(&self, name: &Arc<str>) -> Result<(), Error> {
        self.check_process(name)?;
        if self.is_shut_down() {
            return Err(Error::shut_down(name));
        }
        if self.servers.cluster().is_some() && !protocol::has_one_slot(name, slot_of) {
            let message = "a cluster keeps keys together by what stands in their braces, and the keys of \
                           this name would not be: let it have no braces, or begin with some, as \
                           {orders}:17";
            return Err(Error::new(ErrorKind::Config, message.to_owned()).of(name));
        }
        Ok(())
    }

    pub(crate) fn check_process(&self, name: &Arc<str>) -> Result<(), Error> {
        if self.is_forked() { Err(Error::forked(name)) } else { Ok(()) }
    }

    /// Sends a command whose reply nobody waits for; after the end of the client, when nobody would
    /// read the reply, waits for it.
    pub(crate) fn post(&self, route: &Route, command: Command, receiver: Arc<dyn ReplyReceiver>) {
        let lane = route.lane();
        if !self.is_cluster() {
            return self.post_to(&lane, command, receiver);
        }
        // Nobody sends it to the next server from here: its receiver has it sent again.
        let receiver = move |outcome| receiver.receive(unfollowed(outcome));
        self.post_to(&lane, command, Arc::new(receiver));
    }

    fn post_to(&self, lane: &Arc<Lane>, command: Command, receiver: Arc<dyn ReplyReceiver>) {
        if self.closed.load(Ordering::SeqCst) {
            // Nobody sends it again after this: who leaves with its limit must not leave a hold.
            let _unlimited = Limit::set(None);
            receiver.receive(lane.call_unless_out(&command));
            return;
        }
        let posted = lane.post(command, receiver);
        if self.closed.load(Ordering::SeqCst) {
            // The client ended between the look at it and the writing.
            lane.drain(self.deadline(lane));
        } else if posted == Posted::LookAfter {
            self.watchdog.look_after(lane);
        }
    }

    /// Wakes the subscriber of a server from its read.
    pub(crate) fn tell_subscriber(&self, node: &Arc<Node>) {
        if !self.is_cluster() {
            self.last_heartbeat.store(clock::now(), Ordering::Relaxed);
        }
        let (core, to) = (Weak::clone(&self.itself), Arc::clone(node));
        let receiver = move |outcome: Outcome| {
            core.upgrade().inspect(|core| core.told_subscriber(&to, &outcome));
        };
        let message = self.pubsub.control_message(node);
        self.post_to(node.any_lane(), message, Arc::new(receiver));
    }

    /// Looks whether other clients have another kind of channels.
    fn compare_channels(&self, node: &Arc<Node>) {
        for question in self.pubsub.comparisons(node) {
            let core = Weak::clone(&self.itself);
            let receiver = move |outcome: Outcome| {
                if let Some(core) = core.upgrade()
                    && let Some(line) = core.pubsub.compared(&outcome)
                {
                    core.watchdog.log(Level::Warn, || line);
                }
            };
            self.post_to(node.any_lane(), question, Arc::new(receiver));
        }
    }

    /// The reply to a control message: that the message arrives is what counts.
    fn told_subscriber(&self, node: &Arc<Node>, outcome: &Outcome) {
        match outcome {
            Err(Failure::Refused(cause)) => {
                // It is sent again every few seconds.
                if !self.pubsub.is_muted(true) {
                    let state = "waiting may fail: the client's control message was refused; allow \
                                 PUBLISH on the channels redisson_lock__channel:*";
                    let refused = connection::refused(cause, Rights::Connect);
                    self.watchdog.tell(refused.now(state));
                }
            }
            Ok(_) => drop(self.pubsub.is_muted(false)),
            // Until it arrives, the channels that it tells of are not asked for.
            Err(_) if !self.is_shut_down() => {
                let name = Arc::from("the subscriber");
                let message = self.pubsub.control_message(node);
                self.watchdog.adopt(Orphan::unheard(&name, message, node.number()));
            }
            Err(_) => {}
        }
    }

    /// A thread of the client's own from now on, unless that has ended.
    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let alive = self.alive.lock().clone();
        match alive {
            Some(alive) => own_thread(name, Some(alive), work),
            None => Ok(()),
        }
    }
}

/// See [`Session::open`].
type Stray = fn(&Arc<Core>, u64, &News<'_>);

/// A client as its subscribers see it.
struct Hosted {
    core: Weak<Core>,
    stray: Stray,
}

impl Host for Hosted {
    fn start(&self, subscriber: Arc<Subscriber>) {
        let Some(core) = self.core.upgrade() else { return };
        // Of one server it is started with the client.
        if core.servers.cluster().is_none() {
            return;
        }
        let pubsub = Arc::clone(&core.pubsub);
        let work = move || pubsub.run(&subscriber);
        if let Err(error) = core.spawn("redlatch-listen", work) {
            core.watchdog.log(Level::Error, || {
                format!("waiting may fail: a thread that listens cannot be started: {error}")
            });
        }
    }

    fn tell(&self, node: &Arc<Node>) {
        self.core.upgrade().inspect(|core| core.tell_subscriber(node));
    }

    fn tell_soon(&self, node: Arc<Node>) {
        self.core.upgrade().inspect(|core| core.watchdog.tell_subscriber(node));
    }

    fn stray(&self, owner: u64, news: &News<'_>) {
        self.core.upgrade().inspect(|core| (self.stray)(core, owner, news));
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("id", &self.id).finish_non_exhaustive()
    }
}
