//! Models of a whole lock, in many interleavings of its threads. The models run the handles, gates,
//! waiting loop, lane, link and subscriber of one or two clients against the model server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use redlatch_client::CancelToken;
use redlatch_client::sync::{clock, explore};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::Client;
use crate::attempt::Attempt;
use crate::error::{Error, ErrorKind};
use crate::hold::Leaseholder;
use crate::lease::Job;
use crate::lock::{Lock, LockGuard};
use crate::model::{EVAL, ModelServer, Process};
use crate::runtime::Core;
use crate::scripts::renewal::StillHeld;
use crate::site::Site;

const NAME: &str = "name";
const ROUNDS: usize = 3;

fn client(process: &Process) -> Client {
    Client(process.session.clone())
}

fn reentrant_lock(process: &Process) -> Arc<dyn Lock> {
    Arc::new(client(process).reentrant_lock(NAME))
}

fn fair_lock(process: &Process) -> Arc<dyn Lock> {
    Arc::new(client(process).fair_lock(NAME))
}

/// Checks that each hold of this process is lost, or is also a hold at the server.
fn check(process: &Process, server: &ModelServer) {
    let gate = &Site::of(&process.core, NAME).gate;
    let tenancy = gate.with_seat(|seat| seat.map(|seat| Arc::clone(&seat.tenancy)));
    let owner = server.owner(NAME);
    if let Some(tenancy) = tenancy.filter(|tenancy| tenancy.is_held()) {
        assert_eq!(owner.as_deref(), Some(&*tenancy.hold().owner.text()), "{tenancy:?}");
    }
}

/// Takes the lock by a random method.
fn take(lock: &dyn Lock) -> Result<Option<LockGuard>, Error> {
    if thread_rng().gen_bool(0.5) { lock.lock().map(Some) } else { try_to_take(lock) }
}

/// Takes the lock by a random method with a limited wait.
fn try_to_take(lock: &dyn Lock) -> Result<Option<LockGuard>, Error> {
    match thread_rng().gen_range(0..4) {
        0 => lock.try_lock().map(Attempt::into_option),
        1 => match lock.lock_within(Instant::now().into()) {
            // The model's steps take real time, so the limit may pass before the reply.
            Err(error) if error.is_transient() => Ok(None),
            taken => taken.map(Attempt::into_option),
        },
        _ => {
            let token = CancelToken::new();
            let elsewhere = token.clone();
            let canceller = thread::spawn(move || elsewhere.cancel());
            let taken = lock.lock_cancellable(&token);
            canceller.join().unwrap();
            match taken {
                Err(error) if error.kind() == ErrorKind::Cancelled => Ok(None),
                taken => taken.map(Some),
            }
        }
    }
}

/// Uses the lock a few times.
fn user(lock: &dyn Lock, inside: &AtomicUsize) {
    for _ in 0..ROUNDS {
        let Some(guard) = take(lock).unwrap() else {
            continue;
        };
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold at a time");
        if thread_rng().gen_bool(0.3) {
            drop(lock.lock().unwrap());
        }
        thread::yield_now();
        assert!(guard.is_held());
        inside.fetch_sub(1, Ordering::SeqCst);
        if thread_rng().gen_bool(0.5) {
            drop(guard);
        } else {
            guard.unlock().unwrap();
        }
    }
}

/// Runs `threads` threads of each process, which use the lock. Returns how often the server refused
/// the lock.
fn play(
    processes: usize,
    threads: usize,
    lock: fn(&Process) -> Arc<dyn Lock>,
    user: fn(&dyn Lock, &AtomicUsize),
) -> usize {
    play_on(&ModelServer::start(), processes, threads, lock, user, |_| {})
}

