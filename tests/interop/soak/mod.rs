//! Processes of both libraries take turns with each kind of synchronizer. Each holder checks on a
//! separate server that no other holder is inside.

use std::collections::HashMap;
use std::env;

use redis::{Commands as _, Connection};
use redlatch::{Error, ExpirablePermit, MultiLock, MultiLockGuard, Permit};
use redlatch_testkit::Proxy;

use super::*;

/// This lease is longer than in the other tests, so that a machine that is busy for seconds loses
/// no hold.
const LEASE: Duration = Duration::from_secs(10);
/// The maximum wait. If a wait takes longer, the waiter must have missed a message. In Redisson, a
/// wait for a semaphore would then last for ever.
const ENOUGH: Duration = Duration::from_secs(10);
const THREADS: usize = 4;
const PERMITS: &str = "4";
/// The kinds of synchronizers, each with the number of owners that may hold it at the same time.
const KINDS: [(&str, &str); 8] = [
    ("lock", "1"),
    ("fairLock", "1"),
    ("readWriteLock", "1"),
    ("semaphore", PERMITS),
    ("permitExpirableSemaphore", PERMITS),
    // Redisson 3.16 has no fenced locks.
    ("fencedLock", "1"),
    (SEVERAL, "1"),
    (WANTED, "1"),
];
const SEVERAL: &str = "multiLock";
/// A lock that redlatch's holders keep until they are notified that others wait. Redisson uses it
/// as a plain lock.
const WANTED: &str = "wanted";
/// The maximum time until a holder notices that Redisson's waiters wait. A renewal at each third of
/// the lease shows this.
const HEARS: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 3 + 1_500);

/// Returns the length from `REDLATCH_SOAK`, or a default. The second result is whether the variable
/// is set.
fn length() -> (Duration, bool) {
    let set: Option<u64> = env::var("REDLATCH_SOAK").ok().and_then(|it| it.parse().ok());
    (Duration::from_secs(set.unwrap_or(3)), set.is_some())
}

/// The scripts that make the checks.
struct Checks {
    redis: Connection,
    enter: String,
    leave: String,
}

impl Checks {
    fn new(server: &Server) -> Self {
        let mut redis = server.connection();
        let mut load = |script| redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut redis);
        let enter = load(include_str!("enter.lua")).unwrap();
        let leave = load(include_str!("leave.lua")).unwrap();
        Self { redis, enter, leave }
    }

    /// Asserts that no overlap was recorded.
    fn no_overlap(&mut self) {
        let overlaps: Vec<String> = self.redis.lrange("overlaps", 0, 10).unwrap();
        assert_eq!(overlaps, Vec::<String>::new());
    }

    /// Returns the state of an expirable semaphore on the server: its free permits, and the ends of
    /// the leases of its taken permits.
    fn permits(&mut self, name: &str) -> String {
        const SEEN: &str = r"
            local held = redis.call('zrange', '{' .. ARGV[1] .. '}:timeout', 0, -1, 'withscores')
            local hex = function(byte) return string.format('%02x', byte:byte()) end
            for at = 1, #held, 2 do
                held[at] = held[at]:gsub('.', hex)
            end
            return cjson.encode({
                time = redis.call('time'), free = redis.call('get', ARGV[1]), held = held
            })";
        let seen = redis::cmd("EVAL").arg(SEEN).arg(0).arg(name).query(&mut self.redis);
        seen.unwrap_or_else(|error| error.to_string())
    }

    /// Returns the longest time in ms in which no turn ended.
    fn idle(&mut self, name: &str) -> u64 {
        self.redis.get::<_, Option<u64>>(format!("check:{name}:idle")).unwrap().unwrap_or(0)
    }

    fn of(&mut self, name: &str, what: &str) -> HashMap<String, u64> {
        self.redis.hgetall(format!("check:{name}:{what}")).unwrap()
    }
}

/// Measures the delay with which this machine wakes a sleeping thread.
struct Late {
    most: Arc<AtomicU64>,
}

