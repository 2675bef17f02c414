//! Tickets: a lock goes from one client to another, and is never free in between.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::*;
use redis::{Commands as _, Connection};
use redlatch::{Client, Error, ErrorKind, HoldState, MultiLock, OwnedLockGuard, Taken, Ticket};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The lease of a ticket. No other request contains this number.
const KEEP: Duration = Duration::from_millis(777_777);

fn owned(client: &Client, name: &str) -> OwnedLockGuard {
    client.reentrant_lock(name).lock_owned().unwrap()
}

fn ticket(client: &Client, name: &str) -> Ticket {
    owned(client, name).into_ticket(KEEP).unwrap()
}

fn owner(redis: &mut Connection, name: &str) -> Option<String> {
    holder(redis, name).map(|(owner, _)| owner)
}

#[track_caller]
fn is_not_held<G>(adopted: Result<G, Error>) {
    let error = adopted.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    assert!(!error.outcome_unknown() && !error.is_transient(), "{error}");
}

#[test]
fn the_lock_stays_taken_from_one_guard_to_the_next() {
    let server = server();
    let (giver, taker, third) = (client(&server), client(&server), client(&server));
    let mut redis = server.connection();
    for name in ["orders", "an order of {7}"] {
        let lock = third.reentrant_lock(name);
        let ticket = ticket(&giver, name);
        assert_eq!(owner(&mut redis, name).unwrap(), ticket.owner().as_str());
        assert!(
            (KEEP - LONG_LEASE..=KEEP)
                .contains(&Duration::from_millis(pttl(&mut redis, name) as u64))
        );
        assert!(lock.is_locked().unwrap() && lock.try_lock().unwrap().into_option().is_none());
        let status = third.status(name).unwrap();
        assert_eq!(status.holders[0].owner, ticket.owner());
        assert!(status.holders[0].process.is_none());

        let guard = taker.adopt(&ticket.to_string().parse().unwrap()).unwrap();
        assert_eq!((guard.name(), guard.state()), (name, HoldState::Held));
        assert!(guard.owner().unwrap().as_str().starts_with(taker.id()));
        assert_eq!(owner(&mut redis, name).unwrap(), guard.owner().unwrap().as_str());
        assert!(
            guard.remaining() <= LONG_LEASE
                && pttl(&mut redis, name) <= LONG_LEASE.as_millis() as i64
        );
        assert!(lock.try_lock().unwrap().into_option().is_none());
        // The adopter makes another ticket from its guard, and the third client adopts this ticket.
        let next = guard.into_ticket(KEEP).unwrap();
        is_not_held(third.adopt(&ticket));
        third.adopt(&next).unwrap().unlock().unwrap();
        lock.try_lock().unwrap().into_option().expect("it is free").unlock().unwrap();
    }
    assert_eq!(giver.snapshot().counts.lost, 0);
}

/// The ticket belongs to no client, so it stays valid after the end of the holder's process.
#[test]
fn a_successor_adopts_the_lock_of_a_process_that_is_gone() {
    let server = server();
    let successor = client(&server);
    for kills in [true, false] {
        let args = [&*server.url(), "deployed"];
        let mut process = Worker::spawn_test("ticket::worker", "hands over", &args);
        let line = process.expect_line("ticket ", TIMEOUT);
        let ticket: Ticket = line.trim().parse().unwrap();
        if kills {
            process.sigkill();
        } else {
            process.send_line("shut down");
            process.expect_line("done", TIMEOUT);
        }
        assert!(successor.fenced_lock("deployed").is_locked().unwrap());
        successor.adopt_fenced(&ticket).unwrap().unlock().unwrap();
    }
}

/// The entry point of the worker processes, which hand their lock over.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0)).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let guard = client.fenced_lock(job.arg(1)).lock_owned().unwrap();
    let ticket = guard.into_ticket(KEEP).unwrap();
    job.say(&format!("ticket {ticket}"));
    let _ = job.wait_line();
    client.shutdown();
    job.say("done");
    let _ = job.wait_line();
}

#[test]
fn a_token_rises_with_each_adoption() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let mut guard = clients[0].fenced_lock("fenced").lock_owned().unwrap();
    for round in 1..5 {
        let before = guard.token();
        let ticket = guard.into_ticket(KEEP).unwrap();
        let error = clients[0].adopt(&ticket).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        guard = clients[round % 2].adopt_fenced(&ticket).unwrap();
        assert!(guard.token() > before);
    }
    let last = guard.token();
    guard.unlock().unwrap();
    assert!(clients[1].fenced_lock("fenced").lock().unwrap().token() > last);
    let plain = ticket(&clients[0], "plain");
    let error = clients[1].adopt_fenced(&plain).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    clients[1].adopt(&plain).unwrap().unlock().unwrap();
}

