//! Compares the in-memory server with a real server. The two servers get the same random commands,
//! and must agree in each reply, each message, and each key with its time to live.
//!
//! The in-memory server gets the real server's time. If the next millisecond begins during a
//! command, the command is not compared, and the keys of the real server are copied to the
//! in-memory server.
//!
//! `REDLATCH_OPERATIONS=1000000` compares a million commands. Each run records the library's
//! commands again, with other owners. So a seed does not repeat a run, and a failure prints its
//! history.

mod both;
mod calls;
#[path = "../../../models/simulated/random.rs"]
mod random;

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, SystemTime};

use redis::Value;
use redlatch_in_memory::{Keys as _, Redis, Scripts};
use redlatch_testkit::Server;

use both::{Both, Difference, Parts};
use calls::{Calls, Recorded, record, words};
use random::Random;

/// The number of commands in one history. After each history, all keys are removed.
const LENGTH: usize = 150;

fn server() -> Server {
    // The fields of larger hashes have no order. A key expires only when a command reads it, and
    // never at a random time.
    let ordered = ["--hash-max-listpack-value", "10000", "--hash-max-listpack-entries", "10000"];
    let args = [&ordered[..], &["--enable-debug-command", "yes"]].concat();
    let server = Server::with_args(&args).unwrap();
    let command = ["SET-ACTIVE-EXPIRE", "0"];
    redis::cmd("DEBUG").arg(&command).exec(&mut server.connection()).unwrap();
    server
}

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64
}

fn history(both: &mut Both, recorded: &Recorded, seed: u64) -> Result<(), Difference> {
    let mut random = Random::new(seed);
    let calls = Calls::new(recorded, &mut random);
    let mut told = Vec::new();
    both.start_anew();
    for _ in 0..LENGTH {
        if random.percent(2) {
            sleep(Duration::from_millis(random.between(1, 30) as u64));
        }
        let (peer, command) = calls.next(&mut random, now());
        told.push(format!("{} {}", ["asks", "listens"][peer], words(&command)));
        let done = both.run(peer, &command);
        done.map_err(|difference| format!("{}\n{difference}", told.join("\n")))?;
    }
    Ok(())
}

/// The number of histories that run at the same time, each on its own servers. A history often
/// waits, so more histories than processors can run.
const LANES: u64 = 8;

#[test]
fn random_commands_have_the_same_replies_messages_and_keys() {
    let recorded = record(&server());
    assert!(recorded.scripts.len() > 30, "{}", recorded.scripts.len());
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let wanted = number("REDLATCH_OPERATIONS").unwrap_or(20_000);
    let (compared, between) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let lane = &|first: u64| {
        let server = server();
        let texts = recorded.scripts.iter().map(|it| (it.as_str(), it.clone()));
        let mut both = Both::new(&server, texts);
        for seed in (first..).step_by(LANES as usize) {
            if compared.load(Ordering::Relaxed) >= wanted {
                break;
            }
            if let Err(different) = history(&mut both, &recorded, seed) {
                // Ends the other lanes as well.
                compared.store(wanted, Ordering::Relaxed);
                panic!("{different}");
            }
            compared.fetch_add(std::mem::take(&mut both.compared), Ordering::Relaxed);
            between.fetch_add(std::mem::take(&mut both.between), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| (0..LANES).for_each(|first| drop(scope.spawn(move || lane(first)))));
    println!("{compared:?} commands agree; {between:?} were not compared");
}

/// A planted difference: its name, a part of the scripts, the replacement of this part, a change of
/// a command, and whether messages are lost.
type Plant = (&'static str, &'static str, &'static str, fn(&mut Parts), bool);

/// Each planted difference changes one of these: the times that a script sees, the effect of a
/// command, a reply, or the messages.
#[test]
fn a_planted_difference_is_found() {
    let server = server();
    let recorded = record(&server);
    let plants: [Plant; 4] = [
        ("a time to live", "60000", "60001", |_| (), false),
        (
            "an effect",
            "",
            "",
            // The command is sent without the time to live.
            |command| command.truncate(if command[0] == b"set" { 3 } else { usize::MAX }),
            false,
        ),
        (
            "a reply",
            "",
            "",
            |command| {
                if command[0] == b"type" {
                    command[0] = b"exists".to_vec();
                }
            },
            false,
        ),
        ("a message", "", "", |_| (), true),
    ];
    for (name, part, by, planted, loses_messages) in plants {
        let texts = recorded.scripts.iter();
        let texts = texts.map(|it| {
            (it.as_str(), if part.is_empty() { it.clone() } else { it.replace(part, by) })
        });
        let mut both = Both::new(&server, texts);
        both.planted = planted;
        both.memory.with_faults(|faults| faults.loses_messages = loses_messages);
        let found = (0..200).find_map(|seed| history(&mut both, &recorded, seed).err());
        assert!(found.is_some(), "{name} was not found");
    }
}

/// In Redis 7.0, a script may check a right with fewer arguments than the command takes. Newer
/// servers refuse such a check.
#[test]
fn a_question_for_a_right_has_as_many_arguments_as_the_command_takes() {
    const ASK: &str = "return redis.acl_check_cmd(unpack(ARGV)) and 1";
    let server = server();
    let mut scripts = Scripts::new().unwrap();
    scripts.learn("ask", ASK.as_bytes()).unwrap();
    let mut memory = Redis::new(scripts, vec!["ask".to_owned()]);
    let peer = memory.open();
    let mut asks = |command: &str, parts: i64| {
        let arguments = (1..parts).map(|_| "a").collect::<Vec<_>>();
        let question = [&["EVALSHA", "ask", "0", command][..], &arguments].concat();
        let question = question.iter().map(|it| it.as_bytes()).collect::<Vec<_>>();
        memory.run(peer, 0, &question)
    };
    let known: Vec<(String, i64)> = {
        let info: Vec<Option<Vec<Value>>> =
            redis::cmd("COMMAND").arg("INFO").query(&mut server.connection()).unwrap();
        let of = |it: Vec<Value>| redis::from_redis_value(Value::Array(it[..2].to_vec())).unwrap();
        info.into_iter().flatten().map(of).collect()
    };
    let is = |reply: &Value, word: &str| format!("{reply:?}").contains(word);
    let mut compared = 0;
    for (command, arity) in known {
        let whole = asks(&command, arity.abs());
        if is(&whole, "Invalid command") {
            continue;
        }
        compared += 1;
        assert_eq!(whole, Value::Int(1), "{command}");
        let refuses = |reply: Value| is(&reply, "Wrong number of args");
        assert!(arity.abs() == 1 || refuses(asks(&command, arity.abs() - 1)), "{command}");
        assert_eq!(refuses(asks(&command, arity.abs() + 1)), arity > 0, "{command}");
    }
    assert!(compared > 50, "{compared}");
}
