//! The common part of the examples: starts a server, chooses a name, handles Ctrl-C, and cleans up.
//! A program that uses the library needs none of these functions.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::process::{ExitCode, exit};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use redlatch::CancelToken;
use redlatch_testkit::{Job, Provided, Server, Worker};

pub(crate) type Trouble = Box<dyn Error + Send + Sync>;

/// The time limit for every step of an example.
const TIMEOUT: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(5);

/// The server and the name of an example.
pub(crate) struct Stage {
    server: Provided,
    /// The example's name, which all its keys contain.
    pub(crate) name: String,
    /// A token that Ctrl-C cancels.
    pub(crate) token: CancelToken,
}

/// The `main` of an example. Runs `show`, or runs `part` in a process that the example has started.
/// The exit status is 1 if `show` returns `false`.
pub(crate) fn play(
    example: &str,
    show: fn(&Stage) -> Result<bool, Trouble>,
    part: fn(&Job) -> Result<(), Trouble>,
) -> ExitCode {
    if let Some(job) = Job::from_env() {
        if let Err(trouble) = part(&job) {
            job.say(&format!("failed {}", trouble.to_string().replace('\n', " ")));
        }
        job.done();
    }
    let args: Vec<_> = env::args().skip(1).collect();
    let url = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--url", url] => Some(url),
        _ => {
            eprintln!(
                "Usage: cargo run --example {example} [-- --url redis://…]\n\
                 The server is the one of --url, else a private one, whatever REDIS_URL says."
            );
            return ExitCode::from(2);
        }
    };
    let stage = match Stage::set(example, url) {
        Ok(stage) => stage,
        Err(trouble) => {
            eprintln!("{example}: {trouble}");
            return ExitCode::FAILURE;
        }
    };
    match show(&stage) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(_) if stage.token.is_cancelled() => {
            eprintln!("{example}: interrupted");
            ExitCode::from(130)
        }
        // The reader of the output has ended, as in `| head`.
        Err(trouble) if is_broken_pipe(&trouble) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("{example}: {trouble}");
            ExitCode::FAILURE
        }
    }
}

impl Stage {
    fn set(example: &str, url: Option<&str>) -> Result<Self, Trouble> {
        let server = Server::find_or_start(url)?;
        // `connect` reports a problem with the server before the show begins.
        drop(redlatch::Client::connect(server.url())?);
        let token = CancelToken::new();
        // Ctrl-C becomes an error of the show, so that each value's drop cleans up.
        let cancelled = token.clone();
        ctrlc::set_handler(move || {
            cancelled.cancel();
            // End the process if the show has not ended by then, because the server does not
            // answer.
            thread::sleep(Duration::from_secs(5));
            exit(130);
        })?;
        let name = format!("redlatch:{example}:{:08x}", rand::random::<u32>());
        Ok(Self { server, name, token })
    }

    pub(crate) fn url(&self) -> &str {
        self.server.url()
    }

    /// Prints lines.
    pub(crate) fn say(&self, lines: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{lines}")?;
        out.flush()
    }

    /// Returns a process's next line.
    pub(crate) fn hear(&self, process: &mut Worker) -> Result<String, Trouble> {
        let mut said = None;
        self.wait_until("a process says something", || {
            said = process.try_line(TICK);
            Ok(said.is_some())
        })?;
        let line = said.unwrap_or_default();
        match line.strip_prefix("failed ") {
            Some(why) => Err(format!("process {} failed: {why}", process.pid()).into()),
            None => Ok(line),
        }
    }

    /// Polls until a condition is true.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        mut come: impl FnMut() -> Result<bool, Trouble>,
    ) -> Result<(), Trouble> {
        let until = Instant::now() + TIMEOUT;
        while !self.token.is_cancelled() {
            if come()? {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("waited {} s in vain until {what}", TIMEOUT.as_secs()).into());
            }
            thread::sleep(TICK);
        }
        Err("interrupted".into())
    }

    fn delete_keys(&self) -> redis::RedisResult<()> {
        let mut redis = redis::Client::open(self.url())?.get_connection()?;
        loop {
            let pattern = format!("*{}*", self.name);
            let keys: Vec<String> = redis.scan_match(pattern)?.collect::<Result<_, _>>()?;
            if keys.is_empty() {
                return Ok(());
            }
            redis.del::<_, ()>(keys)?;
            // Earlier commands of a killed process may arrive after the first deletion.
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The processes and clients of the show have ended by now.
impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = self.delete_keys() {
            eprintln!("the keys {}* are left: {error}", self.name);
        }
    }
}

fn is_broken_pipe(trouble: &Trouble) -> bool {
    let error = trouble.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
