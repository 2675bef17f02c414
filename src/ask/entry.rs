//! An owner's entry in the queue of a lock, as a state machine. Each event is a method. The method
//! takes the time, and returns what its caller in `site/queue_entry.rs` must do. A fair lock's
//! entry is in `lock/fair/entry.rs`.
//!
//! ```text
//!         asks                     queued: sleeps until the poll, an end, or a message
//!   new ───────> asking ──────────────────────────────────────────────> sleeping
//!                 ^ │ granted by reply                  granted by message │ │ due
//!                 │ └──────────────────────> granted <─────────────────────┘ │
//!                 └──────────────────────────────────────────────────────────┘
//!   ends, at any time: removes what the server may have of the owner
//! ```
//!
//! Like `exchanges.rs`, this file is pure: it uses no owner number, clock, random choice, mutex or
//! I/O. So a state can be copied, compared and hashed. The models of the scripts (`tests/models/`)
//! run this file, and `tests/models/explore/` visits all states of the machine. There are two
//! types, because two threads take part. The waiting thread owns the [`EntryMachine`]. The
//! subscriber thread fills the [`Messages`], under a mutex of the caller.
//!
//! The invariants, and the errors that they prevent:
//!
//! - *one at a time*: an entry has at most one open request. A reply does not name its request. If
//!   two requests were open, the client would take the first reply for the reply to the second
//!   request. It would then compute deadlines that are too late.
//! - *hint*: a message makes the owner send a request, and has no other effect. The only exception
//!   is a grant message that is [still valid](EntryMachine::collect): it gives the owner the lock
//!   without a request. If the grant is no longer valid, the owner sends a request, because the
//!   owner may still be the holder at the server.
//! - *anchor*, *granted late*, *silent*: see `exchanges.rs`.
//! - *acknowledged*: if replicas must have a grant, a grant message only makes the owner send a
//!   request. The reason is that WAIT covers only the writes of its own connection, and the grant
//!   was written over another connection. The owner's request writes the hold again, and then waits
//!   for the replicas. The owner also sends a request if the short lease of a grant by message is
//!   not enough for it. This request raises the lease.
//! - *collected after the reply*: the thread collects messages only between requests. A message
//!   that arrives during a request remains in the mailbox. After the reply, the thread knows whether
//!   a grant message is still valid: the reply may say that the owner is in the queue again.
//! - *every wait ends*: a queued owner sleeps for at most [`POLL`]. This time is shorter than the
//!   lease of a grant by message, so every waiter sends at least one request during such a lease.
//!   The reply says when the lease ends, and the waiter asks again at that time. So if the process
//!   with the grant is stopped, the other waiters lose only the time of its lease. (Every waiter
//!   asks, because a waiter cannot know whether it is now the first in the queue.)
//! - *no message is lost*: a message that causes a request is removed from the mailbox. If this
//!   request fails, `ask_at` stays zero, so the next leader asks at once. If the gate does not
//!   admit a leader's grant, the leader also asks at once.
//! - *nobody's entry*: if an owner's only request took the lock, the owner was never in a queue, so
//!   no message names it. If the owner sent more requests, or if a copy of its request may have
//!   run, a grant message may arrive after the owner has got the lock. The client must not give
//!   this grant back as unclaimed, because that would release the owner's hold.
//! - *undone*: if the server may have the owner in the queue or as the holder at the end of the
//!   wait, the client removes the owner. The client repeats the removal for as long as a copy of a
//!   request may still arrive.

use std::time::Duration;

use super::exchanges::{Asked, Exchanges};
use crate::lease::deadline::{PROVISIONAL, deadline};
use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// The shortest and the longest time, in nanoseconds, until a waiter without a message asks again.
pub(crate) const POLL: (u64, u64) = (800 * MS, 1_200 * MS);
const _: () = assert!(POLL.1 < PROVISIONAL);
/// The number of waiters, from the head of the queue, that listen for Redisson's releases. The
/// second waiter listens in case the first one is dead.
const FIRST: u32 = 2;
/// The time that a waiter adds to the end of a lease or a window before it asks. The server's reply
/// gives this end in whole milliseconds, rounded down.
const PAST_END: u64 = MS;
/// The additional sleep for each entry ahead in the queue, so that the waiters do not all ask at
/// the same time.
const PER_PLACE: u64 = 300_000;
/// The wait fails after this number of late grants in a row. A grant is late if the owner reads it
/// after the end of its lease.
const MOST_LATE: u32 = 3;

