//! A hashed timing wheel: what falls due when, and nothing else.
//!
//! It is a pure structure without a clock, a lock or a thread. Time is a tick, a `u64` that the
//! caller passes in.
//!
//! This is scheme 6 of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987): a ring
//! of slots, where an entry due at tick `d` is in the list of slot `d % slots`.
//!
//! ```text
//! 8 slots, now = 13
//!
//! slot   0    1    2    3    4    5    6    7
//!             17             20   12        15
//!                                 ^         31
//!                                now
//! ```
//!
//! Nearly all entries are cancelled before they are due, or come back at once with a new due tick.
//! A heap would pay a logarithm for each of these and keep the cancelled ones; a hierarchy of
//! wheels would move its entries from level to level. Here inserting and cancelling touch one list.
//! The price is paid by entries more than one turn away: they share slots with near ones, so they
//! are looked at, and left, each time the wheel comes past. That is once a turn, or twice if one
//! [`advance`](Wheel::advance) ends in their slot and the next begins there. Choose the number of
//! slots so that the usual delay is less than a turn.
//!
//! # Invariants
//!
//! - After `advance`, every entry is due later than `now`. So an entry due at `now` or before was
//!   inserted since, and while it lives `now` stands still.
//! - An entry is in the slot of `max(due, now)`. By the line above this never changes while it
//!   lives, so the slot need not be stored.
//! - Entries with the same due tick are in one slot, in the order of insertion.
//! - A slot's bit in `occupied` is set exactly if its list is not empty.
//!
//! # Memory
//!
//! Entries are kept in one slab. A place that becomes free is used again by a later insert; the
//! slab shrinks only when the wheel becomes empty, and then to [`SPARE`] places.

/// Entries that fire when their tick has come.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    /// The tick that the wheel has been advanced to.
    now: u64,
    /// The number of slots less one: `tick & mask` is a tick's slot.
    mask: u64,
    slots: Vec<Slot>,
    /// One bit per slot, to pass over 64 empty slots at once.
    occupied: Vec<u64>,
    entries: Vec<Entry<T>>,
    /// The head of the list of free places in `entries`, linked by `next`.
    free: u32,
    len: usize,
    /// The serial number of the last insert.
    serial: u64,
}

/// Names one insert into one wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    /// Tells this insert from all others that had or will have the same place.
    serial: u64,
}

