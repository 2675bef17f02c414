//! Models of the gate, which run many interleavings of the threads' actions: come, wait, give up,
//! lead, fail, hold, nest, pass, release and lose.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlatch_client::CancelToken;
use redlatch_client::sync::{Mutex, Thread, clock, explore};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::{Gate, GateOutcome, GateQueue, LeaveOutcome, LockNeed, QueueEntry};
use crate::ask::Asked;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{Hold, Tenancy, Terms};
use crate::model::ModelServer;
use crate::observe::Kind;
use crate::order::{Admission, GateWaiter, LeftTooLate};
use crate::runtime::Core;
use crate::scripts::Mode;
use crate::waiting::{
    Claim, Enter, EnterOf, Lead, LeadershipGuard, QueueLeadership, QueueSite, Signal, Synchronizer,
    Try, Wait, acquire,
};

const SECOND: u64 = 1_000_000_000;
const LEASE: Duration = Duration::from_secs(30);

fn on(terms: Terms) -> LockNeed {
    LockNeed { mode: Mode::Lock, terms }
}

/// The probability of each kind of trouble.
#[derive(Clone, Copy, Default)]
struct GateOdds {
    /// A thread waits only for a limited time.
    impatient: f64,
    /// A thread wants a fixed lease instead of a watched lease.
    other_terms: f64,
    /// A holder holds the lock until the turn is over.
    slow: f64,
    /// A holder takes another level.
    nests: f64,
    /// The server answers a leader with an error.
    error: f64,
    /// A lease runs out.
    expires: f64,
    /// How many times a thread tries to make a hold lost.
    losses: usize,
}

/// Counts of events over all schedules. A test of an event that never happens proves nothing.
#[derive(Default)]
struct GateEvents {
    passed: AtomicUsize,
    released: AtomicUsize,
    given_up: AtomicUsize,
    won_against_giving_up: AtomicUsize,
    failed: AtomicUsize,
    vacated: AtomicUsize,
    undone: AtomicUsize,
}

struct ModelSite {
    gate: Gate,
    odds: GateOdds,
    seen: Arc<GateEvents>,
    core: Arc<Core>,
    name: crate::name::Name,
    /// The number of threads that have queued.
    tickets: Mutex<u64>,
    /// The hold that the server knows.
    server: Mutex<Option<Arc<Hold>>>,
    /// The last tenancy that was admitted and has not left.
    inside: Mutex<Option<Arc<Tenancy>>>,
    /// The thread that has the leadership.
    leader: Mutex<Option<u64>>,
    /// The tickets of the threads that got the lock, in the order of the grants.
    served: Mutex<Vec<u64>>,
    /// The highest ticket of a waiter to which a leader's error may have gone.
    failed_up_to: AtomicU64,
}

impl QueueSite for ModelSite {
    type Need = LockNeed;
    type Grant = Arc<Tenancy>;
    type RequestState = Option<QueueEntry>;

    fn with_queue<R>(&self, act: impl FnOnce(&mut GateQueue) -> R) -> R {
        self.gate.with_queue(act)
    }

    fn collect(
        &self,
        _: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, LockNeed>,
    ) -> Option<Arc<Tenancy>> {
        self.leads(claim.thread);
        None
    }

    fn transfer_leadership(
        &self,
        leadership: QueueLeadership,
        lead: Option<Box<Lead<Option<QueueEntry>>>>,
    ) {
        self.leads_no_more();
        let (wake, _left) = self.with_queue(|queue| queue.promote(leadership, lead));
        wake.now();
    }

    fn give_up(
        &self,
        waiter: &Arc<GateWaiter<Option<QueueEntry>>>,
    ) -> Option<Signal<Arc<Tenancy>, Option<QueueEntry>>> {
        let decided = self.with_queue(|queue| queue.give_up(waiter));
        let seen = match decided {
            Some(_) => &self.seen.won_against_giving_up,
            None => &self.seen.given_up,
        };
        seen.fetch_add(1, Ordering::SeqCst);
        decided
    }
}

/// A thread that takes the lock like a `ReentrantLock`, but without a server.
struct Visitor<'a> {
    name: &'a ModelSite,
    /// The number of threads that had queued when this thread queued.
    ticket: Cell<u64>,
    /// Whether the server has answered the thread with an error.
    has_failed: Cell<bool>,
}

