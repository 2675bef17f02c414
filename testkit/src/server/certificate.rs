//! A self-signed certificate for a server with TLS.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ServerError;

pub(crate) const CERTIFICATE: &str = "server.crt";
pub(crate) const KEY: &str = "server.key";

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(CERTIFICATE)
}

/// Writes a certificate for 127.0.0.1 and localhost, and its key, into this folder.
pub(crate) fn make(dir: &Path) -> Result<(), ServerError> {
    let output = Command::new("openssl")
        .current_dir(dir)
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-out", CERTIFICATE, "-keyout", KEY])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            ServerError::new(format!("no certificate for TLS: openssl: {error}; install openssl"))
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(ServerError::new(format!("no certificate for TLS: openssl said:\n{said}")))
}
