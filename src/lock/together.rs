//! Several locks that a thread takes together. If nobody holds any of the locks or waits for any of
//! them, one request takes them all.
//!
//! ```text
//! lead at the gate of each lock, without a wait     else: take one lock after the other
//! ask for all locks                                 not granted: leave all gates, then as above
//! admit each lock, in order                         lost meanwhile: give all back, then as above
//! ```
//!
//! The request takes all locks or none. If it got no reply and may have run, each lock's entry
//! gives back the grant that the server may have made, as after a request for that lock alone.
//! Errors are not reported: a lock that is asked for alone reports the same error.

use std::sync::Arc;

use redlatch_client::sync::{Thread, clock};

use super::hooks::Hooks;
use super::{HeldLock, Part};
use crate::error::Error;
use crate::observe::Way;
use crate::scripts::Mode;
use crate::scripts::multi::AllTaken;
use crate::site::{QueueEntry, ask_for_all, go_together};
use crate::waiting::{self, Claim, Enter, Lead, LeadershipGuard, Synchronizer as _, Wait};

/// Tries to take all of these locks with one request. Does not wait for other threads.
pub(super) fn take(
    parts: &[Arc<dyn Part>],
    thread: &Arc<Thread>,
    wait: &Wait<'_>,
) -> AllTaken<HeldLock> {
    let [first, ..] = parts else { return AllTaken::OneByOne };
    let (site, terms) = (&first.handle().site, first.handle().terms());
    let core = &site.core;
    let is_plain = |part: &Arc<dyn Part>| {
        let handle = part.handle();
        !part.is_fair()
            && handle.site.mode != Mode::Read
            && handle.least.is_none()
            && handle.terms() == terms
    };
    let sites: Vec<_> = parts.iter().map(|part| &part.handle().site).collect();
    let is_one_request = terms.is_watched()
        && core.config.replica_acks.is_none()
        && parts.iter().all(is_plain)
        && go_together(&sites);
    // If this process has just released a lock that another process had handed to it, another
    // process most likely has the lock now.
    if !is_one_request || site.gate.has_just_relayed(clock::now()) {
        return AllTaken::OneByOne;
    }
    let _limited = wait.limits(core);
    let begun = if core.is_observed() { clock::now() } else { 0 };
    let claim = Claim { thread, need: first.handle().need(), wait: *wait };
    let mut leaderships = Vec::with_capacity(parts.len());
    for site in &sites {
        let Some(leadership) = site.gate.try_lead() else { return AllTaken::OneByOne };
        let lead = Lead::new(Some(QueueEntry::new(site, claim.need.terms)));
        leaderships.push(LeadershipGuard::new(*site, Some(leadership), Some(lead)));
    }
    let asked = sites.into_iter().zip(&mut leaderships).filter_map(|(site, leadership)| {
        Some((site, leadership.lead.as_mut()?.request_state.as_mut()?))
    });
    let tenancies = match ask_for_all(&mut asked.collect::<Vec<_>>(), &claim) {
        AllTaken::Taken(tenancies) => tenancies,
        AllTaken::Held => return AllTaken::Held,
        AllTaken::OneByOne => return AllTaken::OneByOne,
    };
    let mut held = Vec::with_capacity(parts.len());
    for ((part, mut leadership), tenancy) in parts.iter().zip(leaderships).zip(tenancies) {
        let handle = part.handle();
        let hooks = Hooks { handle };
        // If this process has lost the lock since the grant, the returns below give back all locks.
        // If this thread kept one of them, it would wait for the lost lock, while another thread
        // that has the lost lock may wait for the kept one.
        let Ok(Some(tenancy)) = hooks.admit(&mut leadership, tenancy, &claim) else {
            return AllTaken::OneByOne;
        };
        held.push(HeldLock::new(handle, Arc::clone(&tenancy)));
        // The driver only counts the grant and reports it to the observer, which may fork.
        let (name, granted) = (&handle.site.name, Ok(Enter::Granted(tenancy, Way::Free)));
        let reported = waiting::drive(&hooks, (core, name), &claim, begun, granted);
        if reported.and_then(|_| Error::if_forked(name)).is_err() {
            return AllTaken::OneByOne;
        }
    }
    AllTaken::Taken(held)
}
