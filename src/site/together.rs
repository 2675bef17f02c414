//! The requests of one thread for several locks together.

use std::sync::Arc;

use redlatch_client::sync::clock;

use super::queue_entry::QueueEntry;
use super::site::{Leaving, Site};
use crate::ask::{Asked, EntryReply};
use crate::error::Error;
use crate::hold::{GrantDetails, Hold, HoldLevel, Tenancy};
use crate::order::{LeaveOutcome, LockNeed};
use crate::scripts::lock::Acquired;
use crate::scripts::multi::{self, AllAcquired};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::scripts::{Replied, Trouble};
use crate::waiting::{Claim, LeadershipGuard, Try};

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
/// and [go together](go_together). The client sends all releases in one request.
pub(crate) fn leave_all(
    levels: &[(&Arc<Site>, &Arc<Tenancy>, Option<HoldLevel>)],
) -> Vec<Result<(), Error>> {
    let mut left = Vec::with_capacity(levels.len());
    for (site, tenancy, which) in levels {
        left.push(site.step_out(tenancy, *which, Leaving::Awaited));
    }
    let (mut holds, mut leaderships) = (Vec::new(), Vec::new());
    for (left, (site, ..)) in left.iter_mut().zip(levels) {
        if let Ok(LeaveOutcome::Release(seat, leadership)) = left {
            holds.push((*site, seat.tenancy.hold().into_owned()));
            leaderships.push(LeadershipGuard::new(*site, leadership.take(), None));
        }
    }
    let mut released = release_all(&holds).into_iter();
    let mut ended = Vec::with_capacity(levels.len());
    for (left, (site, ..)) in left.into_iter().zip(levels) {
        ended.push(left.map(|left| {
            let is_over = !matches!(left, LeaveOutcome::StillHeld);
            let done = site.finish_leaving(left, |hold| {
                let done = released.next().flatten();
                done.unwrap_or_else(|| site.release_last(hold, Leaving::Awaited))
            });
            is_over.then(|| done.map(drop))
        }));
    }
    // Give up all leaderships before the first callback runs, because a callback may take one of
    // these locks.
    drop(leaderships);
    let ended = ended.into_iter().zip(levels);
    ended
        .map(|(done, (site, tenancy, _))| match done? {
            Some(done) => site.tell_end(tenancy, done),
            None => Ok(()),
        })
        .collect()
}

/// Releases these holds, if one request can release several of them. The result has `None` for a
/// hold that needs its own request.
fn release_all(holds: &[(&Arc<Site>, Arc<Hold>)]) -> Vec<Option<Result<(), Error>>> {
    let [(first, _), _, ..] = holds else { return Vec::new() };
    let mut locks = Vec::with_capacity(holds.len());
    for (site, hold) in holds {
        if hold.line.is_some() || hold.is_kept() {
            return Vec::new();
        }
        locks.push((site.scripts(), hold.owner, hold.details.chain));
    }
    let (each, in_doubt) = match multi::release(&first.route, &locks) {
        Ok((each, in_doubt)) => {
            (each.into_iter().map(|it| it.map(Ok)).collect::<Vec<_>>(), in_doubt)
        }
        // The server has refused the request, and has released no hold. Separate requests will
        // release those holds that the user may release.
        Err(Trouble::Refused(_)) => return Vec::new(),
        Err(trouble) => (vec![Some(Err(trouble)); holds.len()], false),
    };
    let mut ended = Vec::with_capacity(holds.len());
    for (released, (site, hold)) in each.into_iter().zip(holds) {
        let same_server = || site.route.incarnation() == hold.asked.incarnation;
        let released = released.map(|it| it.map(|it| it.after_a_copy(in_doubt, same_server)));
        ended.push(released.map(|released| site.release_answered(hold, released)));
    }
    ended
}
