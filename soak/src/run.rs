//! A run consists of rounds. Each round has a phase with faults (the storm) and a phase without
//! faults (the calm), and is checked at its end.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::LockGuard;
use redlatch_testkit::{Server, Worker};
use tempfile::TempDir;

use crate::check::{self, Findings, Violation};
use crate::clock::now;
use crate::history::{Round, parse};
use crate::nemesis::{self, Nemesis};
use crate::options::Options;
use crate::report;
use crate::store::{Store, Written};
use crate::worker::{self, Task};
use crate::world::{World, keys};

/// The time that a worker may take to end while there is no fault.
const END: Duration = Duration::from_secs(40);
/// The time that the last call for a fair lock may take. The longest lease of the work is 20 s.
const LAST_CALL: Duration = Duration::from_secs(20);

/// A process and its task.
pub(crate) struct Member {
    pub(crate) number: u32,
    pub(crate) worker: Worker,
    log: PathBuf,
}

/// Whether a process runs the other build, if there is one.
pub(crate) fn is_other_build(number: u32) -> bool {
    number / 2 % 2 == 1
}

/// The processes of a round.
pub(crate) struct Crew<'a> {
    pub(crate) members: Vec<Member>,
    options: &'a Options,
    world: &'a World,
    store: &'a Server,
    folder: &'a TempDir,
    prefix: &'a str,
    /// The killed processes, each with its file and the time of its death.
    dead: Vec<(u32, PathBuf, u64)>,
    next: u32,
}

impl Crew<'_> {
    fn hire(&mut self) -> Member {
        let number = self.next;
        self.next += 1;
        let log = self.folder.path().join(format!("{}{number}", self.prefix));
        let task = Task {
            url: self.world.url(number),
            store: self.store.url(),
            log: log.display().to_string(),
            prefix: self.prefix.to_owned(),
            seed: self.options.seed.wrapping_mul(10_007).wrapping_add(number.into()),
            threads: self.options.threads,
            only: self.options.only.clone(),
        };
        let args = task.args();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        // The processes work in pairs, because every second process is behind the faulty network.
        let worker = match &self.options.other_worker {
            Some(exe) if is_other_build(number) => Worker::spawn_build(exe, "worker", &args),
            _ => Worker::spawn("worker", &args),
        };
        Member { number, worker, log }
    }

    /// Kills a process, and starts another process in its place.
    pub(crate) fn replace(&mut self, at: usize) {
        let killed = now();
        self.members[at].worker.sigkill();
        let new = self.hire();
        let old = std::mem::replace(&mut self.members[at], new);
        self.dead.push((old.number, old.log, killed));
    }

    /// Ends all threads, and reads the files of the processes.
    fn finish(mut self, found: &mut Findings) -> Result<Round, String> {
        let mut round = Round::default();
        for member in &mut self.members {
            member.worker.send_line("end");
        }
        let until = Instant::now() + END;
        for mut member in self.members {
            let mut killed = None;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match member.worker.try_line(left) {
                    Some(line) if line == "done" => break,
                    Some(_) => {}
                    None => {
                        found.violations.push(Violation {
                            check: "ends",
                            name: self.prefix.to_owned(),
                            from: now(),
                            to: now(),
                            text: format!("process {} has not ended in {END:?}", member.number),
                        });
                        killed = Some(now());
                        break;
                    }
                }
            }
            member.worker.sigkill();
            self.dead.push((member.number, member.log, killed.unwrap_or(u64::MAX)));
        }
        for (number, log, killed) in self.dead {
            // A process that was killed at once has no file.
            let text = fs::read_to_string(&log).unwrap_or_default();
            let killed = (killed != u64::MAX).then_some(killed);
            round.processes.push(parse(number, &text, killed)?);
            let _ = fs::remove_file(log);
        }
        Ok(round)
    }
}

