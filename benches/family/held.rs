//! A semaphore over a network, with permits that are held for a while. The bench measures one
//! process with a queue of threads, and the shares of two such processes.

use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::{Job, Proxy, Server, Worker};

use crate::clock::{self, MILLISECOND};
use crate::lab::Lab;
use crate::report::{Goals, Spread, Table, count, range, time};

pub(crate) const ROLE: &str = "held permits";

const ROUND_TRIP: Duration = Duration::from_millis(10);
const THREADS: u64 = 64;
const TIMEOUT: Duration = Duration::from_secs(120);
/// The time after which the last process has received the start.
const START_DELAY: u64 = 50 * MILLISECOND;
/// The warm-up, in which the queues still grow. It is not counted.
const WARM_UP: u64 = 500 * MILLISECOND;

/// The number of processes, the number of permits, and how long each permit is held, in
/// milliseconds.
const SETTINGS: [(usize, u64, u64); 6] =
    [(1, 64, 5), (1, 64, 20), (1, 16, 20), (2, 64, 5), (2, 64, 20), (2, 16, 20)];

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    println!("Acquire, hold and drop, {THREADS} threads a process, {ROUND_TRIP:?} away:\n");
    let heads = ["permits", "held", "a second", "longest wait", "processes"];
    let mut table = Table::new(&[&["where", "processes"], heads.as_slice()].concat());
    let server = Server::start().unwrap();
    let network = Proxy::before(&server);
    network.set_delay(ROUND_TRIP / 2);
    for (processes, permits, held) in SETTINGS {
        let (mut rates, mut waits, mut shares) = (Vec::new(), Vec::new(), (f64::MAX, 0.0_f64));
        lab.rounds(|| {
            let name = format!("bench held {}", lab.next());
            Client::connect(&server.url())
                .unwrap()
                .semaphore(&name)
                .add_permits(permits as i64)
                .unwrap();
            let seen = measure(lab, &network.url(), &name, processes, held);
            let all: f64 = seen.iter().map(|(acquired, _)| acquired).sum();
            let mean = all / processes as f64;
            for (acquired, _) in &seen {
                shares = (shares.0.min(acquired / mean), shares.1.max(acquired / mean));
            }
            rates.push(all / lab.options.length.as_secs_f64());
            waits.push(seen.iter().map(|(_, wait)| *wait).fold(0.0, f64::max));
        });
        let (rate, wait) = (Spread::of(rates).median, Spread::of(waits));
        let rate = count(rate);
        let held = format!("{held} ms");
        table.row(&[
            &"10 ms away",
            &processes,
            &permits,
            &held,
            &rate,
            &time(wait.median),
            &range(shares),
        ]);
        let work =
            format!("semaphore of {permits} held {held}, {processes} x {THREADS}, 10 ms away");
        goals.add(work, format!("{rate} a second, longest wait {}", time(wait.high)), "none set");
    }
    println!("{table}");
}

/// Returns the number of permits of each process, and the longest wait of each process.
fn measure(lab: &Lab, url: &str, name: &str, processes: usize, held: u64) -> Vec<(f64, f64)> {
    let args = [name.to_owned(), held.to_string(), lab.options.length.as_nanos().to_string()];
    let args = [&[url.to_owned()], args.as_slice()].concat();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut workers: Vec<Worker> = (0..processes).map(|_| Worker::spawn(ROLE, &args)).collect();
    for worker in &mut workers {
        worker.expect_line("ready", TIMEOUT);
    }
    let start = (clock::now() + START_DELAY).to_string();
    workers.iter_mut().for_each(|worker| worker.send_line(&start));
    let seen = workers.iter_mut().map(|worker| {
        let line = worker.expect_line("acquired", TIMEOUT);
        let mut numbers = line.split(' ').map(|number| number.parse::<f64>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    });
    seen.collect()
}

/// Runs a process with its threads.
pub(crate) fn work(job: &Job) {
    let client = Client::connect(job.arg(0)).unwrap();
    let semaphore = client.semaphore(job.arg(1));
    let number = |at| job.arg(at).parse::<u64>().unwrap();
    let (held, length) = (number(2) * MILLISECOND, number(3));
    let go = Barrier::new(THREADS as usize + 1);
    let start: OnceLock<u64> = OnceLock::new();
    let tallies: Vec<(u64, u64)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    go.wait();
                    let from = *start.get().unwrap() + WARM_UP;
                    clock::sleep_until(from - WARM_UP);
                    let (mut acquired, mut longest) = (0, 0);
                    loop {
                        let asked = clock::now();
                        if asked >= from + length {
                            return (acquired, longest);
                        }
                        let permit = semaphore.acquire().unwrap();
                        let granted = clock::now();
                        if granted >= from {
                            acquired += u64::from(granted < from + length);
                            longest = longest.max(granted - asked);
                        }
                        clock::sleep_until(granted + held);
                        drop(permit);
                    }
                })
            })
            .collect();
        job.say("ready");
        start.set(job.wait_line().parse().unwrap()).unwrap();
        go.wait();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let acquired: u64 = tallies.iter().map(|(acquired, _)| acquired).sum();
    let longest = tallies.iter().map(|(_, longest)| *longest).max().unwrap_or(0);
    job.say(&format!("acquired {acquired} {longest}"));
    drop((semaphore, client));
    job.done()
}
