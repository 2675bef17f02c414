//! One name that all threads want.

use crate::cell::Round;
use crate::contest::{Report, against, longest};
use crate::cores::Cores;
use crate::lab::{Lab, Outcome, Setting};
use crate::peers::Peer;
use crate::report::{Goals, digits, range};

const ONE_PROCESS: Setting =
    Setting { cores: Cores::Any, delayed: false, processes: 1, threads: 8, contended: true };

/// Measures the threads of one process.
pub(crate) fn process(lab: &Lab, goals: &mut Goals) {
    let mut report = Report::new("8 threads of one process");
    for cores in [Cores::Any, Cores::Two, Cores::One] {
        if lab.machine.can(cores) {
            let setting = Setting { cores, ..ONE_PROCESS };
            let [plain, ours] = lab.compare(setting, [Peer::Plain, Peer::Unlock]);
            report.rows(&setting, &plain, &[&ours]);
            let work = format!("1 x 8, one name, {}", setting.place());
            goals.add(&work, against(&ours, &plain), "≥ 20");
            let shares = range(ours.range(Round::threads));
            goals.add(format!("{work}: each thread, of the mean"), shares, "0.5 … 2");
            goals.add(format!("{work}: longest wait"), longest(&ours), "< 50 ms");
        }
    }
    report.print();
}

/// Measures several processes with several threads each.
pub(crate) fn processes(lab: &Lab, goals: &mut Goals) {
    let mut report = Report::new("4 processes of 8 threads");
    for delayed in [false, true] {
        let setting = Setting { processes: 4, delayed, ..ONE_PROCESS };
        let [plain, ours] = lab.compare(setting, [Peer::Plain, Peer::Unlock]);
        report.rows(&setting, &plain, &[&ours]);
        let work = format!("4 x 8, one name, {}", setting.place());
        goals.add(&work, against(&ours, &plain), "≥ 20");
        fairness(goals, &work, &ours);
    }
    report.print();
}

/// Measures processes with one thread each. Such a process cannot pass the lock to its own threads,
/// so each grant goes to another process.
pub(crate) fn many(lab: &Lab, goals: &mut Goals) {
    let mut report = Report::new("processes of one thread");
    for (processes, delayed) in [(2, false), (4, false), (16, false), (64, false), (16, true)] {
        let setting = Setting { processes, threads: 1, delayed, ..ONE_PROCESS };
        let [plain, unlock, drop] = lab.compare(setting, [Peer::Plain, Peer::Unlock, Peer::Drop]);
        report.rows(&setting, &plain, &[&unlock, &drop]);
        for ours in [unlock, drop] {
            let work = format!("{processes} x 1, {}, {}", setting.place(), ours.peer.name());
            goals.add(&work, against(&ours, &plain), "≥ 3 with 16");
            fairness(goals, &work, &ours);
            let switches = ours.median(|round| round.switches() / round.rate().max(1.0));
            goals.add(format!("{work}: switches a grant"), format!("{switches:.2}"), "≥ 0.98");
            let calls = [&ours, &plain].map(|it| digits(it.median(Round::scripts)));
            let measured = format!("{} (plain {})", calls[0], calls[1]);
            goals.add(format!("{work}: script calls a grant"), measured, "≤ 2.1");
        }
    }
    report.print();
}

fn fairness(goals: &mut Goals, work: &str, ours: &Outcome) {
    let usual = ours.median(|round| round.processes().0);
    let worst = ours.range(Round::processes).0;
    let slowest = format!("{usual:.2} (worst round {worst:.2})");
    goals.add(format!("{work}: slowest process, of the mean"), slowest, "≥ 0.9");
    goals.add(format!("{work}: longest wait"), longest(ours), "< 50 ms, 120 ms away");
}
