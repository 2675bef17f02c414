//! Scripts that run only while their guard's owner has the lock.

mod stops;

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::{Commands as _, Connection};
use redlatch::{
    Attempt, CancelToken, Client, Error, ErrorKind, HoldState, Lock, LockGuard, MultiLock,
    OwnedLockGuard, Script, Value, Wait,
};
use redlatch_testkit::{Action, Direction, Proxy, Server};

/// Adds one to a number, and returns the script's keys and arguments.
const ADDS: &str = "return {redis.call('incr', KEYS[1]), #KEYS, #ARGV, ARGV[1]}";

fn adds() -> Script {
    Script::new(ADDS)
}

fn number(redis: &mut Connection) -> i64 {
    redis.get::<_, Option<i64>>("number").unwrap().unwrap_or_default()
}

/// Calls `visit` with a thread's guard of each kind.
fn guards(client: &Client, name: &str, mut visit: impl FnMut(LockGuard, &str)) {
    let kinds: [(Box<dyn Lock>, &str); 4] = [
        (Box::new(client.reentrant_lock(&format!("{name}:plain"))), "plain"),
        (Box::new(client.fair_lock(&format!("{name}:fair"))), "fair"),
        (Box::new(client.read_write_lock(&format!("{name}:write")).writer().clone()), "write"),
        (Box::new(client.fenced_lock(&format!("{name}:fenced"))), "fenced"),
    ];
    for (lock, kind) in kinds {
        visit(lock.lock().unwrap(), kind);
    }
}

/// A late copy of the lock's request could give the owner the lock again after another owner has
/// had it. A late script would then run.
#[test]
fn no_script_runs_under_a_hold_whose_request_was_sent_twice() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy, |client| {
        client.reentrant_lock("twice").lock().unwrap().unlock().unwrap();
    });
    let mut redis = server.connection();
    let lock = client.reentrant_lock("twice");
    proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| contains(bytes, "{twice}"));
    let guard = lock.lock().unwrap();
    let error = guard.eval(&adds(), &["number"], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_transient() && !error.outcome_unknown(), "{error}");
    assert!(error.to_string().contains("take it again"), "{error}");
    assert!(guard.is_held());
    assert_eq!(number(&mut redis), 0);
    guard.unlock().unwrap();
    let guard = lock.lock().unwrap();
    guard.eval(&adds(), &["number"], &[]).unwrap();
    assert_eq!(number(&mut redis), 1);
}

#[test]
fn a_script_without_a_wait_has_the_time_of_one_short_request() {
    let server = server();
    let client = Client::builder(&server.url()).response_timeout(LONG_LEASE).connect().unwrap();
    let guard = client.reentrant_lock("short").lock().unwrap();
    guard.eval(&adds(), &["number"], &[]).unwrap();
    server.pause();
    let begun = Instant::now();
    let error = guard.eval_within(Duration::ZERO, &adds(), &["number"], &[]).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert!(begun.elapsed() < LONG_LEASE / 2);
    server.resume();
}

#[test]
fn a_script_gets_the_callers_keys_and_arguments_and_its_result_comes_back() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    guards(&client, "own", |guard, kind| {
        let before = number(&mut redis);
        let one = guard.eval(&adds(), &["number"], &[b"\xff\0one", b"two"]).unwrap();
        let parts = [before + 1, 1, 2].map(Value::Int);
        let mut expected = parts.to_vec();
        expected.push(Value::Bytes(b"\xff\0one".to_vec()));
        assert_eq!(one, Value::List(expected), "{kind}");
        for (text, expected) in [
            ("", Value::Nil),
            ("return nil", Value::Nil),
            ("return false", Value::Nil),
            ("return true", Value::Int(1)),
            ("return 3.9", Value::Int(3)),
            ("return 'text' -- at the end", Value::Bytes(b"text".to_vec())),
            ("return redis.status_reply('FINE')", Value::Bytes(b"FINE".to_vec())),
            ("return redis.call('set', 'x', 1)", Value::Bytes(b"OK".to_vec())),
            ("return setmetatable({1}, {__index = function() error('no') end})", {
                Value::List(vec![Value::Int(1)])
            }),
            ("return {1, {2, 'x'}, nil, 4}", {
                let inner = Value::List(vec![Value::Int(2), Value::Bytes(b"x".to_vec())]);
                Value::List(vec![Value::Int(1), inner])
            }),
            ("return {redis.pcall('nothing')} and {{}}", Value::List(vec![Value::List(vec![])])),
            ("local KEYS, ARGV = 1, 2 return KEYS + ARGV", Value::Int(3)),
            ("return select('#', ...)", Value::Int(0)),
            ("return #KEYS + #ARGV", Value::Int(0)),
            ("return type(owner) == 'nil' and type(held) == 'nil' and 7", Value::Int(7)),
        ] {
            // A name that a script has not made itself is an error to some servers, and not nil.
            let got = guard.eval(&Script::new(text), &[], &[]);
            if text.contains("owner") && got.is_err() {
                continue;
            }
            assert_eq!(got.unwrap(), expected, "{kind}: {text}");
        }
        assert_eq!(guard.command("INCRBY", &["number"], &[b"5"]).unwrap().as_int(), {
            Some(before + 6)
        });
        assert_eq!(guard.command("GET", &["absent"], &[]).unwrap(), Value::Nil);
        assert_eq!(guard.state(), HoldState::Held);
        guard.unlock().unwrap();
    });
}

