//! The contract of `java.util.concurrent.CyclicBarrier`. Each test begins with quotations from the
//! contract.

use std::sync::{Mutex, mpsc};

use redlatch::Waited;

use super::*;

/// "Waits until all parties have invoked await." "Returns the arrival index of the current thread,
/// where index getParties() - 1 indicates the first to arrive and zero indicates the last to
/// arrive." "The barrier is called cyclic because it can be re-used after the waiting threads are
/// released."
#[test]
fn all_wait_for_the_last_again_and_again_and_know_their_index() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let barriers = [barrier(&clients[0], "cycles", 4), clients[1].cyclic_barrier("cycles")];
    assert!(!barriers[1].try_set_parties(9).unwrap());
    assert_eq!(barriers[1].parties().unwrap(), 4);
    woken_by_message(|| {
        let parties: Vec<_> = (0..3).map(|at| party(&barriers[at % 2])).collect();
        assert!(parties.iter().all(|party| !party.is_finished()));
        assert_eq!(barriers[0].waiting().unwrap(), 3);
        assert_eq!(barriers[1].wait().unwrap(), 0);
        let indices: Vec<_> = parties.into_iter().map(|party| party.join().unwrap()).collect();
        assert_eq!(indices, [3, 2, 1]);
        assert_eq!((barriers[0].waiting().unwrap(), barriers[1].is_broken().unwrap()), (0, false));
    });
    assert!(barriers[0].delete().unwrap());
    leaves_nothing(&server, "cycles");
}

/// "A CyclicBarrier that will trip when the given number of parties are waiting upon it". A barrier
/// of one party trips at once. "IllegalArgumentException if parties is less than 1".
#[test]
fn a_barrier_trips_at_its_number_of_parties_which_must_be_valid() {
    let server = server();
    let client = client(&server);
    let alone = barrier(&client, "alone", 1);
    for _ in 0..3 {
        assert_eq!(alone.wait().unwrap(), 0);
        assert_eq!(alone.wait_for(Duration::ZERO).unwrap(), Waited::InTime(0));
    }
    let none = client.cyclic_barrier("none");
    for error in [
        none.try_set_parties(0).unwrap_err(),
        none.try_set_parties(1_000_000).unwrap_err(),
        none.wait().unwrap_err(),
        client.cyclic_barrier("").parties().unwrap_err(),
        none.with_watchdog(Duration::from_millis(1)).wait().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    assert_eq!((none.parties().unwrap(), none.waiting().unwrap()), (0, 0));
    assert!(!none.reset().unwrap() && !none.delete().unwrap());
}

/// "If the current thread is the last thread to arrive, and a non-null barrier action was supplied
/// in the constructor, then the current thread runs the action before allowing the other threads to
/// continue."
#[test]
fn the_last_party_runs_the_action_before_any_goes_on() {
    let server = server();
    let client = client(&server);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let plain = barrier(&client, "acts", 3);
    let acting = plain.with_action(move || {
        thread::sleep(TIME_UNIT);
        counted.fetch_add(1, Ordering::SeqCst);
    });
    for round in 1..4 {
        let parties = [(); 2].map(|()| {
            let runs = Arc::clone(&runs);
            party_that(&acting, move |it| (it.wait().unwrap(), runs.load(Ordering::SeqCst)))
        });
        assert_eq!(acting.wait().unwrap(), 0);
        let seen = parties.map(Running::join);
        assert_eq!(seen, [(2, round), (1, round)], "the action was run, and once");
    }
}

/// "If an exception occurs during the barrier action then that exception will be propagated in the
/// current thread and the barrier is placed in the broken state."
#[test]
fn a_panic_of_the_action_goes_on_in_the_last_party_and_breaks_the_barrier() {
    let server = server();
    let plain = barrier(&client(&server), "panics", 2);
    woken_by_message(|| {
        assert!(plain.reset().unwrap());
        let waits = party(&plain);
        let last = plain.with_action(|| panic!("as the test wants it"));
        let panicked = spawn(move || {
            let run = std::panic::AssertUnwindSafe(|| last.wait());
            std::panic::catch_unwind(run).is_err()
        });
        assert!(panicked.join());
        is_broken(waits.join());
        assert!(plain.is_broken().unwrap());
    });
}

/// Returns a barrier whose action reports that it runs, and runs until the test ends it.
fn halting(plain: &CyclicBarrier) -> (CyclicBarrier, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (starts, started) = mpsc::channel();
    let (ends, end) = mpsc::channel();
    let end = Mutex::new(end);
    let acting = plain.with_action(move || {
        starts.send(()).unwrap();
        end.lock().unwrap().recv().unwrap();
    });
    (acting, started, ends)
}

/// A thread that comes while the action runs is the first party of the next generation.
#[test]
fn a_party_that_comes_during_the_action_is_one_of_the_next_generation() {
    let server = server();
    let client = client(&server);
    let plain = barrier(&client, "during", 2);
    woken_by_message(|| {
        let (acting, started, ends) = halting(&plain);
        let first = party(&plain);
        let last = spawn(move || acting.wait().unwrap());
        started.recv().unwrap();
        let early = plain.clone();
        let next = spawn(move || early.wait().unwrap());
        next.wait_asleep();
        assert!(!first.is_finished());
        ends.send(()).unwrap();
        assert_eq!((first.join().unwrap(), last.join()), (1, 0));
        wait_until("it is one of the next", TIMEOUT, || plain.waiting().unwrap() == 1);
        assert_eq!((plain.wait().unwrap(), next.join()), (0, 1));
    });
}

/// "If the specified waiting time elapses then TimeoutException is thrown", "the barrier is placed
/// in the broken state", "BrokenBarrierException if another thread ... timed out while the current
/// thread was waiting". "If the time is less than or equal to zero, the method will not wait at
/// all."
#[test]
fn a_party_whose_time_is_over_breaks_the_barrier_for_all() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let barriers = [barrier(&clients[0], "late", 4), clients[1].cyclic_barrier("late")];
    for patience in [TIME_UNIT, Duration::ZERO] {
        woken_by_message(|| {
            assert!(barriers[0].reset().unwrap());
            let waits = [0, 1].map(|at| party(&barriers[at]));
            let begun = Instant::now();
            let outcome = barriers[0].wait_for(patience);
            assert!(begun.elapsed() >= patience);
            left(&barriers[0], outcome);
            for outcome in waits.map(Running::join) {
                is_broken(outcome);
            }
            assert!(barriers[1].is_broken().unwrap());
            // "BrokenBarrierException ... if the barrier is broken when await is called".
            is_broken(barriers[1].wait());
            is_broken(barriers[1].wait_for(LONG_LEASE));
        });
    }
}

