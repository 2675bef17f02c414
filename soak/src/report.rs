//! The output: the progress, the ledger's line, the page of a violation.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check::{self, Findings};
use crate::clock::ms;
use crate::history::{Event, Round, save};
use crate::options::Options;
use crate::run::Outcome;

/// How much of the history stands around a violation.
const LINES: usize = 60;

pub(crate) fn progress(number: u64, all: &Outcome, found: &Findings) {
    println!(
        "round {number}: {} s, {} acquisitions ({} in all), {} faults in all, longest wait {} ms, {} losses told, \
         {} overlaps after a loss of data, orders {} of which {} unknown, lost writes {} fenced {} unfenced, {}",
        all.elapsed.as_secs(),
        found.counted("acquisitions"),
        all.found.counted("acquisitions"),
        all.faults.values().sum::<u64>(),
        found.counted("longest wait") / ms(1),
        found.counted("losses"),
        found.counted("overlaps after a loss of data, told in time"),
        found.counted("orders searched"),
        found.counted("orders not known"),
        all.lost_fenced,
        all.lost_unfenced,
        if found.violations.is_empty() {
            "no violation".to_owned()
        } else {
            format!("VIOLATIONS: {}", found.violations.len())
        }
    );
    for violation in found.violations.iter().take(10) {
        println!("  {} of {:?}: {}", violation.check, violation.name, violation.text);
    }
}

/// A row of the table in SOAK.md.
pub(crate) fn ledger(options: &Options, all: &Outcome) -> String {
    let violations =
        |check: &str| all.found.violations.iter().filter(|it| it.check.starts_with(check)).count();
    let other = all.found.violations.len()
        - ["claims", "order", "tokens", "untold", "fenced"]
            .iter()
            .map(|it| violations(it))
            .sum::<usize>();
    let faults: Vec<_> = all.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!(
        "| {} | {} | {} | {} | {} | {:.0} | {} | {} | {} | {:.1} s | {} | {} | {} | {} | {} | {} | {} | `cargo run --release -p soak -- {}` |",
        said("date", &["-I"]),
        all.commit,
        all.version,
        options.topology,
        options.seed,
        all.elapsed.as_secs_f64() / 60.0,
        all.found.counted("acquisitions"),
        all.found.counted("switches"),
        faults.join(", "),
        all.found.counted("longest wait") as f64 / 1e9,
        violations("claims") + violations("order"),
        violations("tokens"),
        violations("untold"),
        if shows_nothing(all) { "shown nothing".to_owned() } else { all.lost_fenced.to_string() },
        all.lost_unfenced,
        other,
        all.found.counted("orders not known"),
        options.typed,
    )
}

/// Whether the store's writes were never in danger, so that the check of fenced writes says nothing.
fn shows_nothing(all: &Outcome) -> bool {
    all.lost_fenced == 0 && all.lost_unfenced == 0
}

pub(crate) fn commit() -> String {
    let commit = said("git", &["rev-parse", "--short", "HEAD"]);
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changed.is_empty() { commit } else { format!("{commit}, changed") }
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned()).unwrap_or_default()
}

/// Keeps the history of a round with violations, and a page about the first of each kind.
pub(crate) fn keep(
    options: &Options,
    version: &str,
    number: u64,
    round: &Round,
    found: &Findings,
) -> io::Result<()> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let folder =
        target.join("soak").join(format!("{}-{}-{number}", options.topology, options.seed));
    fs::create_dir_all(&folder)?;
    save(round, &folder)?;
    let mut page = BufWriter::new(File::create(folder.join("page.txt"))?);
    writeln!(
        page,
        "commit {}, {version}, cargo run --release -p soak -- {}",
        commit(),
        options.typed
    )?;
    writeln!(page, "seed {}, topology {}, round {number}\n", options.seed, options.topology)?;
    let mut told: Vec<&str> = Vec::new();
    for violation in &found.violations {
        writeln!(
            page,
            "{} of {:?}, {} to {}: {}",
            violation.check, violation.name, violation.from, violation.to, violation.text
        )?;
        if told.contains(&violation.check) {
            continue;
        }
        told.push(violation.check);
        for line in window(round, &violation.name, violation.from, violation.to) {
            writeln!(page, "    {line}")?;
        }
    }
    page.flush()?;
    println!("  kept: {0}/page.txt; `--check {0}` checks it again", folder.display());
    Ok(())
}

/// The lines about a name around these times, with what the nemesis did, by their times.
fn window(round: &Round, name: &str, from: u64, to: u64) -> Vec<String> {
    let mut lines: Vec<(u64, String)> = Vec::new();
    for process in &round.processes {
        let mut own = std::collections::HashSet::new();
        for event in &process.events {
            let (at, is_about) = match event {
                Event::Granted(grant) => {
                    if grant.name == name {
                        own.insert(grant.id);
                    }
                    (grant.at, grant.name == name)
                }
                Event::Seen { id, at, .. }
                | Event::Leaving { id, at, .. }
                | Event::Left { id, at, .. }
                | Event::Lost { id, at } => (*at, own.contains(id)),
                Event::Missed { name: of, at, .. } | Event::Stepped { name: of, at, .. } => {
                    (*at, of == name)
                }
                Event::Odd { at, .. } => (*at, true),
            };
            if is_about {
                lines.push((at, format!("process {:3}  {event}", process.number)));
            }
        }
        if let Some(at) = process.killed {
            lines.push((at, format!("process {:3}  was killed", process.number)));
        }
    }
    for fault in &round.faults {
        let text = format!("nemesis      {} until {} {:?}", fault.kind, fault.to, fault.process);
        lines.push((fault.from, text));
    }
    lines.sort();
    let first = lines.partition_point(|(at, _)| *at < from).saturating_sub(LINES / 2);
    let last = (lines.partition_point(|(at, _)| *at <= to) + LINES / 2).min(lines.len());
    let mut shown: Vec<_> =
        lines[first..last].iter().map(|(at, line)| format!("{at} {line}")).collect();
    if shown.len() > 4 * LINES {
        let middle = shown.len() - 4 * LINES;
        shown.splice(2 * LINES..2 * LINES + middle, [format!("… {middle} lines …")]);
    }
    shown
}

/// Appends all holds to a file of JSON lines.
pub(crate) fn export(path: &Path, round: &Round) -> io::Result<()> {
    let mut file = BufWriter::new(File::options().append(true).create(true).open(path)?);
    for (name, holds) in check::holds(round, &mut Findings::default()) {
        check::export(&name, &holds, &mut file)?;
    }
    file.flush()
}
