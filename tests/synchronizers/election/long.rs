//! Thousands of kills and pauses. There are never two leaders, as the leaders' guards and tokens
//! show.
//!
//! Run it with `REDLATCH_LONG` set: `cargo test --test synchronizers thousand -- --nocapture`. A
//! number as the value of this variable sets the number of kills and pauses.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{ClockId, clock_gettime};

use super::*;

const LEASE: Duration = Duration::from_secs(2);
const ELECTIONS: usize = 8;
const CANDIDATES: usize = 3;
/// The maximum time until the next leader, in addition to the lease and to stalls of the machine.
const MORE: Duration = Duration::from_millis(200);

/// Returns the time in ns on a clock that is the same in all processes.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A leadership's token, the time after its guard's first report "I lead", and the time before its
/// guard's last such report. If the last report of one leadership begins after the first report of
/// a later leadership has ended, both led at the same time.
#[derive(Clone, Copy, Debug)]
struct Claim {
    token: u64,
    first: u64,
    last: u64,
}

/// The entry point of the worker processes, which run this executable with only this test. A worker
/// writes each claim to a file at once, so that the claims outlive the worker.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let election = client.leader_election(job.arg(1)).with_watchdog(LEASE);
    job.say(&format!("is {}", client.id()));
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

/// A campaigning process, and its client's id after the process has reported it.
struct Candidate {
    worker: Worker,
    id: Option<String>,
}

impl Candidate {
    /// Whether the process has begun to lead.
    fn leads(&mut self) -> bool {
        while let Some(line) = self.worker.try_line(Duration::from_millis(1)) {
            match line.split_once(' ') {
                Some(("is", id)) => self.id = Some(id.to_owned()),
                Some(("leads", _)) => return true,
                _ => panic!("{line}"),
            }
        }
        false
    }

    fn is_of(&self, owner: &str) -> bool {
        self.id.as_ref().is_some_and(|id| owner.starts_with(&**id))
    }
}

/// A kill or pause of a leader, and the time until another process led.
#[derive(Clone, Copy, Debug)]
struct Change {
    was_killed: bool,
    /// Whether another candidate waited for the lock while the leader held it, and was alive all
    /// the time.
    is_awaited: bool,
    at: Instant,
    /// The remaining lease of the leader, on the server's clock.
    left: Duration,
    took: Duration,
}

/// The times at which the server or the machine stood still. A thread repeatedly sends a command
/// and sleeps for a millisecond, and records how long this took.
struct Stalls {
    seen: Mutex<Vec<(Instant, Duration)>>,
    over: AtomicBool,
}

impl Stalls {
    fn watch(&self, server: &Server) {
        let mut redis = server.connection();
        while !self.over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let () = redis::cmd("PING").query(&mut redis).unwrap();
            thread::sleep(Duration::from_millis(1));
            let took = begun.elapsed();
            if took > Duration::from_millis(5) {
                self.seen.lock().unwrap().push((begun, took));
            }
        }
    }

    /// Returns the sum of all stalls between this leader's end and the next leader's beginning.
    fn during(&self, change: &Change) -> Duration {
        let until = change.at + change.took;
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|it| it.0 < until && it.0 + it.1 > change.at).map(|it| it.1).sum()
    }
}

/// An election, its candidates, and the kills and pauses of leaders.
struct Long<'a> {
    server: &'a Server,
    name: String,
    folder: &'a Path,
    candidates: Vec<Candidate>,
    started: usize,
    random: Random,
}

