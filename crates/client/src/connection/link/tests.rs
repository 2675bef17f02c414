//! Tests of a link. Each test has its own server.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use redlatch_testkit::Server;

use super::*;
use crate::connection::{CachedScript, Credentials, Replies, RightsQuery};

const TIMEOUT: Duration = Duration::from_secs(10);

fn link(server: &Server) -> Link {
    Link::open(&Endpoint::new(&server.url(), TIMEOUT, TIMEOUT).unwrap()).unwrap()
}

fn hears() -> (Arc<Mutex<Option<Outcome>>>, Arc<dyn ReplyReceiver>) {
    let heard = Arc::<Mutex<Option<Outcome>>>::default();
    let receiver = Arc::clone(&heard);
    (heard, Arc::new(move |outcome| *receiver.lock() = Some(outcome)))
}

/// The rights of one user say nothing about the rights of another user.
#[test]
fn a_login_over_the_connection_asks_anew() {
    static SCRIPT: LazyLock<CachedScript> = LazyLock::new(|| CachedScript::new("return #ARGV"));
    static QUERY: LazyLock<RightsQuery> = LazyLock::new(|| {
        let code = "local may = redis.acl_check_cmd('publish', KEYS[1], '')
            if not may then return redis.error_reply('NOPERM') end
            return {KEYS[1] == 'one' and 0 or 1, script()}";
        RightsQuery::new(63, code.to_owned())
    });
    let server = Server::start().unwrap();
    let mut link = link(&server);
    for (name, rule) in [("may", "&*"), ("not", "-publish")] {
        let command = ["ACL", "SETUSER", name, "on", ">word", "~*", "+@all", rule];
        link.exchange(&Command::plain(&command.map(str::as_bytes))).unwrap();
    }
    let call =
        |key: &str| Command::script(&SCRIPT, &[key.as_bytes()], &[b"x"]).checks_rights(&QUERY);
    let auth = |name: &str| Command::auth(&Credentials::new(name, "word"));
    link.exchange(&auth("may")).unwrap();
    for (key, asks) in [("one", true), ("one", false), ("all", true), ("two", false)] {
        let command = call(key);
        let (bytes, asked) = link.rights.encoded(&command, link.channels);
        assert_eq!((asked.is_some(), contains(&bytes, b"acl_check_cmd")), (asks, asks), "{key}");
        assert_eq!(link.exchange(&call(key)).unwrap(), Value::Int(1), "{key}");
    }
    link.exchange(&auth("not")).unwrap();
    for _ in 0..2 {
        let refused = link.exchange(&call("two")).unwrap_err();
        assert!(matches!(refused, Failure::Refused(_)), "{refused:?}");
    }
    // In a cluster the query also goes to the server to which the slot is moving.
    let (heard, receiver) = hears();
    link.send([(call("two").asking(), receiver, true)]).unwrap();
    link.read_awaited().unwrap();
    let refused = heard.lock().take().unwrap();
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|found| found == part)
}

/// While this connection leads to the old master, another connection stores the address of the new
/// master.
#[test]
fn an_error_names_the_server_that_the_connection_leads_to() {
    let server = Server::start().unwrap();
    let mut link = link(&server);
    let address = link.health.address();
    link.health.record_move("elsewhere:1", false);
    let (heard, receiver) = hears();
    link.send_one(Command::plain(&[b"NO"]), receiver).unwrap();
    let refused = link.exchange(&Command::plain(&[b"NO"])).unwrap_err();
    let posted = heard.lock().take().unwrap().unwrap_err();
    server.kill();
    let broken = link.exchange(&Command::plain(&[b"PING"])).unwrap_err();
    for failure in [&refused, &posted, &broken] {
        assert_eq!(failure.cause().address, address, "{failure:?}");
    }
    assert!(matches!((refused, posted), (Failure::Refused(_), Failure::Refused(_))));
}

