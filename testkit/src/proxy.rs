//! A network that can be slow and can fail: a TCP proxy in front of a server.

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

/// The time for which the proxy tries to get its port back.
const BIND_BOUND: Duration = Duration::from_secs(5);

/// A TCP proxy on a free port of 127.0.0.1, in front of a server.
///
/// Dropping it cuts its connections and ends its threads.
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
    /// A proxy in front of this address, such as `127.0.0.1:6379`.
    ///
    /// # Panics
    ///
    /// If the address is none.
    #[must_use]
    pub fn start(upstream: &str) -> Self {
        let resolved = upstream.to_socket_addrs().ok().and_then(|mut found| found.next());
        let Some(address) = resolved else {
            panic!("{upstream:?} is no address to put a proxy before: give host:port");
        };
        Self::to(address, String::new())
    }

    /// A proxy in front of this server; its [`Proxy::url`] has the server's password.
    ///
    /// # Panics
    ///
    /// If there is no port to listen on.
    #[must_use]
    pub fn before(server: &Server) -> Self {
        Self::to(SocketAddr::from(([127, 0, 0, 1], server.port())), server.credentials())
    }

    fn to(upstream: SocketAddr, credentials: String) -> Self {
        let shared = Arc::new(Shared::new(upstream));
        let (port, address, listener) = loop {
            let port = ports::free();
            let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
            // Another process may have been quicker.
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

    /// `redis://127.0.0.1:<port>/`, with the server's password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}/", self.credentials, self.address)
    }

    /// Where the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays all bytes by this time, each way. Delays do not add up for bytes that are on their
    /// way together. A round trip takes longer by twice the time.
    pub fn set_delay(&self, one_way: Duration) {
        self.shared.set_delay(one_way);
    }

    /// Delivers replies byte by byte from here on.
    pub fn trickle(&self, on: bool) {
        self.shared.set_trickle(on);
    }

    /// Stops delivering, both ways, without closing anything.
    pub fn freeze(&self) {
        self.shared.change(|state| state.frozen = true);
    }

    /// Delivers again, beginning with the bytes that have come in the meantime.
    pub fn thaw(&self) {
        self.shared.change(|state| state.frozen = false);
    }

    /// Makes new connections lead to this server, as behind a name whose address has changed. Open
    /// connections stay where they are.
    pub fn lead_to(&self, server: &Server) {
        *self.shared.upstream() = SocketAddr::from(([127, 0, 0, 1], server.port()));
    }

    /// Refuses new connections. Returns when the port is closed. Open connections stay.
    pub fn refuse(&self) {
        self.shared.change(|state| state.refusing = true);
        self.wake_acceptor();
        self.wait_state("it refuses connections", |state| !state.listening);
    }

    /// Accepts connections again. Returns when the port is open.
    ///
    /// # Panics
    ///
    /// If another process has taken the port.
    pub fn accept(&self) {
        self.shared.change(|state| state.refusing = false);
        self.wait_state("it listens again (is its port taken?)", |state| state.listening);
    }

    /// Closes all connections at once. Returns how many there were.
    pub fn cut_all(&self) -> usize {
        self.cut_matching(b"")
    }

    /// Closes the connections on which these bytes were sent lately (in the last 64 KiB), or ever
    /// as a part of a command's name in upper case, such as `SUBSCRIBE`. Returns how many there
    /// were.
    pub fn cut_matching(&self, pattern: impl AsRef<[u8]>) -> usize {
        let mut connections = self.open();
        connections.retain(|connection| connection.has_sent(pattern.as_ref()));
        for connection in &connections {
            connection.cut(&self.shared);
        }
        connections.len()
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open().len()
    }

    /// How many commands have come from clients so far.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.shared.commands()
    }

    /// Makes the next command that contains these bytes (an owner, a script's hash, a key) fire
    /// this action, once.
    pub fn on_request(&self, pattern: impl AsRef<[u8]>, action: Action) {
        let pattern = pattern.as_ref().to_vec();
        self.on(Direction::Request, 1, action, move |bytes| rules::contains(bytes, &pattern));
    }

    /// Makes the next bytes from the server that contain these fire this action, once.
    pub fn on_reply(&self, pattern: impl AsRef<[u8]>, action: Action) {
        let pattern = pattern.as_ref().to_vec();
        self.on(Direction::Reply, 1, action, move |bytes| rules::contains(bytes, &pattern));
    }

    /// Fires this action the next `shots` times that the predicate is true. Of several matching
    /// rules, the one that was set first fires. An action on a reply also hits the replies to
    /// earlier commands that are still on their way over the connection.
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

    /// Takes back all rules that have shots left.
    pub fn clear_rules(&self) {
        self.shared.change(|state| state.rules.clear());
    }

    /// Delivers the replies held back by [`Action::HoldReply`] so far.
    pub fn release(&self) {
        self.shared.change(|state| state.releases += 1);
    }

    /// How many times rules have fired so far. A rule about a reply has fired when that reply has
    /// come from the server, so that the command has run.
    #[must_use]
    pub fn fired(&self) -> usize {
        self.shared.state().fired
    }

    /// Waits until rules have fired `count` times in all.
    ///
    /// # Panics
    ///
    /// If they have not in time.
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

/// Takes connections until the proxy stops; closes the port while it refuses.
fn accept(shared: &Arc<Shared>, address: SocketAddr, first: TcpListener) {
    let mut listener = first;
    loop {
        while let Ok((client, _)) = listener.accept() {
            let state = shared.state();
            if state.stopping || state.refusing {
                break;
            }
            drop(state);
            // A client without a server sees its connection closed.
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
                // The thread that waits for the port reports the failure.
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
        // Ended threads are forgotten when there is a new one.
        state.threads.retain(|thread| !thread.is_finished());
        state.connections.retain(|other| !other.is_closed());
        state.threads.extend(threads);
        state.connections.push(connection);
    });
    Ok(())
}

#[cfg(test)]
mod tests;
