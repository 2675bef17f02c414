//! The cyclic barrier.
//!
//! ```text
//! arrive: a numbered request; the last party trips the barrier, or runs its action and then does
//! others: a message says how the generation ended; without one, one thread of each process asks for
//!         all of its parties when the first lease of a party ends, and at the slow poll
//! over, cancelled, failed: break the barrier; if it has tripped before, that counts
//! ```
//!
//! A message counts: the channel is that of one database, and no two barriers of a name have the
//! same generations. Each party has a lease, which its process renews while it waits. The first
//! process that looks after a lease has ended breaks the barrier. Only the server decides how a generation ends, once
//! (`lua/barrier/generations.lua`), so all its parties hear the same.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

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
    Arrival, BarrierScripts, BarrierState, Comes, Generation, MOST_PARTIES, Place, read_message,
};
use crate::scripts::{BarrierKeys, Owner, RequestId, Requests, Trouble};
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, Queue, Queued, Signal, Synchronizer, Try, Wait, Wake, acquire,
    slow_poll,
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
/// Messages go to the channel `redlatch_barrier:{name}`.
/// [Operations](crate::guide::operations#access-rights) lists the rights that a user needs.
#[derive(Clone)]
pub struct CyclicBarrier {
    site: Arc<BarrierSite>,
    session: Session,
    leases: Arc<PartyLeases>,
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

