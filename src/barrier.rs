//! The cyclic barrier.
//!
//! ```text
//! arrive: a numbered request; the last party trips the barrier, or runs its action and then does
//! others: listen, look, sleep; a message says how the generation ended. Without one, a party looks
//!         again and again, which renews its lease, and when the first lease of another party ends
//! over, cancelled, failed: break the barrier; if it has tripped before, that counts
//! ```
//!
//! - Only the server decides how a generation ends, once (`lua/barrier/generations.lua`), so all its
//!   parties hear the same. A message counts: the channel is that of one database, and no two
//!   barriers of a name have the same generations.
//! - A party's lease is renewed only while its thread waits here, or runs the action. The first
//!   process that looks after a lease has ended breaks the barrier.
//! - A party listens before it looks, so no end is slept through.
//! - An arrival whose outcome is not known is not repeated: a second one could be one too many.
//! - No party arrives in a generation before one that its process has passed or met.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::atomic::{AtomicI64, Ordering};
use redlatch_client::sync::{Mutex, Thread};
use redlatch_client::{CancelToken, Command, Limit, Outcome, Route};

#[cfg(doc)]
use crate::client::Client;
use crate::config::check_watchdog;
use crate::error::{Error, ErrorKind};
use crate::lease::{Cleanup, KeepAlive};
use crate::observer::{Kind, Way};
use crate::runtime::{Core, Member, Session};
use crate::scripts::barrier::{
    BarrierScripts, BarrierState, Comes, Generation, MOST_PARTIES, Place, read_message,
};
use crate::scripts::{BarrierKeys, Owner, RequestId, Requests, Trouble};
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, Queue, Queued, Synchronizer, Try, Wait, acquire, slow_poll_or,
};

