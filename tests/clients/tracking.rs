//! Tracking: the server reports when a key changes, so that a holder notices a loss at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{Client, ClientBuilder, ErrorKind, LostReason};
use redlatch_testkit::{Action, Direction, Proxy, Server};

/// A lease so long that there is no renewal during a test.
const LEASE: Duration = Duration::from_secs(600);

/// The reasons of the reported losses.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<LostReason>>>);

impl Losses {
    fn told(&self) -> impl FnOnce(LostReason) + Send + 'static {
        let losses = self.0.clone();
        move |reason| losses.lock().unwrap().push(reason)
    }

    fn so_far(&self) -> Vec<LostReason> {
        self.0.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait(&self) {
        wait_until("on_lost is called", TIMEOUT, || !self.so_far().is_empty());
        assert_eq!(self.so_far(), [LostReason::Revoked]);
    }
}

/// A hold of any kind. The functions return whether the hold still exists, its losses, and the
/// result of its release. The release fails after a loss.
struct Held {
    losses: Losses,
    is_held: Box<dyn Fn() -> bool>,
    release: Box<dyn FnOnce() -> Result<(), redlatch::Error>>,
}

macro_rules! held {
    ($guard:expr, $release:ident) => {{
        let guard = std::rc::Rc::new($guard);
        let losses = Losses::default();
        guard.on_lost(losses.told());
        let asked = std::rc::Rc::clone(&guard);
        Held {
            losses,
            is_held: Box::new(move || asked.is_held()),
            release: Box::new(move || match std::rc::Rc::try_unwrap(guard) {
                Ok(guard) => guard.$release(),
                Err(_) => panic!("it is asked still"),
            }),
        }
    }};
}

impl Held {
    fn release(self) -> Result<(), redlatch::Error> {
        drop(self.is_held);
        (self.release)()
    }

    fn lock(client: &Client, name: &str) -> Self {
        held!(client.reentrant_lock(name).lock().unwrap(), unlock)
    }
}

/// A way to hold something: its name, its key, and a function that takes it.
type Kind = (&'static str, &'static str, fn(&Client) -> Held);

/// A way to remove a key's value.
type Way<'a> = &'a dyn Fn(&str);

const KINDS: [Kind; 8] = [
    ("re-entrant lock", "shop", |client| Held::lock(client, "shop")),
    ("fixed lease", "shop", |client| {
        held!(client.reentrant_lock("shop").with_lease(LEASE).lock().unwrap(), unlock)
    }),
    ("owned guard", "shop", |client| {
        held!(client.reentrant_lock("shop").lock_owned().unwrap(), unlock)
    }),
    ("fenced lock", "shop", |client| held!(client.fenced_lock("shop").lock().unwrap(), unlock)),
    ("fair lock", "shop", |client| held!(client.fair_lock("shop").lock().unwrap(), unlock)),
    ("read lock", "shop", |client| {
        held!(client.read_write_lock("shop").reader().lock().unwrap(), unlock)
    }),
    ("write lock", "shop", |client| {
        held!(client.read_write_lock("shop").writer().lock().unwrap(), unlock)
    }),
    ("permit", "{shop}:timeout", |client| {
        let semaphore = client.expirable_semaphore("shop");
        semaphore.try_set_permits(3).unwrap();
        held!(semaphore.acquire().unwrap(), release)
    }),
];

fn untracked(server: &Server) -> ClientBuilder {
    Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).client_tracking(false)
}

/// The number of keys that the server tracks.
fn tracked(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
    line.unwrap().trim().parse().unwrap()
}

#[track_caller]
fn wait_tracked(server: &Server, keys: u64) {
    wait_until(&format!("{keys} keys are tracked"), TIMEOUT, || tracked(server) == keys);
}

/// A proxy that counts its client's queries of keys.
struct Counting {
    proxy: Proxy,
    asked: Arc<AtomicUsize>,
}

