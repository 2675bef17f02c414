//! Connections: signals, idle ones, servers that change their role, and what answers where a server
//! should be.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{Client, Error, ErrorKind, HoldState, Lock, LockGuard, MultiLock};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

fn info(server: &Server, section: &str, field: &str) -> u64 {
    let text: String = redis::cmd("INFO").arg(section).query(&mut server.connection()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {text}")).trim().parse().unwrap()
}

fn opened(server: &Server) -> u64 {
    info(server, "stats", "total_connections_received")
}

// Signals.

/// Sends every thread of this process a thousand signals a second, until it is dropped.
#[cfg(target_os = "linux")]
struct Signals {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[cfg(target_os = "linux")]
impl Signals {
    fn start() -> Self {
        use rustix::process::{Pid, Signal, kill_process};

        // A handler as most programs have them: system calls are to go on behind it.
        let noticed = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, noticed).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                    let thread = task.file_name().to_str().unwrap().parse().unwrap();
                    // It goes to the thread of this number, which may have ended.
                    let _ = kill_process(Pid::from_raw(thread).unwrap(), Signal::USR1);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Signals {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Not in one call anything but its speed: no error, and no connection that had to be opened anew.
#[cfg(target_os = "linux")]
#[test]
fn signals_change_nothing() {
    const ROUNDS: usize = 150;
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    clients[0].semaphore("permits").try_set_permits(2).unwrap();
    clients[0].expirable_semaphore("leased").try_set_permits(2).unwrap();
    let inside = Arc::new(AtomicU64::new(0));
    let work = |client: &Client, own: String| {
        let (client, inside) = (client.clone(), Arc::clone(&inside));
        move |rounds: usize| {
            let own = client.reentrant_lock(&own);
            let (shared, fair) = (client.reentrant_lock("shared"), client.fair_lock("fair"));
            let (permits, latch) = (client.semaphore("permits"), client.count_down_latch("open"));
            let (prices, leased) =
                (client.read_write_lock("prices"), client.expirable_semaphore("leased"));
            let several =
                MultiLock::new(&[&client.fenced_lock("one"), &client.reentrant_lock("two")]);
            let (several, changed) = (several.unwrap(), shared.new_condition("changed"));
            for _ in 0..rounds {
                drop(prices.read().lock().unwrap());
                drop(prices.write().lock().unwrap());
                drop(leased.acquire().unwrap());
                several.lock().unwrap().unlock().unwrap();
                own.lock().unwrap().unlock().unwrap();
                drop(own.lock().unwrap());
                let guard = shared.lock().unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                // Left, waited for, and had again.
                changed.notify_all().unwrap();
                changed.wait_for(&guard, UNIT / 50).unwrap();
                drop(guard);
                fair.lock().unwrap().unlock().unwrap();
                drop(permits.acquire().unwrap());
                latch.wait().unwrap();
            }
        }
    };
    let run = |rounds| {
        let threads: Vec<_> = (0..4)
            .map(|at| {
                let work = work(&clients[at % 2], format!("own {at}"));
                spawn(move || work(rounds))
            })
            .collect();
        threads.into_iter().for_each(Running::join);
    };
    // Whatever is opened when it is first used: for messages, when somebody waits; for renewals, when
    // a lock that was handed on is raised to its lease.
    run(20);
    for (one, other) in [(0, 1), (1, 0)] {
        let guard = clients[one].reentrant_lock("waited for").lock().unwrap();
        let lock = clients[other].reentrant_lock("waited for");
        let mut redis = server.connection();
        let waiter = spawn(move || {
            let guard = lock.lock().unwrap();
            wait_until("it has its lease", SOON, || pttl(&mut redis, "waited for") > 2_000);
            guard.unlock().unwrap();
        });
        wait_in_line(&server, "waited for", 1);
        guard.unlock().unwrap();
        waiter.join();
    }
    let opened = || opened(&server);
    let before = opened();
    let signals = Signals::start();
    run(ROUNDS);
    drop(signals);
    // Both questions come over a connection of their own.
    assert_eq!(opened() - before, 1, "connections were opened anew");
}

// What is left behind.

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let _bounded = bounded();
    let server = server();
    let visit = || {
        let client = client(&server);
        client.reentrant_lock("visited").lock().unwrap().unlock().unwrap();
    };
    let scripts = || info(&server, "memory", "number_of_cached_scripts");
    visit();
    let (before, keys) = (scripts(), server_keys(&server));
    for _ in 0..20 {
        visit();
    }
    assert_eq!((scripts(), server_keys(&server)), (before, keys));
}

fn server_keys(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.connection()).unwrap()
}

// Idle connections.

/// A firewall drops a connection that was idle for long, and says nothing. The time is the subject.
#[test]
fn a_lane_that_was_idle_for_long_is_looked_at_before_it_is_trusted_but_not_by_a_drop() {
    let _bounded = bounded();
    let server = server();
    let mut drops = IdleDrops::of(&server);
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    let lock = client.reentrant_lock("idle");
    lock.lock().unwrap().unlock().unwrap();
    thread::sleep(Duration::from_secs(11));
    proxy.on(Direction::Request, 1, Action::Silence, |_| true);
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(proxy.fired(), 1, "the connection was still alive");
    server.pause();
    let longest = drops.drop_all();
    server.resume();
    assert!(longest < UNIT * 15, "{longest:?}");
}

/// As long as nothing is held there are no renewals. The time is the subject.
#[test]
fn the_connection_of_renewals_is_looked_at_after_it_was_idle_for_long() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = UNIT * 60;
    // Nothing but renewals.
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).client_tracking(false);
    let client = client.connect().unwrap();
    let lock = client.reentrant_lock("idle");
    let held_and_renewed = |guard: &LockGuard| {
        wait_until("a third has gone", SOON, || guard.remaining() < lease * 3 / 4);
        wait_until("it is renewed", SOON, || {
            assert_eq!(guard.state(), HoldState::Held, "each renewal succeeds");
            guard.remaining() > lease * 3 / 4
        });
    };
    let guard = lock.lock().unwrap();
    held_and_renewed(&guard);
    guard.unlock().unwrap();
    thread::sleep(Duration::from_secs(11));
    let guard = lock.lock().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    proxy.on(Direction::Request, 1, Action::Silence, move |bytes| {
        heard.lock().unwrap().extend_from_slice(bytes);
        true
    });
    held_and_renewed(&guard);
    assert_eq!(proxy.fired(), 1, "the connection was still alive");
    assert_eq!(String::from_utf8_lossy(&said.lock().unwrap()), "*1\r\n$4\r\nPING\r\n");
    guard.unlock().unwrap();
}

