//! The requests of one thread for several locks together.

use std::sync::Arc;

use redlatch_client::sync::clock;

use super::queue_entry::QueueEntry;
use super::site::{Leaving, Site};
use crate::ask::{Asked, EntryReply};
use crate::error::Error;
use crate::hold::{GrantDetails, HoldLevel, Tenancy};
use crate::order::{LeaveOutcome, LockNeed};
use crate::scripts::multi::{self, AllTaken};
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

/// Asks for several locks that [go together](go_together): for all of them, or none. For each lock,
/// the request names the owner of the lock's entry. The request adds no entry to a queue. The
/// caller must lead for each lock. `claim` is the caller's claim to each lock.
pub(crate) fn ask_for_all(
    asked: &mut [(&Arc<Site>, &mut QueueEntry)],
    claim: &Claim<'_, LockNeed>,
) -> Result<AllTaken<Arc<Tenancy>>, Trouble> {
    let (waits, lease) = (claim.wait.blocks(), claim.need.terms.lease());
    for (site, entry) in &mut *asked {
        let _first = entry.machine.begin_request(Asked::now(site), lease, false);
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
    let now = clock::now();
    let (taken, otherwise) = match reply {
        AllTaken::Taken(tokens) => (tokens, AllTaken::OneByOne),
        AllTaken::Held => (Vec::new(), AllTaken::Held),
        AllTaken::OneByOne => (Vec::new(), AllTaken::OneByOne),
    };
    let mut taken = taken.into_iter();
    let answered = asked.iter_mut().filter_map(|(site, entry)| {
        let reply = taken.next().map_or(EntryReply::NotTaken, |tokens| {
            let details = GrantDetails { tokens, ..GrantDetails::default() };
            EntryReply::Granted { already: false, lease, waits, details }
        });
        // If the reply was read too late, the grant is not valid.
        match entry.request_answered(site, now, reply, in_doubt) {
            Ok((_, Try::Granted(granted))) => Some(entry.make_tenancy(site, claim, granted, now)),
            _ => None,
        }
    });
    let tenancies: Vec<_> = answered.collect();
    let is_taken = tenancies.len() == asked.len();
    Ok(if is_taken { AllTaken::Taken(tenancies) } else { otherwise })
}

/// Ends one level of each of these tenancies, as [`Site::leave`] does. The locks are all different,
/// and [go together](go_together). The client sends all releases in one packet.
pub(crate) fn leave_all(
    levels: &[(&Arc<Site>, &Arc<Tenancy>, Option<HoldLevel>)],
) -> Vec<Result<(), Error>> {
    let (mut releases, mut leaderships) = (Vec::new(), Vec::new());
    let mut left = Vec::with_capacity(levels.len());
    for (site, tenancy, which) in levels {
        let mut outcome = site.step_out(tenancy, *which, Leaving::Awaited);
        let release = match &mut outcome {
            Ok(LeaveOutcome::Release(seat, leadership)) => {
                leaderships.push(LeadershipGuard::new(*site, leadership.take(), None));
                let hold = seat.tenancy.hold();
                (hold.line.is_none() && !hold.is_kept()).then(|| site.release_command(&hold))
            }
            _ => None,
        };
        left.push((outcome, release.is_some()));
        releases.extend(release);
    }
    let released = levels.first().map(|(site, ..)| site.route.call_each(&releases));
    let mut released = released.into_iter().flatten();
    let left = left.into_iter().zip(levels).map(|((outcome, is_sent), (site, ..))| {
        let outcome = outcome?;
        let is_over = !matches!(outcome, LeaveOutcome::StillHeld);
        let done = site.finish_leaving(outcome, |hold| {
            match if is_sent { released.next() } else { None } {
                Some((outcome, in_doubt)) => site.release_awaited(hold, outcome, in_doubt),
                None => site.release_last(hold, Leaving::Awaited),
            }
        });
        Ok(is_over.then(|| done.map(drop)))
    });
    let left: Vec<Result<_, Error>> = left.collect();
    // All leaderships end before the first callback runs, because a callback may take one of these
    // locks.
    drop(leaderships);
    let ended = left.into_iter().zip(levels).map(|(done, (site, tenancy, _))| match done? {
        Some(done) => site.tell_end(tenancy, done),
        None => Ok(()),
    });
    ended.collect()
}
