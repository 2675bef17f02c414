//! Several processes during failovers.

use super::*;

/// Takes the lock again and again, and reports the times at which it had the lock, in microseconds.
#[test]
fn process() {
    let Some(job) = Job::from_env() else { return };
    let client = builder(job.arg(0)).connect().unwrap();
    let lock = client.reentrant_lock("contended");
    job.say("ready");
    let _go = job.wait_line();
    loop {
        let outcome = lock.lock().map(|guard| {
            let since = now();
            thread::sleep(Duration::from_millis(2));
            let until = now();
            (since, until, guard.unlock())
        });
        match outcome {
            Ok((since, until, Ok(()))) => job.say(&format!("had {since} {until} kept")),
            Ok((since, until, Err(error))) => {
                job.say(&format!("had {since} {until} lost {error:#}"));
            }
            Err(error) => job.say(&format!("failed {error:#}")),
        }
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// A period in which a process had the lock.
#[derive(Debug)]
struct Had {
    since: u128,
    until: u128,
    kept: bool,
}

/// The processes' reports.
struct Processes {
    workers: Vec<Worker>,
    had: Vec<Had>,
    failed: Vec<String>,
}

impl Processes {
    const COUNT: usize = 3;

    fn start(sentinels: &Sentinels) -> Self {
        let url = sentinels.url();
        let spawn = |_| Worker::spawn_test("sentinel::processes::process", "process", &[&url]);
        let mut workers: Vec<_> = (0..Self::COUNT).map(spawn).collect();
        for worker in &mut workers {
            worker.expect_line("ready", TIMEOUT);
        }
        workers.iter_mut().for_each(|worker| worker.send_line("go"));
        Self { workers, had: Vec::new(), failed: Vec::new() }
    }

    /// Reads reports until each process has had the lock after `time`. Returns the time at which
    /// the last process got it.
    fn wait_all_since(&mut self, time: u128) -> u128 {
        let mut first = [None; Self::COUNT];
        let until = Instant::now() + TIMEOUT * 2;
        while first.contains(&None) {
            assert!(Instant::now() < until, "{first:?} went on, and said {:?}", self.failed);
            for (worker, first) in self.workers.iter_mut().zip(&mut first) {
                while let Some(line) = worker.try_line(TIME_UNIT / 100) {
                    let words: Vec<_> = line.splitn(5, ' ').collect();
                    match words[..] {
                        ["had", since, till, how, ..] => {
                            let (since, till) = (since.parse().unwrap(), till.parse().unwrap());
                            if since > time {
                                first.get_or_insert(since);
                            }
                            let kept = how == "kept";
                            self.had.push(Had { since, until: till, kept });
                        }
                        _ => self.failed.push(line),
                    }
                    if first.is_some() {
                        break;
                    }
                }
            }
        }
        first.into_iter().flatten().max().unwrap()
    }

    /// Asserts that no two processes had the lock at the same time. Periods whose guard reported a
    /// loss are left out.
    fn check(&mut self) {
        self.had.sort_by_key(|had| had.since);
        let kept: Vec<_> = self.had.iter().filter(|had| had.kept).collect();
        for pair in kept.windows(2) {
            assert!(pair[0].until <= pair[1].since, "two had it: {pair:?}");
        }
        assert_eq!(self.failed, Vec::<String>::new(), "a wait failed");
    }
}

/// Makes a failover. Returns the time that the Sentinels took, and the further time until all
/// processes have had the lock again.
fn fail_over(sentinels: &Sentinels, processes: &mut Processes, end: End) -> [Duration; 2] {
    processes.wait_all_since(now());
    let old = sentinels.master();
    let began = now();
    let (begun, switched) = end.of(sentinels);
    let theirs = switched - begun;
    // If a process had the lock before the switch, it had it from the old master.
    let from = if matches!(end, End::Replaced) { began + theirs.as_micros() } else { began };
    let all = processes.wait_all_since(from);
    let ours = Duration::from_micros(u64::try_from(all.saturating_sub(began)).unwrap());
    if matches!(end, End::Stopped) {
        old.resume();
    }
    [theirs, ours.saturating_sub(theirs)]
}

#[test]
fn waiting_processes_go_on_and_no_two_keep_the_lock() {
    let sentinels = sentinels();
    let mut processes = Processes::start(&sentinels);
    for end in [End::Killed, End::Replaced] {
        let old = sentinels.master().port();
        let [theirs, later] = fail_over(&sentinels, &mut processes, end);
        println!("{end:?}: the Sentinels took {theirs:?}, all went on {later:?} later");
        let old = sentinels.servers().iter().find(|server| server.port() == old).unwrap();
        sentinels.revive(old);
    }
    processes.check();
}

/// `REDLATCH_SOAK=600 cargo test --test faults failovers` runs failovers for 600 seconds.
#[test]
fn failovers_again_and_again() {
    let Some(seconds) = env::var("REDLATCH_SOAK").ok().and_then(|it| it.parse().ok()) else {
        return;
    };
    let sentinels = started(Sentinels::builder());
    let mut processes = Processes::start(&sentinels);
    let begun = Instant::now();
    let mut later = Vec::new();
    for end in [End::Killed, End::Stopped, End::Replaced].into_iter().cycle() {
        let old = sentinels.master().port();
        let [theirs, ours] = fail_over(&sentinels, &mut processes, end);
        println!("{end:?}: the Sentinels took {theirs:?}, all went on {ours:?} later");
        later.push(ours);
        let old = sentinels.servers().iter().find(|server| server.port() == old).unwrap();
        sentinels.revive(old);
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
    later.sort();
    println!(
        "{} failovers: median {:?}, longest {:?}; lost {}, {} waits failed: {:?}",
        later.len(),
        later[later.len() / 2],
        later[later.len() - 1],
        processes.had.iter().filter(|had| !had.kept).count(),
        processes.failed.len(),
        processes.failed
    );
    processes.check();
}
