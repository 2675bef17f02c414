//! How a lock goes from one process to the next: nobody is passed over, nobody is inside too long,
//! and whatever is lost on the way costs little time and no hold.
//!
//! The scripts alone are tried in `lock_model.rs`; here it is the library that sends them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
#[path = "hand_off/handed.rs"]
mod handed;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use log::{Level, LevelFilter, Log, Metadata, Record};
use redis::{Commands as _, Connection};
use redlatch::{CancelToken, Client, Error, ErrorKind, HoldState, LostReason, ReentrantLock};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// How long a lock is granted for by message: `lua/hand_off.lua`.
const PROVISIONAL: Duration = Duration::from_secs(2);

/// Where this executable's workers begin: a process that takes a lock and keeps it until it is told.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0)).watchdog_timeout(LONG).connect().unwrap();
    let guard = client.reentrant_lock(job.arg(1)).lock().unwrap();
    job.say("in");
    let _ = job.wait_line();
    guard.unlock().unwrap();
    job.say("out");
    let _ = job.wait_line();
}

fn process(server: &Server, name: &str) -> Worker {
    Worker::spawn_test("worker", "guest", &[&server.url(), name])
}

/// A thread that takes a lock and keeps it until it is told to leave.
struct Guest {
    entered: Receiver<Instant>,
    leave: Sender<()>,
    thread: Running<Result<(), Error>>,
}

impl Guest {
    fn of(lock: &ReentrantLock) -> Self {
        let lock = lock.clone();
        let (tell, entered) = mpsc::channel();
        let (leave, told) = mpsc::channel();
        let thread = spawn(move || {
            let guard = lock.lock()?;
            tell.send(Instant::now()).unwrap();
            // Its own words when it is to leave, or its test has failed.
            let _ = told.recv();
            guard.unlock()
        });
        Self { entered, leave, thread }
    }

    /// One that stands in line as the last of `places`.
    fn in_line(server: &Server, client: &Client, name: &str, places: u64) -> Self {
        let guest = Self::of(&client.reentrant_lock(name));
        wait_in_line(server, name, places);
        guest
    }

    fn is_in(&self) -> bool {
        self.entered.try_recv().is_ok()
    }

    fn wait_in(&self) -> Instant {
        self.entered.recv_timeout(SOON).expect("it is let in")
    }

    fn leaves(self) {
        self.ends().unwrap();
    }

    fn ends(self) -> Result<(), Error> {
        drop(self.leave);
        self.thread.join()
    }
}

fn queue_key(name: &str) -> String {
    match name.contains('{') {
        true => format!("redlatch_queue_tagged:{name}"),
        false => format!("redlatch_queue:{{{name}}}"),
    }
}

/// Who stands in line.
fn queue(redis: &mut Connection, name: &str) -> Vec<String> {
    redis.lrange(queue_key(name), 0, -1).unwrap()
}

/// Who has the lock.
fn owner(redis: &mut Connection, name: &str) -> Option<String> {
    holder(redis, name).map(|(owner, _)| owner)
}

fn wait_owner(redis: &mut Connection, name: &str, expected: &str) {
    wait_until("the lock has this owner", SOON, || {
        owner(redis, name).is_some_and(|owner| owner == expected)
    });
}

/// How many keys have lapsed on this server: whoever came in without one more was let in by a word,
/// and waited for nobody's lease.
fn lapsed(redis: &mut Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("stats").query(redis).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("expired_keys:")).unwrap();
    line.trim().parse().unwrap()
}

/// Nobody has it and nobody waits.
fn wait_left(server: &Server, name: &str) {
    wait_free(server, name, SOON);
    let mut redis = server.connection();
    wait_until("nobody stands in line", SOON, || queue(&mut redis, name).is_empty());
}

const RENEW: &str = include_str!("../lua/lock/renew.lua");

macro_rules! lock_script {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../lua/lock/", $file))),+)
    };
}

/// Whether it runs this script for this lock.
fn runs(bytes: &[u8], code: &str, name: &str) -> bool {
    let hash = redis::Script::new(code);
    (contains(bytes, hash.get_hash()) || contains(bytes, code)) && contains(bytes, name)
}

/// Does this to the next requests that run this script for this lock.
fn on_script(proxy: &Proxy, code: &'static str, name: &'static str, shots: usize, action: Action) {
    proxy.on(Direction::Request, shots, action, move |bytes| runs(bytes, code, name));
}

/// Counts them from here on.
fn count_script(proxy: &Proxy, code: &'static str, name: &'static str) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&count);
    proxy.on(Direction::Request, 1, Action::Silence, move |bytes| {
        if runs(bytes, code, name) {
            seen.fetch_add(1, Ordering::SeqCst);
        }
        false
    });
    count
}

/// A client behind a network, whose connections are open and whose scripts are known. It waits for
/// replies for as long as a test holds them back.
fn behind(server: &Server, proxy: &Proxy) -> Client {
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG)
        .response_timeout(SOON)
        .connections(1)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("warm");
    let guards = (lock.lock().unwrap(), lock.with_lease(LONG * 2).lock().unwrap());
    guards.0.unlock().unwrap();
    guards.1.unlock().unwrap();
    warm_up(server, &client);
    client
}

/// Has it listen to its own channel, as it does once it has waited: before that a script takes it
/// for dead, and it asks once more when it listens.
fn warm_up(server: &Server, client: &Client) {
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "warm", LONG);
    let guest = Guest::in_line(server, client, "warm", 1);
    let place = queue(&mut redis, "warm").remove(0);
    wait_subscribed(server, &own_channel(&place));
    // It has been confirmed when a release is heard, and not before.
    wait_subscribed(server, &channel("warm"));
    release_as_redisson(&mut redis, "warm", &channel("warm"));
    guest.wait_in();
    guest.leaves();
}