/// Threads with guards that share one lane, which is idle.
struct IdleDrops {
    /// Passed when all are there, and when they may drop them.
    gate: Arc<Barrier>,
    threads: Vec<Running<Duration>>,
    /// Whose end waits for the server.
    _client: Client,
}

impl IdleDrops {
    const THREADS: usize = 48;

    fn of(server: &Server) -> Self {
        let client = Client::builder(&server.url()).response_timeout(SOON / 4);
        let client = client.watchdog_timeout(LONG).connections(1).connect().unwrap();
        let gate = Arc::new(Barrier::new(Self::THREADS + 1));
        let start = |thread| {
            let (client, gate) = (client.clone(), Arc::clone(&gate));
            spawn(move || {
                let take = |at| client.reentrant_lock(&format!("{thread}:{at}")).lock().unwrap();
                let guards: Vec<_> = (0..20).map(take).collect();
                gate.wait();
                gate.wait();
                let drop_one = |guard| {
                    let begun = Instant::now();
                    drop(guard);
                    begun.elapsed()
                };
                guards.into_iter().map(drop_one).max().unwrap()
            })
        };
        let threads = (0..Self::THREADS).map(start).collect();
        gate.wait();
        Self { gate, threads, _client: client }
    }

    /// Returns the longest that one took.
    fn drop_all(&mut self) -> Duration {
        self.gate.wait();
        self.threads.drain(..).map(Running::join).max().unwrap()
    }
}

