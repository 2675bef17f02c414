//! Tables of the machine's steps, without a server: the state, the event, the action, and the time
//! at which the owner asks next.

use std::time::Duration;

use super::entry::{
    AfterReply, By, Collector, EntryMachine, EntryReply, Listens, Messages, ReceivedGrant, Then,
    Undo, ValidGrant,
};
use super::exchanges::Asked;
use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// The server's time in ms when the process's own clock shows 0.
const SERVER: u64 = 1_763_692_800_000;
const LEASE: Duration = Duration::from_secs(30);
const PROVISIONAL: Duration = Duration::from_secs(2);
const AT_ONCE: Action = Action::Then(Then::Sleep { until: 0 });
const HERE: Collector = Collector { lease: LEASE, incarnation: 1, needs_reply: false };

/// An event, for a row of a table.
enum EntryEvent {
    Asks(Asked),
    Answered { reply: EntryReply<char>, in_doubt: bool },
    Unanswered { in_doubt: bool },
    Collects { messages: Messages<char>, collector: Collector },
    Unacknowledged { in_doubt: bool },
    Ends { messages: Messages<char> },
}

/// The result of an event.
#[derive(Debug, PartialEq)]
enum Action {
    Ask { again: Option<Again> },
    Then(Then<char>),
    GiveBack { undo: Undo, details: Option<char> },
}

/// A message.
enum Received {
    Grant(ReceivedGrant<char>),
    Open { until: u64 },
    Public,
    Missed,
}

/// Calls the method of the event. If the method has no result, the owner sleeps.
fn step(entry: &mut EntryMachine<char>, now: u64, event: EntryEvent) -> Action {
    let done = match event {
        EntryEvent::Asks(asked) => {
            entry.begin_request(asked, LEASE, true).map(|again| Action::Ask { again })
        }
        EntryEvent::Answered { reply, in_doubt } => {
            Some(Action::Then(entry.answered(now, reply, in_doubt).then))
        }
        EntryEvent::Unanswered { in_doubt } => {
            entry.unanswered(in_doubt);
            None
        }
        EntryEvent::Collects { messages, collector } => {
            let granted = entry.collect(now, messages, collector);
            granted.map(|granted| Action::Then(Then::Granted(granted)))
        }
        EntryEvent::Unacknowledged { in_doubt } => {
            entry.unacknowledged(in_doubt);
            return step(entry, now, EntryEvent::Ends { messages: Messages::new() });
        }
        EntryEvent::Ends { messages } => {
            let (undo, details) = entry.end(messages);
            Some(Action::GiveBack { undo, details })
        }
    };
    done.unwrap_or_else(|| sleep_until(entry.ask_at()))
}

fn sleep_until(until: u64) -> Action {
    Action::Then(Then::Sleep { until })
}

/// `at` is in ms.
fn asked(at: u64) -> Asked {
    Asked { forced_unlocks: 0, incarnation: 1, at: at * MS }
}

/// `at` is in ms.
fn asks(at: u64) -> EntryEvent {
    EntryEvent::Asks(asked(at))
}

fn answered(reply: EntryReply<char>) -> EntryEvent {
    EntryEvent::Answered { reply, in_doubt: false }
}

fn granted(already: bool) -> EntryEvent {
    answered(EntryReply::Granted { already, lease: LEASE, waits: true, details: 'r' })
}

/// A queued reply with this server time in ms. The holder's lease is longer than any poll.
fn queued(now: u64, place: u32) -> EntryReply<char> {
    let left = LEASE;
    let (by_redisson, is_new, poll) = (false, false, 1_000 * MS);
    EntryReply::Queued { now: SERVER + now, left, place, by_redisson, is_new, poll }
}

fn waits() -> EntryEvent {
    let sleep = Duration::from_secs(60);
    answered(EntryReply::FairQueued { now: SERVER + 100, sleep, came_back: false })
}

