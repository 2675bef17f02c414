//! A hashed timing wheel: a collection of entries that fire at given ticks.
//!
//! The wheel is a pure data structure without a clock, a mutex or a thread. Time is a tick, a `u64`
//! that the caller passes.
//!
//! The wheel is scheme 6 of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987): a
//! ring of buckets. An entry that is due at tick `d` is in the list of bucket `d % buckets`.
//!
//! ```text
//! 8 buckets, now = 13
//!
//! bucket 0    1    2    3    4    5    6    7
//!             17             20   12        15
//!                                 ^         31
//!                                now
//! ```
//!
//! Nearly all entries are cancelled before they are due, or are inserted again at once with a new
//! due tick. A heap would take logarithmic time for each such call, and would keep the cancelled
//! entries. A hierarchy of wheels would move entries from level to level. In this wheel, an insert
//! or a cancel touches one list. An entry that is due more than one round ahead costs more: it
//! shares a bucket with earlier entries, so the wheel reads and skips the entry each time it passes
//! the bucket. The wheel passes a bucket once a round, or twice if one [`advance`](Wheel::advance)
//! ends in the bucket and the next call begins there. Choose the number of buckets so that the
//! usual delay is less than a round.
//!
//! # Invariants
//!
//! After `advance`, every entry is due later than `now`. If an entry is due at `now` or before, it
//! was inserted after the last `advance`, and the next `advance` removes it. An entry is in the
//! bucket of `max(due, now)`. By the first invariant, this bucket stays the same while the entry
//! lives, so the entry does not store its bucket.
//! - Entries with the same due tick are in one bucket, in the order of insertion.
//! - A bucket's bit in `occupied` is set if and only if its list is not empty.
//!
//! # Memory
//!
//! All entries are in one slab. An insert reuses a free cell. The slab shrinks only when the wheel
//! becomes empty, and then to [`SPARE`] cells.

use std::num::NonZero;

/// Entries that fire when their tick has come.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    /// The tick to which the wheel has been advanced.
    now: u64,
    /// The number of buckets less one: `tick & mask` is a tick's bucket.
    mask: u64,
    buckets: Vec<Bucket>,
    /// One bit per bucket. It lets a scan skip 64 empty buckets at once.
    occupied: Vec<u64>,
    entries: Vec<WheelEntry<T>>,
    /// The head of the list of free cells in `entries`, linked by `next`.
    free: u32,
    len: usize,
    serial: NonZero<u64>,
}

/// Identifies one insert into one wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WheelKey {
    index: u32,
    /// Distinguishes this insert from all earlier and later inserts into the same cell.
    serial: NonZero<u64>,
}

impl<T> Wheel<T> {
    /// Returns an empty wheel at tick `now`. `buckets` must be a power of two.
    pub(crate) fn new(now: u64, buckets: usize) -> Self {
        assert!(buckets.is_power_of_two(), "the number of buckets must be a power of two");
        Self {
            now,
            mask: buckets as u64 - 1,
            buckets: vec![Bucket::EMPTY; buckets],
            occupied: vec![0; buckets.div_ceil(WORD)],
            entries: Vec::new(),
            free: NIL,
            len: 0,
            serial: NonZero::<u64>::MIN,
        }
    }

    /// Adds an entry. An entry that is already due fires at the next [`advance`](Self::advance),
    /// even if that call does not move the time.
    pub(crate) fn insert(&mut self, due: u64, item: T) -> WheelKey {
        let bucket = self.bucket_of(due);
        let tail = self.buckets[bucket].tail;
        // A serial number of 64 bits never overflows. The counter belongs to the wheel, because a
        // counter in each cell would be lost when the slab shrinks.
        self.serial = self.serial.saturating_add(1);
        let serial = self.serial;
        let index =
            self.insert_entry(WheelEntry { due, serial, prev: tail, next: NIL, item: Some(item) });

        // The entry goes to the tail of the list. Entries with the same due tick therefore fire in
        // the order of insertion.
        if tail == NIL {
            self.buckets[bucket].head = index;
            self.occupied[bucket / WORD] |= 1 << (bucket % WORD);
        } else {
            self.entries[tail as usize].next = index;
        }
        self.buckets[bucket].tail = index;
        self.len += 1;
        WheelKey { index, serial }
    }

    /// Removes an entry before it fires. Returns `None` if the entry has already fired or was
    /// cancelled.
    pub(crate) fn cancel(&mut self, key: WheelKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        // A free cell keeps the serial number of its last entry.
        if entry.serial != key.serial || entry.item.is_none() {
            return None;
        }
        let bucket = self.bucket_of(entry.due);
        self.unlink(bucket, key.index);
        self.vacate(key.index)
    }

