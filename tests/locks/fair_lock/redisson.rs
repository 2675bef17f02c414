//! Redisson's waiters in the same queue.

use super::*;

#[test]
fn a_java_waiter_in_the_queue_has_its_turn_and_its_message() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    woken_by_message(|| {
        let guard = one.fair_lock("java").lock().unwrap();
        let mut line = Line::new(&server);
        line.add(&one.fair_lock("java"));
        let foreign = format!("{FOREIGN}7");
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
        let () = redis.rpush(queue_key("java"), &foreign).unwrap();
        let () = redis.zadd(timeouts_key("java"), &foreign, (seconds + 300) * 1_000).unwrap();
        let mut connection = server.connection();
        let mut subscriber = connection.as_pubsub();
        subscriber.subscribe(format!("{}:{foreign}", channel("java"))).unwrap();
        line.add(&other.fair_lock("java"));
        guard.unlock().unwrap();
        wait_until("it has its turn", TIMEOUT, || queue(&server, "java").first() == Some(&foreign));
        let message = subscriber.get_message().unwrap();
        assert_eq!(message.get_payload::<String>().unwrap(), "0");
        thread::sleep(TIME_UNIT * 2);
        assert_eq!(*line.served.lock().unwrap(), [0], "nobody passes it");
        // Redisson's waiter takes the lock and releases it.
        let () = redis::pipe()
            .atomic()
            .lpop(queue_key("java"), None)
            .zrem(timeouts_key("java"), &foreign)
            .hset("java", FOREIGN, 1)
            .pexpire("java", i64::try_from(LONG_LEASE.as_millis()).unwrap())
            .query(&mut redis)
            .unwrap();
        let next = queue(&server, "java").remove(0);
        release_as_redisson(&mut redis, "java", &format!("{}:{next}", channel("java")));
        assert_eq!(line.join(), [0, 1]);
        leaves_nothing(&server, "java");
    });
}

/// Adds a Redisson waiter with this wait at the end of the queue.
fn wait_as_redisson(redis: &mut redis::Connection, name: &str, number: u64, wait: Duration) {
    let script = redis::Script::new(
        "local time = redis.call('time')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        local last = redis.call('lindex', KEYS[2], -1)
        local before = last and redis.call('zscore', KEYS[3], last)
            or now + redis.call('pttl', KEYS[1])
        redis.call('zadd', KEYS[3], before + ARGV[2], ARGV[1])
        redis.call('rpush', KEYS[2], ARGV[1])",
    );
    let mut script = script.prepare_invoke();
    let () = script
        .key(name)
        .key(queue_key(name))
        .key(timeouts_key(name))
        .arg(format!("{FOREIGN}{number}"))
        .arg(u64::try_from(wait.as_millis()).unwrap())
        .invoke(redis)
        .unwrap();
}

/// Redisson drops waiters that were in the queue for longer than their wait, and does not change
/// the scores of the waiters behind them. These scores still contain the time that redlatch's
/// waiters added for the dropped waiters.
#[test]
fn a_dead_java_waiter_costs_no_more_than_its_short_wait() {
    const WAIT: Duration = Duration::from_millis(4 * TIME_UNIT.as_millis() as u64);
    let server = server();
    let client = || {
        let builder = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE);
        let builder = builder.redisson_fair_lock_wait_timeout(WAIT);
        builder.fair_wait_timeout(FAIR_WAIT).connect().unwrap()
    };
    let (one, other) = (client(), client());
    let mut redis = server.connection();
    let guard = one.fair_lock("short").lock().unwrap();
    wait_as_redisson(&mut redis, "short", 1, WAIT);
    wait_as_redisson(&mut redis, "short", 2, WAIT);
    let mut line = Line::new(&server);
    line.add(&one.fair_lock("short"));
    wait_as_redisson(&mut redis, "short", 3, WAIT);
    line.add(&other.fair_lock("short"));
    let dropped = [1, 2].map(|number| format!("{FOREIGN}{number}"));
    let () = redis.ltrim(queue_key("short"), 2, -1).unwrap();
    let () = redis.zrem(timeouts_key("short"), &dropped).unwrap();
    guard.unlock().unwrap();
    // The third waiter, a Java client, is dead.
    assert_eq!(line.join(), [0, 1]);
    leaves_nothing(&server, "short");
}

