//! Requests without an owner: each carries a number and is applied once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use redis::Value;
use redlatch_client::sync::atomic::{AtomicI64, Ordering};
use redlatch_client::sync::{Mutex, clock};
use redlatch_client::{Command, ReplicaAcks, Route, Script, decimal, write_decimal};

use super::changes::{Change, Changes, Log, Mark};
use super::{
    ClientId, Replied, Rights, Trouble, answered, call, granted, millis, needing, unexpected,
};
use crate::error::{Error, ErrorKind};
use crate::scripts::SemaphoreKeys;

/// How often a client tells a server of the change before a request that the server does not know.
const MOST_BEHIND: u32 = 3;

pub(super) static MEND: LazyLock<Script> = script!(MARKED, "semaphore/mend.lua");

/// How long the server remembers the last request of a slot.
const MEMORY: Duration = Duration::from_secs(300);
/// How long after it was opened a request may be applied. Less than the memory, by more than the
/// two clocks drift apart meanwhile: a server without the memory of a request that it would need
/// refuses it.
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
    /// The beginning of the keys under which the server remembers them.
    key: Arc<str>,
    server: Arc<ServerClock>,
    slots: Mutex<Slots>,
    valid_for: Duration,
    memory: Duration,
    /// The names with changes.
    changes: Weak<Changes>,
    /// The route to the server of the name. `None`: this client tells no other server of the
    /// changes.
    route: Option<Route>,
}

/// The request slots, which have nothing to do with a cluster's. A slot has one open request at a
/// time, so it is enough for the server to remember one for each.
#[derive(Debug, Default)]
struct Slots {
    open: Vec<Option<OpenRequest>>,
    /// The lowest is taken first: the server forgets the others.
    free: BinaryHeap<Reverse<usize>>,
    log: Log,
}

#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    number: u64,
    /// Until when the request may be applied, on the server's clock. The same for each of its
    /// copies, or one could be applied after the server has forgotten the first. (A look at a clock
    /// here, before each copy, would not do: the system may stop the process between the look and
    /// the write.)
    latest: u64,
    /// The run of the server that was met last before it.
    run: u64,
}

/// A request whose outcome is not known yet: a copy may still be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    number: u64,
    slot: usize,
}

impl Requests {
    pub(crate) fn new(key: impl Into<Arc<str>>, server: &Arc<ServerClock>) -> Self {
        Self {
            key: key.into(),
            server: Arc::clone(server),
            slots: Mutex::default(),
            valid_for: VALID_FOR,
            memory: MEMORY,
            changes: Weak::new(),
            route: None,
        }
    }

    /// Lets another server be told of the changes.
    pub(crate) fn told_again(mut self, changes: &Arc<Changes>, route: Route) -> Self {
        self.changes = Arc::downgrade(changes);
        self.route = Some(route);
        self
    }

    /// Lets the server remember requests for a shorter time.
    #[cfg(all(test, testkit))]
    pub(crate) fn forgotten_after(mut self, valid_for: Duration, memory: Duration) -> Self {
        (self.valid_for, self.memory) = (valid_for, memory);
        self
    }

    /// Opens a request. `next` gives a number that the client never uses twice: drawn under the
    /// mutex, so that a slot's numbers rise.
    pub(crate) fn open(&self, next: impl FnOnce() -> u64) -> RequestId {
        self.open_after(0, next)
    }

    /// Opens a request after this run of the server was met last.
    pub(crate) fn open_after(&self, run: u64, next: impl FnOnce() -> u64) -> RequestId {
        let latest = self.latest();
        let mut slots = self.slots.lock();
        let open = OpenRequest { number: next(), latest, run };
        let slot = slots.free.pop().map_or(slots.open.len(), |Reverse(slot)| slot);
        if slot == slots.open.len() {
            // Most names need one.
            if slot == 0 {
                slots.open.reserve_exact(1);
            }
            slots.open.push(Some(open));
        } else {
            slots.open[slot] = Some(open);
        }
        RequestId { number: open.number, slot }
    }

