//! One thread's time in a hold.

use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use redlatch_client::sync::{Mutex, Thread, clock};

use super::HoldState;
use super::hold::Hold;
use super::stay::Stay;
use crate::error::LostReason;
use crate::runtime::Core;
#[cfg(soak_mutants)]
use crate::scripts::mutants;

pub(super) type Callback = Box<dyn FnOnce(LostReason) + Send>;

/// One thread's time in a hold.
pub(crate) struct Tenancy {
    pub(crate) hold: Arc<Hold>,
    pub(crate) thread: Arc<Thread>,
    /// When the tenancy began, on [`clock`].
    pub(crate) since: u64,
    /// How many of the hold's fencing tokens earlier tenancies have used.
    pub(super) nth_token: u16,
    pub(super) end: Mutex<End>,
    /// Whether the tenancy has ended: a copy, to read without the mutex.
    pub(super) ended: AtomicBool,
    /// The stay that the tenancy is a part of, once its thread has left to wait. Set under the
    /// mutex of its end. Its guards keep the stay.
    pub(super) stay: OnceLock<Arc<Stay>>,
    /// Its index among the tenants that share the hold. Used under the gate's mutex.
    pub(super) index: AtomicUsize,
}

#[derive(Default)]
pub(super) struct End {
    pub(super) how: Ending,
    /// The stay that the tenancy is a part of, once its thread has come back from a wait. The stay
    /// keeps the tenancy.
    pub(super) came_back_to: Option<Weak<Stay>>,
}

pub(super) enum Ending {
    /// The tenancy has not ended. The callbacks to call if it is lost.
    NotYet(Vec<Callback>),
    Released,
    Lost(LostReason),
}

impl Default for Ending {
    fn default() -> Self {
        Self::NotYet(Vec::new())
    }
}

impl End {
    pub(super) fn on_lost(&mut self, callback: Callback) -> Option<(LostReason, Callback)> {
        match &mut self.how {
            Ending::NotYet(callbacks) => {
                callbacks.push(callback);
                None
            }
            Ending::Lost(reason) => Some((*reason, callback)),
            Ending::Released => None,
        }
    }

    pub(super) fn take_callbacks(&mut self) -> Vec<Callback> {
        match &mut self.how {
            Ending::NotYet(callbacks) => std::mem::take(callbacks),
            Ending::Released | Ending::Lost(_) => Vec::new(),
        }
    }
}

impl Tenancy {
    pub(crate) fn new(hold: Arc<Hold>, thread: Arc<Thread>) -> Self {
        Self::since(hold, thread, clock::now())
    }

    pub(crate) fn since(hold: Arc<Hold>, thread: Arc<Thread>, since: u64) -> Self {
        #[cfg(soak_mutants)]
        if mutants::is("a token not counted on a pass") {
            hold.tokens_used.store(0, Ordering::Relaxed);
        }
        Self {
            // Threads pass the hold under the gate's mutex, so in the order of the tokens.
            nth_token: hold.tokens_used.fetch_add(1, Ordering::Relaxed),
            hold,
            thread,
            since,
            end: Mutex::default(),
            ended: AtomicBool::new(false),
            stay: OnceLock::new(),
            index: AtomicUsize::new(0),
        }
    }

