//! Several locks that one request takes or releases.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use redlatch::{LockGuard, OwnedMultiLockGuard};

use super::*;

/// Returns a client with one connection, whose rights have been checked. The server has the
/// client's scripts.
fn warm(server: &Server) -> Client {
    let client = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).connections(1);
    let client = client.connect().unwrap();
    let (fair, pair) = (client.fair_lock("x"), client.read_write_lock("x"));
    let alone: [&dyn Lock; 5] = [
        &client.reentrant_lock("x"),
        &client.fenced_lock("x"),
        &fair,
        pair.reader(),
        pair.writer(),
    ];
    for _ in 0..2 {
        for lock in alone {
            lock.lock().unwrap().unlock().unwrap();
            lock.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
        }
        for kind in KINDS {
            of_kind(&client, kind, 2).lock().unwrap().unlock().unwrap();
        }
    }
    client
}

/// The kinds of locks of which one request can take several.
const KINDS: [&str; 3] = ["plain", "fenced", "write"];

fn of_kind(client: &Client, kind: &str, count: usize) -> MultiLock {
    let locks = (0..count).map(|at| -> Box<dyn Lock> {
        let name = format!("{kind} {at}");
        match kind {
            "plain" => Box::new(client.reentrant_lock(&name)),
            "fenced" => Box::new(client.fenced_lock(&name)),
            "fair" => Box::new(client.fair_lock(&name)),
            "read" => Box::new(client.read_write_lock(&name).reader().clone()),
            _ => Box::new(client.read_write_lock(&name).writer().clone()),
        }
    });
    let locks: Vec<_> = locks.collect();
    MultiLock::new(&locks.iter().map(|lock| &**lock).collect::<Vec<_>>()).unwrap()
}

/// Runs `work`. Returns the number of scripts that the server ran in that time, and the result.
fn scripts_of<T>(server: &Server, work: impl FnOnce() -> T) -> (u64, T) {
    let before = Commands::so_far(server).scripts();
    let done = work();
    (Commands::so_far(server).scripts() - before, done)
}

fn lock_of(server: &Server, all: &MultiLock) -> (u64, MultiLockGuard) {
    scripts_of(server, || all.lock().unwrap())
}

/// The release of each lock goes over that lock's own connection, ahead of the next request for
/// this lock.
#[test]
fn after_a_drop_each_lock_is_free_at_once() {
    let server = server();
    let client = client(&server);
    let all = of_kind(&client, "plain", 8);
    let locks: Vec<_> = all.names().map(|name| client.reentrant_lock(name)).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    // These threads keep the connections busy.
    let busy: Vec<_> = (0..8)
        .map(|at| {
            let (own, is_over) =
                (client.reentrant_lock(&format!("own {at}")), Arc::clone(&is_over));
            spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    own.lock().unwrap().unlock().unwrap();
                }
            })
        })
        .collect();
    for round in 0..300 {
        drop(all.lock().unwrap());
        let free = locks.iter().filter(|lock| lock.try_lock().unwrap().into_option().is_some());
        assert_eq!(free.count(), locks.len(), "round {round}");
    }
    is_over.store(true, Ordering::SeqCst);
    busy.into_iter().for_each(Running::join);
}

/// A reader's hold has more keys than a writer's hold. One request may release both kinds of hold.
#[test]
fn readers_and_writers_that_are_released_together_leave_no_key() {
    let server = server();
    let client = client(&server);
    let [a, b] = ["a", "b"].map(|name| client.read_write_lock(name));
    let lists: [[&dyn Lock; 2]; 4] = [
        [a.reader(), b.reader()],
        [a.reader(), b.writer()],
        [a.writer(), b.reader()],
        [a.writer(), b.writer()],
    ];
    let mut redis = server.connection();
    for list in lists {
        for is_dropped in [false, true] {
            let guard = MultiLock::new(&list).unwrap().lock().unwrap();
            if is_dropped {
                drop(guard);
            } else {
                guard.unlock().unwrap();
            }
            wait_until("no key is left", TIMEOUT, || {
                redis::cmd("DBSIZE").query::<u64>(&mut redis).unwrap() == 0
            });
        }
    }
}

