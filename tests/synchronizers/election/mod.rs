//! Elections: one candidate leads at a time, the other candidates can read who leads, and a leader
//! stops before the next leader begins.

mod long;
mod processes;
mod run;

use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::common::*;
use redis::Commands as _;
use redlatch::election::{Leader, LeaderElection, Leadership};
use redlatch::{
    Attempt, CancelToken, Client, ErrorKind, HoldState, LostReason, Script, Taken, Wait,
};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

fn election(client: &Client, name: &str) -> LeaderElection {
    client.leader_election(name).with_watchdog(SHORT_LEASE)
}

fn leads(leader: Option<&Leader>, client: &Client) -> bool {
    leader.is_some_and(|leader| leader.who.ends_with(client.id()))
}

#[test]
fn a_leaders_script_runs_only_while_it_leads() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let elections = clients.each_ref().map(|client| election(client, "scripts"));
    let first = elections[0].campaign().unwrap();
    assert_eq!(first.command("INCR", &["number"], &[]).unwrap().as_int(), Some(1));
    let () = server.connection().del("scripts").unwrap();
    let second = elections[1].campaign().unwrap();
    let error = first.command("INCR", &["number"], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    let script = Script::new("return redis.call('incr', KEYS[1])");
    let now = second.eval_within(TIMEOUT, &script, &["number"], &[]).unwrap();
    assert_eq!(now.as_int(), Some(2));
}

#[test]
fn one_leads_and_all_know_who_and_the_next_one_has_a_higher_token() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let elections = clients.each_ref().map(|client| election(client, "one"));
    assert_eq!(elections[0].leader().unwrap(), None);
    let first = elections[0].campaign().unwrap();
    assert!(first.is_leader());
    first.check(SHORT_LEASE / 4).unwrap();
    assert!(answered(|| elections[1].try_campaign()).into_option().is_none());
    let until = || Instant::now() + TIME_UNIT;
    assert!(answered(|| elections[1].try_campaign_until(until())).into_option().is_none());
    assert!(answered(|| elections[1].try_campaign_for(TIME_UNIT)).into_option().is_none());
    let known = elections[1].leader().unwrap().unwrap();
    assert!(leads(Some(&known), &clients[0]), "{known:?}");
    assert_eq!((known.token, &known), (first.token(), &elections[0].leader().unwrap().unwrap()));
    assert!(!known.host.is_empty() && known.who.contains(&known.host), "{known:?}");
    let age = SystemTime::now().duration_since(known.since).unwrap_or_default();
    assert!(age < TIMEOUT, "{age:?}");

    let next = elections[1].clone();
    let waits = spawn(move || next.campaign().unwrap());
    waits.wait_asleep();
    first.resign().unwrap();
    let second = waits.join();
    assert!(second.token() > known.token && second.is_leader());
    assert!(leads(elections[0].leader().unwrap().as_ref(), &clients[1]));
    drop(second);
    wait_until("nobody leads", TIMEOUT, || elections[0].leader().unwrap().is_none());
    // Only the token key is left, so that the next token will be higher.
    let mut redis = server.connection();
    let mut keys: Vec<String> = redis.keys("*").unwrap();
    // The keys that record since when each process waits expire after two seconds.
    keys.retain(|key| pttl(&mut redis, key) == -1);
    assert_eq!(keys, ["redisson_lock_token:{one}"]);
}

#[test]
fn candidates_of_one_process_lead_one_after_the_other_on_record() {
    let server = server();
    let (client, asks) = (client(&server), election(&client(&server), "turns"));
    let turns = election(&client, "turns");
    let mut leads = turns.campaign().unwrap();
    for _ in 0..20 {
        let next = turns.clone();
        let waits = spawn(move || next.campaign().unwrap());
        waits.wait_asleep();
        let before = leads.token();
        drop(leads);
        leads = waits.join();
        assert!(leads.token() > before && leads.is_leader());
        wait_until("it is on record", TIMEOUT, || {
            asks.leader().unwrap().is_some_and(|leader| leader.token == leads.token())
        });
    }
    // The state must not change during this time.
    thread::sleep(TIME_UNIT);
    assert_eq!(asks.leader().unwrap().unwrap().token, leads.token());
}

#[test]
fn a_campaign_ends_when_it_is_cancelled_or_unusable() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let _leads = election(&client, "ends").campaign().unwrap();
    let (token, candidate) = (CancelToken::new(), election(&other, "ends"));
    let its = token.clone();
    let waits = spawn(move || candidate.campaign_cancellable(&its).map(drop).unwrap_err().kind());
    waits.wait_asleep();
    token.cancel();
    assert_eq!(waits.join(), ErrorKind::Cancelled);
    for error in [
        election(&other, "ends").with_grace(SHORT_LEASE / 2).campaign().map(drop).unwrap_err(),
        election(&other, "").campaign().map(drop).unwrap_err(),
        other.leader_election("").leader().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
}

