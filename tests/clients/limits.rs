//! How a wait's time limit, deadline or cancel token ends a call that has no reply yet.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, Error, ErrorKind, MultiLock, Wait};
use redlatch_testkit::{Action, Cluster, Proxy, Sentinels, Server};

/// The time for which the calls may wait, and the delay that is allowed after it.
const WAIT: Duration = TIME_UNIT;
const LATE: Duration = Duration::from_millis(20);
/// The time for which a call still waits for a reply after its own limit.
const LEAST: Duration = Duration::from_millis(50);

/// A call that waits, and returns whether it got its lock or permit. (A call must never get two
/// locks or permits.)
type Call = Box<dyn Fn(Wait<'_>) -> Result<bool, Error>>;

fn calls(client: &Client) -> Vec<(&'static str, Call)> {
    let plain = client.reentrant_lock("plain");
    let owned = client.reentrant_lock("owned");
    let fair = client.fair_lock("fair");
    let fenced = client.fenced_lock("fenced");
    let (read, write) = (client.read_write_lock("read"), client.read_write_lock("write"));
    let parts = ["one", "other"].map(|name| client.reentrant_lock(name));
    let several = MultiLock::new(&[&parts[0], &parts[1]]).unwrap();
    let pool = client.semaphore("pool");
    pool.set_permits(5).unwrap();
    let leased = client.expirable_semaphore("leased");
    leased.set_permits(5).unwrap();
    let latch = client.count_down_latch("latch");
    assert!(latch.try_set_count(1).unwrap());
    vec![
        ("plain", Box::new(move |wait| Ok(plain.lock_within(wait)?.into_option().is_some()))),
        ("owned", Box::new(move |wait| Ok(owned.lock_owned_within(wait)?.into_option().is_some()))),
        ("fair", Box::new(move |wait| Ok(fair.lock_within(wait)?.into_option().is_some()))),
        ("fenced", Box::new(move |wait| Ok(fenced.lock_within(wait)?.into_option().is_some()))),
        (
            "read",
            Box::new(move |wait| Ok(read.reader().lock_within(wait)?.into_option().is_some())),
        ),
        (
            "write",
            Box::new(move |wait| Ok(write.writer().lock_within(wait)?.into_option().is_some())),
        ),
        ("one", Box::new(move |wait| Ok(several.lock_within(wait)?.into_option().is_some()))),
        ("pool", Box::new(move |wait| Ok(pool.acquire_within(wait)?.into_option().is_some()))),
        ("leased", Box::new(move |wait| Ok(leased.acquire_within(wait)?.into_option().is_some()))),
        ("latch", Box::new(move |wait| Ok(!latch.wait_within(wait)?.timed_out()))),
    ]
}

/// Whether all locks and permits that these calls may have taken are free again.
fn is_all_free(server: &Server) -> bool {
    let mut redis = server.connection();
    let names = ["plain", "owned", "fair", "fenced", "read", "write", "one", "other"];
    let (pool, leased): (i64, i64) = (redis.get("pool").unwrap(), redis.get("leased").unwrap());
    let free = redis.exists::<_, i64>(&names[..]).unwrap() == 0;
    let queues: Vec<String> = redis.keys("redlatch_*queue:*").unwrap();
    free && queues.is_empty() && (pool, leased) == (5, 5)
}

/// Returns a client that waits long for its server. The client's connections are open.
fn patient(url: &str) -> Client {
    let builder = Client::builder(url).watchdog_timeout(LONG_LEASE).connections(1);
    builder.response_timeout(TIMEOUT).connect_timeout(TIMEOUT).connect().unwrap()
}

/// Pauses a server, and makes calls until the client notices the silence. Until the client notices,
/// a call without a reply in time ends with `NotTaken`.
fn hang(server: &Server, call: impl Fn(Wait<'_>) -> Result<bool, Error>) {
    server.pause();
    let noticed = || call(Wait::at_most(Duration::from_millis(1))).is_err();
    wait_until("the silence is noticed", TIMEOUT, noticed);
}

/// A machine that is busy for a moment is not an outage. If a request for a lock gets no reply in
/// time, the call treats the lock as taken.
#[test]
fn a_call_without_an_answer_ends_with_none_until_the_server_was_silent_for_a_second() {
    let server = server();
    let client = patient(&server.url());
    for (name, call) in calls(&client) {
        // If the test itself stands still for this long, its result proves nothing.
        let silent_for = |least: Duration| {
            server.resume();
            let asked_at = Instant::now();
            answered(|| call(Wait::at_most(TIME_UNIT * 2)));
            server.pause();
            thread::sleep(least);
            (call(Wait::at_most(Duration::from_millis(1))), asked_at.elapsed())
        };
        let soon = || Some(silent_for(Duration::ZERO)).filter(|(_, took)| *took < TIME_UNIT * 9);
        let (outcome, _) = (0..20).find_map(|_| soon()).expect("too slow a machine");
        assert!(matches!(outcome, Ok(false)), "{name}: {outcome:?}");
        let error = silent_for(TIME_UNIT * 12).0.unwrap_err();
        assert!(error.is_transient(), "{name}: {error}");
        server.resume();
    }
    wait_until("all is given back", TIMEOUT, || is_all_free(&server));
}

#[test]
fn a_limit_ends_every_call_to_a_server_that_hangs_and_leaves_nothing_behind() {
    let server = server();
    let client = patient(&server.url());
    for (name, call) in calls(&client) {
        // The server knows the scripts.
        assert_eq!(call(Wait::at_most(TIMEOUT / 100)).unwrap(), name != "latch", "{name}");
        hang(&server, &call);
        for ends in ["after a time", "at a deadline", "at one that has passed"] {
            let has_passed = ends == "at one that has passed";
            once_within(if has_passed { LATE + LEAST } else { LATE }, || {
                let until = if has_passed { Instant::now() } else { Instant::now() + WAIT };
                let wait = if ends == "after a time" {
                    Wait::at_most(until - Instant::now())
                } else {
                    Wait::until(until)
                };
                let error = call(wait).unwrap_err();
                let late = until.elapsed();
                assert!(error.kind().is_server_trouble(), "{name} {ends}: {error}");
                assert!(error.is_transient(), "{name} {ends}: {error}");
                late
            });
        }
        server.resume();
    }
    wait_until("all is given back", TIMEOUT, || is_all_free(&server));
}

#[test]
fn a_cancel_token_ends_every_call_to_a_server_that_hangs_and_leaves_nothing_behind() {
    let server = server();
    let client = patient(&server.url());
    for (name, call) in calls(&client) {
        assert_eq!(call(Wait::at_most(TIMEOUT / 100)).unwrap(), name != "latch", "{name}");
        server.pause();
        once_within(LATE, || {
            let token = CancelToken::new();
            let cancels = {
                let token = token.clone();
                thread::spawn(move || {
                    thread::sleep(WAIT);
                    let at = Instant::now();
                    token.cancel();
                    at
                })
            };
            let error = call(Wait::FOREVER.cancelled_by(&token)).unwrap_err();
            let ended = Instant::now();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{name}: {error}");
            ended.saturating_duration_since(cancels.join().unwrap())
        });
        server.resume();
    }
    wait_until("all is given back", TIMEOUT, || is_all_free(&server));
}

/// The server is paused and its socket is full. With a unix socket, this happens soon.
#[test]
fn neither_a_drop_nor_a_call_that_gives_up_waits_for_room_in_a_connection() {
    const NAMES: usize = 100;
    let server = server();
    // If a write waited, it would wait for longer than the test.
    let builder = Client::builder(&server.unix_url()).watchdog_timeout(LONG_LEASE * 10);
    let client = builder.response_timeout(LONG_LEASE).connections(1).connect().unwrap();
    let long = "x".repeat(4_000);
    let locks: Vec<_> =
        (0..2 * NAMES).map(|at| client.reentrant_lock(&format!("{at}{long}"))).collect();
    let (dropped, given_up) = locks.split_at(NAMES);
    drop(given_up[0].lock().unwrap());
    let guards: Vec<_> = dropped.iter().map(|lock| lock.lock().unwrap()).collect();
    server.pause();
    let calls: Vec<_> = given_up
        .iter()
        .map(|lock| {
            let lock = lock.clone();
            spawn(move || lock.try_lock_for(WAIT).is_ok_and(|guard| guard.into_option().is_some()))
        })
        .collect();
    for call in calls {
        assert!(!call.join(), "it got no answer");
    }
    drop(guards);
    server.resume();
    let mut redis = server.connection();
    wait_until("all is given back", TIMEOUT, || {
        redis.keys::<_, Vec<String>>("*x").unwrap().is_empty()
    });
}

/// The first waiter sends a request at once, and another some seconds later. The other waiters may
/// send requests only at the end of their time.
#[test]
fn waiters_whose_limits_end_together_return_none_if_their_leader_was_answered() {
    const CALLS: usize = 30;
    let server = server();
    let (client, other) = (patient(&server.url()), client(&server));
    other.semaphore("none").set_permits(1).unwrap();
    let held = other.semaphore("none").acquire().unwrap();
    let pool = client.semaphore("none");
    for _ in 0..3 {
        // At this time the connection has been silent for more than a second.
        let until = Instant::now() + TIME_UNIT * 15;
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let pool = pool.clone();
                spawn(move || pool.acquire_within(until).map(|it| it.into_option().is_some()))
            })
            .collect();
        for call in calls {
            let outcome = call.join();
            assert!(matches!(outcome, Ok(false)), "{outcome:?}");
        }
    }
    drop(held);
}

