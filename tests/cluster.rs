//! Redis Cluster: every synchronizer there, slots that move while they are used, masters that die.

// With REDLATCH_SOAK=600 slots move for so many seconds: `cargo test --test cluster again_and_again --
// --nocapture`.

#![allow(clippy::unwrap_used)]

mod common;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, RENEWED, SOON, UNIT, bounded, real_server, spawn, wait_until};
use redis::Commands as _;
use redlatch::{Client, ErrorKind, HoldState, Lock, MultiLock};
use redlatch_testkit::{Cluster, Job, Server, Worker};

/// `None`, with a word, where there is only a stand-in.
fn cluster() -> Option<Cluster> {
    real_server()?;
    Some(Cluster::without_replicas().unwrap())
}

fn client(cluster: &Cluster) -> Client {
    Client::builder(&cluster.url()).watchdog_timeout(LONG).connect().unwrap()
}

/// `None`, with a word, where there is only a stand-in.
fn with_replicas() -> Option<Cluster> {
    real_server()?;
    Some(Cluster::start().unwrap())
}

/// It says that nobody has any slot, and would say so for ever.
#[test]
fn a_server_that_was_removed_from_its_cluster_is_not_believed() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let slot = cluster.slot("left");
    let left = cluster.owner(slot);
    for server in cluster.servers() {
        let args = ["SET", "cluster-require-full-coverage", "no"];
        redis::cmd("CONFIG").arg(&args).exec(&mut server.connection()).unwrap();
    }
    // The server that answered last is the first one to be asked.
    let url = |port| format!("redis-cluster://127.0.0.1:{port}");
    let connect = |url: &str| Client::builder(url).watchdog_timeout(LONG).connect();
    let client = connect(&url(left.port())).unwrap();
    let to = cluster.another(slot);
    cluster.move_slot(slot, to);
    let reset = || redis::cmd("CLUSTER").arg(&["RESET", "HARD"]).exec(&mut left.connection());
    reset().unwrap();
    client.reentrant_lock("left").lock().unwrap().unlock().unwrap();
    // Nor by whoever comes.
    let error = connect(&url(left.port())).map(drop).unwrap_err();
    assert!(error.to_string().contains("has a slot yet"), "{error}");
    let both = format!("{},127.0.0.1:{}", url(left.port()), to.port());
    connect(&both).unwrap().reentrant_lock("left").lock().unwrap().unlock().unwrap();
}

/// It goes on saying that the slots are its own, as they were before.
#[test]
fn a_server_that_is_cut_off_from_its_cluster_is_not_believed() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    let slot = cluster.slot("cut off");
    let old = cluster.owner(slot);
    // The server that answered last is the first one to be asked.
    let url = format!("redis-cluster://127.0.0.1:{}", old.port());
    let client = Client::builder(&url).watchdog_timeout(LONG).connect().unwrap();
    let lock = client.reentrant_lock("cut off");
    lock.lock().unwrap().unlock().unwrap();
    cluster.cut_off(old);
    let new = cluster.take_over(slot);
    wait_until("it finds that it is alone", SOON, || {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut old.connection()).unwrap();
        info.contains("cluster_state:fail")
    });
    let guard = lock.lock().unwrap();
    assert!(new.connection().exists::<_, bool>("cut off").unwrap());
    guard.unlock().unwrap();
}

/// Both ways in which messages go in a cluster.
fn clients(cluster: &Cluster, sharded: bool) -> [Client; 2] {
    // The second one's messages are told apart from replies by the protocol.
    ["2", "3"].map(|protocol| {
        Client::builder(&format!("{}?protocol={protocol}", cluster.url()))
            .watchdog_timeout(LONG)
            .sharded_channels(sharded)
            .connect()
            .unwrap()
    })
}

