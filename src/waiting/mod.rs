//! How a thread waits, for a lock or any other synchronizer.
//!
//! ```text
//! enter: granted at once, or queued behind others of this process, or leading?
//! queued: asleep until granted, or leading, or the wait is over
//! leading, repeat:
//!     granted meanwhile?   done
//!     time to ask?         ask; granted? done
//!     else                 sleep until there is news, or that time
//! install the grant; if it is not ours any more, ask anew
//! ```
//!
//! The leader asks at first, when a message came or may have been missed since the last request,
//! and after the time that the last answer named. Subscribe first: Redis does not store messages,
//! so the leader asks again once a channel is confirmed. A wake-up is a hint and promises nothing:
//! only a reply counts, or a message that grants. Every wait ends: the last answer's time, a slow
//! poll, the deadline, a cancel, a reconnect of the subscriber and shutdown each bound every sleep.

mod endurance;
mod listening;
mod long_wait;
#[cfg(all(test, models))]
mod model_tests;
mod queue;
mod wait;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch_client::sync::{Thread, clock, jitter};
use redlatch_client::{was_cut, was_cut_while_answering};

pub(crate) use endurance::Endurance;
pub(crate) use listening::{Listening, await_confirmation};
use long_wait::LongWait;
pub(crate) use queue::{Lead, LeadershipGuard, LocalWaiter, Queue, Queued, Signal, Wake};
use queue::{SignalOf, WaiterOf};

use crate::error::{Error, ErrorKind};
use crate::observer::{Event, Kind, Way};
use crate::runtime::{Core, Count};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
pub use wait::Wait;
pub(crate) use wait::{Claim, doze};

/// The hooks of a synchronizer, in about the order in which [`acquire`] calls them. (A leader calls
/// `has_news` whenever it sleeps: while it pauses, and after an `ask` that got nothing.)
pub(crate) trait Synchronizer {
    /// Where its threads queue.
    type Site: Queued;

    fn site(&self) -> &Self::Site;

    /// What the thread waits for, and how many permits of it.
    fn what(&self, need: &NeedOf<Self>) -> (Kind, u32);

    /// Whether [`enter`](Self::enter) asks the server for a thread that has nothing yet. Otherwise
    /// it asks for a re-entry alone.
    const ASKS_AT_ENTRY: bool = false;

