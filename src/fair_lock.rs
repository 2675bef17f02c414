//! The fair lock: Redisson's `RFairLock`.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{
    Baton, Claim, Enter, EnterOf, Lead, Queued, Synchronizer, Try, Wait, acquire,
};
#[cfg(doc)]
use crate::client::Client;
use crate::core::Session;
use crate::error::{Error, LostReason};
use crate::hold::{Entered, Site, Tenancy, Terms};
use crate::lock::{Handle, lock_verbs};
use crate::script::{self, Trouble};
use crate::sync::Thread;

use self::place::FairPlace;
pub(crate) use self::queue::{FairQueue, give_back_stray, take_out};

mod line;
mod place;
mod queue;
#[cfg(all(test, testkit, not(shuttle)))]
mod tests;

/// A lock that is granted in the order in which it was asked for, across threads, processes and
/// machines: Redisson's `RFairLock`, a fair `ReentrantLock` of java.util.concurrent. Made by
/// [`Client::fair_lock`].
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
/// Every thread that waits stands in one queue, which Redis keeps; the order is that in which Redis
/// saw the first attempts. `try_lock` does not pass the queue: it takes the lock only if nobody
/// waits. Whoever gives up (deadline, cancel, error, panic) leaves the queue at once. Where threads
/// of one process stand one behind the other, the lock is passed from one to the next without a
/// round trip.
///
/// Threads of one process that come together ask together, in the order in which they came. Where
/// the process has the lock already, or waits for it, an attempt may reach Redis up to a
/// millisecond later than it could, so that others can come along.
///
/// # Several locks
///
/// A thread that holds one lock and waits for another waits for ever if the other's holder waits for
/// the first: both are renewed meanwhile. Take several locks in the same order everywhere, or all at
/// once ([`MultiLock`](crate::MultiLock)). After 60 s
/// ([`wait_warning`](crate::ClientBuilder::wait_warning)) the log says `has waited 60 s for "B" while
/// holding "A"`.
///
/// # Waiters that die
///
/// Who releases the lock hands it to the first in line whose process listens: a waiter whose
/// process was killed is passed, and costs nothing. One whose process was stopped is granted the
/// lock for two seconds, and costs the others that, once. Those whose processes were silent for two
/// seconds, while the server answered others, are passed: many that stopped together, as on a host
/// that lost its power, cost no more than one. Whoever goes on gets its place at the head back. A process says every second, and more often where a third of
/// [`fair_wait_timeout`](crate::ClientBuilder::fair_wait_timeout) is less, that its waiters live.
/// One that lives is never dropped, however long it waits. Who is granted a lock and dies at that
/// moment keeps it for two seconds; from 50 ms in the lock on it has its lease.
///
/// Redisson's clients may stand in the same queue. What Redisson itself does there remains: its
/// dead waiter blocks the others for up to the lease and five minutes; one of its timed waits that
/// ends at the moment of a release keeps the message to itself, and the lock is idle until the next
/// sign of life of ours (a second at most). Limits with Redisson in the queue: its waiters must not
/// wait longer than 300 s at a time, and the clocks of its machines must agree with the server's to
/// about 7 s. When Redisson's releases and a dead waiter of ours is first, that costs a second at
/// most while a living one of ours stands in the queue, too; where only Redisson's are left, up to
/// the rest of a lease (30 s), and five minutes more for each timed wait of theirs that was ahead
/// of it and ended early. Where only Redisson's wait behind a process of ours that was stopped as
/// it was handed the lock, they come at the end of the time left that they have read: a lease, or
/// the fair wait.
///
/// # Beside a re-entrant lock of the name
///
/// A fair and a re-entrant handle of one name are one lock: never do two have it, and a thread that
/// has it by one of the two may take it again by the other. But neither knows of the queue of the
/// other. Who waits by the one may wait for as long as others keep taking the lock by the other,
/// and about a second longer. Use one kind for a name.
///
/// # What fairness costs
///
/// Every thread stands in Redis's queue for itself, and each grant to another process is a message:
/// the lock is idle until that process has read it. Where the order does not matter,
/// [`reentrant_lock`](crate::Client::reentrant_lock) is several times as fast.
#[derive(Clone, Debug)]
pub struct FairLock {
    queue: Arc<FairQueue>,
    handle: Handle,
}

