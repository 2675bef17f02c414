//! A process's entry in the queue of a lock, from its first request until it becomes a hold or its
//! wait ends. (For `try_lock` this only sends the request: there is no entry in Redis, and no
//! inbox.)
//!
//! ```text
//! register the owner; ask: taken? no: asleep in the queue
//! woken by: the grant          -> the lock is ours, until the deadline that the grant implies
//!           a window's end, a public release, a new subscription, the time read last, a poll
//!                              -> ask
//! ```
//!
//! `ask/entry.rs` makes the decisions. This file has the owner, and the inbox with its mutex. It
//! sends the requests and listens to the channels.
//!
//! There is one entry for each process and name, however many threads wait. The leader has the
//! entry, and hands it to the next leader with the lead. The owner is registered before the first
//! request is sent, since a grant message may overtake the reply. (For `try_lock` the owner is not
//! registered, since no message names it.)
//!
//! The threads of a process share the entry because a hand-off between entries costs a message and
//! a wake-up, while a pass inside the process costs no command.
//!
//! A message counts as a grant, once, if it names an owner that waits here, this database and this
//! key, and if the thread reads it before its deadline. Every other message is a hint.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::Command;
use redlatch_client::sync::{Mutex, Waker, clock, jitter};

use super::site::Site;
use crate::ask::{
    Action, Actions, Asked, By, Collector, EntryEvent, EntryMachine, EntryReply, Granted, Inbox,
    Listens, POLL, Received, ReceivedGrant, Undo,
};
use crate::error::Error;
use crate::hold::{GrantDetails, Hold, Live, Tenancy, Terms};
use crate::lease::Cleanup;
use crate::lease::schedule::PROVISIONAL;
use crate::name::Name;
use crate::order::LockNeed;
use crate::runtime::{Message, Recipient, Registered};
use crate::scripts::lock::{Acquired, Tokens};
use crate::scripts::{Chain, Mode, Owner, Replied, Trouble};
use crate::waiting::{Claim, Listening, QueueSite, Try};

/// A queue entry. The thread that has it must turn it into a hold or give it up
/// (`Site::leave_queue`).
///
/// `D` is the type of a grant's details. `R` is the recipient of messages to the owner.
#[derive(Debug)]
pub(crate) struct QueueEntry<D = GrantDetails, R = Mailbox> {
    pub(crate) owner: Owner,
    /// Keeps the owner live. The entry's hold takes this over ([`Hold::of_live`]).
    pub(crate) live: Option<Live>,
    pub(crate) entry: EntryMachine<D>,
    /// The recipient of messages to the owner, registered before the first request that may add an
    /// entry. `None`: there was no such request. The entry's hold may keep this
    /// (`Hold::_registered`).
    pub(crate) mailbox: Option<Arc<Registered<R>>>,
}

/// The mailbox of an owner. It receives messages while the owner is in the queue, and after it has
/// got the lock.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) name: Name,
    pub(crate) database: i64,
    pub(crate) is_fenced: bool,
    pub(crate) state: Mutex<MailboxState>,
}

#[derive(Debug)]
pub(crate) struct MailboxState {
    pub(crate) waker: Waker,
    pub(crate) inbox: Inbox<GrantDetails>,
}

/// The subscriber's thread calls this with a message on the client's own channel that names this
/// owner. Scripts send it (`lua/lock/hand_over.lua`, or `tell` in `lua/hand_off.lua`). A grant that
/// names an owner without a mailbox is given back (`site/unclaimed.rs`).
impl Recipient for Mailbox {
    fn receive(&self, message: &Message<'_>) -> bool {
        let now = clock::now();
        let received = match message {
            Message::Grant(grant)
                if (grant.database, grant.lock) == (self.database, &*self.name) =>
            {
                let Some(details) = details(grant.details) else { return true };
                if self.is_fenced && details.tokens.is_none() {
                    // The releasing process used the re-entrant lock of this name, so its grant has
                    // no tokens. The owner asks, and the reply has tokens.
                    Received::Missed
                } else {
                    Received::Grant(ReceivedGrant {
                        now: grant.now,
                        received: now,
                        lease: grant.lease,
                        details,
                    })
                }
            }
            Message::Open { left, database, lock }
                if (*database, *lock) == (self.database, &*self.name) =>
            {
                Received::Open { until: now.saturating_add(clock::nanos(*left)) }
            }
            _ => return true,
        };
        let mut state = self.state.lock();
        state.inbox.receive(received);
        let waker = state.waker.clone();
        drop(state);
        waker.wake();
        true
    }
}

