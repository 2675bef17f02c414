//! The read-write lock: Redisson's `RReadWriteLock`.

use std::sync::Arc;

use redlatch_client::sync::{Thread, clock};

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{Leaseholder, QueueEntry, Tenancy};
use crate::lock::{Handle, one_lock};
use crate::observer::{Kind, Way};
use crate::runtime::Session;
use crate::scripts::{Mode, Replied, Trouble};
use crate::site::{GateOutcome, Leaving, Need, Site};
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, Leadership, Listening, Queued, Synchronizer, Try, Wait, acquire,
};

#[cfg(all(test, models))]
mod model_tests;
mod pair;

use pair::Pair;

/// A lock for many readers or one writer: `ReentrantReadWriteLock` of java.util.concurrent,
/// Redisson's `RReadWriteLock`. Made by [`Client::read_write_lock`].
///
/// [`read`](Self::read) and [`write`](Self::write) are its two locks. A clone is the same lock, and
/// so is every handle of the same name.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let prices = client.read_write_lock("prices");
///
/// let reading = prices.read().lock()?; // beside all other readers, on any machine
/// reading.unlock()?;
///
/// let writing = prices.write().lock()?; // alone
/// let reading = prices.read().lock()?; // a writer may also read
/// writing.unlock()?; // and go on reading: now others may read, too
/// reading.unlock()?;
/// # Ok(()) }
/// ```
///
/// # Waiting
///
/// Readers wait for a writer, and a writer waits for all readers and for another writer. Waiting
/// processes stand in one queue, in the order in which they began to wait, so no thread starves.
/// **A reader that comes while a writer waits queues behind the writer**, even if others read. When
/// the lock goes to a reader, all readers behind it enter, too, up to the next writer. The threads
/// of one process queue by the same rules. A thread that already holds the lock overtakes all
/// others.
///
/// The reading threads of a process share one hold. For a turn of at most 3 ms, a new reader joins
/// other readers of its process without asking the server. Then one thread asks, and if no writer
/// waits, the next turn begins.
///
/// # Up and down
///
/// A thread that holds the write lock may also take the read lock, and keep it after it has
/// released the write lock: no other thread writes in between. The other way round would deadlock.
/// A thread that holds the read lock and takes the write lock gets an error of kind
/// [`WouldDeadlock`](ErrorKind::WouldDeadlock) at once, and keeps the read lock. (There is no such
/// check for an owned guard, which belongs to no thread.)
///
/// # Several locks
///
/// Take several locks in the same order everywhere, or together ([`MultiLock`](crate::MultiLock)).
/// Otherwise they may deadlock: see the [guide](crate::guide#lock-order-and-deadlock).
///
/// # Leases of readers
///
/// If a reader with a fixed lease ([`ReadLock::with_lease`]) joins others of its process, it shares
/// their hold. It holds the lock at least for its own lease, and [`check`](crate::LockGuard::check)
/// promises it no more than that. When a reader leaves, the hold lasts until the latest end of the
/// others' leases. So a fixed lease limits a thread that hangs, even if other readers come and go.
/// If the process is killed, the server keeps the hold for the rest of their longest lease. If the
/// hold is lost, all its readers learn of it.
///
/// **Beside readers of Redisson, take no lease that is longer than their `lockWatchdogTimeout`**
/// (30 s by default), and no longer [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout).
/// Each of their renewals cuts the lock's time to live to that time, for all readers. So the lock
/// may end that long after the last renewal of a Redisson reader. A guard learns of that at its
/// next renewal, or with a fixed lease at [`unlock`](crate::LockGuard::unlock).
///
/// # Differences from Redisson
///
/// Redisson's clients do not know the queue. Their readers join readers, past waiting writers of
/// either library. Their writers get the lock now and then if it is free for a moment, but while
/// readers overlap they wait, as they do among Redisson's clients. (redlatch's writers do not,
/// because its readers queue behind them.) When a redlatch writer goes on as a reader, it notifies
/// Redisson's readers. A Redisson writer notifies nobody, and a waiting reader finds out within
/// about a second.
///
/// While a writer also reads, `is_locked` of the read lock returns `false`. `isLocked()` of
/// Redisson's read lock returns `true` (from 3.24.1 on).
///
/// # In Redis
///
/// The lock is a hash under its name, with a key for each read hold
/// (`{name}:owner:rwlock_timeout:1`), as in Redisson. While processes wait, redlatch also has the
/// keys `redlatch_rwlock_queue:{name}`, `redlatch_rwlock_window:{name}` and
/// `redlatch_rwlock_asked:{name}:…`. Use one name for one kind of lock.
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    read: ReadLock,
    write: WriteLock,
}

