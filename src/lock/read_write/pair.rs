//! One read-write lock in one client: the site of its readers' shared hold, the site of its
//! writer's hold, and the one queue in which threads of both kinds stand, with one leadership.
//!
//! ```text
//!            writer's seat     readers' seat      the leadership
//! free       empty             empty              no thread's; none queues
//! asked for  empty             empty              a leader's
//! read       empty             taken by some      no thread's; none queues; or a leader's: a
//!                                                 writer that waits for the readers of this
//!                                                 process and of others, or a reader that asks
//!                                                 whether it may join
//! written    taken             empty              with the seat: the others queue
//!            taken             taken by writer    with the seat: it may go down to reading
//! ```
//!
//! Leadership: a leader has it, or the writer's seat: so while a thread writes, no thread leads,
//! and while a thread leads, none writes. A leader that gets the writer's seat leaves the
//! leadership with the seat; a writer that leaves the seat, or finds its hold lost, hands the
//! leadership on. While the queue is not empty, a leader or the seat has the leadership.
//!
//! Alone: the writer may read, too, and no other thread of the process does. A reader enters
//! without a command only while the leadership is free, or as the leader. Readers that a writer
//! finds when it gets its seat have lost their hold, since the server grants nothing to a writer
//! beside them.
//!
//! A reader enters beside readers of its process without a command, as long as their turn lasts and
//! no thread queues, here or by the server's last reply elsewhere. At the turn's end one thread
//! asks the server: while no process waits there, another turn begins. So later readers pass no
//! writer, of this process or of another.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redlatch_client::sync::{Mutex, Thread, clock};

use crate::error::Error;
use crate::lease::Renewal;
use crate::local::{
    GateOutcome, Hold, Joining, Leaseholder, QueueEntry, Site, Succession, Tenancy, Terms,
};
use crate::runtime::{Core, Member};
use crate::scripts::Mode;
use crate::snapshot::Held;
use crate::waiting::{Lead, Queue, Queued, Waiter, Wake};

/// A thread's request: the mode, and the terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadWriteNeed {
    pub(super) mode: Mode,
    pub(super) terms: Terms,
}

/// A thread's grant.
#[derive(Debug)]
pub(super) struct ReadWriteGrant {
    pub(super) tenancy: Arc<Tenancy>,
    /// The site has seated it.
    pub(super) is_seated: bool,
}

type PairQueue = Queue<ReadWriteNeed, ReadWriteGrant, Option<QueueEntry>>;
pub(super) type Waiting = Waiter<ReadWriteNeed, ReadWriteGrant, Option<QueueEntry>>;

/// See the module.
pub(super) struct Pair {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<str>,
    pub(super) read: Arc<Site>,
    pub(super) write: Arc<Site>,
    /// Its mutex is taken before those of the sites' gates.
    queue: Mutex<PairQueue>,
    /// The number of arrivals when the leader last asked.
    asked_for: AtomicU64,
}

/// The result of a thread's look at the pair.
pub(super) enum Found {
    /// The thread has the lock: a level deeper, or beside others from now on.
    In(Arc<Tenancy>, bool),
    /// The thread writes, and may read as well.
    Under(Arc<Tenancy>),
    /// The thread reads, and cannot write before it has left.
    Reads,
    Leads,
    Queued(Arc<Waiting>),
    /// Others are before the thread, and it will not wait.
    Occupied,
    /// The seated hold is past its deadline.
    Expired(Arc<Site>, Arc<Hold>),
    TooDeep,
}