/// A thread that comes while the action of a generation runs waits for the next generation. If the
/// thread's time ends during the action, the thread leaves the next generation. No party waits in
/// vain for a thread that has left.
#[test]
fn a_party_whose_time_is_over_during_the_action_breaks_the_next_generation() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let plain = barrier(&clients[0], "early", 2);
    let cancelled = CancelToken::new();
    cancelled.cancel();
    type Leaves = fn(&CyclicBarrier, &CancelToken) -> Result<Waited<u32>, Error>;
    let leaves: [Leaves; 3] = [
        |barrier, _| barrier.wait_for(TIME_UNIT),
        |barrier, _| barrier.wait_for(Duration::ZERO),
        |barrier, token| barrier.wait_within(token),
    ];
    for (resets, leaves) in [false, true].into_iter().flat_map(|it| leaves.map(|leave| (it, leave)))
    {
        woken_by_message(|| {
            let (acting, started, ends) = halting(&plain);
            let first = party(&plain);
            let last = spawn(move || acting.wait());
            started.recv().unwrap();
            // Both clients break the next generation. The second client's call changes nothing.
            for client in &clients {
                // A busy server may reply too late.
                let _ = answered(|| match leaves(&client.cyclic_barrier("early"), &cancelled) {
                    Err(error) if error.kind() == ErrorKind::Cancelled => Ok(Waited::TimedOut),
                    left => left.inspect(|left| assert_eq!(*left, Waited::TimedOut)),
                });
                // If the server replied too late, the client breaks the barrier later, but before
                // this request.
                assert!(!client.cyclic_barrier("early").try_set_parties(2).unwrap());
            }
            assert!(!first.is_finished() && !last.is_finished(), "this one is complete");
            if resets {
                assert!(plain.reset().unwrap());
                ends.send(()).unwrap();
                is_broken(first.join());
                is_broken(last.join());
            } else {
                ends.send(()).unwrap();
                assert_eq!((first.join().unwrap(), last.join().unwrap()), (1, 0));
                assert!(plain.is_broken().unwrap());
                is_broken(plain.wait());
                assert!(plain.reset().unwrap());
            }
            assert!(!plain.is_broken().unwrap());
            let waits = party(&plain);
            assert_eq!((plain.wait().unwrap(), waits.join().unwrap()), (0, 1));
        });
    }
}