/// Names in slots of different servers.
fn names(cluster: &Cluster) -> Vec<String> {
    let mut names: Vec<(u16, String)> = Vec::new();
    for number in 0.. {
        let name = format!("name{number}");
        let port = cluster.home(&name).port();
        if names.iter().all(|(other, _)| *other != port) {
            names.push((port, name));
        }
        if names.len() == 3 {
            break;
        }
    }
    names.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn every_synchronizer_works_at_every_server() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    let names = names(&cluster);
    for sharded in [true, false] {
        let [one, other] = clients(&cluster, sharded);
        for name in &names {
            let lock = one.reentrant_lock(name);
            let guard = lock.lock().unwrap();
            let nested = lock.lock().unwrap();
            assert!(other.reentrant_lock(name).try_lock().unwrap().is_none());
            nested.unlock().unwrap();
            let waiter = other.reentrant_lock(name);
            let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
            waiting.wait_asleep();
            guard.unlock().unwrap();
            waiting.join();

            let fenced = format!("{{{name}}}:fenced");
            let first = one.fenced_lock(&fenced).lock().unwrap();
            let token = first.token();
            let waiter = other.fenced_lock(&fenced);
            let waiting = spawn(move || waiter.lock().unwrap().token());
            waiting.wait_asleep();
            first.unlock().unwrap();
            assert!(waiting.join() > token);

            let fair = format!("{{{name}}}:fair");
            let first = one.fair_lock(&fair).lock().unwrap();
            let waiter = other.fair_lock(&fair);
            let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
            waiting.wait_asleep();
            first.unlock().unwrap();
            waiting.join();

            let shared = format!("{{{name}}}:shared");
            let (ours, theirs) = (one.read_write_lock(&shared), other.read_write_lock(&shared));
            let first = ours.read().lock().unwrap();
            theirs.read().lock().unwrap().unlock().unwrap();
            assert!(theirs.write().try_lock().unwrap().is_none());
            let writer = theirs.write().clone();
            let waiting = spawn(move || writer.lock_owned().unwrap());
            waiting.wait_asleep();
            first.unlock().unwrap();
            let writes = waiting.join();
            let reader = ours.read().clone();
            let waiting = spawn(move || reader.lock().unwrap().unlock().unwrap());
            waiting.wait_asleep();
            drop(writes);
            waiting.join();

            let semaphore = one.semaphore(&format!("{{{name}}}:semaphore{sharded}"));
            assert!(semaphore.try_set_permits(1).unwrap());
            let permit = semaphore.acquire().unwrap();
            let waiter = other.semaphore(semaphore.name());
            let waiting = spawn(move || drop(waiter.acquire().unwrap()));
            waiting.wait_asleep();
            drop(permit);
            waiting.join();

            let semaphore = one.expirable_semaphore(&format!("{{{name}}}:expirable{sharded}"));
            assert!(semaphore.try_set_permits(1).unwrap());
            let permit = semaphore.acquire().unwrap();
            let waiter = other.expirable_semaphore(semaphore.name());
            let waiting = spawn(move || drop(waiter.acquire().unwrap()));
            waiting.wait_asleep();
            drop(permit);
            waiting.join();

            let latch = one.count_down_latch(&format!("{name}:latch"));
            assert!(latch.try_set_count(1).unwrap());
            let waiter = other.count_down_latch(latch.name());
            let waiting = spawn(move || waiter.wait().unwrap());
            waiting.wait_asleep();
            latch.count_down().unwrap();
            waiting.join();

            let lock = other.reentrant_lock(&format!("{name}:guarded"));
            let waiting = spawn(move || {
                let guard = lock.lock().unwrap();
                lock.new_condition("some {condition}").wait(&guard).unwrap();
            });
            waiting.wait_asleep();
            let lock = one.reentrant_lock(&format!("{name}:guarded"));
            let condition = lock.new_condition("some {condition}");
            wait_until("the other waits", SOON, || {
                let guard = lock.lock().unwrap();
                let told = condition.notify_one().unwrap();
                guard.unlock().unwrap();
                told
            });
            waiting.join();
        }
        let all = |client: &Client| {
            let locks: Vec<_> = names.iter().map(|name| client.reentrant_lock(name)).collect();
            let locks: Vec<_> = locks.iter().map(|lock| lock as &dyn Lock).collect();
            MultiLock::new(&locks).unwrap()
        };
        let guard = all(&one).lock().unwrap();
        assert!(all(&other).try_lock().unwrap().is_none());
        let waiter = all(&other);
        let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
        waiting.wait_asleep();
        guard.unlock().unwrap();
        waiting.join();
    }
}

#[test]
fn whoever_waits_is_woken_by_a_message() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    for sharded in [true, false] {
        let [one, other] = clients(&cluster, sharded);
        for name in &names(&cluster) {
            let lock = one.reentrant_lock(name);
            // The first wait listens; the others are told.
            let mut slowest = Duration::ZERO;
            for round in 0..5 {
                let guard = lock.lock().unwrap();
                let waiter = other.reentrant_lock(name);
                let waiting = spawn(move || {
                    let guard = waiter.lock().unwrap();
                    let at = Instant::now();
                    drop(guard);
                    at
                });
                waiting.wait_asleep();
                thread::sleep(UNIT / 2);
                let released = Instant::now();
                guard.unlock().unwrap();
                let woken = waiting.join().saturating_duration_since(released);
                if round > 0 {
                    slowest = slowest.max(woken);
                }
            }
            assert!(slowest < 3 * UNIT, "sharded {sharded}: {slowest:?}");
        }
    }
}

