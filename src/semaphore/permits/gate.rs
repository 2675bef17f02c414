//! The permit gate: the threads of this process that wait for permits of one semaphore.
//!
//! If the server refuses a request, its thread becomes the leader, unless its call may not wait.
//! While a thread leads or waits, the gate is closed, and arriving threads queue. The leader sends
//! one request for itself and the threads behind it. If a thread of this process gives permits
//! back, the first thread in the queue may get them directly.
//!
//! A thread gets all the permits that it needs, or none. The first thread in the queue gets permits
//! from the server or from another thread as soon as they cover its whole need, and no thread
//! overtakes it. Permits that do not cover this need go back to the server at once. Otherwise two
//! processes could each keep a part of the permits that they need, and wait for each other.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Mutex, Thread, Waker, clock};

use super::turn::PermitTurn;
use crate::hold::Terms;
use crate::waiting::{Enter, Queue, QueueLeadership, Wake};

/// The permits that one thread needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitNeed {
    pub(crate) permits: u32,
    /// The terms of each permit's lease, if permits have leases. All permits of one request have
    /// the same terms.
    pub(crate) terms: Option<Terms>,
}

/// Permits that this process has taken, all with the same terms.
#[derive(Debug)]
pub(crate) struct Permits<L> {
    pub(crate) number: u32,
    pub(crate) terms: Option<Terms>,
    /// The lease of each permit, if permits have leases.
    pub(crate) leases: Vec<L>,
}

impl<L> Permits<L> {
    /// Splits off permits for a need, if the terms are equal and there are enough permits.
    pub(crate) fn take(&mut self, need: PermitNeed) -> Option<Self> {
        let rest = self.number.checked_sub(need.permits).filter(|_| need.terms == self.terms)?;
        self.number = rest;
        let leases = self.leases.len().min(need.permits as usize);
        let leases = self.leases.drain(..leases).collect();
        Some(Self { number: need.permits, terms: need.terms, leases })
    }
}

/// The waiting threads with their needs.
pub(crate) type PermitQueue<L> = Queue<PermitNeed, Permits<L>, PermitRequestState>;

pub(crate) type EnterPermits<L> = Enter<PermitNeed, Permits<L>, PermitRequestState>;

/// One semaphore's queue in this process.
#[derive(Debug)]
pub(crate) struct PermitGate<L> {
    state: Mutex<PermitGateState<L>>,
}

#[derive(Debug)]
struct PermitGateState<L> {
    queue: PermitQueue<L>,
    /// The leader. It has left the queue, and gets permits before the first thread in the queue.
    leader: Option<PermitLeader<L>>,
    turn: PermitTurn,
    refusal: Option<LastRefusal>,
}

#[derive(Debug)]
struct PermitLeader<L> {
    waker: Waker,
    need: PermitNeed,
    /// Permits that another thread passed to the leader, which collects them before its next
    /// request.
    passed: Option<Permits<L>>,
}

/// The state of a leader's requests.
#[derive(Debug, Default)]
pub(crate) struct PermitRequestState {
    pub(super) tries: u32,
    /// Whether the server refused the thread just before the thread became the leader.
    pub(super) was_refused: bool,
    /// How long the leader must wait before its first request.
    pub(super) pause: Duration,
}

/// The server's last refusal. While threads pass permits to each other, the leader changes often.
/// Without this record, each new leader would ask again for permits that were just refused.
#[derive(Clone, Copy, Debug)]
struct LastRefusal {
    /// The number of permits that were refused.
    permits: u32,
    /// The channel's version before the request. If the version has changed, a message may have
    /// announced permits.
    version: u64,
    at: u64,
    /// The time from which a request may succeed even if no message has arrived.
    retry_at: Option<u64>,
}

/// After a refusal, later leaders send no request for this time. The time must be limited: if the
/// message that announces permits is lost, only a request finds the permits.
const FRESH_REFUSAL: u64 = 100_000_000;

/// The maximum number of needs in one request. It limits the server's work for the request.
const MAX_NEEDS: usize = 128;

/// Returns the first need that is not satisfied if `permits` permits are given to the needs in
/// order.
pub(crate) fn first_unsatisfied(needs: &[u32], mut permits: u32) -> Option<u32> {
    needs.iter().copied().find(|need| match permits.checked_sub(*need) {
        Some(rest) => {
            permits = rest;
            false
        }
        None => true,
    })
}

impl<L> PermitGate<L> {
    pub(crate) fn new(round_trip: Duration) -> Self {
        Self {
            state: Mutex::new(PermitGateState {
                queue: Queue::new(),
                leader: None,
                turn: PermitTurn::new(round_trip),
                refusal: None,
            }),
        }
    }

    /// Queues an arriving thread behind the waiting threads. Returns `None` if no thread leads or
    /// waits: the caller may then send a request for its own need.
    pub(crate) fn enter(
        &self,
        thread: &Arc<Thread>,
        need: PermitNeed,
        waits: bool,
    ) -> Option<EnterPermits<L>> {
        let mut state = self.state.lock();
        match (state.queue.is_busy(), waits) {
            (false, _) => None,
            (true, false) => Some(Enter::NotNow),
            (true, true) => Some(Enter::Queued(state.queue.push(thread, need))),
        }
    }

