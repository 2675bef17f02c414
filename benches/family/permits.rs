//! A semaphore with enough permits for all threads: the cost of many threads in one process, and
//! the speed after an outage of the server.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, Semaphore, Taken};
use redlatch_testkit::{Job, Proxy, Server, Worker};

use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::report::{Goals, Spread, Table, count, digits};

pub(crate) const ROLE: &str = "permits for all";

const THREADS: [usize; 3] = [16, 64, 256];
const TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two reads of the number of acquired permits, before and after the outage.
const SLICE: Duration = Duration::from_millis(50);
/// The number of slices in the check for the old rate. The old rate has returned when a slice
/// reaches it, and the median of this slice and the next slices reaches it, too. On a busy machine
/// a single slice may be of any length.
const WINDOW: usize = 5;
/// The part of the median rate before the outage that the bench treats as the old rate.
const OLD_RATE: f64 = 0.9;

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    lab.put_server(Cores::Any);
    let place = lab.machine.clients(Cores::Any).to_string();
    println!("Acquire and drop, permits for all, one process; a second:\n");
    let mut table = Table::new(&["where", "threads", "one name", "a name each", "of that"]);
    for threads in THREADS {
        let mut seen: [Vec<f64>; 2] = Default::default();
        lab.rounds(|| {
            for (at, names) in [1, threads].into_iter().enumerate() {
                let length = lab.options.length.as_millis();
                let [threads, names, length, number] =
                    [threads, names, length as usize, lab.next()].map(|it| it.to_string());
                let args = [&lab.url(false), &place, &threads, &names, &length, &number];
                let mut worker = Worker::spawn(ROLE, &args.map(String::as_str));
                seen[at].push(worker.expect_line("rate", TIMEOUT).parse().unwrap());
            }
        });
        let ratio = Spread::of(seen[0].iter().zip(&seen[1]).map(|(one, each)| one / each));
        let [one, each] = seen.map(|seen| Spread::of(seen).median);
        let of_that = digits(ratio.median);
        table.row(&[&Cores::Any, &threads, &count(one), &count(each), &of_that]);
        let work = format!("semaphore, permits for all, {threads} threads: of a name each");
        goals.add(work, format!("{} ({of_that})", count(one)), "≥ 0.67");
    }
    println!("{table}");
    outage(lab, goals);
}

/// The network breaks while requests are under way, and works again later.
fn outage(lab: &Lab, goals: &mut Goals) {
    // The outage is long enough for retries with growing pauses.
    let away = lab.options.length * 15;
    let server = Server::start().unwrap();
    let network = Proxy::before(&server);
    let client = Client::connect(&network.url()).unwrap();
    let semaphore = client.semaphore("bench outage");
    semaphore.add_permits(1_000).unwrap();
    let (stop, acquired) = (AtomicBool::new(false), AtomicU64::new(0));
    // Returns the number of acquisitions in a second.
    let rate = || {
        let (before, begun) = (acquired.load(Ordering::SeqCst), Instant::now());
        thread::sleep(SLICE);
        (acquired.load(Ordering::SeqCst) - before) as f64 / begun.elapsed().as_secs_f64()
    };
    let (usual, after) = thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    if let Ok(Taken(_permit)) = semaphore.try_acquire() {
                        acquired.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let _warm: Vec<f64> = (0..20).map(|_| rate()).collect();
        let usual = Spread::of((0..40).map(|_| rate())).median;
        network.refuse();
        network.cut_all();
        thread::sleep(away);
        network.accept();
        let again = Instant::now();
        // For each slice, the time at which it ended and its rate.
        let mut seen: Vec<(Duration, f64)> = Vec::new();
        let after = loop {
            let rate = rate();
            seen.push((again.elapsed(), rate));
            let is_old = |rate| rate >= usual * OLD_RATE;
            let steady = |slices: &&[(Duration, f64)]| {
                is_old(slices[0].1) && is_old(Spread::of(slices.iter().map(|it| it.1)).median)
            };
            if let Some(slices) = seen.windows(WINDOW).find(steady) {
                break slices[0].0;
            }
            if again.elapsed() > TIMEOUT {
                break again.elapsed();
            }
        };
        stop.store(true, Ordering::SeqCst);
        (usual, after)
    });
    let begun = Instant::now();
    while semaphore.available_permits().unwrap_or(0) != 1_000 && begun.elapsed() < TIMEOUT {
        thread::sleep(Duration::from_millis(10));
    }
    let missing = 1_000 - semaphore.available_permits().unwrap_or(0);
    let work = format!("semaphore, after an outage of {away:?}");
    let rate = count(usual);
    goals.add(
        format!("{work}: the old rate ({rate} a second) after"),
        format!("{after:.2?}"),
        "≤ 0.5 s",
    );
    goals.add(format!("{work}: permits missing"), missing, "0");
}

/// Runs the process with the threads.
pub(crate) fn work(job: &Job) {
    let number = |at| job.arg(at).parse::<usize>().unwrap();
    job.arg(1).parse::<Place>().unwrap().take();
    let (threads, names, length) = (number(2), number(3), number(4));
    let client = Client::connect(job.arg(0)).unwrap();
    let semaphores: Vec<Semaphore> = (0..names)
        .map(|at| {
            let semaphore = client.semaphore(&format!("bench {} {at}", number(5)));
            semaphore.add_permits(threads as i64 * 4).unwrap();
            semaphore
        })
        .collect();
    let (stop, acquired) = (AtomicBool::new(false), AtomicU64::new(0));
    let rate = thread::scope(|scope| {
        for at in 0..threads {
            let semaphore = &semaphores[at % names];
            let (stop, acquired) = (&stop, &acquired);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    // Do not wait: such a thread never gets a permit that another thread passes.
                    drop(semaphore.try_acquire().unwrap().into_option().unwrap());
                    acquired.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(Duration::from_millis(length as u64 / 4));
        let (before, begun) = (acquired.load(Ordering::Relaxed), Instant::now());
        thread::sleep(Duration::from_millis(length as u64));
        let rate =
            (acquired.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::SeqCst);
        rate
    });
    job.say(&format!("rate {rate}"));
    job.done()
}
