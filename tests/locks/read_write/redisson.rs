//! Read-write locks that redlatch and Redisson share.

use super::*;

const JAVA: &str = "7a1c3f5e-0b2d-4c6e-8f01-23456789abcd";

/// A Redisson client, 4.7 or 3.16.8, which runs Redisson's scripts.
struct Java {
    redis: Connection,
    name: String,
    thread: u64,
    is_new: bool,
}

impl Java {
    fn new(server: &Server, name: &str, thread: u64, is_new: bool) -> Self {
        Self { redis: server.connection(), name: name.to_owned(), thread, is_new }
    }

    fn owner(&self) -> String {
        format!("{JAVA}:{}", self.thread)
    }

    fn eval(&mut self, code: &str, keys: &[String], args: &[String]) -> Option<i64> {
        redis::cmd("EVAL")
            .arg(code)
            .arg(keys.len())
            .arg(keys)
            .arg(args)
            .query(&mut self.redis)
            .unwrap()
    }

    fn timeouts(&self) -> String {
        format!("{{{}}}:{}:rwlock_timeout", self.name, self.owner())
    }

    /// Tries to read. Returns whether the client has the lock.
    fn reads(&mut self) -> bool {
        let keys = [self.name.clone(), self.timeouts()];
        let args = ["60000".to_owned(), self.owner(), format!("{}:write", self.owner())];
        self.eval(include_str!("../../models/read_write/redisson/read_acquire.lua"), &keys, &args)
            .is_none()
    }

    fn writes(&mut self) -> bool {
        let args = ["60000".to_owned(), format!("{}:write", self.owner())];
        let keys = [self.name.clone()];
        self.eval(include_str!("../../models/read_write/redisson/write_acquire.lua"), &keys, &args)
            .is_none()
    }

    fn leave(&mut self, code: &str, mut keys: Vec<String>, mut args: Vec<String>) -> Option<i64> {
        if self.is_new {
            keys.push(format!("redisson_unlock_latch:{{{}}}:{}", self.name, self.thread));
            args.extend(["publish".to_owned(), "1000".to_owned()]);
        }
        let left = self.eval(code, &keys, &args);
        let latch = keys.last().unwrap().clone();
        if self.is_new {
            let () = self.redis.del(latch).unwrap();
        }
        left
    }

    fn reads_no_more(&mut self) -> Option<i64> {
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        let prefix = format!("{{{}}}", self.name);
        let keys = vec![self.name.clone(), channel, self.timeouts(), prefix];
        let args = vec!["0".to_owned(), self.owner()];
        self.leave(include_str!("../../models/read_write/redisson/read_unlock.lua"), keys, args)
    }

    fn writes_no_more(&mut self) -> Option<i64> {
        let channel = format!("redisson_rwlock:{{{}}}", self.name);
        let keys = vec![self.name.clone(), channel];
        let args = vec!["1".to_owned(), "60000".to_owned(), format!("{}:write", self.owner())];
        self.leave(include_str!("../../models/read_write/redisson/write_unlock.lua"), keys, args)
    }
}

/// The cut shortens only the reader's own time. If it shortened the times of the others, a writer
/// would get the lock while they read.
#[test]
fn a_reader_that_is_kept_for_a_while_leaves_the_leases_of_all_others() {
    let server = server();
    let (client, other) = (watched(&server, HOUR * 2), client(&server));
    let least = TIME_UNIT * 3;
    let mut redis = server.connection();
    let mut java = Java::new(&server, "kept", 7, true);
    for is_javas in [true, false] {
        let reading = if is_javas {
            assert!(java.reads());
            None
        } else {
            let lock = other.read_write_lock("kept").reader().with_lease(HOUR);
            Some(lock.lock_owned().unwrap())
        };
        let longest = if is_javas { LONG_LEASE } else { HOUR };
        let others = timeouts(&mut redis, "kept");
        let lock = client.read_write_lock("kept");
        drop(lock.reader().with_hold_at_least(least).lock_owned().unwrap());
        let kept: Vec<_> =
            timeouts(&mut redis, "kept").into_iter().filter(|it| !others.contains(it)).collect();
        let of = |time: Duration| i64::try_from(time.as_millis()).unwrap();
        wait_until("both are shortened", TIMEOUT, || {
            kept.iter().all(|it| pttl(&mut redis, it) <= of(least))
                && pttl(&mut redis, "kept") <= of(longest)
        });
        let writer = elsewhere({
            let lock = other.read_write_lock("kept");
            // Whatever the last reply was, the waiter sends another request within this time.
            move || lock.writer().try_lock_for(TIME_UNIT * 15).unwrap().into_option().is_some()
        });
        assert!(!writer, "it would write beside {}", if is_javas { "Redisson's" } else { "ours" });
        match reading {
            Some(guard) => guard.unlock().unwrap(),
            None => assert_eq!(java.reads_no_more(), Some(1)),
        }
        wait_until("nobody has it", TIMEOUT, || !redis.exists::<_, bool>("kept").unwrap());
    }
}

