//! The outages that the clients of one process know together. The first client that notices an
//! outage reports it, and the last one that finds it over reports its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// An outage that a client has noticed. While it lives, the client has not found the outage over.
pub(super) struct Outage {
    key: Option<String>,
    began: Instant,
}

struct Known {
    /// The number of clients that have noticed it and not found it over.
    clients: usize,
    began: Instant,
    ended: Option<Instant>,
}

static OUTAGES: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

/// The time for which an outage that has ended is known: another client may notice it late.
const KEPT: Duration = Duration::from_secs(60);

/// A time for which no thread ever keeps the mutex. If it is locked for longer, it was locked at a
/// fork.
const KEPT_BY_THREAD: Duration = Duration::from_secs(1);

impl Outage {
    /// Notes that a client finds `what` out of order, by a request that began at `begun`. Also
    /// returns whether it is the first client, which reports it. `None`: the outage has ended for
    /// all since then.
    pub(super) fn notice(what: &str, begun: Instant) -> Option<(Self, bool)> {
        let now = Instant::now();
        let mut known = OUTAGES.lock();
        known.retain(|_, it| it.ended.is_none_or(|ended| ended.elapsed() < KEPT));
        let new = || Known { clients: 0, began: now, ended: None };
        let it = known.entry(what.to_owned()).or_insert_with(new);
        if it.ended.is_some_and(|ended| begun < ended) {
            return None;
        }
        if it.ended.is_some() {
            *it = new();
        }
        it.clients += 1;
        let (is_first, began) = (it.clients == 1, it.began);
        drop(known);
        Some((Self { key: Some(what.to_owned()), began }, is_first))
    }

    /// Notes that the client finds the outage over. Returns how long the outage was, if it is the
    /// last client.
    pub(super) fn end(mut self) -> Option<Duration> {
        self.leave().then(|| self.began.elapsed())
    }

    fn leave(&mut self) -> bool {
        let Some(key) = self.key.take() else { return true };
        // A forked child may drop an outage of its parent, whose thread had the mutex at the fork.
        let Some(mut known) = OUTAGES.try_lock_for(KEPT_BY_THREAD) else { return true };
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
