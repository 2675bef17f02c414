//! A client: its connections, subscribers and renewers, and its state for each name.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use log::Level;
use redlatch_client::pubsub::{Host, Names, PubSub, Subscriber};
use redlatch_client::sync::{Mutex, clock, is_forked, own_thread};
use redlatch_client::{
    Command, Failure, Lane, Limit, Node, Outcome, Posted, ReplyReceiver, Route, Servers, slot_of,
    unfollowed,
};

#[cfg(feature = "in-memory")]
mod aged;
mod dispatcher;
mod greet;
mod heartbeat;
mod members;
mod message;
#[cfg(all(test, models))]
mod model;
mod observed;
mod owners;
mod released_permits;
mod renewer;
mod session;
mod todo;

use greet::Greeting;
pub(crate) use greet::Info;
pub(crate) use members::{Member, Members};
use message::Recipients;
pub(crate) use message::{Message, Recipient, Registered};
pub(crate) use observed::{Count, SlowWait};
use observed::{EventCounts, SlowLines, Waits};
pub(crate) use owners::LiveOwner;
use owners::Owners;
use released_permits::ReleasedPermits;
pub(crate) use session::Session;

use crate::config::{self, Config};
use crate::error::{Error, ErrorKind};
use crate::lease::{Cleanup, Job, Watchdog, schedule};
use crate::name::Name;
use crate::scripts::{self, ChangedNames, ClientId, LockKeys, Requests, Rights, ServerClock};

/// The assumed time of a round trip before the first exchange with the server.
const ASSUMED_ROUND_TRIP: Duration = Duration::from_micros(500);
/// The time for which a background thread follows the redirects of a command in a cluster.
const RESEND_TIMEOUT: Duration = Duration::from_millis(200);

/// The state that a client's handles and background threads share.
pub(crate) struct Core {
    pub(crate) config: Config,
    /// See [`round_trip`](Self::round_trip).
    measured_round_trip: OnceLock<Duration>,
    pub(crate) id: ClientId,
    pub(crate) pubsub: Arc<PubSub>,
    pub(crate) watchdog: Watchdog,
    servers: Servers,
    hasher: RandomState,
    pub(crate) recipients: Arc<Recipients>,
    /// The synchronizers of each name.
    pub(crate) members: Members,
    owners: Owners,
    pub(crate) released_permits: ReleasedPermits,
    pub(crate) server_clock: Arc<ServerClock>,
    pub(crate) changes: Arc<ChangedNames>,
    /// Whether the client has logged that it changes too many semaphores to remember all changes,
    /// which it would repeat after a failover.
    has_logged_forgotten: AtomicBool,
    last_heartbeat: AtomicU64,
    counts: EventCounts,
    /// The waits that have lasted for a long time. Each waiting thread adds and removes its own
    /// wait.
    pub(crate) waits: Mutex<Waits>,
    slow_lines: Mutex<SlowLines>,
    /// Returns the text of a log line about a slow wait.
    pub(crate) slow_line: OnceLock<SlowLine>,
    /// The shortest lease that the watchdog renews, over all handles, in nanoseconds.
    shortest_watched: AtomicU64,
    /// Each thread of the client keeps a clone of this sender until the thread ends. `None` after
    /// the client's end.
    alive: Mutex<Option<Sender<()>>>,
    itself: Weak<Self>,
    shut_down: AtomicBool,
    /// Whether the background threads have stopped reading the replies to posted commands.
    closed: AtomicBool,
}

// The compiler does not derive this trait, because the core has callbacks. `Config` explains why
// the user's callbacks are safe. The client's own callbacks have their state in a `Mutex` or an
// atomic.
impl RefUnwindSafe for Core {}

