//! The threads of a connection. In each direction, one thread reads bytes, and another thread
//! delivers them when they are due.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::commands::Commands;
use super::connection::{Connection, Replies};
use super::rules::{Action, Direction};
use super::state::Shared;

const CHUNK: usize = 64 * 1024;
/// The number of earlier bytes that a rule for replies sees again, so that it can match a pattern
/// across two reads.
const OVERLAP: usize = 256;
/// The time by which a sleep may be longer than requested, even with the least timer slack. A
/// thread spins for this time instead of sleeping.
const SPIN: Duration = Duration::from_micros(60);
/// If a wait is longer than this time, a cut of the connection must end the wait.
const LONG: Duration = Duration::from_millis(5);

/// An item from a reader to its writer. The channel ends when the sender of the bytes has ended its
/// stream.
pub(super) enum Item {
    /// Bytes to deliver at `due`, but not before the proxy has had `releases` releases.
    Bytes { due: Instant, bytes: Vec<u8>, releases: Option<u64> },
    /// The writer cuts the connection at this point of the stream. The rule then counts as fired.
    Cut,
}

pub(super) struct Pump {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl Pump {
    pub(super) fn new(shared: Arc<Shared>, connection: Arc<Connection>) -> Self {
        Self { shared, connection }
    }

    pub(super) fn read_requests(&self, out: Sender<Item>) {
        let mut commands = Commands::default();
        let mut chunk = vec![0; CHUNK];
        let mut silent = false;
        while let Some(length) = read(&self.connection.client, &mut chunk) {
            if silent {
                continue;
            }
            let due = Instant::now() + self.shared.delay();
            commands.add(&chunk[..length]);
            // Commands that came together are passed on together.
            let mut bytes = Vec::with_capacity(length);
            while let Some(command) = commands.next() {
                self.connection.note(&command);
                self.shared.count_command();
                let action = self.shared.rule_for(Direction::Request, &command);
                if let Some(Action::LateRequest(later)) = action {
                    *self.connection.replies() = Replies::Swallow;
                    let _ = self.connection.client.shutdown(Shutdown::Both);
                    let _ = out.send(Item::Bytes { due, bytes, releases: None });
                    let (due, bytes) = (due + later, command.to_vec());
                    let _ = out.send(Item::Bytes { due, bytes, releases: None });
                    return;
                }
                if action == Some(Action::LoseRequest) {
                    let _ = out.send(Item::Bytes { due, bytes, releases: None });
                    let _ = out.send(Item::Cut);
                    return;
                }
                bytes.extend_from_slice(&command);
                if let Some(action) = action {
                    *self.connection.replies() = self.replies_after(action);
                }
                match action {
                    Some(Action::LoseReply) => {
                        // At the end of the stream, the server runs the commands before the end,
                        // replies to them, and closes the connection. So when the server closes,
                        // all these commands have run.
                        let _ = out.send(Item::Bytes { due, bytes, releases: None });
                        return;
                    }
                    Some(Action::Silence) => {
                        silent = true;
                        break;
                    }
                    _ => {}
                }
            }
            if !bytes.is_empty() && out.send(Item::Bytes { due, bytes, releases: None }).is_err() {
                break;
            }
        }
        if silent {
            self.connection.cut(&self.shared);
        }
    }

    pub(super) fn write_requests(&self, items: &Receiver<Item>) {
        self.deliver(items, &self.connection.upstream, || false);
    }

