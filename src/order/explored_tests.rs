//! Visits all states of a name's order that a few threads can reach, and checks the invariants in
//! each state. (The models in `site/gate/model_tests.rs` also run the gate, with random
//! interleavings.)

use std::collections::HashSet;
use std::time::Duration;

use redlatch_client::sync::Mutex;

use super::line::{QueuedState, QueuedThread};
use super::*;
use crate::ask::Asked;
use crate::hold::line::Line;
use crate::scripts::{ClientId, FairKeys, Owner};
use crate::waiting::{QueueLeadership, Signal};

const TERMS: Terms = Terms::watched(Duration::from_secs(30));
const PAST_A_TURN: u64 = 20_000_000;

#[derive(Clone, Copy, Debug)]
enum OrderStep {
    Comes(usize, Mode),
    /// This thread adopts a ticket, without entering the gate.
    Adopts(usize),
    Granted(usize),
    /// A leader or a waiter ends its wait.
    GivesUp(usize),
    Leaves(usize, Mode),
    /// The server has answered a release for which the thread has the leadership.
    Released(usize),
    /// The hold of this mode is lost.
    Lost(Mode),
    TurnEnds,
}

/// The state of a thread at the gate.
#[derive(Debug)]
enum At {
    Nothing,
    /// A thread of a fair lock that has sent its own request.
    Stands(Arc<QueuedThread>),
    Queues(Arc<GateWaiter<()>>),
    Leads(Mode, QueueLeadership),
    Releases(Arc<Hold>, QueueLeadership),
}

type Tenancies = Vec<Option<Arc<Tenancy>>>;

/// Threads, their gate, and the holds at the server.
struct World {
    /// The mode of each hold: the mode of a hold of a single thread, and the mode of a shared hold.
    modes: Vec<Mode>,
    state: Order<()>,
    threads: Vec<Arc<Thread>>,
    at: Vec<At>,
    /// How many more times each thread may ask for the lock.
    comes: Vec<usize>,
    reads: Tenancies,
    alone: Tenancies,
    server: Vec<Arc<Hold>>,
    /// How many more tickets may be adopted.
    tickets: usize,
    /// How many of the threads take the lock through a fair handle: the threads with the lowest
    /// numbers.
    fair: usize,
    /// The threads with entries in the server's queue, in the queue's order.
    line: Vec<usize>,
    now: u64,
    id: ClientId,
}

impl World {
    fn new(
        modes: &[Mode],
        threads: &[Arc<Thread>],
        fair: usize,
        comes: usize,
        tickets: usize,
    ) -> Self {
        let count = threads.len();
        Self {
            modes: modes.to_vec(),
            state: Order::<()>::new(),
            threads: threads.to_vec(),
            at: (0..count).map(|_| At::Nothing).collect(),
            comes: vec![comes; count],
            reads: vec![None; count],
            alone: vec![None; count],
            server: Vec::new(),
            tickets,
            fair,
            line: Vec::new(),
            now: 0,
            id: ClientId::random().unwrap(),
        }
    }

    fn has(&mut self, mode: Mode) -> &mut Tenancies {
        if mode == Mode::Read { &mut self.reads } else { &mut self.alone }
    }

    fn steps(&self) -> Vec<OrderStep> {
        let mut steps = Vec::new();
        for (thread, at) in self.at.iter().enumerate() {
            match at {
                At::Nothing => {
                    for &mode in &self.modes {
                        let all = if mode == Mode::Read { &self.reads } else { &self.alone };
                        if all[thread].is_some() {
                            steps.push(OrderStep::Leaves(thread, mode));
                        } else if self.comes[thread] > 0 {
                            // (Another level would change nothing for other threads.)
                            steps.push(OrderStep::Comes(thread, mode));
                        }
                    }
                    if self.tickets > 0 && self.server.is_empty() {
                        steps.push(OrderStep::Adopts(thread));
                    }
                }
                At::Queues(_) => steps.push(OrderStep::GivesUp(thread)),
                At::Stands(_) => {
                    if self.server.is_empty() && self.line.first() == Some(&thread) {
                        steps.push(OrderStep::Granted(thread));
                    }
                    steps.push(OrderStep::GivesUp(thread));
                }
                At::Leads(mode, _) => {
                    let shares = |hold: &Arc<Hold>| hold.owner.mode() == Mode::Read;
                    if self.server.iter().all(|hold| *mode == Mode::Read && shares(hold)) {
                        steps.push(OrderStep::Granted(thread));
                    }
                    steps.push(OrderStep::GivesUp(thread));
                }
                At::Releases(..) => steps.push(OrderStep::Released(thread)),
            }
        }
        for (mode, all) in [(Mode::Read, &self.reads), (self.modes[0], &self.alone)] {
            if all.iter().any(Option::is_some) {
                steps.push(OrderStep::Lost(mode));
            }
        }
        if self.now == 0 {
            steps.push(OrderStep::TurnEnds);
        }
        steps
    }