    /// Opens a request that is sent here and now, and in no other copy later.
    pub(crate) fn with_one<T>(
        &self,
        client: &ClientId,
        send: impl FnOnce(RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let request_id = self.open(|| client.next_number());
        let outcome = send(request_id);
        self.close(request_id);
        outcome
    }

    /// No copy of the request will be sent any more. May be called twice.
    pub(crate) fn close(&self, request_id: RequestId) {
        self.slots.lock().close(request_id);
    }

    /// As [`close`](Self::close), of a request that has changed how many permits are free, and saw
    /// this mark beside their number. Zero: of one that was undone. `true`: the caller must have this change [made again](Self::mends_of),
    /// since another server may have been told the earlier changes before this one was known here.
    ///
    /// A thread may read the old master's reply, stand still, and come here after the renewer has
    /// told the new master all changes that it found. So the change is added first, and the
    /// incarnation is read after that; the renewer looks for changes after the incarnation was
    /// raised. Either the renewer finds the change, or this thread finds another incarnation. The
    /// next request of the slot would have the change made again, too, but there may be none.
    #[must_use = "`true`: the permits are wrong for good unless the change is made again"]
    pub(crate) fn applied(
        self: &Arc<Self>,
        request_id: RequestId,
        semaphore: &Arc<str>,
        permits: i64,
        mark: Option<Mark>,
    ) -> bool {
        let changes = self.changes.upgrade();
        let mut slots = self.slots.lock();
        // Numbers that Lua cannot add up exactly are left out.
        let open = slots.open_of(request_id).filter(|_| permits.unsigned_abs() < 1 << 40);
        if let Some((open, changes)) = open.zip(changes.as_ref()) {
            let times = [request_id.number, open.latest, open.run];
            let change = Change::new(request_id.slot, times, permits, semaphore, mark);
            changes.add(self, &mut slots.log, change);
        }
        slots.close(request_id);
        drop(slots);
        if let Some(changes) = changes {
            changes.sweep(2);
        }
        let Some((open, route)) = open.zip(self.route.as_ref()) else { return false };
        let lane = route.lane();
        lane.permits_answered.fetch_max(clock::now(), Ordering::Relaxed);
        open.run != lane.endpoint().incarnation()
    }

    /// When this run of the server last answered a change of this name's or another's on its lane.
    pub(super) fn last_answered(&self) -> (u64, u64) {
        self.route.as_ref().map_or((0, 0), |route| {
            let lane = route.lane();
            (lane.permits_answered.load(Ordering::Relaxed), lane.endpoint().incarnation())
        })
    }

    /// The name's last handle goes: while there are changes, the requests stay.
    pub(crate) fn rest(&self) {
        let mut slots = self.slots.lock();
        if slots.free.len() == slots.open.len() {
            (slots.open, slots.free) = Default::default();
        }
    }

    pub(super) fn with_log<R>(&self, look: impl FnOnce(&mut Log) -> R) -> R {
        look(&mut self.slots.lock().log)
    }

    /// The commands with which another server makes again the changes of a slot, or of all slots,
    /// that it does not know: to be sent in this order. Each with its name.
    pub(crate) fn mends(&self, slot: Option<usize>) -> Vec<(Arc<str>, Command)> {
        let parts = self.slots.lock().log.parts(slot);
        parts.iter().filter_map(|part| self.mend(part)).collect()
    }

    /// The same for a request's slot.
    pub(crate) fn mends_of(&self, request_id: RequestId) -> Vec<(Arc<str>, Command)> {
        self.mends(Some(request_id.slot))
    }

    /// This run of the server has carried out the [`mends`](Self::mends) of all changes made before
    /// `asked` of these semaphores.
    pub(crate) fn told(&self, run: u64, asked: u64, is_meant: impl Fn(&str) -> bool) {
        self.with_log(|log| log.told(run, asked, is_meant));
    }

    fn mend(&self, changes: &[Change]) -> Option<(Arc<str>, Command)> {
        let last = changes.last()?;
        // The earliest: a change refused too early is logged, a change made too late is made twice.
        let latest = changes.iter().map(|change| change.latest).min()?;
        let mut arguments: Vec<String> = [last.number, latest].iter().map(u64::to_string).collect();
        arguments.push(self.memory.as_millis().to_string());
        arguments.push("-0".to_owned());
        arguments.push(SemaphoreKeys::channel(&last.semaphore));
        arguments.push(last.mark.as_ref().map_or_else(String::new, Mark::to_string));
        for change in changes {
            arguments.extend([change.number.to_string(), change.permits.to_string()]);
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let slot = format!("{}:{}", self.key, last.slot);
        let mark = SemaphoreKeys::mark(&last.semaphore);
        let keys = [last.semaphore.as_bytes(), slot.as_bytes(), mark.as_bytes()];
        Some((Arc::clone(&last.semaphore), Command::script(&MEND, &keys, &arguments)))
    }

    /// The server says that it does not know the change before this request. If this run of it made
    /// that change, the server was told to forget it, and nothing is missing: the next request asks
    /// for nothing before it. (The incarnation is raised before anything is sent to another run.)
    /// Otherwise the change must be made again.
    pub(crate) fn must_be_mended(&self, request_id: RequestId, run: u64) -> bool {
        self.with_log(|log| {
            let is_forgotten = log.was_made_by(request_id.slot, run);
            if is_forgotten {
                log.forget_slot(request_id.slot);
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

    /// Gives a later deadline to a request of which no copy was applied, or ever will be.
    fn postpone(&self, request_id: RequestId) {
        let latest = self.latest();
        if let Some(Some(open)) = self.slots.lock().open.get_mut(request_id.slot)
            && open.number == request_id.number
        {
            open.latest = latest;
        }
    }

    /// Until when a request may be applied, and its slot's last change before it. Zero, which the
    /// server refuses, if the request is closed; zero if there was no change.
    fn terms_of(&self, request_id: RequestId) -> [u64; 2] {
        let slots = self.slots.lock();
        let latest = slots.open_of(request_id).map_or(0, |open| open.latest);
        [latest, slots.log.last_of(request_id.slot)]
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

impl Drop for Requests {
    fn drop(&mut self) {
        if let Some(changes) = self.changes.upgrade() {
            changes.requests.forget(&self.key);
        }
    }
}

impl Slots {
    fn close(&mut self, request_id: RequestId) {
        if let Some(open) = self.open.get_mut(request_id.slot)
            && open.is_some_and(|open| open.number == request_id.number)
        {
            *open = None;
            self.free.push(Reverse(request_id.slot));
        }
    }

    fn open_of(&self, request_id: RequestId) -> Option<OpenRequest> {
        let open = self.open.get(request_id.slot).copied().flatten();
        open.filter(|open| open.number == request_id.number)
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
    pub(crate) request_id: RequestId,
    pub(crate) arguments: &'a [&'a [u8]],
    /// The replicas that must have taken permits before those count.
    pub(crate) acks: Option<ReplicaAcks>,
}

impl Once<'_> {
    /// The request as it is sent first, or as a copy.
    pub(crate) fn command(&self, copy: bool) -> Command {
        let (RequestId { number, slot }, requests) = (self.request_id, self.requests);
        let [latest, before] = requests.terms_of(self.request_id);
        let mut digits = [[0; 20]; 4];
        let [first, second, third, fourth] = &mut digits;
        let mut signed = [b'-'; 21];
        let mut arguments: Vec<&[u8]> = Vec::with_capacity(4 + self.arguments.len());
        arguments.push(decimal(number, first));
        arguments.push(decimal(latest, second));
        arguments.push(millis(requests.memory, third));
        let at = write_decimal(before, &mut signed[1..]);
        arguments.push(&signed[if copy { at } else { at + 1 }..]);
        arguments.extend_from_slice(self.arguments);
        let slot = slot as u64;
        let slot = [requests.key.as_bytes(), b":", decimal(slot, fourth)].concat();
        let keys = [self.key.as_bytes(), &*slot, self.another.unwrap_or("").as_bytes()];
        let keys = if self.another.is_some() { &keys[..] } else { &keys[..2] };
        Command::script(self.script, keys, &arguments).acknowledged(self.acks)
    }

    /// Sends the request and waits for its reply; sends a copy if the connection breaks.
    pub(crate) fn call(&self, route: &Route) -> Result<Value, Trouble> {
        self.call_again(route, false)
    }

    /// The same for a request that this thread may have sent before, in another call.
    pub(crate) fn call_again(&self, route: &Route, sent_before: bool) -> Result<Value, Trouble> {
        let as_sent = |command| needing(command, self.rights);
        self.send(route, sent_before, as_sent).map(|replied| replied.reply)
    }

    /// The same for a request that may take permits.
    pub(crate) fn take(&self, route: &Route) -> Result<Replied<Value>, Trouble> {
        self.send(route, false, |command| needing(command, self.rights))
    }

    /// The same for a request that gives permits back. It does not need all rights: what it can
    /// do it does.
    pub(crate) fn give(&self, route: &Route) -> Result<Replied<Value>, Trouble> {
        self.send(route, false, |command| command)
    }

    fn send(
        &self,
        route: &Route,
        mut sent_before: bool,
        as_sent: impl Fn(Command) -> Command,
    ) -> Result<Replied<Value>, Trouble> {
        if !self.requests.server.is_known() {
            // Nothing was sent so far, with or without an answer to the question.
            self.learn(route).map_err(|trouble| match trouble {
                Trouble::Unknown(error) => Trouble::Unsent(error),
                trouble => trouble,
            })?;
        }
        let (mut again, mut behind) = (false, 0);
        loop {
            let copy = || as_sent(self.command(true));
            let first = as_sent(self.command(sent_before));
            let (outcome, in_doubt) = route.call_twice(&first, copy);
            let in_doubt = in_doubt || sent_before;
            let replied = granted(outcome, in_doubt, self.rights, Ok)?;
            if Requests::is_behind(&replied.reply) {
                sent_before = in_doubt;
                behind += 1;
                if behind > MOST_BEHIND {
                    self.requests.with_log(|log| log.forget_slot(self.request_id.slot));
                }
                if !self.requests.must_be_mended(self.request_id, route.incarnation()) {
                    continue;
                }
                for (_, mend) in self.requests.mends(Some(self.request_id.slot)) {
                    let (outcome, _) = route.call_twice(&mend, || mend.clone());
                    answered(outcome, in_doubt, self.rights)?;
                }
                continue;
            }
            if !self.requests.is_late(&replied.reply) {
                return Ok(replied);
            } else if in_doubt {
                // The first copy may have been applied so long ago that the server has forgotten
                // it.
                return Err(Trouble::Forgotten(forgotten()));
            } else if again {
                return Err(Trouble::Unsent(late()));
            }
            // The only copy has done nothing: this thread stood still, or a clock jumped.
            self.requests.postpone(self.request_id);
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
        self.requests.postpone(self.request_id);
        Ok(())
    }
}

/// A request that was sent once came too late.
pub(crate) fn late() -> Error {
    let message = "the request reached the server too late, or one of the two clocks jumped";
    Error::new(ErrorKind::Redis, message.to_owned())
}

/// The server lacks an earlier change of the slot, and has done nothing.
pub(crate) fn behind() -> Error {
    let message = "the server does not know an earlier change by this client; it may have just \
                   become the master";
    Error::new(ErrorKind::Redis, message.to_owned())
}

/// A request that was sent more than once came too late.
fn forgotten() -> Error {
    let message = format!(
        "the request was sent again after more than {VALID_FOR:?}, when the server may have forgotten it"
    );
    Error::new(ErrorKind::Redis, message)
}

#[cfg(all(test, testkit))]
mod tests;
