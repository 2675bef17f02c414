//! The threads of this process that stand in a fair lock's queue, and how a hold goes from one to
//! the next without the server.

use std::fmt;
use std::sync::{Arc, Weak};

use redlatch_client::Command;
use redlatch_client::sync::{Mutex, Thread, clock};

use crate::ask::{Grant, Inbox, Told};
use crate::hold::line::scripts;
use crate::hold::{Hold, Tenancy, Terms};
use crate::lease::Cleanup;
use crate::runtime::{Core, GrantMessage, Message, Recipient};
use crate::scripts::fair::{FairScripts, Followers, followers};
use crate::scripts::{FairKeys, Owner};
use crate::waiting::Wake;

/// How recent the server's last confirmation must be for a pass.
const FRESH: u64 = 10_000_000;

/// The threads of this process that stand in the queue of one name, behind the gate's mutex.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub(super) queued: Vec<Arc<QueuedThread>>,
    /// The thread that waits for others before it asks.
    lingering: Option<Arc<Thread>>,
    /// The number of holds that threads are just giving back.
    pub(super) releasing: usize,
}

impl Standing {
    /// Takes the thread out that is next in a hold's line, if it may have the hold now: a fresh
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

    pub(super) fn linger(&mut self, thread: Option<&Arc<Thread>>) {
        self.lingering = thread.cloned();
    }

    /// Wakes the lingering thread if no thread is left for it to wait for. Called when a thread is
    /// gone.
    pub(super) fn call(&self) -> Wake {
        let lingering = self.lingering.as_ref().filter(|_| !self.is_busy());
        lingering.map_or(Wake::NOBODY, Wake::thread)
    }

    /// From here on no hold is passed to the thread. `Some`: a hold that was passed before.
    pub(super) fn stand_down(&mut self, queued: &Arc<QueuedThread>) -> Option<Arc<Tenancy>> {
        self.queued.retain(|other| !Arc::ptr_eq(other, queued));
        queued.inbox.lock().passed.take()
    }
}

/// A thread that stands in the queue, for the threads that send it messages.
pub(crate) struct QueuedThread {
    pub(crate) core: Weak<Core>,
    pub(crate) lock: Arc<str>,
    pub(crate) database: i64,
    pub(crate) owner: Owner,
    pub(crate) thread: Arc<Thread>,
    pub(crate) terms: Terms,
    pub(crate) inbox: Mutex<FairInbox>,
}

pub(crate) struct FairInbox {
    /// The messages that it has not read.
    pub(crate) unread: Inbox<Followers>,
    /// A request was answered "queued".
    pub(crate) is_queued: bool,
    /// A hold passed to it. Set under the gate's mutex, which decides between the pass and the
    /// thread's giving up.
    pub(crate) passed: Option<Arc<Tenancy>>,
}

impl FairInbox {
    pub(crate) fn new() -> Self {
        Self { unread: Inbox::new(), is_queued: false, passed: None }
    }
}

impl QueuedThread {
    /// It should send a request.
    pub(crate) fn ask(&self) {
        self.tell(Told::Missed);
    }

    /// A thread passes it the hold. It still stands in the server's queue: if a message grants it
    /// the lock from here on, it has lost this hold.
    pub(super) fn pass(&self, tenancy: Arc<Tenancy>) -> Wake {
        self.core.upgrade().inspect(|core| core.recipients.remove(self.owner.number()));
        self.inbox.lock().passed = Some(tenancy);
        Wake::thread(&self.thread)
    }

    fn tell(&self, told: Told<Followers>) {
        self.inbox.lock().unread.told(told);
        self.thread.waker().wake();
    }
}

impl Recipient for Arc<QueuedThread> {
    fn told(&self, news: &Message<'_>) {
        match news {
            Message::Ask { .. } => self.ask(),
            Message::Grant(grant)
                if (grant.database, grant.lock) == (self.database, &*self.lock) =>
            {
                let Some(details) = followers(grant.details) else { return };
                let (now, lease, received) = (grant.now, grant.lease, clock::now());
                self.tell(Told::Grant(Grant { now, received, lease, details }));
            }
            // `x` and `{x}` have one queue: the waiter was granted the other lock, and has lost its
            // place. The next sign of life finds that out. If it asked at once, the two locks might
            // send it to and fro.
            Message::Grant(grant) => {
                let core = self.core.upgrade();
                core.inspect(|core| give_back_unclaimed(core, self.owner.number(), grant));
            }
            Message::Open { .. } | Message::Notified { .. } => {}
        }
    }
}

impl fmt::Debug for QueuedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuedThread({})", self.owner)
    }
}

/// Handles a message for an owner of this client that does not wait. No thread has its entry: a
/// request came late, or its passed hold was revoked. A hold of that owner stays.
pub(crate) fn take_out(core: &Core, owner: u64, lock: &str) {
    give_up(core, owner, lock, |scripts, owner| scripts.leave_command(owner));
}

/// The same for a grant: no thread takes the lock, so the client gives it back.
pub(crate) fn give_back_unclaimed(core: &Core, owner: u64, grant: &GrantMessage<'_>) {
    // Another kind of lock has other details.
    if grant.database == core.database() && followers(grant.details).is_some() {
        give_up(core, owner, grant.lock, |scripts, owner| scripts.give_up_command(owner));
    }
}

fn give_up(core: &Core, owner: u64, lock: &str, command: fn(FairScripts<'_>, &[u8]) -> Command) {
    if core.is_shut_down() {
        return;
    }
    let keys = FairKeys::new(lock);
    let owner = format!("{}:{owner}", core.id.as_str());
    let command = command(scripts(core, lock, &keys), owner.as_bytes());
    core.watchdog.clean_up(Cleanup::unclaimed(&Arc::from(lock), command));
}
