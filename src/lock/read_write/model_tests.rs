//! Models of a whole read-write lock, in many interleavings of its threads. The models run the
//! handles, pair, gates, waiting loop and lane of one or two clients against the model server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlatch_client::CancelToken;
use redlatch_client::sync::{Thread, clock, explore};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};

use super::{Mode, ReadWriteLock};
use crate::attempt::Attempt::{self, Taken};
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::Leaseholder;
use crate::lock::{Lock, LockGuard};
use crate::model::ModelServer;
use crate::runtime::{Core, Session};
use crate::waiting::QueueSite as _;

const NAME: &str = "name";
const ROUNDS: usize = 3;
/// After this time a reader no longer joins without a request. The time is shorter than a turn.
const PAST_JOINING: u64 = 4_000_000;
const LEASE: Duration = Duration::from_secs(30);
const PAST_A_LEASE: u64 = 40_000_000_000;

/// A client with its subscriber.
struct Process {
    session: Session,
    lock: ReadWriteLock,
    subscriber: JoinHandle<()>,
}

impl Process {
    fn start(server: &ModelServer) -> Self {
        let core = Core::model(server);
        let subscriber = core.connect();
        let session = Session::model(core);
        Self { lock: ReadWriteLock::new(&session, NAME), session, subscriber }
    }

    /// Asserts that no thread of the client has the lock or waits for it, and then drops the
    /// client.
    fn end(self) {
        let pair = self.lock.read.handle.pair.as_ref().unwrap();
        for mode in [Mode::Read, Mode::Write] {
            let site = pair.site(mode);
            assert!(!site.with_queue(|queue| queue.is_busy()), "a leadership that nobody took");
            assert!(site.gate.hold().is_none(), "a seat that nobody left: {mode:?}");
        }
        drop((self.lock, self.session));
        self.subscriber.join().unwrap();
    }
}

/// The number of threads that hold the lock. (For lost holds see [`check_alone`].)
#[derive(Default)]
struct Inside {
    reading: AtomicUsize,
    writing: AtomicUsize,
}

/// Counts of events over all schedules. If an event never happens, a test of this event proves
/// nothing.
#[derive(Default)]
struct ReadWriteEvents {
    read: AtomicUsize,
    together: AtomicUsize,
    wrote: AtomicUsize,
    went_down: AtomicUsize,
}

/// Takes a lock by a random method.
fn take(lock: &dyn Lock) -> Result<Option<LockGuard>, Error> {
    if chance(0.5) { lock.lock().map(Some) } else { try_to_take(lock) }
}

