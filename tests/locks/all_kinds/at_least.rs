//! Locks that stay taken for a minimum time, whatever happens to their holder.

use super::*;
use redlatch::Taken;
use redlatch_testkit::{Job, Worker};

over_all_kinds! {
    a_release_before_the_least_time_leaves_it_taken_until_then
    the_least_time_is_not_a_millisecond_short
    work_that_takes_longer_keeps_it_and_its_end_releases_it
    no_least_time_is_an_ordinary_lock
    an_error_leaves_it_free_though_the_server_has_it_for_the_least_time
    an_outage_right_after_a_hand_over_does_not_end_the_wait
    the_limit_of_a_wait_counts_after_a_hand_over_too
    a_short_lease_that_was_handed_on_is_kept_for_the_least_time
    its_end_shortens_a_longer_lease_and_the_first_in_line_hears_of_that
}

/// The minimum time in these tests.
const LEAST: Duration = Duration::from_millis(6 * TIME_UNIT.as_millis() as u64);

fn a_release_before_the_least_time_leaves_it_taken_until_then(kind: Kind) {
    let server = server();
    let theirs = kind.make(&another(&server), "least");
    for owned in [true, false] {
        let client = client(&server);
        let lock = (kind.least)(&client, "least", LEAST);
        let begun = Instant::now();
        if owned {
            lock.try_lock_owned().unwrap().into_option().unwrap().unlock().unwrap();
        } else {
            let guard = lock.lock().unwrap();
            assert_eq!(lock.hold_count(), 1, "one guard is one level");
            guard.on_lost(|why| panic!("nothing is lost: {why}"));
            drop(guard);
        }
        assert_eq!(lock.hold_count(), 0);
        let is_taken = lock.try_lock().unwrap().into_option().is_none()
            && theirs.try_lock().unwrap().into_option().is_none();
        // On a machine that stood still, the time may be over.
        assert!(is_taken || begun.elapsed() >= LEAST);
        client.shutdown();
        let guard = theirs.lock().unwrap();
        let took = begun.elapsed();
        assert!(took >= LEAST, "{took:?}");
        guard.unlock().unwrap();
    }
    leaves_nothing(&server);
}

/// The server counts leases in whole milliseconds.
fn the_least_time_is_not_a_millisecond_short(kind: Kind) {
    const LEAST: Duration = Duration::from_micros(9_900);
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = ((kind.least)(&client, "exact", LEAST), kind.make(&other, "exact"));
    for _ in 0..40 {
        let begun = Instant::now();
        lock.lock().unwrap().unlock().unwrap();
        let guard = loop {
            if let Some(guard) = theirs.try_lock().unwrap().into_option() {
                break guard;
            }
        };
        let took = begun.elapsed();
        assert!(took >= LEAST, "{took:?}");
        guard.unlock().unwrap();
    }
    leaves_nothing(&server);
}

fn work_that_takes_longer_keeps_it_and_its_end_releases_it(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = ((kind.least)(&client, "work", TIME_UNIT), kind.make(&other, "work"));
    let guard = lock.lock().unwrap();
    let again = lock.lock().unwrap();
    std::thread::sleep(TIME_UNIT * 3);
    assert!(guard.is_held() && theirs.try_lock().unwrap().into_option().is_none());
    again.unlock().unwrap();
    // The re-entry has a minimum time as well.
    std::thread::sleep(TIME_UNIT * 2);
    guard.unlock().unwrap();
    theirs.try_lock().unwrap().into_option().expect("it was released").unlock().unwrap();
    leaves_nothing(&server);
}

fn no_least_time_is_an_ordinary_lock(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = ((kind.least)(&client, "none", Duration::ZERO), kind.make(&other, "none"));
    let guard = lock.lock().unwrap();
    guard.on_lost(|why| panic!("nothing is lost: {why}"));
    std::thread::sleep(TIME_UNIT);
    assert!(guard.is_held() && theirs.try_lock().unwrap().into_option().is_none());
    guard.unlock().unwrap();
    theirs.lock().unwrap().unlock().unwrap();
    leaves_nothing(&server);
}

