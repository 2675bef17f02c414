//! The changes of semaphores that a client made a moment ago, so that it can tell another master.
//!
//! A server that becomes the master knows the beginning of the old master's history, in its order.
//! In a sequence of requests one request follows the other: the client opens the next one when the one
//! before it is closed. So if the server remembers the number k of a sequence, it knows all changes of
//! that sequence up to k and none behind it, and if it remembers nothing, none of the last minutes. The
//! client makes unknown changes again (`lua/semaphore/mend.lua`), in the order of the numbers, and
//! then the server remembers the last of them: made twice, they change nothing. No later request of
//! the sequence comes before that, since each names the change before it (`lua/once.lua`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use redis::Value;
use redlatch_client::sync::clock;

/// A change is kept until the same run of the server has answered another one so much later: no
/// replica that becomes the master is further behind. Not until so much time has passed, since an
/// outage may last.
pub(super) const KEPT: u64 = 10_000_000_000;
/// Bounds the memory that they take, and the time that a script takes to repeat those of a name.
pub(super) const MOST_OF_A_NAME: usize = 10_000;

/// One change that the server has answered.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(super) at: u64,
    /// The run of the server that was met last before it, or was told of it.
    pub(super) run: u64,
    pub(super) sequence: usize,
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

/// The last changes of one name, the oldest first: of a sequence in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) changes: VecDeque<Change>,
    /// The number of each sequence's last change, and its run. Zero: the server need not know it.
    last: Vec<(u64, u64)>,
    /// The name is among those with changes.
    pub(super) is_listed: bool,
}

impl Log {
    pub(super) fn last_of(&self, sequence: usize) -> u64 {
        self.last.get(sequence).map_or(0, |(number, _)| *number)
    }

    /// Whether this run of the server has made the sequence's last change, as far as is known: if it
    /// does not remember it, the memory of it was evicted or deleted.
    pub(super) fn was_made_by(&self, sequence: usize, run: u64) -> bool {
        self.last.get(sequence).is_none_or(|(number, made_by)| *number == 0 || *made_by == run)
    }

    /// Adds a change, and forgets the oldest ones. Returns how many went, and how many of them for
    /// their age.
    pub(super) fn add(&mut self, mut change: Change) -> (usize, usize) {
        // Most names have few.
        if self.changes.capacity() == 0 {
            self.changes.reserve_exact(2);
            self.last.reserve_exact(change.sequence + 1);
        }
        if self.last.len() <= change.sequence {
            self.last.resize(change.sequence + 1, (0, 0));
        }
        self.last[change.sequence] = (change.number, change.run);
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
                let last = &mut self.last[change.sequence];
                if last.0 == change.number {
                    last.1 = run;
                }
            }
        }
    }

    /// From here on no request asks whether the server knows the sequence's last change.
    pub(super) fn forget_sequence(&mut self, sequence: usize) {
        if let Some(last) = self.last.get_mut(sequence) {
            *last = (0, 0);
        }
    }

    pub(super) fn forget(&mut self, count: usize) {
        for gone in self.changes.drain(..count) {
            let last = &mut self.last[gone.sequence];
            if last.0 == gone.number {
                *last = (0, 0);
            }
        }
    }

    /// The changes of one sequence, or of all, in the order in which they must be made: in each sequence
    /// that of their numbers, and each part for one semaphore with one mark.
    pub(super) fn parts(&self, sequence: Option<usize>) -> Vec<Vec<Change>> {
        let meant = |change: &&Change| sequence.is_none_or(|sequence| change.sequence == sequence);
        let mut changes: Vec<_> = self.changes.iter().filter(meant).cloned().collect();
        changes.sort_by_key(|change| (change.sequence, change.number));
        let same = |one: &Change, other: &Change| {
            (one.sequence, &one.semaphore, &one.mark)
                == (other.sequence, &other.semaphore, &other.mark)
        };
        changes.chunk_by(same).map(<[Change]>::to_vec).collect()
    }
}

impl Change {
    pub(super) fn new(
        sequence: usize,
        [number, latest, run]: [u64; 3],
        permits: i64,
        semaphore: &Arc<str>,
        mark: Option<Mark>,
    ) -> Self {
        let (at, semaphore) = (clock::now(), Arc::clone(semaphore));
        Self { at, run, sequence, number, latest, permits, semaphore, mark }
    }

    /// Whether no replica can lack it: this run of the server answered another change then. (Another
    /// run may not know this one, until it was told.)
    pub(super) fn is_old(&self, answered: u64, run: u64) -> bool {
        self.run == run && answered.saturating_sub(self.at) > KEPT
    }
}
