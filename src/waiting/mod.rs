//! The wait of a thread for a lock or any other synchronizer.
//!
//! ```text
//! enter: granted at once, or queued behind others of this process, or leading?
//! queued: asleep until granted, or leading, or the wait is over
//! leading, repeat:
//!     granted meanwhile?   done
//!     time to ask?         ask; granted? done
//!     else                 sleep until a message comes, or that time
//! admit the grant; if this process has lost it, ask anew
//! ```
//!
//! The leader sends a request as soon as it begins to lead, unless it got the lead of a leader
//! whose last answer still applies. It sends the next request at the time that the last answer
//! named, or when a message has come on the public channel. Redis does not store messages, so the
//! leader also sends a request after the server has confirmed a new channel. A grant message comes
//! on the client's own channel. It wakes the leader, which collects the grant without a request. A
//! wake-up is only a hint: only a reply or a grant message gives the leader the lock.
//!
//! Every wait ends, because every sleep ends: at the time that the last answer named, at the
//! deadline, or at the next slow poll, whichever comes first. (A slow poll comes after about 5 s
//! without a message, because a message may be lost: see [`slow_poll`]. A leader then sends a
//! request.) A cancellation, a reconnect of the subscriber or a shutdown ends the sleep earlier.

mod endurance;
mod listening;
mod long_wait;
#[cfg(all(test, models))]
mod model_tests;
mod queue;
mod wait;
mod waited;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch_client::sync::{clock, is_forked};
use redlatch_client::{was_cut, was_cut_while_answering};

pub(crate) use endurance::{Endurance, repeat_through_outage};
pub(crate) use listening::{Listening, await_confirmation};
use long_wait::LongWait;
pub(crate) use queue::{Lead, LocalWaiter, Queue, QueueLeadership, QueueSite, Signal, Wake};
use queue::{SignalOf, WaiterOf};

use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::observe::{Event, Kind, Way};
use crate::runtime::{Core, Count};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
pub use wait::Wait;
pub(crate) use wait::{Claim, Sleeper, slow_poll, slow_poll_or};
pub use waited::Waited;

/// The hooks of a synchronizer, in about the order in which [`acquire`] calls them. (The site has
/// three more hooks: [`QueueSite::collect`], `may_collect` and `transfer_leadership`.)
pub(crate) trait Synchronizer {
    /// The site at which the synchronizer's threads queue.
    type Site: QueueSite;

    fn site(&self) -> &Self::Site;

    /// Returns the kind of synchronizer for which the thread waits, and the number of permits.
    fn what(&self, need: &NeedOf<Self>) -> (Kind, u32);

    /// Whether [`enter`](Self::enter) may send a request for a thread that holds nothing yet. If
    /// this is false, `enter` sends a request only for a thread that takes another level.
    const ASKS_AT_ENTRY: bool = false;