/// Like [`play`], but uses this server, and calls `check` with the server at the end.
fn play_on(
    server: &Arc<ModelServer>,
    processes: usize,
    threads: usize,
    lock: fn(&Process) -> Arc<dyn Lock>,
    user: fn(&dyn Lock, &AtomicUsize),
    check: fn(&ModelServer),
) -> usize {
    let processes: Vec<_> = (0..processes).map(|_| Process::start(server)).collect();
    let inside = Arc::new(AtomicUsize::new(0));
    let users = processes.iter().flat_map(|process| vec![process; threads]).map(|process| {
        let (lock, inside) = (lock(process), Arc::clone(&inside));
        process.spawn(move || user(&*lock, &inside))
    });
    let users: Vec<_> = users.collect();
    for user in users {
        user.join().unwrap();
    }
    processes.into_iter().for_each(Process::end);
    assert_eq!(server.owner(NAME), None, "a hold that nobody has was not released");
    check(server);
    server.not_granted()
}

#[test]
fn one_holds_at_a_time_and_every_thread_ends() {
    explore(400, || {
        play(1, 4, reentrant_lock, user);
    });
}

/// A script whose reply was lost may run later, but never while another thread has the lock, even
/// if that thread is of the same process.
#[test]
fn a_script_runs_under_no_other_tenancy() {
    let uses = |lock: &dyn Lock, tenancies: &AtomicUsize| {
        for _ in 0..ROUNDS {
            let guard = lock.lock().unwrap();
            let tenancy = tenancies.fetch_add(1, Ordering::SeqCst);
            let run = |word| {
                let argument = format!("{word} {tenancy}");
                guard.eval(&EVAL, &[], &[argument.as_bytes()])
            };
            run("begins").unwrap();
            if thread_rng().gen_bool(0.5)
                && let Err(error) = run("may be late")
            {
                assert!(error.outcome_unknown(), "{error}");
            }
            guard.unlock().unwrap();
        }
    };
    let check = |server: &ModelServer| {
        let mut present = None;
        for argument in server.ran() {
            let argument = String::from_utf8(argument).unwrap();
            let (word, tenancy) = argument.rsplit_once(' ').unwrap();
            if word == "begins" {
                present = Some(tenancy.to_owned());
            }
            assert_eq!(present.as_deref(), Some(tenancy), "it ran under another tenancy");
        }
    };
    for (processes, threads) in [(1, 3), (2, 2)] {
        explore(100, move || {
            play_on(&ModelServer::start(), processes, threads, reentrant_lock, uses, check);
            play_on(&ModelServer::start(), processes, threads, fair_lock, uses, check);
        });
    }
}

/// A process sends its release before its next request. So it never requests a lock that it still
/// has.
#[test]
fn a_release_goes_out_before_the_next_request() {
    explore(1_000, || {
        let user = |lock: &dyn Lock, _: &AtomicUsize| {
            for _ in 0..ROUNDS {
                drop(lock.lock().unwrap());
            }
        };
        assert_eq!(play(1, 2, reentrant_lock, user), 0);
    });
}

#[test]
fn of_two_processes_one_thread_holds_at_a_time_and_every_thread_ends() {
    explore(250, || {
        play(2, 2, reentrant_lock, user);
    });
}

#[test]
fn the_waiters_for_a_fair_lock_end() {
    explore(400, || {
        play(1, 4, fair_lock, user);
    });
}

#[test]
fn the_waiters_of_two_processes_for_a_fair_lock_end() {
    explore(250, || {
        play(2, 2, fair_lock, user);
    });
}

/// Lets threads take the lock while `trouble` runs.
fn disturb(
    take: fn(&dyn Lock) -> Result<Option<LockGuard>, Error>,
    look: fn(&Process, &ModelServer),
    trouble: fn(&Process, &ModelServer),
) -> Arc<ModelServer> {
    let server = ModelServer::start();
    server.forget_scripts();
    let process = Arc::new(Process::start(&server));
    let users: Vec<_> = (0..3)
        .map(|_| {
            let (process, server) = (Arc::clone(&process), Arc::clone(&server));
            thread::spawn(move || {
                let lock = reentrant_lock(&process);
                for _ in 0..ROUNDS {
                    match take(&*lock) {
                        Ok(guard) => {
                            look(&process, &server);
                            drop(guard);
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::ShutDown),
                    }
                }
            })
        })
        .collect();
    trouble(&process, &server);
    for user in users {
        user.join().unwrap();
    }
    Arc::into_inner(process).unwrap().end();
    server
}

