//! The fair lock: Redisson's `RFairLock`.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, LostReason};
use crate::local::{GateOutcome, Leaseholder, Site, Tenancy, Terms};
use crate::lock::{Handle, one_lock};
use crate::runtime::Session;
use crate::scripts::{self, Trouble};
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, Leadership, Queued, Synchronizer, Try, Wait, acquire,
};

use self::entry::FairEntry;
pub(crate) use self::queue::{FairQueue, give_back_unclaimed, take_out};

mod entry;
mod line;
mod queue;
#[cfg(all(test, testkit))]
mod tests;

/// A lock granted in the order of the requests, across threads, processes and machines: Redisson's
/// `RFairLock`, a fair `ReentrantLock` of java.util.concurrent. Made by [`Client::fair_lock`].
///
/// A clone is the same lock, and so is every handle of the same name. Its methods are those of
/// [`Lock`](crate::Lock).
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.fair_lock("tickets");
///
/// // Behind all earlier attempts, on all machines; out of the queue again after 30 s.
/// match lock.try_lock_for(Duration::from_secs(30))? {
///     Some(guard) => guard.unlock()?, // the next in the queue has it
///     None => println!("too many are waiting"),
/// }
/// # Ok(()) }
/// ```
///
/// # Order
///
/// All waiting threads stand in one queue, which Redis keeps, in the order in which Redis saw their
/// first attempts. `try_lock` does not pass the queue: it takes the lock only if no thread waits. A
/// thread that gives up (deadline, cancel, error, panic) leaves the queue at once. Neighbours in
/// the queue that belong to one process pass the lock from one to the next without a round trip.
///
/// Threads of one process that come together ask together, in their order of arrival. If the
/// process already has the lock or waits for it, an attempt may reach Redis up to a millisecond
/// later, so that other threads can come along.
///
/// # Several locks
///
/// A thread that holds one lock and waits for another waits for ever if the other's holder waits
/// for the first: both are renewed meanwhile. Take several locks in the same order everywhere, or
/// all at once ([`MultiLock`](crate::MultiLock)). After 60 s
/// ([`wait_warning`](crate::ClientBuilder::wait_warning)) the log says `has waited 60 s for "B"
/// while holding "A"`.
///
/// # Waiters that die
///
/// A release hands the lock to the first waiter in a process that listens: it passes the waiters of
/// a killed process, which costs nothing. A waiter in a stopped process is granted the lock for two
/// seconds, and costs the others that time, once. Waiters of processes that were silent for two
/// seconds, while the server answered others, are passed: many that stopped together, as on a host
/// that lost its power, cost no more than one. A waiter gets its entry at the head back when its
/// process goes on. Each process gives a sign of life for its waiters every second, or every third
/// of [`fair_wait_timeout`](crate::ClientBuilder::fair_wait_timeout) if that is less. A living
/// waiter is never dropped, however long it waits. A process that dies as it is granted a lock
/// keeps it for two seconds; from 50 ms in the lock on it has its lease.
///
/// Redisson's clients may stand in the same queue, and two effects of Redisson remain. Its dead
/// waiter blocks the others for up to the lease and five minutes. If one of its timed waits ends at
/// the moment of a release, it keeps the message to itself, and the lock is idle until the next
/// sign of life of a redlatch process (a second at most).
///
/// Limits with Redisson in the queue: its waiters must not wait longer than 300 s at a time, and
/// the clocks of its machines must agree with the server's to about 7 s. If Redisson releases the
/// lock and a dead redlatch waiter is first, that costs a second at most while a living redlatch
/// waiter is in the queue, too. If only Redisson's waiters are left, it costs up to the rest of a
/// lease (30 s), and five minutes more for each of their timed waits that was ahead of it and ended
/// early. If only Redisson's waiters wait behind a redlatch process that was stopped as it was
/// handed the lock, they come when the remaining time that they read is over: a lease, or the fair
/// wait.
///
/// # Beside a re-entrant lock of the name
///
/// A fair and a re-entrant handle of one name are one lock: two threads never have it, and a thread
/// that took it through one handle may take it again through the other. But neither knows the queue
/// of the other. A waiter of one kind may wait for as long as others keep taking the lock through
/// the other kind, and about a second longer. Use one kind for a name.
///
/// # What fairness costs
///
/// Every thread has its own entry in Redis's queue, and each grant to another process is a message:
/// the lock is idle until that process has read it. If the order does not matter,
/// [`reentrant_lock`](crate::Client::reentrant_lock) is several times as fast.
#[derive(Clone, Debug)]
pub struct FairLock {
    queue: Arc<FairQueue>,
    handle: Handle,
}

