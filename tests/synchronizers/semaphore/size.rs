//! A semaphore that is created at its first use.

use std::sync::Barrier;

use super::*;

/// Like [`super::behind`], for a client that has created the semaphore by its first use.
fn behind(proxy: &Proxy) -> Client {
    let client = super::behind(proxy);
    client.semaphore("warm too").with_permits(1).acquire().unwrap().release().unwrap();
    client
}

#[test]
fn the_first_use_makes_the_semaphore_once_and_later_uses_ask_nothing_more() {
    let server = server();
    let proxy = Proxy::before(&server);
    let maker = behind(&proxy);
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    // This rule only records the requests, and changes none.
    proxy.on(Direction::Request, 1, Action::LoseReply, move |bytes| {
        let is_one = contains(bytes, "$5\r\nsized\r\n");
        counted.fetch_add(u64::from(is_one), Ordering::SeqCst);
        false
    });
    let asked = || asked.swap(0, Ordering::SeqCst);
    let sized = maker.semaphore("sized").with_permits(3);
    assert_eq!(sized.available_permits().unwrap(), 0, "a look makes nothing");
    assert_eq!(asked(), 1);
    let first = sized.acquire().unwrap();
    assert_eq!(asked(), 3, "a look, the set and the acquire");
    let second = sized.acquire_many(2).unwrap();
    assert_eq!(asked(), 1);
    second.release().unwrap();
    first.release().unwrap();
    stays(&server, "sized", 3);

    let other = crate::common::behind(&proxy, |client| {
        client.semaphore("warm").acquire().unwrap().release().unwrap();
    });
    let found = other.semaphore("sized").with_permits(3);
    asked();
    let permit = found.try_acquire().unwrap().into_option().unwrap();
    assert_eq!(asked(), 2, "a look and the acquire");

    // These clients have used the semaphore, so they do not make another semaphore if it vanishes.
    assert!(sized.delete().unwrap());
    assert!(sized.try_acquire().unwrap().into_option().is_none());
    assert!(found.try_acquire().unwrap().into_option().is_none());
    assert_eq!(server.connection().exists("sized"), Ok(false));
    let later = client(&server);
    let _one = later.semaphore("sized").with_permits(3).acquire().unwrap();
    assert_eq!(sized.available_permits().unwrap(), 2);
    drop(permit);
    stays(&server, "sized", 3);
}

#[test]
fn of_clients_with_different_numbers_one_makes_the_semaphore() {
    let server = server();
    for round in 0..20 {
        let name = format!("race {round}");
        let clients = [(); 3].map(|()| client(&server));
        let start = Barrier::new(clients.len());
        let permits: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (3..)
                .zip(&clients)
                .map(|(size, client)| {
                    let (name, start) = (&name, &start);
                    scope.spawn(move || {
                        start.wait();
                        client.semaphore(name).with_permits(size).acquire().unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let free: i64 = server.connection().get(&name).unwrap();
        assert!((0..=2).contains(&free), "{free} and {} out", permits.len());
    }
}

#[test]
fn a_lost_reply_of_the_set_sets_once_and_a_failed_one_is_an_error() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    on_release(&proxy, "lost", 1, Action::LoseReply);
    let permit = client.semaphore("lost").with_permits(2).acquire().unwrap();
    assert_eq!(proxy.fired(), 1);
    stays(&server, "lost", 1);
    drop(permit);

    let failed = client.semaphore("failed").with_permits(2);
    on_release(&proxy, "failed", 2, Action::LoseRequest);
    let error = failed.acquire().map(drop).unwrap_err();
    assert_eq!(proxy.fired(), 3);
    is_clear(&error, "failed", "no permit was taken");
    assert_eq!(server.connection().exists("failed"), Ok(false));
    drop(failed.acquire().unwrap());
    stays(&server, "failed", 2);
}

#[test]
fn a_semaphore_that_is_lost_between_its_set_and_the_first_acquire_is_made_again() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let sized = client.semaphore("fresh").with_permits(2);
    on_release(&proxy, "fresh", 1, Action::HoldReply);
    thread::scope(|scope| {
        let first = scope.spawn(|| sized.try_acquire().unwrap().into_option());
        proxy.wait_fired(1, TIMEOUT);
        wait_permits(&server, "fresh", 2);
        let () = server.connection().del("fresh").unwrap();
        proxy.release();
        assert!(first.join().unwrap().is_none());
    });
    let _permit = sized.try_acquire().unwrap().into_option().unwrap();
    assert_eq!(sized.available_permits().unwrap(), 1);
}

#[test]
fn the_first_use_of_an_expirable_semaphore_makes_it_once() {
    let server = server();
    let [client, other] = [(); 2].map(|()| client(&server));
    let sized = client.expirable_semaphore("leases").with_permits(2);
    let permit = sized.with_lease(LONG_LEASE).acquire().unwrap();
    let found = other.expirable_semaphore("leases").with_permits(2);
    drop(found.acquire().unwrap());
    assert_eq!((sized.permits().unwrap(), sized.acquired_permits().unwrap()), (2, 1));
    assert!(sized.delete().unwrap());
    assert!(sized.try_acquire().unwrap().into_option().is_none());
    assert!(found.try_acquire().unwrap().into_option().is_none());
    assert!(permit.release().is_err());
    assert_eq!(sized.permits().unwrap(), 0);
}

#[test]
fn a_call_for_more_permits_than_the_handle_wants_in_all_is_an_error_and_asks_nothing() {
    let server = server();
    let client = client(&server);
    let (slots, leases) = (client.semaphore("slots"), client.expirable_semaphore("leases"));
    let of_size = |size| (slots.with_permits(size), leases.with_permits(size));
    let (five_slots, five_leases) = of_size(5);
    let (no_slots, no_leases) = of_size(0);
    for error in [
        five_slots.acquire_many(6).unwrap_err(),
        five_slots.try_acquire_many(6).unwrap_err(),
        five_leases.acquire_many_within(6, TIME_UNIT).unwrap_err(),
        no_slots.acquire().unwrap_err(),
        no_leases.try_acquire_for(TIME_UNIT).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("`with_permits`"), "{error}");
    }
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
    assert_eq!(left, [""; 0], "nothing was made");
    drop((five_slots.acquire_many(5).unwrap(), five_leases.acquire_many(5).unwrap()));
    drop(no_slots.acquire_many(0).unwrap());
    // A handle without a size accepts the present number of permits.
    wait_permits(&server, "slots", 5);
    slots.add_permits(1).unwrap();
    drop(slots.acquire_many(6).unwrap());
}
