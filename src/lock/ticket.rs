//! Tickets, by which a holder in one process hands its lock to a holder in another process.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::guard::OfGuard;
use super::{Handle, HeldLock, HeldLocks, LockGuard, OwnedLockGuard};
#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::hold::{HoldState, check_lease};
use crate::lock::fenced::OwnedFencedLockGuard;
use crate::name::Name;
use crate::observe::{Event, Kind, Way};
use crate::owner::Owner;
use crate::runtime::{Count, Session};
use crate::scripts::{self, Mode};
use crate::site::Site;

/// A held lock on its way to another holder.
///
/// [`OwnedLockGuard::into_ticket`](LockGuard::into_ticket) makes a ticket. [`Client::adopt`] or
/// [`Client::adopt_fenced`] makes a guard of the ticket, in any process.
///
/// Between the two guards the lock is never free. A ticket is only a text: send it to the next
/// holder, or store it. Only the first client that adopts the ticket gets the lock, and only while
/// the ticket's lease lasts. No client renews this lease. The drop of a ticket releases nothing. If
/// no client adopts the ticket, the lock is free when the lease ends. To free the lock sooner, call
/// [`Client::release_owner`] with the ticket's [`owner`](Self::owner).
///
/// Everybody who can read the text can adopt the lock. The text contains the lock's name without
/// the [`prefix`](crate::ClientBuilder::prefix), so the adopter's client must have the same prefix.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Client, Error, Ticket};
///
/// fn leave(client: &Client) -> Result<String, Error> {
///     let guard = client.reentrant_lock("orders").lock_owned()?;
///     // … the process is about to be replaced …
///     let ticket = guard.into_ticket(Duration::from_secs(60))?;
///     Ok(ticket.to_string()) // for the successor
/// }
///
/// fn go_on(client: &Client, ticket: &str) -> Result<(), Error> {
///     let guard = client.adopt(&ticket.parse::<Ticket>()?)?;
///     // … the work goes on, and nobody else has had the lock …
///     guard.unlock()
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    owner: scripts::Owner,
    is_fenced: bool,
    name: String,
}

const FENCED: &str = "fenced";
const PLAIN: &str = "plain";

impl Ticket {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the owner that has the lock until the ticket is adopted. [`Client::status`] shows
    /// this owner.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::of(&self.owner)
    }
}

/// Writes the text of the ticket: the owner, the kind of lock, the length of the name, and the
/// name. [`FromStr`] reads this text.
impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_fenced { FENCED } else { PLAIN };
        // The name comes last, because it may contain spaces. The length of the name shows whether
        // the text is whole.
        write!(f, "{} {kind} {} {}", self.owner, self.name.len(), self.name)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:?})", self.to_string())
    }
}

impl FromStr for Ticket {
    type Err = Error;

