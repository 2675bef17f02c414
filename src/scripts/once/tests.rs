//! Requests that arrive late, twice, in any order, or after their records have expired. A test of
//! the public API would have to wait for minutes.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rand::seq::IndexedRandom;
use redlatch_client::{Endpoint, Lane};
use redlatch_testkit::{Action, Direction, Proxy, Server};

use super::*;
use crate::scripts::number;
use crate::scripts::requests::RECORD_TTL;
use crate::scripts::semaphore::{SemaphoreScripts, marked};

const SHORT: Duration = Duration::from_secs(2);
const SHORT_MEMORY: Duration = Duration::from_secs(5);
const A_LITTLE: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(60);

fn route(url: &str) -> Route {
    let endpoint = Arc::new(Endpoint::new(url, LONG, LONG).unwrap());
    Route::Server(Arc::new(Lane::new(endpoint)))
}

/// One client's semaphore "pool", and how long the server remembers its requests.
struct NumberedPool {
    server: Server,
    route: Route,
    requests: Requests,
    numbers: Cell<u64>,
}

impl NumberedPool {
    fn new(valid_for: Duration, memory: Duration) -> Self {
        let server = Server::start().unwrap();
        let key = "redlatch_request:{pool}:client";
        let requests = Requests::new(key, &Arc::default()).with_validity(valid_for, memory);
        let pool = Self { route: route(&server.url()), server, requests, numbers: Cell::new(1) };
        let request_id = pool.open();
        assert!(pool.scripts().set_permits(request_id, 1_000).unwrap());
        pool.requests.close(request_id);
        pool
    }

    fn open(&self) -> RequestId {
        self.requests.open(|| self.numbers.replace(self.numbers.get() + 1))
    }

    fn scripts(&self) -> SemaphoreScripts<'_> {
        SemaphoreScripts {
            route: &self.route,
            key: "pool",
            channel: "redisson_sc:{pool}",
            mark: "redlatch_mark:{pool}",
            requests: &self.requests,
            acks: None,
        }
    }

    /// The number of permits given back so far, minus the number of permits taken.
    fn given(&self) -> i64 {
        self.scripts().available_permits().unwrap().unwrap() - 1_000
    }

    /// Sends a command. Returns `None` if the command arrived too late.
    fn send(&self, command: &Command) -> Option<i64> {
        let reply = self.route.call_once(command).unwrap();
        if self.requests.check_late(&reply) {
            return None;
        }
        Some(marked(reply, number).unwrap().0)
    }
}

#[test]
fn a_sequence_has_one_open_request_and_the_lowest_is_taken_first() {
    let requests = Requests::new("requests", &Arc::default());
    let opened = [5, 6, 7].map(|number| requests.open(|| number));
    assert_eq!(opened.map(|request_id| request_id.sequence), [0, 1, 2]);
    requests.close(opened[1]);
    requests.close(opened[0]);
    requests.close(opened[0]);
    let again = [8, 9, 10].map(|number| requests.open(|| number));
    assert_eq!(again.map(|request_id| request_id.sequence), [0, 1, 3]);
    // A request that is closed twice must not close the next request of its sequence.
    requests.close(opened[1]);
    assert_eq!(requests.validity_of(opened[1]), [0, 0]);
    assert!(requests.sequences.lock().free.is_empty());
}

#[test]
fn a_client_learns_the_servers_clock_from_its_first_request() {
    let pool = NumberedPool::new(VALID_FOR, RECORD_TTL);
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut pool.server.connection()).unwrap();
    let latest = pool.requests.latest();
    let expected = (seconds + VALID_FOR.as_secs()) * 1_000;
    assert!(latest.abs_diff(expected) < 60_000, "{latest} is not about {expected}");
    // A client with a wrong server time gets the right time from the reply, and then its request is
    // applied.
    for wrong in [0, i64::MAX / 2] {
        pool.requests.server.set(wrong);
        let request_id = pool.open();
        assert_eq!(pool.scripts().release(request_id, 1, false).unwrap().reply.0, Some(0));
        pool.requests.close(request_id);
    }
    assert_eq!(pool.given(), 2);
}

