//! Tables of the decisions, without a server.

use super::exchanges::{Asked, Exchanges};
use crate::scripts::lock::Again;

const MS: u64 = 1_000_000;
/// The server's time in ms when the process's own clock shows 0.
const SERVER: u64 = 1_763_692_800_000;

/// `at` is in ms.
fn asked(at: u64) -> Asked {
    Asked { forced_unlocks: 0, incarnation: 1, at: at * MS }
}

/// An owner that has sent its first request at this time, in ms.
fn asking(at: u64) -> Exchanges {
    let mut exchanges = Exchanges::new();
    exchanges.note_request(asked(at));
    exchanges
}

/// Notes a reply to the last request: the owner has an entry.
fn stands(exchanges: &mut Exchanges, now: u64, server: u64) {
    exchanges.note_queued(now * MS, SERVER + server);
    exchanges.set_anchor(SERVER + server);
}

/// An owner that sent its request at 100 ms and was queued at once.
fn waiting() -> Exchanges {
    let mut exchanges = asking(100);
    stands(&mut exchanges, 101, 100);
    exchanges
}

/// Returns the arguments of the next request of an owner that has asked every second. Each pair has
/// the delay of one reply and the offset of the server's clock in that reply.
fn after_questions(delays: [(u64, i64); 4]) -> Option<Again> {
    let mut exchanges = asking(0);
    for (at, (delay, jump)) in (0..).zip(delays) {
        exchanges.note_request(asked(at * 1_000));
        let server = (at * 1_000).saturating_add_signed(jump);
        stands(&mut exchanges, at * 1_000 + delay, server);
    }
    exchanges.again(4_000 * MS)
}

#[test]
fn only_an_owner_that_was_answered_steadily_may_report_others_as_silent() {
    let told = |sent| Some(Again { waiting_since: SERVER, sent });
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
        exchanges.note_request(asked(at));
        stands(&mut exchanges, at + 1, at);
    }
    let waiting_since = SERVER + 100;
    assert_eq!(
        exchanges.again(4_500 * MS),
        Some(Again { waiting_since, sent: Some(SERVER + 4_500) })
    );
    assert_eq!(exchanges.again(4_502 * MS), Some(Again { waiting_since, sent: None }));
    exchanges.note_request(Asked { incarnation: 2, ..asked(4_000) });
    assert_eq!(exchanges.again(4_001 * MS), Some(Again { waiting_since, sent: None }));
}
