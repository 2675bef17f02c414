//! Several locks that a thread takes together. If nobody holds any of the locks or waits for any of
//! them, one request takes them all.
//!
//! ```text
//! lead at the first lock's gate, as for one lock     (this thread may have to wait there)
//! lead at each other lock's gate, without a wait     (if another thread leads: ask one by one)
//! ask for all locks: taken                           admit each, in order
//!                    not taken                       leave the other gates, ask for the first lock
//! ```
//!
//! The request takes all locks or none. If it takes none, this thread waits only at the first gate,
//! as after a request for the first lock alone. In the meantime, other threads of this process can
//! take and release the other locks. If the request got no reply and may have run, each lock's
//! entry gives back the grant that the server may have made, as after a request for that lock
//! alone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Thread, clock};

use super::{Handle, HeldLock, Part, hooks};
use crate::error::Error;
use crate::hold::Tenancy;
use crate::scripts::{Mode, Trouble};
use crate::site::{AllAsked, LockNeed, QueueEntry, Site, ask_for_all, go_together};
use crate::waiting::{Claim, Lead, LeadershipGuard, QueueSite as _, Try, Wait};

/// The locks of one call, which acquires them one after the other: see the module.
pub(crate) struct Together<'a> {
    /// The locks that come after the lock that is being acquired.
    others: Cell<&'a [Arc<dyn Part>]>,
    /// Whether the request for all locks was sent.
    is_asked: Cell<bool>,
    /// The other locks that the request for all locks has taken.
    taken: RefCell<VecDeque<Taken<'a>>>,
    /// The grant of the lock that is being acquired.
    granted: Cell<Option<Arc<Tenancy>>>,
}

/// A lock that the request for all locks has taken. Its hold is not in a seat yet. If the thread
/// does not acquire this lock, the drop of `leadership` hands the lock's queue entry to the next
/// leader, or gives the lock back.
struct Taken<'a> {
    leadership: LeadershipGuard<'a, Arc<Site>>,
    tenancy: Arc<Tenancy>,
}

impl<'a> Together<'a> {
    /// Lists the locks in the order in which the call acquires them. Returns `None` if one request
    /// cannot or must not take all of them. For example, their leases may differ, or replicas must
    /// acknowledge each grant.
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

    /// Takes the next lock, which has this handle. Returns `None` if the wait ended before the
    /// grant.
    pub(super) fn acquire(
        &self,
        handle: &Handle,
        thread: &Arc<Thread>,
        wait: Wait<'_>,
    ) -> Result<Option<HeldLock>, Error> {
        self.others.set(self.others.get().split_first().map_or(&[], |(_, others)| others));
        let tenancy = hooks::acquire(handle, Some(self), thread, wait)?;
        Ok(tenancy.map(|tenancy| HeldLock::new(handle, tenancy)))
    }

    /// Returns the leadership and the lead of the lock that is being acquired, if the request for
    /// all locks took this lock.
    pub(super) fn lead(&self) -> Option<LeadershipGuard<'a, Arc<Site>>> {
        let Taken { leadership, tenancy } = self.taken.borrow_mut().pop_front()?;
        self.granted.set(Some(tenancy));
        Some(leadership)
    }

    /// Returns the grant of the lock that is being acquired.
    pub(super) fn granted(&self) -> Option<Arc<Tenancy>> {
        self.granted.take()
    }

    /// Gives back all taken locks that come after the lock L that is being acquired. This thread A
    /// has lost L before L's gate admitted it, and is about to wait for L. Another thread B may now
    /// have L and wait for a later lock. If A kept the later lock or led at its gate, A and B would
    /// wait for each other for ever.
    pub(super) fn give_back_later_locks(&self) {
        drop(self.taken.take());
    }

    /// Sends one request for the lock that is being acquired and all later locks. The thread leads
    /// at the gate of the lock that is being acquired. Returns `None` if the thread must send a
    /// request for this lock alone.
    pub(super) fn ask(
        &self,
        site: &Arc<Site>,
        entry: &mut QueueEntry,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Try<Arc<Tenancy>>>, Error> {
        let others = self.others.get();
        // If this process has just released a lock that another process had handed to it, another
        // process most likely has the lock now.
        if others.is_empty() || self.is_asked.get() || site.gate.has_just_relayed(clock::now()) {
            return Ok(None);
        }
        let mut leaderships = Vec::with_capacity(others.len());
        for part in others {
            let site = &part.handle().site;
            let Some(leadership) = site.gate.try_lead_for_multi() else { return Ok(None) };
            let lead = Lead::new(Some(QueueEntry::new(site, claim.need.terms)));
            leaderships.push(LeadershipGuard::new(site, Some(leadership), Some(lead)));
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
            Ok(AllAsked::Taken | AllAsked::NotGranted) | Err(Trouble::Refused(_)) => Ok(None),
            Err(trouble) => Err(site.not_taken(trouble, arrivals)),
        }
    }
}
