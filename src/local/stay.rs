//! A thread's stay in a lock over its waits on conditions: it leaves with all levels, and is back
//! with them later, in another hold.
//!
//! A guard names the tenancy in which its thread took the level. When the thread waits, that
//! tenancy ends; when the thread is back, it has another. Through the stay, the guards of all these
//! tenancies find the present one. A thread that never waits has no stay.

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Weak};

use redlatch_client::sync::Mutex;

use super::tenancy::{Callback, Tenancy};
use crate::error::LostReason;

/// See the module.
#[derive(Default)]
pub(crate) struct Stay {
    state: Mutex<StayState>,
}

#[derive(Default)]
struct StayState {
    /// The present tenancy. `None`: its thread waits, or could not come back.
    now: Option<Arc<Tenancy>>,
    /// Its thread lost the lock before it could leave it, and does not come back.
    lost: Option<LostReason>,
    /// Callbacks that a guard registered while there was no tenancy.
    callbacks: Vec<Callback>,
    /// Dropped when the thread has left again.
    until_it_leaves: Option<Box<dyn Any + Send>>,
}

impl Stay {
    /// The thread is about to leave `tenancy`, to wait. The caller drops the second value once it
    /// has left.
    pub(crate) fn leaves(tenancy: &Tenancy) -> (Arc<Self>, Option<Box<dyn Any + Send>>) {
        let came_back_to = tenancy.end.lock().came_back_to.take();
        let stay = came_back_to.as_ref().and_then(Weak::upgrade).unwrap_or_default();
        let mut state = stay.state.lock();
        state.now = None;
        let until_it_leaves = state.until_it_leaves.take();
        drop(state);
        // Both under one mutex: the stay takes along the callbacks that the tenancy got before
        // this, and gets the later ones itself (see `on_lost_now`).
        let mut end = tenancy.end.lock();
        // A thread leaves a tenancy once, so none is set yet.
        let _ = tenancy.stay.set(Arc::clone(&stay));
        let callbacks = end.take_callbacks();
        drop(end);
        stay.state.lock().callbacks.extend(callbacks);
        (stay, until_it_leaves)
    }

    /// The thread is back. Returns the callbacks to call now, if the hold is lost already.
    pub(crate) fn comes_back(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        until_it_leaves: Option<Box<dyn Any + Send>>,
    ) -> Vec<(LostReason, Callback)> {
        tenancy.end.lock().came_back_to = Some(Arc::downgrade(self));
        let mut state = self.state.lock();
        state.now = Some(Arc::clone(tenancy));
        state.until_it_leaves = until_it_leaves;
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        callbacks.into_iter().filter_map(|callback| tenancy.on_lost(callback)).collect()
    }

    /// The thread has lost the lock before it could leave it. Returns the callbacks to call now.
    pub(crate) fn lose(&self, reason: LostReason) -> Vec<Callback> {
        let mut state = self.state.lock();
        state.lost = Some(reason);
        std::mem::take(&mut state.callbacks)
    }

    /// As [`Tenancy::on_lost`], for the present tenancy; keeps the callback for the next one while
    /// there is none.
    fn on_lost(&self, callback: Callback) -> Option<(LostReason, Callback)> {
        let mut state = self.state.lock();
        if let Some(now) = state.now.clone() {
            drop(state);
            return now.on_lost_now(callback);
        }
        if let Some(reason) = state.lost {
            return Some((reason, callback));
        }
        state.callbacks.push(callback);
        None
    }
}

impl Tenancy {
    /// The present tenancy of this one's guards: this one, or the one with which its thread came
    /// back from a wait.
    #[inline]
    pub(crate) fn of_now(self: &Arc<Self>) -> Cow<'_, Arc<Self>> {
        let now = self.stay.get().and_then(|stay| stay.state.lock().now.clone());
        now.map_or(Cow::Borrowed(self), Cow::Owned)
    }

    /// As [`on_lost`](Self::on_lost), for the present tenancy; the stay keeps the callback for the
    /// next one while the thread waits.
    pub(crate) fn on_lost_now(&self, callback: Callback) -> Option<(LostReason, Callback)> {
        // The thread may leave this tenancy at this moment. Without the mutex the callback could
        // stay behind in a tenancy that is over.
        let mut end = self.end.lock();
        let Some(stay) = self.stay.get() else { return end.on_lost(callback) };
        drop(end);
        stay.on_lost(callback)
    }
}

#[cfg(all(test, models))]
mod model_tests;
