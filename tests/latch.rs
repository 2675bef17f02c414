//! What the count-down latch means: to its threads, to other clients, on the wire, and when things
//! break. Whatever breaks, each count-down counts once, and nobody waits for an open latch.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, CountDownLatch, Error, ErrorKind};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The channel of a latch.
fn channel(name: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{name}}}")
}

fn latch(client: &Client, name: &str, count: u64) -> CountDownLatch {
    let latch = client.count_down_latch(name);
    assert!(latch.try_set_count(count).unwrap());
    latch
}

/// Threads that wait for the latch, and sleep already.
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
    wait_until("they sleep", SOON, || {
        waiters.iter().for_each(Running::wait_asleep);
        true
    });
    waiters
}

/// Waits until the count is this on the server, and sees that it stays so.
#[track_caller]
fn stays(server: &Server, name: &str, count: i64) {
    let mut redis = server.connection();
    let mut now = || redis.get::<_, Option<i64>>(name).unwrap().unwrap_or(0);
    wait_until(&format!("the count is {count}, not {}", now()), SOON, || now() == count);
    // Time is the subject: what is counted twice comes late.
    thread::sleep(UNIT * 2);
    assert_eq!(now(), count, "{name:?}, later");
}

// What it means.

#[test]
fn it_opens_at_zero_and_may_be_set_anew() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let latch = client.count_down_latch("again");
    assert_eq!(latch.name(), "again");
    latch.wait().unwrap();
    assert!(latch.wait_for(Duration::ZERO).unwrap());
    for round in 1..4 {
        assert!(latch.try_set_count(round).unwrap());
        assert!(!latch.try_set_count(9).unwrap());
        assert!(!latch.try_set_count(0).unwrap());
        let waiters = waiters(&latch, 3);
        for left in (0..round).rev() {
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
            assert!(!latch.wait_for(Duration::ZERO).unwrap());
            let begun = Instant::now();
            latch.count_down().unwrap();
            assert_eq!(latch.count().unwrap(), left);
            assert!(begun.elapsed() < SOON);
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
    let _bounded = bounded();
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
    // Redisson leaves a key when it is told to set none.
    let () = server.connection().set("open", 0).unwrap();
    latch.wait().unwrap();
    assert!(latch.try_set_count(0).unwrap());
    assert!(latch.try_set_count(2).unwrap());
    assert_eq!(latch.count().unwrap(), 2);
}

#[test]
fn an_empty_name_is_an_error() {
    let _bounded = bounded();
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
        client.semaphore("").release().unwrap_err().kind(),
    ];
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Config), "{kinds:?}");
}

