//! A read-write lock: the number of reads in a second, and the wait of a writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::{Job, PlainClient, Worker};

use crate::clock::{self, MICROSECOND, MILLISECOND};
use crate::cores::{Cores, Place};
use crate::lab::Lab;
use crate::report::{Goals, Spread, Table, count, digits, time};

pub(crate) const ROLE: &str = "readers and a writer";

const TIMEOUT: Duration = Duration::from_secs(60);
/// The time for which each reader and each writer holds the lock.
const INSIDE: u64 = 3 * MICROSECOND;
/// The time from a write to the request for the next write.
const BETWEEN_WRITES: u64 = MILLISECOND;

/// The name of redlatch's read-write lock among the compared locks.
const OURS: &str = "read-write lock";
const PLAIN: &str = "plain";
const ALONE: &str = "a lock that each takes alone";
const PLAIN_ALONE: &str = "plain, alone";

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    lab.put_server(Cores::Any);
    let inside = time(INSIDE as f64);
    println!("Readers, {inside} inside; and a writer that comes every ms:\n");
    let mut table =
        Table::new(&["who", "what", "reads/s", "writes/s", "writer's longest wait", "scripts/s"]);
    let who = "1 x 16 readers";
    let url = lab.url(false);
    let [ours, plain, alone, plain_alone] =
        compare(lab, [OURS, PLAIN, ALONE, PLAIN_ALONE].map(|what| (what, &url)), (1, 16, false));
    for seen in [&plain_alone, &plain, &alone, &ours] {
        seen.row(&mut table, who);
    }
    let ratios = [&plain_alone, &alone].map(|seen| digits(ours.ratio(seen, |round| round.reads)));
    let [ratio, ours_alone] = ratios;
    goals.add(
        format!("{who}: x Redisson's lock that each takes alone"),
        format!("{ratio} (x our own: {ours_alone})"),
        "≥ 20",
    );
    let scripts = digits(ours.median(|round| round.scripts));
    goals.add(format!("{who}: script calls a second"), scripts, "≈ 333: one a turn");
    let who = "4 x 4 readers, 1 writer";
    let [ours, plain] = compare(lab, [(OURS, &url), (PLAIN, &url)], (4, 4, true));
    for seen in [&plain, &ours] {
        seen.row(&mut table, who);
    }
    println!("{table}");
    let ratio = digits(ours.ratio(&plain, |round| round.reads));
    goals.add(format!("{who}: reads, x plain"), ratio, "≥ 5");
    let waits = [ours.median(|round| round.longest), ours.worst()].map(time);
    let [usual, worst] = waits;
    goals.add(
        format!("{who}: the writer's longest wait"),
        format!("{usual} (worst round {worst})"),
        "≤ 20 ms",
    );
}

/// Returns, for each of these servers, the reads in a second and the writer's longest wait.
pub(crate) fn compare_at(lab: &Lab, urls: [&String; 2]) -> [Vec<(f64, f64)>; 2] {
    let seen = compare(lab, urls.map(|url| (OURS, url)), (4, 4, true));
    seen.map(|it| it.rounds.iter().map(|round| (round.reads, round.longest)).collect())
}

#[derive(Clone, Copy, Default)]
struct Round {
    reads: f64,
    writes: f64,
    longest: f64,
    scripts: f64,
}

struct Seen {
    what: &'static str,
    rounds: Vec<Round>,
}

impl Seen {
    fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        Spread::of(self.rounds.iter().map(of)).median
    }

    fn ratio(&self, other: &Self, of: impl Fn(&Round) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(ours, theirs)| of(ours) / of(theirs).max(1.0))).median
    }

    fn worst(&self) -> f64 {
        self.rounds.iter().map(|round| round.longest).fold(0.0, f64::max)
    }

    fn row(&self, table: &mut Table, who: &str) {
        table.row(&[
            &who,
            &self.what,
            &count(self.median(|round| round.reads)),
            &count(self.median(|round| round.writes)),
            &time(self.median(|round| round.longest)),
            &count(self.median(|round| round.scripts)),
        ]);
    }
}

