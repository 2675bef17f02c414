//! Locks after a failover.

use redlatch::{Attempt, Taken};

use super::*;

/// If the new master has a hold, the hold stays and is renewed. Other holds are reported as lost.
/// Waiters keep waiting.
fn outlasts(end: End) {
    let sentinels = sentinels();
    let client = builder(&sentinels.url()).watchdog_timeout(LONGER).connect().unwrap();
    let other = client_of(&sentinels);
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let unknown = client.reentrant_lock("unknown").lock().unwrap();
    let fixed = client.reentrant_lock("fixed").with_lease(LONG_LEASE).lock().unwrap();
    let (kept_lost, unknown_lost, fixed_lost) = (losses(&kept), losses(&unknown), losses(&fixed));
    let wait = |name: &str| {
        let lock = other.reentrant_lock(name);
        let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
        wait_in_line(sentinels.master(), name, 1);
        waiter
    };
    let (for_kept, for_unknown) = (wait("kept"), wait("unknown"));
    wait_replicated(&sentinels, "kept");
    keep_from_replicas(&sentinels, "unknown");
    keep_from_replicas(&sentinels, "fixed");

    let ends = |guard: &LockGuard| Instant::now() + guard.remaining();
    let ended = ends(&kept);
    end.of(&sentinels);
    for lost in [unknown_lost, fixed_lost] {
        assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::Revoked, "{end:?}");
    }
    assert!(!unknown.is_held() && !fixed.is_held());
    // The thread that waited for the lost lock gets it.
    for_unknown.join();
    assert_eq!(unknown.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    // The hold is renewed on the new master.
    let new = sentinels.master();
    wait_until("it is renewed", TIMEOUT, || ends(&kept) > ended + TIME_UNIT);
    assert!(kept.is_held() && kept_lost.try_recv().is_err());
    assert!(holder(&mut new.connection(), "kept").is_some());
    kept.unlock().unwrap();
    for_kept.join();
    wait_free(new, "kept", TIMEOUT);
}

#[test]
fn locks_outlast_a_master_that_is_killed() {
    outlasts(End::Killed);
}

#[test]
fn locks_outlast_a_master_that_stands_still() {
    outlasts(End::Stopped);
}

#[test]
fn locks_outlast_a_master_that_is_replaced_on_command() {
    outlasts(End::Replaced);
}

/// The old master lives and accepts writes. The Sentinels cannot make it a replica or close its
/// clients' connections.
#[test]
fn once_another_master_is_known_the_old_one_grants_nothing() {
    let sentinels = sentinels();
    let client = client_of(&sentinels);
    let old = sentinels.master();
    // All connections are open: for callers, for renewals and for messages.
    let guard = client.reentrant_lock("held").lock().unwrap();
    let waiting = client.clone();
    let waiter = spawn(move || drop(waiting.reentrant_lock("waited").lock().unwrap()));
    waiter.join();
    wait_replicated(&sentinels, "held");
    let rules = ["SETUSER", "default", "-replicaof", "-slaveof", "-client"];
    redis::cmd("ACL").arg(&rules).exec(&mut old.connection()).unwrap();
    sentinels.fail_over();
    let new = sentinels.master();
    wait_until("the new one is used", TIMEOUT, || {
        // The old master may have granted this lock, and the grant may then be lost. If so, the
        // release returns an error.
        let _told = client.reentrant_lock("new").lock().unwrap().unlock();
        Commands::so_far(new).scripts() > 0
    });
    let before = Commands::so_far(old).of_locks();
    for at in 0..50 {
        client.reentrant_lock(&format!("lock {at}")).lock().unwrap().unlock().unwrap();
    }
    assert_eq!(Commands::so_far(old).of_locks(), before);
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut old.connection()).unwrap();
    assert_eq!(role[0], redis::Value::BulkString(b"master".to_vec()), "the test shows nothing");
    guard.unlock().unwrap();
}

