//! The fair lock: Redisson's `RFairLock`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::acquire::{Confirmation, Contender, Entered, Wait, Wake, slow_poll};
use crate::client::{Client, Core};
use crate::connection::{Command, Outcome, Receiver};
use crate::error::{Error, ErrorKind};
use crate::hold::{Asked, Hold, Line, LostReason, Site, Tenancy, Terms, clock};
use crate::lock::{Handle, LockGuard, lock_verbs};
use crate::protocol::{FairKeys, Owner};
use crate::pubsub::{Hub, Subscription};
use crate::script::fair::{FairAcquired, FairScripts, kept_alive, left};
use crate::script::{Replied, Trouble};
use crate::sync::{Mutex, Thread};
use crate::watchdog::{Chore, Errand};

#[cfg(all(test, not(shuttle)))]
mod tests;

/// A lock that is granted in the order in which it was asked for, across threads, processes and
/// machines: Redisson's `RFairLock`, a fair `ReentrantLock` of java.util.concurrent. Made by
/// [`Client::fair_lock`].
///
/// A clone is the same lock, and so is every handle of the same name. Its methods are those of
/// [`Lock`](crate::Lock).
///
/// # Order
///
/// Every thread that waits stands in one queue, which Redis keeps; the order is that in which
/// Redis saw the first attempts. `try_lock` does not pass the queue: it takes the lock only if
/// nobody waits. Whoever gives up (deadline, cancel, error, panic) leaves the queue at once. Where
/// threads of one process stand one behind the other, the lock is passed from one to the next
/// without a round trip.
///
/// # Waiters that die
///
/// A process says every third of
/// [`fair_wait_timeout`](crate::ClientBuilder::fair_wait_timeout) that its waiters live. One whose
/// process died costs the others that time (10 s) when it is first in line; one that lives is
/// never dropped, however long it waits. One that was stopped for longer and goes on gets its
/// place at the head back.
///
/// Redisson's clients may stand in the same queue. What Redisson itself does there remains: its
/// dead waiter blocks the others for up to the lease and five minutes; one of its timed waits that
/// ends at the moment of a release keeps the message to itself, and the lock is idle until the next
/// sign of life of ours (a third of the fair wait). Limits with Redisson in the queue: its waiters
/// must not wait longer than 300 s at a time, and the clocks of its machines must agree with the
/// server's to about 7 s. A dead waiter of ours costs 10 s as long as a living one of ours stands in
/// the queue, too; where only Redisson's are left, up to the rest of a lease (30 s), and five minutes
/// more for each timed wait of theirs that was ahead of it and ended early.
///
/// # What fairness costs
///
/// Each grant to another process costs two round trips of the waiter, and the lock is idle
/// meanwhile. Where the order does not matter,
/// [`reentrant_lock`](crate::Client::reentrant_lock) is several times as fast.
#[derive(Clone, Debug)]
pub struct FairLock {
    handle: Handle,
    queue: Arc<FairQueue>,
}

lock_verbs!(FairLock);

/// So many waiters of this process that stand directly behind may have the hold after its owner.
const MOST_FOLLOWERS: u32 = 16;
/// How fresh the server's word must be for a pass.
const FRESH: u64 = 10_000_000;

