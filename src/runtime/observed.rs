//! How a client tells its observer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use log::Level;
use redlatch_client::sync::{Thread, clock};
use redlatch_client::{Limit, Node};

use super::Core;
use crate::observer::{Kind, Observer};
use crate::snapshot::{Counts, ServerState, Snapshot, Waiting};

/// How long the question for the holder may take: the callback of a loss may have to wait for it.
const ASKS_FOR: Duration = Duration::from_millis(200);

/// What a client counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Acquired,
    GaveUp,
    Released,
    Lost,
    Renewed,
    RenewalFailed,
    Reconnected,
}

/// How often each has happened.
#[derive(Debug, Default)]
pub(super) struct Counted([AtomicU64; Count::Reconnected as usize + 1]);

impl Counted {
    #[inline]
    fn add(&self, what: Count) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The waits that have lasted for a while, by their beginnings and threads. Each is a name, its
/// kind, a thread, and the thread's arrival in the process's queue: zero while it leads.
pub(super) type Waits = BTreeMap<(u64, u64), (Arc<str>, Kind, Arc<Thread>, u64)>;

/// The entry of a wait among them.
#[derive(Debug)]
pub(crate) struct Listed {
    core: Weak<Core>,
    key: (u64, u64),
}

impl Listed {
    /// It stands there now in the process's queue.
    pub(crate) fn stands(&self, arrival: u64) {
        let Some(core) = self.core.upgrade() else { return };
        core.waits.lock().entry(self.key).and_modify(|wait| wait.3 = arrival);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.core.upgrade().and_then(|core| core.waits.lock().remove(&self.key));
    }
}

impl Core {
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.config.observer.0.is_some()
    }

    /// Tells the observer, if there is one, on this thread: a caller's, with no mutex held.
    #[inline]
    pub(crate) fn tell(&self, tell: impl FnOnce(&dyn Observer)) {
        let Some(observer) = &self.config.observer.0 else { return };
        if catch_unwind(AssertUnwindSafe(|| tell(&**observer))).is_err() {
            self.watchdog.log(Level::Error, || "an observer panicked".to_owned());
        }
    }

    /// The same, and counts it.
    #[inline]
    pub(crate) fn observe(&self, what: Count, tell: impl FnOnce(&dyn Observer)) {
        self.counts.add(what);
        self.tell(tell);
    }

    /// The same, on the callbacks' thread, after all that it was told there before.
    pub(crate) fn observe_soon(
        &self,
        what: Count,
        tell: impl FnOnce(&dyn Observer) + Send + 'static,
    ) {
        self.counts.add(what);
        if self.is_observed() {
            // Weak: the core has the queue that this waits in.
            let core = Weak::clone(&self.itself);
            self.watchdog.call(move || drop(core.upgrade().inspect(|core| core.tell(tell))));
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut waits: Vec<_> = self.waits.lock().clone().into_iter().collect();
        // As they stand in line. Where each thread leads for itself: as they began.
        waits.sort_by_key(|(began, (.., arrival))| (*arrival, *began));
        let mut before = BTreeMap::<_, usize>::new();
        let waiting = waits.iter().map(|((since, _), (name, kind, thread, _))| {
            let count = before.entry(name).or_default();
            let place = std::mem::replace(count, *count + 1);
            let (thread, waited) = (thread.name().map(str::to_owned), clock::since(*since));
            Waiting { name: name.to_string(), kind: *kind, waited, thread, place }
        });
        let waiting = waiting.collect();
        let count = |what: Count| self.counts.0[what as usize].load(Ordering::Relaxed);
        let counts = Counts {
            acquired: count(Count::Acquired),
            gave_up: count(Count::GaveUp),
            released: count(Count::Released),
            lost: count(Count::Lost),
            renewed: count(Count::Renewed),
            renewal_failed: count(Count::RenewalFailed),
            reconnected: count(Count::Reconnected),
        };
        let server = |node: &Arc<Node>| ServerState {
            address: node.endpoint.address(),
            connections: node.lanes().len(),
            open: node.lanes().iter().filter(|lane| lane.is_open()).count(),
            is_out: node.endpoint.health().is_out(),
        };
        let held = self.members.all().iter().flat_map(|member| member.held()).collect();
        Snapshot { counts, held, waiting, servers: self.servers.all().iter().map(server).collect() }
    }

    /// Lists a wait until the result is dropped.
    pub(crate) fn list_wait(
        &self,
        name: &Arc<str>,
        kind: Kind,
        (thread, arrival): (&Arc<Thread>, u64),
        since: u64,
    ) -> Listed {
        let key = (since, thread.id());
        self.waits.lock().insert(key, (Arc::clone(name), kind, Arc::clone(thread), arrival));
        Listed { core: Weak::clone(&self.itself), key }
    }

    /// A thread has waited for so long: the log says why, once the server has been asked on the
    /// callbacks' thread. `false`: not so soon after the last such line.
    pub(crate) fn tells_slow_wait(
        &self,
        name: &Arc<str>,
        waited: Duration,
        spaced: Duration,
    ) -> bool {
        if !log::log_enabled!(Level::Warn) {
            return true;
        }
        let (now, next) = (clock::now(), self.next_slow.load(Ordering::Relaxed));
        let after = now.saturating_add(clock::nanos(spaced));
        let (relaxed, may) = (Ordering::Relaxed, now >= next);
        if !may || self.next_slow.compare_exchange(next, after, relaxed, relaxed).is_err() {
            return false;
        }
        let (core, name) = (Weak::clone(&self.itself), Arc::clone(name));
        self.watchdog.call(move || {
            if let Some(core) = core.upgrade()
                && let Some(line) = core.slow_line.get()
            {
                // Other callbacks wait behind this.
                let _limited = Limit::set(Limit::new(Instant::now().checked_add(ASKS_FOR), None));
                core.watchdog.log(Level::Warn, || line(&core, &name, waited));
            }
        });
        true
    }
}
