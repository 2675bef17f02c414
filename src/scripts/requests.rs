//! The numbered requests of a client to each name, and the names with changes that the client may
//! have to repeat at another master.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use redis::Value;
use redlatch_client::sync::atomic::{AtomicI64, Ordering};
use redlatch_client::sync::{Mutex, Registry, clock};
use redlatch_client::{CachedScript, Command, Route};

use super::changes::{Change, KEEP_FOR, Log, Mark};
use super::{ClientId, Trouble};
use crate::scripts::SemaphoreKeys;

pub(super) static MEND: LazyLock<CachedScript> = script!(MARKED, "semaphore/mend.lua");

/// The time for which the server remembers the last request of a sequence.
pub(super) const RECORD_TTL: Duration = Duration::from_secs(300);
/// A request may be applied within this time after it was opened. The server remembers a request
/// for longer, and the difference is more than the drift of two clocks. So a server that has
/// forgotten the first copy refuses later copies.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(240);
/// The age at which a change is always dropped: no client waits this long for the end of an outage.
const MAX_AGE: u64 = 120_000_000_000;
/// The usual time for which a name is in use if it is used only once.
const TYPICAL_USE: u64 = 500_000_000;
/// The largest number of changes that are kept for a client. In tests the number is lower, because
/// a test must reach it before a change is too old, even on a busy machine.
const MAX_CHANGES: usize = if cfg!(test) { 20_000 } else { 200_000 };

/// The number of milliseconds by which the server's clock is ahead of this process's clock,
/// according to the server's replies.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(AtomicI64);

impl ServerClock {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn now(&self) -> i64 {
        own_millis().saturating_add(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, now: i64) {
        self.0.store(now.saturating_sub(own_millis()), Ordering::Relaxed);
    }
}

fn own_millis() -> i64 {
    i64::try_from(clock::now() / 1_000_000).unwrap_or(i64::MAX)
}

#[derive(Debug)]
pub(crate) struct Requests {
    /// The prefix of the keys of the records of requests.
    pub(super) key: Arc<str>,
    pub(super) server: Arc<ServerClock>,
    pub(super) sequences: Mutex<Sequences>,
    valid_for: Duration,
    pub(super) record_ttl: Duration,
    changes: Weak<ChangedNames>,
    /// The route to the name's server, or `None` if the client does not repeat the changes.
    route: Option<Route>,
}

/// The sequences of requests. A sequence has one open request at a time, so the server has to
/// remember only one request for each sequence.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    open: Vec<Option<OpenRequest>>,
    /// The sequences without an open request. The lowest sequence is used first, so that the
    /// server's records of the other sequences can expire.
    pub(super) free: BinaryHeap<Reverse<usize>>,
    log: Log,
}

#[derive(Clone, Copy, Debug)]
struct OpenRequest {
    number: u64,
    /// The latest server time at which the request may be applied. Each copy has the same time: if
    /// a copy had a later time, the server could apply it after it has forgotten the first copy. A
    /// check of the time in this process would be too weak, because the system could suspend the
    /// process between the check and the write.
    latest: u64,
    /// The run of the server to which the client was last connected before the request.
    run: u64,
}

/// An open request. Its outcome is unknown, and a copy of it may still be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(super) number: u64,
    pub(super) sequence: usize,
}

impl Requests {
    pub(crate) fn new(key: impl Into<Arc<str>>, server: &Arc<ServerClock>) -> Self {
        Self {
            key: key.into(),
            server: Arc::clone(server),
            sequences: Mutex::default(),
            valid_for: VALID_FOR,
            record_ttl: RECORD_TTL,
            changes: Weak::new(),
            route: None,
        }
    }

    /// Makes the client repeat the changes of these requests at another server.
    pub(crate) fn with_repeated_changes(
        mut self,
        changes: &Arc<ChangedNames>,
        route: Route,
    ) -> Self {
        self.changes = Arc::downgrade(changes);
        self.route = Some(route);
        self
    }

    /// Sets for how long a request is valid, and for how long the server remembers it.
    #[cfg(all(test, testkit))]
    pub(crate) fn with_validity(mut self, valid_for: Duration, record_ttl: Duration) -> Self {
        (self.valid_for, self.record_ttl) = (valid_for, record_ttl);
        self
    }

