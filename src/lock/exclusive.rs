//! The re-entrant lock and the fenced lock, as the driver that waits sees them: one thread holds,
//! and a process hands it to the next. (A fair lock's hooks are in `lock/fair.rs`, those of a lock
//! to read or to write in `lock/read_write.rs`.)
//!
//! `site/gate.rs` orders the threads of this process, `hold/queue_entry.rs` is the process's
//! entry in the queue of processes, and `waiting/mod.rs` has the loop that calls these hooks.

use std::sync::Arc;

use redlatch_client::sync::Thread;

use super::Handle;
use crate::error::{Error, LostReason};
use crate::hold::{Leaseholder, QueueEntry, Tenancy};
use crate::observer::Kind;
use crate::site::{GateOutcome, Need, Site};
use crate::waiting::{self, Claim, Enter, EnterOf, Lead, Leadership, Synchronizer, Try, Wait};

/// See the module.
struct Exclusive<'a>(&'a Handle);

/// Takes the lock of this handle. `None`: the wait is over first.
pub(crate) fn acquire(
    handle: &Handle,
    thread: &Arc<Thread>,
    wait: Wait<'_>,
) -> Result<Option<Arc<Tenancy>>, Error> {
    // A name or a lease that is not usable, a client that was shut down, a forked process, a
    // cancelled token, or a second level of a non-reentrant handle is an error before the client
    // sends a request.
    handle.check(thread, &wait)?;
    // The driver. It calls the hooks below, and parks the thread between them.
    waiting::acquire(&Exclusive(handle), &Claim { thread, need: handle.need(), wait })
}

impl Synchronizer for Exclusive<'_> {
    type Site = Arc<Site>;

    fn site(&self) -> &Arc<Site> {
        &self.0.site
    }

    fn what(&self, _: &Need) -> (Kind, u32) {
        (if self.0.site.is_fenced { Kind::FencedLock } else { Kind::ReentrantLock }, 1)
    }

    /// Does the thread hold the lock already, or another thread of this process? Otherwise the
    /// thread asks Redis, as the only one of this process.
    fn enter(&self, claim: &Claim<'_, Need>) -> Result<EnterOf<Self>, Error> {
        loop {
            let gate = &self.0.site.gate;
            return Ok(match gate.enter(claim.thread, claim.need, claim.wait.blocks()) {
                GateOutcome::Leads => Enter::Leads(None),
                GateOutcome::Queued(waiter) => Enter::Queued(waiter),
                GateOutcome::Occupied => Enter::NotNow,
                // The thread holds the lock, and has one level more by now. That costs a command
                // only for a fixed lease that is longer than the rest of the present one. Or the
                // lease is over: `again` declares the hold lost, and the thread enters anew.
                entered => match self.0.again(entered)? {
                    Some(tenancy) => Enter::Again(tenancy),
                    None => continue,
                },
            });
        }
    }

    /// The wheel opens the gate when the hold in front ends. This is for a wheel that is late.
    fn look(&self) {
        let site = &self.0.site;
        if let Some(hold) = site.gate.expired() {
            site.lose_hold(&hold, LostReason::LeaseExpired);
        }
    }

    /// The receiver looks once more: it may have slept through the rest of the lease between the
    /// pass and here.
    fn receive(&self, tenancy: Arc<Tenancy>) -> Result<Option<Arc<Tenancy>>, Error> {
        if tenancy.is_held() {
            // An error if the client was shut down meanwhile: then this releases the hold again.
            return self.0.admitted(tenancy).map(Some);
        }
        self.0.site.lose_hold(&tenancy.hold(), LostReason::LeaseExpired);
        Ok(None)
    }

    fn request_state(&self, _: &Claim<'_, Need>) -> Option<QueueEntry> {
        None
    }

    fn collect(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, Need>,
    ) -> Option<Arc<Tenancy>> {
        lead.request_state.as_mut()?.collect(&mut lead.listening, &self.0.site, claim)
    }

    fn has_news(&self, entry: &Option<QueueEntry>) -> bool {
        entry.as_ref().is_some_and(QueueEntry::has_news)
    }

    fn ask(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, Need>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let entry = lead.request_state.get_or_insert_with(|| QueueEntry::new(&self.0.site));
        entry.ask(&mut lead.listening, &self.0.site, claim, None)
    }

    /// `None`: between the grant and here the lease has ended, or the server has answered a forced
    /// unlock of this process, before or after the grant; or a fair lock's hold has the seat, and
    /// the server does not know this one.
    fn install(
        &self,
        leadership: &mut Leadership<'_, Arc<Site>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, Need>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        // `Gate::admit` seats it, and the wheel gets an alarm for its renewal (`hold/watch.rs`).
        if !self.0.site.admit(&tenancy, claim.need.terms)? {
            return Ok(None);
        }
        // A thread that comes now finds the seat taken. So no thread needs to lead.
        leadership.resign();
        self.0.admitted(tenancy).map(Some)
    }

    fn told(&self, tenancy: &Arc<Tenancy>) {
        self.0.site.told(tenancy);
    }
}
