//! Rules broken one at a time, in the scripts and in the client, to show that the model would
//! notice.

use crate::client::Rule;
use crate::store::Script;

/// What is broken, where, and who has noticed.
pub(crate) struct Mutant {
    pub(crate) what: &'static str,
    pub(crate) broken: Broken,
    pub(crate) by: By,
}

pub(crate) enum Broken {
    /// A part of a text, and what stands there instead.
    Script(Script, &'static str, &'static str),
    Client(Rule),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// A history that has found it out, to be tried first. If scripts or model have changed since,
    /// another one will, and the test says which.
    Seed(u64),
    /// What the clients get where nothing goes wrong.
    Share,
}

const fn script(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
    seed: u64,
) -> Mutant {
    Mutant { what, broken: Broken::Script(script, part, by), by: By::Seed(seed) }
}

const fn unfair(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
) -> Mutant {
    Mutant { what, broken: Broken::Script(script, part, by), by: By::Share }
}

const fn client(what: &'static str, rule: Rule, seed: u64) -> Mutant {
    Mutant { what, broken: Broken::Client(rule), by: By::Seed(seed) }
}

const fn slow(what: &'static str, rule: Rule) -> Mutant {
    Mutant { what, broken: Broken::Client(rule), by: By::Share }
}

pub(crate) const MUTANTS: &[Mutant] = &[
    script(
        "a pattern's subscriber makes the dead look alive",
        Script::Queue,
        "if not refused(heard) and heard[2] == 0 then",
        "if false then",
        5,
    ),
    script(
        "a message that nobody heard grants",
        Script::Queue,
        "if type(heard) == 'number' and heard > 0 then",
        "if type(heard) == 'number' then",
        3,
    ),
    script(
        "the last in the queue is granted first",
        Script::Queue,
        "redis.pcall('lpop', queue)\n        if type(head)",
        "redis.pcall('rpop', queue)\n        if type(head)",
        1,
    ),
    script(
        "a release grants nobody",
        Script::Queue,
        "return grant_head(start, count + 1) and 1 or publish(0)",
        "return publish(0)",
        0,
    ),
    script(
        "who is not the holder does not look",
        Script::Queue,
        "        look()\n        return false",
        "        return false",
        3,
    ),
    script(
        "a forced unlock grants nobody",
        Script::ForceUnlock,
        "if not grant_head(now(), 1) then",
        "if true then",
        17,
    ),
    script(
        "who asks grants nobody but itself",
        Script::Acquire,
        "if granted == owner then",
        "if granted ~= owner and granted then redis.call('del', lock) end
        if granted == owner then",
        1,
    ),
    script(
        "who asks takes a free lock past the queue",
        Script::Acquire,
        "local granted, trouble = grant_head(now(), 1, owner, lease)",
        "redis.pcall('lrem', queue, 1, owner)
        local granted, trouble = owner, hold(owner, lease)",
        1,
    ),
    script(
        "who asks takes the lock in a window",
        Script::Acquire,
        "if not left or place < 0 then",
        "if true then",
        0,
    ),
    script(
        "who asks again has a second place",
        Script::Acquire,
        "local place = redis.pcall('lpos', queue, owner)\n    if refused",
        "local place = false\n    if refused",
        0,
    ),
    script(
        "a copy that comes late cuts the lease",
        Script::Acquire,
        "left < tonumber(lease) and lease or left",
        "1000",
        0,
    ),
    script(
        "who gives up stays in the queue",
        Script::GiveUp,
        "redis.pcall('lrem', queue, 1, ARGV[1])",
        "",
        697,
    ),
    script(
        "who gives up keeps what it was granted",
        Script::GiveUp,
        "return release(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]))",
        "return false",
        0,
    ),
    script(
        "a lock is taken without an end",
        Script::Queue,
        "redis.call('pexpire', lock, lease)",
        "",
        0,
    ),
    script(
        "a queue is without an end",
        Script::Queue,
        "        redis.call('pexpire', queue, KEPT)",
        "",
        0,
    ),
    script(
        "a window lasts as long as the clock was set back",
        Script::Queue,
        "left > 0 and left <= WINDOW and left or nil",
        "left > 0 and left or nil",
        30,
    ),
    script(
        "ours who listen count as Redisson's",
        Script::Queue,
        "heard[2] - heard[4]",
        "heard[2]",
        0,
    ),
    script(
        "a grant is taken back without a word",
        Script::Queue,
        "        if not trouble then
            redis.call('del', lock)
        end",
        "",
        3,
    ),
    script(
        "a name in braces has the queue of the one without",
        Script::Queue,
        "KEYS[1], KEYS[2], KEYS[3]",
        "KEYS[1], (string.gsub(string.gsub(KEYS[2], '_tagged', ''), ':{?x}?$', ':{x}')), KEYS[3]",
        2,
    ),
    script(
        "a hold takes a single token",
        Script::Queue,
        "redis.pcall('incrby', tokens, TOKENS)",
        "redis.pcall('incrby', tokens, 1)",
        1,
    ),
    script(
        "who is handed the lock is told no token",
        Script::Queue,
        "token and string.format(',%.0f', token) or ''",
        "''",
        1,
    ),
    unfair("there is no window", Script::Queue, "redis.pcall('set', window, '', 'px', WINDOW)", ""),
    unfair("nobody is told when a window ends", Script::Queue, "announce(WINDOW)", ""),
    unfair(
        "Redisson has its turn by age alone",
        Script::Queue,
        "return waiting > 0 and count * waiting > length()",
        "return waiting > 0",
    ),
    unfair(
        "Redisson has its turn by count alone",
        Script::Queue,
        "if age >= AGE then",
        "if true then",
    ),
    unfair(
        "a chain begins anew with each grant",
        Script::Queue,
        "grant_head(start, count + 1)",
        "grant_head(now(), 1)",
    ),
    unfair(
        "a chain that began with a reply has no age",
        Script::Queue,
        "or now() + since, 0)",
        "or now(), 0)",
    ),
    client("a deadline counts from the receipt of the message", Rule::Anchor, 18),
    client("a copy that comes late is not undone", Rule::Late, 67),
    slow("nobody listens to Redisson's releases", Rule::Listen),
    slow("a chain ends where nobody else of ours waits", Rule::Continue),
];
