//! Random numbers for pauses, so that processes do not act at the same time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a random number from 0 to 1, evenly distributed. The number is good enough for waiting
/// times, but not for secrets.
///
/// The `rand` crate is not used, because its generator is a thread-local. In a thread whose
/// thread-locals are being destroyed, it would panic and end the process.
pub fn jitter(now: u64) -> f64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // The process id is read once, so that a waiter needs no system call for each number.
    static PROCESS: OnceLock<u32> = OnceLock::new();
    // The function is splitmix64. Its input differs between processes because of the process id,
    // and between calls because of the clock and the count. In a forked child, which has its
    // parent's process id here, the clock makes the input differ.
    let process = u64::from(*PROCESS.get_or_init(std::process::id));
    let count = COUNT.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    let mut bits = count ^ now ^ process.rotate_left(32);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^= bits >> 31;
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_evenly_though_the_clock_stands_still() {
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            let number = jitter(7);
            assert!((0.0..1.0).contains(&number), "{number}");
            tenths[(number * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (800..1_200).contains(count)), "{tenths:?}");
    }
}
