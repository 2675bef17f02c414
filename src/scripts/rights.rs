//! The access rights that the URL's user needs. The query to the server and an error's text are
//! made from one table. `docs/operations.md` has the same table, and a test compares the two.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use redlatch_client::{CachedScript, Command, ReplicaAcks, RightsQuery, Route};

use super::keys::{
    BarrierKeys, ConditionKeys, ElectionKeys, ExpirableKeys, FairKeys, KeyOf, LatchKeys, LockKeys,
    SemaphoreKeys, requests, slow_wait,
};
use super::{Mode, Trouble, checking_rights, query};

/// The access rights that the URL's user needs, with a variant for each use. Each user needs the
/// rights for [`Connect`](Self::Connect) and the rights for its kinds of synchronizers. See
/// [Operations](crate::guide::operations#access-rights).
///
/// ```
/// # use redlatch::Rights;
/// let rules = [Rights::Connect, Rights::Locks].map(|rights| rights.acl_rules("orders").join(" "));
/// println!("ACL SETUSER app on >PASSWORD {}", rules.join(" "));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rights {
    /// For each client.
    Connect,
    /// For [`ReentrantLock`](crate::ReentrantLock)s.
    Locks,
    /// For [`FencedLock`](crate::FencedLock)s.
    FencedLocks,
    /// For [`FairLock`](crate::FairLock)s.
    FairLocks,
    /// For [`Condition`](crate::Condition)s of re-entrant locks, and for those locks.
    Conditions,
    /// For [`ReadWriteLock`](crate::ReadWriteLock)s.
    ReadWriteLocks,
    /// For [`Semaphore`](crate::Semaphore)s.
    Semaphores,
    /// For [`ExpirableSemaphore`](crate::ExpirableSemaphore)s.
    ExpirableSemaphores,
    /// For [`CountDownLatch`](crate::CountDownLatch)es.
    Latches,
    /// For [`CyclicBarrier`](crate::CyclicBarrier)s.
    Barriers,
    /// For [`LeaderElection`](crate::election::LeaderElection)s.
    Elections,
    /// For [`Client::status`](crate::Client::status) and
    /// [`Client::statuses`](crate::Client::statuses), and for the log lines of
    /// [`slow_wait`](crate::ClientBuilder::slow_wait). The user also needs the rights for the kind
    /// of synchronizer.
    Status,
    /// For [`replica_acks`](crate::ClientBuilder::replica_acks).
    ReplicaAcks,
    /// For the messages that wake a waiter. [`Connect`](Self::Connect) has these rights, too.
    Subscriptions,
    /// The rights that each client of a cluster needs.
    Cluster,
    /// For a server that the URL names by a host name, or that Sentinels report.
    Role,
}

struct KindRights {
    rights: Rights,
    /// The name of this kind of synchronizer in an error.
    one: &'static str,
    /// Another kind whose rights this kind also needs. The requests of the other kind check them.
    beside: Option<Rights>,
    /// The commands that the scripts of this kind may run on each key.
    keys: &'static [(KeyOf, &'static [&'static str])],
    bare: &'static [&'static str],
    /// The channels on which the scripts of this kind publish, in addition to the clients' own
    /// channels.
    channels: &'static [KeyOf],
}

fn name(name: &str) -> String {
    name.to_owned()
}

fn lock_keys(name: &str) -> LockKeys<'_> {
    LockKeys::new(name, Mode::Lock, false)
}

fn read_write_keys(name: &str) -> LockKeys<'_> {
    LockKeys::new(name, Mode::Read, false)
}

/// The key of `asked_key` in `lua/hand_off.lua`, for any owner.
fn asked(keys: LockKeys<'_>) -> String {
    format!("{}:", keys.queue().to_string().replacen("queue", "asked", 1))
}

const QUEUE: &[&str] =
    &["exists", "lindex", "linsert", "llen", "lpop", "lpos", "lrem", "pexpire", "rpush"];
