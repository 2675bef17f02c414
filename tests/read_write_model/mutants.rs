//! Rules broken one at a time, to show that the model would notice.

use crate::store::Script;

/// What is broken: a part of a text, and what stands there instead.
pub(crate) struct Mutant {
    pub(crate) what: &'static str,
    pub(crate) script: Script,
    pub(crate) part: &'static str,
    pub(crate) by: &'static str,
    /// A history that has found it out, to be tried first. If scripts or model have changed since,
    /// another one will, and the test says which.
    pub(crate) seed: u64,
}

const fn script(
    what: &'static str,
    script: Script,
    part: &'static str,
    by: &'static str,
    seed: u64,
) -> Mutant {
    Mutant { what, script, part, by, seed }
}

pub(crate) const MUTANTS: &[Mutant] = &[
    script(
        "a later reader passes a writer in front",
        Script::Acquire,
        "if may_enter() and redis.pcall('exists', queue, window) == 0 then",
        "if may_enter() and redis.pcall('exists', window) == 0 then",
        0,
    ),
    script(
        "a reader that only tries passes a writer in front",
        Script::Try,
        "if writes(owner) or length() > 0 then",
        "if writes(owner) then",
        0,
    ),
    script(
        "who tries does not see that the one in front is dead",
        Script::Try,
        "    look()\n    if writes(owner)",
        "    if writes(owner)",
        0,
    ),
    script(
        "only the first reader is let in",
        Script::Holders,
        "                granted = true\n            else",
        "                return true\n            else",
        0,
    ),
    script(
        "readers behind the one who asks are not let in",
        Script::Holders,
        "            granted = true\n        else",
        "            return true, asked\n        else",
        0,
    ),
    script(
        "a writer is let in beside readers",
        Script::Holders,
        "elseif mode and writes(head) then",
        "elseif false then",
        0,
    ),
    script(
        "a dead writer in front keeps readers out",
        Script::Holders,
        "        elseif head ~= asker and not listens(head) then\n            redis.pcall('lpop', queue)",
        "        elseif mode and writes(head) then\n            break",
        0,
    ),
    script(
        "a pattern's subscriber makes the dead look alive",
        Script::HandOff,
        "return refused(heard) or heard[2] > 0",
        "return true",
        0,
    ),
    script(
        "a reader has no timeout",
        Script::Holders,
        "        trouble = refused(redis.pcall('set', timeout(owner, 1), 1, 'px', lease))",
        "        trouble = nil",
        0,
    ),
    script(
        "a timeout has no end",
        Script::Holders,
        "redis.pcall('set', timeout(owner, 1), 1, 'px', lease)",
        "redis.pcall('set', timeout(owner, 1), 1)",
        0,
    ),
    script(
        "the first reader that leaves ends the others' hold",
        Script::Holders,
        "local free = longest == 0 and not writer",
        "local free = not writer",
        0,
    ),
    script(
        "who reads on stays a writer",
        Script::Holders,
        "redis.call('hset', lock, 'mode', 'read')",
        "redis.call('hlen', lock)",
        0,
    ),
    script(
        "who reads on lets no reader in",
        Script::Holders,
        "        grant(now(), 1)\n        redis.pcall('publish', public, message)",
        "        redis.pcall('publish', public, message)",
        0,
    ),
    script(
        "the lock's own end is not that of the readers who are left",
        Script::Holders,
        "            redis.pcall('pexpire', lock, longest)",
        "            redis.pcall('pexpire', lock, 1)",
        0,
    ),
    script(
        "a reader that enters cuts the others' lease",
        Script::Holders,
        "    if redis.call('pttl', key) < tonumber(lease) then",
        "    if true then",
        0,
    ),
    script(
        "one that reads is left out of the lock's lease",
        Script::Holders,
        "    if not trouble and left < tonumber(lease) then",
        "    if not trouble and left < 0 then",
        0,
    ),
    script(
        "a writer that gives up leaves the readers behind it",
        Script::Holders,
        "    if mode == 'read' then\n        grant(now(), 1)",
        "    if mode == 'read' then\n        mode = nil",
        0,
    ),
    script(
        "who is not the holder does not look",
        Script::Holders,
        "        look()\n        return false",
        "        return false",
        0,
    ),
    script(
        "a free lock is granted in a window",
        Script::Acquire,
        "if mode ~= 'write' and (not open or place < 0) then",
        "if mode ~= 'write' then",
        0,
    ),
    script(
        "a refused message is not undone",
        Script::Holders,
        "                if not refusal then\n                    drop(head)\n                end",
        "",
        0,
    ),
    script(
        "a renewal does not make the timeout longer",
        Script::Renew,
        "local timeout = reads and raise_timeout(key, owner)",
        "local timeout = nil",
        0,
    ),
    script(
        "who gives up keeps its place",
        Script::GiveUp,
        "redis.pcall('lrem', queue, 1, ARGV[3])",
        "",
        0,
    ),
    script(
        "a place is taken twice",
        Script::HandOff,
        "local place = redis.pcall('lpos', queue, owner)",
        "local place = false",
        0,
    ),
    script(
        "the queue does not end",
        Script::HandOff,
        "    if exists == 0 then\n        redis.call('pexpire', queue, KEPT)\n    end",
        "",
        0,
    ),
    script(
        "a forced unlock grants nobody",
        Script::ForceUnlock,
        "if not grant(now(), 1) then",
        "if true then",
        0,
    ),
];
