//! How threads wait for permits of both kinds of semaphores: which thread of this process is next,
//! and for how long the process keeps permits.
//!
//! While no thread leads or waits, every thread sends its own request. After a refusal, or if the
//! process must pause, threads queue at the [`gate`](PermitGate), and the first thread becomes the
//! leader. The leader sends one request for itself and the threads behind it, and waits in the
//! driver (`waiting::acquire`) while other processes have the permits.

mod gate;
mod turn;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch_client::sync::{Thread, clock};

use self::gate::{EnterPermits, PermitQueue, PermitRequestState, first_unsatisfied};
use self::turn::NextStep;
use crate::error::Error;
use crate::hold::Terms;
use crate::name::Name;
use crate::observe::{Kind, Way};
use crate::runtime::Core;
use crate::scripts::Trouble;
use crate::waiting::{
    self, Claim, Enter, Lead, QueueLeadership, QueueSite, Synchronizer, Try, Wait, slow_poll,
};

pub(crate) use self::gate::{PermitGate, PermitNeed, Permits};

/// The source of permits: one semaphore in one client, as its waiting threads see it.
pub(crate) trait PermitSource: Sized {
    /// A permit's lease.
    type Lease;
    const KIND: Kind;
    /// Whether permits have leases. A permit whose lease ends becomes free without a message.
    const HAS_LEASES: bool;
    /// The maximum number of permits of one request.
    const MAX_PERMITS: u32;

    fn core(&self) -> &Arc<Core>;

    fn name(&self) -> &Name;

    /// The channel whose messages announce that permits were given back.
    fn channel(&self) -> &Arc<str>;

    fn gate(&self) -> &PermitGate<Self::Lease>;

    /// Sends one request for these needs. The server satisfies the needs in order, each need
    /// completely or not at all. `clients`: the number of processes that share the free permits.
    /// The server satisfies the first need if enough permits are free, and the further needs only
    /// within the share of one process. Without this limit, the process that has just released
    /// permits would take them all again, because it is the first to ask, and the other processes
    /// would starve.
    fn request(
        self: &Arc<Self>,
        needs: &[u32],
        terms: Option<Terms>,
        clients: u64,
    ) -> Result<PermitReply<Self::Lease>, RequestFailed>;

    /// Gives back permits for which no thread of this process waits. Does not wait for the reply. A
    /// failed request is logged and sent again.
    fn give_to_server(self: &Arc<Self>, permits: Permits<Self::Lease>);

    /// Passes permits to waiting threads of the process, and gives the remaining permits back to
    /// the server.
    fn give_back(self: &Arc<Self>, permits: Permits<Self::Lease>) {
        let rest = self.gate().pass(permits);
        if rest.number > 0 {
            self.give_to_server(rest);
        }
    }
}

/// The shortest sleep before the leader's next request, even if a lease ends sooner.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The server's reply to a request for permits.
#[derive(Debug)]
pub(crate) enum PermitReply<L> {
    /// Permits for the first need, and perhaps for further needs.
    Granted(Permits<L>),
    /// Too few permits are free for the first need. The value is the time after which more permits
    /// may be free, even if no message arrives.
    Refused(Option<Duration>),
}

/// A request without a usable reply.
#[derive(Debug)]
pub(crate) struct RequestFailed {
    pub(crate) error: Error,
    /// Whether the failure concerns only this request. If so, other threads' requests may succeed.
    pub(crate) only_this_request: bool,
}

impl RequestFailed {
    /// Returns the failure of a request that reads the semaphore's size, or makes the semaphore.
    pub(crate) fn of_size(trouble: Trouble, name: &Name) -> Self {
        let only_this_request = matches!(trouble, Trouble::Refused(_) | Trouble::Forgotten(_));
        let error = trouble.into_error().of(name).now("no permit was taken");
        Self { error, only_this_request }
    }
}

/// Waits for permits. Returns `None` if the wait ended before the thread got permits.
pub(crate) fn acquire<S: PermitSource>(
    site: &Arc<S>,
    need: PermitNeed,
    wait: Wait<'_>,
) -> Result<Option<Permits<S::Lease>>, Error> {
    let claim = Claim { thread: &Thread::current(), need, wait };
    waiting::acquire(site, (site.core(), site.name()), &claim)
}

impl<S: PermitSource> Synchronizer for Arc<S> {
    type Site = Self;
    const ASKS_AT_ENTRY: bool = true;

    fn site(&self) -> &Self {
        self
    }

    fn what(&self, need: &PermitNeed) -> (Kind, u32) {
        (S::KIND, need.permits)
    }