// A server that changes its role.

fn replicate(replica: &Server, master: Option<&Server>) {
    let (host, port) = match master {
        Some(master) => ("127.0.0.1", master.port().to_string()),
        None => ("NO", "ONE".to_owned()),
    };
    let () = redis::cmd("REPLICAOF").arg(host).arg(port).query(&mut replica.connection()).unwrap();
}

/// The old master takes no writes any more; the address leads to the new one.
#[test]
fn what_is_held_is_renewed_where_the_address_leads_to_now() {
    let _bounded = bounded();
    let (Some(old), Some(new)) = (real_server(), real_server()) else { return };
    let proxy = Proxy::before(&old);
    let lease = UNIT * 15;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connect().unwrap();
    replicate(&new, Some(&old));
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let lost = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&lost);
    guard.on_lost(move |_| told.store(true, Ordering::SeqCst));
    let owner = holder(&mut old.connection(), "moved");
    wait_until("it is replicated", SOON, || holder(&mut new.connection(), "moved") == owner);
    replicate(&new, None);
    replicate(&old, Some(&new));
    proxy.lead_to(&new);
    // Well past the lease that it had: it was renewed on the new one.
    let began = Instant::now();
    wait_until("a lease has passed", SOON, || began.elapsed() > lease * 2);
    assert!(guard.is_held() && !lost.load(Ordering::SeqCst));
    // The lane still leads to the old one: the release is sent again by the way that works.
    drop(guard);
    wait_free(&new, "moved", SOON);
}

/// Its answer is read when the new server was already asked for what nobody has any more.
#[test]
fn what_the_old_server_gave_back_unheard_is_given_back_to_the_new_one() {
    let _bounded = bounded();
    for dropped in [false, true] {
        let (Some(old), Some(new)) = (real_server(), real_server()) else { return };
        let proxy = Proxy::before(&old);
        let client = Client::builder(&proxy.url()).watchdog_timeout(LONG).connections(1);
        let client = client.connect().unwrap();
        let lock = client.reentrant_lock("given back");
        // From here on its scripts are known.
        lock.lock().unwrap().unlock().unwrap();
        // Its loss is to be heard of.
        let _kept = client.reentrant_lock("kept").lock_owned().unwrap();
        let guard = lock.lock_owned().unwrap();
        let mut redis = old.connection();
        let (owner, _) = holder(&mut redis, "given back").unwrap();
        let held: Vec<u8> = redis::cmd("DUMP").arg("given back").query(&mut redis).unwrap();
        let lease = LONG.as_millis() as u64;
        let () = redis::cmd("RESTORE")
            .arg(("given back", lease, held))
            .query(&mut new.connection())
            .unwrap();
        wait_subscribed(&old, &own_channel(&owner));
        proxy.on(Direction::Request, 1, Action::HoldReply, move |command| {
            let has = |text: &str| command.windows(text.len()).any(|it| it == text.as_bytes());
            has("EVAL") && has(&owner)
        });
        let leaver = spawn(move || {
            if dropped {
                drop(guard);
                // Reads the answer, as whoever comes next does.
                assert!(!lock.is_locked().unwrap());
            } else {
                guard.unlock().unwrap();
            }
        });
        proxy.wait_fired(1, SOON);
        wait_free(&old, "given back", SOON);
        proxy.lead_to(&new);
        proxy.cut_matching("SUBSCRIBE");
        // For the one that is held, and then for what nobody has.
        wait_until("the new one is asked", SOON, || Commands::so_far(&new).of("eval") > 1);
        // And has answered.
        thread::sleep(UNIT / 10);
        assert!(holder(&mut new.connection(), "given back").is_some(), "the test shows nothing");
        proxy.release();
        leaver.join();
        wait_free(&new, "given back", SOON);
    }
}

