//! A client over TLS. The tests run only if the server's build has TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::{LONG_LEASE, TIME_UNIT, TIMEOUT, bound, once_within, spawn, wait_free};
use redlatch::{Client, ClientBuilder, Error, ErrorKind};
use redlatch_testkit::{Cluster, Sentinels, Server, wait_until};

/// The server has only a TLS port, so commands, waits and renewals all use TLS.
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
    // The release of the last drop is in flight, perhaps over the other client's connection.
    let lock = clients[0].reentrant_lock("secret");
    wait_until("it is free", Duration::from_secs(20), || !lock.is_locked().unwrap());
}

/// The client refuses a certificate without a trusted authority, unless the URL has `#insecure`.
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
    assert_eq!(error.kind(), ErrorKind::LoginRefused, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!error.is_transient(), "{error}");
}

/// Only one side uses TLS. Each side reads the other side's bytes in its own protocol, so one side
/// gets an error, and the other side waits.
#[test]
fn tls_on_one_side_only_is_said_so() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let server = Server::builder().tls().start().unwrap();
    let connect = |url: &str| {
        // Reading the system's certificates takes nearly 300 ms on a busy machine.
        let builder = Client::builder(url).connect_timeout(Duration::from_secs(3));
        builder.connect().map(drop).unwrap_err().to_string()
    };
    let plain = server.tls_url().replace("rediss://", "redis://").replace("#insecure", "");
    let said = connect(&plain);
    assert!(said.contains("rediss://"), "{said}");
    let said = connect(&format!("rediss://127.0.0.1:{}", server.port()));
    assert!(said.contains("without TLS (redis://)"), "{said}");
}

/// The client trusts only this authority.
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
    // One file may have several certificates.
    connect([others.clone(), own].concat()).unwrap();
    let error = connect(others).map(drop).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!error.is_transient(), "{error}");
}

#[test]
fn a_server_that_asks_for_client_certificates_lets_known_clients_in() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let server = server(&["--tls-auth-clients", "yes"]);
    let other = self::server(&[]);
    let builder = || trusting(&server);

    let (certificate, key) = identity(&server);
    let client = builder().tls_client_certificate(certificate.clone(), key).connect().unwrap();
    client.reentrant_lock("mutual").lock().unwrap().unlock().unwrap();

    // The server sends an alert and closes the connection. On a busy machine the client may see the
    // end of the connection before the alert.
    wait_until("the server's word is read", Duration::from_secs(20), || {
        let error = builder().connect().map(drop).unwrap_err();
        assert!(error.kind().is_server_trouble(), "{error:#}");
        let is_said = format!("{error:#}").contains("wants a certificate of the client");
        assert!(!is_said || !error.is_transient(), "{error:#}");
        is_said
    });

    let (others, its_key) = identity(&other);
    let stranger = builder().tls_client_certificate(others, its_key.clone()).connect();
    assert!(stranger.map(drop).unwrap_err().kind().is_server_trouble());
    wait_until("the server's refusal is read", Duration::from_secs(20), || {
        let (others, its_key) = identity(&other);
        let stranger = builder().tls_client_certificate(others, its_key).connect();
        let error = stranger.map(drop).unwrap_err();
        error.to_string().contains("refuses the client certificate") && !error.is_transient()
    });
    let mixed = builder().tls_client_certificate(certificate, its_key).connect();
    let error = mixed.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error:#}");
}

