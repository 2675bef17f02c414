//! The kinds of locks that both libraries have.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Fair,
    Read,
    Write,
    Fenced,
}

impl Kind {
    /// Returns the kinds with one holder that this version of Redisson has.
    pub(crate) fn exclusive(version: Version) -> Vec<Self> {
        let mut kinds = vec![Self::Plain, Self::Fair, Self::Write];
        if version == Version::New {
            kinds.push(Self::Fenced);
        }
        kinds
    }

    pub(crate) fn all(version: Version) -> Vec<Self> {
        let mut kinds = Self::exclusive(version);
        kinds.push(Self::Read);
        kinds
    }

    /// Returns the kind's name in a command of the Java program.
    pub(crate) fn java(self) -> &'static str {
        match self {
            Self::Plain => "lock",
            Self::Fair => "fairLock",
            Self::Read => "readLock",
            Self::Write => "writeLock",
            Self::Fenced => "fencedLock",
        }
    }

    pub(crate) fn of_java(word: &str) -> Self {
        let all = Self::all(Version::New);
        all.into_iter().find(|kind| kind.java() == word).expect("a kind that both have")
    }

    /// Returns the end of a command: the kind and the name.
    pub(crate) fn named(self, name: &str) -> String {
        format!("{} {}", self.java(), quoted(name))
    }

    /// Returns redlatch's lock of this kind.
    pub(crate) fn ours(self, client: &Client, name: &str) -> Arc<dyn Lock> {
        match self {
            Self::Plain => Arc::new(client.reentrant_lock(name)),
            Self::Fair => Arc::new(client.fair_lock(name)),
            Self::Read => Arc::new(client.read_write_lock(name).reader().clone()),
            Self::Write => Arc::new(client.read_write_lock(name).writer().clone()),
            Self::Fenced => Arc::new(client.fenced_lock(name)),
        }
    }

    /// Returns redlatch's lock of this kind, with a lease that is not renewed.
    pub(crate) fn leased(self, client: &Client, name: &str, lease: Duration) -> Arc<dyn Lock> {
        match self {
            Self::Plain => Arc::new(client.reentrant_lock(name).with_lease(lease)),
            Self::Fair => Arc::new(client.fair_lock(name).with_lease(lease)),
            Self::Read => Arc::new(client.read_write_lock(name).reader().with_lease(lease)),
            Self::Write => Arc::new(client.read_write_lock(name).writer().with_lease(lease)),
            Self::Fenced => Arc::new(client.fenced_lock(name).with_lease(lease)),
        }
    }

    /// Makes these Redisson threads wait for the lock, which another owner has, until they sleep.
    /// After this, only a message or the end of the lease can wake them.
    pub(crate) fn redisson_waits(self, java: &mut Redisson, threads: &[&str], name: &str) {
        for thread in threads {
            java.tell(thread, &format!("lock {}", self.named(name)));
        }
        for thread in threads {
            java.run("watch", &format!("sleeps {thread}"));
        }
    }
}

/// Returns the name of a key or channel, by Redisson's rule.
pub(crate) fn derived(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}