#[test]
fn a_delete_lets_everybody_go() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    at_once(|| {
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
    let _bounded = bounded();
    let server = server();
    let latch = latch(&client(&server), "bounded", 1);
    // One that leads, and one behind it.
    let waits: Vec<_> = (0..2)
        .map(|_| {
            let latch = latch.clone();
            spawn(move || {
                at_once(|| {
                    let begun = Instant::now();
                    assert!(!latch.wait_for(UNIT * 2).unwrap());
                    assert!(!latch.wait_until(begun + UNIT * 3).unwrap());
                    assert!(begun.elapsed() >= UNIT * 3);
                });
            })
        })
        .collect();
    for wait in waits {
        wait.join();
    }
    // Who leads gives up, who comes after it gets the news.
    let short = latch.clone();
    let short = spawn(move || short.wait_for(UNIT * 2).unwrap());
    short.wait_asleep();
    let rest = waiters(&latch, 3);
    assert!(!short.join());
    latch.count_down().unwrap();
    rest.into_iter().for_each(|waiter| {
        waiter.join();
    });
}

#[test]
fn who_does_not_wait_is_told_the_truth_though_others_wait() {
    let _bounded = bounded();
    let server = server();
    let latch = latch(&client(&server), "truth", 1);
    let waiter = waiters(&latch, 1).remove(0);
    wait_subscribed(&server, &channel("truth"));
    assert!(!latch.wait_for(Duration::ZERO).unwrap());
    // Without a message: who waits finds out later.
    let () = server.connection().del("truth").unwrap();
    assert!(latch.wait_for(Duration::ZERO).unwrap());
    assert!(latch.wait_until(Instant::now()).unwrap());
    assert!(latch.wait_within(redlatch::Wait::NONE).unwrap());
    assert!(!waiter.is_finished());
    assert!(!latch.delete().unwrap());
    assert!(latch.try_set_count(1).unwrap());
    latch.count_down().unwrap();
    waiter.join();
}

#[test]
fn a_wait_that_does_not_wait_does_not_subscribe() {
    let _bounded = bounded();
    let server = server();
    let latch = latch(&client(&server), "looked at", 1);
    let before = Commands::so_far(&server);
    for _ in 0..3 {
        assert!(!latch.wait_for(Duration::ZERO).unwrap());
    }
    // Time is the subject: what is not to come would be there soon.
    thread::sleep(UNIT);
    let after = Commands::so_far(&server);
    assert_eq!(after.of("get") - before.of("get"), 3);
    assert_eq!(after.of("subscribe"), before.of("subscribe"));
}

#[test]
fn a_cancel_and_a_shutdown_end_waits() {
    let _bounded = bounded();
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
        wait_until("it ends", SOON, || waits[at].is_finished());
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
fn timeouts_and_cancels_that_race_with_the_opening_strand_nobody() {
    let _bounded = bounded();
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
                        let open = latch.wait_for(wait).unwrap();
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

#[test]
fn a_hundred_waiters_cost_one_subscription_and_one_command() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let latch = latch(&one, "many", 2);
    let waiters = waiters(&latch, 100);
    let mut redis = server.connection();
    let (_, listeners): (String, u64) =
        redis::cmd("PUBSUB").arg("NUMSUB").arg(channel("many")).query(&mut redis).unwrap();
    assert_eq!(listeners, 1);
    let before = Commands::so_far(&server);
    let opens = other.count_down_latch("many");
    opens.count_down().unwrap();
    opens.count_down().unwrap();
    waiters.into_iter().for_each(|waiter| {
        waiter.join();
    });
    let after = Commands::so_far(&server);
    // Redisson's channel, and the latch's own.
    assert_eq!(after.of("publish") - before.of("publish"), 2);
    // Each of the two count-downs has two of its own: what is known of it, and the count.
    let gets = after.of("get") - before.of("get") - 4;
    assert!(gets <= 1, "{gets} questions");
}

#[test]
fn threads_that_count_at_once_are_all_counted() {
    let _bounded = bounded();
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

/// Where this executable's workers begin.
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
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let (start, ready) = (latch(&client, "start", 1), latch(&client, "ready", 3));
    let mut workers: Vec<_> =
        (0..3).map(|_| Worker::spawn_test("worker", "worker", &[&server.url()])).collect();
    ready.wait().unwrap();
    for worker in &mut workers {
        assert_eq!(worker.try_line(UNIT), None);
    }
    start.count_down().unwrap();
    for worker in &mut workers {
        worker.expect_line("started", SOON);
    }
}

// The wire.

#[test]
fn the_key_and_the_messages_are_redissons() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, channel) in [
        ("wire", "redisson_countdownlatch__channel__{wire}"),
        ("{a}b", "redisson_countdownlatch__channel__{{a}b}"),
    ] {
        let mut connection = server.connection();
        let mut subscriber = connection.as_pubsub();
        subscriber.psubscribe("redisson*").unwrap();
        subscriber.subscribe("end").unwrap();
        let latch = latch(&client, name, 2);
        assert_eq!(redis.get::<_, String>(name).unwrap(), "2");
        assert_eq!(pttl(&mut redis, name), -1);
        latch.count_down().unwrap();
        assert_eq!(redis.get::<_, String>(name).unwrap(), "1");
        latch.count_down().unwrap();
        assert!(!redis.exists::<_, bool>(name).unwrap());
        latch.count_down().unwrap();
        assert!(latch.try_set_count(1).unwrap());
        assert!(latch.delete().unwrap());
        let () = redis.publish("end", "").unwrap();
        let mut heard = Vec::new();
        loop {
            let message = subscriber.get_message().unwrap();
            if message.get_channel_name() == "end" {
                break;
            }
            let at = message.get_channel_name().strip_prefix(channel).unwrap().to_owned();
            heard.push((at, message.get_payload::<String>().unwrap()));
        }
        // That it is open is said on a channel of our own as well, and there first.
        let all = [
            ("", "1"),
            (":redlatch:0", "0"),
            ("", "0"),
            ("", "1"),
            (":redlatch:0", "0"),
            ("", "0"),
        ];
        assert_eq!(heard, all.map(|(at, message)| (at.to_owned(), message.to_owned())));
    }
}

