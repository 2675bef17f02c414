//! One thread's entry in a fair lock's queue. The entry exists until it becomes a hold or the wait
//! ends.
//!
//! The entry is in the process's list before Redis has it. From then on, another thread of the
//! process may pass its hold to the entry. A grant or a passed hold wakes the entry's thread, which
//! then need not ask the server. After a message of redlatch's or Redisson's scripts, and after a
//! reconnect, the thread sends another request. The first thread in the queue also sends one when
//! the holder's lease ends.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::{Mutex, Thread, clock, is_forked};
use redlatch_client::was_cut;

use super::queue::FairQueue;
use crate::ask::{Asked, By, Collector, EntryReply, Messages, ValidGrant};
use crate::error::Error;
use crate::hold::{GrantDetails, Hold, Tenancy, Terms};
use crate::lease::Cleanup;
use crate::order::line::{QueuedState, QueuedThread};
use crate::runtime::Core;
use crate::scripts::fair::{FairAcquired, Followers, Others, over};
use crate::scripts::{Replied, Trouble};
use crate::site::{Leaving, QueueEntry, Site};
use crate::waiting::{Lead, Listening, QueueLeadership, QueueSite, Try, slow_poll};

/// The minimum time until a queued waiter sends its next request.
const MIN_ASK_INTERVAL: Duration = Duration::from_millis(20);

/// A thread's entry. If the entry has not become a hold, its drop removes it from the queue.
pub(crate) struct FairEntry {
    queue: Arc<FairQueue>,
    /// The entry at the server, with its owner. It can receive messages from the moment before its
    /// first request is sent. (If the thread does not wait, its entry receives no messages.)
    pub(super) entry: QueueEntry<Followers, Arc<QueuedThread>>,
    thread: Arc<Thread>,
    terms: Terms,
    /// The leadership of the newcomers, if the thread leads them.
    leadership: Option<QueueLeadership>,
    /// Whether the server has answered "queued" to a request.
    was_queued: bool,
    /// Whether the entry has become a hold.
    became_hold: bool,
}

impl FairEntry {
    pub(super) fn new(
        queue: &Arc<FairQueue>,
        thread: &Arc<Thread>,
        terms: Terms,
        leadership: Option<QueueLeadership>,
    ) -> Self {
        Self {
            queue: Arc::clone(queue),
            entry: QueueEntry::new(&queue.site, terms),
            thread: Arc::clone(thread),
            terms,
            leadership,
            was_queued: false,
            became_hold: false,
        }
    }

    /// Returns how long the thread delays its request so that other threads can join it.
    pub(super) fn linger(&self) -> Duration {
        self.leadership.as_ref().map_or(Duration::ZERO, |_| self.queue.linger(self.thread.waker()))
    }

    /// Whether the mailbox has a message or a passed hold. A thread that has sent no request yet
    /// has no mailbox. For such a thread, returns whether it leads and no other thread is about to
    /// join its request, because the process neither has the lock nor waits for it.
    pub(super) fn may_collect(&self) -> bool {
        let Some(queued) = &self.entry.mailbox else {
            return self.leadership.is_some() && !self.queue.is_busy();
        };
        let state = queued.recipient.state.lock();
        !state.messages.is_empty() || state.passed_hold.is_some()
    }

    /// Collects the messages, or a passed hold. Returns the tenancy if the thread was granted the
    /// lock and the grant is still valid.
    pub(super) fn collect(&mut self, listening: &mut Listening) -> Option<Arc<Tenancy>> {
        let mut state = self.entry.mailbox.as_ref()?.recipient.state.lock();
        let messages = state.messages.take();
        // If a message is a grant, a passed hold stays in the mailbox. If the grant is no longer
        // valid, the thread sends a request.
        let passed = if messages.grant.is_some() { None } else { state.passed_hold.take() };
        drop(state);
        if messages.is_empty() {
            return passed;
        }
        let (now, collector) = (clock::now(), Collector::now(&self.queue.site, self.terms));
        let granted = self.entry.machine.collect(now, messages, collector);
        listening.ask_by(self.entry.machine.ask_at());
        granted.map(|granted| self.make_tenancy(granted)).or(passed)
    }

