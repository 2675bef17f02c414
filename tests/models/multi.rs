//! The script that takes several locks, with random states of the locks and with users that lack a
//! right. The script must take all locks or none, and respect every queue and window. The test also
//! finds each planted bug.

use redis::{Connection, Value};

use crate::common::{Random, unbounded_server};
use redlatch_testkit::Server;

const ALL: &str = include_str!("../../lua/multi/acquire.lua");
const ROUNDS: u64 = 600;

const OURS: &str = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab";
const ANOTHER: &str = "1f3b1c9e-3f2a-8d5c-9b7e-1234567890ab";

/// A lock's state before the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Free,
    /// The first copy of the request has taken the lock.
    Own,
    /// As `Own`, but now another process waits.
    OwnWithQueue,
    /// Another owner of this client has the lock.
    Leaving,
    Taken,
    Queue,
    Window,
    Text,
}

const STATES: [Before; 8] = {
    use Before::*;
    [Free, Own, OwnWithQueue, Leaving, Taken, Queue, Window, Text]
};

fn owner(client: &str, number: usize) -> String {
    format!("{client}:{number}")
}

fn keys(name: usize) -> [String; 4] {
    ["", "redlatch_queue:", "redlatch_window:", "redisson_lock_token:"].map(|prefix| match prefix {
        "" => format!("l{name}"),
        prefix => format!("{prefix}{{l{name}}}"),
    })
}

fn run(redis: &mut Connection, words: &[&str]) {
    redis::cmd(words[0]).arg(&words[1..]).exec(redis).unwrap();
}

fn prepare(redis: &mut Connection, name: usize, before: Before) {
    let [lock, queue, window, _] = &keys(name);
    let mut hold = |owner: &str| {
        run(redis, &["HSET", lock, owner, "1"]);
        run(redis, &["PEXPIRE", lock, "30000"]);
    };
    match before {
        Before::Free => {}
        Before::Own | Before::OwnWithQueue => hold(&owner(OURS, name)),
        Before::Leaving => hold(&owner(OURS, name + 100)),
        Before::Taken => hold(&owner(ANOTHER, 1)),
        Before::Queue => run(redis, &["RPUSH", queue, &owner(ANOTHER, 1)]),
        Before::Window => run(redis, &["SET", window, "", "PX", "30000"]),
        Before::Text => run(redis, &["SET", lock, "text"]),
    }
    if before == Before::OwnWithQueue {
        run(redis, &["RPUSH", queue, &owner(ANOTHER, 1)]);
    }
}

/// Returns the values under the keys, except the tokens.
fn dump(redis: &mut Connection, count: usize) -> Vec<Value> {
    let all = (0..count).flat_map(|name| keys(name).into_iter().take(3));
    all.map(|key| redis::cmd("DUMP").arg(key).query(redis).unwrap()).collect()
}