#[test]
fn a_replica_is_asked_once_and_then_the_address_anew() {
    let _bounded = bounded();
    let (Some(old), Some(new)) = (real_server(), real_server()) else { return };
    let proxy = Proxy::before(&old);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    let lock = client.reentrant_lock("moved");
    replicate(&old, Some(&new));
    proxy.lead_to(&new);
    let error = lock.lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("read-only replica"), "{error}");
    lock.lock().unwrap().unlock().unwrap();
}

/// The old master lives on, and closes no connection: who waits would listen there, and the new one,
/// which counts those who listen, would take it for dead.
#[test]
fn who_waits_listens_where_the_address_leads_to_now() {
    let _bounded = bounded();
    let (Some(old), Some(new)) = (real_server(), real_server()) else { return };
    let proxy = Proxy::before(&old);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG).connect().unwrap();
    let lock = client.reentrant_lock("waited for");
    let guard = lock.lock().unwrap();
    let (owner, _) = holder(&mut old.connection(), "waited for").unwrap();
    guard.unlock().unwrap();
    hold_as_redisson(&mut old.connection(), "waited for", LONG);
    assert!(lock.try_lock_for(UNIT).unwrap().is_none());
    wait_subscribed(&old, &own_channel(&owner));
    replicate(&new, Some(&old));
    let mut redis = new.connection();
    wait_until("it is replicated", SOON, || holder(&mut redis, "waited for").is_some());
    replicate(&new, None);
    replicate(&old, Some(&new));
    proxy.lead_to(&new);
    let waiter = spawn(move || {
        // The first question meets the old one, perhaps, which refuses it.
        let guard = lock.lock().or_else(|_| lock.lock()).unwrap();
        guard.unlock().unwrap();
    });
    wait_subscribed(&new, &own_channel(&owner));
    release_as_redisson(&mut redis, "waited for", &channel("waited for"));
    waiter.join();
}

#[test]
fn connect_refuses_a_replica_that_is_read_only_and_no_other() {
    let _bounded = bounded();
    let (Some(replica), Some(master)) = (real_server(), real_server()) else { return };
    // It never takes over the data of a master that is gone.
    master.kill();
    replicate(&replica, Some(&master));
    let error = refused(&replica.url(), SOON);
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    // It may become the master yet.
    assert!(error.is_transient());
    let message = error.to_string();
    assert!(message.contains("read-only replica: connect to the master"), "{message}");
    assert!(message.contains(&format!("127.0.0.1:{}", replica.port())), "{message}");
    let mut redis = replica.connection();
    let set = |redis: &mut redis::Connection, value| {
        redis::cmd("CONFIG").arg("SET").arg("replica-read-only").arg(value).exec(redis).unwrap();
    };
    // Somebody's decision, and everything works.
    set(&mut redis, "no");
    client(&replica).reentrant_lock("written").lock().unwrap().unlock().unwrap();
    set(&mut redis, "yes");
    let error = refused(&replica.url(), SOON);
    assert!(error.to_string().contains("read-only replica"), "{error}");
    replicate(&replica, None);
    client(&replica).reentrant_lock("promoted").lock().unwrap().unlock().unwrap();
}

/// It cannot be written there, and each new connection leads to the same server.
#[test]
fn a_release_that_a_replica_refuses_opens_few_connections() {
    let _bounded = bounded();
    let (Some(server), Some(master)) = (real_server(), real_server()) else { return };
    let client = client(&server);
    let guard = client.reentrant_lock("demoted").lock().unwrap();
    master.kill();
    replicate(&server, Some(&master));
    let before = opened(&server);
    drop(guard);
    // Time is the subject.
    thread::sleep(UNIT * 20);
    let more = opened(&server) - before;
    assert!(more < 20, "{more} connections");
    replicate(&server, None);
    wait_free(&server, "demoted", SOON);
}

