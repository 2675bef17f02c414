//! Readers and writers of both libraries.

use super::*;

#[test]
fn readers_of_both_read_together_and_keep_writers_of_both_out() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let lock = client.read_write_lock("book");
        let [read, write] = [Kind::Read, Kind::Write].map(|kind| kind.named("book"));
        // Each library's reader once leaves first, while the other library's reader still reads.
        for ours_first in [true, false] {
            java.run("a", &format!("lock {read}"));
            let reading = lock.reader().lock().unwrap();
            assert!(java.says("b", &format!("tryLock {read}")));
            java.run("b", &format!("unlock {read}"));
            let no_writer = |java: &mut Redisson| {
                assert!(!java.says("w", &format!("tryLock {write}")));
                let write = lock.writer().clone();
                assert!(elsewhere(move || write.try_lock().unwrap().into_option().is_none()));
            };
            no_writer(&mut java);
            if ours_first {
                reading.unlock().unwrap();
                no_writer(&mut java);
                assert!(java.says("a", &format!("isHeld {read}")));
                java.run("a", &format!("unlock {read}"));
            } else {
                java.run("a", &format!("unlock {read}"));
                no_writer(&mut java);
                assert!(reading.is_held());
                reading.unlock().unwrap();
            }
            assert!(java.says("w", &format!("tryLock {write}")));
            java.run("w", &format!("unlock {write}"));
        }
    });
}

#[test]
fn a_writers_release_lets_all_readers_of_both_in() {
    beside_redisson(|version| {
        let server = server();
        let (client, other) = (watched(&server, SHORT_LEASE), watched(&server, SHORT_LEASE));
        let mut java = Redisson::at(&Jvm::shared(version), &server.url(), SHORT_LEASE);
        let [read, write] = [Kind::Read, Kind::Write].map(|kind| kind.named("book"));
        for ours_writes in [true, false] {
            once_within(WAKE_WITHIN, || {
                let lock = client.read_write_lock("book");
                let writing = ours_writes.then(|| lock.writer().lock().unwrap());
                if !ours_writes {
                    java.run("w", &format!("lock {write}"));
                }
                let readers = ["a", "b", "c"];
                Kind::Read.redisson_waits(&mut java, &readers, "book");
                let here: Vec<_> = (0..3)
                    .map(|_| {
                        let read = other.read_write_lock("book").reader().clone();
                        let waits = spawn(move || read.lock_owned().unwrap());
                        waits.wait_queued();
                        waits
                    })
                    .collect();
                match writing {
                    Some(guard) => guard.unlock().unwrap(),
                    None => java.run("w", &format!("unlock {write}")),
                }
                let released = Instant::now();
                // All readers hold the lock at the same time.
                let guards: Vec<_> = here.into_iter().map(Running::join).collect();
                for thread in readers {
                    assert_eq!(java.reply(thread), "ok");
                }
                let took = released.elapsed();
                assert!(guards.iter().all(|guard| guard.is_held()));
                for thread in readers {
                    java.run(thread, &format!("unlock {read}"));
                }
                guards.into_iter().for_each(|guard| guard.unlock().unwrap());
                took
            });
        }
    });
}

#[test]
fn the_last_reader_of_either_lets_the_others_writer_in() {
    beside_redisson(|version| {
        let server = server();
        let client = watched(&server, SHORT_LEASE);
        let mut java = Redisson::at(&Jvm::shared(version), &server.url(), SHORT_LEASE);
        let lock = client.read_write_lock("book");
        let [read, write] = [Kind::Read, Kind::Write].map(|kind| kind.named("book"));
        woken_by_message(|| {
            java.run("a", &format!("lock {read}"));
            let reading = lock.reader().lock().unwrap();
            let writer = lock.writer().clone();
            let writes = spawn(move || writer.lock().unwrap().unlock().unwrap());
            writes.wait_queued();
            reading.unlock().unwrap();
            assert!(!writes.is_finished());
            java.run("a", &format!("unlock {read}"));
            writes.join();
        });
        once_within(WAKE_WITHIN, || {
            java.run("a", &format!("lock {read}"));
            let reading = lock.reader().lock().unwrap();
            Kind::Write.redisson_waits(&mut java, &["w"], "book");
            java.run("a", &format!("unlock {read}"));
            reading.unlock().unwrap();
            let released = Instant::now();
            assert_eq!(java.reply("w"), "ok");
            java.run("w", &format!("unlock {write}"));
            released.elapsed()
        });
    });
}

/// When a writer downgrades to a reader, Redisson publishes no message.
#[test]
fn a_writer_that_goes_on_as_a_reader_keeps_writers_of_the_other_out_and_lets_readers_in() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let lock = client.read_write_lock("book");
        let [read, write] = [Kind::Read, Kind::Write].map(|kind| kind.named("book"));
        java.run("a", &format!("lock {write}"));
        java.run("a", &format!("lock {read}"));
        assert!(lock.reader().try_lock().unwrap().into_option().is_none());
        java.run("a", &format!("unlock {write}"));
        assert!(lock.writer().try_lock().unwrap().into_option().is_none());
        lock.reader().try_lock().unwrap().into_option().expect("others read").unlock().unwrap();
        java.run("a", &format!("unlock {read}"));
        let writing = lock.writer().lock().unwrap();
        let reading = lock.reader().lock().unwrap();
        assert!(!java.says("a", &format!("tryLock {read}")));
        writing.unlock().unwrap();
        assert!(!java.says("a", &format!("tryLock {write}")));
        assert!(java.says("a", &format!("tryLock {read}")));
        java.run("a", &format!("unlock {read}"));
        assert!(reading.is_held());
        reading.unlock().unwrap();
        assert!(!java.says("a", &format!("isLocked {read}")));
    });
}
