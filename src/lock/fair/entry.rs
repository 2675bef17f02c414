//! One thread's entry in a fair lock's queue, from its first request to the hold or the end of its
//! wait.
//!
//! The process knows the entry before Redis does: a hold may be passed to it from the moment it
//! stands in the process's list. A grant, or a passed hold, wakes the thread, and then there is no
//! need to ask. The thread asks when a script of ours or of Redisson's tells it to, after a
//! reconnect, and, if it is first, when the holder's lease ends.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redlatch_client::sync::{Mutex, Thread, clock};
use redlatch_client::{Command, was_cut};

use super::queue::FairQueue;
use crate::error::Error;
use crate::lease::Cleanup;
use crate::local::{
    Acquisition, Asked, GrantDetails, Granted, Hold, Leaving, Registered, Site, Tenancy, Terms,
};
use crate::runtime::{Core, Message, Recipient};
use crate::scripts::fair::{FairAcquired, Followers, Others, followers, over};
use crate::scripts::{Owner, Replied, Trouble};
use crate::waiting::{Lead, Listening, Queued, Try, slow_poll};

const SHORTEST_ASK: Duration = Duration::from_millis(20);

/// See the module. A drop without the lock leaves the queue, on every path.
pub(crate) struct FairEntry {
    queue: Arc<FairQueue>,
    pub(super) acquisition: Acquisition<Followers>,
    thread: Arc<Thread>,
    terms: Terms,
    /// It has the newcomers' leadership.
    leads: bool,
    /// Receives its messages, from before its first request on. (`None` for a thread that takes the
    /// lock now or not at all.)
    pub(super) queued: Option<Arc<Registered<QueuedThread>>>,
    /// A request was answered "queued".
    was_queued: bool,
    /// It has become a hold.
    is_used: bool,
}

/// A thread that stands in the queue, for the threads that send it messages.
pub(super) struct QueuedThread {
    core: Weak<Core>,
    lock: Arc<str>,
    database: i64,
    pub(super) owner: Owner,
    pub(super) thread: Arc<Thread>,
    pub(super) terms: Terms,
    pub(super) inbox: Mutex<FairInbox>,
}

/// The messages that it has not read.
#[derive(Default)]
pub(super) struct FairInbox {
    /// It should send a request.
    asks: bool,
    /// A request was answered "queued".
    pub(super) is_queued: bool,
    pub(super) granted: Option<Granted<Followers>>,
    /// A hold passed to it. Set under the queue's mutex, which decides between the pass and the
    /// thread's giving up.
    pub(super) passed: Option<Arc<Tenancy>>,
}

impl QueuedThread {
    pub(super) fn ask(&self) {
        self.inbox.lock().asks = true;
        self.thread.parker().unpark();
    }
}

impl Recipient for QueuedThread {
    fn told(&self, news: &Message<'_>) {
        match news {
            Message::Ask { .. } => self.ask(),
            Message::Grant(grant)
                if (grant.database, grant.lock) == (self.database, &*self.lock) =>
            {
                let Some(details) = followers(grant.details) else { return };
                let (now, lease, received) = (grant.now, grant.lease, clock::now());
                // A second copy adds nothing.
                let granted = Granted { now, received, lease, details };
                self.inbox.lock().granted.get_or_insert(granted);
                self.thread.parker().unpark();
            }
            // `x` and `{x}` have one queue: the waiter was granted the other lock, and has lost its
            // place. The next sign of life finds that out. If it asked at once, the two locks might
            // send it to and fro.
            Message::Grant(grant) => {
                let core = self.core.upgrade();
                core.inspect(|core| super::give_back_unclaimed(core, self.owner.number(), grant));
            }
            Message::Open { .. } | Message::Notified { .. } => {}
        }
    }
}

impl FairEntry {
    pub(super) fn new(
        queue: &Arc<FairQueue>,
        thread: &Arc<Thread>,
        terms: Terms,
        leads: bool,
    ) -> Self {
        Self {
            queue: Arc::clone(queue),
            acquisition: Acquisition::new(&queue.site),
            thread: Arc::clone(thread),
            terms,
            leads,
            queued: None,
            was_queued: false,
            is_used: false,
        }
    }