    /// A thread arrives. May ask the server once, if that needs no lead.
    fn enter(&self, claim: &ClaimOf<'_, Self>) -> Result<EnterOf<Self>, Error>;

    /// A thread in the process's queue has woken up.
    fn look(&self) {}

    /// Another thread has granted the caller this. `None`: the grant is over already.
    fn receive(&self, grant: GrantOf<Self>) -> Result<Option<GrantOf<Self>>, Error> {
        Ok(Some(grant))
    }

    /// A new leader's request state, if the leader before left no lead.
    fn request_state(&self, claim: &ClaimOf<'_, Self>) -> RequestStateOf<Self>;

    /// Where a grant comes from that the leader [collects](Self::collect).
    const COLLECTED: Way = Way::HandedOn;

    /// A grant that reached the leader without a request, since it last looked.
    fn collect(&self, lead: &mut LeadOf<Self>, claim: &ClaimOf<'_, Self>) -> Option<GrantOf<Self>>;

    /// Whether the leader can collect a grant, or has nobody left to pause for.
    fn has_news(&self, _request: &RequestStateOf<Self>) -> bool {
        false
    }

    /// How long the leader waits before it asks: it leaves permits to others, or lets others join
    /// its request.
    fn pause(&self, _request: &RequestStateOf<Self>) -> Duration {
        Duration::ZERO
    }

    /// Asks the server, in one request. If the server refuses, the leader listens for a change.
    fn ask(
        &self,
        lead: &mut LeadOf<Self>,
        claim: &ClaimOf<'_, Self>,
    ) -> Result<Try<GrantOf<Self>>, Error>;

    /// Makes the leader's grant the thread's. `None`: the grant is not ours any more.
    fn install(
        &self,
        _leadership: &mut LeadershipGuard<'_, Self::Site>,
        grant: GrantOf<Self>,
        _claim: &ClaimOf<'_, Self>,
    ) -> Result<Option<GrantOf<Self>>, Error> {
        Ok(Some(grant))
    }

    /// The observer was told that the thread has this.
    fn told(&self, _grant: &GrantOf<Self>) {}
}

/// How a thread came in.
pub(crate) enum Enter<N, G, I> {
    /// A thread that has it already, once more.
    Again(G),
    Granted(G, Way),
    /// Other threads wait before this one, or hold the lock, and this one will not wait.
    NotNow,
    Queued(Arc<LocalWaiter<N, G, I>>),
    /// Boxed: a thread that is granted at once moves none of it.
    Leads(Option<Box<Lead<I>>>),
}

/// The server's answer to a request.
#[derive(Debug)]
pub(crate) enum Try<T> {
    Granted(T),
    /// The server lets the thread share another thread's grant.
    Shared(T),
    /// Not now. Another request is worth it after this time, or once there is news.
    Busy(Duration),
}

impl<T> Try<T> {
    pub(crate) fn map<U>(self, to: impl FnOnce(T) -> U) -> Try<U> {
        match self {
            Self::Granted(grant) => Try::Granted(to(grant)),
            Self::Shared(grant) => Try::Shared(to(grant)),
            Self::Busy(sleep) => Try::Busy(sleep),
        }
    }
}

type NeedOf<S> = <<S as Synchronizer>::Site as Queued>::Need;
pub(crate) type GrantOf<S> = <<S as Synchronizer>::Site as Queued>::Grant;
pub(crate) type LeadOf<S> = Lead<RequestStateOf<S>>;
type RequestStateOf<S> = <<S as Synchronizer>::Site as Queued>::RequestState;
pub(crate) type ClaimOf<'a, S> = Claim<'a, NeedOf<S>>;
pub(crate) type EnterOf<S> = Enter<NeedOf<S>, GrantOf<S>, RequestStateOf<S>>;

/// Waits until granted, or until the wait is over (`None`). The wait's end also ends a request that
/// the server has not answered. Then the result is `None` if the server has answered another
/// request of this call, or any request over the same connection within the last second, or the
/// leader behind which the thread stood until its time was over; and the error otherwise: an outage
/// is no "not now".
pub(crate) fn acquire<S: Synchronizer>(
    synchronizer: &S,
    (core, name): (&Core, &Arc<str>),
    claim: &ClaimOf<'_, S>,
) -> Result<Option<GrantOf<S>>, Error> {
    let _limited = claim.wait.limits(core);
    let begun = if core.is_observed() { clock::now() } else { 0 };
    let entered = synchronizer.enter(claim);
    // A re-entry ends here.
    if let Ok(Enter::Again(grant)) = entered {
        return Ok(Some(grant));
    }
    let mut call = Driver {
        synchronizer,
        claim,
        core,
        name,
        begun,
        is_started: false,
        is_answered: false,
        way: Some(Way::Free),
        is_promoted: false,
        endurance: Endurance::default(),
        long_wait: LongWait::of((core, name), synchronizer.what(&claim.need), claim),
    };
    let outcome = call.wait_within(entered);
    call.long_wait.end();
    call.observe(&outcome);
    outcome
}

/// One call that acquires, over all its requests: the loop in which its thread waits.
struct Driver<'a, S: Synchronizer> {
    synchronizer: &'a S,
    claim: &'a ClaimOf<'a, S>,
    core: &'a Core,
    name: &'a Arc<str>,
    /// When it began, on [`clock`], if it is observed.
    begun: u64,
    /// The observer knows that a wait has started, which a re-entry has not.
    is_started: bool,
    /// The server has answered one of the requests.
    is_answered: bool,
    /// The way by which the last grant came. `None`: it is a re-entry.
    way: Option<Way>,
    /// The thread took over the lead of the thread behind which it queued.
    is_promoted: bool,
    endurance: Endurance,
    long_wait: LongWait<'a>,
}

impl<'a, S: Synchronizer> Driver<'a, S> {
    /// Tells the observer, once, that the wait has started. An error if the observer has forked: the
    /// child leaves the queue as it is, since a thread that is not there may have its mutex.
    fn start(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.core.tell(|it| it.wait_started(&self.event(())));
            Error::if_forked(self.name)?;
        }
        Ok(())
    }

    /// Counts the outcome, and tells the observer of it.
    fn observe(&mut self, outcome: &Result<Option<GrantOf<S>>, Error>) {
        let why = match (outcome, self.way) {
            (Ok(Some(grant)), Some(way)) => {
                let (_, permits) = self.synchronizer.what(&self.claim.need);
                self.core.observe(Count::Acquired, permits, |it| it.acquired(&self.event(way)));
                self.synchronizer.told(grant);
                return;
            }
            // A re-entry whose first request failed.
            (Ok(Some(_)), None) => return,
            (Ok(None), _) => None,
            (Err(error), _) => Some(error.kind()),
        };
        let _error = self.start();
        self.core.observe(Count::GaveUp, 1, |it| it.gave_up(&self.event(why)));
    }

    fn event<T>(&self, of: T) -> Event<'a, T> {
        let what = self.synchronizer.what(&self.claim.need);
        Event::of(self.name, what, clock::since(self.begun), of)
    }

