//! What stands before the prelude only saves time.

use redis::{Connection, Value};
use redlatch_testkit::Server;

use crate::client::LEASE;
use crate::common::real_server;
use crate::scripts::{Script, Scripts, call};
use crate::site::{Site, owner, timeouts};
use crate::store::uuid;
use crate::wire::{Chain, Request};

/// As a user who may do everything but this.
fn without(server: &Server, denied: &str) -> Connection {
    let mut connection = server.connection();
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "me", "reset", "on", ">word", "~*", "&*", "+@all"]);
    if denied != "none" {
        user.arg(format!("-{denied}"));
    }
    user.exec(&mut connection).unwrap();
    let mut connection = server.connection();
    redis::cmd("AUTH").arg("me").arg("word").exec(&mut connection).unwrap();
    connection
}

/// Every key with what is in it.
const ALL: &str = "
    local keys, all = redis.call('keys', '*'), {}
    table.sort(keys)
    for _, key in ipairs(keys) do
        all[#all + 1] = key
        all[#all + 1] = redis.call('dump', key)
    end
    return all";

/// A reply without the server's clock, and what is left until then.
fn without_times(reply: Value) -> Value {
    match reply {
        Value::Array(parts) => Value::Array(parts.into_iter().skip(2).collect()),
        reply => reply,
    }
}

/// What is there, what is asked for and what is denied, all with all.
#[test]
fn a_shortcut_does_what_the_rest_would() {
    let Some(server) = real_server() else { return };
    let site = Site::new(0, "prices");
    let Site { lock, queue, window, .. } = &site;
    // The odd ones read.
    let [reader, writer] = [1, 2].map(|number| owner(&uuid(true, 1), number));
    let others = [1, 2].map(|number| owner(&uuid(true, 2), number));
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
    let requests = [1, 2].map(|number| {
        let release = |since| Request::Release { number, chain: Chain { since, count: 1 } };
        [
            Request::Acquire { number, lease: LEASE },
            Request::Try { number, lease: LEASE },
            release(0),
            release(-9),
            release(-10),
            release(1),
        ]
    });
    // A window is seen here some time after it was opened: it must not have ended by then.
    let (brief, long) = ("WINDOW, AGE, BLIND = 4,", "WINDOW, AGE, BLIND = 20000,");
    let scripts = Scripts::broken(Script::HandOff, brief, long);
    let mut master = server.connection();
    let prepare = |master: &mut Connection, state: &[String]| {
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL");
        for command in state {
            let mut words = command.split(' ');
            pipe.cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>());
        }
        pipe.exec(master).unwrap();
    };
    // But for PTTL, HLEN and HGETALL, which a lock that is free can do without.
    let denied =
        "none set exists hset pexpire time del publish hexists lpop lpos rpush llen pubsub";
    for denied in denied.split_whitespace() {
        let mut user = without(&server, denied);
        for (at, state) in states.iter().enumerate() {
            for request in requests.iter().flatten() {
                let script = Script::of(request);
                let both = [scripts.text(script), scripts.rest(script)].map(|text| {
                    prepare(&mut master, state);
                    let (keys, args) = call(&site, &uuid(true, 1), request, false);
                    let mut command = redis::cmd("EVAL");
                    command.arg(text).arg(keys.len()).arg(&keys).arg(args);
                    let reply: Result<Value, _> = command.query(&mut user);
                    let left: Value =
                        redis::cmd("EVAL").arg(ALL).arg(0).query(&mut master).unwrap();
                    (reply.map(without_times).map_err(|_| "refused"), left)
                });
                let [short, rest] = both;
                assert_eq!(short, rest, "{denied} denied, state {at}, {request:?}");
            }
        }
    }
}
