//! A forked child has its parent's memory, and neither its threads nor its holds.
//!
//! Each test has a process of its own: a mutex that a thread of another test has locked is locked in
//! the child for ever, even one of the C library.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;
use fork::{Fork, fork, waitpid_nohang};
use redlatch::{Client, Error, ErrorKind, HoldState, Lock, LostReason, MultiLock, PermitId};
use redlatch_testkit::Cluster;

/// A forked child, which does some work and ends.
#[must_use]
struct Child(i32);

impl Child {
    /// Forks. The child works as one of a server that forks its workers does, on the only thread
    /// that it has.
    fn of(work: impl FnOnce()) -> Self {
        match fork().unwrap() {
            Fork::Parent(pid) => Self(pid),
            Fork::Child => {
                let done = catch_unwind(AssertUnwindSafe(work));
                if let Err(panic) = &done {
                    // Not `eprintln!`: the harness keeps its output, and is not here.
                    let message = panic.downcast_ref::<String>().map_or("?", String::as_str);
                    let _ = writeln!(std::io::stderr(), "the child panicked: {message}");
                }
                process::exit(i32::from(done.is_err()));
            }
        }
    }

    /// Waits until it has ended, and well.
    fn join(self) {
        let mut status = None;
        wait_until("the child ends", SOON, || {
            status = waitpid_nohang(self.0).unwrap();
            status.is_some()
        });
        assert_eq!(status, Some(0), "how the child ended");
    }
}

#[track_caller]
fn is_forked<T>(outcome: Result<T, Error>) {
    let error = outcome.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
    assert!(error.to_string().contains("before the first client connects"), "{error}");
}

/// The child uses all that it is given, and drops it.
fn use_all(client: Client, several: MultiLock) {
    let lock = client.reentrant_lock("lock");
    is_forked(lock.lock());
    is_forked(lock.try_lock());
    is_forked(lock.try_lock_for(UNIT));
    is_forked(lock.lock_owned());
    is_forked(lock.unlock());
    is_forked(lock.force_unlock());
    is_forked(lock.is_locked());
    is_forked(lock.remaining_lease());
    assert_eq!((lock.hold_count(), lock.is_held_by_current_thread()), (0, false));
    let fair = client.fair_lock("fair");
    is_forked(fair.lock());
    is_forked(fair.try_lock());
    is_forked(fair.unlock());
    is_forked(fair.force_unlock());
    let (fenced, prices) = (client.fenced_lock("fenced"), client.read_write_lock("prices"));
    is_forked(fenced.lock());
    is_forked(fenced.lock_owned());
    for lock in [prices.read() as &dyn Lock, prices.write()] {
        is_forked(lock.lock());
        is_forked(lock.try_lock());
        is_forked(lock.lock_owned());
        is_forked(lock.unlock());
        is_forked(lock.force_unlock());
        is_forked(lock.is_locked());
        assert_eq!((lock.hold_count(), lock.is_held_by_current_thread()), (0, false));
    }
    is_forked(MultiLock::new(&[&lock, &fair, prices.read(), &fenced]));
    is_forked(MultiLock::quorum(&[&lock]));
    is_forked(several.lock());
    is_forked(several.try_lock());
    is_forked(several.lock_owned());
    is_forked(several.with(|_| Ok::<_, Error>(())));
    for changed in [lock.new_condition("changed"), fair.new_condition("changed")] {
        is_forked(changed.notify_one());
        is_forked(changed.notify_all());
        assert!(!format!("{changed:?}").is_empty());
    }
    let semaphore = client.semaphore("semaphore");
    is_forked(semaphore.acquire());
    is_forked(semaphore.try_acquire());
    is_forked(semaphore.release());
    is_forked(semaphore.available_permits());
    is_forked(semaphore.try_set_permits(7));
    is_forked(semaphore.set_permits(7));
    is_forked(semaphore.delete());
    let expirable = client.expirable_semaphore("expirable");
    is_forked(expirable.acquire());
    is_forked(expirable.permits());
    is_forked(expirable.release(&PermitId::from_bytes([1; 16])));
    let latch = client.count_down_latch("latch");
    is_forked(latch.count_down());
    is_forked(latch.wait());
    is_forked(latch.count());
    is_forked(latch.try_set_count(7));
    is_forked(latch.delete());
    let shown = format!("{client:?} {lock:?} {fair:?} {semaphore:?} {expirable:?} {latch:?}");
    assert!(!shown.is_empty());
    let shown = format!("{fenced:?} {prices:?} {several:?}");
    assert!(!shown.is_empty());
    client.shutdown();
    drop((lock, fair, fenced, prices, several, semaphore, expirable, latch));
    drop(client);
}

