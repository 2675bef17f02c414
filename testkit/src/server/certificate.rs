//! Certificates for a server with TLS: an authority, and the certificates that it has signed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ServerError;

pub(crate) const AUTHORITY: &str = "ca.crt";
pub(crate) const CERTIFICATE: &str = "server.crt";
pub(crate) const KEY: &str = "server.key";
const CLIENTS: [&str; 2] = ["client.crt", "client.key"];

const CONFIG: &str = "\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[signed]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
";

pub(crate) fn authority(dir: &Path) -> PathBuf {
    dir.join(AUTHORITY)
}

/// Returns the paths of a client's certificate and its key.
pub(crate) fn client(dir: &Path) -> [PathBuf; 2] {
    CLIENTS.map(|file| dir.join(file))
}

/// Copies another server's certificates into a server's folder.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), ServerError> {
    for file in [AUTHORITY, CERTIFICATE, KEY] {
        fs::copy(from.join(file), to.join(file))
            .map_err(|error| ServerError::new(format!("no certificate for TLS: {error}")))?;
    }
    Ok(())
}

/// Writes certificates and their keys into this folder: an authority, a server at 127.0.0.1 and
/// localhost, and a client.
pub(crate) fn make(dir: &Path) -> Result<(), ServerError> {
    let failed = |why: &str| ServerError::new(format!("no certificate for TLS: {why}"));
    fs::write(dir.join("openssl.cnf"), CONFIG).map_err(|error| failed(&error.to_string()))?;
    let run = |args: &[&str]| {
        let mut command = Command::new("openssl");
        let output = command.current_dir(dir).args(args).stdin(Stdio::null()).output();
        let output = output.map_err(|why| failed(&format!("openssl: {why}; install openssl")))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(failed(&format!("openssl said:\n{said}")))
    };
    let new_key = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let new = |name: &str, key: &str, rest: &[&str]| {
        let subject = format!("/CN={name}");
        let own = ["-config", "openssl.cnf", "-subj", &subject, "-keyout", key];
        run(&[&new_key, &own[..], rest].concat())
    };
    let authority = ["-x509", "-days", "2", "-extensions", "authority", "-out", AUTHORITY];
    new("redlatch tests", "ca.key", &authority)?;
    for (name, certificate, key) in
        [("localhost", CERTIFICATE, KEY), ("client", CLIENTS[0], CLIENTS[1])]
    {
        new(name, key, &["-new", "-out", "request"])?;
        let by = ["-CA", AUTHORITY, "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
        let extensions = ["-extfile", "openssl.cnf", "-extensions", "signed"];
        let files = ["-in", "request", "-out", certificate];
        run(&[&["x509", "-req"][..], &by, &extensions, &files].concat())?;
    }
    Ok(())
}
