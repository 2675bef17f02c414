//! Who of one process stands in a fair lock's queue, and how they are told.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::company::{Newcomers, Word};
use super::line::FairLine;
use super::place::Place;
use crate::connection::{Command, Outcome};
use crate::error::Error;
use crate::hold::{Expected, Hold, Site, Tenancy, Terms};
use crate::node::{Core, Member};
use crate::protocol::{FairKeys, Owner};
use crate::pubsub::{Addressee, Grant, News};
use crate::script::fair::{FairScripts, Followers, followers, kept_alive};
use crate::sync::{Mutex, Thread, clock};
use crate::watchdog::{Chore, Orphan, renewal};

/// Who of this process waits for one fair lock. The order is in Redis; this only knows whom to
/// wake.
pub(crate) struct FairQueue {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<str>,
    keys: FairKeys,
    pub(super) waiters: Mutex<Waiters>,
}

#[derive(Default)]
pub(super) struct Waiters {
    pub(super) standing: Vec<Arc<FairWaiter>>,
    pub(super) newcomers: Newcomers,
    /// Whether a hold is being given back, and how many of them.
    pub(super) releasing: usize,
    /// Whether the next sign of life is scheduled.
    kept_alive: bool,
}

/// A thread that stands in the queue.
pub(super) struct FairWaiter {
    core: Weak<Core>,
    pub(super) owner: Owner,
    pub(super) thread: Arc<Thread>,
    pub(super) terms: Terms,
    lock: Arc<str>,
    database: i64,
    /// It should ask.
    pub(super) told: AtomicBool,
    /// The server has made it the holder, and its thread has not read that yet.
    pub(super) granted: Mutex<Option<Granted>>,
    /// The hold was passed to it. Set under the queue's mutex, so that this against its giving up
    /// is decided there.
    pub(super) passed: Mutex<Option<Arc<Tenancy>>>,
    /// What becomes of its first request.
    pub(super) word: Mutex<Option<Word>>,
}

/// A grant by message.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    /// By the server's clock, in ms.
    pub(super) now: u64,
    /// On the hold's clock.
    pub(super) received: u64,
    pub(super) lease: Duration,
    pub(super) followers: Followers,
}

impl FairWaiter {
    pub(super) fn has_news(&self) -> bool {
        self.told.load(Ordering::SeqCst)
            || self.granted.lock().is_some()
            || self.passed.lock().is_some()
    }

    pub(super) fn take_passed(&self) -> Option<Arc<Tenancy>> {
        self.passed.lock().take()
    }
}

impl Addressee for FairWaiter {
    fn told(&self, news: &News<'_>) {
        match news {
            News::Ask { .. } => self.ask(),
            News::Grant(grant) if (grant.database, grant.lock) == (self.database, &*self.lock) => {
                let Some(followers) = followers(grant.details) else { return };
                let (now, lease, received) = (grant.now, grant.lease, clock::now());
                let granted = Granted { now, received, lease, followers };
                // A second copy says nothing new.
                self.granted.lock().get_or_insert(granted);
                self.thread.parker().unpark();
            }
            // `x` and `{x}` have one queue: it was granted the other lock, and has lost its place.
            // It finds that out by its next sign of life: at once, the two might go to and fro.
            News::Grant(grant) => {
                self.core.upgrade().inspect(|core| give_back(core, self.owner.number(), grant));
            }
            News::Open { .. } | News::Notified { .. } => {}
        }
    }
}

impl FairWaiter {
    fn ask(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.thread.parker().unpark();
    }
}

impl FairQueue {
    /// The queue of a name: one for all handles.
    pub(super) fn of(site: &Site) -> Arc<Self> {
        site.core.members.of::<Self>().get(&site.name, |name| {
            let keys = FairKeys::new(&name);
            let core = Arc::clone(&site.core);
            Self { core, name, keys, waiters: Mutex::default() }
        })
    }