#[test]
fn one_request_takes_all_and_one_packet_releases_them() {
    let server = server();
    let client = warm(&server);
    let mut redis = server.connection();
    for kind in KINDS {
        for count in [2, 8] {
            let all = of_kind(&client, kind, count);
            let names: Vec<_> = all.names().map(str::to_owned).collect();
            let is_held = || names.iter().map(|name| is_held(&server, name)).collect::<Vec<_>>();
            // The packets that the server has read, with the packet of this query.
            let mut packets = || -> u64 {
                let stats: String = redis::cmd("INFO").arg("stats").query(&mut redis).unwrap();
                let reads = stats.lines().find_map(|it| it.strip_prefix("total_reads_processed:"));
                reads.unwrap().trim().parse().unwrap()
            };
            let given = (0..3).map(|_| {
                let (taken, guard) = lock_of(&server, &all);
                assert_eq!(taken, 1, "{count} {kind}");
                assert!(guard.is_held() && is_held().iter().all(|it| *it));
                let before = packets();
                guard.unlock().unwrap();
                let given = packets() - before - 1;
                assert!(!is_held().contains(&true));
                given
            });
            // A background thread may send a packet, too.
            assert_eq!(given.min(), Some(1), "{count} {kind}");
            let owned: OwnedMultiLockGuard = all.lock_owned().unwrap();
            let tokens = owned.tokens().map(|(_, token)| token.get()).collect::<Vec<_>>();
            assert_eq!(tokens.len(), if kind == "fenced" { count } else { 0 });
            drop(owned);
            // This request uses the connection of the releases, so it runs after them.
            let again = all.try_lock().unwrap().into_option().expect("nobody has one");
            assert!(again.tokens().zip(tokens).all(|((_, now), then)| now.get() > then));
            again.unlock().unwrap();
        }
    }
}

#[test]
fn locks_that_do_not_go_together_are_taken_one_by_one() {
    let (server, second) = (server(), server());
    let (client, other) = (warm(&server), client(&server));
    let there = super::client(&second).reentrant_lock("there");
    let plain = ["a", "b"].map(|name| client.reentrant_lock(name));
    let fixed = plain[1].with_lease(LONG_LEASE);
    let kept = plain[1].with_hold_at_least(TIME_UNIT);
    let longer = plain[1].with_watchdog(LONG_LEASE * 2);
    let fenced = client.fenced_lock("fenced");
    let other = other.reentrant_lock("other");
    let both = |lock: &dyn Lock| MultiLock::new(&[&plain[0], lock]).unwrap();
    for (what, all, expected) in [
        ("fair", of_kind(&client, "fair", 2), 2..=2),
        ("read", of_kind(&client, "read", 2), 2..=2),
        ("a fixed lease", both(&fixed), 2..=2),
        ("a least time", both(&kept), 2..=3),
        ("another lease", both(&longer), 2..=2),
        ("of two kinds", both(&fenced), 2..=2),
        ("of two clients", both(&other), 2..=2),
        ("on two servers", both(&there), 1..=1),
    ] {
        all.lock().unwrap().unlock().unwrap();
        wait_all_free(&server, &["a", "b"]);
        // A background thread may send another script meanwhile, so there may be more scripts.
        let each = (0..5).map(|_| {
            let (taken, guard) = lock_of(&server, &all);
            guard.unlock().unwrap();
            wait_all_free(&server, &["a", "b"]);
            taken
        });
        let taken = each.min().unwrap();
        assert!(expected.contains(&taken), "{what}: {taken}");
    }
    // The thread itself holds one of the locks, and another thread of its process holds a second
    // lock.
    let all = of(&plain);
    let outer = plain[1].lock().unwrap();
    let (taken, guard) = lock_of(&server, &all);
    assert_eq!(taken, 1);
    guard.unlock().unwrap();
    assert!(all.try_lock().unwrap().into_option().is_some());
    let (taken, got) = scripts_of(&server, || {
        let all = all.clone();
        elsewhere(move || all.try_lock().unwrap().into_option().is_some())
    });
    assert!(!got && taken <= 3, "{taken}");
    outer.unlock().unwrap();
}