/// During the test the server begins to trust another authority, as after a change of all
/// certificates.
#[test]
fn a_client_certificate_that_has_changed_is_shown_by_the_next_connections() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    bound();
    let (server, other) = (server(&["--tls-auth-clients", "yes"]), server(&[]));
    let present = Arc::new(Mutex::new(identity(&server)));
    let (shown, asked) = (Arc::clone(&present), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&asked);
    let client = trusting(&server)
        // This certificate is not used.
        .tls_client_certificate("none", "none")
        .tls_client_certificate_with(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(shown.lock().unwrap().clone())
        })
        .connect()
        .unwrap();
    let guard = client.reentrant_lock("held").lock().unwrap();
    let before = asked.load(Ordering::SeqCst);
    redis::cmd("CONFIG")
        .arg(&["SET", "tls-ca-cert-file"])
        .arg(other.tls_authority().to_str())
        .exec(&mut server.connection())
        .unwrap();
    let stale = || client.reentrant_lock("more").try_lock().map(drop).unwrap_err();
    hang_up(&server);
    wait_until("the server refuses the old one", Duration::from_secs(20), || {
        stale().to_string().contains("refuses the client certificate")
    });
    *present.lock().unwrap() = identity(&other);
    client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
    assert!(asked.load(Ordering::SeqCst) > before + 1);
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

/// The user's function for certificates may fail, panic or never return. No hold and no thread
/// depends on it.
#[test]
fn code_for_a_client_certificate_that_fails_is_an_outage_and_no_more() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    bound();
    let server = server(&["--tls-auth-clients", "yes"]);
    let (good, strange) = (identity(&server), identity(&self::server(&[])).1);
    let (mode, hangs) = (Arc::new(AtomicU64::new(0)), Arc::new(Barrier::new(2)));
    let (told, hung) = (Arc::clone(&mode), Arc::clone(&hangs));
    let client = trusting(&server)
        .watchdog_timeout(LONG_LEASE)
        .connect_timeout(TIME_UNIT * 10)
        .tls_client_certificate_with(move || {
            match told.load(Ordering::SeqCst) {
                1 => return Err("the vault is sealed".into()),
                2 => panic!("as the test wants it"),
                3 => return Ok((b"secret".to_vec(), b"secret".to_vec())),
                4 => return Ok((good.0.clone(), strange.clone())),
                5 => drop(hung.wait()),
                _ => {}
            }
            Ok(good.clone())
        })
        .connect()
        .unwrap();
    let guard = client.reentrant_lock("held").lock().unwrap();
    for (now, said) in [
        (1, "no client certificate: the vault is sealed"),
        (2, "tls_client_certificate_with panicked"),
        (3, "tls_client_certificate_with: there is no certificate"),
        (4, "tls_client_certificate_with: keys may not be consistent"),
        (5, "tls_client_certificate_with did not return in time"),
    ] {
        mode.store(now, Ordering::SeqCst);
        hang_up(&server);
        wait_until(said, TIMEOUT, || {
            let Err(error) = client.reentrant_lock("next").try_lock().map(drop) else {
                return false;
            };
            assert!(error.is_transient() && error.kind() == ErrorKind::Unavailable, "{error:#}");
            assert!(!format!("{error:#} {error:?}").contains("secret"), "{error:#}");
            format!("{error:#}").contains(said)
        });
        mode.store(0, Ordering::SeqCst);
        if now == 5 {
            hangs.wait();
        }
        wait_until("it goes on", TIMEOUT, || client.reentrant_lock("next").is_locked().is_ok());
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

/// One authority has signed the certificates of the Sentinels, the servers and the next master.
#[test]
fn sentinels_and_the_masters_that_they_name_are_talked_to_over_tls() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    let sentinels = Sentinels::builder().tls().start().unwrap();
    let builder = || Client::builder(&sentinels.url()).watchdog_timeout(Duration::from_secs(60));
    let authority = fs::read(sentinels.tls_authority()).unwrap();
    // A lock is granted only when all replicas have it.
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

/// The servers name each other by their TLS ports.
#[test]
fn a_cluster_is_used_over_tls() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    bound();
    let cluster = Cluster::with_tls("word").unwrap();
    let authority = fs::read(cluster.servers()[0].tls_authority()).unwrap();
    let clients = [(); 2].map(|()| {
        let builder = Client::builder(&cluster.tls_url()).watchdog_timeout(LONG_LEASE);
        builder.tls_ca_certificates(authority.clone()).connect().unwrap()
    });
    // Each server has another certificate.
    for name in ["a", "b", "c"] {
        let guard = clients[0].reentrant_lock(name).lock().unwrap();
        let waiter = clients[1].reentrant_lock(name);
        let waiting = spawn(move || waiter.lock().unwrap().unlock().unwrap());
        waiting.wait_asleep();
        guard.unlock().unwrap();
        waiting.join();
    }
    assert!(Client::connect(&cluster.tls_url()).unwrap_err().to_string().contains("certificate"));
}