    /// Handles an arriving thread. May send one request, if that request needs no lead.
    fn enter(&self, claim: &ClaimOf<'_, Self>) -> Result<EnterOf<Self>, Error>;

    /// Handles holds that are over. Called when a thread in the process's queue has woken up.
    fn end_expired_holds(&self) {}

    /// Takes a grant from another thread of this process. Returns `None` if the grant has already
    /// ended.
    fn collect_passed(&self, grant: GrantOf<Self>) -> Result<Option<GrantOf<Self>>, Error> {
        Ok(Some(grant))
    }

    /// Returns the request state for a new leader that got no lead from an earlier leader. The
    /// request state may take the leadership over from the leader, and must then transfer it.
    fn request_state(
        &self,
        claim: &ClaimOf<'_, Self>,
        leadership: &mut Option<QueueLeadership>,
    ) -> RequestStateOf<Self>;

    /// Returns how long the leader pauses before its request. During the pause, other processes can
    /// take permits, or other threads can join the request.
    fn pause(&self, _request: &RequestStateOf<Self>) -> Duration {
        Duration::ZERO
    }

    /// Sends one request. If the server grants nothing, also listens to the channels on which a
    /// change is announced.
    fn ask(
        &self,
        lead: &mut LeadOf<Self>,
        claim: &ClaimOf<'_, Self>,
    ) -> Result<Try<GrantOf<Self>>, Error>;

    /// Gives the leader's grant to the leader's thread. Returns `None` if the process no longer has
    /// the grant. This call may end the leadership.
    fn admit(
        &self,
        _leadership: &mut LeadershipGuard<'_, Self::Site>,
        grant: GrantOf<Self>,
        _claim: &ClaimOf<'_, Self>,
    ) -> Result<Option<GrantOf<Self>>, Error> {
        Ok(Some(grant))
    }

    /// Called after the observer was told about this grant.
    fn observed(&self, _grant: &GrantOf<Self>) {}
}

pub(crate) enum Enter<N, G, I> {
    /// The thread already holds the lock, and has taken another level.
    Reentered(G),
    Granted(G, Way),
    /// Other threads of this process wait or hold the lock, and this thread does not wait.
    NotNow,
    Queued(Arc<LocalWaiter<N, G, I>>),
    /// The thread sends requests. Without a leadership, it sends requests only for itself. (Each
    /// lead is boxed, because it is large and moved several times, mostly as `None`.)
    Leads(Option<QueueLeadership>, Option<Box<Lead<I>>>),
}

#[derive(Debug)]
pub(crate) enum Try<T> {
    Granted(T),
    /// The server lets the thread share another thread's grant.
    Shared(T),
    /// The server grants nothing. The leader should send another request after this time, or when a
    /// message comes.
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

type NeedOf<S> = <<S as Synchronizer>::Site as QueueSite>::Need;
pub(crate) type GrantOf<S> = <<S as Synchronizer>::Site as QueueSite>::Grant;
pub(crate) type LeadOf<S> = Lead<RequestStateOf<S>>;
type RequestStateOf<S> = <<S as Synchronizer>::Site as QueueSite>::RequestState;
pub(crate) type ClaimOf<'a, S> = Claim<'a, NeedOf<S>>;
pub(crate) type EnterOf<S> = Enter<NeedOf<S>, GrantOf<S>, RequestStateOf<S>>;

/// Waits for a grant. Returns `None` if the wait ended before the grant.
///
/// If the server has not answered a request at the end of the wait, the wait also ends the request.
/// The call then returns `None` if the server seems to be up, and otherwise the request's error.
/// The server seems to be up if one of these requests was answered: another request of this call,
/// any request over the same connection within the last second, or the last request of the leader
/// behind which the thread queued.
#[inline]
pub(crate) fn acquire<S: Synchronizer>(
    synchronizer: &S,
    (core, name): (&Core, &Name),
    claim: &ClaimOf<'_, S>,
) -> Result<Option<GrantOf<S>>, Error> {
    let _limited = claim.wait.limits(core);
    let begun = if core.is_observed() { clock::now() } else { 0 };
    let entered = synchronizer.enter(claim);
    // A thread that takes another level needs no driver.
    if let Ok(Enter::Reentered(grant)) = entered {
        return Ok(Some(grant));
    }
    drive(synchronizer, (core, name), claim, begun, entered)
}

/// Acquires for a thread that takes its first level. (Not inlined, because the driver's values
/// would make the stack frame of each re-entry larger.)
#[inline(never)]
pub(crate) fn drive<S: Synchronizer>(
    synchronizer: &S,
    (core, name): (&Core, &Name),
    claim: &ClaimOf<'_, S>,
    begun: u64,
    entered: Result<EnterOf<S>, Error>,
) -> Result<Option<GrantOf<S>>, Error> {
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
        endurance: Endurance::new([&core.config]),
        long_wait: LongWait::of((core, name), synchronizer.what(&claim.need), claim),
    };
    let outcome = call.run_within_limit(entered);
    call.long_wait.end();
    call.observe(&outcome);
    outcome
}

/// One call that acquires. The call's thread waits in this driver's loop.
struct Driver<'a, S: Synchronizer> {
    synchronizer: &'a S,
    claim: &'a ClaimOf<'a, S>,
    core: &'a Core,
    name: &'a Name,
    /// The time on [`clock`] at which the call began, if there is an observer.
    begun: u64,
    /// Whether the observer was told about this wait. (Taking another level starts no wait.)
    is_started: bool,
    /// Whether the server has answered one of the call's requests.
    is_answered: bool,
    /// How the last grant came. `None` if the thread took another level.
    way: Option<Way>,
    /// Whether the thread queued behind a leader and then got the leadership from that leader.
    is_promoted: bool,
    endurance: Endurance,
    long_wait: LongWait<'a>,
}

