//! Errors. The message of an error includes the state of the lock.

use std::error::Error as StdError;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::name::Name;
use redlatch_client::sync::is_forked;

/// The kind of an [`Error`].
///
/// # Server trouble
///
/// The kinds from [`Unavailable`](Self::Unavailable) to [`Refused`](Self::Refused) say how the
/// server, or the connection to it, failed. [Operations](crate::guide::operations#errors) says
/// which kinds are transient, and after which kinds a blocking call tries again.
///
/// ```no_run
/// use redlatch::{Error, ErrorKind};
///
/// fn advice(error: &Error) -> &'static str {
///     match error.kind() {
///         ErrorKind::NotHeld | ErrorKind::Config => "mend the program or its settings",
///         ErrorKind::LeaseLost => "look at what was done since",
///         ErrorKind::EndsTooSoon => "stop here, the lock may end",
///         ErrorKind::Cancelled | ErrorKind::ShutDown => "end the work",
///         ErrorKind::Forked => "fork before the first client connects",
///         ErrorKind::Denied | ErrorKind::LoginRefused => "look at the user of the URL",
///         ErrorKind::OutOfMemory => "give the server memory",
///         _ if error.is_transient() => "try again in a moment",
///         _ => "look at the server",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The calling thread does not hold the lock, or no permit has this id. Nothing was changed.
    NotHeld,
    /// The lock or permit was lost before it was released, because its lease ended, or because it
    /// was deleted or taken by force. Work after the loss was not protected.
    LeaseLost,
    /// The lock is held, but may end within the time given to [`check`](crate::LockGuard::check).
    EndsTooSoon,
    /// The [`CancelToken`](crate::CancelToken) of the call was cancelled. The call has taken
    /// nothing. A thread that waited on a [`Condition`](crate::Condition) holds its lock again.
    Cancelled,
    /// The client was shut down, and holds nothing.
    ShutDown,
    /// The process was forked after its parent had connected a client. The call did nothing, and
    /// the parent keeps its locks. Fork before the first client connects.
    Forked,
    /// The server that has the key is unreachable, is starting, is a replica, or is being replaced
    /// by another server. A broken connection also has this kind.
    Unavailable,
    /// The server did not accept a connection or did not answer in time. The error also has this
    /// kind if the server granted the lock, but the lease ended before the client read the answer.
    ResponseTimeout,
    /// The server accepts no more connections (`maxclients`).
    TooManyClients,
    /// Too few replicas have the change: [`replica_acks`](crate::ClientBuilder::replica_acks) or
    /// the server's `min-replicas-to-write` requires more.
    TooFewReplicas,
    /// The server has no memory left (`maxmemory`).
    OutOfMemory,
    /// The server refuses commands because a script has been running for too long, or refuses
    /// writes because it cannot save its data.
    Busy,
    /// The server's user lacks a right, or the server (or a proxy) does not support a command.
    Denied,
    /// The server refuses the login: the user, password or certificate is wrong or missing, the
    /// server is in protected mode, or the TLS handshake failed.
    LoginRefused,
    /// The key of this name holds data of another kind.
    WrongType,
    /// The server refuses the request for another reason. The message contains this reason.
    Refused,
    /// The server's reply is malformed.
    Protocol,
    /// A [`Script`](crate::Script) ended with an error, which the message quotes. The script's
    /// writes before the error remain.
    Script,
    /// The calling thread would wait for itself: it holds the read lock and asks for the write
    /// lock, or it holds a lock and asks for it again through a
    /// [`non_reentrant`](crate::Lock::non_reentrant) handle. Nothing was changed.
    WouldDeadlock,
    /// The barrier is broken, because a party left early or died. No party of this generation
    /// passed.
    Broken,
    /// The latch's time to live ended before its count reached zero.
    Expired,
    /// A setting, a name, a lease or a URL is not usable.
    Config,
}

