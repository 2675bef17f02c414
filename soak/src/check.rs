//! The rules for the history of a round. Each check reads only the history.

use std::collections::{BTreeMap, HashMap};

use crate::clock::ms;
use crate::history::{Event, Fault, Grant, Kind, Outcome, Round};

mod barrier;
mod claims;
mod fair;
mod fenced;
mod kept;
mod losses;
mod order;
mod tokens;
mod trouble;
mod waits;
mod wanted;

pub(crate) use fenced::{forgotten, lost_writes};
pub(crate) use order::export;

/// A delay that is too long even for a busy machine.
pub(crate) const SLACK: u64 = ms(1500);

/// The first lease of a grant by message, in ns. It may be longer than the lease that the caller
/// requested.
const PROVISIONAL: u64 = ms(2000);

/// An acquisition, from its call to its end.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) process: u32,
    pub(crate) grant: Grant,
    /// Each time at which the guard reported "held", with the end of its lease at that time.
    pub(crate) seen: Vec<[u64; 2]>,
    /// The time at which the release began, and the end of the guard's lease just before it. The
    /// end is zero if the guard reported a loss.
    pub(crate) leaving: Option<[u64; 2]>,
    pub(crate) left: Option<(u64, Outcome)>,
    /// The time at which the callback for the loss ran.
    pub(crate) lost: Option<u64>,
    /// The times at which the holder was notified that others wait, or that nobody waits.
    pub(crate) heard: Vec<(u64, bool)>,
    pub(crate) killed: Option<u64>,
    /// The minimum time in ns for which the name stays taken after the grant, even without a
    /// holder.
    pub(crate) keeps: u64,
}

impl Hold {
    /// The latest end of the lease that the guard reported.
    pub(crate) fn deadline(&self) -> u64 {
        let seen = self.seen.iter().chain(&self.leaving).map(|[_, until]| *until);
        seen.fold(self.grant.until, u64::max)
    }

    /// The time until which the holder may believe that it has the lock.
    pub(crate) fn claims_until(&self) -> u64 {
        let ends = [self.leaving.map(|[at, _]| at), self.lost, self.killed];
        let end = ends.into_iter().flatten().fold(self.deadline(), u64::min);
        end.max(self.grant.at)
    }

    /// The time at which the server has certainly ended the hold, or `u64::MAX`.
    fn is_over(&self) -> u64 {
        match self.left {
            Some((at, Outcome::Done | Outcome::Lost)) if self.keeps == 0 => at,
            _ => u64::MAX,
        }
    }

    /// Returns a time at or after the server's grant. A thread of the same process may have had the
    /// hold earlier, and may have passed it on without a request.
    fn began(&self) -> u64 {
        let longest = self.longest_lease();
        self.grant.at.min(self.grant.until.saturating_sub(longest))
    }

    /// The longest lease that the server may have granted.
    fn longest_lease(&self) -> u64 {
        self.grant.lease.max(PROVISIONAL).max(self.keeps)
    }

    /// Whether the server may have lost this hold and all counts before `at`.
    fn is_forgotten(&self, faults: &[Fault], at: u64) -> bool {
        let mut lost = faults.iter().filter(|it| it.forgets_counts());
        lost.any(|it| self.began() <= it.to && at >= it.from)
    }
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) check: &'static str,
    pub(crate) name: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) text: String,
}

/// The findings of the checks, for one round or all rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Findings {
    /// Whether this check found a violation of a name that contains `name`.
    pub(crate) fn has(&self, check: &str, name: &str) -> bool {
        self.violations.iter().any(|it| it.check == check && it.name.contains(name))
    }

    fn violation(&mut self, check: &'static str, name: &str, at: [u64; 2], text: String) {
        let [from, to] = at;
        self.violations.push(Violation { check, name: name.to_owned(), from, to, text });
    }

    pub(crate) fn count(&mut self, what: &'static str, by: u64) {
        *self.counts.entry(what).or_default() += by;
    }

    /// Notes a time in ns. `what` begins with "longest".
    fn longest(&mut self, what: &'static str, time: u64) {
        let longest = self.counts.entry(what).or_default();
        *longest = time.max(*longest);
    }

    pub(crate) fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.violations.extend(other.violations.iter().cloned());
        for (what, count) in &other.counts {
            if what.starts_with("longest ") {
                self.longest(what, *count);
            } else {
                self.count(what, *count);
            }
        }
    }
}

