//! Processes that leave the queue.

use super::*;

/// A killed waiter costs the next waiter no time, even if a monitor listens to all channels.
#[test]
fn a_waiter_that_was_killed_is_passed_by_the_release() {
    let server = server();
    let mut redis = server.connection();
    let mut monitor = server.connection();
    redis::cmd("PSUBSCRIBE").arg("*").exec(&mut monitor).unwrap();
    let (one, other) = (client(&server), warm(&server));
    let guard = one.reentrant_lock("killed").lock().unwrap();
    let mut dead: Vec<_> = (1..=3)
        .map(|places| {
            let worker = process(&server, "killed");
            wait_in_line(&server, "killed", places);
            worker
        })
        .collect();
    let guest = Guest::in_line(&server, &other, "killed", 4);
    let line = queue(&mut redis, "killed");
    dead.iter_mut().for_each(Worker::sigkill);
    for owner in &line[..3] {
        let channel = own_channel(owner);
        wait_until("the server knows", TIMEOUT, || {
            let heard: (String, u64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query(&mut redis).unwrap();
            heard.1 == 0
        });
    }
    guard.unlock().unwrap();
    assert_eq!(owner(&mut redis, "killed").as_ref(), Some(&line[3]), "granted by that release");
    guest.wait_in();
    guest.leaves();
    wait_left(&server, "killed");
}

#[test]
fn a_leader_that_gives_up_leaves_its_place_to_the_next_thread() {
    let server = server();
    let mut redis = server.connection();
    let (one, other) = (client(&server), warm(&server));
    let lock = other.reentrant_lock("inherited");
    let guard = one.reentrant_lock("inherited").lock().unwrap();
    let tokens: [CancelToken; 2] = std::array::from_fn(|_| CancelToken::new());
    let leaders = tokens.clone().map(|token| {
        let lock = lock.clone();
        let leader = spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err());
        leader.wait_asleep();
        leader
    });
    wait_in_line(&server, "inherited", 1);
    let heir = Guest::of(&lock);
    heir.thread.wait_asleep();
    let behind = Guest::in_line(&server, &client(&server), "inherited", 2);
    let line = queue(&mut redis, "inherited");
    for (token, leader) in tokens.iter().zip(leaders) {
        token.cancel();
        assert_eq!(leader.join().kind(), ErrorKind::Cancelled);
        heir.thread.wait_asleep();
        assert_eq!(queue(&mut redis, "inherited"), line);
    }
    guard.unlock().unwrap();
    assert_eq!(owner(&mut redis, "inherited").as_ref(), Some(&line[0]));
    heir.wait_in();
    heir.leaves();
    behind.wait_in();
    behind.leaves();
    wait_left(&server, "inherited");
}

