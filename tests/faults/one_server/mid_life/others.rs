//! The cases of the parent module, for synchronizers that are not locks.
//!
//! Whichever right is taken away, and whenever, the call fails or has done all of its work, and
//! other clients continue. After the rights are back, no permit, count or notification is lost, and
//! none has been given twice.

use redlatch::{Condition, CyclicBarrier, Error, ExpirablePermit, NotTaken, ReentrantLock, Taken};

use super::*;

struct Other {
    what: &'static str,
    /// The synchronizer's rows in the table of `docs/operations.md`, in addition to the rows of
    /// every client.
    rows: &'static [&'static str],
    /// The plays. Each play takes a right away at a different moment.
    plays: &'static [fn(&Play<'_>)],
}

const OTHERS: [Other; 6] = [
    Other {
        what: "semaphore",
        rows: &["semaphores"],
        plays: &[
            |it| before_permits(it, false),
            |it| held_permits(it, false),
            |it| awaited_permits(it, false),
        ],
    },
    Other {
        what: "expirable semaphore",
        rows: &["expirable"],
        plays: &[
            |it| before_permits(it, true),
            |it| held_permits(it, true),
            |it| awaited_permits(it, true),
            renewed_permits,
        ],
    },
    Other {
        what: "latch",
        rows: &["latches"],
        plays: &[|it| count(it, 2), |it| count(it, 1), awaited_count],
    },
    Other {
        what: "barrier",
        rows: &["barriers"],
        plays: &[first_party, last_party, party_that_acts],
    },
    Other {
        what: "election",
        rows: &["fenced locks", "elections"],
        plays: &[before_campaign, leadership, candidacy],
    },
    Other {
        what: "condition",
        rows: &["locks", "conditions"],
        plays: &[before_wait, wait, notifier],
    },
];

pub(super) const ALL_RIGHTS: [&str; 3] = ["~*", "&*", "+@all"];

/// A case: a restricted client, and other clients.
pub(super) struct Play<'a> {
    pub(super) server: &'a Server,
    pub(super) rich: &'a Rich,
    pub(super) poor: Client,
    pub(super) user: Arc<Mutex<User>>,
    pub(super) rules: &'a [String],
    /// Whether the server also forgets all scripts at that moment.
    pub(super) flushes: bool,
    pub(super) what: String,
    pub(super) name: String,
}

impl Drop for Play<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("in the case {}", self.what);
        }
    }
}

impl Play<'_> {
    pub(super) fn take_away(&self) {
        if self.flushes {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut self.server.connection()).unwrap();
        }
        self.user.lock().unwrap().set(&self.rules.iter().map(String::as_str).collect::<Vec<_>>());
    }

    pub(super) fn give_back(&self) {
        self.user.lock().unwrap().set(&ALL_RIGHTS);
    }

    /// Asserts that a result of the restricted client is a success or a clear error.
    pub(super) fn clear<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| {
            // A lease may also have ended by itself, or may be about to end.
            let known = [ErrorKind::LeaseLost, ErrorKind::EndsTooSoon, ErrorKind::NotHeld];
            let is_known = error.kind().is_server_trouble() || known.contains(&error.kind());
            assert!(is_known, "{}: {error}", self.what);
        })
    }

    /// Asserts that a call of another client succeeded.
    pub(super) fn good<T>(&self, outcome: Result<T, Error>) -> T {
        outcome.unwrap_or_else(|error| panic!("{}: {error}", self.what))
    }

    /// Waits until this thread sleeps in a wait and its client listens to this channel.
    fn wait_in_wait<T>(&self, waiter: &Running<T>, channel: &str) {
        wait_subscribed(self.server, channel);
        waiter.wait_asleep();
    }

    pub(super) fn waits_until(&self, what: &str, so: impl FnMut() -> bool) {
        wait_until(&format!("{}: {what}", self.what), TIMEOUT, so);
    }
}

/// Returns the permits to the semaphore.
pub(super) type Permits = Box<dyn FnOnce() -> Result<(), Error> + Send>;

pub(super) const TOTAL: i64 = 4;

/// Takes permits. If `leased` is true, the semaphore is expirable.
fn take(
    client: &Client,
    name: &str,
    leased: bool,
    permits: u32,
    wait: Duration,
) -> Result<Option<Permits>, Error> {
    Ok(if leased {
        let got = client.expirable_semaphore(name).try_acquire_many_for(permits, wait)?;
        got.into_option().map(|mut all| {
            Box::new(move || all.drain(..).try_for_each(ExpirablePermit::release)) as _
        })
    } else {
        let got = client.semaphore(name).try_acquire_many_for(permits, wait)?;
        got.into_option().map(|it| Box::new(move || it.release()) as _)
    })
}

