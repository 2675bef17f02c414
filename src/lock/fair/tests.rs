//! Tests of interleavings of two threads that cannot be forced through the public API.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Instant;

use redlatch_client::Limit;
use redlatch_client::sync::clock;
use redlatch_testkit::{Server, wait_until};

use super::queue::Newcomer;
use super::*;
use crate::Client;
use crate::ask::Asked;
use crate::hold::{Hold, HoldState};
use crate::lock::{HeldLock, HeldLocks, LockGuard};
use crate::order::line::QueuedThread;
use crate::runtime::{Message, Recipient, Registered};
use crate::waiting::Signal;

const TIMEOUT: Duration = Duration::from_secs(20);

type FairLeadership<'a> = LeadershipGuard<'a, Arc<FairQueue>>;

fn claim<'a>(lock: &FairLock, thread: &'a Arc<Thread>) -> Claim<'a, Terms> {
    Claim { thread, need: lock.handle.terms(), wait: Wait::FOREVER }
}

/// Returns the first thread, which leads the newcomers.
fn first(lock: &FairLock) -> FairLeadership<'_> {
    let thread = Thread::current();
    match lock.enter(&claim(lock, &thread)).unwrap() {
        Enter::Leads(leadership @ Some(_), None) => {
            LeadershipGuard::new(&lock.queue, leadership, None)
        }
        _ => panic!("nobody is before it"),
    }
}

/// Returns `count` newcomers behind the first thread.
fn newcomers_behind(lock: &FairLock, count: usize) -> Vec<Arc<Newcomer>> {
    let thread = Thread::current();
    let come = |_| match lock.enter(&claim(lock, &thread)).unwrap() {
        Enter::Queued(newcomer) => newcomer,
        _ => panic!("nobody is before it"),
    };
    (0..count).map(come).collect()
}

fn ask(lock: &FairLock, leader: &mut FairLeadership<'_>) -> Result<Try<Arc<Tenancy>>, Error> {
    let thread = Thread::current();
    let claim = claim(lock, &thread);
    lock.ask(leader.lead_or(|it| lock.request_state(&claim, it)), &claim)
}

/// Takes the leadership from a newcomer's signal. The leadership comes with an entry if another
/// thread has sent a request for the newcomer.
fn take_leadership<'a>(lock: &'a FairLock, newcomer: &Arc<Newcomer>) -> FairLeadership<'a> {
    match newcomer.take_signal() {
        Some(Signal::Leadership(leadership, lead)) => {
            LeadershipGuard::new(&lock.queue, leadership, lead.map(|lead| *lead))
        }
        other => panic!("{}", other.is_some()),
    }
}

fn number(leader: &FairLeadership<'_>) -> u64 {
    leader.lead.as_ref().unwrap().request_state.entry.owner.number()
}

/// A thread that was granted the lock but has not read the grant yet.
struct GrantedFair<'a> {
    lock: &'a FairLock,
    leader: FairLeadership<'a>,
    tenancy: Arc<Tenancy>,
}

fn granted(lock: &FairLock) -> GrantedFair<'_> {
    let mut leader = first(lock);
    let Try::Granted(tenancy) = ask(lock, &mut leader).unwrap() else { panic!() };
    GrantedFair { lock, leader, tenancy }
}

impl GrantedFair<'_> {
    /// Makes the thread read the grant.
    fn read_grant(self) -> Option<Arc<Tenancy>> {
        let Self { lock, mut leader, tenancy } = self;
        let thread = Thread::current();
        lock.admit(&mut leader, tenancy, &claim(lock, &thread)).unwrap()
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
    assert!(late.read_grant().is_none(), "two have it");
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
    let tenancy = granted(&lock).read_grant().unwrap();
    end.send(()).unwrap();
    assert_eq!(older.join().unwrap(), HoldState::Lost(LostReason::Revoked));
    let guard: LockGuard = LockGuard::new(HeldLocks::One(HeldLock::new(&lock.handle, tenancy)));
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert!(holder(&server, "newer").is_empty());
}

