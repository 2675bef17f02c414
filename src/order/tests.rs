//! Tests each transition of the tables at the top of `mod.rs` and `readers.rs`.

use std::time::Duration;

use redlatch_client::sync::Mutex;

use super::line::{QueuedState, QueuedThread};
use super::*;
use crate::ask::Asked;
use crate::hold::line::Line;
use crate::scripts::{ClientId, FairKeys};
use crate::waiting::{QueueLeadership, Signal};

const LEASE: Duration = Duration::from_secs(30);
const NEED: LockNeed = LockNeed { mode: Mode::Lock, terms: Terms::watched(LEASE) };
const OVER: u64 = 30_000_000_000;

/// Returns a tenancy of the thread, granted when the clock began.
fn granted(thread: &Arc<Thread>, forced_unlocks: u64) -> Arc<Tenancy> {
    let asked = Asked { forced_unlocks, incarnation: 0, at: 0 };
    let owner = ClientId::random().unwrap().next_owner();
    let hold = Hold::new(owner, Terms::watched(LEASE), asked, false);
    Arc::new(Tenancy::since(Arc::new(hold), Arc::clone(thread), 0))
}

/// Returns whether the seat is taken, and whether a thread leads.
fn is(state: &Order<()>) -> (bool, bool) {
    (state.alone.seat.is_some(), state.queue.is_led())
}

const FREE: (bool, bool) = (false, false);
const LED: (bool, bool) = (false, true);
const HELD: (bool, bool) = (true, false);

#[test]
fn each_state_is_left_as_the_table_says() {
    let mut state = Order::<()>::new();
    let [one, two] = [(); 2].map(|()| Thread::placeholder());
    let enter = |state: &mut Order<()>, thread, now| state.enter(thread, NEED, true, now);
    assert_eq!(is(&state), FREE);
    let mut leadership = leads(enter(&mut state, &one, 0));
    assert!(matches!(state.enter(&two, NEED, false, 0), GateOutcome::Occupied));
    assert_eq!(is(&state), LED);
    let first = granted(&one, 0);
    assert!(matches!(
        state.admit(Mode::Lock, &first, &mut leadership, None, 0),
        Admission::Admitted(None)
    ));
    assert!(leadership.is_none());
    assert_eq!(is(&state), HELD);
    assert!(matches!(enter(&mut state, &one, 0), GateOutcome::Reentered(_)));
    assert!(matches!(state.leave(Mode::Lock, &first, None, 0), Ok(LeaveOutcome::StillHeld)));
    let GateOutcome::Queued(waiter) = enter(&mut state, &two, 0) else { panic!("not queued") };
    assert!(matches!(state.leave(Mode::Lock, &first, None, 0), Ok(LeaveOutcome::Passed(..))));
    assert_eq!(is(&state), HELD);
    assert!(matches!(state.leave(Mode::Lock, &first, None, 0), Err(LeftTooLate::NotThere)));
    let Some(Signal::Passed(second)) = waiter.take_signal() else { panic!("not passed") };
    // The turn is over, so the waiter gets the leadership and not the hold.
    let GateOutcome::Queued(waiter) = enter(&mut state, &one, 0) else { panic!("not queued") };
    let left = state.leave(Mode::Lock, &second, None, OVER / 2);
    let Ok(LeaveOutcome::Release(_, Some(leadership))) = left else { panic!("{left:?}") };
    assert_eq!(is(&state), LED);
    state.queue.promote(leadership, None).0.now();
    assert_eq!(is(&state), LED);
    let Some(Signal::Leadership(Some(leadership), None)) = waiter.take_signal() else {
        panic!("not promoted")
    };
    state.queue.promote(leadership, None).0.now();
    assert_eq!(is(&state), FREE);
}

/// Returns the leadership of a thread that has entered.
fn leads(entered: GateOutcome<()>) -> Option<QueueLeadership> {
    match entered {
        GateOutcome::Leads(leadership) => Some(leadership),
        other => panic!("{other:?}"),
    }
}

/// Returns the line of a fair hold whose grant named these followers.
fn line(followers: &[u64]) -> Line {
    Line::new(&Arc::new(FairKeys::new("name")), followers.iter().copied().collect())
}

#[test]
fn a_hold_of_another_queue_leaves_the_leadership_and_is_passed_to_no_thread_here() {
    let mut state = Order::<()>::new();
    let [leader, other, fair] = [(); 3].map(|()| Thread::placeholder());
    let _leadership = leads(state.enter(&leader, NEED, true, 0));
    let tenancy = fair_hold(&fair, &[]);
    admits(&mut state, &tenancy, None);
    let GateOutcome::Queued(waiter) = state.enter(&other, NEED, true, 0) else { panic!() };
    assert!(matches!(
        state.leave(Mode::Lock, &tenancy, None, 0),
        Ok(LeaveOutcome::Release(_, None))
    ));
    assert!(waiter.take_signal().is_none());
    assert_eq!(is(&state), LED);
}

