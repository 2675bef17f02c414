//! The outages known to the clients of one process together: the first one that notices an outage
//! tells of it, and the last one that finds it over tells of its end.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// An outage that a client has noticed. Until it is dropped, the client has not found it over.
pub(super) struct Outage {
    key: Option<String>,
    began: Instant,
}

struct Known {
    /// How many clients have noticed it and not found it over.
    clients: usize,
    began: Instant,
    ended: Option<Instant>,
}

static OUTAGES: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

/// An outage that has ended is known for this long: another client may notice it late.
const KEPT: Duration = Duration::from_secs(60);

impl Outage {
    /// A client notices that `what` is out of order, by a request that began at `begun`. Returns
    /// also whether it is the first one, which tells of it. `None`: the outage is over since, for
    /// all.
    pub(super) fn notice(what: &str, begun: Instant) -> Option<(Self, bool)> {
        let now = Instant::now();
        // A forked child is in none of its parent's outages.
        let key = format!("{} {what}", std::process::id());
        let Some(mut known) = known() else { return Some((Self { key: None, began: now }, true)) };
        known.retain(|_, it| it.ended.is_none_or(|ended| ended.elapsed() < KEPT));
        let new = || Known { clients: 0, began: now, ended: None };
        let it = known.entry(key.clone()).or_insert_with(new);
        if it.ended.is_some_and(|ended| begun < ended) {
            return None;
        }
        if it.ended.is_some() {
            *it = new();
        }
        it.clients += 1;
        let (is_first, began) = (it.clients == 1, it.began);
        drop(known);
        Some((Self { key: Some(key), began }, is_first))
    }

    /// The client finds the outage over. If it is the last one: how long the outage was.
    pub(super) fn end(mut self) -> Option<Duration> {
        self.leave().then(|| self.began.elapsed())
    }

    fn leave(&mut self) -> bool {
        let Some(key) = self.key.take() else { return true };
        let Some(mut known) = known() else { return true };
        let Some(it) = known.get_mut(&key) else { return true };
        it.clients -= 1;
        let is_last = it.clients == 0;
        it.ended = is_last.then(Instant::now);
        is_last
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.leave();
    }
}

/// `None`: the mutex stays locked, since the thread that has it is not in this forked child.
fn known() -> Option<MutexGuard<'static, BTreeMap<String, Known>>> {
    for _ in 0..10_000 {
        match OUTAGES.try_lock() {
            Ok(known) => return Some(known),
            Err(TryLockError::Poisoned(known)) => return Some(PoisonError::into_inner(known)),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}
