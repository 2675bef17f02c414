//! A private Redis server for tests, benches and examples.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::signal;

mod binary;
mod builder;
mod certificate;
pub(crate) mod ports;
mod process;
mod provision;

use binary::Binary;
pub use builder::ServerBuilder;
use ports::Port;
use process::{Process, Started};

/// The time limit until a server answers.
const START_BOUND: Duration = Duration::from_secs(30);

/// The reason why a server could not be started: a text with the attempts and with advice.
#[derive(Clone, Debug)]
pub struct ServerError {
    message: String,
}

impl ServerError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServerError {}

/// A private Redis (or Valkey) server, on a free port of 127.0.0.1 and on a Unix socket, without
/// persistence.
///
/// The server ends when this value is dropped, and also when this process ends in any way, even by
/// `SIGKILL` or Ctrl-C.
#[derive(Debug)]
pub struct Server {
    options: ServerBuilder,
    binary: Binary,
    port: u16,
    tls_port: Option<u16>,
    process: Mutex<Option<Process>>,
    /// The server's ports, which stay reserved after the server was killed.
    ports: Vec<Port>,
    dir: TempDir,
}

impl Server {
    /// Starts a server with default settings. If there is no server program and none can be
    /// downloaded, the process ends: see [`ServerBuilder::start`].
    ///
    /// # Errors
    ///
    /// The server does not start.
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Starts a server with these arguments, such as `["--maxmemory", "1mb"]`.
    ///
    /// # Errors
    ///
    /// The errors of [`ServerBuilder::start`].
    pub fn with_args(args: &[&str]) -> Result<Self, ServerError> {
        Self::builder().args(args).start()
    }

    /// Returns a builder for other settings.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns a server for an example: the server at this URL, or a private server if there is no
    /// URL. The server in `REDIS_URL` is never used, because in many shells it is a server with
    /// real data. If this variable is set, the call prints a line about this on standard error.
    ///
    /// # Errors
    ///
    /// A private server is needed, but there is no server program or the server does not start. A
    /// URL is not checked.
    pub fn find_or_start(url: Option<&str>) -> Result<Provided, ServerError> {
        match url {
            Some(url) => Ok(Provided { url: url.to_owned(), server: None }),
            None => {
                if env::var_os("REDIS_URL").is_some_and(|url| !url.is_empty()) {
                    eprintln!("REDIS_URL is set and not used; --url names a server to be used");
                }
                let server = Self::builder().binary(Binary::find()?).start()?;
                Ok(Provided { url: server.url(), server: Some(server) })
            }
        }
    }

    /// Whether the server program on this machine and `openssl` support TLS.
    #[must_use]
    pub fn supports_tls() -> bool {
        static KNOWN: OnceLock<bool> = OnceLock::new();
        // Start a server to find out, because programs without TLS refuse the settings in different
        // ways.
        *KNOWN.get_or_init(|| Self::builder().tls().start().is_ok())
    }