/// Returns a fair lock's hold of this thread, granted when the clock began.
fn fair_hold(thread: &Arc<Thread>, followers: &[u64]) -> Arc<Tenancy> {
    let asked = Asked { forced_unlocks: 0, incarnation: 0, at: 0 };
    let owner = ClientId::random().unwrap().next_owner();
    let hold = Hold::new(owner, Terms::watched(LEASE), asked, false).in_line(line(followers));
    Arc::new(Tenancy::since(Arc::new(hold), Arc::clone(thread), 0))
}

/// Adds a thread to the fair lock's queue.
fn stands(state: &mut Order<()>) -> Arc<QueuedThread> {
    let thread = Thread::placeholder();
    let queued = Arc::new(QueuedThread {
        lock: "name".into(),
        database: 0,
        owner: ClientId::random().unwrap().next_owner(),
        waker: thread.waker(),
        thread,
        terms: Terms::watched(LEASE),
        state: Mutex::new(QueuedState::new()),
    });
    state.standing.get_or_insert_default().queued.push(Arc::clone(&queued));
    queued
}

fn admits(state: &mut Order<()>, tenancy: &Arc<Tenancy>, mut leadership: Option<QueueLeadership>) {
    let admitted = state.admit(Mode::Lock, tenancy, &mut leadership, None, 0);
    assert!(matches!(admitted, Admission::Admitted(None)), "{admitted:?}");
    assert!(leadership.is_none());
}