#[test]
fn a_java_services_last_count_down_wakes_and_another_message_does_not() {
    let _bounded = bounded();
    let server = server();
    at_once(|| {
        let latch = latch(&client(&server), "java", 2);
        let waiters = waiters(&latch, 3);
        wait_subscribed(&server, &channel("java"));
        let mut redis = server.connection();
        let before = Commands::so_far(&server).of("get");
        for message in ["1", "7", "x", "", "00"] {
            let () = redis.publish(channel("java"), message).unwrap();
            thread::sleep(UNIT / 5);
        }
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        // One question for each message at most, and none in between.
        let asked = Commands::so_far(&server).of("get") - before;
        assert!(asked <= 7, "{asked} questions for five messages");
        let () = redis::pipe()
            .atomic()
            .del("java")
            .publish(channel("java"), "0")
            .query(&mut redis)
            .unwrap();
        waiters.into_iter().for_each(|waiter| {
            waiter.join();
        });
    });
}

#[test]
fn a_late_message_of_the_count_before_does_not_open_the_next() {
    let _bounded = bounded();
    let server = server();
    at_once(|| {
        let proxy = Proxy::before(&server);
        let late = Client::connect(&proxy.url()).unwrap();
        let other = client(&server).count_down_latch("late");
        let latch = latch(&late, "late", 1);
        // It listens from here on, for a while after the wait too.
        assert!(!latch.wait_for(UNIT).unwrap());
        proxy.on(Direction::Reply, 1, Action::HoldReply, |bytes| {
            contains(bytes, "message") && contains(bytes, "latch__channel__{late}")
        });
        other.count_down().unwrap();
        proxy.wait_fired(1, SOON);
        assert!(other.try_set_count(1).unwrap());
        let waiter = waiters(&latch, 1).remove(0);
        let before = Commands::so_far(&server).of("get");
        proxy.release();
        // Each of the two messages makes it ask, and no more than that.
        wait_until("it asks", SOON, || Commands::so_far(&server).of("get") > before);
        thread::sleep(UNIT);
        assert!(!waiter.is_finished());
        other.count_down().unwrap();
        waiter.join();
    });
}

#[test]
fn another_databases_latch_of_the_name_opens_nothing() {
    let _bounded = bounded();
    let server = server();
    let [ours, theirs] =
        ["0", "1"].map(|database| Client::connect(&format!("{}{database}", server.url())).unwrap());
    let (here, there) = (latch(&ours, "start", 3), latch(&theirs, "start", 1));
    let waiting = waiters(&here, 3);
    wait_subscribed(&server, &channel("start"));
    there.count_down().unwrap();
    there.wait().unwrap();
    let mut asked = Commands::so_far(&server).of("get");
    // Its message is on our channel, and leads to a question at most.
    wait_until("they wait again", SOON, || {
        waiting.iter().for_each(Running::wait_asleep);
        let now = Commands::so_far(&server).of("get");
        std::mem::replace(&mut asked, now) == now
    });
    thread::sleep(UNIT);
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(here.count().unwrap(), 3);
    (0..3).for_each(|_| here.count_down().unwrap());
    for waiter in waiting {
        waiter.join();
    }
}

