//! The fair lock: Redisson's `RFairLock`.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, LostReason};
use crate::hold::{Leaseholder, Tenancy, Terms};
use crate::lock::{Handle, one_lock};
use crate::observe::Kind;
use crate::runtime::Session;
use crate::scripts::{self, Trouble};
use crate::site::{GateOutcome, Site};
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, LeadershipGuard, QueueLeadership, QueueSite, Synchronizer, Try,
    Wait, acquire,
};

use self::entry::FairEntry;
pub(crate) use self::queue::FairQueue;

mod entry;
mod queue;
#[cfg(all(test, testkit))]
mod tests;

/// A lock that threads get in the order of their requests, across processes and machines. The lock
/// corresponds to a fair `ReentrantLock` of java.util.concurrent and to Redisson's `RFairLock`.
/// [`Client::fair_lock`] returns a `FairLock`.
///
/// All clones, and all handles of the same name, are one lock. A `FairLock` has the methods of
/// [`Lock`](crate::Lock).
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{NotTaken, Taken};
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.fair_lock("tickets");
///
/// // Waits behind all earlier attempts on all machines, for at most 30 s.
/// match lock.try_lock_for(Duration::from_secs(30))? {
///     Taken(guard) => guard.unlock()?, // the next in the queue has it
///     NotTaken => println!("too many are waiting"),
/// }
/// # Ok(()) }
/// ```
///
/// # Order
///
/// All waiting threads are in one queue in Redis, in the order in which Redis received their first
/// requests. `try_lock` takes the lock only if no thread waits. A thread that gives up (at a
/// deadline, a cancel, an error or a panic) leaves the queue at once. Neighbours in the queue that
/// belong to one process pass the lock to each other without a round trip.
///
/// If threads of one process ask at the same time, they share one request, which keeps their order
/// of arrival. If the process already has the lock or waits for it, the client may delay a request
/// by up to 1 ms, so that more threads can share the request.
///
/// # Several locks
///
/// Take several locks in the same order everywhere, or together ([`MultiLock`](crate::MultiLock)).
/// Threads that take them in different orders may deadlock: see the
/// [guide](crate::guide#lock-order-and-deadlock).
///
/// # Waiters that die
///
/// A release skips the waiters of a killed process, so they do not delay the other waiters. A
/// process blocks the lock for two seconds if it is paused, if it dies just when it is granted the
/// lock, or if it dies just after it began to wait. Even if many processes stop together, for
/// example because a host loses power, they block the lock for only two seconds in all. When a
/// paused process continues, its waiters return to the head of the queue. Each process sends a
/// keep-alive for its waiters every second, or every third of
/// [`fair_wait_timeout`](crate::ClientBuilder::fair_wait_timeout) if that is less. So a live waiter
/// keeps its place in the queue, however long it waits.
///
/// # Redisson's clients in the queue
///
/// If Redisson's clients are in the same queue:
///
/// - no single wait of a Redisson client may be longer than
///   [`redisson_fair_lock_wait_timeout`](crate::ClientBuilder::redisson_fair_lock_wait_timeout) (5
///   minutes), and the clocks of Redisson's machines may differ from the server's clock by at most
///   about 7 s;
/// - a dead Redisson waiter blocks the other waiters for up to the lease plus 5 minutes;
/// - if a timed wait of a Redisson client ends at the moment of a release, the lock is idle until a
///   redlatch process sends its next keep-alive, at most a second later;
/// - if Redisson releases the lock while a dead redlatch waiter is first in the queue, the lock is
///   idle for at most a second. If the queue has no live redlatch waiter, the lock may be idle
///   until a lease ends (30 s). Each earlier timed wait of a Redisson client that ended early may
///   add 5 minutes to this time;
/// - if a redlatch process is paused when it gets the lock, and only Redisson's waiters are left,
///   these waiters wait until the lease ends or for `fair_wait_timeout`.
///
/// # A re-entrant lock with the same name
///
/// Use one kind of lock for a name. A fair and a re-entrant handle of one name are one lock: two
/// threads exclude each other even if they use different kinds of handle. A thread that took the
/// lock through one handle may take it again through the other handle. A re-entrant handle ignores
/// the fair lock's queue, and a fair handle ignores the plain lock's queue. A waiter of one kind
/// may wait for as long as threads of the other kind keep taking the lock.
///
/// # What fairness costs
///
/// Every waiting thread has its own entry in Redis's queue, and after a hand-off the lock is idle
/// until the next process has read its message. If the order does not matter, a
/// [`ReentrantLock`](crate::ReentrantLock) is several times faster.
#[derive(Clone, Debug)]
pub struct FairLock {
    queue: Arc<FairQueue>,
    handle: Handle,
}

