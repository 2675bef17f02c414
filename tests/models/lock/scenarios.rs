//! Tests of the scripts without a simulated clock: their costs, and their effects if the server
//! refuses a command or if their keys contain other data.

use redis::Value;
use redlatch_testkit::Server;

use super::kind::{PlainLock, TEXTS};
use crate::common::{TIMEOUT, forbids_a_command, unbounded_server as server, wait_until};
use crate::simulated::client::LEASE;
use crate::simulated::direct::{CHAIN, Direct, Listener};
use crate::simulated::kind::Kind as _;
use crate::simulated::rules::Broken;
use crate::simulated::scripts::Scripts;
use crate::simulated::shortcuts;
use crate::simulated::site::Site;
use crate::simulated::specification::scenes;
use crate::simulated::store::uuid;
use crate::simulated::wire::{Again, Chain, Message, Reply, Request, What, own_channel};

scenes! {
    TEXTS;
    mute_waiter: a_waiter_that_may_not_tell_the_holder_waits_all_the_same,
    refused_waiter: a_waiter_that_is_refused_has_no_entry,
    no_tokens: a_release_grants_no_lock_whose_tokens_cannot_be_counted,
    older: an_older_clients_holder_is_told_nothing,
    mute_release: without_the_right_to_publish_a_release_goes_on_unless_waiters_must_be_told,
    demoted: a_replica_takes_no_release,
    silent: places_of_which_nothing_was_heard_are_passed_together,
    silent_server: no_waiter_is_passed_where_the_server_stood_still,
    back: a_waiter_that_comes_back_stands_in_front_of_those_that_came_later,
}

fn orders() -> Site {
    Site::new(&PlainLock, 0, "orders")
}

fn direct(server: &Server, scripts: &Scripts) -> Direct {
    let mut direct = Direct { scripts: scripts.clone(), ..Direct::new(server, orders()) };
    let () = direct.command(&["FLUSHALL"]);
    direct
}

#[test]
fn a_hand_over_costs_two_scripts_and_few_commands() {
    let server = server();
    let mut direct = Direct::new(&server, orders());
    let mut listener = Listener::new(&server, orders(), 2);
    let alone = direct.commands_of(|direct| {
        assert!(direct.takes(1));
        assert_eq!(direct.release(1), Some(0));
    });
    assert!(direct.takes(1));
    let queued = direct.commands_of(|direct| assert_eq!(direct.place(2), 0));
    // With this owner number the client sends the script for a lock that is probably held.
    let knowing = Request::Acquire { number: 2, lease: LEASE, again: None };
    let queued_knowing = direct.commands_of(|direct| {
        assert!(matches!(direct.run(3, &knowing), Reply::Queued(_)));
    });
    direct.run(3, &Request::GiveUp { number: 2, chain: CHAIN });
    let handed = direct.commands_of(|direct| assert_eq!(direct.release(1), Some(1)));
    println!("alone {alone}, queued {queued} or {queued_knowing}, handed on {handed}");
    assert!(alone <= 8 && queued <= 7 && queued_knowing <= 6 && handed <= 9);
    let Message { number, what, database, lock } = listener.hears();
    assert_eq!((number, database, lock.as_str()), (1, 0, "orders"));
    // Clients send no chain that is so young, so the new holder begins a new chain.
    assert!(matches!(what, What::Grant { lease: 2_000, places: 0, chain, .. } if chain.count == 1));
    let left: i64 = direct.command(&["PTTL", "orders"]);
    assert!((1..=2_000).contains(&left));
    assert_eq!(direct.holder(), Some(2));
    assert_eq!(direct.release(2), Some(0));
    assert_eq!(direct.keys_left(), 0);
}