impl FairLock {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        let site = Site::of(client.core(), name);
        let queue = FairQueue::of(&site);
        Self { handle: Handle::new(client, site), queue }
    }

    fn force_unlock_command(&self) -> Command {
        self.queue.scripts().force_unlock_command()
    }

    /// Mine already? Else one script, or a place in the queue that Redis keeps.
    fn acquire(&self, wait: Wait<'_>) -> Result<Option<LockGuard>, Error> {
        self.handle.check(&wait)?;
        let site = &self.handle.site;
        let terms = self.handle.terms();
        let thread = Thread::current();
        loop {
            match site.gate.reenter(&thread, terms) {
                None => break,
                Some(Entered::Again(tenancy)) => {
                    if self.handle.deepen(&tenancy)? {
                        return Ok(Some(LockGuard::new(&self.handle, tenancy, terms)));
                    }
                }
                Some(Entered::Expired(tenancy)) => site.lose(&tenancy, LostReason::LeaseExpired),
                Some(Entered::TooDeep) => return Err(self.handle.too_deep()),
                Some(_) if wait.blocks() => break,
                Some(_) => return Ok(None),
            }
        }
        let tenancy = if wait.blocks() {
            self.stand_in_queue(&thread, terms, &wait)?
        } else {
            self.try_once(&thread, terms)?
        };
        tenancy.map(|tenancy| self.handle.admitted(tenancy)).transpose()
    }

    /// Takes the lock if nobody holds it or waits for it.
    fn try_once(&self, thread: &Arc<Thread>, terms: Terms) -> Result<Option<Arc<Tenancy>>, Error> {
        let Self { handle: Handle { site, .. }, queue, .. } = self;
        let owner = site.core.id.next_owner();
        let lease = site.core.lease(terms);
        let undo = || site.repeat(queue.scripts().give_up_command(owner.as_bytes()), lease);
        let asked = Asked::now(site);
        match queue.scripts().try_acquire(&site.lane, &owner, lease) {
            Ok(Replied { reply: false, twice }) => {
                if twice {
                    undo();
                }
                Ok(None)
            }
            Ok(Replied { reply: true, twice }) => {
                let hold = queue.hold(owner, terms, lease, asked, twice, Vec::new());
                let admitted = queue.admit(site, hold, thread, terms);
                Ok(admitted.inspect_err(|_| undo()).ok())
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
            let mut own_channel = None;
            let mut queued = false;
            let hold = loop {
                if own_channel.is_none() {
                    own_channel = queue.own_channel(core, &owner);
                }
                let subscription = own_channel.as_ref().unwrap_or(&place.subscription);
                // Subscribe first: a message between the request and the confirmation is lost, so
                // a request that was sent before the confirmation is sent again after it.
                let confirmed = subscription.is_confirmed();
                let version = subscription.version();
                place.waiter.told.store(false, Ordering::SeqCst);
                let asked = Asked::now(site);
                let lease = core.lease(terms);
                let replied =
                    queue.scripts().acquire(&site.lane, &owner, lease, queued, MOST_FOLLOWERS);
                place.twice |= replied.as_ref().is_ok_and(|replied| replied.twice);
                let ask_after = match replied.map(|replied| replied.reply) {
                    Ok(FairAcquired::Granted(followers)) => {
                        break Some(queue.hold(owner, terms, lease, asked, place.twice, followers));
                    }
                    Ok(FairAcquired::Queued { is_first, ask_after }) => {
                        ask_after.filter(|_| is_first)
                    }
                    Err(trouble) => return Err(self.trouble(trouble, &owner, terms)),
                };
                queued = true;
                // Whatever came while it asked: the hold may have been passed to it meanwhile.
                let goes_on = if confirmed {
                    let _waking = own_channel.as_ref().map(|channel| channel.wake(thread));
                    place.sleep(core, wait, ask_after, || {
                        place.waiter.has_news()
                            || own_channel.is_some() && subscription.version() != version
                    })?
                } else {
                    place.await_messages(subscription, core, wait)?
                };
                if !goes_on {
                    break None;
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
            match queue.admit(site, hold, thread, terms) {
                Ok(tenancy) => return Ok(Some(place.settle(tenancy))),
                // A grant read after its own deadline is none.
                Err(hold) => late += u32::from(clock::now() >= hold.deadline()),
            }
            if late == MOST_LATE {
                let message = "each grant's lease was over before its reply was read; nothing is \
                               held, take a longer lease";
                return Err(Error::new(ErrorKind::LeaseLost, message.to_owned()).of(&site.name));
            }
        }
    }

    fn trouble(&self, trouble: Trouble, owner: &Owner, terms: Terms) -> Error {
        let site = &self.handle.site;
        let state = if let Trouble::Unknown(_) = trouble {
            site.repeat(
                self.queue.scripts().give_up_command(owner.as_bytes()),
                site.core.lease(terms),
            );
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

/// Who of this process waits for one fair lock. The order is in Redis; this only knows whom to
/// wake.
pub(crate) struct FairQueue {
    core: Arc<Core>,
    name: Arc<str>,
    keys: FairKeys,
    /// All channels of this client's waiters.
    pattern: Arc<str>,
    waiters: Mutex<Waiters>,
    /// The server does not allow the pattern: each waiter listens to its own channel.
    no_pattern: AtomicBool,
}

#[derive(Default)]
struct Waiters {
    standing: Vec<Arc<FairWaiter>>,
    /// Whether the next sign of life is scheduled.
    kept_alive: bool,
}

/// A thread that stands in the queue.
struct FairWaiter {
    owner: Owner,
    thread: Arc<Thread>,
    terms: Terms,
    /// It should ask.
    told: AtomicBool,
    /// The hold was passed to it. Set under the queue's mutex, so that this against its giving up
    /// is decided there.
    passed: Mutex<Option<Arc<Tenancy>>>,
}

impl FairWaiter {
    fn has_news(&self) -> bool {
        self.told.load(Ordering::SeqCst) || self.passed.lock().is_some()
    }

    fn take_passed(&self) -> Option<Arc<Tenancy>> {
        self.passed.lock().take()
    }

    fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.thread.parker().unpark();
    }
}

impl FairQueue {
    /// The queue of a name: one for all handles.
    fn of(site: &Site) -> Arc<Self> {
        site.core.fair_queues.get(&site.name, |name| {
            let keys = FairKeys::new(&name);
            Self {
                pattern: keys.channel_pattern(site.core.id.as_str()).into(),
                core: Arc::clone(&site.core),
                name,
                keys,
                waiters: Mutex::default(),
                no_pattern: AtomicBool::new(false),
            }
        })
    }

    fn scripts(&self) -> FairScripts<'_> {
        let fair_wait = self.core.config.fair_wait_timeout;
        FairScripts { key: &self.name, keys: &self.keys, fair_wait }
    }

    /// Wakes all who wait, for something that is not the queue's news.
    pub(crate) fn nudge(&self) {
        let standing = self.waiters.lock().standing.clone();
        standing.iter().for_each(|waiter| waiter.thread.parker().unpark());
    }

    fn join(
        self: &Arc<Self>,
        site: &Arc<Site>,
        thread: &Arc<Thread>,
        owner: Owner,
        terms: Terms,
    ) -> Place {
        let hub: Weak<Self> = Arc::downgrade(self);
        let subscription = self.own_channel(&self.core, &owner);
        let subscription = subscription.unwrap_or_else(|| self.core.listen_to(&self.pattern, hub));
        let waiter = Arc::new(FairWaiter {
            owner,
            thread: Arc::clone(thread),
            terms,
            told: AtomicBool::new(false),
            passed: Mutex::new(None),
        });
        let mut waiters = self.waiters.lock();
        waiters.standing.push(Arc::clone(&waiter));
        let first = !std::mem::replace(&mut waiters.kept_alive, true);
        drop(waiters);
        if first {
            let chore: Arc<dyn Chore> = Arc::clone(self) as _;
            self.core.watchdog.schedule(&chore, self.period());
        }
        Place {
            queue: Arc::clone(self),
            site: Arc::clone(site),
            waiter,
            subscription,
            stays: false,
            twice: false,
        }
    }

    /// A waiter's own channel, where the pattern of all is not allowed.
    fn own_channel(&self, core: &Core, owner: &Owner) -> Option<Subscription> {
        self.no_pattern.load(Ordering::Relaxed).then(|| {
            let channel = format!("{}{owner}", self.keys.channel_prefix);
            core.listen(&channel.into())
        })
    }

    fn hold(
        self: &Arc<Self>,
        owner: Owner,
        terms: Terms,
        lease: Duration,
        asked: Asked,
        sent_twice: bool,
        followers: Vec<Vec<u8>>,
    ) -> Hold {
        let line = FairLine {
            queue: Arc::clone(self),
            state: Mutex::new(LineState { followers: followers.into(), passed: Vec::new() }),
        };
        Hold::new(Some(Arc::new(line)), owner, terms, lease, asked, sent_twice)
    }

    /// The thread has the lock. `Err`: the grant was read after its own deadline, or the hold was
    /// taken away meanwhile.
    fn admit(
        &self,
        site: &Arc<Site>,
        hold: Hold,
        thread: &Arc<Thread>,
        terms: Terms,
    ) -> Result<Arc<Tenancy>, Arc<Hold>> {
        let hold = Arc::new(hold);
        let tenancy = Arc::new(Tenancy::new(Arc::clone(&hold), Arc::clone(thread)));
        if site.admit(&tenancy, terms) { Ok(tenancy) } else { Err(hold) }
    }

    fn find(&self, owner: &[u8]) -> Option<Arc<FairWaiter>> {
        let waiters = self.waiters.lock();
        waiters.standing.iter().find(|waiter| waiter.owner.as_bytes() == owner).cloned()
    }

    /// Whether the hold in the seat was passed to this owner, who still stands in the server's line.
    fn had_it_passed(&self, owner: &[u8]) -> bool {
        let tenant = Site::of(&self.core, &self.name).gate.tenant();
        let line = tenant.and_then(|(tenancy, _)| tenancy.hold.line.clone());
        line.is_some_and(|line| line.has_passed_to(owner))
    }

    /// How often a sign of life is given.
    fn period(&self) -> Duration {
        self.core.config.fair_wait_timeout / 3
    }
}

impl Drop for FairQueue {
    fn drop(&mut self) {
        self.core.fair_queues.forget(&self.name);
    }
}

impl fmt::Debug for FairQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairQueue").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Hub for FairQueue {
    fn message(&self, channel: &[u8]) {
        let owner = channel.strip_prefix(self.keys.channel_prefix.as_bytes());
        let Some(owner) = owner else { return };
        if let Some(waiter) = self.find(owner) {
            waiter.tell();
        } else if self.had_it_passed(owner) {
            // The hold that was passed to it was taken away: the server takes it for the first in
            // line of a free lock.
            let leave = self.scripts().give_up_command(owner);
            self.core.watchdog.run_errand(Errand::repeat(&self.name, leave, SHORTEST_PERIOD));
        }
    }

    /// After a reconnect messages may have been lost, so everybody asks.
    fn changed(&self) {
        let standing = self.waiters.lock().standing.clone();
        standing.iter().for_each(|waiter| waiter.tell());
    }
}

/// The sign of life.
impl Chore for FairQueue {
    fn command(&self) -> Option<Command> {
        let mut waiters = self.waiters.lock();
        if waiters.standing.is_empty() {
            waiters.kept_alive = false;
            return None;
        }
        let owners: Vec<_> = waiters.standing.iter().map(|waiter| waiter.owner).collect();
        drop(waiters);
        Some(self.scripts().keep_alive_command(&owners))
    }

    fn done(&self, outcome: Outcome) -> Duration {
        let period = self.period();
        match kept_alive(outcome) {
            Ok(kept) => {
                for owner in kept.ask {
                    if let Some(waiter) = self.find(&owner) {
                        waiter.tell();
                    }
                }
                // Not more often than every half second, whatever the server says.
                kept.again.map_or(period, |again| again.max(SHORTEST_PERIOD).min(period))
            }
            Err(trouble) => {
                log::debug!("a sign of life for {:?} failed: {}", self.name, trouble.into_error());
                period / 4
            }
        }
    }
}

const SHORTEST_PERIOD: Duration = Duration::from_millis(500);

/// Who may have a fair hold after its owner: threads of this process that stand directly behind.
struct FairLine {
    queue: Arc<FairQueue>,
    state: Mutex<LineState>,
}

struct LineState {
    followers: VecDeque<Vec<u8>>,
    /// Those who had it. They leave the queue when it is released.
    passed: Vec<Owner>,
}

impl Line for FairLine {
    /// A fresh pass, on equal terms, and in the queue's order: whoever stands behind somebody who
    /// may not have it now waits for the server's word.
    fn pass(
        &self,
        hold: &Arc<Hold>,
        seat: &mut dyn FnMut(&Arc<Tenancy>, Terms) -> bool,
    ) -> Option<Wake> {
        let now = clock::now();
        if now.saturating_sub(hold.asked.at) > FRESH || hold.is_unconfirmed() {
            return None;
        }
        let mut waiters = self.queue.waiters.lock();
        let mut line = self.state.lock();
        loop {
            let next = line.followers.pop_front()?;
            // One that is gone has left the queue, or is about to: the one behind it is next.
            let Some(at) =
                waiters.standing.iter().position(|waiter| waiter.owner.as_bytes() == next)
            else {
                continue;
            };
            if !hold.may_pass(waiters.standing[at].terms, now) {
                line.followers.clear();
                return None;
            }
            let waiter = waiters.standing.remove(at);
            let tenancy = Arc::new(Tenancy::new(Arc::clone(hold), Arc::clone(&waiter.thread)));
            if !seat(&tenancy, waiter.terms) {
                // Lost at this very moment: whoever is next finds out from the server.
                waiter.told.store(true, Ordering::SeqCst);
                waiters.standing.push(waiter);
                return None;
            }
            *waiter.passed.lock() = Some(tenancy);
            line.passed.push(waiter.owner);
            return Some(Wake::thread(&waiter.thread));
        }
    }

    fn has_passed_to(&self, owner: &[u8]) -> bool {
        self.state.lock().passed.iter().any(|passed| passed.as_bytes() == owner)
    }

    fn has_passed(&self) -> bool {
        !self.state.lock().passed.is_empty()
    }

    fn release_command(&self, hold: &Hold) -> Command {
        self.queue.scripts().release_command(&hold.owner, &self.state.lock().passed)
    }

    fn give_up_command(&self, hold: &Hold) -> Command {
        self.queue.scripts().give_up_command(hold.owner.as_bytes())
    }
}

impl fmt::Debug for FairLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLine").field("name", &self.queue.name).finish_non_exhaustive()
    }
}

