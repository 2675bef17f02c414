//! The changes of semaphores that a client made a moment ago, so that it can tell another master.
//!
//! A server that becomes the master knows the beginning of the old master's history, in its order.
//! In a request slot one request follows the other: the client opens the next one when the one
//! before it is closed. So if the server remembers the number k of a slot, it knows all changes of
//! that slot up to k and none behind it, and if it remembers nothing, none of the last minutes. The
//! client makes unknown changes again (`lua/semaphore/mend.lua`), in the order of the numbers, and
//! then the server remembers the last of them: made twice, they change nothing. No later request of
//! the slot comes before that, since each names the change before it (`lua/once.lua`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use redis::Value;
use redlatch_client::sync::{Mutex, Registry, clock};

use super::once::Requests;

/// A change is kept until the same run of the server has answered another one so much later: no
/// replica that becomes the master is further behind. Not until so much time has passed, since an
/// outage may last.
const KEPT: u64 = 10_000_000_000;
/// Past any outage that a client waits for.
const IDLE: u64 = 120_000_000_000;
/// How long a name is in use that is used once, mostly.
const USED: u64 = 500_000_000;
/// Bounds the memory that they take, and the time that a script takes to repeat those of a name.
const MOST_OF_A_NAME: usize = 10_000;
/// (A test reaches it before a change is too old, on a busy machine too.)
const MOST: usize = if cfg!(test) { 20_000 } else { 200_000 };

/// One change that the server has answered.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    at: u64,
    /// The run of the server that was met last before it, or was told of it.
    run: u64,
    pub(super) slot: usize,
    pub(super) number: u64,
    /// Until when the change may be made, on the server's clock.
    pub(super) latest: u64,
    /// Negative: they were taken. Zero: its permits were given back.
    pub(super) permits: i64,
    pub(super) semaphore: Arc<str>,
    /// The mark that it saw. `None`: it has undone another one, which saw what the server says.
    pub(super) mark: Option<Mark>,
}

/// What tells a semaphore from others of its name, before and after it (`lua/semaphore/mark.lua`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark(Arc<str>);

