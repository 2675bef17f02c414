//! A forked child has its parent's memory, but not its threads and holds.
//!
//! Each test has its own process. If a thread of another test had locked a mutex at the fork, even
//! a mutex of the C library, the mutex would stay locked in the child for ever.

use std::cell::Cell;
use std::fmt::Debug;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;
use fork::{Fork, fork, waitpid_nohang};
use redlatch::election::LeaderElection;
use redlatch::observe::{Event, Observer};
use redlatch::{
    CancelToken, Client, Condition, CountDownLatch, CyclicBarrier, Error, ErrorKind, HoldState,
    Lock, LockGuard, LostReason, MultiLock, OwnedLockGuard, PermitId, Wait,
};
use redlatch_testkit::Cluster;
use rustix::process::{Pid, Signal, kill_process};

/// A forked child, which does some work and ends.
#[must_use]
struct Child(i32);

impl Child {
    /// Forks. The child runs `work` on its only thread, like a worker of a forking server.
    fn of(work: impl FnOnce()) -> Self {
        match fork().unwrap() {
            Fork::Parent(pid) => Self(pid),
            Fork::Child => {
                let done = catch_unwind(AssertUnwindSafe(work));
                if let Err(panic) = &done {
                    // Write directly: `eprintln!` would print nothing, because the test harness
                    // captures its output and does not run in the child.
                    let message = panic.downcast_ref::<String>().map_or("?", String::as_str);
                    let _ = writeln!(std::io::stderr(), "the child panicked: {message}");
                }
                process::exit(i32::from(done.is_err()));
            }
        }
    }

    /// Waits until the child has ended, and checks that it succeeded.
    fn join(mut self) {
        let mut status = None;
        wait_until("the child ends", TIMEOUT, || {
            status = waitpid_nohang(self.0).unwrap();
            status.is_some()
        });
        self.0 = 0;
        assert_eq!(status, Some(0), "how the child ended");
    }
}

impl Drop for Child {
    /// A child that hangs must not survive its test.
    fn drop(&mut self) {
        Pid::from_raw(self.0).inspect(|child| kill_process(*child, Signal::KILL).unwrap());
    }
}

#[track_caller]
fn is_forked<T>(outcome: Result<T, Error>) {
    let error = outcome.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
    assert!(error.to_string().contains("before the first client connects"), "{error}");
}

/// Calls all methods of a lock in the child.
fn use_lock<L: Lock + Debug>(lock: &L) {
    let token = CancelToken::new();
    is_forked(lock.lock());
    is_forked(lock.try_lock());
    is_forked(lock.try_lock_for(TIME_UNIT));
    is_forked(lock.lock_cancellable(&token));
    is_forked(lock.lock_within(Wait::FOREVER));
    is_forked(lock.lock_owned());
    is_forked(lock.try_lock_owned());
    is_forked(lock.try_lock_owned_for(TIME_UNIT));
    is_forked(lock.lock_owned_cancellable(&token));
    is_forked(lock.lock_owned_within(Wait::FOREVER));
    is_forked(lock.try_once_per(TIME_UNIT));
    is_forked(lock.with(|_| Ok::<_, Error>(())));
    is_forked(lock.with_lease(LONG_LEASE).lock());
    is_forked(lock.with_watchdog(LONG_LEASE).lock());
    is_forked(lock.with_hold_at_least(TIME_UNIT).lock_owned());
    is_forked(lock.non_reentrant().lock());
    is_forked(lock.unlock());
    is_forked(lock.force_unlock());
    is_forked(lock.is_locked());
    is_forked(lock.remaining_lease());
    assert_eq!((lock.hold_count(), lock.is_held_by_current_thread()), (0, false));
    assert!(!lock.name().is_empty() && !format!("{lock:?}").is_empty());
}

/// Calls all methods of a guard that leave the guard unchanged.
fn use_guard<L: ?Sized, O>(guard: &LockGuard<L, O>) {
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert_eq!(guard.state(), HoldState::Lost(LostReason::Forked));
    is_forked(guard.check(TIME_UNIT));
    guard.on_lost(|_| panic!("the parent's"));
    assert!(!guard.name().is_empty() && format!("{guard:?}").contains("Forked"));
}

