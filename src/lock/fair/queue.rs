//! The threads of one process that wait for a fair lock, and how messages reach them. The order is
//! in Redis; this module only knows which thread to wake.
//!
//! ```text
//! newcomers: one has the leadership, and asks for all newcomers; the others sleep, or leave
//! queued:    named in a request; each leads from here on, with an entry of its own, until it gets
//!            the lock, a thread of this process passes it on, or its wait is over
//! ```
//!
//! Threads that one request names get neighbouring entries, and so the lock goes from one to the
//! next without the server. The server's order is that of the requests, and within a request that
//! of arrival. If threads lock again and again, that order stays as it is: neighbours of different
//! processes would stay neighbours for ever, each grant a hand-over. So if the process already has
//! the lock or stands in the queue, the leader waits for a moment before it asks, and threads that
//! are just releasing the lock come along.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Mutex, Thread, clock};
use redlatch_client::{Command, Outcome};

use super::entry::FairEntry;
use crate::error::Error;
use crate::hold::line::{Line, scripts};
use crate::hold::{Tenancy, Terms};
use crate::lease::{Cleanup, KeepAlive, renewal};
use crate::order::line::QueuedThread;
use crate::runtime::Member;
use crate::scripts::fair::{FairScripts, Followers, kept_alive};
use crate::scripts::{FairKeys, Owner, Trouble};
use crate::site::Site;
use crate::waiting::{Lead, LocalWaiter, Queue, Queued, Signal, Wake};

/// The longest time for which the leader waits for other newcomers.
const LINGER: Duration = Duration::from_millis(1);
/// The most owners in one request.
const MOST: usize = 256;

/// One name in one client, as its fair lock's handles see it.
pub(crate) struct FairQueue {
    /// Has the seat of the lock's present hold.
    pub(super) site: Arc<Site>,
    keys: Arc<FairKeys>,
    pub(super) waiters: Mutex<FairWaiters>,
}

type Newcomers = Queue<Terms, Arc<Tenancy>, FairEntry>;
pub(super) type Newcomer = LocalWaiter<Terms, Arc<Tenancy>, FairEntry>;
/// A newcomer's lead after the request that named it.
pub(super) type QueueAnswer = Result<Lead<FairEntry>, Error>;

pub(super) struct FairWaiters {
    newcomers: Newcomers,
    /// Whether the next sign of life is scheduled.
    kept_alive: bool,
    /// Since when, and until when, the server answered signs of life without a gap.
    steady: Option<Steady>,
    /// Whether a thread is asking for all that have lost their entries.
    are_returning: bool,
}

/// The server has answered signs of life in time.
#[derive(Clone, Copy, Debug)]
struct Steady {
    since: u64,
    last: u64,
    /// The version of the client's own channel, which changes with each connection.
    version: Option<u64>,
}

impl FairQueue {
    /// The queue of a name: one for all handles.
    pub(super) fn of(site: &Arc<Site>) -> Arc<Self> {
        site.core.members.of::<Self>().get(&site.name, |name| {
            let waiters = FairWaiters {
                newcomers: Queue::new(),
                kept_alive: false,
                steady: None,
                are_returning: false,
            };
            let (site, keys) = (Arc::clone(site), Arc::new(FairKeys::new(&name)));
            Self { site, keys, waiters: Mutex::new(waiters) }
        })
    }

