//! Processes that are paused, or cut off from their network, past the end of their leases, and then
//! write. The server logs two kinds of writes: plain writes, and writes in a script of the guard.
//! After a pause, a process usually notices its loss before it sends a script. If the network was
//! paused, a script may already be on its way, and only the server can refuse it. To set the number
//! of pauses, run `REDLATCH_STOPS=1000 cargo test --test locks stops -- --nocapture`.

use super::*;
use redlatch_testkit::{Job, Worker};

const LEASE: Duration = TIME_UNIT;
/// The number of pauses if the variable is not set.
const STOPS: usize = 40;
/// The number of pairs of processes. Each pair has its own name.
const PAIRS: usize = 4;

/// The entry point of the worker processes, which run this executable with only this test. A worker
/// takes the lock again and again with calls that do not wait, because a grant by message has a
/// longer lease.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let mut redis = redis::Client::open(job.arg(0)).unwrap().get_connection().unwrap();
    let lock = client.reentrant_lock(job.arg(1)).with_lease(LEASE);
    let (log, append) = (log(job.arg(1)), Script::new("redis.call('rpush', KEYS[1], ARGV[1])"));
    let mut random = Random::new();
    job.say("ready");
    loop {
        let Some(guard) = lock.try_lock().ok().and_then(Attempt::into_option) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let owner = guard.owner().unwrap();
        let write =
            |word: &str| guard.eval(&append, &[&log], &[format!("{word} {owner}").as_bytes()]);
        if write("begins").is_err() {
            continue;
        }
        for _ in 0..5 {
            if guard.check(LEASE / 10).is_err() {
                break;
            }
            // The guard was just checked. Sleep before the write.
            thread::sleep(Duration::from_micros(random.below(1_000)));
            let _: i64 = redis.rpush(&log, format!("plain {owner}")).unwrap();
            if write("fenced").is_err() {
                break;
            }
        }
    }
}

fn log(name: &str) -> String {
    format!("log:{name}")
}

/// Pauses two processes or their networks in turn, at random points. Returns the log.
fn stop(server: &Server, name: &str, stops: usize) -> Vec<String> {
    let mut workers = [(); 2].map(|()| {
        let network = Proxy::before(server);
        let args = [&*network.url(), name];
        (Worker::spawn_test("eval::stops::worker", "stopped", &args), network)
    });
    for (worker, _) in &mut workers {
        let _ready = worker.expect_line("ready", TIMEOUT);
    }
    let mut random = Random::new();
    for at in 0..stops {
        thread::sleep(Duration::from_micros(random.below(15_000)));
        let (worker, network) = &mut workers[at % 2];
        let is_process = random.below(2) == 0;
        if is_process {
            worker.sigstop();
        } else {
            network.freeze();
        }
        thread::sleep(LEASE + LEASE / 2);
        if is_process { worker.sigcont() } else { network.thaw() }
    }
    // The process that was paused last may still write during this time.
    thread::sleep(LEASE);
    drop(workers);
    server.connection().lrange(log(name), 0, -1).unwrap()
}

#[test]
fn a_process_that_was_stopped_past_its_lease_writes_late_only_without_a_script() {
    let server = unbounded_server();
    let stops = std::env::var("REDLATCH_STOPS").map_or(STOPS, |stops| stops.parse().unwrap());
    let logs: Vec<_> = thread::scope(|scope| {
        let stopping: Vec<_> = (0..PAIRS)
            .map(|pair| {
                let (server, name) = (&server, format!("stopped{pair}"));
                scope.spawn(move || stop(server, &name, stops.div_ceil(PAIRS)))
            })
            .collect();
        stopping.into_iter().map(|stopped| stopped.join().unwrap()).collect()
    });
    // A write is late if it was accepted after another owner's grant.
    let (mut all, mut late) = ([0; 2], [0; 2]);
    for log in logs {
        let mut present = String::new();
        for line in log {
            let (word, owner) = line.split_once(' ').unwrap();
            match word {
                "begins" => owner.clone_into(&mut present),
                word => {
                    let which = usize::from(word == "fenced");
                    all[which] += 1;
                    late[which] += usize::from(owner != present);
                }
            }
        }
    }
    let ([plain, fenced], [late_plain, late_fenced]) = (all, late);
    println!(
        "{stops} stops: {late_plain} of {plain} plain writes were late, and {late_fenced} of \
         {fenced} in scripts"
    );
    assert_eq!(late_fenced, 0, "a script wrote after another owner's grant");
    assert!(late_plain > 0, "no write was late, so this has shown nothing");
}