/// Checks all rules.
pub(crate) fn check(round: &Round) -> Findings {
    let mut found = Findings::default();
    let names = holds(round, &mut found);
    for (name, holds) in &names {
        found.count("acquisitions", holds.len() as u64);
        let switches = holds.windows(2).filter(|it| it[0].process != it[1].process).count();
        found.count("switches", switches as u64);
        claims::check(name, holds, &round.faults, &mut found);
        order::check(name, holds, &round.faults, &mut found);
        kept::check(name, holds, &round.faults, &mut found);
        match holds.first().map(|hold| hold.grant.kind) {
            Some(Kind::Fenced) => tokens::check(name, holds, &round.faults, &mut found),
            Some(Kind::Fair) => fair::check(name, holds, round, &mut found),
            _ => {}
        }
        losses::check(name, holds, round, &mut found);
        waits::idle(name, holds, round, &mut found);
        wanted::check(name, holds, round, &mut found);
        for hold in holds {
            let (from, to) = (hold.grant.call, hold.grant.at);
            let wait = (to - from).saturating_sub(round.stopped(hold.process, from, to));
            found.longest("longest wait", wait);
        }
    }
    waits::check(round, &mut found);
    kept::stuck(round, &names, &mut found);
    trouble::check(round, &names, &mut found);
    found
}

/// The holds of each name, in the order in which they were granted.
pub(crate) fn holds(round: &Round, found: &mut Findings) -> BTreeMap<String, Vec<Hold>> {
    let mut names: BTreeMap<String, Vec<Hold>> = BTreeMap::new();
    for process in &round.processes {
        let mut open: HashMap<u64, Hold> = HashMap::new();
        let mut keeps: HashMap<(&str, u64), u64> = HashMap::new();
        for event in &process.events {
            match event {
                Event::Asks { name, call, keeps: it } => drop(keeps.insert((name, *call), *it)),
                Event::Granted(grant) => {
                    let hold = Hold {
                        process: process.number,
                        grant: grant.clone(),
                        seen: Vec::new(),
                        leaving: None,
                        left: None,
                        lost: None,
                        heard: Vec::new(),
                        killed: process.killed,
                        keeps: keeps.remove(&(&*grant.name, grant.call)).unwrap_or(0),
                    };
                    open.insert(grant.id, hold);
                }
                Event::Seen { id, at, until } => {
                    if let Some(hold) = open.get_mut(id) {
                        hold.seen.push([*at, *until]);
                    }
                }
                Event::Leaving { id, at, until } => {
                    if let Some(hold) = open.get_mut(id) {
                        hold.leaving = Some([*at, *until]);
                    }
                }
                Event::Left { id, at, outcome } => {
                    if let Some(hold) = open.get_mut(id) {
                        hold.left = Some((*at, *outcome));
                    }
                }
                Event::Lost { id, at } => {
                    if let Some(hold) = open.get_mut(id) {
                        hold.lost = Some(*at);
                    }
                }
                Event::Heard { id, at, is_wanted } => {
                    if let Some(hold) = open.get_mut(id) {
                        hold.heard.push((*at, *is_wanted));
                    }
                }
                Event::Odd { at, text } => {
                    found.violation("odd", "", [*at, *at], text.clone());
                }
                Event::Missed { .. } | Event::Stepped { .. } => {}
            }
        }
        for hold in open.into_values() {
            names.entry(hold.grant.name.clone()).or_default().push(hold);
        }
    }
    for holds in names.values_mut() {
        holds.sort_by_key(|hold| (hold.grant.at, hold.grant.call));
        holds.iter_mut().for_each(|hold| hold.heard.sort_unstable());
    }
    names
}

/// Functions for the tests of the checks.
#[cfg(test)]
mod testing {
    use super::*;

    /// A hold of an exclusive lock with a lease of 100 s. The times are in ms.
    pub(super) fn hold(process: u32, call: u64, at: u64, leaving: u64) -> Hold {
        Hold {
            process,
            grant: Grant {
                id: at,
                kind: Kind::Reentrant,
                name: "a".to_owned(),
                weight: 1,
                capacity: 1,
                call: ms(call),
                at: ms(at),
                until: ms(at + 100_000),
                lease: ms(100_000),
                token: 0,
                is_watched: true,
            },
            seen: Vec::new(),
            leaving: Some([ms(leaving), ms(at + 100_000)]),
            left: Some((ms(leaving + 1), Outcome::Done)),
            lost: None,
            heard: Vec::new(),
            killed: None,
            keeps: 0,
        }
    }

    pub(super) fn fault(from: u64, to: u64, process: Option<u32>, forgets: bool) -> Fault {
        Fault { kind: "stop".to_owned(), from: ms(from), to: ms(to), process, forgets }
    }
}