impl ErrorKind {
    /// Returns whether the server, or the connection to it, failed: see [server
    /// trouble](Self#server-trouble).
    #[must_use]
    pub fn is_server_trouble(self) -> bool {
        matches!(
            self,
            Self::Unavailable
                | Self::ResponseTimeout
                | Self::TooManyClients
                | Self::TooFewReplicas
                | Self::OutOfMemory
                | Self::Busy
                | Self::Denied
                | Self::LoginRefused
                | Self::WrongType
                | Self::Refused
        )
    }

    fn words(self) -> &'static str {
        match self {
            Self::NotHeld => "not held",
            Self::LeaseLost => "lease lost",
            Self::EndsTooSoon => "ends too soon",
            Self::Cancelled => "cancelled",
            Self::ShutDown => "client shut down",
            Self::Forked => "process forked",
            Self::Unavailable => "server unavailable",
            Self::ResponseTimeout => "response timeout",
            Self::TooManyClients => "too many clients",
            Self::TooFewReplicas => "too few replicas",
            Self::OutOfMemory => "server out of memory",
            Self::Busy => "server busy",
            Self::Denied => "permission denied",
            Self::LoginRefused => "login refused",
            Self::WrongType => "key of another type",
            Self::Refused => "refused by the server",
            Self::Protocol => "protocol error",
            Self::Script => "script failed",
            Self::WouldDeadlock => "would deadlock",
            Self::Broken => "barrier broken",
            Self::Expired => "latch expired",
            Self::Config => "unusable setting",
        }
    }

    /// Returns whether trouble of this kind may pass, and whether a wait continues until then. For
    /// a single error, [`Error::transient`] and [`Error::endured`] may change this. The table in
    /// `docs/operations.md` lists these values.
    pub(crate) fn outlook(self) -> Outlook {
        match self {
            Self::Unavailable | Self::ResponseTimeout | Self::TooManyClients => {
                Outlook::Endured(Passing::Outage)
            }
            Self::TooFewReplicas => Outlook::Endured(Passing::Unacknowledged),
            Self::OutOfMemory | Self::Busy => Outlook::MayPass,
            Self::Denied
            | Self::LoginRefused
            | Self::WrongType
            | Self::Refused
            | Self::Protocol
            | Self::Script
            | Self::LeaseLost
            | Self::NotHeld
            | Self::EndsTooSoon
            | Self::Cancelled
            | Self::ShutDown
            | Self::Forked
            | Self::WouldDeadlock
            | Self::Expired
            | Self::Broken
            | Self::Config => Outlook::Persistent,
        }
    }
}

/// Whether trouble may pass by itself, and whether a wait continues until the trouble has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    Persistent,
    /// The caller may repeat the call, but the error ends a wait.
    MayPass,
    Endured(Passing),
}

/// An error of a lock or of its server.
///
/// `{error}` prints one line: the lock, the failure, the present state of the lock, and the remedy.
/// The cause (from the system or the server) is the error's [`source`](StdError::source).
/// `{error:#}` and `{error:?}` print the whole chain of causes. No message contains a password or
/// data stored in Redis.
///
/// ```no_run
/// use std::thread;
/// use std::time::Duration;
///
/// use redlatch::{Error, ErrorKind, LockGuard, ReentrantLock};
///
/// /// Takes the lock, even after a long outage of the server.
/// fn patiently(lock: &ReentrantLock) -> Result<LockGuard, Error> {
///     loop {
///         match lock.lock() {
///             Err(error) if error.is_transient() => {
///                 eprintln!("{error:#}");
///                 thread::sleep(Duration::from_secs(1));
///             }
///             outcome => return outcome,
///         }
///     }
/// }
///
/// # fn work(guard: LockGuard) {
/// // Release the lock. Was it held until now?
/// match guard.unlock() {
///     Ok(()) => {}
///     Err(error) if error.kind() == ErrorKind::LeaseLost => {
///         eprintln!("look at what was done: {error}");
///     }
///     Err(error) => eprintln!("it is released in the background: {error}"),
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    name: Option<Name>,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    outlook: Outlook,
    outcome_unknown: bool,
}

// The field `source` does not implement these traits. `Details` is still unwind safe, because an
// error does not change after its construction.
impl UnwindSafe for Details {}
impl RefUnwindSafe for Details {}

