//! The requests and replies of one owner. They show whether the server may have an entry or a hold
//! of the owner, and for how long a grant counts.
//!
//! This file is pure: its functions take the time as an argument, send nothing and read no clock.
//! The models of the scripts (`tests/models/`) compile this file, too, so it imports only what the
//! parent module imports. It has no owner number, so two owners with equal histories are equal.
//!
//! ```text
//!          asks            refused (at the server's time)
//!   new ---------> asked ---------------------------------> anchored, waiting
//!                    |                                             | asks ...
//!                    | granted by reply                            | granted by message
//!                    v                                             v
//!        until = asked + lease          until = anchor's time + (grant's now - anchor's now) + lease
//! ```
//!
//! Anchor: the deadline of a grant by message is computed from an earlier exchange of the same
//! wait, with the server's times. If there was no such exchange, the lease counts from the first
//! request. The lease must not count from the time at which the process reads the message: the
//! process may have been stopped, and another process may have the lock by then:
//!
//! ```text
//! server    grant to A (2 s)              its end: grant to B
//! A         stopped ............................................ reads the grant: too late
//! ```
//!
//! If the server refuses the owner after a grant, the grant does not count, even if the owner reads
//! the refusal first. A grant message and a reply come over two connections, so the reply may
//! overtake the message.
//!
//! Acknowledged: if replicas must have a grant, a grant message only makes the owner send a
//! request. Another connection has written the grant, and WAIT covers only the writes of the
//! connection that sends it. So the owner's request writes the hold again. If an owner cannot use
//! the short lease of a grant by message, it also sends a request, which raises the lease.
//!
//! Silent: the owner may report other owners as silent only while the server answers it promptly,
//! without a pause, and with a clock that does not jump. After a pause, this process itself may
//! have been stopped, and the other owners may have sent requests in the meantime.

use std::time::Duration;

use crate::lease::deadline::deadline;
use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// An owner may report others as silent after the server has answered it promptly for this time:
/// HEARD of `lua/hand_off.lua`.
const STEADY: u64 = 2_000 * MS;
/// The longest time for a prompt reply: PROMPT of `lua/hand_off.lua`. A slower reply shows that the
/// server or this process stood still.
const PROMPT: u64 = 400 * MS;
/// The longest time from a reply to the next request. A longer pause shows that this process stood
/// still.
const PAUSE: u64 = 1_500 * MS;
/// The number of grants in a row, each read after its own end, at which the wait fails.
const MOST_LATE: u32 = 3;

/// What a leader reads before it sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    /// The number of this process's forced unlocks that the server has answered.
    pub(crate) forced: u64,
    /// The incarnation of the server to which the client last connected. If a later incarnation
    /// granted the hold, the release of the hold may report a loss that did not happen, but never
    /// hides a loss.
    pub(crate) incarnation: u64,
    /// The time on the process's own clock in nanoseconds. (In this file all times are such times,
    /// except the server's times.)
    pub(crate) at: u64,
}

/// The state of an owner's exchanges. `D` is the type of a grant's details.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Exchanges<D> {
    /// The time at which the first request was sent.
    began: Option<u64>,
    asked: Option<Asked>,
    /// Whether the last request was not the first.
    asked_again: bool,
    /// The last exchange that named the server's time.
    anchor: Option<Anchor>,
    /// The server's time in the first reply that reported the owner's entry.
    came: Option<u64>,
    /// The beginning and the end of the period in which the server has answered the owner promptly,
    /// without a pause.
    steady: Option<(u64, u64)>,
    /// Whether a copy of a request may arrive later: a request was sent twice, or its outcome is
    /// unknown.
    in_doubt: bool,
    /// Whether the server may have the owner in a queue or as the holder.
    is_known: bool,
    longest: Duration,
    /// The number of grants in a row that were read after their leases had ended.
    late: u32,
    /// The details of a grant by message, while the owner asks the server to confirm the grant.
    message: Option<D>,
}

/// A request and the server's time in its reply. The server's time is not earlier than `sent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Anchor {
    sent: u64,
    /// `server` is in ms.
    server: u64,
}

/// A grant by message, with the details of its kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReceivedGrant<D> {
    /// The time of the grant, on the server's clock, in ms.
    pub(crate) now: u64,
    pub(crate) received: u64,
    pub(crate) lease: Duration,
    pub(crate) details: D,
}

/// The conditions of the thread that collects a grant by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Collector {
    /// The lease that the thread wants.
    pub(crate) lease: Duration,
    /// The incarnation of the server to which the client last connected.
    pub(crate) incarnation: u64,
    /// Whether the thread needs a reply, because replicas must have the grant, or because the grant
    /// must have the full lease.
    pub(crate) needs_reply: bool,
}

/// Whether a grant by reply was read before its lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum InTime {
    Yes,
    /// The lease has ended: the owner must ask the server whether it still has the hold.
    Ask,
    /// The wait fails, because too many grants were read after their leases had ended.
    Fail,
}

/// What the client must undo at the server when a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Undo {
    /// Nothing, because no request of the owner has reached the server.
    Nothing,
    /// An entry, or the lock.
    Once,
    /// An entry, or the lock, now and again later, because a copy of a request may still arrive.
    NowAndLater,
}

impl<D> Exchanges<D> {
    pub(crate) const fn new() -> Self {
        Self {
            began: None,
            asked: None,
            asked_again: false,
            anchor: None,
            came: None,
            steady: None,
            in_doubt: false,
            is_known: false,
            longest: Duration::ZERO,
            late: 0,
            message: None,
        }
    }