impl Default for Late {
    fn default() -> Self {
        const NAP: Duration = Duration::from_millis(20);
        let most: Arc<AtomicU64> = Arc::default();
        let noted = Arc::downgrade(&most);
        // The thread ends when the `Late` value is dropped.
        thread::spawn(move || {
            while let Some(most) = noted.upgrade() {
                let began = Instant::now();
                thread::sleep(NAP);
                let late = began.elapsed().saturating_sub(NAP).as_millis();
                most.fetch_max(u64::try_from(late).unwrap(), Ordering::Relaxed);
            }
        });
        Self { most }
    }
}

impl Late {
    /// Returns the largest delay of the thread since the last call, in ms.
    fn take(&self) -> u64 {
        self.most.swap(0, Ordering::Relaxed)
    }
}

/// The parameters of the turns with one name, as in a command of `Loop.java`.
#[derive(Clone, Copy)]
struct Turns<'a> {
    kind: &'a str,
    name: &'a str,
    time: Duration,
    hold: Duration,
    wait: Duration,
    /// The lease of Redisson's permits, which are not renewed.
    lease: Duration,
    fresh: bool,
    limit: &'a str,
}

impl Turns<'_> {
    fn command(&self, checks: &Checks, client: &str, side: &str) -> String {
        let Turns { kind, name, time, hold, wait, lease, fresh, limit } = *self;
        let [time, hold, wait, lease] = [time, hold, wait, lease].map(|it| it.as_millis());
        let handles = if fresh { "fresh" } else { "kept" };
        let Checks { enter, leave, .. } = checks;
        let kind = if kind == WANTED && side != OURS { "lock" } else { kind };
        format!(
            "loop {kind} {name} {THREADS} {time} {hold} {wait} {handles} {limit} {client} {enter} \
             {leave} {side} {lease}"
        )
    }
}

/// A Redisson process with a client for the locks and a client for the checks.
struct Theirs {
    version: Version,
    locks: Redisson,
    checks: Redisson,
}

impl Theirs {
    fn new(version: Version, jvm: &Arc<Jvm>, url: &str, server: &Server) -> Self {
        let locks = Redisson::at(jvm, url, LEASE);
        Self { version, locks, checks: Redisson::on(jvm, server) }
    }

    fn has(&self, kind: &str) -> bool {
        kind != "fencedLock" || self.version == Version::New
    }

    fn side(&self) -> &'static str {
        self.version.number()
    }

    fn begin(&mut self, turns: &Turns<'_>, checks: &Checks) {
        let command = turns.command(checks, self.checks.name(), self.side());
        self.locks.tell(turns.name, &command);
    }

    /// Ends the loop. If the process is alive, returns the number of failed calls.
    fn end(&mut self, name: &str) -> u64 {
        self.locks.reply(name).parse().unwrap()
    }
}

/// The name of redlatch's side in the counts of turns.
const OURS: &str = "redlatch";

fn ours(url: &str, server: &Server) -> Worker {
    Worker::spawn_test("worker", "turns", &[url, &server.url()])
}

/// Sets the number of a semaphore's permits.
fn prepare(client: &Client, kind: &str, name: &str) {
    let permits = PERMITS.parse().unwrap();
    match kind {
        "semaphore" => assert!(client.semaphore(name).try_set_permits(permits).unwrap()),
        "permitExpirableSemaphore" => {
            assert!(client.expirable_semaphore(name).try_set_permits(permits).unwrap());
        }
        _ => {}
    }
}

