//! The server as a pure state machine. The machine has the scripts of `lua/hand_off.lua`,
//! `lua/lock/` and `lua/read_write/` for one lock, without their shortcuts, refusals and costs.
//! `against.rs` compares it with the real scripts.
//!
//! Times are milliseconds on the server's clock. A key still exists in the millisecond in which it
//! ends.

use crate::scripts::lock::Again;

const PROVISIONAL: i64 = 2_000;
const WINDOW: i64 = 4;
const MIN_CHAIN_AGE: i64 = 10;
const ALIVE_FOR: i64 = 2_000;
const MAX_REQUEST_AGE: i64 = 400;
const TOKENS: u64 = 1_024;

/// A client's number. The number has its own type, because clients of the same kind may exchange
/// their names (`identity.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client(pub(crate) u16);

impl Client {
    /// A Redisson client.
    pub(crate) const JAVA: Self = Self(15);

    fn is_ours(self) -> bool {
        self != Self::JAVA
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    pub(crate) client: Client,
    pub(crate) number: u8,
    pub(crate) writes: bool,
}

/// A chain of grants among redlatch's processes: its beginning and its number of grants, as a
/// release sends them. Zero if they are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Chain {
    pub(crate) since: i64,
    pub(crate) count: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Request {
    Acquire { again: Option<Again> },
    Try,
    Release { chain: Chain },
    GiveUp { chain: Chain },
    Renew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reply {
    Granted {
        already: bool,
        places: i64,
        token: Option<u64>,
    },
    Queued {
        now: i64,
        left: i64,
        place: i64,
        whose: i64,
        is_new: bool,
    },
    NotTaken,
    /// `None` if the lock was not held.
    Released(Option<i64>),
    Renewed(bool),
}

/// A message to one redlatch client, or to all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Message {
    Grant { owner: Owner, now: i64, places: i64, chain: Chain, token: Option<u64> },
    Open { owner: Owner, left: i64 },
    Public { by_writer: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Lock,
    Fenced,
    ReadWrite,
}

/// Known bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bug {
    ReleaseOfAnother,
    TakenThoughHeld,
    GrantWithoutMessage,
    SecondPlace,
    ReleaseGrantsNobody,
    AskerGrantsNobody,
    PlaceAfterGivingUp,
    KeptAfterGivingUp,
    GrantToTheDead,
    TokensNotCounted,
    LeaseCutByCopy,
    RenewedThoughNotHeld,
    RenewedInWords,
    NobodyIsSilent,
    AllAreSilent,
    WriterBesideReaders,
    ReaderBesideWriter,
    ReaderPassesWriter,
    OnlyFirstReader,
    FirstReaderFrees,
    /// If a reader sends another request, its expired timeout is not created again.
    LapsedTimeoutStays,
    TakenInWindow,
    NobodyToldOfWindow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Read,
    Write,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) bug: Option<Bug>,
    pub(crate) now: i64,
    /// The mode of the hold. A plain lock is always held for writing.
    pub(crate) mode: Option<Mode>,
    pub(crate) holders: Vec<Owner>,
    pub(crate) ends: i64,
    /// The end of each reader's own lease.
    pub(crate) timeouts: Vec<(Owner, i64)>,
    pub(crate) queue: Vec<Owner>,
    pub(crate) queue_ends: i64,
    /// The time for which the queue exists after the last request.
    pub(crate) kept: i64,
    /// The owners that have sent more than one request. For each such owner, the beginning of its
    /// wait, and the time until which the server does not treat it as silent.
    pub(crate) asked: Vec<(Owner, i64, i64)>,
    pub(crate) window: Option<i64>,
    pub(crate) token: u64,
    /// The clients that have subscribed to their own channels, with one bit for each.
    pub(crate) listens: u32,
    /// The number of Redisson clients that have subscribed to the public channel.
    pub(crate) others: i64,
    pub(crate) told: Vec<Message>,
}

