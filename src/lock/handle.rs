//! The handle that all kinds of lock share.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

use super::read_write::Pair;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{HoldLevel, Leaseholder, Tenancy, Terms};
use crate::runtime::Session;
use crate::scripts::{self, Mode, Trouble};
use crate::site::{GateOutcome, Leaving, LockNeed, Site};
use crate::waiting::Wait;

/// A setting in which two handles of one lock differ.
#[derive(Clone, Copy, Debug)]
pub enum Variant {
    On(Terms),
    /// A call that would take another level fails.
    NonReentrant,
    /// The lock stays taken for at least this time.
    AtLeast(Duration),
    /// The server notifies the holder when others begin to wait.
    Hearing,
}

/// The handle of any lock, with its client, its name, and the terms on which a thread takes the
/// lock.
#[derive(Clone)]
pub(crate) struct Handle {
    // This field is dropped before `session`. In the other order, the drop of the site could be the
    // last use of the client.
    pub(crate) site: Arc<Site>,
    pub(crate) session: Session,
    terms: Terms,
    /// Whether a thread that holds the lock may take another level.
    is_reentrant: bool,
    /// The lock's minimum time, if it [has one](Variant::AtLeast).
    pub(super) least: Option<Duration>,
    /// For a read-write lock, the pair to which the site belongs.
    pub(super) pair: Option<Arc<Pair>>,
}

impl Handle {
    pub(crate) fn new(session: Session, site: Arc<Site>) -> Self {
        let terms = Terms::watched(site.core.config.watchdog_timeout);
        Self { site, session, terms, is_reentrant: true, least: None, pair: None }
    }

    pub(super) fn of_pair(session: Session, pair: Arc<Pair>, mode: Mode) -> Self {
        let site = Arc::clone(pair.site(mode));
        Self { pair: Some(pair), ..Self::new(session, site) }
    }

    /// Returns the value that a forgotten guard keeps alive.
    pub(super) fn pinned(&self) -> Arc<dyn Any + Send + Sync> {
        match &self.pair {
            Some(pair) => Arc::clone(pair) as _,
            None => Arc::clone(&self.site) as _,
        }
    }

    /// Returns the site for holds of this mode.
    pub(super) fn site_of(&self, mode: Mode) -> &Arc<Site> {
        self.pair.as_ref().map_or(&self.site, |pair| pair.site(mode))
    }

    pub(super) fn sites(&self) -> impl Iterator<Item = &Arc<Site>> {
        let other = self.pair.as_ref().map(|pair| match self.site.mode {
            Mode::Read => &pair.write,
            Mode::Write | Mode::Lock => &pair.read,
        });
        [&self.site].into_iter().chain(other)
    }

