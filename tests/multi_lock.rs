//! Several locks that are taken together, and the majority of a quorum.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, ErrorKind, HoldState, Lock, MultiLock, MultiLockGuard, ReentrantLock, Wait,
};
use redlatch_testkit::{Action, Job, PlainClient, Proxy, Server, Worker};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A lock of each of these names, listed in this order.
fn all_of(client: &Client, names: &[&str]) -> MultiLock {
    let locks: Vec<_> = names.iter().map(|name| client.reentrant_lock(name)).collect();
    of(&locks)
}

fn of(locks: &[ReentrantLock]) -> MultiLock {
    MultiLock::new(&listed(locks)).unwrap()
}

fn listed(locks: &[ReentrantLock]) -> Vec<&dyn Lock> {
    locks.iter().map(|lock| lock as &dyn Lock).collect()
}

fn is_held(server: &Server, name: &str) -> bool {
    holder(&mut server.connection(), name).is_some()
}

fn wait_all_free(server: &Server, names: &[&str]) {
    names.iter().for_each(|name| wait_free(server, name, SOON));
}

/// Counts how often it was called.
fn losses(guard: &MultiLockGuard) -> Arc<AtomicUsize> {
    let lost = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&lost);
    guard.on_lost(move |_| {
        counts.fetch_add(1, Ordering::SeqCst);
    });
    lost
}

// What is taken.

#[test]
fn all_are_held_until_the_guard_goes() {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let all = all_of(&client, &["c", "a", "b"]);
    assert_eq!(all.names().collect::<Vec<_>>(), NAMES);
    let guard = all.lock().unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(guard.names().collect::<Vec<_>>(), NAMES);
    guard.check(LONG / 2).unwrap();
    assert_eq!(guard.check(LONG * 2).unwrap_err().kind(), ErrorKind::EndsTooSoon);
    for name in NAMES {
        assert!(other.reentrant_lock(name).try_lock().unwrap().is_none(), "{name}");
    }
    guard.unlock().unwrap();
    for name in NAMES {
        assert!(!is_held(&server, name), "unlock says so when it is true");
    }
    drop(all.lock().unwrap());
    wait_all_free(&server, &NAMES);
}

#[test]
fn none_is_held_if_one_is_not_to_be_had() {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), client(&server));
    for taken in NAMES {
        let all = all_of(&client, &NAMES);
        let guard = other.reentrant_lock(taken).lock().unwrap();
        assert!(all.try_lock().unwrap().is_none());
        assert!(all.try_lock_for(UNIT).unwrap().is_none());
        for name in NAMES.into_iter().filter(|name| *name != taken) {
            wait_free(&server, name, SOON);
        }
        guard.unlock().unwrap();
        all.try_lock().unwrap().unwrap().unlock().unwrap();
    }
}

#[test]
fn all_are_asked_for_before_the_first_has_answered() {
    let _bounded = bounded();
    let server = server();
    for connections in [1, 4] {
        let proxy = Proxy::before(&server);
        let client = Client::builder(&proxy.url())
            .watchdog_timeout(LONG)
            .connections(connections)
            .connect()
            .unwrap();
        let all = all_of(&client, &NAMES);
        // Connections are open, and the server knows the scripts.
        for _ in 0..2 {
            all.lock().unwrap().unlock().unwrap();
        }
        let mut redis = server.connection();
        let mut so_many = |wanted: usize| {
            wait_until("all were asked for", SOON, || {
                NAMES.iter().filter(|name| redis.exists(**name).unwrap()).count() == wanted
            });
        };
        proxy.on_reply("", Action::HoldReply);
        let (sender, go) = mpsc::channel::<()>();
        let (taken, has_taken) = mpsc::channel::<()>();
        let taking = all.clone();
        let taker = spawn(move || {
            let guard = taking.lock().unwrap();
            taken.send(()).unwrap();
            go.recv().unwrap();
            guard.unlock().unwrap();
        });
        so_many(3);
        proxy.clear_rules();
        proxy.release();
        has_taken.recv().unwrap();
        proxy.on_reply("", Action::HoldReply);
        sender.send(()).unwrap();
        so_many(0);
        proxy.clear_rules();
        proxy.release();
        taker.join();
    }
}

