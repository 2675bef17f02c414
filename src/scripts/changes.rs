//! The log of a client's latest changes of semaphores, which the client can repeat at another
//! master.
//!
//! After a failover, the new master has the changes of the old master up to some point. The client
//! numbers its requests in sequences. In a sequence, it opens a request only after it has closed
//! the previous request. So if a server remembers request k of a sequence, it has all changes of
//! the sequence up to k, and no later change. If a server remembers no request of a sequence, it
//! has received no change of the sequence for minutes. The client repeats the changes that the
//! server lacks (`lua/semaphore/mend.lua`), in the order of their numbers. After the repetition the
//! server remembers the last repeated change, so a copy of a change has no effect. Before the
//! repetition the server applies no later request of the sequence, because each request names the
//! change before it (`lua/once.lua`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use redis::Value;
use redlatch_client::sync::clock;

/// A change is kept until the same run of the server replies to another change this much later. A
/// replica that becomes the master lags behind by less than this time. The age of the change alone
/// does not decide, because an outage may last longer.
pub(super) const KEEP_FOR: u64 = 10_000_000_000;
/// The largest number of changes that are kept for a name. This limits the memory, and the time of
/// a script that repeats the changes.
pub(super) const MAX_CHANGES_PER_NAME: usize = 10_000;

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(super) at: u64,
    /// The run of the server to which the client was last connected before the change. If the
    /// client has repeated the change at another run, this is that run.
    pub(super) run: u64,
    pub(super) sequence: usize,
    pub(super) number: u64,
    /// The latest server time at which the server may make the change.
    pub(super) latest: u64,
    /// The number of permits given back. A negative number means that permits were taken. Zero
    /// means that the request took permits, and that these permits were given back.
    pub(super) permits: i64,
    pub(super) semaphore: Arc<str>,
    /// The mark in the reply to the change. `None` if the change undid an earlier change: the
    /// server has the mark of the earlier change.
    pub(super) mark: Option<Mark>,
}

/// Distinguishes a semaphore from earlier and later semaphores of the same name
/// (`lua/semaphore/mark.lua`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark(Arc<str>);

impl Mark {
    /// Returns the mark in the reply to a change.
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

/// The last changes of one name, the oldest first. The changes of a sequence are in the order of
/// their numbers.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) changes: VecDeque<Change>,
    /// The number and the run of each sequence's last change. If the number is zero, the next
    /// request names no earlier change.
    last: Vec<(u64, u64)>,
    /// Whether the name is in the list of names with changes.
    pub(super) is_listed: bool,
}

impl Log {
    pub(super) fn last_of(&self, sequence: usize) -> u64 {
        self.last.get(sequence).map_or(0, |(number, _)| *number)
    }

    /// Whether this run of the server made the sequence's last change, as far as this client knows.
    /// If the run made this change but does not remember it, the record was evicted or deleted.
    pub(super) fn was_made_by(&self, sequence: usize, run: u64) -> bool {
        self.last.get(sequence).is_none_or(|(number, made_by)| *number == 0 || *made_by == run)
    }

    /// Adds a change, and drops the oldest changes if there are too many. Returns the number of
    /// dropped changes, and how many of these were [old](Change::is_old).
    pub(super) fn add(&mut self, mut change: Change) -> (usize, usize) {
        // Most names have few changes.
        if self.changes.capacity() == 0 {
            self.changes.reserve_exact(2);
            self.last.reserve_exact(change.sequence + 1);
        }
        if self.last.len() <= change.sequence {
            self.last.resize(change.sequence + 1, (0, 0));
        }
        self.last[change.sequence] = (change.number, change.run);
        // Most changes have the same mark as the previous change. Changes with the same mark share
        // one text.
        if let Some(last) = self.changes.back()
            && last.mark == change.mark
        {
            change.mark.clone_from(&last.mark);
        }
        let (now, run) = (change.at, change.run);
        self.changes.push_back(change);
        let old = self.changes.iter().take_while(|it| it.is_old(now, run)).count();
        let gone = old.max(self.changes.len().saturating_sub(MAX_CHANGES_PER_NAME));
        self.forget(gone);
        (gone, old)
    }

    /// Notes that this run of the server has received all changes of these semaphores that were
    /// made before `asked`. From then on, the log treats these changes as changes at this run.
    pub(super) fn record_mended(&mut self, run: u64, asked: u64, is_meant: impl Fn(&str) -> bool) {
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

    /// Forgets the last change of a sequence, so that the next request names no change before it.
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

    /// Returns the changes of one sequence, or of all sequences, in parts. The changes are in the
    /// order in which they must be repeated: by sequence, and by number within a sequence. The
    /// changes of a part have the same mark.
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

    /// Whether every replica certainly has the change. This is certain if the same run of the
    /// server has replied to a later change, at the time `answered`, more than [`KEEP_FOR`] after
    /// this change. Another run may lack the change until the client repeats it.
    pub(super) fn is_old(&self, answered: u64, run: u64) -> bool {
        self.run == run && answered.saturating_sub(self.at) > KEEP_FOR
    }
}
