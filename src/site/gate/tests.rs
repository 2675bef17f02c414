//! Tests of the gate with its clock.

use std::time::Duration;

use super::*;
use crate::ask::Asked;
use crate::order::Admission;
use crate::scripts::ClientId;

const LEASE: Duration = Duration::from_secs(30);
const NEED: LockNeed = LockNeed { mode: Mode::Lock, terms: Terms::watched(LEASE) };

fn admit(gate: &Gate, tenancy: &Arc<Tenancy>, leadership: &mut Option<QueueLeadership>) {
    let admitted = gate.at(|order, now| order.admit(gate.mode, tenancy, leadership, None, now));
    assert!(matches!(admitted, Admission::Admitted(None)), "{admitted:?}");
}

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
    admit(&gate, &first, &mut None);
    let reads = LockNeed { mode: Mode::Read, ..NEED };
    let GateOutcome::Joined(second) = gate.enter(&two, reads, false) else { panic!("not let in") };
    assert!(matches!(gate.leave(&first, None, None), Ok(LeaveOutcome::OthersStay)));
    assert!(!first.is_held() && second.is_held());
    assert!(matches!(gate.leave(&second, None, None), Ok(LeaveOutcome::Release(..))));
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
    admit(&gate, &first, &mut None);
    let Ok(LeaveOutcome::Release(mut left, mut leadership)) = gate.leave_to_wait(&first) else {
        panic!("not left")
    };
    admit(&gate, &again, &mut leadership);
    gate.vacate(&again.hold()).1.now();
    admit(&gate, &other, &mut None);
    assert!(!gate.come_back(&again, &mut left));
    gate.with_seat(|seat| assert!(seat.is_some_and(|seat| seat.is(&other))));
}