    /// Sends one request. If the thread leads the newcomers, its first request is also for its
    /// companions: the other newcomers.
    pub(super) fn ask(&mut self, listening: &mut Listening) -> Result<Try<Arc<Tenancy>>, Error> {
        let queue = Arc::clone(&self.queue);
        let (site, lease) = (&queue.site, self.terms.lease());
        let mut companions =
            if self.leadership.is_some() { queue.companions() } else { Vec::new() };
        // The entries are in the list before the request is sent, because messages to their owners
        // may arrive before the reply.
        let (asked, version) = (Asked::now(site), site.core.pubsub.own_version(&site.name));
        self.enlist(listening, version);
        self.entry.machine.begin_request(asked, lease, false);
        for Lead { listening, request_state } in companions.iter_mut().map(|(_, lead)| lead) {
            request_state.enlist(listening, version);
            request_state.entry.machine.begin_request(asked, lease, false);
        }
        let owners = companions.iter().map(|(_, lead)| lead.request_state.entry.owner);
        let owners: Vec<_> = owners.collect();
        let others = if self.was_queued {
            Others::Omitted
        } else {
            // Whether this is the client's first waiter, and the client does not listen yet. The
            // script marks such a waiter. (A later waiter of the client needs no mark: when it
            // becomes the first in the queue, the client listens or is dead.)
            let is_not_listening =
                !site.core.pubsub.is_own_confirmed(&site.name) && !queue.has_queued();
            Others::Companions { owners: &owners, is_not_listening }
        };
        let replied = queue.scripts().acquire(&site.route, &self.entry.owner, lease, others);
        if let Some(leadership) = self.leadership.take() {
            let answered = companions.into_iter().enumerate().map(|(at, (newcomer, mut lead))| {
                let reply = companion_reply(&replied, at, lease);
                if was_cut() {
                    // The leader's own limit ended its request. The companions have other limits,
                    // so each of them now sends its own request.
                    lead.request_state.entry.request_failed(reply.err().as_ref());
                    return (newcomer, Ok(lead));
                }
                let answer =
                    lead.request_state.answered(&mut lead.listening, reply).map(|answer| {
                        if let Try::Busy(sleep) = answer {
                            lead.listening.ask_after(sleep);
                        }
                        lead
                    });
                (newcomer, answer)
            });
            queue.answer(answered.collect(), leadership);
        }
        self.answered(listening, replied)
    }

    /// Takes the lock if it is free and no thread waits. Leaves no entry in the queue.
    pub(super) fn ask_once(&mut self) -> Result<Try<Arc<Tenancy>>, Error> {
        let Self { queue, entry, terms, .. } = self;
        let lease = terms.lease();
        entry.machine.begin_request(Asked::now(&queue.site), lease, false);
        let replied = queue.scripts().try_acquire(&queue.site.route, &entry.owner, lease);
        let Replied { reply: taken, in_doubt, unacknowledged } = self.reply_of(replied)?;
        let (already, waits, details) = (false, false, Followers::new());
        let granted = EntryReply::Granted { already, lease, waits, details };
        let reply = if taken { granted } else { EntryReply::NotTaken };
        self.handle_reply(reply, in_doubt, unacknowledged.filter(|_| taken))
    }
}

/// The steps of a request.
impl FairEntry {
    /// Adds the entry to the process's list, before the request for the entry is sent. From here
    /// on, a thread may pass its hold to the entry, and the keep-alive includes the entry. If the
    /// client may have missed messages on its own channel since `version`, the thread asks
    /// again.
    fn enlist(&mut self, listening: &mut Listening, version: Option<u64>) {
        listening.own.note_version(version);
        if self.entry.mailbox.is_some() {
            return;
        }
        let site = &self.queue.site;
        let queued = Arc::new(QueuedThread {
            lock: Arc::clone(&site.name),
            database: site.core.database(),
            owner: self.entry.owner,
            thread: Arc::clone(&self.thread),
            waker: self.thread.waker(),
            terms: self.terms,
            state: Mutex::new(QueuedState::new()),
        });
        let registered = site.core.recipients.register(queued.owner.number(), Arc::clone(&queued));
        self.entry.mailbox = Some(registered);
        self.queue.enlist(queued);
    }

