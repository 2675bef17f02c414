//! Locks that are held for a least time, whatever becomes of their holder.

use super::*;
use redlatch_testkit::{Job, Worker};

over_all_kinds! {
    a_release_before_the_least_time_leaves_it_taken_until_then
    work_that_takes_longer_keeps_it_and_its_end_releases_it
    no_least_time_is_an_ordinary_lock
}

/// The least time here.
const LEAST: Duration = Duration::from_millis(6 * UNIT.as_millis() as u64);

fn a_release_before_the_least_time_leaves_it_taken_until_then(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let theirs = kind.make(&another(&server), "least");
    for owned in [true, false] {
        let client = client(&server);
        let lock = (kind.least)(&client, "least", LEAST);
        let begun = Instant::now();
        if owned {
            lock.try_lock_owned().unwrap().unwrap().unlock().unwrap();
        } else {
            let guard = lock.lock().unwrap();
            assert_eq!(lock.hold_count(), 1, "one guard is one level");
            guard.on_lost(|why| panic!("nothing is lost: {why}"));
            drop(guard);
        }
        assert_eq!(lock.hold_count(), 0);
        let is_taken = lock.try_lock().unwrap().is_none() && theirs.try_lock().unwrap().is_none();
        // On a machine that stood still the time may be over.
        assert!(is_taken || begun.elapsed() >= LEAST);
        client.shutdown();
        let guard = theirs.lock().unwrap();
        let took = begun.elapsed();
        assert!(took >= LEAST, "{took:?}");
        guard.unlock().unwrap();
    }
    leaves_nothing(&server);
}

fn work_that_takes_longer_keeps_it_and_its_end_releases_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = ((kind.least)(&client, "work", UNIT), kind.make(&other, "work"));
    let guard = lock.lock().unwrap();
    let again = lock.lock().unwrap();
    std::thread::sleep(UNIT * 3);
    assert!(guard.is_held() && theirs.try_lock().unwrap().is_none());
    again.unlock().unwrap();
    // The second level's least time counts as well.
    std::thread::sleep(UNIT * 2);
    guard.unlock().unwrap();
    theirs.try_lock().unwrap().expect("it was released").unlock().unwrap();
    leaves_nothing(&server);
}

fn no_least_time_is_an_ordinary_lock(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = ((kind.least)(&client, "none", Duration::ZERO), kind.make(&other, "none"));
    let guard = lock.lock().unwrap();
    guard.on_lost(|why| panic!("nothing is lost: {why}"));
    std::thread::sleep(UNIT);
    assert!(guard.is_held() && theirs.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    theirs.lock().unwrap().unlock().unwrap();
    leaves_nothing(&server);
}

/// To the process's gate a guard of no thread is nobody it knows.
#[test]
fn an_owned_reader_beside_others_has_it_for_its_least_time() {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let (lock, theirs) = (client.read_write_lock("beside"), other.read_write_lock("beside"));
    let first = lock.read().lock().unwrap();
    let begun = Instant::now();
    let beside = lock.read().with_hold_at_least(LEAST).lock_owned().unwrap();
    assert!(beside.is_held());
    beside.unlock().unwrap();
    first.unlock().unwrap();
    theirs.write().lock().unwrap().unlock().unwrap();
    let took = begun.elapsed();
    assert!(took >= LEAST, "{took:?}");
    leaves_nothing(&server);
}

/// Where this executable's workers begin: takes the lock once in each interval, and says what it does.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let lock = client.reentrant_lock("hourly").with_watchdog(RENEWED);
    let run = lock.try_once_per(Duration::from_millis(job.arg(1).parse().unwrap())).unwrap();
    job.say(if run.is_some() { "runs" } else { "does not run" });
    let _ = job.wait_line();
    drop(run);
    job.say("is done");
    let _ = job.wait_line();
    drop((lock, client));
    job.say("has ended");
    let _ = job.wait_line();
}

#[test]
fn of_many_processes_one_runs_once_in_each_interval_wherever_it_is_killed() {
    let _bounded = bounded();
    let server = server();
    let interval = LEAST * 3;
    let millis = interval.as_millis().to_string();
    let start = || Worker::spawn_test("at_least::worker", "worker", &[&server.url(), &millis]);
    let lock = client(&server).reentrant_lock("hourly");
    // In its work, when it is done, when its client has ended.
    for killed_after in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
        let begun = Instant::now();
        let mut runs = start();
        runs.expect_line("runs", SOON);
        let mut others = [start(), start()];
        for other in &mut others {
            other.expect_line("does not run", SOON);
        }
        for line in ["is done", "has ended"].into_iter().take(killed_after) {
            runs.send_line("go on");
            runs.expect_line(line, SOON);
        }
        runs.sigkill();
        let mut next = None;
        wait_until("the next one runs", SOON, || {
            next = lock.try_once_per(interval).unwrap();
            next.is_some()
        });
        let took = begun.elapsed();
        assert!(took >= interval, "{killed_after}: {took:?}");
        assert!(lock.force_unlock().unwrap());
        others.iter_mut().for_each(Worker::sigkill);
    }
}
