use redis::{Commands as _, Connection as Client, RedisResult};

use super::*;
use crate::wait_until;

const TIMEOUT: Duration = Duration::from_secs(10);

fn set_up() -> (Server, Proxy) {
    let server = Server::start().unwrap();
    let proxy = Proxy::before(&server);
    (server, proxy)
}

fn client(proxy: &Proxy) -> Client {
    let client = redis::Client::open(proxy.url()).unwrap();
    client.get_connection().unwrap()
}

/// Asserts that no reply comes.
fn hangs(client: &mut Client) {
    let short = Duration::from_millis(300);
    client.set_read_timeout(Some(short)).unwrap();
    let error = increase(client).unwrap_err();
    // The read times out, or a signal interrupts it.
    assert!(error.is_io_error() && !error.is_connection_dropped(), "{error}");
    client.set_read_timeout(None).unwrap();
}

fn count(server: &Server) -> i64 {
    server.connection().get::<_, Option<i64>>("n").unwrap().unwrap_or(0)
}

fn increase(client: &mut Client) -> RedisResult<i64> {
    client.incr("n", 1)
}

#[test]
fn commands_and_replies_pass() {
    let server = Server::builder().password("word1").start().unwrap();
    let proxy = Proxy::before(&server);
    let mut client = client(&proxy);
    let before = proxy.commands();
    let big = "x".repeat(300_000);
    let () = client.set("big", &big).unwrap();
    assert_eq!(client.get::<_, String>("big").unwrap(), big);
    assert_eq!(proxy.commands() - before, 2);
    assert_eq!(proxy.connections(), 1);
    drop(client);
    wait_until("the connection is closed", TIMEOUT, || proxy.connections() == 0);
}

#[test]
fn a_delay_makes_a_round_trip_longer_by_twice_as_much_and_does_not_serialize() {
    let (_server, proxy) = set_up();
    let mut client = client(&proxy);
    let one_way = Duration::from_millis(2);
    proxy.set_delay(one_way);
    let times: Vec<_> = (0..50)
        .map(|_| {
            let start = Instant::now();
            increase(&mut client).unwrap();
            start.elapsed()
        })
        .collect();
    // Use the shortest time, because the machine may be busy.
    let shortest = times.into_iter().min().unwrap();
    assert!(shortest >= 2 * one_way, "{shortest:?}");
    assert!(shortest < 3 * one_way, "{shortest:?}");
    // Pipelined commands share the delay.
    let start = Instant::now();
    for _ in 0..100 {
        let command = redis::cmd("INCR").arg("n").get_packed_command();
        client.send_packed_command(&command).unwrap();
    }
    for _ in 0..100 {
        client.recv_response().unwrap();
    }
    assert!(start.elapsed() < 50 * one_way, "{:?}", start.elapsed());
}

#[test]
fn a_lost_request_never_happens() {
    let (server, proxy) = set_up();
    let mut client = client(&proxy);
    increase(&mut client).unwrap();
    proxy.on_request("INCR", Action::LoseRequest);
    assert!(increase(&mut client).unwrap_err().is_connection_dropped());
    proxy.wait_fired(1, TIMEOUT);
    assert_eq!(count(&server), 1);
    assert_eq!(proxy.connections(), 0);
}

#[test]
fn a_late_request_runs_after_later_ones_of_another_connection() {
    let (server, proxy) = set_up();
    let mut first = client(&proxy);
    proxy.on_request("INCR", Action::LateRequest(Duration::from_millis(300)));
    assert!(increase(&mut first).unwrap_err().is_connection_dropped());
    let mut second = client(&proxy);
    assert_eq!(increase(&mut second).unwrap(), 1);
    proxy.wait_fired(1, TIMEOUT);
    assert_eq!(count(&server), 2);
}

#[test]
fn requests_before_a_lost_request_are_carried_out() {
    let (server, proxy) = set_up();
    let mut client = client(&proxy);
    proxy.on_request("DECR", Action::LoseRequest);
    let mut pipe = redis::pipe();
    pipe.incr("n", 1).incr("n", 1).decr("n", 1).incr("n", 1);
    assert!(pipe.exec(&mut client).is_err());
    wait_until("the first two are done", TIMEOUT, || count(&server) == 2);
}

#[test]
fn a_lost_reply_comes_after_the_deed() {
    let (server, proxy) = set_up();
    proxy.set_delay(Duration::from_millis(1));
    for round in 1..=20 {
        let mut client = client(&proxy);
        proxy.on_request("INCR", Action::LoseReply);
        assert!(increase(&mut client).unwrap_err().is_connection_dropped());
        proxy.wait_fired(round, TIMEOUT);
        assert_eq!(count(&server), round as i64);
    }
}

#[test]
fn a_rule_acts_as_often_as_it_says() {
    let (_server, proxy) = set_up();
    proxy.on(Direction::Request, 2, Action::LoseReply, |bytes| rules::contains(bytes, b"INCR"));
    assert!(increase(&mut client(&proxy)).is_err());
    assert!(increase(&mut client(&proxy)).is_err());
    assert_eq!(increase(&mut client(&proxy)).unwrap(), 3);
    proxy.on_request("INCR", Action::LoseReply);
    proxy.clear_rules();
    assert_eq!(increase(&mut client(&proxy)).unwrap(), 4);
    assert_eq!(proxy.fired(), 2);
}

