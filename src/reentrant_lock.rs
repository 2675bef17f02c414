//! The re-entrant lock: Redisson's `RLock`.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Signal, Wait};
#[cfg(doc)]
use crate::client::Client;
use crate::error::Error;
use crate::error::LostReason;
use crate::hold::{Asked, Baton, Entered, GateWaiter, Hold, Place, Share, Site, Tenancy};
use crate::lock::{Handle, Trying, lock_verbs};
use crate::node::Session;
use crate::protocol::Owner;
use crate::script::{Replied, Trouble};
use crate::sync::Thread;
use crate::sync::clock;

/// A lock that its holder may take again, in one thread of one process at a time, on any machine:
/// `ReentrantLock` of java.util.concurrent, Redisson's `RLock`. Made by
/// [`Client::reentrant_lock`].
///
/// A clone is the same lock, and so is every handle of the same name. Its methods are those of
/// [`Lock`](crate::Lock).
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.reentrant_lock("orders");
///
/// let guard = lock.lock()?; // for as long as the guard lives: the watchdog renews it
/// let again = lock.lock()?; // the same thread: a level more, no command
/// again.unlock()?;
/// guard.unlock()?;
///
/// let at_most = lock.with_lease(Duration::from_secs(10)); // never renewed
/// match at_most.try_lock_for(Duration::from_secs(3))? {
///     Some(guard) => guard.check(Duration::from_secs(1))?,
///     None => println!("another has it"),
/// }
/// # Ok(()) }
/// ```
///
/// # Fairness
///
/// Threads of one process, and owned guards, get the lock in the order they came, and processes in
/// the order in which they began to wait: each release makes the next process the owner. A process
/// may pass the lock among its own threads for a turn of at most 10 ms, a shorter one the more
/// processes wait; then it stands at the end of the queue. Where the order of all threads on all
/// machines matters, use a fair lock.
///
/// [`try_lock`](Self::try_lock) takes a free lock past the queue. A waiter whose process was killed
/// costs the others nothing. One that stands still (a stopped process, a network that is cut and
/// does not say so) costs them 2 s, and loses its place.
///
/// Redisson's clients know no queue. While some of them wait, a part of the releases is left to
/// them: the lock is free for 4 ms, and nobody in the queue takes it. So each of them gets it about
/// as often as a process of this library, or half as often beside one alone (simulated).
///
/// # After a hand-off
///
/// A lock that another process handed on is certain for 2 s at first, and for its lease when it was
/// held for 50 ms, since only then it is known that its new owner is awake.
/// [`LockGuard::check`](crate::LockGuard::check) asks for the lease sooner. If process or server
/// stands still for 2 s right after a hand-off, the lock is lost, and the guard says so.
///
/// # In Redis
///
/// A hash under the lock's name, as Redisson's `RLock` has it: owner to count, with the lease as
/// its time to live. Java services may use the same lock. Beside it this library has keys of its
/// own while processes wait: `redlatch_queue:{name}` and `redlatch_window:{name}`. Access rights
/// must allow them (`lua/README.md`, "Rights"); without them a client waits for public releases, as
/// Redisson's do, and others wait longer for its own.
#[derive(Clone, Debug)]
pub struct ReentrantLock {
    handle: Handle,
}

lock_verbs!(ReentrantLock);

