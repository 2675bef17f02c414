//! The keys and channels of one lock.

use super::kind::{Kind, Prefixes};
use super::store::Place;

/// A lock: a name in one of a server's databases.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) kind: &'static dyn Kind,
    pub(crate) database: i64,
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) window: String,
    /// The token key of a lock with fencing tokens.
    pub(crate) tokens: Option<String>,
    /// The channel for releases that concern all clients.
    pub(crate) public: String,
    /// The companion of the public channel. Redlatch clients with an entry subscribe to it, so that
    /// scripts can count the other subscribers of the public channel.
    pub(crate) companion: String,
}

impl Site {
    pub(crate) fn new(kind: &'static dyn Kind, database: i64, name: &str) -> Self {
        let Prefixes { queue, window, public } = kind.prefixes();
        let public = prefixed(public, name);
        Self {
            kind,
            database,
            lock: name.to_owned(),
            queue: own_key(queue, name),
            window: own_key(window, name),
            tokens: None,
            companion: format!("{public}:redlatch"),
            public,
        }
    }

    /// Returns the site of a lock of this name with fencing tokens.
    pub(crate) fn fenced(self) -> Self {
        Self { tokens: Some(prefixed("redisson_lock_token", &self.lock)), ..self }
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place { database: self.database, keys: [&self.lock, &self.queue, &self.window] }
    }

    /// Returns the keys in the order in which scripts get them.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = [&self.lock, &self.queue, &self.window].into_iter().chain(&self.tokens);
        keys.cloned().collect()
    }
}

fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// If `x` and `{x}` shared this key, a release of one lock would grant the other lock.
fn own_key(prefix: &str, name: &str) -> String {
    let tagged = if name.contains('{') { "_tagged" } else { "" };
    prefixed(&format!("{prefix}{tagged}"), name)
}
