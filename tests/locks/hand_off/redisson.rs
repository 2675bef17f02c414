//! Waiters of redlatch and Redisson for the same lock.

use super::*;

/// Runs a Redisson client, which tries again after each message, with Redisson's delay.
fn run_redisson(server: &Server, name: &'static str, stop: &AtomicBool, count: &AtomicU64) {
    let take = redis::Script::new(
        "if redis.call('exists', KEYS[1]) == 0 then
             redis.call('hset', KEYS[1], ARGV[1], 1)
             redis.call('pexpire', KEYS[1], 30000)
             return nil
         end
         return redis.call('pttl', KEYS[1])",
    );
    let mut redis = server.connection();
    let mut listener = server.connection();
    let mut messages = listener.as_pubsub();
    messages.subscribe(channel(name)).unwrap();
    messages.set_read_timeout(Some(TIME_UNIT)).unwrap();
    while !stop.load(Ordering::SeqCst) {
        let left: Option<i64> = take.key(name).arg(FOREIGN).invoke(&mut redis).unwrap();
        if left.is_some() {
            while !stop.load(Ordering::SeqCst) && messages.get_message().is_err() {}
            thread::sleep(REDISSONS_DELAY);
            continue;
        }
        count.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
        release_as_redisson(&mut redis, name, &channel(name));
        // The time is long enough for redlatch's client to have the lock again.
        thread::sleep(TIME_UNIT / 20);
    }
}

/// The measured time from a message to Redisson's next request. This request always comes too late
/// if redlatch does not leave the lock to Redisson for a moment.
const REDISSONS_DELAY: Duration = Duration::from_micros(1_500);

/// If a program makes a new handle for each call, Redisson must get as many turns as if the program
/// kept one handle.
#[test]
fn one_of_redissons_clients_has_its_turns_beside_ours_that_make_a_handle_for_each_call() {
    let server = Arc::new(server());
    for ours in [1, 2] {
        let name = ["", "alone", "beside two"][ours];
        let (stop, theirs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..ours)
            .map(|_| {
                let (client, stop) = (client(&server), Arc::clone(&stop));
                spawn(move || {
                    let mut rounds = 0_u64;
                    while !stop.load(Ordering::SeqCst) {
                        let guard = client.reentrant_lock(name).lock().unwrap();
                        assert!(guard.is_held());
                        thread::sleep(Duration::from_millis(5));
                        // After this, nothing of the handle remains.
                        guard.unlock().unwrap();
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let redisson = {
            let (server, stop, count) =
                (Arc::clone(&server), Arc::clone(&stop), Arc::clone(&theirs));
            spawn(move || run_redisson(&server, name, &stop, &count))
        };
        wait_until("Redisson's had its turns", TIMEOUT, || theirs.load(Ordering::SeqCst) >= 50);
        stop.store(true, Ordering::SeqCst);
        let rounds: Vec<_> = threads.into_iter().map(Running::join).collect();
        redisson.join();
        println!("{name}: ours {rounds:?}, Redisson's {}", theirs.load(Ordering::SeqCst));
        assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
        wait_left(&server, name);
    }
}

/// The test ends the hold as Redisson's `forceUnlock` does. No process in the queue receives the
/// message of that call.
#[test]
fn after_a_hold_was_taken_away_by_force_the_next_in_line_comes_at_once() {
    let server = server();
    let (one, other) = (warm(&server), warm(&server));
    let mut redis = server.connection();
    once_within(TIME_UNIT, || {
        let guard = one.reentrant_lock("forced").lock().unwrap();
        let guest = Guest::in_line(&server, &other, "forced", 1);
        // Time must pass here, so that the server tracks the hold's key and the waiter's next
        // request is far off.
        thread::sleep(TIME_UNIT * 3);
        let deleted = Instant::now();
        release_as_redisson(&mut redis, "forced", &channel("forced"));
        let took = guest.wait_in() - deleted;
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        guest.leaves();
        took
    });
}
