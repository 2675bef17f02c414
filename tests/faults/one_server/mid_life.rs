//! A client loses rights while it uses a lock, between two of its scripts.
//!
//! Whichever right is taken away, and whenever, the call fails or has done all of its work. No
//! client gets the lock while another client holds it. After the end of a lease, other clients get
//! the lock. Every key of the lock expires.

mod failover;
mod others;

use redlatch::{LockGuard, NotTaken, Taken};

use super::*;

type Make = fn(&Client, &str) -> Box<dyn Lock>;

struct Kind {
    what: &'static str,
    /// The synchronizer's rows in the table of `docs/operations.md`, in addition to the rows of
    /// every client.
    rows: &'static [&'static str],
    make: Make,
    /// Makes the lock of the other clients, which excludes the restricted client's lock.
    other: Make,
}

fn reads(client: &Client, name: &str) -> Box<dyn Lock> {
    Box::new(client.read_write_lock(name).reader().clone())
}

fn writes(client: &Client, name: &str) -> Box<dyn Lock> {
    Box::new(client.read_write_lock(name).writer().clone())
}

const LOCK: Make = |client, name| Box::new(client.reentrant_lock(name));
const FENCED: Make = |client, name| Box::new(client.fenced_lock(name));
const FAIR: Make = |client, name| Box::new(client.fair_lock(name));

const KINDS: [Kind; 6] = [
    Kind { what: "lock", rows: &["locks"], make: LOCK, other: LOCK },
    Kind { what: "fenced lock", rows: &["locks", "fenced locks"], make: FENCED, other: FENCED },
    Kind { what: "fair lock", rows: &["fair locks"], make: FAIR, other: FAIR },
    Kind { what: "writer", rows: &["read-write locks"], make: writes, other: writes },
    Kind { what: "writer beside readers", rows: &["read-write locks"], make: writes, other: reads },
    Kind { what: "reader", rows: &["read-write locks"], make: reads, other: writes },
];

/// The lease of the restricted client, except in [`When::Waits`].
const SHORT: Duration = Duration::from_millis(300);
/// The lease of the other clients. It is longer than the first lease of a grant by message, so a
/// renewal must extend such a hold.
const LONGER: Duration = Duration::from_millis(2_500);

/// Returns the rights to take away: each right of these rows in `docs/operations.md`, some whole
/// categories, and some channels or keys.
fn taken_away(rows: &[&str]) -> Vec<Vec<String>> {
    let text =
        include_str!("../../../docs/operations.md").split("## Access rights").nth(1).unwrap();
    let (mut row, mut commands) = ("", Vec::new());
    for line in text.split("```").nth(1).unwrap().lines().skip(1) {
        let name = line.split("  ").next().unwrap();
        // There are two rows with the name "expirable semaphores".
        if !name.is_empty() && (row, name) != ("expirable", "semaphores") {
            row = name;
        }
        if row == "for each client" || rows.contains(&row) {
            commands.extend(line.split([' ', ';']).filter_map(|it| it.strip_prefix('+')));
        }
    }
    commands.retain(|it| *it != "ping");
    commands.sort_unstable();
    commands.dedup();
    assert!(commands.len() > 7, "{rows:?}: {commands:?}");
    commands.extend(["@write", "@read", "@hash", "@list", "@sortedset", "@keyspace", "@scripting"]);
    let mut all: Vec<_> = commands.iter().map(|it| vec![format!("-{it}")]).collect();
    all.push(vec!["resetchannels".to_owned()]);
    for keys in ["~case*", "~*queue*"] {
        all.push(vec!["resetkeys".to_owned(), keys.to_owned()]);
    }
    all
}

/// Whether these rights may matter if the server does not have the scripts. The client then sends
/// the scripts' texts, whose commands need the same rights.
fn is_of_texts(rules: &[String]) -> bool {
    rules[0].contains("eval") || rules[0].contains('@') || rules[0].starts_with("reset")
}

