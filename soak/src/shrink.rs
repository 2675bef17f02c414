//! Finds the smallest set of work, faults and processes with which a violation still occurs.
//!
//! A seed repeats the random choices, but not the interleaving of processes. So each attempt runs
//! until its first violation of the same check. An attempt without a violation shows only that the
//! violation is rarer with these options.

use crate::history::FAULTS;
use crate::options::Options;
use crate::run;
use crate::worker;

/// Returns `true` if there was no violation.
pub(crate) fn shrink(options: &Options) -> Result<bool, String> {
    let mut least = Options { until_violation: true, ..options.clone() };
    let first = run::run(&least)?;
    let Some(violation) = first.found.violations.first() else {
        println!("shrink: no violation, nothing to shrink");
        return Ok(true);
    };
    let check = violation.check;
    println!("shrink: a violation of {check}");
    let violates = |options: &Options| -> Result<bool, String> {
        println!("shrink: {}", command(options));
        Ok(run::run(options)?.found.has(check, ""))
    };
    let work = list(&least.only).unwrap_or_else(|| worker::kinds().map(str::to_owned).to_vec());
    least.only = fewer(work, |only| violates(&Options { only, ..least.clone() }))?;
    let faults: Vec<_> = first.faults.into_keys().filter(|it| FAULTS.contains(&&**it)).collect();
    let without = Options { faults: "none".to_owned(), ..least.clone() };
    least = if faults.is_empty() || violates(&without)? {
        without
    } else {
        let faults = fewer(faults, |faults| violates(&Options { faults, ..least.clone() }))?;
        Options { faults, ..least }
    };
    for (processes, threads) in [(1, 1), (1, 2), (1, least.threads), (2, 1), (2, least.threads)] {
        let fewer = Options { processes, threads, ..least.clone() };
        if processes * threads < least.processes * least.threads && violates(&fewer)? {
            least = fewer;
            break;
        }
    }
    println!("shrink: the least that still violates {check}:\n{}", command(&least));
    Ok(false)
}

/// Returns a part of `all` that is enough for the violation, as the text of an option. Halves the
/// list while one half is enough, and then removes one item at a time.
fn fewer(
    mut all: Vec<String>,
    mut is_enough: impl FnMut(String) -> Result<bool, String>,
) -> Result<String, String> {
    'halves: while all.len() > 1 {
        let other = all[all.len() / 2..].to_vec();
        for half in [all[..all.len() / 2].to_vec(), other] {
            if is_enough(half.join(","))? {
                all = half;
                continue 'halves;
            }
        }
        break;
    }
    let mut at = 0;
    while all.len() > 2 && at < all.len() {
        let mut less = all.clone();
        less.remove(at);
        if is_enough(less.join(","))? {
            all = less;
        } else {
            at += 1;
        }
    }
    Ok(all.join(","))
}

fn list(option: &str) -> Option<Vec<String>> {
    (!option.is_empty()).then(|| option.split(',').map(str::to_owned).collect())
}

fn command(options: &Options) -> String {
    let Options { topology, seed, minutes, processes, threads, only, faults, .. } = options;
    let (storm, calm) = (options.storm.as_secs(), options.calm.as_secs());
    let mut command = format!(
        "cargo run --release -p soak -- --topology {topology} --seed {seed} --minutes {minutes} \
         --storm {storm} --calm {calm} --processes {processes} --threads {threads} --until-violation"
    );
    if let Some(exe) = &options.other_worker {
        command.push_str(&format!(" --other-worker {}", exe.display()));
    }
    for (option, list) in [("--only", only), ("--faults", faults)] {
        if !list.is_empty() {
            command.push_str(&format!(" {option} '{list}'"));
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_needed_together_are_kept() {
        let all = || ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
        let needs = |needed: &'static [&'static str]| {
            fewer(all(), |list| Ok(needed.iter().all(|it| list.split(',').any(|of| of == *it))))
        };
        assert_eq!(needs(&["e"]), Ok("e".to_owned()));
        assert_eq!(needs(&["a", "f"]), Ok("a,f".to_owned()));
    }
}
