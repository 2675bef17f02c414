//! The lines of the log. A logger that blocks must not stop other threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use log::{Level, LevelFilter, Log, Metadata, Record};
use redis::Commands as _;
use redlatch::{CancelToken, Client, ClientBuilder, ErrorKind, Lock};
use redlatch_testkit::{Action, Cluster, Direction, Proxy, Server};

/// The logger of this process. A test can make it block.
static LOGGER: Logger = Logger { state: Mutex::new(State::NEW), changed: Condvar::new() };

struct Logger {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    lines: Vec<(Level, String)>,
    blocks: bool,
    panics: bool,
}

impl State {
    const NEW: Self = Self { lines: Vec::new(), blocks: false, panics: false };
}

impl Logger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, blocks: bool, panics: bool) {
        let mut state = self.state();
        (state.blocks, state.panics) = (blocks, panics);
        self.changed.notify_all();
    }

    fn lines(&self, about: &str) -> Vec<(Level, String)> {
        self.state().lines.iter().filter(|(_, line)| line.contains(about)).cloned().collect()
    }

    /// Installs the logger if necessary, and removes the lines of earlier tests.
    fn install(&'static self) {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            log::set_logger(self).unwrap();
            log::set_max_level(LevelFilter::Trace);
        });
        *self.state() = State::NEW;
    }
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let own = record.target().split("::").next() == Some("redlatch");
        if !own {
            return;
        }
        let mut line = record.args().to_string();
        if record.target() != "redlatch" || thread::current().name() != Some("redlatch-calls") {
            line = format!("NOT AS DOCUMENTED: {} {line}", record.target());
        }
        let mut state = self.state();
        while state.blocks {
            state = self.changed.wait(state).unwrap();
        }
        state.lines.push((record.level(), line));
        let panics = state.panics;
        drop(state);
        assert!(!panics, "as println! does on an output that was closed");
    }

    fn flush(&self) {}
}

/// Returns the log's lines about outages.
fn outages() -> Vec<(Level, String)> {
    let mut lines = LOGGER.lines("the server at");
    lines.retain(|(_, line)| {
        line.contains("cannot be reached or does not answer") || line.contains("answers again")
    });
    lines
}

#[track_caller]
fn wait_outages(count: usize) {
    let since = Instant::now();
    while outages().len() < count {
        assert!(since.elapsed() < SOON, "{count} of these: {:?}", LOGGER.lines(""));
        thread::sleep(UNIT / 50);
    }
    assert_eq!(outages().len(), count, "{:?}", outages());
}

/// Returns a client with many connections, a subscription and a renewed hold.
fn busy_client(server: &Server, url: &str) -> Client {
    busy(server, impatient(url), RENEWED)
}

/// Does the same as [`busy_client`], but the client waits for replies for longer than a busy
/// machine delays them. (For replies to renewals, this wait is a sixth of the lease.)
fn patient_busy_client(server: &Server) -> Client {
    let patient = impatient(&server.url()).response_timeout(SOON).connect_timeout(SOON);
    busy(server, patient, RENEWED * 4)
}

fn busy(server: &Server, builder: ClientBuilder, lease: Duration) -> Client {
    let client = builder.watchdog_timeout(lease).connections(8).connect().unwrap();
    hold_as_redisson(&mut server.connection(), "foreign", LONG);
    assert!(
        answered(|| client.reentrant_lock("foreign").try_lock_for(UNIT / 2))
            .into_option()
            .is_none()
    );
    client.reentrant_lock("kept").lock().unwrap().forget();
    client
}

#[test]
fn an_outage_is_one_warning_and_its_end_is_one_line() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    // The client does not use the server's port: another server may take that port while this
    // server is down.
    let client = busy_client(&server, &server.unix_url());
    for round in 1..=2 {
        server.kill();
        // Many threads meet the outage, on all connections.
        let threads: Vec<_> = (0..16)
            .map(|at| client.reentrant_lock(&format!("name:{at}")))
            .map(|lock| spawn(move || assert!(lock.lock().is_err())))
            .collect();
        threads.into_iter().for_each(Running::join);
        wait_outages(2 * round - 1);
        server.restart_empty();
        client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
        wait_outages(2 * round);
    }
    // If more lines came, they would come within this time.
    thread::sleep(UNIT * 3);
    let lines = outages();
    let levels: Vec<_> = lines.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::Warn, Level::Info, Level::Warn, Level::Info], "{lines:?}");
    assert!(lines[0].1.contains("refused") || lines[0].1.contains("reset"), "{lines:?}");
    assert!(lines[1].1.contains("answers again"), "{lines:?}");
    assert_eq!(LOGGER.lines("NOT AS DOCUMENTED"), []);
}

#[test]
fn a_server_that_does_not_answer_is_an_outage() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let client = busy_client(&server, &server.url());
    server.pause();
    assert!(client.reentrant_lock("silent").lock().is_err());
    wait_outages(1);
    server.resume();
    client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
    wait_outages(2);
    let lines = outages();
    let address = format!("the server at 127.0.0.1:{}", server.port());
    assert!(lines.iter().all(|(_, line)| line.contains(&address)), "{lines:?}");
    assert_eq!((lines[0].0, lines[1].0), (Level::Warn, Level::Info), "{lines:?}");
}