impl Counting {
    fn before(server: &Server) -> Self {
        let (proxy, asked) = (Proxy::before(server), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&asked);
        // The rule passes each command unchanged. The replies to all queries of one packet come in
        // one packet, too.
        proxy.on(Direction::Request, 1, Action::LoseRequest, move |command| {
            let asks = ["\r\nHEXISTS\r\n", "\r\nZMSCORE\r\n"];
            if asks.iter().any(|verb| contains(command, verb)) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            false
        });
        Self { proxy, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A client that connects through the proxy.
fn counted(proxy: &Proxy, lease: Duration) -> Client {
    Client::builder(&proxy.url()).watchdog_timeout(lease).connect().unwrap()
}

#[test]
fn the_loss_of_a_hold_is_reported_long_before_its_renewal() {
    let server = server();
    let client = watched(&server, LEASE);
    let ways: [(&str, Way<'_>); 4] = [
        ("DEL", &|key| server.connection().del(key).unwrap()),
        ("FLUSHALL", &|_| redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap()),
        ("its end", &|key| server.connection().pexpire(key, 1).unwrap()),
        ("something else", &|key| server.connection().set(key, "no lock").unwrap()),
    ];
    for (kind, key, hold) in KINDS {
        for (way, take_away) in ways {
            let held = hold(&client);
            wait_tracked(&server, 1);
            take_away(key);
            held.losses.wait();
            assert!(!(held.is_held)(), "{kind}, {way}");
            assert_eq!(held.release().unwrap_err().kind(), ErrorKind::LeaseLost, "{kind}, {way}");
            let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            wait_tracked(&server, 0);
        }
    }
}

#[test]
fn the_loss_of_a_hold_before_it_is_tracked_is_reported_as_well() {
    let server = server();
    let client = watched(&server, LEASE);
    for (_, key, hold) in KINDS {
        let held = hold(&client);
        let () = server.connection().del(key).unwrap();
        held.losses.wait();
        drop(held.release());
    }
}

#[test]
fn a_force_unlock_by_another_process_is_reported() {
    let server = server();
    let (one, other) = (watched(&server, LEASE), watched(&server, LEASE));
    let held = Held::lock(&one, "forced");
    wait_tracked(&server, 1);
    assert!(other.reentrant_lock("forced").force_unlock().unwrap());
    held.losses.wait();
    let theirs = other.reentrant_lock("forced").try_lock().unwrap().into_option().unwrap();
    assert_eq!(held.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    theirs.unlock().unwrap();
}

#[test]
fn of_many_holds_exactly_those_that_are_gone_are_reported_lost() {
    let server = server();
    let client = watched(&server, LEASE);
    let held: Vec<_> = (0..500).map(|at| Held::lock(&client, &format!("lock {at}"))).collect();
    let semaphore = client.expirable_semaphore("pool");
    semaphore.try_set_permits(500).unwrap();
    let pool: Vec<_> = (0..500).map(|_| held!(semaphore.acquire().unwrap(), release)).collect();
    wait_tracked(&server, 501);
    // The change comes while the client queries these keys.
    let mut redis = server.connection();
    for at in (0..500).step_by(7) {
        let () = redis.del(format!("lock {at}")).unwrap();
    }
    for (at, held) in held.iter().enumerate() {
        if at % 7 == 0 {
            held.losses.wait();
        }
    }
    let ids: Vec<Vec<u8>> = redis.zrange("{pool}:timeout", 0, 99).unwrap();
    let () = redis.zrem("{pool}:timeout", ids).unwrap();
    let lost = || pool.iter().filter(|held| !held.losses.so_far().is_empty()).count();
    wait_until("a hundred permits are lost", TIMEOUT, || lost() == 100);
    // The client gets the report of this change over the same connection as the earlier messages,
    // so it has read them before this report.
    let () = redis.del("lock 1").unwrap();
    held[1].losses.wait();
    assert_eq!(lost(), 100);
    for (at, held) in held.into_iter().enumerate() {
        let is_lost = at % 7 == 0 || at == 1;
        assert_eq!((held.is_held)(), !is_lost, "{at}");
        assert_eq!(held.release().is_err(), is_lost, "{at}");
    }
    assert_eq!(pool.into_iter().filter_map(|held| held.release().err()).count(), 100);
}

#[test]
fn ones_own_renewals_and_other_keys_tell_nothing() {
    let server = server();
    let counting = Counting::before(&server);
    let client = counted(&counting.proxy, SHORT_LEASE);
    let held = Held::lock(&client, "renewed");
    wait_tracked(&server, 1);
    let mut redis = server.connection();
    wait_until("it was renewed four times", TIMEOUT, || {
        let () = redis.set("another key", 1).unwrap();
        let () = redis.del("another key").unwrap();
        Commands::so_far(&server).of("pexpire") > 4
    });
    assert!((held.is_held)());
    assert_eq!(held.losses.so_far(), []);
    // The client sends a query once when the lock has been held for some time, and once after each
    // renewal.
    assert!((4..=7).contains(&counting.asked()), "{} questions", counting.asked());
    wait_tracked(&server, 1);
    let () = redis.del("renewed").unwrap();
    held.losses.wait();
}

#[test]
fn a_short_hold_costs_no_command_and_no_connection() {
    let server = server();
    let client = watched(&server, LEASE);
    let listens = || {
        let so_far = Commands::so_far(&server);
        so_far.of("client|tracking") + so_far.of("subscribe")
    };
    // On a busy machine a hold may last for long. If so, the test tries again with a new client.
    wait_until("all were short", TIMEOUT, || {
        let short = watched(&server, LEASE).reentrant_lock("short");
        let (before, begun, mut longest) = (listens(), Instant::now(), Duration::ZERO);
        while begun.elapsed() < TIME_UNIT * 5 {
            let taken = Instant::now();
            short.lock().unwrap().unlock().unwrap();
            longest = longest.max(taken.elapsed());
        }
        assert!(longest >= TIME_UNIT / 2 || listens() == before, "{longest:?}");
        longest < TIME_UNIT / 2
    });
    // No thread waits here, but the client still notices the loss.
    let held = Held::lock(&client, "short");
    wait_tracked(&server, 1);
    let () = server.connection().del("short").unwrap();
    held.losses.wait();
}

#[test]
fn a_released_hold_is_not_asked_for_nor_the_hold_after_it() {
    let server = server();
    let counting = Counting::before(&server);
    let client = counted(&counting.proxy, LEASE);
    for (kind, _, hold) in KINDS {
        let before = counting.asked();
        let first = hold(&client);
        wait_tracked(&server, 1);
        drop(first);
        // The same thread takes and releases the lock once more. The server reports the
        // acquisition, the release, or both.
        let begun = Instant::now();
        hold(&client).release().unwrap();
        wait_tracked(&server, 0);
        if begun.elapsed() < TIME_UNIT {
            assert_eq!(counting.asked() - before, 1, "{kind}");
        }
    }
}

/// The holder acts while the client's query of the hold, or the reply, is on its way.
#[test]
fn a_hold_that_is_given_back_while_it_is_asked_for_is_not_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LEASE).connect().unwrap();
    let lock = client.reentrant_lock("asked");
    let mut redis = server.connection();
    for again in [false, true] {
        let held = Held::lock(&client, "asked");
        wait_tracked(&server, 1);
        let fired = proxy.fired();
        proxy.on_request("HEXISTS", Action::HoldReply);
        // This change takes no hold away.
        let () = redis.pexpire("asked", 300_000).unwrap();
        proxy.wait_fired(fired + 1, TIMEOUT);
        held.release().unwrap();
        let next = again.then(|| held!(lock.lock().unwrap(), unlock));
        let scripts = Commands::so_far(&server).scripts();
        proxy.release();
        if let Some(next) = next {
            wait_tracked(&server, 1);
            assert!((next.is_held)());
            assert_eq!(next.losses.so_far(), []);
            next.release().unwrap();
            assert_eq!(Commands::so_far(&server).scripts(), scripts + 1, "its release alone");
        }
        wait_tracked(&server, 0);
    }
}

#[test]
fn an_answer_about_an_earlier_hold_does_nothing_to_the_next() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = counted(&proxy, LEASE);
    // The server knows the scripts.
    Held::lock(&client, "next").release().unwrap();
    let earlier = Held::lock(&client, "next");
    wait_tracked(&server, 1);
    let scripts = Commands::so_far(&server).scripts();
    proxy.on_request("HEXISTS", Action::HoldReply);
    let () = server.connection().del("next").unwrap();
    proxy.wait_fired(1, TIMEOUT);
    // A release finds the loss before the reply to the query comes.
    assert_eq!(earlier.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    let next = Held::lock(&client, "next");
    proxy.release();
    wait_tracked(&server, 1);
    assert!((next.is_held)());
    assert_eq!(next.losses.so_far(), []);
    assert_eq!(Commands::so_far(&server).scripts(), scripts + 2, "a release and a request");
    next.release().unwrap();
}

#[test]
fn a_loss_while_no_connection_listens_is_found_out_by_the_next_one() {
    let server = server();
    let client = watched(&server, LEASE);
    let mut redis = server.connection();
    // In the first round, the change comes before the connection is open again. In the second
    // round, it comes after that.
    for after in [false, true] {
        let held = ["one", "other"].map(|name| Held::lock(&client, name));
        wait_tracked(&server, 2);
        let mut pipe = redis::pipe();
        let killed = pipe.atomic().cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]);
        let killed = if after { killed } else { killed.del("one") };
        let () = killed.ignore().query(&mut redis).unwrap();
        if after {
            wait_tracked(&server, 2);
            let () = redis.del("one").unwrap();
        }
        let [one, other] = held;
        one.losses.wait();
        assert!(one.release().is_err());
        assert_eq!(other.losses.so_far(), []);
        other.release().unwrap();
        // A missing key is tracked, too.
        let () = redis::cmd("FLUSHALL").query(&mut redis).unwrap();
        wait_tracked(&server, 0);
    }
}

#[test]
fn a_key_that_changes_all_the_time_is_asked_for_now_and_then() {
    let server = server();
    let counting = Counting::before(&server);
    let client = counted(&counting.proxy, LEASE);
    let held = Held::lock(&client, "busy");
    wait_tracked(&server, 1);
    let changes = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut redis = server.connection();
            while changes.load(Ordering::SeqCst) {
                let () = redis.persist("busy").unwrap();
                let () = redis.pexpire("busy", 300_000).unwrap();
            }
        });
        let (before, begun) = (counting.asked(), Instant::now());
        // A fixed time must pass here, because no event shows the end of the wait.
        thread::sleep(TIME_UNIT * 35);
        let (asked, windows) = (counting.asked() - before, begun.elapsed().as_secs() as usize + 2);
        changes.store(false, Ordering::SeqCst);
        assert!((10..=10 * windows).contains(&asked), "{asked} in {windows} s");
    });
    assert_eq!(held.losses.so_far(), []);
    let () = server.connection().del("busy").unwrap();
    held.losses.wait();
}