/// The lock for readers, which many may hold at once: [`ReadWriteLock::read`].
///
/// Its methods are those of [`Lock`](crate::Lock). [`try_lock`](Self::try_lock) overtakes all
/// waiters if the lock is free. If others read, it takes the lock only if no writer waits.
/// [`is_locked`](Self::is_locked) returns whether the lock has a reader and no writer, and
/// [`force_unlock`](Self::force_unlock) ends the holds of all readers.
///
/// ```no_run
/// # use redlatch::{Error, ReadLock};
/// fn price(prices: &ReadLock, look: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Error> {
///     prices.with(|_guard| look()) // beside all other readers
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ReadLock {
    handle: Handle,
    pair: Arc<Pair>,
}

/// The lock for one writer: [`ReadWriteLock::write`].
///
/// Its methods are those of [`Lock`](crate::Lock). In a thread that holds the read lock, those that
/// take the write lock fail with [`WouldDeadlock`](ErrorKind::WouldDeadlock).
/// [`is_locked`](Self::is_locked) returns whether the lock has a writer, and
/// [`force_unlock`](Self::force_unlock) ends the writer's hold and its reads under that hold.
///
/// ```no_run
/// use redlatch::{Error, ErrorKind, WriteLock};
///
/// fn set(prices: &WriteLock, change: impl FnOnce()) -> Result<bool, Error> {
///     match prices.try_lock() {
///         Ok(Some(guard)) => {
///             change(); // alone
///             guard.unlock().map(|()| true)
///         }
///         Ok(None) => Ok(false), // another thread reads or writes
///         Err(error) if error.kind() == ErrorKind::WouldDeadlock => Ok(false), // this one reads
///         Err(error) => Err(error),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WriteLock {
    handle: Handle,
    pair: Arc<Pair>,
}

one_lock!(ReadLock);
one_lock!(WriteLock);

impl ReadWriteLock {
    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let pair = Pair::of(session.core(), name);
        let handle = |mode| {
            Handle::new(session.clone(), Arc::clone(pair.site(mode)))
                .side_of(Arc::clone(&pair) as _)
        };
        Self {
            read: ReadLock { handle: handle(Mode::Read), pair: Arc::clone(&pair) },
            write: WriteLock { handle: handle(Mode::Write), pair: Arc::clone(&pair) },
        }
    }

    /// Returns the lock for readers. No I/O.
    #[must_use]
    pub fn read(&self) -> &ReadLock {
        &self.read
    }

    /// Returns the lock for writers. No I/O.
    #[must_use]
    pub fn write(&self) -> &WriteLock {
        &self.write
    }

    /// Returns the lock's name, which is its key in Redis.
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }
}

impl ReadLock {
    fn take(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        Side::new(&self.handle, &self.pair).take(thread, wait)
    }

    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        self.handle.site.scripts().force_unlock()
    }
}

impl WriteLock {
    fn take(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        Side::new(&self.handle, &self.pair).take(thread, wait)
    }

    /// Also ends the writer's reads under its hold.
    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        self.pair.read.force(|| self.handle.site.scripts().force_unlock())
    }
}

/// One of the two locks, as the driver sees it.
#[derive(Clone, Copy)]
struct Side<'a> {
    handle: &'a Handle,
    pair: &'a Arc<Pair>,
}

impl<'a> Side<'a> {
    fn new(handle: &'a Handle, pair: &'a Arc<Pair>) -> Self {
        Self { handle, pair }
    }

    fn take(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        self.handle.check(thread, &wait)?;
        acquire(self, &Claim { thread, need: self.handle.need(), wait })
    }

    fn reads(&self) -> bool {
        self.handle.site.mode == Mode::Read
    }

    /// A writing thread also takes the read lock. `None`: it has to look anew.
    fn read_under(
        &self,
        writing: &Arc<Tenancy>,
        claim: &Claim<'_, Need>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let site = &self.handle.site;
        let (mut entry, writer) = (QueueEntry::new(site), writing.hold().owner);
        let at_once = Claim { thread: claim.thread, need: claim.need, wait: Wait::NONE };
        let granted = match entry.ask(&mut Listening::default(), site, &at_once, Some(&writer)) {
            Ok(Try::Granted(tenancy) | Try::Shared(tenancy)) => tenancy,
            refused => {
                site.leave_queue(entry);
                refused?;
                // The thread has lost its write hold, without knowing it.
                if writing.is_held() {
                    self.pair.write.lose_hold(&writing.hold(), LostReason::Revoked);
                }
                return Ok(None);
            }
        };
        let seated = self.seat(&granted, claim, || {});
        let Ok(Some(tenancy)) = seated else {
            site.leave_queue(entry);
            // The refused read grant proves nothing of the write hold.
            let is_late = clock::now() >= granted.hold().deadline();
            seated?;
            return if is_late { Err(Error::late_grant(&site.name)) } else { Ok(None) };
        };
        // `false` if another thread writes by now, which was granted the lock after this writer's
        // holds were gone.
        if !site.gate.writes_alone(claim.thread) {
            site.lose_hold(&tenancy.hold(), LostReason::Revoked);
            return Ok(None);
        }
        let tenancy = self.handle.admitted(tenancy)?;
        Ok(Some(tenancy))
    }

