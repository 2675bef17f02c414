//! The scripts, and the keys after each script.

use std::collections::{HashMap, HashSet};

use crate::simulated::scripts::{Script, Scripts, Texts};
use crate::simulated::state;
use crate::simulated::store::{Place, is_ours, short};

pub(crate) const LOCK: &str = "orders";
pub(crate) const QUEUE: &str = "redisson_lock_queue:{orders}";
pub(crate) const TIMEOUTS: &str = "redisson_lock_timeout:{orders}";
const ONLY_OURS: &str = "redisson_lock_timeout:{orders}:redlatch";
pub(crate) const KEYS: [&str; 3] = [LOCK, QUEUE, TIMEOUTS];
pub(crate) const PLACE: Place<'_> = Place { database: 0, keys: KEYS };
pub(crate) const DATABASE: &str = "0";
/// The prefix of the waiters' own channels, on which Redisson wakes them.
pub(crate) const CHANNEL: &str = "redisson_lock__channel:{orders}:";

pub(crate) fn keys(script: Script) -> &'static [&'static str] {
    match script {
        Script::KeepAlive => &[LOCK, QUEUE, TIMEOUTS, ONLY_OURS],
        Script::RedissonGiveUp => &KEYS[1..],
        _ => &KEYS,
    }
}

macro_rules! ours {
    ($($file:literal),+) => {
        concat!(
            include_str!("../../../lua/prelude.lua"),
            include_str!("../../../lua/fair/queue.lua"),
            $(include_str!(concat!("../../../lua/", $file))),+
        )
    };
}

const TEXTS: Texts = &[
    (Script::Acquire, ours!("lock/owner.lua", "fair/acquire.lua")),
    (Script::Try, ours!("lock/owner.lua", "fair/try.lua")),
    (Script::GiveUp, ours!("fair/give_up.lua")),
    (Script::Release, ours!("fair/release.lua")),
    (Script::ForceUnlock, ours!("lock/owner.lua", "fair/force_unlock.lua")),
    (Script::KeepAlive, ours!("fair/keep_alive.lua")),
    (Script::RedissonAcquire, include_str!("redisson/acquire.lua")),
    // The script of Redisson 3.16.8.
    (Script::RedissonAcquire3, include_str!("redisson/acquire_3.lua")),
    (Script::RedissonGiveUp, include_str!("redisson/give_up.lua")),
    (Script::RedissonUnlock, include_str!("redisson/unlock.lua")),
];

pub(crate) fn scripts() -> Scripts {
    // The model has few waiters. Change the limits, so that the scripts treat them as many.
    let (few, none) = ("local SHORT_QUEUE, TAIL = 32, 16", "local SHORT_QUEUE, TAIL = 0, 3");
    Scripts::of(TEXTS).with(Script::KeepAlive, few, none)
}

/// The values of the keys, and the messages since the last call.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) holders: Vec<String>,
    pub(crate) queue: Vec<String>,
    pub(crate) scores: HashMap<String, i64>,
    /// The owners whose scores say that their clients will soon have subscribed.
    pub(crate) just_come: HashSet<String>,
    pub(crate) lease_ends: Option<i64>,
    pub(crate) told: Vec<Told>,
    /// The holders that got the message that others wait.
    pub(crate) wanted: Vec<String>,
}

/// A message to one waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) owner: String,
    pub(crate) what: Message,
}

/// A message to a waiter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Message {
    /// The waiter should send a request. The message comes on the waiter's own channel, on which
    /// Redisson wakes it.
    Alone,
    /// The waiter should send a request. The message comes on the channel of its client.
    Ask,
    /// The waiter has the lock. The message comes on the channel of its client.
    Grant(Grant),
}

/// A grant by message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    /// The server's time of the grant.
    pub(crate) now: i64,
    pub(crate) lease: i64,
    /// The owners directly behind the granted owner.
    pub(crate) followers: Vec<String>,
}

impl Told {
    /// Parses a message that came on a channel.
    fn of(channel: &str, text: &str) -> Self {
        let Some(client) = channel.strip_prefix(CLIENT_CHANNEL) else {
            assert_eq!(text, "0");
            let owner = channel.strip_prefix(CHANNEL).unwrap().to_owned();
            return Self { owner, what: Message::Alone };
        };
        let client = client.strip_suffix('}').unwrap();
        let owner = |number: &str| format!("{client}:{number}");
        match *text.split(' ').collect::<Vec<_>>() {
            ["ask", number, LOCK] => Self { owner: owner(number), what: Message::Ask },
            ["grant", number, now, lease, followers, DATABASE, LOCK] => {
                let grant = Grant {
                    now: now.parse().unwrap(),
                    lease: lease.parse().unwrap(),
                    followers: numbers(followers).map(owner).collect(),
                };
                Self { owner: owner(number), what: Message::Grant(grant) }
            }
            _ => panic!("{text:?} is no message"),
        }
    }

    pub(crate) fn is_by_ours(&self) -> bool {
        self.what != Message::Alone
    }
}

pub(crate) fn numbers(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|number| *number != "-")
}

/// Returns the channel on which redlatch's scripts reach a waiter: its client's channel for a
/// redlatch waiter, and its own channel for a Redisson waiter.
pub(crate) fn channel_of(owner: &str) -> String {
    match owner.split_once(':') {
        Some((client, _)) if is_ours(owner) => format!("{CLIENT_CHANNEL}{client}}}"),
        _ => format!("{CHANNEL}{owner}"),
    }
}

const CLIENT_CHANNEL: &str = "redisson_lock__channel:{redlatch:";

impl State {
    pub(crate) fn of(now: i64, state: state::State) -> Self {
        let state::State { holders, queue, scores, left, messages, .. } = state;
        let wanted = |(channel, text): &(String, String)| {
            let number = text.strip_prefix("want ")?.strip_suffix(&format!(" {LOCK}"))?;
            let client = channel.strip_prefix(CLIENT_CHANNEL)?.strip_suffix('}')?;
            Some(format!("{client}:{number}"))
        };
        let (wants, messages): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| wanted(message).is_some());
        Self {
            holders,
            queue,
            just_come: {
                let marked = scores.iter().filter(|(_, score)| score.fract() > 0.0);
                marked.map(|(owner, _)| owner.clone()).collect()
            },
            scores: scores.into_iter().map(|(owner, score)| (owner, score.ceil() as i64)).collect(),
            lease_ends: (left >= 0).then_some(now + left),
            wanted: wants.iter().filter_map(wanted).collect(),
            told: messages.iter().map(|(channel, text)| Told::of(channel, text)).collect(),
        }
    }

    pub(crate) fn head(&self) -> Option<&str> {
        self.queue.first().map(String::as_str)
    }

    pub(crate) fn place(&self, owner: &str) -> Option<usize> {
        self.queue.iter().position(|id| id == owner)
    }

    /// Returns the state in one line, for the trace.
    pub(crate) fn short(&self, now: i64) -> String {
        let line: Vec<_> = self
            .queue
            .iter()
            .map(|id| format!("{} {:+}", short(id), self.scores.get(id).map_or(-1, |s| s - now)))
            .collect();
        let holders: Vec<_> = self.holders.iter().map(|id| short(id)).collect();
        let told: Vec<_> = self.told.iter().map(|told| short(&told.owner)).collect();
        format!("held by {holders:?}, queue {line:?}, told {told:?}")
    }
}
