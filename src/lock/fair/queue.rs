//! The threads of one process that wait for a fair lock, and the delivery of messages to them.
//! Redis keeps the order, and this module only decides which thread to wake.
//!
//! ```text
//! newcomers: one has the leadership, and asks for all newcomers; the others sleep, or leave
//! queued:    named in a request; each thread now leads for itself, with its own entry, until the
//!            server or a thread of this process gives it the lock, or its wait is over
//! ```
//!
//! If one request names several threads, these threads get neighbouring entries. Then they can pass
//! the lock on without the server. The server orders threads by their requests, and the threads of
//! one request by their arrival. If the same threads lock again and again, their order in the queue
//! stays the same. So if neighbours in the queue belong to different processes, they stay
//! neighbours for ever, and each grant is a hand-off between processes. Therefore the leader delays
//! its request for a moment if its process already has the lock or is in the queue. In this time,
//! threads that are just releasing the lock can join the leader's request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Mutex, Waker, clock};
use redlatch_client::{Command, Outcome};

use super::entry::FairEntry;
use crate::error::Error;
use crate::hold::line::{Line, scripts};
use crate::hold::{Tenancy, Terms};
use crate::lease::{Cleanup, KeepAlive, schedule};
use crate::name::Name;
use crate::order::line::QueuedThread;
use crate::runtime::Member;
use crate::scripts::fair::{FairScripts, Followers, read_keep_alive};
use crate::scripts::{FairKeys, Owner, Trouble};
use crate::site::Site;
use crate::waiting::{Claim, Lead, LocalWaiter, Queue, QueueLeadership, QueueSite, Signal, Wake};

/// The maximum time for which the leader waits for other newcomers.
const LINGER: Duration = Duration::from_millis(1);
/// The maximum number of owners in one request.
const MAX_OWNERS: usize = 256;

/// A fair lock in one client. All handles of the name share this value.
pub(crate) struct FairQueue {
    /// The site, with the seat of the lock's present hold.
    pub(super) site: Arc<Site>,
    keys: Arc<FairKeys>,
    pub(super) waiters: Mutex<FairWaiters>,
}

type Newcomers = Queue<Terms, Arc<Tenancy>, FairEntry>;
pub(super) type Newcomer = LocalWaiter<Terms, Arc<Tenancy>, FairEntry>;
/// The answer to a leader's request for one of its companions: the companion's lead, or the error.
pub(super) type QueueAnswer = Result<Lead<FairEntry>, Error>;

pub(super) struct FairWaiters {
    newcomers: Newcomers,
    /// Whether the next keep-alive is scheduled.
    has_keep_alive: bool,
    /// The period in which the server has answered all keep-alives in time.
    steady: Option<Steady>,
    /// Whether a thread is restoring the entries of all waiters that have lost their entries.
    is_requeueing: bool,
}

/// A period in which the server has answered each keep-alive in time.
#[derive(Clone, Copy, Debug)]
struct Steady {
    since: u64,
    last: u64,
    /// The version of the client's own channel. The version changes with each new connection.
    version: Option<u64>,
}

impl FairQueue {
    /// Returns the queue of a name, which all handles share.
    pub(super) fn of(site: &Arc<Site>) -> Arc<Self> {
        site.core.members.of::<Self>().get(&site.name, |name| {
            let waiters = FairWaiters {
                newcomers: Queue::new(),
                has_keep_alive: false,
                steady: None,
                is_requeueing: false,
            };
            let (site, keys) = (Arc::clone(site), Arc::new(FairKeys::new(&name)));
            Self { site, keys, waiters: Mutex::new(waiters) }
        })
    }

