//! The limit of a call: the time limit, the deadline or the cancel token of the public method that
//! the calling thread has called. The limit ends a call even if there is no reply.
//!
//! The limit is a thread-local value, so that no path to the server can forget to pass it on.
//! Methods that wait [set](Limit::set) the limit. Methods without a limit set `None`: a logger may
//! take a lock on a thread that already waits in another method, and the limit of that method must
//! not end the wait of the logger. [`Lane`](super::Lane) and [`Slot`](super::Cluster) read the
//! limit where a thread would wait for a server. [Posts](super::Lane::post) and the commands of
//! background threads have no limit.

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::{Duration, Instant};

use crate::cancel::{CancelToken, Registration};
use crate::sync::{Waker, thread_local};

/// The time between two checks of the token by a thread in a read: a cancel does not wake such a
/// thread.
const CANCEL_CHECK: Duration = Duration::from_millis(5);

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Limit {
    until: Option<Instant>,
    token: Option<CancelToken>,
}

thread_local! {
    /// Whether `CURRENT` or `CUT` may be set. Most calls read only this flag.
    static IS_SET: Cell<bool> = const { Cell::new(false) };
    static CURRENT: RefCell<Option<Limit>> = const { RefCell::new(None) };
    static CUT: Cell<Cut> = const { Cell::new(Cut::No) };
}

/// Whether the limit ended a call, and whether the call's connection had then received a reply
/// lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    No,
    Silent,
    Answering,
}

impl Limit {
    /// Makes a limit. Returns `None` without a time and a token.
    pub fn new(until: Option<Instant>, token: Option<&CancelToken>) -> Option<Self> {
        let token = token.cloned();
        (until.is_some() || token.is_some()).then_some(Self { until, token })
    }

    /// Makes `limit` end the calling thread's calls until the result is dropped.
    #[inline]
    pub fn set(limit: Option<Self>) -> Limited {
        let was_set = IS_SET.try_with(Cell::get).unwrap_or(false);
        Limited((was_set || limit.is_some()).then(|| Box::new(Self::replace(limit, was_set))))
    }

    #[cold]
    fn replace(limit: Option<Self>, was_set: bool) -> Before {
        // If the thread-locals are already destroyed, the thread waits without a limit.
        let limit = CURRENT.try_with(|current| current.replace(limit)).unwrap_or(None);
        let _gone = IS_SET.try_with(|is_set| is_set.set(true));
        Before { limit, was_cut: set_cut(Cut::No), was_set }
    }

    /// Returns the limit of the calling thread.
    #[inline]
    pub(super) fn current() -> Option<Self> {
        if !IS_SET.try_with(Cell::get).unwrap_or(false) {
            return None;
        }
        CURRENT.try_with(|current| current.borrow().clone()).unwrap_or(None)
    }

    pub(super) fn is_over(&self) -> bool {
        self.token.as_ref().is_some_and(CancelToken::is_cancelled)
            || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Returns the limit's end or `until`, whichever is earlier.
    pub(super) fn earlier_of(&self, until: Instant) -> Instant {
        self.until.map_or(until, |own| own.min(until))
    }

    /// Returns the time until which a thread may sleep if a cancel cannot wake it. It is the
    /// earliest of three times: the next check of the token, the limit's end, and `latest`.
    pub(super) fn soon(&self, latest: Instant) -> Instant {
        let look = self.token.as_ref().and_then(|_| Instant::now().checked_add(CANCEL_CHECK));
        [look, self.until].into_iter().flatten().fold(latest, Instant::min)
    }

    /// Sleeps until the waker is woken, or until the limit is over. If the token is cancelled, the
    /// waker is woken.
    pub(super) fn sleep_on(&self, waker: &Waker) {
        let token = self.token.as_ref();
        let _registration = token.map(|token| Registration::of(token, waker.clone()));
        // Check after the registration: a cancel before the registration woke no thread.
        if !self.is_over() {
            waker.sleep_until(self.until);
        }
    }

    /// Sleeps for this time, or until the limit is over.
    pub(super) fn sleep(&self, pause: Duration) {
        let end = deadline_in(pause);
        while Instant::now() < end && !self.is_over() {
            thread::sleep(self.soon(end).saturating_duration_since(Instant::now()));
        }
    }
}

/// Returns the time at which `time` is over.
pub(super) fn deadline_in(time: Duration) -> Instant {
    later(Instant::now(), time)
}

pub(super) fn later(now: Instant, time: Duration) -> Instant {
    // The addition does not overflow, because no timeout is longer than a year.
    now.checked_add(time).unwrap_or(now)
}

/// Notes that the limit ended a call of the calling thread. `answers` says whether the call's
/// connection has received a reply lately.
pub(super) fn record_cut(answers: bool) {
    set_cut(if answers { Cut::Answering } else { Cut::Silent });
}

/// Whether the limit has ended a call of the calling thread since the last [`Limit::set`]. Such a
/// failure does not show an outage, and does not concern other threads.
pub fn was_cut() -> bool {
    cut() != Cut::No
}

/// Whether the connection of the [cut](was_cut) call had received a reply within the last second.
/// If so, the limit was too short for the call, and there is no outage.
pub fn was_cut_while_answering() -> bool {
    cut() == Cut::Answering
}

fn cut() -> Cut {
    CUT.try_with(Cell::get).unwrap_or(Cut::No)
}

fn set_cut(cut: Cut) -> Cut {
    CUT.try_with(|was| was.replace(cut)).unwrap_or(Cut::No)
}

/// Restores the earlier [`Limit`] when dropped. It is boxed, because a call without a limit moves
/// this value, too.
#[must_use]
#[derive(Debug)]
pub struct Limited(Option<Box<Before>>);

#[derive(Debug)]
struct Before {
    limit: Option<Limit>,
    was_cut: Cut,
    was_set: bool,
}

impl Drop for Limited {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            before.restore();
        }
    }
}

impl Before {
    #[cold]
    fn restore(self) {
        let Self { limit, was_cut, was_set } = self;
        // Drop the old limit outside the borrow, because it may have the last copy of a token.
        let _gone = CURRENT.try_with(|current| current.replace(limit));
        set_cut(was_cut);
        let _gone = IS_SET.try_with(|is_set| is_set.set(was_set));
    }
}