/// The old master has run the release, and the new master does not know of it.
#[test]
fn a_release_that_only_the_old_master_has_is_made_at_the_new_one_too() {
    let sentinels = sentinels();
    let (client, other) = (client_of(&sentinels), client_of(&sentinels));
    let given_back = locks(&client, "given back");
    let mut master = sentinels.master().connection();
    let mut then: Vec<(String, Vec<u8>)> = Vec::new();
    for lock in &given_back {
        let guard = lock.lock().unwrap();
        // The keys include a reader's timeout.
        let keys: Vec<String> = master.keys(format!("*{}*", lock.name())).unwrap();
        for key in keys.into_iter().filter(|key| !key.contains("token")) {
            let value = redis::cmd("DUMP").arg(&key).query(&mut master).unwrap();
            then.push((key, value));
        }
        guard.unlock().unwrap();
    }
    assert_eq!(then.len(), 6, "{then:?}");
    // Other locks are held during the failover, taken by `lock` or by `try_lock`. They must stay
    // held.
    let kept = [locks(&client, "locked"), locks(&client, "tried")].map(|locks| {
        locks.map(|lock| {
            let tried = lock.name().starts_with("tried");
            let guard = if tried { lock.try_lock().unwrap() } else { Taken(lock.lock().unwrap()) };
            wait_replicated(&sentinels, lock.name());
            (lock, guard.into_option().unwrap())
        })
    });
    // Other locks were left to expire, and no thread holds them. They must also stay taken.
    let left = locks(&client, "left");
    for lock in &left {
        lock.lock().unwrap().leave_to_expire().unwrap();
        wait_replicated(&sentinels, lock.name());
    }
    put_back_on_replicas(&sentinels, &then);
    sentinels.fail_over();
    let takers = locks(&other, "given back").map(|lock| {
        // For a read lock, try the write lock, because readers may have the lock together.
        let lock: Box<dyn Lock> = match lock.name() {
            name @ "given back read" => Box::new(other.read_write_lock(name).writer().clone()),
            _ => lock,
        };
        spawn(move || {
            let guard = lock.try_lock_for(TIMEOUT).unwrap();
            guard.into_option().map(drop).ok_or_else(|| lock.name().to_owned())
        })
    });
    for taker in takers {
        taker.join().unwrap();
    }
    for (lock, guard) in kept.into_iter().flatten() {
        assert!(guard.is_held(), "{}: {:?}", lock.name(), guard.state());
        guard.unlock().unwrap();
    }
    for lock in left {
        assert!(lock.is_locked().unwrap(), "{}", lock.name());
    }
}

/// The failover takes longer than a call waits for a connection or a reply.
#[test]
fn a_wait_outlasts_a_failover_that_is_slower_than_a_call() {
    bound();
    let sentinels = started(Sentinels::builder().down_after(TIME_UNIT * 40));
    let patient = || impatient(&sentinels.url()).failover_timeout(LONG_LEASE);
    let hasty = patient().failover_timeout(Duration::ZERO).connect().unwrap();
    let client = patient().connect().unwrap();
    let master = sentinels.master();
    let held = client.reentrant_lock("held").with_lease(TIME_UNIT * 40).lock_owned().unwrap();
    let permits = client.semaphore("permits");
    assert!(permits.try_set_permits(0).unwrap());
    let wait = |client: &Client, name: &str| {
        let lock = client.reentrant_lock(name);
        spawn(move || lock.lock().map(drop))
    };
    let other = patient().connect().unwrap();
    let waiters = [wait(&other, "held"), wait(&other, "held")];
    let acquirer = spawn(move || permits.acquire().map(drop));
    let together = ["first", "second", "third"].map(|name| client.reentrant_lock(name));
    let fails = wait(&hasty, "held");
    wait_in_line(master, "held", 2);
    wait_replicated(&sentinels, "held");
    std::mem::forget(held);
    let begun = Instant::now();
    master.kill();
    let error = fails.join().unwrap_err();
    assert!(error.is_transient(), "{error}");
    // A call that does not wait ends at its own limit.
    let error = client.reentrant_lock("now").try_lock().map(drop).unwrap_err();
    assert!(error.is_transient(), "{error}");
    // A waiter with a deadline gets the error that ended its wait.
    let error = client.reentrant_lock("soon").try_lock_for(TIME_UNIT).map(drop).unwrap_err();
    assert!(error.is_transient(), "{error}");
    let taker = spawn(move || {
        let [first, second, third] = &together;
        MultiLock::new(&[first, second, third]).unwrap().lock().map(drop)
    });
    sentinels.wait_switched(master);
    assert!(begun.elapsed() > SHORT_TIMEOUT * 2, "the test shows nothing");
    for waiter in waiters {
        waiter.join().unwrap();
    }
    wait_until("permits can be given", TIMEOUT, || {
        client.semaphore("permits").add_permits(1).is_ok()
    });
    acquirer.join().unwrap();
    taker.join().unwrap();
}

