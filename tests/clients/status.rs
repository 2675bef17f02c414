//! A client's report about a name that other clients use.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use redis::{Commands as _, Connection};
use redlatch::status::StatusKind;
use redlatch::{Client, ErrorKind, Lock, MultiLock, Owner, PermitId};
use redlatch_testkit::{Action, Cluster, Direction, Proxy, Server};

use crate::common::*;

fn changes(redis: &mut Connection) -> String {
    let info: String = redis::cmd("INFO").arg("persistence").query(redis).unwrap();
    info.lines().find(|line| line.starts_with("rdb_changes_since")).unwrap().to_owned()
}

fn parsed(owner: &str) -> Owner {
    owner.parse().unwrap()
}

/// Returns the kind of a name, and the number of its holders, waiters and listeners.
fn seen(client: &Client, name: &str) -> (StatusKind, [u64; 3]) {
    let status = client.status(name).unwrap();
    let counts = [status.holders.len() as u64, status.queue.len() as u64, status.listeners];
    (status.kind, counts)
}

#[test]
fn a_status_names_the_holder_and_the_queue_in_its_order_with_their_processes() {
    let server = server();
    let holder = client(&server);
    let waiting = [client(&server), client(&server)];
    let watcher = Client::builder(&server.url()).name("watcher").connect().unwrap();
    let guard = holder.reentrant_lock("orders").lock().unwrap();
    let mut threads = Vec::new();
    for (at, client) in waiting.iter().enumerate() {
        let lock = client.reentrant_lock("orders");
        threads.push(spawn(move || lock.lock().map(drop).unwrap()));
        wait_in_line(&server, "orders", at as u64 + 1);
    }
    let asked_again =
        || watcher.status("orders").unwrap().queue.iter().all(|it| it.waited.is_some());
    wait_until("both have asked again", TIMEOUT, asked_again);
    let status = watcher.status("orders").unwrap();
    assert_eq!(status.kind, StatusKind::Lock);
    let [held] = &status.holders[..] else { panic!("{status:?}") };
    assert!(
        held.owner.as_str().starts_with(holder.id()) && !held.shared && held.levels == 1,
        "{held:?}"
    );
    assert!(held.left > LONG_LEASE / 2 && held.left <= LONG_LEASE, "{held:?}");
    assert_eq!(held.process.as_ref().unwrap().pid(), Some(std::process::id()), "{held:?}");
    assert!(held.process.as_ref().unwrap().host().is_some(), "{held:?}");
    assert_eq!(status.queue.len(), 2, "{status:?}");
    for (client, waiter) in waiting.iter().zip(&status.queue) {
        assert!(waiter.owner.as_str().starts_with(client.id()), "{status:?}");
        assert!(waiter.waited.unwrap() < TIMEOUT * 2, "{waiter:?}");
        assert_eq!(waiter.process.as_ref().unwrap().pid(), Some(std::process::id()));
    }
    guard.unlock().unwrap();
    threads.into_iter().for_each(Running::join);
    // A dropped guard's release is sent after the drop has returned.
    wait_until("the name is free", TIMEOUT, || {
        seen(&watcher, "orders") == (StatusKind::Free, [0; 3])
    });
}

#[test]
fn a_guard_has_the_owner_that_the_status_shows() {
    let server = server();
    let client = client(&server);
    let shown = |name: &str| {
        let status = client.status(name).unwrap();
        let [holder] = &status.holders[..] else { panic!("{status:?}") };
        holder.owner.clone()
    };
    let both = client.read_write_lock("read");
    let written = client.read_write_lock("written");
    for guard in [
        client.reentrant_lock("lock").lock_owned().unwrap(),
        client.fair_lock("fair").lock_owned().unwrap(),
        client.fenced_lock("fenced").lock_owned().unwrap().into(),
        both.reader().lock_owned().unwrap(),
        written.writer().lock_owned().unwrap(),
    ] {
        let owner = guard.owner().unwrap();
        assert!(owner.as_str().starts_with(client.id()), "{owner}");
        assert_eq!(owner, shown(guard.name()), "{guard:?}");
        assert!(client.release_owner(guard.name(), &owner).unwrap(), "{guard:?}");
    }

    let [one, two] = ["one", "two"].map(|name| client.reentrant_lock(name));
    let guard = MultiLock::new(&[&one, &two]).unwrap().lock().unwrap();
    let owners: Vec<_> = guard.owners().map(|(name, owner)| (name, owner == shown(name))).collect();
    assert_eq!(owners, [("one", true), ("two", true)]);
    assert_eq!(guard.owner(), None);
}

