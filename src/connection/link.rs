//! One connection and what it still owes: commands written whose replies are not read.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{RedisError, ServerErrorKind, Value};

use super::{Command, Connection, Endpoint};

/// What became of a command: the server's reply (which may be an error reply), or none.
pub(crate) type Outcome = Result<Value, Failure>;

/// Why there is no reply, and what that says of the command.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Never written: nothing happened.
    Unsent(Arc<RedisError>),
    /// The connection broke: it may have run, or not.
    Reset(Arc<RedisError>),
    /// No reply in time: it may have run, or may still.
    TimedOut(Arc<RedisError>),
}

impl Failure {
    pub(crate) fn source(&self) -> &Arc<RedisError> {
        match self {
            Self::Unsent(source) | Self::Reset(source) | Self::TimedOut(source) => source,
        }
    }

    fn after_write(error: RedisError) -> Self {
        if error.is_timeout() {
            Self::TimedOut(Arc::new(error))
        } else {
            Self::Reset(Arc::new(error))
        }
    }
}

/// Who is told of a reply that nobody waits for. Called by whichever thread reads it, with no
/// mutex held; it must not block and must not send.
pub(crate) trait Receiver: Send + Sync {
    fn receive(&self, outcome: Outcome);
}

/// A connection with the commands written to it whose replies are not read yet, in order.
pub(crate) struct Link {
    connection: Connection,
    owed: VecDeque<Owed>,
    response_timeout: Duration,
    /// Whether it is known which run of the server this is.
    recognized: bool,
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
        Self::open_within(endpoint, None)
    }

    /// As [`open`](Self::open), in a time that may be shorter than the connect timeout.
    pub(crate) fn open_within(
        endpoint: &Endpoint,
        within: Option<Duration>,
    ) -> Result<Self, Failure> {
        let opened = endpoint.open_within(within);
        let mut connection = opened.map_err(|error| Failure::Unsent(Arc::new(error)))?;
        let recognized = endpoint.recognize(&mut connection);
        let loading = recognized.map_err(|error| Failure::Unsent(Arc::new(error)))?;
        Ok(Self {
            connection,
            recognized: loading.is_none(),
            owed: VecDeque::new(),
            response_timeout: endpoint.response_timeout(),
            known: Vec::new(),
        })
    }

    /// `false`: not to be kept, or a server that has lost its data would not be found out.
    pub(crate) fn is_recognized(&self) -> bool {
        self.recognized
    }

    /// How many replies are not read.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len()
    }

    /// Writes `command` and reads its reply, and those owed before it on the way.
    ///
    /// After an `Err` the link is of no use any more.
    pub(crate) fn exchange(&mut self, command: &Command) -> Outcome {
        self.write(command.bytes())?;
        let since = Instant::now();
        let mut retried = false;
        loop {
            // Exactly those written before it: one that has to go again as EVAL is owed behind.
            for _ in 0..self.owed.len() {
                let Some(owed) = self.owed.pop_front() else { break };
                self.settle(owed, since)?;
            }
            let reply = self.read(since)?;
            match command.to_eval() {
                Some(eval) if !retried && is_noscript(&reply) => self.write(&eval)?,
                _ => return Ok(reply),
            }
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
            bytes.extend_from_slice(command.bytes());
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
                command.to_eval()
            }
            _ => None,
        };
        let bytes = text.as_deref().unwrap_or_else(|| command.bytes());
        let written = self.connection.send_packed_command(bytes);
        self.owed.push_back(Owed { command, receiver, awaited: false, retried: false });
        written.map_err(|error| self.fail(Failure::after_write(error)))
    }

    /// Reads until no reply is owed that somebody sleeps for; those posted after the last one may
    /// stay unread.
    pub(crate) fn read_awaited(&mut self) -> Result<(), Failure> {
        let mut awaited = self.owed.iter().filter(|owed| owed.awaited).count();
        let since = Instant::now();
        while awaited > 0 {
            let Some(owed) = self.owed.pop_front() else { break };
            let counts = owed.awaited;
            let settled = self.settle(owed, since)?;
            awaited -= usize::from(counts && settled);
        }
        Ok(())
    }

    /// Reads every reply owed, waiting at most `patience` for each.
    pub(crate) fn read_all(&mut self, patience: Duration) -> Result<(), Failure> {
        if self.owed.is_empty() {
            return Ok(());
        }
        self.set_read_timeout(patience)?;
        let since = Instant::now();
        while let Some(owed) = self.owed.pop_front() {
            self.settle(owed, since)?;
        }
        self.set_read_timeout(self.response_timeout)
    }

    /// Reads the reply to `owed` and hands it over. `false`: the server did not know the script,
    /// so the command is owed again, as EVAL and behind all others.
    fn settle(&mut self, owed: Owed, since: Instant) -> Result<bool, Failure> {
        let reply = match self.read(since) {
            Ok(reply) => reply,
            Err(failure) => {
                owed.receiver.receive(Err(failure.clone()));
                return Err(failure);
            }
        };
        if !owed.retried
            && is_noscript(&reply)
            && let Some(eval) = owed.command.to_eval()
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
        let written = self.connection.send_packed_command(bytes);
        written.map_err(|error| self.fail(Failure::after_write(error)))
    }

    /// Reads one reply. The socket's timeout counts anew for each, so a server that dribbles is
    /// measured here: a batch has one deadline, counted from `since`.
    fn read(&mut self, since: Instant) -> Outcome {
        let reply = self.connection.recv_response();
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return Err(self.fail(Failure::after_write(error))),
        };
        if !self.owed.is_empty() && since.elapsed() > self.response_timeout.saturating_mul(2) {
            let slow = io::Error::new(io::ErrorKind::TimedOut, "the batch's replies are too slow");
            return Err(self.fail(Failure::TimedOut(Arc::new(slow.into()))));
        }
        Ok(reply)
    }

    fn set_read_timeout(&mut self, timeout: Duration) -> Result<(), Failure> {
        let set = self.connection.set_read_timeout(Some(timeout));
        set.map_err(|error| self.fail(Failure::after_write(error)))
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
            self.fail(Failure::Reset(Arc::new(closed.into())));
        }
    }
}

pub(super) fn is_noscript(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
