//! One measurement: the threads of some processes take a lock and release it for a second.

use std::path::Path;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use redlatch_testkit::{Job, Worker};

use crate::calls::Calls;
use crate::clock::{self, MICROSECOND, MILLISECOND};
use crate::cores::Place;
use crate::peers::{Peer, Turn};
use crate::witness::Witness;

pub(crate) const ROLE: &str = "cell";

/// The time for which a holder works.
pub(crate) const INSIDE: u64 = 3 * MICROSECOND;
/// The number of turns after which the server has the scripts, and each waiter has subscribed once.
const WARM_UP: usize = 3;
/// If several threads may hold the lock at a time, each thread takes it this many times before the
/// measurement, and sleeps while it holds the lock. During these sleeps, all threads that can get
/// the lock hold it together, even threads that should not get it. Without the sleeps, on two
/// cores, more than two threads would hardly ever hold the lock at the same time.
const CHECKED: usize = 40;
const CHECKED_INSIDE: u64 = MILLISECOND;
/// A time limit that is much longer than the time in which a process starts or gets a lock.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The measured setting.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) number: usize,
    pub(crate) peer: Peer,
    pub(crate) url: String,
    /// The cores for the clients.
    pub(crate) place: Place,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// If true, all threads want one name, and work for a moment while they hold it. If false, each
    /// thread has its own name.
    pub(crate) contended: bool,
    pub(crate) length: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Round {
    length: Duration,
    /// For each process, the number of grants of each of its threads.
    grants: Vec<Vec<u64>>,
    switches: u64,
    longest_wait: u64,
    broken: u64,
    scripts: f64,
    commands: f64,
}

impl Cell {
    /// Runs the processes, and adds up their results. `calls` returns the server's work so far.
    pub(crate) fn run(&self, mut calls: impl FnMut() -> Calls) -> Round {
        let witness = Witness::create(self.number, self.peer.places());
        let mut workers: Vec<Worker> = (0..self.processes)
            .map(|process| {
                let args = self.args(process, &witness);
                Worker::spawn(ROLE, &args.each_ref().map(String::as_str))
            })
            .collect();
        for worker in &mut workers {
            worker.expect_line("ready", TIMEOUT);
        }
        // All processes have opened the file by now.
        Witness::remove(&witness, self.peer.places());
        let before = calls();
        // At this time the last process has received the start.
        let start = (clock::now() + 20 * MILLISECOND).to_string();
        for worker in &mut workers {
            worker.send_line(&start);
        }
        let mut round = Round {
            length: self.length,
            grants: Vec::new(),
            switches: 0,
            longest_wait: 0,
            broken: 0,
            scripts: 0.0,
            commands: 0.0,
        };
        let mut late = 0;
        for worker in &mut workers {
            let line = worker.expect_line("done", self.length + TIMEOUT);
            let mut numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap());
            let mut next = || numbers.next().unwrap();
            late += next();
            round.switches += next();
            round.longest_wait = round.longest_wait.max(next());
            round.broken += next();
            round.grants.push(numbers.collect());
        }
        let after = calls();
        let grants = (late + round.grants.iter().flatten().sum::<u64>()).max(1) as f64;
        round.scripts = (after.scripts - before.scripts) as f64 / grants;
        round.commands = (after.commands - before.commands) as f64 / grants;
        round
    }

    /// Returns the arguments for [`work`].
    fn args(&self, process: usize, witness: &Path) -> [String; 8] {
        [
            self.peer.name().to_owned(),
            self.url.clone(),
            self.place.to_string(),
            self.number.to_string(),
            process.to_string(),
            self.threads.to_string(),
            if self.contended { witness.display().to_string() } else { String::new() },
            self.length.as_nanos().to_string(),
        ]
    }
}

impl Round {
    /// Returns the number of grants in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.grants.iter().flatten().sum::<u64>() as f64 / self.length.as_secs_f64()
    }

    /// Returns how many times in a second the lock went to another thread.
    pub(crate) fn switches(&self) -> f64 {
        self.switches as f64 / self.length.as_secs_f64()
    }

    /// Returns the longest wait of any thread, in nanoseconds.
    pub(crate) fn longest_wait(&self) -> f64 {
        self.longest_wait as f64
    }

    /// Returns the script calls for each grant.
    pub(crate) fn scripts(&self) -> f64 {
        self.scripts
    }

    /// Returns the commands for each grant, including those inside scripts.
    pub(crate) fn commands(&self) -> f64 {
        self.commands
    }

    /// Returns the number of times that too many threads held the lock. The result should be zero.
    pub(crate) fn broken(&self) -> u64 {
        self.broken
    }

    /// Returns the smallest and the largest number of grants of a thread, as parts of the mean.
    pub(crate) fn threads(&self) -> (f64, f64) {
        shares(self.grants.iter().flatten().copied().collect())
    }

    /// Returns the smallest and the largest number of grants of a process, as parts of the mean.
    pub(crate) fn processes(&self) -> (f64, f64) {
        shares(self.grants.iter().map(|threads| threads.iter().sum()).collect())
    }
}