    /// Returns `redis://127.0.0.1:<port>/`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}/", self.credentials(), self.port)
    }

    /// Returns `redis+unix://<path>`, with the password if there is one.
    #[must_use]
    pub fn unix_url(&self) -> String {
        let socket = self.socket();
        match &self.options.password {
            Some(password) => format!("redis+unix://{}?pass={password}", socket.display()),
            None => format!("redis+unix://{}", socket.display()),
        }
    }

    /// Returns `rediss://127.0.0.1:<port>/#insecure`, because clients do not know the authority.
    ///
    /// # Panics
    ///
    /// The server was started without [`ServerBuilder::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        let Some(port) = self.tls_port else {
            panic!("this server has no TLS port: start it with Server::builder().tls()");
        };
        format!("rediss://{}127.0.0.1:{port}/#insecure", self.credentials())
    }

    /// The authority (a certificate in PEM) of a server with TLS.
    #[must_use]
    pub fn tls_authority(&self) -> PathBuf {
        certificate::authority(self.dir.path())
    }

    /// The certificate and the key (in PEM) of a client, signed by the authority.
    #[must_use]
    pub fn tls_client(&self) -> [PathBuf; 2] {
        certificate::client(self.dir.path())
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port that other servers use: the TLS port, if there is one.
    pub(crate) fn known_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Keeps the server's port reserved from now on.
    pub(crate) fn with_reserved(mut self, port: Port) -> Self {
        self.ports.push(port);
        self
    }

    /// The process id of the server itself.
    ///
    /// # Panics
    ///
    /// The server has been killed and not restarted.
    #[must_use]
    pub fn pid(&self) -> u32 {
        match &*self.process() {
            Some(process) => process.pid(),
            None => panic!("the server was killed: call restart_empty() first"),
        }
    }

    /// The path of the server program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.binary.path
    }

    /// Returns a connection for reading and changing keys. The connection has no timeouts.
    ///
    /// # Panics
    ///
    /// The server does not answer for ten seconds.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        connect(&self.url())
    }

    /// Pauses the server's process (`SIGSTOP`). Connections stay open, but the server does not
    /// answer.
    pub fn pause(&self) {
        signal::stop(self.pid());
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        signal::go_on(self.pid());
    }

    /// Whether the server runs: it was never killed, or was started again.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().is_some()
    }

    /// Kills the server and waits until it is gone. Does nothing if it is already gone.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Kills the server if it runs, and starts it again on the same port, without data.
    ///
    /// # Panics
    ///
    /// The server does not start.
    pub fn restart_empty(&self) {
        self.kill();
        let until = Instant::now() + START_BOUND;
        loop {
            match self.launch(until) {
                Ok(Started::Ready(process)) => {
                    *self.process() = Some(process);
                    return;
                }
                // Another process, for example another test, may use the port for a moment.
                Ok(Started::PortTaken(_)) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(Started::PortTaken(log)) => {
                    panic!("{}", self.failed("its port was taken meanwhile", &log));
                }
                Err(error) => panic!("the server does not start again: {error}"),
            }
        }
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn launch(&self, until: Instant) -> Result<Started, ServerError> {
        let arguments = match &self.options.sentinel {
            Some(lines) => self.sentinel_arguments(lines)?,
            None => self.arguments(),
        };
        Process::start(
            &self.binary.path,
            &arguments,
            self.dir.path(),
            &self.log_path(),
            &self.socket(),
            until,
        )
        .map_err(|error| self.failed(&error, &self.log()))
    }

    /// Waits until a replica has its master's data and the master treats it as a replica.
    fn await_master(&self, port: u16, until: Instant) -> Result<(), ServerError> {
        let mut master = connect(&format!("redis://{}127.0.0.1:{port}/", self.credentials()));
        let own = format!("port={},state=online,offset=", self.port);
        loop {
            // The replica must acknowledge this PUBLISH. The master sends later commands only after
            // the acknowledgement.
            let _: Result<(), _> = redis::cmd("PUBLISH").arg("hear").arg("").query(&mut master);
            let info: String =
                redis::cmd("INFO").arg("replication").query(&mut master).unwrap_or_default();
            if info.split(&own).nth(1).is_some_and(|offset| !offset.starts_with("0,")) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(self.failed("it gets no data from its master", &self.log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn arguments(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut set = |name: &str, value: &str| args.extend([name.to_owned(), value.to_owned()]);
        set("--port", &self.port.to_string());
        set("--bind", "127.0.0.1");
        set("--unixsocket", &self.socket().display().to_string());
        set("--save", "");
        set("--appendonly", "no");
        set("--dir", &self.dir.path().display().to_string());
        // The master sends its data at once, without waiting for more replicas.
        set("--repl-diskless-sync-delay", "0");
        if let Some(password) = &self.options.password {
            set("--requirepass", password);
        }
        if let Some(port) = self.options.master {
            args.extend(["--replicaof", "127.0.0.1", &port.to_string()].map(str::to_owned));
            let password = self.options.password.as_deref().unwrap_or_default();
            args.extend(["--masterauth", password].map(str::to_owned));
        }
        for (name, value) in self.tls_settings() {
            args.extend([format!("--{name}"), value]);
        }
        args.extend(self.options.args.iter().cloned());
        args
    }

    fn tls_settings(&self) -> Vec<(&'static str, String)> {
        let Some(port) = self.tls_port else { return Vec::new() };
        let in_dir = |name: &str| self.dir.path().join(name).display().to_string();
        vec![
            ("tls-port", port.to_string()),
            ("tls-cert-file", in_dir(certificate::CERTIFICATE)),
            ("tls-key-file", in_dir(certificate::KEY)),
            ("tls-ca-cert-file", in_dir(certificate::AUTHORITY)),
            ("tls-auth-clients", "no".to_owned()),
        ]
    }

    /// A Sentinel writes its view into its configuration file, so each start writes a new file.
    fn sentinel_arguments(&self, lines: &str) -> Result<Vec<String>, ServerError> {
        let (dir, file) = (self.dir.path(), self.dir.path().join("sentinel.conf"));
        let mut text = format!(
            "port {}\nbind 127.0.0.1\nunixsocket {}\ndir {}\n{lines}\n",
            self.port,
            self.socket().display(),
            dir.display()
        );
        if let Some(password) = &self.options.password {
            text.push_str(&format!("requirepass {password}\n"));
        }
        for (name, value) in self.tls_settings() {
            text.push_str(&format!("{name} {value}\n"));
        }
        fs::write(&file, text).map_err(|error| {
            ServerError::new(format!("{} cannot be written: {error}", file.display()))
        })?;
        let mut args = vec![file.display().to_string(), "--sentinel".to_owned()];
        args.extend(self.options.args.iter().cloned());
        Ok(args)
    }

    fn failed(&self, why: &str, log: &str) -> ServerError {
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n");
        ServerError::new(format!("{}: {why}; its log ends:\n{tail}", self.binary.path.display()))
    }

    pub(crate) fn credentials(&self) -> String {
        self.options.password.as_ref().map(|word| format!(":{word}@")).unwrap_or_default()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server that the user named, or a private server. See [`Server::find_or_start`].
#[derive(Debug)]
pub struct Provided {
    url: String,
    server: Option<Server>,
}

impl Provided {
    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the server is private, so that it may be emptied, paused or killed.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.server.is_some()
    }

    /// The private server, if there is one.
    #[must_use]
    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Returns a connection for reading and changing keys. The connection has no timeouts.
    ///
    /// # Panics
    ///
    /// The server does not answer for ten seconds.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        connect(&self.url)
    }
}

fn connect(url: &str) -> redis::Connection {
    let bound = Duration::from_secs(10);
    let until = Instant::now() + bound;
    loop {
        // Use the timeout only for connecting. A read with a timeout would fail now and then: a
        // signal to this process, for example when a child ends, interrupts such a read.
        let opened =
            redis::Client::open(url).and_then(|client| client.get_connection_with_timeout(bound));
        match opened {
            Ok(connection) => return connection,
            Err(error) if Instant::now() >= until => {
                panic!("no connection to {url} ({error}): is the server up?")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests;
