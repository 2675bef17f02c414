//! Tests of a lane. Each test has its own server.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::sync::mpsc;
use std::thread;

use redis::Value;
use redlatch_testkit::{Server, wait_until};

use super::*;
use crate::cancel::CancelToken;
use crate::connection::ReplicaAcks;
use crate::connection::{CachedScript, Outcome};

const LONG: Duration = Duration::from_secs(20);

struct Panics;

impl ReplyReceiver for Panics {
    fn receive(&self, _: Outcome) {
        panic!("as a logger does whose output was closed");
    }
}

fn connected(url: &str) -> Arc<Lane> {
    let lane = Lane::new(Arc::new(Endpoint::new(url, LONG, LONG).unwrap()));
    lane.connect().unwrap();
    Arc::new(lane)
}

/// A posted command waits for replicas, and the thread that posted it does not read the reply.
/// The background thread reads the reply only when the wait for replicas is about to end.
#[test]
fn other_threads_read_replies_when_a_wait_for_replicas_is_over() {
    const PATIENCE: Duration = Duration::from_millis(300);
    let server = Server::start().unwrap();
    let lane = connected(&server.url());
    let acks = ReplicaAcks { count: 1, within: PATIENCE * 3 };
    let heard = Arc::<Mutex<Option<Outcome>>>::default();
    // If this thread stands still after the post, the wait may be over before the first call.
    wait_until("the thread that asked may read it still", LONG, || {
        let receiver = Arc::clone(&heard);
        let receiver = move |outcome| *receiver.lock() = Some(outcome);
        let command = Command::plain(&[b"ECHO", b"one"]).acknowledged(Some(acks));
        let _look = lane.post(command, Arc::new(receiver));
        let was_left = !lane.service(PATIENCE, LONG);
        wait_until("it is read", LONG, || lane.service(PATIENCE, LONG));
        let outcome = heard.lock().take();
        assert!(matches!(outcome, Some(Err(Failure::Unacknowledged(..)))), "{outcome:?}");
        was_left
    });
}

/// Returns a server that sends the reply to the first ECHO in two halves, the second half when
/// the test allows it. The server replies to all other commands at once.
fn halting() -> (String, mpsc::Receiver<()>, mpsc::Sender<()>, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let ((halted, is_halted), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut halts = true;
        // The reply is the command's last part. Before each part comes a line with its length.
        while let Some(Ok(head)) = lines.next() {
            let parts: usize = head[1..].parse().unwrap();
            let last = (0..2 * parts).map(|_| lines.next().unwrap().unwrap()).last().unwrap();
            if last == "server" {
                stream.write_all(b"-ERR not here\r\n").unwrap();
                continue;
            }
            let reply = format!("${}\r\n{last}\r\n", last.len());
            let (one, other) = reply.as_bytes().split_at(reply.len() / 2);
            stream.write_all(one).unwrap();
            if std::mem::take(&mut halts) {
                halted.send(()).unwrap();
                goes_on.recv().unwrap();
            }
            stream.write_all(other).unwrap();
        }
    });
    (url, is_halted, go_on, server)
}

#[test]
fn half_a_reply_is_kept_for_the_thread_that_reads_next() {
    let (url, is_halted, go_on, server) = halting();
    let lane = connected(&url);
    let echo = |text: &'static [u8]| Command::plain(&[b"ECHO", text]);
    let token = CancelToken::new();
    let others = {
        let (lane, token) = (Arc::clone(&lane), token.clone());
        thread::spawn(move || {
            is_halted.recv().unwrap();
            let next = Arc::clone(&lane);
            let others = thread::spawn(move || next.call_once(&echo(b"others")));
            wait_until("it is queued", LONG, || !lane.state.lock().queue.is_empty());
            token.cancel();
            others.join().unwrap().unwrap()
        })
    };
    let limited = Limit::set(Limit::new(None, Some(&token)));
    let outcome = lane.call_once(&echo(b"the first"));
    drop(limited);
    assert!(matches!(outcome, Err(Failure::TimedOut(_))), "{outcome:?}");
    go_on.send(()).unwrap();
    assert_eq!(others.join().unwrap(), Value::BulkString(b"others".to_vec()));
    let last = lane.call_once(&echo(b"the last")).unwrap();
    assert_eq!(last, Value::BulkString(b"the last".to_vec()));
    drop(lane);
    server.join().unwrap();
}

