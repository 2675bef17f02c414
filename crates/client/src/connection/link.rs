//! One connection and its owed replies. A reply is owed if its command is written and no thread has
//! read the reply.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::ReplicaAcks;
use super::limit::{Limit, deadline_in, later};
use super::outcome::{Cause, Failure, Outcome, ReplyReceiver};
use super::reply::is_wrong_server_reply;
use super::server::Run;
use super::{Channels, Command, Connection, Endpoint, ServerHealth};
use crate::sync::{Mutex, clock};

mod acknowledgements;
mod rights;

use self::acknowledgements::Acknowledgements;
use self::rights::{KnownRights, SentRightsQuery};

/// The silence in nanoseconds after which a connection is tested before a command uses it. Without
/// the test, a command over a connection that a firewall has dropped would have an unknown outcome.
const TRUST_FOR: u64 = 10_000_000_000;
/// The shortest time limit for the test of a silent connection. The usual limit is twice the time
/// that opening the connection took.
const MIN_TEST_TIME: Duration = Duration::from_millis(100);

/// A command, the receiver of its reply, and whether a thread sleeps until the reply is read.
pub(super) type Outgoing = (Command, Arc<dyn ReplyReceiver>, bool);

/// A connection, with the written commands whose replies are not read yet, in their order.
pub struct Link {
    connection: Connection,
    run: Run,
    owed: VecDeque<Owed>,
    acknowledgements: Acknowledgements,
    /// The start of the server's present silence: the time of the oldest write without a reply, or
    /// of the last write before the last reply that was read, whichever is later.
    owes_since: Instant,
    /// Whether the reader has left, so that a thread may sleep for a reply that no thread reads.
    reader_left: bool,
    response_timeout: Duration,
    channels: Channels,
    health: Arc<ServerHealth>,
    /// The server's address. With Sentinels, the next link may have another address.
    address: Arc<str>,
    /// The endpoint, until the link reports the first reply by the right server to it.
    unreported: Option<Endpoint>,
    wrote_at: Instant,
    /// The time, on [`clock`], when the link was last known or tested to be alive before a command
    /// was written.
    trusted_at: u64,
    /// The latest `trusted_at` of a command with a reply: the server was alive at this time or
    /// later.
    alive_at: u64,
    /// The time that opening the link took, which is a few round trips.
    opened_in: Duration,
    /// Whether a reply said that this server is the wrong one.
    is_wrong_server: bool,
    /// The scripts that the server knows, because this link has sent their text.
    known_scripts: Vec<usize>,
    rights: KnownRights,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({}, {} owed)", self.address, self.owed.len())
    }
}

struct Owed {
    command: Command,
    /// `None` for an ASKING, and for a WAIT, whose reply decides about all commands before it.
    receiver: Option<Arc<dyn ReplyReceiver>>,
    /// Whether a thread sleeps until the reply is read.
    awaited: bool,
    /// Whether the command was sent again, as EVAL.
    retried: bool,
    /// The link's `trusted_at` when the command was written. The time when the reply is read proves
    /// nothing, because the reply may have arrived long before.
    trusted_at: u64,
    /// The position of the command's first byte among all bytes of the connection. The command ends
    /// where the next command begins.
    begins_at: u64,
    asked: Option<SentRightsQuery>,
}

impl Link {
    /// Opens a connection within the endpoint's connect timeout.
    pub fn open(endpoint: &Endpoint) -> Result<Self, Failure> {
        Self::open_within(endpoint, endpoint.connect_timeout())
    }

    /// Like [`open`](Self::open), but with a time limit that may be shorter than the connect
    /// timeout.
    pub(crate) fn open_within(endpoint: &Endpoint, within: Duration) -> Result<Self, Failure> {
        let begun = Instant::now();
        let opened = endpoint.open_within(within);
        let (connection, run) =
            opened.map_err(|error| Failure::Unsent(Cause::new(error, endpoint.health())))?;
        Ok(Self {
            connection,
            run,
            owed: VecDeque::new(),
            acknowledgements: Acknowledgements::new(begun),
            owes_since: begun,
            reader_left: false,
            response_timeout: endpoint.response_timeout(),
            channels: endpoint.channels(),
            health: Arc::clone(endpoint.health()),
            address: endpoint.health().address(),
            unreported: Some(endpoint.clone()),
            wrote_at: begun,
            trusted_at: clock::now(),
            alive_at: clock::now(),
            opened_in: begun.elapsed(),
            is_wrong_server: false,
            known_scripts: Vec::new(),
            rights: KnownRights::new(endpoint.is_in_memory()),
        })
    }

