//! The prefix of a client's names. The server sees the prefix, but users never see it.

use std::sync::{Arc, Mutex};

use redlatch::observe::{Event, Observer, Way};
use redlatch::status::StatusKind;
use redlatch::{Client, ErrorKind, Lock, LostReason, MultiLock};
use redlatch_testkit::Server;

use crate::common::*;

fn prefixed(server: &Server) -> Client {
    Client::builder(&server.url()).prefix("shop:").connect().unwrap()
}

/// Returns the keys and channels on a server while `one` has something of each kind and `other`
/// waits for some of it. `before` is the prefix that the program itself puts before each name.
fn footprint(server: &Server, one: &Client, other: &Client, before: &str) -> Vec<String> {
    let name = |name: &str| format!("{before}{name}");
    let held = [
        one.reentrant_lock(&name("lock")).lock_owned().unwrap(),
        one.reentrant_lock(&name("{tagged}lock")).lock_owned().unwrap(),
        one.fair_lock(&name("fair")).lock_owned().unwrap(),
        one.read_write_lock(&name("shelves")).reader().lock_owned().unwrap(),
    ];
    let fenced = one.fenced_lock(&name("fenced")).lock_owned().unwrap();
    let (slots, ids) = (one.semaphore(&name("slots")), one.expirable_semaphore(&name("ids")));
    assert!(slots.try_set_permits(1).unwrap() && ids.try_set_permits(1).unwrap());
    let (slot, id) = (slots.acquire().unwrap(), ids.acquire().unwrap());
    let latch = one.count_down_latch(&name("latch"));
    assert!(latch.try_set_count(1).unwrap());
    assert!(one.cyclic_barrier(&name("barrier")).try_set_parties(2).unwrap());
    let elected = one.leader_election(&name("election")).campaign().unwrap();

    let (lock, fair) = (other.reentrant_lock(&name("lock")), other.fair_lock(&name("fair")));
    let (taken, opened) = (other.semaphore(&name("slots")), other.count_down_latch(&name("latch")));
    let waiting = [
        spawn(move || lock.lock().map(drop).unwrap()),
        spawn(move || fair.lock().map(drop).unwrap()),
        spawn(move || taken.acquire().map(drop).unwrap()),
        spawn(move || opened.wait().unwrap()),
    ];
    wait_in_line(server, "shop:lock", 1);
    for channel in ["redisson_sc:{shop:slots}", "redisson_countdownlatch__channel__{shop:latch}"] {
        wait_subscribed(server, channel);
    }
    // A holder subscribes when it has held something for 100 ms.
    wait_subscribed(server, &format!("redisson_lock__channel:{{redlatch:{}}}", one.id()));
    let mut redis = server.connection();
    wait_until("it waits for the fair lock", TIMEOUT, || {
        let key = "redisson_lock_queue:{shop:fair}";
        redis::cmd("LLEN").arg(key).query::<u64>(&mut redis).unwrap() == 1
    });
    let mut found: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    found.extend(redis::cmd("PUBSUB").arg("CHANNELS").query::<Vec<String>>(&mut redis).unwrap());
    latch.count_down().unwrap();
    drop((held, fenced, slot, id, elected));
    waiting.into_iter().for_each(Running::join);
    // Replace the parts that differ in each run: the client's id in the key of its requests, and
    // the owner's number, which contains a time.
    let anonymous = |it: String| match it.split_once(":rwlock_timeout") {
        Some((owner, _)) => owner.trim_end_matches(|it: char| it.is_ascii_digit()).to_owned(),
        None => it,
    };
    let anonymous =
        |it: String| anonymous(it).replace(one.id(), "ONE").replace(other.id(), "OTHER");
    let mut found: Vec<_> = found.into_iter().map(anonymous).collect();
    // These keys exist only for a moment.
    found.retain(|it| !it.starts_with("redlatch_asked"));
    found.sort();
    found
}

/// With the prefix in its `NameMapper`, Redisson has the same keys and channels.
#[test]
fn keys_and_channels_are_those_of_the_name_with_the_prefix() {
    let (there, here) = (server(), server());
    let [one, other] = [client(&there), client(&there)];
    let whole = footprint(&there, &one, &other, "shop:");
    let [one, other] = [prefixed(&here), prefixed(&here)];
    assert_eq!(footprint(&here, &one, &other, ""), whole);
    for key in
        ["shop:lock", "shop:{tagged}lock", "{shop:ids}:timeout", "redlatch_queue:{shop:lock}"]
    {
        assert!(whole.iter().any(|it| it == key), "no {key} in {whole:?}");
    }
}

