//! The cyclic barrier.
//!
//! ```text
//! arrive: a party sends a numbered request. The last party runs its action and trips the barrier
//! wait:   the other parties listen, ask the server and sleep. A message says how the generation
//!         ended. Until then each party asks again to renew its lease, and when another party's
//!         lease ends
//! leave:  if a party's wait times out, is cancelled or fails, the party breaks the barrier, if
//!         necessary in the background. If the barrier has already tripped, the party has passed
//! ```
//!
//! - Only the server decides how a generation ends, and it decides once
//!   (`lua/barrier/generations.lua`). So all parties of the generation get the same outcome. A
//!   party need not ask the server about a message: the channel belongs to one database, and no two
//!   barriers of one name use the same generation numbers.
//! - A party's lease is renewed only while its thread waits or runs the action. When a lease has
//!   ended, the next request of any process breaks the barrier.
//! - A party listens before it asks the server, so it cannot miss the end of its generation.
//! - An arrival is a numbered request: in an outage it is sent again, and the server applies it
//!   once.
//! - To take its arrival back, a party sends a second request with the arrival's number. This
//!   request breaks the arrival's generation, and from then on the server refuses copies of the
//!   arrival. If the server does not reply, the client repeats this request in the background. The
//!   client also repeats it before each further numbered request for the barrier: otherwise a copy
//!   of it could come after a reset and break the new generation.
//! - A party never arrives in a generation before the latest generation that its process has seen.

use std::cell::{Cell, OnceCell};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use redlatch_client::sync::atomic::{AtomicI64, Ordering};
use redlatch_client::sync::{Mutex, Thread, clock};
use redlatch_client::{CancelToken, Command, Failure, Outcome, Route, was_cut};

#[cfg(doc)]
use crate::client::Client;
use crate::config::check_watchdog;
use crate::error::{Error, ErrorKind};
use crate::lease::{Cleanup, Debtor, KeepAlive};
use crate::name::Name;
use crate::observe::{Kind, Way};
use crate::runtime::{Core, Member, Session};
use crate::scripts::barrier::{
    ArrivalKind, BarrierPosition, BarrierScripts, BarrierState, GenerationState, MAX_PARTIES,
    forgotten, read_message,
};
use crate::scripts::{BarrierKeys, Owner, RequestId, Requests, Trouble, VALID_FOR, is_transient};
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, Queue, QueueLeadership, QueueSite, Synchronizer, Try, Wait,
    Waited, acquire, repeat_through_outage, slow_poll_or,
};

/// A barrier at which a fixed number of threads wait for each other, again and again. The threads
/// may be in different processes. This type is like `CyclicBarrier` of java.util.concurrent;
/// Redisson has no barrier. [`Client::cyclic_barrier`] returns a `CyclicBarrier`.
///
/// All clones, and all handles of the same name, are the same barrier.
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
/// A *party* is one of the threads that use the barrier, and a *generation* is one use of the
/// barrier by all parties. Either all parties of a generation pass the barrier, or no party passes
/// it. The barrier breaks if a party's wait times out or is cancelled, if a waiting party dies, if
/// the action panics, or if the barrier is [reset](Self::reset) or deleted. When the barrier
/// breaks, every waiting party gets an error of kind [`Broken`](ErrorKind::Broken). Until a reset,
/// every party that arrives later gets an error of this kind, too.
///
/// If the server does not know how a party's generation ended, the party's error has an [unknown
/// outcome](Error::outcome_unknown), because the other parties may have passed. There are two
/// reasons: a failover has lost the outcome, or 256 generations broke before the party asked.
///
/// A waiting party has a lease ([`with_watchdog`](Self::with_watchdog), or
/// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout)), which its client renews. If a
/// waiting party is killed, the barrier breaks when the party's lease ends. If a party dies before
/// it arrives, the other parties continue to wait, so give each wait a time limit. If a failover
/// loses an arrival, the barrier breaks. If a failover loses the end of a generation, the barrier
/// breaks when the leases of that generation's parties end.
///
/// # In Redis
///
/// The barrier is a hash `redlatch_barrier:{name}`. While parties wait, there is also a sorted set
/// `redlatch_parties:{name}`. The barrier's keys have no time to live: they stay until
/// [`delete`](Self::delete), even if all parties were killed. For five minutes after a delete, the
/// hash still tells late parties how their generation ended. Messages go to the channel
/// `redlatch_barrier:{name}`. [Operations](crate::guide::operations#access-rights) lists the rights
/// that a user needs.
#[derive(Clone)]
pub struct CyclicBarrier {
    site: Arc<BarrierSite>,
    session: Session,
    lease: Duration,
    action: Option<Arc<dyn Fn() + Send + Sync>>,
}