/// It was the master, and what it does not know the new one may have.
#[test]
fn a_release_of_what_a_replica_does_not_know_goes_on_to_the_master() {
    let _bounded = bounded();
    let (Some(server), Some(master)) = (real_server(), real_server()) else { return };
    let client =
        Client::builder(&server.url()).watchdog_timeout(LONG).client_tracking(false).connect();
    let client = client.unwrap();
    let lock = client.read_write_lock("read or written");
    let locks: [(&str, &dyn Lock); 3] = [
        ("held", &client.reentrant_lock("held")),
        ("read or written", lock.read()),
        ("read or written", lock.write()),
    ];
    let mut redis = server.connection();
    master.kill();
    for (name, lock) in locks {
        let guard = lock.lock().unwrap();
        let hold: HashMap<String, String> = redis.hgetall(name).unwrap();
        let () = redis.del(name).unwrap();
        replicate(&server, Some(&master));
        let error = guard.unlock().unwrap_err();
        is_clear(&error, name, "read-only replica");
        replicate(&server, None);
        // It is the master that has it.
        let hold: Vec<_> = hold.into_iter().collect();
        let () = redis.hset_multiple(name, &hold).unwrap();
        let () = redis.pexpire(name, LONG.as_millis().try_into().unwrap()).unwrap();
        wait_free(&server, name, SOON);
    }
}

// A user without rights, and a process that stands still.

/// It cannot be told whether each connection leads to another run of the server.
#[test]
fn without_the_right_to_info_connections_come_to_an_end() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "uninformed");
    user.set(&["-info"]);
    let client = user.client();
    let guard = client.reentrant_lock("held").lock().unwrap();
    // Lanes, each of which may be to another server.
    for at in 0..40 {
        assert!(!client.reentrant_lock(&format!("other:{at}")).is_locked().unwrap());
    }
    let before = opened(&server);
    // Time is the subject.
    thread::sleep(UNIT * 10);
    let more = opened(&server) - before;
    assert!(more < 20, "{more} connections");
    assert!(guard.is_held());
}

/// Where this executable's workers begin.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = impatient(job.arg(0)).connections(1).connect().unwrap();
    let lock = client.reentrant_lock("stopped");
    lock.lock().unwrap().unlock().unwrap();
    job.say("ready");
    assert_eq!(job.wait_line(), "go");
    let outcome = if job.role() == "waits" {
        lock.lock().map(drop)
    } else {
        // Over a connection of its own, which is there when the request goes out.
        let other = impatient(job.arg(0)).connections(1).connect().unwrap();
        let other = other.reentrant_lock("too");
        MultiLock::new(&[&lock, &other]).unwrap().lock().map(drop)
    };
    job.say(&format!("outcome {outcome:?}"));
    job.done();
}

#[test]
fn a_process_that_is_stopped_while_it_waits_finds_the_reply() {
    finds_the_reply("waits");
}

/// Of one it reads the reply, the other's lies there meanwhile.
#[test]
fn a_process_that_is_stopped_while_it_waits_for_several_finds_all_replies() {
    finds_the_reply("waits for several");
}

fn finds_the_reply(role: &str) {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let mut worker = Worker::spawn_test("worker", role, &[&proxy.url()]);
    worker.expect_line("ready", SOON);
    proxy.on_request("stopped", Action::HoldReply);
    worker.send_line("go");
    proxy.wait_fired(1, SOON);
    worker.sigstop();
    proxy.release();
    // Time is the subject.
    thread::sleep(IMPATIENT * 3);
    worker.sigcont();
    assert_eq!(worker.expect_line("outcome", SOON), "Ok(())");
    assert!(worker.wait_exit(SOON).success());
}

// What answers where a server should be.

/// As many wait to be let in as may.
#[cfg(target_os = "linux")]
#[test]
fn a_unix_socket_that_is_full_is_waited_for() {
    use socket2::{Domain, SockAddr, Socket, Type};

    let _bounded = bounded();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.sock");
    let address = SockAddr::unix(&path).unwrap();
    let socket = || Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let listener = socket();
    listener.bind(&address).unwrap();
    listener.listen(0).unwrap();
    let connect = || {
        let other = socket();
        other.set_nonblocking(true).unwrap();
        other.connect(&address).map(|()| other)
    };
    let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).collect();
    let (begun, within) = (Instant::now(), UNIT * 5);
    refused(&format!("redis+unix://{}", path.display()), within);
    assert!(begun.elapsed() >= within, "after {:?}", begun.elapsed());
    drop(waiting);
}

