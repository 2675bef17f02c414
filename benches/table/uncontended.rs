//! The cost of a lock that no other thread wants: each thread has its own name.

use crate::cell::Round;
use crate::cores::Cores;
use crate::lab::{Lab, Outcome, Setting};
use crate::peers::Peer;
use crate::report::{Goals, Table, count, digits};

const ALONE: Setting =
    Setting { cores: Cores::Any, delayed: false, processes: 1, threads: 1, contended: false };

/// Measures one thread.
pub(crate) fn single(lab: &Lab, goals: &mut Goals) {
    println!("One thread, lock and give back, against the two scripts on a raw connection:\n");
    let mut table = heads();
    let mut compare = |setting, unlock_goal: &str, drop_goal| {
        let [raw, unlock, drop] = lab.compare(setting, [Peer::Raw, Peer::Unlock, Peer::Drop]);
        row(&mut table, &setting, &raw, &raw);
        for (ours, goal) in [(unlock, unlock_goal), (drop, drop_goal)] {
            row(&mut table, &setting, &ours, &raw);
            if !goal.is_empty() {
                let work = format!("{}, 1 thread, {}", ours.peer.name(), setting.place());
                let ratio = ours.ratio(&raw, Round::rate);
                goals.add(work, format!("{ratio} x raw pair"), goal);
            }
        }
    };
    for cores in [Cores::One, Cores::Two].into_iter().filter(|cores| lab.machine.can(*cores)) {
        compare(Setting { cores, ..ALONE }, "≥ 0.93", "≥ 1.4");
    }
    compare(ALONE, "", "");
    compare(Setting { delayed: true, ..ALONE }, "", "≥ 1.8");
    println!("{table}");
}

/// Measures 32 threads, each with its own name.
pub(crate) fn own(lab: &Lab, goals: &mut Goals) {
    println!("32 threads of one process, a name each, against a raw connection a thread:\n");
    let mut table = heads();
    let mut compare = |setting, goal: &str| {
        let [raw, ours] = lab.compare(setting, [Peer::Raw, Peer::Unlock]);
        row(&mut table, &setting, &raw, &raw);
        row(&mut table, &setting, &ours, &raw);
        if !goal.is_empty() {
            let work = format!("32 threads, own names, {}", setting.place());
            goals.add(work, format!("{} x raw pair", ours.ratio(&raw, Round::rate)), goal);
        }
    };
    let many = Setting { threads: 32, ..ALONE };
    for (cores, goal) in [(Cores::One, "≥ 1.8"), (Cores::Two, "≥ 1.3")] {
        if lab.machine.can(cores) {
            compare(Setting { cores, ..many }, goal);
        }
    }
    compare(many, "");
    compare(Setting { delayed: true, ..many }, "≥ 1.0");
    println!("{table}");
}

/// Measures with and without `busy_poll`.
pub(crate) fn polled(lab: &Lab, goals: &mut Goals) {
    println!("The same with `busy_poll(50 us)`, against without:\n");
    let mut table = Table::new(&["where", "threads", "what", "locks/s", "x without", "x raw pair"]);
    for (cores, threads) in [Cores::One, Cores::Two, Cores::Any]
        .into_iter()
        .filter(|cores| lab.machine.can(*cores))
        .flat_map(|cores| [(cores, 1), (cores, 32)])
    {
        let setting = Setting { cores, threads, ..ALONE };
        let peers = [Peer::Raw, Peer::Unlock, Peer::UnlockPolled, Peer::Drop, Peer::DropPolled];
        let [raw, ours @ ..] = lab.compare(setting, peers);
        for pair in ours.chunks(2) {
            let [without, with] = pair else { continue };
            let ratio = with.ratio(without, Round::rate);
            for (it, ratio) in [(without, String::new()), (with, ratio.to_string())] {
                table.row(&[
                    &setting.place(),
                    &threads.to_string(),
                    &it.peer.name(),
                    &count(it.median(Round::rate)),
                    &ratio,
                    &it.ratio(&raw, Round::rate).to_string(),
                ]);
            }
            if threads > 1 {
                let work = format!("{threads} threads, {}, {}", with.peer.name(), setting.place());
                goals.add(work, format!("{ratio} x without"), "≥ 0.97");
            }
        }
    }
    println!("{table}");
}

fn heads() -> Table {
    Table::new(&["where", "what", "locks/s", "x raw pair", "scripts", "commands"])
}

fn row(table: &mut Table, setting: &Setting, ours: &Outcome, raw: &Outcome) {
    let ratio = match ours.peer {
        Peer::Raw => String::new(),
        _ => ours.ratio(raw, Round::rate).to_string(),
    };
    table.row(&[
        &setting.place(),
        &ours.peer.name(),
        &count(ours.median(Round::rate)),
        &ratio,
        &digits(ours.median(Round::scripts)),
        &digits(ours.median(Round::commands)),
    ]);
}