#[test]
fn a_wait_on_a_condition_outlasts_a_failover() {
    bound();
    let sentinels = started(Sentinels::builder().down_after(TIME_UNIT * 40));
    let client = impatient(&sentinels.url()).failover_timeout(LONG_LEASE).connect().unwrap();
    let lock = client.reentrant_lock("lock");
    let changed = lock.condition("changed");
    let (lock_again, changed_again) = (lock.clone(), changed.clone());
    let waiter = spawn(move || {
        let guard = lock_again.lock().unwrap();
        changed_again.wait(&guard).map(|_| guard.is_held())
    });
    let mut redis = sentinels.master().connection();
    wait_until("it waits", TIMEOUT, || {
        redis.exists("redlatch_condition:{lock}:changed:7").unwrap() && !lock.is_locked().unwrap()
    });
    wait_replicated(&sentinels, "redlatch_condition:{lock}:changed:7");
    let begun = Instant::now();
    End::Killed.of(&sentinels);
    assert!(begun.elapsed() > SHORT_TIMEOUT * 2, "the test shows nothing");
    assert!(!waiter.is_finished());
    let guard = lock.lock().unwrap();
    changed.notify_all().unwrap();
    guard.unlock().unwrap();
    assert!(waiter.join().unwrap());
}

/// If a command reaches a server that has become a replica, the same call sends the command to the
/// master.
#[test]
fn a_call_that_a_replica_refuses_asks_for_the_master_anew() {
    let sentinels = sentinels();
    let client = client_of(&sentinels);
    let lock = client.reentrant_lock("moved");
    lock.lock().unwrap().unlock().unwrap();
    let old = sentinels.master();
    // No Sentinel sends a message while the test changes the roles.
    sentinels.sentinels().iter().for_each(Server::pause);
    let new = sentinels.servers().iter().find(|it| it.port() != old.port()).unwrap();
    let replica_of = |server: &Server, of: &[&str]| {
        redis::cmd("REPLICAOF").arg(of).exec(&mut server.connection()).unwrap();
    };
    replica_of(new, &["NO", "ONE"]);
    replica_of(old, &["127.0.0.1", &new.port().to_string()]);
    let call = spawn(move || lock.lock().map(drop));
    wait_until("the replica refuses it", TIMEOUT, || {
        let stats: String =
            redis::cmd("INFO").arg("errorstats").query(&mut old.connection()).unwrap();
        stats.contains("errorstat_READONLY")
    });
    sentinels.sentinels().iter().for_each(Server::resume);
    // The Sentinels may make either server the master.
    call.join().unwrap();
}

#[test]
fn nothing_is_left_of_a_client_of_sentinels() {
    let sentinels = sentinels();
    let client = client_of(&sentinels);
    assert!(thread_names().iter().any(|name| name == "redlatch-follow"), "{:?}", thread_names());
    // The client also ends at once while there is no master and no Sentinel answers.
    let master = sentinels.master();
    sentinels.sentinels().iter().for_each(Server::pause);
    master.pause();
    let lock = client.reentrant_lock("held");
    let waiter = spawn(move || lock.lock().map(drop).unwrap_err());
    waiter.wait_asleep();
    let begun = Instant::now();
    client.shutdown();
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    waiter.join();
}