/// A grant message with this server time, received at this time of the process's clock, both in ms.
fn message(server: u64, received: u64) -> ReceivedGrant<char> {
    let (server_time, received_at) = (SERVER + server, received * MS);
    ReceivedGrant { server_time, received_at, lease: PROVISIONAL, details: 'm' }
}

fn grant(server: u64, received: u64) -> Received {
    Received::Grant(message(server, received))
}

fn messages<const N: usize>(received: [Received; N]) -> Messages<char> {
    let mut messages = Messages::new();
    for received in received {
        match received {
            Received::Grant(granted) => {
                messages.grant.get_or_insert(granted);
            }
            Received::Open { until } => messages.open_until = Some(until),
            Received::Public => messages.has_public_release = true,
            Received::Missed => messages.must_ask = true,
        }
    }
    messages
}

fn reads<const N: usize>(received: [Received; N]) -> EntryEvent {
    EntryEvent::Collects { messages: messages(received), collector: HERE }
}

/// An owner that sent its first request at 100 ms.
fn asking() -> EntryMachine<char> {
    let mut entry = EntryMachine::new();
    assert_eq!(step(&mut entry, 100 * MS, asks(100)), Action::Ask { again: None });
    entry
}

/// The owner of `asking` after a queued reply with this number of entries ahead. The owner polls
/// at 1,101 ms.
fn sleeping_at(place: u32) -> EntryMachine<char> {
    let mut entry = asking();
    step(&mut entry, 101 * MS, answered(queued(100, place)));
    assert_eq!(entry.ask_at(), 1_101 * MS);
    entry
}

fn sleeping() -> EntryMachine<char> {
    sleeping_at(0)
}

/// The owner of `sleeping_at(0)` after it has asked again, at 1,101 ms.
fn polling() -> EntryMachine<char> {
    let mut entry = sleeping();
    let again = Some(Again { waiting_since: SERVER + 100, sent: None });
    assert_eq!(step(&mut entry, 1_101 * MS, asks(1_101)), Action::Ask { again });
    entry
}

fn counts(at: u64, in_doubt: bool, (lease, by): (Duration, By<char>)) -> Action {
    Action::Then(Then::Granted(ValidGrant { asked: asked(at), lease, in_doubt, by }))
}

fn by_reply(message: Option<char>, may_be_named: bool) -> (Duration, By<char>) {
    (LEASE, By::Reply { details: 'r', message, may_be_named })
}

fn by_message() -> (Duration, By<char>) {
    (PROVISIONAL, By::Message { details: 'm' })
}