fn queued(server: &Server, name: &str) -> Vec<u64> {
    let queue = format!("redisson_lock_queue:{{{name}}}");
    let owners: Vec<String> =
        redis::cmd("LRANGE").arg(queue).arg(0).arg(-1).query(&mut server.connection()).unwrap();
    owners.iter().map(|owner| owner.rsplit(':').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn the_first_thread_asks_for_all_newcomers_and_the_next_one_for_later_newcomers() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("together").with_lease(TIMEOUT / 20);
    let mut leader = first(&lock);
    let company = newcomers_behind(&lock, 2);
    let begun = clock::now();
    let Try::Granted(tenancy) = ask(&lock, &mut leader).unwrap() else { panic!() };
    let mut company: Vec<_> = company.iter().map(|one| take_leadership(&lock, one)).collect();
    let numbers = |all: &[FairLeadership<'_>]| all.iter().map(number).collect::<Vec<_>>();
    let line = numbers(&company);
    assert_eq!(queued(&server, "together"), line);
    // The first thread in the queue asks the server when the holder's lease ends.
    let asks_within = |leader: &FairLeadership<'_>| {
        leader.lead.as_ref().unwrap().listening.next_request() < begun + clock::nanos(TIMEOUT / 10)
    };
    assert!(asks_within(&company[0]) && !asks_within(&company[1]));

    let second = first(&lock);
    let others = newcomers_behind(&lock, 1);
    assert!(matches!(ask(&lock, &mut company[0]).unwrap(), Try::Busy(_)));
    assert_eq!(
        queued(&server, "together"),
        line,
        "a thread that was asked for asks for itself alone"
    );
    let mut all = vec![second];
    assert!(matches!(ask(&lock, &mut all[0]).unwrap(), Try::Busy(_)));
    all.push(take_leadership(&lock, &others[0]));
    assert_eq!(queued(&server, "together"), [line, numbers(&all)].concat());
    drop((tenancy, leader, company, all));
    client.shutdown();
    assert!(holder(&server, "together").is_empty());
    assert!(queued(&server, "together").is_empty());
}

#[test]
fn the_first_in_line_does_not_ask_before_the_lease_has_ended() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let guard = other.fair_lock("ends").with_lease(TIMEOUT).lock().unwrap();
    let lock = client.fair_lock("ends");
    let mut leader = first(&lock);
    let mut redis = server.connection();
    for _ in 0..20 {
        let Try::Busy(sleep) = ask(&lock, &mut leader).unwrap() else { panic!("it is held") };
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
        let now = seconds * 1_000_000 + micros;
        // The server deletes the lock's key only after the millisecond of its expiry.
        let ends: u64 = redis::cmd("PEXPIRETIME").arg("ends").query(&mut redis).unwrap();
        let free = (ends + 1) * 1_000;
        let asks = now + u64::try_from(sleep.as_micros()).unwrap();
        assert!(asks >= free, "it asks {} us too early", free - asks);
    }
    guard.unlock().unwrap();
}

#[test]
fn the_next_newcomer_leads_if_the_first_leaves_before_it_has_asked() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("leads");
    let leader = first(&lock);
    let company = newcomers_behind(&lock, 2);
    drop(leader);
    assert!(company[1].take_signal().is_none());
    let mut next = take_leadership(&lock, &company[0]);
    assert!(matches!(ask(&lock, &mut next).unwrap(), Try::Granted(_)));
    assert_eq!(queued(&server, "leads"), [number(&take_leadership(&lock, &company[1]))]);
}

/// The companions of a leader stay newcomers until the leader's request is answered.
#[test]
fn the_next_newcomer_leads_if_the_first_dies_while_it_asks() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("dies");
    let mut leader = first(&lock);
    let company = newcomers_behind(&lock, 2);
    let thread = Thread::current();
    leader.lead_or(|it| lock.request_state(&claim(&lock, &thread), it));
    let died = catch_unwind(AssertUnwindSafe(|| {
        let _leader = leader;
        let _company = lock.queue.companions();
        panic!("in the middle of its request");
    }));
    assert!(died.is_err());
    let mut next = take_leadership(&lock, &company[0]);
    assert!(matches!(ask(&lock, &mut next).unwrap(), Try::Granted(_)));
    assert_eq!(queued(&server, "dies"), [number(&take_leadership(&lock, &company[1]))]);
}

#[test]
fn a_message_to_a_companion_before_its_first_look_is_not_forgotten() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let lock = client.fair_lock("looks");
    let guard = other.fair_lock("looks").lock().unwrap();
    let mut leader = first(&lock);
    let company = newcomers_behind(&lock, 1);
    assert!(matches!(ask(&lock, &mut leader).unwrap(), Try::Busy(_)));
    let Some(Signal::Leadership(_, Some(mut lead))) = company[0].take_signal() else { panic!() };
    let owner = lead.request_state.entry.owner.to_string();
    let (uuid, number) = owner.split_once(':').unwrap();
    let channel = format!("redisson_lock__channel:{{redlatch:{uuid}}}");
    wait_until("it is told", TIMEOUT, || {
        let said = format!("ask {number} looks");
        let mut redis = server.connection();
        let () = redis::cmd("PUBLISH").arg(&channel).arg(said).query(&mut redis).unwrap();
        lead.request_state.may_collect()
    });
    assert!(lead.listening.next_request() > 0);
    let Lead { listening, request_state: entry } = &mut *lead;
    assert!(entry.collect(listening).is_none());
    assert_eq!(lead.listening.next_request(), 0, "it sleeps on");
    guard.unlock().unwrap();
}