#[test]
fn a_name_whose_keys_would_be_apart_is_refused_with_a_word() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let client = client(&cluster);
    for name in ["a}b", "a{b", "{}a"] {
        let error = client.reentrant_lock(name).try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{name}: {error}");
        assert!(error.to_string().contains("braces"), "{error}");
        assert_eq!(client.semaphore(name).acquire().unwrap_err().kind(), ErrorKind::Config);
    }
    let error = client.count_down_latch("{a}b").count().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    for name in ["{a}b", "a:{b}", "plain"] {
        client.reentrant_lock(name).lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_server_and_a_cluster_are_told_apart() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let url = server.url().replace("redis://", "redis-cluster://");
    let error = Client::connect(&url).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("use redis://"), "{error}");

    let cluster = Cluster::without_replicas().unwrap();
    let client = Client::connect(&cluster.servers()[0].url()).unwrap();
    let elsewhere = names(&cluster)
        .into_iter()
        .find(|name| cluster.home(name).port() != cluster.servers()[0].port());
    let error = client.reentrant_lock(&elsewhere.unwrap()).try_lock().unwrap_err();
    assert!(error.to_string().contains("redis-cluster://"), "{error}");
}

#[test]
fn a_hold_outlives_the_move_of_its_slot() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let lease = 6 * UNIT;
    let client = Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap();
    let slot = cluster.slot("moved");
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let semaphore = client.expirable_semaphore("{moved}:permits");
    assert!(semaphore.try_set_permits(1).unwrap());
    let permit = semaphore.acquire().unwrap();
    // In many slots of each server, and due together.
    let others: Vec<_> = (0..30)
        .map(|number| client.reentrant_lock(&format!("another{number}")).lock().unwrap())
        .collect();
    let to = cluster.another(slot);
    cluster.move_slot(slot, to);
    // Over several leases, each renewed there.
    thread::sleep(3 * lease);
    assert_eq!(guard.state(), HoldState::Held);
    for other in others {
        other.unlock().unwrap();
    }
    assert!(permit.is_held());
    assert!(to.connection().exists::<_, bool>("moved").unwrap());
    guard.unlock().unwrap();
    permit.release().unwrap();
    assert!(!to.connection().exists::<_, bool>("moved").unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 1);
}

/// While the slot is on its way, its keys are in two places, and the lock's alone can be used.
#[test]
fn a_hold_is_renewed_while_its_slot_is_on_its_way() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let lease = 6 * UNIT;
    let client = Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap();
    let slot = cluster.slot("moved");
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let to = cluster.another(slot);
    cluster.begin_move(slot, to);
    thread::sleep(2 * lease);
    assert_eq!(guard.state(), HoldState::Held, "at the first server");
    cluster.move_key("moved", to);
    thread::sleep(2 * lease);
    assert_eq!(guard.state(), HoldState::Held, "at the second one, which is asked with ASKING");
    let waiter = client.reentrant_lock("other {moved}");
    let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
    waiting.wait_asleep();
    cluster.end_move(slot, to);
    waiting.join();
    guard.unlock().unwrap();
}

/// A reader's timeout is a key of its own. Where the lock has moved and it has not, a renewal that made
/// it anew would find that undone by the older one.
#[test]
fn a_readers_renewal_waits_until_its_keys_are_together_again() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let lease = 10 * UNIT;
    let client = Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap();
    let slot = cluster.slot("moved");
    let guard = client.read_write_lock("moved").read().lock().unwrap();
    let to = cluster.another(slot);
    cluster.begin_move(slot, to);
    cluster.move_key("moved", to);
    // A renewal falls due.
    thread::sleep(lease / 2);
    let there: Vec<String> = to.connection().keys("*moved*").unwrap();
    assert_eq!(there, ["moved"]);
    cluster.move_keys(slot, to);
    cluster.end_move(slot, to);
    thread::sleep(2 * lease);
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(to.connection().keys::<_, Vec<String>>("*moved*").unwrap().len(), 2);
    guard.unlock().unwrap();
    assert_eq!(to.connection().keys::<_, Vec<String>>("*moved*").unwrap(), Vec::<String>::new());
}

/// Threads of two clients that want one lock; who is in there with whom, and how long they wait.
struct Contest {
    over: Arc<AtomicBool>,
    inside: Arc<AtomicU32>,
    together: Arc<AtomicUsize>,
    turns: Arc<AtomicUsize>,
    threads: Vec<common::Running<Duration>>,
}