#[test]
fn a_leader_without_a_server_is_deposed_before_another_one_can_lead() {
    let server = server();
    let (lease, grace) = (SHORT_LEASE * 4 / 3, TIME_UNIT * 5);
    // If the machine stands still when the leader is deposed, the callback comes only when the next
    // leader leads. Then the test tries again.
    wait_until("it is told well before the next one leads", TIMEOUT, || {
        let proxy = Proxy::before(&server);
        let cut = impatient(&proxy.url()).connect().unwrap();
        let leader = cut.leader_election("cut").with_watchdog(lease).with_grace(grace);
        let leadership = leader.campaign().unwrap();
        let (tell, told) = mpsc::channel();
        leadership.on_deposed(move |why| tell.send((why, Instant::now())).unwrap());
        // By then the leader's lease has been renewed.
        thread::sleep(lease);
        assert!(leadership.is_leader() && told.try_recv().is_err());
        let next = client(&server).leader_election("cut").with_watchdog(lease);
        let waits = spawn(move || (next.campaign().unwrap(), Instant::now()));
        waits.wait_asleep();
        proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, |_| true);
        let (why, deposed) = told.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(why, LostReason::LeaseExpired);
        assert!(!leadership.is_leader() && leadership.remaining().is_zero());
        assert_eq!(leadership.state(), HoldState::Lost(LostReason::LeaseExpired));
        let refused = leadership.check(Duration::ZERO).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LeaseLost, "{refused}");
        let (second, since) = waits.join();
        assert!(second.token() > leadership.token());
        // The leadership has ended for good. A callback that is registered later is called, too.
        let (tell, told) = mpsc::channel();
        leadership.on_deposed(move |why| tell.send(why).unwrap());
        assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), LostReason::LeaseExpired);
        assert!(!leadership.is_leader());
        since.saturating_duration_since(deposed) >= grace / 2
    });
}

#[test]
fn a_leader_whose_lock_is_taken_away_is_deposed_and_a_resignation_calls_nothing() {
    let server = server();
    let client = client(&server);
    let election = election(&client, "taken");
    let (tell, told) = mpsc::channel();
    let first = election.campaign().unwrap();
    let its = tell.clone();
    first.on_deposed(move |why| its.send(("first", why)).unwrap());
    first.resign().unwrap();
    let second = election.try_campaign().unwrap().into_option().unwrap();
    assert_eq!((second.name(), second.state()), ("taken", HoldState::Held));
    assert!(second.remaining() > SHORT_LEASE / 2 && second.remaining() <= SHORT_LEASE * 9 / 10);
    assert_eq!(client.status("taken").unwrap().holders[0].owner, second.owner());
    let its = tell.clone();
    second.on_deposed(move |why| its.send(("second", why)).unwrap());
    let () = server.connection().del("taken").unwrap();
    assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), ("second", LostReason::Revoked));
    second.on_deposed(move |why| tell.send(("late", why)).unwrap());
    assert_eq!(told.recv_timeout(TIMEOUT).unwrap(), ("late", LostReason::Revoked));
    assert!(!second.is_leader() && election.leader().unwrap().is_none());
    assert_eq!(second.state(), HoldState::Lost(LostReason::Revoked));
    assert_eq!(second.remaining(), Duration::ZERO);
    assert_eq!(second.resign().unwrap_err().kind(), ErrorKind::LeaseLost);
}

#[test]
fn an_observer_of_an_election_hears_each_change() {
    let server = server();
    let clients = [client(&server), client(&server), client(&server)];
    let observed = election(&clients[2], "seen");
    woken_by_message(|| {
        let mut changes = observed.changes(TIMEOUT);
        assert_eq!(changes.next().unwrap().unwrap(), None);
        for at in [0, 1] {
            let leadership = election(&clients[at], "seen").campaign().unwrap();
            assert!(leads(changes.next().unwrap().unwrap().as_ref(), &clients[at]));
            leadership.resign().unwrap();
            assert_eq!(changes.next().unwrap().unwrap(), None);
        }
    });
    // An observation ends when its time is over. If it is cancelled, it ends with an error.
    let mut changes = observed.changes(TIME_UNIT);
    assert_eq!(changes.next().unwrap().unwrap(), None);
    assert!(changes.next().is_none() && changes.next().is_none());
    let token = CancelToken::new();
    let mut changes = observed.changes(&token);
    assert_eq!(changes.next().unwrap().unwrap(), None);
    token.cancel();
    assert_eq!(changes.next().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(changes.next().is_none());
}

#[test]
fn an_observer_outlasts_an_outage_and_ends_with_its_wait_at_a_server_that_hangs() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).failover_timeout(LONG_LEASE).connect().unwrap();
    let observed = election(&client, "away");
    proxy.refuse();
    proxy.cut_all();
    let waits = spawn(move || observed.changes(TIMEOUT * 2).next().unwrap());
    // Time must pass here: this is longer than a channel's confirmation may take.
    thread::sleep(SHORT_TIMEOUT * 5 / 2);
    assert!(!waits.is_finished());
    proxy.accept();
    assert_eq!(waits.join().unwrap(), None);

    let patient = Client::builder(&server.url()).response_timeout(TIMEOUT).connect().unwrap();
    let observed = election(&patient, "hangs");
    // The first observation has already subscribed.
    let mut first = observed.changes(TIMEOUT);
    assert_eq!(first.next().unwrap().unwrap(), None);
    server.pause();
    let waits = spawn(move || observed.changes(TIME_UNIT).next().and_then(Result::ok));
    // The call ends long before the client treats the server as unreachable.
    assert_eq!(waits.join(), None);
    server.resume();
}

