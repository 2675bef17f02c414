//! The arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Parser, Subcommand};
use clap_complete::Shell;
use redlatch::{Client, ClientBuilder, Owner};
use signal_hook::low_level::signal_name;

use crate::acl::Use;
use crate::trouble::{CONFIG, NOT_HAD, Trouble};

/// Locks of redlatch and Redisson in a shell.
#[derive(Debug, Parser)]
#[command(name = "redlatch", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The server: redis://…, rediss://…, redis-sentinel://… or redis-cluster://…. Other users of
    /// the machine see this in the list of processes: with a password use REDLATCH_URL, or a file.
    #[arg(long, env = "REDLATCH_URL", hide_env_values = true, global = true)]
    url: Option<String>,
    /// A file with the server's URL in its first line.
    #[arg(long, env = "REDLATCH_URL_FILE", global = true)]
    url_file: Option<PathBuf>,
    /// The prefix of each name on the server, as the programs that share the locks set it. Names on
    /// the command line and in the output do not have the prefix.
    #[arg(
        long,
        env = "REDLATCH_PREFIX",
        default_value = "",
        hide_default_value = true,
        global = true
    )]
    prefix: String,
    /// Does not say why the status is 75 or 124.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Runs a command while it has a lock.
    Run(Run),
    /// Shows the holder of a lock, and its waiters. Status 1: nobody has the lock.
    Who {
        /// The lock's name.
        name: String,
        /// One object on one line.
        #[arg(long)]
        json: bool,
    },
    /// Waits until nobody has a lock, and does not take it. It looks ten times a second.
    Wait {
        /// The lock's name.
        name: String,
        /// Waits for at most this time. Status 75: the lock is not free then.
        #[arg(long, value_parser = duration, value_name = "TIME")]
        limit: Option<Duration>,
    },
    /// Lists the locks that are held, and the semaphores and latches for which processes wait. It
    /// scans the server's keys, 200 at a time.
    Ls {
        /// Names, with `*` and `?`.
        #[arg(default_value = "*")]
        pattern: String,
        /// One object a line.
        #[arg(long)]
        json: bool,
    },
    /// Shows the list of `ls` again and again: on a terminal as a screen, which q ends; otherwise
    /// as lines, with an empty line after each scan.
    Top {
        /// Names, with `*` and `?`.
        #[arg(default_value = "*")]
        pattern: String,
        /// The time between two scans.
        #[arg(long, value_parser = duration, value_name = "TIME", default_value = "2")]
        every: Duration,
        /// One object a line, with the number of the scan.
        #[arg(long)]
        json: bool,
    },
    /// Frees a lock that its holder does not release. The holder's command may still run, beside
    /// the command of the next holder. Status 75: the lock is free.
    Unlock {
        /// The lock's name.
        name: String,
        /// Frees the lock or the permit of this owner only (as printed by `who`). Status 75: it has none.
        #[arg(long, required_unless_present = "force")]
        owner: Option<Owner>,
        /// Frees the lock, whoever has it.
        #[arg(long, conflicts_with = "owner")]
        force: bool,
    },
    /// Prints the free permits of a semaphore, as `run --permits` uses it, or changes their number.
    Permits {
        /// The semaphore's name.
        name: String,
        /// Sets the number of permits, taken ones included.
        #[arg(long)]
        set: Option<u32>,
    },
    /// Prints the count of a latch, or changes it, or waits until it is zero.
    #[command(group(ArgGroup::new("what").args(["set", "count_down", "wait"])))]
    Latch {
        /// The latch's name.
        name: String,
        /// Sets the count, if it is zero. Status 75: it is not zero.
        #[arg(long)]
        set: Option<u64>,
        /// Counts down by one.
        #[arg(long)]
        count_down: bool,
        /// Waits until the count is zero, for at most this time. Status 75: it is not zero then.
        #[arg(long, value_parser = duration, value_name = "TIME")]
        wait: Option<Duration>,
    },
    /// Prints the `ACL SETUSER` command that gives a user of the server the rights which a name
    /// needs. It sets no password, and asks no server.
    Acl {
        /// The name, or the beginning of names and a `*`.
        name: String,
        /// What the user does with the name.
        #[arg(long = "for", value_enum, value_name = "USE", value_delimiter = ',')]
        #[arg(default_value = "lock")]
        uses: Vec<Use>,
        /// The user.
        #[arg(long, default_value = "app")]
        user: String,
    },
    /// Says what a server is, and what that costs: its version, role, eviction, persistence, and
    /// the user's rights. It changes nothing. Status 77: the user lacks rights.
    Doctor {
        /// The server's URL, in place of --url.
        #[arg(value_name = "URL")]
        server: Option<String>,
        /// A name, or another one with the same access rights.
        #[arg(long, default_value = "redlatch-doctor")]
        name: String,
        /// What the user does with the name.
        #[arg(long = "for", value_enum, value_name = "USE", value_delimiter = ',')]
        #[arg(default_value = "lock")]
        uses: Vec<Use>,
    },
    /// Prints completions for a shell, or the names of the shells.
    Completions {
        /// The shell.
        shell: Option<Shell>,
    },
    /// Prints the manual page.
    Man,
}

#[derive(Debug, clap::Args)]
#[command(after_help = TIMES, override_usage = "redlatch run [OPTIONS] NAME COMMAND…\n       \
    redlatch run [OPTIONS] NAME -c SHELL-COMMAND")]
