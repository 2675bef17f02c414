//! The order of grants.

use super::*;

#[test]
fn threads_and_clients_are_served_in_the_order_they_came() {
    let server = server();
    let clients: Vec<_> = (0..3).map(|_| client(&server)).collect();
    let mut random = Random::new();
    for name in ["order", "a{b}c", "glob*[x]?"] {
        let guard = clients[0].fair_lock(name).lock().unwrap();
        let mut redis = server.connection();
        let key = if name.contains('{') {
            format!("redisson_lock_queue:{name}")
        } else {
            queue_key(name)
        };
        let mut threads: Vec<Running<()>> = Vec::new();
        let served = Arc::new(Mutex::new(Vec::new()));
        for at in 0..24 {
            let lock = clients[usize::try_from(random.below(3)).unwrap()].fair_lock(name);
            let served = Arc::clone(&served);
            let thread = spawn(move || {
                let guard = lock.lock().unwrap();
                served.lock().unwrap().push(at);
                if at % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
            });
            threads.push(thread);
            wait_until("it stands in the queue", TIMEOUT, || {
                redis.llen::<_, usize>(&key).unwrap() == threads.len()
            });
        }
        guard.unlock().unwrap();
        threads.into_iter().for_each(Running::join);
        assert_eq!(*served.lock().unwrap(), (0..24).collect::<Vec<_>>(), "{name}");
    }
    leaves_nothing(&server, "order");
    let keys: Vec<String> = server.connection().keys("*").unwrap();
    assert!(keys.is_empty(), "left behind: {keys:?}");
}

#[test]
fn processes_are_served_in_the_order_they_came() {
    let server = server();
    let guard = client(&server).fair_lock("processes").lock().unwrap();
    let mut workers: Vec<_> =
        (0..5).map(|at| process("waiter", &server, "processes", at)).collect();
    wait_queue(&server, "processes", 5);
    guard.unlock().unwrap();
    workers.iter_mut().for_each(|worker| drop(worker.expect_line("released", TIMEOUT)));
    assert_eq!(served(&server), [0, 1, 2, 3, 4]);
    leaves_nothing(&server, "processes");
}

#[test]
fn a_try_does_not_pass_the_queue() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    // The lock is free, and the queue has a Java waiter that has not timed out yet.
    let foreign = format!("{FOREIGN}1");
    let until = 4_000_000_000_000_u64;
    let () = redis.rpush(queue_key("tried"), &foreign).unwrap();
    let () = redis.zadd(timeouts_key("tried"), &foreign, until).unwrap();
    for client in [&one, &other] {
        let lock = client.fair_lock("tried");
        assert!(lock.try_lock().unwrap().into_option().is_none());
        assert!(answered(|| lock.try_lock_for(Duration::ZERO)).into_option().is_none());
        assert!(answered(|| lock.try_lock_for(TIME_UNIT)).into_option().is_none());
        assert!(!lock.is_locked().unwrap());
    }
    assert_eq!(wait_queue(&server, "tried", 1), [foreign]);
    let () = redis.del(&[queue_key("tried"), timeouts_key("tried")]).unwrap();
    one.fair_lock("tried").try_lock().unwrap().into_option().unwrap().unlock().unwrap();
    let guard = one.fair_lock("tried").try_lock().unwrap().into_option().unwrap();
    assert!(other.fair_lock("tried").try_lock().unwrap().into_option().is_none());
    assert!(queue(&server, "tried").is_empty(), "a try does not queue");
    drop(guard);
    leaves_nothing(&server, "tried");
}

/// The lock is released while the first waiter's client has not subscribed yet.
#[test]
fn a_waiter_that_has_only_just_come_is_not_passed_over() {
    // A time that is shorter than the time to the client's first keep-alive request.
    const JUST: Duration = Duration::from_millis(500);
    let server = server();
    let (one, other) = (client(&server), client(&server));
    once_within(JUST, || {
        let proxy = Proxy::before(&server);
        proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, |bytes| {
            contains(bytes, "SUBSCRIBE")
        });
        let new = Client::connect(&proxy.url()).unwrap();
        let guard = one.fair_lock("new").lock().unwrap();
        let mut line = Line::new(&server);
        let begun = Instant::now();
        line.add(&new.fair_lock("new"));
        line.add(&other.fair_lock("new"));
        wait_subscribed(&server, &own_channel(&queue(&server, "new").remove(1)));
        guard.unlock().unwrap();
        let (took, released) = (begun.elapsed(), Instant::now());
        proxy.clear_rules();
        let order = line.join();
        leaves_nothing(&server, "new");
        // If the process stood still for half of the lease of a grant by message, the test tries
        // again.
        if took >= JUST || released.elapsed() >= PROVISIONAL / 2 {
            return JUST;
        }
        assert_eq!(order, [0, 1]);
        took
    });
}

#[test]
fn passes_within_a_process_keep_the_order_and_leave_nothing() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = one.fair_lock("passed");
    let guard = lock.lock().unwrap();
    let mut line = Line::new(&server);
    // The other client's thread is queued between threads that could pass the lock to each other.
    for client in [&one, &one, &one, &other, &one, &one] {
        line.add(&client.fair_lock("passed"));
    }
    drop(guard);
    assert_eq!(line.join(), [0, 1, 2, 3, 4, 5]);
    leaves_nothing(&server, "passed");
}

#[test]
fn a_hold_is_re_entered_and_its_count_in_redis_is_one() {
    let server = server();
    let client = client(&server);
    let lock = client.fair_lock("nested");
    let outer = lock.lock().unwrap();
    let mut line = Line::new(&server);
    line.add(&lock);
    // The thread re-enters, although another thread waits.
    let inner = lock.lock().unwrap();
    let tried = lock.try_lock().unwrap().into_option().unwrap();
    assert_eq!(lock.hold_count(), 3);
    assert_eq!(holder(&mut server.connection(), "nested").unwrap().1, "1");
    drop((inner, tried));
    assert_eq!(wait_queue(&server, "nested", 1).len(), 1);
    outer.unlock().unwrap();
    assert_eq!(line.join(), [0]);
    leaves_nothing(&server, "nested");
}
