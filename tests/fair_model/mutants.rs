//! Rules broken one at a time, to show that the model would notice.

use crate::store::Script;

/// What is broken, in which script, and how.
pub(crate) struct Mutant {
    pub(crate) what: &'static str,
    pub(crate) script: Script,
    pub(crate) part: &'static str,
    pub(crate) by: &'static str,
    /// A history that has found it out, to be tried first. If scripts or model have changed since,
    /// another one will, and the test says which.
    pub(crate) seed: u64,
}

const fn mutant(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
    seed: u64,
) -> Mutant {
    Mutant { what, script, part, by, seed }
}

pub(crate) const MUTANTS: &[Mutant] = &[
    mutant(
        "who acquires subtracts its wait from those behind, as Redisson does",
        Script::Acquire,
        "table.remove(line, 1)",
        "table.remove(line, 1)
        for _, id in ipairs(redis.call('zrange', timeouts, 0, -1)) do
            redis.call('zincrby', timeouts, -fair_wait, id)
        end",
        0,
    ),
    mutant(
        "who enters adds no time for Redisson's waiters ahead",
        Script::Acquire,
        "enter(nil, ahead, 'rpush', owner)",
        "enter(nil, 0, 'rpush', owner)",
        1,
    ),
    mutant(
        "the highest score is believed, whosever it is",
        Script::Acquire,
        "if left > 0 and ours(top[1]) and rest <= fair_wait and rest >= fair_wait / 2 then",
        "if true then",
        13,
    ),
    mutant("a request sent again sets the score anew", Script::Acquire, "'nx', ", "", 113),
    mutant(
        "who was dropped comes back to the end",
        Script::Acquire,
        "local place, redissons_ahead, seen = 0, 0, 0",
        "local place, redissons_ahead, seen = #all, redissons(), 0",
        282,
    ),
    mutant(
        "who acquires drops nobody",
        Script::Acquire,
        "elseif score > now() then",
        "elseif true then",
        143,
    ),
    mutant(
        "who is queued may take a free lock",
        Script::Acquire,
        "elseif not line[1] then",
        "else",
        1,
    ),
    mutant(
        "a lock is taken without an end",
        Script::Acquire,
        "    redis.call('hset', lock, owner, 1)
    redis.call('pexpire', lock, lease)",
        "    redis.call('hset', lock, owner, 1)",
        0,
    ),
    mutant(
        "a place is left in the set",
        Script::Acquire,
        "    redis.call('zrem', timeouts, head)
    redis.call('ltrim', queue, 1, -1)",
        "    redis.call('ltrim', queue, 1, -1)",
        0,
    ),
    mutant(
        "try_lock barges past a queue",
        Script::Try,
        "    return 0
end
take(",
        "end
take(",
        29,
    ),
    mutant(
        "scores are only raised, never lowered",
        Script::KeepAlive,
        "redis.call('zadd', timeouts, unpack",
        "redis.call('zadd', timeouts, 'gt', unpack",
        91,
    ),
    mutant(
        "keep_alive adds no time for Redisson's waiters ahead",
        Script::KeepAlive,
        "local base = now + redisson_wait * redissons",
        "local base = now",
        0,
    ),
    mutant(
        "keep_alive adds time for all waiters ahead",
        Script::KeepAlive,
        "local base = now + redisson_wait * redissons",
        "local base = now + redisson_wait * (i - first)",
        0,
    ),
    mutant(
        "the time of Redisson's waiters passes behind ours",
        Script::KeepAlive,
        "new = score and score + shift",
        "new = score",
        35,
    ),
    mutant(
        "the time of Redisson's waiters passes behind dead ones of ours",
        Script::KeepAlive,
        "new = math.min(math.max(score, base), base + fair_wait)",
        "new = math.min(score, base + fair_wait)",
        99,
    ),
    mutant(
        "keep_alive looks at other waiters only if the sizes differ",
        Script::KeepAlive,
        "mixed = mixed or not ours(id)",
        "",
        35,
    ),
    mutant(
        "a waiter of Redisson's that is behind none of ours is moved, too",
        Script::KeepAlive,
        "local redissons, shift = 0, 0",
        "local redissons, shift = 0, -1000",
        0,
    ),
    mutant(
        "a dead one of ours is raised like a live one",
        Script::KeepAlive,
        "if alive[id] then\n            new",
        "if true then\n            new",
        91,
    ),
    mutant(
        "keep_alive drops no dead head",
        Script::KeepAlive,
        "while free and",
        "while false and",
        58,
    ),
    mutant(
        "keep_alive drops dead heads and tells nobody",
        Script::KeepAlive,
        "    tell(head)
    reply[1]",
        "    reply[1]",
        45,
    ),
    mutant(
        "keep_alive does not tell who is missing",
        Script::KeepAlive,
        "if not in_line[id] or free and id == head then",
        "if free and id == head then",
        14,
    ),
    mutant(
        "keep_alive does not tell the first in line of a free lock",
        Script::KeepAlive,
        "if not in_line[id] or free and id == head then",
        "if not in_line[id] then",
        28,
    ),
    mutant(
        "keep_alive does not say when a dead head's time is over",
        Script::KeepAlive,
        "reply[1] = math.max(50, scores[head] - now)",
        "",
        64,
    ),
    mutant(
        "who gives up subtracts its wait from those behind, as Redisson does",
        Script::GiveUp,
        "local left, entries = pcall(leave, owner)",
        "local left, entries = pcall(leave, owner)
        for _, id in ipairs(redis.call('zrange', timeouts, 0, -1)) do
            redis.call('zincrby', timeouts, -fair_wait, id)
        end",
        1,
    ),
    mutant(
        "who gives up stays in the set",
        Script::GiveUp,
        "redis.call('lrem', queue, 1, id) + redis.call('zrem', timeouts, id)",
        "redis.call('lrem', queue, 1, id)",
        4,
    ),
    mutant(
        "who gives up keeps a lock granted meanwhile",
        Script::GiveUp,
        "redis.pcall('hdel', lock, owner)",
        "0",
        1,
    ),
    mutant(
        "who gives up tells nobody",
        Script::GiveUp,
        "if redis.pcall('exists', lock) == 0 then",
        "if false then",
        1,
    ),
    mutant(
        "anybody may release",
        Script::Release,
        "redis.pcall('hdel', lock, owner)",
        "redis.pcall('del', lock)",
        4,
    ),
    mutant(
        "a release tells nobody",
        Script::Release,
        "    heard = tell(head)
    if",
        "    if",
        0,
    ),
    mutant(
        "a release leaves those in the queue to whom the hold was passed",
        Script::Release,
        "if ARGV[4] then",
        "if false then",
        14,
    ),
    mutant(
        "a release takes one too many out of the queue",
        Script::Release,
        "redis.call('ltrim', queue, passed, -1)",
        "redis.call('ltrim', queue, passed + 1, -1)",
        0,
    ),
    mutant(
        "who is told where Redisson would is not ours",
        Script::Release,
        "    if ours(id) then
        local own",
        "    if false then
        local own",
        0,
    ),
    mutant(
        "nobody hears that one of Redisson's may tell it",
        Script::Acquire,
        "redisson and 1 or 0}",
        "0}",
        0,
    ),
    mutant(
        "of Redisson's only the holder counts",
        Script::Acquire,
        " or redissons_ahead > 0",
        "",
        0,
    ),
    mutant(
        "of Redisson's only those who stand ahead count",
        Script::Acquire,
        "held_by and not ours(held_by) or redissons_ahead > 0",
        "redissons_ahead > 0",
        0,
    ),
    mutant(
        "who asks again believes that none of Redisson's is ahead",
        Script::Acquire,
        "return queued(place, place == 0 and 0 or redissons())",
        "return queued(place, 0)",
        0,
    ),
    mutant(
        "who gives up a place gives up a hold, too",
        Script::GiveUp,
        "only_place and 0 or ",
        "",
        0,
    ),
    mutant(
        "a place that is nobody's is not given up",
        Script::GiveUp,
        "local left, entries = pcall(leave, owner)",
        "local left, entries = true, 0
if not only_place then left, entries = pcall(leave, owner) end",
        0,
    ),
];
