//! A scenario: starts the processes, watches the sales, kills some processes, and counts.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch_testkit::{Job, Worker};

use crate::screen::Screen;
use crate::stock::{Keys, Stock};
use crate::table::{duration, thousands};
use crate::{Guard, Receipts, Scenario, Trouble};

/// The time between two checks of the processes and the stock.
const TICK: Duration = Duration::from_millis(5);
/// If there is no sale for this time after the end of a lease, the scenario fails.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The values that all scenarios share. Each scenario has its own keys.
pub(crate) struct Shop<'a> {
    pub(crate) url: &'a str,
    pub(crate) prefix: &'a str,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) stock: u64,
}

/// The settings of one process. The process gets them at its start.
pub(crate) struct Duty {
    pub(crate) url: String,
    pub(crate) prefix: String,
    pub(crate) number: usize,
    pub(crate) threads: usize,
    pub(crate) guard: Guard,
    pub(crate) lease: Duration,
    /// At each of these numbers of items, the first process that reads the number is killed or
    /// paused.
    pub(crate) deadly: Vec<i64>,
    pub(crate) is_fenced: bool,
}

impl Duty {
    fn start(&self) -> Worker {
        let Self { number, threads, .. } = self;
        let args = [
            self.url.clone(),
            self.prefix.clone(),
            number.to_string(),
            threads.to_string(),
            self.guard.name().to_owned(),
            self.lease.as_millis().to_string(),
            self.deadly.iter().map(i64::to_string).collect::<Vec<_>>().join(","),
            self.is_fenced.to_string(),
        ];
        Worker::spawn("shop", &args.each_ref().map(String::as_str))
    }

    /// Reads the settings in the new process.
    pub(crate) fn of(job: &Job) -> Result<Self, Trouble> {
        let guard = Guard::ALL.into_iter().find(|guard| guard.name() == job.arg(4));
        Ok(Self {
            url: job.arg(0).to_owned(),
            prefix: job.arg(1).to_owned(),
            number: job.arg(2).parse()?,
            threads: job.arg(3).parse()?,
            guard: guard.ok_or("no such guard")?,
            lease: Duration::from_millis(job.arg(5).parse()?),
            deadly: job.arg(6).split_terminator(',').map(str::parse).collect::<Result<_, _>>()?,
            is_fenced: job.arg(7).parse()?,
        })
    }
}

pub(crate) struct Outcome {
    pub(crate) sold: u64,
    pub(crate) oversold: u64,
    pub(crate) lost: u64,
    /// How many items are left. Negative if too many were sold.
    left: i64,
    /// The number of sales for which the stock had changed between the read and the write.
    pub(crate) stale: u64,
    pub(crate) took: Duration,
    pub(crate) longest_wait: Duration,
    pub(crate) fewest: u64,
    pub(crate) most: u64,
    pub(crate) killed: usize,
    pub(crate) stopped: usize,
    pub(crate) refused: u64,
}

