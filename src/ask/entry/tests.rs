//! Tables of the machine's steps, without a server: the state, the event, the action, and the time
//! at which the owner asks next.

use std::time::Duration;

use super::entry::{
    Action, Actions, By, EntryEvent, EntryMachine, EntryReply, Granted, Inbox, Listens, Received,
};
use super::exchanges::{Asked, Collector, ReceivedGrant, Undo};
use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// The server's time in ms when the process's own clock shows 0.
const SERVER: u64 = 1_763_692_800_000;
const LEASE: Duration = Duration::from_secs(30);
const PROVISIONAL: Duration = Duration::from_secs(2);
const AT_ONCE: Action<char> = Action::Sleep { until: 0 };

/// `at` is in ms.
fn asked(at: u64) -> Asked {
    Asked { forced: 0, incarnation: 1, at: at * MS }
}

/// `at` is in ms.
fn asks(at: u64) -> EntryEvent<char> {
    EntryEvent::Asks { asked: asked(at), lease: LEASE, queues: true }
}

fn answered(reply: EntryReply<char>) -> EntryEvent<char> {
    EntryEvent::Answered { reply, in_doubt: false }
}

fn granted(already: bool) -> EntryEvent<char> {
    answered(EntryReply::Granted { already, lease: LEASE, waits: true, details: 'r' })
}

/// A refusal with this server time in ms. The holder's lease is longer than any poll.
fn refused(now: u64, place: u32) -> EntryReply<char> {
    let left = LEASE;
    let (by_redisson, is_new, poll) = (false, false, 1_000 * MS);
    EntryReply::Refused { now: SERVER + now, left, place, by_redisson, is_new, poll }
}

fn waits() -> EntryEvent<char> {
    let sleep = Duration::from_secs(60);
    answered(EntryReply::Waits { now: SERVER + 100, sleep, came_back: false })
}

/// A grant message with this server time, received at this time of the process's clock, both in ms.
fn grant(server: u64, received: u64) -> Received<char> {
    let (now, received) = (SERVER + server, received * MS);
    Received::Grant(ReceivedGrant { now, received, lease: PROVISIONAL, details: 'm' })
}

fn reads<const N: usize>(received: [Received<char>; N]) -> EntryEvent<char> {
    let mut inbox = Inbox::new();
    received.into_iter().for_each(|received| inbox.receive(received));
    let collector = Collector { lease: LEASE, incarnation: 1, needs_reply: false };
    EntryEvent::Collects { inbox, collector }
}

/// An owner that sent its first request at 100 ms.
fn asking() -> EntryMachine<char> {
    let mut entry = EntryMachine::new();
    let actions = entry.step(100 * MS, asks(100));
    assert_eq!(actions, Action::Ask { again: None }.into());
    entry
}

/// The owner of `asking` after a refusal with this number of entries ahead. It polls at 1,101 ms.
fn sleeping_at(place: u32) -> EntryMachine<char> {
    let mut entry = asking();
    entry.step(101 * MS, answered(refused(100, place)));
    assert_eq!(entry.ask_at(), 1_101 * MS);
    entry
}

fn sleeping() -> EntryMachine<char> {
    sleeping_at(0)
}

/// The owner of `sleeping_at(0)` after it has asked again, at 1,101 ms.
fn polling() -> EntryMachine<char> {
    let mut entry = sleeping();
    let again = Some(Again { came: SERVER + 100, sent: None });
    let actions = entry.step(1_101 * MS, asks(1_101));
    assert_eq!(actions, Action::Ask { again }.into());
    entry
}

fn counts(at: u64, in_doubt: bool, by: By<char>) -> Action<char> {
    Action::Granted(Granted { asked: asked(at), in_doubt, by })
}

fn by_reply(already: bool, message: Option<char>, may_be_named: bool) -> By<char> {
    By::Reply { already, details: 'r', message, may_be_named }
}

fn by_message() -> By<char> {
    By::Message { lease: PROVISIONAL, details: 'm' }
}