/// Thousands of waiters give up just as they are granted the lock.
#[test]
fn a_very_short_wait_leaves_neither_place_nor_hold() {
    let server = server();
    let mut lapses = Lapses::of(&server);
    let mut redis = server.connection();
    // Each client has one thread. With more threads, the queue entry would go from one to another.
    let clients: [Client; 6] = std::array::from_fn(|_| warm(&server));
    let before = lapses.so_far();
    let (inside, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let counts: Vec<_> = (0..6).map(|_| Arc::new(<[AtomicU64; 2]>::default())).collect();
    let threads: Vec<_> = (0..6)
        .map(|at| {
            let lock = clients[at].reentrant_lock("moment");
            let (inside, stop) = (Arc::clone(&inside), Arc::clone(&stop));
            let count = Arc::clone(&counts[at]);
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = if_answered(lock.try_lock_for(Duration::from_millis(1)));
                    count[usize::from(guard.is_some())].fetch_add(1, Ordering::SeqCst);
                    if guard.is_none() {
                        continue;
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::sleep(Duration::from_micros(if at < 3 { 900 } else { 100 }));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    let total = |what: usize| -> u64 {
        counts.iter().map(|count| count[what].load(Ordering::SeqCst)).sum()
    };
    wait_until("thousands have waited", TIMEOUT, || {
        // On a busy machine, a client may still have to remove one entry while it already has the
        // next.
        wait_until("no place is left behind", TIMEOUT, || {
            queue(&mut redis, "moment").len() <= clients.len()
        });
        total(0) > 3_000 && total(1) > 300
    });
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    println!("{} in vain, {} granted", total(0), total(1));
    wait_left(&server, "moment");
    assert_eq!(lapses.so_far(), before, "what nobody had had to lapse");
    // Nothing happens in the background any longer.
    let mut before = 0;
    wait_until("nobody sends anything any more", TIMEOUT, || {
        thread::sleep(TIME_UNIT / 2);
        let now = Commands::so_far(&server).scripts();
        std::mem::replace(&mut before, now) == now
    });
}

/// A client that ends leaves no queue entry and no hold. The client may end while it waits for the
/// lock, while it holds the lock, or while it is being granted the lock.
#[test]
fn a_shutdown_leaves_neither_place_nor_hold() {
    let server = server();
    let mut lapses = Lapses::of(&server);
    let mut redis = server.connection();
    let one = warm(&server);
    let is_shut_down = |guest: Guest| {
        let error = guest.ends().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::LeaseLost), "{error}");
    };
    // The client ends while it waits.
    let guard = one.reentrant_lock("ends").lock().unwrap();
    let ending = warm(&server);
    let guests = [
        Guest::in_line(&server, &ending, "ends", 1),
        Guest::of(&ending.reentrant_lock("ends")),
        Guest::in_line(&server, &warm(&server), "ends", 2),
    ];
    guests[1].thread.wait_asleep();
    let line = queue(&mut redis, "ends");
    ending.shutdown();
    let [first, second, last] = guests;
    is_shut_down(first);
    is_shut_down(second);
    assert_eq!(queue(&mut redis, "ends"), line[1..]);
    guard.unlock().unwrap();
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[1]));
    last.wait_in();
    last.leaves();
    // The client ends while it has the lock.
    let ending = warm(&server);
    let holder = Guest::of(&ending.reentrant_lock("ends"));
    holder.wait_in();
    let next = Guest::in_line(&server, &one, "ends", 1);
    let line = queue(&mut redis, "ends");
    ending.shutdown();
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[0]));
    is_shut_down(holder);
    next.wait_in();
    // The client ends while the message that grants it the lock is on its way.
    let proxy = Proxy::before(&server);
    let ending = behind(&server, &proxy);
    let granted = Guest::in_line(&server, &ending, "ends", 1);
    let last = Guest::in_line(&server, &warm(&server), "ends", 2);
    let line = queue(&mut redis, "ends");
    proxy.on_reply("grant ", Action::HoldReply);
    next.leaves();
    proxy.wait_fired(1, TIMEOUT);
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[0]));
    ending.shutdown();
    is_shut_down(granted);
    assert_eq!(owner(&mut redis, "ends").as_ref(), Some(&line[1]));
    last.wait_in();
    last.leaves();
    wait_left(&server, "ends");
    assert_eq!(lapses.so_far(), 0);
}

#[test]
fn a_shutdown_that_crosses_the_grant_keeps_the_lock_from_no_client() {
    let server = server();
    let mut lapses = Lapses::of(&server);
    let mut redis = server.connection();
    let mut random = Random::new();
    let one = client(&server);
    let mut entered = 0;
    for _ in 0..60 {
        let guard = one.reentrant_lock("crossing").lock().unwrap();
        let ending = warm(&server);
        let guest = Guest::in_line(&server, &ending, "crossing", 1);
        let ends = spawn(move || ending.shutdown());
        let until = Instant::now() + Duration::from_micros(random.below(400));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        guard.unlock().unwrap();
        ends.join();
        entered += u64::from(guest.is_in());
        let error = guest.ends().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::LeaseLost), "{error}");
        assert_eq!(owner(&mut redis, "crossing"), None);
        assert!(queue(&mut redis, "crossing").is_empty());
    }
    println!("{entered} were in");
    assert_eq!(lapses.so_far(), 0);
}