#[test]
fn each_kind_is_known_by_its_keys() {
    let server = server();
    let (one, watcher) = (client(&server), client(&server));
    let mut redis = server.connection();

    let fenced = one.fenced_lock("fenced").lock().unwrap();
    let status = watcher.status("fenced").unwrap();
    assert_eq!(status.kind, StatusKind::FencedLock);
    assert!(status.token.unwrap() >= fenced.token(), "{status:?}");

    let fair = one.fair_lock("fair").lock().unwrap();
    let lock = watcher.fair_lock("fair");
    let second = spawn(move || lock.lock().map(drop).unwrap());
    wait_until("it waits", TIMEOUT, || seen(&watcher, "fair") == (StatusKind::FairLock, [1, 1, 0]));

    let shelves = one.read_write_lock("shelves");
    let reading = shelves.reader().lock().unwrap();
    let lock = watcher.read_write_lock("shelves").writer().clone();
    let writer = spawn(move || lock.lock().map(drop).unwrap());
    wait_until("it waits", TIMEOUT, || {
        seen(&watcher, "shelves") == (StatusKind::ReadWriteLock, [1, 1, 0])
    });
    let status = watcher.status("shelves").unwrap();
    assert!(status.holders[0].shared && !status.queue[0].shared, "{status:?}");
    assert!(status.holders[0].owner.as_str().starts_with(one.id()), "{status:?}");

    let permits = one.expirable_semaphore("permits");
    assert!(permits.try_set_permits(3).unwrap());
    assert_eq!(seen(&watcher, "permits"), (StatusKind::Number, [0; 3]));
    let permit = permits.acquire().unwrap();
    let status = watcher.status("permits").unwrap();
    assert_eq!((status.kind, status.value), (StatusKind::ExpirableSemaphore, Some(2)));
    assert_eq!(status.holders[0].owner, permit.id().into());
    assert!(status.holders[0].left <= LONG_LEASE, "{status:?}");
    let process = status.holders[0].process.as_ref().unwrap();
    assert_eq!(process.pid(), Some(std::process::id()));

    let semaphore = one.semaphore("slots");
    let taker = spawn(move || semaphore.acquire().map(drop).unwrap());
    wait_until("it waits", TIMEOUT, || {
        seen(&watcher, "slots") == (StatusKind::Semaphore, [0, 0, 1])
    });

    let latch = one.count_down_latch("ready");
    assert!(latch.try_set_count(2).unwrap());
    let opened = spawn(move || latch.wait().unwrap());
    wait_until("it waits", TIMEOUT, || {
        seen(&watcher, "ready") == (StatusKind::CountDownLatch, [0, 0, 1])
    });
    assert_eq!(watcher.status("ready").unwrap().value, Some(2));

    let _added: () = redis.rpush("list", "of another program").unwrap();
    let _set: () = redis.hset("hash", "field", "of another program").unwrap();
    let _set: () = redis.set("text", "of another program, and longer than a number").unwrap();
    for foreign in ["list", "hash", "text"] {
        assert_eq!(seen(&watcher, foreign), (StatusKind::Other, [0; 3]), "{foreign}");
    }

    // Reading the status has changed nothing.
    let before = changes(&mut redis);
    for name in ["fenced", "permits", "slots", "ready", "list", "hash", "text", "unused"] {
        watcher.status(name).unwrap();
    }
    assert_eq!(changes(&mut redis), before);

    drop((fenced, fair, reading, permit));
    one.semaphore("slots").add_permits(1).unwrap();
    let latch = one.count_down_latch("ready");
    latch.count_down().and_then(|()| latch.count_down()).unwrap();
    [second, writer, taker, opened].into_iter().for_each(Running::join);
}

