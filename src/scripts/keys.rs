//! The keys and channels of a synchronizer's name, in Redisson's format.

use redlatch_client::Pieces;

use super::Mode;

/// `prefix:{name}`, or `prefix:name` if the name has a brace of its own. `prefix` ends with `:{`, so
/// that most keys need only three pieces.
///
/// As in Redisson, any `{` in the name is such a brace, even if it begins no hash tag. Nothing is
/// escaped.
fn pieces<'a>(prefix: &'a str, name: &'a str) -> Pieces<'a> {
    if has_brace(name) {
        Pieces::of([prefix.trim_end_matches('{'), name, ""])
    } else {
        Pieces::of([prefix, name, "}"])
    }
}

fn prefixed(prefix: &str, name: &str) -> String {
    pieces(prefix, name).to_string()
}

/// Like [`pieces`], for a key that only redlatch uses. A name with a brace gives
/// `prefix_tagged:name`, because the names `x` and `{x}` must not share a key of redlatch: a
/// release of one lock would grant this lock to a waiter for the other lock.
fn ours<'a>(prefix: &'a str, name: &'a str) -> Pieces<'a> {
    all_ours([prefix], name)[0]
}

fn all_ours<'a, const N: usize>(prefixes: [&'a str; N], name: &'a str) -> [Pieces<'a>; N] {
    if has_brace(name) {
        prefixes.map(|prefix| Pieces::of([prefix.trim_end_matches(":{"), "_tagged:", name]))
    } else {
        prefixes.map(|prefix| Pieces::of([prefix, name, "}"]))
    }
}

fn has_brace(name: &str) -> bool {
    // For names, which are short, this search is faster than that of a `str`.
    name.as_bytes().contains(&b'{')
}

/// `{name}:suffix`, or `name:suffix` if the name has a brace of its own.
fn suffixed(name: &str, suffix: &str) -> String {
    if name.contains('{') { format!("{name}:{suffix}") } else { format!("{{{name}}}:{suffix}") }
}

/// Makes a key or a channel from a name.
pub(crate) type KeyOf = fn(&str) -> String;

/// Returns the text that `make` adds before and after a name that has a brace.
fn around(make: KeyOf) -> (String, String) {
    let shape = make("{");
    let (before, after) = shape.rsplit_once('{').unwrap_or_default();
    (before.to_owned(), after.to_owned())
}

/// Returns the name for which `make` returns this key or channel. If there are two such names,
/// returns the name without braces.
pub(crate) fn name_of(key: &str, make: KeyOf) -> Option<String> {
    let (before, after) = around(make);
    let name = key.strip_prefix(&*before)?.strip_suffix(&*after)?;
    let inner = name.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    let mut names = inner.into_iter().chain([name]);
    names.find(|name| make(name) == key).map(str::to_owned)
}

/// Returns the patterns for the keys of all names that match this pattern. The key of a name with a
/// brace has no added braces, even if the pattern itself has no brace. The second pattern matches
/// such keys.
pub(crate) fn patterns(pattern: &str, make: KeyOf) -> Vec<String> {
    let (before, after) = around(make);
    let mut patterns = vec![make(pattern), format!("{before}{pattern}{after}")];
    patterns.dedup();
    patterns
}

const CHANNEL: &str = "redisson_lock__channel:{";

/// Whether all keys of a name are in one slot of a cluster.
pub(crate) fn has_one_slot(name: &str, slot_of: fn(&[u8]) -> u16) -> bool {
    !name.contains(['{', '}'])
        || slot_of(name.as_bytes()) == slot_of(prefixed(":{", name).as_bytes())
}

/// The keys and channels of one lock, except the key that is the lock's name. The keys are made for
/// each request, because stored keys would take a third of a hold's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockKeys<'a> {
    pub(super) name: &'a str,
    pub(super) mode: Mode,
    pub(crate) is_fenced: bool,
}

impl<'a> LockKeys<'a> {
    pub(crate) fn new(name: &'a str, mode: Mode, is_fenced: bool) -> Self {
        Self { name, mode, is_fenced }
    }

