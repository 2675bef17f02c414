//! Shows what happens to a shop's stock when several processes sell it at the same time. The show
//! compares sales without a lock, with a lock, and with a fair lock. In other scenarios some
//! holders are killed in mid-sale, or are paused until their leases have ended. A paused holder
//! then writes, with a plain command or in a script of its guard.
//!
//! ```sh
//! cargo run --example inventory
//! cargo run --example inventory -- --help
//! ```
//!
//! The file `main.rs` shows how to use the library: `sell_out` is the work of each thread, and
//! `keep_shop` is the work of each process. All other files belong to the show: `stock` is the
//! shop's data in Redis, `run` starts and kills the processes, `screen` and `table` print, and
//! `options` reads the arguments.

mod options;
mod run;
mod screen;
mod stock;
mod table;

use std::env;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Lock};
use redlatch_testkit::{Job, Server};

use options::{Asked, Options};
use run::{Duty, Outcome, Shop};
use screen::Screen;
use stock::{Keys, Stock};

type Trouble = Box<dyn Error + Send + Sync>;

/// The time of a sale from the check of the stock to the change of the stock.
const WORK: Duration = Duration::from_micros(500);
/// Enough time for the change. If the lock may end sooner, the sale does not begin.
const SLACK: Duration = Duration::from_millis(200);

/// Sells until the stock is empty. Each thread of each process runs `sell_out`. `trap` is the
/// accident that may happen between the check of the lock and the sale.
fn sell_out(
    stock: &mut Stock,
    lock: Option<&dyn Lock>,
    duty: &Duty,
    trap: impl Fn(&mut Stock, i64) -> Result<(), Trouble>,
) -> Result<Receipts, Trouble> {
    let mut receipts = Receipts::default();
    let slack = SLACK.min(duty.lease / 4);
    loop {
        let asked = Instant::now();
        let guard = lock.map(|lock| lock.lock()).transpose()?;
        receipts.longest_wait = receipts.longest_wait.max(asked.elapsed());

        // The first read. Without a lock, another thread may read the same number.
        let left = stock.left()?;
        if left <= 0 {
            return Ok(receipts);
        }
        thread::sleep(WORK);
        // A lock with a lease can be lost, for example while a laptop sleeps. The guard detects
        // such a loss.
        if guard.as_ref().is_some_and(|guard| guard.check(slack).is_err()) {
            continue;
        }
        trap(stock, left)?;
        // The write. If the process was paused after the check, the lock may be lost. Only the
        // server can detect this loss in time.
        let is_sold = match &guard {
            Some(guard) if duty.is_fenced => stock.sell_one_under(guard, left)?,
            _ => stock.sell_one(left).map(|()| true)?,
        };
        receipts.sold += u64::from(is_sold);
        receipts.refused += u64::from(!is_sold);
        // The guard is dropped here, which releases the lock.
    }
}

/// The report of a thread or a process when it ends.
#[derive(Clone, Copy, Default)]
struct Receipts {
    sold: u64,
    /// The number of sales that the server refused because the lock was lost.
    refused: u64,
    longest_wait: Duration,
}

/// The work of each process: waits for its start, and runs a few threads that sell.
fn keep_shop(job: &Job, duty: &Duty) -> Result<Receipts, Trouble> {
    let keys = Keys::new(&duty.prefix);
    // Each process has one client. The client's watchdog renews the locks while the threads hold
    // them and the process lives. If the process dies, its locks are free after the lease.
    let client = Client::builder(&duty.url).watchdog_timeout(duty.lease).connect()?;
    let lock = duty.guard.lock(&client, &keys.lock);

    let trap = |stock: &mut Stock, left| {
        if duty.deadly.contains(&left) && stock.dies_first(left)? {
            // The thread has the lock and has read the stock, but has not sold yet. The process is
            // killed here, or paused until other processes have sold.
            job.say("in mid-sale");
            let _goes_on = job.wait_line();
        }
        Ok(())
    };
    let mut stocks = Vec::new();
    for _ in 0..duty.threads {
        stocks.push(Stock::open(&duty.url, keys.clone(), duty.number)?);
    }
    job.say("ready");
    let _open = job.wait_line();

    thread::scope(|scope| {
        let sellers: Vec<_> = stocks
            .iter_mut()
            .map(|stock| scope.spawn(|| sell_out(stock, lock.as_deref(), duty, trap)))
            .collect();
        let mut all = Receipts::default();
        for seller in sellers {
            let receipts = seller.join().map_err(|_| "a thread panicked")??;
            all.sold += receipts.sold;
            all.refused += receipts.refused;
            all.longest_wait = all.longest_wait.max(receipts.longest_wait);
        }
        Ok(all)
    })
}

/// The lock that keeps the threads apart. A new kind needs a variant here and an entry in
/// `scenarios`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    Nothing,
    ReentrantLock,
    FairLock,
}

impl Guard {
    const ALL: [Self; 3] = [Self::Nothing, Self::ReentrantLock, Self::FairLock];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no lock",
            Self::ReentrantLock => "ReentrantLock",
            Self::FairLock => "FairLock",
        }
    }

    fn lock(self, client: &Client, name: &str) -> Option<Box<dyn Lock>> {
        match self {
            Self::Nothing => None,
            Self::ReentrantLock => Some(Box::new(client.reentrant_lock(name))),
            Self::FairLock => Some(Box::new(client.fair_lock(name))),
        }
    }
}

/// A scenario, which is one line of the table.
struct Scenario {
    guard: Guard,
    /// The client's `watchdog_timeout`. The lock of a killed process stays taken for this time.
    lease: Duration,
    /// The number of processes that are killed while they hold the lock.
    kills: usize,
    /// The number of processes that are paused while they hold the lock, until other processes have
    /// sold.
    stops: usize,
    /// Whether a sale is a script of the guard.
    is_fenced: bool,
    /// The fact that the reader should notice.
    story: String,
}