/// A client that listens to its own channel.
fn warm(server: &Server) -> Client {
    let client = client(server);
    warm_up(server, &client);
    client
}

// Messages.

#[test]
fn a_grant_that_overtakes_the_reply_counts() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (client(&server), behind(&server, &proxy));
    let asked = count_script(
        &proxy,
        lock_script!("free.lua", "../hand_off.lua", "holder.lua", "acquire.lua"),
        "overtaken",
    );
    let guard = one.reentrant_lock("overtaken").lock().unwrap();
    on_script(
        &proxy,
        lock_script!("free.lua", "../hand_off.lua", "holder.lua", "acquire.lua"),
        "overtaken",
        1,
        Action::HoldReply,
    );
    let guest = Guest::in_line(&server, &other, "overtaken", 1);
    // The reply says "refused", and waits on its way.
    proxy.wait_fired(1, SOON);
    proxy.on_reply("grant ", Action::DelayReply(Duration::ZERO));
    guard.unlock().unwrap();
    proxy.wait_fired(2, SOON);
    // The reader of messages has it by now, or has it soon.
    thread::sleep(UNIT / 2);
    proxy.release();
    guest.wait_in();
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it had to ask once more");
    guest.leaves();
    wait_left(&server, "overtaken");
}

/// The next one is not kept waiting until its own next poll, and who slept over its grant is not
/// inside together with it.
#[test]
fn a_process_that_was_stopped_over_its_grant_does_not_enter() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let clients: Vec<_> = (0..4).map(|_| warm(&server)).collect();
    let name = "stopped";
    let played = (0..5).any(|_| {
        let first = Guest::of(&clients[0].reentrant_lock(name));
        first.wait_in();
        // The two before the process and the one behind it. From the third place on a waiter asks
        // after four seconds at the earliest: until then it is messages that are seen here.
        let second = Guest::in_line(&server, &clients[1], name, 1);
        let third = Guest::in_line(&server, &clients[2], name, 2);
        let before = Commands::so_far(&server).scripts();
        let mut stopped = process(&server, name);
        let begun = Instant::now();
        wait_in_line(&server, name, 3);
        let last = Guest::in_line(&server, &clients[3], name, 4);
        let line = queue(&mut redis, name);
        wait_subscribed(&server, &own_channel(&line[2]));
        // It asks once more, since it listens now, and the last one asked.
        wait_until("it has asked again", SOON, || {
            Commands::so_far(&server).scripts() >= before + 3
        });
        stopped.sigstop();
        first.leaves();
        for guest in [second, third] {
            guest.wait_in();
            guest.leaves();
        }
        assert_eq!(owner(&mut redis, name).as_ref(), Some(&line[2]), "it is granted the lock");
        let granted = Instant::now();
        let entered = last.wait_in();
        let took = entered - granted;
        assert!(took + UNIT > PROVISIONAL, "{took:?}");
        let in_time = begun.elapsed() < Duration::from_millis(3_900);
        stopped.sigcont();
        if in_time {
            // It has asked, and has its place again.
            wait_in_line(&server, name, 1);
            assert_eq!(queue(&mut redis, name), line[2..3]);
            assert_eq!(stopped.try_line(Duration::ZERO), None, "two are inside");
        }
        last.leaves();
        stopped.expect_line("in", SOON);
        stopped.send_line("leave");
        stopped.expect_line("out", SOON);
        wait_left(&server, name);
        in_time
    });
    assert!(played, "whoever comes next waits for its own poll");
}

/// Its subscriber's connection breaks around the grant: it asks for its place when it listens again.
#[test]
fn a_grant_to_a_connection_that_breaks_is_found_when_it_listens_again() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let clients: Vec<_> = (0..3).map(|_| warm(&server)).collect();
    let cut_off = behind(&server, &proxy);
    let mut redis = server.connection();
    let mut random = Random::new();
    for round in 0..10 {
        let first = Guest::of(&clients[0].reentrant_lock("broken"));
        first.wait_in();
        let second = Guest::in_line(&server, &clients[1], "broken", 1);
        let third = Guest::in_line(&server, &clients[2], "broken", 2);
        let begun = Instant::now();
        // At the third place it does not poll for four seconds.
        let guest = Guest::in_line(&server, &cut_off, "broken", 3);
        first.leaves();
        second.wait_in();
        second.leaves();
        third.wait_in();
        if round % 2 == 0 {
            proxy.cut_matching("SUBSCRIBE");
        }
        let until = Instant::now() + Duration::from_micros(random.below(1_000));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        third.leaves();
        proxy.cut_matching("SUBSCRIBE");
        guest.wait_in();
        assert!(begun.elapsed() < BEFORE_A_POLL, "round {round}: {:?}", begun.elapsed());
        guest.leaves();
        wait_left(&server, "broken");
    }
    assert_eq!(lapsed(&mut redis), 0, "a lease had to end");
}

/// A connection that is dead and open costs a poll, again and again, unless somebody finds out.
#[test]
fn a_subscriber_that_hears_nothing_is_renewed() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (client(&server), behind(&server, &proxy));
    let asked = count_script(
        &proxy,
        lock_script!("free.lua", "../hand_off.lua", "holder.lua", "acquire.lua"),
        "half open",
    );
    proxy.on_reply("grant ", Action::Silence);
    let mut rounds = 0;
    loop {
        let guard = one.reentrant_lock("half open").lock().unwrap();
        let guest = Guest::in_line(&server, &other, "half open", 1);
        let before = asked.load(Ordering::SeqCst);
        guard.unlock().unwrap();
        guest.wait_in();
        let told = asked.load(Ordering::SeqCst) == before;
        guest.leaves();
        wait_left(&server, "half open");
        if told {
            break;
        }
        rounds += 1;
        assert!(rounds < 6, "it never hears anything");
    }
    assert!(rounds >= 1, "the message was heard all the same");
}

