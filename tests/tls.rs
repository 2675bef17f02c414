//! A client over TLS. Runs with `--features tls`, where the server's build has TLS.
#![cfg(feature = "tls")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::{Client, ErrorKind};
use redlatch_testkit::Server;

/// Commands, waiting and renewal all go over TLS: the server listens to nothing else.
#[test]
fn locks_work_over_tls() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let server = Server::builder().tls().start().unwrap();
    let clients: Vec<_> = (0..2).map(|_| Client::connect(&server.tls_url()).unwrap()).collect();
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|at| {
            let lock = clients[at % 2].reentrant_lock("secret");
            let inside = Arc::clone(&inside);
            thread::spawn(move || {
                for _ in 0..50 {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(!clients[0].reentrant_lock("secret").is_locked().unwrap());
}

/// A certificate that nobody vouches for is refused, unless the URL says `#insecure`.
#[test]
fn an_unknown_certificate_is_refused() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let server = Server::builder().tls().start().unwrap();
    let url = server.tls_url();
    let strict = url.split('#').next().unwrap();
    let error = Client::connect(strict).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!error.is_transient(), "{error}");
}

/// Each end takes the other's words for its own protocol's, and one of them only waits.
#[test]
fn tls_on_one_side_only_is_said_so() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let server = Server::builder().tls().start().unwrap();
    let connect = |url: &str| {
        // To read the system's certificates takes a part of it, on a busy machine most of 300 ms.
        let builder = Client::builder(url).connect_timeout(Duration::from_secs(3));
        builder.connect().map(drop).unwrap_err().to_string()
    };
    let plain = server.tls_url().replace("rediss://", "redis://").replace("#insecure", "");
    let said = connect(&plain);
    assert!(said.contains("rediss://"), "{said}");
    let said = connect(&format!("rediss://127.0.0.1:{}", server.port()));
    assert!(said.contains("without TLS (redis://)"), "{said}");
}