#[test]
fn a_lock_that_is_listed_twice_is_taken_once() {
    let _bounded = bounded();
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let by_name =
        Client::connect(&server.url().replace("127.0.0.1", "localhost")).expect("a hosts file");
    let [a, b, c] = [&one, &two, &by_name].map(|client| client.reentrant_lock("twice"));
    let both = MultiLock::new(&[&a, &a, &b, &c]).unwrap();
    assert_eq!(both.names().collect::<Vec<_>>(), ["twice"]);
    both.lock().unwrap().unlock().unwrap();
    both.lock_owned().unwrap().unlock().unwrap();
    assert!(!is_held(&server, "twice"));
}

#[test]
fn what_makes_no_sense_is_said_when_it_is_listed() {
    let _bounded = bounded();
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let kind = |lock: Result<MultiLock, redlatch::Error>| lock.unwrap_err().kind();
    assert_eq!(kind(MultiLock::new(&[])), ErrorKind::Config);
    assert_eq!(kind(MultiLock::quorum(&[])), ErrorKind::Config);
    let (plain, fair) = (one.reentrant_lock("x"), two.fair_lock("x"));
    assert_eq!(kind(MultiLock::new(&[&plain, &fair])), ErrorKind::Config);
    // Two votes of one server.
    let (left, right) = (one.reentrant_lock("x"), two.reentrant_lock("y"));
    let error = MultiLock::quorum(&[&left, &right]).unwrap_err();
    assert!(error.to_string().contains(&server.port().to_string()), "{error}");
    // A name and a lease are looked at by the first call, as of one lock.
    let error = all_of(&one, &["x", ""]).lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let error = all_of(&one, &NAMES).with_lease(Duration::ZERO).try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!is_held(&server, "x"));
}

#[test]
fn parts_that_the_thread_holds_are_taken_once_more() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let all = all_of(&client, &NAMES);
    let part = client.reentrant_lock("b");
    let outer = part.lock().unwrap();
    let guard = all.lock().unwrap();
    let again = all.try_lock().unwrap().unwrap();
    assert_eq!(part.hold_count(), 3);
    again.unlock().unwrap();
    guard.unlock().unwrap();
    assert_eq!(part.hold_count(), 1);
    assert!(outer.is_held());
    assert!(is_held(&server, "b") && !is_held(&server, "a") && !is_held(&server, "c"));
    outer.unlock().unwrap();
    // An owned one waits for its own thread, too.
    let owned = all.lock_owned().unwrap();
    assert!(all.try_lock().unwrap().is_none());
    elsewhere(move || {
        assert!(owned.is_held());
        owned.unlock().unwrap();
    });
    all.lock().unwrap().unlock().unwrap();
}

#[test]
fn locks_of_any_kind_go_together() {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let (fair, plain) = (client.fair_lock("fair"), client.reentrant_lock("plain"));
    let both = MultiLock::new(&[&plain, &fair]).unwrap();
    let taken = other.fair_lock("fair").lock().unwrap();
    assert!(both.try_lock().unwrap().is_none());
    let waiter = spawn(move || both.lock().unwrap().unlock().unwrap());
    waiter.wait_asleep();
    taken.unlock().unwrap();
    waiter.join();
    wait_all_free(&server, &["fair", "plain"]);
}

#[test]
fn with_gives_back_what_work_gives() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let all = all_of(&client, &NAMES);
    let answer: Result<u32, redlatch::Error> = all.with(|guard| {
        guard.check(UNIT)?;
        Ok(42)
    });
    assert_eq!(answer.unwrap(), 42);
    assert!(!NAMES.into_iter().any(|name| is_held(&server, name)));
}

// Waiting.

