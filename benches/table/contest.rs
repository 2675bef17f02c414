//! Compares peers that contend for one name.

use crate::cell::{INSIDE, Round};
use crate::lab::{Outcome, Setting};
use crate::report::{Table, count, digits, range, time};

pub(crate) fn against(ours: &Outcome, plain: &Outcome) -> String {
    let [rate, switches] = [Round::rate, Round::switches].map(|of| ours.ratio(plain, of));
    format!("{rate} x plain; switches {} x", digits(switches.median))
}

pub(crate) fn longest(ours: &Outcome) -> String {
    let [usual, worst] = [Outcome::median, Outcome::worst].map(|of| of(ours, Round::longest_wait));
    format!("{} (worst round {})", time(usual), time(worst))
}

/// The table of a section.
pub(crate) struct Report {
    title: String,
    table: Table,
    broken: u64,
}

impl Report {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        let table = Table::new(&[
            "where",
            "what",
            "locks/s",
            "x plain",
            "switches/s",
            "x plain",
            "longest wait",
            "of all rounds",
            "threads",
            "processes",
            "scripts",
            "commands",
        ]);
        Self { title: title.into(), table, broken: 0 }
    }

    pub(crate) fn rows(&mut self, setting: &Setting, plain: &Outcome, ours: &[&Outcome]) {
        self.row(setting, plain, "", "");
        for ours in ours {
            let [rate, switches] = [Round::rate, Round::switches].map(|of| ours.ratio(plain, of));
            self.row(setting, ours, &rate.to_string(), &digits(switches.median));
        }
    }

    fn row(&mut self, setting: &Setting, outcome: &Outcome, rate: &str, switches: &str) {
        self.broken += outcome.broken();
        self.table.row(&[
            &setting.place(),
            &outcome.peer.name(),
            &count(outcome.median(Round::rate)),
            &rate,
            &count(outcome.median(Round::switches)),
            &switches,
            &time(outcome.median(Round::longest_wait)),
            &time(outcome.worst(Round::longest_wait)),
            &range(outcome.range(Round::threads)),
            &range(outcome.range(Round::processes)),
            &digits(outcome.median(Round::scripts)),
            &digits(outcome.median(Round::commands)),
        ]);
    }

    pub(crate) fn print(&self) {
        let inside = time(INSIDE as f64);
        println!("{}, one name, {inside} inside, against Redisson's algorithm:\n", self.title);
        println!("{}", self.table);
        if self.broken > 0 {
            println!("BROKEN: {} times one too many was inside.\n", self.broken);
        }
    }
}
