//! The command line.

use std::ffi::OsString;

pub(crate) const HELP: &str = "\
Several processes sell the same stock through Redis, with a look at the stock and a later change
of it: without a lock, under a lock, under a fair lock, under a lock whose holders are killed in
mid-sale, and under a lock whose holders are stopped past its lease, and then sell.

Usage: cargo run --example inventory -- [options]

  --url <url>       the server: redis://[user:password@]host[:port][/db] or
                    redis+unix:///path
                    (keys with redlatch:inventory: in them, deleted at the end); otherwise a
                    private one is started, whatever REDIS_URL says
  --processes <n>   how many processes sell (4)
  --threads <n>     with how many threads each (8)
  --stock <n>       how many items there are, in each run (3000)
  --kills <n>       how many holders are killed in the fourth run, 2 s each (3); 0 leaves it out
  --stops <n>       how many holders are stopped in each of two more runs (3); 0 leaves them out
  -h, --help        this

Exit status: 0 if all is well, 1 if a guarded run sold more or less than the stock or lost a sale,
or the server failed, 2 if the command line is wrong, 130 after Ctrl-C.
";

pub(crate) struct Options {
    pub(crate) url: Option<String>,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) stock: u64,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
}

pub(crate) enum Asked {
    Help,
    Run(Options),
}

/// Reads the arguments after the program's name: `--name value` or `--name=value`.
pub(crate) fn read(args: impl Iterator<Item = OsString>) -> Result<Asked, String> {
    let mut options =
        Options { url: None, processes: 4, threads: 8, stock: 3_000, kills: 3, stops: 3 };
    let mut args = args.map(|arg| {
        arg.into_string().map_err(|arg| format!("{} is not UTF-8", arg.to_string_lossy()))
    });
    while let Some(arg) = args.next().transpose()? {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        let mut value = || match inline.clone() {
            Some(value) => Ok(value),
            None => args.next().transpose()?.ok_or_else(|| format!("{name} needs a value")),
        };
        match name {
            "-h" | "--help" if inline.is_none() => return Ok(Asked::Help),
            "--url" => {
                let url = value()?;
                redis::Client::open(url.as_str()).map_err(|error| format!("--url: {error}"))?;
                options.url = Some(url);
            }
            "--processes" => options.processes = number(name, &value()?, 1, 64)? as usize,
            "--threads" => options.threads = number(name, &value()?, 1, 256)? as usize,
            "--stock" => options.stock = number(name, &value()?, 1, 1_000_000)?,
            "--kills" => options.kills = number(name, &value()?, 0, 20)? as usize,
            "--stops" => options.stops = number(name, &value()?, 0, 20)? as usize,
            _ => return Err(format!("{arg} is not an option")),
        }
    }
    Ok(Asked::Run(options))
}

fn number(name: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    match value.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("{name} is {value:?}; it must be a number from {least} to {most}")),
    }
}
