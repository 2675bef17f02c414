//! A thread's stay in a lock over its waits on conditions: it leaves with all levels, and is back
//! with them later, in another hold.
//!
//! A guard names the tenancy in which its level was taken. When the thread waits, that tenancy
//! ends; when it is back it has another. The stay is how the guards of all of them find the one of
//! now. Who never waits has none.

use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Weak};

use super::{Callback, Tenancy};
use crate::error::LostReason;
use crate::sync::Mutex;

/// See the module.
#[derive(Default)]
pub(crate) struct Stay {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None`: its thread waits, or could not come back.
    now: Option<Arc<Tenancy>>,
    /// Its thread lost the lock before it could leave it, and is not to come back.
    lost: Option<LostReason>,
    /// Given by a guard while nobody was there to be lost.
    callbacks: Vec<Callback>,
    /// Dropped when the thread has left again.
    until_it_leaves: Option<Box<dyn Any + Send>>,
}

impl Stay {
    /// The thread is about to leave `tenancy`, to wait. The second is to be dropped when it has.
    pub(crate) fn leaves(tenancy: &Tenancy) -> (Arc<Self>, Option<Box<dyn Any + Send>>) {
        let came_back_to = tenancy.end.lock().came_back_to.take();
        let stay = came_back_to.as_ref().and_then(Weak::upgrade).unwrap_or_default();
        let mut state = stay.state.lock();
        state.now = None;
        let until_it_leaves = state.until_it_leaves.take();
        drop(state);
        // Both at once: what the tenancy was given before this is taken along, and what it is given
        // later comes here (see `on_lost_now`).
        let mut end = tenancy.end.lock();
        // The thread leaves a tenancy once, so nothing is there.
        let _ = tenancy.stay.set(Arc::clone(&stay));
        let callbacks = end.take_callbacks();
        drop(end);
        stay.state.lock().callbacks.extend(callbacks);
        (stay, until_it_leaves)
    }

    /// The thread is back. Those that are to be called now, as the hold is lost already.
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

    /// The thread has lost the lock before it could leave it. Those that are to be called now.
    pub(crate) fn lose(&self, reason: LostReason) -> Vec<Callback> {
        let mut state = self.state.lock();
        state.lost = Some(reason);
        std::mem::take(&mut state.callbacks)
    }

    /// Kept for the next tenancy while there is none.
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
    /// The tenancy that a guard of this one is a guard of now: this one, or the one its thread came
    /// back with from a wait.
    pub(crate) fn of_now(self: &Arc<Self>) -> Cow<'_, Arc<Self>> {
        let now = self.stay.get().and_then(|stay| stay.state.lock().now.clone());
        now.map_or(Cow::Borrowed(self), Cow::Owned)
    }

    /// As [`on_lost`](Self::on_lost), of the tenancy of now; kept for the next one while the thread
    /// waits.
    pub(crate) fn on_lost_now(&self, callback: Callback) -> Option<(LostReason, Callback)> {
        // Its thread may leave it at this moment: seen under the mutex, or the callback would stay
        // behind in a tenancy that is over.
        let mut end = self.end.lock();
        let Some(stay) = self.stay.get() else { return end.on_lost(callback) };
        drop(end);
        stay.on_lost(callback)
    }
}

#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;
