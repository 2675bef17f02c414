//! The cost of a token: the fenced lock compared with the re-entrant lock.

use crate::cell::Round;
use crate::contest::longest;
use crate::cores::Cores;
use crate::lab::{Lab, Setting};
use crate::peers::Peer;
use crate::report::{Goals, Table, count, digits};

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!("The fenced lock, against the re-entrant one:\n");
    let heads = ["who", "where", "what", "locks/s", "x re-entrant", "scripts", "commands"];
    let mut table = Table::new(&heads);
    let alone =
        Setting { cores: Cores::Any, delayed: false, processes: 1, threads: 1, contended: false };
    let pinned = Setting { cores: Cores::One, ..alone };
    let crowd = Setting { contended: true, ..alone };
    let settings = [
        ("one thread, alone", pinned),
        ("one thread, alone", alone),
        ("1 x 8, one name", Setting { threads: 8, ..crowd }),
        ("4 x 8, one name", Setting { processes: 4, threads: 8, ..crowd }),
        ("16 x 1, one name", Setting { processes: 16, ..crowd }),
    ];
    for (who, setting) in settings {
        if setting.cores != Cores::Any && !lab.machine.can(setting.cores) {
            continue;
        }
        let [plain, fenced] = lab.compare(setting, [Peer::Unlock, Peer::Fenced]);
        let ratio = fenced.ratio(&plain, Round::rate).to_string();
        for (seen, ratio) in [(&plain, ""), (&fenced, ratio.as_str())] {
            table.row(&[
                &who,
                &setting.place(),
                &seen.peer.name(),
                &count(seen.median(Round::rate)),
                &ratio,
                &digits(seen.median(Round::scripts)),
                &digits(seen.median(Round::commands)),
            ]);
        }
        let work = format!("fenced lock, {who}, {}", setting.place());
        goals.add(&work, format!("{ratio} x re-entrant"), "≥ 0.95");
        if setting.contended {
            goals.add(format!("{work}: longest wait"), longest(&fenced), "none set");
            goals.add(format!("{work}: times too many inside"), fenced.broken(), "0");
        }
    }
    println!("{table}");
}
