//! Threads of two clients that race for the lock.

use redlatch::Taken;

use super::*;

#[test]
fn timeouts_and_cancels_that_race_with_grants_leave_nothing() {
    let server = server();
    let mut random = Random::new();
    let clients = [client(&server), client(&server)];
    let inside = Arc::new(AtomicU64::new(0));
    let rounds = 1_700;
    let ended = Arc::new(AtomicU64::new(0));
    let token = Arc::new(Mutex::new(CancelToken::new()));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let lock = clients[at % 2].fair_lock("races");
            let (inside, ended) = (Arc::clone(&inside), Arc::clone(&ended));
            let token = Arc::clone(&token);
            let mut random = Random::of(random.next());
            spawn(move || {
                let mut granted = 0;
                for _ in 0..rounds {
                    let guard = if at < 4 {
                        let wait = Duration::from_micros(random.below(1_500));
                        if_answered(lock.try_lock_for(wait))
                    } else {
                        let mine = token.lock().unwrap().clone();
                        match lock.lock_cancellable(&mine) {
                            Ok(guard) => Some(guard),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                                let mut token = token.lock().unwrap();
                                if token.is_cancelled() {
                                    *token = CancelToken::new();
                                }
                                None
                            }
                        }
                    };
                    if let Some(guard) = guard {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        granted += 1;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if random.below(2) == 0 { drop(guard) } else { guard.unlock().unwrap() }
                    }
                }
                ended.fetch_add(1, Ordering::SeqCst);
                granted
            })
        })
        .collect();
    while ended.load(Ordering::SeqCst) < 6 {
        token.lock().unwrap().clone().cancel();
        thread::sleep(Duration::from_micros(random.below(1_500)));
    }
    let granted: Vec<u64> = threads.into_iter().map(Running::join).collect();
    println!("{granted:?} of {rounds} each");
    leaves_nothing(&server, "races");
}

/// Makes threads of two clients contend while `trouble` runs. Repeats this until some threads have
/// been granted the lock.
fn contend(urls: [String; 2], server: &Server, mut trouble: impl FnMut(&mut Random)) -> (u64, u64) {
    let mut random = Random::new();
    let clients = urls.map(|url| {
        impatient(&url).watchdog_timeout(LONG_LEASE).fair_wait_timeout(FAIR_WAIT).connect().unwrap()
    });
    let stop = Arc::new(AtomicBool::new(false));
    let errors = Arc::new(AtomicU64::new(0));
    let grants = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let lock = clients[at % 2].fair_lock("contended");
            let (stop, errors, grants) =
                (Arc::clone(&stop), Arc::clone(&errors), Arc::clone(&grants));
            let mut redis = server.connection();
            let mut random = Random::of(random.next());
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = match random.below(4) {
                        0 => {
                            let wait = Duration::from_micros(random.below(5_000));
                            lock.try_lock_for(wait).or_else(unanswered)
                        }
                        _ => lock.lock().map(Taken),
                    };
                    let released = guard.and_then(|guard| {
                        let Taken(guard) = guard else { return Ok(()) };
                        grants.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(redis.incr::<_, _, i64>("inside", 1).unwrap(), 1);
                        let () = redis.decr("inside", 1).unwrap();
                        assert!(guard.is_held());
                        if random.below(2) == 0 {
                            drop(guard);
                            return Ok(());
                        }
                        guard.unlock()
                    });
                    if let Err(error) = released {
                        assert!(error.kind().is_server_trouble(), "{error}");
                        errors.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    wait_until("so many were granted", TIMEOUT * 2, || {
        trouble(&mut random);
        grants.load(Ordering::SeqCst) > 20
    });
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    (grants.load(Ordering::SeqCst), errors.load(Ordering::SeqCst))
}

#[test]
fn connections_cut_at_any_moment_leave_one_holder_and_nothing_behind() {
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let urls = [proxies[0].url(), proxies[1].url()];
    let (grants, errors) = contend(urls, &server, |random| {
        let until = Instant::now() + TIME_UNIT * 30;
        while Instant::now() < until {
            proxies[usize::try_from(random.below(2)).unwrap()].cut_all();
            thread::sleep(Duration::from_micros(random.below(30_000)));
        }
    });
    println!("{grants} grants, {errors} errors");
    leaves_nothing(&server, "contended");
}

#[test]
fn a_flush_of_the_scripts_is_not_noticed() {
    let server = server();
    let (grants, errors) = contend([server.url(), server.url()], &server, |_| {
        let mut redis = server.connection();
        let until = Instant::now() + TIME_UNIT * 10;
        while Instant::now() < until {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
            thread::yield_now();
        }
    });
    assert_eq!(errors, 0, "of {grants}");
    leaves_nothing(&server, "contended");
}