one_lock!(FairLock);

impl FairLock {
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
        acquire(self, &Claim { thread, need: self.handle.terms(), wait })
    }
}

impl Synchronizer for FairLock {
    type Site = Arc<FairQueue>;

    fn site(&self) -> &Arc<FairQueue> {
        &self.queue
    }

    /// Re-enters if the thread holds the lock. Otherwise it joins the threads that have not asked
    /// yet; a thread that will not wait asks for itself.
    fn enter(&self, claim: &Claim<'_, Terms>) -> Result<EnterOf<Self>, Error> {
        let waits = claim.wait.blocks();
        loop {
            match self.handle.site.gate.reenter(claim.thread, claim.need) {
                None => break,
                Some(GateOutcome::Occupied) if waits => break,
                Some(GateOutcome::Occupied) => return Ok(Enter::NotNow),
                Some(entered) => {
                    if let Some(tenancy) = self.handle.again(entered)? {
                        return Ok(Enter::Granted(tenancy));
                    }
                }
            }
        }
        if !waits {
            let entry = FairEntry::new(&self.queue, claim.thread, claim.need, false);
            return Ok(Enter::Leads(Some(Box::new(Lead::new(entry)))));
        }
        Ok(self.queue.with_queue(|newcomers| {
            if newcomers.lead() {
                return Enter::Leads(None);
            }
            Enter::Queued(newcomers.push(claim.thread, claim.need))
        }))
    }

    /// For a thread that takes the newcomers' leadership after its owner is gone, or that comes
    /// first.
    fn request_state(&self, claim: &Claim<'_, Terms>) -> FairEntry {
        FairEntry::new(&self.queue, claim.thread, claim.need, true)
    }

    fn collect(&self, lead: &mut Lead<FairEntry>, _: &Claim<'_, Terms>) -> Option<Arc<Tenancy>> {
        lead.request_state.collect(&mut lead.listening)
    }

    fn has_news(&self, entry: &FairEntry) -> bool {
        entry.has_news()
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

    /// `None`: see [`lock/exclusive.rs`](crate::lock::exclusive); or the thread slept through the
    /// rest of the lease of a hold that was passed to it. Then the thread asks as another owner:
    /// its entry is gone, or the release of the revoked hold gives that entry up.
    fn install(
        &self,
        leadership: &mut Leadership<'_, Arc<FairQueue>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let (Self { handle, queue }, hold) = (self, &tenancy.hold());
        let Handle { site, .. } = handle;
        let Some(Lead { request_state: entry, .. }) = &mut leadership.lead else { return Ok(None) };
        let is_ours = match entry.stand_down() {
            _ if !entry.is_owner_of(hold) => {
                let is_held = tenancy.is_held();
                if !is_held {
                    site.lose_hold(hold, LostReason::LeaseExpired);
                }
                is_held
            }
            // While the thread asked, a hold was passed to it and then revoked by force: only then
            // could the server grant the thread another hold.
            Some(passed) => {
                site.lose_hold(&passed.hold(), LostReason::Revoked);
                false
            }
            None => site.admit(&tenancy, claim.need)?,
        };
        if !is_ours {
            let another = FairEntry::new(queue, claim.thread, claim.need, false);
            leadership.lead = Some(Lead::new(another));
            return Ok(None);
        }
        entry.becomes(hold);
        leadership.resign();
        handle.admitted(tenancy).map(Some)
    }
}