/// The state, the event, its time in ms, the action, and the time of the next request in ms.
type Row = (&'static str, fn() -> EntryMachine<char>, fn() -> EntryEvent, u64, Action, u64);

#[test]
fn each_state_is_left_as_the_table_says() {
    let twice: fn() -> EntryEvent = || {
        let reply = EntryReply::Granted { already: false, lease: LEASE, waits: true, details: 'r' };
        EntryEvent::Answered { reply, in_doubt: true }
    };
    let try_late: fn() -> EntryEvent = || {
        answered(EntryReply::Granted { already: false, lease: LEASE, waits: false, details: 'r' })
    };
    let give_back = |undo, details| Action::GiveBack { undo, details };
    let ends: fn() -> EntryEvent = || EntryEvent::Ends { messages: Messages::new() };
    let ends_granted: fn() -> EntryEvent =
        || EntryEvent::Ends { messages: messages([grant(600, 700)]) };
    let unacknowledged: fn() -> EntryEvent = || EntryEvent::Unacknowledged { in_doubt: false };
    let in_doubt: fn() -> EntryMachine<char> = || {
        let mut entry = asking();
        entry.unanswered(true);
        entry
    };
    let rows: [Row; 30] = [
        // A first request is open.
        ("granted", asking, || granted(false), 101, counts(100, false, by_reply(None, false)), 0),
        ("granted by a copy", asking, twice, 101, counts(100, true, by_reply(None, true)), 0),
        ("not taken", asking, || answered(EntryReply::NotTaken), 101, AT_ONCE, 0),
        ("failed", asking, || EntryEvent::Unanswered { in_doubt: false }, 101, AT_ONCE, 0),
        ("no answer", asking, || EntryEvent::Unanswered { in_doubt: true }, 101, AT_ONCE, 0),
        ("one at a time", asking, || asks(150), 150, AT_ONCE, 0),
        ("granted too late", asking, || granted(false), 30_100, AT_ONCE, 0),
        ("granted too late for a try", asking, try_late, 30_100, Action::Then(Then::Fail), 0),
        ("waits in a line", asking, waits, 101, sleep_until(60_101 * MS), 60_101),
        (
            "a grant before it was seen waiting",
            || {
                let mut entry = asking();
                step(&mut entry, 101 * MS, waits());
                entry
            },
            || reads([grant(99, 700)]),
            700,
            AT_ONCE,
            0,
        ),
        ("over at once", asking, ends, 101, give_back(Undo::Nothing, None), 0),
        ("over in doubt", in_doubt, ends, 201, give_back(Undo::NowAndLater, None), 0),
        ("too few replicas", asking, unacknowledged, 101, give_back(Undo::Once, None), 0),
        // The owner sleeps. The rows show which message makes the owner ask, and when.
        ("nothing", sleeping, || reads([]), 300, sleep_until(1_101 * MS), 1_101),
        (
            "a window",
            sleeping,
            || reads([Received::Open { until: 304 * MS }]),
            300,
            sleep_until(304 * MS),
            304,
        ),
        (
            "a window that ends behind the poll",
            sleeping,
            || reads([Received::Open { until: 2_000 * MS }]),
            300,
            sleep_until(1_101 * MS),
            1_101,
        ),
        ("a new subscription", sleeping, || reads([Received::Missed]), 300, AT_ONCE, 0),
        (
            "a public release",
            sleeping,
            || reads([Received::Public]),
            300,
            sleep_until(300 * MS),
            300,
        ),
        (
            "a public release, as the second",
            || sleeping_at(1),
            || reads([Received::Public]),
            300,
            sleep_until(301 * MS),
            301,
        ),
        (
            "a public release, as the third",
            || sleeping_at(2),
            || reads([Received::Public]),
            300,
            sleep_until(1_101 * MS),
            1_101,
        ),
        (
            "a grant",
            sleeping,
            || reads([grant(600, 700)]),
            700,
            counts(600, false, by_message()),
            0,
        ),
        (
            "a grant, twice",
            sleeping,
            || reads([grant(600, 700), grant(610, 710)]),
            711,
            counts(600, false, by_message()),
            0,
        ),
        ("a grant that is read late", sleeping, || reads([grant(600, 700)]), 2_600, AT_ONCE, 0),
        ("a grant before the queued reply", sleeping, || reads([grant(99, 700)]), 700, AT_ONCE, 0),
        ("over", sleeping, ends, 300, give_back(Undo::Once, None), 1_101),
        ("over, and granted", sleeping, ends_granted, 701, give_back(Undo::Once, Some('m')), 1_101),
        ("a reply to nothing", sleeping, || granted(false), 300, sleep_until(1_101 * MS), 1_101),
        // A second request is open.
        (
            "granted now",
            polling,
            || granted(false),
            1_102,
            { counts(1_101, false, by_reply(None, true)) },
            0,
        ),
        (
            "granted before",
            polling,
            || granted(true),
            1_102,
            { counts(1_101, false, by_reply(None, true)) },
            0,
        ),
        ("failed again", polling, || EntryEvent::Unanswered { in_doubt: false }, 1_102, AT_ONCE, 0),
    ];
    for (what, state, event, now, then, ask_at) in rows {
        let mut entry = state();
        assert_eq!(step(&mut entry, now * MS, event()), then, "{what}");
        assert_eq!(entry.ask_at(), ask_at * MS, "{what}");
    }
}

#[test]
fn a_refused_owner_listens_and_sleeps_until_the_end_or_the_poll() {
    let ms = Duration::from_millis;
    for (left, place, by_redisson, poll, listens, until) in [
        (LEASE, 0, false, 800, Listens::ToOwn, 901_000),
        (LEASE, 0, false, 1_200, Listens::ToOwn, 1_301_000),
        (LEASE, 7, false, 1_000, Listens::ToOwn, 1_101_000),
        (ms(20), 0, false, 1_000, Listens::ToOwn, 122_000),
        (ms(20), 2, false, 1_000, Listens::ToOwn, 122_600),
        (ms(0), 0, true, 1_000, Listens::ToPublic, 102_000),
        (LEASE, 1, true, 1_000, Listens::ToPublic, 1_101_000),
        (LEASE, 2, true, 1_000, Listens::ToOwn, 1_101_000),
    ] {
        let mut entry = asking();
        let is_new = true;
        let (now, poll) = (SERVER + 100, poll * MS);
        let reply = EntryReply::Queued { now, left, place, by_redisson, is_new, poll };
        let until = until * 1_000;
        let expected = AfterReply { listens, suspects: false, then: Then::Sleep { until } };
        assert_eq!(entry.answered(101 * MS, reply, false), expected, "{left:?} {place}");
    }
}

#[test]
fn a_message_that_should_have_come_makes_the_subscription_suspect() {
    let granted =
        |already| EntryReply::Granted { already, lease: LEASE, waits: true, details: 'r' };
    let is_new = |is_new| match queued(1_101, 3) {
        EntryReply::Queued { now, left, place, by_redisson, poll, .. } => {
            EntryReply::Queued { now, left, place, by_redisson, is_new, poll }
        }
        other => other,
    };
    for (what, mut entry, reply, suspects) in [
        ("granted while it slept", polling(), granted(true), true),
        ("a free lock", polling(), granted(false), false),
        ("its entry is gone", polling(), is_new(true), true),
        ("its entry is there", polling(), is_new(false), false),
        ("its first entry", asking(), is_new(true), false),
    ] {
        assert_eq!(entry.answered(1_102 * MS, reply, false).suspects, suspects, "{what}");
    }
}

/// If replicas must have a grant, a grant message makes the owner ask. The grant in the reply then
/// also has the details of the message.
#[test]
fn the_reply_confirms_a_grant_that_replicas_must_have() {
    let mut entry = sleeping();
    let collector = Collector { needs_reply: true, ..HERE };
    let collects = EntryEvent::Collects { messages: messages([grant(600, 700)]), collector };
    assert_eq!(step(&mut entry, 700 * MS, collects), AT_ONCE);
    step(&mut entry, 700 * MS, asks(700));
    let (mut over, mut another) = (entry.clone(), entry.clone());
    let action = step(&mut entry, 701 * MS, granted(true));
    assert_eq!(action, counts(700, false, by_reply(Some('m'), true)));
    let left = step(&mut over, 701 * MS, EntryEvent::Unacknowledged { in_doubt: true });
    assert_eq!(left, Action::GiveBack { undo: Undo::NowAndLater, details: Some('m') });
    // The reply and the message are about two different grants.
    let action = step(&mut another, 701 * MS, granted(false));
    assert_eq!(action, counts(700, false, by_reply(None, true)));
}

#[test]
fn a_grant_by_message_counts_from_the_last_exchange() {
    for (what, mut entry, granted, from) in [
        ("behind a queued reply", sleeping(), message(600, 700), Some(600)),
        ("a server's clock that was set forward", sleeping(), message(9_000, 700), Some(700)),
        ("before any reply", asking(), message(600, 700), Some(100)),
        ("read after its end", sleeping(), message(600, 2_700), None),
        ("older than the queued reply", sleeping(), message(99, 700), None),
    ] {
        let action = step(&mut entry, granted.received_at, reads([Received::Grant(granted)]));
        let counts = from.map_or(AT_ONCE, |from| counts(from, false, by_message()));
        assert_eq!(action, counts, "{what}");
    }
}

#[test]
fn a_grant_by_message_counts_only_at_the_same_server_and_for_the_wanted_lease() {
    let brief = Collector { lease: Duration::from_millis(50), ..HERE };
    for collector in [Collector { incarnation: 2, ..HERE }, brief] {
        let collects = EntryEvent::Collects { messages: messages([grant(600, 700)]), collector };
        assert_eq!(step(&mut sleeping(), 700 * MS, collects), AT_ONCE, "{collector:?}");
    }
}

#[test]
fn a_grant_by_reply_that_is_read_late_is_asked_for_again_a_few_times() {
    /// Passes a reply to a request of 100 ms, read at this time.
    fn read_at(entry: &mut EntryMachine<char>, now: u64, waits: bool) -> Then<char> {
        entry.begin_request(asked(100), LEASE, true);
        let reply = EntryReply::Granted { already: false, lease: LEASE, waits, details: 'r' };
        entry.answered(now, reply, false).then
    }
    let (late, ask) = (100 * MS + 30_000 * MS, Then::Sleep { until: 0 });
    let mut entry = EntryMachine::new();
    assert!(matches!(read_at(&mut entry, late - 100 * MS, true), Then::Granted(_)));
    assert_eq!(read_at(&mut entry.clone(), late, false), Then::Fail);
    let outcomes = [(); 3].map(|()| read_at(&mut entry, late, true));
    assert_eq!(outcomes, [ask.clone(), ask.clone(), Then::Fail]);
    // A queued reply in between resets the count of late grants.
    let mut entry = EntryMachine::new();
    assert_eq!(read_at(&mut entry, late, true), ask);
    assert_eq!(read_at(&mut entry, late, true), ask);
    entry.begin_request(asked(100), LEASE, true);
    entry.answered(101 * MS, queued(200, 0), false);
    assert_eq!(read_at(&mut entry, late, true), ask);
}

#[test]
fn what_a_wait_leaves_to_undo_follows_from_the_replies() {
    let ends = |mut entry: EntryMachine<char>| entry.end(Messages::new()).0;
    for (reply, in_doubt, undo, stands) in [
        (EntryReply::NotTaken, false, Undo::Nothing, false),
        (queued(100, 0), false, Undo::Once, false),
        (EntryReply::NotTaken, true, Undo::NowAndLater, true),
        (queued(100, 0), true, Undo::NowAndLater, true),
    ] {
        let mut entry = asking();
        entry.answered(101 * MS, reply, in_doubt);
        assert_eq!(ends(entry.clone()), undo, "{reply:?} {in_doubt}");
        assert_eq!(entry.may_be_queued(), stands, "{reply:?} {in_doubt}");
        step(&mut entry, 200 * MS, asks(200));
        assert!(entry.may_be_queued(), "it has asked before");
    }
}

/// A grant message arrives during a request whose reply says that the owner is queued. Of the grant
/// and the reply, the one with the later server time is valid.
#[test]
fn a_queued_reply_that_is_younger_than_the_grant_voids_it_in_either_order() {
    for (replied, grants) in [(1_101, false), (599, true), (600, true)] {
        let mut entry = polling();
        step(&mut entry, 1_102 * MS, answered(queued(replied, 0)));
        let granted = entry.collect(1_103 * MS, messages([grant(600, 700)]), HERE);
        assert_eq!(granted.is_some(), grants, "{replied}");
        assert_eq!(entry.ask_at(), 0, "only the server knows");
    }
}

/// If owners with the same past are equal, a model checker visits each state only once.
#[test]
fn owners_with_the_same_past_are_equal() {
    assert_eq!(polling(), polling());
    assert_ne!(polling(), sleeping());
    let mut failed = polling();
    failed.unanswered(false);
    let mut unknown = polling();
    unknown.unanswered(true);
    assert_ne!(failed, unknown);
}
