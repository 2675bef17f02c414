//! Several processes that use one cluster.

use super::*;

/// Holds a lock, waits for another lock in its slot, and reports the number of its threads.
#[test]
fn follower() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0)).watchdog_timeout(SHORT_LEASE).connect().unwrap();
    let guard = client.reentrant_lock("{left}:held").lock().unwrap();
    let waited = client.reentrant_lock("{left}:waited");
    let waiting = spawn(move || waited.lock().unwrap().unlock().unwrap());
    job.say("ready");
    while job.wait_line() == "threads" {
        // Thread names are cut after 15 characters.
        let is_one = |name: &&String| ["redlatch-renew", "redlatch-listen"].contains(&&***name);
        job.say(&format!(
            "threads {}",
            crate::common::thread_names().iter().filter(is_one).count()
        ));
    }
    waiting.join();
    guard.unlock().unwrap();
    job.done();
}

#[test]
fn nothing_stays_at_a_server_that_has_lost_its_slots() {
    let cluster = with_replicas();
    let slot = cluster.slot("{left}");
    let old = cluster.owner(slot);
    let others = client(&cluster);
    let held = others.reentrant_lock("{left}:waited").lock_owned().unwrap();
    let mut follower =
        Worker::spawn_test("cluster::processes::follower", "follower", &[&cluster.url()]);
    follower.expect_line("ready", TIMEOUT);
    let has = |server: &Server, kind: &str| {
        let list =
            redis::cmd("CLIENT").arg(&["LIST", "TYPE", kind]).query(&mut server.connection());
        let list: String = list.unwrap();
        list.lines().count()
    };
    wait_until("it listens", TIMEOUT, || has(old, "pubsub") > 0);
    let mut threads = || -> usize {
        follower.send_line("threads");
        follower.expect_line("threads", TIMEOUT).parse().unwrap()
    };
    wait_until("one renews, one listens", TIMEOUT, || threads() == 2);
    wait_until("both holds are tracked", TIMEOUT, || tracked(old) == 2);
    let new = cluster.take_over(slot);
    wait_until("it listens at the new master", TIMEOUT, || has(new, "pubsub") > 0);
    wait_until("the old one's threads end", TIMEOUT, || threads() == 2);
    let asked = others.reentrant_lock("{left}:waited");
    wait_until("nobody is connected there but this test", TIMEOUT, || {
        // Until its next renewal, a client that sends no request does not notice that the slot
        // moved, because no key has changed: the new master has all keys of the old master.
        assert!(asked.is_locked().unwrap());
        has(old, "pubsub") == 0 && has(old, "normal") == 1
    });
    held.unlock().unwrap();
    follower.send_line("end");
    assert!(follower.wait_exit(TIMEOUT).success());
}

/// The number of processes. Each process has a thread for each kind of lock in the slot.
const PROCESSES: usize = 3;
const KINDS: [&str; 4] = ["plain", "fair", "fenced", "written"];

/// Takes locks of one slot again and again. A separate server counts the processes that hold a
/// lock.
#[test]
fn process() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0))
        .watchdog_timeout(LONG_LEASE)
        .response_timeout(TIME_UNIT * 20)
        .connect();
    let client = client.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU32::new(0));
    let threads = KINDS.map(|kind| {
        let name = format!("{{contended}}:{kind}");
        let lock: Box<dyn Lock + Send> = match kind {
            "plain" => Box::new(client.reentrant_lock(&name)),
            "fair" => Box::new(client.fair_lock(&name)),
            "fenced" => Box::new(client.fenced_lock(&name)),
            _ => Box::new(client.read_write_lock(&name).writer().clone()),
        };
        let mut witness = redis::Client::open(job.arg(1)).unwrap().get_connection().unwrap();
        let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
        spawn(move || {
            let (mut longest, mut said) = (Duration::ZERO, Vec::new());
            while !over.load(Ordering::SeqCst) {
                let begun = Instant::now();
                let guard = match lock.lock() {
                    Ok(guard) => guard,
                    Err(error) => {
                        said.push(format!("{kind} failed: {error:#}"));
                        continue;
                    }
                };
                longest = longest.max(begun.elapsed());
                let inside: i64 = witness.incr(kind, 1).unwrap();
                if inside != 1 {
                    said.push(format!("{kind}: two hold it together"));
                }
                thread::sleep(Duration::from_micros(300));
                let _: i64 = witness.decr(kind, 1).unwrap();
                if let Err(error) = guard.unlock() {
                    said.push(format!("{kind} lost: {error:#}"));
                }
                turns.fetch_add(1, Ordering::SeqCst);
            }
            (longest, said)
        })
    });
    job.say("ready");
    while job.wait_line() == "turns" {
        job.say(&format!("turns {}", turns.load(Ordering::SeqCst)));
    }
    over.store(true, Ordering::SeqCst);
    let heard = threads.map(crate::common::Running::join);
    for complaint in heard.iter().flat_map(|(_, said)| said) {
        job.say(complaint);
    }
    let longest = heard.map(|(longest, _)| longest.as_micros());
    job.say(&format!("longest {longest:?}"));
    job.done();
}

