//! Tests the client's rules one by one, without a server: the client's actions and their times.
//! `src/ask/entry/tests.rs` has the rules of the state machine alone.

use super::kind::PlainLock;
use crate::simulated::client::{Input, LEASE, MS, Output, Process, SECOND, Time, Timer};
use crate::simulated::site::Site;
use crate::simulated::wire::{Chain, Message, QueuedReply, Reply, Request, What, Whose};

/// The server's clock in ms at the time 0 of the process's clock.
const SERVER: i64 = 1_763_692_800_000;
/// The time by which the deadline of a grant by message is earlier than the end of its lease.
const DRIFT: Time = 3 * MS;
const CHAIN: Chain = Chain { since: SERVER, count: 3 };

/// A process. Tests give it inputs, and check its actions and their times.
struct Tried(Process);

impl Tried {
    fn new() -> Self {
        Self(Process::new(Site::new(&PlainLock, 0, "orders"), None, 1))
    }

    /// Returns a process that has waited since the server's reply. The process is first in the
    /// queue, behind a redlatch holder.
    fn waiting(sent: Time) -> Self {
        let mut tried = Self::new();
        assert_eq!(tried.asks(sent, Input::Lock), 1);
        tried.queued(sent, 0, Whose::Ours, true);
        tried
    }

    fn on(&mut self, now: Time, input: Input) -> Vec<Output> {
        self.0.on(now, input)
    }

    /// Returns the number of requests that the process sends.
    fn asks(&mut self, now: Time, input: Input) -> usize {
        let is_ask = |output: &Output| matches!(output, Output::Send(Request::Acquire { .. }));
        self.on(now, input).iter().filter(|output| is_ask(output)).count()
    }

    /// Gives the process a reply to the request in flight, or to a request that it sends now.
    fn reply(&mut self, sent: Time, reply: Reply) -> Vec<Output> {
        if !self.0.is_asking() {
            assert_eq!(self.asks(sent, Input::Subscribed), 1);
        }
        let request = Request::Acquire { number: 1, lease: LEASE, again: None };
        self.on(sent + MS, Input::Reply { sent, request, reply })
    }

    fn queued(&mut self, sent: Time, place: i64, whose: Whose, is_fresh: bool) -> Vec<Output> {
        let now = SERVER + sent / MS;
        let queued = QueuedReply { now, left: 30_000, place, whose, is_fresh };
        self.reply(sent, Reply::Queued(queued))
    }

    /// Returns the end of the hold after a grant at this time.
    fn granted(&mut self, now: Time, at: Time) -> Result<Time, Vec<Output>> {
        let outputs = self.on(now, Input::Message(grant(1, at)));
        let until = outputs.iter().find_map(|output| match output {
            Output::Entered(_, until, _) => Some(*until),
            _ => None,
        });
        until.ok_or(outputs)
    }
}

fn grant(number: u64, at: Time) -> Message {
    let what =
        What::Grant { now: SERVER + at / MS, lease: 2_000, places: 0, chain: CHAIN, token: None };
    Message { number, what, database: 0, lock: "orders".to_owned() }
}

fn sends(outputs: &[Output], request: &Request) -> bool {
    let is_same = |sent: &Request| match (sent, request) {
        // The other arguments may differ.
        (Request::Acquire { number, .. }, Request::Acquire { number: other, .. }) => {
            number == other
        }
        (sent, request) => sent == request,
    };
    outputs.iter().any(|output| matches!(output, Output::Send(sent) if is_same(sent)))
}

fn at(outputs: &[Output], timer: Timer) -> Option<Time> {
    outputs.iter().find_map(|output| match output {
        Output::At(time, other) if *other == timer => Some(*time),
        _ => None,
    })
}