#[test]
fn redissons_holder_is_named_and_its_process_if_its_connection_is() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "java", LONG_LEASE);
    let status = client.status("java").unwrap();
    assert_eq!(status.holders[0].owner.as_str(), FOREIGN);
    assert_eq!(status.holders[0].process, None);
    let (uuid, _) = FOREIGN.split_once(':').unwrap();
    let named = format!("shop#{uuid}");
    redis::cmd("CLIENT").arg(&["SETNAME", &named]).exec(&mut redis).unwrap();
    let status = client.status("java").unwrap();
    let process = status.holders[0].process.as_ref().unwrap();
    assert_eq!((&*process.name, process.host(), process.pid()), ("shop", None, None));
    assert!(process.address.starts_with("127.0.0.1:"), "{process:?}");
}

#[test]
fn what_redisson_or_another_program_wrote_is_read_as_they_mean_it() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let (seconds, _): (i64, i64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let ends = |seconds_more| (seconds + seconds_more) * 1_000;
    let text = "00112233445566778899aabbccddeeff";
    let () = redis.set("permits", 1).unwrap();
    for (id, end) in [
        (&[0xff; 16][..], 922_337_203_685_477),
        (text.as_bytes(), ends(60)),
        (&[0x11; 16][..], ends(-60)),
    ] {
        let () = redis.zadd("{permits}:timeout", id, end).unwrap();
    }
    let status = client.status("permits").unwrap();
    assert_eq!(status.kind, StatusKind::ExpirableSemaphore);
    let mut permits: Vec<_> =
        status.holders.iter().map(|it| (it.owner.as_str(), it.left)).collect();
    permits.sort();
    let [(first, left), (second, Duration::MAX)] = permits[..] else { panic!("{status:?}") };
    assert_eq!((first, second), (text, &*"ff".repeat(16)));
    assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(60), "{status:?}");

    let other = format!("{}:write", FOREIGN.replace(':', ":4"));
    let () =
        redis.hset_multiple("page", &[("mode", "write"), (FOREIGN, "2"), (&other, "1")]).unwrap();
    let () = redis.pexpire("page", 60_000).unwrap();
    let reads = format!("{{page}}:{FOREIGN}:rwlock_timeout:2");
    let () = redis.pset_ex(reads, "1", 20_000).unwrap();
    let status = client.status("page").unwrap();
    assert_eq!(status.kind, StatusKind::ReadWriteLock);
    let is_short = |left: Duration| left <= Duration::from_secs(20);
    let holders = status
        .holders
        .iter()
        .map(|it| (it.owner.as_str(), it.shared, it.levels, is_short(it.left)));
    let mut holders: Vec<_> = holders.collect();
    holders.sort_by_key(|holder| holder.2);
    let writer = other.strip_suffix(":write").unwrap();
    assert_eq!(holders, [(writer, false, 1, false), (FOREIGN, true, 2, true)]);

    hold_as_redisson(&mut redis, "java", LONG_LEASE);
    let () = redis.set("redisson_lock_token:{java}", "no number").unwrap();
    let status = client.status("java").unwrap();
    assert_eq!((status.kind, status.token), (StatusKind::Lock, None));
    // No reply can have a number this large.
    let () = redis.hset("java", FOREIGN, i64::MAX).unwrap();
    let () = redis.set("redisson_lock_token:{java}", i64::MAX).unwrap();
    let status = client.status("java").unwrap();
    assert_eq!((status.holders[0].levels, status.token), (1, None), "{status:?}");

    let () = redis.set("text", b"\xff\xfe").unwrap();
    let () = redis.hset("hash", b"\xff", b"\xfe").unwrap();
    let () = redis.pexpire("hash", 60_000).unwrap();
    for foreign in ["text", "hash"] {
        assert_eq!(seen(&client, foreign), (StatusKind::Other, [0; 3]), "{foreign}");
    }
}

