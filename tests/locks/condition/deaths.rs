//! Processes that die, and messages and replies that are lost.

use super::*;

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "guest" => guest(&job),
        "buffer" => many::buffer_worker(&job),
        role => panic!("no such role: {role}"),
    }
}

fn kind_named(name: &str) -> Kind {
    ALL.into_iter().find(|kind| kind.name == name).unwrap()
}

fn guest(job: &Job) {
    let lease = Duration::from_millis(job.arg(3).parse().unwrap());
    let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
    let Monitor { lock, condition, .. } = kind_named(job.arg(1)).make(&client, job.arg(2));
    let guard = lock.lock().unwrap();
    job.say("in");
    condition.wait(&guard).unwrap();
    job.say("back");
    let _ = job.wait_line();
    guard.unlock().unwrap();
    job.say("out");
    let _ = job.wait_line();
}

fn process(server: &Server, kind: Kind, name: &str, lease: Duration) -> Worker {
    let before = waiting(server, name);
    let lease = lease.as_millis().to_string();
    let worker = Worker::spawn_test(
        "condition::deaths::worker",
        "guest",
        &[&server.url(), kind.name, name, &lease],
    );
    wait_waiting(server, name, before + 1);
    worker
}

#[test]
fn a_waiter_that_was_killed_is_passed_over() {
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    once_within(MIN_POLL_INTERVAL, || {
        let mut dead = process(&server, REENTRANT, "m", LONG_LEASE);
        let first = first_waiting(&server, "m");
        let begun = Instant::now();
        let guest = Guest::of(&server, "m", &here, Wait::FOREVER);
        dead.sigkill();
        wait_deaf(&server, &own_channel(&first));
        assert!(notify(&there));
        let took = guest.wait_back() - begun;
        assert!(guest.leaves());
        leaves_nothing(&server, "m");
        took
    });
}

#[test]
fn a_waiter_killed_before_it_has_the_lock_leaves_its_notification_to_the_next() {
    let server = server();
    for kind in ALL {
        let mut dead = process(&server, kind, kind.name, LONG_LEASE);
        let guest =
            Guest::of(&server, kind.name, &kind.make(&client(&server), kind.name), Wait::FOREVER);
        let there = kind.make(&client(&server), kind.name);
        let guard = there.lock.lock().unwrap();
        assert!(there.condition.notify_one().unwrap());
        assert_eq!(records(&server, kind.name), 1);
        dead.sigkill();
        guard.unlock().unwrap();
        guest.wait_back();
        assert!(guest.leaves());
    }
    leaves_nothing(&server, "m");
}

#[test]
fn a_waiter_killed_among_many_notified_leaves_its_notification_to_the_next() {
    let server = server();
    let mut dead = process(&server, REENTRANT, "m", LONG_LEASE);
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let crowd: Vec<_> =
        (0..14).map(|_| Guest::of(&server, "m", &here, Wait::FOREVER).passes()).collect();
    let guard = there.lock.lock().unwrap();
    for _ in 0..13 {
        assert!(there.condition.notify_one().unwrap());
    }
    assert_eq!(waiting(&server, "m"), 2);
    dead.sigkill();
    wait_waiting(&server, "m", 1);
    there.condition.notify_all().unwrap();
    guard.unlock().unwrap();
    assert!(leave_all(crowd).into_iter().all(|notified| notified));
    leaves_nothing(&server, "m");
}

