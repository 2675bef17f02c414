//! One connection, which sends commands and receives replies, each with a deadline.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use redis::{
    ConnectionAddr, ErrorKind as Cause, ProtocolVersion, RedisConnectionInfo, RedisError,
    RedisResult, Value,
};

use super::login::Login;
use super::reply::{is_refusal, turns_away};
use super::resp::ReplyReader;
use super::server::InfoReply;
use super::socket::{Closer, Socket};
use super::tls::Tls;
#[cfg(feature = "tls")]
use super::tls::{TlsStream, wants_certificate};
use super::transport::Dialer;
use super::{Command, ConnectError, Credentials, Settings};

/// A connection to a server that has accepted the client.
pub(crate) struct Connection {
    stream: Stream,
    replies: ReplyReader,
    /// Bytes that a thread had no time to write. These bytes are written before all later bytes.
    unwritten: Vec<u8>,
    /// The number of bytes given to this connection so far.
    given: u64,
    read_timeout: Duration,
    write_timeout: Duration,
}

enum Stream {
    Plain(Socket),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Connection {
    /// Connects, logs in, selects the database, and reads the server's description, all before
    /// `deadline`. After the connection is open, this takes one round trip. `begun` gets the closer
    /// as soon as the connection is open. `with_role` says whether to query if the server is a
    /// master.
    pub(super) fn open(
        address: &ConnectionAddr,
        network: &Network,
        login: &Login,
        response_timeout: Duration,
        deadline: Instant,
        with_role: bool,
        begun: &dyn Fn(Closer),
    ) -> RedisResult<(Self, InfoReply)> {
        let open = || -> RedisResult<(Self, InfoReply)> {
            let settings = login.settings(deadline)?;
            let mut connection = Self {
                stream: network.connect(address, deadline)?,
                replies: ReplyReader::new(),
                unwritten: Vec::new(),
                given: 0,
                read_timeout: response_timeout,
                write_timeout: response_timeout,
            };
            begun(connection.closer());
            let greeted = connection.greet(&settings, login.name(), deadline, with_role);
            Ok((connection, greeted.map_err(|error| hung_up(error, address))?))
        };
        match open() {
            // The server closed the connection at once, because of a CLIENT KILL or because it is
            // starting. Another attempt is safe, because the commands so far changed nothing.
            Err(error) if error.is_connection_dropped() => open(),
            // The user and the password may just have been changed.
            Err(error) if login.may_change() && is_refusal(&error) => open(),
            opened => opened,
        }
    }

    fn greet(
        &mut self,
        settings: &RedisConnectionInfo,
        name: &str,
        deadline: Instant,
        with_role: bool,
    ) -> RedisResult<InfoReply> {
        let steps = introduction(settings);
        let mut bytes: Vec<u8> =
            steps.iter().flat_map(|(_, command)| command.bytes()).copied().collect();
        bytes.extend_from_slice(Command::plain(&[b"INFO", b"server"]).bytes());
        if with_role {
            bytes.extend_from_slice(Command::plain(&[b"ROLE"]).bytes());
        }
        // The commands for the name come last, because their replies are ignored. A full server
        // replies to the first command with an error and closes the connection.
        let names = names(name);
        names.iter().for_each(|command| bytes.extend_from_slice(command.bytes()));
        let sent = self.send_until(&bytes, deadline);
        for (step, _) in steps {
            // A server that is full or protected sends an error and closes the connection. The
            // write may then fail, but the error can still be read.
            match (self.receive_until(deadline), &sent) {
                (Ok(Value::ServerError(error)), _) => {
                    return Err(step.refused(error.into(), settings.password()));
                }
                (Ok(_), _) => {}
                (Err(_), Err(unsent)) => return Err(unsent.clone()),
                (Err(error), Ok(())) => return Err(error),
            }
        }
        let info = self.receive_until(deadline);
        sent?;
        let server = InfoReply::of(info?)?;
        let server =
            if with_role { server.in_role(&self.receive_until(deadline)?) } else { server };
        // Some servers do not have these commands, and some users may not send them.
        for _ in names {
            let _whatever = self.receive_until(deadline)?;
        }
        Ok(server)
    }

    /// Writes commands, within the write timeout from `now` on.
    pub(crate) fn send_packed_command(&mut self, bytes: &[u8], now: Instant) -> RedisResult<()> {
        self.stream.socket().set_time(now, self.write_timeout);
        self.write(bytes)
    }

    pub(super) fn send_until(&mut self, bytes: &[u8], deadline: Instant) -> RedisResult<()> {
        self.stream.socket().set_deadline(deadline);
        self.write(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> RedisResult<()> {
        self.given += bytes.len() as u64;
        if !self.unwritten.is_empty() {
            let rest = std::mem::take(&mut self.unwritten);
            self.stream.write_all(&rest)?;
        }
        Ok(self.stream.write_all(bytes)?)
    }

    /// Stores bytes that [`write_in_part`](Self::write_in_part), or the next write or read, will
    /// write.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.given += bytes.len() as u64;
        self.unwritten.extend_from_slice(bytes);
    }

    /// The number of bytes given to this connection so far, which is the position of the next byte.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// The number of bytes that have been given to the stream. TLS may still have some of these
    /// bytes, but they cannot be withdrawn.
    pub(super) fn written(&self) -> u64 {
        self.given - self.unwritten.len() as u64
    }

    /// Whether some bytes are not written yet.
    pub(super) fn has_unwritten(&self) -> bool {
        let in_tls = match &self.stream {
            Stream::Plain(_) => false,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.conn.wants_write(),
        };
        in_tls || !self.unwritten.is_empty()
    }

    /// Removes the unwritten bytes of these ranges, which are in ascending order.
    pub(super) fn withdraw(&mut self, ranges: &[(u64, u64)]) {
        let mut at = self.written();
        let bytes = std::mem::take(&mut self.unwritten);
        let mut rest = &bytes[..];
        for (begin, end) in ranges {
            let (kept, behind) = rest.split_at((begin - at) as usize);
            self.unwritten.extend_from_slice(kept);
            rest = behind.split_at((end - begin) as usize).1;
            at = *end;
        }
        self.unwritten.extend_from_slice(rest);
        self.given -= (bytes.len() - self.unwritten.len()) as u64;
    }

    /// Writes the unwritten bytes and then `bytes`, as far as the stream accepts them without
    /// waiting. The other bytes remain unwritten.
    pub(super) fn write_now(&mut self, bytes: &[u8], now: Instant) -> RedisResult<()> {
        self.given += bytes.len() as u64;
        self.stream.socket().set_now(now);
        // Usually there are no unwritten bytes and the stream accepts all bytes, so none are
        // copied.
        let is_first = self.unwritten.is_empty();
        if !is_first {
            self.unwritten.extend_from_slice(bytes);
        }
        let all = if is_first { bytes } else { &self.unwritten };
        let written = match self.stream.write(all) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        if is_first {
            self.unwritten.extend_from_slice(bytes.get(written..).unwrap_or_default());
        } else {
            self.unwritten.drain(..written);
        }
        Ok(())
    }

    /// Writes unwritten bytes until `deadline`. If some remain, returns `false`, and the connection
    /// is still usable.
    pub(super) fn write_in_part(&mut self, deadline: Instant) -> RedisResult<bool> {
        while !self.unwritten.is_empty() {
            self.stream.socket().set_deadline_in_part(deadline);
            match self.stream.write(&self.unwritten) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => drop(self.unwritten.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Like [`receive_until`](Self::receive_until), but the connection is still usable after the
    /// deadline (an error that [is a timeout](RedisError::is_timeout)). If only a part of a reply
    /// has arrived, the connection keeps this part for the next reader.
    pub(super) fn receive_in_part(&mut self, deadline: Instant) -> RedisResult<Value> {
        self.stream.socket().set_deadline_in_part(deadline);
        self.take_reply()
    }

    /// Takes the next reply, for which a caller waits.
    fn take_reply(&mut self) -> RedisResult<Value> {
        self.stream.socket().poll_first();
        match &mut self.stream {
            Stream::Plain(socket) => self.replies.take_reply(socket),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => self.replies.take_reply(stream),
        }
    }

    /// Reads the next reply or pushed message within the read timeout, for a subscriber.
    pub(crate) fn recv_response(&mut self) -> RedisResult<Value> {
        self.stream.socket().set_time(Instant::now(), self.read_timeout);
        self.take_any()
    }

    /// Reads a reply until `deadline`, skipping pushed messages before it. After an error the
    /// connection must not be used.
    pub(crate) fn receive_until(&mut self, deadline: Instant) -> RedisResult<Value> {
        self.stream.socket().set_deadline(deadline);
        if !self.unwritten.is_empty() {
            self.write(&[])?;
        }
        self.take_reply()
    }

    /// Reads the next reply or pushed message until `deadline`, for a listener.
    pub(super) fn receive_any_until(&mut self, deadline: Instant) -> RedisResult<Value> {
        self.stream.socket().set_deadline(deadline);
        self.take_any()
    }

    fn take_any(&mut self) -> RedisResult<Value> {
        match &mut self.stream {
            Stream::Plain(socket) => self.replies.take(socket),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => self.replies.take(stream),
        }
    }

    /// A handle that closes the connection from another thread.
    pub(crate) fn closer(&mut self) -> Closer {
        self.stream.socket().closer()
    }

    /// Whether a closer has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        match &self.stream {
            Stream::Plain(socket) => socket.is_closed(),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.get_ref().is_closed(),
        }
    }

    pub(crate) fn set_read_timeout(&mut self, timeout: Duration) {
        self.read_timeout = timeout;
    }
}

/// How streams to servers of one kind are opened.
#[derive(Clone)]
pub(super) struct Network {
    #[cfg_attr(not(feature = "tls"), expect(dead_code))]
    tls: Tls,
    dialer: Option<Dialer>,
    busy_poll: Duration,
}

impl Network {
    /// The network for servers at this kind of address.
    pub(super) fn new(address: &ConnectionAddr, config: &Settings) -> Result<Self, ConnectError> {
        let (dialer, busy_poll) = (config.dialer.clone(), config.busy_poll);
        Ok(Self { tls: Tls::new(address, config)?, dialer, busy_poll })
    }

    /// Whether the server is in this process.
    pub(super) fn is_in_memory(&self) -> bool {
        self.dialer.is_some()
    }

    fn connect(&self, address: &ConnectionAddr, deadline: Instant) -> RedisResult<Stream> {
        let socket = match (&self.dialer, address) {
            (Some(dialer), _) => Socket::over(dialer.dial(address, deadline)?, deadline),
            (None, ConnectionAddr::Tcp(host, port)) => Socket::tcp(host, *port, deadline)?,
            #[cfg(feature = "tls")]
            (None, ConnectionAddr::TcpTls { host, port, .. }) => {
                Socket::tcp(host, *port, deadline)?
            }
            (None, ConnectionAddr::Unix(path)) => Socket::unix(path, deadline)?,
            _ => {
                // This case does not occur, because a client's URL is checked earlier.
                let why = "this build cannot connect to such an address";
                return Err((Cause::InvalidClientConfig, why).into());
            }
        };
        let socket = socket.with_busy_poll(self.busy_poll);
        match address {
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, .. } => {
                Ok(Stream::Tls(Box::new(self.tls.connect(host, socket, deadline)?)))
            }
            _ => Ok(Stream::Plain(socket)),
        }
    }
}

impl Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                // The stream writes bytes that are already encrypted first. `bytes` may be empty.
                let written = if bytes.is_empty() { 0 } else { stream.write(bytes)? };
                match stream.flush() {
                    // The bytes are encrypted, so report them as written. They are sent before the
                    // next bytes, or during the next read.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(written),
                    flushed => flushed.map(|()| written),
                }
            }
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    fn socket(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.get_mut(),
        }
    }
}

