//! Leaders that are killed or paused.

use super::*;

pub(crate) const LEASE: Duration = SHORT_LEASE;

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let election = client.leader_election(job.arg(1)).with_watchdog(LEASE);
    let _ = job.wait_line();
    loop {
        let leadership = election.campaign().unwrap();
        job.say(&format!("leads {}", leadership.token()));
        while leadership.is_leader() {
            thread::sleep(Duration::from_millis(1));
        }
        job.say(&format!("deposed {}", leadership.token()));
    }
}

pub(crate) fn start(server: &Server, name: &str) -> Worker {
    Worker::spawn_test("election::processes::worker", "worker", &[&server.url(), name])
}

fn token(line: &str) -> u64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn when_a_leader_is_killed_the_next_one_leads_after_its_lease() {
    let server = server();
    once_within(LEASE + TIME_UNIT * 2, || {
        let [mut first, mut second] = [(); 2].map(|()| start(&server, "killed"));
        first.send_line("campaign");
        let before = token(&first.expect_line("leads", TIMEOUT));
        second.send_line("campaign");
        assert_eq!(second.try_line(TIME_UNIT * 3), None);
        first.sigkill();
        let killed = Instant::now();
        assert!(token(&second.expect_line("leads", TIMEOUT)) > before);
        let took = killed.elapsed();
        second.sigkill();
        let () = server.connection().del("killed").unwrap();
        took
    });
}

#[test]
fn a_leader_that_stood_still_knows_that_it_was_deposed_and_has_the_lower_token() {
    let server = server();
    let [mut first, mut second] = [(); 2].map(|()| start(&server, "stopped"));
    first.send_line("campaign");
    let early = token(&first.expect_line("leads", TIMEOUT));
    second.send_line("campaign");
    assert_eq!(second.try_line(TIME_UNIT), None);
    first.sigstop();
    let late = token(&second.expect_line("leads", TIMEOUT));
    assert!(late > early);
    first.sigcont();
    assert_eq!(token(&first.expect_line("deposed", TIMEOUT)), early);
    // The process campaigns again, and waits.
    assert_eq!(first.try_line(TIME_UNIT), None);
    second.sigkill();
    assert!(token(&first.expect_line("leads", TIMEOUT)) > late);
}