    /// The key of the queue of waiting processes. Only redlatch uses this key.
    pub(crate) fn queue(self) -> Pieces<'a> {
        self.queue_and_window()[0]
    }

    /// The key that exists while a window is open. In a window, only Redisson's clients take the
    /// lock. Only redlatch uses this key.
    pub(crate) fn window(self) -> Pieces<'a> {
        self.queue_and_window()[1]
    }

    fn queue_and_window(self) -> [Pieces<'a>; 2] {
        let is_plain = self.mode == Mode::Lock;
        let plain = ["redlatch_queue:{", "redlatch_window:{"];
        let read_write = ["redlatch_rwlock_queue:{", "redlatch_rwlock_window:{"];
        all_ours(if is_plain { plain } else { read_write }, self.name)
    }

    /// The channel on which a release informs all listeners.
    pub(crate) fn public(self) -> Pieces<'a> {
        let prefix = if self.mode == Mode::Lock { CHANNEL } else { "redisson_rwlock:{" };
        pieces(prefix, self.name)
    }

    /// A second channel, to which each redlatch client subscribes together with the
    /// [`public`](Self::public) channel. Redisson's clients do not, so scripts can compute the
    /// number of Redisson's subscribers.
    pub(crate) fn companion(self) -> String {
        format!("{}:redlatch", self.public())
    }

    /// The key of the last fencing token, if the lock [has tokens](Self::is_fenced).
    pub(crate) fn tokens(self) -> Pieces<'a> {
        pieces("redisson_lock_token:{", self.name)
    }

    /// The KEYS of the lock's scripts, and their number.
    pub(super) fn of_scripts(self) -> ([Pieces<'a>; 4], usize) {
        let (name, [queue, window]) = (self.name.as_bytes().into(), self.queue_and_window());
        let tokens = if self.is_fenced { self.tokens() } else { name };
        ([name, queue, window, tokens], if self.is_fenced { 4 } else { 3 })
    }
}

impl LockKeys<'_> {
    /// The key that exists as long as an owner reads. Scripts also make this key themselves.
    pub(crate) fn read_timeout(name: &str, owner: &str) -> String {
        suffixed(name, &format!("{owner}:rwlock_timeout:1"))
    }

    /// The prefix of each [`read_timeout`](Self::read_timeout) of a lock.
    pub(crate) fn readers(name: &str) -> String {
        suffixed(name, "")
    }

    /// The channel for releases.
    pub(crate) fn channel(name: &str) -> String {
        prefixed(CHANNEL, name)
    }

    /// The client's own channel, on which scripts send messages to its owners, and on which the
    /// client sends control messages to itself. The channel has the prefix of locks' channels, so
    /// that access rights made for Redisson allow it. Scripts make this channel in
    /// `lua/prelude.lua`.
    pub(crate) fn control_channel(client: &str) -> String {
        prefixed(CHANNEL, &format!("redlatch:{client}"))
    }

    /// Returns a channel of a cluster, on which no client publishes. All clients with the same
    /// value of `sharded` subscribe to this channel. A client with the other value queries the
    /// number of its subscribers.
    pub(crate) fn common_channel(sharded: bool) -> String {
        Self::control_channel(if sharded { "spublish" } else { "publish" })
    }

    /// The counterpart of [`control_channel`](Self::control_channel) for a cluster, where the
    /// channel must be in the slot of the script's first key.
    pub(crate) fn own_channel(key: &str, client: &str) -> String {
        format!("{}:{{redlatch:{client}}}", Self::channel(key))
    }
}

/// The keys and channels of one fair lock, except the key that is the lock's name.
#[derive(Debug)]
pub(crate) struct FairKeys {
    /// The key of the queue of waiting owners.
    pub(crate) queue: String,
    /// The key of the waiting owners' scores: the times until which the owners count as alive.
    pub(crate) timeouts: String,
    /// The key that stores the last waiter of the queue, while all waiters are clients of redlatch.
    /// Only redlatch uses this key. The key has the prefix of `timeouts`, so that access rights
    /// made for Redisson allow it.
    pub(crate) only_ours: String,
    /// The prefix of waiters' channels. The owner's id comes after it. Each Redisson waiter listens
    /// to such a channel, and so does each redlatch waiter that a Redisson client may wake.
    pub(crate) channel_prefix: String,
}

