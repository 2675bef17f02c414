//! One process: the library's state machine of a queue entry (`src/ask/entry.rs`), with the thread
//! that waits, its connections, and its hold.

use std::collections::VecDeque;
use std::time::Duration;

use super::server::{Chain, Client, Message, Owner, Reply, Request};
use crate::simulated::library::deadline::deadline;
use crate::simulated::library::entry::{
    self, AfterReply, By, Collector, EntryMachine, Listens, Messages, ReceivedGrant, Then, Undo,
    ValidGrant,
};
use crate::simulated::library::exchanges::Asked;

pub(crate) const MS: u64 = 1_000_000;
/// The age at which a hold that was granted by message is raised.
const RAISE_AFTER: u64 = 50 * MS;
const RENEWED_AGAIN: u64 = 400 * MS;
/// The maximum time between two requests of a waiter.
const POLL: u64 = 1_200 * MS;

/// A bug of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flaw {
    /// A deadline counts from the receipt of the message.
    CountsFromReceipt,
    /// A deadline counts from the receipt of the reply.
    CountsFromReply,
    /// A deadline is later than the end of the lease.
    PastTheLease,
    /// The messages are read while a request is in flight.
    ReadsTooEarly,
    /// A wait that ends leaves its entry in the queue.
    LeavesPlace,
    /// The effect of a late copy of a request is not undone.
    NothingLater,
    /// The holder does not notice that its hold has ended.
    TellsNoLoss,
    /// A process sends a request only after a message.
    NeverPolls,
}

/// The details of a grant, which are its token.
type Token = Option<u64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Idle,
    Waiting(Box<Wait>),
    Holding(Hold),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wait {
    pub(crate) number: u8,
    entry: EntryMachine<Token>,
    messages: Messages<Token>,
    is_asking: bool,
    /// The request was sent twice.
    is_copy: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) number: u8,
    pub(crate) until: u64,
    renew_at: u64,
    in_doubt: bool,
}

/// The subscription to the process's own channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    Off,
    /// The subscription is not confirmed yet.
    Opening,
    /// The connection has broken, and will be opened again.
    Broken,
    On,
}

/// The items in flight over a connection, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line<T> {
    pub(crate) there: VecDeque<T>,
    /// Whether the first item may arrive at any later time.
    pub(crate) is_slow: bool,
}

impl<T> Line<T> {
    fn new() -> Self {
        Self { there: VecDeque::new(), is_slow: false }
    }

    /// Whether an item must arrive before time advances.
    pub(crate) fn is_due(&self) -> bool {
        !self.there.is_empty() && !self.is_slow
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.is_slow = false;
        self.there.pop_front()
    }

    pub(crate) fn clear(&mut self) {
        self.there.clear();
        self.is_slow = false;
    }
}

/// A request. A renewal also has the time at which it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sent {
    pub(crate) owner: Owner,
    pub(crate) request: Request,
    pub(crate) at: u64,
}

/// An event on the channels of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Heard {
    Message(Message),
    Confirmed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) client: Client,
    pub(crate) writes: bool,
    pub(crate) state: State,
    /// The number of the process's acquisitions so far.
    pub(crate) numbers: u8,
    pub(crate) is_stopped: bool,
    pub(crate) channel: Channel,
    pub(crate) hears_public: bool,
    pub(crate) requests: Line<Sent>,
    pub(crate) replies: Line<(Sent, Reply)>,
    pub(crate) messages: Line<Heard>,
    /// The owners that the process must give up again, because a copy of one of their requests may
    /// arrive late.
    pub(crate) undone: Vec<Owner>,
    /// Whether the process is giving these owners up now.
    pub(crate) undoes: bool,
    /// Whether the server's clock was set forward during the wait or the hold.
    pub(crate) is_disturbed: bool,
    /// Whether the process may have missed a message with its grant, so that it must send a
    /// request.
    pub(crate) is_deaf: bool,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Nothing,
    Entered(Token),
    Failed,
}

/// The lease that the thread wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) lease: Duration,
    pub(crate) flaw: Option<Flaw>,
}

