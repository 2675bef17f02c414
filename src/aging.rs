//! The clients of a server in memory, whose leases end when a test says so.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redlatch_client::sync::Mutex;

/// Has leases that can be made older than they are.
pub(crate) trait Ages: Send + Sync {
    /// All leases are older by this from here on. Those that are over by that are lost when this
    /// returns.
    fn age(&self, by: Duration);
}

/// Some that age together.
#[derive(Clone, Default)]
pub(crate) struct AgeTogether(Arc<Mutex<Vec<Weak<dyn Ages>>>>);

impl AgeTogether {
    pub(crate) fn add(&self, one: Weak<dyn Ages>) {
        let mut all = self.0.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(one);
    }

    pub(crate) fn age(&self, by: Duration) {
        let all = self.0.lock().clone();
        all.iter().filter_map(Weak::upgrade).for_each(|one| one.age(by));
    }
}

impl fmt::Debug for AgeTogether {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgeTogether({})", self.0.lock().len())
    }
}
