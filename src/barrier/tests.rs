//! Requests of parties that have left, in orders that are rare in a test of the public API.

#![allow(clippy::unwrap_used)]

use redlatch_testkit::Server;

use super::*;

/// Returns a barrier that sends no requests of leaving parties in the background.
fn barrier(client: &crate::Client) -> CyclicBarrier {
    let barrier = client.cyclic_barrier("late");
    barrier.site.left_parties.lock().has_cleanup = true;
    barrier
}

/// Makes a party leave as if the server were unreachable, so the party's arrival was not sent.
fn leave(barrier: &CyclicBarrier) -> RequestId {
    let site = &barrier.site;
    let id = site.requests.open(|| site.core.id.next_number());
    let until = clock::now() + clock::nanos(VALID_FOR);
    let party = site.core.id.next_owner();
    let (lease, is_sent, may_still_arrive) = (barrier.lease, false, false);
    site.take_back_later(LeavingParty { id, party, lease, is_sent, may_still_arrive, until });
    id
}

/// Makes the next request use another sequence. After a request in the same sequence, the server
/// would refuse the late requests of the test.
fn occupy(site: &BarrierSite) {
    let _open = site.requests.open(|| site.core.id.next_number());
}

/// Resets the barrier, then sends these late requests, and checks that they do not break the
/// barrier.
fn come_late(barrier: &CyclicBarrier, requests: &[Command]) {
    assert!(!barrier.is_broken().unwrap());
    for request in requests {
        barrier.site.route.call_once(request).unwrap();
    }
    assert!(!barrier.is_broken().unwrap());
}

#[test]
fn a_request_under_way_when_more_parties_leave_breaks_no_later_generation() {
    let server = Server::start().unwrap();
    let client = crate::Client::connect(&server.url()).unwrap();
    let barrier = barrier(&client);
    assert!(barrier.try_set_parties(2).unwrap());
    let mut late = Vec::new();
    for parties in [2, 1, 2] {
        for _ in 0..parties {
            leave(&barrier);
        }
        late.push(barrier.site.command().unwrap());
    }
    // An outage may be long, so the client keeps only the last few parties that left.
    assert!(barrier.site.left_parties.lock().parties.len() <= 2);
    assert!(barrier.reset().unwrap());
    come_late(&barrier, &late);
}

/// The renewer sends a request after its validity, so the server refuses it. Meanwhile a thread has
/// read the server's clock, and has sent the same request with a later validity.
#[test]
fn a_request_with_a_better_time_breaks_no_later_generation() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| crate::Client::connect(&server.url()).unwrap());
    assert!(other.cyclic_barrier("late").try_set_parties(2).unwrap());
    let barrier = barrier(&client);
    let site = &barrier.site;
    let id = leave(&barrier);
    let refused = site.route.call_once(&site.command().unwrap());
    assert!(site.requests.check_late(refused.as_ref().unwrap()));
    site.requests.prolong(id);
    let party = site.left_parties.lock().parties[0].party;
    let better = site.scripts().leave_command(id, (&party, barrier.lease), 0);
    site.handle_outcome(&refused, false);
    occupy(site);
    assert!(barrier.reset().unwrap());
    come_late(&barrier, &[better]);
}

/// A thread sends the requests of the parties that left at a time when the server has no barrier.
#[test]
fn a_request_under_way_breaks_no_barrier_that_is_made_later() {
    let server = Server::start().unwrap();
    let client = crate::Client::connect(&server.url()).unwrap();
    let barrier = barrier(&client);
    assert!(!barrier.reset().unwrap());
    leave(&barrier);
    let late = barrier.site.command().unwrap();
    let _next = leave(&barrier);
    barrier.site.take_back_all().unwrap();
    occupy(&barrier.site);
    assert!(barrier.try_set_parties(2).unwrap());
    come_late(&barrier, &[late]);
}
