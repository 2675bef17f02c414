//! Messages that a server sends between two replies, without a request.

use super::*;

/// Returns the ids of the connections that use RESP3.
fn speaking_resp3(server: &Server) -> Vec<String> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).unwrap();
    let field = |line: &str, name: &str| {
        let value = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name} in {line}")).to_owned()
    };
    let resp3 = list.lines().filter(|line| field(line, "resp") == "3");
    resp3.map(|line| field(line, "id")).collect()
}

/// Makes the server report every changed key to these connections. The client itself has not
/// requested these reports.
fn told_of_changes(server: &Server, connections: &[String]) -> Vec<redis::Connection> {
    let redirect = |id: &String| {
        let mut redis = server.connection();
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg(&["TRACKING", "ON", "REDIRECT", id, "BCAST"]);
        let () = tracking.query(&mut redis).unwrap();
        redis
    };
    connections.iter().map(redirect).collect()
}

#[test]
fn a_pushed_message_shifts_no_reply_of_its_connection() {
    let server = server();
    let url = format!("{}?protocol=resp3", server.url());
    let client = Client::builder(&url).connections(1).connect().unwrap();
    let _redirecting = told_of_changes(&server, &speaking_resp3(&server));
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "held", LONG_LEASE);
    // Changes of the locks themselves are pushed, too, before the reply or after it.
    for round in 0..20 {
        let () = redis.set("another key", round).unwrap();
        let guard =
            client.reentrant_lock("free").try_lock().unwrap().into_option().expect("it is free");
        assert!(
            client.reentrant_lock("held").try_lock().unwrap().into_option().is_none(),
            "two holders"
        );
        let permits = client.semaphore("permits");
        permits.set_permits(round).unwrap();
        assert_eq!(permits.available_permits().unwrap(), i64::from(round));
        guard.unlock().unwrap();
    }
    assert!(client.reentrant_lock("free").try_lock().unwrap().into_option().is_some());
}