/// What comes on a client's channel and is not for this lock is nobody's grant.
#[test]
fn a_message_for_another_lock_or_database_grants_nothing() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let guard = client(&server).reentrant_lock("mine").lock().unwrap();
    let guest = Guest::in_line(&server, &warm(&server), "mine", 1);
    let place = queue(&mut redis, "mine").remove(0);
    let (own, number) = (own_channel(&place), place.split_once(':').unwrap().1);
    let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let now = now * 1_000 + 5_000;
    for message in [
        format!("grant {number} {now} 2000 lock,0,0,0 1 mine"),
        format!("grant {number} {now} 2000 lock,0,0,0 0 {{mine}}"),
        format!("grant {number} {now} 2000 lock,0,0,0 0 mine "),
        format!("grant {number} {now} 2000 fair,0,0,0 0 mine"),
        format!("grant {number} {now} 2000 lock,0 0 mine"),
        format!("grant {} {now} 2000 lock,0,0,0 0 mine", u64::MAX),
        format!("granted {number} {now} 2000 lock,0,0,0 0 mine"),
        format!("open {number} 4 1 mine"),
        format!("ask {number} mine"),
        "grant".to_owned(),
    ] {
        let heard: u64 = redis.publish(&own, &message).unwrap();
        assert_eq!(heard, 1);
        guest.thread.wait_asleep();
        assert!(!guest.is_in(), "{message:?} has let it in");
    }
    assert_eq!(queue(&mut redis, "mine"), [place]);
    guard.unlock().unwrap();
    guest.wait_in();
    guest.leaves();
    wait_left(&server, "mine");
}

/// A place of nobody's: a request came late, say. What it is granted goes on to the next at once.
#[test]
fn what_nobody_waits_for_is_given_back_at_once() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let (one, other) = (warm(&server), warm(&server));
    for name in ["stray", "str{a}y"] {
        let guard = one.reentrant_lock(name).lock().unwrap();
        let own = owner(&mut redis, name).unwrap();
        let (uuid, _) = own.split_once(':').unwrap();
        let before = lapsed(&mut redis);
        let () = redis.rpush(queue_key(name), format!("{uuid}:777777")).unwrap();
        let () = redis.rpush(queue_key(name), format!("{uuid}:777778")).unwrap();
        let guest = Guest::in_line(&server, &other, name, 3);
        guard.unlock().unwrap();
        guest.wait_in();
        assert_eq!(lapsed(&mut redis), before, "{name}: a lease had to end");
        guest.leaves();
        wait_left(&server, name);
    }
}

/// The same where the server refuses that at first, as it passes: that was no answer.
#[test]
fn what_nobody_waits_for_is_given_back_though_the_server_refused_it_first() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let one = warm(&server);
    let guard = one.reentrant_lock("other").lock().unwrap();
    let uuid = owner(&mut redis, "other").unwrap().split_once(':').unwrap().0.to_owned();
    let stray = format!("{uuid}:777777");
    let () = redis.hset("stray", &stray, 1).unwrap();
    let () = redis.pexpire("stray", millis(LONG)).unwrap();
    let replicate = |of: [&str; 2]| {
        redis::cmd("REPLICAOF").arg(&of).exec(&mut server.connection()).unwrap();
    };
    replicate(["127.0.0.1", "1"]);
    let message = "grant 777777 0 2000 lock,0,0,0 0 stray";
    let heard: u64 = redis.publish(own_channel(&stray), message).unwrap();
    assert_eq!(heard, 1);
    wait_until("it was refused", SOON, || {
        let errors: String = redis::cmd("INFO").arg("errorstats").query(&mut redis).unwrap();
        errors.contains("errorstat_READONLY")
    });
    replicate(["NO", "ONE"]);
    wait_free(&server, "stray", SOON);
    guard.unlock().unwrap();
}

// Who leaves.

/// A process that was killed costs the next one nothing, even if somebody listens to all there is.
#[test]
fn a_waiter_that_was_killed_is_passed_by_the_release() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let mut monitor = server.connection();
    redis::cmd("PSUBSCRIBE").arg("*").exec(&mut monitor).unwrap();
    let (one, other) = (client(&server), warm(&server));
    let guard = one.reentrant_lock("killed").lock().unwrap();
    let mut dead: Vec<_> = (1..=3)
        .map(|places| {
            let worker = process(&server, "killed");
            wait_in_line(&server, "killed", places);
            worker
        })
        .collect();
    let guest = Guest::in_line(&server, &other, "killed", 4);
    let line = queue(&mut redis, "killed");
    dead.iter_mut().for_each(Worker::sigkill);
    for owner in &line[..3] {
        let channel = own_channel(owner);
        wait_until("the server knows", SOON, || {
            let heard: (String, u64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query(&mut redis).unwrap();
            heard.1 == 0
        });
    }
    guard.unlock().unwrap();
    assert_eq!(owner(&mut redis, "killed").as_ref(), Some(&line[3]), "granted by that release");
    guest.wait_in();
    guest.leaves();
    wait_left(&server, "killed");
}

