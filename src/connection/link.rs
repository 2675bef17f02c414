//! One connection and what it still owes: commands written whose replies are not read.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, ServerErrorKind, Value};

use super::reply::is_wrong_server;
use super::{Channels, Command, Connection, Endpoint, Health};
use crate::sync::clock;

/// A connection that has been silent for longer is looked at before it is trusted with a command: a
/// firewall on the way may have forgotten it, and then the command's outcome would not be known.
const TRUSTED: u64 = 10_000_000_000;
/// What such a look may take, besides twice the time that opening the connection took.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// What became of a command: the server's reply (which may be an error reply), or none.
pub(crate) type Outcome = Result<Value, Failure>;

/// Why there is no reply, and what that says of the command.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Never written: nothing happened.
    Unsent(Cause),
    /// The connection broke: it may have run, or not.
    Reset(Cause),
    /// No reply in time: it may have run, or may still.
    TimedOut(Cause),
}

/// What went wrong, and with which server.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) error: Arc<RedisError>,
    pub(crate) address: Arc<str>,
}

impl Cause {
    pub(super) fn new(error: impl Into<RedisError>, health: &Health) -> Self {
        Self { error: Arc::new(error.into()), address: health.address() }
    }
}

impl Failure {
    pub(crate) fn cause(&self) -> &Cause {
        match self {
            Self::Unsent(cause) | Self::Reset(cause) | Self::TimedOut(cause) => cause,
        }
    }

    fn after_write(error: RedisError, health: &Health) -> Self {
        let timed_out = error.is_timeout();
        let cause = Cause::new(error, health);
        if timed_out { Self::TimedOut(cause) } else { Self::Reset(cause) }
    }
}

/// Who is told of a reply that nobody waits for. Called by whichever thread reads it, with no
/// mutex held; it must not block and must not send.
pub(crate) trait Receiver: Send + Sync {
    fn receive(&self, outcome: Outcome);
}

impl<F: Fn(Outcome) + Send + Sync> Receiver for F {
    fn receive(&self, outcome: Outcome) {
        self(outcome);
    }
}

/// A connection with the commands written to it whose replies are not read yet, in order.
pub(crate) struct Link {
    connection: Connection,
    owed: VecDeque<Owed>,
    response_timeout: Duration,
    channels: Channels,
    health: Arc<Health>,
    /// Until its first reply that is none of a wrong server.
    untold: Option<Endpoint>,
    wrote_at: Instant,
    /// When it was last heard of, on [`clock`].
    heard_at: u64,
    /// How long it took to open: a few round trips.
    opened_in: Duration,
    /// A reply said that this server is not the one to ask.
    is_wrong: bool,
    /// The scripts that this link has used: the server knows them.
    known: Vec<usize>,
}

struct Owed {
    command: Command,
    receiver: Arc<dyn Receiver>,
    /// Whether somebody sleeps until it is read.
    awaited: bool,
    /// Whether it went again as EVAL.
    retried: bool,
}

impl Link {
    pub(crate) fn open(endpoint: &Endpoint) -> Result<Self, Failure> {
        Self::open_within(endpoint, endpoint.connect_timeout())
    }

    /// As [`open`](Self::open), in a time that may be shorter than the connect timeout.
    pub(crate) fn open_within(endpoint: &Endpoint, within: Duration) -> Result<Self, Failure> {
        let begun = Instant::now();
        let opened = endpoint.open_within(within);
        let connection =
            opened.map_err(|error| Failure::Unsent(Cause::new(error, endpoint.health())))?;
        Ok(Self {
            connection,
            owed: VecDeque::new(),
            response_timeout: endpoint.response_timeout(),
            channels: endpoint.channels(),
            health: Arc::clone(endpoint.health()),
            untold: Some(endpoint.clone()),
            wrote_at: begun,
            heard_at: clock::now(),
            opened_in: begun.elapsed(),
            is_wrong: false,
            known: Vec::new(),
        })
    }

    /// The server is not the one to ask, or not now: the link must not be kept, and the next one
    /// looks the address up anew.
    pub(crate) fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// Whether it can be trusted with a command. After a `false` it is of no use any more.
    pub(crate) fn is_alive(&mut self) -> bool {
        // One master: where another server has taken over, nothing more is written to this one.
        if self.connection.is_closed() {
            return false;
        }
        if clock::now().saturating_sub(self.heard_at) < TRUSTED {
            return true;
        }
        let until = deadline_in(self.at_least(SHORTEST_LOOK));
        self.write(Command::plain(&[b"PING"]).bytes()).is_ok()
            && self.settle_all(until).is_ok()
            && self.read(until).is_ok()
    }

    /// This time, or longer where the server is far off; never longer than for any reply.
    pub(crate) fn at_least(&self, patience: Duration) -> Duration {
        self.opened_in.saturating_mul(2).max(patience).min(self.response_timeout)
    }