/// The findings of a whole run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) found: Findings,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) lost_fenced: u64,
    pub(crate) lost_unfenced: u64,
    /// The number of late writes to the store. Each late write was made beside a script of its
    /// guard.
    pub(crate) late_plain: u64,
    /// The number of plain writes to the store that overwrote the count of another write.
    pub(crate) lost_plain: u64,
    pub(crate) elapsed: Duration,
    pub(crate) version: String,
    /// The library's commit at the beginning of the run.
    pub(crate) commit: String,
}

/// Runs rounds until the time is over. If the options say so, stops after the first violation.
pub(crate) fn run(options: &Options) -> Result<Outcome, String> {
    let world = World::start(options.topology).map_err(|error| error.to_string())?;
    let store = Server::start().map_err(|error| error.to_string())?;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let (version, commit) = (world.version(), report::commit());
    let mut all = Outcome { version, commit, ..Outcome::default() };
    let mut before: Option<String> = None;
    let mut next = 1;
    for number in 1.. {
        let prefix = format!("r{number}-");
        let crew = Crew {
            members: Vec::new(),
            options,
            world: &world,
            store: &store,
            folder: &folder,
            prefix: &prefix,
            dead: Vec::new(),
            next,
        };
        let mut found = Findings::default();
        let (round, last) = one_round(crew, number, &mut found)?;
        next = last;
        let mut checked = check::check(&round);
        found.add(&checked);
        if let Some(export) = &options.export {
            report::export(export, &round)
                .map_err(|error| format!("{}: {error}", export.display()))?;
        }
        // By now the leases of the previous round have ended.
        if let Some(before) = before.replace(prefix.clone()) {
            left_over(&world, &before, &mut found);
        }
        let mut reader = Store::connect(&store.url()).map_err(|error| error.to_string())?;
        let written = reader.written(&prefix).map_err(|error| error.to_string())?;
        let forgotten = check::forgotten(&round);
        let [fenced, unfenced] = written;
        let lost = |(_, values): &Written| check::lost_writes(values);
        let judged = fenced.iter().filter(|(name, _)| !forgotten.contains(name));
        let (fenced, unfenced): (u64, u64) =
            (judged.map(lost).sum(), unfenced.iter().map(lost).sum());
        if fenced > 0 {
            let (name, text) = (prefix.clone(), format!("{fenced} accepted writes were lost"));
            found.violations.push(Violation { check: "fenced", name, from: 0, to: now(), text });
        }
        all.lost_fenced += fenced;
        all.lost_unfenced += unfenced;
        let mut late = |what| reader.late(&prefix, what).map_err(|error| error.to_string());
        all.late_plain += late("late")?;
        all.lost_plain += late("lost")?;
        for fault in &round.faults {
            *all.faults.entry(fault.kind.clone()).or_default() += 1;
        }
        all.elapsed = begun.elapsed();
        all.found.add(&found);
        report::progress(number, &all, &found);
        checked.violations.clone_from(&found.violations);
        if !found.violations.is_empty() {
            let page = report::keep(options, &all, number, &round, &checked);
            page.map_err(|error| format!("the history is not kept: {error}"))?;
        }
        // The canary needs enough threads that hold permits at the same time, which depends on
        // chance.
        let stops = match options.canary {
            true => nemesis::PLANTED.iter().all(|(check, name)| all.found.has(check, name)),
            false => options.until_violation && !all.found.violations.is_empty(),
        };
        if stops || all.elapsed.as_secs_f64() >= options.minutes * 60.0 {
            break;
        }
    }
    if let Some(before) = before {
        thread::sleep(Duration::from_secs(4));
        let mut found = Findings::default();
        left_over(&world, &before, &mut found);
        for violation in &found.violations {
            println!("{}: {}", violation.check, violation.text);
        }
        all.found.add(&found);
    }
    Ok(all)
}

