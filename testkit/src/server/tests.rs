use super::*;
use crate::signal::is_alive;

fn ping(server: &Server) -> String {
    redis::cmd("PING").query(&mut server.connection()).unwrap()
}

#[test]
fn a_server_answers_on_all_its_addresses_and_leaves_nothing() {
    let server = Server::start().unwrap();
    assert_eq!(ping(&server), "PONG");
    assert_eq!(redis::cmd("PING").query(&mut connect(&server.unix_url())), Ok("PONG".to_owned()));
    let (pid, dir) = (server.pid(), server.dir.path().to_path_buf());
    let info: String = redis::cmd("INFO").query(&mut server.connection()).unwrap();
    assert!(info.contains(&format!("process_id:{pid}")));
    drop(server);
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

#[test]
fn arguments_reach_the_server() {
    let server = Server::with_args(&["--maxmemory", "1mb"]).unwrap();
    let mut connection = server.connection();
    let (_, value): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("maxmemory").query(&mut connection).unwrap();
    assert_eq!(value, "1048576");
}

#[test]
fn a_password_is_in_the_urls() {
    let server = Server::builder().password("secret1").start().unwrap();
    assert_eq!(ping(&server), "PONG");
    assert_eq!(redis::cmd("PING").query(&mut connect(&server.unix_url())), Ok("PONG".to_owned()));
    let bare = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port())).unwrap();
    let refused = bare.get_connection().and_then(|mut it| redis::cmd("PING").exec(&mut it));
    assert!(refused.unwrap_err().to_string().contains("NOAUTH"));
}

#[test]
fn a_wrong_argument_is_an_error_with_the_log() {
    let error = Server::with_args(&["--no-such-directive", "1"]).unwrap_err().to_string();
    assert!(error.contains("no-such-directive"), "{error}");
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let first = Server::start().unwrap();
    let error = Server::builder().port(first.port()).start().unwrap_err().to_string();
    assert!(error.contains("taken"), "{error}");
}

#[test]
fn no_other_server_gets_the_port_of_a_killed_server() {
    let server = Server::start().unwrap();
    let port = server.port();
    server.kill();
    assert!(Port::take(port).is_none());
    server.restart_empty();
    server.kill();
    assert!(Port::take(port).is_none());
}

#[test]
fn a_replica_has_its_masters_keys() {
    let master = Server::builder().password("word").start().unwrap();
    let () = redis::cmd("SET").arg("key").arg(7).query(&mut master.connection()).unwrap();
    let replica = Server::builder().password("word").replica_of(&master).start().unwrap();
    let value: u64 = redis::cmd("GET").arg("key").query(&mut replica.connection()).unwrap();
    assert_eq!(value, 7);
}

#[test]
fn a_paused_server_is_silent_until_it_is_resumed() {
    let server = Server::start().unwrap();
    let mut connection = server.connection();
    connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    server.pause();
    // The read times out, or a signal interrupts it.
    let error = redis::cmd("PING").exec(&mut connection).unwrap_err();
    assert!(error.is_io_error(), "{error}");
    server.resume();
    assert_eq!(ping(&server), "PONG");
    server.pause();
    let pid = server.pid();
    drop(server);
    assert!(!is_alive(pid));
}

#[test]
fn a_restarted_server_is_empty_and_keeps_its_url() {
    let server = Server::start().unwrap();
    let (url, pid) = (server.url(), server.pid());
    let () = redis::cmd("SET").arg("k").arg(1).exec(&mut server.connection()).unwrap();
    server.kill();
    assert!(!is_alive(pid));
    assert!(redis::Client::open(url.as_str()).unwrap().get_connection().is_err());
    server.restart_empty();
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
    let keys: usize = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
    assert_eq!(keys, 0);
    server.restart_empty();
    assert_eq!(ping(&server), "PONG");
}

/// The test runs this program in a folder without a server and without a downloader.
#[test]
fn where_no_server_can_be_had_the_tests_end_with_one_sentence() {
    let program = env::current_exe().unwrap();
    let target = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let there = |path: &str| target.path().join(path);
    fs::write(there("CACHEDIR.TAG"), "").unwrap();
    fs::hard_link(program, there("tests")).unwrap();
    let output = std::process::Command::new(there("tests"))
        // Several threads of the new process need a server at the same time.
        .args(["server::tests::a", "--test-threads", "4"])
        .env("PATH", target.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(101));
    let said = String::from_utf8_lossy(&output.stderr);
    let ends: Vec<_> = said.lines().filter(|line| line.contains("the tests end here")).collect();
    assert_eq!(ends.len(), 1, "{said}");
    assert!(ends[0].starts_with("the tests end here: there is no redis-server"), "{said}");
    assert!(ends[0].contains("install one (Debian: apt install redis-server"), "{said}");
}

#[test]
fn many_servers_start_side_by_side() {
    let servers: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..6).map(|_| scope.spawn(|| Server::start().unwrap())).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    let ports: std::collections::HashSet<_> = servers.iter().map(Server::port).collect();
    assert_eq!(ports.len(), 6);
    for server in &servers {
        assert_eq!(ping(server), "PONG");
    }
}

#[test]
fn tls_is_served_where_the_program_can() {
    if !Server::supports_tls() {
        eprintln!("left out: this server program has no TLS, or there is no openssl");
        return;
    }
    let server = Server::builder().tls().start().unwrap();
    assert!(server.tls_url().starts_with("rediss://127.0.0.1:"));
    assert!(server.tls_authority().is_file());
    let port = server.tls_port.unwrap();
    let output = std::process::Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-CAfile"])
        .arg(server.tls_authority())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Verify return code: 0"), "{said}");
}

#[test]
fn a_named_server_is_taken_as_it_is() {
    let own = Server::start().unwrap();
    let provided = Server::find_or_start(Some(&own.url())).unwrap();
    assert!(!provided.is_ours() && provided.server().is_none());
    assert_eq!(provided.url(), own.url());
    assert_eq!(redis::cmd("PING").query(&mut provided.connection()), Ok("PONG".to_owned()));
}

#[test]
fn a_server_that_only_the_environment_names_is_not_taken() {
    const SOMEBODYS: &str = "redis://:secret@127.0.0.1:1/";
    if env::var("REDIS_URL").as_deref() == Ok(SOMEBODYS) {
        let provided = Server::find_or_start(None).unwrap();
        assert!(provided.is_ours() && provided.url() != SOMEBODYS);
        return;
    }
    let again = std::process::Command::new(env::current_exe().unwrap())
        .args(["--exact", std::thread::current().name().unwrap(), "--nocapture"])
        .env("REDIS_URL", SOMEBODYS)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success(), "{said}");
    assert!(said.contains("REDIS_URL is set and not used"), "{said}");
    assert!(!said.contains("secret"), "{said}");
}
