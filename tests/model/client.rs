//! One process and one lock: a client of ours as a state machine without I/O. This is the reference
//! for the library.
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
//! Times are microseconds on the process's own clock, which never jumps; those of the wire are
//! milliseconds.

use super::random::Random;
use super::site::Site;
use super::wire::{Again, Chain, Message, Refused, Released, Reply, Request, What, Whose};

pub(crate) type Time = i64;
pub(crate) const MS: Time = 1_000;
pub(crate) const SECOND: Time = 1_000 * MS;

/// The scripts' AGE: as long as ours keep the lock before others are given a turn.
const AGE: Time = 10 * MS;
/// The whole lease, in ms.
pub(crate) const LEASE: i64 = 30_000;

/// The time by which a deadline by message is shortened: the server's clock is read in whole
/// milliseconds, and clocks run a little differently.
const DRIFT: Time = 2 * MS;
/// A hold that lasts so long is raised to the whole lease.
const RAISE: Time = 50 * MS;
const RAISE_AGAIN: Time = 400 * MS;
/// How often a waiter without messages asks: at least once in a provisional lease, whose end it
/// learns then.
const POLL: Time = SECOND;
/// A process that has been answered promptly for so long may call others silent, unless it stood
/// still itself.
const STEADY: Time = 2 * SECOND;
const PROMPT: Time = 400 * MS;
const PAUSE: Time = 1_500 * MS;
/// A grant that was found by asking should have come as a message so long ago.
const SUSPECT: Time = 300 * MS;
/// A copy of a request may reach the server so late: until then it is undone again and again.
const LATE: [Time; 6] = [
    SECOND / 2,
    2 * SECOND,
    4 * SECOND,
    7 * SECOND + SECOND / 2,
    8 * SECOND + SECOND / 2,
    9 * SECOND + SECOND / 2,
];
/// So many from the head listen to the public channel while Redisson has the lock.
const LISTENERS: i64 = 2;

/// A rule that a test may switch off, to see its purpose. `machine.rs` shows the purpose of the
/// others: they save time, and no history is long enough to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The deadline of a grant by message counts from the last exchange, not from its receipt.
    Anchor,
    /// After a request in doubt the end is repeated for as long as a copy may come.
    Late,
    /// The first two listen to the public channel while Redisson has the lock.
    Listen,
    /// A chain goes on over a lock that no other process wanted for a moment.
    Continue,
}

#[derive(Debug)]
pub(crate) enum Input {
    /// A thread wants the lock.
    Lock,
    /// A thread wants it if it is free.
    TryLock,
    /// The waiting thread wants it no more.
    GiveUp,
    /// The holder is done.
    Unlock,
    /// A reply, and when that copy of the request was sent.
    Reply {
        sent: Time,
        request: Request,
        reply: Reply,
    },
    /// The connection broke under a request: it may be carried out never, twice or late.
    InDoubt(Request),
    Message(Message),
    /// A release, on the public channel.
    Public,
    /// The subscription to the own channel is confirmed.
    Subscribed,
    /// The subscription to the public channel is confirmed.
    Listening,
    Timer(Timer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Ask, unless another event has asked since: the second is the number of this nap.
    Poll(u64, u64),
    /// Ask in any case.
    Ask(u64),
    Raise(u64),
    Deadline(u64),
    Suspect(u64),
    /// The next of the give-ups after a request in doubt.
    Late(u64, usize),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// To the server, in this order.
    Send(Request),
    At(Time, Timer),
    /// To the public channel, and to the companion channel beside it.
    Listen,
    Unlisten,
    /// The own channel, on a new connection.
    Resubscribe,
    /// The caller has the lock under this number until then, unless that is extended; and with
    /// which fencing token.
    Entered(u64, Time, Option<i64>),
    Extended(Time),
    /// The caller has it no more.
    Lost,
    /// A thread that tried was not granted it, or the server refused the script.
    Refused,
}

#[derive(Debug)]
enum State {
    Idle,
    Trying { number: u64, in_doubt: bool },
    Waiting(Wait),
    Holding(Hold),
}

/// An entry, or the way to it. It is the process's, not a thread's: the next thread inherits it.
#[derive(Debug)]
struct Wait {
    number: u64,
    /// When its first request was sent.
    began: Time,
    anchor: Option<Anchor>,
    /// Since when it has an entry, in the server's ms.
    came: Option<i64>,
    /// Since when, and until when, the server has answered it promptly.
    steady: Option<(Time, Time)>,
    /// A copy of a request may still come.
    in_doubt: bool,
    /// Where it stood when it last asked.
    place: Option<i64>,
    nap: u64,
    listens: bool,
}

/// An exchange whose reply had the server's time: that was not before `sent`.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    sent: Time,
    server: Time,
}