impl Outcome {
    /// Returns the faults that must not happen in a run with a lock.
    pub(crate) fn faults(&self) -> Vec<String> {
        let left_over = u64::try_from(self.left).unwrap_or(0);
        [
            (self.oversold, "oversold"),
            (self.lost, "lost"),
            (left_over, "left over"),
            (self.stale, "sold on a stale look"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", thousands(*count)))
        .collect()
    }
}

/// The error after a Ctrl-C.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Sells the whole stock, and always cleans up at the end.
pub(crate) fn run(
    shop: &Shop<'_>,
    scenario: &Scenario,
    screen: &mut Screen,
    stop: &AtomicBool,
) -> Result<Outcome, Trouble> {
    // This process does not sell.
    let mut stock = Stock::open(shop.url, Keys::new(shop.prefix), usize::MAX)?;
    stock.fill(shop.stock)?;
    let mut run = Run {
        processes: Vec::new(),
        stock: Deleted(stock),
        shop,
        scenario,
        receipts: HashMap::new(),
        killed: 0,
        stopped: 0,
        left: shop.stock as i64,
        since: Instant::now(),
        waits_for_lease: false,
    };
    run.processes = (0..shop.processes).map(|number| run.start(number)).collect();
    run.wait_for(State::Ready, screen, stop)?;
    let opened = Instant::now();
    for process in &mut run.processes {
        process.open();
    }
    run.wait_for(State::Closed, screen, stop)?;
    let outcome = run.count(opened.elapsed())?;
    screen.say(&format!(
        "   {} sold in {}; the stock ends at {}.",
        thousands(outcome.sold),
        duration(outcome.took),
        outcome.left
    ))?;
    Ok(outcome)
}

struct Run<'a> {
    // The processes. This field is dropped before the stock, because the processes must have ended
    // when the keys are deleted.
    processes: Vec<Process>,
    stock: Deleted,
    shop: &'a Shop<'a>,
    scenario: &'a Scenario,
    /// The receipts of the processes that ended without a kill, by number.
    receipts: HashMap<usize, Receipts>,
    killed: usize,
    stopped: usize,
    left: i64,
    /// The time at which `left` last changed.
    since: Instant,
    /// Whether the holder was killed and no process has sold since then.
    waits_for_lease: bool,
}

/// A place in the shop. A replacement takes over the place of a killed process.
struct Process {
    number: usize,
    worker: Worker,
    state: State,
    /// How many items were left when the process was paused.
    stopped_at: Option<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Starting,
    Ready,
    Selling,
    Closed,
}

impl Process {
    fn open(&mut self) {
        self.worker.send_line("open");
        self.state = State::Selling;
    }
}

impl Run<'_> {
    fn start(&self, number: usize) -> Process {
        let stock = self.shop.stock;
        let [kills, stops] = [self.scenario.kills, self.scenario.stops].map(|it| it as u64);
        // The kills are spread over the sale: with three kills, the first comes when a quarter is
        // sold. The last pause is at the last item, which two processes then sell.
        let killed = (1..=kills).map(|part| stock * part / (kills + 1));
        let stopped = (0..stops).map(|part| stock * part / stops);
        let duty = Duty {
            url: self.shop.url.to_owned(),
            prefix: self.shop.prefix.to_owned(),
            number,
            threads: self.shop.threads,
            guard: self.scenario.guard,
            lease: self.scenario.lease,
            deadly: killed.chain(stopped).map(|left| left.max(1) as i64).collect(),
            is_fenced: self.scenario.is_fenced,
        };
        Process { number, worker: duty.start(), state: State::Starting, stopped_at: None }
    }

