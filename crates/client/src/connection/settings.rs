//! A client's settings for its connections.

use std::sync::Arc;
use std::time::Duration;

use super::address_map::AddressMap;
use super::credentials::Credentials;
#[cfg(feature = "tls")]
use super::source::Provided;
use super::source::Source;
use super::transport::Dialer;

/// The settings of a client's connections.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the connections, which is set when the client gets its id.
    pub name: Arc<str>,
    /// The longest time that opening a connection may take.
    pub connect_timeout: Duration,
    /// The longest time that a reply may take.
    pub response_timeout: Duration,
    /// Whether messages use sharded channels in a cluster.
    pub sharded_channels: bool,
    /// The user and password that replace those of the URL.
    pub credentials: Option<Credentials>,
    /// The source of credentials, which is set when the client connects.
    pub credential_source: Option<Arc<Source<Credentials>>>,
    /// The user and password for the Sentinels, which replace those in the URL.
    pub sentinel_credentials: Option<Credentials>,
    /// The map from the addresses that servers report to the addresses to which the client
    /// connects.
    pub address_map: AddressMap,
    /// The time for which a thread that waits for its reply polls the connection before it sleeps.
    pub busy_poll: Duration,
    /// Opens the streams of bytes to the servers. If it is `None`, the client uses the network.
    pub dialer: Option<Dialer>,
    #[cfg(feature = "tls")]
    /// The authorities that TLS trusts, and the client's identity.
    pub tls: TlsSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: Arc::default(),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(3),
            sharded_channels: true,
            credentials: None,
            credential_source: None,
            sentinel_credentials: None,
            address_map: AddressMap::default(),
            busy_poll: Duration::ZERO,
            dialer: None,
            #[cfg(feature = "tls")]
            tls: TlsSettings::default(),
        }
    }
}

/// The number of replicas that must have a write before it counts, and the time limit for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaAcks {
    /// The number of replicas.
    pub count: u32,
    /// The longest time that the replicas may take.
    pub within: Duration,
}

/// The authorities that TLS trusts, in PEM, and the client's identity.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
pub struct TlsSettings {
    /// `None` for the authorities that the system trusts.
    pub authorities: Option<Vec<u8>>,
    /// The client's identity.
    pub identity: Option<Identity>,
    /// The source of the identity, which replaces `identity` and is set when the client connects.
    pub identity_source: Option<Arc<Source<Identity>>>,
}

/// The client's certificate, with the intermediate certificates, and its key; both in PEM.
#[cfg(feature = "tls")]
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificates.
    pub certificates: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
}

/// Shows no key and no certificate.
#[cfg(feature = "tls")]
impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

#[cfg(feature = "tls")]
impl Provided for Identity {
    const SETTING: &'static str = "tls_client_certificate_with";
    const THREAD: &'static str = "redlatch-certs";

    fn valid_for(&self) -> Option<Duration> {
        // An identity has no time limit: the server checks the certificate once, when a connection
        // is opened.
        None
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self == other
    }
}

#[cfg(feature = "tls")]
impl TlsSettings {
    fn has_identity(&self) -> bool {
        self.identity.is_some() || self.identity_source.is_some()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.authorities.is_some() || self.has_identity()
    }
}

/// Shows no key and no certificate.
#[cfg(feature = "tls")]
impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings")
            .field("authorities", &self.authorities.is_some())
            .field("identity", &self.has_identity())
            .finish()
    }
}