impl Contest {
    /// `loses`: holds may be lost, and nobody is to blame.
    fn start(clients: &[Client], name: &str, fair: bool, loses: bool) -> Self {
        let mut contest = Self {
            over: Arc::default(),
            inside: Arc::default(),
            together: Arc::default(),
            turns: Arc::default(),
            threads: Vec::new(),
        };
        for client in clients {
            for _ in 0..2 {
                let (over, inside) = (Arc::clone(&contest.over), Arc::clone(&contest.inside));
                let (together, turns) = (Arc::clone(&contest.together), Arc::clone(&contest.turns));
                let (plain, queued) = (client.reentrant_lock(name), client.fair_lock(name));
                contest.threads.push(spawn(move || {
                    let mut longest = Duration::ZERO;
                    while !over.load(Ordering::SeqCst) {
                        let begun = Instant::now();
                        let guard = if fair { queued.lock() } else { plain.lock() }.unwrap();
                        longest = longest.max(begun.elapsed());
                        if inside.fetch_add(1, Ordering::SeqCst) > 0 && !loses {
                            together.fetch_add(1, Ordering::SeqCst);
                        }
                        thread::sleep(Duration::from_micros(300));
                        turns.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if let Err(error) = guard.unlock() {
                            assert!(loses, "{error:#}");
                        }
                    }
                    longest
                }));
            }
        }
        contest
    }

    /// Waits for so many more turns.
    fn go_on(&self, turns: usize) {
        let until = self.turns.load(Ordering::SeqCst) + turns;
        wait_until("the threads go on", SOON, || self.turns.load(Ordering::SeqCst) >= until);
    }

    /// The longest wait.
    fn end(self) -> Duration {
        self.over.store(true, Ordering::SeqCst);
        let longest = self.threads.into_iter().map(common::Running::join).max();
        assert_eq!(self.together.load(Ordering::SeqCst), 0, "two held it together");
        longest.unwrap()
    }
}

#[test]
fn a_contended_locks_slot_moves_to_and_fro() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    for (sharded, fair) in [(true, false), (true, true), (false, false), (false, true)] {
        let clients = clients(&cluster, sharded);
        let name = format!("{{contended}}:{fair}");
        let slot = cluster.slot(&name);
        let contest = Contest::start(&clients, &name, fair, false);
        contest.go_on(20);
        for _ in 0..5 {
            cluster.move_slot(slot, cluster.another(slot));
            contest.go_on(20);
        }
        let longest = contest.end();
        eprintln!("sharded {sharded}, fair {fair}: longest wait {longest:?}");
        // A poll of who was not told, and what a busy machine takes.
        assert!(longest < Duration::from_secs(4), "{longest:?}");
    }
}

#[test]
fn who_waits_for_anything_is_woken_after_its_slot_has_moved() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    for sharded in [true, false] {
        let [one, other] = clients(&cluster, sharded);
        let slot = cluster.slot("{w}");
        let name = |what: &str| format!("{{w}}{what}{sharded}");
        let guard = one.reentrant_lock(&name("lock")).lock().unwrap();
        let fair = one.fair_lock(&name("fair")).lock().unwrap();
        let semaphore = one.semaphore(&name("semaphore"));
        assert!(semaphore.try_set_permits(1).unwrap());
        let permit = semaphore.acquire().unwrap();
        let waiters = [
            spawn({
                let lock = other.reentrant_lock(&name("lock"));
                move || drop(lock.lock().unwrap())
            }),
            spawn({
                let lock = other.fair_lock(&name("fair"));
                move || drop(lock.lock().unwrap())
            }),
            spawn({
                let semaphore = other.semaphore(&name("semaphore"));
                move || drop(semaphore.acquire().unwrap())
            }),
        ];
        let (from, to) = (cluster.owner(slot), cluster.another(slot));
        let kind = if sharded { "SHARDCHANNELS" } else { "CHANNELS" };
        let heard = |server: &Server| -> Vec<String> {
            let channels =
                redis::cmd("PUBSUB").arg(kind).arg("*{w}*").query(&mut server.connection());
            let mut channels: Vec<String> = channels.unwrap();
            channels.retain(|channel| channel.contains(&format!("{sharded}")));
            channels.sort();
            channels
        };
        let listens = |server| waiters.len() == heard(server).len();
        wait_until("each listens", SOON, || listens(from));
        cluster.move_slot(slot, to);
        // Where messages go to all servers nobody says that the slot has moved: a poll finds out.
        wait_until("each listens at the new server", SOON, || listens(to));
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        let begun = Instant::now();
        guard.unlock().unwrap();
        fair.unlock().unwrap();
        drop(permit);
        waiters.into_iter().for_each(common::Running::join);
        let took = begun.elapsed();
        assert!(!sharded || took < 5 * UNIT, "sharded {sharded}: {took:?}");
    }
}