/// Two processes of each library take turns, with holds of 20 ms. Without `REDLATCH_SOAK` all kinds
/// run at the same time for some seconds. With this variable, the kinds run one after the other,
/// and both libraries must get fair shares.
///
/// With `REDLATCH_ALONE` two more Redisson processes replace the redlatch processes, to show how
/// long Redisson's threads wait among themselves. `REDLATCH_KIND` selects the kinds whose names
/// contain its value.
#[test]
fn both_libraries_take_turns() {
    if !is_long() {
        return;
    }
    if !is_beside_redisson() {
        return;
    }
    let (length, is_soak) = length();
    let server = unbounded_server();
    let client = client(&server);
    let mut checks = Checks::new(&server);
    let alone = env::var_os("REDLATCH_ALONE").is_some();
    let versions = [Version::New, Version::Old];
    let versions = versions.into_iter().cycle().take(if alone { 4 } else { 2 });
    let mut theirs: Vec<_> = versions
        .map(|version| {
            // A soak measures times, so it starts a Java process that does nothing else.
            let jvm = if is_soak { Jvm::start(version) } else { Jvm::shared(version) };
            Theirs::new(version, &jvm, &server.url(), &server)
        })
        .collect();
    let mut ours: Vec<_> =
        (0..if alone { 0 } else { 2 }).map(|_| ours(&server.url(), &server)).collect();
    if is_soak {
        // A JVM is slow until it has compiled the code that it runs.
        let time = Duration::from_secs(15);
        let _failed = take_turns(
            &KINDS.map(|kind| (kind, false)),
            time,
            "warm",
            &client,
            &mut theirs,
            &mut ours,
            &mut checks,
        );
    }
    let both = |fresh| KINDS.map(|kind| (kind, fresh));
    let wanted = env::var("REDLATCH_KIND").unwrap_or_default();
    let all = both(false).into_iter().chain(both(true));
    let all: Vec<_> = all.filter(|((kind, _), _)| kind.contains(&wanted)).collect();
    let rounds = if is_soak { all.chunks(1) } else { all.chunks(all.len()) };
    let time = if is_soak { length / u32::try_from(all.len()).unwrap() } else { length };
    let mut unfair = Vec::new();
    let late = Late::default();
    for round in rounds {
        let _before = late.take();
        let failed = take_turns(round, time, "", &client, &mut theirs, &mut ours, &mut checks);
        println!("this machine's threads were late by at most {} ms", late.take());
        for ((kind, _), fresh) in round {
            let name = named(kind, *fresh, "");
            let (turns, longest) = (checks.of(&name, "of"), checks.of(&name, "longest"));
            let of = |side: &str| turns.get(side).copied().unwrap_or(0);
            let total: u64 = turns.values().sum();
            let redissons = total - of("redlatch");
            let share = redissons as f64 * 2.0 / total.max(1) as f64;
            let idle = checks.idle(&name);
            println!(
                "{name}: Redisson has {share:.2} of an even share, {turns:?}; longest waits in ms \
                 {longest:?}; no turn for at most {idle} ms"
            );
            assert!(redissons > 0 && (alone || of("redlatch") > 0), "{name}: {turns:?}");
            // A holder of this lock waits for a renewal, so it keeps the lock for seconds.
            if *kind == WANTED {
                continue;
            }
            // A missed message leaves the lock idle. A single Redisson thread may wait long while
            // others take turns, because Redisson's threads race, even without redlatch. A Redisson
            // thread may also wait long for several locks, because it gives all of them back if one
            // is taken.
            let (ordered, several) = (*kind == "fairLock", *kind == SEVERAL);
            let waited = longest.iter().filter(|(side, _)| ordered || *side != OURS);
            let waited = waited.map(|(_, it)| *it).filter(|_| !several).max().unwrap_or(0);
            let failed = if several { 0 } else { failed };
            if share < 0.5 || idle.max(waited) > 3_000 || failed > 0 {
                unfair.push(format!(
                    "{name}: {share:.2}, idle for {idle} ms, waited {waited} ms, {failed} failed"
                ));
            }
        }
    }
    assert!(!is_soak || alone || unfair.is_empty(), "{unfair:#?}");
}

fn named(kind: &str, fresh: bool, prefix: &str) -> String {
    name_of(kind, &format!("{prefix}{kind}-{}", if fresh { "fresh" } else { "kept" }))
}

/// The name, or for several locks their names, with a comma between two names.
fn name_of(kind: &str, name: &str) -> String {
    if kind == SEVERAL { format!("{name}-1,{name}-2") } else { name.to_owned() }
}

