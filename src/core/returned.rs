//! Which permits of expirable semaphores this process gave back a moment ago.
//!
//! A server that becomes the master may not have heard of a release that the master before it has
//! answered. The permit stands there until its lease ends, and nobody can take it. Which permits
//! the process still has says nothing of that: whoever was told a permit's id may have it. So what
//! was given back is remembered here, whoever took it, and given back to the new master again. An
//! id stands for one acquisition: given back twice it takes nothing from anybody.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::PermitId;
use crate::sync::{Mutex, clock};

/// One is remembered until another one was given back so much later: no replica that becomes the
/// master is further behind. Not until so much time has passed, since nothing is given back in an
/// outage, however long that takes.
const REMEMBERED: u64 = 10_000_000_000;
/// Past any outage that a client waits for.
const IDLE: u64 = 300_000_000_000;
/// The memory that they take has an end. Those beyond it come back when their leases end.
const MOST: usize = 10_000;

/// The oldest first.
#[derive(Default)]
pub(crate) struct Returned(Mutex<VecDeque<One>>);

struct One {
    at: u64,
    semaphore: Arc<str>,
    id: PermitId,
    lease: Duration,
}

/// What was given back to one semaphore, and the longest lease of it.
#[derive(Debug, Default)]
pub(crate) struct OfOne {
    pub(crate) ids: Vec<PermitId>,
    pub(crate) lease: Duration,
}

impl Returned {
    /// The server has answered the release of these.
    pub(crate) fn are(&self, semaphore: &Arc<str>, ids: &[PermitId], lease: Duration) {
        let at = clock::now();
        let mut all = self.0.lock();
        let ones =
            ids.iter().map(|id| One { at, semaphore: Arc::clone(semaphore), id: *id, lease });
        all.extend(ones);
        forget(&mut all, at, REMEMBERED);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Those of the semaphores that are asked for, by their names.
    pub(super) fn to(&self, is_meant: impl Fn(&str) -> bool) -> HashMap<Arc<str>, OfOne> {
        let all = self.0.lock();
        let mut by_name = HashMap::<Arc<str>, OfOne>::new();
        for one in all.iter().filter(|one| is_meant(&one.semaphore)) {
            let of_one = by_name.entry(Arc::clone(&one.semaphore)).or_default();
            of_one.ids.push(one.id);
            of_one.lease = of_one.lease.max(one.lease);
        }
        by_name
    }

    /// Time passes, and nothing is given back.
    pub(super) fn sweep(&self) {
        let mut all = self.0.lock();
        forget(&mut all, clock::now(), IDLE);
        if all.is_empty() {
            all.shrink_to_fit();
        }
    }
}

fn forget(all: &mut VecDeque<One>, now: u64, age: u64) {
    let old = all.iter().take_while(|one| now.saturating_sub(one.at) > age).count();
    let many = all.len().saturating_sub(MOST);
    all.drain(..old.max(many));
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered_and_of_each_semaphore_its_own() {
        let returned = Returned::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let ids = |from, to| (from..to).map(PermitId::from_number).collect::<Vec<_>>();
        returned.are(&one, &ids(0, 9), Duration::from_secs(1));
        returned.are(&other, &ids(9, 12), Duration::from_secs(3));
        returned.are(&one, &ids(12, 14), Duration::from_secs(2));
        let of_one = &returned.to(|name| name == "one")[&one];
        assert_eq!((of_one.ids.len(), of_one.lease), (11, Duration::from_secs(2)));
        returned.are(&one, &ids(14, 14 + MOST as u128 - 1), Duration::ZERO);
        let all = returned.to(|_| true);
        assert_eq!((all[&one].ids.len(), all.get(&other).map(|it| it.ids.len())), (MOST, None));
    }
}