const WINDOW: &[&str] = &["exists", "pttl", "set"];
const ASKED: &[&str] = &["exists", "get", "set"];
const REQUEST: &[&str] = &["get", "set"];
const LOCK: (KeyOf, &[&str]) = (
    name,
    &["del", "exists", "hdel", "hexists", "hkeys", "hlen", "hrandfield", "hset", "pexpire", "pttl"],
);
const LOCK_QUEUE: (KeyOf, &[&str]) = (|name| lock_keys(name).queue().to_string(), QUEUE);
const LOCK_WINDOW: (KeyOf, &[&str]) = (|name| lock_keys(name).window().to_string(), WINDOW);
const LOCK_ASKED: (KeyOf, &[&str]) = (|name| asked(lock_keys(name)), ASKED);

/// The prefix of the keys of a client's requests, without the client's id.
fn request(name: &str) -> String {
    requests(name, "")
}

static KINDS: [KindRights; 10] = [
    KindRights {
        rights: Rights::Locks,
        one: "a lock",
        beside: None,
        keys: &[LOCK, LOCK_QUEUE, LOCK_WINDOW, LOCK_ASKED],
        bare: &["pubsub", "time"],
        channels: &[LockKeys::channel],
    },
    KindRights {
        rights: Rights::FencedLocks,
        one: "a fenced lock",
        beside: None,
        keys: &[
            LOCK,
            LOCK_QUEUE,
            LOCK_WINDOW,
            LOCK_ASKED,
            (|name| lock_keys(name).tokens().to_string(), &["incrby"]),
        ],
        bare: &["pubsub", "time"],
        channels: &[LockKeys::channel],
    },
    KindRights {
        rights: Rights::ReadWriteLocks,
        one: "a read-write lock",
        beside: None,
        keys: &[
            (
                name,
                &[
                    "del",
                    "exists",
                    "hdel",
                    "hexists",
                    "hget",
                    "hgetall",
                    "hkeys",
                    "hlen",
                    "hrandfield",
                    "hset",
                    "pexpire",
                    "pttl",
                ],
            ),
            (LockKeys::readers, &["del", "pexpire", "pttl", "set"]),
            (
                |name| read_write_keys(name).queue().to_string(),
                &[
                    "exists", "lindex", "linsert", "llen", "lpop", "lpos", "lrange", "lrem",
                    "pexpire", "rpush",
                ],
            ),
            (|name| read_write_keys(name).window().to_string(), WINDOW),
            (|name| asked(read_write_keys(name)), ASKED),
        ],
        bare: &["pubsub", "time"],
        channels: &[|name| read_write_keys(name).public().to_string()],
    },
    KindRights {
        rights: Rights::FairLocks,
        one: "a fair lock",
        beside: None,
        keys: &[
            (
                name,
                &[
                    "del",
                    "exists",
                    "hdel",
                    "hexists",
                    "hkeys",
                    "hlen",
                    "hrandfield",
                    "hset",
                    "pexpire",
                    "pttl",
                ],
            ),
            (
                |name| FairKeys::new(name).queue,
                &["linsert", "lpos", "lpush", "lrange", "lrem", "ltrim", "rpush"],
            ),
            (
                |name| FairKeys::new(name).timeouts,
                &["zadd", "zrange", "zrem", "zrevrange", "zscore"],
            ),
        ],
        bare: &["pubsub", "time"],
        channels: &[|name| FairKeys::new(name).channel_prefix],
    },
    KindRights {
        rights: Rights::Conditions,
        one: "a condition",
        beside: Some(Rights::Locks),
        keys: &[
            (name, &["hexists"]),
            (
                |name| ConditionKeys::new(name, "").waiting,
                &["del", "lindex", "lpop", "lpos", "lrange", "lrem", "pexpire", "rpush"],
            ),
            (
                |name| ConditionKeys::new(name, "").notified,
                &["del", "hdel", "hexists", "hget", "hgetall", "hlen", "hset", "hvals", "pexpire"],
            ),
        ],
        bare: &["pubsub", "time"],
        channels: &[],
    },
    KindRights {
        rights: Rights::Semaphores,
        one: "a semaphore",
        beside: None,
        keys: &[
            (name, &["decrby", "del", "get", "incrby", "persist", "pexpire", "pttl", "set"]),
            (SemaphoreKeys::mark, &["del", "get", "persist", "pexpire", "set"]),
            (request, REQUEST),
        ],
        bare: &["time"],
        channels: &[SemaphoreKeys::channel],
    },
    KindRights {
        rights: Rights::ExpirableSemaphores,
        one: "an expirable semaphore",
        beside: None,
        keys: &[
            (name, &["decrby", "del", "get", "incrby", "persist", "pexpire", "pttl", "set"]),
            (
                ExpirableKeys::timeouts,
                &[
                    "del",
                    "persist",
                    "pexpire",
                    "zadd",
                    "zcard",
                    "zcount",
                    "zmscore",
                    "zrange",
                    "zrem",
                    "zremrangebyscore",
                    "zscore",
                ],
            ),
            (request, REQUEST),
        ],
        bare: &["time"],
        channels: &[SemaphoreKeys::channel],
    },
    KindRights {
        rights: Rights::Latches,
        one: "a latch",
        beside: None,
        keys: &[
            (name, &["decr", "del", "get", "incrby", "persist", "pexpire", "pttl", "set"]),
            (request, REQUEST),
        ],
        bare: &["time"],
        channels: &[LatchKeys::channel],
    },
    KindRights {
        rights: Rights::Barriers,
        one: "a barrier",
        beside: None,
        keys: &[
            (
                |name| BarrierKeys::new(name, 0).barrier,
                &["hdel", "hget", "hmget", "hset", "persist", "pexpire"],
            ),
            (
                |name| BarrierKeys::new(name, 0).parties,
                &["del", "zadd", "zcard", "zcount", "zrange", "zscore"],
            ),
            (request, REQUEST),
        ],
        bare: &["time"],
        channels: &[|name| BarrierKeys::new(name, 0).channel],
    },
    KindRights {
        rights: Rights::Elections,
        one: "an election",
        beside: Some(Rights::FencedLocks),
        keys: &[
            (name, &["hexists", "pttl"]),
            (ElectionKeys::leader, &["del", "hget", "hmget", "hset"]),
        ],
        bare: &["time"],
        channels: &[ElectionKeys::leader],
    },
];

