//! One shared place for each name of a client.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

/// What a client's handles of one name share, for as long as there is a handle. Weak: a name that
/// nobody uses any more costs nothing.
pub(crate) struct Registry<T>(Mutex<HashMap<Arc<str>, Weak<T>>>);

impl<T> Registry<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// The one of this name. All handles of a name get the same.
    pub(crate) fn get(&self, name: &str, make: impl FnOnce(Arc<str>) -> T) -> Arc<T> {
        let mut all = self.0.lock();
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
        let mut all = self.0.lock();
        if all.get(name).is_some_and(|one| one.strong_count() == 0) {
            all.remove(name);
        }
        // Names come and go; the memory of a busy hour is not kept for ever.
        if all.capacity() > 1_024 && all.len() < all.capacity() / 8 {
            all.shrink_to_fit();
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl<T> fmt::Debug for Registry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({})", self.0.lock().len())
    }
}
