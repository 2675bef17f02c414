//! An owner that asks for a lock, from its first request until it has the lock or gives up, and the
//! results of its requests.
//!
//! Anchor: the deadline of a grant by message counts from an earlier exchange of the same wait, by
//! the server's clock; without one, from the first request. The process may have been stopped, and
//! another one may have the lock when this one reads the message.
//!
//! Acknowledged: if replicas must have a grant, a message only makes the owner ask. Another
//! connection has written the grant, and the server answers only for this connection's writes; the
//! request finds the hold, and writes it anew. If too few replicas have a grant, the client gives
//! it back before any caller sees it.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::hold::{Asked, Hold};
use super::site::Site;
use super::terms::Terms;
use crate::error::Error;
use crate::runtime::LiveOwner;
use crate::scripts::lock::Again;
use crate::scripts::{Owner, Replied, Trouble};

const MS: u64 = 1_000_000;
/// An owner that the server has answered for this long may report others as silent: HEARD of
/// `lua/hand_off.lua`.
const STEADY: u64 = 2_000 * MS;
/// A reply that takes longer shows that the server, or this process, stood still: PROMPT there.
const PROMPT: u64 = 400 * MS;
/// The next request follows a reply within this time, unless this process stood still.
const PAUSE: u64 = 1_500 * MS;
/// At this many grants in a row that arrive after their own end, the wait fails.
const MOST_LATE: u32 = 3;

/// See the module. It ends as a hold, or is [given up](Site::give_up).
#[derive(Debug)]
pub(crate) struct Acquisition<D> {
    pub(crate) owner: Owner,
    /// Keeps the owner live.
    live: Arc<LiveOwner>,
    /// When its first request was sent.
    began: Option<u64>,
    /// The last request.
    asked: Option<Asked>,
    /// The last request was not the first.
    asked_again: bool,
    /// The last exchange that named the server's time.
    anchor: Option<Anchor>,
    /// Since when it has an entry, by the server's clock, as the first such reply said.
    came: Option<u64>,
    /// Since when, and until when, the server has answered it promptly, without a pause.
    steady: Option<(u64, u64)>,
    /// A request was sent twice, or its outcome is not known: a copy may arrive later.
    pub(crate) in_doubt: bool,
    /// The server may know the owner.
    pub(super) is_known: bool,
    /// The longest lease that a request named.
    pub(super) longest: Duration,
    /// How many grants in a row were read after their own end.
    late: u32,
    /// The details of a grant by message, while the owner asks for its confirmation.
    pub(super) told: Option<D>,
    /// Why a grant of the last reply does not count: too few replicas have it.
    pub(crate) unacknowledged: Option<Error>,
}

/// An exchange whose reply named the server's time, which was not before `sent`.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    sent: u64,
    server: u64,
}

/// A grant by message, with the details of its kind of lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted<D> {
    /// By the server's clock, in ms.
    pub(crate) now: u64,
    /// By [`clock`].
    pub(crate) received: u64,
    pub(crate) lease: Duration,
    pub(crate) details: D,
}

impl<D> Acquisition<D> {
    pub(crate) fn new(site: &Site) -> Self {
        let (owner, live) = site.core.next_owner_to(site.mode);
        Self {
            owner,
            live,
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
            told: None,
            unacknowledged: None,
        }
    }

    /// The caller is about to send a request of this owner, for this lease.
    pub(crate) fn asks(&mut self, asked: Asked, lease: Duration) {
        self.began.get_or_insert(asked.at);
        if self.asked.is_some_and(|before| before.incarnation != asked.incarnation) {
            // Another server, with another clock, or one that was started anew: other owners may
            // not be back yet.
            (self.anchor, self.steady) = (None, None);
        }
        self.asked_again = self.asked.is_some();
        self.asked = Some(asked);
        self.longest = self.longest.max(lease);
    }

    /// Records the outcome of a request. `is_there`: whether the reply says that the server has the
    /// owner in its queue or as the holder now.
    pub(crate) fn heard<T>(
        &mut self,
        replied: Result<Replied<T>, Trouble>,
        is_there: impl FnOnce(&T) -> bool,
    ) -> Result<T, Trouble> {
        let (in_doubt, is_known) = match &replied {
            Ok(Replied { reply, in_doubt, .. }) => (*in_doubt, is_there(reply)),
            Err(trouble) => (matches!(trouble, Trouble::Unknown(_)), false),
        };
        self.in_doubt |= in_doubt;
        self.is_known |= in_doubt || is_known;
        replied.map(|Replied { reply, unacknowledged, .. }| {
            self.unacknowledged = unacknowledged;
            reply
        })
    }