#[test]
fn an_observer_finds_out_that_a_dead_leaders_lease_has_ended() {
    let server = server();
    let (mut dies, observes) = (processes::start(&server, "dies"), client(&server));
    let mut changes = observes.leader_election("dies").changes(TIMEOUT);
    assert_eq!(changes.next().unwrap().unwrap(), None);
    dies.send_line("campaign");
    dies.expect_line("leads", TIMEOUT);
    assert!(changes.next().unwrap().unwrap().is_some());
    dies.sigkill();
    let killed = Instant::now();
    assert_eq!(changes.next().unwrap().unwrap(), None);
    let took = killed.elapsed();
    // Without a message, the observer would find the change only at its next poll.
    assert!(took < TIMEOUT / 2, "{took:?}");
}

/// The candidate's lease ends too soon, and it tries again. If no time is left, it does not try
/// again.
#[test]
fn a_campaign_goes_on_after_a_lease_that_is_over_too_soon() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client =
        impatient(&proxy.url()).response_timeout(TIMEOUT).connections(1).connect().unwrap();
    election(&client, "warm").campaign().unwrap().resign().unwrap();
    let campaigns = election(&client, "short");
    // This rule takes the lock away before the leader is recorded.
    let takes_away = |times: usize| {
        let (name, redis) = ("redlatch_leader:{short}", Mutex::new(server.connection()));
        proxy.on(Direction::Request, times, Action::DelayReply(Duration::ZERO), move |bytes| {
            let leads = contains(bytes, "EVAL") && contains(bytes, name);
            leads && redis.lock().unwrap().del::<_, bool>("short").unwrap()
        });
    };
    takes_away(2);
    campaigns.campaign().unwrap().resign().unwrap();
    proxy.wait_fired(2, TIMEOUT);
    takes_away(4);
    for wait in [Wait::FOREVER, Wait::NONE] {
        let error = campaigns.campaign_within(wait).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    }
    // The campaign without a limit made three attempts, and the other campaign made one attempt.
    proxy.wait_fired(6, TIMEOUT);
    // The reply comes when more than half of the lease is over.
    proxy.on(Direction::Request, 1, Action::DelayReply(SHORT_LEASE * 6 / 10), |bytes| {
        contains(bytes, "EVAL") && contains(bytes, "slow") && !contains(bytes, "redlatch_leader")
    });
    election(&client, "slow").campaign().unwrap().resign().unwrap();
    proxy.wait_fired(7, TIMEOUT);
}

/// A record contains the leader's token, so a late resignation does not remove the record of a
/// later leader.
#[test]
fn a_late_resignation_leaves_the_record_of_a_later_leadership() {
    let server = server();
    let client = client(&server);
    let leadership = election(&client, "late").campaign().unwrap();
    let (mut redis, record) = (server.connection(), "redlatch_leader:{late}");
    let owner: String = redis.hget(record, "owner").unwrap();
    let () = redis.hset(record, "token", leadership.token().get() + 1).unwrap();
    drop(leadership);
    // The lock is released after the resignation.
    wait_free(&server, "late", TIMEOUT);
    assert_eq!(redis.hget::<_, _, Option<String>>(record, "owner").unwrap(), Some(owner));
}

#[test]
fn a_request_whose_reply_is_lost_leads_all_the_same() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy, |client| {
        election(client, "warm").campaign().unwrap().resign().unwrap();
    });
    for action in [Action::LoseReply, Action::LoseRequest] {
        proxy.on(Direction::Request, 1, action, |bytes| {
            contains(bytes, "EVAL") && contains(bytes, "redlatch_leader:{lost}")
        });
        let leadership = election(&client, "lost").campaign().unwrap();
        assert!(leads(election(&client, "lost").leader().unwrap().as_ref(), &client));
        leadership.resign().unwrap();
    }
    assert_eq!(proxy.fired(), 2);
}

