//! Rules broken one at a time, to show that the model would notice.

use super::simulation::Rule;
use super::store::Script;

/// The broken part, and how it is broken.
pub(crate) struct Mutant {
    pub(crate) what: &'static str,
    pub(crate) broken: Broken,
    /// A history that has found it out, to be tried first. If scripts or model have changed since,
    /// another one will, and the test says which.
    pub(crate) seed: u64,
}

pub(crate) enum Broken {
    /// A part of a script's text, by another one.
    Script(Script, &'static str, &'static str),
    Client(Rule),
}

const fn mutant(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
    seed: u64,
) -> Mutant {
    Mutant { what, broken: Broken::Script(script, part, by), seed }
}

const fn client(what: &'static str, rule: Rule, seed: u64) -> Mutant {
    Mutant { what, broken: Broken::Client(rule), seed }
}

pub(crate) const MUTANTS: &[Mutant] = &[
    mutant(
        "an owner that acquires subtracts its wait from those behind, as Redisson does",
        Script::Acquire,
        "        local behind = redis",
        "for _, id in ipairs(redis.call('zrange', timeouts, 0, -1)) do
            redis.call('zincrby', timeouts, -fair_wait, id)
        end
        local behind = redis",
        2,
    ),
    mutant(
        "an owner that enters adds no time for Redisson's waiters ahead",
        Script::Acquire,
        "place = line_up(redissons_ahead, 1)",
        "place = line_up(0, 1)",
        5,
    ),
    mutant(
        "the highest score is believed, of any client",
        Script::Acquire,
        "if above > 0 and is_ours(top[1]) and rest <= fair_wait and rest >= fair_wait / 2 then",
        "if true then",
        23,
    ),
    mutant("a request sent again sets the score anew", Script::Acquire, "'nx', ", "", 23),
    mutant(
        "an owner that was dropped comes back to the end",
        Script::Acquire,
        "        places[i] = place",
        "        places[i] = #all",
        42,
    ),
    mutant(
        "an owner that acquires drops nobody",
        Script::Acquire,
        "local lives = score and tonumber(score) > now()",
        "local lives = true",
        127,
    ),
    mutant(
        "an owner that is queued may take a free lock",
        Script::Acquire,
        "elseif head == owner or not head then",
        "elseif true then",
        26,
    ),
    mutant(
        "a lock is taken without an end",
        Script::Acquire,
        "local ends = redis.pcall('pexpire', lock, lease)",
        "local ends = 0",
        0,
    ),
    mutant(
        "a place is left in the set",
        Script::Acquire,
        "    take(head, lease)
    drop(head)",
        "    take(head, lease)
    redis.call('ltrim', queue, 1, -1)",
        2,
    ),
    mutant(
        "an owner that comes with another gets no place",
        Script::Acquire,
        "for i = 5, #ARGV do
        if i ~= 6 and",
        "for i = 5, 5 do
        if i ~= 6 and",
        2,
    ),
    mutant(
        "owners that come together stand there in the opposite order",
        Script::Acquire,
        "ids[#ids + 1] = ARGV[i]",
        "table.insert(ids, 1, ARGV[i])",
        2,
    ),
    mutant(
        "of those in a request that was sent again some stand there twice",
        Script::Acquire,
        "if not redis.call('lpos', queue, id) then
            push",
        "if true then
            push",
        17,
    ),
    mutant(
        "a holder that came with another gets a place when that one's request is sent again",
        Script::Acquire,
        "if i ~= 6 and ARGV[i] ~= held_by then",
        "if i ~= 6 then",
        204,
    ),
    mutant(
        "try_lock barges past a queue",
        Script::Try,
        "    return 0
end
take_anew(",
        "end
take_anew(",
        81,
    ),
    mutant(
        "scores are only raised, never lowered",
        Script::KeepAlive,
        "redis.call('zadd', timeouts, unpack",
        "redis.call('zadd', timeouts, 'gt', unpack",
        222,
    ),
    mutant(
        "keep_alive adds no time for Redisson's waiters ahead",
        Script::KeepAlive,
        "local base = now() + redisson_wait * redissons",
        "local base = now()",
        5,
    ),
    mutant(
        "keep_alive adds time for all waiters ahead",
        Script::KeepAlive,
        "local base = now() + redisson_wait * redissons",
        "local base = now() + redisson_wait * (i - 1)",
        27,
    ),
    mutant(
        "the time of Redisson's waiters passes behind ours",
        Script::KeepAlive,
        "new = score and score + shift",
        "new = score",
        5,
    ),
    mutant(
        "the time of Redisson's waiters passes behind dead ones of ours",
        Script::KeepAlive,
        "new = base
            elseif score then
                new = math.min(math.max(score, base), base + fair_wait)",
        "new = math.min(score, base)
            elseif score then
                new = math.min(score, base + fair_wait)",
        731,
    ),
    mutant(
        "keep_alive looks at other waiters only if the sizes differ",
        Script::KeepAlive,
        "mixed = mixed or not is_ours(id)",
        "",
        5,
    ),
    mutant(
        "keep_alive sees no waiter of Redisson's that came since it last looked",
        Script::KeepAlive,
        "            elseif not is_ours(line[i]) then
                return false
            end
",
        "            end
",
        127,
    ),
    mutant(
        "a stopped waiter is granted the lock until its time is over",
        Script::KeepAlive,
        "local judges = ARGV[4] == '1' and fair_wait > SILENT",
        "local judges = false",
        166,
    ),
    mutant(
        "an owner that is late with a sign of life is taken for dead",
        Script::KeepAlive,
        "local SILENT = 2000",
        "local SILENT = 500",
        85,
    ),
    mutant(
        "a waiter of Redisson's that is behind none of ours is moved, too",
        Script::KeepAlive,
        "local redissons, shift = 0, 0",
        "local redissons, shift = 0, -1000",
        5,
    ),
    mutant(
        "keep_alive hands nothing on",
        Script::KeepAlive,
        "    head, granted = hand_on(alive)",
        "    head, granted = redis.call('lindex', queue, 0), false",
        27,
    ),
    mutant(
        "keep_alive drops dead heads and tells nobody",
        Script::KeepAlive,
        "        tell(head)
    end
end

local first",
        "    end
end

local first",
        19,
    ),
    mutant(
        "keep_alive does not name the missing owners",
        Script::KeepAlive,
        "            reply[#reply + 1] = ARGV[i]
",
        "",
        43,
    ),
    mutant(
        "keep_alive does not tell the first in line of a free lock",
        Script::KeepAlive,
        "left == -2 and head and alive[head] and head or ''",
        "''",
        19,
    ),
    mutant(
        "keep_alive does not say when a dead head's time is over",
        Script::KeepAlive,
        "reply[1] = math.max(50, (first_score or 0) - now())",
        "",
        64,
    ),
    mutant(
        "an owner that gives up subtracts its wait from those behind, as Redisson does",
        Script::GiveUp,
        "local left, entries = pcall(leave, owner)",
        "local left, entries = pcall(leave, owner)
        for _, id in ipairs(redis.call('zrange', timeouts, 0, -1)) do
            redis.call('zincrby', timeouts, -fair_wait, id)
        end",
        1,
    ),
    mutant(
        "an owner that gives up stays in the set",
        Script::GiveUp,
        "redis.call('lrem', queue, 1, id) + redis.call('zrem', timeouts, id)",
        "redis.call('lrem', queue, 1, id)",
        1,
    ),
    mutant(
        "an owner that gives up keeps a lock granted meanwhile",
        Script::GiveUp,
        "redis.pcall('hdel', lock, owner)",
        "0",
        64,
    ),
    mutant(
        "an owner that gives up tells nobody",
        Script::GiveUp,
        "if redis.pcall('exists', lock) == 0 then",
        "if false then",
        27,
    ),
    mutant(
        "anybody may release",
        Script::Release,
        "redis.pcall('hdel', lock, owner)",
        "redis.pcall('del', lock)",
        6,
    ),
    mutant(
        "a release tells nobody",
        Script::Release,
        "local moved = move_on(line)",
        "local moved = 0",
        1,
    ),
    mutant(
        "a release leaves those queued owners to which the hold was passed",
        Script::Release,
        "if ARGV[5] then",
        "if false then",
        14,
    ),
    mutant(
        "a release takes one too many out of the queue",
        Script::Release,
        "redis.call('ltrim', queue, passed, -1)",
        "redis.call('ltrim', queue, passed + 1, -1)",
        8,
    ),
    mutant(
        "ours are told where Redisson would, and granted nothing",
        Script::Release,
        "if lives and not is_ours(head) then",
        "if lives then",
        2,
    ),
    mutant(
        "nobody hears that one of Redisson's may tell it",
        Script::Acquire,
        "redisson and 1 or 0, back}",
        "0, back}",
        5,
    ),
    mutant(
        "of Redisson's only the holder counts",
        Script::Acquire,
        " or redissons_ahead > 0",
        "",
        5,
    ),
    mutant(
        "only those of Redisson's waiters count that stand ahead",
        Script::Acquire,
        "held_by and not is_ours(held_by) or redissons_ahead > 0",
        "redissons_ahead > 0",
        12,
    ),
    mutant(
        "an owner that gives up a place gives up a hold, too",
        Script::GiveUp,
        "only_place and 0 or ",
        "",
        314,
    ),
    mutant(
        "the lock is handed to an owner that does not listen",
        Script::Release,
        "lives = redis.call('pubsub', 'numsub', own_channel(head))[2] ~= 0 or score % 1 ~= 0",
        "",
        12,
    ),
    mutant(
        "an owner whose client does not listen yet is passed over",
        Script::Release,
        " or score % 1 ~= 0",
        "",
        12,
    ),
    mutant(
        "an owner that listens by now stays marked",
        Script::Acquire,
        "score + 0.5, owner",
        "score, owner",
        677,
    ),
    mutant(
        "a grant by message has the whole lease",
        Script::Release,
        "local PROVISIONAL = 2000",
        "local PROVISIONAL = 30000",
        2,
    ),
    mutant(
        "an owner that is granted the lock stays in the list",
        Script::Release,
        "    take(head, lease)
    drop(head)",
        "    take(head, lease)
    redis.call('zrem', timeouts, head)",
        2,
    ),
    mutant(
        "another client's waiters are named as followers",
        Script::Release,
        "if client(line[i]) ~= client(id) then",
        "if false then",
        3,
    ),
    mutant(
        "followers are named that stand further back",
        Script::Release,
        "followers(head, line, 2)",
        "followers(head, line, 3)",
        2,
    ),
    mutant(
        "an owner that asks takes a free lock before the first in line",
        Script::Acquire,
        "local line = redis.call('lrange', queue, 0, FOLLOWERS)",
        "local line = asks and {next(asks)} or redis.call('lrange', queue, 0, FOLLOWERS)",
        26,
    ),
    mutant(
        "an owner that asks does not move the line of a free lock",
        Script::Acquire,
        "local head, granted, dropped = hand_on({[owner] = true}, others)",
        "local head, granted, dropped = redis.call('lindex', queue, 0), false, false",
        29,
    ),
    mutant(
        "an owner that tries does not move the line of a free lock",
        Script::Try,
        "local head, granted, dropped = hand_on()",
        "local head, granted, dropped = redis.call('lindex', queue, 0), false, false",
        81,
    ),
    mutant(
        "a forced unlock moves nobody",
        Script::ForceUnlock,
        "move_on(line)
return",
        "return",
        36,
    ),
    client("a grant is believed however late it is read", Rule::Deadline, 166),
    client("a process asks every third of the fair wait only", Rule::Poll, 85),
];
