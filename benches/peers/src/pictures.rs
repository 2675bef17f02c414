//! The three pictures.

use crate::picture::{Axis, Picture, WIDTH};
use crate::results::{Cell, Results};
use crate::works::{WORKS, Work};

const OF: [(&str, &str, &str); 3] = [
    ("waits", "waits.svg", "How long 16 processes wait, by library"),
    ("kills", "kills.svg", "Grants over time around two kills, by library"),
    ("16x1", "shares.svg", "The share of each of 16 processes, by library"),
];

/// Returns the file name and the title of the picture of a work.
pub(crate) fn of(work: &str) -> Option<(&'static str, &'static str)> {
    OF.iter().find(|it| it.0 == work).map(|it| (it.1, it.2))
}

/// Returns the pictures that these results have, with their names.
pub(crate) fn all(results: &Results) -> Vec<(&'static str, String)> {
    let draw = |(key, file, title): (&str, &'static str, &str)| {
        let work = WORKS.iter().find(|work| work.key == key)?;
        let cells: Vec<_> = work
            .peers
            .iter()
            .filter_map(|peer| Some((peer.name, results.cell(key, peer.key)?)))
            .filter(|(_, cell)| !cell.rounds.is_empty())
            .collect();
        if cells.is_empty() {
            return None;
        }
        let picture = match key {
            "waits" => waits(title, &cells),
            "kills" => kills(title, &cells),
            _ => shares(title, work, &cells),
        };
        Some((file, picture.written()))
    };
    OF.into_iter().filter_map(draw).collect()
}

type Cells<'a> = [(&'static str, &'a Cell)];

fn ticks(ticks: &[(f64, &str)]) -> Vec<(f64, String)> {
    ticks.iter().map(|(at, label)| (*at, (*label).to_owned())).collect()
}

/// A colour for lines in the background.
const GREY: usize = 6;
/// The maximum number of points of a line.
const POINTS: usize = 80;

fn waits(title: &str, cells: &Cells<'_>) -> Picture {
    let most = cells.iter().map(|(_, cell)| cell.rounds[0].points.len()).max().unwrap_or(1);
    let x = Axis {
        low: 1.0,
        high: most as f64,
        log: true,
        title: "of all waits, this part is shorter",
        ticks: ticks(&[
            (1.0, "0"),
            (2.0, "50 %"),
            (10.0, "90 %"),
            (100.0, "99 %"),
            (1000.0, "99.9 %"),
        ]),
    };
    let y = Axis {
        low: 1e5,
        high: 1e10,
        log: true,
        title: "",
        ticks: ticks(&[
            (1e5, "0.1 ms"),
            (1e6, "1 ms"),
            (1e7, "10 ms"),
            (1e8, "0.1 s"),
            (1e9, "1 s"),
            (1e10, "10 s"),
        ]),
    };
    let mut picture = Picture::new(title, (WIDTH, 460.0), (70.0, 190.0), x, y);
    // redlatch's line is drawn last, above the other lines.
    for (whose, (name, cell)) in cells.iter().enumerate().rev() {
        let mut waits = cell.rounds[0].points.clone();
        waits.sort_by(f64::total_cmp);
        let count = waits.len() as f64;
        let mut points: Vec<(f64, f64)> = (0..POINTS)
            .map(|at| {
                // The points are spread evenly on a logarithmic axis.
                let above = count.powf(at as f64 / (POINTS - 1) as f64);
                let index = (count - count / above).round() as usize;
                (above, waits[index.min(waits.len() - 1)])
            })
            .collect();
        points.dedup();
        picture.line(&points, name, whose);
    }
    picture
}

fn kills(title: &str, cells: &Cells<'_>) -> Picture {
    let most = cells.iter().map(|(_, cell)| cell.rounds[0].points.len()).max().unwrap_or(1);
    let step = (most as f64 / 4.0 / 100.0).ceil() * 100.0;
    let x = Axis {
        low: 0.0,
        high: 14.0,
        log: false,
        title: "seconds; a dot is a kill -9",
        ticks: (0..=7).map(|at| (f64::from(at * 2), (at * 2).to_string())).collect(),
    };
    let y = Axis {
        low: 0.0,
        high: step * 4.0,
        log: false,
        title: "grants so far",
        ticks: (0..=4)
            .map(|at| (f64::from(at) * step, (f64::from(at) * step).to_string()))
            .collect(),
    };
    let mut picture = Picture::new(title, (WIDTH, 460.0), (70.0, 190.0), x, y);
    picture.mark(3.0, "a holder dies");
    picture.mark(11.0, "a waiter dies");
    for (whose, (name, cell)) in cells.iter().enumerate().rev() {
        let round = &cell.rounds[0];
        let so_far = |at: f64| round.points.partition_point(|grant| *grant <= at) as f64;
        let times = (0..=140).map(|at| f64::from(at) / 10.0);
        let points: Vec<(f64, f64)> = times.map(|at| (at, so_far(at))).collect();
        picture.line(&points, name, whose);
        for (at, _) in &round.kills {
            picture.dot((*at, so_far(*at)), whose, 4.0);
        }
    }
    picture
}

fn shares(title: &str, work: &Work, cells: &Cells<'_>) -> Picture {
    let rows = cells.len() as f64;
    let x = Axis {
        low: 0.004,
        high: work.processes as f64,
        log: true,
        title: "grants of a process, of an equal share",
        ticks: ticks(&[(0.004, "none"), (0.01, "0.01"), (0.1, "0.1"), (1.0, "1"), (16.0, "all")]),
    };
    let names =
        cells.iter().enumerate().map(|(at, (name, _))| (-(at as f64), name.replace('`', "")));
    let y = Axis { low: -rows, high: 1.0, log: false, title: "", ticks: names.collect() };
    let mut picture = Picture::new(title, (WIDTH, 110.0 + 24.0 * rows), (190.0, 30.0), x, y);
    for (at, (name, cell)) in cells.iter().enumerate() {
        let shares = &cell.rounds[cell.rounds.len() / 2].shares;
        let mean = shares.iter().sum::<u64>() as f64 / shares.len() as f64;
        let whose = if name.starts_with("redlatch") { 0 } else { GREY };
        for share in shares {
            picture.dot(((*share as f64 / mean).max(0.004), -(at as f64)), whose, 4.5);
        }
    }
    picture
}
