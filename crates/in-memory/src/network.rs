//! The server's connections. A test says how often they may break.
//!
//! The server replies at once, in the order of the requests. If a read in a model can never end,
//! the model reports this.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redlatch_client::sync::{Condvar, Mutex, clock};
use redlatch_client::{Dialer, IoDirection, Transport};

use crate::machine::{Faults, Keys, Redis};
use crate::peers::{Peer, Peers};
use crate::resp::split;

/// A server to which connections lead.
#[derive(Debug)]
pub struct Server<K> {
    state: Mutex<State<K>>,
    /// Whether the connection may accept no bytes, or only some bytes, of a write. If the
    /// connection accepts too few bytes, a background thread must write the others. Most models
    /// have no background thread.
    has_little_room: AtomicBool,
    /// A function that returns a random number from zero to its argument.
    chance: fn(usize) -> usize,
}

#[derive(Debug)]
struct State<K> {
    redis: Redis<K>,
    clock: Clock,
    /// The number of times that a connection may still break.
    breaks: usize,
}

/// A server's clock. The clock shows µs since 1970.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Still(i64),
    /// A clock that showed this time at this instant, and runs since then.
    Runs(i64, Instant),
}

impl Clock {
    fn now(self) -> i64 {
        match self {
            Self::Still(now) => now,
            Self::Runs(began, since) => began.saturating_add(micros(since.elapsed())),
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl<K: Keys> Server<K> {
    /// Starts a server whose connections break at most `breaks` times. Its clock stays at `now`
    /// (ms).
    pub fn start(
        redis: Redis<K>,
        now: i64,
        breaks: usize,
        chance: fn(usize) -> usize,
    ) -> Arc<Self> {
        let clock = Clock::Still(now * 1_000);
        let state = Mutex::new(State { redis, clock, breaks });
        Arc::new(Self { state, has_little_room: AtomicBool::new(false), chance })
    }

    /// Starts a server without random behaviour. Its clock shows `now`, in µs, and runs.
    pub fn run(redis: Redis<K>, now: i64) -> Arc<Self> {
        let clock = Clock::Runs(now, Instant::now());
        let state = Mutex::new(State { redis, clock, breaks: 0 });
        Arc::new(Self { state, has_little_room: AtomicBool::new(false), chance: |most| most })
    }

    /// A dialer that leads all connections of a client to this server.
    pub fn dialer(self: &Arc<Self>) -> Dialer {
        let server = Arc::clone(self);
        Dialer::new(move |_, _| {
            let mut state = server.state.lock();
            let is_out = state.redis.faults.is_out;
            if is_out || server.breaks(&mut state) {
                state.redis.faults.unopened += u64::from(is_out);
                return Err(broken());
            }
            let peer = state.redis.open();
            let news = state.redis.peers.get(peer).map(|peer| Arc::clone(&peer.news));
            drop(state);
            let (news, read_timeout) = (news.unwrap_or_default(), AtomicU64::new(u64::MAX));
            Ok(Box::new(ServerEnd { server: Arc::clone(&server), peer, news, read_timeout }))
        })
    }

    /// Reads the keys, or changes them as another client would.
    pub fn with<R>(&self, act: impl FnOnce(&mut K, &mut Peers, i64) -> R) -> R {
        let mut state = self.state.lock();
        let now = state.clock.now();
        let Redis { keys, peers, .. } = &mut state.redis;
        act(keys, peers, now)
    }

    /// Sets the faults of the server.
    pub fn with_faults<R>(&self, set: impl FnOnce(&mut Faults) -> R) -> R {
        self.state.lock().redis.with_faults(set)
    }

    /// Lets time pass on the server's clock.
    pub fn advance(&self, time: Duration) {
        let mut state = self.state.lock();
        let (Clock::Still(now) | Clock::Runs(now, _)) = &mut state.clock;
        *now = now.saturating_add(micros(time));
        // Readers check again which of their tracked keys have ended.
        for peer in state.redis.peers.each() {
            peer.news.notify_all();
        }
    }

    /// After this call, the connection may accept no bytes, or only some bytes, of a write.
    pub fn has_little_room(&self) {
        self.has_little_room.store(true, Ordering::SeqCst);
    }

    /// The texts sent with `ECHO`, in the order of arrival.
    pub fn echoed(&self) -> Vec<Vec<u8>> {
        self.state.lock().redis.echoed.clone()
    }

    /// `SCRIPT FLUSH`.
    pub fn forget_scripts(&self) {
        self.state.lock().redis.scripts.clear();
    }

    /// Breaks the connections of subscribers.
    pub fn break_subscribers(&self) {
        let peers = &mut self.state.lock().redis.peers;
        peers.each().filter(|peer| !peer.channels.is_empty()).for_each(Peer::break_off);
    }

    /// Whether a connection breaks now.
    fn breaks(&self, state: &mut State<K>) -> bool {
        let breaks = state.breaks > 0 && (self.chance)(9) < 3;
        state.breaks -= usize::from(breaks);
        breaks
    }
}

/// A connection to the server.
struct ServerEnd<K: Keys> {
    server: Arc<Server<K>>,
    peer: usize,
    news: Arc<Condvar>,
    /// The timeout of reads, in ns.
    read_timeout: AtomicU64,
}

impl<K: Keys> ServerEnd<K> {
    /// Waits until there are bytes to read or the connection breaks. Returns `None` if the time
    /// ends first.
    fn with_peer<R>(&self, within: Duration, read: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        let mut state = self.server.state.lock();
        // Most replies have already arrived, so the clock is not read for them.
        let mut until = None;
        loop {
            let peer = state.redis.peers.get(self.peer)?;
            if !peer.replies.is_empty() || peer.broken {
                return Some(read(peer));
            }
            let until = *until.get_or_insert_with(|| Instant::now().checked_add(within));
            // The end of a tracked key is an event for the reader, too.
            let now = state.clock.now();
            let ends = state.redis.expire(self.peer, now);
            if state.redis.peers.get(self.peer)?.replies.is_empty() {
                let left =
                    until.map_or(within, |until| until.saturating_duration_since(Instant::now()));
                let pause = ends.and_then(|ends| u64::try_from(ends - now + 1).ok());
                let pause = pause.map_or(left, |pause| left.min(Duration::from_micros(pause)));
                if self.news.wait_for(&mut state, pause).timed_out() && pause >= left {
                    return None;
                }
            }
        }
    }
}

impl<K: Keys> Transport for ServerEnd<K> {
    /// Reads at most one reply, so that the reader may leave after each reply.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let within = Duration::from_nanos(self.read_timeout.load(Ordering::Relaxed));
        let read = self.with_peer(within, |peer| {
            let reply = peer.replies.front_mut()?;
            let length = reply.len().min(buffer.len());
            buffer[..length].copy_from_slice(&reply[..length]);
            if length == reply.len() {
                peer.replies.pop_front();
            } else {
                reply.drain(..length);
            }
            Some(length)
        });
        match read {
            Some(Some(length)) => Ok(length),
            Some(None) => Err(broken()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let server = &self.server;
        let mut state = server.state.lock();
        let peer = state.redis.peers.get(self.peer).ok_or_else(broken)?;
        if peer.broken {
            return Err(broken());
        }
        let all = if peer.commands.is_empty() {
            Cow::Borrowed(bytes)
        } else {
            Cow::Owned([&std::mem::take(&mut peer.commands), bytes].concat())
        };
        let (commands, rest) = split(&all);
        // If the connection breaks now, the server runs some of the commands, and replies to some
        // of those that it ran. The writer may get an error.
        let breaks = server.breaks(&mut state);
        let run = if breaks { (server.chance)(commands.len()) } else { commands.len() };
        let answered = if breaks { (server.chance)(run) } else { run };
        let now = state.clock.now();
        for (at, command) in commands[..run].iter().enumerate() {
            // A lost reply has broken the connection.
            if state.redis.peers.get(self.peer).is_none_or(|peer| peer.broken) {
                break;
            }
            if at < answered {
                state.redis.answer(self.peer, now, command);
            } else {
                state.redis.run(self.peer, now, command);
            }
        }
        state.redis.peers.change(self.peer, |peer| {
            peer.commands.extend_from_slice(rest);
            if breaks {
                peer.break_off();
            }
        });
        drop(state);
        if breaks && (server.chance)(1) == 0 { Err(broken()) } else { Ok(bytes.len()) }
    }

    /// The connection may accept no bytes, or only some of the bytes.
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        if !self.server.has_little_room.load(Ordering::SeqCst) {
            return self.write(bytes);
        }
        match (self.server.chance)(2) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            1 => self.write(&bytes[..(self.server.chance)(bytes.len())]),
            _ => self.write(bytes),
        }
    }

    fn set_timeout(&self, way: IoDirection, timeout: Duration) -> io::Result<()> {
        if let IoDirection::Read = way {
            self.read_timeout.store(clock::nanos(timeout), Ordering::Relaxed);
        }
        Ok(())
    }

    /// As on a network, a reply may be late, and the connection may accept no bytes for a while.
    fn is_ready(&self, way: IoDirection, within: Duration) -> io::Result<bool> {
        let may_be_late = match way {
            IoDirection::Read => true,
            IoDirection::Write => self.server.has_little_room.load(Ordering::SeqCst),
        };
        if may_be_late && (self.server.chance)(1) == 0 {
            return Ok(false);
        }
        match way {
            IoDirection::Read => Ok(self.with_peer(within, |_| ()).is_some()),
            IoDirection::Write => Ok(true),
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        self.server.state.lock().redis.peers.change(self.peer, Peer::break_off);
        Ok(())
    }

    fn peer(&self) -> Option<SocketAddr> {
        None
    }
}

impl<K: Keys> Drop for ServerEnd<K> {
    fn drop(&mut self) {
        if let Some(peer) = self.server.state.lock().redis.peers.all.get_mut(self.peer) {
            *peer = None;
        }
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the server in this process broke it")
}
