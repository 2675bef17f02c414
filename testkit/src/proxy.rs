//! A TCP proxy in front of a server. A test can make it slow or make it fail, like a bad network.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Server;
use crate::server::ports::{self, Port};

mod commands;
mod connection;
mod pump;
mod rules;
mod state;

use connection::Connection;
use rules::Rule;
pub use rules::{Action, Direction};
use state::{Shared, State};

/// How long the proxy tries to bind its port again.
const BIND_BOUND: Duration = Duration::from_secs(5);

/// A TCP proxy on a free port of 127.0.0.1, in front of a server.
///
/// The drop of a proxy cuts its connections and ends its threads.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// The port, which stays reserved while the proxy refuses connections.
    _port: Port,
    credentials: String,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of this address, such as `127.0.0.1:6379`.
    ///
    /// # Panics
    ///
    /// `upstream` is not an address.
    #[must_use]
    pub fn start(upstream: &str) -> Self {
        let resolved = upstream.to_socket_addrs().ok().and_then(|mut found| found.next());
        let Some(address) = resolved else {
            panic!("{upstream:?} is no address to put a proxy before: give host:port");
        };
        Self::to(address, String::new())
    }

    /// Starts a proxy in front of this server. [`Proxy::url`] contains the server's password.
    ///
    /// # Panics
    ///
    /// There is no free port.
    #[must_use]
    pub fn before(server: &Server) -> Self {
        Self::to(SocketAddr::from(([127, 0, 0, 1], server.port())), server.credentials())
    }

    fn to(upstream: SocketAddr, credentials: String) -> Self {
        let shared = Arc::new(Shared::new(upstream));
        let (port, address, listener) = loop {
            let port = ports::free();
            let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
            // Another process may have taken the port. If so, try again.
            if let Ok(listener) = TcpListener::bind(address) {
                break (port, address, listener);
            }
        };
        shared.change(|state| state.listening = true);
        let acceptor = {
            let shared = shared.clone();
            thread::spawn(move || accept(&shared, address, listener))
        };
        Self { shared, address, _port: port, credentials, acceptor: Some(acceptor) }
    }

    /// Returns `redis://127.0.0.1:<port>/`, with the server's password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}/", self.credentials, self.address)
    }

    /// The address on which the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays all bytes by `one_way` in each direction. So a round trip takes twice `one_way`
    /// longer. Bytes that are in flight at the same time are delayed together.
    pub fn set_delay(&self, one_way: Duration) {
        self.shared.set_delay(one_way);
    }

    /// If `on` is true, the proxy delivers later replies byte by byte. If `on` is false, the proxy
    /// delivers them as a whole.
    pub fn trickle(&self, on: bool) {
        self.shared.set_trickle(on);
    }

    /// Stops delivery in both directions, without closing a connection.
    pub fn freeze(&self) {
        self.shared.change(|state| state.frozen = true);
    }

    /// Resumes delivery. The bytes that came in the meantime are delivered first.
    pub fn thaw(&self) {
        self.shared.change(|state| state.frozen = false);
    }

    /// Makes new connections lead to this server, as after a change of a host name's address. Open
    /// connections stay as they are.
    pub fn lead_to(&self, server: &Server) {
        *self.shared.upstream() = SocketAddr::from(([127, 0, 0, 1], server.port()));
    }

    /// Refuses new connections. Returns when the port is closed. Open connections stay open.
    pub fn refuse(&self) {
        self.shared.change(|state| state.refusing = true);
        self.wake_acceptor();
        self.wait_state("it refuses connections", |state| !state.listening);
    }

    /// Accepts connections again. Returns when the port is open.
    ///
    /// # Panics
    ///
    /// Another process has taken the port.
    pub fn accept(&self) {
        self.shared.change(|state| state.refusing = false);
        self.wait_state("it listens again (is its port taken?)", |state| state.listening);
    }

    /// Closes all connections at once. Returns their number.
    pub fn cut_all(&self) -> usize {
        self.cut_matching(b"")
    }

    /// Closes the connections on which the client has recently sent these bytes (in the last 64
    /// KiB). If the pattern is a part of a command's name in upper case, such as `SUBSCRIBE`, it
    /// also matches older commands. Returns the number of closed connections.
    pub fn cut_matching(&self, pattern: impl AsRef<[u8]>) -> usize {
        let mut connections = self.open();
        connections.retain(|connection| connection.has_sent(pattern.as_ref()));
        for connection in &connections {
            connection.cut(&self.shared);
        }
        connections.len()
    }

    /// The number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open().len()
    }

    /// The number of commands that have come from clients.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.shared.commands()
    }

    /// Sets a rule that fires `action` once, at the next command that contains these bytes (an
    /// owner, a script's hash, a key).
    pub fn on_request(&self, pattern: impl AsRef<[u8]>, action: Action) {
        let pattern = pattern.as_ref().to_vec();
        self.on(Direction::Request, 1, action, move |bytes| rules::contains(bytes, &pattern));
    }

    /// Sets a rule that fires `action` once, at the next bytes from the server that contain this
    /// pattern.
    pub fn on_reply(&self, pattern: impl AsRef<[u8]>, action: Action) {
        let pattern = pattern.as_ref().to_vec();
        self.on(Direction::Reply, 1, action, move |bytes| rules::contains(bytes, &pattern));
    }

    /// Sets a rule that performs `action` each time that the predicate is true, at most `shots`
    /// times. If several rules match, only the rule that was set first fires. An action on a reply
    /// also affects the replies to earlier commands that are still in flight on the connection.
    pub fn on(
        &self,
        direction: Direction,
        shots: usize,
        action: Action,
        predicate: impl Fn(&[u8]) -> bool + Send + 'static,
    ) {
        let rule = Rule { direction, matches: Box::new(predicate), action, shots };
        self.shared.change(|state| state.rules.push(rule));
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.shared.change(|state| state.rules.clear());
    }

    /// Delivers the replies that [`Action::HoldReply`] is holding back.
    pub fn release(&self) {
        self.shared.change(|state| state.releases += 1);
    }

    /// The number of times that rules have fired. A rule about a reply fires when the reply has
    /// come from the server, so the command has run.
    #[must_use]
    pub fn fired(&self) -> usize {
        self.shared.state().fired
    }

    /// Waits until rules have fired `count` times in total.
    ///
    /// # Panics
    ///
    /// The rules have not fired `count` times within the timeout.
    #[track_caller]
    pub fn wait_fired(&self, count: usize, timeout: Duration) {
        let until = Instant::now() + timeout;
        assert!(
            self.shared.wait(Some(until), |state| state.fired >= count),
            "the proxy's rules have fired {} times in {timeout:?}, not {count}: \
             do their patterns occur? {:?}",
            self.fired(),
            self.shared.state().rules
        );
    }

    fn open(&self) -> Vec<Arc<Connection>> {
        let state = self.shared.state();
        state.connections.iter().filter(|it| !it.is_closed()).cloned().collect()
    }

    fn wake_acceptor(&self) {
        drop(TcpStream::connect(self.address));
    }

    fn wait_state(&self, what: &str, so: impl Fn(&State) -> bool) {
        let until = Instant::now() + BIND_BOUND;
        assert!(self.shared.wait(Some(until), so), "the proxy waited in vain until {what}");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|state| state.stopping = true);
        self.wake_acceptor();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let (connections, threads) = self.shared.change(|state| {
            (std::mem::take(&mut state.connections), std::mem::take(&mut state.threads))
        });
        for connection in connections {
            connection.cut(&self.shared);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Accepts connections until the proxy stops. While the proxy refuses connections, the port is
/// closed.
fn accept(shared: &Arc<Shared>, address: SocketAddr, first: TcpListener) {
    let mut listener = first;
    loop {
        while let Ok((client, _)) = listener.accept() {
            let state = shared.state();
            if state.stopping || state.refusing {
                break;
            }
            drop(state);
            // If the server cannot be reached, this closes the client's connection.
            let _ = connect(shared, client);
        }
        drop(listener);
        shared.change(|state| state.listening = false);
        shared.wait(None, |state| state.stopping || !state.refusing);
        if shared.state().stopping {
            return;
        }
        let until = Instant::now() + BIND_BOUND;
        listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                // The thread that waits for the port then panics.
                Err(_) => return,
            }
        };
        shared.change(|state| state.listening = true);
    }
}

fn connect(shared: &Arc<Shared>, client: TcpStream) -> io::Result<()> {
    let upstream = TcpStream::connect(*shared.upstream())?;
    let (connection, threads) = Connection::start(client, upstream, shared)?;
    shared.change(|state| {
        // Remove the threads that have ended.
        state.threads.retain(|thread| !thread.is_finished());
        state.connections.retain(|other| !other.is_closed());
        state.threads.extend(threads);
        state.connections.push(connection);
    });
    Ok(())
}

#[cfg(test)]
mod tests;
