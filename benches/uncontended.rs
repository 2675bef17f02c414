//! The cost of the calls for a lock that no other thread wants, measured by criterion. Run this
//! bench with `cargo bench --bench uncontended`.
//!
//! With `one core`, client and server share a core. With `two cores`, client and server have a core
//! each: see `table/cores.rs`. `cargo bench --bench table` measures contended locks.

// An error ends the bench.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use redlatch::Client;
use redlatch_testkit::{PlainClient, Server};

#[allow(dead_code)]
#[path = "table/cores.rs"]
mod cores;
#[path = "table/raw.rs"]
mod raw;

use cores::{Cores, Machine};
use raw::RawPair;

criterion_main!(benches);
criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1));
    targets = round_trips, no_round_trips
}

/// Measures the calls that send requests.
fn round_trips(criterion: &mut Criterion) {
    let server = Server::start().unwrap();
    let machine = Machine::here();
    println!("{machine}");
    for cores in [Cores::One, Cores::Two] {
        if !machine.can(cores) {
            continue;
        }
        machine.server(cores).take_process(server.pid());
        // Pin this thread, which starts the client's threads: they stay on the same cores.
        machine.clients(cores).take();
        let mut raw = RawPair::connect(&server.url(), "raw");
        let plain = PlainClient::connect(&server.url()).unwrap();
        let mut plain = plain.lock("plain").handle().unwrap();
        let client = Client::connect(&server.url()).unwrap();
        let lock = client.reentrant_lock("ours");
        let fixed = lock.with_lease(Duration::from_secs(10));

        let mut group = criterion.benchmark_group(cores.to_string());
        group.bench_function("raw pair", |bencher| {
            bencher.iter(|| {
                raw.acquire();
                raw.release();
            });
        });
        group.bench_function("plain lock + unlock", |bencher| {
            bencher.iter(|| {
                plain.lock().unwrap();
                plain.unlock().unwrap()
            });
        });
        group.bench_function("lock + unlock", |bencher| {
            bencher.iter(|| lock.lock().unwrap().unlock().unwrap());
        });
        group.bench_function("lock + drop", |bencher| {
            bencher.iter(|| drop(lock.lock().unwrap()));
        });
        group.bench_function("try_lock + drop", |bencher| {
            bencher.iter(|| drop(lock.try_lock().unwrap().into_option().unwrap()));
        });
        group.bench_function("lock + drop, fixed lease", |bencher| {
            bencher.iter(|| drop(fixed.lock().unwrap()));
        });
        group.finish();
    }
    machine.clients(Cores::Any).take();
}

/// Measures the calls that send no request.
fn no_round_trips(criterion: &mut Criterion) {
    let server = Server::start().unwrap();
    let client = Client::connect(&server.url()).unwrap();
    let lock = client.reentrant_lock("held");
    let guard = lock.lock().unwrap();

    let mut group = criterion.benchmark_group("held");
    group.bench_function("re-entry: lock + unlock", |bencher| {
        bencher.iter(|| lock.lock().unwrap().unlock().unwrap());
    });
    group.bench_function("re-entry: lock + drop", |bencher| {
        bencher.iter(|| drop(lock.lock().unwrap()));
    });
    group.bench_function("check", |bencher| {
        bencher.iter(|| black_box(&guard).check(Duration::from_secs(1)).unwrap());
    });
    group.bench_function("a lock's handle", |bencher| {
        bencher.iter(|| client.reentrant_lock(black_box("held")));
    });
    group.finish();
}
