//! Waiters that give up.

use super::*;

/// The two handles have separate queues for the same lock, so only one thread can have the lock.
#[test]
fn a_fair_and_a_re_entrant_handle_of_a_name_are_one_lock() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..8)
        .map(|at| {
            let (client, inside) = (&clients[at % 2], Arc::clone(&inside));
            let kinds: [Arc<dyn Lock>; 2] =
                [Arc::new(client.fair_lock("one")), Arc::new(client.reentrant_lock("one"))];
            spawn(move || {
                for round in 0..15 {
                    let [outer, inner] = [at / 2 % 2, 1 - at / 2 % 2].map(|kind| &kinds[kind]);
                    let guard = outer.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                    let again = inner.try_lock().unwrap().into_option().expect("its thread has it");
                    thread::sleep(Duration::from_micros(round * 40));
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    again.unlock().unwrap();
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    leaves_nothing(&server, "one");
    wait_until("nobody is left", TIMEOUT, || {
        !server.connection().exists::<_, bool>("redlatch_queue:{one}").unwrap()
    });
}

#[test]
fn a_waiter_that_gives_up_leaves_the_queue_at_once_and_the_rest_in_order() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.fair_lock("given up").lock().unwrap();
    let token = CancelToken::new();
    let mut line = Line::new(&server);
    let mut quitters = Vec::new();
    // The waiter that gives up is at the head, in the middle or at the end of the queue.
    for round in 0..3 {
        let (timed, cancelled) = (one.fair_lock("given up"), other.fair_lock("given up"));
        let cancel = token.clone();
        let length = queue(&server, "given up").len();
        let quitter =
            spawn(move || answered(|| timed.try_lock_for(TIME_UNIT * 20)).into_option().is_none());
        wait_queue(&server, "given up", length + 1);
        quitters.push(quitter);
        let quitter = spawn(move || {
            cancelled.lock_cancellable(&cancel).unwrap_err().kind() == ErrorKind::Cancelled
        });
        wait_queue(&server, "given up", length + 2);
        quitters.push(quitter);
        if round < 2 {
            line.add(&[&one, &other][round].fair_lock("given up"));
            line.add(&[&other, &one][round].fair_lock("given up"));
        }
    }
    let before = queue(&server, "given up");
    token.cancel();
    assert!(quitters.into_iter().all(Running::join));
    let after = wait_queue(&server, "given up", 4);
    let stayed: Vec<_> = before.into_iter().filter(|owner| after.contains(owner)).collect();
    assert_eq!(stayed, after);
    drop(guard);
    assert_eq!(line.join(), [0, 1, 2, 3]);
    leaves_nothing(&server, "given up");
}

#[test]
fn a_head_that_gives_up_when_the_lock_is_free_tells_the_next() {
    let server = server();
    // The waiter's next keep-alive request would also find the lock free, but comes too late for
    // this test.
    let (one, other) = (slow(&server), slow(&server));
    let mut redis = server.connection();
    for _ in 0..3 {
        woken_by_message(|| {
            hold_as_redisson(&mut redis, "told", LONG_LEASE);
            let (head, next) = (one.fair_lock("told"), other.fair_lock("told"));
            let token = CancelToken::new();
            let cancel = token.clone();
            let head = spawn(move || head.lock_cancellable(&cancel).map(drop));
            wait_queue(&server, "told", 1);
            let next = spawn(move || next.lock().unwrap().unlock().unwrap());
            wait_queue(&server, "told", 2);
            // A Java re-entrant lock releases the lock, and wakes no fair waiter.
            release_as_redisson(&mut redis, "told", &channel("told"));
            token.cancel();
            // The first waiter's keep-alive request may come before the cancel. In that case the
            // first waiter gets the lock.
            if let Err(error) = head.join() {
                assert_eq!(error.kind(), ErrorKind::Cancelled);
            }
            next.join();
        });
        leaves_nothing(&server, "told");
    }
}

#[test]
fn a_shutdown_takes_the_waiters_out_of_the_queue() {
    let server = server();
    let one = client(&server);
    for scripts_known in [true, false] {
        println!("scripts known: {scripts_known}");
        let other = client(&server);
        let guard = one.fair_lock("shut").lock().unwrap();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let lock = other.fair_lock("shut");
                let waiter = spawn(move || lock.lock().map(drop).unwrap_err().kind());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        let mut line = Line::new(&server);
        line.add(&one.fair_lock("shut"));
        if scripts_known {
            let lock = one.fair_lock("known");
            let _held = lock.lock().unwrap();
            let waits = lock.clone();
            assert!(elsewhere(move || answered(|| waits.try_lock_for(TIME_UNIT / 10))
                .into_option()
                .is_none()));
            wait_queue(&server, "known", 0);
        } else {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut server.connection()).unwrap();
        }
        other.shutdown();
        for waiter in waiters {
            assert_eq!(waiter.join(), ErrorKind::ShutDown);
        }
        wait_queue(&server, "shut", 1);
        drop(guard);
        assert_eq!(line.join(), [0]);
        leaves_nothing(&server, "shut");
    }
}

#[test]
fn a_panic_under_the_lock_lets_the_next_in() {
    let server = server();
    let lock = client(&server).fair_lock("panic");
    let panics = lock.clone();
    let mut line = Line::new(&server);
    let guard = lock.lock().unwrap();
    let thread = spawn(move || {
        catch_unwind(AssertUnwindSafe(|| {
            let _guard = panics.lock().unwrap();
            panic!("as the test wants it");
        }))
        .is_err()
    });
    wait_queue(&server, "panic", 1);
    line.add(&lock);
    guard.unlock().unwrap();
    assert!(thread.join());
    assert_eq!(line.join(), [0]);
    leaves_nothing(&server, "panic");
}
