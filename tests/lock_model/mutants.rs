//! Rules broken one at a time, in the scripts and in the client.

use crate::model::client::Rule;
use crate::model::mutant::{Mutant, client, script, slow, unfair};
use crate::model::scripts::Script;

pub(crate) const MUTANTS: &[Mutant] = &[
    script(
        "a pattern's subscriber makes the dead look alive",
        Script::HandOff,
        "return (refused(heard) or heard[2] > 0) and channel or nil",
        "return channel",
        5,
    ),
    script(
        "a message that nobody heard grants",
        Script::Holders,
        "if type(heard) == 'number' and heard > 0 then",
        "if type(heard) == 'number' then",
        3,
    ),
    script(
        "the last in the queue is granted first",
        Script::Holders,
        "redis.pcall('lpop', queue)\n        if type(head)",
        "redis.pcall('rpop', queue)\n        if type(head)",
        1,
    ),
    script(
        "a release grants nobody",
        Script::HandOff,
        "if grant(start, count + 1) then",
        "if false then",
        0,
    ),
    script(
        "who is not the holder does not look",
        Script::Holders,
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
        Script::HandOff,
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
        "return release(ARGV[1], tonumber(ARGV[3] or 0), tonumber(ARGV[4] or 0))",
        "return false",
        0,
    ),
    script(
        "a lock is taken without an end",
        Script::Holders,
        "redis.call('pexpire', lock, lease)",
        "",
        0,
    ),
    script(
        "a queue is without an end",
        Script::HandOff,
        "        redis.call('pexpire', queue, KEPT)",
        "",
        0,
    ),
    script(
        "a window lasts as long as the clock was set back",
        Script::HandOff,
        "left > 0 and left <= WINDOW and left or nil",
        "left > 0 and left or nil",
        30,
    ),
    script(
        "ours who listen count as Redisson's",
        Script::HandOff,
        "heard[2] - heard[4]",
        "heard[2]",
        0,
    ),
    script(
        "a grant is taken back without a word",
        Script::Holders,
        "        if not trouble then
            redis.call('del', lock)
        end",
        "",
        3,
    ),
    script(
        "a name in braces has the queue of the one without",
        Script::HandOff,
        "KEYS[1], KEYS[2], KEYS[3]",
        "KEYS[1], (string.gsub(string.gsub(KEYS[2], '_tagged', ''), ':{?x}?$', ':{x}')), KEYS[3]",
        2,
    ),
    script(
        "a hold takes a single token",
        Script::Holders,
        "redis.pcall('incrby', tokens, TOKENS)",
        "redis.pcall('incrby', tokens, 1)",
        1,
    ),
    script(
        "who is handed the lock is told no token",
        Script::Holders,
        "token and string.format(',%.0f', token) or ''",
        "''",
        1,
    ),
    unfair(
        "there is no window",
        Script::HandOff,
        "redis.pcall('set', window, '', 'px', WINDOW)",
        "",
    ),
    unfair("nobody is told when a window ends", Script::HandOff, "announce(WINDOW)", ""),
    unfair(
        "Redisson has its turn by age alone",
        Script::HandOff,
        "is_due = others > 0 and count * others > length()",
        "is_due = others > 0",
    ),
    unfair(
        "Redisson has its turn by count alone",
        Script::HandOff,
        "if age >= AGE then",
        "if true then",
    ),
    unfair(
        "a chain begins anew with each grant",
        Script::HandOff,
        "if grant(start, count + 1) then",
        "if grant(now(), 1) then",
    ),
    unfair("a chain that began with a reply has no age", Script::HandOff, "or -since", "or 0"),
    client("a deadline counts from the receipt of the message", Rule::Anchor, 18),
    client("a copy that comes late is not undone", Rule::Late, 67),
    slow("nobody listens to Redisson's releases", Rule::Listen),
    slow("a chain ends where nobody else of ours waits", Rule::Continue),
];
