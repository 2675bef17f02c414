//! One shared place for each name of a client.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::sync::{Mutex, Process};

/// What a client's handles of one name share, for as long as there is a handle. Weak: a name that
/// nobody uses any more costs nothing.
pub(crate) struct Registry<T> {
    names: Mutex<HashMap<Arc<str>, Weak<T>>>,
    /// In a forked child the mutex may be locked by a thread that is not there.
    process: Process,
}

impl<T> Registry<T> {
    pub(crate) fn new(process: &Process) -> Self {
        Self { names: Mutex::new(HashMap::new()), process: process.clone() }
    }

    /// The one of this name. All handles of a name get the same; in a forked child, where they are
    /// of no use, each its own.
    pub(crate) fn get(&self, name: &str, make: impl FnOnce(Arc<str>) -> T) -> Arc<T> {
        if self.process.is_parent() {
            return Arc::new(make(name.into()));
        }
        let mut all = self.names.lock();
        if let Some(one) = all.get(name).and_then(Weak::upgrade) {
            return one;
        }
        if all.len() == all.capacity() {
            // Before it grows: what is gone and was not forgotten.
            all.retain(|_, one| one.strong_count() > 0);
        }
        let name: Arc<str> = name.into();
        let one = Arc::new(make(Arc::clone(&name)));
        all.insert(name, Arc::downgrade(&one));
        one
    }

    /// One is gone: forgets its name, unless a new one has taken it meanwhile.
    pub(crate) fn forget(&self, name: &str) {
        if self.process.is_parent() {
            return;
        }
        let mut all = self.names.lock();
        if all.get(name).is_some_and(|one| one.strong_count() == 0) {
            all.remove(name);
        }
        // Names come and go; the memory of a busy hour is not kept for ever.
        if all.capacity() > 1_024 && all.len() < all.capacity() / 8 {
            all.shrink_to_fit();
        }
    }

    /// Forgets the name of what only its caller has any more, and is about to drop.
    pub(crate) fn forget_last(&self, name: &str, one: &Arc<T>) {
        if self.process.is_parent() {
            return;
        }
        let mut all = self.names.lock();
        // Nobody gets another one but under the mutex, or from who has one.
        if Arc::strong_count(one) == 1
            && all.get(name).is_some_and(|kept| Weak::as_ptr(kept) == Arc::as_ptr(one))
        {
            all.remove(name);
        }
        if all.capacity() > 1_024 && all.len() < all.capacity() / 8 {
            all.shrink_to_fit();
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.names.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl<T> fmt::Debug for Registry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({})", self.names.lock().len())
    }
}
