//! A user's scripts, which run only if an owner has the lock.

use std::sync::{LazyLock, OnceLock};

use redis::Value as Reply;
use redlatch_client::{Command, Failure, Outcome, ReplicaAcks, Route, decimal, reply_code};

use super::{Owner, Replied, Rights, Trouble, granted, unexpected};

/// The code that is appended to the user's script.
static IF_HELD: LazyLock<&str> = LazyLock::new(|| code!("lock/eval.lua"));
/// The script that runs one command.
pub(crate) static COMMAND: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("lock/command.lua")));

/// A Lua script for [`LockGuard::eval`](crate::LockGuard::eval). It runs at the server only if the
/// guard's owner has the lock.
///
/// Make a script once, for example in a [`LazyLock`](std::sync::LazyLock): the first call computes
/// the script's hash, and each server gets the text once. In the script, `KEYS` and `ARGV` are the
/// keys and arguments of the call. `return` and errors work as in any script of Redis. A script
/// that begins with `#!` (a shebang with flags) cannot be used.
///
/// ```no_run
/// use redlatch::{Error, LockGuard, Script};
///
/// fn sell(guard: &LockGuard, script: &Script) -> Result<Option<i64>, Error> {
///     // Script::new("return redis.call('decrby', KEYS[1], ARGV[1])")
///     let left = guard.eval(script, &["stock"], &[b"1"])?;
///     Ok(left.as_int())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Script {
    text: String,
    /// The text that is sent to the server, and its hash.
    whole: OnceLock<(String, String)>,
    is_idempotent: bool,
}

impl Script {
    /// Returns the script with this text. No I/O.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), whole: OnceLock::new(), is_idempotent: false }
    }

    /// Returns the same script, marked as safe to run twice. If the connection breaks before the
    /// reply, the client may then send the script again. A second run must change nothing, even if
    /// later scripts of the same guard have run between the two runs. No I/O.
    #[must_use]
    pub fn idempotent(self) -> Self {
        Self { is_idempotent: true, ..self }
    }

    /// Whether the script begins with a shebang. The server reads flags only at the beginning of a
    /// script, where the client puts its own text.
    pub(crate) fn has_shebang(&self) -> bool {
        self.text.starts_with("#!")
    }

    /// The text that is sent to the server, and its hash. The user's text becomes the body of a
    /// function without upvalues. Each line of the user's text keeps its line number, so an error
    /// names the right line.
    pub(crate) fn whole(&self) -> &(String, String) {
        self.whole.get_or_init(|| {
            // Without a use of `...` in this function, Lua would make a table of the arguments at
            // each call.
            let head = "local script = function(...) do local _ = ... end";
            let code = format!("{head} {}\nend\n{}", self.text, *IF_HELD);
            let hash = redis::Script::new(&code).get_hash().to_owned();
            (code, hash)
        })
    }
}

/// The result of a [`Script`], or a part of it.
///
/// ```
/// use redlatch::Value;
///
/// let value = Value::List(vec![Value::Int(7), Value::Bytes(b"red".to_vec()), Value::Nil]);
/// let Value::List(parts) = value else { return };
/// assert_eq!(parts[0].as_int(), Some(7));
/// assert_eq!(parts[1].as_bytes(), Some(&b"red"[..]));
/// assert_eq!(parts[2], Value::Nil);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// `nil` or `false`, or a key or field that does not exist.
    Nil,
    /// An integer: a Lua number without its fraction, or 1 for `true`.
    Int(i64),
    /// A string, or the text of a status reply such as `OK`.
    Bytes(Vec<u8>),
    /// A table, up to its first `nil`.
    List(Vec<Self>),
    /// An error that the script has caught with `redis.pcall` and returned in a list.
    Error(String),
}

