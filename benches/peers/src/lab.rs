//! A server, a slow network in front of it, the drivers, and the measurements.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redis::Connection;
use redlatch_testkit::{Proxy, Server};
use tempfile::TempDir;

use crate::calls::{self, Calls};
use crate::clock::{self, MILLISECOND, SECOND};
use crate::cores::Machine;
use crate::grants::{self, Grant};
use crate::options::Options;
use crate::program::{Built, Driver, Program};
use crate::results::{Cell, Round};
use crate::stores::{self, Store, StoreServer};
use crate::works::{Figures, Peer, Work};

/// The delay of the network, one way.
const DELAY: Duration = Duration::from_micros(500);
/// The time limit for the start of a peer's processes.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The time limit for the end of a round. A thread that still waits then has missed its wake-up.
const STUCK: Duration = Duration::from_secs(20);
const LEASE: u64 = 30_000;
/// The lease of locks whose holder is killed, in ms.
const SHORT_LEASE: u64 = 5_000;
const HOLDER_DIES: u64 = 3 * SECOND;
const WAITER_DIES: u64 = 11 * SECOND;
const KILLS_END: u64 = 14 * SECOND;
/// The time from the waiter's request to the kill of the waiter.
const ASLEEP: u64 = 3 * MILLISECOND;

pub(crate) struct Lab {
    options: Options,
    pub(crate) machine: Machine,
    server: Server,
    network: Proxy,
    connection: Connection,
    stores: BTreeMap<Store, StoreServer>,
    built: BTreeMap<Program, Built>,
    drivers: BTreeMap<Program, Vec<Driver>>,
    files: TempDir,
    cells: usize,
    /// The number of Java processes that have warmed up.
    warm: usize,
}

/// The results of a measurement.
struct Run {
    grants: Vec<Grant>,
    end: u64,
    failures: u64,
    commands: f64,
    cpu: f64,
}

impl Lab {
    pub(crate) fn new(
        options: Options,
        built: BTreeMap<Program, Built>,
        stores: BTreeMap<Store, StoreServer>,
    ) -> Result<Self, String> {
        let server = Server::start().map_err(|error| error.to_string())?;
        let network = Proxy::before(&server);
        network.set_delay(DELAY);
        let connection = server.connection();
        Ok(Self {
            options,
            machine: Machine::here(),
            server,
            network,
            connection,
            stores,
            built,
            drivers: BTreeMap::new(),
            files: stores::folder()?,
            cells: 0,
            warm: 0,
        })
    }

    pub(crate) fn server_version(&mut self) -> String {
        calls::version(&mut self.connection)
    }

    /// Measures the peers one after the other, in each round.
    pub(crate) fn measure(&mut self, work: &Work) -> Vec<Cell> {
        if !self.machine.can(work.cores) {
            return Vec::new();
        }
        let peers: Vec<_> = work.peers.iter().filter(|it| self.has(it)).collect();
        let cell = |peer: &&Peer| Cell {
            work: work.key.to_owned(),
            peer: peer.key.to_owned(),
            rounds: Vec::new(),
            failed: None,
        };
        let mut cells: Vec<Cell> = peers.iter().map(cell).collect();
        self.cells += 1;
        for (at, peer) in peers.iter().enumerate() {
            let prepared = self.prepare(work, peer);
            cells[at].failed = prepared.and_then(|()| self.warm_up(work, peer)).err();
            if cells[at].failed.is_some() {
                self.prepare_again(work, peer.program, peers[..at].iter().zip(&cells));
            }
        }
        let once = matches!(work.figures, Figures::Waits | Figures::Kills);
        for round in 0..if once { 1 } else { self.options.rounds } {
            for (at, peer) in peers.iter().enumerate() {
                if cells[at].failed.is_some() {
                    continue;
                }
                eprintln!("{}: {}, round {}", work.key, peer.name, round + 1);
                match self.round(work, peer) {
                    // The round has killed two processes of the program.
                    Ok(round) if work.figures == Figures::Kills => {
                        cells[at].rounds.push(round);
                        let later = peers[at + 1..].iter().zip(&cells[at + 1..]);
                        self.prepare_again(work, peer.program, later);
                    }
                    Ok(round) => cells[at].rounds.push(round),
                    Err(error) => {
                        cells[at].failed = Some(error);
                        self.prepare_again(work, peer.program, peers.iter().zip(&cells));
                    }
                }
            }
        }
        for driver in self.drivers.values_mut().flatten() {
            driver.tell("close");
        }
        for driver in self.drivers.values_mut().flatten() {
            let _ = driver.answer("closed", TIMEOUT);
        }
        cells
    }