/// The clients notice the outage, and its end, one after the other.
#[test]
fn an_outage_is_logged_once_for_all_clients_of_a_process() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let clients = [(); 3].map(|()| impatient(&server.unix_url()).connect().unwrap());
    let fail = |client: &Client| assert!(client.reentrant_lock("name").lock().is_err());
    for round in 1..=2 {
        server.kill();
        clients.iter().for_each(fail);
        wait_outages(2 * round - 1);
        server.restart_empty();
        for client in &clients {
            client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
        }
        wait_outages(2 * round);
    }
    // The client that reported the outage ends first. Another client reports the end of the outage.
    server.kill();
    clients.iter().for_each(fail);
    let mut clients = clients.into_iter();
    clients.next().unwrap().shutdown();
    assert_eq!(LOGGER.lines("no longer asks the server"), []);
    clients.for_each(|client| client.shutdown());
    wait_until("the end is told", SOON, || !LOGGER.lines("no longer asks the server").is_empty());
    thread::sleep(UNIT * 3);
    wait_outages(5);
    let lines = LOGGER.lines("no longer asks the server");
    assert!(matches!(&lines[..], [(Level::Info, line)] if line.contains("client")), "{lines:?}");
}

/// The client has no holds and no waiters.
#[test]
fn the_end_of_an_outage_is_logged_though_no_call_is_made() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    server.pause();
    assert!(client.reentrant_lock("silent").lock().is_err());
    wait_outages(1);
    server.resume();
    wait_outages(2);
    assert!(outages()[1].1.contains("answers again"));

    let mut redis = server.connection();
    let mut tell = |command: &[&str]| {
        redis::cmd(command[0]).arg(&command[1..]).exec(&mut redis).unwrap();
    };
    tell(&["CONFIG", "SET", "maxclients", "1"]);
    tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert!(client.reentrant_lock("refused").lock().is_err());
    wait_until("it is said", SOON, || !LOGGER.lines("accepts no more connections").is_empty());
    tell(&["CONFIG", "SET", "maxclients", "1000"]);
    wait_until("its end is said", SOON, || !LOGGER.lines("accepts connections again").is_empty());
    wait_outages(2);
}

/// Afterwards the master's replica has the slots.
#[test]
fn the_outage_of_a_master_that_never_comes_back_ends_with_one_line() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    bound();
    let Ok(cluster) = Cluster::start() else {
        eprintln!("left out: no cluster can be had");
        return;
    };
    let connect = || Client::builder(&cluster.url()).response_timeout(UNIT * 5).connect().unwrap();
    let clients = [connect(), connect()];
    let slot = cluster.slot("moved");
    let old = cluster.owner(slot);
    let lock = |client: &Client| client.reentrant_lock("moved").lock().unwrap().unlock().unwrap();
    clients.iter().for_each(lock);
    old.kill();
    for client in &clients {
        // This call makes the client ask the server while the old master is down and the replica is
        // not the master yet.
        let _late = client.reentrant_lock("moved").try_lock();
    }
    cluster.wait_taken_over(slot, old);
    clients.iter().for_each(lock);
    let lines = || LOGGER.lines("no longer asks the server");
    wait_until("the end is told", SOON, || !lines().is_empty());
    // The client does not ask the old server again, and the log gets no further line about this
    // server.
    thread::sleep(UNIT * 40);
    wait_outages(1);
    let lines = lines();
    let address = format!("the server at 127.0.0.1:{}", old.port());
    assert!(
        matches!(&lines[..], [(Level::Info, line)] if line.contains(&address) && line.contains("slot")),
        "{lines:?}"
    );
}

/// If each lost hold were a line, the first thousand lines would hide all other lines.
#[test]
fn ten_thousand_lost_holds_are_logged_as_one_line() {
    const HOLDS: usize = 10_000;
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let client = Client::builder(&server.url()).watchdog_timeout(LONG).connect().unwrap();
    let lost = Arc::new(AtomicUsize::new(0));
    for at in 0..HOLDS {
        let guard = client.reentrant_lock(&format!("name:{at}")).lock().unwrap();
        let lost = Arc::clone(&lost);
        guard.on_lost(move |_| _ = lost.fetch_add(1, Ordering::SeqCst));
        guard.forget();
    }
    server.kill();
    server.restart_empty();
    client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
    wait_until("all are lost", SOON, || lost.load(Ordering::SeqCst) == HOLDS);
    let lines = || LOGGER.lines(" lost: ");
    wait_until("it is said", SOON, || !lines().is_empty());
    // If more lines came, they would come within this time.
    thread::sleep(UNIT * 5);
    let lines = lines();
    // If the machine stands still in the meantime, there may be up to three lines.
    assert!((1..=3).contains(&lines.len()), "{} lines: {lines:?}", lines.len());
    let (level, line) = &lines[0];
    assert!(*level == Level::Warn && line.contains("the holds of \"name:"), "{line}");
    assert!(line.contains(" more were lost: "), "{line}");
}

