//! The mark that distinguishes a semaphore from a later semaphore of the same name. After a
//! failover or a restart a client repeats its changes of the same semaphore, but repeats none of
//! them for a new semaphore.

use super::*;

fn mark_of(server: &Server, name: &str) -> Option<String> {
    server.connection().get(format!("redlatch_mark:{{{name}}}")).unwrap()
}

fn through(proxy: &Proxy) -> Client {
    let builder = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE);
    builder.connections(1).connect().unwrap()
}

/// Returns the number of clients for which the server has a record of requests for this semaphore.
fn records(server: &Server, name: &str) -> usize {
    let keys: Vec<String> =
        server.connection().keys(format!("redlatch_request:{{{name}}}:*")).unwrap();
    keys.len()
}

fn record_of(server: &Server, name: &str) -> String {
    let keys = format!("redlatch_request:{{{name}}}:*");
    let keys: Vec<String> = server.connection().keys(keys).unwrap();
    let [record] = &keys[..] else { panic!("{keys:?}") };
    record.clone()
}

/// Returns the number of the server's connections, except the connection that sends this query.
fn connections(server: &Server) -> usize {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).unwrap();
    list.lines().count() - 1
}

fn copy(from: &Server, to: &Server, keys: &[&str]) {
    for key in keys {
        let value: String = from.connection().get(key).unwrap();
        let () = to.connection().set(key, value).unwrap();
    }
}

/// Makes this client connect to another server, and waits until that server has the client's
/// changes. Returns the number of permits that are then free.
fn moved(client: &Client, [old, new]: [&Server; 2], proxy: &Proxy, name: &str) -> i64 {
    let before = records(new, name);
    proxy.lead_to(new);
    old.kill();
    // This query makes the client connect to the new server.
    let another = client.semaphore("another");
    wait_until("the server is told", TIMEOUT, || {
        let _ = another.available_permits();
        records(new, name) > before
    });
    new.connection().get(name).unwrap()
}

/// As behind a load balancer, connections to the old master stay open, and the old master still
/// sends replies.
#[test]
fn permits_taken_over_a_connection_to_the_old_master_are_not_taken_at_the_new_one() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = through(&proxy);
    let pool = semaphore(&client, "kept", 10);
    let first = pool.acquire_many(2).unwrap();
    copy(&old, &new, &["kept", "redlatch_mark:{kept}", &record_of(&old, "kept")]);
    proxy.lead_to(&new);
    // A waiter makes the client open the connection for messages, which leads to the new master.
    // After that the renewer also connects to the new master.
    wait_until("both are there", TIMEOUT, || {
        assert!(answered(|| pool.try_acquire_many_for(9, TIME_UNIT)).into_option().is_none());
        connections(&new) >= 2
    });
    let second = pool.acquire_many(3).unwrap();
    drop(first);
    let third = pool.acquire_many(4).unwrap();
    proxy.cut_all();
    second.release().unwrap();
    stays(&new, "kept", 6);
    third.release().unwrap();
    stays(&new, "kept", 10);
}

/// A client has changed a semaphore, and the server loses its data. The client must not repeat the
/// changes at a new semaphore of the same name.
#[test]
fn a_semaphore_made_anew_on_an_empty_server_loses_no_permit_to_a_slow_client() {
    let ways: [fn(&Semaphore); 5] = [
        |it| assert!(it.try_set_permits(4).unwrap()),
        |it| assert!(it.try_set_permits_for(4, LONG_LEASE).unwrap()),
        |it| it.set_permits(4).unwrap(),
        |it| it.add_permits(4).unwrap(),
        |it| it.release_forgotten(4).unwrap(),
    ];
    for (at, make) in ways.iter().enumerate() {
        let (old, new) = (server(), server());
        let proxy = Proxy::before(&old);
        let slow = through(&proxy);
        let semaphore = semaphore(&slow, "emptied", 4);
        semaphore.acquire_many(2).unwrap().forget();
        make(&client(&new).semaphore("emptied"));
        let free = moved(&slow, [&old, &new], &proxy, "emptied");
        assert_eq!(free, 4, "way {at}");
        // The client's next change must be applied.
        semaphore.acquire_many(3).unwrap().forget();
        stays(&new, "emptied", 1);
    }
}

/// The new master lacks the record of requests, but the mark shows that the semaphore is the same.
#[test]
fn a_promoted_replica_that_lacks_a_sequences_first_take_gets_it() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = through(&proxy);
    let _ = semaphore(&self::client(&old), "first", 4);
    copy(&old, &new, &["first", "redlatch_mark:{first}"]);
    let permit = client.semaphore("first").acquire_many(3).unwrap();
    assert_eq!(moved(&client, [&old, &new], &proxy, "first"), 1);
    permit.release().unwrap();
    stays(&new, "first", 4);
}