impl<'a, S: Synchronizer> Driver<'a, S> {
    /// Reports to the observer, once, that the wait has started. If the observer forks the process,
    /// this method returns an error in the child. The child must not touch the queue, because a
    /// thread of the parent may have had the queue's mutex at the fork.
    fn start(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.core.tell_observers(|it| it.wait_started(&self.event(())));
            Error::if_forked(self.name)?;
        }
        Ok(())
    }

    /// Counts the outcome of the call and reports it to the observer.
    fn observe(&mut self, outcome: &Result<Option<GrantOf<S>>, Error>) {
        let why = match (outcome, self.way) {
            (Ok(Some(grant)), Some(way)) => {
                let (_, permits) = self.synchronizer.what(&self.claim.need);
                self.core.observe(Count::Acquired, permits, |it| it.acquired(&self.event(way)));
                self.synchronizer.observed(grant);
                return;
            }
            // The thread's first request failed, and the thread then took another level.
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

    /// Does the same as [`acquire`], after the thread's first [`Synchronizer::enter`].
    fn run_within_limit(
        &mut self,
        entered: Result<EnterOf<S>, Error>,
    ) -> Result<Option<GrantOf<S>>, Error> {
        match self.run(entered) {
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

    fn run(&mut self, entered: Result<EnterOf<S>, Error>) -> Result<Option<GrantOf<S>>, Error> {
        let Self { synchronizer, claim, .. } = *self;
        let mut first = Some(entered);
        loop {
            let entered = match first.take().unwrap_or_else(|| synchronizer.enter(claim)) {
                Ok(entered) => entered,
                Err(error) => {
                    if S::ASKS_AT_ENTRY {
                        self.start()?;
                    }
                    self.handle_failure(LAST, error)?;
                    continue;
                }
            };
            if !matches!(entered, Enter::Reentered(_)) {
                self.start()?;
            }
            let (leadership, lead) = match entered {
                Enter::Reentered(grant) => {
                    self.way = None;
                    return Ok(Some(grant));
                }
                Enter::Granted(grant, way) => {
                    self.way = Some(way);
                    return Ok(Some(grant));
                }
                Enter::NotNow => return Ok(None),
                Enter::Leads(leadership, lead) => {
                    self.is_promoted = false;
                    (leadership, lead)
                }
                // The thread waits for a signal from the thread that holds the lock, or from the
                // leader.
                Enter::Queued(waiter) => match self.await_signal(&waiter)? {
                    Some(Signal::Leadership(leadership, lead)) => {
                        self.is_promoted = true;
                        (leadership, lead)
                    }
                    Some(Signal::Passed(grant)) => match synchronizer.collect_passed(grant)? {
                        None => continue,
                        granted => {
                            self.way = Some(Way::Passed);
                            return Ok(granted);
                        }
                    },
                    Some(Signal::Failed(error)) => {
                        self.handle_failure(LAST, error)?;
                        continue;
                    }
                    None => return Ok(None),
                },
            };
            // On every path out of `lead_until_granted`, the `LeadershipGuard` is dropped. Its drop
            // gives the leadership to the first waiter of the process's queue
            // (`QueueSite::transfer_leadership`). For a lock, this waiter also gets the lead, if it
            // needs the same mode. If no thread waits, the client gives up its entry in Redis's
            // queue. Only `admit`, and a fair lock's `request_state`, may take the leadership out
            // of the guard earlier.
            let site = synchronizer.site();
            return self.lead_until_granted(LeadershipGuard { site, leadership, lead });
        }
    }

    /// Sleeps in the process's queue until a signal. Returns `None` if the wait ended before a
    /// signal.
    fn await_signal(
        &mut self,
        waiter: &Arc<WaiterOf<S::Site>>,
    ) -> Result<Option<SignalOf<S::Site>>, Error> {
        let Self { synchronizer, core, name, .. } = *self;
        let (site, wait) = (synchronizer.site(), &self.claim.wait);
        loop {
            let at_most = self.long_wait.before_sleep(waiter.arrival());
            waiter.spin_if_called();
            if let Some(signal) = waiter.take_signal() {
                return Ok(Some(signal));
            }
            // If a grant came before the end of the wait, the thread takes it.
            if wait.is_over() {
                return Ok(site.give_up(waiter));
            }
            if let Err(error) = wait.check(core, name) {
                return match site.give_up(waiter) {
                    None => Err(error),
                    signal => Ok(signal),
                };
            }
            // After a slow poll, the thread sends no request. It only ends expired holds.
            // If the sleep ends with an error, the next pass of the loop finds the error.
            let until = wait.end_of_sleep(slow_poll().min(at_most));
            let _error = self.claim.sleeper(core, name).sleep_once(until);
            synchronizer.end_expired_holds();
        }
    }

    /// Waits as the leader, until a grant is admitted or the wait is over.
    fn lead_until_granted(
        &mut self,
        mut leadership: LeadershipGuard<'_, S::Site>,
    ) -> Result<Option<GrantOf<S>>, Error> {
        let Self { synchronizer, claim, .. } = *self;
        loop {
            let lead = leadership.lead_or(|it| synchronizer.request_state(claim, it));
            match self.await_grant(lead) {
                Err(error) => self.handle_failure(0, error)?,
                Ok(None) => return Ok(None),
                Ok(Some(grant)) => {
                    // If `admit` finds that the grant has ended, the leader asks at once.
                    lead.listening.ask_now();
                    let admitted = synchronizer.admit(&mut leadership, grant, claim)?;
                    if admitted.is_some() || claim.wait.is_over() {
                        return Ok(admitted);
                    }
                }
            }
        }
    }

    fn await_grant(&mut self, lead: &mut LeadOf<S>) -> Result<Option<GrantOf<S>>, Error> {
        let Self { synchronizer, claim, core, name, .. } = *self;
        let (site, wait) = (synchronizer.site(), &claim.wait);
        let mut answered_at = None;
        self.way = Some(<S::Site as QueueSite>::COLLECTED);
        loop {
            if let Some(grant) = site.collect(lead, claim) {
                return Ok(Some(grant));
            }
            let Lead { listening, request_state } = &mut *lead;
            let may_collect = || site.may_collect(request_state);
            // The leader sends a request at the time `next_request` of its `Listening`. (With a new
            // lead this is zero, so a leader asks at once. With a lead of another leader it is that
            // leader's time.) It also sends one if, since its last request, a message came on the
            // public channel or the server confirmed one of the leader's channels. (A lock's
            // `collect` takes this news, and may make the time of the next request earlier.)
            if listening.is_due() {
                let pause = synchronizer.pause(request_state);
                if !pause.is_zero() {
                    // Messages do not end the pause. Other processes get the same messages, and may
                    // send their requests first.
                    let until = wait.end_of_sleep(pause);
                    claim.sleeper(core, name).sleep_until(until, may_collect)?;
                    if let Some(grant) = site.collect(lead, claim) {
                        return Ok(Some(grant));
                    }
                }
                wait.check(core, name)?;
                lead.listening.catch_up();
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
                    Err(error) if was_cut() => {
                        // This call got the leadership so late that its request had almost no time.
                        // So it uses the server's answer to the previous leader as a sign that the
                        // server is up.
                        if self.is_promoted && asked_at.is_some_and(|at| at.elapsed() < TOO_SHORT) {
                            self.is_answered |= site.leader_was_answered();
                        } else {
                            site.was_not_answered();
                        }
                        return site.collect(lead, claim).map(Some).ok_or(error);
                    }
                    Err(error) => {
                        site.was_not_answered();
                        return Err(error);
                    }
                }
            } else {
                // The thread sleeps until a message on a channel, a grant message (`may_collect`),
                // the time of its next request or the end of the wait.
                let at_most = self.long_wait.before_sleep(0);
                let slept = listening.sleep(&claim.sleeper(core, name), at_most, may_collect);
                // The last answer shows that the server is up. The exceptions: the server refused a
                // channel, or did not confirm it in time. If the leader was cancelled, the answer
                // is still a sign for the threads that queued behind the leader.
                let is_up = slept.as_ref().err().is_none_or(|it| it.kind() == ErrorKind::Cancelled);
                if let Some(at) = answered_at.take().filter(|_| is_up) {
                    site.was_answered(at);
                }
                slept?;
            }
            // If a grant came before the end of the wait, the thread takes it.
            if wait.is_over() {
                return Ok(site.collect(lead, claim));
            }
        }
    }

    /// Handles a failed request. If the trouble may pass, sleeps for a moment, and the wait
    /// continues for as long as [`Endurance`] allows. (A leader then keeps its lead and sends
    /// another request. A thread that queued behind a leader queues again and sends no request.)
    /// Any other error ends the wait.
    fn handle_failure(&mut self, arrival: u64, error: Error) -> Result<(), Error> {
        let Self { core, name, claim, .. } = *self;
        let wait = &claim.wait;
        // If the call's own limit ended the request, the error does not show that the server is
        // down.
        if !wait.blocks() || was_cut() {
            return Err(error);
        }
        // The last leader's request was for all waiting threads. So if the server has answered it,
        // the server has answered this thread, too.
        if let Some(at) = self.synchronizer.site().last_answer() {
            self.endurance.answered(at);
        }
        let Some(pause) = self.endurance.failed(&error, core.config.failover_timeout) else {
            return Err(error);
        };
        // A warning that becomes due during this short pause may come after the pause.
        self.long_wait.before_sleep(arrival);
        claim.sleeper(core, name).pause(pause)?;
        if wait.is_over() { Err(error) } else { Ok(()) }
    }
}

/// A thread that sends requests, with its leadership and its lead. The drop of this value
/// transfers the leadership.
pub(crate) struct LeadershipGuard<'a, Q: QueueSite> {
    site: &'a Q,
    /// `None` if the thread sends requests only for itself, or no longer leads.
    pub(crate) leadership: Option<QueueLeadership>,
    pub(crate) lead: Option<Box<Lead<Q::RequestState>>>,
}

impl<'a, Q: QueueSite> LeadershipGuard<'a, Q> {
    #[inline]
    pub(crate) fn new(
        site: &'a Q,
        leadership: Option<QueueLeadership>,
        lead: Option<Lead<Q::RequestState>>,
    ) -> Self {
        Self { site, leadership, lead: lead.map(Box::new) }
    }

    pub(crate) fn lead_or(
        &mut self,
        request_state: impl FnOnce(&mut Option<QueueLeadership>) -> Q::RequestState,
    ) -> &mut Lead<Q::RequestState> {
        let leadership = &mut self.leadership;
        self.lead.get_or_insert_with(|| Box::new(Lead::new(request_state(leadership))))
    }

    /// Lets a call enter as the leader, with this leadership and this lead.
    pub(crate) fn into_entered(mut self) -> Enter<Q::Need, Q::Grant, Q::RequestState> {
        Enter::Leads(self.leadership.take(), self.lead.take())
    }

    /// Transfers the leadership, as the drop does on a path that does not call this.
    pub(crate) fn transfer(self) {
        drop(self);
    }
}

impl<Q: QueueSite> Drop for LeadershipGuard<'_, Q> {
    fn drop(&mut self) {
        // In a forked child, the queue's mutex may be locked for ever.
        if let Some(leadership) = self.leadership.take().filter(|_| !is_forked()) {
            self.site.transfer_leadership(leadership, self.lead.take());
        }
    }
}

/// If a request had less time than this, a missing answer does not show that the server is down.
/// (The first request of a thread that does not queue has more time: see [`Wait::limits`].)
const TOO_SHORT: Duration = Duration::from_millis(10);

/// A number greater than all arrival numbers, for a thread that will queue again.
const LAST: u64 = u64::MAX;