impl Long<'_> {
    fn start(&mut self) {
        let path = self.folder.join(format!("{}.{}", self.name, self.started));
        self.started += 1;
        let args = [&*self.server.url(), &*self.name, path.to_str().unwrap()];
        let worker = Worker::spawn_test("election::long::worker", "worker", &args);
        self.candidates.push(Candidate { worker, id: None });
    }

    /// Returns the candidate that reports that it leads, and the time since which the test knows
    /// this.
    fn leader(&mut self) -> (usize, Instant) {
        let since = Instant::now();
        while since.elapsed() < TIMEOUT {
            if let Some(at) = self.another() {
                return (at, Instant::now());
            }
        }
        panic!("nobody leads {} in {TIMEOUT:?}", self.name);
    }

    /// Returns a candidate that has begun to lead in the meantime.
    fn another(&mut self) -> Option<usize> {
        (0..self.candidates.len()).find(|at| self.candidates[*at].leads())
    }

    /// Kills or pauses a leader, and waits for the next leader.
    fn end(&mut self, leads: usize, kills: bool, redis: &mut redis::Connection) -> (usize, Change) {
        let worker = &mut self.candidates[leads].worker;
        if kills {
            worker.sigkill();
        } else {
            worker.sigstop();
        }
        let at = Instant::now();
        let (owners, waiting, left): (Vec<String>, Vec<String>, i64) = redis::pipe()
            .hkeys(&self.name)
            .lrange(format!("redlatch_queue:{{{}}}", self.name), 0, -1)
            .pttl(&self.name)
            .query(redis)
            .unwrap();
        let leader = &self.candidates[leads];
        let waits = |it: &Candidate| waiting.iter().any(|owner| it.is_of(owner));
        let is_awaited = owners.iter().any(|owner| leader.is_of(owner))
            && !waits(leader)
            && self.candidates.iter().any(waits);
        let left = Duration::from_millis(left.max(0) as u64);
        let (next, since) = self.leader();
        assert!(next != leads, "it was killed or stopped");
        (next, Change { was_killed: kills, is_awaited, at, left, took: since - at })
    }

    /// Kills or pauses one leader after the other.
    fn run(mut self, rounds: usize) -> Vec<Change> {
        (0..CANDIDATES).for_each(|_| self.start());
        let (mut changes, mut redis) = (Vec::new(), self.server.connection());
        let (mut leads, _) = self.leader();
        for _ in 0..rounds {
            thread::sleep(Duration::from_millis(self.random.below(LEASE.as_millis() as u64 / 2)));
            match self.random.below(5) {
                kind @ 0..=3 => {
                    let kills = kind < 2;
                    let (next, change) = self.end(leads, kills, &mut redis);
                    changes.push(change);
                    if kills {
                        self.candidates.remove(leads);
                        leads = if next > leads { next - 1 } else { next };
                        // The process starts now, so it is behind the others in the queue.
                        self.start();
                    } else {
                        let rest = Duration::from_millis(self.random.below(300));
                        thread::sleep(rest);
                        self.candidates[leads].worker.sigcont();
                        leads = next;
                    }
                }
                // The process stops for less than a lease, or for slightly more.
                _ => {
                    let stop = Duration::from_millis(self.random.below(2_200));
                    self.candidates[leads].worker.sigstop();
                    thread::sleep(stop);
                    self.candidates[leads].worker.sigcont();
                    thread::sleep(TIME_UNIT * 3);
                    while let Some(next) = self.another() {
                        leads = next;
                    }
                }
            }
        }
        changes
    }
}

#[test]
fn in_a_thousand_kills_and_stops_no_two_lead_together() {
    let Some(long) = env::var_os("REDLATCH_LONG") else { return };
    let many = long.to_str().and_then(|it| it.parse().ok()).filter(|many| *many > 1);
    let rounds = many.unwrap_or(1_000usize).div_ceil(ELECTIONS);
    let (server, folder) = (unbounded_server(), tempfile::tempdir().unwrap());
    let stalls = Stalls { seen: Mutex::default(), over: AtomicBool::new(false) };
    let changes: Vec<Change> = thread::scope(|scope| {
        scope.spawn(|| stalls.watch(&server));
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
        let runs: Vec<_> = runs.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stalls.over.store(true, Ordering::Relaxed);
        runs.into_iter().flat_map(|run| run.unwrap()).collect()
    });
    let mut claims: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
    for file in fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        let bytes = fs::read(file.path()).unwrap();
        // The process was killed before its first claim.
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
    println!("{} kills and stops, {terms} leaderships, never two", rounds * ELECTIONS);
    for was_killed in [true, false] {
        let mut took: Vec<_> = changes
            .iter()
            .filter(|change| change.is_awaited && change.was_killed == was_killed)
            .map(|change| change.took)
            .collect();
        took.sort_unstable();
        let at = |part: usize| took.get(took.len().saturating_sub(1) * part / 100);
        println!(
            "{} {} while another one waited; until that one led: median {:.2?}, 99th {:.2?}, \
             longest {:.2?}",
            took.len(),
            if was_killed { "kills" } else { "stops" },
            at(50).unwrap(),
            at(99).unwrap(),
            at(100).unwrap(),
        );
    }
    let awaited: Vec<_> = changes.iter().filter(|change| change.is_awaited).collect();
    let late = awaited.iter().map(|it| (it.took.saturating_sub(it.left), stalls.during(it)));
    let most = late.clone().max().unwrap();
    let more = late.map(|(late, stalls)| late.saturating_sub(stalls)).max().unwrap();
    println!(
        "after the end of the lease at most {:.2?}, while the machine stood still for {:.2?}; \
         without such stalls {more:.2?}",
        most.0, most.1
    );
    assert!(awaited.len() * 10 >= changes.len() * 9, "{} of {}", awaited.len(), changes.len());
    assert!(more < MORE, "{more:?} after the end of the lease");
}
