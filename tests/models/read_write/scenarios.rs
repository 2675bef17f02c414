//! Tests of the scripts without a simulated clock.

use redis::Value;
use redlatch_testkit::Server;

use super::kind::{ReadWriteLock, TEXTS, timeouts};
use crate::common::{TIMEOUT, forbids_a_command, unbounded_server as server, wait_until};
use crate::simulated::client::LEASE;
use crate::simulated::direct::{CHAIN, Direct, Listener};
use crate::simulated::kind::Kind;
use crate::simulated::rules::Broken;
use crate::simulated::scripts::{Script, Scripts, call, taking};
use crate::simulated::shortcuts;
use crate::simulated::site::Site;
use crate::simulated::specification::scenes;
use crate::simulated::store::uuid;
use crate::simulated::wire::{Chain, Reply, Request, What, named, own_channel};

scenes! {
    TEXTS;
    mute_release: without_the_right_to_publish_a_release_goes_on_unless_waiters_must_be_told,
    twice: a_request_sent_again_changes_nothing,
    left_to_redisson: readers_behind_a_dead_writer_enter_beside_redissons,
    behind_a_dead_writer: a_reader_passes_a_dead_writer_and_cuts_no_lease,
    lapsed: a_timeout_that_has_lapsed_is_made_anew,
    let_in_together: very_many_readers_are_let_in_together_and_each_is_told,
    crowd_leaves: each_of_very_many_readers_leaves_and_cuts_no_others_lease,
    asker_among_others: readers_around_the_asking_one_are_told,
    crowd_dies: a_writer_gets_the_lock_of_very_many_dead_readers,
    the_dead_leave: the_fields_of_dead_readers_go_while_others_read_on,
    demoted: a_replica_takes_no_release,
    reads_on_too_long: a_lapsed_reader_that_asks_to_read_on_leaves_no_free_lock_waited_for,
}

/// Owners with odd numbers read.
const READS: u64 = 1;
const WRITES: u64 = 2;

fn prices() -> Site {
    Site::new(&ReadWriteLock, 0, "prices")
}

fn owner(client: usize, number: u64) -> String {
    ReadWriteLock.owner(&uuid(true, client), number)
}

fn acquire(number: u64) -> Request {
    Request::Acquire { number, lease: LEASE, again: None }
}

fn release(number: u64) -> Request {
    Request::Release { number, chain: CHAIN }
}

fn direct(server: &Server, scripts: &Scripts) -> Direct {
    let mut direct = Direct { scripts: scripts.clone(), ..Direct::new(server, prices()) };
    let () = direct.command(&["FLUSHALL"]);
    direct
}

fn ensure(is_so: bool, otherwise: &str) -> Result<(), Broken> {
    if is_so { Ok(()) } else { Err(otherwise.to_owned()) }
}

/// Returns the holders and the waiters.
fn there(direct: &mut Direct) -> (Vec<String>, Vec<String>) {
    let queue = direct.site.queue.clone();
    let mut holders: Vec<String> = direct.command(&["HKEYS", "prices"]);
    holders.retain(|field| field != "mode");
    (holders, direct.command(&["LRANGE", &queue, "0", "-1"]))
}

fn hear(server: &Server, direct: &mut Direct, client: usize) -> Listener {
    let listener = Listener::new(server, prices(), client);
    wait_until("it listens", TIMEOUT, || listeners(direct, client) == 1);
    listener
}

fn listeners(direct: &mut Direct, client: usize) -> i64 {
    let heard: (String, i64) =
        direct.command(&["PUBSUB", "NUMSUB", &own_channel(&uuid(true, client))]);
    heard.1
}

