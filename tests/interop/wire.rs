//! The keys and messages of each library at the server. The same calls must produce the same bytes.

use std::collections::BTreeMap;

use kind::derived;
use redis::{Commands as _, Connection};

use super::*;

/// Names that a library might escape, cut or split. The last three names are not usable in a
/// cluster, but are ordinary names on one server.
const NAMES: [&str; 11] = [
    "job",
    "two words",
    "a:b:c",
    "é\"☃\\ 日本 %20",
    "x{t}y",
    "{t}",
    "a{b}c{d}",
    "-1",
    "a}b",
    "a{b",
    "{}a",
];

/// Returns the names, and a very long name.
fn names() -> Vec<String> {
    let mut names: Vec<_> = NAMES.map(str::to_owned).into();
    names.push("long ".repeat(2_000));
    names
}

/// An observer of a server. It sees all keys that both libraries have, with their types, values and
/// remaining times, and all messages since the last call.
struct Observer {
    redis: Connection,
    messages: mpsc::Receiver<(String, String)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    keys: BTreeMap<String, (String, String, i64)>,
    messages: Vec<(String, String)>,
}

impl Observer {
    fn new(server: &Server) -> Self {
        let (sender, messages) = mpsc::channel();
        let mut connection = server.connection();
        let (ready, is_ready) = mpsc::channel();
        thread::spawn(move || {
            let mut subscriber = connection.as_pubsub();
            subscriber.psubscribe("*").unwrap();
            ready.send(()).unwrap();
            // The loop ends when the server or the observer ends.
            while let Ok(message) = subscriber.get_message() {
                let channel = message.get_channel_name().to_owned();
                if sender.send((channel, message.get_payload().unwrap())).is_err() {
                    break;
                }
            }
        });
        is_ready.recv().unwrap();
        Self { redis: server.connection(), messages }
    }

    /// Returns the state on the server. The owners of this client are replaced by the same text for
    /// each client.
    fn look(&mut self, id: &str) -> Seen {
        let () = self.redis.publish("end", "").unwrap();
        let said = self.messages.iter().take_while(|(channel, _)| channel != "end");
        let messages = said
            // Only redlatch's clients use a client's own channel.
            .filter(|(channel, _)| !channel.starts_with("redisson_lock__channel:{redlatch:"))
            .map(|(channel, message)| (without_owner(&channel, id), message))
            .collect();
        let mut names: Vec<String> = self.redis.keys("*").unwrap();
        // Leaves out the keys that only one library has.
        names.retain(|it| !it.starts_with("redlatch_") && !it.starts_with("redisson_unlock_latch"));
        let keys = names.into_iter().map(|name| {
            let kind: String = redis::cmd("TYPE").arg(&name).query(&mut self.redis).unwrap();
            let value = match kind.as_str() {
                // One grant of redlatch may take many tokens.
                "string" if name.starts_with("redisson_lock_token") => "a token".to_owned(),
                "string" => self.redis.get::<_, String>(&name).unwrap(),
                "hash" => {
                    let fields: BTreeMap<String, String> = self.redis.hgetall(&name).unwrap();
                    format!("{fields:?}")
                }
                "list" => {
                    format!("{:?}", self.redis.lrange::<_, Vec<String>>(&name, 0, -1).unwrap())
                }
                "zset" => self.sorted_set(&name),
                kind => panic!("{name:?} is a {kind}"),
            };
            // Round up to ten seconds, because all leases are multiples of ten seconds.
            let left = pttl(&mut self.redis, &name);
            let left = if left > 0 { (left + 9_999) / 10_000 * 10 } else { left };
            (without_owner(&name, id), (kind, without_owner(&value, id), left))
        });
        let keys = keys.collect();
        Seen { keys, messages }
    }

    /// Returns the members with their remaining times. (For a permit's id, returns only its
    /// length.)
    fn sorted_set(&mut self, name: &str) -> String {
        let members: Vec<(Vec<u8>, f64)> = self.redis.zrange_withscores(name, 0, -1).unwrap();
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(&mut self.redis).unwrap();
        let left = |score: f64| match score as i64 - seconds * 1_000 - micros / 1_000 {
            left if left > 100_000_000_000 => "for ever".to_owned(),
            left => format!("for {} s", (left + 9_999) / 10_000 * 10),
        };
        let member = |(member, score): (Vec<u8>, f64)| match String::from_utf8(member) {
            Ok(text) if text.contains(':') => text,
            Ok(text) => format!("{} bytes {}", text.len(), left(score)),
            Err(bytes) => format!("{} bytes {}", bytes.as_bytes().len(), left(score)),
        };
        format!("{:?}", members.into_iter().map(member).collect::<Vec<_>>())
    }