    pub(super) fn scripts(&self) -> FairScripts<'_> {
        scripts(&self.site.core, &self.site.name, &self.keys)
    }

    /// The channel on which Redisson's scripts tell one of our waiters.
    pub(super) fn redissons_channel(&self, owner: &Owner) -> Arc<str> {
        format!("{}{owner}", self.keys.channel_prefix).into()
    }

    /// The line of threads that may have a hold after its owner.
    pub(super) fn line(&self, followers: Followers) -> Line {
        Line::new(&self.keys, followers)
    }

    /// How long the leader waits for other threads to come along.
    pub(super) fn linger(&self, thread: &Arc<Thread>) -> Duration {
        if self.site.gate.lingers(thread) { LINGER } else { Duration::ZERO }
    }

    /// Whether the process has the lock or waits for it already.
    pub(super) fn is_busy(&self) -> bool {
        self.site.gate.is_busy()
    }

    /// Whether the server has said of a thread that it waits in the queue.
    pub(super) fn has_queued(&self) -> bool {
        self.site.gate.standing().iter().any(|queued| queued.inbox.lock().is_queued)
    }

    /// The newcomers for which the leader asks. They stay newcomers until they are
    /// [answered](Self::answer): if they never are, one of them has the leadership next.
    pub(super) fn company(self: &Arc<Self>) -> Vec<(Arc<Newcomer>, Lead<FairEntry>)> {
        self.site.gate.lingers_no_more();
        let newcomers = self.waiters.lock().newcomers.first_ones(MOST);
        let lead = |newcomer: Arc<Newcomer>| {
            let entry = FairEntry::new(self, newcomer.thread(), *newcomer.need(), false);
            (newcomer, Lead::new(entry))
        };
        newcomers.into_iter().map(lead).collect()
    }

    /// From here on a hold may be passed to `queued`, and its sign of life is due.
    pub(super) fn stand(self: &Arc<Self>, queued: Arc<QueuedThread>) {
        // In this order: `command` looks for threads before it says that nothing is scheduled.
        self.site.gate.stand(queued);
        if !std::mem::replace(&mut self.waiters.lock().kept_alive, true) {
            let keep_alive: Arc<dyn KeepAlive> = Arc::clone(self) as _;
            self.site.core.watchdog.schedule(&self.site.name, &keep_alive, self.period());
        }
    }

    /// The server answered the leader's request: the next newcomer has the leadership, and the
    /// companions lead from here on, or fail. If one has left meanwhile, its entry is given up.
    pub(super) fn answer(&self, company: Vec<(Arc<Newcomer>, QueueAnswer)>) {
        // Dropped after the mutex is released.
        let (mut told, mut gone) = (Vec::new(), Vec::new());
        let mut waiters = self.waiters.lock();
        for (newcomer, answer) in company {
            let signal = match answer {
                Ok(lead) => Signal::Leadership(Some(Box::new(lead))),
                Err(error) => Signal::Failed(error),
            };
            match waiters.newcomers.signal(&newcomer, signal) {
                Ok(wake) => told.push(wake),
                Err(signal) => gone.push(signal),
            }
        }
        let (next, _) = waiters.newcomers.promote(None);
        drop(waiters);
        next.now();
        told.into_iter().for_each(Wake::now);
    }

    /// The waiters that were queued with this one, for a request that brings them back; no other
    /// thread makes such a request meanwhile. `None`: another thread does.
    pub(super) fn returns(self: &Arc<Self>, owner: &Owner) -> Option<Returning> {
        if std::mem::replace(&mut self.waiters.lock().are_returning, true) {
            return None;
        }
        let all = self.site.gate.standing();
        let others = all.iter().filter(|queued| {
            queued.owner.number() != owner.number() && queued.inbox.lock().is_queued
        });
        let owners = others.map(|queued| queued.owner).collect();
        Some(Returning { queue: Arc::clone(self), owners })
    }

    /// Makes all waiters but this one ask.
    pub(super) fn ask_all_but(&self, owner: &Owner) {
        let all = self.site.gate.standing();
        all.iter().filter(|one| one.owner.number() != owner.number()).for_each(|one| one.prompt());
    }

    pub(super) fn trouble(&self, trouble: Trouble) -> Error {
        let state = if let Trouble::Unknown(_) = trouble {
            "nothing is held; if the server granted the lock or a place in its queue all the same, \
             that is given up in the background"
        } else {
            "the lock was not taken"
        };
        trouble.into_error().of(&self.site.name).now(state)
    }

    /// The time between two signs of life.
    fn period(&self) -> Duration {
        POLL.min(self.site.core.config.fair_wait_timeout / renewal::SIGN_OF_LIFE)
    }
}

/// A thread's request for all waiters of its process that have lost their entries.
pub(super) struct Returning {
    queue: Arc<FairQueue>,
    pub(super) owners: Vec<Owner>,
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.queue.waiters.lock().are_returning = false;
    }
}

impl Queued for Arc<FairQueue> {
    type Need = Terms;
    type Grant = Arc<Tenancy>;
    type RequestState = FairEntry;