#[test]
fn a_server_that_does_not_tell_of_changes_is_one_line() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let mut user = User::new(&server, "untold");
    user.set(&["-client"]);
    let without = |command| Server::with_args(&["--rename-command", command, ""]).unwrap();
    let (no_client, no_hello) = (without("CLIENT"), without("HELLO"));
    let lines = || LOGGER.lines("does not notify the client of changed keys");
    for (url, expected) in
        [(user.url(), 1), (&no_client.url(), 2), (&no_hello.url(), 3), (&server.url(), 3)]
    {
        let client = Client::connect(url).unwrap();
        let held = ["one", "other"].map(|name| client.reentrant_lock(name).lock().unwrap());
        // Time must pass here: enough for all holds to be tracked, and for the line.
        thread::sleep(UNIT * 5);
        wait_until("it is said", SOON, || lines().len() >= expected);
        drop(held);
    }
    assert_eq!(lines().iter().map(|(level, _)| *level).collect::<Vec<_>>(), [Level::Info; 3]);
}

#[test]
fn a_connection_that_breaks_alone_is_no_outage() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let client = patient_busy_client(&server);
    let mut redis = server.connection();
    for kind in ["normal", "pubsub"] {
        let mut kill = redis::cmd("CLIENT");
        let _: u64 = kill.arg("KILL").arg("TYPE").arg(kind).query(&mut redis).unwrap();
    }
    for at in 0..16 {
        client.reentrant_lock(&format!("name:{at}")).lock().unwrap().unlock().unwrap();
    }
    wait_renewed(&server, "kept");
    client.shutdown();
    assert_eq!(outages(), []);
}

/// The client's other connections work.
#[test]
fn a_server_that_lets_no_further_connection_in_is_no_outage() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let mut redis = server.connection();
    let client = patient_busy_client(&server);
    let lock = client.reentrant_lock("name");
    lock.lock().unwrap().unlock().unwrap();
    let foreign = client.reentrant_lock("foreign");
    let waiting =
        spawn(move || foreign.try_lock_for(LONG).map(|guard| guard.into_option().is_some()));
    waiting.wait_asleep();
    let set = |redis: &mut redis::Connection, most: &str| {
        let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", most]).query(redis).unwrap();
    };
    set(&mut redis, "1");
    // The subscriber tries to connect again and again.
    let _: i64 = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut redis).unwrap();
    wait_until("it is said", SOON, || !LOGGER.lines("accepts no more connections").is_empty());
    let since = Instant::now();
    while since.elapsed() < UNIT * 30 {
        lock.lock().unwrap().unlock().unwrap();
        thread::sleep(UNIT / 10);
    }
    set(&mut redis, "1000");
    let _: i64 = redis.del("foreign").unwrap();
    assert!(waiting.join().unwrap());
    wait_until("its end is said", SOON, || !LOGGER.lines("accepts connections again").is_empty());
    assert_eq!(outages(), []);
    let refusals = LOGGER.lines("accepts no more connections");
    assert!(
        matches!(&refusals[..], [(Level::Warn, line)] if line.contains("max number of clients"))
    );
    assert_eq!(LOGGER.lines("accepts connections again").len(), 1);
    client.shutdown();
}

#[test]
fn a_right_that_every_wait_needs_is_missed_aloud_once() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let mut user = User::new(&server, "mute");
    let client = user.client();
    let mut names = (0..).map(|at| format!("foreign:{at}"));
    // For each new channel, the client sends a message to its subscriber.
    let mut wait = |times| {
        for name in names.by_ref().take(times) {
            hold_as_redisson(&mut server.connection(), &name, LONG);
            let _late = client.reentrant_lock(&name).try_lock_for(UNIT / 4);
        }
    };
    let refusals = || LOGGER.lines("control message was refused").len();
    // After these waits, each connection has checked its rights.
    wait(12);
    for round in 1..=2 {
        user.set(&["-publish"]);
        wait(5);
        wait_until("it is said", SOON, || refusals() >= round);
        wait(5);
        assert_eq!(refusals(), round, "{:?}", LOGGER.lines("refused"));
        user.set(&["+publish"]);
        wait(2);
    }
}

