//! One thread's use of a hold.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redlatch_client::sync::{Mutex, Thread, clock, is_forked};

use super::hold::Hold;
use crate::error::LostReason;
use crate::lease::{LossCallback, WantedCallback};
use crate::name::Name;
use crate::observe::Event;
use crate::runtime::{Core, Count};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::snapshot::Held;

/// The state of a guard's hold, as far as this process knows it.
///
/// ```no_run
/// use redlatch::{HoldState, LockGuard};
///
/// fn report(guard: &LockGuard) -> String {
///     match guard.state() {
///         HoldState::Held => "held".to_owned(),
///         HoldState::Unconfirmed => format!("held for {:?} more", guard.remaining()),
///         HoldState::Lost(why) => format!("lost: {why}"),
///         _ => "released".to_owned(),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum HoldState {
    /// Held, and the last renewal, if there was one, succeeded.
    Held,
    /// Held until the known deadline. The last renewal failed and the client tries again, or the
    /// outcome of a request for a longer fixed lease is not known.
    Unconfirmed,
    /// No longer held, although no thread has released it.
    Lost(LostReason),
    /// Released by this guard or by `unlock`. A guard is also in this state while its thread waits
    /// on a [`Condition`](crate::Condition), and after a wait that could not take the lock again.
    Released,
}

/// A tenancy: one thread's use of a hold. A tenancy continues during waits on conditions. After
/// each such wait the tenancy has another hold.
///
/// Guards read their state from the tenancy. In a forked child the state is "lost", because the
/// hold belongs to the parent. The child reports this state without a mutex, because a thread of
/// the parent may have locked the mutex at the fork.
pub(crate) struct Tenancy {
    /// The first hold, from a grant or a pass.
    first: Arc<Hold>,
    /// The hold that the thread got after its last wait on a condition. See [`hold`](Self::hold).
    /// (Boxed, because most tenancies have none.)
    exchanged: OnceLock<Box<Mutex<Arc<Hold>>>>,
    pub(crate) thread: Arc<Thread>,
    /// The time on [`clock`] at which the use of the hold began.
    began: AtomicU64,
    /// The fencing token, which is higher than the token of any earlier tenancy. Zero if the lock
    /// has no tokens.
    token: AtomicU64,
    end: Mutex<End>,
    /// Whether the thread has left or lost the hold.
    ended: AtomicBool,
    /// The index among the tenants that share the hold. The gate's mutex guards the index.
    index: AtomicU32,
    /// Whether the observer knows that the thread has the hold ([`HAD`]), and whether the tenancy
    /// was lost ([`LOST`]).
    reported: AtomicU8,
}

const HAD: u8 = 1;
const LOST: u8 = 2;

enum End {
    /// The tenancy has not ended, though its thread may be waiting on a condition. (Boxed, because
    /// most tenancies have no callbacks, and each thread that joins or receives a hold makes a
    /// tenancy.)
    NotYet(Option<Box<TenancyCallbacks>>),
    Released,
    Lost(LostReason),
}

/// The callbacks for the events of a tenancy.
#[derive(Default)]
struct TenancyCallbacks {
    losses: Vec<LossCallback>,
    /// The client's own handler of a loss. See [`Tenancy::at_loss`].
    own: Option<LossCallback>,
    /// The `on_wanted` callbacks, each with a flag. The flag is true if the callback was called
    /// since others began to wait.
    wanted: Vec<(WantedCallback, bool)>,
}