    /// Removes all keys and messages that the observer sees.
    fn clear(&mut self) {
        let () = redis::cmd("FLUSHALL").query(&mut self.redis).unwrap();
        let _ = self.look("");
    }
}

/// The text with each `id:number` replaced.
fn without_owner(text: &str, id: &str) -> String {
    let owner = format!("{id}:");
    let mut parts = text.split(&owner);
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| {
        text + "OWNER" + part.trim_start_matches(|it: char| it.is_ascii_digit())
    })
}

/// There are six steps: the lock is held with a renewed lease, free, held with a fixed lease, free,
/// held, and taken away.
#[test]
fn a_lock_of_either_has_the_same_keys_and_messages() {
    beside_redisson(|version| {
        let server = server();
        let mut java = Redisson::of(version, &server);
        let client = client(&server);
        let mut observer = Observer::new(&server);
        for name in names() {
            for kind in Kind::all(version) {
                let named = kind.named(&name);
                let theirs = [
                    format!("lock {named}"),
                    format!("unlock {named}"),
                    format!("tryLock {named} 0 30000"),
                    format!("unlock {named}"),
                    format!("lock {named}"),
                    format!("forceUnlock {named}"),
                    format!("forceUnlock {named}"),
                ]
                .map(|command| {
                    let answer = java.ask("a", &command);
                    assert!(["ok", "true", "false"].contains(&&*answer), "{command}: {answer}");
                    observer.look(&java.id)
                });
                observer.clear();
                let lock = kind.ours(&client, &name);
                let leased = kind.leased(&client, &name, Duration::from_secs(30));
                let mut see = || observer.look(client.id());
                let guard = lock.lock().unwrap();
                let held = see();
                guard.unlock().unwrap();
                let free = see();
                let guard = leased.try_lock().unwrap().into_option().unwrap();
                let held_with_lease = see();
                drop(guard);
                // A guard that is dropped is released in the background.
                let mut redis = server.connection();
                wait_until("it is free", TIMEOUT, || !redis.exists::<_, bool>(&name).unwrap());
                let free_again = see();
                lock.lock().unwrap().forget();
                let kept = see();
                assert!(lock.force_unlock().unwrap());
                let taken = see();
                assert!(!lock.force_unlock().unwrap());
                let ours = [held, free, held_with_lease, free_again, kept, taken, see()];
                for (theirs, ours) in theirs.into_iter().zip(ours) {
                    assert_eq!(ours, theirs, "{kind:?} {name:?}: redlatch's, Redisson's");
                }
                observer.clear();
            }
        }
    });
}

#[test]
fn a_lock_of_any_name_is_one_lock_and_wakes_the_others_waiters() {
    beside_redisson(|version| {
        let server = server();
        let mut java = Redisson::of(version, &server);
        for name in names() {
            let client = watched(&server, SHORT_LEASE);
            for kind in Kind::exclusive(version) {
                let (lock, named) = (kind.ours(&client, &name), kind.named(&name));
                once_within(WAKE_WITHIN, || {
                    let guard = lock.lock().unwrap();
                    kind.redisson_waits(&mut java, &["a"], &name);
                    guard.unlock().unwrap();
                    let released = Instant::now();
                    assert_eq!(java.reply("a"), "ok");
                    let took = released.elapsed();
                    java.run("a", &format!("unlock {named}"));
                    took
                });
                woken_by_message(|| {
                    java.run("a", &format!("lock {named}"));
                    let waiting = Arc::clone(&lock);
                    let waits = spawn(move || waiting.lock().unwrap().unlock().unwrap());
                    waits.wait_queued();
                    java.run("a", &format!("unlock {named}"));
                    waits.join();
                });
            }
        }
    });
}

