//! A process's entry in the queue of a lock: from its first request to the hold, or the end of its
//! wait. (Of `try_lock` it is only what asks: no entry in Redis, and no inbox.)
//!
//! ```text
//! register the owner; ask: taken? no: asleep in the queue
//! woken by: the grant          -> the lock is ours, until the deadline that the grant implies
//!           a window's end, a public release, a new subscription, the time read last, a poll
//!                              -> ask
//! ```
//!
//! One for each process and name, however many threads wait: it is the leader's, who hands it to
//! the next leader with the lead. The owner is registered before the first request is sent, since
//! the grant may overtake its reply. (Not for `try_lock`: no message names it.)
//!
//! A hand-off between processes costs a message and a wake-up, a pass inside one process costs no
//! command: so a thread has no entry of its own.
//!
//! Grant: a message grants only if it names an owner that waits here, this database and this key,
//! once, and within its deadline. Every other message is a hint.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::Command;
use redlatch_client::pubsub::Subscription;
use redlatch_client::sync::{Mutex, Thread, clock, jitter};

use super::acquisition::Acquisition;
use super::cohort::GrantDetails;
use super::exchanges::{Asked, Granted};
use super::hold::Hold;
use super::registered::Registered;
use super::site::Site;
use super::tenancy::Tenancy;
use super::terms::Terms;
use crate::error::Error;
use crate::lease::Cleanup;
use crate::lease::renewal::PROVISIONAL;
use crate::runtime::{Message, Recipient};
use crate::scripts::Mode;
use crate::scripts::lock::{Acquired, Chain, Refused, Start, Tokens};
use crate::waiting::{Claim, Listening, Queued, Try};

const MS: u64 = 1_000_000;
/// How often a waiter asks that hears nothing. It is less than the lease of a grant by message: so
/// while such a grant lasts every waiter asks at least once, is told when that lease ends, and asks
/// again then. If the process that was granted the lock is stopped, the waiters lose that lease and
/// no more. (Every waiter asks, not only the first in line, since a waiter knows only where it
/// stood when it last asked.)
const POLL: Duration = Duration::from_secs(1);
const _: () = assert!(POLL.as_millis() * 12 / 10 < PROVISIONAL as u128 / 1_000_000);
/// So many from the head listen for Redisson's releases. A second one, in case the first is dead.
const FIRST: u32 = 2;
/// Behind the end that the server told: it cuts its times to whole milliseconds.
const PAST_END: Duration = Duration::from_millis(1);
/// And so much later for each entry, so that not all come at once.
const PER_PLACE: Duration = Duration::from_micros(300);

/// See the module. Whoever has it uses it up: it becomes a hold, or is
/// [given up](Site::give_up).
#[derive(Debug)]
pub(crate) struct QueueEntry {
    pub(super) acquisition: Acquisition<GrantDetails>,
    /// The messages to it, from before its first request for an entry on. `None`: it has not asked
    /// for one. The hold that it becomes may keep this (`Hold::_registered`).
    inbox: Option<Arc<Registered<Inbox>>>,
    /// Where it stood when it last asked. `None`: nowhere.
    at: Option<u32>,
    /// What only counts it as one of ours, while it listens in public.
    _companion: Option<Subscription>,
}

/// The messages to an owner that stands in the queue, or has the lock since.
struct Inbox {
    name: Arc<str>,
    database: i64,
    unread: Mutex<Unread>,
}

/// The messages that no thread has read.
struct Unread {
    /// The thread that waits for them.
    reader: Arc<Thread>,
    grant: Option<Granted<GrantDetails>>,
    /// When it should ask: at the end of a window, or at once.
    open_until: Option<u64>,
}

/// The subscriber's thread calls it with what it hears on the client's own channel, where a script
/// has named this owner (`tell` in `lua/hand_off.lua`). A grant that names an owner without an
/// inbox is [given back](super::give_back_unclaimed).
impl Recipient for Inbox {
    fn told(&self, news: &Message<'_>) {
        let received = clock::now();
        let mut unread = self.unread.lock();
        match news {
            Message::Grant(grant)
                if (grant.database, grant.lock) == (self.database, &*self.name) =>
            {
                let Some(details) = details(grant.details) else { return };
                let granted = Granted { now: grant.now, received, lease: grant.lease, details };
                // A second copy says nothing new.
                unread.grant.get_or_insert(granted);
            }
            Message::Open { left, database, lock }
                if (*database, *lock) == (self.database, &*self.name) =>
            {
                unread.open_until = Some(received.saturating_add(clock::nanos(*left)));
            }
            _ => return,
        }
        let reader = Arc::clone(&unread.reader);
        drop(unread);
        reader.parker().unpark();
    }
}