#[test]
fn a_deadline_by_message_counts_from_the_last_exchange() {
    let mut tried = Tried::waiting(100 * MS);
    assert_eq!(tried.granted(700 * MS, 600 * MS), Ok(2_600 * MS - DRIFT));
    // The server's clock may have been set forward. So the deadline counts from the receipt of the
    // message, or from an earlier time.
    let mut tried = Tried::waiting(100 * MS);
    assert_eq!(tried.granted(700 * MS, 9 * SECOND), Ok(2_700 * MS - DRIFT));
    // Before the first reply, the deadline counts from the first request.
    let mut tried = Tried::new();
    tried.on(100 * MS, Input::Lock);
    tried.granted(700 * MS, 600 * MS).unwrap_err();
    let request = Request::Acquire { number: 1, lease: LEASE, again: None };
    assert!(sends(&tried.on(750 * MS, Input::InDoubt(request.clone())), &request), "its copy");
    let outputs = tried.on(800 * MS, Input::InDoubt(request));
    assert_eq!(outputs[0], Output::Entered(1, 2_100 * MS - DRIFT, None));
}

#[test]
fn a_grant_that_is_read_late_asks() {
    let mut tried = Tried::waiting(100 * MS);
    let outputs = tried.granted(2_700 * MS, 600 * MS).unwrap_err();
    assert!(sends(&outputs, &Request::Acquire { number: 1, lease: LEASE, again: None }));
}

#[test]
fn a_queued_reply_that_is_younger_than_the_grant_voids_it() {
    let mut tried = Tried::waiting(100 * MS);
    tried.queued(800 * MS, 0, Whose::Ours, true);
    let outputs = tried.granted(900 * MS, 600 * MS).unwrap_err();
    assert!(sends(&outputs, &Request::Acquire { number: 1, lease: LEASE, again: None }));
    // In the second case, the grant comes while the request is in flight.
    let mut tried = Tried::waiting(100 * MS);
    assert_eq!(tried.asks(700 * MS, Input::Subscribed), 1);
    assert!(tried.granted(700 * MS, 600 * MS).unwrap_err().is_empty());
    let outputs = tried.queued(800 * MS, 0, Whose::Ours, true);
    assert!(sends(&outputs, &Request::Acquire { number: 1, lease: LEASE, again: None }));
    // A queued reply with a time before the grant does not end the grant.
    let mut tried = Tried::waiting(100 * MS);
    assert_eq!(tried.asks(500 * MS, Input::Subscribed), 1);
    assert!(tried.granted(700 * MS, 600 * MS).unwrap_err().is_empty());
    let outputs = tried.queued(500 * MS, 0, Whose::Ours, false);
    assert!(matches!(outputs[0], Output::Entered(1, ..)));
}

#[test]
fn a_grant_without_a_waiter_is_given_back() {
    let mut tried = Tried::waiting(100 * MS);
    let back = Request::GiveUp { number: 7, chain: CHAIN };
    assert!(sends(&tried.on(MS, Input::Message(grant(7, 0))), &back));
    // The process already has the lock, so this message repeats its grant.
    tried.granted(700 * MS, 600 * MS).unwrap();
    assert!(tried.on(701 * MS, Input::Message(grant(1, 600 * MS))).is_empty());
    // A thread that leaves does not wait for the reply, although the reply may be a grant.
    let mut tried = Tried::new();
    tried.on(0, Input::Lock);
    let outputs = tried.on(MS, Input::GiveUp);
    assert!(sends(&outputs, &Request::GiveUp { number: 1, chain: Chain::default() }));
    assert!(at(&outputs, Timer::Late(1, 0)).is_some());
}

#[test]
fn the_first_two_listen_while_redisson_has_the_lock() {
    for (place, whose, listens) in [
        (0, Whose::Redissons, true),
        (1, Whose::Redissons, true),
        (2, Whose::Redissons, false),
        (0, Whose::Ours, false),
        (0, Whose::Window, false),
    ] {
        let mut tried = Tried::new();
        tried.on(0, Input::Lock);
        let outputs = tried.queued(0, place, whose, true);
        let listened = outputs.iter().any(|output| matches!(output, Output::Listen));
        assert_eq!(listened, listens, "{place} {whose:?}");
        // The message makes the first waiter send a request at once, and the second waiter a little
        // later.
        let outputs = tried.on(MS, Input::Public);
        match place {
            0 => {
                assert!(sends(
                    &outputs,
                    &Request::Acquire { number: 1, lease: LEASE, again: None }
                ));
            }
            1 => assert_eq!(at(&outputs, Timer::Ask(1, 2)), Some(2 * MS)),
            _ => assert!(at(&outputs, Timer::Ask(1, 2)) > Some(800 * MS)),
        }
    }
}

