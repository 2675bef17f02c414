//! Bad input either works, or causes a clear error in the first call that can notice it. Bad input
//! never causes a panic, an overflow or a hang, and no output shows a password.

use std::error::Error as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::*;
use redlatch::{Attempt, CancelToken, Client, Error, ErrorKind, LockGuard, ReentrantLock};
use redlatch_testkit::Server;

const SECRET: &str = "correcthorsebattery";

// Names.

#[test]
fn an_empty_name_is_an_error_of_each_call_that_needs_the_server() {
    let server = server();
    let lock = client(&server).reentrant_lock("");
    let before = Commands::so_far(&server).of_locks();
    let errors = [
        lock.lock().map(drop).unwrap_err(),
        lock.try_lock().map(drop).unwrap_err(),
        lock.try_lock_for(TIMEOUT).map(drop).unwrap_err(),
        lock.try_lock_until(Instant::now()).map(drop).unwrap_err(),
        lock.lock_cancellable(&CancelToken::new()).map(drop).unwrap_err(),
        lock.with(|_| Ok(())).unwrap_err(),
        lock.force_unlock().map(drop).unwrap_err(),
        lock.is_locked().map(drop).unwrap_err(),
        lock.remaining_lease().map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("empty"), "{error}");
    }
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!((lock.name(), lock.hold_count(), lock.is_held_by_current_thread()), ("", 0, false));
    assert_eq!(Commands::so_far(&server).of_locks(), before);
}

#[test]
fn every_other_name_works() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let long = "n".repeat(64 * 1024);
    let long_unicode = "\u{1F512}é".repeat(16 * 1024);
    let names = [
        " ",
        "\0",
        "a\0b",
        "\r\n",
        "*3\r\n$3\r\nDEL",
        "größe",
        "\u{1F512}\u{202E}",
        "{",
        "}",
        "{}",
        "{}a",
        "a{b",
        "a}b",
        "a{b}c{d}",
        "%s%n \\ \" ' *?[a]",
        &long,
        &long_unicode,
    ];
    for name in names {
        let (mine, theirs) = (one.reentrant_lock(name), other.reentrant_lock(name));
        assert_eq!(mine.name(), name);
        woken_by_message(|| {
            let guard = mine.lock().unwrap();
            assert!(holder(&mut server.connection(), name).is_some());
            // A thread can also wait for the lock.
            let theirs = theirs.clone();
            let waiter = spawn(move || {
                theirs
                    .try_lock_for(TIMEOUT)
                    .unwrap()
                    .into_option()
                    .expect("it is released")
                    .unlock()
                    .unwrap();
            });
            wait_in_line(&server, name, 1);
            guard.unlock().unwrap();
            waiter.join();
        });
        assert!(!mine.is_locked().unwrap());
        // Errors and guards can be formatted.
        let error = mine.unlock().unwrap_err().to_string();
        assert!(error.len() < 1_000, "{} bytes", error.len());
        let shown = format!("{mine:?} {:?}", mine.lock().unwrap());
        assert!(!shown.is_empty());
    }
}

// The following tests are about leases and waits.

/// Makes calls that must work with every valid lease.
fn works(lock: &ReentrantLock) -> Result<(), Error> {
    let guard = lock.lock()?;
    let _ = (guard.remaining(), guard.state(), guard.check(Duration::MAX).is_ok());
    match guard.unlock() {
        // A lease of a millisecond may already be over.
        Err(error) if error.kind() == ErrorKind::LeaseLost => Ok(()),
        outcome => outcome,
    }
}

#[test]
fn a_lease_below_a_millisecond_or_of_ages_is_an_error() {
    let server = server();
    let client = client(&server);
    for lease in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(1),
        Duration::from_micros(999),
        Duration::from_millis(1_000_000_000_000_001),
        Duration::from_secs(u64::MAX / 1_000),
        Duration::MAX,
    ] {
        let lock = client.reentrant_lock("lease").with_lease(lease);
        let errors = [
            lock.lock().map(drop).unwrap_err(),
            lock.try_lock().map(drop).unwrap_err(),
            lock.try_lock_for(TIMEOUT).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Config, "{lease:?}: {error}");
            assert!(error.to_string().contains("lease"), "{error}");
        }
        // A re-entry also works, and does not change the lease of the outer guard.
        let outer = client.reentrant_lock("lease").lock().unwrap();
        assert_eq!(lock.lock().map(drop).unwrap_err().kind(), ErrorKind::Config);
        assert_eq!(lock.hold_count(), 1);
        outer.unlock().unwrap();
        assert!(!lock.is_locked().unwrap());
    }
}

