//! One process and one lock, without I/O. The library's own state machine (`src/ask/entry.rs`)
//! decides how the process waits. This file replaces the other parts of the library: the thread
//! that sends the requests, its messages, its hold, and the undo of requests.
//!
//! ```text
//!            Lock                     granted by reply or message
//!   Idle ───────────> Waiting ──────────────────────────────────────> Holding
//!    ^                   │ GiveUp: give_up                               │
//!    ├───────────────────┘                                Unlock: release│
//!    ├───────────────────────────────────────────────────────────────────┤
//!    └─────────────────────────────── its deadline, or a word that it is lost: give_up
//! ```
//!
//! As in the library, a thread with a request in flight does nothing else until the reply or the
//! end of its wait. Messages that come in the meantime stay uncollected.
//!
//! Times are microseconds on the process's own clock, which never jumps. Times in requests and
//! replies are milliseconds.

use std::time::Duration;

use super::library::chain::{Chain, ChainStart};
use super::library::cohort::Cohort;
use super::library::deadline::deadline;
use super::library::entry::{
    self, AfterReply, By, Collector, EntryMachine, Messages, ReceivedGrant, Then, Undo, ValidGrant,
};
use super::library::exchanges::Asked;
use super::random::Random;
use super::site::Site;
use super::wire::{self, Message, Released, Reply, Request, What, Whose};

pub(crate) type Time = i64;
pub(crate) const MS: Time = 1_000;
pub(crate) const SECOND: Time = 1_000 * MS;

/// The full lease, in ms.
pub(crate) const LEASE: i64 = 30_000;

/// The age at which a hold that was granted by message gets the full lease.
const RAISE: Time = 50 * MS;
const RAISE_AGAIN: Time = 400 * MS;
/// If a process notices its grant by a request, it waits this long for the message of the grant,
/// and then subscribes again.
const SUSPECT: Time = 300 * MS;
/// The times after a request in doubt at which the process undoes the request again. A copy of the
/// request may reach the server as late as the last of these times.
const LATE: [Time; 6] = [
    SECOND / 2,
    2 * SECOND,
    4 * SECOND,
    7 * SECOND + SECOND / 2,
    8 * SECOND + SECOND / 2,
    9 * SECOND + SECOND / 2,
];

/// A rule that a test may switch off, to show its purpose. Rules that only save time have no
/// switch, because no history is long enough to show their purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The deadline of a grant by message counts from the last exchange with the server, and not
    /// from the receipt of the message.
    Anchor,
    /// After a request in doubt, the process repeats the undo for as long as a copy may arrive.
    Late,
    /// While Redisson has the lock, the first two waiters in the queue subscribe to the public
    /// channel.
    Listen,
    /// If no other process wanted the lock for a moment, the chain of grants continues.
    Continue,
    /// For a fair lock: a grant that is read too late is not used.
    Deadline,
    /// For a fair lock: a waiting process sends one request during the short lease of a grant by
    /// message.
    Poll,
    /// No user's script is sent under a hold whose request was sent twice.
    Doubt,
}

impl Rule {
    pub(crate) const ALL: [Self; 7] = [
        Self::Anchor,
        Self::Late,
        Self::Listen,
        Self::Continue,
        Self::Deadline,
        Self::Poll,
        Self::Doubt,
    ];
}

