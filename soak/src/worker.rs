//! A worker process: its threads do random operations and write down what they were told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::{
    CancelToken, Client, Error, ErrorKind, ExpirablePermit, FencedLock, Lock, LockGuard,
    LostReason, MultiLock, MultiLockGuard, OwnedLockGuard, Permit, Wait,
};
use redlatch_testkit::Job;

use crate::clock::{ms, nanos, now};
use crate::history::{Event, Grant, Kind, Log, Outcome, Step};
use crate::store::Store;

/// Names that may lose their count or their order (permits, latches) are used for so long.
const SPAN: u64 = ms(5000);
/// The renewed lease of most holds: stops of 5 s outlast it.
const WATCHDOG: Duration = Duration::from_millis(3000);
const RESPONSE: Duration = Duration::from_millis(1500);
/// What a call without a limit of its own may take in an outage: connect, ask, and ask again.
const LONGEST_REQUEST: Duration = Duration::from_secs(8);
/// Writers take all of it.
const READERS: u64 = 1000;
const PERMITS: u64 = 3;
const COUNT: u64 = 4;

/// A worker's command line: what a parent gives, and the process reads.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) url: String,
    pub(crate) store: String,
    pub(crate) log: String,
    /// Before all names.
    pub(crate) prefix: String,
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    /// Of these kinds only; all, if it is empty.
    pub(crate) only: String,
}

impl Task {
    pub(crate) fn args(&self) -> Vec<String> {
        let (seed, threads) = (self.seed.to_string(), self.threads.to_string());
        let all = [&self.url, &self.store, &self.log, &self.prefix, &seed, &threads, &self.only];
        all.into_iter().cloned().collect()
    }

    fn of(job: &Job) -> Self {
        let number = |at| job.arg(at).parse().unwrap_or_default();
        let text = |at| job.arg(at).to_owned();
        Self {
            url: text(0),
            store: text(1),
            log: text(2),
            prefix: text(3),
            seed: number(4),
            threads: usize::try_from(number(5)).unwrap_or(1),
            only: job.args().get(6).cloned().unwrap_or_default(),
        }
    }
}

/// The verbs of a guard of any kind.
trait Held {
    fn remaining(&self) -> Duration;
    fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static);
    fn release(self) -> Result<(), Error>;
}

macro_rules! held {
    ($($guard:ty, $release:ident);+ $(;)?) => {$(
        impl Held for $guard {
            fn remaining(&self) -> Duration {
                <$guard>::remaining(self)
            }
            fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
                <$guard>::on_lost(self, callback);
            }
            fn release(self) -> Result<(), Error> {
                <$guard>::$release(self)
            }
        }
    )+};
}

held! {
    LockGuard, unlock;
    OwnedLockGuard, unlock;
    MultiLockGuard, unlock;
    ExpirablePermit, release;
}