/// The call does not take the first lock even for a moment, so another thread finds that lock free.
#[test]
fn a_try_that_finds_one_held_touches_none() {
    let server = server();
    let (client, other) = (warm(&server), client(&server));
    let all = all_of(&client, &NAMES);
    all.lock().unwrap().unlock().unwrap();
    let check = |whose: &str| {
        let before = Commands::so_far(&server);
        let (asked, guard) = scripts_of(&server, || all.try_lock().unwrap().into_option());
        let after = Commands::so_far(&server);
        assert!(guard.is_none(), "{whose}");
        assert_eq!((asked, after.of("hset") - before.of("hset")), (1, 0), "{whose}");
    };
    let taken = other.reentrant_lock("c").lock().unwrap();
    check("ours");
    taken.unlock().unwrap();
    let mut redisson = server.connection();
    hold_as_redisson(&mut redisson, "c", LONG_LEASE);
    check("Redisson's");
    // A call that waits requests the locks one by one.
    let waiter = spawn(move || all.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "c", 1);
    assert!(is_held(&server, "a") && is_held(&server, "b"));
    release_as_redisson(&mut redisson, "c", &channel("c"));
    waiter.join();
    wait_all_free(&server, &NAMES);
}

#[test]
fn while_the_first_is_waited_for_other_threads_take_and_release_the_next() {
    let server = server();
    let (client, other) = (warm(&server), client(&server));
    let taken = other.reentrant_lock("a").lock().unwrap();
    let both = all_of(&client, &["a", "b"]);
    let waiter = spawn(move || both.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "a", 1);
    waiter.wait_asleep();
    let next = client.reentrant_lock("b");
    for _ in 0..3 {
        let guard: LockGuard = next.try_lock_for(TIMEOUT).unwrap().into_option().expect("free");
        guard.unlock().unwrap();
        assert!(next.try_lock().unwrap().into_option().is_some());
    }
    taken.unlock().unwrap();
    waiter.join();
}

/// A lock may have waiters, or may be reserved for Redisson's clients for a moment (a window). A
/// request must not take such a lock from the owner whose turn it is.
#[test]
fn no_part_is_taken_past_its_queue_or_within_a_window() {
    let server = server();
    let client = warm(&server);
    let all = all_of(&client, &NAMES);
    let mut redis = server.connection();
    // A process that is gone.
    let gone = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:1";
    for name in NAMES {
        let () = redis.rpush(format!("redlatch_queue:{{{name}}}"), gone).unwrap();
        let (asked, guard) = lock_of(&server, &all);
        assert!(asked > 1, "one by one");
        let left: usize = redis.llen(format!("redlatch_queue:{{{name}}}")).unwrap();
        assert_eq!(left, 0, "its turn has come and gone");
        guard.unlock().unwrap();

        let window = format!("redlatch_window:{{{name}}}");
        let () = redis.set(&window, "").unwrap();
        let (asked, guard) = scripts_of(&server, || all.try_lock().unwrap().into_option());
        assert_eq!(asked, 4, "one by one, since a `try` may take it");
        guard.expect("nobody has one").unlock().unwrap();
        let () = redis.del(&window).unwrap();
    }
}