/// The client has one connection, on which one call writes and reads for all calls. This call ends
/// at its limit.
#[test]
fn a_call_that_ends_while_it_reads_for_others_leaves_the_reading_to_one_of_them() {
    let server = server();
    let client = patient(&server.url());
    client.reentrant_lock("warm").lock().unwrap().unlock().unwrap();
    for round in 0..10 {
        server.pause();
        let reader = {
            let lock = client.reentrant_lock("the reader's");
            spawn(move || lock.try_lock_for(WAIT).is_ok_and(|it| it.into_option().is_some()))
        };
        reader.wait_asleep();
        let others: Vec<_> = (0..6)
            .map(|at| {
                let lock = client.reentrant_lock(&format!("others:{round}:{at}"));
                spawn(move || {
                    // In every second thread, a call with a limit ends before the call without a
                    // limit begins.
                    if at % 2 == 0 {
                        let _answered_or_not = lock.try_lock_for(WAIT * at);
                    }
                    lock.lock_owned().unwrap()
                })
            })
            .collect();
        assert!(!reader.join(), "it got no answer");
        thread::sleep(WAIT * (round % 5));
        server.resume();
        for (at, other) in others.into_iter().enumerate() {
            let guard = other.join();
            assert!(holder(&mut server.connection(), &format!("others:{round}:{at}")).is_some());
            drop(guard);
        }
        wait_free(&server, "the reader's", TIMEOUT);
    }
}

