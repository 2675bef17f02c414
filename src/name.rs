//! The name of a synchronizer, as the user gave it, and its key on the server.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A synchronizer's key: the client's prefix and the [name](Self::given) that the user gave. A
/// `Name` dereferences to the key, from which all other keys and channels are made. `{:?}` shows
/// the given name. A `Name` does not implement `Display`.
#[derive(Clone)]
pub(crate) struct Name {
    key: Arc<str>,
    /// The length of the prefix.
    prefix: usize,
}

impl Name {
    /// Returns the name with this key, in a client with this prefix.
    pub(crate) fn of(key: impl Into<Arc<str>>, prefix: &str) -> Self {
        let key = key.into();
        // A message may contain a key with another client's prefix.
        let prefix = if key.starts_with(prefix) { prefix.len() } else { 0 };
        Self { key, prefix }
    }

    /// The name that the user gave.
    pub(crate) fn given(&self) -> &str {
        self.key.get(self.prefix..).unwrap_or_default()
    }

    /// Whether the given name is empty. (Then the key is the prefix alone.)
    pub(crate) fn is_empty(&self) -> bool {
        self.given().is_empty()
    }
}

impl Deref for Name {
    type Target = Arc<str>;

    fn deref(&self) -> &Arc<str> {
        &self.key
    }
}

impl<K: Into<Arc<str>>> From<K> for Name {
    fn from(key: K) -> Self {
        Self::of(key, "")
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_the_given_name_and_the_server_the_key() {
        let name = Name::of("shop:orders", "shop:");
        assert_eq!((name.given(), &**name), ("orders", "shop:orders"));
        assert_eq!(format!("{name:?}"), "\"orders\"");
        assert!(Name::of("shop:", "shop:").is_empty());
        assert_eq!(Name::of("é", "shop:").given(), "é", "of another client");
    }
}
