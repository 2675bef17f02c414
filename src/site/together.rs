//! The requests of one thread for several locks together.

use std::sync::Arc;

use redlatch_client::sync::clock;

use super::queue_entry::QueueEntry;
use super::site::{Leaving, Site};
use crate::ask::{Asked, EntryReply};
use crate::error::Error;
use crate::hold::{GrantDetails, HoldLevel, Tenancy};
use crate::order::{LeaveOutcome, LockNeed};
use crate::scripts::lock::Acquired;
use crate::scripts::multi::{self, AllAcquired};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::scripts::{Replied, Trouble};
use crate::waiting::{Claim, Try};

/// The maximum number of locks in one request. While the server runs a request, it cannot serve
/// other clients.
const MOST: usize = 100;

/// Whether one request may take these locks. The locks must be of one client and one kind, and on
/// one server or in one slot.
pub(crate) fn go_together(sites: &[&Arc<Site>]) -> bool {
    let [first, others @ ..] = sites else { return false };
    let is_with = |site: &Arc<Site>| {
        Arc::ptr_eq(&site.core, &first.core)
            && site.scripts().rights() == first.scripts().rights()
            && site.route.is_with(&first.route)
    };
    (1..MOST).contains(&others.len()) && others.iter().all(|site| is_with(site))
}

pub(crate) enum AllAsked {
    /// All locks are taken, under these tenancies.
    Granted(Vec<Arc<Tenancy>>),
    /// The request took none of the locks, because an owner of another client has one of them.
    Taken,
    /// The request took none of the locks, or its reply was read too late.
    NotGranted,
}

/// Asks for several locks that [go together](go_together): for all of them, or none. For each lock,
/// the request names the owner of the lock's entry. The request adds no entry to a queue. The
/// caller must lead for each lock. `claim` is the caller's claim to each lock.
pub(crate) fn ask_for_all(
    asked: &mut [(&Arc<Site>, &mut QueueEntry)],
    claim: &Claim<'_, LockNeed>,
) -> Result<AllAsked, Trouble> {
    let (waits, lease) = (claim.wait.blocks(), claim.need.terms.lease());
    for (site, entry) in &mut *asked {
        if entry.machine.begin_request(Asked::now(site), lease, false).is_none() {
            return Ok(AllAsked::NotGranted);
        }
    }
    let locks: Vec<_> = asked.iter().map(|(site, entry)| (site.scripts(), entry.owner)).collect();
    let Replied { reply, in_doubt, .. } = match multi::acquire(&locks, lease) {
        Ok(replied) => replied,
        Err(trouble) => {
            asked.iter_mut().for_each(|(_, entry)| entry.request_failed(Some(&trouble)));
            #[cfg(soak_mutants)]
            if mutants::is("a part that stays taken after a lost reply") {
                for (site, entry) in asked.iter_mut().skip(1) {
                    **entry = QueueEntry::new(site, claim.need.terms);
                }
            }
            return Err(trouble);
        }
    };
    let (now, is_taken) = (clock::now(), matches!(reply, AllAcquired::Taken));
    let mut granted = match reply {
        AllAcquired::Granted(granted) => granted,
        AllAcquired::Taken | AllAcquired::NotGranted => Vec::new(),
    }
    .into_iter();
    let mut tenancies = Vec::with_capacity(asked.len());
    for (site, entry) in &mut *asked {
        let reply = match granted.next() {
            Some(Acquired::Granted { already, places, tokens }) => {
                let details = GrantDetails { places, tokens, ..GrantDetails::default() };
                EntryReply::Granted { already, lease, waits, details }
            }
            _ => EntryReply::NotTaken,
        };
        if let Ok((_, Try::Granted(granted))) = entry.request_answered(site, now, reply, in_doubt) {
            tenancies.push(entry.make_tenancy(site, claim, granted, now));
        }
    }
    Ok(match tenancies.len() == asked.len() {
        true => AllAsked::Granted(tenancies),
        false if is_taken => AllAsked::Taken,
        false => AllAsked::NotGranted,
    })
}

/// Ends one level of each of these tenancies, as [`Site::leave`] does. The locks are all different,
/// and [go together](go_together). The client sends all releases in one packet.
pub(crate) fn leave_all(
    levels: &[(&Arc<Site>, &Arc<Tenancy>, Option<HoldLevel>)],
) -> Vec<Result<(), Error>> {
    let (mut left, mut releases) = (Vec::new(), Vec::new());
    for (site, tenancy, which) in levels {
        let outcome = site.step_out(tenancy, *which, Leaving::Awaited);
        let mut is_sent = false;
        if let Ok(LeaveOutcome::Release(seat, _)) = &outcome {
            let hold = seat.tenancy.hold();
            is_sent = hold.line.is_none() && !hold.is_kept();
            releases.extend(is_sent.then(|| site.release_command(&hold)));
        }
        left.push((outcome, is_sent));
    }
    let released = levels.first().map(|(site, ..)| site.route.call_each(&releases));
    let mut released = released.into_iter().flatten();
    let mut ended = Vec::with_capacity(levels.len());
    for ((outcome, is_sent), (site, ..)) in left.into_iter().zip(levels) {
        ended.push(outcome.map(|outcome| {
            let is_over = !matches!(outcome, LeaveOutcome::StillHeld);
            let done = site.finish_leaving(outcome, |hold| {
                match is_sent.then(|| released.next()).flatten() {
                    Some((outcome, in_doubt)) => site.release_awaited(hold, outcome, in_doubt),
                    None => site.release_last(hold, Leaving::Awaited),
                }
            });
            is_over.then(|| done.map(drop))
        }));
    }
    // No leadership is left when the first callback runs, because a callback may take one of these
    // locks.
    let ended = ended.into_iter().zip(levels);
    ended
        .map(|(done, (site, tenancy, _))| match done? {
            Some(done) => site.tell_end(tenancy, done),
            None => Ok(()),
        })
        .collect()
}
