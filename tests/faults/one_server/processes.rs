//! Processes that are paused, killed or forked.

use super::*;

#[test]
fn a_killed_holders_lock_is_free_at_its_leases_end_and_not_before() {
    let server = server();
    let mut worker = process("holder", &server, "killed", SHORT_LEASE);
    worker.expect_line("held", TIMEOUT);
    let lock = client(&server).reentrant_lock("killed");
    let waiter = spawn(move || {
        let guard = lock.lock().unwrap();
        let entered = Instant::now();
        guard.unlock().unwrap();
        entered
    });
    wait_in_line(&server, "killed", 1);
    wait_renewed(&server, "killed");
    worker.sigkill();
    let killed = Instant::now();
    let left = pttl(&mut server.connection(), "killed");
    assert!(left > 0, "the lease is over already");
    let took = waiter.join().saturating_duration_since(killed);
    let left = Duration::from_millis(left.unsigned_abs());
    assert!(took + TIME_UNIT / 10 >= left, "{took:?} with {left:?} left");
}

#[test]
fn a_killed_holders_lock_with_a_watched_lease_of_its_own_is_free_when_that_ends() {
    let server = server();
    let mut worker = process("leader", &server, "leads", LONG_LEASE);
    worker.expect_line("held", TIMEOUT);
    wait_renewed(&server, "leads");
    worker.sigkill();
    let left = pttl(&mut server.connection(), "leads");
    assert!(Duration::from_millis(left.unsigned_abs()) <= SHORT_LEASE, "{left} ms");
    let lock = client(&server).reentrant_lock("leads");
    let guard = lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("its own lease has ended");
    guard.unlock().unwrap();
}

#[test]
fn a_holder_that_was_stopped_past_its_lease_finds_it_lost() {
    let server = server();
    let mut worker = process("holder", &server, "stopped", LEASE);
    worker.expect_line("held", TIMEOUT);
    worker.sigstop();
    let lock = client(&server).reentrant_lock("stopped");
    let guard = lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("the lease has ended");
    let held = holder(&mut server.connection(), "stopped");
    worker.send_line("look");
    worker.sigcont();
    let found = worker.expect_line("found", TIMEOUT);
    assert_eq!(found, "Lost(LeaseExpired) Err(LeaseLost) Err(LeaseLost)");
    // Time must pass here: within it, a wrong child would renew or release the lock.
    thread::sleep(LEASE);
    assert_eq!(holder(&mut server.connection(), "stopped"), held);
    assert!(guard.is_held());
    worker.send_line("count");
    assert_eq!(worker.expect_line("calls", TIMEOUT), "1");
    guard.unlock().unwrap();
}

#[test]
fn waiters_that_die_or_stop_hold_up_no_other_waiter() {
    let server = server();
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "queue", LONG_LEASE);
    let mut workers: Vec<_> =
        (0..5).map(|_| process("waiter", &server, "queue", LONG_LEASE)).collect();
    workers.iter_mut().for_each(|worker| drop(worker.expect_line("waits", TIMEOUT)));
    wait_in_line(&server, "queue", 5);
    // The first two waiters have subscribed to the message of Redisson's release.
    wait_subscribed(&server, &channel("queue"));
    workers[0].sigkill();
    workers[1].sigstop();
    workers.swap(2, 4);
    let released = Instant::now();
    release_as_redisson(&mut redis, "queue", &channel("queue"));
    for _ in 0..3 {
        let lucky = loop {
            let got = |worker: &mut Worker| {
                worker.try_line(TIME_UNIT / 20).is_some_and(|line| line == "got it")
            };
            if let Some(at) = (2..workers.len()).find(|at| got(&mut workers[*at])) {
                break at;
            }
            assert!(released.elapsed() < TIMEOUT, "nobody gets it");
        };
        // The stopped process also waits for the lock.
        workers[lucky].send_line("release");
        workers[lucky].expect_line("released", TIMEOUT);
        workers.remove(lucky);
    }
    workers[1].sigcont();
    workers[1].expect_line("got it", TIMEOUT);
}