/// Checks one state and one user. The error names the broken rule.
fn check(
    server: &Server,
    redis: &mut Connection,
    text: &str,
    seed: u64,
    seen: &mut [usize; 3],
) -> Result<(), String> {
    let mut random = Random::of(seed);
    let mut any = |of: usize| usize::try_from(random.below(of as u64)).unwrap();
    let (count, is_fenced) = (1 + any(4), any(2) == 1);
    let mostly_free = |at: usize| STATES[at.saturating_sub(8)];
    let states: Vec<_> = (0..count).map(|_| mostly_free(any(8 + STATES.len()))).collect();
    let denied = ["", "", "-hset", "-pexpire", "-incrby", "-llen"][any(6)];
    // The user lacks this right only for the last lock.
    let mut rules = vec!["ACL", "SETUSER", "me", "reset", "on", ">word", "&*", "+@all", "~*"];
    let rest = (0..count - 1).flat_map(|name| keys(name).map(|key| format!("~{key}")));
    let selector = format!("(+@all {})", rest.collect::<Vec<_>>().join(" "));
    if !denied.is_empty() {
        rules.push(denied);
        if count > 1 {
            rules.push(&selector);
        }
    }
    run(redis, &["FLUSHALL"]);
    run(redis, &rules);
    states.iter().enumerate().for_each(|(name, state)| prepare(redis, name, *state));
    let before = dump(redis, count);

    let mut user = server.connection();
    run(&mut user, &["AUTH", "me", "word"]);
    let of_each = if is_fenced { 4 } else { 3 };
    let all: Vec<_> =
        (0..of_each).flat_map(|key| (0..count).map(move |at| keys(at)[key].clone())).collect();
    let owners: Vec<_> = (0..count).map(|name| owner(OURS, name)).collect();
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(all.len()).arg(&all).arg("30000").arg(&owners);
    let reply = command.query::<Value>(&mut user);

    let case = format!("{states:?}, fenced {is_fenced}, last lock {denied:?}: {reply:?}");
    let is_own = |state: &Before| matches!(state, Before::Own | Before::OwnWithQueue);
    let free = states.iter().all(|state| *state == Before::Free || is_own(state));
    let taken = match &reply {
        Ok(Value::Array(replies)) => replies.len(),
        Ok(Value::Int(taken)) => usize::try_from(*taken).unwrap(),
        _ => 0,
    };
    if taken > 0 {
        seen[0] += 1;
        if !free || taken != count {
            return Err(format!("taken past another: {case}"));
        }
        for (name, state) in states.iter().enumerate() {
            let [lock, queue, ..] = &keys(name);
            let holders: Vec<String> = redis::cmd("HKEYS").arg(lock).query(redis).unwrap();
            let left: i64 = redis::cmd("PTTL").arg(lock).query(redis).unwrap();
            let waiting: usize = redis::cmd("LLEN").arg(queue).query(redis).unwrap();
            if holders != [owner(OURS, name)] || left <= 0 {
                return Err(format!("not held, or without an end: {case}"));
            }
            if waiting != usize::from(*state == Before::OwnWithQueue) {
                return Err(format!("a queue has changed: {case}"));
            }
        }
        return Ok(());
    }
    if dump(redis, count) != before {
        return Err(format!("none taken, and something has changed: {case}"));
    }
    if free && denied.is_empty() {
        return Err(format!("free and not taken: {case}"));
    }
    let first = states.iter().find(|state| **state != Before::Free && !is_own(state));
    match reply {
        Ok(Value::Nil) => {
            seen[1] += 1;
            // Another owner of this client may be about to release the lock.
            if first != Some(&Before::Taken) && denied.is_empty() {
                return Err(format!("told as taken: {case}"));
            }
        }
        Ok(Value::Int(0)) => seen[2] += 1,
        _ if denied.is_empty() => return Err(format!("no answer: {case}")),
        _ => {}
    }
    Ok(())
}

#[test]
fn random_states_are_taken_all_or_none() {
    let server = unbounded_server();
    let (mut redis, mut seen) = (server.connection(), [0; 3]);
    for seed in 0..ROUNDS {
        check(&server, &mut redis, ALL, seed, &mut seen)
            .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    assert!(seen.iter().all(|times| *times > 10), "{seen:?}");
}

/// The planted bugs. Each bug has a name, a part of the script, and the replacement of this part.
const MUTANTS: [(&str, &str, &str); 6] = [
    (
        "takes past the queue",
        "lock, KEYS[count + i], KEYS[2 * count + i])",
        "lock, KEYS[2 * count + i])",
    ),
    (
        "takes within a window",
        "lock, KEYS[count + i], KEYS[2 * count + i])",
        "lock, KEYS[count + i])",
    ),
    ("keeps what it took before a refusal", "if not (had and had[j])", "if false"),
    ("gives back what the first copy took", "if not (had and had[j])", "if true"),
    ("refuses its own copy", "redis.pcall('hexists', lock, owner) == 1", "false"),
    (
        "tells an owner that leaves as another client's",
        "and string.sub(held_by, 1, 36) ~= string.sub(owner, 1, 36)",
        "",
    ),
];

#[test]
fn each_planted_bug_of_several_locks_is_found() {
    let server = unbounded_server();
    let mut redis = server.connection();
    for (what, part, instead) in MUTANTS {
        assert!(ALL.contains(part), "{what}");
        let mut text = ALL.replace(part, instead);
        if what.starts_with("takes") {
            // The script's first command reads the same keys, so plant the bug there, too.
            let looks = "unpack(KEYS, 1, 3 * count)";
            assert!(text.contains(looks));
            text = text.replace(looks, "unpack(KEYS, 1, count)");
        }
        let found =
            (0..ROUNDS).find_map(|seed| check(&server, &mut redis, &text, seed, &mut [0; 3]).err());
        assert!(found.is_some(), "not found: {what}");
    }
}
