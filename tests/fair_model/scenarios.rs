//! The scripts as they are, without a simulated clock: what they cost, and what they do when the
//! server refuses something or something else lies under their keys.

use redis::{Connection, FromRedisValue, RedisResult, Value};
use redlatch_testkit::Server;

use crate::common::real_server;
use crate::store::{CHANNEL, LOCK, QUEUE, Script, Scripts, TIMEOUTS};

const KEYS: [&str; 3] = [LOCK, QUEUE, TIMEOUTS];
const JAVA: &str = "11111111-1111-4111-8111-111111111111:1";

fn ours(number: u32) -> String {
    format!("00000000-0000-8000-8000-000000000000:{number}")
}

/// One connection, and the scripts by what they are for.
struct Direct {
    connection: Connection,
    scripts: Scripts,
}

impl Direct {
    fn new(server: &Server) -> Self {
        Self::over(server.connection())
    }

    fn over(connection: Connection) -> Self {
        Self { connection, scripts: Scripts::ours() }
    }

    fn run<T: FromRedisValue>(&mut self, script: Script, args: &[&str]) -> RedisResult<T> {
        redis::cmd("EVAL")
            .arg(self.scripts.text(script))
            .arg(KEYS.len())
            .arg(&KEYS)
            .arg(args)
            .query(&mut self.connection)
    }

    fn acquire(&mut self, owner: &str, was_queued: bool) -> RedisResult<Vec<Value>> {
        let was_queued = if was_queued { "1" } else { "0" };
        let args = ["30000", owner, "10000", "300000", CHANNEL, was_queued, "15"];
        self.run(Script::Acquire, &args)
    }

    fn takes(&mut self, owner: &str, was_queued: bool) -> bool {
        self.acquire(owner, was_queued).unwrap()[0] == Value::Int(1)
    }

    fn try_lock(&mut self, owner: &str) -> RedisResult<i64> {
        self.run(Script::Try, &["30000", owner, "10000", CHANNEL])
    }

    fn release(&mut self, owner: &str, passed: &[&str]) -> RedisResult<Option<i64>> {
        self.run(Script::Release, &[&[owner, "10000", CHANNEL], passed].concat())
    }

    fn give_up(&mut self, owner: &str) -> RedisResult<i64> {
        self.run(Script::GiveUp, &[owner, "10000", CHANNEL])
    }

    fn keep_alive(&mut self, owners: &[&str]) -> RedisResult<(i64, Vec<String>)> {
        let args = [&["10000", "300000", CHANNEL], owners].concat();
        let reply: Vec<Value> = self.run(Script::KeepAlive, &args)?;
        let mut parts = reply.into_iter();
        let again = redis::from_redis_value(parts.next().unwrap())?;
        let owners = parts.map(redis::from_redis_value).collect::<Result<_, _>>()?;
        Ok((again, owners))
    }

    fn command<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    fn left(&mut self) -> i64 {
        self.command(&["EXISTS", LOCK, QUEUE, TIMEOUTS])
    }

    fn queue(&mut self) -> Vec<String> {
        self.command(&["LRANGE", QUEUE, "0", "-1"])
    }

    /// How many commands the server runs meanwhile, those inside scripts included.
    fn commands_of(&mut self, work: impl FnOnce(&mut Self)) -> u64 {
        let () = self.command(&["CONFIG", "RESETSTAT"]);
        work(self);
        let stats: String = self.command(&["INFO", "commandstats"]);
        stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_config"))
            .map(|line| {
                let calls = line.split_once("calls=").unwrap().1;
                calls.split(',').next().unwrap().parse::<u64>().unwrap()
            })
            .sum()
    }
}

/// Subscribed to one owner's channel, as a waiter is.
fn listener(server: &Server, owner: &str) -> Connection {
    let mut connection = server.connection();
    redis::cmd("SUBSCRIBE").arg(format!("{CHANNEL}{owner}")).exec(&mut connection).unwrap();
    connection
}