// The compiler does not derive these traits, because `action` may not implement them. But no party
// continues as if the action had run: a panic of the action breaks the barrier for all parties.
impl UnwindSafe for CyclicBarrier {}
impl RefUnwindSafe for CyclicBarrier {}

impl CyclicBarrier {
    /// Sets the number of parties if none is set. If a number is set already, changes nothing and
    /// returns `false`.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the number is not from 1 to 999,999. [Server
    /// trouble](ErrorKind#server-trouble) if the server refuses the request or does not answer; the
    /// message says whether the number may have been set. The other errors are those of
    /// [`parties`](Self::parties).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: it had parties before, and none were set"]
    pub fn try_set_parties(&self, parties: u32) -> Result<bool, Error> {
        if !(1..=MAX_PARTIES).contains(&parties) {
            let message = format!("{parties} parties are not usable; it may be 1 to {MAX_PARTIES}");
            return Err(self.site.error(ErrorKind::Config, &message));
        }
        self.once(|scripts, id| scripts.try_set_parties(id, parties))
    }

    /// Arrives, and blocks until all parties have arrived. Returns the index of the arrival: the
    /// number of parties minus one for the first party, and zero for the last party.
    ///
    /// # Errors
    ///
    /// - [`Broken`](ErrorKind::Broken) if the barrier is broken, or breaks during the wait.
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, or does not
    ///   answer for [`failover_timeout`](crate::ClientBuilder::failover_timeout). The call then
    ///   sends a request that breaks the barrier. If the server does not answer this request, the
    ///   client repeats it in the background for up to four minutes. (If the server has confirmed
    ///   the arrival, the client repeats the request only until the party's lease ends, because the
    ///   barrier then breaks by itself.) The server may also refuse this request, for example
    ///   because the Redis user lacks a right. If the party has not arrived, the barrier then does
    ///   not break, and the message says so.
    /// - [`Config`](ErrorKind::Config) if no number of parties is set.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`], which also ends waits.
    /// - The other errors of [`parties`](Self::parties).
    ///
    /// All methods that wait can return these errors.
    ///
    /// # Blocking
    ///
    /// Blocks until all parties have arrived, or an error ends the wait. The last party needs one
    /// round trip, or two if it has an action. A message then wakes the other parties.
    pub fn wait(&self) -> Result<u32, Error> {
        self.pass(Wait::FOREVER)?.ok_or_else(|| Error::shut_down(&self.site.name))
    }

    /// Arrives, and blocks until all parties have arrived. If `wait` ends first, breaks the barrier
    /// and returns [`TimedOut`](Waited::TimedOut). If the last party of the previous generation is
    /// still running its action when `wait` ends, this thread's generation has not begun. In that
    /// case this generation breaks as soon as it begins.
    ///
    /// # Errors
    ///
    /// The errors of [`wait`](Self::wait). [Server trouble](ErrorKind#server-trouble) if `wait` is
    /// over and the server does not confirm that the barrier is broken. If the party may have
    /// arrived, the error has an [unknown outcome](Error::outcome_unknown): the other parties may
    /// pass.
    ///
    /// # Blocking
    ///
    /// Blocks for at most `wait`, and for up to 50 ms more (or three round trips to a distant
    /// server) to break the barrier. The first request may take 50 ms even if `wait` is shorter.
    pub fn wait_for(&self, wait: Duration) -> Result<Waited<u32>, Error> {
        self.pass(wait.into()).map(Waited::of)
    }

