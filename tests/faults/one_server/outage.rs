//! A server that is unreachable for some time.

use std::sync::Barrier;

use redlatch::{CancelToken, Error, ExpirablePermit, MultiLock, OwnedLockGuard, Wait};

use super::*;

/// Starts a server that keeps its data when it restarts.
fn lasting() -> Server {
    Server::with_args(&["--appendonly", "yes", "--appendfsync", "always"]).unwrap()
}

/// Returns a client that tries to reach a server for `failover_timeout`.
fn enduring(server: &Server, failover_timeout: Duration) -> Client {
    impatient(&server.url()).failover_timeout(failover_timeout).connect().unwrap()
}

/// A wait that ends only when the other client releases the lock or the permits that it has `kept`.
type Waits = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// Returns a client's waits of every kind, which last until the token is cancelled.
fn waits(client: &Client, token: Option<&CancelToken>) -> Vec<(&'static str, Waits)> {
    let wait = |wait: fn(&Client, Wait<'_>) -> Result<(), Error>| -> Waits {
        let (client, token) = (client.clone(), token.cloned());
        Box::new(move || wait(&client, token.as_ref().map_or(Wait::FOREVER, Wait::from)))
    };
    vec![
        ("lock", wait(|it, wait| it.reentrant_lock("lock").lock_within(wait).map(drop))),
        ("fair", wait(|it, wait| it.fair_lock("fair").lock_within(wait).map(drop))),
        ("fenced", wait(|it, wait| it.fenced_lock("fenced").lock_within(wait).map(drop))),
        ("read", wait(|it, wait| it.read_write_lock("pair").reader().lock_within(wait).map(drop))),
        ("write", wait(|it, wait| it.read_write_lock("pair").writer().lock_within(wait).map(drop))),
        ("permits", wait(|it, wait| it.semaphore("permits").acquire_within(wait).map(drop))),
        (
            "permit_leases",
            wait(|it, wait| it.expirable_semaphore("permit_leases").acquire_within(wait).map(drop)),
        ),
        ("latch", wait(|it, wait| it.count_down_latch("latch").wait_within(wait).map(drop))),
        (
            "several",
            wait(|it, wait| {
                let locks = ["lock", "another"].map(|name| it.reentrant_lock(name));
                MultiLock::new(&[&locks[0], &locks[1]])?.lock_within(wait).map(drop)
            }),
        ),
    ]
}

/// Waits until the server has replied to a thread of each wait. The waits began during an outage.
fn wait_answered(server: &Server) {
    let mut redis = server.connection();
    for queue in [
        "redlatch_queue:{lock}",
        "redisson_lock_queue:{fair}",
        "redlatch_queue:{fenced}",
        "redlatch_rwlock_queue:{pair}",
    ] {
        wait_until(&format!("a place in {queue}"), TIMEOUT, || redis.exists(queue).unwrap());
    }
    for channel in [
        "redisson_sc:{permits}",
        "redisson_sc:{permit_leases}",
        "redisson_countdownlatch__channel__{latch}",
    ] {
        wait_subscribed(server, channel);
    }
}

/// A client's holds of all kinds, so that every other client has to wait.
struct Kept {
    locks: Vec<OwnedLockGuard>,
    permit_lease: ExpirablePermit,
    client: Client,
}

impl Kept {
    fn by(client: &Client) -> Self {
        let locks = vec![
            client.reentrant_lock("lock").lock_owned().unwrap(),
            client.fair_lock("fair").lock_owned().unwrap(),
            client.fenced_lock("fenced").lock_owned().unwrap().into(),
            client.read_write_lock("pair").writer().lock_owned().unwrap(),
        ];
        assert!(client.semaphore("permits").try_set_permits(0).unwrap());
        let permit_leases = client.expirable_semaphore("permit_leases");
        assert!(permit_leases.try_set_permits(1).unwrap());
        let permit_lease = permit_leases.acquire().unwrap();
        assert!(client.count_down_latch("latch").try_set_count(1).unwrap());
        Self { locks, permit_lease, client: client.clone() }
    }

    fn give_up(self) {
        let unheld: Vec<_> = self.locks.iter().filter(|guard| !guard.is_held()).collect();
        assert!(unheld.is_empty(), "{unheld:?}");
        // On a busy machine a reply may be late. The client then repeats the release.
        let late = |error: &Error| error.kind() == ErrorKind::ResponseTimeout;
        let released = self.locks.into_iter().map(OwnedLockGuard::unlock);
        released.for_each(|released| assert!(released.as_ref().err().is_none_or(late)));
        self.permit_lease.release().unwrap();
        self.client.semaphore("permits").add_permits(1).unwrap();
        let latch = self.client.count_down_latch("latch");
        wait_until("it is open", TIMEOUT, || latch.count_down().is_ok());
    }
}