#[test]
fn a_leader_that_gives_up_leaves_its_place_to_the_next_thread() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let (one, other) = (client(&server), warm(&server));
    let lock = other.reentrant_lock("inherited");
    let guard = one.reentrant_lock("inherited").lock().unwrap();
    let tokens: [CancelToken; 2] = std::array::from_fn(|_| CancelToken::new());
    let leaders = tokens.clone().map(|token| {
        let lock = lock.clone();
        let leader = spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err());
        leader.wait_asleep();
        leader
    });
    wait_in_line(&server, "inherited", 1);
    let heir = Guest::of(&lock);
    heir.thread.wait_asleep();
    let behind = Guest::in_line(&server, &client(&server), "inherited", 2);
    let line = queue(&mut redis, "inherited");
    for (token, leader) in tokens.iter().zip(leaders) {
        token.cancel();
        assert_eq!(leader.join().kind(), ErrorKind::Cancelled);
        heir.thread.wait_asleep();
        assert_eq!(queue(&mut redis, "inherited"), line);
    }
    guard.unlock().unwrap();
    assert_eq!(owner(&mut redis, "inherited").as_ref(), Some(&line[0]));
    heir.wait_in();
    heir.leaves();
    behind.wait_in();
    behind.leaves();
    wait_left(&server, "inherited");
}

/// Give-ups and grants cross by the thousand.
#[test]
fn who_waits_for_a_moment_only_leaves_neither_place_nor_hold() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    // One thread each: with more, the place goes from one to the next.
    let clients: [Client; 6] = std::array::from_fn(|_| warm(&server));
    let before = lapsed(&mut redis);
    let (inside, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let counts: Vec<_> = (0..6).map(|_| Arc::new(<[AtomicU64; 2]>::default())).collect();
    let threads: Vec<_> = (0..6)
        .map(|at| {
            let lock = clients[at].reentrant_lock("moment");
            let (inside, stop) = (Arc::clone(&inside), Arc::clone(&stop));
            let count = Arc::clone(&counts[at]);
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.try_lock_for(Duration::from_millis(1)).unwrap();
                    count[usize::from(guard.is_some())].fetch_add(1, Ordering::SeqCst);
                    if guard.is_none() {
                        continue;
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::sleep(Duration::from_micros(if at < 3 { 900 } else { 100 }));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    let total = |what: usize| -> u64 {
        counts.iter().map(|count| count[what].load(Ordering::SeqCst)).sum()
    };
    wait_until("thousands have waited", SOON, || {
        assert!(queue(&mut redis, "moment").len() <= clients.len(), "a place is left behind");
        total(0) > 3_000 && total(1) > 300
    });
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    println!("{} in vain, {} granted", total(0), total(1));
    wait_left(&server, "moment");
    assert_eq!(lapsed(&mut redis), before, "what nobody had had to lapse");
    // Nothing goes on in the background.
    let mut before = 0;
    wait_until("nobody sends anything any more", SOON, || {
        thread::sleep(UNIT / 2);
        let now = Commands::so_far(&server).scripts();
        std::mem::replace(&mut before, now) == now
    });
}

/// Of a client that ends, neither place nor hold stays: what it waits for, has, or is just granted.
#[test]
fn a_shutdown_leaves_neither_place_nor_hold() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let one = warm(&server);
    let is_shut_down = |guest: Guest| {
        let error = guest.ends().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::LeaseLost), "{error}");
    };
    // While it waits.
    let guard = one.reentrant_lock("ends").lock().unwrap();
    let ending = warm(&server);
    let guests = [
        Guest::in_line(&server, &ending, "ends", 1),
        Guest::of(&ending.reentrant_lock("ends")),
        Guest::in_line(&server, &warm(&server), "ends", 2),
    ];
    guests[1].thread.wait_asleep();
    let line = queue(&mut redis, "ends");
    ending.shutdown();
    let [first, second, last] = guests;
    is_shut_down(first);
    is_shut_down(second);
    assert_eq!(queue(&mut redis, "ends"), line[1..]);
    guard.unlock().unwrap();
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[1]));
    last.wait_in();
    last.leaves();
    // While it has it.
    let ending = warm(&server);
    let holder = Guest::of(&ending.reentrant_lock("ends"));
    holder.wait_in();
    let next = Guest::in_line(&server, &one, "ends", 1);
    let line = queue(&mut redis, "ends");
    ending.shutdown();
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[0]));
    is_shut_down(holder);
    next.wait_in();
    // While it is granted the lock: the message is on its way.
    let proxy = Proxy::before(&server);
    let ending = behind(&server, &proxy);
    let granted = Guest::in_line(&server, &ending, "ends", 1);
    let last = Guest::in_line(&server, &warm(&server), "ends", 2);
    let line = queue(&mut redis, "ends");
    proxy.on_reply("grant ", Action::HoldReply);
    next.leaves();
    proxy.wait_fired(1, SOON);
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[0]));
    ending.shutdown();
    is_shut_down(granted);
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[1]));
    last.wait_in();
    last.leaves();
    wait_left(&server, "ends");
    assert_eq!(lapsed(&mut redis), 0);
}

#[test]
fn a_shutdown_that_crosses_the_grant_keeps_the_lock_from_nobody() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let mut random = Random::new();
    let one = client(&server);
    let mut entered = 0;
    for _ in 0..60 {
        let guard = one.reentrant_lock("crossing").lock().unwrap();
        let ending = warm(&server);
        let guest = Guest::in_line(&server, &ending, "crossing", 1);
        let ends = spawn(move || ending.shutdown());
        let until = Instant::now() + Duration::from_micros(random.below(400));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        guard.unlock().unwrap();
        ends.join();
        entered += u64::from(guest.is_in());
        let error = guest.ends().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::LeaseLost), "{error}");
        assert_eq!(owner(&mut redis, "crossing"), None);
        assert!(queue(&mut redis, "crossing").is_empty());
    }
    println!("{entered} were in");
    assert_eq!(lapsed(&mut redis), 0);
}

// Who comes by.

