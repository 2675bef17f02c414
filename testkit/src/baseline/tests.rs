use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use redis::Commands as _;

use super::*;
use crate::{Server, wait_until};

const TIMEOUT: Duration = Duration::from_secs(10);

fn set_up() -> (Server, PlainClient) {
    let server = Server::start().unwrap();
    let client = PlainClient::connect(&server.url()).unwrap();
    (server, client)
}

/// Runs `body` in a thread. The receiver gets a message when `body` ends.
fn in_thread(body: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (done, end) = channel();
    thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    end
}

/// Makes many threads of two clients take and release again and again. At most `most` of them may
/// hold at the same time.
fn hammer<H: Send + 'static>(
    server: &Server,
    most: i64,
    handle: impl Fn(&PlainClient) -> H,
    take: fn(&mut H),
    give_back: fn(&mut H),
) {
    let inside = Arc::new(AtomicI64::new(0));
    let broken = Arc::new(AtomicBool::new(false));
    let mut ends = Vec::new();
    for _ in 0..2 {
        let client = PlainClient::connect(&server.url()).unwrap();
        for _ in 0..4 {
            let mut handle = handle(&client);
            let (inside, broken) = (inside.clone(), broken.clone());
            ends.push(in_thread(move || {
                for _ in 0..60 {
                    take(&mut handle);
                    if inside.fetch_add(1, Ordering::SeqCst) >= most {
                        broken.store(true, Ordering::SeqCst);
                    }
                    thread::sleep(Duration::from_micros(20));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    give_back(&mut handle);
                }
            }));
        }
    }
    for end in ends {
        end.recv_timeout(6 * TIMEOUT).unwrap();
    }
    assert!(!broken.load(Ordering::SeqCst));
}

fn give_back(handle: &mut PlainLockHandle) {
    assert!(handle.unlock().unwrap());
}

#[test]
fn only_one_holds_the_lock() {
    let (server, _client) = set_up();
    let handle = |client: &PlainClient| client.lock("l").handle().unwrap();
    hammer(&server, 1, handle, |it| it.lock().unwrap(), give_back);
    assert_eq!(server.connection().exists("l"), Ok(false));
}

#[test]
fn only_one_holds_the_fair_lock() {
    let (server, _client) = set_up();
    let handle = |client: &PlainClient| client.fair_lock("l").handle().unwrap();
    let unlock = |it: &mut PlainFairLockHandle| assert!(it.unlock().unwrap());
    hammer(&server, 1, handle, |it| it.lock().unwrap(), unlock);
    let left: usize = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn no_more_than_the_permits_are_out() {
    let (server, client) = set_up();
    let mut semaphore = client.semaphore("s").handle().unwrap();
    assert!(semaphore.try_set_permits(3).unwrap());
    assert!(!semaphore.try_set_permits(9).unwrap());
    let handle = |client: &PlainClient| client.semaphore("s").handle().unwrap();
    hammer(&server, 3, handle, |it| it.acquire().unwrap(), |it| it.release().unwrap());
    assert_eq!(server.connection().get("s"), Ok(3));
}

#[test]
fn a_hold_looks_as_redissons_does() {
    let (server, client) = set_up();
    let mut handle = client.lock_with_lease("l", Duration::from_secs(7)).handle().unwrap();
    handle.lock().unwrap();
    assert!(handle.try_lock().unwrap());
    assert!(!client.lock("l").handle().unwrap().try_lock().unwrap());
    let mut connection = server.connection();
    let fields: Vec<(String, i64)> = connection.hgetall("l").unwrap();
    let [(owner, 2)] = fields.as_slice() else { panic!("{fields:?}") };
    let (id, thread) = owner.split_once(':').unwrap();
    assert_eq!((id.len(), id.matches('-').count()), (36, 4));
    thread.parse::<u64>().unwrap();
    let left: i64 = connection.pttl("l").unwrap();
    assert!((5_000..=7_000).contains(&left));
    assert!(handle.unlock().unwrap());
    assert!(handle.unlock().unwrap());
    assert!(!handle.unlock().unwrap());
}

#[test]
fn a_message_wakes_a_waiter_and_so_does_the_end_of_a_lease() {
    let (server, client) = set_up();
    let mut holder = client.lock("{x}l").handle().unwrap();
    holder.lock().unwrap();
    let mut waiter = client.lock("{x}l").handle().unwrap();
    let end = in_thread(move || waiter.lock().unwrap());
    let mut connection = server.connection();
    wait_until("the waiter has subscribed", TIMEOUT, || {
        let channels: Vec<String> =
            redis::cmd("PUBSUB").arg("CHANNELS").query(&mut connection).unwrap();
        channels == ["redisson_lock__channel:{x}l"]
    });
    assert!(end.try_recv().is_err());
    holder.unlock().unwrap();
    end.recv_timeout(TIMEOUT).unwrap();

    let mut holder = client.lock_with_lease("m", Duration::from_millis(100)).handle().unwrap();
    holder.lock().unwrap();
    let mut waiter = client.lock("m").handle().unwrap();
    in_thread(move || waiter.lock().unwrap()).recv_timeout(TIMEOUT).unwrap();
    let channels: Vec<String> =
        redis::cmd("PUBSUB").arg("CHANNELS").query(&mut connection).unwrap();
    assert!(channels.is_empty(), "{channels:?}");
}

#[test]
fn a_fair_lock_goes_round_in_the_order_of_arrival() {
    let (server, client) = set_up();
    let lock = client.fair_lock("l");
    let mut holder = lock.handle().unwrap();
    holder.lock().unwrap();
    let (order, seen) = channel();
    let mut connection = server.connection();
    for number in 0..5 {
        let (mut handle, order) = (lock.handle().unwrap(), order.clone());
        thread::spawn(move || {
            handle.lock().unwrap();
            order.send(number).unwrap();
            handle.unlock().unwrap();
        });
        wait_until("it is in the queue", TIMEOUT, || {
            connection.llen::<_, usize>("redisson_lock_queue:{l}").unwrap() == number + 1
        });
    }
    holder.unlock().unwrap();
    let seen: Vec<_> = (0..5).map(|_| seen.recv_timeout(TIMEOUT).unwrap()).collect();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

#[test]
fn a_latch_lets_everybody_go_on_at_zero() {
    let (_server, client) = set_up();
    let latch = client.latch("c");
    let mut handle = latch.handle().unwrap();
    handle.wait().unwrap();
    assert!(handle.try_set_count(2).unwrap());
    assert!(!handle.try_set_count(5).unwrap());
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mut handle = latch.handle().unwrap();
            in_thread(move || handle.wait().unwrap())
        })
        .collect();
    handle.count_down().unwrap();
    assert_eq!(handle.count().unwrap(), 1);
    thread::sleep(Duration::from_millis(20));
    assert!(waiters.iter().all(|waiter| waiter.try_recv().is_err()));
    handle.count_down().unwrap();
    for waiter in waiters {
        waiter.recv_timeout(TIMEOUT).unwrap();
    }
}