/// A barrier at which a number of threads of all processes wait for each other, again and again. It
/// is `CyclicBarrier` of java.util.concurrent; Redisson has none. Made by
/// [`Client::cyclic_barrier`].
///
/// A clone is the same barrier, and so is every handle of the same name.
///
/// ```no_run
/// # fn compute(_: u32) {}
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let barrier = client.cyclic_barrier("steps");
/// barrier.try_set_parties(4)?; // the first process sets them; others change nothing
///
/// for step in 0..100 {
///     compute(step);
///     barrier.wait()?; // all four are done with this step
/// }
/// # Ok(()) }
/// ```
///
/// # Broken
///
/// All parties of a generation pass the barrier, or none does. The barrier breaks if a party's wait
/// reaches its limit or is cancelled, if a waiting party dies, if the action panics, or if the
/// barrier is [reset](Self::reset) or deleted. Then every waiting party gets an error of kind
/// [`Broken`](ErrorKind::Broken), and so does every later one, until a reset.
///
/// A waiting party has a lease ([`with_watchdog`](Self::with_watchdog), or
/// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout)), which its client renews. If the
/// party is killed, the barrier breaks when its lease ends. If a party dies before it arrives, the
/// others go on waiting, so limit the waits. If a failover loses an arrival, the barrier breaks. If
/// a failover loses the fact that the barrier has tripped, the barrier breaks when the leases of
/// its parties end.
///
/// # In Redis
///
/// A hash `redlatch_barrier:{name}`, and a sorted set `redlatch_parties:{name}` while parties wait.
/// Neither has an end: both stay until [`delete`](Self::delete), even if all parties were killed.
/// For five minutes after a delete, the hash says to late parties how their generation ended.
/// Messages go to the channel `redlatch_barrier:{name}`.
/// [Operations](crate::guide::operations#access-rights) lists the rights that a user needs.
#[derive(Clone)]
pub struct CyclicBarrier {
    site: Arc<BarrierSite>,
    session: Session,
    lease: Duration,
    action: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl CyclicBarrier {
    /// Sets the number of parties if none is set. Otherwise changes nothing and returns `false`.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the number is not from 1 to 999,999.
    /// [`Redis`](ErrorKind::Redis) if the server refuses or does not answer; the message says
    /// whether the number may have been set. Also the errors of [`parties`](Self::parties).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: it had parties before, and none were set"]
    pub fn try_set_parties(&self, parties: u32) -> Result<bool, Error> {
        if !(1..=MOST_PARTIES).contains(&parties) {
            let message =
                format!("{parties} parties are not usable; it may be 1 to {MOST_PARTIES}");
            return Err(self.site.error(ErrorKind::Config, &message));
        }
        self.once(|scripts, id| scripts.try_set_parties(id, parties))
    }

    /// Arrives, and blocks until all parties have arrived. Returns the index of the arrival: the
    /// number of parties less one for the first party, zero for the last.
    ///
    /// # Errors
    ///
    /// - [`Broken`](ErrorKind::Broken) if the barrier is broken, or breaks during the wait.
    /// - [`Redis`](ErrorKind::Redis) if the server refuses, or does not answer for
    ///   [`failover_timeout`](crate::ClientBuilder::failover_timeout). The barrier then breaks, at
    ///   the latest when the party's lease ends.
    /// - [`Config`](ErrorKind::Config) if no number of parties is set.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`], which also ends waits.
    /// - The other errors of [`parties`](Self::parties).
    ///
    /// All verbs that wait fail in these ways.
    ///
    /// # Blocking
    ///
    /// Until all parties have arrived or an error ends the wait. The last party needs one round
    /// trip, and another one after an action. The others wake one message later.
    pub fn wait(&self) -> Result<u32, Error> {
        self.pass(Wait::FOREVER)?.ok_or_else(|| Error::shut_down(&self.site.name))
    }

    /// Arrives, and blocks until all parties have arrived. After `wait`, breaks the barrier and
    /// returns `None`. If the action of the generation before runs for all that time, the next
    /// generation is broken as soon as it begins.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait). If `wait` is over and the server does not say that the barrier
    /// is broken, the error is [`Redis`](ErrorKind::Redis) and of an
    /// [unknown outcome](Error::outcome_unknown): the others may pass.
    ///
    /// # Blocking
    ///
    /// For at most `wait`, and one round trip to arrive and one to break the barrier.
    #[must_use = "`None`: time is over, and the barrier is broken"]
    pub fn wait_for(&self, wait: Duration) -> Result<Option<u32>, Error> {
        self.pass(wait.into())
    }

    /// Arrives, and blocks until all parties have arrived. If `token` is or was cancelled, breaks
    /// the barrier and fails.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled). Also the errors of [`wait`](Self::wait).
    pub fn wait_cancellable(&self, token: &CancelToken) -> Result<u32, Error> {
        self.pass(token.into())?.ok_or_else(|| Error::shut_down(&self.site.name))
    }

    /// Arrives, and blocks until all parties have arrived. At the end of `wait`, breaks the barrier
    /// and returns `None`. All other ways to wait are short forms of this one.
    #[must_use = "`None`: time is over, and the barrier is broken"]
    pub fn wait_within<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Option<u32>, Error> {
        self.pass(wait.into())
    }

    /// Makes the barrier usable again. Waiting parties get an error of kind
    /// [`Broken`](ErrorKind::Broken). Returns `false` if no number of parties is set.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no barrier"]
    pub fn reset(&self) -> Result<bool, Error> {
        self.once(|scripts, id| scripts.reset(id))
    }

    /// Removes the barrier. Waiting parties get an error of kind [`Broken`](ErrorKind::Broken),
    /// unless their generation has tripped.
    /// Returns `false` if there was no barrier.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn delete(&self) -> Result<bool, Error> {
        self.once(|scripts, id| scripts.delete(id))
    }

