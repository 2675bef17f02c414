//! The behaviour of the count-down latch for its threads, for other clients, on the wire, and under
//! faults. Under every fault, each count-down counts once, and no thread waits for an open latch.

mod end;
mod faults;
mod rights;
mod wire;

use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, CountDownLatch, Error, ErrorKind, Taken};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

fn channel(name: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{name}}}")
}

fn latch(client: &Client, name: &str, count: u64) -> CountDownLatch {
    let latch = client.count_down_latch(name);
    assert!(latch.try_set_count(count).unwrap());
    latch
}

/// Starts threads that wait for the latch. Returns when they sleep.
fn waiters(latch: &CountDownLatch, count: usize) -> Vec<Running<Instant>> {
    let waiters: Vec<_> = (0..count)
        .map(|_| {
            let latch = latch.clone();
            spawn(move || {
                latch.wait().unwrap();
                Instant::now()
            })
        })
        .collect();
    wait_until("they sleep", TIMEOUT, || {
        waiters.iter().for_each(Running::wait_asleep);
        true
    });
    waiters
}

/// Waits until the server has this count, and asserts that it does not change for some time.
#[track_caller]
fn stays(server: &Server, name: &str, count: i64) {
    let mut redis = server.connection();
    let mut now = || redis.get::<_, Option<i64>>(name).unwrap().unwrap_or(0);
    wait_until(&format!("the count is {count}, not {}", now()), TIMEOUT, || now() == count);
    // Time must pass here: a second count-down would come late.
    thread::sleep(TIME_UNIT * 2);
    assert_eq!(now(), count, "{name:?}, later");
}

/// Applies the action to the next scripts of this name.
fn on_script(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, name)
    });
}

/// Returns a client that connects through a proxy. The client's connection is open, and the server
/// has its scripts.
fn behind(proxy: &Proxy) -> Client {
    crate::common::behind(proxy, |client| {
        let latch = latch(client, "warm", 2);
        latch.count_down().unwrap();
        latch.delete().unwrap();
    })
}

// The following tests are about the effects of the calls.

#[test]
fn a_latch_opens_at_zero_and_may_be_set_anew() {
    let server = server();
    let client = client(&server);
    let latch = client.count_down_latch("again");
    assert_eq!(latch.name(), "again");
    latch.wait().unwrap();
    assert!(!answered(|| latch.wait_for(Duration::ZERO)).timed_out());
    for round in 1..4 {
        assert!(latch.try_set_count(round).unwrap());
        assert!(!latch.try_set_count(9).unwrap());
        assert!(!latch.try_set_count(0).unwrap());
        let waiters = waiters(&latch, 3);
        for left in (0..round).rev() {
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
            assert!(answered(|| latch.wait_for(Duration::ZERO)).timed_out());
            let begun = Instant::now();
            latch.count_down().unwrap();
            assert_eq!(latch.count().unwrap(), left);
            assert!(begun.elapsed() < TIMEOUT);
        }
        for waiter in waiters {
            waiter.join();
        }
        latch.wait().unwrap();
        assert!(!server.connection().exists::<_, bool>("again").unwrap());
    }
}

#[test]
fn a_count_down_of_an_open_latch_changes_nothing() {
    let server = server();
    let latch = client(&server).count_down_latch("open");
    latch.count_down().unwrap();
    latch.count_down().unwrap();
    assert_eq!(latch.count().unwrap(), 0);
    assert!(!server.connection().exists::<_, bool>("open").unwrap());
    assert!(latch.try_set_count(0).unwrap());
    assert!(latch.try_set_count(1).unwrap());
    assert_eq!(latch.count().unwrap(), 1);
    let error = latch.try_set_count(u64::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    latch.count_down().unwrap();
    let most = u64::try_from(i64::MAX).unwrap();
    assert!(latch.try_set_count(most).unwrap());
    latch.count_down().unwrap();
    assert!(latch.count().unwrap() < most);
    // Redisson leaves a key if a count of zero is set.
    let () = server.connection().set("open", 0).unwrap();
    latch.wait().unwrap();
    assert!(latch.try_set_count(0).unwrap());
    assert!(latch.try_set_count(2).unwrap());
    assert_eq!(latch.count().unwrap(), 2);
}

#[test]
fn an_empty_name_is_an_error() {
    let server = server();
    let client = client(&server);
    let latch = client.count_down_latch("");
    let kinds = [
        latch.wait().unwrap_err().kind(),
        latch.count_down().unwrap_err().kind(),
        latch.try_set_count(1).unwrap_err().kind(),
        latch.count().unwrap_err().kind(),
        latch.delete().unwrap_err().kind(),
        client.semaphore("").acquire().unwrap_err().kind(),
        client.semaphore("").release_forgotten(1).unwrap_err().kind(),
    ];
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Config), "{kinds:?}");
}