/// The kind of trouble during which a wait continues for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// The server that has the key is unreachable, is starting, does not answer, or is being
    /// replaced by another server.
    Outage,
    /// The server answered, but it has too few replicas.
    Unacknowledged,
}

/// Prints a short description of the kind, such as `lease lost`.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the error may pass by itself: the server is unreachable, is starting, is
    /// busy, is slow or is out of memory, or another server takes over. The result is also true for
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if the next renewal makes the lease long enough.
    ///
    /// Before you repeat the call, check [`outcome_unknown`](Self::outcome_unknown).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.0.outlook != Outlook::Persistent
    }

    /// Returns whether the server may have run the request, or may still run it, although the
    /// client got no usable reply.
    ///
    /// - After a call that *takes* a lock or permits (also `drain_permits`), the caller has nothing.
    ///   If the server has granted something, the client releases it in the background. You may
    ///   repeat the call.
    /// - A call that *gives back* (`unlock`, a permit's `release`, `release_many`,
    ///   `release_forgotten`, `count_down`) is repeated in the background: do not call it again.
    ///   The client also repeats the release after a failed `leave_to_expire` or `into_ticket`.
    /// - A call that *sets* (`force_unlock`, `try_set_permits`, `set_permits`, `add_permits`,
    ///   `try_set_count`, `update_lease_time`, `delete`, `release_forgotten_if_exists`) is not
    ///   repeated: look at the state before you call it again.
    /// - `extend` has not made the lease longer, as far as the guard knows: you may call it again.
    /// - `adopt` may have taken the ticket's lock, and the client does not release it: call it
    ///   again. The second call is the same adoption.
    /// - A call that waits at a barrier may have arrived: the other parties may pass.
    ///
    /// If the client cannot repeat a request in the background (the client has ended, or the
    /// request is too old), the error's message says so.
    ///
    /// For a query, the method always returns false, because a query changes nothing.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.0.outcome_unknown
    }

    /// Returns the name of the lock or synchronizer, or `None` if the error does not concern a
    /// name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::given)
    }

    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self(Box::new(Details {
            kind,
            name: None,
            message,
            source: None,
            outlook: kind.outlook(),
            outcome_unknown: false,
        }))
    }

    /// Sets whether the trouble may pass. The error ends a wait in either case.
    pub(crate) fn transient(mut self, transient: bool) -> Self {
        self.0.outlook = if transient { Outlook::MayPass } else { Outlook::Persistent };
        self
    }

    /// Marks the error as trouble during which a wait continues. Trouble during which a wait
    /// continues is also transient.
    pub(crate) fn endured(mut self, passing: Passing) -> Self {
        self.0.outlook = Outlook::Endured(passing);
        self
    }

    pub(crate) fn passing(&self) -> Option<Passing> {
        match self.0.outlook {
            Outlook::Endured(passing) => Some(passing),
            Outlook::Persistent | Outlook::MayPass => None,
        }
    }

    /// Sets whether the server may have run the request.
    pub(crate) fn unknown(mut self, unknown: bool) -> Self {
        self.0.outcome_unknown = unknown;
        self
    }

    pub(crate) fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn caused_by_shared(mut self, source: Arc<dyn StdError + Send + Sync>) -> Self {
        self.0.source = Some(source);
        self
    }

    pub(crate) fn of(mut self, name: &Name) -> Self {
        self.0.name = Some(name.clone());
        self
    }

    /// Appends the present state of the lock to the message.
    pub(crate) fn now(mut self, state: &str) -> Self {
        self.0.message.push_str("; ");
        self.0.message.push_str(state);
        self
    }

    /// Inserts the description of earlier events before the message.
    pub(crate) fn after(mut self, what: &str) -> Self {
        self.0.message.insert_str(0, what);
        self
    }

    pub(crate) fn lost(name: &Name, reason: &dyn fmt::Display) -> Self {
        let message = format!(
            "the hold was lost: {reason}; another owner may have it now, and what was done since \
             was not protected"
        );
        Self::new(ErrorKind::LeaseLost, message).of(name)
    }

    pub(crate) fn nameless(what: &str) -> Self {
        Self::new(ErrorKind::Config, format!("the name is empty: {what} needs one"))
    }

    pub(crate) fn cancelled(name: &Name) -> Self {
        let message = "waiting was cancelled; nothing was taken".to_owned();
        Self::new(ErrorKind::Cancelled, message).of(name)
    }

    /// `longer` is the remedy: what the user can do to hold the lock for longer.
    pub(crate) fn ends_too_soon(remaining: Duration, slack: Duration, longer: &str) -> Self {
        // Round down to milliseconds.
        let certain = match remaining.as_millis() {
            0 => Duration::from_micros(remaining.subsec_micros().into()),
            _ => Duration::new(remaining.as_secs(), remaining.subsec_millis() * 1_000_000),
        };
        let message = format!(
            "it is certainly held for {certain:?} more, but not for {slack:?}; stop in time, or \
             {longer}"
        );
        Self::new(ErrorKind::EndsTooSoon, message)
    }

    pub(crate) fn late_grant(name: &Name) -> Self {
        let message = "it was granted, but the lease was over before the reply was read; nothing is \
                       held, take a longer lease";
        // The caller may try again with a longer lease. A longer wait would not help.
        Self::new(ErrorKind::ResponseTimeout, message.to_owned()).transient(true).of(name)
    }

    /// Turns this error into the error of a grant that too few replicas acknowledged, and that the
    /// client has given back. `is_free`: the grant is certainly undone.
    pub(crate) fn unacknowledged(self, is_free: bool) -> Self {
        let state = if is_free {
            "it was released again, and nothing is held by this call"
        } else {
            "nothing is held; if the server granted it, it is released in the background, or ends \
             with its lease"
        };
        self.unknown(!is_free).now(state)
    }

    /// Returns an error if this process is a forked child.
    #[inline]
    pub(crate) fn if_forked(name: &Name) -> Result<(), Self> {
        if is_forked() { Err(Self::forked().of(name)) } else { Ok(()) }
    }

    pub(crate) fn forked() -> Self {
        let message =
            "this process was forked from the one that connected the client, which keeps \
                       what it holds; nothing is held here, fork before the first client connects"
                .to_owned();
        Self::new(ErrorKind::Forked, message)
    }

    pub(crate) fn forked_after_connect() -> Self {
        let message =
            "this process was forked from one that had connected a client, whose threads \
                       and mutexes are not usable here; fork before the first client connects, or \
                       run a program of its own in the child (exec)"
                .to_owned();
        Self::new(ErrorKind::Forked, message)
    }

    pub(crate) fn shut_down(name: &Name) -> Self {
        let message = "the client was shut down; connect a new one".to_owned();
        Self::new(ErrorKind::ShutDown, message).of(name)
    }
}