/// The holds of one kind that a thread has when the process forks: one lock that it has taken
/// several times, and other locks with owned guards.
struct Held {
    levels: Vec<LockGuard>,
    owned: Vec<OwnedLockGuard>,
}

impl Held {
    fn of<L: Lock>(make: impl Fn(&str) -> L) -> Self {
        let lock = make("levels");
        let levels = (0..4).map(|_| lock.lock().unwrap()).collect();
        let owned = ["one", "two", "three"].map(|name| make(name).lock_owned().unwrap());
        Self { levels, owned: owned.into() }
    }

    /// Ends each guard in a different way, in the child.
    fn use_up(mut self) {
        self.levels.iter().for_each(use_guard);
        self.owned.iter().for_each(use_guard);
        is_forked(self.levels.pop().unwrap().unlock());
        is_forked(self.levels.pop().unwrap().leave_to_expire());
        self.levels.pop().unwrap().forget();
        is_forked(self.owned.pop().unwrap().unlock());
        is_forked(self.owned.pop().unwrap().leave_to_expire());
    }

    /// Asserts that nothing has changed in the parent, and releases the locks.
    fn unlock(self) {
        assert!(self.levels.iter().all(LockGuard::is_held));
        assert!(self.owned.iter().all(LockGuard::is_held));
        self.levels.into_iter().rev().for_each(|level| level.unlock().unwrap());
        self.owned.into_iter().for_each(|guard| guard.unlock().unwrap());
    }
}

/// In the child, calls the methods of all values that a client makes, and drops these values.
fn use_all(client: Client, several: MultiLock) {
    let (lock, fair) = (client.reentrant_lock("lock"), client.fair_lock("fair"));
    let (fenced, prices) = (client.fenced_lock("fenced"), client.read_write_lock("prices"));
    use_lock(&lock);
    use_lock(&fair);
    use_lock(&fenced);
    use_lock(prices.reader());
    use_lock(prices.writer());
    use_lock(&several);
    is_forked(MultiLock::new([&lock as &dyn Lock, &fair, prices.reader(), &fenced]));
    is_forked(MultiLock::quorum(&[&lock]));
    is_forked(MultiLock::quorum_of(3, &[&lock]));
    let conditions = [
        lock.condition("changed"),
        fair.condition("changed"),
        fenced.condition("changed"),
        prices.writer().condition("changed"),
    ];
    for changed in conditions {
        is_forked(changed.notify_one());
        is_forked(changed.notify_all());
        assert!(!format!("{changed:?}").is_empty());
    }
    use_semaphores(&client);
    use_latch(&client.count_down_latch("latch"));
    use_barrier(&client.cyclic_barrier("barrier"));
    use_election(&client.leader_election("election"));
    is_forked(client.status("lock"));
    is_forked(client.statuses("*"));
    is_forked(client.release_owner("lock", &FOREIGN.parse().unwrap()));
    assert!(client.snapshot().held.is_empty());
    let shown = format!("{client:?} {prices:?} {}", client.id());
    assert!(!shown.is_empty());
    client.shutdown();
    drop((lock, fair, fenced, prices, several));
    drop(client);
}