    /// Reads a ticket's text. One line break may follow the text, as in a file.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the text is not a ticket, or only a part of a ticket.
    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let mut parts = text.splitn(4, ' ');
            let owner = scripts::Owner::parse(parts.next()?, Mode::Lock)?;
            let is_fenced = match parts.next()? {
                FENCED => true,
                PLAIN => false,
                _ => return None,
            };
            let length: usize = parts.next()?.parse().ok()?;
            let (name, after) = parts.next()?.split_at_checked(length)?;
            let is_whole = matches!(after, "" | "\n" | "\r\n") && owner.is_of_ticket();
            is_whole.then(|| Self { owner, is_fenced, name: name.to_owned() })
        };
        parse().ok_or_else(|| {
            let message = "a ticket is the text that `into_ticket` made, and this text is \
                           something else";
            Error::new(ErrorKind::Config, message.to_owned())
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Ticket {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Ticket {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The error of [`into_ticket`](LockGuard::into_ticket). If no request was sent to the server, a
/// `NoTicket` contains the guard.
///
/// `?` turns a `NoTicket` into an [`Error`], and drops the guard.
///
/// ```no_run
/// # use std::time::Duration;
/// # use redlatch::{OwnedLockGuard, Ticket};
/// fn leave(guard: OwnedLockGuard, send: impl FnOnce(Ticket), work: impl FnOnce(&OwnedLockGuard)) {
///     match guard.into_ticket(Duration::from_secs(60)) {
///         Ok(ticket) => send(ticket),
///         Err(refused) => {
///             eprintln!("{}", refused.error());
///             if let Some(guard) = refused.into_guard() {
///                 work(&guard); // go on with the lock
///             }
///         }
///     }
/// }
/// ```
pub struct NoTicket<G = OwnedLockGuard> {
    error: Error,
    guard: Option<Box<G>>,
}

impl<G> NoTicket<G> {
    /// Returns the reason.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the guard if no request was sent to the server. This guard is unchanged. Returns
    /// `None` if a request was sent: this process then no longer holds the lock.
    #[must_use = "dropping the guard releases the lock"]
    pub fn into_guard(self) -> Option<G> {
        self.guard.map(|guard| *guard)
    }
}

/// Drops the guard, which releases the lock.
impl<G> From<NoTicket<G>> for Error {
    fn from(refused: NoTicket<G>) -> Self {
        refused.error
    }
}

impl<G> fmt::Display for NoTicket<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> fmt::Debug for NoTicket<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoTicket")
            .field("error", &self.error)
            .field("has_guard", &self.guard.is_some())
            .finish()
    }
}

impl<G> StdError for NoTicket<G> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl<L: ?Sized> LockGuard<L, OfGuard> {
    /// Hands the lock over to the returned ticket. The lock remains taken, but this process no
    /// longer holds it. [`Client::adopt`] makes a guard of the ticket, in any process.
    ///
    /// The ticket has the lock for the time `keep`, which may be from 1 ms to 10¹³ ms. No client
    /// renews this lease. Choose a `keep` within which the next holder certainly adopts the ticket,
    /// because others can get the lock after that time. The ticket remains valid after this client
    /// has ended. Threads that wait for the lock keep waiting.
    ///
    /// # Errors
    ///
    /// If no request was sent, the error [contains the guard](NoTicket::into_guard), which is
    /// unchanged:
    ///
    /// - [`Config`](ErrorKind::Config) if the lock is not a [`ReentrantLock`](crate::ReentrantLock)
    ///   or a [`FencedLock`](crate::FencedLock), if its [minimum
    ///   time](crate::Lock::with_hold_at_least) is not over, or if `keep` is out of range.
    /// - [`Unavailable`](ErrorKind::Unavailable) if the last renewal failed (try again after the
    ///   next renewal), or if the request that took the lock was sent twice.
    /// - [`LeaseLost`](ErrorKind::LeaseLost) or [`Forked`](ErrorKind::Forked): the guard does not
    ///   hold the lock.
    ///
    /// If a request was sent, the error contains no guard:
    ///
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    ///   unreachable, or does not answer in time: there is no ticket. The client releases the lock
    ///   in the background. If the release fails, the lock is free when its lease ends.
    /// - [`LeaseLost`](ErrorKind::LeaseLost) if the server no longer has the hold.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn into_ticket(self, keep: Duration) -> Result<Ticket, NoTicket<Self>> {
        let ticket = match self.prepare_ticket(keep) {
            Ok(ticket) => ticket,
            Err(error) => return Err(NoTicket { error, guard: Some(Box::new(self)) }),
        };
        let given = self.into_held().one().map_or(Ok(()), |held| {
            let site = Arc::clone(&held.handle.site);
            // The client must last until the ticket has the lock.
            let _session = held.handle.session.clone();
            site.give_to_ticket(&held.into_tenancy(), &ticket.owner, keep)
        });
        given.map(|()| ticket).map_err(|error| NoTicket { error, guard: None })
    }

    fn prepare_ticket(&self, keep: Duration) -> Result<Ticket, Error> {
        let Some(held) = self.one() else {
            let message = "several locks cannot be handed over by a ticket";
            return Err(Error::new(ErrorKind::Config, message.to_owned()));
        };
        let (site, tenancy) = held.site_and_tenancy();
        held.check(Duration::ZERO)?;
        check_lease(&site.name, keep)?;
        if held.state() == HoldState::Unconfirmed {
            let message = "its last renewal failed, so it is not handed over now".to_owned();
            return Err(Error::new(ErrorKind::Unavailable, message).transient(true).of(&site.name));
        }
        let owner = scripts::Owner::of_new_ticket().map_err(|source| {
            let message = "the system gives no random number for the ticket".to_owned();
            Error::new(ErrorKind::Config, message).caused_by(source).of(&site.name)
        })?;
        site.prepare_ticket(tenancy)?;
        Ok(Ticket { owner, is_fenced: site.is_fenced, name: site.name.given().to_owned() })
    }
}

/// Adopts a ticket of a re-entrant lock.
pub(crate) fn adopt(session: &Session, ticket: &Ticket) -> Result<OwnedLockGuard, Error> {
    take_over(session, ticket, false).map(OwnedLockGuard::new)
}

/// Adopts a ticket of a fenced lock.
pub(crate) fn adopt_fenced(
    session: &Session,
    ticket: &Ticket,
) -> Result<OwnedFencedLockGuard, Error> {
    take_over(session, ticket, true).map(OwnedFencedLockGuard::new)
}

fn take_over(session: &Session, ticket: &Ticket, is_fenced: bool) -> Result<HeldLocks, Error> {
    let core = session.core();
    if ticket.is_fenced != is_fenced {
        let (has, call) = match ticket.is_fenced {
            true => ("a fenced", "adopt_fenced"),
            false => ("a re-entrant", "adopt"),
        };
        let message = format!("it is the ticket of {has} lock: call {call}; nothing was changed");
        return Err(Error::new(ErrorKind::Config, message).of(&Name::from(&*ticket.name)));
    }
    let of = if is_fenced { Site::fenced } else { Site::of };
    let handle = Handle::new(session.clone(), of(core, &ticket.name));
    handle.check_usable()?;
    let (site, terms, begun) = (&handle.site, handle.terms(), clock::now());
    let kind = if is_fenced { Kind::FencedLock } else { Kind::ReentrantLock };
    let started = Event::of(&site.name, (kind, 1), Duration::ZERO, ());
    core.tell_observers(|it| it.wait_started(&started));
    let adopted = site.adopt(&ticket.owner, terms);
    let time = clock::since(begun);
    match adopted {
        Ok(tenancy) => {
            let event = Event::of(&site.name, (kind, 1), time, Way::HandedOn);
            core.observe(Count::Acquired, 1, |it| it.acquired(&event));
            site.observed(&tenancy);
            Ok(HeldLocks::One(HeldLock::new(&handle, tenancy)))
        }
        Err(error) => {
            let event = Event::of(&site.name, (kind, 1), time, Some(error.kind()));
            core.observe(Count::GaveUp, 1, |it| it.gave_up(&event));
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:800000000000000 plain 8 an order";

    #[test]
    fn a_ticket_is_its_text() {
        let ticket: Ticket = TEXT.parse().unwrap();
        assert_eq!((ticket.to_string(), ticket.name()), (TEXT.to_owned(), "an order"));
        assert_eq!(ticket.owner().as_str(), &TEXT[..52]);
        assert_eq!(format!("{ticket:?}"), format!("Ticket({TEXT:?})"));
        let fenced: Ticket = TEXT.replace("plain", "fenced").parse().unwrap();
        assert!(fenced != ticket && fenced.name() == ticket.name());
        for line_break in ["\n", "\r\n"] {
            assert_eq!(format!("{TEXT}{line_break}").parse::<Ticket>().unwrap(), ticket);
        }
    }

    #[test]
    fn a_text_that_is_no_ticket_is_an_error() {
        let of_client = TEXT.replace(":8", ":18");
        let of_redisson = TEXT.replace("-8d5c", "-4d5c");
        let other_kind = TEXT.replace("plain", "fair");
        let (cut, longer) = (&TEXT[..TEXT.len() - 1], format!("{TEXT}s"));
        let parts = ["", "orders", &TEXT[..52], &TEXT[..58], cut, &longer];
        for text in parts.into_iter().chain([&*of_client, &of_redisson, &other_kind]) {
            let error = text.parse::<Ticket>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{text}");
        }
    }
}
