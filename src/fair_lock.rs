//! The fair lock: Redisson's `RFairLock`.

use std::sync::Arc;

use crate::acquire::Wait;
#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, LostReason};
use crate::hold::{Asked, Entered, Hold, Site, Tenancy, Terms};
use crate::lock::{Handle, Trying, lock_verbs};
use crate::node::Session;
use crate::protocol::Owner;
use crate::script::fair::{FairAcquired, Followers};
use crate::script::{self, Replied, Trouble};
use crate::sync::{Thread, clock};

pub(crate) use self::queue::{FairQueue, give_back, take_out};

mod company;
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
/// // Behind all who asked before, on all machines; out of the queue again after 30 s.
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
/// # Waiters that die
///
/// Who releases the lock hands it to the first in line whose process listens: a waiter whose
/// process was killed is passed, and costs nothing. One whose process was stopped is granted the
/// lock for two seconds, and costs the others that, once; when it goes on, it gets its place at the
/// head back. A process says every second, and more often where a third of
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
/// # What fairness costs
///
/// Every thread stands in Redis's queue for itself, and each grant to another process is a message:
/// the lock is idle until that process has read it. Where the order does not matter,
/// [`reentrant_lock`](crate::Client::reentrant_lock) is several times as fast.
#[derive(Clone, Debug)]
pub struct FairLock {
    handle: Handle,
    queue: Arc<FairQueue>,
}

lock_verbs!(FairLock);