    /// Moves the time to `now`, and appends to `fired` the entries that are due by then. The fired
    /// entries are in the order of their due ticks, and within a tick in the order of insertion.
    /// Time never goes back: if `now` is before the wheel's time, the wheel keeps its time.
    ///
    /// Reads each bucket from the old time to `now`, at most all buckets once, and each entry in
    /// these buckets. A jump of more than a round also sorts the entries that fire.
    pub(crate) fn advance(&mut self, now: u64, fired: &mut Vec<T>) {
        let now = now.max(self.now);
        // The scan begins at the bucket of the old time, which has the entries that were already
        // due when they were inserted.
        let span = (now - self.now).min(self.mask);
        let mut ready = Vec::new();
        let mut offset = 0;
        while let Some(found) = self.next_occupied(offset, span) {
            let bucket = self.bucket_at(found);
            let mut index = self.buckets[bucket].head;
            while index != NIL {
                let entry = &self.entries[index as usize];
                let next = entry.next;
                if entry.due <= now {
                    ready.push((entry.due, index));
                    self.unlink(bucket, index);
                }
                index = next;
            }
            offset = found + 1;
        }
        // Change the time only here, because the code above finds buckets by the old time.
        self.now = now;

        // `ready` is already sorted, except for late entries and after a jump of more than a round.
        // The sort is stable, and entries with the same tick come from one bucket, so these entries
        // keep the order of insertion.
        ready.sort_by_key(|&(due, _)| due);
        for (_, index) in ready {
            fired.extend(self.vacate(index));
        }
    }

    /// Returns the earliest due tick that is at most `horizon`.
    ///
    /// Reads the buckets up to this tick, or up to the horizon, and each entry in these buckets.
    /// With a horizon of more than a round, the call may read every entry of the wheel.
    pub(crate) fn next_due(&self, horizon: u64) -> Option<u64> {
        let span = horizon.saturating_sub(self.now).min(self.mask);
        let mut earliest: Option<u64> = None;
        let mut offset = 0;
        while let Some(found) = self.next_occupied(offset, span) {
            let mut index = self.buckets[self.bucket_at(found)].head;
            while index != NIL {
                let entry = &self.entries[index as usize];
                earliest = Some(earliest.map_or(entry.due, |due| due.min(entry.due)));
                index = entry.next;
            }
            // An entry in a later bucket is not due before that bucket's first tick after `now`. So
            // the scan can stop when it has reached the tick of the earliest entry.
            if earliest.is_some_and(|due| due.saturating_sub(self.now) <= found) {
                break;
            }
            offset = found + 1;
        }
        earliest.filter(|&due| due <= horizon)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bucket_of(&self, due: u64) -> usize {
        // A late entry goes into the present bucket. `advance` would reach the bucket of its due
        // tick only at the end of the round.
        (due.max(self.now) & self.mask) as usize
    }

    fn bucket_at(&self, offset: u64) -> usize {
        ((self.now + offset) & self.mask) as usize
    }

    /// Returns the first offset in `offset..=span` whose bucket has entries. `span` is less than a
    /// round.
    fn next_occupied(&self, mut offset: u64, span: u64) -> Option<u64> {
        // A wheel with fewer buckets than a word has bits wraps within the word.
        let width = self.buckets.len().min(WORD);
        while offset <= span {
            let bucket = self.bucket_at(offset);
            let ahead = self.occupied[bucket / WORD] >> (bucket % WORD);
            if ahead != 0 {
                let found = offset + u64::from(ahead.trailing_zeros());
                return (found <= span).then_some(found);
            }
            offset += (width - bucket % width) as u64;
        }
        None
    }

    fn insert_entry(&mut self, entry: WheelEntry<T>) -> u32 {
        let index = self.free;
        if index != NIL {
            let cell = &mut self.entries[index as usize];
            self.free = cell.next;
            *cell = entry;
            return index;
        }
        assert!(self.entries.len() < NIL as usize, "the wheel is full");
        self.entries.push(entry);
        (self.entries.len() - 1) as u32
    }

    /// Removes an entry from its bucket's list. The entry keeps its cell until the caller calls
    /// [`vacate`](Self::vacate).
    fn unlink(&mut self, bucket: usize, index: u32) {
        let WheelEntry { prev, next, .. } = self.entries[index as usize];
        if prev == NIL {
            self.buckets[bucket].head = next;
        } else {
            self.entries[prev as usize].next = next;
        }
        if next == NIL {
            self.buckets[bucket].tail = prev;
        } else {
            self.entries[next as usize].prev = prev;
        }
        if self.buckets[bucket].head == NIL {
            self.occupied[bucket / WORD] &= !(1 << (bucket % WORD));
        }
    }

    /// Frees the cell of an entry that is in no list.
    fn vacate(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        let item = entry.item.take();
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        if self.len == 0 {
            // Clearing reads each cell once. This cost is spread over the cells' inserts.
            self.entries.clear();
            self.entries.shrink_to(SPARE);
            self.free = NIL;
        }
        item
    }
}

/// The list of the entries in a bucket, oldest first.
#[derive(Clone, Debug)]
struct Bucket {
    head: u32,
    tail: u32,
}

impl Bucket {
    const EMPTY: Self = Self { head: NIL, tail: NIL };
}

/// A cell in the slab. A cell without an item is free, and its `next` is the next free cell.
#[derive(Debug)]
struct WheelEntry<T> {
    due: u64,
    serial: NonZero<u64>,
    prev: u32,
    next: u32,
    item: Option<T>,
}

/// The index that stands for no entry, at the end of a list.
const NIL: u32 = u32::MAX;

/// The number of bits in a word of `occupied`.
const WORD: usize = u64::BITS as usize;

/// The number of cells that an empty wheel keeps. With these cells, a few short-lived entries
/// allocate nothing.
const SPARE: usize = 64;

#[cfg(test)]
mod tests;