/// A link accepts any reply of the right kind. A reply of another kind must belong to another
/// command.
#[test]
fn a_reply_that_its_script_cannot_give_ends_the_connection() {
    static NUMBER: LazyLock<CachedScript> =
        LazyLock::new(|| CachedScript::new("return 77").answers(Replies::NUMBER));
    static NO_LIST: LazyLock<CachedScript> =
        LazyLock::new(|| CachedScript::new("return 78").answers(Replies::LIST));
    let call = |script| Command::script::<&[u8]>(script, &[], &[]);
    let server = Server::start().unwrap();
    for awaited in [false, true] {
        let mut link = link(&server);
        assert_eq!(link.exchange(&call(&NUMBER)).unwrap(), Value::Int(77));
        let (first, last) = (hears(), hears());
        if awaited {
            link.send_one(Command::plain(&[b"PING"]), first.1).unwrap();
            let outcome = link.exchange(&call(&NO_LIST));
            assert!(matches!(outcome, Err(Failure::Reset(_))), "{outcome:?}");
            assert!(matches!(first.0.lock().take(), Some(Ok(_))));
            continue;
        }
        link.send_one(call(&NO_LIST), first.1).unwrap();
        link.send_one(call(&NUMBER), last.1).unwrap();
        assert!(link.read_all(TIMEOUT).is_err());
        for heard in [first.0, last.0] {
            let heard = heard.lock().take();
            assert!(matches!(heard, Some(Err(Failure::Reset(_)))), "{heard:?}");
        }
    }
}

/// A command and its ASKING are one entry of the queue, but the server sends two replies.
#[test]
fn an_asking_command_has_its_own_reply_and_not_that_to_its_asking() {
    let server = Server::start().unwrap();
    let mut link = link(&server);
    let (asked, behind) = (hears(), hears());
    let echo = |text: &[u8]| Command::plain(&[b"ECHO", text]);
    let asking = echo(b"1").asking();
    link.send([(asking, asked.1, true), (echo(b"2"), behind.1, true)]).unwrap();
    assert_eq!(link.owed(), 3);
    link.read_awaited().unwrap();
    for (heard, text) in [(asked.0, "1"), (behind.0, "2")] {
        let reply = heard.lock().take().unwrap().unwrap();
        assert_eq!(reply, Value::BulkString(text.into()));
    }
}

fn panics(_: Outcome) {
    panic!("as nothing should");
}

/// There is no replica, so the reply to the WAIT takes the whole time.
const ACKS: ReplicaAcks = ReplicaAcks { count: 1, within: Duration::from_millis(500) };

/// If the link were closed, threads would get failures although their commands may have run.
#[test]
fn a_connection_is_alive_while_the_server_waits_for_replicas() {
    let server = Server::start().unwrap();
    let mut link = link(&server);
    let (heard, receiver) = hears();
    let command = Command::plain(&[b"PING"]).acknowledged(Some(ACKS));
    link.send_one(command, receiver).unwrap();
    link.alive_at = 0;
    assert!(link.check_alive());
    assert!(matches!(heard.lock().take(), Some(Err(Failure::Unacknowledged(..)))));
}

#[test]
fn a_panic_of_one_listener_does_not_keep_replies_from_the_others() {
    let server = Server::start().unwrap();
    let command = |acks| Command::plain(&[b"PING"]).acknowledged(acks);
    for acks in [None, Some(ACKS)] {
        let mut link = link(&server);
        let (first, last) = (hears(), hears());
        let batch = [first.1, Arc::new(panics), last.1];
        let batch = batch.map(|receiver| (command(acks), receiver, false));
        if acks.is_none() {
            // The connection is closed before a reply comes.
            link.connection.closer().close();
        }
        let done = catch_unwind(AssertUnwindSafe(|| {
            link.send(batch).and_then(|()| link.read_all(TIMEOUT))
        }));
        assert!(done.is_err());
        drop(link);
        assert!(first.0.lock().is_some() && last.0.lock().is_some(), "{acks:?}");
    }
}
