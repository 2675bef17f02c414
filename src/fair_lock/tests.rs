//! What no test can bring about from outside: which of two threads is the first to go on.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc;

use redlatch_testkit::Server;

use super::place::Place;
use super::*;
use crate::Client;
use crate::hold::{Hold, HoldState};
use crate::lock::LockGuard;

/// A thread that was granted the lock and has not read it yet.
struct Granted<'a> {
    lock: &'a FairLock,
    place: Place,
    hold: Hold,
}

fn granted(lock: &FairLock) -> Granted<'_> {
    let (site, queue, terms) = (&lock.handle.site, &lock.queue, lock.handle.terms());
    let mut place = queue.join(site, &Thread::current(), site.core.id.next_owner(), terms);
    let (asked, replied) = place.ask(true);
    let granted = matches!(replied.unwrap().reply, FairAcquired::Granted { already: false, .. });
    assert!(granted);
    let hold = place.hold(asked, Followers::new());
    Granted { lock, place, hold }
}

impl Granted<'_> {
    /// It reads the grant.
    fn goes_on(self) -> Result<(Place, Arc<Tenancy>), Arc<Hold>> {
        let Self { lock, place, hold } = self;
        assert!(place.stand_down().is_none());
        let handle = &lock.handle;
        let admitted = lock.queue.admit(&handle.site, hold, &Thread::current(), handle.terms());
        admitted.unwrap().map(|tenancy| (place, tenancy))
    }
}

fn holder(server: &Server, name: &str) -> Vec<String> {
    redis::cmd("HKEYS").arg(name).query(&mut server.connection()).unwrap()
}

#[test]
fn a_grant_that_is_read_late_does_not_displace_a_newer_one() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let lock = client.fair_lock("late");
    let late = granted(&lock);
    assert!(other.fair_lock("late").force_unlock().unwrap());
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let newer = {
        let lock = lock.clone();
        std::thread::spawn(move || {
            let guard = lock.lock().unwrap();
            tell.send(()).unwrap();
            ended.recv().unwrap();
            (guard.state(), guard.unlock())
        })
    };
    told.recv().unwrap();
    assert!(late.goes_on().is_err(), "two have it");
    assert!(!lock.is_held_by_current_thread());
    end.send(()).unwrap();
    let (state, unlocked) = newer.join().unwrap();
    assert_eq!(state, HoldState::Held);
    unlocked.unwrap();
    assert!(holder(&server, "late").is_empty());
}

#[test]
fn a_newer_grant_that_is_read_late_takes_the_seat_from_the_one_that_was_taken_away() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let lock = client.fair_lock("newer");
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let older = {
        let lock = lock.clone();
        std::thread::spawn(move || {
            let guard = lock.lock().unwrap();
            tell.send(()).unwrap();
            ended.recv().unwrap();
            guard.state()
        })
    };
    told.recv().unwrap();
    assert!(other.fair_lock("newer").force_unlock().unwrap());
    let (place, tenancy) = granted(&lock).goes_on().unwrap();
    end.send(()).unwrap();
    assert_eq!(older.join().unwrap(), HoldState::Lost(LostReason::Revoked));
    let tenancy = lock.handle.admitted(place.settle(tenancy)).unwrap();
    let guard = LockGuard::new(&lock.handle, tenancy);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert!(holder(&server, "newer").is_empty());
}

#[test]
fn a_hold_is_not_passed_into_a_seat_that_is_taken() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let lock = client.fair_lock("passed");
    let (gate, terms) = (&lock.handle.site.gate, lock.handle.terms());
    let first = granted(&lock);
    let passed = Arc::new(Tenancy::new(Arc::new(first.hold), Thread::current()));
    drop(first.place);
    other.fair_lock("passed").force_unlock().unwrap();
    let guard = lock.lock().unwrap();
    assert!(!gate.admit_passed(&passed, terms));
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

fn queued(server: &Server, name: &str) -> Vec<u64> {
    let queue = format!("redisson_lock_queue:{{{name}}}");
    let owners: Vec<String> =
        redis::cmd("LRANGE").arg(queue).arg(0).arg(-1).query(&mut server.connection()).unwrap();
    owners.iter().map(|owner| owner.rsplit(':').next().unwrap().parse().unwrap()).collect()
}

/// So many that have joined, and not asked.
fn joined(lock: &FairLock, count: usize) -> Vec<Place> {
    let (site, queue, terms) = (&lock.handle.site, &lock.queue, lock.handle.terms());
    let join = |_| queue.join(site, &Thread::current(), site.core.id.next_owner(), terms);
    (0..count).map(join).collect()
}

fn numbers(places: &[Place]) -> Vec<u64> {
    places.iter().map(|place| place.waiter.owner.number()).collect()
}

#[test]
fn the_first_asks_for_all_who_have_come_and_the_next_one_for_those_who_came_since() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("together");
    let mut first = joined(&lock, 3);
    let (_, replied) = first[0].ask(true);
    let FairAcquired::Granted { followers, .. } = replied.unwrap().reply else { panic!() };
    let behind = numbers(&first[1..]);
    assert_eq!(followers, behind);
    assert_eq!(queued(&server, "together"), behind);

    let mut second = joined(&lock, 2);
    for (at, place) in first[1..].iter_mut().enumerate() {
        let (asked, replied) = place.ask(true);
        let FairAcquired::Queued { now, ask_after, .. } = replied.unwrap().reply else { panic!() };
        assert!(now > 0);
        // Whoever is first in line asks when the holder's lease is over.
        assert_eq!(ask_after.is_some(), at == 0);
        place.refused(asked, now);
    }
    assert_eq!(queued(&server, "together"), behind, "who has an answer asks once more");
    for place in &mut second {
        let (_, replied) = place.ask(true);
        assert!(matches!(replied.unwrap().reply, FairAcquired::Queued { .. }));
    }
    assert_eq!(queued(&server, "together"), [behind, numbers(&second)].concat());
    drop((first, second));
    client.shutdown();
    assert!(holder(&server, "together").is_empty());
    assert!(queued(&server, "together").is_empty());
}

#[test]
fn the_next_one_leads_where_the_first_goes_before_it_has_asked() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("leads");
    let mut places = joined(&lock, 3);
    drop(places.remove(0));
    for (at, place) in places.iter_mut().enumerate() {
        let (_, replied) = place.ask(true);
        let granted = matches!(replied.unwrap().reply, FairAcquired::Granted { .. });
        assert_eq!(granted, at == 0);
    }
}

#[test]
fn what_the_server_refuses_to_one_it_refuses_to_all_who_came_with_it() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("refused");
    let () = redis::cmd("SET").arg("refused").arg(1).query(&mut server.connection()).unwrap();
    let mut places = joined(&lock, 3);
    for place in &mut places {
        let (_, replied) = place.ask(true);
        assert!(matches!(replied, Err(Trouble::Refused(_))));
    }
    assert!(queued(&server, "refused").is_empty());
}