/// The Sentinels answer, but send no messages, so the client asks them at intervals.
#[test]
fn a_failover_is_found_without_the_sentinels_messages() {
    let sentinels = sentinels();
    for sentinel in sentinels.sentinels() {
        let rules = ["SETUSER", "default", "-subscribe"];
        redis::cmd("ACL").arg(&rules).exec(&mut sentinel.connection()).unwrap();
    }
    let client = builder(&sentinels.url()).watchdog_timeout(LONGER).connect().unwrap();
    let lock = client.reentrant_lock("held");
    let guard = lock.lock().unwrap();
    let lost = losses(&guard);
    wait_replicated(&sentinels, "held");
    keep_from_replicas(&sentinels, "held");
    // The old master still runs, but gets no request.
    sentinels.fail_over();
    assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::Revoked);
}

/// The wait continues after a grant that too few replicas had, and after an outage.
#[test]
fn a_fair_waiter_that_replicas_failed_has_one_place_and_still_gets_messages() {
    bound();
    let sentinels = started(Sentinels::builder().down_after(LONG_LEASE));
    let (client, other) = (client_of(&sentinels), client_of(&sentinels));
    let failed =
        impatient(&sentinels.url()).failover_timeout(LONG_LEASE).replica_acks(1, TIME_UNIT * 5);
    let failed = failed.connect().unwrap();
    let master = sentinels.master();
    let probe = || failed.reentrant_lock("probe").try_lock();
    let in_line = || -> Vec<String> {
        master.connection().lrange("redisson_lock_queue:{fair}", 0, -1).unwrap()
    };
    let wait_in_line = |places| wait_until("so many wait", TIMEOUT, || in_line().len() == places);
    let held = client.fair_lock("fair").lock_owned().unwrap();
    let lock = failed.fair_lock("fair");
    let (had, go_on) = (mpsc::channel(), mpsc::channel::<()>());
    let waiter = spawn(move || lock.lock().map(|guard| had.0.send(guard.is_held()).unwrap()));
    wait_in_line(1);
    // The waiter sleeps through the outage. If it sent a request during the outage, its wait would
    // begin again, too late.
    waiter.wait_queued();
    let behind = other.fair_lock("fair");
    let behind = spawn(move || {
        let guard = behind.lock().unwrap();
        go_on.1.recv().unwrap();
        guard.unlock().unwrap();
    });
    wait_in_line(2);
    master.pause();
    assert!(probe().is_err());
    master.resume();
    wait_until("it is over", TIMEOUT, || probe().is_ok());

    sentinels.replicas().iter().for_each(|replica| replica.pause());
    held.unlock().unwrap();
    // The client has given back the grant, so `behind` has the lock, and `waiter` is in the queue
    // again.
    wait_until("it was given back", TIMEOUT, || in_line().len() == 1 && !behind.is_finished());
    let first = in_line();
    wait_until("it stands anew", TIMEOUT, || {
        let now = in_line();
        assert!(now.len() <= 1, "twice: {now:?}");
        assert!(!waiter.is_finished(), "its wait has ended");
        now.len() == 1 && now != first
    });
    sentinels.replicas().iter().for_each(|replica| replica.resume());
    wait_until("replicas keep up", TIMEOUT, || probe().is_ok());
    go_on.0.send(()).unwrap();
    assert_eq!(had.1.recv_timeout(TIMEOUT), Ok(true));
    waiter.join().unwrap();
    behind.join();
    wait_until("nobody has it, or waits", TIMEOUT, || {
        in_line().is_empty() && holder(&mut master.connection(), "fair").is_none()
    });
}

/// The user may not run `INFO`, as on some managed services.
#[test]
fn a_failover_is_followed_without_the_right_to_look_into_the_servers() {
    let sentinels = sentinels();
    let rules = ["SETUSER", "app", "on", ">word", "~*", "&*", "+@all", "-info", "-role", "-client"];
    for server in sentinels.servers() {
        redis::cmd("ACL").arg(&rules).arg("-config").exec(&mut server.connection()).unwrap();
    }
    let client = builder(&sentinels.url()).watchdog_timeout(LONGER);
    let client = client.credentials("app", "word").connect().unwrap();
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let unknown = client.reentrant_lock("unknown").lock().unwrap();
    let lost = losses(&unknown);
    wait_replicated(&sentinels, "kept");
    keep_from_replicas(&sentinels, "unknown");
    End::Killed.of(&sentinels);
    assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::Revoked);
    client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
    kept.unlock().unwrap();
}