    /// Opens a request. `next` returns a number that the client never uses twice. This function
    /// calls `next` under the mutex, so that the numbers of a sequence rise.
    pub(crate) fn open(&self, next: impl FnOnce() -> u64) -> RequestId {
        self.open_after(0, next)
    }

    /// Opens a request. `run` is the run of the server to which the client was last connected.
    pub(crate) fn open_after(&self, run: u64, next: impl FnOnce() -> u64) -> RequestId {
        let latest = self.latest();
        let mut sequences = self.sequences.lock();
        let open = OpenRequest { number: next(), latest, run };
        let sequence =
            sequences.free.pop().map_or(sequences.open.len(), |Reverse(sequence)| sequence);
        if sequence == sequences.open.len() {
            // Most names need only one sequence.
            if sequence == 0 {
                sequences.open.reserve_exact(1);
            }
            sequences.open.push(Some(open));
        } else {
            sequences.open[sequence] = Some(open);
        }
        RequestId { number: open.number, sequence }
    }

    /// Opens a request, sends it with `send`, and closes it. The client sends no copy after this.
    pub(crate) fn with_one<T>(
        &self,
        client: &ClientId,
        send: impl FnOnce(RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let request_id = self.open(|| client.next_number());
        let outcome = send(request_id);
        self.close(request_id);
        outcome
    }

    /// Closes a request. After this, no copy of the request may be sent. A second call has no
    /// effect.
    pub(crate) fn close(&self, request_id: RequestId) {
        self.sequences.lock().close(request_id);
    }

    /// Like [`close`](Self::close), for a request that has changed the number of free permits by
    /// `permits` (zero if the request was undone). `mark` is the mark in its reply. Returns `true`
    /// if the caller must [repeat](Self::mend_commands_for) this change, because a new master may
    /// have received only the changes before it.
    ///
    /// A thread may read the old master's reply, be suspended, and call this function after the
    /// renewer has sent all changes to the new master. So this function first adds the change and
    /// then reads the incarnation (the number of the server's run). The renewer first raises the
    /// incarnation and then collects the changes. So either the renewer finds the change, or this
    /// thread finds another incarnation. The next request of the sequence would also repeat the
    /// change, but there may be no next request.
    #[must_use = "`true`: the permits are wrong for good unless the change is made again"]
    pub(crate) fn record_applied(
        self: &Arc<Self>,
        request_id: RequestId,
        semaphore: &Arc<str>,
        permits: i64,
        mark: Option<Mark>,
    ) -> bool {
        let changes = self.changes.upgrade();
        let mut sequences = self.sequences.lock();
        // Do not keep a change that Lua cannot add up exactly.
        let open = sequences.open_of(request_id).filter(|_| permits.unsigned_abs() < 1 << 40);
        if let Some((open, changes)) = open.zip(changes.as_ref()) {
            let times = [request_id.number, open.latest, open.run];
            let change = Change::new(request_id.sequence, times, permits, semaphore, mark);
            changes.add(self, &mut sequences.log, change);
        }
        sequences.close(request_id);
        drop(sequences);
        if let Some(changes) = changes {
            changes.sweep(2);
        }
        let Some((open, route)) = open.zip(self.route.as_ref()) else { return false };
        let lane = route.lane();
        lane.permits_answered.fetch_max(clock::now(), Ordering::Relaxed);
        open.run != lane.endpoint().incarnation()
    }

    /// Returns the time at which the server last replied to a change of any name over this name's
    /// lane, and the run of the server.
    pub(super) fn last_answered(&self) -> (u64, u64) {
        self.route.as_ref().map_or((0, 0), |route| {
            let lane = route.lane();
            (lane.permits_answered.load(Ordering::Relaxed), lane.endpoint().incarnation())
        })
    }

    /// Called when the name's last handle is dropped. Frees the sequences if no request is open.
    /// While there are changes, `self` exists without a handle.
    pub(crate) fn free_sequences(&self) {
        let mut sequences = self.sequences.lock();
        if sequences.free.len() == sequences.open.len() {
            (sequences.open, sequences.free) = Default::default();
        }
    }

    pub(super) fn with_log<R>(&self, f: impl FnOnce(&mut Log) -> R) -> R {
        f(&mut self.sequences.lock().log)
    }

    /// Returns the commands that repeat the changes of a sequence, or of all sequences, at a server
    /// that lacks them. The name beside each command is its semaphore's name. The commands must be
    /// sent in this order.
    pub(crate) fn mend_commands(&self, sequence: Option<usize>) -> Vec<(Arc<str>, Command)> {
        let parts = self.sequences.lock().log.parts(sequence);
        parts.iter().filter_map(|part| self.mend_command(part)).collect()
    }

    /// Returns the [`mend_commands`](Self::mend_commands) of a request's sequence.
    pub(crate) fn mend_commands_for(&self, request_id: RequestId) -> Vec<(Arc<str>, Command)> {
        self.mend_commands(Some(request_id.sequence))
    }

    /// Notes that this run of the server has received all [`mend_commands`](Self::mend_commands) of
    /// these semaphores for changes that were made before `asked`.
    pub(crate) fn record_mended(&self, run: u64, asked: u64, is_meant: impl Fn(&str) -> bool) {
        self.with_log(|log| log.record_mended(run, asked, is_meant));
    }

    fn mend_command(&self, changes: &[Change]) -> Option<(Arc<str>, Command)> {
        let last = changes.last()?;
        // The command is valid until the earliest time of its changes: a change that is applied too
        // late might be applied twice. If the server refuses a change that was still valid, the
        // client logs this.
        let latest = changes.iter().map(|change| change.latest).min()?;
        let mut arguments: Vec<String> = [last.number, latest].iter().map(u64::to_string).collect();
        arguments.push(self.record_ttl.as_millis().to_string());
        arguments.push("-0".to_owned());
        arguments.push(SemaphoreKeys::channel(&last.semaphore));
        arguments.push(last.mark.as_ref().map_or_else(String::new, Mark::to_string));
        for change in changes {
            arguments.extend([change.number.to_string(), change.permits.to_string()]);
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let record = format!("{}:{}", self.key, last.sequence);
        let mark = SemaphoreKeys::mark(&last.semaphore);
        let keys = [last.semaphore.as_bytes(), record.as_bytes(), mark.as_bytes()];
        Some((Arc::clone(&last.semaphore), Command::script(&MEND, &keys, &arguments)))
    }

    /// Returns whether the change before this request must be repeated, after the server has
    /// replied that it lacks this change. If the same run of the server made the change, only the
    /// server's record of it was deleted, and no change is missing. The next request then names no
    /// change before it. The client raises the incarnation (the number of the run) before it sends
    /// a command to another run.
    pub(crate) fn must_be_mended(&self, request_id: RequestId, run: u64) -> bool {
        self.with_log(|log| {
            let is_forgotten = log.was_made_by(request_id.sequence, run);
            if is_forgotten {
                log.forget_sequence(request_id.sequence);
            }
            !is_forgotten
        })
    }

    /// Whether the reply says that the server lacks the change before the request.
    pub(crate) fn is_behind(reply: &Value) -> bool {
        matches!(reply, Value::Array(parts) if matches!(**parts, [Value::Int(_), Value::Int(_)]))
    }

    /// Returns the latest time at which a request that is opened now may be applied.
    pub(super) fn latest(&self) -> u64 {
        let valid_for = i64::try_from(self.valid_for.as_millis()).unwrap_or(i64::MAX);
        u64::try_from(self.server.now().saturating_add(valid_for)).unwrap_or(0)
    }

    /// Gives a request a later time, unless another thread has given it a time that is not over.
    /// The caller must know that no copy with the old time was applied or can be applied later.
    pub(crate) fn prolong(&self, request_id: RequestId) {
        let mut sequences = self.sequences.lock();
        let latest = self.latest();
        let valid_for = u64::try_from(self.valid_for.as_millis()).unwrap_or(u64::MAX);
        let usable = latest.saturating_sub(valid_for)..=latest;
        if let Some(Some(open)) = sequences.open.get_mut(request_id.sequence)
            && open.number == request_id.number
            && !usable.contains(&open.latest)
        {
            open.latest = latest;
        }
    }

    /// Returns the latest time at which a request may be applied, and the number of the change
    /// before it in its sequence. The time is zero if the request is closed, so that the server
    /// refuses the request. The number is zero if there was no earlier change.
    pub(super) fn validity_of(&self, request_id: RequestId) -> [u64; 2] {
        let sequences = self.sequences.lock();
        let latest = sequences.open_of(request_id).map_or(0, |open| open.latest);
        [latest, sequences.log.last_of(request_id.sequence)]
    }

    /// Whether the reply says that the request arrived too late. If it says so, stores the server's
    /// time from the reply.
    pub(crate) fn check_late(&self, reply: &Value) -> bool {
        match reply {
            Value::Array(parts) => match parts.as_slice() {
                [Value::Int(now)] => {
                    self.server.set(*now);
                    true
                }
                _ => false,
            },
            _ => false,
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        if let Some(changes) = self.changes.upgrade() {
            changes.requests.forget(&self.key);
        }
    }
}

impl Sequences {
    fn close(&mut self, request_id: RequestId) {
        if let Some(open) = self.open.get_mut(request_id.sequence)
            && open.is_some_and(|open| open.number == request_id.number)
        {
            *open = None;
            self.free.push(Reverse(request_id.sequence));
        }
    }

    fn open_of(&self, request_id: RequestId) -> Option<OpenRequest> {
        let open = self.open.get(request_id.sequence).copied().flatten();
        open.filter(|open| open.number == request_id.number)
    }
}

/// The names of one client that have changes, and each name's numbered requests.
#[derive(Debug, Default)]
pub(crate) struct ChangedNames {
    /// The numbered requests of each name. Each [`Requests`] removes itself when it is dropped. The
    /// list of names with changes also has references to it.
    pub(crate) requests: Registry<Requests>,
    names: Mutex<NameQueue>,
    count: AtomicUsize,
    /// The number of changes that were dropped although they were not old.
    forgotten: AtomicU64,
}

/// The names with changes, each once. If a name still has changes after a sweep, it moves to the
/// end.
#[derive(Debug, Default)]
struct NameQueue {
    /// The number of names that have left the front of the queue so far.
    removed: u64,
    /// The names, each with the time at which it was added to the end of the queue.
    queue: VecDeque<(u64, Arc<Requests>)>,
}

/// A position in the queue of names, counted from its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor(u64);

impl ChangedNames {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.lock().queue.is_empty()
    }

    /// Returns the next `most` names from `cursor` on, and moves the cursor behind them. If no
    /// names are left, the list is empty. A name that moves to the end in the meantime is returned
    /// twice.
    pub(crate) fn next(&self, cursor: &mut Cursor, most: usize) -> Vec<Arc<Requests>> {
        let names = self.names.lock();
        let from = cursor.0.max(names.removed);
        let skip = usize::try_from(from - names.removed).unwrap_or(usize::MAX);
        let next: Vec<_> =
            names.queue.iter().skip(skip).take(most).map(|(_, it)| Arc::clone(it)).collect();
        cursor.0 = from + next.len() as u64;
        next
    }

    /// Returns how many changes were dropped since the last call although they were not old.
    pub(crate) fn take_forgotten(&self) -> u64 {
        self.forgotten.swap(0, Ordering::Relaxed)
    }

    pub(super) fn add(&self, requests: &Arc<Requests>, log: &mut Log, change: Change) {
        let now = change.at;
        let (gone, old) = log.add(change);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.count_removed(gone, old);
        if !std::mem::replace(&mut log.is_listed, true) {
            // This thread holds the log's mutex, so no other thread adds a change before the name
            // is listed.
            self.names.lock().queue.push_back((now, Arc::clone(requests)));
        }
    }

    fn count_removed(&self, gone: usize, old: usize) {
        self.count.fetch_sub(gone, Ordering::Relaxed);
        self.forgotten.fetch_add((gone - old) as u64, Ordering::Relaxed);
    }

    /// Sweeps up to `names` names from the front of the queue: drops their old changes, and more
    /// changes if the client has too many. Each thread that adds a change sweeps two names, so the
    /// renewer need not sweep.
    pub(crate) fn sweep(&self, names: usize) {
        for _ in 0..names {
            let first = match self.names.lock().queue.front() {
                Some((since, first)) if self.is_due(*since) => Arc::clone(first),
                _ => return,
            };
            // In a cluster this call takes other mutexes, so it must come before the log's mutex is
            // locked.
            let (answered, run) = first.last_answered();
            let left = first.with_log(|log| {
                let mut names = self.names.lock();
                match names.queue.front() {
                    Some((_, it)) if Arc::ptr_eq(it, &first) => names.removed += 1,
                    // Another thread has swept this name.
                    _ => return None,
                }
                let left = names.queue.pop_front();
                let now = clock::now();
                self.drop_old(log, [now, answered, run]);
                log.is_listed = !log.changes.is_empty();
                if log.is_listed {
                    names.queue.push_back((now, Arc::clone(&first)));
                }
                left
            });
            // This line may drop the last reference to the `Requests`. Their destructor takes a
            // mutex, so this thread must hold no mutex here.
            drop((left, first));
        }
    }

    /// Whether to sweep a name that was added at `since`. If a name is swept before its last change
    /// is old, it waits in the queue for the same time again.
    fn is_due(&self, since: u64) -> bool {
        clock::now().saturating_sub(since) > KEEP_FOR + TYPICAL_USE
            || self.count.load(Ordering::Relaxed) > MAX_CHANGES
    }

    /// Drops the old changes of a log, and more changes if the client has too many.
    fn drop_old(&self, log: &mut Log, [now, answered, run]: [u64; 3]) {
        let is_old = |it: &&Change| it.is_old(answered, run) || now.saturating_sub(it.at) > MAX_AGE;
        let old = log.changes.iter().take_while(is_old).count();
        let many =
            self.count.load(Ordering::Relaxed).saturating_sub(MAX_CHANGES).min(log.changes.len());
        let gone = old.max(many);
        log.forget(gone);
        self.count_removed(gone, old);
    }
}

#[cfg(all(test, testkit))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use redlatch_client::{Endpoint, Lane};

    use super::super::changes::MAX_CHANGES_PER_NAME;
    use super::*;

    struct TestClient {
        changes: Arc<ChangedNames>,
        route: Route,
        number: u64,
    }

    impl TestClient {
        fn new() -> Self {
            let never = Duration::from_secs(60);
            let endpoint = Endpoint::new("redis://127.0.0.1:1", never, never).unwrap();
            let route = Route::Server(Arc::new(Lane::new(Arc::new(endpoint))));
            Self { changes: Arc::default(), route, number: 0 }
        }

        fn requests(&self, name: &str) -> Arc<Requests> {
            self.changes.requests.find(name, |key| {
                Requests::new(key, &Arc::default())
                    .with_repeated_changes(&self.changes, self.route.clone())
            })
        }

        fn open(&mut self, requests: &Requests) -> RequestId {
            self.number += 1;
            requests.open_after(self.route.incarnation(), || self.number)
        }

        /// Makes one change of a name.
        fn change(&mut self, name: &str) {
            let requests = self.requests(name);
            let request_id = self.open(&requests);
            assert!(!requests.record_applied(request_id, &name.into(), 1, None));
        }

        fn names(&self) -> usize {
            self.changes.requests.all().len()
        }

        /// Makes the changes of these names and their times in the queue older.
        fn age(&self, names: std::ops::Range<u64>, by: u64) {
            for name in names {
                let requests = self.requests(&name.to_string());
                requests.with_log(|log| {
                    log.changes.iter_mut().for_each(|it| it.at = it.at.saturating_sub(by));
                });
            }
            self.changes
                .names
                .lock()
                .queue
                .iter_mut()
                .for_each(|(since, _)| *since = since.saturating_sub(by));
        }
    }

    /// If many names are each used once, the client keeps only the changes of about the last ten
    /// seconds.
    #[test]
    fn a_name_goes_with_its_old_changes_as_others_come() {
        let mut client = TestClient::new();
        (0..300).for_each(|name| client.change(&name.to_string()));
        client.age(0..300, KEEP_FOR + 2 * TYPICAL_USE);
        // Each change sweeps two names.
        (300..400).for_each(|name| client.change(&name.to_string()));
        assert_eq!((client.names(), client.changes.take_forgotten()), (200, 0));
        (400..600).for_each(|name| client.change(&name.to_string()));
        assert_eq!((client.names(), client.changes.take_forgotten()), (300, 0));
        assert!(format!("{:?}", client.changes.requests) == "Registry(300)", "no dead one is left");
    }

    /// In an outage the server replies to nothing, and after the outage another server may be the
    /// master.
    #[test]
    fn changes_before_an_outage_are_kept_until_the_next_run_has_them() {
        let mut client = TestClient::new();
        (0..100).for_each(|name| client.change(&name.to_string()));
        client.age(0..100, KEEP_FOR * 3);
        if let Route::Server(lane) = &client.route {
            // Simulate that the server has not replied to a change for a while.
            lane.permits_answered.fetch_sub(KEEP_FOR * 3, Ordering::Relaxed);
        }
        client.changes.sweep(1_000);
        assert_eq!(client.names(), 100);
        let requests = client.requests("another run's");
        client.number += 1;
        let request_id = requests.open_after(7, || client.number);
        let _ = requests.record_applied(request_id, &"another run's".into(), 1, None);
        drop(requests);
        client.changes.sweep(1_000);
        client.age(0..100, MAX_AGE);
        client.changes.sweep(1_000);
        assert!(client.names() <= 1, "{}", client.names());
        assert_eq!(client.changes.take_forgotten(), 0);
    }

    /// 200 changes a second for a minute are more changes than the client keeps, but most of them
    /// are old.
    #[test]
    fn changes_before_a_failover_do_not_keep_later_ones_from_growing_old() {
        let mut client = TestClient::new();
        let busy = client.requests("busy");
        let mut change = |run, age: u64| {
            client.number += 1;
            let request_id = busy.open_after(run, || client.number);
            let _ = busy.record_applied(request_id, &"busy".into(), -1, None);
            busy.with_log(|log| {
                log.changes.iter_mut().for_each(|it| it.at = it.at.saturating_sub(age));
            });
        };
        (0..10).for_each(|_| change(1, 0));
        busy.record_mended(2, clock::now(), |_| true);
        let made_by_2 = |number| busy.with_log(|log| log.changes[number].run == 2);
        assert!(made_by_2(0) && made_by_2(9));
        (0..12_000).for_each(|_| change(2, 5_000_000));
        assert_eq!(client.changes.take_forgotten(), 0);
    }

    #[test]
    fn the_oldest_of_too_many_changes_go_and_are_counted() {
        let mut client = TestClient::new();
        let busy = client.requests("busy");
        for _ in 0..MAX_CHANGES_PER_NAME + 5 {
            let request_id = client.open(&busy);
            let _ = busy.record_applied(request_id, &"busy".into(), -1, None);
        }
        assert_eq!(client.changes.take_forgotten(), 5);
        assert_eq!(busy.with_log(|log| log.changes.len()), MAX_CHANGES_PER_NAME);
        let others = MAX_CHANGES as u64 - MAX_CHANGES_PER_NAME as u64;
        (0..others).for_each(|name| client.change(&name.to_string()));
        assert_eq!(client.changes.take_forgotten(), 0);
        (others..others + 20).for_each(|name| client.change(&name.to_string()));
        assert_eq!(client.changes.take_forgotten(), 20);
        assert_eq!(client.changes.count.load(Ordering::Relaxed), MAX_CHANGES);
        // The name was first in the queue, and moves to the end with its remaining changes.
        assert_eq!(busy.with_log(|log| log.changes.len()), MAX_CHANGES_PER_NAME - 1);
    }

    /// Iterates over the names as the renewer does, while other threads move names to the end.
    #[test]
    fn a_pass_over_the_names_with_changes_misses_none() {
        let mut client = TestClient::new();
        (0..50).for_each(|name| client.change(&name.to_string()));
        let (mut cursor, mut seen) = (Cursor::default(), std::collections::BTreeSet::new());
        loop {
            let some = client.changes.next(&mut cursor, 8);
            if some.is_empty() {
                break;
            }
            seen.extend(some.iter().map(|it| it.with_log(|log| log.changes[0].number)));
            if seen.len() < 24 {
                // These names are swept, and remain in the queue.
                let mut names = client.changes.names.lock();
                names.queue.iter_mut().for_each(|(since, _)| *since = 0);
                drop(names);
                client.changes.sweep(3);
            }
        }
        assert_eq!(seen, (1..=50).collect());
    }
}