    /// Connects the peers that have lost a process. Such a loss happens if another peer with the
    /// same program has failed, or if a round of that peer has killed processes.
    fn prepare_again<'a>(
        &mut self,
        work: &Work,
        program: Program,
        cells: impl Iterator<Item = (&'a &'a Peer, &'a Cell)>,
    ) {
        for (peer, _) in cells.filter(|(it, cell)| it.program == program && cell.failed.is_none()) {
            // If this fails, the peer's next round fails.
            let _ = self.prepare(work, peer);
        }
    }

    /// Returns whether the peer's program was built and its server runs.
    fn has(&self, peer: &Peer) -> bool {
        let served = peer.store == Store::Redis || self.stores.contains_key(&peer.store);
        served && self.built.contains_key(&peer.program)
    }

    fn round(&mut self, work: &Work, peer: &Peer) -> Result<Round, String> {
        if work.figures == Figures::Kills {
            return self.kills(work, peer);
        }
        let length = self.options.seconds * work.length;
        let run = self.run(work, peer, (length * SECOND as f64) as u64)?;
        let all = run.grants.iter().filter(|grant| grant.granted > 0);
        let in_time: Vec<Grant> = all.clone().filter(|it| it.granted < run.end).copied().collect();
        let number = all.count().max(1) as f64;
        let shares = grants::shares(&in_time, work.processes, work.threads);
        let mean = shares.iter().sum::<u64>() as f64 / shares.len() as f64;
        let mut round = Round {
            rate: in_time.len() as f64 / length,
            switches: grants::switches(&in_time) as f64 / length,
            slowest: shares.iter().min().map_or(0.0, |least| *least as f64 / mean.max(1e-9)),
            longest: run.grants.iter().map(Grant::wait).max().unwrap_or(0) as f64,
            commands: run.commands / number,
            cpu: run.cpu / number,
            doubles: if work.own { 0 } else { grants::doubles(&run.grants, work.places) },
            failures: run.failures,
            shares,
            ..Round::default()
        };
        let events = match (work.figures, work.kind) {
            (Figures::Events, "latch") => grants::wake_ups(&run.grants),
            (Figures::Events, _) => grants::hand_overs(&run.grants),
            (Figures::Waits, _) => run.grants.iter().map(|it| it.wait() as f64).collect(),
            _ => Vec::new(),
        };
        if work.kind == "latch" {
            round.doubles = 0;
        }
        round.number = events.len();
        round.median = grants::at(&events, 0.5);
        round.late = grants::at(&events, 0.99);
        if work.figures == Figures::Waits {
            round.points = events;
        }
        Ok(round)
    }

    /// Runs a peer's processes once.
    fn run(&mut self, work: &Work, peer: &Peer, length: u64) -> Result<Run, String> {
        let (commands, cpu) = self.effort(peer.store);
        // At this time the last process has received the start.
        let start = clock::now() + 50 * MILLISECOND;
        let end = start + length;
        let files = self.files(work.processes);
        let mut random = fastrand::Rng::with_seed(1);
        for (process, file) in files.iter().enumerate() {
            let mut line = go(peer.key, file, start, end);
            if work.figures == Figures::Waits {
                let path = file.with_extension("schedule");
                fs::write(&path, schedule(&mut random, start, end)).unwrap();
                line += &format!(" schedule={}", path.display());
            }
            self.drivers.get_mut(&peer.program).unwrap()[process].tell(&line);
        }
        let failures = self.done(peer, work.processes, Duration::from_nanos(length))?;
        let (commands_after, cpu_after) = self.effort(peer.store);
        let (commands, cpu) = (commands_after - commands, cpu_after - cpu);
        let grants = grants::read(&files);
        Ok(Run { grants, end, failures, commands, cpu })
    }