/// The test gives permits back in several ways. For each way, only the old master knows the
/// release.
#[test]
fn permits_that_were_given_back_to_the_old_master_alone_are_given_back_to_the_new_one() {
    let sentinels = sentinels();
    let (client, other) = (client_of(&sentinels), client_of(&sentinels));
    let ways = ["dropped", "released", "by id", "of another"];
    let mut master = sentinels.master().connection();
    let mut then: Vec<(String, Vec<u8>)> = Vec::new();
    for way in ways {
        let semaphore = client.expirable_semaphore(way);
        semaphore.try_set_permits(1).unwrap();
        // If the program has read a permit's id, the permit stays with the program.
        let kept = client.expirable_semaphore(&format!("{way}, kept"));
        kept.try_set_permits(2).unwrap();
        let _told = [1, 2].map(|_| kept.acquire().unwrap().into_id());
        let permit = if way == "of another" {
            other.expirable_semaphore(way).acquire().unwrap()
        } else {
            semaphore.acquire().unwrap()
        };
        for key in [way.to_owned(), format!("{{{way}}}:timeout")] {
            let value = redis::cmd("DUMP").arg(&key).query(&mut master).unwrap();
            then.push((key, value));
        }
        match way {
            "dropped" => {
                drop(permit);
                wait_until("it is back", TIMEOUT, || semaphore.available_permits().unwrap() == 1);
            }
            "released" => permit.release().unwrap(),
            _ => semaphore.release(&permit.into_id()).unwrap(),
        }
        wait_replicated(&sentinels, &format!("{{{way}, kept}}:timeout"));
    }
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        let is_back = |redis: &mut redis::Connection, way: &str| {
            let free: Option<u32> = redis.get(way).unwrap();
            free == Some(1)
        };
        wait_until("all has come", TIMEOUT, || ways.iter().all(|way| is_back(&mut redis, way)));
        writing(&mut redis, |redis| {
            for (key, then) in &then {
                let command =
                    redis::cmd("RESTORE").arg(key).arg(0).arg(then).arg("REPLACE").clone();
                command.exec(redis).unwrap();
            }
        });
    }
    sentinels.fail_over();
    let takers = ways.map(|way| {
        let semaphore = other.expirable_semaphore(way);
        spawn(move || {
            let permit = semaphore.try_acquire_for(TIMEOUT).unwrap();
            permit.into_option().map(drop).ok_or(way)
        })
    });
    for taker in takers {
        taker.join().unwrap();
    }
    for way in ways {
        let kept = client.expirable_semaphore(&format!("{way}, kept"));
        assert_eq!(kept.acquired_permits().unwrap(), 2, "{way}");
    }
}

/// Sets this semaphore and its request records on the replicas to an earlier state.
fn put_back_count(sentinels: &Sentinels, then: &[(String, String)], now: i64, name: &str) {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        wait_until("all has come", TIMEOUT, || {
            redis.get::<_, Option<i64>>(name).unwrap() == Some(now)
        });
        writing(&mut redis, |redis| {
            let all: Vec<String> = redis.keys(format!("*{name}*")).unwrap();
            let () = redis.del(all).unwrap();
            for (key, value) in then {
                let () = redis.set(key, value).unwrap();
            }
        });
    }
}

/// The keys of a semaphore on this server.
fn count_of(server: &Server, name: &str) -> Vec<(String, String)> {
    let mut redis = server.connection();
    let keys: Vec<String> = redis.keys(format!("*{name}*")).unwrap();
    keys.into_iter().map(|key| (key.clone(), redis.get(&key).unwrap())).collect()
}