    /// Called after the server has refused the thread's request, or if the thread must pause before
    /// its request. Makes the thread the leader, or queues the thread if there is a leader.
    pub(crate) fn lead_or_queue(&self, thread: &Arc<Thread>, need: PermitNeed) -> EnterPermits<L> {
        let mut state = self.state.lock();
        let Some(leadership) = state.queue.try_lead() else {
            return Enter::Queued(state.queue.push(thread, need));
        };
        state.leader = Some(PermitLeader::new(thread.waker(), need));
        Enter::Leads(Some(leadership), None)
    }

    /// Returns the needs for the leader's request: the leader's `own` need, then the needs of the
    /// first threads in the queue, with at most `most` permits in all.
    pub(crate) fn needs(&self, own: PermitNeed, most: u32) -> Vec<u32> {
        let state = self.state.lock();
        let mut sum = own.permits;
        let behind = state.queue.needs().map_while(|need| {
            sum = sum.checked_add(need.permits).filter(|sum| *sum <= most)?;
            (need.terms == own.terms).then_some(need.permits)
        });
        iter::once(own.permits).chain(behind).take(MAX_NEEDS).collect()
    }

    /// Records that the server has refused the leader `permits` permits. `version`: the channel's
    /// version before the request. `retry_after`: the time after which a request may succeed
    /// without a message.
    pub(crate) fn record_refusal(&self, version: u64, permits: u32, retry_after: Option<Duration>) {
        let at = clock::now();
        let retry_at = retry_after.map(|it| at.saturating_add(clock::nanos(it)));
        self.state.lock().refusal = Some(LastRefusal { permits, version, at, retry_at });
    }

    /// Returns `Some` if the server would probably refuse the leader: it has just refused the same
    /// number of permits, or fewer, to an earlier leader, and no message has arrived since. (If
    /// `version` is `None`, the leader does not listen, and only the age of the refusal decides.)
    /// The inner value is the time after which a request may succeed, if it is known.
    pub(crate) fn recent_refusal(
        &self,
        version: Option<u64>,
        need: PermitNeed,
    ) -> Option<Option<Duration>> {
        let now = clock::now();
        let refusal = self.state.lock().refusal?;
        let is_recent = refusal.permits <= need.permits
            && version.is_none_or(|version| version == refusal.version)
            && now.saturating_sub(refusal.at) < FRESH_REFUSAL
            && refusal.retry_at.is_none_or(|retry_at| now < retry_at);
        let retry_after = |retry_at: u64| Duration::from_nanos(retry_at.saturating_sub(now));
        is_recent.then(|| refusal.retry_at.map(retry_after))
    }

    /// Whether a thread passed permits to the leader.
    pub(crate) fn may_collect(&self) -> bool {
        self.state.lock().leader.as_ref().is_some_and(|leader| leader.passed.is_some())
    }

    /// Collects the permits that were passed to the leader.
    pub(crate) fn collect(&self) -> Option<Permits<L>> {
        self.state.lock().leader.as_mut()?.passed.take()
    }

    /// Ends the leadership, and makes the first thread in the queue the leader. Returns the permits
    /// that were passed to the old leader but not collected.
    pub(crate) fn end_leadership(&self, leadership: QueueLeadership) -> Option<Permits<L>> {
        let mut state = self.state.lock();
        // The next thread is the leader even before it wakes up. So a thread that gives permits
        // back in the meantime can pass them to the new leader.
        let next = state
            .queue
            .first()
            .map(|first| PermitLeader::new(first.waker().clone(), *first.need()));
        let old = std::mem::replace(&mut state.leader, next);
        let passed = old.and_then(|leader| leader.passed);
        let (wake, _) = state.queue.promote(leadership, None);
        drop(state);
        wake.now();
        passed
    }

    /// Distributes permits that the server has granted for the threads behind the calling thread.
    /// The queue may have changed during the request, so the threads that are first in the queue
    /// now get `others`. Returns the permits that no waiting thread gets: the caller must give them
    /// back to the server. `asked`: the time at which the request was sent. If the pause after the
    /// last turn was over at that time, a new turn begins.
    pub(crate) fn distribute(&self, others: Permits<L>, asked: u64) -> Permits<L> {
        let now = clock::now();
        let mut wakes = Vec::new();
        let mut rest = others;
        let mut state = self.state.lock();
        state.turn.next_step(asked);
        state.turn.record_grant(now);
        // These permits come from the server, so threads may get them even if the turn is over.
        while let Some(wake) = state.grant_first(&mut rest) {
            state.turn.record_grant(now);
            wakes.push(wake);
        }
        if rest.number > 0 {
            state.turn.record_release(now);
        }
        drop(state);
        wakes.into_iter().for_each(Wake::now);
        rest
    }

