//! Compares the wheel with a naive model, and tests its edge cases.

use std::rc::Rc;

use proptest::prelude::*;

use super::*;

#[test]
fn an_entry_fires_at_its_tick_and_not_before() {
    let mut wheel = Wheel::new(100, 8);
    wheel.insert(103, "a");
    assert_eq!(advance(&mut wheel, 102), [""; 0]);
    assert_eq!(advance(&mut wheel, 103), ["a"]);
    assert_eq!(advance(&mut wheel, 111), [""; 0]);
    assert!(wheel.is_empty());
}

#[test]
fn entries_fire_by_due_tick_then_by_insertion() {
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
fn an_entry_of_a_later_round_lets_the_wheel_pass() {
    let mut wheel = Wheel::new(0, 8);
    wheel.insert(8 * 3 + 1, "far");
    for now in 0..=24 {
        assert_eq!(wheel.next_due(24), None);
        assert_eq!(advance(&mut wheel, now), [""; 0]);
    }
    assert_eq!(advance(&mut wheel, 25), ["far"]);
}

#[test]
fn next_due_prefers_a_near_entry_to_a_far_one_in_an_earlier_bucket() {
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
fn a_jump_of_any_size_costs_one_round() {
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
fn a_round_of_the_wheel_passes_every_bucket() {
    for buckets in [1, 2, 8, 64, 128, 1024] {
        for start in [1, 5, 63, 100] {
            let mut wheel = Wheel::new(start, buckets);
            let round: Vec<_> = (start..start + buckets as u64).collect();
            for &due in round.iter().rev() {
                wheel.insert(due, due);
                assert_eq!(wheel.next_due(u64::MAX), Some(due));
                assert_eq!(wheel.next_due(due - 1), None);
            }
            assert_eq!(advance(&mut wheel, start + buckets as u64), round);
        }
    }
}

#[test]
fn a_scan_for_the_next_due_does_not_look_beyond_its_end() {
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
fn advance_appends_to_the_fired_entries() {
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
fn cells_are_used_again_and_an_empty_wheel_gives_them_back() {
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
    assert!(size_of::<WheelEntry<u8>>() <= 40 + size_of::<u8>());
    assert!(size_of::<WheelEntry<u64>>() <= 40 + size_of::<u64>());
    assert!(size_of::<WheelEntry<Rc<()>>>() <= 40 + size_of::<Rc<()>>());
    assert!(size_of::<WheelEntry<[u64; 4]>>() <= 40 + size_of::<[u64; 4]>());
}

#[test]
#[should_panic(expected = "power of two")]
fn buckets_must_be_a_power_of_two() {
    Wheel::<()>::new(0, 1000);
}

/// One call of the wheel. Ticks are relative to the wheel's time, so that random calls reach edge
/// cases.
#[derive(Clone, Debug)]
enum WheelCall {
    Insert(Tick),
    /// Cancels one of the keys that inserts have returned. The key may be live or stale.
    Cancel(prop::sample::Index),
    Advance(Tick),
    NextDue(Tick),
}

#[derive(Clone, Copy, Debug)]
enum Tick {
    Before(u64),
    After(u64),
    /// A tick that is this many rounds ahead, plus or minus a few ticks.
    Rounds(u64, i64),
    At(u64),
}

impl Tick {
    fn resolve(self, now: u64, buckets: usize) -> u64 {
        match self {
            Self::Before(ticks) => now.saturating_sub(ticks),
            Self::After(ticks) => now.saturating_add(ticks),
            Self::Rounds(rounds, more) => {
                now.saturating_add(rounds * buckets as u64).saturating_add_signed(more)
            }
            Self::At(tick) => tick,
        }
    }
}

fn tick() -> impl Strategy<Value = Tick> {
    prop_oneof![
        1 => (0_u64..20).prop_map(Tick::Before),
        8 => (0_u64..20).prop_map(Tick::After),
        3 => (0_u64..4, -2_i64..=2).prop_map(|(rounds, more)| Tick::Rounds(rounds, more)),
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

fn call() -> impl Strategy<Value = WheelCall> {
    prop_oneof![
        8 => far_tick().prop_map(WheelCall::Insert),
        3 => any::<prop::sample::Index>().prop_map(WheelCall::Cancel),
        // Jumps over rounds are rare, because such a jump fires most entries.
        4 => tick().prop_map(WheelCall::Advance),
        1 => far_tick().prop_map(WheelCall::Advance),
        4 => far_tick().prop_map(WheelCall::NextDue),
    ]
}

/// A naive wheel: a list that each call searches from end to end.
struct Model {
    now: u64,
    /// The due tick, and the number of the insert, which is also the item.
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
    fn the_wheel_fires_as_a_searched_list_would(
        start in prop_oneof![0..5000_u64, any::<u64>(), u64::MAX - 5000..=u64::MAX],
        buckets in prop::sample::select(vec![1, 2, 8, 64, 128, 1024]),
        calls in prop::collection::vec(call(), 1..120),
    ) {
        let mut wheel = Wheel::new(start, buckets);
        let mut model = Model { now: start, entries: Vec::new() };
        let mut keys = Vec::new();
        for call in calls {
            match call {
                WheelCall::Insert(due) => {
                    let due = due.resolve(model.now, buckets);
                    model.entries.push((due, keys.len()));
                    keys.push(wheel.insert(due, keys.len()));
                }
                WheelCall::Cancel(index) => {
                    if !keys.is_empty() {
                        let item = index.index(keys.len());
                        prop_assert_eq!(wheel.cancel(keys[item]), model.cancel(item));
                    }
                }
                WheelCall::Advance(now) => {
                    let now = now.resolve(model.now, buckets);
                    prop_assert_eq!(advance(&mut wheel, now), model.advance(now));
                }
                WheelCall::NextDue(horizon) => {
                    let horizon = horizon.resolve(model.now, buckets);
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

/// Checks the invariants at the top of `wheel.rs`, as far as one state can show them. Also checks
/// that each cell is in exactly one list: a bucket's list or the free list.
fn check<T>(wheel: &Wheel<T>) {
    let mut linked = 0;
    for (bucket, list) in wheel.buckets.iter().enumerate() {
        let bit = wheel.occupied[bucket / WORD] >> (bucket % WORD) & 1;
        assert_eq!(bit == 1, list.head != NIL, "the bit of bucket {bucket}");
        let (mut prev, mut index) = (NIL, list.head);
        while index != NIL {
            let entry = &wheel.entries[index as usize];
            assert!(entry.item.is_some(), "a free cell in bucket {bucket}");
            assert_eq!(wheel.bucket_of(entry.due), bucket);
            assert_eq!(entry.prev, prev);
            if prev != NIL {
                assert!(wheel.entries[prev as usize].serial < entry.serial);
            }
            (prev, index) = (index, entry.next);
            linked += 1;
        }
        assert_eq!(list.tail, prev, "the tail of bucket {bucket}");
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
