//! A server, a slow network before it, and comparisons on them.

use std::cell::{Cell as Counter, RefCell};
use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use redis::Connection;
use redlatch_testkit::{Proxy, Server, ServerError};

use crate::calls::{self, Calls};
use crate::cell::{Cell, Round};
use crate::cores::{Cores, Machine};
use crate::options::Options;
use crate::peers::Peer;
use crate::report::Spread;

/// One way.
const DELAY: Duration = Duration::from_micros(500);

/// If no thread waits for another, more and shorter rounds do: a busy moment of the machine then
/// spoils fewer of them.
const SHORTER: usize = 3;

/// Where measurements are made.
pub(crate) struct Lab {
    pub(crate) options: Options,
    pub(crate) machine: Machine,
    server: Server,
    network: Proxy,
    connection: RefCell<Connection>,
    cells: Counter<usize>,
}

/// Under which conditions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) cores: Cores,
    pub(crate) delayed: bool,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) contended: bool,
}

impl Setting {
    /// Where it takes place.
    pub(crate) fn place(&self) -> String {
        if self.delayed { "1 ms away".to_owned() } else { self.cores.to_string() }
    }
}

impl Lab {
    pub(crate) fn new(options: Options) -> Result<Self, ServerError> {
        let server = Server::start()?;
        let network = Proxy::before(&server);
        network.set_delay(DELAY);
        let connection = RefCell::new(server.connection());
        Ok(Self {
            options,
            machine: Machine::here(),
            server,
            network,
            connection,
            cells: Counter::new(0),
        })
    }

    /// Measures each peer in each round, one after the other.
    pub(crate) fn compare<const N: usize>(
        &self,
        setting: Setting,
        peers: [Peer; N],
    ) -> [Outcome; N] {
        let url = self.url(setting.delayed);
        self.compare_each(setting, peers.map(|peer| (peer, url.as_str())))
    }

    /// Measures one peer at several places, likewise.
    pub(crate) fn compare_at<const N: usize>(
        &self,
        setting: Setting,
        peer: Peer,
        urls: [&String; N],
    ) -> [Outcome; N] {
        self.compare_each(setting, urls.map(|url| (peer, url.as_str())))
    }

    fn compare_each<const N: usize>(
        &self,
        setting: Setting,
        arms: [(Peer, &str); N],
    ) -> [Outcome; N] {
        let mut outcomes = arms.map(|(peer, _)| Outcome { peer, rounds: Vec::new() });
        self.put_server(setting.cores);
        let shorter = if setting.contended { 1 } else { SHORTER };
        for _ in 0..self.options.rounds * shorter {
            for (outcome, (_, url)) in outcomes.iter_mut().zip(arms) {
                let cell = Cell {
                    number: self.next(),
                    peer: outcome.peer,
                    url: url.to_owned(),
                    place: self.machine.clients(setting.cores),
                    processes: setting.processes,
                    threads: setting.threads,
                    contended: setting.contended,
                    length: self.options.length / shorter as u32,
                };
                outcome.rounds.push(cell.run(|| self.calls()));
            }
        }
        outcomes
    }

    pub(crate) fn put_server(&self, cores: Cores) {
        self.machine.server(cores).take_process(self.server.pid());
    }

    /// Repeats something as often as is asked for.
    pub(crate) fn rounds(&self, mut round: impl FnMut()) {
        for _ in 0..self.options.rounds {
            round();
        }
    }

    /// A number that no measurement has had.
    pub(crate) fn next(&self) -> usize {
        let number = self.cells.get() + 1;
        self.cells.set(number);
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\rmeasurement {number} \r");
        }
        number
    }

    pub(crate) fn url(&self, delayed: bool) -> String {
        if delayed { self.network.url() } else { self.server.url() }
    }

    /// The server's work so far.
    pub(crate) fn calls(&self) -> Calls {
        Calls::of(&mut self.connection.borrow_mut())
    }

    /// The server's name and version.
    pub(crate) fn server(&self) -> String {
        calls::version(&mut self.connection.borrow_mut())
    }
}

/// One peer's rounds.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) peer: Peer,
    rounds: Vec<Round>,
}

impl Outcome {
    pub(crate) fn median(&self, figure: fn(&Round) -> f64) -> f64 {
        Spread::of(self.rounds.iter().map(figure)).median
    }

    pub(crate) fn worst(&self, figure: fn(&Round) -> f64) -> f64 {
        Spread::of(self.rounds.iter().map(figure)).high
    }

    /// The ratio of each round to the same round of another.
    pub(crate) fn ratio(&self, other: &Self, figure: fn(&Round) -> f64) -> Spread {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(ours, theirs)| figure(ours) / figure(theirs)))
    }

    /// The least and the most of all rounds.
    pub(crate) fn range(&self, figure: fn(&Round) -> (f64, f64)) -> (f64, f64) {
        let ranges = self.rounds.iter().map(figure);
        ranges.fold((f64::MAX, 0.0), |(low, high), it| (low.min(it.0), high.max(it.1)))
    }

    pub(crate) fn broken(&self) -> u64 {
        self.rounds.iter().map(Round::broken).sum()
    }
}
