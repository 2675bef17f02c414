//! Bugs put in on purpose, for the soak to find: only with `--cfg soak_mutants`, one for each process.

use std::env;
use std::sync::LazyLock;

/// What the soak puts between a piece of code and its replacement, and between two pairs of them.
const SEPARATOR: char = '\u{1f}';

/// A script with the mutant's replacements.
pub(crate) fn script(code: &str) -> &'static str {
    let pairs = env::var("REDLATCH_MUTANT_SCRIPT").unwrap_or_default();
    let mut parts = pairs.split(SEPARATOR);
    let mut code = code.to_owned();
    while let (Some(from), Some(to)) = (parts.next(), parts.next()) {
        code = code.replace(from, to);
    }
    code.leak()
}

/// Whether this process is to have this bug.
pub(crate) fn is(name: &str) -> bool {
    static MUTANT: LazyLock<String> =
        LazyLock::new(|| env::var("REDLATCH_MUTANT").unwrap_or_default());
    *MUTANT == name
}
