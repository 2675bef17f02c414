//! Taking a quorum: a majority of locks on independent servers.
//!
//! ```text
//! repeat: ask all at the same time, on a thread each, for a short time
//!         more than half granted, and their leases not over: taken
//!         otherwise release all; if too many failed for a majority: an error, or a longer sleep
//!         if the trouble may pass
//!         sleep for a random time
//! ```
//!
//! No thread waits for a part while it holds another part, so no deadlock is possible. If two
//! threads each get too few parts, both release their parts before they sleep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch_client::sync::{Thread, Waker, clock, jitter};

use super::levels::{GuardLevels, Rule};
use super::votes::{deadline, in_parallel};
use super::{MOST_LOST, MultiLock, vote_apart};
use crate::error::{Error, ErrorKind, Passing};
use crate::lock::Part;
use crate::waiting::{Endurance, Sleeper, Wait};

/// The pause after the first failed round. The pause doubles with each round, up to
/// `MAX_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(128);

pub(super) fn acquire(
    lock: &MultiLock,
    thread: &Arc<Thread>,
    wait: &Wait<'_>,
) -> Result<Option<GuardLevels>, Error> {
    let (parts, needed) = (&*lock.parts, lock.needed());
    let (mut pause, mut lost_rounds) = (FIRST_PAUSE, 0);
    let mut endurance = Endurance::new(parts.iter().map(|part| &part.handle().site.core.config));
    loop {
        let mut levels = lock.levels();
        let mut failed: Vec<Error> = Vec::new();
        let asked =
            in_parallel(parts, |part| part.acquire(thread, wait.once(deadline(part.handle()))));
        for (part, asked) in parts.iter().zip(asked) {
            match asked {
                Ok(Some(held)) => levels.held.extend(held.one()),
                Ok(None) => {}
                Err(error) => failed.push(at_server(part, error)),
            }
        }
        if let Some(at) = failed.iter().position(is_final) {
            return Err(failed.swap_remove(at));
        }
        if levels.held.len() >= needed {
            if !levels.remaining().is_zero() {
                // The client of one of these locks may have connected only now, to a server that
                // another of these locks uses. That server would then have two votes.
                vote_apart(levels.held.iter().map(|held| &held.handle))?;
                return Ok(Some(levels));
            }
            // The leases ended before all servers had answered.
            lost_rounds += 1;
        }
        // The drop releases the parts before the sleep, because other threads need them.
        drop(levels);
        if parts.len() - failed.len() < needed {
            let error = no_majority(lock, failed);
            let endured = endurance.failed(&error, limit(parts)).filter(|_| wait.blocks());
            let Some(pause) = endured else { return Err(error) };
            sleep(parts, wait, pause)?;
            if wait.is_over() {
                return Err(error);
            }
            continue;
        }
        endurance.answered(Instant::now());
        if lost_rounds == MOST_LOST {
            let message = "a majority was granted, but its lease was over before all had answered; \
                           nothing is held, take a longer lease";
            let error = Error::new(ErrorKind::ResponseTimeout, message.to_owned()).transient(true);
            return Err(error.of(&parts[0].handle().site.name));
        }
        if wait.is_over() {
            return Ok(None);
        }
        sleep(parts, wait, pause.mul_f64(0.5 + jitter(clock::now())))?;
        pause = (pause * 2).min(MAX_PAUSE);
        if wait.is_over() {
            return Ok(None);
        }
    }
}

/// Whether an error ends the wait, regardless of the other servers' answers.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Forked | ErrorKind::Config)
}

/// Returns how long a wait continues while less than a majority of the servers answers.
fn limit(parts: &[Arc<dyn Part>]) -> Duration {
    let limits = parts.iter().map(|part| part.handle().site.core.config.failover_timeout);
    limits.min().unwrap_or_default()
}

fn at_server(part: &Arc<dyn Part>, error: Error) -> Error {
    let address = part.handle().site.core.address();
    error.now(&format!("it is one of a quorum, on the server at {address}"))
}

fn no_majority(lock: &MultiLock, failed: Vec<Error>) -> Error {
    let (failed_count, listed) = (failed.len(), lock.parts.len());
    let transient = failed.iter().any(Error::is_transient);
    let unknown = failed.iter().any(Error::outcome_unknown);
    let kind = failed.first().map_or(ErrorKind::Unavailable, Error::kind);
    let message = match lock.rule {
        Rule::MajorityOf(all) if all > listed => format!(
            "{failed_count} of the {listed} connected servers of a quorum of {all} failed, so \
             there is no majority; nothing was taken"
        ),
        _ => format!(
            "{failed_count} of the {listed} servers of a quorum failed, so there is no majority; \
             nothing was taken"
        ),
    };
    let mut error = Error::new(kind, message).transient(transient).unknown(unknown);
    // The wait continues if, without the errors that may pass by themselves, a majority of the
    // servers answers.
    let passing: Vec<_> = failed.iter().filter_map(Error::passing).collect();
    if listed - (failed_count - passing.len()) >= lock.needed() {
        let outage = passing.iter().copied().find(|it| *it == Passing::Outage);
        error = error.endured(outage.unwrap_or(Passing::Unacknowledged));
    }
    if let Some(first) = failed.into_iter().next() {
        if let Some(name) = first.name() {
            error = error.of(&name.into());
        }
        error = error.caused_by(first);
    }
    error
}

/// Sleeps until the end of the pause or of the wait.
fn sleep(parts: &[Arc<dyn Part>], wait: &Wait<'_>, pause: Duration) -> Result<(), Error> {
    let site = &parts[0].handle().site;
    Sleeper::new((&site.core, &site.name), Waker::current(), wait).pause(pause)
}
