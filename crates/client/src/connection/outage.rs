//! The outages of a process, which its clients share. The first client that notices an outage
//! reports it. The last client that notices the end of the outage reports the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// An outage that a client has noticed. The value is dropped when the client notices the end.
pub(super) struct Outage {
    key: Option<String>,
    began: Instant,
}

struct Known {
    /// The number of clients that have noticed the outage and have not noticed its end.
    clients: usize,
    began: Instant,
    ended: Option<Instant>,
}

static OUTAGES: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

/// The time for which an outage is remembered after its end, because another client may notice it
/// late.
const REMEMBER_FOR: Duration = Duration::from_secs(60);

/// No thread holds the mutex for this long. If it is locked for longer, this process is a forked
/// child, and a thread of the parent held the mutex at the fork.
const MAX_MUTEX_HOLD: Duration = Duration::from_secs(1);

impl Outage {
    /// Notes that a request of a client, which began at `begun`, failed because of `what`. The
    /// `bool` says whether this client is the first one and reports the outage. Returns `None` if
    /// the outage has ended for all clients after `begun`.
    pub(super) fn notice(what: &str, begun: Instant) -> Option<(Self, bool)> {
        let now = Instant::now();
        let mut known = OUTAGES.lock();
        known.retain(|_, it| it.ended.is_none_or(|ended| ended.elapsed() < REMEMBER_FOR));
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

    /// Notes that the outage is over for this client. Returns the length of the outage if it is
    /// over for all clients of the process.
    pub(super) fn end(mut self) -> Option<Duration> {
        self.leave().then(|| self.began.elapsed())
    }

    fn leave(&mut self) -> bool {
        let Some(key) = self.key.take() else { return true };
        // A forked child may drop its parent's outage. If another thread held the mutex at the
        // fork, no thread of the child will ever unlock it.
        let Some(mut known) = OUTAGES.try_lock_for(MAX_MUTEX_HOLD) else { return true };
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