#[test]
fn a_call_that_was_answered_once_ends_with_none_and_not_with_an_error() {
    let server = server();
    let client = patient(&server.url());
    hold_as_redisson(&mut server.connection(), "held", LONG_LEASE);
    let lock = client.reentrant_lock("held");
    let waiter = spawn(move || {
        lock.try_lock_for(MIN_POLL_INTERVAL * 5).map(|it| it.into_option().is_some())
    });
    wait_subscribed(&server, &channel("held"));
    waiter.wait_queued();
    // Meanwhile the waiter sends another request, and gets no reply.
    server.pause();
    let got = waiter.join();
    server.resume();
    assert!(!got.unwrap());
}

#[test]
fn a_limit_ends_a_call_whose_connection_is_to_be_opened() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = patient(&proxy.url());
    let lock = client.reentrant_lock("reopened");
    lock.lock().unwrap().unlock().unwrap();
    proxy.freeze();
    proxy.cut_all();
    once_within(LATE, || {
        let until = Instant::now() + WAIT;
        let error = lock.try_lock_until(until).map(drop).unwrap_err();
        let late = until.elapsed();
        assert!(error.is_transient(), "{error}");
        late
    });
    // Other callers still wait, and a thread opens the connection for them.
    let other = spawn(move || lock.lock().unwrap().unlock().unwrap());
    other.wait_asleep();
    proxy.thaw();
    other.join();
    wait_free(&server, "reopened", TIMEOUT);
}

/// The server refuses a key of the wrong type, and the client then queries the type. Even if a
/// limit ends this query, the call returns the server's error.
#[test]
fn a_wrong_type_is_an_error_even_if_the_limit_ends_the_question_for_it() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = patient(&proxy.url());
    let lock = client.reentrant_lock("a string");
    lock.lock().unwrap().unlock().unwrap();
    let _: () = server.connection().set("a string", 1).unwrap();
    proxy.on_request("TYPE\r\n", Action::HoldReply);
    let token = CancelToken::new();
    let waiter = {
        let token = token.clone();
        spawn(move || lock.lock_within(Wait::FOREVER.cancelled_by(&token)).map(drop).unwrap_err())
    };
    proxy.wait_fired(1, TIMEOUT);
    token.cancel();
    let error = waiter.join();
    assert!(error.kind().is_server_trouble(), "{error}");
    assert!(format!("{error:#}").contains("WRONGTYPE"), "{error:#}");
    proxy.release();
}