    pub(super) fn scripts(&self) -> FairScripts<'_> {
        scripts(&self.site.core, &self.site.name, &self.keys)
    }

    /// Returns the channel on which Redisson's scripts send messages to one of redlatch's waiters.
    pub(super) fn redissons_channel(&self, owner: &Owner) -> Arc<str> {
        format!("{}{owner}", self.keys.channel_prefix).into()
    }

    /// Returns the line of threads that may get a hold after the hold's owner.
    pub(super) fn line(&self, followers: Followers) -> Line {
        Line::new(&self.keys, followers)
    }

    /// Returns how long the leader delays its request so that other threads can join it.
    pub(super) fn linger(&self, waker: Waker) -> Duration {
        if self.site.gate.lingers(waker) { LINGER } else { Duration::ZERO }
    }

    /// Whether the process has the lock, or already waits for it.
    pub(super) fn is_busy(&self) -> bool {
        self.site.gate.is_busy()
    }

    /// Whether the server has put a thread of this process into the queue.
    pub(super) fn has_queued(&self) -> bool {
        self.site.gate.standing().iter().any(|queued| queued.state.lock().is_queued)
    }

    /// Returns the leader's companions: the newcomers for which the leader sends its request. They
    /// stay newcomers until the leader gives them the [answer](Self::answer). If the leader's
    /// thread ends before that, one of the companions leads next.
    pub(super) fn companions(self: &Arc<Self>) -> Vec<(Arc<Newcomer>, Lead<FairEntry>)> {
        self.site.gate.lingers_no_more();
        let newcomers = self.waiters.lock().newcomers.first_ones(MAX_OWNERS);
        let lead = |newcomer: Arc<Newcomer>| {
            let entry = FairEntry::new(self, newcomer.thread(), *newcomer.need(), None);
            (newcomer, Lead::new(entry))
        };
        newcomers.into_iter().map(lead).collect()
    }

    /// Adds `queued` to the process's list of queued threads. From here on, a thread may pass its
    /// hold to `queued`, and the process's keep-alive names `queued`.
    pub(super) fn enlist(self: &Arc<Self>, queued: Arc<QueuedThread>) {
        // The thread is added to the list before `has_keep_alive` is read, because `command` reads
        // the list before it clears `has_keep_alive`. In the other order, `command` could find the
        // list empty, this thread could then add itself and find `has_keep_alive` set, and
        // `command` would end the keep-alives.
        self.site.gate.stand(queued);
        self.site.update_wanted();
        if !std::mem::replace(&mut self.waiters.lock().has_keep_alive, true) {
            let keep_alive: Arc<dyn KeepAlive> = Arc::clone(self) as _;
            self.site.core.watchdog.schedule(&self.site.name, &keep_alive, self.interval());
        }
    }

    /// Delivers the answers to the leader's request. From here on, each companion leads for itself
    /// or fails. The leadership goes to the next newcomer. If a companion has left in the meantime,
    /// its entry is given up.
    pub(super) fn answer(
        &self,
        companions: Vec<(Arc<Newcomer>, QueueAnswer)>,
        leadership: QueueLeadership,
    ) {
        // The signals in `gone` are dropped after the mutex is released.
        let (mut wakes, mut gone) = (Vec::new(), Vec::new());
        let mut waiters = self.waiters.lock();
        for (newcomer, answer) in companions {
            let signal = match answer {
                Ok(lead) => Signal::Leadership(None, Some(Box::new(lead))),
                Err(error) => Signal::Failed(error),
            };
            match waiters.newcomers.signal(&newcomer, signal) {
                Ok(wake) => wakes.push(wake),
                Err(signal) => gone.push(signal),
            }
        }
        let (next, _) = waiters.newcomers.promote(leadership, None);
        drop(waiters);
        next.now();
        wakes.into_iter().for_each(Wake::now);
    }

    /// Returns the other queued waiters of the process, so that one request can restore the entries
    /// of all. Until the result is dropped, no other thread makes such a request. Returns `None` if
    /// another thread is making one.
    pub(super) fn begin_requeue(self: &Arc<Self>, owner: &Owner) -> Option<Requeue> {
        if std::mem::replace(&mut self.waiters.lock().is_requeueing, true) {
            return None;
        }
        let all = self.site.gate.standing();
        let others = all.iter().filter(|queued| {
            queued.owner.number() != owner.number() && queued.state.lock().is_queued
        });
        let owners = others.map(|queued| queued.owner).collect();
        Some(Requeue { queue: Arc::clone(self), owners })
    }

    /// Makes each waiter of the process, except this owner, send a request.
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

    /// Returns the time between two keep-alives.
    fn interval(&self) -> Duration {
        MAX_INTERVAL.min(self.site.core.config.fair_wait_timeout / schedule::KEEP_ALIVES)
    }
}

/// The right of one thread to restore all lost entries of its process.
pub(super) struct Requeue {
    queue: Arc<FairQueue>,
    pub(super) owners: Vec<Owner>,
}

