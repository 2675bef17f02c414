//! Read-write locks under faults.

use redlatch::{NotTaken, Taken};

use super::*;

/// The entry point of the worker processes, which run this executable with only this test. A worker
/// waits for reading, reads, and reports that it reads.
#[test]
fn reader() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let lock = client.read_write_lock(job.arg(1));
    job.say("waits");
    let guard = lock.reader().lock().unwrap();
    job.say("reads");
    let _ = job.wait_line();
    job.say(&format!("held {}", guard.is_held()));
    guard.unlock().unwrap();
    job.say("left");
    let _ = job.wait_line();
}

/// Two readers are granted the lock together, for two seconds each. One reader's process is paused
/// for longer, and the other reader keeps the lock in the meantime.
#[test]
fn a_reader_that_stood_still_and_hears_that_it_reads_keeps_writers_out() {
    let server = server();
    let lock = client(&server).read_write_lock("still");
    let writing = lock.writer().lock().unwrap();
    let mut still =
        Worker::spawn_test("read_write::faults::reader", "reader", &[&server.url(), "still"]);
    still.expect_line("waits", TIMEOUT);
    wait_queue(&server, "still", 1);
    let awake = Guest::of(client(&server).read_write_lock("still").reader());
    wait_queue(&server, "still", 2);
    still.sigstop();
    writing.unlock().unwrap();
    awake.wait_in();
    let mut redis = server.connection();
    assert_eq!(owners(&mut redis, "still").len(), 2);
    wait_until("the timeout of the one that stands still lapses", TIMEOUT, || {
        timeouts(&mut redis, "still").len() == 1
    });
    assert_eq!(owners(&mut redis, "still").len(), 2, "the other one keeps its field");
    still.sigcont();
    still.expect_line("reads", TIMEOUT);
    awake.leaves();
    // If the paused reader has lost its hold, its guard must not report that it is held.
    assert!(
        lock.writer().try_lock().unwrap().into_option().is_none(),
        "one writes beside one that reads"
    );
    still.send_line("");
    assert_eq!(still.expect_line("held", TIMEOUT), "true");
    still.expect_line("left", TIMEOUT);
    wait_left(&server, "still");
    still.send_line("");
    still.wait_exit(TIMEOUT);
}

#[test]
fn a_lost_reply_leaves_nothing_behind_and_keeps_no_writer_out() {
    let server = server();
    for step in 0..6 {
        let proxy = Proxy::before(&server);
        let client = impatient(&proxy.url()).connections(1).connect().unwrap();
        let lock = client.read_write_lock("replies");
        lock.reader().lock().unwrap().unlock().unwrap();
        // The reply to one of the next scripts is lost, and its connection breaks.
        let asked = AtomicU64::new(0);
        proxy.on(Direction::Request, 1, Action::LoseReply, move |bytes| {
            let runs = bytes.windows(7).any(|part| part.eq_ignore_ascii_case(b"EVALSHA"));
            runs && asked.fetch_add(1, Ordering::SeqCst) == step
        });
        let outcome: Result<(), Error> = (|| {
            let reading = lock.reader().lock()?;
            reading.unlock()?;
            let writing = lock.writer().lock()?;
            let reading = lock.reader().lock()?;
            writing.unlock()?;
            reading.unlock()
        })();
        if let Err(error) = outcome {
            assert!(error.kind().is_server_trouble(), "{error}");
        }
        let other = crate::common::client(&server).read_write_lock("replies");
        let writing =
            other.writer().try_lock_for(TIMEOUT).unwrap().into_option().expect("nothing is left");
        writing.unlock().unwrap();
        client.shutdown();
        wait_left(&server, "replies");
    }
}

