//! An owner's entry in the queue of a lock, as a state machine: the input is an event and the time,
//! and the output is the actions to take. `site/queue_entry.rs` carries out the actions. A fair
//! lock's entry is in `lock/fair/entry.rs`.
//!
//! ```text
//!         asks                    refused: sleeps until the poll, an end, or a message
//!   new ───────> asking ──────────────────────────────────────────────> sleeping
//!                 ^ │ granted by reply                  granted by message │ │ due
//!                 │ └──────────────────────> granted <─────────────────────┘ │
//!                 └──────────────────────────────────────────────────────────┘
//!   ends, at any time: removes what the server may have of the owner
//! ```
//!
//! This file is pure, as `exchanges.rs` is: it has no owner number, clock, random choice, mutex or
//! I/O. So a state can be copied, compared and hashed. The models of the scripts (`tests/models/`)
//! run this file, and `tests/models/explore/` visits all states of the machine. Two threads take
//! part, so there are two types: the waiting thread owns the [`EntryMachine`], and the subscriber
//! thread fills the [`Inbox`], under a mutex of the caller.
//!
//! The invariants, and the errors that they prevent:
//!
//! - *one at a time*: an entry has at most one open request. A reply does not name its request, so
//!   if there were two open requests, the first reply would count for the second request. Then the
//!   anchor, and the deadline of a grant by message, would be too late.
//! - *hint*: a message only makes the owner send a request, unless the message is a grant that
//!   [counts](Exchanges::collect). After a grant that does not count, the owner also sends a
//!   request, because the owner may still be the holder at the server.
//! - *anchor*, *granted late*, *silent*: see `exchanges.rs`.
//! - *collected after the reply*: the thread collects the inbox only between requests. A message
//!   that arrives during a request remains in the inbox. The reply decides whether the message
//!   counts: the server may have refused the owner after the grant.
//! - *every wait ends*: a refused owner sleeps at most for [`POLL`], which is shorter than the
//!   lease of a grant by message. So during that lease every waiter sends at least one request. The
//!   reply says when the lease ends, and the waiter asks again then. If the process that was
//!   granted the lock is stopped, the waiters lose only the time of that lease. (Every waiter asks,
//!   because a waiter cannot know whether it is the first one now.)
//! - *no message is lost*: a message that caused a request is used up. So if the request fails, the
//!   entry is still due, and the next leader asks at once. If the gate does not admit a leader's
//!   grant, the leader also asks at once.
//! - *nobody's entry*: if an owner's only request took the lock, the owner was never in a queue, so
//!   no message names it. If the owner sent more requests, or if a copy of the request may have
//!   run, a grant message may arrive late. The client must not give this grant back as an unclaimed
//!   grant.
//! - *undone*: if the server may have the owner in the queue or as the holder at the end of the
//!   wait, the client removes the owner. The client repeats this as long as a copy of a request may
//!   still arrive.

use std::time::Duration;

use super::exchanges::{Asked, Collector, Exchanges, InTime, ReceivedGrant, Undo};
use crate::lease::deadline::PROVISIONAL;
use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// The shortest and the longest time after which a waiter that receives no message asks again, in
/// nanoseconds.
pub(crate) const POLL: (u64, u64) = (800 * MS, 1_200 * MS);
const _: () = assert!(POLL.1 < PROVISIONAL);
/// The number of waiters, from the head of the queue, that listen for Redisson's releases. The
/// second waiter listens in case the first one is dead.
const FIRST: u32 = 2;
/// The time from the end of a lease or a window, according to the server's reply, to the waiter's
/// request. (The server rounds times down to whole milliseconds.)
const PAST_END: u64 = MS;
/// The additional sleep for each entry ahead in the queue, so that the waiters do not all ask at
/// the same time.
const PER_PLACE: u64 = 300_000;

