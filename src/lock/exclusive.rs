//! A lock that one process hands to the next, as the driver that waits sees it: what a re-entrant
//! lock and a fenced one are. (The algorithm of a place in the queue is `hold/place.rs`.)

use std::sync::Arc;

use super::{Handle, Trying};
use crate::acquire::{Baton, Claim, Enter, EnterOf, Lead, Synchronizer, Try, Wait, acquire};
use crate::error::{Error, LostReason};
use crate::hold::{Entered, Place, Site, Tenancy, Terms};
use crate::sync::Thread;

/// See the module.
struct Exclusive<'a>(&'a Handle);

/// Takes the lock of this handle. `None`: the wait is over first.
pub(crate) fn take(
    handle: &Handle,
    thread: &Arc<Thread>,
    wait: Wait<'_>,
) -> Result<Option<Arc<Tenancy>>, Error> {
    handle.check(&wait)?;
    acquire(&Exclusive(handle), &Claim { thread, need: handle.terms(), wait })
}

/// As [`take`] with no wait, in two steps: see [`Part`](super::Part).
pub(crate) fn begin_try<'a>(handle: &'a Handle, thread: &'a Arc<Thread>) -> Trying<'a> {
    let (lock, site) = (Exclusive(handle), &handle.site);
    let claim = Claim { thread, need: handle.terms(), wait: Wait::NONE };
    let lead = match handle.check(&claim.wait).and_then(|()| lock.enter(&claim)) {
        Ok(Enter::Leads(lead)) => lead,
        Ok(Enter::Granted(tenancy)) => return Box::new(|_| Ok(Some(tenancy))),
        Ok(Enter::NotNow | Enter::Queued(_)) => return Box::new(|_| Ok(None)),
        Err(error) => return Box::new(|_| Err(error)),
    };
    let mut baton = Baton::new(site, lead);
    let place = &mut baton.lead_or(|| lock.place(&claim)).place;
    let (reply, arrivals) = place.begin_try(site, &claim);
    Box::new(move |until| {
        let Lead { listening, place } = baton.lead_or(|| lock.place(&claim));
        match place.answered(listening, site, &claim, arrivals, reply(until))? {
            Try::Granted(tenancy) => lock.install(&mut baton, tenancy, &claim),
            Try::Busy(_) => Ok(None),
        }
    })
}

impl Synchronizer for Exclusive<'_> {
    type Site = Arc<Site>;

    fn site(&self) -> &Arc<Site> {
        &self.0.site
    }

    /// Mine already? Somebody's in this process? Else the thread asks Redis, as the only one of this
    /// process that does.
    fn enter(&self, claim: &Claim<'_, Terms>) -> Result<EnterOf<Self>, Error> {
        loop {
            let gate = &self.0.site.gate;
            return Ok(match gate.enter(claim.thread, claim.need, claim.wait.blocks()) {
                Entered::Leads => Enter::Leads(None),
                Entered::Queued(waiter) => Enter::Queued(waiter),
                Entered::Occupied => Enter::NotNow,
                entered => match self.0.again(entered)? {
                    Some(tenancy) => Enter::Granted(tenancy),
                    None => continue,
                },
            });
        }
    }

    /// The wheel opens the gate when the hold in front ends; this is for the case that it could not.
    fn look(&self) {
        let site = &self.0.site;
        if let Some(tenancy) = site.gate.expired() {
            site.lose(&tenancy, LostReason::LeaseExpired);
        }
    }

    /// The receiver looks once more: it may have slept through the rest of the lease between the
    /// pass and here.
    fn receive(&self, tenancy: Arc<Tenancy>) -> Result<Option<Arc<Tenancy>>, Error> {
        if tenancy.is_held() {
            return self.0.admitted(tenancy).map(Some);
        }
        self.0.site.lose(&tenancy, LostReason::LeaseExpired);
        Ok(None)
    }

    fn place(&self, _: &Claim<'_, Terms>) -> Place {
        Place::new(&self.0.site)
    }

    fn take(&self, lead: &mut Lead<Place>, claim: &Claim<'_, Terms>) -> Option<Arc<Tenancy>> {
        lead.place.read(&mut lead.listening, &self.0.site, claim)
    }

    fn has_news(&self, place: &Place) -> bool {
        place.has_news()
    }

    fn ask(
        &self,
        lead: &mut Lead<Place>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        lead.place.ask(&mut lead.listening, &self.0.site, claim)
    }

    /// Ours no more: between the grant and here the lease has ended, or a forced unlock of this
    /// process was answered, before or after the grant.
    fn install(
        &self,
        baton: &mut Baton<'_, Arc<Site>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, Terms>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        if !self.0.site.admit(&tenancy, claim.need)? {
            return Ok(None);
        }
        // The seat has it.
        baton.lay_down();
        self.0.admitted(tenancy).map(Some)
    }
}