impl Wait {
    /// The arguments of the next question.
    fn again(&self, now: Time) -> Option<Again> {
        let is_steady =
            self.steady.is_some_and(|(since, last)| now - since >= STEADY && now - last <= PAUSE);
        let anchor = self.anchor.filter(|_| is_steady);
        let sent = anchor.map(|anchor| (anchor.server + now - anchor.sent) / MS);
        self.came.map(|came| Again { came, sent })
    }

    /// A question that was sent then was answered at that time of the server's: it has an entry.
    fn stands(&mut self, now: Time, sent: Time, server: Time) {
        self.came.get_or_insert(server / MS);
        let is_expected = self
            .anchor
            .is_none_or(|anchor| (anchor.server + sent - anchor.sent - server).abs() <= PROMPT);
        let is_prompt = is_expected && now - sent <= PROMPT;
        self.steady = match self.steady {
            _ if !is_prompt => None,
            Some((since, last)) if sent - last <= PAUSE => Some((since, now)),
            _ => Some((now, now)),
        };
    }
}

#[derive(Debug)]
struct Hold {
    number: u64,
    until: Time,
    is_raised: bool,
    in_doubt: bool,
    /// The server's time of a grant by message.
    granted: Option<Time>,
    chain: OwnChain,
}

/// The chain of a hold, and when it began if no message said so.
#[derive(Clone, Copy, Debug)]
struct OwnChain {
    here: Option<Time>,
    chain: Chain,
}