/// Leaves at time zero. Returns `false` if the hold was not passed, so that the thread must release
/// it.
fn passes(state: &mut Order<()>, tenancy: &Arc<Tenancy>) -> bool {
    match state.leave(Mode::Lock, tenancy, None, 0) {
        Ok(LeaveOutcome::Passed(..)) => true,
        Ok(LeaveOutcome::Release(..)) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hold_goes_on_in_the_order_of_its_own_kind() {
    let [holder, plain] = [(); 2].map(|()| Thread::placeholder());
    for (is_fair, has_followers) in [(false, false), (true, true), (true, false)] {
        let mut state = Order::<()>::new();
        let fair = stands(&mut state);
        let followers = if has_followers { vec![fair.owner.number()] } else { Vec::new() };
        let hold = if is_fair { fair_hold(&holder, &followers) } else { granted(&holder, 0) };
        admits(&mut state, &hold, None);
        let GateOutcome::Queued(waiter) = state.enter(&plain, NEED, true, 0) else { panic!() };
        assert_eq!(passes(&mut state, &hold), !is_fair || has_followers);
        let plain_has_it = matches!(waiter.take_signal(), Some(Signal::Passed(_)));
        assert_eq!(plain_has_it, !is_fair);
        assert_eq!(fair.state.lock().passed_hold.is_some(), has_followers);
        let stand = &state.standing.as_ref().unwrap().queued;
        assert_eq!(stand.is_empty(), has_followers, "the others still stand");
    }
}

#[test]
fn the_hold_of_a_leader_goes_to_no_thread_that_stands_in_the_line() {
    let [leader, plain] = [(); 2].map(|()| Thread::placeholder());
    let mut state = Order::<()>::new();
    let fair = stands(&mut state);
    let leadership = leads(state.enter(&leader, NEED, true, 0));
    let GateOutcome::Queued(waiter) = state.enter(&plain, NEED, true, 0) else { panic!() };
    assert_eq!(is(&state), LED);
    let hold = granted(&leader, 0);
    admits(&mut state, &hold, leadership);
    assert_eq!(is(&state), HELD);
    assert!(fair.state.lock().passed_hold.is_none() && waiter.take_signal().is_none());
    assert!(passes(&mut state, &hold));
    let Some(Signal::Passed(next)) = waiter.take_signal() else { panic!("not passed") };
    // No thread is in this process's queue, so the thread releases the hold. The server then grants
    // the lock to the next thread of the line.
    assert!(!passes(&mut state, &next));
    assert_eq!(is(&state), LED);
    assert!(fair.state.lock().passed_hold.is_none());
    assert_eq!(state.standing.as_ref().unwrap().queued.len(), 1);
}

#[test]
fn a_hold_that_is_over_is_neither_entered_nor_in_the_way() {
    let mut state = Order::<()>::new();
    let thread = Thread::placeholder();
    let old = granted(&thread, 0);
    state.admit(Mode::Lock, &old, &mut None, None, 0);
    let entered = state.enter(&thread, NEED, true, OVER);
    assert!(matches!(entered, GateOutcome::Expired(_)), "{entered:?}");
    let new = granted(&thread, 0);
    assert!(matches!(state.admit(Mode::Lock, &new, &mut None, None, 0), Admission::OtherHold(_)));
    let gone = old.hold();
    let admitted = state.admit(Mode::Lock, &new, &mut None, Some(&gone), 0);
    assert!(matches!(admitted, Admission::Admitted(Some(_))), "{admitted:?}");
}

#[test]
fn a_thread_that_leaves_too_late_learns_what_is_left_to_do() {
    let mut state = Order::<()>::new();
    let [one, two] = [(); 2].map(|()| Thread::placeholder());
    let alone = granted(&one, 0);
    state.admit(Mode::Lock, &alone, &mut None, None, 0);
    state.enter(&one, NEED, true, 0);
    let left = state.leave(Mode::Lock, &alone, None, OVER);
    assert!(matches!(left, Err(LeftTooLate::LevelsStay)), "{left:?}");
    assert_eq!(is(&state), HELD);
    let left = state.leave(Mode::Lock, &alone, None, OVER);
    assert!(matches!(left, Err(LeftTooLate::Last(_, Some(_)))), "{left:?}");
    assert_eq!(is(&state), LED);
    // Each of these readers wants the hold for another time.
    for (leaves_at, is_late) in [(OVER / 2, false), (OVER, true)] {
        let mut state = Order::<()>::new();
        let terms = [LEASE, LEASE / 4].map(Terms::fixed);
        let [long, short] = terms.map(|terms| LockNeed { mode: Mode::Read, terms });
        let asked = Asked { forced_unlocks: 0, incarnation: 0, at: 0 };
        let owner = ClientId::random().unwrap().next_owner_to(Mode::Read, false);
        let hold = Arc::new(Hold::new(owner, long.terms, asked, false));
        let first = Arc::new(Tenancy::since(hold, Arc::clone(&one), 0));
        state.admit(Mode::Read, &first, &mut None, None, 0);
        let joined = state.enter(&two, short, true, 0);
        let GateOutcome::Joined(second) = joined else { panic!("{joined:?}") };
        // This reader has had the hold until now, although the hold is over without it.
        let left = state.leave(Mode::Read, &first, None, leaves_at);
        assert_eq!(matches!(left, Ok(LeaveOutcome::OthersStay)), !is_late, "{left:?}");
        assert_eq!(matches!(left, Err(LeftTooLate::OthersStay)), is_late, "{left:?}");
        let left = state.leave(Mode::Read, &second, None, leaves_at);
        assert!(matches!(left, Err(LeftTooLate::Last(_, None))), "{left:?}");
    }
}

#[test]
fn a_grant_asked_for_before_a_forced_unlock_is_not_ours() {
    let mut state = Order::<()>::new();
    state.alone.forced_unlocks += 1;
    let thread = Thread::placeholder();
    let mut leadership = leads(state.enter(&thread, NEED, true, 0));
    for (forced_unlocks, held) in [(0, LED), (1, HELD)] {
        state.admit(Mode::Lock, &granted(&thread, forced_unlocks), &mut leadership, None, 0);
        assert_eq!(is(&state), held);
    }
}

#[test]
fn a_renewal_on_its_way_goes_with_the_hold_and_one_that_failed_keeps_it() {
    for (fails, passed) in [(false, true), (true, false)] {
        let mut state = Order::<()>::new();
        let [one, two] = [(); 2].map(|()| Thread::placeholder());
        let tenancy = granted(&one, 0);
        state.admit(Mode::Lock, &tenancy, &mut None, None, 0);
        let seat = state.alone.seat.as_mut().unwrap();
        let before = seat.renewal_state();
        assert_eq!(seat.renewing(before).record_sent(Some(LEASE), OVER), None);
        assert_eq!(seat.renewing(before).record_sent(Some(LEASE), 0), Some(LEASE));
        if fails {
            tenancy.hold().renewal_failed(&"no server".into());
            seat.progress = seat.progress.after_failure(false, LEASE, 0);
        }
        assert!(seat.may_outlast_deadline());
        let _waiter = state.enter(&two, NEED, true, 0);
        assert_eq!(
            matches!(state.leave(Mode::Lock, &tenancy, None, 0), Ok(LeaveOutcome::Passed(..))),
            passed
        );
        assert!(state.alone.seat.as_ref().is_none_or(|seat| seat.progress.is_sent()));
    }
}
