//! Three locks taken together: their cost compared with one lock, and the number of turns when all
//! threads want the same three locks.

use std::thread;
use std::time::Duration;

use redlatch::{Client, MultiLock};
use redlatch_testkit::{Job, PlainClient, Worker};

use crate::clock::{self, MICROSECOND, MILLISECOND};
use crate::cores::Cores;
use crate::lab::Lab;
use crate::report::{Goals, Spread, Table, count, digits, time};

pub(crate) const ROLE: &str = "several";

const NAMES: usize = 3;
const PROCESSES: usize = 4;
const THREADS: usize = 4;
/// The time for which all three locks are held.
const STAY: u64 = 50 * MICROSECOND;
/// The time after which the last process has received the start.
const START_DELAY: u64 = 50 * MILLISECOND;
/// The number of turns in which scripts are loaded and connections are opened.
const WARM_UP: usize = 50;
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) fn section(lab: &Lab, goals: &mut Goals) {
    lab.put_server(Cores::Any);
    uncontended(lab, goals);
    threads(lab, goals);
    contended(lab, goals);
}

fn uncontended(lab: &Lab, goals: &mut Goals) {
    println!("{NAMES} locks of one server, nobody else wants them: lock, and lock and unlock:\n");
    let heads = ["lock", "x one", "lock and unlock", "x one"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    for (place, delayed) in [("any cores", false), ("1 ms away", true)] {
        let client = Client::connect(&lab.url(delayed)).unwrap();
        let (mut one, mut all) = (Vec::new(), Vec::new());
        lab.rounds(|| {
            let number = lab.next();
            let locks: [_; NAMES] = std::array::from_fn(|at| {
                client.reentrant_lock(&format!("bench several {number} {at}"))
            });
            let together = MultiLock::new(&[&locks[0], &locks[1], &locks[2]]).unwrap();
            // Turns with one lock and turns with three locks alternate, so that busy moments of the
            // machine affect both.
            let end = clock::now() + lab.options.length.as_nanos() as u64;
            let mut times: [Vec<f64>; 4] = Default::default();
            for turn in 0.. {
                let begun = clock::now();
                let guard = locks[turn % NAMES].lock().unwrap();
                let locked = clock::now();
                guard.unlock().unwrap();
                let unlocked = clock::now();
                let guard = together.lock().unwrap();
                let all_locked = clock::now();
                guard.unlock().unwrap();
                let all_unlocked = clock::now();
                if turn >= WARM_UP {
                    times[0].push((locked - begun) as f64);
                    times[1].push((unlocked - begun) as f64);
                    times[2].push((all_locked - unlocked) as f64);
                    times[3].push((all_unlocked - unlocked) as f64);
                }
                if all_unlocked >= end && turn > 2 * WARM_UP {
                    break;
                }
            }
            let [lock, both, all_lock, all_both] = times.map(|it| Spread::of(it).median);
            one.push((lock, both));
            all.push((all_lock, all_both));
        });
        let median = |of: &[(f64, f64)]| {
            let (lock, both): (Vec<_>, Vec<_>) = of.iter().copied().unzip();
            (Spread::of(lock).median, Spread::of(both).median)
        };
        let ratio = |pick: fn(&(f64, f64)) -> f64| {
            Spread::of(all.iter().zip(&one).map(|(all, one)| pick(all) / pick(one)))
        };
        let (lock, both) = median(&one);
        table.row(&[&place, &"one", &time(lock), &"", &time(both), &""]);
        let (lock, both) = median(&all);
        let ratios = (ratio(|it| it.0), ratio(|it| it.1));
        table.row(&[&place, &"three", &time(lock), &ratios.0, &time(both), &ratios.1]);
        let goal = if delayed { "≤ 3.2" } else { "none set" };
        let work = format!("{NAMES} locks together, {place}: lock, x one lock");
        goals.add(work, ratios.0, goal);
    }
    println!("{table}");
}

fn threads(lab: &Lab, goals: &mut Goals) {
    println!("Threads of one process that each want names of their own, pairs a second:\n");
    let mut table = Table::new(&["threads", "one each", "three each", "x one"]);
    for count_of in [1, 4, 16, 64] {
        let client = Client::connect(&lab.url(false)).unwrap();
        let mut rates = [(); 2].map(|()| Vec::new());
        lab.rounds(|| {
            let number = lab.next();
            for (several, rates) in [false, true].into_iter().zip(&mut rates) {
                let name = format!("bench several {number} {several}");
                rates.push(own_names(&client, &name, count_of, several, lab.options.length));
            }
        });
        let ratio = Spread::of(rates[1].iter().zip(&rates[0]).map(|(all, one)| all / one));
        let [one, all] = rates.map(|rates| Spread::of(rates).median);
        table.row(&[&count_of, &count(one), &count(all), &ratio]);
        goals.add(format!("{NAMES} locks together, 1 x {count_of}: x one lock"), ratio, "none set");
    }
    println!("{table}");
}

/// Returns how many times in a second all threads together lock and unlock one lock, or three
/// locks.
fn own_names(client: &Client, name: &str, threads: usize, several: bool, length: Duration) -> f64 {
    let end = clock::now() + length.as_nanos() as u64;
    let turns = |thread: usize| {
        let locks: [_; NAMES] =
            std::array::from_fn(|at| client.reentrant_lock(&format!("{name} {thread} {at}")));
        let together = MultiLock::new(&[&locks[0], &locks[1], &locks[2]]).unwrap();
        let mut turns = 0_u64;
        while clock::now() < end {
            if several {
                together.lock().unwrap().unlock().unwrap();
            } else {
                locks[0].lock().unwrap().unlock().unwrap();
            }
            turns += 1;
        }
        turns
    };
    let turns: u64 = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || turns(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    turns as f64 / length.as_secs_f64()
}

fn contended(lab: &Lab, goals: &mut Goals) {
    println!(
        "{PROCESSES} processes of {THREADS} threads that want the same {NAMES}, held 50 us:\n"
    );
    let heads = ["turns a second", "longest wait"];
    let mut table = Table::new(&[&["where", "what"], heads.as_slice()].concat());
    for (place, delayed) in [("any cores", false), ("1 ms away", true)] {
        let kinds = ["redlatch", "plain"];
        let mut seen = kinds.map(|_| (Vec::new(), 0.0_f64));
        lab.rounds(|| {
            let number = lab.next();
            for (kind, (rates, wait)) in kinds.iter().zip(&mut seen) {
                let (turns, longest) = measure(lab, delayed, kind, number);
                rates.push(turns / lab.options.length.as_secs_f64());
                *wait = wait.max(longest);
            }
        });
        let rates = seen.each_ref().map(|(rates, _)| Spread::of(rates.iter().copied()).median);
        for ((kind, (_, wait)), rate) in kinds.iter().zip(&seen).zip(rates) {
            table.row(&[&place, kind, &count(rate), &time(*wait)]);
        }
        let work = format!("{NAMES} locks together, {PROCESSES} x {THREADS}, {place}: x plain");
        goals.add(work, digits(rates[0] / rates[1]), "none set");
    }
    println!("{table}");
}

/// Returns the number of turns, and the longest wait.
fn measure(lab: &Lab, delayed: bool, kind: &str, number: usize) -> (f64, f64) {
    let length = lab.options.length.as_nanos().to_string();
    let name = format!("bench several {number} {kind}");
    let args = [kind, &lab.url(delayed), &name, &length];
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| Worker::spawn(ROLE, &args)).collect();
    for worker in &mut workers {
        worker.expect_line("ready", TIMEOUT);
    }
    let start = (clock::now() + START_DELAY).to_string();
    workers.iter_mut().for_each(|worker| worker.send_line(&start));
    let seen = workers.iter_mut().map(|worker| {
        let line = worker.expect_line("turns", TIMEOUT);
        let mut numbers = line.split(' ').map(|number| number.parse::<f64>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    });
    seen.fold((0.0, 0.0), |all, one| (all.0 + one.0, f64::max(all.1, one.1)))
}

/// Runs a process with its threads.
pub(crate) fn work(job: &Job) {
    let (kind, url, name) = (job.arg(0), job.arg(1), job.arg(2));
    let length: u64 = job.arg(3).parse().unwrap();
    let names: [String; NAMES] = std::array::from_fn(|at| format!("{name} {at}"));
    let ours = (kind == "redlatch").then(|| Client::connect(url).unwrap());
    let plain = (kind == "plain").then(|| PlainClient::connect(url).unwrap());
    let takers: Vec<Box<dyn FnMut() + Send>> = (0..THREADS)
        .map(|_| -> Box<dyn FnMut() + Send> {
            if let Some(client) = &ours {
                let locks = names.each_ref().map(|name| client.reentrant_lock(name));
                let all = MultiLock::new(&[&locks[0], &locks[1], &locks[2]]).unwrap();
                return Box::new(move || {
                    let guard = all.lock().unwrap();
                    clock::sleep_until(clock::now() + STAY);
                    guard.unlock().unwrap();
                });
            }
            // As in Redisson, each thread takes the locks one after the other. All threads use the
            // same order, so no thread must begin again.
            let client = plain.as_ref().unwrap();
            let mut locks = names.each_ref().map(|name| client.lock(name).handle().unwrap());
            Box::new(move || {
                locks.iter_mut().for_each(|lock| lock.lock().unwrap());
                clock::sleep_until(clock::now() + STAY);
                locks.iter_mut().for_each(|lock| assert!(lock.unlock().unwrap()));
            })
        })
        .collect();
    job.say("ready");
    let start: u64 = job.wait_line().parse().unwrap();
    let tallies: Vec<(u64, u64)> = thread::scope(|scope| {
        let threads: Vec<_> = takers
            .into_iter()
            .map(|mut take| {
                scope.spawn(move || {
                    clock::sleep_until(start);
                    let (mut turns, mut longest) = (0, 0);
                    loop {
                        let asked = clock::now();
                        if asked >= start + length {
                            return (turns, longest);
                        }
                        take();
                        let took = clock::now() - asked;
                        turns += u64::from(asked + took < start + length);
                        longest = longest.max(took);
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let turns: u64 = tallies.iter().map(|(turns, _)| turns).sum();
    let longest = tallies.iter().map(|(_, longest)| *longest).max().unwrap_or(0);
    job.say(&format!("turns {turns} {longest}"));
    drop((ours, plain));
    job.done()
}
