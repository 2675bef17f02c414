//! The grants that all drivers wrote, merged.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// One turn of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) process: usize,
    pub(crate) thread: u64,
    pub(crate) writes: bool,
    pub(crate) asked: u64,
    /// The time of the grant, or 0 if the lock was never granted.
    pub(crate) granted: u64,
    pub(crate) released: u64,
}

impl Grant {
    /// Returns the wait from the thread's call, or from the intended start of the call.
    pub(crate) fn wait(&self) -> u64 {
        let until = if self.granted > 0 { self.granted } else { self.released };
        until.saturating_sub(self.asked)
    }
}

/// Reads all grants, sorted by time.
pub(crate) fn read(files: &[impl AsRef<Path>]) -> Vec<Grant> {
    let mut grants = Vec::new();
    for (process, file) in files.iter().enumerate() {
        let bytes = fs::read(file).unwrap_or_default();
        grants.extend(bytes.chunks_exact(32).map(|record| {
            let at = |at: usize| u64::from_le_bytes(record[at * 8..][..8].try_into().unwrap());
            Grant {
                process,
                thread: at(0) & 0xffff_ffff,
                writes: at(0) >> 32 == 1,
                asked: at(1),
                granted: at(2),
                released: at(3),
            }
        }));
    }
    grants.sort_by_key(|grant| grant.granted);
    grants
}

/// Returns the number of grants to another thread than the grant before.
pub(crate) fn switches(grants: &[Grant]) -> usize {
    let thread = |grant: &Grant| (grant.process, grant.thread);
    grants.windows(2).filter(|pair| thread(&pair[0]) != thread(&pair[1])).count()
}

/// Returns the number of grants at which too many threads held the lock.
pub(crate) fn doubles(grants: &[Grant], places: usize) -> usize {
    let mut inside: Vec<Grant> = Vec::new();
    let mut doubles = 0;
    for grant in grants.iter().filter(|grant| grant.granted > 0) {
        inside.retain(|other| other.released > grant.granted);
        // Readers may hold the lock together.
        let together = inside.iter().filter(|other| grant.writes || other.writes || places > 0);
        doubles += usize::from(together.count() >= places.max(1));
        inside.push(*grant);
    }
    doubles
}

/// Returns the number of grants of each process, or of each thread if there is only one process.
pub(crate) fn shares(grants: &[Grant], processes: usize, threads: u64) -> Vec<u64> {
    let mut counts: HashMap<(usize, u64), u64> = HashMap::new();
    for grant in grants {
        let thread = if processes > 1 { 0 } else { grant.thread };
        *counts.entry((grant.process, thread)).or_default() += 1;
    }
    let of = |process, thread| counts.get(&(process, thread)).copied().unwrap_or(0);
    if processes > 1 {
        (0..processes).map(|process| of(process, 0)).collect()
    } else {
        (0..threads).map(|thread| of(0, thread)).collect()
    }
}

/// Returns the times from the beginning of a release to the grant in another process that waits.
pub(crate) fn hand_overs(grants: &[Grant]) -> Vec<f64> {
    let pairs = grants.windows(2).filter(|pair| {
        pair[0].process != pair[1].process && pair[1].asked + 500_000 < pair[0].released
    });
    pairs.map(|pair| pair[1].granted.saturating_sub(pair[0].released) as f64).collect()
}

/// Returns the times from each count-down (of process 0) to the end of the wait (of process 1).
pub(crate) fn wake_ups(grants: &[Grant]) -> Vec<f64> {
    let of = |process| grants.iter().filter(move |grant| grant.process == process);
    of(0).zip(of(1)).map(|(down, up)| up.granted.saturating_sub(down.asked) as f64).collect()
}

/// Returns the value below which this part of the figures lies.
pub(crate) fn at(figures: &[f64], part: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(process: usize, granted: u64, released: u64, writes: bool) -> Grant {
        Grant { process, thread: 0, writes, asked: 0, granted, released }
    }

    #[test]
    fn two_holders_that_overlap_count_as_a_double_grant() {
        let apart = [grant(0, 10, 20, false), grant(1, 20, 30, false)];
        let together = [grant(0, 10, 20, false), grant(1, 19, 30, false)];
        assert_eq!((doubles(&apart, 1), doubles(&together, 1)), (0, 1));
        assert_eq!(doubles(&together, 2), 0);
    }

    #[test]
    fn readers_that_overlap_are_no_double_grant_and_writers_are() {
        let readers = [grant(0, 10, 20, false), grant(1, 15, 30, false)];
        let writer = [grant(0, 10, 20, false), grant(1, 15, 30, true)];
        assert_eq!((doubles(&readers, 0), doubles(&writer, 0)), (0, 1));
    }
}
