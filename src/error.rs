//! Errors, each with the state of the lock after it.

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
/// server, or the way to it, failed. [Operations](crate::guide::operations#errors) lists those that
/// may pass by themselves, and those through which a wait goes on.
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
#[non_exhaustive]
pub enum ErrorKind {
    /// The calling thread does not hold the lock, or there is no permit with this id. Nothing was
    /// changed.
    NotHeld,
    /// The lock or permit was lost before it was released: its lease ended, or it was deleted or
    /// taken by force. Work done since then was not protected.
    LeaseLost,
    /// The lock is held, but not certainly for the time given to
    /// [`check`](crate::LockGuard::check).
    EndsTooSoon,
    /// The [`CancelToken`](crate::CancelToken) of the call was cancelled. The call has taken
    /// nothing. A thread that waited on a [`Condition`](crate::Condition) has its lock again.
    Cancelled,
    /// The client was shut down. It holds nothing.
    ShutDown,
    /// The process is a child that was forked from one that had connected a client. Nothing was
    /// done, and the parent keeps its locks. Fork before the first client connects.
    Forked,
    /// The server that has the key is away, starts, is a replica, or is being replaced by another
    /// one; or the connection broke.
    Unavailable,
    /// The server did not answer in time, or let no connection in in time; or it granted the lock,
    /// and the lease was over before the answer was read.
    TimedOut,
    /// The server has no connection left (`maxclients`).
    TooManyClients,
    /// Fewer replicas have the change than [`replica_acks`](crate::ClientBuilder::replica_acks) or
    /// the server's `min-replicas-to-write` asks for.
    TooFewReplicas,
    /// The server has no memory left (`maxmemory`).
    OutOfMemory,
    /// The server refuses commands for now: a script has run for too long. Or it refuses writes,
    /// because it cannot save its data.
    Busy,
    /// The user lacks a right, or the server or a proxy does not offer a command.
    Denied,
    /// The server does not let the client in: its user, password or certificate is wrong or
    /// missing, the server is in protected mode, or the TLS handshake failed.
    LoginRefused,
    /// A key of this name holds other data.
    WrongType,
    /// The server refuses for another reason, which the message names.
    Refused,
    /// The server's answer makes no sense.
    Protocol,
    /// The calling thread would wait for itself: it holds the read lock and takes the write lock,
    /// or it holds a lock and takes it through a [`non_reentrant`](crate::Lock::non_reentrant)
    /// handle. Nothing was changed.
    WouldDeadlock,
    /// The barrier is broken: a party left early or died. No party of its generation passed.
    Broken,
    /// The latch's time to live ended before its count was zero.
    Expired,
    /// A setting, a name, a lease or a URL is not usable.
    Config,
}

impl ErrorKind {
    /// Returns whether the server, or the way to it, failed: see [server
    /// trouble](Self#server-trouble).
    #[must_use]
    pub fn is_server_trouble(self) -> bool {
        matches!(
            self,
            Self::Unavailable
                | Self::TimedOut
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

    /// What a caller and a wait expect of trouble of this kind. Errors that know better say so
    /// ([`Error::transient`], [`Error::endured`]). The table in `docs/operations.md` shows this.
    pub(crate) fn outlook(self) -> Outlook {
        match self {
            Self::Unavailable | Self::TimedOut | Self::TooManyClients => {
                Outlook::Endured(Passing::Outage)
            }
            Self::TooFewReplicas => Outlook::Endured(Passing::Unacknowledged),
            Self::OutOfMemory | Self::Busy => Outlook::MayPass,
            Self::Denied
            | Self::LoginRefused
            | Self::WrongType
            | Self::Refused
            | Self::Protocol
            | Self::LeaseLost
            | Self::NotHeld
            | Self::EndsTooSoon
            | Self::Cancelled
            | Self::ShutDown
            | Self::Forked
            | Self::WouldDeadlock
            | Self::Expired
            | Self::Broken
            | Self::Config => Outlook::Stays,
        }
    }
}

/// Whether trouble may pass by itself, and whether a wait goes on until it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    Stays,
    /// The caller may ask again. A wait ends.
    MayPass,
    Endured(Passing),
}

/// An error of a lock or of its server.
///
/// `{error}` is one line: the lock, the failure, the present state of the lock, and the remedy. The
/// cause (from the operating system or the server) is its [`source`](StdError::source). `{error:#}`
/// and `{error:?}` print the whole chain. No text contains a password or data stored in Redis.
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
/// // Release: was the lock ours until now?
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

// Only `source` keeps the compiler from seeing this, and nothing changes an error that is made.
impl UnwindSafe for Details {}
impl RefUnwindSafe for Details {}

/// The kind of trouble during which a wait goes on for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// The server that has the key is away, starts, does not answer, or is being replaced by
    /// another one.
    Outage,
    /// A server answered, but too few replicas are there.
    Unacknowledged,
}