/// The state of an owner's entry. `D` is the type of a grant's details.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryMachine<D> {
    exchanges: Exchanges,
    is_asking: bool,
    /// The time at which the owner asks, even without a message. Zero: at once.
    ask_at: u64,
    /// The number of entries ahead, according to the last reply, or `None` if the owner had no
    /// entry.
    place: Option<u32>,
    /// Whether a copy of a request may arrive later: a request was sent twice, or its outcome is
    /// unknown.
    in_doubt: bool,
    /// Whether the server may have the owner in a queue or as the holder.
    is_known: bool,
    /// The longest lease that a request named.
    longest: Duration,
    /// The number of grants in a row that were read after their leases had ended.
    late: u32,
    /// The details of a grant by message, while the owner waits for a reply that confirms it.
    granted_by_message: Option<D>,
}

/// The messages that have arrived for an owner, on any channel, and that its thread has not
/// collected yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Messages<D> {
    /// The first grant message, which says that the owner has the lock. (A second grant message
    /// would add nothing.)
    pub(crate) grant: Option<ReceivedGrant<D>>,
    /// The end of an open window, at which the owner should ask.
    pub(crate) open_until: Option<u64>,
    /// Whether a Redisson client has released the lock, or may have released it before the server
    /// confirmed the channel.
    pub(crate) has_public_release: bool,
    /// Whether the owner should ask, because a script's message says so, or because the client has
    /// subscribed to its own channel again and may have missed messages.
    pub(crate) must_ask: bool,
}

/// A grant by message, with the details of its kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReceivedGrant<D> {
    /// The time of the grant, on the server's clock, in ms.
    pub(crate) server_time: u64,
    /// The time at which the message arrived, on the process's clock.
    pub(crate) received_at: u64,
    pub(crate) lease: Duration,
    pub(crate) details: D,
}

/// What a thread needs when it collects a grant by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Collector {
    /// The lease that the thread wants.
    pub(crate) lease: Duration,
    /// The incarnation of the server to which the client last connected.
    pub(crate) incarnation: u64,
    /// Whether a grant message is not enough and the thread needs a reply: replicas must have the
    /// grant, or the grant must have the full lease.
    pub(crate) needs_reply: bool,
}

/// The server's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryReply<D> {
    Granted {
        /// Whether the owner already had the lock before this request.
        already: bool,
        lease: Duration,
        /// Whether the owner may ask again.
        waits: bool,
        details: D,
    },
    /// Another owner has the lock, or a window for Redisson is open. This owner has an entry in the
    /// queue.
    Queued {
        /// The server's clock, in ms.
        now: u64,
        /// The time after which another request may succeed, even if no message comes.
        left: Duration,
        /// The number of entries before the owner's entry in the queue.
        place: u32,
        by_redisson: bool,
        /// Whether the entry is new.
        is_new: bool,
        /// How long the owner sleeps without a message, within [`POLL`].
        poll: u64,
    },
    /// The owner has an entry in a fair lock's queue, or has just lost its entry.
    FairQueued {
        /// The server's clock, in ms.
        now: u64,
        /// How long the owner sleeps without a message.
        sleep: Duration,
        /// Whether the owner had lost its entry and now has a new entry.
        came_back: bool,
    },
    /// Another owner has the lock, and this owner has no entry.
    NotTaken,
}

/// What to do after a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AfterReply<D> {
    /// The channels to listen to from here on.
    pub(crate) listens: Listens,
    /// Whether a message should have arrived before this reply. If the message does not arrive soon
    /// after the reply, the subscription is broken, although it has reported no error.
    pub(crate) suspects: bool,
    pub(crate) then: Then<D>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Listens {
    AsBefore,
    ToOwn,
    /// Also listen to the channel of Redisson's releases.
    ToPublic,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Then<D> {
    /// The owner has the lock.
    Granted(ValidGrant<D>),
    /// Sleep until this time or until a message comes. Zero: ask at once.
    Sleep { until: u64 },
    /// End the wait with an error, because several grants in a row arrived after their leases had
    /// ended.
    Fail,
}

/// What the client must undo at the server when a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Undo {
    /// Nothing, because no request of the owner has reached the server.
    Nothing,
    /// The owner's queue entry, or its hold.
    Once,
    /// The owner's queue entry, or its hold, now and again later, because a copy of a request may
    /// still arrive.
    NowAndLater,
}

