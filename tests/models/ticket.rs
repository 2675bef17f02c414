//! Explores the scripts that hand a lock over by a ticket. Their requests, repeated requests and
//! late copies reach the server in every order, mixed with releases, a forced unlock and the end of
//! the lease. At each moment at most one owner has the lock. The exploration finds each planted
//! bug.

use std::collections::{HashSet, VecDeque};

use redis::{Connection, Value};

use crate::common::unbounded_server;
use redlatch_testkit::Server;

const HOLD: &str = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:1800000000000000";
const TICKET: &str = "9f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:800000000000000";
const ADOPTERS: [&str; 2] = [
    "1f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:800000000000000",
    "2f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:800000000000000",
];
const WAITER: &str = "3f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:1800000000000004";

/// Leases in ms: of the first hold, of the ticket, of an adopter, and the lease to which an adopter
/// extends.
const LEASE: i64 = 40_000;
const KEEP: i64 = 50_000;
const ADOPTED: i64 = 30_000;
const EXTENDED: i64 = 90_000;
/// How much a time to live may differ from the expected time, on a busy machine.
const SLACK: i64 = 5_000;
/// The time that a step lets pass.
const PASSES: i64 = 15_000;

const LOCK: &str = "l";
const QUEUE: &str = "redlatch_queue:{l}";
const KEYS: [&str; 4] = [LOCK, QUEUE, "redlatch_window:{l}", "redisson_lock_token:{l}"];
const PUBLIC: &str = "redisson_lock__channel:{l}";

fn text(last: &str) -> String {
    let parts = [
        include_str!("../../lua/prelude.lua"),
        include_str!("../../lua/hand_off.lua"),
        include_str!("../../lua/lock/holder.lua"),
        include_str!("../../lua/lock/owner.lua"),
        include_str!("../../lua/lock/successor.lua"),
        last,
    ];
    parts.concat()
}

/// The texts of the scripts that hand a lock over, and of the scripts that end a hold.
#[derive(Clone)]
struct Texts {
    ticket: String,
    adopt: String,
    release: String,
    force: String,
}

impl Texts {
    fn new() -> Self {
        Self {
            ticket: text(include_str!("../../lua/lock/ticket.lua")),
            adopt: text(include_str!("../../lua/lock/adopt.lua")),
            release: text(include_str!("../../lua/lock/release.lua")),
            force: text(include_str!("../../lua/lock/force_unlock.lua")),
        }
    }
}

/// A step. If a request's reply is not `noted`, the reply is lost or the request is a late copy.
/// There is no step for a lost request, because it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Gives {
        noted: bool,
    },
    Adopts {
        by: usize,
        noted: bool,
    },
    Releases(usize),
    /// The first holder releases, or a late copy of its release arrives.
    FirstReleases,
    Extends(usize),
    Forced,
    Expires,
    TimePasses,
}

/// What an adopter knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Known {
    #[default]
    Nothing,
    Refused,
    Has,
    Left,
    /// The adopter had the lock until the lease ended or another client unlocked it by force.
    Lost,
}

/// The lock at the server: its owner, and its time to live in ms.
type State = (Option<String>, i64);

struct World<'a> {
    redis: &'a mut Connection,
    texts: &'a Texts,
    is_fenced: bool,
    given: bool,
    adopters: [Known; 2],
    /// The last token of the holders so far.
    token: i64,
}

fn run(redis: &mut Connection, words: &[&str]) -> Value {
    redis::cmd(words[0]).arg(&words[1..]).query(redis).unwrap()
}

impl<'a> World<'a> {
    fn new(redis: &'a mut Connection, texts: &'a Texts, is_fenced: bool, waits: bool) -> Self {
        let world = Self {
            redis,
            texts,
            is_fenced,
            given: false,
            adopters: [Known::Nothing; 2],
            token: 1_024,
        };
        let mut run = |words: &[&str]| run(world.redis, words);
        run(&[&["DEL"], &KEYS[..]].concat());
        run(&["HSET", LOCK, HOLD, "1"]);
        run(&["PEXPIRE", LOCK, &LEASE.to_string()]);
        run(&["SET", KEYS[3], "1024"]);
        if waits {
            run(&["RPUSH", QUEUE, WAITER]);
        }
        world
    }

    fn eval(&mut self, text: &str, args: &[&str]) -> Result<Value, String> {
        let keys = &KEYS[..if self.is_fenced { 4 } else { 3 }];
        let mut command = redis::cmd("EVAL");
        command.arg(text).arg(keys.len()).arg(keys).arg(args);
        command.query(self.redis).map_err(|error| error.to_string())
    }

    fn gives(&mut self) -> Result<Value, String> {
        let text = &self.texts.ticket;
        self.eval(text, &[&KEEP.to_string(), HOLD, TICKET, "0"])
    }

