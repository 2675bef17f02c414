//! Handing a lock to another client by a ticket.
//!
//! A ticket has its own owner, which belongs to no client. One script replaces the first holder's
//! owner by the ticket's owner. A second script replaces the ticket's owner by the adopter's owner.
//! The lock is never free in between, and no client renews the ticket's lease. The ticket remains
//! valid if the first holder's client ends, or if that client removes its leftovers after a
//! failover, because all requests of that client name its own owners.
//!
//! The adopter's owner has the ticket's number. So if a client got no reply to an adoption and
//! repeats it, both requests name the same owner. A request by another client names another owner,
//! and the server refuses it.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

use super::site::{Leaving, Site};
use crate::ask::Asked;
use crate::error::{Error, ErrorKind};
use crate::hold::{GrantDetails, Hold, KeepsLive, Tenancy, Terms};
use crate::order::LeaveOutcome;
use crate::scripts::lock::{Acquired, Released};
use crate::scripts::{Mode, Owner, Replied, Trouble};

// The reasons why a held lock cannot become a ticket.
const OF_OTHER_KIND: &str = "only a ReentrantLock and a FencedLock can be handed over by a ticket";
const IS_KEPT: &str = "a level of it is left to expire or stays for its least time (with_hold_at_least), so it \
     cannot be handed over";
const IN_DOUBT: &str = "the request that took the lock was sent twice, and its late copy could take the lock again: \
     release the lock and take it again to hand it over";

impl Site {
    /// Prepares the hold of a tenancy for a ticket: from here on no thread passes the hold on.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if this hold cannot be given to a ticket.
    pub(crate) fn prepare_ticket(&self, tenancy: &Arc<Tenancy>) -> Result<(), Error> {
        if self.mode != Mode::Lock {
            return Err(Error::new(ErrorKind::Config, OF_OTHER_KIND.to_owned()).of(&self.name));
        }
        let prepared = self.gate.with_seat(|seat| {
            let seat = seat.filter(|seat| seat.is(tenancy) && tenancy.is_held())?;
            let hold = tenancy.hold();
            Some(if hold.line.is_some() {
                Err((ErrorKind::Config, OF_OTHER_KIND))
            } else if seat.levels.count() > 1 || hold.is_kept() {
                Err((ErrorKind::Config, IS_KEPT))
            } else if hold.in_doubt {
                Err((ErrorKind::Unavailable, IN_DOUBT))
            } else {
                // From here on, the ticket's script may run under this owner. So no thread passes
                // the hold on, as with a user's script.
                hold.script_begins();
                Ok(())
            })
        });
        match prepared {
            None => Err(self.not_held(tenancy)),
            Some(Err((kind, why))) => Err(Error::new(kind, why.to_owned()).of(&self.name)),
            Some(Ok(())) => Ok(()),
        }
    }

    /// Ends a tenancy that [`prepare_ticket`](Self::prepare_ticket) has prepared, and gives its
    /// hold to the ticket. If this fails, the client releases the lock in the background.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub(crate) fn give_to_ticket(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        ticket: &Owner,
        keep: Duration,
    ) -> Result<(), Error> {
        // The tenancy ends before the request is sent. Otherwise a later renewal would not find the
        // owner at the server, and would report the lock as lost.
        let left = self.step_out(tenancy, None, Leaving::Awaited)?;
        if let LeaveOutcome::StillHeld = left {
            return Err(self.not_held_by_thread());
        }
        let done = self.finish_leaving(left, |hold| self.give(hold, ticket, keep));
        self.tell_end(tenancy, done.map(drop))
    }

    fn give(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        ticket: &Owner,
        keep: Duration,
    ) -> Result<(), Error> {
        let given = self.scripts().give_to_ticket(&hold.owner, ticket, keep);
        if let Err(Trouble::Unknown(_) | Trouble::Forgotten(_)) = given {
            // The ticket may have the lock, or may get it later, but the caller has no ticket.
            self.disown(ticket, keep);
        }
        // For this owner, a given ticket is the same as a release that handed the lock on.
        let to_released = |given| if given { Released::HandedOn } else { Released::NotHeld };
        self.release_answered(hold, given.map(to_released))
    }

    /// Adopts a ticket. Returns a tenancy that belongs to no thread.
    ///
    /// # Errors
    ///
    /// `NotHeld` if the ticket no longer has the lock. If the outcome is unknown, the client does
    /// not undo the adoption, because the caller may repeat it.
    ///
    /// # Blocking
    ///
    /// One round trip, or two if an earlier hold of this process still has the seat.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        ticket: &Owner,
        terms: Terms,
    ) -> Result<Arc<Tenancy>, Error> {
        let (name, owner) = (&self.name, self.core.id.adopter(ticket));
        let Some((live, is_repeated)) = self.core.adopt(ticket.number()) else {
            let message = "this client adopts the ticket in another call, or has adopted it before";
            return Err(Error::new(ErrorKind::NotHeld, message.to_owned()).of(name));
        };
        let (asked, lease) = (Asked::now(self), terms.lease());
        let trouble = match self.scripts().adopt(ticket, &owner, lease) {
            Ok(Replied {
                reply: Acquired::Granted { .. }, unacknowledged: Some(error), ..
            }) => Trouble::Unknown(error),
            Ok(Replied {
                reply: Acquired::Granted { already, places, tokens }, in_doubt, ..
            }) if !already || in_doubt || is_repeated => {
                let chain = self.gate.chain(asked.at);
                let details = GrantDetails { places, tokens, chain, by_message: false };
                // A late copy of the request takes no free lock, so the hold is not in doubt.
                let hold = Hold::granted(owner, terms, lease, asked, false);
                let mut live = Some(KeepsLive::Owner(live));
                return self.adopted(&hold.with_details(details, None).of_live(&mut live));
            }
            Ok(Replied { reply, .. }) => {
                // If the adopter's owner still has a hold from an earlier adoption, the client is
                // about to release this hold. Until then the number stays live.
                if reply == Acquired::NotTaken {
                    live.end();
                }
                let message = "the ticket does not have the lock: somebody has adopted it, its \
                               lease has ended, or the lock was taken away; nothing was changed";
                return Err(Error::new(ErrorKind::NotHeld, message.to_owned()).of(name));
            }
            Err(trouble) => trouble,
        };
        let is_unknown = matches!(trouble, Trouble::Unknown(_) | Trouble::Forgotten(_));
        let error = trouble.into_error().of(name);
        if is_unknown || is_repeated {
            live.keep_undecided();
            let state = "this client may have adopted the ticket: adopt it again, or the lock \
                         stays taken until a lease has ended";
            return Err(error.unknown(true).now(state));
        }
        live.end();
        Err(error.now("nothing was changed"))
    }

    /// Begins the tenancy of an adopted hold.
    fn adopted(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<Arc<Tenancy>, Error> {
        let tenancy = Arc::new(Tenancy::new(Arc::clone(hold), Thread::placeholder()));
        let error = match self.admit(&tenancy, &mut None) {
            Ok(true) => return Ok(tenancy),
            Ok(false) => Error::lost(&self.name, &hold.why_gone()),
            Err(error) => error,
        };
        self.disown(&hold.owner, hold.longest_lease());
        Err(error)
    }
}
