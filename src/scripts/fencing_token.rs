//! The numbers that order the holds of a fenced lock.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// A number that orders the holds of one lock: a later hold has a higher token.
///
/// ```no_run
/// use redlatch::FencingToken;
///
/// /// The store remembers the highest token it has seen.
/// struct Record {
///     highest: Option<FencingToken>,
///     text: String,
/// }
///
/// impl Record {
///     fn write(&mut self, token: FencingToken, text: &str) -> Result<(), FencingToken> {
///         match self.highest {
///             Some(highest) if token < highest => Err(highest), // a late writer
///             _ => {
///                 self.highest = Some(token);
///                 self.text = text.to_owned();
///                 Ok(())
///             }
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "u64", try_from = "u64"))]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the token as a number from 1 to 2^53.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// Converts a token for a database, whose integers are signed.
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        // A token is never above 2^53.
        Self::try_from(token.0).unwrap_or(Self::MAX)
    }
}

/// The highest token: Lua cannot count beyond this number.
const HIGHEST: u64 = 1 << 53;

impl TryFrom<u64> for FencingToken {
    type Error = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the number is not from 1 to 2^53.
    fn try_from(number: u64) -> Result<Self, Error> {
        if (1..=HIGHEST).contains(&number) { Ok(Self(number)) } else { Err(no_token()) }
    }
}

/// Converts a token that was stored in a database.
impl TryFrom<i64> for FencingToken {
    type Error = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the number is not from 1 to 2^53.
    fn try_from(number: i64) -> Result<Self, Error> {
        u64::try_from(number).map_err(|_| no_token())?.try_into()
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the text is not a decimal number from 1 to 2^53.
    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse::<u64>().map_err(|_| no_token())?.try_into()
    }
}

fn no_token() -> Error {
    let message = "a fencing token is a number from 1 to 2^53, and this is something else";
    Error::new(ErrorKind::Config, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_a_database_or_a_text_has_kept_is_the_same() {
        for number in [1, 7, HIGHEST] {
            let token = FencingToken::try_from(number).unwrap();
            assert_eq!(u64::from(token), number);
            assert_eq!(FencingToken::try_from(i64::from(token)).unwrap(), token);
            assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
        }
    }

    #[test]
    fn what_is_no_token_is_an_error() {
        for number in [0, HIGHEST + 1, u64::MAX] {
            assert_eq!(FencingToken::try_from(number).unwrap_err().kind(), ErrorKind::Config);
        }
        assert_eq!(FencingToken::try_from(-1_i64).unwrap_err().kind(), ErrorKind::Config);
        for text in ["", "0", "-1", "1.5", "seven", "9007199254740993"] {
            assert_eq!(
                text.parse::<FencingToken>().unwrap_err().kind(),
                ErrorKind::Config,
                "{text}"
            );
        }
    }
}