#[test]
fn a_delete_whose_reply_is_lost_has_deleted_that_latch_and_no_other() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let latch = latch(&client, "deleted", 3);
    latch.count_down().unwrap();
    for action in [Action::LoseReply, Action::LoseRequest] {
        on_script(&proxy, "deleted", 1, action);
        assert!(latch.delete().unwrap());
        assert!(!latch.delete().unwrap());
        assert!(latch.try_set_count(2).unwrap());
    }
    assert_eq!(proxy.fired(), 2);
    stays(&server, "deleted", 2);
}

#[test]
fn the_last_message_opens_it_without_a_question() {
    let _bounded = bounded();
    let server = server();
    let name = "message";
    let other = client(&server).count_down_latch(name);
    let latch = latch(&client(&server), name, 1);
    let set = Commands::so_far(&server).of("get");
    let waiter = waiters(&latch, 1).remove(0);
    // Once more when it listens.
    wait_until("it has asked twice", SOON, || Commands::so_far(&server).of("get") >= set + 2);
    wait_subscribed(&server, &channel(name));
    let before = Commands::so_far(&server).of("get");
    other.count_down().unwrap();
    waiter.join();
    // Two of the count-down's script, none of the waiter.
    assert_eq!(Commands::so_far(&server).of("get") - before, 2);
}

// What breaks.

/// Does this to the next scripts of this name.
fn on_script(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, name)
    });
}

/// A client behind a network, which has its connection and knows its scripts.
fn behind(proxy: &Proxy) -> Client {
    common::behind(proxy, |client| {
        let latch = latch(client, "warm", 2);
        latch.count_down().unwrap();
        latch.delete().unwrap();
    })
}

#[test]
fn a_count_down_counts_once_whatever_is_lost() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let latch = latch(&client, "counted", 7);
    let mut left = 7;
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 1),
        (Action::LoseRequest, 1),
        (Action::LoseReply, 4),
        (Action::LoseRequest, 4),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
        // The last one, which opens it.
        (Action::LoseReply, 2),
    ] {
        on_script(&proxy, "counted", times, action);
        if let Err(error) = latch.count_down() {
            is_clear(&error, "counted", "counted in the background, once");
        }
        fired += times;
        left -= 1;
        proxy.wait_fired(fired, SOON);
        proxy.release();
        stays(&server, "counted", left);
    }
    assert!(latch.wait_for(SOON).unwrap());
}

#[test]
fn a_late_copy_does_not_count_against_the_next_count() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let latch = latch(&client, "anew", 1);
    // It opened the latch, but its process does not know.
    on_script(&proxy, "anew", 3, Action::LoseReply);
    assert!(latch.count_down().is_err());
    let other = common::client(&server).count_down_latch("anew");
    assert!(other.try_set_count(2).unwrap());
    proxy.wait_fired(3, SOON);
    stays(&server, "anew", 2);
}

#[test]
fn a_count_that_was_set_is_set_by_this_call_though_its_reply_is_lost() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let latch = behind(&proxy).count_down_latch("set");
    for action in [Action::LoseReply, Action::LoseRequest] {
        on_script(&proxy, "set", 1, action);
        assert!(latch.try_set_count(3).unwrap());
        on_script(&proxy, "set", 1, action);
        let deleted = latch.delete();
        assert!(deleted.is_ok(), "{deleted:?}");
        assert_eq!(latch.count().unwrap(), 0);
    }
    assert_eq!(proxy.fired(), 4);
}

#[test]
fn a_frozen_servers_count_downs_are_counted_once_it_goes_on() {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let latch = latch(&client, "frozen", 5);
    server.pause();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let latch = latch.clone();
            spawn(move || latch.count_down().unwrap_err())
        })
        .collect();
    // One that was never sent is not counted, and says so.
    let errors: Vec<_> = threads.into_iter().map(|thread| thread.join().to_string()).collect();
    let counted = errors.iter().filter(|error| error.contains("counted in the background")).count();
    let not = errors.iter().filter(|error| error.contains("nothing was counted")).count();
    assert_eq!(counted + not, 3, "{errors:?}");
    is_clear(&latch.wait_for(UNIT).unwrap_err(), "frozen", "the server");
    server.resume();
    stays(&server, "frozen", 5 - i64::try_from(counted).unwrap());
}