impl Scenario {
    fn name(&self) -> String {
        let how = if self.is_fenced { ", eval" } else { "" };
        format!("{}{how}", self.guard.name())
    }

    fn is_guarded(&self) -> bool {
        self.guard != Guard::Nothing
    }

    /// Whether every sale must be correct.
    fn is_safe(&self) -> bool {
        self.is_guarded() && (self.stops == 0 || self.is_fenced)
    }
}

fn scenarios(options: &Options) -> Vec<Scenario> {
    let lease = Duration::from_secs(30);
    let (short, shortest) = (Duration::from_secs(2), Duration::from_millis(100));
    let plain =
        |guard, story| Scenario { guard, lease, kills: 0, stops: 0, is_fenced: false, story };
    let mut scenarios = vec![
        plain(
            Guard::Nothing,
            "No lock. Threads that look at the same moment all see the last item, and all\n\
             sell it. Watch the stock fall below zero."
                .to_owned(),
        ),
        plain(
            Guard::ReentrantLock,
            "The same under a ReentrantLock. One sale at a time is slower, but each sees\n\
             what the one before has left: the stock ends at zero."
                .to_owned(),
        ),
        plain(
            Guard::FairLock,
            "The same under a FairLock: all threads stand in one queue, and the thread that came\n\
             first is served first, of whichever process it is."
                .to_owned(),
        ),
    ];
    if options.kills > 0 {
        let story = format!(
            "The ReentrantLock again, and processes are killed (SIGKILL) in mid-sale, while\n\
             they hold it. Nobody releases it then. Its lease of {} s ends, and the others go on.",
            short.as_secs()
        );
        let (lease, kills) = (short, options.kills);
        scenarios.push(Scenario { lease, kills, ..plain(Guard::ReentrantLock, story) });
    }
    for is_fenced in [false, true].into_iter().filter(|_| options.stops > 0) {
        let story = if is_fenced {
            "The same, but each sale is a script of the guard (`eval`): the server runs it only\n\
             while the lock is held, and refuses the late ones."
                .to_owned()
        } else {
            format!(
                "The ReentrantLock, and processes are stopped (SIGSTOP) between the check of their\n\
                 lock and the sale, past the end of its lease of {} ms. They wake up, and sell late.",
                shortest.as_millis()
            )
        };
        let (lease, stops) = (shortest, options.stops);
        let plain = plain(Guard::ReentrantLock, story);
        scenarios.push(Scenario { lease, stops, is_fenced, ..plain });
    }
    scenarios
}

fn main() -> ExitCode {
    if let Some(job) = Job::from_env() {
        let told = Duty::of(&job).and_then(|duty| keep_shop(&job, &duty));
        match told {
            Ok(Receipts { sold, refused, longest_wait }) => {
                job.say(&format!("closed {sold} {} {refused}", longest_wait.as_micros()));
            }
            Err(trouble) => job.say(&format!("failed {}", trouble.to_string().replace('\n', " "))),
        }
        job.done();
    }
    let options = match options::read(env::args_os().skip(1)) {
        Ok(Asked::Run(options)) => options,
        Ok(Asked::Help) => {
            print!("{}", options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("inventory: {wrong}; --help lists what there is");
            return ExitCode::from(2);
        }
    };
    match show(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) if trouble.is::<run::Interrupted>() => {
            eprintln!("inventory: {trouble}: the processes are ended and the keys deleted");
            ExitCode::from(130)
        }
        // The reader of the output has ended, as in `| head`.
        Err(trouble) if is_broken_pipe(&trouble) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("inventory: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every scenario and prints the table. Returns `false` if a run with a lock went wrong.
fn show(options: &Options) -> Result<bool, Trouble> {
    let server = Server::find_or_start(options.url.as_deref())?;
    // `connect` reports a problem with the server before the show begins.
    drop(Client::connect(server.url())?);
    let stop = Arc::new(AtomicBool::new(false));
    // From now on, Ctrl-C becomes an error, so that each value's drop cleans up.
    ctrlc::set_handler({
        let stop = Arc::clone(&stop);
        move || stop.store(true, Ordering::Relaxed)
    })?;
    let mut screen = Screen::new();
    let Options { processes, threads, stock, .. } = *options;
    let place = match server.server() {
        Some(server) => format!("a private Redis server on port {}", server.port()),
        None => "the Redis server that you named".to_owned(),
    };
    screen.say(&format!(
        "A shop has {} items, and {processes} processes of {threads} threads each sell them.\n\
         The stock is in {place}.\n\
         A sale looks at the stock, works for {} us, and then takes one item away.",
        table::thousands(stock),
        WORK.as_micros(),
    ))?;

    let mut outcomes: Vec<(Scenario, Outcome)> = Vec::new();
    for scenario in scenarios(options) {
        screen.say(&format!("\n{}. {}", outcomes.len() + 1, scenario.story))?;
        let prefix = format!("redlatch:inventory:{:08x}", rand::random::<u32>());
        let shop = Shop { url: server.url(), prefix: &prefix, processes, threads, stock };
        let outcome = run::run(&shop, &scenario, &mut screen, &stop)?;
        outcomes.push((scenario, outcome));
    }
    screen.say(&table::draw(&outcomes))?;
    Ok(outcomes
        .iter()
        .all(|(scenario, outcome)| !scenario.is_safe() || outcome.faults().is_empty()))
}

fn is_broken_pipe(trouble: &Trouble) -> bool {
    let error = trouble.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
