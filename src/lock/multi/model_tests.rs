//! Models of several locks that are taken together, in many interleavings of threads whose lists of
//! locks overlap. The models run the handles, gates, waiting loop and lane of one or two clients
//! against the model server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redlatch_client::sync::explore;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::MultiLock;
use crate::attempt::Attempt;
use crate::lock::Lock;
use crate::lock::reentrant::ReentrantLock;
use crate::model::{ModelServer, Process};
use crate::site::Site;
use crate::waiting::QueueSite as _;

const NAMES: [&str; 3] = ["a", "b", "c"];
const ROUNDS: usize = 3;

fn lock(process: &Process, name: &str) -> ReentrantLock {
    ReentrantLock::new(&process.session, name)
}

fn all_of(process: &Process, names: &[&str]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| lock(process, name))).unwrap()
}

/// Asserts that no thread of the client has a lock or leads, and then drops the client.
fn end(process: Process) {
    for name in NAMES {
        let site = Site::of(&process.core, name);
        assert!(!site.with_queue(|queue| queue.is_busy()), "a leadership that nobody took");
        assert!(site.gate.hold().is_none(), "a seat that nobody left");
    }
    process.end();
}

fn is_free(server: &ModelServer) -> bool {
    NAMES.iter().all(|name| server.owner(name).is_none())
}

/// If the request for all locks takes none of them, the thread waits only for the first lock. It
/// has handed on the leadership of the other locks, so other threads take and release them in the
/// meantime.
#[test]
fn a_thread_that_waits_for_the_first_lock_keeps_no_other_lock_from_the_others() {
    let not_granted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&not_granted);
    explore(1_000, move || {
        let server = ModelServer::start();
        let (process, other) = (Process::start(&server), Process::start(&server));
        let elsewhere = lock(&other, "a");
        let held = elsewhere.lock().unwrap();
        let (all, alone) = (all_of(&process, &["a", "b"]), lock(&process, "b"));
        let waiter = process.spawn(move || drop(all.lock().unwrap()));
        let beside = process.spawn(move || {
            for _ in 0..ROUNDS {
                drop(alone.lock().unwrap());
            }
        });
        beside.join().unwrap();
        held.unlock().unwrap();
        waiter.join().unwrap();
        assert!(is_free(&server));
        count.fetch_add(server.not_granted(), Ordering::SeqCst);
        drop(elsewhere);
        [process, other].into_iter().for_each(end);
    });
    assert!(not_granted.load(Ordering::SeqCst) > 0, "no request found the first lock held");
}

/// Takes and leaves these locks a few times.
fn user(lock: &dyn Lock, names: &[usize], inside: &[AtomicUsize; 3]) {
    for _ in 0..ROUNDS {
        let guard = match thread_rng().gen_bool(0.7) {
            true => Some(lock.lock().unwrap()),
            false => lock.try_lock().map(Attempt::into_option).unwrap(),
        };
        let Some(guard) = guard else { continue };
        for at in names {
            let others = inside[*at].fetch_add(1, Ordering::SeqCst);
            assert_eq!(others, 0, "two hold {} at a time", NAMES[*at]);
        }
        thread::yield_now();
        assert!(guard.is_held());
        for at in names {
            inside[*at].fetch_sub(1, Ordering::SeqCst);
        }
        if thread_rng().gen_bool(0.5) { drop(guard) } else { guard.unlock().unwrap() }
    }
}

/// In each of these processes, two threads take lists of locks that overlap, and a third thread
/// takes the lock that both lists contain. Returns how many requests got no grant.
fn play(processes: usize) -> usize {
    let server = ModelServer::start();
    let processes: Vec<_> = (0..processes).map(|_| Process::start(&server)).collect();
    let inside: Arc<[AtomicUsize; 3]> = Arc::default();
    let mut users = Vec::new();
    for process in &processes {
        for names in [&[0, 1][..], &[1, 2], &[1]] {
            let listed: Vec<_> = names.iter().map(|at| NAMES[*at]).collect();
            let (all, inside) = (all_of(process, &listed), Arc::clone(&inside));
            users.push(process.spawn(move || user(&all, names, &inside)));
        }
    }
    for user in users {
        user.join().unwrap();
    }
    assert!(is_free(&server), "a hold that nobody has was not released");
    processes.into_iter().for_each(end);
    server.not_granted()
}

/// If two threads led for one lock, the second thread's request would find that the first thread
/// holds the lock. So if a leadership is handed on twice, the server refuses a request.
#[test]
fn threads_with_lists_that_overlap_end_and_one_at_a_time_leads() {
    explore(1_000, || {
        assert_eq!(play(1), 0, "two led at a time");
    });
}

#[test]
fn threads_of_two_processes_with_lists_that_overlap_end() {
    explore(400, || {
        play(2);
    });
}