/// "If any thread is interrupted while waiting, then all other waiting threads will throw
/// BrokenBarrierException and the barrier is placed in the broken state", and if it "has its
/// interrupted status set on entry to this method".
#[test]
fn a_party_that_is_cancelled_breaks_the_barrier_for_all() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let barriers = [barrier(&clients[0], "gone", 4), clients[1].cyclic_barrier("gone")];
    for before in [false, true] {
        woken_by_message(|| {
            assert!(barriers[0].reset().unwrap());
            let waits = [0, 1].map(|at| party(&barriers[at]));
            let token = CancelToken::new();
            let leaves = if before {
                token.cancel();
                barriers[0].wait_cancellable(&token)
            } else {
                let its = token.clone();
                let leaves = party_that(&barriers[1], move |it| it.wait_cancellable(&its));
                token.cancel();
                leaves.join()
            };
            assert_eq!(leaves.unwrap_err().kind(), ErrorKind::Cancelled);
            for outcome in waits.map(Running::join) {
                is_broken(outcome);
            }
        });
    }
    // The reset reports that the barrier was broken.
    assert!(barriers[0].reset().unwrap());
    let token = CancelToken::new();
    let wait = Wait::at_most(TIME_UNIT).cancelled_by(&token);
    left(&barriers[0], barriers[0].wait_within(wait));
}

/// "Resets the barrier to its initial state. If any parties are currently waiting at the barrier,
/// they will return with a BrokenBarrierException." "isBroken: true if one or more parties broke
/// out of this barrier ... since construction or the last reset".
#[test]
fn a_reset_breaks_the_present_generation_and_mends_the_barrier() {
    let server = server();
    let client = client(&server);
    let barrier = barrier(&client, "anew", 2);
    woken_by_message(|| {
        let waits = party(&barrier);
        assert!(barrier.reset().unwrap());
        is_broken(waits.join());
        assert!(!barrier.is_broken().unwrap());
        assert_eq!((barrier.waiting().unwrap(), barrier.parties().unwrap()), (0, 2));
        left(&barrier, barrier.wait_for(TIME_UNIT / 10));
        assert!(barrier.is_broken().unwrap());
        assert!(barrier.reset().unwrap());
        let waits = party(&barrier);
        assert_eq!((barrier.wait().unwrap(), waits.join().unwrap()), (0, 1));
    });
}

/// A delete has the effect of a reset, and then there is no barrier.
#[test]
fn a_delete_breaks_the_present_generation() {
    let server = server();
    let client = client(&server);
    woken_by_message(|| {
        let deleted = barrier(&client, "deleted", 2);
        let waits = party(&deleted);
        assert!(deleted.delete().unwrap());
        // A new barrier of the same name is another barrier, with other generations.
        let anew = barrier(&client, "deleted", 3);
        is_broken(waits.join());
        assert_eq!((anew.waiting().unwrap(), anew.is_broken().unwrap()), (0, false));
        assert!(anew.delete().unwrap());
        leaves_nothing(&server, "deleted");
    });
}

/// The delete also ends the wait of a thread that came during the action.
#[test]
fn a_delete_during_the_action_breaks_the_wait_of_all() {
    let server = server();
    let client = client(&server);
    woken_by_message(|| {
        let plain = barrier(&client, "deleted then", 2);
        let (acting, started, ends) = halting(&plain);
        let first = party(&plain);
        let last = spawn(move || acting.wait());
        started.recv().unwrap();
        let early = plain.clone();
        let next = spawn(move || early.wait());
        next.wait_asleep();
        assert!(plain.delete().unwrap());
        ends.send(()).unwrap();
        for outcome in [first.join(), last.join(), next.join()] {
            is_broken(outcome);
        }
        // A thread that arrives now finds no barrier.
        assert_eq!(plain.wait().unwrap_err().kind(), ErrorKind::Config);
        leaves_nothing(&server, "deleted then");
    });
}

/// The numbers of generations increase from one barrier of a name to the next barrier, even if the
/// first barrier has tripped more than a thousand times a second.
#[test]
fn a_barrier_made_again_after_many_trips_is_another_one() {
    let server = server();
    let barrier = client(&server).cyclic_barrier("fast");
    for _ in 0..2 {
        assert!(barrier.try_set_parties(1).unwrap());
        for _ in 0..2_000 {
            assert_eq!(barrier.wait().unwrap(), 0);
        }
        assert!(barrier.delete().unwrap());
    }
}