/// Names with at most this many characters are printed in full.
const LONGEST_SHOWN: usize = 80;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            match name.char_indices().nth(LONGEST_SHOWN) {
                None => write!(f, "{name:?}: ")?,
                Some((end, _)) => write!(f, "{:?}… ({} bytes): ", &name[..end], name.len())?,
            }
        }
        f.write_str(&self.0.message)?;
        let mut cause = self.source().filter(|_| f.alternate());
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}, {self:#})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source: &(dyn StdError + 'static) = self.0.source.as_deref()?;
        // An error of the redis crate repeats the text of its source. Show this text only once.
        let below = source.source().filter(|below| below.to_string() == source.to_string());
        Some(below.unwrap_or(source))
    }
}

/// The reason why a lock or permit was lost before it was released.
///
/// ```no_run
/// use redlatch::{LockGuard, LostReason};
///
/// fn tell(guard: &LockGuard) {
///     guard.on_lost(|why| match why {
///         LostReason::ShutDown => {} // the program ends
///         LostReason::LeaseExpired => eprintln!("stop: {why}; was the server away?"),
///         _ => eprintln!("stop: {why}"),
///     });
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ended, because it was fixed, no renewal succeeded in time, the thread that held
    /// the lock had ended, or the lock had been held for `max_hold`.
    LeaseExpired,
    /// The server replied that the lock does not belong to this owner: the lock was deleted or
    /// taken by force, or the server lost its data.
    Revoked,
    /// This client called `force_unlock`.
    ForceUnlocked,
    /// The client was shut down.
    ShutDown,
    /// This process was forked from the process that took the lock. The parent process still has
    /// the lock.
    Forked,
}