/// Returns the number of free permits, and the number of taken permits that the server knows.
pub(super) fn permits(server: &Server, name: &str) -> (i64, i64) {
    let mut both = redis::pipe();
    both.atomic().get(name).zcard(format!("{{{name}}}:timeout"));
    both.query(&mut server.connection()).unwrap()
}

impl Play<'_> {
    pub(super) fn make_permits(&self, leased: bool) {
        let made = if leased {
            self.rich.other.expirable_semaphore(&self.name).try_set_permits(TOTAL as u32)
        } else {
            self.rich.other.semaphore(&self.name).try_set_permits(TOTAL as u32)
        };
        assert!(self.good(made), "{}", self.what);
        // This call makes the connection check its rights. On a busy machine its lease may end.
        let _ = self.takes(&self.poor, leased, 1)();
    }

    pub(super) fn takes(&self, client: &Client, leased: bool, permits: u32) -> Permits {
        let mut got = None;
        self.waits_until("they are taken", || {
            match take(client, &self.name, leased, permits, TIMEOUT) {
                Err(error) if leased && error.to_string().contains("the lease was over") => {}
                taken => got = self.good(taken),
            }
            got.is_some()
        });
        got.unwrap()
    }

    /// Asserts that all permits are free again. Permits with leases return without any right.
    pub(super) fn all_come_back(&self, leased: bool) {
        if !leased {
            self.give_back();
        }
        let all = self.takes(&self.rich.third, leased, TOTAL as u32);
        self.good(all());
        assert_eq!(permits(self.server, &self.name), (TOTAL, 0), "{}", self.what);
    }
}

fn before_permits(it: &Play<'_>, leased: bool) {
    it.make_permits(leased);
    it.take_away();
    match it.clear(take(&it.poor, &it.name, leased, 2, TIMEOUT)) {
        Ok(permits) => drop(it.clear(permits.expect("there are some")())),
        Err(error) => {
            let none = permits(it.server, &it.name) == (TOTAL, 0);
            assert!(none || error.outcome_unknown(), "{}: taken, and {error}", it.what);
        }
    }
    it.all_come_back(leased);
}

fn held_permits(it: &Play<'_>, leased: bool) {
    it.make_permits(leased);
    let held = it.takes(&it.poor, leased, 2);
    let waiter = {
        let (client, name) = (it.rich.other.clone(), it.name.clone());
        spawn(move || take(&client, &name, leased, 3, TIMEOUT).map(|got| got.map(|back| back())))
    };
    if !leased {
        it.wait_in_wait(&waiter, &format!("redisson_sc:{{{}}}", it.name));
    }
    it.take_away();
    if !leased {
        assert_eq!(permits(it.server, &it.name), (2, 0), "{}", it.what);
        assert!(!waiter.is_finished(), "{}", it.what);
    }
    let released = it.clear(held());
    if released.is_err() && !leased {
        it.give_back();
    }
    let waited = it.good(waiter.join());
    it.good(waited.unwrap_or_else(|| panic!("{}: the waiter gets none", it.what)));
    it.all_come_back(leased);
}

fn awaited_permits(it: &Play<'_>, leased: bool) {
    it.make_permits(leased);
    let all = it.takes(&it.rich.other, leased, TOTAL as u32);
    let waiter = {
        let (client, name) = (it.poor.clone(), it.name.clone());
        spawn(move || match take(&client, &name, leased, 2, LONGER)? {
            Some(back) => back(),
            None => Ok(()),
        })
    };
    it.wait_in_wait(&waiter, &format!("redisson_sc:{{{}}}", it.name));
    it.take_away();
    it.good(all());
    let two = it.takes(&it.rich.third, leased, 2);
    it.good(two());
    drop(it.clear(waiter.join()));
    it.all_come_back(leased);
}

fn renewed_permits(it: &Play<'_>) {
    it.make_permits(true);
    let (mut held, semaphore) = (None, it.poor.expirable_semaphore(&it.name));
    it.waits_until("it is taken", || {
        held = semaphore.acquire().ok();
        held.is_some()
    });
    let held = held.unwrap();
    it.take_away();
    let mut least = held.remaining();
    it.waits_until("it is lost or renewed", || {
        let left = held.remaining();
        let is_renewed = left > least;
        least = left;
        is_renewed || !held.is_held()
    });
    drop(it.clear(held.release()));
    it.all_come_back(true);
}