#[test]
fn a_hand_over_of_a_lock_with_tokens_costs_one_command_more() {
    let server = server();
    let handed = |site: Site| {
        let mut direct = Direct::new(&server, site);
        let () = direct.command(&["FLUSHALL"]);
        let mut listener = Listener::new(&server, orders(), 2);
        assert!(direct.takes(1));
        assert_eq!(direct.place(2), 0);
        let commands = direct.commands_of(|direct| assert_eq!(direct.release(1), Some(1)));
        (commands, listener.hears().what)
    };
    let (plain, grant) = handed(orders());
    assert!(matches!(grant, What::Grant { token: None, .. }), "{grant:?}");
    let (fenced, grant) = handed(orders().fenced());
    assert_eq!(fenced, plain + 1);
    assert!(matches!(grant, What::Grant { token: Some(2_048), .. }), "{grant:?}");
}

/// Each request may be sent twice. The second copy changes nothing.
#[test]
fn a_request_sent_again_changes_nothing() {
    let server = server();
    let mut direct = Direct::new(&server, orders());
    let _listeners: Vec<_> =
        (2..=3).map(|client| Listener::new(&server, orders(), client)).collect();
    assert!(direct.takes(1) && direct.takes(1));
    for _ in 0..2 {
        assert_eq!((direct.place(2), direct.place(3)), (0, 1));
    }
    assert_eq!(direct.release(1), Some(1));
    assert_eq!(direct.release(1), None);
    assert_eq!(direct.holder(), Some(2));
    for _ in 0..2 {
        direct.give_up(2);
        assert_eq!(direct.holder(), Some(3));
    }
    direct.give_up(3);
    assert_eq!(direct.keys_left(), 0);
}

/// Among a thousand entries, one script call finds the first live entry.
#[test]
fn a_waiter_that_gives_up_leaves_the_queue() {
    let server = server();
    let mut direct = Direct::new(&server, orders());
    assert!(direct.takes(1));
    assert_eq!([2, 3, 4].map(|client| direct.place(client)), [0, 1, 2]);
    for leaves in [3, 2] {
        direct.give_up(leaves);
    }
    assert_eq!(direct.place(4), 0);
}

#[test]
fn the_dead_are_passed_in_one_call() {
    let server = server();
    let mut direct = Direct::new(&server, orders());
    let mut monitor = server.connection();
    redis::cmd("PSUBSCRIBE").arg("*").exec(&mut monitor).unwrap();
    assert!(direct.takes(1));
    for client in 2..=1_000 {
        direct.acquire(client);
    }
    let _listener = Listener::new(&server, orders(), 900);
    assert_eq!(direct.release(1), Some(1));
    assert_eq!(direct.holder(), Some(900));
    assert_eq!(direct.place(1_000), 99);
    assert_eq!(direct.release(900), Some(0));
    assert_eq!(direct.keys_left(), 0);
}

/// Redisson's release wakes only the first two waiters. If these two waiters are dead, the process
/// behind them notifies the first live waiter that it is now the first.
#[test]
fn a_waiter_behind_two_dead_ones_tells_the_first_live_one_to_listen_for_redisson() {
    let server = server();
    let mut direct = Direct::new(&server, orders());
    let dead: Vec<_> = (1..=2).map(|client| Listener::new(&server, orders(), client)).collect();
    let redisson = format!("{}:7", uuid(false, 1));
    let () = direct.command(&["HSET", "orders", &redisson, "1"]);
    let () = direct.command(&["PEXPIRE", "orders", "30000"]);
    assert_eq!((direct.place(1), direct.place(2)), (0, 1));
    drop(dead);
    wait_until("the server knows that they are dead", TIMEOUT, || {
        let [one, two] = [1, 2].map(|client| own_channel(&uuid(true, client)));
        let (_, one, _, two): (String, i64, String, i64) =
            direct.command(&["PUBSUB", "NUMSUB", &one, &two]);
        one + two == 0
    });
    let mut listener = Listener::new(&server, orders(), 3);
    assert_eq!(direct.place(3), 2);
    direct.acquire(3);
    assert_eq!(direct.place(3), 0, "it stands behind the dead");
    let Message { number, what, database, lock } = listener.hears();
    assert_eq!((number, database, lock.as_str()), (1, 0, "orders"));
    assert!(matches!(what, What::Open { left: 0 }), "{what:?}");
}