#[test]
fn a_master_dies_and_its_replica_takes_over() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    let clients = clients(&cluster, true);
    let name = "failed over";
    let slot = cluster.slot(name);
    let contest = Contest::start(&clients, name, false, true);
    contest.go_on(20);
    let old = cluster.owner(slot);
    // What only the old one knows.
    let guard = clients[0].reentrant_lock(&format!("{{{name}}}:lost")).lock().unwrap();
    wait_until("the replica has it", SOON, || {
        // WAIT is about what the same connection wrote last.
        let mut redis = old.connection();
        let _: () = redis.set(format!("{{{name}}}:later"), 1).unwrap();
        let waited: i64 = redis::cmd("WAIT").arg(1).arg(100).query(&mut redis).unwrap();
        waited == 1
    });
    let begun = Instant::now();
    old.kill();
    let taken_over = cluster.wait_taken_over(slot, old);
    contest.go_on(20);
    eprintln!("taken over after {:?}, in use {:?} later", taken_over - begun, taken_over.elapsed());
    assert_eq!(guard.state(), HoldState::Held, "the replica had it");
    let gone: i64 = cluster.owner(slot).connection().del(format!("{{{name}}}:lost")).unwrap();
    assert_eq!(gone, 1);
    assert!(guard.unlock().is_err());
    contest.end();
}

#[test]
fn a_master_stands_still_and_its_replica_takes_over() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    let clients = ["2", "3"].map(|protocol| {
        let url = format!("{}?protocol={protocol}", cluster.url());
        Client::builder(&url)
            .watchdog_timeout(LONG)
            .response_timeout(common::IMPATIENT)
            .connect()
            .unwrap()
    });
    let name = "stands still";
    let slot = cluster.slot(name);
    let contest = Contest::start(&clients, name, false, true);
    contest.go_on(20);
    let old = cluster.owner(slot);
    old.pause();
    wait_until("another server has taken over", SOON, || {
        let others = cluster.servers().iter().filter(|server| server.port() != old.port());
        let says = |server: &Server| {
            let slots: String =
                redis::cmd("CLUSTER").arg("NODES").query(&mut server.connection()).unwrap();
            let own = slots.lines().find(|line| line.contains("myself")).unwrap_or_default();
            own.contains("master") && own.split(' ').count() > 8
        };
        others.filter(|server| says(server)).count() == 3
    });
    contest.go_on(20);
    old.resume();
    contest.go_on(100);
    contest.end();
}

#[test]
fn a_loss_at_a_failover_is_told() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    // A renewal is to tell it.
    let builder = Client::builder(&cluster.url()).watchdog_timeout(3 * LONG);
    let client = builder.client_tracking(false).connect().unwrap();
    let slot = cluster.slot("lost");
    let old = cluster.owner(slot);
    let guard = client.reentrant_lock("lost").lock().unwrap();
    old.kill();
    cluster.wait_taken_over(slot, old);
    // As if the replica had not had it yet.
    let _: i64 = cluster.owner(slot).connection().del("lost").unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    // Somebody uses the slot, and finds out: what is held in it is asked for at once.
    client.reentrant_lock("{lost}:other").lock().unwrap().unlock().unwrap();
    wait_until("the loss is told", SOON, || guard.state() != HoldState::Held);
}

/// How many keys a server tracks.
fn tracked(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    line.unwrap().trim().parse().unwrap()
}

/// A client whose renewals fall into no test: a loss is told by tracking.
fn tracking(cluster: &Cluster) -> Client {
    let lease = Duration::from_secs(3_600);
    Client::builder(&cluster.url()).watchdog_timeout(lease).connect().unwrap()
}

#[test]
fn what_is_taken_away_at_any_server_is_told_by_that_one() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let client = tracking(&cluster);
    let names = names(&cluster);
    let held: Vec<_> =
        names.iter().map(|name| client.reentrant_lock(name).lock().unwrap()).collect();
    let semaphore = client.expirable_semaphore("permits");
    assert!(semaphore.try_set_permits(1).unwrap());
    let permit = semaphore.acquire().unwrap();
    wait_until("each key is tracked by its server", SOON, || {
        let tracked: Vec<_> = cluster.servers().iter().map(tracked).collect();
        tracked.iter().sum::<u64>() == 4 && tracked.iter().all(|keys| *keys > 0)
    });
    for (at, (name, guard)) in names.iter().zip(&held).enumerate() {
        let _: i64 = cluster.home(name).connection().del(name).unwrap();
        wait_until("the loss is told", SOON, || guard.state() != HoldState::Held);
        assert!(held[at + 1..].iter().all(|other| other.state() == HoldState::Held));
    }
    assert!(permit.is_held());
    let key = "{permits}:timeout";
    let _: i64 = cluster.home(key).connection().del(key).unwrap();
    wait_until("the loss is told", SOON, || !permit.is_held());
}

