//! Tables of the decisions, without a server.

use std::time::Duration;

use super::exchanges::{Asked, Collector, Exchanges, InTime, ReceivedGrant, Undo};
use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// The server's time in ms when the process's own clock shows 0.
const SERVER: u64 = 1_763_692_800_000;
const LEASE: Duration = Duration::from_secs(30);
const HERE: Collector = Collector { lease: LEASE, incarnation: 1, needs_reply: false };

/// `at` is in ms.
fn asked(at: u64) -> Asked {
    Asked { forced: 0, incarnation: 1, at: at * MS }
}

/// An owner that has sent its first request at this time, in ms.
fn asking(at: u64) -> Exchanges<char> {
    let mut exchanges = Exchanges::new();
    exchanges.asks(asked(at), LEASE);
    exchanges
}

/// Notes a reply to the last request: the owner has an entry.
fn stands(exchanges: &mut Exchanges<char>, now: u64, server: u64) {
    exchanges.heard(false, true);
    exchanges.stands(now * MS, SERVER + server);
    exchanges.refused(SERVER + server);
}

/// An owner that sent its request at 100 ms and was refused at once.
fn waiting() -> Exchanges<char> {
    let mut exchanges = asking(100);
    stands(&mut exchanges, 101, 100);
    exchanges
}

/// A grant message with this server time, read at this time of the process's clock, both in ms.
fn granted(server: u64, received: u64) -> ReceivedGrant<char> {
    let lease = Duration::from_secs(2);
    ReceivedGrant { now: SERVER + server, received: received * MS, lease, details: 'g' }
}

#[test]
fn a_grant_by_message_counts_from_the_last_exchange() {
    for (what, mut exchanges, granted, from) in [
        ("behind a refusal", waiting(), granted(600, 700), Some(600)),
        ("a server's clock that was set forward", waiting(), granted(9_000, 700), Some(700)),
        ("before any reply", asking(100), granted(600, 700), Some(100)),
        ("read after its end", waiting(), granted(600, 2_700), None),
        ("older than the refusal", waiting(), granted(99, 700), None),
    ] {
        let now = granted.received;
        let counts = exchanges.collect(now, granted, HERE);
        let from = from.map(|from| (asked(from), 'g'));
        assert_eq!(counts, from, "{what}");
    }
}

#[test]
fn a_grant_by_message_counts_only_at_the_same_server_and_without_replicas() {
    let grant = granted(600, 700);
    let other = Collector { incarnation: 2, ..HERE };
    assert_eq!(waiting().collect(700 * MS, grant, other), None);
    // The request that follows confirms the grant.
    let mut exchanges = waiting();
    let replicated = Collector { needs_reply: true, ..HERE };
    assert_eq!(exchanges.collect(700 * MS, grant, replicated), None);
    assert_eq!(exchanges.clone().confirmed(true), Some('g'));
    assert_eq!(exchanges.confirmed(false), None, "another grant than that of the message");
    // If the thread wants a shorter lease, the shorter lease counts.
    let brief = Collector { lease: Duration::from_millis(50), ..HERE };
    assert_eq!(waiting().collect(700 * MS, grant, brief), None);
}

#[test]
fn a_grant_by_reply_that_is_read_late_is_asked_for_again_a_few_times() {
    let late = 100 * MS + 30_000 * MS;
    let mut exchanges = asking(100);
    assert_eq!(exchanges.in_time(late - 100 * MS, LEASE, true), InTime::Yes);
    assert_eq!(exchanges.clone().in_time(late, LEASE, false), InTime::Fail);
    let outcomes = [(); 3].map(|()| exchanges.in_time(late, LEASE, true));
    assert_eq!(outcomes, [InTime::Ask, InTime::Ask, InTime::Fail]);
    // A refusal in between resets the count of late grants.
    let mut exchanges = asking(100);
    assert_eq!(exchanges.in_time(late, LEASE, true), InTime::Ask);
    assert_eq!(exchanges.in_time(late, LEASE, true), InTime::Ask);
    exchanges.refused(SERVER + 200);
    assert_eq!(exchanges.in_time(late, LEASE, true), InTime::Ask);
}

/// Returns the arguments of the next request of an owner that has asked every second. Each pair is
/// the delay of a reply and a jump of the server's clock.
fn after_questions(delays: [(u64, i64); 4]) -> Option<Again> {
    let mut exchanges = asking(0);
    for (at, (delay, jump)) in (0..).zip(delays) {
        exchanges.asks(asked(at * 1_000), LEASE);
        let server = (at * 1_000).saturating_add_signed(jump);
        stands(&mut exchanges, at * 1_000 + delay, server);
    }
    exchanges.again(4_000 * MS)
}

#[test]
fn only_an_owner_that_was_answered_steadily_may_report_others_as_silent() {
    let told = |sent| Some(Again { came: SERVER, sent });
    let prompt = (1, 0);
    assert_eq!(asking(0).again(MS), None, "it has no entry yet");
    assert_eq!(after_questions([prompt; 4]), told(Some(SERVER + 4_000)));
    for (what, delays) in [
        ("a reply that came late", [prompt, prompt, (500, 0), prompt]),
        ("a server's clock that was set forward", [prompt, prompt, (1, 600), (1, 600)]),
        ("a server's clock that was set back", [(1, 900), (1, 900), (1, 200), (1, 200)]),
    ] {
        assert_eq!(after_questions(delays).and_then(|again| again.sent), None, "{what}");
    }
    // A pause or another server ends the steady period.
    let mut exchanges = waiting();
    for at in [1_000, 2_000, 3_000] {
        exchanges.asks(asked(at), LEASE);
        stands(&mut exchanges, at + 1, at);
    }
    let came = SERVER + 100;
    assert_eq!(exchanges.again(4_500 * MS), Some(Again { came, sent: Some(SERVER + 4_500) }));
    assert_eq!(exchanges.again(4_502 * MS), Some(Again { came, sent: None }));
    exchanges.asks(Asked { incarnation: 2, ..asked(4_000) }, LEASE);
    assert_eq!(exchanges.again(4_001 * MS), Some(Again { came, sent: None }));
}

#[test]
fn what_a_wait_leaves_to_undo_follows_from_the_replies() {
    for (in_doubt, is_there, undo, stands) in [
        (false, false, Undo::Nothing, false),
        (false, true, Undo::Once, false),
        (true, false, Undo::NowAndLater, true),
        (true, true, Undo::NowAndLater, true),
    ] {
        let mut exchanges = asking(100);
        exchanges.heard(in_doubt, is_there);
        assert_eq!(exchanges.undo(), undo, "{in_doubt} {is_there}");
        assert_eq!(exchanges.may_stand(), stands, "{in_doubt} {is_there}");
        exchanges.asks(asked(200), LEASE);
        assert!(exchanges.may_stand(), "it has asked before");
    }
}