impl Error {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the trouble may pass by itself: the server is away, starts, is busy, slow,
    /// or out of memory, or another server takes over. It is also true of
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon), if the next renewal helps.
    ///
    /// Before you repeat the call, look at [`outcome_unknown`](Self::outcome_unknown).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.0.outlook != Outlook::Stays
    }

    /// Returns whether the server may have carried out the request, or may still do so, because the
    /// client got no usable answer.
    ///
    /// - A call that *takes* (a lock or permits, also `drain_permits`) has taken nothing, and the
    ///   client releases in the background anything that the server granted: you may call it again.
    /// - A call that *gives* (`unlock`, a semaphore's or permit's `release`, `release_many`,
    ///   `count_down`) is repeated in the background: do not call it again. So is the release after
    ///   a `leave_to_expire` that failed.
    /// - A call that *sets* (`force_unlock`, `try_set_permits`, `set_permits`, `add_permits`,
    ///   `try_set_count`, `update_lease_time`, `delete`, and also `release_if_exists`) is not
    ///   repeated: look at the state before you call it again.
    /// - A call that waits at a barrier has arrived, or may have: the others may pass.
    ///
    /// If the client cannot repeat a request in the background (because it has ended, or the
    /// request is too old), the error's message says so.
    ///
    /// This is never true of a query, which changes nothing.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        self.0.outcome_unknown
    }

    /// Returns the name of the lock or synchronizer, if the error belongs to one.
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

    /// Sets whether the trouble may pass by itself. A wait ends in any case.
    pub(crate) fn transient(mut self, transient: bool) -> Self {
        self.0.outlook = if transient { Outlook::MayPass } else { Outlook::Stays };
        self
    }

    /// Marks trouble that a wait outlasts. It is transient, too.
    pub(crate) fn endured(mut self, passing: Passing) -> Self {
        self.0.outlook = Outlook::Endured(passing);
        self
    }

    pub(crate) fn passing(&self) -> Option<Passing> {
        match self.0.outlook {
            Outlook::Endured(passing) => Some(passing),
            Outlook::Stays | Outlook::MayPass => None,
        }
    }

    /// Sets whether the server may have carried out the request.
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

    /// Puts the earlier events before the message.
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

    /// `longer`: the remedy for a hold that must be certain for longer.
    pub(crate) fn ends_too_soon(remaining: Duration, slack: Duration, longer: &str) -> Self {
        // Rounded down to milliseconds, since nobody reads nanoseconds.
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
        // A longer lease helps, and a longer wait does not.
        Self::new(ErrorKind::TimedOut, message.to_owned()).transient(true).of(name)
    }

    /// The error of a grant that does not count, for this reason, and was given back.
    pub(crate) fn unacknowledged(self, is_free: bool) -> Self {
        let state = if is_free {
            "it was released again, and nothing is held by this call"
        } else {
            "nothing is held; if the server granted it, it is released in the background, or ends \
             with its lease"
        };
        self.unknown(!is_free).now(state)
    }

    /// Returns an error in a forked child.
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

/// Names with up to this many characters are shown whole.
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
        // The redis crate's error repeats the text of its source, which is shown only once.
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
#[non_exhaustive]
pub enum LostReason {
    /// The lease ended: it was fixed, no renewal succeeded in time, the thread that held the lock
    /// had ended, or the lock was held for `max_hold`.
    LeaseExpired,
    /// The server answered that the lock no longer belongs to this owner: it was deleted or taken
    /// by force, or the server lost its data.
    Revoked,
    /// This client called `force_unlock`.
    ForceUnlocked,
    /// The client was shut down.
    ShutDown,
    /// This process is a child that was forked from the one that took the lock. The parent still
    /// has the lock; the child does not.
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
    use std::io;

    use super::*;

    /// All kinds of error, in this order. Without one of them it does not compile.
    macro_rules! all {
        ($($kind:ident),+ $(,)?) => {{
            const _: fn(ErrorKind) = |kind| match kind {
                $(ErrorKind::$kind => {})+
            };
            [$(ErrorKind::$kind),+]
        }};
    }

    const ALL: [ErrorKind; 21] = all![
        Unavailable,
        TimedOut,
        TooManyClients,
        TooFewReplicas,
        OutOfMemory,
        Busy,
        Denied,
        LoginRefused,
        WrongType,
        Refused,
        Protocol,
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