/// Without memory a lock still goes to the next waiter. The server refuses only the request for a
/// free lock without waiters.
#[test]
fn without_memory_the_queue_moves_on() {
    let server = server();
    let mut direct = Direct::new(&server, orders());
    let _listeners: Vec<_> =
        (2..=3).map(|client| Listener::new(&server, orders(), client)).collect();
    assert!(direct.takes(1));
    assert_eq!((direct.place(2), direct.place(3)), (0, 1));
    let () = direct.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(direct.place(4), 2);
    assert_eq!(direct.release(1), Some(1));
    assert_eq!(direct.holder(), Some(2));
    // As at the end of a lease, the key disappears, and no process gets a message.
    let () = direct.command(&["DEL", "orders"]);
    assert_eq!(direct.place(4), 0);
    assert_eq!(direct.holder(), Some(3));
    direct.give_up(4);
    assert_eq!(direct.release(3), Some(0));
    let Reply::Error(error) = direct.acquire(4) else { panic!("it was granted without memory") };
    assert!(error.contains("OOM"), "{error}");
    assert_eq!(direct.keys_left(), 0);
}

/// A key that does not expire, that has several fields, or that has another type is not a lock.
/// Every request gets an error, and the key does not change.
#[test]
fn something_else_under_the_name_is_an_error() {
    let server = server();
    for foreign in [
        &["SET", "orders", "mine"][..],
        &["HSET", "orders", "field", "1"],
        &["HSET", "orders", "field", "1", "other", "2"],
    ] {
        let mut direct = Direct::new(&server, orders());
        let () = direct.command(&["FLUSHALL"]);
        let _: Value = direct.command(foreign);
        let before: Vec<u8> = direct.command(&["DUMP", "orders"]);
        for request in [
            Request::Acquire { number: 1, lease: LEASE, again: None },
            Request::Try { number: 1, lease: LEASE },
        ] {
            let error = direct.raw(1, &request).unwrap_err();
            assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
        }
        let error = direct.force_unlock().unwrap_err();
        assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
        assert_eq!(direct.keys_left(), 1);
        assert_eq!(direct.command::<Vec<u8>>(&["DUMP", "orders"]), before);
    }
}

/// Each request to take, wait or release gets an error, and nothing is changed.
#[test]
fn something_else_under_the_queue_is_an_error() {
    let server = server();
    let mut direct = direct(&server, &Scripts::of(TEXTS));
    let queue = direct.site.queue.clone();
    assert!(direct.takes(1));
    let () = direct.command(&["SET", &queue, "mine"]);
    for client in [1, 2] {
        for request in [
            Request::Acquire { number: 2, lease: LEASE, again: None },
            Request::Release { number: 1, chain: CHAIN },
            Request::GiveUp { number: 1, chain: CHAIN },
        ] {
            let error = direct.raw(client, &request).unwrap_err();
            assert_eq!(error.code(), Some("WRONGTYPE"), "{request:?}: {error}");
        }
    }
    assert_eq!(direct.holder(), Some(1));
    assert_eq!(direct.command::<String>(&["GET", &queue]), "mine");
}

#[test]
fn something_else_under_the_window_costs_nothing() {
    let server = server();
    let mut direct = direct(&server, &Scripts::of(TEXTS));
    let window = direct.site.keys()[2].clone();
    let () = direct.command(&["SET", &window, "mine"]);
    assert!(direct.takes(1));
    assert_eq!(direct.place(2), 0);
    assert_eq!(direct.release(1), Some(0));
    assert!(direct.takes(2));
    assert_eq!(direct.release(2), Some(0));
    assert_eq!(direct.command::<String>(&["GET", &window]), "mine");
}

