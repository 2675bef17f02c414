//! Very many holds, all of which the watchdog renews.

use std::fs;
use std::thread;
use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::{Job, Worker};

use crate::calls::{self, Calls};
use crate::clock::{self, SECOND};
use crate::cores::Cores;
use crate::lab::Lab;
use crate::raw;
use crate::report::{Goals, Table, count, digits, time};

pub(crate) const ROLE: &str = "holds";

/// The time between two checks of all guards.
const LOOK: Duration = Duration::from_millis(100);

/// Takes all locks, and watches them for one lease, in which each lock is renewed three times.
pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    let (holds, lease) = (lab.options.holds, lab.options.lease);
    lab.put_server(Cores::Any);
    let args = [lab.url(false), holds.to_string(), lease.as_millis().to_string()];
    let mut worker = Worker::spawn(ROLE, &args.each_ref().map(String::as_str));
    let line = worker.expect_line("kept", Duration::from_secs(300) + lease * 2);
    let seen = Seen::of(&line);
    let [holds, lease] = [holds as f64, lease.as_nanos() as f64];
    println!(
        "{} watched holds with a lease of {}, seen for one lease:\n",
        count(holds),
        time(lease)
    );
    let mut table = Table::new(&["what", "unit", "figure"]);
    let mut goal = |what: &str, unit: &str, figure: String, goal: &str| {
        table.row(&[&what, &unit, &figure]);
        if !goal.is_empty() {
            let work = format!("{} holds: {what}", count(holds));
            goals.add(work, format!("{figure} {unit}"), goal);
        }
    };
    let [one, all] = seen.threads.map(|it| it.to_string());
    goal("threads with one hold", "", one.clone(), "");
    goal("threads with all", "", all, &format!("≤ {one}"));
    goal("memory of one hold", "bytes", count(seen.memory as f64 / holds), "≤ 1024");
    let names = seen.renewed as f64 / seen.calls.max(1) as f64;
    goal("renewed by one script call", "names", digits(names), "≥ 100");
    let least = seen.least as f64 / lease;
    goal("least time left", "of the lease", digits(least), "≥ 0.5");
    goal("holds lost", "", seen.lost.to_string(), "0");
    let core = |cpu: u64| format!("{:.1} %", 100.0 * cpu as f64 / lease);
    goal("processor, this process", "of a core", core(seen.cpu), "none set");
    goal("processor, the server", "of a core", core(seen.server_cpu), "");
    let speed = holds / (seen.taking as f64 / SECOND as f64);
    goal("taken, one after the other", "a second", count(speed), "");
    let speed = holds / (seen.dropping as f64 / SECOND as f64);
    goal("dropped, one after the other", "a second", count(speed), "");
    println!("{table}");
}

/// The result. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The number of threads while there is one hold, and while there are all holds.
    threads: [u64; 2],
    /// The memory of all holds with their guards, in bytes.
    memory: u64,
    taking: u64,
    dropping: u64,
    renewed: u64,
    calls: u64,
    least: u64,
    lost: u64,
    cpu: u64,
    server_cpu: u64,
}

impl Seen {
    fn say(&self) -> String {
        let Self { threads: [one, all], memory, taking, dropping, .. } = self;
        let Self { renewed, calls, least, lost, cpu, server_cpu, .. } = self;
        format!(
            "{one} {all} {memory} {taking} {dropping} {renewed} {calls} {least} {lost} {cpu} \
             {server_cpu}"
        )
    }

    fn of(line: &str) -> Self {
        let mut numbers = line.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Self {
            threads: [next(), next()],
            memory: next(),
            taking: next(),
            dropping: next(),
            renewed: next(),
            calls: next(),
            least: next(),
            lost: next(),
            cpu: next(),
            server_cpu: next(),
        }
    }
}

/// Runs the process that holds the locks.
pub(crate) fn work(job: &Job) {
    let url = job.arg(0);
    let count: usize = job.arg(1).parse().unwrap();
    let lease = Duration::from_millis(job.arg(2).parse().unwrap());
    let mut server = raw::connect(url);
    let client = Client::builder(url).watchdog_timeout(lease).connect().unwrap();
    let first = client.reentrant_lock("bench hold").lock().unwrap();
    let mut guards = Vec::with_capacity(count);
    let (one, memory) = (threads(), resident());

    let start = clock::now();
    for number in 0..count {
        guards.push(client.reentrant_lock(&format!("bench hold {number}")).lock().unwrap());
    }
    let taking = clock::now() - start;
    let memory = resident().saturating_sub(memory);

    // The time of the checks is subtracted.
    let cpu = || clock::process_cpu() - clock::thread_cpu();
    let mut stand = || {
        let Calls { hexists, scripts, .. } = Calls::of(&mut server);
        [hexists, scripts, cpu(), calls::processor(&mut server)]
    };
    let before = stand();
    let end = clock::now() + lease.as_nanos() as u64;
    let (mut least, mut all) = (lease, one);
    while clock::now() < end {
        let left = guards.iter().map(|guard| guard.remaining()).min();
        least = least.min(left.unwrap_or_default());
        all = all.max(threads());
        thread::sleep(LOOK);
    }
    let after = stand();
    let [renewed, calls, cpu, server_cpu] = [0, 1, 2, 3].map(|at| after[at] - before[at]);
    let lost = guards.iter().filter(|guard| !guard.is_held()).count() as u64;

    let start = clock::now();
    drop(guards);
    let dropping = clock::now() - start;
    drop((first, client));
    let threads = [one, all];
    let least = least.as_nanos() as u64;
    let seen =
        Seen { threads, memory, taking, dropping, renewed, calls, least, lost, cpu, server_cpu };
    job.say(&format!("kept {}", seen.say()));
    job.done()
}

/// Returns the number of threads of this process, or 0 if the system does not report it.
fn threads() -> u64 {
    fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count() as u64)
}

/// Returns the memory of this process in bytes, or 0 if the system does not report it.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1_024
}