impl Server {
    pub(crate) fn new(kind: Kind, bug: Option<Bug>, now: i64, kept: i64, token: u64) -> Self {
        Self {
            kind,
            bug,
            now,
            mode: None,
            holders: Vec::new(),
            ends: 0,
            timeouts: Vec::new(),
            queue: Vec::new(),
            queue_ends: 0,
            kept,
            asked: Vec::new(),
            window: None,
            token,
            listens: 0,
            others: 0,
            told: Vec::new(),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Runs a script with this lease in ms. The messages are afterwards in `told`.
    pub(crate) fn run(&mut self, owner: Owner, request: Request, lease: i64) -> Reply {
        self.told.clear();
        self.expire();
        match request {
            Request::Acquire { again } => self.acquire(owner, lease, again),
            Request::Try => self.try_acquire(owner, lease),
            Request::Release { chain } => self.release(owner, chain, true),
            Request::GiveUp { chain } => {
                if !self.has(Bug::PlaceAfterGivingUp) {
                    self.queue.retain(|other| *other != owner);
                }
                if self.has(Bug::KeptAfterGivingUp) {
                    return Reply::Released(None);
                }
                self.release(owner, chain, false)
            }
            Request::Renew => self.renew(owner, lease),
        }
    }

    /// Removes expired keys and fields.
    pub(crate) fn expire(&mut self) {
        let now = self.now;
        if self.ends < now {
            self.free();
        }
        if self.queue_ends < now {
            self.queue.clear();
        }
        self.timeouts.retain(|(_, ends)| *ends >= now);
        self.asked.retain(|(.., ends)| *ends >= now);
        self.window.take_if(|ends| *ends < now);
    }

    fn free(&mut self) {
        self.mode = None;
        self.holders.clear();
    }

    pub(crate) fn hears(&self, client: Client) -> bool {
        self.listens >> client.0 & 1 == 1
    }

    fn is_held_by(&self, owner: Owner) -> bool {
        self.holders.contains(&owner)
    }

    /// Returns the remaining time of an open window.
    fn window_left(&self) -> Option<i64> {
        self.window.map(|ends| ends - self.now).filter(|left| (1..=WINDOW).contains(left))
    }

    // ---- taking ---------------------------------------------------------------------------

    fn is_read_write(&self) -> bool {
        self.kind == Kind::ReadWrite
    }

    fn acquire(&mut self, owner: Owner, lease: i64, again: Option<Again>) -> Reply {
        if self.is_held_by(owner) {
            return self.held_already(owner, lease);
        }
        let is_ours = self.holders.iter().all(|holder| holder.client.is_ours());
        let is_untouched = self.queue.is_empty() || self.has(Bug::ReaderPassesWriter);
        if self.may_enter(owner) && is_untouched && self.window.is_none() {
            self.make_holder(owner, lease);
            return self.granted_reply(false);
        }
        // The shortcut `queue_up.lua`.
        let queues_up = !self.is_read_write()
            && self.mode.is_some()
            && is_ours
            && again.is_none()
            && (!self.queue.contains(&owner) || self.has(Bug::SecondPlace));
        if queues_up {
            self.queue.push(owner);
            self.queue_ends = self.now + self.kept;
            let place = self.queue.len() as i64 - 1;
            let left = if place == 0 { self.ends - self.now } else { PROVISIONAL };
            return Reply::Queued { now: self.now, left, place, whose: 0, is_new: true };
        }
        let was_held = self.mode.is_some();
        let (mut place, is_new) = self.enqueue(owner, again.map(|it| it.waiting_since as i64));
        let open = if was_held { None } else { self.window_left() };
        let open = open.filter(|_| !self.has(Bug::TakenInWindow));
        let may_grant =
            if self.is_read_write() { self.mode != Some(Mode::Write) } else { !was_held };
        if may_grant && open.is_none() {
            if !was_held {
                self.remove_silent(owner, again.and_then(|again| again.sent));
            }
            if self.grant(Chain { since: self.now, count: 1 }, Some((owner, lease))) {
                return self.granted_reply(false);
            }
            place = self.queue.iter().position(|other| *other == owner).unwrap_or(0);
        }
        let is_foreign = self.holders.iter().any(|holder| !holder.client.is_ours());
        let whose = if open.is_some() { 2 } else { i64::from(is_foreign) };
        if whose == 1 && place > 1 && !is_new && (was_held || self.is_read_write()) {
            self.announce(0, Some(owner));
        }
        let held = self.mode.map(|_| self.ends - self.now);
        let held = if self.is_read_write() || was_held { held } else { None };
        let left = open.or(held).unwrap_or(PROVISIONAL);
        Reply::Queued { now: self.now, left, place: place as i64, whose, is_new }
    }

    fn try_acquire(&mut self, owner: Owner, lease: i64) -> Reply {
        if self.is_held_by(owner) {
            return self.held_already(owner, lease);
        }
        if self.mode == Some(Mode::Read) {
            self.grant_next();
        }
        let may = match self.mode {
            None => true,
            Some(Mode::Read) => !owner.writes && self.queue.is_empty(),
            Some(Mode::Write) => false,
        };
        if !may {
            return Reply::NotTaken;
        }
        self.make_holder(owner, lease);
        if self.is_read_write() && !owner.writes {
            self.grant_next();
        }
        self.granted_reply(false)
    }

    fn held_already(&mut self, owner: Owner, lease: i64) -> Reply {
        self.raise_hold(owner, lease, !self.has(Bug::LapsedTimeoutStays));
        if self.has(Bug::LeaseCutByCopy) {
            self.ends = self.now + 1_000;
        }
        self.take_tokens();
        self.granted_reply(true)
    }

    fn granted_reply(&self, already: bool) -> Reply {
        let token = (self.kind == Kind::Fenced).then_some(self.token);
        Reply::Granted { already, places: self.queue.len() as i64, token }
    }

    /// Whether the mode of the owner agrees with the present holders, without regard to waiters.
    fn may_enter(&self, owner: Owner) -> bool {
        match self.mode {
            _ if self.has(Bug::TakenThoughHeld) => true,
            None => true,
            Some(Mode::Read) => !owner.writes || self.has(Bug::WriterBesideReaders),
            Some(Mode::Write) => self.has(Bug::ReaderBesideWriter) && !owner.writes,
        }
    }

    fn raise_hold(&mut self, owner: Owner, lease: i64, makes_anew: bool) {
        let ends = self.now + lease;
        if self.is_read_write() && !owner.writes {
            match self.timeouts.iter_mut().find(|(reader, _)| *reader == owner) {
                Some((_, timeout)) => *timeout = ends.max(*timeout),
                None if makes_anew => self.timeouts.push((owner, ends)),
                None => {}
            }
        }
        self.ends = self.ends.max(ends);
    }

    fn take_tokens(&mut self) {
        if self.kind == Kind::Fenced && !self.has(Bug::TokensNotCounted) {
            self.token += TOKENS;
        }
    }

    fn make_holder(&mut self, owner: Owner, lease: i64) {
        self.take_tokens();
        let ends = self.now + lease;
        if self.mode.is_none() {
            self.ends = ends;
        }
        let reads = self.is_read_write() && !owner.writes;
        if reads {
            self.timeouts.retain(|(reader, _)| *reader != owner);
            self.timeouts.push((owner, ends));
            self.mode.get_or_insert(Mode::Read);
        } else {
            self.mode = Some(Mode::Write);
        }
        self.ends = self.ends.max(ends);
        // An owner in the queue may send this request, which succeeds if the owner already has the
        // lock.
        if !self.is_held_by(owner) {
            self.holders.push(owner);
        }
    }

    // ---- the queue ------------------------------------------------------------------------

    fn waiting_since(&self, owner: Owner) -> Option<i64> {
        self.asked.iter().find(|(other, ..)| *other == owner).map(|(_, since, _)| *since)
    }

    /// Returns the index of the owner's entry, and whether the call has added the entry.
    fn enqueue(&mut self, owner: Owner, waiting_since: Option<i64>) -> (usize, bool) {
        if let Some(waiting_since) = waiting_since {
            self.asked.retain(|(other, ..)| *other != owner);
            self.asked.push((owner, waiting_since, self.now + ALIVE_FOR));
        }
        let place = self.queue.iter().position(|other| *other == owner);
        self.queue_ends = self.now + self.kept;
        if let Some(place) = place.filter(|_| !self.has(Bug::SecondPlace)) {
            return (place, false);
        }
        let back = waiting_since.and_then(|since| self.requeue(since));
        let place = back.unwrap_or(self.queue.len());
        self.queue.insert(place, owner);
        (place, true)
    }

    fn requeue(&self, waiting_since: i64) -> Option<usize> {
        let waited_long = self.now - waiting_since >= ALIVE_FOR;
        let mut place = None;
        for (at, other) in self.queue.iter().enumerate().rev() {
            match self.waiting_since(*other) {
                Some(since) if since > waiting_since => place = Some(at),
                Some(_) => break,
                None if waited_long => place = Some(at),
                None => {}
            }
        }
        place
    }

    fn remove_silent(&mut self, asker: Owner, sent: Option<u64>) {
        if sent.is_none_or(|sent| (self.now - sent as i64).abs() > MAX_REQUEST_AGE) {
            return;
        }
        let ahead = self.queue.iter().position(|other| *other == asker).unwrap_or(0);
        let heard = |owner: Owner| match self.bug {
            Some(Bug::NobodyIsSilent) => true,
            Some(Bug::AllAreSilent) => false,
            _ => self.waiting_since(owner).is_some(),
        };
        let keeps: Vec<_> =
            self.queue.iter().enumerate().map(|(at, other)| at >= ahead || heard(*other)).collect();
        let mut keeps = keeps.into_iter();
        self.queue.retain(|_| keeps.next().unwrap_or(true));
    }

    fn announce(&mut self, left: i64, asker: Option<Owner>) {
        if self.has(Bug::NobodyToldOfWindow) {
            return;
        }
        while let Some(head) = self.queue.first().copied() {
            if self.hears(head.client) {
                return self.told.push(Message::Open { owner: head, left });
            }
            if Some(head) == asker {
                return;
            }
            self.queue.remove(0);
        }
    }

    /// Grants the lock to the first waiter that has a subscription. If this waiter reads, also
    /// grants it to all readers directly behind it. Returns whether `asker`, the sender of the
    /// request, got the lock. Without an asker, returns whether any owner got the lock.
    fn grant(&mut self, chain: Chain, asker: Option<(Owner, i64)>) -> bool {
        let (mut granted, mut asked) = (false, false);
        while let Some(head) = self.queue.first().copied() {
            let asks = asker.filter(|(owner, _)| *owner == head);
            let is_dead =
                asks.is_none() && !self.hears(head.client) && !self.has(Bug::GrantToTheDead);
            match self.mode {
                None => {}
                Some(_) if !self.is_read_write() => break,
                Some(Mode::Write) => break,
                Some(Mode::Read)
                    if !is_dead && head.writes && !self.has(Bug::WriterBesideReaders) =>
                {
                    break;
                }
                Some(Mode::Read) if granted && self.has(Bug::OnlyFirstReader) => break,
                Some(Mode::Read) => {}
            }
            self.queue.remove(0);
            if is_dead {
                continue;
            }
            if self.has(Bug::AskerGrantsNobody) && asker.is_some() && asks.is_none() {
                continue;
            }
            self.make_holder(head, asks.map_or(PROVISIONAL, |(_, lease)| lease));
            granted = true;
            if asks.is_some() {
                asked = true;
                continue;
            }
            let places = match self.queue.iter().position(|other| other.writes) {
                Some(first) if self.is_read_write() && !head.writes => self.queue.len() - first,
                None if self.is_read_write() && !head.writes => 0,
                _ => self.queue.len(),
            } as i64;
            let token = (self.kind == Kind::Fenced).then_some(self.token);
            if self.hears(head.client) && !self.has(Bug::GrantWithoutMessage) {
                let now = self.now;
                self.told.push(Message::Grant { owner: head, now, places, chain, token });
            }
        }
        if asker.is_some() { asked } else { granted }
    }

    /// Makes a grant that is due.
    fn grant_next(&mut self) {
        if self.mode == Some(Mode::Write) || self.mode.is_some() && !self.is_read_write() {
            return;
        }
        let left = if self.mode.is_none() { self.window_left() } else { None };
        if let Some(left) = left {
            self.announce(left, None);
        } else {
            self.grant(Chain { since: self.now, count: 1 }, None);
        }
    }

    // ---- leaving --------------------------------------------------------------------------

    fn publish(&mut self, by_writer: bool) {
        self.told.push(Message::Public { by_writer });
    }

    /// If `shortcut` is true, `hand_over.lua` runs first.
    fn release(&mut self, owner: Owner, chain: Chain, shortcut: bool) -> Reply {
        let by_writer = self.is_read_write() && owner.writes;
        let says = chain.since > 0 || chain.since <= -MIN_CHAIN_AGE;
        let Chain { since, count } = if says { chain } else { Chain::default() };
        if shortcut && !self.is_read_write() && since <= 0 && self.queue.is_empty() {
            let alone = since <= -MIN_CHAIN_AGE;
            if !(alone && self.others > 0) && self.is_held_by(owner) {
                self.free();
                self.publish(false);
                return Reply::Released(Some(if alone { 3 } else { 0 }));
            }
        }
        if !self.is_held_by(owner) {
            if self.has(Bug::ReleaseOfAnother) {
                self.free();
            }
            self.grant_next();
            return Reply::Released(None);
        }
        if self.is_read_write() {
            return self.leave(owner, Chain { since, count }, by_writer);
        }
        self.free();
        // The shortcut `hand_over.lua` grants the lock without a check of the chain's age.
        let now = self.now;
        let is_young = since == 0 || since > 0 && (now - since).abs() < MIN_CHAIN_AGE;
        if shortcut && is_young && !self.is_read_write() {
            let start = if since > 0 { since } else { now };
            let chain = Chain { since: start, count: count + 1 };
            if self.hand_to_next(chain) {
                return Reply::Released(Some(1));
            }
            self.publish(false);
            return Reply::Released(Some(0));
        }
        Reply::Released(Some(self.hand_on(since, count, false)))
    }

    fn hand_to_next(&mut self, chain: Chain) -> bool {
        !self.has(Bug::ReleaseGrantsNobody) && self.grant(chain, None)
    }

    fn hand_on(&mut self, since: i64, count: i64, by_writer: bool) -> i64 {
        let now = self.now;
        let (mut start, mut count) = (if since > 0 { since } else { now + since }.max(0), count);
        let mut reply = 0;
        let age = if since > 0 { (now - since).abs() } else { -since };
        if age >= MIN_CHAIN_AGE {
            if self.others > 0 && count * self.others > self.queue.len() as i64 {
                self.window = Some(now + WINDOW);
                self.publish(by_writer);
                self.announce(WINDOW, None);
                return 2;
            } else if self.others == 0 {
                (start, count, reply) = (now, 0, 3);
            }
        }
        if self.hand_to_next(Chain { since: start, count: count + 1 }) {
            return 1;
        }
        self.publish(by_writer);
        reply
    }

    /// One of the holders of a read-write lock releases its hold.
    fn leave(&mut self, owner: Owner, chain: Chain, by_writer: bool) -> Reply {
        let lives = |(reader, _): &&(Owner, i64)| *reader != owner && self.holders.contains(reader);
        let alive: Vec<_> = self.timeouts.iter().filter(lives).copied().collect();
        let longest = alive.iter().map(|(_, ends)| ends - self.now).max().unwrap_or(0);
        let is_free = longest == 0 || self.has(Bug::FirstReaderFrees);
        self.timeouts.retain(|(reader, _)| *reader != owner);
        if is_free {
            self.free();
            let reply = self.hand_on(chain.since, chain.count, by_writer);
            if reply == 1 && by_writer && self.mode == Some(Mode::Read) && self.others > 0 {
                self.publish(true);
            }
            return Reply::Released(Some(reply));
        }
        self.holders.retain(|reader| alive.iter().any(|(other, _)| other == reader));
        self.ends = self.now + longest;
        Reply::Released(Some(4))
    }

    fn renew(&mut self, owner: Owner, lease: i64) -> Reply {
        let is_held = self.is_held_by(owner) || self.has(Bug::RenewedThoughNotHeld);
        if is_held && !self.has(Bug::RenewedInWords) {
            self.raise_hold(owner, lease, true);
        }
        Reply::Renewed(is_held)
    }

    // ---- Redisson's scripts ---------------------------------------------------------------

    /// Redisson's script takes a free lock, even if there is a queue or a window.
    pub(crate) fn java_takes(&mut self, lease: i64) -> bool {
        self.told.clear();
        self.expire();
        let may = self.mode.is_none();
        if may {
            (self.mode, self.ends) = (Some(Mode::Write), self.now + lease);
            self.holders.push(JAVA);
        }
        may
    }

    pub(crate) fn java_leaves(&mut self) {
        self.told.clear();
        self.expire();
        if self.is_held_by(JAVA) {
            self.free();
            self.publish(false);
        }
    }
}

pub(crate) const JAVA: Owner = Owner { client: Client::JAVA, number: 1, writes: true };