/// If the user lacks a right, a script does all or nothing, and every lock expires. A user who may
/// delete the lock may release it.
#[test]
fn a_script_without_a_right_takes_effect_as_a_whole_or_not_at_all() {
    let server = server();
    let commands = "exists hrandfield hexists hset hdel del pexpire pttl time lpos rpush lpop \
                    lindex linsert lrem llen get set publish pubsub";
    for denied in commands.split_whitespace() {
        let rule = format!("-{denied}");
        let mut master = Direct::new(&server, orders());
        let mut user = Direct::without(&server, orders(), &[&rule]);
        let check = |master: &mut Direct, what: &str| {
            let left: i64 = master.command(&["PTTL", "orders"]);
            assert_ne!(left, -1, "{what} without {denied}: a lock without an end");
            let queue = master.site.keys()[1].clone();
            let left: i64 = master.command(&["PTTL", &queue]);
            assert_ne!(left, -1, "{what} without {denied}: a queue without an end");
        };
        // The user takes the lock, or gets an error, and the lock is free.
        let () = master.command(&["FLUSHALL"]);
        let reply = user.acquire(1);
        check(&mut master, "acquire");
        let is_held = master.holder() == Some(1);
        assert_eq!(matches!(reply, Reply::Granted { .. }), is_held, "{denied}: {reply:?}");
        // The owner gets an entry in the queue, or an error and no entry.
        let () = master.command(&["FLUSHALL"]);
        assert!(master.takes(1));
        let reply = user.acquire(2);
        check(&mut master, "a question");
        let queue = master.site.keys()[1].clone();
        let places: Vec<String> = master.command(&["LRANGE", &queue, "0", "-1"]);
        match &reply {
            Reply::Queued(queued) => {
                assert_eq!((queued.place, places.len()), (0, 1), "{denied}: {reply:?}");
            }
            Reply::Error(error) => {
                assert!(forbids_a_command(error), "{denied}: {error}");
                assert!(places.is_empty(), "{denied}: {places:?}");
            }
            other => panic!("without {denied}: {other:?}"),
        }
        // The lock is free or granted to the next waiter, or an error leaves it held.
        for waits in [false, true] {
            let () = master.command(&["FLUSHALL"]);
            let _listener = Listener::new(&server, orders(), 2);
            wait_until("the waiter listens", TIMEOUT, || {
                let channel = own_channel(&uuid(true, 2));
                let heard: (String, i64) = master.command(&["PUBSUB", "NUMSUB", &channel]);
                heard.1 == 1
            });
            assert!(master.takes(1));
            if waits {
                assert_eq!(master.place(2), 0);
            }
            let outcome = user.raw(1, &Request::Release { number: 1, chain: CHAIN });
            check(&mut master, "release");
            let holder = master.holder();
            match outcome {
                Ok(_) => assert_ne!(holder, Some(1), "{denied}"),
                Err(error) => assert_eq!(holder, Some(1), "without {denied}: {error}"),
            }
            // The waiter still gets the lock.
            if waits && holder.is_none() {
                assert!(master.takes(2), "without {denied}");
            }
        }
    }
}

/// If a client may not send messages, it keeps the lock, whether or not another client waits.
fn mute_release(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut master = direct(server, scripts);
    let mut mute = Direct::without(server, orders(), &["-publish"]);
    mute.scripts = scripts.clone();
    let _listener = Listener::new(server, orders(), 2);
    wait_until("it listens", TIMEOUT, || {
        let heard: (String, i64) =
            master.command(&["PUBSUB", "NUMSUB", &own_channel(&uuid(true, 2))]);
        heard.1 == 1
    });
    for waits in [false, true] {
        if waits {
            assert!(mute.takes(1));
            assert_eq!((master.place(2), master.place(3)), (0, 1));
        }
        for since in [0, -5_000, 1] {
            let request = Request::Release { number: 1, chain: Chain { since, count: 1 } };
            if !waits {
                // The user may send all messages except the public message.
                assert!(mute.takes(1));
                let free = mute.raw(1, &request).map_err(|error| error.to_string());
                ensure(free == Ok(Value::Int(5)), &format!("a mute release: {free:?}"))?;
                ensure(master.holder().is_none(), "a refused message keeps the lock")?;
                continue;
            }
            let refused = mute.raw(1, &request).err().map(|error| error.to_string());
            let is_forbidden = refused.as_deref().is_some_and(forbids_a_command);
            ensure(is_forbidden, &format!("a mute release: {refused:?}"))?;
        }
        ensure(!waits || master.holder() == Some(1), "it is refused, and the lock is free")?;
    }
    let places: i64 = master.command(&["LLEN", &master.site.keys()[1].clone()]);
    ensure(places == 2, "somebody has lost a place")?;
    ensure(master.release(1) == Some(1), "the first in line is not granted the lock")
}

