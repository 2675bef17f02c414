//! A run campaigns again and again, a probe detects a leader that does not stop, and a leader has
//! its own value.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{election, leads};
use crate::common::*;
use redis::Commands as _;
use redlatch::election::{Health, LeaderElection};
use redlatch::{CancelToken, Client, ErrorKind};
use redlatch_testkit::Proxy;

/// Sleeps until the token is cancelled. Returns whether it was cancelled. The work of a run must
/// not assert this itself, because a run catches the panics of its work.
fn is_stopped(stop: &CancelToken) -> bool {
    let begun = Instant::now();
    while !stop.is_cancelled() && begun.elapsed() < TIMEOUT {
        thread::sleep(TIME_UNIT / 20);
    }
    stop.is_cancelled()
}

/// The maximum pause between two campaigns.
const PAUSE: Duration = Duration::from_millis(1_500);

#[test]
fn a_run_leads_again_after_its_work_has_ended_or_panicked_and_ends_when_it_is_cancelled() {
    let server = server();
    let client = client(&server);
    let election = election(&client, "again");
    let (ends, mut tokens, mut seen, mut ended) =
        (CancelToken::new(), Vec::new(), Vec::new(), None::<Instant>);
    let outcome = election.run(&ends, |leadership, stop| {
        seen.push((leadership.is_leader(), stop.is_cancelled(), election.health()));
        let pause = ended.replace(Instant::now()).map(|ended| ended.elapsed());
        tokens.push((leadership.token(), pause));
        match tokens.len() {
            1 => {}
            2 => panic!("as work may"),
            _ => ends.cancel(),
        }
    });
    outcome.unwrap();
    assert_eq!(seen, [(true, false, Health::Leads); 3]);
    let (tokens, pauses): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    assert!(pauses.iter().flatten().all(|pause| *pause > PAUSE / 4), "{pauses:?}");
    assert!(tokens.is_sorted_by(|before, after| before < after) && tokens.len() == 3, "{tokens:?}");
    assert_eq!(election.health(), Health::Follows);
    wait_free(&server, "again", TIMEOUT);
    // A run that was cancelled before it began does nothing.
    let mut led = 0;
    election.run(&ends, |_, _| led += 1).unwrap();
    assert_eq!(led, 0);
}

/// Each replica of a service campaigns, and one of them leads at a time.
#[test]
fn while_a_run_pauses_another_candidate_leads() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let ends = CancelToken::new();
    let (tell, told) = mpsc::channel();
    let runs = clients.each_ref().map(|client| {
        let (election, ends, tell) = (election(client, "turns"), ends.clone(), tell.clone());
        let id = client.id().to_owned();
        spawn(move || {
            election.run(&ends, |leadership, _| {
                tell.send((id.clone(), leadership.token())).unwrap();
            })
        })
    });
    let mut led: Vec<_> = (0..6).map(|_| told.recv_timeout(TIMEOUT).unwrap()).collect();
    ends.cancel();
    runs.into_iter().for_each(|run| run.join().unwrap());
    led.sort_by_key(|(_, token)| *token);
    led.dedup_by_key(|(id, _)| id.clone());
    assert!(led.len() > 1, "{led:?}");
}

/// Runs until the work was stopped. If this does not end the run, leads once more. Returns how the
/// run ended, and for each leadership whether its work was stopped.
fn run_until(
    election: &LeaderElection,
    stops: impl FnOnce(&CancelToken) + Send,
) -> (Result<(), ErrorKind>, Vec<bool>) {
    let (ends, mut stops, mut stopped) = (CancelToken::new(), Some(stops), Vec::new());
    let outcome = election.run(&ends, |_, stop| match stops.take() {
        Some(stops) => thread::scope(|scope| {
            scope.spawn(|| stops(&ends));
            stopped.push(is_stopped(stop));
        }),
        None => {
            stopped.push(stop.is_cancelled());
            ends.cancel();
        }
    });
    (outcome.map_err(|error| error.kind()), stopped)
}