impl Core {
    /// Each thread of the client keeps a clone of `alive` until it ends.
    fn new(
        id: ClientId,
        servers: Servers,
        config: Config,
        alive: Sender<()>,
        unclaimed: Unclaimed,
    ) -> (Arc<Self>, Receiver<Job>) {
        let (watchdog, jobs) = Watchdog::new(id.as_str(), alive.clone());
        let watched = clock::nanos(config.watchdog_timeout);
        let recipients = Arc::<Recipients>::default();
        let client = id.as_str().to_owned();
        let names = Names {
            control: LockKeys::control_channel(id.as_str()),
            own: Box::new(move |key| LockKeys::own_channel(key, &client)),
            common: LockKeys::common_channel,
        };
        let core = Arc::new_cyclic(|itself: &Weak<Self>| Self {
            itself: Weak::clone(itself),
            pubsub: Arc::new(PubSub::new(
                servers.clone(),
                names,
                config.client_tracking,
                SubscriberHost {
                    core: Weak::clone(itself),
                    recipients: Arc::clone(&recipients),
                    unclaimed,
                },
            )),
            id,
            config,
            measured_round_trip: OnceLock::new(),
            servers,
            alive: Mutex::new(Some(alive)),
            hasher: RandomState::new(),
            watchdog,
            recipients,
            members: Members::default(),
            owners: Owners::default(),
            released_permits: ReleasedPermits::default(),
            changes: Arc::default(),
            server_clock: Arc::default(),
            has_logged_forgotten: AtomicBool::new(false),
            last_heartbeat: AtomicU64::new(0),
            counts: EventCounts::default(),
            waits: Mutex::default(),
            slow_lines: Mutex::default(),
            slow_line: OnceLock::new(),
            shortest_watched: AtomicU64::new(watched),
            shut_down: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        (core, jobs)
    }

    /// The time of a round trip to the server, measured in the first exchange.
    pub(crate) fn round_trip(&self) -> Duration {
        self.measured_round_trip.get().copied().unwrap_or(ASSUMED_ROUND_TRIP)
    }

    /// Whether the client has ever had an exchange with the server.
    fn is_met(&self) -> bool {
        self.measured_round_trip.get().is_some()
    }

    /// Stores the result of the first exchange with the server.
    fn record_greeting(&self, greeting: Greeting) {
        // Two threads may each open a first connection at the same time: only one result is stored.
        if self.measured_round_trip.set(greeting.round_trip).is_ok() {
            for warning in greeting.warnings {
                self.watchdog.log(Level::Warn, || warning);
            }
        }
    }

    /// Returns the key of the name that a user gave: the client's prefix and this name.
    pub(crate) fn key<'a>(&self, given: &'a str) -> Cow<'a, str> {
        match &*self.config.prefix {
            "" => Cow::Borrowed(given),
            prefix => Cow::Owned(format!("{prefix}{given}")),
        }
    }

    /// Returns the pattern of keys for a user's pattern of names.
    pub(crate) fn pattern(&self, given: &str) -> String {
        let mut pattern = String::with_capacity(self.config.prefix.len() + given.len());
        for letter in self.config.prefix.chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern + given
    }

    /// Returns the name with this key.
    pub(crate) fn name(&self, key: impl Into<Arc<str>>) -> Name {
        Name::of(key, &self.config.prefix)
    }

    /// Returns the route of a name's commands to its server.
    pub(crate) fn route(&self, name: &str) -> Route {
        self.servers.route(name, self.hasher.hash_one(name) as u32)
    }

    /// Returns the sequence of numbered requests of a name. Each open request keeps a reference to
    /// the sequence, so the sequence may outlive the name's handles. Two names may share one
    /// sequence, as `x` and `{x}` do.
    pub(crate) fn requests_of(&self, name: &str) -> Arc<Requests> {
        let key = scripts::requests(name, self.id.as_str());
        self.changes.requests.find(&key, |key| {
            Requests::new(key, &self.server_clock)
                .with_repeated_changes(&self.changes, self.route(name))
        })
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.config.connection.response_timeout
    }

    /// Notes that the watchdog renews a lease of this length for a handle. After this call, no
    /// renewal waits longer for its reply than this lease allows. The client never removes this
    /// bound, because a thread may take a lock with the handle at any time.
    pub(crate) fn note_watched_lease(&self, lease: Duration) {
        // If the lease is out of range, the lock's methods return an error.
        if config::check_watchdog("", lease).is_ok() {
            self.shortest_watched.fetch_min(clock::nanos(lease), Ordering::Relaxed);
        }
    }