/// The moment at which the rights are taken away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// Before a request for the lock.
    Before,
    /// The client holds the lock, and another client waits for it.
    Held,
    /// The same as [`Held`](Self::Held), but the server has also forgotten the scripts.
    HeldAndFlushed,
    /// The client holds the lock, and the next renewal is due.
    Renewed,
    /// The client waits for the lock, which another client holds.
    Waits,
    /// Just after a message has granted the client the lock, while another client waits for it.
    HandedOn,
}

/// A lock, and the clients that use it.
struct Case {
    server: Arc<Server>,
    what: String,
    name: String,
    lock: Box<dyn Lock>,
    other: Box<dyn Lock>,
    third: Box<dyn Lock>,
    /// The same lock in a client that takes it only to check whether it is free.
    judge: Box<dyn Lock>,
    id: String,
}

impl Case {
    /// Asserts that no other client gets the lock while this guard has it.
    fn is_alone(&self, guard: &LockGuard) {
        let got = self.judge.try_lock().unwrap_or_else(|error| panic!("{}: {error}", self.what));
        if let Taken(got) = got {
            // The guards are read one after the other. If both report "held", both were held at a
            // moment between the two reads.
            assert!(!(guard.is_held() && got.is_held()), "{}: two holders", self.what);
        }
        self.ends();
    }

    /// Asserts that each key of the lock expires, at the latest when the longest lease ends.
    fn ends(&self) {
        let mut redis = self.server.connection();
        let keys: Vec<String> = redis.keys(format!("*{}*", self.name)).unwrap();
        for key in keys {
            let most = if key.contains("token") || key.starts_with("redisson_lock_") {
                // The keys of a fair lock do not expire, as in Redisson.
                continue;
            } else if key.contains("queue") {
                60_000
            } else {
                i64::try_from(LONGER.as_millis()).unwrap()
            };
            let left: i64 = redis.pttl(&key).unwrap();
            assert!(left != -1 && left <= most, "{}: {key} ends in {left} ms", self.what);
        }
    }

    /// Whether the restricted client has the lock, according to the server.
    fn has_it(&self) -> bool {
        let fields: Vec<String> = self.server.connection().hkeys(&self.name).unwrap();
        fields.iter().any(|owner| owner.starts_with(&self.id))
    }

    /// Releases the lock of the restricted client. The release either fails or is done.
    fn unlock(&self, guard: LockGuard) {
        match guard.unlock() {
            Ok(()) => assert!(!self.has_it(), "{}: it was not released", self.what),
            Err(error) => self.is_clear(&error),
        }
        self.ends();
    }

    fn is_clear(&self, error: &redlatch::Error) {
        let is_lost = error.kind() == ErrorKind::LeaseLost;
        assert!(is_lost || error.kind().is_server_trouble(), "{}: {error}", self.what);
    }

    /// Asserts that another client gets the lock.
    fn goes_on(&self, lock: &dyn Lock) {
        let guard = lock.try_lock_for(TIMEOUT);
        let guard = guard.unwrap_or_else(|error| panic!("{}: {error}", self.what));
        let guard =
            guard.into_option().unwrap_or_else(|| panic!("{}: nobody else gets it", self.what));
        self.is_alone(&guard);
        self.had_it(guard);
    }

    /// Asserts that no client took the lock away from this guard. On a busy machine the hold may
    /// have expired.
    fn had_it(&self, guard: LockGuard) {
        if let Err(error) = guard.unlock() {
            assert!(error.to_string().contains("its lease ran out"), "{}: {error}", self.what);
        }
    }

    /// Waits until this number of waiters wait. A reader may get the lock before a writer whose
    /// client has not subscribed yet, and may have ended by then.
    fn wait_for(&self, waiters: usize, waiter: &Running<()>, guard: &LockGuard, client: &Client) {
        let what = format!("{}: {waiters} wait, or the lease has ended", self.what);
        wait_until(&what, TIMEOUT, || {
            !guard.is_held()
                || waiter.is_finished()
                || client.status(&self.name).is_ok_and(|it| it.queue.len() == waiters)
        });
    }
}