/// Requests are applied once, even with random losses, copies and delays.
#[test]
fn a_request_is_applied_once_in_whatever_order_its_copies_come() {
    let pool = NumberedPool::new(VALID_FOR, RECORD_TTL);
    let mut random = rand::rng();
    // The commands that were sent and have not arrived, even if their request is closed.
    let mut under_way: Vec<(RequestId, Command)> = Vec::new();
    let mut open: Vec<RequestId> = Vec::new();
    let mut answers: Vec<Option<i64>> = Vec::new();
    let mut applied = 0;
    for _ in 0..4_000 {
        if open.len() < 5 && rand::random_bool(0.3) {
            let request_id = pool.open();
            open.push(request_id);
            answers.resize(request_id.number as usize + 1, None);
            under_way.push((request_id, pool.scripts().release_command(request_id, 1, false)));
        }
        if let Some(request_id) = open.choose(&mut random).copied() {
            if rand::random_bool(0.2) {
                under_way.push((request_id, pool.scripts().release_command(request_id, 1, true)));
            } else if rand::random_bool(0.2) {
                pool.requests.close(request_id);
                open.retain(|other| other.number != request_id.number);
            }
        }
        if under_way.is_empty() {
            continue;
        }
        let at = rand::random_range(0..under_way.len());
        let (request_id, command) = under_way[at].clone();
        // Sometimes keep a copy of the command on its way.
        if rand::random_bool(0.7) {
            under_way.swap_remove(at);
        }
        let (before, answer) = (pool.given(), pool.send(&command));
        let change = pool.given() - before;
        applied += change;
        let is_open = open.iter().any(|open| open.number == request_id.number);
        let known = &mut answers[request_id.number as usize];
        match (answer, *known) {
            (Some(_), None) => assert_eq!(change, 1, "it is applied"),
            (Some(_), Some(_)) => assert_eq!(change, 0, "it was applied before"),
            (None, _) => assert!(change == 0 && !is_open, "an open request is not refused"),
        }
        *known = known.or(answer);
    }
    let expected = answers.iter().flatten().count();
    assert!(applied == i64::try_from(expected).unwrap() && applied > 100, "{applied} {expected}");
    let mut redis = pool.server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("redlatch_request*").query(&mut redis).unwrap();
    assert!(keys.len() <= 5, "{keys:?}");
}

#[test]
fn an_abandoned_request_takes_nothing_in_any_order() {
    let pool = NumberedPool::new(VALID_FOR, RECORD_TTL);
    for first_arrives in ["before", "after", "never"] {
        let request_id = pool.open();
        let scripts = pool.scripts();
        if first_arrives == "before" {
            assert_eq!(scripts.try_acquire(request_id, 1, &[1, 2, 998]).unwrap().reply.0, Some(3));
        }
        let abandon = scripts.abandon(request_id);
        let expected = i64::from(first_arrives == "before");
        assert_eq!(pool.send(&abandon), Some(expected), "{first_arrives}");
        assert_eq!(pool.send(&abandon), Some(0), "{first_arrives}, again");
        if first_arrives == "after" {
            assert_eq!(scripts.try_acquire(request_id, 1, &[1, 2, 998]).unwrap().reply.0, Some(0));
        }
        pool.requests.close(request_id);
        assert_eq!(pool.given(), 0, "{first_arrives}");
    }
    let request_id = pool.open();
    assert_eq!(pool.scripts().drain_permits(request_id).unwrap().reply, 1_000);
    assert_eq!(pool.send(&pool.scripts().abandon(request_id)), Some(1));
    assert_eq!(pool.given(), 0);
}

/// Copies and undos of earlier requests do not change a semaphore that was deleted and made anew.
#[test]
fn a_request_keeps_to_the_semaphore_that_it_found() {
    let pool = NumberedPool::new(VALID_FOR, RECORD_TTL);
    let mut redis = pool.server.connection();
    let request_id = pool.open();
    let (taken, first) = pool.scripts().try_acquire(request_id, 1, &[3]).unwrap().reply;
    assert!(taken == Some(3) && first.is_some());
    for by in ["Redisson", "ours"] {
        if by == "ours" {
            assert!(pool.scripts().delete(pool.open()).unwrap());
        } else {
            let () = redis::cmd("DEL").arg("pool").query(&mut redis).unwrap();
        }
        let abandon = pool.scripts().abandon(request_id);
        assert_eq!(pool.send(&abandon), Some(0), "removed by {by}");
        assert!(pool.scripts().try_set_permits(pool.open(), 1_000, None).unwrap());
        assert_eq!(pool.send(&abandon), Some(0), "made anew");
        assert_eq!(pool.given(), 0);
        let again = pool.scripts().try_acquire(request_id, 1, &[3]).unwrap().reply;
        assert_eq!(again, (Some(3), first.clone()));
        let other = pool.scripts().add_permits(pool.open(), 0).unwrap();
        assert!(other.is_some() && other != first);
    }
}

