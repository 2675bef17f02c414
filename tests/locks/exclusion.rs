//! Two holders never have the lock at the same time. Several processes with several threads run,
//! and a checker reads their records and the server's record.
//!
//! A run's history must have two properties:
//!
//! - *server*: the server grants the name only if the previous grant is released or has expired.
//! - *client*: the times that threads spend inside never overlap. A stay begins when "acquire" has
//!   returned, and ends when "release" is called, or at the deadline that the guard knows.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redlatch::{Client, ErrorKind, LockGuard, ReentrantLock, Taken};
use redlatch_testkit::{Job, Server, Worker};

const NAME: &str = "exclusive";
/// A lease that is short enough for a test to wait for its end.
const LEASE: Duration = Duration::from_millis(6 * TIME_UNIT.as_millis() as u64);

/// Returns the time in ns on the clock that measures leases, which is the same in all processes.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

// The contenders.

/// The threads' record. Each line is written at once, so that it survives a kill of the process.
#[derive(Clone)]
struct Diary(Arc<File>);

impl Diary {
    fn open(path: &str) -> Self {
        Self(Arc::new(OpenOptions::new().append(true).create(true).open(path).unwrap()))
    }

    fn write(&self, line: &str) {
        (&*self.0).write_all(line.as_bytes()).unwrap();
    }
}

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let [url, path, lease, threads, seed] = [0, 1, 2, 3, 4].map(|at| job.arg(at).to_owned());
    let lease = Duration::from_millis(lease.parse().unwrap());
    let client = Client::builder(&url).watchdog_timeout(lease).connect().unwrap();
    let diary = Diary::open(&path);
    let stop = Arc::new(AtomicBool::new(false));
    job.say("starts");
    let threads: Vec<_> = (0..threads.parse().unwrap())
        .map(|at: u64| {
            let contender = Contender {
                lock: client.reentrant_lock(NAME),
                lease,
                diary: diary.clone(),
                thread: format!("{}:{at}", std::process::id()),
                random: Random::of(seed.parse::<u64>().unwrap() * 31 + at * 17),
            };
            let stop = Arc::clone(&stop);
            spawn(move || contender.run(&stop))
        })
        .collect();
    let _ = job.wait_line();
    stop.store(true, Ordering::SeqCst);
    let grants: Vec<u64> = threads.into_iter().map(Running::join).collect();
    job.say(&format!("grants {grants:?}"));
    let _ = job.wait_line();
}

struct Contender {
    lock: ReentrantLock,
    lease: Duration,
    diary: Diary,
    thread: String,
    random: Random,
}

impl Contender {
    fn run(mut self, stop: &AtomicBool) -> u64 {
        let mut grants = 0;
        while !stop.load(Ordering::SeqCst) {
            let lock = match self.random.below(4) {
                0 => self.lock.with_lease(self.lease),
                _ => self.lock.clone(),
            };
            let guard = match self.random.below(6) {
                0 => lock.try_lock(),
                1 => {
                    let wait = Duration::from_millis(self.random.below(20));
                    lock.try_lock_for(wait).or_else(unanswered)
                }
                _ => lock.lock().map(Taken),
            };
            if let Taken(guard) = guard.expect("no fault of the server's here") {
                self.work(&lock, guard, &format!("{}:{grants}", self.thread.clone()));
                grants += 1;
            }
        }
        grants
    }

    fn work(&mut self, lock: &ReentrantLock, guard: LockGuard, id: &str) {
        // Compute the deadline before the guard is used, so that it is never later than the guard's
        // own deadline.
        let begin = now();
        let deadline = begin + u64::try_from(guard.remaining().as_nanos()).unwrap();
        self.diary.write(&format!("begin {id} {begin} {deadline}\n"));
        let inner = (self.random.below(4) == 0).then(|| lock.lock());
        let inner = inner.map(|inner| inner.expect("no fault of the server's here"));
        // The work takes microseconds, sometimes milliseconds, in which the process may be killed.
        if self.random.below(16) == 0 {
            thread::sleep(Duration::from_millis(self.random.below(8)));
        } else {
            let until = Instant::now() + Duration::from_micros(self.random.below(10));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        // Read the time before the call of `is_held`. So if `is_held` returns true, this time is
        // before the deadline.
        let end = now();
        let held = guard.is_held();
        // The lease of a process that was stopped, or that did not run on a busy machine, may be
        // over. No process may lose its hold before the deadline.
        let is_over = |now: u64| now >= deadline;
        assert!(held || is_over(now()), "lost before its deadline");
        self.diary.write(&format!("end {id} {end} {held}\n"));
        let unlocked = match self.random.below(4) {
            0 => {
                drop((guard, inner));
                Ok(())
            }
            1 => {
                drop(inner);
                guard.forget();
                lock.unlock()
            }
            _ => {
                drop(inner);
                guard.unlock()
            }
        };
        if let Err(error) = unlocked {
            let lost = matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::NotHeld);
            assert!(lost && is_over(now()), "{error}");
        }
    }
}

