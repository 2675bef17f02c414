//! Servers that announce addresses that clients cannot reach.

use std::sync::Mutex;

use redis::Value;

use super::*;

/// The port that all servers announce. Each server announces another host.
const ANNOUNCED: u16 = 7_000;

/// Returns a cluster whose servers announce `127.0.0.2:7000`, `127.0.0.3:7000` and
/// `127.0.0.4:7000`. The servers do not listen at these addresses, and reach each other over the
/// cluster bus.
fn announced_elsewhere() -> Cluster {
    let cluster = cluster();
    for (at, server) in cluster.servers().iter().enumerate() {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg(&["cluster-preferred-endpoint-type", "hostname"])
            .arg(&["cluster-announce-hostname", &host(at)])
            .arg(&["cluster-announce-port", &ANNOUNCED.to_string()])
            .exec(&mut server.connection())
            .unwrap();
    }
    for server in cluster.servers() {
        wait_until("it names all others so", TIMEOUT, || {
            let slots: Value =
                redis::cmd("CLUSTER").arg("SLOTS").query(&mut server.connection()).unwrap();
            let said = format!("{slots:?}");
            (0..3).all(|at| said.contains(&host(at)))
                && cluster.servers().iter().all(|it| !said.contains(&format!("int({})", it.port())))
        });
    }
    cluster
}

fn host(at: usize) -> String {
    format!("127.0.0.{}", at + 2)
}

/// The addresses with which the client has called the map.
type Asked = Arc<Mutex<Vec<(String, u16)>>>;

fn mapped(cluster: &Cluster, asked: &Asked) -> Client {
    let ports: Vec<u16> = cluster.servers().iter().map(Server::port).collect();
    let asked = Arc::clone(asked);
    // The URL has one server, so the client learns of all others.
    Client::builder(&format!("redis-cluster://127.0.0.1:{}", ports[0]))
        .watchdog_timeout(LONG_LEASE)
        .address_map(move |named, port| {
            asked.lock().unwrap().push((named.to_owned(), port));
            let at = (0..ports.len()).find(|at| host(*at) == named)?;
            Some(("127.0.0.1".to_owned(), ports[at]))
        })
        .connect()
        .unwrap()
}

#[test]
fn named_servers_are_reached_where_the_map_says_and_only_there() {
    let cluster = announced_elsewhere();
    let asked = Asked::default();
    let client = mapped(&cluster, &asked);
    for name in names(&cluster) {
        client.reentrant_lock(&name).lock().unwrap().unlock().unwrap();
        let scripts = crate::common::Commands::so_far(cluster.home(&name)).scripts();
        assert!(scripts > 0, "{name}");
    }
    // `MOVED` names the slot's new server. `ASK` names the server to which the slot is moving.
    let slot = cluster.slot("moved");
    cluster.move_slot(slot, cluster.another(slot));
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let to = cluster.another(slot);
    cluster.begin_move(slot, to);
    cluster.move_key("moved", to);
    assert!(client.reentrant_lock("moved").is_locked().unwrap());
    cluster.end_move(slot, to);
    guard.unlock().unwrap();

    let mut used: Vec<_> = client.snapshot().servers.into_iter().map(|it| it.address).collect();
    used.sort();
    let mut all: Vec<_> =
        cluster.servers().iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    all.sort();
    assert_eq!(used, all);
    // The map is never called with an address of the URL, or with an address that it has returned.
    let asked = asked.lock().unwrap();
    assert!(
        asked.iter().all(|(host, port)| host != "127.0.0.1" && *port == ANNOUNCED),
        "{asked:?}"
    );
}

#[test]
fn without_a_map_that_works_the_named_servers_are_not_reached() {
    let cluster = announced_elsewhere();
    let connect = || {
        Client::builder(&format!("redis-cluster://127.0.0.1:{}", cluster.servers()[0].port()))
            .connect_timeout(TIME_UNIT * 20)
    };
    let error = connect().connect().map(drop).unwrap_err();
    assert!(error.kind().is_server_trouble() && error.is_transient(), "{error:#}");
    assert!(error.to_string().contains(":7000"), "{error:#}");
    let error = connect().address_map(|_, _| None).connect().map(drop).unwrap_err();
    assert!(error.to_string().contains(":7000"), "{error:#}");
    let panics = connect().address_map(|_, _| panic!("as the test wants it"));
    let error = panics.connect().map(drop).unwrap_err();
    assert!(error.kind().is_server_trouble() && error.is_transient(), "{error:#}");
    assert!(!error.to_string().contains(":7000"), "{error:#}");
}
