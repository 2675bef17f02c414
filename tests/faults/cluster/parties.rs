//! Barriers and elections: all others notice that a party or a leader was killed.

use redlatch::Waited;

use super::*;

/// The lease of parties and leaders.
const LEASE: Duration = SHORT_LEASE;

/// Arrives at a barrier or campaigns, and reports the outcome.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::builder(job.arg(0)).watchdog_timeout(LEASE).connect().unwrap();
    match job.arg(1) {
        "party" => {
            let passed = client.cyclic_barrier(job.arg(2)).wait().map_err(|error| error.kind());
            job.say(&format!("{passed:?}"));
        }
        _ => {
            let leadership = client.leader_election(job.arg(2)).campaign().unwrap();
            job.say(&format!("leads {}", leadership.token()));
            let _ = job.wait_line();
        }
    }
}

fn start(cluster: &Cluster, role: &str, name: &str) -> Worker {
    Worker::spawn_test("cluster::parties::worker", "worker", &[&cluster.url(), role, name])
}

/// Runs the test for a name on each server and for both kinds of channels. All these runs go on at
/// the same time, because the tests mostly wait.
fn everywhere(test: impl Fn(&Cluster, [Client; 2], &str) + Sync) {
    let cluster = &cluster();
    thread::scope(|scope| {
        for sharded in [true, false] {
            for name in names(cluster) {
                let test = &test;
                scope.spawn(move || {
                    test(cluster, clients(cluster, sharded), &format!("{name} {sharded}"));
                });
            }
        }
    });
}

#[test]
fn parties_pass_when_the_last_one_arrives_or_hear_that_one_has_left() {
    everywhere(|_, clients, name| {
        let [one, other] = clients.map(|client| client.cyclic_barrier(name));
        assert!(one.try_set_parties(3).unwrap());
        woken_by_message(|| {
            let waits = [&one, &other].map(|barrier| {
                let (barrier, before) = (barrier.clone(), one.waiting().unwrap());
                let waits = spawn(move || barrier.wait().unwrap());
                wait_until("it has arrived", TIMEOUT, || one.waiting().unwrap() > before);
                waits
            });
            assert_eq!(other.wait().unwrap(), 0);
            assert_eq!(waits.map(crate::common::Running::join), [2, 1]);
        });
        woken_by_message(|| {
            assert!(one.reset().unwrap());
            let barrier = one.clone();
            let waits = spawn(move || barrier.wait().unwrap_err().kind());
            wait_until("it has arrived", TIMEOUT, || other.waiting().unwrap() > 0);
            assert_eq!(other.wait_for(Duration::ZERO).unwrap(), Waited::TimedOut);
            assert_eq!(waits.join(), ErrorKind::Broken);
        });
        assert!(other.delete().unwrap());
    });
}

#[test]
fn the_others_learn_of_a_killed_party_when_its_lease_ends() {
    let cluster = cluster();
    let client = client(&cluster);
    for name in names(&cluster) {
        once_within(LEASE + TIME_UNIT / 2, || {
            let barrier = client.cyclic_barrier(&name);
            let _ = barrier.try_set_parties(3).unwrap();
            assert!(barrier.reset().unwrap());
            let mut dies = start(&cluster, "party", &name);
            wait_until("it has arrived", TIMEOUT, || barrier.waiting().unwrap() == 1);
            let its = barrier.clone();
            let waits = spawn(move || (its.wait().unwrap_err().kind(), Instant::now()));
            wait_until("both have", TIMEOUT, || barrier.waiting().unwrap() == 2);
            dies.sigkill();
            let killed = Instant::now();
            let (kind, told) = waits.join();
            assert_eq!(kind, ErrorKind::Broken);
            told - killed
        });
    }
}

#[test]
fn a_leader_resigns_and_is_followed_at_once_and_a_killed_one_after_its_lease() {
    everywhere(|cluster, clients, name| {
        let [one, other] = clients.map(|client| client.leader_election(name).with_watchdog(LEASE));
        woken_by_message(|| {
            let first = one.campaign().unwrap();
            let (next, asks) = (other.clone(), one.clone());
            let waits = spawn(move || next.campaign().unwrap());
            waits.wait_queued();
            let token = first.token();
            assert_eq!(other.leader().unwrap().unwrap().token, token);
            first.resign().unwrap();
            let second = waits.join();
            assert!(second.token() > token);
            assert_eq!(asks.leader().unwrap().unwrap().token, second.token());
            second.resign().unwrap();
        });
        once_within(LEASE + TIME_UNIT * 2, || {
            let mut dies = start(cluster, "leader", name);
            let before: u64 = dies.expect_line("leads", TIMEOUT).parse().unwrap();
            let next = other.clone();
            let waits = spawn(move || (next.campaign().unwrap().token().get(), Instant::now()));
            waits.wait_queued();
            dies.sigkill();
            let killed = Instant::now();
            let (token, led) = waits.join();
            assert!(token > before);
            led - killed
        });
    });
}