fn ensure(is_so: bool, otherwise: &str) -> Result<(), Broken> {
    if is_so { Ok(()) } else { Err(otherwise.to_owned()) }
}

/// Two first requests of a waiter whose holder wants to be notified of it: its very first request,
/// and a request after its entry was lost.
fn first_waiters() -> [Request; 2] {
    [None, Some(Again { waiting_since: 1, sent: None })].map(|again| Request::Acquire {
        number: 1,
        lease: LEASE,
        again,
    })
}

fn mute_waiter(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut master = direct(server, scripts);
    let mut mute = Direct::without(server, orders(), &["-publish"]);
    mute.scripts = scripts.clone();
    let taken = master.run(1, &Request::Acquire { number: 2, lease: LEASE, again: None });
    ensure(matches!(taken, Reply::Granted { .. }), "it is not free")?;
    for request in first_waiters() {
        let reply = mute.run(2, &request);
        ensure(matches!(reply, Reply::Queued(_)), &format!("a mute waiter: {reply:?}"))?;
        master.give_up(2);
    }
    Ok(())
}

/// A waiter that may not run a command after its entry was added gets an error and has no entry. If
/// it may not remove an entry either, no entry is added.
fn refused_waiter(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut master = direct(server, scripts);
    // With this number the client expects that the lock is held.
    let asks = Request::Acquire { number: 2, lease: LEASE, again: None };
    ensure(matches!(master.run(1, &asks), Reply::Granted { .. }), "it is not free")?;
    for (waits, denied) in [(0, "pttl"), (0, "pexpire"), (1, "pexpire"), (1, "lpos")] {
        for rules in [&[format!("-{denied}")][..], &[format!("-{denied}"), "-lrem".to_owned()]] {
            if waits == 1 {
                ensure(matches!(master.run(3, &asks), Reply::Queued(_)), "it does not wait")?;
            }
            let rules: Vec<_> = rules.iter().map(String::as_str).collect();
            let mut user = Direct::without(server, orders(), &rules);
            user.scripts = scripts.clone();
            let reply = user.run(2, &asks);
            ensure(matches!(reply, Reply::Error(_)), &format!("{rules:?}: {reply:?}"))?;
            let entries: i64 = master.command(&["LLEN", &master.site.keys()[1].clone()]);
            ensure(entries == waits, &format!("{rules:?}: {entries} entries"))?;
        }
    }
    Ok(())
}

/// The token key does not hold a usable number. The lock is free after the release, the waiter gets
/// an error when it asks, and the key does not change.
fn no_tokens(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = Direct { scripts: scripts.clone(), ..Direct::new(server, orders().fenced()) };
    let _listener = Listener::new(server, orders(), 2);
    let tokens = direct.site.tokens.clone().unwrap_or_default();
    for number in ["-5", "9007199254740000", "x"] {
        let () = direct.command(&["FLUSHALL"]);
        ensure(direct.takes(1) && direct.place(2) == 0, "it is not free")?;
        let () = direct.command(&["SET", &tokens, number]);
        let released = direct.release(1);
        ensure(released == Some(0), &format!("after {number}: {released:?}"))?;
        ensure(direct.holder().is_none(), &format!("after {number} the lock is granted"))?;
        let after: String = direct.command(&["GET", &tokens]);
        let is_above = after.parse().is_ok_and(|after: i64| after >= 1 << 53);
        ensure(after == number || is_above, &format!("{number} has become {after}"))?;
    }
    Ok(())
}

/// The holder's client is of an older version. The number of the holder's owner has no flags, and
/// is odd only by chance.
fn older(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    let holder = format!("{}:7", uuid(true, 1));
    let () = direct.command(&["HSET", "orders", &holder, "1"]);
    let () = direct.command(&["PEXPIRE", "orders", "30000"]);
    for request in first_waiters() {
        let () = direct.command(&["CONFIG", "RESETSTAT"]);
        let reply = direct.run(2, &request);
        ensure(matches!(reply, Reply::Queued(_)), &format!("a waiter: {reply:?}"))?;
        let stats: String = direct.command(&["INFO", "commandstats"]);
        ensure(!stats.contains("cmdstat_publish"), "it is told")?;
        direct.give_up(2);
    }
    Ok(())
}

