//! The keys of a server in this process: their values, and the times when they end.

use std::collections::{BTreeMap, VecDeque};

use redis::Value;

use crate::peers::Peers;
use crate::resp::refusal;

/// All keys. The store has only the types that the scripts use, so it has no sets and no streams.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// The map is sorted: a test has few keys, and a sorted map finds them faster than a hash map.
    entries: BTreeMap<Vec<u8>, Entry>,
    /// If there are this many entries, the store removes the entries that have ended.
    sweep_at: usize,
    /// The state of the random numbers.
    random: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) kept: Kept,
    /// The last millisecond in which the key exists.
    pub(super) ends: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kept {
    Text(Vec<u8>),
    /// In the order in which the fields were set, as a server keeps small hashes.
    Hash(Vec<(Vec<u8>, Vec<u8>)>),
    List(VecDeque<Vec<u8>>),
    /// By score, and then by the bytes of the member.
    Sorted(Vec<(f64, Vec<u8>)>),
}

impl Kept {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Sorted(_) => "zset",
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::List(elements) => elements.is_empty(),
            Self::Sorted(members) => members.is_empty(),
        }
    }
}

/// A type of value.
pub(super) trait ValueKind: Sized {
    fn of(kept: &mut Kept) -> Option<&mut Self>;
    fn empty() -> Kept;
}

macro_rules! kinds {
    ($($variant:ident $kind:ty;)+) => {
        $(impl ValueKind for $kind {
            fn of(kept: &mut Kept) -> Option<&mut Self> {
                match kept {
                    Kept::$variant(value) => Some(value),
                    _ => None,
                }
            }

            fn empty() -> Kept {
                Kept::$variant(Self::default())
            }
        })+
    };
}

kinds! {
    Text Vec<u8>;
    Hash Vec<(Vec<u8>, Vec<u8>)>;
    List VecDeque<Vec<u8>>;
    Sorted Vec<(f64, Vec<u8>)>;
}

impl Store {
    /// The key's entry. Returns `None` if the key has ended by `now`, in ms.
    pub(super) fn entry(&mut self, peers: &mut Peers, now: i64, key: &[u8]) -> Option<&mut Entry> {
        if self.entries.get(key)?.ends.is_some_and(|ends| ends < now) {
            self.entries.remove(key);
            peers.changed(key);
            return None;
        }
        self.entries.get_mut(key)
    }

    /// The value under a key. Returns `None` if there is no key, and an error if the key has
    /// another type.
    pub(super) fn value<T: ValueKind>(
        &mut self,
        peers: &mut Peers,
        now: i64,
        key: &[u8],
    ) -> Result<Option<&mut T>, Value> {
        match self.entry(peers, now, key) {
            Some(entry) => T::of(&mut entry.kept).map(Some).ok_or_else(wrong_type),
            None => Ok(None),
        }
    }

    /// Like [`value`](Self::value), but makes the key if there is none.
    pub(super) fn value_or_new<T: ValueKind>(
        &mut self,
        peers: &mut Peers,
        now: i64,
        key: &[u8],
    ) -> Result<&mut T, Value> {
        if self.entry(peers, now, key).is_none() {
            self.insert(now, key, T::empty(), None);
        }
        let entry = self.entries.get_mut(key);
        entry.and_then(|entry| T::of(&mut entry.kept)).ok_or_else(wrong_type)
    }

    pub(super) fn insert(&mut self, now: i64, key: &[u8], kept: Kept, ends: Option<i64>) {
        if self.entries.len() >= self.sweep_at {
            self.entries.retain(|_, entry| entry.ends.is_none_or(|ends| ends >= now));
            self.sweep_at = 2 * self.entries.len() + 1_000;
        }
        self.entries.insert(key.to_vec(), Entry { kept, ends });
    }

    /// Notes that the key's value has changed. Removes the key if the value is empty.
    pub(super) fn changed(&mut self, peers: &mut Peers, key: &[u8]) {
        if self.entries.get(key).is_some_and(|entry| entry.kept.is_empty()) {
            self.entries.remove(key);
        }
        peers.changed(key);
    }

    pub(super) fn remove(&mut self, peers: &mut Peers, now: i64, key: &[u8]) -> bool {
        let existed = self.entry(peers, now, key).is_some();
        if existed {
            self.entries.remove(key);
            peers.changed(key);
        }
        existed
    }

    pub(super) fn clear(&mut self, peers: &mut Peers) {
        std::mem::take(&mut self.entries).keys().for_each(|key| peers.changed(key));
    }

    /// The time when the key ends, in ms. Returns `None` if the key does not end or does not exist.
    pub(super) fn ends(&self, key: &[u8]) -> Option<i64> {
        self.entries.get(key)?.ends
    }

    /// All keys that have not ended, in ascending order.
    pub(super) fn all(&self, now: i64) -> Vec<(&[u8], &Entry)> {
        let lives = |entry: &Entry| entry.ends.is_none_or(|ends| ends >= now);
        let entries = self.entries.iter().filter(|(_, entry)| lives(entry));
        entries.map(|(key, entry)| (key.as_slice(), entry)).collect()
    }

    /// Returns a random number less than `below`. Each run of the program gets the same numbers.
    pub(super) fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % below.max(1)
    }
}

fn wrong_type() -> Value {
    refusal("WRONGTYPE Operation against a key holding the wrong kind of value")
}