/// A lock that is free and waited for goes to the first in line, whoever finds it so.
#[test]
fn whoever_finds_a_free_lock_grants_it_to_the_first_in_line() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let (one, waiting) = (client(&server), [warm(&server), warm(&server)]);
    let lock = one.reentrant_lock("found");
    for by in ["a forced unlock", "one of no lock", "a question", "a release", "the first itself"] {
        let guard = lock.lock().unwrap();
        let first = Guest::in_line(&server, &waiting[0], "found", 1);
        let second = Guest::in_line(&server, &waiting[1], "found", 2);
        let line = queue(&mut redis, "found");
        let mut third = None;
        if by != "a forced unlock" {
            let () = redis.del("found").unwrap();
        }
        match by {
            "a forced unlock" => assert!(lock.force_unlock().unwrap()),
            // Unless the first has asked by itself meanwhile.
            "one of no lock" => drop(lock.force_unlock().unwrap()),
            "a question" => {
                third = Some(Guest::of(&client(&server).reentrant_lock("found")));
                wait_until("it stands in line", SOON, || {
                    queue(&mut redis, "found").last().is_some_and(|last| !line.contains(last))
                });
            }
            "a release" => drop(guard.unlock().unwrap_err()),
            _ => wait_owner(&mut redis, "found", &line[0]),
        }
        if by != "one of no lock" {
            assert_eq!(owner(&mut redis, "found").as_ref(), Some(&line[0]), "by {by}");
        }
        for guest in [first, second].into_iter().chain(third) {
            guest.wait_in();
            // Of one that was forced out itself nobody knows.
            let _ = guest.ends();
        }
        wait_left(&server, "found");
    }
    assert_eq!(lapsed(&mut redis), 0);
}

#[test]
fn a_queue_that_is_gone_is_made_anew() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let guard = client(&server).reentrant_lock("evicted").lock().unwrap();
    let guests = [1, 2].map(|places| Guest::in_line(&server, &client(&server), "evicted", places));
    let mut line = queue(&mut redis, "evicted");
    let () = redis.del(queue_key("evicted")).unwrap();
    wait_in_line(&server, "evicted", 2);
    let mut again = queue(&mut redis, "evicted");
    line.sort();
    again.sort();
    assert_eq!(line, again);
    guard.unlock().unwrap();
    // In whatever order.
    let running = guests.map(|Guest { entered, leave, thread }| {
        drop(leave);
        (entered, thread)
    });
    running.into_iter().for_each(|(_entered, thread)| thread.join().unwrap());
    wait_left(&server, "evicted");
    assert_eq!(lapsed(&mut redis), 0);
}

#[test]
fn what_shares_a_channel_shares_no_queue() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let second = format!("{}1", server.url());
    let second = || Client::builder(&second).watchdog_timeout(LONG).connect().unwrap();
    // The same channel by another name; the same name in another database.
    for (name, twin, apart) in [("x", "{x}", false), ("{x}", "x", false), ("x", "x", true)] {
        let (one, other) = (client(&server), client(&server));
        let twins = if apart { [second(), second()] } else { [one.clone(), other] };
        let guard = one.reentrant_lock(name).lock().unwrap();
        let held = Guest::of(&twins[0].reentrant_lock(twin));
        held.wait_in();
        let guest = Guest::of(&twins[1].reentrant_lock(twin));
        guest.thread.wait_asleep();
        guard.unlock().unwrap();
        assert_eq!(owner(&mut redis, name), None, "{name} has let in who waits for {twin}");
        guest.thread.wait_asleep();
        assert!(!guest.is_in(), "{name} has let in who waits for {twin}");
        held.leaves();
        guest.wait_in();
        guest.leaves();
        wait_left(&server, name);
        wait_left(&server, twin);
    }
}

#[test]
fn a_release_that_is_sent_twice_grants_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let mut redis = server.connection();
    let releasing = behind(&server, &proxy);
    let guard = releasing.reentrant_lock("twice").lock().unwrap();
    let guests = [1, 2].map(|places| Guest::in_line(&server, &warm(&server), "twice", places));
    let line = queue(&mut redis, "twice");
    on_script(
        &proxy,
        lock_script!("unwanted.lua", "../hand_off.lua", "holder.lua", "release.lua"),
        "twice",
        1,
        Action::LoseReply,
    );
    assert!(guard.unlock().unwrap_err().outcome_unknown());
    assert_eq!(proxy.fired(), 1);
    assert_eq!(owner(&mut redis, "twice").as_ref(), Some(&line[0]));
    assert_eq!(queue(&mut redis, "twice"), line[1..]);
    for guest in guests {
        guest.wait_in();
        guest.leaves();
    }
    wait_left(&server, "twice");
}

// What is missing.

/// What the library has logged in this process.
struct Logger(Mutex<Vec<(Level, String)>>);

static LOGGER: Logger = Logger(Mutex::new(Vec::new()));

impl Logger {
    fn listen() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            log::set_logger(&LOGGER).unwrap();
            log::set_max_level(LevelFilter::Warn);
        });
    }

    fn about(&self, name: &str) -> Vec<(Level, String)> {
        let name = format!("{name:?}");
        self.0.lock().unwrap().iter().filter(|(_, line)| line.contains(&name)).cloned().collect()
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

/// A client that may use the lock's own key only waits as Redisson does, says so once, and all go on.
#[test]
fn without_the_right_to_the_queue_a_client_waits_in_public_and_says_so_once() {
    let _bounded = bounded();
    Logger::listen();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let mut user = User::new(&server, "poor");
    user.set(&["resetkeys", "~shop*"]);
    let (rich, poor) = (client(&server), user.client());
    for name in ["shop", "shop:{1}"] {
        for round in 0..3 {
            // The rich one has it, the poor one waits; a second rich one stands in line.
            let guard = rich.reentrant_lock(name).lock().unwrap();
            let outside = Guest::of(&poor.reentrant_lock(name));
            let public = match name {
                "shop" => channel(name),
                _ => format!("redisson_lock__channel:{name}"),
            };
            wait_subscribed(&server, &public);
            assert!(queue(&mut redis, name).is_empty());
            guard.unlock().unwrap();
            outside.wait_in();
            // And the other way round.
            let inside = Guest::in_line(&server, &rich, name, 1);
            outside.leaves();
            inside.wait_in();
            if round == 1 {
                assert!(poor.reentrant_lock(name).try_lock().unwrap().is_none());
                assert!(poor.reentrant_lock(name).force_unlock().unwrap());
                assert_eq!(inside.ends().unwrap_err().kind(), ErrorKind::LeaseLost);
            } else {
                inside.leaves();
            }
            wait_left(&server, name);
        }
    }
    wait_until("it is said", SOON, || !LOGGER.about("shop").is_empty());
    let said: Vec<_> = LOGGER.about("shop");
    let said: Vec<_> = said.iter().filter(|(_, line)| line.contains("queue")).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].0, Level::Warn);
    assert!(said[0].1.contains("redlatch_queue:*"), "{}", said[0].1);
}

