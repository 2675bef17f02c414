//! One connection through the proxy.

use std::collections::HashSet;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::pump::Pump;
use super::state::Shared;
use super::{commands, rules};

/// The proxy stores at least this many of a client's last bytes.
const REMEMBERED: usize = 64 * 1024;

/// How the proxy treats replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replies {
    Pass,
    /// Drops replies until the server has closed the connection. The proxy then cuts the
    /// connection, and the rule counts as fired.
    Swallow,
    /// Delays the next reply.
    Delay(Duration),
    /// Holds replies back until the proxy was released `releases` times.
    Hold {
        releases: u64,
        fired: bool,
    },
    /// Drops replies.
    Silence {
        fired: bool,
    },
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: TcpStream,
    pub(super) upstream: TcpStream,
    closed: AtomicBool,
    half_closed: AtomicBool,
    replies: Mutex<Replies>,
    sent: Mutex<Sent>,
}

#[derive(Debug, Default)]
struct Sent {
    names: HashSet<String>,
    last: Vec<u8>,
}

impl Connection {
    /// Takes over both sockets. The threads end when both sides have closed, or when the connection
    /// is cut.
    pub(super) fn start(
        client: TcpStream,
        upstream: TcpStream,
        shared: &Arc<Shared>,
    ) -> io::Result<(Arc<Self>, [JoinHandle<()>; 4])> {
        client.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        let connection = Arc::new(Self {
            client,
            upstream,
            closed: AtomicBool::new(false),
            half_closed: AtomicBool::new(false),
            replies: Mutex::new(Replies::Pass),
            sent: Mutex::default(),
        });
        let (requests_in, requests_out) = channel();
        let (replies_in, replies_out) = channel();
        let pumps = [(); 4].map(|()| Pump::new(shared.clone(), connection.clone()));
        let [request_reader, request_writer, reply_reader, reply_writer] = pumps;
        let threads = [
            thread::spawn(move || request_reader.read_requests(requests_in)),
            thread::spawn(move || request_writer.write_requests(&requests_out)),
            thread::spawn(move || reply_reader.read_replies(replies_in)),
            thread::spawn(move || reply_writer.write_replies(&replies_out)),
        ];
        Ok((connection, threads))
    }

    /// Closes both sides at once.
    pub(super) fn cut(&self, shared: &Shared) {
        self.cut_and_count(shared, 0);
    }

    /// Like [`cut`](Self::cut), but also counts `fired` rules before a thread can notice the cut.
    pub(super) fn cut_and_count(&self, shared: &Shared, fired: usize) {
        // Change the state under the mutex, so that a thread that is about to wait does not miss
        // the change.
        shared.change(|state| {
            state.fired += fired;
            self.closed.store(true, Ordering::SeqCst);
        });
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.upstream.shutdown(Shutdown::Both);
    }

    /// Records that one direction has ended. The end of the second direction closes the connection.
    pub(super) fn end_one_way(&self, shared: &Shared, to: &TcpStream) {
        let _ = to.shutdown(Shutdown::Write);
        if self.half_closed.swap(true, Ordering::SeqCst) {
            self.cut(shared);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn replies(&self) -> MutexGuard<'_, Replies> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, command: &[u8]) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = commands::name(command)
            && !sent.names.contains(&name)
        {
            sent.names.insert(name);
        }
        if sent.last.len() > 2 * REMEMBERED {
            sent.last.drain(..REMEMBERED);
        }
        sent.last.extend_from_slice(command);
    }

    /// Whether the client has recently sent these bytes, or has ever sent them as a part of a
    /// command's name.
    pub(super) fn has_sent(&self, pattern: &[u8]) -> bool {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.names.iter().any(|name| rules::contains(name.as_bytes(), pattern))
            || rules::contains(&sent.last, pattern)
    }

    pub(super) fn write(mut socket: &TcpStream, bytes: &[u8], trickle: bool) -> io::Result<()> {
        if !trickle {
            return socket.write_all(bytes);
        }
        for byte in bytes.chunks(1) {
            socket.write_all(byte)?;
            // Without the pause, the system on the other side would join the bytes again.
            thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }
}