/// The processes, which work while slots move.
struct Processes {
    workers: Vec<Worker>,
    /// The server that counts the holders, which is not a part of the cluster.
    _witness: Server,
}

impl Processes {
    fn start(url: &str) -> Self {
        let witness = unbounded_server();
        let spawn = |_| {
            Worker::spawn_test("cluster::processes::process", "process", &[url, &witness.url()])
        };
        let mut workers: Vec<_> = (0..PROCESSES).map(spawn).collect();
        for worker in &mut workers {
            worker.expect_line("ready", TIMEOUT);
        }
        Self { workers, _witness: witness }
    }

    fn turns(&mut self) -> Vec<u32> {
        let turns = |worker: &mut Worker| {
            worker.send_line("turns");
            let said = worker.expect_line("turns", TIMEOUT);
            said.trim_start_matches("turns").trim().parse().unwrap()
        };
        self.workers.iter_mut().map(turns).collect()
    }

    /// Waits for this number of further turns of each process.
    fn go_on(&mut self, turns: u32) {
        let before = self.turns();
        wait_until("all processes go on", TIMEOUT, || {
            self.turns().iter().zip(&before).all(|(now, before)| *now >= before + turns)
        });
    }

    /// Ends the processes, and returns their reports. Each report ends with the longest waits.
    fn end(mut self) -> Vec<String> {
        let mut said = Vec::new();
        for worker in &mut self.workers {
            worker.send_line("end");
            loop {
                let line = worker.try_line(TIMEOUT).unwrap();
                let is_last = line.starts_with("longest");
                said.push(line);
                if is_last {
                    break;
                }
            }
        }
        said
    }
}

/// Moves the slot of contended locks several times, every second time with pauses.
fn reshard(cluster: &Cluster, processes: &mut Processes, times: usize) {
    let slot = cluster.slot("contended");
    for round in 0..times {
        let to = cluster.another(slot);
        if round % 2 == 0 {
            cluster.move_slot(slot, to);
        } else {
            // While the keys are on two servers, no process can take a lock.
            cluster.begin_move(slot, to);
            thread::sleep(TIME_UNIT / 5);
            cluster.move_keys(slot, to);
            thread::sleep(TIME_UNIT / 5);
            cluster.end_move(slot, to);
        }
        processes.go_on(2);
    }
}

#[test]
fn processes_follow_a_slot_that_moves_and_no_two_hold_a_lock() {
    let cluster = cluster();
    let mut processes = Processes::start(&cluster.url());
    processes.go_on(5);
    reshard(&cluster, &mut processes, 6);
    let said = processes.end();
    println!("{said:#?}");
    assert!(said.iter().all(|line| line.starts_with("longest")), "{said:#?}");
}

#[test]
fn a_slot_moves_again_and_again() {
    let Some(seconds) = env::var("REDLATCH_SOAK").ok().and_then(|it| it.parse().ok()) else {
        return;
    };
    let cluster = Cluster::start().unwrap();
    let mut processes = Processes::start(&cluster.url());
    let (begun, mut moves) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(seconds) {
        reshard(&cluster, &mut processes, 10);
        moves += 10;
    }
    let turns: u32 = processes.turns().iter().sum();
    let said = processes.end();
    println!("{moves} moves, {turns} turns; longest waits in us, of {KINDS:?}: {said:#?}");
    assert!(said.iter().all(|line| line.starts_with("longest")), "{said:#?}");
}