    fn take(&mut self, step: OrderStep) {
        match step {
            OrderStep::Comes(thread, mode) => self.comes(thread, mode),
            OrderStep::Adopts(thread) => {
                self.tickets -= 1;
                let owner = self.id.adopter(&Owner::of_new_ticket().unwrap());
                self.seat_of(thread, Mode::Lock, owner, &mut None);
            }
            OrderStep::Granted(thread) => self.granted(thread),
            OrderStep::GivesUp(thread) => {
                match std::mem::replace(&mut self.at[thread], At::Nothing) {
                    At::Queues(waiter) => assert!(self.state.queue.give_up(&waiter).is_none()),
                    At::Stands(queued) => {
                        assert!(self.standing().stand_down(&queued).is_none());
                        self.line.retain(|other| *other != thread);
                    }
                    At::Leads(_, leadership) => self.transfer_leadership(leadership),
                    other => panic!("{other:?}"),
                }
            }
            OrderStep::Leaves(thread, mode) => self.leaves(thread, mode),
            OrderStep::Released(thread) => {
                match std::mem::replace(&mut self.at[thread], At::Nothing) {
                    At::Releases(hold, leadership) => {
                        self.forget(&hold);
                        self.transfer_leadership(leadership);
                    }
                    other => panic!("{other:?}"),
                }
            }
            OrderStep::Lost(mode) => {
                let seat = self.state.side(mode).seat.as_ref().unwrap();
                let hold = Arc::clone(&seat.tenancy.hold());
                self.state.vacate(mode, &hold).1.now();
                self.has(mode).fill(None);
                self.forget(&hold);
            }
            OrderStep::TurnEnds => self.now = PAST_A_TURN,
        }
        self.read_signals();
        self.check(step);
    }

    fn standing(&mut self) -> &mut Standing {
        self.state.standing.get_or_insert_default()
    }

    fn comes(&mut self, thread: usize, mode: Mode) {
        self.comes[thread] -= 1;
        if thread < self.fair {
            let queued = Arc::new(QueuedThread {
                lock: "name".into(),
                database: 0,
                owner: self.id.next_owner(),
                thread: Arc::clone(&self.threads[thread]),
                waker: self.threads[thread].waker(),
                terms: TERMS,
                state: Mutex::new(QueuedState::new()),
            });
            self.standing().queued.push(Arc::clone(&queued));
            self.at[thread] = At::Stands(queued);
            self.line.push(thread);
            return;
        }
        let is_free = !self.state.queue.is_busy();
        let need = LockNeed { mode, terms: TERMS };
        match self.state.enter(&Arc::clone(&self.threads[thread]), need, true, self.now) {
            GateOutcome::Leads(leadership) => self.at[thread] = At::Leads(mode, leadership),
            GateOutcome::Queued(waiter) => self.at[thread] = At::Queues(waiter),
            GateOutcome::Joined(tenancy) => {
                assert!(is_free, "past a waiter");
                assert_eq!(tenancy.hold().asked.at, self.now, "after the turn");
                self.reads[thread] = Some(tenancy);
            }
            GateOutcome::Under(writing) => {
                assert!(Arc::ptr_eq(&writing, self.alone[thread].as_ref().unwrap()));
                self.seat(thread, Mode::Read, &mut None);
            }
            GateOutcome::Reads => assert!(self.reads[thread].is_some()),
            other => panic!("{other:?}"),
        }
    }

    /// The server grants the thread a hold.
    fn seat(&mut self, thread: usize, mode: Mode, leadership: &mut Option<QueueLeadership>) {
        self.seat_of(thread, mode, self.id.next_owner_to(mode, false), leadership);
    }