/// The call gets all locks that the first copy of the request has taken.
#[test]
fn a_reply_that_is_lost_is_asked_for_again() {
    let server = server();
    for kind in KINDS {
        let proxy = Proxy::before(&server);
        let client = impatient(&proxy.url()).connect_timeout(TIMEOUT).connections(1);
        let client = client.connect().unwrap();
        let all = of_kind(&client, kind, 3);
        all.lock().unwrap().unlock().unwrap();
        let names: Vec<_> = all.names().map(str::to_owned).collect();
        proxy.on_request(names[1].clone(), Action::LoseReply);
        let (asked, guard) = lock_of(&server, &all);
        assert_eq!(asked, 2, "{kind}: the request and its copy");
        assert!(guard.is_held());
        guard.unlock().unwrap();
        wait_all_free(&server, &names.iter().map(String::as_str).collect::<Vec<_>>());
        all.lock().unwrap().unlock().unwrap();
    }
}

/// Locks that are not given back would stay taken until the end of a lease.
#[test]
fn all_that_a_request_without_a_reply_has_taken_is_given_back() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).connections(1).connect().unwrap();
    let all = all_of(&client, &NAMES);
    for _ in 0..2 {
        all.lock().unwrap().unlock().unwrap();
    }
    proxy.on_request("EVALSHA", Action::HoldReply);
    let taker =
        spawn(move || all.try_lock_for(TIME_UNIT).is_ok_and(|got| got.into_option().is_some()));
    proxy.wait_fired(1, TIMEOUT);
    wait_until("all are taken", TIMEOUT, || NAMES.iter().all(|name| is_held(&server, name)));
    assert!(!taker.join());
    proxy.release();
    wait_all_free(&server, &NAMES);
}

#[test]
fn a_server_that_refuses_has_taken_none() {
    let server = server();
    let client = warm(&server);
    let all = all_of(&client, &NAMES);
    let mut redis = server.connection();
    let () = redis.set("b", "text").unwrap();
    let error = all.lock().map(drop).unwrap_err();
    is_clear(&error, "b", "the key holds a string");
    wait_all_free(&server, &["a", "c"]);
    let () = redis.del("b").unwrap();
    let mut limit = |bytes: &str| {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).exec(&mut redis).unwrap();
    };
    limit("1");
    let error = all.lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
    assert!(!NAMES.iter().any(|name| is_held(&server, name)));
    limit("0");
    all.lock().unwrap().unlock().unwrap();
}

/// If a user has rights for only some names, the client checks each name once.
#[test]
fn a_user_without_the_rights_of_one_part_takes_none() {
    let server = server();
    let mut user = User::new(&server, "shopper");
    let keys = |names: &[&str]| {
        let each = |name: &&str| {
            let behind = ["queue", "window", "asked"].map(|it| format!("~redlatch_{it}:{{{name}*"));
            [format!("~{name}*")].into_iter().chain(behind).collect::<Vec<_>>()
        };
        names.iter().flat_map(each).collect::<Vec<_>>()
    };
    let mut set = |names: &[&str]| {
        let keys = keys(names);
        let rules = ["resetkeys"].into_iter().chain(keys.iter().map(String::as_str));
        user.set(&rules.collect::<Vec<_>>());
        Client::builder(user.url()).connections(1).connect().unwrap()
    };
    let error = all_of(&set(&["a", "c"]), &NAMES).lock().map(drop).unwrap_err();
    is_clear(&error, "b", "to one of the keys of this name is missing");
    wait_all_free(&server, &NAMES);
    let client = set(&NAMES);
    let all = all_of(&client, &NAMES);
    // The request that checks the rights has another text. After the second request, the server
    // knows the script itself.
    for _ in 0..2 {
        all.lock().unwrap().unlock().unwrap();
    }
    let before = Commands::so_far(&server).of("eval");
    let (asked, guard) = lock_of(&server, &all);
    guard.unlock().unwrap();
    assert_eq!((asked, Commands::so_far(&server).of("eval") - before), (1, 0));
}

