//! A client over TLS. Runs with `--features tls`, where the server's build has TLS.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::{Client, ErrorKind};
use redlatch_testkit::{Sentinels, Server, wait_until};

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
    // The last drop's release is on its way, over the other client's connection perhaps.
    let lock = clients[0].reentrant_lock("secret");
    wait_until("it is free", Duration::from_secs(20), || !lock.is_locked().unwrap());
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

/// Without any trust but in the one who has signed.
#[test]
fn an_authority_of_ones_own_is_trusted_and_no_other_is() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let (server, other) = (server(&[]), server(&[]));
    let connect = |authority: Vec<u8>| {
        Client::builder(&strict(&server)).tls_ca_certificates(authority).connect()
    };
    let own = fs::read(server.tls_authority()).unwrap();
    let others = fs::read(other.tls_authority()).unwrap();
    connect(own.clone()).unwrap().reentrant_lock("trusted").lock().unwrap().unlock().unwrap();
    // Several in one file.
    connect([others.clone(), own].concat()).unwrap();
    let error = connect(others).map(drop).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!error.is_transient(), "{error}");
}

#[test]
fn a_server_that_asks_who_the_client_is_lets_in_whom_it_knows() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let server = server(&["--tls-auth-clients", "yes"]);
    let other = self::server(&[]);
    let builder = || {
        let authority = fs::read(server.tls_authority()).unwrap();
        Client::builder(&strict(&server)).tls_ca_certificates(authority)
    };
    let identity = |server: &Server| server.tls_client().map(|file| fs::read(file).unwrap());

    let [certificate, key] = identity(&server);
    let client = builder().tls_client_certificate(certificate.clone(), key).connect().unwrap();
    client.reentrant_lock("mutual").lock().unwrap().unlock().unwrap();

    // The server says so and hangs up; on a busy machine the end may overtake the word.
    wait_until("the server's word is read", Duration::from_secs(20), || {
        let error = builder().connect().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Redis, "{error:#}");
        let is_said = format!("{error:#}").contains("wants a certificate of the client");
        assert!(!is_said || !error.is_transient(), "{error:#}");
        is_said
    });

    let [others, its_key] = identity(&other);
    let stranger = builder().tls_client_certificate(others, its_key.clone()).connect();
    assert_eq!(stranger.map(drop).unwrap_err().kind(), ErrorKind::Redis);
    wait_until("the server's refusal is read", Duration::from_secs(20), || {
        let identity = identity(&other);
        let [others, its_key] = identity;
        let stranger = builder().tls_client_certificate(others, its_key).connect();
        let error = stranger.map(drop).unwrap_err();
        error.to_string().contains("refuses the client certificate") && !error.is_transient()
    });
    let mixed = builder().tls_client_certificate(certificate, its_key).connect();
    let error = mixed.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error:#}");
}

/// Sentinels and servers alike, and the master's successor: one authority has signed them all.
#[test]
fn sentinels_and_the_masters_that_they_name_are_talked_to_over_tls() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let sentinels = Sentinels::builder().tls().start().unwrap();
    let builder = || Client::builder(&sentinels.url()).watchdog_timeout(Duration::from_secs(60));
    let authority = fs::read(sentinels.tls_authority()).unwrap();
    // On all replicas, or it does not count.
    let builder = || builder().tls_ca_certificates(authority.clone());
    let client = builder().replica_acks(2, Duration::from_secs(5)).connect().unwrap();
    let guard = client.reentrant_lock("held").lock().unwrap();
    let old = sentinels.master();
    old.kill();
    sentinels.wait_switched(old);
    builder().connect().unwrap().reentrant_lock("more").lock().unwrap().unlock().unwrap();
    assert!(guard.is_held());
    guard.unlock().unwrap();

    let url = sentinels.url();
    Client::connect(&format!("{url}#insecure")).unwrap();
    let error = Client::connect(&url).map(drop).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!error.is_transient(), "{error}");
}

#[test]
fn settings_that_cannot_be_used_are_an_error_of_connect() {
    let secure = "rediss://localhost:1";
    let fails = |builder: redlatch::ClientBuilder, word: &str| {
        let error = builder.connect().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error:#}");
        assert!(error.to_string().contains(word), "{error:#}");
        assert!(!format!("{error:#}").contains("secret"), "{error:#}");
    };
    fails(Client::builder(secure).tls_ca_certificates("secret"), "tls_ca_certificates");
    let mutual = Client::builder(secure).tls_client_certificate("secret", "secret");
    fails(mutual, "tls_client_certificate");
    fails(Client::builder("redis://localhost:1").tls_ca_certificates("secret"), "without TLS");
    let both = Client::builder("rediss://localhost:1/#insecure").tls_ca_certificates("secret");
    fails(both, "#insecure");
    let shown = Client::builder(secure).tls_client_certificate("secret", "secret");
    assert!(!format!("{shown:?}").contains("secret"));
}

fn server(args: &[&str]) -> Server {
    Server::builder().tls().args(args).start().unwrap()
}

/// Its URL without `#insecure`.
fn strict(server: &Server) -> String {
    server.tls_url().split('#').next().unwrap().to_owned()
}
