//! The speed of the in-memory server: `cargo test --release --all-features --test features speed --
//! --ignored --nocapture`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, InMemoryServer};
use redlatch_testkit::Server;
use rustix::time::{ClockId, clock_gettime};

const SECONDS: u64 = 3;

/// Returns the grants per second while `threads` threads take one lock, and the processor time of
/// the threads for each grant, in ns. On a busy machine only the second figure is stable.
fn rate(client: &Client, threads: usize) -> (u64, u64) {
    let (grants, time, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let lock = client.reentrant_lock("orders");
                while !ends.load(Ordering::Relaxed) {
                    drop(lock.lock().unwrap());
                    grants.fetch_add(1, Ordering::Relaxed);
                }
                let own = clock_gettime(ClockId::ThreadCPUTime);
                let nanos = own.tv_sec * 1_000_000_000 + own.tv_nsec;
                time.fetch_add(u64::try_from(nanos).unwrap(), Ordering::Relaxed);
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(SECONDS) {
            thread::sleep(Duration::from_millis(10));
        }
        ends.store(true, Ordering::Relaxed);
    });
    let grants = grants.into_inner();
    (grants / SECONDS, time.into_inner() / grants.max(1))
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let (server, real) = (InMemoryServer::new().unwrap(), Server::start().unwrap());
    let memory = server.client().unwrap();
    let redis = Client::connect(&real.url()).unwrap();
    for threads in [1, 8] {
        let (memory, redis) = (rate(&memory, threads), rate(&redis, threads));
        println!("{threads} threads, one name: {memory:?} in memory, {redis:?} with a server");
    }
}