    /// Removes the barrier. Waiting parties get an error of kind [`Broken`](ErrorKind::Broken).
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
        self.state().map(|state| state.is_broken)
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
        self.state().map(|state| state.parties.unwrap_or(0))
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
        Self { leases: PartyLeases::new(&self.site, timeout), ..self.clone() }
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
        let leases = PartyLeases::new(&site, site.core.config.watchdog_timeout);
        Self { site, session: session.clone(), leases, action: None }
    }

    fn check(&self, wait: &Wait<'_>) -> Result<(), Error> {
        let name = &self.site.name;
        if name.is_empty() {
            return Err(Error::nameless("a barrier"));
        }
        check_watchdog("with_watchdog", self.leases.lease).map_err(|error| error.of(name))?;
        wait.check(self.session.core(), name)
    }

    fn state(&self) -> Result<BarrierState, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.look(&[]).map_err(|error| error.now("nothing was changed"))
    }

    /// Sends a request that is applied once.
    fn once<T>(
        &self,
        send: impl FnOnce(BarrierScripts<'_>, RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        self.check(&Wait::FOREVER)?;
        let outcome = self.site.numbered(send);
        outcome.map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Arrives and waits.
    fn pass(&self, wait: Wait<'_>) -> Result<Option<u32>, Error> {
        if let Err(error) = self.check(&wait) {
            if error.kind() == ErrorKind::Cancelled {
                let owner = self.site.core.id.next_owner();
                let left = self.site.arrive(&owner, self.leases.lease, Comes::Leaves);
                left.map_err(|trouble| trouble.into_error_of(&self.site.name))?;
            }
            return Err(error);
        }
        let thread = Thread::current();
        loop {
            let owner = self.site.core.id.next_owner();
            let party = Party { barrier: self, owner, place: Cell::new(None) };
            let need = (0, None);
            let outcome = acquire(&party, &Claim { thread: &thread, need, wait });
            match (outcome, party.place.get()) {
                // The generation that was complete has ended: the thread arrives in the next one.
                (Ok(Some(_)), Some(Place { index: None, .. })) => {}
                (Ok(Some(Generation::Broken)), _) => return Err(self.broken()),
                (Ok(Some(_)), Some(Place { index: Some(0), generation })) => {
                    return self.act(generation, &party.owner);
                }
                (Ok(Some(_)), Some(Place { index, .. })) => return Ok(index),
                (outcome, Some(Place { index, generation })) => {
                    // It leaves early. Neither a limit nor a cancel ends this request.
                    let _unlimited = Limit::set(None);
                    let left = match index {
                        Some(_) => self.site.finish(generation, &party.owner, false),
                        None => {
                            let left =
                                self.site.arrive(&party.owner, self.leases.lease, Comes::Leaves);
                            left.map(|_| Generation::Broken)
                        }
                    };
                    return match (left, outcome) {
                        (Ok(Generation::Tripped), _) => Ok(index),
                        (_, Err(error)) if error.kind() == ErrorKind::Cancelled => Err(error),
                        // The end of the wait has ended a request.
                        (Ok(_), _) if wait.is_over() => Ok(None),
                        (Ok(_), outcome) => outcome.map(|_| None),
                        // `None` would say that no other party passes, and the first error does not
                        // say that they may.
                        (Err(trouble), _) => Err(self.not_left(trouble)),
                    };
                }
                (outcome, None) => return outcome.map(|_| None),
            }
        }
    }

    /// For the last party: runs the action, and then trips the barrier.
    fn act(&self, generation: i64, party: &Owner) -> Result<Option<u32>, Error> {
        let Some(action) = &self.action else { return Ok(Some(0)) };
        let ran = catch_unwind(AssertUnwindSafe(|| action()));
        let _unlimited = Limit::set(None);
        let finished = self.site.finish(generation, party, ran.is_ok());
        ran.unwrap_or_else(|panic| resume_unwind(panic));
        match finished.map_err(|trouble| trouble.into_error_of(&self.site.name))? {
            Generation::Tripped => {
                self.site.has_ended(generation, Generation::Tripped);
                Ok(Some(0))
            }
            _ => Err(self.broken()),
        }
    }

    fn not_left(&self, trouble: Trouble) -> Error {
        let state = "it waits no more, and it is not known whether the others pass; if not, the \
                     barrier breaks when the lease of this party ends";
        // Also if the request was never sent: its arrival counts.
        trouble.into_error().of(&self.site.name).now(state).unknown(true)
    }

    fn broken(&self) -> Error {
        let message = "the barrier is broken: a party left early, died, or failed, or it was reset \
                       or deleted; nobody passed, reset it to begin anew";
        self.site.error(ErrorKind::Broken, message)
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
    place: Cell<Option<Place>>,
}

impl Party<'_> {
    /// `None`: the barrier is broken.
    fn arrive(&self) -> Result<Option<Place>, Error> {
        let CyclicBarrier { site, leases, action, .. } = self.barrier;
        // An arrival whose outcome is not known would keep the others until its lease ends.
        let _unlimited = Limit::set(None);
        let comes = if action.is_some() { Comes::Acts } else { Comes::Waits };
        match site.arrive(&self.owner, leases.lease, comes) {
            Ok(Arrival::At(place)) => {
                if place.index.is_some() {
                    leases.keep(self.owner);
                }
                Ok(Some(place))
            }
            Ok(Arrival::Broken) => Ok(None),
            Ok(Arrival::NoBarrier) => {
                let message = "the barrier has no parties: set them first (try_set_parties)";
                Err(site.error(ErrorKind::Config, message))
            }
            Err(trouble @ (Trouble::Refused(_) | Trouble::Unsent(_))) => {
                Err(trouble.into_error().of(&site.name).now("it has not arrived"))
            }
            // A second arrival could be one too many.
            Err(trouble) => {
                let message = "whether it has arrived is not known; if it has, the barrier breaks \
                               when its lease ends";
                let error = site.error(ErrorKind::Redis, message).unknown(true);
                Err(error.caused_by(trouble.into_error()))
            }
        }
    }

    /// The question to the server for this thread.
    fn need(&self, place: Place) -> Need {
        (place.generation, place.index.map(|_| self.owner))
    }
}

impl Drop for Party<'_> {
    fn drop(&mut self) {
        self.barrier.leases.keep_no_more(&self.owner);
    }
}

/// A generation, and a party that has arrived in it.
type Need = (i64, Option<Owner>);

