//! Fixed leases that a guard extends.

use super::*;

over_all_kinds! {
    an_extended_lease_outlives_the_first_one_and_costs_one_command
    a_shorter_lease_changes_nothing_and_asks_nothing
    a_lease_that_cannot_be_extended_is_refused_before_a_request
    a_lost_lock_is_not_extended_and_not_taken_again
    a_lost_reply_leaves_the_guard_its_earlier_lease_and_the_release_ends_the_longer_one
    a_lease_that_ends_after_a_lost_reply_leaves_no_longer_one
    a_server_that_is_away_extends_nothing
    a_lock_that_was_extended_is_not_passed_on_with_its_longer_lease
    a_lock_handed_on_by_another_process_is_extended
    an_extended_lock_is_left_to_the_end_of_its_longer_lease
}

/// A lease whose end a test waits for. The lease is long enough that it does not end too early on a
/// busy machine.
const FIRST: Duration = SHORT_LEASE;

fn an_extended_lease_outlives_the_first_one_and_costs_one_command(kind: Kind) {
    let server = server();
    let client = client(&server);
    let lock = kind.leased(&client, "extended", FIRST);
    let (plain, owned) = (kind.leased(&client, "plain", FIRST), lock.lock_owned().unwrap());
    let plain = plain.lock().unwrap();
    plain.on_lost(|why| panic!("it was extended: {why}"));
    owned.on_lost(|why| panic!("it was extended: {why}"));
    for (name, extended) in
        [("extended", &owned.extend(HOUR) as &Result<_, _>), ("plain", &plain.extend(HOUR))]
    {
        extended.as_ref().unwrap();
        assert!(pttl(&mut server.connection(), name) > LONG_LEASE.as_millis() as i64);
    }
    let before = Commands::so_far(&server).scripts();
    owned.extend(HOUR * 2).unwrap();
    assert_eq!(Commands::so_far(&server).scripts(), before + 1);
    assert!(owned.remaining() > HOUR && plain.remaining() > HOUR / 2);
    // Time must pass here, because the test measures leases.
    std::thread::sleep(FIRST + TIME_UNIT);
    assert_eq!((owned.state(), plain.state()), (HoldState::Held, HoldState::Held));
    plain.unlock().unwrap();
    owned.unlock().unwrap();
    leaves_nothing(&server);
    // The next hold has its handle's lease.
    let next = lock.lock_owned().unwrap();
    assert!(next.remaining() <= FIRST);
    drop(next);
    leaves_nothing(&server);
}