/// The waiters are threads that sleep during the restart, that send a request during it, and that
/// begin to wait during it.
#[test]
fn waits_and_holds_of_every_kind_outlast_a_restart_of_their_server() {
    bound();
    let server = lasting();
    let (holder, client) = (enduring(&server, LONG_LEASE), enduring(&server, LONG_LEASE));
    let kept = Kept::by(&holder);
    let lock = client.reentrant_lock("condition");
    let notifier = holder.reentrant_lock("condition");
    let (changed, change) = (lock.condition("changed"), notifier.condition("changed"));
    let on_condition = spawn(move || {
        let guard = lock.lock().unwrap();
        changed.wait(&guard).map(drop)
    });
    let start = |(what, wait): (&'static str, Waits)| (what, spawn(wait));
    let mut waiting: Vec<_> = waits(&client, None).into_iter().map(start).collect();
    waiting.iter().for_each(|(_, waiter)| waiter.wait_queued());
    on_condition.wait_queued();

    server.kill();
    let late = impatient(&server.url()).failover_timeout(LONG_LEASE).connect();
    assert!(late.is_err(), "connect waits for no server");
    let barrier = Arc::new(Barrier::new(1 + waiting.len()));
    for (what, wait) in waits(&client, None) {
        let barrier = Arc::clone(&barrier);
        let come = move || {
            barrier.wait();
            wait()
        };
        waiting.push((what, spawn(come)));
    }
    barrier.wait();
    // Time must pass here, so that each waiter for a lock sends a request.
    thread::sleep(TIME_UNIT * 15);
    for (what, waiter) in &waiting {
        assert!(!waiter.is_finished(), "{what} has not waited");
    }
    assert!(holder.reentrant_lock("another").try_lock().is_err(), "it does not wait");
    server.restart_empty();

    kept.give_up();
    let guard = notifier.lock().unwrap();
    // A notification skips a waiter whose client has not subscribed yet. The skipped waiter ends
    // its wait at its next request.
    let _heard = change.notify_one().unwrap();
    guard.unlock().unwrap();
    for (what, waiter) in waiting {
        waiter.join().unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }
    on_condition.join().unwrap();
}

/// In the first outage, the second thread of the process's queue gets the error from the leader,
/// the thread that sends the requests. In the second outage, this thread is itself the leader.
#[test]
fn a_thread_behind_another_endures_each_outage_for_its_whole_time() {
    bound();
    let server = lasting();
    let limit = TIME_UNIT * 50;
    let (holder, client) = (enduring(&server, LONG_LEASE), enduring(&server, limit));
    let kept = Kept::by(&holder);
    let begun = Instant::now();
    server.kill();
    let token = CancelToken::new();
    let start = |(what, wait): (&'static str, Waits)| (what, spawn(wait));
    let leaders: Vec<_> = waits(&client, Some(&token)).into_iter().map(start).collect();
    leaders.iter().for_each(|(_, leader)| leader.wait_queued());
    let followers: Vec<_> = waits(&client, None).into_iter().map(start).collect();
    // Time must pass here, so that the leaders send requests during this time and after it.
    thread::sleep(TIME_UNIT * 10);
    server.restart_empty();
    wait_answered(&server);
    thread::sleep((limit + TIME_UNIT * 5).saturating_sub(begun.elapsed()));

    server.kill();
    token.cancel();
    for (what, leader) in leaders {
        let error = leader.join().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}: {error:#}");
    }
    thread::sleep(TIME_UNIT * 10);
    server.restart_empty();
    kept.give_up();
    let end = |(what, it): (_, Running<Result<(), Error>>)| Some((what, it.join().err()?));
    let failed: Vec<_> = followers.into_iter().filter_map(end).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The leader (the thread that sends its process's requests) gets a reply between the outages. It
/// is cancelled before the server has confirmed its channel.
#[test]
fn an_answer_to_a_leader_that_is_cancelled_ends_the_outage_for_the_next_one() {
    let server = server();
    let proxy = Proxy::before(&server);
    let limit = TIME_UNIT * 30;
    // A late confirmation of the channel would also count as an outage.
    let builder = impatient(&proxy.url()).response_timeout(LONG_LEASE).failover_timeout(limit);
    let latch = builder.connect().unwrap().count_down_latch("latch");
    assert!(latch.try_set_count(1).unwrap());
    let begun = Instant::now();
    let outage = || {
        proxy.refuse();
        proxy.cut_all();
    };
    outage();
    let token = CancelToken::new();
    let (led, cancelled, followed) = (latch.clone(), token.clone(), latch.clone());
    let leader = spawn(move || led.wait_cancellable(&cancelled).unwrap_err());
    leader.wait_queued();
    let follower = spawn(move || followed.wait());
    // Time must pass here, so that the leader sends a request and the other thread notices the
    // reply.
    thread::sleep(TIME_UNIT * 5);
    assert!(begun.elapsed() < limit, "too slow a machine");
    proxy.on_request("redisson_countdownlatch__channel__{latch}", Action::Silence);
    proxy.accept();
    proxy.wait_fired(1, TIMEOUT);
    leader.wait_queued();
    thread::sleep((limit + TIME_UNIT * 5).saturating_sub(begun.elapsed()));
    outage();
    token.cancel();
    assert_eq!(leader.join().kind(), ErrorKind::Cancelled);
    thread::sleep(TIME_UNIT * 5);
    proxy.accept();
    wait_until("it is open", TIMEOUT, || latch.count_down().is_ok());
    follower.join().unwrap();
}

/// The second call begins when half of the first call's time is over.
#[test]
fn each_call_endures_an_outage_for_the_failover_timeout_from_its_own_first_failure() {
    let server = server();
    let limit = TIME_UNIT * 10;
    let client = enduring(&server, limit);
    drop(client.reentrant_lock("away").lock().unwrap());
    server.kill();
    let waits = || {
        let lock = client.reentrant_lock("away");
        spawn(move || {
            let begun = Instant::now();
            let error = lock.lock().map(drop).unwrap_err();
            (begun.elapsed(), error)
        })
    };
    let first = waits();
    thread::sleep(limit / 2);
    for waiter in [waits(), first] {
        let (waited, error) = waiter.join();
        is_clear(&error, "away", "no connection");
        assert!(error.is_transient(), "{error}");
        assert!(waited >= limit, "{waited:?}");
    }
}

#[test]
fn an_outage_ends_no_wait_later_than_its_limit_or_its_token_does() {
    let server = server();
    let client = enduring(&server, LONG_LEASE * 60);
    drop(client.reentrant_lock("away").lock().unwrap());
    server.kill();
    let error = refused(|| client.reentrant_lock("away").try_lock_for(TIME_UNIT));
    is_clear(&error, "away", "no connection");
    let token = CancelToken::new();
    let (lock, cancelled) = (client.reentrant_lock("away"), token.clone());
    let waiter = spawn(move || lock.lock_cancellable(&cancelled).map(drop));
    waiter.wait_queued();
    token.cancel();
    assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_wait_that_is_let_in_no_more_ends_at_once() {
    let server = server();
    let client = enduring(&server, LONG_LEASE * 60);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "kept", LONG_LEASE);
    let lock = client.reentrant_lock("kept");
    let waiter = spawn(move || lock.lock().map(drop));
    waiter.wait_queued();
    let () =
        redis::cmd("CONFIG").arg(&["SET", "requirepass", "changed"]).query(&mut redis).unwrap();
    kill_clients(&mut redis, "normal");
    kill_clients(&mut redis, "pubsub");
    let error = waiter.join().unwrap_err();
    is_clear(&error, "kept", "password");
    assert!(!error.is_transient(), "{error}");
}

/// The server at a name may become a replica, and later a master again.
#[test]
fn waits_outlast_a_server_that_is_a_replica_for_a_while_and_one_thread_asks_for_all() {
    let server = server();
    let client = enduring(&server, LONG_LEASE);
    drop(client.reentrant_lock("name").lock().unwrap());
    let mut redis = server.connection();
    let mut follow = |master: [&str; 2]| {
        let () = redis::cmd("REPLICAOF").arg(&master).query(&mut redis).unwrap();
    };
    // No server listens there.
    follow(["127.0.0.1", "1"]);
    let before = Commands::so_far(&server).scripts();
    let waiters: Vec<_> = (0..MANY_THREADS)
        .map(|_| {
            let lock = client.reentrant_lock("name");
            spawn(move || lock.lock().map(drop))
        })
        .collect();
    thread::sleep(TIME_UNIT * 10);
    let asked = Commands::so_far(&server).scripts() - before;
    let refused = waiters.iter().filter(|waiter| waiter.is_finished()).count();
    follow(["NO", "ONE"]);
    for waiter in waiters {
        waiter.join().unwrap();
    }
    assert_eq!(refused, 0);
    // The client sends one request in 100 ms. A request may be sent by hash, and again as text.
    assert!((2..MANY_THREADS as u64 / 2).contains(&asked), "{asked} requests");
}
