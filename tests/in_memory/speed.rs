//! How fast it is: `cargo test --release --features in-memory --test in_memory speed -- --ignored
//! --nocapture`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, InMemoryServer};
use redlatch_testkit::Server;

const SECONDS: u64 = 3;

/// Grants a second of so many threads that take one lock.
fn rate(client: &Client, threads: usize) -> u64 {
    let (grants, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let lock = client.reentrant_lock("orders");
                while !ends.load(Ordering::Relaxed) {
                    drop(lock.lock().unwrap());
                    grants.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(SECONDS) {
            thread::sleep(Duration::from_millis(10));
        }
        ends.store(true, Ordering::Relaxed);
    });
    grants.into_inner() / SECONDS
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let (server, real) = (InMemoryServer::new().unwrap(), Server::start().unwrap());
    let memory = server.client().unwrap();
    let redis = Client::connect(&real.url()).unwrap();
    for threads in [1, 8] {
        let (memory, redis) = (rate(&memory, threads), rate(&redis, threads));
        println!("{threads} threads, one name: {memory} a second in memory, {redis} with a server");
    }
}
