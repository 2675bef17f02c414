//! Requests that have no owner to ask: each carries a number and is applied once.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use redis::Value;

use super::changes::{Change, Changes, Log};
use super::{Replied, Rights, Trouble, answered, call, granted, millis, unexpected};
use crate::config::ReplicaAcks;
use crate::connection::{Command, Route, Script};
use crate::error::{Error, ErrorKind};
use crate::protocol::{SemaphoreKeys, decimal};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::sync::clock;

/// So often a server that does not know the change before a request is told of it.
const MOST_BEHIND: u32 = 3;

pub(super) static MEND: LazyLock<Script> = script!("number.lua", "once.lua", "semaphore/mend.lua");

/// How long the server remembers the last request of a slot.
const MEMORY: Duration = Duration::from_secs(300);
/// How long after it was opened a request may be applied. Less than the memory, by more than the
/// two clocks drift apart meanwhile: a server that knows nothing of a request of which it would
/// have to know refuses it.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(240);

/// The server's clock, as far as its answers told it: how many milliseconds it is ahead of ours.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(AtomicI64);

impl ServerClock {
    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn now(&self) -> i64 {
        ours().saturating_add(self.0.load(Ordering::Relaxed))
    }

    fn is(&self, now: i64) {
        self.0.store(now.saturating_sub(ours()), Ordering::Relaxed);
    }
}

fn ours() -> i64 {
    i64::try_from(clock::now() / 1_000_000).unwrap_or(i64::MAX)
}

/// The requests of one client to one name.
#[derive(Debug)]
pub(crate) struct Requests {
    /// What the keys begin with under which the server remembers them.
    key: String,
    server: Arc<ServerClock>,
    slots: Mutex<Slots>,
    valid_for: Duration,
    memory: Duration,
    /// Where it is kept which names have changes.
    changes: Weak<Changes>,
}

/// The request slots, which have nothing to do with a cluster's. A slot has one open request at a
/// time, so it is enough for the server to remember one for each.
#[derive(Debug, Default)]
struct Slots {
    open: Vec<Option<OpenRequest>>,
    /// The lowest is taken first: the server forgets the others.
    free: BTreeSet<usize>,
    log: Log,
}

#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    number: u64,
    /// Until when it may be applied, on the server's clock. The same for each copy of it, or one
    /// could be applied after the server has forgotten the first.
    /// (A look at a clock here, before each copy, would not do: the system may stop the process
    /// between the look and the write.)
    latest: u64,
    /// Which run of the server was met last before it.
    run: u64,
}

/// A request whose outcome is not known yet: a copy may still be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    number: u64,
    slot: usize,
}

impl Requests {
    pub(crate) fn new(key: &str, server: &Arc<ServerClock>) -> Self {
        Self {
            key: key.to_owned(),
            server: Arc::clone(server),
            slots: Mutex::default(),
            valid_for: VALID_FOR,
            memory: MEMORY,
            changes: Weak::new(),
        }
    }

    /// Whose changes another server can be told of.
    pub(crate) fn told_again(self, changes: &Arc<Changes>) -> Self {
        Self { changes: Arc::downgrade(changes), ..self }
    }

