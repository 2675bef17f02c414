//! Who of one process waits for a fair lock, and how they are told. The order is in Redis; this
//! only knows whom to wake.
//!
//! ```text
//! newcomers: one has the baton, and asks for all who have come; the others sleep, or leave
//! standing:  asked for; each leads from here on, with a place of its own, until it is granted the
//!            lock, a thread of this process passes it on, or its wait is over
//! ```
//!
//! Those who are asked for together get neighbouring places, and so the lock goes from one to the
//! next without the server. The server's order is that of the requests, and in a request that of
//! arrival. Where threads lock again and again, that order stays as it is: neighbours of different
//! processes would stay neighbours for ever, each grant a hand-over. So where the process has the
//! lock or stands in the queue already, the one with the baton waits for a moment until it asks,
//! and those who are just giving the lock back come along.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::line::FairLine;
use super::place::{FairPlace, Standing};
use crate::acquire::{Lead, Queue, Queued, Signal, Waiter, Wake};
use crate::connection::{Command, Outcome};
use crate::core::{Core, Member};
use crate::error::Error;
use crate::hold::{Expected, Site, Tenancy, Terms};
use crate::protocol::{FairKeys, Owner};
use crate::pubsub::Grant;
use crate::script::Trouble;
use crate::script::fair::{FairScripts, Followers, followers, kept_alive};
use crate::sync::{Mutex, Thread, clock};
use crate::watchdog::{Chore, Orphan, renewal};

/// How long the one with the baton waits at most for others.
const LINGER: Duration = Duration::from_millis(1);
/// So many in one request.
const MOST: usize = 256;

/// One name in one client, as its fair lock's handles see it.
pub(crate) struct FairQueue {
    /// Where the one that has the lock sits.
    pub(super) site: Arc<Site>,
    keys: FairKeys,
    pub(super) waiters: Mutex<Waiters>,
}

type Newcomers = Queue<Terms, Arc<Tenancy>, FairPlace>;
pub(super) type Newcomer = Waiter<Terms, Arc<Tenancy>, FairPlace>;
/// What a newcomer has when it was asked for: its lead from there on.
pub(super) type Answer = Result<Lead<FairPlace>, Error>;

pub(super) struct Waiters {
    newcomers: Newcomers,
    pub(super) standing: Vec<Arc<Expected<Standing>>>,
    /// Who has the newcomers' baton and waits for others.
    lingering: Option<Arc<Thread>>,
    /// How many holds are just being given back.
    pub(super) releasing: usize,
    /// Whether the next sign of life is scheduled.
    kept_alive: bool,
    /// Since when, and until when, signs of life were answered without a gap.
    steady: Option<Steady>,
    /// One asks for all who have lost their places.
    are_returning: bool,
}

/// The server has answered signs of life in time.
#[derive(Clone, Copy, Debug)]
struct Steady {
    since: u64,
    last: u64,
    /// Of the client's own channel: it moves with each connection.
    version: Option<u64>,
}

impl Waiters {
    /// Whether others of this process stand in the queue, or give the lock back just now.
    fn are_busy(&self) -> bool {
        self.releasing > 0 || !self.standing.is_empty()
    }

    /// Somebody is gone: perhaps nobody is left to wait for.
    pub(super) fn call(&self) -> Wake {
        let lingering = self.lingering.as_ref().filter(|_| !self.are_busy());
        lingering.map_or(Wake::NOBODY, Wake::thread)
    }
}

impl FairQueue {
    /// The queue of a name: one for all handles.
    pub(super) fn of(site: &Arc<Site>) -> Arc<Self> {
        site.core.members.of::<Self>().get(&site.name, |name| {
            let waiters = Waiters {
                newcomers: Queue::new(),
                standing: Vec::new(),
                lingering: None,
                releasing: 0,
                kept_alive: false,
                steady: None,
                are_returning: false,
            };
            let (site, keys) = (Arc::clone(site), FairKeys::new(&name));
            Self { site, keys, waiters: Mutex::new(waiters) }
        })
    }