#[test]
fn while_one_is_waited_for_those_before_it_are_held_and_renewed() {
    let _bounded = bounded();
    let server = server();
    let lease = RENEWED;
    let (ours, other) = (watched(&server, lease), client(&server));
    let taken = other.reentrant_lock("b").lock().unwrap();
    let all = all_of(&ours, &["c", "b", "a"]);
    let waiter = spawn(move || {
        let guard = all.lock().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
    });
    wait_in_line(&server, "b", 1);
    waiter.wait_asleep();
    let before = holder(&mut server.connection(), "a");
    assert!(before.is_some(), "the one before is held");
    assert!(!is_held(&server, "c"), "the one behind is not");
    thread::sleep(lease * 2);
    assert_eq!(holder(&mut server.connection(), "a"), before);
    taken.unlock().unwrap();
    waiter.join();
    wait_all_free(&server, &NAMES);
}

#[test]
fn one_that_was_handed_on_is_kept_while_the_next_is_waited_for() {
    let _bounded = bounded();
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let [a, b] = ["a", "b"].map(|name| other.reentrant_lock(name).lock().unwrap());
    let both = all_of(&ours, &["a", "b"]);
    let waiter = spawn(move || both.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "a", 1);
    let before = holder(&mut server.connection(), "a");
    waiter.wait_asleep();
    a.unlock().unwrap();
    wait_in_line(&server, "b", 1);
    let handed = holder(&mut server.connection(), "a");
    assert!(handed.is_some() && handed != before);
    // Longer than a lock that was handed on is certain at first.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(holder(&mut server.connection(), "a"), handed);
    b.unlock().unwrap();
    waiter.join();
}

#[test]
fn a_time_limit_is_for_the_whole() {
    let _bounded = bounded();
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let taken = ["b", "c"].map(|name| other.reentrant_lock(name).lock().unwrap());
    let all = all_of(&ours, &NAMES);
    let begun = Instant::now();
    assert!(all.try_lock_for(UNIT * 5).unwrap().is_none());
    assert!(all.try_lock_until(Instant::now() + UNIT * 5).unwrap().is_none());
    let took = begun.elapsed();
    assert!(took >= UNIT * 10 && took < UNIT * 30, "{took:?}");
    wait_free(&server, "a", SOON);
    taken.into_iter().for_each(|guard| guard.unlock().unwrap());
}

#[test]
fn a_cancel_gives_back_what_was_had() {
    let _bounded = bounded();
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let taken = other.reentrant_lock("b").lock().unwrap();
    let all = all_of(&ours, &NAMES);
    let token = CancelToken::new();
    let (cancelled, waits) = (token.clone(), all.clone());
    let waiter = spawn(move || waits.lock_cancellable(&cancelled).unwrap_err());
    wait_in_line(&server, "b", 1);
    waiter.wait_asleep();
    assert!(is_held(&server, "a"));
    token.cancel();
    let error = waiter.join();
    assert_eq!((error.kind(), error.name()), (ErrorKind::Cancelled, Some("b")));
    wait_free(&server, "a", SOON);
    let wait = Wait::at_most(LONG).cancelled_by(&token);
    assert_eq!(all.lock_within(wait).unwrap_err().kind(), ErrorKind::Cancelled);
    taken.unlock().unwrap();
}

#[test]
fn what_is_lost_while_others_are_waited_for_is_taken_again() {
    let _bounded = bounded();
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let taken = other.reentrant_lock("b").lock().unwrap();
    let all = all_of(&ours, &["a", "b"]).with_lease(UNIT * 10);
    let waiter = spawn(move || {
        let guard = all.lock().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
    });
    wait_in_line(&server, "b", 1);
    wait_free(&server, "a", SOON);
    taken.unlock().unwrap();
    waiter.join();
}

// Contention.

/// Six locks, of two kinds.
fn lock_of(client: &Client, number: u64) -> Box<dyn Lock> {
    let name = format!("name {number}");
    if number % 3 == 2 {
        Box::new(client.fair_lock(&name))
    } else {
        Box::new(client.reentrant_lock(&name))
    }
}

