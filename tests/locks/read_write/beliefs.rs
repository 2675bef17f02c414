//! Holds that a process believes that it has, although the server has lost them.

use super::*;

/// A guard still has a hold that was deleted at the server. A thread that gets a new grant must not
/// join the deleted hold.
#[test]
fn a_reader_let_in_beside_a_hold_that_the_server_lost_has_one_of_its_own() {
    let server = server();
    // The server does not report the loss to this client.
    let untold = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).client_tracking(false);
    let lock = untold.connect().unwrap().read_write_lock("stale");
    let other = client(&server).read_write_lock("stale");
    let mut redis = server.connection();
    let stale = lock.reader().lock().unwrap();
    let writer = Guest::of(other.writer());
    wait_queue(&server, "stale", 1);
    // Wait for the end of the process's turn. During the turn, the process would let the reader in
    // without a request.
    thread::sleep(Duration::from_millis(20));
    let reader = Guest::of(lock.reader());
    wait_queue(&server, "stale", 2);
    // No process gets a message, so the writer finds the free lock at its next request.
    let () = redis.del("stale").unwrap();
    writer.wait_in();
    assert!(stale.is_held(), "it has not asked since");
    writer.leaves();
    reader.wait_in();
    assert_eq!(mode(&mut redis, "stale").as_deref(), Some("read"));
    assert!(other.writer().try_lock().unwrap().into_option().is_none(), "past a reader");
    assert!(!stale.is_held());
    assert_eq!(stale.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    reader.leaves();
    // The timeout keys of a deleted lock expire by themselves.
    wait_free(&server, "stale", TIMEOUT);
}

#[test]
fn a_writer_that_is_let_in_is_alone_in_its_process_too() {
    let server = server();
    let lock = client(&server).read_write_lock("alone");
    let mut redis = server.connection();
    let stale = lock.reader().lock().unwrap();
    let () = redis.del("alone").unwrap();
    let writer = Guest::of(lock.writer());
    writer.wait_in();
    assert!(!stale.is_held());
    writer.leaves();
    wait_free(&server, "alone", TIMEOUT);
}

#[test]
fn a_forced_unlock_of_a_writer_ends_its_read_hold_too() {
    let server = server();
    let lock = client(&server).read_write_lock("both");
    let writing = lock.writer().lock().unwrap();
    let reading = lock.reader().lock().unwrap();
    let (tell, told) = mpsc::channel();
    reading.on_lost(move |why| tell.send(why).unwrap());
    assert!(lock.writer().force_unlock().unwrap());
    assert!(!writing.is_held() && !reading.is_held());
    assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), LostReason::ForceUnlocked);
    assert_eq!(reading.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(writing.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    let writing = lock.writer().lock().unwrap();
    assert!(!lock.reader().force_unlock().unwrap());
    assert!(writing.is_held());
    writing.unlock().unwrap();
    wait_free(&server, "both", TIMEOUT);
}

/// A writer's read hold may end before the reply to its request arrives. The client must not
/// conclude that the write hold has ended.
#[test]
fn a_writer_whose_read_grant_came_too_late_still_writes() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let lock = client.read_write_lock("too-late");
    let (begin, begun) = mpsc::channel();
    let (go_on, told) = mpsc::channel();
    let writer = spawn(move || {
        let writing = lock.writer().lock().unwrap();
        begin.send(()).unwrap();
        told.recv().unwrap();
        let late = lock.reader().with_lease(TIME_UNIT).lock().map(drop).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::ResponseTimeout, "{late}");
        assert!(late.is_transient() && writing.is_held(), "{late}; {writing:?}");
        writing.unlock().unwrap();
    });
    begun.recv_timeout(TIMEOUT).unwrap();
    proxy.on_reply("", Action::HoldReply);
    go_on.send(()).unwrap();
    wait_until("the reply is there", TIMEOUT, || proxy.fired() > 0);
    thread::sleep(2 * TIME_UNIT);
    proxy.release();
    writer.join();
    wait_left(&server, "too-late");
}

/// The hash remains for the reader, so the entry of the write hold stays in it after the end of the
/// write lease.
#[test]
fn a_writer_that_lapsed_and_reads_on_keeps_no_reader_out() {
    let server = server();
    let lock = client(&server).read_write_lock("lapsed");
    let other = client(&server).read_write_lock("lapsed");
    let writing = lock.writer().with_lease(20 * TIME_UNIT).lock().unwrap();
    let reading = lock.reader().lock().unwrap();
    let reader = Guest::of(other.reader());
    wait_queue(&server, "lapsed", 1);
    wait_until("it is lost", TIMEOUT, || !writing.is_held());
    assert_eq!(writing.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    reader.wait_in();
    assert!(reading.is_held());
    let mut redis = server.connection();
    assert_eq!(mode(&mut redis, "lapsed").as_deref(), Some("read"));
    reading.unlock().unwrap();
    reader.leaves();
    wait_left(&server, "lapsed");
}

/// All threads that wanted renewals may leave a shared hold before another thread that wants
/// renewals joins it.
#[test]
fn a_late_reader_that_wants_its_hold_renewed_has_that() {
    let server = server();
    let lease = SHORT_LEASE;
    let lock = watched(&server, lease).read_write_lock("late");
    let first = Guest::of(lock.reader());
    first.wait_in();
    let fixed = Guest::of(&lock.reader().with_lease(lease));
    fixed.wait_in();
    first.leaves();
    // The alarm for the first thread went off while no thread needed a renewal.
    thread::sleep(lease / 2);
    // A thread that gets a grant from the server makes the lease longer. A re-entry does not.
    let outer = lock.reader().with_lease(TIME_UNIT).lock().unwrap();
    let watched = lock.reader().lock().unwrap();
    thread::sleep(lease * 3 / 2);
    assert!(watched.is_held());
    // The leases of the other threads are over by now. Only the renewal has kept the hold.
    outer.unlock().unwrap();
    fixed.leaves();
    watched.unlock().unwrap();
    wait_left(&server, "late");
}

#[test]
fn a_multi_lock_of_read_and_write_locks_is_taken_beside_other_readers() {
    let server = server();
    let client = client(&server);
    let locks = ["one", "two", "three"].map(|name| client.read_write_lock(name));
    let all =
        MultiLock::new([locks[0].reader() as &dyn Lock, locks[1].writer(), locks[2].reader()])
            .unwrap();
    let mut redis = server.connection();
    // If one of the locks is not free, the call leaves no hold on the other locks.
    let other = crate::common::client(&server);
    let writer = Guest::of(other.read_write_lock("three").writer());
    writer.wait_in();
    assert!(all.try_lock().unwrap().into_option().is_none());
    wait_left(&server, "one");
    wait_left(&server, "two");
    writer.leaves();
    // Other threads of the process already read.
    let reading = [Guest::of(locks[0].reader()), Guest::of(locks[2].reader())];
    for guest in &reading {
        guest.wait_in();
    }
    thread::sleep(Duration::from_millis(20));
    let guard = all.try_lock().unwrap().into_option().expect("readers share it");
    // The thread releases its own hold without waiting for the reply.
    wait_until("they have one hold", TIMEOUT, || owners(&mut redis, "one").len() == 1);
    reading.into_iter().for_each(Guest::leaves);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    ["one", "two", "three"].iter().for_each(|name| wait_left(&server, name));
}