    /// Arrives, and blocks until all parties have arrived. If `token` is cancelled before or during
    /// the call, breaks the barrier and returns an error.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if `token` was cancelled: the call breaks the barrier,
    /// as after [server trouble](ErrorKind#server-trouble). If the party may have arrived and the
    /// server does not confirm that the barrier is broken, the error has an [unknown
    /// outcome](Error::outcome_unknown): the other parties may pass. The other errors are those of
    /// [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Blocks until all parties have arrived, or an error or the cancellation ends the wait. After
    /// a cancellation, the call blocks for up to 50 ms more to break the barrier, as in
    /// [`wait_for`](Self::wait_for).
    pub fn wait_cancellable(&self, token: &CancelToken) -> Result<u32, Error> {
        self.pass(token.into())?.ok_or_else(|| Error::shut_down(&self.site.name))
    }

    /// Arrives, and blocks until all parties have arrived. At the end of `wait`, breaks the barrier
    /// and returns [`TimedOut`](Waited::TimedOut). All other methods that wait are short forms of
    /// this method.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled: the barrier
    /// breaks, as in [`wait_cancellable`](Self::wait_cancellable). The other errors are those of
    /// [`wait_for`](Self::wait_for).
    ///
    /// # Blocking
    ///
    /// Blocks for as long as `wait` allows: see [`wait_for`](Self::wait_for) and
    /// [`wait_cancellable`](Self::wait_cancellable).
    pub fn wait_within<'a>(&self, wait: impl Into<Wait<'a>>) -> Result<Waited<u32>, Error> {
        self.pass(wait.into()).map(Waited::of)
    }

    /// Makes the barrier usable again. Waiting parties get an error of kind
    /// [`Broken`](ErrorKind::Broken). Returns `false` if no number of parties is set.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses the request or does not
    /// answer; the message says whether the barrier may have been reset. The other errors are those
    /// of [`parties`](Self::parties).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no barrier"]
    pub fn reset(&self) -> Result<bool, Error> {
        self.once(|scripts, id| scripts.reset(id))
    }

    /// Removes the barrier. Waiting parties get an error of kind [`Broken`](ErrorKind::Broken),
    /// unless their generation has tripped. Returns `false` if there was no barrier.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses the request or does not
    /// answer; the message says whether the barrier may have been removed. The other errors are
    /// those of [`parties`](Self::parties).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn delete(&self) -> Result<bool, Error> {
        self.once(|scripts, id| scripts.delete(id))
    }

    /// Returns whether the barrier is broken, or has no number of parties.
    ///
    /// # Errors
    ///
    /// The errors of [`parties`](Self::parties).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn is_broken(&self) -> Result<bool, Error> {
        self.state().map(|state| state.generation_state != GenerationState::Present)
    }

    /// Returns the number of parties, or zero if none is set.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer, or if a
    /// key holds other data. [`Protocol`](ErrorKind::Protocol) if its reply is malformed.
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
    /// # Errors
    ///
    /// The errors of [`parties`](Self::parties).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn waiting(&self) -> Result<u32, Error> {
        self.state().map(|state| state.waiting)
    }

    /// Returns a handle of this barrier with another lease for its parties, from 10 ms to a year.
    /// If a waiting party is killed, the barrier breaks when the party's lease ends.
    #[must_use]
    pub fn with_watchdog(&self, timeout: Duration) -> Self {
        self.site.core.note_watched_lease(timeout);
        Self { lease: timeout, ..self.clone() }
    }

    /// Returns a handle of this barrier with an action. The party that arrives last runs the action
    /// of its handle before any party returns, so give all parties the same action. If the action
    /// panics, the barrier breaks, and the panic continues in the last party.
    #[must_use]
    pub fn with_action(&self, action: impl Fn() + Send + Sync + 'static) -> Self {
        Self { action: Some(Arc::new(action)), ..self.clone() }
    }

    /// Returns the barrier's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.site.name.given()
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
        self.site.scripts().state(None).map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Sends a request that the server applies once, even if it receives two copies.
    fn once<T>(
        &self,
        send: impl FnOnce(BarrierScripts<'_>, RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        let settled = site.take_back_all();
        let outcome = settled
            .and_then(|()| site.requests.with_one(&site.core.id, |id| send(site.scripts(), id)));
        outcome.map_err(|trouble| trouble.into_error_of(&site.name))
    }

    /// Arrives and waits. Returns `None` if the wait ended before the barrier tripped: then the
    /// barrier is broken.
    fn pass(&self, wait: Wait<'_>) -> Result<Option<u32>, Error> {
        let core = self.session.core();
        let new_party = || Party {
            barrier: self,
            owner: core.id.next_owner(),
            position: Cell::new(None),
            arrival: Cell::new(None),
            renewal: OnceCell::new(),
        };
        if let Err(error) = self.check(&wait) {
            if error.kind() == ErrorKind::Cancelled {
                // If the request fails, the client repeats it in the background.
                let _position = new_party().leave(&wait);
            }
            return Err(error);
        }
        let thread = Thread::current();
        let mut has_waited = false;
        loop {
            let party = new_party();
            let claim = Claim { thread: &thread, need: (), wait };
            let outcome = acquire(&party, (&self.site.core, &self.site.name), &claim);
            let position = match (outcome, party.position.get()) {
                // When the thread came, the action of a complete generation was running. The thread
                // has waited for the end of that action, and now arrives in the next generation.
                (Ok(Some(())), Some(BarrierPosition { index: None, .. })) => {
                    has_waited = true;
                    continue;
                }
                (Ok(Some(())), Some(position)) => {
                    if position.index == Some(0) {
                        party.run_action(position, &wait)?;
                    }
                    position
                }
                (Err(error), _) if error.kind() == ErrorKind::Broken => return Err(error),
                // The barrier was deleted during the wait, or was never made.
                (Err(error), None) if error.kind() == ErrorKind::Config => {
                    return Err(if has_waited { self.site.broken() } else { error });
                }
                // The wait ended during the arrival's request, so no time is left for another
                // request.
                (Err(error), _) if party.arrival.get().is_some_and(|it| it.cut_short) => {
                    return Err(party.give_up_later(error, false));
                }
                (outcome, _) => match (party.leave(&wait), outcome) {
                    (Ok(Some(position)), _) => position,
                    (leave_outcome, Err(error)) if has_precedence(&error) => {
                        let may_pass = leave_outcome.is_err_and(|it| it.outcome_unknown());
                        return Err(error.unknown(may_pass));
                    }
                    // `leave` failed, so the other parties may pass. The caller must learn this, so
                    // the call does not return `None` or the error of the wait.
                    (Err(error), _) => return Err(error),
                    // The wait ended during a request.
                    _ if wait.is_over() => return Ok(None),
                    (_, Err(error)) => {
                        return Err(error.unknown(false).now("the barrier is broken"));
                    }
                    (_, Ok(_)) => return Ok(None),
                },
            };
            self.site.latest_generation.fetch_max(position.generation + 1, Ordering::Relaxed);
            return Ok(position.index);
        }
    }
}