    fn adopts(&mut self, by: usize) -> Result<Value, String> {
        let text = &self.texts.adopt;
        self.eval(text, &[&ADOPTED.to_string(), ADOPTERS[by], TICKET, "0"])
    }

    /// Reads the state of the lock. It must have at most one owner, and always a time to live.
    fn state(&mut self) -> Result<State, String> {
        let mut owners: Vec<String> = redis::cmd("HKEYS").arg(LOCK).query(self.redis).unwrap();
        let left: i64 = redis::cmd("PTTL").arg(LOCK).query(self.redis).unwrap();
        match owners.pop() {
            None => Ok((None, 0)),
            Some(owner) if owners.is_empty() && left > 0 => Ok((Some(owner), left)),
            Some(_) => Err(format!("two owners, or no end: {owners:?}, {left}")),
        }
    }

    fn steps(&self) -> Vec<Step> {
        use Step::{Adopts, Expires, Extends, FirstReleases, Forced, Gives, Releases, TimePasses};
        let mut steps = vec![Gives { noted: false }, FirstReleases, TimePasses, Expires, Forced];
        if !self.given {
            steps.push(Gives { noted: true });
            return steps;
        }
        for by in 0..ADOPTERS.len() {
            steps.push(Adopts { by, noted: false });
            match self.adopters[by] {
                Known::Nothing => steps.push(Adopts { by, noted: true }),
                Known::Has => steps.extend([Releases(by), Extends(by)]),
                Known::Refused | Known::Left | Known::Lost => {}
            }
        }
        steps
    }

    /// Takes a step. The error says which rule is broken.
    fn take(&mut self, step: Step) -> Result<(), String> {
        let before = self.state()?;
        let is_held = |by: &str| before.0.as_deref() == Some(by);
        // The owner that the lock may have after this step.
        let mut next = before.0.clone();
        match step {
            Step::Gives { noted } => {
                if is_held(HOLD) {
                    next = Some(TICKET.to_owned());
                }
                let reply = self.gives()?;
                if noted {
                    let expected =
                        if next.as_deref() == Some(TICKET) { Value::Int(1) } else { Value::Nil };
                    if reply != expected {
                        return Err(format!("{reply:?} instead of {expected:?}"));
                    }
                    self.given = true;
                }
                let left = self.state()?.1;
                if is_held(HOLD) && (left - KEEP).abs() > SLACK {
                    return Err(format!("a ticket for {left} ms"));
                } else if is_held(TICKET) && left > before.1 {
                    return Err("a copy has set the lease again".to_owned());
                }
            }
            Step::Adopts { by, noted } => {
                let adopter = ADOPTERS[by];
                if is_held(TICKET) {
                    next = Some(adopter.to_owned());
                }
                let has = next.as_deref() == Some(adopter);
                let reply = self.adopts(by)?;
                let token = self.token_of(&reply, has)?;
                let left = self.state()?.1;
                let least = if is_held(adopter) { before.1.max(ADOPTED) } else { ADOPTED };
                if has && left < least - SLACK {
                    return Err(format!("{left} ms of {least}"));
                }
                if has && token <= self.token && self.is_fenced {
                    return Err(format!("token {token} after {}", self.token));
                }
                self.token = self.token.max(token);
                if noted {
                    self.adopters[by] = if has { Known::Has } else { Known::Refused };
                }
            }
            Step::Releases(by) => {
                next = self.first_in_line();
                self.eval(&self.texts.release.clone(), &[ADOPTERS[by], PUBLIC])?;
                self.adopters[by] = Known::Left;
            }
            Step::FirstReleases => {
                // A release that finds the lock free gives it to a waiter.
                if before.0.is_none() || is_held(HOLD) {
                    next = self.first_in_line();
                }
                self.eval(&self.texts.release.clone(), &[HOLD, PUBLIC])?;
            }
            Step::Extends(_) => drop(run(self.redis, &["PEXPIRE", LOCK, &EXTENDED.to_string()])),
            Step::Forced => {
                next = self.first_in_line();
                self.eval(&self.texts.force.clone(), &[PUBLIC])?;
                self.lose();
            }
            Step::Expires => {
                run(self.redis, &["DEL", LOCK]);
                next = None;
                self.lose();
            }
            Step::TimePasses if before.1 > PASSES + SLACK => {
                run(self.redis, &["PEXPIRE", LOCK, &(before.1 - PASSES).to_string()]);
            }
            Step::TimePasses => {}
        }
        let after = self.state()?.0;
        if after != next {
            return Err(format!("{after:?} has it instead of {next:?}"));
        }
        for (by, known) in self.adopters.iter().enumerate() {
            if *known == Known::Has && after.as_deref() != Some(ADOPTERS[by]) {
                return Err(format!("{by} believes to have it"));
            }
        }
        Ok(())
    }

