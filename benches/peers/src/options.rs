//! The command line's options.

use std::path::PathBuf;

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    /// The time for which Java warms up.
    pub(crate) warm: f64,
    pub(crate) quick: bool,
    pub(crate) from: Option<PathBuf>,
    /// The results of an earlier run. Some works in this file are replaced.
    pub(crate) into: Option<PathBuf>,
    pub(crate) dashboard: bool,
    pub(crate) works: Vec<String>,
}

pub(crate) const HELP: &str = "\
cargo run --release -p redlatch-peers -- [options] [work…]

  --quick        everything once and short, nothing is written: does it still run?
  --rounds N     so many rounds (5)
  --seconds S    so long each measurement (0.7)
  --warm S       so long Redisson warms up where processes contend (25)
  --from FILE    writes PEERS.md and the pictures again, from an earlier run's file
  --into FILE    with works: puts them in the place of an earlier run's, and writes all again
  --dashboard    draws docs/pictures/dashboard.svg instead, from a run of a minute and a half
  --help

With works named, only these are measured, and the tables are printed and not written.
";

impl Options {
    /// Parses the arguments. Returns `None` if the user asked for help.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            rounds: 5,
            seconds: 0.7,
            warm: 25.0,
            quick: false,
            from: None,
            into: None,
            dashboard: false,
            works: Vec::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |text: String| match text.parse::<f64>() {
                Ok(number) if number > 0.0 => Ok(number),
                _ => Err(format!("{arg} needs a number above zero, not {text:?}")),
            };
            match arg.as_str() {
                "--help" => return Ok(None),
                "--quick" => {
                    (options.rounds, options.seconds, options.warm) = (1, 0.3, 1.0);
                    options.quick = true;
                }
                "--rounds" => options.rounds = number(value()?)?.ceil() as usize,
                "--seconds" => options.seconds = number(value()?)?,
                "--warm" => options.warm = number(value()?)?,
                "--dashboard" => options.dashboard = true,
                "--from" => options.from = Some(value()?.into()),
                "--into" => options.into = Some(value()?.into()),
                option if option.starts_with('-') => {
                    return Err(format!("there is no option {option}; --help lists them"));
                }
                work => options.works.push(work.to_owned()),
            }
        }
        if options.into.is_some() && (options.works.is_empty() || options.quick) {
            return Err("--into needs works to replace, and not --quick".to_owned());
        }
        Ok(Some(options))
    }
}
