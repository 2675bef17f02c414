//! Shows the purpose of a fencing token. A process is paused while it holds a lock, wakes up when
//! another process has the lock, and writes. With the token, the database refuses this write. A
//! database that does not check the token loses money: `cargo run --example fenced --features
//! sqlite`

mod stage;

use std::env::temp_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use redlatch::{Client, FencedLock, FencingToken};
use redlatch_testkit::{Job, Worker};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use stage::{Stage, Trouble};

/// The lease is short, so that the show is short.
const LEASE: Duration = Duration::from_secs(1);
const BEGINNING: i64 = 100;
const FIRST: i64 = 30;
const SECOND: i64 = 50;

fn main() -> ExitCode {
    stage::play("fenced", show, withdraw)
}

/// Runs the first statement of each transaction that writes under the lock. Returns `false` if this
/// process must not write, because a process with a later token has written.
fn is_in_front(
    transaction: &Transaction<'_>,
    lock: &FencedLock,
    token: FencingToken,
) -> rusqlite::Result<bool> {
    let row = transaction
        .query_row(
            "INSERT INTO fence (lock, token) VALUES (?1, ?2)
                 ON CONFLICT (lock) DO UPDATE SET token = excluded.token
                     WHERE fence.token <= excluded.token
                 RETURNING token",
            (lock.name(), i64::from(token)),
            |row| row.get::<_, i64>(0),
        )
        .optional()?;
    Ok(row.is_some())
}

/// The work of each process: reads the balance, and writes the new balance.
fn withdraw(job: &Job) -> Result<(), Trouble> {
    let (url, name, file) = (job.arg(0), job.arg(1), job.arg(2));
    let (is_fenced, amount) = (job.arg(3) == "fenced", job.arg(4).parse::<i64>()?);
    let client = Client::builder(url).watchdog_timeout(LEASE).connect()?;
    let mut database = open(Path::new(file))?;
    let lock = client.fenced_lock(name);

    let guard = lock.lock()?;
    let balance = balance(&database)?;
    guard.check(LEASE / 4)?;
    // The lock is certainly held. The thread sleeps while it holds the lock, as may happen to any
    // thread at any time.
    job.say(&format!("{balance} {}", guard.token()));
    let _awake = job.wait_line();

    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_fenced && !is_in_front(&transaction, &lock, guard.token())? {
        transaction.rollback()?;
        job.say("refused");
        return Ok(());
    }
    transaction.execute("UPDATE account SET balance = ?1", [balance - amount])?;
    transaction.commit()?;
    job.say("written");
    // The first process notices too late that it had lost the lock.
    let _ = guard.unlock();
    Ok(())
}

fn open(file: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(file)?;
    database.busy_timeout(Duration::from_secs(10))?;
    Ok(database)
}

fn balance(database: &Connection) -> rusqlite::Result<i64> {
    database.query_row("SELECT balance FROM account", [], |row| row.get(0))
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    stage.say(&format!(
        "An account of {BEGINNING}. Two processes withdraw {FIRST} and {SECOND}, under a lock with a \
         lease of {LEASE:?}.",
    ))?;
    let unfenced = round(stage, "unfenced")?;
    let fenced = round(stage, "fenced")?;
    let lost = unfenced == BEGINNING - FIRST;
    let kept = fenced == BEGINNING - SECOND;
    stage.say(&format!(
        "\nWithout the fence {}; with it {}",
        if lost { "the second withdrawal is forgotten" } else { "the story is UNTRUE" },
        if kept { "it stays, and the late one can be tried anew." } else { "the story is UNTRUE." },
    ))?;
    Ok(lost && kept)
}

/// Pauses a holder until its lease is over and another process has written. Returns the balance.
fn round(stage: &Stage, kind: &str) -> Result<i64, Trouble> {
    let file = File::new(&stage.name, kind);
    let database = open(&file.0)?;
    database.execute_batch(&format!(
        "CREATE TABLE account (balance INTEGER NOT NULL);
         INSERT INTO account VALUES ({BEGINNING});
         CREATE TABLE fence (lock TEXT PRIMARY KEY, token INTEGER NOT NULL);",
    ))?;
    let name = format!("{}:{kind}", stage.name);
    let path = file.0.to_string_lossy();
    let start = |amount: i64| {
        Worker::spawn("withdraw", &[stage.url(), &name, &path, kind, &amount.to_string()])
    };
    stage.say(&format!("\n{kind}:"))?;
    let said = |line: String| -> Result<(String, String), Trouble> {
        let (balance, token) = line.split_once(' ').ok_or("a process mumbles")?;
        Ok((balance.to_owned(), token.to_owned()))
    };

    let mut first = start(FIRST);
    let (seen, token) = said(stage.hear(&mut first)?)?;
    first.sigstop();
    stage.say(&format!("  the first has the lock (token {token}), sees {seen}, and is stopped"))?;
    let mut second = start(SECOND);
    // The lease of the first process ends.
    let (seen, token) = said(stage.hear(&mut second)?)?;
    second.send_line("go on");
    let what = stage.hear(&mut second)?;
    stage.say(&format!("  the second gets the lock (token {token}), sees {seen}: {what}"))?;
    first.send_line("go on");
    first.sigcont();
    let what = stage.hear(&mut first)?;
    let left = balance(&database)?;
    stage.say(&format!("  the first wakes up and writes: {what}; the balance is {left}"))?;
    Ok(left)
}

/// A database file. The drop deletes the file.
struct File(PathBuf);

impl File {
    fn new(name: &str, kind: &str) -> Self {
        Self(temp_dir().join(format!("{}-{kind}.sqlite", name.replace(':', "-"))))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