    /// Waits until all processes have reached this state.
    fn wait_for(
        &mut self,
        state: State,
        screen: &mut Screen,
        stop: &AtomicBool,
    ) -> Result<(), Trouble> {
        let opened = Instant::now();
        self.since = opened;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            for place in 0..self.processes.len() {
                while let Some(line) = self.processes[place].worker.try_line(Duration::ZERO) {
                    self.hear(place, &line, screen)?;
                }
                let process = &mut self.processes[place];
                // If this process is a replacement, the other processes already sell.
                if state == State::Closed && process.state == State::Ready {
                    process.open();
                }
            }
            self.look_at_stock(screen)?;
            self.wake(screen)?;
            if self.processes.iter().all(|process| process.state >= state) {
                return Ok(());
            }
            screen.progress(|| self.progress(opened.elapsed()))?;
            thread::sleep(TICK);
        }
    }

    fn hear(&mut self, place: usize, line: &str, screen: &mut Screen) -> Result<(), Trouble> {
        let process = &mut self.processes[place];
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ready" => process.state = State::Ready,
            "closed" => {
                let words: Vec<u64> = rest.split(' ').map(str::parse).collect::<Result<_, _>>()?;
                let [sold, wait, refused] = words[..] else {
                    return Err("a process mumbles at its end".into());
                };
                let longest_wait = Duration::from_micros(wait);
                self.receipts.insert(process.number, Receipts { sold, refused, longest_wait });
                process.state = State::Closed;
            }
            // "in mid-sale": the process waits here until it is killed or resumed.
            "in" if self.scenario.stops > 0 => self.stop(place, screen)?,
            "in" => self.kill(place, screen)?,
            // "failed", and the reason of the failure.
            _ => return Err(format!("process {}: {rest}", process.number).into()),
        }
        Ok(())
    }

    /// Kills a process in the middle of a sale, and starts another process in its place.
    fn kill(&mut self, place: usize, screen: &mut Screen) -> Result<(), Trouble> {
        let process = &mut self.processes[place];
        process.worker.sigkill();
        let number = process.number;
        self.killed += 1;
        self.left = self.stock.0.left()?;
        self.since = Instant::now();
        self.waits_for_lease = true;
        self.processes[place] = self.start(number + self.shop.processes);
        screen.say(&format!(
            "   {} left: process {number} is killed in mid-sale, process {} takes its place",
            thousands(self.left.unsigned_abs()),
            self.processes[place].number
        ))?;
        Ok(())
    }

    /// Pauses a process that is in mid-sale, until other processes have sold.
    fn stop(&mut self, place: usize, screen: &mut Screen) -> Result<(), Trouble> {
        let left = self.stock.0.left()?;
        let process = &mut self.processes[place];
        process.worker.sigstop();
        process.stopped_at = Some(left);
        self.stopped += 1;
        screen.say(&format!(
            "   {} left: process {} is stopped in mid-sale",
            thousands(left.unsigned_abs()),
            process.number
        ))?;
        Ok(())
    }

    fn wake(&mut self, screen: &mut Screen) -> Result<(), Trouble> {
        for process in &mut self.processes {
            if process.stopped_at.take_if(|left| *left != self.left).is_some() {
                process.worker.send_line("go on");
                process.worker.sigcont();
                screen.say(&format!("   process {} wakes up, and sells", process.number))?;
            }
        }
        Ok(())
    }

    fn look_at_stock(&mut self, screen: &mut Screen) -> Result<(), Trouble> {
        let left = self.stock.0.keep()?;
        let pause = self.since.elapsed();
        if left != self.left {
            (self.left, self.since) = (left, Instant::now());
            if std::mem::take(&mut self.waits_for_lease) {
                screen.say(&format!(
                    "   {} later its lease has ended, and the others sell on",
                    duration(pause)
                ))?;
            }
        } else if pause > TIMEOUT + self.scenario.lease {
            let why = "did a process end, or the server stop?";
            return Err(format!("no sale for {}: {why}", duration(pause)).into());
        }
        Ok(())
    }

    fn progress(&self, elapsed: Duration) -> String {
        let sold = self.shop.stock.saturating_add_signed(-self.left);
        let width = 24;
        let done = (sold * width / self.shop.stock).min(width) as usize;
        let bar = "#".repeat(done);
        let rate = sold as f64 / elapsed.as_secs_f64();
        let now = if self.waits_for_lease { "waiting for the lease" } else { "" };
        format!(
            "   [{bar:.<width$}] {:>7} sold {:>6}/s  {now}",
            thousands(sold),
            thousands(rate as u64),
            width = width as usize,
        )
    }

    /// Counts the sales in the ledger, and compares the result with the stock and the processes'
    /// reports.
    fn count(&mut self, took: Duration) -> Result<Outcome, Trouble> {
        let stock = self.shop.stock;
        let left = self.stock.0.left()?;
        let ledger = self.stock.0.ledger()?;
        let sold = ledger.len() as u64;

        let mut by_process: HashMap<usize, u64> = HashMap::new();
        let mut by_place = vec![0; self.shop.processes];
        let mut stale = 0;
        for (before, sale) in ledger.iter().enumerate() {
            *by_process.entry(sale.process).or_default() += 1;
            by_place[sale.process % self.shop.processes] += 1;
            stale += u64::from(sale.seen != stock as i64 - before as i64);
        }
        let taken = stock.saturating_add_signed(-left);
        let missing = self.receipts.iter().map(|(number, receipts)| {
            receipts.sold.saturating_sub(by_process.get(number).copied().unwrap_or(0))
        });
        Ok(Outcome {
            sold,
            oversold: sold.saturating_sub(stock),
            lost: taken.saturating_sub(sold).max(missing.sum()),
            left,
            stale,
            took,
            longest_wait: self
                .receipts
                .values()
                .map(|receipts| receipts.longest_wait)
                .max()
                .unwrap_or_default(),
            fewest: by_place.iter().min().copied().unwrap_or(0),
            most: by_place.iter().max().copied().unwrap_or(0),
            killed: self.killed,
            stopped: self.stopped,
            refused: self.receipts.values().map(|receipts| receipts.refused).sum(),
        })
    }
}

/// A stock whose keys are deleted when this value is dropped.
struct Deleted(Stock);

impl Drop for Deleted {
    fn drop(&mut self) {
        self.0.delete();
    }
}
