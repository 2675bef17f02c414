//! Known bugs that are put into the library on purpose. The soak must find each bug.
//!
//! The bugs exist only in a library that was built with `--cfg soak_mutants`. For a bug of a
//! script, this list has a text of the script and its replacement. A bug of the client is in the
//! client's code, under the bug's name.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::options::Options;

/// The separator, which must be the same as in the library's `src/scripts/mutants.rs`.
const SEPARATOR: &str = "\u{1f}";

struct Mutant {
    name: &'static str,
    /// The kinds of work that show this bug.
    only: &'static str,
    /// The faults that show this bug, or "none" if the bug breaks a rule about time.
    faults: &'static str,
    /// Texts of scripts, each with its replacement. Empty if the bug is only in the client.
    replaced: &'static [[&'static str; 2]],
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a release without a look at the owner",
        faults: "",
        only: "reentrant,long",
        replaced: &[
            ["and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1", "and redis.call('del', KEYS[1])"],
            [
                "elseif held ~= 1 then\n        ensure_master()",
                "elseif false then\n        ensure_master()",
            ],
        ],
    },
    Mutant {
        name: "a lock taken though it is held",
        faults: "",
        only: "reentrant",
        replaced: &[["if redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0", "if true"]],
    },
    Mutant { name: "a deadline counted from the reply", faults: "", only: "lapse", replaced: &[] },
    Mutant { name: "a deadline past the lease", faults: "", only: "lapse", replaced: &[] },
    Mutant { name: "a token not counted on a pass", faults: "", only: "fenced", replaced: &[] },
    Mutant {
        name: "tokens that the server does not count",
        faults: "",
        only: "fenced",
        replaced: &[["redis.pcall('incrby', KEYS[4], '1024')", "1024"]],
    },
    Mutant {
        name: "a script that runs without a look at the owner",
        faults: "",
        only: "evals",
        replaced: &[[
            "if held ~= 1 then\n    return type(held)",
            "if type(held) == 'table' then\n    return type(held)",
        ]],
    },
    Mutant {
        name: "a hold that is passed on before its scripts",
        faults: "scripts late",
        only: "evals",
        replaced: &[],
    },
    Mutant {
        name: "a script without a reply that counts as not run",
        faults: "scripts late",
        only: "evals",
        replaced: &[],
    },
    Mutant {
        name: "a part that stays taken after a lost reply",
        // A restart is left out: after it, the client would find its own leftover holds at the
        // server.
        faults: "replies and requests lost or late",
        only: "several",
        replaced: &[],
    },
    Mutant { name: "a loss that is not told", faults: "", only: "lapse", replaced: &[] },
    Mutant {
        name: "a renewal of what is not held",
        faults: "",
        only: "long",
        replaced: &[[
            "local reply = redis.pcall('hexists', key, owner)\n    if reply",
            "local reply = 1\n    if reply",
        ]],
    },
    Mutant {
        name: "a renewal that does not raise the lease",
        faults: "",
        only: "long",
        replaced: &[["redis.pcall('pexpire', key, math.max(left, lease))", "1"]],
    },
    Mutant {
        name: "a writer beside readers",
        faults: "",
        only: "readwrite",
        replaced: &[
            ["if not dead and mode and writes(head) then", "if false then"],
            [
                "if mode == 'read' and (writes(owner) or length() > 0)",
                "if mode == 'read' and length() > 0",
            ],
        ],
    },
    Mutant {
        name: "a reader beside a writer",
        faults: "",
        only: "readwrite",
        replaced: &[[
            "or mode == 'write' and (not writer or redis.call('hexists', lock, writer) == 0)",
            "",
        ]],
    },
    Mutant {
        name: "a holder that is not told of waiters",
        faults: "none",
        only: "wanted",
        replaced: &[["'want ' .. number", "'wants ' .. number"]],
    },
    Mutant {
        name: "a holder that does not hear that waiters have left",
        faults: "none",
        only: "wanted",
        replaced: &[],
    },
    Mutant {
        name: "a grant without its message",
        faults: "none",
        only: "reentrant",
        replaced: &[["send_message(channel, head, 'grant',", "tostring("]],
    },
    Mutant {
        name: "a fair queue from its end",
        faults: "none",
        only: "fair",
        replaced: &[
            [
                "local entries = redis.call('lrange', queue, 0, FOLLOWERS)\n    if entries[1]",
                "local entries = {redis.call('lindex', queue, -1) or nil}\n    if entries[1]",
            ],
            ["redis.call('ltrim', queue, 1, -1)", "redis.call('lrem', queue, 1, head)"],
        ],
    },
    Mutant {
        name: "a lost notification",
        faults: "none",
        only: "condition",
        replaced: &[[
            "local refusal = is_alive and record(first, number)",
            "if is_alive then return first end\n        local refusal",
        ]],
    },
    Mutant {
        name: "a notification of too many",
        faults: "none",
        only: "condition",
        replaced: &[[
            "        if is_alive then\n            send_notification(first)\n            return first",
            "        if is_alive then\n            send_notification(first)\n            if number == '' then return first end\n            number = ''",
        ]],
    },
    Mutant {
        name: "a latch that opens one count early",
        faults: "none",
        only: "latch",
        replaced: &[["opens = count and count <= 1", "opens = count and count <= 2"]],
    },
    Mutant {
        name: "a latch that opens in silence",
        faults: "none",
        only: "latch",
        replaced: &[["redis.pcall('publish', ARGV[5], '0')", "redis.pcall('time')"]],
    },
    Mutant {
        name: "a permit too many",
        faults: "",
        only: "semaphore",
        replaced: &[["local taken, limit = 0, free\n", "local taken, limit = 0, free + 1\n"]],
    },
    Mutant {
        name: "a request applied twice",
        faults: "",
        only: "semaphore",
        replaced: &[[
            "if recorded_number == number then\n        return answer(recorded_result, recorded_mark)",
            "if false then\n        return answer(recorded_result, recorded_mark)",
        ]],
    },
    Mutant {
        name: "a permit freed before its lease ends",
        faults: "",
        only: "expirable",
        replaced: &[
            [
                "redis.call('zcount', KEYS[2], '-inf', now)\n    if",
                "redis.call('zcount', KEYS[2], '-inf', now + 2950)\n    if",
            ],
            [
                "'zremrangebyscore', KEYS[2], '-inf', now)",
                "'zremrangebyscore', KEYS[2], '-inf', now + 2950)",
            ],
        ],
    },
    Mutant {
        name: "a lapsed permit given back twice",
        faults: "",
        only: "expirable",
        replaced: &[["if is_ahead(ends) then\n        live", "if true then\n        live"]],
    },
    Mutant {
        name: "a reader that counts the leases of others",
        faults: "",
        only: "lateread",
        replaced: &[],
    },
    Mutant {
        name: "a least time that ends with its holder",
        faults: "",
        only: "least,once",
        replaced: &[],
    },
    Mutant {
        name: "an error that leaves the lock taken",
        faults: "none",
        only: "least",
        replaced: &[],
    },
    Mutant { name: "a lock that is left to nobody", faults: "", only: "left", replaced: &[] },
    Mutant { name: "a leader that is not deposed", faults: "", only: "election", replaced: &[] },
    Mutant {
        name: "a leader that is deposed in silence",
        faults: "",
        only: "election",
        replaced: &[],
    },
    Mutant {
        name: "a leader that is not on record",
        faults: "none",
        only: "election",
        replaced: &[["'token', ARGV[2], 'who'", "'token', ARGV[2] - 1, 'who'"]],
    },
    Mutant {
        name: "a barrier that trips one party early",
        faults: "none",
        only: "barrier",
        replaced: &[["redis.call('zcard', parties) - 1\n", "redis.call('zcard', parties) - 2\n"]],
    },
    Mutant {
        name: "a party that leaves, and still counts",
        faults: "none",
        only: "barrier",
        replaced: &[[
            "break_up(ARGV[1], number)\nreturn state(number)",
            "return ARGV[4] == '0' and state(number) == 0 and 2 or state(number)",
        ]],
    },
    Mutant {
        name: "a barrier that trips in silence",
        faults: "none",
        only: "barrier",
        replaced: &[["redis.pcall('publish', channel, text(number)", "tostring(text(number)"]],
    },
    Mutant {
        name: "a party that passes before the action",
        faults: "none",
        only: "barrier",
        replaced: &[["if missing == 0 and ARGV[8] == '0' then", "if missing == 0 then"]],
    },
    Mutant {
        name: "a short limit that fails",
        faults: "none",
        only: "short",
        // With this bug, the library also accepts replies that come after the limit.
        replaced: &[[
            "if redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0",
            "for _ = 1, 1000000 do end\nif redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0",
        ]],
    },
    Mutant {
        name: "an outage that is told as taken",
        faults: "network frozen,connections refused",
        only: "short",
        replaced: &[],
    },
];