/// The whole price of an acquisition is at most ten commands: alone, and where the threads of a
/// process pass the lock on.
#[test]
fn an_acquisition_costs_at_most_ten_commands() {
    let Some(server) = real_server() else { return };
    let mut direct = Direct::new(&server);
    let alone = direct.commands_of(|direct| {
        assert!(direct.takes(&ours(1), false));
        assert_eq!(direct.release(&ours(1), &[]).unwrap(), Some(0));
    });
    assert_eq!(alone, 8);

    // Somebody waits already; the holder is another process.
    assert!(direct.takes(&ours(1), false));
    assert!(!direct.takes(&ours(2), false));
    let listeners: Vec<_> = (2..=10).map(|n| listener(&server, &ours(n))).collect();
    let queued = direct.commands_of(|direct| assert!(!direct.takes(&ours(3), false)));
    assert_eq!(queued, 6);
    direct.release(&ours(1), &[]).unwrap();
    let woken = direct.commands_of(|direct| assert!(direct.takes(&ours(2), true)));
    assert_eq!(woken, 7);
    let released = direct.commands_of(|direct| {
        assert_eq!(direct.release(&ours(2), &[]).unwrap(), Some(1));
    });
    assert_eq!(released, 4);

    // Eight threads of a process, one after the other, in one hold.
    assert!(direct.takes(&ours(3), true));
    let eight = direct.commands_of(|direct| {
        let owners: Vec<_> = (4..=11).map(ours).collect();
        for owner in &owners {
            assert!(!direct.takes(owner, false));
        }
        direct.release(&ours(3), &[]).unwrap();
        let followers: Vec<String> = direct.acquire(&owners[0], true).unwrap()[1..]
            .iter()
            .map(|owner| redis::from_redis_value(owner.clone()).unwrap())
            .collect();
        assert_eq!(followers, owners[1..]);
        let passed: Vec<_> = owners[1..].iter().map(String::as_str).collect();
        direct.release(&owners[0], &passed).unwrap();
    });
    assert!(eight <= 8 * 10, "{eight} commands for eight acquisitions");
    assert_eq!(direct.left(), 0);
    drop(listeners);
}

/// Every request may be sent twice.
#[test]
fn a_request_sent_again_changes_nothing() {
    let Some(server) = real_server() else { return };
    let mut direct = Direct::new(&server);
    for _ in 0..2 {
        assert!(direct.takes(&ours(1), false));
        assert_eq!(direct.try_lock(&ours(1)).unwrap(), 1);
    }
    for _ in 0..2 {
        assert!(!direct.takes(&ours(2), false));
        assert!(!direct.takes(&ours(3), false));
        assert!(!direct.takes(&ours(3), true));
        assert_eq!(direct.try_lock(&ours(4)).unwrap(), 0);
    }
    assert_eq!(direct.queue(), [ours(2), ours(3)]);
    assert_eq!(direct.release(&ours(2), &[]).unwrap(), None);
    assert_eq!(direct.give_up(&ours(3)).unwrap(), 1);
    assert_eq!(direct.give_up(&ours(3)).unwrap(), 0);
    assert_eq!(direct.release(&ours(1), &[]).unwrap(), Some(0));
    assert_eq!(direct.release(&ours(1), &[]).unwrap(), None);
    assert!(direct.takes(&ours(2), true));
    assert_eq!(direct.give_up(&ours(2)).unwrap(), 2);
    assert_eq!(direct.left(), 0);
}

/// Without memory a lock can be given back, its waiters live on, and the first of them gets it; a
/// new one is told clearly.
#[test]
fn without_memory_the_queue_moves_on() {
    let Some(server) = real_server() else { return };
    let mut direct = Direct::new(&server);
    assert!(direct.takes(&ours(1), false));
    for number in 2..=5 {
        assert!(!direct.takes(&ours(number), false));
    }
    let _: i64 = direct.command(&["ZADD", TIMEOUTS, "1", &ours(2)]);
    let () = direct.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = |error: redis::RedisError| assert_eq!(error.code(), Some("OOM"), "{error}");
    refused(direct.acquire(&ours(9), false).unwrap_err());
    let owners: Vec<_> = (2..=5).map(ours).collect();
    let owners: Vec<_> = owners.iter().map(String::as_str).collect();
    assert_eq!(direct.keep_alive(&owners).unwrap().1, [""; 0]);
    let score: f64 = direct.command(&["ZSCORE", TIMEOUTS, &ours(2)]);
    assert!(score > 1.0);
    assert_eq!(direct.release(&ours(1), &[]).unwrap(), Some(0));
    assert!(direct.takes(&ours(2), true));
    assert_eq!(direct.give_up(&ours(4)).unwrap(), 1);
    assert_eq!(direct.release(&ours(2), &[&ours(3)]).unwrap(), Some(0));
    assert_eq!(direct.queue(), [ours(5)]);
    assert_eq!(direct.give_up(&ours(5)).unwrap(), 1);
    refused(direct.try_lock(&ours(9)).unwrap_err());
    refused(direct.acquire(&ours(9), false).unwrap_err());
    assert_eq!(direct.left(), 0);
}