/// "If the current thread has its interrupted status set on entry to this method": the thread does
/// not trip the barrier, though it is the last to arrive.
#[test]
fn a_party_cancelled_before_its_call_breaks_the_barrier_even_as_the_last() {
    let server = server();
    let client = client(&server);
    let barrier = barrier(&client, "last", 2);
    let token = CancelToken::new();
    token.cancel();
    woken_by_message(|| {
        assert!(barrier.reset().unwrap());
        let waits = party(&barrier);
        let left = barrier.wait_cancellable(&token).unwrap_err();
        assert_eq!(left.kind(), ErrorKind::Cancelled, "{left}");
        is_broken(waits.join());
        assert!(barrier.is_broken().unwrap());
    });
}

/// "BrokenBarrierException - if another thread was interrupted or timed out while the current
/// thread was waiting, or the barrier was reset": this is also true for parties with a time limit.
#[test]
fn a_party_with_a_limit_hears_that_it_broke_long_before_the_limit() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let barriers = [barrier(&clients[0], "timed", 3), clients[1].cyclic_barrier("timed")];
    let breaks: [fn(&CyclicBarrier); 4] = [
        |it| left(it, it.wait_for(TIME_UNIT / 10)),
        |it| {
            let token = CancelToken::new();
            let its = token.clone();
            let leaves = party_that(it, move |it| {
                it.wait_within(Wait::at_most(LONG_LEASE).cancelled_by(&its))
            });
            token.cancel();
            assert_eq!(leaves.join().unwrap_err().kind(), ErrorKind::Cancelled);
        },
        |it| assert!(it.reset().unwrap()),
        |it| assert!(it.delete().unwrap()),
    ];
    for break_it in breaks {
        woken_by_message(|| {
            let _ = barriers[0].try_set_parties(3).unwrap();
            assert!(barriers[0].reset().unwrap());
            let waits = party_that(&barriers[0], |it| it.wait_for(LONG_LEASE));
            break_it(&barriers[1]);
            is_broken(waits.join());
        });
    }
}

/// "Resets the barrier to its initial state": if no parties wait, a reset breaks nothing, before
/// the first generation and between two generations.
#[test]
fn a_reset_while_nobody_waits_breaks_nothing() {
    let server = server();
    let barrier = barrier(&client(&server), "idle", 2);
    for _ in 0..3 {
        assert!(barrier.reset().unwrap());
        assert!(!barrier.is_broken().unwrap());
        let waits = party(&barrier);
        assert_eq!((barrier.wait().unwrap(), waits.join().unwrap()), (0, 1));
        assert!(!barrier.is_broken().unwrap());
        assert_eq!(barrier.waiting().unwrap(), 0);
    }
}

/// "Note that resets after a breakage has occurred for other reasons can be complicated to carry
/// out": after each kind of breakage the barrier stays broken, even without parties, until a reset.
/// After the reset the barrier works again, each time.
#[test]
fn a_broken_barrier_stays_broken_until_a_reset_and_is_as_new_then() {
    let server = server();
    let client = client(&server);
    let plain = barrier(&client, "mended", 2);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let acting = plain.with_action(move || {
        // The action fails at its first run.
        assert!(counted.fetch_add(1, Ordering::SeqCst) > 0, "as the test wants it");
    });
    let breaks: [fn(&CyclicBarrier); 3] = [
        |it| {
            let (waits, last) = (party(it), it.clone());
            let run = std::panic::AssertUnwindSafe(|| last.wait());
            assert!(std::panic::catch_unwind(run).is_err());
            is_broken(waits.join());
        },
        |it| left(it, it.wait_for(TIME_UNIT / 10)),
        |it| {
            let token = CancelToken::new();
            token.cancel();
            assert!(it.wait_cancellable(&token).is_err());
        },
    ];
    for break_it in breaks {
        break_it(&acting);
        // If the server does not answer in time, the client breaks the barrier in the background.
        wait_until("the barrier is broken", TIMEOUT, || plain.is_broken().unwrap());
        assert_eq!((plain.waiting().unwrap(), plain.parties().unwrap()), (0, 2));
        is_broken(plain.wait());
        is_broken(acting.wait_for(Duration::ZERO));
        assert!(plain.reset().unwrap());
        assert!(!plain.is_broken().unwrap());
        for _ in 0..2 {
            let waits = party(&acting);
            assert_eq!((acting.wait().unwrap(), waits.join().unwrap()), (0, 1));
        }
    }
    assert_eq!(runs.load(Ordering::SeqCst), 7);
}

