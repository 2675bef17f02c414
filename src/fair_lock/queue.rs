//! Who of one process stands in a fair lock's queue, and how they are told.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::line::FairLine;
use super::place::Place;
use crate::client::Core;
use crate::connection::{Command, Outcome};
use crate::error::Error;
use crate::hold::{Asked, Hold, Site, Tenancy, Terms};
use crate::protocol::{FairKeys, Owner};
use crate::pubsub::{Hub, Subscription};
use crate::script::fair::{FairScripts, kept_alive};
use crate::sync::{Mutex, Thread};
use crate::watchdog::{Chore, Errand};

/// Who of this process waits for one fair lock. The order is in Redis; this only knows whom to
/// wake.
pub(crate) struct FairQueue {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<str>,
    keys: FairKeys,
    /// All channels of this client's waiters.
    pub(super) pattern: Arc<str>,
    pub(super) waiters: Mutex<Waiters>,
    /// The server does not allow the pattern: each waiter listens to its own channel.
    pub(super) no_pattern: AtomicBool,
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

    fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.thread.parker().unpark();
    }
}

impl FairQueue {
    /// The queue of a name: one for all handles.
    pub(super) fn of(site: &Site) -> Arc<Self> {
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
    pub(super) fn own_channel(&self, core: &Core, owner: &Owner) -> Option<Subscription> {
        self.no_pattern.load(Ordering::Relaxed).then(|| {
            let channel = format!("{}{owner}", self.keys.channel_prefix);
            core.listen(&channel.into())
        })
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
            Err(_) => period / 4,
        }
    }
}

const SHORTEST_PERIOD: Duration = Duration::from_millis(500);
