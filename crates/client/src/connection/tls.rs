//! TLS, by rustls (feature `tls`).

#[cfg(feature = "tls")]
use std::sync::Arc;
#[cfg(feature = "tls")]
use std::time::Instant;

use redis::ConnectionAddr;
#[cfg(feature = "tls")]
use redis::{ErrorKind as Cause, RedisResult};

use super::ConnectError;
use super::Settings;
#[cfg(feature = "tls")]
use super::socket::Socket;

#[cfg(feature = "tls")]
mod rustls;

#[cfg(feature = "tls")]
use rustls::Connector;
#[cfg(feature = "tls")]
pub(super) use rustls::{TlsStream, wants_certificate};

/// The TLS settings for connections, made once, because reading the system's certificates takes a
/// fraction of a second.
#[derive(Clone, Default)]
pub(super) struct Tls {
    /// `None` for a URL without TLS.
    #[cfg(feature = "tls")]
    connector: Option<Arc<Connector>>,
}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(super) fn new(_: &ConnectionAddr, _: &Settings) -> Result<Self, ConnectError> {
        Ok(Self {})
    }
}

#[cfg(feature = "tls")]
impl Tls {
    /// The TLS settings for a server at this kind of address.
    pub(super) fn new(address: &ConnectionAddr, config: &Settings) -> Result<Self, ConnectError> {
        let unusable = |message: &str| ConnectError::unusable(message);
        let insecure = match address {
            ConnectionAddr::TcpTls { insecure, .. } => *insecure,
            _ if config.tls.is_set() => {
                return Err(unusable(
                    "certificates are set, but the URL is one without TLS: let it begin with \
                     rediss:// (or rediss-sentinel://, rediss-cluster://)",
                ));
            }
            _ => return Ok(Self::default()),
        };
        if insecure && config.tls.authorities.is_some() {
            return Err(unusable(
                "the URL ends with #insecure, which trusts any certificate, and \
                 tls_ca_certificates says which to trust: remove one of the two",
            ));
        }
        let connector = Connector::new(&config.tls, insecure).map_err(|why| unusable(&why))?;
        Ok(Self { connector: Some(Arc::new(connector)) })
    }

    pub(super) fn connect(
        &self,
        host: &str,
        socket: Socket,
        deadline: Instant,
    ) -> RedisResult<TlsStream> {
        let Some(connector) = &self.connector else {
            return Err((Cause::InvalidClientConfig, "there is no TLS for this URL").into());
        };
        connector.connect(host, socket, deadline)
    }
}
