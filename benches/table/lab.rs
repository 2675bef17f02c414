//! A server, a slow network in front of it, and comparisons on them.

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

/// The delay of the network, one way.
const DELAY: Duration = Duration::from_micros(500);

/// The factor by which rounds are shorter and more numerous if no thread waits for another. A busy
/// moment of the machine then affects a smaller part of the rounds.
const SHORTER: usize = 3;

/// The surroundings of the measurements: the server, the network and the machine.
pub(crate) struct Lab {
    pub(crate) options: Options,
    pub(crate) machine: Machine,
    server: Server,
    network: Proxy,
    connection: RefCell<Connection>,
    cells: Counter<usize>,
}

/// The conditions of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) cores: Cores,
    pub(crate) delayed: bool,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) contended: bool,
}

impl Setting {
    /// Returns the text about the place of a measurement.
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

    /// Measures the peers one after the other, in each round.
    pub(crate) fn compare<const N: usize>(
        &self,
        setting: Setting,
        peers: [Peer; N],
    ) -> [Outcome; N] {
        let url = self.url(setting.delayed);
        self.compare_each(setting, peers.map(|peer| (peer, url.as_str())))
    }

    /// Measures one peer on several servers one after the other, in each round.
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

    /// Repeats `round` as often as the options say.
    pub(crate) fn rounds(&self, mut round: impl FnMut()) {
        for _ in 0..self.options.rounds {
            round();
        }
    }

    /// Returns a number that no earlier measurement has used.
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

    /// Returns the server's work so far.
    pub(crate) fn calls(&self) -> Calls {
        Calls::of(&mut self.connection.borrow_mut())
    }

    /// Returns the server's name and version.
    pub(crate) fn server(&self) -> String {
        calls::version(&mut self.connection.borrow_mut())
    }
}

/// The rounds of one peer.
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

    /// Returns the ratios between each round and the same round of another peer.
    pub(crate) fn ratio(&self, other: &Self, figure: fn(&Round) -> f64) -> Spread {
        let pairs = self.rounds.iter().zip(&other.rounds);
        Spread::of(pairs.map(|(ours, theirs)| figure(ours) / figure(theirs)))
    }

    /// Returns the smallest and the largest figure of all rounds.
    pub(crate) fn range(&self, figure: fn(&Round) -> (f64, f64)) -> (f64, f64) {
        let ranges = self.rounds.iter().map(figure);
        ranges.fold((f64::MAX, 0.0), |(low, high), it| (low.min(it.0), high.max(it.1)))
    }

    pub(crate) fn broken(&self) -> u64 {
        self.rounds.iter().map(Round::broken).sum()
    }
}
