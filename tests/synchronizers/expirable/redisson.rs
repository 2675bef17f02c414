//! The keys and messages on the server, and Redisson's clients.

use super::*;

#[test]
fn the_keys_and_the_messages_are_redissons() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, timeouts, channel) in [
        ("wire", "{wire}:timeout", "redisson_sc:{wire}"),
        ("a{b}c", "a{b}c:timeout", "redisson_sc:a{b}c"),
        ("größe \u{1F512}", "{größe \u{1F512}}:timeout", "redisson_sc:{größe \u{1F512}}"),
    ] {
        let mut connection = server.connection();
        let mut subscriber = connection.as_pubsub();
        subscriber.subscribe(channel).unwrap();
        let mut heard = || subscriber.get_message().unwrap().get_payload::<String>().unwrap();
        let semaphore = client.expirable_semaphore(name);
        assert!(semaphore.try_set_permits(2).unwrap());
        assert_eq!(heard(), "2");
        let before = now();
        let permit = semaphore.acquire().unwrap();
        assert_eq!(redis.get::<_, String>(name).unwrap(), "1");
        let out: Vec<(Vec<u8>, u64)> = redis.zrange_withscores(timeouts, 0, -1).unwrap();
        let id = permit.id();
        assert_eq!(out[0].0, id.as_bytes());
        let ends = before + u64::try_from(LONG_LEASE.as_millis()).unwrap();
        assert!((ends..ends + 10_000).contains(&out[0].1), "{} {ends}", out[0].1);
        assert_eq!((pttl(&mut redis, name), pttl(&mut redis, timeouts)), (-1, -1));
        permit.release().unwrap();
        assert_eq!(heard(), "2");
        semaphore.add_permits(3).unwrap();
        assert_eq!(heard(), "5");
        // A time to live that a client sets applies to all keys.
        let () = redis.pexpire(name, 100_000).unwrap();
        let permit = semaphore.acquire().unwrap();
        assert!(pttl(&mut redis, timeouts) > 50_000);
        drop(permit);
    }
}

/// A Redisson client with its own clock.
struct Redisson {
    redis: redis::Connection,
    name: &'static str,
    /// The number of ms by which the client's clock is ahead of the server's clock.
    ahead: i64,
}

impl Redisson {
    fn new(server: &Server, name: &'static str) -> Self {
        Self { redis: server.connection(), name, ahead: 0 }
    }

    fn now(&self) -> i64 {
        i64::try_from(now()).unwrap() + self.ahead
    }

    fn ends(&self, lease: Option<Duration>) -> i64 {
        let ends = |lease: Duration| self.now() + i64::try_from(lease.as_millis()).unwrap();
        lease.map_or(922_337_203_685_477, ends)
    }

    fn tried(&self, reply: Option<String>) -> Result<(), Option<i64>> {
        match reply.as_deref() {
            Some("OK") => Ok(()),
            Some(next) => Err(Some(next.strip_prefix(':').unwrap().parse().unwrap())),
            None => Err(None),
        }
    }

    fn acquire_3(&mut self, id: &str, lease: Option<Duration>) -> Result<(), Option<i64>> {
        let reply = Script::new(include_str!("acquire_3.lua"))
            .key(&[self.name, &timeouts(self.name), &channel(self.name)])
            .arg(1)
            .arg(self.ends(lease))
            .arg(id)
            .arg(self.now())
            .arg(922_337_203_685_477_i64)
            .invoke(&mut self.redis);
        self.tried(reply.unwrap())
    }