#[test]
fn a_script_after_a_loss_changes_nothing_and_the_guard_knows() {
    let server = server();
    let other = client(&server);
    // This client gets no other sign of a loss.
    let client = Client::builder(&server.url())
        .watchdog_timeout(LONG_LEASE)
        .client_tracking(false)
        .connect()
        .unwrap();
    let mut redis = server.connection();
    guards(&client, "lost", |guard, kind| {
        let name = guard.name().to_owned();
        let () = redis.del(&name).unwrap();
        let another: Box<dyn Lock> = match kind {
            "write" => Box::new(other.read_write_lock(&name).writer().clone()),
            _ => Box::new(other.reentrant_lock(&name)),
        };
        let present = another.lock().unwrap();
        let () = redis.set("number", 10).unwrap();
        let (told, lost) = mpsc::channel();
        guard.on_lost(move |reason| told.send(reason).unwrap());
        assert!(guard.is_held(), "{kind}: nobody has told it");
        let error = guard.eval(&adds(), &["number"], &[b"1"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{kind}: {error}");
        assert!(!error.outcome_unknown(), "{kind}: {error}");
        assert_eq!(number(&mut redis), 10, "{kind}");
        assert!(matches!(guard.state(), HoldState::Lost(_)), "{kind}");
        lost.recv_timeout(TIMEOUT).unwrap();
        let again = guard.command("INCR", &["number"], &[]).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::LeaseLost, "{kind}: {again}");
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost, "{kind}");
        // The present owner's scripts run.
        present.eval(&adds(), &["number"], &[b"1"]).unwrap();
        present.unlock().unwrap();
    });
}