/// Whether this error has precedence over an error of `Party::leave`.
fn has_precedence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::ShutDown)
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
    /// The party's position, once the party has arrived.
    position: Cell<Option<BarrierPosition>>,
    /// The request for the arrival, while its outcome is unknown.
    arrival: Cell<Option<Arrival>>,
    renewal: OnceCell<Arc<dyn KeepAlive>>,
}

/// A numbered arrival, which may be sent again or given up.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    id: RequestId,
    /// Whether the server may have received the request.
    is_sent: bool,
    /// Whether the wait ended during the request.
    cut_short: bool,
}

impl Party<'_> {
    /// Runs the action of the last party, and then trips the barrier.
    fn run_action(&self, position: BarrierPosition, wait: &Wait<'_>) -> Result<(), Error> {
        let Some(action) = &self.barrier.action else { return Ok(()) };
        let site = self.site();
        self.start_renewals(position);
        let ran = catch_unwind(AssertUnwindSafe(|| action()));
        let may_have_tripped = Cell::new(false);
        // If the action has forked, the child process is not a party.
        Error::if_forked(&site.name)?;
        let finished = {
            let _limited = wait.limits_last(&site.core);
            let trips = || {
                self.finish(position.generation, true).inspect_err(|error| {
                    may_have_tripped.set(may_have_tripped.get() || error.outcome_unknown());
                })
            };
            match ran {
                Ok(()) => repeat_through_outage(&site.core, &site.name, wait, trips),
                Err(_) => self.finish(position.generation, false),
            }
        };
        if finished.is_err() {
            self.break_later(position.generation);
        }
        ran.unwrap_or_else(|panic| resume_unwind(panic));
        // An earlier request may have tripped the barrier, even if the last error is a
        // cancellation.
        match finished.map_err(|error| error.unknown(may_have_tripped.get()))? {
            GenerationState::Tripped => Ok(()),
            _ => Err(site.broken()),
        }
    }

    fn finish(&self, generation: i64, trips: bool) -> Result<GenerationState, Error> {
        let site = self.site();
        let finished = site.scripts().finish(generation, &self.owner, trips);
        match finished.map_err(|trouble| trouble.into_error_of(&site.name))? {
            GenerationState::Forgotten => Err(forgotten().of(&site.name)),
            state => Ok(state),
        }
    }

    /// Breaks the generation in the background, because the server has not answered. The client
    /// repeats the request until the party's lease has ended. After that, the generation breaks
    /// without a request.
    fn break_later(&self, generation: i64) {
        let CyclicBarrier { site, lease, .. } = self.barrier;
        let command = site.scripts().finish_command(generation, &self.owner, false);
        site.core.watchdog.clean_up(Cleanup::left_over(&site.name, command, *lease));
    }

    /// Leaves early, and breaks the party's generation if it has not ended. If the party has not
    /// arrived, breaks the generation in which the party would arrive now. Returns the party's
    /// position if the party has passed the barrier. The request has a short time limit. If the
    /// server does not answer within it, the client breaks the barrier in the background.
    fn leave(&self, wait: &Wait<'_>) -> Result<Option<BarrierPosition>, Error> {
        let site = self.site();
        let _limited = wait.limits_last(&site.core);
        let Some(position @ BarrierPosition { generation, index: Some(_) }) = self.position.get()
        else {
            return self.give_up();
        };
        let finished = self.finish(generation, false);
        if matches!(&finished, Err(error) if error.kind() != ErrorKind::Broken) {
            self.break_later(generation);
        }
        let generation_state = finished.map_err(|error| {
            if error.kind() == ErrorKind::Broken {
                return error;
            }
            let state = "it waits no more, and it is not known whether the others pass; if not, the \
                         barrier breaks when the lease of this party ends, at the latest";
            // The party has arrived, so the outcome is unknown even if this request was not sent.
            error.now(state).unknown(true)
        })?;
        Ok((generation_state == GenerationState::Tripped).then_some(position))
    }

    /// Leaves as [`leave`](Self::leave) does, for a party that does not know whether it has
    /// arrived.
    fn give_up(&self) -> Result<Option<BarrierPosition>, Error> {
        let site = self.site();
        let trouble = match site.take_back(self.leaving_party()) {
            Ok(position) => return Ok(position),
            Err(trouble) => trouble,
        };
        let may_still_arrive = matches!(trouble, Trouble::Unknown(_));
        let error = trouble.into_error().of(&site.name);
        if error.is_transient() {
            return Err(self.give_up_later(error, may_still_arrive));
        }
        if error.kind() == ErrorKind::Broken {
            return Err(error);
        }
        let is_sent = self.arrival().is_sent;
        Err(error.now("the barrier could not be broken").unknown(is_sent))
    }

    /// Gives up as [`give_up`](Self::give_up) does, but in the background. Returns `error`, with
    /// the state of the party added to its text.
    fn give_up_later(&self, error: Error, may_still_arrive: bool) -> Error {
        let leaving = LeavingParty { may_still_arrive, ..self.leaving_party() };
        // The request now belongs to the site.
        self.arrival.take();
        self.barrier.site.take_back_later(leaving);
        let arrived = if leaving.is_sent {
            "whether it has arrived is not known"
        } else {
            "it has not arrived"
        };
        let then =
            "the client breaks the barrier when it reaches the server, for up to four minutes";
        error.now(arrived).now(then).unknown(leaving.is_sent)
    }

    fn leaving_party(&self) -> LeavingParty {
        let Arrival { id, is_sent, .. } = self.arrival();
        let until = clock::now().saturating_add(clock::nanos(VALID_FOR));
        LeavingParty {
            id,
            party: self.owner,
            lease: self.barrier.lease,
            is_sent,
            may_still_arrive: false,
            until,
        }
    }

    fn arrival(&self) -> Arrival {
        let site = self.site();
        let arrival = self.arrival.get().unwrap_or_else(|| {
            let id = site.requests.open(|| site.core.id.next_number());
            Arrival { id, is_sent: false, cut_short: false }
        });
        self.arrival.set(Some(arrival));
        arrival
    }

    fn start_renewals(&self, position: BarrierPosition) {
        let CyclicBarrier { site, lease, .. } = self.barrier;
        let _renewed = self.renewal.get_or_init(|| {
            let command = site.scripts().state_command(Some((position, &self.owner, *lease)));
            let renewal: Arc<dyn KeepAlive> = Arc::new(PartyRenewal { command, lease: *lease });
            site.core.watchdog.schedule(&site.name, &renewal, *lease / RENEWALS_PER_LEASE);
            renewal
        });
    }
}