    /// Restores this thread's entry, which the server has lost. All waiters of this process may
    /// have lost their entries. So one waiter sends a request for all of them, and the others need
    /// no request. If the request fails, the next keep-alive detects the missing entries.
    fn requeue_all(&mut self, listening: &mut Listening) -> Result<Try<Arc<Tenancy>>, Error> {
        let queue = Arc::clone(&self.queue);
        let Some(requeue) = queue.begin_requeue(&self.entry.owner) else {
            return Ok(Try::Busy(Self::slow_poll_interval(&queue.site.core)));
        };
        let (site, lease) = (&queue.site, self.terms.lease());
        self.entry.machine.begin_request(Asked::now(site), lease, false);
        let others = Others::Requeued(&requeue.owners);
        let replied = queue.scripts().acquire(&site.route, &self.entry.owner, lease, others);
        let needs_no_request = |replied: &Replied<FairAcquired>| match replied.reply {
            FairAcquired::Queued { by_redisson, .. } => !by_redisson,
            FairAcquired::Granted { .. } => true,
            FairAcquired::Missing { .. } => false,
        };
        if !replied.as_ref().is_ok_and(needs_no_request) {
            // Redisson's clients may send messages to the other waiters, so each waiter has to send
            // its own request and subscribe to its own channel.
            queue.ask_all_but(&self.entry.owner);
        }
        drop(requeue);
        self.answered(listening, replied)
    }

    /// The time after which a queued waiter sends its request again if it receives no message.
    fn slow_poll_interval(core: &Core) -> Duration {
        slow_poll() + core.config.fair_wait_timeout * 2
    }

    fn answered(
        &mut self,
        listening: &mut Listening,
        replied: Result<Replied<FairAcquired>, Trouble>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let Replied { reply, in_doubt, unacknowledged } = self.reply_of(replied)?;
        match reply {
            FairAcquired::Granted { already, followers: details, .. } => {
                let lease = self.terms.lease();
                let reply = EntryReply::Granted { already, lease, waits: true, details };
                self.handle_reply(reply, in_doubt, unacknowledged)
            }
            FairAcquired::Queued { now, ask_after, by_redisson, was_requeued } => {
                self.was_queued = true;
                if let Some(queued) = &self.entry.mailbox {
                    queued.recipient.state.lock().is_queued = true;
                }
                let Site { core, name, .. } = &*self.queue.site;
                let latest = Listening::latest(core);
                listening.own.subscribe(latest, || core.pubsub.listen_to_own(name));
                if by_redisson {
                    // A release by Redisson sends its message on a channel of this waiter alone. If
                    // no Redisson client is ahead of this waiter, the waiter needs no such channel:
                    // later Redisson clients queue behind it.
                    let channel = self.queue.redissons_channel(&self.entry.owner);
                    listening.public.subscribe(latest, || core.pubsub.listen_once(&channel));
                }
                // The process's keep-alive detects lost messages, so its waiters need not poll. The
                // server's reply names an earlier time only to the first waiters in the queue.
                let sleep = ask_after.map_or_else(
                    || Self::slow_poll_interval(core),
                    |ask| ask.max(MIN_ASK_INTERVAL),
                );
                self.handle_reply(
                    EntryReply::FairQueued { now, sleep, came_back: was_requeued },
                    in_doubt,
                    None,
                )
            }
            FairAcquired::Missing { now } => {
                let (sleep, was_requeued) = (Duration::ZERO, false);
                self.handle_reply(
                    EntryReply::FairQueued { now, sleep, came_back: was_requeued },
                    in_doubt,
                    None,
                )?;
                self.requeue_all(listening)
            }
        }
    }

    /// Returns the reply to a request, or an error if the server has not answered.
    fn reply_of<T>(&mut self, replied: Result<Replied<T>, Trouble>) -> Result<Replied<T>, Error> {
        replied.map_err(|trouble| {
            self.entry.request_failed(Some(&trouble));
            self.queue.trouble(trouble)
        })
    }

    /// Gives the server's reply to the entry's state machine. `unacknowledged` is the error if too
    /// few replicas have the grant.
    fn handle_reply(
        &mut self,
        reply: EntryReply<Followers>,
        in_doubt: bool,
        unacknowledged: Option<Error>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        if let Some(unacknowledged) = unacknowledged {
            return Err(self.give_back(in_doubt, unacknowledged));
        }
        let (queue, now) = (Arc::clone(&self.queue), clock::now());
        let (_, tried) = self.entry.request_answered(&queue.site, now, reply, in_doubt)?;
        Ok(tried.map(|granted| self.make_tenancy(granted)))
    }

    /// Makes a hold and its first tenancy from the grant.
    fn make_tenancy(&mut self, granted: ValidGrant<Followers>) -> Arc<Tenancy> {
        let ValidGrant { asked, lease, in_doubt, by } = granted;
        let hold = Hold::granted(self.entry.owner, self.terms, lease, asked, in_doubt);
        let followers = match by {
            By::Reply { message, details, .. } => message.unwrap_or(details),
            By::Message { details, .. } => details,
        };
        let hold = hold
            .with_details(GrantDetails::default(), self.entry.registered())
            .in_line(self.queue.line(followers));
        let hold = hold.of_live(&mut self.entry.live);
        Arc::new(Tenancy::new(hold, Arc::clone(&self.thread)))
    }

