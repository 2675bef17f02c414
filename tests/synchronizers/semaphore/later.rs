//! Permits that are given back later, in the background.

use super::*;

#[test]
fn the_servers_record_of_a_client_does_not_grow_with_its_requests() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "bounded", 100);
    const THREADS: usize = 8;
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let semaphore = semaphore.clone();
            spawn(move || (0..300).for_each(|_| semaphore.acquire().unwrap().release().unwrap()))
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    let mut redis = server.connection();
    let keys: Vec<String> = redis.keys("redlatch_request:*").unwrap();
    assert!(keys.len() <= THREADS, "{keys:?}");
    for key in keys {
        let left = pttl(&mut redis, &key);
        assert!(left > 0 && left <= 300_000, "{key:?}: {left}");
        assert!(redis.strlen::<_, usize>(&key).unwrap() < 60);
    }
}

#[test]
fn a_drop_of_permits_never_waits_for_the_server() {
    let server = server();
    let client = impatient(&server.url()).response_timeout(TIMEOUT).connect().unwrap();
    let semaphore = semaphore(&client, "many", 2_000);
    let permits: Vec<_> = (0..2_000).map(|_| semaphore.acquire().unwrap()).collect();
    server.pause();
    let begun = Instant::now();
    drop(permits);
    let took = begun.elapsed();
    server.resume();
    assert!(took < TIMEOUT / 2, "{took:?}");
    stays(&server, "many", 2_000);
    let keys: Vec<String> = server.connection().keys("redlatch_request:*").unwrap();
    assert!(keys.len() <= 600, "{}", keys.len());
}

#[test]
fn a_release_in_an_outage_is_made_as_soon_as_a_connection_works() {
    // Retries begin after 50 ms, and the intervals grow. One retry comes after 3.15 s, and the next
    // retry after 6.35 s.
    let (outage, next_try) = (TIME_UNIT * 34, TIME_UNIT * 60);
    once_within(next_try - outage, || {
        let server = server();
        let proxy = Proxy::before(&server);
        let client = behind(&proxy);
        let dropped = semaphore(&client, "outage", 3);
        let counted = client.count_down_latch("outage-");
        assert!(counted.try_set_count(2).unwrap());
        let permits = dropped.acquire_many(2).unwrap();
        // The requests are lost, and after that the client can open no connection for some time.
        on_release(&proxy, "outage", 1, Action::LoseRequest);
        proxy.on(Direction::Request, 2, Action::LoseRequest, |bytes| {
            contains(bytes, "EVAL") && contains(bytes, "outage-")
        });
        assert!(counted.count_down().is_err());
        proxy.refuse();
        proxy.cut_all();
        drop(permits);
        thread::sleep(outage);
        proxy.accept();
        let begun = Instant::now();
        // These calls need a connection.
        wait_until("it answers", TIMEOUT, || client.semaphore("other").available_permits().is_ok());
        wait_permits(&server, "outage", 3);
        wait_until("it is counted", TIMEOUT, || {
            server.connection().get::<_, i64>("outage-").unwrap() == 1
        });
        let took = begun.elapsed();
        stays(&server, "outage", 3);
        took
    });
}

/// Each release is repeated separately, and all of them at the same time.
#[test]
fn hundreds_of_releases_that_are_sent_again_together_are_all_given_back_once() {
    const PERMITS: u32 = 400;
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    let semaphore = client.semaphore("many");
    assert!(semaphore.try_set_permits(PERMITS).unwrap());
    for _ in 0..5 {
        let mut all = semaphore.acquire_many(PERMITS).unwrap();
        let permits: Vec<_> = (0..PERMITS).map(|_| all.split(1).unwrap()).collect();
        proxy.freeze();
        drop(permits);
        // The releases did not arrive, but no thread of this process knows this.
        proxy.refuse();
        proxy.cut_all();
        proxy.thaw();
        thread::sleep(TIME_UNIT * 5);
        proxy.accept();
        wait_until("all are back", TIMEOUT, || {
            semaphore.available_permits().is_ok_and(|free| free == i64::from(PERMITS))
        });
    }
}