    /// Returns a server's commands and its processor time in ns so far. Only Redis has commands.
    fn effort(&mut self, store: Store) -> (f64, f64) {
        if let Some(server) = self.stores.get(&store) {
            return (f64::NAN, server.processor().map_or(f64::NAN, |time| time as f64));
        }
        let commands = Calls::of(&mut self.connection).commands;
        (commands as f64, calls::processor(&mut self.connection) as f64)
    }

    /// Returns the number of failed calls after all processes have ended.
    fn done(&mut self, peer: &Peer, processes: usize, length: Duration) -> Result<u64, String> {
        let answers = self.answers(peer.program, processes, "done", length + STUCK)?;
        Ok(answers.iter().map(|failures| failures.parse().unwrap_or(0)).sum())
    }

    /// Returns the answer of each process. A process that does not answer in time is killed.
    fn answers(
        &mut self,
        program: Program,
        processes: usize,
        word: &str,
        patience: Duration,
    ) -> Result<Vec<String>, String> {
        let until = Instant::now() + patience;
        let drivers = self.drivers.get_mut(&program).unwrap().iter_mut().take(processes);
        // Waits for all drivers, even after a driver has failed.
        let answers: Vec<_> = drivers
            .map(|driver| driver.answer(word, until.saturating_duration_since(Instant::now())))
            .collect();
        answers.into_iter().collect()
    }

    /// Kills a holder, and later a waiter, while processes take turns.
    fn kills(&mut self, work: &Work, peer: &Peer) -> Result<Round, String> {
        let files = self.files(work.processes + 2);
        let start = clock::now() + 50 * MILLISECOND;
        let through = |file: &Path, at, end| go(peer.key, file, at, end) + " through=1";
        for (process, file) in files.iter().take(work.processes).enumerate() {
            let line = through(file, start, start + KILLS_END);
            self.drivers.get_mut(&peer.program).unwrap()[process].tell(&line);
        }
        let mut killed = Vec::new();
        for (victim, at) in [(work.processes, HOLDER_DIES), (work.processes + 1, WAITER_DIES)] {
            let at = start + at;
            let driver = &mut self.drivers.get_mut(&peer.program).unwrap()[victim];
            driver.tell(&through(&files[victim], at, at + 3 * SECOND));
            let grants = || fs::metadata(&files[victim]).map_or(0, |file| file.len() / 32);
            let kill = if victim == work.processes {
                until(at + 3 * SECOND, || grants() > 0)
            } else {
                // The waiter is killed between two of its grants, if it gets grants.
                let mut before = grants();
                clock::sleep_until(at + ASLEEP);
                until(at + 2 * SECOND, || {
                    let now = grants();
                    if before != now {
                        before = now;
                        clock::sleep_until(clock::now() + work.inside + work.rest + ASLEEP);
                    }
                    before == grants()
                })
            };
            if !kill {
                // The other processes still run, and would answer later.
                let drivers = self.drivers.get_mut(&peer.program).unwrap();
                drivers.iter_mut().for_each(Driver::kill);
                return Err("the process to be killed did not get so far".to_owned());
            }
            driver.kill();
            killed.push(clock::now());
        }
        let failures = self.done(peer, work.processes, Duration::from_nanos(KILLS_END))?;
        let grants = grants::read(&files[..work.processes]);
        let times: Vec<u64> = grants.iter().map(|it| it.granted).filter(|it| *it > 0).collect();
        let seconds = |at: u64| at.saturating_sub(start) as f64 / SECOND as f64;
        let kills = killed.iter().map(|at| {
            // Compute the longest time without a grant. After the holder's death, this is the time
            // until the lock is free. After the waiter's death, it is the longest gap between two
            // grants.
            let after: Vec<u64> =
                [*at].into_iter().chain(times.iter().copied().filter(|it| it > at)).collect();
            let gaps = after.windows(2).map(|pair| pair[1] - pair[0]);
            (seconds(*at), gaps.max().unwrap_or(start + KILLS_END - at) as f64)
        });
        Ok(Round {
            rate: times.len() as f64 / seconds(start + KILLS_END),
            failures,
            kills: kills.collect(),
            points: times.iter().map(|at| seconds(*at)).collect(),
            ..Round::default()
        })
    }

