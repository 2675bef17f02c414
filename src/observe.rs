//! The events of a client's locks, which the client reports to a user's [`Observer`].

use std::fmt;
use std::time::Duration;

#[cfg(doc)]
use crate::config::ClientBuilder;
use crate::error::{ErrorKind, LostReason};
use crate::name::Name;

#[cfg(feature = "metrics")]
mod metrics;

#[cfg(feature = "metrics")]
pub use metrics::MetricsObserver;

/// The methods of an [`Observer`] behind a pointer.
macro_rules! forwards {
    (@each $($method:ident: $how:ty,)+) => {
        $(fn $method(&self, event: &Event<'_, $how>) {
            (**self).$method(event);
        })+
    };
    () => {
        forwards!(@each
            wait_started: (),
            acquired: Way,
            gave_up: Option<ErrorKind>,
            released: (),
            lost: LostReason,
            renewed: (),
            renewal_failed: &str,
            reconnected: (),
            forgot: (),
            wanted: (),
        );
    };
}

/// Receives the events of a client's locks, semaphores and latches, for counters, spans or a log.
/// [`ClientBuilder::observer`] adds an observer to a client.
///
/// For each acquisition, the client calls [`wait_started`](Self::wait_started) once, even if the
/// lock is free, and then [`acquired`](Self::acquired) or [`gave_up`](Self::gave_up) once. For each
/// acquired lock, the client later calls [`released`](Self::released) or [`lost`](Self::lost) once.
/// Permits that were acquired together may be released one by one. To count permits, add up
/// [`permits`](Event::permits) of the events. A re-entry is reported only if it fails. For a latch
/// or a barrier, only the waits are reported.
///
/// `wait_started`, `acquired`, `gave_up` and `released` run on the thread that acquires or
/// releases. The other methods run on a thread of the client, in order. The client calls each
/// method with none of its mutexes held. When `acquired` runs, the lock is held. No method may
/// block or use the client. If a method panics, the client logs the panic, and nothing else is
/// affected.
///
/// If the client's thread hangs in a callback, later events wait. If more than 10,000 events wait,
/// renewals are not reported. If more than 100,000 events wait, no event is reported. The client
/// logs when this begins. (The same thread writes the log line, so the line is written only after
/// the callback has returned.) [`Counts`](crate::status::Counts) has the number of events that were
/// not reported.
///
/// ```no_run
/// use redlatch::observe::{Event, Observer, Way};
/// use redlatch::{Client, LostReason};
///
/// struct Log;
///
/// impl Observer for Log {
///     fn acquired(&self, event: &Event<'_, Way>) {
///         println!("{}: had after {:?}, {:?}", event.name, event.time, event.how);
///     }
///
///     fn lost(&self, event: &Event<'_, LostReason>) {
///         println!("{}: lost after {:?}: {}", event.name, event.time, event.how);
///     }
/// }
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = Client::builder("redis://127.0.0.1:6379").observer(Log).connect()?;
/// # drop(client);
/// # Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A wait begins. `time` is zero, or the length of a first request that the call has already
    /// made.
    fn wait_started(&self, _event: &Event<'_>) {}

    /// The wait has succeeded. `time` is the length of the wait. `how` says how the lock was
    /// granted.
    fn acquired(&self, _event: &Event<'_, Way>) {}

    /// The wait has failed. `time` is the length of the wait. `how` is the kind of the caller's
    /// error, or `None` if the time limit has passed or the call does not wait.
    fn gave_up(&self, _event: &Event<'_, Option<ErrorKind>>) {}

    /// The thread has released the lock, has given it to a ticket, or waits on a condition. `time`
    /// is the length of the hold.
    fn released(&self, _event: &Event<'_>) {}

    /// The hold was lost. `time` is the length of the hold. `how` says why it was lost.
    fn lost(&self, _event: &Event<'_, LostReason>) {}

    /// The server has renewed the lease. `time` is the remaining lease when the reply arrived.
    fn renewed(&self, _event: &Event<'_>) {}

    /// A renewal failed, and is tried again. `time` is the remaining lease. `how` is the cause.
    fn renewal_failed(&self, _event: &Event<'_, &str>) {}

    /// An outage of a server is over. `name` is the server's address. `time` is the length of the
    /// outage. If several clients of one process notice an outage, only the first one reports it.
    fn reconnected(&self, _event: &Event<'_>) {}

    /// The client changed semaphores so often that it has forgotten some changes of the last 10 s:
    /// if a failover loses these changes, the client does not repeat them. `name` is the server's
    /// address. `permits` is the number of changes. Reported at most every three seconds.
    fn forgot(&self, _event: &Event<'_>) {}

    /// Others have begun to wait for a lock whose guard has an
    /// [`on_wanted`](crate::LockGuard::on_wanted) callback. `time` is the length of the hold so
    /// far.
    fn wanted(&self, _event: &Event<'_>) {}
}

/// A program can keep a clone of the `Arc`, to read the counters of its observer.
impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    forwards!();
}

impl<O: Observer + ?Sized> Observer for Box<O> {
    forwards!();
}

/// An event that a client reports to an [`Observer`].
///
/// To test an observer, make an event with [`new`](Self::new), and set the other fields:
///
/// ```
/// use std::time::Duration;
///
/// use redlatch::observe::{Event, Kind, Way};
///
/// let mut event = Event::new("orders", Kind::FairLock, Way::HandedOn);
/// event.time = Duration::from_millis(30);
/// assert_eq!(event.permits, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a, T = ()> {
    /// The name of the lock.
    pub name: &'a str,
    /// The kind of synchronizer.
    pub kind: Kind,
    /// The number of permits in this event. For a kind without permits, the number is 1, except in
    /// [`Observer::forgot`].
    pub permits: u32,
    /// A length of time: each method of [`Observer`] describes its `time`.
    pub time: Duration,
    /// A way, a reason or nothing: each method of [`Observer`] describes its `how`.
    pub how: T,
}

impl<'a, T> Event<'a, T> {
    /// Makes an event about one permit or lock, whose time is zero.
    pub fn new(name: &'a str, kind: Kind, how: T) -> Self {
        Self::named(name, (kind, 1), Duration::ZERO, how)
    }

    pub(crate) fn of(name: &'a Name, what: (Kind, u32), time: Duration, how: T) -> Self {
        Self::named(name.given(), what, time, how)
    }

    pub(crate) fn named(name: &'a str, what: (Kind, u32), time: Duration, how: T) -> Self {
        Self { name, kind: what.0, permits: what.1, time, how }
    }
}

/// The kind of the object that an event names: a server, or the type of synchronizer for which this
/// client uses the name. ([`StatusKind`](crate::status::StatusKind) is the kind that the server
/// reports.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of the types")]
pub enum Kind {
    ReentrantLock,
    FairLock,
    ReadLock,
    WriteLock,
    FencedLock,
    Semaphore,
    ExpirableSemaphore,
    CountDownLatch,
    CyclicBarrier,
    /// A Redis server.
    Server,
}

impl Kind {
    pub(crate) fn is_of_permits(self) -> bool {
        matches!(self, Self::Semaphore | Self::ExpirableSemaphore)
    }

    /// Whether a wait for this kind lasts until a holder releases a lock or a permit.
    pub(crate) fn has_holders(self) -> bool {
        !matches!(self, Self::CountDownLatch | Self::CyclicBarrier)
    }
}

/// How an acquired lock was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// The lock was free, so the server granted the request.
    Free,
    /// Another process released the lock, and the server granted it to this client. This variant
    /// also covers the adoption of a ticket.
    HandedOn,
    /// A thread of this process passed the lock on, or shares it.
    Passed,
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