#[test]
fn what_is_tracked_moves_with_its_slot() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let client = tracking(&cluster);
    let (slot, name) = (cluster.slot("moved"), "moved");
    let guard = client.reentrant_lock(name).lock().unwrap();
    let from = cluster.home(name);
    wait_until("it is tracked", SOON, || tracked(from) == 1);
    // There and back, so that the first server tracks it anew.
    for to in [cluster.another(slot), from] {
        cluster.move_slot(slot, to);
        wait_until("it is tracked where it is", SOON, || tracked(to) == 1);
        assert_eq!(guard.state(), HoldState::Held);
    }
    let _: i64 = from.connection().del(name).unwrap();
    wait_until("the loss is told", SOON, || guard.state() != HoldState::Held);
}

#[test]
fn what_is_tracked_is_tracked_by_the_replica_that_takes_over() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    let client = tracking(&cluster);
    let (slot, name) = (cluster.slot("taken over"), "taken over");
    let guard = client.reentrant_lock(name).lock().unwrap();
    wait_until("it is tracked", SOON, || tracked(cluster.home(name)) == 1);
    wait_until("the replica has it", SOON, || {
        let mut redis = cluster.home(name).connection();
        let _: () = redis.set("{taken over}:later", 1).unwrap();
        let waited: i64 = redis::cmd("WAIT").arg(1).arg(100).query(&mut redis).unwrap();
        waited == 1
    });
    cluster.fail_over(slot);
    let new = cluster.home(name);
    wait_until("it is tracked by the new master", SOON, || tracked(new) == 1);
    assert_eq!(guard.state(), HoldState::Held);
    let _: i64 = new.connection().del(name).unwrap();
    wait_until("the loss is told", SOON, || guard.state() != HoldState::Held);
}

#[test]
fn without_a_server_for_its_slot_a_call_ends_in_time() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let client = common::impatient(&cluster.url()).connect().unwrap();
    let lock = client.reentrant_lock("down");
    drop(lock.lock().unwrap());
    let slot = cluster.slot("down");
    cluster.owner(slot).kill();
    let begun = Instant::now();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(begun.elapsed() < 6 * common::IMPATIENT, "{:?}: {error:#}", begun.elapsed());
}

#[test]
fn a_lock_counts_when_a_replica_of_its_slots_master_has_it() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    let client = Client::builder(&cluster.url())
        .watchdog_timeout(LONG)
        .replica_acks(1, 3 * UNIT)
        .connect()
        .unwrap();
    let replica = |name: &str| {
        let port = cluster.home(name).port();
        let at = cluster.servers().iter().position(|server| server.port() == port).unwrap();
        &cluster.servers()[at + 3]
    };
    let names = names(&cluster);
    // A replica counts from up to a second after it has come.
    for name in &names {
        let lock = client.reentrant_lock(name);
        wait_until("its replica counts", SOON, || {
            lock.try_lock().is_ok_and(|guard| guard.unwrap().unlock().is_ok())
        });
    }
    for name in &names {
        let guard = client.reentrant_lock(name).lock().unwrap();
        let mut redis = replica(name).connection();
        redis::cmd("READONLY").exec(&mut redis).unwrap();
        assert!(redis.exists::<_, bool>(name).unwrap(), "{name}");
        guard.unlock().unwrap();
    }
    // One has none any more; the others' masters have theirs.
    replica(&names[0]).pause();
    let error = client.reentrant_lock(&names[0]).try_lock().unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("replica"), "{error}");
    for name in &names[1..] {
        client.reentrant_lock(name).lock().unwrap().unlock().unwrap();
    }
    replica(&names[0]).resume();
}

#[test]
fn a_password_is_that_of_all_servers() {
    let _bounded = bounded();
    if real_server().is_none() {
        return;
    }
    let cluster = Cluster::with_password("word").unwrap();
    let url = cluster.url().replace("://", "://:word@");
    let client = Client::builder(&url).watchdog_timeout(LONG).connect().unwrap();
    let other = Client::builder(&cluster.url()).credentials("default", "word").connect().unwrap();
    for name in names(&cluster) {
        let guard = client.reentrant_lock(&name).lock().unwrap();
        let waiter = other.reentrant_lock(&name);
        let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
        waiting.wait_asleep();
        guard.unlock().unwrap();
        waiting.join();
    }
    let error = Client::connect(&cluster.url()).unwrap_err();
    assert!(error.to_string().contains("password") && !error.is_transient(), "{error}");
    let error = Client::connect(&url.replace("word", "another")).unwrap_err();
    assert!(!error.to_string().contains("another"), "{error}");
}