/// If a client may not send messages, it keeps the lock, whether or not another client waits.
fn mute_release(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut master = direct(server, scripts);
    let mut mute = Direct::without(server, prices(), &["-publish"]);
    mute.scripts = scripts.clone();
    for (number, others) in [(READS, WRITES), (WRITES, READS), (WRITES, WRITES)] {
        let () = master.command(&["FLUSHALL"]);
        let _listener = hear(server, &mut master, 2);
        for waits in [false, true] {
            if waits {
                mute.run(1, &acquire(number));
                master.run(2, &acquire(others));
                master.run(3, &acquire(WRITES));
            }
            let before = there(&mut master);
            for since in [0, -5_000, 1] {
                let request = Request::Release { number, chain: Chain { since, count: 1 } };
                if !waits {
                    // The user may send all messages except the public message.
                    mute.run(1, &acquire(number));
                    let free = mute.raw(1, &request).map_err(|error| error.to_string());
                    ensure(free == Ok(Value::Int(5)), &format!("a mute release: {free:?}"))?;
                    continue;
                }
                let refused = mute.raw(1, &request).err().map(|error| error.to_string());
                let is_forbidden = refused.as_deref().is_some_and(forbids_a_command);
                ensure(is_forbidden, &format!("a mute release: {refused:?}"))?;
            }
            ensure(there(&mut master) == before, "it is refused, and something is done")?;
        }
        master.run(1, &release(number));
        ensure(there(&mut master).0 == [owner(2, others)], "the first in line is not granted it")?;
    }
    Ok(())
}

/// The reply to the second copy of a request says that the first copy took the lock. The second
/// copy of a release does nothing.
fn twice(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    for number in [READS, WRITES] {
        for request in [acquire(number), Request::Try { number, lease: LEASE }] {
            for already in [false, true] {
                let granted = Reply::Granted { already, token: None };
                ensure(direct.run(1, &request) == granted, "the second is not as the first")?;
            }
            let replies = [(); 2].map(|()| direct.raw(1, &release(number)).ok());
            ensure(replies == [Some(Value::Int(0)), Some(Value::Nil)], "released twice")?;
        }
    }
    Ok(())
}

/// Only Redisson clients are left, which ignore redlatch's queue. A dead writer is first in the
/// queue, but readers get the lock at once.
fn left_to_redisson(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    direct.run(1, &acquire(READS));
    let redisson = format!("{}:7", uuid(false, 9));
    let () = direct.command(&["HSET", "prices", &redisson, "1"]);
    let timeout = format!("{}:1", timeouts("prices", &redisson));
    let () = direct.command(&["SET", &timeout, "1", "PX", "30000"]);
    let dead = hear(server, &mut direct, 2);
    direct.run(2, &acquire(WRITES));
    let mut listener = hear(server, &mut direct, 3);
    direct.run(3, &acquire(READS));
    ensure(there(&mut direct).1.len() == 2, "a reader passes a writer")?;
    drop(dead);
    wait_until("the server knows that it is dead", TIMEOUT, || listeners(&mut direct, 2) == 0);
    let reply = direct.raw(1, &release(READS)).map_err(|error| error.to_string())?;
    ensure(reply == Value::Int(4), "others hold it still")?;
    let (holders, queue) = there(&mut direct);
    ensure(queue.is_empty() && holders.contains(&owner(3, READS)), "a reader waits for readers")?;
    let told = listener.hears();
    ensure(matches!(told.what, What::Grant { .. }), "it is not told so")
}

/// A reader skips a dead writer before it while another reader holds the lock. The shorter lease of
/// the first reader shortens no other lease.
fn behind_a_dead_writer(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    direct.run(1, &acquire(READS));
    direct.run(2, &acquire(WRITES));
    let request = Request::Acquire { number: READS, lease: LEASE / 10, again: None };
    let granted = Reply::Granted { already: false, token: None };
    ensure(direct.run(3, &request) == granted, "a reader waits for a dead writer")?;
    // This is a late copy of the request.
    direct.run(3, &request);
    let left: i64 = direct.command(&["PTTL", "prices"]);
    ensure(left > LEASE / 2, "a reader that asks cuts the others' lease")
}

/// A reader's timeout has expired, and another reader has kept the lock. Every request whose reply
/// says that its owner reads creates the owner's timeout again, so that the next reader that leaves
/// finds this owner.
fn lapsed(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    let reads = owner(1, READS);
    let timeout = format!("{}:1", timeouts("prices", &reads));
    let site = prices();
    let take = |script| taking(script, &site, LEASE, reads.clone(), None);
    let renewal = call(&site, &uuid(true, 1), &Request::Renew { number: READS, lease: LEASE });
    for (call, held) in [
        (renewal, Value::Array(vec![Value::Int(1)])),
        (take(Script::Acquire), Value::Int(-1)),
        (take(Script::Try), Value::Int(-1)),
        (take(Script::ReadOn), Value::Int(0)),
    ] {
        let () = direct.command(&["FLUSHALL"]);
        direct.run(1, &acquire(READS));
        direct.run(2, &acquire(READS));
        let () = direct.command(&["DEL", &timeout]);
        let reply = direct.eval(&call).map_err(|error| error.to_string())?;
        ensure(reply == held, &format!("{:?} says {reply:?}", call.script))?;
        let left: i64 = direct.command(&["PTTL", &timeout]);
        ensure(left > 0, &format!("{:?} lets it read without a timeout", call.script))?;
        direct.run(2, &release(READS));
        ensure(there(&mut direct).0 == [reads.as_str()], "the one that leaves ends its hold")?;
    }
    Ok(())
}