    /// If no thread waits, sends a request for this thread alone. After a refusal, or if the
    /// process must pause, makes the thread the leader or queues it.
    fn enter(&self, claim: &Claim<'_, PermitNeed>) -> Result<EnterPermits<S::Lease>, Error> {
        let (gate, Claim { thread, need, wait }) = (self.gate(), claim);
        if let Some(entered) = gate.enter(thread, *need, wait.blocks()) {
            return Ok(entered);
        }
        let mut request_state = PermitRequestState::default();
        // The gate may be open although the process's turn is over. In that case this thread must
        // pause, too. Otherwise its request would come right after a release of its own process,
        // and would always arrive first. (If no other process listens, the pause is zero.)
        if must_pause(&**self) {
            request_state.pause = begin_pause(&**self);
        }
        if !wait.blocks() && !request_state.pause.is_zero() {
            // A call that does not block sends only one request. It pauses before this request, so
            // that other processes can go first.
            let pause = std::mem::take(&mut request_state.pause);
            sleep_for(&**self, claim, pause)?;
            if let Some(entered) = gate.enter(thread, *need, false) {
                return Ok(entered);
            }
        }
        if request_state.pause.is_zero() {
            if let RequestResult { own: Some(own), .. } =
                request_for(self, *need, &[need.permits], 1)?
            {
                return Ok(Enter::Granted(own, Way::Free));
            }
            if wait.is_over() {
                return Ok(Enter::NotNow);
            }
            request_state.was_refused = true;
        }
        let entered = gate.lead_or_queue(thread, *need);
        if let Enter::Leads(leadership, _) = entered {
            if request_state.pause.is_zero() {
                request_state.pause = begin_pause(&**self);
            }
            return Ok(Enter::Leads(leadership, Some(Box::new(Lead::new(request_state)))));
        }
        Ok(entered)
    }

    fn request_state(
        &self,
        _: &Claim<'_, PermitNeed>,
        _: &mut Option<QueueLeadership>,
    ) -> PermitRequestState {
        PermitRequestState { pause: begin_pause(&**self), ..PermitRequestState::default() }
    }

    /// Returns the pause before the leader's next request. Other processes can ask for permits
    /// during the pause after this process's turn, and after each message. There is no pause before
    /// the second request: it only finds permits that were given back before the leader listened.
    fn pause(&self, request_state: &PermitRequestState) -> Duration {
        match request_state.tries {
            0 => request_state.pause,
            1 => Duration::ZERO,
            _ => pause_before_request(&**self),
        }
    }

    /// Requests permits for the leader and the threads behind it.
    fn ask(
        &self,
        lead: &mut Lead<PermitRequestState>,
        claim: &Claim<'_, PermitNeed>,
    ) -> Result<Try<Permits<S::Lease>>, Error> {
        let (gate, Lead { listening, request_state }) = (self.gate(), lead);
        let version = listening.public.version();
        request_state.tries = request_state.tries.saturating_add(1);
        let retry_after = if version.is_none() && request_state.was_refused {
            None
        } else if let Some(retry_after) = gate.recent_refusal(version, claim.need) {
            retry_after
        } else {
            let needs = gate.needs(claim.need, S::MAX_PERMITS);
            let clients = clients(&**self);
            let RequestResult { own, granted, retry_after } =
                request_for(self, claim.need, &needs, clients)?;
            // In two cases, an unsatisfied need is not recorded as a refusal, because the next
            // leader must send a request. First, the server may have left permits for other
            // processes that do not want them. Second, the reply to a grant does not say when the
            // next lease ends, so the next leader would sleep for too long.
            let is_refusal = granted == 0 || clients == 1 && !S::HAS_LEASES;
            let unsatisfied = first_unsatisfied(&needs, granted).filter(|_| is_refusal);
            if let Some((version, need)) = version.zip(unsatisfied) {
                gate.record_refusal(version, need, retry_after);
            }
            if let Some(own) = own {
                return Ok(Try::Granted(own));
            }
            retry_after
        };
        if !claim.wait.is_over() {
            listening.public.listen(self.core(), self.channel());
        }
        let sleep = retry_after.map_or(Duration::MAX, |it| it.max(SHORTEST_SLEEP));
        Ok(Try::Busy(sleep.min(slow_poll())))
    }
}

impl<S: PermitSource> QueueSite for Arc<S> {
    type Need = PermitNeed;
    type Grant = Permits<S::Lease>;
    type RequestState = PermitRequestState;
    const COLLECTED: Way = Way::Passed;

