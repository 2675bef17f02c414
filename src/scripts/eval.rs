//! A user's scripts, which run only if an owner has the lock.

use std::sync::{LazyLock, OnceLock};

use redis::Value as Reply;
use redlatch_client::{Command, Failure, Outcome, ReplicaAcks, Route, decimal, reply_code};

use super::{Mode, Owner, Replied, Rights, Trouble, failed_script, granted, unexpected};
use crate::error::Error;

/// The code after the user's script, which checks the owner: for plain owners, and for writers.
static IF_HELD: LazyLock<[&str; 2]> =
    LazyLock::new(|| [code!("lock/eval.lua"), code!("lock/eval_writer.lua", "lock/eval.lua")]);
/// The script that runs one command.
pub(crate) static COMMAND: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("lock/command.lua")));

/// A Lua script for [`LockGuard::eval`](crate::LockGuard::eval). It runs at the server only if the
/// guard's owner has the lock.
///
/// Make a script once, for example in a [`LazyLock`](std::sync::LazyLock): the first call computes
/// the script's hash, and later calls send the hash and not the text. In the script, `KEYS` and
/// `ARGV` are the keys and arguments of the call. `return` and errors work as in any script of
/// Redis. A script that begins with `#!` (a shebang with flags) cannot be used.
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
    pub(crate) text: String,
    /// The texts that are sent to the server, for plain owners and for writers. Each text has its
    /// hash.
    whole: [OnceLock<(String, String)>; 2],
    is_idempotent: bool,
}

impl Script {
    /// Returns the script with this text. No I/O.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), whole: Default::default(), is_idempotent: false }
    }

    /// Returns the same script, marked as safe to run twice. If the connection breaks before the
    /// reply, the client may then send the script again. A second run must change nothing, even if
    /// later scripts of the same guard have run between the two runs. No I/O.
    #[must_use]
    pub fn idempotent(self) -> Self {
        Self { is_idempotent: true, ..self }
    }

    /// The text that is sent to the server for this mode, and its hash. The user's text becomes the
    /// body of a function that sees no local variable of this library. Each line of the user's text
    /// keeps its line number, so an error names the right line.
    pub(crate) fn whole(&self, mode: Mode) -> &(String, String) {
        let writes = usize::from(mode == Mode::Write);
        self.whole[writes].get_or_init(|| {
            // A function with `...` takes longer to call.
            let arguments = if self.text.contains("...") { "..." } else { "" };
            let (text, if_held) = (&self.text, IF_HELD[writes]);
            let code = format!("local script = function({arguments}) {text}\nend\n{if_held}");
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
            other => str::from_utf8(other.as_bytes()?).ok()?.parse().ok(),
        }
    }

    /// Returns the bytes if this value is a text, otherwise `None`.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        let Self::Bytes(text) = self else { return None };
        Some(text)
    }

    /// Returns an error for a reply that no script can return.
    fn of(reply: Reply) -> Result<Self, Trouble> {
        Ok(match reply {
            Reply::Nil => Self::Nil,
            Reply::Int(number) => Self::Int(number),
            Reply::Boolean(is) => Self::Int(is.into()),
            Reply::BulkString(text) => Self::Bytes(text),
            Reply::SimpleString(text) | Reply::VerbatimString { text, .. } => {
                Self::Bytes(text.into_bytes())
            }
            Reply::Okay => Self::Bytes(b"OK".to_vec()),
            Reply::Double(number) => Self::Bytes(number.to_string().into_bytes()),
            Reply::Array(parts) | Reply::Set(parts) => {
                Self::List(parts.into_iter().map(Self::of).collect::<Result<_, _>>()?)
            }
            Reply::Map(pairs) => {
                let parts = pairs.into_iter().flat_map(|(key, value)| [key, value]);
                Self::of(Reply::Array(parts.collect()))?
            }
            Reply::ServerError(error) => {
                let detail = error.details().unwrap_or_default();
                Self::Error(format!("{} {detail}", error.code()))
            }
            other => return Err(unexpected(&other)),
        })
    }
}

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: &'a [&'a str],
    pub(crate) arguments: &'a [&'a [u8]],
    /// An argument that is sent before the user's arguments.
    pub(crate) first: Option<&'a str>,
}

/// How a user's script has ended.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The owner does not have the lock, so the script has not run.
    NotHeld,
    Done(Replied<Value>),
    /// The script has ended with this error.
    Failed(Error),
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
    ) -> (Result<Ran, Trouble>, bool) {
        let (code, hash) = self.script.whole(owner.mode());
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
        let ran = match refusal(&outcome) {
            // WRONGTYPE means that the key holds data of another type, so the lock is lost.
            Some(("NOTHELD" | "WRONGTYPE", _)) => Ok(Ran::NotHeld),
            Some(("SCRIPT", text)) => Ok(Ran::Failed(failed_script(text))),
            _ => granted(outcome, in_doubt, Rights::Locks, Value::of).map(Ran::Done),
        };
        let may_run = in_doubt || matches!(ran, Err(Trouble::Unknown(_)));
        (ran, may_run)
    }

    fn of_owner(&self, call: [&str; 2], lock: &str, owner: &Owner) -> Command {
        let (owner, mut digits) = (owner.text(), [0; 20]);
        let others = self.keys.len() + usize::from(self.first.is_some()) + self.arguments.len();
        let mut command = Command::begin(5 + others);
        call.iter().for_each(|part| command.push(part.as_bytes()));
        command.push(decimal(self.keys.len() as u64 + 1, &mut digits));
        self.keys.iter().for_each(|key| command.push(key.as_bytes()));
        command.push(lock.as_bytes());
        self.first.iter().for_each(|first| command.push(first.as_bytes()));
        self.arguments.iter().for_each(|argument| command.push(argument));
        command.push(&owner);
        command
    }
}

/// Returns the code and the text of an error reply.
fn refusal(outcome: &Outcome) -> Option<(&str, &str)> {
    let Err(Failure::Refused(cause)) = outcome else { return None };
    Some((reply_code(&cause.error), cause.error.detail().unwrap_or_default()))
}
