//! TLS by rustls, with ring.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use redis::{ErrorKind as Cause, RedisError, RedisResult};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    StreamOwned,
};

use rustls_platform_verifier::Verifier;

use crate::connection::reply::{NO_CERTIFICATE, REFUSED_CERTIFICATE};
use crate::connection::socket::Socket;
use crate::connection::{Identity, Provided, Source, TlsSettings};

pub(super) struct Connector {
    /// The settings. If there is a source of identities, the settings contain no identity.
    config: Arc<ClientConfig>,
    source: Option<Arc<Source<Identity>>>,
}

impl Connector {
    pub(super) fn new(settings: &TlsSettings, insecure: bool) -> Result<Self, String> {
        // The client uses its own crypto provider in place of the process's provider.
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|why| format!("TLS cannot be set up: {why}"))?;
        let verifier: Arc<dyn ServerCertVerifier> =
            if insecure { Arc::new(Anybody(provider)) } else { verifier(settings, provider)? };
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = builder.with_no_client_auth();
        config.enable_sni = !insecure;
        let source = settings.identity_source.clone();
        if let (None, Some(identity)) = (&source, &settings.identity) {
            config = with_identity(config, identity)
                .map_err(|why| format!("tls_client_certificate: {why}"))?;
        }
        Ok(Self { config: Arc::new(config), source })
    }

    /// The settings for a connection that is opened now.
    fn config(&self, deadline: Instant) -> RedisResult<Arc<ClientConfig>> {
        let Some(source) = &self.source else { return Ok(Arc::clone(&self.config)) };
        let config = source.ask(deadline).and_then(|identity| {
            with_identity((*self.config).clone(), &identity)
                .map_err(|why| format!("{}: {why}", Identity::SETTING))
        });
        match config {
            Ok(config) => Ok(Arc::new(config)),
            Err(why) => Err(io::Error::other(format!("no client certificate: {why}")).into()),
        }
    }

    pub(super) fn connect(
        &self,
        host: &str,
        mut socket: Socket,
        deadline: Instant,
    ) -> RedisResult<TlsStream> {
        let name =
            ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|_| {
                (Cause::InvalidClientConfig, "the host's name is none that a certificate can have")
            })?;
        let connection = ClientConnection::new(self.config(deadline)?, name);
        let mut connection = connection.map_err(|error| failed(&error))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(|error| failed(&error))?;
        }
        Ok(StreamOwned::new(connection, socket))
    }
}

/// Returns the same settings with this identity, for servers that ask for one. rustls resumes no
/// session of another identity, so the server gets this identity.
fn with_identity(mut config: ClientConfig, identity: &Identity) -> Result<ClientConfig, String> {
    let chain = certificates_in(&identity.certificates)?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key).map_err(|why| why.to_string())?;
    let key = CertifiedKey::from_der(chain, key, config.crypto_provider())
        .map_err(|why| why.to_string())?;
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(key));
    Ok(config)
}

/// Returns a verifier that trusts the authorities of the settings, or the platform's authorities if
/// the settings have none.
fn verifier(
    settings: &TlsSettings,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let Some(authorities) = &settings.authorities else {
        let verifier = Verifier::new(provider).map_err(|why| {
            format!(
                "the authorities that this machine trusts cannot be read ({why}): install them, or \
                 name those to trust with tls_ca_certificates"
            )
        })?;
        return Ok(Arc::new(verifier));
    };
    let wrong = |why: &dyn std::fmt::Display| format!("tls_ca_certificates: {why}");
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(authorities).map_err(|why| wrong(&why))? {
        roots.add(certificate).map_err(|why| wrong(&why))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    Ok(verifier.map_err(|why| format!("TLS cannot be set up: {why}"))?)
}

fn certificates_in(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|why| why.to_string())?;
    if all.is_empty() {
        return Err("there is no certificate in it, in PEM".to_owned());
    }
    Ok(all)
}

pub(crate) type TlsStream = StreamOwned<ClientConnection, Socket>;

/// Trusts any certificate, for `#insecure`. The verifier still checks that the server has the
/// certificate's key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The error for a failed handshake: the connection broke, or the two sides do not agree.
fn failed(error: &(dyn StdError + 'static)) -> RedisError {
    let mut cause = Some(error);
    while let Some(this) = cause {
        // An error in TLS's messages is also an `io::Error`, but of kind `InvalidData`.
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

/// Returns a better error for an error after the handshake. Only after the handshake does the
/// server report that it wants a certificate, or that it refuses the client's certificate.
pub(crate) fn wants_certificate(error: RedisError) -> RedisError {
    match about_certificate(&error.to_string()) {
        Some(what) => (Cause::Client, "the TLS handshake failed", what).into(),
        None => error,
    }
}

/// The meaning of the server's alert, if the alert concerns the client's certificate.
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