    pub(super) fn scripts(&self) -> FairScripts<'_> {
        scripts(&self.site.core, &self.site.name, &self.keys)
    }

    /// Where Redisson tells one of ours.
    pub(super) fn redissons_channel(&self, owner: &Owner) -> Arc<str> {
        format!("{}{owner}", self.keys.channel_prefix).into()
    }

    /// Who may have a hold after its owner.
    pub(super) fn line(self: &Arc<Self>, followers: Followers) -> Arc<FairLine> {
        Arc::new(FairLine::new(Arc::clone(self), followers))
    }

    /// How long the one with the baton leaves it to others to come along.
    pub(super) fn linger(&self, thread: &Arc<Thread>) -> Duration {
        if !self.is_busy() {
            return Duration::ZERO;
        }
        self.waiters.lock().lingering = Some(Arc::clone(thread));
        LINGER
    }

    /// Whether the process has the lock or waits for it already.
    pub(super) fn is_busy(&self) -> bool {
        self.waiters.lock().are_busy() || self.site.gate.with_seat(|seat| seat.is_some())
    }

    /// Those who are asked for by the one with the baton. They stay among the newcomers until they
    /// are [answered](Self::answer): if they never are, one of them has the baton next.
    pub(super) fn company(self: &Arc<Self>) -> Vec<(Arc<Newcomer>, Lead<FairPlace>)> {
        let mut waiters = self.waiters.lock();
        waiters.lingering = None;
        let newcomers = waiters.newcomers.first_ones(MOST);
        drop(waiters);
        let lead = |newcomer: Arc<Newcomer>| {
            let place = FairPlace::new(self, newcomer.thread(), *newcomer.need(), false);
            (newcomer, Lead::new(place))
        };
        newcomers.into_iter().map(lead).collect()
    }

    /// From here on a hold may be passed to it, and its sign of life is due.
    pub(super) fn stand(self: &Arc<Self>, standing: Arc<Expected<Standing>>) {
        let mut waiters = self.waiters.lock();
        waiters.standing.push(standing);
        let first = !std::mem::replace(&mut waiters.kept_alive, true);
        drop(waiters);
        if first {
            let chore: Arc<dyn Chore> = Arc::clone(self) as _;
            self.site.core.watchdog.schedule(&chore, self.period());
        }
    }

    /// The request of the one with the baton was answered: the next newcomer has it, and its
    /// companions lead from here on, or fail. The place of one that has left meanwhile is given up.
    pub(super) fn answer(&self, company: Vec<(Arc<Newcomer>, Answer)>) {
        // Dropped when no mutex is held any more.
        let (mut told, mut gone) = (Vec::new(), Vec::new());
        let mut waiters = self.waiters.lock();
        for (newcomer, answer) in company {
            let signal = match answer {
                Ok(lead) => Signal::Baton(Some(Box::new(lead))),
                Err(error) => Signal::Failed(error),
            };
            match waiters.newcomers.tell(&newcomer, signal) {
                Ok(wake) => told.push(wake),
                Err(signal) => gone.push(signal),
            }
        }
        let (next, _) = waiters.newcomers.promote(None);
        drop(waiters);
        next.now();
        told.into_iter().for_each(Wake::now);
    }

    /// Those who were queued with this one, for a request that brings them back; nobody else makes
    /// one meanwhile. `None`: another thread does.
    pub(super) fn returns(self: &Arc<Self>, owner: &Owner) -> Option<Returning> {
        let mut waiters = self.waiters.lock();
        if std::mem::replace(&mut waiters.are_returning, true) {
            return None;
        }
        let others = waiters
            .standing
            .iter()
            .map(|standing| &standing.who)
            .filter(|who| who.owner.number() != owner.number() && who.mail.lock().is_queued);
        let owners = others.map(|who| who.owner).collect();
        drop(waiters);
        Some(Returning { queue: Arc::clone(self), owners })
    }

    /// All but this one should ask.
    pub(super) fn ask_all_but(&self, owner: &Owner) {
        let standing = self.waiters.lock().standing.clone();
        let others = standing.iter().filter(|one| one.who.owner.number() != owner.number());
        others.for_each(|one| one.who.ask());
    }

    pub(super) fn trouble(&self, trouble: Trouble) -> Error {
        let state = if let Trouble::Unknown(_) = trouble {
            "nothing is held; if the server took the lock or a place in its queue nevertheless, \
             that is given up in the background"
        } else {
            "the lock was not taken"
        };
        trouble.into_error().of(&self.site.name).now(state)
    }

    /// How often a sign of life is given.
    fn period(&self) -> Duration {
        POLL.min(self.site.core.config.fair_wait_timeout / renewal::SIGN_OF_LIFE)
    }
}