/// A demoted master must refuse to release a lock even if it does not have that lock, because the
/// new master may have it.
fn demoted(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    direct.demoted(
        1,
        &[
            Request::Release { number: 1, chain: CHAIN },
            Request::GiveUp { number: 1, chain: CHAIN },
        ],
    )
}

/// A replica must add no entry, because no script on a replica would grant the lock to a waiter.
#[test]
fn a_replica_gives_no_client_a_place() {
    let server = server();
    let mut direct = direct(&server, &Scripts::of(TEXTS));
    assert!(direct.takes(1));
    direct.demoted(2, &[Request::Acquire { number: 1, lease: LEASE, again: None }]).unwrap();
}

#[test]
fn a_shortcut_does_the_same_as_the_rest_would() {
    let server = server();
    shortcuts_do_the_same_as_the_rest_would(&server);
    // Repeat the comparison with subscribers of the public channel: first a redlatch waiter, then
    // also a Redisson waiter.
    let public = orders().public;
    let companion = format!("{public}:redlatch");
    let listen = |channels: &[&String]| {
        let mut connection = server.connection();
        redis::cmd("SUBSCRIBE").arg(channels).exec(&mut connection).unwrap();
        connection
    };
    let _ours = listen(&[&companion, &public]);
    shortcuts_do_the_same_as_the_rest_would(&server);
    let _redissons = listen(&[&public]);
    shortcuts_do_the_same_as_the_rest_would(&server);
}

fn shortcuts_do_the_same_as_the_rest_would(server: &Server) {
    // The second owner wants to be notified when others wait.
    let [owner, other] = [1, 2].map(|number| PlainLock.owner(&uuid(true, number), number as u64));
    let site = orders();
    let Site { lock, queue, window, .. } = &site;
    let held =
        |owner: &str| vec![format!("HSET {lock} {owner} 1"), format!("PEXPIRE {lock} 20000")];
    let (own, others) = (held(&owner), held(&other));
    let queued = vec![format!("RPUSH {queue} {other}")];
    let open = vec![format!("SET {window} 1 PX 60000")];
    let strange = vec![format!("SET {queue} mine")];
    let waits = vec![format!("RPUSH {queue} {other} {owner}")];
    let without_end = vec![format!("HSET {lock} {other} 1")];
    let no_owner = held(&other.replace('-', "+"));
    let states = [
        vec![],
        own.clone(),
        others.clone(),
        [others.clone(), strange.clone()].concat(),
        [others, waits.clone()].concat(),
        [without_end, waits.clone()].concat(),
        [no_owner, waits].concat(),
        vec![format!("SET {lock} mine")],
        queued.clone(),
        [own.clone(), queued.clone()].concat(),
        [own.clone(), strange.clone()].concat(),
        strange,
        open.clone(),
        [own, open.clone()].concat(),
        [open, queued].concat(),
    ];
    let release = |since| Request::Release { number: 1, chain: Chain { since, count: 1 } };
    let requests = [
        Request::Acquire { number: 1, lease: LEASE, again: None },
        Request::Acquire {
            number: 1,
            lease: LEASE,
            again: Some(Again { waiting_since: 1, sent: None }),
        },
        Request::Try { number: 1, lease: LEASE },
        release(0),
        release(-9),
        release(-10),
        release(-5_000),
        release(1),
    ];
    // These are all commands except three. A free lock does not need HRANDFIELD, and a release
    // needs only HDEL, not HEXISTS and DEL.
    let denied = "exists hset pexpire time hdel publish lpop lpos lrem rpush pttl llen pubsub set";
    shortcuts::check(server, &site, &states, &requests, denied);
}

fn clock(direct: &mut Direct) -> i64 {
    let (seconds, micros): (i64, i64) = direct.command(&["TIME"]);
    seconds * 1_000 + micros / 1_000
}

