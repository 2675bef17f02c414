//! The permits of expirable semaphores that this process has just released.
//!
//! A new master may lack a release that the old master has answered. Then the permit stays taken on
//! the new master until its lease ends. So this module remembers each released permit, and the
//! client releases it again on the new master. An id names one acquisition, so a second release
//! frees no other permit. (The client cannot look for permits that it does not use, because another
//! process that knows the id may use the permit.)

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Mutex, clock};

use crate::scripts::PermitId;

/// A permit is remembered until another permit is released this much later. The new master of a
/// failover lags behind the old master by less than this time. The time of an outage does not
/// count, because no permit is released in it.
const REMEMBER_FOR: u64 = 10_000_000_000;
/// The time after which a permit is forgotten if no other permit is released. No client waits
/// this long for the end of an outage.
const MAX_AGE: u64 = 300_000_000_000;
/// The maximum number of permits that are remembered. If a forgotten permit is taken on the new
/// master, the permit is free again when its lease ends.
const MAX_PERMITS: usize = 10_000;

/// The released permits, the oldest first.
#[derive(Default)]
pub(crate) struct ReleasedPermits(Mutex<VecDeque<ReleasedPermit>>);

struct ReleasedPermit {
    at: u64,
    semaphore: Arc<str>,
    id: PermitId,
    lease: Duration,
}

/// One semaphore's released permits, and the longest of their leases.
#[derive(Debug, Default)]
pub(crate) struct SemaphorePermits {
    pub(crate) ids: Vec<PermitId>,
    pub(crate) lease: Duration,
}

impl ReleasedPermits {
    /// Notes that the server has answered the release of these permits.
    pub(crate) fn record(&self, semaphore: &Arc<str>, ids: &[PermitId], lease: Duration) {
        let at = clock::now();
        let mut all = self.0.lock();
        let permits = ids.iter().map(|id| ReleasedPermit {
            at,
            semaphore: Arc::clone(semaphore),
            id: *id,
            lease,
        });
        all.extend(permits);
        forget(&mut all, at, REMEMBER_FOR);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns the permits of the semaphores for which `is_meant` is true, by name.
    pub(super) fn by_semaphore(
        &self,
        is_meant: impl Fn(&str) -> bool,
    ) -> HashMap<Arc<str>, SemaphorePermits> {
        let all = self.0.lock();
        let mut by_name = HashMap::<Arc<str>, SemaphorePermits>::new();
        for one in all.iter().filter(|one| is_meant(&one.semaphore)) {
            let of_semaphore = by_name.entry(Arc::clone(&one.semaphore)).or_default();
            of_semaphore.ids.push(one.id);
            of_semaphore.lease = of_semaphore.lease.max(one.lease);
        }
        by_name
    }

    /// Forgets old permits while no new permits are released.
    pub(super) fn sweep(&self) {
        let mut all = self.0.lock();
        forget(&mut all, clock::now(), MAX_AGE);
        if all.is_empty() {
            all.shrink_to_fit();
        }
    }
}

fn forget(all: &mut VecDeque<ReleasedPermit>, now: u64, age: u64) {
    let old = all.iter().take_while(|one| now.saturating_sub(one.at) > age).count();
    let many = all.len().saturating_sub(MAX_PERMITS);
    all.drain(..old.max(many));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_returned_permits_of_each_semaphore_are_remembered() {
        let returned = ReleasedPermits::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let ids = |from, to| (from..to).map(PermitId::from_number).collect::<Vec<_>>();
        returned.record(&one, &ids(0, 9), Duration::from_secs(1));
        returned.record(&other, &ids(9, 12), Duration::from_secs(3));
        returned.record(&one, &ids(12, 14), Duration::from_secs(2));
        let of_semaphore = &returned.by_semaphore(|name| name == "one")[&one];
        assert_eq!((of_semaphore.ids.len(), of_semaphore.lease), (11, Duration::from_secs(2)));
        returned.record(&one, &ids(14, 14 + MAX_PERMITS as u128 - 1), Duration::ZERO);
        let all = returned.by_semaphore(|_| true);
        assert_eq!(
            (all[&one].ids.len(), all.get(&other).map(|it| it.ids.len())),
            (MAX_PERMITS, None)
        );
    }
}