/// One thread of this process looks for all that wait.
impl Synchronizer for Party<'_> {
    type Site = BarrierSite;

    fn site(&self) -> &BarrierSite {
        &self.barrier.site
    }

    fn what(&self, _: &Need) -> (Kind, u32) {
        (Kind::CyclicBarrier, 1)
    }

    fn enter(&self, claim: &Claim<'_, Need>) -> Result<EnterOf<Self>, Error> {
        let arrived = match self.place.get() {
            None => self.arrive()?,
            place => place,
        };
        let Some(place) = arrived else { return Ok(Enter::Granted(Generation::Broken, Way::Free)) };
        self.place.set(Some(place));
        let site = self.site();
        if place.index == Some(0) {
            if self.barrier.action.is_none() {
                site.has_ended(place.generation, Generation::Tripped);
            }
            return Ok(Enter::Granted(Generation::Tripped, Way::Free));
        }
        let mut state = site.state.lock();
        if place.generation < state.present {
            // The leader may have looked before this thread stood in the queue, and waits for a
            // later generation: then it does not look again for this one.
            drop(state);
            let went = site.look(&[self.need(place)])?.went.first().copied();
            // A new master may not know of the end that this process has heard of.
            let ended = went.filter(|went| *went != Generation::Present);
            return Ok(Enter::Granted(ended.unwrap_or(Generation::Broken), Way::Free));
        }
        state.present = place.generation;
        Ok(if !claim.wait.blocks() {
            Enter::NotNow
        } else if state.queue.lead() {
            Enter::Leads(None)
        } else {
            Enter::Queued(state.queue.push(claim.thread, self.need(place)))
        })
    }

    fn request_state(&self, _: &Claim<'_, Need>) {}

    /// By the last message. If it tells of another generation than the leader's, the leader asks.
    fn collect(&self, lead: &mut Lead<()>, _: &Claim<'_, Need>) -> Option<Generation> {
        let (ended, went) = read_message(&lead.listening.public.message())?;
        self.place.get().filter(|place| place.generation == ended)?;
        self.site().has_ended(ended, went);
        Some(went)
    }

    fn ask(
        &self,
        Lead { listening, .. }: &mut Lead<()>,
        claim: &Claim<'_, Need>,
    ) -> Result<Try<Generation>, Error> {
        let Some(place) = self.place.get() else { return Ok(Try::Granted(Generation::Broken)) };
        let site = self.site();
        let arrivals = site.arrivals();
        let own = std::iter::once(self.need(place));
        let needs: Vec<_> = site.with_queue(|queue| own.chain(queue.needs().copied()).collect());
        let looked = site.look(&needs).inspect_err(|error| site.fail_before(arrivals, error))?;
        for ((generation, _), went) in needs.iter().zip(&looked.went) {
            site.has_ended(*generation, *went);
        }
        if let Some(went @ (Generation::Tripped | Generation::Broken)) = looked.went.first() {
            return Ok(Try::Granted(*went));
        }
        if !claim.wait.is_over() {
            listening.public.listen(&site.core, &site.channel);
        }
        // No message tells of the end of a lease.
        let end = looked.left.map_or(Duration::MAX, |left| left.saturating_add(AFTER_THE_END));
        Ok(Try::Busy(slow_poll().min(end)))
    }
}

const AFTER_THE_END: Duration = Duration::from_millis(2);

/// One barrier in one client.
pub(crate) struct BarrierSite {
    core: Arc<Core>,
    name: Arc<str>,
    route: Route,
    keys: BarrierKeys,
    channel: Arc<str>,
    requests: Arc<Requests>,
    state: Mutex<SiteState>,
}