/// Answers each connection on a port of its own in this way, until it is dropped.
struct Stranger {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stranger {
    /// `answer` is given what the client said and returns what it is told, again and again.
    fn start(answer: impl Fn(&mut TcpStream, &AtomicBool) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(UNIT)).unwrap();
                answer(&mut stream, &stopped);
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// The error of a client that connects to it within so long, and a little.
    fn connect(&self, within: Duration) -> Error {
        refused(&format!("redis://{}", self.address), within)
    }
}

fn refused(url: &str, within: Duration) -> Error {
    let begun = Instant::now();
    let builder = Client::builder(url).connect_timeout(within).response_timeout(within);
    let error = builder.connect().map(drop).unwrap_err();
    assert!(begun.elapsed() < within + SOON / 10, "it took {:?}: {error}", begun.elapsed());
    error
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _wake = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_server_that_dribbles_is_given_the_connect_timeout_and_no_more() {
    let _bounded = bounded();
    let dribbler = Stranger::start(|stream, stop| {
        // A bulk string that never ends.
        let _ = stream.write_all(b"$100000\r\n");
        while !stop.load(Ordering::SeqCst) && stream.write_all(b"x").is_ok() {
            thread::sleep(UNIT);
        }
    });
    let error = dribbler.connect(UNIT * 5);
    assert_eq!(error.kind(), ErrorKind::Redis);
    assert!(error.to_string().contains("connect_timeout"), "{error}");
}

#[test]
fn a_server_that_accepts_and_is_silent_is_said_to_be_silent() {
    let _bounded = bounded();
    let silent = Stranger::start(|_, stop| {
        while !stop.load(Ordering::SeqCst) {
            thread::sleep(UNIT / 10);
        }
    });
    let error = format!("{:?}", silent.connect(UNIT * 3));
    assert!(error.contains("did not answer in time"), "{error}");
    assert!(!error.contains("temporarily unavailable"), "{error}");
}

#[test]
fn what_answers_ok_to_everything_is_no_redis() {
    let _bounded = bounded();
    for reply in [&b"+OK\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail\r\n"] {
        let stranger = Stranger::start(move |stream, stop| {
            let mut said = [0; 4096];
            while !stop.load(Ordering::SeqCst) {
                match stream.read(&mut said) {
                    Ok(0) => return,
                    Ok(_) if stream.write_all(reply).is_err() => return,
                    _ => {}
                }
            }
        });
        let error = stranger.connect(UNIT * 10);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains("no Redis server"), "{error}");
    }
}

/// As a Valkey that was built without.
#[test]
fn a_server_that_knows_the_commands_and_runs_no_script_is_found_out() {
    let _bounded = bounded();
    let stranger = Stranger::start(|stream, stop| {
        let mut said = [0; 4096];
        while !stop.load(Ordering::SeqCst) {
            let reply = match stream.read(&mut said) {
                Ok(0) => return,
                Ok(length) if contains(&said[..length], "EVAL") => {
                    "-ERR Could not find scripting engine 'lua'\r\n"
                }
                Ok(_) => "$21\r\nredis_version:9.1.0\r\n\r\n",
                Err(_) => continue,
            };
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    });
    let error = stranger.connect(UNIT * 10);
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    assert!(error.to_string().contains("redlatch needs Lua scripts"), "{error}");
    assert!(format!("{error:#}").contains("scripting engine"), "{error:#}");
}

/// Redis says it to whoever comes from another machine, unasked, and hangs up.
#[test]
fn a_server_in_protected_mode_says_so() {
    let _bounded = bounded();
    let stranger = Stranger::start(|stream, _| {
        let denied =
            b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n";
        // Who hangs up first may lose it.
        let _ = (stream.write_all(denied), stream.read(&mut [0; 4096]));
    });
    let error = stranger.connect(UNIT * 10);
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    assert!(error.to_string().contains("protected mode"), "{error}");
    assert!(error.to_string().contains(&stranger.address.to_string()), "{error}");
    assert!(!error.is_transient(), "{error}");
}

#[test]
fn a_server_that_is_too_old_says_so() {
    let _bounded = bounded();
    let stranger = Stranger::start(|stream, stop| {
        let mut said = [0; 4096];
        while !stop.load(Ordering::SeqCst) {
            match stream.read(&mut said) {
                Ok(0) => return,
                Ok(_) if stream.write_all(b"$22\r\nredis_version:6.0.16\r\n\r\n").is_err() => {
                    return;
                }
                _ => {}
            }
        }
    });
    let error = stranger.connect(UNIT * 10);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let said = error.to_string();
    assert!(said.contains("6.0.16") && said.contains("6.2.0 or later"), "{said}");
    assert!(said.contains(&stranger.address.to_string()), "{said}");
}

/// A Sentinel of the system's, which ends with the test.
struct Sentinel {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    /// `None`: this server's program cannot be one.
    fn start(server: &Server) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let file = folder.path().join("sentinel.conf");
        let master = server.port();
        std::fs::write(
            &file,
            format!("port {port}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 {master} 1\n"),
        )
        .unwrap();
        let child = Command::new(server.program())
            .arg(&file)
            .arg("--sentinel")
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let sentinel = Self { child, port, _folder: folder };
        let until = Instant::now() + SOON / 4;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > until {
                return None;
            }
            thread::sleep(UNIT / 10);
        }
        Some(sentinel)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As by CLIENT KILL, or a server that is just starting. Nothing but questions was sent.
#[test]
fn what_is_cut_off_while_it_is_opened_is_opened_once_more() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let greets = |bytes: &[u8]| bytes.windows(4).any(|window| window == b"INFO");
    for action in [Action::LoseRequest, Action::LoseReply] {
        let fired = proxy.fired();
        proxy.on(Direction::Request, 1, action, greets);
        let client = impatient(&proxy.url()).connections(1).connect().unwrap();
        assert_eq!(proxy.fired(), fired + 1);
        // The one that callers share is opened anew, and cut off again.
        assert_eq!(proxy.cut_matching("EVALSHA"), 1);
        proxy.on(Direction::Request, 1, action, greets);
        client.reentrant_lock("opened").lock().unwrap().unlock().unwrap();
        assert_eq!(proxy.fired(), fired + 2);
    }
    // Once, and not again and again.
    let fired = proxy.fired();
    proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, greets);
    refused(&proxy.url(), SOON);
    assert_eq!(proxy.fired(), fired + 2);
    proxy.clear_rules();
}

