//! Owner ids: `client uuid:number`.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::TryRng as _;
use rand::rngs::{SysError, SysRng};
use uuid::Uuid;

const UUID: usize = 36;
/// A uuid, a colon, and the longest number there is.
const LONGEST: usize = UUID + 1 + 20;

/// One client, and the numbers it gives its acquisitions.
#[derive(Debug)]
pub(crate) struct ClientId {
    uuid: String,
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
        Ok(Self { uuid: Uuid::new_v8(bytes).to_string(), next: AtomicU64::new(1) })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.uuid
    }

    /// A number that this client has not used before and will not again.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Fresh owners: a number names one acquisition and is never used again, so that a late
    /// command of an old hold touches nothing of the next one.
    pub(crate) fn next_owner(&self) -> Owner {
        let number = self.next_number();
        let mut bytes = [0; LONGEST];
        let mut rest = &mut bytes[..];
        // The buffer holds the longest: the write cannot fail.
        let written = write!(rest, "{}:{number}", self.uuid);
        debug_assert!(written.is_ok());
        let left = rest.len();
        Owner { bytes, len: LONGEST - left, number }
    }
}

/// Who holds a lock, as Redis knows it. Text, kept in place.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    bytes: [u8; LONGEST],
    len: usize,
    number: u64,
}

impl Owner {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
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
        let client = ClientId { uuid: Uuid::nil().to_string(), next: AtomicU64::new(u64::MAX) };
        assert!(client.next_owner().to_string().ends_with(&u64::MAX.to_string()));
    }
}