/// All values except the times are equal. A Redisson waiter may be silent for five minutes, and a
/// redlatch waiter for ten seconds.
#[test]
fn a_waiter_for_a_fair_lock_of_either_stands_in_the_same_queue() {
    beside_redisson(|version| {
        let server = server();
        let mut observer = Observer::new(&server);
        for name in names() {
            let (mut java, client) = (Redisson::of(version, &server), client(&server));
            let mut redis = server.connection();
            let queue = derived("redisson_lock_queue", &name);
            let mut first_in_line = || {
                wait_until("it waits", TIMEOUT, || redis.llen::<_, u64>(&queue).unwrap() == 1);
                redis.lindex::<_, String>(&queue, 0).unwrap()
            };
            let mut redis = server.connection();
            let mut release = |owner: &str| {
                let channel = derived("redisson_lock__channel", &name);
                release_as_redisson(&mut redis, &name, &format!("{channel}:{owner}"));
            };
            hold_as_redisson(&mut server.connection(), &name, LONG_LEASE);
            java.tell("a", &format!("lock {}", Kind::Fair.named(&name)));
            let owner = first_in_line();
            let theirs = observer.look(&java.id);
            release(&owner);
            assert_eq!(java.reply("a"), "ok");
            java.run("a", &format!("unlock {}", Kind::Fair.named(&name)));
            observer.clear();
            hold_as_redisson(&mut server.connection(), &name, LONG_LEASE);
            let lock = client.fair_lock(&name);
            let waits = spawn(move || lock.lock().unwrap().unlock().unwrap());
            let owner = first_in_line();
            let ours = observer.look(client.id());
            assert_eq!(ours, theirs, "{name:?}: redlatch's, Redisson's");
            release(&owner);
            waits.join();
            observer.clear();
        }
    });
}

#[test]
fn a_semaphore_of_either_has_the_same_keys_and_messages() {
    beside_redisson(|version| {
        let server = server();
        let mut java = Redisson::of(version, &server);
        let client = client(&server);
        let mut observer = Observer::new(&server);
        for name in names() {
            let named = format!("semaphore {}", quoted(&name));
            let theirs = [
                format!("trySetPermits {named} 3"),
                format!("trySetPermits {named} 4"),
                format!("acquire {named} 2"),
                format!("tryAcquire {named} 2"),
                format!("release {named} 2"),
                format!("addPermits {named} 5"),
                format!("drainPermits {named}"),
            ]
            .map(|command| (java.ask("a", &command), observer.look(&java.id)));
            observer.clear();
            let semaphore = client.semaphore(&name);
            let mut ours = Vec::new();
            let mut see = |answer: String| ours.push((answer, observer.look(client.id())));
            see(semaphore.try_set_permits(3).unwrap().to_string());
            see(semaphore.try_set_permits(4).unwrap().to_string());
            let permit = semaphore.acquire_many(2).unwrap();
            see("ok".to_owned());
            see(semaphore.try_acquire_many(2).unwrap().into_option().is_some().to_string());
            permit.release().unwrap();
            see("ok".to_owned());
            semaphore.add_permits(5).unwrap();
            see("ok".to_owned());
            see(semaphore.drain_permits().unwrap().to_string());
            for (theirs, ours) in theirs.into_iter().zip(ours) {
                assert_eq!(ours, theirs, "{name:?}: redlatch's, Redisson's");
            }
            observer.clear();
        }
    });
}

/// The ids of Redisson 3.16 are texts, and are twice as long.
#[test]
fn a_semaphore_with_leases_of_either_has_the_same_keys_and_messages() {
    beside_redisson(|version| {
        let server = server();
        let mut java = Redisson::of(version, &server);
        let mut observer = Observer::new(&server);
        let same = |command: &str, mut theirs: Seen, ours: Seen| {
            if version == Version::Old {
                theirs.keys.values_mut().for_each(|(_, value, _)| {
                    *value = value.replace("32 bytes", "16 bytes");
                });
            }
            assert_eq!(ours, theirs, "{command}: redlatch's, Redisson's");
        };
        for name in names() {
            // One client may not name both `x` and `{x}`.
            let client = client(&server);
            let named = format!("permitExpirableSemaphore {}", quoted(&name));
            let mut ask = |java: &mut Redisson, command: &str| {
                let answer = java.ask("a", command);
                assert!(!answer.starts_with("error"), "{command}: {answer}");
                (answer, observer.look(&java.id))
            };
            let (_, set) = ask(&mut java, &format!("trySetPermits {named} 3"));
            let (id, taken) = ask(&mut java, &format!("acquire {named} 30000"));
            let (_, longer) = ask(&mut java, &format!("updateLeaseTime {named} {id} 90000"));
            let (_, second) = ask(&mut java, &format!("acquire {named} 50000"));
            let (_, back) = ask(&mut java, &format!("release {named} {id}"));
            observer.clear();
            let semaphore = client.expirable_semaphore(&name);
            let mut see = || observer.look(client.id());
            assert!(semaphore.try_set_permits(3).unwrap());
            same("trySetPermits", set, see());
            let permit = semaphore.with_lease(Duration::from_secs(30)).acquire().unwrap();
            same("acquire", taken, see());
            let id = permit.into_id();
            semaphore.update_lease_time(&id, Duration::from_secs(90)).unwrap();
            same("updateLeaseTime", longer, see());
            let other = semaphore.with_lease(Duration::from_secs(50)).acquire().unwrap();
            same("acquire", second, see());
            semaphore.release(&id).unwrap();
            same("release", back, see());
            let _stays_out = other.into_id();
            observer.clear();
        }
    });
}