/// The client counts down from this count.
fn count(it: &Play<'_>, from: u64) {
    let (latch, theirs) =
        (it.poor.count_down_latch(&it.name), it.rich.other.count_down_latch(&it.name));
    // This call makes the connection check its rights.
    assert!(it.good(latch.try_set_count(from)));
    let waits = theirs.clone();
    let waiter = spawn(move || waits.wait_for(TIMEOUT));
    it.wait_in_wait(&waiter, &format!("redisson_countdownlatch__channel__{{{}}}", it.name));
    it.take_away();
    let counted = it.clear(latch.count_down());
    let left = it.good(theirs.count());
    match counted {
        Ok(()) => assert_eq!(left, from - 1, "{}", it.what),
        Err(error) => {
            assert!(left == from || error.outcome_unknown(), "{}: counted, and {error}", it.what);
        }
    }
    for _ in 0..left {
        assert!(!waiter.is_finished(), "{}: it opened early", it.what);
        it.good(theirs.count_down());
    }
    assert!(!it.good(waiter.join()).timed_out(), "{}: it is not told", it.what);
    it.give_back();
    assert_eq!(it.good(latch.count()), 0, "{}", it.what);
}

fn awaited_count(it: &Play<'_>) {
    let (latch, theirs) =
        (it.poor.count_down_latch(&it.name), it.rich.other.count_down_latch(&it.name));
    assert!(it.good(theirs.try_set_count(1)));
    let waiter = spawn(move || latch.wait_for(TIMEOUT));
    it.wait_in_wait(&waiter, &format!("redisson_countdownlatch__channel__{{{}}}", it.name));
    it.take_away();
    it.good(theirs.count_down());
    assert!(
        !it.clear(waiter.join()).is_ok_and(|waited| waited.timed_out()),
        "{}: it is not told",
        it.what
    );
}

impl Play<'_> {
    /// Returns a barrier of two parties, for the restricted client and for the client with all
    /// rights.
    pub(super) fn barrier(&self) -> (CyclicBarrier, CyclicBarrier) {
        let barriers = [&self.poor, &self.rich.other].map(|it| it.cyclic_barrier(&self.name));
        // This call makes the connection check its rights.
        assert!(self.good(barriers[0].try_set_parties(2)));
        let [poor, rich] = barriers;
        (poor, rich)
    }

    pub(super) fn wait_arrived(
        &self,
        barrier: &CyclicBarrier,
        party: &Running<Result<u32, Error>>,
    ) {
        self.waits_until("it has arrived", || {
            party.is_finished() || barrier.waiting().is_ok_and(|it| it > 0)
        });
    }

    /// Asserts that both parties have passed, or that the other clients know that the barrier is
    /// broken. Then asserts that the barrier works again.
    pub(super) fn is_met(
        &self,
        barrier: &CyclicBarrier,
        its: Result<u32, Error>,
        theirs: Running<Result<u32, Error>>,
    ) {
        if let Err(error) = &its {
            let kind = error.kind();
            let known = kind == ErrorKind::Broken || kind.is_server_trouble();
            assert!(known, "{}: {error}", self.what);
        }
        match theirs.join() {
            Ok(_) => {
                let may_pass = its.as_ref().map_or_else(Error::outcome_unknown, |_| true);
                assert!(may_pass, "{}: they passed, and {its:?}", self.what);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Broken, "{}: {error}", self.what);
                assert!(its.is_err(), "{}: it passed alone", self.what);
            }
        }
        self.give_back();
        assert!(self.good(barrier.reset()));
        assert!(!self.good(barrier.is_broken()), "{}", self.what);
    }
}

fn first_party(it: &Play<'_>) {
    let (poor, rich) = it.barrier();
    let party = spawn(move || poor.wait());
    it.wait_arrived(&rich, &party);
    it.take_away();
    let its = rich.clone();
    let theirs = spawn(move || its.wait());
    let its = party.join();
    it.is_met(&rich, its, theirs);
}

fn last_party(it: &Play<'_>) {
    let (poor, rich) = it.barrier();
    let its = rich.clone();
    let theirs = spawn(move || its.wait());
    it.wait_arrived(&rich, &theirs);
    it.take_away();
    let mut its = poor.wait();
    if its.as_ref().is_err_and(|error| error.to_string().contains("could not be broken")) {
        // The call has done nothing.
        it.give_back();
        its = poor.wait();
    }
    it.is_met(&rich, its, theirs);
}