#[test]
fn the_work_of_a_run_is_stopped_by_a_loss_a_cancel_and_the_end_of_the_client() {
    let server = server();
    let client = client(&server);
    let election = election(&client, "stops");
    let lost = run_until(&election, |_| {
        let () = server.connection().del("stops").unwrap();
    });
    assert_eq!(lost, (Ok(()), vec![true, false]), "it leads again after a loss");
    assert_eq!(run_until(&election, CancelToken::cancel), (Ok(()), vec![true]));
    let ended = run_until(&election, |_| client.shutdown());
    assert_eq!(ended, (Err(ErrorKind::ShutDown), vec![true]));
}

/// Blocks the thread that runs the client's callbacks, until the sender is dropped.
fn block_callbacks(client: &Client) -> mpsc::Sender<()> {
    let (tell, told) = mpsc::channel();
    let (go_on, blocks) = mpsc::channel();
    let lock = client.reentrant_lock("busy");
    let guard = lock.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    guard.on_lost(move |_| {
        tell.send(()).unwrap();
        let _ = blocks.recv();
    });
    told.recv_timeout(TIMEOUT).unwrap();
    go_on
}

/// The lease is longer than the test, so the alarm at the end of the lease does not stop the work.
#[test]
fn a_loss_stops_the_work_of_a_run_while_a_callback_blocks() {
    let server = server();
    let client = client(&server);
    let _blocked = block_callbacks(&client);
    let election = client.leader_election("blocked").with_watchdog(LONG_LEASE);
    let lost = run_until(&election, |_| {
        let () = server.connection().del("blocked").unwrap();
    });
    assert_eq!(lost, (Ok(()), vec![true, false]));
}

#[test]
fn the_end_of_the_client_stops_the_work_of_a_run_while_a_callback_blocks() {
    let server = server();
    let client = client(&server);
    let (mut blocked, mut stopped) = (Some(block_callbacks(&client)), false);
    let election = client.leader_election("blocked").with_watchdog(LONG_LEASE);
    let outcome = election.run(&CancelToken::new(), |_, stop| {
        let ended = client.clone();
        let ends = spawn(move || ended.shutdown());
        stopped = is_stopped(stop);
        drop(blocked.take());
        ends.join();
    });
    assert_eq!((outcome.unwrap_err().kind(), stopped), (ErrorKind::ShutDown, true));
}

/// The token of the work is cancelled when the work returns, because the work may have started
/// threads that check the token.
#[test]
fn the_token_of_a_run_is_cancelled_when_its_work_has_returned() {
    let server = server();
    let client = client(&server);
    let (ends, mut kept) = (CancelToken::new(), None);
    election(&client, "returns")
        .run(&ends, |_, stop| match kept.replace(stop.clone()) {
            None => {}
            Some(before) => {
                kept = Some(before);
                ends.cancel();
            }
        })
        .unwrap();
    assert!(kept.unwrap().is_cancelled());
}

#[test]
fn a_run_ends_a_campaign_and_a_pause_at_once_when_it_is_cancelled() {
    let server = server();
    let (leader, other) = (client(&server), client(&server));
    let leadership = election(&leader, "waits").campaign().unwrap();
    let (ends, runs) = (CancelToken::new(), election(&other, "waits"));
    let its = ends.clone();
    let waits = spawn(move || {
        let mut led = 0;
        (runs.run(&its, |_, _| led += 1), led)
    });
    waits.wait_asleep();
    ends.cancel();
    let (outcome, led) = waits.join();
    assert_eq!((outcome.unwrap(), led), ((), 0));
    leadership.resign().unwrap();
}