    fn release_3(&mut self, id: &[u8]) -> bool {
        Script::new(include_str!("release_3.lua"))
            .key(&[self.name, &channel(self.name), &timeouts(self.name)])
            .arg(id)
            .arg(1)
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn acquire_4(&mut self, ids: &[PermitId], lease: Option<Duration>) -> Result<(), Option<i64>> {
        let script = Script::new(include_str!("acquire_4.lua"));
        let mut call = script.prepare_invoke();
        call.key(&[self.name, &timeouts(self.name), &channel(self.name)]).arg(ids.len());
        call.arg(self.ends(lease)).arg(self.now()).arg(922_337_203_685_477_i64).arg("PUBLISH");
        for id in ids {
            call.arg(id.as_bytes());
        }
        let reply = call.invoke(&mut self.redis);
        self.tried(reply.unwrap())
    }

    fn release_4(&mut self, id: &PermitId) -> bool {
        Script::new(include_str!("release_4.lua"))
            .key(&[self.name, &channel(self.name), &timeouts(self.name)])
            .arg(id.as_bytes())
            .arg(1)
            .arg(self.now())
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn available_4(&mut self) -> i64 {
        Script::new(include_str!("available_4.lua"))
            .key(&[self.name, &timeouts(self.name), &channel(self.name)])
            .arg(self.now())
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn update_lease_time_4(&mut self, id: &PermitId, lease: Duration) -> bool {
        Script::new(include_str!("update_lease_time_4.lua"))
            .key(&[self.name, &timeouts(self.name), &channel(self.name)])
            .arg(id.as_bytes())
            .arg(self.ends(Some(lease)))
            .arg(self.now())
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap()
    }

    fn set_permits_4(&mut self, permits: u32) {
        let () = Script::new(include_str!("set_permits_4.lua"))
            .key(&[self.name, &channel(self.name), &timeouts(self.name)])
            .arg(permits)
            .arg("PUBLISH")
            .invoke(&mut self.redis)
            .unwrap();
    }
}

#[test]
fn redisson_4_and_we_share_permits_and_give_back_each_others() {
    let server = server();
    let client = client(&server);
    let semaphore = client.expirable_semaphore("java");
    let mut java = Redisson::new(&server, "java");
    java.set_permits_4(3);
    let [a, b] = [1, 2].map(|it| PermitId::from_bytes([it; 16]));
    java.acquire_4(&[a, b], Some(LONG_LEASE)).unwrap();
    let ours = semaphore.acquire().unwrap();
    // All permits are taken, so Redisson gets none. The reply contains the end of the first lease.
    let next = java.acquire_4(&[PermitId::from_bytes([9; 16])], None).unwrap_err().unwrap();
    assert!((next - java.now()).abs() <= 61_000, "{next}");
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    assert_eq!((java.available_4(), semaphore.acquired_permits().unwrap()), (0, 3));
    // Each library can release the other library's permit.
    semaphore.release(&a).unwrap();
    assert!(java.release_4(&ours.id()));
    assert!(!java.release_4(&ours.id()));
    assert_eq!(ours.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(semaphore.remaining_lease(&b).unwrap().unwrap() > LONG_LEASE / 2);
    semaphore.update_lease_time(&b, LEASE).unwrap();
    assert!(java.update_lease_time_4(&b, LONG_LEASE));
    assert!(semaphore.remaining_lease(&b).unwrap().unwrap() > LONG_LEASE / 2);
    assert!(java.release_4(&b));
    // A permit without a lease stays taken for ever.
    java.acquire_4(&[a], None).unwrap();
    assert_eq!(semaphore.remaining_lease(&a).unwrap(), Some(Duration::MAX));
    semaphore.update_lease_time(&a, LEASE).unwrap();
    // The lease ends, and the next client gets the permit. A late release does not take it away.
    let all = semaphore.try_acquire_many_for(3, TIMEOUT).unwrap().into_option().unwrap();
    assert!(!java.release_4(&a) && java.available_4() == 0);
    drop(all);
    semaphore.set_permits(2).unwrap();
    assert_eq!(java.available_4(), 2);
    java.set_permits_4(5);
    assert_eq!(semaphore.permits().unwrap(), 5);
    stays(&server, "java", 5, 0);
}

#[test]
fn redisson_3_and_we_share_permits_and_their_leases_end_for_both() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "java", 2);
    let mut java = Redisson::new(&server, "java");
    java.acquire_3(TEXT_ID, Some(LONG_LEASE)).unwrap();
    let ours = semaphore.acquire().unwrap();
    assert!(java.acquire_3("another", None).unwrap_err().is_some());
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    // Redisson 3.16 has other ids, so neither library can release the other library's permit.
    assert!(!semaphore.try_release(&TEXT_ID.parse().unwrap()).unwrap());
    assert!(!java.release_3(ours.id().to_string().as_bytes()));
    assert_eq!(stored(&server, "java"), (0, 2));
    assert!(java.release_3(TEXT_ID.as_bytes()));
    drop(ours);
    stays(&server, "java", 2, 0);
    // When the leases end, the permits are free for both libraries.
    java.acquire_3(TEXT_ID, Some(LEASE)).unwrap();
    drop(semaphore.try_acquire_many_for(2, TIMEOUT).unwrap().into_option().unwrap());
    stays(&server, "java", 2, 0);
    let short = semaphore.with_lease(LEASE).acquire_many(2).unwrap();
    wait_until("it gets one", TIMEOUT, || java.acquire_3(TEXT_ID, Some(LONG_LEASE)).is_ok());
    wait_until("the guards know", TIMEOUT, || !short.iter().any(ExpirablePermit::is_held));
    assert!(java.release_3(TEXT_ID.as_bytes()));
    drop(short);
    // Redisson's request has freed no more permits than it needed.
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    drop(semaphore.try_acquire_many(2).unwrap().into_option().unwrap());
    stays(&server, "java", 2, 0);
}

#[test]
fn a_java_services_release_wakes_our_waiter_and_our_release_is_published_to_it() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "java", 1);
    let mut java = Redisson::new(&server, "java");
    for version in [3, 4] {
        woken_by_message(|| {
            let id: PermitId = TEXT_ID.parse().unwrap();
            if version == 3 {
                java.acquire_3(TEXT_ID, None).unwrap();
            } else {
                java.acquire_4(&[id], None).unwrap();
            }
            let waiting = semaphore.clone();
            let waiter = spawn(move || waiting.acquire().unwrap());
            wait_subscribed(&server, &channel("java"));
            waiter.wait_asleep();
            assert!(if version == 3 {
                java.release_3(TEXT_ID.as_bytes())
            } else {
                java.release_4(&id)
            });
            let permit = waiter.join();
            let mut connection = server.connection();
            let mut subscriber = connection.as_pubsub();
            subscriber.subscribe(channel("java")).unwrap();
            drop(permit);
            assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 1);
        });
    }
}