#[test]
fn without_the_right_to_list_clients_processes_are_unknown_and_without_a_key_it_is_an_error() {
    let server = server();
    let mut user = User::new(&server, "watcher");
    let watcher = user.client();
    let _guard = client(&server).reentrant_lock("orders").lock().unwrap().leave_to_expire();
    user.set(&["-client"]);
    let status = watcher.status("orders").unwrap();
    assert_eq!(status.holders.len(), 1);
    assert_eq!(status.holders[0].process, None);
    for denied in ["-type", "resetkeys"] {
        user.set(&[denied]);
        let error = watcher.status("orders").unwrap_err();
        is_clear(&error, "orders", "access rights (ACL)");
        user.set(&["~*", "+@all"]);
    }
    let error = watcher.status("").unwrap_err();
    assert!(error.to_string().contains("name"), "{error}");
}

/// The server's work is counted in commands, because its time depends on the machine. (No client
/// of redlatch holds the lock, because a holder's client would send commands of its own.)
#[test]
fn a_long_queue_is_cut_and_costs_the_server_no_more_than_its_first_part() {
    let server: Server = server();
    let client = client(&server);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "orders", LONG_LEASE);
    let (uuid, _) = FOREIGN.split_once(':').unwrap();
    let mut commands_with = |numbers: std::ops::Range<u32>| -> u64 {
        let mut pipe = redis::pipe();
        for number in numbers {
            pipe.rpush("redlatch_queue:{orders}", format!("{uuid}:{number}")).ignore();
        }
        pipe.exec(&mut redis).unwrap();
        client.status("orders").unwrap();
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut redis).unwrap();
        let queue = client.status("orders").unwrap().queue;
        assert_eq!((queue.len(), queue[999].owner.as_str()), (1_000, &*format!("{uuid}:999")));
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut redis).unwrap();
        let calls = |line: &str| -> Option<u64> {
            line.split_once(":calls=")?.1.split_once(',')?.0.parse().ok()
        };
        stats.lines().filter(|line| !line.contains("ping")).filter_map(calls).sum()
    };
    let (uncut, cut) = (commands_with(0..1_000), commands_with(1_000..5_000));
    println!("{uncut} commands for 1,000 entries, then {cut} for 5,000");
    assert!(0 < uncut && uncut < 1_100, "{uncut} commands for 1,000 entries");
    assert!(cut <= uncut + 1, "{uncut} commands for 1,000 entries, then {cut} for 5,000");
}

#[test]
fn in_a_cluster_a_status_comes_from_the_server_of_its_name() {
    bound();
    let cluster = Cluster::without_replicas().expect("a cluster to test on");
    let [holder, watcher] = [(); 2]
        .map(|()| Client::builder(&cluster.url()).watchdog_timeout(LONG_LEASE).connect().unwrap());
    for name in ["orders", "{shop}:orders", "stock", "invoices"] {
        let guard = holder.reentrant_lock(name).lock().unwrap();
        let status = watcher.status(name).unwrap();
        assert_eq!((status.kind, status.holders.len()), (StatusKind::Lock, 1), "{name}");
        let process = status.holders[0].process.as_ref().unwrap();
        assert_eq!(process.pid(), Some(std::process::id()), "{name}");
        guard.unlock().unwrap();
    }
    let error = watcher.status("a}b").unwrap_err();
    assert!(error.to_string().contains("braces"), "{error}");
}

