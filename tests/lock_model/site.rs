//! One lock's keys and channels, and its owners.

use crate::random::Random;

/// What a grant says first.
pub(crate) const KINDS: &[&str] = &["lock"];

/// One lock: a name in one of a server's databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) database: i64,
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) window: String,
    /// Of a lock that has fencing tokens.
    pub(crate) tokens: Option<String>,
    /// Where releases are told that are everybody's.
    pub(crate) public: String,
    /// Beside the public one, for ours that have a place: so that the others can be counted.
    pub(crate) companion: String,
}

impl Site {
    pub(crate) fn new(database: i64, name: &str) -> Self {
        let public = prefixed("redisson_lock__channel", name);
        Self {
            database,
            lock: name.to_owned(),
            queue: own_key("redlatch_queue", name),
            window: own_key("redlatch_window", name),
            tokens: None,
            companion: format!("{public}:redlatch"),
            public,
        }
    }

    /// As a plan has it.
    pub(crate) fn planned(database: i64, name: &str, is_fenced: bool) -> Self {
        let site = Self::new(database, name);
        if is_fenced { site.fenced() } else { site }
    }

    /// The same name as that of a lock with fencing tokens.
    pub(crate) fn fenced(self) -> Self {
        Self { tokens: Some(prefixed("redisson_lock_token", &self.lock)), ..self }
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

/// An owner's number: new for each acquisition.
pub(crate) fn next_number(last: u64, _: &mut Random) -> u64 {
    last + 1
}

pub(crate) fn owner(uuid: &str, number: u64) -> String {
    format!("{uuid}:{number}")
}