/// Returns the channel on which Redisson wakes a redlatch waiter.
fn channel_of(name: &str, owner: &str) -> String {
    format!("{}:{owner}", channel(name))
}

#[test]
fn a_java_holders_release_is_heard_by_the_first_waiter() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    for _ in 0..3 {
        woken_by_message(|| {
            hold_as_redisson(&mut redis, "java holds", LONG_LEASE);
            let token = CancelToken::new();
            let (lock, cancel) = (one.fair_lock("java holds"), token.clone());
            let quitter = spawn(move || lock.lock_cancellable(&cancel).map(drop).is_err());
            wait_queue(&server, "java holds", 1);
            let mut line = Line::new(&server);
            line.add(&other.fair_lock("java holds"));
            line.add(&one.fair_lock("java holds"));
            let waiting = wait_queue(&server, "java holds", 3);
            for owner in &waiting {
                wait_subscribed(&server, &channel_of("java holds", owner));
            }
            // The waiters have sent another request by now, and get all messages.
            token.cancel();
            assert!(quitter.join());
            let first = wait_queue(&server, "java holds", 2).remove(0);
            release_as_redisson(&mut redis, "java holds", &channel_of("java holds", &first));
            assert_eq!(line.join(), [0, 1]);
        });
        leaves_nothing(&server, "java holds");
    }
}

#[test]
fn a_java_release_before_the_waiter_listens_is_made_up_for() {
    for _ in 0..3 {
        woken_by_message(|| {
            let server = server();
            let mut redis = server.connection();
            let proxy = Proxy::before(&server);
            let client = behind(&proxy);
            // The client's subscriber must already have its connection, and this connection stays
            // open.
            let other = crate::common::client(&server).fair_lock("before");
            let guard = other.lock().unwrap();
            let (hears, cancel) = waits(&client.fair_lock("before"));
            wait_hearing(&server, 1);
            cancel.cancel();
            assert_eq!(hears.join().unwrap_err().kind(), ErrorKind::Cancelled);
            guard.unlock().unwrap();
            hold_as_redisson(&mut redis, "unheard", LONG_LEASE);
            // The subscription never reaches the server, so messages on that channel are lost.
            proxy.on(Direction::Request, 1, Action::LoseRequest, |bytes| {
                contains(bytes, "SUBSCRIBE") && contains(bytes, "{unheard}")
            });
            proxy.refuse();
            let lock = client.fair_lock("unheard");
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            let owner = wait_queue(&server, "unheard", 1).remove(0);
            proxy.wait_fired(1, TIMEOUT);
            release_as_redisson(&mut redis, "unheard", &channel_of("unheard", &owner));
            proxy.accept();
            waiter.join();
            leaves_nothing(&server, "unheard");
        });
    }
}

#[test]
fn only_a_waiter_behind_java_listens_to_a_channel_of_its_own() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut numbers = |what: &[&str]| -> (u64, u64) {
        let channels: Vec<String> =
            redis::cmd("PUBSUB").arg(&["CHANNELS", what[0]]).query(&mut redis).unwrap();
        let patterns = redis::cmd("PUBSUB").arg("NUMPAT").query(&mut redis).unwrap();
        (channels.len() as u64, patterns)
    };
    let guard = one.fair_lock("channels").lock().unwrap();
    let mut line = Line::new(&server);
    for at in 0..6 {
        line.add(&[&one, &other][at % 2].fair_lock("channels"));
    }
    wait_until("both clients listen", TIMEOUT, || numbers(&["*"]) == (2, 0));
    // An unwanted message would come within this time.
    thread::sleep(TIME_UNIT);
    assert_eq!(numbers(&["*{channels}*"]), (0, 0));
    assert_eq!(numbers(&["*"]), (2, 0), "one a client");
    guard.unlock().unwrap();
    line.join();
    leaves_nothing(&server, "channels");
}