    pub(super) fn scripts(&self) -> FairScripts<'_> {
        scripts(&self.core, &self.name, &self.keys)
    }

    /// Wakes all who wait, for something that is not the queue's news.
    pub(crate) fn nudge(&self) {
        let standing = self.waiters.lock().standing.clone();
        standing.iter().for_each(|waiter| waiter.thread.parker().unpark());
    }

    pub(super) fn join(
        self: &Arc<Self>,
        site: &Arc<Site>,
        thread: &Arc<Thread>,
        owner: Owner,
        terms: Terms,
    ) -> Place {
        let own = self.core.pubsub.listen_to_own(&self.name);
        let waiter = Arc::new(FairWaiter {
            core: Arc::downgrade(&self.core),
            owner,
            thread: Arc::clone(thread),
            terms,
            lock: Arc::clone(&self.name),
            database: self.core.database(),
            told: AtomicBool::new(false),
            granted: Mutex::new(None),
            passed: Mutex::new(None),
            word: Mutex::new(None),
        });
        let expected = Expected::new(&self.core, owner.number(), Arc::clone(&waiter));
        let mut waiters = self.waiters.lock();
        waiters.standing.push(Arc::clone(&waiter));
        waiters.newcomers.join(&waiter);
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
            own,
            expected,
            asked: None,
            began: None,
            anchor: None,
            redisson: None,
            stays: false,
            twice: false,
            unknown_there: false,
        }
    }

    /// Where Redisson tells one of ours.
    pub(super) fn redissons_channel(&self, waiter: &FairWaiter) -> Arc<str> {
        format!("{}{}", self.keys.channel_prefix, waiter.owner).into()
    }

    /// Who may have a hold after its owner.
    pub(super) fn line(self: &Arc<Self>, followers: Followers) -> Arc<FairLine> {
        Arc::new(FairLine::new(Arc::clone(self), followers))
    }

    /// The thread has the lock. `Err`: the grant was read after its own deadline, or the hold was
    /// taken away meanwhile.
    pub(super) fn admit(
        &self,
        site: &Arc<Site>,
        hold: Hold,
        thread: &Arc<Thread>,
        terms: Terms,
    ) -> Result<Result<Arc<Tenancy>, Arc<Hold>>, Error> {
        let hold = Arc::new(hold);
        let tenancy = Arc::new(Tenancy::new(Arc::clone(&hold), Arc::clone(thread)));
        Ok(if site.admit(&tenancy, terms)? { Ok(tenancy) } else { Err(hold) })
    }

    fn find(&self, owner: &[u8]) -> Option<Arc<FairWaiter>> {
        let waiters = self.waiters.lock();
        waiters.standing.iter().find(|waiter| waiter.owner.as_bytes() == owner).cloned()
    }

    /// How often a sign of life is given.
    fn period(&self) -> Duration {
        POLL.min(self.core.config.fair_wait_timeout / renewal::SIGN_OF_LIFE)
    }
}

impl Member for FairQueue {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn end(self: Arc<Self>) {
        self.nudge();
    }
}

impl Drop for FairQueue {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
    }
}

impl fmt::Debug for FairQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairQueue").field("name", &self.name).finish_non_exhaustive()
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
                        waiter.ask();
                    }
                }
                // Not more often, whatever the server says.
                kept.again.map_or(period, |again| again.max(SHORTEST_PERIOD).min(period))
            }
            // Whoever asks hears why.
            Err(_) => period / renewal::SIGN_AGAIN,
        }
    }
}

/// How often at least: once while a hand-over lasts, and then the server has told the end of that. So
/// where the process is stopped that was told, the others lose no more.
const POLL: Duration = Duration::from_secs(1);
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);

fn scripts<'a>(core: &Core, key: &'a str, keys: &'a FairKeys) -> FairScripts<'a> {
    let (fair_wait, database) = (core.config.fair_wait_timeout, core.database());
    FairScripts { key, keys, fair_wait, database }
}

/// A message for an owner of this client that does not wait. Nobody has its place: a request came
/// late, or the hold that it was passed was taken away. Whatever the owner holds stays.
pub(crate) fn take_out(core: &Core, owner: u64, lock: &str) {
    give_up(core, owner, lock, |scripts, owner| scripts.leave_command(owner));
}

/// The same with a grant: nobody has the lock, and so it is given back.
pub(crate) fn give_back(core: &Core, owner: u64, grant: &Grant<'_>) {
    // Another kind of lock has other details.
    if grant.database == core.database() && followers(grant.details).is_some() {
        give_up(core, owner, grant.lock, |scripts, owner| scripts.give_up_command(owner));
    }
}

fn give_up(core: &Core, owner: u64, lock: &str, command: fn(FairScripts<'_>, &[u8]) -> Command) {
    if core.is_shut_down() {
        return;
    }
    let keys = FairKeys::new(lock);
    let owner = format!("{}:{owner}", core.id.as_str());
    let command = command(scripts(core, lock, &keys), owner.as_bytes());
    core.watchdog.adopt(Orphan::stray(&Arc::from(lock), command));
}
