//! Models of a semaphore's gate. They try many interleavings of threads that ask alone, queue,
//! lead, ask for the threads behind them, give up, fail, pass permits on and give permits back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use redlatch_client::CancelToken;
use redlatch_client::sync::explore;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::*;
use crate::error::{Error, ErrorKind};
use crate::model::ModelServer;
use crate::observe::{Kind, Way};
use crate::runtime::Core;
use crate::waiting::{Claim, Lead, QueueLeadership, QueueSite, Synchronizer, Try, Wait, acquire};

const PERMITS: u32 = 4;
const TURN_IS_OVER: u64 = 1_000_000_000;

/// The probability of each kind of fault.
#[derive(Clone, Copy, Default)]
struct PermitOdds {
    /// A thread waits only for a limited time.
    impatient: f64,
    /// A holder keeps its permits for so long that the turn is over.
    slow: f64,
    /// The server's reply is lost, and the granted permits are taken back.
    error: f64,
}

/// Counts of events over all schedules. A test of an event that never happens proves nothing.
#[derive(Default)]
struct PermitEvents {
    together: AtomicUsize,
    surplus: AtomicUsize,
    passed: AtomicUsize,
    given_up: AtomicUsize,
    failed: AtomicUsize,
}

/// One name in one process.
struct PermitPool {
    gate: PermitGate<()>,
    odds: PermitOdds,
    seen: Arc<PermitEvents>,
    core: Arc<Core>,
    name: crate::name::Name,
    /// The free permits on the server.
    free: Mutex<u32>,
    /// The threads that a release of permits wakes.
    listeners: Mutex<Vec<Arc<Thread>>>,
    /// Whether permits were given back since the leader last collected.
    said: AtomicBool,
    in_use: AtomicU32,
}

impl QueueSite for PermitPool {
    type Need = PermitNeed;
    type Grant = Permits<()>;
    type RequestState = PermitRequestState;

    fn with_queue<R>(&self, look: impl FnOnce(&mut PermitQueue<()>) -> R) -> R {
        self.gate.with_queue(look)
    }

    fn collect(
        &self,
        lead: &mut Lead<PermitRequestState>,
        _: &Claim<'_, PermitNeed>,
    ) -> Option<Permits<()>> {
        if self.said.swap(false, Ordering::SeqCst) {
            lead.listening.ask_now();
        }
        let passed = self.gate.collect();
        self.seen.passed.fetch_add(usize::from(passed.is_some()), Ordering::SeqCst);
        passed
    }

    fn may_collect(&self, _: &PermitRequestState) -> bool {
        self.gate.may_collect() || self.said.load(Ordering::SeqCst)
    }

    fn transfer_leadership(
        &self,
        leadership: QueueLeadership,
        _: Option<Box<Lead<PermitRequestState>>>,
    ) {
        if let Some(passed) = self.gate.end_leadership(leadership) {
            self.give_back(passed.number);
        }
        let thread = Thread::current();
        self.listeners.lock().retain(|listener| !Arc::ptr_eq(listener, &thread));
    }
}

impl Synchronizer for PermitPool {
    type Site = Self;

    fn site(&self) -> &Self {
        self
    }

    fn what(&self, need: &PermitNeed) -> (Kind, u32) {
        (Kind::Semaphore, need.permits)
    }

    fn enter(&self, claim: &Claim<'_, PermitNeed>) -> Result<EnterPermits<()>, Error> {
        if let Some(entered) = self.gate.enter(claim.thread, claim.need, true) {
            return Ok(entered);
        }
        if self.request(&[claim.need.permits])? > 0 {
            return Ok(Enter::Granted(permits(claim.need.permits), Way::Free));
        }
        Ok(self.gate.lead_or_queue(claim.thread, claim.need))
    }

    fn request_state(
        &self,
        claim: &Claim<'_, PermitNeed>,
        _: &mut Option<QueueLeadership>,
    ) -> PermitRequestState {
        // The leader registers as a listener before it asks, so that it misses no release.
        self.listeners.lock().push(Arc::clone(claim.thread));
        PermitRequestState::default()
    }

    fn ask(
        &self,
        _: &mut Lead<PermitRequestState>,
        claim: &Claim<'_, PermitNeed>,
    ) -> Result<Try<Permits<()>>, Error> {
        Ok(match self.request(&self.gate.needs(claim.need, u32::MAX))? {
            0 => Try::Busy(Duration::from_secs(30)),
            _ => Try::Granted(permits(claim.need.permits)),
        })
    }
}

impl PermitPool {
    fn new(odds: PermitOdds, seen: &Arc<PermitEvents>) -> Self {
        Self {
            gate: PermitGate::new(Duration::ZERO),
            odds,
            seen: Arc::clone(seen),
            core: Core::model(&ModelServer::start()),
            name: "name".into(),
            free: Mutex::new(PERMITS),
            listeners: Mutex::new(Vec::new()),
            said: AtomicBool::new(false),
            in_use: AtomicU32::new(0),
        }
    }