    fn with_queue<R>(&self, look: impl FnOnce(&mut PermitQueue<S::Lease>) -> R) -> R {
        self.gate().with_queue(look)
    }

    fn collect(
        &self,
        _: &mut Lead<PermitRequestState>,
        _: &Claim<'_, PermitNeed>,
    ) -> Option<Permits<S::Lease>> {
        self.gate().collect()
    }

    fn may_collect(&self, _: &PermitRequestState) -> bool {
        self.gate().may_collect()
    }

    fn transfer_leadership(
        &self,
        leadership: QueueLeadership,
        _: Option<Box<Lead<PermitRequestState>>>,
    ) {
        // A thread may have passed permits to the leader just when the leader got other permits or
        // gave up.
        if let Some(passed) = self.gate().end_leadership(leadership) {
            self.give_back(passed);
        }
    }
}

/// The result of a request.
struct RequestResult<L> {
    /// The calling thread's permits.
    own: Option<Permits<L>>,
    /// The number of permits that the server granted for this thread and the threads behind it. The
    /// threads behind already have their permits, and surplus permits are on their way back.
    granted: u32,
    /// After a refusal, the time after which another request may succeed without a message.
    retry_after: Option<Duration>,
}

/// Sends one request for `needs`. The first need is the calling thread's own, and the other needs
/// belong to the threads behind it in the queue.
fn request_for<S: PermitSource>(
    site: &Arc<S>,
    own: PermitNeed,
    needs: &[u32],
    clients: u64,
) -> Result<RequestResult<S::Lease>, Error> {
    let (arrivals, asked) = (site.gate().arrivals(), clock::now());
    let mut permits = match site.request(needs, own.terms, clients) {
        Ok(PermitReply::Granted(permits)) => permits,
        Ok(PermitReply::Refused(retry_after)) => {
            return Ok(RequestResult { own: None, granted: 0, retry_after });
        }
        Err(RequestFailed { error, only_this_request }) => {
            if !only_this_request {
                site.fail_before(arrivals, &error);
            }
            return Err(error);
        }
    };
    let granted = permits.number;
    let own = permits.take(own);
    let rest = site.gate().distribute(permits, asked);
    if rest.number > 0 {
        site.give_to_server(rest);
    }
    Ok(RequestResult { own, granted, retry_after: None })
}

/// Sleeps for `pause`, while other processes ask for permits first.
fn sleep_for<S: PermitSource>(
    site: &S,
    claim: &Claim<'_, PermitNeed>,
    pause: Duration,
) -> Result<(), Error> {
    let until = Instant::now().checked_add(pause);
    claim.sleeper(site.core(), site.name()).sleep_until(until, || false)
}

/// Returns how long the leader waits after a wake-up, so that other processes can ask for permits
/// first.
fn pause_before_request<S: PermitSource>(site: &S) -> Duration {
    let pause = begin_pause(site);
    let own = own_listeners(site);
    if pause.is_zero() {
        site.gate().with_turn(|turn| turn.pause(own, clock::now()))
    } else {
        pause
    }
}

/// The number of this client's listeners to the semaphore's channel: one or zero. The number of
/// listeners that the server reports includes this client's listener.
fn own_listeners<S: PermitSource>(site: &S) -> i64 {
    i64::from(site.core().pubsub.listening(site.channel()).is_some())
}

/// Returns whether this process's turn is over, so that its threads must pause. If the pause is
/// over, resets the turn.
fn must_pause<S: PermitSource>(site: &S) -> bool {
    let now = clock::now();
    site.gate().with_turn(|turn| matches!(turn.next_step(now), NextStep::Pause(_)))
}

/// Returns the number of processes that want permits, according to the replies to releases. Without
/// a usable reply, assumes one other process.
fn clients<S: PermitSource>(site: &S) -> u64 {
    let own = own_listeners(site);
    site.gate().with_turn(|turn| match turn.others(own) {
        Some(others) => others.saturating_add(1),
        None if turn.only_own_listen(own) => 1,
        None => 2,
    })
}

/// If this process's turn is over, ends the turn, records the pause, and returns the rest of the
/// pause. Returns zero if the turn continues, or if no other process listens.
fn begin_pause<S: PermitSource>(site: &S) -> Duration {
    let now = clock::now();
    let own = own_listeners(site);
    site.gate().with_turn(|turn| match turn.next_step(now) {
        NextStep::Pause(last_release) => {
            let others_listen = turn.end(own) > 0;
            turn.record_pause(others_listen);
            if others_listen { turn.remaining_pause(last_release.at, now) } else { Duration::ZERO }
        }
        NextStep::Ask => Duration::ZERO,
    })
}