// The observers.

/// One thread's time inside the lock.
#[derive(Debug)]
struct Stay {
    /// The thread, for the message of a failed test.
    #[allow(dead_code)]
    who: String,
    begin: u64,
    /// The time at which release was called, the deadline came, or the process was killed.
    end: u64,
}

/// Returns the stays in a diary. `killed` has the times at which processes were killed.
fn stays(diary: &str, killed: &HashMap<u32, u64>) -> Vec<Stay> {
    let mut open: HashMap<&str, (u64, u64)> = HashMap::new();
    let mut stays = Vec::new();
    for line in diary.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["begin", id, begin, deadline] => {
                open.insert(id, (begin.parse().unwrap(), deadline.parse().unwrap()));
            }
            ["end", id, end, held] => {
                let (begin, deadline) = open.remove(id).expect("an end has a beginning");
                let end: u64 = end.parse().unwrap();
                // If the guard was still held at this time, the deadline was later.
                let end = if held == "true" { end } else { end.min(deadline) };
                stays.push(Stay { who: id.to_owned(), begin, end });
            }
            // A killed process's last line may be incomplete.
            _ => {}
        }
    }
    for (id, (begin, deadline)) in open {
        let process: u32 = id.split(':').next().unwrap().parse().unwrap();
        let killed = killed.get(&process).copied().unwrap_or(u64::MAX);
        stays.push(Stay { who: id.to_owned(), begin, end: begin.max(deadline.min(killed)) });
    }
    stays.sort_by_key(|stay| stay.begin);
    stays
}

/// Checks the client property.
fn check_stays(stays: &[Stay]) {
    let mut last: Option<&Stay> = None;
    for stay in stays {
        assert!(stay.end >= stay.begin || stay.end == 0, "{stay:?}");
        if let Some(last) = last {
            assert!(last.end <= stay.begin, "two are inside: {last:?} and {stay:?}");
        }
        if last.is_none_or(|last| stay.end > last.end) {
            last = Some(stay);
        }
    }
}

/// Records all commands that the server runs.
struct Monitor {
    server_url: String,
    thread: Running<Vec<String>>,
}

impl Monitor {
    fn start(server: &Server) -> Self {
        let mut connection = server.connection();
        let () = redis::cmd("MONITOR").query(&mut connection).unwrap();
        let thread = spawn(move || {
            let mut lines = Vec::new();
            loop {
                let line = match connection.recv_response().unwrap() {
                    redis::Value::SimpleString(line) => line,
                    other => panic!("{other:?}"),
                };
                if line.contains("the history ends") {
                    return lines;
                }
                if line.contains("lua]") {
                    lines.push(line);
                }
            }
        });
        Self { server_url: server.url(), thread }
    }

    /// Returns the actions of the scripts so far.
    fn stop(self) -> Vec<String> {
        let mut connection =
            redis::Client::open(self.server_url).unwrap().get_connection().unwrap();
        let () = redis::cmd("ECHO").arg("the history ends").query(&mut connection).unwrap();
        self.thread.join()
    }
}