/// Each verb may be the first one.
#[test]
fn without_the_right_to_the_queue_every_verb_works() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let mut user = User::new(&server, "poorer");
    user.set(&["resetkeys", "~shop*"]);
    let poor = user.client();
    assert!(!poor.reentrant_lock("shop:1").force_unlock().unwrap());
    hold_as_redisson(&mut redis, "shop:2", LONG);
    assert!(poor.reentrant_lock("shop:2").force_unlock().unwrap());
    poor.reentrant_lock("shop:3").try_lock().unwrap().unwrap().unlock().unwrap();
    poor.reentrant_lock("shop:4").lock().unwrap().unlock().unwrap();
    let lock = poor.reentrant_lock("shop:5");
    lock.lock().unwrap().forget();
    lock.unlock().unwrap();
    let left: Vec<String> = redis.keys("*").unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// A right less costs time, and no hold and no place.
#[test]
fn without_a_right_of_pubsub_a_lock_goes_from_one_to_the_other() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    for (at, right) in ["-publish", "-pubsub"].into_iter().enumerate() {
        let mut user = User::new(&server, &format!("mute{at}"));
        let (rich, poor) = (client(&server), user.client());
        user.set(&[right]);
        for (one, other) in [(&poor, &rich), (&rich, &poor), (&poor, &poor)] {
            let guard = one.reentrant_lock("mute").lock().unwrap();
            let guest = Guest::of(&other.reentrant_lock("mute"));
            guest.thread.wait_asleep();
            guard.unlock().unwrap();
            guest.wait_in();
            guest.leaves();
            wait_left(&server, "mute");
        }
    }
    assert_eq!(lapsed(&mut redis), 0);
}

/// It would wait for ever for a lock that is free.
#[test]
fn who_may_take_nobody_off_the_queue_is_told_and_leaves_no_place() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    for (at, right) in ["lpop", "pexpire"].into_iter().enumerate() {
        let mut user = User::new(&server, &format!("stuck{at}"));
        let (one, other) = (user.client(), user.client());
        let guard = one.reentrant_lock("stuck").lock().unwrap();
        let guest = Guest::in_line(&server, &other, "stuck", 1);
        user.set(&[&format!("-{right}")]);
        guard.unlock().unwrap();
        let error = guest.ends().unwrap_err();
        is_clear(&error, "stuck", "ACL");
        wait_left(&server, "stuck");
    }
}

#[test]
fn what_an_asker_may_not_do_costs_nobody_else_its_place_or_the_lock() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let (dead, alive) =
        ("cccccccc-cccc-8ccc-cccc-cccccccccccc:3", "bbbbbbbb-bbbb-8bbb-bbbb-bbbbbbbbbbbb:2");
    let mut listening = server.connection();
    let mut listening = listening.as_pubsub();
    listening.subscribe(format!("redisson_lock__channel:{{redlatch:{}}}", &alive[..36])).unwrap();
    let mut user = User::new(&server, "poorest");
    let lock = user.client().reentrant_lock("left");
    let mut line_up = |owner: &str| {
        let () = redis.rpush(queue_key("left"), owner).unwrap();
        let () = redis.pexpire(queue_key("left"), 60_000).unwrap();
    };

    // Put back it could not be, so it is not taken off.
    line_up(alive);
    user.set(&["-pexpire"]);
    let error = lock.try_lock_for(UNIT).map(drop).unwrap_err();
    is_clear(&error, "left", "ACL");
    assert_eq!(queue(&mut server.connection(), "left"), [alive]);
    assert_eq!(owner(&mut server.connection(), "left"), None);

    // A hold of the dead could not be taken back, so it gets none. (Nor was the command's refusal
    // taken for one of the queue's keys: the dead would be left there.)
    let () = server.connection().del(queue_key("left")).unwrap();
    line_up(dead);
    user.set(&["+@all", "-del"]);
    let guard = lock.try_lock_for(UNIT).unwrap().expect("it is free");
    user.set(&["+@all"]);
    guard.unlock().unwrap();
    wait_left(&server, "left");
}

#[test]
fn something_else_under_the_queues_key_costs_the_places_only() {
    let _bounded = bounded();
    Logger::listen();
    let server = server();
    let mut redis = server.connection();
    let () = redis.set(queue_key("odd"), "mine").unwrap();
    let (one, other) = (client(&server), client(&server));
    for _ in 0..3 {
        let guard = one.reentrant_lock("odd").lock().unwrap();
        let guest = Guest::of(&other.reentrant_lock("odd"));
        wait_subscribed(&server, &channel("odd"));
        guard.unlock().unwrap();
        guest.wait_in();
        guest.leaves();
        wait_free(&server, "odd", SOON);
    }
    let there: String = redis.get(queue_key("odd")).unwrap();
    assert_eq!(there, "mine");
    wait_until("it is said", SOON, || !LOGGER.about("odd").is_empty());
    let said = LOGGER.about("odd");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].1.contains("WRONGTYPE"), "{}", said[0].1);
}