impl FairKeys {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            queue: prefixed("redisson_lock_queue:{", name),
            timeouts: prefixed("redisson_lock_timeout:{", name),
            only_ours: format!("{}:redlatch", prefixed("redisson_lock_timeout:{", name)),
            channel_prefix: format!("{}:", LockKeys::channel(name)),
        }
    }
}

/// The keys of one condition of a lock, which only redlatch uses.
#[derive(Clone, Debug)]
pub(crate) struct ConditionKeys {
    /// The key of the list of waiters.
    pub(crate) waiting: String,
    /// The key of the notified waiters that have not yet taken and released the lock again.
    pub(crate) notified: String,
}

impl ConditionKeys {
    const WAITING: &str = "redlatch_condition";
    const NOTIFIED: &str = "redlatch_notified";

    /// Returns the keys of a condition. A key ends with a length, so that any two conditions have
    /// different keys.
    pub(crate) fn new(lock: &str, condition: &str) -> Self {
        let key = |prefix: &str| {
            let key = ours(&format!("{prefix}:{{"), lock).to_string();
            format!("{key}:{condition}:{}", condition.len())
        };
        Self { waiting: key(Self::WAITING), notified: key(Self::NOTIFIED) }
    }

    /// Returns both keys of a condition. `waiting` is the first key, from a message.
    pub(crate) fn of(waiting: &str) -> Option<Self> {
        let names = waiting.strip_prefix(Self::WAITING)?;
        let notified = format!("{}{names}", Self::NOTIFIED);
        Some(Self { waiting: waiting.to_owned(), notified })
    }
}

/// The channel of one semaphore, and its keys except the key that is the semaphore's name.
#[derive(Debug)]
pub(crate) struct SemaphoreKeys;

impl SemaphoreKeys {
    /// The channel on which each change of the permits is published.
    pub(crate) fn channel(name: &str) -> String {
        prefixed("redisson_sc:{", name)
    }

    /// The key of the mark: see `lua/semaphore/mark.lua`.
    pub(crate) fn mark(name: &str) -> String {
        ours("redlatch_mark:{", name).to_string()
    }
}

/// The keys of one expirable semaphore, except the key that is the semaphore's name. An expirable
/// semaphore has the same channel as a plain semaphore.
#[derive(Debug)]
pub(crate) struct ExpirableKeys;

impl ExpirableKeys {
    /// The key with the times at which the leases of taken permits end.
    pub(crate) fn timeouts(name: &str) -> String {
        suffixed(name, "timeout")
    }

    /// Returns the other name with the same `timeouts` key (`x` and `{x}` share one), if there is
    /// one.
    pub(crate) fn twin(name: &str) -> Option<String> {
        if !name.contains('{') {
            return Some(format!("{{{name}}}"));
        }
        let twin = name.strip_prefix('{')?.strip_suffix('}')?;
        (!twin.contains('{')).then(|| twin.to_owned())
    }
}

#[derive(Debug)]
pub(crate) struct LatchKeys;

impl LatchKeys {
    /// The channel of the messages that the count has become zero or was set. The name is always
    /// put in braces, even if it already has braces.
    pub(crate) fn channel(name: &str) -> String {
        format!("redisson_countdownlatch__channel__{{{name}}}")
    }
}

/// The keys and the channel of one barrier, which only redlatch uses.
#[derive(Debug)]
pub(crate) struct BarrierKeys {
    /// The key of the barrier's generations.
    pub(crate) barrier: String,
    /// The key of the parties that have arrived.
    pub(crate) parties: String,
    /// The channel of the messages about the end of a generation: the first key, then the number of
    /// the database if that is not 0. (All databases share their channels.)
    pub(crate) channel: String,
}

impl BarrierKeys {
    pub(crate) fn new(name: &str, database: i64) -> Self {
        let barrier = ours("redlatch_barrier:{", name).to_string();
        let parties = ours("redlatch_parties:{", name).to_string();
        let channel = if database == 0 { barrier.clone() } else { format!("{barrier}:{database}") };
        Self { barrier, parties, channel }
    }