#[test]
fn a_release_without_its_message_is_logged_once() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    // The second copy finds the release done, and does not show whether listeners were informed.
    let proxy = Proxy::before(&server);
    let client = Client::connect(&proxy.url()).unwrap();
    assert!(client.semaphore("semaphore").try_set_permits(1).unwrap());
    // By then the server knows the scripts.
    client.semaphore("semaphore").acquire().unwrap().release().unwrap();
    let permit = client.semaphore("semaphore").acquire().unwrap();
    proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| {
        bytes.windows(4).any(|it| it == b"EVAL")
    });
    permit.release().unwrap();
    assert_eq!(proxy.fired(), 1);
    client.shutdown();
    assert_eq!(LOGGER.lines("find out when they ask"), []);

    let mut user = User::new(&server, "mute");
    for kind in ["semaphore", "expirable", "lock", "read", "write"] {
        let client = user.client();
        let semaphore = client.semaphore("semaphore");
        let expirable = client.expirable_semaphore("expirable");
        let _ = (semaphore.try_set_permits(1).unwrap(), expirable.try_set_permits(1).unwrap());
        let (lock, both) = (client.reentrant_lock("lock"), client.read_write_lock("both"));
        let said = LOGGER.lines("`PUBLISH` is not allowed").len();
        for round in 0..4 {
            match kind {
                "semaphore" => semaphore.acquire().unwrap().release().unwrap(),
                "expirable" => expirable.acquire().unwrap().release().unwrap(),
                "lock" => lock.lock().unwrap().unlock().unwrap(),
                "read" => both.reader().lock().unwrap().unlock().unwrap(),
                _ => both.writer().lock().unwrap().unlock().unwrap(),
            }
            // If the right had been missing from the beginning, nothing would have been granted.
            if round == 0 {
                user.set(&["-publish"]);
            }
        }
        user.set(&["+publish"]);
        // The lines are written by then.
        client.shutdown();
        let lines = LOGGER.lines("`PUBLISH` is not allowed");
        assert_eq!(lines.len(), said + 1, "{kind}: {lines:?}");
        assert!(lines[said].0 == Level::Warn && lines[said].1.contains("PUBLISH"), "{lines:?}");
    }
}

#[test]
fn a_lease_that_ran_out_says_why() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let builder = || impatient(&server.url()).watchdog_timeout(RENEWED);
    let client = builder().connect().unwrap();
    // The hold is over when the first renewal is due.
    let bounded = builder().max_hold(UNIT).connect().unwrap();
    let said = |name: &str| format!("the hold of {name:?} was lost: its lease ran out");
    let why = |name: &str, why: &str| {
        wait_until("the log says so", SOON, || !LOGGER.lines(&said(name)).is_empty());
        let lines = LOGGER.lines(&said(name));
        assert!(lines.len() == 1 && lines[0].1.contains(why), "{lines:?}");
    };
    elsewhere({
        let lock = client.reentrant_lock("left");
        move || lock.lock().unwrap().forget()
    });
    let long = bounded.reentrant_lock("long").lock().unwrap();
    let fixed = client.reentrant_lock("fixed").with_lease(UNIT).lock().unwrap();
    why("fixed", "fixed");
    let error = fixed.unlock().unwrap_err().to_string();
    assert!(error.contains("its lease ran out (it was a fixed one"), "{error}");
    why("left", "the thread that took the lock has ended");
    why("long", "max_hold");
    assert!(long.unlock().unwrap_err().to_string().contains("max_hold"));
    let cut = client.reentrant_lock("cut").lock().unwrap();
    server.kill();
    why("cut", "its renewals failed");
    let error = cut.check(Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("refused") || error.contains("reset"), "{error}");
}

/// Opening a connection may take longer than the end of the client waits.
#[test]
fn a_release_behind_a_call_that_outlasts_the_end_is_not_forgotten() {
    const NAMES: usize = 20;
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    for connections in [1, 8] {
        let proxy = Proxy::before(&server);
        let client = impatient(&proxy.url()).connect_timeout(UNIT * 20).connections(connections);
        let client = client.connect().unwrap();
        let name = |at| format!("{connections}:{at}.");
        let held: Vec<_> = (0..NAMES)
            .map(|at| {
                let semaphore = client.semaphore(&format!("permits {}", name(at)));
                assert!(semaphore.try_set_permits(1).unwrap());
                let lock = client.reentrant_lock(&format!("lock {}", name(at)));
                (lock.lock().unwrap(), semaphore.acquire().unwrap())
            })
            .collect();
        // The next caller opens a connection, which takes the longest possible time.
        proxy.freeze();
        proxy.cut_all();
        let calls: Vec<_> = (0..connections * 2)
            .map(|at| {
                let lock = client.reentrant_lock(&format!("called {}", name(at)));
                let call = spawn(move || assert!(lock.is_locked().is_err()));
                call.wait_asleep();
                call
            })
            .collect();
        drop(held);
        client.shutdown();
        assert!(calls.iter().any(|call| !call.is_finished()), "the test shows nothing");
        calls.into_iter().for_each(Running::join);
        for at in 0..NAMES {
            let said = |level, what: String| {
                wait_until(&format!("{what} is said"), SOON, || {
                    LOGGER.lines(&what).iter().any(|(of, _)| *of == level)
                });
            };
            said(Level::Warn, format!("\"lock {}\": could not be released", name(at)));
            said(Level::Error, format!("\"permits {}\": ", name(at)));
        }
    }
}