#[test]
fn a_run_outlasts_an_outage_and_ends_with_a_mistake() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connect().unwrap();
    let runs = election(&client, "outage");
    proxy.refuse();
    proxy.cut_all();
    // A single campaign does not outlast an outage.
    assert!(runs.campaign().is_err());
    let (ends, (tell, told)) = (CancelToken::new(), mpsc::channel());
    let its = ends.clone();
    let waits = spawn(move || {
        runs.run(&its, |_, stop| {
            tell.send(()).unwrap();
            is_stopped(stop);
        })
    });
    // Time must pass here, so that some campaigns fail.
    thread::sleep(PAUSE * 2);
    assert!(!waits.is_finished() && told.try_recv().is_err());
    proxy.accept();
    told.recv_timeout(TIMEOUT).unwrap();
    ends.cancel();
    waits.join().unwrap();

    let mut user = User::new(&server, "few");
    user.set(&["-hset"]);
    let denied = user.client();
    let mut redis = server.connection();
    let () = redis.rpush("list", "other data").unwrap();
    for (runs, kind) in [
        (election(&denied, "denied"), ErrorKind::Denied),
        (election(&client, "list"), ErrorKind::WrongType),
        (election(&client, ""), ErrorKind::Config),
        (election(&client, "grace").with_grace(SHORT_LEASE / 2), ErrorKind::Config),
    ] {
        let mut led = 0;
        let error = runs.run(&CancelToken::new(), |_, _| led += 1).unwrap_err();
        assert_eq!((error.kind(), led), (kind, 0), "{error}");
    }
}

#[test]
fn a_probe_sees_a_leader_that_does_not_stop() {
    let server = server();
    let client = client(&server);
    let leads = election(&client, "probe");
    assert_eq!(leads.health(), Health::Follows);
    let leadership = leads.campaign().unwrap();
    assert_eq!(leads.with_grace(TIME_UNIT).health(), Health::Leads, "the handles are clones");
    assert_eq!(election(&client, "probe").health(), Health::Follows, "it has not campaigned");
    let () = server.connection().del("probe").unwrap();
    wait_until("it is overdue", TIMEOUT, || matches!(leads.health(), Health::Overdue(_)));
    // Time must pass here.
    thread::sleep(TIME_UNIT);
    let Health::Overdue(since) = leads.health() else { panic!("{:?}", leads.health()) };
    assert!(since >= TIME_UNIT && since < TIMEOUT, "{since:?}");
    // A second leadership must not hide the loss of the first.
    let next = leads.campaign().unwrap();
    assert!(matches!(leads.health(), Health::Overdue(_)));
    drop(leadership);
    assert_eq!(leads.health(), Health::Leads);
    next.resign().unwrap();
    assert_eq!(leads.health(), Health::Follows);
}

#[test]
fn all_can_read_the_value_process_and_client_of_a_leader_while_it_leads() {
    let server = server();
    let named = Client::builder(&server.url()).name("billing").connect().unwrap();
    let clients = [client(&server), named];
    let reads = election(&clients[0], "value");
    let value = "10.0.0.7:8080 \u{fc}";
    let leadership = reads.with_value(value).campaign().unwrap();
    let leader = election(&clients[1], "value").leader().unwrap().unwrap();
    assert_eq!(leader.value.as_deref(), Some(value));
    assert_eq!(leader.pid(), Some(std::process::id()));
    assert!(leader.is(&clients[0]) && !leader.is(&clients[1]));
    assert!(leads(Some(&leader), &clients[0]));
    leadership.resign().unwrap();
    assert_eq!(reads.leader().unwrap(), None);
    // A leader without a value does not inherit the value of an earlier leader, even if that leader
    // has not resigned.
    let dead = reads.with_value(value).campaign().unwrap();
    let () = server.connection().del("value").unwrap();
    assert_eq!(reads.leader().unwrap(), None, "the record is out of date");
    let leadership = election(&clients[1], "value").campaign().unwrap();
    let leader = reads.leader().unwrap().unwrap();
    assert_eq!((leader.value.as_deref(), leader.pid()), (None, None));
    assert!(leader.is(&clients[1]));
    drop((dead, leadership));
}

/// An older version writes no field for the leader's value, and ignores this field when it reads.
#[test]
fn a_record_of_a_version_without_values_is_read() {
    let server = server();
    let client = client(&server);
    let leads = election(&client, "old").with_value("new");
    let leadership = leads.campaign().unwrap();
    let () = server.connection().hdel("redlatch_leader:{old}", "value").unwrap();
    let leader = leads.leader().unwrap().unwrap();
    assert_eq!((leader.value, leader.token), (None, leadership.token()));
}
