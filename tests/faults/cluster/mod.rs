//! Redis Cluster: every synchronizer, slots that move while they are used, and masters that die.

// With `REDLATCH_SOAK=600` slots move for 600 seconds: `cargo test --test faults slot_moves_again
// -- --nocapture`.

mod addresses;
mod failover;
mod lazy;
mod moves;
mod parties;
mod processes;
mod tracking;
mod wanted;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    LONG_LEASE, MIN_POLL_INTERVAL, SHORT_LEASE, TIME_UNIT, TIMEOUT, Vault, bound, has_own_process,
    once_within, server, spawn, unbounded_server, wait_all_renewed, wait_until,
    without_room_for_threads, woken_by_message,
};
use redis::Commands as _;
use redlatch::{CancelToken, Client, ErrorKind, HoldState, Lock, MultiLock, Script, Wait};
use redlatch_testkit::{Cluster, Job, Server, Worker};

fn cluster() -> Cluster {
    bound();
    Cluster::without_replicas().unwrap()
}

fn client(cluster: &Cluster) -> Client {
    Client::builder(&cluster.url()).watchdog_timeout(LONG_LEASE).connect().unwrap()
}

fn with_replicas() -> Cluster {
    bound();
    Cluster::start().unwrap()
}

/// Returns two clients, one for each protocol. The two clients use sharded channels, or neither of
/// them does.
fn clients(cluster: &Cluster, sharded: bool) -> [Client; 2] {
    // In RESP3, the second client's protocol, messages and replies have different types.
    ["2", "3"].map(|protocol| {
        Client::builder(&format!("{}?protocol={protocol}", cluster.url()))
            .watchdog_timeout(LONG_LEASE)
            .sharded_channels(sharded)
            .connect()
            .unwrap()
    })
}

/// Returns names in slots of different servers.
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

/// The number of keys that a server tracks.
fn tracked(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn a_script_may_use_only_keys_of_the_locks_slot_and_finds_it_after_a_move() {
    let cluster = cluster();
    let script = Script::new("return redis.call('incr', KEYS[1])");
    for client in clients(&cluster, true) {
        for name in names(&cluster) {
            let guard = client.reentrant_lock(&name).lock().unwrap();
            let (own, other) = (format!("{{{name}}}:number"), format!("{{{name}x}}:number"));
            for keys in [&[&*other][..], &[&*own, &*other]] {
                let error = guard.eval(&script, keys, &[]).unwrap_err();
                // The client itself refuses the script. An error of the server would have another
                // kind.
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                assert!(error.to_string().contains(&other), "{error}");
            }
            let first = guard.eval(&script, &[&own], &[]).unwrap().as_int().unwrap();
            let slot = cluster.slot(&name);
            cluster.move_slot(slot, cluster.another(slot));
            let moved = guard.eval(&script, &[&own], &[]).unwrap().as_int();
            assert_eq!(moved, Some(first + 1));
            guard.unlock().unwrap();
        }
    }
}

#[test]
fn every_synchronizer_works_at_every_server() {
    let cluster = with_replicas();
    let names = names(&cluster);
    for sharded in [true, false] {
        let [one, other] = clients(&cluster, sharded);
        for name in &names {
            let lock = one.reentrant_lock(name);
            let guard = lock.lock().unwrap();
            let nested = lock.lock().unwrap();
            assert!(other.reentrant_lock(name).try_lock().unwrap().into_option().is_none());
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
            let first = ours.reader().lock().unwrap();
            theirs.reader().lock().unwrap().unlock().unwrap();
            assert!(theirs.writer().try_lock().unwrap().into_option().is_none());
            let writer = theirs.writer().clone();
            let waiting = spawn(move || writer.lock_owned().unwrap());
            waiting.wait_asleep();
            first.unlock().unwrap();
            let writes = waiting.join();
            let reader = ours.reader().clone();
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
                lock.condition("some {condition}").wait(&guard).unwrap();
            });
            waiting.wait_asleep();
            let lock = one.reentrant_lock(&format!("{name}:guarded"));
            let condition = lock.condition("some {condition}");
            wait_until("the other waits", TIMEOUT, || {
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
        assert!(all(&other).try_lock().unwrap().into_option().is_none());
        let waiter = all(&other);
        let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
        waiting.wait_asleep();
        guard.unlock().unwrap();
        waiting.join();
    }
}

#[test]
fn a_waiter_is_woken_by_a_message() {
    let cluster = cluster();
    for sharded in [true, false] {
        let [one, other] = clients(&cluster, sharded);
        for name in &names(&cluster) {
            let lock = one.reentrant_lock(name);
            let round = || {
                let guard = lock.lock().unwrap();
                let waiter = other.reentrant_lock(name);
                let waiting = spawn(move || drop(waiter.lock().unwrap()));
                waiting.wait_queued();
                guard.unlock().unwrap();
                waiting.join();
            };
            // In the first wait the client subscribes. In the other waits it gets messages.
            round();
            woken_by_message(round);
        }
    }
}

#[test]
fn a_name_whose_keys_would_be_apart_is_refused_with_a_word() {
    let cluster = cluster();
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
    let server = server();
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

/// Threads of two clients that contend for one lock, with a record of the threads that have it.
struct Contest {
    over: Arc<AtomicBool>,
    inside: Arc<AtomicU32>,
    together: Arc<AtomicUsize>,
    turns: Arc<AtomicUsize>,
    threads: Vec<crate::common::Running<()>>,
}

impl Contest {
    /// If `loses` is true, holds may be lost without a fault.
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
                    while !over.load(Ordering::SeqCst) {
                        let guard = if fair { queued.lock() } else { plain.lock() }.unwrap();
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
                }));
            }
        }
        contest
    }

    /// Waits for this number of further turns. A holder that did not know of its hold would keep
    /// the lock for a minute.
    fn go_on(&self, turns: usize) {
        let until = self.turns.load(Ordering::SeqCst) + turns;
        wait_until("the threads go on", TIMEOUT, || self.turns.load(Ordering::SeqCst) >= until);
    }

    fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(crate::common::Running::join);
        assert_eq!(self.together.load(Ordering::SeqCst), 0, "two held it together");
    }
}