/// A permit has no lease.
impl Held for Permit {
    fn remaining(&self) -> Duration {
        Duration::MAX
    }
    fn on_lost(&self, _: impl FnOnce(LostReason) + Send + 'static) {}
    fn release(self) -> Result<(), Error> {
        Self::release(self)
    }
}

#[derive(Clone, Copy, Debug)]
enum How {
    Lock,
    Try,
    For(Duration),
    Cancelled(Duration),
}

impl How {
    /// After how long the call is over; zero: when it has got what it waits for.
    fn bound(self) -> u64 {
        match self {
            Self::Lock => 0,
            Self::Try => nanos(LONGEST_REQUEST),
            Self::For(wait) | Self::Cancelled(wait) => nanos(wait),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Terms {
    Usual,
    Fixed(Duration),
    Watched(Duration),
}

impl Terms {
    fn of<L: Lock>(self, lock: L) -> L {
        match self {
            Self::Usual => lock,
            Self::Fixed(lease) => lock.with_lease(lease),
            Self::Watched(lease) => lock.with_watchdog(lease),
        }
    }

    fn lease(self) -> u64 {
        match self {
            Self::Usual => nanos(WATCHDOG),
            Self::Fixed(lease) | Self::Watched(lease) => nanos(lease),
        }
    }
}

/// The name, the kind and the terms of a grant.
struct About {
    kind: Kind,
    names: Vec<String>,
    weight: u64,
    capacity: u64,
    lease: u64,
    is_watched: bool,
}

impl About {
    fn lock(kind: Kind, name: &str, terms: Terms) -> Self {
        let names = vec![name.to_owned()];
        Self { kind, names, weight: 1, capacity: 1, lease: terms.lease(), is_watched: false }
    }
}

/// A guard with the numbers of its grants: several for a `MultiLock`.
struct Kept<G> {
    guard: G,
    ids: Vec<u64>,
}

/// The state that the threads of the process share.
#[derive(Debug)]
struct Shared {
    log: Log,
    ids: AtomicU64,
    is_ending: AtomicBool,
    /// The last latch, and whether its count was set for certain.
    latch: Mutex<(u64, bool)>,
}

impl Shared {
    fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn odd(&self, text: String) {
        self.log.write(&Event::Odd { at: now(), text });
    }
}

/// Runs the worker's threads until the parent's next line, and ends the process.
pub(crate) fn run(job: &Job) -> ! {
    let task = Task::of(job);
    let Ok(log) = Log::create(&task.log) else { panic!("{} cannot be written", task.log) };
    let latch = Mutex::new((0, false));
    let shared =
        Arc::new(Shared { log, ids: AtomicU64::new(1), is_ending: AtomicBool::new(false), latch });
    let client = connect(&task.url);
    let threads: Vec<_> = (0..task.threads)
        .map(|number| {
            let (client, shared, task) = (client.clone(), Arc::clone(&shared), task.clone());
            thread::spawn(move || Worker::new(client, shared, task, number).run())
        })
        .collect();
    job.say("ready");
    let _end = job.wait_line();
    shared.is_ending.store(true, Ordering::Relaxed);
    for thread in threads {
        if thread.join().is_err() {
            shared.odd("a thread panicked".to_owned());
        }
    }
    client.shutdown();
    job.say("done");
    let _end = job.wait_line();
    job.done()
}

/// The server may be in trouble just now.
fn connect(url: &str) -> Client {
    loop {
        let connected = Client::builder(url)
            .watchdog_timeout(WATCHDOG)
            .response_timeout(RESPONSE)
            .connect_timeout(Duration::from_millis(1500))
            .failover_timeout(Duration::from_secs(20))
            .connect();
        match connected {
            Ok(client) => return client,
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

struct Worker {
    client: Client,
    shared: Arc<Shared>,
    task: Task,
    store: Store,
    rng: StdRng,
    /// The last span in which it took part in a latch.
    latch: u64,
    /// When in a span it does.
    turn: u64,
}

impl Worker {
    fn new(client: Client, shared: Arc<Shared>, task: Task, number: usize) -> Self {
        let store = Store::connect(&task.store).unwrap_or_else(|error| panic!("no store: {error}"));
        let seed = task.seed.wrapping_mul(1000).wrapping_add(number as u64);
        Self {
            client,
            shared,
            task,
            store,
            rng: StdRng::seed_from_u64(seed),
            latch: 0,
            turn: SPAN / 5,
        }
    }

    fn run(mut self) {
        while !self.shared.is_ending.load(Ordering::Relaxed) {
            let kind = match self.rng.random_range(0..100) {
                0..28 => "reentrant",
                28..41 => "fair",
                41 if self.rng.random_bool(0.5) => "long",
                41 => "lapse",
                42..58 => "readwrite",
                58 if self.rng.random_ratio(1, 3) => "late",
                58..70 => "fenced",
                70..76 => "multi",
                76..84 => "semaphore",
                84..92 => "expirable",
                92..96 => "latch",
                _ => "condition",
            };
            if !self.task.only.is_empty() && !self.task.only.split(',').any(|it| it == kind) {
                continue;
            }
            match kind {
                "reentrant" => self.reentrant(),
                "fair" => self.fair(),
                "long" => self.long(),
                "lapse" => self.lapse(),
                "readwrite" => self.read_write(),
                "fenced" => self.fenced(),
                "late" => self.late(),
                "multi" => self.multi(),
                "semaphore" => self.semaphore(),
                "expirable" => self.expirable(),
                "latch" => self.latch(),
                _ => self.condition(),
            }
        }
    }

    fn reentrant(&mut self) {
        let (name, terms) = (self.one_of("reentrant", 2), self.terms());
        let lock = terms.of(self.client.reentrant_lock(&name));
        if self.rng.random_ratio(1, 3) {
            return self.burst(&lock, &name, terms);
        }
        for _ in 0..self.rng.random_range(1..30) {
            self.lock(&lock, About::lock(Kind::Reentrant, &name, terms));
        }
    }

    /// Many short acquisitions, which the threads of a process pass on among themselves.
    fn burst(&mut self, lock: &dyn Lock, name: &str, terms: Terms) {
        for _ in 0..self.rng.random_range(200..1200) {
            let about = About::lock(Kind::Reentrant, name, terms);
            let taken = self.acquire(about, How::Lock, Duration::ZERO, |_| lock.lock().map(Some));
            let Some(kept) = taken else { return };
            hold(&self.shared, &kept, Duration::from_micros(3));
            leave(&self.shared, kept, self.rng.random_bool(0.5));
        }
    }

    /// A hold that lasts for longer than its lease, by its renewals.
    fn long(&mut self) {
        let name = self.one_of("long", 2);
        let terms = match self.terms() {
            Terms::Fixed(_) => Terms::Usual,
            renewed => renewed,
        };
        let lock = terms.of(self.client.reentrant_lock(&name));
        let stay = Duration::from_millis(self.rng.random_range(1000..6000));
        let about = About::lock(Kind::Reentrant, &name, terms);
        let how = How::For(Duration::from_millis(200));
        let taken =
            self.acquire(about, how, stay, |_| lock.try_lock_for(Duration::from_millis(200)));
        let Some(kept) = taken else { return };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, false);
    }

    /// A hold beyond the end of its lease, while others wait for that.
    fn lapse(&mut self) {
        let name = self.one_of("lapse", 1);
        let terms = Terms::Fixed(Duration::from_millis(400));
        let lock = terms.of(self.client.reentrant_lock(&name));
        let about = About::lock(Kind::Reentrant, &name, terms);
        let wait = Duration::from_millis(1000);
        let stay = Duration::from_millis(self.rng.random_range(300..800));
        let taken = self.acquire(about, How::For(wait), stay, |_| lock.try_lock_for(wait));
        let Some(kept) = taken else { return };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, false);
    }

    fn fair(&mut self) {
        let (name, terms) = (self.one_of("fair", 1), self.terms());
        let lock = terms.of(self.client.fair_lock(&name));
        for _ in 0..self.rng.random_range(1..10) {
            self.lock(&lock, About::lock(Kind::Fair, &name, terms));
        }
    }

    fn read_write(&mut self) {
        let (name, terms) = (self.one_of("readwrite", 2), self.terms());
        let both = self.client.read_write_lock(&name);
        for _ in 0..self.rng.random_range(1..20) {
            let about = About::lock(Kind::ReadWrite, &name, terms);
            if self.rng.random_ratio(3, 4) {
                let lock = terms.of(both.read().clone());
                self.lock(&lock, About { capacity: READERS, ..about });
            } else {
                let lock = terms.of(both.write().clone());
                self.lock(&lock, About { weight: READERS, capacity: READERS, ..about });
            }
        }
    }

    /// One acquisition of a lock of any kind, in any way.
    fn lock(&mut self, lock: &dyn Lock, about: About) {
        let (how, stay) = (self.how(), self.stay());
        if self.rng.random_ratio(1, 10) {
            let Some(kept) = self.acquire(about, how, stay, |how| match how {
                How::Lock => lock.lock_owned().map(Some),
                How::Try => lock.try_lock_owned(),
                How::For(wait) => lock.lock_owned_within(Wait::at_most(wait)),
                How::Cancelled(wait) => cancelled(wait, |token| {
                    lock.lock_owned_within(Wait::FOREVER.cancelled_by(token))
                }),
            }) else {
                return;
            };
            // To another thread.
            let posts = self.rng.random_ratio(1, 3);
            let shared = &self.shared;
            thread::scope(|scope| {
                let _there = scope.spawn(move || {
                    hold(shared, &kept, stay);
                    leave(shared, kept, posts);
                });
            });
            return;
        }
        let Some(kept) = self.acquire(about, how, stay, |how| match how {
            How::Lock => lock.lock().map(Some),
            How::Try => lock.try_lock(),
            How::For(wait) => lock.try_lock_for(wait),
            How::Cancelled(wait) => cancelled(wait, |token| lock.lock_cancellable(token).map(Some)),
        }) else {
            return;
        };
        hold(&self.shared, &kept, stay);
        if self.rng.random_ratio(1, 10) {
            self.enter_again(lock, &kept);
        }
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }

    /// A thread that holds a lock takes it again without waiting.
    fn enter_again(&self, lock: &dyn Lock, kept: &Kept<LockGuard>) {
        let begun = now();
        match lock.try_lock() {
            Ok(Some(inner)) => {
                let levels = lock.hold_count();
                if levels != 2 && kept.guard.is_held() {
                    self.shared.odd(format!("two levels of {} count as {levels}", lock.name()));
                }
                drop(inner);
            }
            // It was lost, perhaps in this moment.
            Ok(None) if kept.guard.is_held() => {
                self.shared.odd(format!("{} was not entered again since {begun}", lock.name()));
            }
            Ok(None) | Err(_) => {}
        }
    }

    fn fenced(&mut self) {
        let (name, terms) = (self.of_now("fenced", 2), self.terms());
        let lock = terms.of(self.client.fenced_lock(&name));
        for _ in 0..self.rng.random_range(1..10) {
            let (how, stay) = (self.how(), self.stay());
            self.add(&lock, &name, terms, how, stay);
        }
    }

    /// Slow writes: a stop meets a holder between its read and its write, and others wait for its lock.
    /// The name outlasts the stop.
    fn late(&mut self) {
        let name = format!("{}-{}", self.one_of("fenced-late", 1), now() / (2 * SPAN));
        let lock = self.client.fenced_lock(&name);
        for _ in 0..3 {
            let stay = Duration::from_millis(self.rng.random_range(50..200));
            self.add(&lock, &name, Terms::Usual, How::Lock, stay);
        }
    }

    /// Adds one to the values in the store under their lock.
    fn add(&mut self, lock: &FencedLock, name: &str, terms: Terms, how: How, stay: Duration) {
        let about = About::lock(Kind::Fenced, name, terms);
        let Some((kept, token)) = self.acquire_with(about, how, stay, |how| {
            let guard = match how {
                How::Lock => lock.lock().map(Some),
                How::Try => lock.try_lock(),
                How::For(wait) => lock.try_lock_for(wait),
                How::Cancelled(wait) => {
                    cancelled(wait, |token| lock.lock_cancellable(token).map(Some))
                }
            };
            guard.map(|guard| guard.map(|guard| (guard.token().get(), <LockGuard>::from(guard))))
        }) else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        if let Err(error) = self.store.add(name, token, || hold(&shared, &kept, stay)) {
            self.shared.odd(format!("the store: {error}"));
        }
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }

    /// Two of the re-entrant locks, in any order.
    fn multi(&mut self) {
        let mut names = [0, 1].map(|it| format!("{}reentrant-{it}", self.task.prefix));
        if self.rng.random_bool(0.5) {
            names.reverse();
        }
        let locks = names.each_ref().map(|name| self.client.reentrant_lock(name));
        let lock = match MultiLock::new(&[&locks[0], &locks[1]]) {
            Ok(lock) => lock,
            Err(error) => return self.shared.odd(format!("no lock of several: {error}")),
        };
        let (how, stay) = (self.how(), self.stay());
        let about =
            About { names: names.to_vec(), ..About::lock(Kind::Reentrant, "", Terms::Usual) };
        let kept = self.acquire(about, how, stay, |how| match how {
            How::Lock => lock.lock().map(Some),
            How::Try => lock.try_lock(),
            How::For(wait) => lock.try_lock_for(wait),
            How::Cancelled(wait) => cancelled(wait, |token| lock.lock_cancellable(token).map(Some)),
        });
        let Some(kept) = kept else { return };
        hold(&self.shared, &kept, stay);
        leave(&self.shared, kept, self.rng.random_ratio(1, 3));
    }

    fn semaphore(&mut self) {
        let name = self.of_now("semaphore", 1);
        let semaphore = self.client.semaphore(&name);
        // The first thread makes it.
        let _made = semaphore.try_set_permits(u32::try_from(PERMITS).unwrap_or(1));
        for _ in 0..self.rng.random_range(1..10) {
            let (how, stay) = (self.how(), self.stay());
            let permits = if self.rng.random_ratio(1, 4) { 2 } else { 1 };
            let about = About {
                weight: permits.into(),
                capacity: PERMITS,
                lease: 0,
                ..About::lock(Kind::Semaphore, &name, Terms::Usual)
            };
            // The permits of a dead process do not come back.
            let how =
                if matches!(how, How::Lock) { How::For(Duration::from_millis(500)) } else { how };
            let kept = self.acquire(about, how, stay, |how| match how {
                How::Lock => semaphore.acquire_many(permits).map(Some),
                How::Try => semaphore.try_acquire_many(permits),
                How::For(wait) => semaphore.try_acquire_many_for(permits, wait),
                How::Cancelled(wait) => cancelled(wait, |token| {
                    semaphore.acquire_many_cancellable(permits, token).map(Some)
                }),
            });
            let Some(kept) = kept else { continue };
            hold(&self.shared, &kept, stay);
            leave(&self.shared, kept, self.rng.random_ratio(1, 3));
        }
    }

    fn expirable(&mut self) {
        let (name, terms) = (self.of_now("expirable", 1), self.terms());
        let plain = self.client.expirable_semaphore(&name);
        let _made = plain.try_set_permits(u32::try_from(PERMITS).unwrap_or(1));
        let semaphore = match terms {
            Terms::Usual => plain,
            Terms::Fixed(lease) => plain.with_lease(lease),
            Terms::Watched(lease) => plain.with_watchdog(lease),
        };
        for _ in 0..self.rng.random_range(1..10) {
            let (how, stay) = (self.how(), self.stay());
            let about = About { capacity: PERMITS, ..About::lock(Kind::Expirable, &name, terms) };
            // After a loss of the data nobody sets the permits before its next turn.
            let how =
                if matches!(how, How::Lock) { How::For(Duration::from_millis(500)) } else { how };
            let kept = self.acquire(about, how, stay, |how| match how {
                How::Lock => semaphore.acquire().map(Some),
                How::Try => semaphore.try_acquire(),
                How::For(wait) => semaphore.try_acquire_for(wait),
                How::Cancelled(wait) => {
                    cancelled(wait, |token| semaphore.acquire_cancellable(token).map(Some))
                }
            });
            let Some(kept) = kept else { continue };
            hold(&self.shared, &kept, stay);
            leave(&self.shared, kept, self.rng.random_ratio(1, 3));
        }
    }

    /// One latch for each span: in its first part its count is set, then threads count down and wait.
    fn latch(&mut self) {
        let (span, part) = (now() / SPAN, now() % SPAN);
        let name = format!("{}latch-{span}", self.task.prefix);
        let latch = self.client.count_down_latch(&name);
        if part < SPAN / 8 {
            if self.known_latch() != (span, true) {
                let call = now();
                let set = latch.try_set_count(COUNT);
                let (is_set, outcome) = (set.is_ok(), outcome(&set));
                self.step(Step::Set, &name, call, nanos(LONGEST_REQUEST), COUNT, outcome);
                *self.shared.latch.lock().unwrap_or_else(PoisonError::into_inner) = (span, is_set);
            }
        } else if self.latch != span
            && part > self.turn
            && part < SPAN / 2
            && self.known_latch() == (span, true)
        {
            self.latch = span;
            // They come one after the other.
            self.turn = self.rng.random_range(SPAN / 5..SPAN * 2 / 5);
            let call = now();
            if self.rng.random_bool(0.5) {
                let outcome = outcome(&latch.count_down().map(|()| true));
                self.step(Step::CountDown, &name, call, nanos(LONGEST_REQUEST), COUNT, outcome);
            } else {
                let wait = Duration::from_millis(3500);
                let outcome = outcome(&latch.wait_for(wait));
                self.step(Step::Wait, &name, call, nanos(wait), COUNT, outcome);
            }
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn known_latch(&self) -> (u64, bool) {
        *self.shared.latch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn condition(&mut self) {
        let name = self.of_now("condition", 1);
        let lock = self.client.reentrant_lock(&name);
        let condition = lock.new_condition("changed");
        let about = || About::lock(Kind::Reentrant, &name, Terms::Usual);
        let Some(kept) =
            self.acquire(about(), How::Lock, Duration::ZERO, |_| lock.lock().map(Some))
        else {
            return;
        };
        if self.rng.random_ratio(1, 3) {
            let wait = Duration::from_millis(self.rng.random_range(100..1500));
            leaving(&self.shared, &kept);
            let call = now();
            let woken = condition.wait_for(&kept.guard, wait);
            // The guard is in a new hold; with an error, in none.
            left(&self.shared, &kept.ids, Outcome::Posted);
            let outcome = outcome(&woken);
            self.step(Step::Sleep, &name, call, 0, u64::from(outcome == Outcome::Done), outcome);
            if woken.is_err() {
                return;
            }
            let at = now();
            let ids = self.granted(&about(), call, at, kept.guard.remaining(), 0);
            leave(&self.shared, Kept { guard: kept.guard, ids }, false);
        } else {
            let call = now();
            let notified = if self.rng.random_ratio(1, 4) {
                condition.notify_all()
            } else {
                condition.notify_one().map(u64::from)
            };
            let number = *notified.as_ref().unwrap_or(&0);
            let outcome = outcome(&notified.map(|_| true));
            self.step(Step::Notify, &name, call, nanos(LONGEST_REQUEST), number, outcome);
            leave(&self.shared, kept, false);
        }
    }

    fn step(&self, step: Step, name: &str, call: u64, bound: u64, number: u64, outcome: Outcome) {
        let name = name.to_owned();
        self.shared.log.write(&Event::Stepped {
            step,
            name,
            call,
            at: now(),
            bound,
            number,
            outcome,
        });
    }

    fn acquire<G: Held>(
        &mut self,
        about: About,
        how: How,
        stay: Duration,
        take: impl FnOnce(How) -> Result<Option<G>, Error>,
    ) -> Option<Kept<G>> {
        let take = |how| take(how).map(|guard| guard.map(|guard| (0, guard)));
        self.acquire_with(about, how, stay, take).map(|(kept, _)| kept)
    }

    /// Calls, and writes down what came of it. Also returns the token.
    fn acquire_with<G: Held>(
        &mut self,
        mut about: About,
        how: How,
        stay: Duration,
        take: impl FnOnce(How) -> Result<Option<(u64, G)>, Error>,
    ) -> Option<(Kept<G>, u64)> {
        // Callbacks for all that may be lost, and for some that hardly can be.
        about.is_watched = about.kind != Kind::Semaphore
            && (stay > Duration::from_millis(1) || self.rng.random_ratio(1, 10));
        let call = now();
        let taken = take(how);
        let at = now();
        let outcome = outcome(&taken.as_ref().map(Option::is_some));
        if let Ok(Some((token, guard))) = taken {
            let ids = self.granted(&about, call, at, guard.remaining(), token);
            if about.is_watched {
                let (shared, ids) = (Arc::clone(&self.shared), ids.clone());
                guard.on_lost(move |_| {
                    let at = now();
                    ids.into_iter().for_each(|id| shared.log.write(&Event::Lost { id, at }));
                });
            }
            return Some((Kept { guard, ids }, token));
        }
        let name = about.names.swap_remove(0);
        let bound = how.bound();
        self.shared.log.write(&Event::Missed { kind: about.kind, name, call, at, bound, outcome });
        if matches!(outcome, Outcome::Trouble) {
            // As a caller would: it does not ask a server in trouble again at once.
            thread::sleep(Duration::from_millis(20));
        }
        None
    }

    fn granted(
        &self,
        about: &About,
        call: u64,
        at: u64,
        remaining: Duration,
        token: u64,
    ) -> Vec<u64> {
        let until = at.saturating_add(nanos(remaining));
        let grant = |name: &String| {
            let grant = Grant {
                id: self.shared.id(),
                kind: about.kind,
                name: name.clone(),
                weight: about.weight,
                capacity: about.capacity,
                call,
                at,
                until,
                lease: about.lease,
                token,
                is_watched: about.is_watched,
            };
            let id = grant.id;
            self.shared.log.write(&Event::Granted(grant));
            id
        };
        about.names.iter().map(grant).collect()
    }

    fn one_of(&mut self, kind: &str, names: u32) -> String {
        format!("{}{kind}-{}", self.task.prefix, self.rng.random_range(0..names))
    }

    /// A name that is used for a span only.
    fn of_now(&mut self, kind: &str, names: u32) -> String {
        format!("{}-{}", self.one_of(kind, names), now() / SPAN)
    }

    fn how(&mut self) -> How {
        match self.rng.random_range(0..20) {
            0..10 => How::Lock,
            10..14 => How::Try,
            14..18 => How::For(Duration::from_millis(self.rng.random_range(0..400))),
            _ => How::Cancelled(Duration::from_millis(self.rng.random_range(0..40))),
        }
    }

    fn terms(&mut self) -> Terms {
        match self.rng.random_range(0..12) {
            0 => Terms::Fixed(Duration::from_millis(self.rng.random_range(300..1500))),
            1 => Terms::Watched(Duration::from_millis(self.rng.random_range(600..2000))),
            _ => Terms::Usual,
        }
    }

    fn stay(&mut self) -> Duration {
        let micros = match self.rng.random_range(0..1000) {
            0..800 => self.rng.random_range(0..10),
            800..950 => self.rng.random_range(100..1500),
            950..998 => self.rng.random_range(2_000..20_000),
            _ => self.rng.random_range(100_000..700_000),
        };
        Duration::from_micros(micros)
    }
}

fn outcome<E: std::borrow::Borrow<Error>>(result: &Result<bool, E>) -> Outcome {
    match result.as_ref().map_err(|error| error.borrow().kind()) {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::Not,
        Err(ErrorKind::Cancelled) => Outcome::Cancelled,
        Err(ErrorKind::LeaseLost) => Outcome::Lost,
        Err(ErrorKind::Redis) => Outcome::Trouble,
        Err(_) => Outcome::Wrong,
    }
}

/// Calls with a token that another thread cancels.
fn cancelled<T>(after: Duration, call: impl FnOnce(&CancelToken) -> T) -> T {
    let token = CancelToken::new();
    thread::scope(|scope| {
        let _canceller = scope.spawn(|| {
            thread::sleep(after);
            token.cancel();
        });
        call(&token)
    })
}

/// Stays inside, and writes down what the guard says meanwhile.
fn hold<G: Held>(shared: &Shared, kept: &Kept<G>, stay: Duration) {
    let end = now() + nanos(stay);
    loop {
        let left = end.saturating_sub(now());
        if left == 0 {
            return;
        }
        // A sleep takes longer than this.
        if left > 60_000 {
            thread::sleep(Duration::from_nanos(left.min(ms(50))));
        }
        if left > ms(50) {
            let (at, remaining) = (now(), nanos(kept.guard.remaining()));
            if remaining > 0 {
                for &id in &kept.ids {
                    shared.log.write(&Event::Seen { id, at, until: at.saturating_add(remaining) });
                }
            }
        }
    }
}

/// Writes down that the release begins: before it does.
fn leaving<G: Held>(shared: &Shared, kept: &Kept<G>) {
    let (at, remaining) = (now(), nanos(kept.guard.remaining()));
    let until = if remaining > 0 { at.saturating_add(remaining) } else { 0 };
    for &id in &kept.ids {
        shared.log.write(&Event::Leaving { id, at, until });
    }
}

fn left(shared: &Shared, ids: &[u64], outcome: Outcome) {
    let at = now();
    ids.iter().for_each(|&id| shared.log.write(&Event::Left { id, at, outcome }));
}

/// Releases: and waits for the server's word, unless it `posts`.
fn leave<G: Held>(shared: &Shared, kept: Kept<G>, posts: bool) {
    leaving(shared, &kept);
    let Kept { guard, ids } = kept;
    let outcome = if posts {
        drop(guard);
        Outcome::Posted
    } else {
        outcome(&guard.release().map(|()| true))
    };
    left(shared, &ids, outcome);
}
