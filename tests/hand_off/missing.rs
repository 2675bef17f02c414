//! What is missing.

use super::*;

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

/// Each verb may be the first one.
#[test]
fn without_the_right_to_the_queue_every_verb_is_refused_and_changes_nothing() {
    let _bounded = bounded();
    let server = server();
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "shop:held", LONG);
    for (at, keys) in ["~redlatch_window:*", "~redlatch_queue:*"].into_iter().enumerate() {
        let mut user = User::new(&server, &format!("poor{at}"));
        user.set(&["resetkeys", "~shop*", keys]);
        for name in ["shop:free", "shop:held"] {
            let lock = user.client().reentrant_lock(name);
            let errors = [
                lock.lock().unwrap_err(),
                lock.try_lock().unwrap_err(),
                lock.force_unlock().unwrap_err(),
            ];
            for error in errors {
                let said = error.to_string();
                assert!(said.contains("ACL") && said.contains("redlatch_queue"), "{said}");
            }
        }
        let left: Vec<String> = redis.keys("*").unwrap();
        assert_eq!(left, ["shop:held"]);
    }
}

/// It ends with its lease.
#[test]
fn a_release_without_the_right_to_the_queue_is_refused_whole() {
    let _bounded = bounded();
    let server = server();
    let mut user = User::new(&server, "poorer");
    let guard = user.client().reentrant_lock("shop").lock().unwrap();
    user.set(&["resetkeys", "~shop*"]);
    let said = guard.unlock().unwrap_err().to_string();
    assert!(said.contains("redlatch_queue"), "{said}");
    let there = client(&server).reentrant_lock("shop");
    assert!(there.is_locked().unwrap());
    assert!(there.force_unlock().unwrap());
}

/// A right less costs time, and no hold and no place.
#[test]
fn without_a_right_of_pubsub_a_lock_goes_from_one_to_the_other() {
    let _bounded = bounded();
    let server = server();
    // Windows lapse, too, which open on a busy machine.
    redis::cmd("CONFIG")
        .arg(&["SET", "notify-keyspace-events", "Ex"])
        .exec(&mut server.connection())
        .unwrap();
    let mut listener = server.connection();
    let mut lapses = listener.as_pubsub();
    lapses.subscribe(&["__keyevent@0__:expired", "end"]).unwrap();
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
    let () = server.connection().publish("end", "").unwrap();
    loop {
        let message = lapses.get_message().unwrap();
        if message.get_channel_name() == "end" {
            break;
        }
        assert_ne!(message.get_payload::<String>().unwrap(), "mute", "a lease had to end");
    }
}

/// It would wait for ever for a lock that is free.
#[test]
fn who_may_take_nobody_off_the_queue_is_told_and_leaves_no_place() {
    let _bounded = bounded();
    let server = server();
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
    let server = server();
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
    for rights in [&["-pexpire"][..], &["+@all", "-lpush", "-publish"]] {
        user.set(rights);
        let error = lock.try_lock_for(UNIT).map(drop).unwrap_err();
        is_clear(&error, "left", "ACL");
        assert_eq!(queue(&mut server.connection(), "left"), [alive]);
        assert_eq!(owner(&mut server.connection(), "left"), None);
    }

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
    let server = server();
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
