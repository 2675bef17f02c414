//! The metrics of some processes that contend for locks, while processes are killed, paused and cut
//! off from the server. A run takes a minute and a half, and writes a picture.
//!
//! Each second the program reads from every process the metrics that a Prometheus server would
//! collect. The figures are those of Prometheus's functions `rate`, `sum` and `histogram_quantile`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusBuilder;
use redlatch::Client;
use redlatch::observe::MetricsObserver;
use redlatch_testkit::{Job, Proxy, Server, Worker};

use crate::picture::{self, Axis, Picture, WIDTH};

const SECONDS: usize = 90;
/// The faults, each with the earliest second of the run for it. A fault hits the process that has
/// just got the lock `report`.
const FAULTS: [(usize, &str); 3] = [(14, "kill -9"), (38, "SIGSTOP"), (62, "cut off")];
/// The number of seconds after which a paused process continues, or another process replaces a
/// killed process.
const MENDED_AFTER: usize = 7;

const PROCESSES: usize = 4;
const THREADS: u64 = 4;
/// The lease of the locks.
const LEASE: Duration = Duration::from_secs(3);
/// The number of seconds over which rates are computed.
const WINDOW: usize = 5;

/// Runs one of the processes. The threads of the process take a lock for some milliseconds, again
/// and again. Another thread takes a second lock for seconds, so that the lease of this lock must
/// be renewed.
pub(crate) fn work(job: &Job) -> ! {
    // The buckets go from 0.1 ms to 1 min. Each bound is 1.5 times the previous bound.
    let buckets: Vec<f64> = (0..34).map(|at| 1e-4 * 1.5f64.powi(at)).collect();
    let recorder = PrometheusBuilder::new().set_buckets(&buckets).unwrap().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    let client = Client::builder(job.arg(0))
        .watchdog_timeout(LEASE)
        .observer(MetricsObserver::new().named_by(str::to_owned))
        .connect()
        .unwrap();
    let keep = |name: &'static str, inside: Range<u64>, rest: Range<u64>, seed: u64| {
        let lock = client.reentrant_lock(name);
        let mut random = fastrand::Rng::with_seed(seed);
        thread::spawn(move || {
            loop {
                if let Ok(guard) = lock.lock() {
                    thread::sleep(Duration::from_millis(random.u64(inside.clone())));
                    // The dashboard shows whether the lock was lost.
                    let _ = guard.unlock();
                }
                thread::sleep(Duration::from_millis(random.u64(rest.clone())));
            }
        });
    };
    let number: u64 = job.arg(1).parse().unwrap();
    (0..THREADS).for_each(|thread| keep("orders", 2..8, 15..60, number * THREADS + thread));
    keep("report", 5_500..7_000, 200..400, 1_000 + number);
    loop {
        let _ask = job.wait_line();
        job.say(&handle.render().replace('\n', "\t"));
        handle.run_upkeep();
    }
}

/// The metrics of a process: the value of each series, by its name and labels.
type Scrape = BTreeMap<String, f64>;

#[derive(Default)]
struct Run {
    /// The metrics by second and by process. The replacement of a killed process is another
    /// process.
    scrapes: Vec<Vec<Option<Scrape>>>,
    /// For each fault: the second at which it comes, and its word in the picture.
    faults: Vec<(usize, &'static str)>,
}

struct Process {
    worker: Worker,
    network: Proxy,
    /// Whether the process has not answered the last request yet.
    is_asked: bool,
}

impl Process {
    fn start(server: &Server, number: usize) -> Self {
        let network = Proxy::before(server);
        let worker = Worker::spawn("dashboard", &[&network.url(), &number.to_string()]);
        Self { worker, network, is_asked: false }
    }

    /// Returns `None` if the process does not answer, as Prometheus gets no values after a timeout.
    fn scrape(&mut self) -> Option<Scrape> {
        if !std::mem::replace(&mut self.is_asked, true) {
            self.worker.send_line("");
        }
        let answer = self.worker.try_line(Duration::from_millis(200))?;
        self.is_asked = false;
        let lines = answer.split('\t').filter(|line| !line.starts_with('#'));
        let series = lines.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Some(series.collect())
    }
}

pub(crate) fn draw() -> Result<String, String> {
    let server = Server::start().map_err(|error| error.to_string())?;
    let start = |number| Some(Process::start(&server, number));
    let mut processes: Vec<Option<Process>> = (0..PROCESSES).map(start).collect();
    let (began, mut run, mut victim) = (Instant::now(), Run::default(), 0);
    for second in 0..=SECONDS {
        thread::sleep(Duration::from_secs(second as u64).saturating_sub(began.elapsed()));
        let due = FAULTS.get(run.faults.len()).filter(|(from, _)| second >= *from);
        if let Some((fault, next)) = due.zip(run.new_holder()) {
            victim = next;
            run.faults.push((second, fault.1));
            match (&mut processes[victim], run.faults.len()) {
                // The drop of the process kills it.
                (process, 1) => *process = None,
                (Some(process), 2) => process.worker.sigstop(),
                (process, _) => process.iter().for_each(|it| it.network.freeze()),
            }
        }
        if run.faults.last().is_some_and(|fault| second == fault.0 + MENDED_AFTER) {
            match (&processes[victim], run.faults.len()) {
                (_, 1) => processes.push(start(PROCESSES)),
                (Some(process), 2) => process.worker.sigcont(),
                (process, _) => process.iter().for_each(|it| it.network.thaw()),
            }
        }
        let scrape = |it: &mut Option<Process>| it.as_mut().and_then(Process::scrape);
        run.scrapes.push(processes.iter_mut().map(scrape).collect());
    }
    Ok(run.picture())
}

impl Run {
    /// Returns the process that has the lock `report` now and did not have it at the last scrape.
    fn new_holder(&self) -> Option<usize> {
        let [.., before, now] = &self.scrapes[..] else { return None };
        let holds = |scrape: &Option<Scrape>| {
            let held = |series: &str| is_of(series, "redlatch_lock_held", &[REPORT]);
            scrape.iter().flatten().any(|(series, value)| held(series) && *value > 0.0)
        };
        (0..before.len())
            .find(|at| holds(&now[*at]) && before[*at].is_some() && !holds(&before[*at]))
    }

