//! Reads, sleeps and writes under a fenced lock, with a store that compares tokens.

use std::collections::{HashMap, HashSet};

use crate::clock::ms;
use crate::history::{Event, Round};

/// The time for which a paused writer may still write after its last hold.
const LATE: u64 = ms(10_000);

/// Returns the names that were in use when the server lost data. After a loss of data, tokens begin
/// again, so an old holder and a new holder may have the same token, and the store accepts the
/// writes of both.
pub(crate) fn forgotten(round: &Round) -> HashSet<String> {
    let mut used: HashMap<&str, [u64; 2]> = HashMap::new();
    for event in round.processes.iter().flat_map(|process| &process.events) {
        if let Event::Granted(grant) = event {
            let [from, to] = used.entry(&grant.name).or_insert([grant.call, grant.until]);
            (*from, *to) = ((*from).min(grant.call), (*to).max(grant.until));
        }
    }
    used.retain(|_, [from, to]| {
        round
            .faults
            .iter()
            .any(|it| it.forgets_counts() && *from <= it.to && to.saturating_add(LATE) >= it.from)
    });
    used.into_keys().map(str::to_owned).collect()
}

/// Returns the number of lost writes. Each write adds one to the value that its writer has read. So
/// if a value is written twice, one write is lost. `written` has the values in the order in which
/// the store accepted them.
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
        // A late write sets the value back, and other writers write the same values again.
        assert_eq!(lost_writes(&[1, 2, 3, 2, 3]), 2);
    }
}