/// A server that hangs accepts connections, but answers no command and completes no handshake.
#[test]
fn a_limit_ends_calls_to_a_server_that_hangs_and_leaves_nothing_behind() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    bound();
    let server = server(&[]);
    let builder = Client::builder(&server.tls_url()).watchdog_timeout(LONG_LEASE).connections(1);
    let client = builder.response_timeout(TIMEOUT).connect_timeout(TIMEOUT).connect().unwrap();
    let lock = client.reentrant_lock("hung");
    for is_open in [true, false] {
        // After this, the server knows the scripts, and the connection is open.
        lock.lock().unwrap().unlock().unwrap();
        if !is_open {
            let kill = ["KILL", "TYPE", "normal"];
            redis::cmd("CLIENT").arg(&kill).exec(&mut server.connection()).unwrap();
        }
        server.pause();
        once_within(TIME_UNIT / 5, || {
            let until = Instant::now() + TIME_UNIT;
            let outcome = lock.try_lock_for(TIME_UNIT);
            let late = until.elapsed();
            is_unanswered(outcome.map(|guard| guard.into_option().is_some()));
            late
        });
        server.resume();
        wait_free(&server, "hung", TIMEOUT);
    }
}

/// Asserts that a call got no reply, or returned `NotTaken` because the server had answered just
/// before.
#[track_caller]
fn is_unanswered(outcome: Result<bool, Error>) {
    match outcome {
        Ok(is_granted) => assert!(!is_granted),
        Err(error) => {
            assert!(error.kind().is_server_trouble(), "{error:#}");
            assert!(error.is_transient(), "{error:#}");
        }
    }
}

/// A call ends in the middle of a record. The next call reads the other part of the record over the
/// same connection.
#[test]
fn a_limit_in_the_middle_of_a_tls_record_leaves_the_connection_as_good_as_before() {
    if !Server::supports_tls() {
        println!("skipped: this server has no TLS");
        return;
    }
    bound();
    let server = server(&[]);
    let (relay, url) = Relay::before(&server);
    let builder = Client::builder(&url).watchdog_timeout(LONG_LEASE).connections(1);
    let client = builder.response_timeout(TIMEOUT).connect().unwrap();
    let (cut, next) = (client.reentrant_lock("cut"), client.reentrant_lock("next"));
    cut.lock().unwrap().unlock().unwrap();
    let before = relay.opened();
    for _ in 0..3 {
        relay.halve_next();
        is_unanswered(cut.try_lock_for(TIME_UNIT).map(|guard| guard.into_option().is_some()));
        relay.deliver_rest();
        assert!(!next.is_locked().unwrap());
        next.lock().unwrap().unlock().unwrap();
        wait_free(&server, "cut", TIMEOUT);
    }
    assert_eq!(relay.opened(), before);
    drop((cut, next, client));
}

