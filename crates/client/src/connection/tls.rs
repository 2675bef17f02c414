//! TLS, by rustls (feature `tls`).

#[cfg(feature = "tls")]
use std::error::Error as StdError;
#[cfg(feature = "tls")]
use std::io;
#[cfg(feature = "tls")]
use std::sync::Arc;

use redis::ConnectionAddr;
#[cfg(feature = "tls")]
use redis::{ErrorKind as Cause, RedisError, RedisResult};

use super::ConnectError;
use super::Settings;
#[cfg(feature = "tls")]
use super::reply::{NO_CERTIFICATE, REFUSED_CERTIFICATE};
#[cfg(feature = "tls")]
use super::socket::Socket;

#[cfg(feature = "tls")]
mod rustls;

#[cfg(feature = "tls")]
use rustls::Connector;
#[cfg(feature = "tls")]
pub(super) use rustls::TlsStream;

/// The settings for connections with TLS. Made once: reading the system's certificates takes a part
/// of a second.
#[derive(Clone, Default)]
pub(super) struct Tls {
    /// `None`: for a URL without TLS.
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
    /// For a server at such an address, with these settings.
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

    pub(super) fn connect(&self, host: &str, socket: Socket) -> RedisResult<TlsStream> {
        let Some(connector) = &self.connector else {
            return Err((Cause::InvalidClientConfig, "there is no TLS for this URL").into());
        };
        connector.connect(host, socket)
    }
}

/// Why the handshake failed: the connection, or the two sides' messages.
#[cfg(feature = "tls")]
fn failed(error: &(dyn StdError + 'static)) -> RedisError {
    let mut cause = Some(error);
    while let Some(this) = cause {
        // Errors in the messages come as errors of the connection, too.
        if let Some(broke) = this.downcast_ref::<io::Error>()
            && broke.kind() != io::ErrorKind::InvalidData
        {
            let why = match broke.kind() {
                io::ErrorKind::TimedOut => {
                    "the TLS handshake was not answered, as by a port without TLS (redis://)"
                        .to_owned()
                }
                _ => format!("{broke}, in the TLS handshake"),
            };
            return io::Error::new(broke.kind(), why).into();
        }
        cause = this.source();
    }
    let said = error.to_string();
    (Cause::Client, "the TLS handshake failed", about_certificate(&said).unwrap_or(said)).into()
}

/// The meaning of an error behind the handshake: the server wants a certificate, or refuses the
/// shown one; it says so only then.
#[cfg(feature = "tls")]
pub(super) fn wants_certificate(error: RedisError) -> RedisError {
    match about_certificate(&error.to_string()) {
        Some(what) => (Cause::Client, "the TLS handshake failed", what).into(),
        None => error,
    }
}

/// The meaning of the server's alert, if it concerns the client's certificate.
#[cfg(feature = "tls")]
fn about_certificate(said: &str) -> Option<String> {
    const REFUSALS: [&str; 7] = [
        "AccessDenied",
        "BadCertificate",
        "CertificateExpired",
        "CertificateRevoked",
        "CertificateUnknown",
        "UnknownCA",
        "UnsupportedCertificate",
    ];
    let (_, alert) = said.split_once("received fatal alert: ")?;
    if alert.starts_with("CertificateRequired") {
        return Some(NO_CERTIFICATE.to_owned());
    }
    let why = REFUSALS.into_iter().find(|why| alert.starts_with(why))?;
    Some(format!("{REFUSED_CERTIFICATE} ({why})"))
}