one_lock!(FairLock with take and send_force_unlock);

impl FairLock {
    const IS_FAIR: bool = true;

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = Site::of(session.core(), name);
        let queue = FairQueue::of(&site);
        Self { queue, handle: Handle::new(session.clone(), site) }
    }

    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        let Site { route, name, .. } = &*self.handle.site;
        scripts::lock::force_unlock(route, name, &self.queue.scripts().force_unlock_command())
    }

    fn take(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        self.handle.check(thread, &wait)?;
        let Site { core, name, .. } = &*self.handle.site;
        acquire(self, (core, name), &Claim { thread, need: self.handle.terms(), wait })
    }
}

impl Synchronizer for FairLock {
    type Site = Arc<FairQueue>;

    fn site(&self) -> &Arc<FairQueue> {
        &self.queue
    }

    fn what(&self, _: &Terms) -> (Kind, u32) {
        (Kind::FairLock, 1)
    }

    /// If the thread holds the lock, it takes another level. A thread that may wait becomes a
    /// newcomer, for which no request was sent yet. A thread that may not wait sends a request for
    /// itself alone.
    fn enter(&self, claim: &Claim<'_, Terms>) -> Result<EnterOf<Self>, Error> {
        let waits = claim.wait.blocks();
        loop {
            match self.handle.site.gate.reenter(claim.thread, claim.need) {
                None => break,
                Some(GateOutcome::Occupied) if waits => break,
                Some(GateOutcome::Occupied) => return Ok(Enter::NotNow),
                Some(entered) => {
                    if let Some(tenancy) = self.handle.reentered(entered)? {
                        return Ok(Enter::Reentered(tenancy));
                    }
                }
            }
        }
        if !waits {
            let entry = FairEntry::new(&self.queue, claim.thread, claim.need, None);
            return Ok(Enter::Leads(None, Some(Box::new(Lead::new(entry)))));
        }
        Ok(self.queue.with_queue(|newcomers| match newcomers.try_lead() {
            Some(leadership) => Enter::Leads(Some(leadership), None),
            None => Enter::Queued(newcomers.push(claim.thread, claim.need)),
        }))
    }

    /// Makes the entry of a thread that leads the newcomers. The thread was the first newcomer, or
    /// the previous leader has left.
    fn request_state(
        &self,
        claim: &Claim<'_, Terms>,
        leadership: &mut Option<QueueLeadership>,
    ) -> FairEntry {
        FairEntry::new(&self.queue, claim.thread, claim.need, leadership.take())
    }

    fn pause(&self, entry: &FairEntry) -> Duration {
        entry.linger()
    }

    fn ask(
        &self,
        lead: &mut Lead<FairEntry>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        if claim.wait.blocks() {
            return lead.request_state.ask(&mut lead.listening);
        }
        lead.request_state.ask_once()
    }

    /// Returns `None` for the reasons in [`lock/hooks.rs`](crate::lock::hooks), and if a hold was
    /// passed to the thread but its lease ended while the thread slept. In the latter case the
    /// thread then asks the server under a new owner. Its old entry is gone, or the release of the
    /// lost hold removes it.
    fn admit(
        &self,
        leadership: &mut LeadershipGuard<'_, Arc<FairQueue>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let (Self { handle, queue }, hold) = (self, &tenancy.hold());
        let Handle { site, .. } = handle;
        let Some(lead) = &mut leadership.lead else { return Ok(None) };
        let entry = &mut lead.request_state;
        let is_ours = match entry.stand_down() {
            _ if !entry.is_owner_of(hold) => {
                let is_held = tenancy.is_held();
                if !is_held {
                    site.lose_hold(hold, LostReason::LeaseExpired);
                }
                is_held
            }
            // While this thread A asked the server, another thread B passed a hold to A. The server
            // has granted another hold to A, so a forced unlock must have revoked the passed hold.
            Some(passed) => {
                site.lose_hold(&passed.hold(), LostReason::Revoked);
                false
            }
            None => site.admit(&tenancy, &mut None)?,
        };
        if !is_ours {
            let another = FairEntry::new(queue, claim.thread, claim.need, None);
            leadership.lead = Some(Box::new(Lead::new(another)));
            return Ok(None);
        }
        entry.become_hold(hold);
        site.release_if_shut_down(hold)?;
        Ok(Some(tenancy))
    }

    fn observed(&self, tenancy: &Arc<Tenancy>) {
        self.handle.site.observed(tenancy);
    }
}