    pub(crate) fn varied(&self, variant: Variant) -> Self {
        match variant {
            Variant::On(terms) => {
                if let Some(lease) = terms.watched_lease() {
                    self.site.core.note_watched_lease(lease);
                }
                Self { terms: terms.hearing(self.terms.hears), ..self.clone() }
            }
            Variant::Hearing => Self { terms: self.terms.hearing(true), ..self.clone() },
            Variant::NonReentrant => Self { is_reentrant: false, ..self.clone() },
            Variant::AtLeast(least) => Self { least: Some(least), ..self.clone() },
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    pub(crate) fn need(&self) -> LockNeed {
        LockNeed { mode: self.site.mode, terms: self.terms }
    }

    /// Returns an error if the lock is not usable, if the wait was cancelled before it began, or if
    /// the thread holds the lock and the handle is not re-entrant.
    #[inline]
    pub(crate) fn check(&self, thread: &Thread, wait: &Wait<'_>) -> Result<(), Error> {
        self.check_usable()?;
        wait.check_cancelled(&self.site.name)?;
        self.check_level(thread)?;
        self.terms.check(&self.site.name)
    }

    /// Returns an error if the thread holds the lock and the handle is not re-entrant. Only the
    /// thread itself takes its levels, so the result is still true when the thread enters the gate.
    #[inline]
    pub(crate) fn check_level(&self, thread: &Thread) -> Result<(), Error> {
        if self.is_reentrant {
            return Ok(());
        }
        match self.site.gate.tenant_of(thread) {
            Some((tenancy, _)) if tenancy.is_held() => {
                let message = "the calling thread holds it, and this handle is non_reentrant: release \
                               it first; it is held as before";
                let error = Error::new(ErrorKind::WouldDeadlock, message.to_owned());
                Err(error.of(&self.site.name))
            }
            _ => Ok(()),
        }
    }

    /// Finishes `enter` for a thread that found its own tenancy or an expired hold in the seat.
    /// After `None`, the thread must enter the gate again.
    #[inline]
    pub(crate) fn reentered(&self, entered: GateOutcome) -> Result<Option<Arc<Tenancy>>, Error> {
        match entered {
            GateOutcome::Reentered(tenancy) => Ok(self.ensure_lease(&tenancy)?.then_some(tenancy)),
            GateOutcome::Expired(hold) => {
                // For a read-write lock, the expired hold may be of the other mode.
                self.site_of(hold.owner.mode()).lose_hold(&hold, LostReason::LeaseExpired);
                Ok(None)
            }
            GateOutcome::TooDeep => Err(self.too_deep()),
            GateOutcome::Joined(_)
            | GateOutcome::Under(_)
            | GateOutcome::Reads
            | GateOutcome::Leads(_)
            | GateOutcome::Queued(_)
            | GateOutcome::Occupied => Ok(None),
        }
    }

    pub(crate) fn too_deep(&self) -> Error {
        let message = "the thread has taken a million levels of it; does it forget to unlock?";
        Error::new(ErrorKind::Config, message.to_owned()).of(&self.site.name)
    }

    /// Extends the lease if the level that the thread has just taken needs a longer lease. Returns
    /// `false` if the hold was lost.
    #[inline]
    pub(crate) fn ensure_lease(&self, tenancy: &Arc<Tenancy>) -> Result<bool, Error> {
        let (site, terms) = (&self.site, self.terms());
        match terms.fixed_lease() {
            Some(lease) if tenancy.lease_left() < lease => return self.lengthen(tenancy, lease),
            // The watchdog must renew the lease from now on. (Earlier readers that wanted renewals
            // may have left.)
            None if site.mode == Mode::Read => site.arm_for(tenancy, terms.lease()),
            None if tenancy.hold().terms != terms => site.arm(),
            Some(_) | None => {}
        }
        Ok(true)
    }

    /// Extends the lease at the server. If the request fails, this method ends the level that the
    /// thread has just taken. Returns `false` if the hold was lost.
    fn lengthen(&self, tenancy: &Arc<Tenancy>, lease: Duration) -> Result<bool, Error> {
        let site = &self.site;
        site.lengthen(&tenancy.hold(), lease).map_err(|trouble| {
            // The call of `leave` ends only the new level.
            let which = self.level(tenancy);
            let _ = site.leave(tenancy, Some(which), Leaving::Posted);
            let state = match site.gate.tenant_of(&tenancy.thread) {
                Some(_) => "the thread still holds it as before, with its earlier lease",
                None => "the lock was not taken",
            };
            trouble.into_error().of(&site.name).now(state)
        })
    }

    /// Returns the level that the thread took last.
    #[inline]
    pub(crate) fn level(&self, tenancy: &Arc<Tenancy>) -> HoldLevel {
        let shares = self.site.mode == Mode::Read && !self.terms.is_watched();
        HoldLevel::on(self.terms(), shares.then(|| self.site.gate.last_end(tenancy)).flatten())
    }

    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), Error> {
        if self.site.name.is_empty() {
            return Err(Error::nameless("a lock"));
        }
        self.session.core().check(&self.site.name)
    }

    pub(crate) fn unlock(&self) -> Result<(), Error> {
        match self.tenancy()? {
            Some((tenancy, _)) => self.site.leave(&tenancy, None, Leaving::Awaited),
            None => Err(self.site.not_held_by_thread()),
        }
    }

    /// Takes the lock away from its holder. `send` sends the request for this kind of lock.
    pub(crate) fn force_unlock(
        &self,
        send: impl FnOnce() -> Result<bool, Trouble>,
    ) -> Result<bool, Error> {
        self.check_usable()?;
        let Site { name, .. } = &*self.site;
        let outcome = self.site.force(send);
        outcome.map_err(|trouble| {
            let state = match trouble {
                Trouble::Unknown(_) | Trouble::Forgotten(_) => {
                    "whether it was unlocked is not known: call is_locked, and force_unlock again \
                     if it is locked"
                }
                Trouble::Refused(_) | Trouble::Unsent(_) => "nothing was changed",
            };
            trouble.into_error().of(name).now(state)
        })
    }

    /// Sends the forced unlock for every kind of lock except the fair lock. For a write lock, the
    /// script also ends the writer's read holds.
    pub(super) fn send_force_unlock(&self) -> Result<bool, Trouble> {
        let send = || self.site.scripts().force_unlock();
        match &self.pair {
            Some(pair) if self.site.mode == Mode::Write => pair.read.force(send),
            _ => send(),
        }
    }

    pub(crate) fn is_locked(&self) -> Result<bool, Error> {
        self.check_usable()?;
        let Site { route, name, mode, .. } = &*self.site;
        scripts::lock::is_held_to(route, name, *mode)
            .map_err(|trouble| trouble.into_error().of(name))
    }

    pub(crate) fn hold_count(&self) -> usize {
        let held = self.tenancy().ok().flatten().filter(|(tenancy, _)| tenancy.is_held());
        held.map_or(0, |(_, count)| count)
    }

    pub(crate) fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.check_usable()?;
        let Site { route, name, mode, .. } = &*self.site;
        scripts::lock::remaining_lease(route, name, *mode)
            .map_err(|trouble| trouble.into_error().of(name))
    }

    /// Returns the calling thread's tenancy and its number of levels, if the thread is in the seat.
    pub(crate) fn tenancy(&self) -> Result<Option<(Arc<Tenancy>, usize)>, Error> {
        Error::if_forked(&self.site.name)?;
        Ok(self.site.gate.tenant_of(&Thread::current()))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("name", &self.site.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
