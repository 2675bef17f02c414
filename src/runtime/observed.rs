//! A client's reports to its observer and to the log, and its counts.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use log::Level;
use redlatch_client::sync::{Thread, clock};
use redlatch_client::{Limit, Node, was_cut};

use super::Core;
use crate::name::Name;
use crate::observe::{Event, Kind, Observer};
use crate::snapshot::{Counts, ServerState, Snapshot, Waiting};

/// The maximum time of a query for the holder. The query may delay the callback of a loss.
const QUERY_TIMEOUT: Duration = Duration::from_millis(200);

/// The events that a client counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    Acquired,
    GaveUp,
    Released,
    Lost,
    Renewed,
    RenewalFailed,
    Reconnected,
    Forgotten,
    Wanted,
    LeftOut,
}

/// How often each event has happened.
#[derive(Debug, Default)]
pub(super) struct EventCounts {
    counts: [AtomicU64; Count::LeftOut as usize + 1],
    /// The number of events in the queue of the callbacks' thread.
    queued: AtomicUsize,
    /// Whether an event was dropped since the queue was last empty.
    drops_events: AtomicBool,
}

impl EventCounts {
    #[inline]
    fn add(&self, what: Count, times: u64) {
        self.counts[what as usize].fetch_add(times, Ordering::Relaxed);
    }

    fn of(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }
}

/// The least time between two of a client's queries for log lines about slow waits.
const MIN_LINE_INTERVAL: Duration = Duration::from_secs(1);
/// The least time between two log lines about one name. Otherwise a busy pool, in which each wait
/// is slow, would fill the log.
const MIN_NAME_INTERVAL: Duration = Duration::from_secs(60);

/// The earliest times, by [`clock`], at which the client may log another line about a slow wait.
/// These times limit the log lines and queries of many waiters.
#[derive(Debug, Default)]
pub(super) struct SlowLines {
    /// Whether a query is queued or runs on the callbacks' thread. Only one query runs at a time.
    query_runs: bool,
    next: u64,
    /// The names and the deadlock lines that were logged within the last minute, each with the time
    /// from which the next line may be logged.
    names: HashMap<Arc<str>, u64>,
}

impl SlowLines {
    /// Begins a query about a name. If no query may begin now, returns the time after which to try
    /// again.
    fn try_begin(&mut self, now: u64, name: &str) -> Option<Duration> {
        if self.query_runs {
            return Some(MIN_LINE_INTERVAL);
        }
        self.names.retain(|_, next| now < *next);
        let next = self.names.get(name).map_or(self.next, |next| self.next.max(*next));
        self.query_runs = now >= next;
        (!self.query_runs).then(|| Duration::from_nanos(next - now))
    }

    /// Returns `false` if this line about a deadlock was logged within the last minute. Otherwise
    /// notes that the line is logged now, and returns `true`.
    fn record_new(&mut self, now: u64, line: &str) -> bool {
        self.names.retain(|_, next| now < *next);
        let is_new = !self.names.contains_key(line);
        if is_new {
            let next = now.saturating_add(clock::nanos(MIN_NAME_INTERVAL));
            self.names.insert(line.into(), next);
        }
        is_new
    }

    /// Ends a query about a name. `is_logged`: whether the query led to a log line.
    fn end(&mut self, now: u64, name: &Arc<str>, is_logged: bool) {
        let after = |time| now.saturating_add(clock::nanos(time));
        (self.query_runs, self.next) = (false, after(MIN_LINE_INTERVAL));
        if is_logged {
            self.names.insert(Arc::clone(name), after(MIN_NAME_INTERVAL));
        }
    }
}

/// A wait that has lasted for a long time.
#[derive(Debug)]
pub(crate) struct SlowWait {
    pub(crate) name: Name,
    /// The kind of synchronizer, and the number of permits.
    pub(crate) what: (Kind, u32),
    pub(crate) waited: Duration,
    /// Whether a line about the wait was logged, or the wait is over.
    pub(crate) is_logged: Arc<AtomicBool>,
}

/// The maximum number of events that wait behind a slow callback. The second limit is for losses
/// and ends of outages. These events are rare. If a loss were dropped, an observer's count of holds
/// would remain wrong.
const MAX_EVENTS: usize = 10_000;
const MAX_WITH_LOSSES: usize = 100_000;