fn party_that_acts(it: &Play<'_>) {
    let (poor, rich) = it.barrier();
    let its = rich.clone();
    let theirs = spawn(move || its.wait());
    it.wait_arrived(&rich, &theirs);
    let (begins, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let ends = Mutex::new(ends);
    let acts = poor.with_action(move || {
        begins.send(()).unwrap();
        // Blocks until the sender is dropped.
        let _ = ends.lock().unwrap().recv();
    });
    let party = spawn(move || acts.wait());
    // On a busy machine the barrier may already be broken.
    let _ = begun.recv_timeout(TIMEOUT);
    it.take_away();
    drop(end);
    let its = party.join();
    it.is_met(&rich, its, theirs);
}

impl Play<'_> {
    /// Asserts that another client becomes the leader, is on record, and resigns.
    pub(super) fn leads_on(&self, client: &Client) {
        let election = client.leader_election(&self.name);
        let leads = self.good(election.try_campaign_for(TIMEOUT));
        let leads =
            leads.into_option().unwrap_or_else(|| panic!("{}: nobody else leads", self.what));
        let leader = self.good(election.leader());
        assert_eq!(leader.map(|it| it.token), Some(leads.token()), "{}", self.what);
        self.good(leads.resign());
    }
}

fn before_campaign(it: &Play<'_>) {
    let election = it.poor.leader_election(&it.name);
    if let Ok(leads) = election.campaign() {
        let _ = leads.resign();
    }
    it.take_away();
    if let Ok(leads) = it.clear(election.try_campaign_for(TIMEOUT)) {
        let leads = leads.into_option().expect("nobody leads");
        drop(it.clear(leads.resign()));
    }
    it.leads_on(&it.rich.other);
}

fn leadership(it: &Play<'_>) {
    let election = it.poor.leader_election(&it.name);
    let mut leads = None;
    it.waits_until("it leads", || {
        leads = election.campaign().ok();
        leads.is_some()
    });
    let leads = leads.unwrap();
    let (next, go_on) = (it.rich.other.leader_election(&it.name), mpsc::channel::<()>());
    let waiter = spawn(move || {
        next.try_campaign_for(TIMEOUT).map(|got| {
            // Blocks until the sender is dropped.
            let _ = go_on.1.recv();
            got.into_option().map(|got| got.token())
        })
    });
    it.waits_until("the next one waits, or leads", || {
        let status = it.rich.third.status(&it.name);
        !leads.is_leader() || status.is_ok_and(|status| status.queue.len() == 1)
    });
    it.take_away();
    let token = leads.token();
    drop(it.clear(leads.resign()));
    let record = it.rich.third.leader_election(&it.name);
    it.waits_until("the next one is on record", || {
        it.good(record.leader()).is_some_and(|leader| leader.token > token)
    });
    drop(go_on.0);
    assert!(it.good(waiter.join()) > Some(token), "{}", it.what);
    it.leads_on(&it.rich.third);
}

fn candidacy(it: &Play<'_>) {
    let (election, theirs) =
        (it.poor.leader_election(&it.name), it.rich.other.leader_election(&it.name));
    let leads = it.good(theirs.campaign());
    let waiter = spawn(move || match election.try_campaign_for(LONGER)? {
        Taken(leads) => leads.resign(),
        NotTaken => Ok(()),
    });
    it.waits_until("it waits", || {
        waiter.is_finished()
            || it.rich.third.status(&it.name).is_ok_and(|status| status.queue.len() == 1)
    });
    it.take_away();
    it.good(leads.resign());
    it.leads_on(&it.rich.third);
    drop(it.clear(waiter.join()));
    it.leads_on(&it.rich.other);
}