/// A thread asks for all of its process who have lost their places.
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
    type Inquiry = FairPlace;

    fn whose(&self) -> (&Core, &Arc<str>) {
        (&self.site.core, &self.site.name)
    }

    fn with_queue<R>(&self, look: impl FnOnce(&mut Newcomers) -> R) -> R {
        look(&mut self.waiters.lock().newcomers)
    }

    /// A place is a thread's own, and leaves the queue. If it has the newcomers' baton, or there
    /// was none yet, the next of them has that.
    fn hand_on(&self, lead: Option<Lead<FairPlace>>) {
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
        let standing = self.waiters.lock().standing.clone();
        standing.iter().for_each(|standing| standing.who.thread.parker().unpark());
        self.nudge();
    }

    fn has_owners(&self) -> bool {
        true
    }

    /// And lets the next in, of whom the lock's own scripts know nothing.
    fn give_up_owner(&self, owner: &str) {
        let give_up = self.scripts().give_up_command(owner.as_bytes());
        self.site.core.watchdog.adopt(Orphan::stray(&self.site.name, give_up));
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
impl Chore for FairQueue {
    fn command(&self) -> Option<Command> {
        let mut waiters = self.waiters.lock();
        if waiters.standing.is_empty() {
            (waiters.kept_alive, waiters.steady) = (false, None);
            return None;
        }
        let owners: Vec<_> = waiters.standing.iter().map(|standing| standing.who.owner).collect();
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
                let standing = self.waiters.lock().standing.clone();
                // One asks for all who are missing: the one that came first.
                let missing = |who: &&Standing| kept.missing.contains(&who.owner.number());
                let all = || standing.iter().map(|standing| &standing.who);
                let eldest = all().filter(missing).min_by_key(|who| who.owner.number());
                let first = all().find(|who| kept.first == Some(who.owner.number()));
                first.into_iter().chain(eldest).for_each(Standing::ask);
                // Not more often, whatever the server says.
                kept.again.map_or(period, |again| again.max(SHORTEST_PERIOD).min(period))
            }
            // Whoever asks hears why.
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

    /// Whether neither the server nor this process stood still since the last answer, and it is the
    /// same server, as far as can be seen from here.
    fn goes_on(&self, steady: Steady, now: u64) -> bool {
        now.saturating_sub(steady.last) <= clock::nanos(self.period() + GAP)
            && steady.version == self.site.core.pubsub.own_version(&self.site.name)
    }
}

/// How often at least: once while a hand-over lasts, and then the server has told the end of that.
/// So where the process is stopped that was told, the others lose no more.
const POLL: Duration = Duration::from_secs(1);
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// So long a server has answered that calls others silent, and so long they were (`SILENT` in
/// `keep_alive.lua`).
const SILENT: Duration = Duration::from_secs(2);
/// How late an answer may be.
const GAP: Duration = Duration::from_millis(500);

fn scripts<'a>(core: &Core, key: &'a str, keys: &'a FairKeys) -> FairScripts<'a> {
    let (fair_wait, database) = (core.config.fair_wait_timeout, core.database());
    FairScripts { key, keys, fair_wait, database, acks: core.config.replica_acks }
}

/// A message for an owner of this client that does not wait. Nobody has its place: a request came
/// late, or the hold that it was passed was taken away. Whatever the owner holds stays.
pub(crate) fn take_out(core: &Core, owner: u64, lock: &str) {
    give_up(core, owner, lock, |scripts, owner| scripts.leave_command(owner));
}

/// The same with a grant: nobody has the lock, and so it is given back.
pub(crate) fn give_back_stray(core: &Core, owner: u64, grant: &Grant<'_>) {
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