/// A number of readers for which the scripts treat several readers at once.
const MANY_PROCESSES: usize = 250;

/// Takes the lock for readers of [`MANY_PROCESSES`] processes. The first reader has a lease of
/// `longest` ms.
fn crowd(direct: &mut Direct, longest: i64) {
    let () = direct.command(&["HSET", "prices", "mode", "read"]);
    let () = direct.command(&["PEXPIRE", "prices", &longest.to_string()]);
    for client in 1..=MANY_PROCESSES {
        let reader = owner(client, READS);
        let lease = if client == 1 { longest } else { LEASE };
        let timeout = format!("{}:1", timeouts("prices", &reader));
        let () = direct.command(&["HSET", "prices", &reader, "1"]);
        let () = direct.command(&["SET", &timeout, "1", "PX", &lease.to_string()]);
    }
}

fn lasts(direct: &mut Direct) -> i64 {
    direct.command(&["PTTL", "prices"])
}

/// A release grants the lock to very many readers, up to the next writer. Each reader gets the lock
/// once, and one message.
fn let_in_together(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    direct.run(MANY_PROCESSES + 1, &acquire(WRITES));
    let mut listeners: Vec<_> =
        (1..=MANY_PROCESSES).map(|client| hear(server, &mut direct, client)).collect();
    let _writer = hear(server, &mut direct, MANY_PROCESSES + 3);
    // A monitor receives every channel, so the server counts a listener even for a dead client.
    let mut monitor = server.connection();
    redis::cmd("PSUBSCRIBE").arg("*").exec(&mut monitor).unwrap();
    let readers: Vec<_> = (1..=MANY_PROCESSES).map(|client| owner(client, READS)).collect();
    let (dead, last) = (owner(MANY_PROCESSES + 2, READS), owner(MANY_PROCESSES + 3, WRITES));
    let queue = direct.site.queue.clone();
    for place in readers[..99].iter().chain([&dead]).chain(&readers[99..]).chain([&last]) {
        let () = direct.command(&["RPUSH", &queue, place]);
    }
    let reply =
        direct.raw(MANY_PROCESSES + 1, &release(WRITES)).map_err(|error| error.to_string())?;
    ensure(reply == Value::Int(1), "it is not handed on")?;
    let (mut holders, places) = there(&mut direct);
    holders.sort();
    let mut all = readers.clone();
    all.sort();
    ensure(holders == all, &format!("{} were let in", holders.len()))?;
    ensure(places == [last], &format!("{places:?} wait"))?;
    let timeouts: Vec<String> = direct.command(&["KEYS", "*rwlock_timeout*"]);
    ensure(timeouts.len() == MANY_PROCESSES, "one reads without a timeout")?;
    for listener in &mut listeners {
        let told = listener.hears();
        ensure(matches!(told.what, What::Grant { places: 1, .. }), "it is told something else")?;
    }
    Ok(())
}

/// If there are very many readers, a leaving reader checks only a few of them, and shortens no
/// lease. When few are left, the lock lasts as long as the longest of their leases. A single reader
/// with a much longer lease is found.
fn crowd_leaves(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    crowd(&mut direct, 10 * LEASE);
    for client in 2..=100 {
        direct.run(client, &release(READS));
        ensure(lasts(&mut direct) > 9 * LEASE, "the lease of the longest is cut")?;
    }
    direct.run(1, &release(READS));
    let left = lasts(&mut direct);
    ensure(left > LEASE / 2 && left <= LEASE, "the lock lasts for longer than its readers")?;
    let () = direct.command(&["PEXPIRE", "prices", &(2 * LEASE).to_string()]);
    for client in 101..MANY_PROCESSES {
        direct.run(client, &release(READS));
        ensure(lasts(&mut direct) > LEASE / 2, "the lease of the others is cut")?;
    }
    let left = lasts(&mut direct);
    ensure(left > 0 && left <= LEASE, "the lock lasts for longer than its last reader")?;
    let reply = direct.raw(MANY_PROCESSES, &release(READS)).map_err(|error| error.to_string())?;
    ensure(reply == Value::Int(0), "nobody is left, and it is not free")
}