impl Synchronizer for Visitor<'_> {
    type Site = ModelSite;

    fn site(&self) -> &ModelSite {
        self.name
    }

    fn what(&self, _: &LockNeed) -> (Kind, u32) {
        (Kind::ReentrantLock, 1)
    }

    fn enter(&self, claim: &Claim<'_, LockNeed>) -> Result<EnterOf<Self>, Error> {
        loop {
            let (entered, ticket) = self.name.enter(claim.thread, claim.need.terms);
            self.ticket.set(ticket);
            return Ok(match entered {
                GateOutcome::Leads(leadership) => Enter::Leads(Some(leadership), None),
                GateOutcome::Queued(waiter) => Enter::Queued(waiter),
                GateOutcome::Expired(hold) => {
                    self.name.lose(&hold);
                    continue;
                }
                other => panic!("{other:?}, of a thread that holds nothing and waits"),
            });
        }
    }

    fn end_expired_holds(&self) {
        if let Some(hold) = self.name.gate.expired() {
            self.name.lose(&hold);
        }
    }

    fn collect_passed(&self, tenancy: Arc<Tenancy>) -> Result<Option<Arc<Tenancy>>, Error> {
        if tenancy.is_held() {
            return Ok(Some(tenancy));
        }
        self.name.lose(&tenancy.hold());
        Ok(None)
    }

    fn request_state(
        &self,
        _: &Claim<'_, LockNeed>,
        _: &mut Option<QueueLeadership>,
    ) -> Option<QueueEntry> {
        None
    }

    /// Sends a request. The server may answer with an error.
    fn ask(
        &self,
        _: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let (name, terms) = (self.name, claim.need.terms);
        name.leads(claim.thread);
        let arrivals = name.arrivals();
        if chance(name.odds.error) {
            self.has_failed.set(true);
            thread::yield_now();
            name.failed_up_to.fetch_max(arrivals, Ordering::SeqCst);
            let error = Error::new(ErrorKind::Refused, "no server".to_owned());
            name.fail_before(arrivals, &error);
            return Err(error);
        }
        let owner = name.core.id.next_owner();
        let asked =
            Asked { forced_unlocks: name.gate.forced_unlocks(), incarnation: 0, at: clock::now() };
        let hold = Arc::new(Hold::new(owner, terms, asked, false));
        let before = name.server.lock().replace(Arc::clone(&hold));
        assert!(before.is_none(), "the gate let one in while the process held the lock");
        Ok(Try::Granted(Arc::new(Tenancy::new(hold, Arc::clone(claim.thread)))))
    }

    fn admit(
        &self,
        leadership: &mut LeadershipGuard<'_, ModelSite>,
        tenancy: Arc<Tenancy>,
        _: &Claim<'_, LockNeed>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        self.name.leads_no_more();
        let leadership = &mut leadership.leadership;
        let gate = &self.name.gate;
        match gate.at(|order, now| order.admit(gate.mode, &tenancy, leadership, None, now)) {
            Admission::Admitted(stale) => {
                assert!(stale.is_none(), "one had the seat while another led");
                Ok(Some(tenancy))
            }
            Admission::OtherHold(_) => panic!("one had the seat while another led"),
            Admission::NotHeld => {
                self.name.seen.undone.fetch_add(1, Ordering::SeqCst);
                self.name.forget(&tenancy.hold());
                Ok(None)
            }
        }
    }
}

struct Impatience {
    token: CancelToken,
    deadline: Option<Instant>,
    canceller: Option<thread::JoinHandle<()>>,
}

impl Impatience {
    fn new(odds: f64) -> Self {
        let token = CancelToken::new();
        // Half of the impatient threads do not wait at all, and the other half wait until they are
        // cancelled.
        let (deadline, canceller) = match (chance(odds), chance(0.5)) {
            (false, _) => (None, None),
            (true, true) => (Some(Instant::now()), None),
            (true, false) => {
                let token = token.clone();
                (None, Some(thread::spawn(move || token.cancel())))
            }
        };
        Self { token, deadline, canceller }
    }

    fn wait(&self) -> Wait<'_> {
        self.deadline.map_or_else(|| Wait::from(&self.token), Wait::until)
    }
}

impl Drop for Impatience {
    fn drop(&mut self) {
        if let Some(canceller) = self.canceller.take() {
            canceller.join().unwrap();
        }
    }
}

impl ModelSite {
    fn new(odds: GateOdds, seen: &Arc<GateEvents>) -> Self {
        Self {
            gate: Gate::new(Mode::Lock),
            odds,
            seen: Arc::clone(seen),
            core: Core::model(&ModelServer::start()),
            name: "name".into(),
            tickets: Mutex::new(0),
            server: Mutex::new(None),
            inside: Mutex::new(None),
            leader: Mutex::new(None),
            served: Mutex::new(Vec::new()),
            failed_up_to: AtomicU64::new(0),
        }
    }