#[test]
fn a_lock_goes_from_a_client_with_the_prefix_to_one_that_writes_it_and_back() {
    let server = server();
    let (with, without) = (prefixed(&server), client(&server));
    let client = with.clone();
    let pairs: [(Box<dyn Lock>, Box<dyn Lock>); 3] = [
        (Box::new(with.reentrant_lock("orders")), Box::new(without.reentrant_lock("shop:orders"))),
        (Box::new(with.fair_lock("fair")), Box::new(without.fair_lock("shop:fair"))),
        (
            Box::new(with.read_write_lock("shelves").writer().clone()),
            Box::new(without.read_write_lock("shop:shelves").writer().clone()),
        ),
    ];
    for (with, without) in &pairs {
        for (first, next) in [(with, without), (without, with)] {
            std::thread::scope(|scope| {
                let guard = first.lock().unwrap();
                let waiter = scope
                    .spawn(|| next.try_lock_for(LONG_LEASE / 2).unwrap().into_option().is_some());
                let queue = || client.status(with.name()).unwrap().queue;
                wait_until("it waits", TIMEOUT, || queue().len() == 1);
                guard.unlock().unwrap();
                assert!(waiter.join().unwrap(), "{} did not come", next.name());
            });
        }
    }
    // If a message names an owner that no thread uses any longer, the client gives the grant back
    // under the key with the prefix.
    let guard = with.reentrant_lock("orders").lock().unwrap();
    assert!(
        without
            .reentrant_lock("shop:orders")
            .try_lock_for(TIME_UNIT)
            .unwrap()
            .into_option()
            .is_none()
    );
    guard.unlock().unwrap();
    wait_free(&server, "shop:orders", TIMEOUT);
}

/// The names in the observed events.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Observer for Heard {
    fn acquired(&self, event: &Event<'_, Way>) {
        self.0.lock().unwrap().push(event.name.to_owned());
    }

    fn lost(&self, event: &Event<'_, LostReason>) {
        self.0.lock().unwrap().push(event.name.to_owned());
    }
}

#[test]
fn people_read_the_name_without_the_prefix() {
    let (server, heard) = (server(), Heard::default());
    let builder = Client::builder(&server.url()).prefix("shop*:").observer(heard.clone());
    let client = builder.connect().unwrap();
    let (lock, ids) = (client.reentrant_lock("orders"), client.expirable_semaphore("ids"));
    assert!(ids.try_set_permits(1).unwrap());
    let (guard, permit) = (lock.lock().unwrap(), ids.acquire().unwrap());
    let fair = client.fair_lock("fair");
    let multi = MultiLock::new(&[&fair]).unwrap();
    for name in [lock.name(), guard.name(), lock.condition("full").lock_name()] {
        assert_eq!(name, "orders");
    }
    assert_eq!((ids.name(), permit.name()), ("ids", "ids"));
    assert_eq!(multi.names().collect::<Vec<_>>(), ["fair"]);
    assert_eq!(multi.name(), "fair");

    let status = client.status("orders").unwrap();
    assert_eq!((&*status.name, status.kind), ("orders", StatusKind::Lock));
    let held: Vec<_> = client.snapshot().held.into_iter().map(|held| held.name).collect();
    assert!(held.contains(&"orders".to_owned()) && held.contains(&"ids".to_owned()), "{held:?}");
    let others = super::common::client(&server);
    // If the prefix were a pattern, `*` would match this name.
    let _other = others.reentrant_lock("shopping:other").lock().unwrap();
    let names = |pattern| -> Vec<_> {
        client.statuses(pattern).unwrap().into_iter().map(|status| status.name).collect()
    };
    assert_eq!(names("*"), ["ids", "orders"]);
    assert_eq!(names("or*"), ["orders"]);

    let error = client.semaphore("").acquire().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(client.reentrant_lock("").lock().unwrap_err().to_string().contains("empty"));
    let owner = status.holders[0].owner.clone();
    assert!(client.release_owner("orders", &owner).unwrap());
    let lost = guard.unlock().unwrap_err();
    assert_eq!(lost.name(), Some("orders"));
    assert!(lost.to_string().starts_with("\"orders\": "), "{lost}");
    wait_until("the loss is told", TIMEOUT, || heard.0.lock().unwrap().len() == 3);
    assert_eq!(*heard.0.lock().unwrap(), ["orders", "ids", "orders"]);
}

#[test]
fn a_prefix_with_a_brace_is_refused_since_a_cluster_reads_the_names_braces() {
    for prefix in ["{shop}:", "shop{", "}"] {
        let error = Client::builder("redis://127.0.0.1:1").prefix(prefix).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("slot"), "{error}");
    }
}