    pub(super) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed)
    }

    pub(super) fn set_index(&self, index: usize) {
        self.index.store(index, Ordering::Relaxed);
    }

    /// The tenancy's fencing token, if its lock has tokens: higher than that of any earlier
    /// tenancy.
    pub(crate) fn token(&self) -> Option<NonZero<u64>> {
        self.hold.token_after(self.nth_token)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.is_held_at(clock::now())
    }

    pub(crate) fn is_held_at(&self, now: u64) -> bool {
        !self.ended.load(Ordering::Acquire) && self.hold.is_ours(now)
    }

    pub(crate) fn remaining(&self) -> Duration {
        if self.ended.load(Ordering::Acquire) || self.hold.lost().is_some() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.hold.deadline().saturating_sub(clock::now()))
    }

    /// How long the server keeps the hold, even if no thread wants it for this long.
    pub(crate) fn granted(&self) -> Duration {
        if self.ended.load(Ordering::Acquire) || self.hold.lost().is_some() {
            return Duration::ZERO;
        }
        let until = self.hold.deadline.load(Ordering::SeqCst);
        Duration::from_nanos(until.saturating_sub(clock::now()))
    }

    pub(crate) fn state(&self) -> HoldState {
        match self.end.lock().how {
            Ending::Lost(reason) => return HoldState::Lost(reason),
            Ending::Released => return HoldState::Released,
            Ending::NotYet(_) if self.ended.load(Ordering::Acquire) => return HoldState::Released,
            Ending::NotYet(_) => {}
        }
        if let Some(reason) = self.hold.lost() {
            HoldState::Lost(reason)
        } else if clock::now() >= self.hold.deadline() {
            HoldState::Lost(LostReason::LeaseExpired)
        } else if self.hold.is_unconfirmed() {
            HoldState::Unconfirmed
        } else {
            HoldState::Held
        }
    }

    /// The text about its loss. For a lease that ran out, it also says why the client did not renew
    /// it.
    pub(crate) fn loss_message(&self, reason: LostReason, max_hold: Option<Duration>) -> String {
        if reason != LostReason::LeaseExpired {
            return reason.to_string();
        }
        let trouble = self.hold.trouble.lock().clone();
        let held = clock::now().saturating_sub(self.since);
        let why = match (trouble, self.hold.terms.fixed_lease()) {
            (Some(cause), _) => format!("its renewals failed: {cause}"),
            (None, _) if self.hold.is_unwanted() => {
                "it was a fixed one; the thread that kept the shared hold for longer has left"
                    .to_owned()
            }
            (None, Some(lease)) => format!("it was a fixed one, of {lease:?}"),
            (None, None) if self.thread.is_dead() => {
                "the thread that took the lock has ended, so it was not renewed".to_owned()
            }
            (None, None) => match max_hold {
                Some(longest) if held >= clock::nanos(longest) => {
                    format!("it was held for longer than max_hold ({longest:?})")
                }
                _ => "it was not renewed in time: the process stood still, or was too busy"
                    .to_owned(),
            },
        };
        format!("{reason} ({why})")
    }

    /// Registers `callback`, to be called once if the hold is lost. If the hold is lost already,
    /// returns the callback with the reason, for the caller to call.
    pub(crate) fn on_lost(&self, callback: Callback) -> Option<(LostReason, Callback)> {
        self.end.lock().on_lost(callback)
    }

    /// The thread has left the tenancy, and other threads have the hold or may have it soon. From
    /// here on its guard reports "held" to no thread. [`finish_released`](Self::finish_released)
    /// follows, or [`lose`](Self::lose).
    pub(crate) fn step_down(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// The thread has released it. Returns the callbacks, which nobody calls. The caller drops them
    /// when it has neither a leadership nor a mutex, since dropping them runs the user's code.
    pub(crate) fn finish_released(&self) -> Option<Vec<Callback>> {
        self.finish(Ending::Released)
    }

    /// The tenancy was lost. The first caller gets the callbacks, and must call them with no mutex
    /// held.
    pub(crate) fn lose(&self, reason: LostReason) -> Option<Vec<Callback>> {
        self.finish(Ending::Lost(reason))
    }

    /// The tenancy was lost: logs that, and has its callbacks called.
    pub(crate) fn declare_lost(&self, core: &Core, name: &Arc<str>, reason: LostReason) {
        if let Some(callbacks) = self.lose(reason) {
            #[cfg(soak_mutants)]
            if mutants::is("a loss that is not told") {
                return;
            }
            core.watchdog.tell_lost(name, || self.loss_message(reason, core.config.max_hold));
            core.watchdog.call_back(name, reason, callbacks);
        }
    }

    pub(super) fn finish(&self, how: Ending) -> Option<Vec<Callback>> {
        let mut end = self.end.lock();
        let Ending::NotYet(callbacks) = &mut end.how else { return None };
        let callbacks = std::mem::take(callbacks);
        end.how = how;
        self.ended.store(true, Ordering::Release);
        Some(callbacks)
    }
}

impl fmt::Debug for Tenancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenancy")
            .field("owner", &self.hold.owner)
            .field("thread", &self.thread)
            .field("state", &self.state())
            .finish()
    }
}
