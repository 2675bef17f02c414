//! The shortcuts before the prelude only save time. A script has the same effect without these
//! shortcuts.

use redis::{Connection, Value};
use redlatch_testkit::Server;

use super::direct::Direct;
use super::scripts::{Script, Scripts, call};
use super::site::Site;
use super::store::uuid;
use super::wire::{Request, as_list};

/// Tries each combination of keys, a request of client 1 and missing rights. The keys are given by
/// the commands that create them.
pub(crate) fn check(
    server: &Server,
    site: &Site,
    states: &[Vec<String>],
    requests: &[Request],
    denied: &str,
) {
    // A script may run some time after a window was opened, and the window must still be open.
    let (brief, long) = ("WINDOW, MIN_CHAIN_AGE = 4,", "WINDOW, MIN_CHAIN_AGE = 20000,");
    let scripts = Scripts::of(site.kind.texts()).with(Script::HandOff, brief, long);
    let mut master = server.connection();
    for denied in ["none"].into_iter().chain(denied.split_whitespace()) {
        let rule = format!("-{denied}");
        let rules: &[&str] = if denied == "none" { &[] } else { &[&rule] };
        let mut user = Direct::without(server, site.clone(), rules).connection;
        for (at, state) in states.iter().enumerate() {
            for request in requests {
                let call = call(site, &uuid(true, 1), request);
                let both = [scripts.text(call.script), scripts.rest(call.script)].map(|text| {
                    prepare(&mut master, state);
                    let mut command = redis::cmd("EVAL");
                    command.arg(text).arg(call.keys.len()).arg(&call.keys).arg(&call.args);
                    let reply: Result<Value, _> = command.query(&mut user);
                    let left: Value =
                        redis::cmd("EVAL").arg(ALL).arg(0).query(&mut master).unwrap();
                    (reply.map(without_times).map_err(|_| "refused"), left)
                });
                let [short, rest] = both;
                let what = format!("{denied} denied, state {at}, {request:?}");
                // A script that is refused is refused as a whole. (A shortcut may succeed without a
                // right that only the rest needs: a lock without waiters is taken without LLEN, the
                // first entry is added without LPOS, and a later entry without PTTL.)
                prepare(&mut master, state);
                let untouched = redis::cmd("EVAL").arg(ALL).arg(0).query(&mut master).unwrap();
                let may_differ = matches!(request, Request::Release { .. })
                    || ["llen", "lpos", "pttl"].contains(&denied);
                if !(may_differ
                    && denied != "none"
                    && [&short, &rest].contains(&&(Err("refused"), untouched)))
                {
                    assert_eq!(short, rest, "{what}");
                }
            }
        }
    }
}

fn prepare(master: &mut Connection, state: &[String]) {
    let mut pipe = redis::pipe();
    pipe.cmd("FLUSHALL");
    for command in state {
        let mut words = command.split(' ');
        pipe.cmd(words.next().unwrap()).arg(words.collect::<Vec<_>>());
    }
    pipe.exec(master).unwrap();
}

/// Returns every key with its value.
const ALL: &str = "
    local keys, all = redis.call('keys', '*'), {}
    table.sort(keys)
    for _, key in ipairs(keys) do
        all[#all + 1] = key
        all[#all + 1] = redis.call('dump', key)
    end
    return all";

/// Returns a reply without the server's time and without remaining times.
fn without_times(reply: Value) -> Value {
    match as_list(reply) {
        Value::Array(parts) => Value::Array(parts.into_iter().skip(2).collect()),
        reply => reply,
    }
}