    /// Which the server remembers for a shorter time.
    #[cfg(all(test, testkit))]
    pub(crate) fn forgotten_after(self, valid_for: Duration, memory: Duration) -> Self {
        Self { valid_for, memory, ..self }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Opens a request. `next` gives a number that the client never uses twice: drawn under the
    /// mutex, so that a slot's numbers rise.
    pub(crate) fn open(&self, next: impl FnOnce() -> u64) -> Ticket {
        self.open_after(0, next)
    }

    /// The same where this run of the server was met last.
    pub(crate) fn open_after(&self, run: u64, next: impl FnOnce() -> u64) -> Ticket {
        let latest = self.latest();
        let mut slots = self.slots.lock();
        let open = OpenRequest { number: next(), latest, run };
        let slot = slots.free.pop_first().unwrap_or(slots.open.len());
        if slot == slots.open.len() {
            slots.open.push(Some(open));
        } else {
            slots.open[slot] = Some(open);
        }
        Ticket { number: open.number, slot }
    }

    /// Opens a request that is sent here and now, and in no other copy later.
    pub(crate) fn with_one<T>(
        &self,
        next: impl FnOnce() -> u64,
        send: impl FnOnce(Ticket) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let ticket = self.open(next);
        let outcome = send(ticket);
        self.close(ticket);
        outcome
    }

    /// No copy of it will be sent any more. Once is enough.
    pub(crate) fn close(&self, ticket: Ticket) {
        self.slots.lock().close(ticket);
    }

    /// As [`close`](Self::close), of a request that has changed how many permits are free. Zero: of
    /// one that was undone.
    pub(crate) fn applied(self: &Arc<Self>, ticket: Ticket, semaphore: &Arc<str>, permits: i64) {
        let mut slots = self.slots.lock();
        // What Lua cannot add up exactly is left out.
        let open = slots.open_of(ticket).filter(|_| permits.unsigned_abs() < 1 << 40);
        if let Some((open, changes)) = open.zip(self.changes.upgrade()) {
            let times = [ticket.number, open.latest, open.run];
            let change = Change::new(ticket.slot, times, permits, semaphore);
            changes.add(self, &mut slots.log, change);
        }
        slots.close(ticket);
    }

    pub(super) fn with_log<R>(&self, look: impl FnOnce(&mut Log) -> R) -> R {
        look(&mut self.slots.lock().log)
    }

    /// What has another server make the changes of a slot again, or of all slots, as far as it does
    /// not know them: to be sent in this order. Each with the name that it is for.
    pub(crate) fn mends(&self, slot: Option<usize>) -> Vec<(Arc<str>, Command)> {
        let parts = self.slots.lock().log.parts(slot);
        parts.iter().filter_map(|part| self.mend(part)).collect()
    }

    fn mend(&self, changes: &[Change]) -> Option<(Arc<str>, Command)> {
        let last = changes.last()?;
        // The earliest: what is refused too early is logged, what is made too late is made twice.
        let latest = changes.iter().map(|change| change.latest).min()?;
        let mut arguments: Vec<String> = [last.number, latest].iter().map(u64::to_string).collect();
        arguments.push(self.memory.as_millis().to_string());
        arguments.push("1".to_owned());
        arguments.push(SemaphoreKeys::channel(&last.semaphore));
        for change in changes {
            arguments.extend([change.number.to_string(), change.permits.to_string()]);
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let slot = format!("{}:{}", self.key, last.slot);
        let keys = [last.semaphore.as_bytes(), slot.as_bytes()];
        Some((Arc::clone(&last.semaphore), Command::script(&MEND, &keys, &arguments)))
    }

    /// The server says that it does not know the change before this request. If this run of it made
    /// that change, it was told to forget it, and nothing is missing: the next request asks for
    /// nothing before it. (The incarnation is raised before anything is sent to another run.) Else
    /// the change must be made again.
    pub(crate) fn must_be_mended(&self, ticket: Ticket, run: u64) -> bool {
        self.with_log(|log| {
            let is_forgotten = log.was_made_by(ticket.slot, run);
            if is_forgotten {
                log.forget_slot(ticket.slot);
            }
            !is_forgotten
        })
    }

    /// Whether the server says that it does not know the change before a request.
    pub(crate) fn is_behind(reply: &Value) -> bool {
        matches!(reply, Value::Array(parts) if matches!(**parts, [Value::Int(_), Value::Int(_)]))
    }

    /// Until when a request that is opened now may be applied.
    fn latest(&self) -> u64 {
        let valid_for = i64::try_from(self.valid_for.as_millis()).unwrap_or(i64::MAX);
        u64::try_from(self.server.now().saturating_add(valid_for)).unwrap_or(0)
    }

    /// For a request of which no copy was applied, or ever will be.
    fn postpone(&self, ticket: Ticket) {
        let latest = self.latest();
        if let Some(Some(open)) = self.slots.lock().open.get_mut(ticket.slot)
            && open.number == ticket.number
        {
            open.latest = latest;
        }
    }

    /// Zero, which the server refuses, for one that is closed.
    fn latest_of(&self, ticket: Ticket) -> u64 {
        self.slots.lock().open_of(ticket).map_or(0, |open| open.latest)
    }

    /// Whether the server says that a request came too late. The reply has its clock.
    pub(crate) fn is_late(&self, reply: &Value) -> bool {
        match reply {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Int(now)] => {
                    self.server.is(*now);
                    true
                }
                _ => false,
            },
            _ => false,
        }
    }
}

impl Slots {
    fn close(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.get_mut(ticket.slot)
            && open.is_some_and(|open| open.number == ticket.number)
        {
            *open = None;
            self.free.insert(ticket.slot);
        }
    }

    fn open_of(&self, ticket: Ticket) -> Option<OpenRequest> {
        let open = self.open.get(ticket.slot).copied().flatten();
        open.filter(|open| open.number == ticket.number)
    }
}

/// A request that is applied once, however often it is sent.
#[derive(Debug)]
pub(crate) struct Once<'a> {
    pub(crate) script: &'static Script,
    pub(crate) rights: Rights,
    pub(crate) key: &'a str,
    /// Another key of the same synchronizer, behind the slot.
    pub(crate) another: Option<&'a str>,
    pub(crate) requests: &'a Requests,
    pub(crate) ticket: Ticket,
    pub(crate) arguments: &'a [&'a [u8]],
    /// Who must have what it takes before that counts.
    pub(crate) acks: Option<ReplicaAcks>,
}