    /// Gives back a grant that too few replicas have, and gives up the old entry. The thread's next
    /// request makes a new entry at the end of the queue, under a new owner.
    fn give_back(&mut self, in_doubt: bool, unacknowledged: Error) -> Error {
        let (passed, queue) = (self.stand_down(), Arc::clone(&self.queue));
        let mut used = std::mem::replace(&mut self.entry, QueueEntry::new(&queue.site, self.terms));
        self.was_queued = false;
        if let Some(tenancy) = passed {
            let _ = queue.site.leave(&tenancy, None, Leaving::Posted);
        }
        used.machine.unacknowledged(in_doubt);
        let left =
            used.end_owner(Messages::new(), |owner, _| queue.scripts().give_up_command(owner));
        queue.site.give_back(left, Cleanup::queued, unacknowledged)
    }
}

/// The end of an entry.
impl FairEntry {
    /// Whether the server granted the hold to this entry. If not, a thread of this process has
    /// passed the hold to this entry.
    pub(super) fn is_owner_of(&self, hold: &Hold) -> bool {
        hold.owner.number() == self.entry.owner.number()
    }

    /// Removes the entry from the process's list, so that no further hold is passed to it. If a
    /// hold was already passed to the entry, returns the hold's tenancy.
    pub(super) fn stand_down(&self) -> Option<Arc<Tenancy>> {
        let (queued, site) = (self.entry.mailbox.as_ref()?, &self.queue.site);
        let passed = site.gate.stand_down(&queued.recipient);
        site.update_wanted();
        passed
    }

    /// Records that the entry has become this hold.
    pub(super) fn become_hold(&mut self, hold: &Hold) {
        self.became_hold = true;
        if self.entry.machine.is_in_doubt() && !self.is_owner_of(hold) {
            // The release of a passed hold does not undo a late request of this entry's owner.
            let give_up = self.queue.scripts().give_up_command(&self.entry.owner.text());
            self.queue.site.undo(give_up, self.terms.lease());
        }
    }
}

impl Drop for FairEntry {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may have left the queue's mutex locked.
        if is_forked() {
            return;
        }
        if let Some(leadership) = self.leadership.take() {
            self.queue.transfer_leadership(leadership, None);
        }
        if self.became_hold {
            return;
        }
        let passed = self.stand_down();
        self.queue.site.gate.call();
        let site = &self.queue.site;
        if let Some(tenancy) = passed {
            // A hold was passed to this entry, but the entry's thread has left. The next thread
            // gets the hold.
            let _ = site.leave(&tenancy, None, Leaving::Posted);
        }
        // The entry is given up even if a hold was passed to it. If the server no longer has the
        // passed hold, it may have granted the lock to this entry. No thread would read this grant.
        let scripts = self.queue.scripts();
        let left = self.entry.end_owner(Messages::new(), |owner, _| scripts.give_up_command(owner));
        site.remove_leftover(left, Cleanup::queued);
    }
}

/// Derives a newcomer's reply from the reply to the leader. `at` is the newcomer's position behind
/// the leader.
fn companion_reply(
    leaders: &Result<Replied<FairAcquired>, Trouble>,
    at: usize,
    lease: Duration,
) -> Result<Replied<FairAcquired>, Trouble> {
    let Replied { reply, in_doubt, .. } = leaders.as_ref().map_err(Clone::clone)?;
    let (now, ask_after, by_redisson) = match reply {
        // This reply does not show where the companions are in the queue.
        FairAcquired::Granted { already: true, now, .. } => (*now, Some(Duration::ZERO), false),
        FairAcquired::Granted { now, .. } => (*now, (at == 0).then(|| over(lease)), false),
        FairAcquired::Queued { now, by_redisson, .. } => (*now, None, *by_redisson),
        // Only a waiter that was already queued gets this reply, and such a waiter has no
        // companions.
        FairAcquired::Missing { now } => (*now, Some(Duration::ZERO), false),
    };
    let reply = FairAcquired::Queued { now, ask_after, by_redisson, was_requeued: false };
    Ok(Replied::acknowledged(reply, *in_doubt))
}
