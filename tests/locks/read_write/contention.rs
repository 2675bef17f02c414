//! Readers and writers that contend.

use super::*;

/// The entry point of the worker processes, which run this executable with only this test. The
/// workers' threads read and write, and record each hold.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let [url, path, seed] = [0, 1, 2].map(|at| job.arg(at).to_owned());
    let client = Client::builder(&url).watchdog_timeout(8 * TIME_UNIT).connect().unwrap();
    let diary = Arc::new(OpenOptions::new().append(true).create(true).open(path).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    job.say("starts");
    let threads: Vec<_> = (0..3)
        .map(|at: u64| {
            let (lock, diary, stop) =
                (client.read_write_lock("contended"), Arc::clone(&diary), Arc::clone(&stop));
            let mut random = Random::of(seed.parse::<u64>().unwrap() * 31 + at * 17);
            spawn(move || {
                let mut turns = 0;
                while !stop.load(Ordering::SeqCst) {
                    let writes = random.below(4) == 0;
                    let side: &dyn Lock = if writes { lock.writer() } else { lock.reader() };
                    let guard = match random.below(6) {
                        0 => side.try_lock().unwrap().into_option(),
                        1 => {
                            if_answered(side.try_lock_for(Duration::from_millis(random.below(20))))
                        }
                        _ => Some(side.lock().unwrap()),
                    };
                    let Some(guard) = guard else { continue };
                    turns += 1;
                    let id = format!("{}:{at}:{turns}", std::process::id());
                    stay(&diary, &guard, writes, &id, &mut random);
                    // The writer sometimes downgrades to reading.
                    let down = writes && random.below(3) == 0;
                    let reading = down.then(|| lock.reader().lock()).and_then(Result::ok);
                    drop(guard);
                    if let Some(reading) = reading {
                        stay(&diary, &reading, false, &format!("{id}d"), &mut random);
                    }
                }
                turns
            })
        })
        .collect();
    let _ = job.wait_line();
    stop.store(true, Ordering::SeqCst);
    let turns: Vec<u64> = threads.into_iter().map(Running::join).collect();
    job.say(&format!("turns {turns:?}"));
    let _ = job.wait_line();
}

/// Returns the time in ns on the clock that measures leases, which is the same in all processes.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Records a stay. Each line is written at once, so that it survives a kill of the process.
fn stay(mut diary: &fs::File, guard: &LockGuard, writes: bool, id: &str, random: &mut Random) {
    let begin = now();
    let deadline = begin + u64::try_from(guard.remaining().as_nanos()).unwrap();
    diary.write_all(format!("begin {id} {begin} {deadline} {writes}\n").as_bytes()).unwrap();
    if random.below(16) == 0 {
        thread::sleep(Duration::from_millis(random.below(8)));
    }
    let end = now();
    let held = guard.is_held();
    diary.write_all(format!("end {id} {end} {held}\n").as_bytes()).unwrap();
}

#[derive(Debug)]
struct Stay {
    /// The thread, for the message of a failed test.
    #[allow(dead_code)]
    id: String,
    begin: u64,
    end: u64,
    writes: bool,
}

/// Returns the stays in the threads' record. A killed thread was inside until its death or its
/// deadline.
fn stays(diary: &str, killed: &HashMap<u32, u64>) -> Vec<Stay> {
    let mut open: HashMap<&str, (u64, u64, bool)> = HashMap::new();
    let mut stays = Vec::new();
    for line in diary.lines() {
        match *line.split(' ').collect::<Vec<_>>() {
            ["begin", id, begin, deadline, writes] => {
                let stay = (begin.parse().unwrap(), deadline.parse().unwrap(), writes == "true");
                open.insert(id, stay);
            }
            ["end", id, end, held] => {
                let (begin, deadline, writes) = open.remove(id).expect("an end has a beginning");
                let end: u64 = end.parse().unwrap();
                let end = if held == "true" { end } else { end.min(deadline) };
                stays.push(Stay { id: id.to_owned(), begin, end, writes });
            }
            _ => {}
        }
    }
    for (id, (begin, deadline, writes)) in open {
        let process: u32 = id.split(':').next().unwrap().parse().unwrap();
        let killed = killed.get(&process).copied().unwrap_or(u64::MAX);
        let end = begin.max(deadline.min(killed));
        stays.push(Stay { id: id.to_owned(), begin, end, writes });
    }
    stays.sort_by_key(|stay| stay.begin);
    stays
}