/// The clients with all rights, for all cases.
struct Rich {
    other: Client,
    third: Client,
    judge: Client,
}

/// Takes a lock. On a machine that stands still, a grant may end before the client reads the reply,
/// so the function tries again.
fn held(lock: &dyn Lock) -> LockGuard {
    let mut guard = None;
    wait_until("it is held", TIMEOUT, || {
        guard = lock.lock().ok();
        guard.is_some()
    });
    guard.unwrap()
}

fn takes_away(server: &Arc<Server>, rich: &Rich, kind: &Kind, rules: &[String], when: When) {
    let what = format!("{}, {when:?}, {rules:?}", kind.what);
    let name = format!("case {what}").replace(['{', '}', '*', '[', ']', '"'], "");
    let mut user = new_user(server);
    let lease = if when == When::Waits { LONGER } else { SHORT };
    let poor = impatient(user.url()).watchdog_timeout(lease).connect().unwrap();
    let judge: Make = if kind.rows == ["read-write locks"] { writes } else { kind.other };
    let case = Arc::new(Case {
        server: Arc::clone(server),
        lock: (kind.make)(&poor, &name),
        other: (kind.other)(&rich.other, &name),
        third: (kind.other)(&rich.third, &name),
        judge: judge(&rich.judge, &name),
        id: poor.id().to_owned(),
        what,
        name,
    });
    // This call makes the connection check its rights. On a busy machine its lease may end.
    drop(held(&*case.lock));
    let rules = rules.to_vec();
    let mut take_away = move || user.set(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    match when {
        When::Before => {
            take_away();
            match case.lock.try_lock_for(TIMEOUT) {
                Ok(Taken(guard)) => {
                    case.is_alone(&guard);
                    case.unlock(guard);
                }
                Ok(NotTaken) => panic!("{}: nobody has it", case.what),
                Err(error) => {
                    case.is_clear(&error);
                    let taken = error.outcome_unknown() || !case.has_it();
                    assert!(taken, "{}: it was taken, and {error}", case.what);
                }
            }
        }
        When::Held | When::HeldAndFlushed | When::Renewed => {
            let guard = held(&*case.lock);
            let waiter = {
                let case = Arc::clone(&case);
                spawn(move || case.goes_on(&*case.other))
            };
            case.wait_for(1, &waiter, &guard, &rich.other);
            if when == When::HeldAndFlushed {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).unwrap();
            }
            take_away();
            if when == When::Renewed {
                let mut least = guard.remaining();
                wait_until("it is lost or renewed", TIMEOUT, || {
                    let left = guard.remaining();
                    let is_renewed = left > least;
                    least = left;
                    is_renewed || !guard.is_held()
                });
            }
            case.is_alone(&guard);
            case.unlock(guard);
            waiter.join();
        }
        When::Waits => {
            let guard = held(&*case.other);
            let waiter = {
                let case = Arc::clone(&case);
                spawn(move || match case.lock.try_lock_for(LONGER) {
                    Ok(Taken(guard)) => {
                        case.is_alone(&guard);
                        // LONGER exceeds the lease of a grant by message.
                        let _ = guard.check(LONGER - SHORT);
                        case.is_alone(&guard);
                        case.unlock(guard);
                    }
                    Ok(NotTaken) => {}
                    Err(error) => case.is_clear(&error),
                })
            };
            case.wait_for(1, &waiter, &guard, &rich.other);
            take_away();
            case.is_alone(&guard);
            case.had_it(guard);
            case.goes_on(&*case.third);
            waiter.join();
        }
        When::HandedOn => {
            let guard = held(&*case.other);
            let waiter = {
                let case = Arc::clone(&case);
                spawn(move || {
                    let guard = held(&*case.lock);
                    // Take the rights away at once, because the script of a release takes a shorter
                    // path soon after a grant by message.
                    take_away();
                    case.unlock(guard);
                })
            };
            case.wait_for(1, &waiter, &guard, &rich.other);
            let last = {
                let case = Arc::clone(&case);
                spawn(move || case.goes_on(&*case.third))
            };
            case.wait_for(2, &last, &guard, &rich.other);
            case.had_it(guard);
            waiter.join();
            last.join();
        }
    }
    case.goes_on(&*case.other);
    // The client may have lost even the rights that its shutdown needs.
    poor.shutdown();
    case.ends();
}