    /// Runs a thread that takes the lock this many times.
    fn visit(&self, times: usize) {
        let thread = Thread::current();
        for _ in 0..times {
            let fixed = chance(self.odds.other_terms);
            let terms = if fixed { Terms::fixed(LEASE) } else { Terms::watched(LEASE) };
            let patience = Impatience::new(self.odds.impatient);
            if let Some(tenancy) = self.acquire(&thread, terms, patience.wait()) {
                let turn_is_over = self.hold(&tenancy, &thread);
                let passed = self.leave(&tenancy, terms);
                assert!(!(turn_is_over && passed), "passed on after the turn");
            }
            self.check();
        }
    }

    fn acquire(&self, thread: &Arc<Thread>, terms: Terms, wait: Wait<'_>) -> Option<Arc<Tenancy>> {
        let visitor = Visitor { name: self, ticket: Cell::new(0), has_failed: Cell::new(false) };
        let acquired =
            acquire(&visitor, (&self.core, &self.name), &Claim { thread, need: on(terms), wait });
        let ticket = visitor.ticket.get();
        match acquired {
            Ok(Some(tenancy)) => {
                assert_eq!(tenancy.thread.id(), thread.id(), "another's tenancy");
                assert_eq!(tenancy.hold().terms, terms, "a hold on other terms");
                self.served.lock().push(ticket);
                Some(tenancy)
            }
            Ok(None) => None,
            Err(error) => {
                if error.kind() == ErrorKind::Refused && !visitor.has_failed.get() {
                    let reach = self.failed_up_to.load(Ordering::SeqCst);
                    assert!(ticket <= reach, "failed by an older error");
                    self.seen.failed.fetch_add(1, Ordering::SeqCst);
                }
                None
            }
        }
    }

    fn leads(&self, thread: &Thread) {
        let before = self.leader.lock().replace(thread.id());
        assert!(before.is_none_or(|before| before == thread.id()), "two have the leadership");
    }

    fn leads_no_more(&self) {
        *self.leader.lock() = None;
    }

    /// Enters the gate. The second result is the number of threads that have queued so far.
    fn enter(&self, thread: &Arc<Thread>, terms: Terms) -> (GateOutcome, u64) {
        let mut tickets = self.tickets.lock();
        let entered = self.gate.enter(thread, on(terms), true);
        *tickets += u64::from(matches!(entered, GateOutcome::Queued(_)));
        (entered, *tickets)
    }

    /// Acts as a thread that holds the lock. Returns `true` if the process's turn is over at the
    /// end of the hold.
    fn hold(&self, tenancy: &Arc<Tenancy>, thread: &Arc<Thread>) -> bool {
        {
            // `inside` may still have a tenancy that was lost in the meantime. Ignore it.
            let mut inside = self.inside.lock();
            if tenancy.is_held() {
                let before = inside.replace(Arc::clone(tenancy));
                let both = before.is_some_and(|before| before.is_held()) && tenancy.is_held();
                assert!(!both, "two hold at a time");
            }
        }
        if chance(self.odds.nests) {
            match self.enter(thread, Terms::watched(LEASE)).0 {
                GateOutcome::Reentered(same) => {
                    assert!(Arc::ptr_eq(&same, tenancy));
                    match self.gate.leave(tenancy, Some(Terms::watched(LEASE).into()), None) {
                        Ok(LeaveOutcome::StillHeld) => {}
                        Err(LeftTooLate::LevelsStay | LeftTooLate::NotThere) => {
                            assert!(!tenancy.is_held());
                        }
                        other => panic!("{other:?} after an inner level"),
                    }
                }
                // The tenancy is lost, and the seat may have any state, so the thread enters like a
                // new thread.
                GateOutcome::Queued(waiter) => {
                    assert!(!tenancy.is_held());
                    self.withdraw(&waiter);
                }
                GateOutcome::Leads(leadership) => {
                    assert!(!tenancy.is_held());
                    drop(LeadershipGuard::new(self, Some(leadership), None));
                }
                GateOutcome::Expired(lost) => self.lose(&lost),
                other => panic!("{other:?}, of a holder"),
            }
        }
        let slow = chance(self.odds.slow);
        if slow {
            clock::model::advance(SECOND);
        }
        if chance(self.odds.expires) {
            clock::model::advance(40 * SECOND);
        }
        thread::yield_now();
        slow
    }