    /// Whether a reply said that this is the wrong server. A link to a wrong server must be closed:
    /// the next link looks the address up again.
    pub fn is_wrong_server(&self) -> bool {
        self.is_wrong_server
    }

    /// Whether a command may be sent over the link. After a long silence, tests the link with a
    /// PING. After `false`, the link must not be used.
    pub fn check_alive(&mut self) -> bool {
        if self.check_trusted() {
            return true;
        }
        if self.connection.is_closed() || !self.run.is_last() {
            return false;
        }
        let until = self.deadline_in(self.at_least(MIN_TEST_TIME));
        self.wrote_at = Instant::now();
        if let Err(error) = self.connection.send_until(Command::plain(&[b"PING"]).bytes(), until) {
            self.fail(self.after_write(error));
            return false;
        }
        self.read_owed_now(until).is_ok() && self.read(until).is_ok()
    }

    /// Whether a command may be sent over the link without a test.
    pub(super) fn check_trusted(&mut self) -> bool {
        // There is only one master. If the client has connected to a later run, this link must not
        // be used.
        if self.connection.is_closed() || !self.run.is_last() {
            return false;
        }
        self.trusted_at = clock::now();
        self.trusted_at.saturating_sub(self.alive_at) < TRUST_FOR
    }

    /// Returns a time, on [`clock`], at which the server was alive, or zero while replies wait for
    /// replicas.
    pub(super) fn alive_at(&self) -> u64 {
        if self.acknowledgements.is_empty() { self.alive_at } else { 0 }
    }

    /// Returns `patience`, or twice the time that opening the link took if that is longer, but at
    /// most `response_timeout`.
    pub fn at_least(&self, patience: Duration) -> Duration {
        self.opened_in.saturating_mul(2).max(patience).min(self.response_timeout)
    }

    /// Whether a call must read the owed replies before it writes: see
    /// [`Command::reply_before_next`].
    pub(super) fn reads_first(&self) -> bool {
        self.owed.iter().any(|owed| owed.command.is_reply_before_next())
    }

    /// The number of replies that are not read.
    pub(crate) fn owed(&self) -> usize {
        self.owed.len()
    }

    /// Returns the length of the server's present silence, if a reply is owed.
    pub(super) fn silent_for(&self) -> Duration {
        self.owes_since.elapsed()
    }

    /// Reads the owed replies, writes `command`, and reads its reply.
    ///
    /// After a failure that [breaks the link](Failure::is_the_links), the link must not be used.
    pub(crate) fn exchange(&mut self, command: &Command) -> Outcome {
        // If the owed replies do not arrive within one timeout, this function returns that the
        // command may have run, although it was not written. The caller then sends the command
        // again.
        self.check_run()?;
        let mut shared = self.reads_first().then(|| self.deadline_in(self.response_timeout));
        if let Some(until) = shared {
            self.read_owed_now(until)?;
        }
        if command.acks().is_some() {
            return self.exchange_acknowledged(command);
        }
        let (bytes, asked) = self.rights.encoded(command, self.channels);
        self.write(&bytes)?;
        let mut retried = asked.is_some();
        loop {
            let time = self.response_timeout.saturating_add(self.wait_left());
            let until = shared.take().unwrap_or_else(|| later(self.wrote_at, time));
            self.read_owed_now(until)?;
            let reply = self.read(until)?;
            let reply = self.rights.answered(command, asked, reply);
            if !command.may_be_answered(&reply) {
                return Err(self.misaligned());
            }
            if retried || !is_noscript(&reply) {
                return self.outcome_of(reply);
            }
            let Some(eval) = command.to_eval(self.channels) else { return self.outcome_of(reply) };
            self.write(&eval)?;
            retried = true;
        }
    }

