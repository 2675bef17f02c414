//! Models of parkers: every order of the steps of the sleeper and the waker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::thread;

use super::atomic::{AtomicUsize, Ordering};
use super::parker::Parker;
use super::{Waker, explore};

/// Runs every schedule of a scenario that uses no randomness.
fn exhaust(scenario: fn()) {
    shuttle::check_dfs(scenario, None);
}

#[test]
fn a_wake_up_before_the_sleep_or_during_it_ends_it() {
    exhaust(|| {
        let parker = Arc::new(Parker::new());
        let waker = Arc::clone(&parker);
        let waker = thread::spawn(move || waker.unpark());
        parker.park_until(None);
        waker.join().unwrap();
    });
}

#[test]
fn a_wake_up_before_or_during_a_sleep_with_a_deadline_ends_it() {
    exhaust(|| {
        let parker = Arc::new(Parker::new());
        let waker = Arc::clone(&parker);
        let waker = thread::spawn(move || waker.unpark());
        parker.park_until(Some(Instant::now() + Duration::from_secs(3_600)));
        waker.join().unwrap();
    });
}

#[test]
fn a_sleep_that_timed_out_costs_no_later_wake_up() {
    exhaust(|| {
        let parker = Arc::new(Parker::new());
        let news = Arc::new(AtomicUsize::new(0));
        let (from, waker) = (Arc::clone(&news), Arc::clone(&parker));
        let waker = thread::spawn(move || {
            from.store(1, Ordering::SeqCst);
            waker.unpark();
        });
        parker.park_until(Some(Instant::now()));
        while news.load(Ordering::SeqCst) == 0 {
            parker.park_until(None);
        }
        waker.join().unwrap();
    });
}

#[test]
fn a_wake_up_is_kept_and_counts_once() {
    exhaust(|| {
        let parker = Arc::new(Parker::new());
        parker.unpark();
        parker.unpark();
        parker.park_until(None);
        let waker = Arc::clone(&parker);
        let waker = thread::spawn(move || waker.unpark());
        // The two wake-ups left one token, which the first park took. Only a later wake-up ends
        // this park.
        parker.park_until(None);
        waker.join().unwrap();
    });
}

/// All sleeping threads rely on one rule: the waker first stores its event and then wakes the
/// sleeping thread.
#[test]
fn a_thread_that_looks_before_each_sleep_misses_no_news() {
    explore(2_000, || {
        let sleeper = Waker::current();
        let news = Arc::new(AtomicUsize::new(0));
        let wakers: Vec<_> = (0..3)
            .map(|_| {
                let (sleeper, news) = (sleeper.clone(), Arc::clone(&news));
                thread::spawn(move || {
                    for _ in 0..2 {
                        news.fetch_add(1, Ordering::SeqCst);
                        sleeper.wake();
                    }
                })
            })
            .collect();
        while news.load(Ordering::SeqCst) < 6 {
            sleeper.sleep_until(None);
        }
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

/// Each of the two threads sleeps until the other thread has woken it, many times.
#[test]
fn two_threads_wake_each_other_in_turns() {
    explore(1_000, || {
        let count = Arc::new(AtomicUsize::new(0));
        let (from, shared) = (Waker::current(), Arc::clone(&count));
        let play = |count: &AtomicUsize, mine: usize, other: &Waker| {
            let me = Waker::current();
            for round in 0..4 {
                while count.load(Ordering::SeqCst) != 2 * round + mine {
                    me.sleep_until(None);
                }
                count.fetch_add(1, Ordering::SeqCst);
                other.wake();
            }
        };
        let (tell, told) = shuttle::sync::mpsc::channel();
        let second = thread::spawn(move || {
            tell.send(Waker::current()).unwrap();
            play(&shared, 1, &from);
        });
        play(&count, 0, &told.recv().unwrap());
        second.join().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 8);
    });
}