    /// As [`acquire`], after the thread's first [`Synchronizer::enter`].
    fn wait_within(
        &mut self,
        entered: Result<EnterOf<S>, Error>,
    ) -> Result<Option<GrantOf<S>>, Error> {
        match self.wait(entered) {
            Err(error) if was_cut() => {
                self.claim.wait.check_cancelled(self.name)?;
                let is_known = self.is_answered || was_cut_while_answering();
                #[cfg(soak_mutants)]
                let is_known = match () {
                    () if mutants::is("an outage that is told as taken") => true,
                    () if mutants::is("a short limit that fails") => false,
                    () => is_known,
                };
                if is_known { Ok(None) } else { Err(error) }
            }
            outcome => outcome,
        }
    }

    /// The wait after the thread's first [`Synchronizer::enter`].
    fn wait(&mut self, entered: Result<EnterOf<S>, Error>) -> Result<Option<GrantOf<S>>, Error> {
        let Self { synchronizer, claim, .. } = *self;
        let mut first = Some(entered);
        loop {
            let entered = match first.take().unwrap_or_else(|| synchronizer.enter(claim)) {
                Ok(entered) => entered,
                Err(error) => {
                    if S::ASKS_AT_ENTRY {
                        self.start()?;
                    }
                    self.go_on(LAST, error)?;
                    continue;
                }
            };
            if !matches!(entered, Enter::Again(_)) {
                self.start()?;
            }
            let lead = match entered {
                Enter::Again(grant) => {
                    self.way = None;
                    return Ok(Some(grant));
                }
                Enter::Granted(grant, way) => {
                    self.way = Some(way);
                    return Ok(Some(grant));
                }
                Enter::NotNow => return Ok(None),
                Enter::Leads(lead) => {
                    self.is_promoted = false;
                    lead
                }
                // Another thread signals it: the one that gave the hold up, or the one that led.
                Enter::Queued(waiter) => match self.await_signal(&waiter)? {
                    Some(Signal::Leadership(lead)) => {
                        self.is_promoted = true;
                        lead
                    }
                    Some(Signal::Granted(grant)) => match synchronizer.receive(grant)? {
                        None => continue,
                        granted => {
                            self.way = Some(Way::Passed);
                            return Ok(granted);
                        }
                    },
                    Some(Signal::Failed(error)) => {
                        self.go_on(LAST, error)?;
                        continue;
                    }
                    None => return Ok(None),
                },
            };
            // The leadership's drop, on every path out of there, hands it on (`Queued::hand_on`):
            // it wakes the first waiter of the process's queue, which then leads. A lock's new
            // leader gets the lead, too; if nobody waits, the entry in Redis's queue is given up.
            // Only `install` may give the leadership up instead.
            let lead = lead.map(|lead| *lead);
            return self.lead_until_granted(LeadershipGuard::new(synchronizer.site(), lead));
        }
    }