/// The call returns an error, although the server has granted the lock for an hour. The client must
/// release this lock.
fn an_error_leaves_it_free_though_the_server_has_it_for_the_least_time(kind: Kind) {
    let server = server();
    let proxy = Proxy::before(&server);
    let (client, other) = (impatient(&proxy.url()).connect().unwrap(), client(&server));
    let theirs = kind.make(&other, "error");
    let lock = (kind.least)(&client, "error", HOUR);
    let error = error_after_a_grant(&theirs, &proxy, move || lock.lock().map(drop));
    assert!(error.kind().is_server_trouble() && error.outcome_unknown(), "{error}");
    theirs.try_lock_for(TIMEOUT).unwrap().into_option().expect("nobody has it").unlock().unwrap();
    leaves_nothing(&server);
}

fn an_outage_right_after_a_hand_over_does_not_end_the_wait(kind: Kind) {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let theirs = kind.make(&another(&server), "outage");
    // The test repeats this step, because the reply may arrive just when the request fails.
    wait_until("a request fails after a grant", TIMEOUT, || {
        let held = theirs.lock().unwrap();
        let lock = (kind.least)(&client, "outage", HOUR);
        let waiter = spawn(move || lock.lock().map(drop));
        waiter.wait_queued();
        // The replies to two requests and to their copies are lost.
        after_a_grant(&proxy, 4, Action::LoseReply);
        held.unlock().unwrap();
        waiter.join().unwrap();
        proxy.clear_rules();
        let left = theirs.remaining_lease().unwrap().unwrap();
        assert!(left > HOUR - LONG_LEASE, "{left:?}");
        assert!(theirs.force_unlock().unwrap());
        proxy.fired() > 0
    });
}

fn the_limit_of_a_wait_counts_after_a_hand_over_too(kind: Kind) {
    let server = server();
    let proxy = Proxy::before(&server);
    let client =
        Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).response_timeout(LONG_LEASE);
    let client = client.connect().unwrap();
    let theirs = kind.make(&another(&server), "limit");
    wait_until("a request has no reply after a grant", TIMEOUT, || {
        let held = theirs.lock().unwrap();
        let lock = (kind.least)(&client, "limit", HOUR);
        let waiter = spawn(move || {
            let begun = Instant::now();
            (
                lock.try_lock_for(TIME_UNIT * 15).map(|got| got.into_option().is_some()),
                begun.elapsed(),
            )
        });
        waiter.wait_queued();
        after_a_grant(&proxy, 1, Action::HoldReply);
        held.unlock().unwrap();
        let (got, took) = waiter.join();
        proxy.clear_rules();
        proxy.release();
        if let Ok(true) = got {
            assert!(theirs.force_unlock().unwrap());
            return false;
        }
        assert!(took < TIMEOUT, "{got:?} after {took:?}");
        theirs
            .try_lock_for(TIMEOUT)
            .unwrap()
            .into_option()
            .expect("nobody has it")
            .unlock()
            .unwrap();
        true
    });
}

/// A grant by message lasts for 2 s at first, which is longer than the lease.
fn a_short_lease_that_was_handed_on_is_kept_for_the_least_time(kind: Kind) {
    let server = server();
    let (client, other) = (watched(&server, TIME_UNIT * 15), another(&server));
    let theirs = kind.make(&other, "short");
    once_within(TIME_UNIT * 14, || {
        let held = theirs.lock().unwrap();
        let lock = (kind.least)(&client, "short", LEAST);
        let waiter = spawn(move || lock.lock().map(drop));
        waiter.wait_queued();
        let begun = Instant::now();
        held.unlock().unwrap();
        waiter.join().unwrap();
        theirs.lock().unwrap().unlock().unwrap();
        let took = begun.elapsed();
        assert!(took >= LEAST, "{took:?}");
        took
    });
    leaves_nothing(&server);
}

