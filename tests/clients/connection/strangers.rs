//! Other programs in place of a server.

use super::*;

/// The server's queue of new connections is full.
#[cfg(target_os = "linux")]
#[test]
fn a_unix_socket_that_is_full_is_waited_for() {
    use socket2::{Domain, SockAddr, Socket, Type};

    bound();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.sock");
    let address = SockAddr::unix(&path).unwrap();
    let socket = || Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let listener = socket();
    listener.bind(&address).unwrap();
    listener.listen(0).unwrap();
    let connect = || {
        let other = socket();
        other.set_nonblocking(true).unwrap();
        other.connect(&address).map(|()| other)
    };
    let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).collect();
    let (begun, within) = (Instant::now(), TIME_UNIT * 5);
    refused(&format!("redis+unix://{}", path.display()), within);
    assert!(begun.elapsed() >= within, "after {:?}", begun.elapsed());
    drop(waiting);
}

/// A program on its own port that handles each connection in the same way, until the value is
/// dropped.
pub(super) struct Stranger {
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stranger {
    /// Calls `answer` for each connection. `answer` reads the client's commands and sends replies.
    pub(super) fn start(answer: impl Fn(&mut TcpStream, &AtomicBool) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(TIME_UNIT)).unwrap();
                answer(&mut stream, &stopped);
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// Returns the error of a client that connects to this program, within the given time. If the
    /// call never ends, the test hangs.
    fn connect(&self, within: Duration) -> Error {
        refused(&format!("redis://{}", self.address), within)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _wake = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_server_that_dribbles_is_given_the_connect_timeout_and_no_more() {
    bound();
    let dribbler = Stranger::start(|stream, stop| {
        // This begins a bulk string that never ends.
        let _ = stream.write_all(b"$100000\r\n");
        while !stop.load(Ordering::SeqCst) && stream.write_all(b"x").is_ok() {
            thread::sleep(TIME_UNIT);
        }
    });
    let error = dribbler.connect(TIME_UNIT * 5);
    assert!(error.kind().is_server_trouble());
    assert!(error.to_string().contains("connect_timeout"), "{error}");
}

#[test]
fn a_server_that_accepts_and_is_silent_is_said_to_be_silent() {
    bound();
    let silent = Stranger::start(|_, stop| {
        while !stop.load(Ordering::SeqCst) {
            thread::sleep(TIME_UNIT / 10);
        }
    });
    let error = format!("{:?}", silent.connect(TIME_UNIT * 3));
    assert!(error.contains("did not answer in time"), "{error}");
    assert!(!error.contains("temporarily unavailable"), "{error}");
}

#[test]
fn a_server_with_one_answer_to_everything_is_no_redis() {
    bound();
    for reply in [&b"+OK\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail\r\n"] {
        let stranger = Stranger::start(move |stream, stop| {
            let mut said = [0; 4096];
            while !stop.load(Ordering::SeqCst) {
                match stream.read(&mut said) {
                    Ok(0) => return,
                    Ok(_) if stream.write_all(reply).is_err() => return,
                    _ => {}
                }
            }
        });
        let error = stranger.connect(TIME_UNIT * 10);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains("not a Redis server"), "{error}");
    }
}

/// Returns this version's replies to a client's first commands. The connection gets no name.
pub(super) fn greeting(version: &str) -> String {
    let info = format!("redis_version:{version}\r\n");
    let refusals = "-ERR unknown command 'CLIENT'\r\n".repeat(3);
    format!("${}\r\n{info}\r\n{refusals}", info.len())
}

/// The reply is that of a Valkey that was built without scripts.
#[test]
fn a_server_that_knows_the_commands_and_runs_no_script_is_found_out() {
    bound();
    let stranger = Stranger::start(|stream, stop| {
        let mut said = [0; 4096];
        while !stop.load(Ordering::SeqCst) {
            let reply = match stream.read(&mut said) {
                Ok(0) => return,
                Ok(length) if contains(&said[..length], "EVAL") => {
                    "-ERR Could not find scripting engine 'lua'\r\n"
                }
                Ok(_) => &greeting("9.1.0"),
                Err(_) => continue,
            };
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    });
    let error = stranger.connect(TIME_UNIT * 10);
    assert!(error.kind().is_server_trouble(), "{error}");
    assert!(error.to_string().contains("redlatch needs Lua scripts"), "{error}");
    assert!(format!("{error:#}").contains("scripting engine"), "{error:#}");
}

/// Redis sends this text to a client from another machine, without a request, and closes the
/// connection.
#[test]
fn a_server_in_protected_mode_says_so() {
    bound();
    let stranger = Stranger::start(|stream, _| {
        let denied =
            b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n";
        // If one side closes the connection first, the message may be lost.
        let _ = (stream.write_all(denied), stream.read(&mut [0; 4096]));
    });
    let error = stranger.connect(TIME_UNIT * 10);
    assert_eq!(error.kind(), ErrorKind::LoginRefused, "{error}");
    assert!(error.to_string().contains("protected mode"), "{error}");
    assert!(error.to_string().contains(&stranger.address.to_string()), "{error}");
    assert!(!error.is_transient(), "{error}");
}

/// The reply is that of Redis 6.2. The reported version does not matter, because a proxy may report
/// any version.
#[test]
fn a_server_whose_scripts_cannot_ask_for_rights_is_too_old() {
    bound();
    let stranger = Stranger::start(|stream, stop| {
        let mut said = [0; 4096];
        while !stop.load(Ordering::SeqCst) {
            let reply = match stream.read(&mut said) {
                Ok(0) => return,
                Ok(length) if contains(&said[..length], "EVAL") => "$-1\r\n",
                Ok(_) => &greeting("7.2.4"),
                Err(_) => continue,
            };
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    });
    let error = stranger.connect(TIME_UNIT * 10);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let said = error.to_string();
    assert!(said.contains("upgrade it to Redis 7.0, Valkey 7.2 or later"), "{said}");
    assert!(said.contains(&stranger.address.to_string()), "{said}");
    assert!(!error.is_transient(), "{said}");
}

/// A real Sentinel, which ends with the test.
struct Sentinel {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    /// Starts a Sentinel. Returns `None` if this server's program cannot run as a Sentinel.
    fn start(server: &Server) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let file = folder.path().join("sentinel.conf");
        let master = server.port();
        std::fs::write(
            &file,
            format!("port {port}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 {master} 1\n"),
        )
        .unwrap();
        let child = Command::new(server.program())
            .arg(&file)
            .arg("--sentinel")
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let sentinel = Self { child, port, _folder: folder };
        let until = Instant::now() + TIMEOUT / 4;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > until {
                return None;
            }
            thread::sleep(TIME_UNIT / 10);
        }
        Some(sentinel)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The connection ends as after `CLIENT KILL`, or at a server that is just starting. So far the
/// client has sent only commands that change nothing.
#[test]
fn a_connection_cut_off_while_it_is_opened_is_opened_once_more() {
    let server = server();
    let proxy = Proxy::before(&server);
    let greets = |bytes: &[u8]| bytes.windows(4).any(|window| window == b"INFO");
    for action in [Action::LoseRequest, Action::LoseReply] {
        let fired = proxy.fired();
        proxy.on(Direction::Request, 1, action, greets);
        // The client is patient: only a busy machine makes anything late here.
        let client =
            Client::builder(&proxy.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
        let client = client.connections(1).connect().unwrap();
        assert_eq!(proxy.fired(), fired + 1);
        // The client opens the shared connection again, and the proxy cuts it off once more.
        assert_eq!(proxy.cut_matching("EVALSHA"), 1);
        proxy.on(Direction::Request, 1, action, greets);
        client.reentrant_lock("opened").lock().unwrap().unlock().unwrap();
        assert_eq!(proxy.fired(), fired + 2);
    }
    // The connection is opened once, and not repeatedly.
    let fired = proxy.fired();
    proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, greets);
    refused(&proxy.url(), TIMEOUT);
    assert_eq!(proxy.fired(), fired + 2);
    proxy.clear_rules();
}

#[test]
fn a_sentinel_is_said_to_be_one() {
    let server = server();
    let Some(sentinel) = Sentinel::start(&server) else {
        eprintln!("left out: {} cannot be a Sentinel", server.program().display());
        return;
    };
    let error = refused(&format!("redis://127.0.0.1:{}", sentinel.port), TIMEOUT);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("Sentinel"), "{error}");
}

#[test]
fn a_server_that_accepts_and_stops_answering_is_not_reported_as_unreachable() {
    let server = server();
    let proxy = Proxy::before(&server);
    proxy.on_request("EVAL", Action::Silence);
    let url = proxy.url();
    let error = impatient(&url).connect().map(drop).unwrap_err();
    assert!(error.to_string().contains("response_timeout"), "{error}");
    assert!(error.is_transient() && !error.outcome_unknown(), "{error}");
}

#[test]
fn a_server_that_is_full_says_so() {
    let server = server();
    let mut redis = server.connection();
    let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).query(&mut redis).unwrap();
    for _ in 0..5 {
        let error = refused(&server.url(), TIMEOUT);
        assert!(error.to_string().contains("maxclients"), "{error}");
    }
    let () = redis::cmd("CONFIG").arg(&["SET", "maxclients", "100"]).query(&mut redis).unwrap();
    client(&server).reentrant_lock("let in").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_without_scripts_is_found_out_at_once() {
    bound();
    for command in ["EVAL", "EVALSHA"] {
        let Ok(server) = Server::with_args(&["--rename-command", command, "hidden"]) else {
            eprintln!("left out: this server cannot rename commands");
            return;
        };
        let error = refused(&server.url(), TIMEOUT);
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("redlatch needs Lua scripts"), "{error}");
    }
    let server = server();
    for forbidden in ["-eval", "-evalsha"] {
        let user = [forbidden.strip_prefix('-').unwrap(), "on", ">word", "~*", "&*", "+@all"];
        let () = redis::cmd("ACL")
            .arg("SETUSER")
            .arg(&user)
            .arg(forbidden)
            .query(&mut server.connection())
            .unwrap();
        let url = server.url().replace("redis://", &format!("redis://{}:word@", user[0]));
        let error = refused(&url, TIMEOUT).to_string();
        assert!(error.contains("redlatch needs Lua scripts") && error.contains("ACL"), "{error}");
        assert!(!error.contains("word@"), "{error}");
    }
}

#[test]
fn a_wrong_password_and_a_missing_one_are_told_apart() {
    bound();
    let Ok(server) = Server::builder().password("secret").start() else { return };
    let host = format!("127.0.0.1:{}", server.port());
    let missing = refused(&format!("redis://{host}"), TIMEOUT).to_string();
    assert!(missing.contains("wants a password"), "{missing}");
    for protocol in ["", "?protocol=resp3"] {
        let wrong = refused(&format!("redis://:guess@{host}/{protocol}"), TIMEOUT).to_string();
        assert!(wrong.contains("refuses the user or password"), "{wrong}");
        assert!(!wrong.contains("guess"), "{wrong}");
        let none = refused(&format!("redis://:secret@{host}/99{protocol}"), TIMEOUT).to_string();
        assert!(none.contains("no database"), "{none}");
        let url = format!("redis://:secret@{host}/2{protocol}");
        let client = Client::connect(&url).unwrap();
        client.reentrant_lock("database").lock().unwrap().unlock().unwrap();
    }
}