/// Who waits needs no memory.
#[test]
fn without_memory_a_lock_that_is_waited_for_is_handed_on() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let mut limit = |bytes: &str| {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).exec(&mut redis).unwrap();
    };
    let (one, other, another) = (client(&server), warm(&server), warm(&server));
    let guard = one.reentrant_lock("full").lock().unwrap();
    let first = Guest::in_line(&server, &other, "full", 1);
    limit("1");
    let second = Guest::in_line(&server, &another, "full", 2);
    guard.unlock().unwrap();
    first.wait_in();
    first.leaves();
    second.wait_in();
    // Its lease is raised without memory, too.
    wait_until("it is raised", SOON, || {
        pttl(&mut server.connection(), "full") > millis(PROVISIONAL)
    });
    second.leaves();
    let error = one.reentrant_lock("full").lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
    limit("0");
    one.reentrant_lock("full").lock().unwrap().unlock().unwrap();
    wait_left(&server, "full");
}

// The lease.

/// A hold of a lock that a client behind the proxy was handed by message.
fn handed(
    server: &Server,
    proxy: &Proxy,
    name: &'static str,
    lease: Option<Duration>,
    then: impl FnOnce(redlatch::LockGuard, Instant) + Send + 'static,
) {
    let giver = client(server).reentrant_lock(name).lock().unwrap();
    let lock = behind(server, proxy).reentrant_lock(name);
    let lock = lease.map_or_else(|| lock.clone(), |lease| lock.with_lease(lease));
    let asked = count_script(
        proxy,
        lock_script!("free.lua", "../hand_off.lua", "holder.lua", "acquire.lua"),
        name,
    );
    let (tell, released) = mpsc::channel();
    let count = Arc::clone(&asked);
    let taker = spawn(move || {
        let guard = lock.lock().unwrap();
        let (entered, questions) = (Instant::now(), count.load(Ordering::SeqCst));
        let asked: u64 = released.recv().unwrap();
        assert_eq!(questions, asked, "it was not a message that granted it");
        then(guard, entered);
    });
    wait_in_line(server, name, 1);
    taker.wait_asleep();
    tell.send(asked.load(Ordering::SeqCst)).unwrap();
    giver.unlock().unwrap();
    taker.join();
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// A hand-over is for two seconds, raised when the hold has lasted for a moment. Nothing that is lost
/// on the way keeps it from that.
#[test]
fn a_grant_by_message_is_provisional_and_raised_even_if_requests_and_replies_are_lost() {
    let _bounded = bounded();
    let server = server();
    // What is sent on a connection that breaks is sent once more by itself.
    for (at, action) in [Action::LoseRequest, Action::LoseReply].into_iter().enumerate() {
        let proxy = Proxy::before(&server);
        let name = ["raised", "raised again"][at];
        on_script(&proxy, RENEW, name, 2, action);
        let mut redis = server.connection();
        handed(&server, &proxy, name, None, move |guard, entered| {
            let left = pttl(&mut redis, name);
            // Its first request may have got through, though nobody knows it.
            assert!(at == 1 || left <= millis(PROVISIONAL), "{left}");
            assert!(at == 1 || guard.remaining() <= PROVISIONAL);
            wait_until("it is raised", SOON, || guard.remaining() > LONG / 2);
            assert!(entered.elapsed() < PROVISIONAL);
            assert!(pttl(&mut redis, name) > millis(LONG / 2));
            guard.unlock().unwrap();
        });
        assert_eq!(proxy.fired(), 2);
        wait_left(&server, name);
    }
}

#[test]
fn a_fixed_lease_is_raised_once_and_counts_from_the_grant() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = Duration::from_secs(4);
    // Two attempts, of two requests each, are lost: it is raised late.
    let renewals = count_script(&proxy, RENEW, "fixed");
    on_script(&proxy, RENEW, "fixed", 4, Action::LoseRequest);
    let mut redis = server.connection();
    handed(&server, &proxy, "fixed", Some(lease), move |guard, entered| {
        let (tell, lost) = mpsc::channel();
        guard.on_lost(move |reason| tell.send((reason, Instant::now())).unwrap());
        wait_until("it is raised", SOON, || pttl(&mut redis, "fixed") > millis(PROVISIONAL));
        assert!(guard.is_held());
        let raised = renewals.load(Ordering::SeqCst);
        let left = pttl(&mut redis, "fixed");
        let end = entered.elapsed() + Duration::from_millis(left.unsigned_abs());
        // (By the time between the look at the clock and the request, on a busy machine.)
        assert!(end < lease + UNIT * 7, "it ends {end:?} after the grant");
        let (reason, at) = lost.recv_timeout(SOON).unwrap();
        assert_eq!(reason, LostReason::LeaseExpired);
        let held = at - entered;
        assert!(held + UNIT > lease && held < lease + UNIT * 7, "held for {held:?}");
        assert_eq!(renewals.load(Ordering::SeqCst), raised, "it was raised again");
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    });
    wait_left(&server, "fixed");
}

