//! The names of a client's connections at the server, and the names of the client's threads.

use redlatch::Taken;

use super::*;

/// Returns the fields of each connection that the server knows, except this connection.
fn connections(server: &Server) -> Vec<HashMap<String, String>> {
    let mut redis = server.connection();
    let own: u64 = redis::cmd("CLIENT").arg("ID").query(&mut redis).unwrap();
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut redis).unwrap();
    let fields = |line: &str| {
        let fields = line.split(' ').filter_map(|field| field.split_once('='));
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let mut all: Vec<HashMap<_, _>> = list.lines().map(fields).collect();
    all.retain(|connection| connection["id"] != own.to_string());
    all
}

/// Makes the client use its lanes, its renewer and its subscriber.
fn busy(client: &Client) -> LockGuard {
    let guard = client.reentrant_lock("busy").lock().unwrap();
    let waits = client.reentrant_lock("busy").try_lock_for(TIME_UNIT);
    assert!(matches!(waits, Ok(Taken(_))), "it is its own");
    let lock = client.reentrant_lock("busy");
    elsewhere(move || assert!(answered(|| lock.try_lock_for(TIME_UNIT)).into_option().is_none()));
    drop(waits);
    guard
}

#[test]
fn every_connection_is_called_after_its_client() {
    let server = server();
    let knows_libraries = {
        let info = redis::cmd("CLIENT").arg(&["SETINFO", "LIB-NAME", "of-the-test"]).to_owned();
        info.exec(&mut server.connection()).is_ok()
    };
    let own = format!(":{}", std::process::id());
    for (name, called) in [(Some("billing eu@host-7"), "billing-eu@host-7"), (None, &*own)] {
        let builder = Client::builder(&server.url()).connections(2).watchdog_timeout(SHORT_LEASE);
        let builder = name.into_iter().fold(builder, |builder, name| builder.name(name));
        let client = builder.connect().unwrap();
        let guard = busy(&client);
        wait_renewed(&server, "busy");
        let called = format!("{called}#{}", client.id());
        // The wait also lasts until the test's own connections are closed.
        let mut all = Vec::new();
        wait_until("every connection has the name", TIMEOUT, || {
            all = connections(&server);
            all.iter().all(|connection| connection["name"].ends_with(&called))
        });
        assert!(all.len() >= 3, "{all:?}");
        for connection in all {
            if knows_libraries {
                assert_eq!(connection["lib-name"], "redlatch", "{connection:?}");
                assert_eq!(connection["lib-ver"], env!("CARGO_PKG_VERSION"), "{connection:?}");
            }
        }
        let (owner, _) = holder(&mut server.connection(), "busy").unwrap();
        assert!(owner.starts_with(client.id()), "{owner}");
        drop((guard, client));
        wait_until("its connections are closed", TIMEOUT, || connections(&server).is_empty());
    }
}

#[test]
fn a_server_that_gives_connections_no_names_is_no_error() {
    let server = server();
    let acl = ["SETUSER", "nameless", "on", ">secret", "~*", "&*", "+@all", "-client"];
    redis::cmd("ACL").arg(&acl).exec(&mut server.connection()).unwrap();
    let url = format!("redis://nameless:secret@127.0.0.1:{}", server.port());
    for protocol in ["", "?protocol=resp3"] {
        let client = Client::connect(&format!("{url}{protocol}")).unwrap();
        busy(&client).unlock().unwrap();
        assert!(connections(&server).iter().all(|connection| connection["name"].is_empty()));
    }
}

#[test]
fn a_name_that_is_too_long_is_an_error_that_says_so() {
    let error = Client::builder("redis://127.0.0.1:1").name(&"x".repeat(201)).connect();
    let error = error.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("201 bytes"), "{error}");
}

/// The system stores only fifteen bytes of a thread's name.
#[test]
#[cfg(target_os = "linux")]
fn the_names_of_its_threads_are_whole() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = watched(&server, LONG_LEASE);
    let _guard = busy(&client);
    for name in ["redlatch-watch", "redlatch-renew", "redlatch-listen"] {
        assert!(thread_names().iter().any(|it| it == name), "{name}: {:?}", thread_names());
    }
}
