//! The way to one Redis server, its background threads, and its end.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::config::{ClientBuilder, Config};
use crate::connection::{Command, Endpoint, Lane, Posted, Receiver as Replied, greet};
use crate::count_down_latch::{CountDownLatch, LatchSite};
use crate::error::LostReason;
use crate::error::{Error, ErrorKind};
use crate::fair_lock::{self, FairLock, FairQueue};
use crate::hold::{self, Leaving, Site, Terms};
use crate::protocol::ClientId;
use crate::pubsub::{HEARTBEAT, Heard, News, PubSub, Subscription};
use crate::reentrant_lock::ReentrantLock;
use crate::script::{self, Requests, ServerClock};
use crate::semaphore::{Semaphore, SemaphoreSite};
use crate::sync::clock;
use crate::sync::{Mutex, Process, Registry};
use crate::watchdog::{Errand, Job, Renewer, Watchdog};

#[cfg(all(test, shuttle))]
use shuttle::thread;
#[cfg(not(all(test, shuttle)))]
use std::thread;

#[cfg(test)]
#[cfg(shuttle)]
mod model;
#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;

/// A client of one Redis server, from which locks are made.
///
/// A clone is the same client. Each client is an owner of its own, as a `RedissonClient` is: a
/// process usually has one, made at its start. Its threads share a few connections; one more, for
/// messages, is opened when one of them waits for the first time. It has three threads of its own,
/// and a fourth while `on_lost` callbacks run or log lines are written.
///
/// When the last clone, lock and guard of a client are gone, what it still holds is released, what
/// was written and not answered is read, and its background threads end: the last drop is a
/// [`shutdown`](Self::shutdown), and may take as long.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.reentrant_lock("orders");
/// let guard = lock.lock()?;
/// // … nobody else is here, on any machine, while guard.is_held() …
/// guard.unlock()?;
/// # Ok(()) }
/// ```
///
/// # Fork
///
/// A forked child has a client's memory and sockets, and none of its threads. There every call of the
/// client fails with kind [`Forked`](ErrorKind::Forked), guards say that they are lost, and drops do
/// nothing: the parent keeps what it holds. Connect a new client in the child.
#[derive(Clone)]
pub struct Client(Arc<Outer>);