    /// Whether the server may have had the owner in a queue: the last answered request was not the
    /// only one, or the server may have run it twice.
    pub(super) fn may_stand(&self) -> bool {
        self.in_doubt || self.asked_again
    }

    /// The extra arguments of the next request, if the owner already has an entry.
    pub(super) fn again(&self, now: u64) -> Option<Again> {
        let steady = self.steady.filter(|(since, last)| {
            now.saturating_sub(*since) >= STEADY && now.saturating_sub(*last) <= PAUSE
        });
        let anchor = self.anchor.filter(|_| steady.is_some());
        let sent = anchor.map(|anchor| anchor.server + now.saturating_sub(anchor.sent) / MS);
        self.came.map(|came| Again { came, sent })
    }

    /// A reply said that the owner has an entry, at this time of the server's. Called before
    /// [`refused`](Self::refused), since it looks at the exchange before this one.
    pub(super) fn stands(&mut self, server: u64) {
        self.came.get_or_insert(server);
        let (now, Some(asked)) = (clock::now(), self.asked) else { return };
        // A jump of the server's clock ends the steady time, too: other owners that have just asked
        // may look silent by the new time.
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

    /// The server answered, at this time, that the owner is not the holder. An earlier grant is
    /// over, in whichever order this process reads the two (see
    /// [`granted_by_message`](Self::granted_by_message)).
    pub(crate) fn refused(&mut self, now: u64) {
        (self.late, self.told) = (0, None);
        if self.anchor.is_none_or(|anchor| anchor.server < now) {
            self.anchor = self.asked.map(|asked| Anchor { sent: asked.at, server: now });
        }
    }

    /// The last reply granted the lock, which may `already` have been this owner's. Returns the
    /// details that a message named for that earlier grant.
    pub(crate) fn told(&mut self, site: &Site, already: bool) -> Option<D> {
        let told = self.told.take().filter(|_| already);
        if already && told.is_none() {
            // The message of that grant is on its way, or was lost.
            site.core.pubsub.suspect(&site.name);
        }
        told
    }

    /// A hold by the reply to the last request. It has the whole lease, since its process is alive.
    pub(crate) fn granted_by_reply(&self, site: &Site, terms: Terms) -> Hold {
        let asked = self.asked.unwrap_or_else(|| Asked::now(site));
        Hold::new(self.owner, terms, terms.lease(), asked, self.in_doubt).of_live(&self.live)
    }

    /// Returns the hold, if its reply was read before its deadline. Otherwise only the server knows
    /// whether it is still ours.
    pub(crate) fn in_time(
        &mut self,
        site: &Site,
        hold: Hold,
        waits: bool,
    ) -> Result<Option<Hold>, Error> {
        if clock::now() < hold.deadline() {
            return Ok(Some(hold));
        }
        self.late += 1;
        if self.late == MOST_LATE || !waits {
            return Err(Error::late_grant(&site.name));
        }
        Ok(None)
    }

    /// A hold by message, with the message's details. `None`: the hold may not be ours any more, or
    /// replicas must have it; the caller asks the server then.
    pub(crate) fn granted_by_message(
        &mut self,
        site: &Site,
        terms: Terms,
        granted: Granted<D>,
    ) -> Option<(Hold, D)> {
        // The server refused the owner after this grant: the grant was taken away again, or the
        // server's clock was set back between the two.
        if self.anchor.is_some_and(|anchor| granted.now < anchor.server) {
            return None;
        }
        if site.core.config.replica_acks.is_some() {
            self.told = Some(granted.details);
            return None;
        }
        let asked = self.asked.filter(|asked| asked.incarnation == site.route.incarnation())?;
        // The server did not grant it before this, whenever this process read the message.
        let not_before = match self.anchor {
            // (Anybody may write anything on the channel.)
            Some(anchor) => {
                anchor.sent.saturating_add((granted.now - anchor.server).saturating_mul(MS))
            }
            None => self.began?,
        };
        let asked = Asked { at: not_before.min(granted.received), ..asked };
        let wanted = terms.lease();
        let hold = Hold::handed(self.owner, terms, granted.lease, wanted, asked, self.in_doubt);
        let hold = hold.of_live(&self.live);
        (clock::now() < hold.deadline()).then_some((hold, granted.details))
    }
}