impl Drop for Requeue {
    fn drop(&mut self) {
        self.queue.waiters.lock().is_requeueing = false;
    }
}

impl QueueSite for Arc<FairQueue> {
    type Need = Terms;
    type Grant = Arc<Tenancy>;
    type RequestState = FairEntry;

    fn with_queue<R>(&self, act: impl FnOnce(&mut Newcomers) -> R) -> R {
        act(&mut self.waiters.lock().newcomers)
    }

    fn collect(&self, lead: &mut Lead<FairEntry>, _: &Claim<'_, Terms>) -> Option<Arc<Tenancy>> {
        lead.request_state.collect(&mut lead.listening)
    }

    fn may_collect(&self, entry: &FairEntry) -> bool {
        entry.may_collect()
    }
}

impl Member for FairQueue {
    fn name(&self) -> &Name {
        &self.site.name
    }

    fn end(self: Arc<Self>) {
        let all = self.site.gate.standing();
        all.iter().for_each(|queued| queued.wake());
        self.nudge();
    }

    fn has_owners(&self) -> bool {
        true
    }

    /// Removes the owner and grants the lock to the next waiter in this queue.
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

impl KeepAlive for FairQueue {
    fn command(&self) -> Option<Command> {
        let mut waiters = self.waiters.lock();
        let queued = self.site.gate.standing();
        if queued.is_empty() {
            (waiters.has_keep_alive, waiters.steady) = (false, None);
            return None;
        }
        let owners: Vec<_> = queued.iter().map(|queued| queued.owner).collect();
        let steady = waiters.steady;
        drop(waiters);
        let steady = steady.is_some_and(|steady| {
            let now = clock::now();
            self.is_still_steady(steady, now) && now - steady.since >= clock::nanos(SILENT)
        });
        Some(self.scripts().keep_alive_command(&owners, steady))
    }

    fn handle_outcome(&self, outcome: Outcome) -> Duration {
        let interval = self.interval();
        match read_keep_alive(outcome) {
            Ok(kept) => {
                self.record_answer();
                let queued = self.site.gate.standing();
                // The oldest waiter without an entry sends one request for all such waiters.
                let missing =
                    |queued: &&QueuedThread| kept.missing.contains(&queued.owner.number());
                let all = || queued.iter().map(|queued| &**queued);
                let eldest = all().filter(missing).min_by_key(|queued| queued.owner.number());
                let first = all().find(|queued| kept.first == Some(queued.owner.number()));
                first.into_iter().chain(eldest).for_each(QueuedThread::prompt);
                kept.again.map_or(interval, |again| again.max(MIN_INTERVAL).min(interval))
            }
            // The waiters' own requests report the error.
            Err(_) => {
                self.waiters.lock().steady = None;
                interval / schedule::KEEP_ALIVE_RETRY
            }
        }
    }
}

impl FairQueue {
    /// Records that the server has just answered a keep-alive.
    fn record_answer(&self) {
        let now = clock::now();
        let version = self.site.core.pubsub.own_version(&self.site.name);
        let mut waiters = self.waiters.lock();
        let before = waiters.steady.filter(|steady| self.is_still_steady(*steady, now));
        let since = before.map_or(now, |steady| steady.since);
        waiters.steady = Some(Steady { since, last: now, version });
    }

    /// Whether the steady period continues: since the last answer, no keep-alive was late, and the
    /// client did not reconnect. A gap may mean that the process was paused, and a new connection
    /// may lead to another server.
    fn is_still_steady(&self, steady: Steady, now: u64) -> bool {
        now.saturating_sub(steady.last) <= clock::nanos(self.interval() + MAX_DELAY)
            && steady.version == self.site.core.pubsub.own_version(&self.site.name)
    }
}

/// The maximum time between two keep-alives. If a process is paused when it is granted the lock,
/// the other processes detect the pause within this time.
const MAX_INTERVAL: Duration = Duration::from_secs(1);
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// A keep-alive may declare other waiters silent only if the server has answered all keep-alives of
/// this process for this time. The other waiters must have sent no keep-alive for the same time
/// (`SILENT` in `keep_alive.lua`).
const SILENT: Duration = Duration::from_secs(2);
/// If the answer to a keep-alive is late by at most this time, the steady period continues.
const MAX_DELAY: Duration = Duration::from_millis(500);