#[test]
fn counts_with_connections_cut_at_any_moment_are_exact() {
    let _bounded = bounded();
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let mut random = Random::new();
    let clients: Vec<_> =
        proxies.iter().map(|proxy| impatient(&proxy.url()).connect().unwrap()).collect();
    let quiet = client(&server);
    let total = 1_000_000_u64;
    let latch = latch(&quiet, "cut", total);
    let counted = Arc::new(AtomicU64::new(0));
    let ends = Instant::now() + UNIT * 25;
    let threads: Vec<_> = (0..4_usize)
        .map(|at| {
            let latch = clients[at % 2].count_down_latch("cut");
            let counted = Arc::clone(&counted);
            spawn(move || {
                while Instant::now() < ends {
                    let counts = match latch.count_down() {
                        Ok(()) => true,
                        Err(error) => !error.to_string().contains("nothing was counted"),
                    };
                    counted.fetch_add(u64::from(counts), Ordering::SeqCst);
                }
            })
        })
        .collect();
    while Instant::now() < ends {
        proxies[usize::try_from(random.below(2)).unwrap()].cut_all();
        thread::sleep(Duration::from_micros(random.below(15_000)));
    }
    threads.into_iter().for_each(Running::join);
    let counted = counted.load(Ordering::SeqCst);
    println!("{counted} counted");
    assert!(counted > 50);
    stays(&server, "cut", i64::try_from(total - counted).unwrap());
    assert!(latch.delete().unwrap());
}

#[test]
fn an_opening_in_the_subscribers_absence_is_not_missed() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let (waits, opens) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut kill = || {
        let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut redis).unwrap();
    };
    for round in 0..6 {
        at_once(|| {
            let latch = latch(&opens, "absence", 1);
            let waiters = waiters(&waits.count_down_latch("absence"), 3);
            wait_subscribed(&server, &channel("absence"));
            if round % 2 == 0 {
                kill();
                latch.count_down().unwrap();
            } else {
                latch.count_down().unwrap();
                kill();
            }
            waiters.into_iter().for_each(|waiter| {
                waiter.join();
            });
        });
    }
}

#[test]
fn waiters_go_on_when_the_servers_data_is_gone() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for way in ["FLUSHALL", "restart"] {
        let first = latch(&one, "emptied", 3);
        let before = Commands::so_far(&server).of("get");
        let waiters: Vec<_> = [&first, &other.count_down_latch("emptied")]
            .into_iter()
            .flat_map(|latch| waiters(latch, 2))
            .collect();
        // A thread in the middle of a request is asleep, too, and a server that goes away then is
        // an error. Each process asks twice.
        wait_until("all have asked", SOON, || Commands::so_far(&server).of("get") >= before + 4);
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        // At the next poll: an absent latch is open.
        waiters.into_iter().for_each(|waiter| {
            waiter.join();
        });
        assert_eq!(first.count().unwrap(), 0);
    }
}

#[test]
fn a_key_that_is_no_latch_is_left_as_it_is() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.hset("hash", "field", "precious").unwrap();
    let () = redis.set("text", "precious").unwrap();
    for name in ["hash", "text"] {
        let latch = client.count_down_latch(name);
        let errors = [
            latch.delete().map(drop).unwrap_err(),
            latch.wait().unwrap_err(),
            latch.wait_for(UNIT).unwrap_err(),
            latch.count().unwrap_err(),
            latch.count_down().unwrap_err(),
        ];
        for error in errors {
            is_clear(&error, name, "use another name");
            assert!(!error.to_string().contains("precious"), "{error}");
        }
        if let Ok(set) = latch.try_set_count(1) {
            assert!(!set);
        }
    }
    assert_eq!(redis.hget::<_, _, String>("hash", "field").unwrap(), "precious");
    assert_eq!(redis.get::<_, String>("text").unwrap(), "precious");
    // Written over while somebody waits: an error, for all who wait.
    let latch = latch(&client, "over", 1);
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let latch = latch.clone();
            let waiter = spawn(move || latch.wait().unwrap_err());
            waiter.wait_queued();
            waiter
        })
        .collect();
    let () = redis.del("over").unwrap();
    let () = redis.rpush("over", "precious").unwrap();
    let () = redis.publish(channel("over"), "1").unwrap();
    for waiter in waits {
        is_clear(&waiter.join(), "over", "waiting has ended");
    }
}