    /// Returns how long a renewal of the shortest lease may wait for its reply.
    fn shortest_reply_wait(&self) -> Duration {
        let shortest = self.shortest_watched.load(Ordering::Relaxed);
        schedule::reply_wait(Duration::from_nanos(shortest))
    }

    /// Returns the deadline of a call that begins now on this lane.
    pub(crate) fn deadline(&self, lane: &Lane) -> Instant {
        let deadline = lane.deadline();
        // The addition does not overflow, because no timeout is longer than a year.
        deadline.checked_add(self.replica_wait()).unwrap_or(deadline)
    }

    /// The additional time that a reply may take while the server waits for replicas.
    pub(crate) fn replica_wait(&self) -> Duration {
        self.config.replica_acks.map_or(Duration::ZERO, |acks| acks.within)
    }

    /// The number of the database that the URL names.
    pub(crate) fn database(&self) -> i64 {
        self.servers.database()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.servers.cluster().is_some()
    }

    /// The servers that have keys.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        self.servers.cluster().map_or_else(|| self.servers.all(), |cluster| cluster.masters())
    }

    /// The server's address, for messages.
    pub(crate) fn address(&self) -> String {
        self.servers.address()
    }

    /// Returns an address that a failover does not change.
    pub(crate) fn lasting_address(&self) -> String {
        self.servers.first().endpoint.lasting_address()
    }

    /// Whether the two clients have a server in common.
    pub(crate) fn is_at_same_server_as(&self, other: &Self) -> bool {
        self.servers.overlaps(&other.servers)
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    /// Returns an error if the client has ended, or belongs to the parent process. Must be called
    /// before a thread takes a mutex of the client.
    #[inline]
    pub(crate) fn check(&self, name: &Name) -> Result<(), Error> {
        Error::if_forked(name)?;
        if self.is_shut_down() {
            return Err(Error::shut_down(name));
        }
        if self.servers.cluster().is_some() && !scripts::has_one_slot(name, slot_of) {
            let message = "the keys of this name would be in different slots of the cluster: use a \
                           name without braces, or one that begins with them, such as {orders}:17";
            return Err(Error::new(ErrorKind::Config, message.to_owned()).of(name));
        }
        Ok(())
    }

    /// Sends a command without waiting for its reply. After the client's end, this function waits
    /// for the reply, because no other thread would read it. In a forked child, this function sends
    /// nothing.
    pub(crate) fn post(&self, route: &Route, command: Command, receiver: Arc<dyn ReplyReceiver>) {
        if is_forked() {
            return;
        }
        let lane = route.lane();
        if !self.is_cluster() {
            return self.post_to(&lane, command, receiver);
        }
        // If the server redirects this command, its receiver sends the command again.
        let receiver = move |outcome| receiver.receive(unfollowed(outcome));
        self.post_to(&lane, command, Arc::new(receiver));
    }

    fn post_to(&self, lane: &Arc<Lane>, command: Command, receiver: Arc<dyn ReplyReceiver>) {
        if self.closed.load(Ordering::SeqCst) {
            // The caller's limit must not apply: if the limit stopped this release, no thread would
            // send it again, and the hold would remain at the server.
            let _unlimited = Limit::set(None);
            let mut outcome = lane.call_unless_out(&command);
            if let Some(cluster) = self.servers.cluster() {
                outcome = cluster.resend(&command, outcome, Instant::now() + RESEND_TIMEOUT);
            }
            receiver.receive(outcome);
            return;
        }
        let posted = lane.post(command, receiver);
        if self.closed.load(Ordering::SeqCst) {
            // The client ended after the check above, perhaps before the command was written.
            lane.drain(self.deadline(lane));
        } else if posted == Posted::NeedsService {
            self.watchdog.service(lane);
        }
    }

    /// Wakes the subscriber of a server from its read.
    pub(crate) fn wake_subscriber(&self, node: &Arc<Node>) {
        if !self.is_cluster() {
            self.last_heartbeat.store(clock::now(), Ordering::Relaxed);
        }
        let (core, to) = (Weak::clone(&self.itself), Arc::clone(node));
        let receiver = move |outcome: Outcome| {
            core.upgrade().inspect(|core| core.handle_control_outcome(&to, &outcome));
        };
        let message = self.pubsub.control_message(node);
        self.post_to(node.any_lane(), message, Arc::new(receiver));
    }

    /// Checks whether other clients use sharded channels while this client does not, or the
    /// reverse.
    fn compare_channels(&self, node: &Arc<Node>) {
        for query in self.pubsub.comparison_commands(node) {
            let core = Weak::clone(&self.itself);
            let receiver = move |outcome: Outcome| {
                if let Some(core) = core.upgrade()
                    && let Some(line) = core.pubsub.read_comparison(&outcome)
                {
                    core.watchdog.log(Level::Warn, || line);
                }
            };
            self.post_to(node.any_lane(), query, Arc::new(receiver));
        }
    }

    /// Handles the outcome of the PUBLISH of a control message.
    fn handle_control_outcome(&self, node: &Arc<Node>, outcome: &Outcome) {
        match outcome {
            Err(Failure::Refused(cause)) => {
                // The heartbeat sends another control message within a few seconds.
                if !self.pubsub.set_muted(true) {
                    let state = "waiting may fail: the client's control message was refused; allow \
                                 PUBLISH on the channels redisson_lock__channel:*";
                    let refused = scripts::refused(cause, Rights::Connect);
                    self.watchdog.log_error(refused.now(state));
                }
            }
            Ok(_) => drop(self.pubsub.set_muted(false)),
            // The subscriber reads its queue only when a control message arrives.
            Err(_) if !self.is_shut_down() => {
                let name = Name::from("the subscriber");
                let message = self.pubsub.control_message(node);
                self.watchdog.clean_up(Cleanup::control_message(&name, message, node.number()));
            }
            Err(_) => {}
        }
    }

    /// Starts a thread of the client, unless the client has ended.
    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let alive = self.alive.lock().clone();
        match alive {
            Some(alive) => own_thread(name, Some(alive), work),
            None => Ok(()),
        }
    }
}

