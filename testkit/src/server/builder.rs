//! The settings of a new server.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use tempfile::TempDir;

use super::binary::Binary;
use super::ports::{self, Port};
use super::process::Started;
use super::{START_BOUND, Server, ServerError, certificate, provision};
use crate::Proxy;

/// The settings of a new server. See [`Server::builder`].
#[derive(Clone, Debug, Default)]
pub struct ServerBuilder {
    pub(super) args: Vec<String>,
    pub(super) port: Option<u16>,
    pub(super) password: Option<String>,
    pub(super) tls: bool,
    /// The folder of another server. The new server shares the other server's certificates.
    certificates: Option<PathBuf>,
    /// If this is set, the server is a Sentinel with these lines in its configuration file.
    pub(super) sentinel: Option<String>,
    pub(super) master: Option<u16>,
    binary: Option<Binary>,
}

impl ServerBuilder {
    /// Adds an argument for the server, such as `--maxmemory`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments for the server.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Sets the port. If the port is taken, the start fails. By default the server gets a free
    /// port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets a password of letters and digits, which the URLs contain.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Adds a TLS port with a new certificate. The server keeps its port without TLS.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Adds a TLS port with the certificates of `first`. The server uses only TLS to connect to
    /// other servers.
    pub(crate) fn tls_among(mut self, first: Option<&Server>) -> Self {
        self.certificates = first.map(|server| server.dir.path().to_owned());
        self.tls().args(&["--tls-replication", "yes"])
    }

    /// Makes the server a Sentinel, with these lines in its configuration file.
    pub(crate) fn sentinel(mut self, lines: String) -> Self {
        self.sentinel = Some(lines);
        self
    }

    /// Makes the server a replica of this master, with the same password. The start then waits
    /// until the replica has the master's data.
    #[must_use]
    pub fn replica_of(self, master: &Server) -> Self {
        self.replica_at(master.port())
    }

    /// Like [`replica_of`](Self::replica_of), but the replica connects through this proxy.
    #[must_use]
    pub fn replica_behind(self, network: &Proxy) -> Self {
        self.replica_at(network.address().port())
    }

    fn replica_at(mut self, port: u16) -> Self {
        self.master = Some(port);
        self
    }

    /// Uses this server program.
    pub(crate) fn binary(mut self, binary: Binary) -> Self {
        self.binary = Some(binary);
        self
    }

    /// Starts the server and waits until it answers. If there is no server program and none can be
    /// downloaded, the process ends with a message about how to get one, because no other test
    /// could run either.
    ///
    /// # Errors
    ///
    /// The server does not start with these arguments.
    pub fn start(self) -> Result<Server, ServerError> {
        let binary = self
            .binary
            .clone()
            .unwrap_or_else(|| Binary::find().unwrap_or_else(|error| end_process(&error)));
        let dir = private_folder()?;
        match &self.certificates {
            _ if !self.tls => {}
            None => certificate::make(dir.path())?,
            Some(others) => certificate::copy(others, dir.path())?,
        }
        let mut server = Server {
            port: 0,
            tls_port: None,
            ports: Vec::new(),
            options: self,
            binary,
            process: Mutex::new(None),
            dir,
        };
        let until = Instant::now() + START_BOUND;
        loop {
            let own = server.options.port.is_none().then(ports::free);
            let tls = server.options.tls.then(ports::free);
            let number = |port: &Option<Port>| port.as_ref().map(Port::number);
            server.port = server.options.port.or(number(&own)).unwrap_or_default();
            server.tls_port = number(&tls);
            server.ports = own.into_iter().chain(tls).collect();
            match server.launch(until)? {
                Started::Ready(process) => {
                    *server.process() = Some(process);
                    if let Some(port) = server.options.master {
                        server.await_master(port, until)?;
                    }
                    return Ok(server);
                }
                Started::PortTaken(log) if server.options.port.is_some() => {
                    return Err(server.failed("the port is taken", &log));
                }
                Started::PortTaken(_) => {}
            }
        }
    }
}

/// Prints the error and ends the process. If several threads call this function at the same time,
/// only one of them prints.
fn end_process(why: &ServerError) -> ! {
    static ENDS: Mutex<()> = Mutex::new(());
    let _for_good = ENDS.lock();
    provision::say(&format!("the tests end here: {why}"));
    std::process::exit(101);
}

/// Returns a new folder with a short path, because a Unix socket's path has at most about a hundred
/// bytes. The path in `TMPDIR` may be too long.
fn private_folder() -> Result<TempDir, ServerError> {
    let named = tempfile::Builder::new().prefix("redlatch-").tempdir();
    match named {
        Ok(dir) if dir.path().as_os_str().len() < 90 => Ok(dir),
        _ => tempfile::Builder::new().prefix("redlatch-").tempdir_in("/tmp"),
    }
    .map_err(|error| ServerError::new(format!("no folder for the server: {error}; set TMPDIR")))
}