/// The steps that the entries of all kinds of locks have.
impl<D, R: Recipient + 'static> QueueEntry<D, R> {
    /// An entry for a thread with these terms.
    pub(crate) fn new(site: &Site, terms: Terms) -> Self {
        let (owner, live) = site.core.next_owner_to(site.mode, terms.hears());
        Self { owner, live: Some(Live::Owner(live)), entry: EntryMachine::new(), mailbox: None }
    }

    /// Notes that the caller is about to send a request of this owner. `queues`: the request may
    /// add an entry to the queue.
    pub(crate) fn step_ask(&mut self, asked: Asked, lease: Duration, queues: bool) -> Action<D> {
        self.entry.step(asked.at, EntryEvent::Asks { asked, lease, queues }).then
    }

    /// Notes that the request failed with this trouble. `None`: the server answered the request,
    /// but the owner may not use the answer.
    pub(crate) fn step_failure(&mut self, trouble: Option<&Trouble>) {
        let event = match trouble {
            Some(Trouble::Unknown(_)) | None => EntryEvent::Unknown,
            Some(_) => EntryEvent::Failed,
        };
        let _due = self.entry.step(clock::now(), event);
    }

    /// Takes the server's answer to the request.
    pub(crate) fn step_answer(
        &mut self,
        site: &Site,
        now: u64,
        reply: EntryReply<D>,
        in_doubt: bool,
    ) -> Result<(Listens, Try<Granted<D>>), Error> {
        let answered = EntryEvent::Answered { reply, in_doubt };
        let Actions { listens, suspects, then } = self.entry.step(now, answered);
        if suspects {
            site.core.pubsub.suspect(&site.name);
        }
        let tried = match then {
            Action::Granted(granted) => Try::Granted(granted),
            Action::Fail => return Err(Error::late_grant(&site.name)),
            // The entry is in the queue now, or asks again later. Its thread sleeps in the driver
            // until then.
            Action::Sleep { until } => Try::Busy(Duration::from_nanos(until.saturating_sub(now))),
            Action::Ask { .. } | Action::GiveBack { .. } => Try::Busy(Duration::ZERO),
        };
        Ok((listens, tried))
    }

    /// Collects the messages of the inbox. Returns the grant if a message granted the lock and the
    /// grant still counts.
    pub(crate) fn step_collect(
        &mut self,
        listening: &mut Listening,
        site: &Site,
        terms: Terms,
        inbox: Inbox<D>,
    ) -> Option<Granted<D>> {
        if inbox.is_empty() {
            return None;
        }
        let collector = Collector {
            lease: terms.lease(),
            incarnation: site.route.incarnation(),
            needs_reply: site.core.config.replica_acks.is_some() || terms.leaves_at_once(),
        };
        let Actions { then, .. } =
            self.entry.step(clock::now(), EntryEvent::Collects { inbox, collector });
        // The earlier time counts: a new leader asks at once, even if the entry would sleep on.
        listening.ask_at = listening.ask_at.min(self.entry.ask_at());
        let Action::Granted(granted) = then else { return None };
        Some(granted)
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.entry.is_in_doubt()
    }

    pub(crate) fn hold(&self, terms: Terms, granted: &Granted<D>) -> Hold {
        let lease = match granted.by {
            // The full lease, counted from before the request was sent. If a message had granted
            // the owner the lock before, the server has kept the lease of that grant if it is
            // longer.
            By::Reply { already: true, .. } => terms.lease().max(Duration::from_nanos(PROVISIONAL)),
            By::Reply { already: false, .. } => terms.lease(),
            // The provisional lease of the message, counted from the anchor. The renewer raises it
            // to that of the terms after 50 ms.
            By::Message { lease, .. } => lease,
        };
        Hold::leased(self.owner, terms, lease, granted.asked, granted.in_doubt)
    }

    /// The registration of the owner, for a hold to whose owner messages may still come.
    pub(crate) fn registered(&self) -> Option<Arc<Registered>> {
        self.mailbox.clone().map(|mailbox| mailbox as Arc<Registered>)
    }

    /// Ends the entry with the event `end`. Returns what the server may still have of the owner.
    /// `command` makes the command that removes the owner from queue and lock.
    pub(crate) fn end_owner(
        &mut self,
        end: EntryEvent<D>,
        command: impl FnOnce(&[u8], Option<D>) -> Command,
    ) -> Leftover {
        let (undo, details) = match self.entry.step(clock::now(), end).then {
            Action::GiveBack { undo, details } => (undo, details),
            _ => (Undo::NowAndLater, None),
        };
        Leftover {
            undo,
            longest: self.entry.longest(),
            command: command(&self.owner.text(), details),
        }
    }
}

impl QueueEntry {
    /// Whether the mailbox has messages that no thread has collected.
    pub(crate) fn may_collect(&self) -> bool {
        let is_full = |it: &Arc<Registered<Mailbox>>| !it.recipient.state.lock().inbox.is_empty();
        self.mailbox.as_ref().is_some_and(is_full)
    }