/// The servers name each other, with the ports for TLS.
#[cfg(any(feature = "tls", feature = "tls-rustls"))]
#[test]
fn a_cluster_is_used_over_tls() {
    let _bounded = bounded();
    if real_server().is_none() || !Server::supports_tls() {
        return println!("left out: this server has no TLS");
    }
    let cluster = Cluster::with_tls("word").unwrap();
    let authority = std::fs::read(cluster.servers()[0].tls_authority()).unwrap();
    let clients = [(); 2].map(|()| {
        let builder = Client::builder(&cluster.tls_url()).watchdog_timeout(LONG);
        builder.tls_ca_certificates(authority.clone()).connect().unwrap()
    });
    for name in names(&cluster) {
        let guard = clients[0].reentrant_lock(&name).lock().unwrap();
        let waiter = clients[1].reentrant_lock(&name);
        let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
        waiting.wait_asleep();
        guard.unlock().unwrap();
        waiting.join();
    }
    assert!(Client::connect(&cluster.tls_url()).unwrap_err().to_string().contains("certificate"));
}

// Several processes.

/// Holds a lock, waits for another one in its slot, and says how many threads it has.
#[test]
fn follower() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0)).watchdog_timeout(RENEWED).connect().unwrap();
    let guard = client.reentrant_lock("{left}:held").lock().unwrap();
    let waited = client.reentrant_lock("{left}:waited");
    let waiting = spawn(move || waited.lock().unwrap().unlock().unwrap());
    job.say("ready");
    while job.wait_line() == "threads" {
        // The names' first 15 characters.
        let is_one = |name: &&String| ["redlatch-renewe", "redlatch-subscr"].contains(&&***name);
        job.say(&format!("threads {}", common::thread_names().iter().filter(is_one).count()));
    }
    waiting.join();
    guard.unlock().unwrap();
    job.done();
}

#[test]
fn nothing_stays_at_a_server_that_has_lost_its_slots() {
    let _bounded = bounded();
    let Some(cluster) = with_replicas() else { return };
    let slot = cluster.slot("{left}");
    let old = cluster.owner(slot);
    let others = client(&cluster);
    let held = others.reentrant_lock("{left}:waited").lock_owned().unwrap();
    let mut follower = Worker::spawn_test("follower", "follower", &[&cluster.url()]);
    follower.expect_line("ready", SOON);
    let has = |server: &Server, kind: &str| {
        let list =
            redis::cmd("CLIENT").arg(&["LIST", "TYPE", kind]).query(&mut server.connection());
        let list: String = list.unwrap();
        list.lines().count()
    };
    wait_until("it listens", SOON, || has(old, "pubsub") > 0);
    let mut threads = || -> usize {
        follower.send_line("threads");
        follower.expect_line("threads", SOON).parse().unwrap()
    };
    wait_until("one renews, one listens", SOON, || threads() == 2);
    let new = cluster.take_over(slot);
    wait_until("it listens at the new master", SOON, || has(new, "pubsub") > 0);
    wait_until("the old one's threads end", SOON, || threads() == 2);
    wait_until("nobody is connected there but this test", SOON, || {
        has(old, "pubsub") == 0 && has(old, "normal") == 1
    });
    held.unlock().unwrap();
    follower.send_line("end");
    assert!(follower.wait_exit(SOON).success());
}

/// So many processes, each with a thread for each kind of lock in the slot.
const PROCESSES: usize = 3;
const KINDS: [&str; 4] = ["plain", "fair", "fenced", "written"];

