//! The wire format: requests, replies, messages. No I/O and no state.

use redis::Value;

use super::kind::Kind;

/// Returns the number of an owner as the server knows it. The number has a time, and the flag of
/// owners that want to be notified when others wait.
pub(crate) fn named(number: u64) -> u64 {
    FIRST + 4 * number + (number >> 1 & 1)
}

const FIRST: u64 = 1 << 50;

fn above_first(owner: &str) -> Option<u64> {
    owner[37..].trim_end_matches(":write").parse::<u64>().ok()?.checked_sub(FIRST)
}

/// Returns the number before [`named`](named) changed it.
pub(crate) fn number_of(owner: &str) -> Option<u64> {
    above_first(owner).map(|number| number / 4)
}

/// Whether this owner wants to be notified when others wait.
pub(crate) fn hears(owner: &str) -> bool {
    above_first(owner).is_some_and(|number| number & 1 == 1)
}

pub(crate) fn own_channel(uuid: &str) -> String {
    format!("redisson_lock__channel:{{redlatch:{uuid}}}")
}

/// A chain: redlatch clients have had the lock one after the other, without a turn of Redisson. A
/// chain has its beginning in ms and the number of clients, including the holder. A beginning above
/// zero is the server's time, and otherwise it is minus the chain's age. All fields are zero if the
/// chain is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) since: i64,
    pub(crate) count: i64,
}

impl Chain {
    /// Returns the arguments for the chain. If the chain is unknown or younger than 10 ms, it has
    /// arguments only if other arguments follow.
    pub(crate) fn said(self, always: bool) -> Vec<String> {
        let Self { since, count } =
            if self.since > 0 || self.since <= -10 { self } else { Self::default() };
        if since == 0 && !always {
            Vec::new()
        } else {
            vec![since.to_string(), (count + 1).to_string()]
        }
    }
}

/// A call of a script. `number` is the owner's number. Leases are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Acquire { number: u64, lease: i64, again: Option<Again> },
    Try { number: u64, lease: i64 },
    Release { number: u64, chain: Chain },
    GiveUp { number: u64, chain: Chain },
    Renew { number: u64, lease: i64 },
}

/// The additional arguments of an entry's later requests, in ms on the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Again {
    /// The time since which the owner has waited.
    pub(crate) waiting_since: u64,
    /// The time of sending, if the client may report other waiters as silent.
    pub(crate) sent: Option<u64>,
}

/// Converts a refusal from the text of `queue_up.lua` to the list that the rest of the script
/// replies. Does not change any other reply.
pub(crate) fn as_list(reply: Value) -> Value {
    let Value::BulkString(text) = &reply else { return reply };
    let text = String::from_utf8_lossy(text);
    let numbers: Result<Vec<i64>, _> = text.split(' ').map(str::parse).collect();
    let Ok([seconds, micros, left, place, fresh]) = numbers.as_deref() else { return reply };
    let now = seconds * 1_000 + micros / 1_000;
    Value::Array([now, *left, *place, 0, *fresh].map(Value::Int).to_vec())
}

/// A script's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Granted {
        already: bool,
        /// The last fencing token of the hold.
        token: Option<i64>,
    },
    Queued(QueuedReply),
    /// The answer to a `try` that did not get the lock.
    NotTaken,
    Released(Released),
    /// The reply to `renew`: whether the owner has the lock.
    Renewed(bool),
    /// The server refused the script, which did nothing.
    Error(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedReply {
    /// The server's time in ms.
    pub(crate) now: i64,
    /// The time in ms until the next request is useful.
    pub(crate) left: i64,
    pub(crate) place: i64,
    pub(crate) whose: Whose,
    pub(crate) is_fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Redissons,
    Window,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    NotHeld,
    HandedOn,
    Window,
    /// The lock is free, and no client listens to the public channel, so the chain ends.
    Alone,
    Free,
}

impl Reply {
    pub(crate) fn new(request: &Request, value: &Value) -> Self {
        if let Value::ServerError(error) = value {
            return Self::Error(format!("{error:?}"));
        }
        let numbers: Vec<i64> = match &as_list(value.clone()) {
            Value::Array(parts) => {
                parts.iter().filter_map(|part| redis::from_redis_value(part.clone()).ok()).collect()
            }
            Value::Int(number) => vec![*number],
            _ => Vec::new(),
        };
        match (request, &numbers[..]) {
            (Request::Acquire { .. } | Request::Try { .. }, [taken]) => {
                Self::Granted { already: *taken < 0, token: None }
            }
            (Request::Acquire { .. } | Request::Try { .. }, [taken, token]) => {
                Self::Granted { already: *taken < 0, token: Some(*token) }
            }
            (Request::Acquire { .. }, [now, left, place, whose, fresh]) => {
                Self::Queued(QueuedReply {
                    now: *now,
                    left: *left,
                    place: *place,
                    whose: [Whose::Ours, Whose::Redissons, Whose::Window][*whose as usize],
                    is_fresh: *fresh == 1,
                })
            }
            (Request::Try { .. }, []) => Self::NotTaken,
            (Request::Release { .. } | Request::GiveUp { .. }, []) => {
                Self::Released(Released::NotHeld)
            }
            (Request::Release { .. } | Request::GiveUp { .. }, [what]) => {
                Self::Released(match what {
                    1 => Released::HandedOn,
                    2 => Released::Window,
                    3 => Released::Alone,
                    _ => Released::Free,
                })
            }
            (Request::Renew { .. }, [held]) => Self::Renewed(*held > 0),
            _ => Self::Error(format!("{request:?} answers {value:?}")),
        }
    }
}

/// A message on a client's own channel. A message has a verb, the owner's number, the verb's
/// arguments, and at the end the database and the lock's key, which may contain any character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) number: u64,
    pub(crate) what: What,
    pub(crate) database: i64,
    pub(crate) lock: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The owner has the lock for `lease` ms from `now`, the server's time.
    Grant { now: i64, lease: i64, places: i64, chain: Chain, token: Option<i64> },
    /// A window is open. This owner is the first in the queue, and should ask after `left` ms.
    Open { left: i64 },
}

impl Message {
    /// Parses a message. Returns `None` for a message of another kind, or of a later version.
    pub(crate) fn parse(lock: &dyn Kind, text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once(' ')?;
        let (number, rest) = integer(rest)?;
        let number = (number as u64).checked_sub(FIRST)? / 4;
        let (what, rest) = match verb {
            "grant" => {
                let (now, rest) = integer(rest)?;
                let (lease, rest) = integer(rest)?;
                let (details, rest) = rest.split_once(' ')?;
                let (kind, details) = details.split_once(',')?;
                if !lock.grants().contains(&kind) {
                    return None;
                }
                let (places, chain) = details.split_once(',')?;
                let (since, count) = chain.split_once(',')?;
                let (count, token) = match count.split_once(',') {
                    Some((count, token)) => (count, Some(token.parse().ok()?)),
                    None => (count, None),
                };
                let (places, since, count) =
                    (places.parse().ok()?, since.parse().ok()?, count.parse().ok()?);
                (What::Grant { now, lease, places, chain: Chain { since, count }, token }, rest)
            }
            "open" => {
                let (left, rest) = integer(rest)?;
                (What::Open { left }, rest)
            }
            _ => return None,
        };
        let (database, lock) = integer(rest)?;
        Some(Self { number, what, database, lock: lock.to_owned() })
    }
}

fn integer(text: &str) -> Option<(i64, &str)> {
    let (number, rest) = text.split_once(' ')?;
    Some((number.parse().ok()?, rest))
}