impl LostReason {
    pub(crate) const ALL: [Self; 5] =
        [Self::LeaseExpired, Self::Revoked, Self::ForceUnlocked, Self::ShutDown, Self::Forked];

    pub(crate) fn number(self) -> u8 {
        Self::ALL.iter().zip(1..).find(|(reason, _)| **reason == self).map_or(0, |(_, at)| at)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaseExpired => "its lease ran out",
            Self::Revoked => "the server says that it no longer belongs to this owner",
            Self::ForceUnlocked => "it was unlocked by force",
            Self::ShutDown => "the client was shut down",
            Self::Forked => "this process was forked from the holder's process",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io;

    use super::*;

    /// Lists the given kinds of error. If a kind is missing, the `match` does not compile.
    macro_rules! all {
        ($($kind:ident),+ $(,)?) => {{
            const _: fn(ErrorKind) = |kind| match kind {
                $(ErrorKind::$kind => {})+
            };
            [$(ErrorKind::$kind),+]
        }};
    }

    const ALL: [ErrorKind; 22] = all![
        Unavailable,
        ResponseTimeout,
        TooManyClients,
        TooFewReplicas,
        OutOfMemory,
        Busy,
        Denied,
        LoginRefused,
        WrongType,
        Refused,
        Protocol,
        Script,
        LeaseLost,
        NotHeld,
        EndsTooSoon,
        Cancelled,
        ShutDown,
        Forked,
        WouldDeadlock,
        Expired,
        Broken,
        Config,
    ];

    #[test]
    fn the_table_of_kinds_is_the_codes() {
        let page = include_str!("../docs/operations.md");
        let (_, table) = page.split_once("| `ErrorKind` |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let listed: Vec<_> =
            rows.map(|row| row.split(" | ").take(3).collect::<Vec<_>>().join(" | ")).collect();
        let word = |is: bool| if is { "yes" } else { "no" };
        let meant = ALL.map(|kind| {
            let error = Error::new(kind, String::new());
            let (transient, goes_on) = (error.is_transient(), error.passing().is_some());
            format!("| `{kind:?}` | {} | {}", word(transient), word(goes_on))
        });
        assert_eq!(listed, meant);
        let of_server = ALL.iter().filter(|kind| kind.is_server_trouble()).count();
        assert_eq!(of_server, 10);
        assert!(ALL[..of_server].iter().all(|kind| kind.is_server_trouble()));
    }

    #[test]
    fn each_kind_has_words_of_its_own() {
        let words: BTreeSet<_> = ALL.iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), ALL.len());
        assert_eq!(ErrorKind::LeaseLost.to_string(), "lease lost");
        assert_eq!(format!("{:>12}", ErrorKind::LeaseLost), "  lease lost");
    }

    fn chain(error: &dyn StdError) -> Vec<String> {
        let below = error.source().map(chain).unwrap_or_default();
        std::iter::once(error.to_string()).chain(below).collect()
    }

    #[test]
    fn each_link_of_the_chain_is_said_once() {
        let refused = || redis::RedisError::from(io::Error::other("no route"));
        let error = Error::new(ErrorKind::Unavailable, "no connection".to_owned());
        let error = error.caused_by(refused()).of(&"orders".into()).now("nothing is held");
        let message = "\"orders\": no connection; nothing is held";
        assert_eq!(chain(&error), [message, "no route"]);
        assert_eq!(format!("{error:#}"), format!("{message}: no route"));
        assert_eq!(format!("{error:?}"), format!("Error(Unavailable, {message}: no route)"));
    }
}
