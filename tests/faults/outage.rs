//! A server that is away for a while.

use std::sync::Barrier;

use redlatch::{CancelToken, Error, ExpirablePermit, MultiLock, OwnedLockGuard, Wait};

use super::*;

/// One that keeps its data over a restart.
fn lasting() -> Server {
    Server::with_args(&["--appendonly", "yes", "--appendfsync", "always"]).unwrap()
}

/// One that endures a server which is away, for `failover_timeout`.
fn enduring(server: &Server, failover_timeout: Duration) -> Client {
    impatient(&server.url()).failover_timeout(failover_timeout).connect().unwrap()
}

/// Does not end before what is `kept` by somebody else is given up.
type Waits = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// What a client waits for, of every kind that there is, until the token is cancelled.
fn waits(client: &Client, token: Option<&CancelToken>) -> Vec<(&'static str, Waits)> {
    let wait = |wait: fn(&Client, Wait<'_>) -> Result<(), Error>| -> Waits {
        let (client, token) = (client.clone(), token.cloned());
        Box::new(move || wait(&client, token.as_ref().map_or(Wait::FOREVER, Wait::from)))
    };
    vec![
        ("lock", wait(|it, wait| it.reentrant_lock("lock").lock_within(wait).map(drop))),
        ("fair", wait(|it, wait| it.fair_lock("fair").lock_within(wait).map(drop))),
        ("fenced", wait(|it, wait| it.fenced_lock("fenced").lock_within(wait).map(drop))),
        ("read", wait(|it, wait| it.read_write_lock("pair").read().lock_within(wait).map(drop))),
        ("write", wait(|it, wait| it.read_write_lock("pair").write().lock_within(wait).map(drop))),
        ("permits", wait(|it, wait| it.semaphore("permits").acquire_within(wait).map(drop))),
        ("loans", wait(|it, wait| it.expirable_semaphore("loans").acquire_within(wait).map(drop))),
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

/// What a client holds of all that: nobody else gets any of it.
struct Kept {
    locks: Vec<OwnedLockGuard>,
    loan: ExpirablePermit,
    client: Client,
}

impl Kept {
    fn by(client: &Client) -> Self {
        let locks = vec![
            client.reentrant_lock("lock").lock_owned().unwrap(),
            client.fair_lock("fair").lock_owned().unwrap(),
            client.fenced_lock("fenced").lock_owned().unwrap().into(),
            client.read_write_lock("pair").write().lock_owned().unwrap(),
        ];
        assert!(client.semaphore("permits").try_set_permits(0).unwrap());
        let loans = client.expirable_semaphore("loans");
        assert!(loans.try_set_permits(1).unwrap());
        let loan = loans.acquire().unwrap();
        assert!(client.count_down_latch("latch").try_set_count(1).unwrap());
        Self { locks, loan, client: client.clone() }
    }

    fn give_up(self) {
        let unheld: Vec<_> = self.locks.iter().filter(|guard| !guard.is_held()).collect();
        assert!(unheld.is_empty(), "{unheld:?}");
        self.locks.into_iter().for_each(|guard| guard.unlock().unwrap());
        self.loan.release().unwrap();
        self.client.semaphore("permits").add_permits(1).unwrap();
        let latch = self.client.count_down_latch("latch");
        wait_until("it is open", SOON, || latch.count_down().is_ok());
    }
}

/// Those that sleep when it happens, those that ask meanwhile, and those that come meanwhile.
#[test]
fn waits_and_holds_of_every_kind_outlast_a_restart_of_their_server() {
    let _bounded = bounded();
    let server = lasting();
    let (holder, client) = (enduring(&server, LONG), enduring(&server, LONG));
    let kept = Kept::by(&holder);
    let lock = client.reentrant_lock("condition");
    let notifier = holder.reentrant_lock("condition");
    let (changed, change) = (lock.new_condition("changed"), notifier.new_condition("changed"));
    let on_condition = spawn(move || {
        let guard = lock.lock().unwrap();
        changed.wait(&guard).map(drop)
    });
    let start = |(what, wait): (&'static str, Waits)| (what, spawn(wait));
    let mut waiting: Vec<_> = waits(&client, None).into_iter().map(start).collect();
    waiting.iter().for_each(|(_, waiter)| waiter.wait_queued());
    on_condition.wait_queued();

    server.kill();
    let late = impatient(&server.url()).failover_timeout(LONG).connect();
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
    // Time is the subject: each that waits for a lock asks within it.
    thread::sleep(UNIT * 15);
    for (what, waiter) in &waiting {
        assert!(!waiter.is_finished(), "{what} has not waited");
    }
    assert!(holder.reentrant_lock("another").try_lock().is_err(), "it does not wait");
    server.restart_empty();

    kept.give_up();
    let guard = notifier.lock().unwrap();
    // Who does not listen yet is passed over, and finds that out by itself.
    let _heard = change.notify_one().unwrap();
    guard.unlock().unwrap();
    for (what, waiter) in waiting {
        waiter.join().unwrap_or_else(|error| panic!("{what}: {error:#}"));
    }
    on_condition.join().unwrap();
}

/// The one that follows in the process's line is told of the first outage, and asks itself in the second.
#[test]
fn whoever_waits_behind_another_thread_endures_each_outage_for_its_whole_time() {
    let _bounded = bounded();
    let server = lasting();
    let limit = UNIT * 50;
    let (holder, client) = (enduring(&server, LONG), enduring(&server, limit));
    let kept = Kept::by(&holder);
    let begun = Instant::now();
    server.kill();
    let token = CancelToken::new();
    let start = |(what, wait): (&'static str, Waits)| (what, spawn(wait));
    let leaders: Vec<_> = waits(&client, Some(&token)).into_iter().map(start).collect();
    leaders.iter().for_each(|(_, leader)| leader.wait_queued());
    let followers: Vec<_> = waits(&client, None).into_iter().map(start).collect();
    // Time is the subject: those in front ask within it, and again after it.
    thread::sleep(UNIT * 10);
    server.restart_empty();
    thread::sleep((limit + UNIT * 5).saturating_sub(begun.elapsed()));

    server.kill();
    token.cancel();
    for (what, leader) in leaders {
        let error = leader.join().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}: {error:#}");
    }
    thread::sleep(UNIT * 10);
    server.restart_empty();
    kept.give_up();
    let end = |(what, it): (_, Running<Result<(), Error>>)| Some((what, it.join().err()?));
    let failed: Vec<_> = followers.into_iter().filter_map(end).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The second call begins when half of the first one's time is over.
#[test]
fn each_call_endures_an_outage_for_so_long_from_its_own_first_failure() {
    let _bounded = bounded();
    let server = server();
    let limit = UNIT * 10;
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
    let _bounded = bounded();
    let server = server();
    let client = enduring(&server, LONG * 60);
    drop(client.reentrant_lock("away").lock().unwrap());
    server.kill();
    let error = client.reentrant_lock("away").try_lock_for(UNIT).map(drop).unwrap_err();
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
    let _bounded = bounded();
    let server = server();
    let client = enduring(&server, LONG * 60);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "kept", LONG);
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

/// Behind one name a server may become a replica, and be one no more.
#[test]
fn waits_outlast_a_server_that_is_a_replica_for_a_while_and_one_thread_asks_for_all() {
    let _bounded = bounded();
    let server = server();
    let client = enduring(&server, LONG);
    drop(client.reentrant_lock("name").lock().unwrap());
    let mut redis = server.connection();
    let mut follow = |master: [&str; 2]| {
        let () = redis::cmd("REPLICAOF").arg(&master).query(&mut redis).unwrap();
    };
    // Nobody is there.
    follow(["127.0.0.1", "1"]);
    let before = Commands::so_far(&server).scripts();
    let waiters: Vec<_> = (0..CROWD)
        .map(|_| {
            let lock = client.reentrant_lock("name");
            spawn(move || lock.lock().map(drop))
        })
        .collect();
    thread::sleep(UNIT * 10);
    let asked = Commands::so_far(&server).scripts() - before;
    let refused = waiters.iter().filter(|waiter| waiter.is_finished()).count();
    follow(["NO", "ONE"]);
    for waiter in waiters {
        waiter.join().unwrap();
    }
    assert_eq!(refused, 0);
    // Once in 100 ms, and perhaps by hash and by text.
    assert!((2..CROWD as u64 / 2).contains(&asked), "{asked} requests");
}