struct SiteState {
    queue: Queue<Need, Generation, ()>,
    /// The last generation that this process has met.
    present: i64,
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
                state: Mutex::new(SiteState { queue: Queue::new(), present: 0 }),
                core: Arc::clone(core),
                name,
            }
        })
    }

    fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, message.to_owned()).of(&self.name)
    }

    fn look(&self, needs: &[Need]) -> Result<BarrierState, Error> {
        self.scripts().look(needs).map_err(|trouble| trouble.into_error().of(&self.name))
    }

    fn scripts(&self) -> BarrierScripts<'_> {
        BarrierScripts { route: &self.route, keys: &self.keys, requests: &self.requests }
    }

    /// Tells the threads that wait for this generation, if it has ended.
    fn has_ended(&self, generation: i64, went: Generation) {
        let mut told = Vec::new();
        let mut state = self.state.lock();
        let present = generation + i64::from(went == Generation::Tripped);
        state.present = state.present.max(present);
        if went != Generation::Present {
            for waiter in state.queue.first_ones(usize::MAX) {
                if waiter.need().0 == generation {
                    told.extend(state.queue.tell(&waiter, Signal::Granted(went)).ok());
                }
            }
        }
        drop(state);
        told.into_iter().for_each(Wake::now);
    }

    fn numbered<T>(
        &self,
        send: impl FnOnce(BarrierScripts<'_>, RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.requests.with_one(|| self.core.id.next_number(), |id| send(self.scripts(), id))
    }

    fn arrive(&self, party: &Owner, lease: Duration, comes: Comes) -> Result<Arrival, Trouble> {
        let least = self.state.lock().present;
        self.numbered(|scripts, id| scripts.arrive(id, party, lease, comes, least))
    }

    /// Ends a generation. If the server does not answer, the client tries again for a while; after
    /// that the party's lease ends.
    fn finish(&self, generation: i64, party: &Owner, trips: bool) -> Result<Generation, Trouble> {
        let finished = self.scripts().finish(generation, party, trips);
        if finished.is_err() && !trips {
            let command = self.scripts().finish_command(generation, party, false);
            self.core.watchdog.clean_up(Cleanup::unclaimed(&self.name, command));
        }
        finished
    }
}

/// The parties of a handle and its clones, whose leases the watchdog renews with one command.
struct PartyLeases {
    site: Arc<BarrierSite>,
    lease: Duration,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    parties: Vec<Owner>,
    /// The renewal is scheduled.
    is_due: bool,
}

/// The part of a lease after which it is renewed, and after which a failed renewal is tried again.
const RENEWED_AFTER: u32 = 3;
const TRIED_AGAIN_AFTER: u32 = 20;

impl PartyLeases {
    fn new(site: &Arc<BarrierSite>, lease: Duration) -> Arc<Self> {
        Arc::new(Self { site: Arc::clone(site), lease, kept: Mutex::default() })
    }

    fn keep(self: &Arc<Self>, party: Owner) {
        let mut kept = self.kept.lock();
        kept.parties.push(party);
        let is_first = !std::mem::replace(&mut kept.is_due, true);
        drop(kept);
        if is_first {
            let (site, keep_alive) = (&self.site, Arc::clone(self) as Arc<dyn KeepAlive>);
            site.core.watchdog.schedule(&site.name, &keep_alive, self.lease / RENEWED_AFTER);
        }
    }

    fn keep_no_more(&self, party: &Owner) {
        self.kept.lock().parties.retain(|kept| kept.number() != party.number());
    }
}

impl KeepAlive for PartyLeases {
    fn command(&self) -> Option<Command> {
        let mut kept = self.kept.lock();
        kept.is_due = !kept.parties.is_empty();
        let scripts = self.site.scripts();
        kept.is_due.then(|| scripts.keep_alive_command(&kept.parties, self.lease))
    }

    fn done(&self, outcome: Outcome) -> Duration {
        self.lease / if outcome.is_ok() { RENEWED_AFTER } else { TRIED_AGAIN_AFTER }
    }
}

impl fmt::Debug for PartyLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartyLeases({}, {:?})", self.site.name, self.lease)
    }
}

impl Queued for BarrierSite {
    type Need = Need;
    type Grant = Generation;
    type RequestState = ();

    fn whose(&self) -> (&Core, &Arc<str>) {
        (&self.core, &self.name)
    }

    fn with_queue<R>(&self, look: impl FnOnce(&mut Queue<Need, Generation, ()>) -> R) -> R {
        look(&mut self.state.lock().queue)
    }

    fn hand_on(&self, _: Option<Lead<()>>) {
        // The next leader looks at once, for itself too.
        self.promote(None);
    }
}

impl Member for BarrierSite {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn end(self: Arc<Self>) {
        self.nudge();
    }
}

impl Drop for BarrierSite {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
        self.core.requests.forget_last(self.requests.key(), &self.requests);
    }
}