/// Takes locks and loses each of them for a different reason. Each loss is a line of the log.
fn lose(client: &Client, prefix: &str, locks: usize) {
    let lease = |at: usize| UNIT + Duration::from_micros(at as u64);
    let lock = |at| client.reentrant_lock(&format!("{prefix}:{at}")).with_lease(lease(at));
    let guards: Vec<_> = (0..locks).map(|at| lock(at).lock().unwrap()).collect();
    for guard in guards {
        wait_until("the lease ends", SOON, || !guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    }
}

#[test]
fn a_logger_that_blocks_or_panics_stops_no_call_and_no_renewal() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let client = client(&server);
    let watched = watched(&server, RENEWED);
    let kept = watched.reentrant_lock("kept").lock().unwrap();
    LOGGER.set(true, false);
    // There are more lines than the queue can keep.
    lose(&client, "blocked", 1_500);
    lose(&watched, "behind", 1);
    client.reentrant_lock("free").lock().unwrap().unlock().unwrap();
    LOGGER.set(false, false);
    wait_until("the lines left out are counted", SOON, || {
        !LOGGER.lines("log lines were dropped").is_empty()
    });
    LOGGER.set(false, true);
    lose(&client, "panicked", 5);
    wait_until("the logger panics", SOON, || !LOGGER.lines("panicked:").is_empty());
    LOGGER.set(false, false);
    lose(&client, "again", 1);
    wait_until("the log goes on", SOON, || !LOGGER.lines("again:").is_empty());
    assert!(kept.is_held());
    kept.unlock().unwrap();
}

/// A managed service may not have INFO, CLIENT or CONFIG. The client must work without them, and
/// the log must list the missing features.
#[test]
fn a_server_that_says_nothing_of_itself_is_used_and_that_is_said_once() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let mut user = User::new(&server, "managed");
    user.set(&["-info", "-client", "-config", "-command", "-debug", "-wait", "-hello"]);
    let patient = || Client::builder(user.url()).watchdog_timeout(LONG).connect().unwrap();
    let (client, other) = (patient(), patient());
    let guard = client.reentrant_lock("managed").lock().unwrap();
    let lock = other.reentrant_lock("managed");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    waiter.wait_asleep();
    guard.unlock().unwrap();
    waiter.join();
    let semaphore = client.semaphore("managed permits");
    semaphore.try_set_permits(1).unwrap();
    semaphore.acquire().unwrap().release().unwrap();
    drop((semaphore, client, other));
    let lines = LOGGER.lines("refuses INFO");
    assert_eq!(lines.len(), 2, "once for each client: {lines:?}");
    assert!(lines.iter().all(|(level, _)| *level == Level::Warn));
    // The subscriber may also have logged that the server does not report changes.
    let mut others = LOGGER.lines("");
    others.retain(|(_, line)| {
        !line.contains("refuses INFO")
            && !line.contains("does not notify the client of changed keys")
    });
    assert!(others.is_empty(), "{others:?}");
}

/// A process may have several clients.
#[test]
fn each_log_line_names_its_client() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let clients = [(); 2].map(|()| client(&server));
    for (client, name) in clients.iter().zip(["one", "other"]) {
        let guard = client.reentrant_lock(name).with_lease(UNIT).lock().unwrap();
        guard.on_lost(|_| panic!("as the test wants it"));
        let (id, of) = (format!("[client {}]", client.id()), format!("{name:?}"));
        wait_until("both lines are written", SOON, || LOGGER.lines(&of).len() == 2);
        let lines = LOGGER.lines(&of);
        assert!(lines.iter().all(|(_, line)| line.ends_with(&id)), "{lines:?}");
    }
}

/// Two threads that take two locks in opposite orders wait for ever.
#[test]
fn a_long_wait_of_a_thread_that_holds_another_lock_is_said_once() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let connect = || Client::builder(&server.url()).slow_wait(UNIT * 3).connect().unwrap();
    let clients = [connect(), connect()];
    for kind in ["plain", "fair"] {
        let lock = |client: &Client, name: &str| -> Box<dyn Lock> {
            let name = format!("{kind} {name}");
            if kind == "fair" {
                Box::new(client.fair_lock(&name))
            } else {
                Box::new(client.reentrant_lock(&name))
            }
        };
        let token = CancelToken::new();
        let barrier = Arc::new(Barrier::new(2));
        let threads: Vec<_> = [("A", "B"), ("B", "A")]
            .into_iter()
            .zip(&clients)
            .map(|((first, second), client)| {
                let (first, second) = (lock(client, first), lock(client, second));
                let (token, barrier) = (token.clone(), Arc::clone(&barrier));
                spawn(move || {
                    let _first = first.lock().unwrap();
                    barrier.wait();
                    second.lock_cancellable(&token).map(drop).unwrap_err().kind()
                })
            })
            .collect();
        let said = |waits: &str, holds: &str| {
            let (waits, holds) = (format!("{kind} {waits}"), format!("{kind} {holds}"));
            LOGGER.lines(&format!(" s for {waits:?} while the thread holds {holds:?}: a deadlock"))
        };
        wait_until("both are warned", SOON, || {
            !said("B", "A").is_empty() && !said("A", "B").is_empty()
        });
        // The client checks again, and logs no more.
        thread::sleep(UNIT * 15);
        for lines in [said("A", "B"), said("B", "A")] {
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert_eq!(lines[0].0, Level::Warn);
        }
        token.cancel();
        for thread in threads {
            assert_eq!(thread.join(), ErrorKind::Cancelled);
        }
    }
}

