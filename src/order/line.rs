//! The threads of this process that stand in a fair lock's queue. A hold may go from one to the
//! next without a request to the server.

use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::{Mutex, Thread};

use crate::ask::{Inbox, Received};
use crate::hold::{Hold, Tenancy, Terms};
use crate::scripts::Owner;
use crate::scripts::fair::Followers;
use crate::waiting::Wake;

/// How recent the server's last confirmation must be for a pass.
const FRESH: u64 = 10_000_000;

/// The threads of this process that stand in the queue of one name, behind the gate's mutex.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub(crate) queued: Vec<Arc<QueuedThread>>,
    /// The thread that waits for others before it asks.
    lingering: Option<Arc<Thread>>,
    /// The number of holds that threads are giving back now.
    pub(crate) releasing: usize,
}

impl Standing {
    /// Removes and returns the thread that is next in a hold's line, if it may have the hold now.
    /// The pass must be fresh, on equal terms, and in the queue's order. If the next thread may not
    /// have the hold, it and all behind it wait for the server's grant.
    pub(super) fn next(&mut self, hold: &Hold, now: u64) -> Option<Arc<QueuedThread>> {
        let line = hold.line.as_ref()?;
        if now.saturating_sub(hold.asked.at) > FRESH {
            return None;
        }
        let mut state = line.state.lock();
        loop {
            let next = state.followers.pop_front()?;
            // A thread that is gone has left the queue or is about to, so the thread behind it is
            // next.
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

    /// Whether threads of this process stand in the queue or are giving the lock back.
    pub(super) fn is_busy(&self) -> bool {
        self.releasing > 0 || !self.queued.is_empty()
    }

    pub(crate) fn linger(&mut self, thread: Option<&Arc<Thread>>) {
        self.lingering = thread.cloned();
    }

    /// Wakes the lingering thread if no thread is left for it to wait for. Called when a thread is
    /// gone.
    pub(crate) fn call(&self) -> Wake {
        let lingering = self.lingering.as_ref().filter(|_| !self.is_busy());
        lingering.map_or(Wake::NOBODY, Wake::thread)
    }

    /// Removes a thread, so that no hold is passed to it. `Some`: the hold that was passed to it
    /// before.
    pub(crate) fn stand_down(&mut self, queued: &Arc<QueuedThread>) -> Option<Arc<Tenancy>> {
        self.queued.retain(|other| !Arc::ptr_eq(other, queued));
        queued.inbox.lock().passed.take()
    }
}

/// A thread that stands in the queue, for the threads that send it messages.
pub(crate) struct QueuedThread {
    pub(crate) lock: Arc<str>,
    pub(crate) database: i64,
    pub(crate) owner: Owner,
    pub(crate) thread: Arc<Thread>,
    pub(crate) terms: Terms,
    pub(crate) inbox: Mutex<FairInbox>,
}

pub(crate) struct FairInbox {
    /// The messages that the thread has not collected.
    pub(crate) messages: Inbox<Followers>,
    /// Whether a request was answered "queued".
    pub(crate) is_queued: bool,
    /// The hold that was passed to the thread. It is set under the gate's mutex, which decides
    /// between the pass and the thread's giving up.
    pub(crate) passed: Option<Arc<Tenancy>>,
    /// Whether a hold was passed to the waiter, which then receives no more messages.
    was_passed: bool,
}

impl FairInbox {
    pub(crate) fn new() -> Self {
        Self { messages: Inbox::new(), is_queued: false, passed: None, was_passed: false }
    }
}

impl QueuedThread {
    /// Makes the thread send a request.
    pub(crate) fn prompt(&self) {
        self.wake_with(Received::Missed);
    }

    /// Passes the hold to the thread. The thread still stands in Redis's queue, so if a message
    /// grants it the lock from here on, it has lost this hold.
    pub(crate) fn pass(&self, tenancy: Arc<Tenancy>) -> Wake {
        let mut inbox = self.inbox.lock();
        (inbox.passed, inbox.was_passed) = (Some(tenancy), true);
        Wake::thread(&self.thread)
    }

    /// Puts a message in the inbox and wakes the thread. `false`: a hold was passed to the waiter,
    /// so no thread will read the message.
    ///
    /// The inbox's mutex decides: a grant that comes before the pass is put among the received, and
    /// the thread collects it before the passed hold (`FairEntry::collect`). A grant that comes after
    /// the pass is refused here, and the client gives it back. The subscriber's thread may have
    /// looked the waiter up before the pass. If it then put the grant in after the waiter's last
    /// look, the lock would belong to an owner that no thread has, until the grant ends.
    pub(crate) fn wake_with(&self, received: Received<Followers>) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.was_passed {
            return false;
        }
        inbox.messages.receive(received);
        drop(inbox);
        self.thread.waker().wake();
        true
    }
}

impl fmt::Debug for QueuedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuedThread({})", self.owner)
    }
}
