//! The re-entrant lock: Redisson's `RLock`.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Before, Contender, Entered, GateWaiter, Signal, Try, Wait};
use crate::client::Client;
use crate::connection::Command;
use crate::error::Error;
use crate::hold::{Asked, Baton, Hold, LostReason, Site, Tenancy, Terms, clock};
use crate::lock::{Handle, lock_verbs};
use crate::protocol::Owner;
use crate::script::{self, Trouble, lock::Acquired};
use crate::sync::Thread;

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
/// Threads of one process, and owned guards, get the lock in the order they came. Between processes
/// there is no order; a process gives the lock back after a turn of at most 10 ms, if others want
/// it, so none starves. (Holds of more than 10 ms are turns of their own, and then who
/// is quicker to come gets more of them: a Java service may wait for a few seconds.) Where the order
/// matters, use a fair lock.
///
/// # In Redis
///
/// A hash under the lock's name, as Redisson's `RLock` has it: owner to count, with the lease as
/// its time to live. Java services may use the same lock.
#[derive(Clone, Debug)]
pub struct ReentrantLock {
    handle: Handle,
}

lock_verbs!(ReentrantLock);

impl ReentrantLock {
    pub(crate) fn new(client: Client, site: Arc<Site>) -> Self {
        Self { handle: Handle::new(client, site) }
    }

    /// Mine already? Somebody's in this process? Else ask Redis, as the only one of this process
    /// that does.
    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        self.handle.check(&wait)?;
        let site = &self.handle.site;
        let terms = self.handle.terms();
        loop {
            let baton = match site.gate.enter(thread, terms, wait.blocks()) {
                Entered::Again(tenancy) => {
                    if self.handle.deepen(&tenancy)? {
                        return Ok(Some(tenancy));
                    }
                    continue;
                }
                Entered::Expired(tenancy) => {
                    site.lose(&tenancy, LostReason::LeaseExpired);
                    continue;
                }
                Entered::Leads => Baton { site },
                Entered::Queued(waiter) => match self.stand_in_queue(&waiter, &wait)? {
                    Turn::Baton(baton) => baton,
                    // The receiver looks once more: it may have slept through the rest of the
                    // lease between the pass and here.
                    Turn::Granted(tenancy) if tenancy.is_held() => {
                        return self.handle.admitted(tenancy).map(Some);
                    }
                    Turn::Granted(tenancy) => {
                        site.lose(&tenancy, LostReason::LeaseExpired);
                        continue;
                    }
                    Turn::GivenUp => return Ok(None),
                },
                Entered::Occupied => return Ok(None),
                Entered::TooDeep => return Err(self.handle.too_deep()),
            };
            return self.lead(baton, thread, wait);
        }
    }

    fn force_unlock_command(&self) -> Command {
        let site = &self.handle.site;
        script::lock::force_unlock_command(&site.name, site.channel())
    }

    /// Sleeps in the process's own queue.
    fn stand_in_queue(&self, waiter: &Arc<GateWaiter>, wait: &Wait<'_>) -> Result<Turn<'_>, Error> {
        let site = &self.handle.site;
        let signal = waiter.stand(
            self.handle.client.core(),
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
            Some(Signal::Granted(tenancy)) => Ok(Turn::Granted(tenancy)),
            Some(Signal::Baton) => Ok(Turn::Baton(Baton { site })),
            Some(Signal::Failed(error)) => Err(error),
            None => Ok(Turn::GivenUp),
        }
    }

    /// Asks Redis until a grant stays, or the wait is over.
    fn lead(
        &self,
        mut baton: Baton<'_>,
        thread: &Arc<Thread>,
        wait: Wait<'_>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let site = &self.handle.site;
        let terms = self.handle.terms();
        let contender = Contender {
            core: self.handle.client.core(),
            name: &site.name,
            channel: site.channel(),
            thread,
            wait,
            news: &|| false,
        };
        let mut request = Request::new(site, terms, &wait);
        loop {
            let Some(hold) = self.ask(&contender, &mut request)? else { return Ok(None) };
            let tenancy = Arc::new(Tenancy::new(Arc::new(hold), Arc::clone(thread)));
            baton = match baton.admit(&tenancy, terms)? {
                Ok(()) => {
                    request.is_granted = true;
                    return self.handle.admitted(tenancy).map(Some);
                }
                Err(baton) => baton,
            };
            // Between the grant and here the lease has ended, or a forced unlock of this process
            // was answered, before or after the grant. Undone now, and not when this returns: the
            // next request would wait for this one's hold.
            request.undo(clock::now() >= tenancy.hold.deadline())?;
            if wait.is_over() {
                return Ok(None);
            }
        }
    }

    /// Leaves the lock to other processes if it is their turn, then asks and waits for them.
    fn ask(
        &self,
        contender: &Contender<'_>,
        request: &mut Request<'_>,
    ) -> Result<Option<Hold>, Error> {
        let gate = &self.handle.site.gate;
        let stayed = self.stay_away(contender)?;
        if matches!(stayed, Stayed::TooShort) {
            return Ok(None);
        }
        let mut refused = false;
        let granted = contender.acquire(
            |attempt| {
                let tried = request.send()?;
                // The second try is the subscription's, no race was lost with it.
                match tried {
                    Try::Busy(_) if attempt.tries > 1 => gate.with_backoff(|race| race.lost()),
                    Try::Granted(_) if attempt.tries > 1 => gate.with_backoff(|race| race.won()),
                    _ => {}
                }
                refused |= matches!(tried, Try::Busy(_));
                Ok(tried)
            },
            |waited| gate.pause(waited),
        )?;
        if let Stayed::Away { heard } = stayed {
            gate.with_turn(|turn| turn.yielded(heard || refused));
        }
        Ok(granted)
    }

    /// After the process's turn: leaves the lock to others for a moment.
    fn stay_away(&self, contender: &Contender<'_>) -> Result<Stayed, Error> {
        let site = &self.handle.site;
        let Before::Yield(last) = site.gate.before_asking() else { return Ok(Stayed::No) };
        if !site.gate.with_turn(|turn| turn.knows_listeners()) {
            let timeout = contender.core.response_timeout();
            site.lane.look(timeout, timeout);
        }
        let subscription = contender.core.pubsub.listening(site.channel());
        let own = i64::from(subscription.is_some());
        let others = site.gate.with_turn(|turn| turn.others(own));
        if others == Some(0) {
            site.gate.with_turn(|turn| turn.end(0));
            return Ok(Stayed::No);
        }
        let rest = site.gate.with_turn(|turn| turn.rest(last.at, clock::now()));
        let until = contender.wait.sleep_until(rest);
        // Its own message is the first one after the release; a further one is another process's.
        let version = subscription.as_ref().map_or(0, |subscription| subscription.version());
        let further = last.version.unwrap_or(version) + 2;
        contender.sleep(subscription.as_ref(), until, |version| version >= further)?;
        let heard = subscription.is_some_and(|subscription| subscription.version() >= further);
        let left = site.gate.with_turn(|turn| turn.rest(last.at, clock::now()));
        // Whoever cannot wait for that long would go before them again and again. (Where it is not
        // known whether there are any, nobody is kept from a lock that is free.)
        if !heard && !left.is_zero() && contender.wait.is_over() && others.is_some() {
            return Ok(Stayed::TooShort);
        }
        site.gate.with_turn(|turn| turn.end(others.unwrap_or(1)));
        Ok(Stayed::Away { heard })
    }
}