/// Other threads also wait for the name, and one of them asks for the reason. The log already has a
/// line about the name.
#[test]
fn a_thread_that_holds_another_lock_is_named_in_a_crowd() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let client = Client::builder(&server.url()).slow_wait(UNIT).connect().unwrap();
    let held = client.reentrant_lock("B").lock_owned().unwrap();
    let waiter = |holds: bool| {
        let (lock, other) = (client.reentrant_lock("B"), client.reentrant_lock("A"));
        spawn(move || {
            let _guard = holds.then(|| other.lock().unwrap());
            lock.lock().unwrap().unlock().unwrap();
        })
    };
    let mut waiters: Vec<_> = (0..5).map(|_| waiter(false)).collect();
    wait_until("the name has its line", SOON, || !LOGGER.lines(" s for \"B\", held by").is_empty());
    waiters.push(waiter(true));
    let said = || LOGGER.lines(" s for \"B\" while the thread holds \"A\": a deadlock");
    wait_until("it is said", SOON, || !said().is_empty());
    held.unlock().unwrap();
    waiters.into_iter().for_each(Running::join);
    assert_eq!(said().len(), 1, "{:?}", said());
}

/// Long waits for a latch are normal, but not if other threads wait for the waiting thread.
#[test]
fn a_long_wait_for_a_latch_is_said_if_its_thread_holds_a_lock() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let client = Client::builder(&server.url()).slow_wait(UNIT).connect().unwrap();
    let latches = ["with", "without"].map(|name| client.count_down_latch(name));
    let waits = latches.each_ref().map(|latch| {
        assert!(latch.try_set_count(1).unwrap());
        let (latch, lock) = (latch.clone(), client.reentrant_lock("lock"));
        let holds = latch.name() == "with";
        spawn(move || {
            let _guard = holds.then(|| lock.lock().unwrap());
            latch.wait().unwrap();
        })
    });
    wait_until("it is said", SOON, || {
        !LOGGER.lines("the thread holds \"lock\": a deadl").is_empty()
    });
    // The client checks again, and logs no more.
    thread::sleep(UNIT * 15);
    assert_eq!(LOGGER.lines("waited ").len(), 1, "{:?}", LOGGER.lines("waited "));
    latches.iter().for_each(|latch| latch.count_down().unwrap());
    waits.into_iter().for_each(Running::join);
}

#[test]
fn of_a_crowd_one_client_a_second_asks_for_the_holder() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let connect = |slow: Duration| {
        Client::builder(&server.url()).slow_wait(slow).connections(1).connect().unwrap()
    };
    let holder = connect(LONG);
    let (lock, pool) = (holder.reentrant_lock("lock"), holder.expirable_semaphore("pool"));
    assert!(pool.try_set_permits(1).unwrap());
    let held = (lock.lock().unwrap(), pool.acquire().unwrap());
    let begun = Instant::now();
    let token = CancelToken::new();
    let crowd: Vec<_> = (0..20)
        .map(|number| {
            let (client, token) = (connect(UNIT), token.clone());
            spawn(move || match number % 2 {
                0 => client.reentrant_lock("lock").lock_cancellable(&token).map(drop),
                _ => client.expirable_semaphore("pool").acquire_within(&token).map(drop),
            })
        })
        .collect();
    let process = format!(", process {}, ", std::process::id());
    let said = |name: &str| {
        let mut lines = LOGGER.lines(&format!("{name:?}, held by "));
        lines.retain(|(_, line)| line.contains(&process));
        lines
    };
    wait_until("others have their lines later", SOON, || {
        said("lock").len() > 2 && said("pool").len() > 2
    });
    let lists = Commands::so_far(&server).of("client|list");
    // There is at most one list of waiters a second for each name. The last list may have no line
    // yet.
    let most = 2 * (begun.elapsed().as_secs() + 1);
    let lines = LOGGER.lines("waited ").len() as u64;
    assert!(lists <= most && lists <= lines + 2, "{lists} lists in {:?}", begun.elapsed());
    assert_eq!(said("lock").len() + said("pool").len(), LOGGER.lines("waited ").len());
    token.cancel();
    crowd.into_iter().for_each(|waits| {
        assert_eq!(waits.join().unwrap_err().kind(), ErrorKind::Cancelled);
    });
    drop(held);
}