impl<T> Wheel<T> {
    /// An empty wheel that stands at tick `now`. `slots` is a power of two.
    pub(crate) fn new(now: u64, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "the number of slots must be a power of two");
        Self {
            now,
            mask: slots as u64 - 1,
            slots: vec![Slot::EMPTY; slots],
            occupied: vec![0; slots.div_ceil(WORD)],
            entries: Vec::new(),
            free: NIL,
            len: 0,
            serial: 0,
        }
    }

    /// Adds an entry. One that is due already fires at the next [`advance`](Self::advance), even
    /// if that does not move the time.
    pub(crate) fn insert(&mut self, due: u64, item: T) -> Key {
        let slot = self.slot_of(due);
        let tail = self.slots[slot].tail;
        // 64 bits, so that it never comes round: unlike a count kept in the place, it may be
        // forgotten with the place when the slab shrinks.
        self.serial += 1;
        let serial = self.serial;
        let index = self.place(Entry { due, serial, prev: tail, next: NIL, item: Some(item) });

        // At the tail: entries with the same due tick fire in the order of the list.
        if tail == NIL {
            self.slots[slot].head = index;
            self.occupied[slot / WORD] |= 1 << (slot % WORD);
        } else {
            self.entries[tail as usize].next = index;
        }
        self.slots[slot].tail = index;
        self.len += 1;
        Key { index, serial }
    }

    /// Takes an entry out before it fires. `None` if it has fired or was cancelled already.
    pub(crate) fn cancel(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        // A free place keeps the serial number of its last entry.
        if entry.serial != key.serial || entry.item.is_none() {
            return None;
        }
        let slot = self.slot_of(entry.due);
        self.unlink(slot, key.index);
        self.vacate(key.index)
    }

    /// Moves the time to `now` and appends to `fired` what is due by then, in the order of the due
    /// ticks and, within a tick, of insertion. Time never goes back: a `now` that is less than an
    /// earlier one counts as the earlier one.
    ///
    /// Costs a look at each slot passed, at most one turn however far `now` is away, and at each
    /// entry in them; a jump of more than a turn also sorts what it fires.
    pub(crate) fn advance(&mut self, now: u64, fired: &mut Vec<T>) {
        let now = now.max(self.now);
        // From the slot of the old time on, where the entries are that came too late for it.
        let span = (now - self.now).min(self.mask);
        let mut ready = Vec::new();
        let mut offset = 0;
        while let Some(found) = self.next_occupied(offset, span) {
            let slot = self.slot_at(found);
            let mut index = self.slots[slot].head;
            while index != NIL {
                let entry = &self.entries[index as usize];
                let next = entry.next;
                if entry.due <= now {
                    ready.push((entry.due, index));
                    self.unlink(slot, index);
                }
                index = next;
            }
            offset = found + 1;
        }
        // Only now: until here the old time says which slot is which.
        self.now = now;

        // In order already, but for late entries and jumps of more than a turn. The sort is stable
        // and equal ticks come from one slot, so they stay in the order of insertion.
        ready.sort_by_key(|&(due, _)| due);
        for (_, index) in ready {
            fired.extend(self.vacate(index));
        }
    }

    /// The earliest due tick that is at most `horizon`.
    ///
    /// Costs a look at the slots up to the answer, or to the horizon if there is none, and at each
    /// entry in them. With a horizon of more than a turn this may be every entry of the wheel.
    pub(crate) fn next_due(&self, horizon: u64) -> Option<u64> {
        let span = horizon.saturating_sub(self.now).min(self.mask);
        let mut earliest: Option<u64> = None;
        let mut offset = 0;
        while let Some(found) = self.next_occupied(offset, span) {
            let mut index = self.slots[self.slot_at(found)].head;
            while index != NIL {
                let entry = &self.entries[index as usize];
                earliest = Some(earliest.map_or(entry.due, |due| due.min(entry.due)));
                index = entry.next;
            }
            // The slots ahead hold nothing earlier than their ticks. What is due only in a later
            // turn has still to be compared with them.
            if earliest.is_some_and(|due| due.saturating_sub(self.now) <= found) {
                break;
            }
            offset = found + 1;
        }
        earliest.filter(|&due| due <= horizon)
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot of an entry due at `due`.
    fn slot_of(&self, due: u64) -> usize {
        // The slot of a tick gone by would be passed only at the end of this turn.
        (due.max(self.now) & self.mask) as usize
    }

    /// The slot `offset` ticks ahead.
    fn slot_at(&self, offset: u64) -> usize {
        ((self.now + offset) & self.mask) as usize
    }

    /// The first offset in `offset..=span` whose slot has entries. `span` is less than a turn.
    fn next_occupied(&self, mut offset: u64, span: u64) -> Option<u64> {
        // A wheel of fewer slots than a word has bits comes round within the word.
        let width = self.slots.len().min(WORD);
        while offset <= span {
            let slot = self.slot_at(offset);
            let ahead = self.occupied[slot / WORD] >> (slot % WORD);
            if ahead != 0 {
                let found = offset + u64::from(ahead.trailing_zeros());
                return (found <= span).then_some(found);
            }
            offset += (width - slot % width) as u64;
        }
        None
    }

    /// Puts an entry into a free place.
    fn place(&mut self, entry: Entry<T>) -> u32 {
        let index = self.free;
        if index != NIL {
            let place = &mut self.entries[index as usize];
            self.free = place.next;
            *place = entry;
            return index;
        }
        assert!(self.entries.len() < NIL as usize, "the wheel is full");
        self.entries.push(entry);
        (self.entries.len() - 1) as u32
    }

    /// Takes an entry out of its slot's list. It keeps its place until [`vacate`](Self::vacate).
    fn unlink(&mut self, slot: usize, index: u32) {
        let Entry { prev, next, .. } = self.entries[index as usize];
        if prev == NIL {
            self.slots[slot].head = next;
        } else {
            self.entries[prev as usize].next = next;
        }
        if next == NIL {
            self.slots[slot].tail = prev;
        } else {
            self.entries[next as usize].prev = prev;
        }
        if self.slots[slot].head == NIL {
            self.occupied[slot / WORD] &= !(1 << (slot % WORD));
        }
    }

    /// Frees the place of an entry that is in no list any more.
    fn vacate(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.entries[index as usize];
        let item = entry.item.take();
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
        if self.len == 0 {
            // Clearing looks at each place once, so it is paid for by the inserts that made them.
            self.entries.clear();
            self.entries.shrink_to(SPARE);
            self.free = NIL;
        }
        item
    }
}