/// A place in the queue. Whoever drops it without the lock has left the queue, on every path.
struct Place {
    queue: Arc<FairQueue>,
    site: Arc<Site>,
    waiter: Arc<FairWaiter>,
    subscription: Subscription,
    /// It has become a hold.
    stays: bool,
    /// A request was sent twice: the first one may arrive after the waiter has left.
    twice: bool,
}

impl Place {
    /// From here on no hold is passed to it. `Some`: one was.
    fn stand_down(&self) -> Option<Arc<Tenancy>> {
        let mut waiters = self.queue.waiters.lock();
        waiters.standing.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        self.waiter.take_passed()
    }

    /// The thread has the lock.
    fn settle(mut self, tenancy: Arc<Tenancy>) -> Arc<Tenancy> {
        self.stand_down();
        self.stays = true;
        if self.twice && tenancy.hold.owner.as_bytes() != self.waiter.owner.as_bytes() {
            // It was passed the hold: that one's release does not undo a late request of this one.
            let Self { queue, site, waiter, .. } = &self;
            let give_up = queue.scripts().give_up_command(waiter.owner.as_bytes());
            site.repeat(give_up, site.core.lease(waiter.terms));
        }
        tenancy
    }

    /// The thread gives up, unless the hold was passed to it first.
    fn leave(self) -> Option<Arc<Tenancy>> {
        let tenancy = self.stand_down().filter(|tenancy| tenancy.is_held())?;
        Some(self.settle(tenancy))
    }

