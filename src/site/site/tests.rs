//! Tests of interleavings of two threads that cannot be forced through the public API.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc;
use std::time::Duration;

use redlatch_testkit::{Server, wait_until};

use super::*;
use crate::config::ClientBuilder;
use crate::hold::{GrantDetails, HoldState, Terms};
use crate::lease::Task;
use crate::runtime::Session;
use crate::scripts::Chain;
use crate::site::{LockNeed, QueueEntry};
use crate::waiting::{Claim, Listening, Try, Wait};

const TIMEOUT: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(60);

fn session(server: &Server) -> Session {
    let config = ClientBuilder::new(&server.url()).client_tracking(false).config;
    Session::open(&server.url(), config, |_, _, _| {}).unwrap()
}

/// Returns a thread's tenancy of a hold that the server has just granted with this lease.
fn admitted(site: &Arc<Site>, lease: Duration) -> Arc<Tenancy> {
    let (terms, owner) = (Terms::watched(lease), site.core.id.next_owner());
    let hold = Hold::new(owner, terms, Asked::now(site), false);
    let tenancy = Arc::new(Tenancy::new(Arc::new(hold), Thread::current()));
    assert!(site.admit(&tenancy, &mut None).unwrap());
    tenancy
}

/// A thread has ended the hold at the server, for example by a forced unlock, but has not vacated
/// the seat yet.
#[test]
fn a_guard_whose_seat_a_later_hold_takes_says_why_its_own_was_lost() {
    let server = Server::start().unwrap();
    let session = session(&server);
    let site = Site::of(session.core(), "taken");
    let first = admitted(&site, LEASE);
    let (tell, told) = mpsc::channel();
    assert!(first.on_lost(Box::new(move |reason| tell.send(reason).unwrap())).is_none());
    first.hold().lose(LostReason::ForceUnlocked);
    let _second = admitted(&site, LEASE);
    assert_eq!(first.state(), HoldState::Lost(LostReason::ForceUnlocked));
    assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), LostReason::ForceUnlocked);
}

/// If each hold kept the previous hold, the nested drops would overflow the stack.
#[test]
fn very_many_holds_of_an_owner_that_were_not_ours_do_not_keep_one_another() {
    let server = Server::start().unwrap();
    let session = session(&server);
    let site = Site::of(session.core(), "not ours");
    let mut entry = <QueueEntry>::new(&site, Terms::watched(LEASE));
    for _ in 0..100_000 {
        let terms = Terms::watched(LEASE);
        let hold = Hold::new(entry.owner, terms, Asked::now(&site), false);
        drop(hold.of_live(&mut entry.live));
    }
}

/// Each alarm that goes off sets the next alarm, so an extra alarm would exist for as long as the
/// site.
#[test]
fn an_alarm_that_goes_off_although_it_was_replaced_leaves_no_second_one() {
    let server = Server::start().unwrap();
    let session = session(&server);
    let site = Site::of(session.core(), "kept");
    let _tenancy = admitted(&site, LEASE);
    let alarms = || format!("{:?}", session.core().watchdog);
    let before = alarms();
    for _ in 0..10 {
        assert!(Arc::clone(&site).due().is_none(), "a renewal that is not due");
    }
    wait_until("there is one alarm", TIMEOUT, || alarms() == before);
}

