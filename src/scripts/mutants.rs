//! Planted bugs that the soak must find. Compiled only with `--cfg soak_mutants`. A process has one
//! planted bug.

use std::env;
use std::sync::LazyLock;

/// The separator between a piece of code and its replacement, and between two such pairs.
const SEPARATOR: char = '\u{1f}';

pub(crate) fn script(code: &str) -> &'static str {
    let pairs = env::var("REDLATCH_MUTANT_SCRIPT").unwrap_or_default();
    let mut parts = pairs.split(SEPARATOR);
    let mut code = code.to_owned();
    while let (Some(from), Some(to)) = (parts.next(), parts.next()) {
        code = code.replace(from, to);
    }
    code.leak()
}

pub(crate) fn is(name: &str) -> bool {
    static MUTANT: LazyLock<String> =
        LazyLock::new(|| env::var("REDLATCH_MUTANT").unwrap_or_default());
    *MUTANT == name
}
