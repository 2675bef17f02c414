//! Deliberate bugs for the soak to find: only with `--cfg soak_mutants`, one for each process.

use std::env;
use std::sync::LazyLock;

/// The character with which the soak parts a piece of code from its replacement, and two such
/// pairs.
const SEPARATOR: char = '\u{1f}';

/// The script with the mutant's replacements.
pub(crate) fn script(code: &str) -> &'static str {
    let pairs = env::var("REDLATCH_MUTANT_SCRIPT").unwrap_or_default();
    let mut parts = pairs.split(SEPARATOR);
    let mut code = code.to_owned();
    while let (Some(from), Some(to)) = (parts.next(), parts.next()) {
        code = code.replace(from, to);
    }
    code.leak()
}

/// Whether this process has this bug.
pub(crate) fn is(name: &str) -> bool {
    static MUTANT: LazyLock<String> =
        LazyLock::new(|| env::var("REDLATCH_MUTANT").unwrap_or_default());
    *MUTANT == name
}