/// Sends a request of a client that has waited for `waited` ms. `late` is the time for which the
/// request was in flight. If `late` is `None`, the request may not report other waiters as silent.
fn ask_again(direct: &mut Direct, client: usize, waited: i64, late: Option<i64>) -> Reply {
    let now = clock(direct);
    let ago = |ago| (now - ago) as u64;
    let again = Some(Again { waiting_since: ago(waited), sent: late.map(ago) });
    direct.run(client, &Request::Acquire { number: 1, lease: LEASE, again })
}

/// Returns a lock whose lease has ended, with three clients in the queue that have subscriptions.
/// The first client was the holder.
fn lapsed(server: &Server, scripts: &Scripts) -> (Direct, Vec<Listener>) {
    let mut direct = direct(server, scripts);
    let listeners = (2..=4).map(|client| Listener::new(server, orders(), client)).collect();
    assert!(direct.takes(1));
    for client in 2..=4 {
        assert_eq!(direct.place(client), client as i64 - 2);
        wait_until("it listens", TIMEOUT, || {
            let channel = own_channel(&uuid(true, client));
            let heard: (String, i64) = direct.command(&["PUBSUB", "NUMSUB", &channel]);
            heard.1 >= 1
        });
    }
    let () = direct.command(&["DEL", "orders"]);
    (direct, listeners)
}

fn silent(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    // Only the last client sends a second request.
    let (mut direct, _listeners) = lapsed(server, scripts);
    let reply = ask_again(&mut direct, 4, 2_500, Some(0));
    let is_granted = matches!(reply, Reply::Granted { .. });
    ensure(is_granted, "the asker stands behind the silent")?;
    // A process that has just sent a request is not silent. After a Redisson holder, the scripts
    // take no shortcut.
    for is_ours in [true, false] {
        let (mut direct, _listeners) = lapsed(server, scripts);
        let holder = format!("{}:1", uuid(is_ours, 5));
        let () = direct.command(&["HSET", "orders", &holder, "1"]);
        let () = direct.command(&["PEXPIRE", "orders", "20000"]);
        ask_again(&mut direct, 3, 2_600, Some(0));
        let () = direct.command(&["DEL", "orders"]);
        ask_again(&mut direct, 4, 2_500, Some(0));
        ensure(direct.holder() == Some(3), "an owner that asked just now is passed")?;
    }
    Ok(())
}

fn silent_server(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    for late in [Some(2_000), Some(-2_000), None] {
        let (mut direct, _listeners) = lapsed(server, scripts);
        ask_again(&mut direct, 4, 2_500, late);
        let is_next = direct.holder() == Some(2);
        ensure(is_next, "the server, or its clock, stood still, and somebody is passed for that")?;
    }
    Ok(())
}

fn back(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let (mut direct, _listeners) = lapsed(server, scripts);
    ask_again(&mut direct, 4, 2_500, Some(0));
    assert!(direct.place(5) == 0 && direct.place(6) == 1);
    ask_again(&mut direct, 5, 500, None);
    // The clients send second requests in another order. Each client is placed behind the clients
    // that came before it.
    for (client, waited, expected) in [(3, 2_600, 0), (2, 2_700, 0), (7, 400, 4), (6, 450, 3)] {
        let reply = ask_again(&mut direct, client, waited, None);
        let place = match reply {
            Reply::Queued(queued) => queued.place,
            other => return Err(format!("{other:?}")),
        };
        ensure(place == expected, "a waiter that comes back does not stand where it stood")?;
    }
    // A client that came later is before a client that came earlier. The new client goes behind
    // both clients.
    let (mut direct, _listeners) = lapsed(server, scripts);
    ask_again(&mut direct, 4, 2_500, Some(0));
    assert!(direct.place(5) == 0 && direct.place(6) == 1);
    for (client, waited, expected) in [(5, 400, 0), (6, 600, 1), (7, 500, 2)] {
        let place = match ask_again(&mut direct, client, waited, None) {
            Reply::Queued(queued) => queued.place,
            other => return Err(format!("{other:?}")),
        };
        ensure(place == expected, "a waiter that comes back passes one that came earlier")?;
    }
    Ok(())
}