    /// Sleeps in the process's queue until signalled, or until the wait is over (`None`).
    fn await_signal(
        &mut self,
        waiter: &Arc<WaiterOf<S::Site>>,
    ) -> Result<Option<SignalOf<S::Site>>, Error> {
        let Self { synchronizer, core, name, .. } = *self;
        let (site, wait) = (synchronizer.site(), &self.claim.wait);
        loop {
            let at_most = self.long_wait.goes_on(waiter.arrival());
            waiter.spin_if_called();
            if let Some(signal) = waiter.take_signal() {
                return Ok(Some(signal));
            }
            // A grant that was decided before the end of the wait wins.
            if wait.is_over() {
                return Ok(site.give_up(waiter));
            }
            if let Err(error) = wait.check(core, name) {
                return match site.give_up(waiter) {
                    None => Err(error),
                    signal => Ok(signal),
                };
            }
            wait.wakeable(waiter.thread(), || {
                // Checked after the registration, since an earlier cancel woke nobody.
                if wait.check(core, name).is_ok() {
                    waiter.thread().sleep_until(wait.sleep_until(slow_poll().min(at_most)));
                }
            });
            synchronizer.look();
        }
    }

    /// Waits on behalf of the process, until a grant stays or the wait is over.
    fn lead_until_granted(
        &mut self,
        mut leadership: LeadershipGuard<'_, S::Site>,
    ) -> Result<Option<GrantOf<S>>, Error> {
        let Self { synchronizer, claim, .. } = *self;
        loop {
            let lead = leadership.lead_or(|| synchronizer.request_state(claim));
            let granted = match self.await_grant(lead) {
                Ok(granted) => granted,
                Err(error) => {
                    self.go_on(0, error)?;
                    continue;
                }
            };
            let Some(grant) = granted else { return Ok(None) };
            // The server may have taken the grant away meanwhile, and only the server knows.
            lead.listening.ask_at = 0;
            if let Some(grant) = synchronizer.install(&mut leadership, grant, claim)? {
                return Ok(Some(grant));
            }
            if claim.wait.is_over() {
                return Ok(None);
            }
        }
    }

    fn await_grant(&mut self, lead: &mut LeadOf<S>) -> Result<Option<GrantOf<S>>, Error> {
        let Self { synchronizer, claim, core, name, .. } = *self;
        let (site, wait) = (synchronizer.site(), &claim.wait);
        let mut answered_at = None;
        self.way = Some(S::COLLECTED);
        loop {
            if let Some(grant) = synchronizer.collect(lead, claim) {
                return Ok(Some(grant));
            }
            let Lead { listening, request_state } = &mut *lead;
            let news = || synchronizer.has_news(request_state);
            // At first; when a message came on one of its channels, or such a channel was
            // confirmed, since the last request; or when `ask_at` has come.
            if listening.is_due() {
                let pause = synchronizer.pause(request_state);
                if !pause.is_zero() {
                    // Deaf to messages: other waiters, which are faster, have heard them.
                    let until = wait.sleep_until(pause);
                    doze(core, name, claim.thread, wait, until, news)?;
                    if let Some(grant) = synchronizer.collect(lead, claim) {
                        return Ok(Some(grant));
                    }
                }
                wait.check(core, name)?;
                lead.listening.catch_up();
                // If the request fails, the next leader asks at once: `catch_up` has used up the
                // news.
                lead.listening.ask_at = 0;
                let asked_at = wait.is_limited().then(Instant::now);
                let tried = synchronizer.ask(lead, claim);
                let way = if let Ok(Try::Shared(_)) = tried { Way::Passed } else { Way::Free };
                match tried {
                    Ok(Try::Granted(grant) | Try::Shared(grant)) => {
                        site.was_answered(Instant::now());
                        self.way = Some(way);
                        return Ok(Some(grant));
                    }
                    Ok(Try::Busy(sleep)) => {
                        self.is_answered = true;
                        answered_at = Some(Instant::now());
                        lead.listening.ask_after(sleep);
                    }
                    // A grant that came before the end of the wait wins.
                    Err(error) if was_cut() => {
                        // Other threads led until the end of its time, not the server kept it
                        // waiting: it knows what the leader before it knew.
                        if self.is_promoted && asked_at.is_some_and(|at| at.elapsed() < TOO_SHORT) {
                            self.is_answered |= site.answers();
                        } else {
                            site.was_not_answered();
                        }
                        return synchronizer.collect(lead, claim).map(Some).ok_or(error);
                    }
                    Err(error) => {
                        site.was_not_answered();
                        return Err(error);
                    }
                }
            } else {
                // Parked until a message, `news` (a grant by message), that time, or the end of
                // the wait.
                let at_most = self.long_wait.goes_on(0);
                let slept = listening.sleep(core, name, claim, at_most, news);
                // No channel was refused, or confirmed too late. If the leader was cancelled, the
                // answer counts for the threads that queued behind it.
                let heard = slept.as_ref().err().is_none_or(|it| it.kind() == ErrorKind::Cancelled);
                if let Some(at) = answered_at.take().filter(|_| heard) {
                    site.was_answered(at);
                }
                slept?;
            }
            // A grant that came before the end of the wait wins.
            if wait.is_over() {
                return Ok(synchronizer.collect(lead, claim));
            }
        }
    }

