//! Checks the signatures of the API for results that callers must use.

use std::fs;
use std::path::Path;

/// With the attribute `must_use`, the compiler warns if a program ignores the result of a call. The
/// warning shows the attribute's reason.
#[test]
fn a_verb_whose_result_says_whether_it_succeeded_is_must_use_with_a_reason() {
    // Functions whose result a caller may ignore. Some of them only read a state. After each of the
    // others, both results mean the same state: for example, nobody holds the lock.
    const OTHERS: [&str; 6] =
        ["force_unlock", "delete", "notify_one", "is_locked", "is_broken", "remaining_lease"];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut heard = 0;
    for file in [
        "lock.rs",
        "lock/verbs.rs",
        "lock/multi.rs",
        "semaphore/verbs.rs",
        "semaphore/counting.rs",
        "semaphore/expirable.rs",
        "latch.rs",
        "lock/condition.rs",
        "barrier.rs",
        "election.rs",
    ] {
        let text = fs::read_to_string(source.join(file)).unwrap();
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let begun = line.strip_prefix("pub fn ");
            let begun = begun.or_else(|| line.strip_prefix("fn ").filter(|_| file == "lock.rs"));
            let Some((name, _)) = begun.and_then(|rest| rest.split_once(['(', '<'])) else {
                continue;
            };
            let ends = |line: &&str| line.ends_with('{') || line.ends_with(';');
            let end = at + lines[at..].iter().position(ends).unwrap();
            let signature = lines[at..=end].join(" ");
            // The type of a closure parameter contains an arrow, too, so take the text after the
            // last arrow.
            let returned = signature.rsplit("-> ").next().unwrap();
            let says =
                returned.starts_with("Result<bool,") || returned.starts_with("Result<Option<");
            // These types are `must_use` themselves.
            if ["Result<Attempt<", "Result<Waited"].iter().any(|it| returned.starts_with(it)) {
                heard += 1;
                continue;
            }
            if !says || OTHERS.contains(&name) {
                continue;
            }
            assert!(lines[at - 1].starts_with("#[must_use = \"`"), "{file}: {name}");
            heard += 1;
        }
    }
    assert!(heard > 28, "{heard}");
}