/// Takes a lock by a random method with a limited wait.
fn try_to_take(lock: &dyn Lock) -> Result<Option<LockGuard>, Error> {
    match thread_rng().gen_range(0..4) {
        0 => lock.try_lock().map(Attempt::into_option),
        1 => match lock.lock_within(Instant::now().into()) {
            // The model's steps take real time, so the limit may pass before the reply arrives.
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

fn give_back(guard: LockGuard) {
    if chance(0.5) { drop(guard) } else { guard.unlock().unwrap() }
}

/// Uses the lock a few times. In these schedules no hold is lost.
fn user(lock: &ReadWriteLock, inside: &Inside, seen: &ReadWriteEvents) {
    for _ in 0..ROUNDS {
        if chance(0.6) {
            let Some(guard) = take(lock.reader()).unwrap() else { continue };
            read(lock, &guard, inside, seen);
            give_back(guard);
        } else {
            let Some(guard) = take(lock.writer()).unwrap() else { continue };
            write(lock, guard, inside, seen);
        }
    }
}

fn read(lock: &ReadWriteLock, guard: &LockGuard, inside: &Inside, seen: &ReadWriteEvents) {
    count(&seen.read);
    let others = inside.reading.fetch_add(1, Ordering::SeqCst);
    assert_eq!(inside.writing.load(Ordering::SeqCst), 0, "reads beside a writer");
    if others > 0 {
        count(&seen.together);
    }
    if chance(0.2) {
        assert_eq!(lock.writer().lock().unwrap_err().kind(), ErrorKind::WouldDeadlock);
    }
    if chance(0.2) {
        drop(lock.reader().lock().unwrap());
    }
    if chance(0.2) {
        clock::model::advance(PAST_JOINING);
    }
    thread::yield_now();
    assert!(guard.is_held());
    inside.reading.fetch_sub(1, Ordering::SeqCst);
}

fn write(lock: &ReadWriteLock, guard: LockGuard, inside: &Inside, seen: &ReadWriteEvents) {
    count(&seen.wrote);
    assert_eq!(inside.writing.fetch_add(1, Ordering::SeqCst), 0, "writes beside a writer");
    assert_eq!(inside.reading.load(Ordering::SeqCst), 0, "writes beside a reader");
    if chance(0.2) {
        drop(lock.writer().lock().unwrap());
    }
    let reading = chance(0.4).then(|| lock.reader().lock().unwrap());
    thread::yield_now();
    assert!(guard.is_held());
    inside.writing.fetch_sub(1, Ordering::SeqCst);
    give_back(guard);
    if let Some(reading) = reading {
        count(&seen.went_down);
        read(lock, &reading, inside, seen);
        give_back(reading);
    }
}

/// Runs `threads` threads of each process, which use the lock.
fn play(processes: usize, threads: usize, seen: &Arc<ReadWriteEvents>) {
    let server = ModelServer::start();
    let processes: Vec<_> = (0..processes).map(|_| Process::start(&server)).collect();
    let inside = Arc::new(Inside::default());
    let users: Vec<_> = processes
        .iter()
        .flat_map(|process| vec![(process.lock.clone(), process.session.clone()); threads])
        .map(|(lock, session)| {
            let (inside, seen) = (Arc::clone(&inside), Arc::clone(seen));
            thread::spawn(move || {
                user(&lock, &inside, &seen);
                // Other threads may wait for the lock that this thread released last.
                session.core().read_replies();
            })
        })
        .collect();
    for user in users {
        user.join().unwrap();
    }
    processes.into_iter().for_each(Process::end);
    assert!(!server.is_wanted(NAME), "a hold or a place that nobody has");
}

fn model(schedules: usize, processes: usize, threads: usize) -> Arc<ReadWriteEvents> {
    let seen = Arc::new(ReadWriteEvents::default());
    let count = Arc::clone(&seen);
    explore(schedules, move || play(processes, threads, &count));
    seen
}

#[test]
fn one_writes_or_some_read_and_every_thread_ends() {
    let seen = model(600, 1, 4);
    for what in [&seen.read, &seen.together, &seen.wrote, &seen.went_down] {
        assert!(happened(what));
    }
}

#[test]
fn of_two_processes_one_writes_or_some_read_and_every_thread_ends() {
    let seen = model(400, 2, 3);
    assert!(happened(&seen.together) && happened(&seen.went_down));
}

/// Asserts that while a write guard reports "held", no other guard of its process reports "held".
/// (A reader may still report "held" while a writer has no guard yet: the reader loses its hold
/// before the writer gets its guard.)
fn check_alone(lock: &ReadWriteLock, writing: &LockGuard) {
    let own = Thread::current();
    let others = [Mode::Read, Mode::Write].map(|mode| {
        lock.read.handle.site_of(mode).gate.with_seat(|seat| {
            let tenancies = seat.into_iter().flat_map(|seat| seat.tenancies());
            tenancies.filter(|other| other.thread.id() != own.id()).cloned().collect::<Vec<_>>()
        })
    });
    // All tenancies are collected before the check for two holders. So a guard that is held now was
    // also held while the tenancies were collected.
    for other in others.iter().flatten() {
        let both = writing.is_held() && other.is_held();
        assert!(!both, "{other:?} beside {writing:?}");
    }
}

type Take = fn(&dyn Lock) -> Result<Option<LockGuard>, Error>;

/// Uses the lock while the server takes its holds away.
fn robbed(lock: &ReadWriteLock, take: Take) {
    for _ in 0..ROUNDS {
        if chance(0.6) {
            // This reader's lease is longer than the leases of the readers that share its hold.
            let longer = lock.reader().with_lease(2 * LEASE);
            let side: &dyn Lock = if chance(0.5) { &longer } else { lock.reader() };
            let guard = take(side).unwrap();
            thread::yield_now();
            drop(guard);
            continue;
        }
        let Some(guard) = take(lock.writer()).unwrap() else { continue };
        check_alone(lock, &guard);
        let reading =
            chance(0.4).then(|| lock.reader().try_lock().unwrap()).and_then(Attempt::into_option);
        thread::yield_now();
        check_alone(lock, &guard);
        drop(guard);
        thread::yield_now();
        drop(reading);
    }
}

fn rob(take: Take, trouble: fn(&Process, &ModelServer)) {
    let server = ModelServer::start();
    let process = Process::start(&server);
    let users: Vec<_> = (0..3)
        .map(|_| {
            let lock = process.lock.clone();
            thread::spawn(move || robbed(&lock, take))
        })
        .collect();
    for _ in 0..3 {
        trouble(&process, &server);
    }
    for user in users {
        user.join().unwrap();
    }
    process.end();
}

#[test]
fn a_guard_that_says_held_is_alone_though_the_lock_is_deleted() {
    explore(1_000, || rob(take, |_, server| server.delete(NAME)));
}

#[test]
fn a_guard_that_says_held_is_alone_though_the_lock_is_unlocked_by_force() {
    explore(1_000, || {
        // The waits have limits. To end an endless wait, the renewer may have to undo a late grant,
        // and the model has no renewer.
        rob(try_to_take, |process, _| {
            let lock = &process.lock;
            let side: &dyn Lock = if chance(0.5) { lock.reader() } else { lock.writer() };
            side.force_unlock().unwrap();
        });
    });
}

/// A thread with the write lock also takes the read lock. After the server's reply and before the
/// thread has its read seat, the lock is deleted, a renewal detects the loss, and the next writer
/// writes.
#[test]
fn a_reader_granted_under_a_lost_hold_does_not_read_beside_the_next_writer() {
    explore(2_000, || {
        let server = ModelServer::start();
        let process = Process::start(&server);
        let inside = Arc::new(Inside::default());
        let writing = process.lock.writer().lock().unwrap();
        let (lock, next) = (process.lock.clone(), Arc::clone(&inside));
        let next = thread::spawn(move || {
            let guard = lock.writer().lock().unwrap();
            next.writing.store(1, Ordering::SeqCst);
            thread::yield_now();
            next.writing.store(0, Ordering::SeqCst);
            drop(guard);
        });
        let pair = process.lock.read.handle.pair.clone().unwrap();
        let renewal = thread::spawn(move || {
            let site = pair.site(Mode::Write);
            if let Some(hold) = site.gate.hold() {
                server.delete(NAME);
                site.lose_hold(&hold, LostReason::Revoked);
            }
        });
        if let Taken(reading) = process.lock.reader().try_lock().unwrap() {
            let another_writes = inside.writing.load(Ordering::SeqCst) > 0;
            assert!(!(another_writes && reading.is_held()), "reads beside a writer");
        }
        drop(writing);
        for thread in [next, renewal] {
            thread.join().unwrap();
        }
        process.end();
    });
}

/// The server grants a process the read lock although the process already has a read hold. The
/// process gives the new hold back, and no thread sends another request under the new hold's owner.
#[test]
fn an_owner_whose_hold_was_not_needed_is_not_used_again() {
    explore(1_000, || {
        let server = ModelServer::start();
        let (process, other) = (Process::start(&server), Process::start(&server));
        let reading = process.lock.reader().lock().unwrap();
        clock::model::advance(PAST_JOINING);
        let token = CancelToken::new();
        let (lock, cancelled) = (other.lock.clone(), token.clone());
        let writer = thread::spawn(move || {
            let error = lock.writer().lock_cancellable(&cancelled).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        });
        let read = || {
            let lock = process.lock.clone();
            thread::spawn(move || drop(lock.reader().lock().unwrap()))
        };
        // The readers in this loop queue behind the writer, and then the writer leaves.
        await_not_granted(&server, 1);
        let mut threads = vec![writer, read()];
        await_not_granted(&server, 2);
        threads.extend([read(), read()]);
        token.cancel();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(reading);
        process.end();
        other.end();
        assert!(!server.is_wanted(NAME), "a hold or a place that nobody has");
    });
}

fn await_not_granted(server: &ModelServer, not_granted: usize) {
    while server.not_granted() < not_granted {
        thread::yield_now();
    }
}

/// A lease has ended, and no thread has noticed this yet.
#[test]
fn a_thread_whose_read_hold_is_over_is_not_refused_as_a_reader() {
    explore(10, || {
        let server = ModelServer::start();
        let process = Process::start(&server);
        let reading = process.lock.reader().lock().unwrap();
        clock::model::advance(PAST_A_LEASE);
        // The server still has the hold, because no thread of the model releases it.
        assert!(process.lock.writer().try_lock().unwrap().into_option().is_none());
        assert_eq!(reading.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        process.end();
    });
}

#[test]
fn a_shutdown_ends_every_wait() {
    explore(500, || {
        let server = ModelServer::start();
        let other = Process::start(&server);
        let held = other.lock.writer().lock().unwrap();
        let process = Process::start(&server);
        let users: Vec<_> = (0..4)
            .map(|at| {
                let lock = process.lock.clone();
                thread::spawn(move || {
                    let side: &dyn Lock = if at % 2 == 0 { lock.reader() } else { lock.writer() };
                    assert_eq!(side.lock().unwrap_err().kind(), ErrorKind::ShutDown);
                })
            })
            .collect();
        process.session.shut_down();
        for user in users {
            user.join().unwrap();
        }
        drop(held);
        process.end();
        other.end();
        assert!(!server.is_wanted(NAME), "a hold or a place that nobody has");
    });
}

fn chance(odds: f64) -> bool {
    thread_rng().gen_bool(odds)
}

fn count(what: &AtomicUsize) {
    what.fetch_add(1, Ordering::SeqCst);
}

fn happened(what: &AtomicUsize) -> bool {
    what.load(Ordering::SeqCst) > 0
}
