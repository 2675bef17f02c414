//! The results of a run, as they are kept for `--from`.

use serde::{Deserialize, Serialize};

use crate::works::WORKS;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) machine: String,
    pub(crate) server: String,
    pub(crate) command: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) warm: f64,
    pub(crate) versions: Vec<String>,
    pub(crate) left_out: Vec<String>,
    /// Which works were measured once more later, and how.
    #[serde(default)]
    pub(crate) again: Vec<String>,
    pub(crate) cells: Vec<Cell>,
}

/// A peer at a work.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) work: String,
    pub(crate) peer: String,
    pub(crate) rounds: Vec<Round>,
    pub(crate) failed: Option<String>,
}

/// Figures that a work does not have are zero or empty. Times are in ns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) rate: f64,
    pub(crate) switches: f64,
    /// The least part of an equal share.
    pub(crate) slowest: f64,
    pub(crate) longest: f64,
    pub(crate) commands: f64,
    pub(crate) cpu: f64,
    pub(crate) doubles: usize,
    pub(crate) failures: u64,
    pub(crate) median: f64,
    pub(crate) late: f64,
    pub(crate) number: usize,
    /// The grants of each process.
    pub(crate) shares: Vec<u64>,
    /// All waits, or the moments of all grants in s.
    pub(crate) points: Vec<f64>,
    /// When the holder and the waiter were killed, in s, and how long there was no grant after it.
    pub(crate) kills: Vec<(f64, f64)>,
}

impl Results {
    /// Takes over the works of another run.
    pub(crate) fn replace(&mut self, other: Self) {
        let measured = |key: &str| other.cells.iter().any(|cell| cell.work == key);
        let works: Vec<_> = WORKS.iter().filter(|work| measured(work.key)).collect();
        let titles: Vec<_> = works.iter().map(|work| format!("*{}*", work.title)).collect();
        self.again.push(format!(
            "Measured again on {}, commit {}, by `{}`: {}. {}; {} rounds of {} s.",
            other.date,
            other.commit,
            other.command,
            titles.join("; "),
            other.server,
            other.rounds,
            other.seconds,
        ));
        self.cells.retain(|cell| works.iter().all(|work| work.key != cell.work));
        self.cells.extend(other.cells);
    }

    pub(crate) fn cell(&self, work: &str, peer: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.work == work && cell.peer == peer)
    }
}

impl Cell {
    pub(crate) fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let figures: Vec<f64> = self.rounds.iter().map(figure).collect();
        crate::grants::at(&figures, 0.5)
    }

    pub(crate) fn sum(&self, figure: impl Fn(&Round) -> u64) -> u64 {
        self.rounds.iter().map(figure).sum()
    }

    /// The median of each round's ratio to the same round of another.
    pub(crate) fn ratio(&self, other: &Self, figure: impl Fn(&Round) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| figure(ours) / figure(theirs)).collect();
        crate::grants::at(&ratios, 0.5)
    }
}