impl ReentrantLock {
    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = Site::of(session.core(), name);
        Self { handle: Handle::new(session.clone(), site) }
    }

    /// Mine already? Somebody's in this process? Else ask Redis, as the only one of this process
    /// that does.
    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        match self.enter(thread, &wait)? {
            Stood::Baton(baton) => self.lead(baton, thread, wait),
            Stood::Granted(tenancy) => Ok(Some(tenancy)),
            Stood::GivenUp => Ok(None),
        }
    }

    /// As [`acquire`](Self::acquire) with no wait: see [`Part`](crate::lock::Part).
    fn begin_try<'a>(&'a self, thread: &'a Arc<Thread>) -> Trying<'a> {
        let attempt = match self.enter(thread, &Wait::NONE) {
            Ok(Stood::Baton(baton)) => Attempt::new(self, baton, thread),
            Ok(Stood::Granted(tenancy)) => return Box::new(|_| Ok(Some(tenancy))),
            Ok(Stood::GivenUp) => return Box::new(|_| Ok(None)),
            Err(error) => return Box::new(|_| Err(error)),
        };
        let heard = self.handle.site.scripts().begin_try(&attempt.owner, attempt.lease);
        Box::new(move |until| self.tried(attempt, heard(until)))
    }

    /// Into the process's gate.
    fn enter(&self, thread: &Arc<Thread>, wait: &Wait<'_>) -> Result<Stood<'_>, Error> {
        self.handle.check(wait)?;
        let site = &self.handle.site;
        let terms = self.handle.terms();
        loop {
            match site.gate.enter(thread, terms, wait.blocks()) {
                Entered::Again(tenancy) => {
                    if self.handle.deepen(&tenancy)? {
                        return Ok(Stood::Granted(tenancy));
                    }
                }
                Entered::Expired(tenancy) => site.lose(&tenancy, LostReason::LeaseExpired),
                Entered::Leads => return Ok(Stood::Baton(Baton::new(site, None))),
                Entered::Queued(waiter) => match self.stand_in_queue(&waiter, wait)? {
                    // The receiver looks once more: it may have slept through the rest of the
                    // lease between the pass and here.
                    Stood::Granted(tenancy) if tenancy.is_held() => {
                        return self.handle.admitted(tenancy).map(Stood::Granted);
                    }
                    Stood::Granted(tenancy) => site.lose(&tenancy, LostReason::LeaseExpired),
                    stood => return Ok(stood),
                },
                Entered::Occupied => return Ok(Stood::GivenUp),
                Entered::TooDeep => return Err(self.handle.too_deep()),
            }
        }
    }

    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        self.handle.site.scripts().force_unlock()
    }

    /// Sleeps in the process's own queue.
    fn stand_in_queue(
        &self,
        waiter: &Arc<GateWaiter>,
        wait: &Wait<'_>,
    ) -> Result<Stood<'_>, Error> {
        let site = &self.handle.site;
        let signal = waiter.stand(
            self.handle.session.core(),
            &site.name,
            wait,
            |waiter| site.gate.give_up(waiter),
            || {
                // The wheel opens the gate when the hold in front ends; this is for the case that
                // it could not.
                if let Some(tenancy) = site.gate.expired() {
                    site.lose(&tenancy, LostReason::LeaseExpired);
                }
            },
        )?;
        match signal {
            Some(Signal::Granted(tenancy)) => Ok(Stood::Granted(tenancy)),
            Some(Signal::Baton) => Ok(Stood::Baton(Baton::new(site, site.gate.take_place()))),
            Some(Signal::Failed(error)) => Err(error),
            None => Ok(Stood::GivenUp),
        }
    }

    /// Waits for the lock on behalf of the process, until a grant stays or the wait is over.
    fn lead(
        &self,
        mut baton: Baton<'_>,
        thread: &Arc<Thread>,
        wait: Wait<'_>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let site = &self.handle.site;
        let terms = self.handle.terms();
        if !wait.blocks() {
            let attempt = Attempt::new(self, baton, thread);
            let replied = site.scripts().try_acquire(&attempt.owner, attempt.lease);
            return self.tried(attempt, replied);
        }
        loop {
            let place = baton.place.get_or_insert_with(|| Box::new(Place::new(site)));
            let Some(hold) = place.await_grant(site, thread, terms, &wait)? else {
                return Ok(None);
            };
            let tenancy = Arc::new(Tenancy::new(Arc::new(hold), Arc::clone(thread)));
            if baton.admit(&tenancy, terms)? {
                return self.handle.admitted(tenancy).map(Some);
            }
            // Between the grant and here the lease has ended, or a forced unlock of this process
            // was answered, before or after the grant. The server knows.
            if let Some(place) = &mut baton.place {
                place.ask_again();
            }
            if wait.is_over() {
                return Ok(None);
            }
        }
    }

    /// It was asked whether the lock is free.
    fn tried(
        &self,
        attempt: Attempt<'_>,
        replied: Result<Replied<Option<u32>>, Trouble>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let Attempt { mut baton, thread, owner, lease, arrivals, asked } = attempt;
        let site = &self.handle.site;
        let terms = self.handle.terms();
        let undo = || site.repeat(site.give_up_command(&owner), lease);
        let (places, twice) = match replied {
            Ok(Replied { reply: Some(places), twice }) => (places, twice),
            Ok(Replied { reply: None, twice }) => {
                if twice {
                    undo();
                }
                return Ok(None);
            }
            Err(trouble) => {
                if let Trouble::Unknown(_) = trouble {
                    undo();
                }
                return Err(site.not_taken(trouble, arrivals));
            }
        };
        let share = Share { places, chain: site.gate.chain(asked.at) };
        let hold = Hold::new(None, owner, terms, lease, asked, twice).shared(share, None);
        let tenancy = Arc::new(Tenancy::new(Arc::new(hold), Arc::clone(thread)));
        if baton.admit(&tenancy, terms).inspect_err(|_| undo())? {
            return self.handle.admitted(tenancy).map(Some);
        }
        undo();
        if clock::now() >= tenancy.hold.deadline() {
            return Err(Error::late_grant(&site.name));
        }
        Ok(None)
    }
}

/// Taking the lock if it is free: past the queue, and without a place in it.
struct Attempt<'a> {
    baton: Baton<'a>,
    thread: &'a Arc<Thread>,
    owner: Owner,
    lease: Duration,
    arrivals: u64,
    asked: Asked,
}

impl<'a> Attempt<'a> {
    /// What was true before it is asked.
    fn new(lock: &ReentrantLock, baton: Baton<'a>, thread: &'a Arc<Thread>) -> Self {
        let site = &lock.handle.site;
        let lease = lock.handle.terms().lease(&site.core);
        let (owner, arrivals) = (site.core.id.next_owner(), site.gate.arrivals());
        Self { baton, thread, owner, lease, arrivals, asked: Asked::now(site) }
    }
}

/// How the gate let a thread in.
enum Stood<'a> {
    Granted(Arc<Tenancy>),
    Baton(Baton<'a>),
    GivenUp,
}