impl Once<'_> {
    /// The request as it is sent first, or as a copy.
    pub(crate) fn command(&self, copy: bool) -> Command {
        let (Ticket { number, slot }, requests) = (self.ticket, self.requests);
        let mut digits = [[0; 20]; 3];
        let [first, second, third] = &mut digits;
        let mut arguments: Vec<&[u8]> = Vec::with_capacity(4 + self.arguments.len());
        arguments.push(decimal(number, first));
        arguments.push(decimal(requests.latest_of(self.ticket), second));
        arguments.push(millis(requests.memory, third));
        let copy = u8::from(copy);
        let form = match requests.slots.lock().log.last_of(slot) {
            0 => copy.to_string(),
            before => format!("{copy}:{before}"),
        };
        arguments.push(form.as_bytes());
        arguments.extend_from_slice(self.arguments);
        let slot = format!("{}:{slot}", requests.key);
        let keys = [self.key.as_bytes(), slot.as_bytes(), self.another.unwrap_or("").as_bytes()];
        let keys = if self.another.is_some() { &keys[..] } else { &keys[..2] };
        Command::script(self.script, keys, &arguments).acknowledged(self.acks)
    }

    /// Sends the request and waits for its reply; sends a copy if the connection breaks.
    pub(crate) fn call(&self, route: &Route) -> Result<Value, Trouble> {
        self.take(route).map(|replied| replied.reply)
    }

    /// The same of a request that may take something.
    pub(crate) fn take(&self, route: &Route) -> Result<Replied<Value>, Trouble> {
        if !self.requests.server.is_known() {
            // Nothing was sent so far, whatever becomes of the question.
            self.learn(route).map_err(|trouble| match trouble {
                Trouble::Unknown(error) => Trouble::Unsent(error),
                trouble => trouble,
            })?;
        }
        let (mut again, mut sent_before, mut behind) = (false, false, 0);
        loop {
            let copy = || self.command(true);
            let (outcome, in_doubt) = route.call_twice(&self.command(sent_before), copy);
            let in_doubt = in_doubt || sent_before;
            let replied = granted(outcome, in_doubt, self.rights, Ok)?;
            if Requests::is_behind(&replied.reply) {
                sent_before = in_doubt;
                behind += 1;
                if behind > MOST_BEHIND {
                    self.requests.with_log(|log| log.forget_slot(self.ticket.slot));
                }
                if !self.requests.must_be_mended(self.ticket, route.incarnation()) {
                    continue;
                }
                for (_, mend) in self.requests.mends(Some(self.ticket.slot)) {
                    let (outcome, _) = route.call_twice(&mend, || mend.clone());
                    answered(outcome, in_doubt, self.rights)?;
                }
                continue;
            }
            if !self.requests.is_late(&replied.reply) {
                return Ok(replied);
            } else if in_doubt {
                // The first one may have been applied so long ago that nobody knows.
                return Err(Trouble::Forgotten(forgotten()));
            } else if again {
                return Err(Trouble::Unsent(late()));
            }
            // The only copy there is has done nothing: this thread stood still, or a clock jumped.
            self.requests.postpone(self.ticket);
            again = true;
        }
    }

    /// Asks the server for its time.
    fn learn(&self, route: &Route) -> Result<(), Trouble> {
        let reply = call(route, &Command::plain(&[b"TIME"]), self.rights)?;
        let number = |part: &Value| match part {
            Value::BulkString(text) => str::from_utf8(text).ok()?.parse::<i64>().ok(),
            _ => None,
        };
        let now = match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [seconds, micros] => number(seconds).zip(number(micros)),
                _ => None,
            },
            _ => None,
        };
        let Some((seconds, micros)) = now else { return Err(unexpected(&reply)) };
        self.requests.server.is(seconds.saturating_mul(1_000).saturating_add(micros / 1_000));
        self.requests.postpone(self.ticket);
        Ok(())
    }
}

/// What was sent once came too late.
pub(crate) fn late() -> Error {
    let message = "the request reached the server too late, or one of the two clocks jumped";
    Error::new(ErrorKind::Redis, message.to_owned())
}

/// The server lacks an earlier change of the slot, and has done nothing.
pub(crate) fn behind() -> Error {
    let message = "the server does not know what was changed before this request; it may have \
                   become the master just now";
    Error::new(ErrorKind::Redis, message.to_owned())
}

/// What was sent more than once came too late.
fn forgotten() -> Error {
    let message = format!(
        "the request was sent again after more than {VALID_FOR:?}, when the server may have forgotten it"
    );
    Error::new(ErrorKind::Redis, message)
}

#[cfg(all(test, testkit, not(shuttle)))]
mod tests;
