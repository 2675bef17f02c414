//! The address of one of several servers, from a URL or from another server.

use std::fmt;

use redis::ConnectionAddr;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostPort {
    pub(super) host: String,
    pub(super) port: u16,
}

impl HostPort {
    pub(super) fn of(address: &ConnectionAddr) -> Self {
        let (host, port) = match address {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host.clone(), *port)
            }
            // A unix socket. A URL of Sentinels or of a cluster cannot have one.
            _ => (String::new(), 0),
        };
        Self { host, port }
    }

    /// Returns the text of an address for errors and the log, in the same format for all sources.
    /// (The redis crate writes `::1:6379`, where the port is hard to see.)
    pub(super) fn text_of(address: &ConnectionAddr) -> String {
        let host_port = Self::of(address);
        if host_port.host.is_empty() { address.to_string() } else { host_port.to_string() }
    }

    /// Returns this host and port, with the TLS settings of `other`.
    pub(super) fn instead_of(&self, other: &ConnectionAddr) -> ConnectionAddr {
        let (host, port) = (self.host.clone(), self.port);
        match other {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn an_address_of_ipv6_stands_in_brackets_and_others_do_not() {
        for (url, text) in [
            ("redis://[::1]:7000", "[::1]:7000"),
            ("redis://127.0.0.1:7000", "127.0.0.1:7000"),
            ("redis://one", "one:6379"),
            ("redis+unix:///a/socket", "/a/socket"),
        ] {
            let info = url.into_connection_info().unwrap();
            assert_eq!(HostPort::text_of(info.addr()), text, "{url}");
        }
    }
}