fn use_semaphores(client: &Client) {
    let token = CancelToken::new();
    let semaphore = client.semaphore("semaphore");
    is_forked(semaphore.acquire());
    is_forked(semaphore.try_acquire());
    is_forked(semaphore.try_acquire_for(TIME_UNIT));
    is_forked(semaphore.acquire_cancellable(&token));
    is_forked(semaphore.acquire_within(TIME_UNIT));
    is_forked(semaphore.acquire_many(2));
    is_forked(semaphore.try_acquire_many(2));
    is_forked(semaphore.try_acquire_many_for(2, TIME_UNIT));
    is_forked(semaphore.acquire_many_cancellable(2, &token));
    is_forked(semaphore.acquire_many_within(2, TIME_UNIT));
    is_forked(semaphore.release_forgotten(2));
    is_forked(semaphore.release_forgotten_if_exists(2));
    is_forked(semaphore.available_permits());
    is_forked(semaphore.drain_permits());
    is_forked(semaphore.add_permits(7));
    is_forked(semaphore.set_permits(7));
    is_forked(semaphore.try_set_permits(7));
    is_forked(semaphore.try_set_permits_for(7, LONG_LEASE));
    is_forked(semaphore.expire(LONG_LEASE));
    is_forked(semaphore.time_to_live());
    is_forked(semaphore.delete());
    let (expirable, id) = (client.expirable_semaphore("expirable"), PermitId::from_bytes([1; 16]));
    is_forked(expirable.acquire());
    is_forked(expirable.try_acquire());
    is_forked(expirable.try_acquire_for(TIME_UNIT));
    is_forked(expirable.acquire_cancellable(&token));
    is_forked(expirable.acquire_within(TIME_UNIT));
    is_forked(expirable.acquire_many(2));
    is_forked(expirable.try_acquire_many(2));
    is_forked(expirable.try_acquire_many_for(2, TIME_UNIT));
    is_forked(expirable.acquire_many_cancellable(2, &token));
    is_forked(expirable.acquire_many_within(2, TIME_UNIT));
    is_forked(expirable.with_lease(LONG_LEASE).acquire());
    is_forked(expirable.with_watchdog(LONG_LEASE).acquire());
    is_forked(expirable.release(&id));
    is_forked(expirable.try_release(&id));
    is_forked(expirable.release_many(&[id]));
    is_forked(expirable.update_lease_time(&id, LONG_LEASE));
    is_forked(expirable.remaining_lease(&id));
    is_forked(expirable.available_permits());
    is_forked(expirable.acquired_permits());
    is_forked(expirable.permits());
    is_forked(expirable.add_permits(7));
    is_forked(expirable.set_permits(7));
    is_forked(expirable.try_set_permits(7));
    is_forked(expirable.expire(LONG_LEASE));
    is_forked(expirable.time_to_live());
    is_forked(expirable.delete());
    assert!(!format!("{semaphore:?} {expirable:?}").is_empty());
}

fn use_latch(latch: &CountDownLatch) {
    is_forked(latch.count_down());
    is_forked(latch.wait());
    is_forked(latch.wait_for(TIME_UNIT));
    is_forked(latch.wait_cancellable(&CancelToken::new()));
    is_forked(latch.wait_within(TIME_UNIT));
    is_forked(latch.count());
    is_forked(latch.try_set_count(7));
    is_forked(latch.try_set_count_for(7, LONG_LEASE));
    is_forked(latch.expire(LONG_LEASE));
    is_forked(latch.time_to_live());
    is_forked(latch.delete());
    assert!(!format!("{latch:?}").is_empty());
}

fn use_barrier(barrier: &CyclicBarrier) {
    is_forked(barrier.try_set_parties(2));
    is_forked(barrier.wait());
    is_forked(barrier.wait_for(TIME_UNIT));
    is_forked(barrier.wait_cancellable(&CancelToken::new()));
    is_forked(barrier.wait_within(TIME_UNIT));
    is_forked(barrier.with_watchdog(LONG_LEASE).wait());
    is_forked(barrier.with_action(|| panic!("it has not tripped")).wait());
    is_forked(barrier.reset());
    is_forked(barrier.delete());
    is_forked(barrier.is_broken());
    is_forked(barrier.parties());
    is_forked(barrier.waiting());
    assert!(!format!("{barrier:?}").is_empty());
}

fn use_election(election: &LeaderElection) {
    is_forked(election.campaign());
    is_forked(election.try_campaign());
    is_forked(election.try_campaign_for(TIME_UNIT));
    is_forked(election.try_campaign_until(std::time::Instant::now()));
    is_forked(election.campaign_cancellable(&CancelToken::new()));
    is_forked(election.campaign_within(TIME_UNIT));
    is_forked(election.with_watchdog(LONG_LEASE).with_grace(TIME_UNIT).campaign());
    is_forked(election.leader());
    let mut changes = election.changes(TIME_UNIT);
    is_forked(changes.next().unwrap());
    assert!(!format!("{election:?} {changes:?}").is_empty());
}

fn use_condition<L: Lock + ?Sized>(changed: &Condition, guard: &LockGuard<L>) {
    is_forked(changed.wait(guard));
    is_forked(changed.wait_for(guard, TIME_UNIT));
    is_forked(changed.wait_cancellable(guard, &CancelToken::new()));
    is_forked(changed.wait_within(guard, TIME_UNIT));
    is_forked(changed.wait_while(guard, || true));
    is_forked(changed.wait_while_within(guard, TIME_UNIT, || true));
    is_forked(changed.try_wait_while(guard, || Ok::<_, Error>(true)));
    is_forked(changed.try_wait_while_within(guard, TIME_UNIT, || Ok::<_, Error>(true)));
    is_forked(changed.notify_one());
    is_forked(changed.notify_all());
}

