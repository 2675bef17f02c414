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

/// The heading of the options that every task has.
const COMMON: &str = "Options of all commands";

/// Locks of redlatch and Redisson in a shell.
#[derive(Debug, Parser)]
#[command(name = "redlatch", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The server's URL: redis://…, rediss://…, redis-sentinel://… or redis-cluster://…. Other
    /// users of the machine can see this option. If the URL has a password, use REDLATCH_URL or a
    /// file.
    #[arg(long, env = "REDLATCH_URL", hide_env_values = true, global = true)]
    #[arg(help_heading = COMMON)]
    url: Option<String>,
    /// A file whose first line is the server's URL.
    #[arg(long, env = "REDLATCH_URL_FILE", hide_env_values = true, global = true)]
    #[arg(help_heading = COMMON)]
    url_file: Option<PathBuf>,
    /// The text before each name on the server, if the programs that share the locks set one. Names
    /// on the command line and in the output do not have the prefix.
    #[arg(
        long,
        env = "REDLATCH_PREFIX",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true,
        global = true,
        help_heading = COMMON
    )]
    prefix: String,
    /// Prints no message if the status is 75 or 124.
    #[arg(short, long, global = true, help_heading = COMMON)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Runs a command under a lock.
    Run(Run),
    /// Shows the holder of a lock, and its waiters. Status 1: nobody has the lock.
    Who {
        /// The lock's name.
        name: String,
        /// Prints a JSON object on one line.
        #[arg(long)]
        json: bool,
    },
    /// Waits until nobody has a lock, and does not take it. Asks the server ten times a second.
    Wait {
        /// The lock's name.
        name: String,
        /// Waits for at most this time. Status 75: the lock is still not free.
        #[arg(long, value_parser = duration, value_name = "TIME")]
        limit: Option<Duration>,
    },
    /// Lists the locks that are held, and the semaphores and latches for which processes wait.
    /// Scans the server's keys, 200 at a time.
    Ls {
        /// Which names: `*` stands for any text, and `?` for any character.
        #[arg(default_value = "*")]
        pattern: String,
        /// Prints a JSON object on a line for each name.
        #[arg(long)]
        json: bool,
    },
    /// Shows the list of `ls` again and again. On a terminal it fills the screen, until you press
    /// q. Otherwise it is printed, with an empty line after each scan.
    Top {
        /// Which names: `*` stands for any text, and `?` for any character.
        #[arg(default_value = "*")]
        pattern: String,
        /// The time between two scans.
        #[arg(long, value_parser = duration, value_name = "TIME", default_value = "2")]
        every: Duration,
        /// Prints a JSON object on a line for each name, with the number of the scan.
        #[arg(long)]
        json: bool,
    },
    /// Frees a lock that its holder does not release. The holder may not have stopped its work when
    /// the next holder begins. Status 75: the lock is free.
    Unlock {
        /// The lock's name.
        name: String,
        /// Frees the lock or the permit only if this owner has it. `who` prints the owners. Status
        /// 75: this owner does not have it.
        #[arg(long, required_unless_present = "force")]
        owner: Option<Owner>,
        /// Frees the lock, whoever has it.
        #[arg(long, conflicts_with = "owner")]
        force: bool,
    },
    /// Prints how many permits of a semaphore (see `run --permits`) are free, or sets how many
    /// permits the semaphore has.
    Permits {
        /// The semaphore's name.
        name: String,
        /// Sets the number of permits, including those that are taken.
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
        /// Waits until the count is zero, for at most this time. Status 75: it is still not zero.
        #[arg(long, value_parser = duration, value_name = "TIME")]
        wait: Option<Duration>,
    },
    /// Prints the `ACL SETUSER` command that gives a user of the Redis server the rights to use a
    /// name. The command sets no password. `redlatch acl` needs no server.
    Acl {
        /// The lock's name, or the beginning of several names followed by `*`.
        name: String,
        /// What the user may do with the name.
        #[arg(long = "for", value_enum, value_name = "USE", value_delimiter = ',')]
        #[arg(default_value = "lock")]
        uses: Vec<Use>,
        /// The name of the Redis user.
        #[arg(long, default_value = "app")]
        user: String,
    },
    /// Shows a server's version, role, eviction policy and persistence, and whether the URL's user
    /// has the rights to use a name. `!` marks a drawback or a missing right. Changes nothing on
    /// the server. Status 77: the user lacks rights.
    Doctor {
        /// The server's URL, instead of --url.
        #[arg(value_name = "URL")]
        server: Option<String>,
        /// The lock's name. Any name to which the user has the same rights will do.
        #[arg(long, default_value = "redlatch-doctor")]
        name: String,
        /// What the user may do with the name.
        #[arg(long = "for", value_enum, value_name = "USE", value_delimiter = ',')]
        #[arg(default_value = "lock")]
        uses: Vec<Use>,
    },
    /// Prints the completion script for a shell, or, without a shell, lists the shells.
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
    /// Does not wait: fails at once if the lock is not free.
    #[arg(short, long, visible_alias = "nb", conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Waits for the lock for at most this time. If the server does not answer, it may take 5 s to
    /// fail (status 69), even if TIME is shorter.
    #[arg(short, long, visible_alias = "timeout", value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Option<Duration>,
    /// Takes a read-write lock to read: all commands with -s may run at the same time.
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Takes a read-write lock to write, alone. (Without -s and -x it is a plain lock.)
    #[arg(short = 'x', short_alias = 'e', long)]
    pub(crate) exclusive: bool,
    /// Takes a fair lock: all waiters get it in the order in which they came.
    #[arg(long)]
    pub(crate) fair: bool,
    /// Sets REDLATCH_TOKEN for the command to a number that is greater for each later holder. A
    /// store that compares the numbers can refuse the writes of an earlier holder.
    #[arg(long)]
    pub(crate) fenced: bool,
    /// Runs at most N commands at a time, instead of one. The first command with a new name sets N
    /// for all. `redlatch permits --set` changes it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// The status if the lock was not free in time. With 0, there is no message either.
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = NOT_HAD)]
    pub(crate) conflict_exit_code: u8,
    /// If this machine dies, the lock is free after this time. While the command runs, the lease is
    /// renewed.
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "30")]
    pub(crate) lease: Duration,
    /// Keeps the lock taken for at least this time, even if the command, this process or the
    /// machine ends sooner. (If the command cannot be run at all, the lock is free at once.)
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with = "permits")]
    pub(crate) hold_at_least: Option<Duration>,
    /// Stops the command after this time, with status 124.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) max_hold: Option<Duration>,
    /// Sends the command this signal, such as USR1 or SIGTERM, each time that another process
    /// begins to wait for the lock while none waited before. The command's first second is spared.
    #[arg(long, value_name = "SIGNAL", conflicts_with = "permits")]
    #[arg(ignore_case = true, hide_possible_values = true, value_parser = signals())]
    pub(crate) on_wanted: Option<i32>,
    /// How long after TERM the command gets KILL, if it is stopped because of --max-hold or because
    /// the lock will be lost. [default: 5, or a quarter of the lease if that is less]
    #[arg(short, long, value_parser = duration, value_name = "TIME")]
    pub(crate) kill_grace: Option<Duration>,
    /// Also kills processes that have left the command's process group, for example by setsid. The
    /// command runs in a cgroup (version 2) below the cgroup of this process, which takes about
    /// 10 ms. Status 78: no cgroup can be made.
    #[arg(long)]
    pub(crate) cgroup: bool,
    /// Says on stderr how long it waited for the lock.
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Runs this command in a shell: $SHELL, or /bin/sh.
    #[arg(short, long = "command", value_name = "SHELL-COMMAND")]
    pub(crate) command: Option<OsString>,
    /// The lock's name, and the command with its own options. Options of redlatch come before the
    /// name.
    #[arg(required = true, trailing_var_arg = true, value_name = "NAME COMMAND")]
    pub(crate) words: Vec<OsString>,
}