/// The waiter knows only the end of the longer lease, and the holder's client has ended. So only a
/// message about the earlier end can wake the waiter in time.
fn its_end_shortens_a_longer_lease_and_the_first_in_line_hears_of_that(kind: Kind) {
    let server = server();
    let other = another(&server);
    let (least, theirs) = (TIME_UNIT * 3, kind.make(&other, "shortened"));
    woken_by_message(|| {
        let client = watched(&server, LONG_LEASE);
        let begun = Instant::now();
        let guard = (kind.least)(&client, "shortened", least).lock().unwrap();
        let waiter = {
            let theirs = Arc::clone(&theirs);
            spawn(move || theirs.lock().unwrap().unlock().unwrap())
        };
        waiter.wait_queued();
        drop(guard);
        client.shutdown();
        waiter.join();
        let took = begun.elapsed();
        assert!(took >= least, "{took:?}");
    });
    leaves_nothing(&server);
}

/// An owned guard belongs to no thread, so the process does not know which thread reads.
#[test]
fn an_owned_reader_beside_others_reads_for_its_least_time() {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = (client.read_write_lock("beside"), other.read_write_lock("beside"));
    let first = lock.reader().lock().unwrap();
    let begun = Instant::now();
    let beside = lock.reader().with_hold_at_least(LEAST).lock_owned().unwrap();
    assert!(beside.is_held());
    beside.unlock().unwrap();
    first.unlock().unwrap();
    theirs.writer().lock().unwrap().unlock().unwrap();
    let took = begun.elapsed();
    assert!(took >= LEAST, "{took:?}");
    leaves_nothing(&server);
}

/// The entry point of the worker processes, which run this executable with only this test. A worker
/// takes the lock once in each interval, and reports its runs.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let lock = client.reentrant_lock("hourly").with_watchdog(SHORT_LEASE);
    let run = lock.try_once_per(Duration::from_millis(job.arg(1).parse().unwrap())).unwrap();
    job.say(if matches!(run, Taken(_)) { "runs" } else { "does not run" });
    let _ = job.wait_line();
    drop(run);
    job.say("is done");
    let _ = job.wait_line();
    drop((lock, client));
    job.say("has ended");
    let _ = job.wait_line();
}

#[test]
fn with_a_least_time_one_process_runs_in_each_interval_wherever_it_is_killed() {
    let server = server();
    let interval = LEAST * 3;
    let millis = interval.as_millis().to_string();
    let start =
        || Worker::spawn_test("all_kinds::at_least::worker", "worker", &[&server.url(), &millis]);
    let lock = client(&server).reentrant_lock("hourly");
    // Kill the worker during its work, after its work, or after its client has ended.
    for killed_after in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
        let begun = Instant::now();
        let mut runs = start();
        runs.expect_line("runs", TIMEOUT);
        let mut others = [start(), start()];
        for other in &mut others {
            other.expect_line("does not run", TIMEOUT);
        }
        for line in ["is done", "has ended"].into_iter().take(killed_after) {
            runs.send_line("go on");
            runs.expect_line(line, TIMEOUT);
        }
        runs.sigkill();
        let mut next = None;
        wait_until("the next one runs", TIMEOUT, || {
            next = lock.try_once_per(interval).unwrap().into_option();
            next.is_some()
        });
        let took = begun.elapsed();
        assert!(took >= interval, "{killed_after}: {took:?}");
        assert!(lock.force_unlock().unwrap());
        others.iter_mut().for_each(Worker::sigkill);
    }
}

/// The server runs the command that shortens the hold only after the hold should have ended. The
/// writer also reads, so the end of the write lease does not free the lock.
#[test]
fn a_write_lock_ends_at_its_least_time_though_the_server_was_slow() {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (ours, theirs) = (client.read_write_lock("slow"), other.read_write_lock("slow"));
    let writing = ours.writer().with_hold_at_least(LEAST).lock().unwrap();
    let reading = ours.reader().lock().unwrap();
    let pause = (LEAST + TIME_UNIT).as_millis().to_string();
    let () = redis::cmd("CLIENT")
        .arg(&["PAUSE", &pause, "ALL"])
        .query(&mut server.connection())
        .unwrap();
    drop(writing);
    let beside = theirs.reader().try_lock_for(TIMEOUT).unwrap();
    assert!(matches!(beside, Taken(_)), "its field is there as long as the writer reads");
    drop((beside, reading));
}
