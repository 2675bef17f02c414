//! The output: the progress, a row of the ledger, and the page of a violation.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check::{self, Findings};
use crate::clock::ms;
use crate::history::{Process, Round, save};
use crate::options::Options;
use crate::page;
use crate::run::{Outcome, is_other_build};

pub(crate) fn progress(number: u64, all: &Outcome, found: &Findings) {
    println!(
        "round {number}: {} s, {} acquisitions ({} in all), {} faults in all, longest wait {} ms, {} losses told, \
         {} overlaps after a loss of data, orders {} of which {} unknown, lost writes {} fenced {} unfenced, \
         {} late and {} lost without a script, \
         {} holds kept and {} calls refused, {} passes of a barrier, {} short limits and {} in an outage, \
         {} waits heard, after at most {} ms, {}",
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
        all.late_plain,
        all.lost_plain,
        found.counted("holds that were kept"),
        found.counted("calls for a name that is kept"),
        found.counted("passes of a barrier"),
        found.counted("calls with short limits"),
        found.counted("short limits in an outage"),
        found.counted("waits that a holder heard"),
        found.counted("longest until a holder heard") / ms(1),
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

/// Returns a row of the table in SOAK.md.
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

/// Whether no unfenced write was lost. If so, the check of fenced writes proves nothing.
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

/// Saves the history of a round with violations, and a page about the first violation of each kind.
pub(crate) fn keep(
    options: &Options,
    all: &Outcome,
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
        "commit {}, {}, cargo run --release -p soak -- {}",
        all.commit, all.version, options.typed
    )?;
    writeln!(page, "seed {}, topology {}, round {number}", options.seed, options.topology)?;
    if let Some(exe) = &options.other_worker {
        let is_other = |it: &&Process| is_other_build(it.number);
        let others: Vec<_> = round.processes.iter().filter(is_other).map(|it| it.number).collect();
        writeln!(page, "processes of {}: {others:?}", exe.display())?;
    }
    writeln!(page)?;
    let mut told: Vec<&str> = Vec::new();
    for violation in &found.violations {
        writeln!(page, "{} of {:?}: {}", violation.check, violation.name, violation.text)?;
        if told.contains(&violation.check) {
            continue;
        }
        told.push(violation.check);
        page::write(&mut page, round, violation)?;
    }
    page.flush()?;
    println!("  kept: {0}/page.txt; `--check {0}` checks it again", folder.display());
    Ok(())
}

/// Appends all holds to a file, as lines of JSON.
pub(crate) fn export(path: &Path, round: &Round) -> io::Result<()> {
    let mut file = BufWriter::new(File::options().append(true).create(true).open(path)?);
    for (name, holds) in check::holds(round, &mut Findings::default()) {
        check::export(&name, &holds, &mut file)?;
    }
    file.flush()
}
