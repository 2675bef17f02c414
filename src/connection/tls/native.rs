//! The platform's library: OpenSSL on Linux.

use std::io;

use native_tls::{Certificate, HandshakeError, Identity, TlsConnector};
use redis::RedisResult;

use super::failed;
use crate::config::TlsSettings;
use crate::connection::socket::Socket;

pub(crate) type TlsStream = native_tls::TlsStream<Socket>;

pub(super) struct Connector(TlsConnector);

impl Connector {
    pub(super) fn new(settings: &TlsSettings, insecure: bool) -> Result<Self, String> {
        let mut builder = TlsConnector::builder();
        builder
            .danger_accept_invalid_certs(insecure)
            .danger_accept_invalid_hostnames(insecure)
            .use_sni(!insecure);
        if let Some(authorities) = &settings.authorities {
            builder.disable_built_in_roots(true);
            for pem in each(authorities)? {
                let certificate = Certificate::from_pem(pem.as_bytes());
                builder.add_root_certificate(
                    certificate.map_err(|why| format!("tls_ca_certificates: {why}"))?,
                );
            }
        }
        if let Some((certificates, key)) = &settings.identity {
            let identity = Identity::from_pkcs8(certificates, key);
            builder.identity(identity.map_err(|why| {
                format!("tls_client_certificate: {why} (the key must be PKCS #8, in PEM)")
            })?);
        }
        builder.build().map(Self).map_err(|why| format!("TLS cannot be set up: {why}"))
    }

    pub(super) fn connect(&self, host: &str, socket: Socket) -> RedisResult<TlsStream> {
        self.0.connect(host, socket).map_err(|error| match error {
            HandshakeError::Failure(error) => failed(&error),
            // A socket that waits until its deadline never says this.
            HandshakeError::WouldBlock(_) => io::Error::from(io::ErrorKind::WouldBlock).into(),
        })
    }
}

/// The certificates of a text with several: the library reads one.
fn each(pem: &[u8]) -> Result<Vec<String>, String> {
    const END: &str = "-----END CERTIFICATE-----";
    let text = str::from_utf8(pem).map_err(|_| "tls_ca_certificates: it is no PEM".to_owned())?;
    let all: Vec<_> = text.split_inclusive(END).filter(|part| part.contains(END)).collect();
    if all.is_empty() {
        return Err("tls_ca_certificates: there is no certificate in it, in PEM".to_owned());
    }
    Ok(all.into_iter().map(str::to_owned).collect())
}
