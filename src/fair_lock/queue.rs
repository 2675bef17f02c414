//! Who of one process stands in a fair lock's queue, and how they are told.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::line::FairLine;
use super::place::Place;
use crate::connection::{Command, Outcome};
use crate::error::Error;
use crate::hold::{Asked, Hold, Site, Tenancy, Terms};
use crate::node::{Core, Member};
use crate::protocol::{FairKeys, Owner};
use crate::pubsub::{Addressee, News};
use crate::script::fair::{FairScripts, kept_alive};
use crate::sync::{Mutex, Thread};
use crate::watchdog::{Chore, Errand};

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
    /// Whether the next sign of life is scheduled.
    kept_alive: bool,
}

/// A thread that stands in the queue.
pub(super) struct FairWaiter {
    pub(super) owner: Owner,
    pub(super) thread: Arc<Thread>,
    pub(super) terms: Terms,
    /// It should ask.
    pub(super) told: AtomicBool,
    /// The hold was passed to it. Set under the queue's mutex, so that this against its giving up
    /// is decided there.
    pub(super) passed: Mutex<Option<Arc<Tenancy>>>,
}

impl FairWaiter {
    pub(super) fn has_news(&self) -> bool {
        self.told.load(Ordering::SeqCst) || self.passed.lock().is_some()
    }

    pub(super) fn take_passed(&self) -> Option<Arc<Tenancy>> {
        self.passed.lock().take()
    }
}

impl Addressee for FairWaiter {
    fn told(&self, news: &News<'_>) {
        if matches!(news, News::Ask { .. }) {
            self.ask();
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
        site.core.members.of::<Self>().find(&site.name, |name| {
            let keys = FairKeys::new(&name);
            Self { core: Arc::clone(&site.core), name, keys, waiters: Mutex::default() }
        })
    }

    pub(super) fn scripts(&self) -> FairScripts<'_> {
        let fair_wait = self.core.config.fair_wait_timeout;
        FairScripts { key: &self.name, keys: &self.keys, fair_wait }
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
        let own = self.core.pubsub.listen_to_own();
        let waiter = Arc::new(FairWaiter {
            owner,
            thread: Arc::clone(thread),
            terms,
            told: AtomicBool::new(false),
            passed: Mutex::new(None),
        });
        let mut waiters = self.waiters.lock();
        self.core.pubsub.expect(owner.number(), Arc::clone(&waiter) as Arc<dyn Addressee>);
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
            own,
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

    pub(super) fn hold(
        self: &Arc<Self>,
        owner: Owner,
        terms: Terms,
        lease: Duration,
        asked: Asked,
        sent_twice: bool,
        followers: Vec<Vec<u8>>,
    ) -> Hold {
        let line = FairLine::new(Arc::clone(self), followers);
        Hold::new(Some(Arc::new(line)), owner, terms, lease, asked, sent_twice)
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
        self.core.config.fair_wait_timeout / 3
    }
}

impl Member for FairQueue {
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
                // Not more often than every half second, whatever the server says.
                kept.again.map_or(period, |again| again.max(SHORTEST_PERIOD).min(period))
            }
            // Whoever asks hears why.
            Err(_) => period / 4,
        }
    }
}

const SHORTEST_PERIOD: Duration = Duration::from_millis(500);

/// A message for an owner of this client that does not wait. Nobody has its place: a request came
/// late, or the hold that it was passed was taken away. Whatever the owner holds stays.
pub(crate) fn take_out(core: &Core, owner: u64, lock: &str) {
    if core.is_shut_down() {
        return;
    }
    let keys = FairKeys::new(lock);
    let fair_wait = core.config.fair_wait_timeout;
    let owner = format!("{}:{owner}", core.id.as_str());
    let leave = FairScripts { key: lock, keys: &keys, fair_wait }.leave_command(owner.as_bytes());
    core.watchdog.run_errand(Errand::brief(&Arc::from(lock), leave));
}
