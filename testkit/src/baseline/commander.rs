//! A connection for the commands of one thread.

use std::io::Write;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client, Connection, ConnectionLike, IntoConnectionInfo, RedisResult, Script, Value};

use super::scripts;

/// The time limit for a connection attempt.
const CONNECT_BOUND: Duration = Duration::from_secs(10);

/// Returns a client whose connections send at once (`TCP_NODELAY`).
pub(super) fn client(url: &str) -> RedisResult<Client> {
    let settings = TcpSettings::default().set_nodelay(true);
    Client::open(url.into_connection_info()?.set_tcp_settings(settings))
}

pub(super) struct Commander {
    connection: Connection,
}

impl Commander {
    pub(super) fn connect(client: &Client) -> RedisResult<Self> {
        let connection = client.get_connection_with_timeout(CONNECT_BOUND)?;
        let mut commander = Self { connection };
        commander.load_scripts()?;
        Ok(commander)
    }

    /// Sends an encoded command and waits for its reply.
    pub(super) fn send(&mut self, command: &[u8]) -> RedisResult<Value> {
        let sent = self.connection.req_packed_command(command).and_then(Value::extract_error);
        match sent {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.load_scripts()?;
                self.connection.req_packed_command(command).and_then(Value::extract_error)
            }
            sent => sent,
        }
    }

    fn load_scripts(&mut self) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        for script in scripts::ALL {
            pipe.cmd("SCRIPT").arg("LOAD").arg(script).ignore();
        }
        pipe.exec(&mut self.connection)
    }
}

/// Returns an encoded `EVALSHA` of this script.
pub(super) fn call(script: &str, keys: &[&str], args: &[&str]) -> Vec<u8> {
    let mut start = Call::new(script, keys, args.len());
    for arg in args {
        start.arg(arg);
    }
    start.bytes
}

/// An `EVALSHA` whose last arguments differ from call to call.
pub(super) struct Call {
    bytes: Vec<u8>,
    fixed: usize,
}

impl Call {
    /// Begins a call with `args` arguments.
    pub(super) fn new(script: &str, keys: &[&str], args: usize) -> Self {
        let mut call = Self { bytes: Vec::with_capacity(512), fixed: 0 };
        let _ = write!(call.bytes, "*{}\r\n", 3 + keys.len() + args);
        call.arg("EVALSHA");
        call.arg(Script::new(script).get_hash());
        call.arg(&keys.len().to_string());
        for key in keys {
            call.arg(key);
        }
        call
    }

    pub(super) fn arg(&mut self, arg: &str) {
        let _ = write!(self.bytes, "${}\r\n{arg}\r\n", arg.len());
    }

    /// Fixes the present arguments of the call. Later calls have the same arguments.
    pub(super) fn fix(mut self) -> Self {
        self.fixed = self.bytes.len();
        self
    }

    /// Returns the call with this last argument.
    pub(super) fn with(&mut self, last: &str) -> &[u8] {
        self.bytes.truncate(self.fixed);
        self.arg(last);
        &self.bytes
    }
}
