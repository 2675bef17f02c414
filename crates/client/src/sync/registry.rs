//! One shared place for each name of a client.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};

use super::{Mutex, MutexGuard, clock, is_forked};

/// The part that a client's handles of one name share, for as long as there is a handle, and a
/// moment longer: a process's debts to others must not depend on whether it keeps its handle or
/// makes one for each call. Weak: an unused name costs nothing.
pub struct Registry<T> {
    names: Mutex<HashMap<Arc<str>, Weak<T>>>,
    recent: Mutex<Recent<T>>,
}

/// The entries used a moment ago, the oldest first.
struct Recent<T> {
    used: VecDeque<(u64, Arc<T>)>,
    closed: bool,
}

/// How long a name is kept after its last use, and how many are. The chains and turns that need it
/// take milliseconds.
const KEPT: u64 = 1_000_000_000;
const MOST_KEPT: usize = 1_024;

impl<T> Recent<T> {
    /// The entries to drop, once no mutex is held any more.
    fn outdated(&mut self, now: u64) -> Vec<Arc<T>> {
        let old = |(used, _): &(u64, Arc<T>)| now.saturating_sub(*used) > KEPT;
        let count = self.used.iter().take_while(|one| old(one)).count();
        let count = count.max(self.used.len().saturating_sub(MOST_KEPT));
        self.used.drain(..count).map(|(_, one)| one).collect()
    }
}

/// Without entries.
impl<T> Default for Registry<T> {
    fn default() -> Self {
        let recent = Recent { used: VecDeque::new(), closed: false };
        Self { names: Mutex::default(), recent: Mutex::new(recent) }
    }
}

impl<T> Registry<T> {
    /// `None`: in a forked child, where a thread that is not there may have locked the mutex.
    fn names(&self) -> Option<MutexGuard<'_, HashMap<Arc<str>, Weak<T>>>> {
        (!is_forked()).then(|| self.names.lock())
    }

    /// The one of this name. It stays for a moment when its last handle goes.
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

    /// Lets go of entries that were not used for a while.
    pub fn sweep(&self) {
        let outdated = self.recent.lock().outdated(clock::now());
        drop(outdated);
    }

    /// From here on no entry stays after its last handle.
    pub fn close(&self) {
        let mut recent = self.recent.lock();
        recent.closed = true;
        let used = std::mem::take(&mut recent.used);
        drop(recent);
        drop(used);
    }

    /// The one of this name. All handles of a name get the same; in a forked child, where they are
    /// of no use, each its own.
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

    /// The one of this name, if there is one.
    pub fn known(&self, name: &str) -> Option<Arc<T>> {
        self.names()?.get(name).and_then(Weak::upgrade)
    }

    /// An entry is gone, which says so in its `Drop`: forgets its name, unless a new one has taken
    /// it meanwhile.
    pub fn forget(&self, name: &str) {
        let Some(mut all) = self.names() else { return };
        if all.get(name).is_some_and(|one| one.strong_count() == 0) {
            all.remove(name);
        }
        // Names come and go; the memory of a busy hour is not kept for ever.
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