impl Mark {
    /// The mark in a reply to a change.
    pub(crate) fn of(reply: &Value) -> Option<Self> {
        match reply {
            Value::Array(parts) => match parts.as_slice() {
                [_, Value::BulkString(text)] => Some(Self(str::from_utf8(text).ok()?.into())),
                _ => None,
            },
            _ => None,
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The last changes of one name, the oldest first: of a slot in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Log {
    changes: VecDeque<Change>,
    /// The number of each slot's last change, and its run. Zero: the server need not know it.
    last: Vec<(u64, u64)>,
    /// The name is among those with changes.
    is_listed: bool,
}

impl Log {
    pub(super) fn last_of(&self, slot: usize) -> u64 {
        self.last.get(slot).map_or(0, |(number, _)| *number)
    }

    /// Whether this run of the server has made the slot's last change, as far as is known: if it
    /// does not remember it, the memory of it was evicted or deleted.
    pub(super) fn was_made_by(&self, slot: usize, run: u64) -> bool {
        self.last.get(slot).is_none_or(|(number, made_by)| *number == 0 || *made_by == run)
    }

    /// Adds a change, and forgets the oldest ones. Returns how many went, and how many of them for
    /// their age.
    fn add(&mut self, mut change: Change) -> (usize, usize) {
        // Most names have few.
        if self.changes.capacity() == 0 {
            self.changes.reserve_exact(2);
            self.last.reserve_exact(change.slot + 1);
        }
        if self.last.len() <= change.slot {
            self.last.resize(change.slot + 1, (0, 0));
        }
        self.last[change.slot] = (change.number, change.run);
        // Mostly it is the same, and kept once.
        if let Some(last) = self.changes.back()
            && last.mark == change.mark
        {
            change.mark.clone_from(&last.mark);
        }
        let (now, run) = (change.at, change.run);
        self.changes.push_back(change);
        let old = self.changes.iter().take_while(|it| it.is_old(now, run)).count();
        let gone = old.max(self.changes.len().saturating_sub(MOST_OF_A_NAME));
        self.forget(gone);
        (gone, old)
    }

    /// This run of the server has been told all changes made before `asked` of these semaphores. It
    /// has them from now on as if it had made them: they become old with its own.
    pub(super) fn told(&mut self, run: u64, asked: u64, is_meant: impl Fn(&str) -> bool) {
        let now = clock::now();
        for change in &mut self.changes {
            if change.run != run && change.at < asked && is_meant(&change.semaphore) {
                (change.run, change.at) = (run, now);
                let last = &mut self.last[change.slot];
                if last.0 == change.number {
                    last.1 = run;
                }
            }
        }
    }

    /// From here on no request asks whether the server knows the slot's last change.
    pub(super) fn forget_slot(&mut self, slot: usize) {
        if let Some(last) = self.last.get_mut(slot) {
            *last = (0, 0);
        }
    }

    fn forget(&mut self, count: usize) {
        for gone in self.changes.drain(..count) {
            let last = &mut self.last[gone.slot];
            if last.0 == gone.number {
                *last = (0, 0);
            }
        }
    }

    /// The changes of one slot, or of all, in the order in which they must be made: in each slot
    /// that of their numbers, and each part for one semaphore with one mark.
    pub(super) fn parts(&self, slot: Option<usize>) -> Vec<Vec<Change>> {
        let meant = |change: &&Change| slot.is_none_or(|slot| change.slot == slot);
        let mut changes: Vec<_> = self.changes.iter().filter(meant).cloned().collect();
        changes.sort_by_key(|change| (change.slot, change.number));
        let same = |one: &Change, other: &Change| {
            (one.slot, &one.semaphore, &one.mark) == (other.slot, &other.semaphore, &other.mark)
        };
        changes.chunk_by(same).map(<[Change]>::to_vec).collect()
    }
}

impl Change {
    pub(super) fn new(
        slot: usize,
        [number, latest, run]: [u64; 3],
        permits: i64,
        semaphore: &Arc<str>,
        mark: Option<Mark>,
    ) -> Self {
        let (at, semaphore) = (clock::now(), Arc::clone(semaphore));
        Self { at, run, slot, number, latest, permits, semaphore, mark }
    }

    /// Whether no replica can lack it: this run of the server answered another change then. (Another
    /// run may not know this one, until it was told.)
    fn is_old(&self, answered: u64, run: u64) -> bool {
        self.run == run && answered.saturating_sub(self.at) > KEPT
    }
}

/// The names of one client of which there are changes, and the numbered requests of each name.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Each name forgets itself when its last use ends. (While there are changes they use it.)
    pub(crate) requests: Registry<Requests>,
    names: Mutex<Names>,
    count: AtomicUsize,
    /// How many fell out before they were old.
    forgotten: AtomicU64,
}

/// Each name is here once while it has changes. One that is looked at and stays goes to the end.
#[derive(Debug, Default)]
struct Names {
    /// How many were here before the first one.
    before: u64,
    /// Since when each has its place.
    queue: VecDeque<(u64, Arc<Requests>)>,
}

/// A place between the names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place(u64);

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.names.lock().queue.is_empty()
    }

    /// The next so many names from `place` on, which moves behind them. None: there are no more.
    /// (Whoever comes to a name after it has another place meets it twice.)
    pub(crate) fn next(&self, place: &mut Place, most: usize) -> Vec<Arc<Requests>> {
        let names = self.names.lock();
        let from = place.0.max(names.before);
        let skip = usize::try_from(from - names.before).unwrap_or(usize::MAX);
        let next: Vec<_> =
            names.queue.iter().skip(skip).take(most).map(|(_, it)| Arc::clone(it)).collect();
        place.0 = from + next.len() as u64;
        next
    }