/// One of many readers at the head of the queue sends a request. This reader gets the reply, and
/// the readers before and behind it get messages.
fn asker_among_others(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    direct.run(1, &acquire(WRITES));
    let mut listeners: Vec<_> = (2..8).map(|client| hear(server, &mut direct, client)).collect();
    for client in 2..8 {
        direct.run(client, &acquire(READS));
    }
    let () = direct.command(&["DEL", "prices"]);
    let reply = direct.run(4, &acquire(READS));
    ensure(matches!(reply, Reply::Granted { .. }), "the asking owner is not let in")?;
    ensure(there(&mut direct).0.len() == 6, "not all are let in")?;
    let timeout = format!("{}:1", timeouts("prices", &owner(4, READS)));
    let left: i64 = direct.command(&["PTTL", &timeout]);
    ensure(left > LEASE / 2, "the asking owner has not its whole lease")?;
    // Send this message to all clients. It is the first message only of a client that got no grant
    // by message, which must be the sender of the request.
    let open = format!("open {} 0 0 prices", named(READS));
    for client in 2..8 {
        let _heard: i64 = direct.command(&["PUBLISH", &own_channel(&uuid(true, client)), &open]);
    }
    let itself = listeners.remove(2).hears();
    ensure(!matches!(itself.what, What::Grant { .. }), "the asking owner gets a message, too")?;
    for listener in &mut listeners {
        ensure(matches!(listener.hears().what, What::Grant { .. }), "it is told something else")?;
    }
    Ok(())
}

/// Very many readers all die. The lock's time to live is that of a reader that left before. A
/// writer that then asks gets the lock. If one of the readers lives, the writer does not get the
/// lock, and the lock lasts as long as that reader's lease.
fn crowd_dies(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    for ask in [acquire(WRITES), Request::Try { number: WRITES, lease: LEASE }] {
        let mut direct = direct(server, scripts);
        crowd(&mut direct, LEASE);
        let _listener = hear(server, &mut direct, MANY_PROCESSES + 1);
        let () = direct.command(&["PEXPIRE", "prices", &(100 * LEASE).to_string()]);
        let timeouts: Vec<String> = direct.command(&["KEYS", "*rwlock_timeout*"]);
        for timeout in &timeouts[1..] {
            let () = direct.command(&["DEL", timeout]);
        }
        // The script checks a few readers at random, and the live reader may be among them.
        for _ in 0..20 {
            direct.run(MANY_PROCESSES + 1, &ask);
        }
        let holders = there(&mut direct).0;
        ensure(
            holders.len() == 1 && timeouts[0].contains(&holders[0]),
            "the one that lives lost it",
        )?;
        crowd(&mut direct, LEASE);
        let () = direct.command(&["PEXPIRE", "prices", &(100 * LEASE).to_string()]);
        for timeout in direct.command::<Vec<String>>(&["KEYS", "*rwlock_timeout*"]) {
            let () = direct.command(&["DEL", &timeout]);
        }
        direct.run(MANY_PROCESSES + 1, &ask);
        ensure(
            there(&mut direct).0 == [owner(MANY_PROCESSES + 1, WRITES)],
            "a writer waits for the dead",
        )?;
    }
    Ok(())
}

/// While other readers come and go, killed processes leave nothing behind.
fn the_dead_leave(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    for dead in [10, MANY_PROCESSES - 2] {
        let mut direct = direct(server, scripts);
        crowd(&mut direct, LEASE);
        let few = MANY_PROCESSES - 2 - dead;
        for client in 1..=dead + few {
            let reader = owner(client, READS);
            let timeout = format!("{}:1", timeouts("prices", &reader));
            let () = direct.command(&["DEL", &timeout]);
            if client > dead {
                let () = direct.command(&["HDEL", "prices", &reader]);
            }
        }
        direct.run(MANY_PROCESSES - 1, &release(READS));
        // The script checks a few readers at random, and the live reader may be among them.
        for _ in 0..100 {
            if there(&mut direct).0.len() > 1 {
                direct.run(MANY_PROCESSES + 1, &acquire(READS));
                direct.run(MANY_PROCESSES + 1, &release(READS));
            }
        }
        ensure(
            there(&mut direct).0 == [owner(MANY_PROCESSES, READS)],
            "the fields of the dead stay",
        )?;
        ensure(lasts(&mut direct) > 0, "one that lives has lost it")?;
    }
    Ok(())
}

