//! User and password, and how they are had anew where they are good for less than a client's life.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use redis::RedisConnectionInfo;

use crate::sync::{Condvar, Mutex};

/// User and password of a server's user, as
/// [`credentials_with`](super::ClientBuilder::credentials_with) has them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
    valid_for: Option<Duration>,
}

impl Credentials {
    /// As they are, with nothing written otherwise. An empty user is the server's default one.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Self {
        Self { user: user.to_owned(), password: password.to_owned(), valid_for: None }
    }

    /// The server takes them for so long from now on, and may end what was opened with them after
    /// that. Without this they are good until they are changed.
    #[must_use]
    pub fn valid_for(self, time: Duration) -> Self {
        Self { valid_for: Some(time), ..self }
    }

    /// The user, if it is not the server's default one, and the password.
    pub(crate) fn parts(&self) -> (Option<&str>, &str) {
        (Some(&*self.user).filter(|user| !user.is_empty()), &self.password)
    }

    /// A URL's settings with these instead.
    pub(crate) fn in_place(&self, url: &RedisConnectionInfo) -> RedisConnectionInfo {
        let (user, password) = self.parts();
        let settings = url.clone().set_password(password);
        match user {
            None => settings,
            Some(user) => settings.set_username(user),
        }
    }

    /// These instead of the URL's, if there are any.
    pub(crate) fn instead(these: &Option<Self>, url: &RedisConnectionInfo) -> RedisConnectionInfo {
        these.as_ref().map_or_else(|| url.clone(), |these| these.in_place(url))
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

/// Without any of it.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

type Provide = dyn Fn() -> Result<Credentials, Box<dyn StdError + Send + Sync>> + Send + Sync;

/// Who has credentials: the user's code.
#[derive(Clone)]
pub(crate) struct Provider(pub(super) Arc<Provide>);

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

/// They are had anew when so much of their time has gone.
const RENEWED_AFTER: f64 = 0.75;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// What is tried again is tried after a part of their time, and after this at the latest.
const RETRY: u32 = 32;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Has credentials from the user's code, on a thread of its own: that code may block or panic. One
/// call at a time, with no mutex held, and nobody waits longer for it than it has time.
pub(crate) struct CredentialSource(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Counts the times at which new ones were told to those who have connections.
    renewals: AtomicU64,
    renewed: OnceLock<Box<Renewed>>,
}

/// Hears of new ones for connections that are open, or why there are none.
type Renewed = dyn Fn(Result<&Credentials, &str>) + Send + Sync;

struct State {
    /// Calls are counted. The last one that somebody waits for, that was begun, that was answered.
    wanted: u64,
    begun: u64,
    answered: u64,
    answer: Result<Credentials, String>,
    /// With which connections were opened at first, or went on.
    told: Option<Credentials>,
    /// Some connection was opened with others since.
    differs: bool,
    renew_at: Option<Instant>,
    ended: bool,
}

impl CredentialSource {
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn start(provider: &Provider) -> io::Result<Self> {
        let state = State {
            wanted: 0,
            begun: 0,
            answered: 0,
            answer: Err(String::new()),
            told: None,
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
        let builder = thread::Builder::new().name("redlatch-creds".to_owned());
        builder.spawn(move || served.serve(&*provide))?;
        Ok(Self(shared))
    }

    /// Those for a connection that is opened now: the user's code is called after this was.
    pub(crate) fn ask(&self, deadline: Instant) -> Result<Credentials, String> {
        let Shared { state, changed, .. } = &*self.0;
        let mut state = state.lock();
        // One that runs already may have begun before a change that the caller knows of.
        let call = state.begun + 1;
        state.wanted = state.wanted.max(call);
        changed.notify_all();
        while state.answered < call {
            if state.ended {
                return Err("the client has ended".to_owned());
            }
            if Instant::now() >= deadline {
                return Err("credentials_with did not return in time".to_owned());
            }
            (state, _) = changed.wait_until(state, deadline);
        }
        state.answer.clone()
    }

    /// How often connections were given new ones.
    pub(crate) fn renewals(&self) -> u64 {
        self.0.renewals.load(Ordering::Acquire)
    }

    /// From here on `renewed` is called before those expire that connections were opened with. On
    /// the source's own thread.
    pub(crate) fn on_renewed(
        &self,
        renewed: impl Fn(Result<&Credentials, &str>) + Send + Sync + 'static,
    ) {
        let _only_once = self.0.renewed.set(Box::new(renewed));
    }

    /// The client ends: the thread does, too, when the user's code has returned.
    pub(crate) fn end(&self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Drop for CredentialSource {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialSource")
    }
}

impl Shared {
    /// The thread's whole life.
    fn serve(&self, provide: &Provide) {
        while let Some(renews) = self.wait() {
            let now = Instant::now();
            let provided = catch_unwind(AssertUnwindSafe(provide));
            let answer = match provided {
                Ok(Ok(credentials)) => Ok(credentials),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("credentials_with panicked".to_owned()),
            };
            let told = self.answered(answer, renews, now);
            let Some(told) = told else { continue };
            if let Some(renewed) = self.renewed.get() {
                // A panic there must not end this thread.
                let told = || renewed(told.as_ref().map_err(String::as_str));
                let _ = catch_unwind(AssertUnwindSafe(told));
            }
        }
    }

    /// Until a call is to be made: whether for connections that are open. `None`: the end.
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
            state = match state.renew_at {
                Some(at) => self.changed.wait_until(state, at).0,
                None => self.changed.wait(state),
            };
        }
    }

    /// What open connections are to be told.
    fn answered(
        &self,
        answer: Result<Credentials, String>,
        renews: bool,
        now: Instant,
    ) -> Option<Result<Credentials, String>> {
        let mut state = self.state.lock();
        state.answer = answer.clone();
        state.answered = state.begun;
        let after = |time: Duration, part: f64| {
            let pause = time.mul_f64(part).max(SHORTEST_PAUSE);
            now.checked_add(pause)
        };
        let mut tell = renews;
        match &answer {
            Ok(new) => {
                let is_same = state.told.as_ref().is_none_or(|told| told.is_same_as(new));
                let due = new.valid_for.and_then(|time| after(time, RENEWED_AFTER));
                if renews {
                    // Nothing is to be said if all have these.
                    tell = !is_same || state.differs;
                    state.differs = false;
                    state.renew_at = due;
                } else {
                    state.differs |= !is_same;
                    // The earliest of those that connections have.
                    state.renew_at = state.renew_at.into_iter().chain(due).min();
                }
                if renews || state.told.is_none() {
                    state.told = Some(new.clone());
                }
            }
            Err(_) if renews => {
                let time = state.told.as_ref().and_then(|told| told.valid_for).unwrap_or_default();
                let pause = (time / RETRY).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                state.renew_at = now.checked_add(pause);
            }
            Err(_) => {}
        }
        if tell && answer.is_ok() {
            // Before they hear of it: whoever opens a connection from here on has asked after it.
            self.renewals.fetch_add(1, Ordering::AcqRel);
        }
        drop(state);
        self.changed.notify_all();
        tell.then_some(answer)
    }
}