#[test]
fn waiters_wait_on_and_get_the_lock_after_the_adopter() {
    let server = server();
    let (giver, taker, third) = (client(&server), client(&server), client(&server));
    let guard = owned(&giver, "queued");
    let wait_for_it = |client: &Client| {
        let lock = client.reentrant_lock("queued");
        spawn(move || lock.lock().unwrap().unlock().unwrap())
    };
    let theirs = wait_for_it(&third);
    wait_in_line(&server, "queued", 1);
    // The process of the guard has a waiting thread. The hold must become a ticket, and must not be
    // passed to this thread.
    let beside = wait_for_it(&giver);
    beside.wait_queued();
    let ticket = guard.into_ticket(KEEP).unwrap();
    wait_in_line(&server, "queued", 2);
    let guard = taker.adopt(&ticket).unwrap();
    thread::sleep(TIME_UNIT);
    assert!(!theirs.is_finished() && !beside.is_finished() && guard.is_held());
    guard.unlock().unwrap();
    theirs.join();
    beside.join();
    wait_free(&server, "queued", TIMEOUT);
}

/// A thread of the adopter's process waits in Redis's queue. This thread sends the requests of its
/// process. If the adoption took this role from it, another thread of the process would add a
/// second queue entry at the release.
#[test]
fn an_adoption_beside_waiting_threads_of_its_process_leaves_them_in_line() {
    let server = server();
    let (giver, taker, third) = (client(&server), client(&server), client(&server));
    let mut redis = server.connection();
    let ticket = ticket(&giver, "beside");
    let lock = taker.reentrant_lock("beside");
    let (leave, told) = mpsc::channel::<()>();
    let waits = lock.clone();
    let first = spawn(move || {
        let guard = waits.lock().unwrap();
        told.recv().unwrap();
        guard.unlock().unwrap();
    });
    wait_in_line(&server, "beside", 1);
    let theirs = third.reentrant_lock("beside");
    let theirs = spawn(move || theirs.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "beside", 2);
    let guard = taker.adopt(&ticket).unwrap();
    let later = [(); 3].map(|()| {
        let lock = lock.clone();
        spawn(move || lock.lock().unwrap().unlock().unwrap())
    });
    later.iter().for_each(Running::wait_queued);
    let own = guard.owner().unwrap().to_string();
    assert!(guard.is_held() && !first.is_finished() && !theirs.is_finished());
    wait_in_line(&server, "beside", 2);
    guard.unlock().unwrap();
    wait_until("the first in line has it", TIMEOUT, || {
        let now = owner(&mut redis, "beside").unwrap();
        now.starts_with(taker.id()) && now != own
    });
    for _ in 0..10 {
        assert_eq!(redis.llen::<_, usize>("redlatch_queue:{beside}").unwrap(), 1, "the third's");
        thread::sleep(TIME_UNIT / 10);
    }
    leave.send(()).unwrap();
    first.join();
    theirs.join();
    later.into_iter().for_each(Running::join);
    wait_free(&server, "beside", TIMEOUT);
}

#[test]
fn a_ticket_that_nobody_adopts_ends_with_its_lease() {
    let server = server();
    let (giver, taker) = (watched(&server, SHORT_LEASE), client(&server));
    let guard = owned(&giver, "late");
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    guard.on_lost(move |_| {
        called.fetch_add(1, Ordering::SeqCst);
    });
    let ticket = guard.into_ticket(3 * TIME_UNIT).unwrap();
    // The giver's client lives on, but does not renew the ticket's lease.
    taker.reentrant_lock("late").lock().unwrap().unlock().unwrap();
    is_not_held(taker.adopt(&ticket));
    is_not_held(giver.adopt(&ticket));
    assert_eq!(owner(&mut server.connection(), "late"), None);
    assert_eq!(calls.load(Ordering::SeqCst), 0, "it was not lost");
}

#[test]
fn the_watchdog_renews_an_adopted_lock() {
    let server = server();
    let (giver, taker) = (client(&server), watched(&server, SHORT_LEASE));
    let guard = taker.adopt(&ticket(&giver, "renewed")).unwrap();
    wait_renewed(&server, "renewed");
    assert!(guard.is_held());
    taker.shutdown();
    assert_eq!(guard.state(), HoldState::Lost(redlatch::LostReason::ShutDown));
    wait_free(&server, "renewed", TIMEOUT);
}

