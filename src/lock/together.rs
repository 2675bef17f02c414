//! Several locks that a thread takes together: one request takes all of them, if nobody has one of
//! them or waits for one.
//!
//! ```text
//! lead at the first one, as for one lock       (its threads wait; this one may wait there, too)
//! lead at each of the others, without a wait   (a thread of this process is there: ask one by one)
//! ask for all: taken                           each is admitted, in their order
//!              none is                         hand the others on, ask for the first one alone
//! ```
//!
//! All or none: the request that takes nothing leaves this thread at the first gate alone, as a
//! request for the first lock would. So while it waits there, other threads of this process take
//! and release the others. If the request may have run and has no answer, each lock's entry gives
//! back what it may have, as after a request for that lock.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Thread, clock};

use super::{Handle, HeldLock, Part, hooks};
use crate::error::Error;
use crate::hold::{QueueEntry, Tenancy};
use crate::scripts::{Mode, Trouble};
use crate::site::{AllAsked, LockNeed, Site, ask_for_all, go_together};
use crate::waiting::{Claim, Lead, LeadershipGuard, QueueSite as _, Try, Wait};

/// See the module. Its locks are acquired one after the other.
pub(crate) struct Together<'a> {
    /// Those that come after the lock that is being acquired.
    others: Cell<&'a [Arc<dyn Part>]>,
    /// The request for all was sent.
    is_asked: Cell<bool>,
    /// Those of the others that it has taken.
    taken: RefCell<VecDeque<Taken<'a>>>,
    /// The grant of the lock that is being acquired.
    granted: Cell<Option<Arc<Tenancy>>>,
}

/// A lock that is taken and has no seat. The lead has the entry, which gives the lock back if the
/// thread does not go on.
struct Taken<'a> {
    leadership: LeadershipGuard<'a, Arc<Site>>,
    tenancy: Arc<Tenancy>,
}

impl<'a> Together<'a> {
    /// Several locks in the order in which they are acquired. `None`: one request cannot take them,
    /// or is not to: their leases differ, or replicas must acknowledge each of them.
    pub(super) fn of(parts: &'a [Arc<dyn Part>]) -> Option<Self> {
        let [first, ..] = parts else { return None };
        let terms = first.handle().terms();
        let is_plain = |part: &Arc<dyn Part>| {
            let handle = part.handle();
            !part.is_fair()
                && handle.site.mode != Mode::Read
                && handle.least.is_none()
                && handle.terms() == terms
        };
        let sites: Vec<_> = parts.iter().map(|part| &part.handle().site).collect();
        let is_one = terms.is_watched()
            && first.handle().site.core.config.replica_acks.is_none()
            && parts.iter().all(is_plain)
            && go_together(&sites);
        is_one.then(|| Self {
            others: Cell::new(parts),
            is_asked: Cell::new(false),
            taken: RefCell::default(),
            granted: Cell::new(None),
        })
    }

    /// Takes the next lock, which is this one. `None`: the wait is over first.
    pub(super) fn acquire(
        &self,
        handle: &Handle,
        thread: &Arc<Thread>,
        wait: Wait<'_>,
    ) -> Result<Option<HeldLock>, Error> {
        self.others.set(self.others.get().split_first().map_or(&[], |(_, others)| others));
        let tenancy = hooks::acquire_of(Some(self), handle, thread, wait)?;
        Ok(tenancy.map(|tenancy| HeldLock::new(handle, tenancy)))
    }

    /// The lead at the lock that is being acquired, if the request for all has taken it.
    pub(super) fn lead(&self) -> Option<Option<Lead<Option<QueueEntry>>>> {
        let Taken { leadership, tenancy } = self.taken.borrow_mut().pop_front()?;
        self.granted.set(Some(tenancy));
        Some(leadership.into_lead())
    }

    /// The grant of that lock.
    pub(super) fn granted(&self) -> Option<Arc<Tenancy>> {
        self.granted.take()
    }

    /// Gives back the locks that the request for all has taken and that come after the one that is
    /// being acquired. That one was lost before it was admitted, so the thread is about to wait for
    /// it. It must have no lock and lead at no gate behind that in the order: another thread may
    /// have it, and wait for one of these.
    pub(super) fn gives_back(&self) {
        drop(self.taken.take());
    }

    /// Asks for the lock that is being acquired, at which the thread leads, and for all that come
    /// after it. `None`: the thread asks for this one alone.
    pub(super) fn ask(
        &self,
        site: &Arc<Site>,
        entry: &mut QueueEntry,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Try<Arc<Tenancy>>>, Error> {
        let others = self.others.get();
        // If another process has had the lock a moment ago, most likely it has it now.
        if others.is_empty() || self.is_asked.get() || site.gate.takes_turns(clock::now()) {
            return Ok(None);
        }
        let mut leaderships = Vec::with_capacity(others.len());
        for part in others {
            let site = &part.handle().site;
            if !site.gate.lead_beside() {
                return Ok(None);
            }
            let lead = Lead::new(Some(QueueEntry::new(site)));
            leaderships.push(LeadershipGuard::new(site, Some(lead)));
        }
        self.is_asked.set(true);
        let arrivals = site.arrivals();
        let mut asked = vec![(site, entry)];
        asked.extend(others.iter().zip(&mut leaderships).filter_map(|(part, leadership)| {
            let entry = leadership.lead.as_mut()?.request_state.as_mut()?;
            Some((&part.handle().site, entry))
        }));
        match ask_for_all(&mut asked, claim) {
            Ok(AllAsked::Granted(tenancies)) => {
                let mut tenancies = tenancies.into_iter();
                let first = tenancies.next().map(Try::Granted);
                let taken = leaderships.into_iter().zip(tenancies);
                let taken = taken.map(|(leadership, tenancy)| Taken { leadership, tenancy });
                self.taken.replace(taken.collect());
                Ok(first)
            }
            Ok(AllAsked::Taken) if !claim.wait.blocks() => Ok(Some(Try::Busy(Duration::ZERO))),
            Ok(AllAsked::Taken | AllAsked::Refused) | Err(Trouble::Refused(_)) => Ok(None),
            Err(trouble) => Err(site.not_taken(trouble, arrivals)),
        }
    }
}