#[test]
fn a_forked_child_holds_nothing_and_changes_nothing_of_its_parents() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("lock");
    let guard = lock.lock().unwrap();
    let semaphore = client.semaphore("semaphore");
    semaphore.try_set_permits(8).unwrap();
    let permits: Vec<_> = [2, 2, 2, 2].map(|many| semaphore.acquire_many(many).unwrap()).into();
    let expirable = client.expirable_semaphore("expirable");
    expirable.try_set_permits(5).unwrap();
    let leased = expirable.acquire_many(5).unwrap();
    let latch = client.count_down_latch("latch");
    latch.try_set_count(1).unwrap();
    let fenced = client.fenced_lock("fenced").lock().unwrap();
    let token = fenced.token();
    let prices = client.read_write_lock("prices");
    let (written, read) = (prices.writer().lock().unwrap(), prices.reader().lock().unwrap());
    let both =
        MultiLock::new([&client.reentrant_lock("one") as &dyn Lock, &client.fenced_lock("two")])
            .unwrap();
    let several = both.lock_owned().unwrap();
    let election = client.leader_election("election");
    let leads =
        ["election", "another"].map(|name| client.leader_election(name).campaign().unwrap());
    let mut changes = election.changes(LONG_LEASE);
    assert!(changes.next().unwrap().unwrap().is_some());
    let held = vec![
        Held::of(|name| client.reentrant_lock(&format!("reentrant:{name}"))),
        Held::of(|name| client.fair_lock(&format!("fair:{name}"))),
        Held::of(|name| client.fenced_lock(&format!("fenced:{name}"))),
        Held::of(|name| client.read_write_lock(&format!("read:{name}")).reader().clone()),
        Held::of(|name| client.read_write_lock(&format!("write:{name}")).writer().clone()),
        Held::of(|name| {
            let names = ["part", "other"].map(|part| format!("{part}:{name}"));
            let parts = names.map(|name| client.reentrant_lock(&name));
            MultiLock::new(&[&parts[0], &parts[1]]).unwrap()
        }),
        Held::of(|name| {
            MultiLock::quorum(&[&client.reentrant_lock(&format!("quorum:{name}"))]).unwrap()
        }),
    ];
    // This opens a subscription, with its connection.
    assert!(elsewhere({
        let lock = lock.clone();
        move || answered(|| lock.try_lock_for(TIME_UNIT)).into_option().is_none()
    }));

    let mut all = Some((guard, permits, leased, fenced, written, read, several, held));
    let mut handles = Some((client, both, lock.clone(), leads, changes));
    let child = Child::of(|| {
        let (guard, mut permits, mut leased, fenced, written, read, several, held) =
            all.take().unwrap();
        let (client, both, lock, [lead, deposed], mut changes) = handles.take().unwrap();
        held.into_iter().for_each(Held::use_up);
        use_guard(&fenced);
        use_guard(&written);
        use_guard(&read);
        use_guard(&several);
        assert_eq!(fenced.token(), token);
        assert_eq!((several.names().count(), several.tokens().count()), (2, 1));
        is_forked(several.unlock());
        is_forked(read.unlock());
        use_condition(&client.fenced_lock("fenced").condition("changed"), &fenced);
        use_condition(&prices.writer().condition("changed"), &written);
        drop((fenced, written));
        use_guard(&guard);
        use_condition(&lock.condition("changed"), &guard);
        is_forked(lock.lock());
        is_forked(guard.unlock());

        let mut permit = permits.pop().unwrap();
        drop(permit.split(1));
        permit.merge(permits.pop().unwrap()).unwrap();
        assert_eq!(permit.permits(), 3);
        is_forked(permit.release());
        permits.pop().unwrap().forget();
        assert!(!format!("{permits:?}").is_empty());
        drop(permits);

        for permit in &leased {
            assert!(!permit.is_held() && permit.remaining().is_zero());
            assert_eq!(permit.state(), HoldState::Lost(LostReason::Forked));
            is_forked(permit.check(TIME_UNIT));
            permit.on_lost(|_| panic!("the parent's"));
            assert!(format!("{permit:?}").contains("Forked"));
        }
        is_forked(leased.pop().unwrap().release());
        is_forked(leased.pop().unwrap().leave_to_expire());
        let permit = leased.pop().unwrap();
        assert_eq!(permit.id(), permit.into_id());
        drop(leased);

        assert!(!lead.is_leader() && lead.token().get() > 0);
        is_forked(lead.check(TIME_UNIT));
        lead.on_deposed(|_| panic!("the parent's"));
        assert!(format!("{lead:?} {changes:?}").contains("Forked"));
        is_forked(lead.resign());
        drop(deposed);
        is_forked(changes.next().unwrap());
        drop((lock, changes));
        use_all(client, both);
    });
    child.join();

    let mut redis = server.connection();
    for name in ["lock", "fenced", "one", "two", "election", "another"] {
        assert!(holder(&mut redis, name).is_some(), "{name}");
    }
    let (guard, permits, leased, fenced, written, read, several, held) = all.take().unwrap();
    let (_client, _both, _, [lead, other], mut changes) = handles.take().unwrap();
    assert!(lead.is_leader() && other.is_leader());
    lead.resign().unwrap();
    assert!(changes.next().unwrap().unwrap().is_none(), "nobody leads");
    assert!(fenced.is_held() && written.is_held() && read.is_held() && several.is_held());
    fenced.unlock().unwrap();
    several.unlock().unwrap();
    read.unlock().unwrap();
    written.unlock().unwrap();
    held.into_iter().for_each(Held::unlock);
    assert_eq!(expirable.acquired_permits().unwrap(), 5);
    leased.into_iter().for_each(|permit| permit.release().unwrap());
    assert_eq!(expirable.available_permits().unwrap(), 5);
    assert_eq!((semaphore.available_permits().unwrap(), latch.count().unwrap()), (0, 1));
    // The parent's connections are unchanged, and the parent's lock works as before.
    let again = lock.lock().unwrap();
    again.unlock().unwrap();
    guard.unlock().unwrap();
    permits.into_iter().for_each(|permit| permit.release().unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 8);
    latch.count_down().unwrap();
    latch.wait().unwrap();
    lock.lock().unwrap().unlock().unwrap();
}