fn a_shorter_lease_changes_nothing_and_asks_nothing(kind: Kind) {
    let server = server();
    let client = client(&server);
    let guard = kind.leased(&client, "shorter", LONG_LEASE).lock_owned().unwrap();
    let before = Commands::so_far(&server).of_locks();
    guard.extend(LONG_LEASE / 2).unwrap();
    assert_eq!(Commands::so_far(&server).of_locks(), before);
    assert!(guard.remaining() > LONG_LEASE / 2);
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_lease_that_cannot_be_extended_is_refused_before_a_request(kind: Kind) {
    let server = server();
    let client = client(&server);
    let watched = kind.make(&client, "watched").lock_owned().unwrap();
    let fixed = kind.leased(&client, "fixed", LONG_LEASE).lock_owned().unwrap();
    let before = Commands::so_far(&server).of_locks();
    let error = watched.extend(HOUR).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("\"watched\": the watchdog renews its lease"), "{error}");
    for unusable in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        assert_eq!(fixed.extend(unusable).unwrap_err().kind(), ErrorKind::Config);
    }
    assert_eq!(Commands::so_far(&server).of_locks(), before);
    assert!(watched.is_held() && fixed.is_held());
    watched.unlock().unwrap();
    fixed.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_lost_lock_is_not_extended_and_not_taken_again(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let lock = kind.leased(&client, "lost", LEASE);
    // The lease of `late` ends, and another client gets the lock.
    let late = lock.lock_owned().unwrap();
    let theirs = kind.make(&other, "lost").lock().unwrap();
    let held = holder(&mut server.connection(), "lost");
    assert_eq!(late.extend(HOUR).unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(holder(&mut server.connection(), "lost"), held);
    assert!(pttl(&mut server.connection(), "lost") <= LONG_LEASE.as_millis() as i64);
    theirs.unlock().unwrap();
    // The key is deleted, so only the server knows that the hold is lost.
    let deleted = kind.leased(&client, "lost", LONG_LEASE).lock_owned().unwrap();
    let () = server.connection().del("lost").unwrap();
    assert_eq!(deleted.extend(HOUR).unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(deleted.state(), HoldState::Lost(LostReason::Revoked));
    leaves_nothing(&server);
    // The thread releases the lock without the guard.
    let released = kind.leased(&client, "lost", LONG_LEASE).lock().unwrap();
    lock.unlock().unwrap();
    assert_eq!(released.extend(HOUR).unwrap_err().kind(), ErrorKind::NotHeld);
    // The client is gone.
    let ended = kind.leased(&client, "lost", LONG_LEASE).lock_owned().unwrap();
    client.shutdown();
    assert_eq!(ended.extend(HOUR).unwrap_err().kind(), ErrorKind::LeaseLost);
    leaves_nothing(&server);
}

/// Extends a lease to an hour. The server runs the request and its copy, and both replies are lost.
fn loses_replies(kind: Kind, client: &Client, proxy: &Proxy) {
    // After this, the server knows the script.
    let guard = kind.leased(client, "learns", LEASE).lock_owned().unwrap();
    guard.extend(LONG_LEASE).unwrap();
    guard.unlock().unwrap();
    let is_long = |bytes: &[u8]| contains(bytes, "\r\n3600000\r\n");
    proxy.on(Direction::Request, usize::MAX, Action::LoseReply, is_long);
}

fn a_lost_reply_leaves_the_guard_its_earlier_lease_and_the_release_ends_the_longer_one(kind: Kind) {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connect().unwrap();
    let guard = kind.leased(&client, "unknown", LONG_LEASE).lock_owned().unwrap();
    loses_replies(kind, &client, &proxy);
    let error = guard.extend(HOUR).unwrap_err();
    assert!(error.outcome_unknown() && error.kind().is_server_trouble(), "{error}");
    assert!(error.to_string().contains("until the end of its earlier lease"), "{error}");
    let mut redis = server.connection();
    wait_until("the server runs it", TIMEOUT, || {
        pttl(&mut redis, "unknown") > LONG_LEASE.as_millis() as i64
    });
    assert!(guard.is_held() && guard.remaining() <= LONG_LEASE);
    assert_eq!(guard.state(), HoldState::Unconfirmed);
    proxy.clear_rules();
    guard.extend(HOUR).unwrap();
    assert_eq!(guard.state(), HoldState::Held);
    assert!(guard.remaining() > LONG_LEASE);
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_lease_that_ends_after_a_lost_reply_leaves_no_longer_one(kind: Kind) {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connect().unwrap();
    loses_replies(kind, &client, &proxy);
    let guard = kind.leased(&client, "unknown", FIRST).lock_owned().unwrap();
    assert!(guard.extend(HOUR).unwrap_err().outcome_unknown());
    proxy.clear_rules();
    let mut redis = server.connection();
    let is_run = || pttl(&mut redis, "unknown") > LONG_LEASE.as_millis() as i64 || !guard.is_held();
    wait_until("the server runs it", TIMEOUT, is_run);
    wait_until("its earlier lease ends", TIMEOUT, || !guard.is_held());
    // Nobody has released the lock, and the server would keep it for an hour.
    leaves_nothing(&server);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
}

fn a_server_that_is_away_extends_nothing(kind: Kind) {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connect().unwrap();
    let guard = kind.leased(&client, "away", LONG_LEASE).lock_owned().unwrap();
    proxy.refuse();
    proxy.cut_all();
    let error = guard.extend(HOUR).unwrap_err();
    assert!(error.kind().is_server_trouble() && error.is_transient(), "{error}");
    assert!(guard.is_held() && guard.remaining() <= LONG_LEASE);
    assert!(pttl(&mut server.connection(), "away") <= LONG_LEASE.as_millis() as i64);
    proxy.accept();
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

/// If a thread died after it got the lock with the longer lease, others would wait for the end of
/// that lease.
fn a_lock_that_was_extended_is_not_passed_on_with_its_longer_lease(kind: Kind) {
    let server = server();
    let client = client(&server);
    let lock = kind.leased(&client, "passed", LONG_LEASE);
    let guard = lock.lock_owned().unwrap();
    guard.extend(HOUR).unwrap();
    let waiter = spawn(move || {
        let guard = lock.lock().unwrap();
        let left = guard.remaining();
        guard.unlock().unwrap();
        left
    });
    waiter.wait_asleep();
    guard.unlock().unwrap();
    assert!(waiter.join() <= LONG_LEASE);
    leaves_nothing(&server);
}

/// A lock that was handed on has a lease of 2 s at first. The watchdog soon raises this lease to
/// that of the handle.
fn a_lock_handed_on_by_another_process_is_extended(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let held = kind.make(&other, "handed").lock().unwrap();
    let lock = kind.leased(&client, "handed", LONG_LEASE);
    let waiter = spawn(move || {
        let guard = lock.lock_owned().unwrap();
        guard.extend(HOUR).unwrap();
        // During this sleep, the watchdog raises the lease.
        std::thread::sleep(TIME_UNIT);
        guard
    });
    waiter.wait_queued();
    held.unlock().unwrap();
    let guard = waiter.join();
    assert!(guard.remaining() > LONG_LEASE);
    assert!(pttl(&mut server.connection(), "handed") > LONG_LEASE.as_millis() as i64);
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn an_extended_lock_is_left_to_the_end_of_its_longer_lease(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.leased(&client, "left", LONG_LEASE).lock_owned().unwrap();
    guard.extend(HOUR).unwrap();
    guard.leave_to_expire().unwrap();
    client.shutdown();
    let theirs = kind.make(&other, "left");
    assert!(theirs.remaining_lease().unwrap().unwrap() > LONG_LEASE);
    assert!(theirs.force_unlock().unwrap());
    leaves_nothing(&server);
}

/// After an early release, the lock stays taken for the minimum time, and no longer.
#[test]
fn an_extended_lock_with_a_least_time_is_kept_for_that_time() {
    let server = server();
    let client = client(&server);
    let begun = Instant::now();
    let lock = client.reentrant_lock("least").with_lease(LEASE).with_hold_at_least(FIRST);
    let guard = lock.lock_owned().unwrap();
    guard.extend(HOUR).unwrap();
    assert!(guard.remaining() > LONG_LEASE);
    guard.unlock().unwrap();
    assert!(lock.is_locked().unwrap());
    leaves_nothing(&server);
    assert!(begun.elapsed() >= FIRST * 9 / 10, "{:?}", begun.elapsed());
}

#[test]
fn an_extended_fenced_lock_keeps_its_owner_and_token() {
    let server = server();
    let client = client(&server);
    let guard = client.fenced_lock("fenced").with_lease(FIRST).lock_owned().unwrap();
    let before = (guard.owner(), guard.token());
    guard.extend(HOUR).unwrap();
    assert!(guard.remaining() > LONG_LEASE);
    assert_eq!((guard.owner(), guard.token()), before);
    guard.unlock().unwrap();
    assert!(!client.fenced_lock("fenced").is_locked().unwrap());
}

/// Readers of a process share a hold, and each reader's lease has its own end.
#[test]
fn a_reader_extends_only_its_own_lease() {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = (client.read_write_lock("shared"), other.read_write_lock("shared"));
    let watched = lock.reader().lock_owned().unwrap();
    let extended = lock.reader().with_lease(FIRST).lock_owned().unwrap();
    let short = lock.reader().with_lease(FIRST).lock_owned().unwrap();
    extended.extend(HOUR).unwrap();
    assert!(extended.remaining() > LONG_LEASE && short.remaining() <= FIRST);
    // The server's lease is already longer, because of the watched hold.
    short.extend(FIRST * 2).unwrap();
    assert!(short.remaining() > FIRST && short.remaining() <= FIRST * 2);
    assert_eq!(watched.extend(HOUR).unwrap_err().kind(), ErrorKind::Config);
    watched.unlock().unwrap();
    drop(short);
    // Time must pass here, because the test measures leases.
    std::thread::sleep(FIRST + TIME_UNIT);
    assert_eq!(extended.state(), HoldState::Held);
    assert!(theirs.writer().try_lock().unwrap().into_option().is_none());
    // The reader with the longer lease has left, so this hold ends with this reader's own lease.
    let last = lock.reader().with_lease(LEASE).lock_owned().unwrap();
    extended.unlock().unwrap();
    let writing =
        theirs.writer().try_lock_for(TIMEOUT).unwrap().into_option().expect("it has ended");
    assert_eq!(last.state(), HoldState::Lost(LostReason::LeaseExpired));
    assert_eq!(last.extend(HOUR).unwrap_err().kind(), ErrorKind::LeaseLost);
    writing.unlock().unwrap();
    leaves_nothing(&server);
}

#[test]
fn threads_that_extend_one_guard_at_once_agree() {
    let server = server();
    let client = client(&server);
    let rw = client.read_write_lock("agree");
    let locks: [&dyn Lock; 2] = [
        &client.reentrant_lock("agree:too").with_lease(LONG_LEASE),
        &rw.reader().with_lease(LONG_LEASE),
    ];
    for lock in locks {
        let beside = lock.try_lock_owned().unwrap().into_option().unwrap();
        let guard = lock.try_lock_owned().unwrap().into_option();
        let guard = guard.as_ref().unwrap_or(&beside);
        std::thread::scope(|scope| {
            for hours in 1..8 {
                scope.spawn(move || guard.extend(HOUR * hours).unwrap());
            }
        });
        assert!(guard.remaining() > HOUR * 6);
    }
    leaves_nothing(&server);
}