/// After the failover the program gives back every permit that it still has. The semaphore then has
/// the same number of permits as before, although the new master lacked some acquires and some
/// releases.
#[test]
fn a_semaphore_is_as_large_after_a_failover_as_before() {
    let sentinels = sentinels();
    let client = client_of(&sentinels);
    let free = |server: &Server, name: &str| server.connection().get::<_, i64>(name).unwrap();
    let [more, fewer] = ["taken", "given"].map(|name| client.semaphore(name));
    more.set_permits(10).unwrap();
    fewer.set_permits(10).unwrap();
    let (heard, given) = (more.acquire_many(2).unwrap(), fewer.acquire_many(5).unwrap());
    let kept = fewer.acquire().unwrap();
    let then = [more.name(), fewer.name()].map(|name| count_of(sentinels.master(), name));
    // After this, only the old master gets the changes.
    let (one, three) = (more.acquire().unwrap(), more.acquire_many(3).unwrap());
    more.acquire().unwrap().release().unwrap();
    given.release().unwrap();
    fewer.add_permits(2).unwrap();
    put_back_count(&sentinels, &then[0], 4, "taken");
    put_back_count(&sentinels, &then[1], 11, "given");
    let old = sentinels.master();
    sentinels.fail_over();
    sentinels.wait_switched(old);
    let master = sentinels.master();
    wait_until("it is put right", TIMEOUT, || {
        (free(master, "taken"), free(master, "given")) == (4, 11)
    });
    [one, three, heard, kept].into_iter().for_each(|permit| permit.release().unwrap());
    assert_eq!((free(master, "taken"), free(master, "given")), (10, 12));
}

/// The first request to the new master would replace the record of earlier requests. Without this
/// record, the client could not find out which of the earlier requests are missing.
#[test]
fn a_request_to_a_new_master_comes_behind_the_releases_that_it_missed() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = builder(&proxy.url()).connections(1).connect().unwrap();
    let semaphore = client.semaphore("first");
    semaphore.set_permits(4).unwrap();
    for (key, value) in count_of(&old, "first") {
        let () = new.connection().set(key, value).unwrap();
    }
    let permit = semaphore.acquire_many(3).unwrap();
    proxy.lead_to(&new);
    old.kill();
    permit.release().unwrap();
    assert_eq!(new.connection().get::<_, i64>("first").unwrap(), 4);
    // The client repeated the changes at the new master, once.
    semaphore.acquire_many(4).unwrap().release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 4);
}

/// The client reads the old master's answer to a change only after it has sent all other changes to
/// the new master. After that the client sends no further request for this semaphore.
#[test]
fn a_change_whose_answer_is_read_late_reaches_the_new_master() {
    for way in ["taken", "released", "added"] {
        let (old, new) = (server(), server());
        let proxy = Proxy::before(&old);
        let client =
            builder(&proxy.url()).response_timeout(LONG_LEASE).connections(1).connect().unwrap();
        let [late, told] = ["late", "told"].map(|name| client.semaphore(name));
        // After this, the server knows the scripts.
        for semaphore in [&late, &told] {
            semaphore.set_permits(3).unwrap();
            semaphore.add_permits(1).unwrap();
            semaphore.acquire().unwrap().release().unwrap();
        }
        let kept = late.acquire().unwrap();
        for (key, value) in count_of(&old, "late").into_iter().chain(count_of(&old, "told")) {
            let () = new.connection().set(key, value).unwrap();
        }
        let free = |server: &Server, name: &str| server.connection().get::<_, i64>(name).unwrap();
        let out = told.acquire().unwrap();
        // A waiting thread makes the client subscribe, over another connection.
        for server in [&old, &new] {
            hold_as_redisson(&mut server.connection(), "held", LONG_LEASE);
        }
        let (lock, token) = (client.reentrant_lock("held"), CancelToken::new());
        let cancelled = token.clone();
        let waiter = spawn(move || lock.lock_cancellable(&cancelled).map(drop).unwrap_err());
        wait_subscribed(&old, &channel("held"));
        waiter.wait_queued();
        proxy.on_request("redlatch_request:{late}", Action::HoldReply);
        let also = late.clone();
        let (thread, after) = match way {
            "taken" => (spawn(move || vec![kept, also.acquire_many(2).unwrap()]), 1),
            "released" => (spawn(move || kept.release().map(|()| Vec::new()).unwrap()), 4),
            _ => (spawn(move || also.add_permits(3).map(|()| vec![kept]).unwrap()), 6),
        };
        proxy.wait_fired(1, TIMEOUT);
        assert_eq!((free(&old, "late"), free(&new, "late")), (after, 3), "{way}");
        proxy.lead_to(&new);
        assert!(proxy.cut_matching("SUBSCRIBE") > 0);
        wait_until("the new one is told", TIMEOUT, || free(&new, "told") == 3);
        proxy.release();
        let held = thread.join();
        wait_until(&format!("it knows what was {way}"), TIMEOUT, || free(&new, "late") == after);
        token.cancel();
        assert_eq!(waiter.join().kind(), ErrorKind::Cancelled);
        drop((held, out));
    }
}