#[test]
fn without_memory_the_last_count_is_told_and_opens_it_later() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let latch = latch(&client(&server), "memory", 2);
    let limit = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    limit("1");
    is_clear(&latch.count_down().unwrap_err(), "memory", "nothing was counted");
    assert_eq!(latch.count().unwrap(), 2);
    assert!(!latch.wait_for(UNIT).unwrap());
    limit("0");
    latch.count_down().unwrap();
    latch.count_down().unwrap();
    latch.wait().unwrap();
}

/// A change that the server is asked for, with the count before and after it.
struct Change {
    before: Option<i64>,
    after: Option<i64>,
    ask: fn(&CountDownLatch) -> Result<(), Error>,
}

const CHANGES: [Change; 5] = [
    Change { before: None, after: Some(3), ask: |it| it.try_set_count(3).map(drop) },
    Change { before: Some(3), after: Some(2), ask: CountDownLatch::count_down },
    Change { before: Some(1), after: None, ask: CountDownLatch::count_down },
    Change { before: None, after: None, ask: CountDownLatch::count_down },
    Change { before: Some(3), after: None, ask: |it| it.delete().map(drop) },
];

/// What a latch's scripts do, each of it denied; and keys that may not be touched.
const DENIED: [&[&str]; 11] = [
    &["-time"],
    &["-get"],
    &["-set"],
    &["-incrby"],
    &["-decr"],
    &["-del"],
    &["-publish"],
    &["resetchannels"],
    &["resetkeys", "~gate"],
    &["resetkeys", "~redlatch_request:*"],
    &["resetkeys", "~redlatch_request:*", "%R~gate"],
];

#[test]
fn without_a_right_either_all_of_a_change_is_made_or_nothing() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    let gate = client.count_down_latch("gate");
    // Learns the server's clock.
    gate.count_down().unwrap();
    let mut redis = server.connection();
    let mut refused = 0;
    for denied in DENIED {
        for (at, Change { before, after, ask }) in CHANGES.iter().enumerate() {
            let () = redis.del("gate").unwrap();
            if let Some(before) = before {
                let () = redis.set("gate", before).unwrap();
            }
            user.set(denied);
            let outcome = ask(&gate);
            user.set(&["~*", "&*", "+@all"]);
            let now: Option<i64> = redis.get("gate").unwrap();
            match outcome {
                Ok(()) => assert_eq!(now, *after, "{denied:?}, change {at}"),
                Err(error) => {
                    assert_eq!(now, *before, "{denied:?}, change {at}: {error}");
                    is_clear(&error, "gate", "access rights (ACL)");
                    assert!(error.to_string().contains("a latch needs"), "{error}");
                    refused += 1;
                    ask(&gate).unwrap();
                    assert_eq!(redis.get::<_, Option<i64>>("gate").unwrap(), *after);
                }
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    user.set(&["-@all"]);
    let error = client.count_down_latch("rights").count_down().unwrap_err().to_string();
    user.set_as_said(&error, "a latch", "rights");
    at_once(|| {
        let latch = latch(&user.client(), "rights", 2);
        let waiting = user.client().count_down_latch("rights");
        let waiter = spawn(move || waiting.wait().unwrap());
        wait_subscribed(&server, &channel("rights"));
        waiter.wait_asleep();
        latch.count_down().unwrap();
        latch.count_down().unwrap();
        waiter.join();
        assert!(latch.try_set_count(1).unwrap());
        assert!(latch.delete().unwrap());
    });
}