/// Without this alarm, the watchdogs of processes that take turns would wake up twice as often.
#[test]
fn a_lock_that_processes_hand_on_keeps_an_alarm_between_its_holds() {
    let server = Server::start().unwrap();
    let session = session(&server);
    let site = Site::of(session.core(), "handed on");
    let keeps_alarm = |chain| {
        let (terms, owner) = (Terms::watched(LEASE), site.core.id.next_owner());
        let details = GrantDetails { places: 1, chain, ..GrantDetails::default() };
        let hold = Hold::granted(owner, terms, LEASE / 30, Asked::now(&site), false);
        let hold = Arc::new(hold.with_details(details, None));
        let tenancy = Arc::new(Tenancy::new(hold, Thread::current()));
        assert!(site.admit(&tenancy, &mut None).unwrap());
        // The server does not have the hold.
        site.leave(&tenancy, None, Leaving::Awaited).unwrap_err();
        let _before = site.alarm.lock().take();
        assert!(Arc::clone(&site).due().is_none());
        site.alarm.lock().is_some()
    };
    assert!(!keeps_alarm(Chain::begun(1)), "nobody else wants it");
    // An attempt fails if the machine stands still after the release.
    wait_until("it keeps one", TIMEOUT, || keeps_alarm(Chain::received(1, 1)));
}

/// While the leader listens for Redisson's releases, it must also listen to the second channel.
/// Otherwise scripts would take the leader for a Redisson client, and leave the free lock to it.
#[test]
fn a_leader_whose_grant_is_taken_back_still_counts_as_one_of_ours() {
    let server = Server::start().unwrap();
    let config = ClientBuilder::new(&server.url()).replica_acks(1, Duration::from_millis(1)).config;
    let session = Session::open(&server.url(), config, |_, _, _| {}).unwrap();
    let site = Site::of(session.core(), "counted");
    let (mut redis, theirs) = (server.connection(), "7a1c3f5e-0b2d-4c6e-8f01-23456789abcd:53");
    for command in [["HSET", "counted", theirs, "1"].as_slice(), &["PEXPIRE", "counted", "60000"]] {
        let _: i64 = redis::cmd(command[0]).arg(&command[1..]).query(&mut redis).unwrap();
    }
    let thread = Thread::current();
    let need = LockNeed { mode: Mode::Lock, terms: Terms::watched(LEASE) };
    let claim = Claim { thread: &thread, need, wait: Wait::FOREVER };
    let (mut listening, mut entry) = (Listening::default(), QueueEntry::new(&site, need.terms));
    let busy = entry.ask(&mut listening, &site, &claim, None);
    assert!(matches!(busy, Ok(Try::Busy(_))), "{busy:?}");
    assert!(listening.companion.is_some());
    let () = redis::cmd("DEL").arg("counted").query(&mut redis).unwrap();
    let error = entry.ask(&mut listening, &site, &claim, None).map(drop).unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert!(listening.companion.is_some());
}

/// After the grant and before its report to the observer, the client ends or the lease ends. If the
/// client ends, `lock` fails, and the observer learns that the thread gave up. If the lease ends,
/// the thread gets the guard.
#[test]
fn a_loss_is_reported_after_its_acquisition_and_never_without_it() {
    let server = Server::start().unwrap();
    let session = session(&server);
    let site = Site::of(session.core(), "told");
    let losses = || session.core().snapshot().counts.lost;
    let early = admitted(&site, LEASE);
    site.lose_hold(&early.hold(), LostReason::ShutDown);
    assert_eq!(losses(), 0, "it has not been acquired");
    site.observed(&early);
    assert_eq!(losses(), 1, "now it has");
    let late = admitted(&site, LEASE);
    site.observed(&late);
    assert_eq!(losses(), 1);
    site.lose_hold(&late.hold(), LostReason::Revoked);
    assert_eq!(losses(), 2);
}

/// A thread may leave a hold before its `lock` returns with another hold. The observer never
/// learned about the first hold.
#[test]
fn a_release_is_reported_only_of_a_hold_reported_as_acquired() {
    let server = Server::start().unwrap();
    let session = session(&server);
    let site = Site::of(session.core(), "left");
    let releases = || session.core().snapshot().counts.released;
    let tenancy = admitted(&site, LEASE);
    tenancy.tell_released(session.core(), &"left".into());
    assert_eq!(releases(), 0);
    site.observed(&tenancy);
    tenancy.tell_released(session.core(), &"left".into());
    assert_eq!(releases(), 1);
}