    /// Takes the messages that no thread has collected.
    pub(crate) fn take_inbox(&self) -> Inbox<GrantDetails> {
        let Some(mailbox) = &self.mailbox else { return Inbox::new() };
        mailbox.recipient.state.lock().inbox.take()
    }

    /// Collects the messages of the mailbox. Returns the tenancy if a message granted the lock and
    /// the grant still counts. From here on messages wake this thread.
    pub(crate) fn collect(
        &mut self,
        listening: &mut Listening,
        site: &Site,
        claim: &Claim<'_, LockNeed>,
    ) -> Option<Arc<Tenancy>> {
        let mut state = self.mailbox.as_ref()?.recipient.state.lock();
        state.waker = claim.thread.waker();
        let mut inbox = state.inbox.take();
        drop(state);
        for (heard, received) in
            [(&mut listening.public, Received::Public), (&mut listening.own, Received::Missed)]
        {
            if heard.has_spoken() {
                heard.catch_up();
                inbox.receive(received);
            }
        }
        let granted = self.step_collect(listening, site, claim.need.terms, inbox)?;
        Some(self.tenancy_of(site, claim, granted, clock::now()))
    }

    /// Sends one request. If the thread will not wait, the request takes the lock only if the lock
    /// is free, ahead of the queue, and adds no entry. `beside`: the owner of the write hold under
    /// which the thread wants to read.
    pub(crate) fn ask(
        &mut self,
        listening: &mut Listening,
        site: &Arc<Site>,
        claim: &Claim<'_, LockNeed>,
        beside: Option<&Owner>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let (waits, lease) = (claim.wait.blocks(), claim.need.terms.lease());
        if waits && self.mailbox.is_none() {
            let waker = claim.thread.waker();
            let mailbox = Mailbox {
                name: site.name.clone(),
                database: site.core.database(),
                is_fenced: site.keys().is_fenced,
                state: Mutex::new(MailboxState { waker, inbox: Inbox::new() }),
            };
            // From here on messages that name this owner reach `Mailbox::receive`.
            self.mailbox = Some(site.core.recipients.register(self.owner.number(), mailbox));
        }
        listening.own.known(site.core.pubsub.own_version(&site.name));
        // If a request beside the thread's own write hold fails, other threads need not fail with
        // it.
        let arrivals = if beside.is_none() { site.arrivals() } else { 0 };
        let (scripts, asked) = (site.scripts(), Asked::now(site));
        let Action::Ask { again } = self.step_ask(asked, lease, waits) else {
            return Ok(Try::Busy(Duration::ZERO));
        };
        let replied = match beside {
            Some(writing) => scripts.read_beside(&self.owner, lease, writing),
            None if waits => {
                let is_held = again.is_some() || site.gate.takes_turns(asked.at);
                scripts.acquire(&self.owner, lease, again, is_held)
            }
            None => scripts.try_acquire(&self.owner, lease),
        };
        let Replied { reply, in_doubt, unacknowledged } = match replied {
            Ok(replied) => replied,
            Err(trouble) => {
                self.step_failure(Some(&trouble));
                return Err(site.not_taken(trouble, arrivals));
            }
        };
        if let (Acquired::Granted { .. }, Some(unacknowledged)) = (&reply, unacknowledged) {
            let error = self.taken_back(site, claim.need.terms, in_doubt, unacknowledged);
            site.fail_before(arrivals, &error);
            return Err(error);
        }
        let now = clock::now();
        let reply = match reply {
            Acquired::Granted { already, places, tokens } => {
                let details = GrantDetails { places, tokens, ..GrantDetails::default() };
                EntryReply::Granted { already, lease, waits, details }
            }
            Acquired::Refused(refused) => EntryReply::Refused {
                now: refused.now,
                left: refused.left,
                place: refused.place,
                by_redisson: refused.by_redisson,
                is_new: refused.is_new,
                poll: next_poll(now),
            },
            Acquired::NotTaken => EntryReply::NotTaken,
        };
        let (listens, tried) = self.step_answer(site, now, reply, in_doubt)?;
        if listens != Listens::AsBefore {
            Self::listens(listening, site, listens);
        }
        Ok(tried.map(|granted| self.tenancy_of(site, claim, granted, now)))
    }

    /// Listens to the channels whose messages tell when the owner should ask again.
    #[inline(never)]
    fn listens(listening: &mut Listening, site: &Site, listens: Listens) {
        let latest = Listening::latest(&site.core);
        listening.own.subscribe(latest, || site.core.pubsub.listen_to_own(&site.name));
        if listens == Listens::ToPublic {
            let (keys, pubsub) = (site.keys(), &site.core.pubsub);
            // This comes before the public channel. In the other order, the scripts could count
            // this process as one of Redisson's clients for a moment.
            listening.companion.get_or_insert_with(|| pubsub.listen(&keys.companion().into()));
            listening.public.subscribe(None, || pubsub.listen(&keys.public().to_string().into()));
        }
    }

