//! The client's own channel: what is said there, and to whom.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::sync::Mutex;

/// A message: a verb, and words parted by single spaces. The last one is a name and may hold spaces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said<'a> {
    /// There are new channels to listen to; or nothing, and the connection lives.
    Look,
    /// The server has passed this fence of a channel.
    Fence { number: u64, channel: &'a str },
    /// Who waits for this lock under this owner number should ask.
    Ask { owner: u64, lock: &'a str },
}

impl<'a> Said<'a> {
    /// `None`: nothing that this version knows.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let message = std::str::from_utf8(message).ok()?;
        if message == LOOK {
            return Some(Self::Look);
        }
        let (verb, words) = message.split_once(' ')?;
        let (number, name) = words.split_once(' ')?;
        let number = number.parse().ok()?;
        match verb {
            "fence" => Some(Self::Fence { number, channel: name }),
            "ask" => Some(Self::Ask { owner: number, lock: name }),
            _ => None,
        }
    }
}

/// What [`Said::Look`] is on the wire.
pub(super) const LOOK: &str = "0";

/// What [`Said::Fence`] is on the wire.
pub(super) fn fence(number: u64, channel: &str) -> String {
    format!("fence {number} {channel}")
}

/// Who is told on the client's own channel.
pub(crate) trait Addressee: Send + Sync {
    /// Called on the subscriber's thread with no mutex held; must not block.
    fn ask(&self);
}

type Stray = Box<dyn Fn(u64, &str) + Send + Sync>;

/// Who of this client waits to be told, by the number of its owner. From before its first request
/// on, and no longer than it waits: a message for anybody else finds a place that nobody has.
pub(super) struct Addressees {
    waiting: Mutex<HashMap<u64, Arc<dyn Addressee>>>,
    /// Hears of messages for owners who do not wait, with the lock's name.
    stray: Stray,
}

impl Addressees {
    pub(super) fn new(stray: Stray) -> Self {
        Self { waiting: Mutex::default(), stray }
    }

    pub(super) fn expect(&self, owner: u64, who: Arc<dyn Addressee>) {
        self.waiting.lock().insert(owner, who);
    }

    pub(super) fn dismiss(&self, owner: u64) {
        let who = self.waiting.lock().remove(&owner);
        drop(who);
    }

    pub(super) fn ask(&self, owner: u64, lock: &str) {
        let who = self.waiting.lock().get(&owner).cloned();
        match who {
            Some(who) => who.ask(),
            None => (self.stray)(owner, lock),
        }
    }
}

impl fmt::Debug for Addressees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Addressees").field("waiting", &self.waiting.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_what_its_verb_says() {
        assert_eq!(Said::parse(LOOK.as_bytes()), Some(Said::Look));
        let fence = fence(7, "a channel");
        let said = Said::Fence { number: 7, channel: "a channel" };
        assert_eq!(Said::parse(fence.as_bytes()), Some(said));
        let said = Said::Ask { owner: u64::MAX, lock: " a lock " };
        assert_eq!(Said::parse(format!("ask {}  a lock ", u64::MAX).as_bytes()), Some(said));
    }

    #[test]
    fn what_is_not_known_is_nothing() {
        for message in ["", "1", "ask", "ask 1", "ask one lock", "grant 1 lock", "ask -1 lock"] {
            assert_eq!(Said::parse(message.as_bytes()), None, "{message:?}");
        }
        assert_eq!(Said::parse(b"ask 1 \xff"), None);
    }
}