const TIMES: &str = "\
TIME is a number of seconds, such as 1.5, or has a unit: 200ms, 90s, 5m, 1h, 1d.

The exit status is the command's own, or 128 + n if signal n ended the command or the wait, or:
  64   the words on the command line are wrong
  69   the server cannot be reached or does not answer
  70   a fault of redlatch or of this machine
  74   the lock was lost and the command was stopped: its work may be half done
  75   the lock was not free in time (-E sets another status)
  76   the program at the server's address is no Redis server
  77   the server refuses the user, or what the user asks for
  78   a setting or the URL is not usable
  124  the command was stopped after --max-hold
  126  the command cannot be run
  127  there is no such command

The command's environment has REDLATCH_NAME, REDLATCH_OWNER, REDLATCH_DEADLINE and, with --fenced,
REDLATCH_TOKEN. Until REDLATCH_DEADLINE (in ms since 1970) the lock is certainly held. Later it is
held only if its lease could be renewed.

The command has a process group of its own. When the command ends, what is left of its group is
killed, and then the lock is released. If stdin is a terminal, the command stays in the terminal's
group, and only the command itself is killed.

Without --cgroup, a process that has left the group (setsid) or changed its user (sudo) may live on.
If the machine or the guardian (a second process `redlatch`) stands still, nothing can stop the
command before another process gets the lock. If a late write would do harm, use --fenced.";

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
        _ => return Err("the unit must be ms, s, m, h or d".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "too long, or negative".to_owned())
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
                let message = "no server is given: set REDLATCH_URL, --url or --url-file";
                return Err(Trouble::new(CONFIG, message));
            }
        })
    }
}