    /// How long the thread waits for others to come along, before it asks.
    pub(super) fn linger(&self) -> Duration {
        if self.leads { self.queue.linger(&self.thread) } else { Duration::ZERO }
    }

    /// Whether the inbox has something, or no thread is left that may come along.
    pub(super) fn has_news(&self) -> bool {
        let Some(queued) = &self.queued else { return self.leads && !self.queue.is_busy() };
        let inbox = queued.recipient.inbox.lock();
        inbox.asks || inbox.granted.is_some() || inbox.passed.is_some()
    }

    /// Reads the inbox: returns the lock, if it was granted to the thread and the grant still
    /// holds.
    pub(super) fn collect(&mut self, listening: &mut Listening) -> Option<Arc<Tenancy>> {
        let mut inbox = self.queued.as_ref()?.recipient.inbox.lock();
        if std::mem::take(&mut inbox.asks) {
            listening.ask_at = 0;
        }
        let Some(granted) = inbox.granted.take() else { return inbox.passed.take() };
        drop(inbox);
        // If the grant is not certainly the thread's, the next step is a request.
        listening.ask_at = 0;
        let Self { queue, acquisition, terms, .. } = self;
        let (hold, followers) = acquisition.granted_by_message(&queue.site, *terms, granted)?;
        Some(self.tenancy(hold, followers))
    }

