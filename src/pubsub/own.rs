//! The client's own channel: what is said there, and to whom.
//!
//! Scripts name the waiter in the message. A subscription to a pattern would cost every message
//! of the server, whoever sends it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::sync::Mutex;

/// A message: a verb, and words parted by single spaces. The last one is a name and may hold
/// spaces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said<'a> {
    /// There are new channels to listen to; or nothing, and the connection lives.
    Look,
    /// Something for who waits under this owner number.
    To { owner: u64, news: News<'a> },
}

/// What a script tells one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News<'a> {
    /// It should ask for this lock.
    Ask { lock: &'a str },
    /// The lock is its owner's.
    Grant(Grant<'a>),
    /// The lock is left to others for so long, or (zero) not at all. It is the first in line, and
    /// should ask then.
    Open { left: Duration, database: i64, lock: &'a str },
    /// It need not wait any more for the condition whose waiters are under this key.
    Notified { database: i64, waiting: &'a str },
}

/// A script has made an owner the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant<'a> {
    /// When, by the server's clock in ms.
    pub(crate) now: u64,
    pub(crate) lease: Duration,
    /// One word that each kind of lock has for itself.
    pub(crate) details: &'a str,
    pub(crate) database: i64,
    pub(crate) lock: &'a str,
}

impl<'a> Said<'a> {
    /// `None`: nothing that this version knows.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let message = std::str::from_utf8(message).ok()?;
        if message == LOOK {
            return Some(Self::Look);
        }
        let (verb, rest) = message.split_once(' ')?;
        let (number, rest) = word(rest)?;
        let news = match verb {
            "ask" => News::Ask { lock: rest },
            "grant" => {
                let (now, rest) = word(rest)?;
                let (lease, rest) = word(rest)?;
                let (details, rest) = rest.split_once(' ')?;
                let (database, lock) = word(rest)?;
                let lease = Duration::from_millis(lease);
                News::Grant(Grant { now, lease, details, database, lock })
            }
            "open" => {
                let (left, rest) = word(rest)?;
                let (database, lock) = word(rest)?;
                News::Open { left: Duration::from_millis(left), database, lock }
            }
            "notify" => {
                let (database, waiting) = word(rest)?;
                News::Notified { database, waiting }
            }
            _ => return None,
        };
        Some(Self::To { owner: number, news })
    }
}

/// The number before the first space, and what is behind that.
fn word<T: std::str::FromStr>(text: &str) -> Option<(T, &str)> {
    let (word, rest) = text.split_once(' ')?;
    Some((word.parse().ok()?, rest))
}

/// What [`Said::Look`] is on the wire.
pub(super) const LOOK: &str = "0";

/// Who is told on the client's own channel.
pub(crate) trait Addressee: Send + Sync {
    /// Called on the subscriber's thread with no mutex held; must not block.
    fn told(&self, news: &News<'_>);
}

impl<A: Addressee + ?Sized> Addressee for Arc<A> {
    fn told(&self, news: &News<'_>) {
        (**self).told(news);
    }
}

/// Who of this client waits to be told, by the number of its owner. From before its first request
/// on, and no longer than it has a place, or the lock after it had one. Messages name nobody who
/// never had: so one for anybody who is not here finds what nobody has.
#[derive(Default)]
pub(super) struct Addressees {
    waiting: Mutex<HashMap<u64, Weak<dyn Addressee>>>,
}

impl Addressees {
    pub(super) fn expect(&self, owner: u64, who: Weak<dyn Addressee>) {
        self.waiting.lock().insert(owner, who);
    }

    pub(super) fn dismiss(&self, owner: u64) {
        self.waiting.lock().remove(&owner);
    }

    /// `false`: nobody waits under that number.
    pub(super) fn tell(&self, owner: u64, news: &News<'_>) -> bool {
        let who = self.waiting.lock().get(&owner).and_then(Weak::upgrade);
        who.as_ref().inspect(|who| who.told(news)).is_some()
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
        let said = Said::To { owner: u64::MAX, news: News::Ask { lock: " a lock " } };
        assert_eq!(Said::parse(format!("ask {}  a lock ", u64::MAX).as_bytes()), Some(said));
        let grant = Grant {
            now: 1_700_000_000_123,
            lease: Duration::from_secs(2),
            details: "lock,3,0,1",
            database: 15,
            lock: "a lock ",
        };
        let said = Said::To { owner: 9, news: News::Grant(grant) };
        let message = b"grant 9 1700000000123 2000 lock,3,0,1 15 a lock ";
        assert_eq!(Said::parse(message), Some(said));
        let news = News::Open { left: Duration::from_millis(4), database: 0, lock: "l" };
        assert_eq!(Said::parse(b"open 9 4 0 l"), Some(Said::To { owner: 9, news }));
        let news = News::Notified { database: 3, waiting: "a key " };
        assert_eq!(Said::parse(b"notify 9 3 a key "), Some(Said::To { owner: 9, news }));
    }

    #[test]
    fn what_is_not_known_is_nothing() {
        for message in ["", "1", "ask", "ask 1", "ask one lock", "ask -1 lock", "grant 1 2 3 lock"]
        {
            assert_eq!(Said::parse(message.as_bytes()), None, "{message:?}");
        }
        assert_eq!(Said::parse(b"ask 1 \xff"), None);
    }
}
