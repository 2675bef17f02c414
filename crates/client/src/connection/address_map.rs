//! The addresses that Sentinels and a cluster's servers report. The user's map converts these
//! addresses to the addresses to which the client connects.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::host_port::HostPort;

/// An address that a server reports. Only an [`AddressMap`] converts it to the [`HostPort`] to
/// which the client connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedAddress(HostPort);

impl NamedAddress {
    /// Makes the address. Returns `None` if host and port are no address. A server that does not
    /// know another server's address reports an empty host or `?`.
    pub(super) fn new(host: String, port: u16) -> Option<Self> {
        let is_known = !host.is_empty() && host != "?" && port > 0;
        is_known.then_some(Self(HostPort { host, port }))
    }
}

type Map = dyn Fn(&str, u16) -> Option<(String, u16)> + Send + Sync;

/// The user's code that maps addresses. The default changes no address.
#[derive(Clone, Default)]
pub struct AddressMap(Option<Arc<Map>>);

impl AddressMap {
    /// Makes a map that calls `map` for each address. `map` is called on any thread of the client
    /// or of its caller, with no mutex held. If `map` returns `None`, the address is not changed.
    pub fn new(map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(map)))
    }

    /// Returns the address to which the client connects, or `None` if the user's code panicked.
    /// After a panic, the reported address must not be used, because another server may have it.
    pub(super) fn reach(&self, NamedAddress(named): &NamedAddress) -> Option<HostPort> {
        let Some(map) = &self.0 else { return Some(named.clone()) };
        let mapped = catch_unwind(AssertUnwindSafe(|| map(&named.host, named.port))).ok()?;
        Some(mapped.map_or_else(|| named.clone(), |(host, port)| HostPort { host, port }))
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressMap")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_an_unknown_address_is_none() {
        for (host, port) in [("", 1), ("?", 1), ("one", 0)] {
            assert_eq!(NamedAddress::new(host.to_owned(), port), None, "{host}:{port}");
        }
    }

    #[test]
    fn an_address_is_mapped_once_or_stays_and_a_panic_takes_it_away() {
        let map = AddressMap::new(|host, port| match host {
            "one" => Some(("two".to_owned(), port + 1)),
            "two" => Some(("three".to_owned(), port + 1)),
            "panics" => panic!("as the test wants it"),
            _ => None,
        });
        let reach = |host: &str| {
            let named = NamedAddress::new(host.to_owned(), 7).unwrap();
            map.reach(&named).map(|reached| reached.to_string())
        };
        assert_eq!(reach("one").as_deref(), Some("two:8"));
        assert_eq!(reach("other").as_deref(), Some("other:7"));
        assert_eq!(reach("panics"), None);
        let named = NamedAddress::new("one".to_owned(), 7).unwrap();
        assert_eq!(AddressMap::default().reach(&named).unwrap().to_string(), "one:7");
    }
}
