//! Processes that hold permits.

use super::*;

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "holder" => hold(&job),
        _ => contend(&job),
    }
}

/// Takes permits and keeps them. Arguments: URL, name, number of permits, watchdog lease in ms.
fn hold(job: &Job) {
    let lease = Duration::from_millis(job.arg(3).parse().unwrap());
    let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
    let permits =
        client.expirable_semaphore(job.arg(1)).acquire_many(job.arg(2).parse().unwrap()).unwrap();
    let lost: Vec<_> = permits.iter().map(on_lost).collect();
    let ids: Vec<_> = permits.iter().map(|permit| permit.id().to_string()).collect();
    job.say(&format!("has {}", ids.join(" ")));
    let _ = job.wait_line();
    let why = lost[0].recv_timeout(TIMEOUT);
    job.say(&format!("lost {why:?} held {}", permits[0].is_held()));
    let _ = job.wait_line();
}

/// Takes and gives back permits until the test ends the process. A separate key counts the holders.
fn contend(job: &Job) {
    const PERMITS: u32 = 3;
    let client = Client::builder(job.arg(0)).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let grants: [Arc<AtomicU64>; 3] = Default::default();
    let threads: Vec<_> = (0..3)
        .map(|at| {
            let count = Arc::clone(&grants[at as usize]);
            let semaphore = client.expirable_semaphore("most");
            let mut redis = redis::Client::open(job.arg(0)).unwrap().get_connection().unwrap();
            let mut random = Random::of(job.arg(1).parse::<u64>().unwrap() * 31 + at);
            let stop = Arc::clone(&stop);
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let need = 1 + u32::try_from(random.below(PERMITS.into())).unwrap();
                    let wait = Duration::from_micros(random.below(3_000));
                    let taken = match random.below(6) {
                        0 => semaphore.try_acquire_many(need).unwrap().into_option(),
                        1 => if_answered(semaphore.try_acquire_many_for(need, wait)),
                        2 => semaphore
                            .with_lease(LONG_LEASE)
                            .try_acquire_many(need)
                            .unwrap()
                            .into_option(),
                        _ => Some(semaphore.acquire_many(need).unwrap()),
                    };
                    let Some(permits) = taken else { continue };
                    let inside: i64 = redis.incr("inside", need).unwrap();
                    assert!(inside <= PERMITS.into(), "{inside} are inside");
                    let () = redis.decr("inside", need).unwrap();
                    count.fetch_add(1, Ordering::SeqCst);
                    for permit in permits {
                        match random.below(3) {
                            0 => permit.release().unwrap(),
                            1 => semaphore.release(&permit.into_id()).unwrap(),
                            _ => drop(permit),
                        }
                    }
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
            Worker::spawn_test("expirable::processes::worker", "contender", &[&server.url(), &seed])
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
    stays(&server, "most", 3, 0);
    assert_eq!(semaphore.permits().unwrap(), 3);
}

fn holder(server: &Server, name: &str, permits: u32, lease: Duration) -> (Worker, Vec<PermitId>) {
    let [permits, lease] = [permits.to_string(), lease.as_millis().to_string()];
    let mut worker = Worker::spawn_test(
        "expirable::processes::worker",
        "holder",
        &[&server.url(), name, &permits, &lease],
    );
    let ids = worker.expect_line("has", TIMEOUT);
    (worker, ids.split(' ').map(|id| id.parse().unwrap()).collect())
}

#[test]
fn the_permits_of_a_killed_process_come_back_when_their_leases_end_and_not_before() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "killed", 3);
    let lease = SHORT_LEASE;
    let (mut dead, ids) = holder(&server, "killed", 2, lease);
    let (_alive, living) = holder(&server, "killed", 1, lease);
    let left = |id: &PermitId| semaphore.remaining_lease(id).unwrap().expect("it is renewed");
    for id in [&ids[0], &living[0]] {
        let mut last = left(id);
        wait_until("both are renewed", TIMEOUT, || {
            left(id) > std::mem::replace(&mut last, left(id))
        });
    }
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    dead.sigkill();
    let killed = Instant::now();
    let left = semaphore.remaining_lease(&ids[0]).unwrap().unwrap();
    let waiting = semaphore.clone();
    let waiter = spawn(move || (waiting.acquire_many(2).unwrap(), Instant::now()));
    let (permits, entered) = waiter.join();
    let after = entered - killed;
    assert!(after + TIME_UNIT / 2 >= left, "after {after:?} of {left:?}");
    assert!(
        semaphore.remaining_lease(&living[0]).unwrap().is_some(),
        "a living process keeps its own"
    );
    assert!(permits.iter().all(ExpirablePermit::is_held));
    drop(permits);
    stays(&server, "killed", 2, 1);
}

#[test]
fn a_process_gives_back_the_permit_of_another_process_by_id() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "handed", 1);
    let (mut worker, ids) = holder(&server, "handed", 1, SHORT_LEASE);
    let waiting = semaphore.clone();
    let waiter = spawn(move || waiting.acquire().unwrap());
    wait_subscribed(&server, &channel("handed"));
    semaphore.release(&ids[0]).unwrap();
    assert!(waiter.join().is_held());
    worker.send_line("look");
    assert_eq!(worker.expect_line("lost", TIMEOUT), "Ok(Revoked) held false");
}

#[test]
fn a_stopped_process_learns_that_its_permit_is_anothers() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "stopped", 1);
    let (mut worker, _) = holder(&server, "stopped", 1, LEASE);
    worker.sigstop();
    let permit = semaphore.acquire().unwrap();
    worker.sigcont();
    worker.send_line("look");
    assert_eq!(worker.expect_line("lost", TIMEOUT), "Ok(LeaseExpired) held false");
    assert!(permit.is_held());
    permit.release().unwrap();
    stays(&server, "stopped", 1, 0);
}
