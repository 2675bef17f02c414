//! The clients of a server in memory, whose leases end when a test advances the time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Mutex;

/// Makes all leases of one client older. When the function returns, the holds whose leases have
/// ended are lost. Returns `false` if the client has ended.
type Age = Box<dyn Fn(Duration) -> bool + Send>;

/// Clients whose leases age together.
#[derive(Clone, Default)]
pub(crate) struct AgeTogether(Arc<Mutex<Vec<Age>>>);

impl AgeTogether {
    pub(crate) fn add(&self, one: Age) {
        self.0.lock().push(one);
    }

    pub(crate) fn age(&self, by: Duration) {
        self.0.lock().retain(|age| age(by));
    }
}

impl fmt::Debug for AgeTogether {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgeTogether({})", self.0.lock().len())
    }
}