/// The rights that belong to no kind, as rules of `ACL SETUSER`, and the keys.
static OTHERS: [(Rights, &str, &[KeyOf]); 6] = [
    (
        Rights::Connect,
        "+evalsha +eval +ping +info +publish +subscribe +unsubscribe +client|setname \
         +client|tracking &redisson_lock__channel:*",
        &[],
    ),
    (
        Rights::Status,
        "+type +pttl +time +hlen +hgetall +hexists +getrange +lrange +zrange +client|list +scan +set",
        // The server refuses a script if the user lacks the right to one of its KEYS.
        &[
            name,
            |name| FairKeys::new(name).queue,
            |name| lock_keys(name).queue().to_string(),
            |name| read_write_keys(name).queue().to_string(),
            ExpirableKeys::timeouts,
            |name| lock_keys(name).tokens().to_string(),
            |name| slow_wait(name).to_string(),
        ],
    ),
    (Rights::ReplicaAcks, "+wait", &[]),
    (Rights::Subscriptions, "+subscribe +unsubscribe", &[]),
    (Rights::Cluster, "+cluster|slots +cluster|info +spublish +ssubscribe +sunsubscribe", &[]),
    (Rights::Role, "+role", &[]),
];

/// A script that needs no rights. The check of the rights is sent with this script.
static NOTHING: LazyLock<CachedScript> = LazyLock::new(|| CachedScript::new("return 1"));

