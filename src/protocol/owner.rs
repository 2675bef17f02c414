//! Owner ids: `client uuid:number`.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::TryRng as _;
use rand::rngs::{SysError, SysRng};
use uuid::Uuid;

use super::PermitId;

const UUID: usize = 36;
/// A uuid, a colon, the longest number there is, and that it writes.
const LONGEST: usize = UUID + 1 + 20 + WRITES.len();
/// What the owner of a read-write lock ends with that writes.
const WRITES: &str = ":write";

/// One client, and the numbers it gives its acquisitions.
#[derive(Debug)]
pub(crate) struct ClientId {
    uuid: String,
    /// The same as a number.
    seed: u128,
    next: AtomicU64,
}

impl ClientId {
    /// Version 8, where Redisson's are version 4: scripts can tell the two apart.
    ///
    /// From the system: a thread's own generator goes on in a forked child where it was, and the
    /// parent's next client would be the child's.
    pub(crate) fn random() -> Result<Self, SysError> {
        let mut bytes = [0; 16];
        SysRng.try_fill_bytes(&mut bytes)?;
        let uuid = Uuid::new_v8(bytes);
        Ok(Self { uuid: uuid.to_string(), seed: uuid.as_u128(), next: AtomicU64::new(1) })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.uuid
    }

    /// A number that this client has not used before and will not again.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A permit's id, for which holds the same as for [`next_owner`](Self::next_owner). A client's
    /// follow one another from its uuid on: no other client comes near them, nor Redisson's, which
    /// are random.
    pub(crate) fn next_permit(&self) -> PermitId {
        PermitId::from_number(self.seed.wrapping_add(self.next_number().into()))
    }

    /// Fresh owners: a number names one acquisition and is never used again, so that a late
    /// command of an old hold touches nothing of the next one.
    pub(crate) fn next_owner(&self) -> Owner {
        self.next_owner_to(Mode::Lock)
    }

    /// The same, of a lock that is held to do this.
    pub(crate) fn next_owner_to(&self, mode: Mode) -> Owner {
        let number = self.next_number();
        let mut bytes = [0; LONGEST];
        let mut rest = &mut bytes[..];
        // The buffer holds the longest: the write cannot fail.
        let written = write!(rest, "{}:{number}{}", self.uuid, mode.suffix());
        debug_assert!(written.is_ok());
        let left = rest.len();
        Owner { bytes, len: LONGEST - left, number, mode }
    }
}

/// What a lock is held to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is no read-write lock.
    #[default]
    Lock,
    Read,
    Write,
}

impl Mode {
    pub(crate) fn suffix(self) -> &'static str {
        if self == Self::Write { WRITES } else { "" }
    }
}

/// Who holds a lock, as Redis knows it: text, kept in place. A permit has its id instead.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    bytes: [u8; LONGEST],
    len: usize,
    number: u64,
    mode: Mode,
}

impl Owner {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }
}

impl From<PermitId> for Owner {
    fn from(id: PermitId) -> Self {
        let (id, mut bytes) = (id.as_bytes(), [0; LONGEST]);
        bytes[..id.len()].copy_from_slice(id);
        Self { bytes, len: id.len(), number: 0, mode: Mode::Lock }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_uuid_and_a_number_never_given_twice() {
        let client = ClientId::random().unwrap();
        let (first, second) = (client.next_owner(), client.next_owner());
        assert_ne!(first.as_bytes(), second.as_bytes());
        let text = first.to_string();
        let (uuid, number) = text.split_once(':').unwrap();
        assert_eq!(Uuid::parse_str(uuid).unwrap().get_version_num(), 8);
        assert_eq!(number, "1");
    }

    #[test]
    fn the_longest_number_fits() {
        let next = AtomicU64::new(u64::MAX);
        let client = ClientId { uuid: Uuid::nil().to_string(), seed: u128::MAX, next };
        assert_eq!(client.next_permit(), PermitId::from_number(u128::from(u64::MAX) - 1));
        client.next.store(u64::MAX, Ordering::Relaxed);
        assert!(client.next_owner().to_string().ends_with(&u64::MAX.to_string()));
    }
}