/// An observer that forks when a thread begins to wait.
struct Forks(Arc<Mutex<Option<Child>>>);

impl Observer for Forks {
    fn wait_started(&self, _: &Event<'_>) {
        if let Fork::Parent(pid) = fork().unwrap() {
            *self.0.lock().unwrap() = Some(Child(pid));
        }
    }
}

/// The child begins in the middle of a wait. Only the parent cleans up after the wait.
#[test]
fn a_wait_that_forks_goes_on_in_the_parent_alone() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let forked = Arc::<Mutex<Option<Child>>>::default();
    let forks = Client::builder(&server.url()).observer(Forks(Arc::clone(&forked)));
    let (forks, other) = (forks.watchdog_timeout(LONG_LEASE).connect().unwrap(), client(&server));
    // The child ends here, and drops all that it has from its parent.
    let ends = |failed: Option<ErrorKind>| match forked.lock().unwrap().take() {
        Some(child) => child.join(),
        None => process::exit(i32::from(failed != Some(ErrorKind::Forked))),
    };

    let barrier = other.cyclic_barrier("both");
    assert!(barrier.try_set_parties(2).unwrap());
    let party = spawn({
        let barrier = barrier.clone();
        move || {
            wait_until("the first party waits", TIMEOUT, || barrier.waiting().unwrap() == 1);
            barrier.wait().unwrap()
        }
    });
    let outcome = forks.cyclic_barrier("both").wait();
    ends(outcome.as_ref().err().map(Error::kind));
    assert_eq!((outcome.unwrap(), party.join()), (1, 0), "both have passed");
    assert!(!barrier.is_broken().unwrap());

    let held = other.reentrant_lock("taken").lock_owned().unwrap();
    let unlocks = spawn(move || {
        let waits = || !other.status("taken").unwrap().queue.is_empty();
        wait_until("the other client waits", TIMEOUT, waits);
        held.unlock().unwrap();
    });
    let outcome = forks.reentrant_lock("taken").lock();
    ends(outcome.as_ref().err().map(Error::kind));
    unlocks.join();
    outcome.unwrap().unlock().unwrap();
}