/// Checks the right to `SUBSCRIBE`, which only a waiter needs. A script cannot run this command, so
/// no request checks the right.
static MAY_WAIT: LazyLock<CachedScript> = LazyLock::new(|| {
    CachedScript::new(
        "return redis.acl_check_cmd('subscribe', 'redisson_lock__channel:{redlatch:}') and 1 \
         or redis.error_reply('NOPERM the user may not run SUBSCRIBE')",
    )
});

static QUERIES: [LazyLock<RightsQuery>; 10] = {
    macro_rules! each {
        ($($at:literal),+) => {
            [$(LazyLock::new(|| RightsQuery::new($at, KINDS[$at].query_script()))),+]
        };
    }
    each!(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
};

impl Rights {
    fn kind(self) -> Option<usize> {
        KINDS.iter().position(|kind| kind.rights == self)
    }

    /// Returns the query for these rights, or `None` if they belong to no synchronizer. The query
    /// runs before the first request of this kind.
    pub(super) fn rights_query(self) -> Option<&'static RightsQuery> {
        self.kind().map(|kind| &*QUERIES[kind])
    }

    /// Returns the rules of `ACL SETUSER` that give a user these rights for this name, sorted. If
    /// `name` ends with `*`, the rules are for all names that begin with the text before the `*`.
    /// No I/O.
    ///
    /// A name with a `{` has other keys, so rules for `shop*` leave out the name `shop{1}`. The
    /// rules for a name with a `{` also allow some keys of longer names.
    #[must_use]
    pub fn acl_rules(self, name: &str) -> Vec<String> {
        let mut rules = BTreeSet::new();
        self.add_rules(name, &mut rules);
        rules.into_iter().collect()
    }

    fn add_rules(self, name: &str, rules: &mut BTreeSet<String>) {
        for (_, fixed, keys) in OTHERS.iter().filter(|(rights, ..)| *rights == self) {
            rules.extend(fixed.split(' ').map(str::to_owned));
            rules.extend(keys.iter().map(|key| format!("~{}", acl_pattern(*key, name))));
        }
        let Some(kind) = self.kind().map(|at| &KINDS[at]) else { return };
        rules.extend(kind.commands().iter().map(|command| format!("+{command}")));
        rules.extend(kind.keys.iter().map(|(key, _)| format!("~{}", acl_pattern(*key, name))));
        let channels = kind.channels.iter().map(|key| format!("&{}", acl_pattern(*key, name)));
        // [`Rights::Connect`] already has the channels of all locks.
        rules.extend(channels.filter(|it| !it.starts_with("&redisson_lock__channel:")));
        if let Some(other) = kind.beside {
            other.add_rules(name, rules);
        }
    }

    /// Queries whether the user has these rights for this name. Changes nothing.
    pub(crate) fn check(self, route: &Route, name: &str) -> Result<(), Trouble> {
        if let Some(other) = self.kind().and_then(|kind| KINDS[kind].beside) {
            other.check(route, name)?;
        }
        let keys = match self {
            Self::Barriers => vec![BarrierKeys::new(name, 0).barrier],
            // A condition's first request has the lock's name after these keys.
            Self::Conditions => {
                let keys = ConditionKeys::new(name, "");
                vec![keys.waiting, keys.notified, name.to_owned()]
            }
            _ => vec![name.to_owned()],
        };
        let keys: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        let command = match self {
            Self::Connect | Self::Subscriptions => Command::script::<&[u8]>(&MAY_WAIT, &[], &[]),
            Self::ReplicaAcks => Command::wait(ReplicaAcks { count: 0, within: Duration::ZERO }),
            // The client has already used the rights of `Cluster` and `Role` to open the
            // connection. `key_data` in `status.rs` checks the rights of `Status`.
            Self::Cluster | Self::Role | Self::Status => return Ok(()),
            _ => checking_rights(Command::script(&NOTHING, &keys, &[]), self),
        };
        query(route, &command, self, |_| Ok(()))
    }

    /// Returns a text with all these rights, for an error.
    pub(super) fn advice(self) -> String {
        if let Some(kind) = self.kind() {
            return KINDS[kind].advice();
        }
        match self {
            Self::Status => {
                "a status needs EVALSHA, EVAL, TYPE, PTTL, TIME, HLEN, HGETALL, HEXISTS and GETRANGE \
                 on the name's keys of each kind"
            }
            Self::ReplicaAcks => "replica_acks needs WAIT",
            Self::Subscriptions => {
                "waiting needs SUBSCRIBE on the channel (in a cluster SSUBSCRIBE, or \
                 sharded_channels(false))"
            }
            _ => "a client needs EVALSHA, EVAL, PING, PUBLISH and SUBSCRIBE",
        }
        .to_owned()
    }
}