#[test]
fn a_delete_lets_everybody_go() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    woken_by_message(|| {
        let latch = latch(&one, "deleted", 5);
        let same = other.count_down_latch("deleted");
        let waiters: Vec<_> =
            [&latch, &same].into_iter().flat_map(|latch| waiters(latch, 3)).collect();
        assert!(latch.delete().unwrap());
        waiters.into_iter().for_each(|waiter| {
            waiter.join();
        });
        assert!(!same.delete().unwrap());
        assert_eq!(same.count().unwrap(), 0);
    });
}

#[test]
fn a_bounded_wait_ends_at_its_deadline() {
    let server = server();
    let latch = latch(&client(&server), "bounded", 1);
    // One thread sends the requests (the leader), and the other thread waits behind it.
    let waits: Vec<_> = (0..2)
        .map(|_| {
            let latch = latch.clone();
            spawn(move || {
                woken_by_message(|| {
                    let begun = Instant::now();
                    assert!(answered(|| latch.wait_for(TIME_UNIT * 2)).timed_out());
                    assert!(answered(|| latch.wait_within(begun + TIME_UNIT * 3)).timed_out());
                    assert!(begun.elapsed() >= TIME_UNIT * 3);
                });
            })
        })
        .collect();
    for wait in waits {
        wait.join();
    }
    // The leader gives up, and the thread behind it gets the message.
    let short = latch.clone();
    let short = spawn(move || answered(|| short.wait_for(TIME_UNIT * 2)));
    short.wait_asleep();
    let rest = waiters(&latch, 3);
    assert!(short.join().timed_out());
    latch.count_down().unwrap();
    rest.into_iter().for_each(|waiter| {
        waiter.join();
    });
}

#[test]
fn a_call_that_does_not_wait_asks_the_server_though_others_wait() {
    let server = server();
    let latch = latch(&client(&server), "truth", 1);
    let set = Commands::so_far(&server).of("get");
    let waiter = waiters(&latch, 1).remove(0);
    // The waiter sends a second request when its client has subscribed. After that it sends nothing
    // for some seconds.
    wait_until("it has asked twice", TIMEOUT, || Commands::so_far(&server).of("get") >= set + 2);
    waiter.wait_queued();
    assert!(answered(|| latch.wait_for(Duration::ZERO)).timed_out());
    // No message is sent, so a waiter notices the open latch only at its next request.
    let () = server.connection().del("truth").unwrap();
    assert!(!answered(|| latch.wait_for(Duration::ZERO)).timed_out());
    assert!(!answered(|| latch.wait_within(Instant::now())).timed_out());
    assert!(!latch.wait_within(redlatch::Wait::NONE).unwrap().timed_out());
    assert!(!waiter.is_finished());
    assert!(!latch.delete().unwrap());
    assert!(latch.try_set_count(1).unwrap());
    latch.count_down().unwrap();
    waiter.join();
}

#[test]
fn a_wait_that_does_not_wait_does_not_subscribe() {
    let server = server();
    let latch = latch(&client(&server), "looked at", 1);
    let before = Commands::so_far(&server);
    for _ in 0..3 {
        assert!(answered(|| latch.wait_for(Duration::ZERO)).timed_out());
    }
    // Time must pass here, because an unwanted message would come within this time.
    thread::sleep(TIME_UNIT);
    let after = Commands::so_far(&server);
    assert_eq!(after.of("get") - before.of("get"), 3);
    assert_eq!(after.of("subscribe"), before.of("subscribe"));
}