/// Returns the error, with its likely cause, for a server that closes the connection before its
/// first reply.
fn hung_up(error: RedisError, address: &ConnectionAddr) -> RedisError {
    #[cfg(feature = "tls")]
    if matches!(address, ConnectionAddr::TcpTls { .. }) {
        return wants_certificate(error);
    }
    if !error.is_connection_dropped() || !matches!(address, ConnectionAddr::Tcp(..)) {
        return error;
    }
    let why = format!("{error}, as from a port that wants TLS (rediss://)");
    io::Error::new(io::ErrorKind::ConnectionReset, why).into()
}

/// The commands by which a client introduces itself.
#[derive(Clone, Copy)]
enum GreetingStep {
    Hello,
    Password,
    Database,
}

fn introduction(settings: &RedisConnectionInfo) -> Vec<(GreetingStep, Command)> {
    let mut steps = Vec::new();
    let (username, password) = (settings.username(), settings.password());
    if settings.protocol() == ProtocolVersion::RESP2 {
        if let Some(password) = password {
            let credentials = Credentials::new(username.unwrap_or_default(), password);
            steps.push((GreetingStep::Password, Command::auth(&credentials)));
        }
    } else {
        let mut parts: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(password) = password {
            parts.extend([b"AUTH", username.unwrap_or("default").as_bytes(), password.as_bytes()]);
        }
        steps.push((GreetingStep::Hello, Command::plain(&parts)));
    }
    if settings.db() != 0 {
        let database = settings.db().to_string();
        steps.push((GreetingStep::Database, Command::plain(&[b"SELECT", database.as_bytes()])));
    }
    steps
}