#[test]
fn a_latch_of_either_has_the_same_keys_and_messages() {
    beside_redisson(|version| {
        let server = server();
        let mut java = Redisson::of(version, &server);
        let client = client(&server);
        let mut observer = Observer::new(&server);
        for name in names() {
            let named = format!("latch {}", quoted(&name));
            let theirs = [
                format!("trySetCount {named} 2"),
                format!("trySetCount {named} 3"),
                format!("countDown {named}"),
                format!("getCount {named}"),
                format!("countDown {named}"),
                format!("countDown {named}"),
            ]
            .map(|command| (java.ask("a", &command), observer.look(&java.id)));
            observer.clear();
            let latch = client.count_down_latch(&name);
            let mut ours = Vec::new();
            let mut see = |answer: String| ours.push((answer, observer.look(client.id())));
            see(latch.try_set_count(2).unwrap().to_string());
            see(latch.try_set_count(3).unwrap().to_string());
            latch.count_down().unwrap();
            see("ok".to_owned());
            see(latch.count().unwrap().to_string());
            latch.count_down().unwrap();
            see("ok".to_owned());
            latch.count_down().unwrap();
            see("ok".to_owned());
            for (theirs, ours) in theirs.into_iter().zip(ours) {
                assert_eq!(ours, theirs, "{name:?}: redlatch's, Redisson's");
            }
            observer.clear();
        }
    });
}

/// Redisson's semaphores have their own methods for a time to live. Redisson's latches use the
/// methods of all keys. Redisson 3.16 can set permits only without a time to live.
#[test]
fn a_time_to_live_of_either_has_the_same_keys_and_messages_and_is_known_to_the_other() {
    let seconds = Duration::from_secs;
    // Rounds a remaining time up to ten seconds, as the observer does.
    let rounded = |left: i64| if left > 0 { (left + 9_999) / 10_000 * 10 } else { left };
    beside_redisson(|version| {
        let server = server();
        let mut java = Redisson::of(version, &server);
        let mut observer = Observer::new(&server);
        for name in names() {
            // One client may not name both `x` and `{x}`.
            let client = client(&server);
            let (semaphore, expirable, latch) = (
                client.semaphore(&name),
                client.expirable_semaphore(&name),
                client.count_down_latch(&name),
            );
            for kind in ["semaphore", "permitExpirableSemaphore", "latch"] {
                let make = |java: &mut Redisson| {
                    let verb = if kind == "latch" { "trySetCount" } else { "trySetPermits" };
                    assert!(java.says("a", &format!("{verb} {kind} {} 3", quoted(&name))));
                    if kind == "permitExpirableSemaphore" {
                        java.ask("a", &format!("acquire {kind} {} 60000", quoted(&name)));
                    }
                };
                let of_java = if kind == "latch" { "key" } else { kind };
                let expire = |ends| match kind {
                    "semaphore" => semaphore.expire(ends).unwrap(),
                    "latch" => latch.expire(ends).unwrap(),
                    _ => expirable.expire(ends).unwrap(),
                };
                let left = || {
                    let left = match kind {
                        "semaphore" => semaphore.time_to_live().unwrap(),
                        "latch" => latch.time_to_live().unwrap(),
                        _ => expirable.time_to_live().unwrap(),
                    };
                    match left {
                        None => -2,
                        Some(Duration::MAX) => -1,
                        Some(left) => rounded(left.as_millis() as i64),
                    }
                };
                // In each step one library acts, and the test records the replies that both
                // libraries get.
                let call = |verb: &str, time: &str| {
                    format!("{verb} {of_java} {} {time}", quoted(&name)).trim_end().to_owned()
                };
                let known = |java: &mut Redisson| {
                    rounded(java.ask("a", &call("remaining", "")).parse().unwrap())
                };
                let steps = [Duration::MAX, seconds(25), seconds(45), Duration::MAX];
                let mut theirs = Vec::new();
                for (step, ends) in steps.into_iter().enumerate() {
                    let done = match ends {
                        Duration::MAX => java.says("a", &call("clearExpire", "")),
                        time => java.says("a", &call("expire", &time.as_millis().to_string())),
                    };
                    theirs.push((done, left(), observer.look(&java.id)));
                    if step == 0 {
                        make(&mut java);
                    }
                }
                observer.clear();
                let mut ours = Vec::new();
                for (step, ends) in steps.into_iter().enumerate() {
                    let done = expire(ends);
                    ours.push((done, known(&mut java), observer.look(&java.id)));
                    if step == 0 {
                        make(&mut java);
                    }
                }
                assert_eq!(ours, theirs, "{kind} {name:?}: redlatch's, Redisson's");
                observer.clear();
            }
            if version == Version::New {
                let command = format!("trySetPermits semaphore {} 3 25000", quoted(&name));
                let mut theirs = || (java.says("a", &command), observer.look(&java.id));
                let theirs = [(); 2].map(|()| theirs());
                observer.clear();
                let ends = Duration::from_secs(25);
                let set = || semaphore.try_set_permits_for(3, ends).unwrap();
                let ours = [(); 2].map(|()| (set(), observer.look(client.id())));
                assert_eq!(ours, theirs, "{name:?}: redlatch's, Redisson's");
                observer.clear();
            }
        }
    });
}