    /// How many replies are not read.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len()
    }

    /// Writes `command` and reads its reply, and those owed before it on the way.
    ///
    /// After an `Err` the link is of no use any more.
    pub(crate) fn exchange(&mut self, command: &Command) -> Outcome {
        self.write(&command.bytes_for(self.channels))?;
        let mut retried = false;
        loop {
            let until = deadline_in(self.response_timeout);
            self.settle_all(until)?;
            let reply = self.read(until)?;
            if retried || !is_noscript(&reply) {
                return Ok(reply);
            }
            let Some(eval) = command.to_eval(self.channels) else { return Ok(reply) };
            self.write(&eval)?;
            retried = true;
        }
    }

    /// Writes commands in one packet, their replies owed. After an `Err` the link is of no use,
    /// and each command's receiver has heard so.
    pub(crate) fn send(
        &mut self,
        batch: impl IntoIterator<Item = (Command, Arc<dyn Receiver>, bool)>,
    ) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        for (command, receiver, awaited) in batch {
            bytes.extend_from_slice(&command.bytes_for(self.channels));
            // Owed before it is written: whatever goes wrong from here on, its receiver hears.
            self.owed.push_back(Owed { command, receiver, awaited, retried: false });
        }
        self.write(&bytes)
    }

    /// As [`send`](Self::send), for a single command.
    pub(crate) fn send_one(
        &mut self,
        command: Command,
        receiver: Arc<dyn Receiver>,
    ) -> Result<(), Failure> {
        // By its text the first time: a script that the server does not know yet would have to be
        // sent again, behind the next command of its name, which it must come before.
        let text = match command.script_id() {
            Some(script) if !self.known.contains(&script) => {
                self.known.push(script);
                command.to_eval(self.channels)
            }
            _ => None,
        };
        let bytes = text.map_or_else(|| command.bytes_for(self.channels), Cow::Owned);
        self.wrote_at = Instant::now();
        let written = self.connection.send_packed_command(&bytes, self.wrote_at);
        drop(bytes);
        self.owed.push_back(Owed { command, receiver, awaited: false, retried: false });
        written.map_err(|error| self.fail(Failure::after_write(error, &self.health)))
    }

    /// Reads until no reply is owed that somebody sleeps for; those posted after the last one may
    /// stay unread.
    pub(crate) fn read_awaited(&mut self) -> Result<(), Failure> {
        self.read_awaited_within(self.response_timeout)
    }

    /// As [`read_awaited`](Self::read_awaited), and not longer than this.
    pub(crate) fn read_awaited_within(&mut self, patience: Duration) -> Result<(), Failure> {
        let mut awaited = self.owed.iter().filter(|owed| owed.awaited).count();
        let mut until = deadline_in(patience);
        while awaited > 0 {
            let Some(owed) = self.owed.pop_front() else { break };
            let counts = owed.awaited;
            if self.settle(owed, until)? {
                awaited -= usize::from(counts);
            } else {
                // It was sent anew just now.
                until = deadline_in(patience);
            }
        }
        Ok(())
    }

    /// Reads every reply owed, waiting at most `patience` for each, and ten times that for all.
    pub(crate) fn read_all(&mut self, patience: Duration) -> Result<(), Failure> {
        let last = deadline_in(patience.saturating_mul(10));
        while let Some(owed) = self.owed.pop_front() {
            self.settle(owed, deadline_in(patience).min(last))?;
        }
        Ok(())
    }

    /// Reads exactly the replies owed now: a command that has to go again as `EVAL` is owed behind
    /// whatever was written after it.
    fn settle_all(&mut self, until: Instant) -> Result<(), Failure> {
        for _ in 0..self.owed.len() {
            let Some(owed) = self.owed.pop_front() else { break };
            self.settle(owed, until)?;
        }
        Ok(())
    }

    /// Reads the reply to `owed` and hands it over. `false`: the server did not know the script,
    /// so the command is owed again, as EVAL and behind all others.
    fn settle(&mut self, owed: Owed, until: Instant) -> Result<bool, Failure> {
        let reply = match self.read(until) {
            Ok(reply) => reply,
            Err(failure) => {
                owed.receiver.receive(Err(failure.clone()));
                return Err(failure);
            }
        };
        if !owed.retried
            && is_noscript(&reply)
            && let Some(eval) = owed.command.to_eval(self.channels)
        {
            // The scripts were flushed: of none is it known any more.
            self.known.clear();
            self.owed.push_back(Owed { retried: true, ..owed });
            self.write(&eval)?;
            return Ok(false);
        }
        owed.receiver.receive(Ok(reply));
        Ok(true)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.wrote_at = Instant::now();
        let written = self.connection.send_packed_command(bytes, self.wrote_at);
        written.map_err(|error| self.fail(Failure::after_write(error, &self.health)))
    }

    /// Reads one reply. All of a batch have one deadline, so a server that dribbles is found out.
    fn read(&mut self, until: Instant) -> Outcome {
        match self.connection.receive_until(until) {
            Ok(reply) => {
                self.is_wrong |= is_wrong_server(&reply);
                // Not before: orphans would be sent, find it wrong, open the next one, and so on.
                if !self.is_wrong
                    && let Some(endpoint) = self.untold.take()
                {
                    endpoint.answers();
                }
                // The last one, to what was written last: others may have lain here for long.
                if self.owed.is_empty() {
                    self.heard_at = clock::now();
                    self.health.works(self.wrote_at);
                }
                Ok(reply)
            }
            Err(error) => {
                // Not the short patience for replies that nobody waits for.
                if error.is_timeout() && self.wrote_at.elapsed() >= self.response_timeout {
                    self.health.failed(self.wrote_at, &error);
                }
                Err(self.fail(Failure::after_write(error, &self.health)))
            }
        }
    }

    /// Tells everybody who is owed a reply that none will come.
    fn fail(&mut self, failure: Failure) -> Failure {
        for owed in self.owed.drain(..) {
            owed.receiver.receive(Err(failure.clone()));
        }
        failure
    }
}

impl Drop for Link {
    /// Whatever way a link goes, a panic included, nobody is left asleep.
    fn drop(&mut self) {
        if !self.owed.is_empty() {
            let closed = io::Error::new(io::ErrorKind::ConnectionAborted, "connection closed");
            self.fail(Failure::Reset(Cause::new(closed, &self.health)));
        }
    }
}

fn deadline_in(time: Duration) -> Instant {
    // No timeout is longer than a year.
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}

fn is_noscript(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
