//! Shows the effect of a failover on locks, and when each client notices it. A master that
//! Sentinels watch is killed. One lock is held, a second lock is held but is not on any replica,
//! and several clients contend for a third lock. The second part does the same with a lock that is
//! granted only when all replicas have the grant: `cargo run --release --example failover`

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands;
use redlatch::{CancelToken, Client};
use redlatch_testkit::Sentinels;

type Trouble = Box<dyn Error + Send + Sync>;

/// The number of clients that contend for a lock.
const WORKERS: usize = 4;
/// After the Sentinels' decision, all clients must continue within this time.
const GOES_ON: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let sentinels = match Sentinels::start() {
        Ok(sentinels) => sentinels,
        Err(error) => {
            println!("Left out: {error}");
            return ExitCode::SUCCESS;
        }
    };
    println!(
        "A master, two replicas and three Sentinels are up. The clients' URL:\n{}\n",
        sentinels.url()
    );
    let first = sentinels.master();
    let played = act(&sentinels).and_then(|as_said| {
        sentinels.revive(first);
        Ok(acknowledged(&sentinels)? && as_said)
    });
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("failover: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// A fact, with the process that noticed it, and the time.
struct Fact {
    who: &'static str,
    what: String,
    at: Instant,
}

impl Fact {
    fn now(who: &'static str, what: impl Into<String>) -> Self {
        Self { who, what: what.into(), at: Instant::now() }
    }
}

/// Runs the story without acknowledgements by replicas. Returns whether the documentation is true.
fn act(sentinels: &Sentinels) -> Result<bool, Trouble> {
    let connect = || Client::connect(&sentinels.url());
    let (anna, bert, carl) = (connect()?, connect()?, connect()?);
    let (tell, renewal_state) = mpsc::channel();

    // The replicas have Anna's lock, but not Bert's lock, as if the master had died too early.
    let known = anna.reentrant_lock("known").lock()?;
    let unknown = bert.reentrant_lock("unknown").lock()?;
    for (guard, who) in [(&known, "anna"), (&unknown, "bert")] {
        let tell = tell.clone();
        guard.on_lost(move |why| {
            let _ = tell.send(Fact::now(who, format!("is told that the lock is lost: {why}")));
        });
    }
    // Carl waits for Bert's lock.
    let carls = thread::spawn({
        let (lock, tell) = (carl.reentrant_lock("unknown"), tell.clone());
        move || -> Result<(), redlatch::Error> {
            let guard = lock.lock()?;
            let _ = tell.send(Fact::now("carl", "has the lock that bert had"));
            guard.unlock()
        }
    });
    forget(sentinels, "known", "unknown")?;
    let over = CancelToken::new();
    let workers =
        (0..WORKERS).map(|_| work(connect()?, &over, &tell)).collect::<Result<Vec<_>, _>>()?;
    // Wait until every worker has reported an acquisition.
    wait_for(&renewal_state, WORKERS, Instant::now())?;

    let killed = Instant::now();
    let old = sentinels.master();
    old.kill();
    let switched = sentinels.wait_switched(old);
    let mut story =
        vec![Fact { who: "sentinels", what: "have chosen another master".into(), at: switched }];
    story.extend(wait_for(&renewal_state, WORKERS, killed)?);
    // Wait for the reports of Bert and Carl, if they have not reported yet.
    let said = |story: &[Fact], who| story.iter().find(|fact| fact.who == who).map(|fact| fact.at);
    while said(&story, "bert").is_none() || said(&story, "carl").is_none() {
        let fact = renewal_state.recv_timeout(TIMEOUT)?;
        if fact.who != "worker" {
            story.push(fact);
        }
    }
    let is_held = known.is_held();
    known.unlock()?;
    story.push(Fact::now("anna", "has unlocked: the lock was hers all the time"));
    over.cancel();
    let failed = workers.into_iter().filter_map(|worker| worker.join().ok()?.err());
    let failed: Vec<_> =
        failed.filter(|error| error.kind() != redlatch::ErrorKind::Cancelled).collect();
    carls.join().map_err(|_| "a thread panicked")??;

    story.sort_by_key(|fact| fact.at);
    println!("     0 ms  the master is killed");
    for Fact { who, what, at } in &story {
        println!("{:>6} ms  {who:9} {what}", at.saturating_duration_since(killed).as_millis());
    }
    for error in &failed {
        println!("           A WAIT FAILED: {error:#}");
    }
    let (told, had) = (said(&story, "bert"), said(&story, "carl"));
    let both =
        told.zip(had).map_or(Duration::ZERO, |(told, had)| told.saturating_duration_since(had));
    let both = match both {
        Duration::ZERO => {
            "He was told before Carl had the lock,\nbut they may both have it".to_owned()
        }
        both => format!(
            "For {both:.1?} both he and Carl took\nthe lock for theirs, and it may be longer"
        ),
    };
    println!(
        "\nBert's grant died with the master. {both}. A conditional write keeps that\nfrom doing harm."
    );
    let last = story.iter().filter(|fact| fact.who == "worker").map(|fact| fact.at).max();
    let later = last.map_or(TIMEOUT, |last| last.saturating_duration_since(switched));
    println!("All {WORKERS} workers had gone on {later:.0?} after the Sentinels' decision.");
    Ok(is_held && unknown.unlock().is_err() && failed.is_empty() && later < GOES_ON)
}

/// Runs the story with a lock that is granted only when all replicas have the grant.
fn acknowledged(sentinels: &Sentinels) -> Result<bool, Trouble> {
    const WITHIN: Duration = Duration::from_millis(200);
    let replicas = sentinels.replicas();
    let count = u32::try_from(replicas.len())?;
    let dora = Client::builder(&sentinels.url())
        .replica_acks(count, WITHIN)
        .failover_timeout(Duration::from_secs(3)) // instead of a minute
        .connect()?;
    let lock = dora.reentrant_lock("acknowledged");
    println!("\nDora's locks count only when {count} replicas have them, within {WITHIN:?}.");

    replicas.iter().for_each(|replica| replica.pause());
    let begun = Instant::now();
    let refused = lock.lock().err();
    let took = begun.elapsed();
    replicas.iter().for_each(|replica| replica.resume());
    let Some(refused) = refused else { return Ok(false) };
    println!("They stand still: after {took:.0?} she has an error and no lock:\n  {refused}");
    sentinels.wait_ready();
    let until = Instant::now() + TIMEOUT;
    let guard = loop {
        match lock.lock() {
            // A replica that has just come back does not count yet.
            Err(error) if error.is_transient() && Instant::now() < until => {}
            granted => break granted?,
        }
    };
    println!("They go on: she has it, and so have they.");

    let old = sentinels.master();
    old.kill();
    sentinels.wait_switched(old);
    let is_known: bool = sentinels.master().connection().exists("acknowledged")?;
    println!("The master is killed: its successor knows the lock: {is_known}.");
    let is_held = guard.is_held();
    guard.unlock()?;
    println!("Dora has unlocked: it was hers all the time.");
    Ok(is_held && is_known)
}

/// Contends for a lock until the end of the story.
fn work(
    client: Client,
    over: &CancelToken,
    tell: &Sender<Fact>,
) -> Result<thread::JoinHandle<Result<(), redlatch::Error>>, Trouble> {
    let (lock, over, tell) = (client.reentrant_lock("contended"), over.clone(), tell.clone());
    Ok(thread::spawn(move || {
        loop {
            let guard = lock.lock_cancellable(&over)?;
            let _ = tell
                .send(Fact::now("worker", format!("{:?} has the lock", thread::current().id())));
            thread::sleep(Duration::from_millis(5));
            // The lock or the reply may be lost. No wrong data was written.
            let _ = guard.unlock();
        }
    }))
}

/// Waits until this number of workers have reported since `since`. Returns each worker's first
/// report.
fn wait_for(
    renewal_state: &Receiver<Fact>,
    workers: usize,
    since: Instant,
) -> Result<Vec<Fact>, Trouble> {
    let mut story: Vec<Fact> = Vec::new();
    while story.iter().filter(|fact| fact.who == "worker").count() < workers {
        let fact = renewal_state.recv_timeout(TIMEOUT)?;
        let is_new = fact.at > since && story.iter().all(|known| known.what != fact.what);
        if is_new || fact.who != "worker" {
            story.push(fact);
        }
    }
    Ok(story)
}

/// Waits until the replicas have both locks, and then deletes the second lock from them.
fn forget(sentinels: &Sentinels, known: &str, unknown: &str) -> Result<(), Trouble> {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        while !(redis.exists(known)? && redis.exists(unknown)?) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut set = |value: &str, key: Option<&str>| -> redis::RedisResult<()> {
            let args = ["SET", "replica-read-only", value];
            redis::cmd("CONFIG").arg(&args).exec(&mut redis)?;
            key.map_or(Ok(()), |key| redis.del(key))
        };
        set("no", Some(unknown))?;
        set("yes", None)?;
    }
    Ok(())
}
