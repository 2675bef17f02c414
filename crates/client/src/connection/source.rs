//! Credentials and TLS identities that the user's code provides, and their renewal while
//! connections are open.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex};

/// A value that the user's code may provide: credentials or an identity. It is hidden, so that
/// redlatch's page of [`Credentials`](super::Credentials) does not list this trait.
#[doc(hidden)]
pub trait Provided: Clone + Send + 'static {
    /// The name of the client's setting, for errors.
    const SETTING: &'static str;
    /// The name of the thread that calls the user's code.
    const THREAD: &'static str;

    /// Returns the time for which the server accepts the value. `None`: until the value is changed.
    fn valid_for(&self) -> Option<Duration>;

    /// Whether the two values are equal for the server.
    fn is_same_as(&self, other: &Self) -> bool;
}

type Provide<T> = dyn Fn() -> Result<T, Box<dyn StdError + Send + Sync>> + Send + Sync;

/// The user's code that provides credentials or an identity.
pub struct Provider<T>(Arc<Provide<T>>);

impl<T> Provider<T> {
    /// Makes a provider that calls `provide` on a thread of the client.
    pub fn new(
        provide: impl Fn() -> Result<T, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(provide))
    }
}

impl<T> Clone for Provider<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Provider<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

/// The part of the validity after which the user's code is called again.
const RENEW_AFTER: f64 = 0.75;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a retry is the validity divided by this number, within the two bounds.
const RETRY_PART: u32 = 32;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Calls the user's code on a separate thread, because this code may block or panic. Makes one call
/// at a time, with no mutex held. A thread that waits for a value gives up at its own deadline.
pub struct Source<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<SourceState<T>>,
    changed: Condvar,
    /// The number of times that open connections have been given a new value.
    renewals: AtomicU64,
    renewed: OnceLock<Box<OnNewValue<T>>>,
}

/// Gets the new value for open connections, or the reason why there is no new value.
type OnNewValue<T> = dyn Fn(Result<&T, &str>) + Send + Sync;

struct SourceState<T> {
    /// The numbers of three calls of the user's code: the last call for which a thread waits, the
    /// last call that has begun, and the last call that has ended.
    wanted: u64,
    begun: u64,
    answered: u64,
    answer: Result<T, String>,
    /// The last value that open connections were given, or the first value.
    current: Option<T>,
    /// Whether a connection has been opened with a value other than `current`.
    differs: bool,
    renew_at: Option<Instant>,
    ended: bool,
}

impl<T: Provided> Source<T> {
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub fn start(provider: &Provider<T>) -> io::Result<Self> {
        let state = SourceState {
            wanted: 0,
            begun: 0,
            answered: 0,
            answer: Err(String::new()),
            current: None,
            differs: false,
            renew_at: None,
            ended: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            renewals: AtomicU64::new(0),
            renewed: OnceLock::new(),
        });
        let (served, provide) = (Arc::clone(&shared), Arc::clone(&provider.0));
        let builder = thread::Builder::new().name(T::THREAD.to_owned());
        builder.spawn(move || served.serve(&*provide))?;
        Ok(Self(shared))
    }

    /// Returns the value for a connection that is opened now. The value comes from a call of the
    /// user's code that begins after this call.
    pub(crate) fn ask(&self, deadline: Instant) -> Result<T, String> {
        let Shared { state, changed, .. } = &*self.0;
        let mut state = state.lock();
        // A call of the user's code that runs already may return a value that has changed since.
        let call = state.begun + 1;
        state.wanted = state.wanted.max(call);
        changed.notify_all();
        while state.answered < call {
            if state.ended {
                return Err("the client has ended".to_owned());
            }
            if Instant::now() >= deadline {
                return Err(format!("{} did not return in time", T::SETTING));
            }
            changed.wait_until(&mut state, deadline);
        }
        state.answer.clone()
    }

    /// The number of times that open connections have been given a new value.
    pub(crate) fn renewals(&self) -> u64 {
        self.0.renewals.load(Ordering::Acquire)
    }

    /// Sets the callback for a new value. The source's thread calls it before the value of open
    /// connections expires.
    pub fn on_renewed(&self, renewed: impl Fn(Result<&T, &str>) + Send + Sync + 'static) {
        let _only_once = self.0.renewed.set(Box::new(renewed));
    }
}

impl<T> Source<T> {
    /// Notes that the client ends. The thread ends when the user's code has returned.
    pub fn end(&self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl<T> Drop for Source<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl<T: Provided> Shared<T> {
    /// The body of the thread.
    fn serve(&self, provide: &Provide<T>) {
        while let Some(renews) = self.wait() {
            let now = Instant::now();
            // The error's text and its drop are the user's code as well.
            let provided = || provide().map_err(|error| error.to_string());
            let answer = catch_unwind(AssertUnwindSafe(provided))
                .unwrap_or_else(|_| Err(format!("{} panicked", T::SETTING)));
            let report = self.answered(answer, renews, now);
            let Some(report) = report else { continue };
            if let Some(renewed) = self.renewed.get() {
                // A panic in the callback must not end this thread.
                let call = || renewed(report.as_ref().map_err(String::as_str));
                let _ = catch_unwind(AssertUnwindSafe(call));
            }
        }
    }

    /// Sleeps until a call is due, and returns whether the call is for open connections. Returns
    /// `None` if the client has ended.
    fn wait(&self) -> Option<bool> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let renews = state.renew_at.is_some_and(|at| at <= Instant::now());
            if renews || state.wanted > state.begun {
                state.begun += 1;
                return Some(renews);
            }
            match state.renew_at {
                Some(at) => drop(self.changed.wait_until(&mut state, at)),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Stores the result of the user's code, and returns the message for open connections.
    fn answered(
        &self,
        answer: Result<T, String>,
        renews: bool,
        now: Instant,
    ) -> Option<Result<T, String>> {
        let mut state = self.state.lock();
        state.answer = answer.clone();
        state.answered = state.begun;
        let after = |time: Duration, part: f64| {
            let pause = time.mul_f64(part).max(SHORTEST_PAUSE);
            now.checked_add(pause)
        };
        let mut reports = renews;
        match &answer {
            Ok(new) => {
                let is_same = state.current.as_ref().is_none_or(|current| current.is_same_as(new));
                let due = new.valid_for().and_then(|time| after(time, RENEW_AFTER));
                if renews {
                    // Tell the open connections only if some of them have another value.
                    reports = !is_same || state.differs;
                    state.differs = false;
                    state.renew_at = due;
                } else {
                    state.differs |= !is_same;
                    // Keep the earliest time at which a connection needs a new value.
                    state.renew_at = state.renew_at.into_iter().chain(due).min();
                }
                if renews || state.current.is_none() {
                    state.current = Some(new.clone());
                }
            }
            Err(_) if renews => {
                let time = state.current.as_ref().and_then(T::valid_for).unwrap_or_default();
                let pause = (time / RETRY_PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                state.renew_at = now.checked_add(pause);
            }
            Err(_) => {}
        }
        if reports && answer.is_ok() {
            // Raise the count before the connections get the new value. So a thread that reads the
            // new count and then opens a connection gets a value from after the change.
            self.renewals.fetch_add(1, Ordering::AcqRel);
        }
        drop(state);
        self.changed.notify_all();
        reports.then_some(answer)
    }
}