    /// One request. The first request of the thread with the newcomers' leadership also asks for
    /// the newcomers.
    pub(super) fn ask(&mut self, listening: &mut Listening) -> Result<Try<Arc<Tenancy>>, Error> {
        let queue = Arc::clone(&self.queue);
        let (site, lease) = (&queue.site, self.terms.lease());
        let mut company = if self.leads { queue.company() } else { Vec::new() };
        // Before the request is sent: messages may name all these owners, and overtake the reply.
        let (asked, heard) = (Asked::now(site), site.core.pubsub.own_version(&site.name));
        self.stands(listening, heard);
        self.acquisition.asks(asked, lease);
        for Lead { listening, request_state: entry } in company.iter_mut().map(|(_, lead)| lead) {
            entry.stands(listening, heard);
            entry.acquisition.asks(asked, lease);
        }
        let owners = company.iter().map(|(_, lead)| lead.request_state.acquisition.owner);
        let owners: Vec<_> = owners.collect();
        let others = if self.was_queued {
            Others::Nobody
        } else {
            // An older waiter of the client must not come behind: it has lost its mark.
            let just_come = !site.core.pubsub.hears_own(&site.name) && !queue.has_queued();
            Others::Company { owners: &owners, just_come }
        };
        let replied = queue.scripts().acquire(&site.route, &self.acquisition.owner, lease, others);
        if std::mem::take(&mut self.leads) {
            let answered = company.into_iter().enumerate().map(|(at, (newcomer, mut lead))| {
                let reply = behind(&replied, at, lease);
                if was_cut() {
                    // The leader's own limit cut its request, and is not the companions' limit:
                    // each asks for itself, at once.
                    let _unanswered = lead.request_state.acquisition.heard(reply, |_| true);
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
            queue.answer(answered.collect());
        }
        self.answered(listening, replied)
    }

    /// Takes the lock if that is possible now, past no waiter, and without an entry in the queue.
    pub(super) fn ask_once(&mut self) -> Result<Try<Arc<Tenancy>>, Error> {
        let Self { queue, acquisition, terms, .. } = self;
        let lease = terms.lease();
        acquisition.asks(Asked::now(&queue.site), lease);
        let replied = queue.scripts().try_acquire(&queue.site.route, &acquisition.owner, lease);
        let heard = acquisition.heard(replied, |taken| *taken);
        if heard.map_err(|trouble| queue.trouble(trouble))? {
            return self.granted(false, Followers::new(), false);
        }
        Ok(Try::Busy(Duration::ZERO))
    }
}

/// The steps of a request.
impl FairEntry {
    /// A request for the entry follows: from here on a hold may be passed to it, and its sign of
    /// life is due. Messages on the client's own channel after version `heard` may be missed, and
    /// the client asks again for those.
    fn stands(&mut self, listening: &mut Listening, heard: Option<u64>) {
        listening.own.known(heard);
        if self.queued.is_some() {
            return;
        }
        let site = &self.queue.site;
        let queued = QueuedThread {
            core: Arc::downgrade(&site.core),
            lock: Arc::clone(&site.name),
            database: site.core.database(),
            owner: self.acquisition.owner,
            thread: Arc::clone(&self.thread),
            terms: self.terms,
            inbox: Mutex::default(),
        };
        let queued = Registered::new(&site.core, queued.owner.number(), queued);
        self.queue.stand(Arc::clone(&queued));
        self.queued = Some(queued);
    }

    /// The thread has lost its entry, perhaps with all waiters of this process. One of them asks
    /// for all, and a waiter that this request places behind it need not ask. If the request fails,
    /// the next sign of life finds the missing ones.
    fn comes_back(&mut self, listening: &mut Listening) -> Result<Try<Arc<Tenancy>>, Error> {
        let queue = Arc::clone(&self.queue);
        let Some(returning) = queue.returns(&self.acquisition.owner) else {
            return Ok(Try::Busy(Self::slow_question(&queue.site.core)));
        };
        let lease = self.terms.lease();
        self.acquisition.asks(Asked::now(&queue.site), lease);
        let others = Others::Returning(&returning.owners);
        let replied =
            queue.scripts().acquire(&queue.site.route, &self.acquisition.owner, lease, others);
        let needs_no_question = |replied: &Replied<FairAcquired>| match replied.reply {
            FairAcquired::Queued { by_redisson, .. } => !by_redisson,
            FairAcquired::Granted { .. } => true,
            FairAcquired::Missing { .. } => false,
        };
        if !replied.as_ref().is_ok_and(needs_no_question) {
            // One of Redisson's clients may tell them: each has to listen for itself.
            queue.ask_all_but(&self.acquisition.owner);
        }
        drop(returning);
        self.answered(listening, replied)
    }

    fn slow_question(core: &Core) -> Duration {
        slow_poll() + core.config.fair_wait_timeout * 2
    }

    fn answered(
        &mut self,
        listening: &mut Listening,
        replied: Result<Replied<FairAcquired>, Trouble>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let heard = self.acquisition.heard(replied, |_| true);
        match heard.map_err(|trouble| self.queue.trouble(trouble))? {
            FairAcquired::Granted { already, followers, .. } => {
                self.granted(already, followers, true)
            }
            FairAcquired::Queued { now, ask_after, by_redisson, came_back } => {
                self.acquisition.refused(now);
                self.was_queued = true;
                if let Some(queued) = &self.queued {
                    queued.recipient.inbox.lock().is_queued = true;
                }
                let Site { core, name, .. } = &*self.queue.site;
                if came_back {
                    // A grant used its entry up and the message never arrived, or the client did
                    // not listen.
                    core.pubsub.suspect(name);
                }
                let latest = Listening::latest(core);
                listening.own.subscribe(latest, || core.pubsub.listen_to_own(name));
                if by_redisson {
                    // Redisson's release sends its message on a channel of this waiter alone. If
                    // neither the holder nor a waiter ahead is Redisson's, none will be before this
                    // waiter asks again, since later ones stand behind.
                    let channel = self.queue.redissons_channel(&self.acquisition.owner);
                    listening.public.subscribe(latest, || core.pubsub.listen_once(&channel));
                }
                // The process's sign of life detects lost messages, so that many waiters do not
                // each ask. Only the first ones in line know more.
                let sleep = ask_after
                    .map_or_else(|| Self::slow_question(core), |ask| ask.max(SHORTEST_ASK));
                Ok(Try::Busy(sleep))
            }
            FairAcquired::Missing { now } => {
                self.acquisition.refused(now);
                self.comes_back(listening)
            }
        }
    }

    fn granted(
        &mut self,
        already: bool,
        followers: Followers,
        waits: bool,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        if let Some(unacknowledged) = self.acquisition.unacknowledged.take() {
            let command = self.give_up_command();
            // Given up here, and not by the drop. The thread's next request has a new entry: with a
            // fresh owner that messages may name, at the end.
            let passed = self.stand_down();
            (self.queued, self.was_queued) = (None, false);
            let site = &self.queue.site;
            let used = std::mem::replace(&mut self.acquisition, Acquisition::new(site));
            if let Some(tenancy) = passed {
                let _ = site.leave(&tenancy, None, Leaving::Posted);
            }
            return Err(site.take_back(used.left(command), Cleanup::queued, unacknowledged));
        }
        let Self { queue, acquisition, terms, .. } = self;
        let told = acquisition.told(&queue.site, already);
        if !acquisition.in_time(&queue.site, *terms, waits)? {
            return Ok(Try::Busy(Duration::ZERO));
        }
        let hold = acquisition.granted_by_reply(&queue.site, *terms, already);
        Ok(Try::Granted(self.tenancy(hold, told.unwrap_or(followers))))
    }

    fn tenancy(&mut self, hold: Hold, followers: Followers) -> Arc<Tenancy> {
        let registered = self.queued.clone().map(|queued| queued as Arc<Registered>);
        let hold = hold
            .with_details(GrantDetails::default(), registered)
            .in_line(self.queue.line(followers));
        let hold = self.acquisition.becomes(hold);
        Arc::new(Tenancy::new(hold, Arc::clone(&self.thread)))
    }
}

/// The end of an entry.
impl FairEntry {
    /// Whether the server granted this entry the hold; otherwise a thread of this process has
    /// passed it on.
    pub(super) fn is_owner_of(&self, hold: &Hold) -> bool {
        hold.owner.number() == self.acquisition.owner.number()
    }

    /// From here on no hold is passed to it. `Some`: a hold that was passed before.
    pub(super) fn stand_down(&self) -> Option<Arc<Tenancy>> {
        let queued = self.queued.as_ref()?;
        let mut waiters = self.queue.waiters.lock();
        waiters.queued.retain(|other| !Arc::ptr_eq(other, queued));
        queued.recipient.inbox.lock().passed.take()
    }

    /// The thread has the lock.
    pub(super) fn becomes(&mut self, hold: &Hold) {
        self.is_used = true;
        if self.acquisition.is_in_doubt() && !self.is_owner_of(hold) {
            // The release of the passed hold does not undo a late request of this owner.
            self.undo();
        }
    }

    fn undo(&self) {
        let lease = self.terms.lease();
        self.queue.site.undo(self.give_up_command(), lease);
    }

    /// Takes its owner out of queue and lock.
    fn give_up_command(&self) -> Command {
        self.queue.scripts().give_up_command(&self.acquisition.owner.text())
    }
}

impl Drop for FairEntry {
    fn drop(&mut self) {
        if self.leads {
            let _none = self.queue.promote(None);
        }
        if self.is_used {
            return;
        }
        let passed = self.stand_down();
        let call = self.queue.waiters.lock().call();
        call.now();
        let site = &self.queue.site;
        if let Some(tenancy) = passed {
            if self.acquisition.is_in_doubt() {
                self.undo();
            }
            // It was passed the hold and cannot take it: the next thread gets it.
            let _ = site.leave(&tenancy, None, Leaving::Posted);
            return;
        }
        site.give_up(self.acquisition.left(self.give_up_command()), Cleanup::queued);
    }
}

/// The reply for companion `at` that follows from the reply to the leader.
fn behind(
    leaders: &Result<Replied<FairAcquired>, Trouble>,
    at: usize,
    lease: Duration,
) -> Result<Replied<FairAcquired>, Trouble> {
    let Replied { reply, in_doubt, .. } = leaders.as_ref().map_err(Clone::clone)?;
    let (now, ask_after, by_redisson) = match reply {
        // The reply does not say where the companions stand now.
        FairAcquired::Granted { already: true, now, .. } => (*now, Some(Duration::ZERO), false),
        FairAcquired::Granted { now, .. } => (*now, (at == 0).then(|| over(lease)), false),
        FairAcquired::Queued { now, by_redisson, .. } => (*now, None, *by_redisson),
        // (Only a waiter that was queued gets this reply, and it has no companions.)
        FairAcquired::Missing { now } => (*now, Some(Duration::ZERO), false),
    };
    let reply = FairAcquired::Queued { now, ask_after, by_redisson, came_back: false };
    Ok(Replied::counts(reply, *in_doubt))
}
