//! Reads, sleeps and writes under a fenced lock, against a store that compares tokens.

use std::collections::HashSet;

/// Each write adds one to the value that was read: a value that was written twice is a write that
/// was lost. `written`: the values in the order in which the store accepted them.
pub(crate) fn lost_writes(written: &[u64]) -> u64 {
    let different: HashSet<_> = written.iter().collect();
    (written.len() - different.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_was_written_twice_is_a_lost_write() {
        assert_eq!(lost_writes(&[1, 2, 3]), 0);
        assert_eq!(lost_writes(&[1, 2, 2, 3]), 1);
        // A late write takes the value back, and others write the same values again.
        assert_eq!(lost_writes(&[1, 2, 3, 2, 3]), 2);
    }
}