    /// Leaves the queue at once. If another thread signalled it before, passes the signal on.
    fn withdraw(&self, waiter: &Arc<GateWaiter<Option<QueueEntry>>>) {
        match self.give_up(waiter) {
            Some(Signal::Passed(tenancy)) => {
                self.leave(&tenancy, waiter.need().terms);
            }
            Some(Signal::Leadership(leadership, lead)) => {
                drop(LeadershipGuard::new(self, leadership, lead.map(|lead| *lead)))
            }
            Some(Signal::Failed(_)) | None => {}
        }
    }

    /// Leaves. Returns whether the hold was passed on.
    fn leave(&self, tenancy: &Arc<Tenancy>, terms: Terms) -> bool {
        {
            let mut inside = self.inside.lock();
            if inside.as_ref().is_some_and(|last| Arc::ptr_eq(last, tenancy)) {
                *inside = None;
            }
        }
        match self.gate.leave(tenancy, Some(terms.into()), None) {
            Ok(LeaveOutcome::Passed(seat, _)) => {
                self.seen.passed.fetch_add(1, Ordering::SeqCst);
                assert!(Arc::ptr_eq(&seat.tenancy, tenancy));
                // A waiter may have woken, perhaps without a reason, and may read the seat at this
                // moment.
                if chance(0.3) {
                    self.nudge();
                }
                tenancy.finish_released();
                true
            }
            Ok(LeaveOutcome::OthersStay) | Err(LeftTooLate::OthersStay) => {
                unreachable!("nobody shares it")
            }
            Ok(LeaveOutcome::Release(seat, leadership))
            | Err(LeftTooLate::Last(seat, leadership)) => {
                assert!(leadership.is_some(), "another leads while one holds");
                let _leadership = LeadershipGuard::new(self, leadership, None);
                self.leads(&Thread::current());
                self.seen.released.fetch_add(1, Ordering::SeqCst);
                assert!(Arc::ptr_eq(&seat.tenancy, tenancy));
                tenancy.finish_released();
                self.forget(&tenancy.hold());
                false
            }
            Err(LeftTooLate::NotThere) => {
                assert!(!tenancy.is_held(), "a hold without a seat");
                false
            }
            Ok(LeaveOutcome::StillHeld) | Err(LeftTooLate::LevelsStay) => {
                panic!("a level too many")
            }
        }
    }

    /// Does the same as `Site::lose_hold`.
    fn lose(&self, hold: &Arc<Hold>) {
        self.forget(hold);
        hold.lose(LostReason::LeaseExpired);
        let (seat, wake) = self.gate.vacate(hold);
        wake.now();
        if let Some(seat) = seat {
            self.seen.vacated.fetch_add(1, Ordering::SeqCst);
            let _ = seat.tenancy.lose(LostReason::LeaseExpired);
        }
    }

    /// Acts as a forced unlock. The present tenancy loses the lock.
    fn force(&self) {
        *self.server.lock() = None;
        self.gate.note_forced_unlock();
        if let Some(hold) = self.gate.hold() {
            let server = self.server.lock().clone();
            if server.is_none_or(|known| !Arc::ptr_eq(&known, &hold)) {
                self.lose(&hold);
            }
        }
    }

    /// Makes the server forget the hold.
    fn forget(&self, hold: &Arc<Hold>) {
        let mut server = self.server.lock();
        if server.as_ref().is_some_and(|known| Arc::ptr_eq(known, hold)) {
            *server = None;
        }
    }

    /// Asserts the invariant that must hold whenever the gate's mutex is free.
    fn check(&self) {
        let state = self.gate.state.lock();
        let is_idle = state.alone.seat.is_none() && !state.queue.is_led();
        assert!(!is_idle || state.queue.first().is_none(), "the leadership is lost");
    }

    /// Asserts that nothing remains after all threads have gone.
    fn check_free(&self) {
        let state = self.gate.state.lock();
        assert!(state.alone.seat.is_none(), "a grant that nobody took: {:?}", state.alone.seat);
        assert!(!state.queue.is_busy(), "a leadership that nobody took");
        assert!(self.server.lock().is_none(), "a hold that nobody released");
        assert_eq!(*self.leader.lock(), None);
    }
}

fn chance(odds: f64) -> bool {
    odds > 0.0 && thread_rng().gen_bool(odds)
}

