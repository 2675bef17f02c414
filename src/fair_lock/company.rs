//! Threads of one process that come to a fair lock at about the same time: one of them asks for all.
//!
//! They get neighbouring places, and so the lock goes from one to the next without the server. Who
//! comes first *leads*: it sends the request, and gives each of the others its answer. Who comes while
//! a request is on its way goes with the next one.
//!
//! The server's order is that of the requests, and in a request that of arrival. Where threads lock
//! again and again, that order stays as it is: neighbours of different processes would stay
//! neighbours for ever, each grant a hand-over. So where the process has the lock or stands in the
//! queue already, the leader waits for a moment until it asks, and those who are just giving the lock
//! back come along. It need not wait longer than until nobody is left of whom that could be said.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::{FairQueue, FairWaiter, Waiters};
use crate::hold::{Asked, Site};
use crate::protocol::Owner;
use crate::script::fair::{FairAcquired, Others};
use crate::script::{Replied, Trouble};

/// How long a leader waits at most for others.
const LINGER: Duration = Duration::from_millis(1);
/// So many in one request.
const MOST: usize = 256;

/// Who of one process has not sent a request yet, in the order of arrival. The first one leads, but
/// while a request is on its way.
#[derive(Default)]
pub(super) struct Newcomers {
    waiting: Vec<Arc<FairWaiter>>,
    is_led: bool,
}

/// What a newcomer hears.
pub(super) enum Word {
    Lead,
    Answer(Answer),
}

/// What became of a request that went out for a waiter.
pub(super) struct Answer {
    /// What was true before it was sent.
    pub(super) asked: Asked,
    pub(super) replied: Result<Replied<FairAcquired>, Trouble>,
}

impl Newcomers {
    pub(super) fn join(&mut self, waiter: &Arc<FairWaiter>) {
        self.waiting.push(Arc::clone(waiter));
        if !std::mem::replace(&mut self.is_led, true) {
            *waiter.word.lock() = Some(Word::Lead);
        }
    }

    /// Whoever goes before it has asked.
    pub(super) fn leave(&mut self, waiter: &Arc<FairWaiter>) {
        let before = self.waiting.len();
        self.waiting.retain(|newcomer| !Arc::ptr_eq(newcomer, waiter));
        let led = matches!(waiter.word.lock().take(), Some(Word::Lead));
        if led
            && self.waiting.len() < before
            && let Some(next) = self.hand_on()
        {
            next.tell(Word::Lead);
        }
    }

    /// A request was answered: the next one leads.
    fn hand_on(&mut self) -> Option<Arc<FairWaiter>> {
        let next = self.waiting.first().cloned();
        self.is_led = next.is_some();
        next
    }
}

impl Waiters {
    /// Whether others of this process stand in the queue, or give the lock back just now.
    fn others_are_busy(&self) -> bool {
        self.releasing > 0 || self.standing.len() > self.newcomers.waiting.len()
    }

    /// Somebody is gone: perhaps the leader need not wait for others any more.
    pub(super) fn call_leader(&self) {
        if let Some(leader) = self.newcomers.waiting.first()
            && !self.others_are_busy()
        {
            leader.thread.parker().unpark();
        }
    }
}

impl FairWaiter {
    fn tell(&self, word: Word) {
        *self.word.lock() = Some(word);
        self.thread.parker().unpark();
    }

    fn hear(&self) -> Word {
        loop {
            if let Some(word) = self.word.lock().take() {
                return word;
            }
            self.thread.parker().park_until(None);
        }
    }
}

impl FairQueue {
    /// The first request of one that has joined. It cannot leave before the answer: its give-up would
    /// be at the server first.
    pub(super) fn ask_together(&self, site: &Site, waiter: &Arc<FairWaiter>) -> Answer {
        match waiter.hear() {
            Word::Answer(answer) => answer,
            Word::Lead => {
                self.linger(site, waiter);
                self.lead(site, waiter)
            }
        }
    }

    fn linger(&self, site: &Site, leader: &FairWaiter) {
        let until = Instant::now() + LINGER;
        let is_held = || site.gate.with_seat(|seat| seat.is_some());
        while (self.waiters.lock().others_are_busy() || is_held()) && Instant::now() < until {
            leader.thread.parker().park_until(Some(until));
        }
    }

    fn lead(&self, site: &Site, leader: &FairWaiter) -> Answer {
        let mut waiters = self.waiters.lock();
        let all = waiters.newcomers.waiting.len().min(MOST);
        let company: Vec<_> = waiters.newcomers.waiting.drain(..all).skip(1).collect();
        drop(waiters);
        let owners: Vec<Owner> = company.iter().map(|waiter| waiter.owner).collect();
        let (asked, lease) = (Asked::now(site), leader.terms.lease(&site.core));
        let others = Others::Company(&owners);
        let replied = self.scripts().acquire(&site.route, &leader.owner, lease, others);
        let next = self.waiters.lock().newcomers.hand_on();
        if let Some(next) = next {
            next.tell(Word::Lead);
        }
        for (at, waiter) in company.iter().enumerate() {
            waiter.tell(Word::Answer(Answer { asked, replied: behind(&replied, at, lease) }));
        }
        Answer { asked, replied }
    }
}

/// What the answer to a leader says of those who came with it.
fn behind(
    leaders: &Result<Replied<FairAcquired>, Trouble>,
    at: usize,
    lease: Duration,
) -> Result<Replied<FairAcquired>, Trouble> {
    let Replied { reply, twice } = leaders.as_ref().map_err(Clone::clone)?;
    let (now, ask_after, by_redisson) = match reply {
        // Where they stand by now the answer does not say.
        FairAcquired::Granted { already: true, now, .. } => (*now, Some(Duration::ZERO), false),
        FairAcquired::Granted { now, .. } => (*now, (at == 0).then_some(lease), false),
        FairAcquired::Queued { now, by_redisson, .. } => (*now, None, *by_redisson),
    };
    let reply = FairAcquired::Queued { now, ask_after, by_redisson, came_back: false };
    Ok(Replied { reply, twice: *twice })
}