/// If a reset comes while the action runs, no party passes, not even the last party.
#[test]
fn a_reset_during_the_action_breaks_the_generation_for_the_last_party_too() {
    let server = server();
    let client = client(&server);
    let plain = barrier(&client, "meanwhile", 2);
    woken_by_message(|| {
        assert!(plain.reset().unwrap());
        let resets = plain.clone();
        let acting = plain.with_action(move || assert!(resets.reset().unwrap()));
        let waits = party(&plain);
        is_broken(acting.wait());
        is_broken(waits.join());
        // The next generation is not affected.
        assert_eq!((plain.is_broken().unwrap(), plain.waiting().unwrap()), (false, 0));
    });
}

/// "Actions in a thread prior to calling await() happen-before actions that are part of the barrier
/// action, which in turn happen-before actions following a successful return from the corresponding
/// await() in other threads." In this test the threads write to the server and read from it.
#[test]
fn the_action_sees_what_all_wrote_before_and_all_see_what_it_wrote() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let plain = barrier(&clients[0], "seen", 3);
    let sums = Arc::new(Mutex::new(server.connection()));
    let sum = move || {
        let mut redis = sums.lock().unwrap();
        let parts: Vec<u32> = redis.lrange("parts", 0, -1).unwrap();
        let () = redis.set("sum", parts.iter().sum::<u32>()).unwrap();
        let () = redis.del("parts").unwrap();
    };
    let url = server.url();
    let parties: Vec<_> = (0..3u32)
        .map(|at| {
            let barrier = clients[at as usize % 2].cyclic_barrier("seen").with_action(sum.clone());
            let client = redis::Client::open(url.as_str()).unwrap();
            spawn(move || {
                let mut redis = client.get_connection().unwrap();
                for round in 1..20 {
                    let () = redis.rpush("parts", at + round).unwrap();
                    barrier.wait().unwrap();
                    let sum: u32 = redis.get("sum").unwrap();
                    assert_eq!(sum, 3 * round + 3);
                    // No party adds to the next round before all have read this round's sum.
                    barrier.wait().unwrap();
                }
            })
        })
        .collect();
    parties.into_iter().for_each(Running::join);
    assert_eq!(plain.waiting().unwrap(), 0);
}

/// The value in place of an index if the party does not know whether it has passed.
const UNKNOWN: u32 = u32::MAX;

/// "All-or-none breakage model": whatever the parties do, they agree on the outcome.
#[test]
fn the_parties_of_a_generation_agree_whatever_they_do() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let first = barrier(&clients[0], "agree", 3);
    let mut random = Random::new();
    let (mut passed, mut broke) = (0, 0);
    let until = Instant::now() + TIMEOUT;
    while passed + broke < 150 || passed == 0 && Instant::now() < until {
        assert!(first.reset().unwrap());
        // On a busy machine the parties need more time to pass.
        let more = if passed == 0 { 1 + broke / 20 } else { 1 };
        let parties: Vec<_> = (0..3)
            .map(|at| {
                let barrier = clients[at % 2].cyclic_barrier("agree");
                let (pause, patience) = (random.below(3), (random.below(6) + 1) * more);
                spawn(move || {
                    thread::sleep(Duration::from_millis(pause));
                    match barrier.wait_for(Duration::from_millis(patience)) {
                        Ok(Waited::InTime(index)) => Some(index),
                        Ok(Waited::TimedOut) => None,
                        Err(error) if error.kind() == ErrorKind::Broken => None,
                        // The busy server has not answered in time.
                        Err(error) if error.is_transient() => Some(UNKNOWN),
                        Err(error) => panic!("{error}"),
                    }
                })
            })
            .collect();
        let mut indices: Vec<_> = parties.into_iter().map(Running::join).collect();
        indices.sort_unstable();
        if indices == [Some(0), Some(1), Some(2)] {
            passed += 1;
        } else if !indices.contains(&Some(UNKNOWN)) {
            assert_eq!(indices, [None; 3], "some passed, and some did not");
            broke += 1;
        }
    }
    assert!(passed > 0 && broke > 0, "{passed} passed, {broke} broke");
}