/// Returns the text before and after the name in a key or a channel.
fn around(key: KeyOf, name: &str) -> (String, String) {
    let whole = key(name);
    let (before, after) = whole.split_once(name).unwrap_or((&whole, ""));
    (before.to_owned(), after.to_owned())
}

/// Returns the pattern of `ACL SETUSER` for a key or a channel of this name, or of all names that
/// begin with the text before a final `*`. The keys and channels may have more text after the text
/// that `key` makes, such as a client's id or a condition's name.
fn acl_pattern(key: KeyOf, name: &str) -> String {
    // The placeholder `name` replaces the real name: a search for a real name such as `lock` could
    // find it in the prefix.
    let (before, after) = around(key, if name.contains('{') { "{name" } else { "name" });
    let mut pattern = before.clone();
    let (stem, more) = name.strip_suffix('*').map_or((name, ""), |stem| (stem, "*"));
    for it in stem.chars() {
        match it {
            // A rule cannot contain a space. In a line for `redis-cli`, a rule cannot contain a
            // quotation mark.
            ' ' | '"' | '\'' => pattern.push('?'),
            it if it.is_whitespace() || it.is_control() => pattern.push('?'),
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', it]),
            it => pattern.push(it),
        }
    }
    if !more.is_empty() {
        pattern.push_str(more);
    } else if !before.is_empty() || !after.is_empty() {
        pattern.push_str(if after.starts_with('}') { "}*" } else { "*" });
    }
    pattern
}

impl KindRights {
    fn commands(&self) -> Vec<&'static str> {
        let all = self.keys.iter().flat_map(|(_, commands)| *commands).chain(self.bare);
        let mut all: Vec<_> = all.copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn advice(&self) -> String {
        let mut text = format!("{} needs ", self.one);
        if let Some(other) = self.beside.and_then(Rights::kind) {
            let _ = write!(text, "the rights of {}, and ", KINDS[other].one);
        }
        text.push_str("EVALSHA, EVAL, ");
        for command in self.commands() {
            let _ = write!(text, "{}, ", command.to_uppercase());
        }
        text.push_str("PUBLISH and SUBSCRIBE on its key");
        let pattern = |key: &KeyOf| format!("{}*", around(*key, "name").0);
        for (key, _) in self.keys.iter().filter(|(key, _)| key("name") != "name") {
            let _ = write!(text, ", on {}", pattern(key));
        }
        text.push_str(" and on its channels, redisson_lock__channel:*");
        for key in self.channels {
            let pattern = pattern(key);
            if !pattern.starts_with("redisson_lock__channel") {
                let _ = write!(text, " and {pattern}");
            }
        }
        text
    }