impl End {
    /// Returns the callbacks of a tenancy that has not ended.
    fn callbacks(&mut self) -> Option<&mut TenancyCallbacks> {
        match self {
            Self::NotYet(callbacks) => Some(callbacks.get_or_insert_default()),
            Self::Released | Self::Lost(_) => None,
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
        // Threads pass the hold under the gate's mutex, so a later tenancy gets a higher token.
        let token = hold.token_after(hold.tokens_used.fetch_add(1, Ordering::Relaxed));
        Self {
            first: hold,
            exchanged: OnceLock::new(),
            thread,
            began: AtomicU64::new(since),
            token: AtomicU64::new(token.map_or(0, NonZero::get)),
            end: Mutex::new(End::NotYet(None)),
            ended: AtomicBool::new(false),
            index: AtomicU32::new(0),
            reported: AtomicU8::new(0),
        }
    }

    /// Returns the tenancy's present hold. A tenancy gets another hold only in a wait on a
    /// condition, from its own thread, while the tenancy is in no seat. So the tenancy's thread
    /// sees the same hold until its next wait. Another thread sees the same hold only while it has
    /// the gate's mutex. Without the mutex, each call may return another hold. For this reason the
    /// watchdog, a forced unlock, and a thread that detects the end of a lease use the hold that
    /// they read from the seat.
    #[inline]
    pub(crate) fn hold(&self) -> Cow<'_, Arc<Hold>> {
        match self.exchanged.get() {
            None => Cow::Borrowed(&self.first),
            Some(hold) => Cow::Owned(Arc::clone(&hold.lock())),
        }
    }

    pub(crate) fn began(&self) -> u64 {
        self.began.load(Ordering::Relaxed)
    }

    pub(crate) fn snapshot(&self, name: &Name, levels: usize) -> Option<Held> {
        self.is_held().then(|| Held {
            name: name.given().to_owned(),
            kind: self.hold().kind(),
            held: self.held(),
            left: self.remaining(),
            thread: self.thread.name().map(str::to_owned),
            levels,
        })
    }

    fn held(&self) -> Duration {
        clock::since(self.began())
    }

    /// Reports to the observer that the thread has left the hold. Does nothing if the observer does
    /// not know that the thread had the hold. (A hold may end before the call that took it
    /// returns.)
    pub(crate) fn tell_released(&self, core: &Core, name: &Name) {
        if self.reported.load(Ordering::SeqCst) & HAD == 0 {
            return;
        }
        core.observe(Count::Released, 1, |it| {
            it.released(&Event::of(name, (self.hold().kind(), 1), self.held(), ()));
        });
    }

    /// Takes over the hold of `again`, the tenancy that the thread got after a wait on a condition.
    /// Returns the earlier hold, which the caller must not drop under a mutex.
    ///
    /// During the wait, the tenancy is [marked as left](Self::record_left) but has not ended. Its
    /// guards report "released", and callbacks can still be registered. The tenancy cannot be lost
    /// during the wait: a loss is reported to a tenancy only by the thread that takes it out of its
    /// seat, and here the tenancy's own thread has taken it out.
    pub(crate) fn exchange(&self, again: &Self) -> Arc<Hold> {
        let exchanged =
            self.exchanged.get_or_init(|| Box::new(Mutex::new(Arc::clone(&self.first))));
        let before = std::mem::replace(&mut *exchanged.lock(), again.hold().into_owned());
        self.began.store(again.began(), Ordering::Relaxed);
        self.token.store(again.token.load(Ordering::Relaxed), Ordering::Relaxed);
        // Others may begin to wait for the new hold, so each callback may be called again. The
        // tenancy is in no seat yet, so no thread is calling its callbacks now.
        let _none = self.update_wanted(&again.hold(), false);
        // This store comes last: a guard that reports "held" from here on must read the new hold.
        self.ended.store(false, Ordering::Release);
        before
    }