impl Drop for Party<'_> {
    fn drop(&mut self) {
        if let Some(Arrival { id, .. }) = self.arrival.take() {
            self.site().requests.close(id);
        }
    }
}

/// Each party is a leader: it sends its own requests, and waits for no other thread of its process.
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
        let kind = if action.is_some() { ArrivalKind::RunsAction } else { ArrivalKind::Waits };
        let Arrival { id, is_sent, .. } = self.arrival();
        let arrived = site.take_back_all().and_then(|()| {
            let lowest_generation = site.latest_generation.load(Ordering::Relaxed);
            site.scripts().arrive(id, (&self.owner, *lease), kind, lowest_generation, is_sent)
        });
        let position = arrived.map_err(|trouble| {
            let is_unknown = matches!(trouble, Trouble::Unknown(_) | Trouble::Forgotten(_));
            // All later requests for this arrival are copies with the same number.
            let is_sent = is_sent || is_unknown;
            self.arrival.set(Some(Arrival { id, is_sent, cut_short: was_cut() }));
            trouble.into_error().of(&site.name).unknown(is_sent)
        })?;
        let Some(position) = position else { return Err(site.broken()) };
        self.arrival.take();
        site.requests.close(id);
        self.position.set(Some(position));
        site.latest_generation.fetch_max(position.generation, Ordering::Relaxed);
        Ok(match position.index {
            Some(0) => Enter::Granted((), Way::Free),
            _ if claim.wait.blocks() => Enter::Leads(None, None),
            _ => Enter::NotNow,
        })
    }

    fn request_state(&self, _: &Claim<'_, ()>, _: &mut Option<QueueLeadership>) {}

    /// Reads the channel's last message. If this message is not about the party's generation, asks
    /// the server.
    fn ask(&self, lead: &mut Lead<()>, _: &Claim<'_, ()>) -> Result<Try<()>, Error> {
        let (site, lease) = (self.site(), self.barrier.lease);
        let position = self.position.get().ok_or_else(|| site.broken())?;
        if lease / RENEWALS_PER_LEASE <= site.core.config.connection.response_timeout {
            self.start_renewals(position);
        }
        let channel = &mut lead.listening.public;
        channel.listen(&site.core, &site.channel);
        // From here on, only later messages make the party ask again.
        channel.catch_up();
        let (state, until_lease_end) = match read_message(&channel.message()) {
            Some((generation, state)) if generation == position.generation => (state, None),
            _ => {
                let state = site.scripts().state(Some((position, &self.owner, lease)));
                let state = state.map_err(|trouble| trouble.into_error().of(&site.name))?;
                if state.generation_state != GenerationState::Present {
                    // A message should have announced the end of the generation.
                    site.core.pubsub.suspect(&site.keys.barrier);
                }
                (state.generation_state, state.until_lease_end)
            }
        };
        match state {
            GenerationState::Present => {
                Ok(Try::Busy(slow_poll_or(until_lease_end).min(lease / RENEWALS_PER_LEASE)))
            }
            // A thread that has not arrived gets no error here, because it will now try to arrive.
            GenerationState::Broken if position.index.is_some() => Err(site.broken()),
            GenerationState::Forgotten if position.index.is_some() => {
                Err(forgotten().of(&site.name))
            }
            _ => Ok(Try::Granted(())),
        }
    }
}