    fn files(&self, count: usize) -> Vec<PathBuf> {
        let file = |number| self.files.path().join(format!("{number}"));
        let files: Vec<PathBuf> = (0..count).map(file).collect();
        for file in &files {
            let _ = fs::remove_file(file);
        }
        files
    }

    /// Starts the missing processes of a peer, and connects all its processes.
    fn prepare(&mut self, work: &Work, peer: &Peer) -> Result<(), String> {
        let kills = work.figures == Figures::Kills;
        let count = work.processes + if kills { 2 } else { 0 };
        let built = &self.built[&peer.program];
        let drivers = self.drivers.entry(peer.program).or_default();
        for driver in &mut *drivers {
            if driver.has_ended() {
                *driver = Driver::start(built);
            }
        }
        drivers.resize_with(count.max(drivers.len()), || Driver::start(built));
        let url = match self.stores.get(&peer.store) {
            Some(server) => server.url().to_owned(),
            None if work.far => self.network.url(),
            None => self.server.url(),
        };
        for (process, driver) in drivers.iter_mut().take(count).enumerate() {
            // The holder that is killed must hold the lock until its death.
            let inside = if process == work.processes { 60 * SECOND } else { work.inside };
            let lease = if kills { SHORT_LEASE } else { LEASE };
            driver.tell(&format!(
                "prepare id={key} url={url} peer={key} work={} name=peers-{}-{key} own={} \
                 process={process} threads={} inside={inside} spread={} rest={} lease={lease}",
                work.kind,
                self.cells,
                u8::from(work.own),
                work.threads,
                work.spread,
                work.rest,
                key = peer.key,
            ));
        }
        self.answers(peer.program, count, "ready", TIMEOUT)?;
        self.place(work, peer);
        Ok(())
    }

    fn place(&self, work: &Work, peer: &Peer) {
        let other = self.stores.get(&peer.store);
        let server = other.map_or_else(|| vec![self.server.pid()], StoreServer::processes);
        for process in server {
            self.machine.server(work.cores).take_process(process);
        }
        let place = self.machine.clients(work.cores);
        for driver in self.drivers[&peer.program].iter().take(work.processes) {
            place.take_process(driver.pid());
        }
    }

    fn warm_up(&mut self, work: &Work, peer: &Peer) -> Result<(), String> {
        let mut seconds = 0.3f64.min(self.options.seconds);
        if peer.program == Program::Java {
            let cold = work.processes > self.warm && !work.own;
            seconds = if cold { self.options.warm } else { self.options.warm / 3.0 };
            if cold {
                self.warm = work.processes;
            }
        }
        let work = Work { figures: Figures::Contended, ..*work };
        self.run(&work, peer, (seconds * SECOND as f64) as u64).map(drop)
    }
}

fn go(id: &str, out: &Path, start: u64, end: u64) -> String {
    format!("go id={id} out={} start={start} end={end}", out.display())
}

/// Waits until the condition is true. Returns `false` if it is not true before `end`.
fn until(end: u64, mut condition: impl FnMut() -> bool) -> bool {
    loop {
        if condition() || clock::now() > end {
            return clock::now() <= end;
        }
        clock::sleep_until(clock::now() + MILLISECOND / 5);
    }
}

/// Returns random start times, on average ten a second.
fn schedule(random: &mut fastrand::Rng, start: u64, end: u64) -> String {
    let mut lines = String::new();
    let mut at = start as f64;
    loop {
        at -= (1.0 - random.f64()).ln() * SECOND as f64 / 10.0;
        if at >= end as f64 {
            return lines;
        }
        lines += &format!("{at:.0}\n");
    }
}