    /// Passes permits to the leader and the first threads in the queue, while the permits cover the
    /// whole need of the next thread. Returns the remaining permits, which the caller must give
    /// back to the server.
    pub(crate) fn pass(&self, permits: Permits<L>) -> Permits<L> {
        let now = clock::now();
        let mut wakes = Vec::new();
        let mut rest = permits;
        let mut state = self.state.lock();
        while rest.number > 0 && state.turn.may_pass(now) {
            let Some(wake) = state.pass_first(&mut rest) else { break };
            state.turn.record_grant(now);
            wakes.push(wake);
        }
        if rest.number > 0 {
            state.turn.record_release(now);
        }
        drop(state);
        wakes.into_iter().for_each(Wake::now);
        rest
    }

    /// Returns how many threads have queued so far.
    pub(super) fn arrivals(&self) -> u64 {
        self.state.lock().queue.arrivals()
    }

    pub(super) fn with_queue<R>(&self, look: impl FnOnce(&mut PermitQueue<L>) -> R) -> R {
        look(&mut self.state.lock().queue)
    }

    pub(crate) fn with_turn<R>(&self, look: impl FnOnce(&mut PermitTurn) -> R) -> R {
        look(&mut self.state.lock().turn)
    }
}

impl<L> PermitLeader<L> {
    fn new(waker: Waker, need: PermitNeed) -> Self {
        Self { waker, need, passed: None }
    }
}

impl<L> PermitGateState<L> {
    /// Passes permits to the leader. If there is no leader, or if a thread has already passed
    /// permits to the leader, passes them to the first thread in the queue. Does nothing if the
    /// permits do not cover the need of the thread.
    fn pass_first(&mut self, permits: &mut Permits<L>) -> Option<Wake> {
        if let Some(leader) = self.leader.as_mut().filter(|leader| leader.passed.is_none()) {
            leader.passed = Some(permits.take(leader.need)?);
            return Some(Wake::of(&leader.waker));
        }
        self.grant_first(permits)
    }

    /// Grants permits to the first thread in the queue, if the permits cover the thread's need.
    fn grant_first(&mut self, permits: &mut Permits<L>) -> Option<Wake> {
        let need = *self.queue.first()?.need();
        let granted = permits.take(need)?;
        self.queue.pass_first(|_| granted)
    }
}

#[cfg(all(test, models))]
mod model_tests;

#[cfg(test)]
mod tests {
    use super::*;

    type Gate = PermitGate<()>;

    fn need(permits: u32) -> PermitNeed {
        PermitNeed { permits, terms: None }
    }

    fn permits(number: u32) -> Permits<()> {
        Permits { number, terms: None, leases: Vec::new() }
    }

    fn queued(gate: &Gate, needs: &[u32]) {
        let thread = Thread::current();
        assert!(matches!(gate.lead_or_queue(&thread, need(1)), Enter::Leads(..)));
        for permits in needs {
            assert!(matches!(gate.lead_or_queue(&thread, need(*permits)), Enter::Queued(_)));
        }
    }

    #[test]
    fn a_leader_asks_for_no_more_permits_and_no_more_needs_than_one_request_takes() {
        let gate = Gate::new(Duration::ZERO);
        queued(&gate, &[2, u32::MAX - 3, 1]);
        assert_eq!(gate.needs(need(1), u32::MAX), [1, 2, u32::MAX - 3]);
        let gate = Gate::new(Duration::ZERO);
        queued(&gate, &[1; 2 * MAX_NEEDS]);
        assert_eq!(gate.needs(need(1), u32::MAX).len(), MAX_NEEDS);
    }

    #[test]
    fn granted_permits_go_to_the_first_whose_whole_need_they_cover_and_the_rest_back() {
        let gate = Gate::new(Duration::ZERO);
        queued(&gate, &[1, 2, 3, 1]);
        assert_eq!(
            gate.distribute(permits(4), clock::now()).number,
            1,
            "the next needs three, and nobody passes it"
        );
        assert_eq!(gate.needs(need(1), u32::MAX), [1, 3, 1]);
    }

    #[test]
    fn a_request_behind_a_release_goes_on_with_the_turn_however_long_it_takes() {
        const MS: u64 = 1_000_000;
        let gate = Gate::new(Duration::ZERO);
        let began = clock::now() - 9 * MS;
        let released = began + 4 * MS;
        gate.with_turn(|turn| {
            turn.record_grant(began);
            turn.record_release(released);
        });
        assert_eq!(gate.distribute(permits(0), released).number, 0);
        assert!(!gate.with_turn(|turn| turn.may_pass(began + 11 * MS)));
    }

    #[test]
    fn the_first_need_that_is_not_covered_is_the_one_that_was_refused() {
        assert_eq!(first_unsatisfied(&[1, 2, 3], 0), Some(1));
        assert_eq!(first_unsatisfied(&[1, 2, 3], 3), Some(3));
        assert_eq!(first_unsatisfied(&[1, 2, 3], 6), None);
    }
}