#[test]
fn work_under_a_lock_that_forks_returns_an_error_in_the_child() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let lock = client(&server).reentrant_lock("lock");
    let mut child = None;
    let outcome = lock.with(|_| {
        if let Fork::Parent(pid) = fork().unwrap() {
            child = Some(Child(pid));
        }
        Ok::<_, Error>(7)
    });
    let Some(child) = child else {
        let is_forked = outcome.is_err_and(|error| error.kind() == ErrorKind::Forked);
        process::exit(i32::from(!is_forked));
    };
    child.join();
    assert_eq!(outcome.unwrap(), 7);
    assert_eq!(holder(&mut server.connection(), "lock"), None);
}

#[test]
fn an_action_that_forks_trips_the_barrier_in_the_parent_alone() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let barrier = client(&server).cyclic_barrier("forks");
    assert!(barrier.try_set_parties(1).unwrap());
    let child = Arc::new(Mutex::new(None));
    let its = Arc::clone(&child);
    let acting = barrier.with_action(move || {
        if let Fork::Parent(pid) = fork().unwrap() {
            *its.lock().unwrap() = Some(Child(pid));
        }
    });
    let outcome = acting.wait();
    let Some(child) = child.lock().unwrap().take() else {
        let is_forked = outcome.is_err_and(|error| error.kind() == ErrorKind::Forked);
        process::exit(i32::from(!is_forked));
    };
    child.join();
    assert_eq!(outcome.unwrap(), 0);
    assert!(!barrier.is_broken().unwrap());
}

#[test]
fn children_forked_before_the_first_connect_are_clients_of_their_own() {
    if !has_own_process() {
        return;
    }
    let server = server();
    // Each child and the parent continue with copies of this thread's random number generator.
    let children: Vec<_> = (0..3)
        .map(|at| {
            let url = server.url();
            Child::of(move || {
                let client = Client::builder(&url).watchdog_timeout(LONG_LEASE).connect().unwrap();
                client.reentrant_lock(&format!("child:{at}")).lock().unwrap().forget();
                // The holds stay, so that the parent can check them.
                process::exit(0);
            })
        })
        .collect();
    children.into_iter().for_each(Child::join);
    let client = client(&server);
    let guard = client.reentrant_lock("parent's").lock().unwrap();
    let mut redis = server.connection();
    let mut clients: Vec<_> = ["parent's", "child:0", "child:1", "child:2"]
        .iter()
        .map(|name| holder(&mut redis, name).unwrap().0.split(':').next().unwrap().to_owned())
        .collect();
    clients.sort();
    clients.dedup();
    assert_eq!(clients.len(), 4, "each is a client of its own: {clients:?}");
    guard.unlock().unwrap();
}

#[test]
fn a_child_forked_after_a_connect_cannot_connect_and_nor_can_its_children() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let parents = client(&server);
    let guard = parents.reentrant_lock("parent's").lock().unwrap();
    let child = Child::of(|| {
        is_forked(Client::connect(&server.url()));
        Child::of(|| is_forked(Client::connect(&server.url()))).join();
    });
    child.join();
    // The end of the parent's client makes no difference.
    guard.unlock().unwrap();
    parents.shutdown();
    Child::of(|| is_forked(Client::connect(&server.url()))).join();
    client(&server).reentrant_lock("parent's").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_child_forked_in_the_middle_of_anything_hangs_nowhere() {
    if !has_own_process() {
        return;
    }
    let server = server();
    fork_in_the_middle(&client(&server), &server.url());
}