#[command(group(ArgGroup::new("kind").args(["shared", "exclusive", "fair", "fenced", "permits"])))]
pub(crate) struct Run {
    /// Fails at once if the lock is taken.
    #[arg(short, long, visible_alias = "nb", conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Fails if the lock is not taken within this time. At a silent server, status 69 may take 5 s.
    #[arg(short, long, visible_alias = "timeout", value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Option<Duration>,
    /// Takes a read-write lock to read, beside others with -s.
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Takes a read-write lock to write, alone. (Without -s and -x it is a plain lock.)
    #[arg(short = 'x', short_alias = 'e', long)]
    pub(crate) exclusive: bool,
    /// Serves waiters in the order of arrival.
    #[arg(long)]
    pub(crate) fair: bool,
    /// Gives the command a token that grows from holder to holder, in REDLATCH_TOKEN.
    #[arg(long)]
    pub(crate) fenced: bool,
    /// Runs at most N commands at a time. N applies when the name is new: see `redlatch permits`.
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,
    /// The status if the lock is not taken. (0 is also as quiet as -q.)
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = NOT_HAD)]
    pub(crate) conflict_exit_code: u8,
    /// How long others wait if this machine dies. The lease is renewed while the command runs.
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "30")]
    pub(crate) lease: Duration,
    /// Keeps the lock taken for at least this time, if the command can be run at all: with -n,
    /// "once a minute on one of all machines". The server keeps the lock even if this process or
    /// the machine ends sooner.
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with = "permits")]
    pub(crate) hold_at_least: Option<Duration>,
    /// Stops the command after this time, with status 124.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) max_hold: Option<Duration>,
    /// Sends the command this signal, such as USR1 or SIGTERM, each time that another process begins
    /// to wait for the lock while none waited before. The command gets it after its first second.
    #[arg(long, value_name = "SIGNAL", conflicts_with = "permits")]
    #[arg(ignore_case = true, hide_possible_values = true, value_parser = signals())]
    pub(crate) on_wanted: Option<i32>,
    /// The time between TERM and KILL, when the lock is about to be lost or after --max-hold. KILL
    /// comes 2 s before the end of the lease, or a tenth of it. [default: 5, or a quarter of the
    /// lease]
    #[arg(short, long, value_parser = duration, value_name = "TIME")]
    pub(crate) kill_grace: Option<Duration>,
    /// Also ends processes that leave the group, as by setsid: the command runs in a cgroup
    /// (version 2) below the cgroup of this process. This takes some 10 ms. Status 78: the cgroup
    /// cannot be made.
    #[arg(long)]
    pub(crate) cgroup: bool,
    /// Says on stderr how long it waited.
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Runs this by the shell.
    #[arg(short, long = "command", value_name = "SHELL-COMMAND")]
    pub(crate) command: Option<OsString>,
    /// The lock's name, and the command with its own options. Options of redlatch come first.
    #[arg(required = true, trailing_var_arg = true, value_name = "NAME COMMAND")]
    pub(crate) words: Vec<OsString>,
}

const TIMES: &str = "\
TIME is in seconds, as 1.5, or has a unit: 200ms, 90s, 5m, 1h, 1d.

Status: the command's own; 128 + n if signal n ended it, or ended the wait;
  74  the lock was lost and the command stopped: its work may be half done
  75  the lock was not had (-E)        124  stopped after --max-hold
  126 the command cannot be run        127  there is no such command
  64 usage, 69 the server is away, 70 a fault here, 76 it is no Redis server,
  77 the server refuses, 78 a setting or the URL is not usable

The command has REDLATCH_NAME, REDLATCH_OWNER, REDLATCH_DEADLINE (in ms since 1970: the lock is
certain until then, and renewed meanwhile) and, with --fenced, REDLATCH_TOKEN in its environment.
It is a group of processes of its own, whose rest is killed before the lock is released. If stdin
is a terminal it stays in the terminal's group, and only the command itself is killed.
Without --cgroup a process that has left the group (setsid) or changed its user (sudo) may go on.
Nothing is stopped while the whole machine, or the process `redlatch` beside the command, is stopped
itself: use --fenced where that matters.";

/// Parses a signal's name, with or without SIG, to its number.
fn signals() -> impl TypedValueParser<Value = i32> {
    let names = (1..64).filter_map(signal_name);
    let names = names.map(|name| PossibleValue::new(name.trim_start_matches("SIG")).alias(name));
    PossibleValuesParser::new(names).try_map(|name| {
        let name = format!("SIG{}", name.to_uppercase().trim_start_matches("SIG"));
        (1..64).find(|number| signal_name(*number) == Some(&name)).ok_or("no such signal")
    })
}

/// Parses a time: seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.find(|it: char| it.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err("the unit is ms, s, m, h or d".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "no number".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}

impl Args {
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the settings for a client of the server.
    pub(crate) fn client(&self) -> Result<ClientBuilder, Trouble> {
        Ok(Client::builder(&self.url()?).prefix(&self.prefix))
    }

    pub(crate) fn url(&self) -> Result<String, Trouble> {
        if let Task::Doctor { server: Some(url), .. } = &self.task {
            return Ok(url.clone());
        }
        Ok(match (&self.url, &self.url_file) {
            (Some(url), _) => url.clone(),
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file).map_err(|error| {
                    Trouble::new(CONFIG, format!("cannot read {}: {error}", file.display()))
                })?;
                text.lines().next().unwrap_or_default().trim().to_owned()
            }
            (None, None) => {
                let message = "where is the server? Set --url, REDLATCH_URL or --url-file";
                return Err(Trouble::new(CONFIG, message));
            }
        })
    }
}
