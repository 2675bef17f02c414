//! One read-write lock's keys and channels, and its owners.

use crate::random::Random;

/// What a grant says first.
pub(crate) const KINDS: &[&str] = &["read", "write"];

/// One lock: a name in one of a server's databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) database: i64,
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) window: String,
    /// Where releases are told that are everybody's.
    pub(crate) public: String,
    /// Beside the public one, for ours that have a place: so that the others can be counted.
    pub(crate) companion: String,
}

impl Site {
    /// As a plan has it; there are no fencing tokens here.
    pub(crate) fn planned(database: i64, name: &str, _: bool) -> Self {
        Self::new(database, name)
    }

    pub(crate) fn new(database: i64, name: &str) -> Self {
        let public = prefixed("redisson_rwlock", name);
        Self {
            database,
            lock: name.to_owned(),
            queue: own_key("redlatch_rwlock_queue", name),
            window: own_key("redlatch_rwlock_window", name),
            companion: format!("{public}:redlatch"),
            public,
        }
    }
}

fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// `x` and `{x}` would share a key, and a release of one would grant the other.
fn own_key(prefix: &str, name: &str) -> String {
    let tagged = if name.contains('{') { "_tagged" } else { "" };
    prefixed(&format!("{prefix}{tagged}"), name)
}

/// An owner's number: new for each acquisition. The even ones write.
pub(crate) fn next_number(last: u64, random: &mut Random) -> u64 {
    last + random.between(1, 2) as u64
}

/// As it stands in the hash and in the queue.
pub(crate) fn owner(uuid: &str, number: u64) -> String {
    let writes = if number.is_multiple_of(2) { ":write" } else { "" };
    format!("{uuid}:{number}{writes}")
}

/// What begins the name of each reader's timeouts.
pub(crate) fn prefix(lock: &str) -> String {
    if lock.contains('{') { lock.to_owned() } else { format!("{{{lock}}}") }
}

/// A reader's timeouts, without their number.
pub(crate) fn timeouts(lock: &str, owner: &str) -> String {
    format!("{}:{owner}:rwlock_timeout", prefix(lock))
}
