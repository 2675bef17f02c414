//! Tests of the gate with its clock.

use std::time::Duration;

use super::*;
use crate::ask::Asked;
use crate::scripts::ClientId;

const LEASE: Duration = Duration::from_secs(30);
const NEED: LockNeed = LockNeed { mode: Mode::Lock, terms: Terms::watched(LEASE) };

/// If the other threads leave before this thread's tenancy ends, nobody has the lock. This thread's
/// guard must then not report "held".
#[test]
fn a_thread_that_leaves_a_shared_hold_has_it_no_more() {
    let gate = Gate::new(Mode::Write).for_mode(Mode::Read);
    let [one, two] = [(); 2].map(|()| Thread::placeholder());
    let asked = Asked { forced_unlocks: 0, incarnation: 0, at: clock::now() };
    let owner = ClientId::random().unwrap().next_owner();
    let hold = Hold::new(owner, NEED.terms, asked, false);
    let first = Arc::new(Tenancy::new(Arc::new(hold), one));
    assert!(matches!(gate.admit(&first, &mut None, None), Admission::Admitted(None)));
    let reads = LockNeed { mode: Mode::Read, ..NEED };
    let GateOutcome::Joined(second) = gate.enter(&two, reads, false) else { panic!("not let in") };
    assert!(matches!(gate.leave(&first, None, None).0, LeaveOutcome::OthersStay));
    assert!(!first.is_held() && second.is_held());
    assert!(matches!(gate.leave(&second, None, None).0, LeaveOutcome::Release(..)));
}

#[test]
fn a_thread_that_comes_back_to_a_lost_hold_takes_no_other_threads_seat() {
    let gate = Gate::new(Mode::Lock);
    let [first, again, other] = [(); 3].map(|()| {
        let thread = Thread::placeholder();
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: clock::now() };
        let owner = ClientId::random().unwrap().next_owner();
        let hold = Hold::new(owner, Terms::watched(LEASE), asked, false);
        Arc::new(Tenancy::new(Arc::new(hold), thread))
    });
    let admit =
        |tenancy, leadership: &mut Option<QueueLeadership>| gate.admit(tenancy, leadership, None);
    assert!(matches!(admit(&first, &mut None), Admission::Admitted(None)));
    let LeaveOutcome::Release(mut left, mut leadership) = gate.leave_to_wait(&first).0 else {
        panic!("not left")
    };
    assert!(matches!(admit(&again, &mut leadership), Admission::Admitted(None)));
    gate.vacate(&again.hold()).1.now();
    assert!(matches!(admit(&other, &mut None), Admission::Admitted(None)));
    assert!(!gate.come_back(&again, &mut left));
    gate.with_seat(|seat| assert!(seat.is_some_and(|seat| seat.is(&other))));
}