/// Runs `processes` processes of `threads` readers each, and one writer if `writes` is true.
fn compare<const N: usize>(
    lab: &Lab,
    peers: [(&'static str, &String); N],
    (processes, threads, writes): (usize, usize, bool),
) -> [Seen; N] {
    let mut seen = peers.map(|(what, _)| Seen { what, rounds: Vec::new() });
    lab.rounds(|| {
        for (seen, (_, url)) in seen.iter_mut().zip(peers) {
            let name = format!("bench {}", lab.next());
            let place = lab.machine.clients(Cores::Any).to_string();
            let length = lab.options.length.as_millis().to_string();
            let start = |threads: usize| {
                let args = [url.clone(), place.clone(), seen.what.to_owned(), name.clone()];
                let more = [threads.to_string(), length.clone()];
                let args: Vec<_> = args.iter().chain(&more).map(String::as_str).collect();
                let mut worker = Worker::spawn(ROLE, &args);
                worker.expect_line("ready", TIMEOUT);
                worker
            };
            let mut workers: Vec<_> = (0..processes).map(|_| start(threads)).collect();
            // A process without readers writes.
            workers.extend(writes.then(|| start(0)));
            workers.iter_mut().for_each(|worker| worker.send_line("go"));
            let mut round = Round::default();
            for worker in &mut workers {
                let said = worker.expect_line("done", TIMEOUT);
                let said: Vec<f64> = said.split(' ').filter_map(|it| it.parse().ok()).collect();
                round.reads += said[0];
                round.writes += said[1];
                round.longest = round.longest.max(said[2]);
                round.scripts += said[3];
            }
            seen.rounds.push(round);
        }
    });
    seen
}

/// Returns how many scripts the server has run.
fn scripts(url: &str) -> u64 {
    let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
    let text: String = redis::cmd("INFO").arg("commandstats").query(&mut redis).unwrap();
    let calls = |line: &str| {
        let rest = line.strip_prefix("cmdstat_eval").map(|rest| rest.trim_start_matches("sha"))?;
        rest.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(calls).sum()
}

type Turn = Box<dyn FnMut(&mut dyn FnMut())>;

/// Returns a function with which one thread takes and releases the lock.
fn turn(url: &str, what: &str, name: &str, reads: bool, shared: &Option<Client>) -> Turn {
    match (what, shared) {
        (PLAIN, _) => {
            let lock = PlainClient::connect(url).unwrap().read_write_lock(name);
            let mut handle = if reads { lock.read().unwrap() } else { lock.write().unwrap() };
            Box::new(move |inside| {
                handle.lock().unwrap();
                inside();
                handle.unlock().unwrap();
            })
        }
        (PLAIN_ALONE, _) => {
            let mut handle = PlainClient::connect(url).unwrap().lock(name).handle().unwrap();
            Box::new(move |inside| {
                handle.lock().unwrap();
                inside();
                handle.unlock().unwrap();
            })
        }
        (ALONE, Some(client)) => {
            let lock = client.reentrant_lock(name);
            Box::new(move |inside| {
                let guard = lock.lock().unwrap();
                inside();
                guard.unlock().unwrap();
            })
        }
        (_, Some(client)) => {
            let lock = client.read_write_lock(name);
            Box::new(move |inside| {
                let guard =
                    if reads { lock.reader().lock() } else { lock.writer().lock() }.unwrap();
                inside();
                guard.unlock().unwrap();
            })
        }
        _ => unreachable!("no client for {what}"),
    }
}

fn work_inside() {
    let end = clock::now() + INSIDE;
    while clock::now() < end {
        std::hint::spin_loop();
    }
}

/// Runs a process that reads. A process without threads writes.
pub(crate) fn work(job: &Job) {
    job.arg(1).parse::<Place>().unwrap().take();
    let (url, what, name) = (job.arg(0), job.arg(2), job.arg(3));
    let threads: usize = job.arg(4).parse().unwrap();
    let length = job.arg(5).parse::<u64>().unwrap() * MILLISECOND;
    let shared = (what != PLAIN && what != PLAIN_ALONE).then(|| Client::connect(url).unwrap());
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    job.say("ready");
    let _ = job.wait_line();
    // One process reads the number of scripts for all processes.
    let scripts_of = |url| if threads == 16 { scripts(url) } else { 0 };
    let before = scripts_of(url);
    let begun = clock::now();
    let mut longest = 0;
    if threads == 0 {
        let mut turn = turn(url, what, name, false, &shared);
        while clock::now() < begun + length {
            let asked = clock::now();
            turn(&mut || {
                longest = longest.max(clock::now() - asked);
                work_inside();
            });
            done.fetch_add(1, Ordering::Relaxed);
            clock::sleep_until(clock::now() + BETWEEN_WRITES);
        }
    } else {
        thread::scope(|scope| {
            for _ in 0..threads {
                let (shared, stop, done) = (&shared, &stop, &done);
                scope.spawn(move || {
                    let mut turn = turn(url, what, name, true, shared);
                    while !stop.load(Ordering::Relaxed) {
                        turn(&mut work_inside);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            clock::sleep_until(begun + length);
            stop.store(true, Ordering::Relaxed);
        });
    }
    let seconds = (clock::now() - begun) as f64 / 1e9;
    let rate = done.load(Ordering::Relaxed) as f64 / seconds;
    let (reads, writes) = if threads == 0 { (0.0, rate) } else { (rate, 0.0) };
    let scripts = (scripts_of(url) - before) as f64 / seconds;
    job.say(&format!("done {reads} {writes} {longest} {scripts}"));
    job.done()
}
