//! Models of a thread that waits on a condition and comes back. While the thread waits, its hold
//! may be lost, callbacks are registered, and another thread takes the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redlatch_client::sync::{Thread, explore};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::ask::Asked;
use crate::error::LostReason;
use crate::hold::{Hold, HoldState, Leaseholder, Tenancy, Terms};
use crate::model::ModelServer;
use crate::runtime::Core;
use crate::scripts::Mode;
use crate::site::{GateOutcome, Leaving, LockNeed, Site};

const LEASE: Duration = Duration::from_secs(30);
const TERMS: Terms = Terms::watched(LEASE);
const NEED: LockNeed = LockNeed { mode: Mode::Lock, terms: TERMS };

/// Takes the lock like a leader whose request the server grants.
fn try_take(site: &Arc<Site>) -> Option<Arc<Tenancy>> {
    let thread = Thread::current();
    match site.gate.enter(&thread, NEED, false) {
        GateOutcome::Leads(leadership) => {
            let owner = site.core.id.next_owner();
            let hold = Hold::new(owner, TERMS, Asked::now(site), false);
            let tenancy = Arc::new(Tenancy::new(Arc::new(hold), thread));
            let is_admitted = site.admit(&tenancy, &mut Some(leadership)).unwrap();
            assert!(is_admitted, "nobody else leads");
            Some(tenancy)
        }
        GateOutcome::Occupied => None,
        GateOutcome::Expired(hold) => {
            site.lose_hold(&hold, LostReason::LeaseExpired);
            None
        }
        other => panic!("{other:?}, of a thread that holds nothing and does not wait"),
    }
}

fn take(site: &Arc<Site>) -> Arc<Tenancy> {
    loop {
        match try_take(site) {
            Some(tenancy) => return tenancy,
            None => thread::yield_now(),
        }
    }
}

/// A value whose drop counts how many times a thread has come back and left the lock again.
struct UntilLeft {
    tenancy: Arc<Tenancy>,
    left: Arc<AtomicUsize>,
}

impl Drop for UntilLeft {
    fn drop(&mut self) {
        assert!(!self.tenancy.is_held());
        self.left.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits a few times, unless the lock is lost. Returns how many times the thread came back.
fn wait(site: &Arc<Site>, tenancy: &Arc<Tenancy>, left: &Arc<AtomicUsize>) -> usize {
    let mut back = 0;
    for _ in 0..thread_rng().gen_range(0..3) {
        let Ok(seat) = site.leave_to_wait(tenancy) else { break };
        assert_eq!(left.load(Ordering::SeqCst), back);
        assert_eq!(tenancy.state(), HoldState::Released);
        let again = take(site);
        let until_left = UntilLeft { tenancy: Arc::clone(tenancy), left: Arc::clone(left) };
        site.come_back(seat, &again, Some(Box::new(until_left)));
        back += 1;
    }
    back
}

/// Callbacks are registered before, during or after a wait, or while a wait begins or ends. The
/// lock is lost at any of these times, or never.
#[test]
fn a_wait_is_no_loss_and_each_loss_is_reported_once() {
    let losses = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&losses);
    explore(2_000, move || {
        let server = ModelServer::start();
        let core = Core::model(&server);
        let subscriber = core.connect();
        let site = Site::of(&core, "name");
        let tenancy = take(&site);
        let called = Arc::new(AtomicUsize::new(0));
        let callbacks = [(); 2].map(|()| {
            let (tenancy, called) = (Arc::clone(&tenancy), Arc::clone(&called));
            thread::spawn(move || {
                let callback = Box::new(move |_| {
                    called.fetch_add(1, Ordering::SeqCst);
                });
                if let Some((reason, callback)) = tenancy.on_lost(callback) {
                    callback(reason);
                }
            })
        });
        let loses = thread_rng().gen_bool(0.5);
        let watchdog = Arc::clone(&site);
        let watchdog = thread::spawn(move || {
            if let Some(hold) = watchdog.gate.hold().filter(|_| loses) {
                thread::yield_now();
                watchdog.lose_hold(&hold, LostReason::Revoked);
            }
        });
        let (other, waiting) = (Arc::clone(&site), Arc::clone(&tenancy));
        let other = thread::spawn(move || {
            for _ in 0..2 {
                let Some(own) = try_take(&other) else { continue };
                let both = own.is_held() && waiting.is_held() && own.is_held();
                assert!(!both, "two hold at a time");
                let left = other.leave(&own, None, Leaving::Posted);
                assert!(left.is_ok() || own.hold().lost().is_some(), "{left:?}");
            }
        });
        let left = Arc::new(AtomicUsize::new(0));
        let back = wait(&site, &tenancy, &left);
        for thread in callbacks.into_iter().chain([watchdog, other]) {
            thread.join().unwrap();
        }
        match tenancy.state() {
            HoldState::Lost(_) => {
                seen.fetch_add(1, Ordering::SeqCst);
                while called.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
            }
            _ => site.leave(&tenancy, None, Leaving::Posted).unwrap(),
        }
        core.read_replies();
        core.end_subscriber(subscriber);
        // Ends the callbacks' thread.
        core.watchdog.shut_down();
        assert_eq!(left.load(Ordering::SeqCst), back);
        let is_lost = matches!(tenancy.state(), HoldState::Lost(_));
        assert_eq!(called.load(Ordering::SeqCst), if is_lost { 2 } else { 0 });
    });
    assert!(losses.load(Ordering::SeqCst) > 0);
}
