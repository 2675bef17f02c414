//! How a process passes a fair hold on between its threads, and gives it back.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::Command;
use redlatch_client::sync::{Mutex, clock};

use super::entry::QueuedThread;
use super::queue::FairQueue;
use crate::local::{Hold, Line, Registered, Tenancy, Terms};
use crate::scripts::Owner;
use crate::scripts::fair::Followers;
use crate::waiting::Wake;

/// How recent the server's last confirmation must be for a pass.
const FRESH: u64 = 10_000_000;

/// The threads of this process that may have a fair hold after its owner: those directly behind it.
/// A fair lock has no turns, since Redis has its order: the grant names these threads.
pub(super) struct FairLine {
    queue: Arc<FairQueue>,
    state: Mutex<LineState>,
}

struct LineState {
    followers: Followers,
    /// Owners that had the hold. They leave the queue when it is released.
    passed: Vec<Owner>,
}

impl FairLine {
    pub(super) fn new(queue: Arc<FairQueue>, followers: Followers) -> Self {
        let state = LineState { followers, passed: Vec::new() };
        Self { queue, state: Mutex::new(state) }
    }
}

impl Line for FairLine {
    /// A fresh pass, on equal terms, and in the queue's order: behind a thread that may not have
    /// the hold now, all threads wait for the server's grant.
    fn pass(
        &self,
        hold: &Arc<Hold>,
        seat: &mut dyn FnMut(&Arc<Tenancy>, Terms) -> bool,
    ) -> Option<Wake> {
        let passed = self.pass_on(hold, seat);
        if passed.is_none() {
            self.queue.waiters.lock().releasing += 1;
        }
        passed
    }

    fn has_passed(&self) -> bool {
        !self.state.lock().passed.is_empty()
    }

    fn release_command(&self, hold: &Hold) -> Command {
        self.queue.scripts().release_command(&hold.owner, &self.state.lock().passed)
    }

    fn give_up_command(&self, hold: &Hold) -> Command {
        self.queue.scripts().give_up_command(&hold.owner.text())
    }

    fn released(&self) {
        let mut waiters = self.queue.waiters.lock();
        waiters.releasing = waiters.releasing.saturating_sub(1);
        let call = waiters.call();
        drop(waiters);
        call.now();
    }

    fn keep_command(&self, hold: &Hold, rest: Duration) -> Command {
        self.queue.scripts().keep_command(&hold.owner, rest, &self.state.lock().passed)
    }
}

impl FairLine {
    fn pass_on(
        &self,
        hold: &Arc<Hold>,
        seat: &mut dyn FnMut(&Arc<Tenancy>, Terms) -> bool,
    ) -> Option<Wake> {
        let now = clock::now();
        if now.saturating_sub(hold.asked.at) > FRESH || hold.is_unconfirmed() {
            return None;
        }
        let mut waiters = self.queue.waiters.lock();
        let mut line = self.state.lock();
        loop {
            let next = line.followers.pop_front()?;
            // A thread that is gone has left the queue, or is about to: the thread behind it is
            // next.
            let is_next =
                |queued: &Arc<Registered<QueuedThread>>| queued.recipient.owner.number() == next;
            let Some(at) = waiters.queued.iter().position(is_next) else { continue };
            let queued = Arc::clone(&waiters.queued[at]);
            let QueuedThread { owner, thread, terms, inbox, .. } = &queued.recipient;
            if !hold.may_pass(*terms, now) {
                line.followers.clear();
                return None;
            }
            let tenancy = Arc::new(Tenancy::new(Arc::clone(hold), Arc::clone(thread)));
            if !seat(&tenancy, *terms) {
                // The hold was lost at this very moment: the next thread learns that from the
                // server.
                queued.recipient.ask();
                return None;
            }
            waiters.queued.swap_remove(at);
            // The thread still stands in the server's queue. If a message grants it the lock from
            // here on, it has lost this hold.
            self.queue.site.core.recipients.remove(owner.number());
            inbox.lock().passed = Some(tenancy);
            line.passed.push(*owner);
            return Some(Wake::thread(thread));
        }
    }
}

impl fmt::Debug for FairLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairLine").field("name", &self.queue.site.name).finish_non_exhaustive()
    }
}
