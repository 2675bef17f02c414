//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::history::FAULTS;
use crate::worker;
use crate::world::Topology;

pub(crate) const HELP: &str = "\
Random work on all synchronizers under faults, with a history that is checked.

  cargo run --release -p soak -- [options]

  --minutes N      for so long (1)
  --seed N         of the random choices (chosen and printed)
  --topology T     one, sentinel or cluster (one)
  --processes N    worker processes (4)
  --threads N      threads of each (6)
  --storm S        seconds of faults in a round (12)
  --calm S         seconds without faults after them (7)
  --only A,B       only this work: reentrant, fair, readwrite, fenced, multi, several, semaphore,
    expirable, latch, condition, long, lapse, wanted, late, lateread, short, least, once, left,
    election, barrier, evals
  --faults A,B     only these faults, by their names in the ledger; none: no fault
  --other-worker FILE  every other pair of worker processes is this build of the soak, of another
                   commit: it does the work that it knows, as in a rolling deploy
  --export FILE    appends the operations as JSON lines, for other checkers
  --check FOLDER   checks a history that was kept
  --until-violation  ends with the first violation
  --shrink         looks for less work, faults and processes with which a violation still occurs;
                   each try ends with the first one, or after --minutes
  --canary         breaks the server's data on purpose, and fails unless that is found
  --mutants        looks for each known bug, with --only for those of that name (needs
                   RUSTFLAGS='--cfg soak_mutants')

Exit status: 0 = no violation, 1 = a violation (its history is kept), 2 = it could not run.
";

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) minutes: f64,
    pub(crate) seed: u64,
    pub(crate) topology: Topology,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) storm: Duration,
    pub(crate) calm: Duration,
    pub(crate) only: String,
    pub(crate) faults: String,
    pub(crate) other_worker: Option<PathBuf>,
    pub(crate) export: Option<PathBuf>,
    pub(crate) check: Option<PathBuf>,
    pub(crate) until_violation: bool,
    pub(crate) shrink: bool,
    pub(crate) canary: bool,
    pub(crate) mutants: bool,
    pub(crate) help: bool,
    /// The command line as the user typed it.
    pub(crate) typed: String,
}

pub(crate) fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        minutes: 1.0,
        seed: rand::random_range(1..1_000_000),
        topology: Topology::One,
        processes: 4,
        threads: 6,
        storm: Duration::from_secs(12),
        calm: Duration::from_secs(7),
        only: String::new(),
        faults: String::new(),
        other_worker: None,
        export: None,
        check: None,
        until_violation: false,
        shrink: false,
        canary: false,
        mutants: false,
        help: false,
        typed: args.join(" "),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--minutes" => options.minutes = number(arg, value()?)?,
            "--seed" => options.seed = number(arg, value()?)?,
            "--topology" => options.topology = value()?.parse()?,
            "--processes" => options.processes = number(arg, value()?)?,
            "--threads" => options.threads = number(arg, value()?)?,
            "--storm" => options.storm = Duration::from_secs(number(arg, value()?)?),
            "--calm" => options.calm = Duration::from_secs(number(arg, value()?)?),
            "--only" => options.only = value()?.clone(),
            "--faults" => {
                let faults = value()?;
                options.faults =
                    if faults == "none" { faults.clone() } else { known(arg, faults, &FAULTS)? };
            }
            "--other-worker" => {
                let exe = PathBuf::from(value()?);
                options.other_worker = Some(
                    exe.canonicalize().map_err(|error| format!("{}: {error}", exe.display()))?,
                );
            }
            "--export" => options.export = Some(value()?.into()),
            "--check" => options.check = Some(value()?.into()),
            "--until-violation" => options.until_violation = true,
            "--shrink" => options.shrink = true,
            "--canary" => options.canary = true,
            "--mutants" => options.mutants = true,
            "--help" | "-h" => options.help = true,
            other => return Err(format!("there is no option {other}; --help lists them")),
        }
    }
    if options.processes == 0 || options.threads == 0 {
        return Err("without processes or threads nothing is done".to_owned());
    }
    if !options.mutants && !options.only.is_empty() {
        options.only = known("--only", &options.only, &worker::kinds())?;
    }
    if options.canary {
        (options.storm, options.calm) = (Duration::from_secs(8), Duration::from_secs(1));
        // Only these kinds of work are used, so that enough threads use each of the damaged names.
        options.only = "reentrant,semaphore,fenced".to_owned();
        options.minutes = 2.0;
    }
    Ok(options)
}

fn number<T: std::str::FromStr>(option: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{option} is no number: {text}"))
}

/// Checks a comma-separated list. Each part must be in `names`.
fn known(option: &str, text: &str, names: &[&str]) -> Result<String, String> {
    match text.split(',').find(|it| !names.contains(it)) {
        Some(wrong) => Err(format!("{option}: there is no {wrong:?}, but {}", names.join(", "))),
        None => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_mistakes_are_named() {
        let parse = |line: &str| parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let options = parse("--minutes 0.5 --topology cluster --seed 7").unwrap();
        assert_eq!((options.seed, options.topology), (7, Topology::Cluster));
        for wrong in
            ["--minutes", "--minutes x", "--topology two", "--no", "--threads 0", "--only fence"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