#[test]
fn a_subscription_that_missed_a_message_is_renewed() {
    let renews = |tried: &mut Tried| {
        let outputs = tried.on(SECOND, Input::Timer(Timer::Suspect(1)));
        outputs.iter().any(|output| matches!(output, Output::Resubscribe))
    };
    // The process got the lock or was dropped from the queue, but the message was lost.
    let mut tried = Tried::waiting(0);
    tried.reply(700 * MS, Reply::Granted { already: true, token: None });
    assert!(renews(&mut tried));
    let mut tried = Tried::waiting(0);
    tried.queued(700 * MS, 3, Whose::Ours, true);
    assert!(renews(&mut tried));
    // The message was not lost, but came later than the reply.
    let mut tried = Tried::waiting(0);
    tried.reply(700 * MS, Reply::Granted { already: true, token: None });
    tried.on(702 * MS, Input::Message(grant(1, 700 * MS)));
    assert!(!renews(&mut tried));
    // The process may have taken a free lock, for which no message was sent.
    let mut tried = Tried::waiting(0);
    tried.reply(700 * MS, Reply::Granted { already: false, token: None });
    assert!(!renews(&mut tried));
}

#[test]
fn a_waiter_asks_once_subscribed_after_a_message_and_at_each_poll() {
    let mut tried = Tried::waiting(0);
    assert_eq!(tried.asks(MS, Input::Subscribed), 1);
    let open = Message { what: What::Open { left: 4 }, ..grant(1, 0) };
    tried.queued(MS, 0, Whose::Ours, false);
    assert_eq!(at(&tried.on(10 * MS, Input::Message(open)), Timer::Ask(1, 3)), Some(14 * MS));
    let mut tried = Tried::new();
    tried.on(0, Input::Lock);
    // At any position, the process sends one request during the short lease of a grant by message.
    let first = at(&tried.queued(0, 1, Whose::Ours, true), Timer::Ask(1, 1)).unwrap();
    let next = at(&tried.queued(0, 2, Whose::Ours, false), Timer::Ask(1, 2)).unwrap();
    assert!([first, next].iter().all(|at| (800 * MS..=1_201 * MS).contains(at)));
    // This timer belongs to a sleep that has ended.
    assert_eq!(tried.asks(first, Input::Timer(Timer::Ask(1, 1))), 0);
    assert_eq!(tried.asks(next, Input::Timer(Timer::Ask(1, 2))), 1);
}

#[test]
fn a_hold_by_message_is_raised_once_it_lasts() {
    let mut tried = Tried::waiting(0);
    let outputs = tried.on(600 * MS, Input::Message(grant(1, 600 * MS)));
    assert_eq!(at(&outputs, Timer::Raise(1)), Some(650 * MS));
    let raise = Request::Renew { number: 1, lease: LEASE };
    let outputs = tried.on(650 * MS, Input::Timer(Timer::Raise(1)));
    assert!(sends(&outputs, &raise));
    // The renewal to the full lease is repeated until there is a reply, three times before the
    // short lease ends.
    assert_eq!(at(&outputs, Timer::Raise(1)), Some(1_050 * MS));
    let reply = Reply::Renewed(true);
    let outputs = tried.on(700 * MS, Input::Reply { sent: 650 * MS, request: raise, reply });
    assert!(matches!(outputs[..], [Output::Extended(until)] if until == 30_619 * MS));
    assert!(tried.on(1_050 * MS, Input::Timer(Timer::Raise(1))).is_empty());
}
