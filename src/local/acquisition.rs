//! An owner that asks for a lock, from its first request until it has the lock or gives up: its
//! number, and its [exchanges](Exchanges) with the server, which decide.
//!
//! Acknowledged: if too few replicas have a grant, the client gives it back before any caller sees
//! it.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::Command;
use redlatch_client::sync::clock;

use super::exchanges::{Asked, Exchanges, Granted, InTime, Reader};
use super::hold::{Hold, Live};
use super::release::Leftover;
use super::site::Site;
use super::terms::Terms;
use crate::error::Error;
use crate::scripts::{Owner, Replied, Trouble};

/// See the module. It ends as a hold, or is [given up](Site::give_up).
#[derive(Debug)]
pub(crate) struct Acquisition<D> {
    pub(crate) owner: Owner,
    /// Keeps the owner live.
    live: Option<Live>,
    exchanges: Exchanges<D>,
    /// Why a grant of the last reply does not count: too few replicas have it.
    pub(crate) unacknowledged: Option<Error>,
}

impl<D> Acquisition<D> {
    pub(crate) fn new(site: &Site) -> Self {
        let (owner, live) = site.core.next_owner_to(site.mode);
        let live = Some(Live::Owner(live));
        Self { owner, live, exchanges: Exchanges::new(), unacknowledged: None }
    }

    /// A copy of a request may arrive later.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.exchanges.is_in_doubt()
    }

    /// What is left of it, which this command takes out of queue and lock.
    pub(crate) fn left(&self, command: Command) -> Leftover {
        Leftover { undo: self.exchanges.undo(), longest: self.exchanges.longest(), command }
    }

    /// The caller is about to send a request of this owner, for this lease.
    pub(crate) fn asks(&mut self, asked: Asked, lease: Duration) {
        self.exchanges.asks(asked, lease);
    }

    /// Records the outcome of a request. `is_there`: whether the reply says that the server has the
    /// owner in its queue or as the holder now.
    pub(crate) fn heard<T>(
        &mut self,
        replied: Result<Replied<T>, Trouble>,
        is_there: impl FnOnce(&T) -> bool,
    ) -> Result<T, Trouble> {
        let (in_doubt, is_there) = match &replied {
            Ok(Replied { reply, in_doubt, .. }) => (*in_doubt, is_there(reply)),
            Err(trouble) => (matches!(trouble, Trouble::Unknown(_)), false),
        };
        self.exchanges.heard(in_doubt, is_there);
        replied.map(|Replied { reply, unacknowledged, .. }| {
            self.unacknowledged = unacknowledged;
            reply
        })
    }

    /// The server answered, at this time, that the owner is not the holder.
    pub(crate) fn refused(&mut self, now: u64) {
        self.exchanges.refused(now);
    }

    /// The last reply granted the lock, which may `already` have been this owner's. Returns the
    /// details that a message named for that earlier grant.
    pub(crate) fn told(&mut self, site: &Site, already: bool) -> Option<D> {
        let told = self.exchanges.confirmed(already);
        if already && told.is_none() {
            // The message of that grant is on its way, or was lost.
            site.core.pubsub.suspect(&site.name);
        }
        told
    }

    /// A hold by the reply to the last request. It has the whole lease, since its process is alive.
    /// It may `already` have been the owner's.
    pub(crate) fn granted_by_reply(&self, site: &Site, terms: Terms, already: bool) -> Hold {
        let asked = self.exchanges.asked().unwrap_or_else(|| Asked::now(site));
        Hold::by_reply(self.owner, terms, already, asked, self.is_in_doubt())
    }

    /// Whether the reply that granted the lock on these terms was read before the deadline of the
    /// hold. Otherwise only the server knows whether it is still ours.
    pub(crate) fn in_time(
        &mut self,
        site: &Site,
        terms: Terms,
        waits: bool,
    ) -> Result<bool, Error> {
        match self.exchanges.in_time(clock::now(), terms.lease(), waits) {
            InTime::Yes => Ok(true),
            InTime::Ask => Ok(false),
            InTime::Fail => Err(Error::late_grant(&site.name)),
        }
    }

    /// A hold by message, with the message's details. `None`: the hold may not be ours any more, or
    /// replicas must have it; the caller asks the server then.
    pub(crate) fn granted_by_message(
        &mut self,
        site: &Site,
        terms: Terms,
        granted: Granted<D>,
    ) -> Option<(Hold, D)> {
        let lease = granted.lease;
        let reader = Reader {
            lease: terms.lease(),
            incarnation: site.route.incarnation(),
            needs_reply: site.core.config.replica_acks.is_some() || terms.stays(),
        };
        let (asked, details) = self.exchanges.granted_by_message(clock::now(), granted, reader)?;
        Some((Hold::handed(self.owner, terms, lease, asked, self.is_in_doubt()), details))
    }

    /// It has become this hold.
    pub(crate) fn becomes(&mut self, hold: Hold) -> Arc<Hold> {
        hold.of_live(&mut self.live)
    }
}