#[test]
fn a_sentinel_is_said_to_be_one() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let Some(sentinel) = Sentinel::start(&server) else {
        eprintln!("left out: {} cannot be a Sentinel", server.program().display());
        return;
    };
    let error = refused(&format!("redis://127.0.0.1:{}", sentinel.port), SOON);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("Sentinel"), "{error}");
}

#[test]
fn a_server_that_lets_in_and_then_stops_answering_is_not_out_of_reach() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    proxy.on_request("EVAL", Action::Silence);
    let url = proxy.url();
    let error = impatient(&url).connect().map(drop).unwrap_err();
    assert!(error.to_string().contains("response_timeout"), "{error}");
    assert!(error.is_transient() && !error.outcome_unknown(), "{error}");
}

#[test]
fn a_server_that_is_full_says_so() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).query(&mut redis).unwrap();
    for _ in 0..5 {
        let error = refused(&server.url(), SOON);
        assert!(error.to_string().contains("maxclients"), "{error}");
    }
    let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", "100"]).query(&mut redis).unwrap();
    client(&server).reentrant_lock("let in").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_without_scripts_is_found_out_at_once() {
    let _bounded = bounded();
    for command in ["EVAL", "EVALSHA"] {
        let Ok(server) = Server::with_args(&["--rename-command", command, "hidden"]) else {
            eprintln!("left out: this server cannot rename commands");
            return;
        };
        let error = refused(&server.url(), SOON);
        assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
        assert!(error.to_string().contains("redlatch needs Lua scripts"), "{error}");
    }
    let Some(server) = real_server() else { return };
    for forbidden in ["-eval", "-evalsha"] {
        let user = [forbidden.strip_prefix('-').unwrap(), "on", ">word", "~*", "&*", "+@all"];
        let () = redis::cmd("ACL")
            .arg("SETUSER")
            .arg(&user)
            .arg(forbidden)
            .query(&mut server.connection())
            .unwrap();
        let url = server.url().replace("redis://", &format!("redis://{}:word@", user[0]));
        let error = refused(&url, SOON).to_string();
        assert!(error.contains("redlatch needs Lua scripts") && error.contains("ACL"), "{error}");
        assert!(!error.contains("word@"), "{error}");
    }
}