/// The waits that have lasted for a while. The key is the start of the wait and the thread's id.
/// Each wait has a name, the name's kind, a thread, and the thread's arrival number in the
/// process's queue. A leader's arrival number is zero.
pub(crate) type Waits = BTreeMap<(u64, u64), ListedWait>;
pub(crate) type ListedWait = (Name, Kind, Arc<Thread>, u64);

impl Core {
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        !self.config.observers.is_empty()
    }

    /// Calls each observer on the current thread, which must hold no mutex. If an observer panics,
    /// the other observers are still called.
    #[inline]
    pub(crate) fn tell_observers(&self, tell: impl Fn(&dyn Observer)) {
        for observer in &self.config.observers {
            if catch_unwind(AssertUnwindSafe(|| tell(&**observer))).is_err() {
                self.watchdog.log(Level::Error, || "an observer panicked".to_owned());
            }
        }
    }

    /// Counts the event once for each permit, and calls [`tell_observers`](Self::tell_observers).
    #[inline]
    pub(crate) fn observe(&self, what: Count, permits: u32, tell: impl Fn(&dyn Observer)) {
        self.counts.add(what, permits.into());
        self.tell_observers(tell);
    }

    /// Counts the event, and reports it on the callbacks' thread after all earlier events. Drops
    /// the report if too many events wait in the queue.
    pub(crate) fn observe_soon<T: Fn(&dyn Observer) + Send + 'static>(
        &self,
        what: Count,
        event: impl FnOnce() -> T,
    ) {
        self.counts.add(what, 1);
        if !self.is_observed() {
            return;
        }
        let EventCounts { queued, drops_events, .. } = &self.counts;
        let is_rare = matches!(what, Count::Lost | Count::Reconnected);
        let most = if is_rare { MAX_WITH_LOSSES } else { MAX_EVENTS };
        if queued.fetch_add(1, Ordering::Relaxed) >= most {
            queued.fetch_sub(1, Ordering::Relaxed);
            self.counts.add(Count::LeftOut, 1);
            if !drops_events.swap(true, Ordering::Relaxed) {
                self.watchdog.log(Level::Warn, || {
                    "events for the observers are left out: one, an on_lost callback or the logger is \
                     too slow"
                        .to_owned()
                });
            }
            return;
        }
        // The reference is weak, because the core owns the queue in which the event waits.
        let (core, tell) = (Weak::clone(&self.itself), event());
        self.watchdog.queue_call(move || {
            let Some(core) = core.upgrade() else { return };
            core.tell_observers(tell);
            if core.counts.queued.fetch_sub(1, Ordering::Relaxed) == 1 {
                core.counts.drops_events.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Reports the changes of semaphores that the client has forgotten since its last report.
    pub(super) fn report_forgotten(&self) {
        let forgotten = self.changes.take_forgotten();
        if forgotten == 0 {
            return;
        }
        let address = self.lasting_address();
        self.counts.add(Count::Forgotten, forgotten - 1);
        self.observe_soon(Count::Forgotten, || {
            move |it: &dyn Observer| {
                let permits = u32::try_from(forgotten).unwrap_or(u32::MAX);
                it.forgot(&Event::named(&address, (Kind::Semaphore, permits), Duration::ZERO, ()));
            }
        });
        let first = !self.has_logged_forgotten.swap(true, Ordering::Relaxed);
        if first {
            self.watchdog.log(Level::Warn, || {
                "this client changes semaphores so often that it cannot keep all changes of the \
                 last 10 s: after a failover it does not repeat the earliest ones"
                    .to_owned()
            });
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut waits: Vec<_> = self.waits.lock().clone().into_iter().collect();
        // The waits are sorted in the order of the queue. If all threads are leaders, the waits are
        // sorted by the time of their start.
        waits.sort_by_key(|(began, (.., arrival))| (*arrival, *began));
        let mut before = BTreeMap::<_, usize>::new();
        let waiting = waits.iter().map(|((since, _), (name, kind, thread, _))| {
            let count = before.entry(&***name).or_default();
            let place = std::mem::replace(count, *count + 1);
            let (thread, waited) = (thread.name().map(str::to_owned), clock::since(*since));
            Waiting { name: name.given().to_owned(), kind: *kind, waited, thread, place }
        });
        let waiting = waiting.collect();
        let counts = Counts {
            acquired: self.counts.of(Count::Acquired),
            gave_up: self.counts.of(Count::GaveUp),
            released: self.counts.of(Count::Released),
            lost: self.counts.of(Count::Lost),
            renewed: self.counts.of(Count::Renewed),
            renewal_failed: self.counts.of(Count::RenewalFailed),
            reconnected: self.counts.of(Count::Reconnected),
            forgotten: self.counts.of(Count::Forgotten),
            wanted: self.counts.of(Count::Wanted),
            left_out: self.counts.of(Count::LeftOut),
        };
        let server = |node: &Arc<Node>| ServerState {
            address: node.endpoint.address(),
            connections: node.lanes().len(),
            open: node.lanes().iter().filter(|lane| lane.is_open()).count(),
            is_out: node.endpoint.health().is_out(),
        };
        let held = self.members.all().iter().flat_map(|member| member.held()).collect();
        Snapshot { counts, held, waiting, servers: self.servers.all().iter().map(server).collect() }
    }

    /// Asks the server on the callbacks' thread why a wait lasts, and logs the reason. Only one
    /// query runs at a time, and there is a least time between two lines. If one of these rules
    /// delays the query, returns the time after which to call this function again. Returns `None`
    /// if the caller need not call it again.
    pub(crate) fn log_slow_wait(&self, wait: SlowWait) -> Option<Duration> {
        if !log::log_enabled!(Level::Warn) {
            return None;
        }
        if let Some(later) = self.slow_lines.lock().try_begin(clock::now(), &wait.name) {
            return Some(later);
        }
        // The longer a thread has waited, the longer it pauses before it tries again to start a
        // query.
        let later = MIN_LINE_INTERVAL.max(wait.waited / 4);
        let core = Weak::clone(&self.itself);
        self.watchdog.queue_call(move || {
            let Some(core) = core.upgrade() else { return };
            // Limit the query, because other callbacks wait behind this one.
            let limited = Limit::set(Limit::new(Instant::now().checked_add(QUERY_TIMEOUT), None));
            let lasts = || !wait.is_logged.load(Ordering::Relaxed);
            let line = core.slow_line.get().filter(|_| lasts()).and_then(|line| line(&core, &wait));
            // If the limit ended the query, the line may lack the holder, and is not logged.
            let line = line.filter(|_| !was_cut() && lasts());
            drop(limited);
            core.slow_lines.lock().end(clock::now(), &wait.name, line.is_some());
            if let Some(line) = line {
                wait.is_logged.store(true, Ordering::Relaxed);
                core.watchdog.log(Level::Warn, || line);
            }
        });
        Some(later)
    }

    /// Logs at once which other locks the thread holds, because the thread has waited for a long
    /// time. Only this client knows which thread holds these locks, so perhaps only this line shows
    /// a deadlock.
    pub(crate) fn log_deadlock(&self, name: &Name, thread: &Arc<Thread>, waited: Duration) {
        let held = self.members.held_by(thread);
        if held.is_empty() || !log::log_enabled!(Level::Warn) {
            return;
        }
        let held: Vec<_> = held.iter().map(|held| format!("{held:?}")).collect();
        let line = format!(
            "{name:?} while the thread holds {}: a deadlock, if the other side waits for that",
            held.join(", ")
        );
        if self.slow_lines.lock().record_new(clock::now(), &line) {
            let seconds = waited.as_secs_f64();
            self.watchdog.log(Level::Warn, || format!("waited {seconds:.0} s for {line}"));
        }
    }

    /// Logs that threads wait for permits of a semaphore that does not exist, unless a line about
    /// the name was logged a short time ago.
    pub(crate) fn log_no_permits(&self, name: &Name, needs: &[u32]) {
        let (mut lines, now) = (self.slow_lines.lock(), clock::now());
        if lines.try_begin(now, name).is_some() {
            return;
        }
        lines.end(now, name, true);
        drop(lines);
        let wants = match needs.first() {
            Some(2..) => format!("{} permits", needs[0]),
            _ => "a permit".to_owned(),
        };
        self.watchdog.log(Level::Warn, || {
            format!(
                "a call wants {wants} of {name:?}, which has no permits: has a program called \
                 try_set_permits?"
            )
        });
    }
}

#[cfg(all(test, testkit))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc::{self, Receiver, Sender};

    use redlatch_client::sync::Mutex;
    use redlatch_testkit::Server;

    use super::*;
    use crate::config::ClientBuilder;
    use crate::error::LostReason;
    use crate::observe::Event;
    use crate::runtime::Session;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// An observer that blocks in its first callback until the test lets it continue.
    struct Hangs {
        may: Mutex<Option<Receiver<()>>>,
        heard: Sender<&'static str>,
    }

    impl Observer for Hangs {
        fn renewed(&self, _: &Event<'_>) {
            if let Some(may) = self.may.lock().take() {
                may.recv().unwrap();
            }
            self.heard.send("renewed").unwrap();
        }

        fn lost(&self, _: &Event<'_, LostReason>) {
            self.heard.send("lost").unwrap();
        }
    }

    #[test]
    fn a_name_has_a_line_a_minute_and_a_client_asks_for_one_a_second() {
        let mut lines = SlowLines::default();
        let (pool, other): (Arc<str>, Arc<str>) = ("pool".into(), "other".into());
        let at = |seconds: u64| seconds * 1_000_000_000;
        for (now, name, later, is_logged) in [
            (10, &pool, 0, true),
            (10, &other, 1, false),
            (11, &other, 0, false),
            (12, &other, 0, true),
            (13, &pool, 57, false),
            (13, &other, 59, false),
            (70, &pool, 0, true),
            (70, &other, 2, false),
        ] {
            let begun = lines.try_begin(at(now), name).map_or(0, |later| later.as_secs());
            assert_eq!(begun, later, "{name} after {now} s");
            if begun == 0 {
                assert_eq!(lines.try_begin(at(now), &other), Some(MIN_LINE_INTERVAL));
                lines.end(at(now), name, is_logged);
            }
        }
        assert_eq!(lines.try_begin(at(1000), &other), None);
        assert!(lines.names.is_empty(), "no name is kept for longer than it matters");
    }

    #[test]
    fn renewals_behind_a_hanging_observer_are_left_out_and_counted_and_losses_are_not() {
        let server = Server::start().unwrap();
        let ((heard, hears), (go_on, may)) = (mpsc::channel(), mpsc::channel());
        let hangs = Hangs { may: Mutex::new(Some(may)), heard };
        let config = ClientBuilder::new(&server.url()).observer(hangs).config;
        let session = Session::open(&server.url(), config, |_, _, _| {}).unwrap();
        let core = session.core();
        let event = |how| Event::named("orders", (Kind::ReentrantLock, 1), Duration::ZERO, how);
        let renewed = || {
            core.observe_soon(Count::Renewed, || {
                |it: &dyn Observer| {
                    it.renewed(&Event::named(
                        "orders",
                        (Kind::ReentrantLock, 1),
                        Duration::ZERO,
                        (),
                    ));
                }
            });
        };
        (0..MAX_EVENTS + 7).for_each(|_| renewed());
        core.observe_soon(Count::Lost, || {
            move |it: &dyn Observer| {
                it.lost(&event(LostReason::Revoked));
            }
        });
        let counts = core.snapshot().counts;
        let most = MAX_EVENTS as u64;
        assert_eq!((counts.renewed, counts.left_out, counts.lost), (most + 7, 7, 1));
        go_on.send(()).unwrap();
        let told: Vec<_> = (0..=MAX_EVENTS).map(|_| hears.recv_timeout(TIMEOUT).unwrap()).collect();
        assert_eq!(told.iter().filter(|it| **it == "renewed").count(), MAX_EVENTS);
        assert_eq!(told.last(), Some(&"lost"));
        // The queue has room again.
        renewed();
        assert_eq!(hears.recv_timeout(TIMEOUT), Ok("renewed"));
        assert_eq!(core.snapshot().counts.left_out, 7);
    }
}