lock_verbs!(FairLock);

impl FairLock {
    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = Site::of(session.core(), name);
        let queue = FairQueue::of(&site);
        Self { queue, handle: Handle::new(session.clone(), site) }
    }

    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        let Site { route, name, .. } = &*self.handle.site;
        script::lock::force_unlock(route, name, &self.queue.scripts().force_unlock_command())
    }

    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        self.handle.check(&wait)?;
        acquire(self, &Claim { thread, need: self.handle.terms(), wait })
    }
}

impl Synchronizer for FairLock {
    type Site = Arc<FairQueue>;

    fn site(&self) -> &Arc<FairQueue> {
        &self.queue
    }

    /// Mine already? Else the thread comes to those who have not asked yet. Who will not wait asks
    /// for itself.
    fn enter(&self, claim: &Claim<'_, Terms>) -> Result<EnterOf<Self>, Error> {
        let waits = claim.wait.blocks();
        loop {
            match self.handle.site.gate.reenter(claim.thread, claim.need) {
                None => break,
                Some(Entered::Occupied) if waits => break,
                Some(Entered::Occupied) => return Ok(Enter::NotNow),
                Some(entered) => {
                    if let Some(tenancy) = self.handle.again(entered)? {
                        return Ok(Enter::Granted(tenancy));
                    }
                }
            }
        }
        if !waits {
            let place = FairPlace::new(&self.queue, claim.thread, claim.need, false);
            return Ok(Enter::Leads(Some(Box::new(Lead::new(place)))));
        }
        Ok(self.queue.with_queue(|newcomers| {
            if newcomers.lead() {
                return Enter::Leads(None);
            }
            Enter::Queued(newcomers.push(claim.thread, claim.need))
        }))
    }

    /// Who had the baton of the newcomers is gone, or there was none.
    fn inquiry(&self, claim: &Claim<'_, Terms>) -> FairPlace {
        FairPlace::new(&self.queue, claim.thread, claim.need, true)
    }

    fn collect(&self, lead: &mut Lead<FairPlace>, _: &Claim<'_, Terms>) -> Option<Arc<Tenancy>> {
        lead.inquiry.collect(&mut lead.listening)
    }

    fn has_news(&self, place: &FairPlace) -> bool {
        place.has_news()
    }

    fn pause(&self, place: &FairPlace) -> Duration {
        place.linger()
    }

    fn ask(
        &self,
        lead: &mut Lead<FairPlace>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        if claim.wait.blocks() {
            return lead.inquiry.ask(&mut lead.listening);
        }
        lead.inquiry.ask_once()
    }

    /// Ours no more: see [`lock/exclusive.rs`](crate::lock::exclusive); or the thread slept through
    /// the rest of the lease of a hold that was passed to it. Then it asks as another owner, since
    /// its place is gone, or whoever releases what was taken away from it gives that up.
    fn install(
        &self,
        baton: &mut Baton<'_, Arc<FairQueue>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let (Self { handle, queue }, hold) = (self, &tenancy.hold);
        let Handle { site, .. } = handle;
        let Some(Lead { inquiry: place, .. }) = &mut baton.lead else { return Ok(None) };
        let is_ours = match place.stand_down() {
            _ if !place.is_owner_of(hold) => {
                let is_held = tenancy.is_held();
                if !is_held {
                    site.lose(&tenancy, LostReason::LeaseExpired);
                }
                is_held
            }
            // While it asked, a hold was passed to it, and taken away by force: only then could the
            // server grant it another.
            Some(passed) => {
                site.lose(&passed, LostReason::Revoked);
                false
            }
            None => site.admit(&tenancy, claim.need)?,
        };
        if !is_ours {
            let another = FairPlace::new(queue, claim.thread, claim.need, false);
            baton.lead = Some(Lead::new(another));
            return Ok(None);
        }
        place.becomes(hold);
        baton.lay_down();
        handle.admitted(tenancy).map(Some)
    }
}