    /// Returns whether the barrier is broken, or has no number of parties.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn is_broken(&self) -> Result<bool, Error> {
        self.state().map(|state| state.went == Generation::Broken)
    }

    /// Returns the number of parties, or zero if none is set.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server refuses or does not answer, or if a key holds
    /// other data. [`Protocol`](ErrorKind::Protocol) if its answer makes no sense.
    /// [`Config`](ErrorKind::Config) if the name is empty. [`ShutDown`](ErrorKind::ShutDown) after
    /// [`Client::shutdown`]. [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn parties(&self) -> Result<u32, Error> {
        self.state().map(|state| state.parties)
    }

    /// Returns how many parties wait. The result may be out of date when the call returns.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn waiting(&self) -> Result<u32, Error> {
        self.state().map(|state| state.waiting)
    }

    /// Returns the same barrier, with leases of this length for its parties. If a waiting party is
    /// killed, the barrier breaks when its lease ends. From 10 ms to a year.
    #[must_use]
    pub fn with_watchdog(&self, timeout: Duration) -> Self {
        self.site.core.watches_for(timeout);
        Self { lease: timeout, ..self.clone() }
    }

    /// Returns the same barrier, whose last party runs `action` before any party goes on. Set it
    /// for all parties, since the last one runs its own action. If the action panics, the barrier
    /// breaks, and the panic goes on in the last party.
    #[must_use]
    pub fn with_action(&self, action: impl Fn() + Send + Sync + 'static) -> Self {
        Self { action: Some(Arc::new(action)), ..self.clone() }
    }

    /// Returns the barrier's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.site.name
    }

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = BarrierSite::of(session.core(), name);
        let lease = site.core.config.watchdog_timeout;
        Self { site, session: session.clone(), lease, action: None }
    }

    fn check(&self, wait: &Wait<'_>) -> Result<(), Error> {
        let name = &self.site.name;
        if name.is_empty() {
            return Err(Error::nameless("a barrier"));
        }
        check_watchdog("with_watchdog", self.lease).map_err(|error| error.of(name))?;
        wait.check(self.session.core(), name)
    }

    fn state(&self) -> Result<BarrierState, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.scripts().look(None).map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Sends a request that is applied once.
    fn once<T>(
        &self,
        send: impl FnOnce(BarrierScripts<'_>, RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        let outcome = site.requests.with_one(&site.core.id, |id| send(site.scripts(), id));
        outcome.map_err(|trouble| trouble.into_error_of(&site.name))
    }

    /// Arrives and waits.
    fn pass(&self, wait: Wait<'_>) -> Result<Option<u32>, Error> {
        let core = self.session.core();
        let new = || Party {
            barrier: self,
            owner: core.id.next_owner(),
            place: Cell::new(None),
            renewal: OnceCell::new(),
        };
        if let Err(error) = self.check(&wait) {
            if error.kind() == ErrorKind::Cancelled {
                new().leave()?;
            }
            return Err(error);
        }
        let thread = Thread::current();
        let mut has_waited = false;
        loop {
            let party = new();
            let outcome = acquire(&party, &Claim { thread: &thread, need: (), wait });
            let Some(place) = party.place.get() else {
                return match outcome {
                    // The barrier was deleted during the wait.
                    Err(error) if has_waited && error.kind() == ErrorKind::Config => {
                        Err(self.site.broken())
                    }
                    outcome => outcome.map(|_| None),
                };
            };
            match (outcome, place.index) {
                // The generation that was complete has ended: the thread arrives in the next one.
                (Ok(Some(())), None) => {
                    has_waited = true;
                    continue;
                }
                (Ok(Some(())), Some(0)) => party.act(place)?,
                (Ok(Some(())), _) => {}
                (Err(error), _) if error.kind() == ErrorKind::Broken => return Err(error),
                (outcome, _) => match (party.leave(), outcome) {
                    (Ok(Generation::Tripped), _) => {}
                    (_, Err(error)) if error.kind() == ErrorKind::Cancelled => return Err(error),
                    // `None` would say that no other party passes, and the first error does not say
                    // that they may.
                    (Err(error), _) => return Err(error),
                    // The end of the wait has ended a request.
                    _ if wait.is_over() => return Ok(None),
                    (_, outcome) => return outcome.map(|_| None),
                },
            }
            self.site.met.fetch_max(place.generation + 1, Ordering::Relaxed);
            return Ok(place.index);
        }
    }
}

impl fmt::Debug for CyclicBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CyclicBarrier").field("name", &self.site.name).finish_non_exhaustive()
    }
}

/// A thread at the barrier.
struct Party<'a> {
    barrier: &'a CyclicBarrier,
    owner: Owner,
    /// Once it has arrived.
    place: Cell<Option<Place>>,
    renewal: OnceCell<Arc<dyn KeepAlive>>,
}

