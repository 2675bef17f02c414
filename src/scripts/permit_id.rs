//! The ids of an expirable semaphore's permits.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

const BYTES: usize = 16;

/// The id of a permit of an [`ExpirableSemaphore`](crate::ExpirableSemaphore): 16 bytes, or 32
/// hexadecimal digits as text, as in Redisson from 3.17 on. Any process that has the id can give
/// the permit back, even a Java service.
///
/// Each acquired permit has an id of its own, which is never used again.
///
/// ```
/// use redlatch::PermitId;
///
/// let text = "00112233445566778899aabbccddeeff";
/// let id: PermitId = text.parse()?;
/// assert_eq!(id.as_bytes()[1], 0x11);
/// assert_eq!(id.to_string(), text);
/// # Ok::<_, redlatch::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId([u8; BYTES]);

impl PermitId {
    /// Returns the id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the 16 bytes of the id, as Redis stores them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    pub(crate) const fn from_number(number: u128) -> Self {
        Self(number.to_be_bytes())
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitId({self})")
    }
}

impl FromStr for PermitId {
    type Err = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the text is not 32 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Error> {
        let is_id = text.len() == 2 * BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        number.map(Self::from_number).ok_or_else(|| {
            let message = "a permit's id is 32 hexadecimal digits, and this text is something else";
            Error::new(ErrorKind::Config, message.to_owned())
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for PermitId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for PermitId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_id_is_an_error() {
        for text in
            ["", "00", "+0112233445566778899aabbccddeeff", "é0112233445566778899aabbccddeef"]
        {
            assert_eq!(text.parse::<PermitId>().unwrap_err().kind(), ErrorKind::Config, "{text}");
        }
        let id: PermitId = "FF112233445566778899aabbccddeeff".parse().unwrap();
        assert_eq!(id.as_bytes()[0], 0xff);
        assert_eq!(PermitId::from_bytes(*id.as_bytes()), id);
    }
}
