//! The messages on the client's own channel, and their recipients.
//!
//! All owners of a client share one channel, so each message contains its owner's number. With a
//! channel for each owner, the client would subscribe to a pattern, and the server would compare
//! every message of every sender with this pattern.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redlatch_client::leading_number;
use redlatch_client::sync::{Mutex, is_forked};

/// A script's message to one owner. On the wire it is a verb, the owner's number, and more words,
/// with single spaces between them. The last word is a name and may contain spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// The owner should request this lock.
    Ask { lock: &'a str },
    /// A script has made the owner the holder of the lock. `server_time` is the time of the grant,
    /// on the server's clock in ms. `details` is one word, whose meaning depends on the kind of
    /// lock.
    Grant { server_time: u64, lease: Duration, details: &'a [u8], database: i64, lock: &'a str },
    /// The owner is the first in the queue, and should request the lock after the time `left`.
    /// Until then, Redisson's clients may take the lock. `left` may be zero.
    Open { left: Duration, database: i64, lock: &'a str },
    /// Others wait for this lock, which the owner has.
    Wanted { lock: &'a str },
    /// The owner's wait for a condition is over. `waiting` is the key of the condition's waiters.
    Notified { database: i64, waiting: &'a str },
}

impl<'a> Message<'a> {
    /// Parses a message, and returns it with the number of its owner. Returns `None` if this
    /// version of the library does not know the verb.
    pub(super) fn parse(message: &'a [u8]) -> Option<(u64, Self)> {
        let (verb, rest) = cut(message)?;
        let (owner, rest) = word(rest)?;
        let message = match verb {
            b"ask" => Message::Ask { lock: text(rest)? },
            b"grant" => {
                let (server_time, rest) = word(rest)?;
                let (lease, rest) = word(rest)?;
                let (details, rest) = cut(rest)?;
                let (database, lock) = word(rest)?;
                let (lease, lock) = (Duration::from_millis(lease), text(lock)?);
                Message::Grant { server_time, lease, details, database, lock }
            }
            b"open" => {
                let (left, rest) = word(rest)?;
                let (database, lock) = word(rest)?;
                Message::Open { left: Duration::from_millis(left), database, lock: text(lock)? }
            }
            b"want" => Message::Wanted { lock: text(rest)? },
            b"notify" => {
                let (database, waiting) = word(rest)?;
                Message::Notified { database, waiting: text(waiting)? }
            }
            _ => return None,
        };
        Some((owner, message))
    }
}

/// Returns the number before the first space, and the bytes after the space.
#[inline]
fn word<T: TryFrom<u64>>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (number, rest) = leading_number(bytes)?;
    Some((T::try_from(number).ok()?, rest.strip_prefix(b" ")?))
}

/// Splits bytes at the first space.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b' ')?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

fn text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok()
}

/// The receiver of the messages to one owner on the client's own channel.
pub(crate) trait Recipient: Send + Sync + RefUnwindSafe {
    /// Called on the subscriber thread with no mutex held. Must not block. Returns `false` if no
    /// thread will read the message. The client then handles the message itself, as for an owner
    /// without a recipient: it gives a grant back, and tells a holder that others wait.
    fn receive(&self, message: &Message<'_>) -> bool;
}

/// The registered owners of this client by their numbers, with the recipients of their messages. An
/// owner that may wait is registered before its first request. The owner remains registered as long
/// as it has a queue entry, or holds the lock that it got through this entry. Scripts grant by
/// message only to owners with an entry. So if a message grants a lock to an owner that is not
/// registered, no thread has this hold. (The message that others wait finds its hold by the lock's
/// name.)
#[derive(Default)]
pub(crate) struct Recipients {
    registered: Mutex<BTreeMap<u64, Weak<Registered>>>,
}

impl Recipients {
    /// Registers `recipient` for the messages that name this owner.
    pub(crate) fn register<R: Recipient + 'static>(
        self: &Arc<Self>,
        owner: u64,
        recipient: R,
    ) -> Arc<Registered<R>> {
        let registered = Arc::new(Registered { all: Arc::clone(self), owner, recipient });
        let named: Weak<Registered> = Arc::<Registered<R>>::downgrade(&registered);
        self.registered.lock().insert(owner, named);
        registered
    }

    /// Returns the registered owner with this number.
    pub(super) fn named(&self, owner: u64) -> Option<Arc<Registered>> {
        self.registered.lock().get(&owner).and_then(Weak::upgrade)
    }
}

impl fmt::Debug for Recipients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipients").field("registered", &self.registered.lock().len()).finish()
    }
}

/// The registration of an owner, with the recipient of the messages that name the owner. An owner
/// that [may have had](crate::ask) a queue entry remains registered while it holds the lock: after
/// a reply that reports the grant, the message of the grant may still arrive. If the owner were not
/// registered, the client would give the grant back.
pub(crate) struct Registered<R: ?Sized = dyn Recipient> {
    all: Arc<Recipients>,
    owner: u64,
    pub(crate) recipient: R,
}

impl<R: ?Sized> Drop for Registered<R> {
    fn drop(&mut self) {
        if !is_forked() {
            self.all.registered.lock().remove(&self.owner);
        }
    }
}

impl<R: ?Sized> fmt::Debug for Registered<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({})", self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_of_its_verbs_kind() {
        let said = (u64::MAX, Message::Ask { lock: " a lock " });
        assert_eq!(Message::parse(format!("ask {}  a lock ", u64::MAX).as_bytes()), Some(said));
        let grant = Message::Grant {
            server_time: 1_700_000_000_123,
            lease: Duration::from_secs(2),
            details: b"lock,3,0,1",
            database: 15,
            lock: "a lock ",
        };
        let message = b"grant 9 1700000000123 2000 lock,3,0,1 15 a lock ";
        assert_eq!(Message::parse(message), Some((9, grant)));
        let said = Message::Open { left: Duration::from_millis(4), database: 0, lock: "l" };
        assert_eq!(Message::parse(b"open 9 4 0 l"), Some((9, said)));
        let said = Message::Wanted { lock: "a lock" };
        assert_eq!(Message::parse(b"want 9 a lock"), Some((9, said)));
        let said = Message::Notified { database: 3, waiting: "a key " };
        assert_eq!(Message::parse(b"notify 9 3 a key "), Some((9, said)));
    }

    #[test]
    fn an_unknown_message_is_ignored() {
        for message in
            ["", "0", "1", "ask", "ask 1", "ask one lock", "ask -1 lock", "grant 1 2 3 lock"]
        {
            assert_eq!(Message::parse(message.as_bytes()), None, "{message:?}");
        }
        assert_eq!(Message::parse(b"ask 1 \xff"), None);
    }
}