impl Party<'_> {
    /// The last party runs its action, and then trips the barrier.
    fn act(&self, place: Place) -> Result<(), Error> {
        let Some(action) = &self.barrier.action else { return Ok(()) };
        let site = self.site();
        self.renew(place);
        let ran = catch_unwind(AssertUnwindSafe(|| action()));
        // A child that the action forked is no party.
        site.core.check_process(&site.name)?;
        let finished = site.finish(place.generation, &self.owner, ran.is_ok());
        ran.unwrap_or_else(|panic| resume_unwind(panic));
        let went = finished.map_err(|trouble| trouble.into_error_of(&site.name))?;
        if went == Generation::Tripped { Ok(()) } else { Err(site.broken()) }
    }

    /// Leaves early, and breaks its generation, unless that has ended. If it has not arrived, breaks
    /// the one in which it would wait if it arrived now.
    fn leave(&self) -> Result<Generation, Error> {
        let CyclicBarrier { site, lease, .. } = self.barrier;
        let Some(Place { generation, index: Some(_) }) = self.place.get() else {
            let left = site.arrive(&self.owner, *lease, Comes::Leaves);
            let left = left.map(|_| Generation::Broken);
            return left.map_err(|trouble| trouble.into_error_of(&site.name));
        };
        site.finish(generation, &self.owner, false).map_err(|trouble| {
            let state = "it waits no more, and it is not known whether the others pass; if not, the \
                         barrier breaks when the lease of this party ends";
            // Also if the request was never sent: its arrival counts.
            trouble.into_error().of(&site.name).now(state).unknown(true)
        })
    }

    fn renew(&self, place: Place) {
        let CyclicBarrier { site, lease, .. } = self.barrier;
        let _renewed = self.renewal.get_or_init(|| {
            let command = site.scripts().look_command(Some((place, &self.owner, *lease)));
            let renewal: Arc<dyn KeepAlive> = Arc::new(Renewal { command, lease: *lease });
            site.core.watchdog.schedule(&site.name, &renewal, *lease / PERIODS);
            renewal
        });
    }
}

/// Each party leads: it waits for nobody of its process.
impl Synchronizer for Party<'_> {
    type Site = BarrierSite;
    const ASKS_AT_ENTRY: bool = true;

    fn site(&self) -> &BarrierSite {
        &self.barrier.site
    }

    fn what(&self, (): &()) -> (Kind, u32) {
        (Kind::CyclicBarrier, 1)
    }

    fn enter(&self, claim: &Claim<'_, ()>) -> Result<EnterOf<Self>, Error> {
        let CyclicBarrier { site, lease, action, .. } = self.barrier;
        let comes = if action.is_some() { Comes::Acts } else { Comes::Waits };
        match site.arrive(&self.owner, *lease, comes) {
            Ok(Some(place)) => {
                self.place.set(Some(place));
                site.met.fetch_max(place.generation, Ordering::Relaxed);
                Ok(match place.index {
                    Some(0) => Enter::Granted((), Way::Free),
                    _ if claim.wait.blocks() => Enter::Leads(None),
                    _ => Enter::NotNow,
                })
            }
            Ok(None) => Err(site.broken()),
            Err(trouble @ (Trouble::Refused(_) | Trouble::Unsent(_))) => {
                Err(trouble.into_error_of(&site.name))
            }
            // The wait does not outlast this: a second arrival could be one too many.
            Err(trouble) => {
                let message = "whether it has arrived is not known; if it has, the barrier breaks \
                               when its lease ends";
                let error = site.error(ErrorKind::Redis, message).unknown(true);
                Err(error.caused_by(trouble.into_error()))
            }
        }
    }

    fn request_state(&self, _: &Claim<'_, ()>) {}

    fn collect(&self, _: &mut Lead<()>, _: &Claim<'_, ()>) -> Option<()> {
        None
    }

    /// By the last message. If that tells of another generation, the server says what the message
    /// of this one was.
    fn ask(&self, lead: &mut Lead<()>, _: &Claim<'_, ()>) -> Result<Try<()>, Error> {
        let (site, lease) = (self.site(), self.barrier.lease);
        let place = self.place.get().ok_or_else(|| site.broken())?;
        if lease / PERIODS <= site.core.config.connection.response_timeout {
            self.renew(place);
        }
        let heard = &mut lead.listening.public;
        heard.listen(&site.core, &site.channel);
        // A message from here on is news.
        heard.catch_up();
        let (went, left) = match read_message(&heard.message()) {
            Some((generation, went)) if generation == place.generation => (went, None),
            _ => {
                let looked = site.scripts().look(Some((place, &self.owner, lease)));
                let looked = looked.map_err(|trouble| trouble.into_error().of(&site.name))?;
                (looked.went, looked.left)
            }
        };
        match went {
            Generation::Present => Ok(Try::Busy(slow_poll_or(left).min(lease / PERIODS))),
            // (A thread that has not arrived does that next.)
            Generation::Broken if place.index.is_some() => Err(site.broken()),
            Generation::Broken | Generation::Tripped => Ok(Try::Granted(())),
        }
    }
}

