//! Queue entries of owners that are gone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use super::*;

/// Sends a request of this owner again. Returns whether the owner then has an entry.
fn ask_late(server: &Server, name: &str, owner: &str, lease: Duration) -> bool {
    let script = concat!(
        include_str!("../../../lua/prelude.lua"),
        include_str!("../../../lua/fair/queue.lua"),
        include_str!("../../../lua/lock/owner.lua"),
        include_str!("../../../lua/fair/acquire.lua")
    );
    let lease = lease.as_millis().to_string();
    let prefix = format!("{}:", channel(name));
    let args = ["10000,300000", &prefix, "0", &lease, owner, "0"];
    let keys = [name.to_owned(), queue_key(name), timeouts_key(name)];
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(3).arg(&keys).arg(&args);
    let answer: Vec<redis::Value> = eval.query(&mut server.connection()).unwrap();
    answer[0] == redis::Value::Int(0)
}

/// Makes a waiter that gives up. Returns the waiter's owner.
fn gone(server: &Server, client: &Client, name: &str) -> String {
    let token = CancelToken::new();
    let (lock, cancel) = (client.fair_lock(name), token.clone());
    let waiter = spawn(move || lock.lock_cancellable(&cancel).map(drop).is_err());
    let owner = wait_queue(server, name, 1).remove(0);
    // The waiter must have its reply before it gives up. Otherwise its request might come late, and
    // the client would give up the entry again and again for ten minutes.
    waiter.wait_queued();
    token.cancel();
    assert!(waiter.join());
    wait_queue(server, name, 0);
    owner
}

#[test]
fn a_place_that_a_late_request_takes_keeps_no_waiter_out() {
    let server = server();
    // If the first waiter does not take the free lock, a request of the second waiter sends a
    // message to the first.
    let (one, other) = (slow(&server), slow(&server));
    let mut redis = server.connection();
    for released in [true, false] {
        for behind in [true, false] {
            let name = format!("late {released} {behind}");
            let guard = other.fair_lock(&name).lock().unwrap();
            let owner = gone(&server, &one, &name);
            assert!(ask_late(&server, &name, &owner, TIME_UNIT));
            assert_eq!(wait_queue(&server, &name, 1), [&*owner]);
            let next = || {
                let lock = other.fair_lock(&name);
                spawn(move || lock.lock().unwrap().unlock().unwrap())
            };
            let mut waiter = behind.then(next);
            wait_queue(&server, &name, 1 + usize::from(behind));
            if released {
                guard.unlock().unwrap();
            } else {
                // The lock becomes free without a message to any client.
                let () = redis.del(&name).unwrap();
            }
            waiter.take().unwrap_or_else(next).join();
            leaves_nothing(&server, &name);
        }
    }
}

#[test]
fn a_late_request_with_a_short_lease_leaves_no_place_though_no_waiter_comes() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (client, other) = (behind(&proxy), client(&server));
    let guard = other.fair_lock("short").lock().unwrap();
    let earlier = gone(&server, &client, "short");
    let uuid = earlier.split_once(':').unwrap().0;
    let mut monitor = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut commands = BufReader::new(monitor).lines().map(Result::unwrap);
    assert_eq!(commands.next().unwrap(), "+OK");
    on_script(&proxy, "short", 2, Action::LoseReply);
    let lock = client.fair_lock("short").with_lease(TIME_UNIT / 10);
    is_clear(&lock.lock().map(drop).unwrap_err(), "short", "given up in the background");
    let owner = commands
        .find_map(|command| {
            let is_new = |it: &&str| it.starts_with(uuid) && *it != earlier;
            command.split('"').find(is_new).map(str::to_owned)
        })
        .unwrap();
    wait_queue(&server, "short", 0);
    // This time is many times the lease.
    thread::sleep(TIME_UNIT * 3);
    assert!(ask_late(&server, "short", &owner, TIME_UNIT / 10), "the test shows nothing");
    wait_queue(&server, "short", 0);
    guard.unlock().unwrap();
    leaves_nothing(&server, "short");
}

#[test]
fn a_message_for_a_holder_takes_nothing_from_it() {
    let server = server();
    let client = client(&server);
    let guard = client.fair_lock("told late").lock().unwrap();
    // A wait makes the client subscribe.
    let waits = client.fair_lock("told late");
    assert!(elsewhere(move || answered(|| waits.try_lock_for(TIME_UNIT)).into_option().is_none()));
    let mut redis = server.connection();
    let owner = holder(&mut redis, "told late").unwrap().0;
    wait_queue(&server, "told late", 0);
    let left = Commands::so_far(&server).of("lrem");
    let number = owner.split_once(':').unwrap().1;
    for message in [format!("ask {number} told late"), format!("ask {number}0 told late")] {
        let heard: i64 = redis.publish(own_channel(&owner), message).unwrap();
        assert_eq!(heard, 1);
    }
    wait_until("its client has seen to it", TIMEOUT, || {
        Commands::so_far(&server).of("lrem") > left
    });
    assert_eq!(holder(&mut redis, "told late").unwrap().0, owner);
    for message in ["", "ask", "ask 1", "grant 1 x", "fence x y", "\u{0}"] {
        let _: i64 = redis.publish(own_channel(&owner), message).unwrap();
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
    leaves_nothing(&server, "told late");
}

// Names and databases with the same keys or channels.

#[test]
fn databases_and_names_that_share_keys_strand_no_waiter() {
    let server = server();
    let url = |database: u8| format!("{}/{database}", server.url().trim_end_matches('/'));
    let clients = [quick_at(&url(0)), quick_at(&url(1))];
    for _ in 0..5 {
        let guards: Vec<_> =
            clients.iter().map(|client| client.fair_lock("same").lock().unwrap()).collect();
        let waiters: Vec<_> = clients
            .iter()
            .map(|client| {
                let lock = client.fair_lock("same");
                let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        for guard in guards {
            guard.unlock().unwrap();
        }
        waiters.into_iter().for_each(Running::join);
    }
    // The names `x` and `{x}` have one queue, and each lock's release wakes the waiters of the
    // other lock.
    let [client, _] = &clients;
    let guards: Vec<_> =
        ["x", "{x}"].iter().map(|name| client.fair_lock(name).lock().unwrap()).collect();
    let waiters: Vec<_> = ["x", "{x}", "{x}", "x"]
        .iter()
        .map(|name| {
            let lock = client.fair_lock(name);
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            waiter.wait_asleep();
            waiter
        })
        .collect();
    for guard in guards.into_iter().rev() {
        guard.unlock().unwrap();
    }
    waiters.into_iter().for_each(Running::join);
    leaves_nothing(&server, "x");
    leaves_nothing(&server, "{x}");
}