/// The list of the entries in a slot, oldest first.
#[derive(Clone, Debug)]
struct Slot {
    head: u32,
    tail: u32,
}

impl Slot {
    const EMPTY: Self = Self { head: NIL, tail: NIL };
}

/// A place in the slab. It is free if it has no item; then `next` is the next free one.
#[derive(Debug)]
struct Entry<T> {
    due: u64,
    serial: u64,
    prev: u32,
    next: u32,
    item: Option<T>,
}

/// No entry: the end of a list.
const NIL: u32 = u32::MAX;

/// The number of bits in a word of `occupied`.
const WORD: usize = u64::BITS as usize;

/// How many places an empty wheel keeps, so that a few entries that come and go allocate nothing.
const SPARE: usize = 64;

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fires_at_its_tick_and_not_before() {
        let mut wheel = Wheel::new(100, 8);
        wheel.insert(103, "a");
        assert_eq!(advance(&mut wheel, 102), [""; 0]);
        assert_eq!(advance(&mut wheel, 103), ["a"]);
        assert_eq!(advance(&mut wheel, 111), [""; 0]);
        assert!(wheel.is_empty());
    }

    #[test]
    fn fires_by_due_tick_then_by_insertion() {
        let mut wheel = Wheel::new(0, 8);
        for (due, item) in [(9, "c"), (2, "a"), (9, "d"), (1, "_"), (25, "e"), (2, "b")] {
            wheel.insert(due, item);
        }
        assert_eq!(advance(&mut wheel, 100), ["_", "a", "b", "c", "d", "e"]);
    }

    #[test]
    fn a_late_entry_fires_at_the_next_advance() {
        let mut wheel = Wheel::new(20, 8);
        wheel.insert(20, "now");
        wheel.insert(3, "late");
        assert_eq!(wheel.next_due(2), None);
        assert_eq!(wheel.next_due(3), Some(3));
        assert_eq!(advance(&mut wheel, 20), ["late", "now"]);
    }

    #[test]
    fn a_late_entry_can_be_cancelled() {
        let mut wheel = Wheel::new(20, 8);
        let key = wheel.insert(3, "late");
        assert_eq!(wheel.cancel(key), Some("late"));
        check(&wheel);
    }

    #[test]
    fn an_entry_of_a_later_turn_lets_the_wheel_pass() {
        let mut wheel = Wheel::new(0, 8);
        wheel.insert(8 * 3 + 1, "far");
        for now in 0..=24 {
            assert_eq!(wheel.next_due(24), None);
            assert_eq!(advance(&mut wheel, now), [""; 0]);
        }
        assert_eq!(advance(&mut wheel, 25), ["far"]);
    }

    #[test]
    fn next_due_prefers_a_near_entry_to_a_far_one_in_an_earlier_slot() {
        let mut wheel = Wheel::new(0, 8);
        wheel.insert(8 + 1, ());
        wheel.insert(5, ());
        assert_eq!(wheel.next_due(4), None);
        assert_eq!(wheel.next_due(1000), Some(5));
    }

    #[test]
    fn time_does_not_go_back() {
        let mut wheel = Wheel::new(0, 8);
        advance(&mut wheel, 50);
        wheel.insert(51, "a");
        wheel.insert(50, "b");
        assert_eq!(advance(&mut wheel, 7), ["b"]);
        assert_eq!(advance(&mut wheel, 51), ["a"]);
    }

    #[test]
    fn a_jump_of_any_size_costs_one_turn() {
        let mut wheel = Wheel::new(0, 1024);
        for due in [u64::MAX, u64::MAX - 1, 1 << 40, 3] {
            wheel.insert(due, due);
        }
        assert_eq!(wheel.next_due(u64::MAX), Some(3));
        assert_eq!(advance(&mut wheel, 1 << 50), [3, 1 << 40]);
        assert_eq!(advance(&mut wheel, u64::MAX - 1), [u64::MAX - 1]);
        assert_eq!(wheel.next_due(u64::MAX), Some(u64::MAX));
        assert_eq!(advance(&mut wheel, u64::MAX), [u64::MAX]);
        wheel.insert(u64::MAX, 0);
        assert_eq!(wheel.next_due(u64::MAX), Some(u64::MAX));
        assert_eq!(advance(&mut wheel, u64::MAX), [0]);
    }

    #[test]
    fn a_turn_passes_every_slot() {
        for slots in [1, 2, 8, 64, 128, 1024] {
            for start in [1, 5, 63, 100] {
                let mut wheel = Wheel::new(start, slots);
                let turn: Vec<_> = (start..start + slots as u64).collect();
                for &due in turn.iter().rev() {
                    wheel.insert(due, due);
                    assert_eq!(wheel.next_due(u64::MAX), Some(due));
                    assert_eq!(wheel.next_due(due - 1), None);
                }
                assert_eq!(advance(&mut wheel, start + slots as u64), turn);
            }
        }
    }

    #[test]
    fn a_scan_does_not_look_beyond_its_end() {
        let mut wheel = Wheel::new(62, 128);
        wheel.insert(67, ());
        assert_eq!(wheel.next_occupied(0, 4), None);
        assert_eq!(wheel.next_occupied(0, 5), Some(5));
        assert_eq!(wheel.next_occupied(5, 127), Some(5));
        assert_eq!(wheel.next_occupied(6, 127), None);
        wheel.insert(63, ());
        wheel.insert(64, ());
        assert_eq!(wheel.next_occupied(0, 0), None);
        assert_eq!(wheel.next_occupied(2, 2), Some(2));
        assert_eq!(wheel.next_occupied(3, 4), None);
    }

    #[test]
    fn fired_is_appended_to() {
        let mut wheel = Wheel::new(0, 8);
        let mut fired = vec!["before"];
        wheel.insert(1, "a");
        wheel.advance(1, &mut fired);
        assert_eq!(fired, ["before", "a"]);
    }

    #[test]
    fn a_stale_key_does_nothing() {
        let mut wheel = Wheel::new(0, 8);
        wheel.insert(5, "stays");
        let cancelled = wheel.insert(1, "a");
        assert_eq!(wheel.cancel(cancelled), Some("a"));
        assert_eq!(wheel.cancel(cancelled), None);

        let fired = wheel.insert(1, "b");
        assert_eq!(fired.index, cancelled.index);
        assert_eq!(wheel.cancel(cancelled), None);
        assert_eq!(advance(&mut wheel, 1), ["b"]);
        assert_eq!(wheel.cancel(fired), None);
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    fn a_key_stays_stale_when_the_slab_was_emptied_and_filled_again() {
        let mut wheel = Wheel::new(0, 8);
        let stale = wheel.insert(1, "a");
        wheel.cancel(stale);
        assert_eq!(wheel.cancel(stale), None);
        let key = wheel.insert(1, "b");
        assert_eq!(key.index, stale.index);
        assert_eq!(wheel.cancel(stale), None);
        assert_eq!(wheel.cancel(key), Some("b"));
    }

    #[test]
    fn places_are_used_again_and_an_empty_wheel_gives_them_back() {
        let mut wheel = Wheel::new(0, 8);
        let stays = wheel.insert(u64::MAX, 0);
        for now in 1..1000 {
            let key = wheel.insert(now + 3, now);
            wheel.insert(now, now);
            wheel.cancel(key);
            check(&wheel);
            advance(&mut wheel, now);
            check(&wheel);
        }
        assert_eq!(wheel.entries.len(), 3);

        let keys: Vec<_> = (0..10_000).map(|item| wheel.insert(u64::MAX, item)).collect();
        for key in keys {
            wheel.cancel(key);
        }
        assert!(wheel.entries.capacity() >= 10_000);
        wheel.cancel(stays);
        assert!(wheel.entries.capacity() <= SPARE);
        check(&wheel);
    }

    #[test]
    fn items_are_dropped_with_the_wheel() {
        let item = Rc::new(());
        let mut wheel = Wheel::new(0, 8);
        wheel.insert(1, item.clone());
        wheel.insert(2, item.clone());
        drop(advance(&mut wheel, 1));
        assert_eq!(Rc::strong_count(&item), 2);
        drop(wheel);
        assert_eq!(Rc::strong_count(&item), 1);
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry<u8>>() <= 40 + size_of::<u8>());
        assert!(size_of::<Entry<u64>>() <= 40 + size_of::<u64>());
        assert!(size_of::<Entry<Rc<()>>>() <= 40 + size_of::<Rc<()>>());
        assert!(size_of::<Entry<[u64; 4]>>() <= 40 + size_of::<[u64; 4]>());
    }

    #[test]
    #[should_panic(expected = "power of two")]
    fn slots_must_be_a_power_of_two() {
        Wheel::<()>::new(0, 1000);
    }

    /// One call. Ticks are relative to the wheel's time, so that they meet its edges.
    #[derive(Clone, Debug)]
    enum Call {
        Insert(Tick),
        /// Cancels one of all the keys ever given out, live or stale.
        Cancel(prop::sample::Index),
        Advance(Tick),
        NextDue(Tick),
    }

    #[derive(Clone, Copy, Debug)]
    enum Tick {
        Before(u64),
        After(u64),
        /// So many turns ahead, and a little more or less.
        Turns(u64, i64),
        At(u64),
    }

    impl Tick {
        fn resolve(self, now: u64, slots: usize) -> u64 {
            match self {
                Self::Before(ticks) => now.saturating_sub(ticks),
                Self::After(ticks) => now.saturating_add(ticks),
                Self::Turns(turns, more) => {
                    now.saturating_add(turns * slots as u64).saturating_add_signed(more)
                }
                Self::At(tick) => tick,
            }
        }
    }

    fn tick() -> impl Strategy<Value = Tick> {
        prop_oneof![
            1 => (0_u64..20).prop_map(Tick::Before),
            8 => (0_u64..20).prop_map(Tick::After),
            3 => (0_u64..4, -2_i64..=2).prop_map(|(turns, more)| Tick::Turns(turns, more)),
            2 => (0_u64..3000).prop_map(Tick::After),
        ]
    }

    fn far_tick() -> impl Strategy<Value = Tick> {
        prop_oneof![
            30 => tick(),
            1 => any::<u64>().prop_map(Tick::At),
            1 => (0..u64::MAX / 8).prop_map(Tick::After),
            1 => (0_u64..3).prop_map(|before| Tick::At(u64::MAX - before)),
        ]
    }

    fn call() -> impl Strategy<Value = Call> {
        prop_oneof![
            8 => far_tick().prop_map(Call::Insert),
            3 => any::<prop::sample::Index>().prop_map(Call::Cancel),
            // Few far ones: they fire all there is.
            4 => tick().prop_map(Call::Advance),
            1 => far_tick().prop_map(Call::Advance),
            4 => far_tick().prop_map(Call::NextDue),
        ]
    }

    /// What the wheel is: a list that is searched from end to end.
    struct Model {
        now: u64,
        /// The due tick and the number of the insert, which is also the item.
        entries: Vec<(u64, usize)>,
    }

    impl Model {
        fn cancel(&mut self, item: usize) -> Option<usize> {
            let at = self.entries.iter().position(|entry| entry.1 == item)?;
            Some(self.entries.remove(at).1)
        }

        fn advance(&mut self, now: u64) -> Vec<usize> {
            self.now = self.now.max(now);
            let mut fired: Vec<_> = self.entries.extract_if(.., |e| e.0 <= self.now).collect();
            fired.sort_unstable();
            fired.into_iter().map(|entry| entry.1).collect()
        }

        fn next_due(&self, horizon: u64) -> Option<u64> {
            self.entries.iter().map(|entry| entry.0).filter(|&due| due <= horizon).min()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn does_what_a_searched_list_does(
            start in prop_oneof![0..5000_u64, any::<u64>(), u64::MAX - 5000..=u64::MAX],
            slots in prop::sample::select(vec![1, 2, 8, 64, 128, 1024]),
            calls in prop::collection::vec(call(), 1..120),
        ) {
            let mut wheel = Wheel::new(start, slots);
            let mut model = Model { now: start, entries: Vec::new() };
            let mut keys = Vec::new();
            for call in calls {
                match call {
                    Call::Insert(due) => {
                        let due = due.resolve(model.now, slots);
                        model.entries.push((due, keys.len()));
                        keys.push(wheel.insert(due, keys.len()));
                    }
                    Call::Cancel(index) => {
                        if !keys.is_empty() {
                            let item = index.index(keys.len());
                            prop_assert_eq!(wheel.cancel(keys[item]), model.cancel(item));
                        }
                    }
                    Call::Advance(now) => {
                        let now = now.resolve(model.now, slots);
                        prop_assert_eq!(advance(&mut wheel, now), model.advance(now));
                    }
                    Call::NextDue(horizon) => {
                        let horizon = horizon.resolve(model.now, slots);
                        prop_assert_eq!(wheel.next_due(horizon), model.next_due(horizon));
                    }
                }
                prop_assert_eq!(wheel.len(), model.entries.len());
                prop_assert_eq!(wheel.is_empty(), model.entries.is_empty());
                check(&wheel);
            }
            prop_assert_eq!(wheel.next_due(u64::MAX), model.next_due(u64::MAX));
            prop_assert_eq!(advance(&mut wheel, u64::MAX), model.advance(u64::MAX));
            check(&wheel);
        }
    }

    fn advance<T>(wheel: &mut Wheel<T>, now: u64) -> Vec<T> {
        let mut fired = Vec::new();
        wheel.advance(now, &mut fired);
        fired
    }

    /// The invariants at the top of this file that can be seen from one state, and that the lists
    /// and the free list together hold each place once.
    fn check<T>(wheel: &Wheel<T>) {
        let mut linked = 0;
        for (slot, list) in wheel.slots.iter().enumerate() {
            let bit = wheel.occupied[slot / WORD] >> (slot % WORD) & 1;
            assert_eq!(bit == 1, list.head != NIL, "the bit of slot {slot}");
            let (mut prev, mut index) = (NIL, list.head);
            while index != NIL {
                let entry = &wheel.entries[index as usize];
                assert!(entry.item.is_some(), "a free place in slot {slot}");
                assert_eq!(wheel.slot_of(entry.due), slot);
                assert_eq!(entry.prev, prev);
                if prev != NIL {
                    assert!(wheel.entries[prev as usize].serial < entry.serial);
                }
                (prev, index) = (index, entry.next);
                linked += 1;
            }
            assert_eq!(list.tail, prev, "the tail of slot {slot}");
        }
        assert_eq!(linked, wheel.len);

        let (mut free, mut index) = (0, wheel.free);
        while index != NIL {
            let entry = &wheel.entries[index as usize];
            assert!(entry.item.is_none(), "an entry in the free list");
            assert!(free < wheel.entries.len(), "the free list is a ring");
            (free, index) = (free + 1, entry.next);
        }
        assert_eq!(linked + free, wheel.entries.len());
    }
}