/// The state, the event, its time in ms, the action, and the time of the next request in ms.
type Row =
    (&'static str, fn() -> EntryMachine<char>, fn() -> EntryEvent<char>, u64, Action<char>, u64);

#[test]
fn each_state_is_left_as_the_table_says() {
    let twice: fn() -> EntryEvent<char> = || {
        let reply = EntryReply::Granted { already: false, lease: LEASE, waits: true, details: 'r' };
        EntryEvent::Answered { reply, in_doubt: true }
    };
    let try_late: fn() -> EntryEvent<char> = || {
        answered(EntryReply::Granted { already: false, lease: LEASE, waits: false, details: 'r' })
    };
    let give_back = |undo, details| Action::GiveBack { undo, details };
    let ends: fn() -> EntryEvent<char> = || EntryEvent::Ends { inbox: Inbox::new() };
    let ends_granted: fn() -> EntryEvent<char> = || {
        let mut inbox = Inbox::new();
        inbox.receive(grant(600, 700));
        EntryEvent::Ends { inbox }
    };
    let unacknowledged: fn() -> EntryEvent<char> =
        || EntryEvent::Unacknowledged { in_doubt: false, inbox: Inbox::new() };
    let in_doubt: fn() -> EntryMachine<char> = || {
        let mut entry = asking();
        entry.step(200 * MS, EntryEvent::Unknown);
        entry
    };
    let rows: [Row; 30] = [
        // A first request is open.
        (
            "granted",
            asking,
            || granted(false),
            101,
            counts(100, false, by_reply(false, None, false)),
            0,
        ),
        (
            "granted by a copy",
            asking,
            twice,
            101,
            counts(100, true, by_reply(false, None, true)),
            0,
        ),
        ("not taken", asking, || answered(EntryReply::NotTaken), 101, AT_ONCE, 0),
        ("failed", asking, || EntryEvent::Failed, 101, AT_ONCE, 0),
        ("no answer", asking, || EntryEvent::Unknown, 101, AT_ONCE, 0),
        ("one at a time", asking, || asks(150), 150, AT_ONCE, 0),
        ("granted too late", asking, || granted(false), 30_100, AT_ONCE, 0),
        ("granted too late for a try", asking, try_late, 30_100, Action::Fail, 0),
        ("waits in a line", asking, waits, 101, Action::Sleep { until: 60_101 * MS }, 60_101),
        (
            "a grant before it was seen waiting",
            || {
                let mut entry = asking();
                entry.step(101 * MS, waits());
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
        // The owner sleeps. The rows show which message makes it ask, and when.
        ("nothing", sleeping, || reads([]), 300, Action::Sleep { until: 1_101 * MS }, 1_101),
        (
            "a window",
            sleeping,
            || reads([Received::Open { until: 304 * MS }]),
            300,
            Action::Sleep { until: 304 * MS },
            304,
        ),
        (
            "a window that ends behind the poll",
            sleeping,
            || reads([Received::Open { until: 2_000 * MS }]),
            300,
            Action::Sleep { until: 1_101 * MS },
            1_101,
        ),
        ("a new subscription", sleeping, || reads([Received::Missed]), 300, AT_ONCE, 0),
        (
            "a public release",
            sleeping,
            || reads([Received::Public]),
            300,
            Action::Sleep { until: 300 * MS },
            300,
        ),
        (
            "a public release, as the second",
            || sleeping_at(1),
            || reads([Received::Public]),
            300,
            Action::Sleep { until: 301 * MS },
            301,
        ),
        (
            "a public release, as the third",
            || sleeping_at(2),
            || reads([Received::Public]),
            300,
            Action::Sleep { until: 1_101 * MS },
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
        ("a grant before the refusal", sleeping, || reads([grant(99, 700)]), 700, AT_ONCE, 0),
        ("over", sleeping, ends, 300, give_back(Undo::Once, None), 1_101),
        ("over, and granted", sleeping, ends_granted, 701, give_back(Undo::Once, Some('m')), 1_101),
        (
            "a reply to nothing",
            sleeping,
            || granted(false),
            300,
            { Action::Sleep { until: 1_101 * MS } },
            1_101,
        ),
        // A second request is open.
        (
            "granted now",
            polling,
            || granted(false),
            1_102,
            { counts(1_101, false, by_reply(false, None, true)) },
            0,
        ),
        (
            "granted before",
            polling,
            || granted(true),
            1_102,
            { counts(1_101, false, by_reply(true, None, true)) },
            0,
        ),
        ("failed again", polling, || EntryEvent::Failed, 1_102, AT_ONCE, 0),
    ];
    for (what, state, event, now, then, ask_at) in rows {
        let mut entry = state();
        let actions = entry.step(now * MS, event());
        assert_eq!(actions.then, then, "{what}");
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
        let reply = EntryReply::Refused { now, left, place, by_redisson, is_new, poll };
        let until = until * 1_000;
        let expected = Actions { listens, suspects: false, then: Action::Sleep { until } };
        assert_eq!(entry.step(101 * MS, answered(reply)), expected, "{left:?} {place}");
    }
}

#[test]
fn a_message_that_should_have_come_makes_the_subscription_suspect() {
    let is_new = |is_new| match refused(1_101, 3) {
        EntryReply::Refused { now, left, place, by_redisson, poll, .. } => {
            answered(EntryReply::Refused { now, left, place, by_redisson, is_new, poll })
        }
        other => answered(other),
    };
    for (what, mut entry, event, suspects) in [
        ("granted while it slept", polling(), granted(true), true),
        ("a free lock", polling(), granted(false), false),
        ("its entry is gone", polling(), is_new(true), true),
        ("its entry is there", polling(), is_new(false), false),
        ("its first entry", asking(), is_new(true), false),
    ] {
        assert_eq!(entry.step(1_102 * MS, event).suspects, suspects, "{what}");
    }
}

/// If replicas must have a grant, a grant message makes the owner ask. The grant in the reply then
/// also has the details of the message.
#[test]
fn the_reply_confirms_a_grant_that_replicas_must_have() {
    let mut entry = sleeping();
    let EntryEvent::Collects { inbox, collector } = reads([grant(600, 700)]) else { panic!() };
    let collector = Collector { needs_reply: true, ..collector };
    assert_eq!(entry.step(700 * MS, EntryEvent::Collects { inbox, collector }), AT_ONCE.into());
    entry.step(700 * MS, asks(700));
    let mut over = entry.clone();
    let actions = entry.step(701 * MS, granted(true));
    assert_eq!(actions, counts(700, false, by_reply(true, Some('m'), true)).into());
    let inbox = Inbox::new();
    let left = over.step(701 * MS, EntryEvent::Unacknowledged { in_doubt: true, inbox });
    let give_back = Action::GiveBack { undo: Undo::NowAndLater, details: Some('m') };
    assert_eq!(left, give_back.into());
}

/// A grant message arrives during a request that the server refuses. Of the grant and the refusal,
/// the one with the later server time counts.
#[test]
fn a_refusal_that_is_younger_than_the_grant_voids_it_in_either_order() {
    for (refusal, grants) in [(1_101, false), (599, true), (600, true)] {
        let mut entry = polling();
        entry.step(1_102 * MS, answered(refused(refusal, 0)));
        let actions = entry.step(1_103 * MS, reads([grant(600, 700)]));
        assert_eq!(matches!(actions.then, Action::Granted(_)), grants, "{refusal}");
        assert_eq!(entry.ask_at(), 0, "only the server knows");
    }
}

/// A model checker needs this to visit each state only once.
#[test]
fn owners_with_the_same_past_are_equal() {
    assert_eq!(polling(), polling());
    assert_ne!(polling(), sleeping());
    let mut failed = polling();
    failed.step(1_102 * MS, EntryEvent::Failed);
    let mut unknown = polling();
    unknown.step(1_102 * MS, EntryEvent::Unknown);
    assert_ne!(failed, unknown);
}
