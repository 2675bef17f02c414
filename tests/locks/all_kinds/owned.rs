//! Guards that belong to no thread.

use super::*;

over_all_kinds! {
    an_owned_guard_belongs_to_no_thread_and_excludes_every_thread
    an_owned_guard_is_released_by_any_thread_that_drops_it
    owned_guards_and_threads_exclude_and_follow_each_other
    a_lost_owned_guard_is_told_where_it_is
    a_wait_for_an_owned_guard_ends_like_any_other
}

fn an_owned_guard_belongs_to_no_thread_and_excludes_every_thread(kind: Kind) {
    let server = server();
    let client = client(&server);
    let lock = kind.make(&client, "owned");
    let owned = lock.lock_owned().unwrap();
    assert!(owned.is_held() && lock.is_locked().unwrap());
    assert_eq!((owned.name(), owned.state()), ("owned", HoldState::Held));
    owned.check(TIME_UNIT).unwrap();
    // The thread with the owned guard does not hold the lock: it is like any other thread.
    assert!(!lock.is_held_by_current_thread() && lock.hold_count() == 0);
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(lock.try_lock().unwrap().into_option().is_none());
    assert!(lock.try_lock_owned().unwrap().into_option().is_none());
    assert!(answered(|| lock.try_lock_owned_for(TIME_UNIT / 2)).into_option().is_none());
    assert!(answered(|| lock.try_lock_for(TIME_UNIT / 2)).into_option().is_none());
    assert!(
        answered(|| lock.lock_owned_within(Wait::at_most(TIME_UNIT / 2))).into_option().is_none()
    );
    assert!(owned.is_held());
    owned.unlock().unwrap();
    // The thread first takes a plain guard, and then calls for an owned guard.
    let guard = lock.lock().unwrap();
    assert!(lock.try_lock_owned().unwrap().into_option().is_none());
    assert!(
        answered(|| lock.lock_owned_within(Wait::at_most(TIME_UNIT / 2))).into_option().is_none()
    );
    guard.unlock().unwrap();
    drop(lock.try_lock_owned().unwrap().into_option().expect("it is free"));
    lock.try_lock_owned_for(TIMEOUT).unwrap().into_option().expect("it is free").unlock().unwrap();
    lock.lock_owned_cancellable(&CancelToken::new()).unwrap().unlock().unwrap();
    leaves_nothing(&server);
}

fn an_owned_guard_is_released_by_any_thread_that_drops_it(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    for drops in [true, false] {
        woken_by_message(|| {
            let lock = kind.make(&client, "sent");
            // One thread takes the lock. Another thread releases it after the first thread has
            // ended.
            let owned = elsewhere(move || lock.lock_owned().unwrap());
            let waits = kind.make(&other, "sent");
            let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
            waiter.wait_asleep();
            assert!(owned.is_held());
            elsewhere(move || if drops { drop(owned) } else { owned.unlock().unwrap() });
            waiter.join();
        });
        leaves_nothing(&server);
    }
    // An owned guard also keeps its client alive.
    let owned = kind.make(&client, "kept").lock_owned().unwrap();
    drop(client);
    assert!(owned.is_held());
    elsewhere(move || owned.unlock().unwrap());
    leaves_nothing(&server);
}

fn owned_guards_and_threads_exclude_and_follow_each_other(kind: Kind) {
    let server = server();
    let clients = [client(&server), client(&server)];
    let mut random = Random::new();
    let inside = Arc::new(AtomicU64::new(0));
    // A thread may take an owned guard and let another thread drop it.
    let (send, receive) = std::sync::mpsc::channel::<OwnedLockGuard>();
    let entered = Arc::clone(&inside);
    let dropper = spawn(move || {
        for guard in receive {
            assert!(guard.is_held());
            entered.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        }
    });
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let lock = kind.make(&clients[at % 2], "mixed");
            let (inside, send) = (Arc::clone(&inside), send.clone());
            let mut random = Random::of(random.next());
            spawn(move || {
                for _ in 0..100 {
                    if random.below(2) == 0 {
                        let guard = lock.lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        let again = lock.lock().unwrap();
                        assert!(again.is_held() && lock.hold_count() == 2);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop((again, guard));
                    } else {
                        let guard = lock.lock_owned().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(guard.is_held() && lock.hold_count() == 0);
                        send.send(guard).unwrap();
                    }
                }
            })
        })
        .collect();
    drop(send);
    threads.into_iter().for_each(Running::join);
    dropper.join();
    leaves_nothing(&server);
}

fn a_lost_owned_guard_is_told_where_it_is(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let owned = kind.leased(&client, "lost", LEASE).lock_owned().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&calls);
    owned.on_lost(move |_| {
        told.fetch_add(1, Ordering::SeqCst);
    });
    let theirs = kind.make(&other, "lost").lock().unwrap();
    assert_eq!(owned.state(), HoldState::Lost(LostReason::LeaseExpired));
    wait_until("it is told", TIMEOUT, || calls.load(Ordering::SeqCst) == 1);
    let error = elsewhere(move || owned.unlock().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(theirs.is_held());
    theirs.unlock().unwrap();
    let owned = kind.make(&client, "lost").lock_owned().unwrap();
    client.shutdown();
    assert_eq!(owned.state(), HoldState::Lost(LostReason::ShutDown));
    leaves_nothing(&server);
}

fn a_wait_for_an_owned_guard_ends_like_any_other(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "wait").lock_owned().unwrap();
    for waits in [&client, &other] {
        let (lock, token) = (kind.make(waits, "wait"), CancelToken::new());
        let cancel = token.clone();
        let waiter =
            spawn(move || lock.lock_owned_cancellable(&cancel).map(drop).unwrap_err().kind());
        waiter.wait_asleep();
        token.cancel();
        assert_eq!(waiter.join(), ErrorKind::Cancelled);
    }
    let lock = kind.make(&other, "wait");
    let waiter = spawn(move || lock.lock_owned().map(drop).unwrap_err().kind());
    waiter.wait_asleep();
    other.shutdown();
    assert_eq!(waiter.join(), ErrorKind::ShutDown);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    leaves_nothing(&server);
}
