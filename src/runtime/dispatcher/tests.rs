//! Tests of a client's background jobs in a cluster, while a slot moves to another server.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redis::{RedisError, Value};
use redlatch_client::pubsub::Confirmation;
use redlatch_client::sync::Mutex;
use redlatch_client::{Cause, Command, Failure, Outcome};
use redlatch_testkit::{Cluster as Servers, Server, wait_until};

use crate::config::ClientBuilder;
use crate::runtime::{Core, Message, Session};
use crate::scripts::LockKeys;

const TIMEOUT: Duration = Duration::from_secs(20);

fn cluster() -> Servers {
    Servers::without_replicas().unwrap()
}

fn session(cluster: &Servers, unclaimed: fn(&Arc<Core>, u64, &Message<'_>)) -> Session {
    Session::open(&cluster.url(), ClientBuilder::new("redis://localhost").config, unclaimed)
        .unwrap()
}

fn ignore(_: &Arc<Core>, _: u64, _: &Message<'_>) {}

/// Returns another name at the server of `name`, in another slot.
fn neighbour(cluster: &Servers, name: &str) -> String {
    let (slot, port) = (cluster.slot(name), cluster.home(name).port());
    let is_one = |other: &String| cluster.slot(other) != slot && cluster.home(other).port() == port;
    (0..).map(|number| format!("other{number}")).find(is_one).unwrap()
}

#[test]
fn a_command_posted_to_a_server_that_has_lost_the_slot_was_not_sent() {
    let cluster = cluster();
    let session = session(&cluster, ignore);
    let core = session.core();
    let slot = cluster.slot("moved");
    cluster.move_slot(slot, cluster.another(slot));
    let heard = Arc::new(Mutex::new(None));
    let receiver = {
        let heard = Arc::clone(&heard);
        move |outcome: Outcome| *heard.lock() = Some(outcome)
    };
    core.post(&core.route("moved"), Command::plain(&[b"DEL", b"moved"]), Arc::new(receiver));
    wait_until("it is answered", TIMEOUT, || heard.lock().is_some());
    assert!(matches!(*heard.lock(), Some(Err(Failure::Unsent(_)))), "{:?}", heard.lock());
}

#[test]
fn a_lost_control_message_is_sent_again_to_its_own_server() {
    let cluster = cluster();
    let session = session(&cluster, ignore);
    let core = session.core();
    let published = |server: &Server| {
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
        stats.contains("cmdstat_publish:")
    };
    for (number, server) in cluster.servers().iter().enumerate() {
        let name = (0..).map(|number| format!("name{number}"));
        let name = name.into_iter().find(|it| cluster.home(it).port() == server.port()).unwrap();
        let node = core.servers.home(name.as_bytes());
        let error = Arc::new(RedisError::from(std::io::Error::other("broken")));
        let cause = Cause::said(error, "there".into());
        core.handle_control_outcome(&node, &Err(Failure::Reset(cause)));
        wait_until("it is sent there", TIMEOUT, || published(server));
        let others = &cluster.servers()[number + 1..];
        assert!(!others.iter().any(published), "it is sent elsewhere");
    }
}

/// When the slot leaves the server, the server ends the subscription and reports this end. The
/// server then refuses the client's UNSUBSCRIBE, so the client gets two replies.
#[test]
fn a_channel_whose_slot_leaves_while_it_is_given_up_disturbs_no_other() {
    static HOLDS: AtomicBool = AtomicBool::new(true);
    static HELD: AtomicBool = AtomicBool::new(false);
    let cluster = cluster();
    let session = session(&cluster, |_, _, _| {
        HELD.store(true, Ordering::SeqCst);
        while HOLDS.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let core = session.core();
    let (slot, other) = (cluster.slot("moved"), neighbour(&cluster, "moved"));
    let node = core.servers.home(b"moved");
    let moved = core.pubsub.listen(&"{moved}".into());
    let stays = core.pubsub.listen_to_own(&other);
    wait_until("both are heard", TIMEOUT, || moved.is_confirmed() && stays.is_confirmed());
    let version = stays.version();
    // The subscriber thread is stopped, and later reads all these events in this order.
    let channel = LockKeys::own_channel(&other, core.id.as_str());
    let mut redis = cluster.home("moved").connection();
    let heard: u64 =
        redis::cmd("SPUBLISH").arg(channel).arg("ask 1 lock").query(&mut redis).unwrap();
    assert_eq!(heard, 1);
    wait_until("it is held", TIMEOUT, || HELD.load(Ordering::SeqCst));
    let told = node.any_lane().call_once(&core.pubsub.control_message(&node));
    assert!(matches!(told, Ok(Value::Int(1))), "{told:?}");
    cluster.move_slot(slot, cluster.another(slot));
    let asked = core.route("moved").call_once(&Command::plain(&[b"EXISTS", b"moved"]));
    assert!(matches!(asked, Ok(Value::Int(0))), "{asked:?}");
    let new = core.pubsub.listen(&format!("{{{other}}}").into());
    HOLDS.store(false, Ordering::SeqCst);
    wait_until("all are heard", TIMEOUT, || moved.is_confirmed() && new.is_confirmed());
    assert!(stays.is_confirmed());
    assert_eq!(stays.version(), version, "it was asked for once more");
}

/// The server refuses the PING that follows an UNSUBSCRIBE. The client must not mistake this
/// refusal for the reply to another request.
#[test]
fn without_the_right_to_ping_a_refusal_counts_for_the_channel_last_requested() {
    let cluster = cluster();
    let session = session(&cluster, ignore);
    let core = session.core();
    let (slot, other) = (cluster.slot("moved"), neighbour(&cluster, "moved"));
    let server = cluster.home("moved");
    let rules = |rules: &[&str]| {
        let mut redis = server.connection();
        redis::cmd("ACL").arg(&["SETUSER", "default"]).arg(rules).exec(&mut redis).unwrap();
    };
    let moved = core.pubsub.listen(&"{moved}".into());
    wait_until("it is heard", TIMEOUT, || moved.is_confirmed());
    rules(&["-ping"]);
    // The move makes the client unsubscribe at the old server.
    cluster.move_slot(slot, cluster.another(slot));
    wait_until("it is heard there", TIMEOUT, || moved.is_confirmed() && moved.version() > 1);
    let stays = core.pubsub.listen(&format!("allowed{{{other}}}").into());
    wait_until("another one is heard", TIMEOUT, || stays.is_confirmed());
    rules(&["resetchannels", "&redisson_lock__channel:*", "&allowed*"]);
    let refused = core.pubsub.listen(&format!("refused {{{other}}}").into());
    wait_until("it is refused", TIMEOUT, || {
        matches!(refused.confirmation(), Confirmation::Refused(_))
    });
    assert!(stays.is_confirmed());
}