    /// Makes a hold of the entry, whose owner has the lock now. The thread becomes its first
    /// tenant.
    pub(super) fn tenancy_of(
        &mut self,
        site: &Site,
        claim: &Claim<'_, LockNeed>,
        granted: Granted<GrantDetails>,
        now: u64,
    ) -> Arc<Tenancy> {
        let hold = self.hold(claim.need.terms, &granted);
        let (details, may_be_named) = match granted.by {
            By::Reply { message, details, may_be_named, .. } => {
                // The message has the chain's true age. The gate can only estimate it.
                let chain =
                    message.map_or_else(|| site.gate.chain(hold.asked.at), |message| message.chain);
                (GrantDetails { by_message: message.is_some(), chain, ..details }, may_be_named)
            }
            By::Message { details, .. } => (details, true),
        };
        let registered = if may_be_named { self.registered() } else { None };
        let hold = hold.with_details(details, registered).of_live(&mut self.live);
        Arc::new(Tenancy::since(hold, Arc::clone(claim.thread), now))
    }

    /// Gives back a grant that too few replicas have. The entry gets a new owner for the next
    /// leader's request.
    #[inline(never)]
    fn taken_back(
        &mut self,
        site: &Arc<Site>,
        terms: Terms,
        in_doubt: bool,
        unacknowledged: Error,
    ) -> Error {
        let mut used = std::mem::replace(self, Self::new(site, terms));
        let inbox = used.take_inbox();
        let left = used.leaves(site, EntryEvent::Unacknowledged { in_doubt, inbox });
        // The owner stays live until its grant has been given back.
        site.take_back(left, Cleanup::requested, unacknowledged)
    }

    /// Ends the entry, since no thread of the process wants the lock now. Returns what the server
    /// may still have of its owner.
    pub(super) fn ends(&mut self, site: &Site) -> Leftover {
        let inbox = self.take_inbox();
        self.leaves(site, EntryEvent::Ends { inbox })
    }

    fn leaves(&mut self, site: &Site, end: EntryEvent<GrantDetails>) -> Leftover {
        self.end_owner(end, |owner, details| {
            let chain = details.map_or_else(Chain::default, |details| details.chain);
            site.scripts().give_up_command(owner, chain)
        })
    }
}

/// Splits the details of a grant message into the mode and the rest.
pub(crate) fn kind(details: &str) -> Option<(Mode, &str)> {
    let (kind, rest) = details.split_once(',')?;
    let mode = match kind {
        "lock" => Mode::Lock,
        "read" => Mode::Read,
        "write" => Mode::Write,
        _ => return None,
    };
    Some((mode, rest))
}

/// Parses the details of a grant message, after the mode.
pub(crate) fn details(details: &str) -> Option<GrantDetails> {
    let (_, numbers) = kind(details)?;
    let mut numbers = numbers.split(',').map(str::parse);
    let (places, start, count) =
        (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    let places = u32::try_from(places).unwrap_or(u32::MAX);
    let tokens = match numbers.next() {
        Some(last) => Some(Tokens::up_to(last.ok()?)?),
        None => None,
    };
    let chain = Chain::received(start, count);
    Some(GrantDetails { places, by_message: true, chain, tokens })
}

/// What the server may still have of an owner that no longer wants the lock.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) undo: Undo,
    /// The longest lease that a request of the owner named.
    pub(crate) longest: Duration,
    /// The command that removes the owner from queue and lock.
    pub(crate) command: Command,
}

/// Polls are due at multiples of this time, in nanoseconds.
const POLL_TICK: u64 = 20_000_000;

/// The time after which a waiter that receives no message polls. It varies at random, so that
/// processes do not poll together. It ends at a tick, so that a process that waits for many names
/// sends their polls in few packets. (Each packet costs the server a wake-up.)
fn next_poll(now: u64) -> u64 {
    let (least, most) = POLL;
    let chance = (most - least - POLL_TICK) as f64 * jitter(now);
    (now + least + chance as u64).next_multiple_of(POLL_TICK) - now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_due_at_ticks_and_in_time() {
        for now in (0..50_000).map(|at| at * 1_234_567) {
            let poll = next_poll(now);
            assert!((POLL.0..=POLL.1).contains(&poll), "at {now} after {poll}");
            assert_eq!((now + poll) % POLL_TICK, 0, "at {now} after {poll}");
        }
    }
}