    /// How many changes fell out before they were old, since the last call.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.swap(0, Ordering::Relaxed)
    }

    /// Adds a change.
    pub(super) fn add(&self, requests: &Arc<Requests>, log: &mut Log, change: Change) {
        let now = change.at;
        let (gone, old) = log.add(change);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.went(gone, old);
        if !std::mem::replace(&mut log.is_listed, true) {
            // Under the log's mutex: whoever adds another one finds the name listed.
            self.names.lock().queue.push_back((now, Arc::clone(requests)));
        }
    }

    fn went(&self, gone: usize, old: usize) {
        self.count.fetch_sub(gone, Ordering::Relaxed);
        self.forgotten.fetch_add((gone - old) as u64, Ordering::Relaxed);
    }

    /// Looks at so many names, those longest in their places, and forgets old changes, and the
    /// oldest ones if there are too many. Each thread that adds a change looks at two, so the renewer
    /// need not look at all.
    pub(crate) fn sweep(&self, names: usize) {
        for _ in 0..names {
            let first = match self.names.lock().queue.front() {
                Some((since, first)) if self.is_due(*since) => Arc::clone(first),
                _ => return,
            };
            // Not under the mutex: in a cluster this takes others.
            let (answered, run) = first.last_answered();
            let left = first.with_log(|log| {
                let mut names = self.names.lock();
                match names.queue.front() {
                    Some((_, it)) if Arc::ptr_eq(it, &first) => names.before += 1,
                    // Another thread has looked at it.
                    _ => return None,
                }
                let left = names.queue.pop_front();
                let now = clock::now();
                self.look(log, [now, answered, run]);
                log.is_listed = !log.changes.is_empty();
                if log.is_listed {
                    names.queue.push_back((now, Arc::clone(&first)));
                }
                left
            });
            // With no mutex held: they may be the last uses of the name.
            drop((left, first));
        }
    }

    /// A name that is looked at before its last change is old stays for as long again.
    fn is_due(&self, since: u64) -> bool {
        clock::now().saturating_sub(since) > KEPT + USED
            || self.count.load(Ordering::Relaxed) > MOST
    }

    /// Forgets those of a log that need not, or can not, be kept.
    fn look(&self, log: &mut Log, [now, answered, run]: [u64; 3]) {
        let is_old = |it: &&Change| it.is_old(answered, run) || now.saturating_sub(it.at) > IDLE;
        let old = log.changes.iter().take_while(is_old).count();
        let many = self.count.load(Ordering::Relaxed).saturating_sub(MOST).min(log.changes.len());
        let gone = old.max(many);
        log.forget(gone);
        self.went(gone, old);
    }
}

