//! One fair lock, or one semaphore, that all threads want.

use crate::cell::Round;
use crate::contest::{Report, against, longest};
use crate::cores::Cores;
use crate::lab::{Lab, Setting};
use crate::peers::Peer;
use crate::report::{Goals, digits};

/// The number of threads, the number of processes, and the goal.
type Crowd = (usize, usize, &'static str);

pub(crate) fn fair(lab: &Lab, goals: &mut Goals) {
    let peers = [Peer::PlainFair, Peer::Fair];
    compare(lab, goals, peers, &[(1, 8, "≥ 3"), (4, 8, "≥ 4")]);
}

/// Measures 16 threads for 3 permits.
pub(crate) fn semaphore(lab: &Lab, goals: &mut Goals) {
    let peers = [Peer::PlainSemaphore, Peer::Semaphore];
    compare(lab, goals, peers, &[(1, 16, "≥ 5"), (4, 4, "≥ 2")]);
}

/// Measures 16 threads for 3 permits that expire.
pub(crate) fn expirable(lab: &Lab, goals: &mut Goals) {
    let peers = [Peer::PlainExpirable, Peer::Expirable];
    compare(lab, goals, peers, &[(1, 16, "≥ 4"), (4, 4, "≥ 2")]);
}

fn compare(lab: &Lab, goals: &mut Goals, peers: [Peer; 2], crowds: &[Crowd]) {
    for &(processes, threads, goal) in crowds {
        let cores = Cores::Any;
        let setting = Setting { cores, delayed: false, processes, threads, contended: true };
        let [plain, ours] = lab.compare(setting, peers);
        let what = ours.peer.name();
        let mut report = Report::new(format!("{what}, {processes} x {threads}"));
        report.rows(&setting, &plain, &[&ours]);
        report.print();
        let work = format!("{what}, {processes} x {threads}");
        goals.add(&work, against(&ours, &plain), goal);
        goals.add(format!("{work}: longest wait"), longest(&ours), "none set");
        if ours.peer == Peer::Fair {
            let [ours, plain] = [&ours, &plain].map(|it| digits(it.median(Round::commands)));
            let measured = format!("{ours} (plain {plain})");
            goals.add(format!("{work}: commands an acquisition"), measured, "≤ 6");
        }
        goals.add(format!("{work}: times too many inside"), ours.broken(), "0");
    }
}