#[test]
fn a_lease_between_works() {
    let server = server();
    let client = client(&server);
    for millis in [1, 2, 3, 10_u64.pow(10), 10_u64.pow(13)] {
        let lock = client.reentrant_lock("lease").with_lease(Duration::from_millis(millis));
        // A very short lease may end before the reply. Then the call returns an error, and no hold
        // stays.
        if let Err(error) = works(&lock) {
            assert!(millis < 10, "{millis} ms: {error}");
            let late = error.to_string().contains("before the reply was read");
            assert!(late || error.kind() == ErrorKind::LeaseLost, "{error}");
        }
        wait_free(&server, "lease", TIMEOUT);
    }
    let lock = client.reentrant_lock("lease").with_lease(Duration::from_millis(10_u64.pow(13)));
    let guard = lock.lock().unwrap();
    assert!(guard.remaining() > Duration::from_millis(10_u64.pow(13) / 10 * 9));
    let left = lock.remaining_lease().unwrap().unwrap();
    assert!(left > Duration::from_millis(10_u64.pow(13) / 10 * 9), "{left:?}");
    // The waiters of this lock sleep no longer than other waiters.
    let other = Client::connect(&server.url()).unwrap().reentrant_lock("lease");
    assert!(answered(|| other.try_lock_for(TIME_UNIT)).into_option().is_none());
    // A fraction of a millisecond is ignored.
    let odd = client.reentrant_lock("odd").with_lease(Duration::from_micros(1_500_900));
    let guards = (guard, odd.lock().unwrap());
    assert!(pttl(&mut server.connection(), "odd") <= 1_500);
    drop(guards);
}

#[test]
fn waits_of_nothing_and_of_ages_work() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = other.reentrant_lock("wait");
    for wait in [Duration::ZERO, Duration::from_nanos(1), TIMEOUT, Duration::MAX] {
        works_with(answered(|| lock.try_lock_for(wait)));
    }
    works_with(answered(|| lock.try_lock_until(Instant::now())));
    woken_by_message(|| {
        let guard = one.reentrant_lock("wait").lock().unwrap();
        for wait in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(1)] {
            assert!(answered(|| lock.try_lock_for(wait)).into_option().is_none());
        }
        assert!(answered(|| lock.try_lock_until(Instant::now())).into_option().is_none());
        // A wait without a limit ends at a release by the server or by a thread of this process.
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let lock = lock.clone();
                spawn(move || works_with(lock.try_lock_for(Duration::MAX).unwrap()))
            })
            .collect();
        waiters.iter().for_each(Running::wait_asleep);
        guard.unlock().unwrap();
        waiters.into_iter().for_each(Running::join);
    });
}

fn works_with(guard: Attempt<LockGuard>) {
    guard.into_option().expect("it is free").unlock().unwrap();
}

#[test]
fn a_thread_may_nest_a_lock_deeply() {
    let server = server();
    let lock = client(&server).reentrant_lock("deep");
    let guards: Vec<_> = (0..20_000).map(|_| lock.lock().unwrap()).collect();
    assert_eq!(lock.hold_count(), 20_000);
    drop(guards);
    wait_free(&server, "deep", TIMEOUT);
}

// Settings that are out of range.

#[test]
fn settings_that_cannot_be_meant_are_errors() {
    let server = server();
    let url = server.url();
    let builder = || Client::builder(&url);
    for (setting, builder) in [
        ("watchdog_timeout", builder().watchdog_timeout(Duration::ZERO)),
        ("watchdog_timeout", builder().watchdog_timeout(Duration::from_nanos(1))),
        ("watchdog_timeout", builder().watchdog_timeout(Duration::MAX)),
        ("max_hold", builder().max_hold(Duration::ZERO)),
        ("connect_timeout is 0ns; it must be from 1 ms to a year", {
            builder().connect_timeout(Duration::ZERO)
        }),
        ("connect_timeout", builder().connect_timeout(Duration::MAX)),
        ("response_timeout", builder().response_timeout(Duration::ZERO)),
        ("response_timeout", builder().response_timeout(Duration::MAX)),
        ("busy_poll", builder().busy_poll(Duration::from_millis(2))),
        ("connections", builder().connections(0)),
        ("connections", builder().connections(usize::MAX)),
    ] {
        let error = builder.connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(setting), "{error}");
    }
}

