//! Tests of commands to a cluster while a slot is moving to another server.

#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;

use redis::{Commands as _, Value};
use redlatch_testkit::Cluster as Servers;

use super::*;
use crate::connection::reply::redirect;
use crate::connection::{CachedScript, Command, Failure, Route};

const KEY: &str = "moved";

/// Returns a cluster, and the slot of [`KEY`] in it.
fn slot() -> (Servers, Slot) {
    let servers = Servers::without_replicas().unwrap();
    let cluster = Cluster::connect(&servers.url(), &Settings::default()).unwrap().unwrap();
    let slot = Slot::of(&cluster, KEY.as_bytes(), 0);
    (servers, slot)
}

#[test]
fn a_script_stopped_in_its_middle_counts_as_one_that_may_have_run() {
    static AGAIN: LazyLock<CachedScript> = LazyLock::new(|| {
        CachedScript::new("redis.call('del', KEYS[1]) return redis.call('incr', KEYS[1])")
    });
    let (servers, slot) = slot();
    let mut redis = servers.home(KEY).connection();
    let keys = [KEY, "{moved} too"];
    keys.iter().for_each(|key| redis.set(key, 7).unwrap());
    servers.begin_move(slot.number, servers.another(slot.number));
    let [once, twice] = keys.map(|key| Command::script(&AGAIN, &[key.as_bytes()], &[]));
    let outcome = slot.call_once(&once);
    assert!(matches!(outcome, Err(Failure::Reset(_))), "{outcome:?}");
    let count = redis::cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(slot.number).query(&mut redis);
    assert_eq!(count, Ok(1), "it has run to its middle");
    let mut copies = 0;
    let (outcome, in_doubt) = Route::Slot(slot).call_twice(&twice, || {
        copies += 1;
        Command::plain(&[b"EXISTS", KEY.as_bytes()])
    });
    assert!(in_doubt && copies == 1, "{outcome:?}, {copies} copies");
    assert!(matches!(outcome, Ok(Value::Int(0))), "{outcome:?}");
}

/// When the script begins, the server to which the slot is moving has both keys. The server stops
/// the script when one key has been deleted.
#[test]
fn a_script_stopped_at_the_new_server_of_its_slot_counts_as_one_that_may_have_run() {
    static BOTH: LazyLock<CachedScript> = LazyLock::new(|| {
        CachedScript::new(
            "redis.call('del', KEYS[1]) return redis.call('exists', KEYS[1], KEYS[2])",
        )
    });
    let (servers, slot) = slot();
    let keys = [KEY, "{moved} too"];
    let to = servers.another(slot.number);
    keys.iter().for_each(|key| servers.home(KEY).connection().set(key, 7).unwrap());
    servers.begin_move(slot.number, to);
    keys.iter().for_each(|key| servers.move_key(key, to));
    let script = Command::script(&BOTH, &keys.map(str::as_bytes), &[]);
    let outcome = slot.call_once(&script);
    assert!(matches!(outcome, Err(Failure::Reset(_))), "{outcome:?}");
    let mut redis = to.connection();
    let count = redis::cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(slot.number).query(&mut redis);
    assert_eq!(count, Ok(1), "it has run to its middle");
}

#[test]
fn no_server_is_asked_when_the_time_of_a_call_is_over() {
    let (servers, slot) = slot();
    let to = servers.another(slot.number);
    servers.begin_move(slot.number, to);
    let (asked, command) = (slot.lane(), Command::plain(&[b"INCR", KEY.as_bytes()]));
    let sent = asked.call_once(&command);
    assert!(matches!(redirect(&sent), Some(Redirect::Ask { .. })));
    let follow = |until| {
        let none = None::<fn() -> Command>;
        slot.follow(Arc::clone(&asked), sent.clone(), false, &command, none, until).0
    };
    let late = follow(Instant::now());
    assert!(matches!(&late, Err(Failure::Refused(it)) if it.error.code() == Some("CLUSTERDOWN")));
    let in_time = follow(Instant::now() + Duration::from_secs(10));
    assert!(matches!(in_time, Ok(Value::Int(1))), "{in_time:?}: the first one was sent");
}