/// If the user may not run a command that a lock needs, there is an error, and no key remains.
#[test]
fn a_right_that_is_missing_leaves_nothing_half_done() {
    let server = server();
    let mut redis = server.connection();
    for (at, command) in [
        "time", "exists", "hexists", "hget", "hgetall", "hkeys", "hset", "hdel", "del", "pexpire",
        "pttl", "set", "lrange", "lpos", "rpush", "lpush", "lpop", "lrem", "llen", "lindex",
        "pubsub", "publish",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("rights-{command}");
        let mut user = User::new(&server, &format!("user{at}"));
        let client = user.client();
        let lock = client.read_write_lock(&name);
        user.set(&[&format!("-{command}")]);
        let other = crate::common::client(&server).read_write_lock(&name);
        for lock in [lock.reader() as &dyn Lock, lock.writer()] {
            match lock.try_lock() {
                Ok(Taken(guard)) => drop(guard.unlock()),
                Ok(NotTaken) => {}
                Err(error) => {
                    let text = format!("{error:#}").to_lowercase();
                    assert!(text.contains("a read-write lock needs"), "{command}: {error:#}");
                }
            }
            let left = pttl(&mut redis, &name);
            assert_ne!(left, -1, "{command}: a lock without an end");
            for timeout in timeouts(&mut redis, &name) {
                assert_ne!(pttl(&mut redis, &timeout), -1, "{command}: a timeout without an end");
            }
        }
        // A lock that was taken before the user lost the right also ends.
        user.set(&["+@all"]);
        let guards = [lock.reader().try_lock_for(TIMEOUT).unwrap()];
        user.set(&[&format!("-{command}")]);
        drop(guards);
        user.set(&["+@all"]);
        let guard = other.writer().try_lock_for(TIMEOUT).unwrap();
        let Taken(guard) = guard else { panic!("{command}: it stays") };
        guard.unlock().unwrap();
        client.shutdown();
        wait_free(&server, &name, TIMEOUT);
        for timeout in timeouts(&mut redis, &name) {
            // Without DEL, the key stays until the end of its lease.
            assert!(command == "del" && pttl(&mut redis, &timeout) != -1, "{command}");
        }
    }
}

#[test]
fn a_release_is_refused_whole_if_its_last_command_lacks_a_right() {
    let server = server();
    let mut redis = server.connection();
    let mut user = User::new(&server, "downward");
    let client = user.client();
    let lock = client.read_write_lock("down");
    let (writing, reading) = (lock.writer().lock().unwrap(), lock.reader().lock().unwrap());
    let before = fields(&mut redis, "down");
    user.set(&["-hset"]);
    let error = writing.unlock().unwrap_err();
    is_clear(&error, "down", "a read-write lock needs");
    assert_eq!(fields(&mut redis, "down"), before);
    user.set(&["+@all"]);
    wait_until("it reads only", TIMEOUT, || mode(&mut redis, "down").as_deref() == Some("read"));
    reading.unlock().unwrap();
    wait_left(&server, "down");
}

/// If the waiter got no error, it would wait for a free lock for ever.
#[test]
fn a_waiter_without_a_right_for_its_grant_gets_an_error() {
    const REDISSON: &str = "aaaaaaaa-0b2d-4c6e-8f01-23456789abcd:7:write";
    let server = server();
    let mut redis = server.connection();
    for (at, right) in ["lpop", "lindex", "pexpire", "exists"].into_iter().enumerate() {
        let mut user = User::new(&server, &format!("stuck{at}"));
        let client = user.client();
        // A holder of redlatch that notices the changes below would grant the lock to the waiter.
        let () = redis.hset_multiple("stuck", &[("mode", "write"), (REDISSON, "1")]).unwrap();
        let () = redis.pexpire("stuck", 30_000).unwrap();
        let guest = Guest::of(client.read_write_lock("stuck").reader());
        wait_queue(&server, "stuck", 1);
        user.set(&[&format!("-{right}")]);
        // No client gets a message, so the waiter sends a request.
        let () = redis.del("stuck").unwrap();
        drop(guest.leave);
        let error = guest.thread.join().unwrap_err();
        is_clear(&error, "stuck", "a read-write lock needs");
        user.set(&["+@all"]);
        wait_left(&server, "stuck");
    }
}

#[test]
fn a_writer_that_may_not_publish_keeps_the_lock() {
    let server = server();
    let mut redis = server.connection();
    let mut user = User::new(&server, "mute");
    let client = user.client();
    let holding = client.read_write_lock("mute").writer().lock().unwrap();
    let next = Guest::of(crate::common::client(&server).read_write_lock("mute").writer());
    wait_queue(&server, "mute", 1);
    let before = (owners(&mut redis, "mute"), queue(&mut redis, "mute"));
    user.set(&["-publish"]);
    is_clear(&holding.unlock().unwrap_err(), "mute", "ACL");
    assert_eq!((owners(&mut redis, "mute"), queue(&mut redis, "mute")), before);
    assert!(!next.is_in());
    // The release is tried again.
    user.set(&["+@all"]);
    next.wait_in();
    next.leaves();
    wait_left(&server, "mute");
}
