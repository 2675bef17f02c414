//! Where a server of several is, as URLs and other servers name it.

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
            // A URL of Sentinels or of a cluster names none.
            _ => (String::new(), 0),
        };
        Self { host, port }
    }

    /// Reached as the server at `other` is.
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