#[test]
fn all_that_is_held_or_waited_for_is_listed_and_nothing_else() {
    let server = server();
    let (one, watcher) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut pipe = redis::pipe();
    for number in 0..2_000 {
        pipe.set(format!("foreign:{number}"), "text").ignore();
    }
    pipe.hset("foreign hash", "field", "value").ignore();
    pipe.exec(&mut redis).unwrap();
    let guards = ["a", "b", "a{x}"].map(|name| one.reentrant_lock(name).lock().unwrap());
    let permits = one.expirable_semaphore("permits");
    assert!(permits.try_set_permits(3).unwrap());
    let permit = permits.acquire().unwrap();
    let tagged = one.expirable_semaphore("{x}permits");
    assert!(tagged.try_set_permits(3).unwrap());
    let tagged = tagged.acquire().unwrap();
    let slots = ["slots", "{x}slots"];
    let takers = slots.map(|name| {
        let semaphore = one.semaphore(name);
        spawn(move || semaphore.acquire().map(drop).unwrap())
    });
    wait_until("they wait", TIMEOUT, || {
        slots.iter().all(|name| seen(&watcher, name).1 == [0, 0, 1])
    });
    let listed = |pattern: &str| {
        let all = watcher.statuses(pattern).unwrap();
        all.into_iter().map(|status| status.name).collect::<Vec<_>>()
    };
    assert_eq!(listed("*"), ["a", "a{x}", "b", "permits", "slots", "{x}permits", "{x}slots"]);
    assert_eq!(listed("{x}*"), ["{x}permits", "{x}slots"]);
    assert_eq!(listed("*slots"), ["slots", "{x}slots"]);
    assert_eq!(listed("?"), ["a", "b"]);
    let status = watcher.statuses("b").unwrap().remove(0);
    let process = status.holders[0].process.as_ref().unwrap();
    assert_eq!(process.pid(), Some(std::process::id()));
    drop((guards, permit, tagged));
    slots.iter().for_each(|name| one.semaphore(name).add_permits(1).unwrap());
    takers.into_iter().for_each(Running::join);
}

#[test]
fn a_hold_is_ended_for_its_owner_alone_and_the_next_waiter_has_the_lock() {
    let server = server();
    let (one, other, watcher) = (client(&server), client(&server), client(&server));
    let mut redis = server.connection();
    for kind in 0..4 {
        let locks = [&one, &other].map(|client| -> Box<dyn Lock> {
            match kind {
                0 => Box::new(client.reentrant_lock("orders")),
                1 => Box::new(client.fenced_lock("orders")),
                2 => Box::new(client.fair_lock("orders")),
                _ => Box::new(client.read_write_lock("orders").writer().clone()),
            }
        });
        let [first, second] = locks;
        let guard = first.lock().unwrap();
        let waiter = spawn(move || second.lock().map(drop).unwrap());
        wait_until("it waits", TIMEOUT, || watcher.status("orders").unwrap().queue.len() == 1);
        let status = watcher.status("orders").unwrap();
        let owner = &status.holders[0].owner;
        let permit = PermitId::from_bytes([7; 16]).into();
        let strangers =
            [parsed(FOREIGN), status.queue[0].owner.clone(), parsed(&format!("{owner}0"))];
        for stranger in strangers.iter().chain([&permit]) {
            assert!(!watcher.release_owner("orders", stranger).unwrap(), "{kind}: {stranger}");
        }
        assert!(guard.is_held() && !waiter.is_finished());
        assert!(watcher.release_owner("orders", owner).unwrap(), "{kind}");
        waiter.join();
        assert!(!watcher.release_owner("orders", owner).unwrap(), "{kind}");
        wait_until("the loss is told", TIMEOUT, || !guard.is_held());
        drop(guard);
        redis::cmd("FLUSHALL").exec(&mut redis).unwrap();
    }
    hold_as_redisson(&mut redis, "java", LONG_LEASE);
    assert!(watcher.release_owner("java", &parsed(FOREIGN)).unwrap());
    assert_eq!(seen(&watcher, "java"), (StatusKind::Free, [0; 3]));
}