/// Something else under one of the keys is an error, and changes nothing under the others.
#[test]
fn something_else_under_a_key_is_an_error() {
    let Some(server) = real_server() else { return };
    for foreign in KEYS {
        for waiting in [false, true] {
            let mut direct = Direct::new(&server);
            let () = direct.command(&["FLUSHALL"]);
            if waiting {
                assert!(direct.takes(&ours(1), false));
                assert!(!direct.takes(&ours(2), false));
                direct.release(&ours(1), &[]).unwrap();
            }
            let () = direct.command(&["SET", foreign, "mine"]);
            let wrong = |error: redis::RedisError| {
                assert_eq!(error.code(), Some("WRONGTYPE"), "{foreign}: {error}");
            };
            let untouched = |direct: &mut Direct| {
                let there: String = direct.command(&["GET", foreign]);
                assert_eq!(there, "mine");
            };
            if foreign != TIMEOUTS || waiting {
                wrong(direct.acquire(&ours(2), true).unwrap_err());
                wrong(direct.acquire(&ours(3), false).unwrap_err());
                wrong(direct.try_lock(&ours(4)).unwrap_err());
                wrong(direct.give_up(&ours(2)).unwrap_err());
            } else {
                // Nobody waits, so the timeouts are not looked at before somebody has to.
                assert!(direct.takes(&ours(2), false));
                wrong(direct.acquire(&ours(3), false).unwrap_err());
                assert_eq!(direct.queue(), [""; 0]);
                assert_eq!(direct.release(&ours(2), &[]).unwrap(), Some(0));
            }
            if foreign != LOCK {
                wrong(direct.keep_alive(&[&ours(2)]).unwrap_err());
            } else {
                wrong(direct.release(&ours(1), &[]).unwrap_err());
            }
            untouched(&mut direct);
        }
    }
}

/// A holder can always give back, whatever lies under the keys of the queue.
#[test]
fn a_release_needs_neither_queue_nor_messages() {
    let Some(server) = real_server() else { return };
    let mut direct = Direct::new(&server);
    for foreign in [QUEUE, TIMEOUTS] {
        assert!(direct.takes(&ours(1), false));
        assert!(!direct.takes(&ours(2), false));
        let () = direct.command(&["SET", foreign, "mine"]);
        assert!(direct.release(&ours(1), &[&ours(2)]).unwrap().is_some());
        let () = direct.command(&["FLUSHALL"]);
    }

    let mut acl = |rules: &[&str]| -> Option<Direct> {
        let user = [&["ACL", "SETUSER", "me", "reset", "on", ">word", "~*", "&*", "+@all"], rules];
        redis::cmd("ACL").arg(&user.concat()[1..]).exec(&mut direct.connection).ok()?;
        let mut connection = server.connection();
        redis::cmd("AUTH").arg("me").arg("word").exec(&mut connection).ok()?;
        Some(Direct::over(connection))
    };
    // No message can be sent: the lock is free all the same.
    let mut mute = acl(&["-publish"]).unwrap();
    assert!(mute.takes(&ours(1), false));
    assert!(!mute.takes(&ours(2), false));
    assert_eq!(mute.release(&ours(1), &[]).unwrap(), Some(-1));
    assert_eq!(mute.keep_alive(&[&ours(2)]).unwrap(), (-1, vec![ours(2)]));
    assert!(mute.takes(&ours(2), true));
    assert_eq!(mute.release(&ours(2), &[]).unwrap(), Some(0));
    // No lease can be set: then there is no lock.
    let mut endless = acl(&["-pexpire"]).unwrap();
    assert!(endless.acquire(&ours(1), false).is_err());
    assert!(endless.try_lock(&ours(1)).is_err());
    assert_eq!(endless.left(), 0);
}