#[test]
fn only_the_first_adoption_gets_the_lock() {
    let server = server();
    let (giver, taker, third) = (client(&server), client(&server), client(&server));
    let ticket = ticket(&giver, "once");
    let guard = taker.adopt(&ticket).unwrap();
    for client in [&giver, &taker, &third] {
        is_not_held(client.adopt(&ticket));
        assert!(guard.is_held());
    }
    guard.unlock().unwrap();
    for client in [&giver, &taker, &third] {
        is_not_held(client.adopt(&ticket));
    }
    assert_eq!(owner(&mut server.connection(), "once"), None);
}

#[test]
fn a_ticket_ends_by_force() {
    let server = server();
    let (giver, taker) = (client(&server), client(&server));
    for forced in [true, false] {
        let ticket = ticket(&giver, "forced");
        let lock = taker.reentrant_lock("forced");
        let waiter = {
            let lock = lock.clone();
            spawn(move || lock.lock().unwrap().unlock().unwrap())
        };
        wait_in_line(&server, "forced", 1);
        if forced {
            assert!(giver.reentrant_lock("forced").force_unlock().unwrap());
        } else {
            assert!(giver.release_owner("forced", &ticket.owner()).unwrap());
        }
        waiter.join();
        is_not_held(taker.adopt(&ticket));
    }
}

/// Applies `action` to the next `shots` requests that contain this text.
fn on(proxy: &Proxy, text: String, shots: usize, action: Action) {
    proxy.on(Direction::Request, shots, action, move |bytes| contains(bytes, &text));
}

fn behind_proxy(server: &Server, proxy: &Proxy) -> Client {
    behind(proxy, |client| {
        // The server knows the scripts after this.
        let other = crate::common::client(server);
        client.adopt(&ticket(client, "warm")).unwrap().unlock().unwrap();
        let fenced = other.fenced_lock("warm too").lock_owned().unwrap();
        client.adopt_fenced(&fenced.into_ticket(KEEP).unwrap()).unwrap().unlock().unwrap();
    })
}

#[test]
fn an_adoption_without_a_reply_is_repeated_as_the_same_one() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (giver, taker, third) = (client(&server), behind_proxy(&server, &proxy), client(&server));
    let mut redis = server.connection();
    // In these cases the client itself sends the request a second time.
    for action in [Action::LoseReply, Action::LoseRequest] {
        let ticket = ticket(&giver, "resent");
        on(&proxy, ticket.owner().to_string(), 1, action);
        let guard = taker.adopt(&ticket).unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
        is_not_held(taker.adopt(&ticket));
    }
    for (fired, action) in [(4, Action::LoseReply), (6, Action::LoseRequest)] {
        let guard = giver.fenced_lock("repeated").lock_owned().unwrap();
        let (before, ticket) = (guard.token(), guard.into_ticket(KEEP).unwrap());
        on(&proxy, ticket.owner().to_string(), 2, action);
        let error = taker.adopt_fenced(&ticket).map(drop).unwrap_err();
        assert_eq!(proxy.fired(), fired);
        assert!(error.outcome_unknown() && error.kind().is_server_trouble(), "{error}");
        is_clear(&error, "repeated", "adopt it again");
        assert!(owner(&mut redis, "repeated").is_some(), "the client does not undo it");
        if let Action::LoseReply = action {
            is_not_held(third.adopt_fenced(&ticket));
        }
        let guard = answered(|| taker.adopt_fenced(&ticket));
        assert!(guard.is_held() && guard.token() > before);
        is_not_held(taker.adopt_fenced(&ticket));
        assert_eq!(owner(&mut redis, "repeated").unwrap(), guard.owner().unwrap().as_str());
        guard.unlock().unwrap();
        is_not_held(taker.adopt_fenced(&ticket));
        assert_eq!(owner(&mut redis, "repeated"), None);
    }
}

/// The client got no reply to the release, so a copy of the release may end the adopted hold at any
/// time. If the client adopted the ticket again under the same owner, that copy could end the new
/// hold.
#[test]
fn a_ticket_is_not_adopted_again_while_the_end_of_its_hold_is_unknown() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (giver, taker) = (client(&server), behind_proxy(&server, &proxy));
    let ticket = ticket(&giver, "ended");
    let guard = taker.adopt(&ticket).unwrap();
    let own = guard.owner().unwrap().to_string();
    let (releases, theirs) = (own.clone(), ticket.owner().to_string());
    // An adoption contains both owners, and a release contains only the adopter.
    proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, move |bytes| {
        contains(bytes, &releases) && !contains(bytes, &theirs)
    });
    let error = guard.unlock().unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(owner(&mut server.connection(), "ended").unwrap(), own);
    on(&proxy, ticket.owner().to_string(), 1, Action::LoseReply);
    is_not_held(taker.adopt(&ticket));
    proxy.clear_rules();
    wait_free(&server, "ended", TIMEOUT);
    is_not_held(taker.adopt(&ticket));
}