impl FairLock {
    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = Site::of(session.core(), name);
        let queue = FairQueue::of(&site);
        Self { handle: Handle::new(session.clone(), site), queue }
    }

    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        let Site { route, name, .. } = &*self.handle.site;
        script::lock::force_unlock(route, name, &self.queue.scripts().force_unlock_command())
    }

    /// Mine already? Else one script, or a place in the queue that Redis keeps.
    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        match self.reenter(thread, &wait)? {
            Some(tenancy) => return Ok(tenancy),
            None if wait.blocks() => {}
            None => {
                let (owner, asked) = self.attempt();
                let Self { handle: Handle { site, .. }, queue, .. } = self;
                let lease = self.handle.terms().lease(&site.core);
                let replied = queue.scripts().try_acquire(&site.route, &owner, lease);
                return self.tried(thread, owner, asked, replied);
            }
        }
        let tenancy = self.stand_in_queue(thread, self.handle.terms(), &wait)?;
        tenancy.map(|tenancy| self.handle.admitted(tenancy)).transpose()
    }

    /// As [`acquire`](Self::acquire) with no wait: see [`Part`](crate::lock::Part).
    fn begin_try<'a>(&'a self, thread: &'a Arc<Thread>) -> Trying<'a> {
        match self.reenter(thread, &Wait::NONE) {
            Ok(None) => {}
            Ok(Some(tenancy)) => return Box::new(|_| Ok(tenancy)),
            Err(error) => return Box::new(|_| Err(error)),
        }
        let (owner, asked) = self.attempt();
        let site = &self.handle.site;
        let lease = self.handle.terms().lease(&site.core);
        let heard = self.queue.scripts().begin_try(&site.route, &owner, lease);
        Box::new(move |until| self.tried(thread, owner, asked, heard(until)))
    }

    /// Whether it is the thread's already, or (`Some(None)`) another's of this process.
    fn reenter(
        &self,
        thread: &Arc<Thread>,
        wait: &Wait<'_>,
    ) -> Result<Option<Option<Arc<Tenancy>>>, Error> {
        self.handle.check(wait)?;
        let site = &self.handle.site;
        loop {
            match site.gate.reenter(thread, self.handle.terms()) {
                None => return Ok(None),
                Some(Entered::Again(tenancy)) => {
                    if self.handle.deepen(&tenancy)? {
                        return Ok(Some(Some(tenancy)));
                    }
                }
                Some(Entered::Expired(tenancy)) => site.lose(&tenancy, LostReason::LeaseExpired),
                Some(Entered::TooDeep) => return Err(self.handle.too_deep()),
                Some(_) if wait.blocks() => return Ok(None),
                Some(_) => return Ok(Some(None)),
            }
        }
    }

    /// Who takes the lock if nobody holds it or waits for it, and what was true before that is asked.
    fn attempt(&self) -> (Owner, Asked) {
        let site = &self.handle.site;
        (site.core.id.next_owner(), Asked::now(site))
    }

    /// It was asked.
    fn tried(
        &self,
        thread: &Arc<Thread>,
        owner: Owner,
        asked: Asked,
        replied: Result<Replied<bool>, Trouble>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let Self { handle: Handle { site, .. }, queue, .. } = self;
        let terms = self.handle.terms();
        let lease = terms.lease(&site.core);
        let undo = || site.undo(queue.scripts().give_up_command(owner.as_bytes()), lease);
        match replied {
            Ok(Replied { reply: false, twice }) => {
                if twice {
                    undo();
                }
                Ok(None)
            }
            Ok(Replied { reply: true, twice }) => {
                let line = queue.line(Followers::new());
                let hold = Hold::new(Some(line), owner, terms, lease, asked, twice);
                let admitted = queue.admit(site, hold, thread, terms).inspect_err(|_| undo())?;
                match admitted.inspect_err(|_| undo()) {
                    Err(hold) if clock::now() >= hold.deadline() => {
                        Err(Error::late_grant(&site.name))
                    }
                    admitted => {
                        let tenancy = admitted.ok();
                        tenancy.map(|tenancy| self.handle.admitted(tenancy)).transpose()
                    }
                }
            }
            Err(trouble) => Err(self.trouble(trouble, &owner, terms)),
        }
    }

    /// Takes the lock or a place in the queue, and sleeps until told to ask again, or until a
    /// thread of this process passes the hold on.
    fn stand_in_queue(
        &self,
        thread: &Arc<Thread>,
        terms: Terms,
        wait: &Wait<'_>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let Self { handle: Handle { site, .. }, queue, .. } = self;
        let core = &site.core;
        let mut late = 0;
        'places: loop {
            // Known to the process before it is to Redis: a hold may be passed to it, and its
            // sign of life is due, from the moment it stands there.
            let mut place = queue.join(site, thread, core.id.next_owner(), terms);
            let owner = place.waiter.owner;
            let mut queued = false;
            let hold = loop {
                // Subscribe first: a message between the request and the confirmation is lost, so
                // a request that was sent before the confirmation is sent again after it.
                let listening = place.listening();
                let (asked, replied) = place.ask(!queued);
                let ask_after = match replied.map(|replied| replied.reply) {
                    Ok(FairAcquired::Granted { already, followers, .. }) => {
                        if already {
                            // The message of that is on its way, or was lost.
                            core.pubsub.suspect(&site.name);
                        }
                        break Some(place.hold(asked, followers));
                    }
                    Ok(FairAcquired::Queued { now, ask_after, by_redisson, came_back }) => {
                        if came_back {
                            // Its place was used up by a grant of which nothing was heard, or it did
                            // not listen.
                            core.pubsub.suspect(&site.name);
                        }
                        place.refused(asked, now);
                        if by_redisson {
                            place.listen_to_redisson();
                        }
                        ask_after
                    }
                    Err(trouble) => {
                        let untaken = matches!(trouble, Trouble::Unsent(_) | Trouble::Refused(_));
                        place.unknown_there = untaken && !queued;
                        return Err(self.trouble(trouble, &owner, terms));
                    }
                };
                queued = true;
                // Whatever came while it asked: the hold may have been passed to it meanwhile.
                let goes_on = if place.is_heard_since(listening) {
                    place.sleep(core, wait, ask_after, listening)?
                } else {
                    place.await_messages(core, wait)?
                };
                // One that came before the end of the wait wins.
                let hold = place.take_grant();
                if hold.is_some() || !goes_on {
                    break hold;
                }
                if let Some(tenancy) = place.waiter.take_passed() {
                    if tenancy.is_held() {
                        return Ok(Some(place.settle(tenancy)));
                    }
                    // The receiver looks once more: it slept through the rest of the lease. Its
                    // place is gone, too.
                    site.lose(&tenancy, LostReason::LeaseExpired);
                    continue 'places;
                }
            };
            let Some(hold) = hold else {
                // Decided under the queue's mutex: what was passed before the end counts.
                return Ok(place.leave());
            };
            if let Some(tenancy) = place.stand_down() {
                // While it asked, a hold was passed to it, and taken away by force: only then could
                // the server grant it another. It asks as another owner, since whoever hears of the
                // forced unlock gives up what this one has.
                site.lose(&tenancy, LostReason::Revoked);
                continue;
            }
            match queue.admit(site, hold, thread, terms)? {
                Ok(tenancy) => return Ok(Some(place.settle(tenancy))),
                // A grant read after its own deadline is none.
                Err(hold) => late += u32::from(clock::now() >= hold.deadline()),
            }
            if late == MOST_LATE {
                return Err(Error::late_grant(&site.name));
            }
        }
    }

    fn trouble(&self, trouble: Trouble, owner: &Owner, terms: Terms) -> Error {
        let site = &self.handle.site;
        let state = if let Trouble::Unknown(_) = trouble {
            let give_up = self.queue.scripts().give_up_command(owner.as_bytes());
            site.undo(give_up, terms.lease(&site.core));
            "nothing is held; if the server took the lock or a place in its queue nevertheless, \
             that is given up in the background"
        } else {
            "the lock was not taken"
        };
        trouble.into_error().of(&site.name).now(state)
    }
}

/// So many grants in a row may arrive after their own end.
const MOST_LATE: u32 = 3;