#[test]
fn a_permit_is_taken_from_its_owner_and_a_holder_that_another_program_wrote_is_an_error() {
    let server = server();
    let (one, watcher) = (client(&server), client(&server));
    let slots = one.expirable_semaphore("slots").with_permits(1);
    let permit = slots.acquire().unwrap();
    let owner = watcher.status("slots").unwrap().holders[0].owner.clone();
    assert!(watcher.release_owner("slots", &owner).unwrap());
    assert_eq!(slots.available_permits().unwrap(), 1);
    assert!(!watcher.release_owner("slots", &owner).unwrap());
    wait_until("the loss is told", TIMEOUT, || !permit.is_held());

    let mut redis = server.connection();
    let () = redis.zadd("{slots}:timeout", "nobody", i64::MAX / 1_024).unwrap();
    let strange = watcher.status("slots").unwrap().holders[0].owner.clone();
    assert_eq!(strange.as_str(), "nobody");
    let error = watcher.release_owner("slots", &strange).unwrap_err();
    assert!(error.to_string().contains("another program"), "{error}");
    let left: i64 = redis.zcard("{slots}:timeout").unwrap();
    assert_eq!((error.kind(), left), (ErrorKind::Config, 1));
}

/// If a lock's token key has the value 0, the status has no last token. The next grants still have
/// tokens.
#[test]
fn the_next_holder_has_a_token_if_none_was_given_out_before_a_hold_is_ended() {
    let server = server();
    let (one, watcher) = (client(&server), client(&server));
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "java", LONG_LEASE);
    let () = redis.set("redisson_lock_token:{java}", 0).unwrap();
    let lock = one.fenced_lock("java");
    let waiter = spawn(move || lock.lock().unwrap().token().get());
    wait_until("it waits", TIMEOUT, || watcher.status("java").unwrap().queue.len() == 1);
    wait_hearing(&server, 1);
    let status = watcher.status("java").unwrap();
    assert_eq!((status.kind, status.token), (StatusKind::FencedLock, None));
    assert!(watcher.release_owner("java", &parsed(FOREIGN)).unwrap());
    assert!(waiter.join() > 0);
}

/// Without a waiter, the server cannot tell a fair lock from any other lock. The release of another
/// kind of lock wakes no fair waiter. (A live redlatch holder would notice its loss and wake the
/// fair waiter.)
#[test]
fn a_fair_waiter_that_comes_while_a_hold_is_ended_has_the_lock_then() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (other, steady) = (client(&server), client(&server));
    let watcher = Client::connect(&proxy.url()).unwrap();
    hold_as_redisson(&mut server.connection(), "fair", LONG_LEASE);
    let (sends, sent) = mpsc::channel();
    let (goes, go) = mpsc::channel();
    let go = Mutex::new(go);
    proxy.on(Direction::Request, 1, Action::DelayReply(Duration::ZERO), move |bytes| {
        let releases = contains(bytes, "EVAL") && contains(bytes, FOREIGN);
        if releases {
            sends.send(()).unwrap();
            go.lock().unwrap().recv().unwrap();
        }
        releases
    });
    let ends = spawn(move || watcher.release_owner("fair", &parsed(FOREIGN)).unwrap());
    sent.recv().unwrap();
    let fair = other.fair_lock("fair");
    let (looked, has_looked) = mpsc::channel::<()>();
    let waiter = spawn(move || {
        let _guard = fair.lock().unwrap();
        let _ended = has_looked.recv();
    });
    wait_until("it waits", TIMEOUT, || steady.status("fair").unwrap().queue.len() == 1);
    // A script skips an entry whose process has not subscribed yet. That process soon sends another
    // request.
    wait_hearing(&server, 1);
    goes.send(()).unwrap();
    assert!(ends.join());
    let status = steady.status("fair").unwrap();
    assert_eq!((status.holders.len(), status.queue.len()), (1, 0));
    drop(looked);
    waiter.join();
}