#[cfg(all(test, testkit))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use redlatch_client::{Endpoint, Lane, Route};

    use super::super::once::RequestId;
    use super::*;

    struct Client {
        changes: Arc<Changes>,
        route: Route,
        number: u64,
    }

    impl Client {
        fn new() -> Self {
            let never = Duration::from_secs(60);
            let endpoint = Endpoint::new("redis://127.0.0.1:1", never, never).unwrap();
            let route = Route::Server(Arc::new(Lane::new(Arc::new(endpoint))));
            Self { changes: Arc::default(), route, number: 0 }
        }

        fn requests(&self, name: &str) -> Arc<Requests> {
            self.changes.requests.find(name, |key| {
                Requests::new(key, &Arc::default()).told_again(&self.changes, self.route.clone())
            })
        }

        fn open(&mut self, requests: &Requests) -> RequestId {
            self.number += 1;
            requests.open(|| self.number)
        }

        /// A change of a name that is used once.
        fn change(&mut self, name: &str) {
            let requests = self.requests(name);
            let request_id = self.open(&requests);
            assert!(!requests.applied(request_id, &name.into(), 1, None));
        }

        fn names(&self) -> usize {
            self.changes.requests.all().len()
        }

        /// As if the changes of these names had been made so long ago.
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

    /// So many names, each used once, cost what the changes of ten seconds cost.
    #[test]
    fn a_name_goes_with_its_old_changes_as_others_come() {
        let mut client = Client::new();
        (0..300).for_each(|name| client.change(&name.to_string()));
        client.age(0..300, KEPT + 2 * USED);
        // Each change takes two along.
        (300..400).for_each(|name| client.change(&name.to_string()));
        assert_eq!((client.names(), client.changes.forgotten()), (200, 0));
        (400..600).for_each(|name| client.change(&name.to_string()));
        assert_eq!((client.names(), client.changes.forgotten()), (300, 0));
        assert!(format!("{:?}", client.changes.requests) == "Registry(300)", "no dead one is left");
    }

    /// Nothing is answered in an outage, and the server may be another one after it.
    #[test]
    fn changes_before_an_outage_are_kept_until_another_run_is_told_of_them() {
        let mut client = Client::new();
        (0..100).for_each(|name| client.change(&name.to_string()));
        client.age(0..100, KEPT * 3);
        if let Route::Server(lane) = &client.route {
            // No change was answered since.
            lane.permits_answered.fetch_sub(KEPT * 3, Ordering::Relaxed);
        }
        client.changes.sweep(1_000);
        assert_eq!(client.names(), 100);
        let requests = client.requests("another run's");
        client.number += 1;
        let request_id = requests.open_after(7, || client.number);
        let _ = requests.applied(request_id, &"another run's".into(), 1, None);
        drop(requests);
        client.changes.sweep(1_000);
        client.age(0..100, IDLE);
        client.changes.sweep(1_000);
        assert!(client.names() <= 1, "{}", client.names());
        assert_eq!(client.changes.forgotten(), 0);
    }

    /// 200 a second for a minute: more than are kept, but most are old.
    #[test]
    fn changes_before_a_failover_do_not_keep_later_ones_from_growing_old() {
        let mut client = Client::new();
        let busy = client.requests("busy");
        let mut change = |run, age: u64| {
            client.number += 1;
            let request_id = busy.open_after(run, || client.number);
            let _ = busy.applied(request_id, &"busy".into(), -1, None);
            busy.with_log(|log| {
                log.changes.iter_mut().for_each(|it| it.at = it.at.saturating_sub(age));
            });
        };
        (0..10).for_each(|_| change(1, 0));
        busy.told(2, clock::now(), |_| true);
        let made_by_2 = |number| busy.with_log(|log| log.changes[number].run == 2);
        assert!(made_by_2(0) && made_by_2(9));
        (0..12_000).for_each(|_| change(2, 5_000_000));
        assert_eq!(client.changes.forgotten(), 0);
    }

    #[test]
    fn the_oldest_of_too_many_changes_go_and_are_counted() {
        let mut client = Client::new();
        let busy = client.requests("busy");
        for _ in 0..MOST_OF_A_NAME + 5 {
            let request_id = client.open(&busy);
            let _ = busy.applied(request_id, &"busy".into(), -1, None);
        }
        assert_eq!(client.changes.forgotten(), 5);
        assert_eq!(busy.with_log(|log| log.changes.len()), MOST_OF_A_NAME);
        let others = MOST as u64 - MOST_OF_A_NAME as u64;
        (0..others).for_each(|name| client.change(&name.to_string()));
        assert_eq!(client.changes.forgotten(), 0);
        (others..others + 20).for_each(|name| client.change(&name.to_string()));
        assert_eq!(client.changes.forgotten(), 20);
        assert_eq!(client.changes.count.load(Ordering::Relaxed), MOST);
        // It was first, and goes to the end with what is left.
        assert_eq!(busy.with_log(|log| log.changes.len()), MOST_OF_A_NAME - 1);
    }

    /// As the renewer does, while other threads move names to the end.
    #[test]
    fn whoever_goes_through_the_names_misses_none() {
        let mut client = Client::new();
        (0..50).for_each(|name| client.change(&name.to_string()));
        let (mut place, mut seen) = (Place::default(), std::collections::BTreeSet::new());
        loop {
            let some = client.changes.next(&mut place, 8);
            if some.is_empty() {
                break;
            }
            seen.extend(some.iter().map(|it| it.with_log(|log| log.changes[0].number)));
            if seen.len() < 24 {
                // They are looked at, and stay.
                let mut names = client.changes.names.lock();
                names.queue.iter_mut().for_each(|(since, _)| *since = 0);
                drop(names);
                client.changes.sweep(3);
            }
        }
        assert_eq!(seen, (1..=50).collect());
    }
}