    /// Sleeps until the thread should ask again. `false`: the wait is over.
    fn sleep(
        &self,
        core: &Core,
        wait: &Wait<'_>,
        ask_after: Option<Duration>,
        news: impl Fn() -> bool,
    ) -> Result<bool, Error> {
        let thread = &self.waiter.thread;
        // The process's sign of life finds out what nobody was told, so that many who wait do not
        // each ask. Only the first in line knows more.
        let sleep = ask_after.map_or_else(
            || slow_poll() + self.queue.core.config.fair_wait_timeout * 2,
            |ask| ask.max(SHORTEST_ASK),
        );
        let until = wait.sleep_until(sleep);
        wait.wakeable(thread, || {
            loop {
                if news() {
                    return Ok(true);
                }
                wait.check(core, &self.queue.name)?;
                if wait.is_over() {
                    return Ok(false);
                }
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(true);
                }
                thread.parker().park_until(until);
            }
        })
    }

    /// Waits until messages reach the thread. `false`: the wait was over first.
    fn await_messages(
        &self,
        subscription: &Subscription,
        core: &Core,
        wait: &Wait<'_>,
    ) -> Result<bool, Error> {
        let contender = Contender {
            core,
            name: &self.queue.name,
            channel: &self.queue.pattern,
            thread: &self.waiter.thread,
            wait: *wait,
            news: &|| self.waiter.has_news(),
        };
        match contender.confirmation(subscription)? {
            Confirmation::Confirmed => Ok(true),
            Confirmation::Over => Ok(false),
            Confirmation::Refused(_) if subscription.is_pattern() => {
                // From the next request on with a channel of its own.
                self.queue.no_pattern.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Confirmation::Refused(error) => Err(error),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Some(tenancy) = self.stand_down() {
            // It was given the hold and cannot take it: on to the next.
            let _ = self.site.leave(&tenancy, None, crate::hold::Leaving::Posted);
            return;
        }
        let command = self.queue.scripts().give_up_command(self.waiter.owner.as_bytes());
        let site = &self.site;
        let lease = site.core.lease(self.waiter.terms);
        if self.twice {
            site.repeat(command.clone(), lease);
        }
        let leaving = Leave { site: Arc::clone(site), command: command.clone(), lease };
        site.core.post(&site.lane, command, Arc::new(leaving));
    }
}

/// A waiter that leaves the queue.
struct Leave {
    site: Arc<Site>,
    command: Command,
    lease: Duration,
}

impl Receiver for Leave {
    fn receive(&self, outcome: Outcome) {
        if left(outcome).is_err() {
            self.site.repeat(self.command.clone(), self.lease);
        }
    }
}

const SHORTEST_ASK: Duration = Duration::from_millis(20);