#[test]
fn a_call_that_reads_a_reply_first_has_written_nothing_before() {
    let (url, is_halted, go_on, server) = halting();
    let lane = connected(&url);
    let echo = |text: &'static [u8]| Command::plain(&[b"ECHO", text]);
    let (hear, heard) = mpsc::channel();
    let receiver = move |outcome: Outcome| hear.send(outcome.unwrap()).unwrap();
    let _look = lane.post(echo(b"first").reply_before_next(true), Arc::new(receiver));
    is_halted.recv().unwrap();
    let token = CancelToken::new();
    let cancels = {
        let (lane, token) = (Arc::clone(&lane), token.clone());
        thread::spawn(move || {
            wait_until("it combines", LONG, || lane.state.lock().link.is_none());
            token.cancel();
        })
    };
    let limited = Limit::set(Limit::new(None, Some(&token)));
    let outcome = lane.call_once(&echo(b"never"));
    drop(limited);
    cancels.join().unwrap();
    assert!(matches!(outcome, Err(Failure::Unsent(_))), "{outcome:?}");
    go_on.send(()).unwrap();
    let second = lane.call_once(&echo(b"second")).unwrap();
    assert_eq!(second, Value::BulkString(b"second".to_vec()));
    assert_eq!(heard.recv().unwrap(), Value::BulkString(b"first".to_vec()));
    drop(lane);
    server.join().unwrap();
}

/// The server has stopped, and its socket is full. Acquires and releases wait until the socket
/// accepts bytes.
#[test]
fn unwritten_releases_wait_for_room_and_unwritten_takes_without_a_caller_are_taken_back() {
    const TAKES: usize = 10;
    const RELEASES: i64 = 5;
    const LARGE: usize = 100_000;
    static TAKE: LazyLock<CachedScript> = LazyLock::new(|| {
        CachedScript::new("return redis.call('rpush', KEYS[1], string.sub(ARGV[1], 1, 4))").takes()
    });
    let server = Server::start().unwrap();
    let lane = connected(&server.unix_url());
    let what = "take".repeat(LARGE / 4);
    let take = || Command::script::<&[u8]>(&TAKE, &[b"ran"], &[what.as_bytes()]);
    lane.call_once(&take()).unwrap();
    server.pause();
    for _ in 0..TAKES {
        let until = Instant::now() + Duration::from_millis(10);
        let _limited = Limit::set(Limit::new(Some(until), None));
        let outcome = lane.call_once(&take());
        assert!(matches!(outcome, Err(Failure::TimedOut(_))), "{outcome:?}");
    }
    assert!(lane.has_unwritten());
    let begun = Instant::now();
    let (hear, heard) = mpsc::channel();
    let release = Command::plain(&[b"RPUSH", b"ran", what.replace("take", "left").as_bytes()]);
    for _ in 0..RELEASES {
        let hear = hear.clone();
        let receiver = move |outcome: Outcome| hear.send(outcome.unwrap()).unwrap();
        let _look = lane.post(release.clone(), Arc::new(receiver));
    }
    assert!(lane.has_unwritten());
    assert!(!lane.service(LONG, LONG), "there is more to write");
    assert!(begun.elapsed() < LONG / 2, "it waited: {:?}", begun.elapsed());
    assert!(heard.try_recv().is_err());
    server.resume();
    wait_until("all is written", LONG, || lane.service(LONG, LONG));
    drop(hear);
    let lengths: Vec<_> = heard.iter().collect();
    let Some(Value::Int(first)) = lengths.first() else { panic!("{lengths:?}") };
    assert!((1..TAKES as i64).contains(first), "all takes ran: {lengths:?}");
    let last = first + RELEASES - 1;
    assert_eq!(lengths, (*first..=last).map(Value::Int).collect::<Vec<_>>());
    let ran = lane.call_once(&Command::plain(&[b"LLEN", b"ran"])).unwrap();
    assert_eq!(ran, Value::Int(last), "a take ran behind the releases");
}