#[test]
fn a_waiter_killed_while_it_has_the_lock_leaves_its_notification_to_the_next() {
    let server = server();
    let mut dead = process(&server, REENTRANT, "m", SHORT_LEASE);
    let guest = Guest::of(&server, "m", &REENTRANT.make(&client(&server), "m"), Wait::FOREVER);
    assert!(notify(&REENTRANT.make(&client(&server), "m")));
    dead.expect_line("back", TIMEOUT);
    // The process may keep the lock for any time.
    thread::sleep(PASSED_ON + TIME_UNIT);
    assert_eq!(waiting(&server, "m"), 1, "it lives, and the notification is its own");
    dead.sigkill();
    guest.wait_back();
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_notified_waiter_that_waits_long_for_the_lock_keeps_its_notification() {
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let first = Guest::of(&server, "m", &here, Wait::FOREVER);
    let second = Guest::of(&server, "m", &here, Wait::FOREVER);
    let guard = there.lock.lock().unwrap();
    assert!(there.condition.notify_one().unwrap());
    thread::sleep(PASSED_ON + TIME_UNIT);
    assert_eq!(waiting(&server, "m"), 1);
    guard.unlock().unwrap();
    first.wait_back();
    assert!(first.leaves());
    assert!(!second.is_back());
    assert!(notify(&there));
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_stopped_waiter_leaves_its_notification_to_the_next() {
    let server = server();
    let mut stopped = process(&server, REENTRANT, "m", LONG_LEASE);
    let guest = Guest::of(&server, "m", &REENTRANT.make(&client(&server), "m"), Wait::FOREVER);
    let there = REENTRANT.make(&client(&server), "m");
    stopped.sigstop();
    assert!(notify(&there));
    // If no other waiter checked, the stopped waiter would keep the notification for ever.
    guest.wait_back();
    assert!(guest.leaves());
    // The stopped waiter returns by itself. It was notified first, and its notification was passed
    // on.
    stopped.sigcont();
    stopped.expect_line("back", TIMEOUT);
    stopped.send_line("leave");
    stopped.expect_line("out", TIMEOUT);
    leaves_nothing(&server, "m");
}

of_all_locks! {
    a_waiter_that_loses_the_regained_lock_leaves_its_notification_to_the_next
}

fn a_waiter_that_loses_the_regained_lock_leaves_its_notification_to_the_next(kind: Kind) {
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let first = Guest::of(&server, "m", &here, Wait::FOREVER);
    let second = Guest::of(&server, "m", &here, Wait::FOREVER);
    assert!(notify(&there));
    first.wait_back();
    // The waiter's own client unlocks by force, and wakes the waiter.
    assert!(here.lock.force_unlock().unwrap());
    drop(first.leave);
    assert_eq!(first.thread.join().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_thread_that_ends_with_the_lock_leaves_its_notification_though_others_of_its_process_live() {
    let server = server();
    let client_here = client(&server);
    let [here, there] =
        [client_here.clone(), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let leased = (here.leased)(&client_here, "m", TIME_UNIT * 10);
    let condition = here.condition.clone();
    let ends = spawn(move || {
        let guard = leased.lock().unwrap();
        condition.wait(&guard).unwrap();
        mem::forget(guard);
    });
    wait_waiting(&server, "m", 1);
    let lives = Guest::of(&server, "m", &here, Wait::FOREVER);
    let next = Guest::of(&server, "m", &here, Wait::FOREVER);
    let guard = there.lock.lock().unwrap();
    for _ in 0..2 {
        assert!(there.condition.notify_one().unwrap());
    }
    guard.unlock().unwrap();
    // The two notified waiters get the lock back in any order.
    assert!(lives.leaves());
    ends.join();
    assert!(next.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_notification_of_a_waiter_that_gave_up_is_passed_on_at_once() {
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    // The list gets the entry of a waiter that no client knows, as if a request had come after its
    // thread had given up.
    woken_by_message(|| {
        let guard = here.lock.lock().unwrap();
        let (owner, _) = holder(&mut server.connection(), "m").unwrap();
        let (uuid, _) = owner.split_once(':').unwrap();
        let nobody = format!("{uuid}:{}", u64::MAX);
        let () = server.connection().rpush(waiting_key("m"), &nobody).unwrap();
        guard.unlock().unwrap();
        let guest = Guest::of(&server, "m", &here, Wait::FOREVER);
        assert!(notify(&there));
        guest.wait_back();
        assert!(guest.leaves());
        leaves_nothing(&server, "m");
    });
}

#[test]
fn a_message_that_was_lost_costs_a_look() {
    let server = server();
    let proxy = Proxy::before(&server);
    let here = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let there = REENTRANT.make(&client(&server), "m");
    let guest = Guest::of(&server, "m", &REENTRANT.make(&here, "m"), Wait::FOREVER);
    // The message is lost with its connection, and is not repeated over the next connection.
    proxy.on_reply("notify ", Action::LoseReply);
    assert!(notify(&there));
    proxy.wait_fired(1, TIMEOUT);
    guest.wait_back();
    assert!(guest.leaves());

    // A notification skips a waiter that gets no messages. The skipped waiter ends its wait at its
    // next request.
    let guest = Guest::of(&server, "m", &REENTRANT.make(&here, "m"), Wait::FOREVER);
    let first = first_waiting(&server, "m");
    proxy.refuse();
    assert_eq!(proxy.cut_matching("SUBSCRIBE"), 1);
    wait_deaf(&server, &own_channel(&first));
    assert!(!notify(&there));
    guest.wait_back();
    proxy.accept();
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_request_that_is_sent_twice_changes_things_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let here = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let here = REENTRANT.make(&here, "m");
    let key = waiting_key("m");
    // The server knows the scripts, so a request is one command.
    let guest = Guest::of(&server, "m", &here, Wait::FOREVER).passes();
    assert!(notify(&here));
    assert!(guest.leaves());
    for way in [Action::LoseReply, Action::LoseRequest] {
        // The request that makes the waiter's entry.
        let fired = proxy.fired();
        proxy.on_request(&key, way);
        let first = Guest::of(&server, "m", &here, Wait::FOREVER);
        proxy.wait_fired(fired + 1, TIMEOUT);
        let first = first.passes();
        let second = Guest::of(&server, "m", &here, Wait::FOREVER).passes();
        let third = Guest::of(&server, "m", &here, Wait::FOREVER).passes();
        // The test first notifies one waiter, then all others.
        for (left, all) in [(2, false), (0, true)] {
            let guard = here.lock.lock().unwrap();
            let fired = proxy.fired();
            proxy.on_request(&key, way);
            if all {
                here.condition.notify_all().unwrap();
            } else {
                assert!(here.condition.notify_one().unwrap());
            }
            assert_eq!((proxy.fired(), waiting(&server, "m")), (fired + 1, left));
            guard.unlock().unwrap();
        }
        assert_eq!(leave_all([first, second, third]), [true; 3]);
        leaves_nothing(&server, "m");
    }
}

#[test]
fn keys_that_are_lost_end_the_waits() {
    let server = server();
    let [here, there] =
        [client(&server), client(&server)].map(|client| REENTRANT.make(&client, "m"));
    let guests = [&here, &there].map(|monitor| Guest::of(&server, "m", monitor, Wait::FOREVER));
    let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
    assert_eq!(leave_all(guests), [true; 2], "as if they had been notified");
    leaves_nothing(&server, "m");
}

#[test]
fn an_outage_ends_a_wait_with_nothing_in_hand_and_everything_goes_on_after_it() {
    let server = server();
    let proxy = Proxy::before(&server);
    let here = impatient(&proxy.url()).connect().unwrap();
    let monitor = REENTRANT.make(&here, "m");
    let (tell, told) = mpsc::channel();
    let Monitor { lock, condition, .. } = monitor;
    let waiter = spawn(move || {
        let outer = lock.lock().unwrap();
        let guard = lock.lock().unwrap();
        let error = condition.wait(&guard).unwrap_err();
        assert!(error.kind().is_server_trouble());
        assert!(error.to_string().contains("nothing is held"), "{error}");
        for guard in [&outer, &guard] {
            assert_eq!(guard.state(), HoldState::Released);
        }
        assert_eq!(lock.hold_count(), 0);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
        drop(outer);
        tell.send(()).unwrap();
    });
    // The waiter has released the lock for its wait, and has received the reply.
    wait_waiting(&server, "m", 1);
    wait_free(&server, "m", TIMEOUT);
    waiter.wait_queued();
    proxy.freeze();
    told.recv_timeout(TIMEOUT).unwrap();
    waiter.join();
    proxy.thaw();
    // The waiter has left an entry. A notification skips this entry, or is passed on to another
    // waiter.
    let there = REENTRANT.make(&client(&server), "m");
    let guest = Guest::begin(&there, Wait::FOREVER).passes();
    wait_until("it is notified", TIMEOUT, || {
        let guard = there.lock.lock().unwrap();
        let _ = there.condition.notify_one().unwrap();
        guard.unlock().unwrap();
        guest.is_back()
    });
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn each_missing_right_is_an_error_or_costs_time_and_loses_no_waiter() {
    let server = server();
    let mut user = User::new(&server, "poor");
    let poor = user.client();
    let here = REENTRANT.make(&poor, "m");
    let there = REENTRANT.make(&client(&server), "m");
    // The commands that a wait, a notification and their ends need, in addition to those of the
    // lock, and the keys.
    let commands = "HGET HDEL HGETALL HVALS LRANGE PUBSUB PUBLISH RPUSH LPOP LREM LINDEX HSET TIME";
    let mut rights: Vec<_> = commands.split(' ').map(|name| format!("-{name}")).collect();
    rights.push("resetkeys ~m ~redlatch_queue:* ~redlatch_window:*".to_owned());
    for right in rights {
        // Without the right to wait, the thread has the lock as before. With this right, the thread
        // waits and is notified.
        user.set(&["~*", "+@all"]);
        let guard = here.lock.lock().unwrap();
        user.set(&right.split(' ').collect::<Vec<_>>());
        let waited = here.condition.wait_for(&guard, TIME_UNIT);
        user.set(&["~*", "+@all"]);
        // Without these rights the release would be refused, and the thread would wait for the end
        // of its own lease.
        if "-PUBSUB -PUBLISH -LPOP -HSET -TIME".contains(&*right) {
            assert!(waited.is_err() && guard.is_held(), "{right}: {waited:?}");
        }
        match waited {
            Ok(waited) => assert!(!waited.timed_out() && guard.is_held(), "{right}"),
            Err(error) if guard.is_held() => {
                let said = error.to_string();
                assert!(said.contains("held as before") && said.contains("ACL"), "{right}: {said}");
            }
            Err(error) => {
                assert!(error.to_string().contains("nothing is held"), "{right}: {error}");
            }
        }
        drop(guard);
        // The client removes the entry later, because at first it had no right to do so.
        wait_waiting(&server, "m", 0);
        // Without the right to notify, no waiter is notified. With this right, one waiter is
        // notified.
        let guest = Guest::of(&server, "m", &there, Wait::FOREVER);
        let guard = here.lock.lock().unwrap();
        user.set(&right.split(' ').collect::<Vec<_>>());
        let told = here.condition.notify_one();
        user.set(&["~*", "+@all"]);
        match told {
            Ok(told) => assert!(told, "{right}"),
            Err(error) => {
                assert!(error.to_string().contains("nobody was notified"), "{right}: {error}");
                assert_eq!((waiting(&server, "m"), records(&server, "m")), (1, 0), "{right}");
                assert!(here.condition.notify_one().unwrap());
            }
        }
        guard.unlock().unwrap();
        assert!(guest.leaves());
    }
    // Notifications skip entries without a waiter.
    wait_until("nothing is left", TIMEOUT, || {
        assert!(here.lock.lock().is_ok_and(|guard| {
            here.condition.notify_all().unwrap();
            guard.unlock().is_ok()
        }));
        let keys: Vec<String> = server.connection().keys("redlatch_*:{m}:*").unwrap();
        keys.is_empty()
    });
}

/// The writer's release would have to grant the lock to readers. If the server refused that
/// release, the thread would wait for the end of its own lease.
#[test]
fn a_writer_that_may_not_let_readers_in_keeps_the_lock_and_does_not_wait() {
    let server = server();
    let mut user = User::new(&server, "alone");
    let Monitor { lock, condition, .. } = WRITER.make(&user.client(), "m");
    let reads = client(&server).read_write_lock("m");
    for right in ["-lindex", "-lrange", "-set"] {
        let guard = lock.lock().unwrap();
        let its = reads.clone();
        let reader = spawn(move || its.reader().lock().map(drop));
        let mut redis = server.connection();
        wait_until("it stands in line", TIMEOUT, || {
            redis.llen::<_, u64>("redlatch_rwlock_queue:{m}").unwrap() == 1
        });
        user.set(&[right]);
        let waited = condition.wait_for(&guard, TIME_UNIT);
        user.set(&["+@all"]);
        let said = waited.unwrap_err().to_string();
        assert!(said.contains("held as before") && said.contains("ACL"), "{right}: {said}");
        assert!(guard.is_held(), "{right}");
        assert_eq!(waiting(&server, "m"), 0, "{right}");
        guard.unlock().unwrap();
        reader.join().unwrap();
        // The user has the right again, so the writer can wait.
        let guard = lock.lock().unwrap();
        assert!(condition.wait_for(&guard, TIME_UNIT / 10).unwrap().timed_out());
    }
    leaves_nothing(&server, "m");
}

/// Without the right to delete the record, each check would pass the notification on again.
#[test]
fn a_client_that_may_not_delete_a_record_passes_nothing_on() {
    let server = server();
    let mut redis = server.connection();
    let (dead, alive) =
        ("cccccccc-cccc-8ccc-cccc-cccccccccccc:3", "bbbbbbbb-bbbb-8bbb-bbbb-bbbbbbbbbbbb:2");
    let mut listening = server.connection();
    let mut listening = listening.as_pubsub();
    listening.subscribe(format!("redisson_lock__channel:{{redlatch:{}}}", &alive[..36])).unwrap();
    let () = redis.rpush(waiting_key("m"), alive).unwrap();
    let () = redis.hset(notified_key("m"), dead, format!("1 {dead}")).unwrap();
    let mut user = User::new(&server, "keeper");
    let Monitor { lock, condition, .. } = REENTRANT.make(&user.client(), "m");
    let guard = lock.lock().unwrap();
    user.set(&["-hdel"]);
    let error = condition.wait_for(&guard, TIMEOUT).unwrap_err();
    assert!(error.to_string().contains("ACL"), "{error}");
    let line: Vec<String> = redis.lrange(waiting_key("m"), 0, -1).unwrap();
    assert!(line.iter().any(|waiter| waiter == alive), "{line:?}");
    assert_eq!(records(&server, "m"), 1);
}

#[test]
fn a_client_that_may_not_subscribe_keeps_the_lock_and_does_not_wait() {
    let server = server();
    let mut user = User::new(&server, "deaf");
    user.set(&["-subscribe"]);
    let Monitor { lock, condition, .. } = REENTRANT.make(&user.client(), "m");
    let guard = lock.lock().unwrap();
    let error = condition.wait_for(&guard, TIME_UNIT * 20).unwrap_err();
    assert!(error.to_string().contains("held as before"), "{error}");
    assert!(guard.is_held());
    assert_eq!(waiting(&server, "m"), 0);
}

#[test]
fn without_memory_no_new_waiter_waits_and_old_waiters_are_notified() {
    let server = server();
    let here = client(&server);
    let there = REENTRANT.make(&here, "m");
    let guest = Guest::of(&server, "m", &there, Wait::FOREVER).passes();
    let other = here.reentrant_lock("m").condition("other");
    let guard = there.lock.lock().unwrap();
    let set = |bytes: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxmemory").arg(bytes).exec(&mut server.connection()).unwrap();
    };
    set("1");
    let error = other.wait_for(&guard, TIME_UNIT).unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
    assert!(guard.is_held());
    assert!(there.condition.notify_one().unwrap());
    set("0");
    guard.unlock().unwrap();
    assert!(guest.leaves());
    leaves_nothing(&server, "m");
}