    fn seat_of(
        &mut self,
        thread: usize,
        mode: Mode,
        owner: Owner,
        leadership: &mut Option<QueueLeadership>,
    ) {
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: self.now };
        let hold = Hold::new(owner, TERMS, asked, false);
        let is_fair = thread < self.fair && !owner.has_ticket_number();
        let hold = if is_fair { self.in_line(hold) } else { hold };
        let hold = Arc::new(hold);
        let own = Arc::clone(&self.threads[thread]);
        let tenancy = Arc::new(Tenancy::since(Arc::clone(&hold), own, self.now));
        let admitted = self.state.admit(mode, &tenancy, leadership, None, self.now);
        assert!(matches!(admitted, Admission::Admitted(None)), "{admitted:?}");
        self.has(mode)[thread] = Some(tenancy);
        self.server.push(hold);
    }

    /// Gives the hold a line, like a grant that names the threads behind its owner.
    fn in_line(&self, hold: Hold) -> Hold {
        let followers = self.line.iter().filter_map(|thread| match &self.at[*thread] {
            At::Stands(queued) => Some(queued.owner.number()),
            _ => None,
        });
        hold.in_line(Line::new(&Arc::new(FairKeys::new("name")), followers.collect()))
    }

    fn granted(&mut self, thread: usize) {
        if let At::Stands(queued) = &self.at[thread] {
            let queued = Arc::clone(queued);
            self.at[thread] = At::Nothing;
            assert!(self.standing().stand_down(&queued).is_none());
            self.line.remove(0);
            return self.seat(thread, Mode::Lock, &mut None);
        }
        let At::Leads(mode, leadership) = std::mem::replace(&mut self.at[thread], At::Nothing)
        else {
            unreachable!()
        };
        let own = Arc::clone(&self.threads[thread]);
        match self.state.join_any_time(&own, TERMS, self.now) {
            Some((tenancy, _)) if mode == Mode::Read => self.reads[thread] = Some(tenancy),
            _ if mode == Mode::Read => self.seat(thread, mode, &mut None),
            _ => return self.seat(thread, mode, &mut Some(leadership)),
        }
        self.state.let_readers_in(self.now).into_iter().for_each(Wake::now);
        self.transfer_leadership(leadership);
    }

    fn leaves(&mut self, thread: usize, mode: Mode) {
        let tenancy = self.has(mode)[thread].take().unwrap();
        let hold = Arc::clone(&tenancy.hold());
        match self.state.leave(mode, &tenancy, None, self.now) {
            Ok(LeaveOutcome::Passed(_, wakes)) => {
                assert_eq!(hold.asked.at, self.now, "after the turn");
                let passes_leader = hold.line.is_none() && self.state.queue.is_led();
                assert!(!passes_leader, "past a leader");
                wakes.into_iter().for_each(Wake::now);
            }
            Ok(LeaveOutcome::Release(_, Some(leadership))) => {
                self.at[thread] = At::Releases(hold, leadership);
            }
            Ok(LeaveOutcome::Release(_, None)) => self.forget(&hold),
            Ok(LeaveOutcome::OthersStay) => assert!(self.reads.iter().any(Option::is_some)),
            other => panic!("{other:?}"),
        }
    }

    fn transfer_leadership(&mut self, leadership: QueueLeadership) {
        self.state.transfer_leadership(Mode::Lock, leadership, None).0.now();
    }

    fn forget(&mut self, hold: &Arc<Hold>) {
        self.server.retain(|other| !Arc::ptr_eq(other, hold));
    }

    fn read_signals(&mut self) {
        for thread in 0..self.at.len() {
            if let At::Stands(queued) = &self.at[thread] {
                let passed = queued.state.lock().passed_hold.take();
                if let Some(tenancy) = passed {
                    // The server decides the order. So all threads ahead of this thread must have
                    // left the queue.
                    assert_eq!(self.line.remove(0), thread, "past a fair thread");
                    self.at[thread] = At::Nothing;
                    self.alone[thread] = Some(tenancy);
                }
            }
            let At::Queues(waiter) = &self.at[thread] else { continue };
            let mode = waiter.need().mode;
            match waiter.take_signal() {
                None => {}
                Some(Signal::Passed(tenancy)) => {
                    self.at[thread] = At::Nothing;
                    self.has(mode)[thread] = Some(tenancy);
                }
                Some(Signal::Leadership(leadership, _)) => {
                    self.at[thread] = At::Leads(mode, leadership.unwrap());
                }
                Some(Signal::Failed(error)) => panic!("{error}"),
            }
        }
    }

    fn check(&self, step: OrderStep) {
        let count = |all: &Tenancies| all.iter().flatten().count();
        assert!(count(&self.alone) <= 1, "two have it alone, after {step:?}");
        if let Some(alone) = self.alone.iter().position(Option::is_some) {
            let reads = |at: &usize| self.reads[*at].is_some();
            assert!(
                (0..self.at.len()).filter(reads).all(|at| at == alone),
                "reads beside a writer"
            );
        }
        let leads = |at: &&At| matches!(at, At::Leads(..) | At::Releases(..));
        let leaders = self.at.iter().filter(leads).count();
        assert_eq!(leaders, usize::from(self.state.queue.is_led()), "after {step:?}");
        let is_taken = self.state.alone.seat.is_some();
        assert_eq!(is_taken, count(&self.alone) == 1, "after {step:?}");
        let waits = self.at.iter().any(|at| matches!(at, At::Queues(_)));
        assert_eq!(waits, self.state.queue.first().is_some(), "after {step:?}");
        assert!(!waits || is_taken || leaders == 1, "nobody leads, after {step:?}");
        let goes_on = |step: &OrderStep| {
            matches!(step, OrderStep::Granted(_) | OrderStep::Leaves(..) | OrderStep::Released(_))
        };
        let is_stuck = (waits || leaders == 1) && !self.steps().iter().any(goes_on);
        assert!(!is_stuck, "all wait for one another, after {step:?}");
    }

    /// Returns a text that is equal for two states if the same steps follow from both.
    fn key(&self) -> String {
        let number = |thread: &Thread| {
            self.threads.iter().position(|own| own.id() == thread.id()).unwrap_or(usize::MAX)
        };
        let queue: Vec<_> = self.state.queue.first_ones(usize::MAX);
        let queue: Vec<_> = queue.iter().map(|waiter| number(waiter.thread())).collect();
        let at = self.at.iter().map(|at| match at {
            At::Queues(waiter) => format!("{:?}", waiter.need().mode),
            At::Leads(mode, _) => format!("leads to {mode:?}"),
            At::Stands(_) => "stands".to_owned(),
            At::Nothing => String::new(),
            At::Releases(..) => "releases".to_owned(),
        });
        let at: Vec<_> = at.collect();
        let has = |all: &Tenancies| all.iter().map(Option::is_some).collect::<Vec<_>>();
        let passes = self.state.alone.cohort.may_pass(self.now);
        let joins = self.state.readers.as_ref().is_some_and(|it| it.cohort.may_join(self.now));
        let kind = |hold: &Arc<Hold>| (hold.owner.mode(), hold.owner.has_ticket_number());
        let server: Vec<_> = self.server.iter().map(kind).collect();
        let (reads, alone) = (has(&self.reads), has(&self.alone));
        let line = &self.line;
        format!(
            "{line:?} {queue:?} {at:?} {reads:?} {alone:?} {passes} {joins} {server:?} {:?} {} {}",
            self.comes, self.now, self.tickets
        )
    }
}

