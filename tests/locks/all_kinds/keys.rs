//! Names of locks, and keys with data that is no lock.

use super::*;

over_all_kinds! {
    names_and_leases_that_cannot_be_are_errors
    every_other_name_works
    a_key_that_is_no_lock_is_an_error_and_left_as_it_is
    of_a_hash_that_is_no_lock_little_is_read_however_large_it_is
}

fn names_and_leases_that_cannot_be_are_errors(kind: Kind) {
    let server = server();
    let client = client(&server);
    let nameless = kind.make(&client, "");
    let kinds = [
        nameless.lock().map(drop).unwrap_err().kind(),
        nameless.try_lock().map(drop).unwrap_err().kind(),
        nameless.try_lock_for(TIMEOUT).map(drop).unwrap_err().kind(),
        nameless.is_locked().map(drop).unwrap_err().kind(),
        nameless.force_unlock().map(drop).unwrap_err().kind(),
        kind.leased(&client, "none", Duration::ZERO).lock().map(drop).unwrap_err().kind(),
        kind.leased(&client, "ages", Duration::MAX).lock().map(drop).unwrap_err().kind(),
    ];
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Config), "{kinds:?}");
    let longest = Duration::from_millis(10_000_000_000_000);
    drop(kind.leased(&client, "longest", longest).lock().unwrap());
    leaves_nothing(&server);
}

fn every_other_name_works(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let long = "x".repeat(65_536);
    for name in
        ["{", "}", "{}", "a{b}c", "a}b", " ", "a\0b", "\n\r", "*", "a?[x]^\\", "größe", &long]
    {
        woken_by_message(|| {
            let guard = kind.make(&client, name).lock().unwrap();
            let waits = kind.make(&other, name);
            let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
            waiter.wait_asleep();
            guard.unlock().unwrap();
            waiter.join();
        });
        leaves_nothing(&server);
    }
}

fn a_key_that_is_no_lock_is_an_error_and_left_as_it_is(kind: Kind) {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.set("string", "precious").unwrap();
    let lock = kind.make(&client, "string");
    for error in [
        lock.lock().map(drop).unwrap_err(),
        lock.try_lock().map(drop).unwrap_err(),
        // The client also queries the type of the key.
        lock.try_lock_for(TIMEOUT).map(drop).unwrap_err(),
        lock.is_locked().map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert_eq!(error.name(), Some("string"));
        assert!(error.to_string().contains("holds a string: use another name"), "{error}");
    }
    assert_eq!(lock.remaining_lease().unwrap(), None);
    let () = redis.pexpire("string", LONG_LEASE.as_millis() as i64).unwrap();
    assert_eq!(lock.remaining_lease().unwrap(), None);
    assert_eq!(redis.get::<_, String>("string").unwrap(), "precious");
    let guard = kind.make(&client, "over").lock().unwrap();
    let () = redis.set("over", "precious").unwrap();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(redis.get::<_, String>("over").unwrap(), "precious");
    let keys: Vec<String> = redis.keys("*").unwrap();
    assert_eq!(keys.len(), 2, "{keys:?}");
}

/// If the client read the whole hash, the server would answer no other client for seconds.
fn of_a_hash_that_is_no_lock_little_is_read_however_large_it_is(kind: Kind) {
    let server = server();
    let mut redis = server.connection();
    // The scripts' values stay in memory until they are collected.
    let mut read_by_scripts = || {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut redis).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory_lua:"));
        line.and_then(|bytes| bytes.trim().parse::<u64>().ok())
    };
    let client = client(&server);
    let use_all = |name: &str| {
        let lock = kind.make(&client, name);
        [
            lock.try_lock().map(drop),
            lock.lock().map(drop),
            lock.try_lock_for(TIMEOUT).map(drop),
            lock.force_unlock().map(drop),
        ]
    };
    // After this, the server knows the scripts.
    use_all("small").into_iter().for_each(Result::unwrap);
    let Some(before) = read_by_scripts() else {
        eprintln!("left out: this server does not tell what its scripts' memory is");
        return;
    };
    let mut fill = redis::pipe();
    for part in 0..100 {
        let fields: Vec<_> = (0..1_000).map(|at| (format!("field:{part}:{at}"), 1)).collect();
        fill.hset_multiple("large", &fields).ignore();
    }
    let () = fill.query(&mut server.connection()).unwrap();
    for outcome in use_all("large") {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::WrongType);
        let more = read_by_scripts().unwrap().saturating_sub(before);
        // A script that read the hash would read more than this.
        assert!(more < 1_000_000, "{more} bytes");
    }
}
