//! The registry of a client's names, with one shared entry for each name.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};

use super::{Mutex, MutexGuard, clock, is_forked};

/// The entries that a client's handles of the same name share. An entry exists for a moment after
/// its last handle is dropped, so that a process that makes a handle for each call is as fair to
/// other processes as a process that keeps its handle. The references are weak, so that an unused
/// name costs nothing.
pub struct Registry<T> {
    names: Mutex<HashMap<Arc<str>, Weak<T>>>,
    recent: Mutex<Recent<T>>,
}

/// The recently used entries, oldest first.
struct Recent<T> {
    used: VecDeque<(u64, Arc<T>)>,
    closed: bool,
}

/// The time for which a name is kept after its last use, and the maximum number of such names. The
/// entry has the state of the fairness between processes, which matters for milliseconds.
const KEPT: u64 = 1_000_000_000;
const MOST_KEPT: usize = 1_024;

impl<T> Recent<T> {
    /// Removes and returns the outdated entries. The caller must release all mutexes before it
    /// drops them.
    fn outdated(&mut self, now: u64) -> Vec<Arc<T>> {
        let old = |(used, _): &(u64, Arc<T>)| now.saturating_sub(*used) > KEPT;
        let count = self.used.iter().take_while(|one| old(one)).count();
        let count = count.max(self.used.len().saturating_sub(MOST_KEPT));
        self.used.drain(..count).map(|(_, one)| one).collect()
    }
}

/// An empty registry.
impl<T> Default for Registry<T> {
    fn default() -> Self {
        let recent = Recent { used: VecDeque::new(), closed: false };
        Self { names: Mutex::default(), recent: Mutex::new(recent) }
    }
}

impl<T> Registry<T> {
    /// Locks the map. Returns `None` in a forked child, where the mutex may be locked for ever.
    fn names(&self) -> Option<MutexGuard<'_, HashMap<Arc<str>, Weak<T>>>> {
        (!is_forked()).then(|| self.names.lock())
    }

    /// Returns the entry of this name, which exists for a moment after its last handle is dropped.
    pub fn get(&self, name: &str, make: impl FnOnce(Arc<str>) -> T) -> Arc<T> {
        let one = self.find(name, make);
        if !is_forked() {
            self.keep(&one);
        }
        one
    }

    fn keep(&self, one: &Arc<T>) {
        let now = clock::now();
        let mut recent = self.recent.lock();
        if recent.closed {
            return;
        }
        match recent.used.back_mut() {
            Some((used, last)) if Arc::ptr_eq(last, one) => *used = now,
            _ => recent.used.push_back((now, Arc::clone(one))),
        }
        let outdated = recent.outdated(now);
        drop(recent);
        drop(outdated);
    }

    /// Drops the entries that have not been used for a while.
    pub fn sweep(&self) {
        let outdated = self.recent.lock().outdated(clock::now());
        drop(outdated);
    }

    /// After this call, each entry is dropped together with its last handle.
    pub fn close(&self) {
        let mut recent = self.recent.lock();
        recent.closed = true;
        let used = std::mem::take(&mut recent.used);
        drop(recent);
        drop(used);
    }

    /// Returns the entry of this name, which all handles share. In a forked child, where no handle
    /// works, each handle gets its own entry.
    pub fn find(&self, name: &str, make: impl FnOnce(Arc<str>) -> T) -> Arc<T> {
        let Some(mut all) = self.names() else { return Arc::new(make(name.into())) };
        if let Some(one) = all.get(name).and_then(Weak::upgrade) {
            return one;
        }
        let name: Arc<str> = name.into();
        let one = Arc::new(make(Arc::clone(&name)));
        all.insert(name, Arc::downgrade(&one));
        one
    }

    /// Returns the entry of this name, if the name has one.
    pub fn known(&self, name: &str) -> Option<Arc<T>> {
        self.names()?.get(name).and_then(Weak::upgrade)
    }

    /// Forgets the name of an entry that is being dropped, unless a new entry has the name. The
    /// entry's `Drop` calls this.
    pub fn forget(&self, name: &str) {
        let Some(mut all) = self.names() else { return };
        if all.get(name).is_some_and(|one| one.strong_count() == 0) {
            all.remove(name);
        }
        // Release the memory that many names needed.
        if all.capacity() > 1_024 && all.len() < all.capacity() / 8 {
            all.shrink_to_fit();
        }
    }

    /// All entries.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.names.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl<T> fmt::Debug for Registry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({})", self.names.lock().len())
    }
}