fn takes_each_away(when: When) {
    let _turn = takes_turns();
    let server = Arc::new(server());
    let [other, third, judge] = [(); 3].map(|()| watched(&server, LONGER));
    let rich = Rich { other, third, judge };
    let mut all: Vec<_> = KINDS
        .iter()
        .flat_map(|kind| taken_away(kind.rows).into_iter().map(move |rules| (kind, rules)))
        .collect();
    all.retain(|(_, rules)| when != When::HeldAndFlushed || is_of_texts(rules));
    many_at_once(&all, |(kind, rules)| takes_away(&server, &rich, kind, rules, when));
}

/// Lets tests with hundreds of threads run one at a time. If all such tests ran at the same time, a
/// server could not answer within its clients' limits.
fn takes_turns() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn many_at_once<T: Sync>(all: &[T], play: impl Fn(&T) + Sync) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                while let Some(each) = all.get(next.fetch_add(1, Ordering::SeqCst) as usize) {
                    play(each);
                }
            });
        }
    });
}

#[test]
fn a_right_that_is_taken_away_before_a_request_leaves_nothing_behind() {
    takes_each_away(When::Before);
}

#[test]
fn a_right_that_is_taken_away_from_a_holder_keeps_the_lock_for_its_lease_at_most() {
    takes_each_away(When::Held);
}

#[test]
fn a_right_that_is_taken_away_with_all_scripts_keeps_the_lock_for_its_lease_at_most() {
    takes_each_away(When::HeldAndFlushed);
}

#[test]
fn a_right_that_is_taken_away_before_a_renewal_keeps_the_lock_for_its_lease_at_most() {
    takes_each_away(When::Renewed);
}

#[test]
fn a_right_that_is_taken_away_behind_a_hand_over_keeps_the_lock_for_its_lease_at_most() {
    takes_each_away(When::HandedOn);
}

#[test]
fn a_right_that_is_taken_away_from_a_waiter_keeps_no_other_from_the_lock() {
    takes_each_away(When::Waits);
}

/// A release and a grant to a waiter need no free memory, because Redis lets a script continue that
/// has written before it needs memory.
#[test]
fn a_server_without_memory_releases_and_hands_over_locks_of_each_kind() {
    let server = server();
    let mut redis = server.connection();
    let clients = [(); 3].map(|()| client(&server));
    let memory = |bytes: &str| {
        let set =
            redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).exec(&mut server.connection());
        set.unwrap();
    };
    for kind in &KINDS {
        let name = kind.what;
        let [first, other, last] = &clients;
        let waits = |make: Make, client: &Client| {
            let lock = make(client, name);
            spawn(move || {
                let guard = lock.lock().unwrap();
                // LONGER exceeds the lease of a grant by message.
                guard.check(LONGER).unwrap();
                guard.unlock().unwrap();
            })
        };
        let in_line = |count, waiter: &Client| {
            wait_until(name, TIMEOUT, || first.status(name).unwrap().queue.len() == count);
            // Wait for the subscription: a reader would get the lock before a writer whose client
            // has not subscribed yet.
            wait_subscribed(&server, &own_channel(waiter.id()));
        };
        let guard = (kind.make)(first, name).lock().unwrap();
        let second = waits(kind.other, other);
        in_line(1, other);
        let third = waits(kind.make, last);
        in_line(2, last);
        memory("1");
        guard.check(TIMEOUT).unwrap();
        guard.unlock().unwrap();
        second.join();
        third.join();
        assert_eq!(pttl(&mut redis, name), -2, "{name}");
        memory("0");
    }
}