#[test]
fn a_cancel_and_a_shutdown_end_waits() {
    let server = server();
    let client = client(&server);
    let latch = latch(&client, "cancelled", 1);
    let tokens: Vec<_> = (0..3).map(|_| CancelToken::new()).collect();
    let waits: Vec<_> = tokens
        .iter()
        .map(|token| {
            let (latch, token) = (latch.clone(), token.clone());
            let waiter = spawn(move || latch.wait_cancellable(&token));
            waiter.wait_asleep();
            waiter
        })
        .collect();
    for at in [1, 0] {
        tokens[at].cancel();
        wait_until("it ends", TIMEOUT, || waits[at].is_finished());
    }
    let mut waits = waits.into_iter();
    for _ in 0..2 {
        assert_eq!(waits.next().unwrap().join().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    client.shutdown();
    assert_eq!(waits.next().unwrap().join().unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(latch.count_down().unwrap_err().kind(), ErrorKind::ShutDown);
}

#[test]
fn timeouts_and_cancels_that_race_with_the_opening_strand_no_waiter() {
    let server = server();
    let mut random = Random::new();
    let clients = [client(&server), client(&server)];
    let opener = client(&server).count_down_latch("races");
    let rounds = 2_500;
    let start = Arc::new(Barrier::new(5));
    let token = Arc::new(Mutex::new(CancelToken::new()));
    let threads: Vec<_> = (0..4_usize)
        .map(|at| {
            let latch = clients[at % 2].count_down_latch("races");
            let (start, token) = (Arc::clone(&start), Arc::clone(&token));
            let mut random = Random::of(random.next());
            spawn(move || {
                let mut opened = 0;
                for _ in 0..rounds {
                    start.wait();
                    if at < 2 {
                        let (wait, begun) =
                            (Duration::from_micros(random.below(600)), Instant::now());
                        let waited = if_answered(latch.wait_for(wait).map(Taken));
                        let open = waited.is_some_and(|waited| !waited.timed_out());
                        assert!(open || begun.elapsed() >= wait);
                        opened += u64::from(open);
                    } else {
                        let token = token.lock().unwrap().clone();
                        match latch.wait_cancellable(&token) {
                            Ok(()) => opened += 1,
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled),
                        }
                    }
                    start.wait();
                }
                opened
            })
        })
        .collect();
    for _ in 0..rounds {
        assert!(opener.try_set_count(1).unwrap());
        let cancel = CancelToken::new();
        *token.lock().unwrap() = cancel.clone();
        start.wait();
        thread::sleep(Duration::from_micros(random.below(400)));
        if random.below(2) == 0 {
            cancel.cancel();
            opener.count_down().unwrap();
        } else {
            opener.count_down().unwrap();
            cancel.cancel();
        }
        start.wait();
    }
    let opened: Vec<u64> = threads.into_iter().map(Running::join).collect();
    println!("{opened:?} of {rounds} each");
    assert!(opened.iter().all(|opened| *opened > 0));
}

/// The waiters' client also polls and sends heartbeats. On a slow machine, some of these requests
/// come during the test.
#[test]
fn a_hundred_waiters_cost_one_subscription_and_one_command() {
    /// The shortest time between two polls of a waiter, and between two heartbeats of a client.
    const POLL: Duration = Duration::from_secs(4);
    const HEARTBEAT: Duration = Duration::from_secs(3);
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let latch = latch(&one, "many", 2);
    let begun = Instant::now();
    let set = Commands::so_far(&server).of("get");
    let waiters = waiters(&latch, 100);
    // The leader asks again when its client listens.
    wait_until("it has asked twice", TIMEOUT, || Commands::so_far(&server).of("get") >= set + 2);
    let mut redis = server.connection();
    let (_, listeners): (String, u64) =
        redis::cmd("PUBSUB").arg("NUMSUB").arg(channel("many")).query(&mut redis).unwrap();
    assert_eq!(listeners, 1);
    let mut connection = server.connection();
    let mut messages = connection.as_pubsub();
    messages.psubscribe("*").unwrap();
    let (listens, before) = (Instant::now(), Commands::so_far(&server));
    let opens = other.count_down_latch("many");
    opens.count_down().unwrap();
    opens.count_down().unwrap();
    waiters.into_iter().for_each(|waiter| {
        waiter.join();
    });
    let after = Commands::so_far(&server);
    let () = redis.publish("end", "").unwrap();
    let channels =
        iter::repeat_with(|| messages.get_message().unwrap().get_channel_name().to_owned());
    let channels = channels.take_while(|channel| channel != "end");
    let (own, heartbeats): (Vec<_>, Vec<_>) = channels.partition(|it| *it == channel("many"));
    assert_eq!(own.len(), 1);
    let most = 1 + listens.elapsed().as_secs() / HEARTBEAT.as_secs();
    assert!(heartbeats.len() as u64 <= most, "{heartbeats:?}");
    // The script of each of the two count-downs reads two keys: its request record, and the count.
    let gets = after.of("get") - before.of("get") - 4;
    let polls = begun.elapsed().as_secs() / POLL.as_secs();
    assert!(gets <= 1 + polls, "{gets} questions");
}

#[test]
fn threads_that_count_at_once_are_all_counted() {
    let server = server();
    let client = client(&server);
    for round in 0..4 {
        let latch = latch(&client, "at once", 8 * 250);
        let waiters = waiters(&latch, 2);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let latch = latch.clone();
                spawn(move || (0..250).for_each(|_| latch.count_down().unwrap()))
            })
            .collect();
        threads.into_iter().for_each(Running::join);
        assert_eq!(latch.count().unwrap(), 0, "round {round}");
        waiters.into_iter().for_each(|waiter| {
            waiter.join();
        });
    }
}

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let (start, ready) = (client.count_down_latch("start"), client.count_down_latch("ready"));
    ready.count_down().unwrap();
    start.wait().unwrap();
    job.say("started");
    let _ = job.wait_line();
}

#[test]
fn processes_report_ready_and_are_started_together() {
    let server = server();
    let client = client(&server);
    let (start, ready) = (latch(&client, "start", 1), latch(&client, "ready", 3));
    let mut workers: Vec<_> =
        (0..3).map(|_| Worker::spawn_test("latch::worker", "worker", &[&server.url()])).collect();
    ready.wait().unwrap();
    for worker in &mut workers {
        assert_eq!(worker.try_line(TIME_UNIT), None);
    }
    start.count_down().unwrap();
    for worker in &mut workers {
        worker.expect_line("started", TIMEOUT);
    }
}