/// Takes turns with all these kinds at the same time. Returns the number of Redisson's failed
/// calls.
fn take_turns(
    kinds: &[((&str, &str), bool)],
    time: Duration,
    prefix: &str,
    client: &Client,
    theirs: &mut [Theirs],
    ours: &mut [Worker],
    checks: &mut Checks,
) -> u64 {
    let hold = Duration::from_millis(20);
    for ((kind, limit), fresh) in kinds {
        let name = &named(kind, *fresh, prefix);
        prepare(client, kind, name);
        let turns =
            Turns { kind, name, time, hold, wait: ENOUGH, lease: LONG_LEASE, fresh: *fresh, limit };
        // Each library has the same number of threads.
        let mut count = 0;
        for theirs in theirs.iter_mut().filter(|it| it.has(kind)) {
            theirs.begin(&turns, checks);
            count += 1;
        }
        for ours in ours.iter_mut().take(count) {
            ours.send_line(&turns.command(checks, "-", "redlatch"));
        }
    }
    let mut failed = [0; 2];
    for ((kind, _), fresh) in kinds {
        let mut count = 0;
        for theirs in theirs.iter_mut().filter(|it| it.has(kind)) {
            let said = theirs.locks.reply_within(&named(kind, *fresh, prefix), time + TIMEOUT);
            failed[0] += said.expect("its threads end").parse::<u64>().unwrap();
            count += 1;
        }
        for ours in ours.iter_mut().take(count) {
            failed[1] += ours.expect_line("failed ", time + TIMEOUT).parse::<u64>().unwrap();
        }
    }
    checks.no_overlap();
    assert_eq!(failed[1], 0, "calls of ours");
    failed[0]
}

/// Takes turns while connections break and processes are killed and replaced. Semaphores without
/// leases are left out, because a killed process keeps their permits for ever.
#[test]
fn no_two_hold_what_one_may_hold_while_processes_die_and_connections_break() {
    if !is_long() {
        return;
    }
    if !is_beside_redisson() {
        return;
    }
    let (length, _) = length();
    let server = unbounded_server();
    let client = client(&server);
    let mut checks = Checks::new(&server);
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let kinds = KINDS.into_iter().filter(|(kind, _)| *kind != "semaphore");
    let kinds: Vec<_> = kinds.collect();
    for (kind, _) in &kinds {
        prepare(&client, kind, kind);
    }
    let names: Vec<_> = kinds.iter().map(|(kind, _)| name_of(kind, kind)).collect();
    let their_process = |version| {
        let jvm = Jvm::start(version);
        let theirs = Theirs::new(version, &jvm, &proxies[0].url(), &server);
        (jvm, theirs)
    };
    let our_process = || ours(&proxies[1].url(), &server);
    let mut theirs = [Version::New, Version::Old].map(their_process);
    let mut ours = [our_process(), our_process()];
    let end = Instant::now() + length;
    let turns = |at: usize| {
        let (kind, limit) = kinds[at];
        let time = end.saturating_duration_since(Instant::now());
        let (hold, wait) = (Duration::from_millis(5), Duration::from_secs(1));
        Turns {
            kind,
            name: &names[at],
            time,
            hold,
            wait,
            lease: LEASE,
            fresh: at.is_multiple_of(2),
            limit,
        }
    };
    let they_begin = |theirs: &mut Theirs, checks: &Checks| {
        for turns in (0..kinds.len()).map(turns) {
            if theirs.has(turns.kind) {
                theirs.begin(&turns, checks);
            }
        }
    };
    let ours_begin = |ours: &mut Worker, checks: &Checks| {
        for turns in (0..kinds.len()).map(turns) {
            ours.send_line(&turns.command(checks, "-", "redlatch"));
        }
    };
    theirs.iter_mut().for_each(|(_, theirs)| they_begin(theirs, &checks));
    ours.iter_mut().for_each(|ours| ours_begin(ours, &checks));
    let mut random = Random::new();
    let (mut killed, mut cut) = ([0, 0], 0);
    let pause = Duration::from_secs(2).min(length / 4);
    let mut next_kill = Instant::now() + pause;
    while Instant::now() < end || killed[1] == 0 {
        thread::sleep(TIME_UNIT + Duration::from_millis(random.below(300)));
        if random.below(2) == 0 {
            cut += proxies[usize::from(random.below(2) == 0)].cut_all();
        }
        if Instant::now() < next_kill {
            continue;
        }
        let at = usize::from(random.below(2) == 0);
        if killed[0] <= killed[1] {
            theirs[at].0.kill();
            theirs[at] = their_process(theirs[at].1.version);
            they_begin(&mut theirs[at].1, &checks);
            killed[0] += 1;
        } else {
            ours[at].sigkill();
            ours[at] = our_process();
            ours_begin(&mut ours[at], &checks);
            killed[1] += 1;
        }
        // The start of the Java process took a second, so count the pause from now.
        next_kill = Instant::now() + pause;
    }
    let mut failed = [0, 0];
    for ((kind, _), name) in kinds.iter().zip(&names) {
        for (_, theirs) in theirs.iter_mut().filter(|(_, theirs)| theirs.has(kind)) {
            failed[0] += theirs.end(name);
        }
        for ours in &mut ours {
            failed[1] += ours.expect_line("failed ", TIMEOUT).parse::<u64>().unwrap();
        }
    }
    let mut redissons = 0;
    println!("killed {killed:?} (Redisson's, ours), cut {cut}, failed calls {failed:?}");
    for ((kind, _), name) in kinds.iter().zip(&names) {
        let turns = checks.of(name, "of");
        println!("{kind}: {turns:?}, longest waits in ms {:?}", checks.of(name, "longest"));
        assert!(turns.contains_key("redlatch"), "{kind}: {turns:?}");
        redissons += turns.len() - 1;
    }
    // A new Java process may take no turn with some kinds, but not with all.
    assert!(redissons > 0);
    checks.no_overlap();
    // The holds of dead processes end. The fair lock is left out: a dead Redisson waiter blocks its
    // queue for minutes if a redlatch waiter was directly before the dead waiter, behind another
    // Redisson waiter.
    for (kind, _) in kinds.iter().filter(|(kind, _)| *kind != "fairLock") {
        let lock = match *kind {
            "permitExpirableSemaphore" => {
                let semaphore = client.expirable_semaphore(kind);
                let all =
                    semaphore.try_acquire_many_for(PERMITS.parse().unwrap(), TIMEOUT).unwrap();
                let left = || panic!("not all permits come back: {}", checks.permits(kind));
                drop(all.into_option().unwrap_or_else(left));
                continue;
            }
            "readWriteLock" => Kind::Write.ours(&client, kind),
            SEVERAL => {
                let all = several(&client, &name_of(kind, kind)).try_lock_for(TIMEOUT).unwrap();
                drop(all.into_option().unwrap_or_else(|| panic!("{kind} is not free")));
                continue;
            }
            WANTED => Kind::Plain.ours(&client, kind),
            kind => Kind::of_java(kind).ours(&client, kind),
        };
        drop(
            lock.try_lock_for(TIMEOUT)
                .unwrap()
                .into_option()
                .unwrap_or_else(|| panic!("{kind} is not free")),
        );
    }
}