/// Redisson lets a head without a score stand for ever. It is as good as dead.
#[test]
fn a_head_without_a_score_blocks_nobody() {
    let Some(server) = real_server() else { return };
    for head in [JAVA, &ours(7)] {
        for form in 0..4 {
            let mut direct = Direct::new(&server);
            assert!(direct.takes(&ours(1), false));
            assert!(!direct.takes(&ours(2), false));
            let () = direct.command(&["LPUSH", QUEUE, head]);
            let () = direct.command(&["DEL", LOCK]);
            match form {
                0 => assert!(direct.takes(&ours(2), true)),
                1 => assert_eq!(direct.try_lock(&ours(3)).unwrap(), 0),
                2 => assert_eq!(direct.keep_alive(&[&ours(2)]).unwrap(), (-1, vec![ours(2)])),
                _ => assert_eq!(direct.release(&ours(1), &[]).unwrap(), None),
            }
            assert!(direct.takes(&ours(2), true));
            direct.release(&ours(2), &[]).unwrap();
            assert_eq!(direct.left(), 0);
        }
    }
}

/// If keys are lost, the waiters find that out and come back, in their order if the lock is held.
#[test]
fn lost_keys_strand_nobody() {
    let Some(server) = real_server() else { return };
    for lost in [&KEYS[1..], &[QUEUE], &[TIMEOUTS]] {
        let mut direct = Direct::new(&server);
        assert!(direct.takes(&ours(1), false));
        for number in 2..=4 {
            assert!(!direct.takes(&ours(number), false));
        }
        let () = direct.command(&[&["DEL"], lost].concat());
        let owners = [&*ours(2), &*ours(3), &*ours(4)];
        let (_, missing) = direct.keep_alive(&owners).unwrap();
        if lost == [TIMEOUTS] {
            assert_eq!(missing, [""; 0]);
            let scores: i64 = direct.command(&["ZCARD", TIMEOUTS]);
            assert_eq!(scores, 3);
        } else {
            assert_eq!(missing, owners);
        }
        // They come back in any order, and stand in theirs.
        for number in [3, 2, 4] {
            direct.acquire(&ours(number), true).unwrap();
        }
        direct.release(&ours(1), &[]).unwrap();
        for number in 2..=4 {
            direct.acquire(&ours(number), true).unwrap();
            direct.release(&ours(number), &[]).unwrap();
        }
        assert_eq!(direct.left(), 0, "{lost:?}");
    }

    let mut direct = Direct::new(&server);
    assert!(direct.takes(&ours(1), false));
    assert!(!direct.takes(&ours(2), false));
    assert!(!direct.takes(&ours(3), false));
    let () = direct.command(&["FLUSHALL"]);
    assert!(direct.takes(&ours(3), true));
    assert!(!direct.takes(&ours(2), true));
    assert_eq!(direct.release(&ours(1), &[]).unwrap(), None);
    assert_eq!(direct.release(&ours(3), &[]).unwrap(), Some(0));
    assert!(direct.takes(&ours(2), true));
    assert_eq!(direct.release(&ours(2), &[]).unwrap(), Some(0));
    assert_eq!(direct.left(), 0);
}

/// A lease too long for Redis is an error, and the longest that is none is kept.
#[test]
fn leases_without_sense_leave_no_lock() {
    let Some(server) = real_server() else { return };
    let mut direct = Direct::new(&server);
    for (lease, taken) in [("10000000000000", true), ("9223372036854775807", false)] {
        let args = [lease, &ours(1), "10000", "300000", CHANNEL, "0", "0"];
        let reply: RedisResult<Vec<i64>> = direct.run(Script::Acquire, &args);
        assert_eq!(reply.is_ok(), taken, "{reply:?}");
        let reply: RedisResult<i64> = direct.run(Script::Try, &[lease, &ours(1), "10000", CHANNEL]);
        assert_eq!(reply.is_ok(), taken, "{reply:?}");
        direct.release(&ours(1), &[]).unwrap();
        assert_eq!(direct.left(), 0);
    }
}