    /// Returns the waiter that gets the lock at the end of a hold.
    fn first_in_line(&mut self) -> Option<String> {
        redis::cmd("LINDEX").arg(QUEUE).arg(0).query(self.redis).unwrap()
    }

    fn lose(&mut self) {
        for known in &mut self.adopters {
            if *known == Known::Has {
                *known = Known::Lost;
            }
        }
    }

    /// Returns the token of a reply. `has` says whether the adopter has the lock by this request.
    fn token_of(&self, reply: &Value, has: bool) -> Result<i64, String> {
        match reply {
            Value::Nil if !has => Ok(0),
            Value::Int(_) if has && !self.is_fenced => Ok(0),
            Value::Array(parts) if has && self.is_fenced => match parts[..] {
                [Value::Int(_), Value::Int(token)] => Ok(token),
                _ => Err(format!("{reply:?}")),
            },
            _ => Err(format!("{reply:?}, has it: {has}")),
        }
    }

    /// Returns a key that is equal for two states if the same further steps are possible from both.
    fn key(&mut self) -> Result<(State, bool, [Known; 2], i64), String> {
        let (owner, left) = self.state()?;
        let queue: i64 = redis::cmd("LLEN").arg(QUEUE).query(self.redis).unwrap();
        // Round the remaining time, so that the time that the test itself takes makes no new
        // states.
        Ok(((owner, (left + SLACK / 2) / SLACK), self.given, self.adopters, queue))
    }
}

/// Visits all states. Returns their number, or the first broken rule with the steps to it.
fn explore(server: &Server, texts: &Texts, is_fenced: bool, waits: bool) -> Result<usize, String> {
    let (mut redis, mut listener) = (server.connection(), server.connection());
    let channel = format!("redisson_lock__channel:{{redlatch:{}}}", &WAITER[..36]);
    redis::cmd("SUBSCRIBE").arg(channel).exec(&mut listener).unwrap();
    let (mut seen, mut paths) = (HashSet::new(), VecDeque::from([Vec::new()]));
    while let Some(path) = paths.pop_front() {
        let replay = |redis: &mut Connection, path: &[Step], more: &mut Vec<Step>| {
            let mut world = World::new(redis, texts, is_fenced, waits);
            for step in path {
                world.take(*step)?;
            }
            *more = world.steps();
            world.key()
        };
        let mut steps = Vec::new();
        replay(&mut redis, &path, &mut steps)?;
        for step in steps {
            let path = [&path[..], &[step]].concat();
            let key = replay(&mut redis, &path, &mut Vec::new())
                .map_err(|broken| format!("fenced {is_fenced}, {path:?}: {broken}"))?;
            if seen.insert(key) {
                paths.push_back(path);
            }
        }
    }
    Ok(seen.len())
}

/// If the user lacks a right, the server is out of memory, or the server is a replica, the server
/// refuses the request. The request then changes nothing except the tokens.
fn check_refusals(server: &Server, texts: &Texts) -> Result<(), String> {
    let mut redis = server.connection();
    for lacks in ["-hset", "-hdel", "-pexpire", "-incrby", "memory", "replica"] {
        for adopts in [false, true] {
            if lacks == "-incrby" && !adopts {
                continue;
            }
            let mut world = World::new(&mut redis, texts, true, false);
            if adopts {
                world.gives()?;
            }
            // A replica refuses even a request that finds another owner.
            let others = [false, lacks == "replica"];
            for finds_another in &others[..if others[1] { 2 } else { 1 }] {
                if *finds_another {
                    run(world.redis, &["DEL", LOCK]);
                    run(world.redis, &["HSET", LOCK, WAITER, "1"]);
                    run(world.redis, &["PEXPIRE", LOCK, "60000"]);
                }
                let before = world.state()?;
                let mut user = server.connection();
                match lacks {
                    "memory" => drop(run(world.redis, &["CONFIG", "SET", "maxmemory", "1"])),
                    "replica" => drop(run(world.redis, &["REPLICAOF", "127.0.0.1", "1"])),
                    right => {
                        let all = ["reset", "on", ">word", "~*", "&*", "+@all"];
                        let rules = [&["ACL", "SETUSER", "me"], &all[..], &[right]].concat();
                        run(world.redis, &rules);
                        run(&mut user, &["AUTH", "me", "word"]);
                    }
                }
                let mut theirs = World {
                    redis: &mut user,
                    texts,
                    is_fenced: true,
                    given: true,
                    adopters: [Known::Nothing; 2],
                    token: 0,
                };
                let reply = if adopts { theirs.adopts(0) } else { theirs.gives() };
                run(world.redis, &["CONFIG", "SET", "maxmemory", "0"]);
                run(world.redis, &["REPLICAOF", "NO", "ONE"]);
                let case = format!("{lacks}, adopts: {adopts}: {reply:?}");
                let after = world.state().map_err(|broken| format!("{case}: {broken}"))?;
                if reply.is_ok() || after.0 != before.0 || (after.1 - before.1).abs() > SLACK {
                    return Err(format!("{before:?} becomes {after:?}: {case}"));
                }
            }
        }
    }
    Ok(())
}

