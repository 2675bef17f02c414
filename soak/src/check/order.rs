//! Looks for an order of acquires, releases and expiries at the server that explains all replies.
//! The search works on the parts between quiet moments.
//!
//! At the server, a hold consists of an acquire and an end. The acquire takes effect between the
//! call and its return. The end is a release or an expiry. A release takes effect between its call
//! and its reply. An expiry takes effect at the last deadline that the guard reported, or later:
//! the guard counts its lease from before the request, so the server's deadline is later. The
//! server's deadline includes renewals. A hold that is kept for a minimum time, or left to expire,
//! does not end earlier.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use super::{Findings, Hold};
use crate::history::{Fault, Kind, Outcome};

/// The maximum number of steps of a search, for each of its operations.
const BUDGET: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Acquire,
    Release,
    Expire,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    what: What,
    hold: usize,
    weight: u64,
    call: u64,
    /// The time at which the operation was certainly done. `u64::MAX` if it may never have
    /// happened.
    done: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Explained,
    /// No order explains the replies up to this operation.
    Contradiction(usize),
    /// The search took too many steps.
    Unknown,
}

/// Checks the holds of one name. Leaves out holds that ended before their callers received the
/// grant, because the time of their end is unknown. Also leaves out holds at the time of a loss of
/// data, because the server may have lost them at any time.
pub(super) fn check(name: &str, holds: &[Hold], faults: &[Fault], found: &mut Findings) {
    let is_count = holds.first().is_some_and(|it| it.grant.kind == Kind::Semaphore);
    if is_count && faults.iter().any(Fault::forgets_counts) {
        return;
    }
    let beside = |hold: &Hold| {
        let to = match hold.left {
            Some((at, outcome)) if outcome != Outcome::Kept => at.max(hold.grant.at + hold.keeps),
            _ => hold.deadline(),
        };
        faults
            .iter()
            .any(|it| it.forgets && hold.began().min(hold.grant.call) <= it.to && to >= it.from)
    };
    let holds: Vec<_> =
        holds.iter().filter(|hold| hold.deadline() > hold.grant.at && !beside(hold)).collect();
    let Some(capacity) = holds.first().map(|hold| hold.grant.capacity) else { return };
    for part in parts(&operations(&holds)) {
        found.count("orders searched", 1);
        match search(&part, capacity) {
            Answer::Explained => {}
            Answer::Unknown => found.count("orders not known", 1),
            Answer::Contradiction(at) => {
                let operation = part[at];
                let hold = holds[operation.hold];
                let text = format!(
                    "no order explains the {:?} of process {} hold {} between {} and {}",
                    operation.what, hold.process, hold.grant.id, operation.call, operation.done
                );
                found.violation(
                    "order",
                    name,
                    [hold.grant.call, operation.done.min(hold.deadline())],
                    text,
                );
            }
        }
    }
}

fn operations(holds: &[&Hold]) -> Vec<Operation> {
    let mut all = Vec::with_capacity(2 * holds.len());
    for (hold, it) in holds.iter().enumerate() {
        let weight = it.grant.weight;
        let mut add = |what, call, done| all.push(Operation { what, hold, weight, call, done });
        add(What::Acquire, it.grant.call, it.grant.at);
        let leaving = it.leaving.map(|[at, _]| at);
        match it.left {
            Some((at, Outcome::Done)) if it.keeps > 0 => {
                let from = it.grant.call.saturating_add(it.keeps).max(leaving.unwrap_or(at));
                add(What::Expire, from, u64::MAX);
            }
            Some((_, Outcome::Kept)) => add(What::Expire, it.deadline(), u64::MAX),
            Some((at, Outcome::Done)) => add(What::Release, leaving.unwrap_or(at), at),
            // A leader steps down before its lease ends, and its resignation then reports a loss.
            // Such a loss does not show the state at the server.
            Some((_, Outcome::Lost)) if it.lost.is_some() && it.grant.name.contains("election") => {
                add(What::Expire, it.deadline().min(it.lost.unwrap_or(u64::MAX)), u64::MAX);
            }
            // The server or the guard has reported the end by this time.
            Some((at, Outcome::Lost)) => {
                add(What::Expire, it.deadline(), at.min(it.lost.unwrap_or(at)));
            }
            _ => {
                if let Some(at) = leaving {
                    add(What::Release, at, u64::MAX);
                }
                add(What::Expire, it.deadline().min(it.lost.unwrap_or(u64::MAX)), u64::MAX);
            }
        }
    }
    all.sort_by_key(|it| (it.call, it.done));
    all
}

/// Splits the operations at each moment at which all earlier operations are done and nothing is
/// held.
fn parts(operations: &[Operation]) -> Vec<Vec<Operation>> {
    let mut parts: Vec<Vec<Operation>> = vec![Vec::new()];
    let mut ends: HashMap<usize, u64> = HashMap::new();
    for it in operations {
        let end = ends.entry(it.hold).or_insert(u64::MAX);
        if it.what != What::Acquire {
            *end = it.done;
        }
    }
    let mut busy = 0;
    for it in operations {
        if it.call > busy && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(Vec::new());
        }
        busy = busy.max(ends.get(&it.hold).copied().unwrap_or(u64::MAX)).max(it.done);
        if let Some(part) = parts.last_mut() {
            part.push(*it);
        }
    }
    parts
}