#[test]
fn a_forked_child_holds_nothing_and_changes_nothing_of_its_parents() {
    if !has_own_process() {
        return;
    }
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("lock");
    let (guard, fair) = (lock.lock().unwrap(), client.fair_lock("fair").lock().unwrap());
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let owned = client.reentrant_lock("owned").lock_owned().unwrap();
    let semaphore = client.semaphore("semaphore");
    semaphore.try_set_permits(2).unwrap();
    let (permit, other) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let expirable = client.expirable_semaphore("expirable");
    expirable.try_set_permits(3).unwrap();
    let leased = expirable.acquire_many(3).unwrap();
    let latch = client.count_down_latch("latch");
    latch.try_set_count(1).unwrap();
    let fenced = client.fenced_lock("fenced").lock().unwrap();
    let prices = client.read_write_lock("prices");
    let (written, read) = (prices.write().lock().unwrap(), prices.read().lock().unwrap());
    let several = [client.reentrant_lock("one"), client.reentrant_lock("two")];
    let both = MultiLock::new(&[&several[0], &several[1]]).unwrap();
    let several = both.lock_owned().unwrap();
    // A subscription and its connection.
    assert!(elsewhere({
        let lock = lock.clone();
        move || answered(|| lock.try_lock_for(UNIT)).is_none()
    }));

    let mut later = Some((fenced, written, read, several));
    let mut all = Some((guard, fair, kept, owned, permit, other, leased, client, lock.clone()));
    let child = Child::of(|| {
        let (fenced, written, read, several) = later.take().unwrap();
        for state in [fenced.state(), written.state(), read.state(), several.state()] {
            assert_eq!(state, HoldState::Lost(LostReason::Forked));
        }
        for checked in [fenced.check(UNIT), written.check(UNIT), several.check(UNIT)] {
            is_forked(checked);
        }
        several.on_lost(|_| panic!("the parent's"));
        assert!(format!("{fenced:?} {written:?} {several:?}").contains("Forked"));
        is_forked(several.unlock());
        is_forked(read.unlock());
        drop((fenced, written));
        let (guard, fair, kept, owned, permit, other, mut leased, client, lock) =
            all.take().unwrap();
        is_forked(lock.new_condition("changed").wait(&guard));
        let one = leased.pop().unwrap();
        assert!(!one.is_held() && one.remaining().is_zero());
        assert_eq!(one.state(), HoldState::Lost(LostReason::Forked));
        is_forked(one.check(UNIT));
        one.on_lost(|_| panic!("the parent's"));
        is_forked(one.release());
        assert!(!format!("{:?}", leased.pop().unwrap().into_id()).is_empty());
        drop(leased);
        assert!(!guard.is_held());
        assert_eq!(guard.state(), HoldState::Lost(LostReason::Forked));
        assert!(guard.remaining().is_zero());
        is_forked(guard.check(UNIT));
        guard.on_lost(|_| panic!("the parent's"));
        assert!(format!("{guard:?} {fair:?} {permit:?}").contains("Forked"));
        is_forked(lock.lock());
        is_forked(guard.unlock());
        is_forked(owned.check(UNIT));
        drop((owned, fair));
        kept.forget();
        is_forked(permit.release());
        drop((other, lock));
        use_all(client, both);
    });
    child.join();

    let (guard, fair, kept, owned, permit, other, leased, ..) = all.take().unwrap();
    let (fenced, written, read, several) = later.take().unwrap();
    let mut redis = server.connection();
    for name in ["lock", "fair", "kept", "owned", "fenced", "one", "two"] {
        assert!(holder(&mut redis, name).is_some(), "{name}");
    }
    assert!(fenced.is_held() && written.is_held() && read.is_held() && several.is_held());
    fenced.unlock().unwrap();
    several.unlock().unwrap();
    read.unlock().unwrap();
    written.unlock().unwrap();
    assert!(guard.is_held() && fair.is_held() && kept.is_held());
    assert_eq!(expirable.acquired_permits().unwrap(), 3);
    leased.into_iter().for_each(|permit| permit.release().unwrap());
    assert_eq!(expirable.available_permits().unwrap(), 3);
    owned.unlock().unwrap();
    assert_eq!((semaphore.available_permits().unwrap(), latch.count().unwrap()), (0, 1));
    // The connections are as they were, and all goes on.
    let again = lock.lock().unwrap();
    for guard in [again, guard, fair, kept] {
        guard.unlock().unwrap();
    }
    permit.release().unwrap();
    other.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    latch.count_down().unwrap();
    latch.wait().unwrap();
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn work_under_a_lock_that_forks_returns_an_error_in_the_child() {
    if !has_own_process() {
        return;
    }
    let _bounded = bounded();
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
    let _bounded = bounded();
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
    let _bounded = bounded();
    let server = server();
    // Each of them, and the parent itself, goes on where this thread's random generator stands.
    let children: Vec<_> = (0..3)
        .map(|at| {
            let url = server.url();
            Child::of(move || {
                let client = Client::builder(&url).watchdog_timeout(LONG).connect().unwrap();
                client.reentrant_lock(&format!("child:{at}")).lock().unwrap().forget();
                // The holds stay, for the parent to look at.
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
    let _bounded = bounded();
    let server = server();
    let parents = client(&server);
    let guard = parents.reentrant_lock("parent's").lock().unwrap();
    let child = Child::of(|| {
        is_forked(Client::connect(&server.url()));
        Child::of(|| is_forked(Client::connect(&server.url()))).join();
    });
    child.join();
    // That the parent's client has ended changes nothing.
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
    let _bounded = bounded();
    let server = server();
    fork_in_the_middle(&client(&server), &server.url());
}

/// In a cluster each call looks up which server has the name's slot.
#[test]
fn nor_does_one_of_a_process_that_uses_a_cluster() {
    if !has_own_process() {
        return;
    }
    let _bounded = bounded();
    let cluster = Cluster::without_replicas().unwrap();
    let client = Client::builder(&cluster.url()).watchdog_timeout(LONG).connect().unwrap();
    fork_in_the_middle(&client, &cluster.url());
}

/// At each fork some other thread has locked some mutex, which no thread will unlock in the child.
fn fork_in_the_middle(client: &Client, url: &str) {
    client.semaphore("semaphore").try_set_permits(3).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..8)
        .map(|at| {
            let (client, over) = (client.clone(), Arc::clone(&over));
            spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    match at % 4 {
                        0 => drop(client.reentrant_lock("lock").lock().unwrap()),
                        1 => drop(client.semaphore("semaphore").acquire().unwrap()),
                        2 => drop(client.read_write_lock("prices").read().lock().unwrap()),
                        _ => drop(client.fair_lock("fair").lock().unwrap()),
                    }
                }
            })
        })
        .collect();
    let (lock, other) = (client.reentrant_lock("mine"), client.reentrant_lock("other"));
    let several = MultiLock::new(&[&lock, &other]).unwrap();
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