    pub(super) fn read_replies(&self, out: Sender<Item>) {
        let mut chunk = vec![0; CHUNK];
        let mut seen = Vec::new();
        while let Some(length) = read(&self.connection.upstream, &mut chunk) {
            let mut due = Instant::now() + self.shared.delay();
            let bytes = chunk[..length].to_vec();
            if let Some(action) = self.rule_for_reply(&mut seen, &bytes) {
                match action {
                    Action::LoseRequest | Action::LoseReply | Action::LateRequest(_) => {
                        let _ = out.send(Item::Cut);
                        return;
                    }
                    action => *self.connection.replies() = self.replies_after(action),
                }
            }
            let mut replies = self.connection.replies();
            let mut held = None;
            let fires = match *replies {
                Replies::Pass => false,
                Replies::Swallow => continue,
                Replies::Delay(longer) => {
                    due += longer;
                    *replies = Replies::Pass;
                    true
                }
                Replies::Hold { releases, fired } => {
                    held = Some(releases);
                    *replies = Replies::Hold { releases, fired: true };
                    !fired
                }
                Replies::Silence { fired } => {
                    *replies = Replies::Silence { fired: true };
                    drop(replies);
                    if !fired {
                        self.shared.count_fired();
                    }
                    continue;
                }
            };
            drop(replies);
            let sent = out.send(Item::Bytes { due, bytes, releases: held });
            if fires {
                self.shared.count_fired();
            }
            if sent.is_err() {
                break;
            }
        }
        if *self.connection.replies() == Replies::Swallow {
            let _ = out.send(Item::Cut);
        }
    }

    pub(super) fn write_replies(&self, items: &Receiver<Item>) {
        self.deliver(items, &self.connection.client, || self.shared.trickles());
    }

    fn replies_after(&self, action: Action) -> Replies {
        match action {
            Action::LoseRequest => Replies::Pass,
            Action::LoseReply | Action::LateRequest(_) => Replies::Swallow,
            Action::DelayReply(longer) => Replies::Delay(longer),
            Action::HoldReply => {
                Replies::Hold { releases: self.shared.state().releases + 1, fired: false }
            }
            Action::Silence => Replies::Silence { fired: false },
        }
    }

    fn rule_for_reply(&self, seen: &mut Vec<u8>, bytes: &[u8]) -> Option<Action> {
        if !self.shared.has_rules() {
            seen.clear();
            return None;
        }
        seen.extend_from_slice(bytes);
        let action = self.shared.rule_for(Direction::Reply, seen);
        let kept = if action.is_some() { 0 } else { OVERLAP };
        seen.drain(..seen.len().saturating_sub(kept));
        action
    }

    fn deliver(&self, items: &Receiver<Item>, to: &TcpStream, trickles: impl Fn() -> bool) {
        least_timer_slack();
        for item in items {
            let Item::Bytes { due, bytes, releases } = item else {
                self.connection.cut_and_count(&self.shared, 1);
                return;
            };
            self.wait_for(due, releases);
            if Connection::write(to, &bytes, trickles()).is_err() {
                self.connection.cut(&self.shared);
                return;
            }
        }
        // The end of the stream is delayed like the bytes before it.
        self.wait_for(Instant::now() + self.shared.delay(), None);
        self.connection.end_one_way(&self.shared, to);
    }

    fn wait_for(&self, due: Instant, releases: Option<u64>) {
        let connection = &self.connection;
        if due.saturating_duration_since(Instant::now()) > LONG {
            self.shared.wait(Some(due - LONG), |_| connection.is_closed());
        }
        if !connection.is_closed() {
            sleep_until(due);
        }
        if releases.is_some() || self.shared.is_frozen() {
            self.shared.wait(None, |state| {
                let released = releases.is_none_or(|releases| state.releases >= releases);
                connection.is_closed() || released && !state.frozen
            });
        }
    }
}

/// Reads the available bytes. Returns `None` at the end of the stream.
fn read(mut socket: &TcpStream, chunk: &mut [u8]) -> Option<usize> {
    loop {
        match socket.read(chunk) {
            Ok(0) => return None,
            Ok(length) => return Some(length),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

fn sleep_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > SPIN {
            thread::sleep(left - SPIN);
        } else {
            thread::yield_now();
        }
    }
}

/// Sets the least timer slack. With the usual slack, the system makes each short sleep about 50 us
/// longer.
fn least_timer_slack() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