#[derive(Debug)]
pub(crate) enum Input {
    Lock,
    /// A thread wants the lock if it is free.
    TryLock,
    GiveUp,
    Unlock,
    /// A reply, and the time at which the copy of the request was sent that got the reply.
    Reply {
        sent: Time,
        request: Request,
        reply: Reply,
    },
    /// The connection broke during a request, so the request may run twice, late, or never.
    InDoubt(Request),
    Message(Message),
    /// A message about a release, on the public channel.
    Public,
    /// The subscription to the own channel is confirmed.
    Subscribed,
    /// The subscription to the public channel is confirmed.
    Listening,
    Timer(Timer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A request may be due. The second number is that of the sleep for which the timer was set.
    Ask(u64, u64),
    Raise(u64),
    Deadline(u64),
    Suspect(u64),
    /// The next undo after a request in doubt.
    Late(u64, usize),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send this request to the server, after all earlier requests.
    Send(Request),
    At(Time, Timer),
    /// Subscribe to the public channel and to its companion channel.
    Listen,
    Unlisten,
    /// Subscribe to the own channel on a new connection.
    Resubscribe,
    /// The caller has the lock with this number and this fencing token. The hold lasts until this
    /// time, unless it is extended.
    Entered(u64, Time, Option<i64>),
    Extended(Time),
    Lost,
    /// The lock was not granted to a thread that does not wait, or the server refused the script.
    Refused,
}

#[derive(Debug)]
enum State {
    Idle,
    Waiting(Box<Wait>),
    Holding(Hold),
}

/// A thread that waits, or that tries once.
#[derive(Debug)]
struct Wait {
    number: u64,
    entry: EntryMachine<Details>,
    messages: Messages<Details>,
    /// Whether the thread has an entry in the queue and may send further requests.
    waits: bool,
    request: Option<Request>,
    /// Whether the request was sent twice.
    is_copy: bool,
    nap: u64,
    listens: bool,
}

/// The other details of a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Details {
    chain: Chain,
    token: Option<i64>,
}

#[derive(Debug)]
struct Hold {
    number: u64,
    until: Time,
    is_raised: bool,
    in_doubt: bool,
    /// Whether messages to this owner go to the thread. If this is false, the process gives grants
    /// back.
    is_registered: bool,
    chain: Chain,
}

#[derive(Debug)]
pub(crate) struct Process {
    site: Site,
    broken: Option<Rule>,
    state: State,
    numbers: u64,
    cohort: Cohort,
    suspect: Option<u64>,
    random: Random,
    outputs: Vec<Output>,
}

impl Process {
    pub(crate) fn new(site: Site, broken: Option<Rule>, seed: u64) -> Self {
        Self {
            site,
            broken,
            state: State::Idle,
            numbers: 0,
            cohort: Cohort::default(),
            suspect: None,
            random: Random::new(seed),
            outputs: Vec::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(&self.state, State::Waiting(wait) if wait.waits)
    }

    /// Whether a request is in flight. The request's thread then does nothing else.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(&self.state, State::Waiting(wait) if wait.request.is_some())
    }

    /// The number of the hold under which the process may send a user's script now.
    pub(crate) fn may_eval(&self, now: Time) -> Option<u64> {
        let State::Holding(hold) = &self.state else { return None };
        let is_certain = !hold.in_doubt || self.broken == Some(Rule::Doubt);
        (is_certain && now < hold.until).then_some(hold.number)
    }

    pub(crate) fn on(&mut self, now: Time, input: Input) -> Vec<Output> {
        match input {
            Input::Lock => self.begin(now, true),
            Input::TryLock => self.begin(now, false),
            Input::GiveUp => self.stop_waiting(now),
            Input::Unlock => self.unlock(now),
            Input::Reply { sent, request, reply } => self.replied(now, sent, &request, reply),
            Input::InDoubt(request) => self.doubt(now, request),
            Input::Message(message) => self.told(now, message),
            Input::Public | Input::Listening => {
                self.tell(now, |messages| messages.has_public_release = true);
            }
            Input::Subscribed => self.tell(now, |messages| messages.must_ask = true),
            Input::Timer(timer) => self.timer(now, timer),
        }
        std::mem::take(&mut self.outputs)
    }

    // ---- waiting --------------------------------------------------------------------------

    fn begin(&mut self, now: Time, waits: bool) {
        self.numbers = self.site.kind.next_number(self.numbers, &mut self.random);
        self.state = State::Waiting(Box::new(Wait {
            number: self.numbers,
            entry: EntryMachine::new(),
            messages: Messages::new(),
            waits,
            request: None,
            is_copy: false,
            nap: 0,
            listens: false,
        }));
        self.go_on(now);
    }

