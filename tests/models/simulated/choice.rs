//! Which mutants a run tries.

use std::env;
use std::hash::{BuildHasher, RandomState};

/// One, taken by lot: all of them take minutes, and are tried with `REDLATCH_LONG=1` (`.ci/long`).
/// One that is always the same would only show that the model still notices the mutant it was last
/// mended for; by lot each has its turn, and the failure names an unnoticed one.
/// `REDLATCH_MUTANT=word` tries those with this word in their description, for a mended model.
pub(crate) fn chosen<M>(mutants: &[M], what: impl Fn(&M) -> &str) -> Vec<&M> {
    if let Ok(word) = env::var("REDLATCH_MUTANT") {
        let chosen: Vec<_> = mutants.iter().filter(|it| what(it).contains(&word)).collect();
        assert!(!chosen.is_empty(), "no mutant does {word:?}");
        return chosen;
    }
    if env::var_os("REDLATCH_LONG").is_some() {
        return mutants.iter().collect();
    }
    let lot = RandomState::new().hash_one(mutants.len());
    let at = usize::try_from(lot % mutants.len() as u64).unwrap_or(0);
    vec![&mutants[at]]
}