/// A step of the search: the operation that was put into the order, and the other choices.
struct Step {
    chosen: usize,
    /// The other choices for this step.
    others: Vec<usize>,
    first: usize,
}

fn search(operations: &[Operation], capacity: u64) -> Answer {
    // Each set of ordered operations has its own mark. The mark also identifies the state, because
    // the set determines the holders.
    let mark = |at: usize| {
        let mut mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 31;
        mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    // A hold ends only once. When its release is put into the order, its expiry is put into the
    // order, too.
    let mut ends: HashMap<usize, Vec<usize>> = HashMap::new();
    for (at, it) in operations.iter().enumerate().filter(|(_, it)| it.what != What::Acquire) {
        ends.entry(it.hold).or_default().push(at);
    }
    let together = |at: usize| match operations[at].what {
        What::Acquire => vec![at],
        What::Release | What::Expire => ends.get(&operations[at].hold).cloned().unwrap_or_default(),
    };
    let mut ordered = vec![false; operations.len()];
    let mut holding: HashMap<usize, u64> = HashMap::new();
    let (mut held, mut first, mut marks) = (0, 0, 0u64);
    let mut known: HashSet<u64> = HashSet::new();
    let mut path: Vec<Step> = Vec::new();
    // The largest number of operations that were put into the order, and the operation that had to
    // follow.
    let mut furthest = (0, 0);
    let mut left = BUDGET * operations.len() + 1000;
    let mut options = candidates(operations, &ordered, first, &holding, held, capacity);
    loop {
        if options.is_empty() && all_over(operations, &ordered, first) {
            return Answer::Explained;
        }
        left -= 1;
        if left == 0 {
            return Answer::Unknown;
        }
        if let Some(chosen) = options.pop() {
            let step = Step { chosen, others: options, first };
            apply(operations[chosen], &mut holding, &mut held);
            for at in together(chosen) {
                ordered[at] = true;
                marks ^= mark(at);
            }
            while ordered.get(first) == Some(&true) {
                first += 1;
            }
            path.push(step);
            options = if known.insert(marks) {
                candidates(operations, &ordered, first, &holding, held, capacity)
            } else {
                Vec::new()
            };
            if path.len() > furthest.0 {
                let mut next: Option<usize> = None;
                for at in first..operations.len() {
                    let before = next.map_or(u64::MAX, |it| operations[it].done);
                    if operations[at].call > before {
                        break;
                    }
                    if !ordered[at] && operations[at].done < before {
                        next = Some(at);
                    }
                }
                furthest = (path.len(), next.unwrap_or(first));
            }
            if options.is_empty() && all_over(operations, &ordered, first) {
                return Answer::Explained;
            }
        } else {
            let Some(step) = path.pop() else {
                return Answer::Contradiction(furthest.1);
            };
            undo(operations[step.chosen], &mut holding, &mut held);
            for at in together(step.chosen) {
                ordered[at] = false;
                marks ^= mark(at);
            }
            (first, options) = (step.first, step.others);
        }
    }
}

/// Whether every remaining operation may never have happened.
fn all_over(operations: &[Operation], ordered: &[bool], first: usize) -> bool {
    (first..operations.len()).all(|at| ordered[at] || operations[at].done == u64::MAX)
}

/// Returns the operations that may come next, the best operation last. An operation may come next
/// if every other open operation returned after its call.
fn candidates(
    operations: &[Operation],
    ordered: &[bool],
    first: usize,
    holding: &HashMap<usize, u64>,
    held: u64,
    capacity: u64,
) -> Vec<usize> {
    let mut before = u64::MAX;
    let mut open = Vec::new();
    for (at, it) in operations.iter().enumerate().skip(first) {
        if it.call > before {
            break;
        }
        if !ordered[at] {
            before = before.min(it.done);
            open.push(at);
        }
    }
    open.retain(|at| {
        let it = &operations[*at];
        it.call <= before
            && match it.what {
                What::Acquire => held + it.weight <= capacity,
                What::Release | What::Expire => holding.contains_key(&it.hold),
            }
    });
    // An end only makes room, so ends come first. After all ends comes the acquire that returned
    // first.
    open.sort_by_key(|at| {
        let it = &operations[*at];
        (it.what != What::Acquire, std::cmp::Reverse(it.done))
    });
    open
}

fn apply(it: Operation, holding: &mut HashMap<usize, u64>, held: &mut u64) {
    match it.what {
        What::Acquire => {
            holding.insert(it.hold, it.weight);
            *held += it.weight;
        }
        What::Release | What::Expire => {
            holding.remove(&it.hold);
            *held -= it.weight;
        }
    }
}

fn undo(it: Operation, holding: &mut HashMap<usize, u64>, held: &mut u64) {
    let back = match it.what {
        What::Acquire => What::Release,
        What::Release | What::Expire => What::Acquire,
    };
    apply(Operation { what: back, ..it }, holding, held);
}

/// Writes the operations as lines of JSON, for other checkers.
pub(crate) fn export(name: &str, holds: &[Hold], out: &mut impl Write) -> io::Result<()> {
    let holds: Vec<_> = holds.iter().collect();
    for it in operations(&holds) {
        let hold = holds[it.hold];
        // The server lost the hold with its data before the deadline, at any time after the grant.
        let call = if it.call > it.done { hold.grant.at } else { it.call };
        writeln!(
            out,
            r#"{{"name":"{name}","client":{},"hold":{},"op":"{}","weight":{},"capacity":{},"token":{},"call":{},"return":{}}}"#,
            hold.process,
            hold.grant.id,
            match it.what {
                What::Acquire => "acquire",
                What::Release => "release",
                What::Expire => "expire",
            },
            it.weight,
            hold.grant.capacity,
            hold.grant.token,
            call,
            // The operation may have happened at any later time, or never.
            if it.done == u64::MAX { "null".to_owned() } else { it.done.to_string() },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hold};
    use super::*;
    use crate::clock::ms;

    fn violations(holds: &[Hold], faults: &[Fault]) -> usize {
        let mut found = Findings::default();
        check("a", holds, faults, &mut found);
        assert_eq!(found.counted("orders not known"), 0);
        found.violations.len()
    }

    #[test]
    fn an_order_of_holders_is_found_where_there_is_one() {
        // The second hold was requested first.
        assert_eq!(violations(&[hold(1, 3, 4, 6), hold(2, 0, 7, 9)], &[]), 0);
        // The release took effect before its reply.
        let mut first = hold(1, 0, 1, 5);
        first.left = Some((ms(50), Outcome::Done));
        assert_eq!(violations(&[first, hold(2, 0, 6, 9)], &[]), 0);
        let many: Vec<_> =
            (0..500).map(|at| hold(at, 0, 10 * at as u64 + 1, 10 * at as u64 + 9)).collect();
        assert_eq!(violations(&many, &[]), 0);
    }

    #[test]
    fn a_grant_before_the_release_is_found() {
        assert_eq!(violations(&[hold(1, 0, 1, 5), hold(2, 0, 4, 9)], &[]), 1);
    }

    #[test]
    fn a_hold_that_was_not_released_ends_with_its_deadline_and_not_before() {
        let mut dead = hold(1, 0, 1, 5);
        dead.grant.until = ms(20);
        (dead.leaving, dead.left) = (None, None);
        assert_eq!(violations(&[dead.clone(), hold(2, 0, 21, 25)], &[]), 0);
        assert_eq!(violations(&[dead, hold(2, 0, 19, 25)], &[]), 1);
    }

    #[test]
    fn a_hold_that_the_server_lost_before_its_deadline_is_found() {
        let mut lost = hold(1, 0, 1, 5);
        lost.left = Some((ms(6), Outcome::Lost));
        assert_eq!(violations(std::slice::from_ref(&lost), &[]), 1);
        assert_eq!(violations(&[lost], &[fault(2, 3, None, true)]), 0);
    }

    #[test]
    fn a_forgotten_hold_that_was_passed_on_is_left_out() {
        // A hold that was passed on after the server lost it, and whose lease began before the
        // loss.
        let mut passed = hold(1, 4, 5, 7);
        passed.grant.until = ms(100_002);
        passed.left = Some((ms(8), Outcome::Lost));
        assert_eq!(violations(std::slice::from_ref(&passed), &[fault(2, 3, None, true)]), 0);
        // A hold that was granted after the loss.
        passed.grant.until = ms(100_004);
        assert_eq!(violations(&[passed], &[fault(2, 3, None, true)]), 1);
    }

    #[test]
    fn a_search_for_an_order_that_gives_up_does_not_pass() {
        // Many overlapping acquires of half the capacity: there is no order, but many tries.
        let mut holds: Vec<_> = (0..40).map(|at| hold(at, 0, 100 + u64::from(at), 200)).collect();
        for hold in &mut holds {
            hold.grant.capacity = 20;
        }
        let holds: Vec<_> = holds.iter().collect();
        let answer = search(&operations(&holds), 20);
        assert!(matches!(answer, Answer::Unknown | Answer::Contradiction(_)), "{answer:?}");
    }

    #[test]
    fn each_operation_is_exported_as_a_line() {
        let mut out = Vec::new();
        export("a", &[hold(1, 0, 1, 5)], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with(r#"{"name":"a","client":1,"#), "{text}");
        let mut forgotten = hold(1, 0, 1, 5);
        forgotten.left = Some((ms(6), Outcome::Lost));
        let mut out = Vec::new();
        export("a", &[forgotten], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(r#""token":0,"call":1000000,"return":6000000}"#), "{text}");
    }
}