#[test]
fn the_client_that_finds_an_ended_lease_tells_the_waiters() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "found", 3);
    let ids: Vec<_> = semaphore.with_lease(LEASE).acquire_many(2).unwrap();
    let ids: Vec<_> = ids.into_iter().map(ExpirablePermit::into_id).collect();
    let mut connection = server.connection();
    let mut subscriber = connection.as_pubsub();
    subscriber.subscribe(channel("found")).unwrap();
    wait_until("it ends", TIMEOUT, || semaphore.remaining_lease(&ids[0]).unwrap().is_none());
    assert_eq!(stored(&server, "found"), (1, 2), "a question changes nothing");
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    let permit = semaphore.try_acquire().unwrap().into_option().unwrap();
    // Two permits were freed, and one of the three is taken.
    assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 2);
    assert_eq!(stored(&server, "found"), (2, 1));
    permit.release().unwrap();
    assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 3);
    // A release also frees permits whose leases have ended, even the permit that the release names.
    let lapsed = semaphore.with_lease(LEASE).acquire().unwrap().into_id();
    wait_until("it ends", TIMEOUT, || semaphore.remaining_lease(&lapsed).unwrap().is_none());
    assert!(!semaphore.try_release(&lapsed).unwrap());
    assert_eq!(subscriber.get_message().unwrap().get_payload::<i32>().unwrap(), 3);
    stays(&server, "found", 3, 0);
}

#[test]
fn a_java_service_with_a_wrong_clock_takes_no_renewed_permit() {
    let server = server();
    // At least two thirds of the lease are left, which is 6 s.
    let client = watched(&server, TIME_UNIT * 90);
    let semaphore = semaphore(&client, "skewed", 2);
    let permit = semaphore.acquire().unwrap();
    let mut java = Redisson::new(&server, "skewed");
    java.ahead = 2_000;
    let begun = Instant::now();
    while begun.elapsed() < TIME_UNIT * 45 {
        assert_eq!(java.available_4(), 1);
        thread::sleep(TIME_UNIT);
    }
    permit.check(Duration::from_secs(2)).unwrap();
    // If Redisson's clock is further ahead, Redisson takes the permit away, and the guard reports
    // the loss.
    let lost = on_lost(&permit);
    java.ahead = 10_000;
    assert_eq!(java.available_4(), 2);
    assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::Revoked);
    // If Redisson's clock is behind, the leases of its permits have ended by the server's clock, so
    // these permits are free.
    java.ahead = -10_000;
    java.acquire_4(&[TEXT_ID.parse().unwrap()], Some(Duration::from_secs(5))).unwrap();
    drop(permit);
    drop(semaphore.try_acquire_many(2).unwrap().into_option().unwrap());
    stays(&server, "skewed", 2, 0);
}

/// In Redisson's own format, the leases of both semaphores have the same key.
#[test]
fn two_semaphores_that_share_a_key_are_an_error_that_says_so() {
    let server = server();
    for (first, second) in [("x", "{x}"), ("{y}", "y")] {
        let client = client(&server);
        let used = semaphore(&client, first, 1);
        let permit = used.acquire().unwrap();
        let refused = client.expirable_semaphore(second);
        for error in [
            refused.try_set_permits(1).map(drop).unwrap_err(),
            refused.acquire().map(drop).unwrap_err(),
            refused.available_permits().map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains(first), "{error}");
        }
        used.release(&permit.into_id()).unwrap();
        assert_eq!(used.available_permits().unwrap(), 1);
        let others = [format!("{{{first}}}z"), format!("{first}z")];
        assert!(others.iter().all(|it| client.expirable_semaphore(it).permits().is_ok()));
    }
}