impl Value {
    /// Returns the number if this value is a number or a number's text, otherwise `None`.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bytes(text) => str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// Returns the bytes if this value is a text, otherwise `None`.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(text) => Some(text),
            _ => None,
        }
    }

    /// Returns `None` for a reply that no script can return.
    fn of(reply: Reply) -> Option<Self> {
        let list = |parts: Vec<Reply>| parts.into_iter().map(Self::of).collect::<Option<_>>();
        Some(match reply {
            Reply::Nil => Self::Nil,
            Reply::Int(number) => Self::Int(number),
            Reply::Boolean(is) => Self::Int(is.into()),
            Reply::BulkString(text) => Self::Bytes(text),
            Reply::SimpleString(text) | Reply::VerbatimString { text, .. } => {
                Self::Bytes(text.into_bytes())
            }
            Reply::Okay => Self::Bytes(b"OK".to_vec()),
            Reply::Double(number) => Self::Bytes(number.to_string().into_bytes()),
            Reply::Array(parts) | Reply::Set(parts) => Self::List(list(parts)?),
            Reply::Map(pairs) => {
                Self::List(list(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())?)
            }
            Reply::ServerError(error) => {
                let detail = error.details().unwrap_or_default();
                Self::Error(format!("{} {detail}", error.code()))
            }
            _ => return None,
        })
    }
}

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: &'a [&'a str],
    pub(crate) arguments: &'a [&'a [u8]],
    /// The argument after the user's arguments.
    pub(crate) last: Option<&'a str>,
}

/// How a user's script has ended.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The owner does not have the lock, so the script has not run.
    NotHeld,
    Done(Value),
    /// The script has ended with this error.
    Failed(String),
}

impl ScriptCall<'_> {
    /// Sends the script for this owner of a lock. The `bool` says whether a copy of the script may
    /// still run, even if the result is an error.
    pub(crate) fn send(
        &self,
        route: &Route,
        lock: &str,
        owner: &Owner,
        acks: Option<ReplicaAcks>,
    ) -> (Result<Replied<Ran>, Trouble>, bool) {
        let (code, hash) = self.script.whole();
        let send = |command: &str, what: &str| {
            let command = self.of_owner([command, what], lock, owner).acknowledged(acks);
            if self.script.is_idempotent {
                route.call_twice(&command, || command.clone())
            } else {
                (route.call_once(&command), false)
            }
        };
        let (mut outcome, mut in_doubt) = send("EVALSHA", hash);
        if let Some(("NOSCRIPT", _)) = refusal(&outcome) {
            let (again, is_copied) = send("EVAL", code);
            (outcome, in_doubt) = (again, in_doubt || is_copied);
        }
        let ended = match refusal(&outcome) {
            // WRONGTYPE means that the key holds data of another type, so the lock is lost.
            Some(("NOTHELD" | "WRONGTYPE", _)) => Some(Ran::NotHeld),
            Some(("SCRIPT", text)) => Some(Ran::Failed(text.to_owned())),
            _ => None,
        };
        let ran = match ended {
            Some(ran) => Ok(Replied::counts(ran, in_doubt)),
            None => granted(outcome, in_doubt, Rights::Locks, |reply| {
                Value::of(reply).map(Ran::Done).ok_or_else(|| unexpected(&Reply::Array(Vec::new())))
            }),
        };
        let may_run = in_doubt || matches!(ran, Err(Trouble::Unknown(_)));
        (ran, may_run)
    }

    fn of_owner(&self, call: [&str; 2], lock: &str, owner: &Owner) -> Command {
        let (owner, mut digits) = (owner.text(), [0; 20]);
        let mut parts = Vec::with_capacity(6 + self.keys.len() + self.arguments.len());
        parts.extend(call.map(str::as_bytes));
        parts.push(decimal(self.keys.len() as u64 + 1, &mut digits));
        parts.extend(self.keys.iter().map(|key| key.as_bytes()));
        parts.push(lock.as_bytes());
        parts.extend(self.arguments);
        parts.extend(self.last.map(str::as_bytes));
        parts.push(&owner);
        Command::plain(&parts)
    }
}

/// Returns the code and the text of an error reply.
fn refusal(outcome: &Outcome) -> Option<(&str, &str)> {
    let Err(Failure::Refused(cause)) = outcome else { return None };
    Some((reply_code(&cause.error), cause.error.detail().unwrap_or_default()))
}