/// When the replica becomes the master, its memory is full. At that time this client is idle.
#[test]
fn a_semaphore_is_mended_once_a_master_that_refused_writes_takes_them_again() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = builder(&proxy.url()).connect().unwrap();
    let semaphore = client.semaphore("full");
    semaphore.set_permits(4).unwrap();
    let mut redis = new.connection();
    for (key, value) in count_of(&old, "full") {
        let () = redis.set(key, value).unwrap();
    }
    let _out = semaphore.acquire_many(3).unwrap();
    let mut set_most = |bytes: &str| {
        let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).query(&mut redis).unwrap();
    };
    set_most("1");
    proxy.lead_to(&new);
    old.kill();
    // The client only sends a query, by which it finds the new master.
    let another = client.semaphore("another");
    wait_until("it is there", TIMEOUT, || another.available_permits().is_ok());
    wait_until("it is refused", TIMEOUT, || {
        let said: String =
            redis::cmd("INFO").arg("errorstats").query(&mut new.connection()).unwrap();
        said.contains("errorstat_OOM")
    });
    set_most("0");
    wait_until("it is put right", TIMEOUT, || new.connection().get::<_, i64>("full").unwrap() == 1);
}

/// Threads take and give back permits all the time. The new master has an earlier state of the
/// semaphore. When the old master ends, the threads have more permits or fewer permits than in that
/// state.
#[test]
fn many_threads_semaphore_is_as_large_after_a_failover_as_before() {
    for (then, later) in [(1, 4), (4, 1)] {
        let old = server();
        let network = Proxy::before(&old);
        let new = Server::builder().replica_behind(&network).start().unwrap();
        let proxy = Proxy::before(&old);
        let clients = [1, 2].map(|_| builder(&proxy.url()).connect().unwrap());
        clients[0].semaphore("many").set_permits(40).unwrap();
        let most = Arc::new(AtomicUsize::new(then));
        let threads: Vec<_> = (0..8)
            .map(|at| {
                let semaphore = clients[at % 2].semaphore("many");
                let most = Arc::clone(&most);
                spawn(move || {
                    let mut held = Vec::new();
                    while most.load(Ordering::SeqCst) > 0 {
                        // In an outage a call that does not wait may fail.
                        held.extend(semaphore.try_acquire().ok().and_then(Attempt::into_option));
                        held.truncate(most.load(Ordering::SeqCst));
                        // A client remembers 10,000 changes, enough with this pause even on a busy
                        // machine.
                        thread::sleep(TIME_UNIT / 10);
                    }
                })
            })
            .collect();
        // `None` if the replica does not have the semaphore yet. As the master, such a replica
        // would have no number to correct.
        let free = |server: &Server| server.connection().get::<_, Option<i64>>("many").unwrap();
        let has = |server: &Server, most: usize| {
            let out = |free| (8 * most as i64..=8 * (most as i64 + 1)).contains(&(40 - free));
            free(server).is_some_and(out)
        };
        wait_until("all have some", TIMEOUT, || has(&new, then));
        network.freeze();
        most.store(later, Ordering::SeqCst);
        wait_until("all have more or fewer", TIMEOUT, || has(&old, later));
        let () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut new.connection()).unwrap();
        println!("the old one says {:?}, the new one {:?}", free(&old), free(&new));
        proxy.lead_to(&new);
        old.kill();
        thread::sleep(TIME_UNIT * 10);
        most.store(0, Ordering::SeqCst);
        threads.into_iter().for_each(Running::join);
        wait_until(&format!("all are back, from {then} to {later}"), TIMEOUT / 2, || {
            free(&new) == Some(40)
        });
        // Time must pass here, because a second release would come late.
        thread::sleep(TIME_UNIT * 5);
        assert_eq!(free(&new), Some(40));
        drop(clients);
    }
}