#[test]
fn settings_at_their_limits_work() {
    let server = server();
    let year = Duration::from_secs(365 * 24 * 3600);
    let url = server.url();
    for builder in [
        Client::builder(&url).watchdog_timeout(year).max_hold(Duration::MAX),
        Client::builder(&url).connect_timeout(year).response_timeout(year),
        Client::builder(&url).connections(64),
    ] {
        let client = builder.connect().unwrap();
        let lock = client.reentrant_lock("limits");
        lock.lock().unwrap().unlock().unwrap();
        drop(lock.lock().unwrap());
    }
    // The shortest watchdog may be too short for this machine, but it causes no panic.
    let client =
        Client::builder(&url).watchdog_timeout(Duration::from_millis(10)).connect().unwrap();
    let lock = client.reentrant_lock("shortest");
    let until = Instant::now() + TIME_UNIT * 3;
    while Instant::now() < until {
        match lock.lock() {
            Ok(guard) => {
                thread::sleep(TIME_UNIT / 4);
                let _ = guard.unlock();
            }
            // The lease was over before the thread got it, several times in a row.
            Err(error) => {
                let late = error.is_transient() || error.kind() == ErrorKind::LeaseLost;
                assert!(late, "{error}");
            }
        }
    }
}

// Servers.

#[test]
fn a_url_that_is_none_is_an_error_of_the_setting() {
    bound();
    for url in [
        "",
        " ",
        "localhost",
        "http://localhost/",
        "redis://",
        "redis:",
        "redis://localhost:port",
        "redis://localhost:99999",
        "redis://localhost/database",
        "redis://[::1",
        "\0",
        "redis://:correcthorsebattery@[",
        "redis://u:correcthorsebattery@localhost:port",
        "redis://u:correcthorsebattery/x@localhost",
        "redis://u:correcthorsebattery#x@localhost",
        "correcthorsebattery@localhost",
        "redis://localhost?timeout=5",
        "redis://localhost?password=correcthorsebattery",
        "unix",
    ] {
        let error = Client::connect(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url:?}: {error}");
        assert!(!error.to_string().is_empty());
        shows_no_secret(&error);
    }
}

#[test]
fn tls_is_used_or_said_to_be_missing() {
    bound();
    let error = Client::builder("rediss://127.0.0.1:1/")
        .connect_timeout(TIME_UNIT * 5)
        .connect()
        .unwrap_err();
    let said = error.to_string();
    if cfg!(feature = "tls") {
        assert!(error.kind().is_server_trouble(), "{said}");
    } else {
        assert_eq!(error.kind(), ErrorKind::Config, "{said}");
        assert!(said.contains("tls"), "{said}");
    }
}

/// Returns a port without a listener, which was free a moment ago.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn an_absent_server_is_said_so_soon() {
    bound();
    let begun = Instant::now();
    for url in [
        format!("redis://127.0.0.1:{}/", closed_port()),
        format!("redis://:{SECRET}@127.0.0.1:{}/", closed_port()),
        "redis+unix:///nowhere/at/all.sock".to_owned(),
        "redis://nowhere.invalid/".to_owned(),
    ] {
        let builder = Client::builder(&url).connect_timeout(TIME_UNIT * 10);
        let error = builder.connect().unwrap_err();
        assert!(error.kind().is_server_trouble(), "{url}: {error}");
        assert!(error.to_string().contains("no connection"), "{error}");
        // The message contains the system's text, and there is no further source.
        assert!(error.to_string().contains(" (") && error.source().is_none(), "{error}");
        assert!(error.is_transient() && !error.outcome_unknown());
        shows_no_secret(&error);
    }
    assert!(begun.elapsed() < TIMEOUT);
}

/// Asserts that the error and its causes do not show the password.
#[track_caller]
fn shows_no_secret(error: &Error) {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(source) = cause {
        shown += &format!(" {source} {source:?}");
        cause = source.source();
    }
    assert!(!shown.contains(SECRET), "{shown}");
}

