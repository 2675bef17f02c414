//! Metrics in Prometheus's text format without another crate: counters from `snapshot`, and the
//! longest wait from an observer. The feature `metrics` has histograms for the crate `metrics`.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redlatch::observe::{Event, Observer, Way};
use redlatch::{Client, Error};

#[derive(Default)]
struct LongestWait(AtomicU64);

impl Observer for LongestWait {
    fn acquired(&self, event: &Event<'_, Way>) {
        let waited = u64::try_from(event.time.as_micros()).unwrap_or(u64::MAX);
        self.0.fetch_max(waited, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let longest = Arc::new(LongestWait::default());
    let client = Client::builder(&url).observer(Arc::clone(&longest)).connect()?;
    client.reentrant_lock("orders").lock()?.unlock()?;
    let counts = client.snapshot().counts;
    println!("locks_acquired_total {}", counts.acquired);
    println!("locks_lost_total {}", counts.lost);
    println!("lock_renewals_failed_total {}", counts.renewal_failed);
    println!("lock_longest_wait_microseconds {}", longest.0.swap(0, Ordering::Relaxed));
    Ok(())
}
