//! Silent queue entries: their host has lost power, or their process is paused.

use super::*;

/// The number of paused processes before a waiting thread in the queue.
const STOPPED: u64 = 8;

/// Starts a process that waits as the last of `places` waiters in the queue, and gets messages.
fn in_line(server: &Server, name: &str, places: u64) -> (Worker, String) {
    let worker = process(server, name);
    wait_in_line(server, name, places);
    let place = queue(&mut server.connection(), name).pop().unwrap();
    wait_subscribed(server, &own_channel(&place));
    (worker, place)
}

/// No entry is skipped while the machine stands still, so only one of several rounds must be fast.
#[test]
fn stopped_processes_cost_those_behind_them_one_provisional_lease_together() {
    let server = server();
    let (first, last) = (warm(&server), warm(&server));
    let mut round = 0;
    once_within(PROVISIONAL * 2, || {
        round += 1;
        let name = format!("stopped {round}");
        let guard = first.reentrant_lock(&name).lock().unwrap();
        let stopped: Vec<_> = (1..=STOPPED)
            .map(|places| {
                let (mut worker, _) = in_line(&server, &name, places);
                worker.sigstop();
                worker
            })
            .collect();
        let guest = Guest::in_line(&server, &last, &name, STOPPED + 1);
        let released = Instant::now();
        guard.unlock().unwrap();
        let took = guest.wait_in() - released;
        guest.leaves();
        drop(stopped);
        took
    });
}

/// The entries belong to readers and writers that receive messages and do nothing.
#[test]
fn silent_places_of_a_read_write_lock_cost_one_provisional_lease_together() {
    let server = server();
    let (first, last) = (warm(&server), warm(&server));
    let mut redis = server.connection();
    let mut listening = server.connection();
    let mut listening = listening.as_pubsub();
    let owner = |number: u64| format!("{number:0>8}-0b2d-8c6e-8f01-23456789abcd:1:write");
    for number in 1..=STOPPED {
        listening.subscribe(own_channel(&owner(number))).unwrap();
    }
    let mut round = 0;
    once_within(PROVISIONAL * 2, || {
        round += 1;
        let name = format!("silent {round}");
        let guard = first.read_write_lock(&name).writer().lock().unwrap();
        for number in 1..=STOPPED {
            let key = format!("redlatch_rwlock_queue:{{{name}}}");
            let _: i64 = redis.rpush(&key, owner(number)).unwrap();
        }
        let lock = last.read_write_lock(&name);
        let waiter = spawn(move || {
            let guard = lock.writer().lock().unwrap();
            let entered = Instant::now();
            guard.unlock().unwrap();
            entered
        });
        let key = format!("redlatch_rwlock_queue:{{{name}}}");
        wait_until("it stands in line", TIMEOUT, || {
            redis.llen::<_, u64>(&key).unwrap() == STOPPED + 1
        });
        let released = Instant::now();
        guard.unlock().unwrap();
        waiter.join() - released
    });
}

/// Two skipped processes come back: the process that was granted the lock, and the process behind
/// it.
#[test]
fn a_process_that_comes_back_stands_in_front_of_those_that_came_later() {
    let server = server();
    let (first, second, third) = (warm(&server), warm(&server), warm(&server));
    let mut redis = server.connection();
    let guard = first.reentrant_lock("back").lock().unwrap();
    let mut stopped: Vec<_> = (1..=3).map(|places| in_line(&server, "back", places)).collect();
    // After a second request of a process, the server knows when the process began to wait.
    let asked: Vec<_> =
        stopped.iter().map(|(_, owner)| format!("redlatch_asked:{{back}}:{owner}")).collect();
    wait_until("each has asked again", TIMEOUT, || {
        redis.exists::<_, usize>(&asked).unwrap() == asked.len()
    });
    stopped.iter_mut().for_each(|(worker, _)| worker.sigstop());
    let inside = Guest::in_line(&server, &second, "back", 4);
    let later = Guest::in_line(&server, &third, "back", 5);
    guard.unlock().unwrap();
    inside.wait_in();
    // The second process comes back first, and the first one is then placed before it, in the order
    // of arrival.
    for (back, places) in [(1, 2), (0, 3)] {
        stopped[back].0.sigcont();
        wait_in_line(&server, "back", places);
    }
    let places = queue(&mut redis, "back");
    assert_eq!(places[..2], [stopped[0].1.clone(), stopped[1].1.clone()]);
    inside.leaves();
    for (worker, _) in &mut stopped[..2] {
        worker.expect_line("in", TIMEOUT);
        assert!(!later.is_in());
        worker.send_line("out");
        worker.expect_line("out", TIMEOUT);
    }
    later.wait_in();
    later.leaves();
}

/// All requests wait at a paused server. The server may later run these requests in any order.
#[test]
fn a_server_that_stands_still_passes_no_waiter() {
    let server = server();
    let (first, second, third) = (warm(&server), warm(&server), warm(&server));
    let guard = first.reentrant_lock("still").lock().unwrap();
    let (mut stopped, _) = in_line(&server, "still", 1);
    let one = Guest::in_line(&server, &second, "still", 2);
    let other = Guest::in_line(&server, &third, "still", 3);
    let places = queue(&mut server.connection(), "still");
    // Time must pass here, so that both waiters may report others as silent.
    thread::sleep(PROVISIONAL + TIME_UNIT * 5);
    stopped.sigstop();
    guard.unlock().unwrap();
    server.pause();
    thread::sleep(PROVISIONAL + TIME_UNIT * 5);
    server.resume();
    one.wait_in();
    assert!(!other.is_in());
    assert_eq!(owner(&mut server.connection(), "still").as_ref(), Some(&places[1]));
    one.leaves();
    other.wait_in();
    other.leaves();
}
