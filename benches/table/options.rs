//! The command line's options.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    pub(crate) holds: usize,
    pub(crate) lease: Duration,
    /// Whether a busy loop runs on each core.
    pub(crate) busy: bool,
    pub(crate) sections: Vec<String>,
}

impl Options {
    /// Parses the arguments. Returns `None` if the user asked for help.
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let args: Vec<String> = args.collect();
        // Only `cargo bench` passes `--bench`. `cargo test --all-targets` needs a short run.
        let quick = args.iter().any(|arg| arg == "--quick") || !args.iter().any(|a| a == "--bench");
        let mut options = Self {
            rounds: if quick { 1 } else { 5 },
            length: Duration::from_millis(if quick { 200 } else { 1_000 }),
            holds: if quick { 5_000 } else { 100_000 },
            lease: Duration::from_secs(if quick { 3 } else { 30 }),
            busy: false,
            sections: Vec::new(),
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a number"));
            let wrong = |error: &dyn std::fmt::Display| format!("{arg}: {error}");
            match arg.as_str() {
                "--bench" | "--quick" => {}
                "--help" => return Ok(None),
                "--busy" => options.busy = true,
                "--rounds" => options.rounds = value()?.parse().map_err(|it| wrong(&it))?,
                "--holds" => options.holds = value()?.parse().map_err(|it| wrong(&it))?,
                "--seconds" => {
                    let seconds = value()?.parse().map_err(|it| wrong(&it))?;
                    options.length =
                        Duration::try_from_secs_f64(seconds).map_err(|it| wrong(&it))?;
                }
                option if option.starts_with('-') => return Err(format!("what is {option}?")),
                section => options.sections.push(section.to_owned()),
            }
        }
        if options.rounds == 0 || options.holds == 0 || options.length.is_zero() {
            return Err("nothing is measured with zero of it".to_owned());
        }
        Ok(Some(options))
    }
}