/// The state of an owner's entry. `D` is the type of a grant's details.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryMachine<D> {
    exchanges: Exchanges<D>,
    /// The number of entries ahead, according to the last reply. `None`: the owner had no entry.
    place: Option<u32>,
    is_asking: bool,
    /// The time at which the owner asks, even without a message. Zero: at once.
    ask_at: u64,
}

/// The messages that an owner has received and its thread has not collected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Inbox<D> {
    grant: Option<ReceivedGrant<D>>,
    open_until: Option<u64>,
    is_public: bool,
    is_missed: bool,
}

/// A message to the owner, on any channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Received<D> {
    /// The owner has the lock.
    Grant(ReceivedGrant<D>),
    /// A window is open until this time. The owner should ask when the window ends.
    Open { until: u64 },
    /// One of Redisson's clients has released the lock, or may have done so before the channel was
    /// confirmed.
    Public,
    /// The owner should ask: a script sent such a message, or the client has subscribed to its own
    /// channel again and may have missed messages.
    Missed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryEvent<D> {
    /// The owner is [due](EntryMachine::ask_at) and asks for this lease. `queues`: the request may
    /// add an entry to the queue.
    Asks { asked: Asked, lease: Duration, queues: bool },
    /// The server answers the request. `in_doubt`: the request was sent twice, and a copy may still
    /// arrive.
    Answered { reply: EntryReply<D>, in_doubt: bool },
    /// The server has run no copy of the request, and will run none.
    Failed,
    /// The server may have run the request or may still run it: no reply arrived, the second copy
    /// had an error, or the thread's wait ended or was cancelled.
    Unknown,
    /// The owner's thread collects the inbox.
    Collects { inbox: Inbox<D>, collector: Collector },
    /// Too few replicas have the grant of the last reply. The entry must not be used again.
    Unacknowledged { in_doubt: bool, inbox: Inbox<D> },
    /// No thread of the process wants the lock now. The entry must not be used again.
    Ends { inbox: Inbox<D> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryReply<D> {
    Granted {
        /// Whether the owner had the lock before.
        already: bool,
        lease: Duration,
        /// Whether the owner may ask again.
        waits: bool,
        details: D,
    },
    /// Another owner has the lock, and this owner has an entry in the queue.
    Refused {
        /// The server's clock, in ms.
        now: u64,
        /// The time after which another request may succeed, even without a message.
        left: Duration,
        /// The number of entries ahead in the queue.
        place: u32,
        by_redisson: bool,
        /// Whether the entry is new.
        is_new: bool,
        /// How long the owner sleeps without a message, within [`POLL`].
        poll: u64,
    },
    /// The owner has an entry in a fair lock's queue, or has just lost its entry.
    Waits {
        /// The server's clock, in ms.
        now: u64,
        /// How long the owner sleeps without a message.
        sleep: Duration,
        /// Whether the owner had lost its entry and has an entry again.
        came_back: bool,
    },
    /// Another owner has the lock, and this owner has no entry.
    NotTaken,
}

/// The actions to take, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Actions<D> {
    /// The channels to listen to from here on.
    pub(crate) listens: Listens,
    /// Whether a message should have arrived before this reply. If the message does not arrive
    /// later, the subscription is broken, although there was no error.
    pub(crate) suspects: bool,
    pub(crate) then: Action<D>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Listens {
    AsBefore,
    ToOwn,
    /// Also listen to the channel of Redisson's releases.
    ToPublic,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action<D> {
    /// Sleep until this time or until a message comes. Zero: ask at once.
    Sleep { until: u64 },
    /// Send the request, with these extra arguments.
    Ask { again: Option<Again> },
    /// The owner has the lock.
    Granted(Granted<D>),
    /// End the wait with an error, because several grants in a row arrived after their leases had
    /// ended.
    Fail,
    /// Remove the owner's entry, or release the owner's lock. `details`: the details of an unused
    /// grant by message.
    GiveBack { undo: Undo, details: Option<D> },
}

/// A grant that counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Granted<D> {
    /// The request whose time is the start of the lease.
    pub(crate) asked: Asked,
    /// Whether a copy of a request may take the lock again.
    pub(crate) in_doubt: bool,
    pub(crate) by: By<D>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By<D> {
    /// The grant arrived in a message, with this short lease, because the process might be stopped.
    Message { lease: Duration, details: D },
    /// The grant arrived in a reply, with the requested lease, because the process is awake.
    Reply {
        /// Whether the owner had the lock before, by a message or by a copy of a request.
        already: bool,
        details: D,
        /// The details of a grant message that this reply confirms.
        message: Option<D>,
        /// Whether a grant message to the owner may still arrive although the owner already has the
        /// lock.
        may_be_named: bool,
    },
}

impl<D> EntryMachine<D> {
    pub(crate) const fn new() -> Self {
        Self { exchanges: Exchanges::new(), place: None, is_asking: false, ask_at: 0 }
    }

    /// The time at which the owner asks, even without a message. Zero: at once.
    pub(crate) fn ask_at(&self) -> u64 {
        self.ask_at
    }

    pub(crate) fn longest(&self) -> Duration {
        self.exchanges.longest()
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.exchanges.is_in_doubt()
    }

    /// Makes a step. `now` is the time on the process's own clock, which never jumps.
    #[inline]
    pub(crate) fn step(&mut self, now: u64, event: EntryEvent<D>) -> Actions<D> {
        match event {
            EntryEvent::Asks { asked, lease, queues } => {
                self.asks(now, asked, lease, queues).into()
            }
            EntryEvent::Answered { reply, in_doubt } => self.answered(now, reply, in_doubt),
            EntryEvent::Failed => self.unanswered(false).into(),
            EntryEvent::Unknown => self.unanswered(true).into(),
            EntryEvent::Collects { inbox, collector } => {
                self.collects(now, inbox, collector).into()
            }
            EntryEvent::Unacknowledged { in_doubt, inbox } => {
                self.exchanges.heard(in_doubt, true);
                self.ends(inbox).into()
            }
            EntryEvent::Ends { inbox } => self.ends(inbox).into(),
        }
    }

    /// Begins a request. The first request, a poll and a request after a reconnect are alike.
    /// Without `queues`, the request ignores the queue: it takes the lock if it is free, and adds
    /// no entry.
    #[inline]
    fn asks(&mut self, now: u64, asked: Asked, lease: Duration, queues: bool) -> Action<D> {
        if self.is_asking {
            return self.sleeps();
        }
        self.exchanges.asks(asked, lease);
        (self.is_asking, self.ask_at) = (true, 0);
        Action::Ask { again: if queues { self.exchanges.again(now) } else { None } }
    }

    #[inline]
    fn answered(&mut self, now: u64, reply: EntryReply<D>, in_doubt: bool) -> Actions<D> {
        let Some(asked) = self.exchanges.asked().filter(|_| self.is_asking) else {
            return self.sleeps().into();
        };
        self.is_asking = false;
        self.exchanges.heard(in_doubt, !matches!(reply, EntryReply::NotTaken));
        match reply {
            EntryReply::Granted { already, lease, waits, details } => {
                let message = self.exchanges.confirmed(already);
                let suspects = already && message.is_none();
                let then = match self.exchanges.in_time(now, lease, waits) {
                    InTime::Yes => {
                        let may_be_named = already || self.exchanges.may_stand();
                        let by = By::Reply { already, message, details, may_be_named };
                        // `asks` has set `ask_at` to zero. So if the gate does not admit the grant,
                        // the owner asks the server at once.
                        Action::Granted(Granted {
                            asked,
                            in_doubt: self.exchanges.is_in_doubt(),
                            by,
                        })
                    }
                    InTime::Ask => self.sleeps(),
                    InTime::Fail => Action::Fail,
                };
                Actions { listens: Listens::AsBefore, suspects, then }
            }
            EntryReply::Refused { now: server, left, place, by_redisson, is_new, poll } => {
                self.exchanges.stands(now, server);
                self.exchanges.refused(server);
                // If the owner had an entry before and has a new entry now, the server granted the
                // lock to the old entry, and the message of that grant did not arrive.
                let suspects = is_new && self.place.is_some();
                self.place = Some(place);
                let is_first = by_redisson && place < FIRST;
                let listens = if is_first { Listens::ToPublic } else { Listens::ToOwn };
                self.ask_at = now.saturating_add(nap(left, place, poll));
                Actions { listens, suspects, then: self.sleeps() }
            }
            EntryReply::Waits { now: server, sleep, came_back: suspects } => {
                self.exchanges.refused(server);
                self.ask_at = now.saturating_add(nanos(sleep));
                Actions { listens: Listens::AsBefore, suspects, then: self.sleeps() }
            }
            EntryReply::NotTaken => self.sleeps().into(),
        }
    }

    /// Ends a request that got no reply. The entry is still due.
    fn unanswered(&mut self, in_doubt: bool) -> Action<D> {
        if std::mem::take(&mut self.is_asking) {
            self.exchanges.heard(in_doubt, false);
        }
        self.sleeps()
    }

    fn collects(&mut self, now: u64, inbox: Inbox<D>, collector: Collector) -> Action<D> {
        let Inbox { grant, open_until, is_public, is_missed } = inbox;
        if let Some(until) = open_until {
            self.ask_at = self.ask_at.min(until);
        }
        if is_public {
            // The first waiter asks at once, and the second waiter asks 1 ms later, in case the
            // first is dead.
            let place = self.place.unwrap_or(0);
            if place < FIRST {
                self.ask_at = self.ask_at.min(now.saturating_add(u64::from(place) * MS));
            }
        }
        if is_missed {
            self.ask_at = 0;
        }
        let Some(granted) = grant else { return self.sleeps() };
        // If the grant does not count, or if the gate does not admit the grant, the owner asks the
        // server next.
        self.ask_at = 0;
        let lease = granted.lease;
        match self.exchanges.collect(now, granted, collector) {
            Some((asked, details)) => {
                let by = By::Message { lease, details };
                Action::Granted(Granted { asked, in_doubt: self.exchanges.is_in_doubt(), by })
            }
            None => self.sleeps(),
        }
    }

    fn ends(&mut self, inbox: Inbox<D>) -> Action<D> {
        self.is_asking = false;
        // The details of a grant message that was not collected, or that no reply has confirmed.
        let message = self.exchanges.confirmed(true);
        let details = inbox.grant.map(|granted| granted.details).or(message);
        Action::GiveBack { undo: self.exchanges.undo(), details }
    }

    fn sleeps(&self) -> Action<D> {
        Action::Sleep { until: self.ask_at }
    }
}

impl<D> From<Action<D>> for Actions<D> {
    #[inline]
    fn from(then: Action<D>) -> Self {
        Self { listens: Listens::AsBefore, suspects: false, then }
    }
}

impl<D> Inbox<D> {
    pub(crate) const fn new() -> Self {
        Self { grant: None, open_until: None, is_public: false, is_missed: false }
    }

    /// Adds a message. The caller must wake the owner's thread.
    pub(crate) fn receive(&mut self, received: Received<D>) {
        match received {
            // A second grant message adds nothing.
            Received::Grant(granted) if self.grant.is_some() => drop(granted),
            Received::Grant(granted) => self.grant = Some(granted),
            Received::Open { until } => self.open_until = Some(until),
            Received::Public => self.is_public = true,
            Received::Missed => self.is_missed = true,
        }
    }

    /// Takes all messages out of the inbox.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new())
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.grant.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.grant.is_none() && self.open_until.is_none() && !self.is_public && !self.is_missed
    }
}

/// Returns when a waiter that receives no message asks again: at the end of the lease or window, or
/// at the next poll if that is earlier.
fn nap(left: Duration, place: u32, poll: u64) -> u64 {
    let end = nanos(left).saturating_add(PAST_END + PER_PLACE * u64::from(place));
    let (least, most) = POLL;
    end.min(poll.clamp(least, most))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