/// The leader's time limit ends the shared request, but the server may run the request later.
#[test]
fn threads_in_a_shared_request_that_a_limit_cut_leave_no_queue_entry() {
    let server = Server::start().unwrap();
    let client = Client::builder(&server.url()).response_timeout(TIMEOUT).connect().unwrap();
    let held = Client::connect(&server.url()).unwrap().fair_lock("cut").lock().unwrap();
    let lock = client.fair_lock("cut");
    let mut leader = first(&lock);
    let company = newcomers_behind(&lock, 3);
    server.pause();
    let limited = Limit::set(Limit::new(Instant::now().checked_add(TIMEOUT / 200), None));
    assert!(ask(&lock, &mut leader).is_err());
    drop(limited);
    let mut company: Vec<_> = company.iter().map(|one| take_leadership(&lock, one)).collect();
    drop((leader, company.pop()));
    server.resume();
    let rest: Vec<_> = company.iter().map(number).collect();
    for one in &mut company {
        assert!(matches!(ask(&lock, one), Ok(Try::Busy(_))), "it does not ask for itself");
    }
    wait_until("the others have left", TIMEOUT, || queued(&server, "cut") == rest);
    drop(company);
    wait_until("all have left", TIMEOUT, || queued(&server, "cut").is_empty());
    held.unlock().unwrap();
    assert!(holder(&server, "cut").is_empty());
}

#[test]
fn a_refusal_is_that_of_all_threads_of_the_request() {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.fair_lock("refused");
    let () = redis::cmd("SET").arg("refused").arg(1).query(&mut server.connection()).unwrap();
    let mut leader = first(&lock);
    let company = newcomers_behind(&lock, 2);
    let error = ask(&lock, &mut leader).unwrap_err();
    for one in company {
        let Some(Signal::Failed(same)) = one.take_signal() else { panic!() };
        assert_eq!(same.to_string(), error.to_string());
    }
    assert!(queued(&server, "refused").is_empty());
}

/// Puts a listening thread into the queue behind another client.
fn queued_leader(lock: &FairLock) -> FairLeadership<'_> {
    let mut leader = first(lock);
    assert!(matches!(ask(lock, &mut leader).unwrap(), Try::Busy(_)));
    let site = &lock.handle.site;
    wait_until("it listens", TIMEOUT, || site.core.pubsub.is_own_confirmed(&site.name));
    leader
}

/// Passes the leader a hold that the server no longer has, as another thread of the client would.
fn pass(lock: &FairLock, leader: &FairLeadership<'_>) {
    let (site, terms) = (&lock.handle.site, lock.handle.terms());
    let hold = Hold::new(site.core.id.next_owner(), terms, Asked::now(site), false);
    let tenancy = Arc::new(Tenancy::new(Arc::new(hold), Thread::current()));
    mailbox(leader).recipient.pass(tenancy).now();
}

fn mailbox(leader: &FairLeadership<'_>) -> Arc<Registered<Arc<QueuedThread>>> {
    leader.lead.as_ref().unwrap().request_state.entry.mailbox.clone().unwrap()
}

/// Removes the expiry of this lock at the server.
fn remove_expiry(server: &Server, name: &str) {
    let () = redis::cmd("PERSIST").arg(name).query(&mut server.connection()).unwrap();
}

#[test]
fn a_grant_that_comes_when_a_passed_hold_was_taken_is_given_back() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let (lock, name) = (client.fair_lock("on its way"), "on its way");
    let guard = other.fair_lock(name).lock().unwrap();
    let mut leader = queued_leader(&lock);
    // The subscriber thread has a reference to this mailbox after it has looked up the owner of a
    // message.
    let mailbox = mailbox(&leader);
    pass(&lock, &leader);
    let Lead { listening, request_state: entry } = &mut **leader.lead.as_mut().unwrap();
    assert!(entry.collect(listening).is_some());
    let (server_time, lease, details, database, lock) = (1, TIMEOUT, &b"-"[..], 0, name);
    let grant = Message::Grant { server_time, lease, details, database, lock };
    assert!(!mailbox.recipient.receive(&grant), "no thread collects it any more");
    guard.unlock().unwrap();
    remove_expiry(&server, name);
    wait_until("it is given back", TIMEOUT, || holder(&server, name).is_empty());
}

#[test]
fn a_thread_that_gives_up_a_passed_hold_gives_back_its_own_grant_too() {
    let server = Server::start().unwrap();
    let [client, other] = [(); 2].map(|()| Client::connect(&server.url()).unwrap());
    let (lock, name) = (client.fair_lock("its own"), "its own");
    let guard = other.fair_lock(name).lock().unwrap();
    let leader = queued_leader(&lock);
    guard.unlock().unwrap();
    wait_until("it is granted", TIMEOUT, || {
        mailbox(&leader).recipient.state.lock().messages.grant.is_some()
    });
    remove_expiry(&server, name);
    pass(&lock, &leader);
    drop(leader);
    wait_until("it is given back", TIMEOUT, || holder(&server, name).is_empty());
}