/// The number of renewals during a lease.
const RENEWALS_PER_LEASE: u32 = 3;

/// After a failed renewal, the next attempt follows after this fraction of the lease.
const RETRIES_PER_LEASE: u32 = 20;

/// Renews the lease of a party until this value is dropped. A renewal is needed while the party's
/// thread runs the action, or if a reply may take longer than the lease.
struct PartyRenewal {
    command: Command,
    lease: Duration,
}

impl KeepAlive for PartyRenewal {
    fn command(&self) -> Option<Command> {
        Some(self.command.clone())
    }

    fn handle_outcome(&self, outcome: Outcome) -> Duration {
        self.lease / if outcome.is_ok() { RENEWALS_PER_LEASE } else { RETRIES_PER_LEASE }
    }
}

/// One barrier in one client.
pub(crate) struct BarrierSite {
    core: Arc<Core>,
    name: Name,
    route: Route,
    keys: BarrierKeys,
    channel: Arc<str>,
    requests: Arc<Requests>,
    /// The number of the latest generation that this process knows. A party never arrives in an
    /// earlier generation.
    latest_generation: AtomicI64,
    left_parties: Mutex<LeftParties>,
    /// Always empty, because no party waits for another thread of its process.
    queue: Mutex<Queue<(), (), ()>>,
}

