//! Writes PEERS.md.

use crate::report::{count, digits, time};
use crate::results::{Cell, Results, Round};
use crate::works::{Figures, OURS, WORKS, Work, is_ours};

/// How a figure is computed, shown and compared.
struct Figure {
    head: &'static str,
    of: fn(&Round) -> f64,
    shown: fn(f64) -> String,
    /// Whether a larger figure is better.
    more: bool,
}

const fn figure(
    head: &'static str,
    of: fn(&Round) -> f64,
    shown: fn(f64) -> String,
    more: bool,
) -> Figure {
    Figure { head, of, shown, more }
}

impl Figure {
    /// Returns the median of the rounds, or nothing if the figure is unknown.
    fn text(&self, cell: &Cell) -> String {
        let median = cell.median(self.of);
        if median.is_nan() { String::new() } else { (self.shown)(median) }
    }
}

const GRANTS: Figure = figure("grants/s", |it| it.rate, count, true);
const SWITCHES: Figure = figure("switches/s", |it| it.switches, count, true);
const SLOWEST: Figure = figure("slowest", |it| it.slowest, |it| format!("{it:.2}"), true);
const LONGEST: Figure = figure("longest wait", |it| it.longest, time, false);
const COMMANDS: Figure = figure("commands", |it| it.commands, digits, false);
const CPU: Figure = figure("server CPU", |it| it.cpu, time, false);
const NUMBER: Figure = figure("number", |it| it.number as f64, count, true);
const MEDIAN: Figure = figure("median", |it| it.median, time, false);
const HOLDER: Figure = figure("no grant after the holder's death", |it| gap(it, 0), time, false);
const WAITER: Figure = figure("after the waiter's", |it| gap(it, 1), time, false);
const LATE: Figure = figure("99th percentile", |it| it.late, time, false);

fn gap(round: &Round, kill: usize) -> f64 {
    round.kills.get(kill).map_or(f64::NAN, |(_, gap)| *gap)
}

/// Returns the figures of a work. The first figure gives the factor of the comparison.
fn figures(work: &Work) -> &'static [Figure] {
    match (work.figures, work.places) {
        (Figures::Pairs, _) => &[GRANTS, COMMANDS, CPU],
        // If several threads may hold the lock at a time, the number of switches has no meaning.
        (Figures::Contended, places) if places != 1 => &[GRANTS, SLOWEST, LONGEST, COMMANDS, CPU],
        (Figures::Contended, _) => &[GRANTS, SWITCHES, SLOWEST, LONGEST, COMMANDS, CPU],
        (Figures::Events, _) => &[MEDIAN, LATE, NUMBER],
        (Figures::Waits, _) => &[MEDIAN, LATE, LONGEST],
        (Figures::Kills, _) => &[GRANTS, HOLDER, WAITER],
    }
}

fn name<'a>(work: &Work, cell: &'a Cell) -> &'a str {
    work.peers.iter().find(|peer| peer.key == cell.peer).map_or(cell.peer.as_str(), |it| it.name)
}

pub(crate) fn write(results: &Results) -> String {
    let mut text = format!(
        "# Peers\n\n\
        redlatch, other lock libraries, Postgres and etcd, measured in one run. `{}` wrote this page.\n\n\
        - {}, commit {}. {}; {}.\n\
        - {} rounds of {} s, interleaved; a figure is the median of the rounds. Redisson warmed up \
        for {} s before a workload with more Redisson processes than earlier workloads, and for {} s \
        before the other workloads.\n",
        results.command,
        results.date,
        results.commit,
        results.server,
        results.machine,
        results.rounds,
        results.seconds,
        results.warm,
        (results.warm / 3.0 * 10.0).round() / 10.0
    );
    for versions in &results.versions {
        text += &format!("- {versions}\n");
    }
    for again in &results.again {
        text += &format!("- {again}\n");
    }
    for left_out in &results.left_out {
        text += &format!("- LEFT OUT: {left_out}\n");
    }
    text += "\nEach library runs with its defaults unless its row says otherwise. *Factor* compares the \
        row's first figure with redlatch, whose factor is 1.00. *Switches* says how often the lock \
        went to another thread. *Slowest* is the share of the slowest process (or of the slowest \
        thread, if there is one process); 1.00 is an equal share. A wait is measured from its intended \
        start to its end, even if the round ends earlier. *Commands* and *server CPU* are per grant. A \
        holder works for 3 us.\n\n\
        Postgres and etcd are private servers beside Redis, and idle while other rows are measured. \
        They have no *commands*. Their *server CPU* is that of all their processes. A thread has a \
        Postgres session of its own, and calls `pg_advisory_lock`, or `pg_try_advisory_lock` every \
        millisecond. A thread also has an etcd session of its own, with a mutex of etcd's Go client. \
        A row of rueidislock also sets `NoLoopTracking`, as rueidislock's documentation recommends \
        for one server.\n\n";
    text += &ahead(results);
    for work in WORKS {
        let cells: Vec<&Cell> = results.cells.iter().filter(|it| it.work == work.key).collect();
        if cells.is_empty() {
            continue;
        }
        text += &format!("\n## {}\n\n", work.title);
        text += &table(work, &cells);
        if let Some((file, what)) = crate::pictures::of(work.key) {
            text += &format!("\n![{what}](docs/pictures/{file})\n");
        }
    }
    text
}