/// How often a lease is renewed before it would end.
const PERIODS: u32 = 3;

/// And after what part of it a refused renewal is tried again.
const TRIES: u32 = 20;

/// Renews the lease of a party for as long as this lives: while its thread runs the action, and
/// does not look, or where its thread may wait for a reply for longer than the lease lasts.
#[derive(Debug)]
struct Renewal {
    command: Command,
    lease: Duration,
}

impl KeepAlive for Renewal {
    fn command(&self) -> Option<Command> {
        Some(self.command.clone())
    }

    fn done(&self, outcome: Outcome) -> Duration {
        self.lease / if outcome.is_ok() { PERIODS } else { TRIES }
    }
}

/// One barrier in one client.
pub(crate) struct BarrierSite {
    core: Arc<Core>,
    name: Arc<str>,
    route: Route,
    keys: BarrierKeys,
    channel: Arc<str>,
    requests: Arc<Requests>,
    /// The last generation that this process has met: none before it can be the present one.
    met: AtomicI64,
    /// Always empty.
    queue: Mutex<Queue<(), (), ()>>,
}

impl BarrierSite {
    fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.members.of::<Self>().find(name, |name| {
            let keys = BarrierKeys::new(&name, core.database());
            Self {
                route: core.route(&name),
                channel: keys.channel.as_str().into(),
                keys,
                requests: core.requests_of(&name),
                met: AtomicI64::new(0),
                queue: Mutex::new(Queue::new()),
                core: Arc::clone(core),
                name,
            }
        })
    }

    fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, message.to_owned()).of(&self.name)
    }

    fn broken(&self) -> Error {
        let message = "the barrier is broken: a party left early, died, or failed, or it was reset \
                       or deleted; nobody passed, reset it to begin anew";
        self.error(ErrorKind::Broken, message)
    }

    fn scripts(&self) -> BarrierScripts<'_> {
        BarrierScripts { route: &self.route, keys: &self.keys, requests: &self.requests }
    }

    fn arrive(
        &self,
        party: &Owner,
        lease: Duration,
        comes: Comes,
    ) -> Result<Option<Place>, Trouble> {
        // An arrival whose outcome is not known would keep the others until its lease ends.
        let _unlimited = Limit::set(None);
        let met = self.met.load(Ordering::Relaxed);
        let arrive = |id| self.scripts().arrive(id, party, lease, comes, met);
        self.requests.with_one(&self.core.id, arrive)
    }

    /// Ends a generation. If the server does not answer, the client tries to break it for a while;
    /// after that the party's lease ends.
    fn finish(&self, generation: i64, party: &Owner, trips: bool) -> Result<Generation, Trouble> {
        let _unlimited = Limit::set(None);
        let finished = self.scripts().finish(generation, party, trips);
        if finished.is_err() {
            let command = self.scripts().finish_command(generation, party, false);
            self.core.watchdog.clean_up(Cleanup::unclaimed(&self.name, command));
        }
        finished
    }
}

impl Queued for BarrierSite {
    type Need = ();
    type Grant = ();
    type RequestState = ();

    fn whose(&self) -> (&Core, &Arc<str>) {
        (&self.core, &self.name)
    }

    fn with_queue<R>(&self, look: impl FnOnce(&mut Queue<(), (), ()>) -> R) -> R {
        look(&mut self.queue.lock())
    }

    fn hand_on(&self, _: Option<Lead<()>>) {}
}

impl Member for BarrierSite {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Each party ends by itself.
    fn end(self: Arc<Self>) {}
}

impl Drop for BarrierSite {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
        self.core.requests.forget_last(self.requests.key(), &self.requests);
    }
}
