//! The client's connection for subscriptions, and the thread that dispatches its messages.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, Parser, RedisError, RedisResult, Value, cmd,
};

use super::wakeups::Wakeups;

/// The meaning of a channel's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `0` wakes one waiter, `1` wakes all waiters.
    Lock,
    /// A message is the number of free permits.
    Semaphore,
    /// `0` opens the latch, `1` closes it.
    Latch,
}

struct Entry {
    kind: Kind,
    waiters: usize,
    wakeups: Arc<Wakeups>,
}

pub(super) struct Subscriber {
    board: Arc<Board>,
    thread: Option<JoinHandle<()>>,
}

struct Board {
    stream: TcpStream,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<String, Entry>,
    broken: bool,
}

/// A waiter's part in a subscription. The drop of the last part unsubscribes.
pub(super) struct Subscription {
    board: Arc<Board>,
    channel: String,
    pub(super) wakeups: Arc<Wakeups>,
}

impl Subscriber {
    pub(super) fn connect(info: &ConnectionInfo) -> RedisResult<Self> {
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            let what = "the baseline needs a redis:// URL";
            return Err(RedisError::from((ErrorKind::InvalidClientConfig, what)));
        };
        let mut stream = TcpStream::connect((host.as_str(), *port))?;
        stream.set_nodelay(true)?;
        let mut parser = Parser::new();
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = cmd("AUTH");
            if let Some(user) = settings.username() {
                auth.arg(user);
            }
            stream.write_all(&auth.arg(password).get_packed_command())?;
            parser.parse_value(&stream)?.extract_error()?;
        }
        let board = Arc::new(Board { stream, state: Mutex::default() });
        let thread = {
            let board = board.clone();
            thread::spawn(move || board.dispatch(parser))
        };
        Ok(Self { board, thread: Some(thread) })
    }

    /// Adds a waiter to a channel, and blocks until the subscription is confirmed.
    pub(super) fn subscribe(&self, channel: &str, kind: Kind) -> RedisResult<Subscription> {
        let mut state = self.board.state();
        if state.broken {
            let what = "the subscriptions' connection is gone";
            return Err(RedisError::from((ErrorKind::Io, what)));
        }
        let wakeups = if let Some(entry) = state.entries.get_mut(channel) {
            entry.waiters += 1;
            entry.wakeups.clone()
        } else {
            let wakeups = Arc::new(Wakeups::default());
            let entry = Entry { kind, waiters: 1, wakeups: wakeups.clone() };
            state.entries.insert(channel.to_owned(), entry);
            self.board.send("SUBSCRIBE", channel);
            wakeups
        };
        drop(state);
        let board = self.board.clone();
        let subscription = Subscription { board, channel: channel.to_owned(), wakeups };
        subscription.wakeups.wait_confirmed()?;
        Ok(subscription)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.board.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.board.state();
        let Some(entry) = state.entries.get_mut(&self.channel) else {
            return;
        };
        entry.waiters -= 1;
        if entry.waiters == 0 {
            state.entries.remove(&self.channel);
            // One connection keeps the order of commands, so a new subscription may follow at once.
            self.board.send("UNSUBSCRIBE", &self.channel);
        }
    }
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command. The caller has the state's mutex, so that commands keep their order. If the
    /// write fails, the reading thread notices the failure.
    fn send(&self, command: &str, channel: &str) {
        let _ = (&self.stream).write_all(&cmd(command).arg(channel).get_packed_command());
    }

    fn dispatch(&self, mut parser: Parser) {
        while let Ok(value) = parser.parse_value(&self.stream) {
            let Some((what, channel, payload)) = parts(&value) else {
                continue;
            };
            let state = self.state();
            let Some(entry) = state.entries.get(channel) else {
                continue;
            };
            match what {
                b"subscribe" => entry.wakeups.confirm(),
                b"message" => entry.deliver(payload),
                _ => {}
            }
        }
        let mut state = self.state();
        state.broken = true;
        for entry in state.entries.values() {
            entry.wakeups.break_off();
        }
    }
}

impl Entry {
    fn deliver(&self, payload: Option<i64>) {
        match (self.kind, payload) {
            (Kind::Lock, Some(0)) => self.wakeups.release(1),
            (Kind::Lock, Some(1)) => self.wakeups.release(self.waiters),
            (Kind::Semaphore, Some(permits)) if permits > 0 => {
                let permits = usize::try_from(permits).unwrap_or(usize::MAX);
                self.wakeups.release(permits.min(self.waiters));
            }
            (Kind::Latch, Some(message)) => self.wakeups.set_open(message == 0),
            _ => {}
        }
    }
}

/// Returns the kind of push, the channel, and the message, which is a number.
fn parts(value: &Value) -> Option<(&[u8], &str, Option<i64>)> {
    let Value::Array(items) = value else {
        return None;
    };
    let [Value::BulkString(what), Value::BulkString(channel), payload] = items.as_slice() else {
        return None;
    };
    let number = match payload {
        Value::BulkString(text) => std::str::from_utf8(text).ok().and_then(|it| it.parse().ok()),
        _ => None,
    };
    Some((what, std::str::from_utf8(channel).ok()?, number))
}