/// Visits every state that this number of threads can reach if each thread asks for the lock
/// `comes` times. Returns the number of states.
fn explore(modes: &[Mode], threads: usize, fair: usize, comes: usize) -> usize {
    explore_with_tickets(modes, threads, fair, comes, 0)
}

/// Does the same as [`explore`], with this number of adoptions.
fn explore_with_tickets(
    modes: &[Mode],
    threads: usize,
    fair: usize,
    comes: usize,
    tickets: usize,
) -> usize {
    let spawned = (0..threads).map(|_| std::thread::spawn(Thread::current).join().unwrap());
    let threads: Vec<_> = spawned.collect();
    let after = |path: &[OrderStep]| {
        let mut world = World::new(modes, &threads, fair, comes, tickets);
        path.iter().for_each(|step| world.take(*step));
        world
    };
    let (mut seen, mut paths) = (HashSet::new(), vec![Vec::new()]);
    while let Some(path) = paths.pop() {
        for step in after(&path).steps() {
            let mut path = path.clone();
            path.push(step);
            if seen.insert(after(&path).key()) {
                paths.push(path);
            }
        }
    }
    seen.len()
}

#[test]
fn one_holds_at_a_time_and_the_leadership_is_never_lost_in_any_order() {
    assert!(explore(&[Mode::Lock], 3, 0, 2) > 1_000);
}

#[test]
fn one_writes_or_some_read_and_the_leadership_is_never_lost_in_any_order() {
    assert!(explore(&[Mode::Write, Mode::Read], 3, 0, 2) > 10_000);
}

/// A name's re-entrant and fair handles share a seat. The kind of handle that took a hold decides
/// to which thread the hold is passed.
#[test]
fn a_fair_hold_goes_to_the_next_in_line_beside_threads_that_queue_at_the_gate() {
    assert!(explore(&[Mode::Lock], 3, 2, 2) > 1_000);
    assert!(explore(&[Mode::Lock], 3, 3, 2) > 1_000);
}

/// An adoption does not enter the gate, so its hold may take the seat while another thread leads.
/// That leader then waits in Redis's queue, and remains the only thread that sends requests.
#[test]
fn an_adopted_hold_leaves_the_leadership_where_it_is() {
    assert!(explore_with_tickets(&[Mode::Lock], 3, 0, 2, 2) > 1_000);
    assert!(explore_with_tickets(&[Mode::Lock], 3, 2, 1, 2) > 1_000);
}