/// A campaign sends two requests: the first takes the lock, and the second records the leader.
#[test]
fn the_record_of_a_leader_outlasts_an_outage_and_ends_with_the_wait() {
    let server = server();
    let proxy = Proxy::before(&server);
    let builder = || Client::builder(&proxy.url()).connections(1).watchdog_timeout(LONG_LEASE);
    let client = builder().failover_timeout(LONG_LEASE).connect().unwrap();
    let campaigns = client.leader_election("record");
    drop(campaigns.campaign().unwrap());
    wait_free(&server, "record", TIMEOUT);
    let on_record = |shots, action| {
        proxy.on(Direction::Request, shots, action, |bytes| {
            contains(bytes, "EVAL") && contains(bytes, "redlatch_leader:{record}")
        });
    };
    for action in [Action::LoseReply, Action::LoseRequest] {
        // Each request is sent twice, so four lost copies make two requests fail.
        on_record(4, action);
        let leadership = campaigns.campaign().unwrap();
        assert!(leads(campaigns.leader().unwrap().as_ref(), &client));
        leadership.resign().unwrap();
    }
    assert_eq!(proxy.fired(), 8);
    // The server has granted the lock, but no time is left for the record.
    let patient = builder().response_timeout(TIMEOUT).connect().unwrap();
    let campaigns = patient.leader_election("held");
    drop(campaigns.campaign().unwrap());
    wait_free(&server, "held", TIMEOUT);
    for ends in ["a limit", "a cancel"] {
        let fired = proxy.fired();
        proxy.on(Direction::Request, 1, Action::HoldReply, |bytes| {
            contains(bytes, "EVAL") && contains(bytes, "redlatch_leader:{held}")
        });
        let (token, its) = (CancelToken::new(), campaigns.clone());
        let cancels = token.clone();
        let waits = spawn(move || match ends {
            "a limit" => its.try_campaign_for(TIME_UNIT).map(drop_some),
            _ => its.campaign_cancellable(&token).map(|it| drop_some(Taken(it))),
        });
        proxy.wait_fired(fired + 1, TIMEOUT);
        cancels.cancel();
        // The call ends long before the client treats the server as unreachable.
        let outcome = waits.join();
        match ends {
            "a limit" => assert!(!outcome.unwrap()),
            _ => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled),
        }
        proxy.release();
        wait_free(&server, "held", TIMEOUT);
        wait_until("nobody leads", TIMEOUT, || campaigns.leader().unwrap().is_none());
    }
}

/// Drops a leadership. Returns whether there was one.
fn drop_some(leadership: Attempt<Leadership>) -> bool {
    leadership.into_option().is_some()
}

/// A message has granted the candidate the lock, so the candidate must lead even if the server has
/// no memory.
/// A request that the candidate sends while the server has no memory is refused, for example the
/// request after its subscription. So only one of several rounds must succeed.
#[test]
fn a_candidate_leads_on_a_server_without_memory() {
    let server = server();
    let begun = Instant::now();
    while !leads_without_memory(&server) {
        assert!(begun.elapsed() < TIMEOUT, "each candidate was refused");
    }
}

/// Whether the candidate sent no request while the server had no memory.
fn leads_without_memory(server: &Server) -> bool {
    let (first, next) = (client(server), client(server));
    let leads_now = election(&first, "full").campaign().unwrap();
    let campaigns = election(&next, "full");
    let waits = spawn(move || campaigns.campaign());
    waits.wait_queued();
    let mut redis = server.connection();
    let mut limit_memory = |most: &str| {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", most]).exec(&mut redis).unwrap();
    };
    limit_memory("1");
    leads_now.resign().unwrap();
    let campaigned = waits.join();
    if let Ok(leadership) = campaigned {
        assert!(leads(election(&first, "full").leader().unwrap().as_ref(), &next));
        leadership.resign().unwrap();
        return true;
    }
    assert_eq!(campaigned.unwrap_err().kind(), ErrorKind::OutOfMemory);
    limit_memory("0");
    false
}

/// The reply to the grant is delayed, as if the process stood still in the meantime.
#[test]
fn a_candidate_whose_grant_came_too_late_campaigns_on() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).response_timeout(TIMEOUT).connect().unwrap();
    election(&client, "warm").campaign().unwrap().resign().unwrap();
    let late = SHORT_LEASE * 2 / 3;
    proxy.on(Direction::Request, 1, Action::DelayReply(late), |bytes| {
        contains(bytes, "EVAL") && contains(bytes, "redisson_lock_token:{late}")
    });
    let leadership = election(&client, "late").campaign().unwrap();
    assert_eq!(proxy.fired(), 1);
    leadership.check(SHORT_LEASE / 4).unwrap();
    assert!(leads(election(&client, "late").leader().unwrap().as_ref(), &client));
}