/// Takes two or three of them again and again, in any order, and looks whether it is alone in each.
fn contend(url: &str, seed: u64, until: Instant) -> usize {
    let client = Client::builder(url).watchdog_timeout(LONG).connect().unwrap();
    let threads: Vec<_> = (0..3_u64)
        .map(|number| {
            let (client, url) = (client.clone(), url.to_owned());
            spawn_plain(move || {
                let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
                let mut random = Random::of(seed ^ (number << 32));
                let mut taken = 0;
                while Instant::now() < until {
                    let numbers: Vec<u64> =
                        (0..2 + random.below(2)).map(|_| random.below(6)).collect();
                    let locks: Vec<_> = numbers.iter().map(|it| lock_of(&client, *it)).collect();
                    let locks: Vec<&dyn Lock> = locks.iter().map(|lock| &**lock).collect();
                    let all = MultiLock::new(&locks).unwrap();
                    let guard = match random.below(4) {
                        0 => all.try_lock().unwrap(),
                        1 => all.try_lock_for(Duration::from_millis(random.below(5))).unwrap(),
                        _ => Some(all.try_lock_for(LONG).unwrap().expect("they have locked up")),
                    };
                    let Some(guard) = guard else { continue };
                    // On a busy machine a process may stand still for longer than a lock that was
                    // handed on is certain: then it is lost, and told so. From here on all are.
                    if guard.check(LONG / 2).is_err() {
                        continue;
                    }
                    for name in guard.names() {
                        let inside = format!("inside {name}");
                        let alone: bool = redis.set_nx(&inside, seed).unwrap();
                        assert!(alone, "two are in {name}");
                    }
                    thread::sleep(Duration::from_micros(random.below(500)));
                    for name in guard.names() {
                        let () = redis.del(format!("inside {name}")).unwrap();
                    }
                    match random.below(2) {
                        0 => drop(guard),
                        _ => guard.unlock().unwrap(),
                    }
                    taken += 1;
                }
                taken
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

fn spawn_plain<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::spawn(work)
}

/// Where this executable's workers begin.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "contender" => {
            let until = Instant::now() + Duration::from_millis(job.arg(2).parse().unwrap());
            job.say("starts");
            let taken = contend(job.arg(0), job.arg(1).parse().unwrap(), until);
            job.say(&format!("taken {taken}"));
        }
        "holder" => {
            let lease = Duration::from_millis(job.arg(1).parse().unwrap());
            let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
            let guard = all_of(&client, &NAMES).lock().unwrap();
            job.say("holds");
            let _ = job.wait_line();
            drop(guard);
        }
        role => panic!("no role {role}"),
    }
    job.done();
}

/// For as many seconds as `REDLATCH_SOAK` says (10).
#[test]
fn whatever_is_taken_in_whatever_order_nothing_locks_up_and_no_two_are_in_one() {
    let seconds = std::env::var("REDLATCH_SOAK").ok().and_then(|it| it.parse().ok()).unwrap_or(10);
    let server = server();
    let mut random = Random::new();
    let length = (seconds * 1_000).to_string();
    let mut workers: Vec<_> = (0..4)
        .map(|_| {
            let seed = random.next().to_string();
            let mut worker =
                Worker::spawn_test("worker", "contender", &[&server.url(), &seed, &length]);
            worker.expect_line("starts", SOON);
            worker
        })
        .collect();
    for worker in &mut workers {
        let taken = worker.expect_line("taken", Duration::from_secs(seconds) + LONG * 2);
        assert!(taken.parse::<usize>().unwrap() > 0, "nothing was taken");
    }
    for number in 0..6 {
        wait_free(&server, &format!("name {number}"), SOON);
    }
}

#[test]
fn two_that_list_them_in_opposite_orders_both_go_on() {
    let _bounded = bounded();
    let server = server();
    let threads: Vec<_> = [["x", "y"], ["y", "x"], ["x", "y"], ["y", "x"]]
        .into_iter()
        .map(|names| {
            // Two in each process: the second one is a clone.
            let both = all_of(&client(&server), &names);
            let again = both.clone();
            [both, again].map(|both| {
                spawn(move || {
                    for _ in 0..50 {
                        let guard = both.lock().unwrap();
                        thread::sleep(Duration::from_micros(200));
                        guard.unlock().unwrap();
                    }
                })
            })
        })
        .collect();
    threads.into_iter().flatten().for_each(Running::join);
}

/// Redisson's `RedissonMultiLock`: in the order of the list, each for a while, else all are given
/// back and it begins anew.
#[test]
fn beside_redissons_in_the_opposite_order_nothing_locks_up() {
    let _bounded = bounded();
    let server = server();
    let plain = PlainClient::connect(&server.url()).unwrap();
    let theirs = spawn(move || {
        let mut locks = ["y", "x"].map(|name| plain.lock(name).handle().unwrap());
        let mut random = Random::of(7);
        for _ in 0..20 {
            'whole: loop {
                for at in 0..locks.len() {
                    let until = Instant::now() + UNIT * 3;
                    while !locks[at].try_lock().unwrap() {
                        if Instant::now() < until {
                            thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                        locks[..at].iter_mut().for_each(|lock| assert!(lock.unlock().unwrap()));
                        thread::sleep(Duration::from_millis(random.below(20)));
                        continue 'whole;
                    }
                }
                break;
            }
            thread::sleep(Duration::from_millis(1));
            locks.iter_mut().for_each(|lock| assert!(lock.unlock().unwrap()));
        }
    });
    let both = all_of(&client(&server), &["x", "y"]);
    let mut taken = 0;
    while !theirs.is_finished() || taken < 20 {
        let guard = both.try_lock_for(LONG).unwrap().expect("they have locked up");
        thread::sleep(Duration::from_millis(1));
        guard.unlock().unwrap();
        thread::sleep(Duration::from_millis(1));
        taken += 1;
    }
    theirs.join();
}

// Trouble.

#[test]
fn what_a_killed_process_held_comes_back_when_its_lease_ends() {
    let _bounded = bounded();
    let server = server();
    let lease = UNIT * 10;
    let millis = lease.as_millis().to_string();
    let mut dead = Worker::spawn_test("worker", "holder", &[&server.url(), &millis]);
    dead.expect_line("holds", SOON);
    let all = all_of(&client(&server), &["c", "b", "a"]);
    assert!(all.try_lock().unwrap().is_none());
    dead.sigkill();
    all.try_lock_for(SOON).unwrap().unwrap().unlock().unwrap();
}

#[test]
fn a_part_that_is_lost_is_told_once_and_the_others_are_kept_until_the_end() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, UNIT * 10);
    let all = all_of(&client, &NAMES);
    let guard = all.lock().unwrap();
    let lost = losses(&guard);
    let () = server.connection().del(&["b", "c"]).unwrap();
    wait_until("it is told", SOON, || lost.load(Ordering::SeqCst) > 0);
    wait_until("it is lost", SOON, || !guard.is_held());
    assert!(guard.remaining().is_zero());
    assert!(matches!(guard.state(), HoldState::Lost(_)));
    let error = guard.check(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(["b", "c"].contains(&error.name().unwrap()), "{error}");
    assert!(is_held(&server, "a"));
    thread::sleep(UNIT * 4);
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(!is_held(&server, "a"));
    assert_eq!(lost.load(Ordering::SeqCst), 1);
    all.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_that_dies_while_it_is_waited_for_is_named_and_the_others_parts_are_given_back() {
    let _bounded = bounded();
    let (here, there) = (server(), server());
    let (ours, theirs) = (impatient(&here.url()), impatient(&there.url()));
    let (ours, theirs) = (ours.connect().unwrap(), theirs.connect().unwrap());
    let _taken = client(&there).reentrant_lock("b").lock().unwrap();
    let (a, b) = (ours.reentrant_lock("a"), theirs.reentrant_lock("b"));
    let c = ours.reentrant_lock("c");
    let all = MultiLock::new(&[&c, &b, &a]).unwrap();
    let waiter = spawn({
        let all = all.clone();
        move || all.lock().unwrap_err()
    });
    wait_in_line(&there, "b", 1);
    assert!(is_held(&here, "a"));
    there.kill();
    for error in [waiter.join(), all.lock().unwrap_err(), all.try_lock().unwrap_err()] {
        let told = error.to_string();
        assert_eq!((error.kind(), error.name()), (ErrorKind::Redis, Some("b")), "{told}");
        assert!(told.contains(&there.port().to_string()), "{told}");
        assert!(told.contains("nothing more is held"), "{told}");
        wait_all_free(&here, &["a", "c"]);
    }
    // The same while it stands still.
    there.restart_empty();
    there.pause();
    let begun = Instant::now();
    let error = all.lock().unwrap_err();
    assert_eq!((error.kind(), error.name()), (ErrorKind::Redis, Some("b")), "{error}");
    assert!(begun.elapsed() < IMPATIENT * 10, "{:?}", begun.elapsed());
    wait_all_free(&here, &["a", "c"]);
    there.resume();
    all.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_reply_that_is_lost_leaves_nothing_behind() {
    let _bounded = bounded();
    let server = server();
    // What is undone in the background of one case would meet the fault of the next.
    let connected = || {
        let proxy = Proxy::before(&server);
        let client = impatient(&proxy.url()).connections(2).connect().unwrap();
        let all = all_of(&client, &NAMES);
        all.lock().unwrap().unlock().unwrap();
        (proxy, all)
    };
    for name in NAMES {
        for action in [Action::LoseReply, Action::LoseRequest] {
            let (proxy, all) = connected();
            proxy.on_request(name_in(name), action);
            let guard = all.lock().unwrap();
            assert!(guard.is_held());
            guard.unlock().unwrap();
            wait_all_free(&server, &NAMES);

            let (proxy, all) = connected();
            let guard = all.lock().unwrap();
            proxy.on_request(name_in(name), action);
            // Released, or nobody knows.
            if let Err(error) = guard.unlock() {
                assert!(error.outcome_unknown(), "{error}");
            }
            wait_all_free(&server, &NAMES);
            all.lock().unwrap().unlock().unwrap();
        }
        let (proxy, all) = connected();
        proxy.on_request(name_in(name), Action::Silence);
        // What was sent once more in time was answered.
        match all.try_lock() {
            Ok(had) => had.expect("nobody has one").unlock().unwrap(),
            Err(error) => assert!(error.outcome_unknown(), "{error}"),
        }
        wait_all_free(&server, &NAMES);
        all.lock().unwrap().unlock().unwrap();
    }
}

/// The key as it stands in a request.
fn name_in(name: &str) -> String {
    format!("\r\n$1\r\n{name}\r\n")
}

#[test]
fn after_the_end_of_a_client_its_parts_are_an_error_and_the_others_free() {
    let _bounded = bounded();
    let (here, there) = (server(), server());
    let (ours, theirs) = (client(&here), client(&there));
    let both = MultiLock::new(&[&ours.reentrant_lock("a"), &theirs.reentrant_lock("b")]).unwrap();
    let guard = both.lock().unwrap();
    let lost = losses(&guard);
    theirs.shutdown();
    wait_until("it is told", SOON, || lost.load(Ordering::SeqCst) == 1);
    assert!(!guard.is_held());
    drop(guard);
    wait_free(&here, "a", SOON);
    assert_eq!(both.lock().unwrap_err().kind(), ErrorKind::ShutDown);
    assert!(!is_held(&here, "a"));
}

// A quorum.

const FIVE: usize = 5;
/// The lease of a vote.
const VOTE: Duration = Duration::from_secs(20);
/// What the clients wait for a single reply.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

fn five() -> Vec<Server> {
    (0..FIVE).map(|_| server()).collect()
}

fn voting(servers: &[Server]) -> MultiLock {
    voting_at(&servers.iter().map(Server::url).collect::<Vec<_>>())
}

/// Of clients that would wait for seconds for a server that does not answer. A quorum does not: for
/// 400 ms.
fn voting_at(urls: &[String]) -> MultiLock {
    let locks: Vec<_> = urls
        .iter()
        .map(|url| Client::builder(url).watchdog_timeout(VOTE).connect().unwrap())
        .map(|client| client.reentrant_lock("vote"))
        .collect();
    MultiLock::quorum(&listed(&locks)).unwrap()
}

fn votes(servers: &[Server]) -> usize {
    servers.iter().filter(|server| is_held(server, "vote")).count()
}

#[test]
fn a_majority_is_had_and_excludes_every_other() {
    let _bounded = bounded();
    let servers = five();
    let (ours, theirs) = (voting(&servers), voting(&servers));
    let guard = ours.lock().unwrap();
    assert!(guard.is_held());
    assert_eq!(votes(&servers), FIVE);
    // Less for drift than one server's.
    let lease = VOTE - VOTE / 100;
    assert!(guard.remaining() < lease && guard.remaining() > VOTE / 2, "{:?}", guard.remaining());
    guard.check(VOTE / 2).unwrap();
    assert_eq!(guard.check(lease).unwrap_err().kind(), ErrorKind::EndsTooSoon);
    assert!(theirs.try_lock().unwrap().is_none());
    assert!(theirs.try_lock_for(UNIT).unwrap().is_none());
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert_eq!(votes(&servers), 0);
    let guard = theirs.lock().unwrap();
    let waiter = spawn(move || ours.lock().unwrap().unlock().unwrap());
    waiter.wait_asleep();
    drop(guard);
    waiter.join();
}

#[test]
fn a_minority_that_others_hold_does_not_matter_and_a_majority_does() {
    let _bounded = bounded();
    let servers = five();
    let quorum = voting(&servers);
    let others: Vec<_> = servers.iter().map(client).collect();
    let mut taken: Vec<_> =
        others[..2].iter().map(|it| it.reentrant_lock("vote").lock().unwrap()).collect();
    quorum.try_lock().unwrap().unwrap().unlock().unwrap();
    taken.push(others[2].reentrant_lock("vote").lock().unwrap());
    assert!(quorum.try_lock().unwrap().is_none());
    for server in &servers[3..] {
        wait_free(server, "vote", SOON);
    }
    drop(taken);
    quorum.lock().unwrap().unlock().unwrap();
}

#[test]
fn with_two_of_five_servers_dead_it_is_had_and_with_three_it_is_an_error_in_time() {
    let _bounded = bounded();
    let servers = five();
    let (ours, theirs) = (voting(&servers), voting(&servers));
    ours.lock().unwrap().unlock().unwrap();
    servers[0].kill();
    servers[3].pause();
    for _ in 0..3 {
        let guard = ours.lock().unwrap();
        assert!(theirs.try_lock().unwrap().is_none());
        assert!(guard.is_held());
        guard.unlock().unwrap();
        theirs.lock().unwrap().unlock().unwrap();
    }
    servers[4].pause();
    let begun = Instant::now();
    let error = ours.lock().unwrap_err();
    let took = begun.elapsed();
    // Two of them say nothing.
    assert!(took < RESPONSE_TIMEOUT * 2, "{took:?}");
    assert_eq!((error.kind(), error.name()), (ErrorKind::Redis, Some("vote")));
    assert!(error.is_transient());
    assert!(error.to_string().contains("3 of the 5"), "{error}");
    assert!(format!("{error:#}").contains(&servers[0].port().to_string()), "{error:#}");
    for server in [&servers[1], &servers[2]] {
        wait_free(server, "vote", SOON);
    }
    // What a server granted late is given back, so it is had again when they are back.
    servers[3].resume();
    servers[4].resume();
    wait_until("it is had again", SOON, || matches!(ours.try_lock(), Ok(Some(_))));
    for server in &servers[1..] {
        wait_free(server, "vote", SOON);
    }
}

/// Also where the lock is to be had at once.
#[test]
fn a_token_that_was_cancelled_before_ends_a_quorums_wait_too() {
    let _bounded = bounded();
    let servers = [server()];
    let quorum = voting(&servers);
    let token = CancelToken::new();
    token.cancel();
    let error = quorum.lock_cancellable(&token).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    quorum.try_lock().unwrap().unwrap().unlock().unwrap();
}

#[test]
fn a_quorum_is_lost_when_fewer_than_a_majority_are_left_and_not_before() {
    let _bounded = bounded();
    let servers = five();
    let lease = UNIT * 20;
    let locks: Vec<_> = servers
        .iter()
        .map(|server| impatient(&server.url()).watchdog_timeout(lease).connect().unwrap())
        .map(|client| client.reentrant_lock("vote"))
        .collect();
    let quorum = MultiLock::quorum(&listed(&locks)).unwrap();
    let guard = quorum.lock().unwrap();
    let lost = losses(&guard);
    wait_until("all have voted", SOON, || votes(&servers) == FIVE);
    for server in &servers[..2] {
        let () = server.connection().del("vote").unwrap();
    }
    // Two are lost, and three are renewed.
    thread::sleep(lease * 2);
    assert!(guard.is_held());
    assert_eq!(lost.load(Ordering::SeqCst), 0);
    guard.check(lease / 4).unwrap();
    servers[2].kill();
    wait_until("it is lost", SOON, || !guard.is_held());
    wait_until("it is told", SOON, || lost.load(Ordering::SeqCst) == 1);
    assert_eq!(guard.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    for server in &servers[3..] {
        wait_free(server, "vote", SOON);
    }
    assert_eq!(lost.load(Ordering::SeqCst), 1);
}

#[test]
fn on_the_smaller_side_of_a_partition_nobody_has_it() {
    let _bounded = bounded();
    let servers = five();
    let proxies: Vec<_> = servers.iter().map(Proxy::before).collect();
    let cut = voting_at(&proxies.iter().map(Proxy::url).collect::<Vec<_>>());
    let whole = voting(&servers);
    cut.lock().unwrap().unlock().unwrap();
    proxies[..3].iter().for_each(Proxy::freeze);
    let begun = Instant::now();
    let error = cut.lock().unwrap_err();
    let took = begun.elapsed();
    assert!(took < RESPONSE_TIMEOUT * 2, "{took:?}");
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    whole.lock().unwrap().unlock().unwrap();
    proxies[..3].iter().for_each(Proxy::thaw);
    wait_until("it is had again", SOON, || matches!(cut.try_lock(), Ok(Some(_))));
    servers.iter().for_each(|server| wait_free(server, "vote", SOON));
}

#[test]
fn votes_whose_replies_are_lost_are_given_back() {
    let _bounded = bounded();
    let servers = five();
    let proxies: Vec<_> = servers.iter().map(Proxy::before).collect();
    let quorum = voting_at(&proxies.iter().map(Proxy::url).collect::<Vec<_>>());
    quorum.lock().unwrap().unlock().unwrap();
    for action in [Action::LoseReply, Action::LoseRequest, Action::Silence] {
        for proxy in &proxies[..2] {
            proxy.on_request("\r\n$4\r\nvote\r\n", action);
        }
        let guard = quorum.lock().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
        proxies.iter().for_each(Proxy::clear_rules);
        servers.iter().for_each(|server| wait_free(server, "vote", SOON));
    }
}

#[test]
fn those_who_split_the_votes_try_again_until_each_has_had_it() {
    let _bounded = bounded();
    let servers = five();
    let inside = Arc::new(AtomicUsize::new(0));
    let rivals: Vec<_> = (0..4)
        .map(|_| {
            let (quorum, inside) = (voting(&servers), Arc::clone(&inside));
            spawn(move || {
                for _ in 0..5 {
                    let guard = quorum.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    thread::sleep(Duration::from_millis(1));
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    rivals.into_iter().for_each(Running::join);
}

/// A minority at a time.
#[test]
fn whichever_servers_stand_still_no_two_have_a_majority_and_all_go_on() {
    let _bounded = bounded();
    let servers = five();
    let inside = Arc::new(AtomicUsize::new(0));
    let rivals: Vec<_> = (0..3)
        .map(|_| {
            let (quorum, inside) = (voting(&servers), Arc::clone(&inside));
            spawn(move || {
                for _ in 0..8 {
                    let guard = loop {
                        match quorum.lock() {
                            Ok(guard) => break guard,
                            // A busy machine, too, may have kept a third one from answering.
                            Err(error) => assert!(error.is_transient(), "{error:#}"),
                        }
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    thread::sleep(UNIT / 2);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(guard.is_held());
                    guard.unlock().ok();
                }
            })
        })
        .collect();
    let mut random = Random::new();
    while !rivals.iter().all(Running::is_finished) {
        let first = random.below(FIVE as u64) as usize;
        let still = [&servers[first], &servers[(first + 1) % FIVE]];
        still.iter().for_each(|server| server.pause());
        thread::sleep(UNIT * 3);
        still.iter().for_each(|server| server.resume());
        thread::sleep(UNIT);
    }
    rivals.into_iter().for_each(Running::join);
    servers.iter().for_each(|server| wait_free(server, "vote", SOON));
}
