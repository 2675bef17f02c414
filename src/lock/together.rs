//! Several locks that a thread takes together. If nobody holds any of the locks or waits for any of
//! them, one request takes them all.
//!
//! ```text
//! lead at the gate of each lock, without a wait     else: take one lock after the other
//! ask for all locks                                 not granted: leave the other gates, and wait
//!                                                   for the first lock as its leader
//! admit each lock, in order                         lost meanwhile: give all back, then one after
//!                                                   the other
//! ```
//!
//! The request takes all locks or none. If it got no reply and may have run, each lock's entry
//! gives back the grant that the server may have made, as after a request for that lock alone. The
//! call then waits for the first lock under a new owner, if the error permits it.

use std::sync::Arc;
use std::time::Instant;

use redlatch_client::sync::{Thread, clock, is_forked};

use super::hooks::{self, Hooks};
use super::{HeldLock, Part};
use crate::error::Error;
use crate::observe::Way;
use crate::scripts::multi::AllTaken;
use crate::scripts::{Mode, Trouble};
use crate::site::{QueueEntry, ask_for_all, go_together};
use crate::waiting::{
    self, Claim, Enter, Lead, LeadershipGuard, QueueSite as _, Synchronizer as _, Wait,
};

/// Tries to take all of these locks with one request. Returns the locks that the thread has taken:
/// all of them, only the first, or none. The thread then takes the others one after the other.
/// Returns `None` if the wait ended before the first grant.
pub(super) fn take(
    parts: &[Arc<dyn Part>],
    thread: &Arc<Thread>,
    wait: &Wait<'_>,
) -> Result<Option<Vec<HeldLock>>, Error> {
    const NONE: Result<Option<Vec<HeldLock>>, Error> = Ok(Some(Vec::new()));
    let handle = parts[0].handle();
    let (site, terms) = (&handle.site, handle.terms());
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
        return NONE;
    }
    let _limited = wait.limits(core);
    let begun = if core.is_observed() { clock::now() } else { 0 };
    let claim = Claim { thread, need: handle.need(), wait: *wait };
    let mut leaderships = Vec::with_capacity(parts.len());
    for site in &sites {
        let Some(leadership) = site.gate.try_lead() else { return NONE };
        let lead = Lead::new(Some(QueueEntry::new(site, claim.need.terms)));
        leaderships.push(LeadershipGuard::new(*site, Some(leadership), Some(lead)));
    }
    let arrivals = site.arrivals();
    let asked = sites.iter().copied().zip(&mut leaderships).filter_map(|(site, leadership)| {
        Some((site, leadership.lead.as_mut()?.request_state.as_mut()?))
    });
    let asked = ask_for_all(&mut asked.collect::<Vec<_>>(), &claim);
    match &asked {
        Ok(_) => site.was_answered(Instant::now()),
        Err(_) => site.was_not_answered(),
    }
    // The thread leaves the gates of the other locks before it waits for the first.
    let entered = match asked {
        Ok(AllTaken::Taken(tenancies)) => {
            let granted = parts.iter().zip(leaderships.drain(..)).zip(tenancies);
            let admitted = granted.map(|((part, mut leadership), tenancy)| {
                let handle = part.handle();
                let (hooks, name) = (Hooks { handle }, &handle.site.name);
                // If this process has lost the lock since the grant, the thread gives all locks
                // back. If it kept one of them, it would wait for the lost lock, while another
                // thread that has the lost lock may wait for the kept one.
                let Some(tenancy) = hooks.admit(&mut leadership, tenancy, &claim)? else {
                    return Ok(None);
                };
                let held = HeldLock::new(handle, Arc::clone(&tenancy));
                // The driver only counts the grant and reports it to the observer, which may fork.
                let granted = Ok(Enter::Granted(tenancy, Way::Free));
                waiting::drive(&hooks, (core, name), &claim, begun, granted)?;
                Error::if_forked(name).map(|()| Some(held))
            });
            match admitted.collect::<Result<Option<_>, _>>() {
                Ok(None) => return NONE,
                Err(error) if !is_forked() => Err(error),
                held => return held,
            }
        }
        Ok(AllTaken::Held) if !wait.blocks() => Ok(Enter::NotNow),
        Ok(AllTaken::Held | AllTaken::OneByOne) | Err(Trouble::Refused(_)) => {
            leaderships.truncate(1);
            Ok(leaderships.pop().map_or(Enter::NotNow, LeadershipGuard::into_entered))
        }
        Err(trouble) => Err(site.not_taken(trouble, arrivals)),
    };
    drop(leaderships);
    let hooks = Hooks { handle };
    let acquired = waiting::drive(&hooks, (core, &site.name), &claim, begun, entered);
    let tenancy = hooks::settled(handle, acquired)?;
    Ok(tenancy.map(|tenancy| vec![HeldLock::new(handle, tenancy)]))
}