/// A redlatch thread's hold during its turn.
enum Held {
    Lock(LockGuard),
    Several(MultiLockGuard),
    Permit(Permit),
    Expirable(ExpirablePermit),
}

impl Held {
    fn release(self) -> Result<(), Error> {
        match self {
            Self::Lock(guard) => guard.unlock(),
            Self::Several(guard) => guard.unlock(),
            Self::Permit(permit) => permit.release(),
            Self::Expirable(permit) => permit.release(),
        }
    }

    /// Waits until the holder is notified that others wait, or until `end`. Returns whether the
    /// notification came in time.
    fn hears(&self, end: Instant) -> bool {
        let Self::Lock(guard) = self else { return true };
        let (news, wanted) = mpsc::channel();
        guard.on_wanted(move || {
            let _ = news.send(());
        });
        let left = end.saturating_duration_since(Instant::now());
        wanted.recv_timeout(left.min(HEARS)).is_ok() || Instant::now() >= end
    }
}

fn several(client: &Client, names: &str) -> MultiLock {
    let locks: Vec<_> = names.split(',').map(|name| client.reentrant_lock(name)).collect();
    MultiLock::new(&locks).unwrap()
}

type Begin = Box<dyn Fn(bool, Duration) -> Result<Option<Held>, Error>>;