#[test]
fn a_wrong_password_and_a_missing_one_are_told_apart() {
    let _bounded = bounded();
    let Ok(server) = Server::builder().password("secret").start() else { return };
    let host = format!("127.0.0.1:{}", server.port());
    let missing = refused(&format!("redis://{host}"), SOON).to_string();
    assert!(missing.contains("wants a password"), "{missing}");
    for protocol in ["", "?protocol=resp3"] {
        let wrong = refused(&format!("redis://:guess@{host}/{protocol}"), SOON).to_string();
        assert!(wrong.contains("refuses the user or password"), "{wrong}");
        assert!(!wrong.contains("guess"), "{wrong}");
        let none = refused(&format!("redis://:secret@{host}/99{protocol}"), SOON).to_string();
        assert!(none.contains("no database"), "{none}");
        let url = format!("redis://:secret@{host}/2{protocol}");
        let client = Client::connect(&url).unwrap();
        client.reentrant_lock("database").lock().unwrap().unlock().unwrap();
    }
}

/// However many wait for one connection to a server that is silent, each has its error in time.
#[test]
fn a_call_that_waits_for_others_ends_in_time() {
    let _bounded = bounded();
    let server = server();
    let timeout = UNIT * 5;
    let client = Client::builder(&server.url())
        .connections(1)
        .connect_timeout(timeout)
        .response_timeout(timeout)
        .connect()
        .unwrap();
    client.reentrant_lock("hung").is_locked().unwrap();
    server.pause();
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let lock = client.reentrant_lock("hung");
            spawn(move || {
                let begun = Instant::now();
                for _ in 0..2 {
                    assert_eq!(lock.is_locked().unwrap_err().kind(), ErrorKind::Redis);
                }
                begun.elapsed()
            })
        })
        .collect();
    let longest = threads.into_iter().map(Running::join).max().unwrap();
    server.resume();
    // Two calls, each for twice the two timeouts at the most.
    assert!(longest < timeout * 8 + UNIT * 5, "{longest:?}");
}

/// Each connection takes its time to open, and breaks with the first command's reply.
#[test]
fn a_call_whose_connections_break_one_after_the_other_ends_in_time() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    client.reentrant_lock("warm").lock().unwrap().unlock().unwrap();
    // There and back: nine tenths of each timeout.
    proxy.set_delay(IMPATIENT * 9 / 20);
    proxy.on(Direction::Request, usize::MAX, Action::LoseReply, |bytes| {
        bytes.windows(6).any(|window| window == b"broken")
    });
    let threads: Vec<_> = (0..4)
        .map(|at| client.reentrant_lock(&format!("broken:{at}")))
        .map(|lock| {
            spawn(move || {
                let begun = Instant::now();
                assert!(lock.lock().is_err());
                begun.elapsed()
            })
        })
        .collect();
    // Three times the sum of the two timeouts, and some for a busy machine.
    for took in threads.into_iter().map(Running::join) {
        assert!(took < IMPATIENT * 25 / 4, "{took:?}");
    }
    proxy.clear_rules();
    proxy.set_delay(Duration::ZERO);
}
