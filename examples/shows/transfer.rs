//! Shows money transfers between accounts by many workers. If each worker takes the locks of both
//! accounts, in any order of their names, the sum of the money stays the same. Without the locks
//! the sum of the money changes: `cargo run --example transfer`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use redis::{Commands, Connection};
use redlatch::Client;
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const ACCOUNTS: usize = 6;
/// The first balance of each account, in cents.
const BALANCE: i64 = 100_000;
const PROCESSES: usize = 4;
/// The number of clerks in each process.
const CLERKS: usize = 4;
/// The number of transfers by each clerk.
const TRANSFERS: usize = 40;
/// The time from a clerk's check of two balances to their change.
const WORK: Duration = Duration::from_millis(1);
/// A time that is longer than the change takes. The clerk does not rely on locks that may end
/// sooner.
const SLACK: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    stage::play("transfer", show, process)
}

/// Moves money. Each clerk calls `transfer` again and again.
fn transfer(bank: &mut Bank, from: &str, to: &str, amount: i64) -> Result<(), Trouble> {
    let guard = match &bank.locks {
        None => None,
        // Another clerk may now transfer in the other direction, with the accounts in the other
        // order.
        Some(client) => Some(client.multi_lock([from, to])?.lock()?),
    };
    let (from, to) = (format!("{from}:balance"), format!("{to}:balance"));
    let (has, had): (i64, i64) = redis::cmd("MGET").arg(&from).arg(&to).query(&mut bank.redis)?;
    thread::sleep(WORK);
    if has < amount {
        return Ok(());
    }
    if let Some(guard) = &guard {
        guard.check(SLACK)?;
    }
    let balances = [(&from, has - amount), (&to, had + amount)];
    bank.redis.mset::<_, _, ()>(&balances)?;
    // The guard is dropped here, which releases both locks.
    Ok(())
}

/// A clerk's access to the accounts.
struct Bank {
    redis: Connection,
    /// `None` if the clerks take no locks.
    locks: Option<Client>,
}

/// The work of each process. Reports how long the slowest transfer took.
fn process(job: &Job) -> Result<(), Trouble> {
    let (url, name, locked) = (job.arg(0), job.arg(1), job.arg(2) == "locked");
    let client = Client::connect(url)?;
    let redis = redis::Client::open(url)?;
    let mut banks = Vec::new();
    for _ in 0..CLERKS {
        let locks = locked.then(|| client.clone());
        banks.push(Bank { redis: redis.get_connection()?, locks });
    }
    job.say("ready");
    let _open = job.wait_line();
    let slowest = thread::scope(|scope| {
        let clerks: Vec<_> =
            banks.iter_mut().map(|bank| scope.spawn(move || work(bank, name))).collect();
        let mut slowest = Duration::ZERO;
        for clerk in clerks {
            slowest = slowest.max(clerk.join().map_err(|_| "a thread panicked")??);
        }
        Ok::<_, Trouble>(slowest)
    })?;
    job.say(&slowest.as_micros().to_string());
    Ok(())
}

fn work(bank: &mut Bank, name: &str) -> Result<Duration, Trouble> {
    let mut random = rand::rng();
    let mut slowest = Duration::ZERO;
    for _ in 0..TRANSFERS {
        let from = random.random_range(0..ACCOUNTS);
        let to = (from + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
        let begun = Instant::now();
        let amount = random.random_range(1..BALANCE / 10);
        transfer(bank, &account(name, from), &account(name, to), amount)?;
        slowest = slowest.max(begun.elapsed());
    }
    Ok(slowest)
}

fn account(name: &str, number: usize) -> String {
    format!("{name}:account:{number}")
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let clerks = PROCESSES * CLERKS;
    stage.say(&format!(
        "{ACCOUNTS} accounts with {} each, so {} together. {clerks} clerks in {PROCESSES} \
         processes\nmove money between two of them, {TRANSFERS} times each.\n",
        money(BALANCE),
        money(BALANCE * ACCOUNTS as i64),
    ))?;
    let lost = day(stage, "unlocked")?;
    stage.say(&match lost {
        0 => "Without locks: by chance the sum is as it was.".to_owned(),
        _ => format!("Without locks: the books are wrong by {}.", money(lost)),
    })?;
    let kept = day(stage, "locked")?;
    stage.say(&match kept {
        0 => "With the locks of both accounts: every cent is there.".to_owned(),
        _ => format!("WITH THE LOCKS THE BOOKS ARE WRONG BY {}.", money(kept)),
    })?;
    Ok(lost != 0 && kept == 0)
}

/// Lets all clerks work for a while. Returns by how much the sum has changed.
fn day(stage: &Stage, how: &str) -> Result<i64, Trouble> {
    let mut redis = redis::Client::open(stage.url())?.get_connection()?;
    let balances = |it| format!("{}:balance", account(&stage.name, it));
    for number in 0..ACCOUNTS {
        redis.set::<_, _, ()>(balances(number), BALANCE)?;
    }
    let args = [stage.url(), &stage.name, how];
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| Worker::spawn("process", &args)).collect();
    for process in &mut processes {
        stage.hear(process)?;
    }
    let begun = Instant::now();
    processes.iter_mut().for_each(|process| process.send_line("open"));
    let mut slowest = Duration::ZERO;
    for process in &mut processes {
        slowest = slowest.max(Duration::from_micros(stage.hear(process)?.parse()?));
    }
    stage.say(&format!(
        "{how:>8}: {:.2} s, the slowest transfer {:.0} ms",
        begun.elapsed().as_secs_f64(),
        1e3 * slowest.as_secs_f64(),
    ))?;
    let mut sum = 0;
    for number in 0..ACCOUNTS {
        sum += redis.get::<_, i64>(balances(number))?;
    }
    Ok(sum - BALANCE * ACCOUNTS as i64)
}

/// Writes an amount in cents.
fn money(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.abs() / 100, cents.abs() % 100)
}