impl Pair {
    /// The pair of a name: one for all its handles.
    pub(super) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        let pair = core.members.of::<Self>().get(name, |name| {
            let site = |mode| Arc::new(Site::side(core, &name, mode));
            Self {
                core: Arc::clone(core),
                read: site(Mode::Read),
                write: site(Mode::Write),
                queue: Mutex::new(Queue::new()),
                asked_for: AtomicU64::new(0),
                name,
            }
        });
        pair.read.succeeded_by(&pair);
        pair.write.succeeded_by(&pair);
        pair
    }

    pub(super) fn site(&self, mode: Mode) -> &Arc<Site> {
        if mode == Mode::Write { &self.write } else { &self.read }
    }

    /// A thread comes: it enters, leads, queues, or finds the lock occupied.
    pub(super) fn enter(&self, thread: &Arc<Thread>, need: ReadWriteNeed, waits: bool) -> Found {
        self.with_queue(|queue| {
            let found = if need.mode == Mode::Write {
                self.come_to_write(queue, thread, need.terms, waits)
            } else {
                self.come_to_read(queue, thread, need.terms)
            };
            match found {
                Some(found) => found,
                None if waits => Found::Queued(queue.push(thread, need)),
                None => Found::Occupied,
            }
        })
    }

    /// `None`: others are before it.
    fn come_to_write(
        &self,
        queue: &mut PairQueue,
        thread: &Arc<Thread>,
        terms: Terms,
        waits: bool,
    ) -> Option<Found> {
        let writes = self.write.gate.reenter(thread, terms);
        if let Some(found) = writes.and_then(|entered| found(entered, &self.write)) {
            return Some(found);
        }
        if let Some((reading, _)) = self.read.gate.tenant_of(thread) {
            let lasts = reading.is_held();
            let over = || Found::Expired(Arc::clone(&self.read), Arc::clone(&reading.hold()));
            return Some(if lasts { Found::Reads } else { over() });
        }
        let may_lead = waits || !self.read.gate.is_taken();
        (may_lead && queue.lead()).then_some(Found::Leads)
    }

    /// `None`: others are before it.
    fn come_to_read(
        &self,
        queue: &mut PairQueue,
        thread: &Arc<Thread>,
        terms: Terms,
    ) -> Option<Found> {
        let own = self.write.gate.tenant_of(thread);
        // A thread that reads already reads again, past all waiters. (Alone: while a thread writes,
        // the queue is busy.) No thread joins readers beside a write hold that was left to expire:
        // that hold still excludes others.
        let is_alone = queue.is_busy() || self.write.gate.has_left_one();
        let joining = if is_alone { Joining::No } else { Joining::InTurn };
        let reads = self.read.gate.join(thread, terms, joining);
        if let Some(found) = reads.and_then(|(entered, _)| found(entered, &self.read)) {
            return Some(found);
        }
        match own {
            Some((tenancy, _)) if tenancy.is_held() => Some(Found::Under(tenancy)),
            Some((tenancy, _)) => {
                Some(Found::Expired(Arc::clone(&self.write), Arc::clone(&tenancy.hold())))
            }
            None => queue.lead().then_some(Found::Leads),
        }
    }

    /// The leader reads beside others, whether their turn lasts (`true`) or not. `None`: no thread
    /// reads.
    pub(super) fn join(&self, thread: &Arc<Thread>, terms: Terms) -> Option<(Arc<Tenancy>, bool)> {
        if self.write.gate.has_left_one() {
            return None;
        }
        match self.read.gate.join(thread, terms, Joining::AnyTime)? {
            (GateOutcome::Again(tenancy) | GateOutcome::Joined(tenancy), in_turn) => {
                Some((tenancy, in_turn))
            }
            _ => None,
        }
    }

    /// The leader asks the server.
    pub(super) fn asks(&self) {
        self.asked_for.store(self.arrivals(), Ordering::Relaxed);
    }

    /// The leader reads: so do the readers that are first in the queue.
    pub(super) fn let_readers_in(&self) {
        let mut woken = Vec::new();
        self.with_queue(|queue| {
            while let Some(first) = queue.first().filter(|first| first.need().mode == Mode::Read)
                && let Some((tenancy, _)) = self.join(first.thread(), first.need().terms)
            {
                woken.extend(queue.grant_first(|_| ReadWriteGrant { tenancy, is_seated: true }));
            }
        });
        woken.into_iter().for_each(Wake::now);
    }

    /// A writer has its seat. Alone: readers of the process have no hold any more, even if the
    /// process has not learned that yet.
    pub(super) fn end_reading(&self) {
        if let Some(hold) = self.read.gate.hold() {
            self.lose_reading(&hold);
        }
    }

    /// The readers' hold is over: by its deadline, or by the server's reply.
    pub(super) fn lose_reading(&self, hold: &Arc<Hold>) {
        self.read.lose_hold(hold, hold.why_gone());
    }

    /// The writer has its seat to read as well. Alone: `false` if another thread writes by now,
    /// which was granted the lock after this writer's holds were gone.
    pub(super) fn reads_alone(&self, thread: &Thread) -> bool {
        let writes = |writing: &Arc<Tenancy>| writing.thread.id() == thread.id();
        self.write.gate.with_seat(|seat| seat.is_none_or(|seat| writes(&seat.tenancy)))
    }

    /// The leadership goes to the next thread in the queue, with the entry if that is of its kind.
    fn hand_on_to_next(&self, lead: Option<Lead<Option<QueueEntry>>>) {
        let mode =
            |lead: &Lead<Option<QueueEntry>>| lead.request_state.as_ref().map(QueueEntry::mode);
        let (wake, left) = self.with_queue(|queue| {
            let next = queue.first().map(|first| first.need().mode);
            match lead {
                Some(lead) if mode(&lead) == next => queue.promote(Some(lead)),
                lead => (queue.promote(None).0, lead),
            }
        });
        wake.now();
        if let Some(entry) = left.and_then(|lead| lead.request_state) {
            self.site(entry.mode()).leave_queue(entry);
        }
    }
}