#[test]
fn no_thread_holds_after_a_shutdown() {
    explore(4_000, || {
        let server = disturb(take, check, |process, server| {
            client(process).shutdown();
            check(process, server);
        });
        assert_eq!(server.owner(NAME), None, "a hold that nobody has was not released");
    });
}

#[test]
fn a_force_unlock_is_reported_to_the_holder() {
    explore(1_000, || {
        // This model has no renewer, which would give back a grant for which no thread waits. So
        // the threads wait only for a limited time.
        let look = |_: &Process, _: &ModelServer| thread::yield_now();
        disturb(try_to_take, look, |process, server| {
            reentrant_lock(process).force_unlock().unwrap();
            check(process, server);
        });
    });
}

#[test]
fn a_shutdown_ends_every_wait() {
    explore(500, || {
        let server = ModelServer::start();
        assert!(server.take(NAME, b"another process"));
        let process = Process::start(&server);
        let users: Vec<_> = (0..3)
            .map(|_| {
                let lock = reentrant_lock(&process);
                thread::spawn(move || {
                    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::ShutDown);
                })
            })
            .collect();
        client(&process).shutdown();
        for user in users {
            user.join().unwrap();
        }
        process.end();
    });
}

/// One thread holds a lock for a while, and another thread takes the lock away. The holder keeps or
/// releases its guard. Connections of the subscriber break in the meantime.
fn take_away(keeps: bool, breaks: bool) {
    let server = ModelServer::start();
    let (core, jobs) = Core::model_with_jobs(&server);
    let process = Process::of(Arc::clone(&core));
    // A waiter makes the subscriber connect.
    let waits = thread_rng().gen_bool(0.7).then(|| core.pubsub.listen_to_own(NAME));
    let lock = client(&process).reentrant_lock(NAME);
    let guard = lock.lock().unwrap();
    let site = Site::of(&core, NAME);
    clock::model::advance(1_000_000_000);
    let wheel = thread::spawn({
        let site = Arc::clone(&site);
        move || site.track(clock::now())
    });
    let thief = thread::spawn({
        let server = Arc::clone(&server);
        move || {
            for at in 0..3 {
                if at == 1 {
                    server.take_away(NAME);
                } else if breaks {
                    server.break_subscribers();
                }
                thread::yield_now();
            }
        }
    });
    let done = Arc::new(AtomicUsize::new(0));
    let renewer = thread::spawn({
        let (server, core, done) = (Arc::clone(&server), Arc::clone(&core), Arc::clone(&done));
        move || {
            while done.load(Ordering::SeqCst) == 0 {
                match jobs.try_recv() {
                    Ok(Job::WakeSubscriber(node)) => core.wake_subscriber(&node),
                    Ok(Job::Renew(renewals)) => {
                        for due in renewals {
                            let owner = server.owner(NAME);
                            let is_there = owner.as_deref() == Some(&*due.owner.text());
                            let held = if is_there { StillHeld::Yes } else { StillHeld::No };
                            (due.renewed)(clock::now(), Ok((held, false)), false);
                        }
                    }
                    _ => thread::yield_now(),
                }
            }
        }
    });
    if keeps {
        // Poll the guard, because nothing else reports the loss.
        while guard.is_held() {
            thread::yield_now();
        }
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    } else if let Err(error) = guard.unlock() {
        assert_eq!(error.kind(), ErrorKind::LeaseLost);
        assert_eq!(server.owner(NAME), None, "it was there, and its holder was told otherwise");
    }
    wheel.join().unwrap();
    thief.join().unwrap();
    // The next holder has another hold, and the loss of the first hold does not affect it.
    let next = lock.lock().unwrap();
    assert!(next.is_held());
    next.unlock().unwrap();
    done.store(1, Ordering::SeqCst);
    renewer.join().unwrap();
    drop((lock, site, waits));
    process.end();
}

#[test]
fn a_lost_hold_is_reported_to_its_holder() {
    explore(500, || take_away(true, false));
}

#[test]
fn a_lost_hold_is_reported_to_its_holder_at_any_failure() {
    explore(500, || take_away(true, true));
}

#[test]
fn a_released_hold_is_not_reported_as_lost() {
    explore(500, || take_away(false, true));
}
