//! Sentinels that report addresses that the client cannot reach.

use std::collections::HashMap;

use super::*;

/// Clients reach each Sentinel and each server only through its own proxy.
#[test]
fn a_failover_is_followed_to_where_the_map_says() {
    let sentinels = sentinels();
    let proxies = |servers: &[Server]| -> HashMap<u16, Arc<Proxy>> {
        servers.iter().map(|it| (it.port(), Arc::new(Proxy::before(it)))).collect()
    };
    let (masters, watchers) = (proxies(sentinels.servers()), proxies(sentinels.sentinels()));
    let port_of = |proxy: &Proxy| proxy.address().port();
    let map: HashMap<u16, u16> =
        masters.iter().chain(&watchers).map(|(port, it)| (*port, port_of(it))).collect();
    // The URL has one Sentinel, with the address at which the client reaches it. The map is never
    // called with an address that it has returned.
    let first = &sentinels.sentinels()[0];
    let url = sentinels.url_of(&[port_of(&watchers[&first.port()])]);
    let client = builder(&url)
        .address_map(move |host, port| Some((host.to_owned(), map[&port])))
        .connect()
        .unwrap();
    let at = |client: &Client| client.snapshot().servers[0].address.clone();
    let behind = |server: &Server| masters[&server.port()].address().to_string();
    let old = sentinels.master();
    let guard = client.reentrant_lock("held").lock().unwrap();
    assert_eq!(at(&client), behind(old));
    wait_replicated(&sentinels, "held");

    // After this, the client needs a Sentinel that the first Sentinel has named.
    watchers[&first.port()].refuse();
    watchers[&first.port()].cut_all();
    sentinels.fail_over();
    wait_until("the new master is used", TIMEOUT, || at(&client) == behind(sentinels.master()));
    assert_ne!(at(&client), behind(old));
    assert!(guard.is_held());
    guard.unlock().unwrap();
    client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
    assert!(watchers.iter().any(|(port, it)| *port != first.port() && it.commands() > 0));
    drop(client);
}

/// Not even the Sentinels can reach the master at this address.
#[test]
fn a_master_that_is_named_where_nobody_reaches_it_needs_the_map() {
    let sentinels = sentinels();
    let port = sentinels.master().port();
    for sentinel in sentinels.sentinels() {
        redis::cmd("SENTINEL")
            .arg(&["MONITOR", "elsewhere", "127.0.0.2"])
            .arg(port)
            .arg(2)
            .exec(&mut sentinel.connection())
            .unwrap();
    }
    let url = sentinels.url().replace("/redlatch", "/elsewhere");
    let connect = || builder(&url).connect_timeout(TIME_UNIT * 20);
    let error = connect().connect().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    assert!(error.to_string().contains("127.0.0.2"), "{error:#}");
    let panics = connect().address_map(|_, _| panic!("as the test wants it"));
    let error = panics.connect().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:#}");
    assert!(format!("{error:#}").contains("address_map panicked"), "{error:#}");

    let to_here = |host: &str, port| (host == "127.0.0.2").then(|| ("127.0.0.1".to_owned(), port));
    let client = connect().address_map(to_here).connect().unwrap();
    client.reentrant_lock("reached").lock().unwrap().unlock().unwrap();
    assert_eq!(client.snapshot().servers[0].address, format!("127.0.0.1:{port}"));
}
