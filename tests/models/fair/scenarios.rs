//! Tests of the scripts without a simulated clock: their costs, and their effects if the server
//! refuses a command or if their keys contain other data.

use redis::{Connection, FromRedisValue, RedisResult, Value};
use redlatch_testkit::Server;

use super::store::{CHANNEL, DATABASE, KEYS, LOCK, QUEUE, TIMEOUTS, channel_of, keys, scripts};
use crate::common::unbounded_server as server;
use crate::simulated::scripts::{Script, Scripts};
use crate::simulated::specification::is_full;

const JAVA: &str = "11111111-1111-4111-8111-111111111111:1";

fn ours(number: u32) -> String {
    format!("00000000-0000-8000-8000-000000000000:{number}")
}

/// One connection, with a method for each script.
struct Direct {
    connection: Connection,
    scripts: Scripts,
}

impl Direct {
    fn new(server: &Server) -> Self {
        Self::over(server.connection())
    }

    fn over(connection: Connection) -> Self {
        Self { connection, scripts: scripts() }
    }

    fn run_ours<T: FromRedisValue>(&mut self, script: Script, args: &[&str]) -> RedisResult<T> {
        redis::cmd("EVAL")
            .arg(self.scripts.text(script))
            .arg(keys(script).len())
            .arg(keys(script))
            .arg(&["10000,300000", CHANNEL, DATABASE])
            .arg(args)
            .query(&mut self.connection)
    }

    fn acquire(&mut self, owner: &str, was_queued: bool) -> RedisResult<Vec<Value>> {
        let was_queued = if was_queued { "1" } else { "0" };
        self.run_ours(Script::Acquire, &["30000", owner, was_queued])
    }

    fn takes(&mut self, owner: &str, was_queued: bool) -> bool {
        self.acquire(owner, was_queued).unwrap()[0] != Value::Int(0)
    }

    /// Acquires in one request together with other owners of the same client.
    fn acquire_with(&mut self, owner: &str, company: &[&str]) -> RedisResult<Vec<Value>> {
        self.run_ours(Script::Acquire, &[&["30000", owner, "0"], company].concat())
    }

    fn try_lock(&mut self, owner: &str) -> RedisResult<i64> {
        self.run_ours(Script::Try, &["30000", owner])
    }

    fn release(&mut self, owner: &str, passed: &[&str]) -> RedisResult<Option<i64>> {
        self.run_ours(Script::Release, &[&[owner], passed].concat())
    }

    /// Makes a held lock free, in one of several ways.
    fn free(&mut self, form: usize) {
        match form {
            0 => assert_eq!(self.release(&ours(1), &[]).unwrap(), Some(1)),
            1 => assert_eq!(self.give_up(&ours(1)).unwrap(), 2),
            2 => assert_eq!(self.force_unlock().unwrap(), 1),
            _ => {
                let () = self.command(&["DEL", LOCK]);
                match form {
                    3 => assert_eq!(self.try_lock(&ours(9)).unwrap(), 0),
                    4 => assert_eq!(self.keep_alive(&[]).unwrap(), (2_000, vec![])),
                    5 => assert_eq!(self.release(&ours(1), &[]).unwrap(), None),
                    6 => assert_eq!(self.give_up(&ours(9)).unwrap(), 0),
                    _ => assert_eq!(self.force_unlock().unwrap(), 0),
                }
            }
        }
    }

    fn give_up(&mut self, owner: &str) -> RedisResult<i64> {
        self.run_ours(Script::GiveUp, &[owner, "0"])
    }

    /// Gives up the owner's entry, but not its hold.
    fn leave(&mut self, owner: &str) -> RedisResult<i64> {
        self.run_ours(Script::GiveUp, &[owner, "1"])
    }

    fn force_unlock(&mut self) -> RedisResult<i64> {
        self.run_ours(Script::ForceUnlock, &[])
    }

    /// Returns the time at which the next keep-alive is due, and the owners that should send a
    /// request.
    fn keep_alive(&mut self, owners: &[&str]) -> RedisResult<(i64, Vec<String>)> {
        self.keep_alive_if("0", owners)
    }