/// In a cluster, each call looks for the server that has the name's slot.
#[test]
fn a_child_of_a_process_that_uses_a_cluster_hangs_nowhere() {
    if !has_own_process() {
        return;
    }
    bound();
    let cluster = Cluster::without_replicas().unwrap();
    let client = Client::builder(&cluster.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    fork_in_the_middle(&client, &cluster.url());
}

/// Forks several times. Each time, another thread has locked some mutex, which stays locked in the
/// child.
fn fork_in_the_middle(client: &Client, url: &str) {
    client.semaphore("semaphore").try_set_permits(3).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    client.expirable_semaphore("expirable").try_set_permits(3).unwrap();
    let threads: Vec<_> = (0..12)
        .map(|at| {
            let (client, over) = (client.clone(), Arc::clone(&over));
            spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    match at % 6 {
                        0 => drop(client.reentrant_lock("lock").lock().unwrap()),
                        1 => drop(client.semaphore("semaphore").acquire().unwrap()),
                        2 => drop(client.read_write_lock("prices").reader().lock().unwrap()),
                        3 => drop(client.fair_lock("fair").lock().unwrap()),
                        4 => drop(client.expirable_semaphore("expirable").acquire().unwrap()),
                        _ => drop(client.leader_election("election").changes(TIME_UNIT).next()),
                    }
                }
            })
        })
        .collect();
    let (lock, other) = (client.reentrant_lock("mine"), client.reentrant_lock("other"));
    let several = MultiLock::new([&lock, &other]).unwrap();
    for _ in 0..100 {
        let guard = lock.lock().unwrap();
        let mut permit = Some(client.semaphore("semaphore").acquire().unwrap());
        let mut guards = Some((guard, lock.lock().unwrap()));
        let mut copy = Some(client.clone());
        let child = Child::of(|| {
            drop((permit.take(), guards.take()));
            use_all(copy.take().unwrap(), several.clone());
            is_forked(Client::connect(url));
        });
        child.join();
        assert!(guards.as_ref().unwrap().0.is_held());
    }
    over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(Running::join);
}

thread_local! {
    /// Whether the thread's next wait forks.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}

/// An observer that forks when a wait of the calling thread begins, if [`FORKS`] is set.
struct ForksInTurn(Arc<Mutex<Option<Child>>>);

impl Observer for ForksInTurn {
    fn wait_started(&self, _: &Event<'_>) {
        if FORKS.replace(false)
            && let Fork::Parent(pid) = fork().unwrap()
        {
            *self.0.lock().unwrap() = Some(Child(pid));
        }
    }
}

/// The child's thread waits for a name. The name's mutex may be locked by a thread that does not
/// exist in the child.
#[test]
fn a_wait_that_forks_in_a_crowd_ends_in_the_child() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let forked = Arc::<Mutex<Option<Child>>>::default();
    let client = Client::builder(&server.url()).observer(ForksInTurn(Arc::clone(&forked)));
    let client = client.watchdog_timeout(LONG_LEASE).connect().unwrap();
    client.semaphore("semaphore").try_set_permits(1).unwrap();
    client.expirable_semaphore("expirable").try_set_permits(1).unwrap();
    type Take = fn(&Client) -> Result<(), Error>;
    let kinds: [Take; 6] = [
        |client| client.reentrant_lock("lock").lock().map(drop),
        |client| {
            // The thread that forks leads for both locks. The other threads only lock a mutex.
            let [one, two] = ["one", "two"].map(|name| client.reentrant_lock(name));
            if FORKS.get() {
                return MultiLock::new([one, two])?.lock().map(drop);
            }
            (0..100).for_each(|_| assert_eq!(two.hold_count(), 0));
            Ok(())
        },
        |client| client.fair_lock("fair").lock().map(drop),
        |client| client.read_write_lock("rw").writer().lock().map(drop),
        |client| client.semaphore("semaphore").acquire().map(drop),
        |client| client.expirable_semaphore("expirable").acquire().map(drop),
    ];
    for take in kinds {
        let over = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..9)
            .map(|_| {
                let (client, over) = (client.clone(), Arc::clone(&over));
                spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        take(&client).unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..100 {
            FORKS.set(true);
            let outcome = take(&client);
            match forked.lock().unwrap().take() {
                Some(child) => child.join(),
                // The lock was granted at once, so the observer saw no wait.
                None if FORKS.get() => {}
                None => {
                    let failed = outcome.as_ref().err().map(Error::kind);
                    process::exit(i32::from(failed != Some(ErrorKind::Forked)));
                }
            }
            outcome.unwrap();
        }
        over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(Running::join);
    }
}

#[test]
fn a_child_forked_before_the_first_call_leaves_the_server_to_its_parent() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = Client::connect_lazy(&server.url()).unwrap();
    let lock = client.reentrant_lock("forked");
    Child::of(|| use_lock(&lock)).join();
    lock.lock().unwrap().unlock().unwrap();
    Child::of(|| use_lock(&lock)).join();
    drop((lock, client));
}