impl Play<'_> {
    pub(super) fn monitor(&self, client: &Client) -> (ReentrantLock, Condition) {
        let lock = client.reentrant_lock(&self.name);
        let condition = lock.condition("changed");
        (lock, condition)
    }

    /// Starts a thread that takes the lock and waits on the condition. Returns when the thread
    /// waits. The thread's result is whether it was notified.
    pub(super) fn waiter(&self, client: &Client, wait: Duration) -> Running<Result<bool, Error>> {
        let key = format!("redlatch_condition:{{{}}}:changed:7", self.name);
        let waits = || {
            let all: Vec<String> = self.server.connection().lrange(&key, 0, -1).unwrap();
            all.iter().any(|waiter| waiter.starts_with(client.id()))
        };
        let (lock, condition) = self.monitor(client);
        let waiter = spawn(move || {
            let guard = held(&lock);
            let notified = condition.wait_for(&guard, wait);
            // The release may be refused. Then the lock is free when its lease ends.
            let _ = guard.unlock();
            notified.map(|waited| !waited.timed_out())
        });
        self.waits_until("it waits", || waits() || waiter.is_finished());
        waiter
    }

    pub(super) fn notify(&self, client: &Client) -> bool {
        let (lock, condition) = self.monitor(client);
        let guard = self.good(lock.try_lock_for(TIMEOUT));
        let guard =
            guard.into_option().unwrap_or_else(|| panic!("{}: nobody else gets it", self.what));
        let notified = self.good(condition.notify_one());
        self.good(guard.unlock());
        notified
    }

    /// Asserts that no thread waits, that others get the lock, and that every key expires.
    pub(super) fn nobody_waits(&self) {
        assert!(!self.notify(&self.rich.other), "{}: one waits", self.what);
        let mut redis = self.server.connection();
        for key in redis.keys::<_, Vec<String>>(format!("*{}*", self.name)).unwrap() {
            assert_ne!(redis.pttl::<_, i64>(&key).unwrap(), -1, "{}: {key}", self.what);
        }
    }
}

fn before_wait(it: &Play<'_>) {
    let (lock, condition) = it.monitor(&it.poor);
    let guard = held(&lock);
    let _ = condition.notify_one();
    it.take_away();
    let waited = it.clear(condition.wait_for(&guard, TIME_UNIT));
    let is_notified = waited.is_ok_and(|waited| !waited.timed_out());
    assert!(!is_notified, "{}: notified by nobody", it.what);
    drop(it.clear(guard.unlock()));
    it.give_back();
    it.nobody_waits();
}

/// One of two waiters is notified.
fn wait(it: &Play<'_>) {
    let its = it.waiter(&it.poor, TIMEOUT);
    let theirs = it.waiter(&it.rich.third, TIMEOUT);
    it.take_away();
    assert!(it.notify(&it.rich.other), "{}", it.what);
    // If the restricted client's wait fails, the other waiter gets its notification.
    if let Ok(notified) = it.clear(its.join()) {
        assert!(notified, "{}", it.what);
        it.waits_until("the other one is notified, too", || {
            it.notify(&it.rich.other) || theirs.is_finished()
        });
    }
    assert!(it.good(theirs.join()), "{}: the notification is lost", it.what);
    it.give_back();
    it.nobody_waits();
}

fn notifier(it: &Play<'_>) {
    let (lock, condition) = it.monitor(&it.poor);
    drop(held(&lock));
    let theirs = it.waiter(&it.rich.third, TIMEOUT);
    let guard = held(&lock);
    it.take_away();
    let notified = it.clear(condition.notify_one());
    drop(it.clear(guard.unlock()));
    match notified {
        Ok(notified) => assert!(notified, "{}: one waits", it.what),
        Err(_) => {
            let again = it.notify(&it.rich.other);
            assert!(again || theirs.is_finished(), "{}: it does not wait", it.what);
        }
    }
    assert!(it.good(theirs.join()), "{}: the notification is lost", it.what);
    it.give_back();
    it.nobody_waits();
}

fn play(server: &Server, rich: &Rich, other: &Other, rules: &[String], at: usize, flushes: bool) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let user = new_user(server);
    // The client has one connection, which checks its rights before they are taken away.
    let poor = impatient(user.url()).watchdog_timeout(SHORT).connections(1).connect().unwrap();
    let play = Play {
        server,
        rich,
        poor,
        user: Arc::new(Mutex::new(user)),
        rules,
        flushes,
        what: format!("{} {at}, {rules:?}, {flushes}", other.what),
        name: format!("case {}", NUMBER.fetch_add(1, Ordering::SeqCst)),
    };
    (other.plays[at])(&play);
    play.poor.shutdown();
}

#[test]
fn a_right_that_is_taken_away_loses_no_permit_count_or_notification() {
    let _turn = takes_turns();
    let server = server();
    let [other, third, judge] = [(); 3].map(|()| client(&server));
    let rich = Rich { other, third, judge };
    let mut all = Vec::new();
    for other in &OTHERS {
        for rules in taken_away(other.rows) {
            for flushes in [false, true].into_iter().take(1 + usize::from(is_of_texts(&rules))) {
                all.extend((0..other.plays.len()).map(|at| (other, rules.clone(), at, flushes)));
            }
        }
    }
    many_at_once(&all, |(other, rules, at, flushes)| {
        play(&server, &rich, other, rules, *at, *flushes);
    });
}