#[test]
fn a_slow_wait_is_said_once_with_the_holder_and_those_before() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let holder = Client::builder(&server.url()).watchdog_timeout(LONG).connect().unwrap();
    let slow = || Client::builder(&server.url()).slow_wait(UNIT * 3).connect().unwrap();
    let (first, second, token) = (slow(), slow(), CancelToken::new());
    let held = holder.reentrant_lock("orders").lock().unwrap();
    let begun = Instant::now();
    let waiters = [&first, &second].map(|client| {
        let (lock, token) = (client.reentrant_lock("orders"), token.clone());
        let waits = spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err().kind());
        wait_until("it stands in line", SOON, || {
            holder
                .status("orders")
                .unwrap()
                .queue
                .iter()
                .any(|it| it.owner.as_str().starts_with(client.id()))
        });
        waits
    });
    // The waits for a latch and an election last as long, but such long waits are normal.
    let latch = second.count_down_latch("latch");
    assert!(latch.try_set_count(1).unwrap());
    let (open, leads) = (latch.clone(), second.leader_election("leads"));
    let led = first.leader_election("leads").campaign().unwrap();
    let others = [spawn(move || open.wait().unwrap()), {
        let token = token.clone();
        spawn(move || drop(leads.campaign_within(&token)))
    }];
    let said = |client: &Client| {
        let (_, lines) = LOGGER.lines(client.id()).into_iter().partition::<Vec<_>, _>(|_| false);
        lines.into_iter().filter(|(_, line)| line.starts_with("waited")).collect::<Vec<_>>()
    };
    wait_until("both are said", SOON, || {
        [&first, &second].iter().all(|client| !said(client).is_empty())
    });
    // The client checks again, and logs no more.
    thread::sleep(UNIT * 15);
    let process = format!(", process {}, ", std::process::id());
    for (client, before) in [(&first, "; 0 waiters before"), (&second, "; 1 waiter before")] {
        let lines = said(client);
        let [(Level::Warn, line)] = &lines[..] else { panic!("{lines:?}") };
        let waited = line.strip_prefix("waited ").unwrap().split_once(' ').unwrap().0;
        assert!(waited.parse::<f64>().unwrap() <= begun.elapsed().as_secs_f64().round(), "{line}");
        let asked = " s ago by its clock, for ";
        for part in [" s for \"orders\", held by ", &process, "which asked ", asked, before] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    token.cancel();
    latch.count_down().unwrap();
    others.into_iter().for_each(Running::join);
    waiters.into_iter().for_each(|waits| assert_eq!(waits.join(), ErrorKind::Cancelled));
    drop((held, led));
}

#[test]
fn another_number_of_permits_than_a_handle_wants_is_said_once() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let said = || -> Vec<_> {
        let lines = LOGGER.lines("nothing was changed").into_iter();
        lines
            .map(|(level, line)| (level, line.split(" [client").next().unwrap().to_owned()))
            .collect()
    };
    let client = Client::connect(&server.url()).unwrap();
    for (at, free) in [5, 6].into_iter().enumerate() {
        let pool = client.semaphore(&format!("pool {at}"));
        assert!(pool.try_set_permits(free).unwrap());
        for _ in 0..2 {
            drop(pool.with_permits(5).acquire().unwrap());
        }
    }
    wait_until("it is said", SOON, || !said().is_empty());
    let line = "a handle wants 5 permits of \"pool 1\", but 6 are free: nothing was changed";
    assert_eq!(said(), [(Level::Warn, line.to_owned())]);

    // The size of an expirable semaphore is known even while permits are out.
    LOGGER.install();
    let other = Client::connect(&server.url()).unwrap();
    for (at, size) in [5, 4].into_iter().enumerate() {
        let pool = client.expirable_semaphore(&format!("leases {at}"));
        assert!(pool.try_set_permits(size).unwrap());
        let _out = pool.acquire_many(2).unwrap();
        for _ in 0..2 {
            let pool = other.expirable_semaphore(pool.name()).with_permits(5);
            drop(pool.acquire().unwrap());
        }
    }
    wait_until("it is said", SOON, || !said().is_empty());
    let line = "a handle wants 5 permits of \"leases 1\", but it has 4: nothing was changed";
    assert_eq!(said(), [(Level::Warn, line.to_owned())]);

    LOGGER.install();
    let kept = client.semaphore("twins").with_permits(2);
    drop(kept.acquire().unwrap());
    for _ in 0..2 {
        drop(client.semaphore("twins").with_permits(3).acquire().unwrap());
    }
    assert_eq!(kept.available_permits().unwrap(), 2);
    wait_until("it is said", SOON, || !said().is_empty());
    let line = "a handle wants 3 permits of \"twins\", but another handle of this client wants 2: \
                nothing was changed";
    assert_eq!(said(), [(Level::Warn, line.to_owned())]);
}

#[test]
fn permits_that_no_program_has_set_are_said_at_once_with_their_number() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    // Each client logs the line at once, and only once.
    let clients =
        [(); 2].map(|()| Client::builder(&server.url()).slow_wait(LONG).connect().unwrap());
    let [pool, expirable] = ["pool", "expirable"];
    let said = |client: &Client| {
        let mut lines = LOGGER.lines(client.id());
        lines.retain(|(_, line)| line.contains("has a program called try_set_permits?"));
        lines
    };
    for _ in 0..3 {
        assert!(clients[0].semaphore(pool).try_acquire_many(2).unwrap().into_option().is_none());
        assert!(
            clients[1]
                .expirable_semaphore(expirable)
                .try_acquire()
                .unwrap()
                .into_option()
                .is_none()
        );
    }
    wait_until("both are said", SOON, || clients.iter().all(|client| !said(client).is_empty()));
    for (client, wants) in
        clients.iter().zip(["2 permits of \"pool\"", "a permit of \"expirable\""])
    {
        let lines = said(client);
        assert!(lines.len() == 1 && lines[0].1.contains(wants), "{lines:?}");
    }
    // There is no line if all permits are out.
    let client = Client::connect(&server.url()).unwrap();
    let (pool, expirable) = (client.semaphore(pool), client.expirable_semaphore(expirable));
    assert!(pool.try_set_permits(1).unwrap() && expirable.try_set_permits(1).unwrap());
    let taken = (pool.acquire().unwrap(), expirable.acquire().unwrap());
    assert!(
        pool.try_acquire().unwrap().into_option().is_none()
            && expirable.try_acquire().unwrap().into_option().is_none()
    );
    drop(taken);
    assert_eq!(said(&client), []);
}