/// Each post may wait long for its replicas, so twenty posts may wait twenty times as long.
/// When the server accepts bytes again, an unwritten post must be written before the replies to
/// these posts arrive.
#[test]
fn an_unwritten_command_does_not_wait_for_replicas() {
    const POSTS: usize = 20;
    let server = Server::start().unwrap();
    let lane = connected(&server.unix_url());
    let what = "left".repeat(25_000);
    let acks = ReplicaAcks { count: 1, within: LONG };
    server.pause();
    let release = Command::plain(&[b"RPUSH", b"ran", what.as_bytes()]).acknowledged(Some(acks));
    for _ in 0..POSTS {
        let _look = lane.post(release.clone(), Arc::new(|_| {}));
    }
    assert!(lane.has_unwritten());
    server.resume();
    let patience = Duration::from_millis(100);
    wait_until("all is written", LONG, || {
        let _is_left = lane.service(patience, LONG);
        !lane.has_unwritten()
    });
}

/// The combiner panics after it has read a reply and before it has counted the reply. The next
/// caller must not get another command's reply.
#[test]
fn a_thread_that_panics_while_it_combines_takes_the_connection_along() {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let server = Server::start().unwrap();
    let lane = connected(&server.url());
    let echo = |text: &[u8]| Command::plain(&[b"ECHO", text]);
    let token = CancelToken::new();
    for (is_first, limit) in [(false, None), (true, None), (true, Some(&token))] {
        let _look = lane.post(echo(b"first").reply_before_next(is_first), Arc::new(Panics));
        let limited = Limit::set(Limit::new(None, limit));
        let second = catch_unwind(AssertUnwindSafe(|| lane.call_once(&echo(b"second"))));
        assert!(second.is_err());
        drop(limited);
        let limit = Limit::new(Some(Instant::now() + TIMEOUT), None);
        let third = || lane.call_within(&echo(b"third"), limit.as_ref());
        let third = thread::scope(|scope| scope.spawn(third).join());
        assert_eq!(third.unwrap().unwrap(), Value::BulkString(b"third".to_vec()));
    }
}

#[test]
fn each_command_of_a_packet_has_its_own_outcome() {
    let server = Server::start().unwrap();
    let lane = connected(&server.url());
    let echo = |text: &[u8]| Command::plain(&[b"ECHO", text]);
    let commands = [echo(b"one"), Command::plain(&[b"GET"]), echo(b"three")];
    for _ in 0..2 {
        let outcomes = lane.call_each(&commands);
        let [Ok(one), Err(Failure::Refused(_)), Ok(three)] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        assert_eq!(
            [one, three],
            ["one", "three"].map(|it| Value::BulkString(it.into())).each_ref()
        );
    }
    assert!(lane.call_each(&[]).is_empty());
}

/// The server does not know the script, so the client sends it again behind the last command.
#[test]
fn a_script_that_the_server_does_not_know_has_its_outcome_in_a_packet_too() {
    static NEW: LazyLock<CachedScript> = LazyLock::new(|| CachedScript::new("return 'ran'"));
    let server = Server::start().unwrap();
    let lane = connected(&server.url());
    let script = Command::script::<&[u8]>(&NEW, &[b"key"], &[]);
    let outcomes = lane.call_each(&[script, Command::plain(&[b"ECHO", b"last"])]);
    let [Ok(ran), Ok(last)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!([ran, last], ["ran", "last"].map(|it| Value::BulkString(it.into())).each_ref());
}

/// The replies that the thread did not wait for reach no later caller.
#[test]
fn a_thread_that_leaves_a_packet_knows_that_each_command_may_run() {
    let (url, is_halted, go_on, server) = halting();
    let lane = connected(&url);
    let echo = |text: &'static [u8]| Command::plain(&[b"ECHO", text]);
    let token = CancelToken::new();
    let cancels = {
        let token = token.clone();
        thread::spawn(move || {
            is_halted.recv().unwrap();
            token.cancel();
        })
    };
    let limited = Limit::set(Limit::new(None, Some(&token)));
    let outcomes = lane.call_each(&[echo(b"first"), echo(b"second"), echo(b"third")]);
    drop(limited);
    cancels.join().unwrap();
    let is_left = |outcome: &Outcome| matches!(outcome, Err(Failure::TimedOut(_)));
    assert!(outcomes.len() == 3 && outcomes.iter().all(is_left), "{outcomes:?}");
    go_on.send(()).unwrap();
    let last = lane.call_once(&echo(b"the last")).unwrap();
    assert_eq!(last, Value::BulkString(b"the last".to_vec()));
    drop(lane);
    server.join().unwrap();
}