/// Checks the server property in the server's own order. Returns the number of grants.
fn check_server(lines: &[String]) -> u64 {
    // The holder, and the end of its lease, in microseconds.
    let mut holder: Option<(String, u64)> = None;
    let mut grants = 0;
    for line in lines {
        let (time, rest) = line.split_once(' ').unwrap();
        let (seconds, micros) = time.split_once('.').unwrap();
        let time = seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap();
        let words: Vec<_> = rest.split("\"").skip(1).step_by(2).map(str::to_lowercase).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match *words {
            ["hset", NAME, owner, _count] => {
                if let Some((last, until)) = &holder
                    && last != owner
                {
                    // Redis counts whole milliseconds.
                    assert!(
                        time + 2_000 >= *until,
                        "{owner} is granted it while {last} has it until {until}: {line}"
                    );
                }
                if holder.as_ref().is_none_or(|(last, _)| last != owner) {
                    grants += 1;
                }
                holder = Some((owner.to_owned(), 0));
            }
            ["pexpire", NAME, lease] => {
                let (_, until) = holder.as_mut().expect("only what is held has an end");
                *until = time + lease.parse::<u64>().unwrap() * 1_000;
            }
            ["del", NAME] => holder = None,
            // If another owner has the lock, the command does nothing.
            ["hdel", NAME, owner] => holder = holder.filter(|(last, _)| last != owner),
            _ => {}
        }
    }
    grants
}

/// A run of several processes.
struct Run {
    server: Server,
    diary: PathBuf,
    role: &'static str,
    lease: Duration,
    seed: u64,
    monitor: Monitor,
    workers: Vec<Worker>,
    killed: HashMap<u32, u64>,
}

impl Run {
    fn start(role: &'static str, lease: Duration, processes: usize) -> Self {
        let server = server();
        // The record is in the folder of the executable, with all other files of the run.
        let diary = std::env::current_exe().unwrap().with_file_name(format!(
            "exclusion-{role}-{}-{}",
            std::process::id(),
            now()
        ));
        let monitor = Monitor::start(&server);
        let seed = Random::new().next() >> 16;
        let killed = HashMap::new();
        let workers = Vec::new();
        let mut run = Self { server, diary, role, lease, seed, monitor, workers, killed };
        for _ in 0..processes {
            run.add();
        }
        run
    }

    fn add(&mut self) {
        self.seed += 1;
        let args = [
            self.server.url(),
            self.diary.display().to_string(),
            self.lease.as_millis().to_string(),
            "4".to_owned(),
            self.seed.to_string(),
        ];
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut worker = Worker::spawn_test("exclusion::worker", self.role, &args);
        worker.expect_line("starts", TIMEOUT);
        self.workers.push(worker);
    }

    fn so_far(&self) -> String {
        fs::read_to_string(&self.diary).unwrap_or_default()
    }

    /// Waits until `more` further stays have begun.
    fn wait_stays(&self, more: usize) {
        let count = || self.so_far().lines().filter(|line| line.starts_with("begin")).count();
        let all = count() + more;
        // The run may be slow, but in each wait at least one further stay must begin.
        let mut so_far = count();
        while so_far < all {
            wait_until("another one is let in", TIMEOUT, || count() > so_far);
            so_far = count();
        }
    }

    /// Returns the worker that has the lock at this moment.
    fn wait_inside(&self) -> usize {
        let mut found = None;
        wait_until("somebody is inside", TIMEOUT, || {
            let diary = self.so_far();
            let last = diary.lines().last().unwrap_or_default();
            let process = last.strip_prefix("begin ").and_then(|rest| rest.split(':').next());
            let process = process.and_then(|process| process.parse::<u32>().ok());
            found = self.workers.iter().position(|worker| Some(worker.pid()) == process);
            found.is_some()
        });
        found.unwrap()
    }

    /// Whether this paused process was paused while it had the lock.
    fn is_inside(&self, process: u32) -> bool {
        // Other processes finish what they were doing.
        thread::sleep(TIME_UNIT / 10);
        let diary = self.so_far();
        let last = diary.lines().rfind(|line| line.starts_with("begin")).unwrap_or_default();
        let id = last.split(' ').nth(1).unwrap_or_default();
        id.starts_with(&format!("{process}:")) && !diary.contains(&format!("end {id} "))
    }

    /// Ends all processes and checks the history. Returns the stays.
    fn check(mut self) -> Vec<Stay> {
        for worker in &mut self.workers {
            worker.send_line("stop");
        }
        for worker in &mut self.workers {
            let grants = worker.expect_line("grants", TIMEOUT);
            println!("process {}: {grants}", worker.pid());
        }
        self.workers.clear();
        let stays = stays(&self.so_far(), &self.killed);
        check_stays(&stays);
        let grants = check_server(&self.monitor.stop());
        println!("{} stays, {grants} grants", stays.len());
        assert!(grants > 0 && grants <= stays.len() as u64 + self.killed.len() as u64 * 4 + 8);
        let _ = fs::remove_file(&self.diary);
        stays
    }
}