/// A demoted master must refuse to release a lock even if it does not have that lock, because the
/// new master may have it.
fn demoted(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    for number in [READS, WRITES] {
        direct.demoted(1, &[release(number), Request::GiveUp { number, chain: CHAIN }])?;
    }
    Ok(())
}

/// A replica must add no entry, because no script on a replica would grant the lock to a waiter.
#[test]
fn a_replica_gives_no_client_a_place() {
    let server = server();
    let mut direct = direct(&server, &Scripts::of(TEXTS));
    direct.run(1, &acquire(WRITES));
    direct.demoted(2, &[acquire(READS)]).unwrap();
}

/// The reader's lease has ended. The reader notices this by its query whether others wait.
fn reads_on_too_long(server: &Server, scripts: &Scripts) -> Result<(), Broken> {
    let mut direct = direct(server, scripts);
    direct.run(1, &acquire(READS));
    let _listener = hear(server, &mut direct, 2);
    direct.run(2, &acquire(WRITES));
    let () = direct.command(&["DEL", "prices"]);
    let asking = taking(Script::ReadOn, &direct.site, LEASE, owner(1, READS), None);
    let reply = direct.eval(&asking).map_err(|error| error.to_string())?;
    ensure(reply == Value::Nil, "it reads still")?;
    ensure(there(&mut direct).0 == [owner(2, WRITES)], "a free lock is waited for")
}

#[test]
fn a_shortcut_does_the_same_as_the_rest_would() {
    let server = server();
    let site = prices();
    let Site { lock, queue, window, .. } = &site;
    let [reader, writer] = [READS, WRITES].map(|number| owner(1, number));
    let others = [READS, WRITES].map(|number| owner(2, number));
    let timeout = |owner: &str| format!("SET {}:1 1 PX 20000", timeouts(lock, owner));
    let held = |mode: &str, owners: &[&str]| -> Vec<String> {
        let fields: Vec<_> = owners.iter().map(|owner| format!("{owner} 1")).collect();
        let mut commands = vec![
            format!("HSET {lock} mode {mode} {}", fields.join(" ")),
            format!("PEXPIRE {lock} 20000"),
        ];
        let reads = owners.iter().filter(|owner| !owner.ends_with(":write"));
        commands.extend(reads.map(|owner| timeout(owner)));
        commands
    };
    let queued = vec![format!("RPUSH {queue} {}", others[1])];
    let open = vec![format!("SET {window} 1 PX 60000")];
    let states = [
        vec![],
        held("read", &[&reader]),
        held("read", &[&reader, &others[0]]),
        held("read", &[&others[0]]),
        held("write", &[&writer]),
        held("write", &[&writer, &reader]),
        held("write", &[&others[1]]),
        [held("read", &[&reader]), queued.clone()].concat(),
        [held("write", &[&writer]), queued.clone()].concat(),
        [held("write", &[&writer]), open.clone()].concat(),
        [open.clone(), queued.clone()].concat(),
        queued,
        open,
        vec![format!("SET {lock} mine")],
        vec![format!("SET {queue} mine")],
        [held("read", &[&reader]), vec![format!("SET {queue} mine")]].concat(),
    ];
    let requests = [READS, WRITES].map(|number| {
        let release = |since| Request::Release { number, chain: Chain { since, count: 1 } };
        [
            Request::Acquire { number, lease: LEASE, again: None },
            Request::Try { number, lease: LEASE },
            release(0),
            release(-9),
            release(-10),
            release(1),
        ]
    });
    // All commands except PTTL, HLEN and HGETALL, which a free lock does not need.
    let denied = "set exists hset pexpire time del publish hexists lpop lpos rpush llen pubsub";
    shortcuts::check(&server, &site, &states, &requests.concat(), denied);
}