    fn with_queue<R>(&self, look: impl FnOnce(&mut Newcomers) -> R) -> R {
        look(&mut self.waiters.lock().newcomers)
    }

    /// An entry belongs to its thread, and leaves the queue. If the thread has the newcomers'
    /// leadership, or none existed, the next newcomer gets the leadership.
    fn transfer_leadership(&self, lead: Option<Lead<FairEntry>>) {
        if lead.is_none() {
            let _none = self.promote(None);
        }
    }
}

impl Member for FairQueue {
    fn name(&self) -> &Arc<str> {
        &self.site.name
    }

    fn end(self: Arc<Self>) {
        let all = self.site.gate.standing();
        all.iter().for_each(|queued| Wake::thread(&queued.thread).now());
        self.nudge();
    }

    fn has_owners(&self) -> bool {
        true
    }

    /// Also lets the next waiter in, which the lock's own scripts do not know.
    fn give_up_owner(&self, owner: &str) {
        let give_up = self.scripts().give_up_command(owner.as_bytes());
        self.site.core.watchdog.clean_up(Cleanup::unclaimed(&self.site.name, give_up));
    }
}

impl Drop for FairQueue {
    fn drop(&mut self) {
        self.site.core.members.of::<Self>().forget(&self.site.name);
    }
}

impl fmt::Debug for FairQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairQueue").field("name", &self.site.name).finish_non_exhaustive()
    }
}

/// The sign of life.
impl KeepAlive for FairQueue {
    fn command(&self) -> Option<Command> {
        let mut waiters = self.waiters.lock();
        let queued = self.site.gate.standing();
        if queued.is_empty() {
            (waiters.kept_alive, waiters.steady) = (false, None);
            return None;
        }
        let owners: Vec<_> = queued.iter().map(|queued| queued.owner).collect();
        let steady = waiters.steady;
        drop(waiters);
        let steady = steady.is_some_and(|steady| {
            let now = clock::now();
            self.goes_on(steady, now) && now - steady.since >= clock::nanos(SILENT)
        });
        Some(self.scripts().keep_alive_command(&owners, steady))
    }

    fn done(&self, outcome: Outcome) -> Duration {
        let period = self.period();
        match kept_alive(outcome) {
            Ok(kept) => {
                self.was_answered();
                let queued = self.site.gate.standing();
                // One waiter asks for all that are missing: the oldest.
                let missing =
                    |queued: &&QueuedThread| kept.missing.contains(&queued.owner.number());
                let all = || queued.iter().map(|queued| &**queued);
                let eldest = all().filter(missing).min_by_key(|queued| queued.owner.number());
                let first = all().find(|queued| kept.first == Some(queued.owner.number()));
                first.into_iter().chain(eldest).for_each(QueuedThread::prompt);
                // Bounded below, against any reply of the server.
                kept.again.map_or(period, |again| again.max(SHORTEST_PERIOD).min(period))
            }
            // The waiters' own requests return the error.
            Err(_) => {
                self.waiters.lock().steady = None;
                period / renewal::SIGN_AGAIN
            }
        }
    }
}

impl FairQueue {
    fn was_answered(&self) {
        let now = clock::now();
        let version = self.site.core.pubsub.own_version(&self.site.name);
        let mut waiters = self.waiters.lock();
        let before = waiters.steady.filter(|steady| self.goes_on(*steady, now));
        let since = before.map_or(now, |steady| steady.since);
        waiters.steady = Some(Steady { since, last: now, version });
    }

    /// Whether neither the server nor this process stood still since the last answer, and the
    /// server is the same, as far as this process can see.
    fn goes_on(&self, steady: Steady, now: u64) -> bool {
        now.saturating_sub(steady.last) <= clock::nanos(self.period() + GAP)
            && steady.version == self.site.core.pubsub.own_version(&self.site.name)
    }
}

/// The longest time between two signs of life: one falls into each hand-over. So if a process is
/// stopped when it is granted the lock, the others lose no more.
const POLL: Duration = Duration::from_secs(1);
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// A server must have answered for this long before it calls other waiters silent, and they must
/// have been silent for this long (`SILENT` in `keep_alive.lua`).
const SILENT: Duration = Duration::from_secs(2);
/// The longest delay of an answer that is no gap.
const GAP: Duration = Duration::from_millis(500);