#[test]
fn an_expirable_permit_comes_back_by_its_release_or_at_its_leases_end() {
    let (server, client) = set_up();
    let lease = Duration::from_millis(300);
    let short = super::PlainExpirableSemaphore::new(client.clone(), "e", lease);
    let (mut first, mut second) = (short.handle().unwrap(), short.handle().unwrap());
    assert!(first.try_set_permits(1).unwrap());
    // Measure with the clock of the leases, which counts whole milliseconds. On another clock a
    // lease may look up to 1 ms shorter.
    let begun = counters::now();
    let lapsing = first.acquire().unwrap();
    let id = second.acquire().unwrap();
    assert!(counters::now() - begun >= lease.as_millis());
    assert!(!first.release(&lapsing).unwrap());
    let mut waiting = client.expirable_semaphore("e").handle().unwrap();
    let waiter = in_thread(move || {
        let id = waiting.acquire().unwrap();
        assert!(waiting.release(&id).unwrap());
    });
    assert!(second.release(&id).unwrap());
    waiter.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(server.connection().get::<_, i64>("e").unwrap(), 1);
}

#[test]
fn scripts_that_the_server_has_forgotten_are_loaded_again() {
    let (server, client) = set_up();
    let mut handle = client.lock("l").handle().unwrap();
    let () = redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).unwrap();
    handle.lock().unwrap();
    assert!(handle.unlock().unwrap());
}

#[test]
fn a_password_is_used_everywhere() {
    let server = Server::builder().password("word1").start().unwrap();
    let client = PlainClient::connect(&server.url()).unwrap();
    client.lock("l").handle().unwrap().lock().unwrap();
    let mut waiter = client.lock("l").handle().unwrap();
    let (send, end) = channel();
    thread::spawn(move || send.send(waiter.lock()));
    wait_until("the waiter has subscribed", TIMEOUT, || {
        let channels: Vec<String> =
            redis::cmd("PUBSUB").arg("CHANNELS").query(&mut server.connection()).unwrap();
        !channels.is_empty()
    });
    // When the server is gone, a wait ends with an error.
    server.kill();
    assert!(end.recv_timeout(TIMEOUT).unwrap().is_err());
}