    /// Takes permits `times` times, on the calling thread.
    fn visit(&self, times: usize) {
        let thread = Thread::current();
        for _ in 0..times {
            let need = thread_rng().gen_range(1..=3);
            let token = CancelToken::new();
            let canceller = chance(self.odds.impatient).then(|| {
                let token = token.clone();
                thread::spawn(move || token.cancel())
            });
            let claim = Claim {
                thread: &thread,
                need: PermitNeed { permits: need, terms: None },
                wait: Wait::from(&token),
            };
            let acquired = acquire(self, (&self.core, &self.name), &claim);
            if !matches!(acquired, Ok(Some(_))) {
                self.seen.given_up.fetch_add(1, Ordering::SeqCst);
            } else {
                let before = self.in_use.fetch_add(need, Ordering::SeqCst);
                assert!(before + need <= PERMITS, "more are out than there are");
                if chance(self.odds.slow) {
                    clock::model::advance(TURN_IS_OVER);
                }
                thread::yield_now();
                self.in_use.fetch_sub(need, Ordering::SeqCst);
                self.give_back(need);
            }
            if let Some(canceller) = canceller {
                canceller.join().unwrap();
            }
        }
    }

    /// Simulates `permits::request_for` and a semaphore's script.
    fn request(&self, needs: &[u32]) -> Result<u32, Error> {
        let (arrivals, asked) = (self.arrivals(), clock::now());
        let taken = {
            let mut free = self.free.lock();
            let share = if chance(0.5) { *free } else { *free / 2 };
            let mut taken = 0;
            for need in needs {
                let limit = if taken == 0 { *free } else { share.max(taken) };
                if taken + need > limit {
                    break;
                }
                taken += need;
            }
            *free -= taken;
            taken
        };
        thread::yield_now();
        if chance(self.odds.error) {
            self.seen.failed.fetch_add(1, Ordering::SeqCst);
            self.give_to_server(taken);
            let error = Error::new(ErrorKind::Refused, "no server".to_owned());
            self.fail_before(arrivals, &error);
            return Err(error);
        }
        if let Some(others) = taken.checked_sub(needs[0]) {
            let rest = self.gate.distribute(permits(others), asked).number;
            self.seen.together.fetch_add(usize::from(others > rest), Ordering::SeqCst);
            self.seen.surplus.fetch_add(usize::from(rest > 0), Ordering::SeqCst);
            self.give_to_server(rest);
        }
        Ok(taken)
    }

    fn give_back(&self, permits: u32) {
        let rest = self.gate.pass(self::permits(permits)).number;
        self.give_to_server(rest);
    }

    fn give_to_server(&self, permits: u32) {
        if permits > 0 {
            *self.free.lock() += permits;
            let listeners = self.listeners.lock().clone();
            self.said.store(true, Ordering::SeqCst);
            listeners.iter().for_each(|listener| listener.waker().wake());
        }
    }
}

fn permits(number: u32) -> Permits<()> {
    Permits { number, terms: None, leases: Vec::new() }
}

fn chance(odds: f64) -> bool {
    odds > 0.0 && thread_rng().gen_bool(odds)
}

/// Runs four threads, each of which takes permits twice. Checks that all permits are free in the
/// end, and that no thread waits.
fn play(odds: PermitOdds) -> Arc<PermitEvents> {
    let seen = Arc::new(PermitEvents::default());
    let all = Arc::clone(&seen);
    explore(800, move || {
        let pool = Arc::new(PermitPool::new(odds, &all));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.visit(2))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*pool.free.lock(), PERMITS, "a permit is lost, or one too many is there");
        let need = PermitNeed { permits: 1, terms: None };
        assert!(pool.gate.enter(&Thread::current(), need, false).is_none());
    });
    seen
}

#[test]
fn permits_that_a_leader_gets_for_others_reach_them_or_go_back() {
    let seen = play(PermitOdds { slow: 0.5, ..PermitOdds::default() });
    assert!(seen.together.load(Ordering::SeqCst) > 0);
    assert!(seen.passed.load(Ordering::SeqCst) > 0);
}

#[test]
fn a_waiter_that_leaves_while_the_leader_asks_for_it_takes_no_permit_along() {
    let seen = play(PermitOdds { impatient: 0.5, slow: 0.5, ..PermitOdds::default() });
    assert!(seen.surplus.load(Ordering::SeqCst) > 0);
    assert!(seen.given_up.load(Ordering::SeqCst) > 0);
}

#[test]
fn a_leader_whose_answer_is_lost_keeps_no_thread_waiting() {
    let seen = play(PermitOdds { impatient: 0.3, slow: 0.3, error: 0.3 });
    assert!(seen.failed.load(Ordering::SeqCst) > 0);
    assert!(seen.together.load(Ordering::SeqCst) > 0);
}
