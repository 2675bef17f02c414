//! Shows an election whose leader is paused until its lease is over. Another process then leads,
//! and the store refuses the late write of the first leader because of its token: `cargo run
//! --example election`

mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use redis::Script;
use redlatch::election::LeaderElection;
use redlatch::{Client, FencingToken};
use redlatch_testkit::{Job, Worker};

use stage::{Stage, Trouble};

const LEASE: Duration = Duration::from_secs(1);
/// A store that remembers the highest token so far, and refuses a lower token.
const WRITE: &str = "
    if tonumber(ARGV[1]) < tonumber(redis.call('hget', KEYS[1], 'token') or 0) then return 0 end
    redis.call('hset', KEYS[1], 'token', ARGV[1], 'text', ARGV[2])
    return 1";

fn main() -> ExitCode {
    stage::play("election", show, candidate)
}

fn election(client: &Client, name: &str) -> LeaderElection {
    client.leader_election(&format!("{name}:leader")).with_watchdog(LEASE)
}

fn write(url: &str, name: &str, token: FencingToken, text: &str) -> Result<bool, Trouble> {
    let mut redis = redis::Client::open(url)?.get_connection()?;
    let write = Script::new(WRITE);
    let mut write = write.key(format!("{name}:store"));
    Ok(write.arg(token.get()).arg(text).invoke(&mut redis)?)
}

fn candidate(job: &Job) -> Result<(), Trouble> {
    let (url, name, own) = (job.arg(0), job.arg(1), job.arg(2));
    let leadership = election(&Client::connect(url)?, name).campaign()?;
    // This check shows that the process leads for long enough. The leader may be paused here, as at
    // any time.
    leadership.check(LEASE / 4)?;
    job.say(&format!("leads with token {}", leadership.token()));
    let _ = job.wait_line();
    // The check has succeeded, so the process writes, perhaps too late. A lease alone cannot
    // prevent this write.
    let taken = write(url, name, leadership.token(), own)?;
    let leads = if leadership.is_leader() { "it leads" } else { "it was deposed" };
    job.say(&format!("{}, and {leads}", if taken { "written" } else { "refused" }));
    let _ = job.wait_line();
    Ok(())
}

fn show(stage: &Stage) -> Result<bool, Trouble> {
    let start = |own: &str| Worker::spawn("candidate", &[stage.url(), &stage.name, own]);
    let observer = Client::connect(stage.url())?;
    let election = election(&observer, &stage.name);

    let mut first = start("the first leader");
    stage.say(&format!("The first candidate {}.", stage.hear(&mut first)?))?;
    let mut second = start("the second leader");
    // The second process waits for the first process to lose the leadership.
    stage.wait_until("the second one campaigns", || {
        thread::sleep(LEASE / 4);
        Ok(second.try_line(LEASE / 4).is_none())
    })?;
    first.sigstop();
    let stopped = Instant::now();
    stage.say("It is stopped (a page fault, a virtual machine that is moved, …).")?;
    let said = stage.hear(&mut second)?;
    stage.say(&format!("{:.1?} later the second one {said}.", stopped.elapsed()))?;
    let leader = election.leader()?.ok_or("nobody leads")?;
    stage.say(&format!("Anybody can ask: {} leads, with token {}.", leader.who, leader.token))?;

    second.send_line("write");
    let second_said = stage.hear(&mut second)?;
    stage.say(&format!("The second leader's write: {second_said}."))?;
    first.sigcont();
    first.send_line("write");
    let first_said = stage.hear(&mut first)?;
    stage.say(&format!("The first one wakes up, and writes: {first_said}."))?;
    for candidate in [&mut first, &mut second] {
        candidate.send_line("end");
    }
    let is_true =
        second_said == "written, and it leads" && first_said == "refused, and it was deposed";
    if !is_true {
        stage.say("A LATE WRITE WAS NOT REFUSED, OR A TRUE ONE WAS.")?;
    }
    Ok(is_true)
}
