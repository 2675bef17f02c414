//! The times for which states of a lock may last.

use std::collections::HashMap;

use super::client::{MS, SECOND, Time};
use super::rules::Broken;

/// The maximum time for which a lock may be free while a waiter could take it. If no waiter gets a
/// message, all waiters send a request within 1.2 s.
const FREE: Time = 1_600 * MS;
/// The maximum time for which an owner that does not know or want its hold may have the lock. This
/// is the lease of a grant by message, whose end the waiters know, with some more time.
const UNCLAIMED: Time = 2_600 * MS;
/// The maximum if a copy of the request came late: the hold ends when the process gives the owner
/// up for the last time.
const UNCLAIMED_COPY: Time = 11 * SECOND;

/// The time for which each state of a lock has lasted.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    free: Option<Time>,
    unclaimed: HashMap<String, Time>,
}

impl Waits {
    pub(crate) fn free(&mut self, now: Time, is_so: bool) -> Result<Time, Broken> {
        let free = since(&mut self.free, now, is_so);
        if free > FREE {
            return Err(format!("a free lock is waited for since {} ms", free / MS));
        }
        Ok(free)
    }

    /// Records the holders that do not know or want their hold. `true` says that a late copy took
    /// the hold.
    pub(crate) fn unclaimed(
        &mut self,
        now: Time,
        holders: &[(&str, bool)],
    ) -> Result<Time, Broken> {
        self.unclaimed.retain(|owner, _| holders.iter().any(|(holder, _)| holder == owner));
        let mut longest = 0;
        for (holder, by_copy) in holders {
            let since = now - *self.unclaimed.entry((*holder).to_owned()).or_insert(now);
            if since > if *by_copy { UNCLAIMED_COPY } else { UNCLAIMED } {
                return Err(format!("{holder} has not used the lock for {} ms", since / MS));
            }
            longest = longest.max(since);
        }
        Ok(longest)
    }
}

fn since(since: &mut Option<Time>, now: Time, is_so: bool) -> Time {
    if !is_so {
        *since = None;
        return 0;
    }
    now - *since.get_or_insert(now)
}