/// Redisson's `delete()` is a plain `DEL`, which does not delete the mark.
#[test]
fn a_semaphore_that_redisson_removed_and_ours_made_anew_is_another_one() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let slow = through(&proxy);
    semaphore(&slow, "again", 4).acquire_many(2).unwrap().forget();
    let first = mark_of(&old, "again");
    let () = old.connection().del("again").unwrap();
    assert!(first.is_some() && mark_of(&old, "again") == first);
    let other = client(&old);
    let _ = semaphore(&other, "again", 4);
    assert_ne!(mark_of(&old, "again"), first);
    // This copies all keys except the record of the slow client.
    copy(&old, &new, &["again", "redlatch_mark:{again}"]);
    assert_eq!(moved(&slow, [&old, &new], &proxy, "again"), 4);
}

/// The reply to the request is lost. The copy of the request gets the recorded reply.
#[test]
fn a_change_whose_copy_was_answered_is_repeated_at_a_new_master() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = through(&proxy);
    let _ = semaphore(&self::client(&old), "copied", 4);
    copy(&old, &new, &["copied", "redlatch_mark:{copied}"]);
    let taking = client.semaphore("copied");
    // After this, the server knows the script.
    assert!(taking.try_acquire_many(5).unwrap().into_option().is_none());
    on_acquire(&proxy, "copied", 1, Action::LoseReply);
    let permit = taking.acquire_many(3).unwrap();
    assert_eq!(proxy.fired(), 1);
    stays(&old, "copied", 1);
    assert_eq!(moved(&client, [&old, &new], &proxy, "copied"), 1);
    permit.forget();
}

#[test]
fn a_mark_lives_as_long_as_its_number() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let (key, mark) = ("brief", "redlatch_mark:{brief}");
    let mut both = || {
        let ends = |key| redis::cmd("PEXPIRETIME").arg(key).query(&mut redis).unwrap();
        let ends: [i64; 2] = [key, mark].map(ends);
        // Before Redis 7.2, the clock advances during a script.
        assert!(ends[0].abs_diff(ends[1]) < 5_000 && (ends[0] > 0) == (ends[1] > 0), "{ends:?}");
        ends[0]
    };
    let semaphore = client.semaphore(key);
    assert!(semaphore.try_set_permits_for(3, LONG_LEASE).unwrap());
    let made = both();
    assert!(made > 0);
    semaphore.set_permits(5).unwrap();
    semaphore.acquire().unwrap().release().unwrap();
    assert_eq!(both(), made);
    assert!(semaphore.expire(2 * LONG_LEASE).unwrap());
    assert!(both() > made);
    assert!(semaphore.expire(Duration::MAX).unwrap());
    assert_eq!(both(), -1);
    assert!(semaphore.delete().unwrap());
    assert_eq!(both(), -2, "both are gone");
    assert!(!semaphore.expire(LONG_LEASE).unwrap());
    // The semaphore was made by Redisson, or by a client without marks.
    let mut redis = server.connection();
    let () = redis.pset_ex(key, 3, 600_000).unwrap();
    semaphore.acquire().unwrap().forget();
    assert!(both() > 0);
    assert_eq!(redis.get::<_, i64>(key).unwrap(), 2);
    // A mark without a number is not a semaphore.
    let () = redis.del(key).unwrap();
    assert!(!semaphore.expire(Duration::MAX).unwrap());
}

#[test]
fn each_change_of_a_number_without_a_mark_makes_one_and_others_keep_it() {
    let server = server();
    let client = client(&server);
    let changes: [fn(&Semaphore); 5] = [
        |it| it.acquire().unwrap().forget(),
        |it| it.release_forgotten(1).unwrap(),
        |it| it.add_permits(-1).unwrap(),
        |it| it.set_permits(3).unwrap(),
        |it| assert!(it.drain_permits().unwrap() > 0),
    ];
    for (at, change) in changes.iter().enumerate() {
        let name = &format!("unmarked {at}");
        let () = server.connection().set(name, 3).unwrap();
        let semaphore = client.semaphore(name);
        assert!(!semaphore.try_set_permits(4).unwrap());
        assert!(semaphore.try_acquire_many(9).unwrap().into_option().is_none());
        assert_eq!(mark_of(&server, name), None, "nothing was changed");
        change(&semaphore);
        let mark = mark_of(&server, name);
        assert!(mark.is_some(), "change {at}");
        semaphore.set_permits(3).unwrap();
        changes.iter().for_each(|change| change(&semaphore));
        assert_eq!(mark_of(&server, name), mark);
    }
}