/// If a lease becomes shorter, the first waiter in the queue gets a message, and keeps its entry.
fn check_messages(server: &Server, texts: &Texts) -> Result<(), String> {
    let (mut redis, mut listener) = (server.connection(), server.connection());
    let channel = format!("redisson_lock__channel:{{redlatch:{}}}", &WAITER[..36]);
    redis::cmd("SUBSCRIBE").arg(channel).exec(&mut listener).unwrap();
    let mut world = World::new(&mut redis, texts, false, true);
    // The ticket's lease is longer than that of the hold, and the adopter's lease is shorter.
    world.gives()?;
    world.adopts(0)?;
    if world.first_in_line().as_deref() != Some(WAITER) {
        return Err("the waiter has lost its entry".to_owned());
    }
    let number = &WAITER[37..];
    let mut heard = Vec::new();
    run(
        &mut redis,
        &["PUBLISH", &format!("redisson_lock__channel:{{redlatch:{}}}", &WAITER[..36]), "end"],
    );
    while heard.last().is_none_or(|last| last != "end") {
        let message = redis::Msg::from_value(&listener.recv_response().unwrap());
        heard.extend(message.and_then(|message| message.get_payload::<String>().ok()));
    }
    let expected = [format!("open {number} {ADOPTED} 0 {LOCK}"), "end".to_owned()];
    if heard == expected { Ok(()) } else { Err(format!("{heard:?}")) }
}

fn check(server: &Server, texts: &Texts) -> Result<usize, String> {
    check_refusals(server, texts)?;
    check_messages(server, texts)?;
    let mut states = 0;
    for (is_fenced, waits) in [(true, false), (false, true)] {
        states += explore(server, texts, is_fenced, waits)?;
    }
    Ok(states)
}

#[test]
fn a_lock_has_one_owner_in_every_order_of_its_hand_over() {
    let states = check(&unbounded_server(), &Texts::new()).unwrap();
    assert!(states > 100, "{states}");
}

/// The planted bugs: for each, its name, a part of the scripts, and the replacement of that part.
const MUTANTS: [(&str, &str, &str); 15] = [
    (
        "ends the old owner before the new one has the lock",
        "local refusal = denied('hdel', lock, '') or refused(redis.pcall('hset', lock, new, 1))",
        "redis.call('hdel', lock, old)\nlocal refusal = refused(redis.pcall('hset', lock, new, 1))",
    ),
    ("leaves two owners", "denied('hdel', lock, '') or ", ""),
    ("leaves a refused owner", "redis.pcall('hdel', lock, new)", ""),
    ("keeps the old lease", "or refused(redis.pcall('pexpire', lock, lease))", ""),
    ("sends no message", "pcall(announce, lease)", ""),
    ("sends a message of a longer lease", "if tonumber(lease) < left then", "if true then"),
    (
        "gives away another owner's hold",
        "elseif held_by == owner then\n    return replace_holder",
        "elseif held_by then\n    return replace_holder",
    ),
    (
        "sets the lease at each copy",
        "return held_by == ticket and 1",
        "return held_by == ticket and redis.call('pexpire', lock, lease)",
    ),
    ("answers a copy as lost", "return held_by == ticket and 1", "return nil"),
    ("adopts from any owner", "elseif held_by ~= ticket then", "elseif not held_by then"),
    (
        "adopts a free lock",
        "elseif held_by ~= ticket then
    ensure_master()
    return nil
end",
        "elseif held_by and held_by ~= ticket then
    return nil
end
left = left or 0",
    ),
    ("adopts without tokens", "return take_tokens() or replace_holder", "return replace_holder"),
    (
        "shortens the lease by a copy",
        "left < tonumber(lease) and lease or left)\n    return take_tokens() or granted_reply(-1",
        "lease)\n    return take_tokens() or granted_reply(-1",
    ),
    ("tells a loss as a replica", "ensure_master()\nreturn held_by", "return held_by"),
    ("refuses an adoption as a replica", "ensure_master()\n    return nil", "return nil"),
];

#[test]
fn each_planted_bug_of_a_hand_over_is_found() {
    let server = unbounded_server();
    for (what, part, instead) in MUTANTS {
        let mut texts = Texts::new();
        let is_there = [&texts.ticket, &texts.adopt].iter().any(|text| text.contains(part));
        assert!(is_there, "{what}");
        texts.ticket = texts.ticket.replace(part, instead);
        texts.adopt = texts.adopt.replace(part, instead);
        assert!(check(&server, &texts).is_err(), "not found: {what}");
    }
}
