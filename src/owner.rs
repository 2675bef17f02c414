//! An owner as text, in the format in which the server stores it.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::scripts::{self, Mode, PermitId};

/// The text with which the server identifies the holder of a lock, a waiter, or a permit. redlatch
/// and Redisson use the same format:
///
/// - for a lock, the client's uuid, a colon, and the number of an acquisition (redlatch) or of a
///   thread (Redisson);
/// - for a permit of an [`ExpirableSemaphore`](crate::ExpirableSemaphore), its [`PermitId`].
///
/// A guard has an owner ([`LockGuard::owner`](crate::LockGuard::owner)), and
/// [`Client::status`](crate::Client::status) lists the owners of a name.
/// [`Client::release_owner`](crate::Client::release_owner) ends the hold of an owner.
///
/// ```
/// use redlatch::Owner;
///
/// let owner: Owner = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:17".parse()?;
/// assert_eq!(owner.to_string(), "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab:17");
/// assert!("orders".parse::<Owner>().is_err());
/// # Ok::<_, redlatch::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Owner(String);

impl Owner {
    /// Returns the owner's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(owner: &scripts::Owner) -> Self {
        Self(owner.shown())
    }

    /// Returns the owner with this text from Redis, which any program may have written.
    pub(crate) fn written(text: String) -> Self {
        Self(text)
    }

    /// Returns the permit's id, if this is the owner of a permit.
    pub(crate) fn permit(&self) -> Option<PermitId> {
        self.0.parse().ok()
    }

    /// Returns the owner of a lock in this mode, if this is the owner of a lock.
    pub(crate) fn of_lock(&self, mode: Mode) -> Option<scripts::Owner> {
        scripts::Owner::parse(&self.0, mode)
    }
}

impl From<PermitId> for Owner {
    fn from(id: PermitId) -> Self {
        Self(id.to_string())
    }
}

impl FromStr for Owner {
    type Err = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the text is no owner, for example because only a part of it
    /// was copied.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(owner) = scripts::Owner::parse(text, Mode::Lock) {
            return Ok(Self::of(&owner));
        }
        text.parse::<PermitId>().map(Self::from).map_err(|_| {
            let message = "an owner is a client's uuid, a colon and a number, or a permit's id of \
                           32 hexadecimal digits, and this text is something else";
            Error::new(ErrorKind::Config, message.to_owned())
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:?})", self.0)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Owner {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab";
    const PERMIT: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn a_text_is_an_owner_in_one_form_only() {
        let lock: Owner = format!("{UUID}:17").parse().unwrap();
        assert_eq!(lock.to_string(), format!("{UUID}:17"));
        assert_eq!(format!("{}:017", UUID.to_uppercase()).parse::<Owner>().unwrap(), lock);
        assert!(lock.permit().is_none() && lock.of_lock(Mode::Read).is_some());
        let permit: Owner = PERMIT.to_uppercase().parse().unwrap();
        assert_eq!(permit, PERMIT.parse::<PermitId>().unwrap().into());
        assert!(permit.of_lock(Mode::Lock).is_none());
        assert_eq!(format!("{permit:?}"), format!("Owner({PERMIT:?})"));
    }

    #[test]
    fn a_text_that_is_no_owner_is_an_error_that_says_what_one_is() {
        for text in ["", "orders", UUID, &format!("{UUID}:"), &format!("{UUID}:5:write"), "é:1"] {
            let error = text.parse::<Owner>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{text}");
            assert!(error.to_string().contains("a client's uuid, a colon and a number"), "{error}");
        }
    }
}