#[test]
fn a_server_that_tracks_few_keys_tells_of_all_and_is_not_flooded() {
    let server = server();
    let mut redis = server.connection();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "tracking-table-max-keys", "1"])
        .query(&mut redis)
        .unwrap();
    let counting = Counting::before(&server);
    let client = counted(&counting.proxy, LEASE);
    let begun = Instant::now();
    let held: Vec<_> = (0..20).map(|at| Held::lock(&client, &format!("few {at}"))).collect();
    wait_until("all are asked for", TIMEOUT, || counting.asked() >= 20);
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(TIME_UNIT * 20);
    let (asked, windows) = (counting.asked(), begun.elapsed().as_secs() as usize + 2);
    assert!(asked <= 20 * 10 * windows, "{asked} in {windows} s");
    assert!(held.iter().all(|held| held.losses.so_far().is_empty()));
    for at in 0..20 {
        let () = redis.del(format!("few {at}")).unwrap();
    }
    held.iter().for_each(|held| held.losses.wait());
}

#[test]
fn a_question_that_the_server_does_not_answer_is_asked_again() {
    let server = server();
    let mut redis = server.connection();
    let () = redis::cmd("CONFIG").arg(&["SET", "lua-time-limit", "10"]).query(&mut redis).unwrap();
    let counting = Counting::before(&server);
    let client = counted(&counting.proxy, LEASE);
    let held = Held::lock(&client, "refused");
    wait_tracked(&server, 1);
    // The server reports the change, and replies BUSY to the query.
    let script = "redis.call('pexpire', KEYS[1], 300000) \
                  local begun = redis.call('time')[1] \
                  while redis.call('time')[1] - begun < 2 do end";
    let () = redis::Script::new(script).key("refused").invoke(&mut redis).unwrap();
    assert_eq!(counting.asked(), 2);
    wait_tracked(&server, 1);
    assert_eq!(counting.asked(), 3);
    assert_eq!(held.losses.so_far(), []);
    let () = redis.del("refused").unwrap();
    held.losses.wait();
}