impl Process {
    pub(crate) fn new(client: Client, writes: bool) -> Self {
        Self {
            client,
            writes,
            state: State::Idle,
            numbers: 0,
            is_stopped: false,
            channel: Channel::Off,
            hears_public: false,
            requests: Line::new(),
            replies: Line::new(),
            messages: Line::new(),
            undone: Vec::new(),
            undoes: false,
            is_disturbed: false,
            is_deaf: false,
        }
    }

    pub(crate) fn owner(&self, number: u8) -> Owner {
        Owner { client: self.client, number, writes: self.writes }
    }

    pub(crate) fn runs(&self) -> bool {
        !self.is_stopped
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    pub(crate) fn is_asking(&self) -> bool {
        matches!(&self.state, State::Waiting(wait) if wait.is_asking)
    }

    /// Returns the owner that waits or holds now.
    pub(crate) fn present(&self) -> Option<Owner> {
        match &self.state {
            State::Waiting(wait) => Some(self.owner(wait.number)),
            State::Holding(hold) => Some(self.owner(hold.number)),
            State::Idle => None,
        }
    }

    /// Whether the process believes that it has the lock.
    pub(crate) fn claims(&self, now: u64) -> bool {
        matches!(&self.state, State::Holding(hold) if now < hold.until)
    }

    fn send(&mut self, now: u64, owner: Owner, request: Request) {
        let at = if request == Request::Renew { now } else { 0 };
        self.requests.there.push_back(Sent { owner, request, at });
    }

    // ---- waiting --------------------------------------------------------------------------

    pub(crate) fn begin(&mut self) {
        self.numbers += 1;
        (self.is_disturbed, self.is_deaf) = (false, false);
        self.state = State::Waiting(Box::new(Wait {
            number: self.numbers,
            entry: EntryMachine::new(),
            messages: Messages::new(),
            is_asking: false,
            is_copy: false,
        }));
    }

    pub(crate) fn can_read(&self, flaw: Option<Flaw>) -> bool {
        matches!(&self.state, State::Waiting(wait)
            if !wait.messages.is_empty() && (!wait.is_asking || flaw == Some(Flaw::ReadsTooEarly)))
    }

    pub(crate) fn can_ask(&self, now: u64, flaw: Option<Flaw>) -> bool {
        let State::Waiting(wait) = &self.state else { return false };
        let at = wait.entry.ask_at();
        let is_due = at <= now && (at == 0 || flaw != Some(Flaw::NeverPolls));
        !wait.is_asking && wait.messages.is_empty() && is_due
    }

    /// Whether a message, a timer or a reply will make the process send a request before its next
    /// regular request.
    pub(crate) fn will_ask(&self, now: u64, flaw: Option<Flaw>) -> bool {
        let State::Waiting(wait) = &self.state else { return false };
        let at = wait.entry.ask_at();
        wait.is_asking
            || !wait.messages.is_empty()
            || !self.messages.there.is_empty()
            || at <= now + POLL && (at == 0 || flaw != Some(Flaw::NeverPolls))
    }

    /// Reads the messages that the process has received.
    pub(crate) fn reads(&mut self, now: u64, terms: Terms) -> Outcome {
        let State::Waiting(wait) = &mut self.state else { return Outcome::Nothing };
        let messages = std::mem::replace(&mut wait.messages, Messages::new());
        let collector = Collector { lease: terms.lease, incarnation: 0, needs_reply: false };
        match wait.entry.collect(now, messages, collector) {
            Some(granted) => self.enter(now, granted, terms),
            None => Outcome::Nothing,
        }
    }

    pub(crate) fn asks(&mut self, now: u64, terms: Terms) {
        let Some(owner) = self.present() else { return };
        let State::Waiting(wait) = &mut self.state else { return };
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: now };
        let Some(again) = wait.entry.begin_request(asked, terms.lease, true) else { return };
        (wait.is_asking, wait.is_copy) = (true, false);
        self.send(now, owner, Request::Acquire { again });
    }