    /// The leader reads beside others of the process: during their turn at once; after it if the
    /// server says that no process waits.
    fn join(&self, claim: &Claim<'_, Need>) -> Result<Option<Arc<Tenancy>>, Error> {
        if !self.reads() {
            return Ok(None);
        }
        let Need { terms, .. } = claim.need;
        let site = &self.handle.site;
        let Some((tenancy, in_turn)) = site.gate.join(claim.thread, terms) else {
            return Ok(None);
        };
        let hold = &tenancy.hold();
        if !in_turn {
            // The leader counts as a reader meanwhile: so the hold is not released during the
            // request.
            let leave = || {
                let level = self.handle.level(&tenancy);
                let _ = site.leave(&tenancy, Some(level), Leaving::Posted);
            };
            let (arrivals, sent_at, lease) = (site.arrivals(), clock::now(), terms.lease());
            let counts = hold.ask(lease);
            match site.scripts().read_on(&hold.owner, lease) {
                // No lease was extended, except perhaps by a first copy that lost its reply.
                Ok(Replied { reply: Some(1..), .. }) => {
                    leave();
                    return Ok(None);
                }
                Ok(Replied { reply: Some(_), unacknowledged: Some(unacknowledged), .. }) => {
                    hold.unconfirm();
                    site.clean_up_if_lost(hold);
                    leave();
                    return Err(unacknowledged.of(&site.name).unacknowledged(true));
                }
                Ok(Replied { reply: Some(_), .. }) => {
                    hold.confirm(sent_at, counts);
                    site.clean_up_if_lost(hold);
                    site.gate.reopen(hold, sent_at);
                }
                Ok(Replied { reply: None, .. }) => {
                    site.lose_hold(hold, hold.why_gone());
                    return Ok(None);
                }
                Err(trouble) => {
                    if let Trouble::Unknown(_) = trouble {
                        hold.unconfirm();
                        site.clean_up_if_lost(hold);
                    }
                    leave();
                    return Err(site.not_taken(trouble, arrivals));
                }
            }
        }
        if !tenancy.is_held() || !self.handle.deepen(&tenancy)? {
            return Ok(None);
        }
        Ok(Some(tenancy))
    }

    /// The grant gets its seat; or, if others of the process read under an older hold, a seat
    /// beside them: one hold is enough. `None`: the grant is no longer this process's. `used_up` is
    /// called when no thread may ask under the grant's owner any more.
    fn seat(
        &self,
        granted: &Arc<Tenancy>,
        claim: &Claim<'_, Need>,
        used_up: impl FnOnce(),
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let (site, terms) = (&self.handle.site, claim.need.terms);
        while let Some(older) = site.gate.hold().filter(|_| self.reads()) {
            // The server knows the new hold. If it has lost the older one, no thread may join that.
            if !older.is_ours(clock::now()) || !site.has_granted(&older)? {
                site.lose_hold(&older, older.why_gone());
                continue;
            }
            let Some((tenancy, _)) = site.gate.join(claim.thread, terms) else {
                // The server lets both read, so it keeps no write hold that was kept.
                site.gate.keeps_none();
                continue;
            };
            if !Arc::ptr_eq(&tenancy.hold(), &older) {
                // Another hold has taken the seat meanwhile: the loop checks that one.
                let level = self.handle.level(&tenancy);
                let _ = site.leave(&tenancy, Some(level), Leaving::Posted);
                continue;
            }
            // A fresh owner: the next request uses another one.
            used_up();
            let _ = site.release(&granted.hold(), Leaving::Posted);
            return Ok(self.handle.deepen(&tenancy)?.then_some(tenancy));
        }
        if !site.admit(granted, terms)? {
            return Ok(None);
        }
        used_up();
        Ok(Some(Arc::clone(granted)))
    }
}