impl Client {
    /// Connects with the default settings.
    ///
    /// `url` is `redis://[[user]:password@]host[:port][/database]`, with `rediss://` for TLS (feature
    /// `tls`; `#insecure` at its end trusts any certificate), or
    /// `redis+unix:///path/to.sock[?db=number][&user=…&pass=…]`; each may have the parameter
    /// `protocol=resp3`. In a user or a password `/ ? # @ %` are written `%2F %3F %23 %40 %25`.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    ///
    /// # Blocking
    ///
    /// As [`ClientBuilder::connect`]: up to 17 s, if the server stops answering in the middle of it.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect()
    }

    /// Settings for a new client of the server at `url`, which is as [`connect`](Self::connect) takes
    /// it. No I/O.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    /// The lock of this name: Redisson's `RLock`, `redisson.getLock(name)`.
    ///
    /// No I/O. Handles of one name share what the client holds under it, and its place in the queue.
    /// Whether a handle is kept or made for each call makes no difference. An empty name is an error
    /// of the first call that needs the server.
    #[must_use]
    pub fn reentrant_lock(&self, name: &str) -> ReentrantLock {
        ReentrantLock::new(self.clone(), Site::of(&self.0.core, name))
    }

    /// The fair lock of this name: Redisson's `RFairLock`, `redisson.getFairLock(name)`.
    ///
    /// No I/O. Do not use one name for a fair lock and another kind of lock: they exclude each
    /// other, but do not wake each other.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> FairLock {
        FairLock::new(self.clone(), name)
    }

    /// The semaphore of this name: Redisson's `RSemaphore`, `redisson.getSemaphore(name)`.
    ///
    /// No I/O. It has no permits until somebody gives it some
    /// ([`try_set_permits`](Semaphore::try_set_permits)).
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(self.clone(), SemaphoreSite::of(&self.0.core, name))
    }

    /// The count-down latch of this name: Redisson's `RCountDownLatch`,
    /// `redisson.getCountDownLatch(name)`.
    ///
    /// No I/O. It is open until somebody gives it a count
    /// ([`try_set_count`](CountDownLatch::try_set_count)).
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(self.clone(), LatchSite::of(&self.0.core, name))
    }

    /// Ends the client now, though handles of it are left: waiting threads get an error of kind
    /// [`ShutDown`](ErrorKind::ShutDown), as does every later call; what is held is released, and
    /// its guards are lost ([`LostReason::ShutDown`]).
    ///
    /// In a forked child it does nothing.
    ///
    /// # Blocking
    ///
    /// Until the releases are answered and the background threads have ended. If the server does not
    /// answer, for at most about `connect_timeout` and twice `response_timeout`; a thread that is in
    /// the middle of a request ends by itself soon after.
    pub fn shutdown(&self) {
        let begun = Instant::now();
        if !self.0.end() {
            self.0.await_threads(begun);
        }
    }

    pub(crate) fn open(url: &str, config: Config) -> Result<Self, Error> {
        script::prepare();
        crate::acquire::spin::prepare();
        let endpoint = Endpoint::new(url, config.connect_timeout, config.response_timeout)?;
        let endpoint = Arc::new(endpoint);
        let lane = Arc::new(Lane::new(Arc::clone(&endpoint)));
        let round_trip = greet(&lane, &endpoint)?;
        let count = config.connections.unwrap_or_else(|| lanes_for(round_trip));
        let mut lanes = vec![lane];
        lanes.resize_with(count, || Arc::new(Lane::new(Arc::clone(&endpoint))));

        let (alive, ended) = crossbeam_channel::bounded(0);
        let (core, jobs) = Core::new(&endpoint, config, round_trip, lanes, alive.clone())?;
        endpoint.on_new_run(core.watchdog.renew_all());
        endpoint.health().on_news(core.watchdog.log_news());
        endpoint.on_opened(core.watchdog.connected());
        // From here on a failure drops this, which ends the threads that did start.
        let client = Self(Arc::new(Outer { core, ended, ending: Mutex::new(false) }));
        client.0.start(&endpoint, jobs, alive).map_err(|source| {
            let message = "the client's background threads cannot be started".to_owned();
            Error::new(ErrorKind::Config, message).caused_by(source)
        })?;
        Ok(client)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The last one in a forked child does not end what is the parent's: neither its holds nor its
        // connections, which may write when they are closed, nor threads that are not there.
        if self.core().is_forked() {
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.0.core.id.as_str()).finish_non_exhaustive()
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
struct Outer {
    core: Arc<Core>,
    /// Disconnected once the last background thread has ended.
    ended: Receiver<()>,
    ending: Mutex<bool>,
}

impl Outer {
    fn start(&self, endpoint: &Endpoint, jobs: Receiver<Job>, alive: Sender<()>) -> io::Result<()> {
        let alive = Some(alive);
        let core = Arc::clone(&self.core);
        own_thread("redlatch-watchdog", alive.clone(), move || core.watchdog.run())?;
        let renewer = Renewer::new(Arc::clone(&self.core), endpoint);
        own_thread("redlatch-renewer", alive.clone(), move || renewer.run(&jobs))?;
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
        for site in core.sites.all() {
            site.gate.nudge();
            if let Some((tenancy, _)) = site.gate.tenant() {
                site.lose(&tenancy, LostReason::ShutDown);
                // An error was logged, and the lease ends by itself.
                let _ = site.release(&tenancy.hold, Leaving::Posted);
            }
        }
        core.semaphores.all().iter().for_each(|site| site.gate.nudge());
        core.latches.all().iter().for_each(|site| site.gate.nudge());
        core.fair_queues.all().iter().for_each(|queue| queue.nudge());
        core.pubsub.shut_down();
        // Every release is answered, or has become an errand, before the wheel stops. What is posted
        // after this is waited for by who posts it.
        core.closed.store(true, Ordering::SeqCst);
        let patience = core.config.response_timeout;
        let begun = Instant::now();
        for lane in &core.lanes {
            if begun.elapsed() < patience {
                lane.settle(begun + patience);
            }
            // What is queued or owed there becomes an errand, or is logged.
            lane.close();
        }
        core.watchdog.shut_down();
        self.await_threads(begun);
        core.sites.close();
        core.semaphores.close();
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

impl Drop for Outer {
    fn drop(&mut self) {
        self.end();
    }
}

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
    pub(crate) sites: Registry<Site>,
    pub(crate) semaphores: Registry<SemaphoreSite>,
    pub(crate) latches: Registry<LatchSite>,
    pub(crate) fair_queues: Registry<FairQueue>,
    /// Kept by whoever has a request open, so that a name's numbers outlive its handles.
    pub(crate) requests: Registry<Requests>,
    pub(crate) server_clock: Arc<ServerClock>,
    last_heartbeat: AtomicU64,
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
            pubsub: Arc::new(PubSub::new(Arc::clone(endpoint), id.as_str(), {
                let core = Weak::clone(itself);
                move |owner, news| {
                    let Some(core) = core.upgrade() else { return };
                    match news {
                        News::Ask { lock } => fair_lock::take_out(&core, owner, lock),
                        News::Grant(grant) => hold::give_back(&core, owner, grant),
                        News::Open { .. } => {}
                    }
                }
            })),
            id,
            config,
            round_trip,
            endpoint: Arc::clone(endpoint),
            lanes,
            hasher: RandomState::new(),
            watchdog,
            sites: Registry::new(&process),
            semaphores: Registry::new(&process),
            latches: Registry::new(&process),
            fair_queues: Registry::new(&process),
            requests: Registry::new(&process),
            process,
            server_clock: Arc::default(),
            last_heartbeat: AtomicU64::new(0),
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

    pub(crate) fn response_timeout(&self) -> Duration {
        self.config.response_timeout
    }

    /// The number of the database that the URL names.
    pub(crate) fn database(&self) -> i64 {
        self.endpoint.database()
    }

    /// Where the server is, for people.
    pub(crate) fn address(&self) -> String {
        self.endpoint.address()
    }

    /// Which run of the server was met last.
    pub(crate) fn incarnation(&self) -> u64 {
        self.endpoint.incarnation()
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    /// Whether this is a child that was forked from the process that connected. Then nothing of the
    /// client's may be locked, written or released.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_parent()
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

    /// How long the server is to keep a hold on these terms.
    pub(crate) fn lease(&self, terms: Terms) -> Duration {
        match terms {
            Terms::Watched => self.config.watchdog_timeout,
            Terms::Fixed(lease) => lease,
        }
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
            lane.settle(lane.deadline());
        } else if posted == Posted::LookAfter {
            self.watchdog.look_after(lane);
        }
    }

    /// Wakes the subscriber from its read.
    pub(crate) fn tell_subscriber(&self) {
        self.last_heartbeat.store(clock::now(), Ordering::Relaxed);
        // Any lane: this is no name's command.
        let lane = &self.lanes[0];
        self.post(lane, self.pubsub.control_message(), Arc::new(Heard(Weak::clone(&self.itself))));
    }

    /// As [`tell_subscriber`](Self::tell_subscriber), once more: the connection it went over broke.
    pub(crate) fn tell_subscriber_again(&self) {
        let name = Arc::from("the subscriber");
        self.watchdog.run_errand(Errand::brief(&name, self.pubsub.control_message()));
    }

    /// Lets go of names that were not used for a while.
    pub(crate) fn sweep(&self) {
        self.sites.sweep();
        self.semaphores.sweep();
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

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Starts one of a client's own threads, which keeps `alive` until it ends.
pub(crate) fn own_thread(
    name: &str,
    alive: Option<Sender<()>>,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        OWN.set(true);
        work();
        drop(alive);
    });
    thread.map(drop)
}

/// Whether a client ends on one of its own threads: an `on_lost` callback may have owned the last
/// handle. It must not wait for itself.
fn on_own_thread() -> bool {
    OWN.try_with(Cell::get).unwrap_or(false)
}