/// Runs threads that each take the lock a few times, and a thread that makes holds lost.
fn play(odds: GateOdds, seen: &Arc<GateEvents>) -> Arc<ModelSite> {
    let name = Arc::new(ModelSite::new(odds, seen));
    let mut threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let name = Arc::clone(&name);
            thread::spawn(move || name.visit(VISITS))
        })
        .collect();
    let wheel = Arc::clone(&name);
    threads.push(thread::spawn(move || {
        for _ in 0..odds.losses {
            if chance(0.3) {
                wheel.force();
            } else if let Some(hold) = wheel.gate.hold() {
                wheel.lose(&hold);
            }
            wheel.check();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    name.check_free();
    if odds.losses == 0 && odds.expires == 0.0 {
        let lost = seen.vacated.load(Ordering::SeqCst);
        assert_eq!(lost, 0, "a hold was given up that nobody had lost");
    }
    name
}

const THREADS: usize = 4;
const VISITS: usize = 3;
const SCHEDULES: usize = 700;

fn model(odds: GateOdds, check: fn(&ModelSite)) -> Arc<GateEvents> {
    let seen = Arc::new(GateEvents::default());
    let count = Arc::clone(&seen);
    explore(SCHEDULES, move || check(&play(odds, &count)));
    seen
}

/// Asserts that every visit was granted, in the order of arrival.
fn first_come_first_served(name: &ModelSite) {
    assert!(name.served.lock().is_sorted());
    assert_eq!(name.seen.given_up.load(Ordering::SeqCst), 0);
}

#[test]
fn each_gets_in_first_come_first_served() {
    let seen = model(GateOdds::default(), first_come_first_served);
    assert!(happened(&seen.passed) && happened(&seen.released));
}

#[test]
fn a_turn_that_is_over_ends_in_a_release_and_the_leadership_goes_round() {
    let by_time = GateOdds { slow: 0.3, ..GateOdds::default() };
    let by_terms = GateOdds { other_terms: 0.3, ..GateOdds::default() };
    for odds in [by_time, by_terms] {
        let seen = model(odds, first_come_first_served);
        assert!(happened(&seen.passed) && happened(&seen.released));
    }
}

#[test]
fn a_waiter_that_gives_up_leaves_nothing_behind() {
    let odds = GateOdds { impatient: 0.5, slow: 0.2, ..GateOdds::default() };
    let seen = model(odds, |name| assert!(name.served.lock().is_sorted()));
    assert!(happened(&seen.given_up) && happened(&seen.won_against_giving_up));
}

#[test]
fn a_lost_hold_opens_the_gate() {
    let odds = GateOdds { losses: 6, nests: 0.3, expires: 0.1, ..GateOdds::default() };
    let seen = model(odds, |_| {});
    assert!(happened(&seen.vacated) && happened(&seen.undone));
}

fn beside_a_holder(others: fn(&Arc<ModelSite>)) {
    let name = Arc::new(ModelSite::new(GateOdds::default(), &Arc::default()));
    let patience = Impatience::new(0.0);
    let tenancy = name.acquire(&Thread::current(), Terms::watched(LEASE), patience.wait()).unwrap();
    others(&name);
    name.leave(&tenancy, Terms::watched(LEASE));
    name.check_free();
}

#[test]
fn a_cancel_ends_a_wait_that_nothing_else_ends() {
    explore(SCHEDULES, || {
        beside_a_holder(|name| {
            let (name, token) = (Arc::clone(name), CancelToken::new());
            let cancel = token.clone();
            let waiter = thread::spawn(move || {
                let wait = Wait::from(&token);
                assert!(name.acquire(&Thread::current(), Terms::watched(LEASE), wait).is_none());
            });
            cancel.cancel();
            waiter.join().unwrap();
        });
    });
}

#[test]
fn a_lease_that_is_over_opens_the_gate_though_the_holder_sleeps_on() {
    explore(SCHEDULES, || {
        beside_a_holder(|name| {
            clock::model::advance(40 * SECOND);
            let threads = (0..2).map(|_| {
                let name = Arc::clone(name);
                thread::spawn(move || name.visit(1))
            });
            for thread in threads.collect::<Vec<_>>() {
                thread.join().unwrap();
            }
        });
    });
}

#[test]
fn a_leaders_error_fails_the_waiters_before_it_and_no_others() {
    let odds = GateOdds { error: 0.4, slow: 0.4, ..GateOdds::default() };
    let seen = model(odds, |name| assert!(name.served.lock().is_sorted()));
    assert!(happened(&seen.failed));
}

#[test]
fn whatever_happens_together_every_thread_ends_and_the_gate_is_free() {
    let odds = GateOdds {
        impatient: 0.3,
        other_terms: 0.2,
        slow: 0.2,
        nests: 0.2,
        error: 0.2,
        expires: 0.1,
        losses: 4,
    };
    let seen = model(odds, |_| {});
    assert!(happened(&seen.vacated) && happened(&seen.failed) && happened(&seen.given_up));
}

fn happened(what: &AtomicUsize) -> bool {
    what.load(Ordering::SeqCst) > 0
}