/// The commands that name the connection.
fn names(name: &str) -> Vec<Command> {
    if name.is_empty() {
        return Vec::new();
    }
    let name: &[u8] = name.as_bytes();
    let version: &[u8] = env!("CARGO_PKG_VERSION").as_bytes();
    let info: [&[u8]; 2] = [b"CLIENT", b"SETINFO"];
    vec![
        Command::plain(&[b"CLIENT", b"SETNAME", name]),
        Command::plain(&[info[0], info[1], b"LIB-NAME", b"redlatch"]),
        Command::plain(&[info[0], info[1], b"LIB-VER", version]),
    ]
}

impl GreetingStep {
    /// The error if the server refuses the command.
    fn refused(self, error: RedisError, password: Option<&str>) -> RedisError {
        // The server may send this error as the reply to the first command, whatever that is.
        if turns_away(&error) || error.code() == Some("NOAUTH") {
            return error;
        }
        let detail = error.detail().unwrap_or_default();
        let is_unknown = detail.to_ascii_lowercase().contains("unknown command");
        let repeats =
            password.is_some_and(|password| !password.is_empty() && detail.contains(password));
        match self {
            // The error for an unknown command repeats its arguments, and so the password.
            Self::Password if is_unknown => {
                (Cause::AuthenticationFailed, "the server knows no command AUTH").into()
            }
            Self::Hello if is_unknown => {
                (Cause::InvalidClientConfig, "it knows no HELLO, which protocol=resp3 needs").into()
            }
            Self::Password | Self::Hello if repeats => {
                (Cause::AuthenticationFailed, "its words repeat the password").into()
            }
            Self::Password => {
                (Cause::AuthenticationFailed, "AUTH was refused", detail.to_owned()).into()
            }
            Self::Hello if error.code() == Some("WRONGPASS") => {
                (Cause::AuthenticationFailed, "HELLO was refused", detail.to_owned()).into()
            }
            Self::Hello | Self::Database => error,
        }
    }
}
