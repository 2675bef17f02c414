//! Clients never hold more permits than there are, and no permit is lost.

use redlatch::Taken;

use super::*;

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let grants: [Arc<AtomicU64>; 3] = Default::default();
    let threads: Vec<_> = (0..3)
        .map(|at| {
            let count = Arc::clone(&grants[at as usize]);
            let mut contender = Contender {
                semaphore: client.semaphore("most"),
                count: Count(redis::Client::open(job.arg(0)).unwrap().get_connection().unwrap()),
                random: Random::of(job.arg(1).parse::<u64>().unwrap() * 31 + at),
                permits: 3,
            };
            let stop = Arc::clone(&stop);
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let granted = contender.round().unwrap();
                    count.fetch_add(u64::from(granted), Ordering::SeqCst);
                }
            })
        })
        .collect();
    job.say("starts");
    let so_far = || grants.each_ref().map(|count| count.load(Ordering::SeqCst));
    wait_until("nobody starves", TIMEOUT, || so_far().iter().all(|grants| *grants >= 10));
    job.say("each has had some");
    let _ = job.wait_line();
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    let grants = so_far();
    job.say(&format!("grants {grants:?}"));
    drop(client);
    job.say("ended");
    let _ = job.wait_line();
}

#[test]
fn no_more_permits_are_out_than_exist_and_none_is_lost() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "most", 3);
    let mut random = Random::new();
    let mut workers: Vec<_> = (0..3)
        .map(|_| {
            let seed = (random.next() >> 16).to_string();
            Worker::spawn_test(
                "semaphore::contention::worker",
                "contender",
                &[&server.url(), &seed],
            )
        })
        .collect();
    for worker in &mut workers {
        worker.expect_line("starts", TIMEOUT);
    }
    for worker in &mut workers {
        worker.expect_line("each has had some", TIMEOUT * 2);
    }
    // The threads contend for this time, and try many interleavings.
    thread::sleep(TIME_UNIT * 15);
    for worker in &mut workers {
        worker.send_line("stop");
    }
    for worker in &mut workers {
        let grants = worker.expect_line("grants", TIMEOUT);
        println!("{grants}");
        worker.expect_line("ended", TIMEOUT);
    }
    stays(&server, "most", 3);
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    assert_eq!(server.connection().get::<_, i64>("out").unwrap(), 0);
}

#[test]
fn threads_that_release_at_once_all_give_back() {
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("at once");
    for way in [false, true] {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let semaphore = semaphore.clone();
                spawn(move || {
                    for _ in 0..500 {
                        if way {
                            semaphore.release_forgotten(1).unwrap();
                        } else {
                            semaphore.add_permits(1).unwrap();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(Running::join);
        assert_eq!(semaphore.drain_permits().unwrap(), 4_000);
    }
}

#[test]
fn a_process_that_keeps_acquiring_does_not_starve_another() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let mine = semaphore(&clients[0], "shared", 1);
    let theirs = clients[1].semaphore("shared");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // This thread never finds another thread of its process before it.
    let greedy = spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            let permit = mine.acquire().unwrap();
            thread::sleep(TIME_UNIT / 2);
            drop(permit);
        }
    });
    for round in 0..5 {
        let permit = theirs.try_acquire_for(TIMEOUT / 4).unwrap();
        assert!(permit.into_option().is_some(), "round {round}");
    }
    stop.store(true, Ordering::SeqCst);
    greedy.join();
}

/// A thread releases a permit and tries again at once, so it would always find the permit free
/// before a waiter does.
#[test]
fn a_process_that_only_tries_goes_behind_one_that_waits() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let mine = semaphore(&clients[0], "tried", 1);
    let theirs = clients[1].semaphore("tried");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let taken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&taken);
    let greedy = spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            let Taken(permit) = mine.try_acquire().unwrap() else { continue };
            count.fetch_add(1, Ordering::SeqCst);
            thread::sleep(TIME_UNIT / 100);
            drop(permit);
        }
    });
    // `most` is the largest number of permits that the thread got during one wait of the waiter.
    // The test does not measure a time, because a time would depend on how busy the machine is.
    let (mut waits, mut most) = (0, 0);
    while waits < 800 || taken.load(Ordering::SeqCst) == 0 {
        let before = taken.load(Ordering::SeqCst);
        let permit = theirs.acquire().unwrap();
        most = most.max(taken.load(Ordering::SeqCst) - before);
        waits += 1;
        thread::sleep(TIME_UNIT / 100);
        drop(permit);
    }
    stop.store(true, Ordering::SeqCst);
    greedy.join();
    // The thread's process has turns of a few acquisitions each. Without turns, the waiter would
    // sometimes wait for seconds.
    assert!(most < 200, "{most} times");
}

#[test]
fn timeouts_and_cancels_that_race_with_grants_lose_no_permit() {
    let server = server();
    let mut random = Random::new();
    let clients = [client(&server), client(&server)];
    let semaphore = semaphore(&clients[0], "races", 1);
    let ended = Arc::new(AtomicU64::new(0));
    let rounds = 2_500;
    let threads: Vec<_> = (0..4_usize)
        .map(|at| {
            let semaphore = clients[at % 2].semaphore("races");
            let ended = Arc::clone(&ended);
            let mut random = Random::of(random.next());
            spawn(move || {
                let mut granted = 0;
                for _ in 0..rounds {
                    let wait = Duration::from_micros(random.below(400));
                    let permit = if_answered(semaphore.try_acquire_for(wait));
                    granted += u64::from(permit.is_some());
                    ended.fetch_add(1, Ordering::SeqCst);
                }
                granted
            })
        })
        .collect();
    // The waits of this thread are cancelled.
    let token = Arc::new(Mutex::new(CancelToken::new()));
    let (cancelled, waiting) = (Arc::clone(&token), semaphore);
    let total = 4 * rounds;
    let finished = Arc::clone(&ended);
    let waiter = spawn(move || {
        let mut granted = 0;
        while finished.load(Ordering::SeqCst) < total {
            let token = cancelled.lock().unwrap().clone();
            match waiting.acquire_cancellable(&token) {
                Ok(_permit) => granted += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                    *cancelled.lock().unwrap() = CancelToken::new();
                }
            }
        }
        granted
    });
    while !waiter.is_finished() {
        token.lock().unwrap().clone().cancel();
        thread::sleep(Duration::from_micros(random.below(400)));
    }
    let granted: u64 = threads.into_iter().map(Running::join).sum();
    println!("{granted} of {total} granted, {} cancellable", waiter.join());
    stays(&server, "races", 1);
}