/// Returns a function that takes a turn within the wait, and returns whether it writes.
fn handle(client: &Client, kind: &str, name: &str) -> Begin {
    fn take(lock: &dyn Lock, wait: Duration) -> Result<Option<Held>, Error> {
        Ok(lock.try_lock_for(wait)?.into_option().map(Held::Lock))
    }
    match kind {
        "semaphore" => {
            let semaphore = client.semaphore(name);
            Box::new(move |_, wait| {
                Ok(semaphore.try_acquire_for(wait)?.into_option().map(Held::Permit))
            })
        }
        "permitExpirableSemaphore" => {
            let semaphore = client.expirable_semaphore(name);
            Box::new(move |_, wait| {
                Ok(semaphore.try_acquire_for(wait)?.into_option().map(Held::Expirable))
            })
        }
        "readWriteLock" => {
            let lock = client.read_write_lock(name);
            Box::new(
                move |writes, wait| {
                    if writes { take(lock.writer(), wait) } else { take(lock.reader(), wait) }
                },
            )
        }
        SEVERAL => {
            let lock = several(client, name);
            Box::new(move |_, wait| Ok(lock.try_lock_for(wait)?.into_option().map(Held::Several)))
        }
        WANTED => {
            let lock = client.reentrant_lock(name).with_wanted();
            Box::new(move |_, wait| take(&lock, wait))
        }
        kind => {
            let lock = Kind::of_java(kind).ours(client, name);
            Box::new(move |_, wait| take(&*lock, wait))
        }
    }
}

/// Runs the same commands as the loops of the Java program.
pub(crate) fn turns_process(job: &Job) {
    let builder = Client::builder(job.arg(0))
        .watchdog_timeout(LEASE)
        // If a dead Redisson waiter for a fair lock came behind a redlatch waiter, it blocks the
        // queue for this time.
        .fair_wait_timeout(TIME_UNIT * 10);
    // The connection may be cut while the client opens it.
    let until = Instant::now() + TIMEOUT;
    let client = loop {
        match builder.clone().connect() {
            Err(_) if Instant::now() < until => {}
            connected => break connected.unwrap(),
        }
    };
    let server = redis::Client::open(job.arg(1)).unwrap();
    thread::scope(|scope| {
        loop {
            let line = job.wait_line();
            let (client, server) = (&client, &server);
            scope.spawn(move || {
                let words: Vec<&str> = line.split(' ').collect();
                // A holder notices a waiter of its own process at once, so the process has only one
                // thread for this lock.
                let threads = if words[1] == WANTED { 1 } else { words[3].parse().unwrap() };
                let failed: u64 = thread::scope(|scope| {
                    let threads: Vec<_> = (0..threads)
                        .map(|at| {
                            scope.spawn({
                                let words = &words;
                                move || take_turns_here(client, server, words, at)
                            })
                        })
                        .collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
                });
                job.say(&format!("failed {failed}"));
            });
        }
    });
}

fn take_turns_here(client: &Client, server: &redis::Client, words: &[&str], at: usize) -> u64 {
    let &["loop", kind, name, _, time, hold, wait, handles, limit, _, enter, leave, side, _] =
        words
    else {
        panic!("no loop: {words:?}");
    };
    let millis = |word: &str| word.parse().map(Duration::from_millis);
    let (time, hold, wait) = (millis(time).unwrap(), millis(hold).unwrap(), millis(wait).unwrap());
    let mut redis = server.get_connection().unwrap();
    let me = format!("{}:{at}", client.id());
    let end = Instant::now() + time;
    let kept = handle(client, kind, name);
    let mut failed = 0;
    for turn in 1_u64.. {
        if Instant::now() >= end {
            break;
        }
        let fresh = (handles == "fresh").then(|| handle(client, kind, name));
        let writes = kind != "readWriteLock" || turn.is_multiple_of(4);
        let mode = if writes { "write" } else { "read" };
        let asked = Instant::now();
        match fresh.as_ref().unwrap_or(&kept)(writes, wait) {
            Ok(Some(held)) => {
                let waited = asked.elapsed().as_millis().to_string();
                let mut check = |script: &str, more: &[&str]| -> String {
                    let mut check = redis::cmd("EVALSHA");
                    check.arg(script).arg(1).arg(format!("check:{name}")).arg(&[&me, mode, limit]);
                    check.arg(more).query(&mut redis).unwrap()
                };
                let seen = check(enter, &[]);
                thread::sleep(hold);
                if kind == WANTED && !held.hears(end) {
                    println!("a holder of {name} has not heard of waiters");
                    failed += 1;
                }
                check(leave, &[&seen, side, &waited]);
                failed += u64::from(held.release().is_err());
            }
            Ok(None) => failed += 1,
            Err(_) => {
                failed += 1;
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    failed
}
