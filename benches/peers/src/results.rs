//! The results of a run, which are stored for `--from`.

use serde::{Deserialize, Deserializer, Serialize};

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
    /// The works that were measured again later, with a description of how.
    #[serde(default)]
    pub(crate) again: Vec<String>,
    pub(crate) cells: Vec<Cell>,
}

/// The rounds of one peer at one work.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) work: String,
    pub(crate) peer: String,
    pub(crate) rounds: Vec<Round>,
    pub(crate) failed: Option<String>,
}

/// The figures of a round. A figure that a work does not have is zero or empty. Times are in ns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) rate: f64,
    pub(crate) switches: f64,
    /// The smallest number of grants of a thread, as a part of an equal share.
    pub(crate) slowest: f64,
    pub(crate) longest: f64,
    #[serde(deserialize_with = "or_nan")]
    pub(crate) commands: f64,
    #[serde(deserialize_with = "or_nan")]
    pub(crate) cpu: f64,
    pub(crate) doubles: usize,
    pub(crate) failures: u64,
    #[serde(deserialize_with = "or_nan")]
    pub(crate) median: f64,
    #[serde(deserialize_with = "or_nan")]
    pub(crate) late: f64,
    pub(crate) number: usize,
    /// The number of grants of each process.
    pub(crate) shares: Vec<u64>,
    /// All waits, or the times of all grants in s.
    pub(crate) points: Vec<f64>,
    /// The times of the two kills in s, each with the time without a grant after it.
    pub(crate) kills: Vec<(f64, f64)>,
}

/// JSON has no NaN, so a figure that is unknown, or the median of no events, is written as `null`.
fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Results {
    /// Replaces the results of works by the results of another run.
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

    /// Returns the median of the ratios between each round and the same round of another peer.
    pub(crate) fn ratio(&self, other: &Self, figure: impl Fn(&Round) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| figure(ours) / figure(theirs)).collect();
        crate::grants::at(&ratios, 0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(commit: &str, works: &[(&str, f64)]) -> Results {
        let cells = works.iter().map(|(work, rate)| Cell {
            work: (*work).to_owned(),
            peer: "redlatch".to_owned(),
            rounds: vec![Round { rate: *rate, median: f64::NAN, ..Round::default() }],
            failed: None,
        });
        Results {
            date: String::new(),
            commit: commit.to_owned(),
            machine: String::new(),
            server: String::new(),
            command: String::new(),
            rounds: 1,
            seconds: 1.0,
            warm: 1.0,
            versions: Vec::new(),
            left_out: Vec::new(),
            again: Vec::new(),
            cells: cells.collect(),
        }
    }

    #[test]
    fn stored_results_are_read_back_and_replaced_by_a_later_run() {
        let kept = serde_json::to_string(&results("one", &[("1x8", 1.0), ("4x8", 2.0)])).unwrap();
        let mut all: Results = serde_json::from_str(&kept).unwrap();
        all.replace(results("two", &[("4x8", 3.0)]));
        let rate = |work| all.cell(work, "redlatch").unwrap().rounds[0].rate;
        assert_eq!((rate("1x8"), rate("4x8"), all.cells.len()), (1.0, 3.0, 2));
        assert!(all.cells[0].rounds[0].median.is_nan());
        assert!(all.again[0].contains("commit two") && all.again[0].contains("4 processes"));
    }
}