    /// Reads messages, sends a request if one is due, and otherwise sleeps.
    fn go_on(&mut self, now: Time) {
        let State::Waiting(wait) = &mut self.state else { return };
        if wait.request.is_some() {
            return;
        }
        if !wait.messages.is_empty() {
            let messages = std::mem::replace(&mut wait.messages, Messages::new());
            let collector = Collector { lease: whole(), incarnation: 0, needs_reply: false };
            if let Some(granted) = wait.entry.collect(nanos(now), messages, collector) {
                return self.enter(now, granted);
            }
        }
        let (number, ask_at) = (wait.number, wait.entry.ask_at());
        if ask_at > nanos(now) {
            wait.nap += 1;
            let timer = Timer::Ask(number, wait.nap);
            let until = (ask_at.div_ceil(1_000)).min(i64::MAX as u64) as Time;
            return self.outputs.push(Output::At(until, timer));
        }
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: nanos(now) };
        let Some(again) = wait.entry.begin_request(asked, whole(), wait.waits) else { return };
        let request = if wait.waits {
            Request::Acquire { number, lease: LEASE, again }
        } else {
            Request::Try { number, lease: LEASE }
        };
        (wait.request, wait.is_copy) = (Some(request.clone()), false);
        self.send(request);
    }

    /// Adds a message to those that the thread has not collected.
    fn tell(&mut self, now: Time, put: impl FnOnce(&mut Messages<Details>)) {
        if let State::Waiting(wait) = &mut self.state {
            put(&mut wait.messages);
            self.go_on(now);
        }
    }

    fn answered(&mut self, now: Time, reply: Reply) {
        let poll = nanos(800 * MS + 400 * self.random.between(0, 1_000));
        let State::Waiting(wait) = &mut self.state else { return };
        let (number, waits) = (wait.number, wait.waits);
        wait.request = None;
        let reply = match reply {
            Reply::Granted { already, token } => {
                let details = Details { token, ..Details::default() };
                entry::EntryReply::Granted { already, lease: whole(), waits, details }
            }
            Reply::Queued(queued) => entry::EntryReply::Queued {
                now: queued.now as u64,
                left: Duration::from_millis(queued.left.max(0) as u64),
                place: queued.place as u32,
                by_redisson: queued.whose == Whose::Redissons,
                is_new: queued.is_fresh,
                poll,
            },
            Reply::NotTaken => entry::EntryReply::NotTaken,
            _ => {
                // The first copy may run, even if the second copy does not.
                wait.entry.unanswered(wait.is_copy);
                return self.fail(now);
            }
        };
        let AfterReply { listens, suspects, then } =
            wait.entry.answered(nanos(now), reply, wait.is_copy);
        if listens == entry::Listens::ToPublic && !wait.listens && self.broken != Some(Rule::Listen)
        {
            wait.listens = true;
            self.outputs.push(Output::Listen);
        }
        if suspects {
            // The message of the grant was sent but has not arrived. If it does not arrive soon,
            // the subscription is dead without an error.
            self.suspect = Some(number);
            self.outputs.push(Output::At(now + SUSPECT, Timer::Suspect(number)));
        }
        match then {
            Then::Granted(granted) => self.enter(now, granted),
            Then::Sleep { .. } if waits => self.go_on(now),
            _ => self.fail(now),
        }
    }

    /// Handles a lost reply: the first copy of the request may run late or never. The connection
    /// sends a second copy. If this copy is lost, too, the waiter sends another request.
    fn doubt(&mut self, now: Time, request: Request) {
        match request {
            Request::Acquire { number, .. } | Request::Try { number, .. } => {
                let State::Waiting(wait) = &mut self.state else { return };
                if wait.number != number || wait.request.is_none() {
                    return;
                }
                if !std::mem::replace(&mut wait.is_copy, true) {
                    return self.send(request);
                }
                wait.request = None;
                wait.entry.unanswered(true);
                if wait.waits { self.go_on(now) } else { self.fail(now) }
            }
            Request::Release { .. } | Request::GiveUp { .. } => self.send(request),
            // Timers handle the loss of these requests.
            Request::Renew { .. } => {}
        }
    }

    fn fail(&mut self, now: Time) {
        self.stop_waiting(now);
        self.outputs.push(Output::Refused);
    }

    fn stop_waiting(&mut self, now: Time) {
        let State::Waiting(wait) = &mut self.state else { return };
        if wait.request.is_some() {
            // The thread does not wait for the reply.
            wait.entry.unanswered(true);
        }
        let messages = std::mem::replace(&mut wait.messages, Messages::new());
        let number = wait.number;
        let (undo, details) = wait.entry.end(messages);
        self.idle();
        let chain = details.map_or_else(Chain::default, |details| details.chain);
        self.give_back(now, number, chain, undo);
    }

    fn idle(&mut self) {
        if matches!(&self.state, State::Waiting(wait) if wait.listens) {
            self.outputs.push(Output::Unlisten);
        }
        self.state = State::Idle;
    }

    /// Gives back the entry or the lock of this owner at the server. Does so now, and again later
    /// in case a copy of a request arrives.
    fn give_back(&mut self, now: Time, number: u64, chain: Chain, undo: Undo) {
        if undo == Undo::Nothing {
            return;
        }
        self.send(Request::GiveUp { number, chain: said(chain, now) });
        if undo == Undo::NowAndLater && self.broken != Some(Rule::Late) {
            self.outputs.push(Output::At(now + LATE[0], Timer::Late(number, 0)));
        }
    }

    fn told(&mut self, now: Time, message: Message) {
        debug_assert_eq!((message.database, &message.lock), (self.site.database, &self.site.lock));
        let number = message.number;
        let waits =
            matches!(&self.state, State::Waiting(wait) if wait.number == number && wait.waits);
        match message.what {
            What::Open { left } if waits => {
                self.tell(now, |messages| messages.open_until = Some(nanos(now + left * MS)));
            }
            What::Open { .. } => {}
            What::Grant { now: granted, lease, chain, token, .. } => {
                if self.suspect == Some(number) {
                    self.suspect = None;
                }
                let chain = Chain::received(chain.since as u64, chain.count as u64);
                let granted =
                    if self.broken == Some(Rule::Anchor) { u64::MAX } else { granted as u64 };
                let holds = |hold: &Hold| hold.number == number && hold.is_registered;
                if waits {
                    let granted = ReceivedGrant {
                        server_time: granted,
                        received_at: nanos(now),
                        lease: Duration::from_millis(lease as u64),
                        details: Details { chain, token },
                    };
                    self.tell(now, |messages| {
                        messages.grant.get_or_insert(granted);
                    });
                } else if !matches!(&self.state, State::Holding(hold) if holds(hold)) {
                    self.give_back(now, number, chain, Undo::Once);
                }
            }
        }
    }

    // ---- a hold ---------------------------------------------------------------------------

    fn enter(&mut self, now: Time, granted: ValidGrant<Details>) {
        let State::Waiting(wait) = &self.state else { return };
        let number = wait.number;
        let ValidGrant { asked, lease, in_doubt, by } = granted;
        let (lease, is_raised, is_registered, chain, token) = match by {
            By::Message { details } => {
                (lease.min(whole()), false, true, details.chain, details.token)
            }
            By::Reply { details, message, may_be_named, .. } => {
                let chain = match message {
                    Some(message) => message.chain,
                    None if self.broken == Some(Rule::Continue) => {
                        Cohort::default().chain(asked.at)
                    }
                    None => self.cohort.chain(asked.at),
                };
                (whole(), true, may_be_named && wait.waits, chain, details.token)
            }
        };
        let until = (deadline(asked.at, lease) / 1_000) as Time;
        self.idle();
        self.state =
            State::Holding(Hold { number, until, is_raised, in_doubt, is_registered, chain });
        self.outputs.push(Output::Entered(number, until, token));
        self.outputs.push(Output::At(until, Timer::Deadline(number)));
        if !is_raised {
            self.outputs.push(Output::At(now + RAISE, Timer::Raise(number)));
        }
    }

    fn unlock(&mut self, now: Time) {
        let State::Holding(hold) = &self.state else { return };
        let (number, in_doubt) = (hold.number, hold.in_doubt);
        let chain = hold.chain;
        self.state = State::Idle;
        self.cohort.note_release(nanos(now), chain);
        self.send(Request::Release { number, chain: said(chain, now) });
        if in_doubt {
            self.give_back(now, number, chain, Undo::NowAndLater);
        }
    }

    /// Loses the hold, because it is past its deadline or the server reports the loss. Gives the
    /// hold back to the server.
    fn lose(&mut self, now: Time) {
        let State::Holding(hold) = &self.state else { return };
        let undo = if hold.in_doubt { Undo::NowAndLater } else { Undo::Once };
        let number = hold.number;
        self.state = State::Idle;
        self.outputs.push(Output::Lost);
        self.give_back(now, number, Chain::default(), undo);
    }

    fn renewed(&mut self, now: Time, until: Time, held: bool) {
        let State::Holding(hold) = &mut self.state else { return };
        if !held {
            return self.lose(now);
        }
        hold.is_raised = true;
        if hold.until < until && now < hold.until {
            hold.until = until;
            self.outputs.push(Output::Extended(until));
        }
    }

    // ---- replies and timers ---------------------------------------------------------------

    fn replied(&mut self, now: Time, sent: Time, request: &Request, reply: Reply) {
        match (request, reply) {
            (_, Reply::Released(Released::Window | Released::Alone)) => {
                self.cohort.end_chain();
            }
            (Request::Acquire { number, .. } | Request::Try { number, .. }, reply) => {
                let is_awaited = |wait: &Wait| wait.number == *number && wait.request.is_some();
                // No thread waits for this reply. The request's thread has left, and has given up
                // anything that the request may have taken.
                if matches!(&self.state, State::Waiting(wait) if is_awaited(wait)) {
                    self.answered(now, reply);
                }
            }
            (Request::Renew { number, lease }, Reply::Renewed(held)) => {
                let lease = Duration::from_millis(*lease as u64);
                let until = (deadline(nanos(sent), lease) / 1_000) as Time;
                if matches!(&self.state, State::Holding(hold) if hold.number == *number) {
                    self.renewed(now, until, held);
                }
            }
            _ => {}
        }
    }

    fn timer(&mut self, now: Time, timer: Timer) {
        match (timer, &mut self.state) {
            (Timer::Ask(number, nap), State::Waiting(wait))
                if (number, nap) == (wait.number, wait.nap) =>
            {
                self.go_on(now);
            }
            (Timer::Raise(number), State::Holding(hold))
                if number == hold.number && !hold.is_raised =>
            {
                self.send(Request::Renew { number, lease: LEASE });
                self.outputs.push(Output::At(now + RAISE_AGAIN, timer));
            }
            (Timer::Deadline(number), State::Holding(hold)) if number == hold.number => {
                let until = hold.until;
                if until <= now {
                    self.lose(now);
                } else {
                    self.outputs.push(Output::At(until, timer));
                }
            }
            (Timer::Suspect(number), _) if self.suspect == Some(number) => {
                self.suspect = None;
                self.outputs.push(Output::Resubscribe);
            }
            (Timer::Late(number, sent), _) => {
                let chain = wire::Chain::default();
                self.send(Request::GiveUp { number, chain });
                if let Some(next) = LATE.get(sent + 1) {
                    let at = now + next - LATE[sent];
                    self.outputs.push(Output::At(at, Timer::Late(number, sent + 1)));
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, request: Request) {
        self.outputs.push(Output::Send(request));
    }
}

fn whole() -> Duration {
    Duration::from_millis(LEASE as u64)
}

/// Converts a time to the library's unit.
fn nanos(time: Time) -> u64 {
    time as u64 * 1_000
}

/// Returns the chain as a request contains it.
fn said(chain: Chain, now: Time) -> wire::Chain {
    match chain.start_to_send(|| nanos(now)) {
        None => wire::Chain::default(),
        Some(ChainStart::At(at)) => wire::Chain { since: at as i64, count: chain.count.into() },
        Some(ChainStart::Age(age)) => {
            wire::Chain { since: -(age as i64), count: chain.count.into() }
        }
    }
}
