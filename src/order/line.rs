//! The threads of this process that stand in a fair lock's queue, and how a hold goes from one to
//! the next without the server.

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
    /// The number of holds that threads are just giving back.
    pub(crate) releasing: usize,
}

impl Standing {
    /// Takes out the thread that is next in a hold's line, if it may have the hold now: a fresh
    /// pass, on equal terms, and in the queue's order. Behind a thread that may not have the hold
    /// now, all threads wait for the server's grant.
    pub(super) fn next(&mut self, hold: &Hold, now: u64) -> Option<Arc<QueuedThread>> {
        let line = hold.line.as_ref()?;
        if now.saturating_sub(hold.asked.at) > FRESH {
            return None;
        }
        let mut state = line.state.lock();
        loop {
            let next = state.followers.pop_front()?;
            // A thread that is gone has left the queue, or is about to: the thread behind it is
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

    /// Whether threads of this process stand in the queue, or give the lock back just now.
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

    /// From here on no hold is passed to the thread. `Some`: a hold that was passed before.
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
    /// The messages that it has not collected.
    pub(crate) messages: Inbox<Followers>,
    /// A request was answered "queued".
    pub(crate) is_queued: bool,
    /// A hold passed to it. Set under the gate's mutex, which decides between the pass and the
    /// thread's giving up.
    pub(crate) passed: Option<Arc<Tenancy>>,
    /// A hold was passed to it: from then on it receives no message.
    was_passed: bool,
}

impl FairInbox {
    pub(crate) fn new() -> Self {
        Self { messages: Inbox::new(), is_queued: false, passed: None, was_passed: false }
    }
}

impl QueuedThread {
    /// It should send a request.
    pub(crate) fn prompt(&self) {
        self.wake_with(Received::Missed);
    }

    /// A thread passes it the hold. It still stands in the server's queue: if a message grants it
    /// the lock from here on, it has lost this hold.
    pub(crate) fn pass(&self, tenancy: Arc<Tenancy>) -> Wake {
        let mut inbox = self.inbox.lock();
        (inbox.passed, inbox.was_passed) = (Some(tenancy), true);
        Wake::thread(&self.thread)
    }

    /// `false`: a hold was passed to it, so no thread collects this.
    ///
    /// The inbox's mutex decides: each grant is either received before the pass, and then the thread
    /// collects it before the passed hold (`FairEntry::collect`), or it is refused here, and the
    /// client gives it back. The subscriber's thread may have looked the waiter up before the pass:
    /// if the grant were put in then, behind the thread's last look, the lock would be that of an
    /// owner which no thread has, until the grant ends.
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
