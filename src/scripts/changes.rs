//! The changes of semaphores that a client made a moment ago, so that it can tell another master.
//!
//! A server that becomes the master knows the beginning of the old master's history, in its order.
//! In a request slot one request follows the other: the client opens the next one when the one
//! before it is closed. So if the server remembers the number k of a slot, it knows all changes of
//! that slot up to k and none behind it, and if it remembers nothing, none of the last minutes. The
//! client makes unknown changes again (`lua/semaphore/mend.lua`), in the order of the numbers, and
//! then the server remembers the last of them: made twice, they change nothing. No later request of
//! the slot comes before that, since each names the change before it (`lua/once.lua`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use redis::Value;
use redlatch_client::sync::{Mutex, clock};

use super::once::Requests;

/// A change is kept until another one came so much later: no replica that becomes the master is
/// further behind. Not until so much time has passed, since an outage may last.
const KEPT: u64 = 10_000_000_000;
/// Past any outage that a client waits for.
const IDLE: u64 = 120_000_000_000;
/// Bounds the memory that they take.
const MOST: usize = 10_000;

/// One change that the server has answered.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    at: u64,
    /// The run of the server that was met last before it.
    run: u64,
    pub(super) slot: usize,
    pub(super) number: u64,
    /// Until when the change may be made, on the server's clock.
    pub(super) latest: u64,
    /// Negative: they were taken. Zero: its permits were given back.
    pub(super) permits: i64,
    pub(super) semaphore: Arc<str>,
    /// The mark that it saw. `None`: it has undone another one, which saw what the server says.
    pub(super) mark: Option<Mark>,
}

/// What tells a semaphore from others of its name, before and after it (`lua/semaphore/mark.lua`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark(Arc<str>);

impl Mark {
    /// The mark in a reply to a change.
    pub(crate) fn of(reply: &Value) -> Option<Self> {
        match reply {
            Value::Array(parts) => match parts.as_slice() {
                [_, Value::BulkString(text)] => Some(Self(str::from_utf8(text).ok()?.into())),
                _ => None,
            },
            _ => None,
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The last changes of one name, the oldest first: of a slot in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Log {
    changes: VecDeque<Change>,
    /// The number of each slot's last change, and its run. Zero: the server need not know it.
    last: Vec<(u64, u64)>,
}

impl Log {
    pub(super) fn last_of(&self, slot: usize) -> u64 {
        self.last.get(slot).map_or(0, |(number, _)| *number)
    }

    /// Whether this run of the server has made the slot's last change, as far as is known: if it
    /// does not remember it, the memory of it was evicted or deleted.
    pub(super) fn was_made_by(&self, slot: usize, run: u64) -> bool {
        self.last.get(slot).is_none_or(|(number, made_by)| *number == 0 || *made_by == run)
    }

    /// Adds a change, and forgets the oldest ones. Returns how many went, and how many of them for
    /// their age.
    pub(super) fn add(&mut self, mut change: Change, most: usize) -> (usize, usize) {
        let now = change.at;
        if self.last.len() <= change.slot {
            self.last.resize(change.slot + 1, (0, 0));
        }
        self.last[change.slot] = (change.number, change.run);
        // Mostly it is the same, and kept once.
        if let Some(last) = self.changes.back()
            && last.mark == change.mark
        {
            change.mark.clone_from(&last.mark);
        }
        self.changes.push_back(change);
        let old = self.changes.iter().take_while(|it| now.saturating_sub(it.at) > KEPT).count();
        let gone = old.max(self.changes.len().saturating_sub(most));
        self.forget(gone);
        (gone, old)
    }

    /// From here on no request asks whether the server knows the slot's last change.
    pub(super) fn forget_slot(&mut self, slot: usize) {
        if let Some(last) = self.last.get_mut(slot) {
            *last = (0, 0);
        }
    }

    fn forget(&mut self, count: usize) {
        for gone in self.changes.drain(..count) {
            let last = &mut self.last[gone.slot];
            if last.0 == gone.number {
                *last = (0, 0);
            }
        }
    }

    /// The changes of one slot, or of all, in the order in which they must be made: in each slot
    /// that of their numbers, and each part for one semaphore with one mark.
    pub(super) fn parts(&self, slot: Option<usize>) -> Vec<Vec<Change>> {
        let meant = |change: &&Change| slot.is_none_or(|slot| change.slot == slot);
        let mut changes: Vec<_> = self.changes.iter().filter(meant).cloned().collect();
        changes.sort_by_key(|change| (change.slot, change.number));
        let same = |one: &Change, other: &Change| {
            (one.slot, &one.semaphore, &one.mark) == (other.slot, &other.semaphore, &other.mark)
        };
        changes.chunk_by(same).map(<[Change]>::to_vec).collect()
    }
}

impl Change {
    pub(super) fn new(
        slot: usize,
        [number, latest, run]: [u64; 3],
        permits: i64,
        semaphore: &Arc<str>,
        mark: Option<Mark>,
    ) -> Self {
        let (at, semaphore) = (clock::now(), Arc::clone(semaphore));
        Self { at, run, slot, number, latest, permits, semaphore, mark }
    }
}

/// The names of one client of which there are changes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    names: Mutex<Vec<Arc<Requests>>>,
    count: AtomicUsize,
    too_many: AtomicBool,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.lock().is_empty()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Requests>> {
        self.names.lock().clone()
    }

    /// Whether there were more than are kept since the last call.
    pub(crate) fn were_too_many(&self) -> bool {
        self.too_many.swap(false, Ordering::Relaxed)
    }

    /// Adds a change.
    pub(super) fn add(&self, requests: &Arc<Requests>, log: &mut Log, change: Change) {
        if log.changes.is_empty() {
            self.names.lock().push(Arc::clone(requests));
        }
        let others = self.count.load(Ordering::Relaxed).saturating_sub(log.changes.len());
        let (gone, old) = log.add(change, MOST.saturating_sub(others).max(1));
        if gone > old {
            self.too_many.store(true, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.count.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Forgets names that have not been used for long.
    pub(crate) fn sweep(&self) {
        let now = clock::now();
        let idle = |log: &mut Log| {
            let is_idle = log.changes.back().is_none_or(|it| now.saturating_sub(it.at) > IDLE);
            let count = log.changes.len();
            if is_idle {
                log.forget(count);
                self.count.fetch_sub(count, Ordering::Relaxed);
            }
            is_idle
        };
        // Not under this mutex: a thread that adds a change has the log's, and takes this one then.
        let idle: Vec<_> =
            self.all().into_iter().filter(|requests| requests.with_log(idle)).collect();
        if idle.is_empty() {
            return;
        }
        let mut names = self.names.lock();
        // A name that was used again meanwhile stays.
        let (gone, stay) = std::mem::take(&mut *names)
            .into_iter()
            .partition::<Vec<_>, _>(|it| idle.iter().any(|one| Arc::ptr_eq(one, it)));
        *names = stay;
        drop(names);
        for requests in gone {
            if requests.with_log(|log| !log.changes.is_empty()) {
                let mut names = self.names.lock();
                if !names.iter().any(|it| Arc::ptr_eq(it, &requests)) {
                    names.push(requests);
                }
            }
        }
    }
}