    /// The thread gives up its wait.
    pub(crate) fn end_wait(&mut self, now: u64, terms: Terms) {
        let State::Waiting(wait) = &mut self.state else { return };
        if wait.is_asking {
            wait.entry.unanswered(true);
        }
        let messages = std::mem::replace(&mut wait.messages, Messages::new());
        let owner = Owner { client: self.client, number: wait.number, writes: self.writes };
        let (undo, _) = wait.entry.end(messages);
        self.state = State::Idle;
        if terms.flaw != Some(Flaw::LeavesPlace) {
            self.give_back(now, owner, undo, terms);
        }
    }

    fn give_back(&mut self, now: u64, owner: Owner, undo: Undo, terms: Terms) {
        if undo == Undo::Nothing {
            return;
        }
        self.send(now, owner, Request::GiveUp { chain: Chain::default() });
        if undo == Undo::NowAndLater && terms.flaw != Some(Flaw::NothingLater) {
            self.undone.push(owner);
        }
    }

    /// Gives up again anything that a copy of a request may have taken, while a copy may still
    /// arrive.
    pub(crate) fn undo(&mut self, now: u64, late: &[Sent]) {
        self.undoes = false;
        let mut undone = std::mem::take(&mut self.undone);
        let ask = |sent: &&Sent| matches!(sent.request, Request::Acquire { .. });
        let may_come: Vec<_> =
            self.requests.there.iter().chain(late).filter(ask).map(|sent| sent.owner).collect();
        for owner in &undone {
            self.send(now, *owner, Request::GiveUp { chain: Chain::default() });
        }
        undone.retain(|owner| may_come.contains(owner));
        self.undone = undone;
    }

    // ---- messages and replies --------------------------------------------------------------

    /// The process's subscriber receives a message.
    pub(crate) fn told(&mut self, now: u64, heard: Heard, terms: Terms) {
        let present = self.present();
        if let Heard::Message(Message::Grant { owner, .. }) = heard
            && present != Some(owner)
        {
            return self.give_back(now, owner, Undo::Once, terms);
        }
        let State::Waiting(wait) = &mut self.state else { return };
        match heard {
            Heard::Confirmed => wait.messages.must_ask = true,
            Heard::Message(Message::Public { .. }) => wait.messages.has_public_release = true,
            Heard::Message(Message::Open { owner, left }) => {
                if present == Some(owner) {
                    wait.messages.open_until = Some(now + left as u64 * MS);
                }
            }
            Heard::Message(Message::Grant { now: granted, token, .. }) => {
                let is_receipt = terms.flaw == Some(Flaw::CountsFromReceipt);
                wait.messages.grant.get_or_insert(ReceivedGrant {
                    server_time: if is_receipt { u64::MAX } else { granted as u64 },
                    received_at: now,
                    lease: Duration::from_millis(2_000),
                    details: token,
                });
            }
        }
    }

    /// The process receives the reply to a request.
    pub(crate) fn answered(&mut self, now: u64, sent: Sent, reply: Reply, terms: Terms) -> Outcome {
        match (&mut self.state, reply) {
            (State::Holding(hold), Reply::Renewed(held)) if hold.number == sent.owner.number => {
                let until = deadline(sent.at, terms.lease);
                if !held {
                    self.lose(now, terms);
                } else if now < hold.until {
                    hold.until = hold.until.max(until);
                    hold.renew_at = sent.at + terms.lease.as_nanos() as u64 / 3;
                }
                Outcome::Nothing
            }
            (State::Waiting(wait), Reply::Granted { .. } | Reply::Queued { .. })
                if wait.is_asking && wait.number == sent.owner.number =>
            {
                wait.is_asking = false;
                let in_doubt = wait.is_copy;
                let reply = match reply {
                    Reply::Granted { already, token, .. } => {
                        let lease = terms.lease;
                        entry::EntryReply::Granted { already, lease, waits: true, details: token }
                    }
                    Reply::Queued { now, left, place, whose, is_new } => {
                        entry::EntryReply::Queued {
                            now: now as u64,
                            left: Duration::from_millis(left.max(0) as u64),
                            place: place as u32,
                            by_redisson: whose == 1,
                            is_new,
                            poll: 1_000 * MS,
                        }
                    }
                    _ => entry::EntryReply::NotTaken,
                };
                let AfterReply { listens, then, .. } = wait.entry.answered(now, reply, in_doubt);
                if listens != Listens::AsBefore && self.channel == Channel::Off {
                    self.channel = Channel::Opening;
                }
                self.hears_public |= listens == Listens::ToPublic;
                match then {
                    Then::Granted(granted) => self.enter(now, granted, terms),
                    Then::Fail => {
                        self.end_wait(now, terms);
                        Outcome::Failed
                    }
                    Then::Sleep { .. } => Outcome::Nothing,
                }
            }
            _ => Outcome::Nothing,
        }
    }