/// `None`: another thread has the seat.
fn found(entered: GateOutcome, site: &Arc<Site>) -> Option<Found> {
    match entered {
        GateOutcome::Again(tenancy) => Some(Found::In(tenancy, false)),
        GateOutcome::Joined(tenancy) => Some(Found::In(tenancy, true)),
        GateOutcome::Expired(hold) => Some(Found::Expired(Arc::clone(site), hold)),
        GateOutcome::TooDeep => Some(Found::TooDeep),
        GateOutcome::Leads | GateOutcome::Queued(_) | GateOutcome::Occupied => None,
    }
}

impl Queued for Pair {
    type Need = ReadWriteNeed;
    type Grant = ReadWriteGrant;
    /// An entry in the lock's queue, once the leader has asked for one.
    type RequestState = Option<QueueEntry>;

    fn whose(&self) -> (&Core, &Arc<str>) {
        (&self.core, &self.name)
    }

    fn with_queue<R>(&self, look: impl FnOnce(&mut PairQueue) -> R) -> R {
        look(&mut self.queue.lock())
    }

    /// The entry goes to the next leader of the process, or is given up.
    fn hand_on(&self, lead: Option<Lead<Option<QueueEntry>>>) {
        self.hand_on_to_next(lead);
    }
}

impl Succession for Pair {
    /// From writer to writer, with the leadership. Not if the leaving writer reads on.
    fn pass(
        &self,
        hold: &Arc<Hold>,
        seat: &mut dyn FnMut(&Arc<Tenancy>, Terms) -> bool,
    ) -> Option<Wake> {
        self.with_queue(|queue| {
            let now = clock::now();
            let first = queue.first()?;
            let ReadWriteNeed { mode, terms } = *first.need();
            let may_pass = mode == Mode::Write
                && hold.owner.mode() == Mode::Write
                && hold.may_pass(terms, now)
                && !self.read.gate.is_seated();
            if !may_pass {
                return None;
            }
            let thread = Arc::clone(first.thread());
            let tenancy = Arc::new(Tenancy::since(Arc::clone(hold), thread, now));
            // Before the thread can know of the hold: otherwise it might leave before it is seated.
            if !seat(&tenancy, terms) {
                return None;
            }
            queue.grant_first(|_| ReadWriteGrant { tenancy, is_seated: true })
        })
    }

    fn bars(&self, thread: &Thread) -> bool {
        self.read.gate.tenant_of(thread).is_some()
    }

    fn vacant(&self, mode: Mode) {
        if mode == Mode::Write {
            self.hand_on_to_next(None);
        }
    }

    fn fail(&self, error: &Error) {
        self.fail_before(self.asked_for.load(Ordering::Relaxed), error);
    }
}

impl Member for Pair {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn end(self: Arc<Self>) {
        self.nudge();
        Member::end(Arc::clone(&self.read));
        Member::end(Arc::clone(&self.write));
    }

    fn renew_now(self: Arc<Self>) -> Vec<Renewal> {
        let sites = [&self.read, &self.write].map(Arc::clone);
        sites.into_iter().flat_map(Member::renew_now).collect()
    }

    #[cfg(feature = "in-memory")]
    fn age(self: Arc<Self>, by: u64) -> Vec<Renewal> {
        let sites = [&self.read, &self.write].map(Arc::clone);
        sites.into_iter().flat_map(|site| Member::age(site, by)).collect()
    }

    fn held(&self) -> Vec<Held> {
        [self.read.held(), self.write.held()].concat()
    }

    fn has_owners(&self) -> bool {
        true
    }

    fn give_up_owner(&self, owner: &str) {
        let writes = owner.ends_with(Mode::Write.suffix());
        let mode = if writes { Mode::Write } else { Mode::Read };
        self.site(mode).give_up_owner(owner);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("name", &self.name).finish_non_exhaustive()
    }
}