impl BarrierSite {
    fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.members.of::<Self>().find(&core.key(name), |key| {
            let keys = BarrierKeys::new(&key, core.database());
            Self {
                route: core.route(&key),
                channel: keys.channel.as_str().into(),
                keys,
                requests: core.requests_of(&key),
                latest_generation: AtomicI64::new(0),
                left_parties: Mutex::default(),
                queue: Mutex::new(Queue::new()),
                core: Arc::clone(core),
                name: core.name(key),
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

    /// Takes an arrival back. Returns the party's position if the party has passed.
    fn take_back(&self, leaving: LeavingParty) -> Result<Option<BarrierPosition>, Trouble> {
        let LeavingParty { id, party, lease, is_sent, .. } = leaving;
        let lowest_generation = self.latest_generation.load(Ordering::Relaxed);
        self.scripts().arrive(id, (&party, lease), ArrivalKind::Leaves, lowest_generation, is_sent)
    }

    /// Takes an arrival back in the background. The client repeats the request until the server
    /// answers, or until it is too late.
    fn take_back_later(self: &Arc<Self>, leaving: LeavingParty) {
        let mut left_parties = self.left_parties.lock();
        // If several parties have left before their requests were sent, one of them is enough to
        // break the barrier. The party that left last is kept, because it has the latest deadline.
        let is_stale = |it: &LeavingParty| !leaving.is_sent && !it.is_sent && !it.may_still_arrive;
        let stale = left_parties
            .parties
            .iter()
            .position(is_stale)
            .and_then(|at| left_parties.parties.remove(at));
        left_parties.parties.push_back(leaving);
        let has_cleanup = std::mem::replace(&mut left_parties.has_cleanup, true);
        drop(left_parties);
        stale.inspect(|it| self.requests.close(it.id));
        if !has_cleanup {
            self.core.watchdog.clean_up(Cleanup::debt(&self.name, Arc::clone(self) as _));
        }
    }

    /// Takes back the arrivals of all parties that have left. The caller must do this before each
    /// further numbered request: if a reset came first, taking an arrival back would break the new
    /// generation.
    fn take_back_all(&self) -> Result<(), Trouble> {
        loop {
            let Some(leaving) = self.left_parties.lock().begin_take_back() else { return Ok(()) };
            // If the arrival was not sent, `take_back` may extend the time in which the server
            // accepts the request, so the party's deadline is checked here. (If the arrival was
            // sent, this time does not change, and the server refuses a late request.)
            if !leaving.is_sent && clock::now() >= leaving.until {
                self.remove_leaving(leaving.id);
                continue;
            }
            let trouble = match self.take_back(leaving) {
                Ok(_) => None,
                Err(trouble @ (Trouble::Unknown(_) | Trouble::Unsent(_))) => {
                    Some(trouble.of_query())
                }
                Err(Trouble::Refused(error)) if error.is_transient() => {
                    Some(Trouble::Unsent(error))
                }
                Err(_) => None,
            };
            match trouble {
                // Another thread or the renewer may have received a reply in the meantime.
                Some(trouble) if self.is_leaving(leaving.id) => return Err(trouble),
                Some(_) => {}
                None => self.remove_leaving(leaving.id),
            }
        }
    }

    fn is_leaving(&self, id: RequestId) -> bool {
        self.left_parties.lock().parties.iter().any(|it| it.id == id)
    }

    /// Extends the validity of a leaving party's request, which came too late because the client
    /// did not know the server's clock. The server has applied no copy with the old validity, and
    /// never will. Returns `false` if the party has no time left.
    fn prolong(&self, id: RequestId) -> bool {
        let now = clock::now();
        let may_prolong = |it: &LeavingParty| it.id == id && !it.is_sent && now < it.until;
        let may_prolong = self.left_parties.lock().parties.iter().any(may_prolong);
        if may_prolong {
            self.requests.prolong(id);
        }
        may_prolong
    }

    fn remove_leaving(&self, id: RequestId) {
        self.left_parties.lock().parties.retain(|it| it.id != id);
        self.requests.close(id);
    }
}

/// The parties that have left, and whose requests the server has not answered.
#[derive(Debug, Default)]
struct LeftParties {
    parties: VecDeque<LeavingParty>,
    /// The party whose request was sent by the cleanup and has no reply yet.
    sending: Option<RequestId>,
    has_cleanup: bool,
}

impl LeftParties {
    /// Returns the first party, and records that its request may reach the server from now on.
    fn begin_take_back(&mut self) -> Option<LeavingParty> {
        let first = self.parties.front_mut()?;
        first.may_still_arrive = true;
        Some(*first)
    }
}

/// A party that left before it knew whether it had arrived.
#[derive(Clone, Copy, Debug)]
struct LeavingParty {
    /// The number of the party's arrival.
    id: RequestId,
    party: Owner,
    lease: Duration,
    /// Whether the request for the arrival was sent.
    is_sent: bool,
    /// Whether this party's request to leave may still reach the server. On arrival, the request
    /// breaks the generation that is present then. So the client may send no reset before the
    /// server has answered a copy of the request.
    may_still_arrive: bool,
    /// The time on [`clock`] until which the party may break the barrier.
    until: u64,
}

/// The debt consists of the parties that have left.
impl Debtor for BarrierSite {
    fn command(&self) -> Option<Command> {
        let mut left_parties = self.left_parties.lock();
        let first = left_parties.begin_take_back();
        // `parties` and `has_cleanup` share a mutex. If a party leaves later, it queues a cleanup.
        left_parties.has_cleanup = first.is_some();
        left_parties.sending = first.map(|it| it.id);
        drop(left_parties);
        let LeavingParty { id, party, lease, .. } = first?;
        let lowest_generation = self.latest_generation.load(Ordering::Relaxed);
        Some(self.scripts().leave_command(id, (&party, lease), lowest_generation))
    }

    fn handle_outcome(&self, outcome: &Outcome, _: bool) {
        let Some(id) = self.left_parties.lock().sending.take() else { return };
        let is_done = match outcome {
            // If the server lacks earlier changes of this client, the renewer repeats them first.
            Ok(reply) => !Requests::is_behind(reply),
            Err(Failure::Refused(cause)) => !is_transient(&cause.error),
            Err(_) => false,
        };
        let is_late = matches!(outcome, Ok(reply) if self.requests.check_late(reply));
        if !is_done || is_late && self.prolong(id) {
            return;
        }
        // If another thread has already received an answer to this request, that thread may have
        // sent its next request. The server then refuses this copy as late.
        let is_late = is_late && self.is_leaving(id);
        self.remove_leaving(id);
        if is_late {
            self.core.watchdog.log(Level::Warn, || {
                let name = &self.name;
                format!(
                    "{name:?}: a party has left, and could not break the barrier in time: reset it"
                )
            });
        }
    }
}

impl QueueSite for BarrierSite {
    type Need = ();
    type Grant = ();
    type RequestState = ();

    fn with_queue<R>(&self, act: impl FnOnce(&mut Queue<(), (), ()>) -> R) -> R {
        act(&mut self.queue.lock())
    }
}

impl Member for BarrierSite {
    fn name(&self) -> &Name {
        &self.name
    }

    /// Each waiting party notices the end of the client by itself.
    fn end(self: Arc<Self>) {}
}

impl Drop for BarrierSite {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
    }
}

#[cfg(all(test, testkit))]
mod tests;