    /// The connection broke during a request, so the request may run twice, late, or never. The
    /// connection sends a copy. If the copy is lost, too, the waiter sends another request.
    pub(crate) fn in_doubt(&mut self, now: u64, sent: Sent) {
        match (&mut self.state, sent.request) {
            (_, Request::Release { .. } | Request::GiveUp { .. }) => {
                self.send(now, sent.owner, sent.request);
            }
            (State::Waiting(wait), Request::Acquire { .. })
                if wait.is_asking && wait.number == sent.owner.number =>
            {
                if std::mem::replace(&mut wait.is_copy, true) {
                    wait.is_asking = false;
                    wait.entry.unanswered(true);
                } else {
                    self.requests.there.push_front(sent);
                }
            }
            _ => {}
        }
    }

    // ---- a hold ---------------------------------------------------------------------------

    fn enter(&mut self, now: u64, granted: ValidGrant<Token>, terms: Terms) -> Outcome {
        let State::Waiting(wait) = &self.state else { return Outcome::Nothing };
        let ValidGrant { asked, lease, in_doubt, by } = granted;
        let (lease, renew_at, token, is_told) = match by {
            By::Message { details } => (lease.min(terms.lease), now + RAISE_AFTER, details, true),
            By::Reply { details, .. } => {
                let third = terms.lease.as_nanos() as u64 / 3;
                (terms.lease, asked.at + third, details, false)
            }
        };
        let until = match terms.flaw {
            Some(Flaw::CountsFromReply) if !is_told => deadline(now, lease),
            Some(Flaw::PastTheLease) => deadline(asked.at, lease) + 2_500 * MS,
            _ => deadline(asked.at, lease),
        };
        self.state = State::Holding(Hold { number: wait.number, until, renew_at, in_doubt });
        Outcome::Entered(token)
    }

    pub(crate) fn can_renew(&self, now: u64) -> bool {
        let is_on_its_way = |sent: &Sent| sent.request == Request::Renew;
        matches!(&self.state, State::Holding(hold) if hold.renew_at <= now && now < hold.until)
            && !self.requests.there.iter().any(is_on_its_way)
    }

    pub(crate) fn renew(&mut self, now: u64) {
        let State::Holding(hold) = &mut self.state else { return };
        hold.renew_at = now + RENEWED_AGAIN;
        let owner = Owner { client: self.client, number: hold.number, writes: self.writes };
        self.send(now, owner, Request::Renew);
    }

    pub(crate) fn unlock(&mut self, now: u64, chain: Chain, terms: Terms) {
        let State::Holding(hold) = &self.state else { return };
        let (owner, in_doubt) = (self.owner(hold.number), hold.in_doubt);
        self.state = State::Idle;
        self.send(now, owner, Request::Release { chain });
        if in_doubt {
            self.give_back(now, owner, Undo::NowAndLater, terms);
        }
    }

    pub(crate) fn has_lapsed(&self, now: u64, flaw: Option<Flaw>) -> bool {
        matches!(&self.state, State::Holding(hold) if hold.until <= now)
            && flaw != Some(Flaw::TellsNoLoss)
    }

    /// The hold is past its deadline, or the server reports that it is lost. The holder is
    /// notified, and the hold is given back to the server.
    pub(crate) fn lose(&mut self, now: u64, terms: Terms) {
        let State::Holding(hold) = &self.state else { return };
        let undo = if hold.in_doubt { Undo::NowAndLater } else { Undo::Once };
        let owner = self.owner(hold.number);
        self.state = State::Idle;
        self.give_back(now, owner, undo, terms);
    }
}
