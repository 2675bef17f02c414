//! Threads and processes that contend for several locks.

use super::*;

/// Returns one of six locks, of two kinds.
fn lock_of(client: &Client, number: u64) -> Box<dyn Lock> {
    let name = format!("name {number}");
    if number % 3 == 2 {
        Box::new(client.fair_lock(&name))
    } else {
        Box::new(client.reentrant_lock(&name))
    }
}

/// Takes two or three of the locks repeatedly, in any order. Checks that no other thread has the
/// taken locks.
pub(super) fn contend(url: &str, seed: u64, until: Instant) -> usize {
    let client = Client::builder(url).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let threads: Vec<_> = (0..3_u64)
        .map(|number| {
            let (client, url) = (client.clone(), url.to_owned());
            spawn_plain(move || {
                let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
                let mut random = Random::of(seed ^ (number << 32));
                let mut taken = 0;
                while Instant::now() < until {
                    let numbers: Vec<u64> =
                        (0..2 + random.below(2)).map(|_| random.below(6)).collect();
                    let locks: Vec<_> = numbers.iter().map(|it| lock_of(&client, *it)).collect();
                    let locks: Vec<&dyn Lock> = locks.iter().map(|lock| &**lock).collect();
                    let all = MultiLock::new(&locks).unwrap();
                    let guard = match random.below(4) {
                        0 => all.try_lock().unwrap().into_option(),
                        1 => if_answered(all.try_lock_for(Duration::from_millis(random.below(5)))),
                        _ => Some(
                            all.try_lock_for(LONG_LEASE)
                                .unwrap()
                                .into_option()
                                .expect("they have locked up"),
                        ),
                    };
                    let Some(guard) = guard else { continue };
                    // A grant by message lasts only for a short time at first. A process that
                    // stands still for longer loses the lock, and its guard reports the loss. After
                    // this check all locks have their full leases.
                    if guard.check(LONG_LEASE / 2).is_err() {
                        continue;
                    }
                    for name in guard.names() {
                        let inside = format!("inside {name}");
                        let alone: bool = redis.set_nx(&inside, seed).unwrap();
                        assert!(alone, "two are in {name}");
                    }
                    thread::sleep(Duration::from_micros(random.below(500)));
                    for name in guard.names() {
                        let () = redis.del(format!("inside {name}")).unwrap();
                    }
                    match random.below(2) {
                        0 => drop(guard),
                        _ => guard.unlock().unwrap(),
                    }
                    taken += 1;
                }
                taken
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

fn spawn_plain<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    thread::spawn(work)
}

/// The test runs for `REDLATCH_SOAK` seconds, or for 10 seconds if the variable is not set.
#[test]
fn random_sets_in_random_order_never_deadlock_and_no_two_hold_one_lock() {
    let seconds = std::env::var("REDLATCH_SOAK").ok().and_then(|it| it.parse().ok()).unwrap_or(10);
    let server = unbounded_server();
    let mut random = Random::new();
    let length = (seconds * 1_000).to_string();
    let mut workers: Vec<_> = (0..4)
        .map(|_| {
            let seed = random.next().to_string();
            let mut worker = Worker::spawn_test(
                "multi_lock::worker",
                "contender",
                &[&server.url(), &seed, &length],
            );
            worker.expect_line("starts", TIMEOUT);
            worker
        })
        .collect();
    for worker in &mut workers {
        let taken = worker.expect_line("taken", Duration::from_secs(seconds) + LONG_LEASE * 2);
        assert!(taken.parse::<usize>().unwrap() > 0, "nothing was taken");
    }
    for number in 0..6 {
        wait_free(&server, &format!("name {number}"), TIMEOUT);
    }
}

#[test]
fn two_that_list_the_parts_in_opposite_orders_both_go_on() {
    let server = server();
    let threads: Vec<_> = [["x", "y"], ["y", "x"], ["x", "y"], ["y", "x"]]
        .into_iter()
        .map(|names| {
            // Each process has two handles, and the second one is a clone.
            let both = all_of(&client(&server), &names);
            let again = both.clone();
            [both, again].map(|both| {
                spawn(move || {
                    for _ in 0..50 {
                        let guard = both.lock().unwrap();
                        thread::sleep(Duration::from_micros(200));
                        guard.unlock().unwrap();
                    }
                })
            })
        })
        .collect();
    threads.into_iter().flatten().for_each(Running::join);
}

/// Redisson's `RedissonMultiLock` takes the locks in the order of the list, and waits some time for
/// each. If a `RedissonMultiLock` does not get a lock, it releases all its locks and begins again.
#[test]
fn a_multi_lock_and_one_of_redissons_in_opposite_orders_do_not_deadlock() {
    let server = server();
    let plain = PlainClient::connect(&server.url()).unwrap();
    let theirs = spawn(move || {
        let mut locks = ["y", "x"].map(|name| plain.lock(name).handle().unwrap());
        let mut random = Random::of(7);
        for _ in 0..20 {
            'whole: loop {
                for at in 0..locks.len() {
                    let until = Instant::now() + TIME_UNIT * 3;
                    while !locks[at].try_lock().unwrap() {
                        if Instant::now() < until {
                            thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                        locks[..at].iter_mut().for_each(|lock| assert!(lock.unlock().unwrap()));
                        thread::sleep(Duration::from_millis(random.below(20)));
                        continue 'whole;
                    }
                }
                break;
            }
            thread::sleep(Duration::from_millis(1));
            locks.iter_mut().for_each(|lock| assert!(lock.unlock().unwrap()));
        }
    });
    let both = all_of(&client(&server), &["x", "y"]);
    let mut taken = 0;
    while !theirs.is_finished() || taken < 20 {
        let guard =
            both.try_lock_for(LONG_LEASE).unwrap().into_option().expect("they have locked up");
        thread::sleep(Duration::from_millis(1));
        guard.unlock().unwrap();
        thread::sleep(Duration::from_millis(1));
        taken += 1;
    }
    theirs.join();
}

#[test]
fn many_threads_take_several_over_one_connection() {
    let server = server();
    let client = Client::builder(&server.url()).connections(1).connect().unwrap();
    let threads: Vec<_> = (0..16)
        .map(|at| {
            let names = [format!("{at} a"), format!("{at} b"), format!("{at} c")];
            let all = all_of(&client, &names.each_ref().map(|name| &**name));
            spawn(move || (0..50).for_each(|_| all.lock().unwrap().unlock().unwrap()))
        })
        .collect();
    threads.into_iter().for_each(Running::join);
}

/// Only the thread that gets the first lock requests the other locks.
#[test]
fn of_many_that_try_exactly_one_has_all() {
    const CALLERS: usize = 4;
    let server = server();
    let clients = [client(&server), client(&server)];
    let had = Arc::new(AtomicUsize::new(0));
    let together = Arc::new(Barrier::new(CALLERS));
    let callers: Vec<_> = (0..CALLERS)
        .map(|at| {
            let mut names = NAMES;
            names.rotate_left(at);
            let all = all_of(&clients[at % 2], &names);
            let (had, together) = (Arc::clone(&had), Arc::clone(&together));
            spawn(move || {
                for round in 0..200 {
                    together.wait();
                    let guard = all.try_lock().unwrap().into_option();
                    had.fetch_add(usize::from(guard.is_some()), Ordering::SeqCst);
                    together.wait();
                    assert_eq!(had.load(Ordering::SeqCst), round + 1);
                    guard.into_iter().for_each(|guard| guard.unlock().unwrap());
                    together.wait();
                }
            })
        })
        .collect();
    callers.into_iter().for_each(Running::join);
}

/// A failed call must not keep the locks that it took for the minimum time, which is an hour.
#[test]
fn a_busy_part_leaves_no_other_one_taken_for_the_least_time() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let busy = other.reentrant_lock("b").lock().unwrap();
    let hour = Duration::from_secs(3600);
    assert!(all_of(&client, &["a", "b"]).try_once_per(hour).unwrap().into_option().is_none());
    wait_until("the first one is free", TIMEOUT, || !is_held(&server, "a"));
    busy.unlock().unwrap();
    let run = all_of(&client, &["a", "b"]).try_once_per(hour).unwrap().into_option().unwrap();
    run.unlock().unwrap();
    assert!(is_held(&server, "a") && is_held(&server, "b"));
}