/// A proxy that stops in the middle of the server's bytes.
struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    halved: Receiver<()>,
    go_on: Sender<()>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    server: SocketAddr,
    is_over: AtomicBool,
    opened: AtomicUsize,
    halves: AtomicBool,
    halved: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Relay {
    /// Starts a relay in front of a server. Returns the relay, and the URL that leads through it.
    fn before(server: &Server) -> (Self, String) {
        let url = server.tls_url();
        let (_, rest) = url.split_once("://").unwrap();
        let (behind, path) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("rediss://{address}/{path}");
        let ((halves, halved), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        let shared = Arc::new(Shared {
            server: behind.parse().unwrap(),
            is_over: AtomicBool::new(false),
            opened: AtomicUsize::new(0),
            halves: AtomicBool::new(false),
            halved: halves,
            goes_on: Mutex::new(goes_on),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = Some(thread::spawn(move || accepting.accept(&listener)));
        (Self { address, shared, halved, go_on, acceptor }, url)
    }

    fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// Delivers only the first half of the server's next bytes.
    fn halve_next(&self) {
        self.shared.halves.store(true, Ordering::SeqCst);
    }

    fn deliver_rest(&self) {
        self.halved.recv_timeout(TIMEOUT).unwrap();
        self.go_on.send(()).unwrap();
    }
}

impl Shared {
    fn accept(&self, listener: &TcpListener) {
        thread::scope(|scope| {
            while let (Ok((client, _)), false) =
                (listener.accept(), self.is_over.load(Ordering::SeqCst))
            {
                self.opened.fetch_add(1, Ordering::SeqCst);
                let server = TcpStream::connect(self.server).unwrap();
                let (to_server, to_client) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                scope.spawn(move || self.copy(client, to_server, false));
                scope.spawn(move || self.copy(server, to_client, true));
            }
        });
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, is_reply: bool) {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let (first, rest) = if is_reply && self.halves.swap(false, Ordering::SeqCst) {
                bytes[..length].split_at(length / 2)
            } else {
                (&bytes[..length], &[][..])
            };
            let mut sent = to.write_all(first);
            if !rest.is_empty() {
                self.halved.send(()).unwrap();
                self.goes_on.lock().unwrap().recv().unwrap();
                sent = sent.and_then(|()| to.write_all(rest));
            }
            if sent.is_err() {
                break;
            }
        }
        let _closed = to.shutdown(Shutdown::Both);
    }
}

impl Drop for Relay {
    /// The relay must be dropped after its clients.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // A test that fails may have left half of the bytes in the relay.
        let _lets_go = self.go_on.send(());
        drop(TcpStream::connect(self.address));
        let ended = self.acceptor.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

#[test]
fn settings_that_cannot_be_used_are_an_error_of_connect() {
    let secure = "rediss://localhost:1";
    let fails = |builder: ClientBuilder, word: &str| {
        let error = builder.connect().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error:#}");
        assert!(error.to_string().contains(word), "{error:#}");
        assert!(!format!("{error:#}").contains("secret"), "{error:#}");
    };
    fails(Client::builder(secure).tls_ca_certificates("secret"), "tls_ca_certificates");
    let mutual = Client::builder(secure).tls_client_certificate("secret", "secret");
    fails(mutual, "tls_client_certificate");
    let plain = Client::builder("redis://localhost:1");
    fails(plain.tls_client_certificate_with(|| Err("unasked".into())), "without TLS");
    fails(Client::builder("redis://localhost:1").tls_ca_certificates("secret"), "without TLS");
    let both = Client::builder("rediss://localhost:1/#insecure").tls_ca_certificates("secret");
    fails(both, "#insecure");
    let shown = Client::builder(secure).tls_client_certificate("secret", "secret");
    assert!(!format!("{shown:?}").contains("secret"));
}

fn server(args: &[&str]) -> Server {
    Server::builder().tls().args(args).start().unwrap()
}

/// Returns the server's URL without `#insecure`.
fn strict(server: &Server) -> String {
    server.tls_url().split('#').next().unwrap().to_owned()
}

/// Returns the settings for a client that trusts the server's authority.
fn trusting(server: &Server) -> ClientBuilder {
    let authority = fs::read(server.tls_authority()).unwrap();
    Client::builder(&strict(server)).tls_ca_certificates(authority)
}

/// Returns the certificate and the key of the server's clients.
fn identity(server: &Server) -> (Vec<u8>, Vec<u8>) {
    let [certificate, key] = server.tls_client().map(|file| fs::read(file).unwrap());
    (certificate, key)
}

/// Closes all connections, with and without TLS.
fn hang_up(server: &Server) {
    redis::cmd("CLIENT").arg(&["KILL", "SKIPME", "yes"]).exec(&mut server.connection()).unwrap();
}
