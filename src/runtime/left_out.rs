//! The holds left to expire, which the client keeps until they end.

use std::collections::HashMap;
use std::sync::Arc;

use redlatch_client::sync::Mutex;

use super::Core;
use crate::lease::Task;

/// By owner number. `None`: the client has ended, and keeps nothing.
pub(super) struct LeftOut(Mutex<Option<HashMap<u64, Arc<dyn Task>>>>);

impl Default for LeftOut {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

impl Core {
    /// Keeps an owner's abandoned hold, until its task is done at `over` and calls
    /// [`left_no_more`](Self::left_no_more).
    pub(crate) fn leave_out(&self, owner: u64, over: u64, left: Arc<impl Task + 'static>) {
        let task: Arc<dyn Task> = left;
        let weak = Arc::downgrade(&task);
        let unneeded = match &mut *self.left_out.0.lock() {
            Some(kept) => kept.insert(owner, task),
            None => return,
        };
        drop(unneeded);
        // The wheel forgets the alarm with the task.
        let _alarm = self.watchdog.alarm(over, weak);
    }

    pub(crate) fn left_no_more(&self, owner: u64) {
        let left = self.left_out.0.lock().as_mut().and_then(|kept| kept.remove(&owner));
        drop(left);
    }

    /// The client has ended.
    pub(super) fn forget_left_holds(&self) {
        let left = self.left_out.0.lock().take();
        drop(left);
    }
}
