//! Semaphores without permits, or with other numbers of permits than a program wants.

use super::*;

#[test]
fn another_number_of_permits_than_a_handle_wants_is_said_once() {
    let Some(server) = server_with_log() else { return };
    let said = || -> Vec<_> {
        let lines = LOGGER.lines("nothing was changed").into_iter();
        lines
            .map(|(level, line)| (level, line.split(" [client").next().unwrap().to_owned()))
            .collect()
    };
    let client = Client::connect(&server.url()).unwrap();
    for (at, free) in [5, 6].into_iter().enumerate() {
        let pool = client.semaphore(&format!("pool {at}"));
        assert!(pool.try_set_permits(free).unwrap());
        for _ in 0..2 {
            drop(pool.with_permits(5).acquire().unwrap());
        }
    }
    wait_until("it is said", TIMEOUT, || !said().is_empty());
    let line = "a handle wants 5 permits of \"pool 1\", but 6 are free: nothing was changed";
    assert_eq!(said(), [(Level::Warn, line.to_owned())]);

    // The size of an expirable semaphore is known even while permits are taken.
    LOGGER.install();
    let other = Client::connect(&server.url()).unwrap();
    for (at, size) in [5, 4].into_iter().enumerate() {
        let pool = client.expirable_semaphore(&format!("leases {at}"));
        assert!(pool.try_set_permits(size).unwrap());
        let _out = pool.acquire_many(2).unwrap();
        for _ in 0..2 {
            let pool = other.expirable_semaphore(pool.name()).with_permits(5);
            drop(pool.acquire().unwrap());
        }
    }
    wait_until("it is said", TIMEOUT, || !said().is_empty());
    let line = "a handle wants 5 permits of \"leases 1\", but it has 4: nothing was changed";
    assert_eq!(said(), [(Level::Warn, line.to_owned())]);

    LOGGER.install();
    let kept = client.semaphore("twins").with_permits(2);
    drop(kept.acquire().unwrap());
    for _ in 0..2 {
        drop(client.semaphore("twins").with_permits(3).acquire().unwrap());
    }
    assert_eq!(kept.available_permits().unwrap(), 2);
    wait_until("it is said", TIMEOUT, || !said().is_empty());
    let line = "a handle wants 3 permits of \"twins\", but another handle of this client wants 2: \
                nothing was changed";
    assert_eq!(said(), [(Level::Warn, line.to_owned())]);
}

#[test]
fn permits_that_no_program_has_set_are_said_at_once_with_their_number() {
    let Some(server) = server_with_log() else { return };
    // Each client logs the line at once, and only once.
    let clients =
        [(); 2].map(|()| Client::builder(&server.url()).slow_wait(LONG_LEASE).connect().unwrap());
    let [pool, expirable] = ["pool", "expirable"];
    let said = |client: &Client| {
        let mut lines = LOGGER.lines(client.id());
        lines.retain(|(_, line)| line.contains("has a program called try_set_permits?"));
        lines
    };
    for _ in 0..3 {
        assert!(clients[0].semaphore(pool).try_acquire_many(2).unwrap().into_option().is_none());
        assert!(
            clients[1]
                .expirable_semaphore(expirable)
                .try_acquire()
                .unwrap()
                .into_option()
                .is_none()
        );
    }
    wait_until("both are said", TIMEOUT, || clients.iter().all(|client| !said(client).is_empty()));
    for (client, wants) in
        clients.iter().zip(["2 permits of \"pool\"", "a permit of \"expirable\""])
    {
        let lines = said(client);
        assert!(lines.len() == 1 && lines[0].1.contains(wants), "{lines:?}");
    }
    // There is no line if all permits are taken.
    let client = Client::connect(&server.url()).unwrap();
    let (pool, expirable) = (client.semaphore(pool), client.expirable_semaphore(expirable));
    assert!(pool.try_set_permits(1).unwrap() && expirable.try_set_permits(1).unwrap());
    let taken = (pool.acquire().unwrap(), expirable.acquire().unwrap());
    assert!(
        pool.try_acquire().unwrap().into_option().is_none()
            && expirable.try_acquire().unwrap().into_option().is_none()
    );
    drop(taken);
    assert_eq!(said(&client), []);
}