#[test]
fn the_rights_that_the_documents_name_suffice() {
    let server = server();
    let document = include_str!("../../../docs/operations.md");
    let from = |start: &str, end: &str| {
        let (_, rest) = document.split_once(start).unwrap();
        rest.split_once(end).unwrap().0
    };
    let clients = from("for each client", "locks ");
    let locks = from("\nlocks ", "\nfenced locks");
    let fair = from("\nfair locks ", "\nconditions");
    let rights = [clients, locks, fair].join(" ");
    let rights: Vec<_> = rights.split_whitespace().collect();
    let user = [&["SETUSER", "plain", "reset", "on", ">secret"], &rights[..]].concat();
    redis::cmd("ACL").arg(&user).exec(&mut server.connection()).unwrap();
    let url = format!("redis://plain:secret@127.0.0.1:{}/", server.port());
    let (restricted, other) = (quick_at(&url), quick(&server));
    let name = "shop:till";
    for round in 0..3 {
        let guard = other.fair_lock(name).lock().unwrap();
        let mut line = Line::new(&server);
        for client in [&restricted, &other, &restricted, &restricted] {
            line.add(&client.fair_lock(name));
        }
        assert!(
            answered(|| restricted.fair_lock(name).try_lock_for(TIME_UNIT)).into_option().is_none()
        );
        // The time is long enough for keep-alive requests.
        thread::sleep(if round == 0 { FAIR_WAIT } else { TIME_UNIT });
        guard.unlock().unwrap();
        assert_eq!(line.join(), [0, 1, 2, 3]);
    }
    // The waiter is behind a Java holder. A forced unlock grants it the lock.
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, name, LONG_LEASE);
    let lock = restricted.fair_lock(name);
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    let owner = wait_queue(&server, name, 1).remove(0);
    wait_subscribed(&server, &channel_of(name, &owner));
    assert!(restricted.fair_lock(name).force_unlock().unwrap());
    waiter.join();
    restricted.fair_lock(name).try_lock().unwrap().into_option().unwrap().unlock().unwrap();
    leaves_nothing(&server, name);
}

/// The server's reply does not name the refused channel.
#[test]
fn a_refused_unsubscription_is_no_other_channels_refusal() {
    let server = server();
    let user = ["SETUSER", "stays", "on", ">secret", "~*", "&*", "+@all", "-unsubscribe"];
    redis::cmd("ACL").arg(&user).exec(&mut server.connection()).unwrap();
    let url = format!("redis://stays:secret@127.0.0.1:{}/", server.port());
    let (restricted, other) = (Client::connect(&url).unwrap(), client(&server));
    let mut redis = server.connection();
    for round in 0..5 {
        woken_by_message(|| {
            let guard = other.fair_lock("fair").lock().unwrap();
            let mut line = Line::new(&server);
            line.add(&restricted.fair_lock("fair"));
            // The client gives up the channel of one waiter while another waiter subscribes to a
            // new channel.
            hold_as_redisson(&mut redis, "java", LONG_LEASE);
            let lock = restricted.fair_lock("java");
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            let owner = wait_queue(&server, "java", 1).remove(0);
            wait_subscribed(&server, &channel_of("java", &owner));
            release_as_redisson(&mut redis, "java", &channel_of("java", &owner));
            waiter.join();
            let names: Vec<_> = (0..4).map(|at| format!("{round} {at}")).collect();
            let held: Vec<_> =
                names.iter().map(|name| other.reentrant_lock(name).lock().unwrap()).collect();
            let waiters: Vec<_> = names
                .iter()
                .map(|name| {
                    let lock = restricted.reentrant_lock(name);
                    spawn(move || lock.lock().unwrap().unlock().unwrap())
                })
                .collect();
            for name in &names {
                wait_in_line(&server, name, 1);
            }
            drop(held);
            guard.unlock().unwrap();
            waiters.into_iter().for_each(Running::join);
            assert_eq!(line.join(), [0]);
        });
    }
}