    /// Notes that the owner is about to send a request for this lease.
    #[inline]
    pub(crate) fn asks(&mut self, asked: Asked, lease: Duration) {
        self.began.get_or_insert(asked.at);
        if self.asked.is_some_and(|before| before.incarnation != asked.incarnation) {
            // The server was restarted, or is another server with another clock. Other owners may
            // not have sent a request to it yet.
            (self.anchor, self.steady) = (None, None);
        }
        self.asked_again = self.asked.is_some();
        self.asked = Some(asked);
        self.longest = self.longest.max(lease);
    }

    /// Notes the outcome of a request. `in_doubt`: the server may run a copy of the request, now or
    /// later. `is_there`: the reply says that the owner is in the queue or is the holder now.
    #[inline]
    pub(crate) fn heard(&mut self, in_doubt: bool, is_there: bool) {
        self.in_doubt |= in_doubt;
        self.is_known |= in_doubt || is_there;
    }

    pub(crate) fn asked(&self) -> Option<Asked> {
        self.asked
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Whether the server may have had the owner in a queue: the owner has sent more than one
    /// request, or the server may have run a request twice.
    pub(crate) fn may_stand(&self) -> bool {
        self.in_doubt || self.asked_again
    }

    /// The extra arguments of the next request, if the owner already has an entry.
    #[inline]
    pub(crate) fn again(&self, now: u64) -> Option<Again> {
        let came = self.came?;
        let steady = self.steady.filter(|(since, last)| {
            now.saturating_sub(*since) >= STEADY && now.saturating_sub(*last) <= PAUSE
        });
        let anchor = self.anchor.filter(|_| steady.is_some());
        let sent = anchor.map(|anchor| anchor.server + now.saturating_sub(anchor.sent) / MS);
        Some(Again { came, sent })
    }

    /// Notes a reply that says that the owner has an entry. `server`: the server's time in the
    /// reply. Must be called before [`refused`](Self::refused), which replaces the anchor.
    pub(crate) fn stands(&mut self, now: u64, server: u64) {
        self.came.get_or_insert(server);
        let Some(asked) = self.asked else { return };
        // A jump of the server's clock also ends the steady period: with the new time, owners that
        // have just sent a request may seem silent.
        let is_expected = self.anchor.is_none_or(|anchor| {
            let expected = anchor.server + asked.at.saturating_sub(anchor.sent) / MS;
            expected.abs_diff(server) <= PROMPT / MS
        });
        let is_prompt = is_expected && now.saturating_sub(asked.at) <= PROMPT;
        let goes_on = |last| asked.at.saturating_sub(last) <= PAUSE;
        self.steady = match self.steady {
            _ if !is_prompt => None,
            Some((since, last)) if goes_on(last) => Some((since, now)),
            _ => Some((now, now)),
        };
    }

    /// Notes a reply that says that the owner is not the holder. `server`: the server's time in the
    /// reply. A grant from before that time is over, even if this process reads it later.
    pub(crate) fn refused(&mut self, server: u64) {
        (self.late, self.message) = (0, None);
        if self.anchor.is_none_or(|anchor| anchor.server < server) {
            self.anchor = self.asked.map(|asked| Anchor { sent: asked.at, server });
        }
    }

    /// Notes a grant by reply. If the owner `already` had the lock, returns the details of the
    /// grant message that this reply confirms.
    #[inline]
    pub(crate) fn confirmed(&mut self, already: bool) -> Option<D> {
        self.message.take().filter(|_| already)
    }

    /// Whether the reply to the last request, which granted this lease, is read before the lease
    /// ends. `waits`: the owner may ask again.
    #[inline]
    pub(crate) fn in_time(&mut self, now: u64, lease: Duration, waits: bool) -> InTime {
        if self.asked.is_some_and(|asked| now < deadline(asked.at, lease)) {
            return InTime::Yes;
        }
        self.late += 1;
        if self.late == MOST_LATE || !waits { InTime::Fail } else { InTime::Ask }
    }

    /// Notes a grant by message. Returns the time from which its lease counts, and its details.
    /// `None`: the owner must ask, because it may have lost the lock, or because the thread needs a
    /// reply.
    pub(crate) fn collect(
        &mut self,
        now: u64,
        granted: ReceivedGrant<D>,
        collector: Collector,
    ) -> Option<(Asked, D)> {
        // The server has refused the owner after this grant, by the server's times: the grant has
        // ended, or the server's clock was set back.
        if self.anchor.is_some_and(|anchor| granted.now < anchor.server) {
            return None;
        }
        if collector.needs_reply {
            self.message = Some(granted.details);
            return None;
        }
        let asked = self.asked.filter(|asked| asked.incarnation == collector.incarnation)?;
        // The server granted the lock at this time or later. The time does not depend on when this
        // process reads the message.
        let not_before = match self.anchor {
            // The arithmetic saturates, since any client may publish any number on the channel.
            Some(anchor) => {
                anchor.sent.saturating_add((granted.now - anchor.server).saturating_mul(MS))
            }
            None => self.began?,
        };
        let asked = Asked { at: not_before.min(granted.received), ..asked };
        // If the thread wants a shorter lease, the shorter lease counts, because a renewal cuts the
        // hold to it.
        let counts = granted.lease.min(collector.lease);
        (now < deadline(asked.at, counts)).then_some((asked, granted.details))
    }

    pub(crate) fn undo(&self) -> Undo {
        match (self.is_known, self.in_doubt) {
            (false, _) => Undo::Nothing,
            (true, false) => Undo::Once,
            (true, true) => Undo::NowAndLater,
        }
    }
}
