//! Parties in several processes, some of which are killed.

use super::*;

/// The entry point of the worker processes, which run this executable with only this test. A worker
/// reports how each wait ended.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let barrier = client.cyclic_barrier(job.arg(1)).with_watchdog(SHORT_LEASE);
    let acts = job.args().get(2).is_some();
    let barrier = if acts { barrier.with_action(|| thread::sleep(LONG_LEASE)) } else { barrier };
    loop {
        let line = job.wait_line();
        if line == "end" {
            break;
        }
        match barrier.wait() {
            Ok(index) => job.say(&format!("passed {index}")),
            Err(error) => job.say(&format!("failed {:?}", error.kind())),
        }
    }
}

fn workers<const N: usize>(server: &Server, name: &str) -> [Worker; N] {
    [(); N].map(|()| {
        Worker::spawn_test("barrier::processes::worker", "worker", &[&server.url(), name])
    })
}

#[test]
fn processes_pass_together_step_by_step() {
    let server = server();
    let barrier = barrier(&client(&server), "steps", 4);
    let mut workers: [Worker; 3] = workers(&server, "steps");
    for _ in 0..20 {
        workers.iter_mut().for_each(|worker| worker.send_line("wait"));
        let mut indices = vec![barrier.wait().unwrap()];
        for worker in &mut workers {
            let line = worker.expect_line("passed ", TIMEOUT);
            indices.push(line.trim_start_matches("passed ").parse().unwrap());
        }
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2, 3]);
    }
    workers.iter_mut().for_each(|worker| worker.send_line("end"));
}

#[test]
fn the_others_learn_of_a_killed_party_when_its_lease_ends() {
    let server = server();
    let client = client(&server);
    once_within(SHORT_LEASE + TIME_UNIT / 2, || {
        let barrier = client.cyclic_barrier("killed").with_watchdog(SHORT_LEASE);
        let _ = barrier.try_set_parties(4).unwrap();
        assert!(barrier.reset().unwrap());
        let [mut dies, mut lives] = workers(&server, "killed");
        for (at, worker) in [&mut dies, &mut lives].into_iter().enumerate() {
            worker.send_line("wait");
            wait_until("it waits", TIMEOUT, || barrier.waiting().unwrap() as usize > at);
        }
        let waits = party(&barrier);
        // The processes wait during several renewals.
        thread::sleep(SHORT_LEASE * 3 / 2);
        assert!(!waits.is_finished());
        dies.sigkill();
        let killed = Instant::now();
        is_broken(waits.join());
        let took = killed.elapsed();
        lives.expect_line("failed Broken", TIMEOUT);
        lives.send_line("end");
        took
    });
}

#[test]
fn a_last_party_that_is_killed_in_its_action_breaks_the_barrier() {
    let server = server();
    let barrier = barrier(&client(&server), "acts", 2).with_watchdog(SHORT_LEASE);
    let waits = party(&barrier);
    let args = [&server.url(), "acts", "acts"];
    let mut last = Worker::spawn_test("barrier::processes::worker", "worker", &args);
    last.send_line("wait");
    wait_until("its action runs", TIMEOUT, || barrier.waiting().unwrap() == 2);
    thread::sleep(SHORT_LEASE * 3 / 2);
    assert!(!waits.is_finished());
    last.sigkill();
    is_broken(waits.join());
}

#[test]
fn a_party_that_was_stopped_past_its_lease_finds_it_broken() {
    let server = server();
    let barrier = barrier(&client(&server), "stopped", 3).with_watchdog(SHORT_LEASE);
    let [mut stops] = workers(&server, "stopped");
    stops.send_line("wait");
    wait_until("it waits", TIMEOUT, || barrier.waiting().unwrap() == 1);
    let waits = party(&barrier);
    stops.sigstop();
    is_broken(waits.join());
    stops.sigcont();
    stops.expect_line("failed Broken", TIMEOUT);
    // After a reset, both processes can be parties again.
    assert!(barrier.reset().unwrap());
    let waits = party(&barrier);
    stops.send_line("wait");
    wait_until("both wait", TIMEOUT, || barrier.waiting().unwrap() == 2);
    assert_eq!(barrier.wait().unwrap(), 0);
    waits.join().unwrap();
    stops.expect_line("passed ", TIMEOUT);
    stops.send_line("end");
}