/// Whether a leader left the lock to other processes.
enum Stayed {
    No,
    /// It did; `heard`: one of them used it.
    Away {
        heard: bool,
    },
    /// Its wait is over before they could come: they are before it.
    TooShort,
}

/// How standing in the queue ended.
enum Turn<'a> {
    Granted(Arc<Tenancy>),
    Baton(Baton<'a>),
    GivenUp,
}

/// One acquisition's request, sent until it is granted.
struct Request<'a> {
    site: &'a Arc<Site>,
    terms: Terms,
    owner: Owner,
    late: u32,
    most_late: u32,
    /// It was sent twice, or granted: it must be undone unless it ends in a guard.
    is_pending: bool,
    is_granted: bool,
}

/// So many grants in a row may arrive after their own end. One, where there is one try.
const MOST_LATE: u32 = 3;

impl<'a> Request<'a> {
    fn new(site: &'a Arc<Site>, terms: Terms, wait: &Wait<'_>) -> Self {
        let owner = site.core.id.next_owner();
        let most_late = if wait.blocks() { MOST_LATE } else { 1 };
        Self { site, terms, owner, late: 0, most_late, is_pending: false, is_granted: false }
    }

    fn send(&mut self) -> Result<Try<Hold>, Error> {
        let Self { site, terms, owner, .. } = *self;
        let lease = site.core.lease(terms);
        let arrivals = site.gate.arrivals();
        let asked = Asked::now(site);
        let acquired = script::lock::acquire(&site.lane, &site.name, &owner, lease);
        self.is_pending |= acquired.as_ref().is_ok_and(|replied| replied.twice);
        let trouble = match acquired.map(|replied| replied.reply) {
            Ok(Acquired::Granted) => {
                let hold = Hold::new(None, owner, terms, lease, asked, self.is_pending);
                if clock::now() < hold.deadline() {
                    self.is_pending = true;
                    return Ok(Try::Granted(hold));
                }
                // Read after its own deadline.
                self.undo(true)?;
                return Ok(Try::Busy(Some(Duration::ZERO)));
            }
            Ok(Acquired::Busy(left)) => return Ok(Try::Busy(Some(left))),
            Err(trouble) => trouble,
        };
        self.is_pending |= matches!(trouble, Trouble::Unknown(_));
        let alone = matches!(trouble, Trouble::Refused(_));
        let state = match trouble {
            Trouble::Unknown(_) | Trouble::Forgotten(_) => {
                "nothing is held; if the server took the lock nevertheless, it is released in the \
                 background, or ends with its lease"
            }
            Trouble::Refused(_) | Trouble::Unsent(_) => "the lock was not taken",
        };
        let error = trouble.into_error().of(&site.name).now(state);
        if !alone {
            // A dead server is not found out one waiter at a time.
            site.gate.fail_before(arrivals, &error);
        }
        Err(error)
    }

    /// A grant that is none any more is given back; what is asked for next has another owner.
    /// `late`: it was read after its own deadline.
    fn undo(&mut self, late: bool) -> Result<(), Error> {
        self.site.let_die(&self.owner, self.terms);
        self.is_pending = false;
        self.owner = self.site.core.id.next_owner();
        self.late += u32::from(late);
        if self.late < self.most_late {
            return Ok(());
        }
        Err(Error::late_grant(&self.site.name))
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.is_pending && !self.is_granted {
            self.site.let_die(&self.owner, self.terms);
        }
    }
}