    fn query_script(&self) -> String {
        // Single quotes are enough in Lua, because no text here contains a quotation mark.
        let quoted = |text: &str| format!("'{text}'");
        let on = |key: KeyOf, commands: &[&str]| {
            let [(before, after), (tagged, rest)] = ["name", "{name"].map(|it| around(key, it));
            let all = commands.iter().map(|it| quoted(it)).collect::<Vec<_>>().join(", ");
            let parts = [&before, &after, &tagged, &rest].map(|it| quoted(it)).join(", ");
            format!("        {{{{{all}}}, {parts}}},\n")
        };
        let keys = self.keys.iter().map(|(key, commands)| on(*key, commands));
        let channels = self.channels.iter().map(|channel| on(*channel, &["publish"]));
        let rows = keys.chain(channels).collect::<String>();
        let own = match self.rights {
            Rights::Barriers => {
                "string.match(KEYS[1], '^redlatch_barrier:{(.*)}$') or string.match(KEYS[1], ':(.*)')"
            }
            // A user may have rights only for the keys of one condition. So the name in the query
            // for conditions includes the condition's name. The search for the lock's name begins
            // after the prefix, which ends before the 20th byte or with `tagged:`.
            Rights::Conditions => {
                "KEYS[3], string.sub(KEYS[1], select(2, string.find(KEYS[1], KEYS[3], 20, true)) + 1)"
            }
            _ => "KEYS[at]",
        };
        // A request for locks of these kinds may name several locks, and the names come first.
        let names = match self.rights {
            // A query that is sent without a request has one key.
            Rights::Locks | Rights::ReadWriteLocks => "math.max(1, #KEYS / 3)",
            Rights::FencedLocks => "math.max(1, #KEYS / 4)",
            _ => "1",
        };
        let own_channel = if self.bare.contains(&"pubsub") {
            "    check('publish', 'redisson_lock__channel:{redlatch:' .. '}', '')\n    \
             check('pubsub', 'numsub', '')\n"
        } else {
            ""
        };
        include_str!("../../lua/rights.lua")
            .replace("--[[ROWS]]", &rows)
            .replace("--[[OWN NAME]]", own)
            .replace("--[[NAMES]]", names)
            .replace("--[[OWN CHANNEL]]", own_channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts in the first column of the table in `docs/operations.md`, each with its kind.
    const ROWS: [(&str, Rights); 10] = [
        ("locks", Rights::Locks),
        ("fenced locks", Rights::FencedLocks),
        ("read-write locks", Rights::ReadWriteLocks),
        ("fair locks", Rights::FairLocks),
        ("conditions", Rights::Conditions),
        ("semaphores", Rights::Semaphores),
        ("expirable semaphores", Rights::ExpirableSemaphores),
        ("latches", Rights::Latches),
        ("barriers", Rights::Barriers),
        ("elections", Rights::Elections),
    ];

    /// Returns the rules in each row of the documented table, without the rules of other rows to
    /// which the row refers.
    fn documented() -> Vec<(String, String)> {
        let text = include_str!("../../docs/operations.md");
        let table = text.split("## Access rights").nth(1).unwrap().split("```").nth(1).unwrap();
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut is_named = true;
        for line in table.lines().skip(1) {
            let (name, rules) = line.split_at(18.min(line.len()));
            let name = name.trim();
            // An entry may have two lines.
            if name.is_empty() || !is_named && name == "semaphores" {
                rows.last_mut().unwrap().1 += &format!(" {rules}");
                if !name.is_empty() {
                    rows.last_mut().unwrap().0 += &format!(" {name}");
                }
            } else {
                rows.push((name.to_owned(), rules.to_owned()));
            }
            is_named = name != "expirable";
        }
        rows
    }

    fn rules_of(rows: &[(String, String)], name: &str, all: &mut BTreeSet<String>) {
        let (_, rules) = rows.iter().find(|(row, _)| row == name).expect(name);
        let is_rule = |it: &&str| it.starts_with(['~', '&', '+']);
        all.extend(
            rules.split([' ', ';']).filter(is_rule).map(|it| it.trim_end_matches(',').to_owned()),
        );
        for (other, refers) in [
            ("locks", "the rights of locks"),
            ("fenced locks", "the rights of fenced locks"),
            ("locks", "the rights of their locks"),
        ] {
            if rules.contains(refers) {
                rules_of(rows, other, all);
            }
        }
    }

    fn in_table(rights: Rights, all: &mut BTreeSet<String>) {
        let kind = &KINDS[rights.kind().unwrap()];
        let pattern = |key: &KeyOf| format!("{}shop*", around(*key, "shop").0);
        all.extend(kind.keys.iter().map(|(key, _)| format!("~{}", pattern(key))));
        all.extend(kind.commands().iter().map(|it| format!("+{it}")));
        let channels = kind.channels.iter().map(|key| {
            let pattern = pattern(key);
            // The document shows these patterns without a name.
            let known = ["redisson_lock__channel:", "redisson_rwlock:", "redisson_sc:"];
            let more =
                ["redisson_countdownlatch__channel__", "redlatch_barrier:", "redlatch_leader:"];
            let mut prefixes = known.iter().chain(&more);
            prefixes
                .find(|it| pattern.starts_with(**it))
                .map_or_else(|| pattern.clone(), |it| format!("{it}*"))
        });
        all.extend(channels.map(|it| format!("&{it}")));
        if let Some(other) = kind.beside {
            in_table(other, all);
        }
    }

    /// The table in the document, the query and the error's text must name the same commands.
    #[test]
    fn the_documents_name_the_rights_for_which_a_request_asks() {
        let rows = documented();
        for (name, rights) in ROWS {
            let (mut said, mut asked) = (BTreeSet::new(), BTreeSet::new());
            rules_of(&rows, "for each client", &mut said);
            asked.clone_from(&said);
            rules_of(&rows, name, &mut said);
            in_table(rights, &mut asked);
            let lacks: Vec<_> = asked.difference(&said).collect();
            let vain: Vec<_> = said.difference(&asked).collect();
            assert!(
                lacks.is_empty() && vain.is_empty(),
                "{name}: lacks {lacks:?}, in vain {vain:?}"
            );
            let advice = rights.advice();
            for command in KINDS[rights.kind().unwrap()].commands() {
                assert!(advice.contains(&command.to_uppercase()), "{command}: {advice}");
            }
        }
    }

    #[test]
    fn the_documents_name_the_rights_that_belong_to_no_kind() {
        let rows = documented();
        for (name, rights) in [
            ("for each client", Rights::Connect),
            ("cluster", Rights::Cluster),
            ("status, slow_wait", Rights::Status),
            ("replica_acks", Rights::ReplicaAcks),
            ("behind a name", Rights::Role),
        ] {
            let (mut said, known) = (BTreeSet::new(), rights.acl_rules("shop*"));
            rules_of(&rows, name, &mut said);
            assert_eq!(said, known.into_iter().collect(), "{name}");
        }
    }

    #[test]
    fn the_rules_for_a_name_are_for_no_other() {
        let keys = |rights: Rights, name| {
            let mut rules = rights.acl_rules(name);
            rules.retain(|rule| !rule.starts_with('+'));
            rules.join(" ")
        };
        assert_eq!(
            keys(Rights::Locks, "lock"),
            "~lock ~redlatch_asked:{lock}* ~redlatch_queue:{lock}* ~redlatch_window:{lock}*"
        );
        assert_eq!(
            keys(Rights::Latches, "shop*"),
            "&redisson_countdownlatch__channel__{shop* ~redlatch_request:{shop* ~shop*"
        );
        assert_eq!(
            keys(Rights::ExpirableSemaphores, "a b[*]"),
            "&redisson_sc:{a?b\\[\\*\\]}* ~a?b\\[\\*\\] ~redlatch_request:{a?b\\[\\*\\]}* ~{a?b\\[\\*\\]}*"
        );
        assert_eq!(
            keys(Rights::Semaphores, "{a}"),
            "&redisson_sc:{a}* ~redlatch_mark_tagged:{a}* ~redlatch_request:{a}* ~{a}"
        );
    }

    /// The table must have every command that a kind's scripts run. If the table lacks a command, a
    /// missing right is noticed only after a grant.
    #[test]
    fn the_table_has_each_command_of_a_kinds_scripts() {
        let lock = || {
            code!(
                LOCK_OWNER,
                "lock/acquire.lua",
                "lock/free.lua",
                "lock/queue_up.lua",
                "lock/try.lua",
                "lock/hand_over.lua",
                "lock/release.lua",
                "lock/give_up.lua",
                "lock/keep.lua",
                "lock/force_unlock.lua",
                "lock/successor.lua",
                "lock/ticket.lua",
                "lock/adopt.lua",
                "multi/acquire.lua"
            )
        };
        let scripts = [
            (Rights::FencedLocks, lock()),
            (
                Rights::ReadWriteLocks,
                code!(
                    READ_WRITE,
                    "read_write/acquire.lua",
                    "read_write/free.lua",
                    "read_write/try.lua",
                    "read_write/release_uncontended.lua",
                    "read_write/read_on.lua",
                    "read_write/force_unlock.lua",
                    "lock/cut.lua",
                    "lock/renew.lua",
                    "lock/keep.lua",
                    "lock/release.lua",
                    // (`multi/acquire.lua` also runs the commands for the tokens of fenced locks.)
                    "lock/give_up.lua"
                ),
            ),
            (
                Rights::FairLocks,
                code!(
                    FAIR_OWNER,
                    "fair/acquire.lua",
                    "fair/try.lua",
                    "fair/release.lua",
                    "fair/give_up.lua",
                    "fair/keep.lua",
                    "fair/force_unlock.lua"
                ),
            ),
            (
                Rights::Conditions,
                code!(
                    CONDITION,
                    "condition/holder.lua",
                    "condition/passing.lua",
                    "condition/wait.lua",
                    "condition/notify.lua",
                    "condition/state.lua",
                    "condition/keep_alive.lua",
                    "condition/done.lua"
                ),
            ),
            (
                Rights::Semaphores,
                code!(
                    MARKED,
                    "semaphore/try_acquire.lua",
                    "semaphore/abandon.lua",
                    "semaphore/release.lua",
                    "semaphore/add_permits.lua",
                    "semaphore/drain_permits.lua",
                    "semaphore/set_permits.lua",
                    "semaphore/try_set_permits.lua",
                    "semaphore/delete.lua",
                    "semaphore/mend.lua"
                ),
            ),
            (
                Rights::ExpirableSemaphores,
                code!(
                    COUNT,
                    "expirable_semaphore/expired.lua",
                    "expirable_semaphore/try_acquire.lua",
                    "expirable_semaphore/release.lua",
                    "expirable_semaphore/renew.lua",
                    "expirable_semaphore/set_permits.lua",
                    "expirable_semaphore/delete.lua",
                    "expirable_semaphore/update_lease_time.lua"
                ),
            ),
            (
                Rights::Latches,
                code!(
                    COUNT,
                    "latch/count_down.lua",
                    "latch/state.lua",
                    "latch/try_set_count.lua",
                    "latch/delete.lua"
                ),
            ),
            (
                Rights::Barriers,
                code!(
                    "once.lua",
                    "barrier/generations.lua",
                    "barrier/arrive.lua",
                    "barrier/state.lua",
                    "barrier/finish.lua",
                    "barrier/reset.lua",
                    "barrier/delete.lua",
                    "barrier/try_set_parties.lua"
                ),
            ),
            (
                Rights::Elections,
                code!("election/lead.lua", "election/state.lua", "election/resign.lua"),
            ),
        ];
        for (rights, code) in scripts {
            let known = KINDS[rights.kind().unwrap()].commands();
            let mut ran = 0;
            for call in code.split("call('").skip(1) {
                let command = call.split('\'').next().unwrap();
                ran += 1;
                assert!(command == "publish" || known.contains(&command), "{rights:?}: {command}");
            }
            assert!(ran > 3, "{rights:?}");
        }
    }
}
