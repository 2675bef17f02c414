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
//! `ask/entry.rs` makes the decisions. This file has the owner, and the inbox with its mutex.
//! `site/queue_entry.rs` sends the requests and listens to the channels.
//!
//! There is one entry for each process and name, however many threads wait. The leader has the
//! entry, and gives it to the next leader with the lead. The owner is registered before the first
//! request is sent, because a grant message may arrive before the reply. (For `try_lock` the owner
//! is not registered, because no message names it.)
//!
//! The threads of a process share the entry because a hand-off between entries costs a message and
//! a wake-up, while a pass inside the process costs no command.
//!
//! A message counts as a grant, once, if it names an owner that waits in this process, this
//! database and this key, and if the thread reads it before its deadline. Every other message is a
//! hint.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::Command;
use redlatch_client::sync::{Mutex, Waker, clock};

use super::hold::{GrantDetails, Hold, Live};
use super::terms::Terms;
use crate::ask::{
    Action, By, EntryEvent, EntryMachine, Granted, Inbox, Received, ReceivedGrant, Undo,
};
use crate::lease::schedule::PROVISIONAL;
use crate::name::Name;
use crate::runtime::{LiveOwner, Message, Recipient, Registered};
use crate::scripts::lock::Tokens;
use crate::scripts::{Chain, Mode, Owner};

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
    /// entry. `None` if no request of the owner may have added an entry. The entry's hold may keep
    /// this recipient (`Hold::_registered`).
    pub(crate) mailbox: Option<Arc<Registered<R>>>,
}

/// The mailbox of an owner. The mailbox receives messages while the owner is in the queue, and
/// after the owner has the lock.
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
/// owner. Scripts send it (`lua/lock/hand_over.lua`, or `tell` in `lua/hand_off.lua`). A grant to
/// an owner without a mailbox is given back (`site/unclaimed.rs`).
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

/// Splits the details of a grant message into the mode and the remaining details.
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

impl<D, R: Recipient + 'static> QueueEntry<D, R> {
    /// Returns the entry of an owner that has sent no request. `live` keeps the owner live.
    pub(crate) fn of(owner: Owner, live: LiveOwner) -> Self {
        Self { owner, live: Some(Live::Owner(live)), entry: EntryMachine::new(), mailbox: None }
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.entry.is_in_doubt()
    }

    pub(crate) fn hold(&self, terms: Terms, granted: &Granted<D>) -> Hold {
        let lease = match granted.by {
            // The full lease, counted from before the request was sent. If a message had already
            // granted the lock to the owner, the server keeps the longer of the two leases.
            By::Reply { already: true, .. } => terms.lease().max(Duration::from_nanos(PROVISIONAL)),
            By::Reply { already: false, .. } => terms.lease(),
            // The provisional lease of the message, counted from the anchor. The renewer raises it
            // to that of the terms after 50 ms.
            By::Message { lease, .. } => lease,
        };
        Hold::leased(self.owner, terms, lease, granted.asked, granted.in_doubt)
    }

    /// Returns the registration of the owner, for a hold to whose owner messages may still come.
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
}

/// What the server may still have of an owner that no longer wants the lock.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) undo: Undo,
    /// The longest lease that a request of the owner asked for.
    pub(crate) longest: Duration,
    /// The command that removes the owner from queue and lock.
    pub(crate) command: Command,
}