/// The test first sets the lock's mode to `read`. A Redisson writer that continues as a reader does
/// the same.
#[test]
fn a_write_locks_script_runs_only_while_its_owner_writes() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let guard = client.read_write_lock("mode").writer().lock().unwrap();
    let _: i64 = redis.hset("mode", "mode", "read").unwrap();
    let error = guard.eval(&adds(), &["number"], &[b"1"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    assert_eq!(number(&mut redis), 0);
}

#[test]
fn other_data_under_the_name_is_a_loss() {
    let server = server();
    let client = client(&server);
    let guard = client.reentrant_lock("data").lock().unwrap();
    let () = server.connection().set("data", "text").unwrap();
    let error = guard.eval(&adds(), &["number"], &[b"1"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    assert_eq!(number(&mut server.connection()), 0);
}

#[test]
fn an_owned_guard_and_a_part_of_several_locks_run_scripts() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let owned: OwnedLockGuard = client.reentrant_lock("owned").lock_owned().unwrap();
    let owned = thread::spawn(move || {
        owned.eval(&adds(), &["number"], &[b"1"]).unwrap();
        owned
    });
    owned.join().unwrap().unlock().unwrap();
    let both = MultiLock::new(&[&client.reentrant_lock("one"), &client.reentrant_lock("two")]);
    let guard = both.unwrap().lock().unwrap();
    let error = guard.eval(&adds(), &["number"], &[b"1"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    guard.part("two").unwrap().eval(&adds(), &["number"], &[b"1"]).unwrap();
    assert!(guard.part("three").is_none());
    assert_eq!(number(&mut redis), 2);
    let () = redis.del("two").unwrap();
    let error = guard.part("two").unwrap().eval(&adds(), &["number"], &[b"1"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    guard.part("one").unwrap().command("INCR", &["number"], &[]).unwrap();
    assert_eq!(number(&mut redis), 3);
}

#[test]
fn a_script_that_cannot_be_fenced_is_refused_before_anything_is_sent() {
    let server = server();
    let client = client(&server);
    let guard = client.reentrant_lock("plain").lock().unwrap();
    let reading = client.read_write_lock("read").reader().lock().unwrap();
    let commands = Commands::so_far(&server);
    let shebang = Script::new("#!lua flags=no-writes\nreturn 1");
    for refused in [guard.eval(&shebang, &[], &[]), reading.eval(&adds(), &["number"], &[b"1"])] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    let now = Commands::so_far(&server);
    assert_eq!(now.of("eval") + now.of("evalsha"), commands.of("eval") + commands.of("evalsha"));
    guard.unlock().unwrap();
}

#[test]
fn an_error_of_the_script_is_the_scripts_and_keeps_what_it_wrote() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    guards(&client, "error", |guard, kind| {
        let () = redis.del("number").unwrap();
        let fails = |text: &str| guard.eval(&Script::new(text), &["number"], &[]).unwrap_err();
        for (text, said) in [
            ("redis.call('incr', KEYS[1]) return redis.error_reply('EMPTY no stock')", "no stock"),
            ("redis.call('incr', KEYS[1]) error('so it is')", "so it is"),
            ("redis.call('incr', KEYS[1]) error({err = 'MINE own'})", "MINE own"),
            ("redis.call('incr', KEYS[1]) redis.call('lpush', KEYS[1], 1)", "WRONGTYPE"),
            // These are the codes of servers that have not run a script.
            ("redis.call('incr', KEYS[1]) return {err = 'NOSCRIPT really'}", "NOSCRIPT"),
            ("redis.call('incr', KEYS[1]) error({err = 'MOVED 1 127.0.0.1:1'})", "MOVED"),
            // These are the codes of the replies of redlatch's own script.
            ("redis.call('incr', KEYS[1]) return {err = 'NOTHELD really'}", "NOTHELD"),
            ("redis.call('incr', KEYS[1]) error({err = 'SCRIPT twice'})", "SCRIPT twice"),
        ] {
            let error = fails(text);
            assert_eq!(error.kind(), ErrorKind::Script, "{kind}: {error}");
            assert!(error.to_string().contains(said), "{kind}: {error}");
            assert!(!error.outcome_unknown() && !error.is_transient(), "{kind}: {error}");
        }
        assert_eq!(number(&mut redis), 8, "{kind}: each ran once");
        let error = fails("return return");
        assert_eq!(error.kind(), ErrorKind::Refused, "{kind}: {error}");
        let error = fails("return redis.error_reply('OOM command not allowed')");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{kind}: {error}");
        assert_eq!(guard.state(), HoldState::Held);
        guard.unlock().unwrap();
    });
}

#[test]
fn a_server_that_has_forgotten_the_script_gets_its_text_and_runs_it_once() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let guard = client.reentrant_lock("forgotten").lock().unwrap();
    let script = adds();
    for _ in 0..3 {
        guard.eval(&script, &["number"], &[b"1"]).unwrap();
        let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
    }
    assert_eq!(number(&mut redis), 3);
    guard.unlock().unwrap();
}

/// One turn of a thread: the owner, and the result of its script.
struct Turn {
    owner: String,
    result: Result<Value, Error>,
}

/// Runs threads of one process that take the lock in turn and run the script. A third of the
/// replies to the script is lost. Returns the turns in their order.
fn turns(script: &Script) -> Vec<Turn> {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG_LEASE)
        .connections(1)
        .connect()
        .unwrap();
    let guard = client.reentrant_lock("turns").lock().unwrap();
    guard.eval(script, &["warm"], &[b"1"]).unwrap();
    guard.unlock().unwrap();
    let random = Mutex::new(Random::new());
    proxy.on(Direction::Request, usize::MAX, Action::LoseReply, move |bytes| {
        contains(bytes, "number") && random.lock().unwrap().below(3) == 0
    });
    let turns = Arc::new(Mutex::new(Vec::new()));
    let users: Vec<_> = (0..3)
        .map(|_| {
            let (lock, script) = (client.reentrant_lock("turns"), script.clone());
            let turns = Arc::clone(&turns);
            spawn(move || {
                for _ in 0..60 {
                    let guard = lock.lock().unwrap();
                    let result = guard.eval(&script, &["number"], &[b"1"]);
                    let owner = guard.owner().unwrap();
                    // If the reply to the lock's request was lost, the client has sent that request
                    // twice, and refuses to send a script.
                    if result.as_ref().map_or_else(Error::outcome_unknown, |_| true) {
                        turns.lock().unwrap().push(Turn { owner: owner.to_string(), result });
                    }
                    // The connection may break before this reply, too.
                    let _ = guard.unlock();
                }
            })
        })
        .collect();
    users.into_iter().for_each(Running::join);
    Arc::into_inner(turns).unwrap().into_inner().unwrap()
}

#[test]
fn a_script_without_a_reply_is_not_sent_again_and_its_hold_is_not_passed_on() {
    let (mut passed, mut lost, mut number) = (0, 0, 0);
    for pair in turns(&adds()).windows(2) {
        let [turn, next] = pair else { unreachable!() };
        number += 1;
        match &turn.result {
            Ok(Value::List(parts)) => {
                assert_eq!(parts[0], Value::Int(number), "a script was sent again");
                passed += usize::from(turn.owner == next.owner);
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(error.outcome_unknown() && error.kind().is_server_trouble(), "{error}");
                assert!(error.to_string().contains("can still run until"), "{error}");
                assert_ne!(turn.owner, next.owner, "the hold was passed on");
                lost += 1;
            }
        }
    }
    assert!(passed > 0 && lost > 0, "{passed}, {lost}");
}

#[test]
fn an_idempotent_script_is_sent_again_and_its_hold_is_not_passed_on() {
    let (mut passed, mut copied, mut before) = (0, 0, 0);
    for pair in turns(&adds().idempotent()).windows(2) {
        let [turn, next] = pair else { unreachable!() };
        // The reply to the script and the reply to its copy may both be lost.
        let number = match &turn.result {
            Ok(Value::List(parts)) => parts[0].as_int().unwrap(),
            Ok(other) => panic!("{other:?}"),
            Err(_) => before + 2,
        };
        if number == before + 1 {
            passed += usize::from(turn.owner == next.owner);
        } else {
            assert_eq!(number, before + 2);
            assert_ne!(turn.owner, next.owner, "the first copy may still come");
            copied += 1;
        }
        before = number;
    }
    assert!(passed > 0 && copied > 0, "{passed}, {copied}");
}

#[test]
fn a_script_that_was_cut_off_may_still_run_but_not_under_the_next_owner() {
    let server = server();
    let client = client(&server);
    let guard = client.reentrant_lock("cut").lock().unwrap();
    guard.eval(&adds(), &["warm"], &[b"1"]).unwrap();
    server.pause();
    let error =
        guard.eval_within(Duration::from_millis(1), &adds(), &["number"], &[b"1"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResponseTimeout, "{error}");
    assert!(error.outcome_unknown(), "{error}");
    let token = CancelToken::new();
    token.cancel();
    let cancelled = guard.eval_within(&token, &adds(), &["number"], &[b"1"]).unwrap_err();
    assert_eq!(cancelled.kind(), ErrorKind::Cancelled, "{cancelled}");
    server.resume();
    let owner = guard.owner().unwrap();
    guard.unlock().unwrap();
    let next = client.reentrant_lock("cut").lock().unwrap();
    assert_ne!(next.owner().unwrap(), owner);
    let result = next.eval_within(Wait::at_most(TIMEOUT), &adds(), &["number"], &[b"1"]).unwrap();
    let Value::List(parts) = result else { panic!("{result:?}") };
    assert!(matches!(parts[0], Value::Int(1 | 2)), "{parts:?}");
    next.unlock().unwrap();
}

#[test]
fn a_guard_whose_lock_was_released_runs_nothing() {
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("released");
    let guard = lock.lock().unwrap();
    lock.unlock().unwrap();
    let error = guard.eval(&adds(), &["number"], &[b"1"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    assert_eq!(number(&mut server.connection()), 0);
}