/// Asserts that no other thread is inside with a writer.
fn check_stays(stays: &[Stay]) {
    let (mut last, mut writer): (Option<&Stay>, Option<&Stay>) = (None, None);
    for stay in stays {
        let before = if stay.writes { last } else { writer };
        if let Some(before) = before.filter(|before| before.end > stay.begin) {
            panic!("two are inside: {before:?} and {stay:?}");
        }
        if last.is_none_or(|last| stay.end > last.end) {
            last = Some(stay);
        }
        if stay.writes && writer.is_none_or(|writer| stay.end > writer.end) {
            writer = Some(stay);
        }
    }
}

#[test]
fn a_writer_is_alone_while_processes_are_killed_and_stopped() {
    let server = server();
    let diary = std::env::current_exe().unwrap().with_file_name(format!(
        "read-write-{}-{}",
        std::process::id(),
        now()
    ));
    let mut random = Random::new();
    let start = |seed: u64| {
        let args = [server.url(), diary.display().to_string(), seed.to_string()];
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut worker = Worker::spawn_test("read_write::contention::worker", "contender", &args);
        worker.expect_line("starts", TIMEOUT);
        worker
    };
    let mut killed = HashMap::new();
    let mut workers: Vec<_> = (0..4).map(|_| start(random.next() >> 16)).collect();
    for round in 0..8 {
        thread::sleep(4 * TIME_UNIT);
        let mut worker = workers.remove(0);
        if round % 2 == 0 {
            let id = worker.pid();
            worker.sigkill();
            killed.insert(id, now());
            workers.push(start(random.next() >> 16));
        } else {
            worker.sigstop();
            thread::sleep(if round == 1 { 25 * TIME_UNIT } else { TIME_UNIT });
            worker.sigcont();
            workers.push(worker);
        }
    }
    wait_until("there were many turns", TIMEOUT, || {
        let so_far = fs::read_to_string(&diary).unwrap();
        so_far.lines().filter(|line| line.starts_with("begin")).count() > 200
    });
    for mut worker in workers {
        worker.send_line("");
        println!("turns {}", worker.expect_line("turns", TIMEOUT));
        worker.send_line("");
        worker.wait_exit(TIMEOUT);
    }
    let said = fs::read_to_string(&diary).unwrap();
    fs::remove_file(&diary).unwrap();
    let stays = stays(&said, &killed);
    assert!(stays.iter().any(|stay| stay.writes) && stays.iter().any(|stay| !stay.writes));
    check_stays(&stays);
    // The holds of the killed processes end.
    wait_left(&server, "contended");
}

#[test]
fn a_writer_among_many_readers_gets_its_turns() {
    let server = server();
    let stop = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicI64::new(0));
    let inside = Arc::new(AtomicI64::new(0));
    let readers: Vec<_> = (0..3)
        .flat_map(|_| {
            let lock = client(&server).read_write_lock("starved");
            (0..3).map(move |_| lock.clone())
        })
        .map(|lock| {
            let (stop, reads, inside) =
                (Arc::clone(&stop), Arc::clone(&reads), Arc::clone(&inside));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.reader().lock().unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "beside a writer");
                    reads.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_micros(200));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    let lock = client(&server).read_write_lock("starved");
    for _ in 0..30 {
        let before = reads.load(Ordering::SeqCst);
        wait_until("others read", TIMEOUT, || reads.load(Ordering::SeqCst) > before + 5);
        let guard =
            lock.writer().try_lock_for(TIMEOUT).unwrap().into_option().expect("it gets its turn");
        assert_eq!(inside.fetch_sub(1_000, Ordering::SeqCst), 0, "beside readers");
        thread::sleep(Duration::from_micros(200));
        inside.fetch_add(1_000, Ordering::SeqCst);
        guard.unlock().unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join());
    wait_left(&server, "starved");
}