fn table(work: &Work, cells: &[&Cell]) -> String {
    let figures = figures(work);
    let noted = cells.iter().any(|cell| !notes(work, cell).is_empty());
    let mut heads = vec!["library", "factor"];
    heads.extend(figures.iter().map(|figure| figure.head));
    if noted {
        heads.push("notes");
    }
    let ours = cells.iter().find(|cell| cell.peer == OURS.key && !cell.rounds.is_empty());
    let rows = cells.iter().map(|cell| {
        let mut row = vec![name(work, cell).to_owned()];
        if cell.rounds.is_empty() {
            row.extend(vec![String::new(); figures.len() + 1]);
        } else {
            row.push(ours.map_or_else(String::new, |ours| {
                format!("{:.2}", cell.ratio(ours, figures[0].of)).replace("NaN", "")
            }));
            row.extend(figures.iter().map(|it| it.text(cell)));
        }
        if noted {
            row.push(notes(work, cell));
        }
        row
    });
    markdown(&heads, rows)
}

fn notes(work: &Work, cell: &Cell) -> String {
    let mut notes = Vec::new();
    let doubles = cell.sum(|round| round.doubles as u64);
    if doubles > 0 {
        notes.push(format!("**{doubles} times one too many inside**"));
    }
    let failures = cell.sum(|round| round.failures);
    if failures > 0 {
        notes.push(format!("{} calls failed", count(failures as f64)));
    }
    if work.figures == Figures::Contended && cell.rounds.iter().any(|it| it.shares.contains(&0)) {
        notes.push("starves".to_owned());
    }
    notes.extend(cell.failed.as_ref().map(|error| format!("FAILED: {error}")));
    notes.join("; ")
}

/// Returns the figures for which the best peer is ahead of redlatch.
fn ahead(results: &Results) -> String {
    let mut rows = Vec::new();
    for work in WORKS {
        let Some(ours) = results.cell(work.key, OURS.key).filter(|it| !it.rounds.is_empty()) else {
            continue;
        };
        for figure in figures(work).iter().filter(|figure| figure.head != NUMBER.head) {
            let of = |cell: &Cell| cell.median(figure.of);
            let others = results.cells.iter().filter(|cell| {
                cell.work == work.key && !is_ours(&cell.peer) && !cell.rounds.is_empty()
            });
            let best = others.filter(|cell| !of(cell).is_nan()).max_by(|one, other| {
                let order = of(one).total_cmp(&of(other));
                if figure.more { order } else { order.reverse() }
            });
            let Some(best) = best else { continue };
            let factor = if figure.more { of(best) / of(ours) } else { of(ours) / of(best) };
            if factor > 1.005 {
                let [theirs, mine] = [best, ours].map(|cell| figure.text(cell));
                let switches = |cell: &Cell| {
                    let contended = work.figures == Figures::Contended && work.places == 1;
                    let switches = count(cell.median(SWITCHES.of));
                    if contended { switches } else { String::new() }
                };
                rows.push(vec![
                    work.title.to_owned(),
                    figure.head.to_owned(),
                    name(work, best).to_owned(),
                    theirs,
                    mine,
                    switches(best),
                    switches(ours),
                ]);
            }
        }
    }
    let heads =
        ["work", "figure", "best peer", "its", "redlatch's", "its switches/s", "redlatch's"];
    format!(
        "## Where a peer is ahead\n\n\
        The table has each figure in which another library's median is better than redlatch's median \
        with defaults and `unlock`. A library that polls makes few switches, because the process that \
        releases the lock takes it again before the others ask. For a free lock, redlatch runs two \
        scripts of three commands each. The scripts keep Redisson's format, and look for waiters.\n\n{}",
        markdown(&heads, rows)
    )
}

/// Writes a table. The first column is text, and so are columns of names or notes.
fn markdown(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let texts = ["library", "work", "figure", "best peer", "notes"];
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(heads.to_vec());
    text += &line(heads.iter().map(|it| if texts.contains(it) { "---" } else { "---:" }).collect());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}
