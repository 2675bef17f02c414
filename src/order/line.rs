//! The threads of this process that have entries in a fair lock's queue. One such thread may pass a
//! hold to the next without a request to the server.

use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::{Mutex, Thread, Waker};

use crate::ask::Messages;
use crate::hold::{Hold, Tenancy, Terms};
use crate::scripts::Owner;
use crate::scripts::fair::Followers;
use crate::waiting::Wake;

/// A thread may pass a hold only within this time after the hold's request was sent, in
/// nanoseconds.
const FRESH: u64 = 10_000_000;

/// The threads of this process that have entries in the queue of one name. The gate's mutex guards
/// this value.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub(crate) queued: Vec<Arc<QueuedThread>>,
    /// The waker of the thread that has delayed its request, so that other threads can join the
    /// request.
    lingering: Option<Waker>,
    /// The number of holds that threads are releasing now.
    pub(crate) releasing: usize,
}

impl Standing {
    /// Removes and returns the next thread in the hold's line, if it may have the hold now. The
    /// terms must be equal, and the hold must be younger than [`FRESH`]. If the next thread may not
    /// have the hold, it and all threads behind it wait for a grant from the server.
    pub(super) fn next(&mut self, hold: &Hold, now: u64) -> Option<Arc<QueuedThread>> {
        let line = hold.line.as_ref()?;
        if now.saturating_sub(hold.asked.at) > FRESH {
            return None;
        }
        let mut state = line.state.lock();
        loop {
            let next = state.followers.pop_front()?;
            // A thread that is not in `queued` has left the queue or is about to leave it. The
            // thread behind such a thread is next.
            let is_next = |queued: &Arc<QueuedThread>| queued.owner.number() == next;
            let Some(at) = self.queued.iter().position(is_next) else { continue };
            if !hold.may_pass(self.queued[at].terms, now) {
                state.followers.clear();
                return None;
            }
            let queued = self.queued.swap_remove(at);
            state.passed.push(queued.owner);
            return Some(queued);
        }
    }

    /// Whether threads of this process have entries in the queue or are releasing the lock.
    pub(super) fn is_busy(&self) -> bool {
        self.releasing > 0 || !self.queued.is_empty()
    }

    pub(crate) fn linger(&mut self, waker: Option<Waker>) {
        self.lingering = waker;
    }

    /// Wakes the lingering thread if no other thread can still join its request. The caller calls
    /// this after a thread has left.
    pub(crate) fn call(&self) -> Wake {
        let lingering = self.lingering.as_ref().filter(|_| !self.is_busy());
        lingering.map_or(Wake::NOBODY, Wake::of)
    }

    /// Removes a thread, so that no hold can be passed to it from now on. If a hold was already
    /// passed to it, returns the thread's tenancy.
    pub(crate) fn stand_down(&mut self, queued: &Arc<QueuedThread>) -> Option<Arc<Tenancy>> {
        self.queued.retain(|other| !Arc::ptr_eq(other, queued));
        queued.state.lock().passed_hold.take()
    }
}

/// A thread that has an entry in the queue. Other threads reach the thread through this value.
pub(crate) struct QueuedThread {
    pub(crate) lock: Arc<str>,
    pub(crate) database: i64,
    pub(crate) owner: Owner,
    /// The thread that holds what is passed to it.
    pub(crate) thread: Arc<Thread>,
    pub(crate) waker: Waker,
    pub(crate) terms: Terms,
    pub(crate) state: Mutex<QueuedState>,
}

/// The part of a queued thread that other threads change.
pub(crate) struct QueuedState {
    /// The messages that the thread has not collected yet.
    pub(crate) messages: Messages<Followers>,
    /// Whether the server has answered "queued" to a request of the thread.
    pub(crate) is_queued: bool,
    /// The hold that was passed to the thread. This field is set under the gate's mutex, so a pass
    /// comes either before or after the thread gives up.
    pub(crate) passed_hold: Option<Arc<Tenancy>>,
    /// Whether a hold was passed to the thread. The thread then receives no more messages.
    got_pass: bool,
}

impl QueuedState {
    pub(crate) fn new() -> Self {
        Self { messages: Messages::new(), is_queued: false, passed_hold: None, got_pass: false }
    }
}

impl QueuedThread {
    /// Makes the thread send a request.
    pub(crate) fn prompt(&self) {
        self.wake_with(|messages| messages.must_ask = true);
    }

    /// Passes the hold to the thread. The thread still has its entry in Redis's queue. If a message
    /// later grants the lock to this entry, the passed hold is lost.
    pub(crate) fn pass(&self, tenancy: Arc<Tenancy>) -> Wake {
        let mut state = self.state.lock();
        (state.passed_hold, state.got_pass) = (Some(tenancy), true);
        Wake::of(&self.waker)
    }

    /// Adds a message and wakes the thread. Returns `false` if a hold was passed to the thread
    /// before, because the thread then collects no more messages.
    ///
    /// The mutex of `state` puts a grant message and a pass in order. If the grant comes first, the
    /// thread collects it before the passed hold (`FairEntry::collect`). If the pass comes first,
    /// this method refuses the grant, and the client gives the grant back.
    ///
    /// This method must check for a pass under the mutex. Without the mutex, the subscriber thread
    /// could find no pass. The waiting thread could then get a hold and collect messages for the
    /// last time, before the subscriber thread adds the grant. No thread would use that grant, and
    /// the lock would stay taken until the grant's lease ended.
    pub(crate) fn wake_with(&self, put: impl FnOnce(&mut Messages<Followers>)) -> bool {
        let mut state = self.state.lock();
        if state.got_pass {
            return false;
        }
        put(&mut state.messages);
        drop(state);
        self.wake();
        true
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }
}

impl fmt::Debug for QueuedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuedThread({})", self.owner)
    }
}
