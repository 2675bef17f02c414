//! The times of one owner's requests and replies. From these times, this module computes until when
//! a grant is valid, and whether the owner may report other owners as silent.
//!
//! This file is pure: its functions take the time as an argument, send nothing and read no clock.
//! The models of the scripts (`tests/models/`) also compile this file, so it imports little: what
//! it imports, they must have, too. The state has no owner number, so that two owners with the same
//! past are equal.
//!
//! ```text
//!          asks             queued (at the server's time)
//!   new ---------> asked ---------------------------------> anchored, waiting
//!                    |                                             | asks ...
//!                    | granted by reply                            | granted by message
//!                    v                                             v
//!        until = asked + lease        until = anchor's time + (grant's now - anchor's now) + lease
//! ```
//!
//! Anchor: an earlier exchange in the same wait, from whose times the client computes the deadline
//! of a grant by message. If there was no such exchange, the lease counts from the first request.
//! The lease must not count from the time at which the process reads the message. The process may
//! have been stopped in between, and another process may already have the lock:
//!
//! ```text
//! server    grant to A (2 s)              its end: grant to B
//! A         stopped ............................................ reads the grant: too late
//! ```
//!
//! If a reply from after a grant says that the owner is not the holder, the grant is no longer
//! valid, even if the owner reads this reply first. (A grant message and a reply come over two
//! connections, so the reply may overtake the message.)
//!
//! Silent: the owner may report that other owners are silent. It may do so only while the server
//! answers it promptly and without a pause, and the server's clock does not jump. In a pause, this
//! process itself may have been stopped, and the other owners may have sent requests.

use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// The server must have answered an owner promptly for this time before the owner may report other
/// owners as silent. `lua/hand_off.lua` calls this time ALIVE_FOR.
const STEADY: u64 = 2_000 * MS;
/// The longest time in which a prompt reply arrives. `lua/hand_off.lua` calls this time
/// MAX_REQUEST_AGE. After a slower reply, the server or this process may have stood still.
const PROMPT: u64 = 400 * MS;
/// The longest time from a reply to the next request. After a longer pause, this process may have
/// stood still.
const PAUSE: u64 = 1_500 * MS;

/// The values that a leader reads before it sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    /// The number of this process's forced unlocks that the server has answered.
    pub(crate) forced_unlocks: u64,
    /// The incarnation of the server to which the client last connected. If a later incarnation of
    /// the server granted the hold, the release may report the hold as lost although it was not
    /// lost. The release never fails to report a loss.
    pub(crate) incarnation: u64,
    /// The time on the process's own clock in nanoseconds, from which the lease of the grant
    /// counts. For a grant by message, this is the time of the grant. (In this file all times are
    /// on this clock, except the server's times.)
    pub(crate) at: u64,
}

/// The times of an owner's exchanges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Exchanges {
    /// The time at which the first request was sent.
    began: Option<u64>,
    asked: Option<Asked>,
    /// Whether the owner has sent more than one request.
    asked_again: bool,
    /// The last exchange whose reply contained the server's time.
    anchor: Option<Anchor>,
    /// The server's time in the first reply that said that the owner has an entry.
    waiting_since: Option<u64>,
    /// The beginning and the end of the period in which the server has answered the owner promptly,
    /// without a pause.
    steady: Option<(u64, u64)>,
}

/// The time at which a request was sent, and the later time of the server in its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Anchor {
    sent: u64,
    /// `server` is in ms.
    server: u64,
}

impl Exchanges {
    pub(crate) const fn new() -> Self {
        Self {
            began: None,
            asked: None,
            asked_again: false,
            anchor: None,
            waiting_since: None,
            steady: None,
        }
    }

    /// Notes that the owner is about to send a request.
    #[inline]
    pub(crate) fn note_request(&mut self, asked: Asked) {
        self.began.get_or_insert(asked.at);
        if self.asked.is_some_and(|before| before.incarnation != asked.incarnation) {
            // The server was restarted, or is another server with another clock. Other owners may
            // not have sent a request to this server yet.
            (self.anchor, self.steady) = (None, None);
        }
        self.asked_again = self.asked.is_some();
        self.asked = Some(asked);
    }

    pub(crate) fn asked(&self) -> Option<Asked> {
        self.asked
    }

    pub(crate) fn has_asked_again(&self) -> bool {
        self.asked_again
    }

    /// The extra arguments of the next request, if the owner already has an entry.
    #[inline]
    pub(crate) fn again(&self, now: u64) -> Option<Again> {
        let waiting_since = self.waiting_since?;
        let steady = self.steady.filter(|(since, last)| {
            now.saturating_sub(*since) >= STEADY && now.saturating_sub(*last) <= PAUSE
        });
        let anchor = self.anchor.filter(|_| steady.is_some());
        let sent = anchor.map(|anchor| anchor.server + now.saturating_sub(anchor.sent) / MS);
        Some(Again { waiting_since, sent })
    }

    /// Notes a reply that says that the owner has an entry. `server`: the server's time in the
    /// reply. The caller calls this before [`set_anchor`](Self::set_anchor), which replaces the
    /// anchor.
    pub(crate) fn note_queued(&mut self, now: u64, server: u64) {
        self.waiting_since.get_or_insert(server);
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
    /// reply.
    pub(crate) fn set_anchor(&mut self, server: u64) {
        if self.anchor.is_none_or(|anchor| anchor.server < server) {
            self.anchor = self.asked.map(|asked| Anchor { sent: asked.at, server });
        }
    }

    /// Returns the time at which the server made a grant, on the process's own clock. The result
    /// may be too early, but is never too late, even if this process reads the grant late.
    /// `server`: the server's time in the grant. Returns `None` if a reply with a later time of the
    /// server's clock says that the owner is not the holder. In that case the grant has ended, or
    /// the server's clock was set back.
    pub(crate) fn granted_at(&self, server: u64) -> Option<u64> {
        let Some(anchor) = self.anchor else { return self.began };
        let since = server.checked_sub(anchor.server)?;
        // The arithmetic saturates, because any client may publish any number on the channel.
        Some(anchor.sent.saturating_add(since.saturating_mul(MS)))
    }
}