#[test]
fn redissons_readers_and_writers_and_ours_exclude_each_other() {
    let server = server();
    for is_new in [true, false] {
        let lock = client(&server).read_write_lock("java");
        let mut java = Java::new(&server, "java", 7, is_new);
        let mut second = Java::new(&server, "java", 8, is_new);
        // Both readers hold the lock. The release of one reader does not touch the hold of the
        // other.
        let reading = lock.reader().lock().unwrap();
        assert!(java.reads() && java.reads());
        assert!(!second.writes() && lock.writer().is_locked().is_ok_and(|written| !written));
        assert!(elsewhere({
            let lock = lock.clone();
            move || lock.writer().try_lock().unwrap().into_option().is_none()
        }));
        reading.unlock().unwrap();
        assert!(!second.writes(), "its reader is there");
        let reading = lock.reader().lock().unwrap();
        assert_eq!(java.reads_no_more(), Some(0));
        assert_eq!(java.reads_no_more(), Some(0), "ours reads on");
        assert!(reading.is_held() && !second.writes());
        reading.unlock().unwrap();
        // Redisson's writers exclude all others.
        assert!(java.writes() && java.writes());
        assert!(lock.reader().try_lock().unwrap().into_option().is_none());
        assert!(lock.writer().try_lock().unwrap().into_option().is_none());
        assert_eq!(java.writes_no_more(), Some(0));
        assert!(lock.reader().try_lock().unwrap().into_option().is_none());
        assert_eq!(java.writes_no_more(), Some(1));
        let writing = lock.writer().lock().unwrap();
        assert!(!java.reads() && !java.writes());
        let reading = lock.reader().lock().unwrap();
        assert!(!java.reads() && !java.writes());
        writing.unlock().unwrap();
        assert!(java.reads() && !second.writes());
        reading.unlock().unwrap();
        assert_eq!(java.reads_no_more(), Some(1));
        wait_left(&server, "java");
    }
}

/// Returns the time until a waiter is granted the lock by a release that directly follows its
/// request.
fn let_in(server: &Server, guest: &Guest, release: impl FnOnce()) -> Duration {
    guest.thread.wait_queued();
    let asked = Commands::so_far(server).scripts();
    wait_until("it asks again", TIMEOUT, || Commands::so_far(server).scripts() > asked);
    let released = Instant::now();
    release();
    guest.wait_in() - released
}

#[test]
fn a_waiter_behind_redisson_is_let_in_by_its_release() {
    let server = server();
    for is_new in [true, false] {
        let lock = client(&server).read_write_lock("woken");
        let mut java = Java::new(&server, "woken", 7, is_new);
        // Try again, because the machine may have kept a thread from running.
        let heard = (0..5).any(|_| {
            assert!(java.reads());
            let writer = Guest::of(lock.writer());
            wait_queue(&server, "woken", 1);
            wait_subscribed(&server, "redisson_rwlock:{woken}");
            let to_write = let_in(&server, &writer, || assert_eq!(java.reads_no_more(), Some(1)));
            writer.leaves();
            assert!(java.writes());
            let reader = Guest::of(lock.reader());
            wait_queue(&server, "woken", 1);
            wait_subscribed(&server, "redisson_rwlock:{woken}");
            let to_read = let_in(&server, &reader, || assert_eq!(java.writes_no_more(), Some(1)));
            reader.leaves();
            wait_left(&server, "woken");
            to_write.max(to_read) < MIN_POLL_INTERVAL
        });
        assert!(heard, "it asked, and did not hear");
    }
}

/// Redisson's readers get only public messages, and may read together with redlatch's readers.
#[test]
fn a_writers_release_that_lets_readers_in_is_said_in_public() {
    let server = server();
    for forced in [false, true] {
        let lock = client(&server).read_write_lock("said");
        let writing = lock.writer().lock().unwrap();
        let reader = Guest::of(client(&server).read_write_lock("said").reader());
        wait_queue(&server, "said", 1);
        let mut connection = server.connection();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut java = connection.as_pubsub();
        java.subscribe("redisson_rwlock:{said}").unwrap();
        if forced {
            assert!(lock.writer().force_unlock().unwrap());
            drop(writing);
        } else {
            writing.unlock().unwrap();
        }
        reader.wait_in();
        assert_eq!(java.get_message().unwrap().get_payload::<String>().unwrap(), "1");
        reader.leaves();
        wait_left(&server, "said");
    }
}