/// The state of an observer that takes "b" away when a client has taken "a" of several locks, and
/// gives "b" to the other client.
#[derive(Default)]
struct Robs {
    clients: std::sync::OnceLock<(Client, Client)>,
    robbed: std::sync::Mutex<Vec<redlatch::OwnedLockGuard>>,
}

struct Observes(Arc<Robs>);

impl redlatch::observe::Observer for Observes {
    fn acquired(&self, event: &redlatch::observe::Event<'_, redlatch::observe::Way>) {
        let Some((client, other)) = self.0.clients.get() else { return };
        if event.name == "a" && self.0.robbed.lock().unwrap().is_empty() {
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(client.reentrant_lock("b").force_unlock().unwrap());
                    let b = other.reentrant_lock("b").lock_owned().unwrap();
                    self.0.robbed.lock().unwrap().push(b);
                });
            });
        }
    }
}

#[test]
fn a_thread_that_waits_for_a_lock_keeps_none_behind_it() {
    let server = server();
    let robs = Arc::new(Robs::default());
    let client = Client::builder(&server.url())
        .watchdog_timeout(LONG_LEASE)
        .observer(Observes(Arc::clone(&robs)))
        .connect()
        .unwrap();
    let other = super::client(&server);
    let all = all_of(&client, &NAMES);
    all.lock().unwrap().unlock().unwrap();
    robs.clients.set((client.clone(), other.clone())).ok().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| all.lock().unwrap().unlock().unwrap());
        while robs.robbed.lock().unwrap().is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        wait_in_line(&server, "b", 1);
        let limit = Duration::from_secs(2);
        let here = client.reentrant_lock("c").try_lock_for(limit).unwrap().into_option();
        let got_here = here.is_some();
        drop(here);
        let there = other.reentrant_lock("c").try_lock_for(limit).unwrap().into_option();
        let got_there = there.is_some();
        drop(there);
        robs.robbed.lock().unwrap().clear();
        assert!(got_here && got_there, "nobody else can have c while the thread waits for b");
    });
}

/// Counts the waits that began, and those that ended without a grant.
#[derive(Default)]
struct Waits([AtomicUsize; 2]);

impl redlatch::observe::Observer for Waits {
    fn wait_started(&self, _: &redlatch::observe::Event<'_>) {
        self.0[0].fetch_add(1, Ordering::SeqCst);
    }

    fn gave_up(&self, _: &redlatch::observe::Event<'_, Option<ErrorKind>>) {
        self.0[1].fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_try_that_finds_one_held_is_told_to_the_observer() {
    let server = server();
    let waits = Arc::new(Waits::default());
    let client = Client::builder(&server.url()).observer(Arc::clone(&waits)).connect().unwrap();
    let taken = super::client(&server).reentrant_lock("b").lock_owned().unwrap();
    assert!(all_of(&client, &NAMES).try_lock().unwrap().into_option().is_none());
    let [began, gave_up] = waits.0.each_ref().map(|count| count.load(Ordering::SeqCst));
    assert_eq!((began, gave_up), (1, 1));
    taken.unlock().unwrap();
}

/// The server stands still, so the thread does not know whether a lock is taken.
#[test]
fn during_an_outage_a_call_with_a_limit_fails_when_its_limit_ends() {
    let server = server();
    let client = client(&server);
    let all = all_of(&client, &NAMES);
    all.lock().unwrap().unlock().unwrap();
    server.pause();
    // A server that has answered within the last second counts as working.
    thread::sleep(Duration::from_millis(1_200));
    let begun = Instant::now();
    let limit = TIME_UNIT * 10;
    let outcome = all.try_lock_for(limit).map(drop);
    let lasted = begun.elapsed();
    server.resume();
    assert!(outcome.is_err(), "{outcome:?}");
    // An attempt of its own for each lock would need a limit of its own.
    assert!(lasted < limit * 2, "{lasted:?}");
}