/// A valid grant: since the grant, no reply has said that the owner is not the holder, the server
/// was not restarted, and the lease of the grant has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ValidGrant<D> {
    /// The request whose time is the start of the lease.
    pub(crate) asked: Asked,
    /// The lease of the hold at the server.
    pub(crate) lease: Duration,
    /// Whether a copy of a request may take the lock again.
    pub(crate) in_doubt: bool,
    pub(crate) by: By<D>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum By<D> {
    /// The grant came by message. Its lease is short, because the process might be stopped. After
    /// 50 ms the renewer raises the lease to the wanted length.
    Message { details: D },
    /// The grant came by reply, with the requested lease, since the process is awake.
    Reply {
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
        Self {
            exchanges: Exchanges::new(),
            is_asking: false,
            ask_at: 0,
            place: None,
            in_doubt: false,
            is_known: false,
            longest: Duration::ZERO,
            late: 0,
            granted_by_message: None,
        }
    }

    pub(crate) fn ask_at(&self) -> u64 {
        self.ask_at
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Begins a request for this lease, and returns the request's extra arguments. Returns `None`
    /// if a request is already open, so that the owner must not ask. All requests begin here: the
    /// first request, polls, and requests after a reconnect. If `queues` is false, the request adds
    /// no entry to the queue, and takes the lock only if it is free, even if others are in the
    /// queue.
    #[inline]
    pub(crate) fn begin_request(
        &mut self,
        asked: Asked,
        lease: Duration,
        queues: bool,
    ) -> Option<Option<Again>> {
        if self.is_asking {
            return None;
        }
        self.exchanges.note_request(asked);
        self.longest = self.longest.max(lease);
        (self.is_asking, self.ask_at) = (true, 0);
        Some(if queues { self.exchanges.again(asked.at) } else { None })
    }

    /// Handles the server's answer to the request. `in_doubt`: the request was sent twice, and a
    /// copy may still reach the server.
    #[inline]
    pub(crate) fn answered(
        &mut self,
        now: u64,
        reply: EntryReply<D>,
        in_doubt: bool,
    ) -> AfterReply<D> {
        let (mut listens, mut suspects) = (Listens::AsBefore, false);
        let Some(asked) = self.exchanges.asked().filter(|_| self.is_asking) else {
            return AfterReply { listens, suspects, then: self.sleeps() };
        };
        self.is_asking = false;
        self.may_have(in_doubt, !matches!(reply, EntryReply::NotTaken));
        match reply {
            EntryReply::Granted { already, lease, waits, details } => {
                let message = self.granted_by_message.take().filter(|_| already);
                suspects = already && message.is_none();
                // The owner reads the reply after the end of the lease. Only the server knows
                // whether the owner still has the hold.
                if now >= deadline(asked.at, lease) {
                    self.late += 1;
                    let fails = self.late == MOST_LATE || !waits;
                    let then = if fails { Then::Fail } else { self.sleeps() };
                    return AfterReply { listens, suspects, then };
                }
                // The owner already had the lock, because a message granted it with a lease of 2 s.
                // The server has kept the longer of this lease and the requested lease.
                let least = if already { PROVISIONAL } else { 0 };
                let lease = lease.max(Duration::from_nanos(least));
                let may_be_named = already || self.may_be_queued();
                let by = By::Reply { details, message, may_be_named };
                // If the gate does not admit the grant, the owner asks the server at once, because
                // `begin_request` has set `ask_at` to zero.
                let granted = ValidGrant { asked, lease, in_doubt: self.in_doubt, by };
                return AfterReply { listens, suspects, then: Then::Granted(granted) };
            }
            EntryReply::Queued { now: server, left, place, by_redisson, is_new, poll } => {
                self.exchanges.note_queued(now, server);
                self.record_not_holder(server);
                // The owner had an entry, and this entry is new. So the server granted the lock to
                // the old entry, and the message of this grant did not arrive.
                suspects = is_new && self.place.is_some();
                self.place = Some(place);
                let is_first = by_redisson && place < FIRST;
                listens = if is_first { Listens::ToPublic } else { Listens::ToOwn };
                self.ask_at = now.saturating_add(nap(left, place, poll));
            }
            EntryReply::FairQueued { now: server, sleep, came_back } => {
                suspects = came_back;
                self.record_not_holder(server);
                self.ask_at = now.saturating_add(nanos(sleep));
            }
            EntryReply::NotTaken => {}
        }
        AfterReply { listens, suspects, then: self.sleeps() }
    }

    /// Ends a request without a usable answer. The owner still has to ask. `in_doubt`: the server
    /// may have run the request, or may still run it. The caller passes `true` if no reply arrived,
    /// if the second copy had an error, or if the thread's wait ended or was cancelled. If
    /// `in_doubt` is false, the server has run no copy of the request, and will run none.
    pub(crate) fn unanswered(&mut self, in_doubt: bool) {
        if std::mem::take(&mut self.is_asking) {
            self.may_have(in_doubt, false);
        }
    }

    /// Notes that too few replicas have the grant of the last reply. The caller then
    /// [ends](Self::end) the entry.
    pub(crate) fn unacknowledged(&mut self, in_doubt: bool) {
        self.may_have(in_doubt, true);
    }

    /// Collects the messages. Returns the grant if a message granted the lock and the grant is
    /// still valid. After `None`, the owner sleeps until [`ask_at`](Self::ask_at).
    pub(crate) fn collect(
        &mut self,
        now: u64,
        messages: Messages<D>,
        collector: Collector,
    ) -> Option<ValidGrant<D>> {
        let Messages { grant, open_until, has_public_release, must_ask } = messages;
        if let Some(until) = open_until {
            self.ask_at = self.ask_at.min(until);
        }
        if has_public_release {
            // The first waiter asks at once, and the second waiter asks 1 ms later, in case the
            // first is dead.
            let place = self.place.unwrap_or(0);
            if place < FIRST {
                self.ask_at = self.ask_at.min(now.saturating_add(u64::from(place) * MS));
            }
        }
        if must_ask {
            self.ask_at = 0;
        }
        let ReceivedGrant { server_time, received_at, lease, details } = grant?;
        // If the grant is not valid, or if the gate does not admit it, the owner asks the server
        // next.
        self.ask_at = 0;
        // Return `None` if a reply from after this grant says that the owner is not the holder.
        let granted_at = self.exchanges.granted_at(server_time)?;
        if collector.needs_reply {
            self.granted_by_message = Some(details);
            return None;
        }
        let asked = self.exchanges.asked()?;
        if asked.incarnation != collector.incarnation {
            return None;
        }
        // From here on, `at` is the time of the grant, from which the lease counts.
        let asked = Asked { at: granted_at.min(received_at), ..asked };
        // Of the granted lease and the wanted lease, the shorter one applies, because a renewal
        // will set the hold to the wanted lease.
        if now >= deadline(asked.at, lease.min(collector.lease)) {
            return None;
        }
        Some(ValidGrant { asked, lease, in_doubt: self.in_doubt, by: By::Message { details } })
    }

    /// Ends the entry, which must not be used again. Returns what the client must undo, because the
    /// server may have an entry or a hold of the owner. The second result has the details of a
    /// grant by message that the owner did not use, because no thread collected it or no reply
    /// confirmed it.
    pub(crate) fn end(&mut self, messages: Messages<D>) -> (Undo, Option<D>) {
        self.is_asking = false;
        let granted_by_message = self.granted_by_message.take();
        let details = messages.grant.map(|granted| granted.details).or(granted_by_message);
        let undo = match (self.is_known, self.in_doubt) {
            (false, _) => Undo::Nothing,
            (true, false) => Undo::Once,
            (true, true) => Undo::NowAndLater,
        };
        (undo, details)
    }

    /// Notes the outcome of a request. `in_doubt`: the server may run a copy of the request, now or
    /// later. `is_there`: according to the reply, the owner is in the queue or is the holder.
    #[inline]
    fn may_have(&mut self, in_doubt: bool, is_there: bool) {
        self.in_doubt |= in_doubt;
        self.is_known |= in_doubt || is_there;
    }

    /// Whether the server may have had the owner in a queue: the owner has sent more than one
    /// request, or the server may have run a request twice.
    pub(super) fn may_be_queued(&self) -> bool {
        self.in_doubt || self.exchanges.has_asked_again()
    }

    /// Notes a reply that says that the owner is not the holder. `server`: the server's time in the
    /// reply. Any grant from before this time has ended, even if its message is read later.
    fn record_not_holder(&mut self, server: u64) {
        (self.late, self.granted_by_message) = (0, None);
        self.exchanges.set_anchor(server);
    }

    fn sleeps(&self) -> Then<D> {
        Then::Sleep { until: self.ask_at }
    }
}

impl<D> Messages<D> {
    pub(crate) const fn new() -> Self {
        Self { grant: None, open_until: None, has_public_release: false, must_ask: false }
    }

    /// Takes all messages out.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.grant.is_none()
            && self.open_until.is_none()
            && !self.has_public_release
            && !self.must_ask
    }
}

/// Returns how long a waiter sleeps without a message: until the end of the lease or window, or
/// until the next poll if the poll is earlier.
fn nap(left: Duration, place: u32, poll: u64) -> u64 {
    let end = nanos(left).saturating_add(PAST_END + PER_PLACE * u64::from(place));
    let (least, most) = POLL;
    end.min(poll.clamp(least, most))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
