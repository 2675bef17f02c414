//! Random work with all synchronizers under faults. The history of the work is then checked.
//! `--help` explains the options, and SOAK.md has the results.

use std::env;
use std::process::ExitCode;

use redlatch_testkit::Job;

mod check;
mod clock;
mod history;
mod mutants;
mod nemesis;
mod options;
mod page;
mod report;
mod run;
mod shrink;
mod store;
mod worker;
mod world;

use nemesis::PLANTED;
use options::Options;

fn main() -> ExitCode {
    if let Some(job) = Job::from_env() {
        worker::run(&job);
    }
    let args: Vec<_> = env::args().skip(1).collect();
    let done = options::parse(&args).and_then(|options| {
        if options.help {
            print!("{}", options::HELP);
            Ok(true)
        } else {
            soak(&options)
        }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the soak. Returns `true` if there was no violation.
fn soak(options: &Options) -> Result<bool, String> {
    if options.mutants {
        return mutants::run(options);
    }
    if let Some(folder) = &options.check {
        let found = check::check(&history::load(folder)?);
        for violation in &found.violations {
            println!("{} of {:?}: {}", violation.check, violation.name, violation.text);
        }
        println!("{} violations", found.violations.len());
        return Ok(found.violations.is_empty());
    }
    println!("seed {}, topology {}", options.seed, options.topology);
    if options.shrink {
        return shrink::shrink(options);
    }
    let all = run::run(options)?;
    println!("{}", report::ledger(options, &all));
    if options.canary {
        for (check, name) in PLANTED {
            let was = if all.found.has(check, name) { "found" } else { "NOT FOUND" };
            println!("canary: {check} of a {name}: {was}");
        }
        return Ok(PLANTED.iter().all(|(check, name)| all.found.has(check, name)));
    }
    Ok(all.found.violations.is_empty())
}