#[test]
fn a_ticket_without_a_reply_is_asked_for_once_more_or_released() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (giver, taker) = (behind_proxy(&server, &proxy), client(&server));
    let keep = || format!("\r\n{}\r\n", KEEP.as_millis());
    for action in [Action::LoseReply, Action::LoseRequest] {
        let guard = owned(&giver, "given");
        on(&proxy, keep(), 1, action);
        taker.adopt(&guard.into_ticket(KEEP).unwrap()).unwrap().unlock().unwrap();
        let guard = owned(&giver, "given");
        on(&proxy, keep(), 2, action);
        let refused = guard.into_ticket(KEEP).unwrap_err();
        assert!(refused.error().outcome_unknown(), "{refused}");
        is_clear(refused.error(), "given", "in the background");
        assert!(refused.into_guard().is_none());
        proxy.clear_rules();
        wait_free(&server, "given", TIMEOUT);
    }
}

/// The client sends no request, and the returned guard still works.
#[test]
fn a_guard_that_cannot_be_handed_over_comes_back() {
    let server = server();
    let client = client(&server);
    let pair = client.read_write_lock("pair");
    let several = MultiLock::new([client.reentrant_lock("a"), client.reentrant_lock("b")]).unwrap();
    let guards: Vec<(&str, OwnedLockGuard)> = vec![
        ("a ReentrantLock", client.fair_lock("fair").lock_owned().unwrap()),
        ("a ReentrantLock", pair.reader().lock_owned().unwrap()),
        ("several locks", several.lock_owned().unwrap().into()),
        (
            "least time",
            client.reentrant_lock("least").with_hold_at_least(LONG_LEASE).lock_owned().unwrap(),
        ),
    ];
    for (why, guard) in guards {
        let before = Commands::so_far(&server).scripts();
        let refused = guard.into_ticket(KEEP).unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        let guard = refused.into_guard().expect("nothing was sent");
        assert_eq!(Commands::so_far(&server).scripts(), before);
        assert!(guard.is_held());
        guard.unlock().unwrap();
    }
    let writes = pair.writer().lock_owned().unwrap();
    writes.into_ticket(KEEP).unwrap_err().into_guard().unwrap().unlock().unwrap();
    for keep in [Duration::ZERO, Duration::MAX] {
        let refused = owned(&client, "keep").into_ticket(keep).unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::Config, "{refused}");
        let guard = refused.into_guard().unwrap();
        guard.into_ticket(KEEP).unwrap();
        assert!(client.reentrant_lock("keep").force_unlock().unwrap());
    }
}

#[test]
fn a_lock_that_was_lost_or_is_in_doubt_is_not_handed_over() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind_proxy(&server, &proxy);
    let lock = client.reentrant_lock("doubtful");
    on(&proxy, "{doubtful}".to_owned(), 1, Action::LoseReply);
    let refused = lock.lock_owned().unwrap().into_ticket(KEEP).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("take it again"), "{refused}");
    refused.into_guard().unwrap().unlock().unwrap();

    let guard = lock.with_lease(TIME_UNIT).lock_owned().unwrap();
    wait_until("it is lost", TIMEOUT, || !guard.is_held());
    let refused = guard.into_ticket(KEEP).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::LeaseLost, "{refused}");
    assert!(refused.into_guard().is_some_and(|guard| !guard.is_held()));

    // The client does not know that somebody deleted the key.
    let guard = lock.lock_owned().unwrap();
    let () = server.connection().del("doubtful").unwrap();
    let refused = guard.into_ticket(KEEP).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::LeaseLost, "{refused}");
    let Taken(guard) = lock.try_lock().unwrap() else { panic!("it is free") };
    guard.unlock().unwrap();
    let error: Error = owned(&client, "dropped").into_ticket(Duration::ZERO).unwrap_err().into();
    assert_eq!(error.kind(), ErrorKind::Config);
    wait_free(&server, "dropped", TIMEOUT);
}

/// Both clients have the prefix, and the ticket has none.
#[test]
fn a_ticket_has_the_name_as_the_program_gave_it() {
    let server = server();
    let prefixed = || Client::builder(&server.url()).prefix("shop:").connect().unwrap();
    let (giver, taker) = (prefixed(), prefixed());
    let ticket = ticket(&giver, "orders");
    assert_eq!(ticket.name(), "orders");
    is_not_held(client(&server).adopt(&ticket));
    taker.adopt(&ticket).unwrap().unlock().unwrap();
    giver.shutdown();
    let error = giver.adopt(&ticket).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown);
    let empty: Ticket = ticket.to_string().replace(" 6 orders", " 0 ").parse().unwrap();
    assert_eq!(taker.adopt(&empty).map(drop).unwrap_err().kind(), ErrorKind::Config);
}
