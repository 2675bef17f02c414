//! Kills and stops by the thousand: never two leaders, by their guards and by their tokens.
//!
//! With REDLATCH_LONG: `cargo test --test election thousand -- --nocapture`. A number there is how
//! many kills and stops there are.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use super::*;

const LEASE: Duration = processes::LEASE;
const ELECTIONS: usize = 8;
const CANDIDATES: usize = 3;
/// Besides the lease, on a busy machine: of most of them.
const MORE: Duration = Duration::from_millis(200);

/// On a clock that all processes have, in nanoseconds.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A leadership's token; until when its guard had said "I lead" for the first time; and from when on
/// it said so for the last time. The guard answers between two looks at the clock, so if the last
/// time of one begins after the first time of a later one ended, both led together.
#[derive(Clone, Copy, Debug)]
struct Claim {
    token: u64,
    first: u64,
    last: u64,
}

/// Where this executable's workers begin. A worker writes its claims to a file as it makes them, so
/// that they outlive it.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let election = client.leader_election(job.arg(1)).with_watchdog(LEASE);
    for term in 0.. {
        let leadership = election.campaign().unwrap();
        let file = File::create(format!("{}.{term}", job.arg(2))).unwrap();
        let (token, mut first) = (leadership.token().get(), None);
        loop {
            let asked = now();
            if !leadership.is_leader() {
                break;
            }
            if first.is_none() {
                first = Some(now());
                job.say(&format!("leads {token}"));
            }
            let claim = [token, first.unwrap_or(0), asked].map(u64::to_le_bytes).concat();
            file.write_all_at(&claim, 0).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// An election, some processes that campaign for it, and what is done to its leaders.
struct Long<'a> {
    server: &'a Server,
    name: String,
    folder: &'a Path,
    candidates: Vec<Worker>,
    started: usize,
    random: Random,
}

impl Long<'_> {
    fn start(&mut self) {
        let path = self.folder.join(format!("{}.{}", self.name, self.started));
        self.started += 1;
        let args = [&*self.server.url(), &*self.name, path.to_str().unwrap()];
        self.candidates.push(Worker::spawn_test("long::worker", "worker", &args));
    }

    /// The candidate that says that it leads, and since when this is known.
    fn leader(&mut self) -> (usize, Instant) {
        let since = Instant::now();
        while since.elapsed() < SOON {
            for at in 0..self.candidates.len() {
                if let Some(line) = self.candidates[at].try_line(Duration::from_millis(1)) {
                    assert!(line.starts_with("leads "), "{line}");
                    return (at, Instant::now());
                }
            }
        }
        panic!("nobody leads {} in {SOON:?}", self.name);
    }

    /// Kills or stops leader after leader. Returns how long it took until the next one led.
    fn run(mut self, rounds: usize) -> Vec<Duration> {
        (0..CANDIDATES).for_each(|_| self.start());
        let mut took = Vec::new();
        let (mut leads, _) = self.leader();
        for _ in 0..rounds {
            thread::sleep(Duration::from_millis(self.random.below(LEASE.as_millis() as u64 / 2)));
            let begun = Instant::now();
            match self.random.below(5) {
                0 | 1 => {
                    self.candidates[leads].sigkill();
                    self.candidates.remove(leads);
                    // Behind the others: only after the next one leads.
                    let (next, since) = self.leader();
                    took.push(since - begun);
                    leads = next;
                    self.start();
                }
                2 | 3 => {
                    self.candidates[leads].sigstop();
                    let (next, since) = self.leader();
                    took.push(since - begun);
                    let rest = Duration::from_millis(self.random.below(300));
                    thread::sleep(rest);
                    self.candidates[leads].sigcont();
                    leads = next;
                }
                // For less than a lease, or a little more.
                _ => {
                    let stop = Duration::from_millis(self.random.below(2_200));
                    self.candidates[leads].sigstop();
                    thread::sleep(stop);
                    self.candidates[leads].sigcont();
                    thread::sleep(UNIT * 3);
                    while let Some(next) = self.another() {
                        leads = next;
                    }
                }
            }
        }
        took
    }

    /// A candidate that has begun to lead meanwhile.
    fn another(&mut self) -> Option<usize> {
        (0..self.candidates.len())
            .find(|at| self.candidates[*at].try_line(Duration::from_millis(1)).is_some())
    }
}

#[test]
fn in_a_thousand_kills_and_stops_no_two_lead_together() {
    let Some(long) = env::var_os("REDLATCH_LONG") else { return };
    let many = long.to_str().and_then(|it| it.parse().ok()).filter(|many| *many > 1);
    let rounds = many.unwrap_or(1_000usize).div_ceil(ELECTIONS);
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    let mut took: Vec<Duration> = thread::scope(|scope| {
        let runs: Vec<_> = (0..ELECTIONS)
            .map(|at| {
                let long = Long {
                    server: &server,
                    name: format!("long {at}"),
                    folder: folder.path(),
                    candidates: Vec::new(),
                    started: 0,
                    random: Random::new(),
                };
                scope.spawn(move || long.run(rounds))
            })
            .collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).collect()
    });
    let mut claims: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        let bytes = fs::read(file.path()).unwrap();
        // Killed before its first claim.
        let [token, first, last] = bytes.as_chunks::<8>().0 else { continue };
        let [token, first, last] = [token, first, last].map(|it| u64::from_le_bytes(*it));
        let name = file.file_name().into_string().unwrap();
        let election = name.split('.').next().unwrap().to_owned();
        claims.entry(election).or_default().push(Claim { token, first, last });
    }
    let terms = claims.values().map(Vec::len).sum::<usize>();
    for (election, claims) in &mut claims {
        claims.sort_by_key(|claim| claim.token);
        for pair in claims.windows(2) {
            let [one, next] = pair else { continue };
            assert!(one.token < next.token, "{election}: two with one token: {pair:?}");
            assert!(one.last < next.first, "{election}: two lead together: {pair:?}");
        }
    }
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100];
    println!(
        "{} kills and stops, {terms} leaderships, never two; until the next one led: median {:?}, \
         99th {:?}, longest {:?}",
        rounds * ELECTIONS,
        at(50),
        at(99),
        at(100),
    );
    assert!(at(50) < LEASE + MORE, "{:?}", at(50));
}