/// Returns the text of a log line about a slow wait, or `None` if there is nothing to log.
type SlowLine = fn(&Arc<Core>, &SlowWait) -> Option<String>;

/// See [`Session::open`].
type Unclaimed = fn(&Arc<Core>, u64, &Message<'_>);

/// The part of the client that its subscribers call.
struct SubscriberHost {
    core: Weak<Core>,
    recipients: Arc<Recipients>,
    unclaimed: Unclaimed,
}

impl Host for SubscriberHost {
    fn start(&self, subscriber: Arc<Subscriber>) -> bool {
        let Some(core) = self.core.upgrade() else { return true };
        // The only subscriber of a single server starts with the client.
        if core.servers.cluster().is_none() {
            return true;
        }
        let pubsub = Arc::clone(&core.pubsub);
        let work = move || pubsub.run(&subscriber);
        let started = core.spawn("redlatch-listen", work);
        if let Err(error) = &started {
            core.watchdog.log(Level::Error, || {
                format!("waiting may fail: the thread for messages cannot be started: {error}")
            });
        }
        started.is_ok()
    }

    fn wake_subscriber(&self, node: &Arc<Node>) {
        self.core.upgrade().inspect(|core| core.wake_subscriber(node));
    }

    fn wake_subscriber_later(&self, node: Arc<Node>) {
        self.core.upgrade().inspect(|core| core.watchdog.wake_subscriber(node));
    }

    fn message(&self, message: &[u8]) {
        let Some((owner, message)) = Message::parse(message) else { return };
        let named = self.recipients.named(owner);
        if !named.is_some_and(|named| named.recipient.receive(&message)) {
            self.core.upgrade().inspect(|core| (self.unclaimed)(core, owner, &message));
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("id", &self.id).finish_non_exhaustive()
    }
}