    fn exchange_acknowledged(&mut self, command: &Command) -> Outcome {
        let outcome = Arc::new(Mutex::new(None));
        let receiver = {
            let outcome = Arc::clone(&outcome);
            move |received| *outcome.lock() = Some(received)
        };
        self.send([(command.clone(), Arc::new(receiver) as _, true)])?;
        self.read_awaited()?;
        // All awaited replies have been read, so the outcome is set.
        outcome.lock().take().unwrap_or_else(|| Err(self.closed()))
    }

    fn closed(&self) -> Failure {
        let closed = io::Error::new(io::ErrorKind::ConnectionAborted, "connection closed");
        Failure::Reset(self.cause(closed))
    }

    /// Closes the link after a reply that cannot belong to its command. This reply and all later
    /// replies may belong to any command: a number for another command would count as a grant.
    fn misaligned(&mut self) -> Failure {
        let what = "a reply does not fit its command: the connection is given up";
        self.fail(Failure::Reset(self.cause((ErrorKind::Parse, what))))
    }

    /// Returns the longest time until the server has replied to all WAITs.
    pub(super) fn wait_left(&self) -> Duration {
        self.acknowledgements.wait_left()
    }

    /// Returns how late the next of these replies may be.
    pub(super) fn wait_lateness(&self) -> Duration {
        self.acknowledgements.lateness()
    }

    fn deadline_in(&self, time: Duration) -> Instant {
        deadline_in(time.saturating_add(self.wait_left()))
    }

    /// Writes commands in one packet and notes that their replies are owed. If replicas must
    /// acknowledge one of the commands, a WAIT ends the packet. After an `Err` the link must not be
    /// used, and each command's receiver has received the failure.
    pub fn send(&mut self, batch: impl IntoIterator<Item = Outgoing>) -> Result<(), Failure> {
        let bytes = self.owe(batch);
        self.check_run()?;
        self.write(&bytes)
    }

    /// Like [`send`](Self::send), for a thread that leaves when its limit is over. The next thread
    /// that has the link writes the remaining bytes.
    pub(super) fn send_limited(
        &mut self,
        batch: impl IntoIterator<Item = Outgoing>,
        limit: &Limit,
    ) -> Result<(), Failure> {
        let bytes = self.owe(batch);
        self.check_run()?;
        self.wrote_at = Instant::now();
        self.connection.append(&bytes);
        self.write_limited(limit).map(drop)
    }

    /// Like [`send`](Self::send), for a thread that must not wait. Bytes that the connection does
    /// not accept now remain in the link, and are written before all later bytes.
    pub(super) fn send_now(
        &mut self,
        batch: impl IntoIterator<Item = Outgoing>,
    ) -> Result<(), Failure> {
        let bytes = self.owe(batch);
        self.check_run()?;
        self.write_now(&bytes)
    }

    /// Whether bytes are left unwritten.
    pub(super) fn has_unwritten(&self) -> bool {
        self.connection.has_unwritten()
    }

    /// Writes as many of the unwritten bytes as the connection accepts without waiting.
    pub(super) fn write_rest(&mut self) -> Result<(), Failure> {
        if !self.has_unwritten() {
            return Ok(());
        }
        if Instant::now() >= self.dead_at() {
            return Err(self.fail_as_stuck());
        }
        self.write_now(&[])
    }

    fn write_now(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let now = Instant::now();
        if !bytes.is_empty() {
            self.wrote_at = now;
        }
        let written = self.connection.write_now(bytes, now);
        written.map_err(|error| self.fail(self.after_write(error)))
    }

    fn fail_as_stuck(&mut self) -> Failure {
        let late = io::Error::new(io::ErrorKind::TimedOut, "the server takes nothing");
        self.fail(self.after_write(late.into()))
    }