    /// Returns the sum of a gauge over all processes. The sum is NaN if no process has the gauge.
    fn sum(&self, second: usize, metric: &str) -> f64 {
        let series = self.scrapes[second].iter().flatten().flatten();
        let values = series.filter(|(series, _)| is_of(series, metric, &[])).map(|it| *it.1);
        values.reduce(|sum, value| sum + value).unwrap_or(f64::NAN)
    }

    /// Returns how much the counters have grown in the last `window` seconds, by the value of a
    /// label.
    fn growth(&self, second: usize, window: usize, of: Counters<'_>) -> Scrape {
        let mut grown = Scrape::new();
        for process in 0..self.scrapes[second].len() {
            let seconds = (second.saturating_sub(window)..=second).rev();
            let mut seen = seconds.filter_map(|at| self.scrapes[at].get(process)?.as_ref());
            let Some(last) = seen.next() else { continue };
            let Some(first) = seen.next_back() else { continue };
            for (series, value) in last.iter().filter(|it| is_of(it.0, of.metric, of.which)) {
                let before = first.get(series).copied().unwrap_or(0.0);
                *grown.entry(labelled(series, of.by).to_owned()).or_default() += value - before;
            }
        }
        grown
    }

    /// Returns the quantile as `histogram_quantile` does, which assumes that values are spread
    /// evenly inside a bucket.
    fn quantile(&self, second: usize, of: Counters<'_>, quantile: f64) -> f64 {
        let buckets = self.growth(second, WINDOW, of).into_iter();
        let mut buckets: Vec<(f64, f64)> =
            buckets.map(|(le, count)| (le.parse().unwrap_or(f64::INFINITY), count)).collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let wanted = quantile * buckets.last().map_or(0.0, |bucket| bucket.1);
        if wanted == 0.0 {
            return f64::NAN;
        }
        let mut below = (0.0, 0.0);
        for (le, count) in buckets {
            if count >= wanted {
                let part = (wanted - below.1) / (count - below.1);
                return if le.is_finite() { below.0 + part * (le - below.0) } else { below.0 };
            }
            below = (le, count);
        }
        f64::NAN
    }

    fn line(&self, value: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
        (0..self.scrapes.len()).map(|second| (second as f64, value(second))).collect()
    }