    pub(crate) fn both(&self) -> [&[u8]; 2] {
        [self.barrier.as_bytes(), self.parties.as_bytes()]
    }
}

/// The key and the channel of one election, which only redlatch uses. The keys and channels of the
/// election's lock are not included.
#[derive(Debug)]
pub(crate) struct ElectionKeys;

impl ElectionKeys {
    /// The key of the recorded leader. The channel of the messages about a change of the leader has
    /// the same name.
    pub(crate) fn leader(name: &str) -> String {
        ours("redlatch_leader:{", name).to_string()
    }
}

/// The key of the records of a client's requests to one semaphore, latch or barrier. Only redlatch
/// uses it.
pub(crate) fn requests(name: &str, client: &str) -> String {
    format!("{}:{client}", prefixed("redlatch_request:{", name))
}

/// The key that exists for a second after a client has queried why the waiters of a name wait. Only
/// redlatch uses this key.
pub(crate) fn slow_wait(name: &str) -> Pieces<'_> {
    ours("redlatch_slow_wait:{", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_a_queue_of_its_own() {
        let [plain, tagged] = ["x", "{x}"].map(|name| LockKeys::new(name, Mode::Lock, false));
        assert_eq!(plain.queue().to_string(), "redlatch_queue:{x}");
        assert_eq!(plain.window().to_string(), "redlatch_window:{x}");
        assert_eq!(tagged.queue().to_string(), "redlatch_queue_tagged:{x}");
        assert_eq!(tagged.window().to_string(), "redlatch_window_tagged:{x}");
        assert_eq!(plain.public().to_string(), tagged.public().to_string(), "as with Redisson");
        assert_eq!(plain.companion(), "redisson_lock__channel:{x}:redlatch");
        let fenced = LockKeys::new("x", Mode::Lock, true);
        assert_eq!(fenced.tokens().to_string(), "redisson_lock_token:{x}");
    }

    #[test]
    fn a_read_write_lock_has_a_queue_and_a_channel_of_its_own() {
        let keys = LockKeys::new("x", Mode::Read, false);
        assert_eq!(keys.queue().to_string(), "redlatch_rwlock_queue:{x}");
        assert_eq!(keys.window().to_string(), "redlatch_rwlock_window:{x}");
        assert_eq!(keys.public().to_string(), "redisson_rwlock:{x}");
        assert_eq!(keys.companion(), "redisson_rwlock:{x}:redlatch");
        let tagged = LockKeys::new("{x}", Mode::Write, false);
        assert_eq!(tagged.queue().to_string(), "redlatch_rwlock_queue_tagged:{x}");
        assert_eq!(LockKeys::read_timeout("x", "id:1"), "{x}:id:1:rwlock_timeout:1");
        assert_eq!(LockKeys::read_timeout("{x}y", "id:1"), "{x}y:id:1:rwlock_timeout:1");
    }

    #[test]
    fn a_fair_lock_has_redissons_keys() {
        let keys = FairKeys::new("l");
        assert_eq!(keys.queue, "redisson_lock_queue:{l}");
        assert_eq!(keys.timeouts, "redisson_lock_timeout:{l}");
        assert_eq!(keys.only_ours, "redisson_lock_timeout:{l}:redlatch");
        assert_eq!(keys.channel_prefix, "redisson_lock__channel:{l}:");
        assert_eq!(FairKeys::new("{a}b").queue, "redisson_lock_queue:{a}b");
    }

    #[test]
    fn behind_a_prefix_without_braces_a_names_own_braces_choose_the_slot() {
        let slot = |key: &str| redlatch_client::slot_of(key.as_bytes());
        let keys = LockKeys::new("shop:{orders}:17", Mode::Lock, true);
        for key in [keys.name, &*keys.queue().to_string(), &*keys.tokens().to_string()] {
            assert_eq!(slot(key), slot("orders"), "{key}");
        }
        assert!(has_one_slot(keys.name, redlatch_client::slot_of));
    }

    #[test]
    fn no_two_conditions_share_a_key() {
        let keys = ConditionKeys::new("x", "full");
        assert_eq!(keys.waiting, "redlatch_condition:{x}:full:4");
        assert_eq!(keys.notified, "redlatch_notified:{x}:full:4");
        assert_eq!(ConditionKeys::of(&keys.waiting).unwrap().notified, keys.notified);
        assert!(ConditionKeys::of("redlatch_queue:{x}").is_none());
        let tagged = ConditionKeys::new("{x}", "full");
        assert_eq!(tagged.waiting, "redlatch_condition_tagged:{x}:full:4");
        assert_eq!(ConditionKeys::of(&tagged.waiting).unwrap().notified, tagged.notified);
        let same_but_for_the_seam =
            [("a", "b}:c"), ("a}:b", "c"), ("a", "b}:c:1"), ("a}:b:4", "1")];
        let keys = same_but_for_the_seam.map(|(lock, name)| ConditionKeys::new(lock, name).waiting);
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    }

    #[test]
    fn a_barriers_keys_have_our_prefix() {
        let keys = BarrierKeys::new("x", 0);
        assert_eq!(keys.barrier, "redlatch_barrier:{x}");
        assert_eq!(keys.parties, "redlatch_parties:{x}");
        assert_eq!(keys.channel, keys.barrier);
        assert_eq!(BarrierKeys::new("x", 3).channel, "redlatch_barrier:{x}:3");
        assert_eq!(BarrierKeys::new("{x}", 0).parties, "redlatch_parties_tagged:{x}");
    }

    #[test]
    fn an_expirable_semaphore_has_redissons_keys() {
        assert_eq!(ExpirableKeys::timeouts("s"), "{s}:timeout");
        assert_eq!(ExpirableKeys::timeouts("{a}b"), "{a}b:timeout");
        assert_eq!(ExpirableKeys::timeouts("a}b"), "{a}b}:timeout");
    }

    #[test]
    fn the_other_channels_are_redissons() {
        assert_eq!(SemaphoreKeys::channel("s"), "redisson_sc:{s}");
        assert_eq!(SemaphoreKeys::channel("{a}b"), "redisson_sc:{a}b");
        assert_eq!(SemaphoreKeys::mark("s"), "redlatch_mark:{s}");
        assert_eq!(SemaphoreKeys::mark("{s}"), "redlatch_mark_tagged:{s}");
        assert_eq!(LatchKeys::channel("l"), "redisson_countdownlatch__channel__{l}");
        assert_eq!(LatchKeys::channel("{a}b"), "redisson_countdownlatch__channel__{{a}b}");
    }

    #[test]
    fn names_are_found_by_their_keys_and_channels() {
        let keys: [fn(&str) -> String; 4] =
            [str::to_owned, ExpirableKeys::timeouts, SemaphoreKeys::channel, LatchKeys::channel];
        for key in keys {
            for name in ["a", "a:b", "{a}b", "b{a}", "a}b"] {
                assert_eq!(name_of(&key(name), key).unwrap(), name);
            }
            // If two names have this key, `name_of` returns the name without braces.
            let twin = name_of(&key("{a}"), key).unwrap();
            assert_eq!(twin, if key("a") == key("{a}") { "a" } else { "{a}" });
        }
        assert_eq!(name_of("of another program", SemaphoreKeys::channel), None);
    }

    /// The keys and channels in this test were read from real Redisson clients.
    #[test]
    fn channels_are_redissons() {
        for (name, channel) in [
            ("myLock", "redisson_lock__channel:{myLock}"),
            ("a:b", "redisson_lock__channel:{a:b}"),
            ("é\" x", "redisson_lock__channel:{é\" x}"),
            ("a{b}c", "redisson_lock__channel:a{b}c"),
            ("{}a", "redisson_lock__channel:{}a"),
            ("a{b", "redisson_lock__channel:a{b"),
            ("a}b", "redisson_lock__channel:{a}b}"),
        ] {
            assert_eq!(LockKeys::channel(name), channel);
        }
    }
}