#[test]
fn the_tokens_of_a_fenced_lock_grow_from_one_library_to_the_other() {
    beside_redisson(|version| {
        if version == Version::Old {
            // Redisson 3.16 has no fenced locks.
            return;
        }
        let server = server();
        let mut java = Redisson::of(version, &server);
        let client = client(&server);
        let (lock, named) = (client.fenced_lock("job"), Kind::Fenced.named("job"));
        let mut last = 0;
        let mut grows = |token: u64| {
            assert!(token > last, "{token} after {last}");
            last = token;
        };
        for _ in 0..3 {
            let token = java.ask("a", &format!("lockAndGetToken {named}"));
            grows(token.parse().unwrap());
            java.run("a", &format!("unlock {named}"));
            let guard = lock.lock().unwrap();
            grows(guard.token().get());
            // The last token of the range that belongs to this grant.
            let of_grant: u64 = java.ask("a", &format!("getToken {named}")).parse().unwrap();
            assert!(of_grant >= guard.token().get(), "{of_grant}");
            guard.unlock().unwrap();
        }
    });
}

/// The rights are those that docs/redisson.md lists.
#[test]
fn each_library_does_with_the_rights_to_its_own_keys_and_channels() {
    beside_redisson(|version| {
        let server = server();
        let mut theirs = User::new(&server, "theirs");
        theirs.set(&["resetkeys", "resetchannels"]);
        let guide = include_str!("../../docs/redisson.md");
        let (_, rights) =
            guide.split_once("- Redisson, for names that begin with `shop`:").unwrap();
        let (rights, _) = rights.split_once("\n\n").unwrap();
        let words = rights.split([' ', '\n', '`']).filter(|it| it.starts_with(['~', '&']));
        theirs.set(&words.collect::<Vec<_>>());
        let mut java = Redisson::at(&Jvm::shared(version), theirs.url(), LONG_LEASE);
        let client = client(&server);
        for kind in Kind::all(version) {
            let (name, lock) =
                (format!("shop {kind:?}"), kind.ours(&client, &format!("shop {kind:?}")));
            let guard = lock.lock().unwrap();
            let rival = if kind == Kind::Read { Kind::Write } else { kind };
            rival.redisson_waits(&mut java, &["a"], &name);
            guard.unlock().unwrap();
            assert_eq!(java.reply("a"), "ok");
            java.run("a", &format!("unlock {}", rival.named(&name)));
            java.run("a", &format!("lock {}", kind.named(&name)));
            java.run("a", &format!("unlock {}", kind.named(&name)));
        }
        assert!(java.says("a", "trySetPermits semaphore shop%20s 1"));
        java.run("a", "acquire semaphore shop%20s");
        assert!(!java.says("a", "tryAcquire semaphore shop%20s 1 100"));
        java.run("a", "release semaphore shop%20s");
        assert!(java.says("a", "trySetPermits permitExpirableSemaphore shop%20e 1"));
        let id = java.ask("a", "acquire permitExpirableSemaphore shop%20e 60000");
        assert_eq!(java.ask("a", "tryAcquire permitExpirableSemaphore shop%20e 100"), "none");
        java.run("a", &format!("release permitExpirableSemaphore shop%20e {id}"));
        assert!(java.says("a", "trySetCount latch shop%20l 1"));
        assert!(!java.says("a", "await latch shop%20l 100"));
        java.run("a", "countDown latch shop%20l");
        java.run("a", "await latch shop%20l");
    });
}