    fn keep_alive_if(&mut self, steady: &str, owners: &[&str]) -> RedisResult<(i64, Vec<String>)> {
        let reply: Vec<Value> = self.run_ours(Script::KeepAlive, &[&[steady], owners].concat())?;
        let mut parts = reply.into_iter();
        let again = redis::from_redis_value(parts.next().unwrap())?;
        let owners: Vec<String> = parts.map(redis::from_redis_value).collect::<Result<_, _>>()?;
        Ok((again, owners.into_iter().filter(|owner| !owner.is_empty()).collect()))
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

    /// Returns the number of commands that the server runs during `work`, including those inside
    /// scripts.
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

/// The number of ways in which a lock becomes free.
const FREEING: usize = 8;

/// Returns a connection that is subscribed to the channel of an owner's client.
fn listener(server: &Server, owner: &str) -> Connection {
    let mut connection = server.connection();
    redis::cmd("SUBSCRIBE").arg(channel_of(owner)).exec(&mut connection).unwrap();
    connection
}

/// The costs are counted without contention, with a queue, and when threads of a process pass the
/// lock to each other.
#[test]
fn an_acquisition_of_a_fair_lock_costs_a_known_number_of_commands() {
    let server = server();
    let mut direct = Direct::new(&server);
    let alone = direct.commands_of(|direct| {
        assert!(direct.takes(&ours(1), false));
        assert_eq!(direct.release(&ours(1), &[]).unwrap(), Some(0));
    });
    assert_eq!(alone, 10);

    // One process already waits, and another process has the lock.
    assert!(direct.takes(&ours(1), false));
    let listener = listener(&server, &ours(2));
    assert!(!direct.takes(&ours(2), false));
    let queued = direct.commands_of(|direct| assert!(!direct.takes(&ours(3), false)));
    assert_eq!(queued, 7);
    let handed_on = direct.commands_of(|direct| {
        assert_eq!(direct.release(&ours(1), &[]).unwrap(), Some(1));
    });
    assert_eq!(handed_on, 11);
    assert_eq!(direct.release(&ours(2), &[]).unwrap(), Some(1));

    // Eight threads of a process have the lock one after the other, in one hold.
    let eight = direct.commands_of(|direct| {
        let owners: Vec<_> = (4..=11).map(ours).collect();
        for owner in &owners {
            assert!(!direct.takes(owner, false));
        }
        direct.release(&ours(3), &[]).unwrap();
        let passed: Vec<_> = owners[1..].iter().map(String::as_str).collect();
        direct.release(&owners[0], &passed).unwrap();
    });
    assert!(eight <= 8 * 10, "{eight} commands for eight acquisitions");
    assert_eq!(direct.left(), 0);

    // One request names all the waiters.
    assert!(direct.takes(&ours(1), false));
    let owners: Vec<_> = (2..=9).map(ours).collect();
    let owners: Vec<_> = owners.iter().map(String::as_str).collect();
    let together = direct.commands_of(|direct| {
        let reply = direct.acquire_with(owners[0], &owners[1..]).unwrap();
        assert_eq!(reply[0], Value::Int(0));
    });
    assert_eq!(together, 7);
    let eight = direct.commands_of(|direct| {
        direct.release(&ours(1), &[]).unwrap();
        direct.release(owners[0], &owners[1..]).unwrap();
    });
    assert!(together + eight <= 8 * 4, "{together} and {eight} commands for eight acquisitions");
    assert_eq!(direct.left(), 0);
    drop(listener);
}

/// The keys and the message contain the owner to which the lock is granted.
#[test]
fn the_lock_is_handed_to_the_first_that_listens() {
    let server = server();
    for form in 0..FREEING {
        let mut direct = Direct::new(&server);
        let mut listener = listener(&server, &ours(2));
        let deaf = "33333333-3333-8333-8333-333333333333:1";
        assert!(direct.takes(&ours(1), false));
        // A monitor subscribes to all channels. The scripts must still treat the dead process as
        // dead.
        let mut monitor = server.connection();
        redis::cmd("PSUBSCRIBE").arg("*").exec(&mut monitor).unwrap();
        for owner in [deaf, &ours(2), &ours(3), &ours(4), JAVA] {
            assert!(!direct.takes(owner, false));
        }
        direct.free(form);
        let owner: Vec<String> = direct.command(&["HKEYS", LOCK]);
        assert_eq!(owner, [ours(2)], "{form}");
        let left: i64 = direct.command(&["PTTL", LOCK]);
        assert!((1_900..=2_000).contains(&left), "{left}");
        assert_eq!(direct.queue(), [ours(3), ours(4), JAVA.to_owned()]);
        let (_, _, message): (String, String, String) =
            redis::from_redis_value(listener.recv_response().unwrap()).unwrap();
        let words: Vec<_> = message.split(' ').collect();
        let [verb, number, _, lease, followers, database, lock] = words[..] else {
            panic!("{message:?}");
        };
        let said = [verb, number, lease, followers, database, lock];
        assert_eq!(said, ["grant", "2", "2000", "3,4", "0", LOCK]);
        let () = direct.command(&["FLUSHALL"]);
    }
}

/// If a waiter's client has not subscribed yet, the waiter keeps its entry until its second request
/// or keep-alive. By then a live client has subscribed, and a client that sends nothing more is
/// gone.
#[test]
fn a_waiter_that_has_just_come_is_handed_the_lock_unheard() {
    let server = server();
    for (form, then) in (0..FREEING).flat_map(|form| [(form, 0), (form, 1), (form, 2)]) {
        let mut direct = Direct::new(&server);
        let _listener = listener(&server, &ours(2));
        let new = "33333333-3333-8333-8333-333333333333:1";
        assert!(direct.takes(&ours(1), false));
        let _queued: Vec<Value> = direct.run_ours(Script::Acquire, &["30000", new, "3"]).unwrap();
        assert!(!direct.takes(&ours(2), false));
        match then {
            0 => {}
            1 => assert!(!direct.takes(new, true)),
            _ => drop(direct.keep_alive(&[new]).unwrap()),
        }
        direct.free(form);
        let owner: Vec<String> = direct.command(&["HKEYS", LOCK]);
        let expected = if then == 0 { new.to_owned() } else { ours(2) };
        assert_eq!(owner, [expected], "{form} {then}");
        if then == 0 {
            let left: i64 = direct.command(&["PTTL", LOCK]);
            // The lease is not the 30 s that the owner requested.
            assert!((1..=2_000).contains(&left), "{left}");
            assert!(direct.takes(new, true));
        }
        let () = direct.command(&["FLUSHALL"]);
    }
}

/// Every request may be sent twice.
#[test]
fn a_request_sent_again_changes_nothing() {
    let server = server();
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

/// Waiters that one request names are queued one behind the other. If the first of them has the
/// lock, the other waiters have the entries behind it. Waiters that were already in the queue keep
/// their positions.
#[test]
fn a_request_of_many_that_is_sent_again_changes_nothing() {
    let server = server();
    let mut direct = Direct::new(&server);
    let _listener = listener(&server, &ours(1));
    let (one, two) = ([ours(1), ours(2), ours(3)], [ours(4), ours(5)]);
    let [one, two] = [&one[..], &two[..]].map(|all| all.iter().map(String::as_str));
    let (one, two): (Vec<_>, Vec<_>) = (one.collect(), two.collect());
    for taken in [1, 2] {
        let reply = direct.acquire_with(one[0], &one[1..]).unwrap();
        assert_eq!(reply[0], Value::Int(taken));
        assert!(matches!(reply[2], Value::Int(now) if now > 0), "{reply:?}");
    }
    for _ in 0..2 {
        assert_eq!(direct.acquire_with(two[0], &two[1..]).unwrap()[0], Value::Int(0));
        assert_eq!(direct.queue(), [one[1], one[2], two[0], two[1]]);
    }
    assert_eq!(direct.give_up(two[0]).unwrap(), 1);
    assert_eq!(direct.acquire_with(two[0], &two[1..]).unwrap()[0], Value::Int(0));
    assert_eq!(direct.queue(), [one[1], one[2], two[1], two[0]]);
    assert_eq!(direct.release(one[0], &[]).unwrap(), Some(1));
    // The holder keeps the lock and gets no entry.
    assert_eq!(direct.acquire_with(two[0], &[one[1]]).unwrap()[0], Value::Int(0));
    assert_eq!(direct.queue(), [one[2], two[1], two[0]]);
    direct.release(one[1], &[one[2], two[1], two[0]]).unwrap();
    assert_eq!(direct.left(), 0);
}

/// Without memory, a lock can be released, its waiters keep their entries, and the first of them
/// gets the lock. A new waiter gets a clear error.
#[test]
fn without_memory_the_queue_moves_on() {
    let server = server();
    let _listener = listener(&server, &ours(2));
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
    assert_eq!(direct.release(&ours(1), &[]).unwrap(), Some(1));
    assert!(direct.takes(&ours(2), true));
    assert_eq!(direct.give_up(&ours(4)).unwrap(), 1);
    // The queue's keys are deleted. The next request of a waiter gets a new entry.
    let _: i64 = direct.command(&["DEL", QUEUE, TIMEOUTS]);
    assert!(!direct.takes(&ours(5), true));
    assert_eq!(direct.queue(), [ours(5)]);
    assert_eq!(direct.release(&ours(2), &[&ours(3)]).unwrap(), Some(1));
    assert_eq!(direct.give_up(&ours(5)).unwrap(), 2);
    refused(direct.try_lock(&ours(9)).unwrap_err());
    refused(direct.acquire(&ours(9), false).unwrap_err());
    assert_eq!(direct.left(), 0);
}

/// If one of the keys contains other data, the script fails and changes no other key.
#[test]
fn something_else_under_a_key_is_an_error() {
    let server = server();
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
            wrong(direct.acquire(&ours(2), true).unwrap_err());
            wrong(direct.acquire(&ours(3), false).unwrap_err());
            wrong(direct.try_lock(&ours(4)).unwrap_err());
            wrong(direct.give_up(&ours(2)).unwrap_err());
            if foreign == LOCK {
                wrong(direct.force_unlock().unwrap_err());
            }
            if foreign != LOCK {
                wrong(direct.keep_alive(&[&ours(2)]).unwrap_err());
            } else {
                // The data that replaced the lock does not belong to this owner.
                assert_eq!(direct.release(&ours(1), &[]).unwrap(), None);
            }
            untouched(&mut direct);
        }
    }
}

/// A release is done or refused as a whole, even if the keys of the queue contain other data.
#[test]
fn a_release_is_done_or_refused_whole() {
    let server = server();
    let _listener = listener(&server, &ours(2));
    let mut direct = Direct::new(&server);
    for foreign in [QUEUE, TIMEOUTS] {
        assert!(direct.takes(&ours(1), false));
        assert!(!direct.takes(&ours(2), false));
        let () = direct.command(&["SET", foreign, "mine"]);
        let released = direct.release(&ours(1), &[&ours(2)]);
        let is_held: bool = direct.command(&["EXISTS", LOCK]);
        assert_eq!(released.is_err(), is_held, "{foreign}: {released:?}");
        let () = direct.command(&["FLUSHALL"]);
    }

    let mut acl = |rules: &[&str]| -> Option<Direct> {
        let user = [&["ACL", "SETUSER", "me", "reset", "on", ">word", "~*", "&*", "+@all"], rules];
        redis::cmd("ACL").arg(&user.concat()[1..]).exec(&mut direct.connection).ok()?;
        let mut connection = server.connection();
        redis::cmd("AUTH").arg("me").arg("word").exec(&mut connection).ok()?;
        Some(Direct::over(connection))
    };
    // This user may not send messages. If the release needs a message to a waiter, the lock stays
    // held.
    let mut mute = acl(&["-publish"]).unwrap();
    assert!(mute.takes(&ours(1), false));
    assert!(!mute.takes(&ours(2), false));
    assert!(mute.release(&ours(1), &[]).is_err());
    assert!(mute.force_unlock().is_err());
    mute.give_up(&ours(2)).unwrap();
    assert_eq!(mute.release(&ours(1), &[]).unwrap(), Some(0));
    // The script cannot set a lease, so it does not take the lock.
    let mut endless = acl(&["-pexpire"]).unwrap();
    assert!(endless.acquire(&ours(1), false).is_err());
    assert!(endless.try_lock(&ours(1)).is_err());
    assert_eq!(endless.left(), 0);
}

/// If a hash is not a lock, the call fails at once, because a wait for it would never end.
#[test]
fn a_hash_that_is_no_lock_is_an_error_and_is_left_as_it_is() {
    let server = server();
    let mut direct = Direct::new(&server);
    for fields in [&["name", "Ann"][..], &["name", "Ann", "age", "40"]] {
        let _: i64 = direct.command(&[&["HSET", LOCK], fields].concat());
        let wrong =
            |error: redis::RedisError| assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
        wrong(direct.acquire(&ours(1), false).unwrap_err());
        wrong(direct.acquire(&ours(1), true).unwrap_err());
        wrong(direct.try_lock(&ours(1)).unwrap_err());
        wrong(direct.force_unlock().unwrap_err());
        assert_eq!(direct.left(), 1);
        let there: Vec<String> = direct.command(&["HGETALL", LOCK]);
        assert_eq!(there.len(), fields.len());
        let () = direct.command(&["DEL", LOCK]);
    }
}

/// All commands that the scripts use.
const COMMANDS: [&str; 24] = [
    "publish",
    "pubsub",
    "exists",
    "get",
    "hset",
    "hrandfield",
    "hdel",
    "del",
    "pexpire",
    "pttl",
    "time",
    "linsert",
    "lpos",
    "lpush",
    "lrange",
    "lrem",
    "ltrim",
    "rpush",
    "set",
    "zadd",
    "zrange",
    "zrem",
    "zrevrange",
    "zscore",
];

/// The actions that write.
const WRITING: [&str; 11] = [
    "hset", "hdel", "del", "pexpire", "linsert", "lpush", "lrem", "ltrim", "rpush", "zadd", "zrem",
];

#[test]
fn the_test_of_refused_commands_covers_every_command_of_the_scripts() {
    let scripts = scripts();
    for script in OURS {
        let text = scripts.text(script);
        let calls = text.match_indices("call('").map(|(at, _)| at + 6);
        for at in calls.chain(text.match_indices("permit('").map(|(at, _)| at + 8)) {
            let name = text[at..].split('\'').next().unwrap();
            assert!(COMMANDS.contains(&name), "{script:?} uses {name}");
        }
    }
}

const OURS: [Script; 6] = [
    Script::Acquire,
    Script::Try,
    Script::GiveUp,
    Script::Release,
    Script::ForceUnlock,
    Script::KeepAlive,
];

/// The holder, the owners in the list, and the owners with a score.
#[derive(Debug, PartialEq, Eq)]
struct Keys {
    holders: Vec<String>,
    list: Vec<String>,
    set: Vec<String>,
}

impl Keys {
    fn of(direct: &mut Direct) -> Self {
        let sorted = |mut owners: Vec<String>| {
            owners.sort();
            owners
        };
        Self {
            holders: direct.command(&["HKEYS", LOCK]),
            list: sorted(direct.queue()),
            set: sorted(direct.command(&["ZRANGE", TIMEOUTS, "0", "-1"])),
        }
    }
}

/// Makes one of the states in which a script may run.
fn situation(direct: &mut Direct, number: usize) {
    const LATER: &str = "4000000000000";
    let () = direct.command(&["FLUSHALL"]);
    let mut wait = |owner: &str, score: &str| {
        let _: i64 = direct.command(&["RPUSH", QUEUE, owner]);
        let _: i64 = direct.command(&["ZADD", TIMEOUTS, score, owner]);
    };
    let (first, second) = (ours(2), ours(3));
    match number {
        0 | 1 => {}
        2 => wait(JAVA, LATER),
        3 => wait(&ours(8), "1"),
        _ => {
            if number == 5 || number == 7 {
                wait(&ours(8), "1");
            }
            wait(&first, LATER);
            if number > 6 {
                wait(JAVA, LATER);
            }
            wait(&second, LATER);
        }
    }
    let holder = match number {
        1 | 4 | 7 => ours(1),
        2 | 8 => format!("{JAVA}1"),
        _ => return,
    };
    let _: i64 = direct.command(&["HSET", LOCK, &holder, "1"]);
    let _: i64 = direct.command(&["PEXPIRE", LOCK, "30000"]);
}

const SITUATIONS: usize = 9;

/// Whichever command is refused, the lock expires, and each owner in the list has a score. The
/// owner of the request is in the state that the reply describes, or in its earlier state.
#[test]
fn a_refused_command_leaves_nothing_half_done() {
    let server = server();
    for deaf in [false, true] {
        refuse_everything(&server, deaf);
    }
}

fn refuse_everything(server: &Server, deaf: bool) {
    let _listener = (!deaf).then(|| listener(server, &ours(2)));
    let (mut direct, mut admin) = (Direct::new(server), Direct::new(server));
    let mut acl = |rules: &[&str]| {
        let all = [&["SETUSER", "me", "on", "nopass", "~*", "&*", "+@all"], rules].concat();
        redis::cmd("ACL").arg(&all).exec(&mut direct.connection).unwrap();
    };
    acl(&[]);
    let mut connection = server.connection();
    redis::cmd("AUTH").arg("me").arg("").exec(&mut connection).unwrap();
    let mut restricted = Direct::over(connection);
    let mut denials: Vec<Vec<&str>> = COMMANDS.iter().map(|command| vec![*command]).collect();
    for (at, one) in WRITING.iter().enumerate().filter(|_| !deaf && is_full()) {
        denials.extend(WRITING[at + 1..].iter().map(|other| vec![*one, *other]));
    }
    let (mut refusals, mut runs) = (0, 0);
    for denied in denials {
        let rules: Vec<_> = denied.iter().map(|command| format!("-{command}")).collect();
        acl(&rules.iter().map(String::as_str).collect::<Vec<_>>());
        for number in 0..SITUATIONS {
            for action in 0..ACTIONS {
                situation(&mut admin, number);
                let before = Keys::of(&mut admin);
                let (owner, outcome) = act(&mut restricted, action);
                runs += 1;
                refusals += usize::from(outcome.is_err());
                let after = Keys::of(&mut admin);
                let what =
                    format!("{denied:?} {action} in {number}: {outcome:?}, {before:?}, {after:?}");
                let left: i64 = admin.command(&["PTTL", LOCK]);
                assert!(left > 0 || left == -2, "a lock without an end: {what}");
                assert!(after.list.iter().all(|id| after.set.contains(id)), "{what}");
                // Two refused commands may leave a score without an entry, which does no harm.
                assert!(denied.len() > 1 || after.list == after.set, "half a place: {what}");
                let holds = after.holders.contains(&owner);
                let waits = after.list.contains(&owner);
                assert!(!(holds && waits), "{what}");
                match &outcome {
                    Ok(Some(told)) => {
                        assert_eq!((holds, waits), (*told == 1, *told == 0), "{what}");
                    }
                    Ok(None) => {}
                    Err(_) => {
                        let held = before.holders.contains(&owner) || before.list.contains(&owner);
                        // The second request of an owner may add its entry again and then fail. The
                        // client then gives this entry up.
                        let comes_back = !holds && (2..=3).contains(&action);
                        assert!(!holds && !waits || held || comes_back, "{what}");
                    }
                }
                let company = [10, 11].map(|number| after.list.contains(&ours(number)));
                let come = action == COME_TOGETHER && outcome.is_ok();
                assert_eq!(company, [come; 2], "{what}");
                let stay = |id: &&String| !after.list.contains(id) && **id != owner;
                for gone in before.list.iter().filter(stay) {
                    let granted = after.holders.contains(gone);
                    // The waiter is dead or counts as dead, or the hold was passed to it.
                    let may = *gone == ours(8) || deaf && *gone != JAVA || action >= FIRST_RELEASE;
                    assert!(may || granted, "{gone} is gone: {what}");
                }
                let new_holder = after.holders.iter().find(|id| !before.holders.contains(id));
                let next = |id: &&String| **id != owner;
                if let Some(granted) = new_holder.filter(next) {
                    assert!(!deaf && before.list.contains(granted), "granted to nobody: {what}");
                }
            }
        }
    }
    println!("{runs} runs, {refusals} refused");
    assert!(refusals * 10 > runs);
}

const ACTIONS: usize = 14;
const COME_TOGETHER: usize = 10;
/// The first of the actions by owners to which a hold was passed.
const FIRST_RELEASE: usize = 11;

/// Runs a script. Returns its owner and the reply: 1 if the owner has the lock, 0 if it waits.
fn act(direct: &mut Direct, action: usize) -> (String, RedisResult<Option<i64>>) {
    let owner = ours([2, 9, 2, 9, 9, 2, 1, 2, 0, 0, 9, 1, 1, 1][action]);
    let granted = |reply: RedisResult<Vec<Value>>| {
        reply.map(|parts| redis::from_redis_value(parts[0].clone()).ok())
    };
    let outcome = match action {
        0 | 1 => granted(direct.acquire(&owner, false)),
        2 | 3 => granted(direct.acquire(&owner, true)),
        4 => direct.try_lock(&owner).map(|taken| Some(if taken == 1 { 1 } else { 2 })),
        5 | 6 => direct.give_up(&owner).map(|_| Some(2)),
        7 => direct.leave(&owner).map(|_| Some(2)),
        8 => direct.keep_alive(&[&ours(2), &ours(3)]).map(|_| None),
        9 => direct.force_unlock().map(|_| None),
        COME_TOGETHER => granted(direct.acquire_with(&owner, &[&ours(10), &ours(11)])),
        11 => direct.release(&owner, &[]).map(|_| Some(2)),
        12 => direct.release(&owner, &[&ours(2)]).map(|_| Some(2)),
        _ => direct.release(&owner, &[&ours(3), &ours(4)]).map(|_| Some(2)),
    };
    (owner, outcome)
}

/// Redisson never drops a head without a score, so such a head counts as dead.
#[test]
fn a_head_without_a_score_blocks_no_client() {
    let server = server();
    let _listener = listener(&server, &ours(2));
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

/// If keys are lost, the waiters get new entries. If the lock is held, the new entries are in the
/// old order.
#[test]
fn lost_keys_strand_no_waiter() {
    let server = server();
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
        // The waiters may come back in any order, but are queued in the order of their numbers.
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

/// A silent waiter is skipped if the process that reports it as silent has itself had replies to
/// its requests.
#[test]
fn a_waiter_silent_while_others_are_heard_is_passed_and_keeps_its_place() {
    let server = server();
    let _listener = listener(&server, &ours(2));
    let mut direct = Direct::new(&server);
    for (steady, heard, passed) in [("0", true, false), ("1", false, false), ("1", true, true)] {
        let () = direct.command(&["FLUSHALL"]);
        for number in 1..=3 {
            direct.acquire(&ours(number), false).unwrap();
        }
        let [seconds, _]: [String; 2] = direct.command(&["TIME"]);
        let now = seconds.parse::<i64>().unwrap() * 1_000;
        // The first waiter sent its last keep-alive three seconds ago.
        let score = |silent: i64| (now + 10_000 - silent).to_string();
        let _: i64 = direct.command(&["ZADD", TIMEOUTS, &score(3_000), &ours(2)]);
        if !heard {
            let _: i64 = direct.command(&["ZADD", TIMEOUTS, &score(3_000), &ours(3)]);
        }
        let (_, missing) = direct.keep_alive_if(steady, &[&ours(3)]).unwrap();
        assert_eq!(missing, [""; 0]);
        assert_eq!(direct.queue(), [ours(2), ours(3)], "it keeps its place");
        direct.release(&ours(1), &[]).unwrap();
        let holders: Vec<String> = direct.command(&["HKEYS", LOCK]);
        assert_eq!(holders, [ours(if passed { 3 } else { 2 })], "{steady} {heard}");
    }
}

/// A lease that is too long for Redis is an error. The longest valid lease is accepted.
#[test]
fn leases_without_sense_leave_no_lock() {
    let server = server();
    let mut direct = Direct::new(&server);
    for (lease, taken) in [("10000000000000", true), ("9223372036854775807", false)] {
        let reply: RedisResult<Vec<Value>> =
            direct.run_ours(Script::Acquire, &[lease, &ours(1), "0"]);
        assert_eq!(reply.is_ok(), taken, "{reply:?}");
        let reply: RedisResult<i64> = direct.run_ours(Script::Try, &[lease, &ours(1)]);
        assert_eq!(reply.is_ok(), taken, "{reply:?}");
        direct.release(&ours(1), &[]).unwrap();
        assert_eq!(direct.left(), 0);
    }
}
