//! Users' scripts that the server runs only while a guard's lock is held.

use super::{HeldLock, LockGuard};
use crate::error::{Error, ErrorKind};
use crate::scripts::eval::{COMMAND, Script, ScriptCall, Value};
use crate::waiting::Wait;

/// Defines `eval`, `eval_within` and `command` for a type with a method `held` that returns a
/// `HeldLock`.
macro_rules! evals {
    () => {
        /// Runs a script at the server if this guard's owner has the lock there. The server checks
        /// the owner and runs the script in one step. Even if this process slept past the end of
        /// its lease, the script never writes after the server has granted the lock to another
        /// owner. [Fencing](crate::guide::fencing) says what this check does not cover.
        ///
        /// The script gets `keys` as `KEYS` and `args` as `ARGV`, and may use no other key. The
        /// keys are sent to the server as they are, without the client's
        /// [`prefix`](crate::ClientBuilder::prefix). In a cluster, the script's keys must be in the
        /// slot of the lock's key. So put the lock's name, with the prefix, in braces into each
        /// key. The server's user needs the rights to run `EVAL` and `EVALSHA` and to use the keys.
        ///
        /// The client sends the script once, unless it is [`idempotent`](Script::idempotent). If
        /// the client gets no reply, the server may run the script later, but only while this
        /// guard's owner has the lock. A guard whose script got no reply releases the lock at the
        /// server, and does not pass the lock to another thread of this process. Until the release,
        /// the late script may also run after a later script of the same guard.
        ///
        /// ```no_run
        /// use redlatch::{Error, LockGuard, Script, Value};
        ///
        /// fn sell(guard: &LockGuard) -> Result<bool, Error> {
        ///     let script = Script::new(
        ///         "if tonumber(redis.call('get', KEYS[1]) or 0) < 1 then return 0 end
        ///          redis.call('decr', KEYS[1])
        ///          return 1",
        ///     );
        ///     Ok(guard.eval(&script, &["stock"], &[])? == Value::Int(1))
        /// }
        /// ```
        ///
        /// # Errors
        ///
        /// - [`LeaseLost`](ErrorKind::LeaseLost) if the lock is lost: the script has not run. If
        ///   the server detected the loss, the guard reports it from now on.
        /// - [`Script`](ErrorKind::Script) if the script ended with an error. The writes before the
        ///   error remain. If the server refused a command of the script because of memory, access
        ///   rights or missing replicas, the error has the kind of that refusal.
        /// - [`NotHeld`](ErrorKind::NotHeld) if the lock was released before, and
        ///   [`Forked`](ErrorKind::Forked) in a forked child: nothing was sent.
        /// - [`Config`](ErrorKind::Config) if the script begins with `#!`, if a key is in another
        ///   slot than the lock, or if the guard holds a read lock or several locks: nothing was
        ///   sent.
        /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the script, is
        ///   unreachable, or does not answer in time. If
        ///   [`outcome_unknown`](Error::outcome_unknown) is true, the script may have run, and may
        ///   still run until the lock is released. Also [`Unavailable`](ErrorKind::Unavailable) if
        ///   the request that took the lock was sent twice, because a connection broke: release the
        ///   lock and take it again. With [`replica_acks`](crate::ClientBuilder::replica_acks),
        ///   [`TooFewReplicas`](ErrorKind::TooFewReplicas) if the script ran, but too few replicas
        ///   have its writes.
        ///
        /// The lock stays held after every error except `LeaseLost`, `NotHeld` and `Forked`.
        ///
        /// # Blocking
        ///
        /// One round trip, or two if the server does not have the script yet. Each round trip takes
        /// at most [`response_timeout`](crate::ClientBuilder::response_timeout).
        pub fn eval(&self, script: &Script, keys: &[&str], args: &[&[u8]]) -> Result<Value, Error> {
            self.eval_within(Wait::FOREVER, script, keys, args)
        }

        /// Runs a script as [`eval`](Self::eval) does, for at most `wait`.
        ///
        /// # Errors
        ///
        /// [`ResponseTimeout`](ErrorKind::ResponseTimeout) if the server did not answer within
        /// `wait`, and [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled. If
        /// [`outcome_unknown`](Error::outcome_unknown) is true, the script may have run, and may
        /// still run until the lock is released. The call also returns the errors of
        /// [`eval`](Self::eval).
        ///
        /// # Blocking
        ///
        /// Blocks for at most `wait`. (If `wait` is very short, the call may still take 50 ms, or
        /// three round trips to a distant server.)
        pub fn eval_within<'a>(
            &self,
            wait: impl Into<Wait<'a>>,
            script: &Script,
            keys: &[&str],
            args: &[&[u8]],
        ) -> Result<Value, Error> {
            let call = ScriptCall { script, keys, arguments: args, first: None };
            self.held()?.eval(wait.into(), &call)
        }

        /// Runs one command at the server if this guard's owner has the lock there:
        /// `guard.command("HINCRBY", &["stock"], &[b"chair", b"-1"])`. The command consists of its
        /// name, the keys and the arguments, in this order.
        ///
        /// # Errors
        ///
        /// The errors of [`eval`](Self::eval). [`Script`](ErrorKind::Script) if the server refuses
        /// the command.
        ///
        /// # Blocking
        ///
        /// Blocks as [`eval`](Self::eval) does.
        pub fn command(&self, name: &str, keys: &[&str], args: &[&[u8]]) -> Result<Value, Error> {
            let call = ScriptCall { script: &COMMAND, keys, arguments: args, first: Some(name) };
            self.held()?.eval(Wait::FOREVER, &call)
        }
    };
}

pub(crate) use evals;

impl<L: ?Sized, O> LockGuard<L, O> {
    evals!();

    pub(crate) fn held(&self) -> Result<&HeldLock, Error> {
        self.one().ok_or_else(|| {
            let message = "the guard holds several locks: run the script under one of them, by \
                           `part` of a guard of all of them";
            Error::new(ErrorKind::Config, message.to_owned()).of(&self.name().into())
        })
    }
}

/// One of the locks of a [`MultiLockGuard`](crate::MultiLockGuard), for scripts under that lock.
/// [`part`](LockGuard::part) returns a `PartGuard`.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let guard = client.multi_lock(["stock", "orders"])?.lock()?;
/// if let Some(stock) = guard.part("stock") {
///     stock.command("DECR", &["stock:count"], &[])?; // refused if the lock "stock" is lost
/// }
/// guard.unlock()
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PartGuard<'a> {
    pub(super) held: &'a HeldLock,
}

impl PartGuard<'_> {
    evals!();

    fn held(&self) -> Result<&HeldLock, Error> {
        Ok(self.held)
    }
}