#[test]
fn a_lock_counts_when_a_replica_of_its_slots_master_has_it() {
    let cluster = with_replicas();
    let client = Client::builder(&cluster.url())
        .watchdog_timeout(LONG_LEASE)
        .replica_acks(1, 20 * TIME_UNIT)
        .connect()
        .unwrap();
    let replica = |name: &str| {
        let port = cluster.home(name).port();
        let at = cluster.servers().iter().position(|server| server.port() == port).unwrap();
        &cluster.servers()[at + 3]
    };
    let names = names(&cluster);
    // A master may take a second to count a new replica.
    for name in &names {
        let lock = client.reentrant_lock(name);
        wait_until("its replica counts", TIMEOUT, || {
            lock.try_lock().is_ok_and(|guard| guard.into_option().unwrap().unlock().is_ok())
        });
    }
    for name in &names {
        let guard = client.reentrant_lock(name).lock().unwrap();
        let mut redis = replica(name).connection();
        redis::cmd("READONLY").exec(&mut redis).unwrap();
        assert!(redis.exists::<_, bool>(name).unwrap(), "{name}");
        guard.unlock().unwrap();
    }
    // One master has lost its replica, and the other masters have theirs.
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
    bound();
    let cluster = Cluster::with_password("word").unwrap();
    let url = cluster.url().replace("://", "://:word@");
    let client = Client::builder(&url).watchdog_timeout(LONG_LEASE).connect().unwrap();
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

/// The client uses the user of the URL even for servers that the cluster names.
#[test]
fn the_urls_user_is_that_of_all_servers() {
    let cluster = cluster();
    for server in cluster.servers() {
        let rules = ["SETUSER", "app", "on", ">word", "~*", "&*", "+@all"];
        redis::cmd("ACL").arg(&rules).exec(&mut server.connection()).unwrap();
    }
    // The URL names one server only.
    let url = cluster.servers()[0].url().replace("redis://", "redis-cluster://app:word@");
    let clients =
        [(); 2].map(|()| Client::builder(&url).watchdog_timeout(LONG_LEASE).connect().unwrap());
    for name in names(&cluster) {
        let guard = clients[0].reentrant_lock(&name).lock().unwrap();
        let waiter = clients[1].reentrant_lock(&name);
        let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
        waiting.wait_queued();
        let list: String =
            redis::cmd("CLIENT").arg("LIST").query(&mut cluster.home(&name).connection()).unwrap();
        for client in &clients {
            let mut own = list.lines().filter(|line| line.contains(client.id())).peekable();
            assert!(own.peek().is_some(), "no connection of {}: {list}", client.id());
            assert!(own.all(|line| line.contains(" user=app ")), "{list}");
        }
        guard.unlock().unwrap();
        waiting.join();
    }
}

/// All servers get new passwords, including a server to which a slot has moved.
#[test]
fn holds_outlast_new_passwords_and_the_move_of_a_slot() {
    let cluster = cluster();
    let servers = cluster.servers();
    let vault = Vault::new(None);
    vault.add(servers, "first");
    let client = vault.asked_by(Client::builder(&cluster.url()));
    let client = client.watchdog_timeout(SHORT_LEASE * 3).connect().unwrap();
    let names = names(&cluster);
    let guards: Vec<_> = names.iter().map(|it| client.reentrant_lock(it).lock().unwrap()).collect();
    let renewed = || wait_all_renewed(names.iter().map(|name| (cluster.home(name), name.clone())));
    let change = |old, new| {
        vault.add(servers, new);
        Vault::remove(servers, old);
        let before = vault.asked();
        Vault::hang_up(servers);
        renewed();
        assert!(vault.asked() > before);
        for name in &names {
            client.reentrant_lock(&format!("{{{name}}}:more")).lock().unwrap().unlock().unwrap();
        }
    };
    change("first", "second");
    let slot = cluster.slot(&names[0]);
    cluster.move_slot(slot, cluster.another(slot));
    change("second", "third");
    for guard in guards {
        guard.unlock().unwrap();
    }
}