/// The cases are: a server without such commands, a user without the right to them, and a client
/// that does not use them.
#[test]
fn without_tracking_a_loss_is_found_by_the_next_renewal() {
    let server = server();
    let mut user = User::new(&server, "plain");
    user.set(&["-client"]);
    let lease = SHORT_LEASE;
    let builder = |url: &str| Client::builder(url).watchdog_timeout(lease);
    let renamed = ["CLIENT", "HELLO"]
        .map(|command| Server::with_args(&["--rename-command", command, ""]).expect("a server"));
    let cases = [
        ("no right", &server, builder(user.url())),
        ("no CLIENT", &renamed[0], builder(&renamed[0].url())),
        ("no HELLO", &renamed[1], builder(&renamed[1].url())),
        ("not wanted", &server, untracked(&server).watchdog_timeout(lease)),
    ];
    for (case, server, builder) in cases {
        let client = builder.connect().unwrap();
        let other = untracked(server).connect().unwrap();
        let held = Held::lock(&client, "plain");
        // Waits work as usual, and the waiters get the message of a release.
        woken_by_message(|| {
            let theirs = other.reentrant_lock("waited for").lock().unwrap();
            let lock = client.reentrant_lock("waited for");
            let waiting = spawn(move || lock.lock().unwrap().unlock().unwrap());
            wait_in_line(server, "waited for", 1);
            theirs.unlock().unwrap();
            waiting.join();
        });
        // The time is long enough for the server to track the hold.
        wait_renewed(server, "plain");
        assert!((held.is_held)(), "{case}");
        assert_eq!(tracked(server), 0, "{case}");
        let () = server.connection().del("plain").unwrap();
        held.losses.wait();
        drop(held.release());
    }
}

/// A proxy may do this when it does not know a command.
#[test]
fn a_server_that_hangs_up_on_unknown_commands_is_not_asked_again_and_again() {
    let server = server();
    let proxy = Proxy::before(&server);
    let says_hello = |command: &[u8]| contains(command, "HELLO");
    proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, says_hello);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let other = untracked(&server).connect().unwrap();
    let held = Held::lock(&client, "kept");
    let theirs = other.reentrant_lock("waited for").lock().unwrap();
    let lock = client.reentrant_lock("waited for");
    let waiting = spawn(move || lock.lock().unwrap().unlock().unwrap());
    let mut redis = server.connection();
    wait_until("it listens", TIMEOUT, || {
        let mut channels = redis::cmd("PUBSUB");
        let own = channels.arg("CHANNELS").arg("redisson_lock__channel:{redlatch:*");
        own.query::<Vec<String>>(&mut redis).unwrap().len() == 1
    });
    theirs.unlock().unwrap();
    waiting.join();
    assert_eq!(proxy.fired(), 2);
    held.release().unwrap();
}