fn locked_server() -> Server {
    Server::builder().password(SECRET).start().unwrap()
}

#[test]
fn a_password_that_is_wrong_missing_or_needless_is_said_so() {
    let (server, open) = (locked_server(), server());
    let address = format!("127.0.0.1:{}", server.port());
    for url in [
        format!("redis://:wrong{SECRET}@{address}/"),
        format!("redis://somebody:{SECRET}@{address}/"),
        format!("redis://:{SECRET}@127.0.0.1:{}/", open.port()),
    ] {
        let error = Client::connect(&url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LoginRefused, "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        shows_no_secret(&error);
    }
    let error = Client::connect(&format!("redis://{address}/")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LoginRefused, "{error}");
    assert!(error.to_string().contains("password"), "{error}");
}

#[test]
fn nothing_shows_the_password() {
    bound();
    let server = locked_server();
    for url in [server.url(), server.unix_url()] {
        assert!(url.contains(SECRET));
        let builder = impatient(&url);
        let mut shown = format!("{builder:?}");
        let client = builder.connect().unwrap();
        let lock = client.reentrant_lock("secret");
        let guard = lock.lock().unwrap();
        shown += &format!("{client:?} {client:#?} {lock:?} {lock:#?} {guard:?} {guard:#?}");
        assert!(!shown.contains(SECRET), "{shown}");
        guard.unlock().unwrap();
        server.pause();
        shows_no_secret(&lock.lock().map(drop).unwrap_err());
        server.resume();
        server.kill();
        // The client may find any of these faults first.
        for _ in 0..2 {
            shows_no_secret(&lock.lock().map(drop).unwrap_err());
        }
        server.restart_empty();
    }
}

#[test]
fn a_server_that_repeats_the_password_is_not_quoted() {
    bound();
    // The server repeats any unknown command with its arguments.
    let args = ["--rename-command", "AUTH", "hidden", "--rename-command", "HELLO", "hidden2"];
    let Ok(server) = Server::with_args(&args) else {
        eprintln!("left out: this server cannot rename commands");
        return;
    };
    let address = format!("127.0.0.1:{}", server.port());
    // The second password is longer than the part that the server repeats.
    for password in [SECRET.to_owned(), SECRET.repeat(20)] {
        for (url, kind) in [
            (format!("redis://:{password}@{address}"), ErrorKind::LoginRefused),
            (format!("redis://user:{password}@{address}"), ErrorKind::LoginRefused),
            (format!("redis://user:{password}@{address}?protocol=resp3"), ErrorKind::Config),
        ] {
            let error = Client::connect(&url).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            shows_no_secret(&error);
        }
    }
    for answer in [
        &b"-ERR correcthorsebattery is no password of mine\r\n"[..],
        b"-WRONGPASS correcthorsebattery is no password of mine\r\n",
    ] {
        let impostor = Impostor::answering(Some(answer));
        for protocol in ["resp2", "resp3"] {
            let url = format!("redis://:{SECRET}@127.0.0.1:{}?protocol={protocol}", impostor.port);
            shows_no_secret(&Client::connect(&url).unwrap_err());
        }
    }
}

/// Takes and releases one of each synchronizer.
fn use_all(client: &Client) -> Vec<(&'static str, Result<(), Error>)> {
    let lock = client.reentrant_lock("lock");
    let (semaphore, latch) = (client.semaphore("semaphore"), client.count_down_latch("latch"));
    let expirable = client.expirable_semaphore("expirable");
    let waited = || {
        let guard = lock.lock()?;
        let _ = lock.condition("condition").wait_for(&guard, TIME_UNIT)?;
        guard.unlock()
    };
    let counted = || {
        latch.try_set_count(1)?;
        latch.count_down()
    };
    vec![
        ("a lock", lock.lock().and_then(LockGuard::unlock)),
        (
            "try_lock",
            lock.try_lock().and_then(|guard| guard.into_option().map_or(Ok(()), |it| it.unlock())),
        ),
        ("a fenced lock", client.fenced_lock("fenced").with(|_| Ok(()))),
        ("a fair lock", client.fair_lock("fair").with(|_| Ok(()))),
        ("a condition", waited()),
        ("a semaphore", semaphore.add_permits(1).and_then(|()| semaphore.acquire()?.release())),
        (
            "an expirable semaphore",
            expirable.add_permits(1).and_then(|()| expirable.acquire()?.release()),
        ),
        ("a latch", counted()),
    ]
}

#[test]
fn a_command_that_was_renamed_is_said_to_be_missing() {
    bound();
    for command in ["TIME", "HSET", "PEXPIRE", "SET", "ZADD", "SUBSCRIBE"] {
        let Ok(server) = Server::with_args(&["--rename-command", command, ""]) else {
            eprintln!("left out: this server cannot rename commands");
            return;
        };
        let client = impatient(&server.url()).connect().unwrap();
        let used = use_all(&client);
        assert!(used.iter().any(|(_, used)| used.is_err()), "{command} is not needed");
        for (what, used) in used {
            let Err(error) = used else { continue };
            assert_eq!(error.kind(), ErrorKind::Denied, "{command}, {what}: {error}");
            assert!(
                !error.is_transient() && !error.outcome_unknown(),
                "{command}, {what}: {error}"
            );
            let said = error.to_string();
            let is_clear = said.contains("rename-command") && said.contains("a proxy");
            assert!(is_clear, "{command}, {what}: {error}");
            // Some errors name the rights of another kind: "A fair lock needs the rights of a lock,
            // and …"
            let named = said.contains(command) || said.contains("rights of a lock");
            assert!(named, "{command}, {what}: {error}");
        }
    }
}

#[test]
fn a_database_that_is_not_there_is_an_error() {
    let server = server();
    let error = Client::connect(&format!("{}99", server.url())).unwrap_err();
    assert!(error.kind() == ErrorKind::Config || error.kind().is_server_trouble(), "{error}");
    let client = Client::connect(&format!("{}3", server.url())).unwrap();
    let guard = client.reentrant_lock("third").lock().unwrap();
    assert_eq!(holder(&mut server.connection(), "third"), None, "it is in another database");
    guard.unlock().unwrap();
}

#[test]
fn a_unix_socket_does_as_well() {
    let server = server();
    let (one, other) = (Client::connect(&server.unix_url()).unwrap(), client(&server));
    // Each client wakes the other client in turn, so each client also subscribes.
    for (releases, waits) in [(&one, &other), (&other, &one)] {
        woken_by_message(|| {
            let guard = releases.reentrant_lock("socket").lock().unwrap();
            let lock = waits.reentrant_lock("socket");
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            wait_in_line(&server, "socket", 1);
            waiter.wait_asleep();
            drop(guard);
            waiter.join();
        });
    }
}

/// A program that listens on a port and is not Redis.
struct Impostor {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Impostor {
    /// Answers every command with `answer`. If `answer` is `None`, answers nothing.
    fn answering(answer: Option<&'static [u8]>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut silent = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                match answer {
                    Some(answer) => {
                        let _ = stream.read(&mut [0; 4096]);
                        let _ = stream.write_all(answer);
                    }
                    None => silent.push(stream),
                }
            }
        });
        Self { port, stop, thread: Some(thread) }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn connect_says_that_a_server_is_no_redis() {
    bound();
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
        b"220 mail.example ESMTP\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x00\x02",
        b"\0\0\0\0\0\0\0\0",
        b"$-5\r\n",
        b"*99999999999\r\n",
        b"$999999999999\r\n",
        b"",
    ] {
        let impostor = Impostor::answering(Some(answer));
        let begun = Instant::now();
        let error = impatient(&impostor.url()).connect().unwrap_err();
        let shown = String::from_utf8_lossy(answer);
        assert!(
            error.kind() == ErrorKind::Protocol || error.kind().is_server_trouble(),
            "{shown:?}: {error}"
        );
        assert!(begun.elapsed() < TIMEOUT, "{shown:?}");
    }
    let impostor = Impostor::answering(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let error = Client::connect(&impostor.url()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("not a Redis"), "{error}");
    let all = format!("{error:#} {error:?}");
    assert!(!all.contains('\n') && !all.contains("Unexpected"), "{all}");
}