impl Synchronizer for Side<'_> {
    type Site = Arc<Site>;

    fn site(&self) -> &Arc<Site> {
        &self.handle.site
    }

    fn what(&self, need: &Need) -> (Kind, u32) {
        (if need.mode == Mode::Read { Kind::ReadLock } else { Kind::WriteLock }, 1)
    }

    /// Does the thread hold the lock? May it join readers of this process? Otherwise one thread
    /// asks Redis.
    fn enter(&self, claim: &Claim<'_, Need>) -> Result<EnterOf<Self>, Error> {
        loop {
            let gate = &self.handle.site.gate;
            return match gate.enter(claim.thread, claim.need, claim.wait.blocks()) {
                GateOutcome::Leads => Ok(Enter::Leads(None)),
                GateOutcome::Queued(waiter) => Ok(Enter::Queued(waiter)),
                GateOutcome::Occupied => Ok(Enter::NotNow),
                GateOutcome::Joined(tenancy) => {
                    if !self.handle.deepen(&tenancy)? {
                        continue;
                    }
                    Ok(Enter::Granted(tenancy, Way::Passed))
                }
                GateOutcome::Under(writing) => match self.read_under(&writing, claim)? {
                    Some(tenancy) => Ok(Enter::Granted(tenancy, Way::Passed)),
                    None => continue,
                },
                GateOutcome::Reads => {
                    let message = "the calling thread holds the read lock, so it would wait for \
                                   itself: release the read lock first; it is held as before";
                    let error = Error::new(ErrorKind::WouldDeadlock, message.to_owned());
                    Err(error.of(&self.handle.site.name))
                }
                // It may be the hold of the other mode.
                GateOutcome::Expired(hold) => {
                    let site = self.pair.site(hold.owner.mode());
                    site.lose_hold(&hold, LostReason::LeaseExpired);
                    continue;
                }
                entered => match self.handle.again(entered)? {
                    Some(tenancy) => Ok(Enter::Again(tenancy)),
                    None => continue,
                },
            };
        }
    }

    /// The wheel ends holds at their deadlines. This is for a wheel that is late.
    fn look(&self) {
        for site in [&self.pair.read, &self.pair.write] {
            if let Some(hold) = site.gate.expired() {
                site.lose_hold(&hold, LostReason::LeaseExpired);
            }
        }
    }

    /// The receiver looks once more: it may have slept through the rest of the lease.
    fn receive(&self, tenancy: Arc<Tenancy>) -> Result<Option<Arc<Tenancy>>, Error> {
        if !tenancy.is_held() {
            self.handle.site.lose_hold(&tenancy.hold(), LostReason::LeaseExpired);
            return Ok(None);
        }
        if self.reads() && !self.handle.deepen(&tenancy)? {
            return Ok(None);
        }
        self.handle.admitted(tenancy).map(Some)
    }

    fn told(&self, tenancy: &Arc<Tenancy>) {
        self.handle.site.told(tenancy);
    }

    fn request_state(&self, _: &Claim<'_, Need>) -> Option<QueueEntry> {
        None
    }

    fn collect(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, Need>,
    ) -> Option<Arc<Tenancy>> {
        let Lead { listening, request_state } = lead;
        request_state.as_mut()?.collect(listening, &self.handle.site, claim)
    }

    fn has_news(&self, request_state: &Option<QueueEntry>) -> bool {
        request_state.as_ref().is_some_and(QueueEntry::has_news)
    }

    fn ask(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, Need>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let site = &self.handle.site;
        let Lead { listening, request_state } = lead;
        if request_state.is_none()
            && let Some(tenancy) = self.join(claim)?
        {
            return Ok(Try::Shared(tenancy));
        }
        let entry = request_state.get_or_insert_with(|| QueueEntry::new(site));
        entry.ask(listening, site, claim, None)
    }

    fn install(
        &self,
        leadership: &mut Leadership<'_, Arc<Site>>,
        mut tenancy: Arc<Tenancy>,
        claim: &Claim<'_, Need>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let gate = &self.handle.site.gate;
        // A leader without an entry has joined the readers, and is seated.
        if leadership.lead.as_ref().is_some_and(|lead| lead.request_state.is_some()) {
            let Some(seated) = self.seat(&tenancy, claim, || leadership.lead = None)? else {
                return Ok(None);
            };
            tenancy = seated;
        }
        if self.reads() {
            gate.let_readers_in();
        } else {
            // A thread that comes now finds the seat taken. So no thread needs to lead.
            leadership.resign();
            // Alone: readers of the process have no hold any more, even if the process has not
            // learned that yet.
            let readers = &self.pair.read;
            if let Some(hold) = readers.gate.hold() {
                readers.lose_hold(&hold, hold.why_gone());
            }
        }
        self.handle.admitted(tenancy).map(Some)
    }
}
