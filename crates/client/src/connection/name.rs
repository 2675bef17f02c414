//! A host's name, which may later lead to another server, even while the old server is alive.
//!
//! ```text
//! open      each connection is noted, with its address and the run of the server there
//! follow    a thread looks the name up at intervals. If a connection leads to an address that is
//!           no longer in the answer, the thread opens a connection by the name
//! moved     if that connection leads to another run, and to no replica, the old connections are
//!           closed, and the client checks all holds
//!
//! Nothing else would end the old connections: an old master that was cut off from the others
//! accepts writes for as long as it lives. The look-up has a thread of its own, since the system
//! gives a look-up no deadline.
//!
//! There is one master: once the client knows that the name no longer leads to an address, it uses
//! no connection to that address, unless the name leads there again.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::server::InfoReply;
use super::socket::{Closer, look_up};
use crate::sync::{Condvar, Mutex};

/// The time between two look-ups of the name.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(5);

/// The name of one host, and the open connections to it.
pub(super) struct HostName {
    host: String,
    port: u16,
    state: Mutex<NameState>,
    ended: Condvar,
    moved: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct NameState {
    open: Vec<Open>,
    /// Addresses to which the name no longer leads.
    left: Vec<SocketAddr>,
    ended: bool,
}

/// An open connection.
struct Open {
    address: SocketAddr,
    server: InfoReply,
    closer: Closer,
}

fn contain(addresses: &[SocketAddr], address: &SocketAddr) -> bool {
    // Ignore the scope of an IPv6 address, because a look-up of the name does not return it.
    addresses.iter().any(|one| (one.ip(), one.port()) == (address.ip(), address.port()))
}

impl HostName {
    pub(super) fn new(host: &str, port: u16) -> Self {
        let (host, state) = (host.to_owned(), Mutex::default());
        Self { host, port, state, ended: Condvar::new(), moved: OnceLock::new() }
    }

    /// Sets the callback for a name that leads to another server. The callback must not block.
    pub(super) fn on_moved(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.moved.set(Box::new(callback));
    }

    /// Ends the thread of [`follow`](Self::follow).
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.ended.notify_all();
    }

    /// Notes a new connection to this run of a server. Returns `false` if the name no longer leads
    /// to the connection's address. Such a connection must not be used.
    pub(super) fn watch(&self, closer: Closer, server: &InfoReply) -> bool {
        let Some(address) = closer.peer() else { return true };
        let mut state = self.state.lock();
        if contain(&state.left, &address) {
            return false;
        }
        state.open.retain(|open| !open.closer.is_done());
        state.open.push(Open { address, server: server.clone(), closer });
        true
    }

    /// The body of the thread that follows the name, until [`end`](Self::end). `connect` opens a
    /// connection to the name, and returns the connection's address and its server.
    pub(super) fn follow(&self, connect: impl Fn() -> Option<(SocketAddr, InfoReply)>) {
        while self.rest() {
            // A failed look-up does not show to which addresses the name leads.
            let Ok(answer) = look_up(&self.host, self.port) else { continue };
            if self.has_left(&answer)
                && let Some((address, server)) = connect()
            {
                self.leads_to(&answer, address, &server);
            }
        }
    }

    /// Sleeps. Returns `false` if the client has ended.
    fn rest(&self) -> bool {
        let until = Instant::now() + self.pause();
        let mut state = self.state.lock();
        while !state.ended && Instant::now() < until {
            self.ended.wait_until(&mut state, until);
        }
        !state.ended
    }

    /// The time between two look-ups.
    fn pause(&self) -> Duration {
        #[cfg(feature = "testing")]
        if crate::testing::led(&self.host).is_some() {
            return crate::testing::LOOK_UP;
        }
        LOOK_UP_INTERVAL
    }

    /// Whether a connection leads to an address that is not in the name's `answer`. This alone does
    /// not show that the server has changed: the same server may have a new address.
    fn has_left(&self, answer: &[SocketAddr]) -> bool {
        let mut state = self.state.lock();
        if answer.is_empty() {
            return false;
        }
        // The name may lead to an address again.
        state.left.retain(|left| !contain(answer, left));
        state.open.retain(|open| !open.closer.is_done());
        state.open.iter().any(|open| !contain(answer, &open.address))
    }

    /// Notes that the name leads to `server`. Closes all connections that lead to other addresses,
    /// unless they lead to the same run of the server.
    fn leads_to(&self, answer: &[SocketAddr], address: SocketAddr, server: &InfoReply) {
        let mut state = self.state.lock();
        let stays = |open: &Open| {
            contain(answer, &open.address) || open.address == address
                // If one of the two servers does not report its run, both may be the same run.
                || !server.says_its_run() || !open.server.says_its_run()
                || open.server.is_same_run(server)
        };
        let gone: Vec<_> = state.open.extract_if(.., |open| !stays(open)).collect();
        // Store the addresses before closing any connection: another thread may be opening a
        // connection to one of these addresses.
        state.left.extend(gone.iter().map(|open| open.address));
        state.left.sort();
        state.left.dedup();
        drop(state);
        if gone.is_empty() {
            return;
        }
        gone.iter().for_each(|open| open.closer.close());
        if let Some(callback) = self.moved.get() {
            callback();
        }
    }
}
