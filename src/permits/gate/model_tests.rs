//! A semaphore's gate, in many orders of what its threads do: ask alone, queue, lead, ask for those
//! behind, give up, fail, pass and give back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::*;
use crate::acquire::Wait;
use crate::cancel::CancelToken;
use crate::error::ErrorKind;
use crate::node::Core;
use crate::sync::explore;

const NAME: &str = "name";
const PERMITS: u32 = 4;
const TURN_IS_OVER: u64 = 1_000_000_000;

/// How likely each kind of trouble is.
#[derive(Clone, Copy, Default)]
struct Odds {
    /// A thread does not wait for ever.
    impatient: f64,
    /// A holder stays for so long that the turn is over.
    slow: f64,
    /// The server's answer is lost, and what it gave is taken back.
    error: f64,
}

/// What happened over all schedules: a test that never came to the point proves nothing.
#[derive(Default)]
struct Seen {
    together: AtomicUsize,
    surplus: AtomicUsize,
    passed: AtomicUsize,
    given_up: AtomicUsize,
    failed: AtomicUsize,
}

/// One name, in a process of its own.
struct Pool {
    gate: PermitGate<u32>,
    odds: Odds,
    seen: Arc<Seen>,
    core: Arc<Core>,
    /// What is free on the server.
    free: Mutex<u32>,
    /// Who is told when some are given back.
    listeners: Mutex<Vec<Arc<Thread>>>,
    in_use: AtomicU32,
}

/// The baton, as `Semaphore` lays it down.
struct Lead<'a>(&'a Pool);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if let Some(left) = self.0.gate.hand_on() {
            self.0.give_back(left);
        }
    }
}

impl Pool {
    fn new(odds: Odds, seen: &Arc<Seen>) -> Self {
        Self {
            gate: PermitGate::new(Duration::ZERO),
            odds,
            seen: Arc::clone(seen),
            core: Core::model(),
            free: Mutex::new(PERMITS),
            listeners: Mutex::new(Vec::new()),
            in_use: AtomicU32::new(0),
        }
    }

    /// A thread that wants permits so many times.
    fn visit(&self, times: usize) {
        let thread = Thread::current();
        for _ in 0..times {
            let need = thread_rng().gen_range(1..=3);
            let token = CancelToken::new();
            let canceller = chance(self.odds.impatient).then(|| {
                let token = token.clone();
                thread::spawn(move || token.cancel())
            });
            if self.acquire(&thread, need, Wait::from(&token)) {
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

    /// As `Semaphore` does it.
    fn acquire(&self, thread: &Arc<Thread>, need: u32, wait: Wait<'_>) -> bool {
        let mut entered = self.gate.enter(thread, need, true);
        if matches!(entered, PermitEntered::Open) {
            match self.ask(&[need]) {
                Some(0) => entered = self.gate.refused(thread, need),
                Some(_) => return true,
                None => return false,
            }
        }
        match entered {
            PermitEntered::Leads => {}
            PermitEntered::Queued(waiter) => {
                let give_up = |waiter: &Arc<PermitWaiter<u32>>| self.gate.give_up(waiter);
                match waiter.stand(&self.core, &NAME.into(), &wait, give_up, || {}) {
                    Ok(Some(Signal::Granted(_))) => return true,
                    Ok(Some(Signal::Baton)) => {}
                    Ok(Some(Signal::Failed(_)) | None) | Err(_) => {
                        self.seen.given_up.fetch_add(1, Ordering::SeqCst);
                        return false;
                    }
                }
            }
            other => panic!("{other:?}, of a thread that waits"),
        }
        self.lead(thread, need, wait)
    }

    fn lead(&self, thread: &Arc<Thread>, need: u32, wait: Wait<'_>) -> bool {
        let _lead = Lead(self);
        // Subscribe first.
        self.listeners.lock().push(Arc::clone(thread));
        let granted = loop {
            if self.gate.take_given().is_some() {
                self.seen.passed.fetch_add(1, Ordering::SeqCst);
                break true;
            }
            match self.ask(&self.gate.needs(need)) {
                Some(0) => {}
                granted => break granted.is_some(),
            }
            if wait.check(&self.core, &NAME.into()).is_err() {
                break false;
            }
            wait.wakeable(thread, || {
                if wait.check(&self.core, &NAME.into()).is_ok() {
                    thread.parker().park_until(None);
                }
            });
        };
        self.listeners.lock().retain(|listener| !Arc::ptr_eq(listener, thread));
        granted
    }

    /// As `SemaphoreSite::ask` and its script do it. `None`: an error.
    fn ask(&self, needs: &[u32]) -> Option<u32> {
        let arrivals = self.gate.arrivals();
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
            let error = Error::new(ErrorKind::Redis, "no server".to_owned());
            self.gate.fail_before(arrivals, &error);
            return None;
        }
        if let Some(others) = taken.checked_sub(needs[0]) {
            let rest = self.gate.granted(others);
            self.seen.together.fetch_add(usize::from(others > rest), Ordering::SeqCst);
            self.seen.surplus.fetch_add(usize::from(rest > 0), Ordering::SeqCst);
            self.give_to_server(rest);
        }
        Some(taken)
    }

    fn give_back(&self, permits: u32) {
        let rest = self.gate.pass(permits);
        self.give_to_server(rest);
    }

    fn give_to_server(&self, permits: u32) {
        if permits > 0 {
            *self.free.lock() += permits;
            let listeners = self.listeners.lock().clone();
            listeners.iter().for_each(|listener| listener.parker().unpark());
        }
    }
}

fn chance(odds: f64) -> bool {
    odds > 0.0 && thread_rng().gen_bool(odds)
}

/// Some threads that each want permits twice. In the end all are free, and nobody waits.
fn play(odds: Odds) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let all = Arc::clone(&seen);
    explore(800, move || {
        let pool = Arc::new(Pool::new(odds, &all));
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
        assert!(matches!(pool.gate.enter(&Thread::current(), 1, false), PermitEntered::Open));
    });
    seen
}

#[test]
fn what_a_leader_gets_for_those_behind_it_reaches_them_or_goes_back() {
    let seen = play(Odds { slow: 0.5, ..Odds::default() });
    assert!(seen.together.load(Ordering::SeqCst) > 0);
    assert!(seen.passed.load(Ordering::SeqCst) > 0);
}

#[test]
fn who_leaves_while_the_leader_asks_for_it_takes_no_permit_along() {
    let seen = play(Odds { impatient: 0.5, slow: 0.5, ..Odds::default() });
    assert!(seen.surplus.load(Ordering::SeqCst) > 0);
    assert!(seen.given_up.load(Ordering::SeqCst) > 0);
}

#[test]
fn a_leader_whose_answer_is_lost_keeps_nobody_waiting() {
    let seen = play(Odds { impatient: 0.3, slow: 0.3, error: 0.3 });
    assert!(seen.failed.load(Ordering::SeqCst) > 0);
    assert!(seen.together.load(Ordering::SeqCst) > 0);
}