fn shares(parts: Vec<u64>) -> (f64, f64) {
    let mean = parts.iter().sum::<u64>() as f64 / parts.len() as f64;
    let share = |part: Option<&u64>| part.map_or(0.0, |part| *part as f64 / mean);
    (share(parts.iter().min()), share(parts.iter().max()))
}

/// Runs one of the processes.
pub(crate) fn work(job: &Job) {
    job.arg(2).parse::<Place>().unwrap().take();
    let name = format!("bench {}", job.arg(3));
    let process: u64 = job.arg(4).parse().unwrap();
    let threads: u64 = job.arg(5).parse().unwrap();
    let length: u64 = job.arg(7).parse().unwrap();

    let peer = Peer::named(job.arg(0));
    let connected = peer.connect(job.arg(1));
    let go = Arc::new((Barrier::new(threads as usize + 1), OnceLock::new()));
    let threads: Vec<_> = (0..threads)
        .map(|thread| {
            let number = process * 1_000 + thread + 1;
            let (turn, witness) = match job.arg(6) {
                "" => (connected(&format!("{name} {number}")), None),
                path => (connected(&name), Some(Witness::open(path, peer.places()))),
            };
            let go = Arc::clone(&go);
            let mut thread = Thread { turn, witness, number, tally: Tally::default() };
            thread::spawn(move || {
                (0..WARM_UP).for_each(|_| (thread.turn)(&mut || {}));
                if peer.places() > 1 {
                    (0..CHECKED).for_each(|_| thread.check());
                }
                let (barrier, start) = &*go;
                barrier.wait();
                barrier.wait();
                let start: u64 = *start.get().unwrap();
                clock::sleep_until(start);
                thread.run(start + length)
            })
        })
        .collect();
    let (barrier, start) = &*go;
    barrier.wait();
    job.say("ready");
    start.set(job.wait_line().parse().unwrap()).unwrap();
    barrier.wait();
    let tallies: Vec<Tally> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let sum = |part: fn(&Tally) -> u64| tallies.iter().map(part).sum::<u64>();
    let (late, switches, broken) = (sum(|it| it.late), sum(|it| it.switches), sum(|it| it.broken));
    let longest_wait = tallies.iter().map(|it| it.longest_wait).max().unwrap_or(0);
    let grants: Vec<String> = tallies.iter().map(|it| it.grants.to_string()).collect();
    job.say(&format!("done {late} {switches} {longest_wait} {broken} {}", grants.join(" ")));
    drop(connected);
    job.done()
}

struct Thread {
    turn: Turn,
    witness: Option<Witness>,
    number: u64,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    grants: u64,
    /// The number of grants after the end. The waits for these grants are also counted.
    late: u64,
    switches: u64,
    longest_wait: u64,
    broken: u64,
}

impl Thread {
    /// Takes one turn that is checked but not measured.
    fn check(&mut self) {
        let Self { turn, witness: Some(witness), number, tally } = self else { return };
        turn(&mut || {
            witness.enter(*number);
            clock::sleep_until(clock::now() + CHECKED_INSIDE);
            tally.broken += u64::from(!witness.leave(*number));
        });
    }

    fn run(mut self, end: u64) -> Tally {
        let Self { turn, witness, number, tally } = &mut self;
        loop {
            let asked = clock::now();
            if asked >= end {
                return self.tally;
            }
            turn(&mut || {
                let granted = clock::now();
                tally.longest_wait = tally.longest_wait.max(granted - asked);
                let in_time = granted < end;
                *if in_time { &mut tally.grants } else { &mut tally.late } += 1;
                if let Some(witness) = witness {
                    let switched = !witness.enter(*number);
                    tally.switches += u64::from(switched && in_time);
                    clock::spin_until(granted + INSIDE);
                    tally.broken += u64::from(!witness.leave(*number));
                }
            });
        }
    }
}