#[test]
fn connect_says_in_time_that_a_server_never_answers() {
    bound();
    let impostor = Impostor::answering(None);
    let begun = Instant::now();
    let error = impatient(&impostor.url()).response_timeout(LONG_LEASE).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResponseTimeout, "{error}");
    assert!(error.to_string().contains("connect_timeout"), "{error}");
    let took = begun.elapsed();
    // A client without this timeout would wait for the response timeout, or for ever.
    assert!(took >= SHORT_TIMEOUT && took < TIMEOUT, "{took:?}");
}

#[test]
fn trouble_with_a_server_says_which() {
    bound();
    let server = locked_server();
    let address = format!("127.0.0.1:{}", server.port());
    let says_where = |error: Error| {
        assert!(error.to_string().contains(&address), "{error}");
        shows_no_secret(&error);
    };
    says_where(Client::connect(&format!("redis://:wrong{SECRET}@{address}/")).unwrap_err());
    says_where(Client::connect(&format!("redis://{address}/")).unwrap_err());
    let builder = || impatient(&server.url()).connections(1);
    let client = builder().connect().unwrap();
    let lock = client.reentrant_lock("where");
    let semaphore = client.semaphore("permits");
    lock.lock().unwrap().unlock().unwrap();
    server.pause();
    // The first call gets no reply in time. The later calls get no connection.
    says_where(lock.lock().map(drop).unwrap_err());
    says_where(lock.is_locked().map(drop).unwrap_err());
    says_where(semaphore.try_acquire().map(drop).unwrap_err());
    server.resume();
    lock.lock().unwrap().unlock().unwrap();
    server.kill();
    says_where(lock.lock().map(drop).unwrap_err());
    says_where(semaphore.release_forgotten(1).unwrap_err());
    says_where(builder().connect().unwrap_err());
    let impostor = Impostor::answering(Some(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let error = Client::connect(&impostor.url()).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:"), "{error}");
}

#[test]
fn a_refusal_says_which_server_refused() {
    let server = server();
    let address = format!("127.0.0.1:{}", server.port());
    let client = Client::builder(&server.url()).failover_timeout(Duration::ZERO);
    let client = client.connect().unwrap();
    let mut redis = server.connection();
    let says_where = |what: &str| {
        for error in [
            client.reentrant_lock("where").lock().map(drop).unwrap_err(),
            client.fair_lock("where").lock().map(drop).unwrap_err(),
            client.semaphore("permits").set_permits(1).unwrap_err(),
            client.expirable_semaphore("leases").set_permits(1).unwrap_err(),
            client.count_down_latch("latch").try_set_count(1).map(drop).unwrap_err(),
            client.read_write_lock("both").writer().lock().map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().contains(&address), "{what}: {error}");
        }
    };
    let mut set = |name: &str, value: &str| {
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut redis).unwrap();
    };
    set("maxmemory", "1");
    says_where("no memory, found by a script");
    set("maxmemory", "0");
    let mut acl = |rights: &[&str]| {
        redis::cmd("ACL").arg("SETUSER").arg("default").arg(rights).exec(&mut redis).unwrap();
    };
    acl(&["-hset", "-set", "-time"]);
    says_where("a right that a script lacks");
    acl(&["+hset", "+set", "+time", "-evalsha", "-eval"]);
    says_where("a right that a command lacks");
    acl(&["+evalsha", "+eval"]);
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec(&mut redis).unwrap();
    says_where("a replica");
}

/// The error names the type of the key, which another program uses. The error does not name the
/// script that found this out.
#[test]
fn a_key_of_another_type_is_called_by_its_type() {
    let server = server();
    let client = Client::connect(&server.url()).unwrap();
    let mut raw = server.connection();
    let prefix = "type";
    for (command, holds) in
        [("SET", "a string"), ("RPUSH", "a list"), ("SADD", "a set"), ("HSET", "a hash")]
    {
        let name = format!("{prefix}:{command}");
        let mut made = redis::cmd(command);
        made.arg(&name).arg("field");
        if command == "HSET" {
            made.arg("value");
        }
        if command == "SET" {
            made = redis::cmd("SET");
            made.arg(&name).arg("1");
        }
        made.exec(&mut raw).unwrap();
        let error = match command {
            "HSET" => client.semaphore(&name).try_acquire().map(drop).unwrap_err(),
            _ => client.reentrant_lock(&name).try_lock().map(drop).unwrap_err(),
        };
        let said = format!("{error:#}");
        assert!(said.contains(&format!("the key holds {holds}:")), "{said}");
        assert!(!said.contains("script"), "{said}");
    }
}