    fn picture(&self) -> String {
        let quantiles = |metric, which, parts: [(&'static str, f64); 2]| {
            let of = Counters { metric, which, by: "le" };
            parts.map(|(label, part)| (label, self.line(|at| self.quantile(at, of, part)))).to_vec()
        };
        let gauge = |label, metric| (label, self.line(|at| self.sum(at, metric)));
        // Returns a rate, or the count so far.
        let count = |label, of: Counters<'_>, window: Option<usize>, value| {
            let count = |at| {
                let grown = self.growth(at, window.unwrap_or(at), of).get(value).copied();
                grown.unwrap_or(0.0) / window.unwrap_or(1) as f64
            };
            (label, self.line(count))
        };
        let of = |metric, which, by| Counters { metric, which, by };
        let acquired: &[_] = &[ORDERS, "outcome=\"Acquired\""];
        let grants = of("redlatch_lock_wait_time_count", acquired, "way");
        let losses = of("redlatch_lock_losses", &[], "kind");
        let failed = of("redlatch_lock_renewal_time_left_count", &["outcome=\"Failed\""], "kind");
        let usual = [("median", 0.5), ("99 %", 0.99)];
        let panels = [
            Panel {
                title: "Waits for “orders”",
                metrics: "redlatch_lock_wait_time",
                unit: Unit::LogSeconds,
                lines: quantiles("redlatch_lock_wait_time_bucket", acquired, usual),
            },
            Panel {
                title: "Holds of “orders”",
                metrics: "redlatch_lock_hold_time",
                unit: Unit::LogSeconds,
                lines: quantiles("redlatch_lock_hold_time_bucket", &[ORDERS], usual),
            },
            Panel {
                title: "Threads that wait or hold, of both locks",
                metrics: "redlatch_lock_waiting, redlatch_lock_held",
                unit: Unit::Number,
                lines: vec![
                    gauge("waiting", "redlatch_lock_waiting"),
                    gauge("held", "redlatch_lock_held"),
                ],
            },
            Panel {
                title: "Grants of “orders” a second, by way",
                metrics: "redlatch_lock_wait_time_count",
                unit: Unit::Number,
                lines: ["HandedOn", "Passed", "Free"]
                    .map(|way| count(way, grants, Some(WINDOW), way))
                    .to_vec(),
            },
            Panel {
                title: "Left of the lease at a renewal of “report”",
                metrics: "redlatch_lock_renewal_time_left",
                unit: Unit::Seconds,
                lines: quantiles(
                    "redlatch_lock_renewal_time_left_bucket",
                    &[REPORT, "outcome=\"Renewed\""],
                    [("median", 0.5), ("1 %", 0.01)],
                ),
            },
            Panel {
                title: "Locks lost and renewals failed, so far",
                metrics: "redlatch_lock_losses, redlatch_lock_renewal_time_left",
                unit: Unit::Number,
                lines: vec![
                    count("lost", losses, None, "ReentrantLock"),
                    count("failed", failed, None, "ReentrantLock"),
                ],
            },
        ];
        let panels =
            panels.into_iter().enumerate().map(|(at, panel)| panel.drawn(at, &self.faults));
        picture::document((WIDTH, 3.0 * HEIGHT), &panels.collect::<String>())
    }
}

const ORDERS: &str = "name=\"orders\"";
const REPORT: &str = "name=\"report\"";

/// The series of a metric that have all these labels, grouped by another label.
#[derive(Clone, Copy)]
struct Counters<'a> {
    metric: &'a str,
    which: &'a [&'a str],
    by: &'a str,
}

/// The height of a panel.
const HEIGHT: f64 = 215.0;

struct Panel {
    title: &'static str,
    metrics: &'static str,
    unit: Unit,
    lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

enum Unit {
    LogSeconds,
    Seconds,
    Number,
}

impl Panel {
    fn y(&self) -> Axis {
        let title = self.metrics;
        if let Unit::LogSeconds = self.unit {
            let names = ["1 ms", "10 ms", "0.1 s", "1 s", "10 s", "100 s"];
            let seconds = names.map(|name| name.to_owned()).into_iter().enumerate();
            let ticks = seconds.map(|(at, name)| (1e-3 * 10f64.powi(at as i32), name)).collect();
            return Axis { low: 1e-3, high: 100.0, log: true, title, ticks };
        }
        let values = self.lines.iter().flat_map(|line| &line.1).map(|point| point.1);
        // The scale leaves room for the words above the lines.
        let most = values.filter(|value| !value.is_nan()).fold(0.0, f64::max) / 0.8;
        let steps = [1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0, 20.0, 30.0, 40.0, 50.0, 80.0, 100.0];
        let step = steps.into_iter().find(|step| step * 4.0 >= most).unwrap_or(most / 4.0);
        let unit = if let Unit::Seconds = self.unit { " s" } else { "" };
        let ticks = (0..=4).map(|at| step * f64::from(at));
        let ticks = ticks.map(|value| (value, format!("{value}{unit}"))).collect();
        Axis { low: 0.0, high: step * 4.0, log: false, title, ticks }
    }

    fn drawn(self, at: usize, faults: &[(usize, &str)]) -> String {
        let seconds = (0..=6).map(|at| (f64::from(at * 15), format!("{} s", at * 15)));
        let (high, ticks) = (SECONDS as f64, seconds.collect());
        let x = Axis { low: 0.0, high, log: false, title: "", ticks };
        let size = (WIDTH / 2.0, HEIGHT);
        let mut picture = Picture::new(self.title, size, (58.0, 90.0), x, self.y());
        for (at, word) in faults {
            picture.mark(*at as f64, word);
        }
        for (whose, (label, points)) in self.lines.iter().enumerate().rev() {
            picture.line(points, label, whose);
        }
        let (x, y) = ((at % 2) as f64 * size.0, (at / 2) as f64 * size.1);
        format!("<g transform=\"translate({x} {y})\">\n{}</g>\n", picture.body())
    }
}

/// Returns whether a series is of this metric and has all these labels.
fn is_of(series: &str, metric: &str, all: &[&str]) -> bool {
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    name == metric && all.iter().all(|label| labels.contains(label))
}

/// Returns the value of a label, or an empty text.
fn labelled<'a>(series: &'a str, label: &str) -> &'a str {
    let after = series.split_once(&format!("{label}=\"")).map(|(_, after)| after);
    after.and_then(|after| after.split('"').next()).unwrap_or_default()
}