    /// Removes each unwritten [take](super::CachedScript::takes) whose thread has left, because no
    /// thread would use what it takes. Releases remain. A command after ASKING remains, too:
    /// otherwise ASKING would apply to the next command.
    pub(super) fn withdraw_late(&mut self) {
        if !self.connection.has_unwritten() {
            return;
        }
        let (written, given) = (self.connection.written(), self.connection.given());
        let mut ranges = Vec::new();
        let mut gone = 0;
        let mut owed = std::mem::take(&mut self.owed).into_iter().peekable();
        while let Some(mut it) = owed.next() {
            let ends_at = owed.peek().map_or(given, |next| next.begins_at);
            let is_late = it.command.is_take()
                && !it.command.needs_asking()
                && it.begins_at >= written
                && it.receiver.as_ref().is_some_and(|receiver| receiver.has_left());
            if is_late {
                ranges.push((it.begins_at, ends_at));
                gone += ends_at - it.begins_at;
            } else {
                it.begins_at -= gone;
                self.owed.push_back(it);
            }
        }
        if !ranges.is_empty() {
            self.connection.withdraw(&ranges);
        }
    }

    /// Fails if the client has connected to a newer run of the server than the link's run. A load
    /// balancer may keep the connection to the old run open.
    ///
    /// A thread that makes a change first notes the last run, then writes the change, and then
    /// records the change for the noted run. This check comes between the first two steps. So the
    /// reply comes from the noted run, provided that the client connects to no other run before the
    /// reply.
    fn check_run(&mut self) -> Result<(), Failure> {
        if self.run.is_last() {
            return Ok(());
        }
        let what = "another run of the server was met over another connection";
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, what);
        Err(self.fail(Failure::Reset(self.cause(error))))
    }

    /// Notes that the replies to these commands are owed. Returns the bytes to write.
    fn owe(&mut self, batch: impl IntoIterator<Item = Outgoing>) -> Vec<u8> {
        self.note_silence(Instant::now());
        let mut bytes = Vec::new();
        let mut acks = None;
        for (command, receiver, awaited) in batch {
            if command.needs_asking() {
                let asking = Command::plain(&[b"ASKING"]);
                let begins_at = self.position_after(&bytes);
                bytes.extend_from_slice(asking.bytes());
                self.owe_one(asking, None, false, begins_at, None);
            }
            let begins_at = self.position_after(&bytes);
            let (encoded, asked) = self.rights.encoded(&command, self.channels);
            bytes.extend_from_slice(&encoded);
            drop(encoded);
            if command.acks().is_some() {
                acks = command.acks();
            }
            // Note the reply as owed before the write, so that its receiver gets every failure.
            self.owe_one(command, Some(receiver), awaited, begins_at, asked);
        }
        if let Some(acks) = acks {
            self.owe_wait(acks, &mut bytes);
        }
        bytes
    }

    /// Returns the position of the next command among all bytes of the connection. The command
    /// comes after `bytes`, which are not in the connection yet.
    fn position_after(&self, bytes: &[u8]) -> u64 {
        self.connection.given() + bytes.len() as u64
    }

    /// Notes that one reply is owed, to a command that begins at this position.
    fn owe_one(
        &mut self,
        command: Command,
        receiver: Option<Arc<dyn ReplyReceiver>>,
        awaited: bool,
        begins_at: u64,
        asked: Option<SentRightsQuery>,
    ) {
        let retried = receiver.is_none();
        let trusted_at = self.trusted_at;
        self.owed.push_back(Owed {
            command,
            receiver,
            awaited,
            retried,
            trusted_at,
            begins_at,
            asked,
        });
    }

    fn note_silence(&mut self, now: Instant) {
        if self.owed.is_empty() {
            self.owes_since = now;
        }
    }

    /// Returns the time at which the link counts as dead if no reply has arrived.
    fn dead_at(&self) -> Instant {
        later(self.owes_since, self.response_timeout.saturating_add(self.wait_left()))
    }

    /// Writes the unwritten bytes. Returns `false` if the limit ended first.
    fn write_limited(&mut self, limit: &Limit) -> Result<bool, Failure> {
        loop {
            let dead_at = self.dead_at();
            match self.connection.write_in_part(limit.soon(dead_at)) {
                Ok(true) => return Ok(true),
                Ok(false) if Instant::now() >= dead_at => return Err(self.fail_as_stuck()),
                Ok(false) if limit.is_over() => return Ok(false),
                Ok(false) => {}
                Err(error) => return Err(self.fail(self.after_write(error))),
            }
        }
    }

    /// Like [`read_awaited`](Self::read_awaited), for a thread that leaves when its limit is over.
    /// If only a part of a reply has arrived, the link keeps this part for the next reader.
    ///
    /// While at least `most` replies are owed, reads replies even if no thread waits for them.
    pub(super) fn read_limited(&mut self, limit: &Limit, most: usize) -> Result<(), Failure> {
        let mut awaited = self.owed.iter().filter(|owed| owed.awaited).count();
        while awaited > 0
            || self.owed.len() >= most
            || self.acknowledgements.awaited().next().is_some()
        {
            self.reader_left = true;
            if !self.write_limited(limit)? {
                return Ok(());
            }
            let Some(owed) = self.owed.pop_front() else { break };
            let reply = match self.receive_limited(limit, owed.trusted_at) {
                Ok(Some(reply)) => reply,
                left => {
                    self.owed.push_front(owed);
                    return left.map(drop).map_err(|failure| self.fail(failure));
                }
            };
            let counts = owed.awaited;
            match self.deliver(owed, reply)? {
                None => awaited -= usize::from(counts),
                Some(eval) => self.connection.append(&eval),
            }
        }
        self.reader_left = false;
        Ok(())
    }

    /// Reads one reply. Returns `None` if the limit ended first.
    fn receive_limited(
        &mut self,
        limit: &Limit,
        trusted_at: u64,
    ) -> Result<Option<Value>, Failure> {
        loop {
            let dead_at = self.dead_at();
            match self.connection.receive_in_part(limit.soon(dead_at)) {
                Ok(reply) => return Ok(Some(self.record_received(reply, trusted_at))),
                Err(error) if error.is_timeout() && Instant::now() < dead_at => {
                    if limit.is_over() {
                        return Ok(None);
                    }
                }
                Err(error) => {
                    // The silence began at `owes_since`, even if other threads have written later:
                    // a write does not show that the server is alive.
                    if error.is_timeout() {
                        self.health.record_failure(self.owes_since, &error);
                    }
                    return Err(self.after_write(error));
                }
            }
        }
    }

    /// Returns the receivers whose threads sleep for replies that no thread reads, in the order of
    /// the replies.
    pub(super) fn abandoned(&self) -> impl Iterator<Item = &Arc<dyn ReplyReceiver>> {
        let awaited = self.reader_left.then(|| {
            let owed = self.owed.iter().filter(|it| it.awaited);
            let owed = owed.filter_map(|it| it.receiver.as_ref());
            self.acknowledgements.awaited().chain(owed)
        });
        awaited.into_iter().flatten()
    }

    /// Appends a WAIT to `bytes`. The WAIT asks whether the replicas have all earlier changes.
    fn owe_wait(&mut self, acks: ReplicaAcks, bytes: &mut Vec<u8>) {
        let command = Command::wait(acks).acknowledged(Some(acks));
        let begins_at = self.position_after(bytes);
        bytes.extend_from_slice(command.bytes());
        self.acknowledgements.wait(acks);
        self.owe_one(command, None, false, begins_at, None);
    }

    /// Like [`send_now`](Self::send_now), for a single command.
    pub(crate) fn send_one(
        &mut self,
        command: Command,
        receiver: Arc<dyn ReplyReceiver>,
    ) -> Result<(), Failure> {
        if command.acks().is_some() || !self.run.is_last() {
            return self.send_now([(command, receiver, false)]);
        }
        // The first call of a script has the script's text. With only the hash, a server that does
        // not know the script would refuse the call. The call would be sent again, and would run
        // after the next command for its name.
        let (bytes, asked) = self.rights.encoded(&command, self.channels);
        let text = match command.script_id() {
            Some(script) if asked.is_none() && !self.known_scripts.contains(&script) => {
                self.known_scripts.push(script);
                command.to_eval(self.channels)
            }
            _ => None,
        };
        let bytes = text.map_or(bytes, Cow::Owned);
        self.wrote_at = Instant::now();
        self.note_silence(self.wrote_at);
        let begins_at = self.connection.given();
        let written = self.connection.write_now(&bytes, self.wrote_at);
        drop(bytes);
        self.owe_one(command, Some(receiver), false, begins_at, asked);
        written.map_err(|error| self.fail(self.after_write(error)))
    }

    /// Reads every reply for which a thread sleeps. Replies to later posts may remain unread.
    pub(crate) fn read_awaited(&mut self) -> Result<(), Failure> {
        self.read_awaited_within(self.response_timeout)
    }

    /// Like [`read_awaited`](Self::read_awaited), for at most `patience`.
    pub fn read_awaited_within(&mut self, patience: Duration) -> Result<(), Failure> {
        let mut awaited = self.owed.iter().filter(|owed| owed.awaited).count();
        let mut until = self.deadline_in(patience);
        // This loop also reads the reply to a WAIT that decides about an awaited reply.
        while awaited > 0 || self.acknowledgements.awaited().next().is_some() {
            let Some(owed) = self.owed.pop_front() else { break };
            let counts = owed.awaited;
            if self.read_reply_to(owed, until)? {
                awaited -= usize::from(counts);
            } else {
                // A command was sent again, so its reply may take the full time again.
                until = self.deadline_in(patience);
            }
        }
        self.reader_left = false;
        Ok(())
    }

    /// Reads every owed reply. Waits at most `patience` for one reply, and ten times `patience` for
    /// all replies.
    pub(crate) fn read_all(&mut self, patience: Duration) -> Result<(), Failure> {
        let last = self.deadline_in(patience.saturating_mul(10));
        while let Some(owed) = self.owed.pop_front() {
            self.read_reply_to(owed, self.deadline_in(patience).min(last))?;
        }
        Ok(())
    }

    /// Reads the replies that are owed now. If a command is sent again as `EVAL`, its new reply
    /// comes after the replies to all later commands, and this function leaves it unread.
    fn read_owed_now(&mut self, until: Instant) -> Result<(), Failure> {
        for _ in 0..self.owed.len() {
            let Some(owed) = self.owed.pop_front() else { break };
            self.read_reply_to(owed, until)?;
        }
        self.reader_left = false;
        Ok(())
    }

    /// Reads the reply to `owed` and gives it to the receiver. Returns `false` if the server did
    /// not know the script: then the command has been sent again as EVAL, and its reply comes after
    /// all other owed replies.
    fn read_reply_to(&mut self, owed: Owed, until: Instant) -> Result<bool, Failure> {
        let reply = match self.receive(until, owed.trusted_at) {
            Ok(reply) => reply,
            Err(failure) => {
                self.owed.push_front(owed);
                return Err(self.fail(failure));
            }
        };
        match self.deliver(owed, reply)? {
            None => Ok(true),
            Some(eval) => self.write(&eval).map(|()| false),
        }
    }

    /// Gives the reply to `owed` to the receiver. If the server did not know the script, returns
    /// the bytes that the caller must write to send the command again. The reply then comes after
    /// all other owed replies.
    fn deliver(&mut self, owed: Owed, reply: Value) -> Result<Option<Vec<u8>>, Failure> {
        let reply = self.rights.answered(&owed.command, owed.asked, reply);
        if !owed.command.may_be_answered(&reply) {
            self.owed.push_front(owed);
            return Err(self.misaligned());
        }
        let Some(receiver) = owed.receiver else {
            if let Some(acks) = owed.command.acks() {
                self.acknowledgements.answered(&reply, acks, &self.address);
            }
            return Ok(None);
        };
        if !owed.retried
            && is_noscript(&reply)
            && !receiver.has_left()
            && let Some(mut eval) = owed.command.to_eval(self.channels)
        {
            // The server has lost this script, so it may lack the other scripts, too.
            self.known_scripts.clear();
            let acks = owed.command.acks();
            let (trusted_at, begins_at) = (self.trusted_at, self.connection.given());
            let receiver = Some(receiver);
            self.owed.push_back(Owed { retried: true, receiver, trusted_at, begins_at, ..owed });
            if let Some(acks) = acks {
                // The server replies to the first WAIT before the EVAL runs, so the EVAL needs
                // another WAIT.
                self.owe_wait(acks, &mut eval);
            }
            return Ok(Some(eval));
        }
        match reply {
            // This reply grants nothing, so the caller need not wait for replicas.
            Value::ServerError(_) | Value::Nil => receiver.receive(self.outcome_of(reply)),
            // Keep this reply until the reply to the command's WAIT, which decides whether it is a
            // success.
            reply if owed.command.acks().is_some() => {
                let awaited = owed.awaited;
                self.acknowledgements.push(receiver, reply, awaited);
            }
            reply => receiver.receive(Ok(reply)),
        }
        Ok(None)
    }

    fn outcome_of(&self, reply: Value) -> Outcome {
        match reply {
            Value::ServerError(error) => Err(Failure::Refused(self.cause(error))),
            reply => Ok(reply),
        }
    }

    fn cause(&self, error: impl Into<RedisError>) -> Cause {
        Cause::said(Arc::new(error.into()), Arc::clone(&self.address))
    }

    fn after_write(&self, error: RedisError) -> Failure {
        let timed_out = error.is_timeout();
        let cause = self.cause(error);
        if timed_out { Failure::TimedOut(cause) } else { Failure::Reset(cause) }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.wrote_at = Instant::now();
        let written = self.connection.send_packed_command(bytes, self.wrote_at);
        written.map_err(|error| self.fail(self.after_write(error)))
    }

    fn read(&mut self, until: Instant) -> Outcome {
        self.receive(until, self.trusted_at).map_err(|failure| self.fail(failure))
    }

    /// Reads one reply. All replies of a batch share one deadline, so that a server that sends its
    /// bytes one by one cannot block the reader for long.
    fn receive(&mut self, until: Instant, trusted_at: u64) -> Outcome {
        match self.connection.receive_until(until) {
            Ok(reply) => Ok(self.record_received(reply, trusted_at)),
            Err(error) => Err(self.not_received(error)),
        }
    }

    /// Notes what a reply shows about the server. For `trusted_at` see [`Owed`].
    fn record_received(&mut self, reply: Value, trusted_at: u64) -> Value {
        self.alive_at = self.alive_at.max(trusted_at);
        self.owes_since = self.owes_since.max(self.wrote_at);
        self.is_wrong_server |= is_wrong_server_reply(&reply);
        // The reply of a wrong server is not reported. Otherwise each such reply would cause
        // cleanups. These would reach the wrong server again and open the next link, and so on.
        if !self.is_wrong_server
            && let Some(endpoint) = self.unreported.take()
        {
            endpoint.answers();
        }
        // Only the reply to the last command shows that the server is alive now. Earlier replies
        // may have arrived long before.
        if self.owed.is_empty() {
            self.health.record_reply(self.wrote_at);
        }
        reply
    }

    fn not_received(&self, error: RedisError) -> Failure {
        // Replies for which no thread waits are read with a short time limit, whose end does not
        // show an outage. So compare with the response timeout.
        if error.is_timeout() && self.wrote_at.elapsed() >= self.response_timeout {
            self.health.record_failure(self.wrote_at, &error);
        }
        self.after_write(error)
    }

    /// Gives the failure to every receiver of an owed reply.
    fn fail(&mut self, failure: Failure) -> Failure {
        self.acknowledgements.fail(&failure);
        // Take the receivers one by one: if one panics, the drop of the link fails the others.
        while let Some(owed) = self.owed.pop_front() {
            owed.receiver.inspect(|receiver| receiver.receive(Err(failure.clone())));
        }
        failure
    }
}

impl Drop for Link {
    /// Wakes all threads, even if the link ends with a panic.
    fn drop(&mut self) {
        if !self.owed.is_empty() || !self.acknowledgements.is_empty() {
            self.fail(self.closed());
        }
    }
}

fn is_noscript(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

#[cfg(all(test, testkit))]
mod tests;