/// The server would keep it for two seconds.
#[test]
fn a_fixed_lease_that_is_shorter_than_a_hand_overs_frees_the_lock_at_its_end() {
    let _bounded = bounded();
    let server = server();
    for way in ["asleep", "late"] {
        let proxy = Proxy::before(&server);
        let before = lapsed(&mut server.connection());
        handed(&server, &proxy, "short", Some(UNIT * 3), move |guard, entered| {
            let (tell, lost) = mpsc::channel();
            guard.on_lost(move |reason| tell.send(reason).unwrap());
            assert!(guard.remaining() <= UNIT * 3);
            if way == "asleep" {
                assert_eq!(lost.recv_timeout(SOON), Ok(LostReason::LeaseExpired));
            } else {
                // Its own unlock is the first to know, or nearly.
                while guard.is_held() {
                    std::hint::spin_loop();
                }
            }
            assert!(entered.elapsed() + UNIT > UNIT * 3);
            assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        });
        wait_left(&server, "short");
        assert_eq!(lapsed(&mut server.connection()), before, "{way}: it stayed for nobody");
    }
}

/// Whoever asks gets the whole lease at once, also while the raise is on its way.
#[test]
fn a_check_right_after_a_hand_over_raises_the_hold() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    handed(&server, &proxy, "checked", None, move |guard, _| {
        guard.check(LONG / 6).unwrap();
        assert!(guard.remaining() > LONG / 2);
        guard.check(LONG / 6).unwrap();
        guard.unlock().unwrap();
    });
    let held_back = Arc::new(Proxy::before(&server));
    on_script(&held_back, RENEW, "checked late", 1, Action::HoldReply);
    let network = Arc::clone(&held_back);
    handed(&server, &held_back, "checked late", None, move |guard, _| {
        network.wait_fired(1, SOON);
        assert!(guard.remaining() <= PROVISIONAL, "its raise is on its way");
        guard.check(LONG / 6).unwrap();
        assert_eq!(guard.state(), HoldState::Held);
        network.release();
        guard.unlock().unwrap();
    });
    let fixed = Proxy::before(&server);
    handed(&server, &fixed, "checked fixed", Some(LONG), move |guard, _| {
        guard.check(LONG / 6).unwrap();
        let error = guard.check(LONG * 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EndsTooSoon, "{error}");
        guard.unlock().unwrap();
    });
    for name in ["checked", "checked late", "checked fixed"] {
        wait_left(&server, name);
    }
}

/// A time that cannot be, since the server's clock was set, makes no hold longer than a hand-over's.
#[test]
fn a_grant_from_the_time_to_come_counts_from_its_receipt() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    let guard = client(&server).reentrant_lock("clock").lock().unwrap();
    let lock = warm(&server).reentrant_lock("clock");
    let waiter = spawn(move || {
        let guard = lock.lock().unwrap();
        let remaining = guard.remaining();
        // It was never granted by the server.
        let _ = guard.unlock();
        remaining
    });
    wait_in_line(&server, "clock", 1);
    let place = queue(&mut redis, "clock").remove(0);
    let (own, number) = (own_channel(&place), place.split_once(':').unwrap().1);
    let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let later = (now + 3_600) * 1_000;
    let () = redis.publish(own, format!("grant {number} {later} 2000 lock,0,0,0 0 clock")).unwrap();
    assert!(waiter.join() <= PROVISIONAL);
    drop(guard);
    wait_free(&server, "clock", SOON);
}

// Redisson.

/// One of Redisson's clients: it tries at each message, and that takes it its time.
fn run_redisson(server: &Server, name: &'static str, stop: &AtomicBool, count: &AtomicU64) {
    let take = redis::Script::new(
        "if redis.call('exists', KEYS[1]) == 0 then
             redis.call('hset', KEYS[1], ARGV[1], 1)
             redis.call('pexpire', KEYS[1], 30000)
             return nil
         end
         return redis.call('pttl', KEYS[1])",
    );
    let mut redis = server.connection();
    let mut listener = server.connection();
    let mut messages = listener.as_pubsub();
    messages.subscribe(channel(name)).unwrap();
    messages.set_read_timeout(Some(UNIT)).unwrap();
    while !stop.load(Ordering::SeqCst) {
        let left: Option<i64> = take.key(name).arg(FOREIGN).invoke(&mut redis).unwrap();
        if left.is_some() {
            while !stop.load(Ordering::SeqCst) && messages.get_message().is_err() {}
            thread::sleep(REDISSONS_DELAY);
            continue;
        }
        count.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
        release_as_redisson(&mut redis, name, &channel(name));
        // Long enough for ours to have it again.
        thread::sleep(UNIT / 20);
    }
}

/// As measured: from a message to the request. Where nothing is left to it, it is late each time.
const REDISSONS_DELAY: Duration = Duration::from_micros(1_500);

/// A handle for each call is as good a neighbour as one that is kept.
#[test]
fn one_of_redissons_clients_has_its_turns_beside_ours_that_make_a_handle_for_each_call() {
    let _bounded = bounded();
    let server = Arc::new(server());
    for ours in [1, 2] {
        let name = ["", "alone", "beside two"][ours];
        let (stop, theirs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..ours)
            .map(|_| {
                let (client, stop) = (client(&server), Arc::clone(&stop));
                spawn(move || {
                    let mut rounds = 0_u64;
                    while !stop.load(Ordering::SeqCst) {
                        let guard = client.reentrant_lock(name).lock().unwrap();
                        assert!(guard.is_held());
                        thread::sleep(Duration::from_millis(5));
                        // Nothing of the handle is left behind this.
                        guard.unlock().unwrap();
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let redisson = {
            let (server, stop, count) =
                (Arc::clone(&server), Arc::clone(&stop), Arc::clone(&theirs));
            spawn(move || run_redisson(&server, name, &stop, &count))
        };
        wait_until("Redisson's had its turns", SOON, || theirs.load(Ordering::SeqCst) >= 50);
        stop.store(true, Ordering::SeqCst);
        let rounds: Vec<_> = threads.into_iter().map(Running::join).collect();
        redisson.join();
        println!("{name}: ours {rounds:?}, Redisson's {}", theirs.load(Ordering::SeqCst));
        assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
        wait_left(&server, name);
    }
}