/// What a lock was granted for, and what is said besides.
pub(super) fn kind(details: &str) -> Option<(Mode, &str)> {
    let (kind, rest) = details.split_once(',')?;
    let mode = match kind {
        "lock" => Mode::Lock,
        "read" => Mode::Read,
        "write" => Mode::Write,
        _ => return None,
    };
    Some((mode, rest))
}

/// What a grant of this kind of lock says besides.
pub(super) fn details(details: &str) -> Option<GrantDetails> {
    let (_, numbers) = kind(details)?;
    let mut numbers = numbers.split(',').map(str::parse);
    let (places, start, count) =
        (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    let places = u32::try_from(places).unwrap_or(u32::MAX);
    let tokens = match numbers.next() {
        Some(last) => Some(Tokens::up_to(last.ok()?)?),
        None => None,
    };
    Some(GrantDetails { places, chain: Chain { start: Start::Server(start), count }, tokens })
}

impl QueueEntry {
    pub(crate) fn new(site: &Site) -> Self {
        Self { acquisition: Acquisition::new(site), inbox: None, at: None, _companion: None }
    }

    /// What it is for.
    pub(crate) fn mode(&self) -> Mode {
        self.acquisition.owner.mode()
    }

    /// The chain of a grant that nobody has read.
    fn unread_chain(&self) -> Chain {
        let grant = self.inbox.as_ref().and_then(|it| it.recipient.unread.lock().grant);
        let told = self.acquisition.exchanges.unconfirmed().copied();
        let details = grant.map(|granted| granted.details).or(told);
        details.map_or_else(Chain::default, |details| details.chain)
    }

    /// Takes its owner out of queue and lock.
    pub(super) fn give_up_command(&self, site: &Site) -> Command {
        site.scripts().give_up_command(&self.acquisition.owner.text(), self.unread_chain())
    }

    /// Whether something was told and not read.
    pub(crate) fn has_news(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| {
            let unread = inbox.recipient.unread.lock();
            unread.grant.is_some() || unread.open_until.is_some()
        })
    }

    /// Takes out what was told: the lock, if a message said that it is ours and that is still so.
    /// From here on the thread is woken for it.
    pub(crate) fn collect(
        &mut self,
        listening: &mut Listening,
        site: &Site,
        claim: &Claim<'_, Terms>,
    ) -> Option<Arc<Tenancy>> {
        let mut unread = self.inbox.as_ref()?.recipient.unread.lock();
        if !Arc::ptr_eq(&unread.reader, claim.thread) {
            unread.reader = Arc::clone(claim.thread);
        }
        let (grant, open_until) = (unread.grant.take(), unread.open_until.take());
        drop(unread);
        if let Some(until) = open_until {
            listening.ask_at = listening.ask_at.min(until);
        }
        if listening.public.has_spoken() {
            listening.public.catch_up();
            // The first one asks at once, the second in case the first one is dead.
            let place = u64::from(self.at.unwrap_or(0));
            if place < u64::from(FIRST) {
                listening.ask_at = listening.ask_at.min(clock::now() + place * MS);
            }
        }
        let granted = grant?;
        // If it is not certain that it is ours, the next thing to do is to ask.
        listening.ask_at = 0;
        let hold = self.granted_by_message(site, claim.need, granted)?;
        Some(tenancy(hold, claim, clock::now()))
    }

    /// One request: the first one, a poll, and the one after a reconnect are the same. Who will not
    /// wait takes the lock if it is free, past the queue, and leaves no entry behind.
    pub(crate) fn ask(
        &mut self,
        listening: &mut Listening,
        site: &Arc<Site>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let waits = claim.wait.blocks();
        if waits && self.inbox.is_none() {
            let reader = Arc::clone(claim.thread);
            let unread = Mutex::new(Unread { reader, grant: None, open_until: None });
            let (name, database) = (Arc::clone(&site.name), site.core.database());
            let inbox = Inbox { name, database, unread };
            let number = self.acquisition.owner.number();
            // From here on messages that name this owner reach `told`, above.
            self.inbox = Some(Registered::new(&site.core, number, inbox));
        }
        listening.own.known(site.core.pubsub.own_version(&site.name));
        let (arrivals, scripts, lease) = (site.arrivals(), site.scripts(), claim.need.lease());
        self.acquisition.asks(Asked::now(site), lease);
        let replied = if waits {
            let again = self.acquisition.exchanges.again(clock::now());
            scripts.acquire(&self.acquisition.owner, lease, again)
        } else {
            scripts.try_acquire(&self.acquisition.owner, lease)
        };
        let is_there = |reply: &Acquired| match reply {
            Acquired::Granted { .. } => true,
            Acquired::Refused(_) => true,
            Acquired::NotTaken => false,
        };
        let replied = self.acquisition.heard(replied, is_there);
        match replied.map_err(|trouble| site.not_taken(trouble, arrivals))? {
            // It stands in the queue now, and its thread sleeps in the driver.
            Acquired::Refused(refused) => Ok(Try::Busy(self.refused(listening, site, &refused))),
            Acquired::NotTaken => Ok(Try::Busy(Duration::ZERO)),
            Acquired::Granted { already, places, tokens } => {
                if let Some(unacknowledged) = self.acquisition.unacknowledged.take() {
                    // Fresh owners: who leads next is another one.
                    let used = std::mem::replace(self, Self::new(site));
                    let command = used.give_up_command(site);
                    let error = site.take_back(
                        used.acquisition,
                        command,
                        Cleanup::requested,
                        unacknowledged,
                    );
                    site.fail_others(arrivals, &error);
                    return Err(error);
                }
                let told = self.acquisition.told(site, already);
                if !self.acquisition.in_time(site, claim.need, claim.wait.blocks())? {
                    return Ok(Try::Busy(Duration::ZERO));
                }
                // Its deadline: the whole lease, counted from before the request was sent, and less
                // a little for drift.
                let hold = self.acquisition.granted_by_reply(site, claim.need);
                // Since when ours have it the message knows better.
                let chain = told.map_or_else(|| site.gate.chain(hold.asked.at), |told| told.chain);
                // Unnamed: messages name those who stood in the queue when some script ended, and
                // who got the lock at its first request never did. Unless a copy of that ran before
                // it.
                let registered = if already || self.acquisition.exchanges.may_stand() {
                    self.registered()
                } else {
                    None
                };
                let hold = hold.with_details(GrantDetails { places, chain, tokens }, registered);
                Ok(Try::Granted(tenancy(hold, claim, clock::now())))
            }
        }
    }

    /// Listens to what may change that. When to ask again though nothing is heard.
    fn refused(&mut self, listening: &mut Listening, site: &Site, refused: &Refused) -> Duration {
        self.acquisition.exchanges.stands(clock::now(), refused.now);
        self.acquisition.refused(refused.now);
        if refused.is_new && self.at.is_some() {
            // Its entry was used up by a grant of which nothing was heard.
            site.core.pubsub.suspect(&site.name);
        }
        let place = refused.place;
        self.at = Some(place);
        let latest = Listening::latest(&site.core);
        listening.own.subscribe(latest, || site.core.pubsub.listen_to_own(&site.name));
        if refused.by_redisson && place < FIRST {
            let keys = site.keys();
            // First: it must never look as if there were one more of Redisson's.
            self._companion
                .get_or_insert_with(|| site.core.pubsub.listen(&keys.companion().into()));
            listening
                .public
                .subscribe(None, || site.core.pubsub.listen(&keys.public().to_string().into()));
        }
        let poll = POLL.mul_f64(0.8 + 0.4 * jitter(clock::now()));
        let end = refused.left.saturating_add(PAST_END + PER_PLACE * place);
        poll.min(end)
    }

    /// `None`: it is certain no more that it is ours.
    fn granted_by_message(
        &mut self,
        site: &Site,
        terms: Terms,
        granted: Granted<GrantDetails>,
    ) -> Option<Hold> {
        if site.keys().is_fenced && granted.details.tokens.is_none() {
            // Who released it knows of no tokens: a re-entrant lock of this name.
            return None;
        }
        // Its deadline: the lease that the message says, counted from the anchor. It is
        // provisional: the renewer raises it to that of the terms after 50 ms.
        let (hold, details) = self.acquisition.granted_by_message(site, terms, granted)?;
        Some(hold.with_details(details, self.registered()))
    }

    fn registered(&self) -> Option<Arc<Registered>> {
        self.inbox.clone().map(|inbox| inbox as Arc<Registered>)
    }
}

fn tenancy(hold: Hold, claim: &Claim<'_, Terms>, now: u64) -> Arc<Tenancy> {
    Arc::new(Tenancy::since(Arc::new(hold), Arc::clone(claim.thread), now))
}
