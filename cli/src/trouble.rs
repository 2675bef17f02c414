//! The reason of a command's failure, and its exit status.

use std::fmt::Display;
use std::io::Write as _;

use redlatch::{Error, ErrorKind};

pub(crate) const FREE: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const SOFTWARE: u8 = 70;
pub(crate) const LOST: u8 = 74;
pub(crate) const NOT_HAD: u8 = 75;
pub(crate) const PROTOCOL: u8 = 76;
pub(crate) const REFUSED: u8 = 77;
pub(crate) const CONFIG: u8 = 78;
pub(crate) const TOO_LONG: u8 = 124;
pub(crate) const CANNOT_RUN: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// Returns the text on one line and without control characters, which could change the terminal.
/// Any client may have chosen the name or the owner in the text.
pub(crate) fn shown(text: &str) -> String {
    let escaped = |it: char| match it {
        '\n' | '\r' | '\t' => it.escape_default().to_string(),
        // JSON escapes the character in the same way.
        it if it.is_control() => format!("\\u{:04x}", u32::from(it)),
        it => it.into(),
    };
    text.chars().map(escaped).collect()
}

/// Writes to stderr. A closed stderr is not an error.
pub(crate) fn say(message: impl Display) {
    let _written = writeln!(std::io::stderr(), "redlatch: {}", shown(&message.to_string()));
}

/// A message for stderr, and the exit status.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) status: u8,
    pub(crate) message: String,
    /// Whether `-q` silences the message.
    pub(crate) is_expected: bool,
}

impl Trouble {
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), is_expected: false }
    }

    /// Returns a failure that a script expects: a limit has passed, or there was nothing to do.
    pub(crate) fn expected(status: u8, message: impl Into<String>) -> Self {
        Self { is_expected: true, ..Self::new(status, message) }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Config => CONFIG,
            ErrorKind::Protocol => PROTOCOL,
            ErrorKind::LeaseLost | ErrorKind::NotHeld | ErrorKind::EndsTooSoon => LOST,
            _ if error.is_transient() => UNAVAILABLE,
            _ => REFUSED,
        };
        Self::new(status, format!("{error:#}"))
    }
}
