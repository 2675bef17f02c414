//! Functions for the tests of redlatch and of this package, which are not public.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time between two look-ups of a name that a test has set with [`lead`]. The time is short,
/// because such a look-up uses no name server.
pub(crate) const LOOK_UP: Duration = Duration::from_millis(200);

/// The addresses that a test has set for names. They replace the system's addresses.
static NAMES: Mutex<BTreeMap<String, Vec<SocketAddr>>> = Mutex::new(BTreeMap::new());

/// Makes the host's name lead to these addresses.
pub fn lead(host: &str, addresses: &[SocketAddr]) {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.insert(host.to_owned(), addresses.to_vec());
}

/// The addresses that a test has set for this name with [`lead`].
pub(crate) fn led(host: &str) -> Option<Vec<SocketAddr>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).get(host).cloned()
}