/// Ends the threads that watch a round, even after a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn one_round(
    mut crew: Crew<'_>,
    number: u64,
    found: &mut Findings,
) -> Result<(Round, u32), String> {
    let options = crew.options;
    for _ in 0..options.processes {
        let member = crew.hire();
        crew.members.push(member);
    }
    for member in &mut crew.members {
        member.worker.expect_line("ready", Duration::from_secs(30));
    }
    let storm = Instant::now() + options.storm;
    let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(number);
    let (world, prefix, folder) = (crew.world, crew.prefix, crew.folder);
    let (only, faults) = (&*options.faults, Vec::new().into());
    let nemesis = Nemesis { world, prefix, only, faults, until: storm, seed };
    let ended = AtomicBool::new(false);
    let (mut round, next) = thread::scope(|scope| {
        let _ends = Ends(&ended);
        let _watch = scope.spawn(|| nemesis.watch(&ended));
        let _pulse = scope.spawn(|| nemesis.pulse(folder.path(), &ended));
        if options.canary {
            world.masters().iter().for_each(|server| nemesis::plant(server, prefix, storm));
        } else {
            nemesis.rage(&mut crew);
        }
        thread::sleep(options.calm);
        let next = crew.next;
        Ok::<_, String>((crew.finish(found)?, next))
    })?;
    round.faults = nemesis.faults.into_inner().unwrap_or_default();
    round.faults.sort_by_key(|fault| fault.from);
    Ok((round, next))
}

/// Whether a lock may outlast its round because its holder took it for longer.
fn is_kept(key: &str) -> bool {
    ["least-", "once-", "left-", "{several}-"].iter().any(|it| key.contains(it))
}

/// Takes and releases each fair lock of a round that still has a queue. A killed waiter's entry has
/// no time to live. Only a later call for the same name removes the entry, and the workers use some
/// names for a few seconds only.
fn call_queued(world: &World, prefix: &str, found: &mut Findings) {
    let queued = |(key, lasts): (String, i64)| {
        let name = key.strip_prefix("redisson_lock_queue:{")?.strip_suffix('}')?;
        (lasts == -1 && name.starts_with(prefix)).then(|| name.to_owned())
    };
    let all = world.masters().into_iter().flat_map(|it| keys(it, prefix).unwrap_or_default());
    for name in all.filter_map(queued) {
        let (begun, until) = (now(), Instant::now() + LAST_CALL);
        let called = loop {
            let left = until.saturating_duration_since(Instant::now());
            let called = worker::client(&world.url(0)).connect_lazy().and_then(|client| {
                let taken = client.fair_lock(&name).try_lock_for(left);
                let called =
                    taken.and_then(|it| it.into_option().map(LockGuard::unlock).transpose());
                client.shutdown();
                called
            });
            if matches!(called, Ok(Some(()))) || left.is_zero() {
                break called;
            }
            thread::sleep(Duration::from_millis(100));
        };
        if !matches!(called, Ok(Some(()))) {
            let text = format!("{name} has a queue and was not taken in {LAST_CALL:?}: {called:?}");
            let (check, from, to) = ("left over", begun, now());
            found.violations.push(Violation { check, name, from, to, text });
        }
        found.count("fair locks that were called once more", 1);
    }
}

/// Checks that a round leaves only permits, counts, tokens, and keys that expire.
fn left_over(world: &World, prefix: &str, found: &mut Findings) {
    call_queued(world, prefix, found);
    for server in world.masters() {
        // If a server has just failed, the next round checks it.
        for (key, lasts) in keys(server, prefix).unwrap_or_default() {
            let stays = [
                "semaphore-",
                "expirable-",
                "latch-",
                "barrier-",
                "redisson_lock_token",
                // A killed leader leaves this key.
                "redlatch_leader",
            ];
            let may_stay = stays.iter().any(|it| key.contains(it));
            let is_lock = key.starts_with(prefix) && !may_stay && !is_kept(&key) && lasts > 0;
            if is_lock || lasts == -1 && !may_stay {
                found.violations.push(Violation {
                    check: "left over",
                    name: key.clone(),
                    from: now(),
                    to: now(),
                    text: format!("{key} is still there, for {lasts} ms"),
                });
            }
            found.count("keys that go by themselves", u64::from(lasts > 0));
        }
    }
}