    pub(super) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }

    pub(super) fn set_index(&self, index: usize) {
        // The index fits in 32 bits, because each tenancy takes some hundred bytes.
        self.index.store(index as u32, Ordering::Relaxed);
    }

    pub(crate) fn token(&self) -> Option<NonZero<u64>> {
        NonZero::new(self.token.load(Ordering::Relaxed))
    }

    pub(crate) fn is_held(&self) -> bool {
        !is_forked() && self.is_held_at(clock::now())
    }

    pub(crate) fn is_held_at(&self, now: u64) -> bool {
        !self.ended.load(Ordering::Acquire) && self.hold().is_held_at(now)
    }

    pub(crate) fn remaining(&self) -> Duration {
        if is_forked() || self.ended.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let hold = self.hold();
        if hold.lost().is_some() {
            return Duration::ZERO;
        }
        Duration::from_nanos(hold.deadline().saturating_sub(clock::now()))
    }

    /// Returns how long the server will keep the hold, even if no thread wants it for that long.
    pub(crate) fn lease_left(&self) -> Duration {
        let ended = self.ended.load(Ordering::Acquire);
        let hold = self.hold();
        if ended || hold.lost().is_some() {
            return Duration::ZERO;
        }
        let until = hold.deadline.load(Ordering::SeqCst);
        Duration::from_nanos(until.saturating_sub(clock::now()))
    }

    pub(crate) fn state(&self) -> HoldState {
        if is_forked() {
            return HoldState::Lost(LostReason::Forked);
        }
        match *self.end.lock() {
            End::Lost(reason) => return HoldState::Lost(reason),
            End::Released => return HoldState::Released,
            End::NotYet(..) if self.ended.load(Ordering::Acquire) => return HoldState::Released,
            End::NotYet(..) => {}
        }
        let hold = self.hold();
        if let Some(reason) = hold.lost() {
            HoldState::Lost(reason)
        } else if clock::now() >= hold.deadline() {
            HoldState::Lost(LostReason::LeaseExpired)
        } else if hold.is_unconfirmed() {
            HoldState::Unconfirmed
        } else {
            HoldState::Held
        }
    }

    /// Returns the description of a loss. If the lease ran out, the description also says why the
    /// client did not renew it.
    pub(crate) fn loss_message(&self, reason: LostReason, max_hold: Option<Duration>) -> String {
        if reason != LostReason::LeaseExpired {
            return reason.to_string();
        }
        let hold = self.hold();
        let trouble = hold.trouble();
        let held = clock::now().saturating_sub(self.began());
        let why = match (trouble, hold.terms.fixed_lease()) {
            (Some(cause), _) => format!("its renewals failed: {cause}"),
            (None, _) if hold.ends_before_lease() => {
                "it was a fixed one; the level that kept the shared hold for longer has ended"
                    .to_owned()
            }
            // A level or an extension has made the lease longer, but may have ended before.
            (None, Some(lease)) if hold.longest_lease() > lease => "it was a fixed one".to_owned(),
            (None, Some(lease)) => format!("it was a fixed one, of {lease:?}"),
            (None, None) if self.thread.is_dead() => {
                "the thread that took the lock has ended, so it was not renewed".to_owned()
            }
            (None, None) => match max_hold {
                Some(longest) if held >= clock::nanos(longest) => {
                    format!("it was held for longer than max_hold ({longest:?})")
                }
                _ => {
                    "it was not renewed in time: the process stood still or was too busy, or only \
                      levels with a fixed lease were left"
                        .to_owned()
                }
            },
        };
        format!("{reason} ({why})")
    }

    /// Registers `callback`, which is called once if the hold is lost. If the hold is already lost,
    /// returns the reason and the callback, which the caller must call.
    pub(crate) fn on_lost(&self, callback: LossCallback) -> Option<(LostReason, LossCallback)> {
        if is_forked() {
            return None;
        }
        let mut end = self.end.lock();
        if let End::Lost(reason) = *end {
            return Some((reason, callback));
        }
        if let Some(callbacks) = end.callbacks() {
            callbacks.losses.push(callback);
        }
        None
    }

    /// Registers the client's own handler of a loss. [`lose`](Self::lose) calls `own` directly,
    /// because on the callbacks' thread `own` could wait for users' callbacks, which may block.
    /// `own` must not block or run the user's code. If the tenancy is already lost, `own` is never
    /// called, so the caller must check the state after this call.
    pub(crate) fn at_loss(&self, own: LossCallback) {
        if let Some(callbacks) = self.end.lock().callbacks() {
            callbacks.own = Some(own);
        }
    }

    /// Registers `callback`, which is called each time that others begin to wait for the lock.
    pub(crate) fn on_wanted(&self, callback: WantedCallback) {
        if let Some(callbacks) = self.end.lock().callbacks() {
            callbacks.wanted.push((callback, false));
        }
    }

    /// Records whether others wait for the lock. If others wait, returns the callbacks that were
    /// not called since they began to wait. If the tenancy has callbacks, its hold `hold` asks the
    /// server from now on.
    pub(crate) fn update_wanted(&self, hold: &Hold, is_wanted: bool) -> Vec<WantedCallback> {
        let mut end = self.end.lock();
        let End::NotYet(Some(callbacks)) = &mut *end else { return Vec::new() };
        let fresh = callbacks.wanted.iter_mut().filter_map(|(callback, is_called)| {
            hold.look_by(hold.next_look());
            let was_called = std::mem::replace(is_called, is_wanted);
            (is_wanted && !was_called).then(|| Arc::clone(callback))
        });
        fresh.collect()
    }

    /// Records that the thread has left the hold. From here on its guards no longer report "held",
    /// because other threads may have the hold. The caller must then call
    /// [`finish_released`](Self::finish_released), [`lose`](Self::lose), or, after a wait,
    /// [`exchange`](Self::exchange).
    pub(crate) fn record_left(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Ends the tenancy as released. Returns the callbacks, which the caller must drop without
    /// calling them. The drop may run the user's code, so the caller must first give up any
    /// leadership and any mutex.
    pub(crate) fn finish_released(&self) -> Option<Vec<LossCallback>> {
        self.finish(End::Released).map(|(callbacks, _)| callbacks)
    }

    /// Ends the tenancy as lost, and calls the client's own handler. The caller must have no mutex.
    /// The first caller gets the callbacks, and must call them.
    pub(crate) fn lose(&self, reason: LostReason) -> Option<Vec<LossCallback>> {
        let (callbacks, own) = self.finish(End::Lost(reason))?;
        if let Some(own) = own {
            own(reason);
        }
        Some(callbacks)
    }

    /// Ends the tenancy as lost, logs the loss, and schedules its callbacks.
    pub(crate) fn declare_lost(&self, core: &Core, name: &Name, reason: LostReason) {
        if let Some(callbacks) = self.lose(reason) {
            #[cfg(soak_mutants)]
            if mutants::is("a loss that is not told") {
                return;
            }
            core.watchdog.log_lost(name, || self.loss_message(reason, core.config.max_hold));
            core.watchdog.queue_loss_callbacks(name, reason, callbacks);
            self.tell_lost(core, name, reason);
        }
    }

    /// Reports the loss to the observer, if the observer knows that the thread had the hold.
    /// Otherwise, [`observed`](Self::observed) reports the loss later.
    pub(crate) fn tell_lost(&self, core: &Core, name: &Name, reason: LostReason) {
        if self.reported.fetch_or(LOST, Ordering::SeqCst) & HAD == 0 {
            return;
        }
        core.observe_soon(Count::Lost, || {
            let (name, kind, held) = (name.clone(), self.hold().kind(), self.held());
            move |it| it.lost(&Event::of(&name, (kind, 1), held, reason))
        });
    }

    /// Reports to the observer that others have begun to wait for the lock.
    pub(crate) fn tell_wanted(&self, core: &Core, name: &Name) {
        core.observe_soon(Count::Wanted, || {
            let (name, kind, held) = (name.clone(), self.hold().kind(), self.held());
            move |it| it.wanted(&Event::of(&name, (kind, 1), held, ()))
        });
    }

    /// Records that the observer knows that the thread has the hold. If the hold is already lost,
    /// now reports the loss.
    pub(crate) fn observed(&self, core: &Core, name: &Name) {
        if self.reported.fetch_or(HAD, Ordering::SeqCst) == LOST
            && let HoldState::Lost(reason) = self.state()
        {
            self.tell_lost(core, name, reason);
        }
    }

    /// Ends the tenancy. The first caller gets the callbacks for a loss, and the client's own
    /// handler.
    fn finish(&self, how: End) -> Option<(Vec<LossCallback>, Option<LossCallback>)> {
        let mut end = self.end.lock();
        let End::NotYet(callbacks) = &mut *end else { return None };
        let TenancyCallbacks { mut losses, own, wanted } =
            callbacks.take().map_or_else(TenancyCallbacks::default, |all| *all);
        if !wanted.is_empty() {
            // The `on_wanted` callbacks are dropped together with the callbacks for a loss, because
            // each drop may run the user's code.
            losses.push(Box::new(move |_| drop(wanted)));
        }
        *end = how;
        self.ended.store(true, Ordering::Release);
        Some((losses, own))
    }
}

impl fmt::Debug for Tenancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenancy")
            .field("owner", &self.hold().owner)
            .field("thread", &self.thread)
            .field("state", &self.state())
            .finish()
    }
}

#[cfg(all(test, models))]
mod model_tests;