#[test]
fn threads_of_several_processes_are_never_inside_together() {
    let run = Run::start("contender", LONG_LEASE, 3);
    run.wait_stays(3_000);
    // The last threads may only just have begun.
    wait_until("each thread is let in", TIMEOUT, || {
        let diary = run.so_far();
        let stays = diary.lines().filter_map(|line| line.strip_prefix("begin "));
        let threads = stays.filter_map(|stay| stay.split(' ').next()?.rsplit_once(':'));
        threads.map(|(thread, _)| thread).collect::<HashSet<_>>().len() == 12
    });
    run.check();
}

#[test]
fn no_process_is_inside_before_a_killed_holders_lease_has_ended() {
    let mut run = Run::start("contender", LEASE, 3);
    let mut hits = 0;
    while hits < 3 {
        run.wait_stays(20);
        let at = run.wait_inside();
        let mut worker = run.workers.swap_remove(at);
        run.killed.insert(worker.pid(), now());
        worker.sigkill();
        hits += u32::from(run.is_inside(worker.pid()));
        run.add();
    }
    run.wait_stays(20);
    run.check();
}

#[test]
fn a_process_that_slept_past_its_lease_is_not_inside_any_more() {
    let mut run = Run::start("stopped", LEASE, 3);
    let mut hits = 0;
    while hits < 3 {
        run.wait_stays(20);
        let at = run.wait_inside();
        let pid = run.workers[at].pid();
        run.workers[at].sigstop();
        if run.is_inside(pid) {
            hits += 1;
            // The other processes take the lock, at the latest when the lease has ended.
            run.wait_stays(100);
            // Time must pass here: the lease is certainly over after this.
            thread::sleep(LEASE);
        }
        run.workers[at].sigcont();
    }
    run.wait_stays(20);
    run.check();
}

/// The checkers must find the errors for which they are made.
#[test]
fn the_checkers_find_two_holders_at_once() {
    let killed = HashMap::from([(7, 150)]);
    let fine = "begin 1:0:0 100 900\nend 1:0:0 110 true\nbegin 2:0:0 110 900\nend 2:0:0 120 true\n\
                begin 7:0:0 140 900\nbegin 1:0:1 160 200\nend 1:0:1 500 false\n\
                begin 2:0:1 210 900\nend 2:0:1 220 true\n";
    check_stays(&stays(fine, &killed));
    for wrong in [
        "begin 1:0:0 100 900\nbegin 2:0:0 105 900\nend 1:0:0 110 true\nend 2:0:0 120 true\n",
        "begin 1:0:0 100 900\nbegin 2:0:0 890 950\nend 2:0:0 900 true\nend 1:0:0 990 false\n",
        "begin 7:0:0 100 900\nbegin 1:0:0 140 900\nend 1:0:0 141 true\n",
        "begin 1:0:0 100 900\nend 1:0:0 500 true\nbegin 2:0:0 110 900\nend 2:0:0 120 true\n\
         begin 3:0:0 400 900\nend 3:0:0 410 true\n",
    ] {
        let seen = std::panic::catch_unwind(|| check_stays(&stays(wrong, &killed)));
        assert!(seen.is_err(), "{wrong}");
    }
    let line = |time: &str, what: &str| format!("10.{time} [0 lua] {what}");
    let taken = |time: &str, owner: &str| {
        [
            line(time, &format!("\"hset\" \"{NAME}\" \"{owner}\" \"1\"")),
            line(time, &format!("\"pexpire\" \"{NAME}\" \"100\"")),
        ]
    };
    let released = |time: &str| line(time, &format!("\"del\" \"{NAME}\""));
    let mut fine = Vec::from(taken("000000", "a:1"));
    fine.push(released("050000"));
    fine.extend(taken("060000", "b:1"));
    fine.extend(taken("160000", "c:1"));
    assert_eq!(check_server(&fine), 3);
    let wrong = [taken("000000", "a:1"), taken("050000", "b:1")].concat();
    assert!(std::panic::catch_unwind(|| check_server(&wrong)).is_err());
}
