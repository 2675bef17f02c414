//! Prints the table of results.

use std::time::Duration;

use crate::run::Outcome;
use crate::{Guard, Scenario};

const COLUMNS: usize = 11;

const HEAD: [[&str; COLUMNS]; 2] = [
    ["", "", "", "", "over-", "", "", "sales", "longest", "sales of", ""],
    [
        "",
        "killed",
        "stopped",
        "sold",
        "sold",
        "late",
        "lost",
        "per s",
        "wait",
        "a process",
        "verdict",
    ],
];

const NOTES: &str = "
A sale changes the stock and the ledger in one transaction, so a kill leaves no
half of a sale. A process that is killed in mid-sale has sold nothing.
Late: another thread sold after the process had read the stock, and before the
process wrote.
Lost: items that left the stock, or that a process counted as sold, but that are
not in the ledger.
Sales of a process: the fewest and the most. The sales of a killed process and
of its successor are one count.
";

pub(crate) fn draw(outcomes: &[(Scenario, Outcome)]) -> String {
    let mut rows = HEAD.map(|row| row.map(str::to_owned)).to_vec();
    rows.extend(outcomes.iter().map(|(scenario, outcome)| row(scenario, outcome)));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);

    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        if at == HEAD.len() {
            let whole = widths.iter().sum::<usize>() + 2 * (COLUMNS - 1);
            text.push_str(&format!("\n{}", "-".repeat(whole)));
        }
        // Words are aligned to the left, and numbers to the right.
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1).take(COLUMNS - 2) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        line.push_str(&format!("  {}", row[COLUMNS - 1]));
        text.push_str(&format!("\n{}", line.trim_end()));
    }
    text.push('\n');
    for (scenario, outcome) in outcomes {
        let faults = outcome.faults();
        if scenario.is_safe() && !faults.is_empty() {
            let name = scenario.name();
            text.push_str(&format!("\n{name} FAILED: {}.\n", faults.join(", ")));
        }
    }
    text.push_str(NOTES);
    text.push_str(&fairness(outcomes));
    text.push_str(&stale_looks(outcomes));
    text.push_str(&stops(outcomes));
    text
}

fn row(scenario: &Scenario, outcome: &Outcome) -> [String; COLUMNS] {
    let guarded = scenario.is_guarded();
    let verdict = match scenario.is_safe() {
        true if outcome.faults().is_empty() => "sold out",
        true => "FAILED",
        false if outcome.oversold > 0 => "OVERSOLD",
        false if outcome.stale > 0 => "LATE SALES",
        false => "luck",
    };
    [
        scenario.name(),
        outcome.killed.to_string(),
        outcome.stopped.to_string(),
        thousands(outcome.sold),
        thousands(outcome.oversold),
        thousands(outcome.stale),
        thousands(outcome.lost),
        rate(outcome),
        if guarded { duration(outcome.longest_wait) } else { "-".to_owned() },
        spread(outcome),
        verdict.to_owned(),
    ]
}

fn rate(outcome: &Outcome) -> String {
    thousands((outcome.sold as f64 / outcome.took.as_secs_f64()) as u64)
}

fn spread(outcome: &Outcome) -> String {
    format!("{}-{}", thousands(outcome.fewest), thousands(outcome.most))
}

/// Describes the cost and the benefit of a fair lock.
fn fairness(outcomes: &[(Scenario, Outcome)]) -> String {
    let undisturbed = |guard| {
        let mut found =
            outcomes.iter().filter(|(run, _)| run.guard == guard && run.kills + run.stops == 0);
        found.next().map(|(_, outcome)| outcome)
    };
    let (Some(fair), Some(other)) =
        (undisturbed(Guard::FairLock), undisturbed(Guard::ReentrantLock))
    else {
        return String::new();
    };
    format!(
        "\nWith the fair lock there were {} sales per s instead of {}; the longest wait\n\
         was {} instead of {}, and the processes made {} sales each instead of\n\
         {}.\n",
        rate(fair),
        rate(other),
        duration(fair.longest_wait),
        duration(other.longest_wait),
        spread(fair),
        spread(other),
    )
}

/// Describes what a paused process does after it has resumed.
fn stops(outcomes: &[(Scenario, Outcome)]) -> String {
    let of = |is_fenced| {
        let mut found = outcomes.iter().filter(|(run, _)| run.stops > 0);
        found.find(|(run, _)| run.is_fenced == is_fenced).map(|(_, outcome)| outcome)
    };
    let (Some(plain), Some(fenced)) = (of(false), of(true)) else { return String::new() };
    format!(
        "\nOf processes that were stopped past their lease, {} sales were late. As scripts of the\n\
         guard {} were late, and {} were refused.\n",
        thousands(plain.stale),
        thousands(fenced.stale),
        thousands(fenced.refused),
    )
}

/// Describes the stale sales: those for which the stock had changed since it was read. Only the
/// last items are oversold, but every sale may be stale.
fn stale_looks(outcomes: &[(Scenario, Outcome)]) -> String {
    let (mut stale, mut sold) = ([0; 2], [0; 2]);
    for (scenario, outcome) in outcomes {
        if scenario.stops > 0 {
            continue;
        }
        let guarded = usize::from(scenario.is_guarded());
        stale[guarded] += outcome.stale;
        sold[guarded] += outcome.sold;
    }
    let [stale, sold] = [stale.map(thousands), sold.map(thousands)];
    format!(
        "\nThe stock changed between the look and the sale in {} of {} sales\n\
         without a lock, and in {} of {} with one, unless a process was stopped.\n",
        stale[0], sold[0], stale[1], sold[1]
    )
}

/// Formats a number, as `12,345`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration, as `850 us`, `12 ms` or `1.98 s`.
pub(crate) fn duration(duration: Duration) -> String {
    match duration.as_micros() {
        micros @ 0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{} ms", duration.as_millis()),
        _ => format!("{:.2} s", duration.as_secs_f64()),
    }
}