#[test]
fn a_delayed_reply_comes_later_once() {
    let (_server, proxy) = set_up();
    let mut client = client(&proxy);
    proxy.on_request("INCR", Action::DelayReply(Duration::from_millis(100)));
    let start = Instant::now();
    increase(&mut client).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(100));
    let start = Instant::now();
    increase(&mut client).unwrap();
    assert!(start.elapsed() < Duration::from_millis(100));
    assert_eq!(proxy.fired(), 1);
}

#[test]
fn a_held_reply_comes_when_it_is_released() {
    let (server, proxy) = set_up();
    let mut client = client(&proxy);
    proxy.on_request("INCR", Action::HoldReply);
    hangs(&mut client);
    proxy.wait_fired(1, TIMEOUT);
    assert_eq!(count(&server), 1);
    proxy.release();
    assert_eq!(increase(&mut client).unwrap(), 2);
}

#[test]
fn a_silent_connection_stays_open() {
    let (server, proxy) = set_up();
    let mut client = client(&proxy);
    proxy.on_request("INCR", Action::Silence);
    hangs(&mut client);
    proxy.wait_fired(1, TIMEOUT);
    hangs(&mut client);
    assert_eq!(count(&server), 1);
    assert_eq!(proxy.connections(), 1);
    drop(client);
    wait_until("the connection is closed", TIMEOUT, || proxy.connections() == 0);
}

#[test]
fn a_message_can_be_lost_with_its_connection() {
    let (server, proxy) = set_up();
    let mut client = client(&proxy);
    let mut subscriber = client.as_pubsub();
    subscriber.subscribe("news").unwrap();
    proxy.on_reply("the message", Action::LoseReply);
    let () = server.connection().publish("news", "the message").unwrap();
    assert!(subscriber.get_message().unwrap_err().is_connection_dropped());
    let error = subscriber.get_message().unwrap_err();
    assert!(error.is_connection_dropped(), "{error:?}");
}

#[test]
fn connections_are_cut_by_the_requests_on_them() {
    let (_server, proxy) = set_up();
    let (mut one, mut two) = (client(&proxy), client(&proxy));
    let mut subscriber = one.as_pubsub();
    subscriber.subscribe("news").unwrap();
    increase(&mut two).unwrap();
    assert_eq!(proxy.cut_matching("SUBSCRIBE"), 1);
    assert!(subscriber.get_message().unwrap_err().is_connection_dropped());
    increase(&mut two).unwrap();
    assert_eq!(proxy.cut_all(), 1);
    assert!(increase(&mut two).is_err());
}

#[test]
fn a_frozen_proxy_delivers_when_it_thaws() {
    let (server, proxy) = set_up();
    let mut client = client(&proxy);
    proxy.freeze();
    hangs(&mut client);
    assert_eq!(count(&server), 0);
    proxy.thaw();
    assert_eq!(increase(&mut client).unwrap(), 2);
}

#[test]
fn refused_connections_fail_at_once() {
    let (_server, proxy) = set_up();
    let mut old = client(&proxy);
    for _ in 0..3 {
        proxy.refuse();
        // Another test may be starting a process. Until its `exec`, this process keeps the sockets
        // open.
        wait_until("connections are refused", TIMEOUT, || {
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            TcpStream::connect(proxy.address()).is_err_and(refused)
        });
        increase(&mut old).unwrap();
        proxy.accept();
        increase(&mut client(&proxy)).unwrap();
    }
}

#[test]
fn trickled_replies_are_whole() {
    let (_server, proxy) = set_up();
    let mut client = client(&proxy);
    proxy.trickle(true);
    let text = "0123456789".repeat(50);
    let () = client.set("text", &text).unwrap();
    assert_eq!(client.get::<_, String>("text").unwrap(), text);
}

#[test]
fn a_dropped_proxy_ends_everything_even_while_frozen_or_held() {
    let (server, proxy) = set_up();
    let mut first = client(&proxy);
    proxy.on_request("INCR", Action::HoldReply);
    hangs(&mut first);
    let mut second = client(&proxy);
    proxy.set_delay(Duration::from_secs(3600));
    hangs(&mut second);
    proxy.freeze();
    server.pause();
    let start = Instant::now();
    drop(proxy);
    assert!(start.elapsed() < TIMEOUT);
    assert!(increase(&mut first).unwrap_err().is_connection_dropped());
    server.resume();
}

#[test]
fn a_proxy_whose_server_is_gone_closes_connections() {
    let (server, proxy) = set_up();
    let mut client = client(&proxy);
    server.kill();
    assert!(increase(&mut client).unwrap_err().is_connection_dropped());
    assert!(redis::Client::open(proxy.url()).unwrap().get_connection().is_err());
    server.restart_empty();
    assert_eq!(increase(&mut self::client(&proxy)).unwrap(), 1);
}