/// Runs the soak with each bug until it is found, and prints the rows of the ledger.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    if !cfg!(soak_mutants) {
        return Err("this build has no mutants: RUSTFLAGS='--cfg soak_mutants' CARGO_TARGET_DIR=target/mutants \
                    cargo run --release -p soak -- --mutants"
            .to_owned());
    }
    let exe = env::current_exe().map_err(|error| error.to_string())?;
    let mut found = 0;
    let named = MUTANTS.iter().filter(|it| it.name.contains(&options.only));
    let mut tried = 0;
    for mutant in named {
        tried += 1;
        let begun = Instant::now();
        let script: Vec<_> = mutant.replaced.iter().flatten().copied().collect();
        let minutes = options.minutes.to_string();
        // Rules about time apply only where no fault is near, and some kinds of faults are rare.
        let [storm, calm] = match mutant.faults {
            "none" => ["0", "14"],
            "network frozen,connections refused" => ["12", "2"],
            _ => ["6", "8"],
        };
        let seed = options.seed.to_string();
        let mut child = Command::new(&exe)
            .args(["--until-violation", "--minutes", &minutes])
            .args(["--storm", storm, "--calm", calm])
            .args(
                (!mutant.faults.is_empty())
                    .then_some(["--faults", mutant.faults])
                    .into_iter()
                    .flatten(),
            )
            .args(["--seed", &seed, "--only", mutant.only])
            .env("REDLATCH_MUTANT", mutant.name)
            .env("REDLATCH_MUTANT_SCRIPT", script.join(SEPARATOR))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let lines = child.stdout.take().map(|it| BufReader::new(it).lines().map_while(Result::ok));
        let mut how = String::new();
        for line in lines.into_iter().flatten() {
            // The first violation in the output.
            if how.is_empty() && line.starts_with("  ") {
                how = line.trim().chars().take(110).collect();
            }
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        let seconds = begun.elapsed().as_secs();
        match status.code() {
            Some(1) => {
                found += 1;
                println!("| {} | {seconds} s | {how} |", mutant.name);
            }
            code => println!("| {} | NOT FOUND in {seconds} s ({code:?}) | |", mutant.name),
        }
    }
    println!("{found} of {tried} found");
    Ok(found == tried)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn scripts(folder: &Path, all: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                scripts(&path, all);
            } else {
                all.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn each_mutant_changes_the_code_that_there_is() {
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut all = String::new();
        scripts(&library.join("lua"), &mut all);
        let mut code = String::new();
        scripts(&library.join("src"), &mut code);
        for mutant in MUTANTS {
            for [from, _] in mutant.replaced {
                assert!(all.contains(from), "{}: {from}", mutant.name);
            }
            if mutant.replaced.is_empty() {
                let name = format!("mutants::is(\"{}\")", mutant.name);
                assert!(code.contains(&name), "{name}");
            }
        }
        assert!(MUTANTS.len() >= 15);
    }
}
