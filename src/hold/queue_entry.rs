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
//! `ask/entry.rs` decides. This file has the owner, and keeps the inbox under its mutex.
//! `site/asking.rs` sends the requests and listens.
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
use redlatch_client::sync::{Mutex, Waker, clock};

use super::hold::{GrantDetails, Hold, Live};
use super::terms::Terms;
use crate::ask::{
    Action, By, EntryEvent, EntryMachine, Granted, Inbox, Received, ReceivedGrant, Undo,
};
use crate::lease::renewal::PROVISIONAL;
use crate::runtime::{LiveOwner, Message, Recipient, Registered};
use crate::scripts::lock::Tokens;
use crate::scripts::{Chain, Mode, Owner};

/// See the module. Whoever has it uses it up: it becomes a hold, or is
/// given up (`Site::leave_queue`).
///
/// `D`: the details of a grant. `R`: what receives the messages to it.
#[derive(Debug)]
pub(crate) struct QueueEntry<D = GrantDetails, R = Mailbox> {
    pub(crate) owner: Owner,
    /// Keeps the owner live. (The hold that it becomes takes this: [`Hold::of_live`].)
    pub(crate) live: Option<Live>,
    pub(crate) entry: EntryMachine<D>,
    /// The messages to it, from before its first request for an entry on. `None`: it has not asked
    /// for one. The hold that it becomes may keep this (`Hold::_registered`).
    pub(crate) mailbox: Option<Arc<Registered<R>>>,
}

/// Receives the messages to an owner that stands in the queue, or has the lock since.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) name: Arc<str>,
    pub(crate) database: i64,
    pub(crate) is_fenced: bool,
    pub(crate) state: Mutex<MailboxState>,
}

#[derive(Debug)]
pub(crate) struct MailboxState {
    /// Wakes the thread that waits for the messages.
    pub(crate) waker: Waker,
    pub(crate) inbox: Inbox<GrantDetails>,
}

/// The subscriber's thread calls it with what it hears on the client's own channel, where a script
/// has named this owner (`lua/lock/hand_over.lua`, or `tell` in `lua/hand_off.lua`). A grant that
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
                    // Who released it knows of no tokens: a re-entrant lock of this name. The reply
                    // to a question has some.
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

/// What a lock was granted for, and what is said besides.
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

/// What a grant of this kind of lock says besides.
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
    Some(GrantDetails { places, is_handed_over: true, chain, tokens })
}

impl<D, R: Recipient + 'static> QueueEntry<D, R> {
    /// Of an owner that has sent no request. `live` keeps it live.
    pub(crate) fn of(owner: Owner, live: LiveOwner) -> Self {
        Self { owner, live: Some(Live::Owner(live)), entry: EntryMachine::new(), mailbox: None }
    }

    /// A copy of a request may arrive later.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.entry.is_in_doubt()
    }

    /// The hold that was granted.
    pub(crate) fn hold(&self, terms: Terms, granted: &Granted<D>) -> Hold {
        let lease = match granted.by {
            // The whole lease, counted from before the request was sent. If the lock was the owner's
            // before, by a message, the server has left it that message's lease, if that is longer.
            By::Reply { already: true, .. } => terms.lease().max(Duration::from_nanos(PROVISIONAL)),
            By::Reply { already: false, .. } => terms.lease(),
            // The lease that the message says, counted from the anchor. It is provisional: the
            // renewer raises it to that of the terms after 50 ms.
            By::Message { lease, .. } => lease,
        };
        Hold::leased(self.owner, terms, lease, granted.asked, granted.in_doubt)
    }

    /// What the hold keeps, so that messages may name the owner.
    pub(crate) fn registered(&self) -> Option<Arc<Registered>> {
        self.mailbox.clone().map(|mailbox| mailbox as Arc<Registered>)
    }

    /// What is left of its owner, which comes to this end. `command` takes it out of queue and lock.
    pub(crate) fn left(
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
    /// Whether the mailbox has received something that no thread has collected.
    pub(crate) fn may_collect(&self) -> bool {
        let is_full = |it: &Arc<Registered<Mailbox>>| !it.recipient.state.lock().inbox.is_empty();
        self.mailbox.as_ref().is_some_and(is_full)
    }

    /// What the mailbox has received and no thread has collected; it is empty now.
    pub(crate) fn take_inbox(&self) -> Inbox<GrantDetails> {
        let Some(mailbox) = &self.mailbox else { return Inbox::new() };
        mailbox.recipient.state.lock().inbox.take()
    }
}

/// What the server may have of an owner that does not want the lock any more.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) undo: Undo,
    /// The longest lease that a request of the owner named.
    pub(crate) longest: Duration,
    /// Takes the owner out of queue and lock.
    pub(crate) command: Command,
}