/// Takes locks of one slot again and again. A server of its own counts who is inside.
#[test]
fn process() {
    let Some(job) = Job::from_env() else { return };
    let client =
        Client::builder(job.arg(0)).watchdog_timeout(LONG).response_timeout(UNIT * 20).connect();
    let client = client.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU32::new(0));
    let threads = KINDS.map(|kind| {
        let name = format!("{{contended}}:{kind}");
        let lock: Box<dyn Lock + Send> = match kind {
            "plain" => Box::new(client.reentrant_lock(&name)),
            "fair" => Box::new(client.fair_lock(&name)),
            "fenced" => Box::new(client.fenced_lock(&name)),
            _ => Box::new(client.read_write_lock(&name).write().clone()),
        };
        let mut witness = redis::Client::open(job.arg(1)).unwrap().get_connection().unwrap();
        let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
        spawn(move || {
            let (mut longest, mut said) = (Duration::ZERO, Vec::new());
            while !over.load(Ordering::SeqCst) {
                let begun = Instant::now();
                let guard = match lock.lock() {
                    Ok(guard) => guard,
                    Err(error) => {
                        said.push(format!("{kind} failed: {error:#}"));
                        continue;
                    }
                };
                longest = longest.max(begun.elapsed());
                let inside: i64 = witness.incr(kind, 1).unwrap();
                if inside != 1 {
                    said.push(format!("{kind}: two hold it together"));
                }
                thread::sleep(Duration::from_micros(300));
                let _: i64 = witness.decr(kind, 1).unwrap();
                if let Err(error) = guard.unlock() {
                    said.push(format!("{kind} lost: {error:#}"));
                }
                turns.fetch_add(1, Ordering::SeqCst);
            }
            (longest, said)
        })
    });
    job.say("ready");
    while job.wait_line() == "turns" {
        job.say(&format!("turns {}", turns.load(Ordering::SeqCst)));
    }
    over.store(true, Ordering::SeqCst);
    let heard = threads.map(common::Running::join);
    for complaint in heard.iter().flat_map(|(_, said)| said) {
        job.say(complaint);
    }
    let longest = heard.map(|(longest, _)| longest.as_micros());
    job.say(&format!("longest {longest:?}"));
    job.done();
}

/// What processes do, while slots move.
struct Processes {
    workers: Vec<Worker>,
    /// Who is inside is counted here, which is no part of the cluster.
    _witness: Server,
}

impl Processes {
    fn start(url: &str) -> Self {
        let witness = common::server();
        let spawn = |_| Worker::spawn_test("process", "process", &[url, &witness.url()]);
        let mut workers: Vec<_> = (0..PROCESSES).map(spawn).collect();
        for worker in &mut workers {
            worker.expect_line("ready", SOON);
        }
        Self { workers, _witness: witness }
    }

    fn turns(&mut self) -> Vec<u32> {
        let turns = |worker: &mut Worker| {
            worker.send_line("turns");
            let said = worker.expect_line("turns", SOON);
            said.trim_start_matches("turns").trim().parse().unwrap()
        };
        self.workers.iter_mut().map(turns).collect()
    }

    /// Waits for so many more turns of each process.
    fn go_on(&mut self, turns: u32) {
        let before = self.turns();
        wait_until("all processes go on", SOON, || {
            self.turns().iter().zip(&before).all(|(now, before)| *now >= before + turns)
        });
    }

    /// What they say, of each the longest waits last.
    fn end(mut self) -> Vec<String> {
        let mut said = Vec::new();
        for worker in &mut self.workers {
            worker.send_line("end");
            loop {
                let line = worker.try_line(SOON).unwrap();
                let is_last = line.starts_with("longest");
                said.push(line);
                if is_last {
                    break;
                }
            }
        }
        said
    }
}

/// Moves the slot of contended locks so often, with a pause between the steps of each second move.
fn reshard(cluster: &Cluster, processes: &mut Processes, times: usize) {
    let slot = cluster.slot("contended");
    for round in 0..times {
        let to = cluster.another(slot);
        if round % 2 == 0 {
            cluster.move_slot(slot, to);
        } else {
            // While the keys are in two places nobody gets anything.
            cluster.begin_move(slot, to);
            thread::sleep(UNIT / 5);
            cluster.move_keys(slot, to);
            thread::sleep(UNIT / 5);
            cluster.end_move(slot, to);
        }
        processes.go_on(2);
    }
}

#[test]
fn processes_follow_a_slot_that_moves_and_no_two_hold_a_lock() {
    let _bounded = bounded();
    let Some(cluster) = cluster() else { return };
    let mut processes = Processes::start(&cluster.url());
    processes.go_on(5);
    reshard(&cluster, &mut processes, 6);
    let said = processes.end();
    println!("{said:#?}");
    assert!(said.iter().all(|line| line.starts_with("longest")), "{said:#?}");
}

#[test]
fn a_slot_moves_again_and_again() {
    let Some(seconds) = env::var("REDLATCH_SOAK").ok().and_then(|it| it.parse().ok()) else {
        return;
    };
    let Some(cluster) = with_replicas() else { return };
    let mut processes = Processes::start(&cluster.url());
    let (begun, mut moves) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(seconds) {
        reshard(&cluster, &mut processes, 10);
        moves += 10;
    }
    let turns: u32 = processes.turns().iter().sum();
    let said = processes.end();
    println!("{moves} moves, {turns} turns; longest waits in us, of {KINDS:?}: {said:#?}");
    assert!(said.iter().all(|line| line.starts_with("longest")), "{said:#?}");
}