impl OwnChain {
    /// As a release says it.
    fn said(self, now: Time) -> Chain {
        match self.here {
            Some(here) => Chain { since: -((now - here) / MS), ..self.chain },
            None => self.chain,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Process {
    site: Site,
    broken: Option<Rule>,
    state: State,
    numbers: u64,
    /// The end of the last hold, and its chain.
    last: Option<(Time, OwnChain)>,
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
            last: None,
            suspect: None,
            random: Random::new(seed),
            outputs: Vec::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    pub(crate) fn on(&mut self, now: Time, input: Input) -> Vec<Output> {
        match input {
            Input::Lock => self.lock(now),
            Input::TryLock => self.try_lock(),
            Input::GiveUp => self.stop_waiting(now),
            Input::Unlock => self.unlock(now),
            Input::Reply { sent, request, reply } => self.replied(now, sent, &request, reply),
            Input::InDoubt(request) => self.doubt(now, request),
            Input::Message(message) => self.told(now, message),
            Input::Public => self.public(now),
            // Messages without a listener are lost.
            Input::Subscribed | Input::Listening => self.ask(now),
            Input::Timer(timer) => self.timer(now, timer),
        }
        std::mem::take(&mut self.outputs)
    }

    // ---- waiting --------------------------------------------------------------------------

    fn next_number(&mut self) -> u64 {
        self.numbers = self.site.kind.next_number(self.numbers, &mut self.random);
        self.numbers
    }

    fn lock(&mut self, now: Time) {
        // Before the request is sent: the grant may overtake its reply.
        let number = self.next_number();
        self.state = State::Waiting(Wait {
            number,
            began: now,
            anchor: None,
            came: None,
            steady: None,
            in_doubt: false,
            place: None,
            nap: 0,
            listens: false,
        });
        self.ask(now);
    }

    fn try_lock(&mut self) {
        let number = self.next_number();
        self.state = State::Trying { number, in_doubt: false };
        self.send(Request::Try { number, lease: LEASE });
    }

    /// Any question is this one. A nap that is under way ends with the reply.
    fn ask(&mut self, now: Time) {
        if let State::Waiting(wait) = &self.state {
            let (number, again) = (wait.number, wait.again(now));
            self.send(Request::Acquire { number, lease: LEASE, again });
        }
    }

    fn stop_waiting(&mut self, now: Time) {
        if let State::Waiting(wait) = &self.state {
            let (number, in_doubt) = (wait.number, wait.in_doubt);
            self.idle();
            self.give_back(now, number, Chain::default(), in_doubt);
        }
    }

    fn idle(&mut self) {
        if let State::Waiting(Wait { listens: true, .. }) = &self.state {
            self.outputs.push(Output::Unlisten);
        }
        self.state = State::Idle;
    }

    /// Gives back all that the server has of this owner, an entry or the lock, now or later.
    fn give_back(&mut self, now: Time, number: u64, chain: Chain, in_doubt: bool) {
        self.send(Request::GiveUp { number, chain });
        if in_doubt && self.broken != Some(Rule::Late) {
            self.outputs.push(Output::At(now + LATE[0], Timer::Late(number, 0)));
        }
    }

    fn refused(&mut self, now: Time, sent: Time, refused: &Refused) {
        let server = refused.now * MS;
        if let State::Holding(hold) = &self.state {
            // One the server gave before the grant says nothing about it.
            if hold.granted.is_some_and(|granted| granted < server) {
                self.lose(now);
            }
            return;
        }
        let State::Waiting(wait) = &mut self.state else { return };
        let had_place = wait.place.is_some();
        wait.stands(now, sent, server);
        if wait.anchor.is_none_or(|anchor| anchor.server < server) {
            wait.anchor = Some(Anchor { sent, server });
        }
        wait.place = Some(refused.place);
        wait.nap += 1;
        let number = wait.number;
        let place = refused.place;
        let listens = refused.whose == Whose::Redissons && place < LISTENERS;
        let listen_now = listens && !wait.listens && self.broken != Some(Rule::Listen);
        wait.listens |= listen_now;
        let after_holder = refused.left.max(0) * MS + MS + place * 300;
        let poll = POLL * self.random.between(80, 120) / 100;
        let timer = Timer::Poll(number, wait.nap);
        if listen_now {
            self.outputs.push(Output::Listen);
        }
        self.outputs.push(Output::At(now + poll.min(after_holder), timer));
        if refused.is_fresh && had_place {
            self.suspect(now, number);
        }
    }

    /// The entry, or the lock, shows that a message was sent which did not come. If it does not
    /// come now, the subscription is dead without an error.
    fn suspect(&mut self, now: Time, number: u64) {
        self.suspect = Some(number);
        self.outputs.push(Output::At(now + SUSPECT, Timer::Suspect(number)));
    }

    fn public(&mut self, now: Time) {
        if let State::Waiting(wait) = &self.state {
            match wait.place {
                // The first one asks at once, the second in case the first one is dead.
                None | Some(0) => self.ask(now),
                Some(place) if place < LISTENERS => {
                    self.outputs.push(Output::At(now + place * MS, Timer::Ask(wait.number)));
                }
                Some(_) => {}
            }
        }
    }

    // ---- being granted --------------------------------------------------------------------

    fn told(&mut self, now: Time, message: Message) {
        debug_assert_eq!((message.database, &message.lock), (self.site.database, &self.site.lock));
        let number = message.number;
        match message.what {
            What::Open { left } => {
                if matches!(&self.state, State::Waiting(wait) if wait.number == number) {
                    self.outputs.push(Output::At(now + left * MS, Timer::Ask(number)));
                }
            }
            What::Grant { now: granted, lease, chain, token, .. } => {
                if self.suspect == Some(number) {
                    self.suspect = None;
                }
                match &self.state {
                    State::Waiting(wait) if wait.number == number => {
                        self.granted_by_message(now, granted * MS, lease * MS, (chain, token));
                    }
                    // A second copy, or the reply was faster.
                    State::Holding(hold) if hold.number == number => {}
                    State::Trying { number: own, .. } if *own == number => {}
                    _ => self.send(Request::GiveUp { number, chain }),
                }
            }
        }
    }

    fn granted_by_message(
        &mut self,
        now: Time,
        granted: Time,
        lease: Time,
        (chain, token): (Chain, Option<i64>),
    ) {
        let State::Waiting(wait) = &self.state else { return };
        // The server granted it not before this, and not after now.
        let not_before = match wait.anchor {
            _ if self.broken == Some(Rule::Anchor) => now,
            // A refusal that is younger than the grant: it is over.
            Some(anchor) if anchor.server > granted => return self.ask(now),
            Some(anchor) => anchor.sent + granted - anchor.server,
            None => wait.began,
        };
        let until = not_before.min(now) + lease - DRIFT;
        if until <= now {
            // Too late. The owner finds out whether it still has it.
            return self.ask(now);
        }
        self.hold(now, until, Some(granted), (OwnChain { here: None, chain }, token));
    }

    fn granted_by_reply(&mut self, now: Time, sent: Time, already: bool, token: Option<i64>) {
        let until = sent + LEASE * MS - DRIFT;
        match &mut self.state {
            State::Holding(hold) => {
                hold.is_raised = true;
                if hold.until < until && now < hold.until {
                    hold.until = until;
                    self.outputs.push(Output::Extended(until));
                }
            }
            State::Waiting(_) | State::Trying { .. } => {
                // Ours have kept the lock among themselves all the while. (The scripts do not tell
                // of a young chain: it began anew with the process in between.)
                let is_young = |end, own: OwnChain| own.here.is_some_and(|here| end - here < AGE);
                let chain = match self.last {
                    Some((end, own))
                        if sent - end < if is_young(end, own) { 2 * AGE } else { AGE }
                            && self.broken != Some(Rule::Continue) =>
                    {
                        let chain = Chain { count: own.chain.count + 1, ..own.chain };
                        OwnChain { chain, ..own }
                    }
                    _ => OwnChain { here: Some(sent), chain: Chain { since: 0, count: 1 } },
                };
                if let (true, State::Waiting(wait)) = (already, &self.state) {
                    let number = wait.number;
                    self.suspect(now, number);
                }
                self.hold(now, until, None, (chain, token));
            }
            State::Idle => {}
        }
    }

    fn hold(
        &mut self,
        now: Time,
        until: Time,
        granted: Option<Time>,
        (chain, token): (OwnChain, Option<i64>),
    ) {
        let (number, in_doubt) = match &self.state {
            State::Waiting(wait) => (wait.number, wait.in_doubt),
            State::Trying { number, in_doubt } => (*number, *in_doubt),
            _ => return,
        };
        self.idle();
        if until <= now {
            self.state = State::Idle;
            self.give_back(now, number, chain.said(now), in_doubt);
            self.outputs.push(Output::Refused);
            return;
        }
        let is_raised = granted.is_none();
        self.state = State::Holding(Hold { number, until, is_raised, in_doubt, granted, chain });
        self.outputs.push(Output::Entered(number, until, token));
        self.outputs.push(Output::At(until, Timer::Deadline(number)));
        if !is_raised {
            self.outputs.push(Output::At(now + RAISE, Timer::Raise(number)));
        }
    }

    // ---- the end of a hold ----------------------------------------------------------------

    fn unlock(&mut self, now: Time) {
        let State::Holding(hold) = &self.state else { return };
        let (number, in_doubt) = (hold.number, hold.in_doubt);
        let (own, chain) = (hold.chain, hold.chain.said(now));
        self.state = State::Idle;
        self.last = Some((now, own));
        self.send(Request::Release { number, chain });
        if in_doubt {
            self.give_back(now, number, chain, true);
        }
    }

    /// Past its deadline, or by a word of the server's. The server's part of it is given back.
    fn lose(&mut self, now: Time) {
        let State::Holding(hold) = &self.state else { return };
        let (number, in_doubt) = (hold.number, hold.in_doubt);
        self.state = State::Idle;
        self.outputs.push(Output::Lost);
        self.give_back(now, number, Chain::default(), in_doubt);
    }

    fn released(&mut self, released: Released) {
        match released {
            Released::Window | Released::Alone => self.last = None,
            Released::HandedOn | Released::Free | Released::NotHeld => {}
        }
    }

    // ---- replies and timers ---------------------------------------------------------------

    fn replied(&mut self, now: Time, sent: Time, request: &Request, reply: Reply) {
        let current = match &self.state {
            State::Idle => None,
            State::Trying { number, .. } => Some(*number),
            State::Waiting(wait) => Some(wait.number),
            State::Holding(hold) => Some(hold.number),
        };
        match (request, reply) {
            (_, Reply::Released(released)) => self.released(released),
            (Request::Acquire { number, .. } | Request::Try { number, .. }, reply)
                if current == Some(*number) =>
            {
                match reply {
                    Reply::Granted { already, token } => {
                        self.granted_by_reply(now, sent, already, token);
                    }
                    Reply::Refused(refused) => self.refused(now, sent, &refused),
                    Reply::NotTaken | Reply::Error(_) => self.not_taken(now),
                    _ => {}
                }
            }
            // The acquisition's thread has left meanwhile, and so has its give-up; but that may be
            // lost.
            (Request::Acquire { number, .. }, Reply::Granted { .. }) => {
                self.send(Request::GiveUp { number: *number, chain: Chain::default() });
            }
            (Request::Renew { number, lease }, Reply::Renewed(held))
                if current == Some(*number) =>
            {
                self.renewed(now, sent + lease * MS - DRIFT, held);
            }
            _ => {}
        }
    }

    fn not_taken(&mut self, now: Time) {
        match self.state {
            State::Trying { number, in_doubt } => {
                self.idle();
                if in_doubt {
                    self.give_back(now, number, Chain::default(), true);
                }
            }
            State::Waiting(_) => self.stop_waiting(now),
            // A question that was on its way when it was granted.
            State::Idle | State::Holding(_) => return,
        }
        self.outputs.push(Output::Refused);
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

    /// A waiter for an answer asks again. An acquisition that is over is given back for as long as
    /// the first copy may come.
    fn doubt(&mut self, now: Time, request: Request) {
        match request {
            Request::Acquire { number: asked, .. } | Request::Try { number: asked, .. } => {
                match &mut self.state {
                    State::Waiting(Wait { number, in_doubt, .. })
                    | State::Trying { number, in_doubt }
                        if *number == asked =>
                    {
                        *in_doubt = true;
                        self.send(request);
                    }
                    State::Holding(Hold { number, in_doubt, .. }) if *number == asked => {
                        *in_doubt = true;
                    }
                    _ => self.give_back(now, asked, Chain::default(), true),
                }
            }
            Request::Release { .. } | Request::GiveUp { .. } => self.send(request),
            // Timers see to these.
            Request::Renew { .. } => {}
        }
    }

    fn timer(&mut self, now: Time, timer: Timer) {
        match (timer, &mut self.state) {
            (Timer::Poll(number, nap), State::Waiting(wait))
                if (number, nap) == (wait.number, wait.nap) =>
            {
                self.ask(now);
            }
            (Timer::Ask(number), State::Waiting(wait)) if number == wait.number => self.ask(now),
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
                self.send(Request::GiveUp { number, chain: Chain::default() });
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