/// Asserts that the calls for a lock end in time. If `hangs` is true, the server is paused at that
/// time.
fn ends_in_time(client: &Client, server: &Server, hangs: bool) {
    let lock = client.reentrant_lock("hangs");
    if hangs {
        lock.lock().unwrap().unlock().unwrap();
        hang(server, |wait| Ok(lock.lock_within(wait)?.into_option().is_some()));
    }
    once_within(LATE, || {
        let until = Instant::now() + WAIT;
        let error = lock.try_lock_until(until).map(drop).unwrap_err();
        let late = until.elapsed();
        assert!(error.is_transient(), "{error}");
        late
    });
    if hangs {
        server.resume();
    }
    wait_free(server, "hangs", TIMEOUT);
}

#[test]
fn a_limit_ends_a_call_to_a_server_of_a_cluster_that_hangs() {
    bound();
    let cluster = Cluster::without_replicas().unwrap();
    ends_in_time(&patient(&cluster.url()), cluster.home("hangs"), true);
}

#[test]
fn a_limit_ends_a_call_to_a_master_of_sentinels_that_hangs() {
    bound();
    let sentinels = Sentinels::builder().down_after(LONG_LEASE).start().unwrap();
    ends_in_time(&patient(&sentinels.url()), sentinels.master(), true);
}

/// The server has run the command, and waits for an absent replica. The client then sends the
/// release.
#[test]
fn a_limit_ends_a_call_that_no_replica_acknowledges() {
    let server = server();
    // The server knows the script.
    drop(client(&server).reentrant_lock("hangs").lock().unwrap());
    let builder =
        Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).response_timeout(LONG_LEASE);
    let client = builder.replica_acks(1, WAIT * 10).connections(1).connect().unwrap();
    ends_in_time(&client, &server, false);
}

/// For a caller with a limit, another thread opens the connection.
#[test]
fn a_limited_call_without_a_thread_to_connect_on_fails_and_leaves_the_way_free_for_others() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let builder = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).connections(1);
    let client = builder.failover_timeout(Duration::ZERO).connect().unwrap();
    let names = ["limited", "also limited", "unlimited"];
    let locks = names.map(|name| client.reentrant_lock(name));
    for lock in &locks {
        lock.lock().unwrap().unlock().unwrap();
    }
    let starts = Arc::new(Barrier::new(3));
    let [own, limited, unlimited] = locks;
    let others = {
        let (starts, also) = (Arc::clone(&starts), Arc::clone(&starts));
        let limited = spawn(move || {
            starts.wait();
            limited.try_lock_for(LONG_LEASE).map(drop)
        });
        let unlimited = spawn(move || {
            also.wait();
            unlimited.lock().map(drop)
        });
        (limited, unlimited)
    };
    let kill = ["KILL", "TYPE", "normal"];
    redis::cmd("CLIENT").arg(&kill).exec(&mut server.connection()).unwrap();
    let error = without_room_for_threads(|| {
        let error = own.try_lock_for(LONG_LEASE).map(drop).unwrap_err();
        starts.wait();
        let (limited, unlimited) = others;
        // The limited call may also succeed, over the connection that the unlimited call has
        // opened.
        if let Err(error) = limited.join() {
            assert!(error.is_transient(), "{error:#}");
        }
        unlimited.join().unwrap();
        error
    });
    assert!(error.kind().is_server_trouble(), "{error:?}");
    assert_eq!(error.name(), Some("limited"), "{error:#}");
    assert!(error.is_transient(), "{error:#}");
    assert!(format!("{error:#}").contains("Resource temporarily unavailable"), "{error:#}");
    names.iter().for_each(|name| wait_free(&server, name, TIMEOUT));
    assert!(own.try_lock_for(LONG_LEASE).unwrap().into_option().is_some());
}

/// A call that ends at its limit leaves a request that removes its queue entry. The client repeats
/// this request with back-off, even after a reply. If each new connection sent all repeated
/// requests at once, a bad network would multiply these requests.
#[test]
fn a_new_connection_does_not_repeat_the_answered_give_ups_of_cut_calls() {
    const CALLS: u64 = 50;
    const BREAKS: u64 = 20;
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connect().unwrap();
    let lock = client.reentrant_lock("l");
    proxy.set_delay(TIME_UNIT / 4);
    for _ in 0..CALLS {
        let _cut = lock.try_lock_for(TIME_UNIT / 10);
    }
    proxy.set_delay(Duration::ZERO);
    drop(lock.lock().unwrap());
    let before = Commands::so_far(&server).scripts();
    for _ in 0..BREAKS {
        assert!(proxy.cut_all() > 0);
        wait_until("it is connected again", TIMEOUT, || lock.lock().is_ok());
        thread::sleep(TIME_UNIT);
    }
    let sent = Commands::so_far(&server).scripts() - before;
    assert!(sent < CALLS * BREAKS / 2, "{sent} scripts for {CALLS} calls and {BREAKS} breaks");
}