/// This happens, for example, if the server takes no writes because its replicas are gone.
#[test]
fn renewals_that_are_refused_are_one_warning_and_their_acceptance_is_one_line() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    let server = server();
    let mut redis = server.connection();
    let mut needs_replicas = |count: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg(&["SET", "min-replicas-to-write", count]).exec(&mut redis).unwrap();
    };
    let client = Client::builder(&server.url()).watchdog_timeout(RENEWED).connect().unwrap();
    for name in ["one", "two"] {
        client.reentrant_lock(name).lock().unwrap().forget();
    }
    let lines = || LOGGER.lines("renew");
    for round in 1..=2 {
        needs_replicas("1");
        wait_until("the refusal is logged", SOON, || lines().len() == 2 * round - 1);
        needs_replicas("0");
        wait_until("the acceptance is logged", SOON, || lines().len() == 2 * round);
    }
    let lines = lines();
    let levels: Vec<_> = lines.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::Warn, Level::Info, Level::Warn, Level::Info], "{lines:?}");
    assert!(
        lines[0].1.contains("NOREPLICAS") && lines[0].1.contains("the lease ends in "),
        "{lines:?}"
    );
    assert!(lines[1].1.contains("accepts renewals again, after "), "{lines:?}");
    assert!(client.reentrant_lock("one").is_locked().unwrap());
}

#[test]
fn the_move_of_a_held_locks_slot_is_logged_as_one_warning() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    bound();
    let Ok(cluster) = Cluster::without_replicas() else {
        eprintln!("left out: no cluster can be had");
        return;
    };
    let client = Client::builder(&cluster.url()).watchdog_timeout(RENEWED).connect().unwrap();
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let slot = cluster.slot("moved");
    let to = cluster.another(slot);
    cluster.move_slot(slot, to);
    let lines = || LOGGER.lines("the slot of \"moved\"");
    wait_until("the move is logged", SOON, || !lines().is_empty());
    let lines = lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].0 == Level::Warn && lines[0].1.contains(&to.port().to_string()), "{lines:?}");
    guard.unlock().unwrap();
}

/// One client uses sharded channels and the other does not. No message wakes the other client,
/// although no command fails.
#[test]
fn clients_of_a_cluster_with_other_channels_are_one_warning() {
    if !has_own_process() {
        return;
    }
    LOGGER.install();
    bound();
    let Ok(cluster) = Cluster::without_replicas() else {
        eprintln!("left out: no cluster can be had");
        return;
    };
    let connect =
        |sharded| Client::builder(&cluster.url()).sharded_channels(sharded).connect().unwrap();
    let lines = |client: &Client| {
        let id = client.id().to_owned();
        let mut lines = LOGGER.lines("sharded_channels");
        lines.retain(|(_, line)| line.contains(&id));
        lines
    };
    let wait = |client: &Client, name: &str, token: &CancelToken| {
        let (semaphore, token) = (client.semaphore(name), token.clone());
        spawn(move || semaphore.acquire_cancellable(&token).map(drop).unwrap_err().kind())
    };
    let beside_another_kind = |sharded, name: &str| {
        // Redisson listens to the other of the name's two channels: the plain or the sharded
        // channel.
        let (client, token) = (connect(sharded), CancelToken::new());
        let waiting = wait(&client, name, &token);
        waiting.wait_asleep();
        // Time must pass here: the waiter asks every few seconds.
        thread::sleep(UNIT * 40);
        assert_eq!(lines(&client), []);
        let mut redis = cluster.home(name).connection();
        let subscribe = if sharded { "SUBSCRIBE" } else { "SSUBSCRIBE" };
        redis::cmd(subscribe).arg(format!("redisson_sc:{{{name}}}")).exec(&mut redis).unwrap();
        wait_until("it is said", SOON, || !lines(&client).is_empty());
        token.cancel();
        assert_eq!(waiting.join(), ErrorKind::Cancelled);
        client.shutdown();
        assert!(matches!(&lines(&client)[..], [(Level::Warn, _)]), "{:?}", lines(&client));
    };
    thread::scope(|scope| {
        scope.spawn(|| beside_another_kind(true, "foreign"));
        scope.spawn(|| beside_another_kind(false, "strange"));
    });

    let name = "locks";
    let token = CancelToken::new();
    let clients = [connect(true), connect(false)];
    let held = clients[0].reentrant_lock(name).lock().unwrap();
    let waiting = clients.each_ref().map(|client| {
        let (lock, token) = (client.reentrant_lock(name), token.clone());
        spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err().kind())
    });
    for client in &clients {
        wait_until("each says so", SOON, || lines(client).len() == 1);
    }
    token.cancel();
    for thread in waiting {
        assert_eq!(thread.join(), ErrorKind::Cancelled);
    }
    held.unlock().unwrap();
}