#[test]
fn permits_are_taken_for_whole_needs_and_of_those_behind_up_to_the_clients_share() {
    for (free, clients, needs, expected) in [
        (8, 1, &[1; 10][..], 8),
        (8, 2, &[1; 10], 4),
        (8, 3, &[1; 10], 2),
        (8, 2, &[5, 1, 1], 5),
        (8, 1, &[9, 1, 1], 0),
        (8, 1, &[3, 4, 2, 1], 7),
        (7, 2, &[1, 2, 1], 3),
        (7, 2, &[2, 2], 2),
        (1, 9, &[1, 1], 1),
        (0, 1, &[1], 0),
    ] {
        let pool = NumberedPool::new(VALID_FOR, RECORD_TTL);
        let request_id = pool.open();
        pool.scripts().set_permits(request_id, free).unwrap();
        pool.requests.close(request_id);
        let request_id = pool.open();
        for copy in ["first", "copy"] {
            let taken = pool.scripts().try_acquire(request_id, clients, needs).unwrap().reply.0;
            assert_eq!(taken, Some(expected), "{copy}: {free} free, {clients} clients, {needs:?}");
            let left = pool.scripts().available_permits().unwrap();
            assert_eq!(left, Some(i64::from(free - expected)), "taken once");
        }
    }
}

/// A copy may arrive this late if the process was stopped, or if its machine was suspended.
#[test]
fn a_copy_that_comes_after_the_servers_memory_is_gone_changes_nothing() {
    let pool = NumberedPool::new(SHORT, SHORT_MEMORY);
    let kept = pool.open();
    let first = pool.scripts().release_command(kept, 1, false);
    let copy = pool.scripts().release_command(kept, 1, true);
    let late = pool.open();
    let never_read = pool.scripts().release_command(late, 1, false);
    assert_eq!(pool.send(&first), Some(1));
    thread::sleep(SHORT + A_LITTLE);
    assert_eq!(pool.send(&copy), Some(-2), "past its time, and remembered");
    assert_eq!(pool.send(&never_read), None, "past its time");
    thread::sleep(SHORT_MEMORY + A_LITTLE);
    let mut redis = pool.server.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("redlatch_request*").query(&mut redis).unwrap();
    assert_eq!(keys, Vec::<String>::new());
    for late in [&first, &copy, &never_read, &pool.scripts().abandon(kept)] {
        assert_eq!(pool.send(late), None);
    }
    assert_eq!(pool.given(), 1);
}

#[test]
fn a_call_that_stood_still_between_its_two_copies_says_that_it_does_not_know() {
    let pool = NumberedPool::new(SHORT, SHORT_MEMORY);
    let proxy = Proxy::before(&pool.server);
    let far = route(&proxy.url());
    let scripts = SemaphoreScripts { route: &far, ..pool.scripts() };
    // The first request checks the rights, and the second request loads the script.
    for _ in 0..2 {
        assert_eq!(scripts.try_acquire(pool.open(), 1, &[1]).unwrap().reply.0, Some(1));
    }
    let request_id = pool.open();
    proxy.on(Direction::Request, 1, Action::Silence, |bytes| {
        bytes.windows(4).any(|window| window == b"EVAL")
    });
    let outcome = thread::scope(|scope| {
        let call = scope.spawn(|| scripts.try_acquire(request_id, 1, &[2]));
        proxy.wait_fired(1, LONG);
        thread::sleep(SHORT_MEMORY + A_LITTLE);
        proxy.cut_all();
        call.join().unwrap()
    });
    assert!(matches!(outcome, Err(Trouble::Forgotten(_))), "{outcome:?}");
    assert_eq!(pool.given(), -4, "taken once");
}