    /// A request has failed. If the trouble may pass, the wait goes on after a moment, for as long
    /// as the call endures it. (The leader keeps its lead and asks again. The threads that queued
    /// behind it queue again, and do not ask.) Any other trouble ends the wait, with its error.
    fn go_on(&mut self, arrival: u64, error: Error) -> Result<(), Error> {
        let Self { core, name, claim, .. } = *self;
        let wait = &claim.wait;
        // A request that the call's own limit ended says nothing of the server.
        if !wait.blocks() || was_cut() {
            return Err(error);
        }
        // The leader at that time asked for all threads.
        if let Some(at) = self.synchronizer.site().last_answer() {
            self.endurance.answered(at);
        }
        let Some(pause) = self.endurance.failed(&error, core.config.failover_timeout) else {
            return Err(error);
        };
        // The pause is short: a warning that is due in it comes after the next one.
        self.long_wait.goes_on(arrival);
        doze(core, name, claim.thread, wait, wait.sleep_until(pause), || false)?;
        if wait.is_over() { Err(error) } else { Ok(()) }
    }
}

/// Sends a further request of a call that waits. It outlasts an outage, as the first one does. The
/// caller [limits](Wait::limits) it.
pub(crate) fn outlast<T>(
    core: &Core,
    name: &Arc<str>,
    wait: &Wait<'_>,
    mut ask: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let (thread, mut endurance) = (Thread::current(), Endurance::default());
    loop {
        let error = match ask() {
            Err(error) if wait.blocks() && !was_cut() => error,
            outcome => return outcome,
        };
        let Some(pause) = endurance.failed(&error, core.config.failover_timeout) else {
            return Err(error);
        };
        doze(core, name, &thread, wait, wait.sleep_until(pause), || false)?;
        if wait.is_over() {
            return Err(error);
        }
    }
}

/// A request that had less time says nothing of the server. (The first request of a thread that
/// need not queue has more: see [`Wait::limits`].)
const TOO_SHORT: Duration = Duration::from_millis(10);

/// The arrival of a thread that is about to queue again.
const LAST: u64 = u64::MAX;

/// A sleep's longest time, even if the server names a longer one: a message may be lost. Jittered,
/// so that processes do not poll together.
pub(crate) fn slow_poll() -> Duration {
    SLOW_POLL.mul_f64(0.8 + 0.4 * jitter(clock::now()))
}

const SLOW_POLL: Duration = Duration::from_secs(5);

/// The same for a waiter to whom the end of a lease or a key matters, which comes after `left`: no
/// message tells of it.
pub(crate) fn slow_poll_or(left: Option<Duration>) -> Duration {
    let end = left.map_or(Duration::MAX, |left| left.saturating_add(AFTER_THE_END));
    slow_poll().min(end)
}

/// A key is gone a millisecond after its end.
const AFTER_THE_END: Duration = Duration::from_millis(2);
